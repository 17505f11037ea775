"""Tasks with MMAs in tile registers: loops over accumulator tiles, whose results may be stored one iteration later.

    %sums = alloc register f32 (32, 32) as ATOM.c
    for b_f in 0..2, b_m in 0..50 overlap defer {
      fill %sums 0
      for k_r in 0..3 unroll { ... mma %sums += %left * %right using ATOM }
    } finally {
      copy %sums -> %scratch
      map %y_view = bf16(%scratch)
    }

A is staged first, or read in place; in place, a ragged last block of rows is emitted separately. A program may have
several such MMAs: each has an accumulator of its own, and those that read the same rows of A share them.
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
from tilewright.lower.block.lazy_tiles import divided, pieces
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.mma.registers import OperandRegisters, TaskRegisters, operand_registers
from tilewright.lower.block.mma.staged_rows import staged
from tilewright.plan.microkernel import Microkernel
from tilewright.plan.tile_register_tasks import TileRegisterMma
from tilewright.rewrite.rewriter import needed


@dataclass(frozen=True)
class BlockRange:
    """Blocks along a dimension, from number `first` up to, and without, `end`, emitted under the condition `when`.

    `past` is True for a last block that goes past the end of the dimension.
    """

    first: Expr | int
    end: Expr | int
    when: Expr = ONE
    past: bool = False


class TiledTask:
    """Emits a task with MMAs in tile registers: it stages rows of A, loops over blocks of C, and stores their
    results.
    """

    def __init__(self, low: Lowering):
        self.low, self.plans = low, low.bound.tiled
        self.microkernels = {op: _microkernel(low, op, plan) for op, plan in self.plans.items()}
        self.makers = {r: op for op in low.program.body.ops for r in op.results}
        self.summing = {x for op in self.plans for x in needed(op, self.makers)}
        """The operations that compute the accumulators of a block; all others are its epilogue."""
        self.between = {op for op in self.plans if any(op in needed(x, self.makers) for x in self.plans if x is not op)}
        """MMAs whose result another MMA of the task needs: it is copied to memory at once."""
        axes = {d for plan in self.plans.values() for d in (plan.axes.m, plan.axes.n)}
        self.one_by_one = [d for d in low.bound.blocks if d in low.bound.widths and d not in axes]
        """Batch dimensions of which a task has several indices: the task's body is emitted in a loop over them."""
        self.in_place = {plan.axes.m for plan in self.plans.values()} - set(low.task.walks)
        """The M dimensions of MMAs whose operand A is read in place, not staged."""
        self.registers: dict[Op, TaskRegisters] = {}

    def write(self) -> None:
        """Emit the whole task: allocations of registers, copies of rows of A, and loops over blocks of C, each with its
        epilogue.

        The epilogue of a block is the operations that use its accumulators. A ragged last block, if A is read in place,
        has code of its own. `self.registers` is set to {MMA: TaskRegisters}.
        """
        self.registers = {}
        low, operand_registers_of = self.low, dict[tuple[Microkernel, tuple[bool, bool]], OperandRegisters]()
        for op, plan in self.plans.items():
            kernel = self.microkernels[op]
            self._stage_rows(op, plan, kernel)
            atom, block, axes = kernel.atom, (kernel.rows, kernel.columns), plan.axes
            scratch = low.writer.alloc(atom.c.dtype, block, "scratch")
            sums = low.writer.registers(atom.c.dtype, block, f"{atom.name}.c", "sums")
            if (kernel, plan.streams) not in operand_registers_of:  # MMAs run one after another, and share them
                operand_registers_of[kernel, plan.streams] = operand_registers(low.writer, kernel, *block, plan.streams)
            operands = operand_registers_of[kernel, plan.streams]
            self.registers[op] = TaskRegisters(axes, sums, operands, scratch, False, op in self.between)
            low.storage.sums[scratch] = low.storage.sums[sums] = axes.m, axes.n
        dims = [d for d in low.bound.blocks if d not in self.one_by_one]
        for block_ranges in product(*(list(self._block_ranges(d)) for d in dims)):
            with ExitStack() as branches:
                for each in block_ranges:
                    branches.enter_context(low.branch(each.when))
                self._blocks(dict(zip(dims, block_ranges, strict=True)))

    def _stage_rows(self, op: Op, plan: TileRegisterMma, kernel: Microkernel) -> None:
        """Emit the copy of the rows of A of the MMA `op` if its `plan` stages them (copies them once for all blocks).

        `low.task.operands[read of A]` is set to the Load of an element of the copy, or to None if A is read in place.
        MMAs that read the same rows share the copy. `kernel` has the atom and the accumulator tile. If A is computed,
        nothing is emitted; raise a ProgramError if the plan stages it. Raise a ProgramError too if MMAs that share rows
        stage them differently.
        """
        low = self.low
        read = self.makers.get(plan.axes.operands(op)[0])
        if read is None or read.name != "read":
            if plan.walk is not None:
                raise ProgramError("a task stages rows of an argument; the operand A of this mma is computed", op.loc)
            return
        sharing_product = next((x for x in self.registers if plan.axes.operands(op)[0] in x.operands), None)
        if sharing_product is None:
            low.task.operands[read] = None if plan.walk is None else staged(low, plan, plan.walk, read, kernel)
        elif _staging(self.plans[sharing_product], self.microkernels[sharing_product]) != _staging(plan, kernel):
            raise ProgramError("two mma read the same rows, but their plans stage these in different ways", op.loc)

    def _block_ranges(self, dim: Expr) -> Iterator[BlockRange]:
        """Yield the ranges of the task's blocks along `dim` (as BlockRange): the full blocks, then a ragged last one.

        There is no ragged one if A is not read in place along `dim`: the last block then counts as full. If blocks are
        distributed to several tasks, the range is that of the current task.
        """
        low, width = self.low, self.low.bound.blocks[dim]
        full, tail = divided(low.scope.part(dim)[1], width)
        if dim not in self.in_place:
            full, tail = pieces(low.scope.part(dim)[1], width), 0
        task, blocks_per_task, count = low.task.task_splits.get(dim, (as_expr(0), full, 1))
        if full != 0:
            end = blocks_per_task * (task + 1)
            yield BlockRange(blocks_per_task * task, end if full % blocks_per_task == 0 else minimum(end, full))
        if tail != 0:
            yield BlockRange(full, full + 1, ONE if count == 1 else task >= count - 1, past=True)

    def _can_be_late(self) -> bool:
        """True if the results of a block may be stored during the next block.

        False if the epilogue (the operations that do not compute accumulators) depends on the result of an MMA that
        another MMA of the task needs, other than through that other MMA: the next block overwrites that result.
        """
        if not self.between:
            return True
        epilogue = [op for op in self.low.program.body.ops if op not in self.summing]
        makers_of_inputs = {self.makers[v] for op in epilogue for v in op.operands if v in self.makers} & self.summing
        final_products = set(self.plans) - self.between
        return not any(needed(op, self.makers) & self.between for op in makers_of_inputs - final_products)

    def _blocks(self, block_ranges: dict[Expr, BlockRange]) -> None:
        """Emit the loop over the blocks in `block_ranges`, {dimension: range of blocks}; the body is the MMAs of a
        block, then their epilogue. A single block has no loop.

        If the plan delays stores, the epilogue of a block runs during the next block, unless blocks are ragged, or
        `_can_be_late` is False.
        """
        low, w = self.low, self.low.writer
        ranges: list[Range] = []
        before = dict(low.scope.parts)
        for dim, blocks in block_ranges.items():
            number = as_expr(blocks.first)
            if blocks.end - number is not ONE:
                ranges.append(Range.of(w.fresh(f"b_{dim}"), blocks.first, blocks.end))
                number = ranges[-1].symbol
            width = low.bound.blocks[dim]
            low.scope.parts[dim] = low.scope.part(dim)[0] + width * number, width
        low.task.overhanging = {d for d, blocks in block_ranges.items() if blocks.past}
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


def _microkernel(low: Lowering, op: Op, plan: TileRegisterMma) -> Microkernel:
    """Return the Microkernel of the MMA `op`; raise a ProgramError unless its accumulator tile is as large as a block
    of the task.

    `plan` names M and N of the MMA.
    """
    kernel, blocks = low.bound.products.get(op), low.bound.blocks
    block = blocks.get(plan.axes.m), blocks.get(plan.axes.n)
    if kernel is None or (kernel.rows, kernel.columns) != block:
        tile = "none" if kernel is None else f"{kernel.rows} x {kernel.columns}"
        raise ProgramError(
            f"mma in tile registers of a task: its accumulator tile is {tile}, the task's blocks are "
            f"{block[0]} x {block[1]}; give both the same size",
            op.loc,
        )
    return kernel


def _staging(plan: TileRegisterMma, kernel: Microkernel) -> tuple[object, ...]:
    """Return a tuple that is equal for two MMAs if they can share the staged rows of A.

    Its items are the layout of image lines, the taps that slide along them, M, K, the rows of an accumulator tile, and
    the atom's K.
    """
    return plan.walk, dict(plan.shifts), plan.axes.m, plan.axes.k, kernel.rows, kernel.atom.shape[2]
