"""Writes the tables of machines `machines.md` from the rows in `targets/`; run by `make machines`.

Each machine has a table of its multiplication atoms and one of its copies; what the planner counts is one table over
all machines. A field of `Limits` without a row of `MEANING` is a fault: `tests/docs/test_machine_tables.py` finds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from tilewright.machine import CopyAtom, Limits, Machine, MemoryOperand, MultiplyAtom, RegisterOperand
from tilewright.targets.registry import MACHINES, machine

FILE = Path(__file__).parent / "machines.md"
ROWS = tuple("aarch64.neon.fullfp16.dotprod.bf16.i8mm" if name == "aarch64.neon" else name for name in MACHINES)
"""The machines that are shown; AArch64 with all of its optional features."""
SHOWN_AS = {
    "x86.avx2": "x86-64 with AVX2 and FMA",
    "x86.avx512f": "x86-64 with AVX-512",
    "x86.avx512": "x86-64 with AVX-512, BF16 and VNNI",
    "x86.amx": "x86-64 with AVX-512 and AMX",
    "aarch64.neon.fullfp16.dotprod.bf16.i8mm": "AArch64 with NEON and all optional features",
    "portable": "any CPU that LLVM knows",
    "ampere": "NVIDIA Ampere",
    "hopper": "NVIDIA Hopper",
    "cdna3": "AMD CDNA 3 (described: the interpreter runs its programs)",
    "xe": "Intel Xe (described: the interpreter runs its programs)",
}
GROUPS = {
    "Resources": {
        "registers": "vector registers of a thread; 32-bit registers of a lane",
        "tile_registers": "AMX tile registers",
        "vector_bytes": "bytes of a vector register",
        "cores": "cores; of a named CPU those of the CPU at hand are taken",
        "clock_ghz": "clock, GHz",
        "l1_bytes": "L1 cache of a core",
        "l1_ways": "ways of the L1 cache",
        "l2_bytes": "L2 cache: of a core on a CPU, of all cores on a GPU",
        "l2_share": "share of L2 that data of a kernel can use",
        "l2_parts": "parts of the L2 cache, each with its own cores",
        "line_bytes": "bytes of a cache line",
        "sector_bytes": "bytes of an L2 sector",
        "conflict_bytes": "rows at multiples of this distance share L1 sets",
        "prefetch_bytes": "products of vectors ask for lines of a packed operand so far ahead; 0: they do not",
        "instructions": "instructions of a program before compiling takes too long",
    },
    "Rates": {
        "l2_rate": "bytes a cycle that a core reads from L2, all cores at a time",
        "far_rate": "the same from what lies behind L2 (DRAM)",
        "far_alone": "how many times as much while some cores read nothing",
        "warm": "L2 by DRAM bandwidth, all cores, for what L2 still holds",
        "shared_rate": "bytes a cycle that a core reads from shared memory",
        "copy_rate": "bytes a cycle that a core copies",
        "lane_rate": "simple elementwise operations a cycle of a core",
        "function_rate": "functions such as exp a cycle of a core",
        "load_cycles": "cycles between two vector loads",
        "latency": "cycles of a product of the vector unit",
    },
    "Launches and tasks": {
        "launch_cycles": "cycles to start a kernel",
        "following_cycles": "the same of one that starts while another ends",
        "start_cycles": "cycles from the start of one workgroup to the next",
        "task_cycles": "cycles between the copies of a task and those of the next",
        "next_task": "cycles between the products of a task and those of the next",
        "copy_latency": "cycles until a copy to shared memory arrives",
        "far_latency": "how much longer if nothing of the operands is in L2",
        "meeting": "cycles of a workgroup's barrier between K iterations",
    },
    "Corrections of memory": {
        "crossing": "factor of rows that begin anywhere instead of at a multiple of their width",
        "askew": "factor of rows that are no multiple of a sector apart",
        "askew_partial": "factor of rows that end within a sector",
        "overlapping": "factor of rows that begin within the one before",
        "leaving_row": "cycles to store a row of a result",
        "outside_row": "cycles of a copy for each row out of bounds",
        "copy_shown": "share of copy time that shows beside other work",
        "far_users": "factor of copies where all tasks run at a time and readers of the same are no neighbours",
        "read_power": "power of what a raster reads more than the best one",
        "alone": "factor of L2 for rows that no other core reads at the time",
        "strewn": "the same where workgroups do not start next to each other",
        "results_kept": "shares of L2 between which results stay there",
        "operands_kept": "shares of L2 between which operands are there at the next launch",
        "last_store": "factor of the last task's stores",
    },
    "Corrections of products": {
        "shallow_ring": "factor of steps with too few copies ahead",
        "lone_group": "factor of products that one group of waves issues alone",
        "least_step": "least cycles of a K iteration",
        "group_step": "what a further group of waves adds to it",
        "round_latency": "cycles of an iteration of products that nothing hides, with one group",
        "group_latency": "how much longer matrix units take for each group",
        "lane_latency": "the same of lanes, by the number of groups",
        "turn_latency": "the same of both where groups take turns",
        "operand_latency": "the addition to an iteration in which lanes compute an operand",
        "epilogue_latency": "an epilogue beside its arithmetic, stores and waits",
        "sharpness": "exponent of the p-norm that joins a kernel's own time and that of its memory traffic",
        "lone_shown": "share of the shorter of both that shows with one group",
        "lone_lanes": "factor of lanes' work between products with one group",
        "lone_store": "cycles of a task with one buffer for results",
        "lane_store": "simple operations that a lane's store of an element takes",
        "placing": "simple operations to find the place of an element that divides its number",
        "working_registers": "registers of a lane beside its accumulators",
        "loading_registers": "registers of a lane that only starts copies",
        "gathering_registers": "registers of a lane that copies itself",
        "gather_cycles": "cycles of such a lane for each load and store",
        "gather_latency": "more cycles for each that is in bounds",
    },
}
"""What each field of `Limits` means, in groups."""
MEANING = {name: said for group in GROUPS.values() for name, said in group.items()}
INTRODUCTION = """\
# Machines: atoms and rates

