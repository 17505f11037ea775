"""Maps and reductions of register tensors, broadcasts, and conversions from one register layout to another."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.analysis.flat_memory import PlacedMemory
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Value
from tilewright.ir.formula import Formula
from tilewright.ir.tensors import TensorType, packed
from tilewright.lower.gpu import copies, general
from tilewright.lower.gpu.register_tensors import (
    RegisterTensor,
    RegisterValues,
    as_expression,
    row_major_indices,
    table_expression,
)
from tilewright.lower.gpu.wave_lowering import WaveLowering

COMBINING = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul"}


def map_(low: WaveLowering, op: Op) -> None:
    """Lower `map` on a GPU: each lane computes the formula for the elements that it holds in registers. If the result
    is in memory, the lanes that hold a register operand compute and store it. If all tensors are in memory, lanes take
    the elements in turn. Raise a ProgramError if register operands have different layouts.
    """
    handles = [low.handles[v] for v in op.operands]
    target = handles[0]
    register_tensor = (
        target
        if isinstance(target, RegisterTensor)
        else next((h for h in handles[1:] if isinstance(h, RegisterTensor)), None)
    )
    if register_tensor is None:
        _map_in_memory(low, op, handles)
        return
    in_memory = [h for h in handles[1:] if not isinstance(h, RegisterTensor)]
    for piece in register_tensor.pieces:
        operands = [copies.in_layout_of(low, h, piece, register_tensor.shape) for h in handles[1:]]
        if isinstance(target, RegisterTensor):
            result = piece.fragment
            low.mmas_in_flight.wait_for_registers(written=(result,))
        else:
            result = low.fragment(target.dtype, len(piece.columns))
        lane, v = low.axes(len(piece.columns))
        at = tuple(table_expression(c, low.lanes, low.group.wave, lane, v) for c in piece.coordinates)
        _compute(low, op, result, operands, lane, v, at, rare=result in operands and bool(op.attrs.get("rare")))
        if not isinstance(target, RegisterTensor):
            reads_target = any(h.root.buffer is target.root.buffer for h in in_memory)
            copies.store(low, result, piece, target, reads_target)


def _compute(
    low: WaveLowering,
    op: Op,
    result: Value,
    operands: list[Value],
    lane: Symbol,
    v: Symbol,
    at: tuple[Expr, ...],
    rare: bool = False,
) -> None:
    """Emit the computation of the fragment `result`: the formula of the map `op`, applied to the fragments `operands`,
    for each value of each lane. All fragments have elements with the same coordinates, `at`: expressions of the symbols
    `lane` and `v` (index of a lane's value), which the formula may use. `rare` marks a computation that seldom changes
    its result.
    """
    names = dict(zip(op.attrs.get("over", ()), at, strict=False))
    with low.means(names):
        formula: Formula = op.attrs["formula"].mapped(low.expr)
    attrs: dict[str, Any] = {"rare": True} if rare else {}
    low.emit("compute", (result, *operands), over=(lane, v), formula=formula, **attrs)


def _map_in_memory(low: WaveLowering, op: Op, handles: list[Any]) -> None:
    """Emit the map `op`, with all tensors in memory: lanes take the elements in turn, and load, compute and store them.
    `handles` are the operands' memories, the result first.
    """
    target = handles[0]

    def body(lane: Symbol, v: Symbol, at: tuple[Expr, ...], in_bounds: Expr | None) -> None:
        """Emit the loads, the formula and the store for the elements at `at`."""
        operands = [copies.load_at(low, h, lane, v, at, in_bounds, 0) for h in handles[1:]]
        result = low.fragment(target.dtype, int(v.hi) + 1)
        _compute(low, op, result, operands, lane, v, at)
        copies.store_at(low, result, target, lane, v, at, in_bounds)

    copies.distribute_over_lanes(low, target.shape, target.dtype.numpy.itemsize, body)


# -- along a dimension ------------------------------------------------------------------------------------------


def reduce(low: WaveLowering, op: Op) -> None:
    """Lower `reduce` on a GPU. For register tensors, emit the combination of values within each lane, then of lanes
    with the same row by shuffles, then of waves through shared memory, in the same order in all waves. If the layouts
    or the type do not allow it, or an operand is in memory, one lane reduces each row through memory.
    """
    handles = [low.handles[v] for v in op.operands]
    plans = _piece_reductions(low, op, *handles) if len(handles) == 2 and isinstance(op.attrs["with"], str) else None
    if plans is None:
        general.along(low, op)
        return
    source, target = handles
    name = COMBINING[op.attrs["with"]]
    combination = Formula(name, (Formula.operand(1), Formula.operand(2)))
    for number, (piece, (groups, bits, waves)) in enumerate(zip(target.pieces, plans, strict=True)):
        total = _within_lanes(low, source, groups, combination)
        for bit in bits:
            other = low.fragment(source.dtype, len(piece.columns))
            copies.shuffle(low, other, total, np.arange(len(piece.columns)), bit)
            low.emit("compute", (total, total, other), formula=combination)
        if len(waves[0]) > 1:
            total = _over_waves(low, (op, number), waves, total, combination)
        low.mmas_in_flight.wait_for_registers(written=(piece.fragment,), read=(piece.fragment,))
        old = (piece.fragment,) if op.attrs.get("accumulate") else ()
        formula = combination if old else Formula.operand(1)
        low.emit("compute", (piece.fragment, *old, total), formula=formula)


PieceReduction = tuple[list[list[Any]], list[int], list[list[int]]]
"""How one piece of the result is reduced: for each piece of the source and each value of the result, the indices of the
source's values; the bits of the lane number to shuffle over; and for each wave, the waves that share its rows."""


def _piece_reductions(low: WaveLowering, op: Op, source: Any, target: Any) -> list[PieceReduction] | None:
    """Return a list with one PieceReduction for each piece (values of one fragment) of the register tensor `target`. It
    is (values of each row in a lane, bits of the lane number to shuffle over, waves to combine).

    Return None if the reduction `op` cannot be done by shuffles: `source` or `target` is no register tensor, `target`
    is a view of some values of a fragment, the type is no float that is its own accumulator type, or the layouts do not
    match.
    """
    if not isinstance(source, RegisterTensor) or not isinstance(target, RegisterTensor) or not source.dtype.is_float:
        return None
    if source.dtype.accumulator is not source.dtype or not all(p.whole for p in target.pieces):
        return None
    along = op.attrs["along"]
    row_dims = [d for d in range(len(source.shape)) if d != along]
    shape = tuple(source.shape[d] for d in row_dims)
    plans: list[PieceReduction] = []
    for piece in target.pieces:
        wanted = piece.ids(target.shape)
        groups, count = [], 0
        for source_piece in source.pieces:
            rows = row_major_indices(tuple(source_piece.coordinates[d] for d in row_dims), shape) + np.zeros(
                source_piece.first.shape, np.int64
            )
            values_of_row = [np.nonzero((rows == wanted[:, c : c + 1]).all(axis=0))[0] for c in range(wanted.shape[1])]
            if len({len(g) for g in values_of_row}) != 1:
                return None
            groups.append(values_of_row)
            count += len(values_of_row[0])
        bits = _lane_bits_of_row(low, source, along, wanted)
        waves = _waves_sharing_rows(low, wanted, source.shape[along] // max(1, count << len(bits)))
        if count == 0 or (count << len(bits)) * len(waves[0]) != source.shape[along]:
            return None
        plans.append((groups, bits, waves))
    return plans


def _waves_sharing_rows(low: WaveLowering, wanted: Any, count: int) -> list[list[int]]:
    """Return, for each wave, the list of waves (itself included, in order) that hold the same rows. wanted[thread,
    value] is the row that a register holds. If a list does not have `count` waves, return lists of each wave alone.
    """
    tables = [x.tobytes() for x in np.ascontiguousarray(wanted).reshape(low.group.waves, -1)]
    mates = [[n for n, other in enumerate(tables) if other == table] for table in tables]
    return mates if {len(x) for x in mates} == {count} else [[n] for n in range(len(tables))]


def _over_waves(low: WaveLowering, key: Any, waves: list[list[int]], total: Value, combination: Formula) -> Value:
    """Emit the exchange of each wave's fragment `total` through shared memory, and return a fragment in which the
    totals of waves[w] are combined, in order, for wave w. `combination` is the formula that combines operands 1 and 2.
    `key` identifies the scratch memory. Raise a ProgramError if the wave numbers are no expressions of the wave's
    number.
    """
    count = int(total.type.shape[1])
    exchange = general.scratch(low, (*key, "waves"), total.type.dtype, (low.group.waves, low.lanes, count))
    low.sync_waves()  # all waves have read the totals of the previous exchange
    lane, v = low.axes(count)
    low.emit("store", (total, exchange.buffer), over=(lane, v), at=(exchange.at((low.group.wave, lane, v)).offset,))
    low.note_stored(exchange)
    low.sync_waves()
    combined: Value | None = None
    for n in range(len(waves[0])):
        mate = as_expression(np.asarray([mates[n] for mates in waves]), low.group.wave)
        if mate is None:
            raise ProgramError("reduce: the waves that share a row are no sums of digits of the wave's number")
        part = low.fragment(total.type.dtype, count)
        low.emit("load", (part, exchange.buffer), over=(lane, v), at=(exchange.at((mate, lane, v)).offset,))
        if combined is not None:
            low.emit("compute", (part, combined, part), formula=combination)
        combined = part
    assert combined is not None
    return combined


def _within_lanes(low: WaveLowering, source: RegisterTensor, groups: list[list[Any]], combination: Formula) -> Value:
    """Emit the combination of each lane's values of a row, in pairs, and return a fragment with one total per row.
    groups[p][r] are the indices of the values of row r in piece p (values of one fragment) of `source`. `combination`
    is the formula that combines operands 1 and 2.
    """
    parts: list[Value] = []
    for piece, columns_of_rows in zip(source.pieces, groups, strict=True):
        values = copies.values_of(low, piece) if len(columns_of_rows[0]) else None
        for k in range(len(columns_of_rows[0])):
            assert values is not None
            part = low.fragment(source.dtype, len(columns_of_rows))
            copies.shuffle(low, part, values, np.asarray([g[k] for g in columns_of_rows]))
            parts.append(part)
    while len(parts) > 1:  # neighbours first, so that sums do not wait for one another
        for i in range(0, len(parts) - 1, 2):
            low.emit("compute", (parts[i], parts[i], parts[i + 1]), formula=combination)
        parts = parts[::2]
    return parts[0]


def _lane_bits_of_row(low: WaveLowering, source: RegisterTensor, reduced_dim: int, wanted: Any) -> list[int]:
    """Return a list of the bits of the lane number (1, 2, 4, ...) that the reduction of a row must shuffle over. Lanes
    that differ in one of these bits hold the same rows, but other elements of them. `source` is the tensor that is
    reduced along `reduced_dim`; wanted[thread, value] is the row of the result that a register holds.
    """
    threads = np.arange(len(wanted))
    column = source.pieces[0].coordinates[reduced_dim]
    bits, bit = [], 1
    while bit < low.lanes:
        moved = threads ^ bit
        if (wanted[moved] == wanted).all() and (column[moved] != column).any():
            bits.append(bit)
        bit *= 2
    return bits


def broadcast(low: WaveLowering, op: Op) -> None:
    """Lower `broadcast` on a GPU: each lane repeats values of the source that it holds in registers, or loads them from
    memory. If the target is in memory, or a lane lacks values of a source in registers, elements go through shared
    memory.
    """
    source, target = (low.handles[v] for v in op.operands)
    if not isinstance(target, RegisterTensor):
        general.broadcast(low, op)
        return
    row_dims = [d for d in range(len(target.shape)) if d != op.attrs["along"]]
    shape = tuple(target.shape[d] for d in row_dims)
    rows = [
        RegisterValues(p.fragment, p.columns, tuple(p.coordinates[d] for d in row_dims), p.first) for p in target.pieces
    ]
    if isinstance(source, RegisterTensor) and not all(copies.can_shuffle_to(source, row, shape) for row in rows):
        general.broadcast(low, op)
        return
    for piece, row in zip(target.pieces, rows, strict=True):
        values = copies.in_layout_of(low, source, row, shape)
        low.mmas_in_flight.wait_for_registers(written=(piece.fragment,))
        copies.shuffle(low, piece.fragment, values, np.arange(len(piece.columns)))


def convert_layout(low: WaveLowering, op: Op) -> None:
    """Lower `convert_layout` of a register tensor through shared memory: emit stores in the source's layout, a barrier
    of the waves, loads in the target's layout, and another barrier.
    """
    source, target = (low.handles[v] for v in op.operands)
    shape = tuple(map(as_expr, source.shape))
    size = int(np.prod(source.shape))
    kind = TensorType("shared", source.dtype, (as_expr(size * low.group.halves),))
    buffer = low.hoist((op, "scratch", low.group.halves), kind, "scratch")
    strides = tuple(int(e) for e in packed(shape))
    scratch = PlacedMemory(buffer, source.dtype, source.shape, strides, None, low.group.side * size)
    for piece in source.pieces:
        copies.store(low, copies.values_of(low, piece), piece, scratch)
    low.sync_waves()
    for piece in target.pieces:
        copies.load(low, scratch, piece.fragment, piece, None)
    low.sync_waves()
