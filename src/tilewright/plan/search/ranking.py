"""The result of the search: candidates sorted by one key, and rejected choices with their reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Protocol

ENOUGH_STAGES = 4
"""Pipeline stages beyond which more help little."""
Key = tuple[float, ...]


@dataclass(frozen=True)
class Rejected:
    """A choice (`what`) that is not made, and why, both as text."""

    what: str
    why: str


class CandidateKernel(Protocol):
    """A kernel of any kind, as a candidate has it: with a pipeline, with waves that all run the same code, or SIMT."""

    @property
    def family(self) -> str:
        """Return a name for the design of this kernel, such as "no pipeline"; each class of kernels defines it.

        Candidates are compared and refused by name: the lowering tends to refuse all kernels of a name for the same
        reason.
        """


@dataclass(frozen=True)
class PlanCandidate:
    """One way to run a program: rewrites before its kernel, the kernel, an optional second kernel, and the cycles of
    all.

    `key` orders candidates: smaller is better. `then` is the candidate with the second kernel.
    """

    kernel: CandidateKernel
    cycles: float
    key: Key
    rewrites: tuple[Rewrite, ...] = ()
    then: PlanCandidate | None = None

    @property
    def family(self) -> tuple[str, ...]:
        """A tuple of texts: the names of this candidate's rewrites, and the family of each of its kernels.

        The lowering tends to refuse all candidates of a family for the same reason.
        """
        following = () if self.then is None else self.then.family
        return (*(rewrite.what for rewrite in self.rewrites), self.kernel.family, *following)


@dataclass(frozen=True)
class Rewrite:
    """A change of the program before its kernels: operands repacked, or a split into two kernels.

    `forms` are pairs (repacked operand, name of its layout); `after` is the MMA after which the program is split,
    `before` the MMA before which it is split; `lacks` names a feature that the lowering lacks for it.
    """

    what: str
    forms: tuple[tuple[str, str], ...] = ()
    after: str = ""
    before: str = ""
    lacks: str = ""
    whole: str = ""
    """The dimension of the author's loop that is one iteration."""


@dataclass
class Ranking:
    """The candidates, best first, and the choices that were `rejected`: {choice: reason}.

    `roofline` is a lower bound in cycles. `states`, `tilings` and `timed` count the times that candidates were added,
    the tilings, and the kernels whose time was predicted. With `keeps_all` the ranking keeps every candidate, even
    those that lower bounds show to be slower.
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
        """The cycles above which a new candidate is useless: the cycles of the best candidate so far.

        Infinite if the ranking has no candidate, or if it keeps all candidates.
        """
        return inf if self.keeps_all or not self.candidates else self.candidates[0].cycles

    @property
    def best(self) -> PlanCandidate | None:
        """The first candidate of this ranking, which has the smallest sort key; None if the ranking is empty."""
        return self.candidates[0] if self.candidates else None

    def reject(self, what: str, why: str) -> None:
        """Note that the choice `what` was not made, and why; a choice noted before keeps its first reason."""
        self.rejected.setdefault(what, why)

    def add_counts(self, other: Ranking) -> None:
        """Add the counts and the rejections of `other`, another Ranking (result of a search), but not its candidates.

        There are three counts: `self.states` (the times that candidates were added), `self.tilings` and `self.timed`
        (kernels timed).
        """
        self.states += other.states
        self.tilings += other.tilings
        self.timed += other.timed
        for what, why in other.rejected.items():
            self.reject(what, why)
