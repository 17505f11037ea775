"""One product in tile registers: the blocks of sums that a task goes over, and their results, stored a round later.

    %sums = alloc register f32 (32, 32) as ATOM.c
    for b_f in 0..2, b_m in 0..50 overlap defer {
      fill %sums 0
      for k_r in 0..3 unroll { ... mma %sums += %left * %right using ATOM }
    } finally {
      copy %sums -> %scratch
      map %y_view = bf16(%scratch)
    }

A is staged first, or read where it lies; then the last block of rows, where they end within it, is written apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product

from tilewright.algebra.expr import ONE, Expr, as_expr
from tilewright.algebra.expr_rules import minimum
from tilewright.ir.attrs import Range
from tilewright.ir.core import Block
from tilewright.passes.tile.lowering import Lowering
from tilewright.passes.tile.product.lines import staged
from tilewright.passes.tile.product.registers import TaskRegisters, operand_registers
from tilewright.passes.tile.rewriting import needed
from tilewright.passes.tile.values import divided, pieces
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
    """A task with one MMA in tile registers: it stages A, goes over blocks of the accumulator, and stores their
    results.
    """

    def __init__(self, low: Lowering, plan: Tiled):
        ((product, kernel),) = low.cuts.products.items()
        assert kernel is not None
        self.low, self.plan, self.how = low, plan, kernel
        maker = {r: op for op in low.program.body.ops for r in op.results}
        self.product, self.read_of_a = product, maker[product.operands[0]]
        self.summing = needed(product, maker)
        """The operations that a block's sums take; all others are done with what has become of them."""
        self.one_by_one = [d for d in low.cuts.blocks if d in low.cuts.widths and d not in (plan.axes.m, plan.axes.n)]
        """Dimensions of a batch of which a task has several: what follows is done for each."""

    def write(self) -> None:
        """Emit the whole task."""
        low, axes = self.low, self.plan.axes
        walk = low.cuts.walk
        lines = None if walk is None else staged(low, self.plan, walk, self.read_of_a, self.how)
        low.task.operands[self.read_of_a] = lines
        atom, block = self.how.atom, (self.how.rows, self.how.columns)
        scratch = low.writer.alloc(atom.c.dtype, block, "scratch")
        sums = low.writer.registers(atom.c.dtype, block, f"{atom.name}.c", "sums")
        operands = operand_registers(low.writer, self.how, *block, self.plan.streams)
        self.registers = TaskRegisters(axes, sums, operands, scratch, late=False)
        low.storage.sums[scratch] = low.storage.sums[sums] = axes.m, axes.n
        dims = [d for d in low.cuts.blocks if d not in self.one_by_one]
        for chosen in product(*(list(self._rounds(d)) for d in dims)):
            with ExitStack() as branches:
                for each in chosen:
                    branches.enter_context(low.branch(each.when))
                self._blocks(dict(zip(dims, chosen, strict=True)))

    def _rounds(self, dim: Expr) -> Iterator[Rounds]:
        """Yield the task's blocks of a dimension; a ragged last block of rows that are read in place is separate."""
        low, width = self.low, self.low.cuts.blocks[dim]
        full, tail = divided(low.scope.part(dim)[1], width)
        if dim is not self.plan.axes.m or low.cuts.walk is not None:
            full, tail = pieces(low.scope.part(dim)[1], width), 0
        task, per, count = low.task.dealt.get(dim, (as_expr(0), full, 1))
        if full != 0:
            end = per * (task + 1)
            yield Rounds(per * task, end if full % per == 0 else minimum(end, full))
        if tail != 0:
            yield Rounds(full, full + 1, ONE if count == 1 else task >= count - 1, past=True)

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
            width = low.cuts.blocks[dim]
            low.scope.parts[dim] = low.scope.part(dim)[0] + width * number, width
        low.task.overhanging = {d for d, r in rounds.items() if r.past}
        late = low.cuts.overlap == "delayed store" and bool(ranges) and not low.task.overhanging
        low.task.registers[self.product] = replace(self.registers, late=late)
        body, end = Block(()), Block(())
        ops = low.program.body.ops
        with low.nested():
            with w.inside(body):
                low.block(Block((), [op for op in ops if op in self.summing]))
            with w.inside(end):
                w.emit("copy", (self.registers.sums, self.registers.scratch))
                low.block(Block((), [op for op in ops if op not in self.summing]))
        low.scope.parts, low.task.overhanging = before, set()
        if late:
            w.emit("for", ranges=tuple(ranges), overlap="defer", blocks=(body, end))
        elif ranges:
            w.emit("for", ranges=tuple(ranges), blocks=(Block((), [*body.ops, *end.ops]),))
        else:
            w.blocks[-1].ops += [*body.ops, *end.ops]
