"""Rearranging the modes of a layout: flatten, select, take, replace, group, append, slice and dice.

None of these changes an offset. A composed layout (swizzled, or started at an offset) keeps its swizzle and offset:
its inner layout is rearranged.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from tilewright.algebra.inttuple import dice_, is_int, leaves
from tilewright.algebra.layout import Layout, make_layout, rank
from tilewright.algebra.swizzle import ComposedLayout
from tilewright.errors import LayoutError, ModeError
from tilewright.limits import MODES, shown

Operation = TypeVar("Operation", bound=Callable[..., Any])


def inside_composed(operation: Operation) -> Operation:
    """Return the function `operation` on layouts, extended to composed layouts, where it acts on the inner layout.

    A composed layout is S o L, with a swizzle or offset S and an inner layout L: operation(S o L) = S o operation(L).
    """

    first_parameter = next(iter(inspect.signature(operation).parameters))

    @wraps(operation)
    def extended(*args: Any, **options: Any) -> Any:
        if first_parameter in options:
            args = (options.pop(first_parameter), *args)
        if args and isinstance(args[0], ComposedLayout):
            return args[0].with_layout(extended(args[0].layout, *args[1:], **options))
        return operation(*args, **options)

    return cast(Operation, extended)


def as_layout(x: Any) -> Any:
    """Return `x` as a layout: a shape becomes a packed layout, first mode fastest; a layout is returned unchanged.

    >>> as_layout((4, 8))
    Layout((4, 8), (1, 4))
    """
    return x if isinstance(x, Layout | ComposedLayout) else Layout(x)


@inside_composed
def flatten(x: Any) -> Any:
    """Return the layout without nesting: ((2, 3), 4) becomes (2, 3, 4). For an int tuple, return the tuple of its
    leaves.

    Post-condition, for the result R of a layout L: depth(R) <= 1 and R(i) == L(i) for every i.

    >>> flatten(Layout((4, (2, 4)), (2, (1, 8))))
    Layout((4, 2, 4), (2, 1, 8))
    >>> flatten(((2, 3), 4)), flatten(4)
    ((2, 3, 4), (4,))
    """
    if not isinstance(x, Layout):
        return leaves(x)
    return Layout(leaves(x.shape), leaves(x.stride)) if isinstance(x.shape, tuple) else x


@inside_composed
def select(x: Any, *modes: int) -> Any:
    """Return the layout (or int tuple) that consists of the modes of `x` with the numbers `modes`, in that order.

    Raise ModeError if there is no such mode.

    Post-condition, for the result R: rank(R) == len(modes) and R[i] == x[modes[i]].

    >>> select(Layout((2, 3, 4)), 2, 0)
    Layout((4, 2), (6, 1))
    """
    if isinstance(x, Layout):
        return make_layout([x[m] for m in modes])
    for m in modes:
        if not -rank(x) <= m < rank(x):
            raise ModeError(f"select of mode {m} of {x}: it has {rank(x)} modes")
    return tuple(_as_modes(x)[m] for m in modes)


@inside_composed
def take(x: Any, begin: int, end: int) -> Any:
    """Return the layout (or int tuple) that consists of the modes begin, ..., end - 1 of `x`.

    Raise LayoutError unless `x` has these modes, at least one.

    Post-condition, for the result R: rank(R) == end - begin and R[i] == x[begin + i].

    >>> take(Layout((2, 3, 4)), 1, 3), take((2, (3, 4), 5), 0, 2)
    (Layout((3, 4), (2, 6)), (2, (3, 4)))
    """
    if not 0 <= begin < end <= rank(x):
        raise LayoutError(f"take of modes {begin} to {end} of {x}: it has {rank(x)} modes")
    modes = list(range(begin, end))
    return make_layout([x[m] for m in modes]) if isinstance(x, Layout) else tuple(_as_modes(x)[m] for m in modes)


@inside_composed
def replace(x: Any, mode: int, by: Any) -> Any:
    """Return the layout (or int tuple) `x` with its mode number `mode` replaced by `by`.

    Raise ModeError if there is no such mode.

    Post-condition, for the result R: R[mode] == by, and the other modes are those of x.

    >>> replace(Layout((2, 3, 4)), 1, Layout(5, 7)), replace((2, (3, 4)), 1, 9)
    (Layout((2, 5, 4), (1, 7, 6)), (2, 9))
    """
    if not 0 <= mode < rank(x):
        raise ModeError(f"replace of mode {mode} of {x}: it has {rank(x)} modes")
    if isinstance(x, Layout):
        return make_layout([by if m == mode else x[m] for m in range(rank(x))])
    return tuple(by if m == mode else e for m, e in enumerate(_as_modes(x)))


@inside_composed
def reverse(x: Any) -> Any:
    """Return the layout (or int tuple) `x` with its top-level modes in the opposite order; nested modes stay as they
    are.

    Post-condition, for the result R: R[i] == x[rank(x) - 1 - i].

    >>> reverse(Layout((2, (3, 4)))), reverse((2, (3, 4)))
    (Layout(((3, 4), 2), ((2, 6), 1)), ((3, 4), 2))
    """
    if isinstance(x, Layout):
        return make_layout(list(x)[::-1]) if isinstance(x.shape, tuple) else x
    return _as_modes(x)[::-1] if isinstance(x, tuple) else x


@inside_composed
def group(x: Any, begin: int, end: int) -> Any:
    """Return the layout (or int tuple) `x` with its modes begin, ..., end - 1 grouped into one nested mode.

    Raise LayoutError unless `x` has these modes, at least one.

    Post-condition, for the result R: R[begin] has those modes, and R(i) == x(i) for every i.

    >>> group(Layout((2, 3, 4, 5)), 1, 3)
    Layout((2, (3, 4), 5), (1, (2, 6), 24))
    """
    if not 0 <= begin < end <= rank(x):
        raise LayoutError(f"group of modes {begin} to {end} of {x}: it has {rank(x)} modes")
    if isinstance(x, Layout):
        modes = list(x)
        return make_layout([*modes[:begin], make_layout(modes[begin:end]), *modes[end:]])
    x = _as_modes(x)
    return (*x[:begin], tuple(x[begin:end]), *x[end:])


@inside_composed
def append(x: Any, mode: Any, up_to: int | None = None) -> Any:
    """Return the layout (or int tuple) `x` with `mode` added after its last mode: once, or repeated up to the rank
    `up_to`.

    Raise LayoutError if the rank of `x` exceeds `up_to`.

    Post-condition: the first modes are those of x, the rest equal `mode`.

    >>> append(Layout(4, 2), Layout(3, 8))
    Layout((4, 3), (2, 8))
    >>> append(Layout((4, 2)), Layout(1, 0), up_to=4)
    Layout((4, 2, 1, 1), (1, 4, 0, 0))
    """
    count = _count_to_add(x, up_to, "append")
    if isinstance(x, Layout):
        return make_layout([*x, *[mode] * count]) if count else x
    return (*_as_modes(x), *[mode] * count)


@inside_composed
def prepend(x: Any, mode: Any, up_to: int | None = None) -> Any:
    """Return the layout (or int tuple) `x` with `mode` added before its first mode: once, or repeated up to the rank
    `up_to`.

    Raise LayoutError if the rank of `x` exceeds `up_to`.

    Post-condition: the last modes are those of x, the others equal `mode`.

    >>> prepend(Layout(4, 2), Layout(3, 8))
    Layout((3, 4), (8, 2))
    """
    count = _count_to_add(x, up_to, "prepend")
    if isinstance(x, Layout):
        return make_layout([*[mode] * count, *x]) if count else x
    return (*[mode] * count, *_as_modes(x))


def slice_and_offset(crd: Any, layout: Any) -> tuple[Any, Any]:
    """Return (layout of the modes that `crd` pairs with None, offset that the other, fixed modes add).

    For a composed layout the returned layout includes the offset, since the offset must be added before the swizzle;
    the returned offset is then 0. Raise LayoutError if `crd` has no None.

    Post-condition, for the returned R and offset: offset + R(coordinates of the None modes) == layout(all coordinates).

    >>> slice_and_offset((None, 3), Layout((4, (2, 4)), (2, (1, 8))))
    (Layout((4,), (2,)), 9)
    >>> slice_and_offset((None, 3), ComposedLayout(None, 7, Layout((4, (2, 4)), (2, (1, 8)))))
    (ComposedLayout(None, 16, Layout((4,), (2,))), 0)
    """
    layout_and_offset: tuple[Any, Any] = as_layout(layout).sliced(crd)
    return layout_and_offset


def dice(crd: Any, x: Any) -> Any:
    """Return the layout (or int tuple) of the modes that `crd` fixes, that is, pairs with anything but None.

    Raise LayoutError for a layout of which no mode is fixed.

    Post-condition, for a layout x at offset 0: the result at the fixed coordinates is the offset of
    `slice_and_offset(crd, x)`.

    >>> dice((None, 3), Layout((4, (2, 4)), (2, (1, 8))))
    Layout(((2, 4),), ((1, 8),))
    >>> dice((None, 3), ((2, 2), 8))
    (8,)
    """
    if isinstance(x, ComposedLayout):
        return x.with_layout(dice(crd, x.layout))
    if not isinstance(x, Layout):
        return dice_(crd, x)
    if isinstance(crd, tuple) and not isinstance(x.shape, tuple) and len(crd) == 1:
        crd = crd[0]
    shape, stride = dice_(crd, x.shape), dice_(crd, x.stride)
    if shape == ():
        raise LayoutError(f"dice of {x} by {crd}: it fixes no mode")
    return Layout(shape, stride)


def _count_to_add(x: Any, up_to: int | None, operation: str) -> int:
    """Return how many modes must be added to `x` to reach rank `up_to`; 1 if `up_to` is None.

    Raise LayoutError, naming `operation`, if the rank of `x` exceeds `up_to`, or if `up_to` is too large.
    """
    count = 1 if up_to is None else up_to - rank(x)
    if count < 0:
        raise LayoutError(f"{operation} up to rank {up_to}: {x} has rank {rank(x)} already")
    if up_to is not None and MODES.refuses(up_to):
        raise LayoutError(f"{operation} up to rank {shown(up_to)}: {MODES.rule}")
    return count


def _as_modes(x: Any) -> tuple[Any, ...]:
    """Return the modes of an int tuple as a tuple: an int is one mode. Raise LayoutError for other types."""
    if isinstance(x, tuple):
        return x
    if not is_int(x):
        raise LayoutError(f"{x!r} is neither a layout nor an int tuple")
    return (x,)
