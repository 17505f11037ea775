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
    """The base class of immutable values, such as layouts and swizzles, each rebuilt from the attributes in `_parts`.

    Attributes cannot be set or deleted; copies and pickles call the class with the parts.
    """

    __slots__ = ()

    _parts: ClassVar[tuple[str, ...]] = ()

    def _keep(self, **attributes: Any) -> None:
        """Set the given attributes of this immutable object. Only `__init__` calls this, since ordinary assignment is
        refused.
        """
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
    """The type of integers for `isinstance`: ints and numpy integers, but not bools."""


def is_int(x: object) -> bool:
    """Return True if `x` is an integer, also numpy's; a bool is not.

    >>> is_int(3), is_int(True), is_int((3,))
    (True, False, False)
    """
    return type(x) is int or isinstance(x, Integer)


def is_tuple(x: object) -> bool:
    """Return True if `x` is a tuple, that is, a shape, stride or coordinate with modes."""
    return isinstance(x, tuple)


def has_none(x: object) -> bool:
    """Return True if the coordinate `x` is None or contains None at any depth, so that it stands for a slice, not for
    an element.
    """
    if isinstance(x, tuple):
        return any(e is None or (isinstance(e, tuple) and has_none(e)) for e in x)
    return x is None


def as_int_tuple(x: Any, what: str) -> Any:
    """Return `x`, an int or a nested tuple of ints, with numpy integers converted to ints.

    Raise LayoutError for other types (bools and expressions too), for an int of magnitude 2**63 or more, and for too
    deep a nesting. `what` names the value in the message, for example "shape".
    """
    if type(x) is int:
        if OFFSETS.refuses(abs(x)):
            raise LayoutError(f"{what} holds {shown(x)}: {OFFSETS.rule}")
        return x
    if isinstance(x, tuple):
        require_nesting(x, what)
        return tuple(as_int_tuple(e, what) for e in x)
    if isinstance(x, Integer):
        return as_int_tuple(int(x), what)  # type: ignore[call-overload]
    raise LayoutError(f"{what} must be an int or a nested tuple of ints, but holds {x!r}")


def require_nesting(x: Any, what: str) -> None:
    """Raise LayoutError if `x` is nested more than 64 deep or has more than 256 modes; `what` names `x` in
    the message.
    """
    level, mode_count, depth = [x], 0, 0
    while level:
        mode_count += len(level)
        if NESTING.refuses(depth) or MODES.refuses(mode_count):
            raise LayoutError(f"{what}: {(NESTING if NESTING.refuses(depth) else MODES).rule}")
        level = [e for element in level if isinstance(element, tuple) for e in element]
        depth += 1


def leaves(x: Any) -> tuple[Any, ...]:
    """Return the leaves of a nested tuple from left to right, as a flat tuple. For a value that is no tuple, return
    (value,).

    >>> leaves(((2, 3), 4))
    (2, 3, 4)
    >>> leaves(4)
    (4,)
    """
    if not isinstance(x, tuple):
        return (x,)
    flat: list[Any] = []
    _add_leaves(x, flat)
    return tuple(flat)


def _add_leaves(x: tuple[Any, ...], flat: list[Any]) -> None:
    """Append the leaves of a nested tuple to the list `flat`, from left to right."""
    for e in x:
        if isinstance(e, tuple):
            _add_leaves(e, flat)
        else:
            flat.append(e)


def unflatten(flat: Sequence[Any], profile: Any) -> Any:
    """Return the values of `flat`, in order, nested in the same way as `profile`.

    Raise LayoutError unless `flat` has as many values as `profile` has leaves.

    >>> unflatten([2, 3, 4], ((0, 0), 0))
    ((2, 3), 4)
    """
    count = len(leaves(profile))
    if count != len(flat):
        raise LayoutError(f"{len(flat)} leaves {tuple(flat)} do not fit the {count} places of {profile}")
    values = iter(flat)
    return transform_leaf(lambda _: next(values), profile)


