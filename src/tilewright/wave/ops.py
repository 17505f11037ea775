"""The operations of the tile language on tiles, as functions that kernels call; `memory_ops` has those on memory.

Each one adds an operation to the kernel being traced; arguments that only place work mean nothing on the tile level:
`elements_per_thread` is recorded, and `explain()` says where a plan does not follow it; `flags` and `tag` are accepted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.algebra.expr import And, AtLeastZero, Expr, ExprLike, IsZero, Or, Symbol, as_expr, symbol
from tilewright.errors import BadMapping, DimensionMismatch, DtypeMismatch, ProgramError
from tilewright.ir import dtypes
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DTypeLike, element_type, plain_number
from tilewright.ir.location import author_location
from tilewright.ir.tile import BINARY, COMPARISONS, SCANS, UNARY_ANY, UNARY_FLOAT, dims_text
from tilewright.lang.mapping import IndexMapping
from tilewright.lang.types import Register
from tilewright.limits import written
from tilewright.wave.tracer import (
    MemoryArgument,
    Tile,
    dim_of,
    dims_of,
    operand,
    refuse_threads,
    require_call,
    tile_of,
    tracer,
)

# -- control flow ---------------------------------------------------------------------------------------


def iterate(
    axis: Any,
    init_args: Sequence[Any] = (),
    step: int = 1,
    start: Any = None,
    condition: Expr | None = None,
    any_tile: bool = False,
    tag: str | None = None,
) -> Callable[[Callable[..., Any]], Any]:
    """A loop over consecutive tiles of a dimension; the decorated function's name becomes the result.

    The function takes the carried values and returns the next ones. With `start` and `condition` it is a while loop:
    `axis` starts at that scalar, and the body sets it by `tkw.set_symbol(axis, next)`.
    """
    where = author_location()

    def decorate(body: Callable[..., Any]) -> Any:
        trace = tracer("iterate")
        if not isinstance(init_args, list | tuple):
            raise DtypeMismatch(f"iterate: init_args={init_args!r}: give a list of tiles, init_args=[...]", where)
        carried = [operand(a, dtypes.f32, "iterate") for a in init_args]

        def ends(returned: Any) -> None:
            trace.emit("yield", _returned(returned, len(carried), "iterate"))

        attrs: dict[str, Any] = {"axis": dim_of(axis, "iterate")}
        with trace.along(attrs["axis"]):
            block = trace.body(body, [Value(v.type) for v in carried], ends)
        operands = carried
        if start is not None:
            attrs["start"] = True
            operands = [operand(start, dtypes.i32, "iterate"), *carried]
        if condition is not None:
            attrs["condition"] = dim_of(condition, "iterate: condition")
        if any_tile:
            attrs["any_tile"] = True
        if (start is None) != (condition is None):
            raise ProgramError("iterate: start and condition come together, for a while loop", author_location(1))
        made = trace.emit("iterate", operands, attrs, None, (block,))
        for result, name in zip(made.results, block.args, strict=True):
            result.name = name.name
        tiles = tuple(Tile(r) for r in made.results)
        return tiles[0] if len(tiles) == 1 else tiles

    return decorate


def _returned(returned: Any, count: int, what: str) -> list[Value]:
    """The values that a traced function returned, as a list."""
    if returned is None:
        found: tuple[Any, ...] = ()
    elif isinstance(returned, tuple | list):
        found = tuple(returned)
    else:
        found = (returned,)
    if len(found) != count:
        raise DimensionMismatch(
            f"{what}: {count} values are carried, but the body returns {len(found)}", author_location(2)
        )
    return [tile_of(x, what) for x in found]


def conditional(condition: Any, else_return: Any = None, tag: str | None = None) -> Callable[[Callable[..., Any]], Any]:
    """The decorated function, run where the condition holds: for a tile, element by element.

    With `else_return`, the function's name becomes its result where the condition holds, those values elsewhere. The
    function may take these values as its arguments, one each, or none at all.
    """

    def decorate(body: Callable[..., Any]) -> Any:
        trace = tracer("conditional")
        attrs: dict[str, Any] = {}
        operands: list[Value] = []
        if isinstance(condition, Tile):
            operands.append(condition.value)
        elif isinstance(condition, Expr | bool | int):
            attrs["when"] = as_expr(int(condition) if isinstance(condition, bool) else condition)
            refuse_threads(attrs["when"])  # before its body, which may fail for the same reason
        else:
            raise DtypeMismatch(f"conditional on {condition!r}: give a tile or an expression", author_location(1))
        otherwise = (
            [] if else_return is None else list(else_return if isinstance(else_return, tuple | list) else [else_return])
        )

        def ends(returned: Any) -> None:
            if otherwise:
                trace.emit(
                    "yield",
                    _returned(returned, len(otherwise), f"conditional(..., else_return={written(otherwise, 80)})"),
                )

        given = [Tile(tile_of(x, "conditional")) for x in otherwise]
        block = trace.body(_without_arguments(body, given), [], ends)
        operands += [tile.value for tile in given]
        made = trace.emit("conditional", operands, attrs, None, (block,))
        tiles = tuple(Tile(r) for r in made.results)
        return None if not tiles else tiles[0] if len(tiles) == 1 else tiles

    return decorate


def _without_arguments(body: Callable[..., Any], given: list[Tile]) -> Callable[[], Any]:
    """A conditional's body as a function of nothing; one that has parameters is called with the values given."""
    if not inspect.signature(body).parameters:
        return body
    require_call(body, len(given), "of else_return")
    return lambda: body(*given)


