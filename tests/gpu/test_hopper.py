"""Tile kernels on a Hopper GPU: exactly what the executor gives. Run by `make test-gpu`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.targets.nvidia.driver import device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(isinstance(device(), str), reason=f"no GPU: {device()}"),
]

TILES = [
    (kernels.gemm("nt", "bf16", "bf16"), {"M": 200, "N": 136, "K": 200}),
    (kernels.gemm("nn", "bf16", "f32"), {"M": 300, "N": 264, "K": 136}),
    (kernels.gemm("tt", "bf16", "bf16", bias=True, activation="relu"), {"M": 136, "N": 72, "K": 520}),
    (kernels.gemm("nt", "bf16", "bf16"), {"M": 33, "N": 41, "K": 77}),
    (kernels.gemm("nt", "bf16", "bf16", batched=True), {"B": 3, "M": 72, "N": 64, "K": 64}),
    (kernels.conv((3, 3), "bf16", padding=1), {"N": 2, "H": 9, "W": 7, "C": 64, "F": 72}),
    (kernels.conv((3, 3), "bf16", padding=1, stride=2, bias=True), {"N": 3, "H": 8, "W": 6, "C": 128, "F": 64}),
    (kernels.conv((3, 3), "bf16", padding=1, dilation=2), {"N": 1, "H": 7, "W": 5, "C": 3, "F": 40}),
]


M, N, K, F, SPACE = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.F, tkl.GLOBAL_ADDRESS_SPACE


@tkw.wave()
def layers(
    x: tkl.Memory[M, K, SPACE, tkl.bf16],
    w1: tkl.Memory[F, K, SPACE, tkl.bf16],
    w2: tkl.Memory[N, F, SPACE, tkl.bf16],
    y: tkl.Memory[M, N, SPACE, tkl.bf16],
) -> None:
    hidden = tkw.relu(tkw.mma(tkw.read(x), tkw.read(w1), tkl.Register[M, F, tkl.f32](0.0)))
    total = tkw.mma(tkw.cast(hidden, tkl.bf16), tkw.read(w2), tkl.Register[M, N, tkl.f32](0.0))
    tkw.write(tkw.cast(total, tkl.bf16), y)


@tkw.wave()
def below_the_largest(
    a: tkl.Memory[M, K, SPACE, tkl.bf16], b: tkl.Memory[N, K, SPACE, tkl.bf16], y: tkl.Memory[M, N, SPACE, tkl.f32]
) -> None:
    c = tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0.0))
    tkw.write(c - tkw.max(c, dim=N), y)


APART = [
    (layers, {"M": 700, "N": 520, "K": 264, "F": 1032}),
    (layers, {"M": 333, "N": 301, "K": 131, "F": 515}),  # rows that are no multiple of 16 bytes apart
    (below_the_largest, {"M": 1031, "N": 2056, "K": 136}),
]


@pytest.mark.parametrize(("kernel", "sizes"), APART)
def test_programs_that_are_two_are_exact(kernel: Any, sizes: dict[str, int]) -> None:
    assert tilewright.compile(kernel, target="gpu").of_sizes(sizes).plan.split_after == "mma"
    test_planned_tile_kernels_are_exact(kernel, sizes)


@pytest.mark.parametrize(("kernel", "sizes"), TILES)
def test_planned_tile_kernels_are_exact(kernel: Any, sizes: dict[str, int]) -> None:
    run = tilewright.compile(kernel, target="gpu")
    *inputs, _ = run.of_sizes(sizes).module.host.args
    chance = np.random.default_rng(7)
    arrays = [chance.integers(-3, 4, tuple(map(int, a.type.shape))).astype(a.type.dtype.numpy) for a in inputs]
    wanted = tilewright.compile(kernel, target="executor")(*arrays)
    for _ in range(5):
        np.testing.assert_array_equal(run(*arrays).astype(np.float64), wanted.astype(np.float64))


def test_tensors_of_torch_stay_on_the_device() -> None:
    torch = pytest.importorskip("torch")
    a, b = (torch.randint(-3, 4, (n, 128), device="cuda").to(torch.bfloat16) for n in (200, 136))
    found = tilewright.compile(kernels.gemm("nt", "bf16", "bf16"), target="gpu")(a, b)
    assert found.is_cuda
    assert torch.equal(found, torch.mm(a, b.t()))
