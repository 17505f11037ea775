"""The blocking parameters of a contraction on a CPU, and the plan that states them.

The search ranks Blockings, and states the best one as a plan; a plan that is given is read to a Blocking. A plan's text
can say more than contractions support: an unsupported statement is refused, and the plan of the Blocking that was read
must be the given plan again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.algebra.expr import Symbol
from tilewright.ir.dtypes import DType
from tilewright.machine import MultiplyAtom, OpaqueOperand
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.schedule import Axis, Digit, Schedule, Split, ValuePlacement
from tilewright.plan.sliding import halo_of, lane_digit

ROWS, COLUMNS, DEPTH, LANES = "rows", "columns", "depth", "lanes"
STAGES = ("strip", "panel")
BY_LANES = (ROWS, LANES, COLUMNS)
"""The order of loops over accumulator tiles if vectors run along a digit that A, B and the result share."""


@dataclass(frozen=True)
class LaneUnit:
    """The SIMD unit of a CPU, for vectors along a dimension that A, B and the result share (depthwise convolution).

    It is no MMA atom: it multiplies vectors element by element. A plan names it by its type: `atom lanes.f32`.
    """

    dtype: DType
    lanes: int
    cycles: float

    @property
    def name(self) -> str:
        """The name of this SIMD unit in a plan: `lanes.` and its element type, such as `lanes.f32`."""
        return f"{LANES}.{self.dtype}"

    @property
    def shape(self) -> tuple[int, int, int]:
        """(M, N, K) of one vector instruction of this unit, in elements: (1, number of elements in a vector, 1)."""
        return 1, self.lanes, 1


def is_tile_atom(atom: MultiplyAtom | LaneUnit) -> bool:
    """True if an atom keeps its accumulators in tile registers of a matrix unit."""
    return isinstance(atom, MultiplyAtom) and isinstance(atom.c, OpaqueOperand)


def is_lane_unit(name: str) -> bool:
    """True if `name`, an atom's name in a plan, is that of a SIMD unit (LaneUnit): it begins with `lanes.`.

    Its vectors run along a dimension that A, B and the result share.

    >>> is_lane_unit("lanes.f32"), is_lane_unit("tiles.bf16")
    (True, False)
    """
    return name.startswith(f"{LANES}.")


@dataclass(frozen=True)
class Blocking:
    """Blocking parameters of a contraction. A block is the `rows` x `columns` accumulator tile that stays in registers.

    Its columns are tile registers, vectors along N, or vectors along a dimension that A, B and the result share.
    `strip` is a task's extent along M (in lines of the image, or in rows if M is one digit), and `task_columns` along
    N. `order` lists the loops over blocks, outermost first, `tasks` the axes of the grid. `steps` are the splits of K.
    `stage` says from where tile registers read A: in place (""), from staged lines ("strip"), or from an im2col panel
    ("panel"). `streams` names the operands, a and b, whose loads bypass the cache.
    """

    atom: MultiplyAtom | LaneUnit
    rows: int
    columns: int
    strip: int
    task_columns: int
    order: tuple[str, ...]
    steps: tuple[Split, ...]
    tasks: tuple[str, ...]
    schedule: str
    stage: str = ""
    streams: str = ""
    overlap: str = "none"
    singles: tuple[tuple[str, int], ...] = ()
    """(name, number of values) of the digits of `single_digits` of which a task has more than one value."""

    @property
    def in_tiles(self) -> bool:
        """True if the accumulators of this blocking are in tile registers of a matrix unit."""
        return is_tile_atom(self.atom)

    @property
    def by_lanes(self) -> bool:
        """True if this blocking vectorises a dimension that A, B and the result share, such as depthwise channels."""
        return isinstance(self.atom, LaneUnit)

    @property
    def vectors(self) -> int:
        """The number of vectors (with a matrix unit: of tile registers) in one row of the accumulator tile.

        It is the tile's columns divided by the atom's columns.
        """
        return self.columns // self.atom.shape[1]


def round_up(n: int, step: int) -> int:
    """Return `n` rounded up to a multiple of `step`.

    >>> round_up(13, 8)
    16
    """
    return -(-n // step) * step


def required_lane_digit(contraction: Contraction) -> Symbol:
    """Return the digit of a contraction that vectors run along, such as the channels of a depthwise convolution.

    A digit is a mixed-radix part of a dimension; A, B and the result all have this one, and A is contiguous along it.
    An assertion fails if the contraction has no such digit.
    """
    digit = lane_digit(contraction)
    assert digit is not None
    return digit


def single_digits(contraction: Contraction, by_lanes: bool) -> list[Symbol]:
    """Return the digits of a contraction of which a task (one core's tile) usually has one value: batch, then outer M.

    Digits are mixed-radix parts of dimensions. A task's tile spans the last two digits of M (image line and pixel); the
    others are the outer ones. With `by_lanes`, vectors run along a digit of the batch that A, B and the result share.
    The tile then spans only the last digit of M, and the vectorised digit is left out of the batch.
    """
    return [
        *(d for d in contraction.batch if not by_lanes or d is not lane_digit(contraction)),
        *contraction.rows[: -1 if by_lanes else -2],
    ]


def axes_in_order(contraction: Contraction, by_lanes: bool) -> dict[str, tuple[Symbol, ...]]:
    """Return {axis name: its digits} of a contraction's plan, in the order rows (M), columns (N), depth (K).

    Digits are mixed-radix parts of dimensions: M of a convolution may have the digits n, h and w, and `rows` then is
    (h, w). With `by_lanes` (vectors run along a digit that A, B and the result share), an axis `lanes` with that digit
    comes first, and `rows` has only the last digit of M. The batch and the other digits of M are left out: each has an
    axis of its own. The grid splits the first two axes that are returned.
    """
    lanes = {LANES: (required_lane_digit(contraction),)} if by_lanes else {}
    return {
        **lanes,
        ROWS: contraction.rows[-1:] if by_lanes else contraction.rows[-2:],
        COLUMNS: contraction.columns,
        DEPTH: contraction.depth,
    }


def plan_of(contraction: Contraction, blocking: Blocking) -> Schedule:
    """Return the Schedule (plan) that states a blocking of a contraction; the inverse of `blocking_of`.

    `blocking` (a Blocking) has the tile sizes, loop orders and staging.
    """
    (m, n, k), axes = blocking.atom.shape, axes_in_order(contraction, blocking.by_lanes)
    across, vector_digit = (
        (LANES, required_lane_digit(contraction)) if blocking.by_lanes else (COLUMNS, contraction.columns[0])
    )
    walked = {
        vector_digit: round_up(size(vector_digit), n if blocking.by_lanes else blocking.columns),
        contraction.depth[-1]: round_up(size(contraction.depth[-1]), k),
    }
    if blocking.stage == "strip" and (halo := halo_of(contraction)) is not None:
        walked[contraction.rows[-1]] = halo.pitch
    lines = axes[ROWS][0].name if len(axes[ROWS]) > 1 else None
    line_loop = (
        (Split("loop", 1, lines),) if lines is not None and not blocking.in_tiles else ()
    )  # accumulator tiles end with a line
    cuts = {
        COLUMNS: (Split("loop", 1),),
        ROWS: (Split("task", blocking.strip, lines), *line_loop, Split("loop", blocking.rows), Split("unit", m)),
        across: (Split("task", blocking.task_columns), Split("loop", blocking.columns), Split("unit", n)),
        DEPTH: blocking.steps,
    }
    task_sizes = dict(blocking.singles)
    plan_axes = [
        Axis(d.name, (Digit(d.name, size(d), size(d)),), (Split("task", task_sizes.get(d.name, 1)),))
        for d in single_digits(contraction, blocking.by_lanes)
    ]
    for name, digits in axes.items():
        plan_axes.append(Axis(name, tuple(Digit(d.name, size(d), walked.get(d, size(d))) for d in digits), cuts[name]))
    a, b = ("stream" if name in blocking.streams else "keep" for name in "ab")
    operands = (
        ValuePlacement(contraction.a.name, "task" if blocking.stage else None, blocking.stage, a),
        ValuePlacement(contraction.b.name, "bind", "packed", b),
    )
    return Schedule(
        tuple(plan_axes),
        blocking.tasks,
        (*blocking.order, DEPTH),
        operands,
        blocking.atom.name,
        blocking.schedule,
        blocking.overlap,
    )


def blocking_of(contraction: Contraction, plan: Schedule, atom: MultiplyAtom | LaneUnit) -> Blocking:
    """Return the Blocking (tile sizes, loop orders, staging) that a plan states; the inverse of `plan_of`.

    The plan is for `contraction`; nothing is checked. `atom` is the MMA atom, or the SIMD unit (LaneUnit), that
    multiplies.
    """
    lanes = isinstance(atom, LaneUnit)
    rows, columns = (plan.axis(name).splits for name in (ROWS, LANES if lanes else COLUMNS))
    steps = tuple(replace(x, digit=x.digit or contraction.depth[-1].name) for x in plan.axis(DEPTH).splits)
    a, b = plan.operand(contraction.a.name), plan.operand(contraction.b.name)
    singles = [(d.name, min(plan.axis(d.name).splits[0].size, size(d))) for d in single_digits(contraction, lanes)]
    return Blocking(
        atom,
        rows[-2].size,
        columns[-2].size,
        rows[0].size,
        columns[0].size,
        BY_LANES if lanes else tuple(name for name in plan.loops if name != DEPTH),
        steps,
        plan.grid,
        plan.order,
        a.form if a.at is not None else "",
        "".join(name for name, operand in (("a", a), ("b", b)) if operand.hint == "stream" and not lanes),
        plan.overlap,
        tuple((name, width) for name, width in singles if width > 1),
    )
