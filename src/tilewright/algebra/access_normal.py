"""The normal form of an access: digits instead of // and %, swizzles instead of xor; and the layout it may be.

The rules: all divisors of one flat index must form a chain 1 | d1 | d2 | ...; then the index is the sum of its
digits, index = t0 + d1*t1 + d2*t2 + ..., with 0 <= t0 < d1, 0 <= t1 < d2/d1, and so on, and every // and % of it is
linear in them. If the last divisor does not divide the extent, `index < extent` stays as a condition of the
domain. Without a chain the access is general, and says which two divisors are to blame.
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
    """The normal form of the access, or the access with the reason why it is general."""
    names = dict(access.digit_names) | dict(digit_names)
    if ZERO in access.bounds:  # never in memory: the coordinates do not matter
        return replace(access, coordinates=(ZERO,) * len(access.coordinates), bounds=(ZERO,))
    done = _discharge_exact(access)
    for _ in range(len(access.axes) + 4):  # a digit may be divided again: each round splits further
        if not done.divisions:
            break
        divided = _divisors(done)
        fault = _fault(divided)
        if fault or not divided:
            return replace(access, general=fault or _irregular(done))
        done = _discharge_exact(_to_digits(done, divided, names))
    if done.divisions:
        return replace(access, general=_irregular(done))
    done = _to_swizzle(done)
    return done if done.general else _drop_implied(done)


def _irregular(access: Access) -> str:
    for e in access.divisions:
        for node in e.walk():
            if isinstance(node, FloorDiv | Mod) and not isinstance(node.left, Symbol):
                return f"{node} divides a sum that has no digits"
    return f"{access.divisions[0]} has no digits"


# -- digits -------------------------------------------------------------------------------------------


def _divisors(access: Access) -> dict[Symbol, list[Expr]]:
    """By axis, what it is divided by: c for x//c, d for x%d, c*d for (x//c)%d."""
    found: dict[Symbol, list[Expr]] = {}
    axes = set(access.axes)
    seen: set[Expr] = set()
    for e in (*access.coordinates, *access.conditions):
        for node in e.divisions(seen):
            divided, divisor = node.left, node.right
            if isinstance(divided, FloorDiv) and isinstance(node, Mod):
                divisor = multiply(divided.right, divisor)
                divided = divided.left
            if isinstance(divided, Symbol) and divided in axes:
                known = found.setdefault(divided, [])
                if divisor not in known:
                    known.append(divisor)
    for axis, divisors in found.items():
        found[axis] = _ascending(divisors)
    return found


def _ascending(divisors: list[Expr]) -> list[Expr]:
    """By size where these are numbers, otherwise each after those that divide it."""
    if all(isinstance(d, Const) for d in divisors):
        return sorted(divisors, key=int)
    return sorted(divisors, key=lambda d: sum(quotient_of(d, other) is not None for other in divisors))


def _fault(divided: dict[Symbol, list[Expr]]) -> str | None:
    """Which two divisors of one axis do not form a chain, in words."""
    for axis, divisors in divided.items():
        for small, large in pairwise(divisors):
            if quotient_of(large, small) is None:
                return f"{axis.name} is divided by {small} and by {large}: neither divides the other"
    return None


def _to_digits(access: Access, divided: dict[Symbol, list[Expr]], names: Mapping[str, Names]) -> Access:
    images: dict[Symbol, Expr] = {}
    axes: list[Symbol] = []
    domain: list[Expr] = []
    taken = {a.name for a in access.axes}
    for axis in access.axes:
        divisors = divided.get(axis)
        if divisors is None or axis.upper is None:
            axes.append(axis)
            continue
        extent = axis.upper + 1
        weights = [ONE, *divisors]
        ends = [*divisors, extent]
        extents = [quotient_of(end, weight) for weight, end in zip(weights, ends, strict=True)]
        chosen = _names(axis, weights, names.get(axis.name), taken)
        digits: list[Expr] = []
        for name, size, weight, end in zip(chosen, extents, weights, ends, strict=True):
            digits.append(_axis(name, ceildiv(end, weight) if size is None else size))
        images[axis] = add_all(multiply(d, w) for d, w in zip(digits, weights, strict=True))
        axes += [d for d in reversed(digits) if isinstance(d, Symbol)]
        if extents[-1] is None:
            domain.append(images[axis] < extent)
    done = access.rebuilt(Substitution(images), axes=tuple(axes))
    return replace(done, domain=conjuncts([*done.domain, *domain]))


def _axis(name: str, extent: Expr) -> Expr:
    """An axis of that extent; the number 0 if it has one value only."""
    return ZERO if extent is ONE else index(name, extent)


def _names(axis: Symbol, weights: list[Expr], given: Names | None, taken: set[str]) -> list[str]:
    """Names of the digits, fastest first: by weight where extents were given too, otherwise by place."""
    numbered = [f"{axis.name}_{i}" for i in range(len(weights))]
    if given is None:
        return numbered
    if isinstance(given, Mapping):
        by_weight: dict[Expr, str] = {}
        running: Expr = ONE
        for name, extent in reversed(list(given.items())):
            if extent is not ONE:
                by_weight.setdefault(running, name)
            running = multiply(running, extent)
        chosen = [by_weight.get(weight, number) for weight, number in zip(weights, numbered, strict=True)]
    else:
        chosen = list(reversed(tuple(given)))
        if len(chosen) != len(weights):
            raise AccessError(f"axis {axis.name} has {len(weights)} digits, but the names given are {tuple(given)}")
    clash = taken & set(chosen)
    if clash:
        raise AccessError(f"digits of {axis.name} cannot be named {', '.join(sorted(clash))}: that axis exists")
    return chosen


