"""MMAs on a halo tile: the part of A that all taps of a sliding window read is copied to shared memory once per K step.

    for e in 0..8 {                                    K steps
      copy %x_view -> %x_part else 0                   the task's rows of A with all their neighbours
      for k_r in 0..3 {
        copy %w_view -> %slab else 0                   B at these taps
        for k_s in 0..3 unroll {
          mma %sums += %x_part_view * %slab_view       A in place, shifted by the tap
        }
      }
    }

All of B may be copied before the first task instead, if it fits. Rows may run on from line to line of the tile, with
the padding between; each tap then reads shifted rows. Rows that MMAs read behind its last line are filled with zeros
before the first task.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product as every
from math import prod

from tilewright.algebra import ComposedLayout, Swizzle
from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ProgramError
from tilewright.ir.core import Value
from tilewright.lower.block.halo import Box, image_of
from tilewright.lower.block.lazy_tiles import Load, Tile, only_load, pieces
from tilewright.lower.block.mma.product import AtomProduct
from tilewright.lower.block.mma.source import OperandSource
from tilewright.lower.block.writer import split
from tilewright.machine import MemoryOperand, RegisterOperand
from tilewright.plan.tile_register_tasks import LineLayout, ReductionLoop

UNROLLED = 36
"""The most atoms of a wave group that are unrolled over all taps; if there are more, only the last tap dimension is."""


@dataclass
class HaloSource(OperandSource):
    """An operand of an MMA on a halo tile: a box of an argument, copied to shared memory."""

    product: AtomProduct
    operand_load: Load

    @property
    def slab(self) -> int:
        """The number of elements of K in a row of shared memory; one K step has as many."""
        return self.product.microkernel.slab or 1

    def _places(self, known: dict[Expr, Expr]) -> list[Expr]:
        """Return the memory coordinates of this operand's element, as expressions.

        `known` is {dimension: index}, relative to the current part. A dimension that `known` lacks has the current
        index of the loop over it, or else the start of its part.
        """
        p = self.product
        at = {d: p.parts[d][0] for d in (*p.axes.around, p.axes.n, p.axes.m)}
        at |= {d: p.parts[d][0] + e for d, e in (*p.at.items(), *known.items()) if d is not None}
        images = Substitution({p.low.scope.coordinate(d): e for d, e in at.items()})
        return [images(e) for e in self.operand_load.at]

    def _copy(self, over: tuple[Symbol, ...], places: list[Expr], k: Expr, target: Value, ring: str) -> None:
        """Emit the copy of the box at the coordinates `places` to `target`, with zeros out of bounds and past the end
        of K.

        `places` are expressions of the iterators `over`. The last iterator runs along K, from index `k` on.
        `low.storage.shared_loads[copy]` is set to `ring`: "halo", "ring" (a pipeline stage of B) or "start" (before the
        first task).
        """
        p, w = self.product, self.product.w
        *others, c = over
        if p.ends_in_zeros(self.operand_load):
            view = self._view(over, places)
        else:
            *same_axes, k_axis = unpadded = w.axes([*(int(x.hi) + 1 for x in others), int(p.width(p.axes.k))])
            images = Substitution({**dict(zip(others, same_axes, strict=True)), c: k_axis - k})
            exact_view = self._view(unpadded, [images(x) for x in places])
            view = w.view(exact_view, over, [*((x, False) for x in others), (k + c, True)])
        p.low.storage.shared_loads[w.emit("copy", (view, target), otherwise=0)] = ring

    def _view(self, over: tuple[Symbol, ...], places: list[Expr]) -> Value:
        """Emit a view of the argument at the coordinates `places`, over the iterators `over`, and return the view.

        A coordinate that is not proved to be in bounds is marked as one that may be out of bounds.
        """
        shape = self.operand_load.tensor.type.shape
        marks = [(x, not self.product.low.scope.is_inside(x, n)) for x, n in zip(places, shape, strict=True)]
        return self.product.w.view(self.operand_load.tensor, over, marks)


@dataclass
class HaloOfA(HaloSource):
    """Operand A: the task's rows with their neighbours at all taps, copied once per K step; every tap reads it in
    place.
    """

    walk: LineLayout | None
    """The image lines of the tile, if rows run on from line to line; None otherwise."""

    def __post_init__(self) -> None:
        self.held: tuple[Value, Box] | None = None

    def copy_for(self, dim: Expr) -> None:
        """If `dim` is K, emit the copy of the halo tile for the current K step, and record its tensor, of which the
        method `rows` then returns views. Otherwise do nothing.

        Raise a ProgramError if the elements that all taps read are no box in memory, or if the box has no fewer
        elements than the reads.
        """
        p = self.product
        if dim is not p.axes.k:
            return
        deep, k = p.axes.deep, p.at[p.axes.k]
        rows = (
            [p.microkernel.rows]
            if self.walk is None
            else [p.microkernel.rows // self._rows_of_image, self.walk.lines, self.walk.length]
        )
        over = p.w.axes([*rows, *(int(p.width(d)) for d in deep), self.slab])
        c = over[-1]
        i = over[0] if self.walk is None else self._rows_of_image * over[0] + self.walk.pitch * over[1] + over[2]
        known: dict[Expr, Expr] = {p.axes.m: i, p.axes.k: k + c}
        places = self._places(known | dict(zip(deep, over[len(rows) : -1], strict=True)))
        axes, digits = split(over, places)
        box = image_of([digits(x) for x in places], axes)
        if box is None or prod(box.widths) >= prod(int(p.width(d)) for d in deep) * p.microkernel.rows * self.slab:
            raise ProgramError(
                "halo tile: what all taps read of A is no box in memory, or the box has no fewer elements"
            )
        self.held = (self._box(box, k) if self.walk is None else self._lines(box, k, self.walk)), box

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """Emit a view of the halo tile, A at the current tap, of shape (rows, deep), from K index `k` on; return the
        view.

        `row` and `last` are not used: the view begins at the first row of the accumulator tile.
        """
        assert self.held is not None
        p, (held, box) = self.product, self.held
        i, c = p.w.axes((rows, deep))
        places = self._places({p.axes.m: i, p.axes.k: k + c})
        coordinates = self._in_lines([x - first for x, first in zip(places, box.first, strict=True)])
        return p.w.view(held, (i, c), [(x, False) for x in coordinates])

    @property
    def _rows_of_image(self) -> int:
        """The number of rows of M from the start of one image in the tile to that of the next; only for rows that run
        on from image line to image line.
        """
        return self.product.low.bound.image_rows[1]

    def _in_lines(self, at: list[Expr]) -> list[Expr]:
        """Return the coordinates `at`, (..., line, position, K), of an element as coordinates in the shared halo tile.

        If rows run on from line to line, line and position become one coordinate: (..., pitch * line + position, K).
        Otherwise `at` is returned unchanged.
        """
        if self.walk is None:
            return at
        *outer, line, place, c = at
        return [*outer, self.walk.pitch * line + place, c]

    def _box(self, box: Box, k: Expr) -> Value:
        """Emit the copy of a halo tile, the memory `box` at K index `k`, to a new shared tile, and return that tile."""
        atom, w = self.product.microkernel.atom, self.product.w
        held = w.alloc(atom.a.dtype, box.widths, "halo", _swizzle(atom.a))
        over = w.axes(box.widths)
        self._copy(over, [first + x for first, x in zip(box.first, over, strict=True)], k, held, "halo")
        return held

    def _lines(self, box: Box, k: Expr, walk: LineLayout) -> Value:
        """Emit the copy of a halo tile, the memory `box` at K index `k`, to a shared tile in which image lines follow
        one another; return that tile.

        `walk` has the pitch of the lines. Each image is copied separately. Rows behind the last line, which MMAs read
        too, are filled with zeros before the first task. Raise a ProgramError if the lines of `box` have another pitch
        than `walk`.
        """
        p, w, swizzle = self.product, self.product.w, _swizzle(self.product.microkernel.atom.a)
        *outer, lines, pitch, slab = box.widths
        if pitch != walk.pitch:
            raise ProgramError(f"lines of the halo tile are {pitch} long, not {walk.pitch}")
        rows = self._rows_of_image + (lines - walk.lines) * pitch + pitch - walk.length
        size = rows * slab if swizzle is None else -(-rows * slab // swizzle.size()) * swizzle.size()
        strides = [size * prod(outer[n + 1 :]) for n in range(len(outer))]
        with p.low.before_tasks():
            held = w.alloc(p.microkernel.atom.a.dtype, (*outer, rows, slab), "halo", swizzle, (*strides, slab, 1))
            if rows > lines * pitch:
                *at, i, c = w.axes((*outer, rows - lines * pitch, slab))
                slack = w.view(held, (*at, i, c), [(x, False) for x in (*at, lines * pitch + i, c)])
                w.emit("fill", (slack,), value=0)
        with ExitStack() as loops:
            image = [loops.enter_context(w.loop("g", n, unroll=True)) for n in outer]
            over = w.axes((lines, pitch, slab))
            places = [first + x for first, x in zip(box.first, (*image, *over), strict=True)]
            target = w.view(held, over, [(x, False) for x in self._in_lines([*image, *over])])
            self._copy(over, places, k, target, "halo")
        return held


@dataclass
class BesideHalo(HaloSource):
    """Operand B of an MMA whose A is a halo tile."""

    def streamed(self) -> tuple[Expr, ...]:
        """Return the filter taps (dimensions) with a copy of B for each index: here none. Subclasses may override
        it.
        """
        return ()

    def loops(self) -> Sequence[ReductionLoop]:
        """Return the reduction loops of an MMA on a halo tile, outermost first: the loop over K, then loops over the
        taps.

        The taps of `streamed()`, with a copy of B for each index, come first. The others are all unrolled if that gives
        a wave group at most 36 (UNROLLED) atoms; otherwise only the last of them is.
        """
        p, kernel, streamed = self.product, self.product.microkernel, self.streamed()
        inside = [d for d in p.axes.deep if d not in streamed]
        atoms = kernel.rows // kernel.atom.shape[0] // kernel.groups
        are_unrolled = atoms * prod(int(p.width(d)) for d in inside) <= UNROLLED
        taps = [ReductionLoop(d, 1, d in inside and (are_unrolled or d is inside[-1])) for d in (*streamed, *inside)]
        return [ReductionLoop(p.axes.k, self.slab, kernel.blocks > 1), *taps]


@dataclass
class TapsOfB(BesideHalo):
    """Operand B: in each K step, the copy of one tap, or of all taps of the last tap dimension."""

    offsets: int
    """The number of taps in a copy."""

    def __post_init__(self) -> None:
        self.last = list(self.product.axes.deep[-1:]) if self.offsets > 1 else []
        self.held: Value | None = None

    def streamed(self) -> tuple[Expr, ...]:
        """Return the dimensions of filter taps over which loops copy B anew: all dimensions, or all but the last if one
        copy has all taps of the last.
        """
        return tuple(d for d in self.product.axes.deep if d not in self.last)

    def copy_for(self, dim: Expr) -> None:
        """If `dim` is the innermost loop on which the copy of B depends, emit the copy to a new shared tile, and record
        the tile, of which the method `columns` then returns views. Otherwise do nothing.
        """
        p, atom = self.product, self.product.microkernel.atom
        if dim is not (p.axes.k, *self.streamed())[-1]:
            return
        sizes = [*(int(p.width(d)) for d in self.last), p.microkernel.columns, self.slab]
        self.held = p.w.alloc(atom.b.dtype, sizes, "slab", _swizzle(atom.b))
        over, k = p.w.axes(sizes), p.at[p.axes.k]
        self._copy(over, self._places(_of_b(p, self.last, over, k)), k, self.held, "ring")

    def columns(self, deep: int, columns: int, k: Expr, column: Expr) -> Value:
        """Emit a view of the copy of B at the current tap, of shape (deep, columns), and return the view.

        `k` and `column` are not used: the copy has one K step and all columns.
        """
        assert self.held is not None
        p = self.product
        c, j = p.w.axes((deep, columns))
        return p.w.view(self.held, (c, j), [*((p.at[d], False) for d in self.last), (j, False), (c, False)])


@dataclass
class AllOfB(BesideHalo):
    """Operand B: all K steps and taps, copied before the first task."""

    def __post_init__(self) -> None:
        p, w, atom = self.product, self.product.w, self.product.microkernel.atom
        used = {s for e in self.operand_load.at for s in e.symbols}
        dims = [d for d in (p.axes.n, *p.axes.around) if p.low.scope.coordinate(d) in used]
        if any(p.parts[d][0].symbols for d in dims):
            raise ProgramError(
                "halo tile: all of B is copied before the first task, but tasks read different parts of B"
            )
        deep = list(p.axes.deep)
        counts = [int(pieces(p.width(p.axes.k), self.slab)), *(int(p.width(d)) for d in deep)]
        with p.low.before_tasks():
            self.held = w.alloc(atom.b.dtype, [*counts, p.microkernel.columns, self.slab], "panel", _swizzle(atom.b))
            for e, *outer in every(*map(range, counts[:-1])):
                over, k = w.axes([counts[-1], p.microkernel.columns, self.slab]), as_expr(self.slab * e)
                known = _of_b(p, deep[-1:], over, k) | {d: as_expr(n) for d, n in zip(deep, outer, strict=False)}
                at = [(as_expr(n), False) for n in (e, *outer)] + [(s, False) for s in over]
                self._copy(over, self._places(known), k, w.view(self.held, over, at), "start")

    def columns(self, deep: int, columns: int, k: Expr, column: Expr) -> Value:
        """Emit a view of the copy of B, of shape (deep, columns), at the K index `k` and the current taps; return the
        view.

        `column` is not used: the view begins at the first column of the accumulator tile.
        """
        p = self.product
        c, j = p.w.axes((deep, columns))
        at = [k // self.slab, *(p.at[d] for d in p.axes.deep), j, c]
        return p.w.view(self.held, (c, j), [(x, False) for x in at])


def _of_b(p: AtomProduct, last: list[Expr], over: tuple[Symbol, ...], k: Expr) -> dict[Expr, Expr]:
    """Return {dimension: index in B} for the iterators `over` of a copy of B: along the taps `last`, then N, then K.

    Along K, the index is `k` plus the last iterator; along other dimensions, it is the iterator itself. `p` is the MMA.
    """
    *offset, j, c = over
    known: dict[Expr, Expr] = {p.axes.n: j, p.axes.k: k + c}
    return known | dict(zip(last, offset, strict=True))


def _swizzle(operand: MemoryOperand | RegisterOperand) -> Swizzle | None:
    """Return the swizzle in shared memory of `operand`, an atom's operand; None if it has none. `operand` must be read
    from memory.
    """
    assert isinstance(operand, MemoryOperand)
    return operand.layout.outer if isinstance(operand.layout, ComposedLayout) else None


def _given(tile: Tile, which: str) -> Load:
    """Return the Load of an operand that is a plain load from an argument that is only read.

    Otherwise raise a ProgramError, whose text calls the operand `which`, such as "A".
    """
    source = only_load(tile.formula)
    if source is None or not source.is_given:
        raise ProgramError(f"{which} is no argument: a halo tile is copied from one")
    return source


def halo_sources(product: AtomProduct, a: Tile, b: Tile, offsets: int) -> tuple[HaloOfA, BesideHalo]:
    """Return (source of A, source of B): how an MMA reads its operands if A is a halo tile (the input pixels that all
    filter taps read).

    Raise a ProgramError unless both operands are arguments that are only read. `offsets` is the number of taps in one
    copy of B; 0: all of B is copied before the first task, by code emitted here.
    """
    left = HaloOfA(product, _given(a, "A"), product.low.bound.walk)
    operand_load = _given(b, "B")
    return left, TapsOfB(product, operand_load, offsets) if offsets else AllOfB(product, operand_load)
