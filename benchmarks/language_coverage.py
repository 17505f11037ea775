"""The coverage of a run of random programs: operations, words of plans, rules of the planner and of the lowering."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from language_draft import Drawn
from language_rules import RULES

import tilewright
from tilewright.ir.tile import TILE

ROOT = Path(tilewright.__file__).parent
FOLDERS = (
    "plan/search",
    "plan",
    "rewrite",
    "lower/block",
    "lower/block/mma",
    "lower/cpu",
    "lower/gpu",
    "transform",
    "driver",
)
"""Whose functions are rules: a function of theirs that no program entered was not tried."""
SHOWN = 60


class Coverage:
    """What programs have hit."""

    def __init__(self) -> None:
        self.operations: Counter[str] = Counter()
        self.rules: Counter[str] = Counter()
        self.words: Counter[str] = Counter()
        self.functions: set[tuple[str, str]] = set()
        self.programs = 0

    def count(self, program: Drawn) -> None:
        """Counts a program's operations, and the rules that drew them."""
        self.programs += 1
        self.operations.update({op.name for op in program.program.walk()})
        self.rules.update(set(program.rules))

    def plan(self, way: str, plan: str) -> None:
        """Counts the lines of a plan by what they are about, without names and numbers."""
        for line in {re.sub(r"\b[\w.]*\d[\w.]*\b|\([^)]*\)|'\w+'", "#", line) for line in re.split(r"; |\n", plan)}:
            if line:
                self.words[" ".join(w for w in line.split() if w.islower() or w == "#")[:60]] += 1

    @contextmanager
    def profiled(self, active: bool) -> Iterator[None]:
        """Within it, the functions of the planner and the lowering that are entered are noted."""
        if not active:
            yield
            return
        entered: set[Any] = set()
        sys.setprofile(lambda frame, event, _: entered.add(frame.f_code) if event == "call" else None)
        try:
            yield
        finally:
            sys.setprofile(None)
            root = str(ROOT)
            for code in entered:
                if code.co_filename.startswith(root):
                    self.functions.add((code.co_filename[len(root) + 1 :], code.co_qualname))

    def add(self, other: Coverage) -> None:
        """Adds what others have hit."""
        self.operations += other.operations
        self.rules += other.rules
        self.words += other.words
        self.functions |= other.functions
        self.programs += other.programs

    def report(self) -> str:
        """What was hit how often, and what never was."""
        never = sorted(set(TILE.ops) - set(self.operations))
        lines = [
            f"operations in {self.programs} programs: " + _listed(self.operations),
            f"never drawn: {never or 'none'}",
        ]
        idle = sorted(set(RULES) - set(self.rules))
        lines += [f"rules of the generator: {_listed(self.rules)}", f"rules that drew nothing: {idle or 'none'}"]
        lines.append("lines of plans: " + _listed(self.words, 40))
        for folder in FOLDERS:
            known = defined(folder)
            missed = sorted(known - self.functions)
            lines.append(f"{folder}: {len(known) - len(missed)} of {len(known)} functions entered; never, by file:")
            by_file: dict[str, list[str]] = {}
            for file, name in missed:
                by_file.setdefault(file.rpartition("/")[2], []).append(name.rpartition(".")[2])
            whole = {file for file, _ in known} - {file for file, _ in known - set(missed)}
            names = [
                f"{f} (whole)" if any(w.endswith("/" + f) for w in whole) else f"{f}: {', '.join(n)}"
                for f, n in by_file.items()
            ]
            lines.append("  " + "; ".join(names[:SHOWN]))
        return "\n".join(lines)


def _listed(counts: Counter[str], most: int = 200) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common(most))


def defined(folder: str) -> set[tuple[str, str]]:
    """(file, qualified name) of every function that the files of a folder define."""
    found: set[tuple[str, str]] = set()

    def walk(code: Any, file: str) -> None:
        for const in code.co_consts:
            if hasattr(const, "co_qualname"):
                if "<" not in const.co_name and const.co_flags & 0x2:  # a function: its locals are fast
                    found.add((file, const.co_qualname))
                if "<" not in const.co_name:
                    walk(const, file)

    for path in sorted((ROOT / folder).glob("*.py")):
        walk(compile(path.read_text(), str(path), "exec"), str(path.relative_to(ROOT)))
    return {(f, n) for f, n in found if "<locals>" not in n}
