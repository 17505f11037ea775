"""The normal form of an access: digits instead of // and %, swizzles instead of xor; and the layout of an access.

A digit is a mixed-radix part of a flat index. All divisors of one flat index must form a chain 1 | d1 | d2 | ...;
then the index is the sum of its digits, index = t0 + d1*t1 + d2*t2 + ..., with 0 <= t0 < d1, 0 <= t1 < d2/d1, and so
on, and every // and % of it is linear in them. If the last divisor does not divide the extent, `index < extent` stays
as a condition of the domain. Without a chain the access is general, and names two divisors that do not divide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from tilewright.algebra.compose import coalesce
from tilewright.algebra.expr import (
    ONE,
    ZERO,
    AtLeastZero,
    Const,
    Exact,
    Expr,
    FloorDiv,
    Mod,
    Sum,
    Symbol,
    Xor,
    index,
)
from tilewright.algebra.expr_conditions import at_least_zero, conjuncts
from tilewright.algebra.expr_divide import quotient_of
from tilewright.algebra.expr_prove import is_nonneg
from tilewright.algebra.expr_rules import add_all, exact_divide, factors_of, linear, multiply
from tilewright.algebra.expr_use import Substitution, ceildiv, linear_form
from tilewright.algebra.layout import Layout, make_layout
from tilewright.algebra.swizzle import ComposedLayout, Swizzle
from tilewright.errors import AccessError

if TYPE_CHECKING:
    from tilewright.algebra.access import Access


Names: TypeAlias = "Iterable[str] | Mapping[str, Expr]"
"""Names of an axis's digits, slowest first, with or without their extents."""


def normalise(access: Access, digit_names: Mapping[str, Names]) -> Access:
    """Return the normal form of the access: each axis that // or % divide is replaced by digits (mixed-radix parts).

    An xor becomes a swizzle, and bounds that the domain implies are dropped. An access that is never in bounds gets the
    coordinates 0. If there is no normal form, return the given access with the reason in the field `general`.
    `digit_names` is {axis name: names of its digits, slowest first}; it overrides the field `digit_names` of the
    access. Raise AccessError if the number of names is wrong, or if an axis has such a name already.
    """
    names = dict(access.digit_names) | dict(digit_names)
    if ZERO in access.bounds:  # never in bounds: the coordinates do not matter
        return replace(access, coordinates=(ZERO,) * len(access.coordinates), bounds=(ZERO,))
    normal = _use_exact_quotients(access)
    for _ in range(len(access.axes) + 4):  # a digit may be divided again: each iteration splits further
        if not normal.divisions:
            break
        divided = _divisors(normal)
        fault = _why_no_chain(divided)
        if fault or not divided:
            return replace(access, general=fault or _why_no_digits(normal))
        normal = _use_exact_quotients(_split_into_digits(normal, divided, names))
    if normal.divisions:
        return replace(access, general=_why_no_digits(normal))
    normal = _xor_to_swizzle(normal)
    return normal if normal.general else _drop_implied_bounds(normal)


def _why_no_digits(access: Access) -> str:
    """Return a text: why a division in the access cannot be replaced by digits (the mixed-radix parts of an index).

    `access` must still have a division after the replacement was tried. The text names the first division of a sum,
    such as `(i + j) // 3`; if there is none, the first division.
    """
    for e in access.divisions:
        for node in e.walk():
            if isinstance(node, FloorDiv | Mod) and not isinstance(node.left, Symbol):
                return f"{node} divides a sum that has no digits"
    return f"{access.divisions[0]} has no digits"


# -- digits -------------------------------------------------------------------------------------------


def _divisors(access: Access) -> dict[Symbol, list[Expr]]:
    """Return {axis: [divisor, ...]} for each axis that is divided by // or %, with divisors in ascending order.

    x // c gives the divisor c of axis x, x % d gives d, and (x // c) % d gives c*d.
    """
    divisors_of: dict[Symbol, list[Expr]] = {}
    axes = set(access.axes)
    visited: set[Expr] = set()
    for e in (*access.coordinates, *access.conditions):
        for node in e.divisions(visited):
            divided, divisor = node.left, node.right
            if isinstance(divided, FloorDiv) and isinstance(node, Mod):
                divisor = multiply(divided.right, divisor)
                divided = divided.left
            if isinstance(divided, Symbol) and divided in axes:
                known = divisors_of.setdefault(divided, [])
                if divisor not in known:
                    known.append(divisor)
    for axis, divisors in divisors_of.items():
        divisors_of[axis] = _sorted_divisors(divisors)
    return divisors_of


