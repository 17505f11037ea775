"""Programs that producer and consumer waves can do: one product whose accumulator tiles are tasks.

Producer waves copy tiles of operands to shared memory, and consumer waves multiply them by atoms that read them there.
A program with several products is one of `chained`.
"""

from __future__ import annotations

from collections.abc import Collection

from tilewright.algebra.expr import Expr
from tilewright.ir.core import MemoryType, Op, Program, Value
from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.boxes import NOTHING, WRITES, Opened, cut_dims
from tilewright.plan.computed import computed_factor
from tilewright.plan.microkernel import Axes, axes_in, names_of, precision_of, shared_atoms, types_of
from tilewright.plan.model import Size


def why_no_pipeline(program: Program, size: Size, free: Collection[Op]) -> str:
    """Why a program is not one product whose accumulator tiles are tasks; empty where it is.

    `free` are the loops that give the same for every tile size.
    """
    product = product_of(program, size, free)
    if isinstance(product, str):
        return product
    op, axes = product
    dims = task_dims(program, op, size)
    return "" if axes.m in dims and axes.n in dims else "tasks cannot cut both dimensions of its sum"


def product_of(program: Program, size: Size, free: Collection[Op]) -> tuple[Op, Axes] | str:
    """The one product of a program, and its axes; or why waves with a pipeline do not do it."""
    products = names_of(program)
    if len(products) != 1:
        return f"it has {len(products)} products"
    (op,) = products.values()
    if why := why_no_overrun(program):
        return why
    if any(x.name == "iterate" and x not in free for x in program.walk()):
        return "a loop of it does more than add products"
    axes = axes_in(op, size)
    return axes if isinstance(axes, str) else (op, axes)


def why_no_overrun(program: Program) -> str:
    """Why tasks at an edge must not compute elements past it; empty where they may."""
    if any(x.name in WRITES and (x.name != "write" or x.attrs.get("lookups")) for x in program.walk()):
        return "it writes where data say: what tasks at the edges compute too much would go there as well"
    return ""


def task_dims(program: Program, op: Op, size: Size, opened: Opened = NOTHING) -> tuple[Expr, ...]:
    """The dimensions that tasks of a product cut, those of its accumulator last; among these stand those of size 1."""
    cut = cut_dims(program, size, opened=opened)
    accumulator: tuple[Expr, ...] = op.operands[2].type.dims
    last = [d for d in accumulator if d in cut or size(d) == 1]
    return (*(d for d in cut if d not in last), *last)


def atoms_of(program: Program, machine: Machine, op: Op, axes: Axes) -> tuple[MultiplyAtom, ...] | str:
    """The atoms that multiply operands from shared memory, or A from registers where it is computed; or why none do."""
    types, (a, b) = types_of(op, axes.swapped, machine), axes.factors(op)
    along = is_contiguous_along(a, axes.k, program), is_contiguous_along(b, axes.k, program)
    left, right = computed_factor(program, a), computed_factor(program, b)
    if isinstance(left, str) or right is not None:
        return left if isinstance(left, str) else right if isinstance(right, str) else "the factor B is computed"
    atoms = shared_atoms(machine, types, along, precision_of(op), held_a=left is not None)
    return atoms or f"{machine.name} multiplies no {types[0]} by {types[1]} that lie so from shared memory"


def is_contiguous_along(operand: Value, k: Expr, program: Program) -> bool:
    """True if neighbours along K are contiguous where an operand is read; a computed operand is stored so."""
    op = program.makers().get(operand)
    if op is None or op.name != "read":
        return True
    if "at" not in op.attrs:
        memory: MemoryType = op.operands[0].type
        return memory.dims[-1] is k
    own = dict(zip(op.results[0].type.dims, op.attrs["over"], strict=True)).get(k)
    return not op.attrs["at"] or own in op.attrs["at"][-1].symbols
