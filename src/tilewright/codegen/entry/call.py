"""Emission of two functions of a kernel: `NAME_bind` runs once for constant arguments, `NAME` at every call."""

from __future__ import annotations

import numpy as np

from tilewright.algebra.expr import Const, Expr, as_expr
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.codegen.entry.abi import ALIGNMENT, COUNTER_BYTES, EntryFault, ErrorKind
from tilewright.codegen.entry.memory import bytes_of
from tilewright.codegen.entry.plan import COUNT, EntryPlan
from tilewright.codegen.entry.sizes import HostWriter, load_sizes, outside_range, range_text
from tilewright.codegen.entry.table import TableFunction
from tilewright.ir.core import Block, Op, Value

ARGUMENTS = "ptr %buffers, ptr %sizes, ptr %kept, ptr %workspace, ptr %pool"


class CallFunction:
    """Emits the function `NAME_bind` or `NAME` of a kernel.

    `once` True: `NAME_bind`, with the operations of the host program's `bind` block, which run once for constant
    arguments. False: `NAME`, with all other operations, which run at every call.
    """

    def __init__(self, plan: EntryPlan, *, once: bool):
        self.plan, self.once = plan, once
        self.w = HostWriter()
        self.pointers: dict[Value, str] = {}

    def text(self) -> str:
        """Emit the whole function, and return its LLVM text.

        It is `NAME_bind` or `NAME`, depending on `self.once`. Also register the error codes of its checks, and the
        intrinsics that it needs, with the plan.
        """
        plan, w = self.plan, self.w
        room = max((8 * (len(op.operands) + 3 + len(p)) for op, p in plan.parameters.items()), default=8)
        self.args = w.value(f"alloca [{room} x i8], align {ALIGNMENT}")
        self.record = w.value("alloca [24 x i8], align 8")
        self._sizes()
        self._buffers()
        self._regions()
        self._pool()
        self.counters = w.value(f"alloca [{COUNTER_BYTES} x i8], i64 {w.integer(COUNT)}, align {COUNTER_BYTES}")
        self._block(plan.host.body, False)
        name = f"{plan.name}_bind" if self.once else plan.name
        plan.declared |= w.declared
        return (
            f"define i32 @{name}({ARGUMENTS}) nounwind {{\nentry:\n{w.text()}\n  br label %finish\n"
            "finish:\n  ret i32 0\n}"
        )

    # -- checks -------------------------------------------------------------------------------------------

    def _fail(self, when: str, fault: EntryFault) -> None:
        """Emit a conditional return: if `when`, the LLVM name of an i1, is set, the emitted function returns the code
        of `fault`.

        Otherwise the code emitted next runs.
        """
        w = self.w
        w.count += 1
        failed, passed = f"fail{w.count}", f"go{w.count}"
        w.line(f"br i1 {when}, label %{failed}, label %{passed}")
        w.label(failed)
        w.line(f"ret i32 {fault.code}")
        w.label(passed)

    def _require(self, condition: Expr, says: str) -> None:
        """Emit a conditional return: unless `condition`, an expression of the sizes, holds, return an error code.

        The code has the message `says`; it is also registered with the plan.
        """
        self._fail(self._not(self.w.condition(condition)), self.plan.requirement(says))

    def _not(self, condition: str) -> str:
        """Emit the negation of `condition`, the LLVM name of an i1, and return the LLVM name of the result."""
        return self.w.value(f"xor i1 {condition}, true")

    def _sizes(self) -> None:
        """Emit loads of the open sizes (known only at the call) from the array `%sizes`, and checks of them.

        The emitted checks return an error code if `%sizes` is null, if a size is out of its range, or if a `require`
        condition of the program does not hold. Without open sizes, emit nothing.
        """
        sizes, w = self.plan.sizes, self.w
        if not sizes:
            return
        absent = w.value("icmp eq ptr %sizes, null")
        self._fail(absent, self.plan.fault(ErrorKind.BAD_SIZE, 0, range_text(sizes[0])))
        load_sizes(w, sizes)
        for place, s in enumerate(sizes):
            self._fail(outside_range(w, s), self.plan.fault(ErrorKind.BAD_SIZE, place, range_text(s)))
        for record in self.plan.host.records:
            if record.name == "require":
                self._require(record.attrs["that"], f"it requires {record.attrs['that']}")

    def _buffers(self) -> None:
        """Emit loads of the addresses of the buffers (the kernel's arguments) that the emitted function uses, and
        checks.

        The emitted checks return an error code if a buffer is null or misaligned for its element type, or if a written
        buffer overlaps another. Record the address of each buffer in `self.pointers`. If the function uses no buffer,
        emit nothing.
        """
        plan, w = self.plan, self.w
        used = plan.memory.used(self.once)
        args = [(place, arg) for place, arg in enumerate(plan.host.args) if arg in used]
        if not args:
            return
        is_null = "the buffer {} is null"
        place, first = args[0]
        self._fail(
            w.value("icmp eq ptr %buffers, null"),
            self.plan.fault(ErrorKind.NULL_BUFFER, place, is_null.format(first.name)),
        )
        addresses: dict[Value, str] = {}
        for place, arg in args:
            slot = w.value(f"getelementptr i8, ptr %buffers, i64 {8 * place}")
            pointer = self.pointers[arg] = w.value(f"load ptr, ptr {slot}")
            null = w.value(f"icmp eq ptr {pointer}, null")
            self._fail(null, self.plan.fault(ErrorKind.NULL_BUFFER, place, is_null.format(arg.name)))
            size = arg.type.dtype.numpy.itemsize
            addresses[arg] = w.value(f"ptrtoint ptr {pointer} to i64")
            if size > 1:
                low = w.value(f"and i64 {addresses[arg]}, {size - 1}")
                says = f"the buffer {arg.name} does not lie at a multiple of {size} bytes"
                self._fail(w.value(f"icmp ne i64 {low}, 0"), self.plan.fault(ErrorKind.MISALIGNED_BUFFER, place, says))
        written = plan.memory.written(self.once, plan.roles)
        ends = {a: w.value(f"add i64 {addresses[a]}, {w.integer(bytes_of(a.type))}") for _, a in args}
        for place, arg in args:
            for other_place, other in args:
                if arg not in written or (other in written and other_place <= place) or other is arg:
                    continue
                before = w.value(f"icmp ult i64 {addresses[arg]}, {ends[other]}")
                after = w.value(f"icmp ult i64 {addresses[other]}, {ends[arg]}")
                says = f"the buffer {arg.name}, which is written, overlaps another"
                self._fail(
                    w.value(f"and i1 {before}, {after}"), self.plan.fault(ErrorKind.OVERLAPPING_BUFFERS, place, says)
                )

    def _regions(self) -> None:
        """Emit checks of the memory that the caller lends, `%kept` and `%workspace`, and the addresses of workspaces in
        it.

        Record these addresses in `self.pointers`, and the address of the workers' scratch memory, behind the
        workspaces, in `self.scratch`.
        """
        memory, w = self.plan.memory, self.w
        self._region("%kept", memory.kept_bytes, ErrorKind.BAD_KEPT, "kept")
        self._region("%workspace", self.plan.workspace_bytes(), ErrorKind.BAD_WORKSPACE, "workspace")
        for base, places in (("%kept", memory.kept), ("%workspace", memory.workspaces)):
            for value, offset in places.items():
                self.pointers[value] = w.value(f"getelementptr i8, ptr {base}, i64 {w.integer(offset)}")
        self.scratch = w.value(f"getelementptr i8, ptr %workspace, i64 {w.integer(memory.workspace_bytes)}")

    def _region(self, base: str, size: Expr, kind: ErrorKind, what: str) -> None:
        """Emit a check that returns an error code if the pointer `base` to lent memory is null or not a multiple of 64.

        `size` is the number of bytes of the memory, an expression of sizes; for the constant 0, emit nothing. `kind` is
        the kind of the error code, `what` the name of the memory in its message.
        """
        w = self.w
        if isinstance(size, Const) and size.value == 0:
            return
        null = w.value(f"icmp eq ptr {base}, null")
        address = w.value(f"ptrtoint ptr {base} to i64")
        low = w.value(f"and i64 {address}, {ALIGNMENT - 1}")
        wrong = w.value(f"or i1 {null}, {w.value(f'icmp ne i64 {low}, 0')}")
        self._fail(
            wrong, self.plan.fault(kind, 0, f"{what} is null, or does not lie at a multiple of {ALIGNMENT} bytes")
        )

    def _pool(self) -> None:
        """Emit loads from the caller's thread pool: its context, its run function and its number of workers.

        Record their LLVM names in `self.context`, `self.run` and as the symbol `COUNT`. If `%pool` is null at run time,
        there is one worker and no run function. The emitted check returns an error code for a pool without a run
        function or with fewer than one worker.
        """
        w = self.w
        w.line("br label %looking")
        w.label("looking")
        no_pool = w.value("icmp eq ptr %pool, null")
        w.line(f"br i1 {no_pool}, label %alone, label %several")
        w.label("several")
        self.context = w.value("load ptr, ptr %pool")
        self.run = w.value(f"load ptr, ptr {w.value('getelementptr i8, ptr %pool, i64 8')}")
        count = w.value(f"load i32, ptr {w.value('getelementptr i8, ptr %pool, i64 16')}")
        wrong = w.value(f"or i1 {w.value(f'icmp eq ptr {self.run}, null')}, {w.value(f'icmp slt i32 {count}, 1')}")
        self._fail(
            wrong, self.plan.fault(ErrorKind.BAD_POOL, 0, "the pool has no function `run`, or fewer than one worker")
        )
        wide = w.value(f"sext i32 {count} to i64")
        several = w.block
        w.line("br label %alone")
        w.label("alone")
        phis = {"ptr": ("null", [self.context, self.run]), "i64": ("1", [wide])}
        phi_values = []
        for kind, (otherwise, values) in phis.items():
            for value in values:
                phi_values.append(w.value(f"phi {kind} [{otherwise}, %looking], [{value}, %{several}]"))
        self.context, self.run, count = phi_values
        w.symbols[COUNT] = (count, 0)

    # -- the program ----------------------------------------------------------------------------------------

    def _block(self, block: Block, once: bool) -> None:
        """Emit those operations of a block of the host program (launches and the like) that belong to the emitted
        function.

        Operations within a `bind` block, for which `once` is True, belong to `NAME_bind`, all others to `NAME`. A
        `return` jumps to the function's end. Record the addresses of reshaped tensors in `self.pointers`.
        """
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
                source = self.plan.memory.roots[op.results[0]]
                if source in self.pointers:
                    self.pointers[op.results[0]] = self.pointers[source]
            elif op.name != "workspace" and once is self.once:
                getattr(self, f"_{op.name}")(op)

    def _if(self, op: Op, once: bool) -> None:
        """Emit the `if` operation `op` of the host program: a jump on its condition, and the operations of each branch.

        Only operations that belong to the emitted function are emitted. `once` is True within a `bind` block: its
        operations belong to `NAME_bind`, all others to `NAME`.
        """
        w = self.w
        condition = w.condition(op.attrs["when"])
        w.count += 1
        number = w.count
        names = [f"then{number}", f"else{number}"][: len(op.blocks)]
        done = f"end{number}"
        w.line(f"br i1 {condition}, label %{names[0]}, label %{names[1] if len(names) == 2 else done}")
        for name, block in zip(names, op.blocks, strict=True):
            known, symbols = dict(w.scope.known), dict(w.symbols)  # values of a branch are unknown after it
            w.label(name)
            self._block(block, once)
            w.line(f"br label %{done}")
            w.scope.known, w.symbols = known, symbols
        w.label(done)

    def _launch(self, op: Op) -> None:
        """Emit the launch `op` of a compiled program: checks of its conditions, an array of its arguments, and the
        call.

        With several workers, the emitted code lets the pool run the program on each of them. With one worker, it calls
        the program directly.
        """
        plan, w = self.plan, self.w
        for condition, says in plan.conditions(op):
            self._require(condition, says)
        function = plan.launches[op]
        count = w.integer(maximum(minimum(as_expr(op.attrs["workers"]), COUNT), 1))
        configuration = "null" if plan.configuration is None else f"@{plan.name}.configuration"
        words = [f"ptr {self.pointers[v]}" for v in op.operands]
        words += [f"ptr {self.scratch}", f"ptr {configuration}", f"ptr {self.counters}"]
        words += [f"i64 {w.integer(e)}" for e in plan.parameters[op].values()]
        for place, word in enumerate(words):
            slot = w.value(f"getelementptr i8, ptr {self.args}, i64 {8 * place}")
            w.line(f"store {word}, ptr {slot}")
        counter_bytes = w.value(f"mul i64 {count}, {COUNTER_BYTES}")
        w.line(f"call void @{plan.name}.fill(ptr {self.counters}, i64 {counter_bytes}, i64 0)")
        w.count += 1
        several, single, done = (f"{what}{w.count}" for what in ("several", "single", "launched"))
        w.line(f"br i1 {w.value(f'icmp sgt i64 {count}, 1')}, label %{several}, label %{single}")
        w.label(several)
        w.line(f"store ptr @{function.symbol}, ptr {self.record}")
        w.line(f"store ptr {self.args}, ptr {w.value(f'getelementptr i8, ptr {self.record}, i64 8')}")
        w.line(f"store i64 {count}, ptr {w.value(f'getelementptr i8, ptr {self.record}, i64 16')}")
        short = w.value(f"trunc i64 {count} to i32")
        w.line(f"call void {self.run}(ptr {self.context}, ptr @{plan.name}.task, ptr {self.record}, i32 {short})")
        w.line(f"br label %{done}")
        w.label(single)
        w.line(f"call void @{function.symbol}(ptr {self.args}, i64 0, i64 1)")
        w.line(f"br label %{done}")
        w.label(done)

    def _fill(self, op: Op) -> None:
        """Emit the `fill` operation `op`: a call that sets all elements of its tensor to one number."""
        kind, w = op.operands[0].type, self.w
        one = np.asarray(op.attrs["value"]).astype(kind.dtype.numpy).tobytes()
        pattern = int.from_bytes((one * 8)[:8], "little", signed=True)
        size = w.integer(bytes_of(kind))
        w.line(f"call void @{self.plan.name}.fill(ptr {self.pointers[op.operands[0]]}, i64 {size}, i64 {pattern})")

    def _table(self, op: Op) -> None:
        """Emit the `table` operation `op`: a call that fills its tensor of integers with the values of an expression.

        If a value does not fit the element type, the emitted function returns an error code. Add the LLVM text of the
        called function to `self.plan.tables`.
        """
        plan, w = self.plan, self.w
        name = f"{plan.name}.table.{len(plan.tables)}"
        text = TableFunction(plan, op).text(name)
        plan.tables[op] = text
        kind = op.operands[0].type.dtype
        is_out_of_range = w.value(f"call i1 @{name}(ptr {self.pointers[op.operands[0]]}, ptr %sizes)")
        says = f"the values of the table %{op.operands[0].name} are not all {kind}"
        self._fail(is_out_of_range, plan.requirement(says))

    def _check(self, op: Op) -> None:
        """Emit the `check` operation `op`: if its element of a tensor is not 0, the emitted function returns its error
        code.
        """
        plan, w = self.plan, self.w
        bits = 8 * op.operands[0].type.dtype.numpy.itemsize
        offset = op.attrs["place"] * bits // 8
        slot = w.value(f"getelementptr i8, ptr {self.pointers[op.operands[0]]}, i64 {offset}")
        wrong = w.value(f"icmp ne i{bits} {w.value(f'load i{bits}, ptr {slot}')}, 0")
        self._fail(wrong, plan.check(op))
