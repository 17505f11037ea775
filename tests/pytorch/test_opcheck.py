"""Every operator passes torch's own check, for tensors that lie in memory in every way, of every type it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch
from tilewright.kernels import gated_silu, reduction

KINDS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def transposed(t: Any) -> Any:
    return t.mT.contiguous().mT if t.dim() > 1 else t


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda t: t.contiguous(),
    "channels_last": lambda t: t.movedim(1, -1).contiguous().movedim(-1, 1) if t.dim() > 1 else t,
    "transposed": transposed,
    "sliced": lambda t: torch.stack([t, t + 1], -1)[..., 0],
    "empty": lambda t: t,
}


def numbers(kind: Any, *shape: int) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-2, 3, shape, generator=generator).to(kind)


def conv(rank: int) -> Callable[[Any, int], tuple[Any, ...]]:
    def made(kind: Any, n: int) -> tuple[Any, ...]:
        image, taps = (6, 5, 4)[:rank], (3, 2, 2)[:rank]
        options = ([2] * rank, [1] * rank, [1] * rank, 2)
        return numbers(kind, n, 4, *image), numbers(kind, 6, 2, *taps), numbers(kind, 6), *options

    return made


ARGUMENTS: dict[str, Callable[[Any, int], tuple[Any, ...]]] = {
    "linear": lambda kind, n: (
        *(numbers(kind, n, 3, 5), numbers(kind, 7, 5), numbers(kind, 7)),
        *("silu", False, numbers(kind, n, 3, 7)),
    ),
    "matmul": lambda kind, n: (numbers(kind, n, 3, 5), numbers(kind, n, 5, 4), numbers(kind, 4)),
    "bmm": lambda kind, n: (numbers(kind, n, 3, 5), numbers(kind, n, 5, 4)),
    "conv1d": conv(1),
    "conv2d": conv(2),
    "conv3d": conv(3),
    "conv_image_gradient": lambda kind, n: (
        *(numbers(kind, n, 6, 3, 3), numbers(kind, 6, 2, 3, 2), [6, 5]),
        *([2, 2], [1, 1], [1, 1], 2),
    ),
    "conv_filter_gradient": lambda kind, n: (
        *(numbers(kind, n, 4, 6, 5), numbers(kind, n, 6, 3, 3), [3, 2]),
        *([2, 2], [1, 1], [1, 1], 2),
    ),
    "layer_norm": lambda kind, n: (numbers(kind, n, 3, 5), [3, 5], numbers(kind, 3, 5), numbers(kind, 3, 5), 1e-5),
    "rms_norm": lambda kind, n: (numbers(kind, n, 3, 5), [5], numbers(kind, 5), 1e-5),
    "group_norm": lambda kind, n: (numbers(kind, n, 4, 3, 5), 2, numbers(kind, 4), numbers(kind, 4), 1e-5),
    "softmax": lambda kind, n: (numbers(kind, n, 3, 5), 1),
    "attention": lambda kind, n: (
        *(numbers(kind, n, 2, 3, 4), numbers(kind, n, 2, 5, 4), numbers(kind, n, 2, 5, 3)),
        *(numbers(torch.float64 if kind is torch.float64 else torch.float32, n, 2, 3, 5), False, None),
    ),
}
"""Arguments of each operator, for an element type and a batch of n."""
FORWARD_ONLY = {"layer_norm", "rms_norm", "group_norm", "softmax", "attention"}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's check itself
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_operator_passes_torchs_own_check(name: str, layout: str, kind: Any) -> None:
    arguments = ARGUMENTS[name](kind, 0 if layout == "empty" else 2)
    given = [LAYOUTS[layout](a) if isinstance(a, torch.Tensor) else a for a in arguments]
    if name not in FORWARD_ONLY:
        given = [a.requires_grad_() if isinstance(a, torch.Tensor) else a for a in given]
    torch.library.opcheck(getattr(torch.ops.tilewright, name).default, tuple(given))


def test_no_operator_is_left_out() -> None:
    """An operator that comes with the package has its row above."""
    own = {name for name in dir(torch.ops.tilewright) if not name.startswith("_") and name != "name"}
    assert set(ARGUMENTS) <= own
    missing = {n for n in own if getattr(torch.ops.tilewright, n).default._schema.name.endswith(f"::{n}")}
    assert {n for n in missing if not n.startswith("of_test_") and "_doc" not in n} == set(ARGUMENTS)


OF_KERNELS = {
    "of_test_gated": (
        lambda: gated_silu("f32"),
        lambda n: (numbers(torch.float32, n, 5), numbers(torch.float32, n, 5)),
    ),
    "of_test_sums": (lambda: reduction("sum", dtype="bf16"), lambda n: (numbers(torch.bfloat16, n, 5),)),
    "of_test_largest": (lambda: reduction("max", dtype="f64"), lambda n: (numbers(torch.float64, n, 5),)),
}


@pytest.fixture(scope="module")
def of_kernels() -> dict[str, Any]:
    return {name: tilewright.torch.operator(make(), name) for name, (make, _) in OF_KERNELS.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OF_KERNELS)
def test_operators_of_kernels_pass_torchs_own_check(of_kernels: dict[str, Any], name: str, layout: str) -> None:
    given = OF_KERNELS[name][1](0 if layout == "empty" else 3)
    torch.library.opcheck(of_kernels[name].default, tuple(LAYOUTS[layout](a) for a in given))
