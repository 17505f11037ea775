"""Every operator passes torch's own check, for tensors that lie in memory in every way, of every type it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch
from tilewright.errors import MissingBackward
from tilewright.kernels import conv, gated_silu, reduction

KINDS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def transposed(t: Any) -> Any:
    return t.mT.contiguous().mT if t.dim() > 1 else t


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda t: t.contiguous(),
    "channels_last": lambda t: t.movedim(1, -1).contiguous().movedim(-1, 1) if t.dim() > 1 else t,
    "transposed": transposed,
    "sliced": lambda t: torch.stack([t + 1, t], -1)[..., 1],  # with gaps, and not from the first element
    "empty": lambda t: t,
}


def numbers(kind: Any, *shape: int) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-2, 3, shape, generator=generator).to(kind)


def convolved(rank: int) -> Callable[[Any, int], tuple[Any, ...]]:
    def made(kind: Any, n: int) -> tuple[Any, ...]:
        image, taps = (6, 5, 4)[:rank], (3, 2, 2)[:rank]
        options = ([2] * rank, [1] * rank, [1] * rank, 2)
        return numbers(kind, n, 4, *image), numbers(kind, 6, 2, *taps), numbers(kind, 6), *options

    return made


def pooled(rank: int) -> Callable[[Any, int], tuple[Any, ...]]:
    def made(kind: Any, n: int) -> tuple[Any, ...]:
        options = ([3, 2, 3][:rank], [2, 1, 2][:rank], [1, 0, 1][:rank], [1, 2, 1][:rank])
        return numbers(kind, n, 4, *(6, 5, 4)[:rank]), *options

    return made


def averaged(rank: int) -> Callable[[Any, int], tuple[Any, ...]]:
    return lambda kind, n: (numbers(kind, n, 4, *(6, 5, 4)[:rank]), [1] * rank)


def attended(kind: Any, n: int) -> tuple[Any, ...]:
    """Queries, keys and values."""
    return numbers(kind, n, 2, 3, 4), numbers(kind, n, 2, 5, 4), numbers(kind, n, 2, 5, 3)


def scored(kind: Any, n: int) -> tuple[Any, ...]:
    """The last arguments of attention: bias, is_causal, scale."""
    return numbers(torch.float64 if kind is torch.float64 else torch.float32, n, 2, 3, 5), False, None


def with_rows(kind: Any, n: int) -> tuple[Any, ...]:
    """The gradient of attention's result, and two numbers for each query."""
    wide = torch.float64 if kind is torch.float64 else torch.float32
    return numbers(kind, n, 2, 3, 3), numbers(wide, n, 2, 3) + 4, numbers(wide, n, 2, 3) - 1


def with_gradients(name: str, given: Any) -> tuple[Any, ...]:
    """The arguments of an operator, of which those that have gradients need one."""
    if name in FORWARD_ONLY:
        return tuple(given)
    return tuple(
        a.requires_grad_() if isinstance(a, torch.Tensor) and n != CONSTANT.get(name) else a
        for n, a in enumerate(given)
    )


