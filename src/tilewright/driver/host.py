"""The pass that writes the host program: what runs when a kernel's arguments are bound, and at every launch.

Before: a request and its block programs. After: one module, whose host program takes the arguments as the caller
passes them, and launches the block programs on arguments in the form that these programs take:

host gemm_host(%a: in global f32 (5, 8), %b: in global f32 (8, 3), %c: out global f32 (5, 3))
{
  bind {                                                      # if %b is constant; else at every launch
    %packed_b = workspace global f32 (1, 8, 1, 1, 16, 1)
    launch pack_b(%b, %packed_b) workers 1
  }
  launch gemm(%a, %c, %packed_b) workers 2
}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import ceil, prod
from typing import Any

from tilewright.algebra.expr import Const, Expr, as_expr, index, symbol
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.algebra.expr_use import Substitution
from tilewright.driver.quotients import require_whole_quotients
from tilewright.driver.request import Request
from tilewright.ir.attrs import Range
from tilewright.ir.binding import open_parameters
from tilewright.ir.block import BLOCK
from tilewright.ir.builder import Builder
from tilewright.ir.core import Program, Value
from tilewright.ir.dtypes import DType, i32
from tilewright.ir.formula import Formula
from tilewright.ir.host import HOST
from tilewright.ir.module import Module, with_free_name
from tilewright.ir.tensors import TensorType
from tilewright.limits import ELEMENTS
from tilewright.lower.block.lower import Lowered
from tilewright.lower.block.packed_orders import Pack
from tilewright.machine import Machine
from tilewright.plan.choice import Choice
from tilewright.plan.model import cycles_to_copy


def write_host(request: Request, lowered: Lowered, choice: Choice) -> Module:
    """Return the Module of a compiled program: its block programs, and a host program that launches them.

    `lowered` has the block programs, `request` the arguments as the caller passes them. The host program first launches
    the kernels that prepare operands (once, for constant arguments), then the main one. Logged values become further
    arguments. Faults are checked after the launch. `choice` has predicted times; they decide numbers of workers if
    there is one for each kernel.
    """
    block = lowered.program
    roles = {a.name or "": program_arg.type.role for a, program_arg in zip(lowered.arguments, block.args, strict=False)}
    for name in _only_written(request.program):
        roles[name] = "out"  # callers may leave it out: elements that are not written stay as allocated
    host = _Host(request, block, roles)
    kernels = (*lowered.before, lowered)
    choices = choice.parts or (choice,)
    predicted = [c.cycles or None for c in choices] if len(choices) == len(kernels) else [None] * len(kernels)
    for each, cycles in zip(kernels[:-1], predicted, strict=False):
        with host.once(all(a.name in request.constant for a in each.arguments if a.name in host.args)):
            _launch_with_packs(host, request, each, cycles)
    _launch_with_packs(host, request, lowered, predicted[-1])
    return host.module()


class _Host:
    """A host program that is being written, and the block programs that it launches."""

    def __init__(self, request: Request, main: Program, roles: Mapping[str, str]):
        self.b, self.main, self.programs = Builder(HOST), main, list[Program]()
        self.name = f"{main.name}_host"
        self.cores = request.machine.limits.cores or 1
        self.in_parameters = request.opened.in_parameters
        self.args: dict[str, Value] = {}
        self.bound = False
        """True while operations are emitted that run when arguments are bound, not at every launch."""
        if request.opened:
            self.b.record("param", {"parameters": tuple((s, None) for s in request.opened.parameters)})
            for that in require_whole_quotients(request):
                self.b.record("require", {"that": that})
        for arg in request.program.args:
            name, shape = arg.name or "", tuple(self.in_parameters(as_expr(n)) for n in request.sized.shapes[arg])
            kind = TensorType("global", arg.type.dtype, shape, role=roles.get(name, "in"))
            self.args[name] = self.b.argument(name, kind)
        self.of_caller = frozenset(self.args)

    def is_new(self, name: str, kind: TensorType) -> bool:
        """True if a launch needs a new workspace for its argument `name`, of type `kind`.

        It does if no argument or workspace has that name yet. It also does if the launched program writes the argument,
        and the workspace of that name has another size or element type. An argument of the caller is never replaced.
        """
        known = self.args.get(name)
        if known is None or name in self.of_caller or kind.role != "out":
            return known is None
        room = [prod(map(self.in_parameters, shape), start=as_expr(1)) for shape in (known.type.shape, kind.shape)]
        return room[0] is not room[1] or known.type.dtype is not kind.dtype

    def workspace(self, dtype: DType, shape: Sequence[Any], name: str) -> Value:
        """Emit an allocation of global memory (a workspace) into the host program; return the new tensor.

        `dtype` and `shape` are the tensor's element type and extents, `name` its name.
        """
        kind = TensorType("global", dtype, tuple(self.in_parameters(as_expr(e)) for e in shape))
        return self.b.emit("workspace", attrs={"type": kind}, names=(name,)).result

    def shaped(self, value: Value, shape: Sequence[Any]) -> Value:
        """Emit a reshape of the tensor `value` to `shape`; return the result, or `value` if it has this shape."""
        extents = tuple(self.in_parameters(as_expr(e)) for e in shape)
        if value.type.shape == extents:
            return value
        return self.b.emit("reshape", (value,), {"shape": extents}, names=(f"{value.name}_shaped_",)).result

    def as_taken(self, name: str, kind: TensorType, unpadded: Sequence[Any]) -> Value:
        """Emit the operations that bring the argument `name` into the type `kind`; return the resulting tensor.

        A block program takes the argument in this form: with other strides, padded with zeros, converted to a wider
        type, or reshaped. The argument is returned unchanged if it has the type already. `unpadded` are the extents of
        an argument that is padded with zeros, without the zeros; () for any other.
        """
        argument = self.args[name]
        if kind.strides is not None:
            attrs = {"type": replace(kind, role=None)}
            return self.b.emit("restride", (argument,), attrs, names=(f"{name}_seen_",)).result
        if unpadded:
            return self._padded(name, self.shaped(argument, unpadded), kind)
        if argument.type.dtype is kind.dtype:
            return self.shaped(argument, kind.shape)
        wide = self.workspace(kind.dtype, kind.shape, f"{name}_wide_")
        rows, columns = self._as_rows([self.in_parameters(e) for e in kind.shape])
        flat = [self.shaped(value, (rows, columns)) for value in (argument, wide)]
        self.launch(_widening(name, argument.type.dtype, kind.dtype, rows, columns), flat, ROWS=rows, COLUMNS=columns)
        return wide

    def _padded(self, name: str, argument: Value, kind: TensorType) -> Value:
        """Emit a workspace of type `kind`, and the launch that fills it with `argument`, zero-padded; return it.

        The padding is along the dimension in which their shapes differ. `name` is the argument's name.
        """
        padded = self.workspace(kind.dtype, kind.shape, f"{name}_padded_")
        extents = [self.in_parameters(e) for e in kind.shape]
        dim = next(n for n, (a, b) in enumerate(zip(argument.type.shape, extents, strict=True)) if a is not b)
        outer, inner = extents[:dim], extents[dim + 1 :]
        rows, columns = self._as_rows(outer)
        inner_size = prod(inner, start=as_expr(1))
        short, long = argument.type.shape[dim], kind.shape[dim]
        flat = [self.shaped(x, (rows, columns, n, inner_size)) for x, n in ((argument, short), (padded, long))]
        self.launch(_padding(name, kind.dtype, (rows, columns, short, inner_size), long), flat)
        return padded

    def _as_rows(self, shape: Sequence[Expr]) -> tuple[Expr, Expr]:
        """Return (rows, columns): `shape` as a matrix with at least one row for each core, and as few rows as possible.

        Rows are the product of the first extents, columns that of the others: (2, 8, 5) on 4 cores -> (16, 5). Extents
        that are known only at the call count as 1. If no columns are left, the result is one row: (1, number of
        elements).
        """
        rows, known = as_expr(1), 1
        for place, extent in enumerate(shape):
            if known >= self.cores:
                return rows, prod(shape[place:], start=as_expr(1))
            rows, known = rows * extent, known * (int(extent) if isinstance(extent, Const) else 1)
        return as_expr(1), rows

    def launch(
        self, program: Program, operands: Sequence[Value], workers: Expr | int | None = None, **settings: Expr
    ) -> None:
        """Emit the launch of a block program on the tensors `operands`, and add the program to the module.

        A program with a name that is taken is renamed. A program that has no operations but `tasks` loops is added, but
        not launched. `workers` is the number of threads or workgroups; None: one per core. `settings` has values of the
        program's open parameters, by name.
        """
        if program is not self.main:
            program = with_free_name(program, (self.name, self.main.name, *(p.name for p in self.programs)))
        self.programs.append(program)
        if all(op.name == "tasks" for op in program.walk()):
            return
        parameter_values = {s.name: settings.get(s.name, s) for s in open_parameters(program)}
        attrs: dict[str, Any] = {
            "program": program.name,
            "workers": as_expr(self.cores if workers is None else workers),
        }
        if parameter_values:
            attrs["settings"] = tuple(parameter_values.items())
        self.b.emit("launch", operands, attrs)

    @contextmanager
    def once(self, constant: bool) -> Iterator[None]:
        """Context manager for operations that run once, when arguments are bound.

        If `constant`, operations emitted within it go to the host program's `bind` block. If not, or if it is nested in
        such a context, they are emitted as usual.
        """
        if constant and not self.bound:
            self.bound = True
            with self.b.inside("bind"):
                yield
            self.bound = False
        else:
            yield

    def module(self) -> Module:
        """Return the Module: the host program that was emitted, and the block programs that it launches."""
        return Module.of(self.b.program(self.name), self.programs)


def _launch_with_packs(host: _Host, request: Request, lowered: Lowered, cycles: float | None) -> None:
    """Emit the launches of `lowered` into the host program: those that pack its operands, then the program itself.

    `cycles` is the predicted time of these launches on all cores, without the packing of constant operands; None: it is
    not known. Arguments that the caller does not have become workspaces. Logged values become arguments, filled with
    NaN or 0. If the program can fault, a workspace for faults and a check of each are emitted too.
    """
    block = lowered.program
    packed = []
    for pack in lowered.packs:
        kind = pack.packed.type
        constant = pack.source.name in request.constant
        with host.once(constant):
            name = pack.source.name or ""
            source = host.as_taken(name, pack.program.args[0].type, lowered.unpadded.get(name, ()))
            packed.append(host.workspace(kind.dtype, kind.shape, pack.packed.name or "packed_"))
            packing = _cycles_to_pack(request, pack)
            host.launch(pack.program, (source, packed[-1]), _workers(host, request, pack.program, packing))
        if not constant and cycles is not None:
            cycles -= packing or 0.0
    operands = []
    for arg, program_arg in zip(lowered.arguments, block.args, strict=False):
        if host.is_new(arg.name or "", program_arg.type):
            host.args[arg.name or ""] = host.workspace(program_arg.type.dtype, program_arg.type.shape, arg.name or "")
        unpadded = lowered.unpadded.get(arg.name or "", ())
        is_copied = bool(unpadded) or host.args[arg.name or ""].type.dtype is not program_arg.type.dtype
        with host.once(arg.name in request.constant and is_copied):
            operands.append(host.as_taken(arg.name or "", program_arg.type, unpadded))
    operands += packed
    further_args = block.args[len(operands) :]
    for log, program_arg in zip(lowered.logs, further_args, strict=False):
        value = host.b.argument(program_arg.name or "", replace(program_arg.type, role="inout"))
        host.b.emit("fill", (value,), {"value": float("nan") if log.dtype.is_float else 0})
        operands.append(value)
    faults = None
    if lowered.faults:
        faults = host.workspace(i32, (len(lowered.faults),), further_args[-1].name or "faults")
        host.b.emit("fill", (faults,), {"value": 0})
        operands.append(faults)
    host.launch(block, operands, _workers(host, request, block, cycles))
    for number, fault in enumerate(lowered.faults):
        assert faults is not None
        host.b.emit("check", (faults,), {"place": number, "says": fault.what}, loc=fault.op.loc)


def _only_written(program: Program) -> Iterator[str]:
    """Yield the names of the arguments that `program`, a tile program, uses in `write` operations only, in the order of
    the arguments."""
    ops = list(program.walk())
    for arg in program.args:
        if any(op.name == "write" and op.operands[1] is arg for op in ops) and not any(
            arg in op.operands for op in ops if op.name != "write"
        ):
            yield arg.name or ""


def _workers(host: _Host, request: Request, program: Program, cycles: float | None) -> Expr:
    """Return the number of workers (threads or workgroups) for a launch of the block program `program`.

    It is one per task, at most one per core. On a CPU it is 1 if several workers would save less time than it takes to
    start them. `cycles` is the predicted time of `program` on all cores, with its launch; None: it is not known, and
    the time is not considered. Sizes that only the call tells have typical numbers for this decision. `host` is the
    host program that launches it.
    """
    task_loop = next(op for op in program.walk() if op.name == "tasks")
    tasks = host.in_parameters(prod((r.hi for r in task_loop.attrs["ranges"]), start=as_expr(1)))
    workers = minimum(tasks, host.cores)
    if request.machine.lanes is not None or cycles is None:
        return workers
    typical_tasks = Substitution(request.typical)(tasks)
    if not isinstance(typical_tasks, Const):
        return workers
    least_tasks = _least_tasks_to_share(request.machine, host.cores, typical_tasks.value, cycles)
    if isinstance(tasks, Const):
        return workers if tasks.value >= least_tasks else as_expr(1)
    return maximum(as_expr(1), (tasks >= least_tasks) * workers)


def _least_tasks_to_share(machine: Machine, cores: int, tasks: int, cycles: float) -> int:
    """Return the smallest number of tasks for which several workers are faster than one.

    The cycles of a task follow from `cycles`, the predicted time of `tasks` tasks on all `cores`, with the launch.
    Sharing pays if the tasks that other workers take from the first one need at least `machine.limits.sharing_cycles`.
    Up to `cores` tasks, the first worker keeps one task; of more, it keeps one part in `cores`.
    """
    tasks = max(1, tasks)
    cycles_per_task = max(cycles - machine.limits.launch_cycles, 1.0) * min(tasks, cores) / tasks
    done_by_others = ceil(machine.limits.sharing_cycles / cycles_per_task)
    return done_by_others + 1 if done_by_others < cores else ceil(done_by_others * cores / max(1, cores - 1))


def _cycles_to_pack(request: Request, pack: Pack) -> float | None:
    """Return the predicted cycles of `pack`, a kernel that packs an argument, on all cores.

    Sizes that only the call tells have typical numbers. Return None if one has none.
    """
    with_typical_sizes, moved_bytes = Substitution(request.typical), list[float]()
    for tensor in pack.program.args:
        elements = with_typical_sizes(prod(tensor.type.shape, start=as_expr(1)))
        if not isinstance(elements, Const):
            return None
        moved_bytes.append(elements.value * tensor.type.dtype.bits / 8)
    read, written = moved_bytes
    return cycles_to_copy(request.machine, read, written)


def _widening(name: str, narrow: DType, wide: DType, rows: Expr, columns: Expr) -> Program:
    """Return a new block program `widen_NAME` that converts a tensor of shape (rows, columns) from the type `narrow` to
    `wide`.

    It has one task per row. An extent that is not a number becomes a parameter of the program, ROWS or COLUMNS. NAME is
    `name`, the argument's name.
    """
    b, shape = Builder(BLOCK), [rows, columns]
    for dim, extent in enumerate(shape):
        if not isinstance(extent, Const):
            shape[dim] = symbol(("ROWS", "COLUMNS")[dim], 1, ELEMENTS.most)
    open_params = tuple((e, None) for e in shape if not isinstance(e, Const))
    if open_params:
        b.record("param", {"parameters": open_params})
    source = b.argument("narrow", TensorType("global", narrow, tuple(shape), role="in"))
    goal = b.argument("wide", TensorType("global", wide, tuple(shape), role="out"))
    row_range, along = Range.of("row", 0, shape[0]), index("i", shape[1])
    with b.inside("tasks", attrs={"ranges": (row_range,), "schedule": "contiguous"}):
        at = {"over": (along,), "at": ((row_range.symbol, False), (along, False))}
        source_row, goal_row = (b.emit("view", (x,), at, names=(f"{x.name}_row",)).result for x in (source, goal))
        b.emit("map", (goal_row, source_row), {"formula": Formula.cast(wide, Formula.operand(1))})
    return b.program(f"widen_{name}")


def _padding(name: str, dtype: DType, shape: Sequence[Expr], long: Expr) -> Program:
    """Return a new block program `pad_NAME` that copies a tensor and pads it with zeros along its third dimension.

    `shape` is (rows, columns, short, inner); the result has the shape (rows, columns, `long`, inner). It has one task
    per row. NAME is `name`, the argument's name.
    """
    b = Builder(BLOCK)
    rows, columns, short, inner = shape
    source = b.argument("short", TensorType("global", dtype, (rows, columns, short, inner), role="in"))
    goal = b.argument("long", TensorType("global", dtype, (rows, columns, long, inner), role="out"))
    row_range, over = Range.of("row", 0, rows), (index("i", columns), index("j", long), index("k", inner))
    i, j, k = over
    with b.inside("tasks", attrs={"ranges": (row_range,), "schedule": "contiguous"}):
        for_short = {"over": over, "at": ((row_range.symbol, False), (i, False), (j, True), (k, False))}
        for_long = {"over": over, "at": ((row_range.symbol, False), (i, False), (j, False), (k, False))}
        source_row = b.emit("view", (source,), for_short, names=("short_row",)).result
        goal_row = b.emit("view", (goal,), for_long, names=("long_row",)).result
        b.emit("copy", (source_row, goal_row), {"otherwise": 0})
    return b.program(f"pad_{name}")
