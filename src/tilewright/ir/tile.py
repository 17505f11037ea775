"""The tile level: operations on tensors with named dimensions. No threads, no placement, no order.

A value is a register tile: an element type over dimensions, each a symbol or an expression of symbols (`M`, `K/2`).
Operations work on logical coordinates; the executor defines what they compute. A program's records are its constraints.
"""

from __future__ import annotations

from typing import Any

from tilewright.algebra.expr import Const, Expr
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import DimensionMismatch, DtypeMismatch, ProgramError
from tilewright.ir import dtypes
from tilewright.ir.core import Level, MemoryType, Op, OpSpec, Program, TileType, Value
from tilewright.ir.parser import parse_program

GRID_RANK = 5
"""The number of dimensions that a grid of workgroups may have."""
UNARY_FLOAT = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "tanh", "erf", "sigmoid"),
    *("sin", "cos", "sinh", "cosh", "cbrt"),
)
UNARY_ANY = ("neg", "abs", "relu", "floor", "ceil", "round", "roundeven")
BINARY = ("add", "sub", "mul", "div", "floordiv", "mod", "maximum", "minimum", "powf", "atan2", "remf")
BITWISE = ("and_", "or_", "xor", "shl", "shr")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
STEPS = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul"}
"""The binary operation that each reduction repeats."""
REDUCTIONS = tuple(STEPS)
SCANS = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}
"""The reduction whose running values each scan gives."""
ELEMENTWISE = (*UNARY_FLOAT, *UNARY_ANY, *BINARY, *BITWISE, *COMPARISONS, "not_")
"""Operations on one element, or on two elements at the same coordinates."""


def tile_type(op: Op, place: int) -> TileType:
    """Return the type of operand number `place` of `op`, counted from 0.

    Raise ProgramError if the operation has too few operands, or if the operand is not a register tile.
    """
    if place >= len(op.operands):
        raise ProgramError(f"{op.name} takes more than {len(op.operands)} operands")
    type_ = op.operands[place].type
    if not isinstance(type_, TileType):
        raise ProgramError(f"operand {place} of {op.name} is memory ({type_}); read it first")
    return type_


def memory_type(op: Op, place: int) -> MemoryType:
    """Return the type of operand number `place` of `op`, counted from 0.

    Raise ProgramError if the operation has too few operands, or if the operand is not memory.
    """
    if place >= len(op.operands):
        raise ProgramError(f"{op.name} takes more than {len(op.operands)} operands")
    type_ = op.operands[place].type
    if not isinstance(type_, MemoryType):
        raise ProgramError(f"operand {place} of {op.name} is a register tile ({type_}); it must be memory")
    return type_


def dims_text(dims: tuple[Expr, ...]) -> str:
    """Return `dims`, a tuple of dimensions, as text such as `[M, N]`."""
    return "[" + ", ".join(map(str, dims)) + "]"


