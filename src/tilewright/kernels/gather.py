"""Data-dependent indices: gather and scatter of rows, and a histogram by atomic additions."""

from __future__ import annotations

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.ir.dtypes import DTypeLike, element_type

M, N, ROWS, BINS = tkl.sym.M, tkl.sym.N, tkl.sym.ROWS, tkl.sym.BINS
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def gather_rows(dtype: DTypeLike = "f32") -> tkw.Kernel:
    """Return a kernel that computes y[m, n] = table[index[m], n].

    Arguments: table[ROWS, N] of type `dtype`, index[M] in i32, then y[M, N] of type `dtype`. An index out of bounds
    raises `ExecutionError` when the kernel runs.

    >>> import numpy as np, tilewright
    >>> table = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    >>> tilewright.compile(gather_rows(), strict=True)(table, np.array([2, 0], np.int32))
    array([[5., 6.],
           [1., 2.]], dtype=float32)
    """
    of_data = element_type(dtype)
    m, n = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    named_row = tkw.IndexMapping(
        num_iterators=2,
        inputs={ROWS: tkw.IndexMapping.dynamic_val(0), N: n},
        outputs={M: m, N: n},
        dynamic_val_mappings={M: m},
    )

    @tkw.wave()
    def gather_rows(
        table: tkl.Memory[ROWS, N, GLOBAL, of_data],
        index: tkl.Memory[M, GLOBAL, tkl.i32],
        y: tkl.Memory[M, N, GLOBAL, of_data],
    ) -> None:
        tkw.write(tkw.read(table, mapping=named_row, mapping_dynamic_vals=(tkw.read(index),)), y)

    return gather_rows


def scatter_rows(dtype: DTypeLike = "f32") -> tkw.Kernel:
    """Return a kernel that sets table[index[m], n] = x[m, n]; other rows of the table keep their values.

    Arguments: x[M, N] of type `dtype`, index[M] in i32, then table[ROWS, N], of type `dtype`. Indices out of bounds are
    ignored. If two indices are equal, either row of x may be stored.

    >>> import numpy as np, tilewright
    >>> table = np.zeros((3, 2), np.float32)
    >>> x, index = np.array([[1, 2], [3, 4]], np.float32), np.array([2, 0], np.int32)
    >>> tilewright.compile(scatter_rows(), strict=True)(x, index, table)
    >>> table
    array([[3., 4.],
           [0., 0.],
           [1., 2.]], dtype=float32)
    """
    of_data = element_type(dtype)
    m, n = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    named_row = tkw.IndexMapping(
        num_iterators=2,
        inputs={M: m, N: n},
        outputs={ROWS: tkw.IndexMapping.dynamic_val(0), N: n},
        dynamic_val_mappings={M: m},
    )

    @tkw.wave()
    def scatter_rows(
        x: tkl.Memory[M, N, GLOBAL, of_data],
        index: tkl.Memory[M, GLOBAL, tkl.i32],
        table: tkl.Memory[ROWS, N, GLOBAL, of_data],
    ) -> None:
        tkw.write(tkw.read(x), table, mapping=named_row, mapping_dynamic_vals=(tkw.read(index),))

    return scatter_rows


def histogram() -> tkw.Kernel:
    """Return a kernel that adds to counts[b] the number of elements of x equal to b. Elements outside 0 ... BINS - 1
    are ignored.

    Arguments: x[M] and counts[BINS], both in i32.

    >>> import numpy as np, tilewright
    >>> counts = np.zeros(4, np.int32)
    >>> tilewright.compile(histogram(), strict=True)(np.array([3, 0, 3, 9], np.int32), counts)
    >>> counts
    array([1, 0, 0, 2], dtype=int32)
    """
    m = tkw.IndexMapping.iterator(0)
    own_bin = tkw.IndexMapping(
        num_iterators=1,
        inputs={M: m},
        outputs={BINS: tkw.IndexMapping.dynamic_val(0)},
        dynamic_val_mappings={M: m},
    )

    @tkw.wave()
    def histogram(x: tkl.Memory[M, GLOBAL, tkl.i32], counts: tkl.Memory[BINS, GLOBAL, tkl.i32]) -> None:
        one = tkl.Register[M, tkl.i32](1)
        tkw.atomic_add(one, counts, mapping=own_bin, mapping_dynamic_vals=(tkw.read(x),))

    return histogram
