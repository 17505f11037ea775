"""Kernels: `@tkw.wave(constraints)` on a Python function, and the tile program that tracing it gives."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from types import CellType, CodeType, FrameType
from typing import Any

from tilewright.algebra.expr import Expr, Symbol, as_expr, symbol
from tilewright.errors import DtypeMismatch, NothingWritten, ProgramError
from tilewright.ir.core import MemoryType, Program, TileType, Value, building
from tilewright.ir.dtypes import as_element_type
from tilewright.ir.location import author_location, of_function
from tilewright.ir.pickling import FoundByName
from tilewright.ir.tile import TILE
from tilewright.ir.verifier import verify
from tilewright.lang.annotations import evaluated_annotations
from tilewright.lang.types import Memory, SymbolBind
from tilewright.limits import written
from tilewright.wave.constraints import Constraint, IteratorBindings, SymbolicAlias, elements_per_thread_record
from tilewright.wave.tracer import MemoryArgument, Tile, Tracer

WRITES = ("write", "atomic_add", "atomic_min", "atomic_max")


class Kernel(FoundByName):
    """A kernel before it is compiled; `tilewright.compile(kernel, symbols)` makes it callable."""

    def __init__(self, function: Callable[..., Any], constraints: Sequence[Constraint], frame: FrameType):
        self.function = function
        self.symbols: dict[Expr, Expr] = {}
        """Symbols that the kernel binds itself; `compile` may bind them otherwise."""
        self.annotations = evaluated_annotations(function, frame)
        self.constraints = tuple(constraints)
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__

    def bound(self, symbols: Mapping[Any, Any]) -> Kernel:
        """Return a copy of this kernel that also binds `symbols`, {symbol: integer or expression}.

        Compiling the copy is like `compile(kernel, symbols)`. A symbol that the kernel already binds is bound anew.
        """
        copy = object.__new__(type(self))  # copy.copy would return the kernel itself
        copy.__dict__.update(self.__dict__)
        copy.symbols = {**self.symbols, **{as_expr(s): as_expr(e) for s, e in symbols.items()}}
        return copy

    def trace(self, *, as_wave: bool = False) -> Program:
        """Call the Python function on symbolic arguments and return the verified tile program of the operations that it
        emits.

        Every call traces anew and returns the same program. With `as_wave`, two rules are Wave's: % on tiles takes the
        sign of the dividend (otherwise of the divisor, as in Python), and a read with a mapping returns 0 for
        out-of-bounds elements (otherwise they are an error). Raise `NothingWritten` if the kernel writes no memory.
        """
        location = of_function(self.function)
        iterators: dict[Symbol, Expr] = {}
        for constraint in self.constraints:
            if isinstance(constraint, IteratorBindings):
                iterators |= {s: as_expr(d) for s, d in constraint.bindings.items()}
        tracer = Tracer(iterators, as_wave)
        with tracer, building():
            values, arguments = self._arguments(tracer)
            self.function(*arguments)
        records = [record for constraint in self.constraints for record in constraint.records()]
        records += [elements_per_thread_record(*hint) for hint in tracer.hints]
        bindings: dict[Expr, Any] = dict(self.symbols)
        for constraint in self.constraints:
            if isinstance(constraint, SymbolicAlias):
                bindings[constraint.source] = as_expr(constraint.source_to_target(constraint.target))
                records = constraint.divided(records)
        (body,) = tracer.builder.blocks
        program = Program(TILE, self.__name__, tuple(values), body, records, bindings, location, tracer.hooks)
        if not any(op.name in WRITES for op in program.walk()):
            raise NothingWritten(
                f"the kernel {self.__name__} never writes: it would compute nothing anyone can see. "
                "End it with tkw.write(tile, memory)",
                location,
            )
        verify(program)
        return program

    @property
    def mentioned(self) -> frozenset[Symbol]:
        """The symbols that the code of the kernel's Python function names, and the address spaces of its arguments that
        are symbols.

        Symbols that the tile program does not use are included: some, such as vector widths, only matter to Wave.
        """
        symbols = {e for annotation in self.annotations.values() for e in [getattr(annotation, "space", None)]}
        symbols |= set(_symbols_named_in(self.function))
        return frozenset(e for e in symbols if isinstance(e, Symbol))

    def _arguments(self, trace: Tracer) -> tuple[list[Value], list[Any]]:
        """Return two lists with one entry for each parameter of the kernel's function, in order: the arguments of the
        tile program, and the `MemoryArgument` or `Tile` with which the function is called.

        An annotation is `tkl.Memory[...]`, an element type (a scalar), or `tkl.SymbolBind[...]`. The last is a scalar
        that also sets the symbol of the parameter's name: a `set_symbol` is emitted to `trace`. Raise `DtypeMismatch`
        for any other annotation, and for `*args`, `**options` and keyword-only parameters.
        """
        annotations = self.annotations
        values: list[Value] = []
        arguments: list[Any] = []
        for name, parameter in inspect.signature(self.function).parameters.items():
            annotation = annotations.get(name)
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
                raise DtypeMismatch(
                    f"the kernel {self.__name__} has the parameter {parameter}: its arguments are counted, and each "
                    "has a type, as in x: tkl.Memory[...]",
                    of_function(self.function),
                )
            if isinstance(annotation, Memory):
                value = Value(MemoryType(annotation.dtype, annotation.dims, "global", annotation.extents), name)
                arguments.append(MemoryArgument(value))
            elif (
                dtype := annotation.dtype if isinstance(annotation, SymbolBind) else as_element_type(annotation)
            ) is not None:
                value = Value(TileType(dtype), name)
                arguments.append(Tile(value))
            else:
                raise DtypeMismatch(
                    f"argument {name} of the kernel {self.__name__} has the type {annotation!r}; it must be "
                    "tkl.Memory[...], an element type such as tkl.i32, or tkl.SymbolBind[...]",
                    of_function(self.function),
                )
            values.append(value)
            if isinstance(annotation, SymbolBind):
                trace.emit("set_symbol", [value], {"symbol": symbol(name, 0)})
        return values, arguments

    def __call__(self, *args: Any, **options: Any) -> Any:
        """An error: a kernel must be compiled first."""
        raise ProgramError(
            f"the kernel {self.__name__} is not compiled: tilewright.compile({self.__name__}, symbols) gives what can "
            "be called",
            author_location(),
        )

    def __repr__(self) -> str:
        return f"<kernel {self.__name__}>"


def _symbols_named_in(function: Callable[..., Any]) -> list[Any]:
    """Return a list, in no particular order, of the symbols that are values of global or closure variables named in the
    code of `function` or of a function nested in it.
    """
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closure_values = {name: cell.cell_contents for name, cell in cells if cell != _EMPTY}
    codes, names = [function.__code__], set()
    while codes:
        code = codes.pop()
        names |= {*code.co_names, *code.co_freevars}
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    values = {**function.__globals__, **closure_values}
    return [values[name] for name in names if name in values and isinstance(values[name], Symbol)]


_EMPTY = CellType()


def wave(constraints: Sequence[Constraint] | None = None) -> Callable[[Callable[..., Any]], Kernel]:
    """Return a decorator that turns a Python function into a `Kernel`. `constraints` (None: none) is a list or tuple of
    objects such as `TilingConstraint`, which say how work is divided. Raise `ProgramError` for anything else.

    >>> import tilewright.lang as tkl, tilewright.wave as tkw
    >>> M, N = tkl.sym.M, tkl.sym.N
    >>> @tkw.wave()
    ... def double(x: tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
    ...            y: tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32]):
    ...     tkw.write(2.0 * tkw.read(x), y)
    >>> print(double.trace(), end="")
    tile double(%x: global f32[M, N], %y: global f32[M, N])
      symbols M, N
    {
      %0 = read %x : f32[M, N]
      %1 = scalar value=2.0 dtype=f32 : f32[]
      %2 = mul %1, %0 : f32[M, N]
      write %2, %y
    }
    """

    if callable(constraints):
        raise ProgramError(
            f"@tkw.wave is written with parentheses, @tkw.wave() or @tkw.wave(constraints); it was given "
            f"{getattr(constraints, '__name__', written(constraints, 80))}",
            author_location(),
        )
    if constraints is not None and not isinstance(constraints, list | tuple):
        raise ProgramError(f"wave: {constraints!r} is no list of constraints", author_location())
    for constraint in constraints or ():
        if not isinstance(constraint, Constraint):
            raise ProgramError(f"wave: {constraint!r} is no constraint", author_location())

    def decorate(function: Callable[..., Any]) -> Kernel:
        """Return `function`, a Python function, as a `Kernel`. Raise `ProgramError` for another object."""
        if not callable(function) or not hasattr(function, "__code__"):
            raise ProgramError(f"@tkw.wave() marks a Python function, not {function!r}", author_location())
        return Kernel(function, constraints or (), sys._getframe(1))

    return decorate
