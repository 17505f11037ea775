"""Rules that form tiles: constants, indices, elementwise functions, casts, selects, and changes of shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ExecutionError, ProgramError
from tilewright.ir import dtypes
from tilewright.ir import tile_formulas as formulas
from tilewright.ir import tile_functions as functions
from tilewright.ir.core import Op, TileType, Value
from tilewright.ir.formula import Formula
from tilewright.ir.printer import op_text
from tilewright.ir.tile import union_dims
from tilewright.ir.tile_formulas import call, converted
from tilewright.ir.tile_functions import is_composed
from tilewright.lower.block import dynamic_bounds, masks
from tilewright.lower.block.lazy_tiles import Parts, Tile, common_parts, load, loads, most, only_load, rewritten, weight
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.materialise import is_row, simple
from tilewright.lower.block.storage import Storage

LOG2_E = 1.4426950408889634
"""e^x is 2^(x * LOG2_E)."""


COARSE = 16
"""Floats of at most this many bits have a rounding error larger than that of any approximated function."""


def _tiles(storage: Storage, op: Op, dims: tuple[Expr, ...]) -> list[Tile]:
    """Return the lazy Tiles (formulas) of the operands of `op`, for a result with the dimensions `dims`.

    An operand that lacks some of `dims` is repeated along them. If the formula of such an operand is expensive, code is
    emitted that stores the operand first, and its Tile loads the stored elements.
    """
    return [simple(storage, v, 7) if set(storage.env[v].dims) < set(dims) else storage.env[v] for v in op.operands]


def elementwise(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Lower an elementwise function; return (result tile,), whose formula applies the function to the operands'
    formulas.

    Two functions are approximated if the low bits of their f32 result do not matter (`_is_coarse`): exp becomes exp2,
    and a division by one value per row becomes a multiplication by a reciprocal, which is computed once per row.
    Expensive operands are stored first if they are repeated along a dimension, or if the function is a formula that
    uses operands several times.
    """
    kind: TileType = op.results[0].type
    dtype = op.operands[0].type.dtype
    storage, composed = low.storage, is_composed(op.name, dtype)
    tiles = [simple(storage, v) for v in op.operands] if composed else _tiles(storage, op, kind.dims)
    parts = common_parts(tiles)
    if op.name == "exp" and _is_coarse(low, op):
        formula = call("exp2", _as_exp2_argument(low.storage, tiles[0]))
    elif op.name == "div" and _is_coarse(low, op) and is_row(low.writer, tiles[1]) and not is_row(low.writer, tiles[0]):
        reciprocal = low.storage.stored(
            Tile(dtypes.f32, tiles[1].dims, tiles[1].parts, call("reciprocal", tiles[1].formula))
        )
        formula = call("mul", tiles[0].formula, reciprocal.formula)
    else:
        formula = functions.elementwise(op.name, dtype, *(t.formula for t in tiles))
    return (Tile(kind.dtype, kind.dims, {d: parts[d] for d in kind.dims}, formula),)


def _is_coarse(low: Lowering, op: Op) -> bool:
    """True if the low bits of the f32 result of `op` do not matter, so that exp or a division may be approximated.

    If values between MMAs are in registers (`low.writer.fragment_layout`), each direct user must be a sum, a cast to at
    most 16 bits, or a multiplication whose result is only used as an accumulator. Otherwise `op` must be an exp, the
    machine must have lanes, and all values computed from the result must in the end be rounded to floats of at most 16
    bits. False for other types than f32.
    """
    (value,) = op.results
    if value.type.dtype is not dtypes.f32:
        return False
    if low.writer.fragment_layout is None:
        return low.machine.lanes is not None and op.name == "exp" and _ends_coarse(low.users, value)

    def adds(value: Value, user: Op) -> bool:
        """True if `value` is the accumulator operand of the operation `user`."""
        return (user.name == "mma" or bool(user.attrs.get("acc"))) and user.operands[-1] is value

    def coarse(user: Op) -> bool:
        """True if the operation `user` needs the result of `op` in low precision only."""
        if user.name == "mul":
            (product,) = user.results
            return all(adds(product, other) for other in low.users.get(product, ()))
        return user.name == "sum" or (user.name == "cast" and user.attrs["dtype"].bits <= COARSE)

    return all(map(coarse, low.users.get(value, ())))


