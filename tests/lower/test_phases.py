"""Products whose operand is zero by a congruence, in phases: exactly, without divisions, with bulk copies on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.algebra.expr import Symbol
from tilewright.compiler.native import kernel_for
from tilewright.ir.core import Program
from tilewright.ir.printer import program_symbols
from tilewright.rewrite.phases import in_phases
from tilewright.targets.registry import machine

GLOBAL, f32, i32 = tkl.GLOBAL_ADDRESS_SPACE, tkl.f32, tkl.i32
N, H, W, P, Q, R, S, C, F = (getattr(tkl.sym, s) for s in "NHWPQRSCF")
HOPPER = machine("hopper")


@dataclass(frozen=True)
class Case:
    """A gradient of images: a number for each of its axes."""

    taps: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    extents: tuple[int, ...]

    def kernel(self, dtype: str = "f32") -> Any:
        """The gradient as the gallery writes it: one gather that is masked by coordinates below 0."""
        options = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return kernels.conv_image_gradient(self.taps, dtype, **options)

    def sizes(self, channels: int = 5, filters: int = 3) -> dict[str, int]:
        """The sizes of its tensors."""
        rank = len(self.taps)
        axes = zip(self.extents, self.padding, self.dilation, self.taps, self.stride, strict=True)
        outputs = [(n + 2 * b - d * (t - 1) - 1) // s + 1 for n, b, d, t, s in axes]
        images = dict(zip("DHW"[3 - rank :], self.extents, strict=True))
        return {**images, **dict(zip("ZPQ"[3 - rank :], outputs, strict=True)), "N": 2, "C": channels, "F": filters}

    def wanted(self, dy: Any, w: Any) -> Any:
        """The gradient, place by place and tap by tap."""
        dx = np.zeros((dy.shape[0], *self.extents, w.shape[-1]))
        for place in np.ndindex(*dy.shape[1:-1]):
            for tap in np.ndindex(*w.shape[1:-1]):
                axes = zip(place, self.stride, tap, self.dilation, self.padding, strict=True)
                at = [p * s + r * d - b for p, s, r, d, b in axes]
                if all(0 <= i < n for i, n in zip(at, self.extents, strict=True)):
                    dx[(slice(None), *at)] += dy[(slice(None), *place)] @ w[(slice(None), *tap)]
        return dx


CASES = {
    "two phases": Case((3,), (2,), (1,), (1,), (9,)),
    "even phases": Case((4,), (2,), (1,), (1,), (10,)),
    "three phases, padded": Case((5,), (3,), (1,), (1,), (16,)),
    "stride as long as the filter": Case((3,), (3,), (0,), (1,), (11,)),
    "stride longer than the filter": Case((2,), (4,), (0,), (1,), (15,)),
    "phases in another order": Case((4,), (3,), (2,), (2,), (14,)),
    "dilation that divides the stride": Case((3,), (4,), (1,), (2,), (13,)),
    "two axes": Case((3, 4), (2, 3), (1, 0), (1, 1), (7, 10)),
    "three axes": Case((3, 2, 3), (2, 1, 2), (1, 0, 2), (1, 1, 1), (5, 3, 6)),
}


def selected() -> Any:
    """A transposed convolution with 3x3 taps, stride 2, padding 1, as a selection of places that meet an output."""
    n, h, w, r, s, f = (tkw.IndexMapping.iterator(i) for i in range(6))
    at = {N: n, P: (h + 1 - r) // 2, Q: (w + 1 - s) // 2, F: f}
    window = tkw.IndexMapping(6, inputs=at, outputs={N: n, H: h, W: w, R: r, S: s, F: f})

    @tkw.wave()
    def selected(
        dy: tkl.Memory[N, P, Q, F, GLOBAL, f32],
        w: tkl.Memory[F, R, S, C, GLOBAL, f32],
        dx: tkl.Memory[N, H, W, C, GLOBAL, f32],
    ) -> None:
        down = tkw.self_index(H, i32) + 1 - tkw.self_index(R, i32)
        across = tkw.self_index(W, i32) + 1 - tkw.self_index(S, i32)
        meets = (down % 2 == 0) & (across % 2 == 0)
        image = tkw.select(meets, tkw.read(dy, mapping=window, otherwise=0), 0.0)
        tkw.write(tkw.mma(image, tkw.read(w), tkl.Register[N, H, W, C, f32](0)), dx)

    return selected.bound({R: 3, S: 3})


def flipped() -> Any:
    """y[h] = the sum over r of x[(r - h + 6) / 3] w[r], where that is whole: the kept index falls."""
    h, r, f = (tkw.IndexMapping.iterator(i) for i in range(3))
    reached = r - h + 6
    window = tkw.IndexMapping(3, inputs={P: reached // 3 + reached % 3 * 99, F: f}, outputs={H: h, R: r, F: f})

    @tkw.wave()
    def flipped(
        x: tkl.Memory[P, F, GLOBAL, f32], w: tkl.Memory[R, F, C, GLOBAL, f32], y: tkl.Memory[H, C, GLOBAL, f32]
    ) -> None:
        tkw.write(tkw.mma(tkw.read(x, mapping=window, otherwise=0), tkw.read(w), tkl.Register[H, C, f32](0)), y)

    return flipped


def in_numbers(kernel: Any, sizes: dict[str, int]) -> tuple[Program, dict[Symbol, int]]:
    """A kernel's program, and the sizes of its dimensions."""
    program = kernel.trace()
    bound = {s: int(n) for s, n in kernel.symbols.items()}
    return program, {s: sizes[s.name] for s in program_symbols(program) if s.name in sizes} | bound


