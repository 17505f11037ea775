"""The schedule: how a program is done on a machine, as data. Each type prints the statement that `plan.text` reads.

    axis rows = (M_1 56, M_0 57 of 56): task M_1 28, loop 32, unit 16
    axis columns = (F_0 64): task 64, loop 32, unit 16
    axis K = (K_2 3, K_1 3, K_0 64): unit K_2 1, unit K_1 1, unit K_0 32
    grid rows, columns
    loops columns, rows, K
    x strip at task, stream
    w packed at bind
    atom tiles.bf16
    overlap delayed store

Statements stand on lines of their own, or between semicolons. Words in brackets may be left out.

| statement | meaning |
|---|---|
| `axis NAME = (DIGIT EXTENT, ...): SPLITS` | a dimension, or several digits as one number, the last fastest |
| `grid AXIS, ...` | the axes of the tasks, outermost first |
| `raster [COUNT,] [ORDER]` | tasks of the first axis that are walked together; which tasks a worker takes |
| `loops AXIS, ...` | the order of loops, outermost first; `K.2` is the second loop of K, unrolled ones counted |
| `mma by ATOM, tile 128x256 [transposed]` | a product's atom, and its accumulator tile; or `mma by loops` |
| `atom NAME` | the atom of a CPU's single contraction |
| `x FORM [at POINT] [HOPS] [, reuse] [, stream]` | where a value is while it is used; or `x in place` |
| `p kept in register`, `p kept in shared`, `p computed again` | a value between two products |
| `repack x: FORM` | a kernel of its own copies an operand first |
| `producer ..., consumer ..., stages 4, epilogue stages 2` | waves with roles, and the stages between them |
| `overlap HOW` | `delayed store`, `mma ahead`, `ordered` |
| `split kernel after mma` | two kernels; those of the second one stand behind `then` |
| `whole N` | the author's loop over N, whose states merge, is one iteration, before anything else is done |
| `split kernel before mma` | the same, with a computed operand of that MMA in memory between them |
| `parts K 4` | tasks of their own for four parts of K; a second kernel merges them, in order |
| `waves 8` | waves of a task, where no pipeline says them |
| `lanes vector 4, box 2x2` | elements that a lane reads at once, and the results that it has |
| `occupancy workgroups 2, persistent, domains 8, registers 256` | how workgroups lie on cores |
| `launch early`, `launch plain` | whether a kernel begins while the one before it ends |

*Axes.* `57 of 56` walks over more than there is: what is computed outside is never stored. `m_1 56?` is open: known
when the program runs, and planned as if it were 56. A split makes pieces of that size of what the splits before it
left: `cluster` (workgroups that share their memories), `task`, `wave`, `loop`, or `unit` (unrolled, in registers); a
digit's name splits that digit, no name what remains. `task 192 as 4x48` is a box of the digits, `task 192` a run of the
number. `loop 14 unroll 2` does two iterations at a time. `peel 1 2`, at the end, lowers one iteration at the front and
two at the end by themselves. `whole` has no split.

*Values.* A form is `tile`, `run`, `halo` (a tile with what surrounds it), `panel` (rows of every tap), `strip` (lines
with their padding) or `packed`. The point is `bind`, `start`, `task`, or the axis for a step of which it is copied. A
hop is a copy atom, a memory and its buffers: `a tile by async.16 to shared 3, by fragments.x4 to register 2`; results
go the other way, `o tile by bulk.store from shared 2`, in the memory of the stages where it says `reuse`.

*Repacking.* `aligned rows` are rows that the machine's copies can read, with zeros where there is nothing, and taps and
channels of a filter's row as one axis; `im2col` has all that a row of the product sums as a row of its own; `padded
rows` begin at whole sectors; `block-diagonal 4` does four neighbouring products as one, with zeros beside the blocks.

*Pipeline.* `joint` hands over all operands of a step at once, `halo stages 2` are those of halo tiles, `resident stages
2` those of what is loaded once a task. With `store per group` each group of waves stores its own results, with
`pingpong` halves of the consumers take tasks in turn.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import ceil, prod

from tilewright.errors import ArgumentError
from tilewright.limits import did_you_mean

LEVELS = ("cluster", "task", "wave", "loop", "unit")
STREAM = "stream"
HINTS = ("keep", STREAM)
CYCLIC, REVERSED = "cyclic", "reversed"
LONGEST = "longest first"
ORDERS = (CYCLIC, "contiguous", "dynamic", REVERSED, LONGEST)
DELAYED, AHEAD, ORDERED = "delayed store", "mma ahead", "ordered"
OVERLAPS = ("none", DELAYED, AHEAD, ORDERED)
STRIP = "strip"
FORMS = ("tile", "run", "halo", "panel", STRIP)
SPACES = ("register", "shared", "l1", "cluster", "workspace")
REGISTER, SHARED, COMPUTED = "kept in register", "kept in shared", "computed again"
BIND, PACKED = "bind", "packed"
"""The point and the form of an operand that is packed once where it is constant, and else at every launch."""
POINTS = ("start", "task")
"""The points of copies beside axes: once for all tasks of a workgroup, and once a task."""
BETWEEN = (REGISTER, SHARED, COMPUTED)
"""Places of a value between two products: a memory until it is used, or none, as every use computes it again."""
LAUNCH = "launch"
"""The point of an operand that a kernel of its own copies."""
ALIGNED = "aligned rows"
"""Its form then: rows that the machine's copies can read."""
PANELS = "im2col"
"""Its form then: every row of a product has all that it sums."""
PADDED = "padded rows"
"""Its form then: it could be read as it is, and rows that begin at whole sectors or lines are quicker."""
K_ROWS = "rows of K"
"""Its form then: a dimension that a product sums is contiguous, which was another one's place in memory."""
DIAGONAL = "block-diagonal"
"""Its form then: neighbouring products are one; their number stands behind it."""
THEN = "then"
"""The statement behind which the schedule of a second kernel stands."""
LAUNCHES = ("plain", "early")
"""Ways to launch a program: when the one before it has ended, or while it ends."""


