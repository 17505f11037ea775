"""Layouts: functions from coordinates to offsets, given by a shape and a stride of the same nesting.

`Layout((4, 8), (1, 4))`, printed `(4,8):(1,4)`, sends (i, j) to i + 4j. Modes nest: (4,(2,4)):(2,(1,8))
has two modes, the second made of two. An int coordinate of a nested mode is split first mode fastest, so
every layout is also a function of one integer:

>>> layout = Layout((4, (2, 4)), (2, (1, 8)))
>>> layout(1, 3), layout(1, (1, 1)), layout(13)
(11, 11, 11)
>>> print(layout)
(4,(2,4)):(2,(1,8))

This module holds the type itself and its measures. `modes` rearranges modes; the algebra is in `compose`, `inverse`
and `divide`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.algebra.basis import ScaledBasis, coordinate_of
from tilewright.algebra.expr import Const, Expr
from tilewright.algebra.expr_use import substitute
from tilewright.algebra.inttuple import (
    TupleValue,
    as_int_tuple,
    congruent,
    crd2idx,
    has_none,
    is_int,
    leaves,
    prefix_product,
    product,
    require_nesting,
    shape_of,
    slice_,
    transform_leaf,
)
from tilewright.errors import LayoutError, ModeError
from tilewright.limits import OFFSETS, written

if TYPE_CHECKING:
    from tilewright.algebra.swizzle import ComposedLayout


class Layout(TupleValue):
    """A function from coordinates to offsets: a shape and a stride of the same nesting.

    Without a stride the layout is packed, first mode fastest. Shape leaves are at least 1. Stride leaves are ints (0
    broadcasts, negative runs backwards) or basis elements (`E(0)`), which make the values coordinates. Leaves of both
    may be expressions of sizes that are not known yet; an operation that would have to know them raises. Immutable,
    hashable, equal by shape and stride.

    Post-condition of the default stride: L(i) == i for all i < size(L).

    >>> Layout((4, 8))
    Layout((4, 8), (1, 4))
    >>> Layout((4, 8), (8, 1))(1, 2)
    10
    >>> from tilewright.algebra import symbol
    >>> rows = Layout((symbol("M", 1), 8), (8, 1))
    >>> print(rows, rows(3, 5), rows.size())
    (M,8):(8,1) 29 8*M
    """

    __slots__ = ("_coordinates", "_hash", "shape", "stride")
    _parts = ("shape", "stride")

    shape: Any
    stride: Any
    _coordinates: bool

    def __init__(self, shape: Any, stride: Any = None):
        require_nesting(shape, "shape")
        shape = transform_leaf(_as_extent, shape)
        for leaf in leaves(shape):
            if leaf < 1 if type(leaf) is int else leaf.lo < 1:
                raise LayoutError(f"shape {shape_text(shape)} holds {leaf}: every extent must be at least 1")
        if OFFSETS.refuses(prod(leaf for leaf in leaves(shape) if type(leaf) is int)):
            raise LayoutError(f"shape {shape_text(shape)}: {OFFSETS.rule}")
        if stride is None:
            stride = prefix_product(shape)
        else:
            require_nesting(stride, "stride")
            stride = transform_leaf(_as_stride, stride)
            if not congruent(shape, stride):
                raise LayoutError(f"shape {shape_text(shape)} and stride {shape_text(stride)} are not nested alike")
        coordinates = any(isinstance(step, ScaledBasis) for step in leaves(stride))
        self._keep(shape=shape, stride=stride, _hash=hash((shape, stride)), _coordinates=coordinates)

    # -- as a function ------------------------------------------------------------------------------

    def __call__(self, *coordinate: Any) -> Any:
        """The offset of a coordinate: `L(i)`, `L(i, j)`, `L((i, j))`; leaves may be numpy arrays.

        With a None in it, the layout of the modes that are left open, without the offset that the fixed
        modes add (`slice_and_offset` gives both).

        >>> Layout((4, (2, 4)), (2, (1, 8)))(None, 3)
        Layout((4,), (2,))
        """
        crd = coordinate[0] if len(coordinate) == 1 else coordinate
        _require_coordinate(crd, self)
        if has_none(crd):
            return self.sliced(crd)[0]
        if isinstance(crd, tuple) and not isinstance(self.shape, tuple) and len(crd) == 1:
            crd = crd[0]
        return self._value(crd)

    def _value(self, crd: Any) -> Any:
        """Return the offset of the coordinate `crd`, in which None counts as 0; with basis strides, return a coordinate
        tuple.

        Raise LayoutError if `crd` is not nested like the shape, or if basis strides give no coordinate.
        """
        if not self.has_coordinates:
            return crd2idx(crd, self.shape, self.stride)
        try:
            return coordinate_of(crd2idx(crd, self.shape, self.stride), leaves(self.stride))
        except LayoutError as fault:
            raise LayoutError(f"{self}: {fault}") from None

    def sliced(self, crd: Any) -> tuple[Layout, Any]:
        """Return (layout of the modes that `crd` pairs with None, offset that the other, fixed modes add).

        Raise LayoutError if `crd` has no None, or if its nesting does not fit the shape.
        """
        if isinstance(crd, tuple) and not isinstance(self.shape, tuple) and len(crd) == 1:
            crd = crd[0]
        open_shape, open_stride = slice_(crd, self.shape), slice_(crd, self.stride)
        if open_shape == ():
            raise LayoutError(f"coordinate {crd} of {self} leaves no mode open: call the layout for its offset")
        return Layout(open_shape, open_stride), self._value(crd)

    def bind(self, values: Mapping[Any, Any]) -> Layout:
        """Return the layout with symbolic sizes replaced; `values` is {symbol or name: int or expression}.

        Raise LayoutError if `values` is no dictionary, and OutOfRange for a number outside a symbol's range.

        >>> from tilewright.algebra import symbol
        >>> Layout((symbol("M", 1), 8), (8, 1)).bind({"M": 5})
        Layout((5, 8), (8, 1))
        """

        if not isinstance(values, Mapping):
            raise LayoutError(f"bind of {self}: values={written(values, 80)} is no dictionary of symbols or names")

        def image(leaf: Any) -> Any:
            return substitute(leaf, values) if isinstance(leaf, Expr) else leaf

        return Layout(transform_leaf(image, self.shape), transform_leaf(image, self.stride))

    @property
    def has_coordinates(self) -> bool:
        """Return True if strides are basis elements such as `E(0)`, so that values are coordinates, not offsets."""
        return self._coordinates

    # -- as a sequence of modes ---------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.shape) if isinstance(self.shape, tuple) else 1

    def __getitem__(self, mode: Any) -> Layout:
        if isinstance(mode, tuple):
            selected = self
            for m in mode:
                selected = selected[m]
            return selected
        if isinstance(mode, slice) and isinstance(self.shape, tuple):
            return Layout(self.shape[mode], self.stride[mode])
        if not is_int(mode) or not -len(self) <= mode < len(self):
            raise ModeError(f"{self} has {_mode_count_text(len(self))}; there is no mode {mode!r}")
        return Layout(self.shape[mode], self.stride[mode]) if isinstance(self.shape, tuple) else self

    def __iter__(self) -> Iterator[Layout]:
        for mode in range(len(self)):
            yield self[mode]

    # -- measures -----------------------------------------------------------------------------------

    def size(self) -> int:
        """Return the number of coordinates of the layout, the product of its extents."""
        return product(self.shape)

    def cosize(self) -> Any:
        """Return the number of elements that an allocation must hold: the distance from the smallest to the largest
        offset, plus 1.

        If the values are coordinates, the result is a tuple. Raise LayoutError if a symbolic stride may be negative.
        """
        return cosize(self)

    # -- text and pictures --------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return bool(self.shape == other.shape and self.stride == other.stride)

    def __hash__(self) -> int:
        return int(self._hash)  # type: ignore[attr-defined]

    def __str__(self) -> str:
        return f"{shape_text(self.shape)}:{shape_text(self.stride)}"

    def __repr__(self) -> str:
        return f"Layout({self.shape}, {self.stride})"

    def svg(self, **options: Any) -> str:
        """Return a picture of the layout as the text of an SVG document; `options` are those of
        `algebra.picture.layout_svg`.
        """
        from tilewright.algebra.picture import layout_svg

        return layout_svg(self, **options)

    def _repr_svg_(self) -> str | None:
        """Return the picture that notebooks show, as the text of an SVG document; None if the layout
        cannot be drawn.
        """
        return svg_or_none(self)


def svg_or_none(layout: Layout | ComposedLayout) -> str | None:
    """Return the picture of a layout as the text of an SVG document; None if it cannot be drawn, for example because it
    has too many elements.
    """
    try:
        return layout.svg()
    except LayoutError:
        return None


def _as_extent(leaf: Any) -> Any:
    """Return `leaf`, a leaf of a shape, as an int or a symbolic expression; raise LayoutError for other types."""
    leaf = _const_as_int(leaf)
    return leaf if isinstance(leaf, Expr) else as_int_tuple(leaf, "shape")


def _as_stride(leaf: Any) -> Any:
    """Return `leaf`, a leaf of a stride, as an int, an expression or a basis stride; raise LayoutError
    for other types.
    """
    if isinstance(leaf, ScaledBasis):
        return leaf
    leaf = _const_as_int(leaf)
    return leaf if isinstance(leaf, Expr) else as_int_tuple(leaf, "stride")


def _require_coordinate(crd: Any, layout: Layout) -> None:
    """Raise LayoutError unless `crd` may be a coordinate of `layout`: nested tuples of integers, expressions, arrays
    and None.
    """
    if type(crd) is int or crd is None or isinstance(crd, Expr):
        return
    if isinstance(crd, tuple):
        for part in crd:
            _require_coordinate(part, layout)
        return
    if not (crd.dtype.kind in "iu" if isinstance(crd, np.ndarray) else hasattr(crd, "__index__")):
        raise LayoutError(f"coordinate {written(crd, 80)} of {layout}: integers are coordinates, and tuples of them")


def _const_as_int(e: Any) -> Any:
    """Return the int of a constant expression `e`; any other value is returned unchanged."""
    return e.value if isinstance(e, Const) else e


def shape_text(x: Any) -> str:
    """Return an int tuple as text in CuTe's notation, without blanks; a tuple of one mode is "(4)", an int is "4".

    >>> shape_text((4, (2, 4))), shape_text((4,)), shape_text(4)
    ('(4,(2,4))', '(4)', '4')
    """
    if isinstance(x, tuple):
        return "(" + ",".join(shape_text(e) for e in x) + ")"
    return str(x)


def is_layout(x: object) -> bool:
    """Return True if `x` is a `Layout` (not a `ComposedLayout`)."""
    return isinstance(x, Layout)


def make_layout(*parts: Any) -> Layout:
    """Return a layout made of `parts`: a shape (then packed), a shape and a stride, or layouts that become its modes.

    Layouts may also be given as one list. Raise LayoutError for other arguments.

    >>> make_layout((4, 8)), make_layout((4, 8), (8, 1))
    (Layout((4, 8), (1, 4)), Layout((4, 8), (8, 1)))
    >>> make_layout(Layout(4, 2), Layout((2, 4), (1, 8)))
    Layout((4, (2, 4)), (2, (1, 8)))
    """
    arguments = parts
    if len(parts) == 1 and not isinstance(parts[0], Layout):
        if _is_int_tuple(parts[0]):
            return Layout(parts[0])
        is_array = hasattr(parts[0], "dtype")  # arrays hold no layouts, and traced ones cannot be iterated over
        if not isinstance(parts[0], Iterable) or isinstance(parts[0], str | bytes) or is_array:
            raise LayoutError(
                f"make_layout takes a shape, a shape and a stride, or layouts; got {written(parts[0], 80)}"
            )
        parts = tuple(parts[0])
    elif len(parts) == 2 and _is_int_tuple(parts[0]):
        return Layout(*parts)
    for part in parts:
        if not isinstance(part, Layout):
            raise LayoutError(
                f"make_layout takes a shape, a shape and a stride, or layouts; got {written(arguments, 80)}"
            )
    return Layout(tuple(p.shape for p in parts), tuple(p.stride for p in parts))


def make_identity_layout(shape: Any) -> Layout:
    """Return the layout of this shape whose value at a coordinate is that coordinate; the strides are basis strides.

    Post-condition, for the result L: L(c) == c for every coordinate c that is nested like the shape.

    >>> make_identity_layout((4, (2, 3)))
    Layout((4, (2, 3)), (1@0, (1@0@1, 1@1@1)))
    """

    def units(s: Any, path: tuple[int, ...]) -> Any:
        if isinstance(s, tuple):
            return tuple(units(e, (*path, mode)) for mode, e in enumerate(s))
        return ScaledBasis(1, path or (0,))

    return Layout(shape, units(shape, ()))


def _is_int_tuple(x: object) -> bool:
    """Return True if `x` is an integer, an expression, or a nested tuple of them."""
    if isinstance(x, tuple):
        return all(_is_int_tuple(e) for e in x)
    return is_int(x) or isinstance(x, Expr)


# -- measures ---------------------------------------------------------------------------------------


def _mode_count_text(count: int) -> str:
    """Return a count of modes as text, "one mode" or "3 modes", for errors."""
    return "one mode" if count == 1 else f"{count} modes"


def _mode_at(x: Any, mode: tuple[int, ...]) -> Any:
    """Return the mode of the int tuple `x` at the path `mode`, outermost index first; an int has one mode, the int
    itself.

    Raise ModeError if there is no such mode.
    """
    for m in mode:
        modes = x if isinstance(x, tuple) else (x,)
        if not -len(modes) <= m < len(modes):
            raise ModeError(f"{shape_text(x)} has {_mode_count_text(len(modes))}; there is no mode {m}")
        x = modes[m]
    return x


def shape(x: Any, *mode: int) -> Any:
    """Return the shape of a layout (also composed), or of its mode at the path `mode`: mode numbers, outermost first.

    The shape of an int tuple is the tuple itself. Raise ModeError if there is no such mode.

    >>> shape(Layout((4, (2, 4))), 1)
    (2, 4)
    """
    return _mode_at(shape_of(x), mode)


def stride(x: Any, *mode: int) -> Any:
    """Return the stride of a layout (also composed), or of its mode at the path `mode`: mode numbers, outermost first.

    Raise ModeError if there is no such mode.

    >>> stride(Layout((4, (2, 4))), 1)
    (4, 8)
    """
    return _mode_at(x.stride, mode)


def size(x: Any, *mode: int) -> int:
    """Return the number of coordinates of a layout or int tuple, or of its mode at the path `mode` (mode numbers,
    outermost first).

    Raise ModeError if there is no such mode.

    >>> size(Layout((4, (2, 4)))), size((4, (2, 4)), 1)
    (32, 8)
    """
    return product(shape(x, *mode))


def rank(x: Any, *mode: int) -> int:
    """Return the number of top-level modes of a layout or int tuple, or of its mode at the path `mode` (mode numbers,
    outermost first).

    An int has rank 1. Raise ModeError if there is no such mode.

    >>> rank(Layout((4, (2, 4)))), rank(7)
    (2, 1)
    """
    s = shape(x, *mode)
    return len(s) if isinstance(s, tuple) else 1


def depth(x: Any, *mode: int) -> int:
    """Return the nesting depth of a layout or int tuple, or of its mode at the path `mode` (mode numbers, outermost
    first).

    The depth of an int is 0, that of a flat tuple 1. Raise ModeError if there is no such mode.

    >>> depth(4), depth((4, 8)), depth(Layout((4, (2, 4))))
    (0, 1, 2)
    """
    s = shape(x, *mode)
    return 1 + max((depth(e) for e in s), default=0) if isinstance(s, tuple) else 0


def cosize(layout: Layout | ComposedLayout, *mode: int) -> Any:
    """Return the number of elements that an allocation must hold: the distance from the smallest to the largest offset,
    plus 1.

    For strides that are not negative this is L(size(L) - 1) + 1. For coordinate strides it is a tuple. `mode` is the
    path of a mode (mode numbers, outermost first); a composed layout allows none, since its offset and outer function
    belong to the whole layout. Raise LayoutError if a symbolic stride may be negative, and ModeError if there is no
    such mode.

    >>> cosize(Layout((4, 8), (1, 5))), cosize(Layout(4, -2))
    (39, 7)
    """
    if not isinstance(layout, Layout):
        if mode:
            raise LayoutError(f"cosize of mode {shape_text(mode)} of {layout}: only a whole composed layout has one")
        return layout.cosize()
    selected = layout[mode]
    if selected.has_coordinates:
        return transform_leaf(lambda last: last + 1, selected(size(selected) - 1))
    count: Any = 1
    for s, d in zip(leaves(selected.shape), leaves(selected.stride), strict=True):
        if isinstance(d, Expr) and d.lo < 0:
            raise LayoutError(f"cosize of {selected}: the stride {d} may be negative")
        count = count + (s - 1) * (d if isinstance(d, Expr) else abs(d))
    return count
