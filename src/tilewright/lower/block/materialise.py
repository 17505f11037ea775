"""Decides whether a value is stored in memory or registers, or computed again at each use."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.analysis.flat_memory import Size
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Value
from tilewright.ir.printer import op_text
from tilewright.lower.block.lazy_tiles import Tile, loads, most, only_load, weight
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.storage import Storage
from tilewright.lower.block.writer import BlockWriter
from tilewright.plan.kept_rows import is_kept_by_lanes, reused_reads

HEAVY = 8
"""An element of at least this weight that is used twice is stored."""
LONG = 60
"""A formula of at least this weight is stored, so that formulas do not grow without bound."""


def kept(low: Lowering, op: Op, value: Value, tile: Tile) -> Tile:
    """Return the Tile of `value`, a result of `op`: if it pays, code is emitted that stores `tile`, and a Tile that
    loads the stored elements is returned; else `tile`, a formula, itself.

    It pays if the formula is expensive and used several times, if it is long, or if registers have one element of the
    tile per row. A tile that does not fit the registers of the lanes is never stored. Raise a ProgramError if a
    dimension occurs twice.
    """
    if len(set(tile.dims)) != len(tile.dims):
        raise ProgramError(f"{op_text(op)}: a dimension occurs twice, which has no native form yet", op.loc)
    cost = weight(tile.formula)
    if not fits(low, tile.sizes):
        return tile
    if is_row(low.writer, tile) and only_load(tile.formula) is None and any(loads(tile.formula)):
        return low.storage.stored(tile, name=value.name)  # else lanes compute it again for each of their elements
    if (len(low.users.get(value, ())) > 1 and cost >= HEAVY and any(loads(tile.formula))) or cost >= LONG:
        return low.storage.stored(tile, name=value.name)
    return tile


def simple(storage: Storage, value: Value, light: int = 2) -> Tile:
    """Return the Tile of `value`, stored first by emitted code if its formula loads elements and costs more than
    `light` simple instructions.

    A stored Tile replaces the old one in `storage.env`. The caller may use the formula of the returned Tile several
    times.
    """
    tile = storage.env[value]
    if weight(tile.formula) > light and any(loads(tile.formula)):
        storage.env[value] = tile = storage.stored(tile, name=value.name)
    return tile


def near(low: Lowering, value: Value) -> Tile:
    """Return the Tile of `value`; if several operations use it, emit code that stores it in the workgroup's memory
    first.

    A stored Tile replaces the old one in `low.storage.env`. Nothing is stored if the tile is there already, is one
    number everywhere, or is a rounded accumulator. On machines with lanes, and with several waves, nothing is stored
    either if the lanes' registers, where such tensors end up, have no room for it.
    """
    tile, load = low.storage.env[value], only_load(low.storage.env[value].formula)
    is_near = tile.filled or tile.wide is not None or (load is not None and load.tensor.type.space == "shared")
    has_room = low.plan.waves == 1 or low.writer.lanes is None
    elements, lanes = prod(map(most, tile.sizes)), low.writer.lanes or 1
    used = len(low.users.get(value, ())) > 1
    if not is_near and used and (has_room or is_kept_by_lanes(low.users, value, elements, lanes, low.machine)):
        low.storage.env[value] = tile = low.storage.stored(tile, name=value.name)
    return tile


def is_row_read_again(low: Lowering, read: Op) -> bool:
    """True if a task should keep the elements of `read` in the workgroup's memory, because it reads them several times.

    False for reads inside loops or conditionals, in programs with MMAs, on machines without lanes, with one wave per
    workgroup, and if an extent is known only at the call.
    """
    if low.plan.waves == 1 or low.writer.lanes is None or low.writer.fragment_layout is not None or low.bound.products:
        return False
    outside_loops = [op for op in low.program.body.ops if op.name == "read"]
    if read not in outside_loops:
        return False
    widths = {d: low.scope.part(d)[1] for op in outside_loops for d in op.result.type.dims}
    if not all(isinstance(widths[d], int) for d in read.result.type.dims):
        return False
    reads = reused_reads(low.program, lambda d: most(widths[d]), low.writer.lanes, low.machine)
    return any(row.read is read and row.keeper == "workgroup" for row in reads)


def fits(low: Lowering, sizes: Sequence[Size], values: int | None = None) -> bool:
    """True if the registers of a workgroup's lanes hold a tile of the extents `sizes`, with at most `values` elements
    for each lane.

    If `values` is None, it is the machine's limit. Always True if a workgroup has one wave, or the machine has no
    lanes.
    """
    values = low.machine.row_tasks.most_values if values is None else values
    if low.plan.waves == 1 or low.writer.lanes is None:
        return True
    return prod(map(most, sizes)) <= values * low.writer.lanes


def is_row(writer: BlockWriter, tile: Tile) -> bool:
    """True if registers hold a tile as one element for each row, in the layout `writer.fragment_layout` of values
    between MMAs.
    """
    axes = None if writer.fragment_layout is None else writer.fragment_layout.axes(tile.dims, tile.parts)
    return axes is not None and len(axes) == 1
