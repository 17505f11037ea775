"""Copies between views of a block program, with symbolic coordinates.

A `MemoryView` gives, for each element of the copied box, its coordinates in a tensor, as expressions of the box's axes,
of loop variables and of sizes that are open until the call. An atom answers for all of their values at once, with
`Condition`s if an open size decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.algebra import Swizzle, eq, has_division, linear_form, substitute
from tilewright.algebra.expr import Const, Expr, FloorDiv, Mod, Symbol, as_expr
from tilewright.algebra.expr_prove import is_nonneg
from tilewright.algebra.expr_rules import linear
from tilewright.ir.dtypes import DType

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Condition:
    """A condition on open sizes that a copy atom needs, and the reason for the refusal if it is false. `that` may be
    the constant 0: then no sizes satisfy it.
    """

    that: Expr
    reason: str


@dataclass(frozen=True)
class MemoryView:
    """A box of a tensor in memory; `coordinates`, `shape`, `strides` and `may_leave` have one entry for each dimension.

    `may_leave` marks the coordinates that may be out of bounds of the tensor. `alignment` is that of the tensor's first
    element, in bytes; the swizzle is applied to offsets in elements. An element is out of bounds of the view if one of
    `ends` is negative for it (see `ends_within`).
    """

    name: str
    space: str
    coordinates: tuple[Expr, ...]
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    may_leave: tuple[bool, ...]
    alignment: int
    swizzle: Swizzle | None = None
    ends: tuple[Expr, ...] = ()

    def offset(self) -> Expr:
        """Return an element's offset, in elements, before the swizzle: the expression sum of coordinate * stride."""
        total: Expr = as_expr(0)
        for coordinate, stride in zip(self.coordinates, self.strides, strict=True):
            total = total + coordinate * stride
        return total

    def joined(self, axes: tuple[Symbol, ...]) -> MemoryView:
        """Return a view of the same elements in a tensor with fewer dimensions, so that no coordinate divides a box
        axis by // or %.

        `axes` are the axes of the copied box. Adjacent dimensions over which one axis runs are joined. If some
        coordinate still divides an axis afterwards, the view is returned unchanged. The example is row x of a matrix of
        packed pixels, at coordinates [x//(P*Q), x//Q%P, x%Q]: it becomes one dimension.

        >>> from tilewright.algebra import index
        >>> x, one = index("x", 64), as_expr(1)
        >>> pixels = MemoryView(
        ...     "%y", "global", (x // 35, x // 5 % 7, x % 5), (2 * one, 7 * one, 5 * one), (35 * one, 5 * one, one),
        ...     (True, False, False), 16,
        ... )
        >>> flat = pixels.joined((x,))
        >>> flat.coordinates, flat.shape, flat.strides
        ((<x>,), (<70>,), (<1>,))
        """
        result = self
        d = 0
        while d + 1 < len(result.coordinates):
            divided = has_division(result.coordinates[d], axes)
            joined = result._join_digits(d) or result._join_pair(d) if divided else None
            if joined is None:
                d += 1
            else:
                result = joined
        return self if any(has_division(c, axes) for c in result.coordinates) else result

    def _join_digits(self, d: int) -> MemoryView | None:
        """Return the view with dimension `d` and some dimensions after it joined to one, whose coordinate is a flat
        index n.

        The coordinates must be digits (mixed-radix parts) of n: n // (product of the inner extents) for `d`, then n //
        step % extent for each further dimension. If c is added to the first, the joined coordinate is n + c * (that
        product). Return None for other coordinates, or if the dimensions are not packed.

        >>> from tilewright.algebra import index
        >>> x, t, one = index("x", 64), index("t", 10), as_expr(1)
        >>> row = 48 * t + x
        >>> pixels = MemoryView(
        ...     "%y", "global", (row // 256, row // 16 % 16, row % 16), (2 * one, 16 * one, 16 * one),
        ...     (256 * one, 16 * one, one), (True, False, False), 16,
        ... )
        >>> pixels.coordinates[1:], pixels.joined((x,)).coordinates
        ((<(3*t + x//16)%16>, <x%16>), (<48*t + x>,))

        If whole boxes fill an image, the number of the image is not divided, and the rest is one dimension:

        >>> row = 256 * t + x
        >>> pixels = replace(pixels, coordinates=(row // 256, row // 16 % 16, row % 16))
        >>> pixels.joined((x,)).coordinates
        (<t>, <x>)

        A number added to the first digit counts as that many times the product of the other extents:

        >>> row = 48 * t + x

        >>> pixels = replace(pixels, coordinates=((row + 9) // 256 + 3, (row + 9) // 16 % 16, (row + 9) % 16))
        >>> pixels.joined((x,)).coordinates
        (<48*t + x + 777>,)
        """
        first = self.coordinates[d]
        quotients = [part for part, count in linear(first)[1] if isinstance(part, FloorDiv) and count == 1]
        if len(quotients) != 1:
            return None
        number, divisor = quotients[0].parts
        added = first - quotients[0]
        inner_size: Expr = as_expr(1)
        for end in range(d + 1, len(self.coordinates)):
            packed = self.strides[end - 1] == self.strides[end] * self.shape[end]
            inner_size = inner_size * self.shape[end]
            if not packed:
                return None
            if inner_size != divisor:
                continue
            step = inner_size
            for k in range(d + 1, end + 1):
                step = step // self.shape[k]
                if self.coordinates[k] != number // step % self.shape[k]:
                    return None

            def at(parts: tuple[Any, ...], part: Any, last: int = end) -> tuple[Any, ...]:
                return (*parts[:d], part, *parts[last + 1 :])

            return replace(
                self,
                coordinates=at(self.coordinates, number + inner_size * added),
                shape=at(self.shape, self.shape[d] * inner_size),
                strides=at(self.strides, self.strides[end]),
                may_leave=at(self.may_leave, any(self.may_leave[d : end + 1])),
            )
        return None

    def _join_pair(self, d: int) -> MemoryView | None:
        """Return the view with dimensions `d` and `d` + 1 joined to one packed dimension.

        The joined coordinate is (coordinate d) * (extent of d + 1) + (coordinate d + 1). Return None unless the two
        dimensions are packed and coordinate d + 1 is provably in bounds. If both coordinates are digits (n // a % b) of
        one number n, the joined coordinate is formed from n directly.

        >>> from tilewright.algebra import index
        >>> x, t, one = index("x", 16), index("t", 10), as_expr(1)
        >>> row = 32 * t + x + 16
        >>> pixels = MemoryView(
        ...     "%y", "global", (row // 96, row // 12 % 8, row % 12), (9 * one, 8 * one, 12 * one),
        ...     (96 * one, 12 * one, one), (True, False, False), 16,
        ... )
        >>> pixels.coordinates[1:], pixels.joined((x,)).coordinates
        ((<((32*t + x + 4)//12 + 1)%8>, <(32*t + x + 4)%12>), (<t//3>, <32*(t%3) + x + 16>))
        """
        inner, extent = self.coordinates[d + 1], self.shape[d + 1]
        if self.strides[d] != self.strides[d + 1] * extent:
            return None
        if not is_nonneg(inner) or not is_nonneg(extent - 1 - inner):
            return None

        def at(parts: tuple[Any, ...], part: Any) -> tuple[Any, ...]:
            return (*parts[:d], part, *parts[d + 2 :])

        joined_coordinate, outer = self.coordinates[d] * extent + inner, self.coordinates[d]
        if isinstance(outer, Mod) and isinstance(inner, Mod) and inner.right == extent:  # digits of one number
            joined_coordinate = (inner.left + (outer.left - _quotient(inner.left, extent)) * extent) % (
                outer.right * extent
            )
        return replace(
            self,
            coordinates=at(self.coordinates, joined_coordinate),
            shape=at(self.shape, self.shape[d] * extent),
            strides=at(self.strides, self.strides[d + 1]),
            may_leave=at(self.may_leave, self.may_leave[d] or self.may_leave[d + 1]),
        )

    def substituted(self, values: dict[Any, Any]) -> MemoryView:
        """Return the view with symbols replaced in its coordinates and ends; `values` is {symbol: int or expression}.

        The view's shape and strides stay as they are.
        """
        coordinates, ends = (tuple(substitute(e, values) for e in exprs) for exprs in (self.coordinates, self.ends))
        return replace(self, coordinates=coordinates, ends=ends)


