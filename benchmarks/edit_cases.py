"""The cases whose plans `edited_plans.py` edits: kernels of every kind, their sizes, and the machine's row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import corpus_kernels as own
import corpus_rows as rows
from plan_shapes import Shapes, shapes_of

from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.machine import Machine
from tilewright.targets.registry import machine


@dataclass(frozen=True)
class Case:
    """A kernel, its sizes, and the machine it is planned for."""

    name: str
    make: Callable[[], Any]
    sizes: dict[str, int]
    row: str
    exact: bool = True
    """Whether data of small integers give the same in any order of sums."""

    @property
    def machine(self) -> Machine:
        """The machine's row."""
        return machine(self.row)

    def kernel(self, plan: str | None = None) -> Any:
        """The kernel as planned, or by a plan."""
        return kernel_for(self.make(), self.sizes, machine=self.machine, plan=plan)


def _gemm(layout: str, dtype: str, result: str | None = None, **more: Any) -> Callable[[], Any]:
    return partial(kernels.gemm, layout, dtype, result, **more)


def _conv(taps: tuple[int, ...], dtype: str, **more: Any) -> Callable[[], Any]:
    return partial(kernels.conv, taps, dtype, **more)


_IMAGE = {"N": 2, "H": 9, "W": 14, "C": 64, "F": 64}
_HEADS = {"B": 1, "H": 2, "M": 96, "N": 128, "D": 64, "E": 64}
_SAME = {"padding": 1}
_ATTENTION = partial(partial, kernels.attention)

