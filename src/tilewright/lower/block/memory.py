"""Lowers reads, writes, atomics and logs: to loads, masked copies, gathers, scatters and atomics."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.algebra.expr import Expr, as_expr
from tilewright.algebra.expr_rules import minimum
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ExecutionError, ProgramError
from tilewright.ir import dtypes
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.core import Op, Program, TileType, Value
from tilewright.ir.formula import Formula
from tilewright.ir.tensors import TensorType
from tilewright.ir.tile import access_form
from tilewright.ir.tile_formulas import call
from tilewright.lower.block import dynamic_bounds, halo, in_place
from tilewright.lower.block.accesses import (
    TileAccess,
    access_of,
    bounds_marks,
    out_of_bounds_formula,
    ranges_out_of_bounds,
)
from tilewright.lower.block.lazy_tiles import Load, Parts, Tile, load
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.materialise import is_row_read_again
from tilewright.lower.block.reports import Log
from tilewright.lower.block.staged_stores import through_shared
from tilewright.lower.block.storage import Storage
from tilewright.lower.block.stores import Write, bounds_of
from tilewright.plan.boxes import WRITES

# -- what holds of arguments ------------------------------------------------------------------------------


def is_aliased(program: Program) -> bool:
    """True if some argument is read, and is also changed by an atomic, or by a write at other coordinates than a read.
    The order of operations then matters.
    """
    for arg in program.args:
        writes = [op for op in program.walk() if op.name in WRITES and op.operands[1] is arg]
        reads = [op for op in program.walk() if op.name == "read" and op.operands[0] is arg]
        if any(w.name != "write" or access_form(w) != access_form(r) for w in writes for r in reads):
            return True
    return False


# -- reading ----------------------------------------------------------------------------------------------


def read(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Lower a `read`; return (result tile,).

    If all elements are in bounds, the tile's formula loads from the argument itself. Otherwise a copy is emitted, and
    the tile loads from that: a masked copy, a halo tile (all that a sliding window covers, copied once) or a gather. An
    MMA that can skip elements out of bounds still loads from the argument. Elements in bounds are also copied if the
    program writes the argument, or if rows are read several times. A read that was hoisted out of a loop, or that a
    task has staged, emits nothing, and loads from that copy. A read of no elements emits nothing, and gives 0.

    Elements out of bounds become the attribute `otherwise`, as do elements past the limits in the attribute `bounds`.
    Without `otherwise`, only padding of the plan may be out of bounds: raise an ExecutionError for any other element,
    or a ProgramError if the sizes do not decide it. If it depends on data, on a conditional or on the workgroup, emit a
    check at run time instead.
    """
    storage = low.storage
    if op in low.task.operands:
        return (_task_operand(low, op),)
    source, *extra = op.operands
    kind: TileType = op.results[0].type
    parts = {d: low.scope.part(d) for d in kind.dims}
    if op in storage.early:
        return (storage.early[op].over(kind.dims, parts),)
    sizes = tuple(parts[d][1] for d in kind.dims)
    other = formulas.rounded(op.attrs.get("otherwise", 0), kind.dtype)
    if 0 in sizes:
        return (Tile(kind.dtype, kind.dims, parts, formulas.number(0, kind.dtype)),)
    access = access_of(low, op, source, kind.dims, tuple(extra))
    marks = bounds_marks(low.scope, access, storage.axes(kind.dims, parts)[1])
    only_in_padding = any(marks) and _is_only_in_padding(low, access)
    if any(marks) and "otherwise" not in op.attrs and not only_in_padding:
        if access.data or low.scope.masks or low.in_grid:
            _report(low, op, access, kind.dims, parts)
        else:
            worst = ranges_out_of_bounds(low.scope, access, kind.dims, marks)
            if worst:
                raise ExecutionError(
                    f"read leaves its tensor: its coordinates reach {', '.join(worst)}; say what lies outside with "
                    "read(..., otherwise=0)",
                    op.loc,
                )
            marks = tuple(False for _ in marks)
    formula = load(access.tensor, *access.at)
    if 0 in access.shape:
        formula = formulas.number(other, kind.dtype)
    elif access.data:
        formula = _gathered(storage, access, kind, parts, marks, other)
    elif low.bound.lane_box and (box := halo.window_of(low, access, kind.dims, parts)) is not None:
        formula = halo.windowed(low, access, box, kind.dims, parts, kind.dtype, other)
    elif only_in_padding and low.bound.packed and in_place.is_only_operand_b(low.users, op):
        pass  # packed panels have zeros past the end
    elif any(marks) and "bounds" not in op.attrs and in_place.is_read_in_place(low, op):
        storage.marks_of_load[Load(access.tensor, access.at)] = marks
    elif any(marks) and (box := halo.box_of(low, op, access, kind.dims, parts)) is not None:
        formula = halo.staged(low.writer, access, box, kind.dtype, other)
    elif any(marks):
        tensor = storage.room(kind.dtype, kind.dims, parts, f"{source.name}_part")
        over, images = storage.axes(kind.dims, parts, tensor)
        at = [(images(e), m) for e, m in zip(access.at, marks, strict=True)]
        if low.bound.unrolled_terms is None and tensor not in storage.sums:
            low.writer.copy(access.tensor, over, at, tensor, other)
        else:  # without splitting indices, so that elements stay distributed to lanes
            low.writer.emit("copy", (low.writer.view(access.tensor, over, at), tensor), otherwise=other)
        formula = storage.held(tensor, kind.dims, parts).formula
    elif access.tensor.type.role != "in" and source not in low.arguments.in_place:  # a write may follow: copy it now
        formula = storage.stored(Tile(kind.dtype, kind.dims, parts, formula), name=f"{source.name}_before").formula
    elif is_row_read_again(low, op):
        formula = storage.stored(Tile(kind.dtype, kind.dims, parts, formula), name=f"{source.name}_rows").formula
    condition = bounds_of(low, op, kind.dims)
    if condition is not None:
        formula = call("select", condition, formula, formulas.number(other, kind.dtype))
    return (Tile(kind.dtype, kind.dims, parts, formula),)


