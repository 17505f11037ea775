"""The accumulator of an MMA: in registers or in memory, carried by a loop or new.

%sums = alloc register f32 (13, 32) as ATOM.c
copy %acc_view -> %sums                          one tile of a C in memory
...                                              its K loops
copy %sums -> %acc_view
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from tilewright.algebra.expr import Expr
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.passes.tile.lowering import Lowering
from tilewright.passes.tile.product.product import AtomProduct
from tilewright.passes.tile.product.registers import TaskRegisters
from tilewright.passes.tile.product.tiles import AccumulatorTile
from tilewright.passes.tile.storage import Storage
from tilewright.passes.tile.values import (
    Load,
    Parts,
    Tile,
    loads,
    only_load,
)
from tilewright.passes.tile.writer import BlockWriter
from tilewright.plan.microkernel import Axes, Microkernel


class Accumulator(Protocol):
    """The place of an accumulator while K loops add to it."""

    def opened(self, tile: AccumulatorTile) -> AbstractContextManager[Value]:
        """Emit what comes before and after the K loops of a tile of C; yield the tensor to which they add."""


@dataclass(frozen=True)
class WholeSums:
    """All of C in one tensor, to which K loops add."""

    tensor: Value

    @contextmanager
    def opened(self, tile: AccumulatorTile) -> Iterator[Value]:
        """Yield the tensor."""
        yield self.tensor


@dataclass(frozen=True)
class TaskSums:
    """The registers that a task keeps for the sums of its blocks, which start from zero."""

    writer: BlockWriter
    registers: TaskRegisters

    @contextmanager
    def opened(self, tile: AccumulatorTile) -> Iterator[Value]:
        """Yield the registers, filled with zeros; sums that another MMA needs go to memory at once."""
        self.writer.emit("fill", (self.registers.sums,), value=0)
        yield self.registers.sums
        if self.registers.at_once:
            self.writer.emit("copy", (self.registers.sums, self.registers.scratch))


@dataclass(frozen=True)
class TiledSums:
    """C in memory, of which one tile at a time is in registers."""

    product: AtomProduct
    total: Value
    zero: bool
    """True if C starts from zero, and has not been written yet."""

    @contextmanager
    def opened(self, tile: AccumulatorTile) -> Iterator[Value]:
        """Yield the registers of a tile, loaded or filled with zeros before and stored after."""
        p, w, atom = self.product, self.product.w, self.product.how.atom
        sums = w.registers(atom.c.dtype, (tile.rows, tile.columns), f"{atom.name}.c", "sums")
        i, j = w.axes((tile.rows, tile.columns))
        room = self.total in p.low.storage.padded
        at: dict[Expr, tuple[Expr, bool]] = {d: (e, False) for d, e in p.at.items()}
        at[p.axes.m] = (tile.row + i, tile.ragged_rows and not room)
        at[p.axes.n] = (tile.column + j, tile.ragged_columns and not room)
        whole = self.total if room else w.part(self.total, [p.width(d) for d in p.c])
        goal = w.view(whole, (i, j), [at[d] for d in p.c])
        ragged = any(mark for _, mark in at.values())
        if self.zero:
            w.emit("fill", (sums,), value=0)
        else:
            w.emit("copy", (goal, sums), otherwise=0 if ragged else None)
        yield sums
        w.emit("copy", (sums, goal))


def room_for_sums(
    storage: Storage, how: Microkernel, axes: Axes, c: tuple[Expr, ...], parts: Parts, wide: DType, start: Formula
) -> tuple[Value, bool]:
    """Return (tensor for an accumulator, True if it is still empty).

    It is in registers if one block of the microkernel covers it and registers hold the accumulator tiles of all
    products at once, else in memory. `start` is stored in it, but zeros in memory are not: then it is empty.
    """
    rows, columns = (parts[d][1] for d in (axes.m, axes.n))
    zero, single = start == formulas.number(0, wide), all(parts[d][1] == 1 for d in axes.around)
    known = isinstance(rows, int) and isinstance(columns, int)
    m, n, _ = how.atom.shape
    one = rows <= how.rows and columns <= how.columns and rows % m == columns % n == 0 if known else False
    if single and one and storage.holds_sums:
        held = storage.writer.registers(wide, (int(rows), int(columns)), f"{how.atom.name}.c", "sums", how.waves)
        storage.sums[held] = axes.m, axes.n
        if zero:
            storage.writer.emit("fill", (held,), value=0)
        else:
            storage.put(held, c, parts, start)
        return held, False
    m, n, _ = how.atom.shape
    units = {axes.m: m, axes.n: n} if how.whole and how.slab is None and known else {}
    sizes = [parts[d][1] for d in c]
    room = [-(-size // units[d]) * units[d] if d in units else size for size, d in zip(sizes, c, strict=True)]
    held = storage.writer.alloc(wide, room, "acc")
    if room != sizes:  # atoms read and write all of their rows and columns
        storage.padded[held] = tuple(map(storage.writer.room, sizes))
        if not zero:
            storage.writer.emit("fill", (held,), value=0)
    if not zero:
        storage.put(held, c, parts, start)
    return held, zero


def going_on_in(
    low: Lowering, op: Op, acc: Tile, start: Formula, parts: Parts, along: tuple[Expr | None, ...] | None
) -> Value | None:
    """Return the loop-carried accumulator to which the MMA may add in place, with `start` in it; None: there is none.

    `along` are the dimensions of the rows and columns of registers; None: the MMA has no atom.
    """
    carried = _carried_accumulator(low, op, acc, start, parts, along)
    carried = carried or _reused_accumulator(low, op, acc, start, parts, along)
    return None if carried is None else carried.tensor


def _carried_accumulator(
    low: Lowering, op: Op, acc: Tile, start: Formula, parts: Parts, along: tuple[Expr | None, ...] | None
) -> Load | None:
    """Return the tensor of a loop-carried accumulator if the MMA may accumulate in place: nothing else uses its old
    value.

    Registers must have the layout of the MMA's accumulator, rows and columns `along` the same dimensions.
    """
    carried = only_load(start)
    before = op.operands[2]
    if carried is None or low.storage.going_on.get(before) is not carried.tensor or len(low.users[before]) != 1:
        return None
    same = only_load(low.storage.held(carried.tensor, acc.dims, parts).formula)
    if carried.tensor in low.storage.sums:
        return carried if carried == same and along in (None, low.storage.sums[carried.tensor]) else None
    sizes = tuple(low.writer.room(parts[d][1]) for d in acc.dims)
    return carried if carried == same and low.storage.room_of(carried.tensor) == sizes else None


def _reused_accumulator(
    low: Lowering, op: Op, acc: Tile, start: Formula, parts: Parts, along: tuple[Expr | None, ...] | None
) -> Load | None:
    """Return the loop-carried accumulator registers, with `start` stored in them, if the MMA may accumulate there.

    That is so if `start` is computed from these registers element by element, and nothing else uses their old value.
    """
    storage = low.storage
    for each in loads(start):
        carried = [v for v, tensor in storage.going_on.items() if tensor is each.tensor and v is not op.results[0]]
        is_accumulator = each.tensor in storage.sums and each == only_load(
            storage.held(each.tensor, acc.dims, parts).formula
        )
        is_accumulator = is_accumulator and along in (None, storage.sums[each.tensor])
        if is_accumulator and len(storage.sums[each.tensor]) > 1 and any(_leads_to(low.users, v, op) for v in carried):
            storage.put(each.tensor, acc.dims, parts, start)
            return each
    return None


def _leads_to(users_of: Mapping[Value, Sequence[Op]], value: Value, op: Op) -> bool:
    """True if a value has one user, whose result has one user, and so on, up to the accumulator operand of `op`."""
    while True:
        users = users_of.get(value, ())
        if len(users) != 1:
            return False
        if users[0] is op:
            return op.operands[2] is value
        if users[0].blocks or len(users[0].results) != 1:
            return False
        (value,) = users[0].results
