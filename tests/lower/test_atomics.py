"""What atomics found in memory, as machine code: in the executor's order, three ways."""

import numpy as np
import pytest
from tile_checks import own_cache, three_ways

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.ir import dtypes
from tilewright.lang.global_symbols import GLOBAL_ADDRESS_SPACE, WORKGROUP_0

__all__ = ["own_cache"]
M, N = tkl.sym.M, tkl.sym.N


def mem(*dims, dtype=tkl.f32):
    return tkl.Memory[(*dims, GLOBAL_ADDRESS_SPACE, dtype)]


def integers(shape, dtype=np.float32, low=-4, high=5, seed=0):
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def test_old_values_at_places_by_data():
    i, d = tkw.IndexMapping.iterator(0), tkw.IndexMapping.dynamic_val(0)
    as_write = tkw.IndexMapping(1, inputs={M: i}, outputs={N: d}, dynamic_val_mappings={M: i})
    as_read = tkw.IndexMapping(1, inputs={N: 0 * i}, outputs={M: i})

    @tkw.wave()
    def kernel(x: mem(M), where: mem(M, dtype=tkl.i32), total: mem(N), before: mem(M), low: mem(N)):
        tile = tkw.read(x)
        old = tkw.atomic_add(tile, total, mapping=as_write, mapping_dynamic_vals=(tkw.read(where),))
        tkw.write(old, before)
        tkw.atomic_min(tile, low, mapping=as_read)

    x, where = np.array([3, 1, 4, 1, 9], np.float32), np.array([0, 2, 0, 0, 7], np.int32)
    total, before, low = np.full(3, 10, np.float32), np.full(5, np.nan, np.float32), np.full(3, 2, np.float32)
    found = three_ways(kernel, x, where, total, before, low)
    assert found[2].tolist() == [18, 10, 11]
    assert found[3].tolist() == [10, 10, 13, 17, 0]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "i64", "i8", "u8", "i4", "f8e4m3fn", "f8e5m2"])
@pytest.mark.parametrize("how", ["add", "min", "max"])
def test_old_values_of_every_type(how, dtype):
    text = f"""tile kernel(%x: global {dtype}[M, K], %z: global {dtype}[N], %o: global {dtype}[M, K])
  symbols M, N, K, it0, it1
{{
  %0 = read %x : {dtype}[M, K]
  %1 = atomic_{how} %0, %z over=[it0, it1] at=[(it0 + it1)%5 - 1] : {dtype}[M, K]
  %2 = add %1, %1 : {dtype}[M, K]
  write %2, %o
}}
"""
    form = dtypes.dtype(dtype).numpy
    low = 0 if dtype == "u8" else -2
    three_ways(text, integers((6, 7), form, low, 3), integers(3, form, 0, 3, 1), integers((6, 7), form, 0, 9, 2))


@pytest.mark.parametrize("dtype", ["f8e4m3fn", "f8e5m2fnuz"])
def test_atomics_that_no_machine_has(dtype):
    text = f"""tile kernel(%x: global {dtype}[M], %z: global {dtype}[N])
  symbols M, N, it0
{{
  %0 = read %x : {dtype}[M]
  %1 = atomic_add %0, %z over=[it0] at=[it0%4] : {dtype}[M]
}}
"""
    form = dtypes.dtype(dtype).numpy
    three_ways(text, integers(3000, form, -1, 2), integers(5, form, 0, 3, 1))


def test_old_values_under_conditions_and_in_workgroups():
    @tkw.wave([tkw.WorkgroupConstraint(M, 3, 0)])
    def kernel(x: mem(M, dtype=tkl.i32), slots: mem(N, dtype=tkl.i32), y: mem(M, dtype=tkl.i32)):
        tile = tkw.read(x)

        @tkw.conditional(tile > tkw.scalar(0, tkl.i32))
        def _():
            old = tkw.atomic_add(tile, slots, mapping=first)
            tkw.write(old + tkw.scalar(100 * WORKGROUP_0, tkl.i32), y)

    i = tkw.IndexMapping.iterator(0)
    first = tkw.IndexMapping(1, inputs={M: i}, outputs={N: 0 * i})
    three_ways(kernel, integers(11, np.int32), np.zeros(2, np.int32), np.full(11, -7, np.int32))


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16"])
@pytest.mark.parametrize("how", ["min", "max"])
def test_what_is_no_number_stays_in_atomics(how, dtype):
    text = f"""tile kernel(%x: global {dtype}[M], %z: global {dtype}[M])
  symbols M
{{
  %0 = read %x : {dtype}[M]
  %1 = atomic_{how} %0, %z : {dtype}[M]
}}
"""
    form = dtypes.dtype(dtype).numpy
    found = three_ways(text, np.array([np.nan, 1, np.nan, 2, 5], form), np.array([1, np.nan, np.nan, 3, -1], form))
    assert np.isnan(found[1]).tolist() == [True, True, True, False, False]
