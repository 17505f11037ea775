"""torch's own samples of its functions, forward: results within bounds of float64, or a refusal of a kind listed here.

torch's list of samples needs the package expecttest, which torch does not bring.
"""

from __future__ import annotations

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
SAMPLES = {op.name: op for op in op_db if op.name in NAMES and not op.variant_test_name}
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01, torch.float64: 1e-9}


def wide(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's reference
@pytest.mark.parametrize("kind", BOUNDS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_samples_of_torch_are_computed_or_refused_by_name(name: str, kind: Any) -> None:
    call, count = getattr(functional, NAMES[name]), 0
    for sample in SAMPLES[name].sample_inputs("cpu", kind):
        options = dict(sample.kwargs)
        if name.endswith("rms_norm"):  # its default is the type's own
            options["eps"] = options.get("eps") or torch.finfo(kind).eps
        if options.get("dropout_p"):
            with pytest.raises(ArgumentError, match=r"dropout_p=0\.5: there is no kernel with dropout"):
                call(sample.input, *sample.args, **options)
            continue
        made = call(sample.input, *sample.args, **options)
        expected = SAMPLES[name].op(
            wide(sample.input), *map(wide, sample.args), **{k: wide(v) for k, v in options.items()}
        )
        assert made.dtype is kind
        torch.testing.assert_close(made, expected.to(kind), rtol=BOUNDS[kind], atol=BOUNDS[kind], equal_nan=True)
        count += 1
    assert count
