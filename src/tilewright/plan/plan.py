"""The plan: how a program is done on a machine. Axes with ordered cuts, loop order, where operands lie, which atom.

    axis rows = (M_1 56, M_0 57 of 56): task M_1 28, loop 32, unit 16
    axis columns = (F_0 64): task 64, loop 32, unit 16
    axis depth = (K_2 3, K_1 3, K_0 64): unit K_2 1, unit K_1 1, unit K_0 32
    tasks rows, columns
    order columns, rows, depth
    x staged at task as lines, stream
    w packed at bind, keep
    atom tiles.bf16
    overlap defer

An axis is a dimension's digit, or several as one number, the last fastest; `57 of 56` walks over more than there is:
what is computed outside is never stored. A cut says who goes over pieces of that size within what cuts before it left:
`task` (workers), `loop`, or `unit` (written out, in registers); a digit's name cuts that digit, no name what remains.
The last cut leaves what one atom takes. Digits without a cut are taken whole. The atom is one of the machine's, or
`lanes.TYPE`: vectors of a type along a digit that both factors keep. `m_1 56?` is open: known when the program runs,
and planned as if it were 56.

A program of several products says of each by what it is done, `mma by tiles.bf16, block 32x32` and `mma2 by loops`:
the blocks of sums that stay in registers while the product's depth is gone over, or plain loops without an atom; where
`task 128, unit M_0 4` cuts its rows, every lane has four neighbours, and what they read in registers. A `block 16x64
transposed` has 16 rows and 64 columns of C, and the atom's rows go along those columns.
`roles load 1 wave 40 registers, multiply 8 waves 232 registers, ring 4, stored 2` says who brings factors to shared
memory and who multiplies them, how many steps lie between the two, and in how many pieces results wait to leave (with
`apart`, those of each group of waves by themselves); with
`x staged at K as halo`, `halo 2` after `ring 4` says how many halo tiles of x lie there beside steps of the other. With
`pingpong` at the end, halves of those who multiply take tasks in turn. Where several products use what a step brings,
each has a ring of its own; `ring 2 together` is one for all of them.
`overlap ahead` starts the first product of a round before the last one of the round before; with `overlap turns`,
groups of waves do so one after the other.
`apart mma` is two programs: the first computes what depends on the product alone, the second reads that from memory.
The statements before it are the first one's plan, those after `then` the second one's; without them it is chosen.
Its `tasks M backward` begin with the last, as what was written last is still in the cache that cores share.
`x in rows, keep` copies an operand first, by a program of its own, to rows that the machine's copies can read: with
zeros where it has none, and with the taps and channels of a filter's row as one axis. `x in panels, keep` copies what
every row of the product sums, all taps, as a row of its own. `w in 4 diagonal blocks, keep` does four neighbouring
products as one: w is copied to four blocks on a diagonal, with zeros beside them.
`split K 4` sums four parts of K in tasks of their own; a second program adds them up. `waves 8` says that eight waves
do a task together, where there are no roles.
`launch early` lets a program begin while the one before it ends, for which it waits before it touches memory; `launch
plain` begins it after that. A plan that says neither leaves it to the planner.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from math import ceil, prod

from tilewright.errors import ArgumentError
from tilewright.limits import did_you_mean

ROLES = ("task", "loop", "unit")
HINTS = ("keep", "stream")
BACKWARD = "backward"
SCHEDULES = ("strided", "contiguous", "dynamic", BACKWARD)
OVERLAPS = ("none", "defer", "ahead", "turns")
LAUNCH = "launch"
"""Where an operand is copied by a program of its own."""
PANELS = "panels"
"""How it lies then, where every row of a product has all that it sums."""
PADDED = "padded rows"
"""How it lies then, where it could be read as it is, and rows that lie apart by whole sectors or lines are quicker."""
DIAGONAL = "diagonal blocks"
"""How it lies then, where neighbouring products are one: their number stands before it."""
THEN = "then"
"""The statement after which the plan of a second program stands."""
LAUNCHES = ("plain", "early")
"""Ways to launch a program: when the one before it has ended, or while it ends."""


@dataclass(frozen=True)
class Digit:
    """A number that an axis counts with: its extent, and how far it is walked (at least its extent).

    One that is open is known only when the program runs; its extent is then what the plan was made for: `m_1 56?`.
    """

    name: str
    extent: int
    walked: int
    open: bool = False

    def __str__(self) -> str:
        more = f"{self.walked} of " if self.walked != self.extent else ""
        return f"{self.name} {more}{self.extent}{'?' if self.open else ''}"


@dataclass(frozen=True)
class Cut:
    """Pieces of `size` (of a digit, or of what remains of the axis), and who goes over them."""

    role: str
    size: int
    digit: str | None = None

    def __str__(self) -> str:
        return f"{self.role} {self.digit} {self.size}" if self.digit else f"{self.role} {self.size}"

    @property
    def written(self) -> bool:
        """Whether it is written out, not a loop."""
        return self.role == "unit"


@dataclass(frozen=True)
class Axis:
    """A dimension, or several digits as one, and how it is cut, outermost first."""

    name: str
    digits: tuple[Digit, ...]
    cuts: tuple[Cut, ...] = ()

    def __str__(self) -> str:
        cuts = ", ".join(map(str, self.cuts)) or "whole"
        return f"axis {self.name} = ({', '.join(map(str, self.digits))}): {cuts}"

    def cut(self, role: str, digit: str | None = None) -> Cut | None:
        """The first cut of a role, of a digit if one is named."""
        return next((c for c in self.cuts if c.role == role and (digit is None or c.digit == digit)), None)

    @property
    def walked(self) -> int:
        """All that is walked over."""
        return prod(d.walked for d in self.digits)

    @property
    def tasks(self) -> int:
        """How many tasks there are along it: boxes of digits, or pieces of the whole."""
        boxes = {c.digit: c.size for c in self.cuts if c.role == "task" and c.digit is not None}
        if boxes:
            return prod(ceil(d.walked / boxes[d.name]) for d in self.digits if d.name in boxes)
        cut = self.cut("task")
        return ceil(self.walked / (1 if cut is None else cut.size))


@dataclass(frozen=True)
class Placed:
    """Where an operand is while it is used: `in place`, or copied at a point (`bind`, `task`, an axis) in a form.

    At the `launch` it is copied to rows as the machine's own copies read them, by a program of its own.
    """

    name: str
    at: str | None
    form: str
    hint: str = "keep"

    def __str__(self) -> str:
        if self.at is None:
            return f"{self.name} in place, {self.hint}"
        if self.at == LAUNCH:
            return f"{self.name} in {self.form}, {self.hint}"
        if self.at == "bind":
            return f"{self.name} packed at bind, {self.hint}"
        return f"{self.name} staged at {self.at} as {self.form}, {self.hint}"


@dataclass(frozen=True)
class Multiplied:
    """A product by an atom, and the block of sums that stays in registers; without an atom, by loops."""

    name: str
    atom: str | None
    rows: int = 1
    columns: int = 1
    transposed: bool = False
    """Whether the atom's rows go along the columns of C."""

    def __str__(self) -> str:
        if self.atom is None:
            return f"{self.name} by loops"
        turned = " transposed" if self.transposed else ""
        return f"{self.name} by {self.atom}, block {self.rows}x{self.columns}{turned}"


