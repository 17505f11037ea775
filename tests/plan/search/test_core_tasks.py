"""Task widths and K tiles of CPU programs: those that the cost of caches ranks first, and what they compute."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.kernels.gemm import gemm
from tilewright.plan.search.core_reads import missing_share
from tilewright.targets.registry import machine

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
from corpus_kernels import gated_unit

M, N, K = (getattr(tkl.sym, name) for name in "MNK")


def gated_without_a_loop(dtype):
    """y = relu(x w) * (x u), each summed over all of K at once."""
    data = getattr(tkl, dtype)
    memory = tkl.GLOBAL_ADDRESS_SPACE

    @tkw.wave()
    def gated(
        x: tkl.Memory[M, K, memory, data],
        w: tkl.Memory[N, K, memory, data],
        u: tkl.Memory[N, K, memory, data],
        y: tkl.Memory[M, N, memory, data],
    ):
        gate = tkw.mma(tkw.read(x), tkw.read(w), tkl.Register[M, N, tkl.f32](0))
        up = tkw.mma(tkw.read(x), tkw.read(u), tkl.Register[M, N, tkl.f32](0))
        tkw.write(tkw.cast(tkw.relu(gate) * up, data), y)

    return gated


def amx_of_16_cores():
    row = machine("x86.amx")
    return replace(row, limits=replace(row.limits, cores=16))


def test_a_long_sum_is_split_for_caches():
    """Both operands came from memory again for every accumulator tile: 128x128x65536 took six times as long."""
    plan = kernel_for(gemm("nt", "bf16", "bf16"), {"M": 128, "N": 128, "K": 65536}, machine=amx_of_16_cores()).plan
    depth = next(axis for axis in plan.axes if axis.name in ("K", "depth"))
    assert depth.split("loop").size <= 2048


@pytest.mark.parametrize(("m", "n", "k"), [(40, 48, 1030), (33, 65, 2049)])
def test_accumulators_between_k_tiles_are_exact(m, n, k):
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (n, k)))
    plan = f"axis M = (M {m}): task 20\naxis N = (N {n}): task 16\naxis K = (K {k}): loop 256\ngrid M, N"
    kernel = kernel_for(gemm("nt", "f32"), {"M": m, "N": n, "K": k}, target="cpu", plan=plan)
    c = np.full((m, n), np.nan, np.float32)
    kernel.bind({"a": a, "b": b, "c": c})()
    np.testing.assert_array_equal(c, a @ b.T)


def test_products_of_all_of_k_at_once_had_no_k_tiles():
    """Only a loop of the program had tiles for caches: the same products without one took longer."""
    sizes = {"M": 4096, "N": 1024, "K": 8192}
    kernel = kernel_for(gated_without_a_loop("bf16"), sizes, machine=amx_of_16_cores())
    assert kernel.plan.axis("K").split("loop").size == 256
    again = kernel_for(gated_without_a_loop("bf16"), sizes, machine=amx_of_16_cores(), plan=kernel.text("plan"))
    assert again.choice.cycles == kernel.choice.cycles
    assert again.text("block") == kernel.text("block")


@pytest.mark.parametrize(("m", "n", "k"), [(40, 48, 300), (33, 65, 257)])
def test_accumulators_between_k_tiles_that_the_program_lacks_are_exact(m, n, k):
    rng = np.random.default_rng(2)
    x, w, u = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((m, k), (n, k), (n, k)))
    plan = f"axis M = (M {m}): task 20\naxis N = (N {n}): task 16\naxis K = (K {k}): loop 128\ngrid M, N"
    kernel = kernel_for(gated_without_a_loop("f32"), {"M": m, "N": n, "K": k}, target="cpu", plan=plan)
    y = np.full((m, n), np.nan, np.float32)
    kernel.bind({"x": x, "w": w, "u": u, "y": y})()
    np.testing.assert_array_equal(y, np.maximum(x @ w.T, 0) * (x @ u.T))


def test_tasks_end_with_accumulator_tiles_so_that_b_is_packed_once():
    """Tasks of 128 columns in tiles of 48 packed B again in each: two products of one operand took four times."""
    kernel = kernel_for(gated_unit("bf16"), {"M": 256, "N": 256, "K": 2048}, machine=amx_of_16_cores())
    assert not re.search(r"%packed\w* = alloc shared", kernel.text("host"))


def test_a_cache_misses_more_the_more_uses_it():
    shares = [missing_share(needed, 100.0) for needed in (0, 50, 80, 100, 150, 1000)]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)


def test_k_tiles_fill_l2_where_l1_holds_few_steps():
    """Tiles for L1 alone made accumulators go through memory 64 times: 70 instead of 53 ms on one AVX-512 core."""
    row = machine("x86.avx512f")
    row = replace(row, limits=replace(row.limits, cores=1))
    plan = kernel_for(gemm("nt", "f32"), {"M": 128, "N": 2048, "K": 8192}, machine=row, constant=("b",)).plan
    assert plan.axis("K").split("loop").size >= 512
    assert "tile 6x64" in str(plan)


def test_tasks_of_tile_registers_form_a_grid_of_the_cores():
    """Tasks split M or N alone, by 16 or 32: each core read all of the other operand from memory."""
    sizes = {"M": 512, "N": 2048, "K": 2048}
    plan = kernel_for(gemm("nt", "bf16", "bf16"), sizes, machine=amx_of_16_cores(), constant=("b",)).plan
    rows, columns = (plan.axis(name).splits[0].size for name in ("rows", "columns"))
    assert 1 < -(-512 // rows) < 16
    assert 1 < -(-2048 // columns) < 16