# -- multiplication and reductions ------------------------------------------------------------------------


def mma(
    lhs: Any,
    rhs: Any,
    acc: Any,
    mma_type: Any = None,
    precision: str | None = None,
    tag: str | None = None,
    accumulate: str | None = None,
) -> Tile:
    """acc + the sum of lhs * rhs over the dimensions that both factors have and the accumulator has not.

    Dimensions go by name, in any order; those that all three have are batch dimensions. f32 means f32:
    `precision="tf32"` is the only way to tf32: factors keep ten bits of fraction, rounded to the nearest, or cut where
    the machine's own products do that. Sums are carried in f32 and wider: `accumulate="f16"`, of factors and an
    accumulator of f16, is the only way to sums in f16, which may be rounded after every product.
    """
    if precision not in (None, "tf32"):
        raise DtypeMismatch(f'mma: precision={precision!r}; "tf32" or nothing', author_location())
    asked = {"precision": precision, "accumulate": accumulate}
    attrs = {name: value for name, value in asked.items() if value is not None}
    return Tile(tracer("mma").emit("mma", [tile_of(x, "mma") for x in (lhs, rhs, acc)], attrs).result)


GROUP = 32
"""How many neighbours along the summed dimension share a scale."""


def scaled_mma(
    lhs: Any, lhs_scale: Any, rhs: Any, rhs_scale: Any, acc: Any, mma_type: Any = None, tag: str | None = None
) -> Tile:
    """acc + the sum of products of microscaled factors: 32 neighbours along the summed dimension K share a scale.

    A scale is a tile over K/32 in place of K, of any float type (f8e8m0fnu for MXFP4 and MXFP8). Products are those of
    the scaled numbers, in f32.
    """
    total = tile_of(acc, "scaled_mma").type.dims
    factors = []
    for name, factor, scale in (("lhs", lhs, lhs_scale), ("rhs", rhs, rhs_scale)):
        tile, by = tile_of(factor, "scaled_mma"), tile_of(scale, "scaled_mma")
        pairs = [(d, g) for d in tile.type.dims if d not in total for g in by.type.dims if g * GROUP is d]
        if len(pairs) != 1:
            raise DimensionMismatch(
                f"scaled_mma: {name} has the dimensions {dims_text(tile.type.dims)} and its scale "
                f"{dims_text(by.type.dims)}; the scale must have K/{GROUP} where {name} has the summed dimension K",
                author_location(),
            )
        ((dim, group),) = pairs
        attrs = {"dim": group, "to": dim, "times": GROUP}
        spread = Tile(tracer("scaled_mma").emit("repeat", [cast(scale, dtypes.f32).value], attrs).result)
        factors.append(cast(factor, dtypes.f32) * spread)
    left, right = factors
    return mma(left, right, acc)


