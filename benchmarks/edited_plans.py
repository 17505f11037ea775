"""Random edits of valid plans: every legal one is done as it says, every other is refused by a rule and its line.

    python benchmarks/edited_plans.py [2000] [--seed 0] [--first 0] [--jobs 1] [--run] [--show] [--classes]

A plan that was chosen is changed as one does by hand (`plan_edits.py`), of the cases of `edit_cases.py` in turn. A
checker that knows nothing of the planner (`plan_legality`) says whether the edit is legal. What is done is read
again in the block text, by a reader that knows nothing of the compiler (`block_reader.py`), and its printed plan must
be the edited one; with `--run` it is also interpreted, and must give what the executor gives. What is refused must
name the line, and a rule: `is not done here` is none. Bars: 98 % of the legal edits are done, all others are refused by
a rule and a line. The exit code is 1 where a bar is missed, or there is a finding: an illegal plan that is done, a plan
that is done otherwise than it says, another result, an error that is no `ArgumentError`. `--classes` lists the legal
edits that are refused, by the kind of the edit and what the refusal says.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from block_reader import contradictions
from edit_cases import CASES, Case, chosen, chosen_block, shapes
from plan_edits import edit
from plan_legality import Broken, broken

import tilewright
from tilewright.errors import ArgumentError
from tilewright.plan.text import parse_plan

DONE, LEGAL_REFUSED = "legal, done", "legal, refused"
BY_RULE, NO_RULE, NO_LINE = (
    "illegal, refused by a rule and line",
    "illegal, refused without a rule",
    "refused without its line",
)
ILLEGAL_DONE, OTHERWISE, WRONG = "ILLEGAL AND DONE", "DONE OTHERWISE", "WRONG RESULT"
CRASHED = "AN ERROR THAT IS NO REFUSAL"
REFUSALS_WITHOUT = (NO_RULE, NO_LINE)
"""Refusals that name no rule, or no line."""
FINDINGS = (ILLEGAL_DONE, OTHERWISE, WRONG, CRASHED)
LEGAL_BAR, ILLEGAL_BAR = 0.98, 1.0
NO_RULES = (
    r"is not done here", r"fits none of", r"has no meaning here", r"here `.*` follows", r"^plan: its axes are",
)  # fmt: skip
"""What a refusal says that compares a plan with another one, and names no rule that the plan breaks."""


UNSAID = ("overlap none", "launch plain")
"""Lines that say what is done anyway: a printed plan may leave them out."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of an edit."""

    number: int
    what: str
    kind: str
    lines: tuple[str, ...]
    more: str
    """The refusal, or what is wrong."""
    rule: str = ""
    """The rule that the checker says is broken."""

    def __str__(self) -> str:
        case = CASES[self.number % len(CASES)]
        rule = f" [{self.rule}]" if self.rule else ""
        lines = " | ".join(self.lines)
        return f"{self.number}: {self.what}{rule}: {case.name} on {case.row}: {self.kind}: {lines}: {self.more}"


@dataclass(frozen=True)
class Edited:
    """An edited plan: its text, the kind of the edit, the lines that are new, those that are gone."""

    text: str
    kind: str
    new: tuple[str, ...]
    gone: tuple[str, ...]


def edited(number: int, seed: int = 0) -> Edited:
    """The edit of that number: of the case whose turn it is."""
    rng, case = random.Random(f"{seed} {number}"), number % len(CASES)
    before = chosen(case).splitlines()
    while True:
        kind, lines = edit(before, shapes(case), CASES[case].machine, rng)
        text, after = "\n".join(lines), lines
        with suppress(ArgumentError):
            if parse_plan(text) == parse_plan(chosen(case)):
                continue
            after = parse_plan(text).lines()
        moved = [
            x for n, x in enumerate(lines) if x in before and before[n : n + 1] != [x] and len(lines) >= len(before)
        ]
        twice = [x for x in lines if lines.count(x) > before.count(x)]
        new = [*(x for x in (*lines, *after) if x not in before), *twice] or moved
        return Edited(text, kind, tuple(dict.fromkeys(new)), tuple(x for x in before if x not in (*lines, *after)))


def outcome(number: int, seed: int = 0, run: bool = False) -> Outcome:
    """The outcome of the edit of that number."""
    case, this = CASES[number % len(CASES)], edited(number, seed)
    rule = broken(this.text, shapes(number % len(CASES)), case.machine)
    of = partial(Outcome, number, kind=this.kind, lines=this.new or this.gone, rule="" if rule is None else rule.rule)
    try:
        kernel = case.kernel(this.text)
        block = kernel.text("block")
    except ArgumentError as fault:
        return of(what=_refusal(str(fault), rule, this), more=str(fault))
    except Exception as fault:  # whatever else it raises is a finding
        return of(what=CRASHED, more=f"{type(fault).__name__}: {fault}")
    if rule is not None:
        return of(what=ILLEGAL_DONE, more=str(rule))
    wrong = _contradicted(number % len(CASES), this.text, kernel.text("plan").strip(), block)
    if wrong:
        return of(what=OTHERWISE, more="; ".join(wrong))
    if run and case.exact and not _is_exact(case, kernel):
        return of(what=WRONG, more=this.text)
    return of(what=DONE, more="")


