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
from tilewright.lower.block.lazy_tiles import Load, Parts, Tile, loads, only_load
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.mma.product import AtomProduct
from tilewright.lower.block.mma.registers import TaskRegisters
from tilewright.lower.block.mma.tiles import AccumulatorTile
from tilewright.lower.block.storage import Storage
from tilewright.lower.block.writer import BlockWriter
from tilewright.plan.microkernel import Axes, Microkernel


class Accumulator(Protocol):
    """An accumulator to which K loops add."""

    def opened(self, tile: AccumulatorTile) -> AbstractContextManager[Value]:
        """Context manager: yield the tensor to which the K loops of the accumulator tile `tile` add.

        An implementation emits the code before and after these loops, such as the load and the store of the tile. Here,
        in the interface, nothing is emitted.
        """


@dataclass(frozen=True)
class WholeSums:
    """An accumulator in one tensor, which has all of C: registers, or memory."""

    tensor: Value

    @contextmanager
    def opened(self, tile: AccumulatorTile) -> Iterator[Value]:
        """Context manager: yield the tensor that has all of C, for any `tile`; emit nothing before and after the K
        loops.
        """
        yield self.tensor


@dataclass(frozen=True)
class TaskSums:
    """The accumulator registers that a task keeps for all its blocks; each block starts from zero."""

    writer: BlockWriter
    registers: TaskRegisters

    @contextmanager
    def opened(self, tile: AccumulatorTile) -> Iterator[Value]:
        """Context manager: emit a fill of the task's accumulator registers with zeros, and yield the registers; the
        caller emits the K loops within it.

        If another MMA of the block needs the sums, a copy of the registers to memory is emitted at the end. `tile` is
        not used.
        """
        self.writer.emit("fill", (self.registers.sums,), value=0)
        yield self.registers.sums
        if self.registers.at_once:
            self.writer.emit("copy", (self.registers.sums, self.registers.scratch))


@dataclass(frozen=True)
class TiledSums:
    """An accumulator in memory (`total`): each accumulator tile is loaded to registers, and stored after its K
    loops.
    """

    product: AtomProduct
    total: Value
    zero: bool
    """True if C starts from zero, which memory does not hold yet."""

    @contextmanager
    def opened(self, tile: AccumulatorTile) -> Iterator[Value]:
        """Context manager: emit the load of the part `tile` of C to new registers, and yield the registers; the caller
        emits the K loops within it.

        If C starts from zero, the registers are filled with zeros instead. At the end, the store of the registers to
        memory is emitted.
        """
        p, w, atom = self.product, self.product.w, self.product.microkernel.atom
        sums = w.registers(atom.c.dtype, (tile.rows, tile.columns), f"{atom.name}.c", "sums")
        i, j = w.axes((tile.rows, tile.columns))
        is_padded = self.total in p.low.storage.padded
        at: dict[Expr, tuple[Expr, bool]] = {d: (e, False) for d, e in p.at.items()}
        at[p.axes.m] = (tile.row + i, tile.ragged_rows and not is_padded)
        at[p.axes.n] = (tile.column + j, tile.ragged_columns and not is_padded)
        total = self.total if is_padded else w.part(self.total, [p.width(d) for d in p.c])
        goal = w.view(total, (i, j), [at[d] for d in p.c])
        ragged = any(mark for _, mark in at.values())
        if self.zero:
            w.emit("fill", (sums,), value=0)
        else:
            w.emit("copy", (goal, sums), otherwise=0 if ragged else None)
        yield sums
        w.emit("copy", (sums, goal))


