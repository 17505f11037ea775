"""Repacked operands: kernels that copy operands first, and the kernel on the copies.

A copy has rows that the machine's own copies can read, or blocks on a diagonal: where a product sums less than a row of
shared memory holds, neighbouring products become one product, with the operand B of each as a block.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tilewright.ir.core import Op, Value
from tilewright.machine import CopyAtom, Machine, MultiplyAtom
from tilewright.passes.bound_plan import Choose, RepackedKernels
from tilewright.passes.request import Request, SizedProgram
from tilewright.passes.tile.aligning import Reading, aligned
from tilewright.passes.tile.copies import Copied
from tilewright.passes.tile.diagonal import diagonal
from tilewright.passes.tile.k_last import with_tiles_k_last
from tilewright.passes.tile.merging import Sized, least_rows, merged
from tilewright.passes.tile.neighbours import neighbours
from tilewright.plan.microkernel import can_multiply_blocks
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import DIAGONAL, K_ROWS, LAUNCH, PADDED, Schedule, ValuePlacement

NOT_COPIED = "its operands are not copied first: sizes are open, or it is a part of another program"
"""Why a program's operands are not repacked."""


@dataclass(frozen=True)
class Repacking:
    """The requests of the copies of operands and of the program on the copies, the plan's lines, a note on each."""

    copies: tuple[Request, ...]
    main: Request
    placed: tuple[ValuePlacement, ...]
    notes: tuple[str, ...]


def bind_repacked(request: Request, plan: Schedule, choose: Choose) -> RepackedKernels:
    """Return the kernels that copy what a plan names, and the kernel on the copies, bound to the plan's other lines."""
    lines = sorted((p for p in plan.values if p.at == LAUNCH), key=lambda p: not p.form.startswith(DIAGONAL))
    rest = replace(plan, values=tuple(p for p in plan.values if p.at != LAUNCH))
    if rest.pipeline is None and lines[0].form.startswith(DIAGONAL):
        raise refused(lines[0], "only a pipeline multiplies blocks by themselves: `producer ...` is missing")
    repacking = repacked(request, rest, lines[0].form)
    if isinstance(repacking, str):
        raise refused(lines[0], repacking)
    placed = repacking.placed
    wrong = tuple(p for p in lines if p not in placed) or tuple(p for p in placed if p not in lines)
    if wrong:
        done = ", ".join(f"`{p}`" for p in placed)
        raise refused(wrong, f"the operands that are repacked, without a hint, are {done}")
    copies = tuple(choose((each,)) for each in repacking.copies)
    return RepackedKernels(copies, choose((repacking.main,)), repacking.notes)


def repacked(request: Request, pinned: Schedule | None, form: str) -> Repacking | str:
    """Return the requests of the copies of operands to `form`, and of the program on the copies with the plan `pinned`;
    or text: why not.
    """
    machine = request.machine
    loads = _bulk_loads(machine)
    if not loads or request.opened or request.lenient:
        return NOT_COPIED
    pitch = max(a.pitch for a in loads)
    if form.startswith(DIAGONAL):
        copied = _block_diagonal(request, int(form.split()[1]), pitch)
    else:
        line = max((x.slab or 0) * x.a.dtype.bits // 8 for x in machine.multiply.values())
        reading = Reading(pitch, max(a.furthest for a in loads), machine.limits.sector_bytes, line)
        copied = aligned(request.program, request.sizes, _shapes_of(request), request.free, form, reading)
    if isinstance(copied, str):
        return copied
    copies = tuple(Request(SizedProgram(each.program, each.sizes, each.shapes), machine) for each in copied.copies)
    main = _main_program(copied, machine, form)
    forms = (form, *(PADDED if form.startswith(DIAGONAL) else form for _ in copied.sources[1:]))
    placed = tuple(
        ValuePlacement(name, LAUNCH, placed_form) for name, placed_form in zip(copied.sources, forms, strict=True)
    )
    return Repacking(copies, Request(main, machine, pinned=pinned), placed, tuple(map(str, copied.copies)))


def _main_program(copied: Copied, machine: Machine, form: str) -> SizedProgram:
    """Return the program on copies; where another dimension is their last, it is in its canonical form again: it is the
    last of tiles, too, and dimensions of rows may be merged that are no longer contiguous.
    """
    if form != K_ROWS:
        return SizedProgram(copied.program, copied.sizes, copied.shapes, copied.free)
    program, free = with_tiles_k_last(copied.program, copied.free)
    sized = merged(Sized(program, copied.sizes, copied.shapes, free, least_rows(machine)))
    return SizedProgram(sized.program, sized.sizes, sized.shapes, sized.free)


def _block_diagonal(request: Request, count: int, pitch: int) -> Copied | str:
    """Return the program in which `count` adjacent GEMMs are one MMA with a block-diagonal B; or text: why not."""
    groups = neighbours(request.program, request.sizes, _shapes_of(request))
    if isinstance(groups, str):
        return groups
    atoms, (n, k) = _atoms_from_shared(request.machine, groups.product), groups.size
    deep = _block_depth(atoms, k)
    if not any(can_multiply_blocks(atom, count, count * n, count * deep) for atom in atoms):
        return f"no atom multiplies blocks of {n}x{k} by themselves, and an infinite element would reach its neighbours"
    return diagonal(request.program, request.sizes, _shapes_of(request), request.free, count, deep, pitch)


def _bulk_loads(machine: Machine) -> list[CopyAtom]:
    """Return the machine's asynchronous copy atoms from global to shared memory that bring whole boxes (bulk
    copies).
    """
    every = machine.copies_between("global", "shared")
    return [a for a in every if a.asynchronous and a.bytes_moved is None]


def _atoms_from_shared(machine: Machine, product: Op) -> list[MultiplyAtom]:
    """Return the atoms that read operands of the MMA's types from shared memory."""
    types = {v.type.dtype for v in product.operands[:2]}
    return [x for x in machine.multiply.values() if x.slab is not None and {x.a.dtype, x.b.dtype} == types]


def _block_depth(atoms: Collection[MultiplyAtom], k: int) -> int:
    """Return K of a diagonal block: `k` if it is a multiple of the largest K of the atoms.

    Else that K times the least power of two that covers `k`.
    """
    step = max((x.shape[2] for x in atoms), default=1)
    deep = step
    while deep < k:
        deep *= 2
    return k if k % step == 0 else deep


def _shapes_of(request: Request) -> dict[Value, tuple[int, ...]]:
    """Return {argument: shape as ints}."""
    return {a: tuple(int(n) for n in shape) for a, shape in request.sized.shapes.items()}
