"""A kernel's schedule, bound to its program: the tiles of each dimension and the atom of each MMA.

`BoundKernel` stores only the two. Each other member follows from statements of the plan and from the program:

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
from tilewright.plan.microkernel import Axes, LaneKernel, Microkernel, axes_in, links_products
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import PACKED, STREAM, STRIP, Axis, ProductUnit, Schedule, ValuePlacement
from tilewright.plan.simt_boxes import max_unrolled_steps
from tilewright.plan.tile_register_tasks import LineLayout, ReductionLoop, TileRegisterMma, lines_of_task, tap_shifts


@dataclass(frozen=True, eq=False)
class BoundKernel:
    """A kernel's program and its schedule (plan), whose axes are the dimensions of that program.

    Every MMA has a statement. If rows of the program were rewritten to boxes or to digits (mixed-radix parts), so were
    the axes of the schedule.
    """

    kernel: KernelProgram
    plan: Schedule

    # -- axes ------------------------------------------------------------------------------------------------

    @cached_property
    def axes(self) -> dict[Expr, Axis]:
        """The plan's axes by dimension: {dimension of the program: its Axis, the splits into tasks and loops}.

        A grid program's plan can have two axes of one dimension: the one with the workgroup's tile is returned.
        """
        axes: dict[Expr, Axis] = {}
        for d, axis in self._dims_and_axes():
            if d not in axes or axis.split("task") is not None:
                axes[d] = axis
        return axes

    @cached_property
    def loop_axes(self) -> dict[Expr, Axis]:
        """The plan's axes for loops: {dimension of the program: the Axis whose splits give the tiles of loops over it}.

        A grid program's plan can have two axes of one dimension: the one without a workgroup's tile is returned.
        """
        axes: dict[Expr, Axis] = {}
        for d, axis in self._dims_and_axes():
            if d not in axes or axis.split("task") is None:
                axes[d] = axis
        return axes

    def _dims_and_axes(self) -> Iterator[tuple[Expr, Axis]]:
        """Yield (dimension of the program, the plan's Axis that names it) for each axis, in the order of the plan."""
        return ((self.kernel.dims[axis.name], axis) for axis in self.plan.axes if axis.name in self.kernel.dims)

    # -- tasks and loops -------------------------------------------------------------------------------------

    @cached_property
    def widths(self) -> dict[Expr, int]:
        """The extents of a task: {dimension that the grid splits: elements}, in the order of the plan's `grid`.

        A task is one workgroup's tile. In a plan with a pipeline, or along a dimension with a loop, an extent may
        exceed the padded extent of the dimension's axis; otherwise it does not. The result is {} for a grid program,
        because the author's workgroups are its tasks.
        """
        names = () if self.kernel.in_grid else self.plan.grid
        return {self.kernel.dims[name]: self._task_extent(self.kernel.dims[name]) for name in names}

    def _task_extent(self, d: Expr) -> int:
        """Return the extent of a task (one workgroup's tile) along the dimension `d`, in elements.

        The axis of `d` must have a task split. If the split names a digit (mixed-radix part) of `d`, the padded extents
        of the digits within that digit are multiplied in: `task p 2` of (p 7, q 9) is 18. Without a pipeline or a loop
        over `d`, the extent is at most the axis's padded extent.
        """
        axis = self.axes[d]
        split = axis.split("task")
        assert split is not None
        names = [digit.name for digit in axis.digits]
        within = axis.digits[names.index(split.digit) + 1 :] if split.digit is not None else ()
        extent = split.size * prod(digit.padded_extent for digit in within)
        is_tile = self.plan.pipeline is not None or loop_tile_size(axis) is not None
        return extent if is_tile else min(extent, max(1, axis.padded_extent))

    def width(self, d: Expr) -> int:
        """Return the extent of the dimension `d` that is computed at a time, in elements.

        It is the extent of a task (one workgroup's tile) if the grid splits `d`; else the loop tile if a loop is over
        `d`; else the whole extent of `d`.
        """
        if self.kernel.in_grid and d in self.axes and self.axes[d].split("task") is not None:
            return self._task_extent(d)
        return self.widths.get(d) or self.loop_tiles.get(d) or self.kernel.size(d)

    @cached_property
    def loop_tiles(self) -> dict[Expr, int]:
        """The tile sizes of the program's loops that stay loops: {dimension of the loop: tile size in elements}.

        Without a pipeline, a loop stays unless the grid may split its dimension, or the plan has no axis of this
        dimension. With a pipeline, a loop stays unless it is a K loop, which the MMA's own K loop replaces. A K loop
        here is a loop whose tile size does not change the result, and that only adds up MMAs or has no tile size from
        the author.

        Raises an ArgumentError if the plan changes the tile of a loop whose result depends on its tile size.
        """
        kernel = self.kernel
        if self.plan.pipeline is None:
            stays = {op: d for op, d in kernel.loops.items() if d in self.loop_axes and d not in kernel.parallel}
        else:
            stays = {
                op: d
                for op, d in kernel.loops.items()
                if not (op in kernel.free and (adds_products(op) or str(d) not in kernel.author_loop_tiles))
            }
        return {d: tile_of_loop(kernel, op, self.loop_axes[d]) for op, d in stays.items()}

    @cached_property
    def tiles(self) -> dict[Op, int]:
        """The tile sizes of the loops whose tile size does not change the result: {loop operation: elements}.

        With a pipeline, all these loops are listed: one without a tile has its whole extent. Without a pipeline, only
        those in `loop_tiles` are listed; the lowering chooses the tile sizes of the others.
        """
        loops = {op: d for op, d in self.kernel.loops.items() if op in self.kernel.free}
        if self.plan.pipeline is not None:  # K loops cover all of K: their tile is the K step of an MMA
            return {op: self.loop_tiles.get(d) or self.kernel.size(d) for op, d in loops.items()}
        return {op: self.loop_tiles[d] for op, d in loops.items() if d in self.loop_tiles}

    @cached_property
    def blocks(self) -> dict[Expr, int]:
        """The loops of a task over its own tile: {dimension of a result: loop tile in elements}, outermost first.

        A task is one workgroup's tile. With a pipeline, the only possible loop is over N: if a task has several
        accumulator tiles along N. Otherwise the order is that of the plan's `loops`, without K loops. Without `loops`
        it depends on the MMAs: if all have the same M and N, it is N, M, other dimensions of the accumulators, then the
        rest; else it is the order of axes.
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
        """Yield the Axes (which dimensions are M, N and K) of each MMA whose N the grid splits."""
        return (axes for axes in self.mma_axes.values() if axes.n in self.widths)

    @cached_property
    def _stated_loops(self) -> list[tuple[Expr, int]]:
        """The loops of the plan's statement `loops`, as [(dimension, number of the loop over it)], outermost first.

        `K` is (K, 1), the first loop over K; `K.2` is (K, 2), the second.
        """
        entries = (name.partition(".") for name in self.plan.loops)
        return [(self.kernel.dims[name], int(number or 1)) for name, _, number in entries]

    def _is_k(self, d: Expr, number: int) -> bool:
        """True if a loop over the dimension `d` is a K loop of an MMA; False if it iterates over accumulator tiles.

        Loops over `d` are numbered from 1 on, in the order of the plan; `number` is the loop's. The first one is over
        accumulator tiles if the accumulator of an MMA with packed B has the dimension `d`. All other loops are K loops.
        """
        return number > 1 or not any(d in op.operands[2].type.dims for op in self.packed_b)

    @cached_property
    def depth(self) -> tuple[ReductionLoop, ...]:
        """The K loops that the plan's `loops` states, outermost first, as ReductionLoops.

        A ReductionLoop has the dimension, the tile size, and whether the loop is unrolled. The result is () if the plan
        states no K loop, or has a pipeline: the lowering then makes the K loops.
        """
        if self.plan.pipeline is not None:
            return ()
        loops = [(d, number) for d, number in self._stated_loops if self._is_k(d, number)]
        return tuple(ReductionLoop(d, *split_tile(self.axes[d], number)) for d, number in loops)

    @cached_property
    def summed(self) -> dict[Expr, ReductionLoop]:
        """The outermost K loop of each reduction dimension: {dimension: ReductionLoop (tile size, unrolled or not)}.

        Only the K loops that the plan's `loops` states are listed.
        """
        return {s.dim: s for s in reversed(self.depth)}

    @cached_property
    def padded(self) -> dict[Expr, int]:
        """The dimensions whose ragged tail is padded: {dimension: padded to a multiple of this number of elements}.

        Elements past the end are never stored. The first case that applies decides:

        - with a pipeline, an N that is in no task or loop, and shorter than its accumulator tile, is padded to the
          tile;
        - if B is packed, N is padded to whole accumulator tiles, and the dimension of vectors to whole vectors;
        - if sizes are known only at the call, the outermost loop of a task is padded, so that one code serves all of
          its tiles;
        - else no dimension is padded.
        """
        if self.plan.pipeline is not None:
            columns = {axes.n: self.products[op] for op, axes in self.mma_axes.items()}
            tiles = {d: microkernel.tile[1] for d, microkernel in columns.items() if microkernel is not None}
            free = {d: n for d, n in tiles.items() if d not in self.widths and d not in self.loop_tiles}
            return {d: n for d, n in free.items() if n > self.kernel.size(d)}
        if self.packed_b:
            lanes = {microkernel.along: microkernel.lanes for microkernel in self.lane_kernels.values()}
            columns_of_tiles = [op.operands[2].type.dims[-1] for op in self.packed_b if op not in self.lane_kernels]
            return {**{d: self.blocks[d] for d in columns_of_tiles}, **lanes}
        outermost = list(self.blocks)[: int(bool(self.kernel.opened) and not self.kernel.in_grid)]
        return {d: self.blocks[d] for d in outermost}

    @cached_property
    def peeled(self) -> dict[Expr, tuple[int, int]]:
        """The peeled tiles of a loop that the plan states: {dimension: (tiles at the start, tiles at the end)}.

        A peeled tile has code of its own. Only the dimensions of MMAs with vectors along a dimension that A, B and the
        result share are listed; for other dimensions the lowering decides.
        """
        dims = [d for kernel in self.lane_kernels.values() for d in (kernel.rows, kernel.along)]
        return {d: self.axes[d].peeled for d in dims}

    # -- products --------------------------------------------------------------------------------------------

    @cached_property
    def statements(self) -> dict[Op, ProductUnit]:
        """The plan's statements for MMAs: {mma: its ProductUnit (atom, accumulator tile)}."""
        statements = {statement.name: statement for statement in self.plan.products}
        return {op: statements[name] for name, op in self.kernel.products.items() if name in statements}

    @cached_property
    def mma_axes(self) -> dict[Op, Axes]:
        """The Axes (which dimensions are M, N and K) of every MMA, for a plan with a pipeline: {mma: Axes}.

        If an MMA has several row dimensions, M is the last one with more than one element in a task (one workgroup's
        tile). Raises an ArgumentError for an MMA that can have no accumulator tile.
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
        """The Microkernel (atom and accumulator tile) of each MMA: {mma: Microkernel or None}.

        None stands for scalar loops, and for vectors along a dimension that A, B and the result share. With a pipeline,
        a Microkernel also has the number of consumer wave groups and the K step. Raises an ArgumentError if the plan's
        waves or K steps are illegal for an MMA.
        """
        return {op: self.microkernel(op) for op in self.statements}

    @cached_property
    def links_products(self) -> bool:
        """True if operand A or B of an MMA depends on the result of an MMA or of a loop, as in attention."""
        return links_products(self.kernel.program, self.statements)

    def microkernel(self, op: Op) -> Microkernel | None:
        """Return the Microkernel (atom, accumulator tile, K step) that the plan states for the mma `op`.

        It is None if the statement has no atom (scalar loops), or names the SIMD unit for a dimension that A, B and the
        result share. With a pipeline, raise an ArgumentError that quotes the plan if its waves or K steps are illegal
        for this MMA.
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
        groups = groups_of(pipeline, statement, atom, self.kernel.machine, self.links_products)
        blocks = op.attrs.get("blocks", 1)
        if pipeline.halo_stages:
            return Microkernel(atom, rows, columns, groups, blocks=blocks)
        slabs = self.k_step_rows(op, atom)
        return Microkernel(
            atom,
            rows,
            columns,
            groups,
            all_of_k_at_once=slabs == 0,
            transposed=statement.transposed,
            blocks=blocks,
            slabs=max(1, slabs),
            taps=self._k_step_taps(op, atom) if slabs else (),
        )

    def k_step_rows(self, op: Op, atom: MultiplyAtom) -> int:
        """Return the length of a K step of the mma `op`, in rows of shared memory; 0 if `op` has no K loop of its own.

        A row is `atom.slab` contiguous elements of K. 0 means that all of K is in shared memory at once, or all of K's
        tile in a loop around the MMAs. Otherwise the K step is the loop tile that K's axis states. There are four
        special cases, in which reduction dimensions besides K (filter taps) count if they have more than one element:

        - the axis states no loop tile, and there are no filter taps: the result is 0;
        - the axis states no loop tile, and there are filter taps: the step is all of K;
        - the axis states all of K, the program has a loop around its MMAs, and there are no filter taps: the result is
          0;
        - the plan has no axis of K: the step is one row.

        Raise an ArgumentError, which quotes the plan, if the K step is no whole number of rows or is longer than K.
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
        if step is None and several:  # all of K, one filter tap after the other
            step = -(-size(axes.k) // row) * row
        return 0 if step is None else rows_in_k_step(self.axes[axes.k], step, size(axes.k), self.statements[op], row)

    def _k_step_taps(self, op: Op, atom: MultiplyAtom) -> tuple[int, ...]:
        """Return the extents of a K step along the reduction dimensions other than K, such as filter taps.

        The result is () if all extents are 1. An extent is the loop tile that the plan's axis states. It is the whole
        dimension if the axis states none, and 1 if the plan has no axis of the dimension. Raise an ArgumentError if an
        extent does not divide its dimension.

        Some MMAs do only one tap at a time: an `op` of several diagonal blocks, and every MMA whose `atom` takes A from
        registers and B from shared memory. Raise an ArgumentError, which quotes the plan's line for `op`, if such an
        MMA has an extent above 1.
        """
        taps = []
        for d in self.mma_axes[op].deep:
            extent, axis = self.kernel.size(d), self.axes.get(d)
            taps.append(1 if axis is None else loop_tile_size(axis) or extent)
            if extent % taps[-1]:
                raise refused(axis, f"steps of {taps[-1]} do not divide its {extent}")
            if taps[-1] > 1 and (op.attrs.get("blocks", 1) > 1 or Microkernel(atom, 1, 1).a_in_registers):
                raise refused(
                    (axis, self.statements[op]), f"{atom.name} reads one place of {d} after the other: `loop 1`"
                )
        return tuple(taps) if any(n > 1 for n in taps) else ()

    @cached_property
    def lane_kernels(self) -> dict[Op, LaneKernel]:
        """The MMAs with vectors along a dimension that A, B and the result share: {mma: LaneKernel}.

        A depthwise convolution is an example. A LaneKernel has the vector's length, the shared dimension (the result's
        last one), and the dimension of the accumulator tile's rows: the last one that A and the result have and B
        lacks.
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
        """True if operands B that are arguments are packed into the atom's layout before the program runs.

        They are if the plan packs any operand. They also are if some size is known only at the call, except with a
        pipeline and in grid programs.
        """
        is_open = bool(self.kernel.opened) and self.plan.pipeline is None and not self.kernel.in_grid
        return is_open or any(line.form == PACKED for line in self.plan.values)

    @cached_property
    def packed_b(self) -> dict[Op, ValuePlacement]:
        """The MMAs whose operand B the plan packs: {mma: ValuePlacement (the statement, with its cache hint)}.

        The accumulators of these MMAs stay in registers over all of K.
        """
        return {op: line for op in self.kernel.products.values() if (line := self._line(op, 1)) is not None}

    def _line(self, op: Op, side: int) -> ValuePlacement | None:
        """Return the plan's statement on operand A (`side` 0) or B (`side` 1) of the mma `op`; None if there is none.

        Both operands may read the same argument: a statement with the form `packed` is on B, any other is on A. An
        operand that is computed has no statement.
        """
        read = self._read(op, side)
        name = None if read is None else read.operands[0].name
        return next((x for x in self.plan.values if x.name == name and (x.form == PACKED) == (side == 1)), None)

    def _read(self, op: Op, side: int) -> Op | None:
        """Return the read operation of operand A (`side` 0) or B (`side` 1) of the mma `op`; None if it is computed."""
        axes = axes_in(op, lambda d: 2)
        factors = op.operands[:2] if isinstance(axes, str) else axes.operands(op)
        read = self.kernel.makers.get(factors[side])
        return read if read is not None and read.name == "read" else None

    @cached_property
    def tiled(self) -> dict[Op, TileRegisterMma]:
        """The MMAs in tile registers (matrix unit) whose operand B the plan packs: {mma: TileRegisterMma}.

        A TileRegisterMma has the MMA's M, N and K, the cache hints of A and B, and the lines of A that a task (one
        core's tile) copies to a buffer, if the plan says so. The lowering chooses all this for other MMAs.
        """
        tiled: dict[Op, TileRegisterMma] = {}
        for op, b in self.packed_b.items():
            kernel, axes, a, read = (
                self.products.get(op),
                axes_in(op, lambda d: 2),
                self._line(op, 0),
                self._read(op, 0),
            )
            if kernel is None or not is_tile_atom(kernel.atom) or isinstance(axes, str):
                continue
            streams = a is not None and a.hint == STREAM, b.hint == STREAM
            if a is None or a.at is None or read is None:
                tiled[op] = TileRegisterMma(axes, streams)
                continue
            walk = lines_of_task(self.axes[axes.m])
            tiled[op] = TileRegisterMma(axes, streams, tap_shifts(read, axes, walk) if a.form == STRIP else {}, walk)
        return tiled

    @cached_property
    def halo_taps(self) -> int | None:
        """The number of filter taps of operand B in one copy to shared memory; None if A is not a halo tile.

        A halo tile is an input tile with its surroundings; the plan must then place B as a panel. The plan's statement
        on B says when B is copied:

        - `at start`, once before the first task: the number is 0, and the copy has all of B;
        - at each step of the innermost loop: a copy has 1 tap;
        - at each step of an outer loop: a copy has all taps of the innermost loop, the padded extent of its axis; 1 if
          that loop has no axis.
        """
        if not self.has_halo:
            return None
        b = next(line for line in self.plan.values if line.form == "panel")
        if b.at == "start":
            return 0
        last = next((axis for axis in self.plan.axes if axis.name == self.plan.loops[-1]), None)
        return 1 if last is None or b.at == last.name else last.padded_extent

    @property
    def has_halo(self) -> bool:
        """True if operand A is copied to shared memory as a halo tile: an input tile with its surroundings.

        The plan's pipeline then states `halo stages`.
        """
        return self.plan.pipeline is not None and self.plan.pipeline.halo_stages > 0

    @cached_property
    def _axis_of_lines(self) -> Axis | None:
        """The plan's axis of M if the rows of a halo tile run on from image line to image line; else None.

        A halo tile is an input tile with its surroundings. Rows run on if the axis's last digit (mixed-radix part) is
        padded.
        """
        axes = self.plan.axes if self.has_halo else ()
        return next((x for x in axes if x.digits[-1].padded_extent != x.digits[-1].extent), None)

    @cached_property
    def walk(self) -> LineLayout | None:
        """The LineLayout (lines, length, pitch) of one image if a halo tile's rows run on from line to line; else None.

        A halo tile is an input tile with its surroundings. The pitch is the number of pixels from one line to the next.
        """
        if self._axis_of_lines is None:
            return None
        *_, lines, place = self._axis_of_lines.digits
        return LineLayout(lines.extent, lines.extent, place.extent, place.padded_extent)

    @cached_property
    def image_rows(self) -> tuple[int, int]:
        """(images in a halo tile whose rows run on from line to line, accumulator rows of each image).

        A halo tile is an input tile with its surroundings. The rows of an image are padded to whole atoms. The kernel
        must have such a halo tile.
        """
        axis = self._axis_of_lines
        assert axis is not None
        images = prod(digit.extent for digit in axis.digits[:-2])
        return images, self._task_extent(self.kernel.dims[axis.name]) // images

    # -- products of lanes -----------------------------------------------------------------------------------

    @cached_property
    def unrolled_terms(self) -> int | None:
        """The largest number of K steps that a SIMT product may unroll; None if the kernel is no SIMT product.

        In a SIMT product lanes multiply, without MMA atoms. A K step has the tile size of its K loop.
        """
        if self.kernel.simt is None:
            return None
        (tile,) = self.tiles.values()
        simt = replace(self.kernel.simt, k_step=tile)
        return max_unrolled_steps(simt, self.widths, self.plan.waves, self.kernel.machine)

    @property
    def lane_box(self) -> tuple[Expr, ...]:
        """The dimensions of the box of results that each lane computes in a SIMT product; () if there are no boxes.

        A SIMT product is an MMA that lanes compute without an atom. A box is a rectangle of neighbouring results;
        inputs that several of them read are loaded once.
        """
        return () if self.kernel.simt is None else self.kernel.simt.box_dims


def split_tile(axis: Axis, number: int) -> tuple[int, bool]:
    """Return (tile size, True if unrolled) of the loop number `number` of an axis, counted from 1.

    The loops of an axis are its splits at level `loop`, and its splits at level `unit`, which are unrolled. The axis
    must have that many loops.

    >>> from tilewright.plan.text import parse_plan
    >>> (axis,) = parse_plan("axis K = (K 512): task 256, loop 128, unit 32").axes
    >>> split_tile(axis, 1), split_tile(axis, 2)
    ((128, False), (32, True))
    """
    split = [split for split in axis.splits if split.is_loop][number - 1]
    return split.size, split.is_unrolled
