"""A kernel's schedule, bound to its program: what the plan says of each dimension and each operation.

Nothing is stored beside the two. Each member of `BoundKernel` is read from statements of the plan, or follows from them
and from the program:

| member                                 | from                                                                  |
|----------------------------------------|-----------------------------------------------------------------------|
| `widths`, `blocks`, `tiles`, `depth`   | splits of axes, in the order of `grid` and of `loops`                 |
| `products`, `lane_kernels`             | `mma by ATOM, tile 64x64`, the pipeline, the K steps that axes state  |
| `packed`, `tiled`, `halo_taps`, `walk` | the lines of values, and the digits of axes                           |
| `padded`, `peeled`                     | splits, `peel`, and which operands are packed                         |
| `unrolled_terms`, `lane_box`           | the program's SIMT product, and the width of a task                   |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op
from tilewright.machine import MultiplyAtom
from tilewright.plan.bind_axes import loop_tile_size, tile_of_loop
from tilewright.plan.blocking import is_lane_unit, is_tile_atom
from tilewright.plan.chained import adds_products
from tilewright.plan.kernel import KernelProgram
from tilewright.plan.legality import groups_of, rows_in_k_step
from tilewright.plan.microkernel import Axes, LaneKernel, Microkernel, axes_in
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import PACKED, STREAM, STRIP, Axis, ProductUnit, Schedule, ValuePlacement
from tilewright.plan.term_boxes import max_unrolled_steps
from tilewright.plan.tiled import Depth, Tiled, Walk, lines_of_task, tap_shifts


@dataclass(frozen=True, eq=False)
class BoundKernel:
    """The program of a kernel, and a schedule whose axes are the dimensions of that program.

    Every MMA has a statement. If rows of the program were rewritten to boxes or to digits (mixed-radix parts), so were
    the axes of the schedule.
    """

    kernel: KernelProgram
    plan: Schedule

    # -- axes ------------------------------------------------------------------------------------------------

    @cached_property
    def axes(self) -> dict[Expr, Axis]:
        """{dimension: the plan's axis of it}; of two axes in a grid program, that of the workgroup's tile."""
        axes: dict[Expr, Axis] = {}
        for d, axis in self._dims_and_axes():
            if d not in axes or axis.split("task") is not None:
                axes[d] = axis
        return axes

    @cached_property
    def loop_axes(self) -> dict[Expr, Axis]:
        """{dimension: the plan's axis for loops over it}; of two axes in a grid program, the one without a task."""
        axes: dict[Expr, Axis] = {}
        for d, axis in self._dims_and_axes():
            if d not in axes or axis.split("task") is None:
                axes[d] = axis
        return axes

    def _dims_and_axes(self) -> Iterator[tuple[Expr, Axis]]:
        """Yield (dimension of the program, axis that names it), in the order of the plan."""
        return ((self.kernel.dims[axis.name], axis) for axis in self.plan.axes if axis.name in self.kernel.dims)

    # -- tasks and loops -------------------------------------------------------------------------------------

    @cached_property
    def widths(self) -> dict[Expr, int]:
        """{dimension that the grid splits: extent of a task}, in the order of the plan's `grid`.

        A task is longer than its dimension only if it is a tile: in a plan with a pipeline, or if a loop goes over it.
        It is {} for a grid program, whose tasks are the author's workgroups.
        """
        names = () if self.kernel.in_grid else self.plan.grid
        return {self.kernel.dims[name]: self._task_extent(self.kernel.dims[name]) for name in names}

    def _task_extent(self, d: Expr) -> int:
        """Return the extent of a task along `d`, whose axis states one; of a digit, with all digits within it."""
        axis = self.axes[d]
        split = axis.split("task")
        assert split is not None
        names = [digit.name for digit in axis.digits]
        within = axis.digits[names.index(split.digit) + 1 :] if split.digit is not None else ()
        extent = split.size * prod(digit.walked for digit in within)
        is_tile = self.plan.pipeline is not None or loop_tile_size(axis) is not None
        return extent if is_tile else min(extent, max(1, axis.walked))

    def width(self, d: Expr) -> int:
        """Return the extent of `d` that is computed at a time, in elements.

        It is the extent of a task (a workgroup's tile) if the grid splits `d`; else the loop tile if a loop is over
        `d`; else the whole extent of `d`.
        """
        if self.kernel.in_grid and d in self.axes and self.axes[d].split("task") is not None:
            return self._task_extent(d)
        return self.widths.get(d) or self.loop_tiles.get(d) or self.kernel.size(d)

    @cached_property
    def loop_tiles(self) -> dict[Expr, int]:
        """{dimension: tile size of the program's loop over it, in elements}, of the loops that stay loops.

        With a pipeline, a loop becomes the K loop of an MMA if its tile size does not change the result, and it either
        only adds MMAs or has no tile size from the author. Without, a loop over a dimension that the grid may split is
        left out.
        """
        kernel = self.kernel
        if self.plan.pipeline is None:
            stays = {op: d for op, d in kernel.loops.items() if d in self.loop_axes and d not in kernel.parallel}
        else:
            stays = {
                op: d
                for op, d in kernel.loops.items()
                if not (op in kernel.free and (adds_products(op) or str(d) not in kernel.stated))
            }
        return {d: tile_of_loop(kernel, op, self.loop_axes[d]) for op, d in stays.items()}

    @cached_property
    def tiles(self) -> dict[Op, int]:
        """{loop whose tile size does not change the result: its tile size}; of others the lowering chooses."""
        loops = {op: d for op, d in self.kernel.loops.items() if op in self.kernel.free}
        if self.plan.pipeline is not None:  # K loops go over all of K: their tile is the K step of an MMA
            return {op: self.loop_tiles.get(d) or self.kernel.size(d) for op, d in loops.items()}
        return {op: self.loop_tiles[d] for op, d in loops.items() if d in self.loop_tiles}

    @cached_property
    def blocks(self) -> dict[Expr, int]:
        """The loops of a task over its own tile: {dimension of a result: loop tile in elements}, outermost first.

        They are in the order that the plan's `loops` states. Without it, if all MMAs have the same M and N, the order
        is N, M, other dimensions of the accumulators, then the rest; otherwise it is the order of axes. With a
        pipeline, a task loops over columns only.
        """
        if self.plan.pipeline is not None:
            columns = {axes.n: loop_tile_size(self.axes[axes.n]) for axes in self._columns_in_grid()}
            return {d: tile for d, tile in columns.items() if tile is not None and tile != self.widths[d]}
        if self.plan.loops:
            return {d: split_tile(self.axes[d], 1)[0] for d, number in self._stated_loops if not self._is_k(d, number)}
        stated = {d: n for d, axis in self.axes.items() if d in self.kernel.parallel and (n := loop_tile_size(axis))}
        every = [axes_in(op, self.width) for op in self.kernel.products.values()]
        orders = [[x.n, x.m, *x.around] for x in every if not isinstance(x, str)]
        if not orders or len(orders) < len(every) or any(order != orders[0] for order in orders):
            return stated
        order = orders[0]
        return dict(sorted(stated.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))

    def _columns_in_grid(self) -> Iterator[Axes]:
        """Yield the Axes of each MMA whose N the grid splits."""
        return (axes for axes in self.mma_axes.values() if axes.n in self.widths)

    @cached_property
    def _stated_loops(self) -> list[tuple[Expr, int]]:
        """[(dimension, number of its loop)] for each entry of the plan's `loops`: 2 for `K.2`, the second loop of K."""
        entries = (name.partition(".") for name in self.plan.loops)
        return [(self.kernel.dims[name], int(number or 1)) for name, _, number in entries]

    def _is_k(self, d: Expr, number: int) -> bool:
        """True if a loop is a K loop: not the first one over a dimension of an accumulator that stays in registers."""
        return number > 1 or not any(d in op.operands[2].type.dims for op in self.packed_b)

    @cached_property
    def depth(self) -> tuple[Depth, ...]:
        """The K loops of the MMAs that the plan's `loops` states, outermost first; (): the lowering chooses."""
        if self.plan.pipeline is not None:
            return ()
        loops = [(d, number) for d, number in self._stated_loops if self._is_k(d, number)]
        return tuple(Depth(d, *split_tile(self.axes[d], number)) for d, number in loops)

    @cached_property
    def summed(self) -> dict[Expr, Depth]:
        """{reduction dimension: Depth (tile size, unrolled or not) of the outermost K loop over that dimension}."""
        return {s.dim: s for s in reversed(self.depth)}

    @cached_property
    def padded(self) -> dict[Expr, int]:
        """{dimension whose ragged tail is padded: to a multiple of which size}; what is past the end is never stored.

        Columns of packed B are padded to whole accumulator tiles, lanes to whole vectors. If sizes are known only at
        the call, the outermost loop of a task has one code for all of its tiles. With a pipeline, an accumulator may
        have more columns than there are.
        """
        if self.plan.pipeline is not None:
            columns = {axes.n: self.products[op] for op, axes in self.mma_axes.items()}
            tiles = {d: how.tile[1] for d, how in columns.items() if how is not None}
            free = {d: n for d, n in tiles.items() if d not in self.widths and d not in self.loop_tiles}
            return {d: n for d, n in free.items() if n > self.kernel.size(d)}
        if self.packed_b:
            lanes = {how.along: how.lanes for how in self.lane_kernels.values()}
            columns_of_tiles = [op.operands[2].type.dims[-1] for op in self.packed_b if op not in self.lane_kernels]
            return {**{d: self.blocks[d] for d in columns_of_tiles}, **lanes}
        outermost = list(self.blocks)[: int(bool(self.kernel.opened) and not self.kernel.in_grid)]
        return {d: self.blocks[d] for d in outermost}

    @cached_property
    def peeled(self) -> dict[Expr, tuple[int, int]]:
        """{dimension: (tiles peeled at the start, at the end)}, of those for which the plan decides it.

        These are the dimensions of products by lanes. Of others, one tile is peeled at each end where an operand slides
        out of bounds, and the last where the extent is known only at the call.
        """
        dims = [d for how in self.lane_kernels.values() for d in (how.rows, how.along)]
        return {d: self.axes[d].peeled for d in dims}

    # -- products --------------------------------------------------------------------------------------------

    @cached_property
    def statements(self) -> dict[Op, ProductUnit]:
        """{mma: the plan's statement for it}."""
        statements = {statement.name: statement for statement in self.plan.products}
        return {op: statements[name] for name, op in self.kernel.products.items() if name in statements}

    @cached_property
    def mma_axes(self) -> dict[Op, Axes]:
        """{mma: Axes (its dimensions M, N and K)} of a plan with a pipeline, for every MMA of the kernel.

        If an MMA has several row dimensions, M is the last one with more than one element in a task (one workgroup's
        tile). Raises an error for an MMA that can have no accumulator tile.
        """
        axes_of: dict[Op, Axes] = {}
        for op in self.kernel.products.values():
            product_axes = axes_in(op, self.width)
            if isinstance(product_axes, str):
                raise refused(self.plan.pipeline or "", product_axes)
            axes_of[op] = product_axes
        return axes_of

    @cached_property
    def products(self) -> dict[Op, Microkernel | None]:
        """{mma: Microkernel (its atom and accumulator tile)}; None: vectors along a shared dimension, or scalar loops.

        Without a pipeline it is what the statement says. With one, it has consumer waves and a K step too.
        """
        return {op: self.microkernel(op) for op in self.statements}

    def microkernel(self, op: Op) -> Microkernel | None:
        """Return the Microkernel that the plan states for the mma `op`; None if it has no atom.

        With a pipeline, raise an error that quotes the plan if its waves or K steps are illegal for this MMA.
        """
        statement, pipeline = self.statements[op], self.plan.pipeline
        if statement.atom is None or is_lane_unit(statement.atom):
            return None
        atom = self.kernel.machine.multiply_atom(statement.atom)
        rows, columns = (
            (statement.columns, statement.rows) if statement.transposed else (statement.rows, statement.columns)
        )
        if pipeline is None:
            return Microkernel(atom, rows, columns)
        groups = groups_of(pipeline, statement, atom, self.kernel.machine, len(self.kernel.products))
        blocks = op.attrs.get("blocks", 1)
        if pipeline.halo_stages:
            return Microkernel(atom, rows, columns, groups, blocks=blocks)
        slabs = self.k_step_rows(op, atom)
        return Microkernel(
            atom,
            rows,
            columns,
            groups,
            at_once=slabs == 0,
            transposed=statement.transposed,
            blocks=blocks,
            slabs=max(1, slabs),
            taps=self._k_step_taps(op, atom) if slabs else (),
        )

    def k_step_rows(self, op: Op, atom: MultiplyAtom) -> int:
        """Return the length of a K step of the mma `op`, in rows of shared memory; 0 if `op` has no K loop of its own.

        A row is `atom.slab` elements of K, side by side as the atom reads them. At 0, all of K, or of its tile in a
        loop around the MMAs, lies in shared memory at once. A K step is the loop tile that K's axis states; all of K if
        it states none and filter taps are reduced too; one row if the plan has no axis of K. Raise an error, which
        quotes the plan's line for `op`, if the K step is no whole number of rows or is longer than K.
        """
        axes, row, size = self.mma_axes[op], atom.slab or 1, self.kernel.size
        if axes.k in self.loop_tiles:
            return 0
        if axes.k not in self.axes:  # an expression of sizes, of which a plan has no axis
            return 1
        step = loop_tile_size(self.axes[axes.k])
        several = any(size(d) > 1 for d in axes.deep)
        if step is not None and step >= size(axes.k) and self.loop_tiles and not several:
            return 0
        if step is None and several:  # all of K, for one tap after the other
            step = -(-size(axes.k) // row) * row
        return 0 if step is None else rows_in_k_step(self.axes[axes.k], step, size(axes.k), self.statements[op], row)

    def _k_step_taps(self, op: Op, atom: MultiplyAtom) -> tuple[int, ...]:
        """Return the extents of a K step along reduction dimensions besides K, such as filter taps; () if all are 1.

        An extent is the loop tile that the plan's axis states; all of the dimension if the axis states none; 1 if the
        plan has no axis of it. Raise an error if an extent does not divide its dimension, or is above 1 although the
        atom can read only one tap at a time; the latter quotes the plan's line for the mma `op`.
        """
        taps = []
        for d in self.mma_axes[op].deep:
            extent, axis = self.kernel.size(d), self.axes.get(d)
            taps.append(1 if axis is None else loop_tile_size(axis) or extent)
            if extent % taps[-1]:
                raise refused(axis, f"steps of {taps[-1]} do not divide its {extent}")
            if taps[-1] > 1 and (op.attrs.get("blocks", 1) > 1 or Microkernel(atom, 1, 1).held_a):
                raise refused(
                    (axis, self.statements[op]), f"{atom.name} reads one place of {d} after the other: `loop 1`"
                )
        return tuple(taps) if any(n > 1 for n in taps) else ()

    @cached_property
    def lane_kernels(self) -> dict[Op, LaneKernel]:
        """{mma: LaneKernel (vectors along a dimension that A, B and the result share)}, as in depthwise convolutions.

        The shared dimension is the result's last one. The rows of a block of accumulators are the last dimension that
        only A and the result have.
        """
        lane_kernels: dict[Op, LaneKernel] = {}
        for op, statement in self.statements.items():
            if statement.atom is not None and is_lane_unit(statement.atom):
                a, b, c = (v.type.dims for v in op.operands)
                unit = self.axes[c[-1]].split("unit")
                assert unit is not None
                lane_kernels[op] = LaneKernel(unit.size, [d for d in c if d in a and d not in b][-1], c[-1])
        return lane_kernels

    # -- operands --------------------------------------------------------------------------------------------

    @cached_property
    def packed(self) -> bool:
        """True if B operands that are arguments are packed before the program runs, even if they could be read in
        place.

        The plan says so, or some size is known only at the call.
        """
        is_open = bool(self.kernel.opened) and self.plan.pipeline is None and not self.kernel.in_grid
        return is_open or any(line.form == PACKED for line in self.plan.values)

    @cached_property
    def packed_b(self) -> dict[Op, ValuePlacement]:
        """{mma: the plan's line that packs its operand B}: the accumulators of these MMAs stay in registers over K."""
        return {op: line for op in self.kernel.products.values() if (line := self._line(op, 1)) is not None}

    def _line(self, op: Op, side: int) -> ValuePlacement | None:
        """Return the plan's line of operand A (side 0) or B (side 1) of an MMA; None if it has none, or is computed.

        The line of an operand B says `packed`, that of an operand A does not: both may read the same argument.
        """
        read = self._read(op, side)
        name = None if read is None else read.operands[0].name
        return next((x for x in self.plan.values if x.name == name and (x.form == PACKED) == (side == 1)), None)

    def _read(self, op: Op, side: int) -> Op | None:
        """Return the read of operand A (side 0) or B (side 1) of an MMA; None if it is computed."""
        axes = axes_in(op, lambda d: 2)
        factors = op.operands[:2] if isinstance(axes, str) else axes.factors(op)
        read = self.kernel.makers.get(factors[side])
        return read if read is not None and read.name == "read" else None

    @cached_property
    def tiled(self) -> dict[Op, Tiled]:
        """{mma: Tiled}: MMAs in tile registers that a task keeps for all of its blocks; of others the lowering chooses.

        The plan packs their operand B. Their M, N and K are the last dimensions of their operands.
        """
        tiled: dict[Op, Tiled] = {}
        for op, b in self.packed_b.items():
            how, axes, a, read = self.products.get(op), axes_in(op, lambda d: 2), self._line(op, 0), self._read(op, 0)
            if how is None or not is_tile_atom(how.atom) or isinstance(axes, str):
                continue
            streams = a is not None and a.hint == STREAM, b.hint == STREAM
            if a is None or a.at is None or read is None:
                tiled[op] = Tiled(axes, streams)
                continue
            walk = lines_of_task(self.axes[axes.m])
            tiled[op] = Tiled(axes, streams, tap_shifts(read, axes, walk) if a.form == STRIP else {}, walk)
        return tiled

    @cached_property
    def halo_taps(self) -> int | None:
        """If operand A is copied as a halo tile: how many filter taps a stage of B has; else None.

        It is 0 if all of B is copied before the first task. If B is copied for a step of the last loop, a stage has one
        tap; else all taps of that loop.
        """
        if not self.has_halo:
            return None
        b = next(line for line in self.plan.values if line.form == "panel")
        if b.at == "start":
            return 0
        last = next((axis for axis in self.plan.axes if axis.name == self.plan.loops[-1]), None)
        return 1 if last is None or b.at == last.name else last.walked

    @property
    def has_halo(self) -> bool:
        """True if operand A is copied as a halo tile."""
        return self.plan.pipeline is not None and self.plan.pipeline.halo_stages > 0

    @cached_property
    def _axis_of_lines(self) -> Axis | None:
        """The axis of a halo tile's rows, if they run on from line to line; else None."""
        axes = self.plan.axes if self.has_halo else ()
        return next((x for x in axes if x.digits[-1].walked != x.digits[-1].extent), None)

    @cached_property
    def walk(self) -> Walk | None:
        """The lines of a halo tile, if rows run on from line to line; else None."""
        if self._axis_of_lines is None:
            return None
        *_, lines, place = self._axis_of_lines.digits
        return Walk(lines.extent, lines.extent, place.extent, place.walked)

    @cached_property
    def image_rows(self) -> tuple[int, int]:
        """(images of a halo tile whose rows run on from line to line, rows of each): rows are padded to whole atoms."""
        axis = self._axis_of_lines
        assert axis is not None
        images = prod(digit.extent for digit in axis.digits[:-2])
        return images, self._task_extent(self.kernel.dims[axis.name]) // images

    # -- products of lanes -----------------------------------------------------------------------------------

    @cached_property
    def unrolled_terms(self) -> int | None:
        """In a SIMT product, how many K steps are unrolled at most; None: atoms compute the MMAs."""
        if self.kernel.simt is None:
            return None
        (tile,) = self.tiles.values()
        simt = replace(self.kernel.simt, tile=tile)
        return max_unrolled_steps(simt, self.widths, self.plan.waves, self.kernel.machine)

    @property
    def lane_box(self) -> tuple[Expr, ...]:
        """The dimensions of the box (rectangle of neighbouring results) that every lane computes; shared inputs are
        loaded once.
        """
        return () if self.kernel.simt is None else self.kernel.simt.box


def split_tile(axis: Axis, number: int) -> tuple[int, bool]:
    """Return (tile size, True if unrolled) of loop number `number` of an axis: of its splits at level loop or unit.

    >>> from tilewright.plan.text import parse_plan
    >>> (axis,) = parse_plan("axis K = (K 512): task 256, loop 128, unit 32").axes
    >>> split_tile(axis, 1), split_tile(axis, 2)
    ((128, False), (32, True))
    """
    split = [split for split in axis.splits if split.is_loop][number - 1]
    return split.size, split.is_unrolled
