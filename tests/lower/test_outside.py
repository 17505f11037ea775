"""What shared memory does not hold, or only a call tells the size of, lies in workspaces: exact on both levels."""

from dataclasses import replace

import numpy as np
import pytest
from loop_level import on_the_loop_level

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.ir import dtypes
from tilewright.ir.block import parse_block
from tilewright.lang.global_symbols import GLOBAL_ADDRESS_SPACE
from tilewright.lower.gpu.lower import lower_waves, shared_excess_bytes
from tilewright.targets.registry import machine

M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
HOPPER = machine("hopper")


def mem(*dims, dtype=tkl.f32):
    return tkl.Memory[(*dims, GLOBAL_ADDRESS_SPACE, dtype)]


def integers(*shape, dtype=np.float32):
    return np.random.default_rng(shape).integers(-4, 5, shape).astype(dtype)


def with_shared(count):
    """Hopper with less shared memory."""
    return replace(HOPPER, spaces={**HOPPER.spaces, "shared": replace(HOPPER.spaces["shared"], bytes=count)})


def same_on_both_levels(kernel, made, *arrays):
    """A compiled kernel gives what the executor does, as block programs and as loop programs."""
    wanted = [a.copy() for a in arrays]
    tilewright.compile(kernel, target="executor")(*wanted)
    for executor in (made.executor, on_the_loop_level(made)):
        found = [a.copy() for a in arrays]
        executor.bind(found)()
        for mine, theirs in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(mine.astype(np.float64), theirs.astype(np.float64))


def chained():
    """Rows by an index, running sums down, and what is left of each row: no dimension can be a task's alone."""
    i, j = (tkw.IndexMapping.iterator(n) for n in range(2))
    rows = tkw.IndexMapping(
        2, inputs={K: tkw.IndexMapping.dynamic_val(0), N: j}, outputs={M: i, N: j}, dynamic_val_mappings={M: i}
    )

    @tkw.wave()
    def kernel(table: mem(K, N), index: mem(M, dtype=tkl.i32), y: mem(M, N), z: mem(M)):
        tile = tkw.read(table, mapping=rows, mapping_dynamic_vals=(tkw.read(index),), otherwise=5)
        down = tkw.minimum(tkw.cumsum(tile, dim=M), 7.0)
        across = tkw.cumsum(down, dim=N)
        tkw.write(across, y)
        tkw.write(tkw.max(across, dim=N) - tkw.min(tkw.min(down, dim=N), dim=M), z)

    return kernel


def arguments(m, n, k):
    index = np.random.default_rng(m).integers(-1, k + 1, m).astype(np.int32)
    return integers(k, n), index, np.zeros((m, n), np.float32), np.zeros(m, np.float32)


@pytest.mark.parametrize(("m", "n", "k"), [(5, 7, 3), (33, 20, 4), (17, 129, 9)])
def test_values_that_do_not_fit(m, n, k):
    made = kernel_for(chained(), {"M": m, "N": n, "K": k}, machine=HOPPER)
    assert "scratch" not in str(made.module)
    same_on_both_levels(chained(), made, *arguments(m, n, k))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [4096, 8192])
@pytest.mark.parametrize(("m", "n", "k"), [(33, 70, 4), (17, 129, 9)])
def test_values_that_do_not_fit_a_machine_with_less(m, n, k, count, monkeypatch):
    small = with_shared(count)
    monkeypatch.setattr("tilewright.compiler.device.machine_named", lambda name: small)
    made = kernel_for(chained(), {"M": m, "N": n, "K": k}, machine=small)
    assert ": scratch global f32" in str(made.module)
    assert str(parse_block(made.text())) == made.text()
    same_on_both_levels(chained(), made, *arguments(m, n, k))
    text = made.text("plan")
    again = kernel_for(chained(), {"M": m, "N": n, "K": k}, machine=small, plan=text)
    assert str(again.module) == str(made.module)


@pytest.mark.parametrize("dynamic", [["M"], ["N"], ["M", "N"]])
def test_open_sizes(dynamic):
    kernel = chained()
    made = kernel_for(kernel, {"M": 9, "N": 20, "K": 4}, machine=HOPPER, dynamic=dynamic)
    for m, n in ((9, 20), (1, 1), (40, 3), (2, 65)):
        m, n = m if "M" in dynamic else 9, n if "N" in dynamic else 20
        same_on_both_levels(kernel, made, *arguments(m, n, 4))


@pytest.mark.parametrize("over", ["columns", "rows"])
@pytest.mark.parametrize("combine", ["sum", "max"])
def test_reductions_over_open_sizes(combine, over):
    kernel = kernels.reduction(combine, over)
    made = kernel_for(kernel, {"M": 9, "N": 20}, machine=HOPPER, dynamic=["M", "N"])
    for m, n in ((9, 20), (1, 1), (70, 3), (2, 300)):
        same_on_both_levels(kernel, made, integers(m, n), np.zeros(m if over == "columns" else n, np.float32))


