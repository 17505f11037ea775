"""The ways in which a drawn program runs, and what is wrong with its results.

| way | what runs |
|---|---|
| `executor` | the meaning, against a second one in numpy (language_numpy.py) |
| `native`, `general` | machine code for this CPU, by the public call; without products in blocks |
| `again` | the same machine code for other values of dynamic sizes |
| `in place` | an output is the array of an input, where the language takes that |
| `pinned` | this CPU's plan with one number of it changed: done so, or refused by an `ArgumentError` |
| a machine's name | its block programs on the interpreter, and the loop programs that they become |
| `slow` and that | the same, planned for slow memory and free launches: a large program's plan at small sizes |
| a machine's name, pinned | its plan with one number changed, on the interpreter |

Before a run every result, and the guards around all arrays, hold NaN (a marker, for integers).
"""

from __future__ import annotations

import random
import re
import traceback
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from gpu_random import OnHost, Run, Traced, differs, find_tests
from language_draft import Drawn
from language_numpy import Unsaid, evaluated

import tilewright
from tilewright.compiler.device import device_of
from tilewright.compiler.native import kernel_for
from tilewright.errors import (
    ArgumentError,
    InterpreterFault,
    ProgramError,
    TargetError,
    TilewrightError,
)
from tilewright.machine import Machine
from tilewright.targets.nvidia.disassembly import assembled, tool
from tilewright.targets.registry import MACHINES, machine

ROWS = (*(m for m in MACHINES if m != "x86.avx512f"), "aarch64.neon.bf16.i8mm")
"""The machines whose programs are interpreted."""
SLOW = "slow "
"""Before the name of a machine: one whose memory is slow."""
NATIVE = {"native": 1.0, "general": 0.25, "pinned": 0.3, "again": 1.0, "in place": 1.0}
"""How often a program runs natively in each way."""
CODE, CODE_OFTEN = "code of hopper", 0.3
"""The way that makes PTX for a Hopper GPU, and assembles it where ptxas is installed; the share of programs."""
VERDICTS = ("exact", "refused", "unsaid", "fault", "wrong", "untyped")
FAILURES = ("fault", "wrong", "untyped")
"""A typed error where there should be none; other numbers, or what an interpreter reports; any other exception."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a program in one way."""

    number: int
    seed: int
    way: str
    verdict: str
    error: str = ""
    place: str = ""
    plan: str = ""

    @property
    def kind(self) -> str:
        """The same for failures that are alike: without numbers and names."""
        plain = re.sub(r"%\w+|`[^`]*`|\b(x86|aarch64)\.[\w.]+|\b(portable|hopper|ampere|cdna3|xe)\b", "…", self.error)
        plain = re.sub(r"-?\d+(\.\d+)?", "N", plain)
        if self.verdict == "wrong" and not self.place:
            plain = "results differ"
        return f"{self.verdict}: {plain[:110]} ({re.sub(r':[0-9]+', '', self.place)})"

    def __str__(self) -> str:
        return f"{self.verdict} by {self.way} [{self.number} --seed {self.seed}]: {self.error} ({self.place})"


def ways(number: int, seed: int, rows: int, native: bool) -> list[str]:
    """The ways of a program: the executor, so many machines, and natively."""
    rng = random.Random(f"ways {seed} {number}")
    found = ["executor", *(way for way, often in NATIVE.items() if native and rng.random() < often)]
    for row in rng.sample(ROWS, min(rows, len(ROWS))):
        found.append(f"{SLOW}{row}" if rng.random() < 0.35 else row)
        if rng.random() < 0.15:
            found.append(f"{row}, pinned")
    return [*found, CODE] if rng.random() < CODE_OFTEN else found


