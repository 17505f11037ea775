"""The state of a lowering for waves of many lanes, which every rule of an operation is handed and emits with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tilewright.algebra.expr import Expr, Symbol, as_expr, index
from tilewright.check.cluster import cluster_of, shared_channels
from tilewright.check.frames import frames_of
from tilewright.errors import ProgramError
from tilewright.ir.core import Block, Op, Program, Value, walk_block
from tilewright.ir.dtypes import DType, i32
from tilewright.ir.formula import Formula
from tilewright.ir.loop_types import BarrierType, FragmentType
from tilewright.ir.tensors import TensorType, numbers
from tilewright.machine import Machine
from tilewright.passes.loop_lowering import LoopLowering, Rule
from tilewright.passes.places import PlacedMemory, PlacedView
from tilewright.passes.waves.asynchronous import box_copy, filled_by_lanes, read_by_itself
from tilewright.passes.waves.flying import Flying
from tilewright.passes.waves.groups import Turns, WaveGroup
from tilewright.passes.waves.lanes import LaneMeetings
from tilewright.passes.waves.rings import BarrierRing, Count

EVERYONE = "all"


class Waves(LoopLowering):
    """The state of the role that is emitted: meanings of symbols, handles of values, and asynchronous work under way.

    `rules` maps the name of an operation to the function that emits its loops; with `thrifty`, operations share scratch
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
        self.flying = Flying(self)
        self.turns: Turns | None = None
        self.between_lanes = LaneMeetings(self)
        self.dirty: set[Value] = set()
        self.origins: dict[Value, Value] = {}  # shared memory of the workgroup -> what the program allocates there
        self.rings: dict[Op, BarrierRing] = {}
        self._counters: dict[tuple[str, Op], dict[str, Count]] = {}
        self.leaving = False
        self.asynchronous = read_by_itself(program, self.chain, machine)
        self.landing = filled_by_lanes(program, self.chain, machine)
        self.cluster = cluster_of(program)
        self.rank: Expr = as_expr(0)
        self.shared_channels = shared_channels(program)
        self.role = EVERYONE
        counted = program.record("waves")
        self.alone = 1 if counted is None else numbers((counted.attrs["count"],), "waves")[0]
        self.frames = frames_of(program, self.chain, machine)
        self.group = WaveGroup(1, as_expr(0), as_expr(0), as_expr(0))

    def group_of(self, role: str) -> int:
        """Return the number of waves of a role that do a collective operation together: half of them with ping-pong."""
        role_op = next((op for op in self.roles if op.attrs["name"] == role), None)
        if role_op is None:
            return self.group.waves
        (waves,) = numbers((role_op.attrs["waves"],), "waves")
        turns = any(op.attrs.get("overlap") == "pingpong" for b in role_op.blocks for op in walk_block(b))
        return waves // 2 if turns else waves

    # -- the walk ---------------------------------------------------------------------------------------------

    def block(self, block: Block, once: bool = False) -> None:
        """Lower every operation of a block; with `once`, the block runs exactly once."""
        self.between_lanes.block(block, once)

    def op(self, op: Op) -> None:
        """Lower one operation."""
        around, self.between_lanes.current = self.between_lanes.current, op
        super().op(op)
        self.between_lanes.current = around

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        """Emit what is written within under a condition that all lanes of a wave share."""
        with self.between_lanes.perhaps(), super().when(condition):
            yield

    def emit(self, name: str, operands: tuple[Value, ...] = (), blocks: tuple[Block, ...] = (), **attrs: Any) -> Op:
        """Append a loop operation to the open block and return it; lanes synchronise before it if they must."""
        self.between_lanes.note(name, operands)
        return super().emit(name, operands, blocks, **attrs)

    # -- what the workgroup has once ---------------------------------------------------------------------------

    def hoist(self, key: Any, type_: Any, name: str) -> Value:
        """Return memory or barriers of the workgroup, allocated at the start; the same for the same key."""
        hoisted = self.hoisted.get(key)
        if hoisted is None:
            op = self.emitted("alloc", (), type=type_)
            hoisted = self.hoisted[key] = op.results[0]
            hoisted.name = self.fresh(name)
            self.top.ops.append(op)
        return hoisted

    def room_for(self, key: Any, kind: TensorType) -> Value:
        """Return scratch memory for an operation: its own, or, if `thrifty`, memory that others are done with."""
        if not self.thrifty:
            return self.hoist(key, kind, "scratch")
        if self._scratch[0] is not self.between_lanes.current:
            self._scratch = self.between_lanes.current, []
        keys = self._scratch[1]
        if key not in keys:
            keys.append(key)
        self.meet()  # those before have read what is there
        memory = self.hoist(("scratch", keys.index(key), kind.dtype, self.role), kind, "scratch")
        if memory.type.cosize() < kind.cosize():
            op = next(op for op in self.top.ops if op.results == (memory,))
            op.attrs["type"] = memory.type = kind
        return memory

    def barriers(self, key: Any, count: int, arrivals: int, name: str) -> Value:
        """Return `count` barriers of the workgroup, each for `arrivals` arrivals."""
        return self.hoist(key, BarrierType(as_expr(count), as_expr(arrivals)), name)

    def counter(self, name: str, start: Expr | int = 0) -> Value:
        """Return a register of the wave that is set to `start` at the beginning of the role."""
        with self.writing(self.head):
            register = self.register(i32, name=name)
            self.count_on(register, as_expr(start), fresh=True)
        return register

    def counters_of(self, channel: Op) -> dict[str, Count]:
        """Return the counters of a channel in this role, by what they count (acquire, commit, wait, release)."""
        return self._counters.setdefault((self.role, channel), {})

    def count_on(self, counter: Value, more: Expr, fresh: bool = False) -> None:
        """Emit the addition of `more` to a counter; with `fresh`, the counter is set to `more`."""
        number = Formula.cast(i32, Formula("index", (), more))
        formula = number if fresh else Formula("add", (Formula.operand(1), number))
        self.emit("compute", (counter,) if fresh else (counter, counter), formula=formula)

    def value_of(self, counter: Value, name: str, most: int = (1 << 30) - 1) -> Symbol:
        """Return a symbol for the counter's current value, from 0 to `most`."""
        value = self.symbol(name, 0, most)
        self.emit("read", (counter,), symbol=value)
        return value

    # -- fragments ---------------------------------------------------------------------------------------------

    def fragment(self, dtype: DType, values: int, name: str | None = None) -> Value:
        """Return a fresh fragment with `values` values per lane."""
        kind = FragmentType(dtype, (as_expr(self.lanes), as_expr(values)))
        value = self.emit("alloc", type=kind).results[0]
        value.name = None if name is None else self.fresh(name)
        return value

    def axes(self, values: int) -> tuple[Symbol, Symbol]:
        """Return symbols for (lane, value)."""
        return index(self.fresh("l"), self.lanes), index(self.fresh("v"), values)

    def meet(self) -> None:
        """Emit a barrier of the group's waves; what they stored is visible to asynchronous copies and MMAs after it."""
        self.make_visible()
        if self.group.waves > 1:
            self.emit("barrier", id=self.group.barrier, waves=as_expr(self.group.waves))
            self.between_lanes.touched.clear()  # the barrier is theirs too
        else:
            self.between_lanes.meet()

    def make_visible(self) -> None:
        """Emit a fence if asynchronous work reads shared memory that waves stored to since the last fence."""
        if self.dirty & self.asynchronous:
            self.emit("fence")
        self.dirty.clear()

    def written(self, memory: PlacedMemory | PlacedView) -> None:
        """Note that waves stored to shared memory."""
        allocation = self.origins.get(memory.root.buffer)
        if allocation is not None:
            self.dirty.add(allocation)

    def leaving_channels(self) -> set[Value]:
        """Return the channels of this role from whose stages bulk copies leave."""
        ops = next((list(walk_block(op.blocks[0])) for op in self.roles if op.attrs["name"] == self.role), None)
        channels = set()
        for op in self.program.walk() if ops is None else ops:
            if op.name == "copy" and "by" in op.attrs and box_copy(self.target, op.attrs["by"]):
                maker = self.chain.made.get(self.chain.root(op.operands[0]))
                if maker is not None and maker.name == "wait":
                    channels.add(maker.operands[0])
        return channels

    @contextmanager
    def one_wave(self, groups: int = 1) -> Iterator[None]:
        """Emit what is written within for the first wave of the group only, or of each of `groups` parts of the
        group.
        """
        if self.group.waves == groups:
            yield
            return
        with self.when(self.group.wave % (self.group.waves // groups) < 1):
            yield
