"""The index space of a product with its operands: out[rows, columns] = epilogue(sum over depth of a * b).

Rows, columns and depth (M, N and K) are tuples of digits: an index that an access divides is replaced by its
mixed-radix parts, the same for all accesses that use it. A convolution has rows (n, p, q) and depth (r, s, c); a matrix
product has one digit each. `contracted` derives the space from the facts of a program.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from tilewright.algebra.expr import ZERO, Const, Expr, Symbol, as_expr, index, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op, Program
from tilewright.ir.dtypes import DType


@dataclass(frozen=True)
class Operand:
    """A tensor of a contraction: the program's argument, its extents, and its coordinates in terms of digits.

    Digits are the mixed-radix parts of flattened dimensions. `otherwise` is the value of a read out of bounds.
    """

    name: str
    dtype: DType
    shape: tuple[Any, ...]
    """Its extents: numbers, or expressions of open sizes (known only at the call)."""
    coordinates: tuple[Expr, ...]
    otherwise: float | None = None
    constant: bool = False
    """True if its elements are the same at every launch: it is packed once, when it is bound."""
    unpadded: tuple[Any, ...] = ()
    """Its extents without the zeros that a copy adds after K; () if it has none."""

    @cached_property
    def conditions(self) -> list[tuple[int, Expr]]:
        """The bounds checks of this operand that can fail: [(number of the memory dimension, check as an expression)].

        A coordinate has up to two checks: it is at least 0, and it is below the extent. Checks that are constant (they
        always hold) are left out.
        """
        conditions = []
        for d, (c, n) in enumerate(zip(self.coordinates, self.shape, strict=True)):
            conditions += [(d, condition) for condition in (c >= 0, c < n) if not isinstance(condition, Const)]
        return conditions

    @property
    def checked_dims(self) -> frozenset[int]:
        """The memory dimensions of this operand that need a bounds check, as numbers counted from the outermost."""
        return frozenset(d for d, _ in self.conditions)


@dataclass(frozen=True)
class Contraction:
    """A GEMM-like program: out = epilogue(start + sum over depth of a * b, extras), elementwise.

    `rows`, `columns`, `depth` and `batch` are the digits (mixed-radix parts of flattened dimensions) of M, N, K and
    batch.
    """

    name: str
    rows: tuple[Symbol, ...]
    columns: tuple[Symbol, ...]
    depth: tuple[Symbol, ...]
    a: Operand
    b: Operand
    out: Operand
    start: float
    sum_dtype: DType
    extras: tuple[Operand, ...]
    batch: tuple[Symbol, ...] = ()
    """Digits that A, B and the result share: groups, or matrices of a batch."""
    dims: tuple[tuple[str, ...], tuple[str, ...], str] = ((), (), "")
    """The program's dimensions of M, its dimensions of N, and the dimension of K that has the last digit of `depth`."""
    keeps_digits: bool = False
    """True if digits must not be merged, because a plan must also fit sizes known only at the call."""
    over: tuple[tuple[tuple[Expr, ...], tuple[Symbol, ...]], ...] = ()
    """Pairs (dimensions of the program, the digits of these dimensions); a dimension with one element has no digits."""
    program: Program | None = None
    """The program in which the contraction was recognised."""
    accesses: tuple[Op, ...] = ()
    """The program's operations: the read of `a`, the read of `b`, the write, and the reads of `extras`."""

    @property
    def open(self) -> tuple[Symbol, ...]:
        """The digits (mixed-radix parts) of M whose extent is known only at the call."""
        return tuple(d for d in self.rows if _is_open(d))

    @cached_property
    def coupled(self) -> frozenset[Symbol]:
        """The digits of K, such as filter taps, that share a bounds check on A with the last digit of M.

        Digits are mixed-radix parts of flattened dimensions. In x[p + r] the tap r is coupled to the position p.
        """
        shared = [x.symbols for _, x in self.a.conditions if self.rows[-1] in x.symbols]
        return frozenset(d for d in self.depth if any(d in symbols for symbols in shared))

    def text(self) -> str:
        """Return this contraction as text for people: a line for each of M, N, K, batch, tensors and accumulator.

        The lines list digits (mixed-radix parts of flattened dimensions) with extents, and the tensors with their
        coordinates in terms of digits; a `?` marks a coordinate with a bounds check.
        """
        kinds = {"rows": self.rows, "columns": self.columns, "depth": self.depth, "batch": self.batch}
        lines = [
            f"{kind} {', '.join(f'{d.name} {size(d)}' for d in digits)}" for kind, digits in kinds.items() if digits
        ]
        for operand in (self.a, self.b, self.out, *self.extras):
            at = ", ".join(f"{e}{' ?' if n in operand.checked_dims else ''}" for n, e in enumerate(operand.coordinates))
            lines.append(f"{operand.name} {operand.dtype} ({', '.join(map(str, operand.shape))}) [{at}]")
        return "\n".join([*lines, f"start {self.start} in {self.sum_dtype}"]) + "\n"

    def extent(self, digits: tuple[Symbol, ...]) -> int:
        """Return the product of the extents of `digits` (mixed-radix parts of dimensions); 1 for no digits."""
        return prod(map(size, digits))

    def summed(self, name: str | None) -> Symbol:
        """Return the digit of K (mixed-radix part of a reduction dimension) that is named `name`.

        There must be one; otherwise a StopIteration is raised.
        """
        return next(d for d in self.depth if d.name == name)

    @property
    def flops(self) -> int:
        """The number of floating-point operations, two per multiply-add, of the contraction without epilogue."""
        return 2 * self.extent((*self.batch, *self.rows, *self.columns, *self.depth))


