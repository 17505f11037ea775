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
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from tilewright.algebra.expr import ONE, Expr, as_expr
from tilewright.algebra.expr_rules import minimum
from tilewright.ir.attrs import Range
from tilewright.ir.core import Block, Op, Value
from tilewright.passes.tile.accesses import access_of, loose
from tilewright.passes.tile.rewriting import needed
from tilewright.passes.tile.staging import staged
from tilewright.passes.tile.tile_product import SumRegisters, TileProduct
from tilewright.passes.tile.values import Load, Parts, Tile, divided, load, pieces
from tilewright.plan.microkernel import Microkernel
from tilewright.plan.tiled import Tiled

if TYPE_CHECKING:
    from tilewright.passes.tile.general import Lowering


@dataclass(frozen=True)
class Rounds:
    """Blocks along a dimension, by number: from `first` up to `end`, where a condition holds.

    `past`: it is the last one, of which some lies behind the end of the dimension.
    """

    first: Expr | int
    end: Expr | int
    when: Expr = ONE
    past: bool = False


class TiledTask:
    """What a task does: it stages A, goes over its blocks of sums, and stores what they become."""

    def __init__(self, low: Lowering, plan: Tiled, how: Microkernel):
        self.low, self.plan, self.how = low, plan, how
        made = {r: op for op in low.program.body.ops for r in op.results}
        self.read_of_a = made[plan.product.operands[0]]
        self.summing = needed(plan.product, made)
        """The operations that a block's sums take; all others are done with what has become of them."""
        self.lines: Load | None = None
        """Where an element of A lies, if it was staged."""
        self.late = False
        """Whether the results of the current blocks are stored a round later."""

    def write(self) -> None:
        """All of it."""
        low, plan = self.low, self.plan
        if plan.walk is not None:
            self.lines = staged(low, plan, plan.walk, self.read_of_a, self.how)
        self.held = SumRegisters.of(low, self.how)
        low.sums[self.held.scratch] = low.sums[self.held.sums] = plan.m, plan.n
        dims = list(low.cuts.blocks)
        for chosen in product(*(list(self._rounds(d)) for d in dims)):
            with ExitStack() as branches:
                for each in chosen:
                    branches.enter_context(low.branch(each.when))
                self._blocks(dict(zip(dims, chosen, strict=True)))

    def _rounds(self, dim: Expr) -> Iterator[Rounds]:
        """The blocks that the task has of a dimension; those of rows that are read in place, and end within the last
        one, in two parts."""
        low, width = self.low, self.low.cuts.blocks[dim]
        full, tail = divided(low.part(dim)[1], width)
        if dim is not self.plan.m or self.plan.walk is not None:
            full, tail = pieces(low.part(dim)[1], width), 0
        task, per, count = low.tasks.dealt.get(dim, (as_expr(0), full, 1))
        if full != 0:
            end = per * (task + 1)
            yield Rounds(per * task, end if full % per == 0 else minimum(end, full))
        if tail != 0:
            yield Rounds(full, full + 1, ONE if count == 1 else task >= count - 1, past=True)

    def _blocks(self, rounds: dict[Expr, Rounds]) -> None:
        """These blocks: their sums, then what they become."""
        low, w = self.low, self.low.w
        ranges: list[Range] = []
        before = dict(low.parts)
        for dim, r in rounds.items():
            number = as_expr(r.first)
            if r.end - number is not ONE:
                ranges.append(Range.of(w.fresh(f"b_{dim}"), r.first, r.end))
                number = ranges[-1].symbol
            width = low.cuts.blocks[dim]
            low.parts[dim] = low.part(dim)[0] + width * number, width
        low.overhanging = {d for d, r in rounds.items() if r.past}
        self.late = self.plan.deferred and bool(ranges) and not low.overhanging
        body, end = Block(()), Block(())
        ops = low.program.body.ops
        with low.scope():
            with w.inside(body):
                low.block(Block((), [op for op in ops if op in self.summing]))
            with w.inside(end):
                w.emit("copy", (self.held.sums, self.held.scratch))
                low.block(Block((), [op for op in ops if op not in self.summing]))
        low.parts, low.overhanging = before, set()
        if self.late:
            w.emit("for", ranges=tuple(ranges), overlap="defer", blocks=(body, end))
        elif ranges:
            w.emit("for", ranges=tuple(ranges), blocks=(Block((), [*body.ops, *end.ops]),))
        else:
            w.blocks[-1].ops += [*body.ops, *end.ops]

    def read(self, op: Op) -> Tile | None:
        """A, where it lies or was staged; None of any other read."""
        if op is not self.read_of_a:
            return None
        low, kind = self.low, op.results[0].type
        parts = {d: low.part(d) for d in kind.dims}
        there = self.lines
        if there is None:
            access = access_of(low, op, op.operands[0], kind.dims, ())
            there, over = Load(access.tensor, access.at), low.w.axes([parts[d][1] for d in kind.dims])
            low.loose[there] = loose(low, access, low.images(kind.dims, parts, over))
        return Tile(kind.dtype, kind.dims, parts, load(there.tensor, *there.at))

    def multiply(self, a: Tile, b: Tile, c: tuple[Expr, ...], parts: Parts) -> Value:
        """The sums of a block; gives where the operations after it find them."""
        TileProduct(self.low, self.plan, self.how, self.held, parts, c, late=self.late).write(a, b)
        return self.held.scratch
