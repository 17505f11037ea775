"""What a program tells of its run: faults that it met, and tensors that debug_log keeps."""

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
    """What a number other than 0 among the program's faults means."""

    what: str
    op: Op


@dataclass(frozen=True)
class Log:
    """A tensor that a debug_log keeps, and the names of its first dimensions where these are iterations."""

    label: str
    shape: tuple[int, ...]
    dtype: DType
    names: tuple[Expr, ...]


class Reports:
    """What a program tells of its run: the faults that it may meet, and what debug_log keeps, where `logged`.

    If `lenient`, symbols that set_symbol sets may have values outside their range.
    """

    def __init__(self, storage: Storage, logged: bool = False, lenient: bool = False):
        self.storage, self.lenient = storage, lenient
        self.scope, self.writer = storage.scope, storage.writer
        self.logs: dict[str, tuple[Log, Value]] | None = {} if logged else None
        self.iteration: dict[Expr, Expr] = {}
        """How many tiles of each loop around have been done before: a log keeps those of each."""
        self.faults: list[Fault] = []
        self.required: set[tuple[Symbol, Tile]] = set()
        """Symbols whose range is looked after already, with what they stand for."""
        self._faults: Value | None = None
        """The tensor that faults are noted in."""

    def report(self, wrong: Tile, what: str, op: Op) -> None:
        """Notes at run time that a tile of bools holds somewhere; the call then raises."""
        wrong = Tile(dtypes.i32, wrong.dims, wrong.parts, Formula.cast(dtypes.i32, wrong.formula))
        if 0 in wrong.sizes:
            return
        faults, place = self._fault(what, op)
        made, found = self.storage.load_of(wrong)
        view = self.storage.viewed(found, made.dims, made.parts)
        if all(isinstance(n, int) for n in made.sizes):
            (flat,) = self.writer.axes([prod(made.sizes)])
            view = self.writer.viewed(found, (flat,), Substitution(self.scope.digits(made, flat)))
        while view.type.shape:
            left = self.writer.alloc(dtypes.i32, made.sizes[: len(view.type.shape) - 1], "wrong")
            goal = self.writer.part(left, made.sizes[: len(view.type.shape) - 1])
            self.writer.combine("reduce", view, goal, len(view.type.shape) - 1, "max")
            view = goal
        self.writer.emit("atomic", (view, faults), how="max", over=(), at=((as_expr(place), False),))

    def require_range(self, s: Symbol, op: Op) -> None:
        """Notes at run time that a symbol stands for a number that it cannot be."""
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
        """The tensor of faults, and the place of a new one."""
        if self._faults is None:
            kind = TensorType("global", dtypes.i32, (as_expr(1 << 16),), role="inout")
            self._faults = Value(kind, self.writer.fresh("faults"))
        self.faults.append(Fault(what, op))
        return self._faults, len(self.faults) - 1

    def arguments(self) -> list[Value]:
        """The arguments that a block program has for its logs, then for its faults, if there are any."""
        found = [value for _, value in (self.logs or {}).values()]
        if self._faults is not None:
            kind = TensorType("global", dtypes.i32, (as_expr(len(self.faults)),), role="inout")
            self._faults.type = kind
            found.append(self._faults)
        return found
