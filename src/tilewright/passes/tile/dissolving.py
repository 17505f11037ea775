"""A loop that merges as no loop: all of its dimension in one iteration, whose sums start from zero.

    %m, %d, %o = iterate %low, %zero, %zero2 axis=N {     %m = max %s, %low                  s over all of N
      %m' = max %s, %m                                    %p = exp(%s - %m)
      %p = exp(%s - %m')                                  %d = sum %p, %zero
      %d' = sum %p, %d * exp(%m - %m')                    %o = mma %p, %v, %zero2
      %o' = mma %p, %v, %o * exp(%m - %m')

Values between its products may then go through memory from one kernel to the next. Nothing in it knows softmax: what
a state is rescaled by is not needed where it is zero. A result that is divided by a number for each row is the product
of rows that were divided before: (p v) / d = (p / d) v, so that the last kernel has the product alone.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Block, Op, Program, TileType, Value, building
from tilewright.ir.verifier import verify
from tilewright.passes.tile.rewriting import Rewriter, needed
from tilewright.plan.boxes import WRITES
from tilewright.plan.facts.loops import merging_loop


def dissolved(program: Program) -> Program | str:
    """Return the program with its loop as one iteration over the whole dimension; or text: why that is not possible.

    The values that the loop carries must merge across parts (`merging_loop`), as those of online softmax do.
    """
    loop = merging_loop(program)
    if isinstance(loop, str):
        return loop
    with building():
        body = _Dissolving(loop).body(program.body)
        _scale_operands(body)
        makers = {result: op for op in body.ops for result in op.results}
        used = set[Op]().union(*(needed(op, makers) for op in body.ops if op.name in WRITES))
        records = [r for r in program.records if r.name != "tiling" or r.attrs["dim"] is not loop.attrs["axis"]]
        rewritten = replace(program, body=Block(body.args, [op for op in body.ops if op in used]), records=records)
        verify(rewritten)
    return rewritten


def _scale_operands(body: Block) -> None:
    """Divide or multiply a computed operand A of each MMA, in place, by what its result alone is divided by, or is
    multiplied by.
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
        is_read = a in makers and makers[a].name == "read"  # which the product takes as it is
        if is_read or users != [op] or not is_of_rows or not is_zero or a.type.dtype is not factor.type.dtype:
            continue
        scaled = Op(op.spec, (a, factor), op.attrs, (Value(a.type, a.name),), loc=op.loc)
        multiplied = Op(product.spec, (scaled.result, b, start), product.attrs, op.results, loc=product.loc)
        place = body.ops.index(op)
        body.ops[place : place + 1] = [scaled, multiplied]
        body.ops.remove(product)
        makers[multiplied.result] = multiplied


class _Dissolving(Rewriter):
    """The program rewritten with the body of a loop in its place, once, from the states that it starts with."""

    def __init__(self, loop: Op):
        super().__init__()
        self.loop = loop
        (body,) = loop.blocks
        makers = {result: op for op in body.ops for result in op.results}
        starts = zip(body.ops[-1].operands, loop.operands, strict=True)
        self.starts: dict[Op, Value] = {makers[end]: start for end, start in starts}
        """{operation that accumulates a state: what the state starts from}."""

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the dimensions, which stay as they are."""
        return dims

    def access(self, op: Op) -> dict[str, object]:
        """Return no changed attributes."""
        return {}

    def goes(self, op: Op) -> bool:
        """True for the loop."""
        return op is self.loop

    def block(self, given: list[Op], ops: list[Op]) -> None:
        """Append the rewritten operations to `ops`, but for casts to the type that a value has."""
        for op in given:
            if op.name == "cast" and op.operands[0].type.dtype is op.result.type.dtype:
                self.values[op.result] = self.of(op.operands[0])
            else:
                super().block([op], ops)

    def op(self, op: Op) -> Op:
        """Return the rewritten operation; one that accumulates a state begins with that of the loop."""
        rewritten = super().op(op)
        if op in self.starts:
            rewritten.operands = (*rewritten.operands[:-1], self.of(self.starts[op]))
        return rewritten