def _sorted_divisors(divisors: list[Expr]) -> list[Expr]:
    """Return the divisors in ascending order. If one is symbolic, they are ordered so that each follows the divisors
    that divide it.
    """
    if all(isinstance(d, Const) for d in divisors):
        return sorted(divisors, key=int)
    return sorted(divisors, key=lambda d: sum(quotient_of(d, other) is not None for other in divisors))


def _why_no_chain(divided: dict[Symbol, list[Expr]]) -> str | None:
    """Return a text that names two divisors of one axis, neither of which divides the other; None if there are none.

    `divided` is {axis: divisors in ascending order}; each divisor is compared with the next one only.
    """
    for axis, divisors in divided.items():
        for small, large in pairwise(divisors):
            if quotient_of(large, small) is None:
                return f"{axis.name} is divided by {small} and by {large}: neither divides the other"
    return None


def _split_into_digits(access: Access, divided: dict[Symbol, list[Expr]], names: Mapping[str, Names]) -> Access:
    """Return the access with each axis in `divided`, {axis: divisors in ascending order}, replaced by its digits as new
    axes.

    Divisors 4 and 12 of an axis m give m = 12*m_2 + 4*m_1 + m_0. `names` is {axis name: names of its digits}; raise
    AccessError if these do not fit (see `_digit_names`). If the last divisor does not divide the extent, `axis <
    extent` becomes a condition of the domain (iteration space). Digits of extent 1 are left out.
    """
    images: dict[Symbol, Expr] = {}
    axes: list[Symbol] = []
    domain: list[Expr] = []
    axis_names = {a.name for a in access.axes}
    for axis in access.axes:
        divisors = divided.get(axis)
        if divisors is None or axis.upper is None:
            axes.append(axis)
            continue
        extent = axis.upper + 1
        weights = [ONE, *divisors]
        ends = [*divisors, extent]
        extents = [quotient_of(end, weight) for weight, end in zip(weights, ends, strict=True)]
        digit_names = _digit_names(axis, weights, names.get(axis.name), axis_names)
        digits: list[Expr] = []
        for name, size, weight, end in zip(digit_names, extents, weights, ends, strict=True):
            digits.append(_axis_or_zero(name, ceildiv(end, weight) if size is None else size))
        images[axis] = add_all(multiply(d, w) for d, w in zip(digits, weights, strict=True))
        axes += [d for d in reversed(digits) if isinstance(d, Symbol)]
        if extents[-1] is None:
            domain.append(images[axis] < extent)
    normal = access.rebuilt(Substitution(images), axes=tuple(axes))
    return replace(normal, domain=conjuncts([*normal.domain, *domain]))


def _axis_or_zero(name: str, extent: Expr) -> Expr:
    """Return a new axis symbol `name` that runs over 0, ..., extent - 1; the number 0 if `extent` is 1."""
    return ZERO if extent is ONE else index(name, extent)


def _digit_names(axis: Symbol, weights: list[Expr], names: Names | None, axis_names: set[str]) -> list[str]:
    """Return the names of the digits of `axis`, fastest first; `weights` are the digits' weights in the flat index, 1
    first.

    `names` are the wanted names, slowest first; None gives the numbered names m_0, m_1, ... If `names` is {name:
    extent}, the extents give each name a weight, and a digit gets the name with the digit's weight; a digit whose
    weight has no name is numbered. Raise AccessError if the number of names is wrong, or if one is in `axis_names`, the
    names of all axes.
    """
    numbered = [f"{axis.name}_{i}" for i in range(len(weights))]
    if names is None:
        return numbered
    if isinstance(names, Mapping):
        by_weight: dict[Expr, str] = {}
        stride: Expr = ONE
        for name, extent in reversed(list(names.items())):
            if extent is not ONE:
                by_weight.setdefault(stride, name)
            stride = multiply(stride, extent)
        chosen = [by_weight.get(weight, number) for weight, number in zip(weights, numbered, strict=True)]
    else:
        chosen = list(reversed(tuple(names)))
        if len(chosen) != len(weights):
            raise AccessError(f"axis {axis.name} has {len(weights)} digits, but the names given are {tuple(names)}")
    clash = axis_names & set(chosen)
    if clash:
        raise AccessError(f"digits of {axis.name} cannot be named {', '.join(sorted(clash))}: that axis exists")
    return chosen