def _reduction(name: str) -> Any:
    def reduce(src: Any, acc: Any = None, dim: Any = None, block: bool = False, tag: str | None = None) -> Tile:
        sources = [tile_of(x, name) for x in (src if isinstance(src, tuple | list) else [src])]
        if not sources:
            raise DtypeMismatch(f"{name} of nothing: give a tile, or a list of tiles", author_location())
        trace, dtype = tracer(name), sources[0].type.dtype
        *before, last = _reduced_dims(sources[0], dim, name)
        if before and dtype.is_narrow and name in ("sum", "prod"):  # rounded once, as one reduction is
            sources = [cast(Tile(x), dtype.accumulator).value for x in sources]
        for each in before:
            sources = [trace.emit(name, sources, {"dim": each}).result]
        if acc is not None:
            carried = operand(acc, dtype, name)
            if carried.type.dtype is not dtype:
                raise DtypeMismatch(
                    f"{name} of {dtype} with an accumulator of {carried.type.dtype}: the element types differ; cast "
                    f"one, for instance tkw.cast(x, tkl.{carried.type.dtype})",
                    author_location(),
                )
            return Tile(trace.emit(name, [*sources, carried], {"dim": last, "acc": True}).result)
        reduced = Tile(trace.emit(name, sources, {"dim": last}).result)
        return reduced if reduced.type.dtype is dtype else cast(reduced, dtype)

    reduce.__name__ = name
    reduce.__doc__ = f"The {name} over a dimension, or a list of them, of tiles, with an accumulator if given."
    return reduce


def _reduced_dims(value: Value, dim: Any, what: str) -> list[Expr]:
    """The dimensions of a reduction in the order in which they are reduced.

    That is the tile's last one first, whatever the order they are given in. In a loop the loop's own comes last: it is
    the one that is accumulated over.
    """
    if dim is None:
        return [_last_dim(value, what)]
    if not isinstance(dim, list | tuple):
        return [dim_of(dim, what)]
    dims = [dim_of(d, what) for d in dim]
    if not dims:
        raise DimensionMismatch(
            f"{what}: dim={written(dim, 60)} names no dimension; name some, or leave dim out for the tile's last one",
            author_location(2),
        )
    for d in dims:
        if d not in value.type.dims or dims.count(d) > 1:
            has = f"the tile has the dimensions {dims_text(value.type.dims)}"
            wrong = f"{d} stands there twice" if d in value.type.dims else f"{has}, and {d} is none of them"
            raise DimensionMismatch(f"{what} over {dims_text(tuple(dims))}: {wrong}", author_location(2))
    axes = tracer(what).axes
    return sorted(dims, key=lambda d: (axes.index(d) if d in axes else -1, -value.type.dims.index(d)))


def _last_dim(value: Value, what: str) -> Expr:
    if not value.type.dims:
        raise DimensionMismatch(f"{what} of {value.type}: it has no dimensions", author_location(2))
    found: Expr = value.type.dims[-1]
    return found


sum, max, min, prod = (_reduction(name) for name in ("sum", "max", "min", "prod"))  # noqa: A001


def _scan(name: str) -> Any:
    def scan(src: Any, acc: Any = None, dim: Any = None, block: bool = False, tag: str | None = None) -> Tile:
        value = tile_of(src, name)
        attrs = {"dim": _last_dim(value, name) if dim is None else dim_of(dim, name)}
        extra = [] if acc is None else [operand(acc, value.type.dtype, name)]
        return Tile(tracer(name).emit(name, [value, *extra], attrs).result)

    scan.__name__ = name
    scan.__doc__ = f"The running {SCANS[name]} along a dimension, starting from `acc` if given."
    return scan


cumsum, cumprod, cummax, cummin = (_scan(name) for name in SCANS)


def _extreme_place(name: str, reduction: str) -> Any:
    def place(src: Any, dim: Any = None, tag: str | None = None) -> Tile:
        tile = Tile(tile_of(src, name))
        along = _last_dim(tile.value, name) if dim is None else dim_of(dim, name)
        if along not in tile.type.dims:
            raise DimensionMismatch(
                f"{name} over {along}: the tile has the dimensions {dims_text(tile.type.dims)}", author_location()
            )
        trace = tracer(name)
        extreme = trace.emit(reduction, [tile.value], {"dim": along}).result
        hits = tile == Tile(extreme)
        if tile.type.dtype.is_float:  # where one is no number, so is the extreme, which equals nothing
            hits = hits | (tile != tile)
        places = select(hits, self_index(along), _NO_PLACE)
        return Tile(trace.emit("min", [places.value], {"dim": along}).result)

    place.__name__ = name
    place.__doc__ = (
        f"The i32 place of the {reduction} along a dimension, the first of several; a NaN is the {reduction}, as "
        "PyTorch has it."
    )
    return place


