"""Binding of plans with halo tiles: input pixels of a box of outputs are copied once for all filter taps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewright.algebra.expr import Expr, Symbol
from tilewright.driver.bound_plan import OneKernel
from tilewright.driver.request import Request, SizedProgram
from tilewright.ir.core import Op, Program
from tilewright.machine import MultiplyAtom
from tilewright.plan.bind_axes import loop_tile_size
from tilewright.plan.bound import BoundKernel
from tilewright.plan.boxes import may_overrun, numbers_of
from tilewright.plan.general import dims_of
from tilewright.plan.halo_windows import SlidingWindow, image_rows, operand_reads, sliding_window
from tilewright.plan.kernel import KernelProgram
from tilewright.plan.legality import check_blocks, check_pipeline, check_registers, check_sharing, groups_of
from tilewright.plan.microkernel import Axes, Microkernel, axes_in, mmas_by_name
from tilewright.plan.pipelined import atoms_of, pipelined_mma
from tilewright.plan.refusals import refused, tasks_line
from tilewright.plan.schedule import Axis, Digit, ProductUnit, Schedule, Split, ValuePlacement
from tilewright.plan.tile_register_tasks import LineLayout
from tilewright.rewrite.box_tile import ProgramInBoxes, in_boxes
from tilewright.rewrite.digits import digits_of
from tilewright.rewrite.tile_between_gemms import without_k_loops


def bind_halo(request: Request, plan: Schedule) -> OneKernel:
    """Bind (apply) a plan with halo tiles (input patches, loaded once for all filter taps); return its kernel.

    The kernel's program is the request's, rewritten so that M is in boxes of output pixels. Raise an ArgumentError if
    the plan does not fit the program.
    """
    boxes, boxed = HaloKernel.of(request, plan).over_boxes()
    extents = {**request.sizes, **boxes.sizes}
    sized = SizedProgram(boxes.program, extents, request.sized.shapes, boxes.free)
    kernel = KernelProgram(boxes.program, extents, request.machine, boxes.free)
    return OneKernel(sized, BoundKernel(kernel, boxed), in_boxes=True)


@dataclass(frozen=True)
class HaloKernel:
    """A plan with a halo tile, and the request's program with M (its rows) split into digits, such as image, row and
    column.
    """

    request: Request
    plan: Schedule
    program: Program
    sizes: dict[Symbol, int]
    digits: tuple[Symbol, ...]
    line: ProductUnit
    """The plan's `mma` line."""
    op: Op
    axes: Axes
    rows: Axis

    @classmethod
    def of(cls, request: Request, plan: Schedule) -> HaloKernel:
        """Return the HaloKernel of a request and its plan: the program with M split into digits, each a dimension of
        its own.

        Digits are mixed-radix parts of M, such as image, row and column. The program's loops over K are removed first,
        except for those over filter taps, as the plan has them. Raise an ArgumentError if the program does not have
        exactly one MMA with M, N and K, if the plan names another one, or if M cannot be split into digits.
        """
        without_loops, _ = without_k_loops(
            request.program, request.free
        )  # loops over taps stay, because the plan has them
        products = mmas_by_name(without_loops)
        for other in (x for x in plan.products if x.name not in products):
            raise refused(other, f"there is no product {other.name}; there is {', '.join(products)}")
        if len(products) != 1 or len(plan.products) != 1:
            raise refused(plan.pipeline, "lowering lacks halo tiles of several products")
        (line,) = plan.products
        axes = axes_in(products[line.name], numbers_of(request.sizes))
        if isinstance(axes, str):
            raise refused(plan.pipeline, axes)
        counted = digits_of(without_loops, request.sizes, (), axes.m)
        if counted is None:
            raise refused(plan.pipeline, f"{axes.m} does not count in digits")
        program, sizes, digits, _ = counted
        product = pipelined_mma(program, numbers_of(sizes), ())
        if isinstance(product, str):
            raise refused(plan.pipeline, product)
        return cls(request, plan, program, sizes, digits, line, *product, plan.axis(str(axes.m)))

    def over_boxes(self) -> tuple[ProgramInBoxes, Schedule]:
        """Return (the program with M in boxes of output pixels, the plan of that program).

        The plan must have a pipeline. Every line of the plan is checked: operands, axes, atom, waves, registers, box
        and copies. Raise an ArgumentError that quotes the line that does not fit.
        """
        line = self.line
        if line.atom is None:
            raise refused(line, "a pipeline needs an atom for the product")
        operands = self._line(0), self._line(1)
        for other in (p for p in self.plan.values if p not in operands):
            raise refused(other, f"the operands of a halo tile are {operands[0].name} and {operands[1].name}")
        self._check_axes()
        atom = self._atom(line)
        window = self.window()
        assert self.plan.pipeline is not None
        roles, machine = self.plan.pipeline, self.request.machine
        check_pipeline(roles, machine)
        microkernel = Microkernel(
            atom, line.rows, line.columns, groups_of(roles, line, atom, machine), blocks=self.op.attrs.get("blocks", 1)
        )
        size = numbers_of(self.sizes)
        check_blocks(line, microkernel, size(self.axes.n), size(self.axes.k))
        check_sharing(roles, line, microkernel)
        check_registers(roles, (line,), {self.op: microkernel}, machine)
        box, walk = self.box(window, microkernel)
        line_shape = None if walk is None else (image_rows(walk, microkernel), walk.pitch)
        boxes = in_boxes(self.program, self.sizes, self.rows.name, self.digits, box, line_shape)
        self._check_copies()
        return replace(boxes, sizes={**self.sizes, **boxes.sizes}), self._boxed_plan(boxes, box, walk)

    def _boxed_plan(self, boxes: ProgramInBoxes, box: tuple[int, ...], walk: LineLayout | None) -> Schedule:
        """Return the plan with the axis of M replaced by two axes: one counts boxes, one counts the rows within a box.

        `boxes` has the names of these dimensions. `box` has the extents of a box, one for each digit (mixed-radix part)
        of M. `walk` is None, or the layout of image lines if M runs on from one line to the next; the axis within a box
        then has one digit for each extent, the last one with the padding of a line. In `grid` the axis within a box
        comes first, with one task, so that raster groups are formed by the last two axes.
        """
        (inner,), statement = map(str, boxes.inner), self.line
        outer, count = str(boxes.outer), boxes.sizes[boxes.outer]
        places = [Digit(inner, statement.rows, statement.rows)]
        if walk is not None:
            places = [Digit(str(d), n, n) for d, n in zip(self.digits, box, strict=True)]
            places[-1] = replace(places[-1], padded_extent=walk.pitch)
        inner_axis = Axis(inner, tuple(places), (Split("task", statement.rows),))
        outer_axis = Axis(outer, (Digit(outer, count, count),), (Split("task", 1),))
        axes = [x for axis in self.plan.axes for x in ((outer_axis, inner_axis) if axis is self.rows else (axis,))]
        grid = (inner, *(outer if name == self.rows.name else name for name in self.plan.grid))
        return replace(self.plan, axes=tuple(axes), grid=grid)

    def _check_axes(self) -> None:
        """Raise an ArgumentError unless the plan splits each dimension as halo tiles need.

        - A task has the MMA's tile of N, and one element of each dimension of C that is neither N nor a digit of M.
        - Each dimension that C does not have, such as K and the filter taps, has one loop or is whole.
        - Each axis has the extent of its dimension, and the axis of M has the digits of M. There are no other axes.
        - `grid` has the axes with a task, in any order. `loops` has K before the filter taps, in their order.
        - The plan has neither a line on overlap nor one that states more than one wave.
        """
        plan, size = self.plan, numbers_of(self.sizes)
        named = {axis.name: axis for axis in plan.axes}
        tasks = [d for d in self.op.operands[2].type.dims if d not in self.digits]
        others = [d for d in dims_of(self.program) if d not in self.digits and d in self.sizes]
        for d in others:
            axis = named.pop(str(d), None)
            if axis is None:
                raise refused(plan.pipeline, f"no line says how {d} is split: `axis {d} = ({d} {size(d)}): whole`")
            if [x.extent for x in axis.digits] != [size(d)]:
                raise refused(axis, f"plans are for sizes: here {d} has {size(d)}")
            levels = [cut.level for cut in axis.splits]
            if d in tasks and (levels != ["task"] or axis.splits[0].size != self._width(d)):
                lines = (axis, *plan.products) if d is self.axes.n else axis
                raise refused(lines, f"a task has {self._width(d)} of {d}")
            if d not in tasks and levels not in (["loop"], []):
                raise refused(axis, "taps and K are loops")
        named.pop(self.rows.name, None)
        for axis in named.values():
            raise refused(axis, f"there is no dimension {axis.name}")
        grid = [self.rows.name, *map(str, tasks)]
        if sorted(plan.grid) != sorted(grid):
            raise refused(tasks_line(plan), f"the axes with a task are {', '.join(grid)}: `grid` orders these")
        order = (self.axes.k, *self.axes.deep)
        if plan.loops != tuple(map(str, order)):
            loops = ", ".join(map(str, order))
            raise refused(plan.line("loops"), f"a halo tile serves all taps of a K step: `loops {loops}`")
        if [x.name for x in self.rows.digits] != list(map(str, self.digits)) or [
            x.extent for x in self.rows.digits
        ] != [self.sizes[d] for d in self.digits]:
            digits = ", ".join(f"{d} {self.sizes[d]}" for d in self.digits)
            raise refused(self.rows, f"plans are for sizes: here `axis {self.rows.name} = ({digits})`")
        if plan.overlap != "none" or plan.waves > 1:
            raise refused(plan.lines()[-1], "a kernel with halo tiles has no such line")

    def _width(self, d: Expr) -> int:
        """Return how many elements of `d`, a dimension of C, a workgroup has: the MMA's tile of N if `d` is N, else
        1."""
        return self.line.columns if d is self.axes.n else 1

    def _atom(self, line: ProductUnit) -> MultiplyAtom:
        """Return the atom that `line`, the plan's `mma` line, names.

        Raise an ArgumentError if no such atom takes the operands, if it cannot read a halo tile (it must be
        asynchronous and read shared memory), if the line puts N on the atom's rows, or if the plan's K step is not one
        row of shared memory.
        """
        atoms = atoms_of(self.program, self.request.machine, self.op, self.axes)
        if isinstance(atoms, str):
            raise refused(line, atoms)
        atom = next((x for x in atoms if x.name == line.atom), None)
        if atom is None or not atom.asynchronous or atom.slab is None:
            raise refused(line, f"atoms that read a halo tile are {', '.join(x.name for x in atoms[:6])}")
        if line.transposed:
            raise refused(line, "rows of a halo tile are the atom's rows")
        axis = self.plan.axis(str(self.axes.k))
        if (loop_tile_size(axis) or numbers_of(self.sizes)(self.axes.k)) != atom.slab:
            raise refused((axis, line), f"a K step is one row of shared memory: {atom.slab}")
        return atom

    def window(self) -> SlidingWindow:
        """Return the SlidingWindow of operand A: how its coordinates are sums of output pixels and filter taps.

        Raise an ArgumentError if an operand is computed, or if A is not read by a sliding window.
        """
        reads = operand_reads(self.op, self.axes, self.program)
        if reads is None:
            raise refused(self.plan.pipeline, "an operand is computed")
        slides = sliding_window(reads[0], self.axes, self.digits, numbers_of(self.sizes))
        if isinstance(slides, str):
            raise refused(self._line(0), slides)
        return slides

    def _line(self, side: int) -> ValuePlacement:
        """Return the plan's line that places operand A, as a halo (`side` 0), or operand B, as a panel (`side` 1).

        Raise an ArgumentError if the plan has no such line, or one with another form or hint. Both operands must be
        plain reads, not computed.
        """
        reads = operand_reads(self.op, self.axes, self.program)
        assert reads is not None
        name = reads[side].operands[0].name or "ab"[side]
        form = ("halo", "panel")[side]
        line = next((p for p in self.plan.values if p.name == name), None)
        if line is None or line.form != form or line.hint != "keep":
            others = tuple(p for p in self.plan.values if p.form not in ("halo", "panel"))
            raise refused(others or line or self.plan.pipeline, f"a halo tile needs `{name} {form} at ...`")
        return line

    def box(self, window: SlidingWindow, microkernel: Microkernel) -> tuple[tuple[int, ...], LineLayout | None]:
        """Return (extents of a workgroup's box of output pixels, one for each digit of M; a LineLayout or None).

        Digits are mixed-radix parts of M: image, row, column. The LineLayout is the layout of image lines if the plan
        pads them, so that M runs on from one line to the next. The box then has whole images. `window` says how A is
        read. Raise an ArgumentError if

        - a split of M's axis is no `task` of one of its digits,
        - the box does not have `microkernel.rows` rows (the MMA's tile of M),
        - the box extends past the end of a digit, and writes do not drop the pixels there,
        - the tile extends past the end of N, and writes do not drop the columns there (checked only with a batch),
        - the lines are padded in another way than the window needs.
        """
        rows, size = self.rows, numbers_of(self.sizes)
        sizes = {cut.digit: cut.size for cut in rows.splits if cut.level == "task"}
        extents = [self.sizes[d] for d in self.digits]
        is_padded = [digit.padded_extent != digit.extent for digit in rows.digits]
        runs_on = any(is_padded)
        if len(sizes) != len(rows.splits) or None in sizes:
            raise refused(rows, "a box has a task for each of its digits")
        box = tuple(sizes.get(str(d), self.sizes[d] if runs_on else 1) for d in self.digits)
        walk = window.image_lines(extents) if runs_on else None
        if walk is not None:
            if (
                is_padded[:-1] != [False] * (len(is_padded) - 1)
                or rows.digits[-1].padded_extent != walk.pitch
                or len(box) < 2
            ):
                raise refused(rows, f"rows run on from line to line of {walk.pitch}")
            if window.digits[-2:] != ((len(box) - 2,), (len(box) - 1,)) or box[-2:] != tuple(extents[-2:]):
                raise refused(rows, "rows run on in whole images only")
        count = prod(box) if walk is None else prod(box[:-2]) * image_rows(walk, microkernel)
        if count != microkernel.rows:
            raise refused(rows, f"a box of {count} rows; `{self.line}` has {microkernel.rows}")
        for d, n in zip(self.digits, box, strict=True):
            if self.sizes[d] % n and not may_overrun(d, self.program, size):
                raise refused(rows, f"{d} ends within a box, and what lies past it is not outside the result")
        batched = prod(size(d) for d in self.axes.around if d not in self.digits) > 1
        if batched and size(self.axes.n) % microkernel.columns and not may_overrun(self.axes.n, self.program, size):
            raise refused(self.line, f"{self.axes.n} ends within a tile, and the next group lies behind it")
        return box, walk

    def _check_copies(self) -> None:
        """Raise an ArgumentError unless the plan copies A once per K step, and B at the start or in one of the two
        innermost loops.

        An iteration of a filter dimension may have one tap only; of the innermost one, it may have all taps.
        """
        a, b = self._line(0), self._line(1)
        order = [str(d) for d in (self.axes.k, *self.axes.deep)]
        if a.at != order[0]:
            raise refused(a, f"a halo tile is copied for a K step: `halo at {order[0]}`")
        loops = {
            d: loop_tile_size(self.plan.axis(str(d))) or self.sizes[d] for d in self.axes.deep if isinstance(d, Symbol)
        }
        last = self.axes.deep[-1] if self.axes.deep else None
        for d, n in loops.items():
            allowed = (1, self.sizes[d]) if d is last else (1,)
            if n not in allowed:
                raise refused(self.plan.axis(str(d)), f"a stage has one tap of {d}, or all of the last")
        if b.at == "start":
            self._check_start(b, loops)
            return
        if b.at not in order[-2:]:
            raise refused(b, f"B is a panel at start, {', '.join(order[-2:])}")
        if not isinstance(last, Symbol):
            return
        taps = 1 if b.at == order[-1] else self.sizes[last]
        if loops[last] != taps:
            raise refused((b, self.plan.axis(str(last))), f"at {b.at} a stage has {taps} of {last}: `loop {taps}`")

    def _check_start(self, b: ValuePlacement, loops: dict[Symbol, int]) -> None:
        """Raise an ArgumentError unless operand B can be copied at the start and stay in shared memory for all tasks.

        It can if all tasks (workgroups' tiles) read the same elements of B, one filter tap at a time, and the plan has
        a single stage. `b` is the plan's line of B. `loops` is {filter dimension: taps per iteration}.
        """
        for d in (self.axes.n, *(d for d in self.axes.around if d not in self.digits)):
            if self._width(d) < numbers_of(self.sizes)(d):
                raise refused((b, self.plan.axis(str(d))), "all of it stays only where every task reads the same part")
        for tap, count in loops.items():
            if count > 1:
                raise refused((b, self.plan.axis(str(tap))), "taps of what stays are read one by one: `loop 1`")
        pipeline = self.plan.pipeline
        if pipeline is not None and pipeline.stages > 1:
            raise refused((b, pipeline), "what stays has no stages, and A has halo stages: `stages 1`")
