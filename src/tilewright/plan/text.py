"""Parse the text of a plan: statements separated by newlines or semicolons; `schedule` documents their meaning.

`str(plan)` is the inverse. Statements of version 1 (`plan.version1`) are translated.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import Any

from tilewright.errors import ArgumentError
from tilewright.limits import ELEMENTS, did_you_mean, shown, written
from tilewright.plan.schedule import (
    ALIGNED,
    BETWEEN,
    BIND,
    CYCLIC,
    DIAGONAL,
    FORMS,
    HINTS,
    K_ROWS,
    LAUNCH,
    LAUNCHES,
    LEVELS,
    ORDERS,
    OVERLAPS,
    PACKED,
    PADDED,
    PANELS,
    POINTS,
    SPACES,
    THEN,
    Axis,
    Digit,
    Hop,
    LaneTile,
    Occupancy,
    Pipeline,
    ProductUnit,
    Schedule,
    Split,
    ValuePlacement,
)
from tilewright.plan.version1 import SUCCESSORS, as_version_2
from tilewright.plan.words import near_statement

SHOWN = 200
"""The most characters of a statement, or of an argument that is no plan, that error messages quote."""
_NAME = r"[A-Za-z_][A-Za-z_0-9]*"
_COPY = r"by [^\s,]+ (?:to|from) [^\s,]+ \d+"
_END = rf"(, reuse)?(?:, ({_NAME}))?"
_AXIS = re.compile(rf"axis ({_NAME}) = \(([^)]*)\): (.+)")
_DIGIT = re.compile(rf"({_NAME}) (?:(\d+) of )?(\d+)(\?)?")
_CUT = re.compile(rf"({'|'.join(LEVELS)}) (?:({_NAME}) )?(\d+)(?: as (\d+(?:x\d+)+))?(?: unroll (\d+))?")
_PEEL = re.compile(r"(.+), peel (\d+) (\d+)")
_IN_PLACE = re.compile(rf"({_NAME}) in place{_END}")
_BETWEEN = re.compile(rf"({_NAME}) ({'|'.join(BETWEEN)}){_END}")
_COPIED = re.compile(
    rf"({_NAME}) (?:packed at bind|({'|'.join(FORMS)})(?: at ({_NAME}))?)( {_COPY}(?:, {_COPY})*)?{_END}"
)
_HOP = re.compile(r"by ([^\s,]+) (to|from) ([^\s,]+) (\d+)")
_REPACKED = re.compile(rf"repack ({_NAME}): ({ALIGNED}|{PANELS}|{PADDED}|{K_ROWS}|{DIAGONAL} [1-9]\d*){_END}")
_PRODUCT = re.compile(rf"({_NAME}) by (?:(loops)|([^\s,]+), tile (\d+)x(\d+)( transposed)?)")
_PIPELINE = re.compile(r"producer (\d+) waves? (\d+) registers, consumer (\d+) waves? (\d+) registers(, .+)")
_STAGES = re.compile(r"((?:halo |resident |epilogue )?stages) (\d+)")
_LANES = re.compile(r"lanes (?:vector (\d+))?(?:(?:(?<=\d), |(?<=lanes ))box (\d+(?:x\d+)*))?")
_OCCUPANCY = re.compile(r"(workgroups|domains|registers) (\d+)|(persistent)")
_STATEMENTS = {
    "grid": re.compile(rf"grid ({_NAME}(?:, {_NAME})*)"),
    "raster": re.compile(rf"raster (?:(\d+)(?:, ({'|'.join(ORDERS)}))?|({'|'.join(ORDERS)}))"),
    "loops": re.compile(rf"loops ({_NAME}(?:\.\d+)?(?:, {_NAME}(?:\.\d+)?)*)"),
    "whole": re.compile(rf"whole ({_NAME})"),
    "split": re.compile(rf"split kernel (after|before) ({_NAME})"),
    "parts": re.compile(rf"parts ({_NAME}) (\d+)"),
    "waves": re.compile(r"waves (\d+)"),
    "atom": re.compile(r"atom (\S+)"),
    "overlap": re.compile(rf"overlap ({'|'.join(OVERLAPS)})"),
    "launch": re.compile(rf"launch ({'|'.join(LAUNCHES)})"),
}
_PIPELINE_NOTATION = (
    "`producer 1 wave 40 registers, consumer 8 waves 232 registers, stages 4, epilogue stages 2`, perhaps with joint, "
    "halo stages COUNT, resident stages COUNT, store per group, pingpong"
)
_VALUE_NOTATION = (
    f"`VALUE FORM at POINT`, FORM one of {', '.join(FORMS)}, perhaps `by COPY to SPACE BUFFERS, ...` behind"
)
NOTATION = {
    "axis": "`axis NAME = (DIGIT EXTENT, ...): SPLITS`, such as `axis M = (M 512): task 64`",
    "grid": "`grid AXIS, ...`",
    "raster": f"`raster COUNT`, or `raster COUNT, ORDER`, or `raster ORDER`, ORDER one of {', '.join(ORDERS)}",
    "loops": "`loops AXIS, ...`, where `AXIS.2` is its second loop",
    "producer": _PIPELINE_NOTATION,
    "repack": f"`repack OPERAND: FORM`, FORM one of {ALIGNED}, {PANELS}, {PADDED}, {K_ROWS}, {DIAGONAL} COUNT",
    "whole": "`whole DIMENSION`",
    "split": "`split kernel after PRODUCT` or `split kernel before PRODUCT`",
    "parts": "`parts AXIS COUNT`",
    "waves": "`waves COUNT`",
    "atom": "`atom NAME`",
    "overlap": f"`overlap HOW`, one of {', '.join(OVERLAPS)}",
    "lanes": "`lanes vector COUNT, box ROWSxCOLUMNS`, or one of the two",
    "occupancy": "`occupancy workgroups COUNT, persistent, domains COUNT, registers COUNT`, or some of these",
    "launch": f"`launch HOW`, one of {', '.join(LAUNCHES)}",
    "in": "`VALUE in place`",
    "at": _VALUE_NOTATION,
    **dict.fromkeys((*FORMS, PACKED), _VALUE_NOTATION),
    **dict.fromkeys(("kept", "computed"), f"`VALUE HOW`, one of {', '.join(BETWEEN)}"),
    "by": "`PRODUCT by ATOM, tile ROWSxCOLUMNS`, perhaps `transposed`, or `PRODUCT by loops`",
}
"""The notation of each statement, by the word that identifies it: the first or, after a name, the second."""
_SECOND = ("in", "at", *FORMS, PACKED, "kept", "computed", "by")


def as_plan(plan: object) -> Schedule | None:
    """Return the Schedule that a caller gives as `plan=`: a text is parsed, a Schedule is returned as it is.

    None (no plan is given, so that one is chosen) is returned as it is too. Raise an ArgumentError for an illegal text,
    and for a `plan` of any other type.

    >>> as_plan(5)
    Traceback (most recent call last):
    tilewright.errors.ArgumentError: plan=5: a plan is a text, as executable.text("plan") prints it; leave it out ...
    """
    if plan is None or isinstance(plan, Schedule):
        return plan
    if not isinstance(plan, str):
        raise ArgumentError(
            f'plan={written(plan, SHOWN)}: a plan is a text, as executable.text("plan") prints it; leave it out to '
            "have one chosen"
        )
    return parse_plan(plan)


def parse_plan(text: str) -> Schedule:
    """Return the Schedule (plan) that a text states; raise an ArgumentError for an illegal text.

    Statements are separated by newlines or semicolons. Statements after `then` are the plan of a second kernel; the
    first must then say `split kernel`.

    >>> text = "axis m = (p 7, q 9 of 8): task p 2, loop 32, unit 16; grid m; loops m; x in place; atom a.b"
    >>> str(parse_plan(text)) == text
    True
    >>> parse_plan("axis m = (m 8): tusk 4")
    Traceback (most recent call last):
    tilewright.errors.ArgumentError: plan: 'tusk 4' is no split: such as `loop 32`, `task p 28`, by cluster, task, ...
    """
    statements = [s for s in (s.strip() for s in re.split(r"[;\n]", text)) if s]
    split_at = next((i for i, statement in enumerate(statements) if statement == THEN), None)
    if split_at is None:
        return _parse_kernel(statements)
    first_kernel = _parse_kernel(statements[:split_at])
    if first_kernel.split_at is None:
        raise ArgumentError(
            f"plan: `{THEN}` stands between two kernels, and no `split kernel after PRODUCT` says that there are two"
        )
    return replace(first_kernel, then=parse_plan("\n".join(statements[split_at + 1 :])))


Statement = Axis | ValuePlacement | ProductUnit | Pipeline | LaneTile | Occupancy | tuple[str, ...]
"""A parsed statement: one of these types; for any other statement a tuple, its first word and its arguments."""


def _parse_kernel(statements: list[str]) -> Schedule:
    """Return the Schedule (plan) of one kernel from its statements.

    Raise an ArgumentError for an illegal or repeated statement, and for an unknown axis in `grid`, in `loops` or as the
    point (time) of a copy. Raise one too for a pipeline without an MMA statement, and for `raster` without `grid`.
    """
    axes: list[Axis] = []
    values: dict[str, ValuePlacement] = {}
    products: dict[str, ProductUnit] = {}
    single_statements: dict[str, Any] = {}
    lines: dict[str, str] = {}
    for statement in statements:
        for part in _parse_or_suggest(statement):
            match part:
                case Axis() as axis:
                    _add_axis(axes, axis, statement)
                case ValuePlacement() as value:
                    _add_once(values, value.name, value, statement)
                case ProductUnit() as product:
                    _add_once(products, product.name, product, statement)
                case (word, *groups):
                    _add_once(single_statements, word, tuple(groups), statement)
                    lines[word] = statement
                case Pipeline() | LaneTile() | Occupancy():
                    word = str(part).partition(" ")[0]
                    _add_once(single_statements, word, part, statement)
                    lines[word] = statement
    count, grouped_order, order = single_statements.get("raster", ("", "", ""))
    side, split_mma = single_statements.get("split", ("", None))
    plan = Schedule(
        tuple(axes),
        tuple(single_statements["grid"][0].split(", ")) if "grid" in single_statements else (),
        tuple(single_statements["loops"][0].split(", ")) if "loops" in single_statements else (),
        tuple(values.values()),
        single_statements["atom"][0] if "atom" in single_statements else None,
        grouped_order or order or CYCLIC,
        single_statements["overlap"][0] if "overlap" in single_statements else "none",
        tuple(products.values()),
        single_statements.get("producer"),
        _parse_count(count or "1", lines.get("raster", "")),
        split_mma if side == "after" else None,
        (single_statements["parts"][0], _parse_size(single_statements["parts"][1], "parts"))
        if "parts" in single_statements
        else None,
        _parse_size(single_statements["waves"][0], "waves") if "waves" in single_statements else 1,
        early=single_statements["launch"][0] == LAUNCHES[True] if "launch" in single_statements else None,
        split_before=split_mma if side == "before" else None,
        lanes=single_statements.get("lanes"),
        occupancy=single_statements.get("occupancy", Occupancy()),
        whole=single_statements["whole"][0] if "whole" in single_statements else None,
    )
    if plan.pipeline is not None and not products:
        raise ArgumentError(
            f"plan: `{lines['producer']}`: no line says what they multiply, {NOTATION['by']}; "
            "the product of a program with one is `mma`"
        )
    if "raster" in lines and not plan.grid:
        raise ArgumentError(f"plan: `{lines['raster']}`: no line says the tasks that it orders, {NOTATION['grid']}")
    _check_axis_names(plan, lines)
    return plan


def _check_axis_names(plan: Schedule, lines: dict[str, str]) -> None:
    """Raise an ArgumentError if `grid`, `loops` or the point of a copy names an axis or loop that the plan lacks.

    The point is the time of a copy: `start`, `task`, or an axis (the value is copied for each step of that axis).
    `loops` may number the loops of an axis, as in `K.2`. `lines` maps the first word of a statement to its text, which
    the error quotes.
    """
    axes = {axis.name: axis for axis in plan.axes}
    for value in (v for v in plan.values if v.at not in (None, LAUNCH, BIND, *POINTS, *axes)):
        points = (*POINTS, *axes)
        near = did_you_mean(str(value.at), points)
        raise ArgumentError(f"plan: `{value}`: {value.at} is no point: it is one of {', '.join(points)}{near}")
    for word, names in (("grid", plan.grid), ("loops", plan.loops)):
        for full in names:
            name, _, number = full.partition(".")
            if name not in axes:
                raise ArgumentError(
                    f"plan: there is no axis {name}; there are {', '.join(axes) or 'none'}{did_you_mean(name, axes)}; "
                    f"in `{lines[word]}`"
                )
            loops = sum(cut.is_loop for cut in axes[name].splits)
            if number and not 1 <= int(number) <= loops:
                raise ArgumentError(f"plan: {full}: `{axes[name]}` has {loops} loops; in `{lines[word]}`")


def _parse_or_suggest(statement: str) -> list[Statement]:
    """Parse one statement of a plan; return a list of statement objects, usually of one.

    Raise an ArgumentError for an illegal statement. Its message suggests the most similar legal statement that differs
    in one word, if there is one. The suggestion is written in version 2 of the plan language, the present one.
    """
    try:
        return _parse_statement(statement)
    except ArgumentError as fault:
        near = near_statement(statement, _parse_statement)
        near = "; ".join(as_version_2(near) or [near]) if near else None
        message = (
            str(fault) if repr(shown(statement, SHOWN)) in str(fault) else f"{fault}; in `{shown(statement, SHOWN)}`"
        )
        raise ArgumentError(f"{message}; did you mean `{near}`?" if near else message) from None


def _parse_statement(statement: str) -> list[Statement]:
    """Parse one statement of a plan; return a list of statement objects, usually of one, such as an Axis or a Pipeline.

    A statement of version 1, an older form of the plan language, is translated, and may give two items. Raise an
    ArgumentError for an illegal statement.
    """
    return [_parse_part(part) for part in as_version_2(statement) or [statement]]


def _parse_part(statement: str) -> Statement:
    """Return one statement of a plan in version 2 of the plan language, the present one, as parsed data.

    It is an Axis, ValuePlacement, ProductUnit, Pipeline, LaneTile or Occupancy; for any other statement a tuple: its
    first word, then its arguments as texts, such as ("grid", "M, N"). Raise an ArgumentError for an illegal statement.
    """
    if match := _AXIS.fullmatch(statement):
        return _parse_axis(*match.group(1, 2, 3))
    for pattern, value_of in _VALUES:
        if match := pattern.fullmatch(statement):
            value: ValuePlacement = value_of(match)
            if value.hint not in HINTS:
                raise ArgumentError(f"plan: {statement!r}: the hint is one of {', '.join(HINTS)}")
            return value
    if match := _PRODUCT.fullmatch(statement):
        rows, columns = (_parse_size(digits or "1", statement) for digits in match.group(4, 5))
        return ProductUnit(match[1], match[3], rows, columns, match[6] is not None)
    if match := _PIPELINE.fullmatch(statement):
        return _parse_pipeline(match, statement)
    if (match := _LANES.fullmatch(statement)) and any(match.groups()):
        return LaneTile(_parse_size(match[1] or "1", statement), _parse_box(match[2] or "", statement))
    if statement.startswith("occupancy "):
        return _parse_occupancy(statement)
    for name, pattern in _STATEMENTS.items():
        if match := pattern.fullmatch(statement):
            return (name, *(g or "" for g in match.groups()))
    raise ArgumentError(f"plan: {shown(statement, SHOWN)!r} is no statement: {_notation_for(statement)}")


def _notation_for(statement: str) -> str:
    """Return text for an error message: how the statement that the illegal `statement` resembles is written.

    If it resembles none, it is the list of words that statements begin with.
    """
    first, second, *_ = *statement.split(), "", ""
    word = second if second in (*_SECOND, "staged") else first
    word = SUCCESSORS.get(word, word)
    if (word in NOTATION and word != first) or (word in NOTATION and word not in _SECOND):
        return f"it is written {NOTATION[word]}"
    begins = ", ".join(w for w in NOTATION if w not in _SECOND)
    return f"one begins with {begins} or {THEN}, or has {', '.join(_SECOND)} behind the name of a value or a product"


def _parse_in_place(match: re.Match[str]) -> ValuePlacement:
    """Return the ValuePlacement of the statement `VALUE in place`: the value is read from memory, not copied.

    `match` is the statement's match of the pattern `_IN_PLACE`.
    """
    return ValuePlacement(match[1], None, "", match[3] or HINTS[0], (), match[2] is not None)


def _parse_between(match: re.Match[str]) -> ValuePlacement:
    """Return the ValuePlacement of a value between two MMAs, from a statement such as `p kept in register`.

    `match` is the statement's match of the pattern `_BETWEEN`.
    """
    return ValuePlacement(match[1], None, match[2], match[4] or HINTS[0], (), match[3] is not None)


def _parse_copied(match: re.Match[str]) -> ValuePlacement:
    """Return the ValuePlacement of a value that is copied, from a statement such as `x tile at task`.

    `match` is the statement's match of the pattern `_COPIED`. Raise an ArgumentError if the statement has neither a
    point (when the value is copied) nor a route (which copies move it).
    """
    name, form, at, hops, reuse, hint = match.groups()
    if form is None:
        form, at = PACKED, BIND
    if at is None and hops is None:
        raise ArgumentError(f"plan: {match[0]!r} says neither where it is copied nor by what: {_VALUE_NOTATION}")
    route = tuple(_parse_hop(hop, match[0]) for hop in hops.strip().split(", ")) if hops else ()
    return ValuePlacement(name, at, form, hint or HINTS[0], route, reuse is not None)


def _parse_repacked(match: re.Match[str]) -> ValuePlacement:
    """Return the ValuePlacement of a statement `repack x: FORM`: a separate kernel copies operand x to this form.

    `match` is the statement's match of the pattern `_REPACKED`. Raise an ArgumentError if the number of diagonal blocks
    has more than 18 digits.
    """
    if match[2].startswith(DIAGONAL):
        _parse_size(match[2].split()[1], match[0])
    return ValuePlacement(match[1], LAUNCH, match[2], match[4] or HINTS[0], (), match[3] is not None)


_VALUES = (
    (_IN_PLACE, _parse_in_place),
    (_BETWEEN, _parse_between),
    (_REPACKED, _parse_repacked),
    (_COPIED, _parse_copied),
)


def _parse_hop(text: str, statement: str) -> Hop:
    """Return a Hop, one copy on a value's route, from its text, such as `by async.16 to shared 3`.

    Raise an ArgumentError, which quotes `statement`, for an unknown memory or a number of buffers below 1.
    """
    match = _HOP.fullmatch(text)
    assert match is not None
    copy, direction, space, buffers = match.groups()
    if space not in SPACES:
        near = did_you_mean(space, SPACES)
        raise ArgumentError(f"plan: {statement!r}: {space} is no memory: it is one of {', '.join(SPACES)}{near}")
    return Hop(copy, space, _parse_count(buffers, statement), direction == "from")


def _parse_pipeline(match: re.Match[str], statement: str) -> Pipeline:
    """Return the Pipeline (producers, consumers, stages) of a statement `producer ...`.

    `match` is the statement's match of the pattern `_PIPELINE`. Raise an ArgumentError for an unknown part, for a
    repeated number of stages, and if `stages` or `epilogue stages` is missing; errors quote `statement` or the part.
    """
    counts: dict[str, int] = {}
    flags: set[str] = set()
    for part in match[5].removeprefix(", ").split(", "):
        if stages := _STAGES.fullmatch(part):
            _add_once(counts, stages[1], _parse_size(stages[2], statement), statement)
        elif part in ("joint", "store per group", "pingpong"):
            flags.add(part)
        else:
            raise ArgumentError(f"plan: {part!r} is no part of a pipeline: it is written {_PIPELINE_NOTATION}")
    for word in ("stages", "epilogue stages"):
        if word not in counts:
            raise ArgumentError(
                f"plan: {shown(statement, SHOWN)!r} has no `{word}`: it is written {_PIPELINE_NOTATION}"
            )
    waves = [_parse_size(text, statement) for text in match.group(1, 2, 3, 4)]
    return Pipeline(
        (waves[0], waves[1]),
        (waves[2], waves[3]),
        counts["stages"],
        counts["epilogue stages"],
        counts.get("halo stages", 0),
        "pingpong" in flags,
        max(1, counts.get("resident stages", 1)),
        "joint" in flags,
        "store per group" in flags,
    )


def _parse_occupancy(statement: str) -> Occupancy:
    """Return the Occupancy (how workgroups share cores) of a statement such as `occupancy workgroups 2, persistent`.

    Raise an ArgumentError for an unknown or repeated part, or for a count below 1.
    """
    counts: dict[str, int] = {}
    persistent = False
    for part in statement.removeprefix("occupancy ").split(", "):
        match = _OCCUPANCY.fullmatch(part)
        if match is None:
            raise ArgumentError(f"plan: {part!r} is no part of it: it is written {NOTATION['occupancy']}")
        if match[1]:
            _add_once(counts, match[1], _parse_count(match[2], statement), statement)
        persistent |= match[3] is not None
    return Occupancy(**counts, persistent=persistent)


def _add_axis(axes: list[Axis], axis: Axis, statement: str) -> None:
    """Append `axis` to `axes`; raise an ArgumentError, which quotes `statement`, if they have such an axis already.

    The plan of a grid program has two axes of a dimension if a loop is over the workgroup's tile of it: an axis with a
    task, and one without.
    """
    is_task = axis.split("task") is not None
    if any(a.name == axis.name and (a.split("task") is not None) == is_task for a in axes):
        raise _repetition(axis.name, statement)
    axes.append(axis)


def _add_once(known: dict[str, Any], name: str, value: Any, statement: str) -> None:
    """Set `known[name]` to `value`; raise an ArgumentError, which quotes `statement`, if `known` has `name` already."""
    if name in known:
        raise _repetition(name, statement)
    known[name] = value


def _repetition(name: str, statement: str) -> ArgumentError:
    """Return the error for the `statement` of a plan that states `name` a second time."""
    return ArgumentError(f"plan: {name} is said twice; in `{shown(statement, SHOWN)}`")


def _parse_axis(name: str, digits: str, splits: str) -> Axis:
    """Return the Axis named `name`, from the texts of its digits (mixed-radix parts) and of its splits.

    `digits` is, for example, `p 7, q 9 of 8`, and `splits` is `task p 2, loop 32` or `whole`. Raise an ArgumentError
    for an illegal digit or split, and for a split that names no digit of the axis. Raise one too for a box that does
    not have one extent for each digit.
    """
    peel = _PEEL.fullmatch(splits)
    peeled = (_parse_size(peel[2], splits), _parse_size(peel[3], splits)) if peel else (0, 0)
    axis = Axis(name, _parse_digits(digits), _parse_splits(peel[1] if peel else splits), peeled)
    names = [d.name for d in axis.digits]
    for cut in axis.splits:
        if cut.digit is not None and cut.digit not in names:
            near = did_you_mean(cut.digit, names)
            raise ArgumentError(f"plan: `{cut}` splits no digit of {name}: it has {', '.join(names)}{near}")
        if cut.box and (len(cut.box) != len(names) or cut.digit is not None):
            raise ArgumentError(f"plan: `{cut}`: a box has a side for each digit of {name}: {', '.join(names)}")
    return axis


def _parse_digits(text: str) -> tuple[Digit, ...]:
    """Return the Digits (mixed-radix parts) of an axis from their text; raise an ArgumentError for an illegal one.

    In `p 7, q 9 of 8` the digit p has extent 7, and q has extent 8, padded to 9. A digit with `?` at the end is open:
    its extent is known only at the call.
    """
    digits = []
    for part in text.split(", "):
        match = _DIGIT.fullmatch(part)
        if match is None:
            raise ArgumentError(f"plan: {part!r} is no digit: a name and its extent, such as `q 56` or `q 57 of 56`")
        extent = _parse_size(match[3], part)
        walked = _parse_size(match[2], part) if match[2] else extent
        if extent < 1 or walked < extent:
            raise ArgumentError(f"plan: {part!r}: an extent is at least 1, and what is walked at least the extent")
        digits.append(Digit(match[1], extent, walked, match[4] is not None))
    return tuple(digits)


def _parse_splits(text: str) -> tuple[Split, ...]:
    """Return the Splits of an axis from their text, such as `task 64, loop 16`; () for `whole`.

    Raise an ArgumentError for an illegal split, for a size or an unroll count below 1, and for a box with extents that
    do not multiply to the size.
    """
    if text == "whole":
        return ()
    splits = []
    for part in text.split(", "):
        match = _CUT.fullmatch(part)
        if match is None:
            levels = f"{', '.join(LEVELS[:-1])} or {LEVELS[-1]}"
            raise ArgumentError(f"plan: {part!r} is no split: such as `loop 32`, `task p 28`, by {levels}")
        level, digit, digits, sides, unroll = match.groups()
        size = _parse_size(digits, part)
        if size < 1:
            raise ArgumentError(f"plan: {part!r}: pieces have at least one element")
        box = _parse_box(sides or "", part)
        if box and prod(box) != size:
            raise ArgumentError(f"plan: {part!r}: a box {sides} has {prod(box)} elements, not {size}")
        splits.append(Split(level, size, digit, box, _parse_count(unroll or "1", part)))
    return tuple(splits)


def _parse_box(text: str, part: str) -> tuple[int, ...]:
    """Return the extents of a box (rectangle) from their text: (4, 48) for `4x48`; () for empty text.

    Raise an ArgumentError for an extent below 1. `part` is the text around it, which the error quotes.
    """
    return tuple(_parse_count(side, part) for side in text.split("x")) if text else ()


def _parse_count(digits: str, part: str) -> int:
    """Return the number, at least 1, that the text `digits` is.

    Raise an ArgumentError, which quotes `part`, for 0 and for more than 18 digits.
    """
    count = _parse_size(digits, part)
    if count < 1:
        raise ArgumentError(f"plan: {shown(part, SHOWN)!r}: {digits} is no count: it is at least 1")
    return count


def _parse_size(digits: str, part: str) -> int:
    """Return the number, at least 0, that the text `digits` is.

    Raise an ArgumentError, which quotes `part`, for more than 18 digits. `part` is the statement, or the text in it
    that has the digits.
    """
    if len(digits) > 18:
        raise ArgumentError(f"plan: {shown(part, SHOWN)!r}: {ELEMENTS.rule}")
    return int(digits)
