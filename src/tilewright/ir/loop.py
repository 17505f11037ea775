"""The loop level: the instructions of one wave of one role: loops, addresses, vectors, predicates and atoms.

Memory is flat: an address is one offset in elements from the start of a buffer. A register is a vector of lanes, a tile
of rows, or a single number. Addresses and predicates are expressions of the loop variables and of the lane:

| operation | means |
|---|---|
| `%v = alloc vector f32 (16)` | a register, not initialised; `alloc shared f32 (1024)`: flat memory |
| `load %v (l 16) = %x[64*i + l]` | each lane loads its element; lanes with a false `if` get the `else` number |
| `store %v (l 16) -> %x[64*i + l]` | each lane stores its element; `stream` bypasses the caches |
| `prefetch %x[64*i]` | a hint: the element will be read, or written |
| `compute %v = %a*2 + %b` | elementwise arithmetic |
| `compute %v = select(%c, %a, %v) rare` | seldom true: waves in which the condition is false everywhere skip it |
| `shuffle %v (l 16) = %u[l ^ 1]` | each lane takes another lane's element |
| `transpose %a, %b, %c, %d unit 2` | transposes the matrix whose rows are the registers, in units of 2 elements |
| `reduce %v -> %s with sum` | reduces all lanes to one number |
| `atom tiles.bf16 %c += %a * %b` | a multiplication atom on its registers |
| `atomic add %s -> %x[i]` | atomic read-modify-write of memory |
| `fill %v 0` | every lane becomes the number |
| `read i in 0..9 = %s` | makes a number in a register available to addresses, as i |
| `%t = constant i32 (u 100) = (u//7)` | a table that is computed at compile time |
| `fetch i in 0..9 = %t[u]` | makes a number in memory available to addresses, as i |

Loops, branches, tasks, roles, channels and barriers are those of the block level; `role consumer waves 8 (w 8)` names
the wave. Operations for waves of many lanes (fragments, counting barriers, asynchronous copies and products) are in
`loop_waves`.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tilewright.algebra.expr import ONE, Const
from tilewright.algebra.expr_use import evaluate
from tilewright.errors import DimensionMismatch, DtypeMismatch, OutOfBoundsFault, ProgramError
from tilewright.ir import block as block_level
from tilewright.ir import loop_waves
from tilewright.ir.block import ATOMICS, COMBINE, shape_text
from tilewright.ir.core import Level, Op, OpSpec, Program
from tilewright.ir.dtypes import dtype
from tilewright.ir.loop_types import BarrierType, FragmentType, VectorType
from tilewright.ir.parser import Reader, parse_program
from tilewright.ir.tensors import TensorType, parsed
from tilewright.ir.tensors import read_type as read_tensor_type
from tilewright.limits import TABLE


def read_type(reader: Reader) -> VectorType | Any:
    """Parse a loop-level type from `reader` and return it: a vector, a fragment, a barrier, or a tensor in memory.

    Examples are `vector f32 (16)`, `fragment f32 (32, 4)`, `barrier (4) arrivals 8` and `shared f32 (1024)`. Raise
    ParseError if the type is not valid.
    """
    word = reader.peek_word()
    if word not in ("vector", "fragment", "barrier"):
        return read_tensor_type(reader)
    reader.word()
    if word == "barrier":
        return loop_waves.read_barrier(reader)
    reader.skip()
    start = reader.at
    try:
        element = dtype(reader.word("an element type"))
    except ProgramError as fault:
        raise reader.fail(str(fault), start) from None
    reader.expect("(")
    start = reader.at
    shape = reader.exprs(reader.enclosed(")"), start)
    kind = VectorType if word == "vector" else FragmentType
    return parsed(reader, start, lambda: kind(element, shape))


def _register_operand(op: Op, index: int) -> VectorType:
    """Return the type of operand number `index` of `op`; raise ProgramError unless it is a register (vector or
    fragment).
    """
    type_ = op.operands[index].type
    if not isinstance(type_, VectorType):
        raise ProgramError(f"operand {index} of {op.name} is {type_}, not a register")
    return type_


def _memory_operand(op: Op, index: int) -> TensorType:
    """Return the type of operand number `index` of `op`; raise ProgramError unless it is a tensor in memory."""
    type_ = op.operands[index].type
    if not isinstance(type_, TensorType):
        raise ProgramError(f"operand {index} of {op.name} is {type_}, not memory")
    return type_


def _alloc(op: Op) -> tuple[Any, ...]:
    """Check `op`, an `alloc`, and return a tuple of its one result type, which is its attribute `type`.

    Raise ProgramError unless the type is a register, an array of barriers, or shared memory without a role such as
    `in`.
    """
    type_ = op.attrs["type"]
    if isinstance(type_, TensorType) and (type_.space != "shared" or type_.role is not None):
        raise ProgramError("alloc makes shared memory or registers")
    if isinstance(type_, BarrierType):
        return (type_,)
    if not isinstance(type_, TensorType | VectorType):
        raise ProgramError(f"alloc of {type_}: registers of the loop level are vectors")
    return (type_,)


def _load_or_store(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `load` or `store` between a register and flat memory, and return (), since it has no results.

    Operand 0 is the register, operand 1 the memory. Raise DimensionMismatch if axes or offset do not fit the register,
    and DtypeMismatch if element types differ. Raise ProgramError for a store to an `in` argument, and for a load with
    `if` but without `else`, or the reverse.
    """
    vector, memory = _register_operand(op, 0), _memory_operand(op, 1)
    _check_axes(op, vector)
    if vector.dtype is not memory.dtype:
        raise DtypeMismatch(f"{op.name}: {vector.dtype} and {memory.dtype} differ")
    if op.name == "store":
        block_level.check_writable(op, 1)
    if op.name == "load" and ("when" in op.attrs) != ("otherwise" in op.attrs):
        raise ProgramError("load: `if` and `else` come together")
    block_level.check_number(op, vector.dtype, "otherwise")
    return ()


