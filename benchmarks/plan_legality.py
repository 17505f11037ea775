"""Whether a plan can be done at all: a checker that knows the text of plans, shapes and machine rows, not the planner.

`broken(text, shapes, machine)` gives the first rule that a plan breaks, with the line, or None: the plan is legal. The
rules are those of the resources (registers, shared memory, waves), of divisibility (units of an atom, rows of shared
memory, parts of K) and of meaning (an axis is covered once, tasks share no result). `RULES` names them all; the
docstring of each rule says what it is. Of the package only `parse_plan` with the types of plans, and the rows of
machines, are used: a planner that refuses a legal plan, or does an illegal one, is found out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil, gcd, prod

from plan_shapes import SUM_BYTES, OperandShape, ProductShape, Shapes

from tilewright.errors import ArgumentError
from tilewright.machine import Machine, MemoryOperand, MultiplyAtom, OpaqueOperand, RegisterOperand
from tilewright.plan.schedule import Axis, ProductUnit, Schedule, ValuePlacement
from tilewright.plan.text import parse_plan

ROW = 128
"""Bytes of a row of shared memory, by which bulk copies and atoms swizzle: `slab` elements of an atom's operand."""
BULK_ALIGNMENT = 16
"""Bytes of which the pitch of a tensor that bulk copies read is a multiple."""
LONGEST_COPY = 256
"""Elements along a dimension that one bulk copy brings."""
REGISTER_UNIT, FEWEST_REGISTERS = 8, 24
"""Registers of a role's lane are given in such units, and at least so many (PTX ISA, setmaxnreg)."""
RESULT_ROWS = (128, 64, 32)
"""Bytes of a row of a result's stage, the longest that divides its columns: by such rows bulk copies swizzle."""
CORE_ROWS = 8
"""Rows that an atom reads from shared memory one after the other; such runs lie equally far apart."""
ORDER = ("task", "loop", "unit")


@dataclass(frozen=True)
class Broken:
    """A rule that a plan breaks, the line that breaks it, and how."""

    rule: str
    line: str
    why: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.why}; in `{self.line}`"


def broken(text: str, shapes: Shapes, machine: Machine) -> Broken | None:
    """The first rule that a plan breaks; None: it is legal."""
    try:
        plan = parse_plan(text)
    except ArgumentError as fault:
        return Broken("statement", text, str(fault))
    if plan.split_after is None:
        return _of_kernel(Reading(plan, shapes, machine))
    if plan.split_after != shapes.products[0].name or plan.parts is not None:
        return Broken("two kernels", plan.line("split"), f"the program is split after {shapes.products[0].name}")
    found = _of_kernel(Reading(plan, shapes.first, machine))
    if found is None and plan.then is not None:
        found = _of_kernel(Reading(plan.then, shapes.second, machine))
    return found


def _of_kernel(reading: Reading) -> Broken | None:
    return next((fault for rule in RULES.values() for fault in rule(reading)), None)


