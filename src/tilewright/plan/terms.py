"""Products that lanes do term by term: the channels of a depthwise convolution.

Where both factors and the sum keep a dimension, and the sum has but one column beside it, an atom's columns stand
empty. Neighbours along what is kept lie side by side in memory, so they go to neighbouring lanes, and every lane adds
up the terms of its own elements, one step of the loop after the other.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from tilewright.algebra.expr import ONE, Expr
from tilewright.algebra.expr_use import Substitution, linear_form
from tilewright.ir.core import Op, Program
from tilewright.plan.general import only_adds
from tilewright.plan.microkernel import names_of
from tilewright.plan.model import Size


def kept_by_terms(program: Program, free: Collection[Op], size: Size, numbers: Substitution) -> Expr | str:
    """The dimension along which lanes do a program's product term by term; or why they do not."""
    loops = [op for op in program.body.ops if op.name == "iterate" and op in free and only_adds(op)]
    products = list(names_of(program).values())
    if len(loops) != 1 or len(products) != 1 or products[0] not in loops[0].blocks[0].ops:
        return "it is not one loop that adds products"
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
    if side is None or side not in kept:
        return f"what both factors keep does not lie side by side in {read.operands[0].name}"
    return side


def _side_by_side(read: Op, numbers: Substitution) -> Expr | None:
    """The dimension of a read whose neighbours are neighbours in memory; None where there is none, or several are."""
    dims = read.result.type.dims
    if "at" not in read.attrs:
        last: Expr = read.operands[0].type.dims[-1]
        return last if last in dims else None
    over = read.attrs["over"]
    form = linear_form(numbers(read.attrs["at"][-1]), over)
    if form is None or len(form[0]) != 1 or next(iter(form[0].values())) is not ONE:
        return None
    found: Expr = dims[over.index(next(iter(form[0])))]
    return found
