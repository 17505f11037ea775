"""Rules of meaning: every axis is covered once, in levels that nest, and tasks share no result."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import ceil, prod

from plan_legality.reading import Broken, Reading, step_of
from tilewright.plan.schedule import Axis
from tilewright.plan.text import parse_plan

ORDER = ("task", "loop", "unit")


def sizes(r: Reading) -> Iterator[Broken]:
    """A digit has the extent that it has in the program; it is walked to the end of whole blocks and no further."""
    for axis in r.plan.axes:
        for digit in axis.digits:
            known = r.shapes.digits.get(digit.name)
            if known is None and r.plan.parts is not None and digit.name.endswith(("_split", "_part")):
                continue
            if known is None:
                yield Broken("sizes", str(axis), f"the program has no {digit.name}")
            elif digit.extent != known[0] and not digit.name.endswith(("_split", "_part")):
                dim = r.shapes.dims_of(digit.name)
                if [digit.extent] != [r.shapes.sizes[d] for d in dim] or r.copied:
                    yield Broken("sizes", str(axis), f"{digit.name} has {known[0]} elements, not {digit.extent}")
            elif digit.open:
                yield Broken("sizes", str(axis), f"{digit.name} is known")
            if (
                known is not None
                and digit.padded_extent != digit.extent
                and digit.padded_extent != _walk(r, axis, digit.name)
            ):
                yield Broken("sizes", str(axis), f"{digit.name} is walked to the end of whole blocks")


def _walk(r: Reading, axis: Axis, digit: str) -> int:
    """How far a digit is walked: to the end of its last block; lines that lie one behind the other, past their end."""
    of = next(d for d in axis.digits if d.name == digit)
    extent, printed = of.extent, r.shapes.digits[digit][1]
    if axis.name == "rows" and not any(p.form == "strip" for p in r.plan.values):
        return extent
    cuts = [c for c in axis.splits if c.digit in (None, digit)]
    if len(axis.digits) > 1 and not any(c.digit == digit for c in axis.splits):
        return printed
    inner = [c for c in cuts if c.level == "unit"] if r.on_gpu else [c for c in cuts if c.level != "task"][:1]
    return -(-extent // inner[0].size) * inner[0].size if inner else printed


def axis(r: Reading) -> Iterator[Broken]:
    """Every dimension of the program is in one axis, and no axis has another: it is covered once."""
    seen: dict[str, str] = {}
    for each in r.plan.axes:
        for digit in each.digits:
            if digit.name in seen:
                yield Broken("axis", str(each), f"{digit.name} is in {seen[digit.name]} as well")
            seen[digit.name] = each.name
    wanted = parse_plan(r.shapes.printed)
    parts = [p for p in (wanted, wanted.then) if p is not None]
    every = [{d.name for a in part.axes for d in a.digits} for part in parts]
    covered = {d for digits in r.dims.values() for d in digits}
    needed = {d for product in r.shapes.products for d in (*product.rows, *product.columns, *product.summed)}
    needed = needed if r.shapes.products and r.plan.split_after is not None else set(r.shapes.sizes)
    missing = sorted(needed - covered)
    if missing and not any(set(seen) == names for names in every):
        yield Broken("axis", str(r.plan.axes[-1]), f"no axis has {', '.join(missing)}")
    elif r.has_printed_digits and not any(set(seen) >= names for names in every):
        lost = min((names - set(seen) for names in every), key=len)
        yield Broken("axis", str(r.plan.axes[-1]), f"no axis has {', '.join(sorted(lost))}")


def levels(r: Reading) -> Iterator[Broken]:
    """Splits stand outermost first: tasks, loops, units; each is a part of the one before it."""
    for each in r.plan.axes:
        roles = [ORDER.index(c.level) for c in each.splits]
        mixed = len({c.digit is None for c in each.splits if c.level == "task"}) > 1
        if mixed or (
            any(a == b == 0 for a, b in itertools.pairwise(roles))
            and any(c.digit is None for c in each.splits if c.level == "task")
        ):
            yield Broken("levels", str(each), "tasks split it twice")
        by_digit: dict[str | None, list[tuple[int, int]]] = {}
        for cut in each.splits:
            by_digit.setdefault(cut.digit, []).append((ORDER.index(cut.level), cut.size))
        for cuts in by_digit.values():
            if [level for level, _ in cuts] != sorted(level for level, _ in cuts):
                yield Broken("levels", str(each), "splits stand outermost first: task, loop, unit")
            extent = prod(d.extent for d in each.digits)
            if any(outer < min(inner, extent) for (_, outer), (_, inner) in itertools.pairwise(cuts)):
                yield Broken("levels", str(each), "a split is a part of the one before it")
        flat = [c for c in each.splits if c.digit is None]
        if (
            each.splits
            and flat
            and any(c.digit is not None and c.level == "task" for c in each.splits[each.splits.index(flat[0]) + 1 :])
        ):
            yield Broken("levels", str(each), "tasks stand before loops")


def tasks(r: Reading) -> Iterator[Broken]:
    """Tasks go over the axes that they split, each once; they split no dimension along which results are shared."""
    split = [a.name for a in r.plan.axes if any(c.level == "task" for c in a.splits)]
    line = r.plan.line("grid") or "grid"
    if sorted(split) != sorted(r.plan.grid):
        yield Broken("tasks", line, f"tasks split {', '.join(split) or 'nothing'}")
    for each in r.plan.axes:
        dims = set(r.dims[each.name])
        part = any(d.name.endswith("_split") for d in each.digits)
        if any(c.level == "task" for c in each.splits) and dims & r.shapes.reduced and not part:
            yield Broken("tasks", str(each), "tasks would share a result")


def stated(r: Reading) -> Iterator[Broken]:
    """Tiles of loops that carry more than sums are the author's."""
    for each in r.plan.axes:
        for dim in r.dims[each.name]:
            step = r.shapes.stated_loops.get(dim)
            extent = prod(d.extent for d in each.digits)
            if step is not None and step_of(each) != min(step, extent) and r.plan.split_after is None:
                yield Broken("stated", str(each), f"the program's loop over {dim} has tiles of {step}")


