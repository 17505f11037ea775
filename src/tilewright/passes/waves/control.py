"""Loops, branches, tasks; two halves of a role that take tasks in turn."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from tilewright.algebra.expr import Const, Expr, as_expr
from tilewright.check.lifetimes import uses_task_memory
from tilewright.errors import ProgramError
from tilewright.ir.attrs import Range
from tilewright.ir.core import Block, Op, walk_block
from tilewright.ir.tensors import RegisterType
from tilewright.passes.dealing import dealt
from tilewright.passes.waves.channels import skip
from tilewright.passes.waves.flying import ProductGroup as Products
from tilewright.passes.waves.moving import values_of
from tilewright.passes.waves.rings import Count
from tilewright.passes.waves.turns import turns_of
from tilewright.passes.waves.waves import Waves

MOST = 1024
"""Rounds that `unroll` may write out."""


def for_(low: Waves, op: Op) -> None:
    """Lower a loop; asynchronous MMAs of an iteration may go on into the next.

    A loop with constant limits and `unroll`, or of one iteration, is unrolled. `overlap defer` has no effect here.
    """
    ranges: tuple[Range, ...] = op.attrs["ranges"]
    limits = [(low.expr(r.lo), low.expr(r.hi)) for r in ranges]
    known = all(isinstance(e, Const) for pair in limits for e in pair)
    if known and any(int(hi) <= int(lo) for lo, hi in limits):
        return
    rounds = [range(int(lo), int(hi), r.step) for r, (lo, hi) in zip(ranges, limits, strict=True)] if known else []
    if known and (op.attrs.get("unroll") or all(len(n) == 1 for n in rounds)):
        points = list(product(*rounds))
        if len(points) > MOST:
            raise ProgramError(f"unroll: {len(points)} rounds are more than {MOST}")
        for point in points:
            with low.means({r.symbol: as_expr(n) for r, n in zip(ranges, point, strict=True)}):
                _body(low, op, once=True)
        return
    low.flying.settle_all()
    loops = tuple(
        Range.of(low.fresh(r.symbol.name), lo, hi, r.step) for r, (lo, hi) in zip(ranges, limits, strict=True)
    )
    around, low.turns = low.turns, turns_of(low, op)
    first = sum(((r.symbol - r.lo) for r in loops), as_expr(0)) <= 0
    meanings = {r.symbol: n.symbol for r, n in zip(ranges, loops, strict=True)}

    def written(before: list[Products], ends: bool) -> tuple[Block, list[Products]]:
        inner = Block(())
        low.flying.groups = list(before)
        with low.writing(inner), low.means(meanings):
            _body(low, op)
            low.flying.clear()
            if ends:
                low.flying.settle_all()
        after, low.flying.groups = low.flying.groups, []
        return inner, after

    before, low.flying.touched = low.flying.touched, set()
    inner, after = written([], ends=False)
    if any(not low.flying.touched.isdisjoint(g.sums) for g in after):  # assemblers do not follow such sums around
        inner, after = written([], ends=True)
    low.flying.touched |= before
    if after:  # the next round begins with what this one leaves under way
        carried = [replace(g, there=~first, releases=list(g.releases), released=list(g.released)) for g in after]
        inner, again = written(carried, ends=False)
        if len(again) != len(after) or not all(x.like(y) for x, y in zip(again, after, strict=True)):
            inner, after = written([], ends=True)
        else:
            after = again
    low.turns = around
    low.emit("for", ranges=loops, blocks=(inner,))
    some = [lo < hi for lo, hi in limits]
    runs = None if known else _all(some)
    low.flying.groups = [replace(g, there=runs) for g in after]


def _all(conditions: list[Expr]) -> Expr:
    """Return the conjunction of conditions."""
    conjunction = conditions[0]
    for c in conditions[1:]:
        conjunction = conjunction & c
    return conjunction


def _body(low: Waves, op: Op, once: bool = False) -> None:
    """Lower all blocks of an operation; with `once` they run exactly once."""
    before = low.meaning
    for block in op.blocks:
        low.block(block, once)
    low.meaning = before


def if_(low: Waves, op: Op) -> None:
    """Lower a branch that all waves of the group take alike; MMAs that it does not concern go on meanwhile."""
    when = low.expr(op.attrs["when"])
    before = low.meaning
    if isinstance(when, Const):
        for block in op.blocks[:1] if when.value else op.blocks[1:]:
            low.block(block)
        low.meaning = before
        return
    low.flying.clear()
    groups = low.flying.groups

    def written(under_way: list[Products]) -> tuple[tuple[Block, ...], int]:
        """Return (the blocks, the number of groups under way that a block waits for); all groups if it changes them
        otherwise.
        """
        blocks, most = [], 0
        for block in op.blocks:
            inner = Block(())
            mine = [replace(g, releases=list(g.releases), released=list(g.released)) for g in under_way]
            low.flying.groups = list(mine)
            with low.writing(inner):
                low.block(block)
                low.flying.clear()
            left = low.flying.groups
            kept = mine[len(mine) - len(left) :]
            same = len(left) <= len(mine) and all(x is y for x, y in zip(left, kept, strict=True))
            if not same or any(len(x.releases) != len(y.releases) for x, y in zip(mine, under_way, strict=True)):
                with low.writing(inner):
                    low.flying.settle_all()
                left = []
            most = max(most, len(mine) - len(left))
            low.meaning = before
            blocks.append(inner)
        low.flying.groups = list(under_way)
        return tuple(blocks), most

    blocks, most = written(groups)
    if most:  # what a branch waits for, both wait for, before it: afterwards the same is under way on both ways
        low.flying.settle(most)
        blocks, _ = written(low.flying.groups)
    low.emit("if", when=when, blocks=blocks)


def barrier(low: Waves, op: Op) -> None:
    """Lower `barrier`: the waves of the group meet, after asynchronous MMAs are done."""
    low.flying.settle_all()
    if not low.frames.apart and op not in low.frames.needless:
        low.meet()


def edge(low: Waves, op: Op) -> None:
    """Lower `edge` to a wait that ends at once: assemblers move no arithmetic across waits."""
    never = low.barriers("edge", 1, 1, "edge")
    before = [values_of(low, piece) for v in op.operands for piece in low.handles[v].pieces]
    low.emit("await", (never, *before), at=(as_expr(0),), phase=as_expr(-1))


def tasks(low: Waves, op: Op) -> None:
    """Lower `tasks` to the workgroup's share of all tasks; waves meet after each task if tasks have shared memory."""
    low.flying.settle_all()
    if op.attrs.get("schedule") == "table":
        _from_table(low, op)
        return
    ranges = tuple(
        Range.of(low.fresh(r.symbol.name), low.expr(r.lo), low.expr(r.hi), r.step) for r in op.attrs["ranges"]
    )
    meets = any(uses_task_memory(op)) and not low.frames.apart
    inner = Block(())
    meanings = {r.symbol: n.symbol for r, n in zip(op.attrs["ranges"], ranges, strict=True)}
    turns = op.attrs.get("overlap") == "pingpong"
    whole = low.group
    with low.writing(inner), low.means(meanings):
        if turns:
            skipped = _pingpong_task(low, op)
            _skip(low, skipped)
            _end(low, op)
        else:
            _body(low, op)
        low.flying.settle_all()
        if meets:
            low.meet()
    side = low.group.side
    low.group = whole
    extra: dict[str, Any] = {"turn": side} if turns else {}
    if turns:
        for _, fills in skipped:
            if fills.symbols & {r.symbol for r in ranges}:
                raise ProgramError(
                    f"overlap pingpong: how often a channel is used, {fills}, depends on the task, and a half does not "
                    "know the other's; with `schedule table` it does"
                )
        _skip(low, skipped, side)
    low.emit("tasks", ranges=ranges, schedule=op.attrs.get("schedule"), blocks=(inner,), **extra)


