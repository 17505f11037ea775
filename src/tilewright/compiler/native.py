"""Tile kernels as machine code: a kernel for each set of sizes, compiled when a call first has them."""

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
from tilewright.targets.gpu.again import GpuLaunchCache
from tilewright.targets.names import CPU, INTERPRETER, is_gpu, is_native
from tilewright.targets.registry import gpu_machine, native

if TYPE_CHECKING:  # a kernel from the cache needs no planner
    from tilewright.analysis.flat_memory import Size
    from tilewright.compiler.planned import PlannedKernel
    from tilewright.driver.bound_plan import Realised
    from tilewright.driver.request import Request
    from tilewright.lower.block.symbolic_shapes import OpenSizes
    from tilewright.machine import Machine
    from tilewright.plan.schedule import Schedule

Array = np.ndarray[Any, np.dtype[Any]]
TYPICAL = 2
"""The smallest value that a dynamic size is planned for, so that a size of 1 in the first call is still tiled."""
LEVELS = ("tile", "plan", "block", "host", "loop", "llvm", "asm")


class NativeExecutable(Executable):
    """A kernel that runs as machine code. Calls may have different sizes: a kernel is compiled at the first call for a
    set of sizes.
    """

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
        self._drop_compiled()
        super().__init__(program, known, lenient)
        self.dynamic = tuple(dynamic)
        self.target = target if machine is None else INTERPRETER
        self._constant, self._machine = frozenset(constant), machine
        self.plan = _as_schedule(plan)
        self._grid = is_grid(program)
        self._free_loops = {op for op in program.walk() if op.name == "iterate" and _has_free_tile_size(program, op)}
        self.path = "best"
        self._required, self._reported = required, False
        self._fully_written = (
            frozenset() if self._grid else frozenset(v for v in self.outputs if is_written_whole(program, v))
        )

    def _drop_compiled(self) -> None:
        """Drop all compiled kernels and remembered calls, so that the next call compiles again."""
        self._kernels: dict[Any, Compiled] = {}
        self._last: Compiled | None = None
        self._on_gpu, self._on_host = GpuLaunchCache(), LaunchCache()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a public one, such as the plan, also drops all compiled kernels."""
        object.__setattr__(self, name, value)
        if not name.startswith("_"):
            self._drop_compiled()

    def _report_plan(self, realised: Realised) -> None:
        """Warn, once per executable, if a contraction of the kernel runs without atoms, or else if its plan is slow.

        `realised` is the result of the passes, with the plan. If the author gave the plan, there is no warning of
        slowness, and none of atoms if a product of that plan has no atom. Raise NoAtoms or SlowPlan, each time, if the
        plan lacks a property that `compile` was told to require.
        """
        warn_of = Required.NOTHING
        if not self._reported:
            plan_has_no_atom = self.plan is not None and any(p.atom is None for p in self.plan.products)
            warn_of = (Required.NOTHING if plan_has_no_atom else Required.ATOMS) | (
                Required.FAST if self.plan is None else Required.NOTHING
            )
        if warn_of or self._required:
            from tilewright.compiler.reports import report_plan

            self._reported |= report_plan(self.program, realised, self.machine, self._required, warn_of)

    def _memory_of_gpu(self) -> Callable[[Sequence[Any]], Any] | None:
        """Return a function that takes arrays and returns the Memories of the GPU that they are on; None if the target
        is no GPU."""
        if not is_gpu(self.target):
            return None
        from tilewright.compiler.device import memory_near

        return lambda arrays: memory_near(self.machine, arrays)

    @property
    def machine(self) -> Machine:
        """Return the described machine that kernels are planned for: that of the constructor, else the target's GPU or
        CPU."""
        if self._machine is None and is_gpu(self.target):
            return gpu_machine(self.target)
        return self._machine or native(self.target if is_native(self.target) else CPU).machine

    def _request_for(
        self,
        extents: Mapping[Symbol, Size],
        shapes: Mapping[Value, tuple[Size, ...]],
        *,
        logs: bool = False,
        opened: OpenSizes | None = None,
    ) -> Request:
        """Return the Request (input of the passes) that compiles the program for these sizes and argument shapes.

        `extents` is {size: number or expression of open sizes}, `shapes` is {argument: shape}. `opened` are the open
        sizes (known only at the call); None: there are none. With `logs`, the kernel records debug_log.
        """
        from tilewright.driver.request import CompileOptions, Request, SizedProgram
        from tilewright.lower.block.symbolic_shapes import CLOSED

        free_loops = {op for op in self._free_loops if not (logs and _logs_show_tile_size(self.program, op))}
        derived = {s: e for s, e in self.known.items() if s not in extents} if self._grid else None
        options = CompileOptions.LOGS if logs else CompileOptions.NONE
        options |= CompileOptions.LENIENT if self.lenient else CompileOptions.NONE
        options |= CompileOptions.NO_BLOCKS if self.path == "general" else CompileOptions.NONE
        return Request(
            SizedProgram(self.program, extents, shapes, free_loops),
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
        """Return the kernel for the sizes `symbols`, {symbol: number}, and `shapes`, {argument: shape}; set `last` to
        it.

        A kernel is planned and compiled once for each set of sizes, shapes and number of threads. If there are dynamic
        sizes, it is one kernel for all their values. In three cases it is a kernel for these numbers alone: with `logs`
        (the kernel records debug_log); if the executable is lenient and an argument is longer than its dimensions say;
        and if the kernel for all values does not accept the numbers.
        """
        if self.dynamic and not logs:
            longer_argument = self._request_for(symbols, shapes).longer() if self.lenient else None
            kernel = self._compiled_open(symbols) if longer_argument is None else None
            if kernel is not None and self._accepts_sizes(kernel, symbols):
                return kernel
        sizes = tuple(sorted((s.name, n) for s, n in symbols.items()))
        key = (sizes, tuple(shapes[a] for a in self.program.args), logs, environment.threads())
        kernel = self._kernels.get(key)
        if kernel is None:
            recipe = self._recipe(symbols, shapes, logs)
            plan = partial(self._run_passes, partial(self._request_for, symbols, shapes, logs=logs))
            cache_key = None if logs else self._cache_key(symbols, shapes)
            kernel = self._kernels[key] = self._load_or_plan(cache_key, recipe, plan)
        self._last = kernel
        return kernel

    def _run_passes(self, make_request: Callable[[], Request]) -> PlannedKernel:
        """Plan and lower the program of the Request that `make_request()` returns; return the planned kernel.

        Missing atoms and a slow plan are reported (see `_report_plan`), except for a kernel that records debug_log.
        With TILEWRIGHT_DUMP, the program's text after each pass is written to a file.
        """
        from tilewright.compiler.planned import PlannedKernel
        from tilewright.driver.pipeline import run

        request = make_request()
        realised = run(request, Dump.of(self.name).write)
        if not request.logs:
            self._report_plan(realised)
        return PlannedKernel(request, realised, self.target)

    def _cache_key(self, symbols: Mapping[Symbol, int], shapes: Mapping[Value, tuple[int, ...]]) -> str | None:
        """Return the key in the disk cache of the kernel for `symbols`, {symbol: number}, and `shapes`, {argument:
        shape}.

        Return None if it is not cached: for another target than "cpu", while texts are dumped, or without a cache
        folder.
        """
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

    def _load_or_plan(self, key: str | None, recipe: tuple[Any, ...], plan: Callable[[], PlannedKernel]) -> Compiled:
        """Return the kernel that the disk cache has under `key`. If it has none, plan the kernel now and store it
        there.

        If `key` is None, the cache is not used, and the kernel is planned. `recipe` is (executable, sizes, shapes,
        logs), from which a pickled kernel is restored. `plan()` plans the kernel.
        """
        stored = None if key is None else kept.find(key, self.program)
        kernel = Compiled(self.target, recipe, plan, stored)
        if key is not None and stored is None:
            kept.keep(key, kernel.planned, self.program)
        return kernel

    def _recipe(
        self, symbols: Mapping[Symbol, int], shapes: Mapping[Value, tuple[int, ...]] | None, logs: bool
    ) -> tuple[Any, ...]:
        """Return the arguments from which a pickled kernel is restored: (this executable, {size name: number}, shapes,
        logs).

        `symbols` is {size: number}. `shapes` is {argument: shape}, and becomes a list in the order of the arguments; it
        is None if sizes are dynamic. `logs` is True if the kernel records debug_log.
        """
        size_of = {s.name: n for s, n in symbols.items()}
        return self, size_of, None if shapes is None else [shapes[a] for a in self.program.args], logs

    def remake(self, named: Mapping[str, int], shapes: list[tuple[int, ...]] | None, logs: bool) -> Compiled:
        """Return the kernel for `named`, {size name: number}, and the list of argument shapes `shapes`. Unpickling
        calls this.

        The kernel comes from the cache or is compiled. `shapes` None means the kernel for all values of the dynamic
        sizes. `logs` is True for a kernel that records debug_log.
        """
        symbols = {s: named[s.name] for s in (program_symbols(self.program) | set(self.known)) if s.name in named}
        if shapes is None:
            return self._compiled_open(symbols)
        return self.compiled(symbols, dict(zip(self.program.args, shapes, strict=True)), logs=logs)

    def _compiled_open(self, symbols: Mapping[Symbol, int]) -> Compiled:
        """Return the kernel for all values of the dynamic sizes; set `last` to it.

        `symbols` is {size: number}. Kernels are cached by the values of the sizes that are not dynamic, and by the
        number of threads. If no kernel is cached, one is planned for the dynamic sizes in `symbols`. A cached kernel
        was planned for those of an earlier call.
        """
        static = {s: e for s, e in self.known.items() if s not in self.dynamic}
        fixed = {s: n for s, n in symbols.items() if s not in self.dynamic and not static.get(s, ONE).symbols}
        key = ("open", tuple(sorted((s.name, n) for s, n in fixed.items())), environment.threads())
        kernel = self._kernels.get(key)
        if kernel is None:
            plan = partial(self._run_passes, partial(self._open_request, symbols))
            kernel = self._kernels[key] = Compiled(self.target, self._recipe(symbols, None, False), plan)
        self._last = kernel
        return kernel

    def _open_request(self, symbols: Mapping[Symbol, int]) -> Request:
        """Return the Request (input of the passes) for a kernel with dynamic sizes. Its extents are expressions of
        these sizes.

        The kernel is planned for a typical value of each dynamic size: the size's value in a plan that the author gave,
        if there is one; else the value in `symbols`, {size: number}, but at least 2 and at least the smallest allowed
        value.
        """
        from tilewright.lower.block.symbolic_shapes import opened as opened_sizes

        extents, names = opened_sizes(symbols, self.program.bindings, self.dynamic)
        planned_extents = (
            {} if self.plan is None else {d.name: d.extent for axis in self.plan.axes for d in axis.digits}
        )
        least = {
            s: max(TYPICAL, int(parameter.lo))
            for s, parameter in zip(self._open_symbols(), names.parameters, strict=True)
        }
        typical_sizes = {
            **symbols,
            **{s: planned_extents.get(s.name) or max(symbols[s], least[s]) for s in self.dynamic},
        }
        numbers = Substitution(typical_sizes)
        typical = {e: int(numbers(self.known.get(s, s))) for s, e in extents.items() if isinstance(e, Symbol)}
        in_open_sizes = Substitution(extents)
        shapes = {a: tuple(number_or(in_open_sizes(d)) for d in _extents_of(a)) for a in self.program.args}
        return self._request_for(extents, shapes, opened=replace(names, typical=typical))

    def _accepts_sizes(self, kernel: Compiled, symbols: Mapping[Symbol, int]) -> bool:
        """True if the dynamic sizes in `symbols`, {size: number}, are in the ranges for which `kernel` was compiled."""
        from tilewright.ir.binding import allowed

        open_sizes = zip(self._open_symbols(), kernel.parameters, strict=True)
        return all(symbols[s] in allowed(parameter) for s, parameter in open_sizes)

    @property
    def object_code(self) -> bytes:
        """Return the object code of the main program, for the sizes used last. Raise ArgumentError before the first
        call, and if the target has no machine code."""
        if self._last is None:
            raise ArgumentError(f"{self.name} has no sizes yet: call it first")
        return self._last.object_code

    @property
    def last(self) -> Compiled | None:
        """Return the kernel for the sizes used last; None before the first call."""
        return self._last

    def explain(self) -> str:
        """Return a text on the kernel for the sizes used last: its plan, its predicted time, and the plans that were
        rejected.

        Before the first call, the text says that there are no sizes yet.
        """
        if self._last is None:
            return f"{self.name} has no sizes yet: call it first, or ask for text(level, sizes)"
        return self._last.explain()

    def benchmark(self, *args: Any, seconds: float = 0.2, **named: Any) -> dict[str, float]:
        """Time launches on these arguments, outputs too, for about `seconds` seconds.

        Return {"shortest": seconds of the fastest launch, "median": seconds, "calls": how many were timed}. Raise
        ArgumentError if an argument is left out or does not fit.
        """
        return benchmark(self.bind(*args, **named), seconds)

    def text(self, level: str = "tile", symbols: Mapping[Any, int] | None = None) -> str:
        """Return the program's text on `level`: "tile", "plan", "block", "host", "loop", "llvm" or "asm".

        Below "tile" it is the program for `symbols`, {size or its name: number}, or for the sizes of the last call.
        Raise ArgumentError without either, and for another level.
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
        """Return the kernel for `symbols`, {size or its name: number}: the sizes that arguments' shapes would give in a
        call.

        Set `last` to the kernel. Raise ArgumentError for an unknown name, a size out of range, or if the extent of an
        argument stays unknown.
        """
        named = named_values(symbols, "symbols", "{'M': 64}")
        all_symbols = {s for d in self._argument_extents() if d is not None for s in d.symbols} | set(self.known)
        refuse_unknown(self.name, named, sorted(s.name for s in all_symbols))
        bindings: dict[Expr, Any] = dict(self.known.items())
        bindings |= {s: as_expr(named[s.name]) for s in all_symbols if s.name in named}
        resolved = resolve(bindings)
        numbers = {s: int(e) for s, e in resolved.items() if e.is_constant}
        for s, n in numbers.items():
            if n < s.lo:
                raise ArgumentError(f"{self.name}: {s} comes out as {n}; it must be at least {s.lo}")
        substitute = Substitution(numbers)
        shapes = {}
        for arg in self.program.args:
            sizes = arg.type.sizes if isinstance(arg.type, MemoryType) else ()
            extents = [None if d is None else substitute(d) for d in sizes]
            unknown = [str(d) for d in extents if d is None or not d.is_constant]
            if unknown:
                raise ArgumentError(f"{self.name}: the size of {arg.name} is not known: {', '.join(unknown)}")
            shapes[arg] = tuple(int(d) for d in extents if d is not None)
        return self.compiled(numbers, shapes)

    def _argument_extents(self) -> list[Expr | None]:
        """Return one list of the extents of all array arguments, as expressions; None stands for an extent that only an
        array gives."""
        return [d for a in self.program.args if isinstance(a.type, MemoryType) for d in a.type.sizes]

    @eager
    def bind(self, *args: Any, **named: Any) -> Callable[[], None]:
        """Return a function that runs the kernel on these arguments, with the contents that arrays have at each call.

        Arguments are passed by position or by name, outputs too. Checks and look-ups are done once, here. Raise
        ArgumentError if an argument is left out or does not fit.
        """
        arguments = self._by_position(args, named)
        bound = Arguments(self.program, self.outputs, self.known, arguments, self.lenient, self._memory_of_gpu())
        if bound.allocated:
            raise ArgumentError(f"{self.name}: bind takes all arguments, outputs too")
        if bound.in_place:
            return self._aliased_executable(bound).bind(*bound.without_aliases)
        if bound.is_empty:
            return lambda: None
        launch, _ = self._bind_kernel(bound, self.compiled(self._sizes_of_call(bound), self._shapes_of_call(bound)), [])
        return getattr(launch, "alone", launch)

    def _bind_kernel(
        self, bound: Arguments, kernel: Compiled, logged: list[Array], passing: bool = False
    ) -> tuple[Callable[[], None], Whole | None]:
        """Return (a function that runs `kernel` on the call's arguments, a Whole or None).

        A Whole describes the launches of the call, for a launch cache; None if the function does more than copies and
        launches. `bound` has the checked arguments. `logged` are the arrays for logs, which are passed after the
        arguments. With `passing`, the caller promises to call the function exactly once, right away.
        """
        arrays: list[Any] = [
            value
            if isinstance(value := bound.values[a], DeviceArray)
            else np.asarray(value).astype(a.type.dtype.numpy, copy=False)
            for a in self.program.args
        ]
        return kernel.running.bind_whole([*arrays, *logged], self._open_size_values(bound, kernel), passing=passing)

    def member(self, bound: Arguments) -> tuple[Compiled, dict[str, int] | None]:
        """Return (kernel, sizes) for `bound`, a call's checked arguments. The kernel is compiled if needed.

        `sizes` is {name: value} of the kernel's open sizes (known only at the call), or None if it has none.
        """
        kernel = self.compiled(self._sizes_of_call(bound), self._shapes_of_call(bound))
        return kernel, self._open_size_values(bound, kernel)

    def _open_size_values(self, bound: Arguments, kernel: Compiled) -> dict[str, int] | None:
        """Return {name: value} of the open sizes (known only at the call) of `kernel` for `bound`, a call's checked
        arguments.

        Return None if the kernel has none.
        """
        if not kernel.parameters:
            return None
        names = [s.name for s in kernel.parameters]
        return {name: bound.symbols[s] for name, s in zip(names, self._open_symbols(), strict=True)}

    def _open_symbols(self) -> list[Symbol]:
        """Return the list of the dynamic sizes sorted by name, which is the order of a kernel's `parameters`."""
        return sorted(self.dynamic, key=lambda s: s.name)

    def _sizes_of_call(self, bound: Arguments) -> dict[Symbol, int]:
        """Return {symbol: number} of the sizes for which a kernel is compiled, for `bound`, a call's checked arguments.

        In a grid program, the result also has each symbol of a constraint to which set_symbol gives the value of a
        scalar argument.
        """
        symbols_of_records = {
            s
            for r in self.program.records
            if r.name in ("workgroup", "tiling", "grid", "reordering")
            for name, value in r.attrs.items()
            for s in attr_symbols(r.spec.attrs[name], value)
        }
        sizes = dict(bound.symbols)
        for op in self.program.body.ops if self._grid else ():
            if op.name == "set_symbol" and op.operands[0] in bound.values and op.attrs["symbol"] in symbols_of_records:
                sizes[op.attrs["symbol"]] = int(bound.values[op.operands[0]])
        return sizes

    def _shapes_of_call(self, bound: Arguments) -> dict[Value, tuple[int, ...]]:
        """Return {argument: shape} for `bound`, a call's checked arguments. The shape of a scalar is ()."""
        return {a: bound.values[a].shape if isinstance(a.type, MemoryType) else () for a in self.program.args}

    def _has_log_hooks(self) -> bool:
        """True if the author passed a printer or handler function to any `debug_log`."""
        hooks = self.program.hooks
        return bool(hooks) and any(function is not None for pair in hooks.values() for function in pair)

    @property
    def launches(self) -> LaunchCache | None:
        """Return the cache of calls on the host, of which later calls repeat the launches.

        Return None if a debug_log has a printer or handler function, which a repeated launch would not call.
        """
        return None if self.program.hooks and self._has_log_hooks() else self._on_host

    def _repeat_remembered(self, args: tuple[Any, ...]) -> Any:
        """Repeat the launch of an earlier call with arguments of the same types, shapes and strides as `args`.

        Return the outputs that it allocates: one, a tuple, or None. Return `UNLIKE`, without a launch, if no such call
        is remembered, or if a debug_log has a printer or handler function.
        """
        if self.program.hooks and self._has_log_hooks():
            return UNLIKE
        result = self._on_host.call(*args)
        return self._on_gpu.call(*args) if result is UNLIKE else result

    def _run(
        self, args: tuple[Any, ...], logs: dict[str, Any] | None, caller: tuple[Self, Arguments] | None = None
    ) -> Any:
        """Run the kernel for the sizes of `args`, the call's arguments by position; return the outputs that the call
        left out.

        They are one array, a tuple of several, or None. Arguments are checked first: ArgumentError is raised if they do
        not fit. The call is remembered unless it logs. `logs` receives the values of debug_log; if it is None, nothing
        is recorded, unless an author's hook needs it. `caller` is None, except if this executable is the variant in
        which an input and an output are one array: then it is (executable, checked arguments) of the call itself, which
        is remembered instead.
        """
        bound = Arguments(
            self.program, self.outputs, self.known, args, self.lenient, self._memory_of_gpu(), self._fully_written
        )
        if bound.in_place:
            return self._run_aliased(bound, logs)
        if logs is None and self._has_log_hooks():
            logs = {}
        if not bound.is_empty:
            kernel = self.compiled(self._sizes_of_call(bound), self._shapes_of_call(bound), logs=logs is not None)
            logged = kernel.made_logs()
            launch, whole = self._bind_kernel(bound, kernel, logged, passing=True)
            launch()
            if logs is not None:
                kernel.report_logs(logged, logs)
            else:
                called_executable, call_arguments = caller or (self, bound)
                called_executable._remember(call_arguments, bound.allocated, launch, whole)
        self._finish_logs(bound, logs)
        return bound.finish()

    def _run_aliased(self, bound: Arguments, logs: dict[str, Any] | None) -> Any:
        """Run a call in which some inputs are the same arrays as outputs; return the outputs that the call left out.

        The call is run by a variant of the kernel, in which an output and the inputs with its array are one argument.
        `bound` has the checked arguments; `logs` receives the values of debug_log. Set `last` to the kernel of the
        variant.
        """
        alias = self._aliased_executable(bound)
        results = alias._repeat_remembered(bound.without_aliases) if logs is None else UNLIKE
        if results is UNLIKE:
            results = alias._run(bound.without_aliases, logs, None if is_gpu(self.target) else (self, bound))
        self._last = alias._last
        return results

    def _remember(self, bound: Arguments, allocated: Sequence[Any], launch: Any, whole: Whole | None) -> None:
        """Remember a successful call in the launch cache of its device, so that later calls like it repeat its launch.

        `bound` has the checked arguments, `allocated` are the outputs that it allocated, `launch` is the function that
        it called, and `whole`, perhaps None, describes its launches. Nothing is remembered if the call cannot be
        repeated. On a CPU, this is so if `whole` is None, if the arguments caused a warning, or if it left out some
        outputs but not all; on a GPU, if it left out other arguments than the last ones.
        """
        args = self.program.args
        passed = [v for v, argument in zip(args, bound.given, strict=True) if argument is not None]
        left_out = [v for v in args if v not in passed]
        passed_arguments = [argument for argument in bound.given if argument is not None]
        if is_gpu(self.target):
            if left_out == list(args[len(passed) :]):
                self._on_gpu.learn(tuple(passed_arguments), [getattr(a, "given", a) for a in allocated], launch)
        elif whole is not None and not bound.warned and (not left_out or left_out == list(self.outputs)):
            index_of = {v.name: n for n, v in enumerate([*passed, *left_out])}
            outputs = [(a, v not in self._fully_written) for v, a in zip(left_out, allocated, strict=True)]
            self._on_host.learn(passed_arguments, outputs, whole, [index_of[name] for name in whole.names])

    def _with_program(self, program: Program) -> Self:
        """Return a new executable of `program` with the symbol values, target, plan and options of this one."""
        options = (self.target, self.plan, self.dynamic, self._required, self.lenient)
        executable = type(self)(program, self.known, *options, constant=self._constant, machine=self._machine)
        executable.path = self.path
        return executable

    def __reduce__(self) -> tuple[Any, ...]:
        dynamic = tuple(s.name for s in self.dynamic)
        made_of = (self.program, self.target, self.plan, dynamic, self._required, self.lenient)
        return _executable_from, (*made_of, self._constant, self._machine), {"path": self.path}

    def __repr__(self) -> str:
        return self._repr_on(self.target)


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
    """Return the tile kernel `kernel` planned and compiled for `sizes`, {name: number}.

    For `dynamic` sizes the numbers are typical values: the kernel is planned for them and runs for all. `constant` are
    names of arguments that do not change once they are bound. With `machine`, the kernel is planned for that machine,
    and its block programs run on the interpreter. `plan` is a plan to follow; None: the planner chooses one. Raise
    NoAtoms or SlowPlan if the plan lacks a property in `required`.

    >>> from tilewright.kernels.gemm import gemm
    >>> kernel_for(gemm("nn", "f32"), {"M": 3, "N": 4, "K": 5}, target="interpreter", constant=["b"])
    <kernel gemm(a: f32[3, 5], b: f32[5, 4], c: f32[3, 4]) by ... on interpreter>
    """
    program = kernel.trace()
    program = with_whole_writes(program, resolve(program.bindings))
    return _executable_from(program, target, plan, tuple(dynamic), required, False, constant, machine).of_sizes(sizes)


