"""What a block program's text says, read without the compiler, and whether that is what a plan says.

The reader knows the notation only: lines, braces, ranges. It imports nothing of the package, so that a plan which the
compiler takes and does otherwise is found out. `contradictions(plan, block, axes)` lists what a plan's lines say and
the text does not: how many tasks there are and how far apart they begin, rounds of loops, blocks of sums and their
atoms, roles with waves and registers, stages, where operands lie, how it is launched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import ceil, prod

NAME = r"[A-Za-z_][A-Za-z_0-9]*"


@dataclass
class Block:
    """The facts of one block program's text."""

    text: str
    arguments: list[str] = field(default_factory=list)
    tasks: list[dict[str, int | None]] = field(default_factory=list)
    """Every `tasks`: its variables, and how many numbers each has."""
    contiguous: bool = False
    loops: list[tuple[str, int | None, tuple[str, ...]]] = field(default_factory=list)
    """(variable, rounds, variables of the loops around) of every loop."""
    deferred: bool = False
    roles: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Waves and registers of each."""
    channels: dict[tuple[str, str], int] = field(default_factory=dict)
    """Stages of the channel from one role to another."""
    shared: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    sums: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    """(atom, shape) of registers that hold sums."""
    atoms: set[str] = field(default_factory=set)
    """Those by which products are done."""


def read(text: str) -> Block:
    """The facts of a text."""
    found = Block(text)
    found.arguments = re.findall(rf"%({NAME}): (?:in|out|inout) global", text.splitlines()[0])
    stack: list[tuple[str, ...]] = []
    for line in map(str.strip, text.splitlines()[1:]):
        if m := re.match(r"tasks (.*?)( schedule \w+)? \{$", line):
            found.tasks.append(dict(_ranges(m[1])))
            found.contiguous |= m[2] == " schedule contiguous"
        elif m := re.match(r"for (.*?)((?: unroll| overlap \w+)*) \{$", line):
            around = tuple(name for level in stack for name in level)
            for name, count in _ranges(m[1]):
                found.loops.append((name, count, around))
                around += (name,)
            found.deferred |= "overlap defer" in m[2]
        elif m := re.match(rf"role ({NAME}) waves (\d+)(?: registers (\d+))? \{{$", line):
            found.roles[m[1]] = int(m[2]), int(m[3] or 0)
        elif m := re.match(rf"%{NAME} = channel .* stages (\d+) from ({NAME}) to ({NAME})", line):
            found.channels[m[2], m[3]] = int(m[1])
        elif m := re.match(rf"%({NAME}) = alloc shared \w+ \(([\d, ]*)\)", line):
            found.shared.append((m[1], _numbers(m[2])))
        elif m := re.match(rf"%{NAME} = alloc register \w+ \(([\d, ]*)\) as (\S+)\.c\b", line):
            found.sums.add((m[2], _numbers(m[1])))
        elif m := re.match(r"mma .* using (\S+)", line):
            found.atoms.add(m[1])
        if line.endswith("{") and not line.startswith("}"):
            opened = re.match(r"(?:for|tasks) (.*?)(?: (?:unroll|overlap|schedule).*)? \{$", line)
            stack.append(tuple(name for name, _ in _ranges(opened[1])) if opened else ())
        elif line == "}" and stack:
            stack.pop()
    return found


def _ranges(text: str) -> list[tuple[str, int | None]]:
    """(variable, rounds) of ranges such as `m in 0..7, e in 2..n`; None where they are no numbers."""
    found: list[tuple[str, int | None]] = []
    for m in re.finditer(rf"({NAME}) in (.*?)(?=, {NAME} in |$)", text):
        limits = re.fullmatch(r"(\d+)\.\.(\d+)(?: step (\d+))?", m[2])
        found.append((m[1], ceil((int(limits[2]) - int(limits[1])) / int(limits[3] or 1)) if limits else None))
    return found


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n.strip())


# -- against a plan ----------------------------------------------------------------------------------------


@dataclass
class Axis:
    """A plan's line `axis NAME = (DIGIT EXTENT, ...): CUTS`."""

    name: str
    digits: dict[str, tuple[int, int]]
    """(extent, how far it is walked) of each."""
    cuts: list[tuple[str, str, int]]
    """(role, digit or nothing, size)."""

    @classmethod
    def of(cls, line: str) -> Axis:
        """The axis that a line says."""
        m = re.fullmatch(rf"axis ({NAME}) = \((.*)\): (.*)", line)
        assert m is not None, line
        digits = {}
        for each in m[2].split(", "):
            name, *numbers = each.rstrip("?").replace(" of ", " ").split()
            digits[name] = int(numbers[-1]), int(numbers[0])
        cuts = [re.fullmatch(rf"(\w+) (?:({NAME}) )?(\d+)", c) for c in m[3].split(", ") if c != "whole"]
        return cls(m[1], digits, [(c[1], c[2] or "", int(c[3])) for c in cuts if c is not None])

    def size(self, role: str) -> int | None:
        """The last cut of a role."""
        return next((size for mine, _, size in reversed(self.cuts) if mine == role), None)

    def pieces(self) -> set[int]:
        """How many tasks may lie along it: the last may be a smaller one, or go with the one before."""
        tasks = [(digit, size) for role, digit, size in self.cuts if role == "task"]
        if not tasks:
            return {1}
        if len(tasks) > 1:  # boxes of digits, all alike
            return {prod(ceil(self.digits[digit][0] / size) for digit, size in tasks)}
        ((digit, size),) = tasks
        extents = [walked for _, walked in self.digits.values()]
        whole = prod(extents) if not digit else self.digits[digit][0]
        exact = {ceil(whole / size), max(1, whole // size)}
        if not digit:  # what is walked past the end need not be
            there = prod(extent for extent, _ in self.digits.values())
            exact |= {ceil(there / size), max(1, there // size)}
        return exact


def contradictions(plan: str, block: str, axes: dict[str, tuple[str, str]]) -> list[str]:
    """What a plan says and a block program's text does not; `axes` are the axes M and N of each product."""
    lines = [line for line in re.split(r"[;\n]\s*", plan.strip()) if line]
    found = read(block)
    every = {a.name: a for a in (Axis.of(line) for line in lines if line.startswith("axis "))}
    turns = any(line.startswith("producer ") and line.endswith(", pingpong") for line in lines)
    wrong = [] if turns else _of_tasks(every, found)  # halves of the waves count their tasks by themselves
    for line in lines:
        if m := re.fullmatch(
            r"producer (\d+) waves? (\d+) .* consumer (\d+) waves? (\d+) registers, stages (\d+)(?:, joint)?,"
            r"(?: halo stages (\d+),)?(?: resident stages \d+,)? epilogue stages (\d+)(?:, pingpong)?",
            line,
        ):
            numbers = [int(n or 0) for n in m.groups()]
            wrong += _of_roles(line, numbers, found)
        elif m := re.fullmatch(rf"({NAME}) by (?:(loops)|(\S+), tile (\d+)x(\d+)( transposed)?)", line):
            if m[2] is None:
                turn = -1 if m[6] else 1  # the atom's rows are columns of C
                rows, columns = (every.get(name) for name in axes[m[1]][::turn])
                wrong += _of_block(line, m[3], (int(m[4]), int(m[5]))[::turn], (rows, columns), found)
        elif m := re.fullmatch(r"atom (\S+)", line):
            shape = tuple(every[name].size("loop") for name in ("rows", "columns") if name in every)
            if "lanes" not in every and (found.atoms != {m[1]} or (m[1], shape) not in found.sums):
                wrong.append(f"`{line}`: blocks of {shape}: the text has {sorted(found.sums)} by {sorted(found.atoms)}")
        elif m := re.fullmatch(rf"({NAME}) (in place|packed at bind|(?:strip|panel) at task)(?:, stream)?", line):
            wrong += _of_place(line, m[1], m[2].split()[0], found)
        elif line == "overlap delayed store" and not found.deferred:
            wrong.append(f"`{line}`: no loop of the text has a deferred end")
        elif m := re.fullmatch(r"loops (.*), depth", line):
            wrong += _of_order(line, m[1].split(", "), every, found)
        elif (
            line.startswith("grid ")
            and any("contiguous" in x for x in lines if x.startswith("raster ")) != found.contiguous
        ):
            wrong.append(f"`{line}`: the text's schedule is another")
        elif line.startswith("launch ") and (line == "launch early") != ("launch programmatic" in found.text):
            wrong.append(f"`{line}`: the text is launched otherwise")
    for axis in every.values():
        wrong += _of_loops(axis, found)
    return wrong


def _of_tasks(axes: dict[str, Axis], found: Block) -> list[str]:
    """Every role has as many tasks as the axes say, and they begin where their sizes say."""
    wrong = []
    totals = {1}
    for axis in axes.values():
        totals = {n * m for n in totals for m in axis.pieces()}
    for tasks in found.tasks:
        counts = [n for n in tasks.values() if n is not None]
        if len(counts) < len(tasks) or prod(counts) not in totals:
            wrong.append(f"grid {tasks}; the axes say {sorted(totals)}")
        for name, count in tasks.items():
            axis = axes.get(name.removeprefix("t_"))
            size = None if axis is None else axis.size("task")
            if axis is None or size is None or count is None or count == 1:
                continue
            if count not in axis.pieces():
                wrong.append(f"axis {axis.name}: {name} has {count} numbers, not {sorted(axis.pieces())}")
            loop = axis.size("loop")
            steps = {size} if loop is None else {size, size // loop}  # tasks are dealt out in whole blocks
            forms = [rf"\b{n}\*(?:min\((?:\d+, )?)?-?{name}\b" if n != 1 else rf"\b{name}\b" for n in steps]
            ends = (
                [rf"\b{size}\b"] if sum(n for _, n in axis.digits.values()) < 2 * size else []
            )  # one whole, one smaller
            if not re.search("|".join(forms + ends), found.text):
                wrong.append(f"axis {axis.name}: tasks do not begin {size} apart")
    return wrong


def _of_roles(line: str, numbers: list[int], found: Block) -> list[str]:
    load, loading, multiply, multiplying, ring, halo, stored = numbers
    wrong = []
    if found.roles.get("load") != (load, loading) or found.roles.get("multiply") != (multiply, multiplying):
        wrong.append(f"`{line}`: the text has {found.roles}")
    if found.channels.get(("load", "multiply")) not in (ring, halo or ring):
        wrong.append(f"`{line}`: the text's channels have {found.channels} stages")
    if found.channels.get(("multiply", "multiply"), stored) != stored:
        wrong.append(f"`{line}`: results wait in {found.channels} stages")
    for stages in (ring, halo or ring):
        if not any(shape[:1] == (stages,) for _, shape in found.shared):
            wrong.append(f"`{line}`: no shared memory has {stages} stages")
    return wrong


def _of_block(
    line: str, atom: str, block: tuple[int, int], axes: tuple[Axis | None, Axis | None], found: Block
) -> list[str]:
    """A product is done by its atom, in blocks of the size that is said, or smaller where there is less."""
    if atom not in found.atoms:
        return [f"`{line}`: the text multiplies by {sorted(found.atoms)}"]
    mine = [shape for name, shape in found.sums if name == atom and len(shape) == 2]
    there = []
    for axis, size in zip(axes, block, strict=True):
        width = prod(extent for extent, _ in axis.digits.values()) if axis is not None else 1
        for role in ("task", "loop"):
            cut = axis.size(role) if axis is not None else None
            width = min(width, cut) if cut is not None else width
        there.append({size} if width >= size or found.roles else set(range(1, size + 1)))
    if any(shape[0] in there[0] and shape[1] in there[1] for shape in mine):
        return []
    return [f"`{line}`: the text's blocks are {sorted(mine)}"]


def _of_place(line: str, name: str, how: str, found: Block) -> list[str]:
    packed = name not in found.arguments
    staged = bool(found.shared) and re.search(rf"= view %{name} .*\n(?:.*\n)?\s*copy %\w+ -> %\w+ else", found.text)
    if (how == "packed") != packed:
        return [f"`{line}`: the text's arguments are {found.arguments}"]
    if how in ("strip", "panel") and not staged:
        return [f"`{line}`: nothing of {name} is copied to shared memory"]
    return []


def _of_order(line: str, order: list[str], axes: dict[str, Axis], found: Block) -> list[str]:
    """Loops over blocks of rows and of columns are one within the other as it is said."""
    letters = {name: {digit[0] for digit in axes[name].digits} for name in order if name in ("rows", "columns")}
    if len(letters) < 2:
        return []
    singles = {digit for name, axis in axes.items() if name not in letters for digit in axis.digits}
    loops = [x for x in found.loops if x[0].removeprefix("b_") not in singles]  # a task may have several of a batch
    first, second = ([x for x in loops if x[0].removeprefix("b_")[0] in letters[n]] for n in letters)
    inside = {name for name, _, around in first if any(other[0] in around for other in second)}
    return [f"`{line}`: the loops {sorted(inside)} are inside the others"] if inside else []


def _of_loops(axis: Axis, found: Block) -> list[str]:
    """A loop over pieces of an axis that tasks do not cut has as many rounds as there are."""
    size = axis.size("loop")
    if len(axis.digits) > 1 or size is None or any(role != "loop" for role, _, _ in axis.cuts):
        return []
    ((extent, _),) = axis.digits.values()
    wanted = {ceil(extent / size), extent // size}
    if wanted & {0, 1} or any(count in wanted for _, count, _ in found.loops):
        return []
    return [f"axis {axis.name}: no loop has {sorted(wanted)} rounds"]
