"""Memory and registers, and the copies between them; each call emits one operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from tilewright.algebra import ComposedLayout, Layout, Swizzle
from tilewright.algebra.expr import Expr, Symbol, symbol
from tilewright.block.names import argument_names
from tilewright.block.tensor import Maybe, Tensor, tensor_of
from tilewright.block.tracing import as_tuple, function, number, trace
from tilewright.errors import DimensionMismatch, ProgramError
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DType, DTypeLike, element_type
from tilewright.ir.location import author_location
from tilewright.ir.tensors import Distribution, RegisterType, TensorType
from tilewright.limits import written


def shared(
    kind: DTypeLike,
    layout: Any,
    *,
    strides: Sequence[Any] | None = None,
    swizzle: Sequence[int] | Swizzle | None = None,
    size: Any = None,
) -> Tensor:
    """Emit one `alloc` and return it: an uninitialised tensor in shared memory with element type `kind`.

    `layout` is a shape (row-major), a flat `Layout`, or a `ComposedLayout` of a swizzle and a flat layout. For a shape,
    `strides` gives a stride for each dimension, in elements; a `Layout` has strides of its own, which replace
    `strides`. `swizzle` is a `Swizzle` or its numbers (bits, base, shift); the swizzle of a `ComposedLayout` replaces
    it. `size` is the number of bytes to reserve (None: as many as the tensor needs). Raise a ProgramError for a nested
    layout or one with an offset, and a DimensionMismatch for another number of strides.
    """
    extents: Any = None if isinstance(layout, Layout | ComposedLayout) else as_tuple(layout)
    if isinstance(layout, ComposedLayout):
        if layout.offset != 0 or not isinstance(layout.outer, Swizzle):
            raise ProgramError(f"shared: {layout} is no swizzle of a layout without an offset", author_location())
        swizzle, layout = layout.outer, layout.layout
    if isinstance(layout, Layout):
        shape = layout.shape if isinstance(layout.shape, tuple) else (layout.shape,)
        layout_strides = layout.stride if isinstance(layout.stride, tuple) else (layout.stride,)
        if any(isinstance(e, tuple) for e in shape):
            raise ProgramError(f"shared: {layout} is nested; allocate its flat form and view it", author_location())
        extents, strides = shape, layout_strides
    if strides is not None:
        strides = as_tuple(strides)
        if len(strides) != len(extents):
            raise DimensionMismatch(f"shared: {len(strides)} strides for {len(extents)} dimensions", author_location())
    if swizzle is not None and not isinstance(swizzle, Swizzle):
        if not isinstance(swizzle, Sequence) or len(swizzle) != 3:
            text = f"shared: swizzle={written(swizzle, 80)} is no swizzle or (bits, base, shift)"
            raise ProgramError(text, author_location())
        swizzle = Swizzle(*swizzle)
    tensor_type = TensorType(
        "shared",
        _dtype(kind),
        tuple(number(e, "shared: a size") for e in extents),
        None if strides is None else tuple(number(e, "shared: a stride") for e in strides),
        swizzle,
    )
    reserved_bytes = None if size is None else number(size, "shared: size")
    return Tensor(
        trace("shared").emit("alloc", (), {"type": tensor_type, "bytes": reserved_bytes}, fallback="shared").result
    )


def registers(
    kind: DTypeLike, extents: Sequence[Any], owners: Layout | Distribution, *, fallback: str = "registers"
) -> Tensor:
    """Emit one `alloc` and return it: an uninitialised tensor in registers with element type `kind` and shape
    `extents`.

    `owners` distributes the elements over threads: a layout (thread, value) -> element number, first dimension fastest,
    as `tb.partition` returns it, or a `Distribution`. Raise a ProgramError for anything else. `fallback` is the
    tensor's name in the program's text if the author assigns it to no variable.
    """
    distribution = Distribution(layout=owners) if isinstance(owners, Layout) else owners
    if not isinstance(distribution, Distribution):
        raise ProgramError(
            f"registers: the owners are {owners!r}; give a layout (thread, value) -> element, such as "
            "tb.partition(extents, threads)",
            author_location(),
        )
    tensor_type = RegisterType(
        _dtype(kind), tuple(number(e, "registers: a size") for e in as_tuple(extents)), distribution
    )
    return Tensor(trace("registers").emit("alloc", (), {"type": tensor_type}, fallback=fallback).result)


def copy(
    source: Tensor,
    target: Tensor,
    *,
    otherwise: Any = None,
    by: str | None = None,
    stream: Any = None,
    multicast: bool = False,
) -> None:
    """Emit one `copy`, which copies the elements of `source` to `target`, a tensor of the same shape.

    `otherwise` replaces source elements out of bounds. `by` is the name of the copy atom (None: the compiler chooses).
    `stream` is a cache hint (1: evict first). `multicast` says that all workgroups of the cluster copy the same
    elements: each workgroup loads an equal part of the elements and writes it to the shared memory of all workgroups.
    """
    attrs = {
        "otherwise": otherwise,
        "by": by,
        "stream": None if stream is None else number(stream, "copy: stream"),
        "multicast": multicast or None,
    }
    trace("copy").emit("copy", (tensor_of(source, "copy"), tensor_of(target, "copy")), attrs)


def fill(target: Tensor, value: Any) -> None:
    """Emit one `fill`, which sets every element of `target` to the number `value`."""
    trace("fill").emit("fill", (tensor_of(target, "fill"),), {"value": value})


def clear(target: Tensor) -> None:
    """Emit one `fill`, which sets every element of `target` to 0."""
    fill(target, 0)


def broadcast(source: Tensor, target: Tensor, along: int) -> None:
    """Emit one `broadcast`, which repeats `source` along the dimension number `along` of `target`, which `source`
    lacks.
    """
    values = (tensor_of(source, "broadcast"), tensor_of(target, "broadcast"))
    trace("broadcast").emit("broadcast", values, {"along": along})


def convert_layout(source: Tensor, target: Tensor) -> None:
    """Emit one `convert_layout`, which copies the register tensor `source` to the register tensor `target`, with
    another distribution over threads.

    Elements move between threads. A `copy` between registers requires instead that each thread holds the same elements
    of both.
    """
    values = (tensor_of(source, "convert_layout"), tensor_of(target, "convert_layout"))
    trace("convert_layout").emit("convert_layout", values)


def debug_log(label: str, tensor: Tensor) -> None:
    """Emit one `debug_log`: the interpreter records the values of `tensor` under the text `label`. No
    result changes.
    """
    trace("debug_log").emit("debug_log", (tensor_of(tensor, "debug_log"),), {"label": label})


# -- data-dependent coordinates ----------------------------------------------------------------------------

_Fetches = list[tuple[Symbol, tuple[Expr, ...], Value]]
_fetches: ContextVar[_Fetches | None] = ContextVar("block_fetches", default=None)


def gather(tile: Tensor, memory: Tensor, at: Callable[..., Any], *, otherwise: Any = None) -> None:
    """Emit one `gather`, which sets element (i, j) of `tile` to element at(i, j) of `memory`.

    `at` is a Python function from tile coordinates to memory coordinates: `lambda i, j: (tb.maybe(index.at(i)), j)`.
    Inside it, `index.at(i)` is an integer read from the tensor `index`, and `tb.maybe` marks a coordinate that may be
    out of bounds; then the element is set to `otherwise`, which must be given.
    """
    _emit_indexed("gather", tile, memory, at, {"otherwise": otherwise})


def scatter(tile: Tensor, memory: Tensor, at: Callable[..., Any]) -> None:
    """Emit one `scatter`, which sets element at(i, j) of `memory` to element (i, j) of `tile`.

    `at` is a Python function from tile coordinates to memory coordinates. Inside it, `index.at(i)` is an integer read
    from the tensor `index`, and `tb.maybe` marks a coordinate that may be out of bounds; then the element is not
    written.
    """
    _emit_indexed("scatter", tile, memory, at, {})


def atomic(how: str, tile: Tensor, memory: Tensor, at: Callable[..., Any]) -> None:
    """Emit one `atomic`, which atomically combines element (i, j) of `tile` into element at(i, j) of `memory`.

    `how` is "add", "min" or "max". `at` is a Python function from tile coordinates to memory coordinates. Inside it,
    `index.at(i)` is an integer read from the tensor `index`, and `tb.maybe` marks a coordinate that may be out of
    bounds; then nothing is combined.
    """
    _emit_indexed("atomic", tile, memory, at, {"how": how})


def _emit_indexed(name: str, tile: Tensor, memory: Tensor, at: Callable[..., Any], attrs: dict[str, Any]) -> None:
    """Emit the operation `name` ("gather", "scatter" or "atomic") on `tile` and `memory`, with the further attributes
    `attrs`.

    The author's function `at` is called once, on symbols for the tile coordinates, and returns the memory coordinates.
    The tensors that it reads by `index.at` become operands.
    """
    current = trace(name)
    values = (tensor_of(tile, name), tensor_of(memory, name))
    extents = tile.type.shape
    over = current.axes(argument_names(at, len(extents)), extents)
    fetches: _Fetches = []
    token = _fetches.set(fetches)
    try:
        coordinates = function(at, f"{name}: at")(*over)
    finally:
        _fetches.reset(token)
    coordinates = coordinates if isinstance(coordinates, tuple | list) else (coordinates,)
    positions = tuple(
        (number(c.at if isinstance(c, Maybe) else c, f"{name}: coordinate {d}"), isinstance(c, Maybe))
        for d, c in enumerate(coordinates)
    )
    lookups = tuple((s, e) for s, e, _ in fetches) or None
    operands = (*values, *(value for _, _, value in fetches))
    current.emit(name, operands, {**attrs, "over": over, "where": lookups, "at": positions})


def fetched(tensor: Tensor, coordinates: Sequence[Any]) -> Expr:
    """Return a new symbol that stands for the integer element of `tensor` at `coordinates`. Record that the operation
    being emitted, a `gather`, `scatter` or `atomic`, reads this element.

    Raise a ProgramError outside the function `at` of such an operation.
    """
    fetches = _fetches.get()
    if fetches is None:
        raise ProgramError(
            "t.at(...) is a place that is data: it stands in the function that gather, scatter or atomic is given",
            author_location(2),
        )
    name = trace("at").free("v")
    while any(s.name == name for s, _, _ in fetches):
        name += "_"
    fetches.append((symbol(name), tuple(number(c, "at: a coordinate") for c in coordinates), tensor.value))
    return fetches[-1][0]


def _dtype(kind: DTypeLike) -> DType:
    """Return the element type `kind`, a name or an element type. Raise a ProgramError, located at the author's line, if
    there is no such type.
    """
    try:
        return element_type(kind)
    except ProgramError as fault:
        raise type(fault)(fault.what, author_location(2)) from None
