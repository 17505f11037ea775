"""The operations of the tile language on tiles, as functions that kernels call; `memory_ops` has those on memory.

Each one adds an operation to the kernel being traced and returns its result as a tile. `elements_per_thread` is a hint
to the planner; `explain()` says where a plan does not follow it. Arguments for Wave's compiler, such as `tag`, are
accepted and ignored.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.algebra.expr import And, AtLeastZero, Expr, ExprLike, IsZero, Or, Symbol, as_expr, symbol
from tilewright.errors import BadMapping, DimensionMismatch, DtypeMismatch, OutOfScope, ProgramError
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
    """Return a decorator that traces a Python function as the body of a loop over consecutive tiles of the dimension
    `axis`.

    The decorator emits one `iterate` and returns the loop's results: a tile if one value is carried, otherwise a tuple
    of tiles. The function takes the carried values, at first `init_args`, and returns those of the next iteration; the
    last ones are the results.

    With `start` and `condition` the loop is a while loop: `axis` begins at the scalar `start`, the body sets it by
    `tkw.set_symbol(axis, next)`, and the loop continues while `condition` holds. `any_tile` promises that the results
    do not depend on the tile size. `tag` is ignored.

    Raise OutOfScope if `step`, the number of tiles from one iteration to the next, is not 1. The decorator raises
    DtypeMismatch if `init_args` is no list or tuple, ProgramError if only one of `start` and `condition` is given, and
    DimensionMismatch if the function takes or returns another number of values.
    """
    where = author_location()
    if step != 1:
        raise OutOfScope(f"iterate: step={written(step)}: a loop takes every tile of its axis, step=1", where)

    def decorate(body: Callable[..., Any]) -> Any:
        """Trace `body`, emit the loop, and return its results."""
        trace = tracer("iterate")
        if not isinstance(init_args, list | tuple):
            raise DtypeMismatch(f"iterate: init_args={init_args!r}: give a list of tiles, init_args=[...]", where)
        carried = [operand(a, dtypes.f32, "iterate") for a in init_args]

        def emit_yield(returned: Any) -> None:
            """Emit the `yield` of the body: `returned` are the values of the next iteration."""
            trace.emit("yield", _yielded_values(returned, len(carried), "iterate"))

        attrs: dict[str, Any] = {"axis": dim_of(axis, "iterate")}
        with trace.along(attrs["axis"]):
            block = trace.body(body, [Value(v.type) for v in carried], emit_yield)
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
        op = trace.emit("iterate", operands, attrs, None, (block,))
        for result, name in zip(op.results, block.args, strict=True):
            result.name = name.name
        tiles = tuple(Tile(r) for r in op.results)
        return tiles[0] if len(tiles) == 1 else tiles

    return decorate


def _yielded_values(returned: Any, count: int, what: str) -> list[Value]:
    """Return `returned`, the return value of a traced body (None, one tile or a sequence of tiles), as a list of IR
    values.

    Raise `DimensionMismatch` unless there are `count` values; `what` names the operation in the message.
    """
    if returned is None:
        results: tuple[Any, ...] = ()
    elif isinstance(returned, tuple | list):
        results = tuple(returned)
    else:
        results = (returned,)
    if len(results) != count:
        raise DimensionMismatch(
            f"{what}: {count} values are carried, but the body returns {len(results)}", author_location(2)
        )
    return [tile_of(x, what) for x in results]


def conditional(condition: Any, else_return: Any = None, tag: str | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that traces a Python function as a branch, executed where `condition` holds. The decorator
    emits one `conditional` and returns the results of the branch.

    `condition` is an expression, or a bool tile, which is tested for each element. `else_return` is a value or a list
    of values. With it, the results are the function's return values where the condition holds, and the values of
    `else_return` elsewhere; the function takes the values of `else_return` as arguments, or takes none. One result is
    returned as a tile, several as a tuple. Without `else_return` the decorator returns None. `tag` is ignored.

    The decorator raises DtypeMismatch for another type of condition, OutOfScope for a condition with a thread id, and
    DimensionMismatch if the function has another number of parameters or results.
    """

    def decorate(body: Callable[..., Any]) -> Any:
        """Trace `body`, emit the branch, and return its results."""
        trace = tracer("conditional")
        attrs: dict[str, Any] = {}
        operands: list[Value] = []
        if isinstance(condition, Tile):
            operands.append(condition.value)
        elif isinstance(condition, Expr | bool | int):
            attrs["when"] = as_expr(int(condition) if isinstance(condition, bool) else condition)
            refuse_threads(attrs["when"])  # before tracing the body, which may fail for the same reason
        else:
            raise DtypeMismatch(f"conditional on {condition!r}: give a tile or an expression", author_location(1))
        otherwise = (
            [] if else_return is None else list(else_return if isinstance(else_return, tuple | list) else [else_return])
        )

        def emit_yield(returned: Any) -> None:
            """Emit the `yield` of the branch with the values `returned`; nothing if there is no `else_return`."""
            if otherwise:
                trace.emit(
                    "yield",
                    _yielded_values(
                        returned, len(otherwise), f"conditional(..., else_return={written(otherwise, 80)})"
                    ),
                )

        else_tiles = [Tile(tile_of(x, "conditional")) for x in otherwise]
        block = trace.body(_bind_arguments(body, else_tiles), [], emit_yield)
        operands += [tile.value for tile in else_tiles]
        op = trace.emit("conditional", operands, attrs, None, (block,))
        tiles = tuple(Tile(r) for r in op.results)
        return None if not tiles else tiles[0] if len(tiles) == 1 else tiles

    return decorate


