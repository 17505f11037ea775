"""Block programs on a Hopper GPU: exactly what the interpreter gives, fifty times over. Run by `make test-gpu`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import compile_text, kernels
from tilewright.targets.nvidia.driver import device

EXAMPLES = Path(__file__).parents[2] / "examples" / "block"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(isinstance(device(), str), reason=f"no GPU: {device()}"),
]

EXACT = [
    ("gemm_hopper", {"M": 256, "N": 256, "K": 256}),
    ("gemm_hopper", {"M": 200, "N": 136, "K": 200}),
    ("gemm_hopper", {"M": 136, "N": 264, "K": 72, "BM": 256, "BN": 64, "STAGES": 2}),
    ("gemm_hopper", {"M": 136, "N": 264, "K": 72, "BN": 256, "STAGES": 3}),
    ("gemm_hopper_pingpong", {"M": 200, "N": 136, "K": 136}),
    ("gemm_hopper_pingpong", {"M": 512, "N": 512, "K": 64}),
    ("gemm_hopper_pingpong", {"M": 520, "N": 264, "K": 200, "BM": 128}),
    ("gemm_hopper", {"M": 520, "N": 264, "K": 200, "CLUSTER": 2}),
    ("gemm_hopper", {"M": 300, "N": 136, "K": 136, "CLUSTER": 4, "BN": 64, "STAGES": 3}),
    ("conv_hopper", {"N": 3, "H": 9, "W": 7, "F": 136, "CLUSTER": 2}),
    ("conv_hopper", {"N": 2, "H": 9, "W": 7, "STRIDE": 2}),
    ("conv_hopper", {"N": 3, "H": 7, "W": 5, "R": 3, "S": 2, "F": 72, "C": 128}),
    ("conv_hopper", {"N": 2, "H": 8, "W": 8, "R": 1, "S": 1, "PAD": 0}),
    ("conv_hopper_halo", {"N": 3, "H": 5, "W": 4, "C": 128, "F": 128}),
    ("conv_hopper_halo", {"N": 4}),
    ("conv_hopper_patches", {}),
    ("conv_hopper_patches", {"N": 3, "H": 21, "W": 40, "STAGES": 1}),
]


def arguments(executable: Any) -> list[Any]:
    chance, found = np.random.default_rng(5), []
    for arg in executable.main.args:
        shape = tuple(int(e) for e in arg.type.shape)
        values = chance.integers(-3, 4, shape) if arg.type.role == "in" else np.full(shape, -77)
        found.append(values.astype(arg.type.dtype.numpy))
    return found


def test_tasks_of_a_table_are_done_once_and_a_launch_that_begins_early_waits() -> None:
    text = (EXAMPLES / "gemm_hopper_pingpong.block").read_text()
    text = text.replace("machine hopper", "machine hopper\n  launch programmatic")
    text = text.replace("%a: in", "%deal: in global i32 (7, 5), %a: in")
    text = text.replace("0..TM*TN", "0..TM*TN schedule table of %deal")
    run = compile_text(text, "gpu", {"M": 512, "N": 384, "K": 136})
    deal, a, b, d = arguments(run)
    deal[...] = -1
    deal.reshape(-1)[np.random.default_rng(2).permutation(deal.size)[:24]] = np.arange(24)
    launch = run.bind(deal, a, b, d)
    for _ in range(20):
        d[...] = -77
        launch()
        wanted = (a.astype(np.float64) @ b.astype(np.float64).T).astype(d.dtype)
        np.testing.assert_array_equal(d.astype(np.float64), wanted.astype(np.float64))


def both(name: str, params: dict[str, int]) -> tuple[Any, list[Any], list[Any]]:
    text = (EXAMPLES / f"{name}.block").read_text()
    device_run, wanted = compile_text(text, "gpu", params), compile_text(text, "interpreter", params)
    mine, theirs = arguments(device_run), arguments(wanted)
    wanted(*theirs)
    return device_run, mine, theirs


@pytest.mark.parametrize(("name", "params"), EXACT)
def test_exact_on_small_integers(name: str, params: dict[str, int]) -> None:
    run, mine, wanted = both(name, params)
    launch = run.bind(*mine)
    for _ in range(50):
        for array, arg in zip(mine, run.main.args, strict=True):
            if arg.type.role == "out":
                array[...] = -77
        launch()
        for got, want in zip(mine, wanted, strict=True):
            np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("attention_hopper", {}),
        ("attention_hopper", {"B": 3, "T": 192, "U": 64}),
        ("attention_hopper", {"T": 64, "U": 256, "BK": 128}),
        ("flash_hopper", {}),
        ("flash_hopper", {"BK": 128, "U": 384}),
        ("flash_hopper", {"CAUSAL": 1, "BK": 128}),
        ("flash_hopper", {"D": 64, "CAUSAL": 1}),
        ("flash_hopper", {"B": 1, "T": 200, "U": 192}),
        ("flash_hopper", {"T": 192, "U": 192, "CAUSAL": 1, "GROUP": 2}),
        ("flash_hopper", {"D": 64, "WG": 3, "BK": 128, "T": 200}),
        ("flash_hopper", {"D": 64, "WG": 3, "BK": 128, "CAUSAL": 1, "GROUP": 2}),
    ],
)
def test_attention_is_close(name: str, params: dict[str, int]) -> None:
    run, mine, wanted = both(name, params)
    run.bind(*mine)()
    for got, want in zip(mine, wanted, strict=True):
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=2e-2, atol=1e-2)


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
