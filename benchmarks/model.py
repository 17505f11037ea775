"""The predicted times of kernels on the CPU at hand, against measured ones.

    python benchmarks/model.py [--plans 30] [--shapes 100] [--lists] [--only REGEX] [--seed 0] [--machine NAME]
        [--json FILE] [--seconds 360] [--jobs N] [--times FILE]

Two questions are asked. First: is the chosen plan the fastest? For each of a dozen problems some legal plans are drawn:
the chosen one, others of its candidates, and random edits of them that are taken when they are pinned. All are compiled
by several processes, then timed in one, the launches of a problem's plans interleaved, by their medians. One line a
problem says how many pairs that differ by more than 3 % in time the predicted cycles order right, and how much longer
the chosen plan takes than the best. Second: how far is the predicted time from the measured one? With --shapes, so many
random products and convolutions, and with --lists, those of docs/measured.md, are timed by their chosen plan.

--machine takes another row of this CPU, such as x86.avx512 on one with AMX. The JSON has a row for each plan: program,
plan, predicted cycles, microseconds, whether it is the chosen one. --times takes the microseconds from such a file and
predicts anew; nothing is compiled or timed. The exit code is 1 if a bar is missed (the chosen plan 1.05 of the best in
the median, 1.20 at worst), or a result differs.
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
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from corpus_kernels import gated_unit
from corpus_problems import Problem
from corpus_requests import request_of
from old_new_problems import Problem as ListedProblem
from old_new_problems import cpu_problems
from old_new_worker import cpu_array
from random_plans import Agreement, Timing, edited

from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.driver.request_facts import facts_of_request
from tilewright.errors import FastPathLost, MissingAtomWarning, TilewrightError
from tilewright.machine import Machine
from tilewright.plan.search import rate_plan
from tilewright.plan.text import parse_plan
from tilewright.runtime.timing import interleaved_medians
from tilewright.targets.registry import native

BAR_MEDIAN, BAR_WORST = 1.05, 1.20
FROM_CANDIDATES, TRIES = 0.5, 8
"""The share of the plans that are candidates; draws for each plan that is wanted."""
SAMPLE_SECONDS, ROUNDS = 0.003, 9
"""A sample has launches for about so long; samples of each plan."""
WAKING = 3
"""Launches before the first one that is timed."""
DIFFERENT = 0.02
"""The relative difference, by norms, that other orders of sums and roundings to bf16 explain."""


def _gemm(dtype: str, m: int, n: int, k: int, constant: tuple[str, ...] = ("b",)) -> Problem:
    result = {"i8": "i32"}.get(dtype, dtype)
    return Problem("model", "", partial(kernels.gemm, "nt", dtype, result), {"M": m, "N": n, "K": k}, constant)


def _conv(dtype: str, taps: int, stride: int, *sizes: int, groups: int = 1) -> Problem:
    result = {"i8": "i32"}.get(dtype, dtype)
    options = {"stride": stride, "padding": taps // 2, "groups": groups}
    letters = ("N", "H", "W", "CG" if groups > 1 else "C", "F")
    sizes_of = dict(zip(letters, sizes, strict=True))
    return Problem("model", "", partial(kernels.conv, (taps, taps), dtype, result, **options), sizes_of, ("w",))


def _attention(dtype: str, keys: int, *sizes: int) -> Problem:
    return Problem("model", "", partial(kernels.attention, keys, dtype), dict(zip("BHMNDE", sizes, strict=True)))


CASES = {
    "bf16 1024x1024x1024": _gemm("bf16", 1024, 1024, 1024),
    "bf16 16x4096x4096": _gemm("bf16", 16, 4096, 4096),
    "bf16 3000x3000x3008, b packed at launch": _gemm("bf16", 3000, 3000, 3008, ()),
    "f32 500x700x900": _gemm("f32", 500, 700, 900),
    "bf16 3x3 16x28x28 128-128": _conv("bf16", 3, 1, 16, 28, 28, 128, 128),
    "bf16 1x1 by 2 16x56x56 256-512": _conv("bf16", 1, 2, 16, 56, 56, 256, 512),
    "bf16 7x7 by 2 16x224x224 3-64": _conv("bf16", 7, 2, 16, 224, 224, 3, 64),
    "f32 3x3 4x56x55 64-96": _conv("f32", 3, 1, 4, 56, 55, 64, 96),
    "f32 3x3 8x56x56 144 depthwise": _conv("f32", 3, 1, 8, 56, 56, 1, 144, groups=144),
    "i8 3x3 8x27x29 64-96": _conv("i8", 3, 1, 8, 27, 29, 64, 96),
    "bf16 attention 2x8x512x64": _attention("bf16", 128, 2, 8, 512, 512, 64, 64),
    "bf16 gated unit 512x1024x1024": Problem(
        "model", "", partial(gated_unit, "bf16"), {"M": 512, "N": 1024, "K": 1024}, ("w", "u")
    ),
}


def random_shapes(count: int, seed: int) -> dict[str, Problem]:
    """Products and convolutions drawn by a seed, sizes ragged or round; the largest have about 10 G multiply-adds."""
    rng, drawn = random.Random(f"{seed} shapes"), dict[str, Problem]()
    while len(drawn) < count:
        dtype = rng.choice(("f32", "bf16", "bf16", "i8"))
        if rng.random() < 0.4:
            m, n, k = (int(2 ** rng.uniform(3, 12)) for _ in range(3))
            k = -(-k // 8) * 8 if rng.random() < 0.7 else k
            if m * n * k <= 10**10:
                drawn[f"{dtype} {m}x{n}x{k}"] = _gemm(dtype, m, n, k)
            continue
        taps, stride = rng.choice((1, 1, 3, 3, 5)), rng.choice((1, 1, 2))
        images, height, width = rng.choice((1, 4, 16)), rng.randint(7, 64), rng.randint(7, 64)
        channels, filters = (rng.choice((3, 16, 24, 64, 96, 128, 256, 320, 512)) for _ in range(2))
        if rng.random() < 0.2:
            name = f"{dtype} {taps}x{taps} by {stride} {images}x{height}x{width} {filters} depthwise"
            drawn[name] = _conv(dtype, taps, stride, images, height, width, 1, filters, groups=filters)
        elif images * height * width * channels * filters * taps**2 <= 10**10:
            name = f"{dtype} {taps}x{taps} by {stride} {images}x{height}x{width} {channels}-{filters}"
            drawn[name] = _conv(dtype, taps, stride, images, height, width, channels, filters)
    return drawn


def listed() -> dict[str, Problem]:
    """The problems of the lists that `old_new.py` takes, on a CPU."""

    def as_case(p: ListedProblem) -> Problem:
        return Problem(p.list, p.name, p.kernel, p.sizes, p.constant)

    return {f"{p.list}: {p.name}": as_case(p) for p in cpu_problems()}


@cache
def problem_of(name: str) -> Problem:
    """A problem by its name; random shapes have all that tells them in the name."""
    if name in CASES:
        return CASES[name]
    if ": " in name:
        return listed()[name]
    seed, _, shape = name.partition(" | ")
    return _drawn(int(seed))[shape]


@cache
def _drawn(seed: int) -> dict[str, Problem]:
    return random_shapes(500, seed)


def machine_of(target: str) -> Machine:
    """The machine of a target, with the number of cores of this one."""
    described = native(target).machine
    return replace(described, limits=replace(described.limits, cores=native("cpu").machine.limits.cores))


def planned(name: str, target: str, plan: str | None = None) -> Any:
    """A problem's kernel, planned or by a plan, without machine code; a plan that loses the matrix unit is refused."""
    problem = problem_of(name)
    with warnings.catch_warnings():
        for kind in (FastPathLost, MissingAtomWarning):
            warnings.simplefilter("ignore" if plan is None else "error", kind)
        return kernel_for(
            problem.make(), problem.sizes, machine=machine_of(target), plan=plan, constant=problem.constant
        )


