"""Statements that a plan can have and the lowering does not support yet: they are refused by name."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.errors import ArgumentError
from tilewright.plan.schedule import BETWEEN, LONGEST, Occupancy, Schedule


def refuse_unlowered(plan: Schedule) -> None:
    """Raise an ArgumentError if the lowering does not support a statement of a plan; it quotes the first such one.

    >>> from tilewright.plan.text import parse_plan
    >>> refuse_unlowered(parse_plan("axis m = (m 64): task 32, wave 16; grid m"))
    Traceback (most recent call last):
    tilewright.errors.ArgumentError: plan: `axis m = (m 64): task 32, wave 16`: lowering lacks splits by wave; ...
    """
    for line, what in unlowered(plan):
        raise ArgumentError(f"plan: `{line}`: lowering lacks {what}; a plan without it is done")


def unlowered(plan: Schedule) -> Iterator[tuple[str, str]]:
    """Yield (statement as text, feature that it needs) for each statement that the lowering does not support.

    A statement is yielded once for each of its features, but a statement on a value only for the first one. The plan of
    a second kernel is included.
    """
    for axis in plan.axes:
        for cut in axis.splits:
            if cut.level in ("cluster", "wave"):
                yield str(axis), f"splits by {cut.level}"
            if cut.box:
                yield str(axis), "boxes of several digits by `as`"
            if cut.unroll > 1:
                yield str(axis), "loops that a plan unrolls"
        if any(axis.peeled):
            yield str(axis), "iterations that a plan peels"
    if plan.order == LONGEST:
        yield plan.line("raster"), "an order of tasks by their length"
    for name in (name for name in plan.loops if "." in name):
        yield plan.line("loops"), f"an order of the loops of one axis, `{name}`"
    for value in plan.values:
        if value.route:
            yield str(value), "routes that a plan says: the machine's own is taken"
        elif value.form in BETWEEN:
            yield str(value), "places of values between products that a plan says"
        elif value.reuse:
            yield str(value), "results in the memory of the stages"
    if plan.lanes is not None:
        yield str(plan.lanes), "tiles of lanes that a plan says but as `unit`"
    if plan.occupancy != Occupancy():
        yield str(plan.occupancy), "an occupancy that a plan says"
    if plan.then is not None:
        yield from unlowered(plan.then)