def test_a_tile_that_several_lanes_read_and_one_writes():
    """A sum that is carried in memory was stored by one lane before others had read it."""

    @tkw.wave([tkw.TilingConstraint(N, 32)])
    def kernel(x: mem(M, N, dtype=tkl.i64), y: mem(M, N, dtype=tkl.i64)):
        @tkw.iterate(N, init_args=[tkl.Register[M, tkl.i64](0)])
        def total(acc):
            return tkw.minimum(tkw.min(tkw.read(x), dim=N) + acc, 7)

        tkw.write(tkw.broadcast(total, [M, N]), y)

    made = kernel_for(kernel, {"M": 7, "N": 63}, machine=HOPPER, dynamic=["N"])
    for n in (63, 1, 64, 200):
        same_on_both_levels(kernel, made, integers(7, n, dtype=np.int64), np.zeros((7, n), np.int64))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("transposes", "dtype"), [("nn", "f16"), ("nt", "bf16"), ("nt", "f32"), ("nn", "i8")])
def test_products_that_sum_over_open_sizes(transposes, dtype):
    """They were refused where the machine's products read whole steps of K from shared memory."""
    wide = "i32" if dtype == "i8" else "f32"
    kernel = kernels.gemm(transposes, dtype, wide)
    made = kernel_for(kernel, {"M": 20, "N": 19, "K": 33}, machine=HOPPER, dynamic=["M", "K"])
    for m, k in ((20, 33), (1, 1), (5, 16), (21, 40)):
        a, b = (integers(*shape, dtype=dtypes.dtype(dtype).numpy) for shape in ((m, k), (k, 19)))
        b = b if transposes[1] == "n" else np.ascontiguousarray(b.T)
        same_on_both_levels(kernel, made, a, b, np.zeros((m, 19), dtypes.dtype(wide).numpy))


def test_sums_in_memory_that_all_waves_read_and_one_writes():
    """A reduction that goes on from memory was stored by one wave before others had read it."""
    text = """block most(%x: in global f32 (3, 5, 300), %y: inout global f32 (300))
  machine hopper
  waves 4
{
  tasks t in 0..1 {
    for k in 0..3 {
      %part = view %x (i 5, j 300) -> [k, i, j]
      reduce %part -> %y along 0 with max accumulate
      barrier
    }
  }
}"""
    x, y = integers(3, 5, 300), np.full(300, -9, np.float32)
    loop = tilewright.compile_text(text, "gpu:hopper").text("loop")
    tilewright.compile_text(loop, "interpreter")(x, y)
    assert np.array_equal(y, x.max((0, 1)))


def test_barriers_lie_behind_tensors():
    """Barriers between tensors took 1024 bytes each: rings of two products were 16 bytes too long."""

    @tkw.wave()
    def kernel(
        a: mem(M, K, dtype=tkl.f16),
        b: mem(K, N, dtype=tkl.f16),
        c: mem(M, N, dtype=tkl.f16),
        d: mem(M, N, dtype=tkl.f16),
    ):
        x, y, zero = tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f16](0)
        tkw.write(tkw.mma(x, y, zero, accumulate="f16"), c)
        tkw.write(tkw.mma(x, y, zero), d)

    assert ".entry kernel" in kernel_for(kernel, {"M": 3, "N": 24, "K": 64}, target="gpu:hopper").text("asm")


@pytest.mark.parametrize("count", [8192, 20480])
def test_scratch_of_operations_that_is_shared(count, monkeypatch):
    """Reductions over waves told one another in memory of their own, which was more than there is."""

    @tkw.wave()
    def kernel(x: mem(M, N), y: mem(M, N), z: mem(N)):
        tile = tkw.read(x)
        high, low = tkw.max(tile, dim=M), tkw.min(tile, dim=M)
        total = tkw.sum(tkw.minimum(tile, high + low), dim=M)
        tkw.write(tile + tkw.max(tkw.max(tile, dim=N), dim=M) * total, y)
        tkw.write(total + high - low, z)

    small = with_shared(count)
    monkeypatch.setattr("tilewright.compiler.device.machine_named", lambda name: small)
    made = kernel_for(kernel, {"M": 37, "N": 300}, machine=small)
    lowered = lower_waves(made.main, small)
    assert shared_excess_bytes(lowered, small) <= 0
    same_on_both_levels(kernel, made, integers(37, 300), *(np.zeros(s, np.float32) for s in ((37, 300), (300,))))
