"""The schedule of a kernel whose waves all run the same code: task widths, waves, loop tiles and microkernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, prod

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op
from tilewright.machine import Machine
from tilewright.plan.facts import Facts
from tilewright.plan.microkernel import Axes, Microkernel, axes_in
from tilewright.plan.search.kernel import Parts
from tilewright.plan.search.uniform_loops import loops_around
from tilewright.plan.tile_tasks import TileTask


@dataclass(frozen=True, eq=False)
class UniformKernelSchedule:
    """A kernel whose waves all run the same code. A task is one workgroup's tile (on a CPU one thread's).

    `widths` maps dimensions that the grid splits to elements per task. A task may loop over such a dimension again:
    `blocks` maps it to elements per iteration. `loops` maps the dimensions of other loops to elements per iteration.
    `products` has the microkernel of every MMA, None if lanes multiply without an atom. `backward`: tasks run in
    reverse, because data written last is still in L2. `parts` describes the pieces of a split reduction or loop; a task
    has `parts_of_task` of them.
    """

    facts: Facts
    machine: Machine
    widths: dict[Expr, int]
    waves: int
    loops: dict[Expr, int]
    products: dict[Op, Microkernel | None] = field(default_factory=dict)
    blocks: dict[Expr, int] = field(default_factory=dict)
    backward: bool = False
    parts: Parts | None = None
    parts_of_task: int = 1
    tile_task: TileTask | None = None
    """The MMAs of a task in tile registers, whose results are stored during the next accumulator tiles (`blocks`)."""
    staged: bool = False
    """True if a task in tile registers copies its rows of A first."""

    @property
    def family(self) -> str:
        """A name for this kind of kernel: "parts of a reduction" if it splits a reduction or a loop, "delayed stores"
        if results in tile registers are stored late, else "no pipeline".

        It is "parts of a reduction" if the kernel splits a reduction or a loop, else "no pipeline". The lowering tends
        to refuse all candidates of one kind for the same reason.
        """
        if self.tile_task is not None:
            return "delayed stores"
        return "no pipeline" if self.parts is None else "parts of a reduction"

    def width(self, d: Expr) -> int:
        """Return the extent of `d` in the innermost tile of this kernel, in elements; at least 1.

        It is per workgroup (on CPUs per thread) if the grid splits `d`; else per iteration if the kernel loops over
        `d`; else all of `d`.
        """
        return max(1, self.widths.get(d) or self.loops.get(d) or self.facts.number_of(d))

    def axes_of(self, op: Op) -> Axes | str:
        """Return the Axes of the mma `op`: its dimensions M, N, K and others in this kernel's innermost tile.

        If `op` has no accumulator tile, return text instead: why not. Results are kept for later calls.
        """
        if op not in self._axes:
            self._axes[op] = axes_in(op, self.width)
        return self._axes[op]

    @cached_property
    def _axes(self) -> dict[Op, Axes | str]:
        """Results of `axes_of` so far, by MMA."""
        return {}

    @cached_property
    def trips(self) -> dict[Op, int]:
        """{MMA: number of iterations of the loops around it within one task} for all MMAs of the program.

        A task is one workgroup's tile. The kernel may have a loop that the program does not have. That loop counts
        for each MMA with the loop's dimension.
        """
        program, size = self.facts.program, self.facts.number_of
        written = {op.attrs["axis"] for op in program.walk() if op.name == "iterate"}
        trips = dict[Op, int]()
        for op, loops in loops_around(program).items():
            dims = {d for v in op.operands for d in v.type.dims}
            axes = [*(loop.attrs["axis"] for loop in loops), *(d for d in self.loops if d in dims and d not in written)]
            trips[op] = prod(ceil(size(axis) / max(1, self.loops[axis])) for axis in axes if axis in self.loops)
        return trips