def transform_leaf(f: Callable[..., Any], *tuples: Any) -> Any:
    """Return f(leaf of the first tuple, leaf of the second, ...) for all leaves, as a tuple nested like the arguments.

    Raise LayoutError unless all `tuples` are nested in the same way, and if there are none.

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
    """Return a / b rounded up, for b > 0; both may be ints or expressions.

    >>> ceil_quotient(7, 4)
    2
    """
    return (a + b - 1) // b


def divides(a: Any, b: Any) -> bool:
    """Return True if `a` is known to divide `b`; both may be ints or expressions. False means that this is not known.

    >>> from tilewright.algebra.expr import symbol
    >>> divides(4, 12), divides(4, 8 * symbol("K", 1)), divides(4, symbol("K", 1))
    (True, True, False)
    """
    rest = b % a
    return bool(rest.value == 0) if isinstance(rest, Const) else type(rest) is int and rest == 0


def signum(x: int) -> int:
    """Return the sign of `x`: -1, 0 or 1.

    >>> signum(-7)
    -1
    """
    return int(x > 0) - int(x < 0)


def product(x: Any) -> int:
    """Return the product of all leaves of an int tuple.

    >>> product(((2, 3), 4))
    24
    """
    return prod(leaves(x))


def inner_product(a: Any, b: Any) -> int:
    """Return the sum of the products of corresponding leaves of `a` and `b`.

    Raise LayoutError unless the two are nested in the same way.

    >>> inner_product(((2, 3), 4), ((2, 1), 2))
    15
    """
    return sum(leaves(transform_leaf(operator.mul, a, b)))


def tuple_max(x: Any) -> int:
    """Return the largest leaf of an int tuple; raise LayoutError if it has no leaf.

    >>> tuple_max(((2, 3), 4))
    4
    """
    values = list(leaves(x))
    if not values:
        raise LayoutError(f"tuple_max of {x}: it has no leaf")
    return int(max(values))


def elem_scale(a: Any, b: Any) -> Any:
    """Return `a` with each leaf multiplied by the product of the corresponding mode of `b`; `b` may be nested deeper.

    Raise LayoutError if the ranks differ.

    >>> elem_scale((2, 3), ((2, 2), 5))
    (8, 15)
    """
    if isinstance(a, tuple):
        if not isinstance(b, tuple) or len(a) != len(b):
            raise LayoutError(f"{a} and {b} have different ranks")
        return tuple(elem_scale(x, y) for x, y in zip(a, b, strict=True))
    return a * product(b)


def shape_div(a: Any, b: Any) -> Any:
    """Return the shape `a` divided by `b` elements, mode after mode from the left.

    The first mode is divided as far as possible, the rest of `b` divides the next mode, and so on; a mode that `b`
    contains completely becomes 1. If both are tuples, they are divided mode by mode; a tuple `b` for an int `a` counts
    as its product. Raise LayoutError if at some step neither number divides the other.

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
    """Return the packed strides of the shape `x`, first mode fastest, each multiplied by `start`.

    >>> prefix_product(((2, 3), 4))
    ((1, 2), 6)
    """
    stride = start

    def step(leaf: int) -> int:
        nonlocal stride
        current, stride = stride, stride * leaf
        return current

    return transform_leaf(step, x)


def suffix_product(x: Any, start: int = 1) -> Any:
    """Return the packed strides of the shape `x`, last mode fastest, each multiplied by `start`.

    >>> suffix_product(((2, 3), 4))
    ((12, 4), 1)
    """
    strides: list[int] = []
    stride = start
    for leaf in reversed(leaves(x)):
        strides.append(stride)
        stride *= leaf
    return unflatten(strides[::-1], x)


