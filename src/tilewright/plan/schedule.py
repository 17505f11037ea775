"""The schedule (plan): how a kernel runs on a machine, as data. Each type prints the statement that `plan.text` parses.

    axis rows = (M_1 56, M_0 57 of 56): task M_1 28, loop 32, unit 16
    axis columns = (F_0 64): task 64, loop 32, unit 16
    axis K = (K_2 3, K_1 3, K_0 64): unit K_2 1, unit K_1 1, unit K_0 32
    grid rows, columns
    loops columns, rows, K
    x strip at task, stream
    w packed at bind
    atom tiles.bf16
    overlap delayed store

Statements are separated by newlines or semicolons. Words in brackets are optional.

| statement | meaning |
|---|---|
| `axis NAME = (DIGIT EXTENT, ...): SPLITS` | a dimension, or several flattened digits, the last fastest; its tiles |
| `grid AXIS, ...` | the axes of the grid of tasks, outermost first |
| `raster [COUNT,] [ORDER]` | raster group; the order in which workgroups take tasks |
| `loops AXIS, ...` | loop order, outermost first; `K.2` is the second loop of K, counting unrolled ones |
| `mma by ATOM, tile 128x256 [transposed]` | an MMA's atom and accumulator tile; or `mma by loops` (scalar) |
| `atom NAME` | the atom of a CPU's single contraction |
| `x FORM [at POINT] [HOPS] [, reuse] [, stream]` | how operand x is staged, and when; or `x in place` |
| `p kept in register`, `p kept in shared`, `p computed again` | a value between two MMAs |
| `repack x: FORM` | a separate kernel first copies operand x to another layout |
| `producer ..., consumer ..., stages 4, epilogue stages 2` | warp specialisation, and its pipeline stages |
| `overlap HOW` | what overlaps MMAs: `delayed store`, `mma ahead`, `ordered` |
| `split kernel after mma` | two kernels; statements of the second follow `then` |
| `whole N` | the author's loop over N becomes one iteration, if its states can be merged |
| `split kernel before mma` | the same, with a reduction that the MMA or its epilogue needs in memory between them |
| `parts K 4` | split-K: separate tasks for four parts of K; a second kernel adds them up |
| `waves 8` | the number of waves (warps) of a task, without a pipeline |
| `lanes vector 4, box 2x2` | the elements that a lane reads at once, and the results that it computes |
| `occupancy workgroups 2, persistent, domains 8, registers 256` | how workgroups share cores |
| `launch early`, `launch plain` | with or without programmatic dependent launch |

*Axes.* A digit is a mixed-radix part of an axis. `57 of 56` pads a digit of 56 to 57; padding is computed, and never
stored. `m_1 56?` is open: known at the call, and planned as if it were 56. Each split divides the tiles of the split
before it: `cluster` (workgroups that share their memories), `task` (a workgroup's tile), `wave`, `loop`, or `unit`
(unrolled, in registers). A split with a digit's name divides that digit, one without a name what remains of the axis.
`task 192 as 4x48` is a box (rectangle) of digits, `task 192` a run of flat indices. `loop 14 unroll 2` unrolls two
iterations. `peel 1 2`, at the end, peels one iteration at the start and two at the end. `whole` has no split.

*Values.* The form of a staged value is `tile`, `run`, `halo` (a tile with its surroundings), `panel` (im2col: rows of
every tap), `strip` (image lines with padding) or `packed`. The point is the time of the copy: `bind`, `start`, `task`,
or an axis, for each K step or iteration of it. A hop is a copy atom, a memory and a number of buffers: `a tile by
async.16 to shared 3, by fragments.x4 to register 2`. Results go the other way, `o tile by bulk.store from shared 2`;
with `reuse` they use the memory of the pipeline's stages.

*Repacking.* `aligned rows` are padded with zeros so that the machine's bulk copies can read them, with taps and
channels of a filter's row as one axis; `im2col` makes all inputs of a row of C contiguous; `padded rows` begin at whole
sectors; `block-diagonal 4` multiplies four neighbouring GEMMs as one, with zeros beside the blocks.

*Pipeline.* With `joint` all operands of a K step share one barrier. `halo stages 2` are the stages of halo tiles,
`resident stages 2` those of operands that are loaded once a task. With `store per group` each group of waves stores its
own results; with `pingpong` halves of the consumers take tasks in turn.
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
"""The point and the form of an operand that is packed before the kernel: once if constant, else at each launch."""
POINTS = ("start", "task")
"""The points (times) of copies besides axes: once for all tasks of a workgroup, and once a task."""
BETWEEN = (REGISTER, SHARED, COMPUTED)
"""Placements of a value between two MMAs: it stays in registers or shared memory, or each use computes it again."""
LAUNCH = "launch"
"""The point (time) of the copy of a repacked operand: a separate kernel, before the main kernel, copies it."""
ALIGNED = "aligned rows"
"""The form of a repacked operand whose rows the machine's bulk copies can read."""
PANELS = "im2col"
"""The form of a repacked operand in which all inputs of a row of C are contiguous."""
PADDED = "padded rows"
"""The form of a repacked operand whose rows are padded to begin at whole sectors or lines, which is faster."""
K_ROWS = "rows of K"
"""The form of a repacked operand that becomes contiguous along K, instead of along another dimension."""
DIAGONAL = "block-diagonal"
"""The form of a repacked operand that joins neighbouring GEMMs as diagonal blocks; their number follows it."""
THEN = "then"
"""The statement after which the statements of a second kernel follow."""
LAUNCHES = ("plain", "early")
"""Without and with programmatic dependent launch: the kernel starts after, or while, the one before it ends."""


