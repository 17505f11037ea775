"""The walk over a block program for a GPU: all waves of a role execute the same loop program, and know their number."""

from __future__ import annotations

from tilewright.algebra.expr import Symbol, as_expr, index
from tilewright.ir.core import Block, Op, Program, Value, building
from tilewright.ir.loop import LOOP
from tilewright.ir.tensors import TensorType, numbers
from tilewright.lower.gpu import channels, control, copies, distributed, elementwise, general, mma, scans, transposing
from tilewright.lower.gpu.cache_hints import mark_streams
from tilewright.lower.gpu.common_loads import join_loads
from tilewright.lower.gpu.wave_groups import WaveGroup
from tilewright.lower.gpu.wave_lowering import EVERYONE, WaveLowering
from tilewright.lower.loop_lowering import Rule, let, memory_of
from tilewright.machine import Machine


def lower_waves(program: Program, machine: Machine) -> Program:
    """Return the loop program of the block program `program` for a GPU. Sizes of `program` are numbers, or open (known
    only at the call). Raise a ProgramError if an operation cannot be lowered.

    Each operation gets scratch memory for itself, so that waves synchronise less often; if that exceeds shared memory,
    operations share scratch memory. Repeated loads are joined. Loads that should not displace results from the cache
    get the attribute `stream`.
    """
    with building():
        lowered = _loop_program(WaveLowering(program, machine, RULES))
        if shared_excess_bytes(lowered, machine) > 0:
            lowered = _loop_program(WaveLowering(program, machine, RULES, thrifty=True))
        join_loads(lowered)
        mark_streams(lowered, machine)
        return lowered


def shared_excess_bytes(program: Program, machine: Machine) -> int:
    """Return the number of bytes by which the tensors that the loop program `program` allocates exceed the shared
    memory of a workgroup: 0 or less if they fit. Return 0 if shared memory has no limit. Barriers do not count.
    """
    space, total = machine.spaces["shared"], 0
    for op in program.body.ops:
        kind = op.attrs.get("type")
        if op.name == "alloc" and isinstance(kind, TensorType):
            total += -(-kind.cosize() * kind.dtype.numpy.itemsize // space.alignment) * space.alignment
    return 0 if space.bytes is None else total - space.bytes


def _loop_program(low: WaveLowering) -> Program:
    """Lower the block program of `low`, a new WaveLowering, and return the loop program. Its body has the workgroup's
    allocations, then the roles in order; a program without roles becomes one role of all waves.
    """
    for record in low.program.records:
        if record.name == "let":
            let(low, record)
    args = tuple(Value(a.type.mapped(low.expr), a.name) for a in low.program.args)
    for old, new in zip(low.program.args, args, strict=True):
        low.handles[old] = memory_of(new, new.type)
    sizes = [numbers((op.attrs["waves"],), "waves")[0] for op in low.roles] or [low.alone]
    roles = []
    for number, size in enumerate(sizes):
        role = low.roles[number] if low.roles else None
        roles.append(_role(low, role, number, size, sum(sizes[:number]), sum(sizes)))
    records = [r for r in low.program.records if r.name in ("machine", "param", "cluster", "launch")]
    return Program(LOOP, low.program.name, args, Block((), [*low.top.ops, *roles]), records)


def _role(low: WaveLowering, role: Op | None, number: int, waves: int, before: int, total: int) -> Op:
    """Return a `role` operation of the loop program. It has the program's operations outside of roles, which all waves
    do, then those of `role` (None: the program has no roles).

    `number` is the index of the role, `waves` its number of waves, `before` the number of waves of earlier roles, and
    `total` that of all roles.
    """
    low.head, body = Block(()), Block(())
    symbol = index(low.fresh("w"), waves)
    over: tuple[Symbol, ...] = (symbol,)
    if low.cluster > 1:
        rank = index(low.fresh("rank"), low.cluster)
        low.rank, over = rank, (symbol, rank)
    role_group = WaveGroup(waves, symbol, as_expr(number + 1), as_expr(0))
    low.role = EVERYONE if role is None else role.attrs["name"]
    handles, meaning = dict(low.handles), low.meaning
    with low.writing(body):
        low.group = role_group if role is None else WaveGroup(total, symbol + before, as_expr(0), as_expr(0))
        for op in low.program.body.ops:
            if op.name != "role":
                low.op(op)
            elif op is role:
                low.mmas_in_flight.wait_for_all()
                low.group = role_group
                low.block(op.blocks[0], once=True)
        low.mmas_in_flight.wait_for_all()
        channels.wait_for_copies_out(low)
    low.handles, low.meaning = handles, meaning
    inner = Block((), [*low.head.ops, *body.ops])
    attrs = {"name": low.role, "waves": as_expr(waves), "over": over}
    if role is not None and role.attrs.get("registers") is not None:
        attrs["registers"] = role.attrs["registers"]
    return Op(LOOP.ops["role"], (), {k: attrs[k] for k in LOOP.ops["role"].attrs if k in attrs}, (), (inner,))


def _alloc(low: WaveLowering, op: Op) -> None:
    """Lower `alloc` on a GPU. A tensor that the thread-layout analysis distributed over lanes becomes a fragment with
    each lane's values. Any other becomes fragments if it is a register tensor, and shared memory if not.
    """
    (distributed.alloc if op.results[0] in low.frames.tensors else copies.alloc)(low, op)


def _view(low: WaveLowering, op: Op) -> None:
    """Lower `view` on a GPU: record the viewed memory or register values as its result. Nothing is recorded for a view
    of a tensor that the thread-layout analysis distributed over lanes: operations then use the tensor below the view.
    """
    if low.frames.root(op.operands[0]) not in low.frames.tensors:
        copies.view(low, op)


def _distributed(rule: Rule) -> Rule:
    """Return a lowering rule that lowers most operations by `rule`. Two sorts of operations are lowered otherwise:
    transposing maps and copies by `lower_transposed`, and operations with axes that the thread-layout analysis
    distributed over lanes by `lower_distributed`.
    """

    def lower_op(low: WaveLowering, op: Op) -> None:
        """Lower `op` as a transposing copy, as an operation on distributed axes, or by `rule`."""
        if op in low.frames.transposes:
            transposing.lower_transposed(low, op)
        else:
            (distributed.lower_distributed if op in low.frames.axes else rule)(low, op)

    return lower_op


def _scan(low: WaveLowering, op: Op) -> None:
    """Lower `scan` on a GPU. If the thread-layout analysis distributed its axes over lanes, lanes scan each row
    together; otherwise one lane scans a row.
    """
    (scans.scan if op in low.frames.axes else general.along)(low, op)


RULES: dict[str, Rule] = {
    "alloc": _alloc,
    "view": _view,
    "let": let,
    "fill": _distributed(copies.fill),
    "copy": _distributed(copies.copy),
    "map": _distributed(elementwise.map_),
    "reduce": _distributed(elementwise.reduce),
    "broadcast": elementwise.broadcast,
    "convert_layout": elementwise.convert_layout,
    "scan": _scan,
    "gather": general.gather,
    "scatter": general.scatter,
    "atomic": general.atomic,
    "bitcast": general.bitcast,
    "while": general.while_,
    "mma": mma.mma,
    "for": control.for_,
    "tasks": control.tasks,
    "if": control.if_,
    "barrier": control.barrier,
    "edge": control.edge,
    "channel": channels.channel,
    "acquire": channels.acquire,
    "commit": channels.commit,
    "wait": channels.wait,
    "release": channels.release,
}