def _bind_arguments(body: Callable[..., Any], values: list[Tile]) -> Callable[[], Any]:
    """Return a function without parameters that calls `body` with the tiles `values` as arguments.

    If `body` has no parameters, return `body`. Raise `DimensionMismatch` if `body` cannot be called with `len(values)`
    arguments.
    """
    if not inspect.signature(body).parameters:
        return body
    require_call(body, len(values), "of else_return")
    return lambda: body(*values)


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
    """Emit one `mma`, acc + sum(lhs * rhs), and return it as a tile. The sum is over the dimensions that `lhs` and
    `rhs` have and the accumulator `acc` lacks.

    Dimensions are matched by name, in any order; dimensions that all three tiles have are batch dimensions. By default
    f32 operands are multiplied as f32, and accumulators are f32 or wider. `precision="tf32"` reduces f32 operands to
    ten bits of fraction, rounded to nearest, or truncated if the machine's MMA truncates. `accumulate="f16"`, for f16
    operands and `acc`, allows sums in f16, which may be rounded after every product. `mma_type` and `tag` are ignored.
    Raise DtypeMismatch for another `precision`.
    """
    if precision not in (None, "tf32"):
        raise DtypeMismatch(f'mma: precision={precision!r}; "tf32" or nothing', author_location())
    options = {"precision": precision, "accumulate": accumulate}
    attrs = {name: value for name, value in options.items() if value is not None}
    return Tile(tracer("mma").emit("mma", [tile_of(x, "mma") for x in (lhs, rhs, acc)], attrs).result)


GROUP = 32
"""The number of consecutive elements along K that share a scale."""


def scaled_mma(
    lhs: Any, lhs_scale: Any, rhs: Any, rhs_scale: Any, acc: Any, mma_type: Any = None, tag: str | None = None
) -> Tile:
    """Emit acc + sum(lhs * rhs) for microscaled operands (MXFP4, MXFP8), and return it as a tile. 32 consecutive
    elements along K share a scale.

    `lhs_scale` and `rhs_scale` are tiles of any float type, with a dimension K/32 in place of K. Operands are
    multiplied by their scales in f32, then by each other. `mma_type` and `tag` are ignored. Raise DimensionMismatch if
    a scale lacks K/32.
    """
    acc_dims = tile_of(acc, "scaled_mma").type.dims
    operands = []
    for name, x, scale in (("lhs", lhs, lhs_scale), ("rhs", rhs, rhs_scale)):
        tile, scale_tile = tile_of(x, "scaled_mma"), tile_of(scale, "scaled_mma")
        pairs = [(d, g) for d in tile.type.dims if d not in acc_dims for g in scale_tile.type.dims if g * GROUP is d]
        if len(pairs) != 1:
            raise DimensionMismatch(
                f"scaled_mma: {name} has the dimensions {dims_text(tile.type.dims)} and its scale "
                f"{dims_text(scale_tile.type.dims)}; the scale must have K/{GROUP} where {name} has the summed "
                "dimension K",
                author_location(),
            )
        ((dim, group),) = pairs
        attrs = {"dim": group, "to": dim, "times": GROUP}
        scales = Tile(tracer("scaled_mma").emit("repeat", [cast(scale, dtypes.f32).value], attrs).result)
        operands.append(cast(x, dtypes.f32) * scales)
    left, right = operands
    return mma(left, right, acc)


