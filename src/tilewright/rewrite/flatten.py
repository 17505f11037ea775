"""Elementwise programs over one flat dimension instead of several, if rows have no power-of-two length.

    %0 = read %x : bf16[M, N]                                   N 333: rows begin anywhere
    %0 = read %x over=[f] at=[f//333, f%333] : bf16[M_N]        all elements are contiguous

The number of lanes, and of elements of each, is a power of two, so that rows of 333 elements would leave lanes idle. If
every tile has the same dimensions, and every argument has them in this order, rows need not be told apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilewright.algebra.expr import Expr, Symbol, symbol
from tilewright.ir.core import Block, MemoryType, Op, Program, TileType, building
from tilewright.ir.tile import ELEMENTWISE, accessed
from tilewright.ir.verifier import verify
from tilewright.plan.fixed import tiles_of
from tilewright.rewrite.rewriter import DimensionGroup, Regrouped

SAME = frozenset({*ELEMENTWISE, "read", "write", "cast", "select", "scalar", "fill"})
"""Elementwise operations, and those that read, write or make tiles element by element."""


def in_one_dim(program: Program, sizes: Mapping[Symbol, int]) -> tuple[Program, dict[Symbol, int]] | None:
    """Return (elementwise program over one flat dimension, {dimension: extent} with this dimension), or None.

    None if the program is not elementwise, has constraints, fewer than two dimensions, no elements or an unknown
    extent, or if the extent of its last dimension is a power of two. `sizes` is {dimension: extent}.
    """
    dims = _dims(program)
    if dims is None or len(dims) < 2 or not all(isinstance(d, Symbol) and d in sizes for d in dims):
        return None
    workgroups, tilings = tiles_of(program, sizes)
    extents = [sizes[d] for d in dims if isinstance(d, Symbol)]
    if workgroups or tilings or prod(extents) == 0 or extents[-1] & (extents[-1] - 1) == 0:
        return None
    with building():
        f, flat_dim = symbol("f", 0, prod(extents) - 1), symbol("_".join(map(str, dims)), 0)
        at: dict[Expr, Expr] = {}
        for n, d in enumerate(dims):
            inner = prod(extents[n + 1 :])
            at[d] = f // inner % extents[n] if n else f // inner
        rewriter = Regrouped([DimensionGroup(dims, (flat_dim,), (f,), at)])
        body = rewriter.body(program.body)
        rewritten = Program(program.level, program.name, program.args, Block((), body.ops), program.records)
        verify(rewritten)
    return rewritten, {**sizes, flat_dim: prod(extents)}


def _dims(program: Program) -> tuple[Expr, ...] | None:
    """Return the dimensions, in order, that all tiles of an elementwise program have; tiles without dimensions do not
    count.

    None if two tiles differ, if an operation is not elementwise, or if a read or write does not cover all of its
    argument.
    """
    dims_of_tiles: set[tuple[Expr, ...]] = set()
    for op in program.walk():
        if op.name not in SAME or (op.name in ("read", "write") and not _is_plain(op)):
            return None
        dims_of_tiles |= {
            v.type.dims for v in (*op.operands, *op.results) if isinstance(v.type, TileType) and v.type.dims
        }
    return dims_of_tiles.pop() if len(dims_of_tiles) == 1 else None


def _is_plain(op: Op) -> bool:
    """True if the read or write `op` covers all of a packed argument, in the order of its dimensions.

    It must not state coordinates, bounds or a value `otherwise`.
    """
    memory, kind, _ = accessed(op)
    memory_type: MemoryType = memory.type
    special = {"over", "at", "lookups", "bounds", "otherwise"} & {k for k, v in op.attrs.items() if v is not None}
    return not special and memory_type.dims == kind.dims and memory_type.strides is None and memory_type.extents is None
