"""The state of a lowering for waves of many lanes: what every rule of an operation is handed, and writes with."""

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
    """What names mean in the role that is written, and what goes on by itself at this point.

    `rules` say what writes an operation's loops; with `thrifty`, operations share scratch memory.
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
        """How many waves of a role do a collective operation together: half of them, where they take turns."""
        found = next((op for op in self.roles if op.attrs["name"] == role), None)
        if found is None:
            return self.group.waves
        (waves,) = numbers((found.attrs["waves"],), "waves")
        turns = any(op.attrs.get("overlap") == "pingpong" for b in found.blocks for op in walk_block(b))
        return waves // 2 if turns else waves

    # -- the walk ---------------------------------------------------------------------------------------------

    def block(self, block: Block, once: bool = False) -> None:
        """Every operation of a block; with `once`, one that is done where it stands, and not again."""
        self.between_lanes.block(block, once)

    def op(self, op: Op) -> None:
        """One operation."""
        around, self.between_lanes.current = self.between_lanes.current, op
        super().op(op)
        self.between_lanes.current = around

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        """What is written within happens only under a condition, which all lanes of a wave see alike."""
        with self.between_lanes.perhaps(), super().when(condition):
            yield

    def emit(self, name: str, operands: tuple[Value, ...] = (), blocks: tuple[Block, ...] = (), **attrs: Any) -> Op:
        """A loop operation at the end of the open block; lanes meet before it where they must."""
        self.between_lanes.note(name, operands)
        return super().emit(name, operands, blocks, **attrs)

    # -- what the workgroup has once ---------------------------------------------------------------------------

    def hoist(self, key: Any, type_: Any, name: str) -> Value:
        """Memory or barriers of the workgroup, made at the beginning; the same for the same key."""
        found = self.hoisted.get(key)
        if found is None:
            op = self.emitted("alloc", (), type=type_)
            found = self.hoisted[key] = op.results[0]
            found.name = self.fresh(name)
            self.top.ops.append(op)
        return found

    def room_for(self, key: Any, kind: TensorType) -> Value:
        """Scratch memory for an operation: its own by a key, or, where that is scarce, what others are done with."""
        if not self.thrifty:
            return self.hoist(key, kind, "scratch")
        if self._scratch[0] is not self.between_lanes.current:
            self._scratch = self.between_lanes.current, []
        own = self._scratch[1]
        if key not in own:
            own.append(key)
        self.meet()  # those before have read what is there
        found = self.hoist(("scratch", own.index(key), kind.dtype, self.role), kind, "scratch")
        if found.type.cosize() < kind.cosize():
            op = next(op for op in self.top.ops if op.results == (found,))
            op.attrs["type"] = found.type = kind
        return found

    def barriers(self, key: Any, count: int, arrivals: int, name: str) -> Value:
        """Barriers of the workgroup."""
        return self.hoist(key, BarrierType(as_expr(count), as_expr(arrivals)), name)

    def counter(self, name: str, start: Expr | int = 0) -> Value:
        """A number of the wave's own, from the beginning of the role on."""
        with self.writing(self.head):
            found = self.register(i32, name=name)
            self.count_on(found, as_expr(start), fresh=True)
        return found

    def counters_of(self, channel: Op) -> dict[str, Count]:
        """The counters of a channel in this role, by what they count."""
        return self._counters.setdefault((self.role, channel), {})

    def count_on(self, counter: Value, more: Expr, fresh: bool = False) -> None:
        """The counter grows, or begins."""
        number = Formula.cast(i32, Formula("index", (), more))
        formula = number if fresh else Formula("add", (Formula.operand(1), number))
        self.emit("compute", (counter,) if fresh else (counter, counter), formula=formula)

    def value_of(self, counter: Value, name: str, most: int = (1 << 30) - 1) -> Symbol:
        """What the counter says now, as a name for addresses."""
        found = self.symbol(name, 0, most)
        self.emit("read", (counter,), symbol=found)
        return found

    # -- fragments ---------------------------------------------------------------------------------------------

    def fragment(self, dtype: DType, values: int, name: str | None = None) -> Value:
        """A fresh fragment."""
        kind = FragmentType(dtype, (as_expr(self.lanes), as_expr(values)))
        value = self.emit("alloc", type=kind).results[0]
        value.name = None if name is None else self.fresh(name)
        return value

    def axes(self, values: int) -> tuple[Symbol, Symbol]:
        """Names for lane and value."""
        return index(self.fresh("l"), self.lanes), index(self.fresh("v"), values)

    def meet(self) -> None:
        """The waves of the group meet; what was stored is there for what goes on by itself."""
        self.make_visible()
        if self.group.waves > 1:
            self.emit("barrier", id=self.group.barrier, waves=as_expr(self.group.waves))
            self.between_lanes.touched.clear()  # the barrier is theirs too
        else:
            self.between_lanes.meet()

    def make_visible(self) -> None:
        """A fence, where something that goes on by itself reads what waves stored since the last one."""
        if self.dirty & self.asynchronous:
            self.emit("fence")
        self.dirty.clear()

    def written(self, memory: PlacedMemory | PlacedView) -> None:
        """Waves stored to shared memory."""
        found = self.origins.get(memory.root.buffer)
        if found is not None:
            self.dirty.add(found)

    def leaving_channels(self) -> set[Value]:
        """The channels from whose stages copies leave by themselves, in this role."""
        ops = next((list(walk_block(op.blocks[0])) for op in self.roles if op.attrs["name"] == self.role), None)
        found = set()
        for op in self.program.walk() if ops is None else ops:
            if op.name == "copy" and "by" in op.attrs and box_copy(self.target, op.attrs["by"]):
                made = self.chain.made.get(self.chain.root(op.operands[0]))
                if made is not None and made.name == "wait":
                    found.add(made.operands[0])
        return found

    @contextmanager
    def one_wave(self, groups: int = 1) -> Iterator[None]:
        """What is written within is done by the first wave of the group, or of each of so many that it consists of."""
        if self.group.waves == groups:
            yield
            return
        with self.when(self.group.wave % (self.group.waves // groups) < 1):
            yield
