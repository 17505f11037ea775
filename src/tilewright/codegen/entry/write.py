"""From a host program to LLVM text: the functions of a kernel that C calls.

Each launched program is `void PROGRAM(ptr args, i64 worker, i64 workers)`, as `targets/cpu/emit` writes it. The entry
makes `args` on its stack: the tensors, scratch memory (a piece for each worker), the tile configuration, open
parameters. All sizes are worked out first, so what depends on them is straight code but for the program's own `if`s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.algebra.expr import Const, Expr, FloorDiv, Symbol, as_expr, symbol
from tilewright.algebra.expr_conditions import eq
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.algebra.expr_use import Substitution
from tilewright.codegen.entry.abi import ALIGNMENT, EntryFault, ErrorKind
from tilewright.codegen.entry.memory import HostMemoryMap, bytes_of, in_lines, memory_map
from tilewright.codegen.text import Writer
from tilewright.errors import ProgramError
from tilewright.ir.binding import allowed, open_parameters, open_sizes
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.limits import WORKERS
from tilewright.machine import Condition

ARGUMENTS = "ptr %buffers, ptr %sizes, ptr %kept, ptr %workspace, ptr %pool"


@dataclass(frozen=True)
class LaunchedFunction:
    """A program's function in the module, and what a launch must provide.

    Each worker has `scratch` bytes of its own and `scratch_open` more, an expression of the program's open parameters.
    `conditions` must hold of them too.
    """

    symbol: str
    program: Program
    scratch: int
    scratch_open: Expr
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class Entry:
    """The text of a kernel's functions, and what a caller must know of them.

    Byte counts are expressions of the sizes; `workspace_bytes` of the number of workers too (`COUNT`).
    `bound` are the arguments that the function that binds reads or writes, `called` those of the call.
    """

    text: str
    faults: tuple[EntryFault, ...]
    kept_bytes: Expr
    workspace_bytes: Expr
    most_workers: int
    bound: tuple[str, ...]
    called: tuple[str, ...]


COUNT = symbol("_workers_of_the_pool", 1, WORKERS.most)
"""The workers of the pool that a call brings."""


class HostWriter(Writer):
    """Index arithmetic of sizes. A divisor of 0 counts as 1: it belongs to a branch that is not taken."""

    def _divided(self, e: Any, depth: int) -> str:
        if not isinstance(e.right, Const) and e.right.lo == 0:
            right = maximum(e.right, 1)
            return self.integer(e.left // right if isinstance(e, FloorDiv) else e.left % right)
        return super()._divided(e, depth)


class EntryWriter:
    """Writes the functions of one kernel; `launched` tells the function of a launch."""

    def __init__(
        self,
        name: str,
        host: Program,
        launched: Callable[[Op], LaunchedFunction],
        configuration: bytes | None = None,
    ):
        self.name, self.host = name, host
        self.sizes = open_sizes(host)
        self.launches = {op: launched(op) for op in host.walk() if op.name == "launch"}
        roles = {f.program.name: [a.type.role or "inout" for a in f.program.args] for f in self.launches.values()}
        self.memory: HostMemoryMap = memory_map(host, roles)
        self.roles = roles
        self.faults: dict[tuple[ErrorKind, int], str] = {}
        self.requirements: dict[str, int] = {}
        self.checks: dict[Op, int] = {}
        self.tables: dict[Op, str] = {}
        self.declared: dict[str, None] = {}
        self.configuration = configuration
        self.parameters = {op: self._parameters(op, function) for op, function in self.launches.items()}

    def write(self) -> Entry:
        """All functions."""
        functions = [self._task(), self._fill(), *self._configured()]
        functions += [_Call(self, once=True).text(), _Call(self, once=False).text()]
        functions += list(self.tables.values())
        kept, workspace = self.memory.kept_bytes, self.workspace_bytes()
        functions.append(self._bytes(f"{self.name}_kept_bytes", "ptr %sizes", kept))
        functions.append(self._bytes(f"{self.name}_workspace_bytes", "ptr %sizes, i32 %count", workspace))
        faults = tuple(EntryFault(kind, place, says) for (kind, place), says in sorted(self.faults.items()))
        functions.append(self._message(faults))
        most = max((self._most_workers(op) for op in self.launches), default=1)
        used = {once: self.memory.used(once) for once in (True, False)}
        bound, called = (tuple(a.name or "" for a in self.host.args if a in used[once]) for once in (True, False))
        text = "\n".join([*self.declared, *functions]) + "\n"
        return Entry(text, faults, kept, workspace, most, bound, called)

    # -- what a launch needs --------------------------------------------------------------------------------

    def _parameters(self, op: Op, function: LaunchedFunction) -> dict[Symbol, Expr]:
        """The values of a program's open parameters: told by the launch, or by the shapes of its operands."""
        program, told = function.program, dict(op.attrs.get("settings", ()))
        found: dict[Symbol, Expr] = {}
        for s in open_parameters(program):
            if s.name in told:
                found[s] = told[s.name]
                continue
            for arg, value in zip(program.args, op.operands, strict=True):
                for mine, given in zip(arg.type.shape, value.type.shape, strict=False):
                    if mine is s:
                        found.setdefault(s, given)
            if s not in found:
                raise ProgramError(f"launch {program.name}: neither a shape nor `with` tells {s.name}", op.loc)
        return found

    def conditions(self, op: Op) -> list[tuple[Expr, str]]:
        """What must hold of the sizes for a launch, with the sentences that refuse them; the rest always holds."""
        function, values = self.launches[op], self.parameters[op]
        program, images = function.program, Substitution(values)
        found: list[tuple[Expr, str]] = []
        for arg, value in zip(program.args, op.operands, strict=True):
            kind = arg.type
            if kind.strides is not None or kind.swizzle is not None or value.type.strides is not None:
                raise ProgramError(
                    f"launch {program.name}: %{arg.name} is {kind}; an exported program takes packed memory", op.loc
                )
            if len(kind.shape) != len(value.type.shape) or kind.dtype is not value.type.dtype:
                raise ProgramError(f"launch {program.name}: %{arg.name} is {kind}, not {value.type}", op.loc)
            for mine, given in zip(kind.shape, value.type.shape, strict=True):
                same = images(mine)
                if same is not given:
                    found.append((eq(same, given), f"{program.name}: {given} of {value.name} must be {same}"))
        for s, told in values.items():
            found += [(c, f"{program.name}: {s.name} = {told} must be {says}") for c, says in in_range(told, s)]
        for record in program.records:
            if record.name == "require":
                found.append((images(record.attrs["that"]), f"{program.name} requires {record.attrs['that']}"))
        found += [(images(c.that), f"{program.name}: {c.reason}") for c in function.conditions]
        workers = op.attrs["workers"]
        found.append((as_expr(workers) >= 1, f"{program.name}: workers {workers} must be at least 1"))
        left = [(c, says) for c, says in found if not (isinstance(c, Const) and c.value)]
        for c, says in left:
            if isinstance(c, Const):
                raise ProgramError(f"launch: {says}, which never holds", op.loc)
        return left

    def worker_bytes(self, op: Op) -> Expr:
        """The scratch memory of one worker of a launch."""
        function = self.launches[op]
        return as_expr(function.scratch) + Substitution(self.parameters[op])(function.scratch_open)

    def workspace_bytes(self) -> Expr:
        """Workspaces, then the scratch memory of the launch that needs most."""
        most: Expr = as_expr(0)
        for op in self.launches:
            workers = as_expr(op.attrs["workers"])
            count = maximum(minimum(workers, COUNT), 1)
            most = maximum(most, in_lines(self.worker_bytes(op) * count))
        return self.memory.workspace_bytes + most

    def _most_workers(self, op: Op) -> int:
        found = as_expr(op.attrs["workers"])
        most = found.value if isinstance(found, Const) else found.hi
        return int(min(most, WORKERS.most))

    # -- functions that all kernels have ----------------------------------------------------------------------

    def _task(self) -> str:
        return f"""define internal void @{self.name}.task(ptr %record, i32 %worker) nounwind {{
entry:
  %pargs = getelementptr i8, ptr %record, i64 8
  %pworkers = getelementptr i8, ptr %record, i64 16
  %function = load ptr, ptr %record
  %args = load ptr, ptr %pargs
  %workers = load i64, ptr %pworkers
  %me = sext i32 %worker to i64
  call void %function(ptr %args, i64 %me, i64 %workers)
  ret void
}}"""

    def _fill(self) -> str:
        """Bytes filled with a pattern of eight."""
        return f"""define internal void @{self.name}.fill(ptr %to, i64 %bytes, i64 %pattern) nounwind {{
entry:
  %whole = and i64 %bytes, -8
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %body]
  %more = icmp slt i64 %i, %whole
  br i1 %more, label %body, label %tail
body:
  %p = getelementptr i8, ptr %to, i64 %i
  store i64 %pattern, ptr %p, align 1
  %i1 = add i64 %i, 8
  br label %head
tail:
  %j = phi i64 [%whole, %head], [%j1, %last]
  %rest = icmp slt i64 %j, %bytes
  br i1 %rest, label %last, label %done
last:
  %low = and i64 %j, 7
  %bits = mul i64 %low, 8
  %moved = lshr i64 %pattern, %bits
  %byte = trunc i64 %moved to i8
  %q = getelementptr i8, ptr %to, i64 %j
  store i8 %byte, ptr %q
  %j1 = add i64 %j, 1
  br label %tail
done:
  ret void
}}"""

    def _configured(self) -> list[str]:
        """The configuration of tile registers, where the machine has them."""
        if self.configuration is None:
            return []
        entries = ", ".join(f"i8 {n}" for n in self.configuration)
        kind = f"[{len(self.configuration)} x i8]"
        return [f"@{self.name}.configuration = internal constant {kind} [{entries}], align 64"]

    def _bytes(self, name: str, arguments: str, count: Expr) -> str:
        w = HostWriter()
        load_sizes(w, self.sizes)
        if "%count" in arguments:
            w.declare("i64 @llvm.smax.i64(i64, i64)")
            wide = w.value("sext i32 %count to i64")
            w.symbols[COUNT] = (w.value(f"call i64 @llvm.smax.i64(i64 {wide}, i64 1)"), 0)
        result = w.integer(count)
        self.declared |= w.declared
        return f"define i64 @{name}({arguments}) nounwind {{\nentry:\n{w.text()}\n  ret i64 {result}\n}}"

    def _message(self, faults: tuple[EntryFault, ...]) -> str:
        """The sentence of a code."""
        texts: dict[str, str] = {}
        for says in ("", *(f.says for f in faults), "no code of this kernel"):
            texts.setdefault(says, f"@{self.name}.says.{len(texts)}")
        lines = []
        for says, label in texts.items():
            data = says.encode() + b"\0"
            content = "".join(f"\\{byte:02X}" for byte in data)
            lines.append(f'{label} = internal constant [{len(data)} x i8] c"{content}"')
        lines.append(f"define ptr @{self.name}_message(i32 %code) nounwind {{\nentry:")
        known = f"ptr {texts['no code of this kernel']}"
        for number, (code, says) in enumerate([(0, ""), *((f.code, f.says) for f in faults)]):
            lines.append(f"  %is{number} = icmp eq i32 %code, {code}")
            lines.append(f"  %says{number} = select i1 %is{number}, ptr {texts[says]}, {known}")
            known = f"ptr %says{number}"
        return "\n".join([*lines, f"  ret {known}\n}}"])


