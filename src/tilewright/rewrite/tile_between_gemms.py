"""Puts a loop over the dimension between chained MMAs, so that one tile of the value between them fits registers.

    %h = mma %x, %w1, ... : f32[M, F]          %y = iterate %zero axis=(F) (%acc: f32[M, N]) {
    %a = ... of %h, element by element           %h = mma %x, %w1, ... : f32[M, F]
    %y = mma %a, %w2, %zero : f32[M, N]          %a = ... of %h
                                                 %y = mma %a, %w2, %acc ; yield %y }

Only the last MMA uses the value between them, which is computed element by element from the first: so each tile of it
adds its part to the result. With a softmax between them the loop carries the maximum so far, and rescales its
accumulators whenever the maximum grows (`plan/facts/online_softmax.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from tilewright.algebra.expr import Expr, as_expr
from tilewright.ir.core import Block, Op, Program, TileType, Value, building
from tilewright.ir.tile import REDUCTIONS, TILE
from tilewright.ir.verifier import verify
from tilewright.plan.computed import GIVEN, SIMPLE
from tilewright.plan.facts.online_softmax import OnlineSoftmax, online_softmax
from tilewright.plan.general import only_adds
from tilewright.rewrite.rewriter import Regrouped, must_stay, within

_ALIKE = {*SIMPLE, *GIVEN, "read", "mma"}
LOWEST = -3.4028234663852886e38
"""The lowest finite number of f32, from which a maximum starts; only -inf is below it, whose weight is 0."""


def summed_between(program: Program) -> list[Expr]:
    """Return the dimensions that some MMA of `program` sums and that the result of some MMA has, without duplicates."""
    products = [op for op in program.walk() if op.name == "mma"]
    results = {d for op in products for d in op.result.type.dims}
    return list(dict.fromkeys(d for op in products for d in _summed(op) if d in results))


def with_loop_over(program: Program, dim: Expr, tile: int) -> Program | str:
    """Return `program` with a loop over `dim`, of `tile` elements per iteration, around the MMA that sums it; or text:
    why not.

    The loop contains all operations with results along `dim`. They must compute elementwise from MMAs and reads, and
    only this MMA may use the results. If the program reduces along `dim`, it must be a softmax, which becomes an online
    softmax; several MMAs may then sum `dim`.
    """
    ops = program.body.ops
    if any(op.name in REDUCTIONS and op.attrs["dim"] is dim for op in ops):
        softmax = online_softmax(program, dim)
        return softmax if isinstance(softmax, str) else _with_softmax(program, dim, softmax, tile)
    last = [op for op in ops if op.name == "mma" and dim in _summed(op)]
    if len(last) != 1:
        return f"not one product sums {dim}"
    (product,) = last
    inside = [op for op in ops if op is not product and any(has_dim(v, dim) for v in op.results)]
    others = [op for op in ops if op not in inside and op is not product]
    if any(op.name not in _ALIKE and not (op.name == "iterate" and only_adds(op)) for op in inside):
        return f"what lies along {dim} is not computed element by element from a product"
    if any(has_dim(v, dim) for op in others for x in (op, *within(op)) for v in x.operands):
        return f"what lies along {dim} is used by more than the product that sums it"
    if any(dim in e.symbols for op in ops for e in op.attrs.get("at", ())):
        return f"an access depends on the size of {dim}"
    with building():
        acc = Value(product.operands[2].type, "sum")
        added = Op(product.spec, (*product.operands[:2], acc), dict(product.attrs), (Value(acc.type),), loc=product.loc)
        body = Block((acc,), [*inside, added, Op(TILE.ops["yield"], (added.result,), {}, loc=product.loc)])
        loop = Op(TILE.ops["iterate"], product.operands[2:], {"axis": dim}, product.results, (body,), product.loc)
        at = ops.index(product)
        looped = [*(op for op in ops[:at] if op not in inside), loop, *(op for op in ops[at + 1 :] if op not in inside)]
        return _tiled(program, looped, dim, tile)


def has_only_tile(program: Program, dim: Expr) -> bool:
    """True if the constraints of `program` on the loop over `dim` state only its tile size, or nothing."""
    stated = {name for r in program.records if r.name == "tiling" and r.attrs["dim"] is dim for name in r.attrs}
    return stated <= {"dim", "tile"}


def with_tile(program: Program, dim: Expr, tile: int) -> Program:
    """Return `program` with the constraint that its loop over `dim` has `tile` elements per iteration.

    Earlier constraints on this loop are removed.
    """
    others = [r for r in program.records if r.name != "tiling" or r.attrs["dim"] is not dim]
    with building():
        return _tiled(replace(program, records=others), program.body.ops, dim, tile)


def _tiled(program: Program, ops: list[Op], dim: Expr, tile: int) -> Program:
    """Return `program` with the operations `ops` as its body, and with one more constraint.

    The constraint is that the loop over `dim` has `tile` elements per iteration.
    """
    tiling = Op(TILE.records["tiling"], (), {"dim": dim, "tile": as_expr(tile)})
    return replace(program, body=Block(program.body.args, ops), records=[*program.records, tiling])


def _with_softmax(program: Program, dim: Expr, softmax: OnlineSoftmax, tile: int) -> Program:
    """Return `program` with the `softmax` along `dim` as a loop (online softmax) of `tile` elements per iteration.

    The loop carries the maximum, the sums of weights, and the accumulators of MMAs, in this order.
    """
    ends = (softmax.maximum, *softmax.sums, *softmax.products)
    with building():
        args = tuple(Value(op.result.type, op.result.name) for op in ends)
        body = _softmax_body(dim, softmax, dict(zip(ends, args, strict=True)))
        starts = [_filled(op, LOWEST if op is softmax.maximum else 0) for op in ends]
        loop = Op(
            TILE.ops["iterate"],
            tuple(op.result for op in starts),
            {"axis": dim},
            tuple(op.result for op in ends),
            (Block(args, body),),
            softmax.maximum.loc,
        )
        inside = {*softmax.along, *ends}
        before, after = list[Op](), list[Op]()
        results = set(loop.results)
        for op in (op for op in program.body.ops if op not in inside):
            follows = not results.isdisjoint(op.operands)
            results |= set(op.results) if follows else set()
            (after if follows or must_stay(op) else before).append(op)
        looped = _tiled(program, [*before, *starts, loop, *after], dim, tile)
        verify(looped)
    return looped


def _softmax_body(dim: Expr, softmax: OnlineSoftmax, carried: dict[Op, Value]) -> list[Op]:
    """Return the operations of the body of an online softmax loop over `dim`.

    They compute the new maximum, rescale the carried sums to it, and add the terms of the tile. `carried` is {operation
    of `softmax` with a carried result: the body's argument with the value so far}.
    """
    maximum, ops = softmax.maximum, list[Op]()
    values: dict[Value, Value] = {}

    def add(name: str, operands: tuple[Value, ...], given: Op, result: Value | None = None, **attrs: object) -> Value:
        """Append the operation called `name` to the body; return its result.

        It has the type of `result` (None: of the first operand), and the source location of `given`.
        """
        kind = result.type if result is not None else operands[0].type
        op = Op(TILE.ops[name], operands, attrs, (Value(kind),), (), given.loc)
        ops.append(op)
        return op.result

    def next_maximum() -> None:
        """Append operations that compute the new maximum, and the factor that rescales carried sums to it.

        Record in `values` the new maximum for the maximum, and the factor for the carried maximum.
        """
        higher = add("max", (maximum.operands[0], carried[maximum]), maximum, maximum.result, dim=dim, acc=True)
        shrink = add(softmax.power.name, (add("sub", (carried[maximum], higher), maximum),), maximum)
        values.update({maximum.result: higher, carried[maximum]: shrink})

    for op in softmax.along:
        if maximum.result in op.operands and maximum.result not in values:
            next_maximum()
        operands = tuple(values.get(v, v) for v in op.operands)
        changed = operands != op.operands
        ops.append(Op(op.spec, operands, op.attrs, op.results, op.blocks, op.loc) if changed else op)
    shrink = values[carried[maximum]]
    ends = [values[maximum.result]]
    for op in (*softmax.sums, *softmax.products):
        rescaled = add("mul", (carried[op], shrink), op)
        attrs = {**op.attrs, **({"acc": True} if op.name == "sum" else {})}
        inputs = (op.operands[0], rescaled) if op.name == "sum" else (*op.operands[:2], rescaled)
        ends.append(add(op.name, inputs, op, op.result, **attrs))
    ops.append(Op(TILE.ops["yield"], tuple(ends), {}, loc=maximum.loc))
    return ops


def _filled(op: Op, value: float) -> Op:
    """Return a `fill` operation with the number `value`; its result has the type of the result of `op`."""
    return Op(TILE.ops["fill"], (), {"value": value}, (Value(op.result.type),), (), op.loc)


def without_k_loops(
    program: Program, free: Collection[Op], is_whole: Callable[[Expr], bool] = lambda _: True
) -> tuple[Program, Collection[Op]]:
    """Remove the loops of `free` that only add MMAs, and over whose axis `is_whole` is true; the MMAs then sum all of K
    at once. Return (new program, the other loops of `free` in it).

    Return (new program, counterparts of the other loops of `free` in it). Both are returned unchanged if there are no
    such loops. `free` holds the loops that give the same result for every tile size.
    """
    removed = {op for op in free if only_adds(op) and is_whole(op.attrs["axis"])}
    if not removed:
        return program, free
    with building():
        rewrite = _WithoutLoops(removed)
        rewritten = replace(program, body=rewrite.body(program.body))
    return rewritten, {rewrite.kept[op] for op in free if op in rewrite.kept}


class _WithoutLoops(Regrouped):
    """Rewrites a program without the loops in `removed`, over the same dimensions; their bodies take their places."""

    def __init__(self, removed: Collection[Op]):
        super().__init__(())
        self.removed = removed

    def is_removed(self, op: Op) -> bool:
        """True if the loop `op` is in `self.removed`. Its body then replaces it."""
        return op in self.removed


def _summed(op: Op) -> list[Expr]:
    """Return a list of the dimensions of K of the MMA `op`: both operands have them, and the accumulator does not."""
    a, b, c = (v.type.dims for v in op.operands)
    return [d for d in a if d in b and d not in c]


def has_dim(value: Value, dim: Expr) -> bool:
    """True if `value` is a tile that has the dimension `dim`."""
    return isinstance(value.type, TileType) and dim in value.type.dims