_NO_PLACE = 2**31 - 1
"""What stands for the places of elements that are not the extreme: no tile has so many."""
argmax, argmin = _extreme_place("argmax", "max"), _extreme_place("argmin", "min")


def topk(src: Any, k_dim: Any, dim: Any, tag: str | None = None) -> tuple[Tile, Tile]:
    """The largest elements along a dimension, largest first, and their i32 places.

    The lower place wins a tie. A NaN is larger than any number, as `max` and PyTorch have it.
    """
    attrs = {"dim": dim_of(dim, "topk"), "count": dim_of(k_dim, "topk")}
    values, places = tracer("topk").emit("topk", [tile_of(src, "topk")], attrs).results
    return Tile(values), Tile(places)


# -- element by element -----------------------------------------------------------------------------------


def _unary(name: str) -> Any:
    def operate(src: Any, tag: str | None = None) -> Tile:
        return Tile(tracer(name).emit(name, [tile_of(src, name)]).result)

    operate.__name__ = name
    operate.__doc__ = f"{name}, element by element."
    return operate


def _binary(name: str) -> Any:
    def operate(lhs: Any, rhs: Any, tag: str | None = None) -> Tile:
        known = lhs if isinstance(lhs, Tile) else rhs
        dtype = tile_of(known, name).type.dtype
        pair = [operand(x, dtype, name) for x in (lhs, rhs)]
        return Tile(tracer(name).emit(name, pair).result)

    operate.__name__ = name
    operate.__doc__ = f"{name}, element by element; dimensions broadcast by name."
    return operate


def powf(lhs: Any, rhs: Any, tag: str | None = None) -> Tile:
    """The power, element by element, as the operator ** has it; dimensions broadcast by name."""
    known = lhs if isinstance(lhs, Tile) else rhs
    base = operand(lhs, tile_of(known, "powf").type.dtype, "powf")
    power: Tile = Tile(base) ** rhs
    return power


globals().update({name: _unary(name) for name in (*UNARY_FLOAT, *UNARY_ANY)})
globals().update(
    {name: _binary(name) for name in (*BINARY, *COMPARISONS, "and_", "or_", "xor", "shl", "shr") if name != "powf"}
)
tanh_approx = _unary("tanh")


def softsign(
    src: Any, logit_cap: float = 30.0, apply_scaling: bool = False, head_dim: int | None = None, tag: str | None = None
) -> Tile:
    """X / (1 + |x| / cap); the cap is `logit_cap`, divided by the root of `head_dim` with `apply_scaling`."""
    if type(apply_scaling) is not bool:
        raise DtypeMismatch(f"softsign: apply_scaling={written(apply_scaling, 80)}: True or False", author_location())
    if apply_scaling and head_dim is None:
        raise DtypeMismatch("softsign: apply_scaling=True needs head_dim", author_location())
    for name, number in (("logit_cap", logit_cap), ("head_dim", 1 if head_dim is None else head_dim)):
        if not isinstance(number, int | float) or not number > 0:
            raise DtypeMismatch(f"softsign: {name}={written(number, 80)}: a number above 0", author_location())
    cap = logit_cap * (head_dim or 1) ** -0.5 if apply_scaling else logit_cap
    tile = Tile(tile_of(src, "softsign"))
    quotient: Tile = tile / (abs(tile) * (1.0 / cap) + 1.0)
    return quotient