def load_sizes(w: Writer, sizes: tuple[Symbol, ...], pointer: str = "%sizes") -> None:
    """Reads the sizes that a caller tells."""
    for place, s in enumerate(sizes):
        slot = w.value(f"getelementptr i8, ptr {pointer}, i64 {8 * place}")
        w.symbols[s] = (w.value(f"load i64, ptr {slot}"), 0)


def in_range(value: Expr, parameter: Symbol) -> list[tuple[Expr, str]]:
    """The conditions under which a value is one that a parameter may be, with what they say."""
    numbers = allowed(parameter)
    if isinstance(value, Const):
        return [] if value.value in numbers else [(as_expr(0), f"one of {numbers}")]
    found: list[tuple[Expr, str]] = []
    if value.lo < numbers.start:
        found.append((value >= numbers.start, f"at least {numbers.start}"))
    if value.hi > numbers[-1]:
        found.append((value <= numbers[-1], f"at most {numbers[-1]}"))
    if numbers.step != 1:
        found.append(
            (eq((value - numbers.start) % numbers.step, 0), f"{numbers.start} plus a multiple of {numbers.step}")
        )
    return found


class _Call:
    """One function: what is done once, or what is done at every call."""

    def __init__(self, entry: EntryWriter, *, once: bool):
        self.entry, self.once = entry, once
        self.w = HostWriter()
        self.pointers: dict[Value, str] = {}

    def text(self) -> str:
        """The function."""
        entry, w = self.entry, self.w
        room = max((8 * (len(op.operands) + 2 + len(p)) for op, p in entry.parameters.items()), default=8)
        self.args = w.value(f"alloca [{room} x i8], align {ALIGNMENT}")
        self.record = w.value("alloca [24 x i8], align 8")
        self._sizes()
        self._buffers()
        self._regions()
        self._pool()
        self._block(entry.host.body, False)
        name = f"{entry.name}_bind" if self.once else entry.name
        entry.declared |= w.declared
        return (
            f"define i32 @{name}({ARGUMENTS}) nounwind {{\nentry:\n{w.text()}\n  br label %finish\n"
            "finish:\n  ret i32 0\n}"
        )

    # -- checks -------------------------------------------------------------------------------------------

    def _fail(self, when: str, kind: ErrorKind, place: int, says: str) -> None:
        """Returns a code where an i1 holds."""
        w = self.w
        fault = EntryFault(kind, place, says)
        self.entry.faults[kind, place] = says
        w.count += 1
        failed, going = f"fail{w.count}", f"go{w.count}"
        w.line(f"br i1 {when}, label %{failed}, label %{going}")
        w.label(failed)
        w.line(f"ret i32 {fault.code}")
        w.label(going)

    def _require(self, condition: Expr, says: str) -> None:
        """Returns a code where a condition of sizes does not hold."""
        place = self.entry.requirements.setdefault(says, len(self.entry.requirements))
        self._fail(self._not(self.w.condition(condition)), ErrorKind.REQUIREMENT, place, says)

    def _not(self, condition: str) -> str:
        return self.w.value(f"xor i1 {condition}, true")

    def _sizes(self) -> None:
        sizes, w = self.entry.sizes, self.w
        if not sizes:
            return
        self._fail(w.value("icmp eq ptr %sizes, null"), ErrorKind.BAD_SIZE, 0, self._range(0))
        load_sizes(w, sizes)
        for place, s in enumerate(sizes):
            numbers, value = allowed(s), w.symbols[s][0]
            low = w.value(f"icmp slt i64 {value}, {numbers.start}")
            high = w.value(f"icmp sgt i64 {value}, {numbers[-1]}")
            wrong = w.value(f"or i1 {low}, {high}")
            if numbers.step != 1:
                rest = w.value(f"srem i64 {w.value(f'sub i64 {value}, {numbers.start}')}, {numbers.step}")
                wrong = w.value(f"or i1 {wrong}, {w.value(f'icmp ne i64 {rest}, 0')}")
            self._fail(wrong, ErrorKind.BAD_SIZE, place, self._range(place))
        for record in self.entry.host.records:
            if record.name == "require":
                self._require(record.attrs["that"], f"it requires {record.attrs['that']}")

    def _range(self, place: int) -> str:
        s = self.entry.sizes[place]
        numbers = allowed(s)
        steps = f" in steps of {numbers.step}" if numbers.step != 1 else ""
        return f"the size {s.name} must be from {numbers.start} to {numbers[-1]}{steps}"

    def _buffers(self) -> None:
        """Reads the buffers that are used, and checks them."""
        entry, w = self.entry, self.w
        used = entry.memory.used(self.once)
        args = [(place, arg) for place, arg in enumerate(entry.host.args) if arg in used]
        if not args:
            return
        said = "the buffer {} is null"
        place, first = args[0]
        self._fail(w.value("icmp eq ptr %buffers, null"), ErrorKind.NULL_BUFFER, place, said.format(first.name))
        addresses: dict[Value, str] = {}
        for place, arg in args:
            slot = w.value(f"getelementptr i8, ptr %buffers, i64 {8 * place}")
            pointer = self.pointers[arg] = w.value(f"load ptr, ptr {slot}")
            null = w.value(f"icmp eq ptr {pointer}, null")
            self._fail(null, ErrorKind.NULL_BUFFER, place, said.format(arg.name))
            size = arg.type.dtype.numpy.itemsize
            addresses[arg] = w.value(f"ptrtoint ptr {pointer} to i64")
            if size > 1:
                low = w.value(f"and i64 {addresses[arg]}, {size - 1}")
                says = f"the buffer {arg.name} does not lie at a multiple of {size} bytes"
                self._fail(w.value(f"icmp ne i64 {low}, 0"), ErrorKind.MISALIGNED_BUFFER, place, says)
        written = entry.memory.written(self.once, entry.roles)
        ends = {a: w.value(f"add i64 {addresses[a]}, {w.integer(bytes_of(a.type))}") for _, a in args}
        for place, arg in args:
            for other_place, other in args:
                if arg not in written or (other in written and other_place <= place) or other is arg:
                    continue
                before = w.value(f"icmp ult i64 {addresses[arg]}, {ends[other]}")
                after = w.value(f"icmp ult i64 {addresses[other]}, {ends[arg]}")
                says = f"the buffer {arg.name}, which is written, overlaps another"
                self._fail(w.value(f"and i1 {before}, {after}"), ErrorKind.OVERLAPPING_BUFFERS, place, says)

    def _regions(self) -> None:
        """Checks the memory that a caller lends, and places the workspaces in it."""
        memory, w = self.entry.memory, self.w
        self._region("%kept", memory.kept_bytes, ErrorKind.BAD_KEPT, "kept")
        self._region("%workspace", self.entry.workspace_bytes(), ErrorKind.BAD_WORKSPACE, "workspace")
        for base, places in (("%kept", memory.kept), ("%workspace", memory.workspaces)):
            for value, offset in places.items():
                self.pointers[value] = w.value(f"getelementptr i8, ptr {base}, i64 {w.integer(offset)}")
        self.scratch = w.value(f"getelementptr i8, ptr %workspace, i64 {w.integer(memory.workspace_bytes)}")

    def _region(self, base: str, size: Expr, kind: ErrorKind, what: str) -> None:
        w = self.w
        if isinstance(size, Const) and size.value == 0:
            return
        null = w.value(f"icmp eq ptr {base}, null")
        address = w.value(f"ptrtoint ptr {base} to i64")
        low = w.value(f"and i64 {address}, {ALIGNMENT - 1}")
        wrong = w.value(f"or i1 {null}, {w.value(f'icmp ne i64 {low}, 0')}")
        self._fail(wrong, kind, 0, f"{what} is null, or does not lie at a multiple of {ALIGNMENT} bytes")

    def _pool(self) -> None:
        """The workers that there are: one, on the calling thread, without a pool."""
        w = self.w
        w.line("br label %looking")
        w.label("looking")
        none = w.value("icmp eq ptr %pool, null")
        w.line(f"br i1 {none}, label %alone, label %several")
        w.label("several")
        self.context = w.value("load ptr, ptr %pool")
        self.run = w.value(f"load ptr, ptr {w.value('getelementptr i8, ptr %pool, i64 8')}")
        count = w.value(f"load i32, ptr {w.value('getelementptr i8, ptr %pool, i64 16')}")
        wrong = w.value(f"or i1 {w.value(f'icmp eq ptr {self.run}, null')}, {w.value(f'icmp slt i32 {count}, 1')}")
        self._fail(wrong, ErrorKind.BAD_POOL, 0, "the pool has no function `run`, or fewer than one worker")
        wide = w.value(f"sext i32 {count} to i64")
        several = w.block
        w.line("br label %alone")
        w.label("alone")
        phis = {"ptr": ("null", [self.context, self.run]), "i64": ("1", [wide])}
        named = []
        for kind, (otherwise, values) in phis.items():
            for value in values:
                named.append(w.value(f"phi {kind} [{otherwise}, %looking], [{value}, %{several}]"))
        self.context, self.run, count = named
        w.symbols[COUNT] = (count, 0)

    # -- the program ----------------------------------------------------------------------------------------

    def _block(self, block: Block, once: bool) -> None:
        for op in block.ops:
            if op.name == "let":
                continue
            if op.name == "bind":
                self._block(op.blocks[0], True)
            elif op.name == "return":
                self.w.line("br label %finish")
                self.w.count += 1
                self.w.label(f"after{self.w.count}")
            elif op.name == "if":
                self._if(op, once)
            elif op.name in ("reshape", "restride"):
                source = self.entry.memory.roots[op.results[0]]
                if source in self.pointers:
                    self.pointers[op.results[0]] = self.pointers[source]
            elif op.name != "workspace" and once is self.once:
                getattr(self, f"_{op.name}")(op)

    def _if(self, op: Op, once: bool) -> None:
        w = self.w
        condition = w.condition(op.attrs["when"])
        w.count += 1
        number = w.count
        names = [f"then{number}", f"else{number}"][: len(op.blocks)]
        done = f"end{number}"
        w.line(f"br i1 {condition}, label %{names[0]}, label %{names[1] if len(names) == 2 else done}")
        for name, block in zip(names, op.blocks, strict=True):
            known, symbols = dict(w.scope.known), dict(w.symbols)  # what a branch computes is not known after it
            w.label(name)
            self._block(block, once)
            w.line(f"br label %{done}")
            w.scope.known, w.symbols = known, symbols
        w.label(done)

    def _launch(self, op: Op) -> None:
        entry, w = self.entry, self.w
        for condition, says in entry.conditions(op):
            self._require(condition, says)
        function = entry.launches[op]
        count = w.integer(maximum(minimum(as_expr(op.attrs["workers"]), COUNT), 1))
        configuration = "null" if entry.configuration is None else f"@{entry.name}.configuration"
        words = [f"ptr {self.pointers[v]}" for v in op.operands]
        words += [f"ptr {self.scratch}", f"ptr {configuration}"]
        words += [f"i64 {w.integer(e)}" for e in entry.parameters[op].values()]
        for place, word in enumerate(words):
            slot = w.value(f"getelementptr i8, ptr {self.args}, i64 {8 * place}")
            w.line(f"store {word}, ptr {slot}")
        w.count += 1
        several, single, done = (f"{what}{w.count}" for what in ("several", "single", "launched"))
        w.line(f"br i1 {w.value(f'icmp sgt i64 {count}, 1')}, label %{several}, label %{single}")
        w.label(several)
        w.line(f"store ptr @{function.symbol}, ptr {self.record}")
        w.line(f"store ptr {self.args}, ptr {w.value(f'getelementptr i8, ptr {self.record}, i64 8')}")
        w.line(f"store i64 {count}, ptr {w.value(f'getelementptr i8, ptr {self.record}, i64 16')}")
        short = w.value(f"trunc i64 {count} to i32")
        w.line(f"call void {self.run}(ptr {self.context}, ptr @{entry.name}.task, ptr {self.record}, i32 {short})")
        w.line(f"br label %{done}")
        w.label(single)
        w.line(f"call void @{function.symbol}(ptr {self.args}, i64 0, i64 1)")
        w.line(f"br label %{done}")
        w.label(done)

    def _fill(self, op: Op) -> None:
        kind, w = op.operands[0].type, self.w
        one = np.asarray(op.attrs["value"]).astype(kind.dtype.numpy).tobytes()
        pattern = int.from_bytes((one * 8)[:8], "little", signed=True)
        size = w.integer(bytes_of(kind))
        w.line(f"call void @{self.entry.name}.fill(ptr {self.pointers[op.operands[0]]}, i64 {size}, i64 {pattern})")

    def _table(self, op: Op) -> None:
        entry, w = self.entry, self.w
        name = f"{entry.name}.table.{len(entry.tables)}"
        fits = _Table(entry, op).text(name)
        entry.tables[op] = fits
        kind = op.operands[0].type.dtype
        outside = w.value(f"call i1 @{name}(ptr {self.pointers[op.operands[0]]}, ptr %sizes)")
        says = f"the values of the table %{op.operands[0].name} are not all {kind}"
        place = entry.requirements.setdefault(says, len(entry.requirements))
        self._fail(outside, ErrorKind.REQUIREMENT, place, says)

    def _check(self, op: Op) -> None:
        entry, w = self.entry, self.w
        place = entry.checks.setdefault(op, len(entry.checks))
        bits = 8 * op.operands[0].type.dtype.numpy.itemsize
        offset = op.attrs["place"] * bits // 8
        slot = w.value(f"getelementptr i8, ptr {self.pointers[op.operands[0]]}, i64 {offset}")
        wrong = w.value(f"icmp ne i{bits} {w.value(f'load i{bits}, ptr {slot}')}, 0")
        self._fail(wrong, ErrorKind.CHECK, place, op.attrs["says"])