def cycles_of(name: str, target: str, plan: str) -> float | None:
    """The cycles that the search predicts for a plan; None: it predicts none."""
    problem = problem_of(name)
    request = request_of(problem, machine_of(target))
    candidate = rate_plan(facts_of_request(request), machine_of(target), parse_plan(plan))
    return None if isinstance(candidate, str) else candidate.cycles


def pinned_cycles(name: str, target: str, plan: str) -> float | None:
    """The cycles that a pinned plan should take; None if it is refused, or not done as it says."""
    try:
        kernel = planned(name, target, plan)
    except (TilewrightError, FastPathLost, MissingAtomWarning):
        return None
    return cycles_of(name, target, plan) if kernel.text("plan").strip() == plan else None


def drawn_plans(name: str, target: str, count: int, seed: int) -> list[Timing]:
    """Plans of a problem, the chosen one first: candidates and edits that are taken, no two with the same text."""
    rng, kernel = random.Random(f"{seed} {name}"), planned(name, target)
    chosen = kernel.text("plan").strip()
    timings = [Timing(name, chosen, cycles_of(name, target, chosen) or math.nan, chosen=True)]
    texts = ["\n".join(x.plan.lines()) for x in kernel.choice.candidates]
    candidates = iter(rng.sample(texts, len(texts)))
    for _ in range(TRIES * (count - 1)):
        if len(timings) == count:
            break
        wanted = next(candidates, None) if len(timings) < FROM_CANDIDATES * count else None
        plan = wanted or edited(rng.choice([*(t.plan for t in timings), *texts[:count]]), rng)
        if plan in {t.plan for t in timings}:
            continue
        cycles = pinned_cycles(name, target, plan)
        if cycles is not None:
            timings.append(Timing(name, plan, cycles))
    return timings


