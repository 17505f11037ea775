"""Memory and registers, and what moves between them; one operation a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from tilewright.algebra import ComposedLayout, Layout, Swizzle
from tilewright.algebra.expr import Expr, Symbol, symbol
from tilewright.block.names import argument_names
from tilewright.block.tensor import Maybe, Tensor, tensor_of
from tilewright.block.tracing import number, several, trace
from tilewright.errors import DimensionMismatch, ProgramError
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DType, DTypeLike, element_type
from tilewright.ir.location import author_location
from tilewright.ir.tensors import Distribution, RegisterType, TensorType


def shared(
    kind: DTypeLike,
    layout: Any,
    *,
    strides: Sequence[Any] | None = None,
    swizzle: Sequence[int] | Swizzle | None = None,
    size: Any = None,
) -> Tensor:
    """Shared memory that holds nothing yet: one `alloc`.

    `layout` is a shape, packed with the last dimension fastest; or a flat `Layout`, which brings its strides; or one
    under a swizzle. `size` reserves more bytes than the tensor takes.
    """
    extents: Any = None if isinstance(layout, Layout | ComposedLayout) else several(layout)
    if isinstance(layout, ComposedLayout):
        if layout.offset != 0 or not isinstance(layout.outer, Swizzle):
            raise ProgramError(f"shared: {layout} is no swizzle of a layout without an offset", author_location())
        swizzle, layout = layout.outer, layout.layout
    if isinstance(layout, Layout):
        whole = layout.shape if isinstance(layout.shape, tuple) else (layout.shape,)
        steps = layout.stride if isinstance(layout.stride, tuple) else (layout.stride,)
        if any(isinstance(e, tuple) for e in whole):
            raise ProgramError(f"shared: {layout} is nested; allocate its flat form and view it", author_location())
        extents, strides = whole, steps
    if strides is not None and len(strides) != len(extents):
        raise DimensionMismatch(f"shared: {len(strides)} strides for {len(extents)} dimensions", author_location())
    if swizzle is not None and not isinstance(swizzle, Swizzle):
        swizzle = Swizzle(*swizzle)
    found = TensorType(
        "shared",
        _dtype(kind),
        tuple(number(e, "shared: a size") for e in extents),
        None if strides is None else tuple(number(e, "shared: a stride") for e in strides),
        swizzle,
    )
    given = None if size is None else number(size, "shared: size")
    return Tensor(trace("shared").emit("alloc", (), {"type": found, "bytes": given}, fallback="shared").result)


def registers(
    kind: DTypeLike, extents: Sequence[Any], owners: Layout | Distribution, *, fallback: str = "registers"
) -> Tensor:
    """Registers that hold nothing yet, spread over threads: one `alloc`.

    `owners` sends (thread, value) to the number of an element, first dimension fastest, as `tb.partition` makes it.
    `fallback` is its name where it is assigned to no variable.
    """
    spread = Distribution(layout=owners) if isinstance(owners, Layout) else owners
    if not isinstance(spread, Distribution):
        raise ProgramError(
            f"registers: the owners are {owners!r}; give a layout (thread, value) -> element, such as "
            "tb.partition(extents, threads)",
            author_location(),
        )
    found = RegisterType(_dtype(kind), tuple(number(e, "registers: a size") for e in several(extents)), spread)
    return Tensor(trace("registers").emit("alloc", (), {"type": found}, fallback=fallback).result)


def copy(
    source: Tensor,
    target: Tensor,
    *,
    otherwise: Any = None,
    by: str | None = None,
    stream: Any = None,
    multicast: bool = False,
) -> None:
    """The elements of `source` become those of `target`: one `copy`.

    `otherwise` is read where the source lies outside; `by` names the atom that does it; `stream` is a hint to caches.
    `multicast`: all workgroups of the cluster copy the same elements, so that each brings a part of them for all.
    """
    attrs = {
        "otherwise": otherwise,
        "by": by,
        "stream": None if stream is None else number(stream, "copy: stream"),
        "multicast": multicast or None,
    }
    trace("copy").emit("copy", (tensor_of(source, "copy"), tensor_of(target, "copy")), attrs)


def fill(target: Tensor, value: Any) -> None:
    """Every element becomes the number: one `fill`."""
    trace("fill").emit("fill", (tensor_of(target, "fill"),), {"value": value})


def clear(target: Tensor) -> None:
    """`fill(target, 0)`."""
    fill(target, 0)


def broadcast(source: Tensor, target: Tensor, along: int) -> None:
    """The target is the source, repeated along a dimension: one `broadcast`."""
    values = (tensor_of(source, "broadcast"), tensor_of(target, "broadcast"))
    trace("broadcast").emit("broadcast", values, {"along": along})


def convert_layout(source: Tensor, target: Tensor) -> None:
    """From one distribution over registers to another, the only way between two: one `convert_layout`."""
    values = (tensor_of(source, "convert_layout"), tensor_of(target, "convert_layout"))
    trace("convert_layout").emit("convert_layout", values)


def debug_log(label: str, tensor: Tensor) -> None:
    """Keeps a tensor under a label, and changes nothing: one `debug_log`."""
    trace("debug_log").emit("debug_log", (tensor_of(tensor, "debug_log"),), {"label": label})


# -- places that are data ---------------------------------------------------------------------------------

_Fetches = list[tuple[Symbol, tuple[Expr, ...], Value]]
_fetches: ContextVar[_Fetches | None] = ContextVar("block_fetches", default=None)


def gather(tile: Tensor, memory: Tensor, at: Callable[..., Any], *, otherwise: Any = None) -> None:
    """Element (i, j) of the tile becomes element at(i, j) of memory: one `gather`.

    Within `at`, `index.at(i)` is the integer that another tensor holds: `lambda i, j: (tb.maybe(index.at(i)), j)`.
    """
    _placed("gather", tile, memory, at, {"otherwise": otherwise})


def scatter(tile: Tensor, memory: Tensor, at: Callable[..., Any]) -> None:
    """Element at(i, j) of memory becomes element (i, j) of the tile: one `scatter`."""
    _placed("scatter", tile, memory, at, {})


def atomic(how: str, tile: Tensor, memory: Tensor, at: Callable[..., Any]) -> None:
    """Element at(i, j) of memory is combined with element (i, j) of the tile, "add", "min" or "max": one `atomic`."""
    _placed("atomic", tile, memory, at, {"how": how})


def _placed(name: str, tile: Tensor, memory: Tensor, at: Callable[..., Any], attrs: dict[str, Any]) -> None:
    here = trace(name)
    values = (tensor_of(tile, name), tensor_of(memory, name))
    extents = tile.type.shape
    over = here.axes(argument_names(at, len(extents)), extents)
    found: _Fetches = []
    token = _fetches.set(found)
    try:
        coordinates = at(*over)
    finally:
        _fetches.reset(token)
    coordinates = coordinates if isinstance(coordinates, tuple | list) else (coordinates,)
    places = tuple(
        (number(c.at if isinstance(c, Maybe) else c, f"{name}: coordinate {d}"), isinstance(c, Maybe))
        for d, c in enumerate(coordinates)
    )
    where = tuple((s, e) for s, e, _ in found) or None
    operands = (*values, *(value for _, _, value in found))
    here.emit(name, operands, {**attrs, "over": over, "where": where, "at": places})


def fetched(tensor: Tensor, coordinates: Sequence[Any]) -> Expr:
    """The integer at these coordinates, as a symbol for a place."""
    found = _fetches.get()
    if found is None:
        raise ProgramError(
            "t.at(...) is a place that is data: it stands in the function that gather, scatter or atomic is given",
            author_location(2),
        )
    name = trace("at").free("v")
    while any(s.name == name for s, _, _ in found):
        name += "_"
    found.append((symbol(name), tuple(number(c, "at: a coordinate") for c in coordinates), tensor.value))
    return found[-1][0]


def _dtype(kind: DTypeLike) -> DType:
    try:
        return element_type(kind)
    except ProgramError as fault:
        raise type(fault)(fault.what, author_location(2)) from None