def _task_operand(low: Lowering, op: Op) -> Tile:
    """Return the lazy Tile of the read `op`, which reads operand A of an MMA in tile registers.

    It loads from rows that the task has staged (copied to its own memory), or from the argument in place. For a load in
    place, `low.storage.marks_of_load` gets which of its coordinates may be out of bounds.
    """
    kind: TileType = op.results[0].type
    parts = {d: low.scope.part(d) for d in kind.dims}
    source = low.task.operands[op]
    if source is None:
        access = access_of(low, op, op.operands[0], kind.dims, ())
        source = Load(access.tensor, access.at)
        low.storage.marks_of_load[source] = bounds_marks(low.scope, access, low.storage.axes(kind.dims, parts)[1])
    return Tile(kind.dtype, kind.dims, parts, load(source.tensor, *source.at))


def _is_only_in_padding(low: Lowering, access: TileAccess) -> bool:
    """True if an access is out of bounds only for rows or columns that the plan adds as padding; results there are
    never stored.

    False if the plan pads nothing, or if coordinates depend on data.
    """
    has_padding = low.plan.pipeline is not None or bool(low.bound.padded)
    sizes = {d: low.scope.size(d) for d in low.task.walks}
    images = Substitution(
        {
            low.scope.coordinate(d): walk.valid_position(size if isinstance(size := sizes[d], int) else None)
            for d, walk in low.task.walks.items()
        }
    )
    return has_padding and not access.data and not any(bounds_marks(low.scope, access, images))


def _gathered(
    storage: Storage, access: TileAccess, kind: TileType, parts: Parts, marks: tuple[bool, ...], other: float
) -> Formula:
    """Emit a gather of elements whose coordinates depend on data to a new tensor; return the formula that loads an
    element from that tensor.

    `kind` is the type of the result; `parts` is {its dimensions: (first index, extent)}. `marks` says for each
    coordinate of `access` whether it may be out of bounds; elements there get the value `other`.
    """
    sizes = tuple(parts[d][1] for d in kind.dims)
    over, images = storage.axes(kind.dims, parts)
    tensor = storage.writer.alloc(kind.dtype, sizes, f"{access.tensor.name}_part")
    storage.writer.emit(
        "gather",
        (
            storage.writer.part(tensor, sizes),
            access.tensor,
            *(index_load.tensor for index_load in access.data.values()),
        ),
        over=over,
        where=tuple((s, tuple(map(images, index_load.at))) for s, index_load in access.data.items()),
        at=tuple((images(e), m) for e, m in zip(access.at, marks, strict=True)),
        otherwise=other if any(marks) else None,
    )
    return storage.held(tensor, kind.dims, parts).formula