def _from_table(low: Waves, op: Op) -> None:
    """Lower tasks that a table deals out; with ping-pong, each half counts all tasks and skips those of the other."""
    meets = any(uses_task_memory(op)) and not low.frames.apart
    whole = low.group
    turns = op.attrs.get("overlap") == "pingpong"
    seen = low.counter("dealt") if turns else None

    def alone() -> None:
        _body(low, op)
        low.flying.settle_all()
        if meets:
            low.meet()

    def in_turn() -> None:
        assert seen is not None
        count = low.value_of(seen, "dealt")
        low.count_on(seen, as_expr(1))
        mine, others = Block(()), Block(())
        with low.writing(mine):
            skipped = _pingpong_task(low, op)
            _end(low, op)
            low.flying.settle_all()
            if meets:
                low.meet()
        side = low.group.side
        with low.writing(others):
            _skip(low, skipped)
        low.group = whole
        low.emit("if", when=(count + side) % 2 < 1, blocks=(mine, others))

    dealt(low, op, in_turn if turns else alone)


Skipped = list[tuple[Count, Expr]]
"""Counters of channels, and what the other half adds to them in a task."""


def _skip(low: Waves, skipped: Skipped, times: Expr | int = 1) -> None:
    """Emit the step of counters by the other half's fills, `times` times."""
    for counter, fills in skipped:
        skip(low, counter, fills * times)


