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
from tilewright.errors import ProgramError
from tilewright.ir.attrs import Range
from tilewright.ir.core import Block, Op, Value
from tilewright.passes.tile.accesses import access_of, loose
from tilewright.passes.tile.lowering import Lowering
from tilewright.passes.tile.product.atoms import BlockedProduct, InPlace, Span
from tilewright.passes.tile.product.lines import staged
from tilewright.passes.tile.product.source import Factor
from tilewright.passes.tile.rewriting import needed
from tilewright.passes.tile.values import Load, Parts, Tile, divided, load, only_load, pieces
from tilewright.plan.tiled import Depth, Tiled

STREAM = as_expr(1)


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
        self.read_of_a = maker[product.operands[0]]
        self.summing = needed(product, maker)
        """The operations that a block's sums take; all others are done with what has become of them."""
        self.lines: Load | None = None
        """The Load of an element of A, if A was staged."""
        self.one_by_one = [d for d in low.cuts.blocks if d in low.cuts.widths and d not in (plan.axes.m, plan.axes.n)]
        """Dimensions of a batch of which a task has several: what follows is done for each."""
        self.late = False
        """True if the results of the current blocks are stored an iteration later."""

    def write(self) -> None:
        """Emit the whole task."""
        low, axes = self.low, self.plan.axes
        if low.cuts.walk is not None:
            self.lines = staged(low, self.plan, low.cuts.walk, self.read_of_a, self.how)
        atom, block = self.how.atom, (self.how.rows, self.how.columns)
        self.scratch = low.writer.alloc(atom.c.dtype, block, "scratch")
        self.sums = low.writer.registers(atom.c.dtype, block, f"{atom.name}.c", "sums")
        self.left = low.writer.registers(atom.a.dtype, (self.how.rows, atom.shape[2]), f"{atom.name}.a", "left")
        self.right = low.writer.registers(atom.b.dtype, (atom.shape[2], self.how.columns), f"{atom.name}.b", "right")
        assert axes.m is not None
        low.storage.sums[self.scratch] = low.storage.sums[self.sums] = axes.m, axes.n
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
        self.late = low.cuts.overlap == "delayed store" and bool(ranges) and not low.task.overhanging
        body, end = Block(()), Block(())
        ops = low.program.body.ops
        with low.nested():
            with w.inside(body):
                low.block(Block((), [op for op in ops if op in self.summing]))
            with w.inside(end):
                w.emit("copy", (self.sums, self.scratch))
                low.block(Block((), [op for op in ops if op not in self.summing]))
        low.scope.parts, low.task.overhanging = before, set()
        if self.late:
            w.emit("for", ranges=tuple(ranges), overlap="defer", blocks=(body, end))
        elif ranges:
            w.emit("for", ranges=tuple(ranges), blocks=(Block((), [*body.ops, *end.ops]),))
        else:
            w.blocks[-1].ops += [*body.ops, *end.ops]

    def read(self, op: Op) -> Tile | None:
        """Return operand A, in place or staged; None for any other read."""
        if op is not self.read_of_a:
            return None
        low, kind = self.low, op.results[0].type
        parts = {d: low.scope.part(d) for d in kind.dims}
        source = self.lines
        if source is None:
            access = access_of(low, op, op.operands[0], kind.dims, ())
            source = Load(access.tensor, access.at)
            low.storage.loose[source] = loose(low.scope, access, low.storage.axes(kind.dims, parts)[1])
        return Tile(kind.dtype, kind.dims, parts, load(source.tensor, *source.at))

    def multiply(self, a: Tile, b: Tile, c: tuple[Expr, ...], parts: Parts) -> Value:
        """Emit the MMA of a block; return the tensor in which the epilogue finds the accumulator."""
        TileProduct(self, parts, c).write(a, b)
        return self.scratch


# -- the products of a block ------------------------------------------------------------------------------


class TileProduct(BlockedProduct):
    """The MMA of one block, whose operands go to tile registers step by step."""

    def __init__(self, task: TiledTask, parts: Parts, c: tuple[Expr, ...]):
        super().__init__(task.low, task.how, task.plan.axes, parts, task.sums, c, zero=True)
        self.task = task

    def left(self, a: Tile) -> Factor:
        """Return operand A in place, or staged; copied step by step if the block goes past the end."""
        source = only_load(a.formula)
        if source is None:
            raise ProgramError("products in tile registers read A where it lies")
        if not any(self.low.storage.loose.get(source, ())):
            return InPlace(self, source)
        room = self.w.alloc(self.how.atom.a.dtype, (self.how.rows, self.how.atom.shape[2]), "step")
        return Stepped(self, source, room)

    def summed(
        self, left: Factor, right: Factor, down: Span, across: Span, row: Expr, column: Expr, sums: Value
    ) -> None:
        """Emit all steps of the sum; the outermost iteration over K is peeled if the previous block is stored
        meanwhile.
        """
        self.w.emit("fill", (sums,), value=0)
        depth = self.how.atom.shape[2]
        chunks, steps = int(pieces(self.low.scope.number(self.axes.k), depth)), self.low.cuts.depth
        first, *rest = steps
        if isinstance(left, Stepped):  # one block of many: its loops stay loops
            self._steps(left, right, _as_loops(steps), as_expr(0), chunks)
        elif first.dim is self.axes.k and any(s.dim is self.axes.k for s in rest):
            per = first.size // depth
            if self.task.late:
                self._steps(left, right, tuple(rest), as_expr(0), per)
            if chunks // per > int(self.task.late):
                with self.w.loop("k", chunks // per, int(self.task.late)) as k:
                    self._steps(left, right, tuple(rest), per * k, per)
        else:
            self._steps(left, right, steps, as_expr(0), chunks)

    def _steps(self, left: Factor, right: Factor, steps: tuple[Depth, ...], base: Expr, chunks: int) -> None:
        """Emit loops over filter taps and `chunks` chunks of K from `base` on; their body loads both operands and
        multiplies.
        """
        w, kernel, depth, task = self.w, self.how, self.how.atom.shape[2], self.task
        chunk = base
        with ExitStack() as loops:
            for s in steps:
                if s.dim is self.axes.k:
                    chunk = base + loops.enter_context(w.loop("e", chunks, unroll=s.unrolled))
                else:
                    count = self.low.scope.number(s.dim)
                    self.at[s.dim] = loops.enter_context(w.loop(f"k_{s.dim}", count, unroll=s.unrolled))
            rows = left.rows(kernel.rows, depth, as_expr(0), depth * chunk)
            w.emit("copy", (rows, task.left), stream=STREAM if task.plan.streams[0] else None)
            columns = right.columns(depth, kernel.columns, depth * chunk, as_expr(0))
            w.emit("copy", (columns, task.right), stream=STREAM if task.plan.streams[1] else None)
            w.emit("mma", (task.sums, task.left, task.right), atom=kernel.atom.name)


def _as_loops(steps: tuple[Depth, ...]) -> tuple[Depth, ...]:
    """Return the same steps, one loop for each dimension, none unrolled."""
    return tuple(replace(s, unrolled=False) for s in {s.dim: s for s in steps}.values())


@dataclass
class Stepped(InPlace):
    """Operand A in place, for a block that goes past its end: each step is copied first, with zeros past the end."""

    room: Value

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """Emit the copy of A's block, and return the copy."""
        self.product.w.emit("copy", (super().rows(rows, deep, row, k, last), self.room), otherwise=0)
        return self.room
