"""Rewrites flat dimensions as the digits (mixed-radix parts) into which accesses divide them.

    %3 = read %x over=[i, k] at=[i//56 + k//192 - 1, i%56 + k//64%3 - 1, k%64] otherwise=0 : f32[M, K]
    %3 = read %x over=[p, q, r, s, c] at=[p + r - 1, q + s - 1, c] otherwise=0 : f32[M_1, M_0, K_2, K_1, K_0]

A loop that only adds MMAs over such a dimension is removed: the MMA sums over its digits. The rest of the program
treats every digit as any dimension, so tasks, accumulator tiles and loops over taps follow from what plans say of
dimensions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise

from tilewright.algebra.expr import Expr, FloorDiv, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import number_or
from tilewright.analysis.flat_memory import Size
from tilewright.ir.core import Op, Program, TileType, building
from tilewright.ir.tile import accessed
from tilewright.plan.boxes import WRITES
from tilewright.plan.contraction import chain
from tilewright.plan.general import ALIKE, dims_of, only_adds
from tilewright.rewrite.rewriter import DimensionGroup, Regrouped, places


def in_digits(
    program: Program, sizes: Mapping[Symbol, Size], free: Collection[Op], *, summed_only: bool = False
) -> tuple[Program, dict[Symbol, Size], set[Op]]:
    """Return (program over digits, {dimension: extent} with the digits, the new program's counterparts of the loops
    `free`).

    A flat dimension is replaced by its digits (mixed-radix parts) if accesses divide its index, as in k//64 and k%64.
    If there is no such dimension, return the same program. `sizes` is {dimension: extent}; extents known only at the
    call are expressions. `free` holds the loops that give the same result for every tile size. With `summed_only`, only
    dimensions that are not written, and that are contiguous in some memory, are replaced.
    """
    with building():
        rewrite = _Digits(program, sizes, free, summed_only)
        if not rewrite.groups:
            return program, dict(sizes), set(free)
        return rewrite.run()


def digits_of(
    program: Program, sizes: Mapping[Symbol, int], free: Collection[Op], dim: Expr, *, alone: bool = False
) -> tuple[Program, dict[Symbol, int], tuple[Symbol, ...], set[Op]] | None:
    """Return (program, {dimension: extent}, digits of `dim`, counterparts of the loops `free`) with `dim` replaced by
    digits.

    Digits are mixed-radix parts of the index, into which accesses divide it. None if `dim` cannot be replaced. With
    `alone`, no other dimension is replaced; without, all dimensions that accesses divide are. `sizes` is {dimension:
    extent}. `free` holds the loops that give the same result for every tile size.
    """
    with building():
        rewrite = _Digits(program, sizes, free, False, dim if alone else None)
        group = rewrite.groups.get(dim)
        if group is None:
            return None
        over, every, loops = rewrite.run()
    return over, {s: int(n) for s, n in every.items()}, group.new_dims, loops


class _Digits(Regrouped):
    """Rewrites a program over the digits (mixed-radix parts) of the dimensions that accesses divide.

    With `summed_only`, dimensions that are written, or contiguous in no memory, stay. `only` is the one dimension to
    split; None: all.
    """

    def __init__(
        self,
        program: Program,
        sizes: Mapping[Symbol, Size],
        free: Collection[Op],
        summed_only: bool,
        only: Expr | None = None,
    ):
        super().__init__((), sizes=sizes)
        self.program, self.sizes, self.free = program, dict(sizes), set(free)
        self.adding_loops = {op for op in self.free if only_adds(op)}
        """Loops that only add MMAs; they are removed if their axis is split."""
        written = {d for op in program.walk() if op.name in WRITES for d in op.operands[0].type.dims}
        for dim in [d for d in dims_of(program) if d in self.sizes]:
            if (summed_only and (dim in written or not self._is_contiguous(dim))) or only not in (None, dim):
                continue
            steps = self._steps(dim)
            if steps is not None:
                digits = tuple(symbol(f"{dim}_{n}", 0) for n in reversed(range(len(steps))))
                self.sizes |= {s: size for s, (_, size) in zip(digits, steps, strict=True)}
                over = tuple(symbol(f"at_{s}", 0, self.sizes[s] - 1) for s in digits)
                flat_index = sum((step * s for s, (step, _) in zip(over, steps, strict=True)), start=as_expr(0))
                self.groups[dim] = DimensionGroup((dim,), digits, over, {dim: flat_index})

    # -- which dimensions ---------------------------------------------------------------------------------

    def _steps(self, dim: Expr) -> list[tuple[Size, Size]] | None:
        """Return [(stride, extent)] of the digits into which accesses divide `dim`, the slowest digit first.

        A digit with stride s and extent n is index // s % n. For example, 192 elements with accesses k//64 and k%64
        give [(64, 3), (1, 64)]. None if accesses do not divide `dim`, or if another use of `dim` forbids it, such as a
        constraint.
        """
        extent = self.sizes[dim]  # type: ignore[index]
        radices: set[Size] = set()
        for op in self.program.walk():
            dims = {d for v in (*op.operands, *op.results) if isinstance(v.type, TileType) for d in v.type.dims}
            if dim not in dims and not any(dim in d.symbols for d in dims):
                if op.name == "iterate" and op.attrs["axis"] is dim and op not in self.adding_loops:
                    return None
                continue
            extra = (*op.attrs.get("lookups", ()), *op.attrs.get("bounds", ()))
            if op.name not in ALIKE or extra or any(dim in d.symbols and d is not dim for d in dims):
                return None
            if op.name == "iterate" and (op.attrs["axis"] is dim) and op not in self.adding_loops:
                return None
            if op.name in ("read", "write"):
                radices |= self._divisors(op, dim)
        if any(dim in e.symbols for r in self.program.records for e in _exprs(r.attrs)):
            return None
        ends = chain(radices, extent)
        if ends is None or len(ends) < 3:
            return None
        return [(a, number_or(as_expr(b) // a)) for a, b in pairwise(ends)][::-1]

    def _is_contiguous(self, dim: Expr) -> bool:
        """True if some read or write uses the index of `dim` in its last memory coordinate."""
        for op in (x for x in self.program.walk() if x.name in ("read", "write")):
            kind, over, at = places(op)
            index = dict(zip(kind.dims, over, strict=True)).get(dim)
            if index is not None and at and index in at[-1].symbols:
                return True
        return False

    def _divisors(self, op: Op, dim: Expr) -> set[Size]:
        """Return the set of numbers by which the read or write `op` divides the index of `dim`: k//64%3 gives {1, 64,
        192}.

        The set is empty if `op` does not divide the index. Return {0} if `op` divides a sum with this index, or divides
        by anything but sizes; `dim` is not split then.
        """
        kind = accessed(op)[1]
        if "at" not in op.attrs or dim not in kind.dims:
            return set()
        index = dict(zip(kind.dims, op.attrs["over"], strict=True))[dim]
        divisors: set[Size] = set()
        sizes = {s for n in self.sizes.values() if isinstance(n, Expr) for s in n.symbols}
        for node in (n for e in op.attrs["at"] for n in self.numbers(e).divisions(set()) if index in n.symbols):
            inner, divisor = node.parts
            inner_divisor: Expr = as_expr(1)
            if isinstance(inner, FloorDiv):
                inner, inner_divisor = inner.parts
            if inner is not index or not (divisor.symbols | inner_divisor.symbols) <= sizes:
                return {0}  # no chain of divisors has 0, so that `dim` is not split
            divisors |= {number_or(divisor * inner_divisor), number_or(inner_divisor)}
        return divisors

    # -- the program over them ----------------------------------------------------------------------------

    def run(self) -> tuple[Program, dict[Symbol, Size], set[Op]]:
        """Return (program over digits, {dimension: extent}, counterparts of the loops `self.free` in it).

        Digits are mixed-radix parts of a dimension: with k of extent 12 divided by 4, k//4 and k%4 become dimensions of
        extents 3 and 4. The second result has the given dimensions and the digits. Removed loops are not in the third.
        """
        rewritten = replace(self.program, body=self.body(self.program.body))
        return rewritten, self.sizes, {self.kept[op] for op in self.free if op in self.kept}

    def is_removed(self, op: Op) -> bool:
        """True if the loop `op` is removed: it only adds MMAs, and its axis is split into digits, over which the MMAs
        then sum.
        """
        return op in self.adding_loops and op.attrs["axis"] in self.groups


def _exprs(attrs: Mapping[str, object]) -> list[Expr]:
    """Return a list of the expressions among the values of `attrs`, {attribute name: value}.

    Expressions in tuples count, but not in tuples of tuples.
    """
    exprs: list[Expr] = []
    for value in attrs.values():
        for e in value if isinstance(value, tuple) else (value,):
            if isinstance(e, Expr):
                exprs.append(e)
    return exprs