@dataclass(frozen=True)
class Roles:
    """(waves, registers of a lane) of the role that loads and of the one that multiplies, and the stages between.

    `stages` are those of the ring from the one to the other, `stored` those in which results wait to leave, `halo`
    those of a ring of halo tiles of A, where there is one: then the other ring has B alone; `once` those of what is
    brought once a task, for all rounds of its loop.
    """

    load: tuple[int, int]
    multiply: tuple[int, int]
    stages: int
    stored: int
    halo: int = 0
    pingpong: bool = False
    """Whether halves of those who multiply take tasks in turn: one stores while the other multiplies."""
    once: int = 1
    together: bool = False
    """Whether all that one step of a loop uses is handed over together, also where products use it one by one."""
    apart: bool = False
    """Whether groups of those who multiply store their results each by itself, and go on."""

    def __str__(self) -> str:
        waves = [f"{count} {'wave' if count == 1 else 'waves'}" for count, _ in (self.load, self.multiply)]
        return (
            f"roles load {waves[0]} {self.load[1]} registers, multiply {waves[1]} {self.multiply[1]} registers, "
            f"ring {self.stages}{' together' if self.together else ''}, {f'halo {self.halo}, ' if self.halo else ''}"
            f"{f'once {self.once}, ' if self.once > 1 else ''}stored {self.stored}"
            f"{' apart' if self.apart else ''}{', pingpong' if self.pingpong else ''}"
        )


