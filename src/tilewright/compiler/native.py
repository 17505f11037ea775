"""Tile kernels as machine code: a block program for each set of sizes, made when a call brings them, and kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tilewright.algebra.expr import ONE, Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution, number_or
from tilewright.compiler import kept
from tilewright.compiler.compiled import Compiled
from tilewright.compiler.kernels import Executable, resolve
from tilewright.compiler.required import Required
from tilewright.compiler.symbols import refuse_unknown
from tilewright.compiler.whole_writes import with_whole_writes
from tilewright.errors import ArgumentError
from tilewright.interpret.grid import is_grid
from tilewright.interpret.loops import accumulates_only, logs_iterations, tiling_of
from tilewright.ir.attrs import attr_symbols
from tilewright.ir.core import MemoryType, Op, Program, Value
from tilewright.ir.printer import program_symbols
from tilewright.ir.written import is_written_whole
from tilewright.runtime import environment
from tilewright.runtime.arguments import Arguments
from tilewright.runtime.calls import known_level, named_values
from tilewright.runtime.device_arrays import DeviceArray
from tilewright.runtime.dump import Dump
from tilewright.runtime.eager import eager
from tilewright.runtime.scripts import Whole
from tilewright.runtime.timing import benchmark
from tilewright.targets.calls.table import UNLIKE
from tilewright.targets.cpu.launch_cache import LaunchCache
from tilewright.targets.gpu.again import Again
from tilewright.targets.names import CPU, INTERPRETER, is_gpu, is_native
from tilewright.targets.registry import gpu_machine, native

if TYPE_CHECKING:  # a kernel that is found in the cache is not planned
    from tilewright.compiler.planned import PlannedKernel
    from tilewright.machine import Machine
    from tilewright.passes.bound_plan import Realised
    from tilewright.passes.places import Size
    from tilewright.passes.request import Request
    from tilewright.passes.tile.opened import OpenSizes
    from tilewright.plan.schedule import Schedule

Array = np.ndarray[Any, np.dtype[Any]]
TYPICAL = 2
"""The least that a dynamic size is planned for: one that is 1 in the first call is to be cut all the same."""
LEVELS = ("tile", "plan", "block", "host", "loop", "llvm", "asm")


class NativeExecutable(Executable):
    """A kernel that runs as machine code; call it as any executable. Sizes may differ from call to call."""

    def __init__(
        self,
        program: Program,
        known: Mapping[Symbol, Expr],
        target: str,
        plan: str | Schedule | None = None,
        dynamic: Collection[Symbol] = (),
        required: Required = Required.NOTHING,
        lenient: bool = False,
        *,
        constant: Collection[str] = (),
        machine: Machine | None = None,
    ):
        self._forget()
        super().__init__(program, known, lenient)
        self.dynamic = tuple(dynamic)
        self.target = target if machine is None else INTERPRETER
        self._constant, self._machine = frozenset(constant), machine
        self.plan = _plan_of(plan)
        self._grid = is_grid(program)
        self._free = {op for op in program.walk() if op.name == "iterate" and _is_free(program, op)}
        self.path = "best"
        self._required, self._reported = required, False
        self._whole = frozenset() if self._grid else frozenset(v for v in self.outputs if is_written_whole(program, v))

    def _forget(self) -> None:
        """Lets go of what was compiled and learnt."""
        self._kernels: dict[Any, Compiled] = {}
        self._last: Compiled | None = None
        self._on_gpu, self._on_host = Again(), LaunchCache()

    def __setattr__(self, name: str, value: Any) -> None:
        """Who changes what it is made of, such as its plan, gets kernels made of that."""
        object.__setattr__(self, name, value)
        if not name.startswith("_"):
            self._forget()

    def _report(self, realised: Realised) -> None:
        """Warn, once, of products without atoms or of a slow plan; not of those that a given plan asked for."""
        warned = Required.NOTHING
        if not self._reported:
            asked = self.plan is not None and any(p.atom is None for p in self.plan.products)
            warned = (Required.NOTHING if asked else Required.ATOMS) | (
                Required.FAST if self.plan is None else Required.NOTHING
            )
        if warned or self._required:
            from tilewright.compiler.reports import report_plan

            self._reported |= report_plan(self.program, realised, self.machine, self._required, warned)

    def _near(self) -> Callable[[Sequence[Any]], Any] | None:
        """What gives the memory of the GPU that arguments lie on; None where it runs on the host."""
        if not is_gpu(self.target):
            return None
        from tilewright.compiler.device import memory_near

        return lambda arrays: memory_near(self.machine, arrays)

    @property
    def machine(self) -> Machine:
        """The machine that it is planned for."""
        if self._machine is None and is_gpu(self.target):
            return gpu_machine(self.target)
        return self._machine or native(self.target if is_native(self.target) else CPU).machine

    def _request(
        self,
        extents: Mapping[Symbol, Size],
        shapes: Mapping[Value, tuple[Size, ...]],
        *,
        logs: bool = False,
        opened: OpenSizes | None = None,
    ) -> Request:
        """Return the request to the passes for these sizes, of which some may be open."""
        from tilewright.passes.request import CompileOptions, Request, SizedProgram
        from tilewright.passes.tile.opened import CLOSED

        free = {op for op in self._free if not (logs and _keeps_tiles(self.program, op))}
        derived = {s: e for s, e in self.known.items() if s not in extents} if self._grid else None
        options = CompileOptions.LOGS if logs else CompileOptions.NONE
        options |= CompileOptions.LENIENT if self.lenient else CompileOptions.NONE
        options |= CompileOptions.NO_BLOCKS if self.path == "general" else CompileOptions.NONE
        return Request(
            SizedProgram(self.program, extents, shapes, free),
            self.machine,
            CLOSED if opened is None else opened,
            derived,
            self.plan,
            self._constant,
            options,
        )

    def compiled(
        self, symbols: Mapping[Symbol, int], shapes: Mapping[Value, tuple[int, ...]], *, logs: bool = False
    ) -> Compiled:
        """The machine code for these sizes; made once."""
        if self.dynamic and not logs:
            longer = self._request(symbols, shapes).longer() if self.lenient else None
            kernel = self._open(symbols) if longer is None else None
            if kernel is not None and self._takes(kernel, symbols):
                return kernel
        sizes = tuple(sorted((s.name, n) for s, n in symbols.items()))
        key = (sizes, tuple(shapes[a] for a in self.program.args), logs, environment.threads())
        kernel = self._kernels.get(key)
        if kernel is None:
            again = self._again(symbols, shapes, logs)
            plan = partial(self._planned, partial(self._request, symbols, shapes, logs=logs))
            cache_key = None if logs else self._cache_key(symbols, shapes)
            kernel = self._kernels[key] = self._found(cache_key, again, plan)
        self._last = kernel
        return kernel

    def _planned(self, asked: Callable[[], Request]) -> PlannedKernel:
        """A kernel as the passes make it."""
        from tilewright.compiler.planned import PlannedKernel
        from tilewright.passes.pipeline import run

        request = asked()
        realised = run(request, Dump.of(self.name).write)
        if not request.logs:
            self._report(realised)
        return PlannedKernel(request, realised, self.target)

    def _cache_key(self, symbols: Mapping[Symbol, int], shapes: Mapping[Value, tuple[int, ...]]) -> str | None:
        """The key under which the cache keeps a kernel for these sizes; None: it keeps none such."""
        if self.target != CPU or environment.dump_folder() is not None or environment.cache_folder() is None:
            return None
        options = {
            "known": sorted(f"{s} = {e}" for s, e in self.known.items()),
            "constant": sorted(self._constant),
            "lenient": self.lenient,
            "path": self.path,
            "plan": None if self.plan is None else self.plan.lines(),
        }
        sizes = {s.name: n for s, n in symbols.items()}
        return kept.key_for(self.program, sizes, [shapes[a] for a in self.program.args], f"{options}")

    def _found(self, key: str | None, again: tuple[Any, ...], plan: Callable[[], PlannedKernel]) -> Compiled:
        """A kernel as the cache keeps it, or else planned, and kept."""
        stored = None if key is None else kept.find(key, self.program)
        kernel = Compiled(self.target, again, plan, stored)
        if key is not None and stored is None:
            kept.keep(key, kernel.planned, self.program)
        return kernel

    def _again(
        self, symbols: Mapping[Symbol, int], shapes: Mapping[Value, tuple[int, ...]] | None, logs: bool
    ) -> tuple[Any, ...]:
        """What makes a member again, in another process too: its sizes go by name, its arguments by place."""
        named = {s.name: n for s, n in symbols.items()}
        return self, named, None if shapes is None else [shapes[a] for a in self.program.args], logs

    def again(self, named: Mapping[str, int], shapes: list[tuple[int, ...]] | None, logs: bool) -> Compiled:
        """The member for these sizes; `shapes` are those of the arguments, None where a call tells them."""
        symbols = {s: named[s.name] for s in (program_symbols(self.program) | set(self.known)) if s.name in named}
        if shapes is None:
            return self._open(symbols)
        return self.compiled(symbols, dict(zip(self.program.args, shapes, strict=True)), logs=logs)

    def _open(self, symbols: Mapping[Symbol, int]) -> Compiled:
        """The machine code for all values of the dynamic sizes: made once for the others, planned for the first."""
        left = {s: e for s, e in self.known.items() if s not in self.dynamic}
        fixed = {s: n for s, n in symbols.items() if s not in self.dynamic and not left.get(s, ONE).symbols}
        key = ("open", tuple(sorted((s.name, n) for s, n in fixed.items())), environment.threads())
        kernel = self._kernels.get(key)
        if kernel is None:
            plan = partial(self._planned, partial(self._open_request, symbols))
            kernel = self._kernels[key] = Compiled(self.target, self._again(symbols, None, False), plan)
        self._last = kernel
        return kernel

    def _open_request(self, symbols: Mapping[Symbol, int]) -> Request:
        """Return the request to the passes: sizes are expressions of those that are dynamic, planned as if typical."""
        from tilewright.passes.tile.opened import opened as opened_sizes

        extents, names = opened_sizes(symbols, self.program.bindings, self.dynamic)
        said = {} if self.plan is None else {d.name: d.extent for axis in self.plan.axes for d in axis.digits}
        least = {
            s: max(TYPICAL, int(parameter.lo)) for s, parameter in zip(self._opened(), names.parameters, strict=True)
        }
        larger = {**symbols, **{s: said.get(s.name) or max(symbols[s], least[s]) for s in self.dynamic}}
        numbers = Substitution(larger)
        typical = {e: int(numbers(self.known.get(s, s))) for s, e in extents.items() if isinstance(e, Symbol)}
        images = Substitution(extents)
        shapes = {a: tuple(number_or(images(d)) for d in _measured(a)) for a in self.program.args}
        return self._request(extents, shapes, opened=replace(names, typical=typical))

    def _takes(self, kernel: Compiled, symbols: Mapping[Symbol, int]) -> bool:
        """Whether a kernel runs for these values of the dynamic sizes: none is empty, or larger than any it is for."""
        from tilewright.ir.binding import allowed

        opened = zip(self._opened(), kernel.parameters, strict=True)
        return all(symbols[s] in allowed(parameter) for s, parameter in opened)

    @property
    def object_code(self) -> bytes:
        """The object code of the main program, for the sizes used last."""
        if self._last is None:
            raise ArgumentError(f"{self.name} has no sizes yet: call it first")
        return self._last.object_code

    @property
    def last(self) -> Compiled | None:
        """The kernel for the sizes used last; None before the first."""
        return self._last

    def explain(self) -> str:
        """How the program is done, for the sizes used last: its plan, the time it should take, what was refused."""
        if self._last is None:
            return f"{self.name} has no sizes yet: call it first, or ask for text(level, sizes)"
        return self._last.explain()

    def benchmark(self, *args: Any, seconds: float = 0.2, **named: Any) -> dict[str, float]:
        """Seconds of a call on these arguments, outputs too: the shortest, the median, and how many were taken."""
        return benchmark(self.bind(*args, **named), seconds)

    def text(self, level: str = "tile", symbols: Mapping[Any, int] | None = None) -> str:
        """The program on a level: "tile", "plan", "block", "host", "loop", "llvm" or "asm".

        Below "tile" it is that of the sizes called last, or of these: `symbols` binds those that shapes would tell.
        """
        if known_level(level, LEVELS, f"{self.name} on {self.target}") == "tile":
            return super().text()
        if symbols is not None:
            return self.of_sizes(symbols).text(level)
        if self._last is None:
            raise ArgumentError(
                f"{self.name} has no sizes yet: call it first, or give them, text({level!r}, {{M: 64}})"
            )
        return self._last.text(level)

    def of_sizes(self, symbols: Mapping[Any, int]) -> Compiled:
        """The kernel for these sizes, which are those that shapes would tell."""
        named = named_values(symbols, "symbols", "{'M': 64}")
        every = {s for d in self._measures() if d is not None for s in d.symbols} | set(self.known)
        refuse_unknown(self.name, named, sorted(s.name for s in every))
        bindings: dict[Expr, Any] = dict(self.known.items())
        bindings |= {s: as_expr(named[s.name]) for s in every if s.name in named}
        resolved = resolve(bindings)
        numbers = {s: int(e) for s, e in resolved.items() if e.is_constant}
        for s, n in numbers.items():
            if n < s.lo:
                raise ArgumentError(f"{self.name}: {s} comes out as {n}; it must be at least {s.lo}")
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

    @eager
    def bind(self, *args: Any, **named: Any) -> Callable[[], None]:
        """The kernel bound to all its arguments, outputs too: a call of the result runs it on what they hold by then.

        Checks and look-ups are done once, here.
        """
        arranged = self._arranged(args, named)
        bound = Arguments(self.program, self.outputs, self.known, arranged, self.lenient, self._near())
        if bound.made:
            raise ArgumentError(f"{self.name}: bind takes all arguments, outputs too")
        if bound.in_place:
            return self._in_place(bound).bind(*bound.apart)
        if bound.is_empty:
            return lambda: None
        launch, _ = self._bound(bound, self.compiled(self._sizes(bound), self._shapes(bound)), [])
        return getattr(launch, "alone", launch)

    def _bound(
        self, bound: Arguments, kernel: Compiled, logged: list[Array], passing: bool = False
    ) -> tuple[Callable[[], None], Whole | None]:
        """A kernel bound to the arguments of a call, and what it consists of where it only launches."""
        given: list[Any] = [
            value
            if isinstance(value := bound.values[a], DeviceArray)
            else np.asarray(value).astype(a.type.dtype.numpy, copy=False)
            for a in self.program.args
        ]
        return kernel.running.bind_whole([*given, *logged], self._told(bound, kernel), passing=passing)

    def member(self, bound: Arguments) -> tuple[Compiled, dict[str, int] | None]:
        """The machine code for the arguments of a call, and the sizes that the call tells it."""
        kernel = self.compiled(self._sizes(bound), self._shapes(bound))
        return kernel, self._told(bound, kernel)

    def _told(self, bound: Arguments, kernel: Compiled) -> dict[str, int] | None:
        """The sizes that stay open in a kernel, by name; None where there are none."""
        if not kernel.parameters:
            return None
        names = [s.name for s in kernel.parameters]
        return {name: bound.symbols[s] for name, s in zip(names, self._opened(), strict=True)}

    def _opened(self) -> list[Symbol]:
        """The sizes that are left to calls, in the order of a program's parameters."""
        return sorted(self.dynamic, key=lambda s: s.name)

    def _sizes(self, bound: Arguments) -> dict[Symbol, int]:
        """The sizes of a call; scalar arguments count among them where workgroups and loops depend on them."""
        asked = {
            s
            for r in self.program.records
            if r.name in ("workgroup", "tiling", "grid", "reordering")
            for name, value in r.attrs.items()
            for s in attr_symbols(r.spec.attrs[name], value)
        }
        sizes = dict(bound.symbols)
        for op in self.program.body.ops if self._grid else ():
            if op.name == "set_symbol" and op.operands[0] in bound.values and op.attrs["symbol"] in asked:
                sizes[op.attrs["symbol"]] = int(bound.values[op.operands[0]])
        return sizes

    def _shapes(self, bound: Arguments) -> dict[Value, tuple[int, ...]]:
        return {a: bound.values[a].shape if isinstance(a.type, MemoryType) else () for a in self.program.args}

    def _is_hooked(self) -> bool:
        """Whether the author's functions are to be called with what is logged."""
        hooks = self.program.hooks
        return bool(hooks) and any(function is not None for pair in hooks.values() for function in pair)

    @property
    def launches(self) -> LaunchCache | None:
        """The launches learnt from calls on the host, by position; None: calls do more."""
        return None if self.program.hooks and self._is_hooked() else self._on_host

    def _like_before(self, args: tuple[Any, ...]) -> Any:
        if self.program.hooks and self._is_hooked():
            return UNLIKE
        result = self._on_host.call(*args)
        return self._on_gpu.call(*args) if result is UNLIKE else result

    def _run(
        self, args: tuple[Any, ...], logs: dict[str, Any] | None, caller: tuple[Self, Arguments] | None = None
    ) -> Any:
        """A call that is checked at length; `caller` is who was called, where an input is the array of an output."""
        bound = Arguments(self.program, self.outputs, self.known, args, self.lenient, self._near(), self._whole)
        if bound.in_place:
            return self._run_in_place(bound, logs)
        if logs is None and self._is_hooked():
            logs = {}
        if not bound.is_empty:
            kernel = self.compiled(self._sizes(bound), self._shapes(bound), logs=logs is not None)
            logged = kernel.made_logs()
            launch, whole = self._bound(bound, kernel, logged, passing=True)
            launch()
            if logs is not None:
                kernel.report_logs(logged, logs)
            else:
                called, given = caller or (self, bound)
                called._learn(given, bound.made, launch, whole)
        self._finish_logs(bound, logs)
        return bound.finish()

    def _run_in_place(self, bound: Arguments, logs: dict[str, Any] | None) -> Any:
        """A call whose inputs are in part the arrays of outputs."""
        alias = self._in_place(bound)
        results = alias._like_before(bound.apart) if logs is None else UNLIKE
        if results is UNLIKE:
            results = alias._run(bound.apart, logs, None if is_gpu(self.target) else (self, bound))
        self._last = alias._last
        return results

    def _learn(self, bound: Arguments, made: Sequence[Any], launch: Any, whole: Whole | None) -> None:
        """Remembers a call and the outputs it made; others like it are made without looking at arguments at length."""
        args = self.program.args
        given = [v for v, argument in zip(args, bound.given, strict=True) if argument is not None]
        left_out = [v for v in args if v not in given]
        plain = [argument for argument in bound.given if argument is not None]
        if is_gpu(self.target):
            if left_out == list(args[len(given) :]):
                self._on_gpu.learn(tuple(plain), [getattr(a, "given", a) for a in made], launch)
        elif whole is not None and not bound.warned and (not left_out or left_out == list(self.outputs)):
            place = {v.name: n for n, v in enumerate([*given, *left_out])}
            outputs = [(a, v not in self._whole) for v, a in zip(left_out, made, strict=True)]
            self._on_host.learn(plain, outputs, whole, [place[name] for name in whole.names])

    def _of(self, program: Program) -> Self:
        options = (self.target, self.plan, self.dynamic, self._required, self.lenient)
        executable = type(self)(program, self.known, *options, constant=self._constant, machine=self._machine)
        executable.path = self.path
        return executable

    def __reduce__(self) -> tuple[Any, ...]:
        dynamic = tuple(s.name for s in self.dynamic)
        made_of = (self.program, self.target, self.plan, dynamic, self._required, self.lenient)
        return _restored, (*made_of, self._constant, self._machine), {"path": self.path}

    def __repr__(self) -> str:
        return self._shown(self.target)


