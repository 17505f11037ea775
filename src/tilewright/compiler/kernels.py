"""`compile(kernel, symbols, target=, plan=)`: from a kernel to an executable.

Targets: "cpu", machine code for this CPU; "gpu" and "cuda", code for the GPU in use; "cpu:NAME" and "gpu:NAME", code
for a machine by name; and "executor", which runs the tile program in numpy and defines its meaning.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, overload

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.compiler.required import Required
from tilewright.compiler.symbols import bound_names, known_names, refuse_unknown
from tilewright.compiler.whole_writes import with_whole_writes
from tilewright.errors import (
    AliasingWarning,
    ArgumentError,
    DtypeMismatch,
    NarrowingWarning,
    NothingWritten,
    ProgramError,
    TilewrightError,
    UnboundSymbol,
)
from tilewright.interpret.grid import is_grid, refuse_threads
from tilewright.interpret.loops import accumulates_only, require_tilings
from tilewright.ir.attrs import attr_symbols
from tilewright.ir.core import MemoryType, Op, Program, TileType, Value
from tilewright.ir.in_place import merge_arguments
from tilewright.ir.location import warn_author
from tilewright.ir.printer import program_text
from tilewright.ir.tile import TILE, access_form, parse_tile, require_elements
from tilewright.ir.verifier import verify
from tilewright.ir.written import outputs_of
from tilewright.lang.symbols import GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE, WORKGROUPS, AddressSpace
from tilewright.limits import written
from tilewright.runtime.arguments import Arguments
from tilewright.runtime.calls import arranged, known_level, signature_of
from tilewright.runtime.eager import eager
from tilewright.runtime.tensors import count_writes
from tilewright.targets.calls.table import UNLIKE
from tilewright.targets.names import CPU, GPU
from tilewright.targets.registry import check_target
from tilewright.wave.kernel import Kernel

if TYPE_CHECKING:  # not loaded for tile kernels
    from tilewright.block.kernel import BlockKernel as BlockKernel
    from tilewright.compiler.text import TextExecutable
    from tilewright.targets.cpu.launch_cache import LaunchCache

_LOG = logging.getLogger("tilewright.compile")
EXECUTOR = "executor"


@overload
def compile(
    kernel: BlockKernel,
    symbols: Mapping[Any, Any] | None = None,
    *,
    target: str = CPU,
    workers: int | None = None,
    seed: int | None = None,
) -> TextExecutable:
    """Compile a block kernel for `target` and return the result, which is called with arrays.

    `symbols` gives the kernel's parameters, `workers` the number of workgroups that share its tasks, and `seed` the
    interpreter's schedule. This overload only gives types; the definition below explains the options.
    """
    ...  # noqa: PIE790


@overload
def compile(
    kernel: Any,
    symbols: Mapping[Any, Any] | None = None,
    *,
    target: str = CPU,
    plan: Any = None,
    dynamic: Collection[Any] = (),
    strict: bool = False,
    lenient: bool = False,
    require_atoms: bool = False,
    require_fast: bool = False,
) -> Executable:
    """Compile a tile kernel, a tile program or its text for `target` and return the result, which is called with
    arrays.

    This overload only gives types; the definition below explains the options.
    """
    ...  # noqa: PIE790


@eager
def compile(
    kernel: Any,
    symbols: Mapping[Any, Any] | None = None,
    *,
    target: str = CPU,
    plan: Any = None,
    dynamic: Collection[Any] = (),
    strict: bool = False,
    lenient: bool = False,
    require_atoms: bool = False,
    require_fast: bool = False,
    workers: int | None = None,
    seed: int | None = None,
) -> Executable | TextExecutable:
    """Compile `kernel` for `target` and return the result, which is called with the kernel's arguments.

    `kernel` is a function marked by `@tkw.wave`, a tile program or its text. `symbols` binds its symbols (or their
    names) to ints or expressions; sizes may be left to the arguments' shapes. `target="cpu"` gives machine code for
    this CPU, `"cpu:x86.avx512"` for a machine by name, whose text can be read everywhere and which can be called where
    it runs; `"gpu"` (or `"cuda"`, NVIDIA's) and `"gpu:hopper"` likewise for GPUs; `"executor"` runs the kernel in
    numpy, which defines its meaning. `plan` is the text of a plan, as `executable.text("plan")` prints it: it is
    followed, or refused with the reason. Without one, constraints fix parts of the plan, and the planner chooses the
    rest.

    `dynamic` names sizes (rows, batch, image) that stay run-time arguments: one machine code for all their values,
    planned for those of the first call. `strict` makes a narrowing write an error. `lenient` takes arguments as Wave
    does: they may be longer than their dimensions say (the first that has a size decides it, and mappings may reach
    elements past it), i8 may be given as u8 and vice versa, a MemoryLayout of numbers may be met by an array of another
    number of dimensions, and set_symbol may make a symbol negative.

    If a contraction (`mma`) runs as plain loops although the machine has a multiplication atom for its types, a
    `FastPathLost` warning says why, once, at its line; `require_atoms` makes that an error.

    If the plan is predicted to take more than 4 times the roofline of the program, and more than 20 us above it, a
    `SlowPlanWarning` says so at the line of the operation that takes the time, with the cause and a way out;
    `require_fast` makes that an error. There are no such warnings for a `plan` of the author's.

    A block kernel (a function under `@tb.kernel`) is accepted too: `symbols` are its parameters, `workers` is the
    number of workgroups that share its tasks, and `seed` chooses the interpreter's schedule; it has no plan (see
    `compiler.block`).

    Raise an ArgumentError for options that do not fit the kernel, and a ProgramError for an illegal kernel.

    >>> import numpy as np, tilewright, tilewright.lang as tkl, tilewright.wave as tkw
    >>> M, N = tkl.sym.M, tkl.sym.N
    >>> @tkw.wave()
    ... def row_sums(x: tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
    ...              y: tkl.Memory[M, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32]):
    ...     tkw.write(tkw.sum(tkw.read(x), dim=N), y)
    >>> tilewright.compile(row_sums)(np.arange(6, dtype=np.float32).reshape(2, 3))
    array([ 3., 12.], dtype=float32)
    """
    if symbols is not None and not isinstance(symbols, Mapping):
        raise ArgumentError(f"symbols={written(symbols, 80)}: a dictionary of symbols (or names) and their values")
    if isinstance(dynamic, str) or not isinstance(dynamic, Collection):
        raise ArgumentError(f"dynamic={written(dynamic, 80)}: a list of sizes, as in dynamic=['M']")
    dynamic = tuple(dynamic)
    flags = {"strict": strict, "lenient": lenient, "require_atoms": require_atoms, "require_fast": require_fast}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ArgumentError(f"{name}={written(value, 80)}: True or False")
    if _is_block_kernel(kernel):
        from tilewright.compiler.block import compile_block

        for name, value in {"plan": plan, "dynamic": dynamic or None, **flags}.items():
            if value is not None and value is not False:
                raise ArgumentError(
                    f"{name}={written(value, 80)}: this is for tile kernels; the block kernel {kernel.__name__} says "
                    "itself how it is done: leave it out"
                )
        return compile_block(kernel, symbols, target=target, workers=workers, seed=0 if seed is None else seed)
    if workers is not None or seed is not None:
        arguments = f"workers={written(workers)}, seed={written(seed)}"
        raise ArgumentError(f"{arguments}: these are for block kernels; leave them out")
    check_target(target, (GPU, EXECUTOR))
    if plan is not None and target == EXECUTOR:
        raise ArgumentError(f"plan=: target={target!r} has no plans; leave it out")
    if require_atoms and target == EXECUTOR:
        raise ArgumentError(f"require_atoms=: target={target!r} has no atoms; leave it out")
    if require_fast and target == EXECUTOR:
        raise ArgumentError(f"require_fast=: target={target!r} has no plans to be timed; leave it out")
    required = (Required.ATOMS if require_atoms else Required.NOTHING) | (
        Required.FAST if require_fast else Required.NOTHING
    )
    try:
        program = _program_of(kernel)
        if program.level is not TILE:
            raise ArgumentError(f"compile takes tile programs; {program.name} is of the {program.level.name} level")
        if not outputs_of(program):
            raise NothingWritten(f"the program {program.name} never writes: it would compute nothing anyone can see")
        _LOG.debug("%s: compile for %s", program.name, target)
        new_bindings = _bindings_of(symbols or {})
        refuse_unknown(program.name, bound_names(new_bindings), known_names(program, kernel, new_bindings))
        program.bindings |= new_bindings
        known = resolve(program.bindings)
        refuse_threads(program)
        program = with_whole_writes(program, known)
        require_tilings(program)
        _check_narrowing(program, strict=strict)
        _warn_of_aliasing(program)
        _require_bound(program, known)
        _require_tile_sizes(program, known)
        _require_topk_counts(program, known)
        dynamic_symbols = _dynamic_symbols(program, known, dynamic, target)
        return _make_executable(program, known, target, plan, dynamic_symbols, required, lenient)
    except ProgramError as fault:
        raise fault.with_traceback(None) from None


def _is_block_kernel(kernel: Any) -> bool:
    """True if `kernel` is a kernel of the block language. The block language is not imported for this test."""
    language = sys.modules.get("tilewright.block.kernel")
    return language is not None and isinstance(kernel, language.BlockKernel)


def _dynamic_symbols(
    program: Program, known: Mapping[Symbol, Expr], dynamic: Collection[Any], target: str
) -> list[Symbol]:
    """Return the list of the symbols that `dynamic` (symbols or names of sizes) leaves open until each call.

    Raise ArgumentError for one that has a value in `known`, {symbol: value}, or is no size of an argument. Raise it for
    any entry if `target` is "executor", where every size is dynamic.
    """
    if dynamic and target == EXECUTOR:
        raise ArgumentError(f"dynamic=: with target={target!r} every size is; leave it out")
    sizes_of_arguments = {
        s.name: s for a in program.args if isinstance(a.type, MemoryType) for d in a.type.dims for s in d.symbols
    }
    symbols = []
    for entry in dynamic:
        name = entry if isinstance(entry, str) else getattr(entry, "name", str(entry))
        if name not in sizes_of_arguments or sizes_of_arguments[name] in known:
            open_names = [n for n, s in sizes_of_arguments.items() if s not in known]
            raise ArgumentError(f"dynamic: {name} is no size that arguments tell; there are {', '.join(open_names)}")
        symbols.append(sizes_of_arguments[name])
    return symbols


def _make_executable(
    program: Program,
    known: Mapping[Symbol, Expr],
    target: str,
    plan: Any,
    dynamic: list[Symbol],
    required: Required,
    lenient: bool,
) -> Executable:
    """Return the executable that runs a checked tile program: in numpy if `target` is "executor", else as machine code.

    `known` is {symbol: value}, `dynamic` are the sizes left to each call. `plan`, `required` and `lenient` are options
    of `compile`.
    """
    if target == EXECUTOR:
        return Executable(program, known, lenient)
    from tilewright.compiler.native import NativeExecutable  # loads the code generators

    return NativeExecutable(program, known, target, plan, dynamic, required, lenient)


def restored(program: Program, lenient: bool) -> Executable:
    """Return the executable that runs `program` in numpy. Unpickling calls this. `lenient` is the option of
    `compile`."""
    return Executable(program, resolve(program.bindings), lenient)


def _program_of(kernel: Any) -> Program:
    """Return the verified tile program of `kernel`: a Wave kernel is traced, a Program is copied, a text is parsed.

    Raise ArgumentError for anything else, and ProgramError if the program is illegal.
    """
    if isinstance(kernel, Program):
        verify(kernel)
        return replace(kernel, bindings=dict(kernel.bindings))  # the caller's program stays as it is
    if isinstance(kernel, str):
        program = parse_tile(kernel)
        verify(program)
        return program
    if isinstance(kernel, Kernel):
        return kernel.trace()
    raise ArgumentError(
        "compile takes a kernel (a function under @tkw.wave or @tb.kernel), a tile program or its text, not "
        f"{written(kernel, 80)}"
    )


def _bindings_of(symbols: Mapping[Any, Any]) -> dict[Expr, Any]:
    """Return {symbol: expression} for `symbols`, {symbol or its name: int or expression}.

    Entries with an address space as value are left out. Raise ArgumentError for other keys or values.
    """
    bindings: dict[Expr, Any] = {}
    for key, value in symbols.items():
        name = key if isinstance(key, str) else getattr(key, "name", str(key))
        if isinstance(value, AddressSpace) or any(value is s for s in (GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE)):
            continue
        if not isinstance(key, Symbol):
            if not isinstance(key, str) or not key.isidentifier():
                raise ArgumentError(f"symbols: {written(key, 80)} is neither a symbol nor a name")
            key = symbol(key, 0)
        try:
            bindings[key] = as_expr(value)
        except TilewrightError:
            raise ArgumentError(
                f"symbols: {name} = {written(value, 80)} is neither an integer nor an expression"
            ) from None
    return bindings


def resolve(bindings: Mapping[Expr, Any]) -> dict[Symbol, Expr]:
    """Return {symbol: expression} with all bound symbols substituted in the expressions: {M: 2*N, N: 3} -> {M: 6, N:
    3}.

    Keys of `bindings` that are no symbols are left out. Raise ArgumentError if a symbol depends on itself.

    >>> M, N = symbol("M", 0), symbol("N", 0)
    >>> resolve({M: 2 * N, N: M + 1})
    Traceback (most recent call last):
    tilewright.errors.ArgumentError: symbols: M = 2*N mentions itself, perhaps through others
    """
    known = {s: as_expr(e) for s, e in bindings.items() if isinstance(s, Symbol)}
    bound = {s: e for s, e in known.items() if e is not s}
    for s in bound:
        reached: set[Symbol] = set()
        pending = set(bound[s].symbols)
        while pending:
            reached |= pending
            pending = {dependency for r in pending if r in bound for dependency in bound[r].symbols} - reached
        if s in reached:
            raise ArgumentError(f"symbols: {s} = {bindings[s]} mentions itself, perhaps through others")
    while True:
        step = Substitution(bound)
        substituted = {s: step(e) for s, e in bound.items()}
        if all(substituted[s] is e for s, e in bound.items()):
            return known | bound
        bound = substituted


# -- checks -------------------------------------------------------------------------------------------


def _check_narrowing(program: Program, *, strict: bool) -> None:
    """Give a NarrowingWarning for each write to memory that cannot represent all values of the tile's type.

    With `strict`, raise DtypeMismatch for the first such write instead.
    """
    for op in program.walk():
        if op.name != "write":
            continue
        tile, memory = op.operands[0].type, op.operands[1].type
        if not memory.dtype.holds(tile.dtype):
            message = f"write rounds {tile.dtype} to {memory.dtype}; say so with tkw.cast(tile, tkl.{memory.dtype})"
            if strict:
                raise DtypeMismatch(message, op.loc)
            location = f"\n{op.loc.pointing()}" if op.loc else ""
            warn_author(message + location, NarrowingWarning)


def _warn_of_aliasing(program: Program) -> None:
    """Give an AliasingWarning for the first argument that is read and written through different accesses.

    Its result then depends on the order of the reads and writes. There is at most one warning.
    """
    reason = "the order of workgroups shows" if is_grid(program) else "natively the kernel is one task"
    for value in program.args:
        reads = [op for op in program.walk() if op.name == "read" and op.operands[0] is value]
        writes = [op for op in program.walk() if op.name == "write" and op.operands[1] is value]
        for r in reads:
            for w in writes:
                if access_form(r) != access_form(w):
                    lines = "".join(f"\n{op.loc.pointing()}" for op in (r, w) if op.loc)
                    warn_author(
                        f"the argument {value.name} is read and written through different accesses; {reason}{lines}",
                        AliasingWarning,
                    )
                    return


def _require_bound(program: Program, known: Mapping[Symbol, Expr]) -> None:
    """Raise UnboundSymbol if an operation uses a symbol that has no value.

    Values come from `known` ({symbol: value}), from the shapes of arguments, from loops and from set_symbol. In grid
    programs, the symbols in constraints need a value too. In other programs a tile size may have none, as the planner
    then chooses it, unless a loop's result depends on its tile size.
    """
    memory = [a.type for a in program.args if isinstance(a.type, MemoryType)]
    free = {s for memory_type in memory for d in memory_type.sizes if d is not None for s in d.symbols}
    for memory_type in memory:  # a free extent takes its size from the array
        free |= {
            d
            for d, size in zip(memory_type.dims, memory_type.sizes, strict=True)
            if size is None and isinstance(d, Symbol)
        }
    for op in program.walk():
        free |= {s for name in ("over",) for e in op.attrs.get(name, ()) for s in e.symbols}
        free |= {s for s, _ in op.attrs.get("lookups", ())}
        free |= {s for e in op.attrs.get("names", ()) for s in e.symbols}
        if op.name == "set_symbol":
            free |= op.attrs["symbol"].symbols
        if op.name == "iterate" and op.attrs.get("start"):
            free |= op.attrs["axis"].symbols
    is_grid_program = is_grid(program)
    for op in program.walk():
        used = {
            s
            for name, memory_type in op.spec.attrs.items()
            if name in op.attrs
            for s in attr_symbols(memory_type, op.attrs[name])
        }
        for value in op.results:
            if isinstance(value.type, TileType):
                used |= {s for d in value.type.dims for s in d.symbols}
        if op.name == "iterate" and not op.attrs.get("start") and not accumulates_only(op):
            for record in program.records:
                if record.name == "tiling" and record.attrs["dim"] is op.attrs["axis"] and "tile" in record.attrs:
                    used |= record.attrs["tile"].symbols
        _require_bound_symbols(used, known, free, op)
    for record in program.records if is_grid_program else ():
        if record.name in ("workgroup", "tiling", "grid", "reordering"):
            kinds = record.spec.attrs
            used = {s for name, v in record.attrs.items() for s in attr_symbols(kinds[name], v)}
            _require_bound_symbols(used, known, free, record)


def _require_tile_sizes(program: Program, known: Mapping[Symbol, Expr]) -> None:
    """Raise ArgumentError if a constraint's tile size is less than 1 for `known`, {symbol: value}.

    A tile size that is not known yet is not checked.
    """
    bound = Substitution(known)
    for record in program.records:
        tile = record.attrs.get("tile")
        if tile is not None and isinstance(size := bound(tile), Const) and size.value < 1:
            raise ArgumentError(f"the tile size of {record.attrs['dim']} is {tile} = {size}; it must be at least 1")


def _require_topk_counts(program: Program, known: Mapping[Symbol, Expr]) -> None:
    """Raise DimensionMismatch if a `topk` takes more elements than its dimension has for `known`, {symbol: value}.

    A count or size that is not known yet is not checked.
    """
    bound = Substitution(known)
    for op in program.walk():
        if op.name == "topk":
            count, length = bound(op.attrs["count"]), bound(op.attrs["dim"])
            if isinstance(count, Const) and isinstance(length, Const):
                require_elements(op, count.value, length.value)


def _require_bound_symbols(needed: set[Symbol], known: Mapping[Symbol, Expr], free: set[Symbol], op: Op) -> None:
    """Raise UnboundSymbol, at the source line of `op`, if a symbol in `needed`, the symbols that `op` uses, gets no
    value.

    `known` is {symbol: number or expression}. A symbol in `known` gets a value if all symbols of its expression are in
    `free`. The symbols in `free`, workgroup ids and iteration arguments get their values later.
    """
    for s in sorted(needed, key=lambda s: s.name):
        if s in WORKGROUPS or s.name.startswith("GET_ITER_ARG_") or s in free:
            continue
        unbound = known[s].symbols - free if s in known else {s}
        unbound -= set(WORKGROUPS)
        if unbound:
            missing = min(x.name for x in unbound)
            raise UnboundSymbol(
                f"the symbol {missing} is neither bound nor found in an argument's shape; bind it: "
                f"compile(kernel, {{{missing}: ...}})",
                op.loc,
            )


# -- executables ----------------------------------------------------------------------------------------


class Executable:
    """A compiled kernel: call it with the kernel's arguments, by position or by name.

    Outputs that a call passes are filled in place; outputs that it leaves out are allocated and returned. The keyword
    `out=` passes the output (a tuple if there are several), and the call returns it. Threads may call an executable at
    the same time; they take turns.

    >>> import inspect, numpy as np, tilewright
    >>> run = tilewright.compile(tilewright.kernels.gemm("nt", "f32"))
    >>> print(inspect.signature(run))
    (a: 'f32[M, K]', b: 'f32[N, K]', c: 'f32[M, N]' = None, *, out=None, debug_logs=None)
    >>> result = np.empty((1, 1), np.float32)
    >>> run(b=np.full((1, 2), 3, np.float32), a=np.ones((1, 2), np.float32), out=result) is result
    True
    >>> result
    array([[6.]], dtype=float32)
    """

    def __init__(self, program: Program, known: Mapping[Symbol, Expr], lenient: bool = False):
        self.program = program
        self.known = dict(known)
        self.lenient = lenient
        """Whether arguments are accepted as in Wave; see `compile`."""
        self.outputs = outputs_of(program)
        types = {a.name or "": str(a.type).removeprefix("global ") for a in program.args}
        self.__signature__ = signature_of(types, [a.name or "" for a in self.outputs], ["debug_logs"])
        self._orders: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        """{form of a call by name: for each argument, its position in the call or its name}."""
        self._in_one_array: dict[tuple[tuple[Value, Value], ...], Self] = {}

    @property
    def name(self) -> str:
        """Return the kernel's name."""
        return self.program.name

    def text(self, level: str = "tile", symbols: Mapping[Any, int] | None = None) -> str:
        """Return the text of the tile program. Raise ArgumentError unless `level` is "tile". `symbols` is not used."""
        known_level(level, ("tile",), f"{self.name} on the executor")
        return program_text(self.program)

    @eager
    def __call__(self, *args: Any, debug_logs: dict[str, Any] | None = None, **named: Any) -> Any:
        """Run the kernel and return the outputs that were left out: one array, a tuple of several, or None. With
        `out=`, return that.

        `debug_logs` is a dictionary that receives the values of tkw.debug_log, as `debug_logs[label]["value"]`. Raise
        ArgumentError if the arguments do not fit.
        """
        if debug_logs is None and not named:
            result = self._repeat_remembered(args)
            if result is not UNLIKE:
                return result
        if debug_logs is not None and not isinstance(debug_logs, dict):
            raise ArgumentError(f"{self.name}: debug_logs={written(debug_logs, 80)} is no dictionary to receive logs")
        placed = self._by_position(args, named) if named else args
        if debug_logs is None and named:
            result = self._repeat_remembered(tuple(a for a in placed if a is not None))
            if result is not UNLIKE:
                return named.get("out") if result is None else result
        try:
            result = self._run(placed, debug_logs)
        except ProgramError as fault:
            raise fault.with_traceback(None) from None
        if len(placed) == len(self.program.args):
            count_writes(a for v, a in zip(self.program.args, placed, strict=True) if v in self.outputs)
        return named.get("out") if result is None else result

    @property
    def launches(self) -> LaunchCache | None:
        """Return the cache of calls on the host, of which later calls repeat the launches.

        Return None here, since calls that run in numpy are not remembered. Executables with machine code override this.
        """
        return None

    def _repeat_remembered(self, args: tuple[Any, ...]) -> Any:
        """Return `UNLIKE`: this executable remembers no call.

        Executables with machine code override this. If they remember a call with arguments of the same types, shapes
        and strides as `args`, they repeat its launch and return the outputs that it allocates.
        """
        return UNLIKE

    def _by_position(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return a tuple of all arguments of a call in the program's order, with None for outputs that are left out.

        `args` are the arguments that are passed by position, `named` those by name, including `out`. Raise
        ArgumentError if they do not fit.
        """
        call_form = (len(args), *named)
        order = self._orders.get(call_form)
        if order is None:
            names, outputs = ([a.name or "" for a in values] for values in (self.program.args, self.outputs))
            if "out" in named and len(outputs) > 1:  # a tuple of arrays: each is one of the arguments
                return arranged(self.name, names, outputs, args, named)
            sources = {name: name for name in named}
            order = self._orders[call_form] = arranged(self.name, names, outputs, tuple(range(len(args))), sources)
        return tuple([None if n is None else args[n] if type(n) is int else named[n] for n in order])

    def _run(self, args: tuple[Any, ...], logs: dict[str, Any] | None) -> Any:
        """Run the program in numpy on `args`, the call's arguments by position; return the outputs that the call left
        out.

        They are one array, a tuple of several, or None. Arguments are checked first: ArgumentError is raised if they do
        not fit. Outputs that were passed are filled in place. `logs` receives the values of debug_log; if it is None,
        nothing is recorded, unless an author's hook needs it. Executables with machine code override this.
        """
        bound = Arguments(self.program, self.outputs, self.known, args, self.lenient)
        if bound.in_place:
            return self._aliased_executable(bound)._run(bound.without_aliases, logs)
        if logs is None and self.program.hooks:
            logs = {}
        if not bound.is_empty:
            from tilewright.interpret.executor import execute

            execute(self.program, bound.symbols, bound.values, logs, bound.derived, lenient=self.lenient)
        self._finish_logs(bound, logs)
        return bound.finish()

    def _aliased_executable(self, bound: Arguments) -> Self:
        """Return the executable for a call in which an output has the same array as one or more inputs.

        Its program is a variant in which the output and these inputs are one argument. `bound` has the call's checked
        arguments; `bound.in_place` maps each of these inputs to its output. Variants are cached.
        """
        key = tuple(bound.in_place.items())
        alias = self._in_one_array.get(key)
        if alias is None:
            alias = self._in_one_array[key] = self._with_program(merge_arguments(self.program, bound.in_place))
        return alias

    def _with_program(self, program: Program) -> Self:
        """Return a new executable of `program` with the symbol values and options of this one."""
        return type(self)(program, self.known, self.lenient)

    def _finish_logs(self, bound: Arguments, logs: dict[str, Any] | None) -> None:
        """Convert the arrays in `logs` to the library of the arguments, and call the author's printers and handlers of
        debug_log.

        A printer gets (label, array), and is called only if the label was logged. A handler gets `logs`. `bound` has
        the call's checked arguments.
        """
        if logs:
            bound.finish_logs(logs)
        for label, (printer, handler) in self.program.hooks.items():
            if printer is not None and logs is not None and label in logs:
                printer(label, logs[label]["value"])
            if handler is not None:
                handler(logs)

    @property
    def asm(self) -> str:
        """Return the text of the tile program, as `text()` does. Wave has this name for it."""
        return self.text()

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (self.program, self.lenient)

    def __repr__(self) -> str:
        return self._repr_on("the executor")

    def _repr_on(self, where: str) -> str:
        """Return the text of `repr`: the kernel's name, its arguments with their types, and `where` ("the
        executor")."""
        parameters = (p for p in self.__signature__.parameters.values() if p.kind is not p.KEYWORD_ONLY)
        return f"<executable {self.name}({', '.join(f'{p.name}: {p.annotation}' for p in parameters)}) on {where}>"
