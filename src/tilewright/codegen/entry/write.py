"""Emission of the functions of a kernel that C calls, as LLVM text, from its host program.

Each launched program is `void PROGRAM(ptr args, i64 worker, i64 workers)`, as `targets/cpu/emit` writes it. The entry
builds `args` on its stack: the tensors, scratch memory (a piece for each worker), the tile configuration, the counter
of dynamic tasks, open parameters. All sizes are computed first; code that depends on them has no branches but the
program's own `if`s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.algebra.expr import Expr
from tilewright.codegen.entry.abi import EntryFault
from tilewright.codegen.entry.call import CallFunction
from tilewright.codegen.entry.plan import COUNT, EntryPlan
from tilewright.codegen.entry.sizes import HostWriter, load_sizes
from tilewright.codegen.entry.texts import TextConstants
from tilewright.codegen.entry.tvm_ffi import PackedFunction
from tilewright.ir.core import Op


@dataclass(frozen=True)
class WrittenEntry:
    """The LLVM text of a kernel's functions, and the facts that a caller needs.

    Byte counts are expressions of the sizes; `workspace_bytes` depends on the number of workers (`COUNT`), too. `bound`
    are the names of the arguments that `NAME_bind` reads or writes, `called` those of `NAME`. `checks` maps error codes
    to the `check` operations of the host program.
    """

    text: str
    faults: tuple[EntryFault, ...]
    kept_bytes: Expr
    workspace_bytes: Expr
    most_workers: int
    bound: tuple[str, ...]
    called: tuple[str, ...]
    checks: Mapping[int, Op]


def write_entry(plan: EntryPlan, *, tvm_ffi: bool = False) -> WrittenEntry:
    """Return a WrittenEntry: the LLVM text of all C functions of the kernel that `plan` describes, and facts for
    callers.

    The facts are error codes, byte counts, and the names of the arguments that each function uses. If `tvm_ffi` is
    True, the text includes the function that TVM-FFI calls.
    """
    name = plan.name
    functions = [_task(name), _fill(name), *_configured(plan)]
    functions += [CallFunction(plan, once=once).text() for once in (True, False)]
    functions += list(plan.tables.values())
    kept, workspace = plan.memory.kept_bytes, plan.workspace_bytes()
    functions.append(_bytes(plan, f"{name}_kept_bytes", "ptr %sizes", kept))
    functions.append(_bytes(plan, f"{name}_workspace_bytes", "ptr %sizes, i32 %count", workspace))
    functions.append(_message(name, plan.faults))
    if tvm_ffi:
        functions.append(PackedFunction(plan).text())
    used = {once: plan.memory.used(once) for once in (True, False)}
    bound, called = (tuple(a.name or "" for a in plan.host.args if a in used[once]) for once in (True, False))
    text = "\n".join([*plan.declared, *functions]) + "\n"
    return WrittenEntry(text, plan.faults, kept, workspace, plan.most_workers, bound, called, plan.checks)


def _task(name: str) -> str:
    """Return the LLVM text of the internal function that each worker of the pool runs for a launch.

    It calls the launched program with the worker's index. `name` is the kernel's name.
    """
    return f"""define internal void @{name}.task(ptr %record, i32 %worker) nounwind {{
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


def _fill(name: str) -> str:
    """Return the LLVM text of an internal function that fills memory with a repeated pattern of eight bytes.

    The last repetition may be partial. `name` is the kernel's name.
    """
    return f"""define internal void @{name}.fill(ptr %to, i64 %bytes, i64 %pattern) nounwind {{
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


def _configured(plan: EntryPlan) -> list[str]:
    """Return the LLVM lines that define the configuration of the machine's tile registers as a constant.

    The list has one line, or none for a machine without tile registers.
    """
    if plan.configuration is None:
        return []
    entries = ", ".join(f"i8 {n}" for n in plan.configuration)
    kind = f"[{len(plan.configuration)} x i8]"
    return [f"@{plan.name}.configuration = internal constant {kind} [{entries}], align 64"]


def _bytes(plan: EntryPlan, name: str, arguments: str, count: Expr) -> str:
    """Return the LLVM text of a C function `name` that returns the number of bytes `count`, an expression of the sizes.

    `arguments` is the function's LLVM parameter list, as text. If it has `%count`, `count` may also depend on the
    pool's number of workers. Also add the intrinsics that the function needs to `plan.declared`.
    """
    w = HostWriter()
    load_sizes(w, plan.sizes)
    if "%count" in arguments:
        w.declare("i64 @llvm.smax.i64(i64, i64)")
        wide = w.value("sext i32 %count to i64")
        w.symbols[COUNT] = (w.value(f"call i64 @llvm.smax.i64(i64 {wide}, i64 1)"), 0)
    result = w.integer(count)
    plan.declared |= w.declared
    return f"define i64 @{name}({arguments}) nounwind {{\nentry:\n{w.text()}\n  ret i64 {result}\n}}"


def _message(name: str, faults: tuple[EntryFault, ...]) -> str:
    """Return the LLVM text of the C function that maps an error code to its message, and of the messages in `faults`.

    Code 0 has an empty message, and unknown codes share a message. `name` is the kernel's name.
    """
    texts = TextConstants(f"{name}.says")
    lines = [f"define ptr @{name}_message(i32 %code) nounwind {{\nentry:"]
    known = f"ptr {texts.label('no code of this kernel')}"
    for number, (code, says) in enumerate([(0, ""), *((f.code, f.says) for f in faults)]):
        lines.append(f"  %is{number} = icmp eq i32 %code, {code}")
        lines.append(f"  %says{number} = select i1 %is{number}, ptr {texts.label(says)}, {known}")
        known = f"ptr %says{number}"
    return "\n".join([*texts.lines(), *lines, f"  ret {known}\n}}"])
