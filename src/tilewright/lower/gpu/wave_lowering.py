"""The state of a lowering for waves of several lanes; every lowering rule gets it and emits operations through it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tilewright.algebra.expr import Expr, Symbol, as_expr, index
from tilewright.analysis.flat_memory import PlacedMemory, PlacedView
from tilewright.analysis.thread_layout import frames_of
from tilewright.check.cluster import cluster_of, shared_channels
from tilewright.errors import ProgramError
from tilewright.ir.core import Block, Op, Program, Value, walk_block
from tilewright.ir.dtypes import DType, i32
from tilewright.ir.formula import Formula
from tilewright.ir.loop_types import BarrierType, FragmentType
from tilewright.ir.tensors import TensorType, numbers
from tilewright.lower.gpu.asynchronous import is_bulk_copy, lane_filled_channels, read_asynchronously
from tilewright.lower.gpu.lane_sync import WaveSync
from tilewright.lower.gpu.mmas_in_flight import InFlightMmas
from tilewright.lower.gpu.rings import BarrierRing, RingPosition
from tilewright.lower.gpu.wave_groups import OrderedGroups, WaveGroup
from tilewright.lower.loop_lowering import LoopLowering, Rule
from tilewright.machine import Machine

EVERYONE = "all"


class WaveLowering(LoopLowering):
    """The lowering of a block program for waves of several lanes. It has the meanings of symbols, the registers or
    memory of each value, and the asynchronous work in flight in the current role.

    `rules` maps the name of a block operation to the function that lowers it; with `thrifty`, operations share scratch
    memory.
    """

    def __init__(self, program: Program, machine: Machine, rules: Mapping[str, Rule], thrifty: bool = False):
        super().__init__(program, machine, machine, rules)
        self.thrifty = thrifty
        self._scratch: tuple[Op | None, list[Any]] = (None, [])
        if machine.lanes is None:
            raise ProgramError(f"{machine.name} has no waves of many lanes")
        self.lanes = machine.lanes
        self.target = machine
        self.roles = [op for op in program.body.ops if op.name == "role"]
        self.top = Block(())
        self.head = Block(())
        self.hoisted: dict[Any, Value] = {}
        self.mmas_in_flight = InFlightMmas(self)
        self.turns: OrderedGroups | None = None
        self.between_lanes = WaveSync(self)
        self.dirty: set[Value] = set()
        self.origins: dict[Value, Value] = {}  # shared buffer -> the program's allocation in it
        self.rings: dict[Op, BarrierRing] = {}
        self._counters: dict[tuple[str, Op], dict[str, RingPosition]] = {}
        self.leaving = False
        self.asynchronous = read_asynchronously(program, self.chain, machine)
        self.landing = lane_filled_channels(program, self.chain, machine)
        self.cluster = cluster_of(program)
        self.rank: Expr = as_expr(0)
        self.shared_channels = shared_channels(program)
        self.role = EVERYONE
        counted = program.record("waves")
        self.alone = 1 if counted is None else numbers((counted.attrs["count"],), "waves")[0]
        self.frames = frames_of(program, self.chain, machine)
        self.group = WaveGroup(1, as_expr(0), as_expr(0), as_expr(0))

    def group_of(self, role: str) -> int:
        """Return the number of waves of the role named `role` that do a collective operation together: all of them, or
        half of them with ping-pong. Return the number of waves of the current group if the program has no role of this
        name.
        """
        role_op = next((op for op in self.roles if op.attrs["name"] == role), None)
        if role_op is None:
            return self.group.waves
        (waves,) = numbers((role_op.attrs["waves"],), "waves")
        is_pingpong = any(op.attrs.get("overlap") == "pingpong" for b in role_op.blocks for op in walk_block(b))
        return waves // 2 if is_pingpong else waves

    # -- the walk ---------------------------------------------------------------------------------------------

    def block(self, block: Block, once: bool = False) -> None:
        """Lower every operation of `block`. The lanes of a wave synchronise before an operation that depends on memory
        accesses of other lanes. `once` says that the block runs exactly once; otherwise it may be skipped or repeated.
        """
        self.between_lanes.block(block, once)

    def op(self, op: Op) -> None:
        """Lower the block operation `op` by its rule. While the rule emits loop operations, `op` is the current
        operation of the lane synchronisation (`between_lanes.current`).
        """
        outer_op, self.between_lanes.current = self.between_lanes.current, op
        super().op(op)
        self.between_lanes.current = outer_op

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        """Emit the operations written within this context inside an `if` operation. `condition` must have the same
        value in all lanes of a wave.
        """
        with self.between_lanes.conditional(), super().when(condition):
            yield

    def emit(self, name: str, operands: tuple[Value, ...] = (), blocks: tuple[Block, ...] = (), **attrs: Any) -> Op:
        """Append a new loop operation `name`, with these operands, nested blocks and attributes, to the block being
        written, and return it. Emit a synchronisation of the wave's lanes first if the operation depends on memory
        accesses of other lanes. Attributes that are None are left out.
        """
        self.between_lanes.before_emit(name, operands)
        return super().emit(name, operands, blocks, **attrs)

    # -- allocations of the workgroup ----------------------------------------------------------------------------

    def hoist(self, key: Any, type_: Any, name: str) -> Value:
        """Return a value of type `type_` (shared memory or barriers) that is allocated for the workgroup at the start
        of the program. Its name begins with `name`. Calls with the same `key` return the same value.
        """
        hoisted = self.hoisted.get(key)
        if hoisted is None:
            op = self.emitted("alloc", (), type=type_)
            hoisted = self.hoisted[key] = op.results[0]
            hoisted.name = self.fresh(name)
            self.top.ops.append(op)
        return hoisted

    def scratch_buffer(self, key: Any, kind: TensorType) -> Value:
        """Return shared scratch memory of type `kind` for the current operation, allocated at the start of the program.
        Calls with the same `key` in one operation return the same memory.

        With `self.thrifty`, all operations of a role share: the n-th key of an operation stands for the n-th memory of
        this element type, which grows to the largest `kind`. A barrier of the waves is then emitted at every call.
        """
        if not self.thrifty:
            return self.hoist(key, kind, "scratch")
        if self._scratch[0] is not self.between_lanes.current:
            self._scratch = self.between_lanes.current, []
        keys = self._scratch[1]
        if key not in keys:
            keys.append(key)
        self.sync_waves()  # earlier operations have read their elements
        memory = self.hoist(("scratch", keys.index(key), kind.dtype, self.role), kind, "scratch")
        if memory.type.cosize() < kind.cosize():
            op = next(op for op in self.top.ops if op.results == (memory,))
            op.attrs["type"] = memory.type = kind
        return memory

    def barriers(self, key: Any, count: int, arrivals: int, name: str) -> Value:
        """Return an array of `count` barriers of the workgroup, each for `arrivals` arrivals, allocated at the start of
        the program. Its name begins with `name`. Calls with the same `key` return the same array.
        """
        return self.hoist(key, BarrierType(as_expr(count), as_expr(arrivals)), name)

    def new_counter(self, name: str, start: Expr | int = 0) -> Value:
        """Return a new register of the wave for an i32 counter, named after `name`. Code at the beginning of the role
        sets it to `start`.
        """
        with self.writing(self.head):
            register = self.register(i32, name=name)
            self.add_to_counter(register, as_expr(start), fresh=True)
        return register

    def channel_positions(self, channel: Op) -> dict[str, RingPosition]:
        """Return the positions that are recorded for the operation `channel` in the current role: {"acquire", "commit",
        "wait" or "release": the wave's RingPosition}. The dictionary is empty at first, and the caller fills it.
        """
        return self._counters.setdefault((self.role, channel), {})

    def add_to_counter(self, counter: Value, amount: Expr, fresh: bool = False) -> None:
        """Emit the addition of `amount` to the register `counter`, or with `fresh` the assignment counter =
        `amount`.
        """
        number = Formula.cast(i32, Formula("index", (), amount))
        formula = number if fresh else Formula("add", (Formula.operand(1), number))
        self.emit("compute", (counter,) if fresh else (counter, counter), formula=formula)

    def read_counter(self, counter: Value, name: str, most: int = (1 << 30) - 1) -> Symbol:
        """Emit a read of the register `counter`, and return a new symbol for its value. The symbol is named after
        `name` and has values from 0 to `most`.
        """
        value = self.symbol(name, 0, most)
        self.emit("read", (counter,), symbol=value)
        return value

    # -- fragments ---------------------------------------------------------------------------------------------

    def fragment(self, dtype: DType, values: int, name: str | None = None) -> Value:
        """Emit the allocation of a fragment (registers of the wave with `values` values of type `dtype` per lane), and
        return it. Its name begins with `name` (None: no name).
        """
        kind = FragmentType(dtype, (as_expr(self.lanes), as_expr(values)))
        value = self.emit("alloc", type=kind).results[0]
        value.name = None if name is None else self.fresh(name)
        return value

    def axes(self, values: int) -> tuple[Symbol, Symbol]:
        """Return two new symbols (lane, value): `lane` from 0 to the number of lanes of a wave - 1, and `value` from 0
        to `values` - 1.
        """
        return index(self.fresh("l"), self.lanes), index(self.fresh("v"), values)

    def sync_waves(self) -> None:
        """Emit a barrier of the current group's waves. If the group is a single wave, emit a synchronisation of its
        lanes instead, if lanes have accessed memory or waited since the last one. A fence comes first if asynchronous
        copies or MMAs read elements that the waves stored.
        """
        self.make_visible()
        if self.group.waves > 1:
            self.emit("barrier", id=self.group.barrier, waves=as_expr(self.group.waves))
            self.between_lanes.touched.clear()  # the barrier synchronises lanes, too
        else:
            self.between_lanes.sync()

    def make_visible(self) -> None:
        """Emit a fence if the waves stored, since the last call, to shared memory that asynchronous copies or MMAs
        read. Forget the recorded stores in any case.
        """
        if self.dirty & self.asynchronous:
            self.emit("fence")
        self.dirty.clear()

    def note_stored(self, memory: PlacedMemory | PlacedView) -> None:
        """Record that waves stored to `memory`, so that `make_visible` emits a fence before asynchronous copies or MMAs
        read it. Nothing is emitted.
        """
        allocation = self.origins.get(memory.root.buffer)
        if allocation is not None:
            self.dirty.add(allocation)

    def copied_out_channels(self) -> set[Value]:
        """Return the channels that bulk copies of the current role read: the source of such a copy is a stage of the
        channel. If the program has no roles, all of its bulk copies count.
        """
        ops = next((list(walk_block(op.blocks[0])) for op in self.roles if op.attrs["name"] == self.role), None)
        channels = set()
        for op in self.program.walk() if ops is None else ops:
            if op.name == "copy" and "by" in op.attrs and is_bulk_copy(self.target, op.attrs["by"]):
                maker = self.chain.makers.get(self.chain.root(op.operands[0]))
                if maker is not None and maker.name == "wait":
                    channels.add(maker.operands[0])
        return channels

    @contextmanager
    def one_wave(self, groups: int = 1) -> Iterator[None]:
        """Emit the operations written within this context under a condition that holds only in the first wave of each
        group, if the current group of waves is divided into `groups` equal groups. Emit no condition if each of these
        is a single wave.
        """
        if self.group.waves == groups:
            yield
            return
        with self.when(self.group.wave % (self.group.waves // groups) < 1):
            yield
