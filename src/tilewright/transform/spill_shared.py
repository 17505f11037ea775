"""Spilling of shared memory: values that do not fit become workspaces in global memory, with a part for each task.

  tasks t in 0..4 {                         tasks t in 0..4 {
    %v = alloc shared f32 (300, 1000)         %v = view %f_v (i0 300, i1 1000) -> [t, i0, i1]

That is for programs whose tasks cannot be made smaller, and for values whose size is known only at the call. Operands
of MMAs and of copy atoms stay in shared memory, and tensors that lanes hold in registers stay there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tilewright.algebra.expr import Const, Expr, index
from tilewright.analysis.thread_layout import frames_of
from tilewright.analysis.views import Places
from tilewright.ir.block import BLOCK
from tilewright.ir.core import Block, Op, Program, Value, walk_block
from tilewright.ir.tensors import TensorType
from tilewright.lower.block.lower import Lowered
from tilewright.lower.gpu.lower import lower_waves, shared_excess_bytes
from tilewright.machine import Machine


def spill_to_workspaces(lowered: Lowered, machine: Machine) -> Lowered:
    """Return the program in `lowered`, and those that run before it, with tensors moved from shared memory to new
    workspaces in global memory until the rest fits, or until none may be moved. The programs are changed in place; the
    workspaces become further arguments.

    Tensors with a size known only at the call are moved first, in any case; then the largest ones. Nothing is moved in
    a program that surely fits or has no tasks, or if the machine does not limit shared memory.
    """
    before = tuple(spill_to_workspaces(earlier, machine) for earlier in lowered.before)
    moved = replace(lowered, before=before) if before != lowered.before else lowered
    program = lowered.program
    tasks = next((op for op in program.body.ops if op.name == "tasks"), None)
    if tasks is None or machine.spaces["shared"].bytes is None:
        return moved
    allocations = [op for op in program.walk() if op.name == "alloc" and isinstance(op.attrs["type"], TensorType)]
    is_open = not all(_is_number(op.attrs["type"].room()) for op in allocations)
    if not is_open and not _may_overflow(allocations, machine):
        return moved
    left = _movable(program, tasks, machine)
    chosen = [op for op in left if not _is_number(op.attrs["type"].room())]
    left = [op for op in left if op not in chosen]
    if not chosen and not _may_overflow(allocations, machine):
        return moved
    workspaces: list[Value] = []
    arguments, others = program.args[: len(lowered.arguments)], program.args[len(lowered.arguments) :]
    while True:
        workspaces += _move_to_workspaces(program, tasks, chosen)
        program.args = (*arguments, *workspaces, *others)
        excess_bytes = shared_excess_bytes(lower_waves(program, machine), machine)
        if excess_bytes <= 0 or not left:
            break
        chosen = list(_largest(left, excess_bytes))
        left = [op for op in left if op not in chosen]
    return replace(moved, arguments=(*lowered.arguments, *workspaces))


def _is_number(e: Expr) -> bool:
    """True if the expression `e` is a constant."""
    return isinstance(e, Const)


def _bytes(op: Op) -> int:
    """Return the number of bytes of the tensor that the `alloc` operation `op` allocates. Its size must be constant."""
    kind = op.attrs["type"]
    return int(kind.room()) * int(kind.dtype.numpy.itemsize)


def _movable(program: Program, tasks: Op, machine: Machine) -> list[Op]:
    """Return the `alloc` operations inside `tasks` that may be moved from shared to global memory, the last ones first.
    Their tensors are no operands of MMAs or of copies by an atom, have no swizzle, and are not held in registers by
    lanes.
    """
    chain = Places(program, program.makers())
    in_registers = frames_of(program, chain, machine).tensors
    must_stay = {
        chain.root(v)
        for op in program.walk()
        if op.name == "mma" or (op.name == "copy" and "by" in op.attrs)
        for v in op.operands
    }
    movable = []
    for op in (op for block in tasks.blocks for op in walk_block(block)):
        kind = op.attrs.get("type")
        is_plain = op.name == "alloc" and isinstance(kind, TensorType) and kind.swizzle is None
        if is_plain and op.results[0] not in in_registers and op.results[0] not in must_stay:
            movable.append(op)
    return movable[::-1]


def _may_overflow(allocations: list[Op], machine: Machine) -> bool:
    """True if the tensors of `allocations`, all `alloc` operations of a program, take more than half of shared memory:
    with scratch memory of operations, the program may then exceed shared memory.
    """
    most = machine.spaces["shared"].bytes
    assert most is not None
    return 2 * sum(map(_bytes, allocations)) > most


def _largest(allocations: list[Op], wanted_bytes: int) -> Iterator[Op]:
    """Yield the largest of `allocations` (`alloc` operations), in decreasing order, until those yielded have
    `wanted_bytes` bytes together, or none is left.
    """
    for op in sorted(allocations, key=_bytes, reverse=True):
        yield op
        wanted_bytes -= _bytes(op)
        if wanted_bytes <= 0:
            return


def _move_to_workspaces(program: Program, tasks: Op, chosen: list[Op]) -> list[Value]:
    """Replace the allocations `chosen` by views of new tensors in global memory, in place, and return these tensors,
    which the caller adds to the program's arguments. Each has a separate part for every task of `tasks`.
    """
    ranges = tasks.attrs["ranges"]
    numbers = tuple((r.symbol - r.lo, False) for r in ranges)
    workspaces, views = [], {}
    for op in chosen:
        kind, value = op.attrs["type"], op.results[0]
        workspace_type = TensorType("global", kind.dtype, (*(r.hi - r.lo for r in ranges), *kind.shape), role="scratch")
        argument = Value(workspace_type, f"{program.name}_{value.name}")
        over = tuple(index(f"i{n}", extent) for n, extent in enumerate(kind.shape))
        attrs = {"over": over, "at": (*numbers, *((i, False) for i in over))}
        views[op] = Op(BLOCK.ops["view"], (argument,), attrs, op.results, loc=op.loc)
        workspaces.append(argument)
    put_views(program, views)
    return workspaces


def put_views(program: Program, views: dict[Op, Op]) -> None:
    """Replace allocations by views in a program, in place. `views` is {`alloc` operation: view with the same result}.
    The types of all views and bitcasts in the program are inferred again.
    """
    _replace((program.body,), views)
    for op in program.walk():
        if op.name in ("view", "bitcast"):
            assert op.spec.result_types is not None
            (op.results[0].type,) = op.spec.result_types(op)


def _replace(blocks: Iterable[Block], views: dict[Op, Op]) -> None:
    """Replace allocations by views ({`alloc` operation: view}) in `blocks` and in the blocks inside them, in place."""
    for block in blocks:
        block.ops[:] = [views.get(op, op) for op in block.ops]
        for op in block.ops:
            _replace(op.blocks, views)
