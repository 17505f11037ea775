"""Random legal plans of some programs on a Hopper GPU: does the predicted time order them as the clock does?

    python benchmarks/random_plans.py [--plans 30] [--only REGEX] [--seed 0] [--json FILE] [--seconds 360] [--jobs N]
        [--corpus N] [--dry | --times FILE]

The programs are a dozen that are listed here, or, with --corpus, so many that the seed draws from the plan corpus: its
products, convolutions, attentions and fused programs of static sizes that should take less than a millisecond; those
that have fewer than three plans are left out. For each program some plans are drawn: the chosen one, others of its
candidates, and random edits of them that are taken when they are pinned. All are compiled by several processes first,
then timed in one process, the replays of a program's plans interleaved, by their medians. One line a program says how
many pairs that differ by more than 3 % in time are ordered right by the predicted cycles (equal predictions order
nothing, and are counted apart), and how much longer the chosen plan takes than the best of all. Every plan's result is
compared with the chosen plan's.

The JSON has a row for each plan: program, plan, predicted cycles, microseconds, whether it is the chosen one. It goes
to --json, or to random_plans.json in the folder $OUT. --times takes the microseconds from such a file and predicts
anew, without a GPU and without lowering them: so one sees what another cost makes of plans that were timed before; the
plan that counts as chosen is then the best predicted of them. With --dry the times are the predicted ones with noise.

The exit code is 1 if a bar is missed (90 % of the pairs; the chosen plan 3 % in the median, 10 % at most), a result
differs, or a program has no times. Timing ends after --seconds; the programs that it leaves out are listed.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property, partial
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from corpus_entries import sample
from corpus_problems import Problem, problems
from corpus_requests import MACHINE, request_of
from corpus_text import read

from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.driver.request_facts import facts_of_request
from tilewright.errors import FastPathLost, MissingAtomWarning, TilewrightError
from tilewright.plan.facts import Facts
from tilewright.plan.search import rate_plan
from tilewright.plan.text import parse_plan
from tilewright.targets.registry import machine

APART = 0.03
"""Pairs whose times differ by more than this share are judged."""
BAR_PAIRS, BAR_MEDIAN, BAR_WORST = 0.90, 1.03, 1.10
FROM_CANDIDATES = 0.6
"""The share of the plans that are candidates; the others are edits."""
TRIES = 10
"""Draws for each plan that is wanted; a program that has fewer plans gets fewer."""
DIFFERENT = 0.02
"""The relative difference, by norms, that other orders of sums and roundings to bf16 explain."""
PATIENCE = 90.0
"""Seconds after which the timing of a program counts as hanging."""
DRY_NOISE = 0.05
NOT_DRAWN = ("rows", "grid", "dynamic")
"""Kinds of the corpus that --corpus leaves out: no plan of them multiplies, or the program or a call tells the plan."""
LONGEST = 1e-3
"""Seconds that a program of the corpus should take at most, to be drawn."""
FEWEST = 3
"""Plans that a program of the corpus has at least: fewer order nothing."""


@dataclass(frozen=True)
class Timing:
    """A plan of a program: its predicted cycles, and its time once it is measured."""

    program: str
    plan: str
    cycles: float
    us: float = math.nan
    chosen: bool = False


# -- programs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A program, its sizes, and its arguments that do not change."""

    make: Callable[[], Any]
    sizes: dict[str, int]
    constant: tuple[str, ...] = ()

    def planned(self, plan: str | None = None) -> Any:
        """The program as planned, or by a plan, without machine code; a plan that loses the matrix unit is refused."""
        with warnings.catch_warnings():
            for kind in (FastPathLost, MissingAtomWarning):
                warnings.simplefilter("ignore" if plan is None else "error", kind)
            return kernel_for(self.make(), self.sizes, machine=machine("hopper"), plan=plan, constant=self.constant)

    @cached_property
    def facts(self) -> Facts:
        """The facts of the program."""
        request = request_of(Problem("", "", self.make, self.sizes, self.constant), machine("hopper"))
        return facts_of_request(request)

    def cycles(self, plan: str) -> float | None:
        """The cycles that the search predicts for a plan; None: it predicts none."""
        candidate = rate_plan(self.facts, machine("hopper"), parse_plan(plan))
        return None if isinstance(candidate, str) else candidate.cycles

    def executable(self, plan: str, target: str) -> Any:
        """The program by a plan, as machine code; where there is a GPU, it is loaded too."""
        return kernel_for(self.make(), self.sizes, target=target, plan=plan, constant=self.constant)


