"""Tasks of programs without products on machines whose waves have many lanes: how wide, and by how many waves each.

What bounds such a program is memory: enough bytes must be under way. Every lane has a few vectors of a task in
registers, and a core has room for several workgroups, so that some load while others compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilewright.algebra.expr import ONE, Expr, Symbol
from tilewright.algebra.expr_use import linear_form
from tilewright.ir.core import MemoryType, Program, TileType, Value
from tilewright.ir.tile import accessed
from tilewright.machine import Machine
from tilewright.plan.boxes import WRITES, side_by_side
from tilewright.plan.model import Size, cores, element_bytes

LONGER = 3
"""How many times as long as starting a workgroup takes, a task of fewer waves takes memory."""
MANY = 8
"""Tasks from which on the last one may have fewer rows than the others."""
ABOUT = 0.75
"""How much of a width that which all tasks have is at least."""
FEW, ROUNDS = 1.5, 4
"""Tasks for each core of which there should be so many at least: where rows lie across memory, and along it."""


def rows_and_waves(
    program: Program, widths: Mapping[Expr, int], size: Size, machine: Machine
) -> tuple[dict[Expr, int], int]:
    """(the width of a task along each dimension that tasks may cut, how many waves do it, all with something to do)."""
    found, waves = _chosen(program, widths, size, machine)
    few = machine.row_tasks
    elements = _row(program, widths, size) * prod(found.values())
    while waves > few.least_waves and waves * (machine.lanes or 1) * few.least_values > elements:
        waves //= 2
    return found, waves


def _row(program: Program, widths: Mapping[Expr, int], size: Size) -> int:
    """The longest row: the elements of a tile along what tasks do not cut."""
    tiles = [v.type.dims for op in program.walk() for v in op.results if isinstance(v.type, TileType)]
    return max((prod(max(1, size(d)) for d in dims if d not in widths) for dims in tiles), default=1)


def _chosen(program: Program, widths: Mapping[Expr, int], size: Size, machine: Machine) -> tuple[dict[Expr, int], int]:
    """The same, where there is enough to do.

    Dimensions that tasks do not cut are gone along as a whole: a row. Short rows are several to a task, a long one is
    shared by as many waves as hold it. Where rows lie across memory, a task has a line's worth of them side by side.
    """
    tasks, word = machine.row_tasks, machine.register_file.word_bytes
    most = min(machine.waves, tasks.most_waves)
    row = _row(program, widths, size)
    least = smallest(program)
    taken, kept = _traffic(program, size)
    each = word if kept and row > 1 and row * least % word else least  # what is loaded by itself takes a register
    lane = (machine.lanes or 1) * min(tasks.values, max(1, tasks.loaded_bytes // each))  # what a wave has
    if row == 1:
        return _boxes(program, widths, size, least, lane, machine)
    found = beside_rows(program, widths, size, machine)
    if found:
        return found, most
    return _rows_along(machine, row, lane, (taken, kept), {d: size(d) for d in widths})


def _rows_along(
    machine: Machine, row: int, lane: int, moved: tuple[int, int], extents: Mapping[Expr, int]
) -> tuple[dict[Expr, int], int]:
    """The width of tasks, and their waves, where rows lie along memory: a wave has `lane` elements of them, and
    `moved` are the bytes read and written for each."""
    tasks, (taken, kept) = machine.row_tasks, moved
    most = min(machine.waves, tasks.most_waves)
    waves = min(_waves(lane, taken + kept, machine), most)
    more = tasks.most_values / tasks.values if kept else 1
    while waves < most and waves * lane * (more if waves >= tasks.waves else 1) < row:
        waves *= 2
    whole = 1 << (row - 1).bit_length()  # lanes are dealt by powers of two
    left = min(max(1, waves * lane // whole), max(1, prod(extents.values()) // (ROUNDS * cores(machine))))
    found = dict.fromkeys(extents, 1)
    for d in reversed(list(extents)):
        found[d] = _rows_of(extents[d], left)
        left //= found[d]
        if found[d] < extents[d]:
            break
    return found, waves


def widths_of_rows(
    machine: Machine, row: int, least: int, moved: tuple[int, int], extents: Mapping[Expr, int]
) -> tuple[dict[Expr, int], int]:
    """The width of tasks, and their waves, for rows of `row` elements that lie along memory; the smallest element has
    `least` bytes, and `moved` are the bytes read and written for each."""
    tasks, word = machine.row_tasks, machine.register_file.word_bytes
    each = word if moved[1] and row > 1 and row * least % word else least
    lane = (machine.lanes or 1) * min(tasks.values, max(1, tasks.loaded_bytes // each))
    found, waves = _rows_along(machine, row, lane, moved, extents)
    while waves > tasks.least_waves and waves * (machine.lanes or 1) * tasks.least_values > row * prod(found.values()):
        waves //= 2
    return found, waves


def _waves(lane: int, moved: int, machine: Machine) -> int:
    """How many waves do a task whose lanes have so many elements in a wave, of so many bytes.

    Fewer are better, while a task takes memory longer than it takes to start a workgroup.
    """
    started = machine.limits.start_cycles * machine.limits.far_rate * cores(machine)
    tasks = machine.row_tasks
    return tasks.fewer_waves if tasks.fewer_waves * lane * moved >= LONGER * started else tasks.waves


def _traffic(program: Program, size: Size) -> tuple[int, int]:
    """Bytes that are (read, written) for each element, by accesses of as many elements as the largest has."""
    found: dict[tuple[Value, bool], tuple[int, int]] = {}
    for op in (op for op in program.walk() if op.name == "read" or op.name in WRITES):
        memory, tile, _ = accessed(op)
        found[memory, op.name != "read"] = prod(map(size, tile.dims)), element_bytes(tile.dtype)
    most = max((elements for elements, _ in found.values()), default=0)
    read, written = (
        sum(each for (_, writes), (elements, each) in found.items() if elements == most and writes is way)
        for way in (False, True)
    )
    return read, written


def _rows_of(size: int, most: int) -> int:
    """How many rows of a dimension a task has, up to `most`: a power of two, as lanes are, where such tasks are many or
    all alike.

    >>> _rows_of(65536, 16), _rows_of(83886, 16), _rows_of(12, 16), _rows_of(24, 16), _rows_of(100, 40)
    (16, 16, 12, 8, 25)
    """
    power = 1 << (most.bit_length() - 1)
    if size % power == 0 or size >= MANY * power:
        return power
    return power // 2 if size % max(1, power // 2) == 0 and power > 1 else cut_of(size, most)


def beside_rows(
    program: Program, widths: Mapping[Expr, int], size: Size, machine: Machine, least: float = FEW
) -> dict[Expr, int]:
    """The width of tasks where rows lie across memory: as much of what lies side by side as a wave loads at once, less
    where tasks are then fewer than `least` for each core, a line's worth at the least; nothing where rows lie along it.
    """
    side = [d for d in _beside_rows(program, widths, size) if d in widths]
    each, line, vector = smallest(program), machine.lane_access.line_bytes, machine.lane_access.vector_bytes
    wide = max(line, (machine.lanes or 1) * vector)
    while side:
        found = dict.fromkeys(widths, 1) | {d: _alike(size(d), wide // each, vector // each) for d in side}
        if wide <= line or tasks_of(found, size) >= least * cores(machine):
            return found
        wide //= 2
    return {}


def _alike(size: int, most: int, words: int) -> int:
    """A width of about `most` with which all tasks are alike, if there is one: whole words that divide the size, or
    all of it; otherwise the last is narrower, and there is code for both kinds.

    >>> _alike(3000, 64, 8), _alike(8192, 256, 8), _alike(333, 256, 8), _alike(333, 128, 8)
    (64, 256, 333, 111)
    """
    found = cut_of(size, most, words)
    if size % found == 0 and found >= most * ABOUT:
        return found
    return size if size <= 2 * most else most


def tasks_of(widths: Mapping[Expr, int], size: Size) -> int:
    """How many tasks there are."""
    return prod(-(-size(d) // n) for d, n in widths.items())


def in_a_line(program: Program, extent: int, machine: Machine) -> int:
    """As many elements of a dimension as lie in a line of memory."""
    return min(extent, machine.lane_access.line_bytes // smallest(program))


def smallest(program: Program) -> int:
    """Bytes of the smallest element of an argument."""
    return min(element_bytes(a.type.dtype) for a in program.args if isinstance(a.type, MemoryType))


def _boxes(
    program: Program, widths: Mapping[Expr, int], size: Size, each: int, lane: int, machine: Machine
) -> tuple[dict[Expr, int], int]:
    """Tasks of functions of elements: as many elements as lanes have at once, fewer where not all cores had a task
    then; tiles, where what is read is turned."""
    tasks, word, side = machine.row_tasks, machine.register_file.word_bytes, machine.lane_access.transposed_bytes
    most, lanes = min(machine.waves, tasks.most_waves), machine.lanes or 1
    accesses = [op for op in program.walk() if op.name == "read" or op.name in WRITES]
    turned = [d for op in accesses if len(accessed(op)[1].dims) > 1 for d in side_by_side(op)]
    sides = [d for d in dict.fromkeys(turned) if d in widths]
    if len(sides) > 1:
        found = dict.fromkeys(widths, 1) | {d: min(size(d), side // each) for d in sides}
        for d in sides:  # of few columns there are more rows
            while found[d] * 2 <= size(d) and prod(found.values()) * 2 <= tasks.fewer_waves * lanes * tasks.values:
                found[d] *= 2
        rows = [d for op in accesses if op.name in WRITES for d in side_by_side(op)]
        words = all(size(d) * each % (2 * word) == 0 for d in rows)
        held = lane if words else lanes * tasks.values  # where results go word by word, fewer waves are faster
        waves = 1
        while waves < most and waves * held < prod(found.values()):
            waves *= 2
        return found, waves
    found, waves = dict(widths), min(_waves(lane, sum(_traffic(program, size)), machine), most)
    each_core = prod(map(size, widths)) // cores(machine)  # each core has a task
    few = max(tasks.least_waves * tasks.least_values * lanes, each_core)
    limit = min(waves * lane, few)
    along = {d for op in accesses for d in side_by_side(op)}
    for d in sorted(found, key=lambda d: d in along):  # what lies side by side stays together
        elements = prod(found.values())
        if elements > limit:
            found[d] = _rows_of(size(d), max(1, found[d] * limit // elements))
    return found, waves


def _beside_rows(program: Program, widths: Mapping[Expr, int], size: Size) -> list[Expr]:
    """The dimensions that lie side by side in what has rows."""
    found: list[Expr] = []
    for op in (op for op in program.walk() if op.name == "read" or op.name in WRITES):
        dims = accessed(op)[1].dims
        if any(d not in widths and size(d) > 1 for d in dims):
            steps = dict(zip(dims, op.attrs.get("over", ()), strict=False))
            found += [d for d in side_by_side(op) if d not in steps or _is_single(op.attrs["at"][-1], steps[d])]
    return list(dict.fromkeys(found))


def _is_single(e: Expr, axis: Symbol) -> bool:
    """Whether neighbours along an axis are neighbours in an expression of it."""
    form = linear_form(e, [axis])
    return form is None or form[0].get(axis) is ONE


def cut_of(size: int, most: int, words: int = 1) -> int:
    """A width up to `most`: one that divides the size, unless that is less than half of it; of whole words of so many
    elements, where the size is.

    >>> cut_of(4096, 20), cut_of(97, 16), cut_of(3, 16), cut_of(2072, 30), cut_of(2072, 30, 8)
    (16, 16, 3, 28, 24)
    """
    if words > 1 and size % words == 0 and most >= words:
        return words * cut_of(size // words, most // words)
    most = max(1, min(size, most))
    return next((n for n in range(most, most // 2, -1) if size % n == 0), most)
