"""Reports of a block program: faults that it may meet at run time, and tensors that debug_log keeps."""

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
from tilewright.passes.tile.storage import Storage
from tilewright.passes.tile.values import Tile


@dataclass(frozen=True)
class Fault:
    """A fault that the program may meet: its text, and the operation; its number among the faults is not 0 if it was
    met.
    """

    what: str
    op: Op


@dataclass(frozen=True)
class Log:
    """A tensor that a debug_log keeps; `names` are those of its first dimensions if these are loop iterations."""

    label: str
    shape: tuple[int, ...]
    dtype: DType
    names: tuple[Expr, ...]


class Reports:
    """The faults that a program may meet, and, if `logged`, the tensors that debug_log keeps.

    If `lenient`, symbols that set_symbol sets may have values outside their range.
    """

    def __init__(self, storage: Storage, logged: bool = False, lenient: bool = False):
        self.storage, self.lenient = storage, lenient
        self.scope, self.writer = storage.scope, storage.writer
        self.logs: dict[str, tuple[Log, Value]] | None = {} if logged else None
        self.iteration: dict[Expr, Expr] = {}
        """By axis of the loops around: the number of tiles done before; a log has a slot for each."""
        self.faults: list[Fault] = []
        self.required: set[tuple[Symbol, Tile]] = set()
        """Symbols whose range is looked after already, with what they stand for."""
        self._faults: Value | None = None
        """The tensor that faults are noted in."""

    def report(self, wrong: Tile, what: str, op: Op) -> None:
        """Emit a check: if the tile of bools `wrong` is true anywhere, the fault is noted, and the call raises
        `what`.
        """
        wrong = Tile(dtypes.i32, wrong.dims, wrong.parts, Formula.cast(dtypes.i32, wrong.formula))
        if 0 in wrong.sizes:
            return
        faults, place = self._fault(what, op)
        tile, load = self.storage.load_of(wrong)
        view = self.storage.viewed(load, tile.dims, tile.parts)
        if all(isinstance(n, int) for n in tile.sizes):
            (flat,) = self.writer.axes([prod(tile.sizes)])
            view = self.writer.viewed(load, (flat,), Substitution(self.scope.digits(tile, flat)))
        while view.type.shape:
            left = self.writer.alloc(dtypes.i32, tile.sizes[: len(view.type.shape) - 1], "wrong")
            goal = self.writer.part(left, tile.sizes[: len(view.type.shape) - 1])
            self.writer.combine("reduce", view, goal, len(view.type.shape) - 1, "max")
            view = goal
        self.writer.emit("atomic", (view, faults), how="max", over=(), at=((as_expr(place), False),))

    def require_range(self, s: Symbol, op: Op) -> None:
        """Emit a check that a symbol's value lies in its range; nothing if `lenient`, or if it is checked already."""
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
        """Return (the tensor of faults, the number of a new one)."""
        if self._faults is None:
            kind = TensorType("global", dtypes.i32, (as_expr(1 << 16),), role="inout")
            self._faults = Value(kind, self.writer.fresh("faults"))
        self.faults.append(Fault(what, op))
        return self._faults, len(self.faults) - 1

    def arguments(self) -> list[Value]:
        """Return the arguments that a block program has for its logs, then for its faults, if there are any."""
        arguments = [value for _, value in (self.logs or {}).values()]
        if self._faults is not None:
            kind = TensorType("global", dtypes.i32, (as_expr(len(self.faults)),), role="inout")
            self._faults.type = kind
            arguments.append(self._faults)
        return arguments
