"""The block level: the program of one workgroup, with its memory, copies, products, tasks and roles.

A program's header names a `machine` (whose atoms it uses), `param`eters that are bound at compile time or, with a range
(`param M in 1..65536`), at each call, `let`s, and conditions on its parameters (`require`). `cluster 2` makes pairs of
workgroups that run at the same time and may share what they load. `launch programmatic` lets a launch begin before the
previous one has ended. Arguments are tensors in global memory. Operations are a closed list:

| operation | means |
|---|---|
| `%t = alloc TYPE` | uninitialised shared memory or registers, for the worker or for the surrounding task |
| `%v = view %t (i 16) -> [p + i ?]` | element (i) is element (p + i) of %t; ? marks one that may be out of bounds |
| `%b = bitcast %t f32` | the same bits as another element type of the same width |
| `let m = t//4` | a name for the value of an expression |
| `fill %t 0` | every element becomes the number |
| `copy %a -> %b` | copies %a to %b; `else` is the value of out-of-bounds elements, `by` the copy atom |
| `copy %a -> %b by ATOM multicast` | each workgroup of a cluster loads a part of the copy for all of them |
| `mma %c += %a * %b using ATOM` | matrix multiply-add; `skip` leaves out operands that are out of bounds |
| `map %d = FORMULA` | elementwise; `over (i 8)` names coordinates for the formula |
| `map %d = select(C, FORMULA, %d) rare` | C is seldom true: waves in which it is false everywhere skip it |
| `reduce %a -> %r along 1 with max` | reduces a dimension; several tensors by formulas of a0, a1, ..., b0, b1, ... |
| `scan %a -> %r along 1 with sum` | running sum, maximum, ... |
| `broadcast %r -> %a along 1` | repeats along a dimension |
| `convert_layout %a -> %b` | from one distribution over registers to another: the only way between two |
| `gather`, `scatter`, `atomic` | access to elements whose coordinates are data |
| `for`, `while`, `if` | uniform loops and branches; `overlap defer` with `finally` |
| `tasks` | a loop over the worker's share of all tasks, by `schedule`; `table of %deal` reads it from an argument |
| `role NAME waves N` | a part of the program for N waves of the workgroup |
| `channel`, `acquire`, `commit`, `wait`, `release` | stages of memory handed from role to role |
| `barrier` | barrier of all waves of the role |
| `edge` | a scheduling fence: `%early` of `edge of %early` is computed before it, and later waits stay after it |
| `debug_log "label" %t` | logs a tensor |
"""

from __future__ import annotations

from typing import Any

from tilewright.algebra.expr import ZERO, Const, Expr
from tilewright.errors import DimensionMismatch, DtypeMismatch, ProgramError
from tilewright.ir.core import Level, Op, OpSpec, Program
from tilewright.ir.dtypes import DType, i32
from tilewright.ir.formula import Formula
from tilewright.ir.parser import parse_program
from tilewright.ir.tensors import ChannelType, RegisterType, TensorType, read_type
from tilewright.limits import SHARED, WAVES, Limit, shown

Tensor = TensorType | RegisterType

COMBINE = ("sum", "max", "min", "prod")
SCHEDULES = ("strided", "contiguous", "dynamic", "table")
OVERLAPS = ("none", "defer", "pingpong", "turns")
ATOMICS = ("add", "min", "max")
LAUNCHES = ("programmatic",)


# -- checks ---------------------------------------------------------------------------------------------


def tensor(op: Op, place: int) -> Tensor:
    """Return the type (in memory or in registers) of operand number `place` of `op`, counted from 0.

    Raise ProgramError if the operation has too few operands, or if the operand is not a tensor.
    """
    if place >= len(op.operands):
        raise ProgramError(f"{op.name} takes more than {len(op.operands)} operands")
    type_ = op.operands[place].type
    if not isinstance(type_, TensorType | RegisterType):
        raise ProgramError(f"operand {place} of {op.name} is a {type_}, not a tensor")
    return type_


