"""From the block to the loop level for CPUs: the loop program that one worker executes.

A program with one role is lowered, whatever its number of waves: collective operations are done one after the other,
each for all threads, which is one of the orders that the block level allows. Programs with several roles are refused.
"""

from __future__ import annotations

from typing import Any

from tilewright.analysis.distribution import placement
from tilewright.analysis.flat_memory import PlacedMemory, PlacedView, sizes
from tilewright.errors import ProgramError
from tilewright.ir.core import Block, Op, Program, Value, building, walk_block
from tilewright.ir.tensors import RegisterType, TensorType
from tilewright.lower.cpu import control, elementwise, indirect, mma, reduce
from tilewright.lower.cpu.loop_fusion import MapFuser
from tilewright.lower.cpu.register_forms import Fragments, Tiles, Vectors, as_vectors, fragment_operand, tile_operand
from tilewright.lower.loop_lowering import LoopLowering, Rule, let, memory_of
from tilewright.machine import Machine, RegisterOperand

Handle = PlacedMemory | PlacedView | Vectors | Tiles
_MADE = ("alloc", "view", "bitcast")
"""Operations that define a tensor, and neither read nor write it."""
VECTORS = 1024
"""The most registers that one tensor becomes; a larger tensor lies in memory."""


def lower(program: Program, machine: Machine | None, here: Machine) -> LoweredLoops:
    """Return the loop program of the block program `program` for a CPU, with notes on MMAs that run as slow loops. The
    sizes of `program` are bound to numbers, or open (known only at the call).

    `machine` is the one that the program was written for, and `here` the one that runs it. An MMA with an atom that
    `here` lacks becomes scalar loops. Raise a ProgramError if the program has several roles, or if an operation cannot
    be lowered.
    """
    with building():
        return WorkerLowering(program, machine, here).run()


class LoweredLoops:
    """A loop program, and a text for each operation that runs as slow loops, with the reason."""

    def __init__(self, program: Program, slow: tuple[str, ...]):
        self.program, self.slow = program, slow


class WorkerLowering(LoopLowering):
    """The lowering for a CPU, where one worker does all the work of a workgroup, and maps over the same elements share
    a loop.
    """

    def __init__(self, program: Program, machine: Machine | None, here: Machine):
        super().__init__(program, machine, here, RULES)

    def run(self) -> LoweredLoops:
        """Lower the whole block program, and return its loop program with notes on MMAs that run as slow loops. Raise a
        ProgramError if the program has several roles, because one worker cannot run them at once, or if an operation
        cannot be lowered.
        """
        roles = [op for op in self.program.body.ops if op.name == "role"]
        if len(roles) > 1:
            names = ", ".join(op.attrs["name"] for op in roles)
            raise ProgramError(
                f"{self.program.name} has several roles ({names}); {self.here.name} runs one, target='interpreter' all",
                roles[1].loc,
            )
        for record in self.program.records:
            if record.name == "let":
                let(self, record)
        for a in self.program.args:
            kind = a.type.mapped(self.expr)
            self.handles[a] = memory_of(self.builder.argument(a.name or "", _flat(kind)), kind)
        for op in self.program.body.ops:
            if op.name == "role":
                self.block(op.blocks[0])
            else:
                self.op(op)
        self.builder.records += [r for r in self.program.records if r.name in ("machine", "param")]
        asked = [r.attrs["that"] for r in self.program.records if r.name == "require"]
        for that in dict.fromkeys([*map(self.expr, asked), *self.guards]):
            self.builder.record("require", {"that": that})
        return LoweredLoops(self.builder.program(self.program.name), tuple(self.slow.values()))

    def block(self, block: Block) -> None:
        """Lower every operation of `block`; maps and reductions over the same elements share loops. After the last use
        of tile registers that `block` allocates, subtract their number from `self.tiles`, the number of tile registers
        in use.
        """
        fuser, ends = MapFuser(self), _last_uses(block)
        for op in block.ops:
            if op.name in _MADE or not fuser.take(op):
                self.op(op)
            for value in ends.get(op, ()):
                if isinstance(tiles := self.handles.get(value), Tiles):
                    self.tiles -= len(tiles.registers)
        fuser.flush()


def _last_uses(block: Block) -> dict[Op, list[Value]]:
    """Return {operation of `block`: register tensors that it is the last to use}, for the register tensors that are
    allocated in `block`. A use inside a loop or branch counts as a use by the loop or branch. For a tensor without
    uses, the operation is its `alloc`.
    """
    last: dict[Value, Op] = {}
    for op in block.ops:
        if op.name == "alloc" and isinstance(op.attrs["type"], RegisterType):
            last[op.results[0]] = op
        elif last:
            touched = (op, *(inner for b in op.blocks for inner in walk_block(b)))
            last |= {v: op for one in touched for v in one.operands if v in last}
    ends: dict[Op, list[Value]] = {}
    for value, op in last.items():
        ends.setdefault(op, []).append(value)
    return ends


# -- allocations and views ------------------------------------------------------------------------------------


def _flat(kind: TensorType) -> TensorType:
    """Return the type of a one-dimensional buffer that has room for all elements of a tensor of type `kind`."""
    return TensorType(kind.space, kind.dtype, (kind.room(),), role=kind.role)


def _alloc(low: LoopLowering, op: Op) -> None:
    """Lower `alloc` on a CPU, and record the result. For a tensor in memory, emit the allocation of memory of the
    worker. For a register tensor, emit the allocation of registers, or of scratch memory if registers cannot hold it.
    """
    kind, result = op.attrs["type"], op.results[0]
    if isinstance(kind, TensorType):
        kind = kind.mapped(low.expr)
        value = low.emit("alloc", type=TensorType("shared", kind.dtype, (kind.room(),))).results[0]
        value.name = result.name
        low.handles[result] = memory_of(value, kind)
        return
    low.handles[result] = _registers(low, kind, result)


