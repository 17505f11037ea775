"""Tile kernels as machine code: a block program for each set of sizes, made when a call brings them, and kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import prod
from typing import Any

import numpy as np

from tilewright.algebra.expr import ONE, Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.compiler.contraction import ContractionKernel
from tilewright.compiler.fast_path import report_loss
from tilewright.compiler.host import host_of_one
from tilewright.compiler.kernels import Executable, restored
from tilewright.compiler.symbols import refuse_unknown
from tilewright.errors import ArgumentError, ExecutionError
from tilewright.interpret.grid import is_grid
from tilewright.interpret.loops import accumulates_only, logs_iterations, tiling_of
from tilewright.ir.attrs import attr_symbols
from tilewright.ir.core import MemoryType, Op, Program, Value
from tilewright.passes.job import Job
from tilewright.passes.pipeline import run
from tilewright.passes.tile.general import Lowered
from tilewright.plan.general import GeneralChoice
from tilewright.plan.opening import opened
from tilewright.plan.plan import Plan, parse_plan
from tilewright.runtime.arguments import Arguments
from tilewright.runtime.arrays import empty
from tilewright.runtime.dump import Dump
from tilewright.runtime.timing import benchmark
from tilewright.targets.registry import native

Array = np.ndarray[Any, np.dtype[Any]]
LEVELS = ("tile", "plan", "block", "host", "loop", "llvm", "asm")


class NativeExecutable(Executable):
    """A kernel that runs as machine code; call it as any executable. Sizes may differ from call to call."""

    def __init__(
        self,
        program: Program,
        known: Mapping[Symbol, Expr],
        target: str,
        plan: str | Plan | None = None,
        dynamic: Collection[Symbol] = (),
        require_atoms: bool = False,
        lenient: bool = False,
    ):
        super().__init__(program, known, lenient)
        self.dynamic = tuple(dynamic)
        self.target = target
        self.plan = parse_plan(plan) if isinstance(plan, str) else plan
        self._grid = is_grid(program)
        self._free = {op for op in program.walk() if op.name == "iterate" and _is_free(program, op)}
        self.path = "best"
        self.why = ""
        self._kernels: dict[Any, Compiled | CompiledContraction] = {}
        self._last: Compiled | CompiledContraction | None = None
        self._require_atoms, self._reported = require_atoms, False

    def _report_loss(self, lost: Mapping[Op, str]) -> None:
        """Says, once, that products run without atoms; not where a plan asked for that."""
        asked = self.plan is not None and any(p.atom is None for p in self.plan.products)
        if self._require_atoms or not (asked or self._reported):
            self._reported = self._reported or bool(lost)
            report_loss(self.program, lost, native(self.target).machine, required=self._require_atoms)

    def block(
        self, symbols: Mapping[Symbol, int], shapes: Mapping[Value, tuple[int, ...]], *, logs: bool = False
    ) -> Lowered:
        """The block program of the general path for these sizes; with `logs`, it keeps what debug_log asks for."""
        found = run(self._job(symbols, shapes, logs=logs, general=True)).lowered
        assert found is not None
        return found

    def _job(
        self,
        symbols: Mapping[Symbol, int],
        shapes: Mapping[Value, tuple[int, ...]],
        *,
        logs: bool,
        general: bool = False,
    ) -> Job:
        here = native(self.target)
        free = {op for op in self._free if not (logs and _keeps_tiles(self.program, op))}
        general = general or self.path == "general"
        derived = {s: e for s, e in self.known.items() if s not in symbols} if self._grid else None
        return Job(
            here.machine,
            self.program,
            symbols,
            shapes,
            free,
            logs,
            self.plan,
            general_only=general,
            workgroups=derived,
            lenient=self.lenient,
        )

    def compiled(
        self, symbols: Mapping[Symbol, int], shapes: Mapping[Value, tuple[int, ...]], *, logs: bool = False
    ) -> Compiled | CompiledContraction:
        """The machine code for these sizes; made once."""
        if self.dynamic and not logs:
            longer = self._job(symbols, shapes, logs=False).longer() if self.lenient else None
            if longer is None:
                return self._open(symbols)
        sizes = tuple(sorted((s.name, n) for s, n in symbols.items()))
        key = (sizes, tuple(shapes[a] for a in self.program.args), logs)
        found = self._kernels.get(key)
        if found is None:
            dump = Dump.of(self.name)
            job = run(self._job(symbols, shapes, logs=logs), dump.write)
            self.why = job.why
            if job.lowered is not None and not logs:
                self._report_loss(job.lowered.lost)
            found = (
                Compiled(job, self.target, dump) if job.lowered is not None else CompiledContraction(job, self.target)
            )
            self._kernels[key] = found
        self._last = found
        return found

    def _open(self, symbols: Mapping[Symbol, int]) -> CompiledContraction:
        """The machine code for all values of the dynamic sizes: made once for the others, planned for the first."""
        left = {s: e for s, e in self.known.items() if s not in self.dynamic}
        fixed = {s: n for s, n in symbols.items() if s not in self.dynamic and not left.get(s, ONE).symbols}
        key = ("open", tuple(sorted((s.name, n) for s, n in fixed.items())))
        found = self._kernels.get(key)
        if found is None:
            bound = {**{s: as_expr(n) for s, n in fixed.items()}, **{s: e for s, e in left.items() if s not in fixed}}
            images = Substitution(fixed)
            known = {s: images(e) for s, e in bound.items()}
            typical = {s: symbols[s] for s in self.dynamic}
            contraction = opened(self.program, known, self.dynamic, typical)
            if isinstance(contraction, str):
                names = ", ".join(s.name for s in self.dynamic)
                raise ArgumentError(f"{self.name}: dynamic {names}: only contractions have open sizes: {contraction}")
            here = native(self.target)
            job = Job(here.machine, given=self.plan, contraction=contraction)
            found = CompiledContraction(run(job, Dump.of(self.name).write), self.target)
            self._kernels[key] = found
        assert isinstance(found, CompiledContraction)
        self._last = found
        return found

    @property
    def object_code(self) -> bytes:
        """The object code of the main program, for the sizes used last."""
        if self._last is None:
            raise ArgumentError(f"{self.name} has no sizes yet: call it first")
        return self._last.object_code

    def explain(self) -> str:
        """How the program is done, for the sizes used last: its plan, the time it should take, what was refused."""
        if self._last is None:
            return f"{self.name} has no sizes yet: call it first, or ask for text(level, sizes)"
        if isinstance(self._last, CompiledContraction):
            return self._last.kernel.explain()
        why = f"no single contraction: {self.why}" if self.why else ""
        return "\n".join(filter(None, [self._last.choice.explain(), why]))

    def benchmark(self, *args: Any, seconds: float = 0.2, **named: Any) -> dict[str, float]:
        """Seconds of a call on these arguments, outputs too: the shortest, the median, and how many were taken."""
        return benchmark(self.bind(*args, **named), seconds)

    def text(self, level: str = "tile", symbols: Mapping[Any, int] | None = None) -> str:
        """The program on a level: "tile", "plan", "block", "host", "loop", "llvm" or "asm".

        Below "tile" it is that of the sizes called last, or of these: `symbols` binds those that shapes would tell.
        """
        if level == "tile":
            return super().text()
        if level not in LEVELS:
            raise ArgumentError(f"level={level!r}: there are {', '.join(map(repr, LEVELS))}")
        if symbols is not None:
            return self._of_sizes(symbols).text(level)
        if self._last is None:
            raise ArgumentError(
                f"{self.name} has no sizes yet: call it first, or give them, text({level!r}, {{M: 64}})"
            )
        return self._last.text(level)

    def _of_sizes(self, symbols: Mapping[Any, int]) -> Compiled | CompiledContraction:
        from tilewright.compiler.kernels import resolve

        named = {k if isinstance(k, str) else k.name: n for k, n in symbols.items()}
        every = {s for d in self._measures() if d is not None for s in d.symbols} | set(self.known)
        refuse_unknown(self.name, named, sorted(s.name for s in every))
        bindings: dict[Expr, Any] = dict(self.known.items())
        bindings |= {s: as_expr(named[s.name]) for s in every if s.name in named}
        found = resolve(bindings)
        numbers = {s: int(e) for s, e in found.items() if e.is_constant}
        images = Substitution(numbers)
        shapes = {}
        for arg in self.program.args:
            sizes = arg.type.sizes if isinstance(arg.type, MemoryType) else ()
            measured = [None if d is None else images(d) for d in sizes]
            left = [str(d) for d in measured if d is None or not d.is_constant]
            if left:
                raise ArgumentError(f"{self.name}: the size of {arg.name} is not known: {', '.join(left)}")
            shapes[arg] = tuple(int(d) for d in measured if d is not None)
        return self.compiled(numbers, shapes)

    def _measures(self) -> list[Expr | None]:
        return [d for a in self.program.args if isinstance(a.type, MemoryType) for d in a.type.sizes]

    def bind(self, *args: Any, **named: Any) -> Callable[[], None]:
        """The kernel bound to all its arguments, outputs too: a call of the result runs it on what they hold by then.

        Checks and look-ups are done once, here.
        """
        bound = Arguments(self.program, self.outputs, self.known, self._arranged(args, named), self.lenient)
        if bound.made:
            raise ArgumentError(f"{self.name}: bind takes all arguments, outputs too")
        if bound.is_empty:
            return lambda: None
        return self.compiled(self._sizes(bound), self._shapes(bound)).bound(bound.values, self.outputs)

    def _sizes(self, bound: Arguments) -> dict[Symbol, int]:
        """The sizes of a call; scalar arguments count among them where workgroups and loops depend on them."""
        asked = {
            s
            for r in self.program.records
            if r.name in ("workgroup", "tiling", "grid", "reordering")
            for name, value in r.attrs.items()
            for s in attr_symbols(r.spec.attrs[name], value)
        }
        found = dict(bound.symbols)
        for op in self.program.body.ops if self._grid else ():
            if op.name == "set_symbol" and op.operands[0] in bound.values and op.attrs["symbol"] in asked:
                found[op.attrs["symbol"]] = int(bound.values[op.operands[0]])
        return found

    def _shapes(self, bound: Arguments) -> dict[Value, tuple[int, ...]]:
        return {a: bound.values[a].shape if isinstance(a.type, MemoryType) else () for a in self.program.args}

    def _run(self, args: tuple[Any, ...], logs: dict[str, Any] | None) -> Any:
        bound = Arguments(self.program, self.outputs, self.known, args, self.lenient)
        if logs is None and any(function is not None for pair in self.program.hooks.values() for function in pair):
            logs = {}
        if not bound.is_empty:
            found = self.compiled(self._sizes(bound), self._shapes(bound), logs=logs is not None)
            found.bound(bound.values, self.outputs)(logs)
        self._finish_logs(bound, logs)
        return bound.finish()

    def __reduce__(self) -> tuple[Any, ...]:
        dynamic = tuple(s.name for s in self.dynamic)
        made_of = (self.program, self.target, self.plan, dynamic, self._require_atoms, self.lenient)
        return restored, made_of, {"path": self.path}

    def __repr__(self) -> str:
        return self._shown(self.target)


class Compiled:
    """One member of the family: a block program and its machine code."""

    def __init__(self, job: Job, target: str, dump: Dump):
        assert job.lowered is not None
        assert isinstance(job.choice, GeneralChoice)
        self.lowered, self.choice = job.lowered, job.choice
        lowered = job.lowered
        self.kernel = native(target).kernel(lowered.program, job.machine, dump)
        self.tasks = _tasks(lowered.program)
        self.packers = [(native(target).kernel(p.program, job.machine, dump), _tasks(p.program)) for p in lowered.packs]

    def text(self, level: str) -> str:
        """The program on a level."""
        if level == "plan":
            return "\n".join(self.choice.plan.lines()) + "\n"
        if level == "block":
            return str(self.lowered.program)
        if level == "host":
            return host_of_one(self.lowered.program)
        return str(getattr(self.kernel, {"loop": "loop", "llvm": "llvm", "asm": "assembly"}[level]))

    @property
    def object_code(self) -> bytes:
        """Its object code."""
        found: bytes = self.kernel.object
        return found

    def bound(self, values: Mapping[Value, Any], outputs: tuple[Value, ...]) -> Bound:
        """The program bound to arrays and numbers; call it as often as wanted."""
        staged = Staged(self.lowered, values, outputs)
        packing = [
            kernel.launch(arrays, tasks) for (kernel, tasks), arrays in zip(self.packers, staged.packed, strict=True)
        ]
        main = self.kernel.launch(staged.arrays, self.tasks)

        def launch() -> None:
            for pack in packing:
                pack()
            main()

        return Bound(staged, launch if packing else main)


class CompiledContraction:
    """One member of a family of contractions: planned, its second factor packed at every call."""

    def __init__(self, job: Job, target: str):
        self.kernel = ContractionKernel.of(job, target)

    def text(self, level: str) -> str:
        """The kernel on a level."""
        return self.kernel.text(level)

    @property
    def object_code(self) -> bytes:
        """The main program's object code."""
        return self.kernel.main.object_code

    def bound(self, values: Mapping[Value, Any], outputs: tuple[Value, ...]) -> Callable[..., None]:
        """The program bound to arrays; call it as often as wanted."""
        given = {a.name or "": np.asarray(v) for a, v in values.items()}
        held = {name: np.ascontiguousarray(array) for name, array in given.items()}
        written = {a.name or "" for a in outputs}
        c = self.kernel.contraction
        packed = empty(self.kernel.packed_shape, self.kernel.packed_dtype.numpy)
        repack, launch = self.kernel.packing(held[c.b.name], packed), self.kernel.bind(held, packed)

        def run(logs: dict[str, Any] | None = None) -> None:
            for name, array in given.items():
                if held[name] is not array and name not in written:
                    held[name][...] = array
            repack()
            launch()
            for name in written:
                if held[name] is not given[name]:
                    given[name][...] = held[name]

        return run