def crd2idx(crd: Any, shape: Any, stride: Any = None) -> Any:
    """Return the index (offset) of the coordinate `crd`: the sum of its leaves times the strides.

    `crd` is an int, or nested no deeper than `shape`. An int for a mode that is a tuple is split over the modes inside,
    first mode fastest; the last mode takes the rest. None counts as 0. Leaves may be numpy arrays. Without `stride` the
    shape counts as packed, first mode fastest. Raise LayoutError if the arguments are not nested alike.

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
        _require_same_rank(stride, shape)
        total: Any = 0
        for c, s, d in zip(crd, shape, stride, strict=True):
            total = total + crd2idx(c, s, d)
        return total
    if crd is None:
        return 0
    if isinstance(shape, tuple):
        if not shape:
            return 0
        _require_same_rank(stride, shape)
        index: Any = 0
        for s, d in zip(shape[:-1], stride[:-1], strict=True):
            extent = s if type(s) is int else product(s)
            index = index + crd2idx(crd % extent, s, d)
            crd = crd // extent
        return index + crd2idx(crd, shape[-1], stride[-1])
    if isinstance(stride, tuple):
        raise LayoutError(f"stride {stride} does not fit shape {shape}: they are not nested alike")
    return crd * stride


def _require_same_rank(stride: Any, shape: tuple[Any, ...]) -> None:
    """Raise LayoutError unless `stride` is a tuple with as many entries as `shape`."""
    if not isinstance(stride, tuple) or len(stride) != len(shape):
        raise LayoutError(f"stride {stride} does not fit shape {shape}: they are not nested alike")


def idx2crd(idx: Any, shape: Any, stride: Any = None) -> Any:
    """Return the coordinate of an index, nested as the shape: `(idx // stride) % shape` at every leaf, 0 for stride 0.

    A tuple as `idx` has one index for each mode, which counts the elements of that mode. Without `stride` the shape
    counts as packed, first mode fastest (each mode separately, if `idx` is a tuple); then `crd2idx(idx2crd(i, s), s) ==
    i` for i < product(s). Raise LayoutError if the arguments are not nested alike, if `idx` is None, or if strides are
    basis strides.

    >>> idx2crd(21, (4, (2, 4)))
    (1, (1, 2))
    >>> idx2crd((1, 5), (4, (2, 4)))
    (1, (1, 2))
    """
    if isinstance(idx, tuple):
        if not isinstance(shape, tuple) or len(idx) != len(shape):
            raise LayoutError(f"index {idx} does not fit shape {shape}: the ranks differ")
        strides = (None,) * len(shape) if stride is None else stride
        _require_same_rank(strides, shape)
        return tuple(idx2crd(i, s, d) for i, s, d in zip(idx, shape, strides, strict=True))
    if stride is None:
        stride = prefix_product(shape)
    if idx is None:
        raise LayoutError("idx2crd of None: an index is an integer")
    if isinstance(shape, tuple):
        _require_same_rank(stride, shape)
        return tuple(idx2crd(idx, s, d) for s, d in zip(shape, stride, strict=True))
    if stride == 0:
        return idx * 0
    if not is_int(stride) and not isinstance(stride, Expr):
        raise LayoutError(f"idx2crd of {idx}: the stride {stride} counts coordinates, and an index has none")
    return (idx // stride) % shape


def crd2crd(crd: Any, source: Any, target: Any) -> Any:
    """Return the coordinate in shape `target` that has the same linear index as the coordinate `crd` in shape `source`.

    >>> crd2crd((1, 2), (2, 6), (4, 3))
    (1, 1)
    """
    return idx2crd(crd2idx(crd, source), target)


def slice_(crd: Any, x: Any) -> Any:
    """Return a tuple of the modes of `x` that `crd` pairs with None.

    A nested coordinate selects modes within its mode; the selected modes stand in one flat tuple. If `crd` is no tuple,
    return `x` itself for None, otherwise (). Raise LayoutError if ranks differ.

    >>> slice_((None, 3), ((2, 2), 8))
    ((2, 2),)
    >>> slice_((1, (None, 0)), (4, (2, 4)))
    (2,)
    """
    if isinstance(crd, tuple):
        if not isinstance(x, tuple) or len(crd) != len(x):
            raise LayoutError(f"coordinate {crd} does not fit {x}: the ranks differ")
        modes: tuple[Any, ...] = ()
        for c, e in zip(crd, x, strict=True):
            if isinstance(c, tuple):
                modes += slice_(c, e)
            elif c is None:
                modes += (e,)
        return modes
    return x if crd is None else ()


def dice_(crd: Any, x: Any) -> Any:
    """Return a tuple of the modes of `x` that `crd` does not pair with None: the modes that `slice_` drops.

    A nested coordinate selects modes within its mode; the selected modes stand in one flat tuple. If `crd` is no tuple,
    return () for None, otherwise `x` itself. Raise LayoutError if ranks differ.

    >>> dice_((None, 3), ((2, 2), 8))
    (8,)
    >>> dice_((1, (None, 0)), (4, (2, 4)))
    (4, 4)
    """
    if isinstance(crd, tuple):
        if not isinstance(x, tuple) or len(crd) != len(x):
            raise LayoutError(f"coordinate {crd} does not fit {x}: the ranks differ")
        modes: tuple[Any, ...] = ()
        for c, e in zip(crd, x, strict=True):
            if isinstance(c, tuple):
                modes += dice_(c, e)
            elif c is not None:
                modes += (e,)
        return modes
    return () if crd is None else x


def congruent(a: Any, b: Any) -> bool:
    """Return True if `a` and `b` (int tuples or layouts) are nested in the same way; their numbers may differ.

    >>> congruent((4, (2, 4)), (2, (1, 8))), congruent((4, 8), 32)
    (True, False)
    """
    a, b = shape_of(a), shape_of(b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(congruent(x, y) for x, y in zip(a, b, strict=True))
    return not isinstance(a, tuple) and not isinstance(b, tuple)


def weakly_congruent(a: Any, b: Any) -> bool:
    """Return True if `b` is nested like `a`, or deeper where `a` has a leaf. Both are int tuples or layouts.

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
    """Return True if every coordinate of `a` is a coordinate of `b`: `b` is nested like `a` or deeper, with equal
    sizes.

    Both are shapes or layouts.

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
    """Return True if the shape `b` consists of whole copies of `a`: `b` is nested like `a` or deeper, and each size is
    a multiple.

    Both may be layouts. Raise LayoutError for an extent 0 in `a`.

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
    """Return the shape of a layout. An int tuple, or anything else without a shape, is returned unchanged."""
    return x if isinstance(x, tuple) or is_int(x) else getattr(x, "shape", x)