# -- congruences ----------------------------------------------------------------------------------------


def _use_exact_quotients(access: Access) -> Access:
    """Return the access with x // s replaced by the exact quotient x / s for each sum x with a congruence, a bound x %
    s == 0.

    The congruences stay; they are what makes the quotients exact. Other bounds that contain such a quotient are
    multiplied by s, so that they contain no division. A dividend x that is not a sum is left to the split into digits.
    Without a congruence of a sum the access is returned unchanged.
    """
    images: dict[Expr, Expr] = {}
    for bound in access.congruences:
        node = bound.parts[0]
        if isinstance(node, Mod) and isinstance(node.left, Sum):
            images[node.left // node.right] = exact_divide(node.left, node.right)
    if not images:
        return access
    replacement = Substitution({})
    replacement.done.update(images)
    for bound in access.congruences:  # congruences themselves stay unchanged
        replacement.done[bound] = bound
    rewritten = access.rebuilt(replacement)
    return replace(rewritten, bounds=conjuncts(_without_fractions(b) for b in rewritten.bounds))


def _without_fractions(bound: Expr) -> Expr:
    """Return the condition `bound`, of the form X / s + y >= 0, as X + s*y >= 0.

    Here X / s is an exact division, which is undefined unless s divides X; X + s*y >= 0 is always defined. s must be
    positive. Each exact division in the sum is removed in this way. A condition of another form, or without such a
    division, is returned as it is.
    """
    if not isinstance(bound, AtLeastZero):
        return bound
    operand = bound.operand
    for term, _ in linear(operand)[1]:
        for factor in factors_of(term):
            if isinstance(factor, Exact):
                operand = multiply(operand, factor.right)
    return at_least_zero(operand)


def _drop_implied_bounds(access: Access) -> Access:
    """Return the access without the bounds that provably follow from the conditions of its domain (iteration space)."""
    facts = [d.operand for d in access.domain if isinstance(d, AtLeastZero)]
    if not facts:
        return access
    needed = [b for b in access.bounds if not (isinstance(b, AtLeastZero) and is_nonneg(b.operand, facts))]
    return replace(access, bounds=tuple(needed))


# -- swizzles -------------------------------------------------------------------------------------------


def _xor_to_swizzle(access: Access) -> Access:
    """Return the access with its xor replaced by a swizzle of the offset: the field `swizzle` is set.

    The xor must combine two axes whose extents and strides are powers of two, and there may be only one; otherwise
    return the access with the reason in its field `general`. An access without xor is returned unchanged.
    """
    xors = {node for c in access.coordinates for node in c.walk() if isinstance(node, Xor)}
    if not xors:
        return access
    if len(xors) > 1:
        return replace(access, general=f"it has {len(xors)} different xors; one can become a swizzle")
    (xor,) = xors
    for target, source in ((xor.left, xor.right), (xor.right, xor.left)):
        without_xor = Substitution({})
        without_xor.done[xor] = target
        candidate = access.rebuilt(without_xor)
        swizzle = _matching_swizzle(candidate, target, source)
        if swizzle is not None:
            return replace(candidate, swizzle=swizzle)
    return replace(access, general=f"{xor} is not an xor of power-of-two digits of the offset")


def _matching_swizzle(access: Access, target: Expr, source: Expr) -> Swizzle | None:
    """Return the swizzle of the offset that has the effect of target ^ source at the axis `target`; None if there is
    none.

    In the coordinates of `access`, the plain axis `target` already stands in place of the xor. There is a swizzle only
    under these conditions. All extents and strides are powers of two, so that each axis takes a range of the offset's
    bits. No two axes share a bit. `source` is one axis, times 1 and plus 0, and has no more bits than `target`. The
    offset's constant is a multiple of 2**n, where n is above all bits of both axes.
    """
    if not isinstance(target, Symbol) or target not in access.axes:
        return None
    offset_form = linear_form(access.offset, access.axes)
    if offset_form is None:
        return None
    bit_range: dict[Symbol, tuple[int, int]] = {}  # axis -> (lowest bit, one past the highest)
    for axis, stride in offset_form[0].items():
        if (
            not isinstance(stride, Const)
            or not _is_power_of_two(stride.value)
            or not _is_power_of_two(int(axis.hi) + 1)
        ):
            return None
        low = stride.value.bit_length() - 1
        bit_range[axis] = (low, low + int(axis.hi).bit_length())
    ordered = sorted(bit_range.values())
    if any(a[1] > b[0] for a, b in pairwise(ordered)) or target not in bit_range:
        return None
    source_form = linear_form(source, access.axes)
    if (
        source_form is None
        or not isinstance(source_form[1], Const)
        or source_form[1].value != 0
        or len(source_form[0]) != 1
    ):
        return None
    ((digit, step),) = source_form[0].items()
    if step is not ONE or digit not in bit_range:
        return None
    base, top = bit_range[target]
    bits = bit_range[digit][1] - bit_range[digit][0]
    shift = bit_range[digit][0] - base
    period = 1 << max(top, bit_range[digit][1])
    constant = offset_form[1]
    if not isinstance(constant, Const) or constant.value % period != 0 or bits > top - base or abs(shift) < bits:
        return None
    return Swizzle(bits, base if shift > 0 else base + shift, shift)


def _is_power_of_two(n: int) -> bool:
    """Return True if `n` is 1, 2, 4, 8, ..."""
    return n > 0 and n & (n - 1) == 0


# -- layouts --------------------------------------------------------------------------------------------


def layout_of(access: Access) -> Layout | ComposedLayout:
    """Return the layout of the access, normalised first, with one mode for each index that the access was written with.

    The result is a ComposedLayout if there is a swizzle or a constant offset. Raise AccessError if there is no layout:
    a condition is left, the offset is not linear in the axes, or a size is symbolic.
    """
    normal = access if access.general is None and not access.divisions else normalise(access, {})
    if normal.general:
        raise AccessError(f"there is no layout: {normal.general}")
    for kind, conditions in (("bound", normal.bounds), ("domain condition", normal.domain)):
        if conditions:
            raise AccessError(f"there is no layout: the {kind} {conditions[0]} is left")
    form = linear_form(normal.offset, normal.axes)
    if form is None:
        raise AccessError(f"there is no layout: the offset {normal.offset} is not linear")
    strides, start = form
    modes = [_mode_of_index(i, e, strides) for i, e in normal.indices]
    layout = modes[0] if len(modes) == 1 else make_layout(modes)
    offset = _require_number(start, "the start")
    if normal.swizzle is None and offset == 0:
        return layout
    return ComposedLayout(normal.swizzle, offset, layout)


def _mode_of_index(name: Symbol, value: Expr, strides: dict[Symbol, Expr]) -> Layout:
    """Return the layout mode of the index symbol `name`, coalesced, with its digits fastest first.

    `value` is the index as a weighted sum of its digits; `strides` is {digit: stride in memory}. Raise AccessError if
    `value` is no such sum, if the weights leave gaps, or if a weight or stride is symbolic.
    """
    form = linear_form(value, value.symbols)
    if form is None or form[1] is not ZERO:
        raise AccessError(f"there is no layout: {name.name} = {value} is not a sum of digits")
    digits = sorted(form[0], key=lambda d: _require_number(form[0][d], f"the weight of {d}"))
    expected = 1
    for digit in digits:
        if _require_number(form[0][digit], f"the weight of {digit}") != expected:
            raise AccessError(f"there is no layout: the digits of {name.name} = {value} leave gaps")
        expected *= int(digit.hi) + 1
    if not digits:
        return Layout(1, 0)
    extents = tuple(int(d.hi) + 1 for d in digits)
    steps = tuple(_require_number(strides.get(d, ZERO), f"the stride of {d}") for d in digits)
    return coalesce(Layout(extents, steps))


def _require_number(e: Expr, what: str) -> int:
    """Return the int of the constant expression `e`. Raise AccessError for other expressions, with `what` as the name
    of `e`.
    """
    if not isinstance(e, Const):
        raise AccessError(f"there is no layout: {what} is {e}, not a number")
    return e.value