def kernel_for(
    kernel: Any,
    sizes: Mapping[str, int],
    *,
    target: str = CPU,
    machine: Machine | None = None,
    plan: str | Schedule | None = None,
    dynamic: Collection[str] = (),
    constant: Collection[str] = (),
    required: Required = Required.NOTHING,
) -> Compiled:
    """A tile kernel for sizes by name, planned and compiled; what is `required` and lacking is an error.

    Of `dynamic` sizes the given ones are typical: it is planned for them and runs for all. `constant` arguments do not
    change once they are bound. With a `machine` it is planned for that one, whatever this CPU is, and its block
    programs run on the interpreter.

    >>> from tilewright.kernels.gemm import gemm
    >>> kernel_for(gemm("nn", "f32"), {"M": 3, "N": 4, "K": 5}, target="interpreter", constant=["b"])
    <kernel gemm(a: f32[3, 5], b: f32[5, 4], c: f32[3, 4]) by ... on interpreter>
    """
    program = kernel.trace()
    program = with_whole_writes(program, resolve(program.bindings))
    return _restored(program, target, plan, tuple(dynamic), required, False, constant, machine).of_sizes(sizes)


def constant_arguments(executable: NativeExecutable, constant: Collection[str]) -> NativeExecutable:
    """The executable of the same program whose arguments of these names do not change once they are bound."""
    names = [a.name or "" for a in executable.program.args]
    if not all(name in names for name in constant):
        raise ArgumentError(f"constant={constant!r}: a list of arguments; {executable.name} takes {', '.join(names)}")
    program, target, plan, dynamic, required, lenient, _, machine = executable.__reduce__()[1]
    return _restored(program, target, plan, dynamic, required, lenient, tuple(constant), machine)


