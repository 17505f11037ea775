"""The plan (Schedule) of a SIMT kernel: lanes multiply, without MMA atoms."""

from __future__ import annotations

from math import ceil, prod

from tilewright.algebra.expr import Expr
from tilewright.plan.facts import Facts
from tilewright.plan.general import axis_of
from tilewright.plan.schedule import Axis, Digit, ProductUnit, Schedule, Split
from tilewright.plan.search.simt import SimtKernelSchedule, SimtProgram


def plan_of_simt(kernel: SimtKernelSchedule) -> Schedule:
    """Return the plan (a Schedule) of a SIMT kernel (lanes multiply without atoms).

    It has an axis for each dimension that the grid splits, then one for each that it does not split, and one axis for
    all of K.
    """
    program, facts = kernel.program, kernel.program.facts
    axes, tasks = [], []
    for d in facts.cut:
        tasks.append(str(d))
        axes.append(_grid_axis(kernel, d))
    whole = [d for d in facts.order if d not in facts.cut and d not in program.k_dims]
    axes += [axis_of(str(d), _extent(facts, d), ()) for d in whole]
    tile = kernel.terms.k_step
    axes.append(
        axis_of(
            name_of_k_axis(program), program.k_elements, (Split("loop", tile),) if tile < program.k_elements else ()
        )
    )
    return Schedule(
        tuple(axes),
        tuple(tasks),
        products=(ProductUnit("mma", None),),
        order="contiguous" if kernel.sizes else "cyclic",
        waves=kernel.waves,
        early=True if "programmatic" in program.machine.launches else None,
    )


def name_of_k_axis(program: SimtProgram) -> str:
    """Return the name that a SIMT plan gives to its axis of K, which has all dimensions of K as one flat index.

    It is the name of the first K dimension of `program`. If there are several, its part from the last `_` on is
    dropped: K_1 and K_0 give K.
    """
    first = str(program.k_dims[0])
    return first.rpartition("_")[0] if len(program.k_dims) > 1 else first


def _extent(facts: Facts, d: Expr) -> int:
    """Return the number of elements of the program dimension `d` in the whole problem.

    If `d` was split into digits (mixed-radix parts), it is the product of their extents. `facts` is the analysed
    program.
    """
    return prod(facts.extents.get(name, 1) for name in facts.digit_names(d))


def _grid_axis(kernel: SimtKernelSchedule, d: Expr) -> Axis:
    """Return the plan's Axis (extents, and splits by tasks and lanes) of the dimension `d`, which the grid splits.

    `kernel` has the elements of `d` per workgroup. If `d` is M and each lane computes a box (rectangle) of results,
    each digit (mixed-radix part) of `d` is padded to whole boxes.
    """
    facts = kernel.program.facts
    if d is not kernel.program.row or kernel.outer is None:
        return axis_of(str(d), _extent(facts, d), (Split("task", kernel.widths[d]),))
    digits = [Digit(n, facts.extents[n], ceil(facts.extents[n] / b) * b) for n, b in kernel.sizes.items()]
    units = [Split("unit", b, n) for n, b in kernel.sizes.items() if b > 1]
    task = Split("task", kernel.widths[kernel.outer] * prod(kernel.sizes.values()))
    return Axis(str(d), tuple(digits), (task, *units))