def constant_arguments(executable: NativeExecutable, constant: Collection[str]) -> NativeExecutable:
    """Return a new executable like `executable`, in which the arguments named in `constant` do not change once bound.

    Raise ArgumentError for a name that is no argument.
    """
    names = [a.name or "" for a in executable.program.args]
    if not all(name in names for name in constant):
        raise ArgumentError(f"constant={constant!r}: a list of arguments; {executable.name} takes {', '.join(names)}")
    program, target, plan, dynamic, required, lenient, _, machine = executable.__reduce__()[1]
    return _executable_from(program, target, plan, dynamic, required, lenient, tuple(constant), machine)


def _executable_from(
    program: Program,
    target: str,
    plan: str | Schedule | None,
    dynamic: tuple[str, ...],
    required: Required,
    lenient: bool,
    constant: Collection[str],
    machine: Machine | None,
) -> NativeExecutable:
    """Return the executable of `program` with these options. Nothing is compiled before it is called.

    Pickle also calls this function to restore an executable. `dynamic` are names of sizes known only at the call.
    `constant` are names of arguments that do not change once bound. `required` are properties that the plan must have,
    such as Required.ATOMS. With `lenient`, arrays may be larger than the program says. With `machine`, the kernels are
    planned for that machine and run on the interpreter. `plan` is a plan to follow, or None.
    """
    known = resolve(program.bindings)
    symbol_of = {s.name: s for a in program.args for d in getattr(a.type, "dims", ()) for s in d.symbols}
    opened = [symbol_of[name] for name in dynamic]
    return NativeExecutable(program, known, target, plan, opened, required, lenient, constant=constant, machine=machine)