def _restored(
    program: Program,
    target: str,
    plan: str | Schedule | None,
    dynamic: tuple[str, ...],
    required: Required,
    lenient: bool,
    constant: Collection[str],
    machine: Machine | None,
) -> NativeExecutable:
    """An executable by what made it; machine code is compiled when it is called, or found in the cache."""
    known = resolve(program.bindings)
    named = {s.name: s for a in program.args for d in getattr(a.type, "dims", ()) for s in d.symbols}
    opened = [named[name] for name in dynamic]
    return NativeExecutable(program, known, target, plan, opened, required, lenient, constant=constant, machine=machine)


def _plan_of(plan: str | Schedule | None) -> Schedule | None:
    """A plan that was given, from its text too."""
    if plan is None:
        return None
    from tilewright.plan.text import as_plan

    return as_plan(plan)


def _measured(arg: Value) -> list[Expr]:
    """The extents of an argument; none of a scalar."""
    if not isinstance(arg.type, MemoryType):
        return []
    return [d if size is None else size for d, size in zip(arg.type.dims, arg.type.sizes, strict=True)]


def _is_free(program: Program, op: Op) -> bool:
    """Whether a loop may take tiles of any size: it only accumulates, and over the whole of its axis."""
    tiling = tiling_of(program, op.attrs["axis"])
    limited = tiling is not None and ("iters" in tiling.attrs or "start" in tiling.attrs)
    return not op.attrs.get("start") and not limited and accumulates_only(op)


def _keeps_tiles(program: Program, op: Op) -> bool:
    """Whether a loop's tile size shows in what is logged."""
    tiling = tiling_of(program, op.attrs["axis"])
    return logs_iterations(op) and tiling is not None and "tile" in tiling.attrs
