"""Workgroups that the executor runs as one with a larger tile of a dimension, since the result is the same.

The result is the same along a dimension on which every operation is elementwise, in programs that do not use their
workgroup id or shared memory and write each element once. The tiles of such a run have at most `MOST` elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilewright.algebra.expr import Expr, Symbol
from tilewright.errors import ProgramError
from tilewright.interpret.run import Run
from tilewright.ir.attrs import attr_symbols
from tilewright.ir.core import MemoryType, Op, Program, TileType
from tilewright.ir.tile import REDUCTIONS, SCANS, accessed, mismatched_dims
from tilewright.lang.symbols import WORKGROUPS

MOST = 1 << 19
"""The most elements of a tile of workgroups that run as one."""
_IN_ORDER = ("allocate", "atomic_add", "atomic_min", "atomic_max", "debug_log")
_RESHAPING = ("reshape", "bitcast", "extract", "repeat")


def joined(program: Program, run: Run, counts: list[int]) -> dict[int, int]:
    """Return {grid dimension: number of workgroups along this dimension that the executor runs as one}.

    The result is the same as if each workgroup ran alone. Grid dimensions with the number 1 are left out. `counts` is
    the number of workgroups along each grid dimension. Joined tiles have at most `MOST` elements.
    """
    joined_counts: dict[int, int] = {}
    if any(op.name in _IN_ORDER for op in program.walk()) or _reads_what_it_writes(program):
        return joined_counts
    independent_dims = [
        (n, dim) for n, count in enumerate(counts) if count > 1 and (dim := _joinable_dim(program, n)) is not None
    ]
    if not independent_dims:
        return joined_counts
    try:
        most_joined = MOST // max(1, _largest_tile(program, run))
    except ProgramError:  # sizes that only a workgroup tells
        return joined_counts
    for n, _ in independent_dims:
        if most_joined > 1:
            joined_counts[n] = min(counts[n], most_joined)
            most_joined //= joined_counts[n]
    return joined_counts


def _reads_what_it_writes(program: Program) -> bool:
    """True if some memory has both a `read` and a `write` in the program."""
    read = {op.operands[0] for op in program.walk() if op.name == "read"}
    return any(op.operands[1] in read for op in program.walk() if op.name == "write")


def _joinable_dim(program: Program, grid: int) -> Symbol | None:
    """Return the tensor dimension that workgroups along grid dimension number `grid` divide, if these workgroups may
    run as one; otherwise None.

    Three conditions must hold. Every operation is elementwise along the dimension. Exactly one workgroup constraint is
    along the grid dimension, without start, count or `primary=False`. The program does not use the workgroup id.
    """
    constraints = [r for r in program.records if r.name == "workgroup" and r.attrs["grid"] == grid]
    if len(constraints) != 1 or any(name in constraints[0].attrs for name in ("start", "iters", "primary")):
        return None
    dim = constraints[0].attrs["dim"]
    others = [r for r in program.records if r is not constraints[0]]
    used_symbols = {s for e in program.bindings.values() if isinstance(e, Expr) for s in e.symbols}
    used_symbols |= {s for op in (*others, *program.walk()) for s in _symbols(op)}
    if not isinstance(dim, Symbol) or WORKGROUPS[grid] in used_symbols:
        return None
    return dim if all(_is_elementwise_along(op, dim) for op in program.walk()) else None


def _symbols(op: Op) -> set[Symbol]:
    """Return the symbols in the attributes of `op`, an operation or constraint record."""
    return {s for name, kind in op.spec.attrs.items() if name in op.attrs for s in attr_symbols(kind, op.attrs[name])}


def _is_elementwise_along(op: Op, dim: Symbol) -> bool:
    """True if `op` combines no elements of different coordinates along the dimension `dim`. Operations inside the
    blocks of `op` are not examined.

    It is also True if no tile of `op` has the dimension, except for a loop over `dim`, a while loop, and a set_symbol
    of `dim`. In doubt it is False, as for a reshape, or for a mapped write in which no coordinate is the index along
    `dim`.
    """
    tile_types = [v.type for v in (*op.operands, *op.results) if isinstance(v.type, TileType)]
    if any(dim in d.symbols and d is not dim for kind in tile_types for d in kind.dims):
        return False
    has_dim = any(dim in kind.dims for kind in tile_types)
    if dim in (mismatched_dims(op) or ((),))[0]:
        return False
    if op.name in (*REDUCTIONS, *SCANS, "topk"):
        return op.attrs["dim"] is not dim
    if op.name == "mma":
        return not has_dim or dim in op.results[0].type.dims
    if op.name == "iterate":
        return op.attrs["axis"] is not dim and not op.attrs.get("start")
    if op.name == "set_symbol":
        return not has_dim and op.attrs["symbol"] is not dim
    if op.name == "conditional" and "when" in op.attrs:
        return True
    if op.name == "write" and has_dim and "at" in op.attrs:
        iterator = dict(zip(accessed(op)[1].dims, op.attrs["over"], strict=True))[dim]
        return any(e is iterator for e in op.attrs["at"])  # two of them never meet
    return not (has_dim and op.name in _RESHAPING)


def _largest_tile(program: Program, run: Run) -> int:
    """Return the number of elements of the largest tile that one workgroup computes.

    The extent along a dimension is the tile size that a workgroup or tiling constraint gives, otherwise the extent of
    the dimension.
    """
    tiles: Mapping[Expr, Expr] = {
        r.attrs["dim"]: r.attrs["tile"]
        for r in program.records
        if r.name in ("workgroup", "tiling") and "tile" in r.attrs
    }

    def width(dim: Expr) -> int:
        """Return the extent of one workgroup's tile along `dim`."""
        size = run.number(dim)
        return min(size, run.number(tiles[dim])) if dim in tiles else size

    dims = {
        v.type.dims for op in program.walk() for v in op.results if not isinstance(v.type, MemoryType) and v.type.dims
    }
    return max((prod(map(width, tile_dims)) for tile_dims in dims), default=1)