def _ends_coarse(users_of: Mapping[Value, Sequence[Op]], value: Value) -> bool:
    """True if `value` is used only by casts to floats of at most 16 bits, directly or after sums, products and
    quotients.

    `users_of` is {value: the operations that use it}. False if nothing uses `value`, or a result on the way.
    """
    users = users_of.get(value, ())

    def coarse(user: Op) -> bool:
        """True if `user` casts to a float of at most 16 bits, or is a sum, product or quotient whose result is in the
        end only cast so.
        """
        if user.name == "cast":
            return bool(user.attrs["dtype"].is_float and user.attrs["dtype"].bits <= COARSE)
        return user.name in ("sum", "mul", "div") and len(user.results) == 1 and _ends_coarse(users_of, user.results[0])

    return bool(users) and all(map(coarse, users))


def _as_exp2_argument(storage: Storage, tile: Tile) -> Formula:
    """Return the formula of y = x * log2(e), for which 2^y = e^x; `tile` gives x.

    If x is a - b in registers, and b has one value per row, y is one fma: a number that scales a is merged with
    log2(e), and code is emitted that computes -b * log2(e) once per row.
    """
    formula, layout = tile.formula, storage.writer.fragment_layout
    if is_row(storage.writer, tile) or formula.name != "sub" or layout is None:
        return call("mul", formula, formulas.number(LOG2_E, dtypes.f32))
    a, b = formula.parts
    if not any(loads(b)) or any(storage.sums.get(each.tensor) != (layout.row,) for each in loads(b)):
        return call("mul", formula, formulas.number(LOG2_E, dtypes.f32))
    largest = formulas.number(float(np.finfo(np.float32).max), dtypes.f32)  # no +inf, so that -inf - b stays -inf
    row_term = call("minimum", call("mul", b, formulas.number(-LOG2_E, dtypes.f32)), largest)
    dims = tuple(d for d in tile.dims if d is layout.row or tile.parts[d][1] == 1)
    row = storage.stored(Tile(dtypes.f32, dims, {d: tile.parts[d] for d in dims}, row_term), name="down")
    inner, factor = formulas.scale_of(a)
    return Formula("fma", (inner, Formula.number(formulas.rounded(factor * LOG2_E, dtypes.f32)), row.formula))


