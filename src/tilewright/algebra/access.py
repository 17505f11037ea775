"""Accesses: which element of a tensor each point of an iteration space reads or writes.

An access has *axes* (symbols that run from 0), a coordinate for each dimension of the tensor, and conditions.
Its **normal form** is affine: every flat index that is divided is replaced by its *digits* (mixed-radix parts), so
that no // and % is left. A 3x3 convolution with padding 1, written with flat m and k:

>>> from tilewright.algebra import index
>>> m, k = index("m", 2 * 5 * 7), index("k", 3 * 3 * 4)
>>> n, p, q = m // 35, m // 7 % 5, m % 7
>>> r, s, c = k // 12, k // 4 % 3, k % 4
>>> x = Access.of((n, p + r - 1, q + s - 1, c), axes=(m, k), shape=(2, 5, 7, 4))
>>> print(x.normalise({"m": "npq", "k": "rsc"}))
(n 2, p 5, q 7, r 3, s 3, c 4) -> 140*n + 28*p + 28*r + 4*q + 4*s + c - 32
  m = 35*n + 7*p + q
  k = 12*r + 4*s + c
  inside memory where p + r <= 5 and p + r >= 1 and q + s <= 7 and q + s >= 1

Two kinds of conditions are kept separate. `bounds` say which elements are in bounds; out of bounds, a read gives
its "else" value and a write does nothing. `domain` says which points belong to the iteration space at all, where
axes were split into tile sizes that do not divide; other points are never read, combined or written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from tilewright.algebra import access_cut, access_normal
from tilewright.algebra.expr import ZERO, Const, Expr, ExprLike, IsZero, Mod, Sum, Symbol, as_expr
from tilewright.algebra.expr_conditions import all_of, conjuncts
from tilewright.algebra.expr_rules import multiply, weighted_sum
from tilewright.algebra.expr_use import Substitution, evaluate, has_division
from tilewright.algebra.layout import Layout
from tilewright.algebra.swizzle import ComposedLayout, Swizzle
from tilewright.errors import AccessError


@dataclass(frozen=True)
class Access:
    """Coordinates of a tensor as expressions of axes, with conditions; made by `Access.of` and `View.access`."""

    axes: tuple[Symbol, ...]
    """The symbols that index the access now; each runs over 0, ..., extent - 1."""
    indices: tuple[tuple[Symbol, Expr], ...]
    """The indices that the access was written with, each with its expression of the current axes."""
    coordinates: tuple[Expr, ...]
    """The tensor's coordinates as expressions of the axes, one for each dimension."""
    shape: tuple[Expr, ...]
    """The tensor's extents."""
    strides: tuple[Expr, ...]
    """The tensor's strides, in elements."""
    bounds: tuple[Expr, ...] = ()
    """Conditions that the element is in bounds, without conditions that always hold."""
    domain: tuple[Expr, ...] = ()
    """Conditions that the point belongs to the iteration space."""
    columns: tuple[Symbol, ...] = ()
    """Table columns: symbols whose definition is decoded once a task; made by a cut with how="table"."""
    swizzle: Swizzle | None = None
    """The swizzle that is applied to the offset last."""
    digit_names: tuple[tuple[str, access_normal.Names], ...] = ()
    """Names for the digits of an axis, slowest first, used by `normalise`."""
    general: str | None = None
    """The reason why there is no normal form; None if there is one, or if `normalise` was not called."""

    @classmethod
    def of(
        cls,
        coordinates: Sequence[ExprLike],
        axes: Iterable[Symbol],
        shape: Sequence[ExprLike],
        strides: Sequence[ExprLike] | None = None,
        conditions: Iterable[Expr] = (),
        digit_names: Mapping[str, access_normal.Names] | None = None,
    ) -> Access:
        """Return the access to the tensor element at `coordinates`, one expression of the `axes` for each tensor
        dimension.

        `axes` are the loop indices, each from 0 to an upper limit. `shape` holds the tensor's extents. `strides` count
        in elements; without them the tensor is packed, last dimension fastest. The element is in bounds where 0 <=
        coordinate < extent in each dimension and all `conditions` hold. `digit_names` is {axis name: names of the
        digits (mixed-radix parts) of the axis, slowest first}, for `normalise`. Raise AccessError if `coordinates`,
        `shape` and `strides` differ in length, or if an axis does not run from 0 to an upper limit.
        """
        axes = tuple(axes)
        exprs = tuple(as_expr(c) for c in coordinates)
        extents = tuple(as_expr(e) for e in shape)
        if len(exprs) != len(extents):
            raise AccessError(f"{len(exprs)} coordinates are given for a tensor of {len(extents)} dimensions")
        steps = _packed_strides(extents) if strides is None else tuple(as_expr(s) for s in strides)
        if len(steps) != len(extents):
            raise AccessError(f"{len(steps)} strides are given for a tensor of {len(extents)} dimensions")
        for axis in axes:
            if axis.lower is not ZERO or axis.upper is None:
                raise AccessError(f"axis {axis} must run from 0 to an extent: make it by index({axis.name!r}, extent)")
        bounds = [*conditions]
        for coordinate, size in zip(exprs, extents, strict=True):
            bounds += [coordinate >= 0, coordinate < size]
        indices = tuple((axis, axis) for axis in axes)
        names = tuple((digit_names or {}).items())
        return cls(axes, indices, exprs, extents, steps, conjuncts(bounds), digit_names=names)

    @classmethod
    def from_layout(cls, layout: Layout, axes: Iterable[Symbol]) -> Access:
        """Return the access to the elements of a layout in memory, with one of `axes` for each mode.

        The accessed tensor has one dimension: its coordinate is the layout's offset. Raise AccessError unless there is
        one axis for each mode, and the extent of each axis is the size of its mode.

        >>> from tilewright.algebra import index
        >>> print(Access.from_layout(Layout((4, (2, 4)), (2, (1, 8))), [index("i", 4), index("j", 8)]).offset)
        8*(j//2) + 2*i + j%2
        """
        axes = tuple(axes)
        if len(axes) != len(layout):
            raise AccessError(f"{layout} has {len(layout)} modes, but {len(axes)} axes are given")
        offset: Expr = ZERO
        for axis, mode in zip(axes, layout, strict=True):
            if axis.hi + 1 != mode.size():
                raise AccessError(f"axis {axis.name} has extent {axis.hi + 1}, its mode {mode} has {mode.size()}")
            offset = offset + mode(axis)
        return cls.of((offset,), axes, (layout.cosize(),), (1,))

    # -- properties -------------------------------------------------------------------------------

    @cached_property
    def offset(self) -> Expr:
        """Return the expression of the element's offset in memory, in elements, before the swizzle."""
        parts = []
        for coordinate, stride in zip(self.coordinates, self.strides, strict=True):
            numeric = isinstance(stride, Const)
            parts.append((coordinate, int(stride)) if numeric else (multiply(coordinate, stride), 1))
        return weighted_sum(0, parts)

    @cached_property
    def conditions(self) -> tuple[Expr, ...]:
        """Return all conditions of the access: those of the domain (iteration space), then those of the bounds."""
        return self.domain + self.bounds

    @cached_property
    def congruences(self) -> tuple[Expr, ...]:
        """Return the bounds that are congruences, x % s == 0; gradients of strided convolutions have them."""
        return tuple(b for b in self.bounds if isinstance(b, IsZero) and isinstance(b.operand, Mod))

    @cached_property
    def divisions(self) -> tuple[Expr, ...]:
        """Return the coordinates and conditions in which // or % divides an expression that contains an axis.

        A congruence x % s == 0 of a sum x, such as (h - r) % 2 == 0, does not count. The access is not in normal form
        while the result is not empty.
        """
        counted = [c for c in self.conditions if c not in self.congruences or _divides_an_axis(c)]
        return tuple(e for e in (*self.coordinates, *counted) if has_division(e, self.axes))

    def axis(self, name: str | Symbol) -> Symbol:
        """Return the axis symbol called `name`; `name` may also be the symbol itself. Raise AccessError if no axis has
        this name.
        """
        for axis in self.axes:
            if axis is name or axis.name == name:
                return axis
        raise AccessError(f"there is no axis {name}; there are {', '.join(a.name for a in self.axes)}")

    def at(self, values: Mapping[Any, Any]) -> tuple[Any, Any, Any]:
        """Return (offset, in_domain, in_bounds) at one point of the iteration space; the last two are 0 or 1.

        The offset is in elements, after the swizzle. `values` maps axes (or their names) and sizes that are still
        symbols to ints, or to numpy arrays for many points at once. Raise ExpressionError if a symbol has no value, and
        OutOfRange for a value outside an axis.

        >>> from tilewright.algebra import index
        >>> i = index("i", 4)
        >>> Access.of((i - 1,), axes=(i,), shape=(3,)).at({"i": 0})
        (-1, 1, 0)
        """
        offset = evaluate(self.offset, values)
        if self.swizzle is not None:
            offset = self.swizzle(offset)
        return offset, evaluate(all_of(*self.domain), values), evaluate(all_of(*self.bounds), values)

    # -- operations -------------------------------------------------------------------

    def substitute(self, values: Mapping[Any, ExprLike]) -> Access:
        """Return the access with symbols replaced: `values` is {symbol or name: replacement}; a replacement is an int
        or an expression.

        An axis that is replaced by a symbol becomes that symbol; an axis that is replaced by anything else is no longer
        an axis. Conditions that now always hold are dropped.
        """
        return self.rebuilt(Substitution(values))

    def rebuilt(self, images: Substitution, **changes: Any) -> Access:
        """Return the access with every expression e in it replaced by images(e); the conditions are simplified anew.

        An axis whose image is a symbol becomes that symbol; an axis with another image is dropped from the axes.
        `changes` are values for fields of the result, by field name: they are set as given, without replacements.
        """
        axes = [images(a) for a in self.axes]
        fields: dict[str, Any] = {
            "axes": tuple(a for a in axes if isinstance(a, Symbol)),
            "indices": tuple((i, images(e)) for i, e in self.indices),
            "coordinates": tuple(images(c) for c in self.coordinates),
            "shape": tuple(images(e) for e in self.shape),
            "strides": tuple(images(e) for e in self.strides),
            "bounds": conjuncts(images(b) for b in self.bounds),
            "domain": conjuncts(images(d) for d in self.domain),
            "columns": tuple(c for c in map(images, self.columns) if isinstance(c, Symbol)),
        }
        return replace(self, **(fields | changes))

    def normalise(self, digit_names: Mapping[str, access_normal.Names] | None = None) -> Access:
        """Return the normal form: flat indices are replaced by digits (mixed-radix parts), so that no // or % is left.

        If there is no normal form, return the access unchanged but for the field `general`, which gets the reason.
        `digit_names` is {axis name: names of the digits of the axis, slowest first}; it overrides the field
        `digit_names`. Digits of an axis in neither are numbered: m_2, m_1, m_0. Raise AccessError if the number of
        names is wrong, or if an axis has such a name already.
        """
        return access_normal.normalise(self, digit_names or {})

    def cut(self, axis: Any, size: ExprLike, how: Literal["box", "extend", "table"] = "box") -> Access:
        """Return the access with an axis q split into tiles of `size` values: q = size*q_o + q_i, with new axes q_o and
        q_i.

        `axis` is a name, or a tuple of names, slowest first, of axes that are fused before the split. `how` says what
        happens if the size does not divide the extents: with "box" the last tile is smaller; with "extend" axes are
        padded until tiles fit; with "table" values that depend on the fused axis are looked up in a table. Raise
        AccessError if the split is not possible; `access_cut.cut` has the details and examples.
        """
        return access_cut.cut(self, axis, size, how)

    def phases(self) -> list[tuple[dict[str, int], Access]]:
        """Split the access by residues, so that no congruence is left; return pairs (residues, access).

        A congruence is a bound x % s == 0, as in the gradient of a strided convolution. `residues` is {axis name:
        residue}; the access of the pair covers only the points at which each of these axes has its residue. Residues of
        an axis run from 0 to step - 1, where step = s / gcd(s, coefficient of the axis in x); an axis in several
        congruences has the least common multiple of their steps, and axes with step 1 are left out. There is one pair
        for each combination of residues that satisfies all congruences and has points. Raise AccessError if an x is not
        linear in the axes, or if a number of a congruence is symbolic.
        """
        return access_cut.phases(self)

    def layout(self) -> Layout | ComposedLayout:
        """Normalise the access and return it as a layout, with one mode for each index that the access was written
        with.

        The result is a ComposedLayout if there is a swizzle or a constant offset. Raise AccessError if a size is not a
        number, if a bound or domain condition remains, or if the offset is not linear in the axes.
        """
        return access_normal.layout_of(self)

    def __str__(self) -> str:
        axes = ", ".join(f"{a.name} {extent_of(a)}" for a in self.axes)
        swizzle = "" if self.swizzle is None else f"{self.swizzle} o "
        lines = [f"({axes}) -> {swizzle}{self.offset}"]
        lines += [f"  {i.name} = {e}" for i, e in self.indices if i.name != str(e)]
        lines += [f"  table {c.name} = {c.definition}" for c in self.columns]
        if self.domain:
            lines.append("  only where " + " and ".join(sorted(str(d) for d in self.domain)))
        if ZERO in self.bounds:
            lines.append("  never inside memory")
        elif self.bounds:
            lines.append("  inside memory where " + " and ".join(sorted(str(b) for b in self.bounds)))
        if self.general:
            lines.append(f"  general: {self.general}")
        return "\n".join(lines)


def _divides_an_axis(congruence: Expr) -> bool:
    """Return True if the dividend x of `congruence`, a condition x % s == 0, is not a sum.

    `normalise` then replaces the axis in x by digits, as for other divisions; it leaves a congruence of a sum
    unchanged.
    """
    node = congruence.parts[0]
    return isinstance(node, Mod) and not isinstance(node.left, Sum)


def extent_of(axis: Symbol) -> Expr:
    """Return the number of values of an axis: its upper limit plus 1. Raise AccessError if the axis has no
    upper limit.
    """
    if axis.upper is None:
        raise AccessError(f"axis {axis} has no extent")
    return axis.upper + 1


def _packed_strides(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Return the strides of a packed tensor of this shape, last dimension fastest."""
    strides: list[Expr] = []
    stride: Expr = as_expr(1)
    for size in reversed(shape):
        strides.append(stride)
        stride = stride * size
    return tuple(reversed(strides))