@dataclass(frozen=True)
class Reading:
    """A plan of one kernel beside the shapes of its program and the machine's row."""

    plan: Schedule
    shapes: Shapes
    machine: Machine

    # -- axes ---------------------------------------------------------------------------------------------

    @cached_property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """The dimensions of each axis."""
        return {
            axis.name: tuple(dict.fromkeys(d for digit in axis.digits for d in self.shapes.dims_of(digit.name)))
            for axis in self.plan.axes
        }

    def axes_of(self, dim: str) -> list[Axis]:
        """The axes that have a dimension, or digits of it."""
        return [axis for axis in self.plan.axes if dim in self.dims[axis.name]]

    @cached_property
    def on_gpu(self) -> bool:
        """Whether lanes of waves share an operand."""
        return self.machine.lanes is not None

    @cached_property
    def copied(self) -> dict[str, str]:
        """Operands that a kernel of their own copies first, and to what form."""
        return {p.name: p.form for p in self.plan.values if p.at == "launch"}

    @cached_property
    def split(self) -> str | None:
        """The dimension that is summed in parts."""
        if self.plan.parts is None:
            return None
        return next(iter(self.shapes.dims_of(self.plan.parts[0])), self.plan.parts[0])

    # -- products -----------------------------------------------------------------------------------------

    @cached_property
    def products(self) -> list[tuple[ProductUnit, ProductShape, MultiplyAtom]]:
        """The products that atoms do: the line, the shape, the atom."""
        known = {p.name: p for p in self.shapes.products}
        return [
            (line, known[line.name], self.machine.multiply[line.atom])
            for line in self.plan.products
            if line.name in known and line.atom in self.machine.multiply
        ]

    @cached_property
    def result_bytes(self) -> int:
        """Bytes of an element of what the kernel writes: parts of a sum are written as they are."""
        return self.shapes.result_bytes if self.plan.parts is None else SUM_BYTES

    def main(self, dims: tuple[str, ...]) -> str:
        """The dimension of a side of a product that blocks cut: the last one that is wider than 1."""
        return ([d for d in dims if self.shapes.sizes[d] > 1] or list(dims))[-1]

    def tile(self, dim: str) -> int | None:
        """What a block may have of a dimension: what its innermost level has; None: all of it, in one axis."""
        sizes = []
        for axis in self.axes_of(dim):
            boxes = [c.size for c in axis.splits if c.digit is not None and c.level == "task"]
            flat = [c.size for c in axis.splits if c.digit is None and c.level in ("task", "loop")]
            if boxes:
                sizes.append(prod(boxes))
            elif flat:
                sizes.append(flat[-1])
        return prod(sizes) if sizes else None

    def k_step(self, dims: tuple[str, ...], unit: int) -> tuple[int, int]:
        """(elements of the contiguous K, positions of the other summed digits) that one step has."""
        axes = [axis for axis in self.k_axes(dims) if not axis.name.endswith("_split")]
        inner, others = (axes[-1], axes[:-1]) if axes else (None, [])
        step = 1 if inner is None else _looped(inner)
        return -(-step // unit) * unit, prod(map(_looped, others))

    def k_axes(self, dims: tuple[str, ...]) -> list[Axis]:
        """The axes of what is summed, the contiguous one last: that of the last dimension, of its last digit."""
        return [axis for d in dims for axis in sorted(self.axes_of(d), key=lambda a: a.name, reverse=True)]

    @cached_property
    def groups(self) -> int:
        """Groups of waves, as many as an atom takes, that multiply a block together."""
        roles, lanes = self.plan.pipeline, self.machine.lanes
        assert roles is not None
        assert lanes is not None
        each = self.products[0][2].c.lanes // lanes
        return roles.consumer[0] // each // (2 if roles.pingpong else 1)


def _looped(axis: Axis) -> int:
    """Elements of an axis that one step of its innermost loop has; all of it, where it has none."""
    loops = [c.size for c in axis.splits if c.level == "loop"]
    return loops[-1] if loops else prod(d.extent for d in axis.digits)


def _oriented(line: ProductUnit, atom: MultiplyAtom) -> tuple[int, int]:
    """The rows and columns of C that an atom has."""
    m, n, _ = atom.shape
    return (n, m) if line.transposed else (m, n)


def _atoms(line: ProductUnit, atom: MultiplyAtom) -> tuple[int, int]:
    """Atoms of a block along the atom's rows and along its columns."""
    rows, columns = (line.columns, line.rows) if line.transposed else (line.rows, line.columns)
    return rows // atom.shape[0], columns // atom.shape[1]


# -- what a plan means ----------------------------------------------------------------------------------------


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
            if known is not None and digit.walked != digit.extent and digit.walked != _walk(r, axis, digit.name):
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
    elif not r.copied and not any(set(seen) >= names for names in every) and r.plan.parts is None:
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
            if step is not None and _looped(each) != min(step, extent) and r.plan.split_after is None:
                yield Broken("stated", str(each), f"the program's loop over {dim} has tiles of {step}")


def loops(r: Reading) -> Iterator[Broken]:
    """A loop's pieces are no longer than its axis, padded to whole blocks; a loop goes over what a product sums, over a
    loop of the program, or over blocks of sums. What else is reduced along an axis (a softmax of scores) needs all of
    it: no loop goes over blocks of these sums."""
    over = {
        d for product in r.shapes.products for d in (*product.rows, *product.columns, *product.kept, *product.summed)
    }
    for each in r.plan.axes:
        walked = prod(max(d.walked, d.extent) for d in each.digits)
        unit = _padded_to(r, each)
        for cut in each.splits:
            of = next((d.walked for d in each.digits if d.name == cut.digit), walked)
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
            whole = [n for n in plan.loops[1:] if _looped(plan.axis(n)) > 1]
            if any(n not in inside for n in whole):
                yield Broken("order", line, f"{panel.name} is loaded at {panel.at}, outside {', '.join(whole)}")
    elif plan.loops:
        yield Broken("order", line, "no loops here have an order")


# -- blocks and atoms -----------------------------------------------------------------------------------------


def products(r: Reading) -> Iterator[Broken]:
    """Lines name the program's products, each once; with roles all of them are done by atoms."""
    names = [p.name for p in r.shapes.products]
    for line in r.plan.products:
        if line.name not in names:
            yield Broken("products", str(line), f"there is {', '.join(names) or 'no product'}")
        elif line.atom is None and r.plan.pipeline is not None:
            yield Broken("products", str(line), "roles multiply by atoms")
    if r.plan.pipeline is not None and len(r.plan.products) < len(names):
        yield Broken("products", str(r.plan.pipeline), "a line for each product says how it is done")
    printed = parse_plan(r.shapes.printed)
    if r.plan.atom is None and printed.atom is not None and r.plan.products == ():
        yield Broken("products", str(r.plan.axes[0]), "no line says which atom multiplies")
    if r.plan.atom is not None and printed.atom is None:
        yield Broken("products", f"atom {r.plan.atom}", "a line for each product says how it is done")


def atom(r: Reading) -> Iterator[Broken]:
    """The machine has the atom; it takes the operands' types, or wider ones, and their layout."""
    named = [(str(p), p.atom, p.name) for p in r.plan.products if p.atom is not None]
    if r.plan.atom is not None:
        named.append((f"atom {r.plan.atom}", r.plan.atom, r.shapes.products[0].name))
    shapes = {p.name: p for p in r.shapes.products}
    for text, name, product in named:
        if name.startswith("lanes."):
            if name != f"lanes.{shapes[product].types[2]}" or not shapes[product].kept:
                yield Broken("atom", text, "both operands keep the dimension along lanes, and the sum has that type")
            continue
        if name not in r.machine.multiply:
            yield Broken("atom", text, f"{r.machine.name} has no {name}")
            continue
        why = _unfit(r, r.machine.multiply[name], shapes[product], text)
        if why is not None:
            yield Broken("atom", text, why)


def _unfit(r: Reading, mine: MultiplyAtom, product: ProductShape, text: str) -> str | None:
    """Why an atom does not take the operands of a product."""
    turned = text.endswith(" transposed")
    a, b = (product.b, product.a) if turned else (product.a, product.b)
    types = (product.types[1], product.types[0]) if turned else product.types[:2]
    takes = str(mine.a.dtype), str(mine.b.dtype)
    wide = (product.types[2], product.types[2])
    own = [x for x in r.machine.multiply.values() if (str(x.a.dtype), str(x.b.dtype)) == types]
    if not product.has_rows:
        return "an operand has no dimension of its own"
    if str(mine.c.dtype) != product.types[2] or (
        takes != types and (r.plan.pipeline is not None or own or takes != wide)
    ):
        return (
            f"it multiplies {' by '.join(takes)} in {mine.c.dtype}, here are {' by '.join(types)} in {product.types[2]}"
        )
    if mine.rounds not in (None, product.precision):
        return f"it rounds to {mine.rounds}, and nobody asks for that"
    if r.plan.pipeline is None and mine.slab is not None and isinstance(mine.a, RegisterOperand):
        return "without roles A is read from shared memory"
    for operand, form, place in ((a, mine.forms[0], mine.a), (b, mine.forms[1], mine.b)):
        if form is None or not isinstance(place, MemoryOperand):
            continue
        along = bool(operand.contiguous & set(product.summed))
        if operand.argument is not None and r.plan.pipeline is not None and form[0] != along:
            return "the operand's contiguous dimension is another"
        if operand.argument is None and r.plan.pipeline is not None:
            return "an operand that is computed is in registers"
    in_registers = isinstance(mine.a, RegisterOperand) and isinstance(mine.b, MemoryOperand)
    if in_registers and r.plan.pipeline is not None and a.argument is not None and not _kept(r, a):
        return "A is in shared memory: it changes with every step"
    return None


def _kept(r: Reading, operand: OperandShape) -> bool:
    """Whether an operand stays the same in all steps of the loops of a task, of which there are some."""
    looped = {d for a in r.plan.axes for d in r.dims[a.name] if _looped(a) < prod(x.extent for x in a.digits)}
    return bool(looped) and not looped & set(operand.dims)


def block(r: Reading) -> Iterator[Broken]:
    """A block is what a task, or the loop within it, has of the product's rows and columns, in whole atoms."""
    for line, product, mine in r.products:
        rows, columns = _oriented(line, mine)
        if line.rows % rows or line.columns % columns:
            yield Broken("block", str(line), f"it has whole atoms of {rows}x{columns}")
        if line.transposed and r.plan.pipeline is None:
            yield Broken("block", str(line), "without roles rows of the atom are rows of C")
        for dim, size in ((r.main(product.rows), line.rows), (r.main(product.columns), line.columns)):
            tile, extent = r.tile(dim), r.shapes.sizes[dim]
            axes = r.axes_of(dim)
            where = str(axes[-1]) if axes else str(line)
            loops = [c for a in axes for c in a.splits if c.level == "loop"]
            if r.plan.pipeline is not None and tile is not None and tile != size:
                yield Broken("block", where, f"the block has {size} of {dim}")
            if r.plan.pipeline is not None and tile is None and size < extent:
                yield Broken("block", str(line), f"a task has all {extent} of {dim}")
            if r.plan.pipeline is None and loops and r.on_gpu and dim not in r.shapes.reduced and tile != size:
                yield Broken("block", where, f"the block has {size} of {dim}")
        if r.plan.pipeline is not None:
            for dim in (*product.rows, *product.columns, *product.kept):
                if dim in (r.main(product.rows), r.main(product.columns)):
                    continue
                if any(c.size != 1 for a in r.axes_of(dim) for c in a.splits if c.level == "task"):
                    yield Broken("block", str(r.axes_of(dim)[0]), "a task has one of a batch")


def divisible(r: Reading) -> Iterator[Broken]:
    """A block is whole units, and a unit what the atom takes; parts of a digit lie in a line. A task is whole blocks
    where roles or a contraction's one atom multiply them; elsewhere its last block is shorter."""
    for each in r.plan.axes:
        flat = [c for c in each.splits if c.digit is None]
        extent = prod(d.walked for d in each.digits)
        for outer, inner in itertools.pairwise(flat):
            shorter = outer.level == "task" and r.plan.pipeline is None and r.plan.atom is None
            if outer.size % inner.size and outer.size != extent and not shorter:
                yield Broken("divisible", str(each), f"`{outer}` is no whole number of `{inner}`")
        units = prod(c.size for c in each.splits if c.level == "unit" and c.digit is not None)
        long = [
            d for d in each.digits for c in each.splits if (c.level, c.digit) == ("unit", d.name) and c.size > d.extent
        ]
        if r.on_gpu and long:
            yield Broken("divisible", str(each), f"a lane's box is a part of {long[0].name}")
        if r.on_gpu and flat and units > 1 and flat[0].size % units:
            yield Broken("divisible", str(each), f"`{flat[0]}` is no whole number of boxes of {units}")
    if r.plan.atom is not None and r.plan.atom in r.machine.multiply:
        yield from _units(r, r.machine.multiply[r.plan.atom].shape)
    elif r.plan.atom is not None:
        vector = (r.machine.limits.vector_bytes or 16) // 4
        yield from _units(r, (1, vector, 1))


def _units(r: Reading, shape: tuple[int, int, int]) -> Iterator[Broken]:
    """The last level of rows, columns and depth of a plan with one atom is what the atom takes."""
    across = "lanes" if any(a.name == "lanes" for a in r.plan.axes) else "columns"
    for name, unit in (("rows", shape[0]), (across, shape[1]), ("depth", shape[2])):
        each = next((a for a in r.plan.axes if a.name == name), None)
        if each is None:
            continue
        last = each.splits[-1] if each.splits else None
        if last is None or last.level != "unit" or last.size != unit:
            yield Broken("divisible", str(each), f"the last level is the atom's {unit}")
        if name != "depth" and not any(c.level == "loop" and c.digit is None for c in each.splits):
            yield Broken("divisible", str(each), "a loop goes over blocks of sums")
    columns = next((a for a in r.plan.axes if a.name == "columns"), None)
    if across == "lanes" and columns is not None and [(c.level, c.size) for c in columns.splits] != [("loop", 1)]:
        yield Broken("divisible", str(columns), "lanes compute one column after the other")


def k_step(r: Reading) -> Iterator[Broken]:
    """A step of K is whole rows of shared memory where the atom reads it from there, and whole atoms elsewhere."""
    for line, product, mine in r.products:
        if not product.summed or not r.axes_of(product.summed[-1]):
            continue
        each = r.k_axes(product.summed)[-1]
        loop = next((c for c in reversed(each.splits) if c.level == "loop"), None)
        unit = mine.slab if mine.slab is not None and r.plan.pipeline is not None else mine.shape[2]
        if loop is not None and r.plan.pipeline is not None and loop.size % (unit or 1):
            yield Broken("k step", str(each), f"`{line}` takes steps of {unit}")
        for tap in r.k_axes(product.summed)[:-1] if r.plan.pipeline is not None else ():
            if not tap.name.endswith("_split") and prod(d.extent for d in tap.digits) % _looped(tap):
                yield Broken("k step", str(tap), "a stage has as many taps as divide them")
    if r.plan.atom is not None:
        yield from _steps_of_depth(r)


def _steps_of_depth(r: Reading) -> Iterator[Broken]:
    """Every digit of the depth but the last is split by 1; the steps of the last are whole atoms that divide it."""
    depth = next((a for a in r.plan.axes if a.name == "depth"), None)
    if depth is None:
        return
    for digit in depth.digits[:-1]:
        if [c.size for c in depth.splits if c.digit == digit.name] != [1]:
            yield Broken("k step", str(depth), f"{digit.name} is split once, by 1")
    last = [c for c in depth.splits if c.digit in (None, depth.digits[-1].name)]
    whole = depth.digits[-1].walked
    for outer, inner in itertools.pairwise(last):
        if outer.size % inner.size or whole % outer.size:
            yield Broken("k step", str(depth), f"steps of {outer.size} are whole atoms that divide {whole}")


# -- resources ------------------------------------------------------------------------------------------------


def waves(r: Reading) -> Iterator[Broken]:
    """Waves are whole groups of an atom, which share a block evenly, and no more than a workgroup has."""
    roles, lanes = r.plan.pipeline, r.machine.lanes
    if lanes is None:
        if r.plan.waves != 1 or roles is not None:
            yield Broken("waves", str(roles or f"waves {r.plan.waves}"), "a CPU's workers have one wave")
        return
    if roles is None:
        if not 1 <= r.plan.waves <= r.machine.waves:
            yield Broken("waves", f"waves {r.plan.waves}", f"a workgroup has 1 to {r.machine.waves}")
        if r.plan.waves > 1 and r.products:
            yield Broken("waves", f"waves {r.plan.waves}", "as many as the atoms of a block take do a task")
        return
    for line, _, mine in r.products:
        each, turns = mine.c.lanes // lanes, 2 if roles.pingpong else 1
        down, across = _atoms(line, mine)
        if roles.consumer[0] % (each * turns) or roles.consumer[0] < each * turns:
            yield Broken("waves", str(roles), f"{mine.name} takes {each} waves{', twice' if turns > 1 else ''}")
        elif down * across % r.groups or (down % r.groups and across > 1 and r.groups % across):
            yield Broken("waves", str(roles), f"{r.groups} groups do not share the {down}x{across} atoms of `{line}`")
        elif not mine.asynchronous and r.groups == 1:
            yield Broken("waves", str(roles), "lanes that multiply by themselves need a second group beside them")
        gathering = each if _is_gathered(r) else 1
        if roles.producer[0] != gathering:
            yield Broken("waves", str(roles), f"{gathering} wave{'s' if gathering > 1 else ''} start copies")
    if roles.producer[0] + roles.consumer[0] > r.machine.waves:
        yield Broken("waves", str(roles), f"a workgroup has {r.machine.waves}")
    if not any(a.asynchronous for a in r.machine.copies.values()):
        yield Broken("waves", str(roles), f"no copy of {r.machine.name} is asynchronous")


def _is_gathered(r: Reading) -> bool:
    """Whether waves copy operands themselves, as the printed plan says: bulk copies cannot read them."""
    printed = parse_plan(r.shapes.printed)
    return printed.pipeline is not None and printed.pipeline.producer[0] > 1


def registers(r: Reading) -> Iterator[Broken]:
    """A lane of a role has a multiple of 8 registers, at least 24, no more than the row says, and holds its sums."""
    roles = r.plan.pipeline
    if roles is None:
        yield from _fragments(r)
        return
    for _, count in (roles.producer, roles.consumer):
        if count % REGISTER_UNIT or count < FEWEST_REGISTERS or count > r.machine.limits.registers:
            yield Broken("registers", str(roles), f"multiples of {REGISTER_UNIT} from {FEWEST_REGISTERS} on")
    needed = _alive(r)
    if needed >= roles.consumer[1]:
        yield Broken("registers", str(roles), f"a lane holds {needed} of sums and operands")


def _alive(r: Reading) -> int:
    """Registers of a lane for what is alive at once: all accumulators of a loop, operands that stay in registers."""
    sums, held = [], 0
    for line, product, mine in r.products:
        down, across = _atoms(line, mine)
        sums.append(mine.c.values * down * across // max(1, r.groups))
        operand = product.b if line.transposed else product.a
        if isinstance(mine.a, RegisterOperand) and (operand.argument is not None or _is_held(r, operand, product)):
            deep, _ = r.k_step(product.summed, mine.shape[2])
            held += mine.a.values * -(-deep // mine.shape[2]) * down // max(1, r.groups) * mine.a.dtype.bits // 32
    if any(d in r.shapes.stated_loops for _, product, _ in r.products for d in (*product.summed, *product.columns)):
        return sum(sums) + held
    return max(sums, default=0) + held


def _fragments(r: Reading) -> Iterator[Broken]:
    """Without roles a lane, or a thread, holds a block of sums and the operands of one step."""
    lines = [(str(line), line.rows, line.columns, mine) for line, _, mine in r.products]
    if r.plan.atom is not None and r.plan.atom in r.machine.multiply:
        rows, columns = (_blocks_of(r, name) for name in ("rows", "columns"))
        lines.append((f"atom {r.plan.atom}", rows, columns, r.machine.multiply[r.plan.atom]))
    for text, rows, columns, mine in lines:
        m, n, _ = mine.shape
        down, across = rows // m, columns // n
        if isinstance(mine.c, OpaqueOperand):
            used, most, what = down * across + down + across, r.machine.limits.tile_registers, "tile registers"
        elif mine.slab is not None:
            used, most, what = mine.c.values * down * across, r.machine.limits.registers - 1, "registers"
        elif m > 1:
            parts = [x.values for x in (mine.a, mine.b, mine.c) if isinstance(x, RegisterOperand)]
            used, most, what = (
                down * parts[0] + across * parts[1] + down * across * parts[2],
                r.machine.limits.registers,
                "registers",
            )
        else:
            more = across + 1 if mine.picks == 1 else 2 * across + rows
            used, most, what = rows * across + more, r.machine.limits.registers, "vector registers"
            if mine.picks_from and rows > mine.picks_from // 2:
                yield Broken("vector registers", text, f"{mine.name} picks rows from {mine.picks_from} registers")
        if used > most:
            yield Broken(what, text, f"{down}x{across} atoms of sums and their operands take {used} of {most}")
    if r.plan.atom is not None and r.plan.atom.startswith("lanes."):
        vector = (r.machine.limits.vector_bytes or 16) // 4
        rows, wide = _blocks_of(r, "rows"), _blocks_of(r, "lanes") // vector
        if (rows + 1) * wide + 1 > r.machine.limits.registers:
            yield Broken("vector registers", f"atom {r.plan.atom}", f"{rows} rows of {wide} vectors")


def _blocks_of(r: Reading, name: str) -> int:
    """The block of sums along an axis of a plan with one atom."""
    each = next((a for a in r.plan.axes if a.name == name), None)
    loops = [c.size for c in each.splits if c.level == "loop" and c.digit is None] if each is not None else []
    return loops[-1] if loops else 1


def register_file(r: Reading) -> Iterator[Broken]:
    """All lanes of a workgroup have no more registers together than they begin with, in equal units."""
    roles, lanes, file = r.plan.pipeline, r.machine.lanes, r.machine.spaces["register"].bytes
    if roles is None or lanes is None or file is None or not r.products:
        return
    each = r.products[0][2].c.lanes
    groups = roles.consumer[0] * lanes // each + ceil(roles.producer[0] * lanes / each)
    begins = file // 4 // (groups * each) // REGISTER_UNIT * REGISTER_UNIT
    used = (
        ceil(roles.producer[0] * lanes / each) * roles.producer[1]
        + roles.consumer[0] * lanes // each * roles.consumer[1]
    )
    if used > begins * groups:
        yield Broken(
            "register file", str(roles), f"{used} registers of {begins * groups} that {groups} groups begin with"
        )


def stages(r: Reading) -> Iterator[Broken]:
    """A ring, and what waits to be stored, has a stage at least; halo stages belong to halo tiles, `once` to operands
    that stay for a task."""
    roles = r.plan.pipeline
    if roles is None:
        return
    halo = any(p.form == "halo" for p in r.plan.values)
    if min(roles.stages, roles.epilogue_stages, roles.resident_stages) < 1 or halo != (roles.halo_stages > 0):
        yield Broken("stages", str(roles), "a ring has a stage at least, and halo tiles have a ring")
    if roles.joint and r.plan.overlap != "none":
        yield Broken("stages", str(roles), "what products use one ahead of the other is not loaded together")
    if roles.pingpong and len(r.shapes.products) > 1:
        yield Broken("stages", str(roles), "halves take turns at one product")
    if roles.resident_stages > 1 and not _staged(r)[1]:
        yield Broken("stages", str(roles), "nothing is loaded once a task")


def shared_memory(r: Reading) -> Iterator[Broken]:
    """Stages of operands, halo tiles, operands that stay and results that wait fit the shared memory of a workgroup;
    without roles, what a task reads again fits there, as far as lanes have no registers for it."""
    room = r.machine.spaces["shared"].bytes
    if room is None or not r.products:
        return
    if r.plan.pipeline is None:
        used = _task_bytes(r)
        if used > room:
            yield Broken("shared memory", r.plan.line("grid") or str(r.products[0][0]), f"{used} bytes of {room}")
        return
    used = shared_bytes(r)
    if used > room:
        yield Broken("shared memory", str(r.plan.pipeline), f"{used} bytes of {room}")


def _task_bytes(r: Reading) -> int:
    """Bytes of shared memory that a task of a plan without roles takes at least: rows of both operands of an atom that
    reads them there, and every value that is read again and is more than the registers of all lanes. Each has a place
    of its own: nothing is computed in place, as operations read and write different tensors."""
    lanes = max(mine.c.lanes for _, _, mine in r.products)
    used = sum((line.rows + line.columns) * ROW for line, _, mine in r.products if mine.slab is not None)
    for dims, each in r.shapes.values:
        count = prod(min(r.tile(d) or r.shapes.sizes[d], r.shapes.sizes[d]) for d in dims)
        if count > lanes * r.machine.limits.registers:
            used += count * each
    return used


def shared_bytes(r: Reading) -> int:
    """Bytes of shared memory that a plan with roles takes: each tensor begins at a multiple of the row's alignment."""
    roles, align = r.plan.pipeline, r.machine.spaces["shared"].alignment
    assert roles is not None
    ring, once = _staged(r)
    counted = [(roles.stages, n) for n in ring] + [(roles.resident_stages, n) for n in once]
    for place in r.plan.values:
        if place.form == "halo":
            rows, at = _halo(r), r.products[0][2]
            counted = [(roles.halo_stages, -(-rows * ROW // align) * align * (_k_of(r) // (at.slab or 1)))]
            panel = next((p for p in r.plan.values if p.form == "panel"), None)
            taps = prod(_looped(a) for a in _taps(r))
            if panel is not None and panel.at == "start":
                steps = prod(a.digits[0].extent for a in _taps(r)) * ceil(_extent_of_k(r) / (at.slab or 1))
                counted.append((1, steps * r.products[0][0].columns * ROW))
            else:
                counted.append((roles.stages, taps * r.products[0][0].columns * ROW * (_k_of(r) // (at.slab or 1))))
    counted.append((roles.epilogue_stages * (2 if roles.pingpong else 1), _result_bytes(r)))
    return sum(-(-stages * size // align) * align for stages, size in counted)


def _result_bytes(r: Reading) -> int:
    """Bytes of one stage of results: a row of shared memory of every row of C; of a transposed block, as many rows of C
    as a row of shared memory has elements, with all of their columns."""
    line, _, mine = r.products[-1]
    if not r.shapes.writes_tiles and r.plan.split_after is None:
        return 0
    across = 1 if line.transposed else max(1, r.groups // max(1, _atoms(line, mine)[0]))
    columns = line.columns // across
    row = next((n for n in RESULT_ROWS if columns * r.result_bytes % n == 0), None)
    if row is None:  # lanes write them as they are
        return 0
    if not line.transposed:
        return line.rows * row * across
    most = min(line.rows, row // r.result_bytes)
    rows = next((n for n in range(most // CORE_ROWS * CORE_ROWS, 0, -CORE_ROWS) if line.rows % n == 0), 0)
    return rows * line.columns * r.result_bytes


def _k_of(r: Reading) -> int:
    """The step of K of the first product."""
    _, product, mine = r.products[0]
    return r.k_step(product.summed, mine.slab or 1)[0]


def _extent_of_k(r: Reading) -> int:
    return r.k_axes(r.products[0][1].summed)[-1].digits[-1].extent


def _taps(r: Reading) -> list[Axis]:
    """The axes of K beside the contiguous one."""
    return r.k_axes(r.products[0][1].summed)[:-1]


def _is_held(r: Reading, operand: OperandShape, product: ProductShape) -> bool:
    """Whether an operand is computed in registers once, from memory: it is no other product's, and K is one step."""
    looped = {d for a in r.plan.axes for d in r.dims[a.name] if any(c.level == "loop" for c in a.splits)}
    return operand.argument is None and not operand.from_product and not looped & set(product.summed)


def _staged(r: Reading) -> tuple[list[int], list[int]]:
    """(bytes of a stage of every operand that the ring brings, of those that are loaded once a task)."""
    ring, once = [], []
    looping = {
        d
        for a in r.plan.axes
        for d in r.dims[a.name]
        if any(c.level == "loop" and c.size < prod(x.extent for x in a.digits) for c in a.splits)
    }
    stepped = any(
        d in looping for _, product, _ in r.products for d in product.summed if d not in r.shapes.stated_loops
    )
    for line, product, mine in r.products:
        deep, taps = r.k_step(product.summed, mine.slab or mine.shape[2])
        for operand, count in ((product.a, line.rows), (product.b, line.columns)):
            if operand.from_product or _is_held(r, operand, product):
                continue
            size = int(count * deep * taps * (operand.bytes or mine.a.dtype.bits // 8))
            moves = not looping or bool(looping & set(operand.dims))
            if len(r.shapes.products) == 1 and not r.shapes.stated_loops:
                moves = stepped or moves or True
            elif stepped and looping & r.shapes.stated_loops.keys():  # steps of K within the author's loop
                moves = bool((looping - r.shapes.stated_loops.keys()) & set(operand.dims))
            (ring if moves else once).append(size)
    return ring, once


# -- forms ----------------------------------------------------------------------------------------------------


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
    elif max(_image(r, each, sizes)) > LONGEST_COPY:
        yield Broken("halo", str(each), f"one copy brings {LONGEST_COPY} along a dimension")
    panel = next((p for p in r.plan.values if p.form == "panel"), None)
    order = list(r.plan.loops)
    taps = {n: _looped(r.plan.axis(n)) for n in order[1:]}
    if panel is not None and panel.at == "start":
        others = [*product.columns, *product.kept]
        if any((r.tile(d) or r.shapes.sizes[d]) < r.shapes.sizes[d] for d in others):
            yield Broken("halo", str(panel), "all of it stays only where tasks share its columns")
        if any(n != 1 for n in taps.values()):
            yield Broken("halo", str(r.plan.axis(order[-1])), "taps of what stays are read one by one")
    elif panel is not None and panel.at in taps:
        inside = order[order.index(panel.at) + 1 :]
        for name, step in taps.items():
            extent = r.plan.axis(name).digits[0].extent
            if step != (extent if name in inside else 1):
                yield Broken("halo", str(r.plan.axis(name)), f"{panel.name} is loaded at {panel.at}")


def _image(r: Reading, axis: Axis, box: list[int]) -> list[int]:
    """The halo tile of a box: as many more along each digit as taps reach."""
    reach = [a.digits[0].extent - 1 for a in _taps(r)]
    return [n + (reach[i - len(box)] if len(box) - i <= len(reach) else 0) for i, n in enumerate(box)]


def _halo(r: Reading) -> int:
    """Rows of a halo tile."""
    (each,) = r.axes_of(r.main(r.products[0][1].rows))
    box = [next((c.size for c in each.splits if c.digit == d.name), 1) for d in each.digits]
    return prod(_image(r, each, box))


def copies(r: Reading) -> Iterator[Broken]:
    """Several bulk copies of at most 256 rows bring a tile, in equal parts."""
    if r.plan.pipeline is None:
        return
    for line, _, _ in r.products:
        for count in (line.rows, line.columns):
            if count % ceil(count / LONGEST_COPY):
                yield Broken("copies", str(line), f"{count} are not copied in equal parts of at most {LONGEST_COPY}")


def schedule(r: Reading) -> Iterator[Broken]:
    """Tasks of two axes are grouped where roles walk them, for the cache that cores share; kernels without products are
    walked in reverse. Any worker may take tasks strided, contiguous or one by one."""
    plan = r.plan
    line = plan.line("raster") or plan.line("grid") or "grid"
    if not r.on_gpu and plan.raster != 1:
        yield Broken("schedule", line, "workers of a CPU take tasks in order")
    if plan.raster < 1:
        yield Broken("schedule", line, "a group has one task at least")
    if plan.raster > 1 and (plan.pipeline is None or len(plan.grid) < 2):
        yield Broken("schedule", line, "tasks of two axes are grouped, where roles walk them")
    if plan.order == "dynamic" and plan.pipeline is not None and r.products:
        rows = next((n for n in plan.grid if r.main(r.products[0][1].rows) in r.dims[n]), None)
        around, left = plan.grid[: plan.grid.index(rows)] if rows is not None else (), plan.raster
        for name in reversed(around):
            left //= gcd(left, plan.axis(name).tasks)
        if left > 1 and rows is not None:
            yield Broken("schedule", line, "dynamic tasks are grouped along the axes before rows")
    if plan.order == "reversed" and (plan.pipeline is not None or r.shapes.products):
        yield Broken("schedule", line, "only kernels without products are walked in reverse")


def overlap(r: Reading) -> Iterator[Broken]:
    """`defer` is for sums in tile registers, `ahead` and `turns` for the products of a loop that carries them, `turns`
    for two groups of waves."""
    how, line = r.plan.overlap, f"overlap {r.plan.overlap}"
    if how == "delayed store":
        tiles = r.plan.atom in r.machine.multiply and isinstance(r.machine.multiply[r.plan.atom or ""].c, OpaqueOperand)
        if not tiles:
            yield Broken("overlap", line, "sums that are stored as they are have nothing to defer")
    elif how in ("mma ahead", "ordered"):
        if r.plan.pipeline is None or len(r.products) < 2 or not r.shapes.stated_loops:
            yield Broken("overlap", line, "a loop has several products, the one of which uses the other's")
        elif how == "ordered" and r.groups < 2:
            yield Broken("overlap", line, "two groups of waves take turns")


def launch(r: Reading) -> Iterator[Broken]:
    """A kernel begins while the one before it ends only where the machine has such launches."""
    if r.plan.early and not r.machine.launches:
        yield Broken("launch", "launch early", f"{r.machine.name} has one way to launch")


RULES: dict[str, Callable[[Reading], Iterator[Broken]]] = {
    "sizes": sizes,
    "axis": axis,
    "levels": levels,
    "tasks": tasks,
    "stated": stated,
    "products": products,
    "atom": atom,
    "parts": parts,
    "divisible": divisible,
    "block": block,
    "k step": k_step,
    "loops": loops,
    "order": order,
    "operands": operands,
    "halo": halo,
    "waves": waves,
    "stages": stages,
    "copies": copies,
    "registers": registers,
    "register file": register_file,
    "shared memory": shared_memory,
    "schedule": schedule,
    "overlap": overlap,
    "launch": launch,
}
"""Every rule, in the order in which they are asked; `statement` (the text can be read), `two kernels`, `tile registers`
and `vector registers` are found on the way."""
