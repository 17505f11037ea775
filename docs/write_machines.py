"""Writes `machines.md` and the pages in `machines` from the rows in `targets/`; run by `make machines`.

Each machine has a table of its multiplication atoms and one of its copies; the rates that the planner uses are one page
for all machines. `tests/docs/test_machine_tables.py` finds a field of `Limits` that has no row of `MEANING`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import fields
from pathlib import Path

from tilewright.machine import CopyAtom, Limits, Machine, MemoryOperand, MultiplyAtom, RegisterOperand
from tilewright.targets.registry import MACHINES, machine

FOLDER = Path(__file__).parent
ROWS = tuple("aarch64.neon.fullfp16.dotprod.bf16.i8mm" if name == "aarch64.neon" else name for name in MACHINES)
"""The machines that are shown; AArch64 with all of its optional features."""
SHOWN_AS = {
    "x86.avx2": "x86-64 with AVX2 and FMA",
    "x86.avx512f": "x86-64 with AVX-512",
    "x86.avx512": "x86-64 with AVX-512, BF16 and VNNI",
    "x86.amx": "x86-64 with AVX-512 and AMX",
    "aarch64.neon.fullfp16.dotprod.bf16.i8mm": "AArch64 with NEON and all optional features",
    "portable": "Any CPU for which LLVM generates code",
    "ampere": "NVIDIA Ampere",
    "hopper": "NVIDIA Hopper",
    "cdna3": "AMD CDNA 3",
    "xe": "Intel Xe",
}
GROUPS = {
    "Resources": {
        "registers": "CPU: vector registers of a thread; GPU: 32-bit registers of a lane",
        "tile_registers": "AMX tile registers of a thread",
        "vector_bytes": "size of a vector register",
        "cores": "number of cores; for a CPU, the computer's number is used instead",
        "clock_ghz": "clock rate in GHz",
        "l1_bytes": "size of the L1 cache of one core",
        "l1_ways": "associativity of the L1 cache",
        "l2_bytes": "CPU: size of the L2 cache of a core; GPU: size of the last cache before DRAM, for all cores",
        "l2_share": "share of L2 that the data of a kernel can use",
        "l2_parts": "number of parts of L2, each for some of the cores",
        "line_bytes": "size of a cache line, as the planner assumes it",
        "sector_bytes": "size of an L2 sector",
        "conflict_bytes": "rows whose stride is a multiple of this distance fall into few sets of L1",
        "results_kept": "loads get evict-first hints if the results need this share of L2",
        "prefetch_bytes": "distance at which packed operands are prefetched",
        "instructions": "longest program, in instructions, that compiles in acceptable time",
    },
    "Rates": {
        "l2_rate": "bytes a cycle that each core reads from L2 while all cores read",
        "far_rate": "bytes a cycle that each core reads from memory behind L2 (DRAM) while all cores read",
        "far_alone": "`far_rate` is multiplied by this while the other cores are idle",
        "warm": "`far_rate` is multiplied by this for data that L2 still holds from an earlier launch",
        "shared_rate": "bytes a cycle that a core reads from shared memory",
        "copy_rate": "bytes a cycle that a core copies from memory to memory",
        "lane_rate": "simple elementwise operations that a core executes in a cycle",
        "function_rate": "functions such as exp that a core executes in a cycle",
        "load_cycles": "cycles between two vector loads",
        "run_cycles": "cycles added for each contiguous run of an operand that a core reads from memory behind L2",
        "latency": "latency of a multiply-add of the vector unit, in cycles",
    },
    "Launches and tasks": {
        "launch_cycles": "cycles of a kernel launch",
        "following_cycles": "cycles of a launch that overlaps the end of the previous kernel",
        "sharing_cycles": "cycles that a CPU kernel takes longer if several workers share its tasks",
        "uneven": "how much longer than the average the slowest core may take for a task, as a share of it",
        "start_cycles": "cycles between the starts of two workgroups, if not all can start at once",
        "task_cycles": "cycles between the last copy of a task and the first copy of the core's next task",
        "next_task": "cycles between the last MMA of a task and the first MMA of the core's next task",
        "copy_latency": "latency of a copy to shared memory, in cycles",
        "far_latency": "addition to `copy_latency` if no operand is in L2",
        "meeting": "cycles of a workgroup barrier between two iterations of the K loop",
    },
    "Corrections of memory times": {
        "crossing": "factor on L2 reads of rows that do not start at a multiple of their width",
        "misaligned_row": "factor on rows whose stride is no multiple of an L2 sector",
        "misaligned_row_tail": "factor on the last piece of a row that ends within an L2 sector",
        "overlapping": "factor on rows that begin within the previous row",
        "leaving_row": "cycles to store one row of a result",
        "outside_row": "cycles that a TMA box copy takes for each row out of bounds",
        "copy_shown": "share of the copy time that other work does not hide",
        "far_users": "factor on copies if all tasks run at once and tasks that read the same data are not neighbours",
        "read_power": "p: a raster that reads r times as much as the best raster multiplies copy times by r^p",
        "alone": "factor on L2 reads of rows that no other core reads at about the same time",
        "strewn": "the value of `alone` for kernels with programmatic dependent launch",
        "rewritten": "the value of `alone` for operands that the previous launch copied to another layout",
        "operands_kept": "shares of L2: operands up to the first stay there until the next launch; from the second on, "
        "none stay",
        "last_store": "factor on the time of the last task's stores to L2",
    },
    "Corrections of MMA loops": {
        "shallow_ring": "factor on an iteration if too few pipeline stages are in flight",
        "lone_group": "factor on MMAs if one warpgroup issues all of them",
        "lone_lanes": "factor on elementwise work of one warpgroup between MMAs, if the iteration is not dependent",
        "least_step": "minimum cycles in which waves wait for a stage, use it and release it",
        "group_step": "cycles added to an iteration for each warpgroup after the first",
        "operand_latency": "cycles added to an iteration in which lanes compute an operand, for each wgmma along M",
        "group_latency": "cycles added to the MMAs of a dependent iteration for each warpgroup",
        "lane_latency": "cycles added to the elementwise work of a dependent iteration of one warpgroup",
        "turn_latency": "cycles added to a dependent iteration if warpgroups take turns",
        "lone_shown": "share of the shorter of MMAs and elementwise work that one warpgroup does not hide",
        "round_latency": "cycles between two accumulator tiles of a task of one warpgroup",
        "epilogue_latency": "cycles that every epilogue takes",
        "lone_store": "cycles that an epilogue waits if there is one buffer for results",
        "sharpness": "exponent of the p-norm that joins computing time and memory time",
    },
    "Work of lanes": {
        "lane_store": "cost of the store of one element by a lane, in simple elementwise operations",
        "placing": "cost of an element's address that needs a division, in simple elementwise operations",
        "working_registers": "registers of a lane beside its accumulators",
        "loading_registers": "registers of a lane that only starts bulk copies",
        "gathering_registers": "registers of a lane that copies by loads and stores",
        "gather_cycles": "cycles of a load or store of one word by a lane that copies",
        "gather_latency": "cycles added to `gather_cycles` for a word in bounds",
    },
}
"""What each field of `Limits` means, in groups."""
MEANING = {name: said for group in GROUPS.values() for name, said in group.items()}
MORE_OF = {
    "x86": ("x86 CPUs", ("x86.avx2", "x86.avx512f", "x86.avx512", "x86.amx")),
    "aarch64": ("AArch64 and other CPUs", ("aarch64.neon.fullfp16.dotprod.bf16.i8mm", "portable")),
    "nvidia": ("NVIDIA GPUs", ("ampere", "hopper")),
    "amd_intel": ("AMD and Intel GPUs", ("cdna3", "xe")),
}
"""For each page of atoms its title and its machines."""
WRITTEN = "`make machines` writes this page from `src/tilewright/targets`. Do not edit it by hand."
INTRODUCTION = f"""\
# Machines

