"""The block level: where things live and who does them; the program of one workgroup.

A program's header names a `machine` (whose atoms it uses), `param`eters that are bound when it is compiled or, with a
range (`param M in 1..65536`), when it is called, `let`s, and what it `require`s of its parameters. `cluster 2` makes
pairs of workgroups that run at the same time, and may share what they bring; `launch programmatic` lets a launch begin
while the one before it ends.
Its arguments are tensors in global memory. Operations are a closed list:

| operation | means |
|---|---|
| `%t = alloc TYPE` | memory or registers, not initialised; for the worker, or for the task it stands in |
| `%v = view %t (i 16) -> [p + i ?]` | element (i) is element (p + i) of %t; marked ?, it may lie outside |
| `%b = bitcast %t f32` | the same bits as another element type of the same width |
| `let m = t//4` | a name for a number |
| `fill %t 0` | every element becomes the number |
| `copy %a -> %b` | elements of %a become those of %b; `else` stands for those outside, `stream` and `by` say how |
| `copy %a -> %b by ATOM multicast` | all workgroups of a cluster copy the same: each brings a part, for all of them |
| `mma %c += %a * %b using ATOM` | the product of matrices is added; `skip` leaves out factors that lie outside |
| `map %d = FORMULA` | element by element; `over (i 8)` names coordinates for the formula |
| `map %d = select(C, FORMULA, %d) rare` | where C holds, which is seldom: waves in which it holds nowhere pass it by |
| `reduce %a -> %r along 1 with max` | combines a dimension; tuples with formulas of a0, a1, ..., b0, b1, ... |
| `scan %a -> %r along 1 with sum` | running combination |
| `broadcast %r -> %a along 1` | repeats along a dimension |
| `convert_layout %a -> %b` | from one distribution over registers to another: the only way between two |
| `gather`, `scatter`, `atomic` | elements at places that are data |
| `for`, `while`, `if` | loops and branches that all threads take alike; `overlap defer` with `finally` |
| `tasks` | the worker's share of all tasks; `schedule` says which: `table of %deal` reads it from an argument |
| `role NAME waves N` | who does what |
| `channel`, `acquire`, `commit`, `wait`, `release` | stages of memory handed from role to role |
| `barrier` | all waves of the role meet |
| `edge` | changes nothing; what is named, `edge of %early`, is computed before it, and waits after it stay there |
| `debug_log "label" %t` | shows a tensor |
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
    """The type of an operand, which must be a tensor."""
    if place >= len(op.operands):
        raise ProgramError(f"{op.name} takes more than {len(op.operands)} operands")
    found = op.operands[place].type
    if not isinstance(found, TensorType | RegisterType):
        raise ProgramError(f"operand {place} of {op.name} is a {found}, not a tensor")
    return found


def shape_text(shape: tuple[Expr, ...]) -> str:
    """A shape as it is printed."""
    return "(" + ", ".join(map(str, shape)) + ")"


def _same_shape(op: Op, a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape:
        raise DimensionMismatch(f"{op.name}: the shapes {shape_text(a.shape)} and {shape_text(b.shape)} differ")


def _same_dtype(op: Op, a: Tensor, b: Tensor) -> None:
    if a.dtype is not b.dtype:
        raise DtypeMismatch(f"{op.name}: {a.dtype} and {b.dtype} differ; convert by map, as in map %d = {b.dtype}(%s)")


def _writable(op: Op, place: int) -> None:
    found = tensor(op, place)
    if isinstance(found, TensorType) and found.role == "in":
        name = op.operands[place].name
        raise ProgramError(f"{op.name} writes to %{name}, of an argument that is declared `in`: {found}")


def holds(op: Op, kind: DType, name: str) -> None:
    """That an attribute, where it is given, is a number of an element type."""
    value = op.attrs.get(name)
    if value is not None:
        try:
            kind.require(value)
        except DtypeMismatch as fault:
            raise DtypeMismatch(f"{op.name}: {fault.what}") from None


def no_arguments(op: Op, formula: Formula) -> None:
    """That a formula over operands has no names of arguments, as combining functions have."""
    for node in formula.walk():
        if node.name == "argument":
            raise ProgramError(f"{op.name}: {node.value} has no meaning here; operands are written %{node.value}")


def at_least_one(op: Op, what: str, count: Expr, most: Limit) -> None:
    """That a number, where it is known, is from 1 to a limit."""
    if isinstance(count, Const) and not 1 <= count.value <= most.most:
        raise ProgramError(f"{op.name}: {what} {shown(count.value)}: at least 1 is needed, and {most.rule}")


def _alloc(op: Op) -> tuple[Any, ...]:
    found = op.attrs["type"]
    if isinstance(found, TensorType):
        if found.space == "global" or found.role is not None:
            raise ProgramError("alloc makes shared memory or registers; global memory comes as an argument")
        if found.swizzle is None or all(isinstance(e, Const) for e in found.expressions()):
            room = found.room()
            if isinstance(room, Const) and SHARED.refuses(room.value * found.dtype.bits // 8):
                raise ProgramError(f"alloc {found}: it takes {shown(room.value)} elements; {SHARED.rule}")
    elif found.distribution is None:
        raise ProgramError("alloc of registers needs a distribution: by LAYOUT, or as ATOM.a, .b or .c")
    return (found,)


def _view(op: Op) -> tuple[Any, ...]:
    base, shape = tensor(op, 0), tuple(s.upper + 1 for s in op.attrs["over"])
    if len(op.attrs["at"]) != len(base.shape):
        raise DimensionMismatch(f"view: {len(op.attrs['at'])} coordinates for {len(base.shape)} dimensions of {base}")
    if isinstance(base, RegisterType):
        if any(loose for _, loose in op.attrs["at"]):
            raise ProgramError("view of registers: no coordinate may lie outside")
        return (RegisterType(base.dtype, shape),)
    return (TensorType(base.space, base.dtype, shape, role=base.role),)


def _bitcast(op: Op) -> tuple[Any, ...]:
    base, to = tensor(op, 0), op.attrs["dtype"]
    if to.bits != base.dtype.bits:
        raise DtypeMismatch(f"bitcast of {base.dtype} to {to}: both must have {base.dtype.bits} bits")
    if isinstance(base, RegisterType):
        return (RegisterType(to, base.shape, base.distribution),)
    return (TensorType(base.space, to, base.shape, base.strides, base.swizzle, base.role),)


def _copy(op: Op) -> tuple[Any, ...]:
    source, target = tensor(op, 0), tensor(op, 1)
    _same_shape(op, source, target)
    _same_dtype(op, source, target)
    _writable(op, 1)
    holds(op, target.dtype, "otherwise")
    return ()


def _fill(op: Op) -> tuple[Any, ...]:
    _writable(op, 0)
    holds(op, tensor(op, 0).dtype, "value")
    return ()


def _mma(op: Op) -> tuple[Any, ...]:
    c, a, b = (tensor(op, i) for i in range(3))
    for found, what in ((c, "the sum"), (a, "the first factor"), (b, "the second factor")):
        if len(found.shape) != 2:
            raise DimensionMismatch(f"mma: {what} has {len(found.shape)} dimensions; all three are matrices")
    if not isinstance(c, RegisterType):
        raise ProgramError("mma: the sum must be in registers")
    if (a.shape[0], b.shape[1], a.shape[1]) != (c.shape[0], c.shape[1], b.shape[0]):
        raise DimensionMismatch(
            f"mma: {shape_text(a.shape)} times {shape_text(b.shape)} does not give {shape_text(c.shape)}"
        )
    return ()


def _map(op: Op) -> tuple[Any, ...]:
    target = tensor(op, 0)
    for place in range(1, len(op.operands)):
        _same_shape(op, target, tensor(op, place))
    over = op.attrs.get("over")
    if over is not None and tuple(s.upper + 1 for s in over) != target.shape:
        raise DimensionMismatch(f"map: the coordinates do not run over {shape_text(target.shape)}")
    formula: Formula = op.attrs["formula"]
    no_arguments(op, formula)
    found = formula.gives(lambda leaf: tensor(op, leaf.value).dtype, target.dtype)
    if found is not target.dtype:
        raise DtypeMismatch(
            f"map: the formula gives {found}, %{op.operands[0].name} holds {target.dtype}; convert: {target.dtype}(...)"
        )
    _writable(op, 0)
    rarely(op, formula)
    return ()


def rarely(op: Op, formula: Formula) -> None:
    """That a formula which is marked `rare` leaves elements as they are where its condition does not hold."""
    if not op.attrs.get("rare"):
        return
    kept = formula.parts[2] if formula.name == "select" else None
    if kept is None or kept.name != "operand" or op.operands[kept.value] is not op.operands[0]:
        raise ProgramError(
            f"{op.name} rare: the formula is {formula.name}; write select(condition, new, old), where old is the target"
        )


def _halves(op: Op) -> tuple[list[Tensor], list[Tensor]]:
    half = len(op.operands) // 2
    if not half or len(op.operands) != 2 * half:
        raise ProgramError(f"{op.name} takes as many targets as sources")
    return [tensor(op, i) for i in range(half)], [tensor(op, half + i) for i in range(half)]


def _combining(op: Op) -> tuple[list[Tensor], list[Tensor]]:
    """The checks that `reduce` and `scan` share."""
    sources, targets = _halves(op)
    along, how = op.attrs["along"], op.attrs["with"]
    for source, target in zip(sources, targets, strict=True):
        _same_shape(op, sources[0], source)
        _same_dtype(op, source, target)
    if not 0 <= along < len(sources[0].shape):
        raise DimensionMismatch(f"{op.name} along {along}: there are {len(sources[0].shape)} dimensions, from 0")
    if sources[0].shape[along] == ZERO:
        raise DimensionMismatch(
            f"{op.name} along {along}: {shape_text(sources[0].shape)} has the extent 0 there, nothing to combine"
        )
    for place in range(len(sources), 2 * len(sources)):
        _writable(op, place)
    if isinstance(how, str):
        if how not in COMBINE or len(sources) != 1:
            raise ProgramError(
                f"{op.name} with {how}: one tensor with {', '.join(COMBINE)}, or formulas in parentheses"
            )
    else:
        if len(how) != len(sources):
            raise ProgramError(f"{op.name}: {len(how)} formulas for {len(sources)} tensors")
        known = {f"{side}{i}": t.dtype for side in "ab" for i, t in enumerate(sources)}
        for formula, source in zip(how, sources, strict=True):
            for node in formula.walk():
                if node.name == "operand" or (node.name == "argument" and node.value not in known):
                    raise ProgramError(f"{op.name}: a combining formula is over {', '.join(sorted(known))}")
            found = formula.gives(lambda leaf: known[leaf.value], source.dtype)
            if found is not source.dtype:
                raise DtypeMismatch(f"{op.name}: the formula gives {found}, not {source.dtype}")
    return sources, targets


def _reduce(op: Op) -> tuple[Any, ...]:
    sources, targets = _combining(op)
    along = op.attrs["along"]
    wanted = sources[0].shape[:along] + sources[0].shape[along + 1 :]
    for target in targets:
        if target.shape != wanted:
            raise DimensionMismatch(f"reduce along {along} gives {shape_text(wanted)}, not {shape_text(target.shape)}")
    return ()


def _scan(op: Op) -> tuple[Any, ...]:
    sources, targets = _combining(op)
    for target in targets:
        _same_shape(op, sources[0], target)
    if op.attrs.get("exclusive") and not isinstance(op.attrs["with"], str):
        raise ProgramError("scan exclusive: only with sum, max, min and prod, which have a first value")
    return ()


def _broadcast(op: Op) -> tuple[Any, ...]:
    source, target = tensor(op, 0), tensor(op, 1)
    along = op.attrs["along"]
    if not 0 <= along < len(target.shape) or target.shape[:along] + target.shape[along + 1 :] != source.shape:
        raise DimensionMismatch(
            f"broadcast of {shape_text(source.shape)} along {along} does not give {shape_text(target.shape)}"
        )
    _same_dtype(op, source, target)
    _writable(op, 1)
    return ()


def _convert_layout(op: Op) -> tuple[Any, ...]:
    source, target = tensor(op, 0), tensor(op, 1)
    if not isinstance(source, RegisterType) or not isinstance(target, RegisterType):
        raise ProgramError("convert_layout is between registers; copy moves between registers and memory")
    return _copy(op)


def _placed(op: Op) -> tuple[Any, ...]:
    """Gather, scatter, atomic: the tile and the tensor whose places are data."""
    tile, memory = tensor(op, 0), tensor(op, 1)
    if tuple(s.upper + 1 for s in op.attrs["over"]) != tile.shape:
        raise DimensionMismatch(f"{op.name}: the coordinates do not run over {shape_text(tile.shape)}")
    if len(op.attrs["at"]) != len(memory.shape):
        raise DimensionMismatch(f"{op.name}: {len(op.attrs['at'])} coordinates for {memory}")
    if isinstance(memory, RegisterType):
        raise ProgramError(f"{op.name}: places that are data lie in memory, not in registers")
    if op.name == "atomic" and op.attrs["how"] not in ATOMICS:
        raise ProgramError(f"atomic {op.attrs['how']}: there are {', '.join(ATOMICS)}")
    _same_dtype(op, tile, memory)
    holds(op, tile.dtype, "otherwise")
    _writable(op, 0 if op.name == "gather" else 1)
    for (_, at), value in zip(op.attrs.get("where", ()), op.operands[2:], strict=True):
        found = value.type
        if not isinstance(found, TensorType | RegisterType) or found.dtype.is_float or len(found.shape) != len(at):
            raise ProgramError(f"{op.name}: a place is an element of a tensor of integers, not of {found}")
    return ()


def _edge(op: Op) -> tuple[Any, ...]:
    if not all(isinstance(v.type, RegisterType) for v in op.operands):
        raise ProgramError("edge: what is computed before it is in registers")
    return ()


def _loop(op: Op) -> tuple[Any, ...]:
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
        _table(op)
    return ()


def _table(op: Op) -> None:
    """A table that deals tasks out is an argument: a row for a worker, numbers of tasks in it."""
    if op.attrs.get("schedule") != "table":
        if op.operands:
            raise ProgramError("tasks: only `schedule table` takes a tensor: schedule table of %deal")
        return
    if len(op.operands) != 1:
        raise ProgramError(f"schedule table is of one tensor, not {len(op.operands)}: schedule table of %deal")
    found = op.operands[0].type
    fits = isinstance(found, TensorType) and found.space == "global" and found.role == "in" and len(found.shape) == 2
    if not fits or found.dtype is not i32:
        raise ProgramError(
            f"schedule table: %{op.operands[0].name} is {found}, not an argument `in global i32` (rows, tasks)"
        )


def _while(op: Op) -> tuple[Any, ...]:
    found = tensor(op, 0)
    if found.shape or found.dtype.is_float:
        raise ProgramError(f"while takes a single integer or bool in registers, not {found}")
    return ()


def _channel(op: Op) -> tuple[Any, ...]:
    count = op.attrs["stages"]
    at_least_one(op, "stages", count, WAVES)
    if op.attrs.get("apart") and op.attrs["producer"] != op.attrs["consumer"]:
        raise ProgramError("channel apart: groups of one role hand over parts of their own to themselves alone")
    stages = []
    for place in range(len(op.operands)):
        found = tensor(op, place)
        if not isinstance(found, TensorType) or found.space != "shared":
            raise ProgramError(f"channel: operand {place} is {found}; stages live in shared memory")
        if not found.shape or found.shape[0] != count:
            raise DimensionMismatch(f"channel: the first dimension of {found} is not the number of stages, {count}")
        stages.append(TensorType(found.space, found.dtype, found.shape[1:]))
    return (ChannelType(tuple(stages), count),)


def channel_type(op: Op) -> ChannelType:
    """The type of the channel that an operation works on."""
    found = op.operands[0].type
    if not isinstance(found, ChannelType):
        raise ProgramError(f"{op.name} takes a channel, not {found}")
    return found


def _stage(op: Op) -> tuple[Any, ...]:
    return channel_type(op).stages


def _handed(op: Op) -> tuple[Any, ...]:
    channel_type(op)
    return ()


def _nothing(op: Op) -> tuple[Any, ...]:
    return ()


def role(op: Op) -> tuple[Any, ...]:
    """What holds of every role."""
    at_least_one(op, "waves", op.attrs["waves"], WAVES)
    return ()


def _waves(op: Op) -> None:
    at_least_one(op, "count", op.attrs["count"], WAVES)


def _launch(op: Op) -> None:
    if op.attrs["how"] not in LAUNCHES:
        raise ProgramError(f"launch {op.attrs['how']}: there is {', '.join(LAUNCHES)}")


_PLACED = {"over": "axes", "where": "fetches?", "at": "places"}
_SPECS = (
    OpSpec("alloc", {"type": "type", "bytes": "count?"}, result_types=_alloc, notation="alloc {type}[ bytes {bytes}]"),
    OpSpec("view", {"over": "axes", "at": "places"}, result_types=_view, notation="view $0 {over} -> {at}"),
    OpSpec("bitcast", {"dtype": "dtype"}, result_types=_bitcast, notation="bitcast $0 {dtype}"),
    OpSpec("let", {"symbol": "definition"}, result_types=_nothing, notation="let {symbol}"),
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
        result_types=_placed,
        notation="gather $0 {over}, $1[ where {where}] -> {at}[ else {otherwise}]",
    ),
    OpSpec("scatter", _PLACED, result_types=_placed, notation="scatter $0 {over}, $1[ where {where}] -> {at}"),
    OpSpec(
        "atomic",
        {"how": "name", **_PLACED},
        result_types=_placed,
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
    OpSpec("if", {"when": "expr"}, blocks=2, result_types=_nothing, notation="if {when} {}[ else {}]"),
    OpSpec(
        "role",
        {"name": "name", "waves": "count", "registers": "count?"},
        blocks=1,
        result_types=role,
        notation="role {name} waves {waves}[ registers {registers}] {}",
    ),
    OpSpec(
        "channel",
        {"stages": "count", "producer": "name", "consumer": "name", "apart": "bool?"},
        result_types=_channel,
        notation="channel $* stages {stages} from {producer} to {consumer}[ ?apart]",
    ),
    OpSpec("acquire", result_types=_stage, notation="acquire $0"),
    OpSpec("commit", result_types=_handed, notation="commit $0"),
    OpSpec("wait", result_types=_stage, notation="wait $0"),
    OpSpec("release", result_types=_handed, notation="release $0"),
    OpSpec("barrier", result_types=_nothing, notation="barrier"),
    OpSpec("edge", result_types=_edge, notation="edge[ of $*]"),
    OpSpec("debug_log", {"label": "str"}, result_types=_nothing, notation="debug_log {label} $0"),
)

_RECORDS = (
    OpSpec("machine", {"name": "dotted"}, notation="machine {name}"),
    OpSpec("param", {"parameters": "parameters"}, notation="param {parameters}"),
    OpSpec("let", {"symbol": "definition"}, notation="let {symbol}"),
    OpSpec("require", {"that": "expr"}, notation="require {that}"),
    OpSpec("waves", {"count": "count"}, check=_waves, notation="waves {count}"),
    OpSpec("cluster", {"count": "count"}, check=_waves, notation="cluster {count}"),
    OpSpec("launch", {"how": "name"}, check=_launch, notation="launch {how}"),
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
    """The block program that the text prints.

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
