"""Products around a halo tile: what all offsets of a sliding access read of A is brought once for a step of K.

    for e in 0..8 {                                    steps of K
      copy %x_view -> %x_part else 0                   the image of the task's rows, with everything around it
      for k_r in 0..3 {
        copy %w_view -> %slab else 0                   B at these offsets
        for k_s in 0..3 unroll {
          mma %sums += %x_part_view * %slab_view       A where it lies, from another place on
        }
      }
    }

All of B may be brought before the first task instead, where it fits. Rows may run on from line to line of the tile,
with those between them: each tap then reads it some rows further on. Rows that MMAs read behind its last line are
filled with zeros before the first task.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import product as every
from math import prod

from tilewright.algebra import ComposedLayout, Swizzle
from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ProgramError
from tilewright.ir.core import Value
from tilewright.machine import MemoryOperand, RegisterOperand
from tilewright.passes.tile.halo import Box, image_of
from tilewright.passes.tile.product.product import AtomProduct
from tilewright.passes.tile.values import Load, Tile, only_load, pieces
from tilewright.passes.tile.writer import split
from tilewright.plan.halo_windows import image_rows

UNROLLED = 36
"""Products of a group's atoms that are written out, at most; of more only those along the last dimension."""


class AroundHalo:
    """An MMA around a halo tile: C += A * B, all of C in registers, A in a halo tile in shared memory."""

    def __init__(self, product: AtomProduct, a: Tile, b: Tile, offsets: int):
        self.p, self.w, self.offsets = product, product.w, offsets
        self.a, self.b = self._given(a, "A"), self._given(b, "B")
        self.deep = list(product.axes.deep)
        self.slab, self.walk = product.how.slab or 1, product.low.cuts.walk

    def _given(self, tile: Tile, which: str) -> Load:
        """Return the Load of an operand; raise a ProgramError if it is no argument."""
        source = only_load(tile.formula)
        if source is None or not source.is_given:
            raise ProgramError(f"{which} is no argument: a halo tile is copied from one")
        return source

    def write(self) -> None:
        """Emit the whole MMA: K steps, copies of the halo tile and of B, and the MMAs of all filter taps."""
        p = self.p
        if p.total not in p.low.storage.sums:
            raise ProgramError("the sums of a task do not stay in registers")
        stays = self._copy_all_of_b() if self.offsets == 0 else None
        streamed = self.deep if self.offsets == 1 else self.deep[:-1] if self.offsets else []
        several = p.how.blocks > 1
        with self.w.loop("e", pieces(p.width(p.axes.k), self.slab), unroll=several) as e, ExitStack() as loops:
            halo, box = self._halo(e)
            for d in streamed:
                p.at[d] = loops.enter_context(self.w.loop(f"k_{d}", p.width(d)))
            held = self._copy_taps_of_b(e) if stays is None else stays
            inside = [d for d in self.deep if d not in streamed]
            atoms = p.how.rows // p.how.atom.shape[0] // p.how.groups
            few = atoms * prod(int(p.width(d)) for d in inside) <= UNROLLED
            with ExitStack() as inner:
                for d in inside:
                    last = d is inside[-1]
                    p.at[d] = inner.enter_context(self.w.loop(f"k_{d}", p.width(d), unroll=few or last))
                self._multiply(e, halo, box, held, [] if stays is None else [e, *(p.at[d] for d in self.deep)])

    def _multiply(self, e: Expr, halo: Value, box: Box, b: Value, at: list[Expr]) -> None:
        """Emit the MMA at the current filter tap."""
        p = self.p
        i, c = self.w.axes((p.how.rows, self.slab))
        places = self._places(self.a, {p.axes.m: i, p.axes.k: self.slab * e + c})
        within = self._in_lines([x - first for x, first in zip(places, box.first, strict=True)])
        left = self.w.view(halo, (i, c), [(x, False) for x in within])
        c, j = self.w.axes((self.slab, p.how.columns))
        if self.offsets > 1:
            at = [p.at[self.deep[-1]]]
        right = self.w.view(b, (c, j), [*((x, False) for x in at), (j, False), (c, False)])
        p.multiply(p.total, left, right, e)

    def _places(self, source: Load, known: dict[Expr, Expr]) -> list[Expr]:
        """Return the coordinates at which an operand is read, with `known` indices and the current ones of other
        dimensions.
        """
        p = self.p
        at = {d: p.parts[d][0] for d in (*p.axes.around, p.axes.n, p.axes.m)}
        at |= {d: p.parts[d][0] + e for d, e in (*p.at.items(), *known.items()) if d is not None}
        images = Substitution({p.low.scope.coordinate(d): e for d, e in at.items()})
        return [images(e) for e in source.at]

    # -- copies -------------------------------------------------------------------------------------------

    def _halo(self, e: Expr) -> tuple[Value, Box]:
        """Emit the copy of the halo tile of a K step; return (the tile, its Box in the argument)."""
        p = self.p
        rows = [p.how.rows] if self.walk is None else [p.how.rows // self._each, self.walk.lines, self.walk.length]
        over = self.w.axes([*rows, *(int(p.width(d)) for d in self.deep), self.slab])
        c = over[-1]
        i = over[0] if self.walk is None else self._each * over[0] + self.walk.pitch * over[1] + over[2]
        known: dict[Expr, Expr] = {p.axes.m: i, p.axes.k: self.slab * e + c}
        places = self._places(self.a, known | dict(zip(self.deep, over[len(rows) : -1], strict=True)))
        axes, digits = split(over, places)
        box = image_of([digits(x) for x in places], axes)
        if box is None or prod(box.widths) >= prod(int(p.width(d)) for d in self.deep) * p.how.rows * self.slab:
            raise ProgramError("what a task reads of A is no box, or none smaller than what it reads")
        if self.walk is not None:
            return self._halo_of_lines(box, e), box
        held = self.w.alloc(p.how.atom.a.dtype, box.widths, "halo", self._swizzle(p.how.atom.a))
        over = self.w.axes(box.widths)
        self._copy(self.a, over, [first + x for first, x in zip(box.first, over, strict=True)], e, held, "halo")
        return held, box

    @property
    def _each(self) -> int:
        """The number of rows of one image whose rows run on from line to line."""
        assert self.walk is not None
        return image_rows(self.walk, self.p.how)

    def _in_lines(self, at: list[Expr]) -> list[Expr]:
        """Return coordinates in the halo tile, with lines one behind the other if rows run on."""
        if self.walk is None:
            return at
        *outer, line, place, c = at
        return [*outer, self.walk.pitch * line + place, c]

    def _halo_of_lines(self, box: Box, e: Expr) -> Value:
        """Emit the copy of a halo tile whose lines lie one behind the other, and return it.

        Each image is copied separately; what MMAs read behind its last line is zero.
        """
        p, walk, swizzle = self.p, self.walk, self._swizzle(self.p.how.atom.a)
        assert walk is not None
        *outer, lines, pitch, slab = box.widths
        if pitch != walk.pitch:
            raise ProgramError(f"lines of the halo tile are {pitch} long, not {walk.pitch}")
        rows = self._each + (lines - walk.lines) * pitch + pitch - walk.length
        size = rows * slab if swizzle is None else -(-rows * slab // swizzle.size()) * swizzle.size()
        strides = [size * prod(outer[n + 1 :]) for n in range(len(outer))]
        with p.low.before_tasks():
            held = self.w.alloc(p.how.atom.a.dtype, (*outer, rows, slab), "halo", swizzle, (*strides, slab, 1))
            if rows > lines * pitch:
                *at, i, c = self.w.axes((*outer, rows - lines * pitch, slab))
                slack = self.w.view(held, (*at, i, c), [(x, False) for x in (*at, lines * pitch + i, c)])
                self.w.emit("fill", (slack,), value=0)
        with ExitStack() as loops:
            image = [loops.enter_context(self.w.loop("g", n, unroll=True)) for n in outer]
            over = self.w.axes((lines, pitch, slab))
            places = [first + x for first, x in zip(box.first, (*image, *over), strict=True)]
            target = self.w.view(held, over, [(x, False) for x in self._in_lines([*image, *over])])
            self._copy(self.a, over, places, e, target, "halo")
        return held

    def _copy_taps_of_b(self, e: Expr) -> Value:
        """Emit the copy of B at the current filter tap, or at all taps along the last dimension; return the copy."""
        p, dtype = self.p, self.p.how.atom.b.dtype
        last = self.deep[-1:] if self.offsets > 1 else []
        sizes = [*(int(p.width(d)) for d in last), p.how.columns, self.slab]
        held = self.w.alloc(dtype, sizes, "slab", self._swizzle(p.how.atom.b))
        over = self.w.axes(sizes)
        self._copy(self.b, over, self._places(self.b, self._of_b(last, over, e)), e, held, "ring")
        return held

    def _copy_all_of_b(self) -> Value:
        """Emit the copy of all of B before the first task; return the copy."""
        p, dtype = self.p, self.p.how.atom.b.dtype
        if any(p.parts[d][0].symbols for d in (p.axes.n, *p.axes.around) if d in self.b_dims):
            raise ProgramError("which part of B a task reads depends on the task")
        counts = [int(pieces(p.width(p.axes.k), self.slab)), *(int(p.width(d)) for d in self.deep)]
        with p.low.before_tasks():
            held = self.w.alloc(dtype, [*counts, p.how.columns, self.slab], "panel", self._swizzle(p.how.atom.b))
            last = self.deep[-1:]
            for e, *outer in every(*map(range, counts[:-1])):
                over = self.w.axes([counts[-1], p.how.columns, self.slab])
                for d, n in zip(self.deep, outer, strict=False):
                    p.at[d] = as_expr(n)
                places = self._places(self.b, self._of_b(last, over, as_expr(e)))
                at = [(as_expr(n), False) for n in (e, *outer)] + [(s, False) for s in over]
                self._copy(self.b, over, places, as_expr(e), self.w.view(held, over, at), "start")
        return held

    @property
    def b_dims(self) -> set[Expr]:
        """The dimensions among N and the batch that B depends on."""
        low, used = self.p.low, {s for e in self.b.at for s in e.symbols}
        return {d for d in (self.p.axes.n, *self.p.axes.around) if low.scope.coordinate(d) in used}

    def _of_b(self, last: list[Expr], over: tuple[Symbol, ...], e: Expr) -> dict[Expr, Expr]:
        """Return {dimension of B: index} of a K step, from the axes `over`: filter taps `last`, then N and K."""
        *offset, j, c = over
        known: dict[Expr, Expr] = {self.p.axes.n: j, self.p.axes.k: self.slab * e + c}
        return known | dict(zip(last, offset, strict=True))

    def _copy(
        self, source: Load, over: tuple[Symbol, ...], places: list[Expr], e: Expr, target: Value, ring: str
    ) -> None:
        """Emit the copy of a box of an argument at a K step to shared memory, with zeros out of bounds and past the end
        of K.

        K goes along the last axis of `over`; `ring` says which channel the copy belongs to.
        """
        *others, c = over
        if self.p.ends_in_zeros(source):
            view = self._view(source, over, places)
        else:
            *same, k = whole = self.w.axes([*(int(x.hi) + 1 for x in others), int(self.p.width(self.p.axes.k))])
            images = Substitution({**dict(zip(others, same, strict=True)), c: k - self.slab * e})
            part = self._view(source, whole, [images(x) for x in places])
            view = self.w.view(part, over, [*((x, False) for x in others), (self.slab * e + c, True)])
        self.p.low.storage.brought[self.w.emit("copy", (view, target), otherwise=0)] = ring

    def _view(self, source: Load, over: tuple[Symbol, ...], places: list[Expr]) -> Value:
        """Return a view of an argument, with coordinates that may be out of bounds marked."""
        shape = source.tensor.type.shape
        marks = [(x, not self.p.low.scope.is_inside(x, n)) for x, n in zip(places, shape, strict=True)]
        return self.w.view(source.tensor, over, marks)

    def _swizzle(self, operand: MemoryOperand | RegisterOperand) -> Swizzle | None:
        """Return the swizzle of an operand in shared memory; None if it has none."""
        assert isinstance(operand, MemoryOperand)
        return operand.layout.outer if isinstance(operand.layout, ComposedLayout) else None