This page is for engineers who read or write [plans](plans.md), or who want to know which instructions Tilewright uses
on a machine. It lists the machines that Tilewright describes, and links to the instructions and rates of each.

A *machine* is the description of a target: its memories, its instructions and its rates. The planner compares plans by
the times that it predicts from this description. The command `tilewright targets` says which machine describes your
CPU. [Extend Tilewright](extending.md) shows how to add a machine.

- The figures of x86, AArch64 and Hopper come from manuals and from measurements of many plans.
- The figures of the other machines come from published sources, and were not measured.
- Comments in `src/tilewright/targets` give the source of each figure.

{WRITTEN}
"""
OVERVIEW_SAID = """\
| column | meaning |
| --- | --- |
| machine | the name to use in `target="cpu:NAME"` or `target="gpu:NAME"`, with a link to its atoms |
| lanes | threads of one wave (warp); a dash for CPUs |
| waves | the largest number of waves of a workgroup (CTA); a CPU core is one workgroup of one wave |
| shared memory, registers | size for one workgroup; a dash: no limit, because a CPU allocates it in main memory |
| atoms | the number of multiplication atoms and of copy atoms |

An *atom* is one instruction of the machine, or a short fixed sequence of instructions. A *multiplication atom* adds the
product of an m x k and a k x n matrix to an m x n matrix. A *copy atom* moves elements from one memory to another, or
between memory and registers.
"""
ATOMS_SAID = """\
An *atom* is one instruction of a machine, or a short fixed sequence of instructions. Programs name atoms by the names
in the tables: a [plan](../plan_grammar.md) says `mma by NAME, tile ...`, and a [block
program](../levels/block_programs.md) says `using NAME` for a multiplication and `by NAME` for a copy.