class Case:
    """A drawn program with its arguments and what it must write, or may lie how far from."""

    def __init__(self, drawn: Drawn, number: int, seed: int):
        self.drawn, self.number, self.seed = drawn, number, seed
        self.unsaid = ""
        self.wanted = self.run_of(drawn.sizes)

    def run_of(self, sizes: dict[str, int]) -> Run:
        """The arguments for sizes, and what must be written: as the evaluator says, or else the executor."""
        arrays = self.drawn.arrays(self.seed, sizes)
        try:
            found = evaluated(
                self.drawn.program, {**self.drawn.sizes, **sizes}, {n: a.copy() for n, a in arrays.items()}
            )
        except Unsaid as fault:
            self.unsaid = str(fault)
            found = {n: a.copy() for n, a in arrays.items()}
            self.call("executor")(*found.values())
        wanted, far = {}, {}
        for argument in self.drawn.arguments:
            name = argument.value.name or ""
            if argument.written:
                units, kind = self.drawn.units.get(name), argument.value.type.dtype.numpy
                if units is None:
                    with np.errstate(all="ignore"):
                        wanted[name] = found[name].astype(kind)
                else:
                    info: Any = ml_dtypes.finfo(kind)
                    exact = found[name].astype(np.float64)
                    wanted[name], far[name] = (
                        exact,
                        units * (float(info.eps) * np.abs(exact) + float(info.smallest_normal)),
                    )
        return Run(arrays, wanted, far)

    def call(self, target: str, **more: Any) -> Any:
        """The public executable."""
        return tilewright.compile(self.drawn.program, self.drawn.untold, target=target, **more)

    def kernel(self, row: str, plan: str | None = None) -> Any:
        """The kernel for a machine, or for this CPU, planned; sizes that no argument tells are bound."""
        where: dict[str, Any] = {}
        if row:
            where["machine"] = slow(row.removeprefix(SLOW)) if row.startswith(SLOW) else machine(row)
        program, told = self.drawn.bound()
        return kernel_for(Traced(program), told, plan=plan, **where)


