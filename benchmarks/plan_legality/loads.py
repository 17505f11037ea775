"""Rules of operands: where each lies, and what copies bring: halo tiles, panels, parts of a tile."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod

from plan_legality.reading import CORE_ROWS, Broken, Reading, step_of, tap_axes
from tilewright.machine import OpaqueOperand
from tilewright.plan.schedule import Axis, Schedule, ValuePlacement
from tilewright.plan.text import parse_plan

BULK_ALIGNMENT = 16
"""Bytes of which the pitch of a tensor that bulk copies read is a multiple."""
LONGEST_COPY = 256
"""Elements along a dimension that one bulk copy brings."""


def operands(r: Reading) -> Iterator[Broken]:
    """Lines of operands name arguments; where an operand lies is a form that its product reads."""
    printed = parse_plan(r.shapes.printed)
    known = {*r.shapes.arguments, *(f"{name}_diagonal" for name in r.copied)}
    for place in r.plan.values:
        if place.name not in known:
            yield Broken("operands", str(place), f"the arguments are {', '.join(sorted(known))}")
    before = {p.name: p for p in printed.values}
    for place in r.plan.values if r.plan.pipeline is None else ():
        if place.form in ("halo", "panel") and place.at != "task":
            yield Broken("operands", str(place), "only a pipeline loads halo tiles")
    for place in r.plan.values:
        yield from _placed(r, place, before.get(place.name), printed)
    lost = [p for name, p in before.items() if name not in {q.name for q in r.plan.values}]
    for place in lost:
        if r.plan.atom is not None or place.form in ("halo", "panel"):
            yield Broken("operands", str(place), "no line says where it lies")
        elif place.at == "launch" and _needs_copy(r, place):
            yield Broken("operands", str(place), "bulk copies cannot read it as it lies")


def _needs_copy(r: Reading, place: ValuePlacement) -> bool:
    """Whether the digits of the printed plan are those of copies: the plan has them still, or bulk copies refuse it."""
    changed = any(
        prod(d.extent for a in r.axes_of(dim) for d in a.digits) != r.shapes.sizes[dim] for dim in r.shapes.sizes
    )
    operand = [o for p in r.shapes.products for o in (p.a, p.b) if o.argument == place.name]
    return changed or any(pitch % BULK_ALIGNMENT for o in operand for pitch in o.pitches)


def _placed(r: Reading, place: ValuePlacement, before: ValuePlacement | None, printed: Schedule) -> Iterator[Broken]:
    """Whether an operand may lie where a line says."""
    if before is None and r.plan.atom is None:
        if place.at == "launch" and r.plan.pipeline is not None and place.form == "aligned rows":
            return
        if place.name in r.shapes.arguments and not (place.at is None and place.hint == "keep"):
            yield Broken("operands", str(place), "its form is not a choice here")
        return
    if before is None:
        return
    tiles = r.plan.atom in r.machine.multiply and isinstance(r.machine.multiply[r.plan.atom or ""].c, OpaqueOperand)
    if place.hint != before.hint and not (tiles and place.hint in ("keep", "stream")):
        yield Broken("operands", str(place), "its loads have no hint")
    if (place.at, place.form) == (before.at, before.form):
        return
    if r.plan.atom is not None:
        sliding = any(p.form == "strip" for p in printed.values)
        if before.at == "bind" or not tiles or place.at not in ("task", None):
            yield Broken("operands", str(place), "vectors read rows in place, columns lie packed")
        elif place.at is None:
            yield Broken("operands", str(place), "rows are not contiguous in whole steps of K")
        elif place.form not in ("strip", "panel") or (place.form == "strip" and not sliding):
            yield Broken("operands", str(place), "rows do not slide over lines")
    elif before.form == "panel":
        allowed = ["start", *(r.plan.loops[1:])]
        if place.form != "panel" or place.at not in allowed:
            yield Broken("operands", str(place), f"it is loaded at {', '.join(allowed)}")
    else:
        yield Broken("operands", str(place), f"it is `{before}`")


def halo(r: Reading) -> Iterator[Broken]:
    """A task's box has as many positions as the block has rows; an atom reads runs of eight rows equally far apart;
    one copy brings the halo tile."""
    if not any(p.form == "halo" for p in r.plan.values) or not r.products:
        return
    _line, product, mine = r.products[0]
    (each,) = r.axes_of(r.main(product.rows))
    box = [next((c.size for c in each.splits if c.digit == d.name and c.level == "task"), None) for d in each.digits]
    if None in box:
        yield Broken("halo", str(each), "every digit of a box is split by tasks")
        return
    sizes = [n for n in box if n is not None]
    unit = mine.shape[0]
    last, lines = sizes[-1], sizes[-2] if len(sizes) > 1 else 1
    equal = last % unit == 0 or (last == CORE_ROWS and lines % (unit // last) == 0)
    if not equal:
        yield Broken("halo", str(each), "runs of eight rows lie equally far apart")
    elif max(halo_tile(r, each, sizes)) > LONGEST_COPY:
        yield Broken("halo", str(each), f"one copy brings {LONGEST_COPY} along a dimension")
    panel = next((p for p in r.plan.values if p.form == "panel"), None)
    order = list(r.plan.loops)
    taps = {n: step_of(r.plan.axis(n)) for n in order[1:]}
    if panel is not None and panel.at == "start":
        others = [*product.columns, *product.kept]
        if any((r.tile(d) or r.shapes.sizes[d]) < r.shapes.sizes[d] for d in others):
            yield Broken("halo", str(panel), "all of it stays only where tasks share its columns")
        if any(n != 1 for n in taps.values()):
            yield Broken("halo", str(r.plan.axis(order[-1])), "taps of what stays are read one by one")
        if r.plan.pipeline is not None and r.plan.pipeline.stages > 1:
            yield Broken("halo", str(r.plan.pipeline), "what stays has no stages")
    elif panel is not None and panel.at in taps:
        inside = order[order.index(panel.at) + 1 :]
        for name, step in taps.items():
            extent = r.plan.axis(name).digits[0].extent
            if step != (extent if name in inside else 1):
                yield Broken("halo", str(r.plan.axis(name)), f"{panel.name} is loaded at {panel.at}")


def halo_tile(r: Reading, axis: Axis, box: list[int]) -> list[int]:
    """The halo tile of a box: as many more along each digit as taps reach."""
    reach = [a.digits[0].extent - 1 for a in tap_axes(r)]
    return [n + (reach[i - len(box)] if len(box) - i <= len(reach) else 0) for i, n in enumerate(box)]


def halo_rows(r: Reading) -> int:
    """Rows of a halo tile."""
    (each,) = r.axes_of(r.main(r.products[0][1].rows))
    box = [next((c.size for c in each.splits if c.digit == d.name), 1) for d in each.digits]
    return prod(halo_tile(r, each, box))


def copies(r: Reading) -> Iterator[Broken]:
    """Several bulk copies of at most 256 rows bring a tile, in equal parts."""
    if r.plan.pipeline is None:
        return
    for line, _, _ in r.products:
        for count in (line.rows, line.columns):
            if count % ceil(count / LONGEST_COPY):
                yield Broken("copies", str(line), f"{count} are not copied in equal parts of at most {LONGEST_COPY}")
