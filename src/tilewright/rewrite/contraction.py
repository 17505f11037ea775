"""Writes a contraction (GEMM, convolution) as a tile program over the digits of its indices, for the general lowering.

    %acc = fill value=0 : f32[M, F]                         %acc = fill value=0 : f32[m_1, m_0, f_0]
    %y = iterate %acc axis=K ... {                          %x = read %x over=[m_1, m_0, k_1, k_0] at=[...]
      %x = read %x over=[i, k] at=[i//56 + k//192, ...]     %w = read %w over=[f_0, k_1, k_0] at=[...]
      ...                                                   %y = mma %x, %w, %acc

The loop is gone: the MMA sums over all digits of K. Arguments have the shapes that accesses in digits take, and the
types that the contraction states.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import number_or
from tilewright.analysis.flat_memory import Size
from tilewright.ir.core import Block, MemoryType, Op, Program, TileType, Value, building
from tilewright.plan.contraction import Contraction, Operand, dimension
from tilewright.rewrite.rewriter import Rewriter, needed


def over_digits(
    c: Contraction, order: tuple[Symbol, ...]
) -> tuple[Program, dict[Symbol, Size], dict[Value, tuple[Size, ...]]]:
    """Return (tile program of the contraction `c` over its digits, {dimension: extent}, {argument: shape}).

    Digits are mixed-radix parts of flat indices. `order` has all of them, in the order of dimensions for every tile.
    """
    with building():
        return _Normal(c, order).run()


class _Normal(Rewriter):
    """Rewrites the program of a contraction over its digits, without its loop."""

    def __init__(self, c: Contraction, order: tuple[Symbol, ...]):
        super().__init__()
        assert c.program is not None
        self.program, self.c = c.program, c
        self.used = needed(c.accesses[2], c.program.makers())
        self.operands = dict(zip(c.accesses, (c.a, c.b, c.out, *c.extras), strict=True))
        self.arguments: dict[tuple[str, bool], Value] = {}
        self.shapes: dict[Value, tuple[Size, ...]] = {}
        self.digits = {d: tuple(map(dimension, digits)) for dims, digits in c.over for d in dims}
        """By dimension: the digits that replace it, perhaps together with other dimensions."""
        self.order: dict[Expr, Symbol] = {dimension(s): s for s in order}

    def run(self) -> tuple[Program, dict[Symbol, Size], dict[Value, tuple[Size, ...]]]:
        """Return (rewritten program, {dimension: extent}, {argument: shape}).

        Also record the arguments and their shapes in self.
        """
        for operand in self.operands.values():
            self._argument(operand)
        body = Block(())
        self.block(self.program.body.ops, body.ops)
        sizes = {dimension(s): number_or(s.upper + 1) for s in self.order.values() if s.upper is not None}
        rewritten = replace(self.program, args=tuple(self.arguments.values()), body=body, records=[])
        return rewritten, sizes, self.shapes

    def _argument(self, operand: Operand) -> Value:
        """Return the argument (memory) of the contraction's `operand`. The first call creates it, and records its shape
        in self.

        Operands of the same name share an argument, except B: it is packed, and gets an argument to itself.
        """
        key = operand.name, operand is self.c.b
        if key not in self.arguments:
            self.arguments[key] = Value(MemoryType(operand.dtype, tuple(map(as_expr, operand.shape))), operand.name)
            self.shapes[self.arguments[key]] = operand.shape
        return self.arguments[key]

    def is_removed(self, op: Op) -> bool:
        """Return True for any loop `op`: all loops are removed, since the MMA sums over their whole axes."""
        return True

    def block(self, given: list[Op], ops: list[Op]) -> None:
        """Append the rewritten operations of the list `given` to `ops`.

        Operations on which the contraction's write does not depend are left out.
        """
        super().block([op for op in given if op in self.used], ops)

    def op(self, op: Op) -> Op:
        """Return the rewritten operation `op`; its tiles have digits (mixed-radix parts of dimensions) as dimensions.

        A read or write gets the argument of its contraction operand as memory. An MMA gets operand A before B. The
        rewritten results are recorded in `self.values`.
        """
        operand = self.operands.get(op)
        rewritten = super().op(op)
        if op.name == "mma":
            rewritten.operands = (*(self.of(self.c.accesses[n].result) for n in (0, 1)), rewritten.operands[2])
        if operand is None:
            return rewritten
        value = rewritten.operands[:-1] if op.name == "write" else ()
        results = tuple(Value(TileType(operand.dtype, r.type.dims), r.name) for r in rewritten.results)
        self.values |= dict(zip(op.results, results, strict=True))
        return Op(op.spec, (*value, self._argument(operand)), rewritten.attrs, results, (), op.loc)

    def access(self, op: Op) -> dict[str, object]:
        """Return the new attributes {"over": iterators, "at": memory coordinates} of the read or write `op`.

        Its tile has digits (mixed-radix parts of dimensions) as dimensions in the new program.
        """
        dims = self.over(op.results[0].type.dims) if op.name == "read" else self.of(op.operands[0]).type.dims
        return {"over": tuple(self.order[d] for d in dims), "at": self.operands[op].coordinates}

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the digits (mixed-radix parts) that replace the dimensions `dims` of a tile, in the order of the new
        program.
        """
        digits = {s for d in dims for s in self.digits[d]}
        return tuple(s for s in self.order if s in digits)