What the planner knows of each machine, made from the rows in `src/tilewright/targets` by `make machines`; do not edit
this file by hand. A plan is ranked by these numbers and by nothing else: with another row, another plan is chosen
([extending.md](extending.md) adds a machine). `tilewright targets` says which row the CPU at hand is.

An *atom* is one instruction of the machine: a multiplication atom adds the product of an m x k and a k x n matrix to an
m x n matrix, a copy atom moves elements from one memory to another. Programs name atoms by the names below: `mma by
NAME, tile ...` in a plan, `using NAME` and `by NAME` in a block program.

- *cycles* lie between two independent atoms of one unit, *multiply-adds a cycle* are m * n * k by cycles. The unit is
  a core of a CPU; on a GPU all of a core (multiprocessor) for `wgmma` and `fma`, and one of its matrix units for `mma`,
  `mfma` and `dpas`, of which a core has four (NVIDIA, AMD) or eight (Intel).
- `wgmma.m64nNk16.bf16` stands for one atom for each N in the column *shape*. Endings say where operands are: `ra`, A in
  registers; `ta`, A is stored with M contiguous; `tb`, B is stored with N contiguous.
- Figures of x86, AArch64 and Hopper rows are from manuals and from measurements of many plans; those of the other rows
  from published sources, not measured here. Comments in `targets/*/machine.py` say where they come from.
