"""The choice of a candidate: its plan, its predicted time, and what it was compared with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice

from tilewright.machine import Machine
from tilewright.plan.choice import Candidate, Choice, Comparison, Refusal, pipeline_text
from tilewright.plan.facts import Facts
from tilewright.plan.limiting import limit_lines
from tilewright.plan.model import us
from tilewright.plan.schedule import Schedule
from tilewright.plan.search.as_plan import as_plan
from tilewright.plan.search.blocked import BlockedKernelSchedule
from tilewright.plan.search.causes import cause_of
from tilewright.plan.search.explaining import refusals
from tilewright.plan.search.limiter import cycles_on
from tilewright.plan.search.ranked_blocks import compare_blocks
from tilewright.plan.search.ranking import PlanCandidate, Ranking, Rejected

SHOWN = 24
"""The most candidates that `explain` and the tuner show."""


def choice_of(
    candidate: PlanCandidate,
    plan: Schedule,
    ranking: Ranking,
    facts: Facts,
    machine: Machine,
    refused: Sequence[Refusal] = (),
) -> Choice:
    """Return the Choice of a candidate of the search: its plan, its predicted time, and a comparison with other plans.

    `plan` is the candidate's plan, `facts` the analysed program, and `ranking` the search's result, which has the
    roofline and the other candidates. `refused` are the candidates that were better but could not be lowered. A CPU
    kernel whose accumulator tiles stay in registers over K is compared with the other blockings (tile sizes) of its
    product, unless a second kernel follows. Any other kernel is compared with the other candidates of the ranking.
    """
    kernel, name, bound = candidate.kernel, facts.program.name, ranking.roofline
    find_cause = partial(cause_of, candidate, facts, machine)
    if isinstance(kernel, BlockedKernelSchedule) and candidate.then is None:
        ranked = kernel.ranked_from_here()
        blockings = tuple(blocking.candidate() for blocking in ranked.candidates)
        compare = partial(compare_blocks, ranked)
        return Choice(
            machine, name, plan, blockings[0].cycles, bound, compare, blockings, kernel.notes, find_cause=find_cause
        )
    every = (*refused, *(Refusal(r.what, r.why) for r in refusals(ranking)))
    compare = partial(_compare_rates, candidate, plan, bound, machine, every)
    return Choice(
        machine, name, plan, candidate.cycles, bound, compare, _first_candidates(ranking), find_cause=find_cause
    )


def _compare_rates(
    candidate: PlanCandidate, plan: Schedule, bound: float, machine: Machine, refused: tuple[Refusal, ...]
) -> Comparison:
    """Return the Comparison of a candidate: its predicted time, the roofline `bound`, and the refused plans.

    On a GPU it also says which resources limit the candidate. `plan` is the candidate's plan, `refused` the plans that
    were not chosen, with reasons.
    """
    limits: list[str] = []
    if machine.lanes is not None:
        limits = limit_lines(machine, plan, partial(cycles_on, candidate))
    times = (f"predicted {us(candidate.cycles, machine)} us; roofline {us(bound, machine)} us",)
    return Comparison(pipeline_text(plan), (*(times if candidate.cycles else ()), *limits), refused=refused)


def _first_candidates(ranking: Ranking) -> tuple[Candidate, ...]:
    """Return up to SHOWN (24) candidates of a ranking, the fastest first, each with its cycles and its plan.

    Candidates that the lowering (code generator) does not support have no plan and are left out.
    """
    plans = ((each.cycles, plan) for each in ranking.candidates if not isinstance(plan := as_plan(each), Rejected))
    return tuple(_written(cycles, plan) for cycles, plan in islice(plans, SHOWN))


def _written(cycles: float, plan: Schedule) -> Candidate:
    """Return a Candidate (predicted cycles, and a function that returns the plan) for the plan `plan`."""
    return Candidate(cycles, lambda: plan)