ARGUMENTS: dict[str, Callable[[Any, int], tuple[Any, ...]]] = {
    "linear": lambda kind, n: (
        *(numbers(kind, n, 3, 5), numbers(kind, 7, 5), numbers(kind, 7)),
        *("silu", False, numbers(kind, n, 3, 7)),
    ),
    "matmul": lambda kind, n: (numbers(kind, n, 3, 5), numbers(kind, n, 5, 4), numbers(kind, 4)),
    "bmm": lambda kind, n: (numbers(kind, n, 3, 5), numbers(kind, n, 5, 4)),
    "conv1d": convolved(1),
    "conv2d": convolved(2),
    "conv3d": convolved(3),
    "conv_image_gradient": lambda kind, n: (
        *(numbers(kind, n, 6, 3, 3), numbers(kind, 6, 2, 3, 2), [6, 5]),
        *([2, 2], [1, 1], [1, 1], 2),
    ),
    "conv_filter_gradient": lambda kind, n: (
        *(numbers(kind, n, 4, 6, 5), numbers(kind, n, 6, 3, 3), [3, 2]),
        *([2, 2], [1, 1], [1, 1], 2),
    ),
    **{f"max_pool{rank}d": pooled(rank) for rank in (1, 2, 3)},
    **{f"adaptive_avg_pool{rank}d": averaged(rank) for rank in (1, 2, 3)},
    "layer_norm": lambda kind, n: (numbers(kind, n, 3, 5), [3, 5], numbers(kind, 3, 5), numbers(kind, 3, 5), 1e-5),
    "rms_norm": lambda kind, n: (numbers(kind, n, 3, 5), [5], numbers(kind, 5), 1e-5),
    "group_norm": lambda kind, n: (numbers(kind, n, 4, 3, 5), 2, numbers(kind, 4), numbers(kind, 4), 1e-5),
    "softmax": lambda kind, n: (numbers(kind, n, 3, 5), 1),
    "layer_norm_gradient": lambda kind, n: (
        *(numbers(kind, n, 3, 5), numbers(kind, 3, 5), numbers(kind, n, 3, 5) - 1),
        *([3, 5], 1e-5),
    ),
    "layer_norm_weight_gradient": lambda kind, n: (numbers(kind, n, 3, 5), numbers(kind, n, 3, 5) - 1, [3, 5], 1e-5),
    "rms_norm_gradient": lambda kind, n: (
        *(numbers(kind, n, 3, 5), numbers(kind, 5), numbers(kind, n, 3, 5) - 1),
        *([5], 1e-5),
    ),
    "rms_norm_weight_gradient": lambda kind, n: (numbers(kind, n, 3, 5), numbers(kind, n, 3, 5) - 1, [5], 1e-5),
    "group_norm_gradient": lambda kind, n: (
        *(numbers(kind, n, 4, 3, 5), numbers(kind, 4), numbers(kind, n, 4, 3, 5) - 1),
        *(2, 1e-5),
    ),
    "group_norm_weight_gradient": lambda kind, n: (numbers(kind, n, 4, 3, 5), numbers(kind, n, 4, 3, 5) - 1, 2, 1e-5),
    "softmax_gradient": lambda kind, n: (numbers(kind, n, 3, 5), numbers(kind, n, 3, 5) - 1, 1),
    "attention": lambda kind, n: (*attended(kind, n), *scored(kind, n)),
    "attention_sums": lambda kind, n: (*attended(kind, n)[:2], *scored(kind, n)),
    "attention_query_gradient": lambda kind, n: (*attended(kind, n), *with_rows(kind, n), *scored(kind, n)),
    "attention_key_gradient": lambda kind, n: (*attended(kind, n), *with_rows(kind, n), *scored(kind, n)),
}
"""Arguments of each operator, for an element type and a batch of n."""
FORWARD_ONLY = {
    *(f"max_pool{rank}d" for rank in (1, 2, 3)),
    *(f"{norm}_norm{of_weight}_gradient" for norm in ("layer", "rms", "group") for of_weight in ("", "_weight")),
    *("attention_sums", "attention_query_gradient", "attention_key_gradient"),
}
"""The operators without a backward."""
DIFFERENTIATED_ONCE = {"layer_norm", "rms_norm", "group_norm", "attention"}
"""The operators whose backward has no backward."""
CONSTANT = {"attention": 3}
"""The number of the argument of an operator by which it has no gradient."""


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's check itself
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_operator_passes_torchs_own_check(name: str, layout: str, kind: Any) -> None:
    arguments = ARGUMENTS[name](kind, 0 if layout == "empty" else 2)
    given = [LAYOUTS[layout](a) if isinstance(a, torch.Tensor) else a for a in arguments]
    torch.library.opcheck(getattr(torch.ops.tilewright, name).default, with_gradients(name, given))


@pytest.mark.parametrize("name", [name for name in ARGUMENTS if name not in FORWARD_ONLY])
def test_every_operator_with_a_backward_passes_gradcheck(name: str) -> None:
    operator = getattr(torch.ops.tilewright, name).default
    given = with_gradients(name, ARGUMENTS[name](torch.float64, 1))
    assert torch.autograd.gradcheck(operator, given, fast_mode=True)
    if name not in DIFFERENTIATED_ONCE:
        assert torch.autograd.gradgradcheck(operator, given, fast_mode=True)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sorted(FORWARD_ONLY))
def test_every_other_operator_refuses_a_gradient_in_one_line(name: str, kind: Any) -> None:
    first, *others = ARGUMENTS[name](kind, 2)
    result = getattr(torch.ops.tilewright, name)(first.requires_grad_(), *others)
    result = result[0] if isinstance(result, tuple) else result
    with pytest.raises(MissingBackward, match=rf"^torch\.ops\.tilewright\.{name} has no backward: [^\n]*$"):
        result.sum().backward()


