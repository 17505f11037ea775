"""Plans from their text: statements on lines of their own, or between semicolons; `plan.plan` says what they mean."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from tilewright.errors import ArgumentError
from tilewright.limits import ELEMENTS, did_you_mean, shown, written
from tilewright.plan.plan import (
    DIAGONAL,
    HINTS,
    LAUNCH,
    LAUNCHES,
    OVERLAPS,
    PADDED,
    PANELS,
    ROLES,
    SCHEDULES,
    THEN,
    Axis,
    Cut,
    Digit,
    Multiplied,
    Placed,
    Plan,
    Roles,
)
from tilewright.plan.words import near_statement

SHOWN = 200
"""Characters of a statement, or of what is given instead of a plan, that messages show."""
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
NOTATION = {
    "axis": "`axis NAME = (DIGIT EXTENT, ...): CUTS`, such as `axis M = (M 512): task 64`",
    "tasks": f"`tasks AXIS, ...`, perhaps `group COUNT`, then perhaps one of {', '.join(SCHEDULES)}",
    "order": "`order AXIS, ...`",
    "roles": "`roles load 1 wave 40 registers, multiply 8 waves 232 registers, ring 4, stored 2`",
    "apart": "`apart PRODUCT`",
    "split": "`split AXIS PARTS`",
    "waves": "`waves COUNT`",
    "atom": "`atom NAME`",
    "overlap": f"`overlap HOW`, one of {', '.join(OVERLAPS)}",
    "launch": f"`launch HOW`, one of {', '.join(LAUNCHES)}",
    "in": f"`OPERAND in place, HINT`; instead of place also rows, {PANELS}, {PADDED}, COUNT {DIAGONAL}",
    "packed": "`OPERAND packed at bind, HINT`",
    "staged": "`OPERAND staged at POINT as FORM, HINT`",
    "by": "`PRODUCT by ATOM, block ROWSxCOLUMNS`, perhaps `transposed`, or `PRODUCT by loops`",
}
"""How statements are written, by the word that tells which one it is: the first, or, after a name, the second."""
_OPERAND_WORDS = ("in", "packed", "staged", "by")


def as_plan(given: object) -> Plan | None:
    """The plan that a caller gives as `plan=`: a text, or a plan; None: it is to be chosen.

    >>> as_plan(5)
    Traceback (most recent call last):
    tilewright.errors.ArgumentError: plan=5: a plan is a text, as executable.text("plan") prints it; leave it out ...
    """
    if given is None or isinstance(given, Plan):
        return given
    if not isinstance(given, str):
        raise ArgumentError(
            f'plan={written(given, SHOWN)}: a plan is a text, as executable.text("plan") prints it; leave it out to '
            "have one chosen"
        )
    return parse_plan(given)


def parse_plan(text: str) -> Plan:
    """The plan that a text says; statements stand on lines of their own, or between semicolons.

    >>> text = "axis m = (p 7, q 9 of 8): task p 2, loop 32, unit 16; tasks m; order m; x in place, keep; atom a.b"
    >>> str(parse_plan(text)) == text
    True
    >>> parse_plan("axis m = (m 8): tusk 4")
    Traceback (most recent call last):
    tilewright.errors.ArgumentError: plan: 'tusk 4' is no cut: such as `loop 32`, `task p 28`, by task, loop or unit; in
    `axis m = (m 8): tusk 4`; did you mean `axis m = (m 8): task 4`?
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
    axes: dict[str, Axis] = {}
    placed: dict[str, Placed] = {}
    products: dict[str, Multiplied] = {}
    rest: dict[str, tuple[str, ...]] = {}
    lines: dict[str, str] = {}
    for statement in statements:
        match _read_or_suggest(statement):
            case Axis() as axis:
                _add(axes, axis.name, axis, statement)
            case Placed() as operand:
                _add(placed, operand.name, operand, statement)
            case Multiplied() as product:
                _add(products, product.name, product, statement)
            case (word, *groups):
                _add(rest, word, tuple(groups), statement)
                lines[word] = statement
    if not axes:
        whole = shown("; ".join(statements), SHOWN)
        raise ArgumentError(
            f'plan: {whole!r}: it has no axis; executable.text("plan") and `show --level plan` print plans'
        )
    tasks, group, schedule = rest.get("tasks", ("", "", ""))
    said = rest.get("roles", ())
    numbers = [_size(text or "0", "roles") for text in (*said[:5], *said[6:-2])]
    plan = Plan(
        tuple(axes.values()),
        tuple(tasks.split(", ")) if tasks else (),
        tuple(rest["order"][0].split(", ")) if "order" in rest else (),
        tuple(placed.values()),
        rest["atom"][0] if "atom" in rest else None,
        schedule or "strided",
        rest["overlap"][0] if "overlap" in rest else "none",
        tuple(products.values()),
        _roles_of(numbers, together=bool(said[5]), turns=bool(said[-1]), apart=bool(said[-2])) if said else None,
        _size(group or "1", "group"),
        rest["apart"][0] if "apart" in rest else None,
        (rest["split"][0], _size(rest["split"][1], "split")) if "split" in rest else None,
        _size(rest["waves"][0], "waves") if "waves" in rest else 1,
        early=rest["launch"][0] == LAUNCHES[True] if "launch" in rest else None,
    )
    if plan.roles is not None and not products:
        raise ArgumentError(f"plan: `{lines['roles']}`: no line says what they multiply, {NOTATION['by']}")
    for word, names in (("tasks", plan.tasks), ("order", plan.order)):
        for name in names:
            if name not in axes:
                raise ArgumentError(
                    f"plan: there is no axis {name}; there are {', '.join(axes)}{did_you_mean(name, axes)}; "
                    f"in `{lines[word]}`"
                )
    return plan


