"""Pairs of programs that mean the same: do they give the same, and does the planner predict the same time?

    python benchmarks/metamorphic.py [300] [--seed 0] [--first 0] [--jobs 1] [--worst 20] [--show]
    python benchmarks/metamorphic.py 300 --search --times     # ask the search itself; plan only, run nothing

A pair is a random program (`metamorphic_programs.py`) in two writings that differ by one or two changes: a dimension
split in two or merged, a unit dimension added, sums with and without `iterate`, dimensions named in another order and
by other symbols, operands exchanged. Both are run by the executor at small sizes, on small integers: the results must
be equal. Both are planned for Hopper, or --machine, at large sizes: predicted times should be within 5 %. Printed are
the share of such pairs, also by family and by change, and the worst pairs. Pair number I of seed S is the same in
every run.

The exit code is 1 if results differ, or if fewer than 95 % of the pairs have equal times.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from corpus_plans import machine_of
from corpus_requests import best_plan, planning_of
from metamorphic_programs import FAMILIES, SHARES, Program, Writing, Written

import tilewright
from tilewright.compiler.native import kernel_for
from tilewright.driver.request_facts import facts_of_request
from tilewright.errors import TilewrightError
from tilewright.machine import Machine
from tilewright.plan.model import microseconds
from tilewright.plan.search import search_facts

HOPPER = machine_of("hopper/132")
WITHIN, BAR = 0.05, 0.95
REDRAWN = 1_000_000
"""The step of a seed where a pair is drawn again."""


@dataclass(frozen=True)
class Pair:
    """A program and two ways of writing it."""

    family: str
    program: Program
    one: Writing
    other: Writing
    changes: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of a pair: whether the results are equal, the predicted microseconds, or what was raised."""

    number: int
    family: str
    program: str
    changes: tuple[str, ...]
    equal: bool
    us: tuple[float, float]
    raised: str = ""

    @property
    def ratio(self) -> float:
        """The longer predicted time over the shorter one; infinite where one is missing."""
        return max(self.us) / min(self.us) if all(us > 0 for us in self.us) else math.inf

    @property
    def alike(self) -> bool:
        """Whether the predicted times are the same, as far as is asked."""
        return self.ratio <= 1 + WITHIN

    def __str__(self) -> str:
        results = "" if self.equal else "  RESULTS DIFFER"
        return (
            f"{self.number:4} {self.us[0]:9.2f} {self.us[1]:9.2f} us, {self.ratio:6.3f}  {self.program}: "
            f"{', '.join(self.changes)}{results}{f'  {self.raised}' if self.raised else ''}"
        )


# -- pairs -----------------------------------------------------------------------------------------------------


def pair_of(number: int, seed: int = 0) -> Pair:
    """The pair of this number and seed; its two writings differ as traced."""
    rng = random.Random(f"{seed} {number}")
    family = rng.choices(list(SHARES), list(SHARES.values()))[0]
    program = FAMILIES[family](rng)
    one = Writing(loops=rng.random() < 0.7)
    if rng.random() < 0.3:
        one = split(program, one, rng)[0]
    other, changes = one, []
    for _ in range(rng.choice((1, 1, 2))):
        change = rng.choice(CHANGES[family])
        other, words = change(program, other, rng)
        changes.append(words)
        if other.flat:  # it is all of the library's form
            changes = [words]
            break
    texts = {str(program.written(writing, large=False).kernel.trace()) for writing in (one, other)}
    if len(texts) == 1:  # nothing to exchange, or no sum
        return pair_of(number, seed + REDRAWN)
    return Pair(family, program, one, other, tuple(changes))


Change = Callable[[Program, Writing, random.Random], tuple[Writing, str]]


def split(program: Program, writing: Writing, rng: random.Random) -> tuple[Writing, str]:
    """A dimension in two, or as one again."""
    d = rng.choice(program.divisible)
    parts = dict(writing.split)
    if parts.pop(d, None) is not None:
        return replace(writing, split=parts, flat=False), f"{d} merged"
    return replace(writing, split=parts | {d: rng.choice((0.35, 0.65))}, flat=False), f"{d} split"


def unit(program: Program, writing: Writing, rng: random.Random) -> tuple[Writing, str]:
    """A dimension of extent 1 beside another one, before or after it."""
    d, before = rng.choice(program.divisible), rng.random() < 0.5
    if d in writing.split:
        return split(program, replace(writing, split={d: writing.split[d]}), rng)
    parts = dict(writing.split) | {d: 0.0 if before else 1.0}
    return replace(writing, split=parts, flat=False), f"unit {'before' if before else 'after'} {d}"


def loop(program: Program, writing: Writing, rng: random.Random) -> tuple[Writing, str]:
    """Sums in `iterate`, or whole."""
    words = "without iterate" if writing.loops else "with iterate"
    return replace(writing, loops=not writing.loops, flat=False), words


def order(program: Program, writing: Writing, rng: random.Random) -> tuple[Writing, str]:
    """Registers that name their dimensions in another order, and other symbols."""
    return replace(writing, order=rng.randint(1, 1 << 30), flat=False), "dimensions in another order"


def exchange(program: Program, writing: Writing, rng: random.Random) -> tuple[Writing, str]:
    """Operands the other way round."""
    return replace(writing, exchanged=not writing.exchanged, flat=False), "operands exchanged"


def flatten(program: Program, writing: Writing, rng: random.Random) -> tuple[Writing, str]:
    """A convolution's rows and columns as one dimension each."""
    return Writing(flat=True), "rows and columns merged"