def _check_axes(op: Op, vector: VectorType) -> None:
    """Raise DimensionMismatch unless the axes `over` of `op` have the extents of the register type `vector`; without
    `over`, `vector` must be a scalar.

    Also raise it if `op` has several coordinates in memory: memory of the loop level is flat. `shuffle` is exempt,
    since its coordinates are in a register.
    """
    over = tuple(s.upper + 1 for s in op.attrs.get("over", ()))
    if over != vector.shape:
        raise DimensionMismatch(
            f"{op.name}: {shape_text(over)} does not run over the register's {shape_text(vector.shape)}"
        )
    if op.name != "shuffle" and len(op.attrs["at"]) != 1:
        raise DimensionMismatch(f"{op.name}: memory is flat here, a place is one number, not {len(op.attrs['at'])}")


def _prefetch(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `prefetch`, and return (), since it has no results. Raise ProgramError unless operand 0 is in
    memory.
    """
    _memory_operand(op, 0)
    return ()


def _compute(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `compute` (elementwise arithmetic on registers), and return (), since it has no results.

    The source registers must be scalars or have the target's shape, and the formula must compute the target's element
    type. Raise DimensionMismatch, DtypeMismatch or ProgramError; also if `rare` is misused.
    """
    target = _register_operand(op, 0)
    for place in range(1, len(op.operands)):
        if _register_operand(op, place).shape not in (target.shape, ()):
            raise DimensionMismatch(f"compute: {_register_operand(op, place)} and {target} differ")
    block_level.check_no_arguments(op, op.attrs["formula"])
    computed = op.attrs["formula"].gives(lambda leaf: _register_operand(op, leaf.value).dtype, target.dtype)
    block_level.check_rare(op, op.attrs["formula"])
    if computed is not target.dtype:
        raise DtypeMismatch(f"compute: the formula gives {computed}, %{op.operands[0].name} holds {target.dtype}")
    return ()


def _atomic(op: Op) -> tuple[Any, ...]:
    """Check `op`, an `atomic`, and return (), since it has no results. An `atomic` combines a register into memory.

    Operand 0 is the register, operand 1 the memory. Raise DimensionMismatch if axes or offset do not fit the register.
    Raise ProgramError unless the element types agree and `how` is add, min or max, and for an `in` argument.
    """
    value, memory = _register_operand(op, 0), _memory_operand(op, 1)
    _check_axes(op, value)
    block_level.check_writable(op, 1)
    if value.dtype is not memory.dtype or op.attrs["how"] not in ATOMICS:
        raise ProgramError(f"atomic: one {memory.dtype} with {', '.join(ATOMICS)}, not {value} with {op.attrs['how']}")
    return ()


def _shuffle(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `shuffle`, and return (), since it has no results. In a `shuffle`, each lane takes another lane's
    value.

    Operand 0 is the target, operand 1 the source. Raise DimensionMismatch or DtypeMismatch if they do not fit. For
    vectors, also raise ProgramError if the index of the source lane depends on anything but the target lane, and
    OutOfBoundsFault if a source lane does not exist.
    """
    target, source = _register_operand(op, 0), _register_operand(op, 1)
    _check_axes(op, target)
    if target.dtype is not source.dtype:
        raise DtypeMismatch(f"shuffle: {target.dtype} and {source.dtype} differ")
    if len(op.attrs["at"]) != len(source.shape):
        raise DimensionMismatch(f"shuffle: {len(op.attrs['at'])} places in {source}")
    if isinstance(target, FragmentType) and isinstance(source, FragmentType):
        return ()
    if len(target.shape) != 1 or len(source.shape) != 1:
        raise DimensionMismatch(f"shuffle: {target} of {source}: both are vectors of lanes")
    (lane,), (place,), (lanes,) = op.attrs["over"], op.attrs["at"], source.shape
    if not place.symbols <= {lane}:
        raise ProgramError(f"shuffle: which lane is taken, {place}, depends on more than the lane {lane.name}")
    if isinstance(lanes, Const) and isinstance(lane.upper, Const):
        for i in range(lane.upper.value + 1):
            source_lane = evaluate(place, {lane: i})
            if not 0 <= source_lane < lanes.value:
                raise OutOfBoundsFault(f"shuffle: lane {i} takes lane {source_lane} of {lanes}, as {place} says")
    return ()


def _transpose(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `transpose`, and return (), since it has no results.

    Its operands are the rows of a matrix, which is transposed in units of `unit` elements (an attribute). Raise
    ProgramError unless the operands are different vectors of one type, their number is a power of two from 2 on, and
    each holds an even number of units.
    """
    kinds = [_register_operand(op, n) for n in range(len(op.operands))]
    count, unit = len(kinds), int(op.attrs["unit"])
    if len({*kinds}) > 1 or len(set(op.operands)) < count or len(kinds[0].shape) != 1:
        raise ProgramError(f"transpose: different vectors of one type, not {', '.join(map(str, kinds))}")
    (lanes,) = kinds[0].shape
    if count < 2 or count & (count - 1) or unit < 1 or (isinstance(lanes, Const) and lanes.value % (2 * unit)):
        raise ProgramError(
            f"transpose: {count} vectors of {lanes} lanes, {unit} together: vectors are a power of two, from 2 on, and "
            "each has an even number of units"
        )
    return ()


def _reduce(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `reduce`, and return (), since it has no results. A `reduce` combines all lanes of a vector to a
    scalar.

    Raise ProgramError unless operand 0 is a vector, operand 1 is a scalar register of the same element type, and the
    attribute `with` is sum, max, min or prod.
    """
    source, target = _register_operand(op, 0), _register_operand(op, 1)
    mismatch = bool(target.shape) or len(source.shape) != 1
    if mismatch or source.dtype is not target.dtype or op.attrs["with"] not in COMBINE:
        raise ProgramError(
            f"reduce of {source} to {target}: a vector of lanes to one number of its type, with {', '.join(COMBINE)}"
        )
    return ()


def _fill(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `fill`, and return (), since it has no results.

    Raise ProgramError unless operand 0 is a register, and DtypeMismatch if the number does not fit its element type.
    """
    block_level.check_number(op, _register_operand(op, 0).dtype, "value")
    return ()


def _integer_register(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `read` or `while`, and return (), since it has no results.

    Raise ProgramError unless operand 0 is a register of integers or bools that is a scalar, or a fragment with one
    value in each lane.
    """
    type_ = _register_operand(op, 0)
    one = not type_.shape or (isinstance(type_, FragmentType) and type_.shape[1] == ONE)
    if not one or type_.dtype.is_float:
        raise ProgramError(f"{op.name} of {type_}: a single integer, or one in each lane")
    return ()


def _constant(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `constant` (a table computed at compile time), and return a tuple of its one result type.

    The type is `in global`, with the extents of the axes `over` and the element type `dtype`, both attributes. Raise
    ProgramError for a floating-point type or too many elements.
    """
    if op.attrs["dtype"].is_float:
        raise ProgramError("constant: a table holds integers")
    count = prod(s.hi + 1 for s in op.attrs["over"])
    if count > TABLE.most:
        shape = ", ".join(f"{s.name} {s.upper + 1}" for s in op.attrs["over"])
        raise ProgramError(f"constant ({shape}): {TABLE.rule}")
    return (TensorType("global", op.attrs["dtype"], tuple(s.upper + 1 for s in op.attrs["over"]), role="in"),)


def _fetch(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `fetch`, and return (), since it has no results. A `fetch` reads one integer from memory.

    Raise ProgramError unless operand 0 is a tensor of integers or bools in memory, and the attribute `at` is one flat
    offset.
    """
    if _memory_operand(op, 0).dtype.is_float or len(op.attrs["at"]) != 1:
        raise ProgramError(f"fetch takes one integer from memory, not from {op.operands[0].type}")
    return ()


def _while(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `while`, and return (), since it has no results.

    Raise ProgramError unless its condition, operand 0, is a register of integers or bools: a scalar, or a fragment with
    one value in each lane.
    """
    return _integer_register(op)


def _no_results(op: Op) -> tuple[Any, ...]:
    """Return (): the operation `op` has no results, and needs no check."""
    return ()


_SPECS = (
    OpSpec("alloc", {"type": "type"}, result_types=_alloc, notation="alloc {type}"),
    OpSpec(
        "load",
        {"over": "axes", "at": "exprs", "when": "expr?", "otherwise": "number?", "stream": "bool?"},
        result_types=_load_or_store,
        notation="load $0 {over} = $1{at}[ if {when}][ else {otherwise}][ ?stream]",
    ),
    OpSpec(
        "store",
        {"over": "axes", "at": "exprs", "when": "expr?", "stream": "bool?"},
        result_types=_load_or_store,
        notation="store $0 {over} -> $1{at}[ if {when}][ ?stream]",
    ),
    OpSpec("prefetch", {"at": "exprs", "write": "bool?"}, result_types=_prefetch, notation="prefetch $0{at}[ ?write]"),
    OpSpec(
        "compute",
        {"over": "axes?", "formula": "formula", "rare": "bool?"},
        result_types=_compute,
        notation="compute[ over {over}] $0 = {formula}[ ?rare]",
    ),
    OpSpec("shuffle", {"over": "axes", "at": "exprs"}, result_types=_shuffle, notation="shuffle $0 {over} = $1{at}"),
    OpSpec("transpose", {"unit": "count"}, result_types=_transpose, notation="transpose $* unit {unit}"),
    OpSpec(
        "atomic",
        {"how": "name", "over": "axes?", "at": "exprs", "when": "expr?"},
        result_types=_atomic,
        notation="atomic {how} $0[ {over}] -> $1{at}[ if {when}]",
    ),
    OpSpec("reduce", {"with": "name"}, result_types=_reduce, notation="reduce $0 -> $1 with {with}"),
    OpSpec("fill", {"value": "number"}, result_types=_fill, notation="fill $0 {value}"),
    OpSpec("read", {"symbol": "fetched"}, result_types=_integer_register, notation="read {symbol} = $0"),
    OpSpec(
        "constant",
        {"dtype": "dtype", "over": "axes", "value": "expr"},
        result_types=_constant,
        notation="constant {dtype} {over} = {value}",
    ),
    OpSpec("fetch", {"symbol": "fetched", "at": "exprs"}, result_types=_fetch, notation="fetch {symbol} = $0{at}"),
    OpSpec("while", blocks=1, result_types=_while, notation="while $0 {}"),
    OpSpec(
        "role",
        {"name": "name", "waves": "count", "over": "axes?", "registers": "count?"},
        blocks=1,
        result_types=block_level.check_role,
        notation="role {name} waves {waves}[ {over}][ registers {registers}] {}",
    ),
)
_SHARED = ("bitcast", "let", "for", "if", "channel", "acquire", "commit", "wait", "release")

LOOP = Level(
    "loop",
    {spec.name: spec for spec in (*_SPECS, *loop_waves.SPECS)} | {n: block_level.BLOCK.ops[n] for n in _SHARED},
    block_level.BLOCK.records,
    read_type=read_type,
    declares_symbols=False,
    after_ranges=(*block_level.BLOCK.after_ranges, "turn"),
)


def parse_loop(text: str) -> Program:
    """Parse `text`, which holds one loop program, and return the program; raise ParseError or ProgramError if invalid.

    >>> text = '''loop double(%x: in global f32 (N), %y: out global f32 (N))
    ...   param N = 40
    ... {
    ...   %v = alloc vector f32 (16)
    ...   for i in 0..N step 16 {
    ...     load %v (l 16) = %x[i + l] if (i + l < N) else 0
    ...     compute %v = %v + %v
    ...     store %v (l 16) -> %y[i + l] if (i + l < N)
    ...   }
    ... }
    ... '''
    >>> str(parse_loop(text)) == text
    True
    """
    return parse_program(text, {"loop": LOOP})