def _gemm(m: int, n: int, k: int) -> Case:
    return Case(partial(kernels.gemm, "nt", "bf16", "bf16"), {"M": m, "N": n, "K": k})


def _conv(taps: int, stride: int, padding: int, *sizes: int) -> Case:
    make = partial(kernels.conv, (taps, taps), "bf16", stride=stride, padding=padding)
    return Case(make, dict(zip("NHWCF", sizes, strict=True)))


def _attention(keys: int) -> Case:
    sizes = {"B": 2, "H": 16, "M": 4096, "N": 4096, "D": 128, "E": 128}
    return Case(partial(kernels.attention, keys, "bf16"), sizes)


CASES = {
    "gemm 4096x4096x4096": _gemm(4096, 4096, 4096),
    "gemm 256x4096x4096": _gemm(256, 4096, 4096),
    "gemm 1111x2222x3336": _gemm(1111, 2222, 3336),
    "gemm 512x512x16384": _gemm(512, 512, 16384),
    "conv 3x3 32x28x28x128-128": _conv(3, 1, 1, 32, 28, 28, 128, 128),
    "conv 3x3 32x56x56x64-64": _conv(3, 1, 1, 32, 56, 56, 64, 64),
    "conv 7x7 32x224x224x3-64 by 2": _conv(7, 2, 3, 32, 224, 224, 3, 64),
    "attention 2x16x4096x128, 64 keys": _attention(64),
    "attention 2x16x4096x128, 96 keys": _attention(96),
    "attention 2x16x4096x128, 128 keys": _attention(128),
    "softmax 8192x8192": Case(partial(kernels.softmax, "bf16"), {"M": 8192, "N": 8192}),
    "layer norm 65536x256": Case(partial(kernels.layer_norm, "bf16"), {"M": 65536, "N": 256}),
}


@cache
def _corpus() -> dict[str, Case]:
    """The problems of the corpus as cases, by kind and name."""
    every = problems().items()
    return {f"{kind}: {name}": Case(p.make, p.sizes, p.constant) for (kind, name), p in every}


@cache
def _listed() -> dict[str, Case]:
    """The problems of `old_new.py --gpu` and the rows of `every_program.py` as cases: `list: NAME`, `every: NAME`."""
    from every_program_rows import every_row
    from old_new_problems import gpu_problems

    rows = {f"every: {row.name}": Case(row.make, row.sizes) for row in every_row()}
    return rows | {f"list: {p.name}": Case(p.kernel, p.sizes, p.constant) for p in gpu_problems()}


def case_of(name: str) -> Case:
    """A program by its name: of the dozen above, of the corpus, or listed by another benchmark."""
    return CASES.get(name) or (_listed() if name.startswith(("list: ", "every: ")) else _corpus())[name]


def drawn_names(count: int, seed: int) -> list[str]:
    """The names of programs that a seed draws from the Hopper entries of the corpus."""
    cycles = LONGEST * 1e9 * machine("hopper").limits.clock_ghz
    keys = [
        key
        for key, entry in read().items()
        if key[2] == MACHINE and key[0] not in NOT_DRAWN and not entry.error and 0 < entry.cycles <= cycles
    ]
    return [f"{kind}: {name}" for kind, name, _ in sample(keys, count, seed)]


# -- plans -----------------------------------------------------------------------------------------------------