def union_dims(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Return a tuple of the dimensions that occur in `a` or in `b`: [M, N] and [N, K] -> [M, N, K].

    If `a` or `b` has all of them, return that tuple (`a` first). Otherwise the dimensions of `a` come first.
    """
    if all(d in a for d in b):
        return a
    if all(d in b for d in a):
        return b
    return (*a, *(d for d in b if d not in a))


def _check_operand_count(op: Op, *allowed: int) -> None:
    """Raise ProgramError unless the number of operands of `op` is one of the numbers in `allowed`."""
    if len(op.operands) not in allowed:
        raise ProgramError(f"{op.name} takes {' or '.join(map(str, allowed))} operands, not {len(op.operands)}")


def _check_same_dtype(op: Op, a: TileType, b: TileType) -> None:
    """Raise DtypeMismatch if the tile types `a` and `b` have different element types; `op` is named in the message."""
    if a.dtype is not b.dtype:
        raise DtypeMismatch(
            f"{op.name} of {a.dtype} and {b.dtype}: the element types differ; cast one, for instance "
            f"tkw.cast(x, tkl.{a.dtype})"
        )


# -- result types -------------------------------------------------------------------------------------


def _unary(op: Op) -> tuple[Any, ...]:
    """Check `op`, an elementwise function of one tile such as `neg`; return a tuple of its one result type.

    That is the operand's type. Raise ProgramError unless there is one operand, a register tile.
    """
    _check_operand_count(op, 1)
    return (tile_type(op, 0),)


def _unary_float(op: Op) -> tuple[Any, ...]:
    """Check `op`, an elementwise function of one float tile such as `exp`; return a tuple of its one result type.

    That is the operand's type. Raise DtypeMismatch if the tile is not of a floating-point type.
    """
    (type_,) = _unary(op)
    if not type_.dtype.is_float:
        raise DtypeMismatch(f"{op.name} of {type_.dtype}: it takes floating-point tiles; cast first")
    return (type_,)


def _binary(op: Op) -> tuple[Any, ...]:
    """Check `op`, an elementwise function of two tiles such as `add`; return a tuple of its one result type.

    The result has the tiles' element type. Tiles are broadcast, so that the result has the dimensions of both: [M] and
    [N] give [M, N]. Raise DtypeMismatch if the element types differ.
    """
    _check_operand_count(op, 2)
    a, b = tile_type(op, 0), tile_type(op, 1)
    _check_same_dtype(op, a, b)
    return (TileType(a.dtype, union_dims(a.dims, b.dims)),)


def _bitwise(op: Op) -> tuple[Any, ...]:
    """Check `op`, a bitwise operation on two tiles such as `and_`; return a tuple of its one result type.

    The result has the tiles' element type and the dimensions of both. Raise DtypeMismatch if the element types differ
    or are floating-point.
    """
    (type_,) = _binary(op)
    if type_.dtype.is_float:
        raise DtypeMismatch(f"{op.name} of {type_.dtype}: bits of floating-point tiles are reached by bitcast only")
    return (type_,)


def _comparison(op: Op) -> tuple[Any, ...]:
    """Check `op`, a comparison of two tiles such as `lt`; return a tuple of its one result type.

    The result is of bool, with the dimensions of both tiles. Raise DtypeMismatch if the tiles' element types differ.
    """
    (type_,) = _binary(op)
    return (TileType(dtypes.bool_, type_.dims),)


def _not(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `not_`, and return a tuple of its one result type, which is the operand's.

    Raise DtypeMismatch for a floating-point tile.
    """
    (type_,) = _unary(op)
    if type_.dtype.is_float:
        raise DtypeMismatch(f"not of {type_.dtype}: it takes bool or integer tiles")
    return (type_,)


def _select(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `select(condition, a, b)`, and return a tuple of its one result type.

    The result has the element type of `a` and `b`, and the dimensions of all three. Raise DtypeMismatch unless the
    condition is a bool tile, and `a` and `b` have one element type.
    """
    _check_operand_count(op, 3)
    condition, a, b = (tile_type(op, i) for i in range(3))
    if condition.dtype is not dtypes.bool_:
        raise DtypeMismatch(f"select chooses by a bool tile, not by {condition.dtype}; compare first")
    _check_same_dtype(op, a, b)
    return (TileType(a.dtype, union_dims(union_dims(a.dims, b.dims), condition.dims)),)


def _cast(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `cast`, and return a tuple of its one result type.

    The result has the operand's dimensions; its element type is the attribute `dtype`.
    """
    (type_,) = _unary(op)
    return (TileType(op.attrs["dtype"], type_.dims),)


def _bitcast(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `bitcast`, and return a tuple of its one result type.

    The result is the operand's bits as elements of another type, the attribute `dtype`. If the widths differ, the last
    dimension is multiplied or divided by their ratio: `f32[M, N]` to f16 gives `f16[M, 2*N]`. Raise ProgramError if
    neither width divides the other, or if a scalar would change its width.
    """
    (type_,) = _unary(op)
    to = op.attrs["dtype"]
    if to.bits == type_.dtype.bits:
        return (TileType(to, type_.dims),)
    if not type_.dims:
        raise ProgramError(f"bitcast of {type_} to {to}: a scalar keeps its width")
    *outer, last = type_.dims
    if type_.dtype.bits % to.bits == 0:
        return (TileType(to, (*outer, last * (type_.dtype.bits // to.bits))),)
    if to.bits % type_.dtype.bits == 0:
        return (TileType(to, (*outer, last / (to.bits // type_.dtype.bits))),)
    raise ProgramError(f"bitcast of {type_} to {to}: neither width divides the other")


def _repeat(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `repeat`, and return a tuple of its one result type: the operand's type with a longer dimension.

    The attributes are `dim`, the dimension to repeat; `times`, a number; and `to`, the new dimension, which must be the
    expression dim * times. Raise DimensionMismatch if `to` is another expression, or if the tile lacks `dim` or has
    `to` already.
    """
    (type_,) = _unary(op)
    dim, to, times = op.attrs["dim"], op.attrs["to"], op.attrs["times"]
    if dim not in type_.dims or to in type_.dims or times < 1 or dim * times is not to:
        raise DimensionMismatch(
            f"repeat of {dim} in {dims_text(type_.dims)}, {times} times, to {to}: the new dimension must be {times} "
            "times one of the tile's"
        )
    return (TileType(type_.dtype, tuple(to if d is dim else d for d in type_.dims)),)


def _mma(op: Op) -> tuple[Any, ...]:
    """Check `op`, an `mma(a, b, acc)`, and return a tuple of its one result type, which is that of `acc`.

    Raise DimensionMismatch if no dimension is reduced (in `a` and `b`, but not in `acc`), or if `acc` has a dimension
    that neither operand has. Raise DtypeMismatch if integers and floats mix. Also raise one of them for a wrong
    attribute `accumulate` or `blocks`.
    """
    _check_operand_count(op, 3)
    a, b, acc = (tile_type(op, i) for i in range(3))
    reduced = [d for d in a.dims if d in b.dims and d not in acc.dims]
    if not reduced:
        raise DimensionMismatch(
            f"mma of {dims_text(a.dims)} and {dims_text(b.dims)} into {dims_text(acc.dims)}: no dimension is summed; "
            "one must be in both factors and not in the accumulator"
        )
    for d in acc.dims:
        if d not in a.dims and d not in b.dims:
            raise DimensionMismatch(f"mma: the accumulator's dimension {d} is in no factor")
    if a.dtype.is_float != b.dtype.is_float or a.dtype.is_float != acc.dtype.is_float:
        raise DtypeMismatch(f"mma of {a.dtype} and {b.dtype} into {acc.dtype}: integers and floats do not mix")
    asked = op.attrs.get("accumulate")
    if asked not in (None, dtypes.f16.name):
        raise DtypeMismatch(f'mma: accumulate={asked!r}; "{dtypes.f16}" or nothing')
    if asked is not None and {a.dtype, b.dtype, acc.dtype} != {dtypes.f16}:
        raise DtypeMismatch(
            f'mma of {a.dtype} and {b.dtype} into {acc.dtype}: accumulate="{asked}" takes factors and an accumulator '
            f"of {asked}"
        )
    blocks = op.attrs.get("blocks", 1)
    if blocks < 1:
        raise DimensionMismatch(f"mma: blocks={blocks}; at least 1")
    if blocks > 1 and (not acc.dims or (acc.dims[-1] in a.dims and acc.dims[-1] in b.dims)):
        raise DimensionMismatch(
            f"mma: blocks={blocks}: the accumulator's last dimension must be in one factor; here are "
            f"{dims_text(a.dims)} and {dims_text(b.dims)} into {dims_text(acc.dims)}"
        )
    return (acc,)


def _without_dim(op: Op, type_: TileType) -> TileType:
    """Return the tile type `type_` without the dimension that is the attribute `dim` of `op`, a reduction or scan.

    Raise DimensionMismatch if the tile does not have that dimension.
    """
    dim = op.attrs["dim"]
    if dim not in type_.dims:
        raise DimensionMismatch(f"{op.name} over {dim}: the tile has the dimensions {dims_text(type_.dims)}")
    return TileType(type_.dtype, tuple(d for d in type_.dims if d is not dim))


def _reduction(op: Op) -> tuple[Any, ...]:
    """Check `op`, a reduction such as `sum`, and return a tuple of its one result type.

    Operands are one or more sources of one type. With the attribute `acc`, the last operand is an accumulator, and the
    result has its type. Without, the result has the sources' type without the dimension in the attribute `dim`. The
    sources may have the type in which the accumulator's type accumulates: f32 for an f16 accumulator. Raise
    DimensionMismatch, DtypeMismatch or ProgramError if the operands do not fit.
    """
    carried = op.attrs.get("acc", False)
    sources = op.operands[:-1] if carried else op.operands
    if not sources:
        raise ProgramError(f"{op.name} of nothing")
    first = tile_type(op, 0)
    for place in range(1, len(sources)):
        if tile_type(op, place) != first:
            raise ProgramError(f"{op.name} of several sources: {first} and {tile_type(op, place)} differ")
    result = _without_dim(op, first)
    if carried:
        acc = tile_type(op, len(op.operands) - 1)
        if set(acc.dims) != set(result.dims):
            raise DimensionMismatch(
                f"{op.name} over {op.attrs['dim']} gives {dims_text(result.dims)}, "
                f"the accumulator has {dims_text(acc.dims)}"
            )
        if result.dtype is not acc.dtype.accumulator:  # partial sums may have the accumulator's type
            _check_same_dtype(op, result, acc)
        return (acc,)
    return (result,)


def _scan(op: Op) -> tuple[Any, ...]:
    """Check `op`, a scan such as `cumsum`, and return a tuple of its one result type, which is that of operand 0.

    The attribute `dim` is the dimension that is scanned. Operand 1, which is optional, holds the initial values, with
    or without `dim`. Raise DimensionMismatch if operand 0 lacks `dim`, or the dimensions of operand 1 do not fit.
    """
    _check_operand_count(op, 1, 2)
    type_ = tile_type(op, 0)
    reduced = _without_dim(op, type_)
    if len(op.operands) == 2 and set(tile_type(op, 1).dims) not in (set(reduced.dims), set(type_.dims)):
        raise DimensionMismatch(f"{op.name}: the start has the dimensions {dims_text(tile_type(op, 1).dims)}")
    return (type_,)


def _topk(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `topk`, and return (type of the values, type of their indices), the types of its two results.

    Both have the operand's dimensions, with the attribute `count` in place of the attribute `dim`. Indices are i32.
    Raise DimensionMismatch if the tile lacks `dim`, or if `count` and `dim` are constants and `count` is larger.
    """
    _check_operand_count(op, 1)
    type_ = tile_type(op, 0)
    _without_dim(op, type_)
    count, dim = op.attrs["count"], op.attrs["dim"]
    if isinstance(count, Const) and isinstance(dim, Const):
        require_elements(op, count.value, dim.value)
    dims = tuple(count if d is dim else d for d in type_.dims)
    return TileType(type_.dtype, dims), TileType(dtypes.i32, dims)


def require_elements(op: Op, count: int, length: int) -> None:
    """Raise DimensionMismatch if `op`, a `topk`, takes more elements (`count`) than its dimension has (`length`)."""
    if count > length:
        k, dim = op.attrs["count"], op.attrs["dim"]
        asked = str(k) if str(k) == str(count) else f"{k} = {count}"
        raise DimensionMismatch(
            f"topk over {dim}: k is {asked}, but the tile has {length} elements there; k must be at most {length}",
            op.loc,
        )


def _to_dims(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `broadcast`, `permute` or `reshape`, and return a tuple of its one result type.

    The result has the operand's element type; its dimensions are the attribute `to`. Raise DimensionMismatch if a
    broadcast would drop a dimension, or if a permute changes the set of dimensions. A reshape is not checked.
    """
    type_ = tile_type(op, 0)
    to = op.attrs["to"]
    if op.name == "broadcast" and not all(d in to for d in type_.dims):
        raise DimensionMismatch(f"broadcast of {dims_text(type_.dims)} to {dims_text(to)}: a dimension would be lost")
    if op.name == "permute" and (set(to) != set(type_.dims) or len(to) != len(type_.dims)):
        raise DimensionMismatch(
            f"permute of {dims_text(type_.dims)} to {dims_text(to)}: these are not the same dimensions"
        )
    return (TileType(type_.dtype, to),)


def _self_index(op: Op) -> tuple[Any, ...]:
    """Return a tuple of the one result type of `op`, a `self_index`: each element of the result is its own coordinate.

    The element type is the attribute `dtype`; the only dimension is the attribute `dim`.
    """
    return (TileType(op.attrs["dtype"], (op.attrs["dim"],)),)


def _scalar(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `scalar`, and return a tuple of its one result type: a tile without dimensions.

    The element type is the attribute `dtype`. Raise DtypeMismatch if this type cannot represent the attribute `value`.
    """
    _require_number(op, op.attrs["dtype"])
    return (TileType(op.attrs["dtype"]),)


def _require_number(op: Op, dtype: dtypes.DType) -> None:
    """Raise DtypeMismatch if the attribute `value` of `op` is a number that the element type `dtype` cannot represent.

    An expression that is not constant is not checked.
    """
    value = op.attrs["value"]
    number = value.value if isinstance(value, Const) else value
    if isinstance(number, int | float):
        dtype.require(number)


def _apply(op: Op) -> tuple[Any, ...]:
    """Check `op`, an `apply`, and return a tuple of its one result type.

    An `apply` evaluates an integer expression for each element of its operands. The result has the dimensions of all
    operands. Its element type is the attribute `dtype`, or else the type of the first operand, or i32 without operands.
    Raise ProgramError unless there is one symbol in `over` for each operand.
    """
    if len(op.operands) != len(op.attrs["over"]):
        raise ProgramError(f"apply has {len(op.operands)} operands for {len(op.attrs['over'])} symbols")
    dims: tuple[Expr, ...] = ()
    for place in range(len(op.operands)):
        dims = union_dims(dims, tile_type(op, place).dims)
    first = tile_type(op, 0).dtype if op.operands else dtypes.i32
    return (TileType(op.attrs.get("dtype", first), dims),)


def _extract(op: Op) -> tuple[Any, ...]:
    """Check `op`, an `extract` (one element of a tile), and return a tuple of its one result type.

    The result is a scalar of the tile's element type. Raise DimensionMismatch unless the attribute `offset` is a single
    row-major number, or has one index for each dimension.
    """
    type_ = tile_type(op, 0)
    given, rank = len(op.attrs["offset"]), len(type_.dims)
    if given not in (1, rank):
        raise DimensionMismatch(
            f"extract: offset has {given} numbers for a tile {type_}; give one index for each of its {rank} "
            "dimensions, or one row-major number"
        )
    return (TileType(type_.dtype),)


def _iterate(op: Op) -> tuple[Any, ...]:
    """Check `op`, an `iterate` (a loop with carried values), and return the tuple of its result types.

    The result types are the types of the initial carried values. Raise ProgramError unless the body's arguments have
    the same types, and the body ends with a `yield` of the same number of values. Raise DtypeMismatch if a yielded
    value has another element type; dimensions are not compared.
    """
    carried = op.operands[1:] if op.attrs.get("start", False) else op.operands
    types = tuple(v.type for v in carried)
    (body,) = op.blocks
    if tuple(a.type for a in body.args) != types:
        raise ProgramError("iterate: the body's arguments have other types than the initial values")
    last = body.ops[-1] if body.ops else None
    if last is None or last.name != "yield":
        raise ProgramError("iterate: the body must end by yielding the next values")
    for yielded, type_ in zip(last.operands, types, strict=False):
        if yielded.type.dtype is not type_.dtype:
            raise DtypeMismatch(
                f"iterate over {op.attrs['axis']}: a carried value starts as {type_} and is returned as {yielded.type}"
            )
    if len(last.operands) != len(types):
        raise ProgramError(
            f"iterate over {op.attrs['axis']}: {len(types)} values are carried, {len(last.operands)} are returned"
        )
    return types


def _conditional(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `conditional`, and return the tuple of its result types.

    The results are the values that its block yields, or the `else` values if the condition is false. The condition is
    operand 0, or the attribute `when`, an expression. All other operands are the `else` values. Raise DtypeMismatch for
    a float condition, and DimensionMismatch unless the yielded values have the types of the `else` values.
    """
    otherwise = op.operands if "when" in op.attrs else op.operands[1:]
    if "when" not in op.attrs and tile_type(op, 0).dtype.is_float:
        raise DtypeMismatch(f"conditional on {tile_type(op, 0)}: the condition must be bool or integer; compare first")
    last = op.blocks[0].ops[-1] if op.blocks[0].ops else None
    yielded = last.operands if last is not None and last.name == "yield" else ()
    if [v.type for v in yielded] != [v.type for v in otherwise]:
        raise DimensionMismatch(
            f"conditional gives {[str(v.type) for v in yielded]} where it holds, "
            f"{[str(v.type) for v in otherwise]} where it does not"
        )
    return tuple(v.type for v in otherwise)


def _atomic_old_values(op: Op) -> tuple[Any, ...]:
    """Return a tuple of the one result type of `op`, an atomic: the type of operand 0, the tile.

    The result holds the elements of memory before the update.
    """
    return (tile_type(op, 0),)


def _no_results(op: Op) -> tuple[Any, ...]:
    """Return (): the operation `op` has no results."""
    return ()


# -- checks -------------------------------------------------------------------------------------------


def _check_fill(op: Op) -> None:
    """Raise ProgramError unless `op`, a `fill`, has one result, which is a register tile.

    Raise DtypeMismatch if the tile's element type cannot represent the attribute `value`.
    """
    if len(op.results) != 1 or not isinstance(op.results[0].type, TileType):
        raise ProgramError("fill makes one register tile")
    _require_number(op, op.results[0].type.dtype)


def check_mapping(op: Op, memory: MemoryType, tile: TileType, extra: tuple[Value, ...]) -> None:
    """Raise ProgramError unless the index mapping of `op`, a read or write, fits its `memory` and its `tile`.

    The attribute `over` must have one iterator for each dimension of the tile, and `at` one coordinate for each
    dimension of memory; neither may be given alone. Each entry of `lookups` needs one of `extra`, the operands that the
    mapping looks up. A read without `over` and `at` raises DimensionMismatch unless memory and tile have the same
    dimensions.
    """
    over, at, lookups = op.attrs.get("over"), op.attrs.get("at"), op.attrs.get("lookups", ())
    if len(lookups) != len(extra):
        raise ProgramError(f"{op.name}: {len(extra)} dynamic values are given, the mapping uses {len(lookups)}")
    for (_, place), value in zip(lookups, extra, strict=True):
        if not isinstance(value.type, TileType) or len(place) != len(value.type.dims):
            raise ProgramError(f"{op.name}: a dynamic value of type {value.type} is looked up at {len(place)} places")
    if over is None or at is None:
        if over is not at:
            raise ProgramError(f"{op.name}: `over` and `at` come together")
        if op.name == "read" and (set(memory.dims) != set(tile.dims) or len(memory.dims) != len(tile.dims)):
            raise DimensionMismatch(
                f"read of {dims_text(memory.dims)} gives the same dimensions, not {dims_text(tile.dims)}"
            )
        return
    if len(over) != len(tile.dims):
        raise ProgramError(
            f"{op.name}: {len(over)} iterators for the {len(tile.dims)} dimensions {dims_text(tile.dims)}"
        )
    if len(at) != len(memory.dims):
        raise ProgramError(f"{op.name}: {len(at)} coordinates for memory of {len(memory.dims)} dimensions")


def _check_read(op: Op) -> None:
    """Raise ProgramError unless `op`, a `read`, has one result, a register tile with the element type of the memory.

    Also raise ProgramError or DimensionMismatch if the index mapping is not valid.
    """
    memory_type(op, 0)
    if len(op.results) != 1 or not isinstance(op.results[0].type, TileType):
        raise ProgramError(f"read of %{op.operands[0].name} gives one register tile; it has {len(op.results)} results")
    (result,) = op.results
    check_mapping(op, memory_type(op, 0), result.type, op.operands[1:])
    if result.type.dtype is not memory_type(op, 0).dtype:
        raise ProgramError(f"read of {memory_type(op, 0)} gives {memory_type(op, 0).dtype}, not {result.type.dtype}")


def _check_write(op: Op) -> None:
    """Raise ProgramError unless the index mapping of `op`, a write or an atomic, is valid.

    Raise DtypeMismatch if floats are written to memory of integers, or if an atomic's element types differ.
    """
    check_mapping(op, memory_type(op, 1), tile_type(op, 0), op.operands[2:])
    tile, memory = tile_type(op, 0), memory_type(op, 1)
    if op.name != "write" and tile.dtype is not memory.dtype:
        raise DtypeMismatch(f"{op.name} of {tile.dtype} into memory of {memory.dtype}: cast first")
    if tile.dtype.is_float and not memory.dtype.is_float:
        raise DtypeMismatch(f"write of {tile.dtype} into memory of {memory.dtype}: say how it rounds, by tkw.cast")


def _check_allocate(op: Op) -> None:
    """Raise ProgramError unless `op`, an `allocate`, has one tensor in memory as its result."""
    if len(op.results) != 1 or not isinstance(op.results[0].type, MemoryType):
        raise ProgramError("allocate makes one tensor in memory")


def _check_grid_dimension(op: Op) -> None:
    """Raise ProgramError unless `op`, a record with the attribute `grid`, names a dimension that a grid may have."""
    if not 0 <= op.attrs["grid"] < GRID_RANK:
        raise ProgramError(f"{op.name}: grid={op.attrs['grid']}: a grid has dimensions 0 to {GRID_RANK - 1}")


def accessed(op: Op) -> tuple[Value, TileType, tuple[Value, ...]]:
    """Return (memory, type of the tile, operands that the index mapping looks up) of `op`, a read, write or atomic.

    The tile is the result of a read, and operand 0 of a write or atomic.
    """
    if op.name == "read":
        return op.operands[0], op.results[0].type, op.operands[1:]
    return op.operands[1], op.operands[0].type, op.operands[2:]


def access_form(op: Op) -> tuple[tuple[Expr, ...], tuple[Value, ...]]:
    """Return (coordinates, index tensors) of `op`, a read, write or atomic: the memory coordinates of each tile
    element.

    Coordinates are expressions of the tile's dimensions, one for each dimension of the memory. Index tensors are the
    operands that the mapping looks up. If two operations on the same memory give equal results, they access the same
    element at the same tile coordinates.
    """
    memory, kind, lookups = accessed(op)
    if "at" not in op.attrs:
        return memory.type.dims, lookups
    by_dim = Substitution(dict(zip(op.attrs["over"], kind.dims, strict=True)))
    return tuple(map(by_dim, op.attrs["at"])), lookups


def mismatched_dims(op: Op) -> tuple[set[Expr], str] | None:
    """Return (set of dimensions that do not match in `op`, error message), or None if all match.

    In an `mma`, they are the dimensions of only one operand that the accumulator lacks. In an `iterate`, they are those
    of only the initial or only the yielded value, for the first carried value that differs. In a write or atomic
    without a mapping, they are those of only the tile or only the memory. For other operations, return None.

    Some mismatches are legal: constraints may tile a dimension to one coordinate, and a written tile that lacks
    dimensions of its memory is broadcast. The caller raises the message for other programs.
    """
    if op.name == "mma":
        a, b, acc = (tile_type(op, i) for i in range(3))
        alone = set(a.dims) ^ set(b.dims)
        dims = {d for d in alone if d not in acc.dims}
        if dims:
            one = min(map(str, dims))
            return dims, f"mma: the dimension {one} of one factor is neither in the other nor in the accumulator"
    elif op.name == "iterate":
        starts = op.operands[1:] if op.attrs.get("start", False) else op.operands
        for i, (start, end) in enumerate(zip(starts, op.blocks[0].ops[-1].operands, strict=True)):
            dims = set(start.type.dims) ^ set(end.type.dims)
            if dims:
                axis = op.attrs["axis"]
                return dims, (
                    f"iterate over {axis}: carried value {i} starts as {start.type} and is returned as {end.type}"
                )
    elif op.name in ("write", "atomic_add", "atomic_min", "atomic_max") and "at" not in op.attrs:
        tile, memory = tile_type(op, 0), memory_type(op, 1)
        dims = set(tile.dims) ^ set(memory.dims)
        if dims:
            return dims, (
                f"{op.name}: the tile has the dimensions {dims_text(tile.dims)}, the memory {dims_text(memory.dims)}; "
                "without a mapping they must be the same"
            )
    return None


def is_mapped(program: Program, dim: Expr) -> bool:
    """True if a read, write or atomic with an index mapping (the attribute `at`) has a tile with the dimension `dim`.

    A mapping may turn an index past the end of the dimension into a valid coordinate.
    """
    for op in program.walk():
        if "at" in op.attrs and op.name != "debug_log":
            tile = op.results[0].type if op.name == "read" else op.operands[0].type
            if dim in tile.dims:
                return True
    return False


_ACCESS = {"over": "exprs?", "lookups": "lookups?", "at": "exprs?", "bounds": "table?"}
_SPECS: list[OpSpec] = [
    OpSpec("fill", {"value": "numexpr"}, check=_check_fill),
    OpSpec("read", {**_ACCESS, "otherwise": "number?"}, check=_check_read),
    OpSpec("write", _ACCESS, result_types=_no_results, check=_check_write),
    OpSpec("atomic_add", _ACCESS, result_types=_atomic_old_values, check=_check_write),
    OpSpec("atomic_min", _ACCESS, result_types=_atomic_old_values, check=_check_write),
    OpSpec("atomic_max", _ACCESS, result_types=_atomic_old_values, check=_check_write),
    OpSpec("mma", {"precision": "name?", "accumulate": "name?", "blocks": "int?"}, result_types=_mma),
    OpSpec(
        "iterate",
        {"axis": "expr", "start": "bool?", "condition": "expr?", "any_tile": "bool?"},
        blocks=1,
        result_types=_iterate,
    ),
    OpSpec("conditional", {"when": "expr?"}, blocks=1, result_types=_conditional),
    OpSpec("yield", result_types=_no_results, ends_block=True),
    OpSpec("cast", {"dtype": "dtype"}, result_types=_cast),
    OpSpec("bitcast", {"dtype": "dtype"}, result_types=_bitcast),
    OpSpec("broadcast", {"to": "exprs"}, result_types=_to_dims),
    OpSpec("permute", {"to": "exprs"}, result_types=_to_dims),
    OpSpec("reshape", {"to": "exprs"}, result_types=_to_dims),
    OpSpec("repeat", {"dim": "expr", "to": "expr", "times": "int"}, result_types=_repeat),
    OpSpec("select", result_types=_select),
    OpSpec("not_", result_types=_not),
    *(OpSpec(name, {"dim": "expr"}, result_types=_scan) for name in SCANS),
    OpSpec("topk", {"dim": "expr", "count": "expr"}, result_types=_topk),
    OpSpec("self_index", {"dim": "expr", "dtype": "dtype"}, result_types=_self_index),
    OpSpec("apply", {"over": "exprs", "value": "expr", "dtype": "dtype?"}, result_types=_apply),
    OpSpec("set_symbol", {"symbol": "expr"}, result_types=_no_results),
    OpSpec("scalar", {"value": "numexpr", "dtype": "dtype"}, result_types=_scalar),
    OpSpec("extract", {"offset": "exprs"}, result_types=_extract),
    OpSpec("allocate", {"tile": "exprs?"}, check=_check_allocate),
    OpSpec("barrier", result_types=_no_results, notation="barrier"),
    OpSpec(
        "debug_log",
        {"label": "str", "to": "exprs?", "over": "exprs?", "at": "exprs?", "iterations": "table?", "names": "exprs?"},
        result_types=_no_results,
    ),
    *(OpSpec(name, result_types=_unary_float) for name in UNARY_FLOAT),
    *(OpSpec(name, result_types=_unary) for name in UNARY_ANY),
    *(OpSpec(name, result_types=_binary) for name in BINARY),
    *(OpSpec(name, result_types=_bitwise) for name in BITWISE),
    *(OpSpec(name, result_types=_comparison) for name in COMPARISONS),
    *(OpSpec(name, {"dim": "expr", "acc": "bool?"}, result_types=_reduction) for name in REDUCTIONS),
]

_RECORDS = [
    OpSpec(
        "workgroup",
        {"dim": "expr", "tile": "expr", "grid": "int", "start": "expr?", "iters": "expr?", "primary": "bool?"},
        check=_check_grid_dimension,
    ),
    OpSpec("wave", {"dim": "expr", "tile": "expr"}),
    OpSpec("tiling", {"dim": "expr", "tile": "expr?", "iters": "expr?", "start": "expr?"}),
    OpSpec(
        "hardware",
        {
            "threads": "int?",
            "waves": "exprs?",
            "cluster": "exprs?",
            "mma": "name?",
            "vectors": "table?",
            "load_bits": "int?",
            "service": "int?",
        },
    ),
    OpSpec("elements", {"what": "name", "of": "str", "count": "expr"}),
    OpSpec("reordering", {"value": "expr", "grid": "int"}, check=_check_grid_dimension),
    OpSpec("grid", {"count": "expr"}),
    OpSpec("assume", {"that": "expr"}),
]

TILE = Level("tile", {spec.name: spec for spec in _SPECS}, {spec.name: spec for spec in _RECORDS})


def parse_tile(text: str) -> Program:
    """Parse `text`, which holds one tile program, and return the program; raise ParseError or ProgramError if invalid.

    >>> text = '''tile double(%x: global f32[M, N], %y: global f32[M, N])
    ...   symbols M, N
    ... {
    ...   %0 = read %x : f32[M, N]
    ...   %1 = add %0, %0 : f32[M, N]
    ...   write %1, %y
    ... }
    ... '''
    >>> str(parse_tile(text)) == text
    True
    """
    return parse_program(text, {"tile": TILE})
