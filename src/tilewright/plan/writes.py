"""The elements that a write stores to: its coordinates over the digits (mixed-radix parts) of its indices."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import prod

import numpy as np

from tilewright.algebra.expr import Expr, FloorDiv, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution, evaluate
from tilewright.ir.core import MemoryType, Op
from tilewright.plan.contraction import chain
from tilewright.plan.model import Size

TABLED = 1 << 22
"""The most elements of a write, or values of a coordinate, that are enumerated to check where a write goes."""


def coordinates_by_digits(op: Op, size: Size) -> tuple[list[Expr], dict[Symbol, int]]:
    """Return (coordinates of the write `op` in terms of digits, {digit: its extent}).

    Digits are mixed-radix parts of the write's indices. An index is split by the numbers that divide it: [i//56,
    2*(i%56) + p] -> [i_1, 2*i_0 + p_0]. An index that is divided only within a sum, as in (i + 1)//2, is one digit.
    `size(d)` evaluates the extent of a dimension d.
    """
    over = op.attrs["over"]
    at = [Substitution({s: size(s) for s in e.symbols if s not in over})(e) for e in op.attrs["at"]]
    images, extents = dict[Symbol, Expr](), dict[Symbol, int]()
    for s, d in zip(over, op.operands[0].type.dims, strict=True):
        whole = as_expr(0)
        for n, (step, end) in enumerate(pairwise(chain(_divisors(s, at), size(d)) or (1, size(d)))):
            digit = symbol(f"{s}_{n}", 0, int(end) // int(step) - 1)
            extents[digit] = int(end) // int(step)
            whole = whole + int(step) * digit
        images[s] = whole
    return [*map(Substitution(images), at)], extents


def writes_every_element(op: Op, size: Size) -> bool:
    """True if the write `op` is proved to store to every element of its tensor; it may store out of bounds too.

    The proof enumerates the values of each coordinate, at most TABLED (4 Mi). Each must take all values of its
    dimension, and no index (or mixed-radix digit of one) may be in two coordinates. False if coordinates depend on
    data, or if `op` has no explicit coordinates. `size(d)` evaluates the extent of a dimension d.
    """
    memory: MemoryType = op.operands[1].type
    if "at" not in op.attrs or op.attrs.get("lookups") or None in memory.sizes:
        return False
    at, extents = coordinates_by_digits(op, size)
    seen: set[Symbol] = set()
    for e, d in zip(at, memory.sizes, strict=True):
        used = [s for s in extents if s in e.symbols]
        if d is None or not seen.isdisjoint(used) or prod(extents[s] for s in used) > TABLED:
            return False
        seen |= set(used)
        grid = np.ogrid[tuple(slice(0, extents[s]) for s in used)]
        values = np.asarray(evaluate(e, dict(zip(used, grid, strict=True))))
        in_bounds = np.unique(values[(values >= 0) & (values < size(d))])
        if in_bounds.size != size(d):
            return False
    return True


def _divisors(index: Symbol, at: Iterable[Expr]) -> set[int | Expr]:
    """Return the set of numbers at which the coordinates `at` split `index` into digits: {1, 56} for [i//56, i%56].

    Digits are mixed-radix parts. (i//7) % 8 gives {1, 7, 56}. Numbers that divide a sum with the index, as in (i +
    1)//2, and divisors that are no constants, are left out. The set is empty if nothing divides the index.
    """
    divisors: set[int | Expr] = set()
    for node in (n for e in at for n in e.divisions(set()) if index in n.symbols):
        inner, by = node.parts
        whole: Expr = as_expr(1)
        if isinstance(inner, FloorDiv):
            inner, whole = inner.parts
        if inner is index and not (by.symbols or whole.symbols):
            divisors |= {int(by * whole), int(whole)}
    return divisors
