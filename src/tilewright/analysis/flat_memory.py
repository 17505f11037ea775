"""Tensors in flat memory: the offset of an element as an expression of its coordinates, and when it is in bounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.algebra import Swizzle
from tilewright.algebra.expr import ZERO, Const, Expr, Symbol, as_expr
from tilewright.algebra.expr_rules import linear, maximum, minimum, weighted_sum, xor
from tilewright.algebra.expr_use import Substitution, linear_form
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DType
from tilewright.ir.tensors import numbers

Coordinates = tuple[Expr, ...]
Size: TypeAlias = "int | Expr"
"""An extent or a stride: a number, or an expression of parameters that stay open until a call."""


def sizes(exprs: Iterable[Expr]) -> tuple[Size, ...]:
    """Return extents or strides as a tuple: constants become ints, other expressions stay.

    >>> from tilewright.algebra.expr import symbol
    >>> sizes((as_expr(4), symbol("M", 1, 99)))
    (4, <M>)
    """
    return tuple(e.value if isinstance(e, Const) else e for e in exprs)


@dataclass(frozen=True)
class TensorAddress:
    """The offset of an element in its buffer, and the conditions under which it is in bounds; no conditions: always."""

    buffer: Value
    offset: Expr
    conditions: tuple[Expr, ...]


@dataclass(frozen=True)
class PlacedMemory:
    """A tensor in a flat buffer: offset = start + sum of stride * coordinate, then swizzled."""

    buffer: Value
    dtype: DType
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    swizzle: Swizzle | None = None
    start: Expr = ZERO

    @property
    def root(self) -> PlacedMemory:
        """Return this tensor. (`PlacedView.root` is the tensor below all views.)"""
        return self

    @property
    def extents(self) -> tuple[int, ...]:
        """Return the shape as ints. Raise ProgramError if a size is open (known only at the call)."""
        return numbers(map(as_expr, self.shape), f"%{self.buffer.name}")

    def at(self, coordinates: Coordinates) -> TensorAddress:
        """Return the TensorAddress of the element at these coordinates: buffer and offset, without conditions.

        The caller ensures that the coordinates are in bounds. The offset is in elements, after the swizzle.
        """
        parts = [(c, s) if isinstance(s, int) else (c * s, 1) for c, s in zip(coordinates, self.strides, strict=True)]
        offset = weighted_sum(0, [*parts, (self.start, 1)])
        return TensorAddress(self.buffer, swizzled(self.swizzle, offset), ())


@dataclass(frozen=True)
class PlacedView:
    """A view: coordinates of another tensor (`base`) as expressions of the view's own coordinates `over`; True marks a
    coordinate that may be out of bounds.
    """

    base: PlacedMemory | PlacedView
    dtype: DType
    shape: tuple[Size, ...]
    over: tuple[Symbol, ...]
    places: tuple[tuple[Expr, bool], ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """Return the shape of the view as ints. Raise ProgramError if a size is open (known only at the call)."""
        return numbers(map(as_expr, self.shape), f"a view of %{self.root.buffer.name}")

    @property
    def root(self) -> PlacedMemory:
        """Return the tensor below all views."""
        return self.base if isinstance(self.base, PlacedMemory) else self.base.root

    def at(self, coordinates: Coordinates) -> TensorAddress:
        """Return the TensorAddress of the element at these coordinates of the view: buffer, offset in elements,
        conditions.

        The element is in bounds if all conditions are true; coordinates that cannot be out of bounds give no condition.
        If a condition is the constant 0 (false), it is the only one, and the offset is 0.
        """
        images = Substitution(dict(zip(self.over, coordinates, strict=True)))
        base_coordinates, conditions = [], []
        for (formula, may_leave), size in zip(self.places, self.base.shape, strict=True):
            coordinate = images(formula)
            if may_leave:
                conditions += [coordinate >= 0, coordinate < size]
            base_coordinates.append(coordinate)
        false_condition = next(
            (coordinate for coordinate in conditions if isinstance(coordinate, Const) and not coordinate.value), None
        )
        if false_condition is not None:
            return TensorAddress(self.root.buffer, as_expr(0), (false_condition,))
        inner = self.base.at(tuple(base_coordinates))
        open_conditions = dict.fromkeys(
            coordinate
            for coordinate in (*conditions, *inner.conditions)
            if not (isinstance(coordinate, Const) and coordinate.value)
        )
        return TensorAddress(inner.buffer, inner.offset, tuple(open_conditions))


def nearest(tensor: PlacedMemory | PlacedView, coordinates: Coordinates) -> TensorAddress | None:
    """Return the address of an element with its coordinates clamped into bounds, so that the address can always be
    read.

    Only coordinates that may be out of bounds are clamped. Return None if the extent of a dimension with such a
    coordinate may be 0.

    >>> from tilewright.algebra.expr import symbol
    >>> from tilewright.ir.dtypes import f32
    >>> size, p = symbol("W", 1, 99), symbol("p", 0, 200)
    >>> whole = PlacedMemory(Value(None, "x"), f32, (size,), (1,))
    >>> i = symbol("i", 0, 4)
    >>> print(nearest(PlacedView(whole, f32, (5,), (i,), ((p + i - 1, True),)), (as_expr(0),)).offset)
    max(0, min(W - 1, p - 1))
    """
    if isinstance(tensor, PlacedMemory):
        return tensor.at(coordinates)
    images = Substitution(dict(zip(tensor.over, coordinates, strict=True)))
    clamped = []
    for (formula, may_leave), size in zip(tensor.places, tensor.base.shape, strict=True):
        if may_leave and as_expr(size).lo < 1:
            return None
        coordinate = images(formula)
        clamped.append(maximum(minimum(coordinate, size - 1), 0) if may_leave else coordinate)
    return nearest(tensor.base, tuple(clamped))


def swizzled(swizzle: Swizzle | None, offset: Expr) -> Expr:
    """Return the expression of an element offset after a swizzle; the expression `offset` itself if `swizzle` is None
    or has no bits.

    >>> from tilewright.algebra.expr import index
    >>> o = index("o", 64)
    >>> print(swizzled(Swizzle(2, 0, 3), o))
    (o//8)%4 ^ o
    """
    if swizzle is None or swizzle.bits == 0:
        return offset
    low, shift = swizzle.base + max(0, swizzle.shift), swizzle.shift
    picked = (offset // (1 << low)) % (1 << swizzle.bits)
    moved = picked * (1 << (low - shift))
    return xor(offset, moved)


def at_start(e: Expr, *axes: Symbol) -> Expr:
    """Return the expression `e` with the symbols `axes` replaced by 0.

    >>> from tilewright.algebra.expr import index
    >>> print(at_start(3 * index("i", 8) + index("j", 8) + 5, index("i", 8)))
    j + 5
    """
    constant, terms = linear(e)
    if any(t not in axes and not t.symbols.isdisjoint(axes) for t, _ in terms):
        return Substitution(dict.fromkeys(axes, 0))(e)
    return weighted_sum(constant, [(t, c) for t, c in terms if t not in axes])


def linear_step(e: Expr, axis: Symbol) -> int | None:
    """Return the change of the expression `e` when `axis` grows by one, as an int.

    Return 0 if `e` does not depend on `axis`, and None if the change is not a constant.

    >>> from tilewright.algebra.expr import index
    >>> i, j = index("i", 8), index("j", 8)
    >>> linear_step(3 * i + j, i), linear_step(i // 2, i), linear_step(i * j, i)
    (3, None, None)
    """
    if axis not in e.symbols:
        return 0
    _, terms = linear(e)
    axis_terms = [(t, c) for t, c in terms if axis in t.symbols]
    if len(axis_terms) == 1 and axis_terms[0][0] is axis:
        return axis_terms[0][1]
    factor = linear_factor(e, axis)
    return factor.value if isinstance(factor, Const) else None


def linear_factor(e: Expr, axis: Symbol) -> Expr | None:
    """Return the coefficient of `axis` in the expression `e`, as an expression without `axis`.

    Return 0 if `e` does not depend on `axis`, and None if `e` is not linear in `axis`.

    >>> from tilewright.algebra.expr import index, symbol
    >>> i, n = index("i", 8), symbol("N", 1, 99)
    >>> linear_factor(4 * n * i + 3, i), linear_factor(i // 2, i)
    (<4*N>, None)
    """
    form = linear_form(e, [axis])
    if form is None:
        return None
    factor: Expr = form[0].get(axis, as_expr(0))
    return factor