@dataclass(frozen=True)
class Digit:
    """One mixed-radix part of an axis: its extent, and its extent with padding, in elements.

    An `open` digit's extent is known only at the call; `extent` is then the number that the plan was made for.
    """

    name: str
    extent: int
    padded_extent: int
    open: bool = False

    def __str__(self) -> str:
        """Return this digit as plan text, such as `q 57 of 56`."""
        more = f"{self.padded_extent} of " if self.padded_extent != self.extent else ""
        return f"{self.name} {more}{self.extent}{'?' if self.open else ''}"


@dataclass(frozen=True)
class Split:
    """One level of an axis: tiles of `size` elements.

    The elements are those of `digit` (a mixed-radix part of the axis), or of what remains of the axis. `level` says who
    iterates over the tiles: it is one of LEVELS, such as task or loop.
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
        """Return this split as plan text, such as `task M_1 28`."""
        digit = f"{self.digit} " if self.digit else ""
        box = f" as {'x'.join(map(str, self.box))}" if self.box else ""
        unroll = f" unroll {self.unroll}" if self.unroll > 1 else ""
        return f"{self.level} {digit}{self.size}{box}{unroll}"

    @property
    def is_loop(self) -> bool:
        """True if the tiles of this split are iterations of a loop, unrolled or not: its level is `loop` or `unit`."""
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
        """Return this axis as its plan statement, `axis NAME = (DIGIT EXTENT, ...): SPLITS`."""
        peel = [f"peel {self.peeled[0]} {self.peeled[1]}"] if any(self.peeled) else []
        cuts = ", ".join([*map(str, self.splits), *peel] if self.splits else ["whole", *peel])
        return f"axis {self.name} = ({', '.join(map(str, self.digits))}): {cuts}"

    def split(self, level: str, digit: str | None = None) -> Split | None:
        """Return this axis's first Split (tile size) at `level`, such as "task" or "loop"; None if there is none.

        With `digit`, only splits that name this digit (mixed-radix part of the axis) count.
        """
        return next(
            (split for split in self.splits if split.level == level and (digit is None or split.digit == digit)), None
        )

    @property
    def padded_extent(self) -> int:
        """The padded extent of this axis in elements: the product of the padded extents of its digits.

        Digits are the mixed-radix parts of the axis.
        """
        return prod(d.padded_extent for d in self.digits)

    @property
    def tasks(self) -> int:
        """The number of tasks (tiles of the grid) along this axis.

        If task splits name digits (mixed-radix parts of the axis), it is the product of the tasks along each named
        digit. Otherwise it is the padded extent divided by the size of the task split, rounded up. Without a task split
        each element counts as a task.
        """
        boxes = {c.digit: c.size for c in self.splits if c.level == "task" and c.digit is not None}
        if boxes:
            return prod(ceil(d.padded_extent / boxes[d.name]) for d in self.digits if d.name in boxes)
        cut = self.split("task")
        return ceil(self.padded_extent / (1 if cut is None else cut.size))


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
        """Return this copy as plan text, such as `by async.16 to shared 3`."""
        return f"by {self.copy} {'from' if self.out else 'to'} {self.space} {self.buffers}"


@dataclass(frozen=True)
class ValuePlacement:
    """The staging of the value `name`: read in place (no point, no form), or copied at a point `at`, in a `form`.

    The module's docstring has the points (times of the copy) and forms. `hint` is the cache hint, `route` the copies
    from memory to memory.
    """

    name: str
    at: str | None
    form: str
    hint: str = "keep"
    route: tuple[Hop, ...] = ()
    reuse: bool = False
    """True if a result is staged in the memory of the pipeline's stages."""

    def __str__(self) -> str:
        """Return this placement as its plan statement, such as `x strip at task, stream`."""
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
    """The atom of the MMA `name`, and its accumulator tile, `rows` x `columns` of C; no atom means scalar loops."""

    name: str
    atom: str | None
    rows: int = 1
    columns: int = 1
    transposed: bool = False
    """True if the atom's rows run along the columns of C."""

    def __str__(self) -> str:
        """Return this as its plan statement, `NAME by ATOM, tile ROWSxCOLUMNS` or `NAME by loops`."""
        if self.atom is None:
            return f"{self.name} by loops"
        transposed = " transposed" if self.transposed else ""
        return f"{self.name} by {self.atom}, tile {self.rows}x{self.columns}{transposed}"


