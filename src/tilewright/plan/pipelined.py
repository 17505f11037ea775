"""Programs that a pipeline of producer and consumer waves (warp specialisation) can compute: those with one MMA.

Producer waves copy tiles of operands to shared memory; consumer waves multiply them by atoms that read shared memory.
A task is one accumulator tile. Programs with several MMAs are the subject of `chained`.
"""

from __future__ import annotations

from collections.abc import Collection

from tilewright.algebra.expr import Expr
from tilewright.ir.core import MemoryType, Op, Program, Value
from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.boxes import NOTHING, WRITES, Opened, cut_dims
from tilewright.plan.computed import computed_factor
from tilewright.plan.microkernel import Axes, axes_in, mmas_by_name, precision_of, shared_atoms, types_of
from tilewright.plan.model import Size


def why_no_pipeline(program: Program, size: Size, free: Collection[Op]) -> str:
    """Return text: why producer and consumer waves (warps) cannot compute a program; empty if they can.

    They can compute a program with a single MMA that has an accumulator tile. The grid must be able to split both M and
    N. Every loop must be in `free` (its tile size does not change the result), and no write may be atomic or at
    coordinates that depend on data. `size(d)` evaluates the extent of a dimension d.
    """
    product = pipelined_mma(program, size, free)
    if isinstance(product, str):
        return product
    op, axes = product
    dims = task_dims(program, op, size)
    return "" if axes.m in dims and axes.n in dims else "tasks cannot cut both dimensions of its sum"


def pipelined_mma(program: Program, size: Size, free: Collection[Op]) -> tuple[Op, Axes] | str:
    """Return (a program's single mma, its Axes M, N, K); or text: why producer and consumer waves cannot compute it.

    They cannot in four cases: the program has no or several MMAs; the MMA has no accumulator tile; a write is atomic or
    at coordinates that depend on data; or a loop is not in `free`, the loops whose tile size does not change the
    result. `size(d)` evaluates the extent of a dimension d.
    """
    products = mmas_by_name(program)
    if len(products) != 1:
        return f"it has {len(products)} products"
    (op,) = products.values()
    if why := why_no_overrun(program):
        return why
    if any(inner.name == "iterate" and inner not in free for inner in program.walk()):
        return "a loop of it does more than add products"
    axes = axes_in(op, size)
    return axes if isinstance(axes, str) else (op, axes)


def why_no_overrun(program: Program) -> str:
    """Return text: why a task at the edge of the grid must not compute elements past the edge; empty text if it may.

    A task is one tile of the grid; padding a ragged one to a full tile is not allowed if the program has atomic
    updates, or a write at coordinates that depend on data.
    """
    if any(op.name in WRITES and (op.name != "write" or op.attrs.get("lookups")) for op in program.walk()):
        return "it writes where data say: what tasks at the edges compute too much would go there as well"
    return ""


def task_dims(program: Program, op: Op, size: Size, opened: Opened = NOTHING) -> tuple[Expr, ...]:
    """Return the dimensions that the grid may split in a program with the MMA `op`.

    Dimensions that the accumulator of `op` lacks come first. Then the dimensions of the accumulator follow, in its
    order; dimensions of one element are included there. `size(d)` evaluates the extent of a dimension d; for `opened`
    sizes (known only at the call) it is a typical number.
    """
    parallel = cut_dims(program, size, opened=opened)
    accumulator: tuple[Expr, ...] = op.operands[2].type.dims
    of_accumulator = [d for d in accumulator if d in parallel or size(d) == 1]
    return (*(d for d in parallel if d not in of_accumulator), *of_accumulator)


def atoms_of(program: Program, machine: Machine, op: Op, axes: Axes) -> tuple[MultiplyAtom, ...] | str:
    """Return the MMA atoms that can multiply the operands of the mma `op` from shared memory; or text: why none can.

    If A is computed elementwise, these are atoms that take A from registers and B from shared memory. No atom can if B
    is computed, or if A is computed but not elementwise. Types, layouts and rounding must fit too. `axes` are M, N and
    K of `op`.
    """
    types, (a, b) = types_of(op, axes.swapped, machine), axes.operands(op)
    k_contiguous = is_contiguous_along(a, axes.k, program), is_contiguous_along(b, axes.k, program)
    computed_a, computed_b = computed_factor(program, a), computed_factor(program, b)
    if isinstance(computed_a, str) or computed_b is not None:
        return (
            computed_a
            if isinstance(computed_a, str)
            else computed_b
            if isinstance(computed_b, str)
            else "operand B is computed"
        )
    atoms = shared_atoms(machine, types, k_contiguous, precision_of(op), held_a=computed_a is not None)
    return atoms or f"{machine.name} multiplies no {types[0]} by {types[1]} that lie so from shared memory"


def is_contiguous_along(operand: Value, k: Expr, program: Program) -> bool:
    """True if an MMA operand is contiguous along K: its innermost memory coordinate depends on the index of `k`.

    An operand that is computed counts as True (it is stored with K contiguous), and so does a single number. A read
    without explicit coordinates must have `k` as its last memory dimension.
    """
    op = program.makers().get(operand)
    if op is None or op.name != "read":
        return True
    if "at" not in op.attrs:
        memory: MemoryType = op.operands[0].type
        return memory.dims[-1] is k
    iterator = dict(zip(op.results[0].type.dims, op.attrs["over"], strict=True)).get(k)
    return not op.attrs["at"] or iterator in op.attrs["at"][-1].symbols