def _make_reduction(name: str) -> Any:
    """Return the Python function `tkw.<name>(src, acc, dim)`, for `name` "sum", "max", "min" or "prod".

    The function emits a reduction of the tile `src`, or of a list of tiles, over `dim`: one dimension, a list of
    dimensions, or None for the last dimension. It returns the result as a tile of the same element type. The tile or
    number `acc`, if given, is combined into the result. The parameters `block` and `tag` are ignored. The function
    raises DtypeMismatch if `acc` has another element type, or if `src` is an empty list.
    """

    def reduce(src: Any, acc: Any = None, dim: Any = None, block: bool = False, tag: str | None = None) -> Tile:
        """Emit the reduction of `src` over `dim`, combined with `acc`; return the result."""
        sources = [tile_of(x, name) for x in (src if isinstance(src, tuple | list) else [src])]
        if not sources:
            raise DtypeMismatch(f"{name} of nothing: give a tile, or a list of tiles", author_location())
        trace, dtype = tracer(name), sources[0].type.dtype
        *leading_dims, last_dim = _reduced_dims(sources[0], dim, name)
        if leading_dims and dtype.is_narrow and name in ("sum", "prod"):  # rounded once, as one reduction is
            sources = [cast(Tile(x), dtype.accumulator).value for x in sources]
        for leading_dim in leading_dims:
            sources = [trace.emit(name, sources, {"dim": leading_dim}).result]
        if acc is not None:
            carried = operand(acc, dtype, name)
            if carried.type.dtype is not dtype:
                raise DtypeMismatch(
                    f"{name} of {dtype} with an accumulator of {carried.type.dtype}: the element types differ; cast "
                    f"one, for instance tkw.cast(x, tkl.{carried.type.dtype})",
                    author_location(),
                )
            return Tile(trace.emit(name, [*sources, carried], {"dim": last_dim, "acc": True}).result)
        reduced = Tile(trace.emit(name, sources, {"dim": last_dim}).result)
        return reduced if reduced.type.dtype is dtype else cast(reduced, dtype)

    reduce.__name__ = reduce.__qualname__ = name
    reduce.__doc__ = (
        f"Emit the {name} of the tile `src` (or of a list of tiles) over `dim`: one dimension, a list, or None for the "
        "last one. Return it as a tile. `acc`, if given, is combined into it; `block` and `tag` are ignored."
    )
    return reduce


