"""One hundred operators of PyTorch, written plainly by a newcomer: is any predicted far above its floor, unsaid?

    python benchmarks/newcomer_operators.py [--only REGEX] [--machines hopper,x86.avx512,aarch64.neon] [--jobs 2]
    python benchmarks/newcomer_operators.py --check [--only REGEX]

Each operator is planned at sizes of real use for a Hopper GPU and for CPUs of 16 cores. A row has its predicted time,
its floor (the true roofline, counted from the program alone: bytes, products, functions of elements at the full rate of
lanes; and a launch), their ratio, and the cause if it warns. The
bar: none above 4 times its floor (and 20 us above it) without a warning, and on Hopper at most 5 with one. With --check
every operator runs at tiny sizes on the executor and natively on this CPU, and is compared with numpy: with == where
integers give the same numbers everywhere.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from dataclasses import dataclass, replace
from math import nan, prod
from multiprocessing import get_context

import newcomer_images
import newcomer_products
import newcomer_rows
import numpy as np
from corpus_problems import Problem
from corpus_roofline import roofline, sized
from newcomer_form import OPERATORS, Operator

import tilewright
from tilewright.compiler.native import kernel_for
from tilewright.errors import FastPathLost, SlowPlanWarning, TilewrightError
from tilewright.ir.core import TileType
from tilewright.machine import Machine
from tilewright.plan.epilogue import lane_cycles
from tilewright.plan.slow import SLOW_MICROSECONDS, SLOW_RATIO
from tilewright.targets.registry import machine

MACHINES = ("hopper", "x86.avx512", "aarch64.neon")
CORES = 16
"""Those of a CPU."""
MOST_WARNED = 5
"""Operators that may warn on Hopper."""
FAMILIES = (newcomer_rows, newcomer_images, newcomer_products)


@dataclass(frozen=True)
class Row:
    """An operator on a machine: predicted and floor microseconds, and its warning, or its error."""

    name: str
    machine: str
    predicted: float = nan
    floor: float = nan
    warning: str = ""
    fault: str = ""

    @property
    def is_far(self) -> bool:
        """True if it is predicted far above its floor."""
        return self.predicted > SLOW_RATIO * self.floor and self.predicted - self.floor > SLOW_MICROSECONDS

    def __str__(self) -> str:
        head = f"{self.machine:13} {self.name:34}"
        if self.fault:
            return f"{head} {self.fault}"
        unsaid = "FAR, UNSAID" if self.is_far and not self.warning else ""
        return f"{head} {self.predicted:10.1f} us {self.floor:10.1f} {self.predicted / self.floor:8.2f}  " + (
            self.warning or unsaid
        )


def machine_of(name: str) -> Machine:
    """Return a machine by name; a CPU with 16 cores."""
    row = machine(name)
    return row if row.lanes is not None else replace(row, limits=replace(row.limits, cores=CORES))


def floor_of(operator: Operator, row: Machine) -> float:
    """Return the cycles that no plan of an operator can beat on a machine, counted from its program alone."""
    program, size = sized(Problem("", operator.name, operator.kernel, dict(operator.sizes)))
    tiles = [
        (op, op.results[0].type) for op in program.walk() if op.results and isinstance(op.results[0].type, TileType)
    ]
    lanes = sum(prod(map(size, kind.dims)) * lane_cycles(op, row) for op, kind in tiles)
    return max(roofline(program, size, row), lanes / (row.limits.cores or 1) + row.limits.launch_cycles)


def planned(asked: tuple[str, str]) -> Row:
    """Return the row of an operator, by name, planned for a machine, by name."""
    name, target = asked
    operator, row = OPERATORS[name], machine_of(target)
    microseconds = 1e-3 / row.limits.clock_ghz
    floor = floor_of(operator, row) * microseconds
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            if row.lanes is not None:
                kernel = kernel_for(operator.kernel(), dict(operator.sizes), target=f"gpu:{target}")
            else:
                kernel = kernel_for(operator.kernel(), dict(operator.sizes), target="interpreter", machine=row)
            cycles = kernel.choice.cycles
        except TilewrightError as fault:
            return Row(name, target, floor=floor, fault=f"{type(fault).__name__}: {str(fault).splitlines()[0]}")
    texts = [str(w.message).splitlines()[0] for w in said if w.category in (SlowPlanWarning, FastPathLost)]
    return Row(name, target, cycles * microseconds, floor, texts[0].partition("us: ")[2] or texts[0] if texts else "")


def differences(operator: Operator) -> list[str]:
    """Return how an operator's results differ from numpy's at tiny sizes, on the executor and natively; [] if equal."""
    found = []
    for target in ("executor", "cpu"):
        kernel, arrays, wanted = operator.arguments()
        tilewright.compile(kernel, target=target)(**arrays)
        for name, values in wanted.items():
            got = arrays[name]
            close = np.array_equal if operator.exact else lambda a, b: np.allclose(a, b, rtol=1e-5, atol=1e-5)
            if got.shape != np.shape(values) or not close(got, values):
                found.append(f"{operator.name} on {target}: {name} differs")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the program; return its exit status: 1 if the bar is missed, or a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression that an operator's name matches")
    parser.add_argument("--machines", default=",".join(MACHINES), help="machines by name, with commas between")
    parser.add_argument("--jobs", type=int, default=1, help="processes that plan")
    parser.add_argument("--check", action="store_true", help="compare tiny runs with numpy, instead of planning")
    given = parser.parse_args(arguments)
    names = [name for name in OPERATORS if re.search(given.only, name)]
    if given.check:
        wrong = [line for name in names for line in differences(OPERATORS[name])]
        print("\n".join(wrong) or f"{len(names)} operators are right, {exact_count(names)} of them by ==")
        return 1 if wrong else 0
    asked = [(name, target) for target in given.machines.split(",") for name in names]
    with get_context("spawn").Pool(given.jobs) as pool:
        rows = []
        for row in pool.imap(planned, asked):
            print(row, flush=True)
            rows.append(row)
    missed = False
    for target in given.machines.split(","):
        of_machine = [row for row in rows if row.machine == target]
        unsaid = [row.name for row in of_machine if row.is_far and not row.warning]
        warned, failed = sum(bool(row.warning) for row in of_machine), [row.name for row in of_machine if row.fault]
        print(
            f"{target}: {len(of_machine)} operators, {warned} warn, {len(unsaid)} are far above their floor unsaid "
            f"{unsaid or ''}, {len(failed)} fail {failed or ''}"
        )
        is_gpu = machine(target).lanes is not None
        missed = missed or bool(unsaid or failed) or (is_gpu and warned > MOST_WARNED)
    return 1 if missed else 0


def exact_count(names: list[str]) -> int:
    """Return how many of the operators are compared with ==."""
    return sum(OPERATORS[name].exact for name in names)


if __name__ == "__main__":
    sys.exit(main())