class _Table:
    """A function that fills a tensor by an expression of its coordinates; it gives whether a value does not fit."""

    def __init__(self, entry: EntryWriter, op: Op):
        self.entry, self.op, self.w = entry, op, HostWriter()

    def text(self, name: str) -> str:
        """The function."""
        w, kind = self.w, self.op.operands[0].type
        load_sizes(w, self.entry.sizes)
        count = w.integer(prod((as_expr(e) for e in kind.shape), start=as_expr(1)))
        w.line("br label %head")
        w.label("head")
        w.line("%i = phi i64 [0, %entry], [%next, %body]")
        w.line("%wrong = phi i1 [false, %entry], [%worse, %body]")
        w.line(f"%more = icmp slt i64 %i, {count}")
        w.line("br i1 %more, label %body, label %done")
        w.label("body")
        rest = "%i"
        for s, extent in reversed(list(zip(self.op.attrs["over"], kind.shape, strict=True))):
            size = w.integer(maximum(as_expr(extent), 1))
            w.symbols[s] = (w.value(f"urem i64 {rest}, {size}"), 0)
            rest = w.value(f"udiv i64 {rest}, {size}")
        value = w.integer(as_expr(self.op.attrs["value"]))
        least, most = kind.dtype.limits
        low = w.value(f"icmp slt i64 {value}, {int(least)}")
        high = w.value(f"icmp sgt i64 {value}, {min(int(most), 2**63 - 1)}")
        outside = w.value(f"or i1 {low}, {high}")
        w.line(f"%worse = or i1 %wrong, {outside}")
        bits = 8 * kind.dtype.numpy.itemsize
        short = value if bits == 64 else w.value(f"trunc i64 {value} to i{bits}")
        slot = w.value(f"getelementptr i{bits}, ptr %to, i64 %i")
        w.line(f"store i{bits} {short}, ptr {slot}")
        w.line("%next = add i64 %i, 1")
        w.line("br label %head")
        self.entry.declared |= w.declared
        return (
            f"define internal i1 @{name}(ptr %to, ptr %sizes) nounwind {{\nentry:\n{w.text()}\n"
            "done:\n  ret i1 %wrong\n}"
        )