def room_for_sums(
    storage: Storage, kernel: Microkernel, axes: Axes, c: tuple[Expr, ...], parts: Parts, wide: DType, start: Formula
) -> tuple[Value, bool]:
    """Emit the allocation of an accumulator for C, and the store of its first value `start` (a formula); return
    (tensor, is_unset).

    The tensor is in registers if `storage.holds_sums` allows that, one accumulator tile of `kernel` covers C in whole
    atoms, and batch extents are 1. Otherwise it is in memory, padded to whole atoms if the atom has several rows and
    does not read shared memory. `is_unset` is True if the tensor is in memory and `start` is 0: nothing is stored then.
    `axes` names M, N and K; `c` are the dimensions of C; `parts` is {dimension: (first index, extent)}; `wide` is the
    element type.
    """
    rows, columns = (parts[d][1] for d in (axes.m, axes.n))
    is_zero, has_unit_batch = start == formulas.number(0, wide), all(parts[d][1] == 1 for d in axes.around)
    is_known = isinstance(rows, int) and isinstance(columns, int)
    m, n, _ = kernel.atom.shape
    fits_one_tile = (
        rows <= kernel.rows and columns <= kernel.columns and rows % m == columns % n == 0 if is_known else False
    )
    if has_unit_batch and fits_one_tile and storage.holds_sums:
        held = storage.writer.registers(
            wide, (int(rows), int(columns)), f"{kernel.atom.name}.c", "sums", kernel.group_grid
        )
        storage.sums[held] = axes.m, axes.n
        if is_zero:
            storage.writer.emit("fill", (held,), value=0)
        else:
            storage.put(held, c, parts, start)
        return held, False
    m, n, _ = kernel.atom.shape
    units = {axes.m: m, axes.n: n} if kernel.is_matrix_atom and kernel.slab is None and is_known else {}
    sizes = [parts[d][1] for d in c]
    room = [-(-size // units[d]) * units[d] if d in units else size for size, d in zip(sizes, c, strict=True)]
    held = storage.writer.alloc(wide, room, "acc")
    if room != sizes:  # whole atoms are read and written
        storage.padded[held] = tuple(map(storage.writer.room, sizes))
        if not is_zero:
            storage.writer.emit("fill", (held,), value=0)
    if not is_zero:
        storage.put(held, c, parts, start)
    return held, is_zero


def carried_accumulator_of(
    low: Lowering, op: Op, acc: Tile, start: Formula, parts: Parts, along: tuple[Expr | None, ...] | None
) -> Value | None:
    """Return the tensor of a loop-carried accumulator to which the MMA `op` can add in place; None if the MMA needs a
    new tensor.

    `acc` is the accumulator operand and `start` the formula of its elements. If these elements are not what the tensor
    holds now (they were rescaled, say), code is emitted that stores them there. `parts` is {dimension: (first index,
    extent)}. `along` are the dimensions of the registers' rows and columns; None: the MMA has no atom.
    """
    carried = _carried_accumulator(low, op, acc, start, parts, along)
    carried = carried or _reused_accumulator(low, op, acc, start, parts, along)
    return None if carried is None else carried.tensor


def _carried_accumulator(
    low: Lowering, op: Op, acc: Tile, start: Formula, parts: Parts, along: tuple[Expr | None, ...] | None
) -> Load | None:
    """Return the Load of a loop-carried accumulator to which the MMA `op` can add in place; `start`, the formula of its
    elements, must be just that load.

    None if `start` is anything else, if something else uses the old value, or if the tensor has another shape or
    layout. `acc` is the accumulator operand; `parts` is {dimension: (first index, extent)}. `along` are the dimensions
    of the registers' rows and columns (None: any).
    """
    carried = only_load(start)
    before = op.operands[2]
    if carried is None or low.storage.carried_tensors.get(before) is not carried.tensor or len(low.users[before]) != 1:
        return None
    same = only_load(low.storage.held(carried.tensor, acc.dims, parts).formula)
    if carried.tensor in low.storage.sums:
        return carried if carried == same and along in (None, low.storage.sums[carried.tensor]) else None
    sizes = tuple(low.writer.room(parts[d][1]) for d in acc.dims)
    return carried if carried == same and low.storage.room_of(carried.tensor) == sizes else None


def _reused_accumulator(
    low: Lowering, op: Op, acc: Tile, start: Formula, parts: Parts, along: tuple[Expr | None, ...] | None
) -> Load | None:
    """Emit the store of `start` to loop-carried registers, so that the MMA `op` can add to them in place; return the
    Load of these registers. Return None, and emit nothing, unless two conditions hold.

    `start`, the formula of the accumulator's elements, must be computed from the old value in these registers, element
    by element, as in `acc * scale`. The old value must reach `op` through a chain of operations, each the only user of
    the one before. `acc` is the accumulator operand; `parts` is {dimension: (first index, extent)}; `along` are the
    dimensions of the registers' rows and columns (None: any).
    """
    storage = low.storage
    for each in loads(start):
        carried = [
            v for v, tensor in storage.carried_tensors.items() if tensor is each.tensor and v is not op.results[0]
        ]
        is_accumulator = each.tensor in storage.sums and each == only_load(
            storage.held(each.tensor, acc.dims, parts).formula
        )
        is_accumulator = is_accumulator and along in (None, storage.sums[each.tensor])
        if is_accumulator and len(storage.sums[each.tensor]) > 1 and any(_leads_to(low.users, v, op) for v in carried):
            storage.put(each.tensor, acc.dims, parts, start)
            return each
    return None


def _leads_to(users_of: Mapping[Value, Sequence[Op]], value: Value, op: Op) -> bool:
    """True if `value` reaches the accumulator operand of the MMA `op` through a chain of operations, each the only user
    of the one before.

    `users_of` is {value: the operations that use it}. False if a loop or an operation with several results is on the
    way.
    """
    while True:
        users = users_of.get(value, ())
        if len(users) != 1:
            return False
        if users[0] is op:
            return op.operands[2] is value
        if users[0].blocks or len(users[0].results) != 1:
            return False
        (value,) = users[0].results