def drawn(name: str, count: int, seed: int) -> list[Timing]:
    """Plans of a program, the chosen one first: candidates and edits that are taken, no two with the same text."""
    rng, case = random.Random(f"{seed} {name}"), case_of(name)
    best = case.planned()
    chosen = best.text("plan").strip()
    timings = [Timing(name, chosen, case.cycles(chosen) or math.nan, chosen=True)]
    texts = ["\n".join(plan.lines()) for plan in (x.plan for x in best.choice.candidates)]
    candidates = iter(rng.sample(texts, len(texts)))
    for _ in range(TRIES * count):
        if len(timings) == count:
            break
        wanted = next(candidates, None) if len(timings) < FROM_CANDIDATES * count else None
        plan = wanted or edited(rng.choice([*(t.plan for t in timings), *texts[:count]]), rng)
        cycles = predicted(name, plan)
        if cycles is not None and plan not in {t.plan for t in timings}:
            timings.append(Timing(name, plan, cycles))
    return timings


def predicted(name: str, plan: str) -> float | None:
    """The cycles that a pinned plan should take; None if it is refused, or not done as it says."""
    try:
        kernel = case_of(name).planned(plan)
    except (TilewrightError, FastPathLost, MissingAtomWarning):
        return None
    return case_of(name).cycles(plan) if kernel.text("plan").strip() == plan else None


def edited(plan: str, rng: random.Random) -> str:
    """A plan with one to three of its numbers and words changed, those that change how fast it is."""
    lines = plan.splitlines()
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(lines) + 1)
        if at == len(lines) or lines[at].startswith("launch "):
            lines = [line for line in lines if not line.startswith("launch ")]
            lines.append(rng.choice(("launch early", "launch plain")))
        else:
            lines[at : at + 1] = filter(None, [_line(lines[at], rng)])
    return "\n".join(lines)