def size(s: Symbol) -> int:
    """Return the extent of the digit `s`, a mixed-radix part of a dimension.

    If the extent is known only at the call, return the largest one.
    """
    return int(s.hi) + 1


def _is_open(digit: Symbol) -> bool:
    """True if the extent of a digit (mixed-radix part of a dimension) is known only at the call."""
    return not isinstance(digit.upper, Const)


def with_known_sizes(contraction: Contraction, sizes: Mapping[Symbol, int]) -> Contraction:
    """Return the contraction with numbers in place of its sizes that are known only at the call.

    `sizes` maps size symbols to numbers. The returned contraction is marked `keeps_digits`: its digits (mixed-radix
    parts of flattened dimensions) must not be merged, so that a plan for these numbers also fits the contraction
    without them.
    """
    numbers = Substitution(dict(sizes))
    digits = {d: index(d.name, int(numbers(d.upper + 1))) for d in contraction.open if d.upper is not None}
    images = Substitution(digits)

    def closed_operand(operand: Operand) -> Operand:
        """Return an operand with numbers in place of its sizes that are known only at the call."""
        shape = tuple(int(numbers(as_expr(n))) for n in operand.shape)
        return replace(operand, shape=shape, coordinates=tuple(map(images, operand.coordinates)))

    rows = tuple(digits.get(d, d) for d in contraction.rows)
    extras = tuple(map(closed_operand, contraction.extras))
    return replace(
        contraction,
        rows=rows,
        a=closed_operand(contraction.a),
        b=closed_operand(contraction.b),
        out=closed_operand(contraction.out),
        extras=extras,
        keeps_digits=True,
    )


def dimension(digit: Symbol) -> Symbol:
    """Return a size symbol with the name of `digit`: the dimension that stands for the digit in a lowered program.

    Digits are mixed-radix parts of dimensions; the dimensions of a lowered contraction are digits.
    """
    return symbol(digit.name, 0)


def merge_rows(contraction: Contraction) -> Contraction:
    """Return the contraction with all digits of M (such as n, p, q) merged into one: a 1x1 convolution becomes a GEMM.

    Digits are mixed-radix parts of dimensions. The contraction is returned unchanged in these cases: M has one digit;
    an extent of M is known only at the call; it is marked `keeps_digits` (its plan must also fit sizes known only at
    the call); the digits are not contiguous in a tensor that has them; or a tensor that is accessed twice would get two
    shapes.
    """
    return (
        contraction
        if len(contraction.rows) < 2 or contraction.keeps_digits or contraction.open
        else _merge_digits(contraction, contraction.rows, "rows_0")
    )


