"""Chained products as a loop over what lies between them: a tile of it at a time, so that it need not fit registers.

    %h = mma %x, %w1, ... : f32[M, F]          %y = iterate %zero axis=(F) (%acc: f32[M, N]) {
    %a = ... of %h, element by element           %h = mma %x, %w1, ... : f32[M, F]
    %y = mma %a, %w2, %zero : f32[M, N]          %a = ... of %h
                                                 %y = mma %a, %w2, %acc ; yield %y }

Nothing but the last product knows of what lies between, which is computed element by element from the product before:
so each tile of it gives its part of the sum.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.algebra.expr import Expr, as_expr
from tilewright.ir.core import Block, Op, Program, TileType, Value, building
from tilewright.ir.tile import TILE
from tilewright.passes.tile.rewriting import Regrouped, within
from tilewright.plan.computed import GIVEN, SIMPLE
from tilewright.plan.general import only_adds

_ALIKE = {*SIMPLE, *GIVEN, "read", "mma"}


def summed_between(program: Program) -> list[Expr]:
    """The dimensions that a product sums of what is computed from another."""
    products = [op for op in program.walk() if op.name == "mma"]
    made = {d for op in products for d in op.result.type.dims}
    return list(dict.fromkeys(d for op in products for d in _summed(op) if d in made))


def in_a_loop(program: Program, dim: Expr, tile: int) -> Program | str:
    """The program with a loop over a dimension that its last product sums, so much at a time; or why there is none."""
    ops = program.body.ops
    last = [op for op in ops if op.name == "mma" and dim in _summed(op)]
    if len(last) != 1:
        return f"not one product sums {dim}"
    (product,) = last
    inside = [op for op in ops if op is not product and any(_has(v, dim) for v in op.results)]
    others = [op for op in ops if op not in inside and op is not product]
    if any(op.name not in _ALIKE and not (op.name == "iterate" and only_adds(op)) for op in inside):
        return f"what lies along {dim} is not computed element by element from a product"
    if any(_has(v, dim) for op in others for x in (op, *within(op)) for v in x.operands):
        return f"what lies along {dim} is used by more than the product that sums it"
    if any(dim in e.symbols for op in ops for e in op.attrs.get("at", ())):
        return f"an access depends on the size of {dim}"
    with building():
        acc = Value(product.operands[2].type, "sum")
        added = Op(product.spec, (*product.operands[:2], acc), dict(product.attrs), (Value(acc.type),), loc=product.loc)
        body = Block((acc,), [*inside, added, Op(TILE.ops["yield"], (added.result,), {}, loc=product.loc)])
        loop = Op(TILE.ops["iterate"], product.operands[2:], {"axis": dim}, product.results, (body,), product.loc)
        at = ops.index(product)
        whole = [*(op for op in ops[:at] if op not in inside), loop, *(op for op in ops[at + 1 :] if op not in inside)]
        said = Op(TILE.records["tiling"], (), {"dim": dim, "tile": as_expr(tile)})
        return replace(program, body=Block(program.body.args, whole), records=[*program.records, said])


def without_k_loops(program: Program, free: Collection[Op]) -> Program:
    """The program whose products sum all of K at once: loops that only add products go, of those that are `free`."""
    gone = {op for op in free if only_adds(op)}
    if not gone:
        return program
    with building():
        return replace(program, body=_WithoutLoops(gone).body(program.body))


class _WithoutLoops(Regrouped):
    """A program without some loops, over the same dimensions."""

    def __init__(self, gone: Collection[Op]):
        super().__init__(())
        self.gone = gone

    def goes(self, op: Op) -> bool:
        """Whether a loop goes."""
        return op in self.gone


def _summed(op: Op) -> list[Expr]:
    a, b, c = (v.type.dims for v in op.operands)
    return [d for d in a if d in b and d not in c]


def _has(value: Value, dim: Expr) -> bool:
    return isinstance(value.type, TileType) and dim in value.type.dims
