"""Removes a loop whose carried values can be merged: one iteration covers all of its dimension, and sums start from
0.

    %m, %d, %o = iterate %low, %zero, %zero2 axis=N {     %m = max %s, %low                  s over all of N
      %m' = max %s, %m                                    %p = exp(%s - %m)
      %p = exp(%s - %m')                                  %d = sum %p, %zero
      %d' = sum %p, %d * exp(%m - %m')                    %o = mma %p, %v, %zero2
      %o' = mma %p, %v, %o * exp(%m - %m')

Values between its MMAs may then go through memory from one kernel to the next. Online softmax is one example: the
factor that rescales a carried value is not needed if the value starts from zero. A result that is divided by a number
for each row becomes an MMA of rows that were divided before, (p v) / d = (p / d) v, so that the last kernel is an MMA
alone.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Block, Op, Program, TileType, Value, building
from tilewright.ir.verifier import verify
from tilewright.plan.facts.loops import merging_loop
from tilewright.rewrite.rewriter import Rewriter, must_stay, needed


def with_loop_run_once(program: Program) -> Program | str:
    """Return the program with its loop replaced by the body, run once over the whole dimension; or text: why not.

    The loop must be one that workgroups could compute in parts and merge afterwards, such as an online softmax. If an
    MMA's result is divided (or multiplied) by a value for each row, operand A is divided instead.
    """
    loop = merging_loop(program)
    if isinstance(loop, str):
        return loop
    with building():
        body = _Dissolving(loop).body(program.body)
        _scale_operands(body)
        makers = {result: op for op in body.ops for result in op.results}
        used = set[Op]().union(*(needed(op, makers) for op in body.ops if must_stay(op)))
        records = [r for r in program.records if r.name != "tiling" or r.attrs["dim"] is not loop.attrs["axis"]]
        rewritten = replace(program, body=Block(body.args, [op for op in body.ops if op in used]), records=records)
        verify(rewritten)
    return rewritten


def _scale_operands(body: Block) -> None:
    """Divide or multiply operand A of MMAs by a value of the row, instead of their results. Changes the block `body` in
    place.

    An MMA stays as it is if A is read from memory or has another element type than the value, if the MMA does not start
    from zero, or if its result has other users than the division.
    """
    makers = {result: op for op in body.ops for result in op.results}
    for op in [op for op in body.ops if op.name in ("div", "mul")]:
        product = makers.get(op.operands[0])
        if product is None or product.name != "mma":
            continue
        (a, b, start), (result, factor) = product.operands, op.operands
        users = [x for x in body.ops if result in x.operands]
        zero = makers.get(start)
        is_of_rows = isinstance(factor.type, TileType) and {*factor.type.dims} <= {*a.type.dims} & {*result.type.dims}
        is_zero = zero is not None and zero.name == "fill" and zero.attrs["value"] == 0
        is_read = a in makers and makers[a].name == "read"  # an operand in memory stays as it is
        if is_read or users != [op] or not is_of_rows or not is_zero or a.type.dtype is not factor.type.dtype:
            continue
        scaled = Op(op.spec, (a, factor), op.attrs, (Value(a.type, a.name),), loc=op.loc)
        multiplied = Op(product.spec, (scaled.result, b, start), product.attrs, op.results, loc=product.loc)
        place = body.ops.index(op)
        body.ops[place : place + 1] = [scaled, multiplied]
        body.ops.remove(product)
        makers[multiplied.result] = multiplied


class _Dissolving(Rewriter):
    """Rewrites a program with the body of a loop in place of the loop, once, on the values that the loop starts
    from.
    """

    def __init__(self, loop: Op):
        super().__init__()
        self.loop = loop
        (body,) = loop.blocks
        makers = {result: op for op in body.ops for result in op.results}
        starts = zip(body.ops[-1].operands, loop.operands, strict=True)
        self.starts: dict[Op, Value] = {makers[end]: start for end, start in starts}
        """{operation that computes a carried value: the value that the loop starts from}."""

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return `dims` unchanged: tiles keep their dimensions."""
        return dims

    def access(self, op: Op) -> dict[str, object]:
        """Return {}: the read or write `op` keeps its attributes."""
        return {}

    def is_removed(self, op: Op) -> bool:
        """True if the loop `op` is `self.loop`, which its body replaces."""
        return op is self.loop

    def block(self, given: list[Op], ops: list[Op]) -> None:
        """Append the rewritten form of each operation in the list `given` to `ops`.

        Casts that do not change the element type are left out.
        """
        for op in given:
            if op.name == "cast" and op.operands[0].type.dtype is op.result.type.dtype:
                self.values[op.result] = self.of(op.operands[0])
            else:
                super().block([op], ops)

    def op(self, op: Op) -> Op:
        """Return the rewritten operation `op`.

        If it computes a carried value, its last operand (the accumulator) becomes the value that the loop starts from.
        """
        rewritten = super().op(op)
        if op in self.starts:
            rewritten.operands = (*rewritten.operands[:-1], self.of(self.starts[op]))
        return rewritten
