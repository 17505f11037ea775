"""Rules of shared memory: what stages of operands and results, halo tiles and values that are read again take."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from math import ceil, prod

from plan_shapes import SUM_BYTES, OperandShape, ProductShape

from plan_legality.loads import halo_rows
from plan_legality.reading import CORE_ROWS, ROW, Broken, Reading, atoms_of, is_held, step_of, tap_axes
from tilewright.machine import MultiplyAtom
from tilewright.plan.schedule import ProductUnit

RESULT_ROWS, CHUNK = (128, 64, 32), 16
"""Bytes of a row of a result's stage, the longest that divides its columns: by such rows bulk copies swizzle."""


def stages(r: Reading) -> Iterator[Broken]:
    """A ring, and what waits to be stored, has a stage at least; halo stages belong to halo tiles, `once` to operands
    that stay for a task."""
    roles = r.plan.pipeline
    if roles is None:
        return
    halo = any(p.form == "halo" for p in r.plan.values)
    if min(roles.stages, roles.epilogue_stages, roles.resident_stages) < 1 or halo != (roles.halo_stages > 0):
        yield Broken("stages", str(roles), "a ring has a stage at least, and halo tiles have a ring")
    if roles.joint and r.plan.overlap != "none":
        yield Broken("stages", str(roles), "what products use one ahead of the other is not loaded together")
    if roles.pingpong and len(r.shapes.products) > 1:
        yield Broken("stages", str(roles), "halves take turns at one product")
    if roles.resident_stages > 1 and not staged(r)[1]:
        yield Broken("stages", str(roles), "nothing is loaded once a task")


def shared_memory(r: Reading) -> Iterator[Broken]:
    """Stages of operands, halo tiles, operands that stay and results that wait fit the shared memory of a workgroup;
    without roles, what a task reads again fits there, as far as lanes have no registers for it."""
    room = r.machine.spaces["shared"].bytes
    if room is None or not r.shapes.products:
        return
    if r.plan.pipeline is None:
        used = _task_bytes(r) + sum(map(partial(_widened_bytes, r), r.by_loops))
        if used > room:
            yield Broken("shared memory", r.plan.line("grid") or str(r.plan.products[0]), f"{used} bytes of {room}")
        return
    used = shared_bytes(r)
    if used > room:
        yield Broken("shared memory", str(r.plan.pipeline), f"{used} bytes of {room}")


def _task_bytes(r: Reading) -> int:
    """Bytes of shared memory that a task of a plan without roles takes at least: rows of both operands of an atom that
    reads them there, and every value that is read again and is more than the registers of all lanes. Each has a place
    of its own: nothing is computed in place, as operations read and write different tensors."""
    lanes = max((mine.c.lanes for _, _, mine in r.products), default=None)
    used = sum((line.rows + line.columns) * ROW for line, _, mine in r.products if mine.slab is not None)
    used += sum(_fragment_bytes(r, *product) for product in r.products if product[2].slab is None)
    for dims, each in r.shapes.values:
        count = prod(min(r.tile(d) or r.shapes.sizes[d], r.shapes.sizes[d]) for d in dims)
        if lanes is not None and count > lanes * r.machine.limits.registers:
            used += count * each
    return used


def _fragment_bytes(r: Reading, line: ProductUnit, product: ProductShape, mine: MultiplyAtom) -> int:
    """Bytes of shared memory for the blocks of an atom that has all in registers, which take turns there.

    A step of A lies there whose rows no single step in memory leads along: lanes gather it. Of a block that is not
    whole atoms, so do the sums, of which a part is stored, and a step of A with rows that fill the atoms.
    """
    if not r.on_gpu or product.a.argument is None:
        return 0
    deep, taps = r.k_step(product.summed, mine.shape[2])
    step = int(deep * taps * product.a.bytes)
    rows = _pieces(r, r.main(product.rows), line.rows)
    columns = _pieces(r, r.main(product.columns), line.columns)
    m, n, _ = mine.shape
    whole_rows, whole_columns = (
        {size: ceil(size / unit) * unit for size in of} for of, unit in ((rows, m), (columns, n))
    )
    panel = max((whole for size, whole in whole_rows.items() if size != whole), default=0)
    sums = [
        tall * wide
        for (size, tall), (across, wide) in itertools.product(whole_rows.items(), whole_columns.items())
        if (size, across) != (tall, wide)
    ]
    return (max(rows) * _is_gathered(product.a) + panel) * step + max(sums, default=0) * SUM_BYTES


def _widened_bytes(r: Reading, product: ProductShape) -> int:
    """Bytes of shared memory for a product by loops of operands that are narrower than its sums: these are widened once
    for all that read them, a step of K of a block's rows and columns; A is gathered before where it has to be."""
    rows, columns = ([d for d in of if r.shapes.sizes[d] > 1] for of in (product.rows, product.columns))
    if not r.on_gpu or not rows or not columns or product.types[0] == product.types[2]:
        return 0  # lanes multiply and add what they read
    deep, taps = r.k_step(product.summed, 1)
    tall, wide = (prod(min(r.tile(d) or r.shapes.sizes[d], r.shapes.sizes[d]) for d in of) for of in (rows, columns))
    gathered = tall * deep * taps * int(product.a.bytes) * _is_gathered(product.a)
    return gathered + ((tall + wide) * deep * taps + tall * wide) * SUM_BYTES