def select(cond: Any, if_true: Any, if_false: Any, tag: str | None = None) -> Tile:
    """if_true where the condition (a bool tile) holds, if_false elsewhere.

    One of them may be a number, which then has the other's element type.
    """
    if not isinstance(cond, Tile | MemoryArgument):
        raise DtypeMismatch(
            f"select chooses by a bool tile, not by {written(cond, 60)}; a comparison of tiles makes one, as in x > 0, "
            "and what is known before the kernel runs is chosen by Python's `if`",
            author_location(),
        )
    if all(plain_number(x) is not None or isinstance(x, Expr) for x in (if_true, if_false)):
        raise DtypeMismatch(
            f"select(condition, {written(if_true, 60)}, {written(if_false, 60)}): of two numbers the element type is "
            f"not known; give it, for instance tkw.select(condition, tkw.scalar({written(if_true, 60)}, tkl.f32), "
            f"{written(if_false, 60)})",
            author_location(),
        )
    known = if_true if isinstance(if_true, Tile) else if_false
    dtype = tile_of(known, "select").type.dtype
    values = [tile_of(cond, "select"), operand(if_true, dtype, "select"), operand(if_false, dtype, "select")]
    return Tile(tracer("select").emit("select", values).result)


def cast(src: Any, dtype: DTypeLike, tag: str | None = None) -> Tile:
    """The same numbers in another element type.

    Floats round to nearest even; floats become integers towards zero, kept within the range of the type (what is no
    number becomes 0); integers wrap.
    """
    attrs = {"dtype": element_type(dtype, "cast: dtype")}
    return Tile(tracer("cast").emit("cast", [tile_of(src, "cast")], attrs).result)


def bitcast(src: Any, dtype: DTypeLike, tag: str | None = None) -> Tile:
    """The same bits in another element type; the last dimension changes with the width."""
    attrs = {"dtype": element_type(dtype, "bitcast: dtype")}
    return Tile(tracer("bitcast").emit("bitcast", [tile_of(src, "bitcast")], attrs).result)


def _to_dims(name: str, src: Any, target_shape: Any) -> Tile:
    return Tile(tracer(name).emit(name, [tile_of(src, name)], {"to": dims_of(target_shape)}).result)


def broadcast(src: Any, target_shape: Any, tag: str | None = None) -> Tile:
    """The tile repeated along the dimensions that it lacks."""
    return _to_dims("broadcast", src, target_shape)


def permute(src: Any, target_shape: Any, tag: str | None = None) -> Tile:
    """The tile with its dimensions in another order."""
    return _to_dims("permute", src, target_shape)


def reshape(src: Any, target_shape: Any, tag: str | None = None) -> Tile:
    """The tile's elements, last dimension fastest, over other dimensions."""
    return _to_dims("reshape", src, target_shape)


def register(shape: Any, dtype: DTypeLike, value: Any, tag: str | None = None) -> Tile:
    """A tile over these dimensions, every element `value`: `Register[*shape, dtype](value)` as a function."""
    filled: Tile = Register(dims_of(shape), element_type(dtype))(value)
    return filled


# -- indices and scalars ----------------------------------------------------------------------------------


def self_index(
    dim: Any, dtype: DTypeLike = dtypes.i32, elements_per_thread: Any = None, tag: str | None = None
) -> Tile:
    """The coordinates along a dimension, as a tile over it."""
    attrs = {"dim": dim_of(dim, "self_index"), "dtype": element_type(dtype, "self_index: dtype")}
    along = str(attrs["dim"]) if isinstance(attrs["dim"], Symbol) else "an expression"
    tracer("self_index").hint("self_index", along, elements_per_thread)
    return Tile(tracer("self_index").emit("self_index", (), attrs).result)


def apply_expr(value: Any, expr: Callable[..., ExprLike], tag: str | None = None) -> Tile:
    """An expression of the elements of one tile, or of several given as a list."""
    tiles = [tile_of(x, "apply_expr") for x in (value if isinstance(value, tuple | list) else [value])]
    names = tuple(symbol(f"arg{i}") for i in range(len(tiles)))
    if not callable(expr) or isinstance(expr, Expr):  # calling an expression evaluates it
        raise DtypeMismatch(f"apply_expr: {expr!r} is no function of {len(tiles)} symbols", author_location())
    require_call(expr, len(tiles))
    try:
        result = as_expr(expr(*names))
    except TypeError as fault:
        what = f"apply_expr: {written(expr, 80)} of {len(tiles)} symbols raised TypeError: {fault}"
        raise DtypeMismatch(f"{what}; it must give an integer expression of them", author_location()) from fault
    attrs: dict[str, Any] = {"over": names, "value": result}
    if isinstance(result, AtLeastZero | IsZero | And | Or):  # a condition makes a bool tile
        attrs["dtype"] = dtypes.bool_
    return Tile(tracer("apply_expr").emit("apply", tiles, attrs).result)


