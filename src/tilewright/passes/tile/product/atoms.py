"""Products of tiles by the machine's atoms, wherever they stand: in loops, in grid programs, under conditions.

    %s = mma %q, %k, %zero                for f in 0..2 {            blocks of N
                                            for m in 0..4 {          blocks of M
                                              %sums = alloc register f32 (13, 32) as ATOM.c
                                              copy %acc_view -> %sums
                                              for e in 0..16 { mma %sums += %q_view * %packed_view ... }
                                              copy %sums -> %acc_view

C lies in memory of the worker's own between operations, one block of it at a time in registers. A is read where it lies
if the atom can, otherwise from a panel; B likewise, packed as the atom reads it. Edges of C are blocks of their own, as
small as the atom allows; what a panel holds past the ends is zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod

from tilewright.algebra import ComposedLayout
from tilewright.algebra.expr import ONE, ZERO, Const, Expr, Symbol, as_expr
from tilewright.algebra.expr_rules import minimum
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ProgramError
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DType
from tilewright.ir.tile_formulas import converted
from tilewright.machine import MemoryOperand, RegisterOperand
from tilewright.passes.places import Size, linear_step
from tilewright.passes.tile.accesses import apart_along, marked
from tilewright.passes.tile.inplace import limits
from tilewright.passes.tile.orders import BlockOrder
from tilewright.passes.tile.packing import pack_before, pack_here
from tilewright.passes.tile.product.computed import Computed
from tilewright.passes.tile.product.halo_tile import AroundHalo
from tilewright.passes.tile.product.product import AtomProduct
from tilewright.passes.tile.product.source import Factor
from tilewright.passes.tile.values import Load, Tile, divided, loads, most, only_load, pieces
from tilewright.passes.tile.writer import word
from tilewright.plan.model import element_bytes, l2, stays_in_l1

NEAR = 4
"""B is read where it lies if what a block reads of it spans no more than this part of the second cache."""
STEPS = 4
"""Products of vectors along K that are written out, at most, unless the atom picks from more."""


@dataclass(frozen=True)
class Span:
    """Blocks of equal size along M or N: their number, size, and first index; `ragged`: the last one goes past the end.

    `there` is the condition under which there are any.
    """

    count: Size
    size: int
    first: Size
    ragged: bool
    there: Expr = ONE


def spans(width: Size, block: int, unit: int) -> Iterator[Span]:
    """Yield whole blocks, then the rest in whole units; if the width is open, the rest is as large as it may be.

    >>> [(s.count, s.size, s.first, s.ragged) for s in spans(70, 32, 16)]
    [(2, 32, 0, False), (1, 16, 64, True)]
    >>> from tilewright.algebra.expr import symbol
    >>> [(s.count, s.size, s.first, s.ragged) for s in spans(symbol("M", 1, 99), 32, 16)]
    [(<M//32>, 32, 0, False), (1, 32, <32*(M//32)>, True)]
    """
    full, tail = divided(width, block)
    if full != 0:
        yield Span(full, block, 0, False)
    if tail != 0:
        size = int(pieces(most(tail), unit)) * unit
        yield Span(1, size, full * block, size != tail, as_expr(tail) >= 1)


class BlockedProduct(AtomProduct):
    """An MMA, emitted block by block of C."""

    def write(self, a: Tile, b: Tile) -> None:
        """Emit the MMA of `a` and `b`, over all blocks of C."""
        kernel, axes = self.how, self.axes
        m, n, _ = kernel.atom.shape
        if self.low.cuts.halo is not None:
            AroundHalo(self, a, b, self.low.cuts.halo).write()
            return
        if kernel.slab is not None:
            left: Factor
            if not kernel.held_a or _is_given(a, kernel.atom.a.dtype):
                left = Staged.of(self, a, axes.m)
            elif not kernel.at_once and all(x.is_given for x in loads(a.formula)):
                left = Computed.of(self, a)
            else:
                left = InRegisters.of(self, a)
            right: Factor = Staged.of(self, b, axes.n)
        else:
            left, right = self.left(a), self.right(b)
        with ExitStack() as loops:
            for d in axes.around:
                self.at[d] = loops.enter_context(self.w.loop(f"o_{word(d)}", self.width(d)))
            for across in spans(self.width(axes.n), kernel.columns, n):
                for down in spans(self.width(axes.m), kernel.rows, m):
                    in_range = self.low.branch(across.there * down.there)
                    with in_range, self.over("f", across) as f, self.over("m", down, left.skips) as i:
                        self.block(left, right, down, across, i, f)

    @contextmanager
    def over(self, name: str, span: Span, apart: bool = False) -> Iterator[Expr]:
        """Emit a loop over blocks and yield the first index of a block; with `apart`, the first and last block are
        peeled.
        """
        with self.w.loop(name, span.count, peel=(1, 1) if apart and span.count != 1 else None) as number:
            yield span.first + span.size * number

    # -- factors ------------------------------------------------------------------------------------------

    def left(self, a: Tile) -> Factor:
        """Return operand A, read in place, or copied to a panel with K contiguous and padded to whole atoms."""
        kernel, axes = self.how, self.axes
        m, _, k = kernel.atom.shape
        source = only_load(a.formula) if a.dtype is kernel.atom.a.dtype else None
        whole = source is not None and self.width(axes.k) % k in (0, ZERO) and self.has_rows(source, a.dims, m)
        if source is not None and whole and (k == 1 or apart_along(self.low.scope, source, axes.k) == 1):
            return InPlace(self, source)
        outer = [d for d in (*axes.around, *axes.deep) if d in a.dims]
        tall = self.width(axes.m)
        unit = (
            m if isinstance(tall, int) else kernel.rows
        )  # where only a call tells, the last block is as large as others
        deep, rows = pieces(self.width(axes.k), k) * k, pieces(tall, unit) * unit
        panel = self.panel(a, kernel.atom.a.dtype, outer, (axes.m, rows), (axes.k, deep))
        return FactorPanel(self, panel, outer)

    def has_rows(self, source: Load, dims: tuple[Expr, ...], unit: int) -> bool:
        """True if a load's tensor has all rows that whole atoms read, also those past the end of the current part."""
        rows = self.width(self.axes.m)
        if rows % unit in (0, ZERO) or not isinstance(rows, int):
            return rows % unit in (0, ZERO)
        past = {self.axes.m: -(-rows // unit) * unit}
        over = self.w.axes([past.get(d) or self.width(d) for d in dims])
        images = self.low.scope.images(dims, self.parts, over)
        places = marked([images(e) for e in source.at], source.tensor.type.shape)
        return source.tensor.type.space == "shared" and not any(mark for _, mark in places)

    def panel(
        self, a: Tile, dtype: DType, outer: list[Expr], rows: tuple[Expr, Size], deep: tuple[Expr, Size]
    ) -> Value:
        """Return operand A copied to [outer][rows][deep], with zeros past its ends."""
        sizes = [*(self.width(d) for d in outer), rows[1], deep[1]]
        held = self.w.alloc(dtype, sizes, "panel")
        dims = (*outer, rows[0], deep[0])
        over = self.w.axes([self.width(d) for d in dims])
        if sizes[-2:] != [self.width(rows[0]), self.width(deep[0])]:
            self.w.emit("fill", (self.w.part(held, sizes),), value=0)
        target = self.w.view(held, over, [(s, False) for s in over])
        formula = converted(a.formula, a.dtype, dtype)
        self.w.map(target, over, formula, self.low.scope.images(dims, self.parts, over))
        return held

    def right(self, b: Tile) -> Factor:
        """Return operand B, read in place, packed before the program if other tasks read it too, or packed here."""
        kernel, axes = self.how, self.axes
        n = kernel.atom.shape[1]
        source = only_load(b.formula) if b.dtype is kernel.atom.b.dtype else None
        whole = kernel.group == 1 and not self.low.cuts.packed
        is_direct = whole and source is not None and self._lies_along_n(source) and self.is_readable(source, n)
        if is_direct and source is not None and self.is_near(source):
            return InPlace(self, source)
        outer = [d for d in (*axes.around, *axes.deep) if d in b.dims]
        before = pack_before(self.low, b, self.parts, axes, outer, kernel)
        if before is not None:
            return Packed(self, *before, outer, {d: self.parts[d][0] for d in (*outer, axes.k, axes.n)})
        if is_direct and source is not None:
            return InPlace(self, source)
        held, order = pack_here(self.low.storage, b, self.parts, axes, outer, kernel)
        return Packed(self, held, order, outer, dict.fromkeys((*outer, axes.k, axes.n), as_expr(0)))

    def _lies_along_n(self, source: Load) -> bool:
        """True if elements along N are contiguous."""
        return apart_along(self.low.scope, source, self.axes.n) == 1

    def is_readable(self, source: Load, n: int) -> bool:
        """True if B's vectors of `n` columns can be read in place: N is a multiple of `n`.

        If N is known only at the call, True if B is an argument that is only read: it may end within a vector.
        """
        wide = self.width(self.axes.n)
        if isinstance(wide, Expr):
            return source.tensor.type.role == "in" and self.low.arguments.source(source.tensor) is not None
        return wide % n == 0

    def is_near(self, source: Load) -> bool:
        """True if B need not be packed: what a block reads of it fits in a part of L2, and L1 keeps it as well as
        packed.

        Also True if there is only one block of rows, so that B is read once, or if a call or data decide the sizes.
        """
        low, m = self.low, self.axes.m
        if not m.symbols.isdisjoint(low.scope.bound):
            return True
        if most(low.scope.size(m)) <= self.how.rows:
            return True
        stride, between = 1, 0
        for e, n in reversed(list(zip(source.at, source.tensor.type.shape, strict=True))):
            between += stride * (linear_step(e, low.scope.coordinate(self.axes.k)) or 0)
            if not isinstance(n, Const):  # how far apart, only a call tells
                return True
            stride *= n.value
        limits, each, rows = low.machine.limits, element_bytes(source.tensor.type.dtype), most(self.width(self.axes.k))
        if between * rows * each > l2(limits) / NEAR:
            return False
        row = self.how.columns * each
        return stays_in_l1(limits, rows, row, between * each) or not stays_in_l1(limits, rows, row, row)

    # -- blocks -------------------------------------------------------------------------------------------

    def block(self, left: Factor, right: Factor, down: Span, across: Span, row: Expr, column: Expr) -> None:
        """Emit one block of C, with its accumulator in registers over the K loop."""
        w, kernel = self.w, self.how
        c, kind = kernel.atom.c.dtype, kernel.atom.name
        if self.total in self.low.storage.sums:  # all of C is there
            self.summed(left, right, down, across, row, column, self.total)
            return
        sums = w.registers(c, (down.size, across.size), f"{kind}.c", "sums")
        i, j = w.axes((down.size, across.size))
        room = self.total in self.low.storage.padded
        at: dict[Expr, tuple[Expr, bool]] = {d: (e, False) for d, e in self.at.items()}
        at[self.axes.m] = (row + i, down.ragged and not room)
        at[self.axes.n] = (column + j, across.ragged and not room)
        whole = self.total if room else w.part(self.total, [self.width(d) for d in self.c])
        goal = w.view(whole, (i, j), [at[d] for d in self.c])
        ragged = any(mark for _, mark in at.values())
        if self.zero:
            w.emit("fill", (sums,), value=0)
        else:
            w.emit("copy", (goal, sums), otherwise=0 if ragged else None)
        self.summed(left, right, down, across, row, column, sums)
        w.emit("copy", (sums, goal))

    def summed(
        self, left: Factor, right: Factor, down: Span, across: Span, row: Expr, column: Expr, sums: Value
    ) -> None:
        """Emit the loops over all summed dimensions: those beside K, then K.

        Dimensions that are unrolled only because rows at an edge differ are outermost: otherwise elements of A that
        taps share would be kept in registers.
        """
        left.begin()
        for d in self.axes.deep:  # where another block's loops were
            self.at.pop(d, None)
        cuts = self.low.cuts
        order = [s.dim for s in cuts.depth if s.dim in self.axes.deep] or self.axes.deep
        written = {d for d, loop in cuts.summed.items() if loop.unrolled}
        peeled = [d for d in order if cuts.depth and d not in written and self.low.task.edge and left.slides(d)]
        with ExitStack() as loops:
            for d in (*peeled, *(d for d in order if d not in peeled)):
                first, end, out = as_expr(0), as_expr(self.width(d)), d in written or d in peeled
                if not out:
                    first, end, out = left.limits(d)
                taps = self.taps.get(d, 1)
                tap_loop = self.w.loop(f"k_{word(d)}", end if taps == 1 else end // taps, first, unroll=out)
                self.at[d] = taps * loops.enter_context(tap_loop)
            self.steps(left, right, down, across, row, column, sums)

    def steps(
        self, left: Factor, right: Factor, down: Span, across: Span, row: Expr, column: Expr, sums: Value
    ) -> None:
        """Emit the MMAs along K: one atom's depth per step in tile registers, several by vectors, a K step from shared
        memory.
        """
        w, kernel = self.w, self.how
        depth = kernel.atom.shape[2]
        deep, last = self.width(self.axes.k), self._last(down)
        chunks = pieces(deep, depth)
        right.ragged = across.ragged
        if kernel.slab is not None:
            step = kernel.k_step_elements(most(deep))
            with w.loop("e", pieces(deep, step), unroll=isinstance(left, InRegisters) or kernel.blocks > 1) as e:
                taps = prod(self.taps.values())
                a = left.rows(down.size, taps * step, row, step * e, last)
                b = right.columns(taps * step, across.size, step * e, column)
                self.multiply(sums, a, b, e)
            return
        if kernel.whole:
            a = w.registers(kernel.atom.a.dtype, (down.size, depth), f"{kernel.atom.name}.a", "left")
            b = w.registers(kernel.atom.b.dtype, (depth, across.size), f"{kernel.atom.name}.b", "right")
            with w.loop("e", chunks) as e:
                w.emit("copy", (left.rows(down.size, depth, row, depth * e, last), a))
                w.emit("copy", (right.columns(depth, across.size, depth * e, column), b))
                w.emit("mma", (sums, a, b), atom=kernel.atom.name)
            return
        k_loop = self.low.cuts.summed.get(self.axes.k)
        most_at_once = (
            max(STEPS, kernel.atom.picks) if k_loop is None else k_loop.size // depth
        )  # at least one load of A
        full, tail = divided(chunks, most_at_once)
        rest = (1, tail) if isinstance(tail, int) else (tail, 1)
        for (count, at_once), first in (((full, most_at_once), 0), (rest, full * most_at_once)):
            if count == 0 or at_once == 0:
                continue
            wide = at_once * depth
            with w.loop("e", count) as e:
                k = first * depth + wide * e
                factors = left.rows(down.size, wide, row, k, last), right.columns(wide, across.size, k, column)
                skip = left.skips or right.skips
                w.emit("mma", (sums, *factors), atom=kernel.atom.name, skip=skip or None)

    def _last(self, down: Span) -> Expr | None:
        """Return the last row if a block may have rows past it, which may be any and are not stored; else None."""
        width = self.width(self.axes.m)
        return width - 1 if down.ragged and isinstance(width, Expr) else None


@dataclass
class InPlace(Factor):
    """An operand that is read where it lies in memory."""

    found: Load

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin another block: coordinates may be out of bounds until loops are limited."""
        self.marks = self.product.low.storage.loose.get(self.found, (False,) * len(self.found.at))

    @property
    def skips(self) -> bool:
        """True if elements may be out of bounds, and their products are left out."""
        return self.ragged or any(self.marks)

    def limits(self, dim: Expr) -> tuple[Expr, Expr, bool]:
        """Return (first, end, True if it is unrolled) of a loop over a filter tap, limited to indices that are in
        bounds.

        A tap along which rows differ in what is in bounds is unrolled.
        """
        p, whole = self.product, super().limits(dim)
        if not self.skips:
            return whole
        tap = p.low.scope.coordinate(dim)
        known = {d: p.parts[d][0] + e for d, e in p.at.items()}
        inner = {p.low.scope.coordinate(d) for d in (p.axes.m, p.axes.k, *p.axes.deep) if d not in known}
        source = p.low.arguments.source(self.found.tensor)
        if source is None or p.parts[dim][0] is not as_expr(0):
            return whole
        images = Substitution({p.low.scope.coordinate(d): e for d, e in known.items()})
        shape = p.low.arguments.shapes[source]
        first, end, self.marks = limits(self.found.at, shape, self.marks, tap, p.width(dim), images, inner - {tap})
        return first, end, self.slides(dim)

    def slides(self, dim: Expr) -> bool:
        """True if the row decides which elements are in bounds at an index of the summed dimension `dim`."""
        p = self.product
        both = {p.low.scope.coordinate(dim), p.low.scope.coordinate(p.axes.m)}
        return any(m and both <= e.symbols for m, e in zip(self.marks, self.found.at, strict=True))

    def _view(self, over: tuple[Symbol, ...], at: dict[Expr, Expr]) -> Value:
        """Return a view of the operand over the axes, at the given indices and the current ones of other loops."""
        p = self.product
        known = {**p.at, **at}
        images = Substitution({p.low.scope.coordinate(d): p.parts[d][0] + e for d, e in known.items()})
        places = [images(e) for e in self.found.at]
        marks = [*self.marks[:-1], self.marks[-1] or self.ragged]
        return p.w.view(self.found.tensor, over, list(zip(places, marks, strict=True)))

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """Return a view of A's block."""
        i, e = self.product.w.axes((rows, deep))
        place = row + i if last is None else minimum(row + i, last)
        return self._view((i, e), {self.product.axes.m: place, self.product.axes.k: k + e})

    def columns(self, deep: int, columns: int, k: Expr, column: Expr) -> Value:
        """Return a view of B's block."""
        e, j = self.product.w.axes((deep, columns))
        return self._view((e, j), {self.product.axes.k: k + e, self.product.axes.n: column + j})


@dataclass
class FactorPanel(Factor):
    """Operand A, copied to a panel [outer][rows][K]."""

    tensor: Value
    outer: list[Expr]

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """Return a view of A's block."""
        p = self.product
        i, e = p.w.axes((rows, deep))
        return p.w.view(self.tensor, (i, e), [(x, False) for x in (*(p.at[d] for d in self.outer), row + i, k + e)])


@dataclass
class Packed(Factor):
    """Operand B, packed in the order in which it is read; `starts` are the first indices of the current parts in it."""

    tensor: Value
    order: BlockOrder
    outer: list[Expr]
    starts: dict[Expr, Expr]

    def columns(self, deep: int, columns: int, k: Expr, column: Expr) -> Value:
        """Return a view of B's block."""
        p = self.product
        e, j = p.w.axes((deep, columns))
        k, column = self.starts[p.axes.k] + k, self.starts[p.axes.n] + column
        first = [self.starts[d] + p.at[d] for d in self.outer]
        at = self.order.places(first, k + e, column, j)
        return p.w.view(self.tensor, (e, j), [(x, False) for x in at])


@dataclass
class InRegisters(Factor):
    """Operand A in registers, as the atom takes it: all of K, zero past its end."""

    tensor: Value

    @classmethod
    def of(cls, product: AtomProduct, a: Tile) -> InRegisters:
        """Return the computed operand A, stored in registers once for all blocks of columns."""
        kernel, axes, low = product.how, product.axes, product.low
        deep = most(product.width(axes.k))
        shape = kernel.rows, -(-deep // kernel.k_step_elements(deep)) * kernel.k_step_elements(deep)
        with low.writer.before([product.parts[d][0] for d in a.dims]):  # once for all blocks of columns
            held = low.writer.registers(kernel.atom.a.dtype, shape, f"{kernel.atom.name}.a", "left", kernel.waves)
            low.storage.sums[held] = axes.m, axes.k
            low.storage.put(held, a.dims, product.parts, converted(a.formula, a.dtype, kernel.atom.a.dtype))
            if not kernel.at_once or low.cuts.blocks:  # before the first step: what it is made of takes more registers
                low.writer.emit("edge", (held,))
        return cls(product, held)

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """Return A's block: all of it, or the registers of a K step."""
        if self.product.how.at_once:
            return self.tensor
        i, c = self.product.w.axes((rows, deep))
        return self.product.w.columns(self.tensor, (i, c), i, k + c)


@dataclass
class Staged(Factor):
    """An operand whose K steps are copied to shared memory, from which the atom reads, with zeros past its ends."""

    found: Load
    """The source of copies: the argument itself, or a view of the current part, [outer][M or N][K]."""
    outer: list[Expr]
    dim: Expr | None
    held: Value
    """The shared tile of a K step: [M or N][K], or in slabs; with all of K at once several of these."""
    whole: bool
    """True if the source is the argument itself."""
    along_k: bool
    """True if a row of shared memory goes along K; otherwise along M or N, in slabs: [slabs][K][row]."""
    step: int
    """The number of K elements of a slab."""
    registers: Value | None = None
    """Of an atom that has A in registers: those, which it is read to once."""
    several: bool = False
    """True if several slabs follow each other along K."""

    @classmethod
    def of(cls, product: AtomProduct, tile: Tile, dim: Expr | None) -> Staged:
        """Return the operand whose rows or columns lie along `dim`, with its shared tile; if K is done at once, it is
        copied here.

        An operand that goes on to registers lies in shared memory as B does.
        """
        wanted = product.how.atom.a if dim is product.axes.m else product.how.atom.b
        is_argument = _is_given(tile, wanted.dtype)
        tile, source = product.low.storage.load_of(tile, wanted.dtype)
        on = isinstance(wanted, RegisterOperand)
        wanted = product.how.atom.b if on else wanted
        outer = [d for d in (*product.axes.around, *product.axes.deep) if d in tile.dims]
        dims = tuple(d for d in (*outer, dim, product.axes.k) if d is not None)
        whole = is_argument and product.ends_in_zeros(source)
        if not whole and product.axes.k in product.low.scope.past:
            raise ProgramError(f"what lies past the end of {product.axes.k} cannot be shown to be zero")
        if not whole:
            over, images = product.low.storage.axes(dims, product.parts)
            view = product.w.view(source.tensor, over, marked([images(e) for e in source.at], source.tensor.type.shape))
            source = Load(view, ())
        assert isinstance(wanted, MemoryOperand)
        swizzle = wanted.layout.outer if isinstance(wanted.layout, ComposedLayout) else None
        count = product.how.rows if dim is product.axes.m else product.how.columns
        row, along_k = product.how.slab or 1, product.how.along_k[0 if dim is product.axes.m else 1]
        deep = product.how.k_step_elements(most(product.width(product.axes.k)))
        # slabs of K lie one behind the other: one copy brings them
        single = not along_k and count == row and deep <= product.low.machine.bulk_copy.box_extent
        step = deep if single else row
        sizes = (count, row) if along_k else (count // row, step, row)
        if not product.how.at_once:
            count_of_slabs = prod(product.taps.values()) * deep // step
            several = [] if count_of_slabs == 1 else [count_of_slabs]
            held = product.w.alloc(wanted.dtype, (*several, *sizes), "slabs" if several else "slab", swizzle)
            return cls(product, source, outer, dim, held, whole, along_k, step, several=bool(several))
        places = [product.parts[d][0] for d in dims]
        with product.w.before(places if whole else [symbol_ for symbol_, _ in product.w.loops]):
            held = product.w.alloc(wanted.dtype, (-(-deep // step), *sizes), "slabs", swizzle)
            staged = cls(product, source, outer, dim, held, whole, along_k, step, several=True)
            for d in outer:
                product.at.setdefault(d, as_expr(0))
            with product.w.loop("s", deep // step, unroll=True) as s:
                staged._copy_slab(count, step, as_expr(0), step * s, s)
            if deep % step:
                staged._copy_slab(count, deep % step, as_expr(0), as_expr(deep // step * step), as_expr(deep // step))
            if on:
                staged.registers = staged._read(count, deep)
        return staged

    def _read(self, rows: int, deep: int) -> Value:
        """Return registers with all of the operand, as the atom takes A."""
        p = self.product
        i, c = p.w.axes((rows, deep))
        view = p.w.view(self.held, (i, c), self._slab_place(i, c))
        kind = f"{p.how.atom.name}.a"
        registers = p.w.registers(p.how.atom.a.dtype, (rows, deep), kind, "left", p.how.waves)
        p.w.emit("copy", (view, registers))
        return registers

    def _copy_step(self, count: int, deep: int, first: Expr, k: Expr) -> None:
        """Emit the copies of a K step: one for each filter tap of the step, and one for each slab."""
        p = self.product
        if not self.several:
            self._copy_slab(count, deep, first, k)
            return
        slabs, begin, number = deep // self.step // prod(p.taps.values()), dict(p.at), as_expr(0)
        with ExitStack() as loops:
            for d, taps in p.taps.items():
                tap = loops.enter_context(p.w.loop(f"k_{word(d)}", taps, unroll=True))
                p.at[d], number = begin[d] + tap, taps * number + tap
            s = loops.enter_context(p.w.loop("s", slabs, unroll=True))
            self._copy_slab(count, self.step, first, k + self.step * s, slabs * number + s)
        p.at.update(begin)

    def _copy_slab(self, count: int, deep: int, first: Expr, k: Expr, step: Expr | None = None) -> None:
        """Emit the copy of K elements from `k` on to the shared tile; `step` is the number of the slab if there are
        several.
        """
        p = self.product
        place = [] if step is None else [(step, False)]
        if self.along_k:
            copies = -(-count // p.low.machine.bulk_copy.box_extent)
            with p.w.loop("s", copies, unroll=True) as s:
                i, c = p.w.axes((count // copies, deep))
                row = count // copies * s + i
                self._copy((i, c), first + row, k + c, p.w.view(self.held, (i, c), [*place, (row, False), (c, False)]))
            return
        wide = p.how.slab or 1
        with p.w.loop("s", count // wide, unroll=True) as s:
            c, i = p.w.axes((deep, wide))
            target = p.w.view(self.held, (c, i), [*place, (s, False), (c, False), (i, False)])
            self._copy((c, i), first + wide * s + i, k + c, target)

    def _copy(self, over: tuple[Symbol, ...], row: Expr, k: Expr, target: Value) -> None:
        """Emit the copy of elements at these indices along M or N (`row`) and K to `target`."""
        p = self.product
        at = {**{d: p.at[d] for d in self.outer}, **({} if self.dim is None else {self.dim: row}), p.axes.k: k}
        if self.whole:
            images = Substitution({p.low.scope.coordinate(d): p.parts[d][0] + e for d, e in at.items()})
            places = marked([images(e) for e in self.found.at], self.found.tensor.type.shape)
        else:
            places = [(e, d in (self.dim, p.axes.k)) for d, e in at.items()]
        view = p.w.view(self.found.tensor, over, places)
        p.low.storage.brought[p.w.emit("copy", (view, target), otherwise=0)] = "ring"

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """Return A's block: registers, or a view of the shared tile, after the copy of the K step."""
        if self.registers is not None:
            return self.registers
        if not self.product.how.at_once:
            self._copy_step(rows, deep, row, k)
        i, c = self.product.w.axes((rows, deep))
        return self.product.w.view(self.held, (i, c), self._slab_place(i, c))

    def columns(self, deep: int, columns: int, k: Expr, column: Expr) -> Value:
        """Return a view of B's block in the shared tile, after the copy of the K step."""
        if not self.product.how.at_once:
            self._copy_step(columns, deep, column, k)
        e, j = self.product.w.axes((deep, columns))
        return self.product.w.view(self.held, (e, j), self._slab_place(j, e))

    def _slab_place(self, i: Expr, c: Expr) -> list[tuple[Expr, bool]]:
        """Return the coordinates in the shared tile of the element at index `i` along M or N and `c` along K."""
        row = self.product.how.slab or 1
        step, c = ([(c // self.step, False)], c % self.step) if self.several else ([], c)
        return (
            [*step, (i, False), (c, False)]
            if self.along_k
            else [*step, (i // row, False), (c, False), (i % row, False)]
        )


def _is_given(tile: Tile, dtype: DType) -> bool:
    """True if a tile is elements of an argument that is only read, without change, of this type."""
    load = only_load(tile.formula) if tile.dtype is dtype else None
    return load is not None and load.is_given
