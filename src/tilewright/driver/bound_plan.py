"""The values that passes hand on: a plan bound to the kernels of a request, and the result of a compile.

| kernels of a plan    | what runs                                                             |
|----------------------|-----------------------------------------------------------------------|
| `OneKernel`          | one kernel                                                            |
| `MergedParts`        | a kernel over parts of a reduction, then one that merges them         |
| `TwoKernels`         | two kernels, with a value in memory between them                      |
| `RepackedKernels`    | kernels that repack operands, then the kernel on the copies           |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tilewright.analysis.flat_memory import Size
from tilewright.driver.request import Request, SizedProgram
from tilewright.ir.module import Module
from tilewright.lower.block.lower import Lowered
from tilewright.plan.bound import BoundKernel
from tilewright.plan.choice import Choice
from tilewright.plan.schedule import Schedule

ProductDims = tuple[tuple[str, ...], tuple[str, ...], str]
"""Names of dimensions of an MMA: those of M, those of N, and the last one of K."""


@dataclass(frozen=True)
class OneKernel:
    """The program of one kernel, as it is lowered, and its plan, bound to that program."""

    sized: SizedProgram
    bound: BoundKernel
    in_boxes: bool = False
    """True if its rows are boxes of their digits: halo tiles, or boxes of lanes."""
    dims: ProductDims | None = None
    """For a CPU plan with axes `rows`, `columns` and `depth`: the names of the dimensions that these stand for."""
    unpadded: Mapping[str, tuple[Size, ...]] = field(default_factory=dict)
    """The arguments that are copied with zeros after K: {name: extents without the zeros}."""


@dataclass(frozen=True)
class MergedParts:
    """A kernel over parts of a reduction, and the plan of the kernel that merges them."""

    first: OneKernel
    merge: BoundPlan


@dataclass(frozen=True)
class TwoKernels:
    """The plans of two kernels, with a value that goes through memory from the first to the second."""

    first: BoundPlan
    second: BoundPlan


@dataclass(frozen=True)
class RepackedKernels:
    """The plans of the kernels that repack operands, with a note on each, and of the kernel on the copies."""

    copies: tuple[BoundPlan, ...]
    main: BoundPlan
    notes: tuple[str, ...]

    def runs_at_every_launch(self, constant: Collection[str]) -> tuple[bool, ...]:
        """Return a tuple of bools, one for each copy kernel: True if it runs at every launch.

        It is False if the argument that the kernel copies is among the names in `constant`: the kernel then runs once,
        when arguments are bound.
        """
        return tuple(copy.request.program.args[0].name not in constant for copy in self.copies)


Kernels = OneKernel | MergedParts | TwoKernels | RepackedKernels


class FurtherPlans(Protocol):
    """The plans of a request that have not been tried yet, the best first."""

    def after(self, why: str, overflows: bool) -> tuple[BoundPlan, bool]:
        """Return (the next bound plan to try, True if it is the last one) after the lowering refused a plan.

        `why` is the reason of the refusal. `overflows` is True if the only reason is too little shared memory. Raise a
        ProgramError if no plan can be tried. Classes that rank plans define this method.
        """


@dataclass(frozen=True)
class BoundPlan:
    """A plan of a request, the choice that explains it, and the kernels to which it is bound."""

    request: Request
    """The request, with its program rewritten as the plan says."""
    plan: Schedule
    choice: Choice
    kernels: Kernels
    further: FurtherPlans | None = None
    """The ranked plans that are tried next if the lowering refuses this one."""
    unpinned: Callable[[], BoundPlan] | None = None
    """For a pinned plan: a function that returns the plan that is chosen without it."""


@dataclass(frozen=True)
class Realised:
    """The result of a compile: the plan, the choice that explains it, its block programs, and the module that launches
    them.
    """

    plan: Schedule
    choice: Choice
    lowered: Lowered
    module: Module


RequestForms = tuple[Request, ...]
"""A request in one or two forms: over digits of its dimensions, if accesses divide them; then over whole dimensions."""


class ChoosePlan(Protocol):
    """The type of the function that plans a request: `choosing.choose_plan`."""

    def __call__(self, forms: RequestForms, between: str = "") -> BoundPlan:
        """Return the chosen plan of a request, bound to its kernels. `choose_plan` is a function of this type.

        `forms` is the request over digits (mixed-radix parts) of its dimensions, then over whole dimensions. `between`
        names the argument that the preceding kernel writes, "" if there is none.
        """


LowerPlan = Callable[[BoundPlan], tuple[BoundPlan, Lowered]]
"""The function that lowers a bound plan, or one that is ranked after it: `pipeline.lower_plan`."""