@dataclass(frozen=True)
class Digit:
    """One mixed-radix part of an axis: its extent, and its padded extent `walked`.

    An open digit is known only at the call; its extent is then the one that the plan was made for: `m_1 56?`.
    """

    name: str
    extent: int
    walked: int
    open: bool = False

    def __str__(self) -> str:
        more = f"{self.walked} of " if self.walked != self.extent else ""
        return f"{self.name} {more}{self.extent}{'?' if self.open else ''}"


@dataclass(frozen=True)
class Split:
    """One level of an axis: tiles of `size` elements (of a digit, or of what remains of the axis), and who iterates
    over them.

    A digit is a mixed-radix part of the axis. `level` is one of LEVELS, such as task or loop.
    """

    level: str
    size: int
    digit: str | None = None
    box: tuple[int, ...] = ()
    """The extents of a tile that is a box (rectangle) of the axis's digits; empty: it is a run of contiguous flat
    indices."""
    unroll: int = 1
    """Iterations of a loop that are unrolled together."""

    def __str__(self) -> str:
        digit = f"{self.digit} " if self.digit else ""
        box = f" as {'x'.join(map(str, self.box))}" if self.box else ""
        unroll = f" unroll {self.unroll}" if self.unroll > 1 else ""
        return f"{self.level} {digit}{self.size}{box}{unroll}"

    @property
    def is_loop(self) -> bool:
        """True if a loop goes over the tiles of this split, or would if it were not unrolled."""
        return self.level in ("loop", "unit")

    @property
    def is_unrolled(self) -> bool:
        """True if the tiles of this split are unrolled instead of looped over: its level is `unit`."""
        return self.level == "unit"


