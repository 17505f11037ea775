"""Every single deletion of a barrier, wait, commit or release in the block programs of examples/block and examples/ck.

Each must be refused or reported, at a line of the author's. `python benchmarks/deletions.py [NAME ...]` prints a row
for each, and fails where one has no effect under any schedule. `planted_faults.py` plants faults of other kinds.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "block"), str(ROOT / "examples" / "ck")]

import block_checks as checks  # noqa: E402
import numpy as np  # noqa: E402
from references import integers  # noqa: E402

from tilewright.block import BlockKernel  # noqa: E402
from tilewright.compiler.text import TextExecutable  # noqa: E402
from tilewright.errors import ProgramError  # noqa: E402
from tilewright.ir.binding import substituted_program  # noqa: E402
from tilewright.ir.core import Block, Op, Program  # noqa: E402

DELETED = ("barrier", "wait", "commit", "release")
SCHEDULES = ((1, 0), (1, 1), (2, 2), (2, 3), (3, 4))
"""(workers, seed) of the runs that a deletion gets: one worker has all tasks, one after another."""


@dataclass(frozen=True)
class Subject:
    """A kernel with parameters and arguments that use all of it: several tasks, several rounds of each ring."""

    kernel: BlockKernel
    params: dict[str, Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of one deletion."""

    line: str
    op: str
    fault: ProgramError | None

    @property
    def said(self) -> str:
        """The report in one line."""
        return "harmless" if self.fault is None else f"{type(self.fault).__name__}: {self.fault.what.splitlines()[0]}"


def path_of(name: str) -> Path:
    """The Python file of an example."""
    folder = "ck" if (ROOT / "examples" / "ck" / f"{name}.py").exists() else "block"
    return ROOT / "examples" / folder / f"{name}.py"


def kernel(name: str) -> BlockKernel:
    """The kernel of an example's Python file."""
    spec = importlib.util.spec_from_file_location(name, path_of(name))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: BlockKernel = getattr(module, name)
    return found


def subjects() -> dict[str, Subject]:
    """The programs of examples/block and examples/ck."""
    found = {}
    for case in (
        checks.attention(B=2, T=128, U=320),
        checks.conv_amx(H=8, W=5, C=64, F=64, STRIP=4),
        checks.conv_avx512(H=6, W=6),
        checks.conv_hopper(N=2, H=9, W=9, STAGES=2),
        checks.conv_hopper(halo=True, N=4, H=7, W=7, XSTAGES=2, WSTAGES=4),
        checks.gemm(M=160, N=128, K=320, BN=64, STAGES=2),
        checks.gemm("gemm_hopper_pingpong", M=192, N=128, K=320, BN=64, STAGES=2),
        checks.conv_patches(N=2, H=17, W=9, PATCHES=1, STAGES=2),
        checks.attention(name="flash_hopper", B=1, T=256, U=384),
    ):
        found[case.name] = Subject(kernel(case.name), case.params, case.arguments)
    pair = integers("f16", 70, 100), integers("f16", 130, 100)
    for name in ("basic_gemm", "optimized_gemm"):
        found[name] = Subject(kernel(name), {"M": 70, "N": 130, "K": 100, "BM": 64, "BN": 64}, pair)
    found["tiled_copy"] = Subject(kernel("tiled_copy"), {"N": 900}, (integers("i32", 4, 900),))
    image = integers("f32", 2, 1, 6, 9, 1, 3)
    found["img2col"] = Subject(kernel("img2col"), {"N": 2, "H": 6, "W": 9, "C": 3, "PAD": 1}, (image,))
    found["tensor_transform"] = Subject(kernel("tensor_transform"), {}, (np.arange(32, dtype=np.int32),))
    return found


def places(program: Program) -> list[tuple[Block, int]]:
    """Where the operations stand that are deleted, one at a time."""
    found = []
    for block in (program.body, *(b for op in program.walk() for b in op.blocks)):
        found += [(block, i) for i, op in enumerate(block.ops) if op.name in DELETED]
    return found


def deletions(subject: Subject, schedules: tuple[tuple[int, int], ...] = SCHEDULES) -> Iterator[Outcome]:
    """What becomes of each deletion."""
    whole = substituted_program(subject.kernel.trace(subject.params), {})  # branches that are never taken are gone
    for place in range(len(places(whole))):
        program = substituted_program(whole, {})
        block, index = places(program)[place]
        gone: Op = block.ops.pop(index)
        yield Outcome(_line(gone), gone.name, _fault(program, subject, schedules))


def _line(op: Op) -> str:
    return "?" if op.loc is None else f"{op.loc}: {op.loc.text.strip()}"


def _fault(program: Program, subject: Subject, schedules: tuple[tuple[int, int], ...]) -> ProgramError | None:
    """The first report under these schedules; a report under some of them only is none at all."""
    reports = []
    for workers, seed in schedules:
        try:
            TextExecutable([program], {}, "interpreter", workers, seed)(*subject.arguments)
        except ProgramError as fault:
            reports.append(fault)
    missed = len(schedules) - len(reports)
    if reports and missed:
        print(f"  under {missed} of {len(schedules)} schedules: no report")
    return reports[0] if reports else None


def main() -> None:
    harmless = 0
    for name, subject in subjects().items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        found = list(deletions(subject))
        print(f"{name}: {len(found)} deletions, {sum(o.fault is not None for o in found)} refused or reported")
        for outcome in found:
            harmless += outcome.fault is None
            print(f"  {outcome.line} | {outcome.op} | {outcome.said}")
    if harmless:
        sys.exit(f"{harmless} deletions have no effect")


if __name__ == "__main__":
    main()
