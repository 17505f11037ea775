"""Fuses operations along the same rows: a few rows at a time, so that intermediate values stay in the L1 cache.

%1 = max %0 dim=(N)                 for r in 0..32 {
%2 = sub %0, %1                       ... of rows 4*r to 4*r + 3: the maximum, the exponentials, their sum
%3 = exp %2                           map %v_view = exp(%0_view - %max_view)
%4 = sum %3 dim=(N)                 }

Between two MMAs a program often reads all scores several times: scale, maximum, exponentials, sum, another type.
Values that only these operations use need only a few rows of memory. A value that is used after them is written to a
tensor of its own, or over the value that it is computed from, if nothing uses that again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.ir.core import Op, TileType, Value
from tilewright.ir.tile import ELEMENTWISE, REDUCTIONS
from tilewright.lower.block.lazy_tiles import Part, Parts, Tile, loads
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.materialise import kept
from tilewright.lower.block.storage import Storage
from tilewright.lower.block.streamed_reductions import StreamedReductions, dims_of_vectors, streamed
from tilewright.plan.model import element_bytes, l1
from tilewright.rewrite.rewriter import within

_BY_ROWS = {*ELEMENTWISE, *REDUCTIONS, "select", "cast"}
_EARLY = {"read", "fill", "scalar", "self_index", "broadcast", "permute"}
"""Operations that may be moved in front of operations that they do not depend on."""


@dataclass(frozen=True)
class FusedRows:
    """Operations along the same rows (`row` is the dimension) that are emitted in one loop, `at_once` rows an
    iteration.
    """

    ops: tuple[Op, ...]
    row: Expr
    at_once: int
    outs: frozenset[Value]
    """Results that operations outside the group use."""
    around: frozenset[Value]
    """Results of all operations of the same block."""
    later: frozenset[Value]
    """Values that operations after the group use."""
    exceeds_l1: bool = False
    """True if L1 does not hold the values of `at_once` rows: fewer would be less than a vector."""

    @property
    def given(self) -> list[Value]:
        """The values that the group's operations use, but do not compute themselves; each once, in the order of their
        first use.
        """
        results = {r for op in self.ops for r in op.results}
        return [v for v in dict.fromkeys(v for op in self.ops for v in op.operands) if v not in results]


def steps(low: Lowering, ops: Sequence[Op]) -> Iterator[Op | FusedRows | StreamedReductions]:
    """Yield the operations `ops` of a block, in an order that keeps dependences.

    Operations that are to be fused into one loop are yielded as one StreamedReductions or FusedRows, each other
    operation as it is.
    """
    rest, around = list(ops), frozenset(r for op in ops for r in op.results)
    while rest:
        early, chosen, left = _candidates(rest)
        group = _group(low, early, chosen, left, around)
        reductions = streamed(low, early, chosen, left) if group is None or group.exceeds_l1 else None
        if reductions is not None:
            yield from early
            yield reductions
            rest = [*reductions.left(chosen, left), *left]
        elif group is None:
            yield rest.pop(0)
        else:
            yield from early
            yield group
            rest = left


def _candidates(ops: list[Op]) -> tuple[list[Op], list[Op], list[Op]]:
    """Divide `ops` into (early, candidates, rest), to find the next group of operations to fuse.

    Candidates are elementwise operations, reductions, selects and casts to another type. Early operations are reads,
    constants and broadcasts that use no candidate's result; they may run before the group. The rest is the first
    operation that is neither, and all operations behind it. A cast to the same type belongs to the rest, but ends the
    group only if an operation that uses its result follows.
    """
    early: list[Op] = []
    chosen: list[Op] = []
    late: list[Op] = []
    results: set[Value] = set()
    for place, op in enumerate(ops):
        waits = any(v in other.results for other in late for v in op.operands)
        if _is_cast_to_same_type(op):
            late.append(op)
        elif op.name in _BY_ROWS and not waits:
            chosen.append(op)
            results |= set(op.results)
        elif op.name in _EARLY and not waits and results.isdisjoint(op.operands):
            early.append(op)
        else:
            return early, chosen, [*late, *ops[place:]]
    return early, chosen, late


def _is_cast_to_same_type(op: Op) -> bool:
    """True if `op` is a cast to the element type that its operand already has."""
    return op.name == "cast" and op.operands[0].type.dtype is op.results[0].type.dtype


def _group(
    low: Lowering, early: list[Op], ops: list[Op], after: list[Op], around: frozenset[Value]
) -> FusedRows | None:
    """Return `ops` as one FusedRows (one loop over rows); None if they are not to be fused.

    They are fused if the L1 cache cannot hold their values for all rows at once. There are further conditions:

    - the machine is a CPU;
    - the operations are in no conditional on data, while loop or loop with data-dependent limits;
    - there is a reduction, and each reduction accumulates in its result's own type;
    - all sizes are numbers other than 0;
    - all results share a dimension longer than 1 that none reduces: the rows.

    `at_once` is a power of two for which L1 holds the values. If memory is contiguous from row to row, and L1 holds
    less than a vector of rows, it is the number of rows in a cache line. `early` are the operations in front of the
    group, `after` those behind it, `around` the results of all operations of the block.
    """
    scope = low.scope
    machine, reductions = low.machine, [op for op in ops if op.name in REDUCTIONS]
    if machine.lanes is not None or scope.masks or scope.bases or scope.ends or scope.walking:
        return None
    values = {v for op in ops for v in (*op.operands, *op.results)}
    dims = {d for v in values for d in v.type.dims}
    reduced = {op.attrs["dim"] for op in reductions}
    reduced_types = [v.type for op in reductions for v in op.results]
    if not reductions or any(t.dtype.accumulator is not t.dtype for t in reduced_types):
        return None
    if not all(isinstance(d, Symbol) and scope.is_known(d) for d in dims) or any(scope.part(d)[1] == 0 for d in dims):
        return None
    wide = {d: width for d in dims if isinstance(width := scope.part(d)[1], int)}
    if len(wide) < len(dims):
        return None
    common_dims = [
        d for d in reduced_types[0].dims if wide[d] > 1 and d not in reduced and all(d in t.dims for t in reduced_types)
    ]
    if not common_dims or any(common_dims[-1] not in v.type.dims for op in ops for v in op.results):
        return None
    row = common_dims[-1]

    def held(kind: TileType) -> int:
        """Return the number of bytes of a tile of the type `kind` over the current parts of its dimensions."""
        return prod(wide[d] for d in kind.dims) * element_bytes(kind.dtype)

    largest = sum(sorted(held(v.type) for op in ops for v in op.results)[-3:])
    fitting = int(wide[row] * l1(machine.limits) / largest)
    results = {r for op in ops for r in op.results}
    given = [v for op in ops for v in op.operands if v not in results and not reduced.isdisjoint(v.type.dims)]
    adjacent = [v for v in given if row in dims_of_vectors(low, v, early)]
    line = max((machine.limits.line_bytes // element_bytes(v.type.dtype) for v in adjacent), default=1)
    vector = min(line, (machine.limits.vector_bytes or 0) // max(element_bytes(v.type.dtype) for v in results))
    at_once = line if fitting < vector else 1 << fitting.bit_length() - 1 if fitting else 1
    if max(fitting, at_once) >= wide[row]:
        return None
    later = frozenset(v for other in after for x in (other, *within(other)) for v in x.operands)
    return FusedRows(tuple(ops), row, at_once, later & results, around, later, fitting < vector)


def write(low: Lowering, group: FusedRows) -> None:
    """Emit the operations of a group in a loop over its rows, `group.at_once` rows an iteration, and a smaller last
    iteration.

    Results that operations outside the group use get tensors for all rows; `low.storage.env` gets their Tiles, and
    `low.storage.carried_tensors` their tensors.
    """
    storage = low.storage
    all_parts = {d: low.scope.part(d) for op in group.ops for v in op.results for d in v.type.dims}
    tensor_of: dict[Value, Value] = {}
    for op in group.ops:
        for value in group.outs.intersection(op.results):
            tensor_of[value] = _carried_tensor(low, op, value, all_parts) or _result_tensor(
                storage, group, op, all_parts, [*tensor_of.values()]
            )
    first, length = all_parts[group.row]

    def emit_rows(part: Part) -> None:
        """Emit all operations of the group for the rows in `part`, (first index, extent)."""
        with low.scope.at(group.row, part), low.nested():
            for value in group.given:
                storage.env[value] = _cut(storage.env[value], group.row, part)
            for op in group.ops:
                for value, tile in zip(op.results, low.lower(op), strict=True):
                    if value not in tensor_of:
                        storage.env[value] = kept(low, op, value, tile)
                        continue
                    current = {d: low.scope.part(d) for d in value.type.dims}
                    storage.put(tensor_of[value], value.type.dims, current, tile.formula, all_parts)
                    held = storage.held(tensor_of[value], value.type.dims, {d: all_parts[d] for d in value.type.dims})
                    storage.env[value] = _cut(held, group.row, part)

    assert isinstance(length, int)
    full, tail = divmod(length, group.at_once)
    with low.writer.loop("r", full) as r:
        emit_rows((first + group.at_once * r, group.at_once))
    if tail:
        emit_rows((first + group.at_once * full, tail))
    for value, tensor in tensor_of.items():
        storage.env[value] = storage.held(tensor, value.type.dims, {d: all_parts[d] for d in value.type.dims})
        storage.carried_tensors[value] = tensor


def _cut(tile: Tile, row: Expr, part: Part) -> Tile:
    """Return the tile with only `part`, (first index, extent), of the dimension `row`; unchanged if it does not have
    `row`.
    """
    return tile.over(tile.dims, {row: part}) if row in tile.dims else tile


def _carried_tensor(low: Lowering, op: Op, value: Value, all_parts: Parts) -> Value | None:
    """Return the tensor of an operand of `op`, recorded in `low.storage.carried_tensors`, that the result `value` can
    overwrite; None if there is none.

    The operand must be used by `op` alone, and its tensor must be in memory, with the dimensions, element type and
    extents of `value`. Always None for reductions. `all_parts` has the (first index, extent) of each dimension for all
    rows.
    """
    for operand in op.operands if op.name not in REDUCTIONS else ():
        tensor = low.storage.carried_tensors.get(operand)
        if tensor is None or len(low.users[operand]) != 1:
            continue
        if _holds_alike(low.storage, tensor, operand, value.type, all_parts):
            return tensor
    return None


def _holds_alike(storage: Storage, tensor: Value, holds: Value, kind: TileType, all_parts: Parts) -> bool:
    """True if `tensor`, which has the elements of the value `holds`, could have those of a value of type `kind`
    instead.

    The two values must have the same dimensions, element type and extents, and the tensor must be in memory, not in
    registers. `all_parts` has the (first index, extent) of each dimension for all rows.
    """
    if tensor in storage.sums or holds.type.dims != kind.dims or tensor.type.dtype is not kind.dtype:
        return False
    as_value = storage.held(tensor, kind.dims, {d: all_parts[d] for d in kind.dims})
    shape = tuple(as_expr(all_parts[d][1]) for d in kind.dims)
    return as_value.formula == storage.env[holds].formula and storage.room_of(tensor) == shape


def _result_tensor(storage: Storage, group: FusedRows, op: Op, all_parts: Parts, used: list[Value]) -> Value:
    """Return a tensor for the result of `op`, which operations outside the group use: that of an operand, or a new one.

    An operand's tensor is overwritten if it has the form of the result, no outer loop carries it, nothing uses it
    later, and `op` is no reduction; otherwise an allocation is emitted. `used` are tensors that other results have;
    `all_parts` has the (first index, extent) of each dimension for all rows.
    """
    (value,) = op.results
    kind: TileType = value.type
    for before in group.given if op.name not in REDUCTIONS else ():
        tensor = storage.carried_tensors.get(before)
        if tensor is None or tensor in used or not _holds_alike(storage, tensor, before, kind, all_parts):
            continue
        is_local = all(
            v in group.around for v, held in storage.carried_tensors.items() if held is tensor
        )  # no loop carries it
        if is_local and not _is_used_later(storage, group, op, tensor, before):
            return tensor
    shape = [all_parts[d][1] for d in kind.dims]
    return storage.writer.alloc(kind.dtype, shape, value.name if value.name and not value.name.isdigit() else "v")


def _is_used_later(storage: Storage, group: FusedRows, writer: Op, tensor: Value, holds: Value) -> bool:
    """True if the operation `writer` must not overwrite `tensor`, which holds the value `holds`, with its result.

    That is so if an operation behind `writer`, in the `group` or after it, still reads the tensor. It is also so if a
    value that the group uses reads the tensor at other coordinates than `holds`.
    """
    load, readers = storage.env[holds].formula.value, set[Value]()
    for value, tile in storage.env.items():
        tile_loads = [x for _, formula in (tile.accumulated, (None, tile.formula)) for x in loads(formula)]
        if any(x.tensor is tensor for x in tile_loads):
            readers.add(value)
            if value in group.later or (
                value in group.given and any(x.tensor is tensor and x != load for x in tile_loads)
            ):
                return True
    after = False
    for op in group.ops:
        reads_tensor = not readers.isdisjoint(op.operands)
        if after and reads_tensor:
            return True
        if reads_tensor and op.name not in REDUCTIONS and op is not writer:  # a lazy result: its users read the tensor
            readers |= set(op.results)
        after = after or op is writer
    return False