def _as_schedule(plan: str | Schedule | None) -> Schedule | None:
    """Return `plan` as a Schedule: a text is parsed; a Schedule or None is returned unchanged."""
    if plan is None:
        return None
    from tilewright.plan.text import as_plan

    return as_plan(plan)


def _extents_of(arg: Value) -> list[Expr]:
    """Return the list of the extents of the argument `arg` as expressions, in the order of its dimensions; [] for a
    scalar.

    If the argument's type leaves an extent open, the extent is the symbol of the dimension.
    """
    if not isinstance(arg.type, MemoryType):
        return []
    return [d if size is None else size for d, size in zip(arg.type.dims, arg.type.sizes, strict=True)]


def _has_free_tile_size(program: Program, op: Op) -> bool:
    """True if the planner may choose the tile size of the loop `op`, because the loop's result does not depend on it.

    The loop must only accumulate, and iterate over its whole axis: it has no start value, and the author's constraint
    on this axis gives no start and no number of iterations.
    """
    tiling = tiling_of(program, op.attrs["axis"])
    limited = tiling is not None and ("iters" in tiling.attrs or "start" in tiling.attrs)
    return not op.attrs.get("start") and not limited and accumulates_only(op)


def _logs_show_tile_size(program: Program, op: Op) -> bool:
    """True if a debug_log in the loop `op` records each iteration and a constraint gives the tile size.

    The logs then depend on the tile size, so that the planner must not change it.
    """
    tiling = tiling_of(program, op.attrs["axis"])
    return logs_iterations(op) and tiling is not None and "tile" in tiling.attrs
