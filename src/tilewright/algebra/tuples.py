"""Arithmetic on nested tuples of integers, leaf by leaf, and other tuple operations of CuTe.

Two tuples must be nested alike; an int is combined with every leaf of the other. Other types raise a `LayoutError`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tilewright.algebra.inttuple import is_int, leaves, product, transform_leaf
from tilewright.errors import LayoutError
from tilewright.limits import MODES, shown


def _leafwise(operation: Callable[[Any, Any], Any], a: Any, b: Any, name: str) -> Any:
    """Return operation(a, b) leaf by leaf; an int is combined with every leaf of the other operand.

    Raise LayoutError if the operands are not nested in the same way, or hold anything but integers; `name` is the
    public function's name in the message.
    """
    if isinstance(a, tuple) and not isinstance(b, tuple):
        return tuple(_leafwise(operation, e, b, name) for e in a)
    if isinstance(b, tuple) and not isinstance(a, tuple):
        return tuple(_leafwise(operation, a, e, name) for e in b)
    if isinstance(a, tuple):
        if len(a) != len(b):
            raise LayoutError(f"{name} of {a} and {b}: the ranks differ")
        return tuple(_leafwise(operation, x, y, name) for x, y in zip(a, b, strict=True))
    for leaf in (a, b):
        if not is_int(leaf):
            raise LayoutError(f"{name} takes ints and nested tuples of ints, not {leaf!r}")
    return operation(a, b)


def _reject_zero_divisor(operation: Callable[[Any, Any], Any], name: str) -> Callable[[Any, Any], Any]:
    """Return a function that computes operation(a, b), but raises LayoutError if b is 0; `name` is for the message."""

    def divide(a: Any, b: Any) -> Any:
        if b == 0:
            raise LayoutError(f"{name} of {a} by 0")
        return operation(a, b)

    return divide


def tuple_add(a: Any, b: Any) -> Any:
    """Return a + b, leaf by leaf; an int is added to every leaf. Raise LayoutError unless `a` and `b` are nested in the
    same way.

    >>> tuple_add((1, (2, 3)), (10, (20, 30))), tuple_add((1, (2, 3)), 1)
    ((11, (22, 33)), (2, (3, 4)))
    """
    return _leafwise(operator.add, a, b, "tuple_add")


def tuple_sub(a: Any, b: Any) -> Any:
    """Return a - b, leaf by leaf; an int is combined with every leaf. Raise LayoutError unless `a` and `b` are nested
    in the same way.

    >>> tuple_sub((10, (20, 30)), (1, (2, 3)))
    (9, (18, 27))
    """
    return _leafwise(operator.sub, a, b, "tuple_sub")


def tuple_mul(a: Any, b: Any) -> Any:
    """Return a * b, leaf by leaf; an int is combined with every leaf. Raise LayoutError unless `a` and `b` are nested
    in the same way.

    >>> tuple_mul((1, (2, 3)), (10, (20, 30)))
    (10, (40, 90))
    """
    return _leafwise(operator.mul, a, b, "tuple_mul")


def tuple_div(a: Any, b: Any) -> Any:
    """Return a // b, leaf by leaf; an int is combined with every leaf.

    Raise LayoutError unless `a` and `b` are nested in the same way, and for a divisor 0.

    >>> tuple_div((7, (20, 31)), (2, (5, 10)))
    (3, (4, 3))
    """
    return _leafwise(_reject_zero_divisor(operator.floordiv, "tuple_div"), a, b, "tuple_div")


def tuple_mod(a: Any, b: Any) -> Any:
    """Return a % b, leaf by leaf; an int is combined with every leaf.

    Raise LayoutError unless `a` and `b` are nested in the same way, and for a divisor 0.

    >>> tuple_mod((7, (20, 31)), (2, (5, 10)))
    (1, (0, 1))
    """
    return _leafwise(_reject_zero_divisor(operator.mod, "tuple_mod"), a, b, "tuple_mod")


def ceil_div(a: Any, b: Any) -> Any:
    """Return a / b rounded up, mode by mode: the number of tiles of shape `b` that cover a shape `a`.

    If a mode is a tuple in `a` and an int in `b`, or the reverse, the tuple counts as the product of its entries. Modes
    that `b` lacks stay as they are. Raise LayoutError if `b` has more modes, or for a divisor 0.

    >>> ceil_div((100, 64), (32, 64)), ceil_div((10, 20, 3), (4, 5)), ceil_div(((4, 6), 5), (5, 2))
    ((4, 1), (3, 4, 3), (5, 3))
    """
    if isinstance(a, tuple) and isinstance(b, tuple):
        if len(a) < len(b):
            raise LayoutError(f"ceil_div of {a} by {b}: the divisor has more modes")
        return (*(ceil_div(x, y) for x, y in zip(a, b, strict=False)), *a[len(b) :])
    a, b = product(a), product(b)
    return _leafwise(_reject_zero_divisor(lambda x, y: -(-x // y), "ceil_div"), a, b, "ceil_div")


def round_up(a: Any, b: Any) -> Any:
    """Return the least multiple of `b` that is not below `a`, leaf by leaf; an int is combined with every leaf.

    Raise LayoutError unless `a` and `b` are nested in the same way, and if a leaf of `b` is 0.

    >>> round_up((5, 8), (3, 3)), round_up(13, 8)
    ((6, 9), 16)
    """
    return _leafwise(_reject_zero_divisor(lambda x, y: -(-x // y) * y, "round_up"), a, b, "round_up")


def elem_less(a: Any, b: Any) -> bool:
    """Return True if every leaf of `a` is less than the corresponding leaf of `b`, so that a coordinate `a` is within a
    shape `b`.

    An int is compared with every leaf. Raise LayoutError unless `a` and `b` are nested in the same way.

    >>> elem_less((3, (1, 2)), (4, (2, 3))), elem_less((3, 5), (4, 5))
    (True, False)
    """
    return all(leaves(_leafwise(operator.lt, a, b, "elem_less")))


def product_each(x: Any) -> Any:
    """Return the product of every top-level mode as a flat tuple; an int is returned unchanged.

    >>> product_each(((2, 3), 4)), product_each(5)
    ((6, 4), 5)
    """
    return tuple(product(e) for e in x) if isinstance(x, tuple) else x


def product_like(x: Any, profile: Any) -> Any:
    """Return a tuple nested as `profile`, each leaf the product of the mode of `x` at that position.

    Raise LayoutError if `x` has an int or another number of modes where `profile` has a tuple.

    >>> product_like(((2, 3), (4, (5, 6))), (1, (1, 1)))
    (6, (4, 30))
    """
    if not isinstance(profile, tuple):
        return product(x)
    if not isinstance(x, tuple) or len(x) != len(profile):
        raise LayoutError(f"product_like of {x} by the profile {profile}: the ranks differ")
    return tuple(product_like(e, p) for e, p in zip(x, profile, strict=True))


def tuple_cat(*parts: Any) -> tuple[Any, ...]:
    """Return one tuple with the modes of all `parts`, one after another; an int counts as one mode.

    >>> tuple_cat((1, 2), 3, ((4, 5),))
    (1, 2, 3, (4, 5))
    """
    return tuple(mode for part in parts for mode in (part if isinstance(part, tuple) else (part,)))


def wrap(x: Any) -> tuple[Any, ...]:
    """Return `x` as a tuple: an int becomes a tuple of one mode; a tuple is returned unchanged.

    >>> wrap(4), wrap((4, 8))
    ((4,), (4, 8))
    """
    return x if isinstance(x, tuple) else (x,)


def unwrap(x: Any) -> Any:
    """Return `x` without enclosing tuples of one mode: ((4,),) gives 4. Any other `x` is returned unchanged.

    >>> unwrap(((4,),)), unwrap((4, 8))
    (4, (4, 8))
    """
    while isinstance(x, tuple) and len(x) == 1:
        x = x[0]
    return x


def repeat(x: Any, count: int) -> Any:
    """Return a tuple of `count` modes, each of them `x`; for a count of 1, `x` itself.

    Raise LayoutError for a count below 1 or above 256.

    >>> repeat(2, 3), repeat((1, 2), 1)
    ((2, 2, 2), (1, 2))
    """
    if not is_int(count) or count < 1:
        raise LayoutError(f"repeat of {x}, {count} times: at least once")
    if MODES.refuses(count):
        raise LayoutError(f"repeat of {x}, {shown(count)} times: {MODES.rule}")
    return x if count == 1 else (x,) * count


def repeat_like(x: Any, profile: Any) -> Any:
    """Return a tuple nested as `profile`, with `x` as every leaf.

    >>> repeat_like(0, ((2, 3), 4))
    ((0, 0), 0)
    """
    return transform_leaf(lambda _: x, profile)