@dataclass(frozen=True)
class Plan:
    """How a program is done. See the module's text."""

    axes: tuple[Axis, ...]
    tasks: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    placed: tuple[Placed, ...] = ()
    atom: str | None = None
    schedule: str = "strided"
    overlap: str = "none"
    products: tuple[Multiplied, ...] = ()
    roles: Roles | None = None
    group: int = 1
    """Of the first axis of tasks, so many are walked together, for the cache that cores share; where tasks are dynamic,
    of the axis before the rows."""
    apart: str | None = None
    """The product up to which a first program goes; what is computed from it goes through memory to a second one."""
    split: tuple[str, int] | None = None
    """An axis that is summed in so many parts, each in tasks of its own, which are added up by a second program."""
    waves: int = 1
    """How many waves do a task together; those of a program with roles are said there."""
    then: Plan | None = None
    """The plan of the second program, where there are two; None: it is chosen."""
    early: bool | None = None
    """Whether the program is launched while the one before it ends; None: it is chosen, where the machine can."""

    def __repr__(self) -> str:
        return f"parse_plan({str(self)!r})"

    def axis(self, name: str) -> Axis:
        """The axis of that name."""
        found = next((a for a in self.axes if a.name == name), None)
        if found is None:
            names = [a.name for a in self.axes]
            raise ArgumentError(
                f"plan: there is no axis {name}; there are {', '.join(names)}{did_you_mean(name, names)}"
            )
        return found

    def operand(self, name: str) -> Placed:
        """Where an operand lies."""
        found = next((p for p in self.placed if p.name == name), None)
        if found is None:
            names = [p.name for p in self.placed]
            raise ArgumentError(
                f"plan: no line says where {name} lies; there are lines of {', '.join(names) or 'no operand'}"
            )
        return found

    @property
    def open(self) -> frozenset[str]:
        """The digits that are known only when the program runs."""
        return frozenset(d.name for a in self.axes for d in a.digits if d.open)

    def opened(self, names: Collection[str]) -> Plan:
        """The plan with these digits open, and no others."""
        axes = [replace(a, digits=tuple(replace(d, open=d.name in names) for d in a.digits)) for a in self.axes]
        return replace(self, axes=tuple(axes))

    def lines(self) -> list[str]:
        """The plan's statements."""
        found = [str(a) for a in self.axes]
        if self.tasks:
            more = f" group {self.group}" if self.group > 1 else ""
            more += f" {self.schedule}" if self.schedule != "strided" else ""
            found.append(f"tasks {', '.join(self.tasks)}{more}")
        if self.order:
            found.append(f"order {', '.join(self.order)}")
        found += map(str, self.placed)
        found += map(str, self.products)
        if self.roles is not None:
            found.append(str(self.roles))
        if self.apart is not None:
            found.append(f"apart {self.apart}")
        if self.split is not None:
            found.append(f"split {self.split[0]} {self.split[1]}")
        if self.waves > 1:
            found.append(f"waves {self.waves}")
        if self.atom is not None:
            found.append(f"atom {self.atom}")
        if self.overlap != "none":
            found.append(f"overlap {self.overlap}")
        if self.early is not None:
            found.append(f"launch {LAUNCHES[self.early]}")
        return found if self.then is None else [*found, THEN, *self.then.lines()]

    def __str__(self) -> str:
        return "; ".join(self.lines())

    def differs(self, other: Plan) -> str:
        """The statements of this plan that another does not have.

        >>> from tilewright.plan.reading import parse_plan
        >>> one = parse_plan("axis m = (m 8): task 4; tasks m")
        >>> one.differs(parse_plan("axis m = (m 8): task 2; tasks m"))
        'axis m = (m 8): task 4'
        """
        mine = [line for line in self.lines() if line not in other.lines()]
        if self.overlap == "none" != other.overlap:
            mine.append("overlap none")
        return "; ".join(mine)

    def require_axes(self, names: Iterable[str], more: str = "") -> None:
        """Refuses the plan, which is given, where its axes are not these."""
        said, here = ", ".join(a.name for a in self.axes), ", ".join(names)
        if said != here:
            raise ArgumentError(f"plan: its axes are {said}; here they are {here}{more}")

    def require_same(self, done: Plan) -> None:
        """Refuses what the plan, which is given, says, by its line, where it is not what is done."""
        lines, mine = self.lines(), done.lines()
        for said, here in zip(lines, mine, strict=False):
            if said != here:
                raise ArgumentError(f"plan: `{said}` is not done here; it would be `{here}`")
        if len(lines) < len(mine):
            raise ArgumentError(f"plan: after `{lines[-1]}` it ends; here `{mine[len(lines)]}` follows")
        if len(lines) > len(mine):
            raise ArgumentError(f"plan: `{lines[len(mine)]}` has no meaning here: `{mine[-1]}` is the last line")
