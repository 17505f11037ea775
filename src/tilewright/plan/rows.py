"""Task widths and wave counts of GPU programs without MMAs, which memory bounds: row-wise and elementwise kernels.

Enough bytes must be in flight. Every lane has a few vectors of a task in registers, and a core runs several workgroups,
so that some load while others compute. A task is one tile of the grid. A row is the part of a task along the dimensions
that the grid does not split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.algebra.expr import ONE, Expr, Symbol
from tilewright.algebra.expr_use import linear_form
from tilewright.ir.core import MemoryType, Program, TileType, Value
from tilewright.ir.tile import accessed
from tilewright.machine import Machine
from tilewright.plan.boxes import WRITES, contiguous_dims
from tilewright.plan.model import Size, cores, element_bytes

LONGER = 3
"""A task has few waves if its memory traffic takes at least this many times as long as starting a workgroup."""
MANY = 8
"""The last task along a dimension may have fewer rows than the others if it has at least this many tasks."""
ABOUT = 0.75
"""An extent that divides the dimension is used if it is at least this share of the wanted extent."""
FEW, ROUNDS = 1.5, 4
"""The least number of tasks per core: if memory is contiguous across rows, and if rows are contiguous."""
BESIDE = 4
"""The least number of tasks of a core whose overlapping windows must fit the shared memory at once."""


def task_widths_and_waves(
    program: Program, widths: Mapping[Expr, int], size: Size, machine: Machine
) -> tuple[dict[Expr, int], int]:
    """Return ({parallel dimension: extent of a task}, number of waves per task) for a GPU program without MMAs.

    A task is one tile of the grid; waves are warps; a row is the part of a task along the dimensions that the grid does
    not split. `widths` maps each parallel dimension (the grid may split it) to the largest extent of a task in the
    first case. `size(d)` evaluates the extent of a dimension d. The first case that holds decides:
    - a row has one element: the program is elementwise;
    - rows are short, and neighbouring rows are adjacent in memory: one lane computes a whole row;
    - memory is contiguous across rows: a task has as many rows as one load of a wave covers;
    - else memory is contiguous along rows: a task is several short rows, or one long row. The number of waves is halved
      while lanes would be idle.
    """
    row_elements, element_size = _longest_row(program, widths, size), smallest_element_bytes(program)
    traffic = _bytes_per_element(program, size)
    if row_elements == 1:
        wave_elements = _elements_per_wave(machine, row_elements, element_size, traffic[1])
        task_widths, waves = _elementwise_widths(program, widths, size, element_size, wave_elements, machine)
    elif row_elements <= machine.row_tasks.most_values and (sides := _dims_beside_rows(program, widths, size)):
        return _lane_row_widths(program, sides, row_elements, {d: size(d) for d in widths}, machine)
    elif across_widths := widths_across_rows(program, widths, size, machine):
        task_widths, waves = across_widths, min(machine.waves, machine.row_tasks.most_waves)
    else:
        return contiguous_row_widths(machine, row_elements, element_size, traffic, {d: size(d) for d in widths})
    return task_widths, _without_idle_waves(machine, waves, row_elements * prod(task_widths.values()))


def _dims_beside_rows(program: Program, widths: Mapping[Expr, int], size: Size) -> list[Expr]:
    """Return the parallel dimensions along which neighbouring rows are adjacent in memory; [] if there are none.

    Parallel dimensions are those that the grid may split: the keys of `widths`. A row is the part of a task (tile of
    the grid) along all other dimensions. If no access is contiguous along a parallel dimension, windows may still slide
    along the innermost memory coordinate, as in a pooling over x[2*p + r]; the result then has the dimensions (p) along
    which they slide. `size(d)` evaluates the extent of a dimension d.
    """
    across = [d for d in _contiguous_across_rows(program, widths, size) if d in widths]
    return across or [d for d in _window_dims(program, widths) if d in _last_dims(program)]


def _last_dims(program: Program) -> set[Expr]:
    """Return the dimensions whose index is in the innermost memory coordinate of a read or write of the program."""
    return {d for op in program.walk() if op.name == "read" or op.name in WRITES for d in contiguous_dims(op)}


def _window_dims(program: Program, widths: Mapping[Expr, int]) -> list[Expr]:
    """Return the parallel dimensions along which windows slide, such as the output position of a pooling.

    A window slides along p if a read has a memory coordinate like 2*p + r, in which r is no parallel dimension. The
    keys of `widths` are the parallel dimensions (the grid may split them).
    """
    sliding: list[Expr] = []
    for op in (op for op in program.walk() if op.name == "read" and "at" in op.attrs):
        dim_of = dict(zip(op.attrs["over"], accessed(op)[1].dims, strict=True))
        for e in op.attrs["at"]:
            dims = [dim_of[s] for s in op.attrs["over"] if s in e.symbols]
            if any(d not in widths for d in dims):
                sliding += [d for d in dims if d in widths]
    return list(dict.fromkeys(sliding))


def _lane_row_widths(
    program: Program, sides: list[Expr], row_elements: int, extents: Mapping[Expr, int], machine: Machine
) -> tuple[dict[Expr, int], int]:
    """Return ({parallel dimension: extent of a task}, number of waves per task) if one lane computes whole rows.

    The rows are short (`row_elements` elements), and lanes exchange nothing. A lane computes a vector of neighbouring
    rows along `sides`, dimensions along which rows are adjacent in memory. A task also extends along other dimensions,
    by powers of two, first along dimensions in which windows overlap. The number of waves (warps) is halved while there
    are fewer than FEW (1.5) tasks per core, or while shared memory has no room for the elements that BESIDE (4) tasks
    read. `extents` maps each parallel dimension (the grid may split it) to its whole extent.
    """
    tasks, lanes, element_size = machine.row_tasks, machine.lanes or 1, smallest_element_bytes(program)
    vector = max(1, machine.lane_access.vector_bytes // element_size)
    windows = [d for d in _window_dims(program, extents) if d not in sides]
    others = [d for d in reversed(list(extents)) if d not in sides and d not in windows]
    most_elements = (machine.spaces["shared"].bytes or 0) // (BESIDE * element_size * row_elements)
    waves = min(machine.waves, tasks.waves)
    while True:
        wanted = waves * lanes * vector
        task_widths = dict.fromkeys(extents, 1)
        for d in sides:
            task_widths[d] = _even_width(extents[d], max(1, min(wanted, lanes * vector)), vector)
        for dims in (windows, others):
            _widen(task_widths, extents, dims, wanted, 1.0)
            _widen(task_widths, extents, [d for d in dims if task_widths[d] == 1], wanted, ABOUT)
        elements = prod(task_widths.values())
        few = tasks_of(task_widths, lambda d: extents[d]) < FEW * cores(machine)
        if waves <= tasks.least_waves or not (few or elements > most_elements):
            return task_widths, _without_idle_waves(machine, waves, elements)
        waves //= 2


def _widen(
    task_widths: dict[Expr, int], extents: Mapping[Expr, int], dims: Sequence[Expr], most: int, busy: float
) -> None:
    """Double extents of the grid tile in `task_widths`, in place, until none can double.

    `task_widths` is {dimension: extent of the tile}, `extents` is {dimension: whole extent}. Only extents along `dims`
    are doubled, in turn, the last dimension first. An extent is doubled, to `width`, only if extent >= busy * width *
    ceil(extent / width), and if the tile then has at most `most` elements. With `busy` 0.75, a dimension of 96 may have
    tiles of 64 (96 of 128 elements are within it), one of 80 may not.
    """
    growing = list(reversed(dims))
    while growing:
        d = growing.pop(0)
        width = 2 * task_widths[d]
        if extents[d] >= busy * width * -(-extents[d] // width) and 2 * prod(task_widths.values()) <= most:
            task_widths[d] = width
            growing.append(d)


def _longest_row(program: Program, widths: Mapping[Expr, int], size: Size) -> int:
    """Return the number of elements in the longest row of a program's tiles.

    A row is the part of a tile along the dimensions that the grid does not split: those that are no keys of `widths`.
    It is 1 without such dimensions. `size(d)` evaluates the extent of a dimension d.
    """
    tiles = [v.type.dims for op in program.walk() for v in op.results if isinstance(v.type, TileType)]
    return max((prod(max(1, size(d)) for d in dims if d not in widths) for dims in tiles), default=1)


def contiguous_row_widths(
    machine: Machine, row_elements: int, element_size: int, traffic: tuple[int, int], extents: Mapping[Expr, int]
) -> tuple[dict[Expr, int], int]:
    """Return ({parallel dimension: extent of a task}, number of waves per task) for rows that are contiguous in memory.

    A task (tile of the grid) is several short rows; or one long row, with as many waves (warps) as hold it in
    registers. If no number of waves can hold it there, the row stays in shared memory, and the task has so few waves
    that other tasks can run on the same core. The number of waves is halved while lanes would be idle.

    A row has `row_elements` elements; the smallest element type has `element_size` bytes. `traffic` is (bytes read,
    bytes written) per element. `extents` maps each parallel dimension (the grid may split it) to its whole extent.
    """
    tasks, (read_bytes, written_bytes) = machine.row_tasks, traffic
    wave_elements = _elements_per_wave(machine, row_elements, element_size, written_bytes)
    max_waves = min(machine.waves, tasks.most_waves)
    waves = min(_waves_per_task(wave_elements, read_bytes + written_bytes, machine), max_waves)
    stretch = tasks.most_values / tasks.values if written_bytes else 1
    while waves < max_waves and waves * wave_elements * (stretch if waves >= tasks.waves else 1) < row_elements:
        waves *= 2
    if waves * wave_elements * stretch < row_elements:
        waves = _waves_beside_others(machine, row_elements * element_size, waves)
    padded_row = 1 << (row_elements - 1).bit_length()  # lanes are distributed by powers of two
    rows_left = min(
        max(1, waves * wave_elements // padded_row), max(1, prod(extents.values()) // (ROUNDS * cores(machine)))
    )
    task_widths = dict.fromkeys(extents, 1)
    for d in reversed(list(extents)):
        task_widths[d] = _rows_per_task(extents[d], rows_left)
        rows_left //= task_widths[d]
        if task_widths[d] < extents[d]:
            break
    return task_widths, _without_idle_waves(machine, waves, row_elements * prod(task_widths.values()))


def _waves_beside_others(machine: Machine, row_bytes: int, waves: int) -> int:
    """Return the number of waves per task, at most `waves`, with which a core can run several tasks at a time.

    A task's row has `row_bytes` bytes and stays in shared memory. A core has room for some rows, and should run one
    task for each, so that some tasks load while others compute. `waves` is halved while the waves of these tasks would
    be more than a core runs at a time, but not below the machine's smaller number of waves per task. It is returned
    unchanged on a machine without figures of what a core runs at a time.
    """
    at_a_time, shared = machine.costs.resident.lanes // (machine.lanes or 1), machine.spaces["shared"].bytes or 0
    while at_a_time and waves > machine.row_tasks.fewer_waves and waves * (shared // row_bytes) > at_a_time:
        waves //= 2
    return waves


def _elements_per_wave(machine: Machine, row_elements: int, element_size: int, written_bytes: int) -> int:
    """Return the number of elements that all lanes of one wave (warp) together hold in registers at a time.

    The number per lane is limited twice: by the machine's elements per lane, and by its bytes per lane. An element
    counts as `element_size` bytes, the size of the smallest element, or as a whole register if elements are loaded one
    by one. They are loaded so if the program writes (`written_bytes` is not 0), and a row of `row_elements` elements
    has more than one element, but not a whole number of registers.
    """
    tasks, word = machine.row_tasks, machine.register_file.word_bytes
    register_bytes = word if written_bytes and row_elements > 1 and row_elements * element_size % word else element_size
    return (machine.lanes or 1) * min(tasks.values, max(1, tasks.loaded_bytes // register_bytes))


def _without_idle_waves(machine: Machine, waves: int, elements: int) -> int:
    """Return `waves`, the number of waves per task, halved while a lane has fewer elements than the machine's minimum.

    A task (tile of the grid) has `elements` elements; waves are warps. The number is not halved at or below the
    machine's least number of waves.
    """
    tasks = machine.row_tasks
    while waves > tasks.least_waves and waves * (machine.lanes or 1) * tasks.least_values > elements:
        waves //= 2
    return waves


def _waves_per_task(wave_elements: int, element_traffic: int, machine: Machine) -> int:
    """Return the number of waves (warps) per task: the machine's usual number, or a smaller one for large tasks.

    A task (tile of the grid) is large if, with the smaller number of waves, moving its bytes takes at least LONGER (3)
    times as long as a workgroup takes to start. A wave has `wave_elements` elements, each with `element_traffic` bytes
    of reads and writes.
    """
    start_bytes = machine.limits.start_cycles * machine.limits.far_rate * cores(machine)
    tasks = machine.row_tasks
    return (
        tasks.fewer_waves
        if tasks.fewer_waves * wave_elements * element_traffic >= LONGER * start_bytes
        else tasks.waves
    )


def _bytes_per_element(program: Program, size: Size) -> tuple[int, int]:
    """Return (bytes read, bytes written) per element of the largest tiles, each summed over all tensors of a program.

    A tensor counts once if it is read, and once if it is written. Reads and writes of smaller tiles are left out.
    `size(d)` evaluates the extent of a dimension d.
    """
    accesses: dict[tuple[Value, bool], tuple[int, int]] = {}
    for op in (op for op in program.walk() if op.name == "read" or op.name in WRITES):
        memory, tile, _ = accessed(op)
        accesses[memory, op.name != "read"] = prod(map(size, tile.dims)), element_bytes(tile.dtype)
    largest = max((elements for elements, _ in accesses.values()), default=0)
    read, written = (
        sum(
            element_size
            for (_, writes), (elements, element_size) in accesses.items()
            if elements == largest and writes is is_write
        )
        for is_write in (False, True)
    )
    return read, written


def _rows_per_task(size: int, most: int) -> int:
    """Return the number of rows per task (tile of the grid) along a dimension of `size` rows, at most `most`.

    A power of two that splits the dimension evenly is preferred. Let p be the largest power of two up to `most`. The
    result is p if p divides `size`, or if the dimension has at least MANY (8) times p rows. Otherwise it is p/2 if that
    divides `size`. Otherwise it is a divisor of `size` near `most` (`dividing_width`).

    >>> [_rows_per_task(size, 16) for size in (65536, 83886, 12, 24)], _rows_per_task(100, 40)
    ([16, 16, 12, 8], 25)
    """
    power = 1 << (most.bit_length() - 1)
    if size % power == 0 or size >= MANY * power:
        return power
    return power // 2 if size % max(1, power // 2) == 0 and power > 1 else dividing_width(size, most)


def widths_across_rows(
    program: Program, widths: Mapping[Expr, int], size: Size, machine: Machine, tasks_per_core: float = FEW
) -> dict[Expr, int]:
    """Return {dimension: extent of a task} if memory is contiguous across rows; {} if it is contiguous along rows.

    A row is the part of a task (tile of the grid) along the dimensions that the grid does not split; `widths` has the
    dimensions that it may split. A task has as many elements of the contiguous dimension as one load of a wave (warp)
    covers, and one element of the others. The number is halved while there are fewer than `tasks_per_core` tasks per
    core, down to a cache line. `size(d)` evaluates the extent of a dimension d.
    """
    contiguous = [d for d in _contiguous_across_rows(program, widths, size) if d in widths]
    element_size, line, vector = (
        smallest_element_bytes(program),
        machine.lane_access.line_bytes,
        machine.lane_access.vector_bytes,
    )
    run_bytes = max(line, (machine.lanes or 1) * vector)
    while contiguous:
        task_widths = dict.fromkeys(widths, 1) | {
            d: _even_width(size(d), run_bytes // element_size, vector // element_size) for d in contiguous
        }
        if run_bytes <= line or tasks_of(task_widths, size) >= tasks_per_core * cores(machine):
            return task_widths
        run_bytes //= 2
    return {}


def _even_width(size: int, most: int, word_elements: int) -> int:
    """Return the extent of a task (tile of the grid) along a dimension of `size` elements: about `most`.

    The first choice is a divisor of `size` near `most`; it is a multiple of `word_elements` if `size` is. Without one
    it is all of `size`, if `size` is at most twice `most`; else `most`, and the last task is smaller.

    >>> _even_width(3000, 64, 8), _even_width(8192, 256, 8), _even_width(333, 256, 8), _even_width(333, 128, 8)
    (64, 256, 333, 111)
    """
    width = dividing_width(size, most, word_elements)
    if size % width == 0 and width >= most * ABOUT:
        return width
    return size if size <= 2 * most else most


def tasks_of(widths: Mapping[Expr, int], size: Size) -> int:
    """Return the number of tasks (tiles) of the grid; `widths` maps each dimension that it splits to a task's extent.

    `size(d)` evaluates the whole extent of a dimension d.
    """
    return prod(-(-size(d) // n) for d, n in widths.items())


def elements_per_line(program: Program, extent: int, machine: Machine) -> int:
    """Return the number of elements in a cache line, at most `extent`, for the program's smallest argument type."""
    return min(extent, machine.lane_access.line_bytes // smallest_element_bytes(program))


def smallest_element_bytes(program: Program) -> int:
    """Return the number of bytes of the smallest element type among the tensor arguments of `program`.

    The program must have a tensor argument.
    """
    return min(element_bytes(a.type.dtype) for a in program.args if isinstance(a.type, MemoryType))


def _elementwise_widths(
    program: Program, widths: Mapping[Expr, int], size: Size, element_size: int, wave_elements: int, machine: Machine
) -> tuple[dict[Expr, int], int]:
    """Return ({dimension: extent of a task}, number of waves per task) of an elementwise program.

    A task is one tile of the grid; waves are warps. If accesses are contiguous along different dimensions (a
    transpose), a task is a tile along these dimensions. Otherwise a task has about as many elements as its lanes hold
    at once, or fewer, so that every core has a task, but not fewer than a few for each lane. Contiguous dimensions are
    split last.

    `widths` maps each dimension that the grid may split to the largest extent of a task. `element_size` is the number
    of bytes of the smallest element, and a wave holds `wave_elements` elements in registers. `size(d)` evaluates the
    extent of a dimension d.
    """
    tasks, word, tile_bytes = machine.row_tasks, machine.register_file.word_bytes, machine.lane_access.transposed_bytes
    max_waves, lanes = min(machine.waves, tasks.most_waves), machine.lanes or 1
    accesses = [op for op in program.walk() if op.name == "read" or op.name in WRITES]
    contiguous = [d for op in accesses if len(accessed(op)[1].dims) > 1 for d in contiguous_dims(op)]
    tile_dims = [d for d in dict.fromkeys(contiguous) if d in widths]
    if len(tile_dims) > 1:
        task_widths = dict.fromkeys(widths, 1) | {d: min(size(d), tile_bytes // element_size) for d in tile_dims}
        for d in tile_dims:  # a tile with few columns has more rows
            while (
                task_widths[d] * 2 <= size(d)
                and prod(task_widths.values()) * 2 <= tasks.fewer_waves * lanes * tasks.values
            ):
                task_widths[d] *= 2
        rows = [d for op in accesses if op.name in WRITES for d in contiguous_dims(op)]
        words = all(size(d) * element_size % (2 * word) == 0 for d in rows)
        held_elements = (
            wave_elements if words else lanes * tasks.values
        )  # if results are stored word by word, fewer waves are faster
        waves = 1
        while waves < max_waves and waves * held_elements < prod(task_widths.values()):
            waves *= 2
        return task_widths, waves
    task_widths, waves = (
        dict(widths),
        min(_waves_per_task(wave_elements, sum(_bytes_per_element(program, size)), machine), max_waves),
    )
    core_elements = prod(map(size, widths)) // cores(machine)  # each core has a task
    least_elements = max(tasks.least_waves * tasks.least_values * lanes, core_elements)
    limit = min(waves * wave_elements, least_elements)
    along_runs = {d for op in accesses for d in contiguous_dims(op)}
    for d in sorted(task_widths, key=lambda d: d in along_runs):  # contiguous dimensions are split last
        elements = prod(task_widths.values())
        if elements > limit:
            task_widths[d] = _rows_per_task(size(d), max(1, task_widths[d] * limit // elements))
    return task_widths, waves


def _contiguous_across_rows(program: Program, widths: Mapping[Expr, int], size: Size) -> list[Expr]:
    """Return the dimensions that are contiguous in memory in some read or write of a tile with rows, each once.

    A tile has rows if a dimension with several elements is no key of `widths`, the dimensions that the grid may split.
    `size(d)` evaluates the extent of a dimension d.
    """
    contiguous: list[Expr] = []
    for op in (op for op in program.walk() if op.name == "read" or op.name in WRITES):
        dims = accessed(op)[1].dims
        if any(d not in widths and size(d) > 1 for d in dims):
            iterators = dict(zip(dims, op.attrs.get("over", ()), strict=False))
            contiguous += [
                d
                for d in contiguous_dims(op)
                if d not in iterators or _has_unit_stride(op.attrs["at"][-1], iterators[d])
            ]
    return list(dict.fromkeys(contiguous))


def _has_unit_stride(e: Expr, axis: Symbol) -> bool:
    """True if the memory coordinate `e` has the coefficient 1 at the index `axis`; True too if it is not linear."""
    form = linear_form(e, [axis])
    return form is None or form[0].get(axis) is ONE


def dividing_width(size: int, most: int, word_elements: int = 1) -> int:
    """Return the largest divisor of `size` that is above half of `most` and at most `most`; if there is none, `most`.

    `most` is first clamped to `size`. If `size` is a multiple of `word_elements`, the result is too, unless `most` is
    less than `word_elements`.

    >>> [dividing_width(size, most) for size, most in ((4096, 20), (97, 16), (3, 16), (2072, 30))]
    [16, 16, 3, 28]
    >>> dividing_width(2072, 30, 8)
    24
    """
    if word_elements > 1 and size % word_elements == 0 and most >= word_elements:
        return word_elements * dividing_width(size // word_elements, most // word_elements)
    most = max(1, min(size, most))
    return next((n for n in range(most, most // 2, -1) if size % n == 0), most)
