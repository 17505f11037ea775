"""Every kind of tile program on a Hopper GPU, plainly written, beside PyTorch: attention, products, gradients, rows.

    python benchmarks/every_program.py [--only REGEX] [--check] [--json FILE] [--jobs N] [--seconds S]
    python benchmarks/every_program.py --predict [--only REGEX] [--json FILE] [--jobs N]

The rows are those of `every_program_rows.py`. All kernels are planned and compiled first, in parallel processes, which
also let torch.compile fill its cache. Then each row is compared with the same in float64, and timed beside its peers
and beside a copy of the same bytes: medians of interleaved replays of CUDA graphs. A row that raises prints its error.
The table at the end has the fastest peer, ours, their ratio, the ratio to the copy, ours by the roofline, what was
predicted, and whether the row's bar is met. With --check nothing is timed. With --predict no GPU is needed: each row
prints the first lines of its plan, what is predicted, the roofline, and how long planning took.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import nan
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from corpus_problems import Problem
from corpus_roofline import roofline, sized
from every_program_rows import Row, every_row

from tilewright.compiler.native import kernel_for
from tilewright.targets.registry import machine

LEAST_COPY = 0.9
"""Of a copy's speed, where a row may meet its bar by that."""
LONGEST = 0.3
"""Seconds of one call from which on it is not replayed: one more call is timed."""
SHARE = 1.5
"""Seconds for the replays of one row."""
LINES = 4
"""Of an explanation, that --predict prints of each row."""


@dataclass(frozen=True)
class Planned:
    """A row's plan: its text, predicted and floor microseconds, seconds to plan, what explains it; or its error."""

    name: str
    plan: str = ""
    predicted: float = nan
    floor: float = nan
    seconds: float = nan
    explained: str = ""
    fault: str = ""

    @property
    def ratio(self) -> float:
        """The predicted time by the floor."""
        return self.predicted / self.floor


@dataclass(frozen=True)
class Measured:
    """A row's times in microseconds: ours, each peer's, and a copy's; its error, and how it stands to its bar."""

    name: str
    bar: float
    against: str
    predicted: float
    floor: float
    error: float
    ours: float = nan
    copy: float = nan
    peers: dict[str, float] | None = None
    fault: str = ""

    @property
    def fastest(self) -> tuple[str, float]:
        """The fastest peer and its time."""
        counted = [(t, name) for name, t in (self.peers or {}).items() if not name.startswith("told: ")]
        took, name = min(counted, default=(nan, "none"))
        return name, took

    @property
    def ratio(self) -> float:
        """The fastest peer's time by ours."""
        return self.fastest[1] / self.ours

    @property
    def is_met(self) -> bool:
        """Whether the bar is reached."""
        by_copy = self.copy / self.ours
        if self.against == "floor":
            return self.ours <= self.bar * self.floor
        if self.against == "copy":
            return by_copy >= self.bar
        return self.ratio >= self.bar or (self.against == "peer or copy" and by_copy >= LEAST_COPY)

    def __str__(self) -> str:
        if self.fault:
            return f"{self.name:66} {self.fault}"
        fastest, theirs = self.fastest
        bar = f"{'<=' if self.against == 'floor' else '>='} {self.bar:g} of {self.against}"
        return (
            f"{self.name:66} {fastest:>14} {theirs:9.1f} ours {self.ours:9.1f} us  ratio {self.ratio:5.2f}  "
            f"copy {self.copy / self.ours:5.2f}  {self.ours / self.floor:6.2f} of the floor  "
            f"predicted {self.predicted:9.1f}  error {self.error:.1e}  {bar:24} {'met' if self.is_met else 'MISSED'}"
        )


def planned(name: str, compiles: bool) -> Planned:
    """Plans a row, and with `compiles` makes its code and lets its peers compile theirs; both are kept on disk."""
    row = next(row for row in every_row() if row.name == name)
    begun = time.perf_counter()
    hopper = machine("hopper")
    microseconds = 1e-3 / hopper.limits.clock_ghz
    try:
        kernel = row.make()
        floor = roofline(*sized(Problem("", row.name, row.make, row.sizes)), hopper, row.kept) * microseconds
        best = kernel_for(kernel, row.sizes, target="gpu:hopper")
        seconds = time.perf_counter() - begun
        if compiles:
            best.text("asm")
    except Exception as fault:  # whatever a row raises is its line
        return Planned(name, seconds=time.perf_counter() - begun, fault=_said(fault))
    if compiles:
        from every_program_peers import compile_peers

        compile_peers(row, best.module.host.args)
    predicted = best.choice.cycles * microseconds
    return Planned(name, best.text("plan"), predicted, floor, seconds, best.explain())


