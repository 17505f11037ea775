"""The K loops of an MMA: one function writes them, whatever is multiplied in them.

for k_r in 0..3 unroll {        taps of a filter
  copy %w_view -> %slab         what a source brings in each iteration
  for e in 0..16 {              K in steps
    mma %sums += ...            the multiply step
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tilewright.algebra.expr import Expr, as_expr
from tilewright.passes.places import Size
from tilewright.passes.tile.product.product import TileProduct
from tilewright.passes.tile.product.source import OperandSource
from tilewright.passes.tile.product.steps import MultiplyStep
from tilewright.passes.tile.values import divided
from tilewright.passes.tile.writer import word

T = TypeVar("T")


@dataclass(frozen=True)
class KRun:
    """Iterations of a loop, from number `first` up to `end`, each of `step` elements; number 0 begins at `base`."""

    end: Expr | Size
    step: int = 1
    first: Expr | int = 0
    base: Expr | int = 0
    unroll: bool = False


@dataclass(frozen=True)
class KLoop:
    """A loop over a summed dimension. `runs` are asked for where the loops around it are open: limits depend on them.

    Several runs follow each other, each with all loops inside: whole steps and what is left, or a peeled iteration.
    If `written`, the iterations are written here, with indices that are numbers, and there is no loop.
    """

    dim: Expr
    name: str
    runs: Callable[[], Sequence[KRun]]
    written: bool = False


def chunks(count: Size, at_once: int, size: int = 1) -> list[KRun]:
    """Return the runs over `count` chunks of `size` elements: `at_once` in an iteration, then what is left.

    That is one iteration; chunk by chunk if only a call tells how many are left.

    >>> [(r.end, r.step, r.base) for r in chunks(10, 4)], [(r.end, r.step, r.base) for r in chunks(8, 4)]
    ([(2, 4, 0), (1, 2, 8)], [(2, 4, 0)])
    """
    full, tail = divided(count, at_once)
    rest = (1, tail) if isinstance(tail, int) else (tail, 1)
    runs = (full, at_once, 0), (*rest, full * at_once)
    return [KRun(n, width * size, base=first * size) for n, width, first in runs if n != 0 and width != 0]


def over_taps(product: TileProduct, source: OperandSource, dim: Expr, unrolled: bool, taps: int = 1) -> KLoop:
    """Return the loop over a summed dimension beside K, limited to what is in bounds of `source` unless unrolled."""

    def runs() -> list[KRun]:
        first, end, out = (as_expr(0), as_expr(product.width(dim)), True) if unrolled else source.limits(dim)
        return [KRun(end if taps == 1 else end // taps, taps, first, unroll=out)]

    return KLoop(dim, f"k_{word(dim)}", runs)


def write_nest(
    product: TileProduct, loops: Sequence[KLoop], sources: Sequence[OperandSource], step: MultiplyStep
) -> None:
    """Emit K loops, outermost first, with what the sources bring in each, and the multiply step inside."""
    if not loops:
        step.multiply()
        return
    loop, *inner = loops
    step.begin(loop.dim)
    base, size = product.at.get(loop.dim), product.steps.get(loop.dim)

    def enter(run: KRun, number: Expr) -> None:
        index = run.base + run.step * number
        product.at[loop.dim], product.steps[loop.dim] = index if base is None else base + index, run.step
        for source in sources:
            source.bring(loop.dim)
        write_nest(product, inner, sources, step)

    for run in loop.runs():
        if loop.written:
            for n in range(int(run.end)):
                enter(run, as_expr(n))
            continue
        with product.w.loop(loop.name, run.end, run.first, unroll=run.unroll) as number:
            enter(run, number)
    _restore(product.at, loop.dim, base)
    _restore(product.steps, loop.dim, size)


def _restore(known: dict[Expr, T], dim: Expr, before: T | None) -> None:
    """Set what a loop over `dim` changed to what it was `before`."""
    if before is None:
        known.pop(dim, None)
    else:
        known[dim] = before