Statement = Axis | Placed | Multiplied | tuple[str, ...]
"""A parsed line: an axis, an operand, a product; of any other its first word and its parts."""


def _read_or_suggest(statement: str) -> Statement:
    """The parsed statement; the error of one that cannot be read names it, and a near statement that can."""
    try:
        return _read(statement)
    except ArgumentError as fault:
        near = near_statement(statement, _read)
        what = str(fault) if repr(shown(statement, SHOWN)) in str(fault) else f"{fault}; in `{shown(statement, SHOWN)}`"
        raise ArgumentError(f"{what}; did you mean `{near}`?" if near else what) from None


def _read(statement: str) -> Statement:
    """The parsed statement."""
    if found := _AXIS.fullmatch(statement):
        return _axis(*found.group(1, 2, 3))
    if found := _PLACED.fullmatch(statement):
        if found[7] not in HINTS:
            raise ArgumentError(f"plan: {statement!r}: the hint is one of {', '.join(HINTS)}")
        at = LAUNCH if found[6] else found[3] or found[4]
        if found[6] and found[6].endswith(DIAGONAL):
            _size(found[6].split()[0], statement)
        return Placed(found[1], at, found[5] or found[6] or "", found[7])
    if found := _PRODUCT.fullmatch(statement):
        rows, columns = (_size(digits or "1", statement) for digits in found.group(4, 5))
        return Multiplied(found[1], found[3], rows, columns, found[6] is not None)
    for name, form in STATEMENTS.items():
        if found := form.fullmatch(statement):
            return (name, *(g or "" for g in found.groups()))
    first, second, *_ = *statement.split(), "", ""
    word = second if second in _OPERAND_WORDS else first
    if word in (*STATEMENTS, "axis") or (word in _OPERAND_WORDS and word != first):
        known = f"it is written {NOTATION[word]}"
    else:
        known = (
            f"one begins with {', '.join(w for w in NOTATION if w not in _OPERAND_WORDS)} or {THEN}, or has "
            f"{', '.join(_OPERAND_WORDS)} after the name of an operand or a product"
        )
    raise ArgumentError(f"plan: {shown(statement, SHOWN)!r} is no statement: {known}")


def _add(known: dict[str, Any], name: str, value: Any, statement: str) -> None:
    """Keeps what a statement says; refuses what is said twice."""
    if name in known:
        raise ArgumentError(f"plan: {name} is said twice; in `{shown(statement, SHOWN)}`")
    known[name] = value


def _roles_of(numbers: list[int], *, together: bool, turns: bool, apart: bool) -> Roles:
    """Roles from the numbers of their line, in order."""
    loads, load_registers, waves, registers, ring, halo, once, stored = numbers
    own = (loads, load_registers), (waves, registers)
    return Roles(*own, ring, stored, halo, turns, max(1, once), together, apart)


def _axis(name: str, digits: str, cuts: str) -> Axis:
    """An axis from its parts."""
    axis = Axis(name, _digits(digits), _cuts(cuts))
    names = [d.name for d in axis.digits]
    for cut in axis.cuts:
        if cut.digit is not None and cut.digit not in names:
            near = did_you_mean(cut.digit, names)
            raise ArgumentError(f"plan: `{cut}` cuts no digit of {name}: it has {', '.join(names)}{near}")
    return axis


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
        raise ArgumentError(f"plan: {shown(part, SHOWN)!r}: {ELEMENTS.rule}")
    return int(digits)
