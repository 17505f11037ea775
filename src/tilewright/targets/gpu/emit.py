"""From a loop program for waves of many lanes to LLVM IR: one kernel, as one lane executes it.

A fragment's values are registers of the lane; the lane's number replaces the axis over lanes. Steps that one lane does
for its wave (barrier arrivals, bulk copies) are done by the first lane, consecutive ones under one branch.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr
from tilewright.algebra.expr_rules import maximum
from tilewright.algebra.expr_use import Substitution
from tilewright.analysis.flat_memory import Size, sizes
from tilewright.check.cluster import cluster_of
from tilewright.codegen.text import element, literal
from tilewright.errors import ProgramError
from tilewright.ir import dtypes
from tilewright.ir.attrs import Range
from tilewright.ir.binding import open_parameters
from tilewright.ir.core import Block, Op, Program, Value, building, walk_block
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.loop_types import BarrierType, FragmentType, VectorType
from tilewright.ir.tensors import TensorType, numbers
from tilewright.machine import Machine
from tilewright.targets.gpu import dealing, memory
from tilewright.targets.gpu.dialect import Dialect
from tilewright.targets.gpu.formulas import LaneFormula, is_coarse
from tilewright.targets.gpu.writer import MOST, LaneWriter

SINGLE = ("arrive", "expect", "copy_in", "copy_out", "seal", "drain")
"""Operations that one lane executes for its wave."""
ALIGNMENT = 1024


@dataclass(frozen=True)
class Parameter:
    """An argument of the kernel after the tensors' pointers: what the host derives from tensor number `tensor`, a
    tensor map."""

    tensor: int
    what: Any


@dataclass(frozen=True)
class Emitted:
    """A kernel's LLVM text, and what a launch must provide."""

    text: str
    name: str
    threads: int
    shared_bytes: int
    tasks: Size
    """The number of tasks; an expression if parameters are open."""
    parameters: tuple[Parameter, ...]
    written: tuple[bool, ...]
    """For each tensor, whether the kernel writes to it."""
    cluster: int = 1
    """The number of workgroups in a cluster."""
    programmatic: bool = False
    """True for programmatic dependent launch: it may begin while the launch before it ends."""
    alone: bool = False
    """True if the grid has one workgroup for each task, which the hardware schedules."""
    counters: int = 0
    """The number of 32-bit counters in global memory, 0 before and after a launch; their pointer follows the sizes."""
    sizes: tuple[str, ...] = ()
    """The open parameters, 32-bit arguments after the tensors' pointers."""


