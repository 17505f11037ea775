"""What the search gives: candidates in the order of one key, and what was rejected, with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.plan.search.kernel import KernelSchedule
    from tilewright.plan.search.simt import TermKernelSchedule
    from tilewright.plan.search.uniform import UniformKernelSchedule

ENOUGH_STAGES = 4
"""Pipeline stages beyond which more help little."""
Key = tuple[float, ...]


@dataclass(frozen=True)
class Rejected:
    """A choice that is not made, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class PlanCandidate:
    """A way to do a program: the rewrites before its kernel, the kernel, what follows it, and the cycles of all."""

    kernel: KernelSchedule | UniformKernelSchedule | TermKernelSchedule
    cycles: float
    key: Key
    rewrites: tuple[Rewrite, ...] = ()
    then: PlanCandidate | None = None

    @property
    def family(self) -> tuple[str, ...]:
        """What it has in common with candidates that lowering refuses for the same reason."""
        following = () if self.then is None else self.then.family
        return (*(rewrite.what for rewrite in self.rewrites), self.kernel.family, *following)


@dataclass(frozen=True)
class Rewrite:
    """A change of the program before its kernels: operands repacked, or the graph cut at a value.

    `forms` are the operands that are repacked, and how they lie then; `after` is the product after which it is cut;
    `lacks` says what today's lowering lacks for it.
    """

    what: str
    forms: tuple[tuple[str, str], ...] = ()
    after: str = ""
    lacks: str = ""


@dataclass
class Ranking:
    """Candidates, the best first, the cycles that no schedule beats, and how much was looked at.

    One that `keeps_all` has every candidate, also those that are surely slower than the best.
    """

    candidates: list[PlanCandidate] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)
    roofline: float = 0.0
    states: int = 0
    tilings: int = 0
    timed: int = 0
    keeps_all: bool = False

    @property
    def limit(self) -> float:
        """The cycles beyond which a candidate is not wanted."""
        return inf if self.keeps_all or not self.candidates else self.candidates[0].cycles

    @property
    def best(self) -> PlanCandidate | None:
        """The best candidate."""
        return self.candidates[0] if self.candidates else None

    def reject(self, what: str, why: str) -> None:
        """Note a choice that is not made; the first reason stays."""
        self.rejected.setdefault(what, why)

    def count(self, other: Ranking) -> None:
        """Add what another search looked at and rejected."""
        self.states += other.states
        self.tilings += other.tilings
        self.timed += other.timed
        for what, why in other.rejected.items():
            self.reject(what, why)