@dataclass(frozen=True)
class RegisterView:
    """A tensor in registers; `elements` is the number of the box element in each register, indexed [lane, value]."""

    name: str
    elements: Array
    space: str = "register"


@dataclass(frozen=True)
class ViewRequest:
    """A request to copy a box of elements, with one axis for each dimension, between two views.

    `otherwise` is the value of source elements that are out of bounds.
    """

    axes: tuple[Symbol, ...]
    dtype: DType
    source: MemoryView | RegisterView
    target: MemoryView | RegisterView
    otherwise: float = 0

    @property
    def box(self) -> tuple[int, ...]:
        """Return the extents of the box, one for each axis."""
        return tuple(int(axis.hi) + 1 for axis in self.axes)

    @property
    def size(self) -> int:
        """Return the bytes of an element."""
        return int(self.dtype.numpy.itemsize)

    def sides(self) -> tuple[RegisterView, MemoryView]:
        """Return (registers, memory) of a copy between registers and memory, in either direction."""
        registers, memory = self.target, self.source
        if isinstance(memory, RegisterView):
            registers, memory = memory, registers
        assert isinstance(registers, RegisterView)
        assert isinstance(memory, MemoryView)
        return registers, memory


def _quotient(e: Expr, by: Expr) -> Expr:
    """Return `e // by` as an expression in which a quotient plus a constant is divided only once.

    For `e` = n // d + c the result is (n + c*d) // (d*by).

    >>> from tilewright.algebra import index
    >>> n = index("n", 999)
    >>> (n // 14 + 2) // 14, _quotient(n // 14 + 2, as_expr(14))
    (<(n//14 + 2)//14>, <(n + 28)//196>)
    """
    constant, terms = linear(e)
    (first, count), *rest = terms or ((e, 0),)
    if isinstance(first, FloorDiv) and count == 1 and not rest and first.right.lo >= 1:
        return (first.left + constant * first.right) // (first.right * by)
    return e // by


def multiple(e: Expr, of: int, reason: str) -> list[Condition]:
    """Return [the Condition that `e` is a multiple of `of`], or [] if `e` is a multiple for all values of its symbols.

    If `e` never is a multiple, the condition is the constant 0. `reason` is the message of the refusal if the condition
    is false.
    """
    rest = e % of
    if is_number(rest, 0):
        return []
    return [Condition(eq(rest, 0), reason)]


def weight(e: Expr, axis: Symbol) -> Expr | None:
    """Return the coefficient of `axis` in `e`: how much `e` grows when `axis` grows by 1.

    Return 0 if `e` does not contain `axis`, and None if `e` is not linear in `axis`.
    """
    form = linear_form(e, (axis,))
    return None if form is None else form[0].get(axis, as_expr(0))


def is_number(e: Expr | None, n: int) -> bool:
    """Return True if `e` is a constant expression equal to `n`. None and expressions with symbols give False.

    >>> is_number(as_expr(4) - 3, 1)
    True
    """
    return isinstance(e, Const) and e.value == n