class Emitter:
    """One walk over a loop program; it holds where registers and memory are, and the text so far."""

    def __init__(self, program: Program, machine: Machine, dialect: Dialect):
        self.program, self.machine, self.dialect = program, machine, dialect
        if machine.lanes is None:
            raise ProgramError(f"{machine.name} has no waves of many lanes")
        self.lanes = machine.lanes
        self.w = LaneWriter()
        self.w.instruction = lambda name, values: dialect.function(self, name, values, "full")
        self.offsets: dict[Value, int] = {}
        self.arrivals: list[tuple[int, int]] = []
        self.registers: dict[Value, list[str]] = {}
        self.pointers = {arg: f"%t{i}" for i, arg in enumerate(program.args)}
        self.parameters: list[Parameter] = []
        self.shared_bytes = 0
        self.tasks: Expr = as_expr(1)
        self.pending: list[Op] = []
        self.threads = 0
        self.cluster = cluster_of(program)
        self.programmatic = program.record("launch") is not None
        self.lane = self.first_lane = self.shared = self.rank = self.wave = ""
        self.counters = "%counters"
        self.dynamic_tasks: dict[Op, tuple[dealing.DynamicTasks, bool]] = {}
        self.sizes = open_parameters(program)
        for i, s in enumerate(self.sizes):
            if s.hi > MOST:
                raise ProgramError(
                    f"{program.name}: {s.name} may be {s.hi}; an open parameter of a kernel is at most {MOST}, a "
                    "number of 32 bits"
                )
            self.w.names[s] = f"%n{i}"

    # -- the kernel -------------------------------------------------------------------------------------------

    def run(self) -> Emitted:
        """Emit the whole kernel, and return its text with all that a launch must provide. An emitter can run only once.
        Raise ProgramError if an operation other than an allocation is outside of roles, or if the machine has too few
        registers or too little shared memory.
        """
        w, d = self.w, self.dialect
        roles = [op for op in self.program.body.ops if op.name == "role"]
        for op in self.program.body.ops:
            if op.name not in ("alloc", "role"):
                raise ProgramError(f"{op.name} stands outside of roles; a kernel's work is done by its roles", op.loc)
        allocs = [op for op in self.program.body.ops if op.name == "alloc"]
        for op in sorted(allocs, key=lambda op: isinstance(op.attrs["type"], BarrierType)):  # barriers last:
            self.reserve(op)  # between tensors, each would take up the tensors' alignment
        self.dynamic_tasks = dealing.find_dynamic_tasks(roles)
        for deal, leads in self.dynamic_tasks.values():
            if leads:
                dealing.reserve(self, deal)
        waves = [numbers((op.attrs["waves"],), "waves")[0] for op in roles]
        wave_alignment = d.wave_group if any(self._is_aligned(op) for op in roles) else 1
        starts, total = [], 0
        for size in waves:
            starts.append(total)
            total += -(-size // wave_alignment) * wave_alignment
        self.threads = total * self.lanes
        if any("registers" in op.attrs for op in roles):
            counts = [
                numbers((op.attrs["registers"],), "registers")[0] if "registers" in op.attrs else None for op in roles
            ]
            role_threads = [-(-size // wave_alignment) * wave_alignment * self.lanes for size in waves]
            d.check_registers(list(zip(role_threads, counts, strict=True)))
        thread = d.thread(self)
        self.lane = w.value(f"and i32 {thread}, {self.lanes - 1}")
        self.first_lane = w.value(f"icmp eq i32 {self.lane}, 0")
        wave = d.uniform(self, w.value(f"udiv i32 {thread}, {self.lanes}"))
        self.shared = w.value("ptrtoint ptr addrspace(3) @shared to i32")
        d.begin(self, self.arrivals)
        self.rank = d.rank(self) if self.cluster > 1 else "0"
        self._branch(list(zip(roles, starts, waves, strict=True)), wave, wave_alignment)
        if self.cluster > 1:
            d.sync_cluster_at_end(self)
        return Emitted(
            d.module(self),
            self.program.name,
            self.threads,
            self.shared_bytes,
            sizes((self.tasks,))[0],
            tuple(self.parameters),
            tuple(arg.type.role != "in" for arg in self.program.args),
            self.cluster,
            self.programmatic,
            self.waits_for_memory and not self.dynamic_tasks,
            self.counted,
            tuple(s.name for s in self.sizes),
        )

    @property
    def counted(self) -> int:
        """The number of counters of dynamic tasks that the kernel has in global memory."""
        return len({deal.counter for deal, _ in self.dynamic_tasks.values()})

    @property
    def waits_for_memory(self) -> bool:
        """True if the kernel has one role, no MMA, and no bulk copies to shared memory. It is then bound by memory and
        needs many loads in flight.
        """
        ops = list(self.program.walk())
        return not any(op.name in ("atom", "copy_in") for op in ops) and sum(op.name == "role" for op in ops) == 1

    def _is_aligned(self, role: Op) -> bool:
        """True if `role` must begin at a multiple of the machine's wave group (4 waves in a warpgroup). This is so if
        it sets its number of registers, or if several waves execute one of its MMAs together.
        """
        inside = [op for block in role.blocks for op in walk_block(block)]
        atoms = [self.machine.multiply_atom(op.attrs["atom"]) for op in inside if op.name == "atom"]
        return "registers" in role.attrs or any(atom.c.lanes > self.lanes for atom in atoms)

    def _branch(self, roles: list[tuple[Op, int, int]], wave: str, wave_alignment: int) -> None:
        """Emit a chain of branches that sends each wave to its role. `roles` is [(role operation, number of its first
        wave, number of its waves)]. `wave` is the number of the wave in the workgroup, an LLVM value. Each role
        occupies a multiple of `wave_alignment` waves; the additional waves do nothing.
        """
        if not roles:
            return
        (op, start, size), *others = roles
        room = -(-size // wave_alignment) * wave_alignment
        own_wave = self.w.value(f"sub i32 {wave}, {start}")
        is_in_role = self.w.value(f"icmp ult i32 {own_wave}, {room}")

        def role() -> None:
            """Emit the code of the first role in `roles`: the change of its number of registers, the wait for the
            previous launch (if launches may overlap), and its body.
            """
            if "registers" in op.attrs:
                (count,) = numbers((op.attrs["registers"],), "registers")
                self.dialect.registers(self, count, self.threads)
            if self.programmatic:  # the code before it accesses shared memory only
                self.dialect.wait_for_previous_launch(self, self.waits_for_memory)
            if room == size:
                self._role(op, own_wave)
                return
            with self.w.when(self.w.value(f"icmp ult i32 {own_wave}, {size}")):
                self._role(op, own_wave)

        self.w.either(is_in_role, role, lambda: self._branch(others, wave, wave_alignment))

    def _role(self, op: Op, wave: str) -> None:
        """Emit the body of the role `op`. Its first axis gets the value `wave`, the number of the wave in the role. Its
        second axis gets the number of the workgroup in the cluster. Set `self.wave`.
        """
        self.wave = wave
        numbers_of_axes = (wave, self.rank)
        self.w.names |= dict(zip(op.attrs.get("over", ()), numbers_of_axes, strict=False))
        self._within(op.blocks)

    # -- blocks -----------------------------------------------------------------------------------------------

    def body(self, block: Block) -> None:
        """Emit all operations of `block`, in order. Consecutive operations in SINGLE, which one lane executes for its
        wave, are emitted under one branch. Allocations, symbol definitions and computations of scalars do not interrupt
        them, and are emitted before them.
        """
        for op in block.ops:
            scalar = op.name in ("read", "alloc", "let") or (
                op.name in ("compute", "fill") and not isinstance(op.operands[0].type, FragmentType)
            )
            if op.name in SINGLE:
                self.pending.append(op)
                continue
            if not scalar:
                self.flush()
            getattr(self, f"_{op.name}")(op)
            if op.name in ("for", "while", "tasks"):
                self._keep(op)
        self.flush()

    def flush(self) -> None:
        """Emit the operations in `self.pending` under one branch, which the first lane of the wave takes, and clear the
        list. Do nothing if the list is empty.
        """
        if not self.pending:
            return
        steps, self.pending = self.pending, []
        with self.w.when(self.first_lane):
            for op in steps:
                getattr(self, f"_{op.name}")(op)

    def _within(self, blocks: tuple[Block, ...]) -> None:
        """Emit all operations of `blocks`, one block after another."""
        for block in blocks:
            self.body(block)

    def _for(self, op: Op) -> None:
        """Emit a `for` operation: nested loops over its ranges, of which the first is the outermost, around
        its blocks.
        """
        self._nest(op, list(op.attrs["ranges"]))

    def _keep(self, loop: Op) -> None:
        """Emit a use of the registers of A that the MMAs of `loop` read and that no operation of the loop writes. The
        registers then stay allocated until the loop ends. The use is emitted after the loop; nothing is emitted if
        there are no such registers.
        """
        inner_ops = [op for block in loop.blocks for op in walk_block(block)]
        changed = {v for op in inner_ops for v in (*op.results, *op.operands[:1])}
        operands = dict.fromkeys(op.operands[1] for op in inner_ops if op.name == "atom" and "a" not in op.attrs)
        unchanged = tuple(v for v in operands if v not in changed)
        if unchanged:
            self.dialect.keep_registers(self, unchanged)

    def _nest(self, op: Op, ranges: list[Range]) -> None:
        """Emit nested loops over `ranges`, of which the first is the outermost, around the blocks of the `for`
        operation `op`. Without ranges, emit only the blocks.
        """
        if not ranges:
            self._within(op.blocks)
            return
        r = ranges[0]
        with self.w.loop(self.w.number(r.lo), self.w.number(r.hi), str(r.step)) as number:
            self.w.names[r.symbol] = number
            self._nest(op, ranges[1:])

    def _tasks(self, op: Op) -> None:
        """Emit the loop in which a workgroup executes its tasks of the operation `op`.

        If `op` is in `self.dynamic_tasks`, the next task number is drawn from a counter at run time. Otherwise, if the
        attribute `schedule` is "contiguous", a workgroup executes a contiguous range of tasks. Otherwise it executes
        every n-th task, where n is the number of workgroups. If `op` has the attribute `turn`, which is 0 or 1
        (ping-pong), the loop executes only every second of these tasks, beginning with number `turn`.

        `self.tasks` becomes the maximum of its value and the number of tasks. Raise ProgramError if this number depends
        on symbols other than open sizes.
        """
        count = dealing.count_of(op)
        unknown = sorted(s.name for s in count.symbols - set(self.sizes))
        if unknown:
            raise ProgramError(
                f"tasks: how many there are, {count}, depends on {', '.join(unknown)}; a launch must know it", op.loc
            )
        self.tasks = maximum(self.tasks, count)
        if op in self.dynamic_tasks:
            deal, leads = self.dynamic_tasks[op]
            with dealing.task_loop(self, deal, leads, self.wave) as number:
                self._task(op, number)
            return
        w = self.w
        worker, workers = self.dialect.worker(self), self.dialect.workers(self)
        total = w.number(count)
        first, step, last = worker, workers, total
        if op.attrs.get("schedule") == "contiguous":
            more = w.value(f"add i32 {workers}, {w.number(count - 1)}")
            per_worker = w.value(f"udiv i32 {more}, {workers}")
            first, step = w.value(f"mul i32 {worker}, {per_worker}"), "1"
            end = w.value(f"add i32 {first}, {per_worker}")
            w.declare("i32 @llvm.smin.i32(i32, i32)")
            last = w.value(f"call i32 @llvm.smin.i32(i32 {end}, i32 {total})")
        if "turn" in op.attrs:
            skipped = w.value(f"mul i32 {w.number(op.attrs['turn'])}, {step}")
            first, step = w.value(f"add i32 {first}, {skipped}"), w.value(f"mul i32 {step}, 2")
        with w.loop(first, last, step) as number:
            self._task(op, number)

    def _task(self, op: Op, number: str) -> None:
        """Emit one task of `op`. `number` is the flat number of the task, an LLVM value. It is split into a value for
        the symbol of each range, of which the last varies fastest. Then the blocks of `op` are emitted.
        """
        w, rest = self.w, number
        for r in reversed(op.attrs["ranges"]):
            first = r is op.attrs["ranges"][0]
            count = "" if first else w.number(dealing.count_along(r))
            digit = rest if first else w.value(f"urem i32 {rest}, {count}")
            rest = rest if first else w.value(f"udiv i32 {rest}, {count}")
            if r.step != 1:
                digit = w.value(f"mul i32 {digit}, {r.step}")
            low = w.number(r.lo)
            w.names[r.symbol] = digit if low == "0" else w.value(f"add i32 {digit}, {low}")
        self._within(op.blocks)

    def _if(self, op: Op) -> None:
        """Emit an `if` operation as a branch. It has one block (then) or two blocks (then, else)."""
        condition = self.w.condition(op.attrs["when"])
        if len(op.blocks) == 1:
            with self.w.when(condition):
                self.body(op.blocks[0])
            return
        self.w.either(condition, lambda: self.body(op.blocks[0]), lambda: self.body(op.blocks[1]))

    def _let(self, op: Op) -> None:
        """Emit nothing for the definition of a symbol. The symbol itself refers to its definition, which is emitted
        where the symbol is used.
        """

    # -- registers and memory ---------------------------------------------------------------------------------

    def reserve(self, op: Op) -> None:
        """Reserve shared memory for the tensor or the barriers that `op` allocates, and record the offset in
        `self.offsets`. Barriers and their numbers of arrivals are appended to `self.arrivals`. Raise ProgramError if
        `op` allocates registers, or if the machine has too little shared memory.
        """
        kind, value = op.attrs["type"], op.results[0]
        if isinstance(kind, BarrierType):
            count, arrivals = numbers((kind.count, kind.arrivals), str(kind))
            start = self.offsets[value] = self.room(8 * count, 8)
            self.arrivals += [(start + 8 * i, arrivals) for i in range(count)]
        elif isinstance(kind, TensorType):
            self.offsets[value] = self.room(kind.cosize() * kind.dtype.numpy.itemsize, ALIGNMENT)
        else:
            raise ProgramError("registers are allocated in roles", op.loc)

    def room(self, size: int, alignment: int) -> int:
        """Reserve `size` bytes of shared memory at a multiple of `alignment` bytes, and return the offset. Raise
        ProgramError if the machine has too little shared memory.
        """
        start = -(-self.shared_bytes // alignment) * alignment
        self.shared_bytes = start + size
        most = self.machine.spaces["shared"].bytes
        if most is not None and self.shared_bytes > most:
            raise ProgramError(f"{self.shared_bytes} bytes of shared memory are used; {self.machine.name} has {most}")
        return start

    def _alloc(self, op: Op) -> None:
        """Emit an allocation. For a tensor or barriers, reserve shared memory. For a register, allocate one stack slot
        for each element that a lane holds.
        """
        kind, value = op.attrs["type"], op.results[0]
        if not isinstance(kind, VectorType):
            self.reserve(op)
            return
        count = self.values(value)
        self.registers[value] = [self.w.slot(element(kind.dtype)) for _ in range(count)]

    def values(self, value: Value) -> int:
        """Return the number of elements of the register `value` that one lane holds."""
        shape = numbers(value.type.shape, "register")
        return shape[1] if isinstance(value.type, FragmentType) else prod(shape)

    def get(self, value: Value, place: int = 0) -> str:
        """Emit the read of one element of the register `value`, and return it as an LLVM value. `place` is the number
        of the element among those that the lane holds.
        """
        return self.w.value(f"load {element(value.type.dtype)}, ptr {self.registers[value][place]}")

    def put(self, value: Value, place: int, text: str) -> None:
        """Emit the write of the LLVM value `text` to one element of the register `value`. `place` is the number of the
        element among those that the lane holds.
        """
        self.w.line(f"store {element(value.type.dtype)} {text}, ptr {self.registers[value][place]}")

    def address(self, value: Value, place: Expr, size: int) -> str:
        """Emit the address of one element of `value`, a tensor or barriers in shared memory, and return it as an i32.
        `place` is the index expression of the element. An element has `size` bytes.
        """
        inner = self.w.number(place * size + self.offsets[value])
        return self.w.once((value, place, "address"), f"add i32 {self.shared}, {inner}")

    def lane_axis(self, op: Op) -> tuple[Symbol, ...]:
        """Return the axes of `op`, an operation with a register as first operand; () if it has none. If the register is
        a fragment, the first axis becomes a name of the lane's number in all expressions that are emitted later.
        """
        axes: tuple[Symbol, ...] = op.attrs.get("over", ())
        if axes and isinstance(op.operands[0].type, FragmentType):
            self.w.names[axes[0]] = self.lane
        return axes

    def at_value(self, e: Expr, axes: tuple[Symbol, ...], place: int) -> Expr:
        """Return the expression `e` for element number `place` of the lane: the last axis in `axes` is replaced by
        `place`.
        """
        return Substitution({axes[-1]: as_expr(place)})(e) if axes and axes[-1] in e.symbols else e

    def _load(self, op: Op) -> None:
        """Emit the load `op`, by one instruction of the whole wave if the machine has one for it, else by loads of each
        lane. A scalar i32 is marked as equal in all lanes.
        """
        if not (isinstance(op.operands[0].type, FragmentType) and self.dialect.load(self, op)):
            memory.load(self, op)
            target = op.operands[0]
            if not isinstance(target.type, FragmentType) and element(target.type.dtype) == "i32":
                self.put(target, 0, self.dialect.uniform(self, self.get(target)))  # the same in all lanes

    def _store(self, op: Op) -> None:
        """Emit the store `op`, by one instruction of the whole wave if the machine has one for it, else by stores of
        each lane.
        """
        if not (isinstance(op.operands[0].type, FragmentType) and self.dialect.store(self, op)):
            memory.store(self, op)

    def _fill(self, op: Op) -> None:
        """Emit the assignment of the number `value` of `op` to all elements of the operand register. The elements of a
        fragment are initialised by `Dialect.fresh_register`, if it returns a register.
        """
        value = op.operands[0]
        number, dtype = op.attrs["value"], value.type.dtype
        for i in range(self.values(value)):
            fresh = self.dialect.fresh_register(self, number, dtype) if isinstance(value.type, FragmentType) else None
            self.put(value, i, literal(number, dtype) if fresh is None else fresh)

    def _read(self, op: Op) -> None:
        """Emit the conversion of the integer in the operand register to i32, and set the symbol of `op` to it. Booleans
        and unsigned integers are zero-extended, other integers sign-extended; 64-bit integers are truncated.
        """
        value = op.operands[0]
        text, kind = self.get(value), value.type.dtype
        if kind.bits < 32:
            word = "zext" if kind.numpy.kind in "ub" else "sext"
            text = self.w.value(f"{word} {element(kind)} {text} to i32")
        elif kind.bits > 32:
            text = self.w.value(f"trunc i64 {text} to i32")
        self.w.names[op.attrs["symbol"]] = text

    def _atomic(self, op: Op) -> None:
        """Emit the operation `op`: an atomic update of elements in memory (see `memory.atomic`)."""
        memory.atomic(self, op)

    def _bitcast(self, op: Op) -> None:
        """Give the result of `op` the memory of its operand. Emit nothing."""
        source, result = op.operands[0], op.results[0]
        if source in self.offsets:
            self.offsets[result] = self.offsets[source]
        else:
            self.pointers[result] = self.pointers[source]

    def _while(self, op: Op) -> None:
        """Emit a loop over the blocks of `op`. It runs as long as the flag register, the first operand, is not zero."""
        kind = element(op.operands[0].type.dtype)
        with self.w.while_loop(lambda: self.w.value(f"icmp ne {kind} {self.get(op.operands[0])}, 0")):
            self._within(op.blocks)

    def _compute(self, op: Op) -> None:
        """Emit the formula of an elementwise operation for each element that the lane holds of the target register (the
        first operand). If `op` has the attribute `rare`, a branch skips this code if the formula's condition (its first
        operand) is false for all elements of all lanes of the wave.
        """
        target, formula = op.operands[0], op.attrs["formula"]
        axes, to = self.lane_axis(op), target.type.dtype
        count = self.values(target)
        if op.attrs.get("rare"):
            tests = [self._formula(op, axes, i).test(formula.parts[0]) for i in range(count)]
            any_value = tests[0]
            for test in tests[1:]:
                any_value = self.w.value(f"or i1 {any_value}, {test}")
            with self.w.when(self.dialect.any_lane(self, any_value)):
                self._compute_each(op, axes, formula, to, count)
            return
        self._compute_each(op, axes, formula, to, count)

    def _compute_each(self, op: Op, axes: tuple[Symbol, ...], formula: Formula, to: DType, count: int) -> None:
        """Emit `formula` for `count` elements of the lane, and write the results, of the type `to`, to the target
        register of `op`. If the formula rounds to a float type of at most 16 bits, and the machine has an instruction
        for it, one instruction rounds two elements. `axes` are the axes of `op`.
        """
        target = op.operands[0]
        is_rounded = formula.name == "cast" and formula.value is to and is_coarse(to)
        pairs = is_rounded and count % 2 == 0 and self.dialect.rounds_pairs(self, to)
        if pairs and self._in_pairs(op, axes, formula, to, count):
            return
        texts = [self._formula(op, axes, i).write(formula, to) for i in range(count)]
        for i, text in enumerate(texts):
            self.put(target, i, text)

    def _in_pairs(self, op: Op, axes: tuple[Symbol, ...], formula: Formula, to: DType, count: int) -> bool:
        """Emit `formula`, a cast to the type `to`, for `count` elements of the lane, with one instruction for two
        elements. Write the results to the target register of `op`, and return True. Emit nothing and return False if
        the cast is not from f32, nor from an i8 operand to bf16. `count` is even. `axes` are the axes of `op`.
        """
        inner = formula.parts[0]
        kind = inner.gives(lambda leaf: op.operands[leaf.value].type.dtype, dtypes.f32)
        is_bytes = kind is dtypes.i8 and inner.name == "operand" and to is dtypes.bf16
        if kind is not dtypes.f32 and not is_bytes:
            return False
        for i in range(0, count, 2):
            if is_bytes:
                low, high = (self._formula(op, axes, i + n).write(inner, dtypes.i8) for n in (0, 1))
                both = self.dialect.pair_of_bytes(self, low, high)
            else:
                low, high = (self._formula(op, axes, i + n).write(inner, dtypes.f32, to) for n in (0, 1))
                both = self.dialect.pair(self, low, high, to)
            for n in (0, 1):
                self.put(op.operands[0], i + n, self.w.value(f"extractelement <2 x {element(to)}> {both}, i32 {n}"))
        return True

    def _formula(self, op: Op, axes: tuple[Symbol, ...], place: int) -> LaneFormula:
        """Return the writer that emits formulas of the operation `op` for element number `place` of the lane. `axes`
        are the axes of `op`.
        """

        def leaf(f: Formula) -> Any:
            """Emit the read of the operand that the formula leaf `f` stands for, and return (LLVM value, element type).
            It reads element number `place` of the lane, or the only element if the lane holds one.
            """
            value = op.operands[f.value]
            return self.get(value, place if self.values(value) > 1 else 0), value.type.dtype

        return LaneFormula(self, axes, place, leaf)

    def _shuffle(self, op: Op) -> None:
        """Emit a shuffle. Each element of the target register (first operand) gets an element of the source register
        (second operand). The attribute `at` gives its (lane, number in this lane). Raise ProgramError unless the number
        in the lane is a constant.
        """
        target, source = op.operands
        axes = self.lane_axis(op)
        lane, value = op.attrs["at"]
        texts = []
        for i in range(self.values(target)):
            index = self.at_value(value, axes, i)
            if not isinstance(index, Const):
                raise ProgramError(f"shuffle: which value is taken, {index}, is not known when the program is compiled")
            text = self.get(source, index.value)
            if lane is not axes[0]:
                text = self._from_lane(text, element(source.type.dtype), self.w.number(self.at_value(lane, axes, i)))
            texts.append(text)
        for i, text in enumerate(texts):
            self.put(target, i, text)

    def _from_lane(self, text: str, kind: str, lane: str) -> str:
        """Emit the shuffle of `text`, a value of the LLVM type `kind`, in words of 32 bits. Return the value of the
        lane with the number `lane`, an LLVM value.
        """
        w, bits = self.w, {"float": 32, "half": 16, "bfloat": 16, "double": 64}.get(kind) or int(kind[1:])
        integer = text if kind.startswith("i") else w.value(f"bitcast {kind} {text} to i{bits}")
        if bits == 64:
            low, high = w.value(f"trunc i64 {integer} to i32"), w.value(f"lshr i64 {integer}, 32")
            words = [low, w.value(f"trunc i64 {high} to i32")]
            low, high = (w.value(f"zext i32 {self.dialect.from_lane(self, word, lane)} to i64") for word in words)
            other = w.value(f"or i64 {low}, {w.value(f'shl i64 {high}, 32')}")
        else:
            word = integer if bits == 32 else w.value(f"zext i{bits} {integer} to i32")
            other = self.dialect.from_lane(self, word, lane)
            other = other if bits == 32 else w.value(f"trunc i32 {other} to i{bits}")
        return other if kind.startswith("i") else w.value(f"bitcast i{bits} {other} to {kind}")

    # -- who waits for whom -----------------------------------------------------------------------------------

    def barrier_address(self, op: Op, place: int = 0, at: str = "at") -> str:
        """Emit the address in shared memory of one counting barrier (mbarrier), and return it as an i32. Operand number
        `place` of `op` is an array of barriers. The attribute of `op` with the name `at` has the index in this array.
        """
        return self.address(op.operands[place], op.attrs[at][0], 8)

    def _arrive(self, op: Op) -> None:
        """Emit one arrival at the operand's counting barrier (mbarrier). If `op` has the attribute `everywhere`, emit
        an arrival at this barrier in each workgroup of the cluster.
        """
        self.dialect.arrive(self, self.barrier_address(op), bool(op.attrs.get("everywhere")))

    def _expect(self, op: Op) -> None:
        """Emit that the current phase of the operand's counting barrier (mbarrier) also waits for n bytes of bulk
        copies. n is the attribute `bytes` of `op`. This is not an arrival.
        """
        self.dialect.expect(self, self.barrier_address(op), numbers((op.attrs["bytes"],), "bytes")[0])

    def _await(self, op: Op) -> None:
        """Emit the wait until the counting barrier (mbarrier), the first operand, has completed a phase. The attribute
        `phase` of `op` is the number of the phase. The values of all further operands are computed before the wait.
        """
        if len(op.operands) > 1:
            self.dialect.force_computed(self, op.operands[1:])
        self.dialect.await_(self, self.barrier_address(op), self.w.number(op.attrs["phase"] % 2))

    def _barrier(self, op: Op) -> None:
        """Emit a barrier for some waves of the workgroup (bar.sync in PTX). The attributes `id` and `waves` of `op` are
        the number of the barrier and the number of waves. Raise ProgramError if `op` has no `id`.
        """
        if "id" not in op.attrs:
            raise ProgramError("barrier: say which one, and of how many waves: barrier (1) of 4", op.loc)
        (waves,) = numbers((op.attrs["waves"],), "waves")
        self.dialect.meet(self, self.w.number(op.attrs["id"]), waves * self.lanes)

    def _together(self, op: Op) -> None:
        """Emit a barrier for the lanes of the wave (bar.warp.sync in PTX)."""
        self.dialect.sync_lanes(self)

    def _fence(self, op: Op) -> None:
        """Emit a fence. After it, earlier stores of this lane to shared memory are visible to asynchronous copies and
        multiplications.
        """
        self.dialect.fence(self)

    def _copy_in(self, op: Op) -> None:
        """Emit the asynchronous bulk copy `op` from global to shared memory."""
        self.dialect.copy_in(self, op)

    def _copy_lanes(self, op: Op) -> None:
        """Emit the asynchronous copy `op` from global to shared memory. Each lane copies its own elements."""
        self.w.names[op.attrs["over"][0]] = self.lane
        self.dialect.copy_lanes(self, op)

    def _land(self, op: Op) -> None:
        """Emit that the operand's counting barrier (mbarrier) also waits for the asynchronous copies that this lane has
        issued.
        """
        self.dialect.land(self, self.barrier_address(op))

    def _copy_out(self, op: Op) -> None:
        """Emit the asynchronous bulk copy `op` from shared to global memory."""
        self.dialect.copy_out(self, op)

    def _seal(self, op: Op) -> None:
        """Emit the end of the current group of bulk copies from shared memory (commit_group in PTX)."""
        self.dialect.seal(self)

    def _drain(self, op: Op) -> None:
        """Emit the wait until at most n groups of bulk copies still read shared memory. n is the attribute `pending` of
        `op`.
        """
        self.dialect.drain(self, op.attrs["pending"])

    def _atom(self, op: Op) -> None:
        """Emit the multiplication C += A * B of the atom operation `op`."""
        self.dialect.multiply(self, op)

    def _settle(self, op: Op) -> None:
        """Emit the wait until at most n groups of asynchronous multiplications are in flight. n is the attribute
        `pending` of `op`. The operands of `op` are the accumulators that may be used after the wait.
        """
        self.dialect.wait_products(self, op.attrs["pending"], op.operands)


def emit(program: Program, machine: Machine, dialect: Dialect) -> Emitted:
    """Return the LLVM IR of the loop program `program` as a kernel for `machine`, with all that a launch must provide.
    `dialect` emits the instructions of the machine.
    """
    with building():
        return Emitter(program, machine, dialect).run()
