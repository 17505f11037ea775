"""A product in steps of what it sums: a loop around it, wherever it stands.

    %14 = mma %11, %12, %13 : f32[M, N]        %14 = iterate %13 axis=(D) (%sum: f32[M, N]) {
                                                 %11 = read %q : bf16[M, D]
                                                 %12 = read %k : bf16[N, D]
                                                 %15 = mma %11, %12, %sum ; yield %15 }

Operands along the dimension are read, or computed element by element from reads, in the loop.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Block, Op, Program, TileType, Value, building
from tilewright.ir.tile import TILE
from tilewright.ir.verifier import verify
from tilewright.passes.tile.rewriting import Rewriter, within, without_unused
from tilewright.plan.computed import GIVEN, SIMPLE

_AGAIN = {*SIMPLE, *GIVEN, "read"}
"""Operations that may be done again in a loop: they give the same, a tile at a time."""


def products_over(program: Program, dim: Expr) -> list[Op]:
    """Return the MMAs that sum all of a dimension at once, outside of a loop over it."""
    looped = {x for op in program.walk() if op.name == "iterate" and op.attrs["axis"] is dim for x in within(op)}
    return [op for op in program.walk() if op.name == "mma" and op not in looped and dim in _summed(op)]


def in_steps(program: Program, free: Collection[Op], dim: Expr) -> tuple[Program, set[Op]] | str:
    """Return (the program with a loop over `dim` around each MMA that sums it, its free loops (same result for every
    tile size)); or text: why not.
    """
    products, makers = products_over(program, dim), program.makers()
    for value in [v for op in products for v in op.operands[:2]]:
        if (why := _why_not(value, dim, makers)) is not None:
            return why
    with building():
        rewriter = _InSteps(products, dim, makers)
        body = rewriter.body(program.body)
        stepped = replace(program, body=without_unused(body))
        verify(stepped)
    return stepped, {rewriter.kept[op] for op in (*free, *products) if op in rewriter.kept}


def _why_not(value: Value, dim: Expr, makers: Mapping[Value, Op]) -> str | None:
    """Return text: why an operand cannot be computed one tile of `dim` at a time; None if it can."""
    if not isinstance(value.type, TileType) or dim not in value.type.dims:
        return None
    op = makers.get(value)
    if op is None or op.name not in _AGAIN:
        return f"what lies along {dim} is neither read nor computed element by element from what is read"
    if any(dim in e.symbols for e in op.attrs.get("at", ())):
        return f"an access depends on the size of {dim}"
    return next((why for v in op.operands if (why := _why_not(v, dim, makers)) is not None), None)


class _InSteps(Rewriter):
    """Rewrites a program with loops over `dim` around `products`."""

    def __init__(self, products: list[Op], dim: Expr, makers: Mapping[Value, Op]):
        super().__init__()
        self.products, self.dim, self.makers = products, dim, makers

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the dimensions unchanged."""
        return dims

    def access(self, op: Op) -> Mapping[str, object]:
        """Return no changed attributes: accesses stay."""
        return {}

    def op(self, op: Op) -> Op:
        """Return the rewritten operation; for one of `products`, the loop around it."""
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
        """Return the value, recomputed inside the loop if it has the dimension; the operations are added to
        `inside`.
        """
        if not isinstance(value.type, TileType) or self.dim not in value.type.dims:
            return self.of(value)
        if value not in inside:
            op = self.makers[value]
            operands = tuple(self._recomputed(v, inside) for v in op.operands)
            inside[value] = Op(op.spec, operands, dict(op.attrs), (Value(value.type, value.name),), (), op.loc)
        return inside[value].result


def _summed(op: Op) -> list[Expr]:
    """Return the dimensions that an MMA sums (K)."""
    a, b, c = (v.type.dims for v in op.operands)
    return [d for d in a if d in b and d not in c]
