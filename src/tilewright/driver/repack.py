"""Repacked operands: kernels that copy operands to another layout first, and the kernel on the copies.

A copy has rows that bulk copies can read, or blocks on a diagonal: if an MMA has a smaller K than a row of shared
memory holds, adjacent MMAs become one MMA, with the operand B of each as a diagonal block.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tilewright.driver.bound_plan import ChoosePlan, RepackedKernels
from tilewright.driver.request import Request, SizedProgram
from tilewright.ir.core import Op, Value
from tilewright.machine import CopyAtom, Machine, MultiplyAtom
from tilewright.plan.microkernel import can_multiply_blocks
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import DIAGONAL, K_ROWS, LAUNCH, PADDED, Schedule, ValuePlacement
from tilewright.rewrite.adjacent_gemms import find_groupable_gemms
from tilewright.rewrite.align_rows import Reading, aligned
from tilewright.rewrite.block_diagonal import group_block_diagonal
from tilewright.rewrite.k_last import with_tiles_k_last
from tilewright.rewrite.merge_dims import Sized, least_rows, merged
from tilewright.rewrite.operand_copies import RepackedProgram

NOT_COPIED = "its operands are not copied first: sizes are open, or it is a part of another program"
"""Why a program's operands are not repacked."""


@dataclass(frozen=True)
class Repacking:
    """The requests of the kernels that copy operands, and of the program on the copies; the plan's lines for the
    copies, and a note on each.
    """

    copies: tuple[Request, ...]
    main: Request
    placed: tuple[ValuePlacement, ...]
    notes: tuple[str, ...]


def bind_repacked(request: Request, plan: Schedule, choose: ChoosePlan) -> RepackedKernels:
    """Bind (apply) a plan that repacks operands; return the kernels that copy them, and the kernel on the copies.

    `choose` plans all of these kernels, the one on the copies by the plan's other lines. Raise an ArgumentError if the
    operands cannot be repacked so, if the plan's `repack` lines name others than those that must be repacked together,
    or if a block-diagonal plan has no pipeline.
    """
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
    """Rewrite a request so that it reads repacked copies of its operands; return a Repacking, or text: why that is
    impossible.

    The Repacking has the requests that make the copies, and the one for the program on the copies. `form` is the layout
    of the copies, such as "aligned rows". `pinned` is the plan for the program on the copies, or None. It is impossible
    if the machine has no bulk copies, if sizes are known only at the call, if `request.lenient` is set, or if no
    operand suits the layout.
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


def _main_program(copied: RepackedProgram, machine: Machine, form: str) -> SizedProgram:
    """Return the program on repacked operands, with its sizes. `copied` is the result of the rewrite.

    If `form` is K_ROWS (K is the last dimension of the copies), K also becomes the last dimension of tiles, and
    dimensions of M that are contiguous on the copies are merged. For other forms the program is that of `copied`.
    """
    if form != K_ROWS:
        return SizedProgram(copied.program, copied.sizes, copied.shapes, copied.free)
    program, free = with_tiles_k_last(copied.program, copied.free)
    sized = merged(Sized(program, copied.sizes, copied.shapes, free, least_rows(machine)))
    return SizedProgram(sized.program, sized.sizes, sized.shapes, sized.free)


def _block_diagonal(request: Request, count: int, pitch: int) -> RepackedProgram | str:
    """Rewrite `count` adjacent GEMMs as one MMA with a block-diagonal B; return a RepackedProgram, or text: why that is
    impossible.

    The RepackedProgram has the rewritten program and the kernels that repack its operands. `pitch` is the alignment of
    rows, in bytes, that bulk copies need. It is impossible if the program has no adjacent GEMMs, or if no atom can
    multiply the blocks.
    """
    groups = find_groupable_gemms(request.program, request.sizes, _shapes_of(request))
    if isinstance(groups, str):
        return groups
    atoms, (n, k) = _atoms_from_shared(request.machine, groups.product), groups.size
    block_k = _block_depth(atoms, k)
    if not any(can_multiply_blocks(atom, count, count * n, count * block_k) for atom in atoms):
        return f"no atom multiplies blocks of {n}x{k} by themselves, and an infinite element would reach its neighbours"
    return group_block_diagonal(
        request.program, request.sizes, _shapes_of(request), request.free, count, block_k, pitch
    )


def _bulk_loads(machine: Machine) -> list[CopyAtom]:
    """Return the list of the machine's bulk copies: asynchronous copy atoms from global to shared memory that copy
    whole boxes."""
    every = machine.copies_between("global", "shared")
    return [a for a in every if a.asynchronous and a.bytes_moved is None]


def _atoms_from_shared(machine: Machine, product: Op) -> list[MultiplyAtom]:
    """Return the list of the machine's atoms that read operands from shared memory and take the operand types of
    `product`.

    `product` is an MMA operation. Its operand types may be those of the atom's A and B in either order.
    """
    types = {v.type.dtype for v in product.operands[:2]}
    return [x for x in machine.multiply.values() if x.slab is not None and {x.a.dtype, x.b.dtype} == types]


def _block_depth(atoms: Collection[MultiplyAtom], k: int) -> int:
    """Return the K of a diagonal block: `k`, the K of a GEMM, if it is a multiple of the largest K step of `atoms`.

    Otherwise it is the step times the smallest power of two that covers `k`: 20 with steps of 16 -> 32. Without atoms,
    the step is 1.
    """
    step = max((x.shape[2] for x in atoms), default=1)
    depth = step
    while depth < k:
        depth *= 2
    return k if k % step == 0 else depth


def _shapes_of(request: Request) -> dict[Value, tuple[int, ...]]:
    """Return {argument: shape as ints} of the request's program. All sizes must be known before the call."""
    return {a: tuple(int(n) for n in shape) for a, shape in request.sized.shapes.items()}
