"""Broadcasts before writes of tiles that lack dimensions of their memory, and checks of missing dimensions
elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.algebra.expr import ONE, Expr, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import DimensionMismatch
from tilewright.ir.core import Block, Op, Program, TileType, Value
from tilewright.ir.tile import TILE, mismatched_dims


def with_whole_writes(program: Program, known: Mapping[Symbol, Expr]) -> Program:
    """Return `program` with a broadcast before each write of a tile that lacks dimensions of its memory.

    There is no broadcast along a dimension that constraints tile to a single coordinate: the write is at that
    coordinate. If no operation has mismatched dimensions, `program` itself is returned. `known` is {symbol: value}.
    Raise DimensionMismatch for any other operation with mismatched dimensions (see `mismatched_dims`), unless
    constraints tile these to a single coordinate.
    """
    if all(mismatched_dims(op) is None for op in program.walk()):
        return program
    tasks, loops = (_single_coordinate_dims(program, known, name) for name in ("workgroup", "tiling"))
    walked = {op.attrs["axis"] for op in program.walk() if op.name == "iterate" and op.attrs.get("start")}
    return replace(program, body=_with_broadcasts(program.body, tasks | walked, loops))


def _single_coordinate_dims(program: Program, known: Mapping[Symbol, Expr], name: str) -> set[Expr]:
    """Return the set of dimensions to which the author's constraints `name` ("workgroup" or "tiling") give a tile size
    of 1.

    `known` is {symbol: value}.
    """
    bound = Substitution(known)
    return {
        record.attrs["dim"]
        for record in program.records
        if record.name == name and "tile" in record.attrs and bound(record.attrs["tile"]) is ONE
    }


def _with_broadcasts(block: Block, single: set[Expr], loops: set[Expr]) -> Block:
    """Return `block` with a broadcast before each write of a tile that lacks dimensions of its memory.

    `single` has the dimensions with a single coordinate in this block; there is no broadcast along them. `loops` has
    the dimensions with a single coordinate inside a loop over them. Raise DimensionMismatch for an operation other than
    a write with mismatched dimensions (see `mismatched_dims`).
    """
    ops: list[Op] = []
    for op in block.ops:
        missing = mismatched_dims(op)
        single_inside = single | ({op.attrs["axis"]} & loops if op.name == "iterate" else set())
        if missing is None or missing[0] <= single_inside:
            ops.append(_with_nested_broadcasts(op, single_inside, loops))
            continue
        if op.name != "write" or not set(op.operands[0].type.dims) < set(op.operands[1].type.dims):
            raise DimensionMismatch(missing[1], op.loc)
        tile, memory = op.operands[0], op.operands[1].type
        dims = tuple(d for d in memory.dims if d in tile.type.dims or d not in single)
        broadcast_tile = Value(TileType(tile.type.dtype, dims))
        ops.append(Op(TILE.ops["broadcast"], (tile,), {"to": dims}, (broadcast_tile,), loc=op.loc))
        ops.append(Op(op.spec, (broadcast_tile, *op.operands[1:]), op.attrs, loc=op.loc))
    return Block(block.args, ops)


def _with_nested_broadcasts(op: Op, single: set[Expr], loops: set[Expr]) -> Op:
    """Return `op` with `_with_broadcasts` applied to its nested blocks; `op` itself if it has none.

    The results are the same Values. `single` and `loops` are those of `_with_broadcasts`.
    """
    if not op.blocks:
        return op
    return Op(
        op.spec, op.operands, op.attrs, op.results, tuple(_with_broadcasts(b, single, loops) for b in op.blocks), op.loc
    )
