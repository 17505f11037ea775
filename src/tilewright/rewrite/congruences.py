"""Finds congruences: MMA operands that are zero unless a sum of two indices is a multiple of a number.

    %1 = read %dy over=[h, r, f] at=[(h - r + 1)//2 - (h - r + 1)%2*57, f] otherwise=0 : bf16[H, R, F]

For every odd h - r + 1 the read is out of bounds, below 0, so half of the multiplications are with zeros. Authors write
the same as a select: `select((h - r + 1) % 2 == 0, read at (h - r + 1)//2, 0)`. Which elements are zero is not derived
from the form of an expression: it is computed for all indices.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, symbol
from tilewright.algebra.expr_use import Substitution, evaluate, linear_form
from tilewright.ir.core import Op, Program, TileType, Value
from tilewright.plan.boxes import numbers_of
from tilewright.plan.writes import TABLED
from tilewright.rewrite.rewriter import places

Array = np.ndarray[Any, Any]
SAME = frozenset({"cast", "permute"})
"""Operations whose result is zero wherever their operand is."""
_ON_INDICES: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "mod", "floordiv", "eq", "ne")},
    **dict.fromkeys(("broadcast", "permute", "cast"), lambda x: x),
}


@dataclass(frozen=True)
class Congruence:
    """The fact that MMA operands are zero unless sign*h + step*r + rest is a multiple of `modulus`.

    h is the index along `kept`, a dimension of the result; r is the index along `summed`, which the MMAs sum; `sign` is
    1 or -1.
    """

    kept: Symbol
    summed: Symbol
    sign: int
    step: int
    rest: int
    modulus: int

    def holds(self, kept: Array, summed: Array) -> Array:
        """Return an array of bools: True where sign*kept + step*summed + rest is a multiple of the modulus.

        `kept` and `summed` are arrays of indices along the two dimensions; they are broadcast.
        """
        multiple: Array = (self.sign * kept + self.step * summed + self.rest) % self.modulus == 0
        return multiple


class Congruences:
    """Finds the congruences of a program; `sizes` has the extents of its dimensions as ints."""

    def __init__(self, program: Program, sizes: Mapping[Symbol, int]):
        self.program, self.makers = program, program.makers()
        self.numbers, self.size = Substitution(dict(sizes)), numbers_of(sizes)

    def proposed(self) -> Iterator[Congruence]:
        """Yield each Congruence that MMA operands may depend on, once: outside of it, an operand may be zero.

        A Congruence says that a sum of two indices is a multiple of a number. Candidates come from divisions of such a
        sum by a constant, as in x[(h - r)//2]; h is an index of the result, r one that the MMA sums. They are not
        proved: `holds` does that.
        """
        yielded: set[Congruence] = set()
        for op in [x for x in self.program.walk() if x.name == "mma"]:
            left, right, acc = (set(v.type.dims) for v in op.operands)
            for value, dims, other in ((op.operands[0], left, right), (op.operands[1], right, left)):
                result_dims, summed = (dims & acc) - other, (dims & other) - acc
                for congruence in self._divided(value, result_dims, summed):
                    if congruence not in yielded:
                        yielded.add(congruence)
                        yield congruence

    def holds(self, congruence: Congruence) -> bool:
        """True if every MMA operand with both dimensions of `congruence` is proved to be zero wherever `congruence` is
        false.

        `congruence` says that a sum of two indices is a multiple of a number. All MMAs of the program count. The result
        is also True if no operand has both dimensions.
        """
        both = {congruence.kept, congruence.summed}
        products = (op for op in self.program.walk() if op.name == "mma")
        values = [v for op in products for v in op.operands[:2] if both <= set(v.type.dims)]
        return all(self.vanishes(v, congruence) for v in values)

    def vanishes(self, value: Value, congruence: Congruence) -> bool:
        """True if the tile `value` is proved to be zero wherever `congruence` is false.

        `congruence` says that a sum of two indices is a multiple of a number. Casts and permutes are looked through. A
        read must be out of bounds wherever `congruence` is false. A select must have the constant 0 as its second
        choice. Also, its condition must imply `congruence`, or its first choice must be zero wherever `congruence` is
        false. Every other value gives False.
        """
        op = self.makers.get(value)
        if op is None:
            return False
        if op.name in SAME:
            return self.vanishes(op.operands[0], congruence)
        if op.name == "select" and _is_zero(op.operands[2], self.makers):
            implied = any(self._implies(c, congruence) for c in conjuncts(op.operands[0], self.makers))
            return implied or self.vanishes(op.operands[1], congruence)
        return op.name == "read" and self.is_out_of_bounds(op, congruence)

    def is_out_of_bounds(self, read: Op, congruence: Congruence) -> bool:
        """True if the operation `read` is out of bounds, and so gives 0, wherever `congruence` is false.

        `congruence` says that a sum of two indices is a multiple of a number. One coordinate alone must show that the
        read is out of bounds. False if the read does not state 0 as its value out of bounds, has lookups or bounds,
        lacks one of the two dimensions, or has too many indices to try all of them.
        """
        if read.attrs.get("otherwise") != 0 or read.attrs.get("lookups") or read.attrs.get("bounds"):
            return False
        kind, over, at = places(read)
        index_of = dict(zip(kind.dims, over, strict=True))
        if not {congruence.kept, congruence.summed} <= index_of.keys():
            return False
        h, r = index_of[congruence.kept], index_of[congruence.summed]
        shape = [None if d is None else self.size(d) for d in read.operands[0].type.sizes]
        for e, extent in zip(map(self.numbers, at), shape, strict=True):
            grid = None if extent is None else self._grid(index_of, e, (h, r))
            if grid is not None:
                place = np.asarray(evaluate(e, grid))
                inside = (place >= 0) & (place < extent)
                if not (inside & ~congruence.holds(grid[h], grid[r])).any():
                    return True
        return False

    def is_same(self, condition: Value, congruence: Congruence) -> bool:
        """True if the tile of bools `condition`, computed from indices, is true exactly where `congruence` is true.

        `congruence` says that a sum of two indices is a multiple of a number. False if `condition` has other dimensions
        than `congruence`, depends on data, or has too many indices to compare all.
        """
        return self._compared(condition, congruence, lambda a, b: a == b)

    def _implies(self, condition: Value, congruence: Congruence) -> bool:
        """True if `congruence` is true wherever the tile of bools `condition`, computed from indices, is true.

        `congruence` says that a sum of two indices is a multiple of a number. False if `condition` has other dimensions
        than `congruence`, depends on data, or has too many indices to compare all.
        """
        return self._compared(condition, congruence, lambda a, b: ~a | b)

    def _compared(self, condition: Value, congruence: Congruence, compare: Callable[[Array, Array], Array]) -> bool:
        """True if `compare(c, m)` is True everywhere; c and m are arrays of bools, the values of `condition` and
        `congruence`.

        `condition` is a tile of bools, and `congruence` says that a sum of two indices is a multiple of a number. False
        if `condition` has other dimensions than `congruence`, depends on data, or has too many indices.
        """
        dims = (congruence.kept, congruence.summed)
        if set(condition.type.dims) != set(dims) or prod(map(self.size, dims)) > TABLED:
            return False
        axes = np.ogrid[tuple(slice(0, self.size(d)) for d in dims)]
        grid: dict[Expr, Array] = dict(zip(dims, axes, strict=True))
        holds = self._evaluated(condition, grid)
        where = congruence.holds(grid[congruence.kept], grid[congruence.summed])
        return holds is not None and bool(np.all(compare(np.broadcast_to(holds, where.shape), where)))

    def _evaluated(self, value: Value, grid: Mapping[Expr, Any]) -> Any:
        """Return the elements of the tile `value`, computed from indices and constants; None if it depends on anything
        else.

        `grid` is {dimension: its indices}, as arrays or as expressions; the result has the same form.
        """
        op = self.makers.get(value)
        if op is None:
            return None
        if op.name == "self_index":
            return grid.get(op.attrs["dim"])
        if op.name in ("scalar", "fill"):
            number = op.attrs["value"]
            return self.size(number) if isinstance(number, Expr) else number
        parts = [self._evaluated(v, grid) for v in op.operands]
        if op.name not in _ON_INDICES or any(part is None for part in parts):
            return None
        return _ON_INDICES[op.name](*parts)

    def _grid(self, index_of: Mapping[Expr, Symbol], e: Expr, always: Sequence[Symbol]) -> dict[Symbol, Any] | None:
        """Return {index: array of its values} for the indices in the expression `e` and in `always`; the arrays
        broadcast.

        `index_of` is {dimension: its index}. None if there are too many combinations (`TABLED`), or if `e` has other
        symbols.
        """
        dims = [d for d, s in index_of.items() if s in e.symbols or s in always]
        if e.symbols - {index_of[d] for d in dims} or prod(map(self.size, dims)) > TABLED:
            return None
        axes = np.ogrid[tuple(slice(0, self.size(d)) for d in dims)]
        return {index_of[d]: axis for d, axis in zip(dims, axes, strict=True)}

    def _divided(self, value: Value, kept: Collection[Expr], summed: Collection[Expr]) -> Iterator[Congruence]:
        """Yield a Congruence for each division, by a constant, of a sum of one kept and one summed index.

        The operations that compute the tile `value` are searched: coordinates of its read, and conditions of its
        selects. (h - r + 1)//2 gives the congruence of h - r + 1 modulo 2. `kept` are dimensions of an MMA's result,
        `summed` are dimensions that it sums. The congruences are candidates, not proved.
        """
        op = self.makers.get(value)
        if op is None:
            return
        if op.name == "select":
            for condition in conjuncts(op.operands[0], self.makers):
                indices = {d: symbol(f"at_{n}", 0, self.size(d) - 1) for n, d in enumerate(condition.type.dims)}
                e = self._evaluated(_tested(condition, self.makers), indices)
                yield from _congruences(e, indices, kept, summed) if isinstance(e, Expr) else ()
            yield from self._divided(op.operands[1], kept, summed)
        elif op.name in SAME:
            yield from self._divided(op.operands[0], kept, summed)
        elif op.name == "read":
            kind, over, at = places(op)
            for e in map(self.numbers, at):
                yield from _congruences(e, dict(zip(kind.dims, over, strict=True)), kept, summed)


def conjuncts(condition: Value, makers: Mapping[Value, Op]) -> list[Value]:
    """Return the list of conditions that `and_` combines to `condition`; [condition] if it is not computed by `and_`.

    `makers` is {value: the operation that computes it}.
    """
    op = makers.get(condition)
    if op is not None and op.name == "and_":
        return [c for v in op.operands for c in conjuncts(v, makers)]
    return [condition]


def _tested(condition: Value, makers: Mapping[Value, Op]) -> Value:
    """Return the value that a comparison with == or != tests: its first operand.

    Casts, broadcasts and permutes of the comparison and of the operand are looked through. Return `condition` itself if
    it is none of these operations. `makers` is {value: the operation that computes it}.
    """
    op = makers.get(condition)
    while op is not None and op.name in ("eq", "ne", "broadcast", "permute", "cast"):
        condition = op.operands[0]
        op = makers.get(condition)
    return condition


def _is_zero(value: Value, makers: Mapping[Value, Op]) -> bool:
    """True if `value` is the constant 0, perhaps cast, broadcast or permuted.

    `makers` is {value: the operation that computes it}.
    """
    op = makers.get(value)
    while op is not None and op.name in ("broadcast", "permute", "cast"):
        op = makers.get(op.operands[0])
    return op is not None and op.name in ("fill", "scalar") and op.attrs["value"] == 0


def _congruences(
    e: Expr, index_of: Mapping[Expr, Symbol], kept: Collection[Expr], summed: Collection[Expr]
) -> Iterator[Congruence]:
    """Yield a Congruence for each division in the expression `e`, by a constant, of a sum of one kept and one summed
    index.

    (h - r + 1)//2 gives the congruence of h - r + 1 modulo 2. The kept index must have the factor 1 or -1. `index_of`
    is {dimension: its index}. `kept` are dimensions of an MMA's result, `summed` are dimensions that it sums. The
    congruences are candidates, not proved.
    """
    dim_of = {s: d for d, s in index_of.items()}
    for node in e.divisions(set()):
        inner, divisor = node.parts
        form = linear_form(inner, list(dim_of)) if divisor.is_constant else None
        if form is None or len(form[0]) != 2 or not all(x.is_constant for x in (*form[0].values(), form[1])):
            continue
        steps = {dim_of[s]: int(c) for s, c in form[0].items()}
        h, r = next((d for d in steps if d in kept), None), next((d for d in steps if d in summed), None)
        if isinstance(h, Symbol) and isinstance(r, Symbol) and abs(steps[h]) == 1 and int(divisor) > 1:
            yield Congruence(h, r, steps[h], steps[r], int(form[1]), int(divisor))


def tiles_of(op: Op) -> set[Expr]:
    """Return the set of the dimensions of all tiles among operands and results of `op`."""
    return {d for v in (*op.operands, *op.results) if isinstance(v.type, TileType) for d in v.type.dims}