def executable(timing: Timing, target: str) -> Any:
    """A problem's kernel by a plan, as machine code."""
    problem = problem_of(timing.program)
    return kernel_for(problem.make(), problem.sizes, target=target, plan=timing.plan, constant=problem.constant)


def compile_fault(timing: Timing, target: str) -> str:
    """Make a plan's machine code, which the cache keeps; return what was raised, or nothing."""
    try:
        executable(timing, target).text("asm")
    except TilewrightError as fault:
        return f"{timing.program}: {str(fault).splitlines()[0]}\n{timing.plan}"
    return ""


def measured(timings: list[Timing], target: str) -> tuple[list[Timing], list[str]]:
    """A problem's plans with their times on this CPU, and what is wrong of their results."""
    wrong, samplers, wanted = [], [], None
    arrays: dict[str, Any] = {}
    for timing in timings:
        kernel = executable(timing, target)
        arguments = kernel.module.host.args
        for a in arguments if not arrays else ():
            arrays[a.name] = cpu_array(tuple(map(int, a.type.shape)), "", a.type.dtype.numpy, 2)
        result = arrays[arguments[-1].name]
        result[...] = -1
        launch = kernel.bind(arrays)
        launch()
        given = np.asarray(result, np.float64)
        wanted = given if wanted is None else wanted
        if not np.linalg.norm(given - wanted) <= DIFFERENT * max(np.linalg.norm(wanted), math.ulp(1.0)):
            wrong.append(f"{timing.program}: not the chosen plan's result\n{timing.plan}")
        samplers.append(_sampler(launch))
    us = [1e6 * seconds for seconds in interleaved_medians(samplers, ROUNDS)]
    return [Timing(**asdict(t) | {"us": took}) for t, took in zip(timings, us, strict=True)], wrong


def _sampler(launch: Callable[[], object]) -> Callable[[], float]:
    """Return a function that gives the seconds of a launch, in the mean of a few.

    Workers that have slept since the launch before are woken first: some machines take milliseconds for that.
    """

    def several(count: int) -> float:
        before = perf_counter()
        for _ in range(count):
            launch()
        return (perf_counter() - before) / count

    several(WAKING)
    count = max(1, int(SAMPLE_SECONDS / max(several(WAKING), 1e-7)))

    def sample() -> float:
        launch()
        return several(count)

    return sample


def again(path: Path, target: str, only: str) -> Iterator[list[Timing]]:
    """Yield the plans of a file with their times, predicted anew, problem by problem."""
    programs: dict[str, list[Timing]] = {}
    for row in json.loads(path.read_text()):
        if re.search(only, row["program"]):
            programs.setdefault(row["program"], []).append(Timing(**row))
    for name, timings in programs.items():
        cycles = [cycles_of(name, target, t.plan) for t in timings]
        rated = [Timing(**asdict(t) | {"cycles": c}) for t, c in zip(timings, cycles, strict=True) if c is not None]
        best = min(rated, key=lambda t: t.cycles)
        yield [Timing(**asdict(t) | {"chosen": t is best}) for t in rated]


