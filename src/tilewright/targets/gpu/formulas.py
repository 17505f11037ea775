"""Formulas for one value of a lane: the machine's own instructions for functions where it has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilewright.algebra.expr import Symbol
from tilewright.codegen.formula import FormulaWriter, Typed
from tilewright.ir import dtypes
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter


class LaneFormula(FormulaWriter):
    """Writes one formula for one of a lane's values."""

    def __init__(self, e: Emitter, axes: tuple[Symbol, ...], place: int, leaf: Callable[[Formula], Typed]):
        super().__init__(e.w, None, None, leaf)
        self.e, self.axes, self.place = e, axes, place

    def _write(self, f: Formula, want: DType | None) -> Typed:
        if f.name == "index":
            return self.w.integer(self.e.at_value(f.value, self.axes, self.place)), dtypes.index
        return super()._write(f, want)

    def _float(self, name: str, values: list[str], kind: DType) -> Any:
        if kind is dtypes.f32:
            found = self.e.dialect.function(self.e, name, values)
            if found is not None:
                return found
        return super()._float(name, values, kind)
