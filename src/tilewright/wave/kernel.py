"""Kernels: `@tkw.wave(constraints)` on a Python function, and the tile program that tracing it gives."""

from __future__ import annotations

import inspect
import sys
from collections import ChainMap
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from tilewright.algebra.expr import Expr, Symbol, as_expr, symbol
from tilewright.errors import DtypeMismatch, NothingWritten, ProgramError
from tilewright.ir.core import Block, MemoryType, Program, TileType, Value, building
from tilewright.ir.dtypes import DType
from tilewright.ir.location import author_location, of_function
from tilewright.ir.tile import TILE
from tilewright.ir.verifier import verify
from tilewright.lang.types import Memory, SymbolBind
from tilewright.wave.constraints import Constraint, IteratorBindings, SymbolicAlias
from tilewright.wave.tracer import MemoryArgument, Tile, Tracer

WRITES = ("write", "atomic_add", "atomic_min", "atomic_max")


class Kernel:
    """A kernel before it is compiled; `tilewright.compile(kernel, symbols)` makes it callable."""

    def __init__(self, function: Callable[..., Any], constraints: Sequence[Constraint], frame: FrameType):
        self.function = function
        self.annotations = _annotations(function, frame)
        self.constraints = tuple(constraints)
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def trace(self, *, as_wave: bool = False) -> Program:
        """The tile program, traced anew: verified, and the same each time.

        With `as_wave` two things mean what they mean in Wave: % on tiles takes the dividend's sign (otherwise the
        divisor's, as in Python), and what a read with a mapping finds outside memory is 0 (otherwise an error).
        """
        location = of_function(self.function)
        iterators: dict[Symbol, Expr] = {}
        for constraint in self.constraints:
            if isinstance(constraint, IteratorBindings):
                iterators |= {s: as_expr(d) for s, d in constraint.bindings.items()}
        trace = Tracer(iterators, as_wave)
        body = Block()
        trace.open(body)
        with trace, building():
            values, arguments = self._arguments(trace)
            self.function(*arguments)
        records = [record for constraint in self.constraints for record in constraint.records()]
        bindings: dict[Expr, Any] = {}
        for constraint in self.constraints:
            if isinstance(constraint, SymbolicAlias):
                bindings[constraint.source] = as_expr(constraint.source_to_target(constraint.target))
                records = constraint.divided(records)
        program = Program(TILE, self.__name__, tuple(values), body, records, bindings, location, trace.hooks)
        if not any(op.name in WRITES for op in program.walk()):
            raise NothingWritten(
                f"the kernel {self.__name__} never writes: it would compute nothing anyone can see. "
                "End it with tkw.write(tile, memory)",
                location,
            )
        verify(program)
        return program

    def _arguments(self, trace: Tracer) -> tuple[list[Value], list[Any]]:
        annotations = self.annotations
        values: list[Value] = []
        arguments: list[Any] = []
        for name in inspect.signature(self.function).parameters:
            kind = annotations.get(name)
            if isinstance(kind, Memory):
                value = Value(MemoryType(kind.dtype, kind.dims, "global", kind.extents), name)
                arguments.append(MemoryArgument(value))
            elif isinstance(kind, DType | SymbolBind):
                dtype = kind if isinstance(kind, DType) else kind.dtype
                value = Value(TileType(dtype), name)
                arguments.append(Tile(value))
            else:
                raise DtypeMismatch(
                    f"argument {name} of the kernel {self.__name__} has the type {kind!r}; it must be tkl.Memory[...], "
                    "an element type such as tkl.i32, or tkl.SymbolBind[...]",
                    of_function(self.function),
                )
            values.append(value)
            if isinstance(kind, SymbolBind):
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


def _annotations(function: Callable[..., Any], frame: FrameType) -> dict[str, Any]:
    """The argument types; as text (from __future__ import annotations) they are evaluated where they stand."""
    found = dict(function.__annotations__)
    texts = {name: text for name, text in found.items() if isinstance(text, str) and name != "return"}
    if not texts:
        return found
    around: list[dict[str, Any]] = []
    current: FrameType | None = frame
    while current is not None:  # types may be built from variables of the functions around, which are still running
        around.append(current.f_locals)
        current = current.f_back
    names = dict(ChainMap(*around, function.__globals__))
    return found | {name: eval(text, names) for name, text in texts.items()}


def wave(constraints: Sequence[Constraint] | None = None) -> Callable[[Callable[..., Any]], Kernel]:
    """Marks a function as a kernel.

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

    def decorate(function: Callable[..., Any]) -> Kernel:
        return Kernel(function, constraints or (), sys._getframe(1))

    return decorate
