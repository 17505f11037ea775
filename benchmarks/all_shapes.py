"""Every problem of every list in the package, in machine code against the reference: one line each.

    python benchmarks/all_shapes.py [--mb N] [--dt f32,bf16] [--lists NAME,...] [--real] [--slow SECONDS]

Exact data must give the reference to the last bit, and with --real, real data must lie within their bound. A line says
how long one launch took (the better of two), its rate, how long compiling took, and the plan. What is wrong, refused or
slow is listed again at the end; the exit code is 1 if anything is wrong or refused. --mb 0 keeps the lists' own batch.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from tilewright.cli.workload import Workload, read_types
from tilewright.errors import TilewrightError
from tilewright.problems import shape_list, shape_lists


@dataclass
class Result:
    """What came of one problem: `outcome` is exact, wrong, refused or failed, and `why` says more."""

    where: str
    work: Workload
    outcome: str = ""
    why: str = ""
    run_s: float = 0.0
    compile_s: float = 0.0
    total_s: float = 0.0
    plan: str = ""

    @property
    def good(self) -> bool:
        """Whether it ran and nothing is wrong."""
        return self.outcome == "exact"

    def __str__(self) -> str:
        times = " " * 51
        if self.run_s:
            rate = self.work.problem.ops / self.run_s / 1e9
            times = f"{self.run_s * 1e3:9.2f} ms, {rate:7.1f} GFLOP/s, compiled in {self.compile_s:5.2f} s"
        text = f"{self.outcome:7} {times}  {self.where} {self.work.problem} {self.work.types[0]}"
        return f"{text}{f': {self.why}' if self.why else ''}{f'  [{self.plan}]' if self.plan else ''}"


def run(where: str, work: Workload, real: bool) -> Result:
    """Compiles a problem, runs it and compares."""
    result = Result(where, work)
    begin = perf_counter()
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            kernel = work.compiled()
        result.compile_s = perf_counter() - begin
        result.plan = str(kernel.plan)
        notes = [str(warning.message).partition("\n")[0] for warning in told]
        wrong = list(_differences(work, kernel, real, result))
        result.outcome, result.why = "wrong" if wrong else "exact", "; ".join([*wrong, *notes])
    except TilewrightError as why:
        result.outcome, result.why = "refused", str(why).partition("\n")[0]
    except Exception as fault:  # whatever it is, nobody refused it
        at = traceback.extract_tb(fault.__traceback__)[-1]
        what = str(fault).partition("\n")[0]
        result.outcome, result.why = "failed", f"{type(fault).__name__} in {at.name}, line {at.lineno}: {what}"
    result.total_s = perf_counter() - begin
    return result


def _differences(work: Workload, kernel, real: bool, result: Result) -> Iterator[str]:
    rng = np.random.default_rng(0)
    arrays = work.arrays(rng, exact=True)
    *_, out = arrays.values()
    launch = kernel.bind(arrays)
    times = []
    for _ in range(2):
        begin = perf_counter()
        launch()
        times.append(perf_counter() - begin)
    result.run_s = min(times)
    bad = int(np.count_nonzero(out != work.reference(arrays).astype(out.dtype)))
    if bad:
        yield f"{bad} of {out.size} differ on exact data"
    if not real:
        return
    arrays = work.arrays(rng, exact=False)
    *_, out = arrays.values()
    kernel.bind(arrays)()
    exact = work.reference(arrays)
    bound = work.bound(arrays, exact)
    bad = int(np.count_nonzero(~(np.abs(out.astype(np.float64) - exact) <= bound)))
    if bad:
        yield f"{bad} of {out.size} lie beyond their bound on real data"


def workloads(lists: list[str], mb: int | None, types: list[str]) -> list[tuple[str, Workload]]:
    """Each problem of the lists, without its name, for each of the types."""
    return [
        (name, Workload(replace(problem, name=None), read_types(kind)))
        for name in lists
        for problem in shape_list(name, mb=mb)
        for kind in types
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=1)
    parser.add_argument("--dt", default="f32,bf16")
    parser.add_argument("--lists", default=",".join(shape_lists()))
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--slow", type=float, default=2.0)
    options = parser.parse_args()
    os.environ.setdefault("TILEWRIGHT_CACHE_DIR", "off")  # so that compiling is measured
    wanted = workloads(options.lists.split(","), options.mb or None, options.dt.split(","))
    results = []
    for number, (name, work) in enumerate(wanted, 1):
        if sys.stderr.isatty():
            print(f"\r{number} of {len(wanted)}: {work.problem}\033[K\r", end="", file=sys.stderr, flush=True)
        results.append(run(name, work, options.real))
        print(f"{number:3} {results[-1]}", flush=True)
    good = [r for r in results if r.good]
    slow = [r for r in good if r.run_s > options.slow]
    print(f"\n{len(good)} of {len(results)} are exact, {len(results) - len(good)} are not; {len(slow)} are slow")
    for r in [*(r for r in results if not r.good), *slow]:
        print(f"{'SLOW ' if r.good else ''}{r}")
    return 0 if len(good) == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
