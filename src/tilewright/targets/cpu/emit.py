"""From a loop program to LLVM IR text for a CPU: one function that every worker calls.

`void NAME(ptr args, i64 worker, i64 workers)`: `args` points to the pointers of the tensors, then the pointer of
scratch memory (a piece for each worker), then that of the tile configuration, then that of the workers' counters of
tasks (`dynamic_tasks`), which are 0 at the launch, then the values of open parameters, 64 bits each. Vector registers
are LLVM values; tile registers are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr
from tilewright.algebra.expr_rules import maximum
from tilewright.algebra.expr_use import Substitution
from tilewright.codegen.formula import FormulaWriter
from tilewright.codegen.text import Writer, element, literal, vector
from tilewright.errors import ProgramError
from tilewright.interpret.evaluation import evaluated
from tilewright.ir import dtypes
from tilewright.ir.attrs import Range
from tilewright.ir.binding import open_parameters
from tilewright.ir.core import Block, Op, Program, Value, building, walk_block
from tilewright.ir.formula import Formula
from tilewright.ir.loop_types import VectorType
from tilewright.ir.tensors import TensorType, numbers
from tilewright.machine import Machine
from tilewright.targets.cpu import memory, products
from tilewright.targets.cpu.dynamic_tasks import TaskShares, divide_tasks, emit_next_task, static_tasks
from tilewright.targets.cpu.families import family_of
from tilewright.targets.cpu.family import TileRegisters

PAGE = 4096
SPARE = 512
"""Bytes of spare memory at the start of a worker's scratch memory: stores go there if their condition fails."""


@dataclass(frozen=True)
class EmittedNative:
    """The text of a function, and the memory that its caller must provide."""

    text: str
    name: str
    arguments: tuple[str, ...]
    scratch_bytes: int
    """Scratch memory of each worker, without tensors of open sizes."""
    open_bytes: Expr
    """Scratch memory of each worker for tensors of open sizes, an expression of open parameters."""
    uses_tiles: bool


def emit(program: Program, machine: Machine) -> EmittedNative:
    """Return the LLVM IR of the loop program `program` as one function, and the memory that the caller of this function
    must provide. The code is for `machine`, which need not be the CPU at hand.
    """
    with building():
        return NativeEmitter(program, machine).run()


