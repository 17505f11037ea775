"""What shared memory does not hold lies in global memory: a workspace of the host program, a part of it for each task.

tasks t in 0..4 {                         tasks t in 0..4 {
  %v = alloc shared f32 (300, 1000)         %v = view %f_v (i0 300, i1 1000) -> [t, i0, i1]

That is for programs whose tasks cannot be made smaller, and for values whose size only a call tells. What a product or
a copy of the machine's own reads from shared memory stays there, as does what lanes hold in registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tilewright.algebra.expr import Const, Expr, index
from tilewright.check.frames import frames_of
from tilewright.check.places import Places
from tilewright.ir.block import BLOCK
from tilewright.ir.core import Block, Op, Program, Value, walk_block
from tilewright.ir.tensors import TensorType
from tilewright.machine import Machine
from tilewright.passes.tile.general import Lowered
from tilewright.passes.waves.lower import lower_waves, past_shared


def outside(lowered: Lowered, machine: Machine) -> Lowered:
    """The program, and those before it, with values in workspaces where shared memory has no room for all of them."""
    before = tuple(outside(each, machine) for each in lowered.before)
    found = replace(lowered, before=before) if before != lowered.before else lowered
    program = lowered.program
    tasks = next((op for op in program.body.ops if op.name == "tasks"), None)
    if tasks is None or machine.spaces["shared"].bytes is None:
        return found
    left = _movable(program, tasks, machine)
    chosen = [op for op in left if not _is_number(op.attrs["type"].room())]
    left = [op for op in left if op not in chosen]
    if not chosen and not _is_near(program, machine):
        return found
    made: list[Value] = []
    own, others = program.args[: len(lowered.arguments)], program.args[len(lowered.arguments) :]
    while True:
        made += _moved(program, tasks, chosen)
        program.args = (*own, *made, *others)
        over = past_shared(lower_waves(program, machine), machine)
        if over <= 0 or not left:
            break
        chosen = list(_largest(left, over))
        left = [op for op in left if op not in chosen]
    return replace(found, arguments=(*lowered.arguments, *made))


def _is_number(e: Expr) -> bool:
    return isinstance(e, Const)


def _bytes(op: Op) -> int:
    kind = op.attrs["type"]
    return int(kind.room()) * int(kind.dtype.numpy.itemsize)


def _movable(program: Program, tasks: Op, machine: Machine) -> list[Op]:
    """The allocations of tasks that any memory can be: the last ones first."""
    chain = Places(program, program.makers())
    held = frames_of(program, chain, machine).tensors
    near = {
        chain.root(v)
        for op in program.walk()
        if op.name == "mma" or (op.name == "copy" and "by" in op.attrs)
        for v in op.operands
    }
    found = []
    for op in (op for block in tasks.blocks for op in walk_block(block)):
        kind = op.attrs.get("type")
        plain = op.name == "alloc" and isinstance(kind, TensorType) and kind.swizzle is None
        if plain and op.results[0] not in held and op.results[0] not in near:
            found.append(op)
    return found[::-1]


def _is_near(program: Program, machine: Machine) -> bool:
    """Whether it may take more shared memory than there is: operations need some of their own, too."""
    most = machine.spaces["shared"].bytes
    assert most is not None
    every = [op for op in program.walk() if op.name == "alloc" and isinstance(op.attrs["type"], TensorType)]
    return 2 * sum(map(_bytes, every)) > most


def _largest(left: list[Op], over: int) -> Iterator[Op]:
    """The largest allocations that make so much room together."""
    for op in sorted(left, key=_bytes, reverse=True):
        yield op
        over -= _bytes(op)
        if over <= 0:
            return


def _moved(program: Program, tasks: Op, chosen: list[Op]) -> list[Value]:
    """Makes allocations views of arguments, which have a part for each task; gives these."""
    ranges = tasks.attrs["ranges"]
    numbers = tuple((r.symbol - r.lo, False) for r in ranges)
    made, views = [], {}
    for op in chosen:
        kind, value = op.attrs["type"], op.results[0]
        whole = TensorType("global", kind.dtype, (*(r.hi - r.lo for r in ranges), *kind.shape), role="scratch")
        argument = Value(whole, f"{program.name}_{value.name}")
        over = tuple(index(f"i{n}", extent) for n, extent in enumerate(kind.shape))
        attrs = {"over": over, "at": (*numbers, *((i, False) for i in over))}
        views[op] = Op(BLOCK.ops["view"], (argument,), attrs, op.results, loc=op.loc)
        made.append(argument)
    put_views(program, views)
    return made


def put_views(program: Program, views: dict[Op, Op]) -> None:
    """Put views in the place of allocations; what is seen through them lies where their tensor does."""
    _replace((program.body,), views)
    for op in program.walk():
        if op.name in ("view", "bitcast"):
            assert op.spec.result_types is not None
            (op.results[0].type,) = op.spec.result_types(op)


def _replace(blocks: Iterable[Block], views: dict[Op, Op]) -> None:
    for block in blocks:
        block.ops[:] = [views.get(op, op) for op in block.ops]
        for op in block.ops:
            _replace(op.blocks, views)
