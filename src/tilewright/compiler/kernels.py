"""`compile(kernel, symbols, target=, plan=)`: from a kernel to what can be called.

Targets: "cpu", machine code for the CPU at hand; "gpu" and "cuda", code for the GPU at hand; "cpu:NAME" and "gpu:NAME",
that for a named machine; and "executor", which runs the tile program in numpy and defines what it means.
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
from tilewright.ir.in_place import in_one_array
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

if TYPE_CHECKING:  # a tile kernel needs none of them
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
) -> TextExecutable: ...


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
) -> Executable: ...


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
    """What a kernel becomes for a target: call it with the kernel's arguments.

    `kernel` is a function marked by `@tkw.wave`, a tile program or its text. `symbols` binds symbols (or names) of it
    to ints or expressions; sizes may be left to the arguments' shapes. `strict` makes a narrowing write an error.
    `target="cpu"` gives machine code for the CPU at hand, `"cpu:x86.avx512"` that for a machine by name, which can be
    read everywhere and called where it runs; `"gpu"` (or `"cuda"`, which is NVIDIA's) and `"gpu:hopper"` likewise for
    GPUs; `"executor"` runs it in numpy, which is what it means. `plan` says how, as `executable.text("plan")` does: it
    is done so, or refused with the reason. Without one, constraints fix parts of the plan, and the planner chooses the
    rest.
    `dynamic` names sizes (rows, batch, image) that stay run-time arguments: one machine code for all their values,
    planned for those of the first call. `lenient` takes arguments as Wave does: they may be longer than their
    dimensions say (the first that has a size tells it, and mappings may reach what lies past it), i8 may be given as u8
    and the other way round, a MemoryLayout of numbers may be met by an array of another number of dimensions, and
    set_symbol may make a symbol negative.

    Where a product (`mma`) runs as plain loops although the machine has a multiplication atom for its types, a
    `FastPathLost` warning says why, once, at the product's line; `require_atoms` makes that an error.

    Where the plan is predicted to take more than 4 times the roofline of the program, and more than 20 us above it, a
    `SlowPlanWarning` says so at the line of the operation that takes the time, with the cause and a way out;
    `require_fast` makes that an error. Neither is said of a plan that is given.

    A block kernel (a function under `@tb.kernel`) is taken too: `symbols` are its parameters, `workers` is how many
    workgroups share its tasks, and `seed` picks the interpreter's schedule; it has no plan (see `compiler.block`).

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
        said = f"workers={written(workers)}, seed={written(seed)}"
        raise ArgumentError(f"{said}: these are for block kernels; leave them out")
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
        given = _bindings(symbols or {})
        refuse_unknown(program.name, bound_names(given), known_names(program, kernel, given))
        program.bindings |= given
        known = resolve(program.bindings)
        refuse_threads(program)
        program = with_whole_writes(program, known)
        require_tilings(program)
        _report_narrowing(program, strict=strict)
        _report_aliasing(program)
        _require_bound(program, known)
        _require_tiles(program, known)
        _require_elements(program, known)
        left = _dynamic(program, known, dynamic, target)
        return _executable(program, known, target, plan, left, required, lenient)
    except ProgramError as fault:
        raise fault.with_traceback(None) from None


def _is_block_kernel(kernel: Any) -> bool:
    """Whether it is a kernel of the block language; there is none where that is not loaded."""
    language = sys.modules.get("tilewright.block.kernel")
    return language is not None and isinstance(kernel, language.BlockKernel)


def _dynamic(program: Program, known: Mapping[Symbol, Expr], dynamic: Collection[Any], target: str) -> list[Symbol]:
    """The symbols whose values are left to every call."""
    if dynamic and target == EXECUTOR:
        raise ArgumentError(f"dynamic=: with target={target!r} every size is; leave it out")
    there = {s.name: s for a in program.args if isinstance(a.type, MemoryType) for d in a.type.dims for s in d.symbols}
    symbols = []
    for each in dynamic:
        name = each if isinstance(each, str) else getattr(each, "name", str(each))
        if name not in there or there[name] in known:
            left = [n for n, s in there.items() if s not in known]
            raise ArgumentError(f"dynamic: {name} is no size that arguments tell; there are {', '.join(left)}")
        symbols.append(there[name])
    return symbols


def _executable(
    program: Program,
    known: Mapping[Symbol, Expr],
    target: str,
    plan: Any,
    dynamic: list[Symbol],
    required: Required,
    lenient: bool,
) -> Executable:
    if target == EXECUTOR:
        return Executable(program, known, lenient)
    from tilewright.compiler.native import NativeExecutable  # what it needs of the CPU is loaded only here

    return NativeExecutable(program, known, target, plan, dynamic, required, lenient)


def restored(program: Program, lenient: bool) -> Executable:
    """An executable by what made it."""
    return Executable(program, resolve(program.bindings), lenient)


def _program_of(kernel: Any) -> Program:
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


def _bindings(symbols: Mapping[Any, Any]) -> dict[Expr, Any]:
    """Symbols and their values; address spaces say nothing on the tile level and are left out."""
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
    """Bindings with bindings put into them, until nothing changes: numbers where all is known.

    >>> M, N = symbol("M", 0), symbol("N", 0)
    >>> resolve({M: 2 * N, N: M + 1})
    Traceback (most recent call last):
    tilewright.errors.ArgumentError: symbols: M = 2*N mentions itself, perhaps through others
    """
    known = {s: as_expr(e) for s, e in bindings.items() if isinstance(s, Symbol)}
    others = {s: e for s, e in known.items() if e is not s}
    for s in others:
        reached: set[Symbol] = set()
        further = set(others[s].symbols)
        while further:
            reached |= further
            further = {each for r in further if r in others for each in others[r].symbols} - reached
        if s in reached:
            raise ArgumentError(f"symbols: {s} = {bindings[s]} mentions itself, perhaps through others")
    while True:
        step = Substitution(others)
        following = {s: step(e) for s, e in others.items()}
        if all(following[s] is e for s, e in others.items()):
            return known | others
        others = following


# -- checks -------------------------------------------------------------------------------------------


def _report_narrowing(program: Program, *, strict: bool) -> None:
    for op in program.walk():
        if op.name != "write":
            continue
        tile, memory = op.operands[0].type, op.operands[1].type
        if not memory.dtype.holds(tile.dtype):
            what = f"write rounds {tile.dtype} to {memory.dtype}; say so with tkw.cast(tile, tkl.{memory.dtype})"
            if strict:
                raise DtypeMismatch(what, op.loc)
            where = f"\n{op.loc.pointing()}" if op.loc else ""
            warn_author(what + where, NarrowingWarning)


def _report_aliasing(program: Program) -> None:
    """Arguments that are read and written through different accesses: the result depends on the order."""
    so = "the order of workgroups shows" if is_grid(program) else "natively the kernel is one task"
    for value in program.args:
        reads = [op for op in program.walk() if op.name == "read" and op.operands[0] is value]
        writes = [op for op in program.walk() if op.name == "write" and op.operands[1] is value]
        for r in reads:
            for w in writes:
                if access_form(r) != access_form(w):
                    lines = "".join(f"\n{op.loc.pointing()}" for op in (r, w) if op.loc)
                    warn_author(
                        f"the argument {value.name} is read and written through different accesses; {so}{lines}",
                        AliasingWarning,
                    )
                    return


def _require_bound(program: Program, known: Mapping[Symbol, Expr]) -> None:
    """Raises for a symbol that nothing will bind; tile sizes of logical programs are left to the planner."""
    memory = [a.type for a in program.args if isinstance(a.type, MemoryType)]
    free = {s for kind in memory for d in kind.sizes if d is not None for s in d.symbols}
    for kind in memory:  # where an extent is free, its array tells the dimension's size
        free |= {d for d, size in zip(kind.dims, kind.sizes, strict=True) if size is None and isinstance(d, Symbol)}
    for op in program.walk():
        free |= {s for name in ("over",) for e in op.attrs.get(name, ()) for s in e.symbols}
        free |= {s for s, _ in op.attrs.get("lookups", ())}
        free |= {s for e in op.attrs.get("names", ()) for s in e.symbols}
        if op.name == "set_symbol":
            free |= op.attrs["symbol"].symbols
        if op.name == "iterate" and op.attrs.get("start"):
            free |= op.attrs["axis"].symbols
    grid = is_grid(program)
    for op in program.walk():
        needed = {
            s for name, kind in op.spec.attrs.items() if name in op.attrs for s in attr_symbols(kind, op.attrs[name])
        }
        for value in op.results:
            if isinstance(value.type, TileType):
                needed |= {s for d in value.type.dims for s in d.symbols}
        if op.name == "iterate" and not op.attrs.get("start") and not accumulates_only(op):
            for record in program.records:
                if record.name == "tiling" and record.attrs["dim"] is op.attrs["axis"] and "tile" in record.attrs:
                    needed |= record.attrs["tile"].symbols
        _refuse_unbound(needed, known, free, op)
    for record in program.records if grid else ():
        if record.name in ("workgroup", "tiling", "grid", "reordering"):
            kinds = record.spec.attrs
            needed = {s for name, v in record.attrs.items() for s in attr_symbols(kinds[name], v)}
            _refuse_unbound(needed, known, free, record)


def _require_tiles(program: Program, known: Mapping[Symbol, Expr]) -> None:
    """Raises for a tile size that is bound to less than one."""
    bound = Substitution(known)
    for record in program.records:
        tile = record.attrs.get("tile")
        if tile is not None and isinstance(size := bound(tile), Const) and size.value < 1:
            raise ArgumentError(f"the tile size of {record.attrs['dim']} is {tile} = {size}; it must be at least 1")


def _require_elements(program: Program, known: Mapping[Symbol, Expr]) -> None:
    """Raises for a topk of more elements than its dimension has, where both are bound; calls tell the others."""
    bound = Substitution(known)
    for op in program.walk():
        if op.name == "topk":
            count, length = bound(op.attrs["count"]), bound(op.attrs["dim"])
            if isinstance(count, Const) and isinstance(length, Const):
                require_elements(op, count.value, length.value)


def _refuse_unbound(needed: set[Symbol], known: Mapping[Symbol, Expr], free: set[Symbol], op: Op) -> None:
    for s in sorted(needed, key=lambda s: s.name):
        if s in WORKGROUPS or s.name.startswith("GET_ITER_ARG_") or s in free:
            continue
        left = known[s].symbols - free if s in known else {s}
        left -= set(WORKGROUPS)
        if left:
            missing = min(x.name for x in left)
            raise UnboundSymbol(
                f"the symbol {missing} is neither bound nor found in an argument's shape; bind it: "
                f"compile(kernel, {{{missing}: ...}})",
                op.loc,
            )


# -- executables ----------------------------------------------------------------------------------------


class Executable:
    """A compiled kernel: call it with the kernel's arguments, by position or by name.

    Outputs are filled in place; outputs left out are made and returned. `out=` gives the output (a tuple of them, where
    there are several), and is returned. Threads may call an executable at the same time; they take turns.

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
        """Whether arguments are taken as Wave takes them."""
        self.outputs = outputs_of(program)
        types = {a.name or "": str(a.type).removeprefix("global ") for a in program.args}
        self.__signature__ = signature_of(types, [a.name or "" for a in self.outputs], ["debug_logs"])
        self._orders: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        """The source of each argument, a place or a name; for each form of a call by name."""
        self._in_one_array: dict[tuple[tuple[Value, Value], ...], Self] = {}

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.program.name

    def text(self, level: str = "tile", symbols: Mapping[Any, int] | None = None) -> str:
        """The program on a level: "tile". `symbols` are sizes, which no text of the executor depends on."""
        known_level(level, ("tile",), f"{self.name} on the executor")
        return program_text(self.program)

    @eager
    def __call__(self, *args: Any, debug_logs: dict[str, Any] | None = None, **named: Any) -> Any:
        """Runs the kernel; `debug_logs` receives what tkw.debug_log keeps, as `logs[label]["value"]`."""
        if debug_logs is None and not named:
            result = self._like_before(args)
            if result is not UNLIKE:
                return result
        if debug_logs is not None and not isinstance(debug_logs, dict):
            raise ArgumentError(f"{self.name}: debug_logs={written(debug_logs, 80)} is no dictionary to receive logs")
        placed = self._arranged(args, named) if named else args
        if debug_logs is None and named:
            result = self._like_before(tuple(a for a in placed if a is not None))
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
        """The launches learnt from calls on the host, by position; None: calls are not launches."""
        return None

    def _like_before(self, args: tuple[Any, ...]) -> Any:
        """Makes a call that is like one before and returns the outputs that it made; `UNLIKE`: there was none."""
        return UNLIKE

    def _arranged(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """All arguments by position."""
        form = (len(args), *named)
        order = self._orders.get(form)
        if order is None:
            names, outputs = ([a.name or "" for a in values] for values in (self.program.args, self.outputs))
            if "out" in named and len(outputs) > 1:  # a tuple of arrays: each is one of the arguments
                return arranged(self.name, names, outputs, args, named)
            sources = {name: name for name in named}
            order = self._orders[form] = arranged(self.name, names, outputs, tuple(range(len(args))), sources)
        return tuple([None if n is None else args[n] if type(n) is int else named[n] for n in order])

    def _run(self, args: tuple[Any, ...], logs: dict[str, Any] | None) -> Any:
        bound = Arguments(self.program, self.outputs, self.known, args, self.lenient)
        if bound.in_place:
            return self._in_place(bound)._run(bound.apart, logs)
        if logs is None and self.program.hooks:
            logs = {}
        if not bound.is_empty:
            from tilewright.interpret.executor import execute

            execute(self.program, bound.symbols, bound.values, logs, bound.derived, lenient=self.lenient)
        self._finish_logs(bound, logs)
        return bound.finish()

    def _in_place(self, bound: Arguments) -> Self:
        """The executable of the program in which an output and the inputs that are its array are one argument."""
        key = tuple(bound.in_place.items())
        alias = self._in_one_array.get(key)
        if alias is None:
            alias = self._in_one_array[key] = self._of(in_one_array(self.program, bound.in_place))
        return alias

    def _of(self, program: Program) -> Self:
        """Another program, made into an executable as this one was."""
        return type(self)(program, self.known, self.lenient)

    def _finish_logs(self, bound: Arguments, logs: dict[str, Any] | None) -> None:
        """Hands what was logged to the author's functions."""
        if logs:
            bound.finish_logs(logs)
        for label, (printer, handler) in self.program.hooks.items():
            if printer is not None and logs is not None and label in logs:
                printer(label, logs[label]["value"])
            if handler is not None:
                handler(logs)

    @property
    def asm(self) -> str:
        """The program's text, by Wave's name for what it prints."""
        return self.text()

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (self.program, self.lenient)

    def __repr__(self) -> str:
        return self._shown("the executor")

    def _shown(self, where: str) -> str:
        given = (p for p in self.__signature__.parameters.values() if p.kind is not p.KEYWORD_ONLY)
        return f"<executable {self.name}({', '.join(f'{p.name}: {p.annotation}' for p in given)}) on {where}>"
