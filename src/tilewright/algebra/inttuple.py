"""Nested tuples of integers: the shapes, strides and coordinates that layouts are made of.

An *int tuple* is an int or a tuple of int tuples: `4`, `(4, 8)`, `((2, 2), 8)`. Everything here is
colexicographic: the first mode is the fastest.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, ClassVar, TypeAlias

import numpy as np

from tilewright.algebra.expr import Const, Expr
from tilewright.errors import LayoutError
from tilewright.limits import MODES, NESTING, OFFSETS, shown, written

IntTuple: TypeAlias = "int | tuple[IntTuple, ...]"


class TupleValue:
    """The base of what never changes: layouts, swizzles and strides, each made anew from its `_parts`.

    Attributes cannot be set or deleted; copies and pickles call the class with the parts.
    """

    __slots__ = ()

    _parts: ClassVar[tuple[str, ...]] = ()

    def _keep(self, **attributes: Any) -> None:
        """Sets the attributes, once, while the value is made."""
        for name, attribute in attributes.items():
            object.__setattr__(self, name, attribute)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} cannot be changed (tried to set {name!r}); make a new one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a {type(self).__name__} cannot be changed (tried to delete {name!r}); make a new one")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, part) for part in self._parts)


class _IntegerMeta(type):
    """Lets `isinstance(x, Integer)` mean: an int, or a numpy integer, and not a bool."""

    def __instancecheck__(cls, instance: object) -> bool:
        return issubclass(type(instance), cls)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, int | np.integer) and not issubclass(subclass, bool)


class Integer(metaclass=_IntegerMeta):
    """The type of what counts as an integer here: `isinstance(True, Integer)` is False."""


def is_int(x: object) -> bool:
    """Whether x is an integer (a bool is not).

    >>> is_int(3), is_int(True), is_int((3,))
    (True, False, False)
    """
    return type(x) is int or isinstance(x, Integer)


def is_tuple(x: object) -> bool:
    """Whether x is a tuple, that is, has modes of its own."""
    return isinstance(x, tuple)


def has_none(x: object) -> bool:
    """Whether a coordinate holds a None, at any depth: then it asks for a slice, not for an element."""
    if isinstance(x, tuple):
        return any(e is None or (isinstance(e, tuple) and has_none(e)) for e in x)
    return x is None


def as_int_tuple(x: Any, what: str) -> Any:
    """X with numpy integers made plain ints; raises unless it is an int tuple. `what` names it."""
    if type(x) is int:
        if OFFSETS.refuses(abs(x)):
            raise LayoutError(f"{what} holds {shown(x)}: {OFFSETS.rule}")
        return x
    if isinstance(x, tuple):
        require_nesting(x, what)
        return tuple(as_int_tuple(e, what) for e in x)
    if isinstance(x, Integer):
        return int(x)  # type: ignore[call-overload]
    raise LayoutError(f"{what} must be an int or a nested tuple of ints, but holds {x!r}")


def require_nesting(x: Any, what: str) -> None:
    """Raises for a tuple that is nested too deep, or has too many modes; without a call for each depth."""
    level, modes, depth = [x], 0, 0
    while level:
        modes += len(level)
        if NESTING.refuses(depth) or MODES.refuses(modes):
            raise LayoutError(f"{what}: {(NESTING if NESTING.refuses(depth) else MODES).rule}")
        level = [e for part in level if isinstance(part, tuple) for e in part]
        depth += 1


def leaves(x: Any) -> tuple[Any, ...]:
    """The leaves of x from left to right.

    >>> leaves(((2, 3), 4))
    (2, 3, 4)
    >>> leaves(4)
    (4,)
    """
    if not isinstance(x, tuple):
        return (x,)
    found: list[Any] = []
    _add_leaves(x, found)
    return tuple(found)


def _add_leaves(x: tuple[Any, ...], found: list[Any]) -> None:
    for e in x:
        if isinstance(e, tuple):
            _add_leaves(e, found)
        else:
            found.append(e)


def unflatten(flat: Sequence[Any], profile: Any) -> Any:
    """The leaves, nested as `profile` is.

    >>> unflatten([2, 3, 4], ((0, 0), 0))
    ((2, 3), 4)
    """
    count = len(leaves(profile))
    if count != len(flat):
        raise LayoutError(f"{len(flat)} leaves {tuple(flat)} do not fit the {count} places of {profile}")
    rest = iter(flat)
    return transform_leaf(lambda _: next(rest), profile)


def transform_leaf(f: Callable[..., Any], *tuples: Any) -> Any:
    """f applied leaf by leaf to tuples of one nesting.

    >>> transform_leaf(lambda s, d: s * d, ((2, 3), 4), ((1, 2), 6))
    ((2, 6), 24)
    """
    if not tuples:
        raise LayoutError(f"transform_leaf of {written(f, 80)} needs at least one tuple besides the function")
    first = tuples[0]
    if isinstance(first, tuple):
        for other in tuples[1:]:
            if not isinstance(other, tuple) or len(other) != len(first):
                raise LayoutError(f"{first} and {other} are not nested alike")
        return tuple(transform_leaf(f, *es) for es in zip(*tuples, strict=True))
    for other in tuples[1:]:
        if isinstance(other, tuple):
            raise LayoutError(f"{first} and {other} are not nested alike")
    return f(*tuples)


def ceil_quotient(a: Any, b: Any) -> Any:
    """a / b, rounded up, for a positive b; both may be expressions.

    >>> ceil_quotient(7, 4)
    2
    """
    return (a + b - 1) // b


def divides(a: Any, b: Any) -> bool:
    """Whether a divides b, as far as can be shown where they are expressions.

    >>> from tilewright.algebra.expr import symbol
    >>> divides(4, 12), divides(4, 8 * symbol("K", 1)), divides(4, symbol("K", 1))
    (True, True, False)
    """
    rest = b % a
    return bool(rest.value == 0) if isinstance(rest, Const) else type(rest) is int and rest == 0


def signum(x: int) -> int:
    """-1, 0 or 1 by the sign of x.

    >>> signum(-7)
    -1
    """
    return int(x > 0) - int(x < 0)


def product(x: Any) -> int:
    """The product of all leaves.

    >>> product(((2, 3), 4))
    24
    """
    return prod(leaves(x))


def inner_product(a: Any, b: Any) -> int:
    """The sum of the products of corresponding leaves; a and b must be nested alike.

    >>> inner_product(((2, 3), 4), ((2, 1), 2))
    15
    """
    return sum(leaves(transform_leaf(operator.mul, a, b)))


def tuple_max(x: Any) -> int:
    """The largest leaf.

    >>> tuple_max(((2, 3), 4))
    4
    """
    found = list(leaves(x))
    if not found:
        raise LayoutError(f"tuple_max of {x}: it has no leaf")
    return int(max(found))


def elem_scale(a: Any, b: Any) -> Any:
    """A scaled by the product of b, mode by mode.

    >>> elem_scale((2, 3), ((2, 2), 5))
    (8, 15)
    """
    if isinstance(a, tuple):
        if not isinstance(b, tuple) or len(a) != len(b):
            raise LayoutError(f"{a} and {b} have different ranks")
        return tuple(elem_scale(x, y) for x, y in zip(a, b, strict=True))
    return a * product(b)


def shape_div(a: Any, b: Any) -> Any:
    """The shape a with its first b elements taken as one: modes are divided from the left.

    One of the two must divide the other at every step; otherwise it raises.

    >>> shape_div((3, 4), 6)
    (1, 2)
    >>> shape_div((6, (3, 4)), 36)
    (1, (1, 2))
    """
    if isinstance(a, tuple):
        if isinstance(b, tuple):
            if len(a) != len(b):
                raise LayoutError(f"shape_div of {a} by {b}: the ranks differ")
            return tuple(shape_div(x, y) for x, y in zip(a, b, strict=True))
        quotients = []
        for x in a:
            quotients.append(shape_div(x, b))
            b = shape_div(b, product(x))
        return tuple(quotients)
    if isinstance(b, tuple):
        return shape_div(a, product(b))
    if b == 0 or (a % b != 0 and (a == 0 or b % a != 0)):
        raise LayoutError(f"shape_div of {a} by {b}: neither divides the other")
    return -(-a // b)


def prefix_product(x: Any, start: int = 1) -> Any:
    """The packed colexicographic strides of a shape, times `start`.

    >>> prefix_product(((2, 3), 4))
    ((1, 2), 6)
    """
    running = start

    def step(leaf: int) -> int:
        nonlocal running
        before, running = running, running * leaf
        return before

    return transform_leaf(step, x)


def suffix_product(x: Any, start: int = 1) -> Any:
    """The packed lexicographic (last mode fastest) strides of a shape, times `start`.

    >>> suffix_product(((2, 3), 4))
    ((12, 4), 1)
    """
    strides: list[int] = []
    running = start
    for leaf in reversed(leaves(x)):
        strides.append(running)
        running *= leaf
    return unflatten(strides[::-1], x)


def crd2idx(crd: Any, shape: Any, stride: Any = None) -> Any:
    """The index of a coordinate: the inner product of its natural form with the strides.

    `crd` is an int, or nested no deeper than `shape`; where it stops, an int is split over the modes below,
    first mode fastest, the last mode taking the rest. None counts as 0. Leaves may be numpy arrays.
    Without strides the shape counts as packed.

    >>> crd2idx((1, 5), (4, (2, 4)), (2, (1, 8)))
    19
    >>> crd2idx(21, (4, (2, 4)), (2, (1, 8)))
    19
    """
    if stride is None:
        stride = prefix_product(shape)
    if isinstance(crd, tuple):
        if not isinstance(shape, tuple) or len(crd) != len(shape):
            raise LayoutError(f"coordinate {crd} does not fit shape {shape}: the ranks differ")
        _need_strides(stride, shape)
        total: Any = 0
        for c, s, d in zip(crd, shape, stride, strict=True):
            total = total + crd2idx(c, s, d)
        return total
    if crd is None:
        return 0
    if isinstance(shape, tuple):
        if not shape:
            return 0
        _need_strides(stride, shape)
        index: Any = 0
        for s, d in zip(shape[:-1], stride[:-1], strict=True):
            extent = s if type(s) is int else product(s)
            index = index + crd2idx(crd % extent, s, d)
            crd = crd // extent
        return index + crd2idx(crd, shape[-1], stride[-1])
    if isinstance(stride, tuple):
        raise LayoutError(f"stride {stride} does not fit shape {shape}: they are not nested alike")
    return crd * stride


def _need_strides(stride: Any, shape: tuple[Any, ...]) -> None:
    if not isinstance(stride, tuple) or len(stride) != len(shape):
        raise LayoutError(f"stride {stride} does not fit shape {shape}: they are not nested alike")


def idx2crd(idx: Any, shape: Any, stride: Any = None) -> Any:
    """The natural coordinate of an index: `(idx // stride) % shape` at every leaf, 0 where the stride is 0.

    A tuple of indices has one for each mode, and each counts within its mode. Without strides the shape (of
    the mode, for a tuple) counts as packed; then `crd2idx(idx2crd(i, s), s) == i` for i < product(s).

    >>> idx2crd(21, (4, (2, 4)))
    (1, (1, 2))
    >>> idx2crd((1, 5), (4, (2, 4)))
    (1, (1, 2))
    """
    if isinstance(idx, tuple):
        if not isinstance(shape, tuple) or len(idx) != len(shape):
            raise LayoutError(f"index {idx} does not fit shape {shape}: the ranks differ")
        strides = (None,) * len(shape) if stride is None else stride
        _need_strides(strides, shape)
        return tuple(idx2crd(i, s, d) for i, s, d in zip(idx, shape, strides, strict=True))
    if stride is None:
        stride = prefix_product(shape)
    if idx is None:
        raise LayoutError("idx2crd of None: an index is an integer")
    if isinstance(shape, tuple):
        _need_strides(stride, shape)
        return tuple(idx2crd(idx, s, d) for s, d in zip(shape, stride, strict=True))
    if stride == 0:
        return idx * 0
    if not is_int(stride) and not isinstance(stride, Expr):
        raise LayoutError(f"idx2crd of {idx}: the stride {stride} counts coordinates, and an index has none")
    return (idx // stride) % shape


def crd2crd(crd: Any, source: Any, target: Any) -> Any:
    """A coordinate of shape `source` as the coordinate of the same element in shape `target`.

    >>> crd2crd((1, 2), (2, 6), (4, 3))
    (1, 1)
    """
    return idx2crd(crd2idx(crd, source), target)


def slice_(crd: Any, x: Any) -> Any:
    """The modes of x that are paired with None in `crd`; the others are dropped.

    >>> slice_((None, 3), ((2, 2), 8))
    ((2, 2),)
    >>> slice_((1, (None, 0)), (4, (2, 4)))
    (2,)
    """
    if isinstance(crd, tuple):
        if not isinstance(x, tuple) or len(crd) != len(x):
            raise LayoutError(f"coordinate {crd} does not fit {x}: the ranks differ")
        kept: tuple[Any, ...] = ()
        for c, e in zip(crd, x, strict=True):
            if isinstance(c, tuple):
                kept += slice_(c, e)
            elif c is None:
                kept += (e,)
        return kept
    return x if crd is None else ()


def dice_(crd: Any, x: Any) -> Any:
    """The modes of x that are not paired with None in `crd`: what `slice_` drops.

    >>> dice_((None, 3), ((2, 2), 8))
    (8,)
    >>> dice_((1, (None, 0)), (4, (2, 4)))
    (4, 4)
    """
    if isinstance(crd, tuple):
        if not isinstance(x, tuple) or len(crd) != len(x):
            raise LayoutError(f"coordinate {crd} does not fit {x}: the ranks differ")
        kept: tuple[Any, ...] = ()
        for c, e in zip(crd, x, strict=True):
            if isinstance(c, tuple):
                kept += dice_(c, e)
            elif c is not None:
                kept += (e,)
        return kept
    return () if crd is None else x


def congruent(a: Any, b: Any) -> bool:
    """Whether a and b (int tuples or layouts) are nested alike.

    >>> congruent((4, (2, 4)), (2, (1, 8))), congruent((4, 8), 32)
    (True, False)
    """
    a, b = shape_of(a), shape_of(b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(congruent(x, y) for x, y in zip(a, b, strict=True))
    return not isinstance(a, tuple) and not isinstance(b, tuple)


def weakly_congruent(a: Any, b: Any) -> bool:
    """Whether b is nested like a, or deeper where a has a leaf.

    >>> weakly_congruent((4, 8), (4, (2, 4))), weakly_congruent((4, (2, 4)), (4, 8))
    (True, False)
    """
    a, b = shape_of(a), shape_of(b)
    if isinstance(a, tuple):
        if not isinstance(b, tuple) or len(a) != len(b):
            return False
        return all(weakly_congruent(x, y) for x, y in zip(a, b, strict=True))
    return True


def compatible(a: Any, b: Any) -> bool:
    """Whether every coordinate of a is a coordinate of b: equal sizes, b nested like a or deeper.

    >>> compatible(24, (4, 6)), compatible((4, 6), ((2, 2), 6)), compatible((24,), 24)
    (True, True, False)
    """
    a, b = shape_of(a), shape_of(b)
    if isinstance(a, tuple):
        if not isinstance(b, tuple) or len(a) != len(b):
            return False
        return all(compatible(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == product(b))


def weakly_compatible(a: Any, b: Any) -> bool:
    """Whether b is made of whole copies of a: nested like a or deeper, each size a multiple.

    >>> weakly_compatible(4, (2, 6)), weakly_compatible((4, 3), (8, (3, 5))), weakly_compatible((4, 3), (6, 3))
    (True, True, False)
    """
    a, b = shape_of(a), shape_of(b)
    if isinstance(a, tuple):
        if not isinstance(b, tuple) or len(a) != len(b):
            return False
        return all(weakly_compatible(x, y) for x, y in zip(a, b, strict=True))
    if a == 0:
        raise LayoutError("weakly_compatible with 0: nothing is made of copies of it")
    return bool(product(b) % a == 0)


def shape_of(x: Any) -> Any:
    """The shape of a layout; an int tuple is its own shape."""
    return x if isinstance(x, tuple) or is_int(x) else getattr(x, "shape", x)
