"""Windows that are reduced on CPUs: taps come first in a tile, so that vectors go along what results keep together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.ir.core import Program
from tilewright.rewrite.dim_order import in_dim_order
from tilewright.targets.registry import machine

B, C, H, W, R, S = (getattr(tkl.sym, name) for name in "BCHWRS")
GLOBAL, f32 = tkl.GLOBAL_ADDRESS_SPACE, tkl.f32


def windows(order: str, combine: str = "sum") -> tkw.Kernel:
    """Depthwise windows of 3 x 3 over images in an order of dimensions, summed with weights, or the largest of them."""
    b, c, p, q, r, s = (tkw.IndexMapping.iterator(i) for i in range(6))
    window = tkw.IndexMapping(
        6, inputs={B: b, C: c, H: p + r - 1, W: q + s - 1}, outputs={B: b, C: c, H: p, W: q, R: r, S: s}
    )
    image: Any = tkl.Memory[(*(getattr(tkl.sym, letter) for letter in order), GLOBAL, f32)]
    weights: Any = tkl.Memory[C, R, S, GLOBAL, f32]

    @tkw.wave()
    def depthwise(x: image, w: weights, y: image) -> None:
        value = tkw.read(x, mapping=window, otherwise=0) * tkw.read(w)
        tkw.write(getattr(tkw, combine)(value, dim=[R, S]), y)

    return depthwise.bound({R: 3, S: 3})


def expected(x: Any, w: Any, combine: str) -> Any:
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    rows, columns = x.shape[2:]
    every = [wide[:, :, r : r + rows, s : s + columns] * w[:, r, s, None, None] for r in range(3) for s in range(3)]
    return sum(every) if combine == "sum" else np.maximum.reduce(every)


@pytest.mark.parametrize("order", ["BCHW", "BHWC"])
@pytest.mark.parametrize("combine", ["sum", "max"])
@pytest.mark.parametrize("shape", [(2, 5, 4, 7), (1, 19, 3, 33)])
def test_windows_are_exact_in_both_layouts(order: str, combine: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, size).astype(np.float32) for size in (shape, (shape[1], 3, 3)))
    axes = ["BCHW".index(letter) for letter in order]
    given, result = np.ascontiguousarray(x.transpose(axes)), np.full([shape[i] for i in axes], np.nan, np.float32)
    tilewright.compile(windows(order, combine))(given, w, result)
    assert np.array_equal(result, expected(x, w, combine).transpose(axes))


@pytest.mark.parametrize(("order", "last"), [("BCHW", "W"), ("BHWC", "C")])
def test_a_tap_was_the_last_dimension_so_that_3_of_16_lanes_worked(order: str, last: str) -> None:
    program = windows(order).trace()
    kept, _ = in_dim_order(program, ())
    assert kept is program
    ordered, _ = in_dim_order(program, (), taps_first=True)
    assert [str(d) for d in largest_tile(ordered)] == ["R", "S", *order]
    x86 = machine("x86.avx512")
    row = replace(x86, limits=replace(x86.limits, cores=16))
    sizes = {"B": 4, "C": 64, "H": 28, "W": 28}
    kernel = kernel_for(windows(order), sizes, target="interpreter", machine=row)
    assert kernel.choice.cycles < 8 * kernel.choice.bound
    assert str(last) == str(largest_tile(ordered)[-1])


def largest_tile(program: Program) -> tuple[Any, ...]:
    """The dimensions of the tile that has most of them."""
    return max((op.result.type.dims for op in program.walk() if len(op.results) == 1), key=len)


def test_programs_without_windows_keep_their_order() -> None:
    @tkw.wave()
    def total(x: tkl.Memory[B, C, W, GLOBAL, f32], y: tkl.Memory[C, GLOBAL, f32]) -> None:
        tkw.write(tkw.sum(tkw.read(x), dim=[B, W]), y)

    program = total.trace()
    assert in_dim_order(program, (), taps_first=True)[0] is program