def test_no_operator_is_left_out() -> None:
    """An operator that comes with the package has its row above."""
    own = {name for name in dir(torch.ops.tilewright) if not name.startswith("_") and name != "name"}
    assert set(ARGUMENTS) <= own
    missing = {n for n in own if getattr(torch.ops.tilewright, n).default._schema.name.endswith(f"::{n}")}
    assert {n for n in missing if not n.startswith("of_test_") and "_doc" not in n} == set(ARGUMENTS)


def nothing(name: str, kind: Any) -> tuple[Any, ...]:
    """Arguments of which a sum, or every element but not the batch, is empty."""
    geometry = ([1, 1], [0, 0], [1, 1], 1)
    of_nothing: dict[str, tuple[Any, ...]] = {
        "linear": (numbers(kind, 2, 0), numbers(kind, 7, 0), numbers(kind, 7)),
        "matmul": (numbers(kind, 2, 3, 0), numbers(kind, 2, 0, 4), numbers(kind, 4)),
        "bmm": (numbers(kind, 2, 3, 0), numbers(kind, 2, 0, 4)),
        "conv2d": (numbers(kind, 2, 0, 4, 5), numbers(kind, 6, 0, 3, 3), numbers(kind, 6), *geometry),
        "conv_image_gradient": (numbers(kind, 2, 0, 2, 3), numbers(kind, 0, 4, 3, 3), [4, 5], *geometry),
        "conv_filter_gradient": (numbers(kind, 2, 0, 4, 5), numbers(kind, 2, 6, 2, 3), [3, 3], *geometry),
        "softmax": (numbers(kind, 2, 0, 5), 1),
        "softmax_gradient": (numbers(kind, 2, 0, 5), numbers(kind, 2, 0, 5), 1),
        "layer_norm_weight_gradient": (numbers(kind, 0, 5), numbers(kind, 0, 5), [5], 1e-5),
        "rms_norm_weight_gradient": (numbers(kind, 2, 0), numbers(kind, 2, 0), [0], 1e-5),
        "group_norm_weight_gradient": (numbers(kind, 2, 4, 0), numbers(kind, 2, 4, 0), 2, 1e-5),
        "attention": (
            numbers(kind, 2, 2, 3, 4),
            numbers(kind, 2, 2, 0, 4),
            numbers(kind, 2, 2, 0, 3),
            None,
            True,
            None,
        ),
    }
    return of_nothing[name]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's check itself
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "name",
    [
        *("linear", "matmul", "bmm", "conv2d", "conv_image_gradient", "conv_filter_gradient"),
        *("softmax", "softmax_gradient", "attention"),
        *("layer_norm_weight_gradient", "rms_norm_weight_gradient", "group_norm_weight_gradient"),
    ],
)
def test_operators_of_nothing_pass_torchs_own_check(name: str, kind: Any) -> None:
    given = nothing(name, kind)
    torch.library.opcheck(getattr(torch.ops.tilewright, name).default, with_gradients(name, given))


OF_KERNELS: dict[str, tuple[Callable[[str], Any], Callable[[Any, int], tuple[Any, ...]]]] = {
    "gated": (gated_silu, lambda kind, n: (numbers(kind, n, 5), numbers(kind, n, 5))),
    "sums": (lambda dtype: reduction("sum", dtype=dtype), lambda kind, n: (numbers(kind, n, 5),)),
    "largest": (lambda dtype: reduction("max", dtype=dtype), lambda kind, n: (numbers(kind, n, 5),)),
    "images": (
        lambda dtype: conv((3, 2), dtype, stride=(2, 1)),
        lambda kind, n: (numbers(kind, n, 5, 6, 3), numbers(kind, 4, 3, 2, 3)),
    ),
}
"""Kernels by element type, and the arguments of their operators for an element type and a batch of n."""
DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64"}


def scaled(gradient: Any, *inputs: Any) -> Any:
    """A backward of a right form; torch's check compares its own ways with one another."""
    return tuple(2 * torch.ones_like(x) * gradient.sum() for x in inputs)


@pytest.fixture(scope="module")
def of_kernels() -> dict[tuple[str, Any], Any]:
    return {
        (name, kind): tilewright.torch.operator(make(dtype), f"of_test_{name}_{dtype}", backward=scaled)
        for name, (make, _) in OF_KERNELS.items()
        for kind, dtype in DTYPES.items()
    }


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's check itself
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OF_KERNELS)
def test_operators_of_kernels_pass_torchs_own_check(of_kernels: Any, name: str, layout: str, kind: Any) -> None:
    given = [LAYOUTS[layout](a) for a in OF_KERNELS[name][1](kind, 0 if layout == "empty" else 3)]
    torch.library.opcheck(of_kernels[name, kind].default, tuple(a.requires_grad_() for a in given))
