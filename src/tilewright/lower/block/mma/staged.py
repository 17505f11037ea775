"""Staged operands: each K step is copied to shared memory, from which the atom reads."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from math import prod

from tilewright.algebra import ComposedLayout
from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ProgramError
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DType
from tilewright.lower.block.accesses import marked
from tilewright.lower.block.lazy_tiles import Load, Tile, most, only_load
from tilewright.lower.block.mma.product import AtomProduct
from tilewright.lower.block.mma.source import OperandSource
from tilewright.lower.block.writer import word
from tilewright.machine import MemoryOperand, RegisterOperand


@dataclass
class Staged(OperandSource):
    """An operand whose K steps are copied to shared memory, with zeros past its ends."""

    product: AtomProduct
    operand_load: Load
    """The source of copies: an element of the argument, or a view of the current part, [outer][M or N][K]."""
    outer: list[Expr]
    dim: Expr | None
    held: Value
    """The shared tile of a K step: [M or N][K], or in slabs; with all of K at once several of these."""
    whole: bool
    """True if the source is the argument itself."""
    along_k: bool
    """True if rows of shared memory run along K; otherwise along M or N, in slabs: [slabs][K][row]."""
    step: int
    """The number of K elements of a slab."""
    registers: Value | None = None
    """If the atom takes A from registers, and all of K is copied at once: these registers."""
    several: bool = False
    """True if the shared tile has several slabs along K."""

    @classmethod
    def of(cls, product: AtomProduct, tile: Tile, dim: Expr | None) -> Staged:
        """Return the source of an operand that is copied to shared memory; emit the allocation of its shared tile.

        `product` is the MMA with its plan, `tile` the operand, `dim` its M or N (None: it has none). An operand that is
        no plain load of the atom's type is stored first. If the plan does all of K at once, the copies to shared memory
        are emitted here too, and an A that the atom takes from registers is also loaded to registers. Raise a
        ProgramError if K is padded and the operand is not proved to be zero there.
        """
        operand_layout = product.microkernel.atom.a if dim is product.axes.m else product.microkernel.atom.b
        is_argument = is_given(tile, operand_layout.dtype)
        tile, source = product.low.storage.load_of(tile, operand_layout.dtype)
        needs_registers = isinstance(operand_layout, RegisterOperand)
        operand_layout = product.microkernel.atom.b if needs_registers else operand_layout
        outer = [d for d in (*product.axes.around, *product.axes.deep) if d in tile.dims]
        dims = tuple(d for d in (*outer, dim, product.axes.k) if d is not None)
        is_direct = is_argument and product.ends_in_zeros(source)
        if not is_direct and product.axes.k in product.low.scope.past:
            raise ProgramError(f"mma: an operand cannot be proved to be zero in the padding of {product.axes.k}")
        if not is_direct:
            over, images = product.low.storage.axes(dims, product.parts)
            view = product.w.view(source.tensor, over, marked([images(e) for e in source.at], source.tensor.type.shape))
            source = Load(view, ())
        assert isinstance(operand_layout, MemoryOperand)
        swizzle = operand_layout.layout.outer if isinstance(operand_layout.layout, ComposedLayout) else None
        count = product.microkernel.rows if dim is product.axes.m else product.microkernel.columns
        row, along_k = (
            product.microkernel.slab or 1,
            product.microkernel.contiguous_along_k[0 if dim is product.axes.m else 1],
        )
        k_step = product.microkernel.k_step_elements(most(product.width(product.axes.k)))
        # slabs of K are contiguous: one copy fills them
        is_one_copy = not along_k and count == row and k_step <= product.low.machine.bulk_copy.box_extent
        step = k_step if is_one_copy else row
        sizes = (count, row) if along_k else (count // row, step, row)
        if not product.microkernel.all_of_k_at_once:
            count_of_slabs = prod(product.taps.values()) * k_step // step
            several = [] if count_of_slabs == 1 else [count_of_slabs]
            held = product.w.alloc(operand_layout.dtype, (*several, *sizes), "slabs" if several else "slab", swizzle)
            return cls(product, source, outer, dim, held, is_direct, along_k, step, several=bool(several))
        places = [product.parts[d][0] for d in dims]
        with product.w.before(places if is_direct else [symbol_ for symbol_, _ in product.w.loops]):
            held = product.w.alloc(operand_layout.dtype, (-(-k_step // step), *sizes), "slabs", swizzle)
            staged = cls(product, source, outer, dim, held, is_direct, along_k, step, several=True)
            for d in outer:
                product.at.setdefault(d, as_expr(0))
            with product.w.loop("s", k_step // step, unroll=True) as s:
                staged._copy_slab(count, step, as_expr(0), step * s, s)
            if k_step % step:
                staged._copy_slab(
                    count, k_step % step, as_expr(0), as_expr(k_step // step * step), as_expr(k_step // step)
                )
            if needs_registers:
                staged.registers = staged._read(count, k_step)
        return staged

    def _read(self, rows: int, deep: int) -> Value:
        """Emit the copy of all of A, of shape (rows, deep), from shared memory to new registers, and return the
        registers.
        """
        p = self.product
        i, c = p.w.axes((rows, deep))
        view = p.w.view(self.held, (i, c), self._slab_place(i, c))
        kind = f"{p.microkernel.atom.name}.a"
        registers = p.w.registers(p.microkernel.atom.a.dtype, (rows, deep), kind, "left", p.microkernel.group_grid)
        p.w.emit("copy", (view, registers))
        return registers

    def _copy_step(self, count: int, deep: int, first: Expr, k: Expr) -> None:
        """Emit the copies of one K step to the shared tile: `count` rows from `first` on, and `deep` elements of K from
        `k` on.

        Rows run along M for A, along N for B. If the shared tile has several slabs, there is a copy for each slab at
        each filter tap of the step. A slab is the elements of K in one row of shared memory.
        """
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
        """Emit the copies of one slab: `count` rows from `first` on, `deep` elements of K from `k` on.

        A slab is the elements of K in one row of shared memory. Rows run along M for A, along N for B. `step` is the
        slab's number in the shared tile; None: there is one slab. Several copies are emitted if the machine's bulk copy
        cannot have as many rows, or if shared-memory rows run along M or N.
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
        wide = p.microkernel.slab or 1
        with p.w.loop("s", count // wide, unroll=True) as s:
            c, i = p.w.axes((deep, wide))
            target = p.w.view(self.held, (c, i), [*place, (s, False), (c, False), (i, False)])
            self._copy((c, i), first + wide * s + i, k + c, target)

    def _copy(self, over: tuple[Symbol, ...], row: Expr, k: Expr, target: Value) -> None:
        """Emit the copy of the elements at the indices `row` (along M or N) and `k` to the shared view `target`, with
        zeros out of bounds.

        `row` and `k` are expressions of the iterators `over`. `low.storage.shared_loads[copy]` is set to "ring": a copy
        of a pipeline stage.
        """
        p = self.product
        at = {**{d: p.at[d] for d in self.outer}, **({} if self.dim is None else {self.dim: row}), p.axes.k: k}
        if self.whole:
            images = Substitution({p.low.scope.coordinate(d): p.parts[d][0] + e for d, e in at.items()})
            places = marked([images(e) for e in self.operand_load.at], self.operand_load.tensor.type.shape)
        else:
            places = [(e, d in (self.dim, p.axes.k)) for d, e in at.items()]
        view = p.w.view(self.operand_load.tensor, over, places)
        p.low.storage.shared_loads[p.w.emit("copy", (view, target), otherwise=0)] = "ring"

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """Return the tile of A, (rows, deep), from row `row` and K index `k` on: a view of the shared tile, or
        registers.

        The copies of this K step to the shared tile are emitted first. If the plan does all of K at once, `of` has
        emitted them; if then the atom takes A from registers, the registers are returned. `last` is not used.
        """
        if self.registers is not None:
            return self.registers
        if not self.product.microkernel.all_of_k_at_once:
            self._copy_step(rows, deep, row, k)
        i, c = self.product.w.axes((rows, deep))
        return self.product.w.view(self.held, (i, c), self._slab_place(i, c))

    def columns(self, deep: int, columns: int, k: Expr, column: Expr) -> Value:
        """Return a view of the tile of B, (deep, columns), from K index `k` and column `column` on, in shared memory.

        The copies of this K step to the shared tile are emitted first. If the plan does all of K at once, `of` has
        emitted them.
        """
        if not self.product.microkernel.all_of_k_at_once:
            self._copy_step(columns, deep, column, k)
        e, j = self.product.w.axes((deep, columns))
        return self.product.w.view(self.held, (e, j), self._slab_place(j, e))

    def _slab_place(self, i: Expr, c: Expr) -> list[tuple[Expr, bool]]:
        """Return [(coordinate in the shared tile, False), ...] of the element at index `i` along M or N and `c` along
        K.

        False says that the coordinate is not out of bounds. If the tile has several slabs (groups of K elements), the
        slab's number comes first.
        """
        row = self.product.microkernel.slab or 1
        step, c = ([(c // self.step, False)], c % self.step) if self.several else ([], c)
        return (
            [*step, (i, False), (c, False)]
            if self.along_k
            else [*step, (i // row, False), (c, False), (i % row, False)]
        )


def is_given(tile: Tile, dtype: DType) -> bool:
    """True if `tile` is a plain load from an argument that the program only reads, and has the element type `dtype`."""
    load = only_load(tile.formula) if tile.dtype is dtype else None
    return load is not None and load.is_given
