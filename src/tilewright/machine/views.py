"""What a copy of a block program is asked to do: two views, as expressions.

A `MemoryView` says which element of a tensor each element of the box is, as expressions of the box's axes and of
whatever else varies: loop variables, sizes that are open until the call. An atom answers for all of their values at
once, with `Condition`s where an open size decides.
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
    """What must hold of sizes for an atom to do a copy, and the sentence that refuses it where it does not."""

    that: Expr
    reason: str


@dataclass(frozen=True)
class MemoryView:
    """A box of a tensor in memory; `coordinates`, `shape`, `strides` and `loose` have one entry for each dimension.

    `loose` says which coordinates may lie outside the tensor. `alignment` is that of the tensor's first element, in
    bytes; the swizzle is applied to offsets in elements. `ends` are those within the tensor: an element is not there
    where one of them is below 0 (`ends_within`).
    """

    name: str
    space: str
    coordinates: tuple[Expr, ...]
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    loose: tuple[bool, ...]
    alignment: int
    swizzle: Swizzle | None = None
    ends: tuple[Expr, ...] = ()

    def offset(self) -> Expr:
        """The element's place, before the swizzle."""
        total: Expr = as_expr(0)
        for coordinate, stride in zip(self.coordinates, self.strides, strict=True):
            total = total + coordinate * stride
        return total

    def joined(self, axes: tuple[Symbol, ...]) -> MemoryView:
        """The same elements, with dimensions joined that one axis of the box runs through.

        A row x of a matrix seen as pixels, [x//(P*Q), x//Q%P, x%Q], is one dimension where the pixels are packed:

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
        found = self
        d = 0
        while d + 1 < len(found.coordinates):
            divided = has_division(found.coordinates[d], axes)
            shorter = found._of_one_number(d) or found._join(d) if divided else None
            if shorter is None:
                d += 1
            else:
                found = shorter
        return self if any(has_division(c, axes) for c in found.coordinates) else found

    def _of_one_number(self, d: int) -> MemoryView | None:
        """Dimensions from d on as one, where their coordinates are the digits of the number that the first divides.

        >>> from tilewright.algebra import index
        >>> x, t, one = index("x", 64), index("t", 10), as_expr(1)
        >>> row = 48 * t + x
        >>> pixels = MemoryView(
        ...     "%y", "global", (row // 256, row // 16 % 16, row % 16), (2 * one, 16 * one, 16 * one),
        ...     (256 * one, 16 * one, one), (True, False, False), 16,
        ... )
        >>> pixels.coordinates[1:], pixels.joined((x,)).coordinates
        ((<(3*t + x//16)%16>, <x%16>), (<48*t + x>,))

        Where whole boxes fill an image, the number of the image is not divided, and what is left is one dimension:

        >>> row = 256 * t + x
        >>> pixels = replace(pixels, coordinates=(row // 256, row // 16 % 16, row % 16))
        >>> pixels.joined((x,)).coordinates
        (<t>, <x>)

        What is added to the first is so many times all that the others count:

        >>> row = 48 * t + x

        >>> pixels = replace(pixels, coordinates=((row + 9) // 256 + 3, (row + 9) // 16 % 16, (row + 9) % 16))
        >>> pixels.joined((x,)).coordinates
        (<48*t + x + 777>,)
        """
        first = self.coordinates[d]
        divided = [part for part, count in linear(first)[1] if isinstance(part, FloorDiv) and count == 1]
        if len(divided) != 1:
            return None
        number, by = divided[0].parts
        more = first - divided[0]
        whole: Expr = as_expr(1)
        for end in range(d + 1, len(self.coordinates)):
            packed = self.strides[end - 1] == self.strides[end] * self.shape[end]
            whole = whole * self.shape[end]
            if not packed:
                return None
            if whole != by:
                continue
            step = whole
            for k in range(d + 1, end + 1):
                step = step // self.shape[k]
                if self.coordinates[k] != number // step % self.shape[k]:
                    return None

            def at(parts: tuple[Any, ...], part: Any, last: int = end) -> tuple[Any, ...]:
                return (*parts[:d], part, *parts[last + 1 :])

            return replace(
                self,
                coordinates=at(self.coordinates, number + whole * more),
                shape=at(self.shape, self.shape[d] * whole),
                strides=at(self.strides, self.strides[end]),
                loose=at(self.loose, any(self.loose[d : end + 1])),
            )
        return None

    def _join(self, d: int) -> MemoryView | None:
        """Dimensions d and d + 1 as one, where they are packed and the second coordinate always lies inside.

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

        whole, outer = self.coordinates[d] * extent + inner, self.coordinates[d]
        if isinstance(outer, Mod) and isinstance(inner, Mod) and inner.right == extent:  # digits of one number
            whole = (inner.left + (outer.left - _quotient(inner.left, extent)) * extent) % (outer.right * extent)
        return replace(
            self,
            coordinates=at(self.coordinates, whole),
            shape=at(self.shape, self.shape[d] * extent),
            strides=at(self.strides, self.strides[d + 1]),
            loose=at(self.loose, self.loose[d] or self.loose[d + 1]),
        )

    def substituted(self, values: dict[Any, Any]) -> MemoryView:
        """The view with symbols of its coordinates replaced."""
        coordinates, ends = (tuple(substitute(e, values) for e in what) for what in (self.coordinates, self.ends))
        return replace(self, coordinates=coordinates, ends=ends)


@dataclass(frozen=True)
class RegisterView:
    """A tensor in registers: the number of the element that each [lane, value] holds."""

    name: str
    elements: Array
    space: str = "register"


@dataclass(frozen=True)
class ViewRequest:
    """Move a box of elements, one axis for each dimension, from one view to another.

    `otherwise` is what is read outside the source's tensor.
    """

    axes: tuple[Symbol, ...]
    dtype: DType
    source: MemoryView | RegisterView
    target: MemoryView | RegisterView
    otherwise: float = 0

    @property
    def box(self) -> tuple[int, ...]:
        """The extents of the box."""
        return tuple(int(axis.hi) + 1 for axis in self.axes)

    @property
    def size(self) -> int:
        """The bytes of an element."""
        return int(self.dtype.numpy.itemsize)

    def sides(self) -> tuple[RegisterView, MemoryView]:
        """(registers, memory) of a copy between the two."""
        registers, memory = self.target, self.source
        if isinstance(memory, RegisterView):
            registers, memory = memory, registers
        assert isinstance(registers, RegisterView)
        assert isinstance(memory, MemoryView)
        return registers, memory


def _quotient(e: Expr, by: Expr) -> Expr:
    """The expression divided; a quotient to which a number was added is one of the number that was divided before.

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
    """That an expression is a multiple of a number: nothing where it always is, otherwise the condition."""
    rest = e % of
    if is_number(rest, 0):
        return []
    return [Condition(eq(rest, 0), reason)]


def weight(e: Expr, axis: Symbol) -> Expr | None:
    """How far an expression moves at each step of an axis; None where that differs from step to step."""
    form = linear_form(e, (axis,))
    return None if form is None else form[0].get(axis, as_expr(0))


def is_number(e: Expr | None, n: int) -> bool:
    """Whether an expression is this number.

    >>> is_number(as_expr(4) - 3, 1)
    True
    """
    return isinstance(e, Const) and e.value == n
