"""Plans that are given back: the printed plan of a random program must make the same block programs as before.

    python benchmarks/plans_given_back.py [COUNT] [--seed S] [--first I] [--kind KIND] [--candidates N] [--jobs N]

The programs are those of einsum_programs.py, random_products.py, random_convolutions.py and language_loops.py. Each is
planned for two machines that are drawn for it: the described ones, and the same with slow memory and free launches,
which have the plans of large programs for small ones. With `--candidates`, the first plans that the search lists beside
the chosen one are given too. These may be refused, for example because shared memory is too small; the table counts
why.

Each failure is one line: a chosen plan that is refused, or makes other programs or another plan; an error that is no
`TilewrightError`. The exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import einsum_programs
import random_convolutions
import random_products
from gpu_random import Traced
from language_loops import drawn
from language_ways import ROWS, SLOW, slow

from tilewright.compiler.native import kernel_for
from tilewright.errors import TilewrightError
from tilewright.machine import Machine
from tilewright.targets.registry import machine

SAME, WRONG, REFUSED, UNPLANNED = "same", "WRONG", "refused", "not planned"
Planning = Callable[[Machine, str | None], Any]
"""A function that plans a program for a machine, with the text of a plan or without one."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a plan of a program on a machine: what came of it, and the error or the difference."""

    where: str
    verdict: str
    why: str = ""


def _einsum(kind: str, number: int, seed: int) -> Planning:
    """Return the function that plans a program of einsum_programs.py."""
    case = einsum_programs.made(kind, number, seed)
    return lambda row, plan: kernel_for(case.kernel, case.sizes, machine=row, plan=plan)


def _products(number: int, seed: int) -> Planning:
    """Return the function that plans a program of random_products.py."""
    case = random_products.made(number, seed, 300)
    return lambda row, plan: kernel_for(case.kernel, case.sizes, machine=row, plan=plan)


def _convolution(number: int, seed: int) -> Planning:
    """Return the function that plans a convolution of random_convolutions.py."""
    work = random_convolutions.random_workload(number, seed)
    return work.planned


def _language(number: int, seed: int) -> Planning:
    """Return the function that plans a program of language_loops.py, with sizes bound that no argument tells."""
    program, sizes = drawn(number, seed).bound()
    return lambda row, plan: kernel_for(Traced(program), sizes, machine=row, plan=plan)


KINDS: dict[str, Callable[[int, int], Planning]] = {
    **{kind: partial(_einsum, kind) for kind in einsum_programs.KINDS},
    "products": _products,
    "convolutions": _convolution,
    "language": _language,
}


def outcomes(kind: str, number: int, seed: int, candidates: int = 0) -> Iterator[Outcome]:
    """Yield the outcomes of the plans of a program, on two machines that are drawn for it."""
    planned = KINDS[kind](number, seed)
    rows = [*ROWS, *(f"{SLOW}{row}" for row in ROWS)]
    for name in random.Random(f"{kind} {seed} {number}").sample(rows, 2):
        row = slow(name.removeprefix(SLOW)) if name.startswith(SLOW) else machine(name)
        where = f"{kind} {number} on {name}"
        try:
            chosen = planned(row, None)
            text, programs = chosen.text("plan"), _programs(chosen)
        except TilewrightError as fault:
            yield Outcome(where, UNPLANNED, _first_line(fault))
            continue
        except Exception as fault:  # an error of planning shows here too
            yield Outcome(where, WRONG, f"planning: {_first_line(fault)}")
            continue
        given = _given(where, planned, row, text)
        if isinstance(given, Outcome):
            yield given if given.verdict == WRONG else Outcome(where, WRONG, f"refused: {given.why}")
        elif given.text("plan") != text:
            yield Outcome(where, WRONG, f"another plan: {given.plan.difference(chosen.plan)}")
        else:
            same = _programs(given) == programs
            yield Outcome(where, SAME) if same else Outcome(where, WRONG, "other block programs")
        others = (str(each.plan) for each in chosen.choice.candidates)
        for other in islice((plan for plan in others if plan != str(chosen.plan)), candidates):
            listed = _given(f"{where}, a candidate", planned, row, other)
            yield listed if isinstance(listed, Outcome) else Outcome(where, "candidate done")


def _given(where: str, planned: Planning, row: Machine, text: str) -> Any:
    """Return the kernel of a program by the plan `text`; or an Outcome: why there is none."""
    try:
        kernel = planned(row, text)
        kernel.text("block")
    except TilewrightError as fault:
        return Outcome(where, REFUSED, _first_line(fault))
    except Exception as fault:  # whatever is no refusal
        return Outcome(where, WRONG, _first_line(fault))
    return kernel


def _programs(kernel: Any) -> dict[str, str]:
    """Return the texts of a kernel's block programs and of its host program, by name."""
    return {"": kernel.text("host"), **{name: str(program) for name, program in kernel.module.programs.items()}}


def _first_line(fault: Exception) -> str:
    """Return the type and the first line of an error."""
    first, *_ = [*str(fault).splitlines(), ""]
    return f"{type(fault).__name__}: {first}"


def _all_outcomes(order: tuple[str, int], seed: int, candidates: int) -> list[Outcome]:
    """Return the outcomes of the program (kind, number), made in another process."""
    warnings.simplefilter("ignore")
    return list(outcomes(*order, seed, candidates))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kind", choices=[*KINDS, "all"], default="all")
    parser.add_argument("--candidates", type=int, default=0, help="how many listed plans are given besides")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    kinds = [*KINDS] if options.kind == "all" else [options.kind]
    orders = [(kind, n) for n in range(options.first, options.first + options.count) for kind in kinds]
    counts: Counter[tuple[str, str]] = Counter()
    with ProcessPoolExecutor(options.jobs) as pool:
        one = partial(_all_outcomes, seed=options.seed, candidates=options.candidates)
        for each in (outcome for found in pool.map(one, orders, chunksize=4) for outcome in found):
            counts[each.verdict, re.sub(r"`[^`]*`|\d+", "#", each.why)[:100]] += 1
            if each.verdict == WRONG:
                print(f"{each.where}: {each.why}", flush=True)
    for (verdict, why), count in counts.most_common():
        print(f"{count:6} {verdict}{why and f': {why}'}")
    return int(any(verdict == WRONG for verdict, _ in counts))


if __name__ == "__main__":
    sys.exit(main())