@dataclass(frozen=True)
class Axis:
    """A dimension, or several digits (mixed-radix parts) as one number, and its splits, outermost first."""

    name: str
    digits: tuple[Digit, ...]
    splits: tuple[Split, ...] = ()
    peeled: tuple[int, int] = (0, 0)
    """Iterations at the start and at the end that are peeled."""

    def __str__(self) -> str:
        peel = [f"peel {self.peeled[0]} {self.peeled[1]}"] if any(self.peeled) else []
        cuts = ", ".join([*map(str, self.splits), *peel] if self.splits else ["whole", *peel])
        return f"axis {self.name} = ({', '.join(map(str, self.digits))}): {cuts}"

    def split(self, level: str, digit: str | None = None) -> Split | None:
        """Return this axis's first Split (tile size) at a level, such as "task" or "loop"; None if there is none.

        With `digit`, only splits that name this digit (mixed-radix part of the axis) are looked at.
        """
        return next(
            (split for split in self.splits if split.level == level and (digit is None or split.digit == digit)), None
        )

    @property
    def walked(self) -> int:
        """The padded extent of this axis in elements: the product of the padded extents of its digits.

        Digits are the mixed-radix parts of the axis.
        """
        return prod(d.walked for d in self.digits)

    @property
    def tasks(self) -> int:
        """The number of tasks (tiles of the grid) along this axis.

        If task splits name digits (mixed-radix parts of the axis), it is the product of the tasks along each named
        digit. Otherwise it is the padded extent divided by the size of the task split, rounded up. Without a task split
        each element is a task.
        """
        boxes = {c.digit: c.size for c in self.splits if c.level == "task" and c.digit is not None}
        if boxes:
            return prod(ceil(d.walked / boxes[d.name]) for d in self.digits if d.name in boxes)
        cut = self.split("task")
        return ceil(self.walked / (1 if cut is None else cut.size))


@dataclass(frozen=True)
class Hop:
    """One copy on the route of a value: the copy atom, the memory it copies to, and the number of buffers there.

    Results go the other way: `out` says that the atom copies from that memory.
    """

    copy: str
    space: str
    buffers: int
    out: bool = False

    def __str__(self) -> str:
        return f"by {self.copy} {'from' if self.out else 'to'} {self.space} {self.buffers}"


@dataclass(frozen=True)
class ValuePlacement:
    """The place of a value in use: in place (no point, no form), or copied at a point in a form, over a route.

    The module's docstring has the points, forms and routes.
    """

    name: str
    at: str | None
    form: str
    hint: str = "keep"
    route: tuple[Hop, ...] = ()
    reuse: bool = False
    """True if a result is staged in the memory of the pipeline's stages."""

    def __str__(self) -> str:
        end = f"{', reuse' if self.reuse else ''}{f', {self.hint}' if self.hint != 'keep' else ''}"
        if self.at == LAUNCH:
            return f"repack {self.name}: {self.form}{end}"
        if self.form in BETWEEN:
            return f"{self.name} {self.form}{end}"
        if self.at is None and not self.route:
            return f"{self.name} in place{end}"
        at = f" at {self.at}" if self.at is not None else ""
        return f"{self.name} {self.form}{at}{' ' if self.route else ''}{', '.join(map(str, self.route))}{end}"


@dataclass(frozen=True)
class ProductUnit:
    """The atom of an MMA and the accumulator tile that stays in registers; without an atom, scalar loops compute it."""

    name: str
    atom: str | None
    rows: int = 1
    columns: int = 1
    transposed: bool = False
    """True if the atom's rows run along the columns of C."""

    def __str__(self) -> str:
        if self.atom is None:
            return f"{self.name} by loops"
        transposed = " transposed" if self.transposed else ""
        return f"{self.name} by {self.atom}, tile {self.rows}x{self.columns}{transposed}"


@dataclass(frozen=True)
class Pipeline:
    """(waves, registers per lane) of producers, which copy operands, and of consumers, which multiply them.

    `stages` are the buffers between the two, `epilogue_stages` those of results. Halo tiles of A have their own
    (`halo_stages`), and so have operands that are loaded once a task (`resident_stages`).
    """

    producer: tuple[int, int]
    consumer: tuple[int, int]
    stages: int
    epilogue_stages: int
    halo_stages: int = 0
    pingpong: bool = False
    """True if halves of the consumers take tasks in turn: one stores while the other multiplies."""
    resident_stages: int = 1
    joint: bool = False
    """True if all operands of a K step share one barrier, even if MMAs use them one by one."""
    per_group_store: bool = False
    """True if each group of consumers stores its own results without waiting for the others."""

    def __str__(self) -> str:
        waves = [f"{count} {'wave' if count == 1 else 'waves'}" for count, _ in (self.producer, self.consumer)]
        parts = [
            f"producer {waves[0]} {self.producer[1]} registers",
            f"consumer {waves[1]} {self.consumer[1]} registers",
            f"stages {self.stages}",
            *(["joint"] if self.joint else []),
            *([f"halo stages {self.halo_stages}"] if self.halo_stages else []),
            *([f"resident stages {self.resident_stages}"] if self.resident_stages > 1 else []),
            f"epilogue stages {self.epilogue_stages}",
            *(["store per group"] if self.per_group_store else []),
            *(["pingpong"] if self.pingpong else []),
        ]
        return ", ".join(parts)