# -- congruences ----------------------------------------------------------------------------------------


def _discharge_exact(access: Access) -> Access:
    """Where x % s == 0 is a bound, x // s is exact: (x / s). What is no sum has digits instead."""
    images: dict[Expr, Expr] = {}
    for bound in access.congruences:
        node = bound.parts[0]
        if isinstance(node, Mod) and isinstance(node.left, Sum):
            images[node.left // node.right] = exact_divide(node.left, node.right)
    if not images:
        return access
    replacement = Substitution({})
    replacement.done.update(images)
    for bound in access.congruences:  # these stay as they are
        replacement.done[bound] = bound
    done = access.rebuilt(replacement)
    return replace(done, bounds=conjuncts(_without_fractions(b) for b in done.bounds))


def _without_fractions(bound: Expr) -> Expr:
    """X / s + y >= 0 as x + s*y >= 0: bounds must have a value also where a congruence fails."""
    if not isinstance(bound, AtLeastZero):
        return bound
    operand = bound.operand
    for term, _ in linear(operand)[1]:
        for factor in factors_of(term):
            if isinstance(factor, Exact):
                operand = multiply(operand, factor.right)
    return at_least_zero(operand)


def _drop_implied(access: Access) -> Access:
    """Bounds that follow from the domain: outside it nothing is read."""
    facts = [d.operand for d in access.domain if isinstance(d, AtLeastZero)]
    if not facts:
        return access
    kept = [b for b in access.bounds if not (isinstance(b, AtLeastZero) and is_nonneg(b.operand, facts))]
    return replace(access, bounds=tuple(kept))


# -- swizzles -------------------------------------------------------------------------------------------


def _to_swizzle(access: Access) -> Access:
    """An xor of power-of-two digits becomes a swizzle of the offset; any other makes the access general."""
    xors = {node for c in access.coordinates for node in c.walk() if isinstance(node, Xor)}
    if not xors:
        return access
    if len(xors) > 1:
        return replace(access, general=f"it has {len(xors)} different xors; one can become a swizzle")
    (xor,) = xors
    for changed, source in ((xor.left, xor.right), (xor.right, xor.left)):
        plain = Substitution({})
        plain.done[xor] = changed
        candidate = access.rebuilt(plain)
        swizzle = _matching_swizzle(candidate, changed, source)
        if swizzle is not None:
            return replace(candidate, swizzle=swizzle)
    return replace(access, general=f"{xor} is not an xor of power-of-two digits of the offset")


def _matching_swizzle(access: Access, changed: Expr, source: Expr) -> Swizzle | None:
    """The swizzle that xors digit `source` onto digit `changed`, if the offset's bits show both digits."""
    if not isinstance(changed, Symbol) or changed not in access.axes:
        return None
    form = linear_form(access.offset, access.axes)
    if form is None:
        return None
    fields: dict[Symbol, tuple[int, int]] = {}  # axis -> (lowest bit, one past the highest)
    for axis, stride in form[0].items():
        if not isinstance(stride, Const) or not _is_power(stride.value) or not _is_power(int(axis.hi) + 1):
            return None
        low = stride.value.bit_length() - 1
        fields[axis] = (low, low + int(axis.hi).bit_length())
    ordered = sorted(fields.values())
    if any(a[1] > b[0] for a, b in pairwise(ordered)) or changed not in fields:
        return None
    wanted = linear_form(source, access.axes)
    if wanted is None or not isinstance(wanted[1], Const) or wanted[1].value != 0 or len(wanted[0]) != 1:
        return None
    ((digit, step),) = wanted[0].items()
    if step is not ONE or digit not in fields:
        return None
    base, top = fields[changed]
    bits = fields[digit][1] - fields[digit][0]
    shift = fields[digit][0] - base
    period = 1 << max(top, fields[digit][1])
    constant = form[1]
    if not isinstance(constant, Const) or constant.value % period != 0 or bits > top - base or abs(shift) < bits:
        return None
    return Swizzle(bits, base if shift > 0 else base + shift, shift)


def _is_power(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


# -- layouts --------------------------------------------------------------------------------------------


def layout_of(access: Access) -> Layout | ComposedLayout:
    """The layout with one mode for each index of the access, or an AccessError that says why there is none."""
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
    modes = [_mode(i, e, strides) for i, e in normal.indices]
    layout = modes[0] if len(modes) == 1 else make_layout(modes)
    offset = _number(start, "the start")
    if normal.swizzle is None and offset == 0:
        return layout
    return ComposedLayout(normal.swizzle, offset, layout)


def _mode(name: Symbol, value: Expr, strides: dict[Symbol, Expr]) -> Layout:
    """The mode of one index: its digits, fastest first."""
    form = linear_form(value, value.symbols)
    if form is None or form[1] is not ZERO:
        raise AccessError(f"there is no layout: {name.name} = {value} is not a sum of digits")
    digits = sorted(form[0], key=lambda d: _number(form[0][d], f"the weight of {d}"))
    running = 1
    for digit in digits:
        if _number(form[0][digit], f"the weight of {digit}") != running:
            raise AccessError(f"there is no layout: the digits of {name.name} = {value} leave gaps")
        running *= int(digit.hi) + 1
    if not digits:
        return Layout(1, 0)
    extents = tuple(int(d.hi) + 1 for d in digits)
    steps = tuple(_number(strides.get(d, ZERO), f"the stride of {d}") for d in digits)
    return coalesce(Layout(extents, steps))


def _number(e: Expr, what: str) -> int:
    if not isinstance(e, Const):
        raise AccessError(f"there is no layout: {what} is {e}, not a number")
    return e.value
