"""Products in tile registers: the blocks of sums that a task goes over, and their results, stored a round later.

    %sums = alloc register f32 (32, 32) as ATOM.c
    for b_f in 0..2, b_m in 0..50 overlap defer {
      fill %sums 0
      for k_r in 0..3 unroll { ... mma %sums += %left * %right using ATOM }
    } finally {
      copy %sums -> %scratch
      map %y_view = bf16(%scratch)
    }

A is staged first, or read where it lies; then the last block of rows, where they end within it, is written apart. A
program may have several such products: each has sums of its own, and those that read the same rows share these.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product

from tilewright.algebra.expr import ONE, Expr, as_expr
from tilewright.algebra.expr_rules import minimum
from tilewright.errors import ProgramError
from tilewright.ir.attrs import Range
from tilewright.ir.core import Block, Op
from tilewright.passes.tile.lowering import Lowering
from tilewright.passes.tile.product.lines import staged
from tilewright.passes.tile.product.registers import OperandRegisters, TaskRegisters, operand_registers
from tilewright.passes.tile.rewriting import needed
from tilewright.passes.tile.values import divided, pieces
from tilewright.plan.microkernel import Microkernel
from tilewright.plan.tiled import Tiled


@dataclass(frozen=True)
class Rounds:
    """Blocks along a dimension, from number `first` up to `end`, under the condition `when`.

    `past`: it is the last block, which goes past the end of the dimension.
    """

    first: Expr | int
    end: Expr | int
    when: Expr = ONE
    past: bool = False


class TiledTask:
    """A task with MMAs in tile registers: it stages their A, goes over blocks of C, and stores the results of these."""

    def __init__(self, low: Lowering):
        self.low, self.plans = low, low.bound.tiled
        self.hows = {op: _microkernel(low, op, plan) for op, plan in self.plans.items()}
        self.makers = {r: op for op in low.program.body.ops for r in op.results}
        self.summing = {x for op in self.plans for x in needed(op, self.makers)}
        """The operations that a block's sums take; all others are done with what has become of them."""
        self.between = {op for op in self.plans if any(op in needed(x, self.makers) for x in self.plans if x is not op)}
        """MMAs whose sums another MMA of the task needs: they are there as soon as they are done."""
        axes = {d for plan in self.plans.values() for d in (plan.axes.m, plan.axes.n)}
        self.one_by_one = [d for d in low.bound.blocks if d in low.bound.widths and d not in axes]
        """Dimensions of a batch of which a task has several: what follows is done for each."""
        self.in_place = {plan.axes.m for plan in self.plans.values()} - set(low.task.walks)
        """Rows of operands A of which no operand is staged."""
        self.registers: dict[Op, TaskRegisters] = {}

    def write(self) -> None:
        """Emit the whole task."""
        self.registers = {}
        low, operands = self.low, dict[tuple[Microkernel, tuple[bool, bool]], OperandRegisters]()
        for op, plan in self.plans.items():
            how = self.hows[op]
            self._bring(op, plan, how)
            atom, block, axes = how.atom, (how.rows, how.columns), plan.axes
            scratch = low.writer.alloc(atom.c.dtype, block, "scratch")
            sums = low.writer.registers(atom.c.dtype, block, f"{atom.name}.c", "sums")
            if (how, plan.streams) not in operands:  # MMAs follow each other: they share these
                operands[how, plan.streams] = operand_registers(low.writer, how, *block, plan.streams)
            shared = operands[how, plan.streams]
            self.registers[op] = TaskRegisters(axes, sums, shared, scratch, False, op in self.between)
            low.storage.sums[scratch] = low.storage.sums[sums] = axes.m, axes.n
        dims = [d for d in low.bound.blocks if d not in self.one_by_one]
        for chosen in product(*(list(self._rounds(d)) for d in dims)):
            with ExitStack() as branches:
                for each in chosen:
                    branches.enter_context(low.branch(each.when))
                self._blocks(dict(zip(dims, chosen, strict=True)))

    def _bring(self, op: Op, plan: Tiled, how: Microkernel) -> None:
        """Emit the copy of the rows of A that the plan stages, once for all MMAs that read them."""
        low = self.low
        read = self.makers.get(plan.axes.factors(op)[0])
        if read is None or read.name != "read":
            if plan.walk is not None:
                raise ProgramError("a task stages rows of an argument; the operand A of this mma is computed", op.loc)
            return
        alike = next((x for x in self.registers if plan.axes.factors(op)[0] in x.operands), None)
        if alike is None:
            low.task.operands[read] = None if plan.walk is None else staged(low, plan, plan.walk, read, how)
        elif _staging(self.plans[alike], self.hows[alike]) != _staging(plan, how):
            raise ProgramError("two mma read the same rows, but their plans stage these in different ways", op.loc)

    def _rounds(self, dim: Expr) -> Iterator[Rounds]:
        """Yield the task's blocks of a dimension; a ragged last block of rows that are read in place is separate."""
        low, width = self.low, self.low.bound.blocks[dim]
        full, tail = divided(low.scope.part(dim)[1], width)
        if dim not in self.in_place:
            full, tail = pieces(low.scope.part(dim)[1], width), 0
        task, per, count = low.task.dealt.get(dim, (as_expr(0), full, 1))
        if full != 0:
            end = per * (task + 1)
            yield Rounds(per * task, end if full % per == 0 else minimum(end, full))
        if tail != 0:
            yield Rounds(full, full + 1, ONE if count == 1 else task >= count - 1, past=True)

    def _can_be_late(self) -> bool:
        """True if results may be stored beside the next block: they read no memory that this block writes anew, such as
        the sums that another MMA needed.
        """
        if not self.between:
            return True
        ended = [op for op in self.low.program.body.ops if op not in self.summing]
        makers = {self.makers[v] for op in ended for v in op.operands if v in self.makers} & self.summing
        final = set(self.plans) - self.between
        return not any(needed(op, self.makers) & self.between for op in makers - final)

    def _blocks(self, rounds: dict[Expr, Rounds]) -> None:
        """Emit these blocks: their MMAs, then the epilogue, perhaps one iteration later."""
        low, w = self.low, self.low.writer
        ranges: list[Range] = []
        before = dict(low.scope.parts)
        for dim, r in rounds.items():
            number = as_expr(r.first)
            if r.end - number is not ONE:
                ranges.append(Range.of(w.fresh(f"b_{dim}"), r.first, r.end))
                number = ranges[-1].symbol
            width = low.bound.blocks[dim]
            low.scope.parts[dim] = low.scope.part(dim)[0] + width * number, width
        low.task.overhanging = {d for d, r in rounds.items() if r.past}
        late = low.plan.overlap == "delayed store" and bool(ranges) and not low.task.overhanging
        late = late and self._can_be_late()
        low.task.registers |= {op: replace(registers, late=late) for op, registers in self.registers.items()}
        body, end = Block(()), Block(())
        ops = low.program.body.ops
        with low.nested():
            with w.inside(body):
                low.block(Block((), [op for op in ops if op in self.summing]))
            with w.inside(end):
                for registers in self.registers.values():
                    if not registers.at_once:
                        w.emit("copy", (registers.sums, registers.scratch))
                low.block(Block((), [op for op in ops if op not in self.summing]))
        low.scope.parts, low.task.overhanging = before, set()
        if late:
            w.emit("for", ranges=tuple(ranges), overlap="defer", blocks=(body, end))
        elif ranges:
            w.emit("for", ranges=tuple(ranges), blocks=(Block((), [*body.ops, *end.ops]),))
        else:
            w.blocks[-1].ops += [*body.ops, *end.ops]


def _microkernel(low: Lowering, op: Op, plan: Tiled) -> Microkernel:
    """Return the microkernel of an MMA, whose accumulator tile must be the task's block of C."""
    how, blocks = low.bound.products.get(op), low.bound.blocks
    block = blocks.get(plan.axes.m), blocks.get(plan.axes.n)
    if how is None or (how.rows, how.columns) != block:
        tile = "none" if how is None else f"{how.rows} x {how.columns}"
        raise ProgramError(
            f"mma in tile registers of a task: its accumulator tile is {tile}, the task's blocks are "
            f"{block[0]} x {block[1]}; give both the same size",
            op.loc,
        )
    return how


def _staging(plan: Tiled, how: Microkernel) -> tuple[object, ...]:
    """Return what decides how rows of A lie in memory after they were staged."""
    return plan.walk, dict(plan.shifts), plan.axes.m, plan.axes.k, how.rows, how.atom.shape[2]
