"""Plans whose operations need scratch memory: they are refused where shared memory has no room for it."""

import numpy as np
import pytest
from loop_level import on_the_loop_level

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
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


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_plan_without_room_for_scratch_memory_is_refused():
    kernel = kernel_for(squared_distances, {"M": 4096, "N": 4096, "K": 128}, target="gpu:hopper")
    assert "bytes are needed with scratch memory" in kernel.explain()
    assert ".entry" in kernel.text("asm")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_squared_distances_are_exact():
    rng = np.random.default_rng(3)
    x, y = (rng.integers(-1, 2, (n, 128)).astype(np.float32) for n in (70, 45))
    kernel = kernel_for(squared_distances, {"M": 70, "N": 45, "K": 128}, machine=machine("hopper"))
    result = np.full((70, 45), np.nan, np.float32)
    on_the_loop_level(kernel).bind([x, y, result])()
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    assert (result == ((wide_x[:, None, :] - wide_y[None, :, :]) ** 2).sum(axis=2)).all()
