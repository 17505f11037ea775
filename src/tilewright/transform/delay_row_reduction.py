"""Delayed row reductions: lanes keep partial sums of a loop-carried row sum, and combine them once after the loop.

    map %before = %sum*%factor                     map %before = %sums*%factors        four numbers a row, one a lane
    reduce %x -> %total along 1 with sum           reduce %parts -> %totals along 2 with sum
    map %after = %total + %before                  map %after = %totals + %before
    copy %after -> %sum                            copy %after -> %sums
                                                   ... and after the loop: reduce %sums -> %sum along 1 with sum

The carried sum begins at 0; each iteration only scales it by a number per row and adds to it. So both forms have the
same result, except for the order of additions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.algebra import Layout
from tilewright.algebra.expr import Expr, as_expr, index
from tilewright.algebra.inttuple import leaves
from tilewright.analysis.distribution import placement
from tilewright.ir.core import Block, Op, Program, Value, building, walk_block
from tilewright.ir.formula import Formula
from tilewright.ir.tensors import Distribution, RegisterType, numbers
from tilewright.ir.verifier import verify
from tilewright.lower.gpu.register_tensors import as_expression
from tilewright.machine import Machine
from tilewright.transform.new_ops import Inserting


def sums_by_lanes(program: Program, machine: Machine) -> Program:
    """Change loops of a block program, in place, and return the program. A loop is changed if it carries a row sum, as
    in an online softmax, and several lanes share a row. Each lane then carries a partial sum of the columns that it
    holds, and the lanes' sums are added once, after the loop. The loop must only scale the sum by a number per row and
    add to it.
    """
    with building():
        for op in list(program.walk()):
            for block in op.blocks:
                for loop in [x for x in block.ops if x.name == "for"]:
                    for row_sum in list(_carried_row_sums(program, block, loop)):
                        _Rewriting(program, block, loop, row_sum, machine).run()
        verify(program)
    return program


@dataclass(frozen=True)
class _Sum:
    """A row sum that a loop carries: the operation that sets it to 0, and the operations on it in an iteration."""

    begin: Op
    scaled: Op
    reduced: Op
    added: Op
    carried: Op

    @property
    def value(self) -> Value:
        """The register tensor that carries the sum from one iteration to the next: the target of the copy `carried`."""
        return self.carried.operands[1]


def _carried_row_sums(program: Program, block: Block, loop: Op) -> Iterator[_Sum]:
    """Yield a _Sum (the operations on the sum) for each row sum that `loop`, an operation of `block`, carries in
    registers. The row sum is set to 0 before the loop; each iteration only scales it by a number per row and adds to
    it.
    """
    body = loop.blocks[0].ops
    for reduced in [op for op in body if op.name == "reduce" and _is_sum_of_rows(op)]:
        added = _only_use(program, reduced.operands[1], reduced)
        others = [] if added is None else [v for v in added.operands[1:] if v is not reduced.operands[1]]
        carried = None if added is None or len(others) != 1 else _only_use(program, added.operands[0], added)
        scaled = next((op for op in body if op.name == "map" and others and op.operands[0] is others[0]), None)
        if added is None or carried is None or scaled is None or not {added, carried, scaled} <= set(body):
            continue
        value = carried.operands[1]
        if not (_applies(added, "add") and carried.name == "copy" and _applies(scaled, "mul")):
            continue
        if _only_use(program, scaled.operands[0], scaled) is not added or scaled.operands[1:].count(value) != 1:
            continue
        (scale,) = (v for v in scaled.operands[1:] if v is not value)
        if scale.type != value.type or reduced.operands[1].type != value.type:
            continue
        inside = [op for op in walk_block(loop.blocks[0]) if value in op.operands]
        before = [op for op in block.ops[: block.ops.index(loop)] if value in op.operands]
        if set(inside) == {scaled, carried} and len(before) == 1 and _is_zero(before[0]):
            yield _Sum(before[0], scaled, reduced, added, carried)


def _is_sum_of_rows(op: Op) -> bool:
    """True if the `reduce` operation `op` sums the rows of a matrix in registers (along dimension 1, without
    `accumulate`) to a vector in registers, and the matrix has an explicit layout over lanes.
    """
    kinds = [v.type for v in op.operands]
    registers = all(isinstance(kind, RegisterType) for kind in kinds)
    is_plain = op.attrs["with"] == "sum" and not op.attrs.get("accumulate") and op.attrs["along"] == 1
    has_layout = registers and kinds[0].distribution is not None
    return is_plain and has_layout and len(op.operands) == 2 and [len(kind.shape) for kind in kinds] == [2, 1]


def _only_use(program: Program, value: Value, maker: Op) -> Op | None:
    """Return the one operation of the program, other than `maker`, that has `value` as an operand. Return None if there
    is no such operation, or more than one.
    """
    users = [op for op in program.walk() if value in op.operands and op is not maker]
    return users[0] if len(users) == 1 else None


def _applies(op: Op, name: str) -> bool:
    """True if `op` is a map with two inputs, operands 1 and 2, and the formula is the function `name` (such as "add")
    of both, in either order. Arguments of the function that are not plain operands are ignored.
    """
    formula: Formula | None = op.attrs.get("formula")
    if op.name != "map" or formula is None or formula.name != name or len(op.operands[1:]) != 2:
        return False
    return {part.value for part in formula.parts if part.name == "operand"} == {1, 2}


def _is_zero(op: Op) -> bool:
    """True if `op` is a map that sets all elements to the number 0, perhaps converted to a type."""
    formula: Formula | None = op.attrs.get("formula")
    while formula is not None and formula.name == "cast":
        formula = formula.parts[0]
    return op.name == "map" and formula is not None and formula.name == "number" and formula.value == 0


class _Rewriting:
    """Rewrites one row sum so that each lane keeps a partial sum of its own."""

    def __init__(self, program: Program, block: Block, loop: Op, row_sum: _Sum, machine: Machine):
        self.block, self.loop, self.row_sum, self.machine = block, loop, row_sum, machine
        self.new = Inserting(program)

    def run(self) -> None:
        """Rewrite the loop and the operations around it, in place, so that each lane carries a partial sum: a matrix
        with one number per row and lane replaces the vector of row sums. Do nothing if `_row_distribution` or
        `_per_lane_type` returns None.
        """
        row_sum, source = self.row_sum, self.row_sum.reduced.operands[0]
        places, kind = self._row_distribution(source), self._per_lane_type(row_sum.value.type)
        if places is None or kind is None:
            return
        lanes, columns_per_lane, at = places
        rows = source.type.shape[0]
        i, lane, c = index("i0", rows), index("i1", as_expr(lanes)), index("i2", as_expr(columns_per_lane))
        view = self.new.op("view", (source,), "parts", over=(i, lane, c), at=((i, False), (at(lane, c), False)))
        carried, totals, factors, before, after = (
            self.new.op("alloc", (), name, type=kind) for name in ("sums", "totals", "factors", "before", "after")
        )
        (factor,) = (v for v in row_sum.scaled.operands[1:] if v is not row_sum.value)
        replacement = {
            row_sum.value: carried.result,
            factor: factors.result,
            row_sum.reduced.operands[1]: totals.result,
            row_sum.scaled.operands[0]: before.result,
            row_sum.added.operands[0]: after.result,
        }

        def remapped(op: Op) -> Op:
            return Op(op.spec, tuple(replacement.get(v, v) for v in op.operands), op.attrs, (), (), op.loc)

        reduce = self.new.op("reduce", (view.result, totals.result), along=2, **{"with": "sum"})
        wider = self.new.op("broadcast", (factor, factors.result), along=1)
        self._replace(self.loop.blocks[0], row_sum.scaled, [factors, wider, before, remapped(row_sum.scaled)])
        self._replace(self.loop.blocks[0], row_sum.reduced, [view, totals, reduce])
        self._replace(self.loop.blocks[0], row_sum.added, [after, remapped(row_sum.added)])
        self._replace(self.loop.blocks[0], row_sum.carried, [remapped(row_sum.carried)])
        self._replace(self.block, row_sum.begin, [carried, self.new.op("fill", (carried.result,), value=0)])
        for value in (row_sum.reduced.operands[1], row_sum.scaled.operands[0], row_sum.added.operands[0]):
            alloc = next((op for op in self.loop.blocks[0].ops if value in op.results), None)
            if alloc is not None:
                self._replace(self.loop.blocks[0], alloc, [])
        final_reduce = self.new.op("reduce", (carried.result, row_sum.value), along=1, **{"with": "sum"})
        self._replace(self.block, self.loop, [self.loop, final_reduce])

    def _row_distribution(self, source: Value) -> Any:
        """Return (lanes per row, columns per lane, at) for the matrix `source` in registers: the function `at(lane, c)`
        returns the column, as an expression, that lane number `lane` of a row holds as its c-th. Return None if a row
        is in one lane, if the first lanes do not share the first row evenly, or if there is no such expression.
        """
        spread = placement(source.type, self.machine)
        row, column = spread.coordinates
        sharing = np.nonzero(row[:, 0] == row[0, 0])[0]
        own_values = np.nonzero(row[0] == row[0, 0])[0]
        lanes, columns_per_lane = len(sharing), len(own_values)
        table = column[np.ix_(sharing, own_values)]
        if lanes < 2 or lanes * columns_per_lane != spread.shape[1] or (sharing != np.arange(lanes)).any():
            return None
        if (table != table[:, :1] + table[:1] - table[0, 0]).any():
            return None

        def at(lane: Expr, c: Expr) -> Expr | None:
            first, further = as_expression(table[:, 0], lane), as_expression(table[0] - table[0, 0], c)
            return None if first is None or further is None else first + further

        return (
            (lanes, columns_per_lane, at) if at(index("l", lanes), index("c", columns_per_lane)) is not None else None
        )

    def _per_lane_type(self, kind: RegisterType) -> RegisterType | None:
        """Return the type of a register matrix with one number for each row and each lane that shares the row. `kind`
        is the type of a vector with one number per row, which is repeated in these lanes. Return None if `kind` has no
        explicit layout.
        """
        layout = kind.distribution.layout if kind.distribution is not None else None
        if not isinstance(layout, Layout):
            return None
        (rows,) = numbers(kind.shape, kind)
        modes, lanes = [], 1
        for mode in (layout[0], layout[1]):
            pairs = []
            for n, step in zip(leaves(mode.shape), leaves(mode.stride), strict=True):
                pairs.append((n, rows * lanes if step == 0 and n > 1 else step))
                lanes *= n if step == 0 else 1
            modes.append(pairs)
        shape, stride = (tuple(tuple(pair[i] for pair in mode) for mode in modes) for i in (0, 1))
        return RegisterType(kind.dtype, (as_expr(rows), as_expr(lanes)), Distribution(layout=Layout(shape, stride)))

    def _replace(self, block: Block, old: Op, new: list[Op]) -> None:
        """Replace the operation `old` of `block` by the operations `new`, in place; [] deletes it."""
        place = block.ops.index(old)
        block.ops[place : place + 1] = new