def _reduced_dims(value: Value, dim: Any, what: str) -> list[Expr]:
    """Return the dimensions over which the operation `what` reduces the tile `value`, as a list, in the order of
    reduction. `dim` is one dimension, a list of dimensions, or None for the tile's last dimension.

    Dimensions of a list are ordered as in the tile, from last to first. Axes of enclosing loops come after all others,
    since the reduction accumulates over them. Raise DimensionMismatch if a list is empty, names a dimension twice, or
    names a dimension that the tile lacks. A single dimension is not checked.
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
            problem = f"{d} stands there twice" if d in value.type.dims else f"{has}, and {d} is none of them"
            raise DimensionMismatch(f"{what} over {dims_text(tuple(dims))}: {problem}", author_location(2))
    axes = tracer(what).axes
    return sorted(dims, key=lambda d: (axes.index(d) if d in axes else -1, -value.type.dims.index(d)))


def _last_dim(value: Value, what: str) -> Expr:
    """Return the last dimension of the tile `value`. Raise `DimensionMismatch` if the tile has no dimensions; `what`
    names the operation in the message.
    """
    if not value.type.dims:
        raise DimensionMismatch(f"{what} of {value.type}: it has no dimensions", author_location(2))
    last: Expr = value.type.dims[-1]
    return last


sum, max, min, prod = (_make_reduction(name) for name in ("sum", "max", "min", "prod"))  # noqa: A001


def _make_scan(name: str) -> Any:
    """Return the Python function `tkw.<name>(src, acc, dim)`, for `name` "cumsum", "cumprod", "cummax" or "cummin".

    The function emits a scan (running reduction) of the tile `src` along the dimension `dim` (None: the last one), and
    returns the result as a tile. The tile or number `acc`, if given, is combined into every element. The parameters
    `block` and `tag` are ignored.
    """

    def scan(src: Any, acc: Any = None, dim: Any = None, block: bool = False, tag: str | None = None) -> Tile:
        """Emit the scan of `src` along `dim`, combined with `acc`; return the result."""
        value = tile_of(src, name)
        attrs = {"dim": _last_dim(value, name) if dim is None else dim_of(dim, name)}
        extra = [] if acc is None else [operand(acc, value.type.dtype, name)]
        return Tile(tracer(name).emit(name, [value, *extra], attrs).result)

    scan.__name__ = scan.__qualname__ = name
    scan.__doc__ = (
        f"Emit the running {SCANS[name]} of the tile `src` along the dimension `dim` (None: the last one). Return it "
        "as a tile. `acc`, if given, is combined into every element; `block` and `tag` are ignored."
    )
    return scan


cumsum, cumprod, cummax, cummin = (_make_scan(name) for name in SCANS)


def _make_arg_reduction(name: str, reduction: str) -> Any:
    """Return the Python function `tkw.<name>(src, dim)`, for `name` "argmax" or "argmin"; `reduction` is "max" or
    "min".

    The function emits the index of the first largest (smallest) element of the tile `src` along the dimension `dim`
    (None: the last one), and returns it as an i32 tile. A NaN counts as the largest and as the smallest element. The
    function raises DimensionMismatch if the tile lacks `dim`.
    """

    def arg_reduce(src: Any, dim: Any = None, tag: str | None = None) -> Tile:
        """Emit the index of the first extreme element of `src` along `dim`; return the indices."""
        tile = Tile(tile_of(src, name))
        reduced_dim = _last_dim(tile.value, name) if dim is None else dim_of(dim, name)
        if reduced_dim not in tile.type.dims:
            raise DimensionMismatch(
                f"{name} over {reduced_dim}: the tile has the dimensions {dims_text(tile.type.dims)}", author_location()
            )
        trace = tracer(name)
        extreme = trace.emit(reduction, [tile.value], {"dim": reduced_dim}).result
        is_extreme = tile == Tile(extreme)
        if tile.type.dtype.is_float:  # the extreme of a tile with a NaN is NaN, which equals nothing
            is_extreme = is_extreme | (tile != tile)
        indices = select(is_extreme, self_index(reduced_dim), _NO_INDEX)
        return Tile(trace.emit("min", [indices.value], {"dim": reduced_dim}).result)

    arg_reduce.__name__ = name
    arg_reduce.__doc__ = (
        f"Emit the index of the first {reduction} of the tile `src` along the dimension `dim` (None: the last one). "
        f"Return it as an i32 tile. A NaN is the {reduction}, as in PyTorch; `tag` is ignored."
    )
    return arg_reduce


_NO_INDEX = 2**31 - 1
"""The index given to elements that are not the extreme; it is larger than any index of a tile."""
argmax, argmin = _make_arg_reduction("argmax", "max"), _make_arg_reduction("argmin", "min")


def topk(src: Any, k_dim: Any, dim: Any, tag: str | None = None) -> tuple[Tile, Tile]:
    """Emit one `topk` of the tile `src` along the dimension `dim`, and return two tiles, (values, i32 indices), of the
    largest elements in descending order.

    `k_dim`, a symbol or an integer, is the number of elements to find, and the dimension that replaces `dim` in the
    results. Of equal elements, the one with the lower index comes first. A NaN is larger than any number, as in `max`
    and PyTorch. `tag` is ignored.
    """
    attrs = {"dim": dim_of(dim, "topk"), "count": dim_of(k_dim, "topk")}
    values, indices = tracer("topk").emit("topk", [tile_of(src, "topk")], attrs).results
    return Tile(values), Tile(indices)


# -- element by element -----------------------------------------------------------------------------------


def _make_unary(name: str) -> Any:
    """Return the Python function `tkw.<name>(src)`, such as `tkw.exp`, which emits the operation `name` on each element
    of the tile `src` and returns the result as a tile.
    """

    def operate(src: Any, tag: str | None = None) -> Tile:
        """Emit the operation on each element of `src`; return the result."""
        return Tile(tracer(name).emit(name, [tile_of(src, name)]).result)

    operate.__name__ = name
    operate.__doc__ = f"Emit {name} of the tile `src`, element by element, and return it as a tile. `tag` is ignored."
    return operate


def _make_binary(name: str) -> Any:
    """Return the Python function `tkw.<name>(lhs, rhs)`, such as `tkw.maximum`, which emits the operation `name` on the
    elements of two tiles, or of a tile and a number, and returns the result as a tile. Dimensions broadcast by name.
    """

    def operate(lhs: Any, rhs: Any, tag: str | None = None) -> Tile:
        """Emit the operation on the elements of `lhs` and `rhs`; return the result."""
        typed_operand = lhs if isinstance(lhs, Tile) else rhs
        dtype = tile_of(typed_operand, name).type.dtype
        operands = [operand(x, dtype, name) for x in (lhs, rhs)]
        return Tile(tracer(name).emit(name, operands).result)

    operate.__name__ = name
    operate.__doc__ = (
        f"Emit {name} of `lhs` and `rhs`, element by element, and return it as a tile. One of them may be a number; "
        "dimensions broadcast by name. `tag` is ignored."
    )
    return operate


def powf(lhs: Any, rhs: Any, tag: str | None = None) -> Tile:
    """Emit `lhs` ** `rhs`, element by element, and return it as a tile; dimensions broadcast by name. Either `lhs` or
    `rhs` may be a number. `tag` is ignored.

    A small integer exponent becomes multiplications, as with the operator `**`.
    """
    typed_operand = lhs if isinstance(lhs, Tile) else rhs
    base = operand(lhs, tile_of(typed_operand, "powf").type.dtype, "powf")
    power: Tile = Tile(base) ** rhs
    return power


globals().update({name: _make_unary(name) for name in (*UNARY_FLOAT, *UNARY_ANY)})
globals().update(
    {name: _make_binary(name) for name in (*BINARY, *COMPARISONS, "and_", "or_", "xor", "shl", "shr") if name != "powf"}
)
tanh_approx = _make_unary("tanh")


def softsign(
    src: Any, logit_cap: float = 30.0, apply_scaling: bool = False, head_dim: int | None = None, tag: str | None = None
) -> Tile:
    """Emit x / (1 + |x| / cap) for the elements x of the tile `src`, and return it as a tile.

    The cap is `logit_cap`; with `apply_scaling` it is divided by sqrt(`head_dim`), which must be given then. Raise
    DtypeMismatch if `logit_cap` or `head_dim` is not above 0, if `apply_scaling` is no bool, or if `head_dim` is
    missing. `tag` is ignored.
    """
    if type(apply_scaling) is not bool:
        raise DtypeMismatch(f"softsign: apply_scaling={written(apply_scaling, 80)}: True or False", author_location())
    if apply_scaling and head_dim is None:
        raise DtypeMismatch("softsign: apply_scaling=True needs head_dim", author_location())
    for name, value in (("logit_cap", logit_cap), ("head_dim", 1 if head_dim is None else head_dim)):
        if not isinstance(value, int | float) or not value > 0:
            raise DtypeMismatch(f"softsign: {name}={written(value, 80)}: a number above 0", author_location())
    cap = logit_cap * (head_dim or 1) ** -0.5 if apply_scaling else logit_cap
    tile = Tile(tile_of(src, "softsign"))
    quotient: Tile = tile / (abs(tile) * (1.0 / cap) + 1.0)
    return quotient


def select(cond: Any, if_true: Any, if_false: Any, tag: str | None = None) -> Tile:
    """Emit one `select` and return it as a tile: the elements of `if_true` where the bool tile `cond` holds, and of
    `if_false` elsewhere.

    Either `if_true` or `if_false` may be a number, which takes the element type of the other. Raise DtypeMismatch if
    both are numbers, or if `cond` is no tile. `tag` is ignored.
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
    typed_operand = if_true if isinstance(if_true, Tile) else if_false
    dtype = tile_of(typed_operand, "select").type.dtype
    values = [tile_of(cond, "select"), operand(if_true, dtype, "select"), operand(if_false, dtype, "select")]
    return Tile(tracer("select").emit("select", values).result)


