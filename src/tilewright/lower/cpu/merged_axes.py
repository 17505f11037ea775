"""Short axes of an elementwise job, merged so that vectors are full.

A vector holds neighbouring elements of the target. If the last axis has fewer of them than a vector has lanes, it is
merged with the axis before it:

for i in 0..64, j in 0..2:  y[2*i + j] = x[i]   ->   for m in 0..128:  y[m] = x[m//2]

A source that the last axis leaves out is then read by fewer lanes than the target has: each element is repeated.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.algebra.expr import Expr
from tilewright.algebra.expr_use import Substitution
from tilewright.analysis.flat_memory import linear_step
from tilewright.lower.cpu.elementwise_job import At, ElementwiseJob, memory_operands
from tilewright.lower.cpu.register_forms import Vectors
from tilewright.lower.loop_lowering import LoopLowering


def with_full_vectors(low: LoopLowering, job: ElementwiseJob) -> ElementwiseJob:
    """Return the job, whose operands are all in memory, with its last axes merged until vectors along the last one are
    full, or until they cannot be merged.
    """
    lanes = low.vector_lanes(job.dtype)
    while (merged := _merged(low, job, lanes)) is not None:
        job = merged
    return job


def _merged(low: LoopLowering, job: ElementwiseJob, lanes: int) -> ElementwiseJob | None:
    """Return the job with its last two axes merged into one. Return None if vectors of `lanes` elements fill the last
    axis already, or if an operand does not allow it.
    """
    dims = [n for n, size in enumerate(job.shape) if size != 1]
    if len(dims) < 2:
        return None
    outer, inner = dims[-2:]
    rows, columns = job.shape[outer], job.shape[inner]
    if not isinstance(rows, int) or not isinstance(columns, int) or columns % lanes == 0:
        return None
    repeats = _repeats(low, job, outer, inner)
    if repeats is None or any(lanes % repeat for repeat in repeats.values()):
        return None

    def expanded(coordinates: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return coordinates along the axes before the merge. The merged axis takes the place of the inner one."""
        both = list(coordinates)
        both[outer], both[inner] = coordinates[inner] // columns, coordinates[inner] % columns
        return tuple(both)

    def seen(at: At) -> At:
        return lambda coordinates: at(expanded(coordinates))

    shape = tuple(1 if n == outer else rows * columns if n == inner else size for n, size in enumerate(job.shape))
    operands: dict[int, At | Vectors] = {number: seen(at) for number, at in memory_operands(job).items()}
    over = tuple(low.axis("i", size) for size in shape) if job.over else ()
    images = Substitution(dict(zip(job.over, expanded(over), strict=True)) if over else {})
    return replace(
        job,
        shape=shape,
        target=operands.pop(0),
        sources=operands,
        over=over,
        formula=job.formula.mapped(images),
        repeats={number: repeat for number, repeat in repeats.items() if repeat > 1},
    )


def _repeats(low: LoopLowering, job: ElementwiseJob, outer: int, inner: int) -> dict[int, int] | None:
    """Return {operand number: how many neighbours along the merged axis share an element of it}, for the merge of the
    axes number `outer` and `inner`. 0 is the target, of which each element is its own.

    Return None if the target is not contiguous along the merged axis, if an operand has a bounds check that depends on
    these axes, or if its elements are neither equally spaced nor repeated along the merged axis.
    """
    axes = tuple(low.axis(f"i{n}", size) for n, size in enumerate(job.shape))
    columns, repeats = job.shape[inner], dict[int, int]()
    for number, at in memory_operands(job).items():
        where, known = at(axes), job.repeats.get(number, 1)
        if any({axes[outer], axes[inner]} & condition.symbols for condition in where.conditions):
            return None
        step = linear_step(where.offset, axes[outer])
        along = 0 if known > 1 else linear_step(where.offset, axes[inner])
        if step is None or along is None or (number == 0 and along != 1):
            return None
        if known > 1 and step * known == columns:
            repeats[number] = known
        elif known == 1 and step == along * columns:
            repeats[number] = 1
        elif known == 1 and (step, along) == (1, 0):
            repeats[number] = int(columns)
        else:
            return None
    return repeats
