"""Short axes of an elementwise job, merged so that vectors are full.

A vector holds neighbouring elements of the target. If the extent of the last axis is not a multiple of the vector's
lanes, the axis is merged with the axis before it:

for i in 0..64, j in 0..2:  y[2*i + j] = x[i]   ->   for m in 0..128:  y[m] = x[m//2]

A source that does not depend on the last axis is broadcast along it. After the merge, several neighbouring lanes have
the same element of it.
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
    """Return `job`, an elementwise job with all operands in memory, with its last axes merged until the extent of the
    last axis is a multiple of a vector's lanes, or until they cannot be merged. Axes of extent 1 are skipped.
    """
    lanes = low.vector_lanes(job.dtype)
    while (merged := _merged(low, job, lanes)) is not None:
        job = merged
    return job


def _merged(low: LoopLowering, job: ElementwiseJob, lanes: int) -> ElementwiseJob | None:
    """Return the job with its last two axes of an extent above 1 merged into one.

    Return None if fewer than two axes have an extent above 1, if an extent of the two is known only at the call, or if
    the last one is a multiple of `lanes`. Return None too if an operand does not allow the merge (see `_repeats`), or
    if the number of times that it repeats an element does not divide `lanes`.
    """
    axes_to_merge = [n for n, size in enumerate(job.shape) if size != 1][-2:]
    if len(axes_to_merge) < 2:
        return None
    outer, inner = axes_to_merge
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

    def along_merged_axes(at: At) -> At:
        """Return the address function `at` as a function of coordinates along the merged axes."""
        return lambda coordinates: at(expanded(coordinates))

    shape = tuple(1 if n == outer else rows * columns if n == inner else size for n, size in enumerate(job.shape))
    operands: dict[int, At | Vectors] = {number: along_merged_axes(at) for number, at in memory_operands(job).items()}
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
    """Return {operand number: number of neighbouring elements along the merged axis that read the same element of the
    operand}. `outer` and `inner` are the numbers of the axes to merge. The target is operand number 0.

    Return None if the target is not contiguous along the merged axis, or if an operand has a bounds check that depends
    on these axes. Return None too if the elements of an operand are neither equally spaced along the merged axis nor
    contiguous along `outer` and the same along `inner`.
    """
    axes = tuple(low.axis(f"i{n}", size) for n, size in enumerate(job.shape))
    columns, repeats = job.shape[inner], dict[int, int]()
    for number, at in memory_operands(job).items():
        address, repeat = at(axes), job.repeats.get(number, 1)
        if any({axes[outer], axes[inner]} & condition.symbols for condition in address.conditions):
            return None
        outer_step = linear_step(address.offset, axes[outer])
        inner_step = 0 if repeat > 1 else linear_step(address.offset, axes[inner])
        if outer_step is None or inner_step is None or (number == 0 and inner_step != 1):
            return None
        if repeat > 1 and outer_step * repeat == columns:
            repeats[number] = repeat
        elif repeat == 1 and outer_step == inner_step * columns:
            repeats[number] = 1
        elif repeat == 1 and (outer_step, inner_step) == (1, 0):
            repeats[number] = int(columns)
        else:
            return None
    return repeats
