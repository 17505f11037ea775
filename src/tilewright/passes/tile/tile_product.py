"""The products of one block of sums in tile registers, with the loops over K that a plan says."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilewright.algebra.expr import Expr, as_expr
from tilewright.errors import ProgramError
from tilewright.ir.core import Value
from tilewright.passes.tile.factors import Factor
from tilewright.passes.tile.products import BlockedProduct, InPlace, Span
from tilewright.passes.tile.values import Parts, Tile, only_load, pieces
from tilewright.plan.microkernel import Axes, Microkernel
from tilewright.plan.tiled import Depth, Tiled

if TYPE_CHECKING:
    from tilewright.passes.tile.general import Lowering


STREAM = as_expr(1)


@dataclass(frozen=True)
class SumRegisters:
    """What all blocks of a task share: tile registers of sums and operands, and memory where sums are looked at."""

    scratch: Value
    sums: Value
    left: Value
    right: Value

    @classmethod
    def of(cls, low: Lowering, how: Microkernel) -> SumRegisters:
        """Those of a microkernel."""
        atom, depth, block = how.atom, how.atom.shape[2], (how.rows, how.columns)
        scratch = low.w.alloc(atom.c.dtype, block, "scratch")
        sums = low.w.registers(atom.c.dtype, block, f"{atom.name}.c", "sums")
        left = low.w.registers(atom.a.dtype, (how.rows, depth), f"{atom.name}.a", "left")
        return cls(scratch, sums, left, low.w.registers(atom.b.dtype, (depth, how.columns), f"{atom.name}.b", "right"))


class TileProduct(BlockedProduct):
    """The product of one block; its operands go to tile registers step by step."""

    def __init__(
        self,
        low: Lowering,
        plan: Tiled,
        how: Microkernel,
        held: SumRegisters,
        parts: Parts,
        c: tuple[Expr, ...],
        *,
        late: bool,
    ):
        taps = tuple(dict.fromkeys(s.dim for s in plan.steps if s.dim is not plan.k))
        around = tuple(d for d in c if d not in (plan.m, plan.n))
        super().__init__(low, how, Axes(plan.m, plan.n, plan.k, around, taps, False), parts, held.sums, c, zero=True)
        self.plan, self.held, self.late = plan, held, late

    def left(self, a: Tile) -> Factor:
        """A where it lies, also where that is what was staged; step by step, where a block goes past its end."""
        found = only_load(a.formula)
        if found is None:
            raise ProgramError("products in tile registers read A where it lies")
        if not any(self.low.loose.get(found, ())):
            return InPlace(self, found)
        room = self.w.alloc(self.how.atom.a.dtype, (self.how.rows, self.how.atom.shape[2]), "step")
        return Stepped(self, found, room)

    def summed(
        self, left: Factor, right: Factor, down: Span, across: Span, row: Expr, column: Expr, sums: Value
    ) -> None:
        """All that is summed. Where the outermost loop goes over K, its first round is written out if the results of
        the block before are stored meanwhile: they go there."""
        self.w.emit("fill", (sums,), value=0)
        depth = self.how.atom.shape[2]
        chunks, steps = int(pieces(self.low.number(self.axes.k), depth)), self.plan.steps
        first, *rest = steps
        if isinstance(left, Stepped):  # one block of many: its loops stay loops
            self._steps(left, right, _as_loops(steps), as_expr(0), chunks)
        elif first.dim is self.axes.k and any(s.dim is self.axes.k for s in rest):
            per = first.size // depth
            if self.late:
                self._steps(left, right, tuple(rest), as_expr(0), per)
            if chunks // per > int(self.late):
                with self.w.loop("k", chunks // per, int(self.late)) as k:
                    self._steps(left, right, tuple(rest), per * k, per)
        else:
            self._steps(left, right, steps, as_expr(0), chunks)

    def _steps(self, left: Factor, right: Factor, steps: tuple[Depth, ...], base: Expr, chunks: int) -> None:
        """Loops over taps and so many chunks of K from one on; in them both operands, and their product."""
        w, how, depth = self.w, self.how, self.how.atom.shape[2]
        chunk = base
        with ExitStack() as loops:
            for s in steps:
                if s.dim is self.axes.k:
                    chunk = base + loops.enter_context(w.loop("e", chunks, unroll=s.unrolled))
                else:
                    count = self.low.number(s.dim)
                    self.at[s.dim] = loops.enter_context(w.loop(f"k_{s.dim}", count, unroll=s.unrolled))
            rows = left.rows(how.rows, depth, as_expr(0), depth * chunk)
            w.emit("copy", (rows, self.held.left), stream=STREAM if self.plan.streams[0] else None)
            columns = right.columns(depth, how.columns, depth * chunk, as_expr(0))
            w.emit("copy", (columns, self.held.right), stream=STREAM if self.plan.streams[1] else None)
            w.emit("mma", (self.held.sums, self.held.left, self.held.right), atom=how.atom.name)


def _as_loops(steps: tuple[Depth, ...]) -> tuple[Depth, ...]:
    """The same steps, one loop for each dimension, none unrolled."""
    return tuple(replace(s, unrolled=False) for s in {s.dim: s for s in steps}.values())


@dataclass
class Stepped(InPlace):
    """A where it lies, of a block that goes past its end: each step is copied first, with zeros there."""

    room: Value

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """A's block, copied."""
        self.product.w.emit("copy", (super().rows(rows, deep, row, k, last), self.room), otherwise=0)
        return self.room