@dataclass(frozen=True)
class LaneTile:
    """One lane's share: the elements that it reads at once, and the box (rectangle) of results that it computes."""

    vector: int = 1
    box: tuple[int, ...] = ()

    def __str__(self) -> str:
        vector = [f"vector {self.vector}"] if self.vector > 1 or not self.box else []
        return f"lanes {', '.join([*vector, *(['box ' + 'x'.join(map(str, self.box))] if self.box else [])])}"


@dataclass(frozen=True)
class Occupancy:
    """The workgroups and registers that share a core. Fields that are not set are chosen by the lowering."""

    workgroups: int = 0
    """Workgroups of a core; 0: as many as fit."""
    persistent: bool = False
    """True if workgroups take tasks until none is left."""
    domains: int = 1
    """Groups of cores with a cache of their own, which take neighbouring tasks."""
    registers: int = 0
    """Registers of a lane, where the machine has modes; 0: as many as are needed."""

    def __str__(self) -> str:
        parts = [
            *([f"workgroups {self.workgroups}"] if self.workgroups else []),
            *(["persistent"] if self.persistent else []),
            *([f"domains {self.domains}"] if self.domains > 1 else []),
            *([f"registers {self.registers}"] if self.registers else []),
        ]
        return f"occupancy {', '.join(parts)}"