"""


def page() -> str:
    """The text of `machines.md`.

    >>> page().splitlines()[0]
    '# Machines: atoms and rates'
    """
    described = {name: machine(name) for name in ROWS}
    parts = [INTRODUCTION, "## Overview\n", _overview(described), "\n## Rates and limits\n", RATES_SAID]
    for group, meaning in GROUPS.items():
        parts += [f"\n### {group}\n", _limits(meaning, described)]
    parts += ["\n## Atoms"]
    for name, row in described.items():
        before = _row_before(row, described)
        more = "" if before is None else f" It has the atoms of [`{before.name}`](#{_anchor(before.name)}), and these:"
        parts += [f"\n### `{name}`\n", f"{SHOWN_AS[name]}.{more}\n", _multiply(row, before)]
        copies = _copies(row, before)
        parts += [f"\n{copies}"] if copies else []
    return "\n".join(parts) + "\n"


RATES_SAID = """\
The fields of `Limits` (`machine/description.py`). A dash is a field's default: no effect on the planner.
Corrections are factors and cycles that were fitted to the measured times of many plans on a machine of that row; a row
without them is planned by bandwidths and rates alone."""


def _row_before(row: Machine, described: dict[str, Machine]) -> Machine | None:
    """The row with the most atoms among those that this one has all atoms of; None if there is none."""

    def atoms(machine: Machine) -> set[int]:
        return {id(atom) for atom in (*machine.multiply.values(), *machine.copies.values())}

    within = [other for other in described.values() if atoms(other) < atoms(row)]
    return max(within, key=lambda other: len(atoms(other)), default=None)


def _anchor(name: str) -> str:
    """Where GitHub puts a heading's mark."""
    return name.replace(".", "")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    cells = [list(head), *map(list, rows)]
    cells.insert(1, ["---"] * len(cells[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _overview(described: dict[str, Machine]) -> str:
    """One row for each machine: lanes, waves, memories, numbers of atoms."""
    rows = [
        (
            f"[`{name}`](#{_anchor(name)})",
            SHOWN_AS[name],
            str(row.lanes or "-"),
            str(row.waves),
            _size(row.spaces["shared"].bytes),
            _size(row.spaces["register"].bytes),
            f"{len(row.multiply)} + {len(row.copies)}",
        )
        for name, row in described.items()
    ]
    head = ("row", "machine", "lanes of a wave", "waves of a workgroup", "shared memory", "registers", "atoms + copies")
    return _table(head, rows)


def _limits(meaning: dict[str, str], described: dict[str, Machine]) -> str:
    """One row for each field, one column for each machine."""
    defaults = {field.name: field.default for field in fields(Limits)}
    rows = []
    for name, said in meaning.items():
        values = [getattr(row.limits, name) for row in described.values()]
        shown = ["-" if value == defaults[name] or value is None else _value(name, value) for value in values]
        rows.append((f"`{name}`", said, *shown))
    short = [name.removesuffix(".fullfp16.dotprod.bf16.i8mm") for name in described]
    return _table(("field", "meaning", *short), rows)


def _value(name: str, value: object) -> str:
    if isinstance(value, tuple):
        return " to ".join(map(str, value))
    if name.endswith("_bytes") and isinstance(value, int):
        return _size(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _size(count: int | None) -> str:
    """A number of bytes, by the largest unit that divides it."""
    if count is None:
        return "-"
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} B"


def _multiply(row: Machine, before: Machine | None) -> str:
    """The multiplication atoms that the row before lacks; those of a family that differ in N alone share a line."""
    families: dict[str, list[MultiplyAtom]] = {}
    for atom in (a for a in row.multiply.values() if before is None or a.name not in before.multiply):
        families.setdefault(re.sub(r"(wgmma\.m64|fma\.m64)n\d+", r"\1nN", atom.name), []).append(atom)
    lines = []
    for family, atoms in families.items():
        first, last = atoms[0], atoms[-1]
        m, n, k = first.shape
        columns = str(n) if len(atoms) == 1 else f"N, N of {_numbers([atom.shape[1] for atom in atoms])}"
        lanes = row.lanes and first.c.lanes // row.lanes
        by = "a core" if not lanes else "1 wave" if lanes == 1 else f"{lanes} waves"
        asynchronous = "yes" if first.asynchronous else "-"
        rounds = f" cut to {first.rounds}" if first.rounds else ""
        lines.append(
            (
                f"`{family}`",
                f"{m} x {columns} x {k}",
                f"{first.a.dtype} * {first.b.dtype} + {first.c.dtype}{rounds}",
                f"{_home(first.a)}, {_home(first.b)}",
                by,
                _range(f"{atom.cycles:g}" for atom in (first, last)),
                _range(f"{_rate(atom):.4g}" for atom in (first, last)),
                asynchronous,
            )
        )
    head = ("multiplication atom", "shape m x n x k", "types", "A, B in", "by", "cycles", "multiply-adds a cycle")
    return _table((*head, "asynchronous"), lines)


def _rate(atom: MultiplyAtom) -> float:
    m, n, k = atom.shape
    return m * n * k / atom.cycles


def _range(values: Iterable[str]) -> str:
    """Two values, or the one that both are."""
    return " to ".join(dict.fromkeys(values))


def _numbers(values: list[int]) -> str:
    """Numbers as a list; long ones by their ends."""
    if len(values) <= 4:
        return ", ".join(map(str, values))
    return f"{values[0]}, {values[1]} to {values[-1]}"


def _home(operand: RegisterOperand | MemoryOperand) -> str:
    """Where an operand is: registers, tile registers or shared memory."""
    if isinstance(operand, MemoryOperand):
        return "shared memory"
    return "registers" if type(operand) is RegisterOperand else "tile registers"


def _copies(row: Machine, before: Machine | None) -> str:
    """The copy atoms that the row before lacks; empty if there are none."""
    head = ("copy atom", "from", "to", "bytes", "cache hint", "asynchronous, completed by")
    atoms = [a for a in row.copies.values() if before is None or a.name not in before.copies]
    return _table(head, map(_copy, atoms)) if atoms else ""


def _copy(atom: CopyAtom) -> tuple[str, ...]:
    moved = "a box" if atom.bytes_moved is None else str(atom.bytes_moved)
    return (f"`{atom.name}`", atom.source, atom.target, moved, atom.hint, atom.completes or "-")


def main() -> None:
    """Writes the file."""
    FILE.write_text(page(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