A multiplication atom adds the product of A (m x k) and B (k x n) to C (m x n), which is in registers:
"""
CYCLES = {
    "x86": "cycles between the starts of two independent atoms on one core",
    "aarch64": "cycles between the starts of two independent atoms on one core",
    "nvidia": "cycles between the starts of two independent atoms on one multiprocessor (SM); for `mma`, on one of "
    "its four tensor cores",
    "amd_intel": "cycles between the starts of two independent atoms on one matrix unit; a CDNA 3 compute unit has "
    "four matrix units, and an Xe core has eight",
}
"""What the column *cycles* counts, on each page of atoms."""
HINTS = {
    "keep": "`keep`: cache as usual",
    "stream": "`stream`: the data are not used again",
    "bypass": "`bypass`: do not cache in L1",
}
ABOUT = {
    "amd_intel": """
Tilewright does not generate machine code for these GPUs. The interpreter runs their programs. A *wave* of Xe is a
sub-group of 16 lanes.
"""
}
"""What a page of atoms says about all of its machines."""
AFTER = {
    "nvidia": """\
The name `wgmma.m64nNk16.bf16` stands for several atoms, one for each value of N in the column *shape*. A range in
another column runs from the smallest N to the largest N. "N from 8 to 256" stands for these values:
{numbers}.

The endings of a name say how A and B are stored:

- `ra`: A is in registers.
- `ta`: A is stored with M contiguous.
- `tb`: B is stored with N contiguous.