@dataclass(frozen=True)
class Pipeline:
    """Warp specialisation: (waves, registers per lane) of producers, which copy, and of consumers, which multiply.

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
        """Return this pipeline as its plan statement, `producer ..., consumer ..., stages 4, epilogue stages 2`."""
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
    """The work of one lane: the elements that it reads at once, and the box (rectangle) of results that it computes."""

    vector: int = 1
    box: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return this as its plan statement, such as `lanes vector 4, box 2x2`."""
        vector = [f"vector {self.vector}"] if self.vector > 1 or not self.box else []
        return f"lanes {', '.join([*vector, *(['box ' + 'x'.join(map(str, self.box))] if self.box else [])])}"


@dataclass(frozen=True)
class Occupancy:
    """The workgroups and registers that share a core. Fields that are not set are chosen by the lowering."""

    workgroups: int = 0
    """The number of workgroups that share a core; 0: as many as fit."""
    persistent: bool = False
    """True if workgroups take tasks until none is left."""
    domains: int = 1
    """The number of groups of cores with a cache of their own; each group takes neighbouring tasks."""
    registers: int = 0
    """Registers per lane, if the machine lets a kernel choose their number; 0: as many as are needed."""

    def __str__(self) -> str:
        """Return this as its plan statement, such as `occupancy workgroups 2, persistent`."""
        parts = [
            *([f"workgroups {self.workgroups}"] if self.workgroups else []),
            *(["persistent"] if self.persistent else []),
            *([f"domains {self.domains}"] if self.domains > 1 else []),
            *([f"registers {self.registers}"] if self.registers else []),
        ]
        return f"occupancy {', '.join(parts)}"


@dataclass(frozen=True)
class Schedule:
    """A plan: how a kernel runs on a machine. The module's docstring has the statements that the fields stand for."""

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
        """Return Python code that makes this plan: parse_plan of its text."""
        return f"parse_plan({str(self)!r})"

    def axis(self, name: str) -> Axis:
        """Return the Axis (a dimension with its splits) named `name`; raise an ArgumentError if there is none."""
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
        """The names of this plan's digits (mixed-radix parts of an axis) whose extent is known only at the call.

        Digits of a second kernel's plan (`then`) are left out.
        """
        return frozenset(d.name for a in self.axes for d in a.digits if d.open)

    def with_open(self, names: Collection[str]) -> Schedule:
        """Return the plan with exactly the digits in `names` marked open: their extents are known only at the call.

        Digits are the mixed-radix parts of an axis; digits that are not in `names` are marked as known. The plan of a
        second kernel (`then`) is unchanged.
        """
        axes = [replace(a, digits=tuple(replace(d, open=d.name in names) for d in a.digits)) for a in self.axes]
        return replace(self, axes=tuple(axes))

    def line(self, word: str) -> str:
        """Return the statement of this plan that begins with `word`, as text; empty if the plan has none.

        `word` is `grid`, `raster`, `loops`, `overlap`, `whole`, `split`, `parts`, `waves`, `atom` or `launch`.

        >>> from tilewright.plan.text import parse_plan
        >>> parse_plan("axis m = (m 8): task 4; grid m; raster 2").line("raster")
        'raster 2'
        """
        return self._statements().get(word, "")

    @property
    def split_at(self) -> str | None:
        """The point at which the program is split into two kernels, such as "after mma"; None if it is one kernel."""
        if self.split_before is not None:
            return f"before {self.split_before}"
        return None if self.split_after is None else f"after {self.split_after}"

    @property
    def in_blocks(self) -> bool:
        """True if this is a plan of a single contraction on a CPU, in one kernel.

        The plan has a statement `atom`, and no statement `split kernel`.
        """
        return self.atom is not None and self.split_at is None

    def _statements(self) -> dict[str, str]:
        """Return {first word: statement}, such as {"grid": "grid M, N"}, for the single-line settings of this plan.

        These are grid, raster, loops, whole, split, parts, waves, atom, overlap and launch. A setting that has its
        default value is left out; so is `raster` in a plan without `grid`.
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
        """Return this plan as text on one line: its statements, separated by semicolons."""
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