def _report(low: Lowering, op: Op, access: TileAccess, dims: tuple[Expr, ...], parts: Parts) -> None:
    """Emit a check that all elements of the read `op` are in bounds; if one is not, the call raises an error.

    `access` has the coordinates of the read, and `dims` are its dimensions; `parts` is {dimension: (first index,
    extent)}. Elements do not count where a conditional around the read is false, or past a data-dependent end.
    """
    out_of_bounds = out_of_bounds_formula(access)
    for mask in low.scope.masks:
        out_of_bounds = Formula(
            "and_", (out_of_bounds, dynamic_bounds.squeezed(low, mask, dims, "the condition", op).formula)
        )
    data_dependent = [d for d in dims if d in low.scope.ends]
    for d in data_dependent:
        out_of_bounds = Formula("and_", (out_of_bounds, dynamic_bounds.in_range(low.scope, d) or out_of_bounds))
    coordinates = [*access.at, *(e for index_load in access.data.values() for e in index_load.at)]
    used = {d for d in dims if any(low.scope.coordinate(d) in e.symbols for e in coordinates)}
    used |= {*data_dependent, *(d for mask in low.scope.masks for d in mask.dims)}
    over = tuple(d for d in dims if d in used)
    shape = " x ".join(map(str, access.shape))
    message = f"read leaves its tensor of {shape}; say what lies outside with read(..., otherwise=0)"
    low.reports.report(Tile(dtypes.bool_, over, {d: parts[d] for d in over}, out_of_bounds), message, op)


# -- writing ----------------------------------------------------------------------------------------------


