"""The same memory seen as elements of another size: upcast, downcast, recast."""

from __future__ import annotations

from typing import Any

from tilewright.algebra.compose import flat_modes
from tilewright.algebra.inttuple import is_int, unflatten
from tilewright.algebra.layout import Layout
from tilewright.algebra.modes import as_layout
from tilewright.algebra.swizzle import ComposedLayout, Swizzle
from tilewright.errors import LayoutError


def upcast(layout: Any, count: int) -> Any:
    """Return the layout of the same bytes seen as elements `count` times as large: offsets are divided by `count`.

    Post-condition, for a layout L: the result takes the values L(i) // count if no stride is negative and no modes
    overlap (each stride is at least what the modes of smaller stride fill). LayoutError is raised unless each stride
    other than 0 is a multiple or a divisor of `count`. A mode whose stride d divides `count` joins count / d elements
    to one: its extent must be a multiple or a divisor of that number. The offset of a composed layout must be a
    multiple of `count`.

    >>> upcast(Layout((4, 8), (1, 4)), 2)
    Layout((2, 8), (1, 2))
    >>> print(upcast(ComposedLayout(Swizzle(3, 3, 3), 64, Layout((8, 64), (64, 1))), 8))
    S<3,0,3> o 8 o (8,8):(8,1)
    """
    layout = _require_recastable(layout, count, f"upcast of {layout} by {count}")
    if isinstance(layout, ComposedLayout):
        if layout.offset % count:
            raise LayoutError(f"upcast of {layout} by {count}: the offset {layout.offset} is inside an element")
        outer = None if layout.outer is None else layout.outer.upcast(count)
        return ComposedLayout(outer, layout.offset // count, upcast(layout.layout, count))

    def new_mode(s: int, d: int) -> tuple[int, int]:
        if d == 0:
            return s, d
        if count % d != 0 and d % count != 0:
            raise LayoutError(f"the stride {d} is neither a multiple nor a divisor of {count}")
        per_element = max(1, count // abs(d))  # elements along this mode that become one
        if s % per_element != 0 and per_element % s != 0:
            raise LayoutError(f"{s} elements do not fill elements of {per_element}")
        sign = -1 if d < 0 else 1
        return -(-s // per_element), sign * -(-abs(d) // count)

    return _map_modes(layout, new_mode, f"upcast of {layout} by {count}")


def downcast(layout: Any, count: int) -> Any:
    """Return the layout of the same bytes seen as elements `count` times as small: offsets are multiplied by `count`.

    The first mode of stride 1 or -1 with more than one element becomes `count` times as long and keeps its stride. If
    each such mode has one element, the first mode of stride 1 or -1 and extent 1 becomes longer; if there is none, no
    mode does. The strides of all other modes are multiplied by `count`. In a composed layout, the outer function, the
    offset and the inner layout are each recast.

    Post-condition, for a layout L: the result takes the values count * L(i) + j, j < count, if some stride is 1 and
    none is negative.

    >>> downcast(Layout((2, 8), (1, 2)), 2)
    Layout((4, 8), (1, 4))
    >>> downcast(Layout((1, 8), (1, 1)), 2)
    Layout((1, 16), (2, 1))
    """
    layout = _require_recastable(layout, count, f"downcast of {layout} by {count}")
    if isinstance(layout, ComposedLayout):
        outer = None if layout.outer is None else layout.outer.downcast(count)
        return ComposedLayout(outer, layout.offset * count, downcast(layout.layout, count))
    unit = (2, 1) if any(s > 1 and d in (1, -1) for s, d in flat_modes(layout)) else (1, 1)
    widened = False

    def new_mode(s: int, d: int) -> tuple[int, int]:
        nonlocal widened
        if widened or (min(s, unit[0]), abs(d)) != unit:
            return s, d * count
        widened = True
        return s * count, d

    return _map_modes(layout, new_mode, f"downcast of {layout} by {count}")


def _require_recastable(layout: Any, count: int, operation: str) -> Any:
    """Return `layout` as a layout (a shape becomes a packed one) if its elements can become `count` times as large or
    small.

    Raise LayoutError, with the text `operation` in front, if `count` is no positive integer, if values are coordinates,
    or if the outer function is no swizzle.
    """
    layout = as_layout(layout)
    if not is_int(count) or count < 1:
        raise LayoutError(f"{operation}: elements become a whole number of times as large or small")
    if layout.has_coordinates:
        raise LayoutError(f"{operation}: its values are coordinates, not offsets")
    if isinstance(layout, ComposedLayout) and not isinstance(layout.outer, Swizzle | None):
        raise LayoutError(f"{operation}: its outer function {layout.outer} is no swizzle")
    return layout


def _map_modes(layout: Layout, new_mode: Any, operation: str) -> Layout:
    """Return the layout with each flat mode (extent, stride) replaced by new_mode(extent, stride), nested as before.

    A LayoutError of `new_mode` is raised again with the text `operation` and the failing mode in its message.
    """
    pairs = []
    for mode, (s, d) in enumerate(flat_modes(layout)):
        try:
            pairs.append(new_mode(s, d))
        except LayoutError as fault:
            raise LayoutError(f"{operation}: mode {mode}, {s}:{d}: {fault}") from None
    return Layout(
        unflatten([s for s, _ in pairs], layout.shape),
        unflatten([d for _, d in pairs], layout.shape),
    )


def recast(layout: Any, old_bits: int, new_bits: int) -> Any:
    """Return the layout of elements of `old_bits` bits as a layout of elements of `new_bits` bits over the same memory.

    Raise LayoutError unless one number of bits divides the other, and for the reasons of `upcast` and `downcast`.

    Post-condition, for the result R and the layout L: size(R) * new_bits == size(L) * old_bits. For smaller elements
    some stride must be 1 or -1; for larger ones the offsets of L, each taken once and none negative, must fill every
    larger element that they touch.

    >>> recast(Layout((8, 4), (1, 8)), 16, 32)
    Layout((4, 4), (1, 4))
    >>> recast(Layout((8, 4), (1, 8)), 16, 8)
    Layout((16, 4), (1, 16))
    """
    if old_bits < 1 or new_bits < 1:
        raise LayoutError(f"recast of {layout} from {old_bits} to {new_bits} bits: an element has at least one")
    if new_bits % old_bits == 0:
        return upcast(layout, new_bits // old_bits)
    if old_bits % new_bits == 0:
        return downcast(layout, old_bits // new_bits)
    raise LayoutError(f"recast of {layout} from {old_bits} to {new_bits} bits: neither divides the other")
