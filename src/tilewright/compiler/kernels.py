"""`compile(kernel, symbols, target=, plan=)`: from a kernel to what can be called.

Targets: the executor, which runs the tile program in numpy and defines what it means; and "x86", machine code.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from tilewright.algebra.expr import ONE, Const, Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import (
    AliasingWarning,
    ArgumentError,
    DimensionMismatch,
    DtypeMismatch,
    NarrowingWarning,
    ProgramError,
    TilewrightError,
    UnboundSymbol,
)
from tilewright.interpret.executor import execute
from tilewright.interpret.grid import is_grid, refuse_threads
from tilewright.interpret.loops import accumulates_only, require_tilings
from tilewright.ir.attrs import attr_symbols
from tilewright.ir.core import MemoryType, Op, Program, TileType
from tilewright.ir.printer import program_text
from tilewright.ir.tile import loose, parse_tile
from tilewright.ir.verifier import verify
from tilewright.lang.symbols import GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE, WORKGROUPS, AddressSpace
from tilewright.runtime.arguments import Arguments
from tilewright.targets.registry import NATIVE

WRITES = ("write", "atomic_add", "atomic_min", "atomic_max")
TARGETS = ("executor", *NATIVE)


def compile(
    kernel: Any,
    symbols: Mapping[Any, Any] | None = None,
    *,
    target: str | None = None,
    plan: Any = None,
    dynamic: Collection[Any] = (),
    strict: bool = False,
    lenient: bool = False,
) -> Executable:
    """What a kernel becomes for a target: call it with the kernel's arguments.

    `kernel` is a function marked by `@tkw.wave`, a tile program or its text. `symbols` binds symbols (or names) to
    ints or expressions; sizes may be left to the arguments' shapes. `strict` makes a narrowing write an error.
    `target="x86"` gives machine code for this CPU; `plan` says how, as `executable.text("plan")` does: it is done so,
    or refused with the reason. Without one, constraints fix parts of the plan, and the planner chooses the rest.
    `dynamic` names sizes (batch, image) that stay run-time arguments: one machine code for all their values, planned
    for those of the first call. `lenient` takes arguments as Wave does: they may be longer than their dimensions say
    (the first that has a size tells it, and mappings may reach what lies past it), i8 may be given as u8 and the other
    way round, a MemoryLayout of numbers may be met by an array of another number of dimensions, and set_symbol may make
    a symbol negative.

    >>> import numpy as np, tilewright, tilewright.lang as tkl, tilewright.wave as tkw
    >>> M, N = tkl.sym.M, tkl.sym.N
    >>> @tkw.wave()
    ... def row_sums(x: tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
    ...              y: tkl.Memory[M, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32]):
    ...     tkw.write(tkw.sum(tkw.read(x), dim=N), y)
    >>> tilewright.compile(row_sums)(np.arange(6, dtype=np.float32).reshape(2, 3))
    array([ 3., 12.], dtype=float32)
    """
    if target not in (None, *TARGETS):
        raise ArgumentError(f"target={target!r}: there is {', '.join(map(repr, TARGETS))}")
    if plan is not None and target not in NATIVE:
        raise ArgumentError("plan=: this target has no plans; leave it out")
    try:
        program = _program_of(kernel)
        program.bindings |= _bindings(symbols or {})
        known = resolve(program.bindings)
        refuse_threads(program)
        _refuse_loose(program, known)
        require_tilings(program)
        _report_narrowing(program, strict=strict)
        _report_aliasing(program)
        _require_bound(program, known)
        _require_tiles(program, known)
        made = _executable(program, known, target, plan, _dynamic(program, known, dynamic, target))
        made.lenient = lenient
        return made
    except ProgramError as fault:
        raise fault.with_traceback(None) from None


def _dynamic(
    program: Program, known: Mapping[Symbol, Expr], dynamic: Collection[Any], target: str | None
) -> list[Symbol]:
    """The symbols whose values are left to every call."""
    if dynamic and target not in NATIVE:
        raise ArgumentError("dynamic=: on this target every size is; leave it out")
    there = {s.name: s for a in program.args if isinstance(a.type, MemoryType) for d in a.type.dims for s in d.symbols}
    found = []
    for each in dynamic:
        name = each if isinstance(each, str) else getattr(each, "name", str(each))
        if name not in there or there[name] in known:
            left = [n for n, s in there.items() if s not in known]
            raise ArgumentError(f"dynamic: {name} is no size that arguments tell; there are {', '.join(left)}")
        found.append(there[name])
    return found


def _executable(
    program: Program, known: Mapping[Symbol, Expr], target: str | None, plan: Any, dynamic: list[Symbol]
) -> Executable:
    if target not in NATIVE or target is None:
        return Executable(program, known)
    from tilewright.compiler.native import NativeExecutable  # what it needs of the CPU is loaded only here

    return NativeExecutable(program, known, target, plan, dynamic)


def _program_of(kernel: Any) -> Program:
    if isinstance(kernel, Program):
        verify(kernel)
        return replace(kernel, bindings=dict(kernel.bindings))  # the caller's program stays as it is
    if isinstance(kernel, str):
        program = parse_tile(kernel)
        verify(program)
        return program
    if hasattr(kernel, "trace"):
        traced: Program = kernel.trace()
        return traced
    raise ArgumentError(f"compile takes a kernel (a function under @tkw.wave) or a tile program, not {kernel!r}")


def _bindings(symbols: Mapping[Any, Any]) -> dict[Expr, Any]:
    """Symbols and their values; address spaces say nothing on the tile level and are left out."""
    found: dict[Expr, Any] = {}
    for key, value in symbols.items():
        name = key if isinstance(key, str) else getattr(key, "name", str(key))
        if isinstance(value, AddressSpace) or value in (GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE):
            continue
        if not isinstance(key, Symbol):
            if not isinstance(key, str):
                raise ArgumentError(f"symbols: {key!r} is neither a symbol nor a name")
            key = symbol(key, 0)
        try:
            found[key] = as_expr(value)
        except TilewrightError:
            raise ArgumentError(f"symbols: {name} = {value!r} is neither an integer nor an expression") from None
    return found


def resolve(bindings: Mapping[Expr, Any]) -> dict[Symbol, Expr]:
    """Bindings with bindings put into them, until nothing changes: numbers where all is known."""
    known = {s: as_expr(e) for s, e in bindings.items() if isinstance(s, Symbol)}
    for _ in range(len(known) + 1):
        step = Substitution({s: e for s, e in known.items() if e is not s})
        following = {s: step(e) for s, e in known.items()}
        if all(following[s] is e for s, e in known.items()):
            break
        known = following
    return known


# -- checks -------------------------------------------------------------------------------------------


def _refuse_loose(program: Program, known: Mapping[Symbol, Expr]) -> None:
    """Raises where a dimension is left out or added, unless the constraints cut it to one coordinate."""
    bound = Substitution(known)
    single = {
        record.attrs["dim"]
        for record in program.records
        if record.name in ("workgroup", "tiling") and "tile" in record.attrs and bound(record.attrs["tile"]) is ONE
    }
    single |= {op.attrs["axis"] for op in program.walk() if op.name == "iterate" and op.attrs.get("start")}
    for op in program.walk():
        found = loose(op)
        if found is not None and not found[0] <= single:
            raise DimensionMismatch(found[1], op.loc)


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
            warnings.warn(what + where, NarrowingWarning, stacklevel=3)


def _report_aliasing(program: Program) -> None:
    """Arguments that are read and written through different accesses: the result depends on the order."""
    so = "the order of workgroups shows" if is_grid(program) else "natively the kernel is one task"
    for value in program.args:
        reads = [op for op in program.walk() if op.name == "read" and op.operands[0] is value]
        writes = [op for op in program.walk() if op.name == "write" and op.operands[1] is value]
        for r in reads:
            for w in writes:
                if _access_of(r, r.results[0].type) != _access_of(w, w.operands[0].type):
                    lines = "".join(f"\n{op.loc.pointing()}" for op in (r, w) if op.loc)
                    warnings.warn(
                        f"the argument {value.name} is read and written through different accesses; {so}{lines}",
                        AliasingWarning,
                        stacklevel=3,
                    )
                    return


def _access_of(op: Op, tile: TileType) -> Any:
    if "at" not in op.attrs:
        return set(tile.dims)
    by_dim = Substitution(dict(zip(op.attrs["over"], tile.dims, strict=True)))
    return tuple(by_dim(e) for e in op.attrs["at"])


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
    """A compiled kernel: call it with arguments in the order of the kernel's signature.

    Outputs are filled in place; outputs left out are made and returned.
    """

    def __init__(self, program: Program, known: Mapping[Symbol, Expr]):
        self.program = program
        self.known = dict(known)
        self.lenient = False
        """Whether arguments are taken as Wave takes them."""
        self.outputs = tuple(
            a for a in program.args if any(op.name in WRITES and op.operands[1] is a for op in program.walk())
        )

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.program.name

    def text(self, level: str = "tile") -> str:
        """The program on a level: "tile"."""
        if level != "tile":
            raise ArgumentError(f"level={level!r}: the executor has the level 'tile' only")
        return program_text(self.program)

    def __call__(self, *args: Any, debug_logs: dict[str, Any] | None = None, **options: Any) -> Any:
        """Runs the kernel; `debug_logs` receives what tkw.debug_log keeps, as `logs[label]["value"]`."""
        if options:
            raise ArgumentError(f"{self.name}() has no option {', '.join(options)}")
        try:
            return self._run(args, debug_logs)
        except ProgramError as fault:
            raise fault.with_traceback(None) from None

    def _run(self, args: tuple[Any, ...], logs: dict[str, Any] | None) -> Any:
        bound = Arguments(self.program, self.outputs, self.known, args, self.lenient)
        if logs is None and self.program.hooks:
            logs = {}
        if not bound.is_empty:
            execute(self.program, bound.symbols, bound.values, logs, bound.derived, lenient=self.lenient)
        self._finish_logs(bound, logs)
        return bound.finish()

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

    def __repr__(self) -> str:
        return f"<executable {self.name} on the executor>"