def shape_text(shape: tuple[Expr, ...]) -> str:
    """Return `shape`, a tuple of extents, as text such as `(M, 64)`."""
    return "(" + ", ".join(map(str, shape)) + ")"


def _check_same_shape(op: Op, a: Tensor, b: Tensor) -> None:
    """Raise DimensionMismatch if the tensor types `a` and `b` have different shapes; `op` is named in the message."""
    if a.shape != b.shape:
        raise DimensionMismatch(f"{op.name}: the shapes {shape_text(a.shape)} and {shape_text(b.shape)} differ")


def _check_same_dtype(op: Op, a: Tensor, b: Tensor) -> None:
    """Raise DtypeMismatch if the tensor types `a` and `b` have different element types; `op` is named in the
    message.
    """
    if a.dtype is not b.dtype:
        raise DtypeMismatch(f"{op.name}: {a.dtype} and {b.dtype} differ; convert by map, as in map %d = {b.dtype}(%s)")


def check_writable(op: Op, index: int) -> None:
    """Raise ProgramError if operand number `index` of `op`, which `op` writes, lies in an argument declared `in`."""
    type_ = tensor(op, index)
    if isinstance(type_, TensorType) and type_.role == "in":
        name = op.operands[index].name
        raise ProgramError(f"{op.name} writes to %{name}, of an argument that is declared `in`: {type_}")


def check_number(op: Op, kind: DType, name: str) -> None:
    """Raise DtypeMismatch if the attribute `name` of `op` is a number that the element type `kind` cannot represent.

    Do nothing if the operation lacks this attribute. A float type accepts every number.
    """
    value = op.attrs.get(name)
    if value is not None:
        try:
            kind.require(value)
        except DtypeMismatch as fault:
            raise DtypeMismatch(f"{op.name}: {fault.what}") from None


def check_no_arguments(op: Op, formula: Formula) -> None:
    """Raise ProgramError if `formula`, an attribute of `op`, contains a bare name such as `a0`.

    Bare names are the arguments of combining functions; only `reduce` and `scan` have them.
    """
    for node in formula.walk():
        if node.name == "argument":
            raise ProgramError(f"{op.name}: {node.value} has no meaning here; operands are written %{node.value}")


def check_count(op: Op, what: str, count: Expr, most: Limit) -> None:
    """Raise ProgramError if `count` is a constant below 1 or above the limit `most`; symbolic counts are not checked.

    For the message, `op` is the operation and `what` the name of the count.
    """
    if isinstance(count, Const) and not 1 <= count.value <= most.most:
        raise ProgramError(f"{op.name}: {what} {shown(count.value)}: at least 1 is needed, and {most.rule}")


