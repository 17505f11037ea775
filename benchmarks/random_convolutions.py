"""Random convolutions, each under its default plan and under a random valid one: the results must be exact.

    python benchmarks/random_convolutions.py N [--seed S] [--first I]

Over one, two and three axes: images that are not square, ragged sizes, padding (over-large, and other before than
after), dilation, strides, groups, odd channels; f32, bf16, f16 and s8. What is refused is counted and listed by reason.
Number I of seed S is the same problem in every run; the exit code is 1 if a result is wrong or something fails that
was not refused.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from tilewright.cli.workload import Workload
from tilewright.errors import ArgumentError, MissingAtomWarning, ProblemError
from tilewright.problems import ConvProblem

CHANNELS = (1, 2, 3, 4, 5, 7, 8, 16, 17, 20, 32, 33, 48, 64, 80, 127)
TYPES = {"f32": ("f32",), "bf16": ("bf16", "f32"), "f16": ("f16", "f32"), "s8": ("s32", "s8")}
MOST = 4_000_000  # products of one problem
WIDE = (8, 16, 24, 32, 40, 64, 72, 96, 128, 136, 160, 192, 256, 320)
"""Channels of problems that fill machines with large tiles; there may be this many products more."""
LARGER = 64
GUARD = 256  # bytes before and after a result


def random_workload(number: int, seed: int = 0) -> Workload:
    """Convolution number so and so."""
    rng = np.random.default_rng((seed, number))
    kind = str(rng.choice(list(TYPES)))
    result = str(rng.choice(TYPES[kind]))
    return Workload(random_problem(rng), (kind, kind, result))


def random_problem(rng: np.random.Generator, wide: bool = False, first: bool = False) -> ConvProblem:
    """A convolution with any channels, or with those that fill large tiles; or a network's `first`, of few channels."""
    while True:
        try:
            problem = _problem(rng, wide, first)
        except ProblemError:  # the filter does not fit
            continue
        if problem.macs <= MOST * (LARGER if wide or first else 1):
            return problem


def _problem(rng: np.random.Generator, wide: bool, first: bool) -> ConvProblem:
    groups = 1 if first else int(rng.choice([1, 1, 1, 2, 3, 4, 8]))
    few = WIDE if wide else CHANNELS if groups == 1 else CHANNELS[:10]
    ic, oc = (int(rng.choice(few)) for _ in range(2))
    if first:
        ic, oc = int(rng.integers(1, 8)), int(rng.choice(WIDE[:10]))
    elif groups == 1 and rng.random() < 0.15:  # depthwise, perhaps with several filters for a channel
        groups, ic, oc = int(rng.choice(CHANNELS)), 1, int(rng.choice([1, 1, 2]))
    rank = int(rng.choice([1, 2, 2, 2, 3]))
    i = tuple(int(n) for n in rng.integers(1, (0, 400, 70, 16)[rank] if first else (0, 80, 24, 10)[rank], rank))
    k = tuple(int(n) for n in rng.choice([1, 1, 2, 3, 3, 4, 5, 7], rank))
    s = tuple(int(n) for n in rng.choice([1, 1, 1, 2, 3], rank))
    d = tuple(int(n) for n in rng.choice([0, 0, 0, 1, 2], rank))
    spans = [(tap - 1) * (far + 1) + 1 for tap, far in zip(k, d, strict=True)]
    p = tuple(int(rng.choice([0, span // 2, rng.integers(0, tap + 2)])) for span, tap in zip(spans, k, strict=True))
    o: tuple[int, ...] = ()
    if rng.random() < 0.4:  # what follows the image is another padding, or some of the image is never read
        after = rng.integers(-2, max(k) + 2, rank)
        o = tuple(
            max(1, (size + before + int(more) - span) // step + 1)
            for size, before, more, span, step in zip(i, p, after, spans, s, strict=True)
        )
    mb = int(rng.integers(1, 4))
    g = groups if groups > 1 else None
    return ConvProblem(mb=mb, ic=ic * groups, oc=oc * groups, i=i, k=k, o=o, s=s, d=d, p=p, g=g)


@dataclass
class Outcome:
    """What came of a number of convolutions: how many ran, under how many plans, what was refused, what is wrong."""

    ran: int = 0
    plans: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, number: int, seed: int = 0) -> None:
        """Runs one convolution under both plans."""
        work = random_workload(number, seed)
        rng = np.random.default_rng((seed, number, 1))
        name = f"number {number} of seed {seed}: {work.problem} {':'.join(work.types)}"
        arrays = work.arrays(rng, exact=True)
        *_, result = arrays
        poison = arrays[result].copy()
        zone = np.full(poison.nbytes + 2 * GUARD, 0xA5, np.uint8)  # nothing around the result may change
        out = zone[GUARD:-GUARD].view(poison.dtype).reshape(poison.shape)
        arrays[result] = out
        wanted = work.reference(arrays).astype(out.dtype)
        plan = None
        try:
            for _ in range(2):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", MissingAtomWarning)
                    kernel = work.compiled(plan)
                out[...] = poison
                kernel.bind(arrays)()
                self.plans += 1
                if (zone[:GUARD] != 0xA5).any() or (zone[-GUARD:] != 0xA5).any():
                    self.wrong.append(f"{name}: elements beside the result are written under {kernel.plan}")
                bad = int(np.count_nonzero(out != wanted))
                if bad:
                    self.wrong.append(f"{name}: {bad} of {out.size} differ under {kernel.plan}")
                candidates = kernel.choice.candidates
                plan = str(candidates[int(rng.integers(len(candidates)))].plan)
        except ArgumentError as why:
            self.refused[re.sub(r"\d+", "N", str(why).partition("\n")[0])] += 1
            return
        except Exception as fault:  # whatever it is, it was not refused
            where = traceback.extract_tb(fault.__traceback__)[-1]
            what = f"{type(fault).__name__} at {where.name}, line {where.lineno}: {str(fault).partition(chr(10))[0]}"
            self.wrong.append(f"{name}: {what} under {plan or 'the default plan'}")
            return
        self.ran += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    os.environ.setdefault("TILEWRIGHT_CACHE_DIR", "off")  # none of these is ever wanted again
    from rich.progress import track

    outcome = Outcome()
    done = 0
    try:
        for done in track(range(1, options.count + 1), "convolutions", disable=not sys.stderr.isatty()):
            outcome.add(options.first + done - 1, options.seed)
            if done % 250 == 0 and not sys.stderr.isatty():
                print(f"{done} of {options.count}: {len(outcome.wrong)} wrong", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print(f"stopped at {done} of {options.count}")
    print(f"{outcome.ran} of {done} convolutions ran, {outcome.plans} plans, {len(outcome.wrong)} wrong")
    for why, count in outcome.refused.most_common():
        print(f"refused {count}: {why}")
    for line in outcome.wrong:
        print(f"WRONG {line}")
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