def cast(src: Any, dtype: DTypeLike, tag: str | None = None) -> Tile:
    """Emit one `cast` and return it: the tile `src` converted to the element type `dtype`. `tag` is ignored.

    Floats round to nearest even. Floats become integers by truncation, clamped to the range of the type; NaN becomes 0.
    Integers wrap.
    """
    attrs = {"dtype": element_type(dtype, "cast: dtype")}
    return Tile(tracer("cast").emit("cast", [tile_of(src, "cast")], attrs).result)


def bitcast(src: Any, dtype: DTypeLike, tag: str | None = None) -> Tile:
    """Emit one `bitcast` and return it: the bits of the tile `src` as elements of type `dtype`.

    If the widths differ, the extent of the last dimension changes: f32[M, N] becomes f16[M, 2*N]. `tag` is ignored.
    """
    attrs = {"dtype": element_type(dtype, "bitcast: dtype")}
    return Tile(tracer("bitcast").emit("bitcast", [tile_of(src, "bitcast")], attrs).result)


def _emit_with_dims(name: str, src: Any, target_shape: Any) -> Tile:
    """Emit the operation `name` ("broadcast", "permute" or "reshape") on the tile `src` and return the result, a tile
    with the dimensions `target_shape`.
    """
    return Tile(tracer(name).emit(name, [tile_of(src, name)], {"to": dims_of(target_shape)}).result)


