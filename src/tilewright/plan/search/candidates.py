"""Candidates of one kernel whose MMAs run on atoms: orientations, tilings, pipelines, split-K."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from tilewright.machine import Machine
from tilewright.plan.facts import Facts
from tilewright.plan.search.halo import why_no_halo
from tilewright.plan.search.kernel import candidates_of_tiling
from tilewright.plan.search.lowered import LACKING, why_not_lowered, why_not_oriented, why_not_split
from tilewright.plan.search.orientation import orientations
from tilewright.plan.search.ranking import PlanCandidate, Ranking
from tilewright.plan.search.split_k import split_k_candidates
from tilewright.plan.search.tiles import tilings
from tilewright.plan.search.tiling import Tiling
from tilewright.plan.search.work import Work

GAIN_BY_OTHER_TILE = 0.9
"""A loop whose results are the same for every tile gets another tile than the author's if the kernel is predicted to
take this share, or less, of the time with the author's."""
GAIN_BY_PARTS = 0.9
"""A loop whose states merge is split over tasks if the kernels are predicted to take this share, or less, of the time
of one kernel: the merge rounds once more."""


def kernels_with_atoms(
    facts: Facts, machine: Machine, ranking: Ranking, best: float, only_lowered: bool
) -> Iterator[PlanCandidate]:
    """Yield candidates that run a program as one GPU kernel: all MMAs on atoms (MMA instructions), fed by a pipeline.

    Candidates without split-K come first, then those with split-K (only if all sizes are known before the call).
    Candidates of two kinds are yielded only if they are predicted to take at most 0.9 of the time of the plain ones:
    those that give an author's loop another tile size, and split-K of a loop that carries more than sums. A tiling is
    skipped if its lower bound exceeds `best` cycles, or those of a faster candidate yielded since (unless `ranking`
    keeps all). With `only_lowered`, choices that the lowering (code generator) cannot do are skipped.

    Nothing is yielded on a CPU, without an MMA, or if a result is not a plain store. `ranking` gets the reason, except
    on a CPU and for one half of a split program.
    """
    if machine.lanes is None:
        return
    if not facts.products or len(facts.writes) == 0 or any(w.op != "write" for w in facts.writes):
        if not facts.part:
            ranking.reject("a pipeline", "results are not plainly written" if facts.products else "there is no product")
        return
    wholes: list[tuple[PlanCandidate, Work]] = []
    as_stated = inf
    for t in sorted(all_tilings(facts, machine, ranking, only_lowered), key=lambda t: not _has_stated_loops(t)):
        is_stated = _has_stated_loops(t)
        limit = best if is_stated else min(best, GAIN_BY_OTHER_TILE * as_stated)
        for candidate, work in candidates_of_tiling(t, ranking, limit):
            if candidate.cycles > GAIN_BY_OTHER_TILE * as_stated and not is_stated:
                continue
            if not ranking.keeps_all:
                best = min(best, candidate.cycles)
                as_stated = min(as_stated, candidate.cycles) if is_stated else as_stated
            wholes.append((candidate, work))
            yield candidate
    if wholes and not facts.opened and not (only_lowered and why_not_split(facts)):
        limit = GAIN_BY_PARTS * min(candidate.cycles for candidate, _ in wholes) if facts.loops else inf
        yield from (split for split in split_k_candidates(wholes, ranking) if split.cycles <= limit)


def all_tilings(facts: Facts, machine: Machine, ranking: Ranking, only_lowered: bool) -> list[Tiling]:
    """Return a list of the Tilings to try: for every choice of M or N for the atom's rows, every choice of tile sizes.

    If the author's constraints state how waves split a tile, and some tilings do exactly that, only these are returned.
    With `only_lowered`, choices that the lowering (code generator) cannot do are left out. `ranking` (the search's
    result) gets the reasons for choices left out and against halo tiles (input patches loaded once for all filter
    taps); `ranking.tilings` is incremented for each tiling. `facts` is the analysed program.
    """
    possible: list[Tiling] = []
    for o in orientations(facts, machine, ranking):
        why = why_not_oriented(o) if only_lowered else ""
        if why:
            ranking.reject(why, LACKING)
            continue
        if why := why_no_halo(o):
            ranking.reject("halo tiles", why)
        for tiles, groups in tilings(o):
            ranking.tilings += 1
            t = Tiling(o, tiles, groups)
            why = why_not_lowered(t) if only_lowered else ""
            if why:
                ranking.reject(why, LACKING)
            else:
                possible.append(t)
    as_stated = [t for t in possible if _splits_waves_as_stated(t)] if facts.stated_waves else []
    return as_stated or possible


def _has_stated_loops(t: Tiling) -> bool:
    """True if the tiling `t` (a choice of tile sizes) gives every loop that the author wrote the author's tile size.

    Dimensions of K for which the author wrote no loop, so that the search may add one, are not checked.
    """
    return all(t.tile_of(axis).size == loop.tile for axis, loop in t.facts.loops.items() if loop.source is not None)


def _splits_waves_as_stated(t: Tiling) -> bool:
    """True if the tiling `t` splits a workgroup's tile among waves exactly as the author's constraints state.

    Waves split a tile along the atom's rows only. So the result is False if the author splits another dimension among
    several waves, or if the tiling also splits the tile's columns among wave groups.
    """
    p = t.o.products[0]
    rows = {owner for owner in t.facts.stated_waves if p.rows & {owner, *t.facts.digits.get(owner, ())}}
    waves = t.groups * p.atoms[0].c.lanes // (t.machine.lanes or 1)
    shared = dict.fromkeys(rows, waves)
    return t.across == 1 and shared == {owner: n for owner, n in t.facts.stated_waves.items() if n > 1}