def _end(low: Waves, op: Op) -> None:
    """Lower the blocks after a task's body: its end."""
    for block in op.blocks[1:]:
        low.block(block)


def _pingpong_task(low: Waves, op: Op) -> Skipped:
    """Emit a task of one half of the role: its body waits for the other half's body, and hands on; its end runs beside
    it.

    The turn ends when the body's last MMA is started, and begins after the half's accumulators are initialised, so that
    MMAs of two tasks follow without a gap. Return what each half must skip: (counters of a channel, fills of the other
    half per task).
    """
    whole = low.group
    if whole.waves % 2:
        raise ProgramError(f"overlap pingpong needs an even number of waves, not {whole.waves}")
    half = whole.waves // 2
    side = whole.wave // half
    number = int(whole.barrier)
    low.group = replace(
        whole, waves=half, wave=whole.wave % half, barrier=side + (len(low.roles) + 1 + 2 * number), side=side, halves=2
    )
    order = low.barriers((op, "turn"), 2, half, "turn")
    done = low.counter("turns")
    count = low.value_of(done, "turn")
    low.count_on(done, as_expr(1))
    body = op.blocks[0].ops
    first_shared = next((i for i, inner in enumerate(body) if not _is_register_only(inner)), len(body))
    for inner in body[:first_shared]:
        low.op(inner)
    low.flying.clear()
    low.emit("await", (order,), at=(side,), phase=count + side - 1)
    for inner in body[first_shared:]:
        low.op(inner)
    if not _reads_stages_only(low, op.blocks[0]):
        low.flying.settle_all()
    low.emit("arrive", (order,), at=(1 - side,))
    low.flying.settle_all()
    skipped: Skipped = []
    for ring in low.rings.values():
        for name, counter in ring.counters.items():
            fills = _fills(low, op.blocks[0], name, ring.op.results[0])
            if not (isinstance(fills, Const) and fills.value == 0):
                skipped.append((counter, fills))
    return skipped


def _is_register_only(op: Op) -> bool:
    """True if an operation concerns only registers of this half, so that it need not wait for its turn."""
    return op.name in ("alloc", "let", "view") or (op.name == "fill" and isinstance(op.operands[0].type, RegisterType))


def _reads_stages_only(low: Waves, block: Block) -> bool:
    """True if asynchronous MMAs read only registers and stages of channels: then the other half may begin meanwhile.

    Other shared memory that they read might be overwritten by the other half's body.
    """
    factors = [v for op in walk_block(block) if op.name == "mma" for v in op.operands[1:]]
    return all(isinstance(v.type, RegisterType) or low.chain.in_stage(v) for v in factors)


def _fills(low: Waves, block: Block, name: str, channel: Any) -> Expr:
    """Return the number of times that a block does `name` (acquire, commit, wait or release) on a channel."""
    total: Expr = as_expr(0)
    for op in block.ops:
        if op.name == name and op.operands[0] is channel:
            total = total + 1
        inner = [_fills(low, b, name, channel) for b in op.blocks]
        if not any(not (isinstance(e, Const) and e.value == 0) for e in inner):
            continue
        if op.name != "for":
            raise ProgramError(f"overlap pingpong: how often %{channel.name} is used must not depend on a condition")
        each = inner[0] + (inner[1] if len(inner) == 2 else 0)
        for r in op.attrs["ranges"]:
            each = each * -(-(low.expr(r.hi) - low.expr(r.lo)) // r.step)
        total = total + each
    return total
