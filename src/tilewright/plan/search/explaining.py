"""Text of a ranking: the time of the best candidate, what limits it, and why the others are not chosen."""

from __future__ import annotations

from tilewright.machine import Machine
from tilewright.plan.model import us
from tilewright.plan.search.limiter import limits_of
from tilewright.plan.search.lowered import LACKING
from tilewright.plan.search.ranking import PlanCandidate, Ranking, Rejected

SHOWN = 12
"""Refusals that are listed at most, beside slower families."""


def explain_ranking(ranking: Ranking, machine: Machine) -> list[str]:
    """Return the lines of `explain` for a ranking."""
    best = ranking.best
    if best is None:
        return ["no plan", *(f"refused  {r.what}: {r.why}" for r in refusals(ranking))]
    (first, longest), *rest = limits_of(best, machine).items()
    others = ", ".join(f"{what} {us(cycles, machine)}" for what, cycles in rest)
    return [
        f"predicted {us(best.cycles, machine)} us; roofline {us(ranking.roofline, machine)} us",
        f"limited by {first}, {us(longest, machine)} us alone; {others}",
        *(f"refused  {r.what}: {r.why}" for r in refusals(ranking)),
    ]


def refusals(ranking: Ranking) -> list[Rejected]:
    """Return why other candidates are not chosen: the best of each slower family, then what no candidate can do."""
    best = ranking.best
    firsts: dict[tuple[str, ...], PlanCandidate] = {}
    for candidate in ranking.candidates:
        firsts.setdefault(candidate.family, candidate)
    slower = [
        Rejected("; ".join(family), f"{candidate.cycles / best.cycles:.2f} of the time")
        for family, candidate in firsts.items()
        if best is not None and candidate is not best
    ]
    rejected = sorted(ranking.rejected.items(), key=lambda item: not item[1].startswith(LACKING))
    return [*slower, *_summed_up([Rejected(what, why) for what, why in rejected])[:SHOWN]]


def _summed_up(rejected: list[Rejected]) -> list[Rejected]:
    """Return the refusals with those that lack the same resource merged into one."""
    alike: dict[str, list[Rejected]] = {}
    for each in rejected:
        resource, colon, _ = each.why.partition(":")
        alike.setdefault(resource if colon and not each.why.startswith(LACKING) else str(each), []).append(each)
    return [
        first if not others else Rejected(f"{first.what} and {len(others)} other tiles", first.why)
        for first, *others in alike.values()
    ]