def judged(programs: list[list[Timing]], ghz: float) -> bool:
    """Print how the predictions fared; True if the chosen plans meet the bars."""
    agreements = [Agreement.of(timings) for timings in programs if len(timings) > 1]
    errors = [t.us / (t.cycles / ghz * 1e-3) for timings in programs for t in timings if t.chosen and t.cycles > 0]
    if errors:
        logs = sorted(map(math.log, errors))
        print(
            f"measured / predicted of {len(errors)} chosen plans: {math.exp(sum(logs) / len(logs)):.2f} in the "
            f"geometric mean, {math.exp(logs[0]):.2f} to {math.exp(logs[-1]):.2f}, half of them from "
            f"{math.exp(logs[len(logs) // 4]):.2f} to {math.exp(logs[3 * len(logs) // 4]):.2f}"
        )
    if not agreements:
        return True
    pairs, right = sum(a.pairs for a in agreements), sum(a.right for a in agreements)
    distances = [a.distance for a in agreements]
    print(
        f"{right / max(1, pairs):.1%} of {pairs} pairs ordered right; the chosen plan takes {median(distances):.3f} of "
        f"the best in the median, at most {max(distances):.3f} (bars {BAR_MEDIAN:.2f}, {BAR_WORST:.2f})"
    )
    return median(distances) <= BAR_MEDIAN and max(distances) <= BAR_WORST


def shown(timings: list[Timing], ghz: float) -> str:
    """A line of a problem: the agreement of its plans, and the chosen plan's times."""
    chosen = next(t for t in timings if t.chosen)
    predicted = chosen.cycles / ghz * 1e-3
    times = f"{chosen.us:9.1f} us, predicted {predicted:9.1f} ({chosen.us / predicted:5.2f})"
    return f"{Agreement.of(timings)}; {times}" if len(timings) > 1 else f"{chosen.program:60} {times}"


def report(outcomes: Iterator[tuple[list[Timing], list[str]]], target: Path | None, ghz: float) -> int:
    """Print a line for each problem as it comes, and a summary; write the rows. Return the exit code."""
    programs, faults = list[list[Timing]](), 0
    for timings, wrong in outcomes:
        faults += len(wrong)
        print(*wrong, sep="\n", end="\n" if wrong else "")
        programs.append(timings)
        print(shown(timings, ghz), flush=True)
        if target is not None:
            target.write_text(json.dumps([asdict(t) for one in programs for t in one], indent=1))
    return int(not judged(programs, ghz) or faults > 0)


def timed(programs: list[list[Timing]], target: str, until: float) -> Iterator[tuple[list[Timing], list[str]]]:
    """Yield each problem's plans with their times; those for which no time is left are said."""
    for timings in programs:
        if time.monotonic() > until:
            print(f"{timings[0].program}: no time was left for it")
        else:
            yield measured(timings, target)


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=30)
    parser.add_argument("--shapes", type=int, default=0, help="so many random shapes, by their chosen plan")
    parser.add_argument("--lists", action="store_true", help="the lists of docs/measured.md, by their chosen plan")
    parser.add_argument("--only", default="", help="a regular expression that a problem's name matches")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--machine", default="", help="a row of this CPU, such as x86.avx512")
    parser.add_argument("--json", type=Path, help="where the rows go; $OUT/model.json where OUT is set")
    parser.add_argument("--seconds", type=float, default=360.0, help="after which nothing more is timed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--times", type=Path, help="times of a JSON that was written before, predicted anew")
    given = parser.parse_args()
    target, begin = f"cpu:{given.machine}" if given.machine else "cpu", time.monotonic()
    ghz = machine_of(target).limits.clock_ghz
    rows = given.json or (Path(os.environ["OUT"]) / "model.json" if "OUT" in os.environ else None)
    if given.times is not None:
        return report(((timings, []) for timings in again(given.times, target, given.only)), rows, ghz)
    wanted = {name: given.plans for name in CASES if given.plans}
    wanted |= {f"{given.seed} | {name}": 1 for name in list(_drawn(given.seed))[: given.shapes]}
    wanted |= dict.fromkeys(listed() if given.lists else (), 1)
    names = [name for name in wanted if re.search(given.only, name)]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        tasks = [(name, target, wanted[name], given.seed) for name in names]
        programs = pool.starmap(drawn_plans, tasks, chunksize=1)
        print(f"{sum(map(len, programs))} plans in {time.monotonic() - begin:.0f} s", flush=True)
        every = [t for timings in programs for t in timings]
        faults = pool.starmap(compile_fault, [(t, target) for t in every], chunksize=1)
    print(*filter(None, faults), f"compiled after {time.monotonic() - begin:.0f} s", sep="\n", flush=True)
    sound = {t for t, fault in zip(every, faults, strict=True) if not fault}
    programs = [[t for t in timings if t in sound] for timings in programs]
    return report(timed(programs, target, begin + given.seconds), rows, ghz) or int(any(faults))


if __name__ == "__main__":
    sys.exit(main())
