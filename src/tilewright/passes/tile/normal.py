"""A contraction as a tile program over its digits: what the lowering of all programs takes.

    %acc = fill value=0 : f32[M, F]                         %acc = fill value=0 : f32[m_1, m_0, f_0]
    %y = iterate %acc axis=K ... {                          %x = read %x over=[m_1, m_0, k_1, k_0] at=[...]
      %x = read %x over=[i, k] at=[i//56 + k//192, ...]     %w = read %w over=[f_0, k_1, k_0] at=[...]
      ...                                                   %y = mma %x, %w, %acc

The loop is gone, the product sums over all digits of the depth; arguments have the shapes that accesses in digits
take, and the types that the contraction says.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import number_or
from tilewright.ir.core import Block, MemoryType, Op, Program, TileType, Value, building
from tilewright.passes.places import Size
from tilewright.passes.tile.rewriting import Rewriter, needed
from tilewright.plan.contraction import Contraction, Operand, dimension


def over_digits(
    c: Contraction, order: tuple[Symbol, ...]
) -> tuple[Program, dict[Symbol, Size], dict[Value, tuple[Size, ...]]]:
    """The program of a contraction, whose tiles have their digits in this order, the sizes of its dimensions, and the
    shapes of its arguments."""
    with building():
        return _Normal(c, order).run()


class _Normal(Rewriter):
    def __init__(self, c: Contraction, order: tuple[Symbol, ...]):
        super().__init__()
        assert c.program is not None
        self.program, self.c = c.program, c
        self.used = needed(c.accesses[2], c.program.makers())
        self.operands = dict(zip(c.accesses, (c.a, c.b, c.out, *c.extras), strict=True))
        self.arguments: dict[tuple[str, bool], Value] = {}
        self.shapes: dict[Value, tuple[Size, ...]] = {}
        self.digits = {d: tuple(map(dimension, digits)) for dims, digits in c.over for d in dims}
        """For each dimension, what it is replaced by, perhaps together with others."""
        self.order: dict[Expr, Symbol] = {dimension(s): s for s in order}

    def run(self) -> tuple[Program, dict[Symbol, Size], dict[Value, tuple[Size, ...]]]:
        """The program, its sizes, its arguments' shapes."""
        for operand in self.operands.values():
            self._argument(operand)
        body = Block(())
        self.block(self.program.body.ops, body.ops)
        sizes = {dimension(s): number_or(s.upper + 1) for s in self.order.values() if s.upper is not None}
        made = replace(self.program, args=tuple(self.arguments.values()), body=body, records=[])
        return made, sizes, self.shapes

    def _argument(self, operand: Operand) -> Value:
        """The argument that is an operand; B is one of its own: it is packed, whatever else reads the same tensor."""
        key = operand.name, operand is self.c.b
        if key not in self.arguments:
            self.arguments[key] = Value(MemoryType(operand.dtype, tuple(map(as_expr, operand.shape))), operand.name)
            self.shapes[self.arguments[key]] = operand.shape
        return self.arguments[key]

    def goes(self, op: Op) -> bool:
        """Whether a loop goes: the one there is does."""
        return True

    def block(self, given: list[Op], ops: list[Op]) -> None:
        """Those operations that what is written depends on."""
        super().block([op for op in given if op in self.used], ops)

    def op(self, op: Op) -> Op:
        """An operation on what stands for its operands: those of an access, and A before B."""
        operand = self.operands.get(op)
        made = super().op(op)
        if op.name == "mma":
            made.operands = (*(self.of(self.c.accesses[n].result) for n in (0, 1)), made.operands[2])
        if operand is None:
            return made
        value = made.operands[:-1] if op.name == "write" else ()
        results = tuple(Value(TileType(operand.dtype, r.type.dims), r.name) for r in made.results)
        self.values |= dict(zip(op.results, results, strict=True))
        return Op(op.spec, (*value, self._argument(operand)), made.attrs, results, (), op.loc)

    def access(self, op: Op) -> dict[str, object]:
        """Where a read or write goes, over digits."""
        dims = self.over(op.results[0].type.dims) if op.name == "read" else self.of(op.operands[0]).type.dims
        return {"over": tuple(self.order[d] for d in dims), "at": self.operands[op].coordinates}

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Dimensions as digits, in their order."""
        found = {s for d in dims for s in self.digits[d]}
        return tuple(s for s in self.order if s in found)
