"""Writes of tiles that lack dimensions of their memory, and other operations that leave out or add a dimension."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.algebra.expr import ONE, Expr, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import DimensionMismatch
from tilewright.ir.core import Block, Op, Program, TileType, Value
from tilewright.ir.tile import TILE, loose


def with_whole_writes(program: Program, known: Mapping[Symbol, Expr]) -> Program:
    """The program, with a broadcast before each write of a tile that lacks dimensions of its memory.

    Dimensions that constraints cut to one coordinate are left as they are: the write is at that coordinate. Any other
    operation that leaves out or adds a dimension which is not cut so raises `DimensionMismatch`.
    """
    if all(loose(op) is None for op in program.walk()):
        return program
    tasks, loops = (_cut_to_one(program, known, name) for name in ("workgroup", "tiling"))
    walked = {op.attrs["axis"] for op in program.walk() if op.name == "iterate" and op.attrs.get("start")}
    return replace(program, body=_written(program.body, tasks | walked, loops))


def _cut_to_one(program: Program, known: Mapping[Symbol, Expr], name: str) -> set[Expr]:
    """The dimensions that constraints of a name cut to one coordinate."""
    bound = Substitution(known)
    return {
        record.attrs["dim"]
        for record in program.records
        if record.name == name and "tile" in record.attrs and bound(record.attrs["tile"]) is ONE
    }


def _written(block: Block, single: set[Expr], loops: set[Expr]) -> Block:
    """The block with its writes whole: dimensions of `single` are cut to one coordinate, those of `loops` are so within
    a loop over them."""
    ops: list[Op] = []
    for op in block.ops:
        found = loose(op)
        around = single | ({op.attrs["axis"]} & loops if op.name == "iterate" else set())
        if found is None or found[0] <= around:
            ops.append(_with_blocks(op, around, loops))
            continue
        if op.name != "write" or not set(op.operands[0].type.dims) < set(op.operands[1].type.dims):
            raise DimensionMismatch(found[1], op.loc)
        tile, memory = op.operands[0], op.operands[1].type
        dims = tuple(d for d in memory.dims if d in tile.type.dims or d not in single)
        whole = Value(TileType(tile.type.dtype, dims))
        ops.append(Op(TILE.ops["broadcast"], (tile,), {"to": dims}, (whole,), loc=op.loc))
        ops.append(Op(op.spec, (whole, *op.operands[1:]), op.attrs, loc=op.loc))
    return Block(block.args, ops)


def _with_blocks(op: Op, single: set[Expr], loops: set[Expr]) -> Op:
    """The operation, with its blocks written again; its results stay the same values."""
    if not op.blocks:
        return op
    return Op(op.spec, op.operands, op.attrs, op.results, tuple(_written(b, single, loops) for b in op.blocks), op.loc)