def merge_columns(contraction: Contraction) -> Contraction:
    """Return the contraction with all digits of N merged into one digit.

    Digits are mixed-radix parts of dimensions. The contraction is returned unchanged in three cases: N has one digit;
    the digits are not contiguous in a tensor that has them; or a tensor that is accessed twice would get two shapes.
    """
    return contraction if len(contraction.columns) < 2 else _merge_digits(contraction, contraction.columns, "columns_0")


def merge_taps(contraction: Contraction) -> Contraction:
    """Return the contraction with the last two digits of K (filter tap and channel) merged into one.

    Digits are mixed-radix parts of dimensions. A tap w and its few channels c become one index: x[w, c] is x at C*w +
    c. The contraction is returned unchanged in three cases: K has one digit; the two digits are not contiguous in A and
    B; or a tensor that is accessed twice would get two shapes.
    """
    return contraction if len(contraction.depth) < 2 else _merge_digits(contraction, contraction.depth[-2:], "taps_0")


def _merge_digits(contraction: Contraction, digits: tuple[Symbol, ...], name: str) -> Contraction:
    """Return the contraction with `digits` (mixed-radix parts of M, N or K) merged into one digit named `name`.

    The merged digit stands in place of the last of `digits`. The contraction is returned unchanged if the digits are
    not contiguous in a tensor that has them, or if one tensor, accessed twice, would get two shapes.
    """
    operands, merged_digit = (
        (contraction.a, contraction.b, contraction.out, *contraction.extras),
        index(name, contraction.extent(digits)),
    )
    merged = [x for x in (_merge_in_operand(x, digits, merged_digit) for x in operands) if x is not None]
    if len(merged) < len(operands):
        return contraction
    a, b, out, *extras = merged
    others = (a, out, *extras)
    if len({(x.name, x.shape) for x in others}) > len({x.name for x in others}):
        return contraction  # a tensor has one shape
    replacement = {**dict.fromkeys(digits, ()), digits[-1]: (merged_digit,)}
    rows, columns, depth = (
        tuple(s for d in digits_of for s in replacement.get(d, (d,)))
        for digits_of in (contraction.rows, contraction.columns, contraction.depth)
    )
    over = merged_digit_table(contraction.over, digits, merged_digit)
    return replace(
        contraction, rows=rows, columns=columns, depth=depth, a=a, b=b, out=out, extras=tuple(extras), over=over
    )


def _merge_in_operand(operand: Operand, digits: tuple[Symbol, ...], merged_digit: Symbol) -> Operand | None:
    """Return the operand with the memory dimensions that `digits` index merged into one; None if that is impossible.

    Digits are mixed-radix parts of dimensions; `merged_digit` indexes the merged dimension. It is possible if `digits`
    are the coordinates of adjacent memory dimensions, in order, and each but the first has the extent of its dimension.
    The first coordinate may have an offset: [n + 1, p] becomes [P + np], where P is the extent of p. None of them may
    have zeros after K. An operand without `digits` is returned unchanged.
    """
    used = [d for d, e in enumerate(operand.coordinates) if e.symbols & set(digits)]
    if not used:
        return operand
    first, end = used[0], used[0] + len(digits)
    shift = operand.coordinates[first] - digits[0]
    inner = tuple(map(size, digits[1:]))
    if used != list(range(first, end)) or shift.symbols & set(digits) or operand.shape[first + 1 : end] != inner:
        return None
    if operand.coordinates[first + 1 : end] != digits[1:]:
        return None
    if operand.unpadded and operand.unpadded[first:end] != operand.shape[first:end]:
        return None
    shape, unpadded = (
        (*extents[:first], extents[first] * prod(inner), *extents[end:]) if extents else ()
        for extents in (operand.shape, operand.unpadded)
    )
    coordinates = (*operand.coordinates[:first], prod(inner) * shift + merged_digit, *operand.coordinates[end:])
    return replace(operand, shape=shape, coordinates=coordinates, unpadded=unpadded)