def loops(r: Reading) -> Iterator[Broken]:
    """A loop's pieces are no longer than its axis, padded to whole blocks; a loop goes over what a product sums, over a
    loop of the program, or over blocks of sums. What else is reduced along an axis (a softmax of scores) needs all of
    it: no loop goes over blocks of these sums."""
    over = {
        d for product in r.shapes.products for d in (*product.rows, *product.columns, *product.kept, *product.summed)
    }
    for each in r.plan.axes:
        walked = prod(max(d.padded_extent, d.extent) for d in each.digits)
        unit = _padded_to(r, each)
        for cut in each.splits:
            of = next((d.padded_extent for d in each.digits if d.name == cut.digit), walked)
            is_part = cut.size < of  # a loop of all is no loop
            if cut.level == "loop" and is_part and not set(r.dims[each.name]) & (over | r.shapes.stated_loops.keys()):
                yield Broken("loops", str(each), "no product and no loop of the program goes over it")
            if cut.level == "loop" and is_part and set(r.dims[each.name]) & r.shapes.reduced_apart:
                yield Broken("loops", str(each), "it is reduced along, which needs all of it")
            if cut.size > -(-of // unit) * unit and cut.level != "task":  # a task that is longer has all of it
                yield Broken("loops", str(each), f"it has {of} elements")


def _padded_to(r: Reading, axis: Axis) -> int:
    """To what multiple an axis is padded: whole rows of shared memory along K, whole blocks along rows and columns."""
    units = [1]
    for line, product, mine in r.products:
        if set(r.dims[axis.name]) & set(product.summed):
            units.append(mine.slab or mine.shape[2])
        if r.main(product.rows) in r.dims[axis.name]:
            units.append(line.rows)
        if r.main(product.columns) in r.dims[axis.name]:
            units.append(line.columns)
    if r.plan.atom is not None:
        units += [c.size for c in axis.splits if c.level != "task"]
    return max(units)


def order(r: Reading) -> Iterator[Broken]:
    """`order` names every axis that loops go over; K is innermost where sums stay in registers, halo tiles outside."""
    plan, line = r.plan, r.plan.line("loops") or "loops"
    printed = parse_plan(r.shapes.printed)
    if plan.atom is not None:
        names = sorted(a.name for a in plan.axes if any(c.level == "loop" for c in a.splits) or a.name == "depth")
        if sorted(plan.loops) != names or plan.loops[-1] != "depth":
            yield Broken("order", line, f"{', '.join(names)}, the depth last")
        elif "lanes" in names and plan.loops != printed.loops:
            yield Broken("order", line, "lanes lie within rows")
    elif any(p.form == "halo" for p in plan.values):
        halo = next(p for p in plan.values if p.form == "halo")
        panel = next((p for p in plan.values if p.form == "panel"), None)
        if sorted(plan.loops) != sorted(printed.loops) or plan.loops[:1] != (halo.at,):
            yield Broken("order", line, f"the halo tile is loaded at {halo.at}, outside the other loops")
        elif panel is not None and panel.at in plan.loops:
            inside = plan.loops[plan.loops.index(panel.at) + 1 :]
            whole = [n for n in plan.loops[1:] if step_of(plan.axis(n)) > 1]
            if any(n not in inside for n in whole):
                yield Broken("order", line, f"{panel.name} is loaded at {panel.at}, outside {', '.join(whole)}")
    elif plan.loops:
        yield Broken("order", line, "no loops here have an order")


def parts(r: Reading) -> Iterator[Broken]:
    """Parts of K are whole steps, equally long, and cover K; `split` says as many as their axis has."""
    if r.plan.parts is None:
        if any(d.name.endswith(("_split", "_part")) for a in r.plan.axes for d in a.digits):
            yield Broken("parts", str(r.plan.axes[0]), "no line says that the sum is split")
        return
    name, count = r.plan.parts
    line = f"parts {name} {count}"
    if r.split not in r.shapes.reduced:
        yield Broken("parts", line, f"{name} is not summed")
        return
    digits = {d.name: d for a in r.plan.axes for d in a.digits}
    outer, inner = digits.get(f"{name}_split"), digits.get(f"{name}_part")
    extent = r.shapes.sizes[r.split]
    if outer is None or inner is None or outer.extent != count or count < 2:
        yield Broken("parts", line, f"its axes are {name}_split {count} and {name}_part")
        return
    step = r.products[0][2].slab or 1 if r.products else 1
    short = extent // count if not r.shapes.products else -(-extent // count // step) * step
    exact = inner.extent in (short, ceil(ceil(extent / count) / step) * step)
    if not exact or (r.shapes.products and (inner.extent % step or (count - 1) * inner.extent >= extent)):
        yield Broken("parts", line, f"parts are whole steps of {step} that cover {extent}")
    for a in r.plan.axes:
        if a.digits[0] is outer and r.shapes.products and [(c.level, c.size) for c in a.splits] != [("task", 1)]:
            yield Broken("parts", str(a), "each part is a task of its own")