def broadcast(src: Any, target_shape: Any, tag: str | None = None) -> Tile:
    """Emit one `broadcast` and return it: the tile `src` repeated along the dimensions of `target_shape` that `src`
    lacks. `tag` is ignored.
    """
    return _emit_with_dims("broadcast", src, target_shape)


def permute(src: Any, target_shape: Any, tag: str | None = None) -> Tile:
    """Emit one `permute` and return it: the tile `src` with its dimensions in the order of `target_shape`, a sequence
    of all dimensions. `tag` is ignored.
    """
    return _emit_with_dims("permute", src, target_shape)


def reshape(src: Any, target_shape: Any, tag: str | None = None) -> Tile:
    """Emit one `reshape` and return it: the elements of the tile `src`, in row-major order, as a tile of the dimensions
    `target_shape`. `tag` is ignored.
    """
    return _emit_with_dims("reshape", src, target_shape)


def register(shape: Any, dtype: DTypeLike, value: Any, tag: str | None = None) -> Tile:
    """Emit one `fill` and return it: a tile with the dimensions `shape` and the element type `dtype`, in which every
    element is the number or expression `value`, like `Register[*shape, dtype](value)`. `tag` is ignored.
    """
    tile: Tile = Register(dims_of(shape), element_type(dtype))(value)
    return tile


# -- indices and scalars ----------------------------------------------------------------------------------


def self_index(
    dim: Any, dtype: DTypeLike = dtypes.i32, elements_per_thread: Any = None, tag: str | None = None
) -> Tile:
    """Emit one `self_index` and return it: the coordinates 0, 1, 2, ... along the dimension `dim`, as a one-dimensional
    tile of element type `dtype`. Inside a loop over `dim`, they are the coordinates of the current tile.

    `elements_per_thread` is a hint to the planner; `tag` is ignored.
    """
    attrs = {"dim": dim_of(dim, "self_index"), "dtype": element_type(dtype, "self_index: dtype")}
    dim_text = str(attrs["dim"]) if isinstance(attrs["dim"], Symbol) else "an expression"
    tracer("self_index").hint("self_index", dim_text, elements_per_thread)
    return Tile(tracer("self_index").emit("self_index", (), attrs).result)


