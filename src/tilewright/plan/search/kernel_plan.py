"""The plan of one kernel with MMA atoms, over the dimensions of its program."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.algebra.expr import Expr
from tilewright.plan.boxes import cut_dims
from tilewright.plan.general import axis_of, words_for
from tilewright.plan.microkernel import Axes, axes_in
from tilewright.plan.schedule import Axis, Digit, ProductUnit, Schedule, Split, ValuePlacement
from tilewright.plan.search.halo import halo_window
from tilewright.plan.search.kernel import KernelSchedule
from tilewright.plan.search.launch import DYNAMIC, batch_entries_per_group
from tilewright.plan.search.lowered import why_not_lowered, why_not_oriented, why_not_split
from tilewright.plan.search.ranking import Rejected
from tilewright.plan.search.tiles import GRID, LOOP, AxisTile
from tilewright.plan.search.unit import MmaTile, refusal_name

LACKS = "lowering lacks"
"""The first words of a rejection because the lowering (code generator) lacks a feature."""


@dataclass
class KernelPlan:
    """Writes the plan of one kernel with MMA atoms, over the dimensions of its program.

    A program dimension may have been split into digits (mixed-radix parts of a flat index); the plan joins them again.
    """

    kernel: KernelSchedule

    def __post_init__(self) -> None:
        self.t, self.facts = self.kernel.tiling, self.kernel.tiling.facts
        self.size = self.facts.number_of
        ops = [self.facts.nodes[m.node].source for m in self.kernel.mmas]
        self.products = {op: m for op, m in zip(ops, self.kernel.mmas, strict=True) if op is not None}
        self.axes = {op: axes_in(op, self._tile_extent) for op in self.products}

    def _tile_extent(self, d: Expr) -> int:
        """Return the number of elements of the program dimension `d` in a tile of this kernel.

        It is per iteration if the kernel loops over `d`, else per workgroup. If `d` was split into digits (mixed-radix
        parts such as image row and column), it is the largest extent of a digit. It is 1 for a dimension without a
        tile.
        """
        return max(self.t.size.get(name, 1) for name in self.facts.digit_names(d))

    def plan(self) -> Schedule | Rejected:
        """Return the plan (a Schedule) of the kernel; or a Rejected that names the feature that the lowering lacks.

        The lowering is the code generator. A kernel with halo tiles gets its plan from `_halo_plan`.
        """
        why = why_not_oriented(self.t.o) or why_not_lowered(self.t) or self._why_not_mmas_or_split()
        if why:
            return Rejected(refusal_name(self.kernel.mmas), f"{LACKS} {why}")
        if self.kernel.pipeline.offsets is not None:
            return self._halo_plan()
        tasks = self._grid_dims()
        dims = [*tasks, *(d for d in self.facts.order if d not in tasks)]
        words = words_for(self._axis_name(d) for d in dims)
        axes = [axis_of(words[self._axis_name(d)], self._extent(d), self._splits(d)) for d in dims]
        order = [words[self._axis_name(d)] for d in self._grid_order(tasks)]
        parts = self.kernel.parts
        if parts is not None:
            split = f"{parts.dim}_split"
            axes = [axis_of(split, parts.count, (Split("task", 1),)), *axes]
            order = [split, *order]
        raster = self._raster_group()
        if self.kernel.order == DYNAMIC:  # the extent of an open size is known only at the call
            raster = 1 if self.facts.opened else batch_entries_per_group(self.t, self._dims_before_m(tasks))
        return Schedule(
            tuple(axes),
            tuple(order),
            products=self._mma_statements(),
            pipeline=self.kernel.pipeline.roles,
            overlap=self.kernel.pipeline.overlap,
            raster=raster,
            order=self.kernel.order,
            parts=None if parts is None else (parts.dim, parts.count),
            early=self.kernel.early if "programmatic" in self.t.machine.launches else None,
        )

    def _why_not_mmas_or_split(self) -> str:
        """Return text: the feature that the lowering lacks for this kernel's MMAs or split-K; empty if it lacks none.

        With split-K, workgroups share K. The orientation and the tiles of the kernel are not checked here.
        """
        if len(self.products) != len(self.kernel.mmas) or any(isinstance(x, str) for x in self.axes.values()):
            return "products without rows and columns of their own"
        if self.kernel.parts is not None and why_not_split(self.facts):
            return why_not_split(self.facts)
        for d in self._dims_of_some_states():
            if self._task_extent(d) < self.size(d):
                return f"tasks that share {d}, which not every state of the split loop has"
        return ""

    # -- axes -----------------------------------------------------------------------------------------------------

    def _grid_dims(self) -> list[Expr]:
        """Return the program dimensions that become axes of the plan's grid, as a list in the order of the axes.

        They are the dimensions that the grid can split, and an M of one element. If the grid splits M and N of all
        MMAs, the dimensions of C come last, and include dimensions of one element that all accumulators have. With
        split-K of a loop, dimensions that only some of the loop's carried values have are left out.
        """
        cut = self._with_unit_rows([d for d in self.facts.cut if d not in self._dims_of_some_states()])
        if not self.kernel.cuts_both:
            return cut
        total, *others = [op.operands[2].type.dims for op in self.products]
        result = [d for d in total if d in cut or (self.size(d) == 1 and all(d in dims for dims in others))]
        return [*(d for d in cut if d not in result), *result]

    def _dims_of_some_states(self) -> set[Expr]:
        """Return the dimensions that only some of the carried values of a loop have, if split-K splits this loop.

        The grid cannot split these dimensions, because each workgroup writes all carried values of its part of the
        loop. For a loop that carries `m[i]` and `acc[i, j]`, the result is {j}. The set is empty without split-K, and
        if the split loop is not one of the program.
        """
        loop = None if self.kernel.parts is None else self.facts.loops.get(self.kernel.parts.dim)
        if loop is None or loop.source is None:
            return set()
        dims = [set(v.type.dims) for v in loop.source.operands]
        return set.union(*dims) - set.intersection(*dims)

    def _with_unit_rows(self, cut: list[Expr]) -> list[Expr]:
        """Return the grid dimensions `cut`, plus M of each MMA if it has one element.

        If such an M is added, the result is in the order of the first write; otherwise it is `cut` itself.
        """
        rows = {axes.m for axes in self.axes.values() if isinstance(axes, Axes) and self.size(axes.m) == 1}
        if not rows - set(cut):
            return cut
        return list(cut_dims(self.facts.program, lambda d: 2 if d in rows else self.size(d), opened=self.facts.opened))

    def _grid_order(self, tasks: list[Expr]) -> list[Expr]:
        """Return the grid dimensions `tasks` in the order in which the grid iterates over them, outermost first.

        It is the memory order of the first write if three conditions hold: memory bandwidth limits the kernel; the grid
        splits M and N of all MMAs; and a workgroup has whole rows of C. Otherwise it is the order of `tasks`.
        """
        columns = [axes.n for axes in self.axes.values() if isinstance(axes, Axes)]
        has_rows = all(self._task_extent(n) >= self.size(n) for n in columns)
        if not (self.kernel.at_memory_bound and self.kernel.cuts_both and has_rows):
            return tasks
        coords = self.facts.writes[0].place.coords
        places = {name: n for n, form in reversed(list(enumerate(coords))) for name, _ in form}
        return sorted(
            tasks, key=lambda d: min((places[n] for n in self.facts.digit_names(d) if n in places), default=-1)
        )

    def _dims_before_m(self, tasks: list[Expr]) -> list[str]:
        """Return the names of the grid dimensions before M of the first MMA, such as batch and heads of attention.

        `tasks` are the dimensions of the grid, in order. Return [] if the grid does not split M. Every MMA must have an
        M.
        """
        rows = next(iter(self.axes.values()))
        assert isinstance(rows, Axes)
        return [str(d) for d in tasks[: tasks.index(rows.m)]] if rows.m in tasks else []

    def _raster_group(self) -> int:
        """Return the raster group: how many neighbouring tiles of C along M the grid visits before it steps along N.

        It is 1 if the grid does not split both M and N of all MMAs.
        """
        return self.kernel.raster if self.kernel.cuts_both else 1

    def _axis_name(self, d: Expr) -> str:
        """Return the name of the plan's axis of the dimension `d`: its name, plus `_part` if split-K splits `d`."""
        parts = self.kernel.parts
        return f"{d}_part" if parts is not None and str(d) == parts.dim else str(d)

    def _extent(self, d: Expr) -> int:
        """Return the number of elements of the plan's axis for the program dimension `d`.

        If split-K splits `d`, it is the elements of one part (the piece of K of one workgroup); else all elements.
        """
        parts = self.kernel.parts
        return parts.width if parts is not None and str(d) == parts.dim else self._unsplit_extent(d)

    def _unsplit_extent(self, d: Expr) -> int:
        """Return the number of elements of the plan's axis of `d` over the whole problem, as if there were no split-K.

        A block-diagonal B has the columns and rows of several GEMMs of a batch. The axes of N and K then count the
        elements of all GEMMs of a tile, and the axis of the batch dimension has one element per tile.
        """
        extent = prod(self.facts.extents.get(name, 1) for name in self.facts.digit_names(d))
        (axes, *_) = self.axes.values()
        if self.t.batch == 1 or not isinstance(axes, Axes):
            return extent
        if d in (axes.n, axes.k):
            return extent * self.t.batch
        return extent // self.t.batch if self._is_in_blocks(d) else extent

    def _is_in_blocks(self, d: Expr) -> bool:
        """True if a tile has several GEMMs along the batch dimension `d`, as the blocks of a block-diagonal B."""
        return any(c.is_batch and str(d) == c.dims[-1] and tile.size > 1 for c, tile in self.t.pairs())

    def _splits(self, d: Expr) -> tuple[Split, ...]:
        """Return a tuple of Splits (level, elements), outermost first: how the plan splits the axis of `d`.

        `Split("task", n)` means n elements per workgroup, `Split("loop", n)` n elements per iteration; an axis may have
        both. "loop" also covers K steps within a workgroup's tile. It is () if neither the grid nor a loop splits `d`.
        """
        cut = d in self._grid_dims()
        tile = next((self.t.tile_of(n) for n in self.facts.digit_names(d) if n in self.t.o.class_of), None)
        if tile is None:
            return (Split("task", self._task_extent(d)),) if cut else self._loop_of_unit_k(d)
        if tile.level == LOOP and cut:
            return (Split("task", tile.count * tile.size), Split("loop", tile.size))
        if cut:
            return (Split("task", self._task_extent(d)),)
        if tile.level == LOOP:
            box = max(dict(tile.box)[n] for n in self.facts.digit_names(d) if n in self.t.size)
            return (Split("loop", tile.size if self._has_k_steps(d, tile) else box),)
        return self._loop_of_linking_dim(d)

    def _loop_of_linking_dim(self, d: Expr) -> tuple[Split, ...]:
        """Return a loop Split of `d`, as a tuple of one, if `d` is N of one MMA and K of the next; else ().

        A workgroup then has all of `d` in the accumulator of the first MMA. The second MMA loads its B in steps along
        `d`, one slab (row of shared memory) at a time: the loop is over these steps. () also if one step suffices, if
        the program itself loops over `d`, or if operands that a workgroup loads once have two stages.
        """
        looped = any(op.name == "iterate" and op.attrs["axis"] is d for op in self.facts.program.walk())
        if looped or self.kernel.pipeline.roles.resident_stages > 1:
            return ()
        slab = self.kernel.mmas[-1].atom.slab or 1
        steps = self.t.steps_between(frozenset(self.facts.digit_names(d)), slab)
        return (Split("loop", slab),) if steps > 1 else ()

    def _loop_of_unit_k(self, d: Expr) -> tuple[Split, ...]:
        """Return (a loop Split,) for the one-element dimension `d`; () if the plan needs no loop over `d`.

        If `d` is the innermost K dimension of all MMAs, the loop has steps of one slab (row of shared memory). If `d`
        is another K dimension, and a loop splits K of the first MMA, the loop has steps of one element.
        """
        is_inner_k = all(isinstance(axes, Axes) and d is axes.k for axes in self.axes.values())
        for op, axes in self.axes.items():
            steps = isinstance(axes, Axes) and self.t.loops_over(self.kernel.mmas[0].oriented.product.k)
            if isinstance(axes, Axes) and d in axes.deep and steps:
                return (Split("loop", 1),)
            if is_inner_k and op in self.products:
                return (Split("loop", self.products[op].atom.slab or 1),)
        return ()

    def _has_k_steps(self, d: Expr, tile: AxisTile) -> bool:
        """True if a loop over K, with the tile `tile`, advances along `d` by whole K steps.

        It does if `d` is the only dimension of the tile, or the innermost K dimension of an MMA. Along other
        dimensions, such as filter taps, the loop advances one element at a time.
        """
        inner = [axes.k for axes in self.axes.values() if isinstance(axes, Axes)]
        return len(tile.box) == 1 or d in inner

    def _task_extent(self, d: Expr) -> int:
        """Return the number of elements of the program dimension `d` per workgroup.

        For M and N of an MMA it is padded to whole atoms. It is 1 for a batch dimension whose GEMMs are the blocks of a
        block-diagonal B, and for a dimension that has no tile.
        """
        for op, axes in self.axes.items():
            if isinstance(axes, Axes) and d in (axes.m, axes.n):
                rows, columns = self._tile_of_c(self.products[op])
                return rows if d is axes.m else columns
        if self._is_in_blocks(d):
            return 1
        return max((self.t.size[n] for n in self.facts.digit_names(d) if n in self.t.size), default=1)

    # -- products -------------------------------------------------------------------------------------------------

    def _tile_of_c(self, m: MmaTile) -> tuple[int, int]:
        """Return (rows along M, columns along N), in elements, of the tile of C that the MMA `m` computes.

        It is the tile of one workgroup.
        """
        flip = self.t.o.flips[self.t.o.products.index(m.oriented)]
        columns = m.columns * self.t.batch
        return (columns, m.rows) if flip else (m.rows, columns)

    def _mma_statements(self) -> tuple[ProductUnit, ...]:
        """Return a tuple with the plan's `mma` statement (a ProductUnit) for each MMA of the kernel.

        A statement has the MMA's name, its atom, its tile of C, and whether N lies on the atom's rows.
        """
        statements = []
        for m in self.kernel.mmas:
            flip = self.t.o.flips[self.t.o.products.index(m.oriented)]
            statements.append(ProductUnit(m.oriented.product.name, self._atom_name(m), *self._tile_of_c(m), flip))
        return tuple(statements)

    def _atom_name(self, m: MmaTile) -> str:
        """Return the name of the atom that the plan states for the MMA `m`.

        Usually it is the atom of `m`. If the pipeline loads A to registers once and keeps it there over the loop, it is
        the atom of the same shape that takes A from registers.
        """
        if self.kernel.pipeline.keeps_a and m.oriented.kept_atoms and not m.oriented.a_in_registers:
            kept = [x for x in m.oriented.kept_atoms if x.shape == m.atom.shape]
            is_kept = not self.t.loops_over(self.facts.nodes[m.oriented.a.reads[0]].dims)
            return kept[0].name if kept and is_kept else m.atom.name
        return m.atom.name

    # -- halo tiles -----------------------------------------------------------------------------------------------

    def _halo_plan(self) -> Schedule | Rejected:
        """Return the plan (a Schedule) of a convolution that loads A as halo tiles.

        A halo tile is an input patch, loaded once for all filter taps. A workgroup computes the box (rectangle) of
        output positions that need this patch. B is loaded in stages of some filter taps each, or once if B is resident.
        Return a Rejected instead if a stage has several taps along a dimension that is no axis of the plan.
        """
        windows = ((halo_window(self.t.o, c), tile) for c, tile in self.t.pairs() if tile.level == GRID)
        read, box = next((window.read, dict(tile.box)) for window, tile in windows if window is not None)
        op, m = next((op, m) for op, m in self.products.items() if read in m.oriented.a.reads)
        axes, offsets = self.axes[op], self.kernel.pipeline.offsets
        assert isinstance(axes, Axes)
        digits = tuple(
            Digit(n, self.facts.extents[n], self.facts.extents[n]) for n in self.facts.digit_names(axes.m) if n in box
        )
        total = [d for d in op.operands[2].type.dims if d is not axes.m]
        whole = [d for d in self.facts.order if d not in total and d is not axes.m]
        words = words_for([str(axes.m), *map(str, [*total, *whole])])
        word = words[str(axes.m)]
        around = [d for d in total if d is not axes.n]
        deep = [d for d in axes.deep if d in self.facts.order]
        loops = [axes.k, *deep]
        if offsets is not None and offsets > 1 and len(loops) < 2:
            return Rejected(
                refusal_name(self.kernel.mmas), f"{LACKS} stages of several taps of a dimension that is no axis"
            )
        cut = {d: Split("task", self._task_extent(d) if d is axes.n else 1) for d in total}
        cut |= {d: Split("loop", 1) for d in deep} | {axes.k: Split("loop", m.atom.slab or 1)}
        at = "start" if offsets == 0 else words[str(loops[-1] if offsets == 1 else loops[-2])]
        if offsets is not None and offsets > 1:
            cut[loops[-1]] = Split("loop", offsets)
        row_axis = Axis(word, digits, tuple(Split("task", box[d.name], d.name) for d in digits))
        axes_of_plan = [*(axis_of(words[str(d)], self._unsplit_extent(d), (cut[d],)) for d in around), row_axis]
        axes_of_plan += [
            axis_of(words[str(d)], self._unsplit_extent(d), (cut[d],) if d in cut else ()) for d in (axes.n, *whole)
        ]
        a, b = (self.facts.nodes[x.reads[0]].place.memory for x in (m.oriented.a, m.oriented.b))
        b = f"{b.removesuffix('_rows')}_diagonal" if self.t.batch > 1 else b
        return Schedule(
            tuple(axes_of_plan),
            (*(words[str(d)] for d in around), word, words[str(axes.n)]),
            tuple(words[str(d)] for d in loops),
            (ValuePlacement(a, words[str(axes.k)], "halo"), ValuePlacement(b, at, "panel")),
            products=self._mma_statements(),
            pipeline=self.kernel.pipeline.roles,
            early=True if "programmatic" in self.t.machine.launches else None,
        )