def write(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Emit a `write`: a map or copy to memory, or a store through shared memory; return (), as it has no results.

    If coordinates or conditions depend on data, emit a scatter. Emit nothing if the tile or the memory has no elements.
    """
    to = Write(low, op)
    if to.empty:
        return ()
    if to.where:
        low.writer.emit("scatter", (to.tile(), *to.memory()), **to.attrs(to.over))
        return ()
    if low.plan.pipeline is not None and through_shared(low, to):
        return ()
    low.writer.map(to.target(), to.over, to.formula, to.images)
    return ()


def is_ordered(program: Program) -> bool:
    """True if the program must run as one task, in the program's order of operations.

    That is so in three cases: the old values of an atomic are used; an atomic has an element type for which no machine
    has an atomic instruction (floats of at most 8 bits, and i4); or an argument is read, and also changed by an atomic
    or by a write at other coordinates.
    """
    users = program.users()
    return is_aliased(program) or any(op.name in _STEPS and _is_loop_over_elements(users, op) for op in program.walk())


def _is_loop_over_elements(users: Mapping[Value, list[Op]], op: Op) -> bool:
    """True if the atomic `op` must be a loop over single elements: its old values are used, or no machine has an atomic
    instruction for its type.

    These types are floats of at most 8 bits, and i4. `users` is {value: the operations that use it}.
    """
    dtype = op.operands[1].type.dtype
    return op.result in users or (dtype.is_float and dtype.bits <= 8) or dtype is dtypes.i4


def atomic(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Emit the atomic `op`, which combines a tile with memory; return (result tile,).

    If something uses the result, or no machine has an atomic instruction for the type, a loop over single elements is
    emitted, and the result tile has the old elements of memory. Otherwise the result tile is the operand's tile. For a
    tile or memory without elements, nothing is emitted, and the result tile is the operand's tile too. Raise a
    ProgramError for bools.
    """
    if op.operands[1].type.dtype is dtypes.bool_:
        raise ProgramError(f"{op.name} of bools has no native form yet", op.loc)
    to = Write(low, op)
    if to.empty:
        return (low.storage.env[op.operands[0]],)
    if _is_loop_over_elements(low.users, op):
        return (_in_order(low.storage, op, to),)
    low.writer.emit("atomic", (to.tile(), *to.memory()), how=op.name.removeprefix("atomic_"), **to.attrs(to.over))
    return (low.storage.env[op.operands[0]],)


_STEPS = {"atomic_add": "add", "atomic_min": "minimum", "atomic_max": "maximum"}


def _in_order(storage: Storage, op: Op, write: Write) -> Tile:
    """Emit the atomic `op` as a loop over single elements (gather, combine, scatter); return the Tile of the old
    elements of memory.

    `write` has the elements and their coordinates in memory. Only one task may run this loop.
    """
    values = write.tile()
    before = storage.writer.alloc(write.dtype, write.sizes, "before")
    after = storage.writer.alloc(write.dtype, [1] * len(write.sizes), "after")
    over = storage.writer.axes([1] * len(write.sizes))

    def nest(known: tuple[Expr, ...]) -> None:
        """Emit the remaining loops inside those whose variables are `known`, and the body in the innermost."""
        if len(known) < len(write.sizes):
            with storage.writer.loop("e", write.sizes[len(known)]) as e:
                nest((*known, e))
            return
        here = [e + i for e, i in zip(known, over, strict=True)]
        images = Substitution(dict(zip(write.over, here, strict=True)))
        old, new = (storage.writer.view(t, over, [(e, False) for e in here]) for t in (before, values))
        attrs = write.attrs(over, images)
        storage.writer.emit("gather", (old, *write.memory()), otherwise=0 if any(write.marks) else None, **attrs)
        formula = Formula(_STEPS[op.name], (Formula.operand(1), Formula.operand(2)))
        storage.writer.emit("map", (after, old, new), formula=formula)
        storage.writer.emit("scatter", (after, *write.memory()), **attrs)

    nest(())
    return storage.held(before, write.dims, write.parts)


# -- looking ----------------------------------------------------------------------------------------------


def debug_log(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Emit a `debug_log`: a store of its tile to an extra argument of the block program; return (), as it has no
    results.

    The first debug_log of a label adds its argument to `low.reports.logs`. In loops, the argument has a slot for each
    iteration; iterations after the expected number overwrite the last slot. Nothing is emitted if the caller asked for
    no logs, or if the tile has no elements. Raise a ProgramError inside a conditional on data.
    """
    scope = low.scope
    if low.reports.logs is None:
        return ()
    if scope.masks:
        raise ProgramError("debug_log inside a conditional has no native form yet", op.loc)

    tile = low.storage.env[op.operands[0]]
    label, dims = op.attrs["label"], op.attrs.get("to", tile.dims)
    counts = [(axis, scope.number(count)) for axis, count in op.attrs.get("iterations", ())]
    if label not in low.reports.logs:
        shape = (*(count for _, count in counts), *map(scope.number, dims))
        log = Log(label, shape, tile.dtype, tuple(op.attrs.get("names", ())) if counts else ())
        kind = TensorType("global", tile.dtype, tuple(map(as_expr, shape)), role="inout")
        low.reports.logs[label] = log, Value(kind, low.writer.fresh(f"log_{len(low.reports.logs)}"))
    log, value = low.reports.logs[label]
    if 0 in tile.sizes or 0 in log.shape:
        return ()
    slot = [minimum(low.reports.iteration.get(axis, as_expr(0)), as_expr(count - 1)) for axis, count in counts]
    at: list[Expr] = [scope.coordinate(d) for d in dims]
    if "at" in op.attrs:
        images = Substitution({i: scope.coordinate(d) for i, d in zip(op.attrs["over"], tile.dims, strict=True)})
        at = [images(scope.expr(e)) for e in op.attrs["at"]]
    access = TileAccess(value, log.shape, (*slot, *at), {})
    over, moved = low.storage.axes(tile.dims, tile.parts)
    places = [(moved(e), mark) for e, mark in zip(access.at, bounds_marks(scope, access, moved), strict=True)]
    low.writer.map(low.writer.view(value, over, places), over, tile.formula, moved)
    return ()