def select(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Lower a `select`; return (result tile,): elements of one tile where a condition holds, of another elsewhere.

    If values between MMAs are in registers, and a condition on coordinates chooses between a tile and one number, a
    masked copy is emitted under a branch (`masks.select`). Otherwise the result is a formula, and operands that are
    expensive and repeated along a dimension are stored first.
    """
    kind: TileType = op.results[0].type
    tiles = _tiles(low.storage, op, kind.dims)
    parts = common_parts(tiles)
    masked = masks.select(low, op, tiles, parts)
    if masked is not None:
        return (masked,)
    formula = call("select", *(t.formula for t in tiles))
    return (Tile(kind.dtype, kind.dims, {d: parts[d] for d in kind.dims}, formula),)


def cast(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Lower a `cast`; return (result tile,): the operand's numbers in the element type of the attribute `dtype`.

    The result is a formula. If floats become integers, an operand with an expensive formula is stored first.
    """
    to = op.attrs["dtype"]
    (value,) = op.operands
    tile = simple(low.storage, value) if value.type.dtype.is_float and to.kind == "int" else low.storage.env[value]
    return (Tile(to, tile.dims, tile.parts, formulas.cast(tile.formula, tile.dtype, to)),)


def bitcast(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Lower a `bitcast`; return (result tile,): the same bits in the element type of the attribute `dtype`.

    If that type has another width, the extent of the last dimension changes. Code is emitted that stores the bits in
    shared memory (on a CPU: the worker's own), unless they are there already, or the type is the same. Types of
    different widths must have 8, 16, 32 or 64 bits; raise a ProgramError for others. But 8-bit elements may become f4
    floats, two from each.
    """
    storage = low.storage
    (value,) = op.operands
    to = op.attrs["dtype"]
    tile = storage.env[value]
    if to.bits == tile.dtype.bits:
        return (_as_bits(storage, tile, to),)
    if to is dtypes.f4e2m1fn and tile.dtype.bits in _WORDS:
        bytes_ = Tile(dtypes.i8, tile.dims, tile.parts, tile.formula)
        if tile.dtype.bits != 8:
            raise ProgramError(f"bitcast of {tile.dtype} to {to} has no native form yet; go by i8", op.loc)
        return (_as_f4_pairs(storage, bytes_ if tile.dtype is dtypes.i8 else _as_bits(storage, tile, dtypes.i8), op),)
    if to.bits not in _WORDS or tile.dtype.bits not in _WORDS:
        raise ProgramError(f"bitcast of {tile.dtype} to {to} has no native form yet", op.loc)
    return (_other_width(storage, _as_bits(storage, tile, _WORDS[tile.dtype.bits]), op.results[0].type),)


_WORDS = {8: dtypes.i8, 16: dtypes.i16, 32: dtypes.i32, 64: dtypes.i64}


def _as_bits(storage: Storage, tile: Tile, to: dtypes.DType) -> Tile:
    """Return a tile with the bits of `tile` as elements of the type `to`, which has the same width.

    `tile` is returned unchanged if it has the type already. Otherwise a bitcast is emitted of the shared tensor that
    holds the tile; a tile that no shared tensor holds is stored in one first.
    """
    if tile.dtype is to:
        return tile
    source = only_load(tile.formula)
    if source is None or source.tensor.type.space != "shared":
        tile = storage.stored(tile)
        source = only_load(tile.formula)
    if source is None:  # the tile has no elements
        return Tile(to, tile.dims, tile.parts, formulas.number(0, to))
    tensor = storage.writer.emit("bitcast", (source.tensor,), dtype=to).result
    tensor.name = storage.writer.fresh(f"{source.tensor.name}_bits")
    return Tile(to, tile.dims, tile.parts, load(tensor, *source.at))


def _other_width(storage: Storage, tile: Tile, kind: TileType) -> Tile:
    """Return a tile with the bits of the integers in `tile` as elements of another width: those of the type `kind`.

    Integers are split or joined along the last dimension, the lowest bits first: one i32 becomes two i16, or two i16
    become one i32. If the element type of `kind` is no integer, a bitcast to that type is emitted. `kind` also has the
    dimensions of the result.
    """
    *outer, last = kind.dims
    before = tile.dims[-1]
    parts = {d: tile.parts[d] for d in outer}
    start, width = tile.parts[before]
    c, word = storage.scope.coordinate(last), _WORDS[kind.dtype.bits]
    bits, narrow = tile.dtype.bits, word.bits < tile.dtype.bits
    if narrow:
        ratio = bits // word.bits
        parts[last] = start * ratio, width * ratio
        wide = rewritten(tile.formula, Substitution({storage.scope.coordinate(before): c // ratio}))
        formula = Formula.cast(word, Formula("shr", (wide, formulas.index(c % ratio * word.bits, tile.dtype))))
    else:
        ratio = word.bits // bits
        parts[last] = start / ratio, width // ratio
        pieces = []
        for n in range(ratio):
            piece = rewritten(tile.formula, Substitution({storage.scope.coordinate(before): c * ratio + n}))
            mask = formulas.number((1 << bits) - 1, word)
            clean = call("and_", Formula.cast(word, piece), mask)
            pieces.append(call("shl", clean, formulas.number(bits * n, word)) if n else clean)
        formula = reduce(lambda a, b: Formula("or_", (a, b)), pieces)
    return _as_bits(storage, Tile(word, kind.dims, parts, formula), kind.dtype)


def _as_f4_pairs(storage: Storage, tile: Tile, op: Op) -> Tile:
    """Return a tile of f4 floats from `tile`, a tile of bytes: two from each byte, the lower half first. Code is
    emitted that stores their codes as i32.

    A code has a sign bit, and three bits for 0, 0.5, 1, 1.5, 2, 3, 4 or 6. `op` is the bitcast, which has the type of
    the result.
    """
    kind: TileType = op.results[0].type
    last, before = kind.dims[-1], tile.dims[-1]
    start, width = tile.parts[before]
    parts = {**{d: tile.parts[d] for d in kind.dims[:-1]}, last: (start * 2, width * 2)}
    c = storage.scope.coordinate(last)
    byte = Formula.cast(dtypes.i32, rewritten(tile.formula, Substitution({storage.scope.coordinate(before): c // 2})))

    def number(n: float) -> Formula:
        """Return the formula of the number `n`, as an i32."""
        return formulas.number(n, dtypes.i32)

    code = call("and_", call("shr", byte, formulas.index(c % 2 * 4, dtypes.i32)), number(15))
    code = storage.stored(Tile(dtypes.i32, kind.dims, parts, code), name="codes").formula
    size = call("and_", code, number(7))
    power = call("maximum", call("sub", call("shr", size, number(1)), number(1)), number(0))
    large = call("shl", call("add", call("and_", code, number(1)), number(2)), power)
    twice = Formula.cast(dtypes.f32, call("select", call("lt", size, number(4)), size, large))
    half = call("select", call("lt", code, number(8)), *(formulas.number(x, dtypes.f32) for x in (0.5, -0.5)))
    return Tile(dtypes.f4e2m1fn, kind.dims, parts, Formula.cast(dtypes.f4e2m1fn, call("mul", twice, half)))


def repeat(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Lower a `repeat`; return (result tile,): each element `times` times in a row along the dimension `dim`: 1 2 -> 1
    1 2 2.

    Nothing is emitted.
    """
    tile = low.storage.env[op.operands[0]]
    kind: TileType = op.results[0].type
    dim, to, times = op.attrs["dim"], op.attrs["to"], op.attrs["times"]
    start, width = tile.parts[dim]
    parts = {d: (start * times, width * times) if d is to else tile.parts[d] for d in kind.dims}
    images = Substitution({low.scope.coordinate(dim): low.scope.coordinate(to) // times})
    return (Tile(kind.dtype, kind.dims, parts, rewritten(tile.formula, images)),)


def broadcast(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Lower a `broadcast` or `permute`; return (result tile,): the operand over more dimensions, or with its dimensions
    in another order.

    Nothing is emitted.
    """
    tile = low.storage.env[op.operands[0]]
    kind: TileType = op.results[0].type
    return (Tile(kind.dtype, kind.dims, {d: tile.parts.get(d) or low.scope.part(d) for d in kind.dims}, tile.formula),)


def reshape(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Lower a `reshape`; return (result tile,): the same elements, in row-major order, over other dimensions.

    An operand with an expensive formula is stored first. Raise a ProgramError if a size is open (known only at the
    call), and an ExecutionError if the numbers of elements differ.
    """
    tile = low.storage.env[op.operands[0]]
    kind: TileType = op.results[0].type
    parts = {d: low.scope.part(d) for d in kind.dims}
    _refuse_open(op, {**tile.parts, **parts})
    sizes = tuple(parts[d][1] for d in kind.dims)
    if prod(sizes) != prod(tile.sizes):
        raise ExecutionError(f"reshape of {tile.sizes} to {sizes}: the sizes differ", op.loc)
    if weight(tile.formula) >= 8 and any(loads(tile.formula)):
        tile = low.storage.stored(tile)
    flat: Expr = as_expr(0)
    for d in kind.dims:
        flat = flat * parts[d][1] + (low.scope.coordinate(d) - parts[d][0])
    return (Tile(kind.dtype, kind.dims, parts, rewritten(tile.formula, Substitution(low.scope.digits(tile, flat)))),)


def _refuse_open(op: Op, parts: Parts) -> None:
    """Raise a ProgramError if a dimension in `parts`, {dimension: (first index, extent)}, has an extent known only at
    the call.

    `op` is an operation that numbers elements in row-major order, and so needs all extents as numbers.
    """
    for d, (_, width) in parts.items():
        if isinstance(width, Expr):
            raise ProgramError(
                f"{op_text(op)}: it numbers elements along {d}, which is dynamic: natively its size must be known; "
                f"leave {d} out of dynamic=",
                op.loc,
            )


def extract(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Lower an `extract`; return (result tile,): one element of the operand, without dimensions.

    The attribute `offset` is the element's row-major number, or its index along each dimension; negative numbers count
    from the end. Raise an ExecutionError if a number is out of range, and a ProgramError if a size of the operand is
    known only at the call.
    """
    tile = low.storage.env[op.operands[0]]
    _refuse_open(op, tile.parts)
    offsets, extents = [low.scope.number(e) for e in op.attrs["offset"]], [most(n) for n in tile.sizes]
    if len(offsets) == 1:
        images = low.scope.digits(tile, as_expr(_from_start(op, offsets[0], prod(extents), "the tile")))
    else:
        images = {
            low.scope.coordinate(d): tile.parts[d][0] + _from_start(op, n, extent, str(d))
            for d, n, extent in zip(tile.dims, offsets, extents, strict=True)
        }
    return (Tile(tile.dtype, (), {}, rewritten(tile.formula, Substitution(images))),)


def _from_start(op: Op, offset: int, extent: int, along: str) -> int:
    """Return an offset of the `extract` `op` as an index from 0 on; a negative one counts from the end: -1 of 4 gives
    3.

    Raise an ExecutionError if it is out of range of the `extent` elements of `along`, a dimension or the whole tile.
    """
    if not -extent <= offset < extent:
        raise ExecutionError(
            f"{op_text(op)}: index {offset} is out of range; {along} has {extent} elements here", op.loc
        )
    return offset % extent


# -- from nothing -----------------------------------------------------------------------------------------


def fill(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Lower a `fill`; return (result tile,): everywhere one number, or the value of an expression of sizes.

    In a grid program, the expression may also have workgroup ids. Raise a ProgramError if it has any other symbol.
    """
    kind: TileType = op.results[0].type
    value = op.attrs["value"]
    parts = {d: low.scope.part(d) for d in kind.dims}
    if isinstance(value, Expr):
        is_expr = low.in_grid and value.symbols.isdisjoint(low.scope.bound)
        value = low.scope.expr(value) if is_expr else low.scope.size(value)
    make = formulas.index if isinstance(value, Expr) else formulas.number
    return (Tile(kind.dtype, kind.dims, parts, make(value, kind.dtype)),)


def scalar(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Lower a `scalar`; return (result tile,): a number without dimensions, or the value of an expression of sizes.

    The expression may have symbols that set_symbol set; the tile then has the dimensions of their values.
    """
    value, dtype = op.attrs["value"], op.attrs["dtype"]
    if isinstance(value, Expr):
        return (_computed(low, op, value, {}, dtype),)
    return (Tile(dtype, (), {}, formulas.number(value, dtype)),)


def self_index(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Lower a `self_index`; return (result tile,): the index of each element along the dimension `dim`, as 0 1 2 3. In
    a loop with a data-dependent start, or a while loop, it counts from the start of the dimension, not of the current
    tile.
    """
    scope = low.scope
    kind: TileType = op.results[0].type
    dim = op.attrs["dim"]
    if dim in scope.walking:
        formula = converted(scope.bound[dim].formula, scope.bound[dim].dtype, kind.dtype)
    elif dim in scope.bases:
        formula = converted(dynamic_bounds.place(scope, dim), dtypes.i64, kind.dtype)
    else:
        formula = formulas.index(scope.coordinate(dim), kind.dtype)
    return (Tile(kind.dtype, kind.dims, {dim: scope.part(dim)}, formula),)


def apply(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Lower an `apply`; return (result tile,): the value, element by element, of the expression in the attribute
    `value`.

    The attribute `over` has the symbol that stands for each operand's element. The expression may also have sizes, and
    symbols that set_symbol set. Operands with an expensive formula are stored first.
    """
    known = dict(zip(op.attrs["over"], op.operands, strict=True))
    return (_computed(low, op, op.attrs["value"], known, op.results[0].type.dtype, op.results[0].type.dims),)


def _computed(
    low: Lowering,
    op: Op,
    e: Expr,
    values: dict[Symbol, Value],
    dtype: dtypes.DType,
    dims: tuple[Expr, ...] | None = None,
) -> Tile:
    """Return the lazy Tile of an expression `e` of sizes, of elements of `values`, and of symbols that set_symbol set.

    `values` is {symbol: the tile value of which the symbol stands for an element}; `dtype` is the type of the result.
    `dims` are its dimensions; None: those of the values of its symbols. Values with an expensive formula are stored
    first, and checks are emitted that symbols which set_symbol set are in their range. `op` is the operation that
    errors name.
    """
    numbers = {s: n for s, n in low.scope.symbols.items() if s not in values and s not in low.scope.bound}
    e = Substitution(numbers)(e)
    tiles: dict[Symbol, Tile] = {s: simple(low.storage, v) for s, v in values.items() if s in e.symbols}
    for s in e.symbols:
        if s in low.scope.bound and s not in values:
            bound = low.scope.bound[s]
            tiles[s] = bound if dims is None else dynamic_bounds.squeezed(low, bound, dims, str(s), op)
            low.reports.require_range(s, op)
    of_symbols = list(tiles.values())
    if dims is None:
        dims = ()
        for tile in of_symbols:
            dims = union_dims(dims, tile.dims)
    parts = common_parts([*of_symbols, *(low.storage.env[v] for v in values.values())])
    data = {s: converted(t.formula, t.dtype, dtypes.i64) for s, t in tiles.items()}
    formula = converted(formulas.of_expr(e, data), dtypes.i64, dtype)
    return Tile(dtype, dims, {d: parts[d] for d in dims}, formula)


def set_symbol(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Lower a `set_symbol`: the symbol has the operand's value from here on; return (), as there are no results.

    The value is recorded in `low.scope.bound`. If the symbol is the size of a dimension, the value is also recorded as
    the dimension's data-dependent end (`low.scope.ends`). Nothing changes if the operand is a scalar argument whose
    value is known. Otherwise raise a ProgramError inside a conditional on data, and for the size of a dimension outside
    of grid programs.
    """
    scope = low.scope
    s = op.attrs["symbol"]
    if op.operands[0] in low.program.args and s in scope.symbols:  # a scalar argument that is known already
        return ()
    if scope.masks:
        raise ProgramError("set_symbol inside a conditional has no native form yet", op.loc)
    if s in scope.walking:
        scope.bound[s] = dynamic_bounds.single(low, op.operands[0], op)
    elif any(s in d.symbols for each in low.program.walk() for v in each.results for d in v.type.dims):
        if not low.in_grid:
            raise ProgramError(
                f"set_symbol of {s}, which is a dimension, has no native form outside of workgroups", op.loc
            )
        scope.bound[s] = scope.ends[s] = dynamic_bounds.single(low, op.operands[0], op)
    else:
        scope.bound[s] = simple(low.storage, op.operands[0])
    return ()
