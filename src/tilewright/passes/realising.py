"""Realising: the search ranks the plans of a job; the best one that binding and lowering do is taken.

A plan that binding or the lowering refuses is noted with the reason, and the next one is tried. Plans whose tasks need
more shared memory than a workgroup has come last: their values go to a workspace in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from tilewright.check.block import past_shared_memory
from tilewright.errors import ProgramError
from tilewright.passes.binding import bind_plan
from tilewright.passes.job import Job, Pass, RankedPlans
from tilewright.passes.job_facts import facts_of_job
from tilewright.passes.kernels import lower_kernels, with_workspace
from tilewright.passes.notes import notes_on
from tilewright.plan.general import GeneralChoice
from tilewright.plan.planner import Choice, Refusal
from tilewright.plan.refusals import refusal_of
from tilewright.plan.schedule import Schedule
from tilewright.plan.search import (
    BlockedKernelSchedule,
    PlanCandidate,
    Rejected,
    as_plan,
    cycles_on,
    refusals,
    search_facts,
)

SHOWN = 24
"""Candidates that `explain` and the tuner know of, at most."""


def rank_plans(job: Job, choose: Pass) -> None:
    """Rank the plans of a job by the search, and bind the best that can be bound."""
    ranked = RankedPlans(choose, start=replace(job))
    ranked.left = _candidates(job, ranked)
    job.ranked = ranked
    _bind_next(job, ranked)


def _candidates(job: Job, ranked: RankedPlans) -> Iterator[tuple[PlanCandidate, Schedule]]:
    """Yield (candidate, plan) of a job: of its program over digits (mixed-radix parts), then over whole dimensions."""
    programs = [(job.program, job.free)]
    if job.undivided is not None and job.undivided[0] is not job.program:
        programs.append(job.undivided)
    for program, free in programs:
        facts = facts_of_job(replace(job, program=program, free=free))
        blocks = not job.general_only and job.longer() is None
        ranking = search_facts(facts, job.machine, constant=job.constant, blocks=blocks)
        ranked.rankings.append(ranking)
        for candidate in ranking.candidates:
            plan = as_plan(candidate)
            if isinstance(plan, Rejected):
                ranked.refused.append(Refusal(plan.what, plan.why))
            else:
                yield candidate, plan


def lower_ranked(job: Job, ranked: RankedPlans, lower: Pass) -> None:
    """Lower the best plan of a job that the lowering does."""
    while why := (
        refusal_of(lambda: lower_kernels(job, lower))
        or _over_shared_memory(job, ranked)
        or refusal_of(lambda: with_workspace(job))
    ):
        assert ranked.tried is not None
        ranked.refused.append(Refusal(_name(*ranked.tried), why))
        if not _bind_next(job, ranked):
            lower_kernels(job, lower)
            with_workspace(job)
            break


def _bind_next(job: Job, ranked: RankedPlans) -> bool:
    """Bind the next plan that can be bound, and return True; False if it is the last resort.

    That is the best plan whose values go to a workspace, or the only plan there was, whose own error is then raised.
    """
    start = ranked.start
    assert start is not None
    for candidate, plan in ranked.left:
        _reset(job, start)
        why = refusal_of(lambda plan=plan: bind_plan(job, plan, ranked.choose))  # type: ignore[misc]
        if not why:
            _take(job, ranked, candidate, plan)
            return True
        ranked.refused.append(Refusal(_name(candidate, plan), why))
    last = ranked.overflowing or (ranked.tried if len(ranked.refused) == 1 else None)
    if last is None:
        every = "; ".join(map(str, ranked.refused)) or "the search found none"
        raise ProgramError(f"{job.program.name}: no plan for {job.machine.name} can be lowered: {every}")
    candidate, plan = last
    _reset(job, start)
    bind_plan(job, plan, ranked.choose)
    _take(job, ranked, candidate, plan)
    return False


def _take(job: Job, ranked: RankedPlans, candidate: PlanCandidate, plan: Schedule) -> None:
    """Set the job's plan and choice to a plan that is bound."""
    ranked.tried = candidate, plan
    job.plan = plan if plan.atom is not None else plan.with_open({str(s) for s in job.open_extents})
    job.choice = choice_of(job, ranked, candidate, job.plan)


def _reset(job: Job, start: Job) -> None:
    """Restore the job's program to what it was before a plan was bound."""
    job.program, job.free, job.lowered = start.program, start.free, None


def _over_shared_memory(job: Job, ranked: RankedPlans) -> str:
    """Return text: why a lowered job needs more shared memory than there is; empty if it does not."""
    assert job.lowered is not None
    if job.opened or job.parts is not None or job.aligned is not None:
        return ""
    over = past_shared_memory(job.lowered.program, job.machine)
    if over is None:
        return ""
    ranked.overflowing = ranked.overflowing or ranked.tried
    return over.what


def _name(candidate: PlanCandidate, plan: Schedule) -> str:
    """Return text that names a plan in a refusal: its family and its MMA lines."""
    return "; ".join((*candidate.family, *map(str, plan.products)))


def choice_of(job: Job, ranked: RankedPlans, candidate: PlanCandidate, plan: Schedule) -> Choice | GeneralChoice:
    """Return the choice of a ranked plan: its time, what limits it, and why the others are not chosen."""
    ranking = ranked.rankings[-1]
    if isinstance(candidate.kernel, BlockedKernelSchedule) and candidate.then is None:
        choice = candidate.kernel.choice
        copied = (rewrite.what for rewrite in candidate.rewrites)
        return replace(choice, notes=(*choice.notes, *copied, *notes_on(job, plan)))
    plans = list(islice(((c, p) for c in ranking.candidates if not isinstance(p := as_plan(c), Rejected)), SHOWN))
    slower = [Refusal(r.what, r.why) for r in refusals(ranking)]
    return GeneralChoice(
        job.machine,
        job.program.name,
        plan,
        candidate.cycles,
        ranking.roofline,
        refused=(*_joined_refusals(ranked.refused), *slower),
        notes=notes_on(job, plan),
        candidates=tuple(p for _, p in plans),
        predicted=None if job.machine.lanes is None else lambda machine: cycles_on(candidate, machine),
        costs=tuple(c.cycles for c, _ in plans),
        parts=choices_of_parts(job),
    )


def _joined_refusals(refused: list[Refusal]) -> list[Refusal]:
    """Return the refusals of binding and lowering, with those of the same tiles and the same resource joined."""
    alike: dict[tuple[str, str], list[Refusal]] = {}
    for each in refused:
        alike.setdefault((each.what, each.why.partition(":")[0]), []).append(each)
    return [
        first if not others else Refusal(f"{first.what}, and {len(others)} like it", first.why)
        for first, *others in alike.values()
    ]


def choices_of_parts(job: Job) -> tuple[Choice | GeneralChoice, ...]:
    """Return the choices of the two kernels of a split job; () if it is not split."""
    return tuple(part.choice for part in job.parts or () if part.choice is not None)
