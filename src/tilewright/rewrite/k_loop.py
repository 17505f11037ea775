"""Puts a loop over the steps of a summed dimension around the MMAs that sum it at once.

    %14 = mma %11, %12, %13 : f32[M, N]        %14 = iterate %13 axis=(D) (%sum: f32[M, N]) {
                                                %11 = read %q : bf16[M, D]
                                                %12 = read %k : bf16[N, D]
                                                %15 = mma %11, %12, %sum ; yield %15 }

Operands with that dimension are read in the loop, or computed there element by element from reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Block, Op, Program, TileType, Value, building
from tilewright.ir.tile import TILE
from tilewright.ir.verifier import verify
from tilewright.plan.stepping import unlooped_mmas, why_no_k_loop
from tilewright.rewrite.rewriter import Rewriter, without_unused


def with_k_loops(program: Program, free: Collection[Op], dim: Expr) -> tuple[Program, set[Op]] | str:
    """Put a loop over `dim` around each MMA that sums it. Return (new program, set of loops in it); or text: why not.

    Operands with this dimension are read or computed in the loop. MMAs that are in a loop over `dim` already stay.
    `free` holds the loops that give the same result for every tile size; their counterparts and the new loops are in
    the set.
    """
    if (reason := why_no_k_loop(program, dim)) is not None:
        return reason
    products = unlooped_mmas(program, dim)
    with building():
        rewriter = _InSteps(products, dim, program.makers())
        body = rewriter.body(program.body)
        stepped = replace(program, body=without_unused(body))
        verify(stepped)
    return stepped, {rewriter.kept[op] for op in (*free, *products) if op in rewriter.kept}


class _InSteps(Rewriter):
    """Rewrites a program with a loop over `dim` around each MMA in `products`."""

    def __init__(self, products: list[Op], dim: Expr, makers: Mapping[Value, Op]):
        super().__init__()
        self.products, self.dim, self.makers = products, dim, makers

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return `dims` unchanged: tiles keep their dimensions."""
        return dims

    def access(self, op: Op) -> Mapping[str, object]:
        """Return {}: the read or write `op` keeps its attributes."""
        return {}

    def op(self, op: Op) -> Op:
        """Return the rewritten operation `op`.

        For an MMA in `self.products`, it is a loop with the MMA and the operations that compute its operands.
        """
        if op not in self.products:
            return super().op(op)
        inside: dict[Value, Op] = {}
        a, b = (self._recomputed(v, inside) for v in op.operands[:2])
        acc = Value(op.operands[2].type, "sum")
        added = Op(op.spec, (a, b, acc), dict(op.attrs), (Value(acc.type),), (), op.loc)
        end = Op(TILE.ops["yield"], (added.result,), {}, loc=op.loc)
        results = tuple(Value(r.type, r.name) for r in op.results)
        start = (self.of(op.operands[2]),)
        self.values |= dict(zip(op.results, results, strict=True))
        body = Block((acc,), [*inside.values(), added, end])
        return Op(TILE.ops["iterate"], start, {"axis": self.dim}, results, (body,), op.loc)

    def _recomputed(self, value: Value, inside: dict[Value, Op]) -> Value:
        """Return the value to use inside the new loop in place of `value`.

        If `value` has the dimension `self.dim`, over which the loop runs, it is computed inside the loop, together with
        its operands. The operations that compute it are added to `inside`, {original value: new operation}. Otherwise
        return the value outside the loop.
        """
        if not isinstance(value.type, TileType) or self.dim not in value.type.dims:
            return self.of(value)
        if value not in inside:
            op = self.makers[value]
            operands = tuple(self._recomputed(v, inside) for v in op.operands)
            inside[value] = Op(op.spec, operands, dict(op.attrs), (Value(value.type, value.name),), (), op.loc)
        return inside[value].result
