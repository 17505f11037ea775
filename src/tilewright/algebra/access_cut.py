"""Splitting axes of an access into tiles, splitting congruences into phases, joining digits.

A cut replaces an axis q by size*q_o + q_i. No cut brings a // or % into the access. If the size and the
extents do not divide each other, `how` says what is done about it:

- "box": the tile is a box over the digits; the last tile is smaller (`domain` says where it ends).
- "extend": a digit's radix is enlarged until the tile fits; the points added thus are outside the domain.
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
    """Return the access with an axis q replaced by two axes, q_o and q_i: q = size*q_o + q_i, with 0 <= q_i < size.

    `axis` is a name, or a tuple of names, slowest first, of axes that are fused to one flat axis before the split.
    `how` says what happens if `size` does not divide the extents: "box" makes the last tile smaller, "extend" pads axes
    until a tile is a box, "table" moves the divisions by which the flat axis is decoded into table columns (symbols
    that are computed once a task). Raise AccessError if the cut is not possible, or, unless `how` is "table", if the
    access is not in normal form.

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
        raise AccessError(f"a tile of size {size} for axis {_names_text(digits)}: it must be at least 1")
    if how not in ("box", "extend", "table"):
        raise AccessError(f'how={how!r}: a cut is "box", "extend" or "table"')
    if how == "table":
        return _cut_table(access, digits, size)
    if access.general:
        raise AccessError(f'axis {_names_text(digits)} can only be cut with how="table": {access.general}')
    if access.divisions:
        raise AccessError(f"normalise the access before cutting it: {access.divisions[0]} is left")
    return _cut_box(access, digits, size) if how == "box" else _cut_extended(access, digits, size)


def _names_text(axes: Sequence[Symbol]) -> str:
    """Return the names of the axes as one text, separated by commas."""
    return ", ".join(d.name for d in axes)


def _extent(axis: Symbol) -> Expr:
    """Return the number of values of an axis: its upper limit plus 1. Raise AccessError if the axis has no
    upper limit.
    """
    from tilewright.algebra.access import extent_of

    return extent_of(axis)


# -- box and extend -------------------------------------------------------------------------------------


def _cut_box(access: Access, digits: list[Symbol], size: Expr) -> Access:
    """Return the access cut into tiles of `size` points, each a box over `digits` (the fused axes, slowest first).

    A tile contains whole axes, the fastest first, until the remaining number of points is less than the next axis or
    divides it; that axis is split, and its last tile may be smaller. With extents 3, 4 and 8 and size 16, the tile is 2
    x 8. If the tile consists of whole axes, the access is returned unchanged; a single axis is always split. Raise
    AccessError if no such box has `size` points.
    """
    remaining = size
    for digit in reversed(digits):
        extent = _extent(digit)
        if len(digits) == 1:
            return _split_digit(access, digit, remaining)
        quotient = quotient_of(remaining, extent)
        if quotient is ONE:
            return access
        if quotient is not None:
            remaining = quotient
            continue
        if quotient_of(extent, remaining) is not None or remaining.hi <= extent.lo:
            return _split_digit(access, digit, remaining)
        sizes = ", ".join(f"{d.name} {_extent(d)}" for d in digits)
        raise AccessError(f'a tile of {size} is no box over ({sizes}): cut its digits, or say how="extend" or "table"')
    raise AccessError(f"a tile of {size} is larger than the axis ({_names_text(digits)})")