def divisions(program: Program) -> list[Any]:
    """The divisions in the accesses of a program."""
    return [n for op in program.walk() for e in op.attrs.get("at", ()) for n in e.divisions(set())]


def results(kernel: Any, sizes: dict[str, int], **options: Any) -> tuple[Any, Sequence[Any]]:
    """What a compiled kernel writes over ones that are not numbers, and the small integers that it is given."""
    made = kernel_for(kernel, sizes, **options)
    *given, result = made.module.host.args
    rng = np.random.default_rng(sum(sizes.values()))
    arrays = [rng.integers(-3, 4, [int(n) for n in a.type.shape]).astype(a.type.dtype.numpy) for a in given]
    y = np.full([int(n) for n in result.type.shape], np.nan, np.float32).astype(result.type.dtype.numpy)
    made.bind({a.name: array for a, array in zip(made.module.host.args, [*arrays, y], strict=True)})()
    return y, arrays


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_strided_gradient_divided_its_places(case: Case):
    program, numbers = in_numbers(case.kernel(), case.sizes())
    assert divisions(program)
    dense, sizes, _ = in_phases(program, numbers, ())
    assert not divisions(dense)
    (product,) = (op for op in dense.walk() if op.name == "mma")
    (before,) = (op for op in program.walk() if op.name == "mma")
    dims, old = ({*op.operands[0].type.dims, *op.operands[1].type.dims} for op in (product, before))
    assert np.prod([sizes[d] for d in dims]) < np.prod([numbers[d] for d in old])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("options", [{}, {"machine": HOPPER}], ids=["cpu", "hopper"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_phases_are_exact(case: Case, options: dict[str, Any]):
    y, (dy, w) = results(case.kernel(), case.sizes(), **options)
    assert np.array_equal(y, case.wanted(dy, w))


def test_a_selection_of_places_is_a_congruence():
    case = Case((3, 3), (2, 2), (1, 1), (1, 1), (7, 10))
    program, numbers = in_numbers(selected(), case.sizes())
    dense, _, _ = in_phases(program, numbers, ())
    assert not divisions(dense)
    assert not [op for op in dense.walk() if op.name in ("select", "self_index")]
    y, (dy, w) = results(selected(), case.sizes(), machine=HOPPER)
    assert np.array_equal(y, case.wanted(dy, w))


def test_an_index_that_falls_is_taken_apart():
    sizes = {"H": 11, "P": 4, "R": 7, "F": 3, "C": 5}
    assert not divisions(in_phases(*in_numbers(flipped(), sizes), ())[0])
    y, (x, w) = results(flipped(), sizes, machine=HOPPER)
    wanted = np.zeros((11, 5))
    for h, r in np.ndindex(11, 7):
        if (r - h + 6) % 3 == 0 and 0 <= (r - h + 6) // 3 < 4:
            wanted[h] += x[(r - h + 6) // 3] @ w[r]
    assert np.array_equal(y, wanted)


@pytest.mark.parametrize(
    ("case", "channels"),
    [
        (Case((3, 3), (2, 2), (1, 1), (1, 1), (9, 12)), 64),
        (Case((5,), (3,), (1,), (1,), (50,)), 64),
        (Case((3, 3, 3), (3, 3, 3), (0, 0, 0), (1, 1, 1), (6, 5, 7)), 64),
    ],
    ids=["two axes", "uneven phases", "three axes"],
)
def test_lanes_gathered_what_bulk_copies_read_in_phases(case: Case, channels: int):
    kernel, sizes = case.kernel("bf16"), case.sizes(channels, 64)
    made = kernel_for(kernel, sizes, machine=HOPPER)
    assert made.plan is not None
    assert made.plan.pipeline is not None
    assert made.plan.pipeline.producer[0] == 1
    y, (dy, w) = results(kernel, sizes, machine=HOPPER)
    wanted = case.wanted(dy.astype(np.float64), w.astype(np.float64)).astype(y.dtype)
    assert np.array_equal(y.astype(np.float32), wanted.astype(np.float32))


def test_a_plan_over_the_taps_is_still_read():
    case = Case((3,), (2,), (1,), (1,), (64,))
    axes = "axis N_W = (N_W 128): task 64; axis C = (C 64): task 64; axis S = (S 3): loop 1; axis F = (F 64): loop 64"
    lines = "grid N_W, C; mma by wgmma.m64n64k16.bf16.tb, tile 64x64"
    waves = "producer 4 waves 96 registers, consumer 4 waves 240 registers, stages 4, epilogue stages 2"
    made = kernel_for(case.kernel("bf16"), case.sizes(64, 64), machine=HOPPER, plan=f"{axes}; {lines}; {waves}")
    assert made.plan is not None
    assert "S" in {axis.name for axis in made.plan.axes}


def test_taps_outside_the_filter_were_multiplied():
    case = Case((3, 3), (2, 2), (1, 1), (1, 1), (9, 12))
    made = kernel_for(case.kernel("bf16"), case.sizes(64, 64), machine=HOPPER)
    assert made.plan is not None
    assert made.plan.pipeline is not None
    assert not made.plan.pipeline.pingpong
    (program,) = made.module.programs.values()
    loops = [r for op in program.walk() if op.name == "for" for r in op.attrs["ranges"]]
    counts = {str(r.hi - r.lo) for r in loops if r.symbol.name in ("k_R_1", "k_S_1")}
    assert counts
    assert not counts & {"2"}  # a phase has two taps or one
