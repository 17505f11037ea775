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

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from math import ceil, prod

from tilewright.errors import ArgumentError
from tilewright.limits import ELEMENTS, shown

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
            raise ArgumentError(f"plan: there is no axis {name}; there are {', '.join(a.name for a in self.axes)}")
        return found

    def operand(self, name: str) -> Placed:
        """Where an operand lies."""
        found = next((p for p in self.placed if p.name == name), None)
        if found is None:
            raise ArgumentError(f"plan: nothing is said about {name}")
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


# -- from text --------------------------------------------------------------------------------------------

_NAME = r"[A-Za-z_][A-Za-z_0-9]*"
_AXIS = re.compile(rf"axis ({_NAME}) = \(([^)]*)\): (.+)")
_DIGIT = re.compile(rf"({_NAME}) (?:(\d+) of )?(\d+)(\?)?")
_CUT = re.compile(rf"({'|'.join(ROLES)}) (?:({_NAME}) )?(\d+)")
_PLACED = re.compile(
    rf"({_NAME}) (?:(in place)|packed at (bind)|staged at ({_NAME}) as ({_NAME})|"
    rf"in (rows|{PANELS}|{PADDED}|[1-9]\d* {DIAGONAL})), ({_NAME})"
)
_PRODUCT = re.compile(rf"({_NAME}) by (?:(loops)|([^\s,]+), block (\d+)x(\d+)( transposed)?)")
STATEMENTS = {
    "apart": re.compile(rf"apart ({_NAME})"),
    "split": re.compile(rf"split ({_NAME}) (\d+)"),
    "waves": re.compile(r"waves (\d+)"),
    "tasks": re.compile(rf"tasks ({_NAME}(?:, {_NAME})*)(?: group (\d+))?(?: ({'|'.join(SCHEDULES)}))?"),
    "order": re.compile(rf"order ({_NAME}(?:, {_NAME})*)"),
    "roles": re.compile(
        r"roles load (\d+) waves? (\d+) registers, multiply (\d+) waves? (\d+) registers, ring (\d+)( together)?"
        r"(?:, halo (\d+))?(?:, once (\d+))?, stored (\d+)( apart)?(, pingpong)?"
    ),
    "atom": re.compile(r"atom (\S+)"),
    "overlap": re.compile(rf"overlap ({'|'.join(OVERLAPS)})"),
    "launch": re.compile(rf"launch ({'|'.join(LAUNCHES)})"),
}


def parse_plan(text: str) -> Plan:
    """The plan that a text says; statements stand on lines of their own, or between semicolons.

    >>> text = "axis m = (p 7, q 9 of 8): task p 2, loop 32, unit 16; tasks m; order m; x in place, keep; atom a.b"
    >>> str(parse_plan(text)) == text
    True
    >>> parse_plan("axis m = (m 8): task four")
    Traceback (most recent call last):
    tilewright.errors.ArgumentError: plan: 'task four' is no cut: such as `loop 32`, `task p 28`, by task, loop or unit
    """
    statements = [s for s in (s.strip() for s in re.split(r"[;\n]", text)) if s]
    place = next((i for i, statement in enumerate(statements) if statement == THEN), None)
    if place is None:
        return _parsed(statements)
    first = _parsed(statements[:place])
    if first.apart is None:
        raise ArgumentError(f"plan: `{THEN}` stands between two programs, and no `apart` says that there are two")
    return replace(first, then=parse_plan("\n".join(statements[place + 1 :])))