@cache
def slow(row: str) -> Machine:
    """A machine with slow memory, small caches and free launches: it has the plans of large programs for small ones."""
    given = machine(row)
    limits = given.limits
    if given.lanes is None:
        small = replace(limits, l1_bytes=limits.l1_bytes // 32, l2_bytes=limits.l2_bytes // 256, cores=7)
        return replace(given, limits=small)
    limits = replace(
        limits, launch_cycles=0, following_cycles=0, start_cycles=0.0, copy_latency=1, task_cycles=0, next_task=0,
        l2_rate=limits.l2_rate / 4096, far_rate=limits.far_rate / 4096, cores=12,
    )  # fmt: skip
    return replace(given, limits=limits, row_tasks=replace(given.row_tasks, part_elements=4))


def outcome(case: Case, way: str) -> Outcome:
    """What comes of a program in one way."""
    plans: list[str] = []
    try:
        verdict, said = _tried(case, way, plans)
        return Outcome(case.number, case.seed, way, verdict, said, plan="; ".join(plans))
    except InterpreterFault as fault:
        verdict, error = "wrong", fault
    except TargetError as fault:
        verdict, error = "wrong", fault
    except TilewrightError as fault:
        verdict, error = "fault", fault
    except Exception as fault:  # whatever else it raises is a finding
        verdict, error = "untyped", fault
    said = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
    return Outcome(case.number, case.seed, way, verdict, said, _place(error), "; ".join(plans))


def _place(fault: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(fault.__traceback__) if "/tilewright/" in f.filename]
    if not frames:
        return ""
    return f"{frames[-1].filename.rpartition('/tilewright/')[2]}:{frames[-1].lineno} {frames[-1].name}"


def _tried(case: Case, way: str, plans: list[str]) -> tuple[str, str]:
    """(verdict, what is wrong) of a program that runs in one way; the plan is noted."""
    row, _, pinned = way.partition(", ")
    if way == "executor":
        if case.unsaid:
            return "unsaid", case.unsaid
        return _judged(_called(case, case.call("executor"), case.wanted))
    if way in ("native", "general"):
        call = case.call("cpu")
        call.path = "best" if way == "native" else "general"
        return _judged(_called(case, call, case.wanted))
    if way == "again":
        return _for_other_sizes(case)
    if way == "in place":
        return _in_place(case)
    if way == CODE:
        return _assembled(case)
    if way == "pinned":
        row, pinned = "", "pinned"
    kernel = case.kernel(row)
    plans.append(str(kernel.plan))
    if pinned:
        text = changed(kernel.text("plan"), random.Random(f"{case.seed} {case.number} {way}"))
        if text is None:
            return "refused", "nothing to change"
        plans[:] = [text]
        try:
            kernel = case.kernel(row, text)
            kernel.module  # noqa: B018
        except ArgumentError as fault:
            return "refused", str(fault).partition("\n")[0]
        except ProgramError as fault:
            if "shared memory" in str(fault):
                return "refused", str(fault).partition("\n")[0]
            raise
    wrong = _bound(case, kernel, loops=False)
    if not wrong and row and not pinned:
        wrong = _bound(case, kernel, loops=True)
    return _judged(wrong)


def _judged(wrong: str) -> tuple[str, str]:
    return ("wrong", wrong) if wrong else ("exact", "")


def _on_host(case: Case, run: Run) -> dict[str, OnHost]:
    begin = [a.value.name for a in case.drawn.arguments if a.form == "begin"]
    return {n: OnHost(array, n in run.wanted, n in begin) for n, array in run.arrays.items()}


def _called(case: Case, call: Any, run: Run) -> str:
    arrays = _on_host(case, run)
    call(*(array.array for array in arrays.values()))
    return differs(run, arrays)


def _bound(case: Case, kernel: Any, *, loops: bool) -> str:
    arrays = _on_host(case, case.wanted)
    given = {n: array.array for n, array in arrays.items()}
    launch = kernel.bind(given) if not loops else None
    if launch is None:
        find_tests()
        from loop_level import on_the_loop_level

        launch = on_the_loop_level(kernel).bind([given[a.name] for a in kernel.module.host.args])
    launch()
    return differs(case.wanted, arrays)


def _assembled(case: Case) -> tuple[str, str]:
    """The code of all kernels for a Hopper GPU is made; ptxas takes it."""
    program, told = case.drawn.bound()
    kernel = kernel_for(Traced(program), told, target="gpu:hopper")
    device = device_of("gpu:hopper")
    for each in kernel.module.programs.values():
        prepared: Any = device.prepare(each, {})
        if tool("ptxas") is not None:
            assembled(prepared.kernel.assembly, "sm_90a")
    return _judged("")


def _for_other_sizes(case: Case) -> tuple[str, str]:
    if not case.drawn.dynamic:
        return "unsaid", "no size is dynamic"
    call = case.call("cpu", dynamic=case.drawn.dynamic)
    try:
        wrong = _called(case, call, case.wanted)
    except ProgramError as fault:
        if "dynamic" in str(fault):  # it says which size must be known
            return "refused", str(fault).partition("\n")[0]
        raise
    return _judged(wrong or _called(case, call, case.run_of(case.drawn.others)))


def _in_place(case: Case) -> tuple[str, str]:
    """An output in the array of an input with its type and dimensions."""
    arguments = case.drawn.arguments
    pairs = [
        (x, y) for y in arguments for x in arguments
        if y.form == "out" and not x.written and x.value.type == y.value.type and x.form != "odd"
    ]  # fmt: skip
    if not pairs:
        return "unsaid", "no output is like an input"
    x, y = (a.value.name or "" for a in pairs[0])
    arrays = _on_host(case, case.wanted)
    arrays[y] = OnHost(case.wanted.arrays[x], True, True)
    given = {n: array.array for n, array in arrays.items()}
    given[x] = given[y]
    try:
        case.call("cpu")(*given.values())
    except ArgumentError as fault:
        return "refused", str(fault).partition("\n")[0]
    del arrays[x]
    return _judged(differs(case.wanted, arrays))


def changed(plan: str, rng: random.Random) -> str | None:
    """A plan with one number changed."""
    lines = plan.splitlines()
    places = [(n, m) for n, line in enumerate(lines) for m in re.finditer(r"(?<=[ x])\d+(?=[x ,;]|$)", line)]
    if not places:
        return None
    n, m = rng.choice(places)
    size = int(m[0])
    other = rng.choice(
        [k for k in (size // 2, 2 * size, size + 1, size - 1, size + 16, 3 * size) if k > 0 and k != size]
    )
    lines[n] = lines[n][: m.start()] + str(other) + lines[n][m.end() :]
    return "\n".join(lines)
