"""Plans whose operations need scratch memory: they are refused where shared memory has no room for it."""

import numpy as np
import pytest
from loop_level import on_the_loop_level

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.lower.gpu.lower import lower_waves, shared_excess_bytes
from tilewright.targets.registry import machine

M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K


@tkw.wave()
def squared_distances(
    x: tkl.Memory[M, K, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
    y: tkl.Memory[N, K, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
    d: tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
):
    a, b = tkw.read(x), tkw.read(y)
    products = tkw.mma(a, b, tkl.Register[M, N, tkl.f32](0))
    norms = tkw.sum(a * a, dim=K) + tkw.sum(b * b, dim=K)
    tkw.write(norms - 2.0 * products, d)


PLAN = """axis M = (M 4096): task 128
axis N = (N 4096): task 32
axis K = (K 128): loop 32
grid M, N
mma by fma.m64n32k4.f32, tile 128x32
producer 1 wave 40 registers, consumer 8 waves 232 registers, stages STAGES, epilogue stages 2
"""


def test_a_plan_without_room_for_scratch_memory_is_refused():
    """Its code was made, and the assembler refused it."""
    sizes = {"M": 4096, "N": 4096, "K": 128}
    with pytest.raises(ArgumentError, match=r"stages 6, .*239616 bytes are needed with scratch memory"):
        kernel_for(squared_distances, sizes, machine=machine("hopper"), plan=PLAN.replace("STAGES", "6")).plan  # noqa: B018
    assert kernel_for(squared_distances, sizes, machine=machine("hopper"), plan=PLAN.replace("STAGES", "5")).plan


def test_lengths_of_rows_are_kernels_before_the_product():
    """They were computed beside it, in so much shared memory that no pipeline had room."""
    kernel = kernel_for(squared_distances, {"M": 4096, "N": 4096, "K": 128}, machine=machine("hopper"))
    assert kernel.text("plan").count("split kernel before mma") == 2
    assert "stages 4" in kernel.text("plan")


def test_squared_distances_are_exact():
    rng = np.random.default_rng(3)
    x, y = (rng.integers(-1, 2, (n, 72)).astype(np.float32) for n in (37, 21))
    kernel = kernel_for(squared_distances, {"M": 37, "N": 21, "K": 72}, machine=machine("hopper"))
    result = np.full((37, 21), np.nan, np.float32)
    on_the_loop_level(kernel).bind([x, y, result])()
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    assert (result == ((wide_x[:, None, :] - wide_y[None, :, :]) ** 2).sum(axis=2)).all()


@tkw.wave()
def nearest(
    x: tkl.Memory[M, K, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
    y: tkl.Memory[N, K, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
    which: tkl.Memory[M, tkl.GLOBAL_ADDRESS_SPACE, tkl.i32],
    least: tkl.Memory[M, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
):
    a, b = tkw.read(x), tkw.read(y)
    distances = tkw.sum(a * a, dim=K) + tkw.sum(b * b, dim=K) - 2.0 * tkw.mma(a, b, tkl.Register[M, N, tkl.f32](0))
    tkw.write(tkw.argmin(distances, dim=N), which)
    tkw.write(tkw.min(distances, dim=N), least)


def test_scratch_memory_of_all_operations_counts():
    """The largest alone was counted: the plan that was chosen needed more than there is, and did not compile."""
    kernel = kernel_for(nearest, {"M": 8192, "N": 256, "K": 64}, machine=machine("hopper"))
    main = kernel.module.programs["nearest"]
    assert shared_excess_bytes(lower_waves(main, machine("hopper")), machine("hopper")) <= 0