def _parsed(statements: list[str]) -> Plan:
    """The plan of one program."""
    axes: list[Axis] = []
    placed: list[Placed] = []
    products: list[Multiplied] = []
    rest: dict[str, tuple[str, ...]] = {}
    for statement in statements:
        if found := _AXIS.fullmatch(statement):
            _once(found[1], [a.name for a in axes])
            axes.append(Axis(found[1], _digits(found[2]), _cuts(found[3])))
        elif found := _PLACED.fullmatch(statement):
            _once(found[1], [p.name for p in placed])
            if found[7] not in HINTS:
                raise ArgumentError(f"plan: {statement!r}: the hint is one of {', '.join(HINTS)}")
            at = LAUNCH if found[6] else found[3] or found[4]
            if found[6] and found[6].endswith(DIAGONAL):
                _size(found[6].split()[0], statement)
            placed.append(Placed(found[1], at, found[5] or found[6] or "", found[7]))
        elif found := _PRODUCT.fullmatch(statement):
            _once(found[1], [p.name for p in products])
            rows, columns = (_size(digits or "1", statement) for digits in found.group(4, 5))
            products.append(Multiplied(found[1], found[3], rows, columns, found[6] is not None))
        else:
            for name, form in STATEMENTS.items():
                if found := form.fullmatch(statement):
                    _once(name, list(rest))
                    rest[name] = tuple(g or "" for g in found.groups())
                    break
            else:
                raise ArgumentError(
                    f"plan: {statement!r} is no statement: there are `axis NAME = (DIGIT EXTENT, ...): CUTS`, "
                    "`tasks`, `order`, `NAME in place, HINT`, `NAME in rows, HINT`, `NAME in panels, HINT`, "
                    "`NAME in COUNT diagonal blocks, HINT`, `NAME packed at bind, HINT`, "
                    "`NAME staged at POINT as FORM, HINT`, "
                    "`NAME by ATOM, block ROWSxCOLUMNS`, perhaps `transposed`, `NAME by loops`, `roles`, `apart`, "
                    "`split`, `waves`, `atom`, `overlap`, `launch` and `then`"
                )
    if not axes:
        raise ArgumentError("plan: it has no axis; `show --level plan` prints plans")
    tasks, group, schedule = rest.get("tasks", ("", "", ""))
    said = rest.get("roles", ())
    numbers = [_size(text or "0", "roles") for text in (*said[:5], *said[6:-2])]
    plan = Plan(
        tuple(axes),
        tuple(tasks.split(", ")) if tasks else (),
        tuple(rest["order"][0].split(", ")) if "order" in rest else (),
        tuple(placed),
        rest["atom"][0] if "atom" in rest else None,
        schedule or "strided",
        rest["overlap"][0] if "overlap" in rest else "none",
        tuple(products),
        _roles_of(numbers, together=bool(said[5]), turns=bool(said[-1]), apart=bool(said[-2])) if said else None,
        _size(group or "1", "group"),
        rest["apart"][0] if "apart" in rest else None,
        (rest["split"][0], _size(rest["split"][1], "split")) if "split" in rest else None,
        _size(rest["waves"][0], "waves") if "waves" in rest else 1,
        early=rest["launch"][0] == LAUNCHES[True] if "launch" in rest else None,
    )
    for name in (*plan.tasks, *plan.order):
        plan.axis(name)
    return plan


def _roles_of(numbers: list[int], *, together: bool, turns: bool, apart: bool) -> Roles:
    """Roles from the numbers of their line, in order."""
    loads, load_registers, waves, registers, ring, halo, once, stored = numbers
    own = (loads, load_registers), (waves, registers)
    return Roles(*own, ring, stored, halo, turns, max(1, once), together, apart)


def _once(name: str, known: list[str]) -> None:
    if name in known:
        raise ArgumentError(f"plan: {name} is said twice")


def _digits(text: str) -> tuple[Digit, ...]:
    found = []
    for part in text.split(", "):
        match = _DIGIT.fullmatch(part)
        if match is None:
            raise ArgumentError(f"plan: {part!r} is no digit: a name and its extent, such as `q 56` or `q 57 of 56`")
        extent = _size(match[3], part)
        walked = _size(match[2], part) if match[2] else extent
        if extent < 1 or walked < extent:
            raise ArgumentError(f"plan: {part!r}: an extent is at least 1, and what is walked at least the extent")
        found.append(Digit(match[1], extent, walked, match[4] is not None))
    return tuple(found)


def _cuts(text: str) -> tuple[Cut, ...]:
    if text == "whole":
        return ()
    found = []
    for part in text.split(", "):
        match = _CUT.fullmatch(part)
        if match is None:
            raise ArgumentError(f"plan: {part!r} is no cut: such as `loop 32`, `task p 28`, by task, loop or unit")
        size = _size(match[3], part)
        if size < 1:
            raise ArgumentError(f"plan: {part!r}: pieces have at least one element")
        found.append(Cut(match[1], size, match[2]))
    return tuple(found)


def _size(digits: str, part: str) -> int:
    if len(digits) > 18:
        raise ArgumentError(f"plan: {shown(part, 60)!r}: {ELEMENTS.rule}")
    return int(digits)
