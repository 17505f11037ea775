"""Finds adjacent GEMMs: a dimension along which rows of A begin right behind each other, so that several are one row.

    %1 = read %x over=[g, i, c] at=[i//196, i//14%14, i%14, 16*g + c] : bf16[G, M, K]
    %1 = read %x over=[i, c] at=[i//196, i//14%14, i%14, c] : bf16[M, K]                      %x has 16 channels

Neighbours along G, and along M, are 16 elements apart, which is the extent of K: several of them are one longer row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tilewright.algebra.expr import Expr, Symbol
from tilewright.algebra.expr_rules import add_all, linear
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import MemoryType, Op, Program, Value
from tilewright.plan.microkernel import axes_in
from tilewright.rewrite.operand_copies import Numbered, Shape, factor_reads, steps_of


@dataclass(frozen=True)
class Neighbours:
    """Adjacent GEMMs that can be merged: the dimension `d` along which they lie, N and K of one, and the reads of A and
    B.
    """

    product: Op
    d: Expr
    n: Expr
    k: Expr
    a: Numbered
    b: Numbered

    @property
    def count(self) -> int:
        """The number of adjacent GEMMs: the extent of the dimension `self.d` that numbers them."""
        return self.a.extent(self.d)

    @property
    def size(self) -> tuple[int, int]:
        """(extent of N, extent of K) of one of the adjacent GEMMs."""
        return self.b.extent(self.n), self.b.extent(self.k)


def find_groupable_gemms(
    program: Program, sizes: Mapping[Symbol, int], shapes: Mapping[Value, Shape]
) -> Neighbours | str:
    """Return the GEMMs of a batch as a Neighbours, if several at a time can be one GEMM with a block-diagonal B.

    Otherwise return text: why not. The GEMMs are adjacent: along a dimension of C, each row of A begins in memory
    directly behind the row before. The first such dimension is taken. The program must have exactly one MMA. A and B
    must be plain reads of arguments that nothing else uses, and only B may have N. `sizes` is {dimension: extent},
    `shapes` is {argument: extents}.
    """
    products = [op for op in program.walk() if op.name == "mma"]
    if len(products) != 1:
        return f"it has {len(products)} products"
    (product,) = products
    numbers = Substitution(dict(sizes))
    axes = axes_in(product, lambda d: int(numbers(d)))
    if isinstance(axes, str):
        return axes
    reads = factor_reads(program, product, sizes, shapes)
    if isinstance(reads, str):
        return reads
    a, b = reversed(reads) if axes.swapped else reads
    if axes.n not in b.over or axes.n in a.over:
        return "B has no N"
    for d in (d for d in product.result.type.dims if d in a.over and a.extent(d) > 1):
        if has_run(a, d, axes.k) or as_run(a, d, axes.k) is not None:
            return Neighbours(product, d, axes.n, axes.k, a, b)
    return f"neighbours of {a.source.name} along no dimension lie behind each other"


def has_run(access: Numbered, outer: Expr, inner: Expr) -> bool:
    """True if the last memory coordinate of `access`, a read or write, has the term outer * extent(inner) + inner.

    `outer` and `inner` are dimensions of the tile. Their indices may occur neither elsewhere in this coordinate nor in
    another one. For example, `16*g + c` has such a run for 16 channels c.
    """
    d, k = access.over[outer], access.over[inner]
    *others, last = access.at
    return _is_run(last, d, k) and not any({d, k} & e.symbols for e in others)


def as_run(access: Numbered, outer: Expr, inner: Expr) -> tuple[Symbol, ...] | None:
    """Return the iterators of `access` in the order of a packed tensor with one dimension for each of them; None if
    impossible.

    This tensor has the elements of the accessed tensor in the same order in memory. For example, the coordinates
    (i//14, i%14, c) of a tensor (14, 14, 16) give (i, c): the packed tensor is (196, 16). The last two iterators are
    those of the dimensions `outer` and `inner`. None also if the access may be out of bounds, or the tensor has strides
    or extents in its type.
    """
    d, k = access.over[outer], access.over[inner]
    kind: MemoryType = access.source.type
    inside = all(is_inside(e, n) for e, n in zip(access.at, access.shape, strict=True))
    if not inside or kind.strides is not None or kind.extents is not None:
        return None
    address = add_all(e * step for e, step in zip(access.at, steps_of(access.shape), strict=True))
    first, terms = linear(address)
    ordered = sorted(terms, key=lambda term: -term[1])
    symbols = [s for s, _ in ordered]
    if first or not _is_run(address, d, k) or any(s not in access.over.values() for s in symbols):
        return None
    shape = tuple(int(s.hi or 0) + 1 for s in symbols)
    if tuple(step for _, step in ordered) != steps_of(shape) or prod(shape) != prod(access.shape):
        return None
    return tuple(s for s in symbols if isinstance(s, Symbol))


def _is_run(e: Expr, d: Symbol, k: Symbol) -> bool:
    """True if the expression `e` is extent(k) * d + k plus terms that use neither `d` nor `k`, two iterators."""
    weights = dict(linear(e)[1])
    steps = weights.pop(d, 0), weights.pop(k, 0)
    return steps == (int(k.hi) + 1, 1) and not any({d, k} & term.symbols for term in weights)


def is_inside(e: Expr, extent: int) -> bool:
    """True if the bounds of the coordinate `e` are known constants that lie within 0..extent-1."""
    return isinstance(e.lo, int) and isinstance(e.hi, int) and e.lo >= 0 and e.hi < extent