@dataclass(frozen=True)
class Schedule:
    """A plan: how a program runs on a machine. The module's docstring has the statements."""

    axes: tuple[Axis, ...]
    grid: tuple[str, ...] = ()
    loops: tuple[str, ...] = ()
    values: tuple[ValuePlacement, ...] = ()
    atom: str | None = None
    order: str = CYCLIC
    overlap: str = "none"
    products: tuple[ProductUnit, ...] = ()
    pipeline: Pipeline | None = None
    raster: int = 1
    """Raster group: how many tasks along the first axis of the grid run next to each other, for the cache that cores
    share; with dynamic order, along the axis before M."""
    split_after: str | None = None
    """The MMA after which the program is split into two kernels, with its result in memory between them."""
    parts: tuple[str, int] | None = None
    """Split-K: the axis, and the number of its parts, each in its own tasks; a second kernel adds up the parts."""
    waves: int = 1
    """The number of waves that compute a task, for a plan without a pipeline."""
    then: Schedule | None = None
    """The plan of the second kernel, if there are two; None: it is chosen."""
    early: bool | None = None
    """Programmatic dependent launch: the kernel starts while the one before it ends; None: it is chosen."""
    split_before: str | None = None
    """The MMA before which the program is split into two kernels, with its computed operand in memory between them."""
    lanes: LaneTile | None = None
    occupancy: Occupancy = Occupancy()
    whole: str | None = None
    """The dimension of the author's loop that is one iteration, if its states merge."""

    def __repr__(self) -> str:
        return f"parse_plan({str(self)!r})"

    def axis(self, name: str) -> Axis:
        """Return the Axis of this plan named `name`; raise an ArgumentError if there is none."""
        axis = next((a for a in self.axes if a.name == name), None)
        if axis is None:
            names = [a.name for a in self.axes]
            raise ArgumentError(
                f"plan: there is no axis {name}; there are {', '.join(names)}{did_you_mean(name, names)}"
            )
        return axis

    def operand(self, name: str) -> ValuePlacement:
        """Return the ValuePlacement (in place, or how copied) of the value `name`; raise an ArgumentError if none."""
        placement = next((p for p in self.values if p.name == name), None)
        if placement is None:
            names = [p.name for p in self.values]
            raise ArgumentError(
                f"plan: no line says where {name} lies; there are lines of {', '.join(names) or 'no operand'}"
            )
        return placement

    @property
    def open(self) -> frozenset[str]:
        """The names of this plan's digits (mixed-radix parts of an axis) whose extent is known only at the call."""
        return frozenset(d.name for a in self.axes for d in a.digits if d.open)

    def with_open(self, names: Collection[str]) -> Schedule:
        """Return the plan with exactly the digits in `names` marked open: their extents are known only at the call.

        Digits are the mixed-radix parts of an axis; digits that are not in `names` are marked as known.
        """
        axes = [replace(a, digits=tuple(replace(d, open=d.name in names) for d in a.digits)) for a in self.axes]
        return replace(self, axes=tuple(axes))

    def line(self, word: str) -> str:
        """Return the statement of this plan that begins with `word`, as text; empty if the plan has none.

        `word` is `grid`, `raster`, `loops`, `overlap`, `split`, `parts`, `waves`, `atom` or `launch`.

        >>> from tilewright.plan.text import parse_plan
        >>> parse_plan("axis m = (m 8): task 4; grid m; raster 2").line("raster")
        'raster 2'
        """
        return self._statements().get(word, "")

    @property
    def split_at(self) -> str | None:
        """The place at which the program is split into two kernels, such as "after mma"; None if it is one kernel."""
        if self.split_before is not None:
            return f"before {self.split_before}"
        return None if self.split_after is None else f"after {self.split_after}"

    def _statements(self) -> dict[str, str]:
        """Return {first word: statement as text} of the statements of this plan that a plan has at most once.

        Axes, values, MMAs, the pipeline, lanes and the occupancy are left out, and so are statements of default values.
        """
        raster = [*([str(self.raster)] if self.raster > 1 else []), *([self.order] if self.order != CYCLIC else [])]
        rest_of = {
            "grid": ", ".join(self.grid),
            "raster": ", ".join(raster) if self.grid else "",
            "loops": ", ".join(self.loops),
            "whole": self.whole or "",
            "split": "" if self.split_at is None else f"kernel {self.split_at}",
            "parts": f"{self.parts[0]} {self.parts[1]}" if self.parts is not None else "",
            "waves": str(self.waves) if self.waves != 1 else "",
            "atom": self.atom or "",
            "overlap": self.overlap if self.overlap != "none" else "",
            "launch": LAUNCHES[self.early] if self.early is not None else "",
        }
        return {word: f"{word} {rest}" for word, rest in rest_of.items() if rest}

    def lines(self) -> list[str]:
        """Return the statements of this plan as texts, in print order; those of a second kernel follow `then`."""
        statements = self._statements()
        order_lines = [statements.pop(word) for word in ("grid", "raster", "loops") if word in statements]
        lines = [*map(str, self.axes), *order_lines, *map(str, self.values), *map(str, self.products)]
        lines += [str(part) for part in (self.pipeline, self.lanes) if part is not None]
        launch = statements.pop("launch", "")
        lines += statements.values()
        lines += [str(self.occupancy)] if self.occupancy != Occupancy() else []
        lines += [launch] if launch else []
        return lines if self.then is None else [*lines, THEN, *self.then.lines()]

    def __str__(self) -> str:
        return "; ".join(self.lines())

    def difference(self, other: Schedule) -> str:
        """Return text: the statements of this plan that `other` does not have, joined by "; "; empty if there are none.

        If only `other` overlaps, `overlap none` is among the statements, although it is never printed.

        >>> from tilewright.plan.text import parse_plan
        >>> one = parse_plan("axis m = (m 8): task 4; grid m")
        >>> one.difference(parse_plan("axis m = (m 8): task 2; grid m"))
        'axis m = (m 8): task 4'
        """
        mine = [line for line in self.lines() if line not in other.lines()]
        if self.overlap == "none" != other.overlap:
            mine.append("overlap none")
        return "; ".join(mine)