An operand in shared memory without such an ending is stored with K contiguous. An `fma` atom is a sequence of FMA
instructions.
"""
}
"""What a page of atoms says below the columns of its multiplication atoms."""


def pages() -> dict[str, str]:
    """The text of each page, by its path in this folder.

    >>> list(pages())[:2]
    ['machines.md', 'machines/x86.md']
    """
    described = {name: machine(name) for name in ROWS}
    links = [
        f"- [Atoms of {title}](machines/{page}.md): {', '.join(f'`{name}`' for name in names)}"
        for page, (title, names) in MORE_OF.items()
    ]
    more = ["\n## Pages\n", *links, "- [Rates and limits](machines/rates.md) of all machines"]
    texts = {"machines.md": [INTRODUCTION, "## Overview\n", OVERVIEW_SAID, _overview(described), *more]}
    for page, (title, names) in MORE_OF.items():
        texts[f"machines/{page}.md"] = list(_atoms(page, title, names, described))
    rates = [RATES_SAID]
    for group, meaning in GROUPS.items():
        rates += [f"\n## {group}\n", *filter(None, [SECTIONS_SAID.get(group)]), _limits(meaning, described)]
    texts["machines/rates.md"] = rates
    return {path: "\n".join(parts) + "\n" for path, parts in texts.items()}


def _atoms(page: str, title: str, names: tuple[str, ...], described: dict[str, Machine]) -> Iterable[str]:
    """The parts of a page of atoms. Columns that have the same entry in all rows of the page are left out."""
    machines = [described[name] for name in names]
    atoms = [atom for row in machines for atom in row.multiply.values()]
    copies = [copy for row in machines for copy in row.copies.values()]
    is_gpu = any(row.lanes for row in machines)
    hints = [said for hint, said in HINTS.items() if any(copy.hint == hint for copy in copies)]
    rounded = '; "truncated to tf32": the atom first truncates A and B' if any(a.rounds_to for a in atoms) else ""
    has_boxes = any(copy.bytes_moved is None for copy in copies)
    boxes = '; "a box": a box of a tensor, whose size the program states' if has_boxes else ""
    spaces = "global memory; `shared`: shared memory" if is_gpu else "memory"
    columns = {
        "types": f"element types of A, B and C, written A * B + C{rounded}",
        "A, B in": "where the atom reads A and B",
        "by": f"the number of waves{' (warps)' if page == 'nvidia' else ''} that execute one atom together"
        if is_gpu
        else "",
        "cycles": CYCLES[page],
        "multiply-adds a cycle": "m * n * k / cycles",
        "asynchronous": '"yes": the program must wait before it uses C' if any(a.asynchronous for a in atoms) else "",
    }
    copy_columns = {
        "from, to": f"`register`: registers; `global`: {spaces}",
        "bytes": f"bytes that one atom writes{', all lanes together' if is_gpu else ', at most'}{boxes}",
        "cache hint": "; ".join(hints) if len(hints) > 1 else "",
        "completed by": "what signals that an asynchronous copy has finished; a dash: the copy is synchronous"
        if any(copy.completes for copy in copies)
        else "",
    }
    left_out = {name for name, said in {**columns, **copy_columns}.items() if not said}
    yield f"# Atoms of {title}\n"
    yield f"This page lists the instructions that Tilewright uses on {title}. It is for engineers who read or write"
    yield "[plans](../plans.md) and block programs. The [overview](../machines.md) has the memories of each machine."
    yield from [ABOUT[page].rstrip()] if page in ABOUT else []
    yield f"\n{WRITTEN}\n"
    yield "## How to read the tables\n"
    yield f"{ATOMS_SAID}\n{_meanings(columns)}\n"
    if page in AFTER:
        yield AFTER[page].format(numbers=_numbers_of_16_bits(atoms))
    yield f"A copy atom moves elements:\n\n{_meanings(copy_columns)}"
    for row in machines:
        before = _row_before(row, described)
        more = "" if before is None else f" It has the atoms of [`{before.name}`](#{_anchor(before.name)}), and these:"
        yield f"\n## `{row.name}`\n"
        yield f"{SHOWN_AS[row.name]}.{more}\n"
        yield _multiply(row, before, left_out)
        copy_table = _copies(row, before, left_out)
        yield from [f"\n{copy_table}"] if copy_table else []


def _meanings(columns: dict[str, str]) -> str:
    """The table that explains the columns; those without a meaning are left out."""
    return _table(("column", "meaning"), [item for item in columns.items() if item[1]])


RATES_SAID = f"""\
# Rates and limits of machines

This page has the numbers by which the planner predicts the time of a plan, for engineers who describe a machine or who
want to understand a prediction. Each row is a field of `Limits` in `src/tilewright/machine/description.py`, and each
column is one [machine](../machines.md).

A dash means that the field has no effect on the predictions for this machine. A *factor* multiplies a time. A *core*
is a core of a CPU or a multiprocessor of a GPU, and a *lane* is a GPU thread. The [glossary](../glossary.md) defines
task, raster, stage and workgroup.

{WRITTEN}"""
SECTIONS_SAID = {
    "Corrections of memory times": """\
The corrections of `hopper` were fitted to measured times of many plans. Those of other machines are estimates.
""",
    "Corrections of MMA loops": """\