def _alloc(op: Op) -> tuple[Any, ...]:
    """Check `op`, an `alloc`, and return a tuple of its one result type, which is its attribute `type`.

    That is shared memory or a register tensor. Raise ProgramError for global memory, for registers without a
    distribution, and for shared memory of a constant size beyond the limit.
    """
    type_ = op.attrs["type"]
    if isinstance(type_, TensorType):
        if type_.space == "global" or type_.role is not None:
            raise ProgramError("alloc makes shared memory or registers; global memory comes as an argument")
        if type_.swizzle is None or all(isinstance(e, Const) for e in type_.expressions()):
            room = type_.room()
            if isinstance(room, Const) and SHARED.refuses(room.value * type_.dtype.bits // 8):
                raise ProgramError(f"alloc {type_}: it takes {shown(room.value)} elements; {SHARED.rule}")
    elif type_.distribution is None:
        raise ProgramError("alloc of registers needs a distribution: by LAYOUT, or as ATOM.a, .b or .c")
    return (type_,)


def _view(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `view`, and return a tuple of its one result type: a tensor with the extents of the axes `over`.

    The tensor lies in the same memory as operand 0, the base; in registers it has no distribution. Raise
    DimensionMismatch unless there is one coordinate for each dimension of the base. Raise ProgramError if a coordinate
    of registers is marked `?` (may be out of bounds).
    """
    base, shape = tensor(op, 0), tuple(s.upper + 1 for s in op.attrs["over"])
    if len(op.attrs["at"]) != len(base.shape):
        raise DimensionMismatch(f"view: {len(op.attrs['at'])} coordinates for {len(base.shape)} dimensions of {base}")
    if isinstance(base, RegisterType):
        if any(may_leave for _, may_leave in op.attrs["at"]):
            raise ProgramError("view of registers: no coordinate may lie outside")
        return (RegisterType(base.dtype, shape),)
    return (TensorType(base.space, base.dtype, shape, role=base.role),)


def _bitcast(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `bitcast`, and return a tuple of its one result type: the operand's, with another element type.

    The new element type is the attribute `dtype`. Raise DtypeMismatch if the two element types differ in width.
    """
    base, to = tensor(op, 0), op.attrs["dtype"]
    if to.bits != base.dtype.bits:
        raise DtypeMismatch(f"bitcast of {base.dtype} to {to}: both must have {base.dtype.bits} bits")
    if isinstance(base, RegisterType):
        return (RegisterType(to, base.shape, base.distribution),)
    return (TensorType(base.space, to, base.shape, base.strides, base.swizzle, base.role),)


def _copy(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `copy` or `convert_layout`, and return (), since it has no results.

    Source and target must agree in shape and element type, the target must be writable, and the number after `else`
    must fit. Raise DimensionMismatch, DtypeMismatch or ProgramError.
    """
    source, target = tensor(op, 0), tensor(op, 1)
    _check_same_shape(op, source, target)
    _check_same_dtype(op, source, target)
    check_writable(op, 1)
    check_number(op, target.dtype, "otherwise")
    return ()


def _fill(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `fill`, and return (), since it has no results.

    Raise ProgramError if the target is an `in` argument, and DtypeMismatch if the number does not fit its element type.
    """
    check_writable(op, 0)
    check_number(op, tensor(op, 0).dtype, "value")
    return ()


def _mma(op: Op) -> tuple[Any, ...]:
    """Check `op`, an `mma %c += %a * %b`, and return (), since it has no results.

    C (M, N) must be in registers; A is (M, K), and B is (K, N). Raise ProgramError if C is not in registers, and
    DimensionMismatch if the shapes do not fit. Element types are not checked.
    """
    c, a, b = (tensor(op, i) for i in range(3))
    for type_, what in ((c, "the sum"), (a, "the first factor"), (b, "the second factor")):
        if len(type_.shape) != 2:
            raise DimensionMismatch(f"mma: {what} has {len(type_.shape)} dimensions; all three are matrices")
    if not isinstance(c, RegisterType):
        raise ProgramError("mma: the sum must be in registers")
    if (a.shape[0], b.shape[1], a.shape[1]) != (c.shape[0], c.shape[1], b.shape[0]):
        raise DimensionMismatch(
            f"mma: {shape_text(a.shape)} times {shape_text(b.shape)} does not give {shape_text(c.shape)}"
        )
    return ()


def _map(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `map`, and return (), since it has no results.

    All operands must have the target's shape, and the formula must compute the target's element type. Raise
    DimensionMismatch, DtypeMismatch or ProgramError; also if the target is an `in` argument, or `rare` is misused.
    """
    target = tensor(op, 0)
    for place in range(1, len(op.operands)):
        _check_same_shape(op, target, tensor(op, place))
    over = op.attrs.get("over")
    if over is not None and tuple(s.upper + 1 for s in over) != target.shape:
        raise DimensionMismatch(f"map: the coordinates do not run over {shape_text(target.shape)}")
    formula: Formula = op.attrs["formula"]
    check_no_arguments(op, formula)
    gives = formula.gives(lambda leaf: tensor(op, leaf.value).dtype, target.dtype)
    if gives is not target.dtype:
        raise DtypeMismatch(
            f"map: the formula gives {gives}, %{op.operands[0].name} holds {target.dtype}; convert: {target.dtype}(...)"
        )
    check_writable(op, 0)
    check_rare(op, formula)
    return ()


def check_rare(op: Op, formula: Formula) -> None:
    """Raise ProgramError if `op` is marked `rare` and `formula` is not `select(condition, new, old)` with the target as
    old.

    The target is operand 0. `rare` says that the condition is seldom true: a wave in which it is false everywhere may
    skip the operation. Do nothing for an operation without `rare`.
    """
    if not op.attrs.get("rare"):
        return
    old = formula.parts[2] if formula.name == "select" else None
    if old is None or old.name != "operand" or op.operands[old.value] is not op.operands[0]:
        raise ProgramError(
            f"{op.name} rare: the formula is {formula.name}; write select(condition, new, old), where old is the target"
        )


def _sources_and_targets(op: Op) -> tuple[list[Tensor], list[Tensor]]:
    """Return (types of the sources, types of the targets) of `op`: the first and the second half of its operands, as
    lists.

    Raise ProgramError if the number of operands is odd or 0.
    """
    half = len(op.operands) // 2
    if not half or len(op.operands) != 2 * half:
        raise ProgramError(f"{op.name} takes as many targets as sources")
    return [tensor(op, i) for i in range(half)], [tensor(op, half + i) for i in range(half)]


def _check_combining(op: Op) -> tuple[list[Tensor], list[Tensor]]:
    """Check the operands, dimension and combining function of `op`, a `reduce` or `scan`.

    Return (types of the sources, types of the targets) as two lists. The sources must agree in shape. Each target must
    have its source's element type and be writable. The dimension `along` must exist and not be empty. The combining
    function must be sum, max, min or prod, for one source, or one formula for each source. Raise DimensionMismatch,
    DtypeMismatch or ProgramError otherwise.
    """
    sources, targets = _sources_and_targets(op)
    along, combine = op.attrs["along"], op.attrs["with"]
    for source, target in zip(sources, targets, strict=True):
        _check_same_shape(op, sources[0], source)
        _check_same_dtype(op, source, target)
    if not 0 <= along < len(sources[0].shape):
        raise DimensionMismatch(f"{op.name} along {along}: there are {len(sources[0].shape)} dimensions, from 0")
    if sources[0].shape[along] == ZERO:
        raise DimensionMismatch(
            f"{op.name} along {along}: {shape_text(sources[0].shape)} has the extent 0 there, nothing to combine"
        )
    for place in range(len(sources), 2 * len(sources)):
        check_writable(op, place)
    if isinstance(combine, str):
        if combine not in COMBINE or len(sources) != 1:
            raise ProgramError(
                f"{op.name} with {combine}: one tensor with {', '.join(COMBINE)}, or formulas in parentheses"
            )
    else:
        if len(combine) != len(sources):
            raise ProgramError(f"{op.name}: {len(combine)} formulas for {len(sources)} tensors")
        known = {f"{side}{i}": t.dtype for side in "ab" for i, t in enumerate(sources)}
        for formula, source in zip(combine, sources, strict=True):
            for node in formula.walk():
                if node.name == "operand" or (node.name == "argument" and node.value not in known):
                    raise ProgramError(f"{op.name}: a combining formula is over {', '.join(sorted(known))}")
            computed = formula.gives(lambda leaf: known[leaf.value], source.dtype)
            if computed is not source.dtype:
                raise DtypeMismatch(f"{op.name}: the formula gives {computed}, not {source.dtype}")
    return sources, targets


def _reduce(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `reduce`, and return (), since it has no results.

    Raise DimensionMismatch unless each target has the sources' shape without the dimension that is the attribute
    `along`. Operands and combining function are checked too, as for `scan`.
    """
    sources, targets = _check_combining(op)
    along = op.attrs["along"]
    reduced = sources[0].shape[:along] + sources[0].shape[along + 1 :]
    for target in targets:
        if target.shape != reduced:
            raise DimensionMismatch(f"reduce along {along} gives {shape_text(reduced)}, not {shape_text(target.shape)}")
    return ()


def _scan(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `scan`, and return (), since it has no results.

    Operands and combining function are checked as for `reduce`. Raise DimensionMismatch unless each target has the
    sources' shape. Raise ProgramError if `exclusive` is set and the combining function is a formula: it must be one of
    the names sum, max, min and prod.
    """
    sources, targets = _check_combining(op)
    for target in targets:
        _check_same_shape(op, sources[0], target)
    if op.attrs.get("exclusive") and not isinstance(op.attrs["with"], str):
        raise ProgramError("scan exclusive: only with sum, max, min and prod, which have a first value")
    return ()


def _broadcast(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `broadcast`, and return (), since it has no results.

    The target must have the source's shape with one more dimension, at the position that is the attribute `along`, and
    the source's element type. Raise DimensionMismatch or DtypeMismatch, and ProgramError if the target is an `in`
    argument.
    """
    source, target = tensor(op, 0), tensor(op, 1)
    along = op.attrs["along"]
    if not 0 <= along < len(target.shape) or target.shape[:along] + target.shape[along + 1 :] != source.shape:
        raise DimensionMismatch(
            f"broadcast of {shape_text(source.shape)} along {along} does not give {shape_text(target.shape)}"
        )
    _check_same_dtype(op, source, target)
    check_writable(op, 1)
    return ()


def _convert_layout(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `convert_layout`, and return (), since it has no results.

    Raise ProgramError unless source and target are registers, and DimensionMismatch or DtypeMismatch unless they have
    one shape and element type.
    """
    source, target = tensor(op, 0), tensor(op, 1)
    if not isinstance(source, RegisterType) or not isinstance(target, RegisterType):
        raise ProgramError("convert_layout is between registers; copy moves between registers and memory")
    return _copy(op)


def _indexed_access(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `gather`, `scatter` or `atomic`, and return (), since it has no results.

    Its coordinates in memory are data. Operand 0 is the tile, operand 1 the memory; each further operand is a tensor
    from which a coordinate is read. Raise DimensionMismatch or DtypeMismatch if shapes or element types do not fit.
    Raise ProgramError for memory in registers, an unknown atomic operation, a written `in` argument, and coordinates
    that are not integers.
    """
    tile, memory = tensor(op, 0), tensor(op, 1)
    if tuple(s.upper + 1 for s in op.attrs["over"]) != tile.shape:
        raise DimensionMismatch(f"{op.name}: the coordinates do not run over {shape_text(tile.shape)}")
    if len(op.attrs["at"]) != len(memory.shape):
        raise DimensionMismatch(f"{op.name}: {len(op.attrs['at'])} coordinates for {memory}")
    if isinstance(memory, RegisterType):
        raise ProgramError(f"{op.name}: places that are data lie in memory, not in registers")
    if op.name == "atomic" and op.attrs["how"] not in ATOMICS:
        raise ProgramError(f"atomic {op.attrs['how']}: there are {', '.join(ATOMICS)}")
    _check_same_dtype(op, tile, memory)
    check_number(op, tile.dtype, "otherwise")
    check_writable(op, 0 if op.name == "gather" else 1)
    for (_, at), value in zip(op.attrs.get("where", ()), op.operands[2:], strict=True):
        type_ = value.type
        if not isinstance(type_, TensorType | RegisterType) or type_.dtype.is_float or len(type_.shape) != len(at):
            raise ProgramError(f"{op.name}: a place is an element of a tensor of integers, not of {type_}")
    return ()


def _edge(op: Op) -> tuple[Any, ...]:
    """Check `op`, an `edge` (a scheduling fence), and return (), since it has no results.

    Raise ProgramError unless all operands are in registers.
    """
    if not all(isinstance(v.type, RegisterType) for v in op.operands):
        raise ProgramError("edge: what is computed before it is in registers")
    return ()


def _loop(op: Op) -> tuple[Any, ...]:
    """Check the attributes of `op`, a `for` or `tasks` loop, and return (), since it has no results.

    Raise ProgramError for an unknown `overlap` (how iterations overlap in time) or `schedule` (order of tasks), for an
    `overlap` that does not fit the kind of loop, and for a wrong task table.
    """
    overlap = op.attrs.get("overlap", "none")
    if overlap not in OVERLAPS:
        raise ProgramError(f"overlap {overlap}: there are {', '.join(OVERLAPS)}")
    if overlap == "pingpong" and op.name != "tasks":
        raise ProgramError("overlap pingpong is for tasks: groups of waves take them in turn")
    if overlap == "turns" and (op.name != "for" or len(op.blocks) != 1):
        raise ProgramError("overlap turns is for loops of one block: groups of waves start its products in turn")
    if overlap == "defer" and len(op.blocks) != 2:
        raise ProgramError("overlap defer needs a `finally` block, the part that is deferred")
    if op.attrs.get("schedule", "strided") not in SCHEDULES:
        raise ProgramError(f"schedule {op.attrs['schedule']}: there are {', '.join(SCHEDULES)}")
    if op.name == "tasks":
        _check_task_table(op)
    return ()


def _check_task_table(op: Op) -> None:
    """Raise ProgramError unless `op`, a `tasks` loop, has one operand with `schedule table` and none with another
    schedule.

    The operand must be an argument `in global i32` of two dimensions. A row lists the numbers of the tasks that one
    worker executes.
    """
    if op.attrs.get("schedule") != "table":
        if op.operands:
            raise ProgramError("tasks: only `schedule table` takes a tensor: schedule table of %deal")
        return
    if len(op.operands) != 1:
        raise ProgramError(f"schedule table is of one tensor, not {len(op.operands)}: schedule table of %deal")
    type_ = op.operands[0].type
    fits = isinstance(type_, TensorType) and type_.space == "global" and type_.role == "in" and len(type_.shape) == 2
    if not fits or type_.dtype is not i32:
        raise ProgramError(
            f"schedule table: %{op.operands[0].name} is {type_}, not an argument `in global i32` (rows, tasks)"
        )


def _while(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `while`, and return (), since it has no results.

    Raise ProgramError unless the condition, operand 0, is a tensor without dimensions of integers or bools.
    """
    type_ = tensor(op, 0)
    if type_.shape or type_.dtype.is_float:
        raise ProgramError(f"while takes a single integer or bool in registers, not {type_}")
    return ()


def _channel(op: Op) -> tuple[Any, ...]:
    """Check `op`, which declares a `channel` (a ring of pipeline stages), and return a tuple of its one result type.

    Each operand is a shared tensor whose first extent must be the number of stages; the other dimensions are those of
    one stage. Raise ProgramError or DimensionMismatch if an operand or an attribute does not fit.
    """
    count = op.attrs["stages"]
    check_count(op, "stages", count, WAVES)
    if op.attrs.get("apart") and op.attrs["producer"] != op.attrs["consumer"]:
        raise ProgramError("channel apart: groups of one role hand over parts of their own to themselves alone")
    stages = []
    for place in range(len(op.operands)):
        type_ = tensor(op, place)
        if not isinstance(type_, TensorType) or type_.space != "shared":
            raise ProgramError(f"channel: operand {place} is {type_}; stages live in shared memory")
        if not type_.shape or type_.shape[0] != count:
            raise DimensionMismatch(f"channel: the first dimension of {type_} is not the number of stages, {count}")
        stages.append(TensorType(type_.space, type_.dtype, type_.shape[1:]))
    return (ChannelType(tuple(stages), count),)


def channel_type(op: Op) -> ChannelType:
    """Return the type of operand 0 of `op`; raise ProgramError unless it is a channel (a ring of pipeline stages)."""
    type_ = op.operands[0].type
    if not isinstance(type_, ChannelType):
        raise ProgramError(f"{op.name} takes a channel, not {type_}")
    return type_


def _stage_tensors(op: Op) -> tuple[Any, ...]:
    """Return the result types of `op`, an `acquire` or `wait`, as a tuple: one type for each tensor of one stage.

    Raise ProgramError unless operand 0 is a channel (a ring of pipeline stages).
    """
    return channel_type(op).stages


def _check_channel(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `commit` or `release`, and return (), since it has no results.

    Raise ProgramError unless operand 0 is a channel (a ring of pipeline stages).
    """
    channel_type(op)
    return ()


def _no_results(op: Op) -> tuple[Any, ...]:
    """Return (): the operation `op` has no results, and needs no check."""
    return ()


def check_role(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `role`, and return (), since it has no results.

    Raise ProgramError if its number of waves is a constant below 1 or above the limit.
    """
    check_count(op, "waves", op.attrs["waves"], WAVES)
    return ()


def _check_waves(op: Op) -> None:
    """Raise ProgramError if the count in `op`, a `waves` or `cluster` line of the header, is a constant out of range.

    A count is at least 1, and at most the limit `WAVES`.
    """
    check_count(op, "count", op.attrs["count"], WAVES)


def _check_launch(op: Op) -> None:
    """Raise ProgramError unless `op`, a `launch` line of the header, names a mode in `LAUNCHES`, such as
    `programmatic`.
    """
    if op.attrs["how"] not in LAUNCHES:
        raise ProgramError(f"launch {op.attrs['how']}: there is {', '.join(LAUNCHES)}")


_PLACED = {"over": "axes", "where": "fetches?", "at": "places"}
_SPECS = (
    OpSpec("alloc", {"type": "type", "bytes": "count?"}, result_types=_alloc, notation="alloc {type}[ bytes {bytes}]"),
    OpSpec("view", {"over": "axes", "at": "places"}, result_types=_view, notation="view $0 {over} -> {at}"),
    OpSpec("bitcast", {"dtype": "dtype"}, result_types=_bitcast, notation="bitcast $0 {dtype}"),
    OpSpec("let", {"symbol": "definition"}, result_types=_no_results, notation="let {symbol}"),
    OpSpec("fill", {"value": "number"}, result_types=_fill, notation="fill $0 {value}"),
    OpSpec(
        "copy",
        {"otherwise": "number?", "stream": "count?", "by": "dotted?", "multicast": "bool?"},
        result_types=_copy,
        notation="copy $0 -> $1[ else {otherwise}][ stream {stream}][ by {by}][ ?multicast]",
    ),
    OpSpec(
        "mma",
        {"atom": "dotted", "skip": "bool?"},
        result_types=_mma,
        notation="mma $0 += $1 * $2 using {atom}[ ?skip]",
    ),
    OpSpec(
        "map",
        {"over": "axes?", "formula": "formula", "stream": "count?", "rare": "bool?"},
        result_types=_map,
        notation="map[ over {over}] $0 = {formula}[ stream {stream}][ ?rare]",
    ),
    OpSpec(
        "reduce",
        {"along": "int", "with": "combine", "accumulate": "bool?"},
        result_types=_reduce,
        notation="reduce $< -> $> along {along} with {with}[ ?accumulate]",
    ),
    OpSpec(
        "scan",
        {"along": "int", "with": "combine", "exclusive": "bool?"},
        result_types=_scan,
        notation="scan $< -> $> along {along} with {with}[ ?exclusive]",
    ),
    OpSpec("broadcast", {"along": "int"}, result_types=_broadcast, notation="broadcast $0 -> $1 along {along}"),
    OpSpec("convert_layout", result_types=_convert_layout, notation="convert_layout $0 -> $1"),
    OpSpec(
        "gather",
        {**_PLACED, "otherwise": "number?"},
        result_types=_indexed_access,
        notation="gather $0 {over}, $1[ where {where}] -> {at}[ else {otherwise}]",
    ),
    OpSpec("scatter", _PLACED, result_types=_indexed_access, notation="scatter $0 {over}, $1[ where {where}] -> {at}"),
    OpSpec(
        "atomic",
        {"how": "name", **_PLACED},
        result_types=_indexed_access,
        notation="atomic {how} $0 {over}, $1[ where {where}] -> {at}",
    ),
    OpSpec(
        "for",
        {"ranges": "ranges", "unroll": "bool?", "peel": "exprs?", "overlap": "name?"},
        blocks=2,
        chained=True,
        result_types=_loop,
        notation="for {ranges}[ ?unroll][ peel {peel}][ overlap {overlap}] {}[ finally {}]",
    ),
    OpSpec(
        "tasks",
        {"ranges": "ranges", "schedule": "name?", "overlap": "name?"},
        blocks=2,
        chained=True,
        result_types=_loop,
        notation="tasks {ranges}[ schedule {schedule}][ of $*][ overlap {overlap}] {}[ finally {}]",
    ),
    OpSpec("while", blocks=1, result_types=_while, notation="while $0 {}"),
    OpSpec("if", {"when": "expr"}, blocks=2, result_types=_no_results, notation="if {when} {}[ else {}]"),
    OpSpec(
        "role",
        {"name": "name", "waves": "count", "registers": "count?"},
        blocks=1,
        result_types=check_role,
        notation="role {name} waves {waves}[ registers {registers}] {}",
    ),
    OpSpec(
        "channel",
        {"stages": "count", "producer": "name", "consumer": "name", "apart": "bool?"},
        result_types=_channel,
        notation="channel $* stages {stages} from {producer} to {consumer}[ ?apart]",
    ),
    OpSpec("acquire", result_types=_stage_tensors, notation="acquire $0"),
    OpSpec("commit", result_types=_check_channel, notation="commit $0"),
    OpSpec("wait", result_types=_stage_tensors, notation="wait $0"),
    OpSpec("release", result_types=_check_channel, notation="release $0"),
    OpSpec("barrier", result_types=_no_results, notation="barrier"),
    OpSpec("edge", result_types=_edge, notation="edge[ of $*]"),
    OpSpec("debug_log", {"label": "str"}, result_types=_no_results, notation="debug_log {label} $0"),
)

_RECORDS = (
    OpSpec("machine", {"name": "dotted"}, notation="machine {name}"),
    OpSpec("param", {"parameters": "parameters"}, notation="param {parameters}"),
    OpSpec("let", {"symbol": "definition"}, notation="let {symbol}"),
    OpSpec("require", {"that": "expr"}, notation="require {that}"),
    OpSpec("waves", {"count": "count"}, check=_check_waves, notation="waves {count}"),
    OpSpec("cluster", {"count": "count"}, check=_check_waves, notation="cluster {count}"),
    OpSpec("launch", {"how": "name"}, check=_check_launch, notation="launch {how}"),
)

BLOCK = Level(
    "block",
    {spec.name: spec for spec in _SPECS},
    {spec.name: spec for spec in _RECORDS},
    read_type=read_type,
    declares_symbols=False,
    after_ranges=("unroll", "peel", "overlap", "schedule"),
)


def parse_block(text: str) -> Program:
    """Parse `text`, which holds one block program, and return the program; raise ParseError or ProgramError if invalid.

    >>> text = '''block double(%x: in global f32 (M, N), %y: out global f32 (M, N))
    ...   param M = 4, N = 16
    ... {
    ...   tasks m in 0..M {
    ...     %row = view %x (j N) -> [m, j]
    ...     %to = view %y (j N) -> [m, j]
    ...     map %to = %row + %row
    ...   }
    ... }
    ... '''
    >>> str(parse_block(text)) == text
    True
    """
    return parse_program(text, {"block": BLOCK})
