"""Cutting the axes of an access into tiles, splitting congruences into phases, joining digits.

A cut replaces an axis q by size*q_o + q_i. No cut brings a // or % into the access. Where the size and the
extents do not divide each other, `how` says what is done about it:

- "box": the tile is a box over the digits; the last tile is smaller (`domain` says where it ends).
- "extend": a digit's radix is enlarged until the tile fits; the surplus points are outside the domain.
- "table": the fused axis is cut as one flat index, and what depends on it is decoded once a task into
  table columns: symbols whose definitions hold the divisions.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product as combinations
from math import gcd, lcm
from typing import TYPE_CHECKING, Any

from tilewright.algebra.expr import (
    ONE,
    ZERO,
    AtLeastZero,
    Const,
    Expr,
    ExprLike,
    IsZero,
    Mod,
    Symbol,
    as_expr,
    index,
    symbol,
)
from tilewright.algebra.expr_conditions import at_least_zero, conjuncts, is_zero
from tilewright.algebra.expr_divide import quotient_of
from tilewright.algebra.expr_rules import add_all, linear, multiply, scale
from tilewright.algebra.expr_use import Substitution, ceildiv, linear_form
from tilewright.errors import AccessError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.algebra.access import Access


def cut(access: Access, axis: Any, size: ExprLike, how: str) -> Access:
    """The access with an axis (a name, or a tuple of names, slowest first) cut into tiles of `size`.

    >>> from tilewright.algebra import Access, index
    >>> p, q = index("p", 3), index("q", 14)
    >>> x = Access.of((p, q), axes=(p, q), shape=(3, 14))
    >>> print(x.cut("q", 4))
    (p 3, q_o 4, q_i 4) -> 14*p + 4*q_o + q_i
      q = 4*q_o + q_i
      only where 4*q_o + q_i <= 13
    >>> print(x.cut(("p", "q"), 32, how="extend"))
    (p_o 2, p_i 2, q 16) -> 28*p_o + 14*p_i + q
      p = 2*p_o + p_i
      only where 2*p_o + p_i <= 2 and q <= 13
    >>> print(x.cut(("p", "q"), 8, how="table"))
    (p_q_o 6, p_q_i 8) -> p_q_t0
      p = (8*p_q_o + p_q_i)//14
      q = (8*p_q_o + p_q_i)%14
      table p_q_t0 = 8*p_q_o + p_q_i
      only where 8*p_q_o + p_q_i <= 41
    """
    size = as_expr(size)
    names = axis if isinstance(axis, tuple | list) else (axis,)
    digits = [access.axis(name) for name in names]
    if size.lo < 1:
        raise AccessError(f"a tile of size {size} for axis {_joined(digits)}: it must be at least 1")
    if how not in ("box", "extend", "table"):
        raise AccessError(f'how={how!r}: a cut is "box", "extend" or "table"')
    if how == "table":
        return _cut_table(access, digits, size)
    if access.general:
        raise AccessError(f'axis {_joined(digits)} can only be cut with how="table": {access.general}')
    if access.divisions:
        raise AccessError(f"normalise the access before cutting it: {access.divisions[0]} is left")
    return _cut_box(access, digits, size) if how == "box" else _cut_extended(access, digits, size)


def _joined(digits: Sequence[Symbol]) -> str:
    return ", ".join(d.name for d in digits)


def _extent(axis: Symbol) -> Expr:
    from tilewright.algebra.access import extent_of

    return extent_of(axis)


# -- box and extend -------------------------------------------------------------------------------------


def _cut_box(access: Access, digits: list[Symbol], size: Expr) -> Access:
    """Whole digits go into the tile from the fastest on; the first that does not fit whole is cut."""
    left = size
    for digit in reversed(digits):
        extent = _extent(digit)
        if len(digits) == 1:
            return _split(access, digit, left)
        whole = quotient_of(left, extent)
        if whole is ONE:
            return access
        if whole is not None:
            left = whole
            continue
        if quotient_of(extent, left) is not None or left.hi <= extent.lo:
            return _split(access, digit, left)
        sizes = ", ".join(f"{d.name} {_extent(d)}" for d in digits)
        raise AccessError(f'a tile of {size} is no box over ({sizes}): cut its digits, or say how="extend" or "table"')
    raise AccessError(f"a tile of {size} is larger than the axis ({_joined(digits)})")


def _cut_extended(access: Access, digits: list[Symbol], size: Expr) -> Access:
    """Enlarges digits, from the fastest on, until the tile is a box; surplus points leave the domain."""
    left = size
    for digit in reversed(digits):
        extent = _extent(digit)
        if digit is digits[0]:
            return _split(access, digit, left)
        whole = quotient_of(left, extent)
        if whole is None and not (isinstance(left, Const) and isinstance(extent, Const)):
            if left.hi <= extent.lo or quotient_of(extent, left) is not None:
                return _split(access, digit, left)
            raise AccessError(
                f"axis {digit.name} cannot be extended: whether its extent {extent} is below {left} is not known"
            )
        if whole is None:
            radix = _radix(int(extent), int(left))
            if radix > int(left):
                return _split(access, digit, left)
            access = _enlarge(access, digit, as_expr(radix))
            whole = as_expr(int(left) // radix)
        if whole is ONE:
            return access
        left = whole
    raise AssertionError("the slowest digit is always split")


def _radix(extent: int, size: int) -> int:
    """The smallest radix >= extent that divides size or is a multiple of it."""
    radix = extent
    while size % radix != 0 and radix % size != 0:
        radix += 1
    return radix


def _enlarge(access: Access, digit: Symbol, radix: Expr) -> Access:
    """The access with a digit running over more values; those beyond its extent are outside the domain."""
    wide = index(digit.name, radix)
    return _replace_axis(access, digit, [wide], wide, [wide < _extent(digit)])


def _split(access: Access, digit: Symbol, size: Expr) -> Access:
    """The digit as size*outer + inner; a ragged last tile ends where the domain does."""
    extent = _extent(digit)
    count = quotient_of(extent, size)
    outer = _tile_axis(_fresh(access, f"{digit.name}_o"), ceildiv(extent, size) if count is None else count)
    inner = _tile_axis(_fresh(access, f"{digit.name}_i"), size)
    value = add_all([multiply(outer, size), inner])
    domain = [value < extent] if count is None else []
    return _replace_axis(access, digit, [a for a in (outer, inner) if isinstance(a, Symbol)], value, domain)


def _tile_axis(name: str, extent: Expr) -> Expr:
    return ZERO if extent is ONE else index(name, extent)


def _fresh(access: Access, name: str) -> str:
    """The name, or the name with a number, whichever no axis has."""
    taken = {a.name for a in access.axes}
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name}{number}", number + 1
    return candidate


def _replace_axis(access: Access, old: Symbol, new: list[Symbol], value: Expr, domain: list[Expr]) -> Access:
    axes: list[Symbol] = []
    for a in access.axes:
        axes += new if a is old else [a]
    done = access.rebuilt(Substitution({old: value}), axes=tuple(axes))
    return replace(done, domain=conjuncts([*done.domain, *domain]))


# -- table ------------------------------------------------------------------------------------------------


def _cut_table(access: Access, digits: list[Symbol], size: Expr) -> Access:
    """Cuts the flat index of the digits, and gathers all that depends on it in columns."""
    total: Expr = ONE
    weights: dict[Symbol, Expr] = {}
    for digit in reversed(digits):
        weights[digit] = total
        total = multiply(total, _extent(digit))
    name = "_".join(d.name for d in digits)
    outer = _tile_axis(_fresh(access, f"{name}_o"), ceildiv(total, size))
    inner = _tile_axis(_fresh(access, f"{name}_i"), size)
    flat = add_all([multiply(outer, size), inner])
    values = {d: (flat // w) % _extent(d) for d, w in weights.items() if d is not digits[0]}
    decoded = Substitution(values | {digits[0]: flat // weights[digits[0]]})
    known = [c for c in map(decoded, access.columns) if isinstance(c, Symbol)]
    columns = _Columns(name, set(digits), decoded, known)

    axes: list[Symbol] = []
    for a in access.axes:
        if a is digits[-1]:
            axes += [t for t in (outer, inner) if isinstance(t, Symbol)]
        elif a not in digits:
            axes.append(a)
    ragged = [] if quotient_of(total, size) is not None else [flat < total]
    return replace(
        access,
        axes=tuple(axes),
        indices=tuple((i, decoded(e)) for i, e in access.indices),
        # a column holds what the whole offset owes to the flat index: the tensor counts as one dimension now
        coordinates=(columns.gather(access.offset),),
        shape=(add_all([ONE, *(multiply(e - 1, s) for e, s in zip(access.shape, access.strides, strict=True))]),),
        strides=(ONE,),
        bounds=conjuncts(columns.gather_condition(b) for b in access.bounds),
        domain=conjuncts([*(columns.gather_condition(d) for d in access.domain), *ragged]),
        columns=tuple(columns.made),
        general=None,
    )


class _Columns:
    """The table columns of one cut: one for each different part of an expression that the flat index decides."""

    def __init__(self, name: str, digits: set[Symbol], decoded: Substitution, made: list[Symbol]):
        self.name, self.digits, self.decoded, self.made = name, digits, decoded, made

    def gather(self, e: Expr) -> Expr:
        constant, terms = linear(e)
        of_table = []
        rest: list[Expr] = [as_expr(constant)]
        for t, c in terms:
            if not t.symbols & self.digits:
                rest.append(scale(self.decoded(t), c))
                continue
            foreign = [s for s in t.symbols - self.digits if s.lower is ZERO]
            if foreign:
                raise AccessError(
                    f"no table over {self.name}: the term {scale(t, c)} also depends on {foreign[0].name}"
                )
            of_table.append(scale(t, c))
        return add_all([self.column(add_all(of_table)), *rest] if of_table else rest)

    def gather_condition(self, condition: Expr) -> Expr:
        if not condition.symbols & self.digits:
            return self.decoded(condition)
        if isinstance(condition, AtLeastZero):
            return at_least_zero(self.gather(condition.operand))
        if isinstance(condition, IsZero):
            return is_zero(self.column(condition.operand)) if self.only(condition) else self.congruence(condition)
        raise AccessError(f"no table over {self.name}: the condition {condition} is not a comparison")

    def only(self, e: Expr) -> bool:
        return not any(s.lower is ZERO for s in e.symbols - self.digits)

    def congruence(self, condition: IsZero) -> Expr:
        node = condition.operand
        if not isinstance(node, Mod):
            raise AccessError(f"no table over {self.name}: the condition {condition} is not a congruence")
        return is_zero(self.gather(node.left) % node.right)

    def column(self, part: Expr) -> Expr:
        definition = self.decoded(part)
        opposite = scale(definition, -1)
        for known in self.made:
            if known.definition is definition:
                return known
            if known.definition is opposite:
                return scale(known, -1)
        made = symbol(f"{self.name}_t{len(self.made)}", definition=definition)
        self.made.append(made)
        return made


# -- phases -----------------------------------------------------------------------------------------------


def phases(access: Access) -> list[tuple[dict[str, int], Access]]:
    """The access split by residues: every digit in a congruence becomes step*outer + residue, residue fixed.

    Only combinations that satisfy every congruence are kept, so that none is left. Each comes with the residues
    it stands for. An access without congruences has one phase.

    >>> from tilewright.algebra import Access, eq, index
    >>> h, r = index("h", 6), index("r", 3)                  # dy[(h - r) / 2], a gradient with stride 2
    >>> dy = Access.of(((h - r) // 2,), axes=(h, r), shape=(3,), conditions=[eq((h - r) % 2, 0)])
    >>> for residues, phase in dy.normalise().phases():
    ...     print(residues, phase.offset)
    {'h': 0, 'r': 0} h_o - r_o
    {'h': 1, 'r': 1} h_o
    """
    congruences = [_linear_congruence(access, bound) for bound in access.congruences]
    steps: dict[Symbol, int] = {}
    for coefficients, _, modulus in congruences:
        for axis, coefficient in coefficients.items():
            steps[axis] = lcm(steps.get(axis, 1), modulus // gcd(modulus, coefficient))
    steps = {axis: step for axis, step in steps.items() if step > 1}
    found = []
    for combination in combinations(*[range(step) for step in steps.values()]):
        residues = dict(zip(steps, combination, strict=True))
        if any(
            (constant + sum(c * residues.get(axis, 0) for axis, c in coefficients.items())) % modulus
            for coefficients, constant, modulus in congruences
        ):
            continue
        phase = access
        for axis, residue in residues.items():
            phase = _fix_residue(phase, axis, steps[axis], residue)
        if ZERO not in phase.conditions:
            found.append(({axis.name: residue for axis, residue in residues.items()}, phase))
    return found


def _linear_congruence(access: Access, bound: Expr) -> tuple[dict[Symbol, int], int, int]:
    """(coefficients, constant, modulus) of a congruence: their sum is a multiple of the modulus."""
    node = bound.parts[0]
    form = linear_form(node.left, access.axes) if isinstance(node, Mod) else None
    if not isinstance(node, Mod) or form is None:
        raise AccessError(f"the congruence {bound} is not linear in the axes")
    numbers = [*form[0].values(), form[1], node.right]
    for number in numbers:
        if not isinstance(number, Const):
            raise AccessError(f"the congruence {bound} depends on {number}: bind its symbols first")
    return {axis: int(c) for axis, c in form[0].items()}, int(form[1]), int(node.right)


def _fix_residue(access: Access, axis: Symbol, step: int, residue: int) -> Access:
    """The points of the access at which axis == step*outer + residue."""
    extent = _extent(axis)
    count = ceildiv(extent - residue, step)
    if count.hi < 1:
        return replace(access, domain=(ZERO,))
    outer = ZERO if count is ONE else index(_fresh(access, f"{axis.name}_o"), count)
    value = add_all([scale(outer, step), as_expr(residue)])
    return _replace_axis(access, axis, [outer] if isinstance(outer, Symbol) else [], value, [])


# -- joining ------------------------------------------------------------------------------------------------


def why_not_join(accesses: Sequence[Access], outer: str, inner: str) -> str | None:
    """Why two digits cannot become one axis in all these accesses; None if they can.

    They can when every access moves as far for one step of `outer` as for a whole round of `inner`, in its
    offset and in every condition.

    >>> from tilewright.algebra import Access, index
    >>> p, q, c = index("p", 3), index("q", 4), index("c", 5)
    >>> packed = Access.of((p, q, c), axes=(p, q, c), shape=(3, 4, 5))
    >>> padded = Access.of((p, q, c), axes=(p, q, c), shape=(3, 6, 5))
    >>> why_not_join([packed], "p", "q") is None
    True
    >>> why_not_join([packed, padded], "p", "q")
    'p steps by 30, a round of q by 20'
    """
    for access in accesses:
        names = {a.name for a in access.axes}
        if outer not in names and inner not in names:
            continue
        if outer not in names or inner not in names:
            return f"{outer if outer in names else inner} is used alone"
        slow, fast = access.axis(outer), access.axis(inner)
        for e in (access.offset, *(c.parts[0] for c in access.conditions)):
            form = linear_form(e, (slow, fast))
            if form is None:
                return f"{e} is not linear in {outer} and {inner}"
            step = form[0].get(slow, ZERO)
            round_ = multiply(form[0].get(fast, ZERO), _extent(fast))
            if step is not round_:
                return f"{outer} steps by {step}, a round of {inner} by {round_}"
    return None


def join(access: Access, outer: str, inner: str, name: str) -> Access:
    """The access with two digits made one axis; raises where they do not join.

    >>> from tilewright.algebra import Access, index
    >>> p, q = index("p", 3), index("q", 4)
    >>> print(join(Access.of((p, q), axes=(p, q), shape=(3, 4)), "p", "q", "m"))
    (m 12) -> m
      p = m//4
      q = m%4
    """
    reason = why_not_join([access], outer, inner)
    if reason:
        raise AccessError(f"{outer} and {inner} do not join: {reason}")
    slow, fast = access.axis(outer), access.axis(inner)
    joined = index(name, multiply(_extent(slow), _extent(fast)))
    images = Substitution({slow: joined // _extent(fast), fast: joined % _extent(fast)})
    axes = [joined if a is slow else a for a in access.axes if a is not fast]
    return access.rebuilt(images, axes=tuple(axes))
