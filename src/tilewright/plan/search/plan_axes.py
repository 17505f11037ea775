"""The axes of a given plan, by the dimensions of its program: extents of tasks and loop iterations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.algebra.expr import Expr
from tilewright.plan.facts import Facts
from tilewright.plan.general import words_for
from tilewright.plan.schedule import Axis, Schedule
from tilewright.plan.search.kernel import Parts


@dataclass(frozen=True)
class PlanAxes:
    """The axes of a given plan, by the dimensions of its program; a dimension of one element may have none.

    `parts` describes the pieces of a reduction or of K; it is None if the plan splits neither.
    """

    facts: Facts
    axes: Mapping[Expr, Axis]
    parts: Parts | None
    parts_of_task: int
    """Parts of a reduction that a task has."""

    def task(self, d: Expr) -> int | None:
        """Return the number of elements of `d` per task (workgroup's tile); None if the grid does not split `d`."""
        return self._split_size(d, "task")

    def loop(self, d: Expr) -> int | None:
        """Return the number of elements of `d` per loop iteration; None if the plan has no loop over `d`."""
        return self._split_size(d, "loop")

    def digit_sizes(self, d: Expr, level: str) -> dict[str, int]:
        """Return {digit: elements} for each digit (mixed-radix part) of `d` that the plan splits separately.

        The elements are per task (workgroup) if `level` is "task", per iteration if it is "loop". Return {} if the plan
        splits `d` as a whole, or not at all.
        """
        axis = self.axes.get(d)
        splits = () if axis is None else axis.splits
        return {s.digit: s.size for s in splits if s.level == level and s.digit is not None}

    def _split_size(self, d: Expr, level: str) -> int | None:
        """Return the elements of `d` per workgroup (`level` "task") or iteration ("loop"); None without a split."""
        axis = self.axes.get(d)
        split = None if axis is None else axis.split(level)
        return None if split is None else split.size


def plan_axes(facts: Facts, plan: Schedule) -> PlanAxes | str:
    """Find the axis of a given plan for each dimension of the program; return a PlanAxes, or text: what the plan lacks.

    Each dimension with several elements needs an axis. If the plan splits a reduction over K into parts, it needs two
    axes instead of that of K: `K_split`, which counts parts, and `K_part`, within a part. `facts` is the analysed
    program.
    """
    parts, parts_of_task = None, 1
    named = {axis.name: axis for axis in plan.axes}
    if plan.parts is not None:
        dim, count = plan.parts
        split, part = named.get(f"{dim}_split"), named.get(f"{dim}_part")
        if split is None or part is None or not (dim in facts.extents or dim in facts.digits):
            return f"`parts {dim} {count}` has no axes {dim}_split and {dim}_part"
        parts, task = Parts(dim, count, part.padded_extent), split.split("task")
        parts_of_task = 1 if task is None else task.size
    words = words_for(f"{d}_part" if parts is not None and str(d) == parts.dim else str(d) for d in facts.order)
    axes = {d: named[word] for d, word in zip(facts.order, words.values(), strict=True) if word in named}
    size = facts.number_of
    for d in facts.order:
        if d not in axes and size(d) > 1:
            return f"no axis of the plan is {d}"
    return PlanAxes(facts, axes, parts, parts_of_task)
