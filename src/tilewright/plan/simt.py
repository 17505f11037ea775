"""SIMT products: MMAs that lanes compute without MMA atoms, such as a depthwise or a single-channel convolution.

If a product has only one row or column, besides the dimensions that A, B and the result share, most of an atom would be
padding. If a shared dimension is contiguous, neighbouring lanes take neighbouring elements of it. Otherwise lanes run
along M, and their reads are strided. Each lane accumulates a vector or a box of results (`simt_boxes`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

from tilewright.algebra.expr import ONE, Expr, Symbol
from tilewright.algebra.expr_use import Substitution, linear_form
from tilewright.ir.core import Op, Program
from tilewright.machine import Machine
from tilewright.plan.accumulator_type import accumulator_type
from tilewright.plan.general import only_adds
from tilewright.plan.microkernel import mmas_by_name
from tilewright.plan.model import Size, element_bytes
from tilewright.plan.simt_boxes import SimtProduct


@dataclass(frozen=True)
class SimtMatch:
    """An MMA that lanes can compute without MMA atoms (SIMT): its parameters, and the read of its larger operand.

    `rows` are the dimensions that only this operand and the result have (M).
    """

    terms: SimtProduct
    read: Op
    rows: tuple[Expr, ...]


def match_simt_product(
    program: Program, free: Collection[Op], size: Size, numbers: Substitution, machine: Machine
) -> SimtMatch | str:
    """Return a SimtMatch if lanes can compute the program's single MMA without an atom (SIMT); else text: why not.

    Lanes can compute it under these conditions:

    - The MMA is in a loop over one dimension, K, which is no expression of sizes. The loop only adds up the MMA.
    - Besides the dimensions that A, B and the result share, M or N has only one element.
    - The loop reads the larger operand from memory.
    - The read is contiguous along a shared dimension. Or there is no shared dimension, the read states its coordinates,
      and the rows are one dimension, along which lanes run.

    `free` are the loops whose tile size does not change the result; the loop must be one of these. `size(d)` evaluates
    the extent of a dimension d, `numbers(e)` replaces the sizes in an expression e by numbers.
    """
    loops = [op for op in program.body.ops if op.name == "iterate" and op in free and only_adds(op)]
    products = list(mmas_by_name(program).values())
    if len(loops) != 1 or len(products) != 1 or products[0] not in loops[0].blocks[0].ops:
        return "it is not one loop that adds products"
    if not isinstance(loops[0].attrs["axis"], Symbol):
        return f"{loops[0].attrs['axis']} is an expression of sizes, of which loops take no part"
    (product,) = products
    a, b, c = (v.type.dims for v in product.operands)
    shared_dims = [d for d in a if d in b and d in c]
    if min(prod(size(d) for d in c if d in x and d not in shared_dims) for x in (a, b)) > 1:
        return "its accumulator has rows and columns"
    reads = {op.result: op for op in loops[0].blocks[0].ops if op.name == "read"}
    larger_operand = max(product.operands[:2], key=lambda v: prod(size(d) for d in v.type.dims))
    if larger_operand not in reads:
        return "an operand is computed"
    read = reads[larger_operand]
    contiguous = _contiguous_dim(read, numbers)
    rows = tuple(d for d in larger_operand.type.dims if d in c and d not in shared_dims)
    element_size, accumulator_size = (
        element_bytes(read.result.type.dtype),
        element_bytes(accumulator_type(product, machine)),
    )
    vector, word = machine.lane_access.vector_bytes, machine.register_file.word_bytes
    if contiguous is not None and contiguous in shared_dims:
        terms = SimtProduct(
            contiguous, vector // element_size, loops[0].attrs["axis"], element_size, accumulator_size, vector, word
        )
        return SimtMatch(terms, read, rows)
    if shared_dims or len(rows) != 1 or "at" not in read.attrs:
        return f"the dimension of both operands and the result is not contiguous in {read.operands[0].name}"
    return SimtMatch(
        SimtProduct(rows[0], 1, loops[0].attrs["axis"], element_size, accumulator_size, vector, word), read, rows
    )


def _contiguous_dim(read: Op, numbers: Substitution) -> Expr | None:
    """Return the dimension of the tile along which the operation `read` has stride 1 in memory; None if there is none.

    None too if the innermost memory coordinate depends on several indices, or if the memory is a scalar. `numbers(e)`
    replaces the sizes in an expression e by numbers.
    """
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
    contiguous: Expr = dims[over.index(next(iter(form[0])))]
    return contiguous