class NativeEmitter:
    """One walk over a loop program; it holds the LLVM names of its registers and memory, and the text so far."""

    def __init__(self, program: Program, machine: Machine):
        self.program = program
        self.machine, self.family = machine, family_of(machine)
        self.open = open_parameters(program)
        task_loops = [op for op in program.walk() if op.name == "tasks"]
        self.has_dynamic_tasks = len(task_loops) == 1 and task_loops[0] in program.body.ops
        """A launch has one counter, for one loop over tasks that runs once."""
        scale = self.family.scale if machine.scales else None
        self.w = Writer(machine.fused, machine.nan_maximum, rounds_bf16=machine.rounds_bf16, scale=scale)
        self.pointers: dict[Value, str] = {}
        self.registers: dict[Value, str] = {}
        self.words: dict[Value, str] = {}
        """For vectors of 32 bits: the integer that was loaded, which can be broadcast."""
        self.tiles: dict[Value, int] = {}
        self.free_tiles = list(range(machine.limits.tile_registers))
        self.scratch = SPARE
        self.open_bytes: Expr = as_expr(0)
        self.globals: list[str] = []
        self.uses_tiles = False

    def run(self) -> EmittedNative:
        """Emit the whole loop program as one LLVM function. Return the text of the function, and the memory that its
        caller must provide. An emitter can run only once.
        """
        w = self.w
        count = len(self.program.args)
        for number, arg in enumerate(self.program.args):
            slot = w.value(f"getelementptr i8, ptr %args, i64 {8 * number}") if number else "%args"
            self.pointers[arg] = w.value(f"load ptr, ptr {slot}")
        slot = w.value(f"getelementptr i8, ptr %args, i64 {8 * count}")
        base = w.value(f"load ptr, ptr {slot}")
        for number, parameter in enumerate(self.open):
            slot = w.value(f"getelementptr i8, ptr %args, i64 {8 * (count + 3 + number)}")
            w.symbols[parameter] = (w.value(f"load i64, ptr {slot}"), 0)
        stride = whole = "STRIDE_OF_SCRATCH"
        open_bytes = self._open_memory()
        if open_bytes is not as_expr(0):
            whole = w.value(f"add i64 {stride}, {w.integer(open_bytes)}")
        own_scratch = w.value(f"mul i64 %worker, {whole}")
        self.spare = w.value(f"getelementptr i8, ptr {base}, i64 {own_scratch}")
        configuration = [w.name("slot"), w.name("config")]
        place_of_config = len(w.scope.lines)
        self.block(self.program.body)
        if self.uses_tiles:
            tiles = self.family.tiles
            assert tiles is not None
            lines = [
                f"  {configuration[0]} = getelementptr i8, ptr %args, i64 {8 * (count + 1)}",
                f"  {configuration[1]} = load ptr, ptr {configuration[0]}",
                *tiles.prologue(self, configuration[1]),
            ]
            w.scopes[0].lines.insert(place_of_config, "\n".join(lines))
            tiles.epilogue(self)
        line = self.machine.limits.line_bytes
        size = -(-self.scratch // PAGE) * PAGE + 8 * line  # workers' pieces do not fall on the same cache sets
        body = w.text().replace(stride, str(size))
        name = self.program.name
        parts = [
            *self.globals,
            *w.declared,
            f"define void @{name}(ptr noalias readonly %args, i64 %worker, i64 %workers) nounwind {{\nentry:\n{body}\n"
            "  ret void\n}",
            "!0 = !{i32 1}",
        ]
        arguments = tuple(a.name or "" for a in self.program.args)
        return EmittedNative("\n".join(parts) + "\n", name, arguments, size, open_bytes, self.uses_tiles)

    def _open_memory(self) -> Expr:
        """Return the bytes of scratch memory that one worker needs for all tensors of open size that the program
        allocates, each rounded up to whole cache lines. The result is an expression of open sizes; 0 if there are no
        such tensors.
        """
        types = [op.attrs["type"] for op in self.program.walk() if op.name == "alloc"]
        total: Expr = as_expr(0)
        for kind in types:
            if isinstance(kind, TensorType) and not isinstance(kind.room(), Const):
                total = total + self._bytes_in_lines(kind)
        return total

    def _bytes_in_lines(self, kind: TensorType) -> Expr:
        """Return the bytes of a tensor of the type `kind`, rounded up to whole cache lines, as an expression. It is a
        constant if the tensor's size is constant.
        """
        line = self.machine.limits.line_bytes
        return (kind.room() * kind.dtype.numpy.itemsize + line - 1) // line * line

    def block(self, block: Block) -> None:
        """Emit all operations of `block`, in order. A tile register that the block allocates becomes free after the
        last operation of the block that uses it.
        """
        last: dict[Value, Op] = {}  # tile registers that the block makes are free after their last use in it
        for op in block.ops:
            if op.name == "alloc" and isinstance(op.attrs["type"], VectorType) and self.is_tile(op.results[0]):
                last[op.results[0]] = op
            elif last:
                touched = (op, *(inner for b in op.blocks for inner in walk_block(b)))
                last |= {v: op for user in touched for v in user.operands if v in last}
        ends: dict[Op, list[Value]] = {}
        for value, op in last.items():
            ends.setdefault(op, []).append(value)
        for op in block.ops:
            getattr(self, f"_{op.name}")(op)
            for value in ends.get(op, ()):
                if value in self.tiles:
                    self.free_tiles.append(self.tiles.pop(value))

    # -- registers and memory -----------------------------------------------------------------------------------

    def lanes(self, value: Value) -> int | None:
        """Return the number of elements of the vector register `value`; None if `value` is a scalar register."""
        shape = numbers(value.type.shape, "register")
        return shape[0] if shape else None

    def lanes_of(self, value: Value) -> int:
        """Return the number of elements of the register `value`, which must be a vector."""
        count = self.lanes(value)
        assert count is not None
        return count

    def kind(self, value: Value) -> str:
        """Return the LLVM type of the scalar or vector register `value`, such as "<8 x float>" or "i32"."""
        return vector(value.type.dtype, self.lanes(value))

    def is_tile(self, value: Value) -> bool:
        """True if the register `value` is a tile register. Its type then has two dimensions."""
        return len(value.type.shape) == 2

    def register(self, value: Value) -> str:
        """Return the LLVM value that the scalar or vector register `value` holds at this point of the emitted code. It
        is a zero constant if nothing has been written to the register.
        """
        text = self.registers.get(value)
        if text is None:
            scalar = "0.0" if value.type.dtype.is_float else "0"
            text = scalar if self.lanes(value) is None else "zeroinitializer"
            if value.type.dtype.is_narrow and self.lanes(value) is None:
                text = literal(0.0, value.type.dtype)
        return text

    def tile(self, value: Value) -> int:
        """Return the number of the tile register that holds `value`. The first call for a value assigns the lowest free
        register, and raises ProgramError if none is free.
        """
        number = self.tiles.get(value)
        if number is None:
            if not self.free_tiles:
                count = self.machine.limits.tile_registers
                raise ProgramError(f"{self.machine.name} has {count} tile registers; more are used at once")
            self.free_tiles.sort(reverse=True)
            number = self.tiles[value] = self.free_tiles.pop()
            self.uses_tiles = True
        return number

    @property
    def matrix_registers(self) -> TileRegisters:
        """The object that emits the instructions of tile registers for the machine's family. Raise ProgramError if the
        family has none.
        """
        tiles = self.family.tiles
        if tiles is None:
            raise ProgramError(f"{self.machine.name} has no tile registers")
        return tiles

    def _alloc(self, op: Op) -> None:
        """Emit an allocation. A tensor gets an address in the worker's scratch memory, which is computed once at the
        start of the function. A register becomes unwritten: until it is written, it reads as zero.
        """
        kind, value = op.attrs["type"], op.results[0]
        if isinstance(kind, TensorType):
            size = self._bytes_in_lines(kind)
            if isinstance(size, Const):
                place = str(self.scratch)
                self.scratch += size.value
            else:  # behind all others
                before = self.w.integer(self.open_bytes)
                place = self.w.placed(0, ("open", value), f"add i64 STRIDE_OF_SCRATCH, {before}")
                self.open_bytes = self.open_bytes + size
            self.pointers[value] = self.w.placed(
                0, ("scratch", value), f"getelementptr i8, ptr {self.spare}, i64 {place}"
            )
        elif isinstance(kind, VectorType):
            self.registers.pop(value, None)

    def _bitcast(self, op: Op) -> None:
        """Set the address of the operation's result to that of its operand. Emit nothing."""
        self.pointers[op.results[0]] = self.pointers[op.operands[0]]

    def _constant(self, op: Op) -> None:
        """Evaluate the operation's formula at all its coordinates, and add the numbers to the function's text as a
        constant LLVM global in row-major order. The name of the global becomes the address of the result.
        """
        shape = numbers(tuple(s.upper + 1 for s in op.attrs["over"]), "constant")
        grids = np.ogrid[tuple(slice(0, n) for n in shape)]
        names = dict(zip((s.name for s in op.attrs["over"]), grids, strict=True))
        values = np.broadcast_to(np.asarray(evaluated(op.attrs["value"], names)), shape).reshape(-1)
        kind = element(op.attrs["dtype"])
        name = f"@table{len(self.globals)}"
        entries = ", ".join(f"{kind} {v}" for v in values.tolist())
        self.globals.append(f"{name} = internal constant [{values.size} x {kind}] [{entries}], align 64")
        self.pointers[op.results[0]] = name

    def address_of(self, buffer: Value, offset: Expr) -> str:
        """Emit the computation of the address of an element of the tensor `buffer`, and return the address as an LLVM
        value. `offset` is the distance of the element from the start of the tensor, in elements.
        """
        size = buffer.type.dtype.numpy.itemsize
        return self.w.address(self.pointers[buffer], buffer, offset, size)

    def _fetch(self, op: Op) -> None:
        """Emit the load of one integer from memory, and set the operation's symbol to it, widened to 64 bits. Booleans
        and unsigned integers are zero-extended, others are sign-extended.
        """
        kind = op.operands[0].type.dtype
        pointer = self.address_of(op.operands[0], op.attrs["at"][0])
        text = self.w.value(f"load {element(kind)}, ptr {pointer}")
        if kind is dtypes.i4:
            text = FormulaWriter(self.w, None, None, lambda f: ("", None)).cast(text, kind, dtypes.i64)
        elif kind.bits < 64:
            word = "zext" if kind.numpy.kind in "ub" else "sext"
            text = self.w.value(f"{word} {element(kind)} {text} to i64")
        self.w.symbols[op.attrs["symbol"]] = (text, self.w.scope.depth)

    def _read(self, op: Op) -> None:
        """Make the integer in the operand register the value of the operation's symbol, extended to 64 bits by its sign
        or, if its type is unsigned, by zeros.
        """
        value = op.operands[0]
        text = self.register(value)
        kind = value.type.dtype
        if kind.bits < 64:
            word = "zext" if kind.numpy.kind in "ub" else "sext"
            text = self.w.value(f"{word} {element(kind)} {text} to i64")
        self.w.symbols[op.attrs["symbol"]] = (text, self.w.scope.depth)

    # -- loads and stores ---------------------------------------------------------------------------------------

    def _load(self, op: Op) -> None:
        """Emit the operation `op`: a load to a scalar, vector or tile register (see `memory.load`)."""
        memory.load(self, op)

    def _store(self, op: Op) -> None:
        """Emit the operation `op`: a store of a scalar, vector or tile register (see `memory.store`)."""
        memory.store(self, op)

    def _prefetch(self, op: Op) -> None:
        """Emit the operation `op`: a prefetch of one cache line (see `memory.prefetch`)."""
        memory.prefetch(self, op)

    def _atomic(self, op: Op) -> None:
        """Emit the operation `op`: an atomic update of one element in memory (see `memory.atomic`)."""
        memory.atomic(self, op)

    # -- arithmetic -------------------------------------------------------------------------------------------

    def _fill(self, op: Op) -> None:
        """Set all elements of the operand register to the number `value` of the operation. Raise ProgramError if the
        operand is a tile register and the number is not zero.
        """
        value = op.operands[0]
        if self.is_tile(value):
            if op.attrs["value"] != 0:
                raise ProgramError("a tile register can only be filled with zero")
            self.matrix_registers.zero(self, self.tile(value))
            return
        self.registers[value] = memory.splat(self, op.attrs["value"], value)

    def _compute(self, op: Op) -> None:
        """Emit the formula of an elementwise operation on scalars or whole vectors.

        The result becomes the value of the target register, which is the first operand. If the target is a vector,
        scalar operands are broadcast to all lanes. If the formula is only an operand, no arithmetic is emitted.
        """
        target = op.operands[0]
        lanes = self.lanes(target)
        lane = op.attrs["over"][0] if op.attrs.get("over") else None

        def leaf(f: Formula) -> Any:
            """Return (LLVM value, element type) of the operand that the formula leaf `f` stands for. A scalar is
            broadcast to all lanes if the target is a vector.
            """
            value = op.operands[f.value]
            text = self.register(value)
            if lanes is not None and self.lanes(value) is None:
                text = self.w.splat(text, element(value.type.dtype), lanes)
            return text, value.type.dtype

        formula: Formula = op.attrs["formula"]
        if formula.name == "operand":
            self.registers[target] = leaf(formula)[0]
            return
        self.registers[target] = FormulaWriter(self.w, lanes, lane, leaf).write(formula, target.type.dtype)

    def _shuffle(self, op: Op) -> None:
        """Emit a shuffle: lane i of the target register (first operand) gets the lane of the source register (second
        operand) that the index expression `at` gives for i.
        """
        target, source = op.operands
        lanes, width = self.lanes(target), self.lanes(source)
        assert lanes is not None
        assert width is not None
        (lane,) = op.attrs["over"]
        source_lanes = [int(Substitution({lane: i})(op.attrs["at"][0])) for i in range(lanes)]
        bits = 8 * width * source.type.dtype.numpy.itemsize
        if bits == products.WORD and source_lanes == [
            i % width for i in range(lanes)
        ]:  # the whole source repeated: a word in all lanes
            self.registers[target] = products.group_to_lanes(self, source, bits, lanes // width, self.kind(target))
            return
        kind = element(source.type.dtype)
        form = f"<{width} x {kind}>"
        mask = ", ".join(f"i32 {p}" for p in source_lanes)
        self.registers[target] = self.w.value(
            f"shufflevector {form} {self.register(source)}, {form} poison, <{lanes} x i32> <{mask}>"
        )

    def _transpose(self, op: Op) -> None:
        """Emit the transpose of a matrix in registers, in place. The rows of the matrix are the operand registers;
        their number must be a power of two. `unit` neighbouring elements (an attribute of the operation) are one
        element of the matrix. Afterwards, the registers hold the rows of the transposed matrix, one after another.
        """
        lanes, unit = self.lanes(op.operands[0]), int(op.attrs["unit"])
        assert lanes is not None
        kind, count = self.kind(op.operands[0]), lanes // unit
        form = f"<{count} x i{unit * op.operands[0].type.dtype.numpy.itemsize * 8}>"
        rows = [self.w.value(f"bitcast {kind} {self.register(v)} to {form}") for v in op.operands]
        half = len(rows) // 2
        for _ in range(half.bit_length()):
            woven = []
            for a, b in zip(rows[:half], rows[half:], strict=True):
                for first in (0, count // 2):
                    order = [n for i in range(first, first + count // 2) for n in (i, i + count)]
                    mask = ", ".join(f"i32 {n}" for n in order)
                    woven.append(self.w.value(f"shufflevector {form} {a}, {form} {b}, <{count} x i32> <{mask}>"))
            rows = woven
        for value, row in zip(op.operands, rows, strict=True):
            self.registers[value] = self.w.value(f"bitcast {form} {row} to {kind}")

    def _reduce(self, op: Op) -> None:
        """Emit the sum, product, maximum or minimum of all lanes of the source register (first operand), in order from
        lane 0. The result becomes the value of the target register (second operand), a scalar.
        """
        source, target = op.operands
        lanes = self.lanes(source)
        assert lanes is not None
        kind = source.type.dtype
        total: Any = None
        name = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}[op.attrs["with"]]
        for i in range(lanes):
            lane_value = self.w.value(f"extractelement {self.kind(source)} {self.register(source)}, i64 {i}")
            if total is None:
                total = lane_value
                continue
            parts = {1: total, 2: lane_value}
            writer = FormulaWriter(self.w, None, None, lambda f, parts=parts: (parts[f.value], kind))  # type: ignore[misc]
            total = writer.write(Formula(name, (Formula.operand(1), Formula.operand(2))), kind)
        self.registers[target] = total

    def _atom(self, op: Op) -> None:
        """Emit the multiplication C += A * B of the operation `op` (see `multiply`)."""
        self.multiply(op)

    def multiply(self, op: Op) -> None:
        """Emit C += A * B with the instruction of the operation's atom. The operands of `op` are the registers C, A and
        B. Raise ProgramError if the family of the machine does not have this atom.
        """
        name = op.attrs["atom"]
        write = self.family.products().get(name)
        if write is None:
            raise ProgramError(f"the atom {name} is none of {self.machine.name}")
        write(self, op)

    # -- control ----------------------------------------------------------------------------------------------

    def _let(self, op: Op) -> None:
        """Emit nothing for the definition of a symbol. The symbol itself refers to its definition, which is emitted
        where the symbol is used.
        """
        pass  # noqa: PIE790

    def _barrier(self, op: Op) -> None:
        """Emit nothing for a barrier. On a CPU, one thread executes all operations of a workgroup in program order."""
        pass  # noqa: PIE790

    def _carried(self, blocks: tuple[Block, ...]) -> list[Value]:
        """Return the scalar and vector registers that are written in `blocks` but defined outside of them, in order of
        the first write. Loops and branches need a phi for each of them. Tile registers are left out.
        """
        changed: dict[Value, None] = {}

        def walk(block: Block) -> None:
            """Add the registers that `block` and its inner blocks write to `changed`."""
            for op in block.ops:
                if op.name in ("load", "compute", "shuffle", "fill", "atom"):
                    changed[op.operands[0]] = None
                elif op.name == "reduce":
                    changed[op.operands[1]] = None
                elif op.name == "transpose":
                    changed.update(dict.fromkeys(op.operands))
                for inner in op.blocks:
                    walk(inner)

        inside = {r for b in blocks for op in walk_block(b) for r in op.results}
        for block in blocks:
            walk(block)
        return [v for v in changed if v not in inside and not self.is_tile(v)]

    def _for(self, op: Op) -> None:
        """Emit a `for` operation: nested loops over its ranges, of which the first is the outermost, around
        its blocks.
        """
        self._nest(op, list(op.attrs["ranges"]))

    def _nest(self, op: Op, ranges: list[Range]) -> None:
        """Emit nested loops over `ranges`, of which the first is the outermost, around the blocks of the `for`
        operation `op`. Without ranges, emit only the blocks.
        """
        if not ranges:
            for block in op.blocks:
                self.block(block)
            return
        loop = ranges[0]
        lo, hi = self.w.integer(loop.lo), self.w.integer(loop.hi)
        runs = isinstance(loop.lo, Const) and isinstance(loop.hi, Const) and loop.lo.value < loop.hi.value
        self._loop(op.blocks, loop.symbol, lo, hi, str(loop.step), runs, lambda: self._nest(op, ranges[1:]))

    def _loop(
        self, blocks: tuple[Block, ...], variable: Symbol, lo: str, hi: str, step: str, sure: bool, body: Any
    ) -> None:
        """Emit an LLVM loop in which the symbol `variable` runs from `lo` to below `hi` by `step` (LLVM values).

        `body()` emits the loop's body, and `blocks` are the blocks that it emits. `sure` says that the loop runs at
        least once, so that no check comes before it.
        """
        w = self.w

        def named_body(counter: str) -> None:
            """Emit the body, with the LLVM value `counter` as the value of the symbol."""
            w.symbols[variable] = (counter, w.scope.depth)
            body()

        def advance(counter: str) -> tuple[list[str], str]:
            """Emit the addition of the step. Return ([the next counter], an i1: the loop goes on), LLVM values."""
            following = w.value(f"add i64 {counter}, {step}")
            return [following], w.value(f"icmp slt i64 {following}, {hi}")

        self._carrying_loop(blocks, [lo], None if sure else hi, named_body, advance)

    def _carrying_loop(
        self,
        blocks: tuple[Block, ...],
        first: Sequence[str],
        limit: str | None,
        body: Callable[..., None],
        advance: Callable[..., tuple[Sequence[str], str]],
    ) -> None:
        """Emit an LLVM loop with one or more counters, which begin with the values `first`.

        The loop does not run if its first counter is not below `limit` at the start; with None it runs at least once.
        `body(*counters)` emits the loop's body; the registers that its `blocks` change are carried as phi values. After
        it, `advance(*counters)` emits the next counters and the condition (an i1) under which the loop goes on, and
        returns both.
        """
        w = self.w
        carried = self._carried(blocks)
        start = {v: self.register(v) for v in carried}
        w.count += 1
        head, done = f"loop{w.count}", f"done{w.count}"
        before = w.scope
        hoisted_in = w.block
        inner = w.open()
        if limit is not None:
            guard = w.name("some")
            before.lines.insert(len(before.lines) - 1, f"  {guard} = icmp slt i64 {first[0]}, {limit}")
            before.lines.insert(len(before.lines) - 1, f"  br i1 {guard}, label %{head}, label %{done}")
        else:
            before.lines.insert(len(before.lines) - 1, f"  br label %{head}")
        w.label(head)
        counters = [w.name("i") for _ in first]
        phis = len(inner.lines)
        names = {v: w.name("r") for v in carried}
        inner.lines.append("")
        self.registers |= names
        body(*counters)
        following, again = advance(*counters)
        latch = w.block
        w.line(f"br i1 {again}, label %{head}, label %{done}")
        rows = [
            f"  {counter} = phi i64 [{lo}, %{hoisted_in}], [{later}, %{latch}]"
            for counter, lo, later in zip(counters, first, following, strict=True)
        ]
        for v in carried:
            rows.append(
                f"  {names[v]} = phi {self.kind(v)} [{start[v]}, %{hoisted_in}], [{self.register(v)}, %{latch}]"
            )
        inner.lines[phis] = "\n".join(rows)
        ends = {v: self.register(v) for v in carried}
        w.close()
        w.label(done)
        for v in carried:
            if limit is None:
                self.registers[v] = ends[v]
            else:
                out = w.name("e")
                w.line(f"{out} = phi {self.kind(v)} [{start[v]}, %{hoisted_in}], [{ends[v]}, %{latch}]")
                self.registers[v] = out

    def _tasks(self, op: Op) -> None:
        """Emit the loop in which each worker runs its static share of the operation's tasks, and then dynamic ones
        (see `dynamic_tasks`). Raise ProgramError if the number of tasks depends on values other than numbers and open
        parameters.
        """
        w = self.w
        ranges: tuple[Range, ...] = op.attrs["ranges"]
        counts = [maximum(-(-(r.hi - r.lo) // r.step), 0) for r in ranges]
        self._check_task_limits(ranges)
        task_count = as_expr(1)
        for count in counts:
            task_count = task_count * count

        def body(task: str, *_: str) -> None:
            """Emit one task. `task` is its flat number, an LLVM value. It is split into a value for the symbol of each
            range, of which the last varies fastest. Then the operation's block is emitted.
            """
            rest = task
            for r, count in reversed(list(zip(ranges, counts, strict=True))):
                outermost = r is ranges[0]
                digit = rest if outermost else w.value(f"urem i64 {rest}, {w.integer(count)}")
                if not outermost:
                    rest = w.value(f"udiv i64 {rest}, {w.integer(count)}")
                scaled = digit if r.step == 1 else w.value(f"mul i64 {digit}, {r.step}")
                value = scaled if r.lo is as_expr(0) else w.value(f"add i64 {scaled}, {w.integer(r.lo)}")
                w.symbols[r.symbol] = (value, w.scope.depth)
            self.block(op.blocks[0])

        def divide() -> TaskShares:
            """Emit the division of tasks among workers, and return it."""
            counters = self._task_counters() if self.has_dynamic_tasks else None
            return divide_tasks(w, w.integer(task_count), op.attrs.get("schedule") or "strided", counters)

        static = static_tasks(w, divide())
        next_task = partial(emit_next_task, w, divide if self.has_dynamic_tasks else None)
        self._carrying_loop(op.blocks, static, static.end, body, next_task)

    def _task_counters(self) -> str:
        """Emit the load of the address of the workers' counters of dynamic tasks, and return its LLVM name."""
        slot = self.w.value(f"getelementptr i8, ptr %args, i64 {8 * (len(self.program.args) + 2)}")
        return self.w.value(f"load ptr, ptr {slot}")

    def _check_task_limits(self, ranges: tuple[Range, ...]) -> None:
        """Raise ProgramError unless the limits of `ranges` consist of numbers and open parameters (sizes that are known
        only at the call). Tasks are counted before the first one runs.
        """
        known = set(self.open)

        def is_known(e: Expr) -> bool:
            """True if every symbol of `e` is an open parameter, or is defined by an expression for which `is_known`
            holds.
            """
            return all(s in known or (s.definition is not None and is_known(s.definition)) for s in e.symbols)

        for r in ranges:
            for e in (r.lo, r.hi):
                if not is_known(e):
                    raise ProgramError(f"the limit {e} of tasks is neither a number nor made of open parameters")

    def _if(self, op: Op) -> None:
        """Emit an `if` operation as a branch. Registers that its blocks write become phis. If the program has open
        sizes, a block for which `holds_only_products` is true is emitted with masks, without a branch.
        """
        if self.open and products.holds_only_products(self, op):
            products.masked_products(self, op)
            return
        w = self.w
        carried = self._carried(op.blocks)
        condition = w.condition(op.attrs["when"])
        w.count += 1
        number = w.count
        start = {v: self.register(v) for v in carried}
        before = w.block
        names = [f"then{number}", f"else{number}"][: len(op.blocks)]
        done = f"end{number}"
        otherwise = names[1] if len(names) == 2 else done
        ends: list[tuple[str, dict[Value, str]]] = []
        branch_at: list[Any] = []
        w.scope.lines.append(branch_at)
        for name, block in zip(names, op.blocks, strict=True):
            self.registers |= start
            w.open()
            w.label(name)
            self.block(block)
            w.line(f"br label %{done}")
            ends.append((w.block, {v: self.register(v) for v in carried}))
            hoisted = w.scopes[-2].before_inner
            w.close()
            branch_at += hoisted
            hoisted.clear()
        branch_at.append(f"  br i1 {condition}, label %{names[0]}, label %{otherwise}")
        if len(names) == 1:
            ends.append((before, start))
        w.label(done)
        for v in carried:
            out = w.name("e")
            arms = ", ".join(f"[{values[v]}, %{label}]" for label, values in ends)
            w.line(f"{out} = phi {self.kind(v)} {arms}")
            self.registers[v] = out

    def _while(self, op: Op) -> None:
        """Emit a loop that runs as long as the flag register (the operand), an integer of 64 bits, is not zero.
        Registers that the body writes become phis.
        """
        w = self.w
        flag = op.operands[0]
        carried = self._carried(op.blocks)
        start = {v: self.register(v) for v in carried}
        w.count += 1
        head, inside, done = f"while{w.count}", f"body{w.count}", f"done{w.count}"
        before = w.block
        outer = w.scope
        inner = w.open()
        outer.lines.insert(len(outer.lines) - 1, f"  br label %{head}")
        w.label(head)
        phis = len(inner.lines)
        names = {v: w.name("r") for v in carried}
        inner.lines.append("")
        self.registers |= names
        going = w.value(f"icmp ne {self.kind(flag)} {self.register(flag)}, 0")
        w.line(f"br i1 {going}, label %{inside}, label %{done}")
        w.label(inside)
        self.block(op.blocks[0])
        w.line(f"br label %{head}")
        latch = w.block
        rows = [
            f"  {names[v]} = phi {self.kind(v)} [{start[v]}, %{before}], [{self.register(v)}, %{latch}]"
            for v in carried
        ]
        inner.lines[phis] = "\n".join(rows)
        w.close()
        w.label(done)
        self.registers |= names