def _line(line: str, rng: random.Random) -> str:
    """A line with another number, or another word; empty where the line goes."""
    word = line.split()[0]
    if word == "grid":
        names = line.removeprefix("grid ").split(", ")
        names = rng.sample(names, len(names)) if rng.random() < 0.5 else names
        rasters = ("raster 4", "raster 8", "raster 16") if len(names) > 1 else ()
        return "\n".join(filter(None, (f"grid {', '.join(names)}", rng.choice(("", "raster contiguous", *rasters)))))
    if word == "waves":
        return f"waves {rng.choice((2, 4, 8, 16, 32))}"
    if word in ("overlap", "raster"):
        return ""
    if word == "producer" and rng.random() < 0.3:
        return line.removesuffix(", pingpong") if "pingpong" in line else f"{line}, pingpong"
    if word == "producer":
        return _stepped(line, "stages", rng, lambda n: n + rng.choice((-2, -1, 1)))
    if word == "axis":
        return _stepped(line, "task|loop", rng, lambda n: rng.choice((n // 2, n + n // 2, 2 * n)))
    return line


def _stepped(line: str, words: str, rng: random.Random, step: Callable[[int], int]) -> str:
    """A line in which one number that follows one of the words, as in `task 8` or `task M_1 8`, is another."""
    places = list(re.finditer(rf"\b(?:{words})(?: [A-Z]\w*)? (\d+)", line))
    if not places:
        return line
    place = rng.choice(places)
    return f"{line[: place.start(1)]}{max(1, step(int(place[1])))}{line[place.end(1) :]}"


def compile_fault(timing: Timing) -> str:
    """Makes a plan's machine code, which is kept; what was raised, or nothing."""
    try:
        case_of(timing.program).executable(timing.plan, "gpu:hopper").text("asm")
    except TilewrightError as fault:
        return f"{timing.program}: {str(fault).splitlines()[0]}\n{timing.plan}"
    return ""


# -- times -----------------------------------------------------------------------------------------------------


def measured(timings: list[Timing]) -> tuple[list[Timing], list[str]]:
    """A program's plans with their times on the GPU at hand, and what is wrong of their results."""
    import torch
    from old_new_worker import gpu_tensor

    from tilewright.cli.cuda_graphs import graph_sampler
    from tilewright.runtime.timing import interleaved_medians

    case, wrong, samplers = case_of(timings[0].program), [], []
    arguments = case.executable(timings[0].plan, "gpu").module.host.args
    shapes = {arg.name: tuple(map(int, arg.type.shape)) for arg in arguments}
    arrays = {a.name: gpu_tensor(shapes[a.name], str(a.type.dtype), a.type.dtype.numpy, 2) for a in arguments}
    result, wanted = arrays[arguments[-1].name], None
    for timing in timings:
        result.fill_(math.nan if result.dtype.is_floating_point else -1)
        launch = case.executable(timing.plan, "gpu").bind(arrays)
        launch()
        torch.cuda.synchronize()
        wanted = result.clone() if wanted is None else wanted
        if not _difference(result, wanted) < DIFFERENT:
            wrong.append(f"{timing.program}: not the chosen plan's result\n{timing.plan}")
        samplers.append(graph_sampler(launch))
    return _timed(timings, [1e6 * seconds for seconds in interleaved_medians(samplers)]), wrong


def _difference(result: Any, wanted: Any) -> float:
    """The relative difference of two tensors by norms; infinite where not the same of their elements are numbers."""
    given, wanted = result.double(), wanted.double()
    if bool((given.isfinite() != wanted.isfinite()).any()):
        return math.inf
    given, wanted = (each.nan_to_num(posinf=0, neginf=0) for each in (given, wanted))
    return float((given - wanted).norm()) / max(float(wanted.norm()), math.ulp(1.0))


def dry(timings: list[Timing]) -> tuple[list[Timing], list[str]]:
    """The predicted times, with noise."""
    rng, ghz = random.Random(timings[0].program), machine("hopper").limits.clock_ghz
    return _timed(timings, [t.cycles / ghz * 1e-3 * rng.lognormvariate(0, DRY_NOISE) for t in timings]), []


def _timed(timings: list[Timing], us: Sequence[float]) -> list[Timing]:
    return [Timing(**asdict(t) | {"us": took}) for t, took in zip(timings, us, strict=True)]


def all_measured(programs: list[list[Timing]], until: float) -> Iterator[tuple[list[Timing], list[str]]]:
    """Each program's plans with their times, in one process; one that hangs or dies is replaced."""
    fresh = multiprocessing.get_context("spawn")
    pool = fresh.Pool(1)
    for timings in programs:
        if time.monotonic() > until:
            yield [], [f"{timings[0].program}: no time was left for it"]
            continue
        try:
            yield pool.apply_async(measured, (timings,)).get(PATIENCE)
        except Exception as fault:  # it hangs, or the driver faults, and would fault for the rest too
            pool.terminate()
            pool = fresh.Pool(1)
            yield [], [f"{timings[0].program}: no times: {type(fault).__name__}: {str(fault)[:200]}"]
    pool.terminate()


def again(path: Path, only: str = "") -> list[list[Timing]]:
    """The plans of a file with their times, predicted anew; those that have no predicted time are left out."""
    programs: dict[str, list[Timing]] = {}
    for row in (row for row in json.loads(path.read_text()) if re.search(only, row["program"])):
        timing, now = Timing(**row), case_of(row["program"]).cycles(row["plan"])
        if now is not None:
            row = asdict(timing) | {"cycles": now, "chosen": False}
            programs.setdefault(timing.program, []).append(Timing(**row))
    for timings in programs.values():
        best = min(range(len(timings)), key=lambda at: timings[at].cycles)
        timings[best] = Timing(**asdict(timings[best]) | {"chosen": True})
    return list(programs.values())


# -- judging ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """How a program's predictions fared: pairs that are judged, ordered right, predicted equal; chosen / best."""

    program: str
    plans: int
    pairs: int
    right: int
    equal: int
    distance: float

    @staticmethod
    def of(timings: list[Timing]) -> Agreement:
        """The agreement of a program's plans, which have times."""
        right = equal = pairs = 0
        for one, other in combinations(sorted(timings, key=lambda t: t.us), 2):
            if other.us > (1 + APART) * one.us:
                pairs += 1
                right += one.cycles < other.cycles
                equal += one.cycles == other.cycles
        best = min(t.us for t in timings)
        chosen = next(t.us for t in timings if t.chosen)
        return Agreement(timings[0].program, len(timings), pairs, right, equal, chosen / best)

    @property
    def share(self) -> float:
        """The share of the judged pairs that are ordered right; 1 if there are none."""
        return self.right / self.pairs if self.pairs else 1.0

    def __str__(self) -> str:
        return (
            f"{self.program:34} {self.plans:3} plans, {self.share:6.1%} of {self.pairs:3} pairs ordered right "
            f"({self.equal} predicted equal), the chosen plan takes {self.distance:.3f} of the best"
        )


def judged(agreements: list[Agreement]) -> bool:
    """Prints how all programs fared against the bars; True if all are met."""
    pairs, right = sum(a.pairs for a in agreements), sum(a.right for a in agreements)
    distances = [a.distance for a in agreements]
    share = right / pairs if pairs else 1.0
    print(
        f"all: {share:.1%} of {pairs} pairs ordered right, at least {BAR_PAIRS:.0%} are to be; the chosen plan takes "
        f"{median(distances):.3f} of the best in the median, at most {max(distances):.3f} "
        f"(bars {BAR_MEDIAN:.2f}, {BAR_WORST:.2f})"
    )
    return share >= BAR_PAIRS and median(distances) <= BAR_MEDIAN and max(distances) <= BAR_WORST


def report(outcomes: Iterator[tuple[list[Timing], list[str]]], target: Path | None) -> int:
    """Prints a line a program as it comes, and all at the end; writes the rows. The exit code."""
    rows, agreements, faults = [], [], 0
    for timings, wrong in outcomes:
        faults += len(wrong)
        print(*wrong, sep="\n", end="\n" if wrong else "")
        if timings:
            rows += [asdict(t) for t in timings]
            agreements.append(Agreement.of(timings))
            print(agreements[-1], flush=True)
        if target is not None:  # as they come: what a limit of time cuts off is the rest only
            target.write_text(json.dumps(rows, indent=1))
    met = bool(agreements) and judged(agreements)
    return int(not met or faults > 0)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=30)
    parser.add_argument("--only", default="", help="a regular expression that a program's name matches")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", type=int, default=0, help="so many programs of the corpus, not the dozen")
    parser.add_argument("--json", type=Path, help="where the rows go; $OUT/random_plans.json where OUT is set")
    parser.add_argument("--seconds", type=float, default=360.0, help="after which nothing more is timed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry", action="store_true", help="the predicted times with noise: no GPU, no machine code")
    how.add_argument("--times", type=Path, help="times of a JSON that was written before, predicted anew")
    options = parser.parse_args(arguments)
    target = options.json or (Path(os.environ["OUT"]) / "random_plans.json" if "OUT" in os.environ else None)
    begin = time.monotonic()
    if options.times is not None:
        return report(((timings, []) for timings in again(options.times, options.only)), target)
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        listed = drawn_names(options.corpus, options.seed) if options.corpus else list(CASES)
        names = [name for name in listed if re.search(options.only, name)]
        programs = pool.starmap(drawn, [(name, options.plans, options.seed) for name in names], chunksize=1)
        programs = [timings for timings in programs if len(timings) >= min(FEWEST, options.plans)]
        print(f"{sum(map(len, programs))} plans in {time.monotonic() - begin:.0f} s", flush=True)
        if options.dry:
            return report(map(dry, programs), target)
        every = [t for timings in programs for t in timings]
        faults = pool.map(compile_fault, every, chunksize=1)
    print(*filter(None, faults), f"compiled after {time.monotonic() - begin:.0f} s", sep="\n", flush=True)
    sound = {t for t, fault in zip(every, faults, strict=True) if not fault}
    programs = [[t for t in timings if t in sound] for timings in programs]
    return report(all_measured(programs, begin + options.seconds), target) or int(any(faults))


if __name__ == "__main__":
    sys.exit(main())