def _is_gathered(operand: OperandShape) -> bool:
    """Whether an operand lies in more dimensions of memory than it has: no single step leads along its rows."""
    return operand.argument is not None and len(operand.pitches) + 1 > len(operand.dims)


def _pieces(r: Reading, dim: str, block: int) -> set[int]:
    """The sizes of blocks along a dimension: those of a task, and of the last task."""
    size = r.shapes.sizes[dim]
    tasks = [c.size for a in r.axes_of(dim) for c in a.splits if c.level == "task" and c.digit is None]
    task = min([size, *tasks])
    return {n for width in (task, size % task) for n in (min(block, width), width % block) if n}


def shared_bytes(r: Reading) -> int:
    """Bytes of shared memory that a plan with roles takes: each tensor begins at a multiple of the row's alignment."""
    roles, align = r.plan.pipeline, r.machine.spaces["shared"].alignment
    assert roles is not None
    ring, once = staged(r)
    counted = [(roles.stages, n) for n in ring] + [(roles.resident_stages, n) for n in once]
    for place in r.plan.values:
        if place.form == "halo":
            rows, at = halo_rows(r), r.products[0][2]
            counted = [(roles.halo_stages, -(-rows * ROW // align) * align * (_k_of(r) // (at.slab or 1)))]
            panel = next((p for p in r.plan.values if p.form == "panel"), None)
            taps = prod(step_of(a) for a in tap_axes(r))
            if panel is not None and panel.at == "start":
                steps = prod(a.digits[0].extent for a in tap_axes(r)) * ceil(_extent_of_k(r) / (at.slab or 1))
                counted.append((1, steps * r.products[0][0].columns * ROW))
            else:
                counted.append((roles.stages, taps * r.products[0][0].columns * ROW * (_k_of(r) // (at.slab or 1))))
    counted += [(roles.epilogue_stages * (2 if roles.pingpong else 1), n) for n in _result_tiles(r)]
    return sum(-(-stages * size // align) * align for stages, size in counted)


def _result_tiles(r: Reading) -> list[int]:
    """Bytes of one stage of each tile of results: a row of shared memory of every row of C; of a transposed block, as
    many rows of C as a row of shared memory has elements, with all of their columns.

    Columns that no row of shared memory divides lie in tiles of several widths. No tile: lanes write them as they are.
    """
    line, _, mine = r.products[-1]
    if not r.shapes.writes_tiles and r.plan.split_after is None:
        return []
    across = 1 if line.transposed else max(1, r.groups // max(1, atoms_of(line, mine)[0]))
    columns = line.columns // across
    along = columns * r.result_bytes
    row = next((n for n in RESULT_ROWS if along % n == 0), None)
    if not line.transposed:
        return [line.rows * width * across for width in ([row] if row else _widths_of(along))]
    if row is None:
        return []
    most = min(line.rows, row // r.result_bytes)
    rows = next((n for n in range(most // CORE_ROWS * CORE_ROWS, 0, -CORE_ROWS) if line.rows % n == 0), 0)
    return [rows * line.columns * r.result_bytes]


def _widths_of(along: int) -> list[int]:
    """The widths of the tiles in which a row of `along` bytes leaves, each as often as it fits what wider ones left."""
    if along % CHUNK or along < min(RESULT_ROWS):
        return []
    widths = []
    for width in (*RESULT_ROWS, CHUNK):
        if along >= width:
            widths.append(width)
            along %= width
    return widths


def _k_of(r: Reading) -> int:
    """The step of K of the first product."""
    _, product, mine = r.products[0]
    return r.k_step(product.summed, mine.slab or 1)[0]


def _extent_of_k(r: Reading) -> int:
    return r.k_axes(r.products[0][1].summed)[-1].digits[-1].extent


def staged(r: Reading) -> tuple[list[int], list[int]]:
    """(bytes of a stage of every operand that the ring brings, of those that are loaded once a task).

    What several products of a loop read alike, in steps of a row of shared memory, the ring brings once for all.
    """
    ring, once = [], []
    common = set[tuple[object, ...]]()
    looping = {
        d
        for a in r.plan.axes
        for d in r.dims[a.name]
        if any(c.level == "loop" and c.size < prod(x.extent for x in a.digits) for c in a.splits)
    }
    stepped = any(
        d in looping for _, product, _ in r.products for d in product.summed if d not in r.shapes.stated_loops
    )
    for line, product, mine in r.products:
        deep, taps = r.k_step(product.summed, mine.slab or mine.shape[2])
        for operand, count in ((product.a, line.rows), (product.b, line.columns)):
            if operand.from_product or is_held(r, operand, product):
                continue
            size = int(count * deep * taps * (operand.bytes or mine.a.dtype.bits // 8))
            moves = not looping or bool(looping & set(operand.dims))
            if len(r.shapes.products) == 1 and not r.shapes.stated_loops:
                moves = stepped or moves or True
            elif stepped and looping & r.shapes.stated_loops.keys():  # steps of K within the author's loop
                moves = bool((looping - r.shapes.stated_loops.keys()) & set(operand.dims))
            same = operand.argument, operand.dims, product.summed, size
            if moves and same in common:
                continue
            if taps == 1 and deep == mine.slab and operand.argument is not None and looping & set(product.summed):
                common.add(same)
            (ring if moves else once).append(size)
    return ring, once