def _refusal(message: str, rule: Broken | None, this: Edited) -> str:
    """The kind of refusal that a message is."""
    if rule is None:
        return LEGAL_REFUSED
    if any(re.search(pattern, message) for pattern in NO_RULES):
        return NO_RULE
    named = any(line in message or repr(line) in message for line in (*this.new, *this.gone))
    missing = not this.new and any(f"`{line}`" in message for line in this.text.splitlines())
    missing = missing or any(re.search(rf"\b{line.split()[line.startswith('axis')]}\b", message) for line in this.gone)
    return BY_RULE if named or missing else NO_LINE


def _contradicted(case: int, text: str, printed: str, block: str) -> list[str]:
    """What a plan says that is not done: its own text afterwards, and the block program's, differ from it."""
    asked, done = parse_plan(text).lines(), parse_plan(printed).lines()
    more = [line for line in asked if line not in done and line not in UNSAID]
    said = {_subject(line) for line in asked}
    if "then" in asked or "then" not in done:  # a kernel of which a plan says nothing is chosen, as are single lines
        more += [line for line in done if line not in asked and _subject(line) in said]
    if not more and case in readable() and parse_plan(text).parts is None:
        products = {p.name: (_main(case, p.rows), _main(case, p.columns)) for p in shapes(case).products}
        more = contradictions(text, block, products)
    return more


def _subject(line: str) -> str:
    """What a line of a plan is about: an axis, an operand, a product, or what its first word says."""
    return " ".join(line.split()[: 2 if line.startswith("axis ") else 1])


def _main(case: int, dims: tuple[str, ...]) -> str:
    wide = [d for d in dims if shapes(case).sizes[d] > 1] or list(dims)
    return wide[-1] if wide else ""


@cache
def readable() -> frozenset[int]:
    """The cases whose chosen plan the reader of block texts understands: those of one kernel, and not all of these."""
    found = set()
    for number in range(len(CASES)):
        plan = parse_plan(chosen(number))
        if plan.split_at is not None or plan.parts is not None or any(p.at == "launch" for p in plan.values):
            continue
        products = {p.name: (_main(number, p.rows), _main(number, p.columns)) for p in shapes(number).products}
        if not contradictions(chosen(number), chosen_block(number), products):
            found.add(number)
    return frozenset(found)


def _is_exact(case: Case, kernel: Any) -> bool:
    *inputs, result = kernel.module.host.args
    data = np.random.default_rng(0)
    arrays = {a.name: data.integers(-2, 3, [int(n) for n in a.type.shape]).astype(a.type.dtype.numpy) for a in inputs}
    wanted = tilewright.compile(case.make(), target="executor")(*arrays.values())
    found = np.full(wanted.shape, -77, wanted.dtype)
    kernel.bind({**arrays, result.name: found})()
    return bool(np.array_equal(found.astype(np.float64), wanted.astype(np.float64)))


# -- reports ---------------------------------------------------------------------------------------------------


def shares(counts: Counter[str]) -> tuple[float, float]:
    """(the share of legal edits that is done, the share of others that is refused by a rule and line)."""
    done = counts[DONE] + counts[OTHERWISE] + counts[WRONG]
    others = sum(counts[what] for what in (BY_RULE, NO_RULE, NO_LINE, ILLEGAL_DONE))
    return counts[DONE] / max(1, done + counts[LEGAL_REFUSED]), counts[BY_RULE] / max(1, others)


def classes(outcomes: list[Outcome]) -> list[tuple[int, str, Outcome]]:
    """(how many, what is refused, an example) of the legal edits that are refused, the most frequent first."""
    found: dict[str, list[Outcome]] = {}
    for each in (x for x in outcomes if x.what == LEGAL_REFUSED):
        plan = parse_plan(chosen(each.number % len(CASES)))
        family = "roles" if plan.pipeline else "one atom" if plan.atom else "products" if plan.products else "rows"
        row = CASES[each.number % len(CASES)].row.split(".")[0]
        family = f"{family}, CPU" if row in ("x86", "aarch64") else f"{family}, GPU"
        refusal = re.sub(r"`[^`]*`", "`…`", each.more.removeprefix("plan: "))
        refusal = re.sub(r"\d+", "#", refusal)[:70]
        found.setdefault(f"{each.kind.split(', ')[0]} ({family}): {refusal}", []).append(each)
    return sorted(((len(of), name, of[0]) for name, of in found.items()), key=lambda x: -x[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--show", action="store_true", help="print every edit, not only findings")
    parser.add_argument("--classes", action="store_true", help="list the legal edits that are refused, in classes")
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.count)
    with ProcessPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(partial(outcome, seed=options.seed, run=options.run), numbers, chunksize=16))
    for each in outcomes:
        if options.show or each.what in FINDINGS or each.what == NO_LINE:
            print(each, flush=True)
    counts = Counter(each.what for each in outcomes)
    if options.classes:
        for count, name, example in classes(outcomes):
            print(f"{count:5} {name}\n      {example}")
    for what, count in counts.most_common():
        print(f"{count:5} {what}")
    done, refused = shares(counts)
    print(f"legal edits done: {done:.1%} (bar {LEGAL_BAR:.0%})")
    print(f"others refused by a rule and line: {refused:.1%} (bar {ILLEGAL_BAR:.0%})")
    return int(done < LEGAL_BAR or refused < ILLEGAL_BAR or any(counts[what] for what in FINDINGS))


if __name__ == "__main__":
    sys.exit(main())
