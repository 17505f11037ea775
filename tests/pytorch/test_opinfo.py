"""torch's own samples of its functions: results and gradients within bounds of float64, or a refusal listed here.

Every type of torch's samples is asked for, and every sample lies in memory as torch gives it, with gaps, and with its
second dimension innermost (channels last). torch's list of samples needs the package expecttest, which torch does not
bring. The table of all counts:

    python tests/pytorch/test_opinfo.py
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

from torch.testing._internal.common_methods_invocations import op_db

from tilewright.errors import ArgumentError
from tilewright.torch import functional

NAMES = {
    **{f"nn.functional.conv{rank}d": f"conv{rank}d" for rank in (1, 2, 3)},
    **{f"nn.functional.{name}": name for name in ("linear", "layer_norm", "group_norm", "rms_norm")},
    **{name: name for name in ("matmul", "bmm", "softmax")},
    "nn.functional.scaled_dot_product_attention": "scaled_dot_product_attention",
}
SAMPLES = {f"{op.name} {op.variant_test_name}".strip(): op for op in op_db if op.name in NAMES}
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01, torch.float64: 1e-9}
"""Relative and absolute; results of other types are equal."""
REFUSED = {"complex": "for which there are no kernels"}
"""The kinds of refusals: what a sample holds, and the words of the error."""
CASES = [(name, kind) for name, op in SAMPLES.items() for kind in sorted(op.dtypes, key=str)]


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """A sample's argument with a change of its tensors."""
    if isinstance(value, torch.Tensor):
        return change(value)
    return [changed(v, change) for v in value] if isinstance(value, list) else value


def wide(tensor: Any) -> Any:
    return tensor.double() if tensor.is_floating_point() else tensor


def with_gaps(tensor: Any) -> Any:
    return torch.stack([tensor + 1 if tensor.dtype is not torch.bool else ~tensor, tensor], -1)[..., 1]


def channels_last(tensor: Any) -> Any:
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1) if tensor.dim() > 2 else tensor


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "as torch's": lambda tensor: tensor,
    "with gaps": with_gaps,
    "channels last": channels_last,
}


def outcome(name: str, kind: Any, layout: str, sample: Any) -> str:
    """ "right", or the kind of a refusal; raises for a wrong result."""
    called = NAMES[SAMPLES[name].name]
    ours = getattr(functional, called)
    theirs = getattr(torch.nn.functional, called, None) or getattr(torch, called)  # a sample's own sets another seed
    options = dict(sample.kwargs)
    if name.endswith("rms_norm") and not kind.is_complex:  # its default is the type's own
        options["eps"] = options.get("eps") or torch.finfo(kind).eps
    given = [changed(a, LAYOUTS[layout]) for a in (sample.input, *sample.args)]
    named = {k: changed(v, LAYOUTS[layout]) for k, v in options.items()}
    torch.manual_seed(0)  # of dropout
    try:
        result = ours(*given, **named)
    except ArgumentError as fault:
        for refused, words in REFUSED.items():
            if getattr(kind, f"is_{refused}") and words in str(fault):
                return refused
        raise
    torch.manual_seed(0)
    expected = theirs(*(changed(a, wide) for a in given), **{k: changed(v, wide) for k, v in named.items()})
    if options.get("dtype") is None:
        assert result.dtype is kind
        expected = expected.to(kind)
    bound = BOUNDS.get(kind, 0) if options.get("dtype") is None else BOUNDS[torch.float64]
    torch.testing.assert_close(result, expected, rtol=bound, atol=bound, equal_nan=True)
    return "right"


def outcomes(name: str, kind: Any) -> Iterator[str]:
    """Those of all samples of a function, for one type."""
    for layout in LAYOUTS:
        for sample in SAMPLES[name].sample_inputs("cpu", kind):
            yield outcome(name, kind, layout, sample)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's reference
@pytest.mark.filterwarnings("ignore:Casting complex values to real")  # samples of softmax to another type
@pytest.mark.parametrize(("name", "kind"), CASES, ids=lambda x: str(x).replace(" ", "_"))
def test_samples_of_torch_are_computed_or_refused_by_name(name: str, kind: Any) -> None:
    """Complex numbers alone are refused."""
    counts = Counter(outcomes(name, kind))
    assert counts
    is_cast = name == "softmax with_dtype"
    assert set(counts) == {"complex" if kind.is_complex and not is_cast else "right"}


def call_and_differentiate(function: Callable[..., Any], given: Any, named: Any, cast: Callable[[Any], Any]) -> Any:
    """The gradients of all float tensors among the arguments, which are cast before."""
    leaves: list[Any] = []

    def leaf(tensor: Any) -> Any:
        copy = cast(tensor.detach())
        if copy.is_floating_point():
            leaves.append(copy.requires_grad_())
        return copy

    args, options = [changed(a, leaf) for a in given], {k: changed(v, leaf) for k, v in named.items()}
    torch.manual_seed(0)  # of dropout
    y = function(*args, **options)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return torch.autograd.grad(y, leaves, dy, allow_unused=True)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's reference
@pytest.mark.parametrize(
    ("name", "kind"), [(n, k) for n, k in CASES if k in BOUNDS], ids=lambda x: str(x).replace(" ", "_")
)
def test_gradients_of_samples_of_torch_are_torchs(name: str, kind: Any) -> None:
    """Within twice the bounds of results, relative to the largest gradient of a tensor: results are rounded before."""
    called = NAMES[SAMPLES[name].name]
    theirs = getattr(torch.nn.functional, called, None) or getattr(torch, called)
    for sample in SAMPLES[name].sample_inputs("cpu", kind):
        named = dict(sample.kwargs)
        if name.endswith("rms_norm"):  # its default is the type's own
            named["eps"] = named.get("eps") or torch.finfo(kind).eps
        given = [sample.input, *sample.args]
        gradients = call_and_differentiate(getattr(functional, called), given, named, lambda tensor: tensor)
        expected = call_and_differentiate(theirs, given, named, wide)
        for gradient, other in zip(gradients, expected, strict=True):
            if other is None:
                assert gradient is None
                continue
            assert gradient.dtype is kind
            largest = float(other.abs().max()) if other.numel() else 0.0
            limit = 2 * BOUNDS[kind] * max(1.0, largest)
            torch.testing.assert_close(gradient.double(), other, rtol=0, atol=limit)


def main() -> None:
    """Write how many samples of each function were right, and how many refused, by kind."""
    warnings.simplefilter("ignore")
    total: Counter[str] = Counter()
    columns = ("real", "right", "refused", "complex", "right or cast", "refused as complex")
    lines = [f"{'samples, in three layouts':<42}" + "".join(f"{c:>20}" for c in columns)]
    for name, op in SAMPLES.items():
        counts: Counter[str] = Counter()
        for kind in op.dtypes:
            for each in outcomes(name, kind):
                if kind.is_complex:
                    counts.update(["complex", "right or cast" if each == "right" else "refused as complex"])
                else:
                    counts.update(["real", "right" if each == "right" else "refused"])
        lines.append(f"{name:<42}" + "".join(f"{counts[c]:>20}" for c in columns))
        total += counts
    lines.append(f"{'all':<42}" + "".join(f"{total[c]:>20}" for c in columns))
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
