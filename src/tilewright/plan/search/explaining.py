"""Text of a ranking: the time of the best candidate, its limits, and why the others are not chosen."""

from __future__ import annotations

from tilewright.machine import Machine
from tilewright.plan.model import us
from tilewright.plan.search.kernel import KernelSchedule
from tilewright.plan.search.limiter import limits_of
from tilewright.plan.search.lowered import LACKING
from tilewright.plan.search.ranking import PlanCandidate, Ranking, Rejected
from tilewright.plan.search.unit import MmaTile

SHOWN = 12
"""The most rejected choices that are listed, besides slower candidates."""


NEXT = 3
"""The most other tiles that are listed of the best candidate's family."""


def explain_ranking(ranking: Ranking, machine: Machine) -> list[str]:
    """Return the lines of `explain`: predicted time and roofline, limits of the best candidate, and refusals.

    There is one line per refusal, which is a slower candidate or a rejected choice. If the ranking has no candidate,
    the first line is "no plan", and the other lines are the refusals. The best candidate's kernels must not be
    BlockedKernelSchedules.
    """
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
    """Return a list of Rejected (a choice, and why it was not made) to explain why the best candidate was chosen.

    They come in this order:

    - up to NEXT (3) slower tile sizes of the best candidate's family (same rewrites of the program, same kinds of
      kernels);
    - the fastest candidate of each other family, with its time relative to the best;
    - up to SHOWN (12) rejected choices: first those that only the lowering (code generator) does not support, then
      illegal ones.
    """
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
    return [
        *_slower_tiles_of_best_family(ranking),
        *slower,
        *_merge_by_resource([Rejected(what, why) for what, why in rejected])[:SHOWN],
    ]


def _slower_tiles_of_best_family(ranking: Ranking) -> list[Rejected]:
    """Return up to NEXT (3) Rejected: slower tile sizes of the best candidate's family, with relative times.

    A family is all candidates with the same rewrites of the program and the same designs of kernels. Fast tile sizes
    come first. Return [] if the ranking has no candidate, or if no other candidate of the family has MMA tiles.
    """
    best, ratios = ranking.best, dict[str, str]()
    for candidate in ranking.candidates[1:]:
        kernel = candidate.kernel
        if best is None or candidate.family != best.family or not isinstance(kernel, KernelSchedule):
            continue
        pairs = zip(kernel.mmas, kernel.tiling.o.flips, strict=True)
        tiles = ", ".join(_tile_text(m, transposed=flip) for m, flip in pairs)
        ratios.setdefault(tiles, f"{candidate.cycles / best.cycles:.2f} of the time")
    return [Rejected(tiles, why) for tiles, why in ratios.items()][:NEXT]


def _tile_text(m: MmaTile, *, transposed: bool) -> str:
    """Return text that describes an MMA's tile, such as "mma 128x256 by ATOM".

    It has the MMA's name, M x N of its tile of C, "transposed" if N lies on the atom's rows, and the atom's name.
    """
    rows, columns = (m.columns, m.rows) if transposed else (m.rows, m.columns)
    return f"{m.oriented.product.name} {rows}x{columns}{' transposed' if transposed else ''} by {m.atom.name}"


def _merge_by_resource(rejected: list[Rejected]) -> list[Rejected]:
    """Merge refusals for the same exhausted resource into one Rejected; return the new list.

    A Rejected is a choice of the search with the reason why it was not made. The resource is the text before the colon
    of a reason: "registers: 300 of 240" -> "registers". A merged Rejected has the choice and the reason of the first
    refusal, and the number of the other refusals. Refusals whose reason has no colon, or says that the lowering lacks a
    feature, are merged only if choice and reason are equal.
    """
    by_resource: dict[str, list[Rejected]] = {}
    for refusal in rejected:
        resource, colon, _ = refusal.why.partition(":")
        by_resource.setdefault(resource if colon and not refusal.why.startswith(LACKING) else str(refusal), []).append(
            refusal
        )
    return [
        first if not others else Rejected(f"{first.what} and {len(others)} other tiles", first.why)
        for first, *others in by_resource.values()
    ]
