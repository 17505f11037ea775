"""What each of two kernels has of a program that a plan splits: products, and what goes through memory between them."""

from __future__ import annotations

import re
from dataclasses import replace

from plan_shapes import SUM_BYTES, OperandShape, ProductShape, Shapes

from plan_legality.reading import Broken, Reading
from tilewright.machine import Machine
from tilewright.plan.schedule import Schedule

BETWEEN = "between"
"""The memory that the first kernel writes and the second one reads."""


def kernels_of(plan: Schedule, shapes: Shapes, machine: Machine) -> list[Reading] | Broken:
    """The kernels that a plan says, each beside what it has of the program: one, or two in the order of their launches.

    The second is left out where the plan says nothing of it.
    """
    if plan.split_at is None:
        return [Reading(plan, shapes, machine)]
    line = plan.line("split")
    if plan.parts is not None:
        return Broken("two kernels", line, "a sum in parts has a kernel that adds them")
    if plan.split_before is None:
        product = _first_product(shapes)
        if plan.split_after != "mma":
            return Broken("two kernels", line, "the first kernel has one product, mma")
        first, second = _after(shapes, product)
    else:
        halves = _before(shapes, plan.split_before)
        if halves is None:
            return Broken("two kernels", line, f"{plan.split_before} has no operand that reductions make")
        first, second = halves
    then = [] if plan.then is None else [Reading(plan.then, second, machine)]
    return [Reading(plan, first, machine), *then]


def _first_product(shapes: Shapes) -> ProductShape:
    """The product of the first kernel: the first one that another one's operand is computed from, or that there is."""
    taken = [set(x.dims) for p in shapes.products for x in (p.a, p.b) if x.from_product]
    made = (p for p in shapes.products if not (p.a.from_product or p.b.from_product) and _dims(p) in taken)
    return next(made, shapes.products[0])


def _after(shapes: Shapes, product: ProductShape) -> tuple[Shapes, Shapes]:
    """The program up to a product, and the rest of it."""
    rest = [_with_memory(p, shapes, _dims(product)) for p in shapes.products if p is not product]
    types = [p.types[n] for p in shapes.products for n, x in enumerate((p.a, p.b)) if _is_result(x, _dims(product))]
    first = replace(
        shapes,
        products=(replace(product, name="mma"),),
        values=(),
        reduced=frozenset(product.summed),
        result_bytes=min(map(_bytes_of, types), default=SUM_BYTES),
        writes_tiles=True,
    )
    summed = {d for p in rest for d in p.summed}
    reduced = shapes.reduced - set(product.summed) | summed
    return first, replace(shapes, products=_named(rest), values=(), reduced=reduced)


def _before(shapes: Shapes, name: str) -> tuple[Shapes, Shapes] | None:
    """The reductions that make an operand of a product, and the products; None: they make none."""
    known = {p.name: p for p in shapes.products}
    operands = [known[name].a, known[name].b] if name in known else []
    made = next((x for x in operands if x.argument is None and not x.from_product), None)
    summed = {d for p in shapes.products for d in p.summed}
    if made is None:
        return None
    of = known[name].types[operands.index(made)]
    first = replace(
        shapes,
        products=(),
        values=(),
        reduced=shapes.reduced & set(made.dims),
        result_bytes=_bytes_of(of),
        writes_tiles=True,
    )
    memory = _memory(made, shapes, of)
    products = tuple(
        replace(p, a=memory if p.a == made else p.a, b=memory if p.b == made else p.b) for p in shapes.products
    )
    return first, replace(shapes, products=products, reduced=shapes.reduced - shapes.reduced_apart | summed)


def _dims(product: ProductShape) -> set[str]:
    return {*product.rows, *product.columns, *product.kept}


def _is_result(operand: OperandShape, dims: set[str]) -> bool:
    return operand.from_product and set(operand.dims) == dims


def _with_memory(product: ProductShape, shapes: Shapes, dims: set[str]) -> ProductShape:
    """A product whose operand of these dimensions, if another product made it, is read from memory."""
    a, b = (
        _memory(x, shapes, of) if _is_result(x, dims) else x
        for x, of in zip((product.a, product.b), product.types[:2], strict=True)
    )
    return replace(product, a=a, b=b)


def _memory(operand: OperandShape, shapes: Shapes, dtype: str) -> OperandShape:
    """An operand that was computed, read from memory where it lies row by row."""
    each, pitches = _bytes_of(dtype), []
    pitch = each
    for dim in reversed(operand.dims[1:]):
        pitch *= shapes.sizes[dim]
        pitches.append(pitch)
    return OperandShape(operand.dims, BETWEEN, frozenset(operand.dims[-1:]), each, tuple(pitches))


def _named(products: list[ProductShape]) -> tuple[ProductShape, ...]:
    """The products of a kernel by the names that they have there: mma, mma2, mma3."""
    return tuple(replace(p, name=f"mma{n + 1 if n else ''}") for n, p in enumerate(products))


def _bytes_of(dtype: str) -> int:
    """Bytes of an element of a type, which its name says in bits: bf16, f8e4m3fn."""
    return int(re.findall(r"\d+", dtype)[0]) // 8