def apply_expr(value: Any, expr: Callable[..., ExprLike], tag: str | None = None) -> Tile:
    """Emit one `apply` and return it: a tile with the integer function `expr` of the elements of `value`, a tile or a
    list of tiles.

    `expr` is a Python function with one argument per tile. It is called once, on symbols, and returns an integer
    expression of the symbols, or a condition, which gives a bool tile: `lambda i: i // 2 + 1`. Raise DtypeMismatch if
    `expr` is no function or does not return an expression, and DimensionMismatch if it takes another number of
    arguments. `tag` is ignored.
    """
    tiles = [tile_of(x, "apply_expr") for x in (value if isinstance(value, tuple | list) else [value])]
    arguments = tuple(symbol(f"arg{i}") for i in range(len(tiles)))
    if not callable(expr) or isinstance(expr, Expr):  # calling an expression evaluates it
        raise DtypeMismatch(f"apply_expr: {expr!r} is no function of {len(tiles)} symbols", author_location())
    require_call(expr, len(tiles))
    try:
        result = as_expr(expr(*arguments))
    except TypeError as fault:
        message = f"apply_expr: {written(expr, 80)} of {len(tiles)} symbols raised TypeError: {fault}"
        raise DtypeMismatch(f"{message}; it must give an integer expression of them", author_location()) from fault
    attrs: dict[str, Any] = {"over": arguments, "value": result}
    if isinstance(result, AtLeastZero | IsZero | And | Or):  # a condition makes a bool tile
        attrs["dtype"] = dtypes.bool_
    return Tile(tracer("apply_expr").emit("apply", tiles, attrs).result)


def set_symbol(symbol_: Symbol, value: Any, tag: str | None = None) -> None:
    """Emit one `set_symbol`: in all later operations `symbol_` stands for the element of `value` at the current
    coordinates. `value` is an integer tile or a number; `tag` is ignored. Raise DtypeMismatch if `symbol_` is no
    symbol.
    """
    if not isinstance(symbol_, Symbol):
        raise DtypeMismatch(f"set_symbol: {symbol_!r} is no symbol", author_location())
    tile = operand(value, dtypes.i32, "set_symbol")
    trace = tracer("set_symbol")
    trace.assigned[symbol_] = tile.type.dims
    trace.emit("set_symbol", [tile], {"symbol": symbol_})


def scalar(value: Any, dtype: DTypeLike, tag: str | None = None) -> Tile:
    """Emit the number or integer expression `value` as a tile of element type `dtype` without dimensions, and return
    the tile. If `value` is a tile, return it unchanged. `tag` is ignored.
    """
    return Tile(operand(value, element_type(dtype, "scalar: dtype"), "scalar"))


def extract(src: Any, offset: Any, tag: str | None = None) -> Tile:
    """Emit one `extract` and return it: the element of the tile `src` at `offset`, as a tile without dimensions.

    `offset` is a list of one coordinate for each dimension, or a single number: the element's position in row-major
    order. `tag` is ignored.
    """
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
    """Emit one `debug_log`, which records the elements of the tile `src` for the caller of the kernel (`kernel(...,
    debug_logs=logs)`). No result changes.

    After the call, `logs[label]["value"]` is the whole tile, collected over all loops and workgroups. Without a
    `label`, the name is `debug_log_output_N`, with the number N of earlier labels. `printer(label, value)` and
    `handler(logs)` are called after the kernel. `extra_iteration_dimensions=[(name, axis, count)]` keeps the first
    `count` iterations of the loop over `axis` separate, along a new first dimension. `mapping` maps the tile to the
    logged array. `tag` is ignored. Raise DtypeMismatch for a wrong `label` or `extra_iteration_dimensions`, BadMapping
    for a wrong `mapping`.
    """
    trace = tracer("debug_log")
    if label is not None and not isinstance(label, str):
        raise DtypeMismatch(f"debug_log: label={label!r} is no text", author_location())
    iteration_dims = extra_iteration_dimensions if isinstance(extra_iteration_dimensions, list | tuple) else ()
    if extra_iteration_dimensions is not None and not (
        iteration_dims and all(isinstance(row, list | tuple) and len(row) == 3 for row in iteration_dims)
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
    if iteration_dims:
        attrs["iterations"] = tuple(
            (dim_of(axis, "debug_log"), dim_of(count, "debug_log")) for _, axis, count in iteration_dims
        )
        attrs["names"] = tuple(dim_of(name, "debug_log") for name, _, _ in iteration_dims)
    value = tile_of(src, "debug_log")
    if mapping is not None:
        dims, iterators = mapping.tile_side(mapping.inputs, "debug_log")
        if not set(value.type.dims) <= set(dims):
            raise BadMapping(
                f"debug_log: the mapping's inputs have {dims_text(dims)}, the tile has {dims_text(value.type.dims)}",
                author_location(),
            )
        attrs |= {"to": mapping.output_shape, "at": tuple(mapping.outputs.values())}
        attrs["over"] = tuple(iterators[dims.index(d)] for d in value.type.dims)
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
