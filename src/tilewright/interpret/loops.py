"""Which loops give the same result for any tile size, and the given tile size of the others."""

from __future__ import annotations

from tilewright.algebra.expr import Expr
from tilewright.errors import MissingTiling
from tilewright.ir.core import Block, Op, Program, Value, walk_block
from tilewright.ir.tile import REDUCTIONS, SCANS, tile_type


def accumulates_only(op: Op) -> bool:
    """True if the loop `op` is known to have the same result, up to rounding, for any tile size.

    This is known under three conditions. Each carried value is used only as the accumulator of an mma, sum, max, min or
    prod over the loop's axis; the result is used in the same way, or is carried to the next iteration. No other
    operation of the body combines elements along the axis. The body reads no memory that it also writes.
    """
    axis: Expr = op.attrs["axis"]
    (body,) = op.blocks
    chained: set[Op] = set()
    for arg, result in zip(body.args, body.ops[-1].operands, strict=True):
        chain = _accumulator_chain(body, arg, result, axis)
        if chain is None:
            return False
        chained |= chain
    inside = list(walk_block(body))
    read = {inner.operands[0] for inner in inside if inner.name == "read"}
    if any(inner.operands[1] in read for inner in inside if inner.name in _STORES):
        return False
    return not any(_combines_along(inner, axis) for inner in inside if inner not in chained)


_STORES = ("write", "atomic_add", "atomic_min", "atomic_max")


def _accumulator_chain(body: Block, arg: Value, result: Value, axis: Expr) -> set[Op] | None:
    """Return the operations that lead from the carried value `arg` to `result`, if each of them accumulates over
    `axis`; otherwise None.

    Each operation has the previous value as its accumulator, and only the next operation uses its result; `result` is
    only yielded. Uses by debug_log do not count.
    """
    chain: set[Op] = set()
    current = arg
    while current is not result:
        users = _users(body, current)
        if len(users) != 1 or users[0] not in body.ops:
            return None
        (user,) = users
        if not _accumulates(user, current, axis):
            return None
        chain.add(user)
        current = user.result
    return chain if all(op.name == "yield" for op in _users(body, current)) else None


def _users(body: Block, value: Value) -> list[Op]:
    """Return the operations in `body`, also in nested blocks, that use `value`, except debug_log."""
    return [op for op in walk_block(body) if value in op.operands and op.name != "debug_log"]


def logs_iterations(op: Op) -> bool:
    """True if a debug_log in the body of the loop `op` records each iteration of that loop separately."""
    axis = op.attrs["axis"]
    return any(
        inner.name == "debug_log" and any(dim is axis for dim, _ in inner.attrs.get("iterations", ()))
        for inner in walk_block(op.blocks[0])
    )


def _accumulates(op: Op, value: Value, axis: Expr) -> bool:
    """True if `op` is an mma or reduction over `axis` with `value` as its accumulator and as no other operand."""
    if op.operands.count(value) != 1 or op.operands[-1] is not value:
        return False
    if op.name == "mma":
        return axis in tile_type(op, 0).dims and axis in tile_type(op, 1).dims and axis not in tile_type(op, 2).dims
    return op.name in REDUCTIONS and op.attrs["dim"] is axis and bool(op.attrs.get("acc"))


def _combines_along(op: Op, axis: Expr) -> bool:
    """True if `op` may combine elements of different coordinates along the dimension `axis`, as a reduction or reshape
    may.
    """
    if op.name in (*SCANS, "topk", *REDUCTIONS):
        return op.attrs["dim"] is axis or bool(op.attrs["dim"].symbols & axis.symbols)
    if op.name == "mma":
        reduced = set(tile_type(op, 0).dims) & set(tile_type(op, 1).dims) - set(tile_type(op, 2).dims)
        return any(d.symbols & axis.symbols for d in reduced)
    return op.name in ("reshape", "extract", "bitcast") and any(
        d.symbols & axis.symbols for v in op.operands for d in v.type.dims
    )


def tiling_of(program: Program, axis: Expr) -> Op | None:
    """Return the `tiling` record (of a TilingConstraint) for the dimension `axis`; None if the program has none."""
    for record in program.records:
        if record.name == "tiling" and record.attrs["dim"] is axis:
            return record
    return None


def require_tilings(program: Program) -> None:
    """Raise MissingTiling at the first loop of which the tile size affects the result and is not given by a constraint.
    While loops and loops with `any_tile` need no tile size.
    """
    for op in program.walk():
        if op.name != "iterate" or op.attrs.get("start") or op.attrs.get("any_tile"):
            continue
        tiling = tiling_of(program, op.attrs["axis"])
        if (tiling is None or "tile" not in tiling.attrs) and not accumulates_only(op):
            axis = op.attrs["axis"]
            raise MissingTiling(
                f"iterate over {axis}: what is carried is not only accumulated, so the tile size is part of the "
                f"meaning; give it with tkw.TilingConstraint({axis}, BLOCK_{axis}), or promise with any_tile=True that "
                "every size gives the same",
                op.loc,
            )
