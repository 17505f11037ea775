"""Run-time reports of a block program: faults, which make the call raise an error, and tensors that debug_log
stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution, symbol_range
from tilewright.ir import dtypes
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.tensors import TensorType
from tilewright.lower.block.lazy_tiles import Tile
from tilewright.lower.block.storage import Storage


@dataclass(frozen=True)
class Fault:
    """An error that can occur at run time: its text, and the operation. If it occurs, its element in the tensor of
    faults is not 0 after the call.
    """

    what: str
    op: Op


@dataclass(frozen=True)
class Log:
    """A tensor that debug_log stores: iterations of the loops over `names` first, then the dimensions of the tile."""

    label: str
    shape: tuple[int, ...]
    dtype: DType
    names: tuple[Expr, ...]


class Reports:
    """The faults that a program may report, and, with `logged`, the tensors that debug_log stores.

    With `lenient`, symbols that set_symbol sets may have values outside their range.
    """

    def __init__(self, storage: Storage, logged: bool = False, lenient: bool = False):
        self.storage, self.lenient = storage, lenient
        self.scope, self.writer = storage.scope, storage.writer
        self.logs: dict[str, tuple[Log, Value]] | None = {} if logged else None
        self.iteration: dict[Expr, Expr] = {}
        """{axis of a loop around: the current iteration}; a log has a slot for each iteration."""
        self.faults: list[Fault] = []
        self.required: set[tuple[Symbol, Tile]] = set()
        """(symbol, its value) for which a check of the range is emitted already."""
        self._faults: Value | None = None
        """The argument with one number for each fault; None: there are no faults yet."""

    def report(self, wrong: Tile, what: str, op: Op) -> None:
        """Emit a run-time check that all elements of the tile of bools `wrong` are false; if one is true, the call
        raises an error.

        The error has the text `what` and the source line of `op`. Nothing is emitted for a tile without elements.
        """
        wrong = Tile(dtypes.i32, wrong.dims, wrong.parts, Formula.cast(dtypes.i32, wrong.formula))
        if 0 in wrong.sizes:
            return
        faults, index = self._fault(what, op)
        tile, load = self.storage.load_of(wrong)
        view = self.storage.viewed(load, tile.dims, tile.parts)
        if all(isinstance(n, int) for n in tile.sizes):
            (flat,) = self.writer.axes([prod(tile.sizes)])
            view = self.writer.viewed(load, (flat,), Substitution(self.scope.digits(tile, flat)))
        while view.type.shape:
            reduced = self.writer.alloc(dtypes.i32, tile.sizes[: len(view.type.shape) - 1], "wrong")
            goal = self.writer.part(reduced, tile.sizes[: len(view.type.shape) - 1])
            self.writer.combine("reduce", view, goal, len(view.type.shape) - 1, "max")
            view = goal
        self.writer.emit("atomic", (view, faults), how="max", over=(), at=((as_expr(index), False),))

    def require_range(self, s: Symbol, op: Op) -> None:
        """Emit a run-time check that the value that set_symbol gave the symbol `s` is in the symbol's range.

        Nothing is emitted if `self.lenient` (values may be out of range), if this value is checked already, or if the
        range is infinite. The check is recorded in `self.required`. `op` is the operation that uses the symbol, which
        the error names.
        """
        tile = self.scope.bound[s]
        if self.lenient or (s, tile) in self.required or (s.lo == -inf and s.hi == inf):
            return
        self.required.add((s, tile))
        value = formulas.converted(tile.formula, tile.dtype, dtypes.i64)
        wrong = formulas.number(0, dtypes.bool_)
        for name, limit in (("lt", s.lo), ("gt", s.hi)):
            if abs(limit) != inf:
                step = formulas.call(name, value, formulas.number(limit, dtypes.i64))
                wrong = Formula("or_", (wrong, step))
        self.report(
            Tile(dtypes.bool_, tile.dims, tile.parts, wrong), f"{s} is outside its range: {symbol_range(s)}", op
        )

    def _fault(self, what: str, op: Op) -> tuple[Value, int]:
        """Record a possible run-time error with the text `what` at the operation `op`; return (tensor of faults, index
        of the error there).

        The program sets the tensor's element at that index to a number other than 0 if the error occurs. The first call
        creates the tensor.
        """
        if self._faults is None:
            kind = TensorType("global", dtypes.i32, (as_expr(1 << 16),), role="inout")
            self._faults = Value(kind, self.writer.fresh("faults"))
        self.faults.append(Fault(what, op))
        return self._faults, len(self.faults) - 1

    def arguments(self) -> list[Value]:
        """Return the extra arguments of the block program: one for each log, then the tensor of faults if there are
        any.

        The type of the tensor of faults gets its final extent, the number of faults, here.
        """
        arguments = [value for _, value in (self.logs or {}).values()]
        if self._faults is not None:
            kind = TensorType("global", dtypes.i32, (as_expr(len(self.faults)),), role="inout")
            self._faults.type = kind
            arguments.append(self._faults)
        return arguments
