"""TMA copies as instructions: the tensor map that the host makes, and the coordinates of each box."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.algebra import linear_form
from tilewright.algebra.expr import Const, Expr, as_expr
from tilewright.analysis.in_bounds import facts_if_true
from tilewright.errors import ProgramError
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.core import Op
from tilewright.ir.tensors import TensorType
from tilewright.machine import MemoryView, Refused, ViewRequest
from tilewright.targets.gpu.emit import Parameter
from tilewright.targets.nvidia.im2col import Im2colMap, column_of
from tilewright.targets.nvidia.tma import TensorMap
from tilewright.targets.nvidia.tma_view import tiled_box

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter


@dataclass(frozen=True)
class TensorBox:
    """One instruction: coordinates of the box, fastest first; offsets of a filter's tap (im2col); offset in shared
    memory."""

    coordinates: tuple[Expr, ...]
    offsets: tuple[Expr, ...]
    place: Expr


@dataclass(frozen=True)
class MapForm:
    """A tensor map whose sizes may be known at launch only: its fields are numbers and expressions of open parameters.

    >>> from tilewright.algebra.expr import symbol
    >>> M = symbol("M", 1, 99)
    >>> MapForm.of(TensorMap, 0, (as_expr(8), M), (as_expr(1), as_expr(8)), (8, 4), 0).at({"M": 5})
    TensorMap(start=0, extents=(8, 5), strides=(1, 8), box=(8, 4), swizzle=0)
    """

    kind: type[TensorMap] | type[Im2colMap]
    fields: tuple[Any, ...]

    @classmethod
    def of(cls, kind: type[TensorMap] | type[Im2colMap], *fields: Any) -> MapForm:
        """Return the form of a tensor map of the class `kind` with the values `fields`, in the order of its fields.
        Constant expressions, also those in tuples, become numbers.
        """
        return cls(kind, tuple(_each(_known, f) for f in fields))

    def at(self, values: Mapping[str, int]) -> TensorMap | Im2colMap:
        """Return the tensor map with a number for each expression. `values` is {name of an open size: value}."""

        def number(e: Any) -> Any:
            """Return the value of `e` as an int if it is an expression, else `e` unchanged."""
            return int(evaluated(e, values)) if isinstance(e, Expr) else e

        return self.kind(*(_each(number, f) for f in self.fields))


def _known(e: Any) -> Any:
    """Return the value of `e` if it is a constant expression, else `e` unchanged."""
    return e.value if isinstance(e, Const) else e


def _each(change: Any, field: Any) -> Any:
    """Return `change(field)`. If `field` is a tuple, return the tuple of `change(item)` for its items."""
    return tuple(map(change, field)) if isinstance(field, tuple) else change(field)


def boxes(op: Op, loads: bool) -> tuple[MapForm, list[TensorBox]]:
    """Return (tensor map, [one box for each instruction]) of the bulk copy `op`.

    If `loads`, the copy goes from global to shared memory, else from shared to global memory. The attribute `by` of
    `op` names the copy's atom; an im2col atom gets an im2col map. Raise ProgramError if the atom cannot do the copy, or
    if the offset in shared memory is not linear in the box's axes.
    """
    far, near = (op.operands[0], op.operands[1]) if loads else (op.operands[1], op.operands[0])
    tensor: TensorType = far.type
    axes, shared_offset = op.attrs["over"], op.attrs["at"][0]
    global_view = MemoryView(
        f"%{far.name}",
        "global",
        tuple(e for e, _ in op.attrs["there"]),
        tensor.shape,
        tensor.steps,
        tuple(may_leave for _, may_leave in op.attrs["there"]),
        16,
        ends=tuple(facts_if_true(op.attrs["inside"])) if "inside" in op.attrs else (),
    )
    shared = MemoryView(
        f"%{near.name}", "shared", (shared_offset,), near.type.shape, (as_expr(1),), (False,), 1024, near.type.swizzle
    )
    request = ViewRequest(axes, tensor.dtype, *((global_view, shared) if loads else (shared, global_view)))
    form = linear_form(shared_offset, axes)
    if form is None:
        raise ProgramError(f"{op.name}: the place {shared_offset} is not linear in the box's axes", op.loc)
    start = form[1]
    try:
        im2col = op.attrs["by"].endswith("im2col")
        return _column(request, start) if im2col else _tiles(request, start, loads)
    except Refused as fault:
        raise ProgramError(f"{op.attrs['by']}: {fault}", op.loc) from None


def _tiles(request: ViewRequest, start: Expr, loads: bool) -> tuple[MapForm, list[TensorBox]]:
    """Return (tensor map, [one box for each instruction]) of the tiled copy `request`. If `loads`, the copy goes from
    global to shared memory, else from shared to global memory. `start` is the offset in shared memory of the first
    element. Raise Refused if TMA cannot do the copy.
    """
    tile, dimensions = tiled_box(request, loads)
    box = tuple(1 if d.walked_by is None else tile.box[d.walked_by] for d in dimensions)
    extents, strides = (tuple(getattr(d, field) for d in dimensions) for field in ("extent", "stride"))
    its_boxes = [
        TensorBox(
            tuple(d.first + (0 if d.walked_by is None else first[d.walked_by]) for d in dimensions), (), start + offset
        )
        for first, offset in tile.pieces()
    ]
    return MapForm.of(TensorMap, 0, extents, strides, box, tile.span), its_boxes


def _column(request: ViewRequest, start: Expr) -> tuple[MapForm, list[TensorBox]]:
    """Return (tensor map, [box]) of the im2col copy `request`, which is one instruction. `start` is the offset in
    shared memory of the first element. Raise Refused if the copy needs several instructions.
    """
    fields, tile, coordinates, offsets = column_of(request)
    pieces = list(tile.pieces())
    if len(pieces) != 1:
        raise Refused("a column is copied by one instruction; the tile asks for several")
    return MapForm.of(Im2colMap, *fields), [TensorBox(coordinates, offsets, start + pieces[0][1])]


def parameter(e: Emitter, op: Op, loads: bool, tensor_map: MapForm) -> str:
    """Return the name of the kernel parameter that holds `tensor_map`. It is a map of the tensor in global memory that
    `op` copies: the first operand if `loads`, else the second. Append a new parameter to `e.parameters` unless an equal
    one exists.
    """
    wanted = Parameter(e.program.args.index(op.operands[0 if loads else 1]), tensor_map)
    if wanted not in e.parameters:
        e.parameters.append(wanted)
    return f"%m{e.parameters.index(wanted)}"