def pad_k(contraction: Contraction, group: int) -> Contraction:
    """Return the contraction with the last digit of K zero-padded in A and B to a multiple of `group` elements.

    Digits are mixed-radix parts of dimensions. The contraction is returned unchanged in three cases: `group` divides
    that digit; A or B has no memory dimension that this digit alone indexes; or A or B is the same tensor as another
    operand.
    """
    last = contraction.depth[-1]
    if size(last) % group == 0:
        return contraction
    padded_digit = index(last.name, -(-size(last) // group) * group)
    operands = [_pad_operand(x, last, padded_digit) for x in (contraction.a, contraction.b)]
    others = (contraction.out, *contraction.extras)
    if (
        None in operands
        or {x.name for x in others} & {contraction.a.name, contraction.b.name}
        or contraction.a.name == contraction.b.name
    ):
        return contraction
    a, b = operands
    assert a is not None
    assert b is not None
    over = tuple((dims, tuple(padded_digit if s is last else s for s in digits)) for dims, digits in contraction.over)
    return replace(contraction, depth=(*contraction.depth[:-1], padded_digit), a=a, b=b, over=over)


def _pad_operand(operand: Operand, last: Symbol, padded_digit: Symbol) -> Operand | None:
    """Return the operand with its memory dimension of digit `last` lengthened; None if that is impossible.

    `last` is K's last digit (mixed-radix part), `padded_digit` the same digit with the larger extent. `last` must index
    exactly one memory dimension, alone, and have its extent.
    """
    positions = [d for d, e in enumerate(operand.coordinates) if last in e.symbols]
    if (
        len(positions) != 1
        or operand.coordinates[positions[0]] is not last
        or operand.shape[positions[0]] != size(last)
    ):
        return None
    (d,) = positions
    shape = (*operand.shape[:d], size(padded_digit), *operand.shape[d + 1 :])
    coordinates = (*operand.coordinates[:d], padded_digit, *operand.coordinates[d + 1 :])
    return replace(operand, shape=shape, coordinates=coordinates, unpadded=operand.shape)


def merged_digit_table(
    over: tuple[tuple[tuple[Expr, ...], tuple[Symbol, ...]], ...], digits: tuple[Symbol, ...], merged_digit: Symbol
) -> tuple[tuple[tuple[Expr, ...], tuple[Symbol, ...]], ...]:
    """Return a contraction's table of digits per program dimension, with `digits` merged into `merged_digit`.

    Digits are mixed-radix parts of dimensions. `over` is the table before: pairs (program dimensions, their digits).
    All pairs with a digit in `digits` become one pair, at the end. Its second item has `merged_digit` in place of
    `digits`.
    """
    merged_entries = [entry for entry in over if set(entry[1]) & set(digits)]
    dims = tuple(d for entry in merged_entries for d in entry[0])
    remaining = [s for entry in merged_entries for s in entry[1] if s not in digits or s is digits[-1]]
    merged = dims, tuple(merged_digit if s is digits[-1] else s for s in remaining)
    return (*(entry for entry in over if entry not in merged_entries), merged)


def chain(radices: Collection[int | Expr], extent: int | Expr) -> list[int | Expr] | None:
    """Return [1, *radices, extent] sorted so that each number divides the next; None if there is no such order.

    These numbers split a dimension of `extent` elements into digits (mixed-radix parts). Numbers in `radices` that are
    1 or `extent`, or above an `extent` that is an int, are left out. A 0 in `radices` gives None.

    >>> n, p, q = (symbol(name, 1, 99) for name in "NPQ")
    >>> chain({q, p * q, 1}, n * p * q), chain({4, 6}, 24)
    ([1, <Q>, <P*Q>, <N*P*Q>], None)
    """
    remaining, ordered = {r for r in radices if r not in (1, extent)}, list[int | Expr]([1])
    if isinstance(extent, int):
        remaining = {r for r in remaining if not isinstance(r, int) or 0 < r < extent or r == 0}
    while remaining:
        following = next(
            (r for r in remaining if r != 0 and all(as_expr(n) % r is ZERO for n in (*remaining, extent))), None
        )
        if following is None:
            return None
        ordered.append(following)
        remaining.discard(following)
    return [*ordered, extent]
