"""Lowers loops over tiles (`iterate`), while loops, and conditionals.

%1 = iterate %0 axis=(K) (%2: f32[M]) {      %carried = alloc shared f32 (8)
  ...                                         map %carried = 0
  yield %5                                    for k in 0..4 { ... map %carried = ... }
}                                             the body once more, for the last, smaller tile
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.algebra.expr import Const, Expr, as_expr, symbol
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.algebra.expr_use import evaluate
from tilewright.analysis.flat_memory import Size
from tilewright.errors import ProgramError
from tilewright.ir import dtypes
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.core import Block, Op, Program, TileType, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.printer import op_text
from tilewright.ir.tile import REDUCTIONS
from tilewright.ir.tile_formulas import call, converted
from tilewright.lower.block import dynamic_bounds, in_place, masks, memory
from tilewright.lower.block.accesses import TABLED
from tilewright.lower.block.lazy_tiles import Part, Tile, common_parts, divided, loads, most, pieces, rounded
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.mma.accumulator import room_for_sums
from tilewright.lower.block.storage import Storage
from tilewright.machine import Machine
from tilewright.plan.accumulator_type import accumulator_type
from tilewright.plan.general import CHOSEN, WHOLE, only_adds, tiling_attrs


def iterate(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Emit the loop `op` over tiles of an axis, in order, with carried values in tensors; return the Tiles of its
    results.

    A ragged last tile gets a second copy of the body. If values between MMAs are in registers, that tile is padded and
    masked instead, and fully masked iterations at both ends are left out. A while loop (an `iterate` with the attribute
    `start`) and a loop with data-dependent limits become a `while`. Small reads of the body may be hoisted out of the
    loop.
    """
    scope = low.scope
    axis: Expr = op.attrs["axis"]
    if op.attrs.get("start"):
        return _while(low, op)
    if dynamic_bounds.depends_on_data(scope, op, _limits(low.program, op)):
        return _data_dependent_loop(low, op)
    first, length = scope.part(axis)
    tile = _tile(low, op, axis, length)
    carried = _all_carried(low, op, op.operands)
    begin, iterations, rests = _full_tiles(low, op, first, length, tile)
    has_open_end = isinstance(length, Expr) and not _limits(low.program, op)
    if (
        low.writer.fragment_layout is not None
        and rests
        and isinstance(tile, int)
        and (isinstance(length, int) or has_open_end)
    ):
        # one body for all tiles: the last one is padded
        iterations, rests = as_expr(pieces(length, tile)) if has_open_end else iterations + 1, []
        scope.past[axis] = scope.size(axis)
        masks.hide_end(low, op)
    start, keep_loop = as_expr(0), False
    if low.writer.fragment_layout is not None and isinstance(tile, int) and not rests:
        keep_loop = iterations is not as_expr(1)  # keep the loop: its copies are other stages than those before it
        start, iterations = masks.unmasked_iterations(low, op, begin, tile, iterations)
    if iterations is not as_expr(0):
        required = set(low.reports.required)
        unroll = False
        if low.bound.unrolled_terms is not None:
            unroll = isinstance(iterations, Const) and iterations.value <= low.bound.unrolled_terms
            _hoist_reads(low, op, axis, (begin, length), iterations is as_expr(1))
        name = f"k_{axis}" if str(axis).isidentifier() else "k"
        with low.writer.loop(name, iterations, start, unroll=unroll, kept=keep_loop) as k:
            low.reports.iteration[axis] = k
            _iteration(low, op, carried, axis, (begin + tile * k, tile))
        if not isinstance(iterations, Const):  # there may be no iteration, so that its checks are not done
            low.reports.required = required
    scope.past.pop(axis, None)
    scope.unseen.pop(axis, None)
    for condition, rest in rests:
        low.reports.iteration[axis] = iterations
        with low.branch(condition):
            _iteration(low, op, carried, axis, (begin + tile * iterations, rest))
    for inner in op.blocks[0].ops:
        low.storage.early.pop(inner, None)
    return _results(low.storage, op, carried)