def set_symbol(symbol_: Symbol, value: Any, tag: str | None = None) -> None:
    """From here on, the symbol stands for the tile's value at the current element."""
    if not isinstance(symbol_, Symbol):
        raise DtypeMismatch(f"set_symbol: {symbol_!r} is no symbol", author_location())
    tile = operand(value, dtypes.i32, "set_symbol")
    trace = tracer("set_symbol")
    trace.assigned[symbol_] = tile.type.dims
    trace.emit("set_symbol", [tile], {"symbol": symbol_})


def scalar(value: Any, dtype: DTypeLike, tag: str | None = None) -> Tile:
    """A number or an expression as a tile without dimensions."""
    return Tile(operand(value, element_type(dtype, "scalar: dtype"), "scalar"))


def extract(src: Any, offset: Any, tag: str | None = None) -> Tile:
    """One element of a tile, at these coordinates."""
    return Tile(tracer("extract").emit("extract", [tile_of(src, "extract")], {"offset": dims_of(offset)}).result)


def debug_log(
    src: Any,
    label: str | None = None,
    extra_iteration_dimensions: Any = None,
    mapping: Any = None,
    printer: Any = None,
    handler: Any = None,
    tag: str | None = None,
) -> None:
    """Keeps the tile's values for the caller (`kernel(..., debug_logs=logs)`); the result does not change.

    After the call, `logs[label]["value"]` is the tile, put together over all loops and workgroups. `printer(label,
    value)` and `handler(logs)` are called then. `extra_iteration_dimensions=[(name, axis, count)]` keeps the first
    iterations of the loop over an axis apart, along a new first dimension.
    """
    trace = tracer("debug_log")
    if label is not None and not isinstance(label, str):
        raise DtypeMismatch(f"debug_log: label={label!r} is no text", author_location())
    rows = extra_iteration_dimensions if isinstance(extra_iteration_dimensions, list | tuple) else ()
    if extra_iteration_dimensions is not None and not (
        rows and all(isinstance(row, list | tuple) and len(row) == 3 for row in rows)
    ):
        raise DtypeMismatch(
            f"debug_log: extra_iteration_dimensions={extra_iteration_dimensions!r}: a list of (name, axis, count)",
            author_location(),
        )
    if mapping is not None and not isinstance(mapping, IndexMapping):
        raise BadMapping(f"debug_log: mapping={mapping!r} is no IndexMapping", author_location())
    name = label or f"debug_log_output_{len(trace.hooks)}"
    trace.hooks[name] = (printer, handler)
    attrs: dict[str, Any] = {"label": name}
    if rows:
        attrs["iterations"] = tuple((dim_of(axis, "debug_log"), dim_of(count, "debug_log")) for _, axis, count in rows)
        attrs["names"] = tuple(dim_of(name, "debug_log") for name, _, _ in rows)
    value = tile_of(src, "debug_log")
    if mapping is not None:
        dims, iterators = mapping.tile_side(mapping.inputs, "debug_log")
        by_dim = dict(zip(dims, iterators, strict=True))
        attrs |= {"to": mapping.output_shape, "at": tuple(mapping.outputs.values())}
        attrs["over"] = tuple(by_dim[d] for d in value.type.dims)
    trace.emit("debug_log", [value], attrs)


__all__ = [
    "apply_expr",
    "argmax",
    "argmin",
    "bitcast",
    "broadcast",
    "cast",
    "conditional",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "debug_log",
    "extract",
    "iterate",
    "max",
    "min",
    "mma",
    "permute",
    "prod",
    "register",
    "reshape",
    "scalar",
    "scaled_mma",
    "select",
    "self_index",
    "set_symbol",
    "softsign",
    "sum",
    "tanh_approx",
    "topk",
]
__all__ += [*UNARY_FLOAT, *UNARY_ANY, *BINARY, *COMPARISONS, "and_", "or_", "xor", "shl", "shr"]
