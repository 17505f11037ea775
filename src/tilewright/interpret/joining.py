"""Workgroups that the executor runs together, as one with a larger part of a dimension, which gives the same.

That is so along a dimension on which everything is element by element, of programs that do not ask which workgroup
they are, share no memory, and write each place once. What is run at a time stays within `MOST` elements of a tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilewright.algebra.expr import Expr, Symbol
from tilewright.errors import ProgramError
from tilewright.interpret.run import Run
from tilewright.ir.attrs import attr_symbols
from tilewright.ir.core import MemoryType, Op, Program, TileType
from tilewright.ir.tile import REDUCTIONS, SCANS, accessed, loose
from tilewright.lang.symbols import WORKGROUPS

MOST = 1 << 19
"""Elements that the largest tile of workgroups that run together has at most."""
_IN_ORDER = ("allocate", "atomic_add", "atomic_min", "atomic_max", "debug_log")
_RESHAPING = ("reshape", "bitcast", "extract", "repeat")


def joined(program: Program, run: Run, counts: list[int]) -> dict[int, int]:
    """How many workgroups run together along each dimension of the grid; those that run one by one are left out.

    `counts` are the workgroups along each dimension.
    """
    together: dict[int, int] = {}
    if any(op.name in _IN_ORDER for op in program.walk()) or _reads_what_it_writes(program):
        return together
    free = [(n, dim) for n, count in enumerate(counts) if count > 1 and (dim := _free(program, n)) is not None]
    if not free:
        return together
    try:
        room = MOST // max(1, _largest_tile(program, run))
    except ProgramError:  # sizes that only a workgroup tells
        return together
    for n, _ in free:
        if room > 1:
            together[n] = min(counts[n], room)
            room //= together[n]
    return together


def _reads_what_it_writes(program: Program) -> bool:
    read = {op.operands[0] for op in program.walk() if op.name == "read"}
    return any(op.operands[1] in read for op in program.walk() if op.name == "write")


def _free(program: Program, grid: int) -> Symbol | None:
    """The dimension that workgroups along a dimension of the grid share, where they may run together."""
    cuts = [r for r in program.records if r.name == "workgroup" and r.attrs["grid"] == grid]
    if len(cuts) != 1 or any(name in cuts[0].attrs for name in ("start", "iters", "primary")):
        return None
    dim = cuts[0].attrs["dim"]
    others = [r for r in program.records if r is not cuts[0]]
    named = {s for e in program.bindings.values() if isinstance(e, Expr) for s in e.symbols}
    named |= {s for op in (*others, *program.walk()) for s in _symbols(op)}
    if not isinstance(dim, Symbol) or WORKGROUPS[grid] in named:
        return None
    return dim if all(_keeps(op, dim) for op in program.walk()) else None


def _symbols(op: Op) -> set[Symbol]:
    return {s for name, kind in op.spec.attrs.items() if name in op.attrs for s in attr_symbols(kind, op.attrs[name])}


def _keeps(op: Op, dim: Symbol) -> bool:
    """Whether an operation keeps elements of different coordinates along a dimension apart."""
    kinds = [v.type for v in (*op.operands, *op.results) if isinstance(v.type, TileType)]
    if any(dim in d.symbols and d is not dim for kind in kinds for d in kind.dims):
        return False
    has = any(dim in kind.dims for kind in kinds)
    if dim in (loose(op) or ((),))[0]:
        return False
    if op.name in (*REDUCTIONS, *SCANS, "topk"):
        return op.attrs["dim"] is not dim
    if op.name == "mma":
        return not has or dim in op.results[0].type.dims
    if op.name == "iterate":
        return op.attrs["axis"] is not dim and not op.attrs.get("start")
    if op.name == "set_symbol":
        return not has and op.attrs["symbol"] is not dim
    if op.name == "conditional" and "when" in op.attrs:
        return True
    if op.name == "write" and has and "at" in op.attrs:
        iterator = dict(zip(accessed(op)[1].dims, op.attrs["over"], strict=True))[dim]
        return any(e is iterator for e in op.attrs["at"])  # two of them never meet
    return not (has and op.name in _RESHAPING)


def _largest_tile(program: Program, run: Run) -> int:
    """Elements of the largest tile that one workgroup has; loops go by their tiles."""
    tiles: Mapping[Expr, Expr] = {
        r.attrs["dim"]: r.attrs["tile"]
        for r in program.records
        if r.name in ("workgroup", "tiling") and "tile" in r.attrs
    }

    def width(dim: Expr) -> int:
        size = run.number(dim)
        return min(size, run.number(tiles[dim])) if dim in tiles else size

    dims = {
        v.type.dims for op in program.walk() for v in op.results if not isinstance(v.type, MemoryType) and v.type.dims
    }
    return max((prod(map(width, each)) for each in dims), default=1)