COMMON: tuple[Change, ...] = (split, split, unit, loop, order, exchange)
CHANGES: dict[str, tuple[Change, ...]] = dict.fromkeys(FAMILIES, COMMON) | {"convolution": (*COMMON, flatten)}
"""The changes that a pair of a family may differ by."""


# -- outcomes --------------------------------------------------------------------------------------------------


def result(pair: Pair, writing: Writing) -> Any:
    """What the executor gives for a writing at small sizes, in the logical dimensions of the result."""
    written = pair.program.written(writing, large=False)
    data = pair.program.data()
    arrays = [array.reshape(shape) for array, shape in zip(data.values(), written.shapes, strict=True)]
    tilewright.compile(written.kernel, target="executor")(*arrays)
    return arrays[-1].reshape(data["y"].shape)


def equal_results(pair: Pair) -> bool:
    """Whether both writings give the same, bit for bit."""
    one, other = (result(pair, writing) for writing in (pair.one, pair.other))
    return bool(np.array_equal(one.astype(np.float64), other.astype(np.float64)))


def predicted_by_compiler(written: Written, row: Machine = HOPPER) -> float:
    """The microseconds of the plan that the compiler chooses for a machine."""
    choice = kernel_for(written.kernel, written.sizes, machine=row).choice
    return float(choice.cycles) / choice.machine.limits.clock_ghz * 1e-3


def predicted_by_search(written: Written, row: Machine = HOPPER) -> float:
    """The microseconds of the first plan of the search that the lowering does."""
    request = planning_of(written.kernel, written.sizes, row)
    planned = best_plan(search_facts(facts_of_request(request), request.machine))
    return math.nan if planned is None else microseconds(planned[1], request.machine)


PREDICTIONS: dict[bool, Callable[[Written, Machine], float]] = {False: predicted_by_compiler, True: predicted_by_search}
"""Who predicts: the compiler, or the search that is asked."""


@dataclass(frozen=True)
class Asked:
    """What is asked of every pair of a seed."""

    seed: int = 0
    search: bool = False
    times_only: bool = False
    machine: str = "hopper/132"


def outcome(number: int, asked: Asked = Asked()) -> Outcome:
    """Runs and plans both writings of a pair."""
    pair = pair_of(number, asked.seed)
    us, raised = [], ""
    for writing in (pair.one, pair.other):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a lost fast path shows in the time
                us.append(
                    PREDICTIONS[asked.search](pair.program.written(writing, large=True), machine_of(asked.machine))
                )
        except TilewrightError as fault:
            us.append(math.nan)
            raised = f"{type(fault).__name__}: {str(fault).splitlines()[0]}"
    equal = asked.times_only or equal_results(pair)
    return Outcome(number, pair.family, pair.program.name, pair.changes, equal, (us[0], us[1]), raised)


# -- what came of it -------------------------------------------------------------------------------------------


def shares(outcomes: Iterable[Outcome], key: Callable[[Outcome], Iterable[str]]) -> list[tuple[str, int, int]]:
    """(key, pairs with equal times, pairs) for each key, the worst share first."""
    counts: dict[str, list[bool]] = {}
    for each in outcomes:
        for name in key(each):
            counts.setdefault(name, []).append(each.alike)
    rows = [(name, sum(alike), len(alike)) for name, alike in counts.items()]
    return sorted(rows, key=lambda r: r[1] / r[2])


def kind_of(change: str) -> str:
    """A change without the dimension that it is of.

    >>> kind_of("unit before M"), kind_of("K split"), kind_of("operands exchanged")
    ('unit before a dimension', 'a dimension split', 'operands exchanged')
    """
    return " ".join("a dimension" if word.isupper() else word for word in change.split())


def report(outcomes: list[Outcome], worst: int) -> bool:
    """Prints the shares and the worst pairs; True if every result is equal and enough times are."""
    alike, wrong = sum(each.alike for each in outcomes), [each for each in outcomes if not each.equal]
    if bad := sorted((each for each in outcomes if not each.alike), key=lambda each: -each.ratio)[:worst]:
        print("the worst pairs:", *bad, sep="\n")
    for name, key in (
        ("family", lambda each: [each.family]),
        ("change, alone", lambda each: map(kind_of, each.changes) if len(each.changes) == 1 else []),
    ):
        print(f"by {name}:", *(f"  {what}: {n} of {of}" for what, n, of in shares(outcomes, key)), sep="\n")
    print(f"{len(wrong)} pairs with results that differ", *wrong, sep="\n")
    print(
        f"{alike} of {len(outcomes)} pairs ({alike / len(outcomes):.1%}) have predicted times within {WITHIN:.0%}; "
        f"at least {BAR:.0%} are to"
    )
    return not wrong and alike >= BAR * len(outcomes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--worst", type=int, default=20)
    parser.add_argument("--show", action="store_true", help="print every pair")
    parser.add_argument("--search", action="store_true", help="times of the search, not of the compiler's choice")
    parser.add_argument("--machine", default="hopper/132", help="a row of `targets` with a number of cores")
    parser.add_argument("--times", action="store_true", help="plan only, and run nothing")
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.count)
    asked, outcomes = Asked(options.seed, options.search, options.times, options.machine), []
    with ProcessPoolExecutor(options.jobs) as pool:
        for each in pool.map(partial(outcome, asked=asked), numbers):
            outcomes.append(each)
            if options.show or not each.equal:
                print(each, flush=True)
    return int(not report(outcomes, options.worst))


if __name__ == "__main__":
    sys.exit(main())
