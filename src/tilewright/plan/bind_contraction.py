"""Bind the plan of a contraction on a CPU: check each statement by its rule, and return the blocking that it states."""

from __future__ import annotations

from tilewright.limits import did_you_mean
from tilewright.machine import MultiplyAtom, OpaqueOperand
from tilewright.plan.blocking import (
    BY_LANES,
    COLUMNS,
    DEPTH,
    LANES,
    ROWS,
    STAGES,
    Blocking,
    LaneUnit,
    axes_in_order,
    blocking_of,
    plan_of,
    single_digits,
)
from tilewright.plan.contraction import Contraction
from tilewright.plan.pinned import FRESH
from tilewright.plan.refusals import raster_line, refused, tasks_line
from tilewright.plan.schedule import DELAYED, Axis, Schedule


def bind_contraction(contraction: Contraction, plan: Schedule, atom: MultiplyAtom | LaneUnit) -> Blocking:
    """Return the Blocking (tile sizes, loop orders, staging) that a plan states for a contraction on a CPU.

    `atom` is the MMA atom, or the SIMD unit, that multiplies. Raise an ArgumentError that quotes the first statement of
    the plan that breaks a rule.
    """
    return _ContractionPlan(contraction, plan, atom).blocking()


class _ContractionPlan:
    """A plan, the contraction that it is for, and the atom (MMA instruction or SIMD unit) that multiplies."""

    def __init__(self, contraction: Contraction, plan: Schedule, atom: MultiplyAtom | LaneUnit):
        self.contraction, self.plan, self.atom = contraction, plan, atom
        self.lanes = isinstance(atom, LaneUnit)
        self.tiles = isinstance(atom, MultiplyAtom) and isinstance(atom.c, OpaqueOperand)
        self.across = LANES if self.lanes else COLUMNS
        self.axes = axes_in_order(contraction, self.lanes)
        self.singles = [d.name for d in single_digits(contraction, self.lanes)]

    def blocking(self) -> Blocking:
        """Check this plan's statements and return the Blocking that they state: tile sizes, loop orders, staging.

        Raise an ArgumentError that quotes the first illegal statement.
        """
        self._refuse_gpu_statements()
        self._check_axis_names()
        self._check_grid()
        self._check_levels()
        self._check_loop_order()
        self._check_operands()
        self._check_overlap()
        blocking = blocking_of(self.contraction, self.plan, self.atom)
        self._check_digits(blocking)
        return blocking

    def _refuse_gpu_statements(self) -> None:
        """Raise an ArgumentError, which quotes the statement, for a statement that no CPU contraction can have.

        These statements of this plan are illegal: MMA statements, the pipeline, `waves` above 1, and `parts` (split-K).
        """
        plan = self.plan
        others = (*plan.products, *([plan.pipeline] if plan.pipeline else []))
        gpu_statements = [*map(str, others), *([plan.line("waves")] if plan.waves > 1 else [])]
        gpu_statements += [f"parts {plan.parts[0]} {plan.parts[1]}"] if plan.parts else []
        for line in gpu_statements:
            raise refused(line, "a contraction with a line `atom` has no such line")

    def _check_axis_names(self) -> None:
        """Raise an ArgumentError unless this plan has exactly the axes that the contraction has, in any order.

        The axes are rows, columns and depth (K), and one for each batch digit and each outer digit (mixed-radix part)
        of M. If vectors run along channels that A, B and the result share, there is also an axis `lanes`.
        """
        wanted, given_axes = [*self.singles, *self.axes], {axis.name: axis for axis in self.plan.axes}
        for name, axis in given_axes.items():
            if name not in wanted:
                axes_text = f"its axes are {', '.join(wanted)}{did_you_mean(name, wanted)}"
                raise refused((axis, f"atom {self.atom.name}"), axes_text)
        for name in wanted:
            if name not in given_axes:
                raise refused(self.plan.axes[-1], f"no line says `axis {name}`; the axes are {', '.join(wanted)}")

    def _check_grid(self) -> None:
        """Raise an ArgumentError unless the statement `grid` lists exactly the axes that tasks split, each once.

        Any order is legal. A task is one core's tile. Tasks split rows and columns, each batch axis, and each outer
        digit (mixed-radix part) of M. If vectors run along channels that A, B and the result share, tasks split the
        axis `lanes` instead of columns. Raise an ArgumentError too for a raster group above 1 (tasks ordered in groups
        to share caches), which only GPUs have.
        """
        plan, task_axes = self.plan, [*self.singles, *list(self.axes)[:2]]
        if sorted(plan.grid) != sorted(task_axes):
            raise refused(tasks_line(plan), f"tasks go over {', '.join(task_axes)}, in any order")
        if plan.raster > 1:
            raise refused(raster_line(plan), "workers of a CPU take tasks in order; only a GPU's are grouped")

    def _check_levels(self) -> None:
        """Raise an ArgumentError unless every axis of this plan is split into the levels that the atom needs.

        - Rows and columns need task (one core's tile), loop (register tile) and unit (the atom). Rows of image lines
          need two loops, over lines and over register tiles, unless tile registers multiply.
        - A batch axis, and an axis of an outer digit (mixed-radix part) of M, needs the level task only.
        - K must have no level task: several tasks would add to one result.
        - If vectors run along channels, the axis `lanes` needs the three levels in place of columns, and columns need
          `loop 1`.
        """
        rows, across = self.plan.axis(ROWS), self.plan.axis(self.across)
        self._check_axis_levels(rows, self.atom.shape[0], len(self.axes[ROWS]) > 1 and not self.tiles)
        self._check_axis_levels(across, self.atom.shape[1])
        for name in self.singles:
            axis = self.plan.axis(name)
            if [cut.level for cut in axis.splits] != ["task"]:
                raise refused(axis, f"tasks take some of {name}: `task 1`")
        if self.lanes and [(x.level, x.size) for x in self.plan.axis(COLUMNS).splits] != [("loop", 1)]:
            raise refused(self.plan.axis(COLUMNS), "lanes compute one column after the other: `loop 1`")
        for cut in self.plan.axis(DEPTH).splits:
            if cut.level == "task":
                raise refused(self.plan.axis(DEPTH), "tasks over the depth would add to one result")

    def _check_axis_levels(self, axis: Axis, unit: int, within_lines: bool = False) -> None:
        """Raise an ArgumentError unless `axis` is split into the levels task, loop and unit, in this order.

        Task is one core's tile, loop the register tile, unit the atom. `unit` is the atom's extent along the axis: the
        level unit must have this size, and it must divide the last loop tile. With `within_lines` the axis must have
        two loop levels: over lines of an image, and over register tiles, which then end with a line.
        """
        levels = [cut.level for cut in axis.splits]
        expected = ["task", *(["loop"] if within_lines else []), "loop", "unit"]
        if levels != expected:
            levels_text = f"its levels are {', '.join(levels) or 'none'}; it takes {', '.join(expected)}"
            raise refused((axis, f"atom {self.atom.name}"), levels_text)
        loop, unit_split = axis.splits[-2:]
        if unit_split.size != unit:
            raise refused((axis, f"atom {self.atom.name}"), f"the atom takes `unit {unit}`")
        if loop.size % unit_split.size:
            raise refused(axis, f"`{loop}` is no multiple of `{unit_split}`")

    def _check_loop_order(self) -> None:
        """Raise an ArgumentError unless depth (K) is the innermost loop in the statement `loops`.

        Accumulators then stay in registers. Rows and columns must stand before depth, in either order. If vectors run
        along channels that A, B and the result share, the order must be rows, lanes, columns, depth.
        """
        line = f"loops {', '.join(self.plan.loops)}"
        if self.lanes and self.plan.loops != (*BY_LANES, DEPTH):
            raise refused(
                line,
                f"lanes lie within rows, accumulators in registers: `loops {', '.join(BY_LANES)}, {DEPTH}`",
            )
        if not self.lanes and (sorted(self.plan.loops) != [COLUMNS, DEPTH, ROWS] or self.plan.loops[-1] != DEPTH):
            raise refused(line, "rows and columns in either order, then depth: accumulators stay in registers")

    def _check_operands(self) -> None:
        """Raise an ArgumentError unless A is read in place or staged, and B is packed before the kernel runs.

        The plan must have a statement for both operands, and for no other value. Only tile registers may have A staged:
        once per task (one core's tile), as `strip` (image lines) or `panel` (im2col). B must be packed `at bind`, which
        means once before the kernel runs. If vectors run along channels that A, B and the result share, a cache hint
        other than `keep` is illegal too.
        """
        a, b = (self.plan.operand(operand.name) for operand in (self.contraction.a, self.contraction.b))
        for line in self.plan.values:
            if line not in (a, b):
                raise refused(line, f"the operands are {a.name} and {b.name}")
            if self.lanes and line.hint != "keep":
                raise refused(line, "loads of vectors have no hint: keep")
        if b.at != "bind":
            raise refused(b, f"columns lie packed, as the atom reads them: `{b.name} packed at bind`")
        if a.at is None:
            return
        if a.at != "task" or not self.tiles:
            allowed = "rows are staged at a task, or read in place" if self.tiles else "vectors read rows in place"
            raise refused(a, allowed)
        if a.form not in STAGES:
            raise refused(a, f"rows are staged as {' or '.join(STAGES)}{did_you_mean(a.form, STAGES)}")

    def _check_overlap(self) -> None:
        """Raise an ArgumentError if this plan has a statement `overlap` that the contraction cannot have.

        Only `delayed store` is legal, and only in tile registers: an accumulator tile is written to memory while the
        next one is computed.
        """
        overlap = self.plan.overlap
        if overlap not in ("none", DELAYED):
            raise refused(f"overlap {overlap}", "a single contraction has no products that overlap")
        if overlap == DELAYED and not self.tiles:
            unit_name = LANES if self.lanes else "vectors"
            raise refused(f"overlap {overlap}", f"only tile registers need it; {unit_name} are stored as they are")

    def _check_digits(self, blocking: Blocking) -> None:
        """Raise an ArgumentError if an axis of this plan has other digits than the contraction needs.

        Digits are the mixed-radix parts of an axis, such as image row and column. Their names, extents and padded
        extents follow from the contraction and from `blocking`, the tile sizes that the plan states: an axis is padded
        to whole accumulator tiles.
        """
        expected = {axis.name: axis for axis in plan_of(self.contraction, blocking).axes}
        for axis in self.plan.axes:
            wanted = expected[axis.name]
            if axis.digits == wanted.digits:
                continue
            given_extents, extents = ({digit.name: digit.extent for digit in x.digits} for x in (axis, wanted))
            digits = f"`({', '.join(map(str, wanted.digits))})`"
            if given_extents != extents:
                raise refused(axis, f"plans are for sizes: the program has {digits}; {FRESH}")
            lines = (axis, self.plan.operand(self.contraction.a.name)) if axis.name == ROWS else axis
            raise refused(lines, f"blocks go on to the end of the last one, and staged lines to the next: {digits}")
