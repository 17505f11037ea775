"""Products that lanes do term by term: the channels of a depthwise convolution, or a convolution with one result.

Where the sum has but one column beside what both factors keep, an atom's columns stand empty. Neighbours along what is
kept lie side by side in memory, so they go to neighbouring lanes, and every lane adds up the terms of its own elements,
one step of the loop after the other; or those of a box of results that lie next to each other (`term_boxes`), along
digits of the rows. Where what lies side by side is summed, lanes go along the rows, in such boxes alone: what one lane
reads lies apart from what its neighbour does.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

from tilewright.algebra.expr import ONE, Expr, Symbol
from tilewright.algebra.expr_use import Substitution, linear_form
from tilewright.ir.core import Op, Program
from tilewright.machine import Machine
from tilewright.plan.general import only_adds
from tilewright.plan.microkernel import names_of
from tilewright.plan.model import Size, element_bytes
from tilewright.plan.sums import summed_in
from tilewright.plan.term_boxes import Terms


@dataclass(frozen=True)
class TermProduct:
    """A product that lanes may do term by term: how, the read of the factor with rows, and these rows."""

    terms: Terms
    read: Op
    rows: tuple[Expr, ...]


def product_by_terms(
    program: Program, free: Collection[Op], size: Size, numbers: Substitution, machine: Machine
) -> TermProduct | str:
    """The one product of a program, where lanes may do it term by term; or why they do not."""
    loops = [op for op in program.body.ops if op.name == "iterate" and op in free and only_adds(op)]
    products = list(names_of(program).values())
    if len(loops) != 1 or len(products) != 1 or products[0] not in loops[0].blocks[0].ops:
        return "it is not one loop that adds products"
    if not isinstance(loops[0].attrs["axis"], Symbol):
        return f"{loops[0].attrs['axis']} is an expression of sizes, of which loops take no part"
    (product,) = products
    a, b, c = (v.type.dims for v in product.operands)
    kept = [d for d in a if d in b and d in c]
    if min(prod(size(d) for d in c if d in x and d not in kept) for x in (a, b)) > 1:
        return "its sums have rows and columns"
    reads = {op.result: op for op in loops[0].blocks[0].ops if op.name == "read"}
    factor = max(product.operands[:2], key=lambda v: prod(size(d) for d in v.type.dims))
    if factor not in reads:
        return "a factor is computed"
    read = reads[factor]
    side = _side_by_side(read, numbers)
    rows = tuple(d for d in factor.type.dims if d in c and d not in kept)
    each, wide = element_bytes(read.result.type.dtype), element_bytes(summed_in(product, machine))
    vector, word = machine.lane_access.vector_bytes, machine.register_file.word_bytes
    if side is not None and side in kept:
        terms = Terms(side, vector // each, loops[0].attrs["axis"], each, wide, vector, word)
        return TermProduct(terms, read, rows)
    if kept or len(rows) != 1 or "at" not in read.attrs:
        return f"what both factors keep does not lie side by side in {read.operands[0].name}"
    return TermProduct(Terms(rows[0], 1, loops[0].attrs["axis"], each, wide, vector, word), read, rows)


def _side_by_side(read: Op, numbers: Substitution) -> Expr | None:
    """The dimension of a read whose neighbours are neighbours in memory; None where there is none, or several are."""
    dims = read.result.type.dims
    if not read.operands[0].type.dims:
        return None
    if "at" not in read.attrs:
        last: Expr = read.operands[0].type.dims[-1]
        return last if last in dims else None
    over = read.attrs["over"]
    form = linear_form(numbers(read.attrs["at"][-1]), over)
    if form is None or len(form[0]) != 1 or next(iter(form[0].values())) is not ONE:
        return None
    found: Expr = dims[over.index(next(iter(form[0])))]
    return found