def _cut_extended(access: Access, digits: list[Symbol], size: Expr) -> Access:
    """Return the access cut into tiles of `size` points, after padding axes until each tile is a box over `digits`.

    `digits` are the fused axes, slowest first. Points in the padding are outside the domain (iteration space). If the
    tile consists of whole (padded) axes, no axis is split. Raise AccessError if a symbolic extent cannot be compared
    with the size.
    """
    remaining = size
    for digit in reversed(digits):
        extent = _extent(digit)
        if digit is digits[0]:
            return _split_digit(access, digit, remaining)
        quotient = quotient_of(remaining, extent)
        if quotient is None and not (isinstance(remaining, Const) and isinstance(extent, Const)):
            if remaining.hi <= extent.lo or quotient_of(extent, remaining) is not None:
                return _split_digit(access, digit, remaining)
            raise AccessError(
                f"axis {digit.name} cannot be extended: whether its extent {extent} is below {remaining} is not known"
            )
        if quotient is None:
            radix = _smallest_radix(int(extent), int(remaining))
            if radix > int(remaining):
                return _split_digit(access, digit, remaining)
            access = _enlarge_digit(access, digit, as_expr(radix))
            quotient = as_expr(int(remaining) // radix)
        if quotient is ONE:
            return access
        remaining = quotient
    raise AssertionError("the slowest digit is always split")


def _smallest_radix(extent: int, size: int) -> int:
    """Return the smallest integer >= `extent` that divides `size` or is a multiple of `size`: extent 5,
    size 12 -> 6.
    """
    radix = extent
    while size % radix != 0 and radix % size != 0:
        radix += 1
    return radix


def _enlarge_digit(access: Access, digit: Symbol, radix: Expr) -> Access:
    """Return the access with the axis `digit` padded to `radix` values; points in the padding are
    outside the domain.
    """
    wide = index(digit.name, radix)
    return _replace_axis(access, digit, [wide], wide, [wide < _extent(digit)])


def _split_digit(access: Access, digit: Symbol, size: Expr) -> Access:
    """Return the access with the axis `digit` replaced by two new axes, outer and inner: digit = size*outer + inner.

    If `size` does not divide the extent, a new condition of the domain (iteration space) excludes the rest of the last
    tile. A new axis of extent 1 is left out.
    """
    extent = _extent(digit)
    count = quotient_of(extent, size)
    outer = _axis_or_zero(_unused_name(access, f"{digit.name}_o"), ceildiv(extent, size) if count is None else count)
    inner = _axis_or_zero(_unused_name(access, f"{digit.name}_i"), size)
    value = add_all([multiply(outer, size), inner])
    domain = [value < extent] if count is None else []
    return _replace_axis(access, digit, [a for a in (outer, inner) if isinstance(a, Symbol)], value, domain)


def _axis_or_zero(name: str, extent: Expr) -> Expr:
    """Return a new axis symbol `name` that runs over 0, ..., extent - 1; the number 0 if `extent` is 1."""
    return ZERO if extent is ONE else index(name, extent)


def _unused_name(access: Access, name: str) -> str:
    """Return `name` if no axis of the access has this name; otherwise `name` with numbers from 2 on appended until no
    axis has the result: "q_o" -> "q_o2".
    """
    axis_names = {a.name for a in access.axes}
    candidate, number = name, 2
    while candidate in axis_names:
        candidate, number = f"{name}{number}", number + 1
    return candidate


def _replace_axis(access: Access, old_axis: Symbol, new_axes: list[Symbol], value: Expr, domain: list[Expr]) -> Access:
    """Return the access with the axis `old_axis` replaced by `new_axes` in the list of axes, and by `value` in all
    expressions.

    The conditions in `domain` are added to the domain (iteration space) of the access.
    """
    axes: list[Symbol] = []
    for a in access.axes:
        axes += new_axes if a is old_axis else [a]
    replaced = access.rebuilt(Substitution({old_axis: value}), axes=tuple(axes))
    return replace(replaced, domain=conjuncts([*replaced.domain, *domain]))


# -- table ------------------------------------------------------------------------------------------------


def _cut_table(access: Access, digits: list[Symbol], size: Expr) -> Access:
    """Return the access with fused axes replaced by an outer and an inner axis: flat = size*outer + inner.

    `digits` are the fused axes, slowest first; `flat` is their flat index. Terms of the offset and of conditions that
    depend on the fused axes become table columns: symbols that are computed once a task, with the divisions of `flat`
    in their definitions. So the coordinates get no new division. The result accesses a tensor of one dimension. If
    `size` does not divide the fused extent, the domain gets the condition flat < extent. Raise AccessError if a term
    depends on the fused axes and on another axis too, or if a condition on the fused axes is neither a comparison nor a
    congruence.
    """
    extent: Expr = ONE
    weights: dict[Symbol, Expr] = {}
    for digit in reversed(digits):
        weights[digit] = extent
        extent = multiply(extent, _extent(digit))
    name = "_".join(d.name for d in digits)
    outer = _axis_or_zero(_unused_name(access, f"{name}_o"), ceildiv(extent, size))
    inner = _axis_or_zero(_unused_name(access, f"{name}_i"), size)
    flat = add_all([multiply(outer, size), inner])
    values = {d: (flat // w) % _extent(d) for d, w in weights.items() if d is not digits[0]}
    decoded = Substitution(values | {digits[0]: flat // weights[digits[0]]})
    known_columns = [c for c in map(decoded, access.columns) if isinstance(c, Symbol)]
    columns = _TableColumns(name, set(digits), decoded, known_columns)

    axes: list[Symbol] = []
    for a in access.axes:
        if a is digits[-1]:
            axes += [t for t in (outer, inner) if isinstance(t, Symbol)]
        elif a not in digits:
            axes.append(a)
    ragged = [] if quotient_of(extent, size) is not None else [flat < extent]
    return replace(
        access,
        axes=tuple(axes),
        indices=tuple((i, decoded(e)) for i, e in access.indices),
        # a column holds the terms of the whole offset in the flat index, so the tensor becomes one-dimensional
        coordinates=(columns.gather(access.offset),),
        shape=(add_all([ONE, *(multiply(e - 1, s) for e, s in zip(access.shape, access.strides, strict=True))]),),
        strides=(ONE,),
        bounds=conjuncts(columns.gather_condition(b) for b in access.bounds),
        domain=conjuncts([*(columns.gather_condition(d) for d in access.domain), *ragged]),
        columns=tuple(columns.columns),
        general=None,
    )


class _TableColumns:
    """The table columns of one cut: one for each distinct sum of terms that depends on the fused axes only.

    `name` begins the columns' names, `digits` are the fused axes, `decoded` replaces them by expressions of the flat
    index, and `columns` holds the columns so far.
    """

    def __init__(self, name: str, digits: set[Symbol], decoded: Substitution, columns: list[Symbol]):
        self.name, self.digits, self.decoded, self.columns = name, digits, decoded, columns

    def gather(self, e: Expr) -> Expr:
        """Return the expression `e` with the sum of its terms in the fused axes replaced by a table column, or by minus
        a column.

        A table column is a symbol whose value is looked up by the flat index of the fused axes. A new column is
        appended to `self.columns` if none has this sum or its negative as its value. Raise AccessError if a term
        depends on the fused axes and on another axis too.
        """
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
        """Return the condition with its terms in the fused axes replaced by table columns, as `gather` does.

        New columns are appended to `self.columns`. A condition without fused axes stays as it is. Raise AccessError if
        a condition with fused axes is neither e >= 0 nor e == 0, or for the reasons of `gather`.
        """
        if not condition.symbols & self.digits:
            return self.decoded(condition)
        if isinstance(condition, AtLeastZero):
            return at_least_zero(self.gather(condition.operand))
        if isinstance(condition, IsZero):
            return is_zero(self.column(condition.operand)) if self.only(condition) else self.congruence(condition)
        raise AccessError(f"no table over {self.name}: the condition {condition} is not a comparison")

    def only(self, e: Expr) -> bool:
        """Return True if `e` depends on no axis except the fused ones. Symbols with the lower limit 0 count as axes,
        others as sizes.
        """
        return not any(s.lower is ZERO for s in e.symbols - self.digits)

    def congruence(self, condition: IsZero) -> Expr:
        """Return the condition x % s == 0 with the terms of x in the fused axes replaced by a table column, as `gather`
        does.

        A new column may be appended to `self.columns`. Raise AccessError if the condition has another form, or for the
        reasons of `gather`.
        """
        node = condition.operand
        if not isinstance(node, Mod):
            raise AccessError(f"no table over {self.name}: the condition {condition} is not a congruence")
        return is_zero(self.gather(node.left) % node.right)

    def column(self, part: Expr) -> Expr:
        """Return the table column with the value `part`, an expression of the fused axes; or minus a column with the
        value -part.

        A column is a symbol; its definition is the expression in terms of the flat index. If `self.columns` has neither
        column, a new one is appended to it.
        """
        definition = self.decoded(part)
        opposite = scale(definition, -1)
        for known in self.columns:
            if known.definition is definition:
                return known
            if known.definition is opposite:
                return scale(known, -1)
        column = symbol(f"{self.name}_t{len(self.columns)}", definition=definition)
        self.columns.append(column)
        return column


# -- phases -----------------------------------------------------------------------------------------------


def phases(access: Access) -> list[tuple[dict[str, int], Access]]:
    """Return the access split by residues, as pairs (residues, access); `residues` is {axis name: residue}.

    A congruence is a bound x % s == 0. Each axis that matters in one is replaced by step*outer + residue, with 0 <=
    residue < step; `step` is the number of values after which the congruences repeat along the axis. There is a pair
    for each combination of residues that satisfies every congruence, and its access has no congruence left.
    Combinations without any point are left out. Without congruences there is one pair, ({}, access). Raise AccessError
    if a congruence is not linear, or if its numbers are symbolic.

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
    selected = []
    for combination in combinations(*[range(step) for step in steps.values()]):
        residues = dict(zip(steps, combination, strict=True))
        if any(
            (constant + sum(c * residues.get(axis, 0) for axis, c in coefficients.items())) % modulus
            for coefficients, constant, modulus in congruences
        ):
            continue
        phase = access
        for axis, residue in residues.items():
            phase = _select_residue(phase, axis, steps[axis], residue)
        if ZERO not in phase.conditions:
            selected.append(({axis.name: residue for axis, residue in residues.items()}, phase))
    return selected


def _linear_congruence(access: Access, bound: Expr) -> tuple[dict[Symbol, int], int, int]:
    """Return (coefficients, constant, modulus) of `bound`, a condition x % modulus == 0; coefficients is {axis: int}.

    x is constant + the sum of coefficient * axis, over axes of `access`. Raise AccessError if x is not linear, or if
    one of the numbers is symbolic.
    """
    node = bound.parts[0]
    form = linear_form(node.left, access.axes) if isinstance(node, Mod) else None
    if not isinstance(node, Mod) or form is None:
        raise AccessError(f"the congruence {bound} is not linear in the axes")
    numbers = [*form[0].values(), form[1], node.right]
    for number in numbers:
        if not isinstance(number, Const):
            raise AccessError(f"the congruence {bound} depends on {number}: bind its symbols first")
    return {axis: int(c) for axis, c in form[0].items()}, int(form[1]), int(node.right)


def _select_residue(access: Access, axis: Symbol, step: int, residue: int) -> Access:
    """Return the access restricted to points with axis == step*outer + residue; the new axis `outer` replaces `axis`.

    If only one value of `axis` has this residue, the access gets no new axis. If none has, the access gets the domain
    (0), which is never true.
    """
    extent = _extent(axis)
    count = ceildiv(extent - residue, step)
    if count.hi < 1:
        return replace(access, domain=(ZERO,))
    outer = ZERO if count is ONE else index(_unused_name(access, f"{axis.name}_o"), count)
    value = add_all([scale(outer, step), as_expr(residue)])
    return _replace_axis(access, axis, [outer] if isinstance(outer, Symbol) else [], value, [])


# -- joining ------------------------------------------------------------------------------------------------


def why_not_join(accesses: Sequence[Access], outer: str, inner: str) -> str | None:
    """Return a text with the reason why the axes `outer` and `inner` cannot be fused in all these accesses; None if
    they can.

    They can be fused if one step of `outer` changes the offset, and the operand of each condition, as much as the full
    range of `inner` does. An access with neither axis is skipped; an access with only one of the two prevents fusion.

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
            full_range = multiply(form[0].get(fast, ZERO), _extent(fast))
            if step is not full_range:
                return f"{outer} steps by {step}, a round of {inner} by {full_range}"
    return None


def join(access: Access, outer: str, inner: str, name: str) -> Access:
    """Return the access with the axes `outer` and `inner` fused to one flat axis called `name`; `inner` is the faster
    one.

    Raise AccessError if they cannot be fused: see `why_not_join`.

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
