"""Rules of products: atoms that take the operands, and blocks, units and K steps of whole atoms."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import prod

from plan_shapes import OperandShape, ProductShape

from plan_legality.reading import Broken, Reading, oriented, step_of
from tilewright.machine import MemoryOperand, MultiplyAtom, RegisterOperand
from tilewright.plan.text import parse_plan


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
    boxes = [a for a in r.plan.axes if any(c.level == "unit" and c.digit is not None for c in a.splits)]
    if r.on_gpu and boxes and not any(line.atom is None for line in r.plan.products):
        yield Broken("products", str(boxes[0]), "lanes have boxes of a product by loops, and no line says one")
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
        if any(a.name == "lanes" for a in r.plan.axes):
            yield Broken("atom", text, "it takes an element of A for all lanes, and along lanes A has other elements")
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
    if mine.rounds_to not in (None, product.precision):
        return f"it rounds to {mine.rounds_to}, and nobody asks for that"
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
    looped = {d for a in r.plan.axes for d in r.dims[a.name] if step_of(a) < prod(x.extent for x in a.digits)}
    return bool(looped) and not looped & set(operand.dims)


def block(r: Reading) -> Iterator[Broken]:
    """A block is what a task, or the loop within it, has of the product's rows and columns, in whole atoms."""
    for line, product, mine in r.products:
        rows, columns = oriented(line, mine)
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
        extent = prod(d.padded_extent for d in each.digits)
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
            if not tap.name.endswith("_split") and prod(d.extent for d in tap.digits) % step_of(tap):
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
    whole = depth.digits[-1].padded_extent
    for outer, inner in itertools.pairwise(last):
        if outer.size % inner.size or whole % outer.size:
            yield Broken("k step", str(depth), f"steps of {outer.size} are whole atoms that divide {whole}")
