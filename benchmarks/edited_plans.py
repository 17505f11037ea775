"""Random edits of valid plans: taken and done as they say, or refused by the line.

    python benchmarks/edited_plans.py [200] [--seed 0] [--first 0] [--jobs 1] [--run]

A plan that was chosen is changed in one or two lines, as one does by hand: another size of a cut, another block or
atom, other roles, another order, another place. What is taken is read again in the block text, by a reader that knows
nothing of the compiler (`block_reader.py`); with `--run` it is also interpreted, and must give what the executor gives.
What is refused must say why, and name the line. The exit code is 1 if a plan is done otherwise than it says, gives
something else, or is refused without its line, or if fewer than half are taken.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from block_reader import contradictions

import tilewright
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.plan.reading import parse_plan
from tilewright.targets.registry import machine


@dataclass(frozen=True)
class Case:
    """A kernel, its sizes, the machine it is planned for, and the axes M and N of its products."""

    name: str
    make: Callable[[], Any]
    sizes: dict[str, int]
    row: str
    axes: tuple[tuple[str, str], ...] = (("M", "N"),)
    exact: bool = True

    def kernel(self, plan: str | None = None) -> Any:
        """The kernel as planned, or by a plan."""
        return kernel_for(self.make(), self.sizes, machine=machine(self.row), plan=plan)


def _gemm(*how: str, **more: Any) -> Callable[[], Any]:
    return partial(kernels.gemm, *how, **more)


def _conv(dtype: str, **more: Any) -> Callable[[], Any]:
    return partial(kernels.conv, (3, 3), dtype, padding=1, **more)


_CONV = {"N": 2, "H": 9, "W": 14, "C": 64, "F": 64}
_ATTENTION = {"B": 1, "H": 2, "M": 96, "N": 128, "D": 64, "E": 64}
_TWO = (("M", "N"), ("M", "E"))
CASES = (
    Case("gemm", _gemm("nt", "bf16", "bf16"), {"M": 200, "N": 136, "K": 192}, "hopper"),
    Case("gemm, bias", _gemm("nn", "f16", "f32", bias=True), {"M": 320, "N": 264, "K": 128}, "hopper"),
    Case("conv", _conv("bf16"), _CONV, "hopper", (("M", "F"),)),
    Case("attention", partial(kernels.attention, 64, "bf16"), _ATTENTION, "hopper", _TWO, exact=False),
    Case("gemm", _gemm("nt", "bf16"), {"M": 130, "N": 136, "K": 96}, "cdna3"),
    Case("attention", partial(kernels.attention, 32, "bf16"), _ATTENTION, "cdna3", _TWO, exact=False),
    Case("gemm", _gemm("nt", "bf16"), {"M": 130, "N": 136, "K": 96}, "xe"),
    Case("conv", _conv("bf16"), _CONV, "xe", (("M", "F"),)),
    Case("gemm", _gemm("nt", "bf16"), {"M": 300, "N": 136, "K": 192}, "x86.amx"),
    Case("conv", _conv("bf16"), _CONV, "x86.amx"),
    Case("attention", partial(kernels.attention, 64, "bf16"), _ATTENTION, "x86.amx", _TWO, exact=False),
    Case("gemm", _gemm("nt", "f32"), {"M": 300, "N": 136, "K": 100}, "x86.avx512"),
    Case("conv", _conv("f32"), _CONV, "x86.avx512"),
    Case("conv", _conv("f32"), _CONV, "aarch64.neon"),
    Case("softmax", partial(kernels.softmax, "f32"), {"M": 64, "N": 200}, "x86.avx512", (), exact=False),
)


@cache
def chosen(number: int) -> str:
    """The plan that is chosen for a case."""
    text: str = CASES[number].kernel().text("plan")
    return text.strip()


# -- edits -------------------------------------------------------------------------------------------------


def edited(number: int, rng: random.Random) -> tuple[str, list[str]]:
    """A case's plan with one or two lines changed, and these lines as they are then.

    A task's tile of C stands in three lines where there are roles: they are changed together.
    """
    row, before = machine(CASES[number].row), chosen(number).splitlines()
    lines, roles = list(before), any(line.startswith("roles ") for line in before)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(lines))
        if roles and re.search(r": task \d+$| by ", lines[at]):
            lines = _tile(lines, CASES[number].axes[0], row, rng)
        else:
            lines[at] = _line(lines[at], row, rng, roles)
    if lines == before:
        return edited(number, rng)
    with suppress(ArgumentError):
        lines = parse_plan("\n".join(lines)).lines()
    return "\n".join(lines), [line for line in lines if line not in before] or ["overlap"]


def _tile(lines: list[str], axes: tuple[str, str], row: Any, rng: random.Random) -> list[str]:
    """Another tile of C for each task, and the atom and the waves that go with it."""
    at = next(n for n, line in enumerate(lines) if line.startswith("mma by "))
    m = re.fullmatch(r"mma by (\S+), block (\d+)x(\d+)( transposed)?", lines[at])
    if m is None:
        return lines
    own = row.multiply[m[1]]
    form = re.sub(r"n\d+k", "n#k", own.name)
    wide = rng.choice([x for x in row.multiply.values() if re.sub(r"n\d+k", "n#k", x.name) == form])
    groups = rng.choice((1, 1, 2, 3))
    rows = wide.shape[0] * groups * rng.choice((1, 1, 2))
    turned = m[4] or ""
    tile = (wide.shape[1], rows) if turned else (rows, wide.shape[1])
    sizes = dict(zip(axes, tile, strict=True))
    found = []
    for line in lines:
        name = line.split()[1]
        if line.startswith("axis ") and name in sizes:
            line = re.sub(r"task \d+", f"task {sizes[name]}", line)
        elif line.startswith("roles"):
            line = re.sub(
                r"multiply \d+ waves? \d+", f"multiply {4 * groups} waves {(240, 208, 160)[groups - 1]}", line
            )
            line = re.sub(r"ring \d+", f"ring {rng.choice((2, 3, 4))}", line)
        found.append(line)
    found[at] = f"mma by {wide.name}, block {tile[0]}x{tile[1]}{turned}"
    return found


def _line(line: str, row: Any, rng: random.Random, roles: bool) -> str:
    """A line as one might write it instead."""
    word = line.split()[0]
    if word == "axis":
        return _axis(line, rng)
    if word in ("tasks", "order"):
        return _list(line, rng, roles)
    if word == "roles":
        return _number(line, rng, {"ring": (-2, -1, 1), "stored": (-1, 1), "registers": (-16, -8, 8)})
    if " by " in line or word == "atom":
        return _product(line, row, rng)
    if word == "overlap":
        return "overlap none"
    if word == "launch":
        return rng.choice(("launch early", "launch plain"))
    return _place(line, rng)


def _axis(line: str, rng: random.Random) -> str:
    """Another size of one cut: as many of the next one's as it has, more or fewer; now and then any."""
    head, cuts = line.split("): ")
    there = [c for c in cuts.split(", ") if c != "whole"]
    extent = int(re.findall(r"\d+(?=\??(?:,|$))", head)[-1])
    if not there:
        if rng.random() < 0.7:  # most that are whole are summed, or but one wide
            return line
        return f"{head}): {rng.choice(('task', 'loop'))} {max(1, extent // rng.choice((1, 2, 4)))}"
    free = [n for n, c in enumerate(there) if not c.startswith("unit")]  # a unit is what the atom takes
    if not free:
        return line
    at = rng.choice(free)
    *words, text = there[at].split()
    size = int(text)
    step = int(there[at + 1].split()[-1]) if at + 1 < len(there) else 8 if size > 8 else 1
    if rng.random() < 0.2:
        step = 1
    sizes = {size // 2 // step * step, 2 * size, size + step, size - step, 3 * step} - {size}
    there[at] = " ".join([*words, str(rng.choice([n for n in sorted(sizes) if n > 0] or [size]))])
    return f"{head}): {', '.join(there)}"


def _list(line: str, rng: random.Random, roles: bool) -> str:
    """Another order of axes, another schedule, or, where there are roles, another group."""
    word, rest = line.split(" ", 1)
    m = re.fullmatch(r"(.*?)( group \d+)?( contiguous)?", rest)
    assert m is not None
    names, group, schedule = m[1].split(", "), m[2] or "", m[3] or ""
    if word == "tasks" and rng.random() < 0.5:
        how = rng.choice(("group", "schedule")) if roles else "schedule"
        group = f" group {rng.choice((2, 4))}" if how == "group" else group
        schedule = ("" if schedule else " contiguous") if how == "schedule" else schedule
    else:
        last = names[-1:] if names[-1] == "depth" and rng.random() < 0.8 else []
        names = names[: len(names) - len(last)]
        rng.shuffle(names)
        names += last
    return f"{word} {', '.join(names)}{group}{schedule}"


def _number(line: str, rng: random.Random, steps: dict[str, tuple[int, ...]]) -> str:
    """Another number before, or after, one of some words."""
    word = rng.choice(list(steps))
    pattern = rf"\d+(?= {word})" if word in ("registers", "waves?") else rf"(?<={word} )\d+"
    places = list(re.finditer(pattern, line))
    m = rng.choice(places)
    return line[: m.start()] + str(max(1, int(m[0]) + rng.choice(steps[word]))) + line[m.end() :]


def _product(line: str, row: Any, rng: random.Random) -> str:
    """Another atom of the same types, another block, or no atom."""
    m = re.fullmatch(r"(?:(\w+) by |atom )(\S+?)(?:, block (\d+)x(\d+)( transposed)?)?", line)
    if m is None or m[2] not in row.multiply:
        return line
    own = row.multiply[m[2]]
    same = [
        x
        for x in row.multiply.values()
        if [y.dtype for y in (x.a, x.b, x.c)] == [y.dtype for y in (own.a, own.b, own.c)] and x is not own
    ]
    if m[1] is None:
        return f"atom {rng.choice(same).name}" if same else line
    rows, columns = int(m[3]), int(m[4])
    how = rng.choice(("atom", "rows", "columns", "loops"))
    turned = m[5] or ""
    if how == "loops":
        return f"{m[1]} by loops"
    if how == "atom" and same:
        atom = rng.choice(same)
        tall, wide = atom.shape[:2][:: -1 if turned else 1]
        return f"{m[1]} by {atom.name}, block {tall}x{wide}{turned}"
    tall, wide = own.shape[:2][:: -1 if turned else 1]
    rows = max(tall, rng.choice((rows - tall, rows + tall, 2 * rows, tall))) if how == "rows" else rows
    columns = max(wide, rng.choice((columns - wide, columns + wide, wide))) if how != "rows" else columns
    return f"{m[1]} by {own.name}, block {rows}x{columns}{turned}"


def _place(line: str, rng: random.Random) -> str:
    """Another hint, or another place."""
    name, hint = line.split()[0], line.rsplit(", ", 1)[1]
    if rng.random() < 0.5:
        return f"{line.rsplit(', ', 1)[0]}, {'keep' if hint == 'stream' else 'stream'}"
    return f"{name} {rng.choice(('in place', 'staged at task as lines', 'staged at task as panel'))}, {hint}"


# -- outcomes ----------------------------------------------------------------------------------------------


def outcome(number: int, seed: int = 0, run: bool = False) -> tuple[str, str]:
    """(what became of an edit, more of it): `done`, `refused`, or what is wrong."""
    rng = random.Random(f"{seed} {number}")
    case = CASES[number % len(CASES)]
    text, lines = edited(number % len(CASES), rng)
    more = f"{case.name} on {case.row}: {' | '.join(lines)}"
    try:
        kernel = case.kernel(text)
    except ArgumentError as fault:
        if any(line in str(fault) for line in lines):
            return "refused", f"{more}: {fault}"
        return "REFUSED WITHOUT ITS LINE", f"{more}: {fault}"
    axes = {f"mma{n + 1 if n else ''}": of for n, of in enumerate(case.axes)}
    wrong = contradictions(text, kernel.text("block"), axes)
    if wrong:
        return "DONE OTHERWISE", f"{more}: {'; '.join(wrong)}"
    if run and case.exact and not _is_exact(case, kernel):
        return "WRONG RESULT", f"{more}:\n{text}"
    return "done", more


def _is_exact(case: Case, kernel: Any) -> bool:
    *inputs, result = kernel.module.host.args
    data = np.random.default_rng(0)
    arrays = {a.name: data.integers(-2, 3, [int(n) for n in a.type.shape]).astype(a.type.dtype.numpy) for a in inputs}
    wanted = tilewright.compile(case.make(), target="executor")(*arrays.values())
    found = np.full(wanted.shape, -77, wanted.dtype)
    kernel.bind({**arrays, result.name: found})()
    return bool(np.array_equal(found.astype(np.float64), wanted.astype(np.float64)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--show", action="store_true", help="print every edit, not only what is wrong")
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.count)
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(options.jobs) as pool:
        for number, (what, more) in zip(
            numbers, pool.map(partial(outcome, seed=options.seed, run=options.run), numbers), strict=True
        ):
            counts[what] += 1
            if options.show or what.isupper():
                print(f"{number}: {what}: {more}", flush=True)
    for what, count in counts.most_common():
        print(f"{count:4} {what}")
    taken = counts["done"]
    return int(any(what.isupper() for what in counts) or 2 * taken < options.count)


if __name__ == "__main__":
    sys.exit(main())