An *iteration* is one iteration of the K loop. It is *dependent* if one of its MMAs reads the result of another MMA of
this iteration, as in attention.
""",
}
"""What a page says before the table of a group."""


def _row_before(row: Machine, described: dict[str, Machine]) -> Machine | None:
    """The row with the most atoms among those that this one has all atoms of; None if there is none."""

    def atoms(machine: Machine) -> set[int]:
        return {id(atom) for atom in (*machine.multiply.values(), *machine.copies.values())}

    within = [other for other in described.values() if atoms(other) < atoms(row)]
    return max(within, key=lambda other: len(atoms(other)), default=None)


def _anchor(name: str) -> str:
    """Where GitHub puts a heading's mark."""
    return name.replace(".", "")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], left_out: Collection[str] = ()) -> str:
    """A table of Markdown, without the columns that are left out."""
    names = list(head)
    cells = [[cell for name, cell in zip(names, row, strict=True) if name not in left_out] for row in [names, *rows]]
    cells.insert(1, ["---"] * len(cells[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _page_of(name: str) -> str:
    """The page with a machine's atoms."""
    return next(f"machines/{page}.md" for page, (_, names) in MORE_OF.items() if name in names)


def _overview(described: dict[str, Machine]) -> str:
    """One row for each machine: lanes, waves, memories, numbers of atoms."""
    rows = [
        (
            f"[`{name}`]({_page_of(name)}#{_anchor(name)})",
            SHOWN_AS[name],
            str(row.lanes or "-"),
            str(row.waves),
            _size(row.spaces["shared"].bytes),
            _size(row.spaces["register"].bytes),
            f"{len(row.multiply)}, {len(row.copies)}",
        )
        for name, row in described.items()
    ]
    head = ("machine", "what it describes", "lanes", "waves", "shared memory", "registers", "atoms")
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


def _multiply(row: Machine, before: Machine | None, left_out: Collection[str]) -> str:
    """The multiplication atoms that the row before lacks; those of a family that differ in N alone share a line."""
    families: dict[str, list[MultiplyAtom]] = {}
    for atom in (a for a in row.multiply.values() if before is None or a.name not in before.multiply):
        families.setdefault(re.sub(r"(wgmma\.m64|fma\.m64)n\d+", r"\1nN", atom.name), []).append(atom)
    lines = []
    for family, atoms in families.items():
        first, last = atoms[0], atoms[-1]
        m, n, k = first.shape
        numbers = [atom.shape[1] for atom in atoms]
        columns = str(n) if len(atoms) == 1 else "N"
        listed = "" if len(atoms) == 1 else f"; {_numbers(numbers)}"
        lanes = row.lanes and first.c.lanes // row.lanes
        by = "a core" if not lanes else "1 wave" if lanes == 1 else f"{lanes} waves"
        asynchronous = "yes" if first.asynchronous else "-"
        rounds = f", truncated to {first.rounds_to}" if first.rounds_to else ""
        lines.append(
            (
                f"`{family}`",
                f"{m} x {columns} x {k}{listed}",
                f"{first.a.dtype} * {first.b.dtype} + {first.c.dtype}{rounds}",
                f"{_home(first.a)}, {_home(first.b)}",
                by,
                _range(f"{atom.cycles:g}" for atom in (first, last)),
                _range(f"{_rate(atom):.4g}" for atom in (first, last)),
                asynchronous,
            )
        )
    head = ("multiplication atom", "shape m x n x k", "types", "A, B in", "by", "cycles", "multiply-adds a cycle")
    return _table((*head, "asynchronous"), lines, left_out)


def _rate(atom: MultiplyAtom) -> float:
    m, n, k = atom.shape
    return m * n * k / atom.cycles


def _range(values: Iterable[str]) -> str:
    """Two values, or the one that both are."""
    return " to ".join(dict.fromkeys(values))


def _numbers(values: list[int]) -> str:
    """The values of N of a family; the page lists the long ones once."""
    return f"N = {', '.join(map(str, values))}" if len(values) <= 4 else f"N from {values[0]} to {values[-1]}"


def _numbers_of_16_bits(atoms: list[MultiplyAtom]) -> str:
    """The values of N of the wgmma atoms for 16-bit types, as a list; empty if the machine has none."""
    values = sorted(a.shape[1] for a in atoms if re.fullmatch(r"wgmma\.m64n\d+k16\.bf16", a.name))
    return ", ".join(map(str, values))


def _home(operand: RegisterOperand | MemoryOperand) -> str:
    """Where an operand is: registers, tile registers or shared memory."""
    if isinstance(operand, MemoryOperand):
        return "shared memory"
    return "registers" if type(operand) is RegisterOperand else "tile registers"


def _copies(row: Machine, before: Machine | None, left_out: Collection[str]) -> str:
    """The copy atoms that the row before lacks; empty if there are none."""
    head = ("copy atom", "from", "to", "bytes", "cache hint", "completed by")
    atoms = [a for a in row.copies.values() if before is None or a.name not in before.copies]
    return _table(head, map(_copy, atoms), left_out) if atoms else ""


def _copy(atom: CopyAtom) -> tuple[str, ...]:
    moved = "a box" if atom.bytes_moved is None else str(atom.bytes_moved)
    return (f"`{atom.name}`", atom.source, atom.target, moved, atom.hint, atom.completes or "-")


def main() -> None:
    """Writes the files."""
    (FOLDER / "machines").mkdir(exist_ok=True)
    for path, text in pages().items():
        (FOLDER / path).write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