class Bound:
    """Machine code bound to arrays: a call runs it on what they hold by then."""

    def __init__(self, staged: Staged, launch: Callable[[], None]):
        self.staged, self.launch = staged, launch

    def __call__(self, logs: dict[str, Any] | None = None) -> None:
        """Runs it; `logs` receives what debug_log keeps."""
        self.staged.run(self.launch, logs)


class Staged:
    """The arguments of a tile program as arrays for its block program, in order.

    Arrays that do not lie in memory as they should are copied before each run, and back after it.
    """

    def __init__(self, lowered: Lowered, values: Mapping[Value, Any], outputs: tuple[Value, ...]):
        self.lowered = lowered
        self._copies: list[tuple[Array, Array, bool]] = []
        self.arrays: list[Array] = []
        held: dict[Value, Array] = {}
        for arg in dict.fromkeys((*lowered.arguments, *(p.source for p in lowered.packs))):
            given = np.asarray(values[arg]).astype(arg.type.dtype.numpy, copy=False)
            held[arg] = given
            if not (given.flags.c_contiguous and given.flags.aligned):
                held[arg] = np.empty(given.shape, given.dtype)
                self._copies.append((given, held[arg], arg in outputs))
        self.arrays += [held[arg] for arg in lowered.arguments]
        self.packed = [
            [held[p.source], empty(tuple(map(int, p.packed.type.shape)), p.packed.type.dtype.numpy)]
            for p in lowered.packs
        ]
        self.arrays += [packed for _, packed in self.packed]
        self._logs = [np.empty(log.shape, log.dtype.numpy) for log in lowered.logs]
        self._faults = np.zeros(len(lowered.faults), np.int32)
        self.arrays += [*self._logs, *([self._faults] if lowered.faults else [])]

    def run(self, launch: Callable[[], None], logs: dict[str, Any] | None = None) -> None:
        """Runs a launch on the arrays, and raises what the program reports."""
        for given, array, _ in self._copies:
            array[...] = given
        for log, kept in zip(self.lowered.logs, self._logs, strict=True):
            kept[...] = np.nan if log.dtype.is_float else 0
        self._faults[...] = 0
        launch()
        for given, array, written in self._copies:
            if written:
                given[...] = array
        for number, fault in zip(self._faults, self.lowered.faults, strict=True):
            if number:
                raise ExecutionError(fault.what, fault.op.loc)
        for log, kept in zip(self.lowered.logs, self._logs, strict=True):
            if logs is not None:
                logs[log.label] = {"value": kept.copy()}
                if log.names:
                    logs[log.label]["iteration_dimensions"] = list(log.names)


def _tasks(program: Program) -> int:
    (tasks,) = (op for op in program.body.ops if op.name == "tasks")
    return prod(int(r.hi) for r in tasks.attrs["ranges"])


def _is_free(program: Program, op: Op) -> bool:
    """Whether a loop may take tiles of any size: it only accumulates, and over the whole of its axis."""
    tiling = tiling_of(program, op.attrs["axis"])
    limited = tiling is not None and ("iters" in tiling.attrs or "start" in tiling.attrs)
    return not op.attrs.get("start") and not limited and accumulates_only(op)


def _keeps_tiles(program: Program, op: Op) -> bool:
    """Whether a loop's tile size shows in what is logged."""
    tiling = tiling_of(program, op.attrs["axis"])
    return logs_iterations(op) and tiling is not None and "tile" in tiling.attrs
