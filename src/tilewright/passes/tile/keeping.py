"""Whether a value is computed again where it is used, or kept: in memory of the worker's own, or in registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Value
from tilewright.ir.printer import op_text
from tilewright.ir.tile import REDUCTIONS
from tilewright.passes.places import Size
from tilewright.passes.tile.lowering import Lowering
from tilewright.passes.tile.storage import Storage
from tilewright.passes.tile.values import Tile, loads, most, only_load, weight
from tilewright.passes.tile.writer import BlockWriter

HEAVY = 8
"""The weight from which an element is better kept than computed twice."""
LONG = 60
"""The weight from which a formula is cut in two."""
SIMPLE = ("add", "sub", "mul", "neg", "abs", "cast")
"""Operations whose results are computed again for each use."""


def kept(low: Lowering, op: Op, value: Value, tile: Tile) -> Tile:
    """The tile, in memory if it is used often and dear, or has grown long."""
    if len(set(tile.dims)) != len(tile.dims):
        raise ProgramError(f"{op_text(op)}: a dimension occurs twice, which has no native form yet", op.loc)
    cost = weight(tile.formula)
    if not fits(low, tile.sizes):
        return tile
    if is_row(low.writer, tile) and only_load(tile.formula) is None and any(loads(tile.formula)):
        return low.storage.stored(tile, name=value.name)  # lanes would compute it again for each of their elements
    if (len(low.users.get(value, ())) > 1 and cost >= HEAVY and any(loads(tile.formula))) or cost >= LONG:
        return low.storage.stored(tile, name=value.name)
    return tile


def simple(storage: Storage, value: Value, light: int = 2) -> Tile:
    """The value's tile, whose formula may stand in a formula several times: a load, a number, what is light."""
    tile = storage.env[value]
    if weight(tile.formula) > light and any(loads(tile.formula)):
        storage.env[value] = tile = storage.stored(tile, name=value.name)
    return tile


def near(low: Lowering, value: Value) -> Tile:
    """The value's tile, in memory of the worker's own where others use it too."""
    tile, found = low.storage.env[value], only_load(low.storage.env[value].formula)
    there = tile.filled or tile.wide is not None or (found is not None and found.tensor.type.space == "shared")
    tasks = low.machine.row_tasks
    most = tasks.values if _is_reduced_twice(low.users, value) else tasks.most_values
    if not there and len(low.users.get(value, ())) > 1 and fits(low, tile.sizes, most):
        low.storage.env[value] = tile = low.storage.stored(tile, name=value.name)
    return tile


def fits(low: Lowering, sizes: Sequence[Size], values: int | None = None) -> bool:
    """Whether a task's lanes have room for a tile, so many values each, or all that they may have.

    They always have where a plan says no waves.
    """
    values = low.machine.row_tasks.most_values if values is None else values
    if low.cuts.waves == 1 or low.writer.lanes is None:
        return True
    return prod(map(most, sizes)) <= values * low.writer.lanes


def is_row(writer: BlockWriter, tile: Tile) -> bool:
    """Whether a tile is held in registers with an element for each row."""
    axes = None if writer.home is None else writer.home.axes(tile.dims, tile.parts)
    return axes is not None and len(axes) == 1


def _is_reduced_twice(users_of: Mapping[Value, Sequence[Op]], value: Value) -> bool:
    """Whether something simple that is computed of a value is reduced too: lanes then have registers for both."""
    found = [value]
    for each in found:
        for op in users_of.get(each, ()):
            if op.name in REDUCTIONS and each is not value:
                return True
            found += [v for v in op.results if op.name in SIMPLE and v not in found]
    return False