def _full_tiles(
    low: Lowering, op: Op, first: Expr, length: Size, tile: Size
) -> tuple[Expr, Expr, list[tuple[Expr, Size]]]:
    """Return (first, count, ragged) of the loop `op`: its first index, its number of full tiles, and the tiles behind
    them.

    `ragged` is [(condition, width)], [] if full tiles cover all: 70 elements in tiles of 32 give (0, 2, [(1, 6)]). It
    has several entries if workgroups have different widths. The loop covers `length` elements from `first` on, unless a
    constraint states its start or number of iterations; for loops in `low.free`, constraints are ignored. Raise a
    ProgramError if a stated start is below 0, or if a stated limit is known only at run time.
    """
    stated = {} if op in low.free else _limits(low.program, op)
    if tile is length:
        return first, as_expr(1), []
    if not stated:
        assert isinstance(tile, int)
        whole, rest = divided(length, tile)
        return first, as_expr(whole), [(as_expr(rest) >= 1, rest)] if rest != 0 else []
    end = first + length
    begin = low.scope.expr(stated["start"]) if "start" in stated else first
    fitting = (end - begin) // tile
    count = low.scope.expr(stated["iters"]) if "iters" in stated else -((begin - end) // tile)
    for e in (begin, count):
        if not e.symbols.isdisjoint(low.scope.bound):
            raise ProgramError(f"{op_text(op)}: natively {e} must be known before the program runs", op.loc)
    full_tiles = maximum(minimum(count, fitting), 0)
    remaining = (full_tiles < count) * (end - begin - full_tiles * tile)
    starts, widths = _over_workgroups(begin), _over_workgroups(remaining)
    if starts.min() < 0:
        raise ProgramError(f"iterate over {op.attrs['axis']} starts at {starts.min()}", op.loc)
    rests = sorted({int(n) for n in widths.reshape(-1) if n > 0})
    if isinstance(remaining, Const):
        return begin, full_tiles, [(as_expr(1), n) for n in rests]
    return begin, full_tiles, [((remaining >= n) * (remaining <= n), n) for n in rests]


def _over_workgroups(e: Expr) -> Any:
    """Return an array of the values of `e` for all values of its symbols, which are loop variables and workgroup ids.

    The array has one dimension for each symbol. Raise a ProgramError if a symbol's range is infinite, or if there are
    more than 4M (TABLED) values.
    """
    if isinstance(e, Const):
        return np.asarray(e.value)
    values = {s: np.arange(_finite(s.lo), _finite(s.hi) + 1) for s in e.symbols}
    if prod(len(v) for v in values.values()) > TABLED:
        raise ProgramError(f"{e} has more values than can be looked at")
    return np.asarray(evaluate(e, dict(zip(values, np.ix_(*values.values()), strict=True))))


def _finite(limit: Any) -> int:
    """Return `limit`, a bound of a symbol's range, as an int; raise a ProgramError if it is infinite."""
    if not isinstance(limit, int):
        raise ProgramError(f"a loop whose limit is {limit} has no native form here")
    return limit


def _limits(program: Program, op: Op) -> dict[str, Expr]:
    """Return {"start": first index, "iters": number of iterations} as tiling constraints state them for the loop `op`,
    as expressions.

    An entry that no constraint states is missing.
    """
    return {name: e for name, e in tiling_attrs(program, op.attrs["axis"]).items() if name in ("start", "iters")}


def _results(storage: Storage, op: Op, carried: list[Carried]) -> tuple[Tile, ...]:
    """Return the Tiles of a loop's results: loads of the carried tensors, cast to the types of the results.

    `carried` has (tensor, Tile of the initial value) for each result. A result without elements has the tensor None,
    and is that Tile.
    """
    results = []
    for (tensor, start), value in zip(carried, op.results, strict=True):
        kind: TileType = value.type
        if tensor is None:
            results.append(Tile(kind.dtype, kind.dims, start.parts, start.formula))
            continue
        held = storage.held(tensor, start.dims, start.parts)
        results.append(Tile(kind.dtype, kind.dims, start.parts, converted(held.formula, held.dtype, kind.dtype)))
    return tuple(results)


def _tile(low: Lowering, op: Op, axis: Expr, length: Size) -> Size:
    """Return the number of elements that one iteration of the loop `op` covers. `axis` is the loop's axis, and `length`
    its extent here. The first rule that applies decides:

    - The result does not depend on the tile size (`op` in `low.free`), the loop only adds products, `length` is known
      only at the call, and no constraint states a known tile size: `length`.
    - The result does not depend on the tile size: the plan's tile size. If the plan has none, all of a short axis (at
      most WHOLE elements; at least 1), and CHOSEN on a longer one.
    - A constraint states a tile size: that size.
    - The operation says that any tile size is legal (attribute `any_tile`): `length`, at least 1.

    Raise a ProgramError if no rule applies, or if the size that decides is stated, but no number before the call.
    """
    if op in low.free:
        tile = tiling_attrs(low.program, axis).get("tile")
        if isinstance(length, Expr) and only_adds(op) and (tile is None or not low.scope.is_known(tile)):
            return length
        return low.bound.tiles.get(op) or (_least_one(length) if most(length) <= WHOLE else CHOSEN)
    stated = _stated(low, axis)
    if stated is not None:
        return stated
    if op.attrs.get("any_tile"):
        return _least_one(length)
    raise ProgramError(f"iterate over {axis} has no tile size", op.loc)


def _least_one(length: Size) -> Size:
    """Return `length`, but 1 instead of the number 0; an expression is returned unchanged."""
    return max(1, length) if isinstance(length, int) else length


def _stated(low: Lowering, axis: Expr) -> int | None:
    """Return the tile size that a constraint states for the loop over `axis`; None if there is none. Raise a
    ProgramError if it is no number before the call.
    """
    tile = tiling_attrs(low.program, axis).get("tile")
    return None if tile is None else low.scope.number(tile)


Carried = tuple[Value | None, Tile]


def _all_carried(low: Lowering, op: Op, values: Sequence[Value]) -> list[Carried]:
    """Emit stores of the initial `values` of the carried variables of the loop `op` into new tensors.

    Return [(tensor, Tile), ...], one pair for each variable; the Tile loads from the tensor. For a value without
    elements, the tensor is None, the Tile is that of the initial value, and nothing is stored.
    """
    starts = zip((low.storage.env[v] for v in values), op.blocks[0].args, strict=True)
    return [_carried(low, op, n, start, arg) for n, (start, arg) in enumerate(starts)]


def _carried(low: Lowering, op: Op, place: int, start: Tile, arg: Value) -> Carried:
    """Emit the store of one carried variable's initial value to a new tensor; return (tensor, Tile that loads from it).

    `place` is the variable's number in the loop `op`, `start` the Tile of its initial value, `arg` the body's argument
    for it. If an MMA or reduction computes the variable, the tensor has the accumulator's type; for an MMA by an atom,
    also its register layout or padding. Return (None, start) if there are no elements. Raise a ProgramError if the
    variable has the loop's axis as a dimension.
    """
    wide = _carried_type(low.machine, op, place) or (start.wide[0] if start.wide is not None else None)
    dims = arg.type.dims
    if op.attrs["axis"] in dims:
        raise ProgramError(f"iterate over {op.attrs['axis']}: a carried value has that dimension itself", op.loc)
    if 0 in start.sizes:
        return None, start
    kind, formula = start.accumulated if wide is not None else (start.dtype, start.formula)
    to = wide or start.dtype
    product = _maker_of_carried(op, place)
    kernel = in_place.microkernel_of(low, product) if product is not None and product.name == "mma" else None
    if (
        kernel is not None
        and kernel[2][2] is to
        and set(dims) == {kernel[1].n, kernel[1].m, *kernel[1].around} - {None}
    ):
        held, empty = room_for_sums(
            low.storage, kernel[0], kernel[1], dims, start.parts, to, converted(formula, kind, to)
        )
        if empty and held in low.storage.padded:
            low.writer.emit("fill", (held,), value=0)
        elif empty:
            low.storage.put(held, dims, start.parts, formulas.number(0, to))
        return held, low.storage.held(held, dims, start.parts)
    stored = low.storage.stored(start, dims, (to, converted(formula, kind, to)), arg.name or "carried")
    (load,) = loads(stored.formula)
    return load.tensor, stored


def _maker_of_carried(op: Op, place: int) -> Op | None:
    """Return the operation in the body of the loop `op` that computes the next value of carried variable number
    `place`; None if no operation of the body does.
    """
    value = op.blocks[0].ops[-1].operands[place]
    return next((inner for inner in op.blocks[0].ops if value in inner.results), None)


def _carried_type(machine: Machine, op: Op, place: int) -> DType | None:
    """Return the accumulator type of carried variable number `place` of the loop `op` if an MMA or a reduction in the
    body computes it.

    None otherwise, and for bools.
    """
    value = op.blocks[0].ops[-1].operands[place]
    maker = _maker_of_carried(op, place)
    if maker is None or maker.name not in ("mma", *REDUCTIONS) or value.type.dtype is dtypes.bool_:
        return None
    if maker.name == "mma":
        return accumulator_type(maker, machine)
    accumulator: DType = value.type.dtype.accumulator
    return accumulator


def _hoist_reads(low: Lowering, op: Op, axis: Expr, part: Part, once: bool) -> None:
    """Emit some reads of the loop `op` in front of it, for all of its iterations; add {read: its Tile} to
    `low.storage.early`.

    Reads with the loop's `axis` are compared by their number of elements for all iterations. A read is hoisted if it
    has fewer elements than the largest of them, and at most as many as the machine allows. If the loop has one
    iteration (`once`) and lanes have boxes of results, the largest is hoisted too, so that its load overlaps with the
    others. `part` is (first index, extent) of the `axis` in all iterations.
    """
    reads = [inner for inner in op.blocks[0].ops if inner.name == "read" and axis in inner.result.type.dims]
    with low.scope.at(axis, part):
        sizes = {inner: prod(most(low.scope.part(d)[1]) for d in inner.result.type.dims) for inner in reads}
        if once and low.bound.lane_box:
            first = max(reads, key=lambda inner: sizes[inner])
            (low.storage.early[first],) = memory.read(low, first)
        largest = low.machine.shared_memory.hoisted_elements
        for inner in [inner for inner in reads if sizes[inner] < max(sizes.values()) and sizes[inner] <= largest]:
            (tile,) = memory.read(low, inner)
            dims = (axis, *(d for d in tile.dims if d is not axis))
            low.storage.early[inner] = low.storage.stored(tile, dims, name=f"{inner.operands[0].name}_terms")


def _iteration(low: Lowering, op: Op, carried: list[Carried], axis: Expr, part: Part) -> None:
    """Emit one iteration of the loop `op`, for the tile `part`, (first index, extent), of its `axis`.

    The values that the body yields are stored in the `carried` tensors, [(tensor, Tile of the initial value), ...].
    """
    with low.scope.at(axis, part), low.nested():
        _body(low, op, carried)


def _body(low: Lowering, op: Op, carried: list[Carried]) -> None:
    """Emit the body of the loop `op`; its arguments are loaded from the `carried` tensors, and what it yields is stored
    there.

    `carried` is [(tensor, Tile of the initial value), ...]; a tensor is None for a value without elements.
    """
    (body,) = op.blocks
    for (tensor, start), arg in zip(carried, body.args, strict=True):
        low.storage.env[arg] = start
        if tensor is not None:
            held = low.storage.held(tensor, start.dims, start.parts)
            low.storage.env[arg] = rounded(arg.type.dtype, held.dims, held.parts, held.dtype, held.formula)
            low.storage.carried_tensors[arg] = tensor
    yielded = low.block(body)
    following = tuple(low.scope.conform(t, a.type.dims, op) for t, a in zip(yielded, body.args, strict=True))
    _store(low.storage, carried, following)


def _data_dependent_loop(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Emit a loop whose start, end or number of iterations depends on data, as a `while`; return the Tiles of its
    results.

    The start of the current tile is in memory. Raise a ProgramError in four cases: inside a conditional on data;
    without a stated tile size; if workgroups or another loop split the axis; inside another such loop over the same
    axis.
    """
    scope = low.scope
    axis: Expr = op.attrs["axis"]
    if scope.masks or axis in scope.parts or axis in scope.bases:
        raise ProgramError(
            f"{op_text(op)}: natively, only a loop over all of {axis}, outside of conditionals, has limits in data",
            op.loc,
        )
    limits, tile = _limits(low.program, op), _stated(low, axis)
    if tile is None:
        raise ProgramError(f"iterate over {axis} has no tile size", op.loc)
    zero = formulas.number(0, dtypes.i64)
    step = formulas.number(tile, dtypes.i64)
    end = scope.ends[axis].formula if axis in scope.ends else formulas.of_expr(as_expr(scope.size(axis)), {})
    begin = dynamic_bounds.value(low, limits["start"], op) if "start" in limits else zero
    current = low.storage.stored(Tile(dtypes.i64, (), {}, begin))
    last = end
    if "iters" in limits:
        extent = call("mul", dynamic_bounds.value(low, limits["iters"], op), step)
        last = call("minimum", end, call("add", current.formula, extent))
    stop = low.storage.stored(Tile(dtypes.i64, (), {}, last), name="stop")
    carried, required = _all_carried(low, op, op.operands), set(low.reports.required)

    def emit_iteration() -> None:
        """Emit the body for the current tile, and the step from its start to that of the next tile."""
        with low.nested():
            scope.bases[axis], scope.ends[axis] = current, Tile(dtypes.i64, (), {}, end)
            with scope.at(axis, (as_expr(0), tile)):
                _body(low, op, carried)
            del scope.bases[axis]
        low.storage.put(current.formula.value.tensor, (), {}, call("add", current.formula, step))

    _emit_while(low.storage, lambda: call("lt", current.formula, stop.formula), emit_iteration)
    low.reports.required = required
    return _results(low.storage, op, carried)


def _emit_while(storage: Storage, truth: Callable[[], Formula], one: Callable[[], None]) -> None:
    """Emit a while loop: `truth()` emits code for its condition and returns the condition's formula; `one()` emits its
    body.

    Both are called once for the body; `truth()` is also called before, for the test in front of the loop.
    """
    is_true = storage.writer.register(dtypes.i32, "going")

    def emit_condition() -> None:
        """Emit the computation of the condition into the register that the loop tests."""
        storage.put(is_true, (), {}, Formula.cast(dtypes.i32, truth()))

    emit_condition()
    inner = Block(())
    with storage.writer.inside(inner):
        one()
        emit_condition()
    storage.writer.emit("while", (is_true,), (inner,))


def _while(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Emit a while loop: its body sets the loop's axis by set_symbol, and runs while the condition holds. Return the
    Tiles of the loop's results.

    The first operand is the axis's first value; the others are the initial values of carried variables. Raise a
    ProgramError in three cases: the body never sets the axis; the loop is inside a conditional on data; it is inside a
    while loop over the same axis.
    """
    scope = low.scope
    axis = op.attrs["axis"]
    (body,) = op.blocks
    if not any(inner.name == "set_symbol" and inner.attrs["symbol"] is axis for inner in body.ops):
        raise ProgramError(f"while loop over {axis}: the body never sets it by tkw.set_symbol", op.loc)
    if scope.masks or axis in scope.walking:
        raise ProgramError(
            f"a while loop over {axis} inside another over it or a conditional has no native form yet", op.loc
        )
    outer_value = scope.bound.get(axis)
    first = dynamic_bounds.single(low, op.operands[0], op)
    current = low.storage.stored(first, name=f"{axis}_now")
    carried = _all_carried(low, op, op.operands[1:])
    scope.walking.add(axis)
    scope.bound[axis] = current

    def truth() -> Formula:
        """Return the formula of the loop's condition for the current values of axis and carried variables; emit the
        code that it needs.
        """
        data = {axis: current.formula}
        for n, ((tensor, start), value) in enumerate(zip(carried, op.operands[1:], strict=True)):
            carried_symbol = symbol(f"GET_ITER_ARG_{n}")
            if carried_symbol in op.attrs["condition"].symbols and tensor is not None:
                data[carried_symbol] = dynamic_bounds.single(
                    low, value, op, low.storage.held(tensor, start.dims, start.parts)
                ).formula
        e = scope.expr(op.attrs["condition"])
        for s in e.symbols - data.keys():
            if s in scope.bound:
                data[s] = converted(scope.bound[s].formula, scope.bound[s].dtype, dtypes.i64)
        return formulas.of_expr(e, data)

    def emit_iteration() -> None:
        """Emit the body, and the store of the next index, which the body sets."""
        with low.nested():
            _body(low, op, carried)
            following = scope.bound[axis].formula
        low.storage.put(current.formula.value.tensor, (), {}, following)

    _emit_while(low.storage, truth, emit_iteration)
    scope.walking.discard(axis)
    if outer_value is None:
        del scope.bound[axis]
    else:
        scope.bound[axis] = outer_value
    return _results(low.storage, op, carried)


def _store(storage: Storage, carried: list[Carried], yielded: tuple[Tile, ...]) -> None:
    """Emit the stores of all `yielded` tiles in the `carried` tensors, as if all happened at the same time: a swap
    works.

    `carried` is [(tensor, Tile of the initial value), ...]. A tile is first computed to a new tensor if a later yielded
    tile reads the tensor that it overwrites, or if it reads other elements of its own tensor. Nothing is stored for a
    value that is in its tensor already, or has no elements.
    """
    pending: list[tuple[Value, Tile, Formula]] = []
    for (tensor, start), tile in zip(carried, yielded, strict=True):
        if tensor is None:
            continue
        kind, formula = tile.accumulated if tensor.type.dtype is not tile.dtype else (tile.dtype, tile.formula)
        formula = converted(formula, kind, tensor.type.dtype)
        if formula != storage.held(tensor, start.dims, start.parts).formula:
            pending.append((tensor, start, formula))
    ready = []
    for n, (tensor, start, formula) in enumerate(pending):
        load = storage.held(tensor, start.dims, start.parts).formula.value
        later = {each.tensor for _, _, other in pending[n + 1 :] for each in loads(other)}
        moved = any(each.tensor is tensor and each != load for each in loads(formula))
        if moved or tensor in later:
            saved = storage.stored(start, as_type=(tensor.type.dtype, formula), name="next")
            ready.append((tensor, start, saved.formula, True))
        else:
            ready.append((tensor, start, formula, False))
    for tensor, start, formula, _ in sorted(ready, key=lambda entry: entry[3]):
        storage.put(tensor, start.dims, start.parts, formula)


# -- conditions -------------------------------------------------------------------------------------------


def conditional(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Emit a `conditional`: its body, whose writes happen only where the condition holds. Return the Tiles of its
    results.

    A result has the body's value where the condition holds, and the operand's elsewhere. If the condition is a number,
    the body is emitted without a branch, or not at all. A condition on workgroup ids or on sizes known only at the call
    becomes a branch. A condition on data is stored in memory, and masks every write. Outside of grid programs, raise a
    ProgramError if the condition has any other symbol.
    """
    scope = low.scope
    (body,) = op.blocks
    if "when" in op.attrs:
        otherwise = [low.storage.env[v] for v in op.operands]
        e = scope.expr(op.attrs["when"])
        if isinstance(e, Const):
            if not e.value:
                return tuple(otherwise)
            with low.nested():
                yielded = low.block(body)
            return yielded if op.results else ()
        tiles = {s: scope.bound[s] for s in e.symbols if s in scope.bound}
        if not tiles and (low.in_grid or e.symbols <= scope.opened.symbols):
            return _by_workgroup(low, op, e, otherwise)
        if set(tiles) != set(e.symbols) and not low.in_grid:
            raise ProgramError(f"{op_text(op)}: natively a condition is of sizes and of symbols set by tiles", op.loc)
        data = {s: converted(t.formula, t.dtype, dtypes.i64) for s, t in tiles.items()}
        parts = common_parts(list(tiles.values()))
        truth = call("ne", formulas.of_expr(e, data), formulas.number(0, dtypes.i64))
        condition = Tile(dtypes.bool_, tuple(parts), parts, truth)
    else:
        condition, *otherwise = (low.storage.env[v] for v in op.operands)
        truth = converted(condition.formula, condition.dtype, dtypes.bool_)
        condition = Tile(dtypes.bool_, condition.dims, condition.parts, truth)
    if 0 in condition.sizes:  # it holds nowhere
        return tuple(otherwise)
    condition = low.storage.stored(condition, name="condition")
    scope.masks.append(condition)
    try:
        with low.nested():
            yielded = low.block(body)
    finally:
        scope.masks.pop()
    results = []
    for yes, no in zip(yielded, otherwise, strict=True):
        parts = common_parts([yes, no, condition])
        formula = call("select", condition.formula, yes.formula, no.formula)
        results.append(Tile(yes.dtype, yes.dims, {d: parts[d] for d in yes.dims}, formula))
    return tuple(results)


def _by_workgroup(low: Lowering, op: Op, when: Expr, otherwise: list[Tile]) -> tuple[Tile, ...]:
    """Emit the body of the conditional `op` in a branch on `when`, a condition on workgroup ids or sizes; return the
    result tiles.

    The tiles `otherwise`, which are the results where `when` is false, are stored in new tensors before the branch; in
    the branch, the body's values overwrite them. Raise a ProgramError if the two cover different parts of a dimension.
    """
    (body,) = op.blocks
    stored = [low.storage.stored(t, name="otherwise") for t in otherwise]
    with low.branch(when), low.nested():
        yielded = low.block(body)
        for yes, no in zip(yielded, stored, strict=True):
            if yes.parts != no.parts:
                raise ProgramError(
                    f"{op_text(op)}: its body and its operand give different parts of a dimension", op.loc
                )
            if 0 not in no.sizes:
                low.storage.put(next(loads(no.formula)).tensor, no.dims, no.parts, yes.formula)
    return tuple(stored) if op.results else ()