def _registers(low: LoopLowering, kind: RegisterType, result: Value) -> Handle:
    """Emit the allocation of the register tensor `result` of type `kind`. Return it as `Tiles` or `Fragments` if it is
    an operand of an MMA atom that uses tile registers or vectors of small matrices, and as `Vectors` along the last
    dimension if not.

    Return it as scratch memory instead if no such layout fits, if the machine lacks the atom or has too few registers,
    or if the program has a view of the tensor.
    """
    spread = placement(kind, low.machine)
    operand = kind.distribution.operand if kind.distribution is not None else None
    name = result.name or "register"
    if result not in low.viewed:
        if operand is not None and low.machine is not None:
            atom_name, _, which = operand.rpartition(".")
            atom = low.machine.multiply_atom(atom_name)
            tile = tile_operand(atom, which)
            if tile is not None:
                count = spread.shape[0] // tile.rows * (spread.shape[1] // tile.columns)
                if not low.available(atom) or low.tiles + count > low.here.limits.tile_registers:
                    return low.scratch(kind.dtype, spread.shape, name)
                low.tiles += count
                return _tiles(low, kind, tile, spread.shape, name)
            fragment = fragment_operand(atom, which)
            if fragment is not None and spread.values <= low.here.limits.registers and low.available(atom):
                return _fragments(low, kind, fragment, spread.shape, name)
        vectors = as_vectors(spread) if spread.values <= VECTORS else None
        if vectors is not None and spread.threads * kind.dtype.numpy.itemsize <= 4 * low.vector_bytes:
            lanes, keys = vectors
            registers = {key: low.register(kind.dtype, lanes, name=name) for key in sorted(keys)}
            return Vectors(kind.dtype, spread.shape, lanes, registers)
    return low.scratch(kind.dtype, spread.shape, name)


def _tiles(low: LoopLowering, kind: RegisterType, tile: Any, shape: tuple[int, ...], name: str) -> Tiles:
    """Emit the allocation of tile registers for a matrix of `shape` elements, and return them as `Tiles`. `kind` has
    the element type. `tile` is the operand of an MMA atom that gives the rows and columns of one tile register. The
    names of the registers begin with `name`.
    """
    rows, columns = shape[0] // tile.rows, shape[1] // tile.columns
    registers = {
        (i, j): low.register(kind.dtype, tile.lanes, tile.values, name=name)
        for i in range(rows)
        for j in range(columns)
    }
    return Tiles(kind.dtype, (shape[0], shape[1]), tile, registers)


def _fragments(
    low: LoopLowering, kind: RegisterType, operand: RegisterOperand, shape: tuple[int, ...], name: str
) -> Fragments:
    """Emit the allocation of vector registers for a matrix of `shape` elements, and return them as `Fragments`. `kind`
    has the element type. `operand` is the operand of an MMA atom that gives the rows and columns of the small matrix in
    one register. The names of the registers begin with `name`.
    """
    rows, columns = shape[0] // operand.rows, shape[1] // operand.columns
    keys: list[tuple[int, ...]] = [(i, j) for i in range(rows) for j in range(columns)]
    registers = {key: low.register(kind.dtype, operand.lanes, name=name) for key in keys}
    return Fragments(kind.dtype, shape, operand.lanes, registers, operand)


def _view(low: LoopLowering, op: Op) -> None:
    """Lower `view` on a CPU: record its result as a PlacedView, with coordinates in the viewed tensor. Nothing is
    emitted. Raise an AssertionError if the viewed tensor is in registers.
    """
    base = low.memory(op.operands[0])
    shape = sizes(low.expr(e) for e in op.results[0].type.shape)
    over = tuple(low.axis(s.name, n) for s, n in zip(op.attrs["over"], shape, strict=True))
    with low.means(dict(zip(op.attrs["over"], over, strict=True))):
        places = tuple((low.expr(e), may_leave) for e, may_leave in op.attrs["at"])
    low.handles[op.results[0]] = PlacedView(base, base.dtype, shape, over, places)


def _bitcast(low: LoopLowering, op: Op) -> None:
    """Lower `bitcast` of a tensor in memory: emit it, and record its result as the same memory with another element
    type. Raise a ProgramError if the operand is a view.
    """
    base = low.memory(op.operands[0])
    if isinstance(base, PlacedView):
        raise ProgramError("bitcast of a view: bitcast the tensor, then view it")
    value = low.emit("bitcast", (base.buffer,), dtype=op.attrs["dtype"]).results[0]
    value.name = op.results[0].name
    low.handles[op.results[0]] = PlacedMemory(
        value, op.attrs["dtype"], base.shape, base.strides, base.swizzle, base.start
    )


RULES: dict[str, Rule] = {
    "alloc": _alloc,
    "view": _view,
    "bitcast": _bitcast,
    "let": let,
    "fill": elementwise.fill,
    "copy": elementwise.copy,
    "map": elementwise.map_,
    "broadcast": elementwise.broadcast,
    "convert_layout": elementwise.copy,
    "mma": mma.mma,
    "reduce": reduce.reduce,
    "scan": reduce.scan,
    "gather": indirect.gather,
    "scatter": indirect.scatter,
    "atomic": indirect.atomic,
    "for": control.for_,
    "tasks": control.tasks,
    "while": control.while_,
    "if": control.if_,
    "barrier": control.barrier,
    "edge": control.edge,
    "channel": control.channel,
    "acquire": control.acquire,
    "commit": control.ignore_handover,
    "wait": control.wait,
    "release": control.ignore_handover,
}
