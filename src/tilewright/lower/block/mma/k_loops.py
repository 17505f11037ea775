"""The K loops of an MMA, emitted by one function for all kinds of multiply steps.

for k_r in 0..3 unroll {        taps of a filter
  copy %w_view -> %slab         copies of a source in each iteration
  for e in 0..16 {              K in steps
    mma %sums += ...            the multiply step
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tilewright.algebra.expr import Expr, as_expr
from tilewright.analysis.flat_memory import Size
from tilewright.lower.block.lazy_tiles import divided
from tilewright.lower.block.mma.product import TileProduct
from tilewright.lower.block.mma.source import OperandSource
from tilewright.lower.block.mma.steps import MultiplyStep
from tilewright.lower.block.writer import word

T = TypeVar("T")


@dataclass(frozen=True)
class KRun:
    """Iterations of a K loop, from number `first` up to, and without, `end`; each covers `step` elements.

    Iteration n begins at index `base` + `step` * n.
    """

    end: Expr | Size
    step: int = 1
    first: Expr | int = 0
    base: Expr | int = 0
    unroll: bool = False


@dataclass(frozen=True)
class KLoop:
    """A loop over a summed dimension; `runs` is called inside the loops around, as limits depend on their indices.

    Several runs follow each other, each with all inner loops: full steps and a ragged rest, or a peeled iteration. If
    `written`, iterations are unrolled here with constant indices, and no loop is emitted.
    """

    dim: Expr
    name: str
    runs: Callable[[], Sequence[KRun]]
    written: bool = False


def chunks(count: Size, at_once: int, size: int = 1) -> list[KRun]:
    """Return the runs of loop iterations (KRun) over `count` chunks of `size` elements.

    Each iteration has `at_once` chunks. The rest is one iteration, or, if `count` is known only at the call, one
    iteration for each chunk. Runs without iterations are left out.

    >>> [(r.end, r.step, r.base) for r in chunks(10, 4)], [(r.end, r.step, r.base) for r in chunks(8, 4)]
    ([(2, 4, 0), (1, 2, 8)], [(2, 4, 0)])
    """
    full, tail = divided(count, at_once)
    rest = (1, tail) if isinstance(tail, int) else (tail, 1)
    runs = (full, at_once, 0), (*rest, full * at_once)
    return [KRun(n, width * size, base=first * size) for n, width, first in runs if n != 0 and width != 0]


def over_taps(product: TileProduct, source: OperandSource, dim: Expr, unrolled: bool, taps: int = 1) -> KLoop:
    """Return the KLoop over `dim`, a reduction dimension beside K such as a filter tap, in steps of `taps` indices.

    If `unrolled`, the loop covers the whole dimension. Otherwise `source`, an operand, gives the limits of the loop,
    which may leave out indices that are out of bounds, and says whether it is unrolled.
    """

    def runs() -> list[KRun]:
        """Return the loop's iterations as a list of one KRun."""
        first, end, unroll = (as_expr(0), as_expr(product.width(dim)), True) if unrolled else source.limits(dim)
        return [KRun(end if taps == 1 else end // taps, taps, first, unroll=unroll)]

    return KLoop(dim, f"k_{word(dim)}", runs)


def write_nest(
    product: TileProduct, loops: Sequence[KLoop], sources: Sequence[OperandSource], step: MultiplyStep
) -> None:
    """Emit the K `loops`, outermost first, and inside the innermost the multiply `step`.

    In front of each loop, the `step` emits what it needs; in each iteration, the operands (`sources`) first emit the
    copies that they need. Within the loops, `product.at` and `product.steps` have the index and step of each loop; at
    the end, they have their former values.
    """
    if not loops:
        step.multiply()
        return
    loop, *inner = loops
    step.begin(loop.dim)
    outer_index, outer_step = product.at.get(loop.dim), product.steps.get(loop.dim)

    def enter(run: KRun, number: Expr) -> None:
        """Emit iteration `number` of `run`: the operands' copies, then the inner loops."""
        index = run.base + run.step * number
        product.at[loop.dim], product.steps[loop.dim] = index if outer_index is None else outer_index + index, run.step
        for source in sources:
            source.copy_for(loop.dim)
        write_nest(product, inner, sources, step)

    for run in loop.runs():
        if loop.written:
            for n in range(int(run.end)):
                enter(run, as_expr(n))
            continue
        with product.w.loop(loop.name, run.end, run.first, unroll=run.unroll) as number:
            enter(run, number)
    _restore(product.at, loop.dim, outer_index)
    _restore(product.steps, loop.dim, outer_step)


def _restore(known: dict[Expr, T], dim: Expr, before: T | None) -> None:
    """Set known[dim] to `before`, the value it had before a loop over `dim`; if that is None, remove the entry."""
    if before is None:
        known.pop(dim, None)
    else:
        known[dim] = before