CASES = (
    # products on Hopper
    Case("gemm nt", _gemm("nt", "bf16", "bf16"), {"M": 200, "N": 136, "K": 192}, "hopper"),
    Case("gemm nt, large", _gemm("nt", "bf16", "bf16"), {"M": 4096, "N": 4096, "K": 4096}, "hopper", exact=False),
    Case("gemm nn, bias", _gemm("nn", "f16", "f32", bias=True), {"M": 320, "N": 264, "K": 128}, "hopper"),
    Case("gemm tn", _gemm("tn", "bf16", "bf16"), {"M": 512, "N": 384, "K": 256}, "hopper", exact=False),
    Case("gemm f8", _gemm("nt", "f8e4m3fn", "bf16"), {"M": 256, "N": 512, "K": 512}, "hopper", exact=False),
    Case("gemm padded", _gemm("nt", "bf16", "bf16"), {"M": 1000, "N": 1000, "K": 1000}, "hopper", exact=False),
    Case("gemm in rows", _gemm("nn", "f16", "f16"), {"M": 127, "N": 129, "K": 131}, "hopper"),
    Case("gemm skinny", _gemm("nt", "bf16", "bf16"), {"M": 16, "N": 2048, "K": 1024}, "hopper", exact=False),
    Case("gemm batched", _gemm("nt", "bf16", "bf16", batched=True), {"B": 6, "M": 200, "N": 264, "K": 128}, "hopper"),
    Case("gemm split K", _gemm("nt", "bf16", "bf16"), {"M": 64, "N": 64, "K": 8192}, "hopper", exact=False),
    Case("gemm f32", _gemm("nt", "f32", "f32"), {"M": 200, "N": 136, "K": 192}, "hopper"),
    Case("byte weights", own.byte_weights, {"M": 256, "N": 256, "K": 256}, "hopper", exact=False),
    # convolutions on Hopper
    Case("conv halo", _conv((3, 3), "bf16", **_SAME), _IMAGE, "hopper"),
    Case(
        "conv halo, large", _conv((3, 3), "bf16", **_SAME), _IMAGE | {"N": 8, "H": 32, "W": 32}, "hopper", exact=False
    ),
    Case("conv 1x1", _conv((1, 1), "bf16"), {"N": 4, "H": 14, "W": 14, "C": 128, "F": 256}, "hopper", exact=False),
    Case("conv stride 2", _conv((3, 3), "bf16", stride=2, **_SAME), _IMAGE | {"H": 28, "W": 28, "F": 128}, "hopper"),
    Case(
        "conv stem",
        _conv((7, 7), "bf16", stride=2, padding=3),
        _IMAGE | {"H": 56, "W": 56, "C": 3},
        "hopper",
        exact=False,
    ),
    Case(
        "conv grouped",
        _conv((3, 3), "bf16", groups=4, **_SAME),
        {"N": 2, "H": 14, "W": 14, "CG": 64, "F": 256},
        "hopper",
        exact=False,
    ),
    Case(
        "conv diagonal",
        _conv((3, 3), "bf16", groups=32, **_SAME),
        {"N": 32, "H": 14, "W": 14, "CG": 16, "F": 512},
        "hopper",
        exact=False,
    ),
    Case(
        "conv depthwise",
        _conv((3, 3), "bf16", groups=128, **_SAME),
        {"N": 8, "H": 28, "W": 28, "CG": 1, "F": 128},
        "hopper",
        exact=False,
    ),
    Case(
        "conv 3-D",
        _conv((3, 3, 3), "bf16", **_SAME),
        {"N": 2, "D": 6, "H": 9, "W": 10, "C": 64, "F": 64},
        "hopper",
        exact=False,
    ),
    # several products on Hopper
    Case("attention", _ATTENTION(64, "bf16"), _HEADS, "hopper", exact=False),
    Case(
        "attention causal",
        _ATTENTION(128, "bf16", causal=True),
        {"B": 2, "H": 4, "M": 512, "N": 512, "D": 128, "E": 128},
        "hopper",
        exact=False,
    ),
    Case("gated unit", partial(own.gated_unit, "bf16"), {"M": 512, "K": 256, "N": 384}, "hopper", exact=False),
    Case("low rank", partial(own.low_rank, "bf16"), {"M": 512, "K": 256, "N": 256, "L": 64}, "hopper", exact=False),
    Case("row energy", partial(own.row_energy, "bf16"), {"M": 1024, "N": 256, "K": 256}, "hopper", exact=False),
    Case(
        "two kernels",
        partial(own.scores_only, "bf16"),
        {"B": 1, "H": 2, "M": 1024, "N": 1024, "D": 64},
        "hopper",
        exact=False,
    ),
    # without products on Hopper
    Case("softmax", partial(kernels.softmax, "bf16"), {"M": 1000, "N": 777}, "hopper", exact=False),
    Case("layer norm", partial(kernels.layer_norm, "f32"), {"M": 500, "N": 512}, "hopper", exact=False),
    Case("transpose", partial(kernels.transpose, (1, 0), "bf16"), {"D0": 500, "D1": 300}, "hopper"),
    Case(
        "sum in parts", partial(kernels.reduction, "sum", "rows", "f32"), {"M": 65536, "N": 256}, "hopper", exact=False
    ),
    Case("gelu", partial(kernels.activation, "gelu", "f32"), {"M": 333, "N": 555}, "hopper", exact=False),
    Case("grid product", partial(rows.grid_product, 64, 64, 32, "bf16"), {"M": 256, "N": 192, "K": 128}, "hopper"),
    Case("grid softmax", partial(rows.grid_softmax, 4, "f32"), {"M": 100, "N": 200}, "hopper", exact=False),
    # other GPUs
    Case("gemm nt", _gemm("nt", "bf16"), {"M": 130, "N": 136, "K": 96}, "ampere"),
    Case("gemm nn", _gemm("nn", "f16"), {"M": 256, "N": 256, "K": 128}, "ampere"),
    Case("attention", _ATTENTION(64, "bf16"), _HEADS, "ampere", exact=False),
    Case("softmax", partial(kernels.softmax, "f32"), {"M": 1000, "N": 777}, "ampere", exact=False),
    Case("gemm nt", _gemm("nt", "bf16"), {"M": 130, "N": 136, "K": 96}, "cdna3"),
    Case("attention", _ATTENTION(32, "bf16"), _HEADS, "cdna3", exact=False),
    Case("conv 3x3", _conv((3, 3), "bf16", **_SAME), _IMAGE, "cdna3"),
    Case("gemm nt", _gemm("nt", "bf16"), {"M": 130, "N": 136, "K": 96}, "xe"),
    Case("conv 3x3", _conv((3, 3), "bf16", **_SAME), _IMAGE, "xe"),
    # CPUs
    Case("gemm nt", _gemm("nt", "bf16"), {"M": 300, "N": 136, "K": 192}, "x86.amx"),
    Case("conv 3x3", _conv((3, 3), "bf16", **_SAME), _IMAGE, "x86.amx"),
    Case("conv i8", _conv((3, 3), "i8", **_SAME), _IMAGE, "x86.amx"),
    Case("conv 1x1, stride 2", _conv((1, 1), "bf16", stride=2), _IMAGE | {"H": 14}, "x86.amx"),
    Case("attention", _ATTENTION(64, "bf16"), _HEADS, "x86.amx", exact=False),
    Case("gemm nt", _gemm("nt", "f32"), {"M": 300, "N": 136, "K": 100}, "x86.avx512"),
    Case("gemm batched", _gemm("nt", "f32", batched=True), {"B": 3, "M": 100, "N": 136, "K": 100}, "x86.avx512"),
    Case("conv 3x3", _conv((3, 3), "f32", **_SAME), _IMAGE, "x86.avx512"),
    Case(
        "conv depthwise",
        _conv((3, 3), "f32", groups=64, **_SAME),
        {"N": 2, "H": 9, "W": 14, "CG": 1, "F": 64},
        "x86.avx512",
    ),
    Case("grid product", partial(rows.grid_product, 64, 64, 32, "f32"), {"M": 256, "N": 192, "K": 128}, "x86.avx512"),
    Case("gated unit", partial(own.gated_unit, "f32"), {"M": 128, "K": 96, "N": 64}, "x86.avx512", exact=False),
    Case("attention", _ATTENTION(32, "f32"), _HEADS, "x86.avx512", exact=False),
    Case("softmax", partial(kernels.softmax, "f32"), {"M": 64, "N": 200}, "x86.avx512", exact=False),
    Case("conv 3x3", _conv((3, 3), "f32", **_SAME), _IMAGE, "aarch64.neon"),
    Case("gemm nn", _gemm("nn", "f32"), {"M": 100, "N": 136, "K": 100}, "aarch64.neon"),
    Case("gemm i8", _gemm("nt", "i8", "i32"), {"M": 100, "N": 136, "K": 96}, "aarch64.neon.dotprod"),
    Case("transpose", partial(kernels.transpose, (1, 0), "f32"), {"D0": 100, "D1": 60}, "aarch64.neon"),
    Case("sum of rows", partial(kernels.reduction, "sum", "columns", "f32"), {"M": 100, "N": 256}, "aarch64.neon"),
)


@cache
def _texts(number: int) -> tuple[str, str]:
    """The plan that is chosen for a case, and its block program."""
    kernel = CASES[number].kernel()
    return kernel.text("plan").strip(), kernel.text("block")


def chosen(number: int) -> str:
    """The plan that is chosen for a case."""
    plan, _ = _texts(number)
    return plan


def chosen_block(number: int) -> str:
    """The block program of the plan that is chosen for a case."""
    _, block = _texts(number)
    return block


@cache
def shapes(number: int) -> Shapes:
    """The checker's view of a case's program."""
    case = CASES[number]
    return shapes_of(case.make().trace(), case.sizes, chosen(number))