def measured(row: Row, plan: Planned, checks_only: bool) -> Measured:
    """Checks a row, and times it beside its peers."""
    import torch
    from every_program_peers import peers_of, relative_errors, tensors_of

    torch.cuda.empty_cache()
    found = kernel_for(row.make(), row.sizes, target="gpu", plan=plan.plan)
    tensors = tensors_of(row, found.module.host.args)
    peers = peers_of(row, tensors)
    launch = found.bind(tensors)
    launch()
    torch.cuda.synchronize()
    error = max(relative_errors(row, tensors, peers))
    known: dict[str, Any] = {"bar": row.bar, "against": row.against, "predicted": plan.predicted, "floor": plan.floor}
    wrong = "" if error <= row.error else f"WRONG: off by {error:.1e} of the norm, {row.error:g} are allowed"
    if checks_only or wrong:
        return Measured(row.name, error=error, fault=wrong or f"right, off by {error:.1e}", **known)
    moved = sum(t.numel() * t.element_size() for t in tensors.values())
    halves = [torch.empty(moved // 2, device="cuda", dtype=torch.uint8) for _ in range(2)]
    calls = {"ours": launch, "copy": lambda: halves[0].copy_(halves[1]), **peers.calls}
    times = _times(calls)
    own, copied = times.pop("ours"), times.pop("copy")
    times = peers.joined(times, copied)
    return Measured(row.name, error=error, ours=own, copy=copied, peers=times, **known)


def _times(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median microseconds of each call; a call that takes very long is timed once, a peer that raises is left out."""
    from tilewright.cli.cuda_graphs import CALLS, graph_sampler
    from tilewright.runtime.timing import ROUNDS, interleaved_medians

    once, times, samplers = dict[str, float](), dict[str, float](), dict[str, Callable[[], float]]()
    for name, call in calls.items():
        try:
            once[name] = _one_call(call)
            if once[name] < LONGEST:
                samplers[name] = graph_sampler(call)
            else:
                times[name] = 1e6 * once[name]
        except Exception as fault:
            if name in ("ours", "copy"):
                raise
            print(f"    {name}: {_said(fault)}", flush=True)
    round_of_all = CALLS * sum(once[name] for name in samplers)
    rounds = max(5, min(ROUNDS, int(SHARE / round_of_all)))
    medians = interleaved_medians(list(samplers.values()), rounds)
    return times | {name: 1e6 * t for name, t in zip(samplers, medians, strict=True)}


def _one_call(call: Callable[[], Any]) -> float:
    """Seconds of a second call."""
    import torch

    call()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def _said(fault: Exception) -> str:
    """An error in one line."""
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
    return f"{type(fault).__name__}: {' '.join(lines)[:300]}"


def _each_planned(names: list[str], jobs: int, compiles: bool) -> Iterator[Planned]:
    """Plans rows in processes of their own, each as soon as one is free."""
    with get_context("spawn").Pool(min(jobs, len(names))) as pool:
        yield from pool.imap(_planned_by, [(name, compiles) for name in names], chunksize=1)


def _planned_by(job: tuple[str, bool]) -> Planned:
    return planned(*job)


def predict(rows: list[Row], jobs: int) -> list[Planned]:
    """Prints what is predicted of each row, then a table, the farthest from its roofline first."""
    plans = []
    for plan in _each_planned([row.name for row in rows], jobs, compiles=False):
        plans.append(plan)
        if plan.fault:
            print(f"{plan.name}: {plan.fault}", flush=True)
            continue
        print(f"{plan.name}: {_prediction(plan)}", *plan.explained.splitlines()[:LINES], sep="\n    ", flush=True)
    print()
    for plan in sorted(plans, key=lambda plan: -plan.ratio if plan.ratio == plan.ratio else 0):
        print(f"{plan.name:66} {plan.fault or _prediction(plan)}")
    return plans


def _prediction(plan: Planned) -> str:
    return (
        f"predicted {plan.predicted:9.1f} us, roofline {plan.floor:8.1f} us, ratio {plan.ratio:7.2f}, "
        f"planned in {plan.seconds:5.1f} s"
    )


def measure(rows: list[Row], jobs: int, seconds: float, checks_only: bool) -> list[Measured]:
    """Prints a line for each row as it is measured, then all of them."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # here each process compiles a row of its own
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    begun, lines = time.perf_counter(), []
    plans = []
    for plan in _each_planned([row.name for row in rows], jobs, compiles=True):
        plans.append(plan)
        print(f"{time.perf_counter() - begun:5.0f} s  {plan.name}: {plan.fault or 'compiled'}", flush=True)
    print(f"{len(plans)} kernels compiled in {time.perf_counter() - begun:.0f} s", flush=True)
    for row, plan in zip(rows, plans, strict=True):
        fault = plan.fault or ("no time left" if time.perf_counter() - begun > seconds else "")
        line = Measured(row.name, row.bar, row.against, plan.predicted, plan.floor, nan, fault=fault)
        if not fault:
            try:
                line = measured(row, plan, checks_only)
            except Exception as raised:  # the other rows are measured all the same
                line = Measured(row.name, row.bar, row.against, plan.predicted, plan.floor, nan, fault=_said(raised))
        lines.append(line)
        print(line, flush=True)
        if others := [f"{name} {took:.1f}" for name, took in (line.peers or {}).items() if name != line.fastest[0]]:
            print(f"    others: {', '.join(others)} us", flush=True)
    print("\nevery row:", *lines, sep="\n")
    met = sum(line.is_met for line in lines)
    print(f"{met} of {len(lines)} bars met, {time.perf_counter() - begun:.0f} s in all")
    return lines


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression that a row's name has")
    parser.add_argument("--predict", action="store_true", help="plan only; no GPU is needed")
    parser.add_argument("--check", action="store_true", help="compare results only")
    parser.add_argument("--json", type=Path, help="where the figures go as JSON")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that plan and compile")
    parser.add_argument("--seconds", type=float, default=230, help="after which no further row is begun")
    options = parser.parse_args()
    rows = [row for row in every_row() if re.search(options.only, row.name)]
    if not rows:
        parser.error(f"--only {options.only}: no row's name has it")
    found: list[Any]
    if options.predict:
        found = predict(rows, options.jobs)
    else:
        found = measure(rows, options.jobs, options.seconds, options.check)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(entry) for entry in found], indent=1))


if __name__ == "__main__":
    main()
