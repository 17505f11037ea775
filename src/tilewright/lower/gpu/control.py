"""Loops, branches and tasks for workgroups of many waves; two halves of a role that take tasks in turn (ping-pong)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from tilewright.algebra.expr import Const, Expr, as_expr
from tilewright.analysis.lifetimes import uses_task_memory
from tilewright.errors import ProgramError
from tilewright.ir.attrs import Range
from tilewright.ir.core import Block, Op, walk_block
from tilewright.ir.tensors import RegisterType
from tilewright.lower.dynamic_tasks import lower_task_table
from tilewright.lower.gpu.channels import skip_fills
from tilewright.lower.gpu.copies import values_of
from tilewright.lower.gpu.mmas_in_flight import MmaGroup as Group
from tilewright.lower.gpu.ordered_mmas import ordered_groups_of
from tilewright.lower.gpu.rings import RingPosition
from tilewright.lower.gpu.wave_lowering import WaveLowering

MOST = 1024
"""The most iterations that `unroll` may unroll."""


def for_(low: WaveLowering, op: Op) -> None:
    """Lower a `for` loop on a GPU. A loop with constant limits is unrolled if it has `unroll`, or if each of its ranges
    has one value; if it has no iteration, nothing is emitted. Any other loop is emitted as a loop. Raise a ProgramError
    for more than 1024 unrolled iterations.

    Asynchronous MMAs of an iteration may still be in flight in the next iteration, and after the loop.
    """
    ranges: tuple[Range, ...] = op.attrs["ranges"]
    limits = [(low.expr(r.lo), low.expr(r.hi)) for r in ranges]
    is_constant = all(isinstance(e, Const) for pair in limits for e in pair)
    if is_constant and any(int(hi) <= int(lo) for lo, hi in limits):
        return
    iterations = (
        [range(int(lo), int(hi), r.step) for r, (lo, hi) in zip(ranges, limits, strict=True)] if is_constant else []
    )
    if is_constant and (op.attrs.get("unroll") or all(len(n) == 1 for n in iterations)):
        points = list(product(*iterations))
        if len(points) > MOST:
            raise ProgramError(f"unroll: {len(points)} rounds are more than {MOST}")
        for point in points:
            with low.means({r.symbol: as_expr(n) for r, n in zip(ranges, point, strict=True)}):
                _body(low, op, once=True)
        return
    low.mmas_in_flight.wait_for_all()
    loops = tuple(
        Range.of(low.fresh(r.symbol.name), lo, hi, r.step) for r, (lo, hi) in zip(ranges, limits, strict=True)
    )
    outer_turns, low.turns = low.turns, ordered_groups_of(low, op)
    is_first = sum(((r.symbol - r.lo) for r in loops), as_expr(0)) <= 0
    meanings = {r.symbol: n.symbol for r, n in zip(ranges, loops, strict=True)}

    def lower_body(in_flight: list[Group], waits: bool) -> tuple[Block, list[Group]]:
        """Return (the lowered body, the groups of MMAs in flight at its end); `in_flight` are those at its start. With
        `waits`, the body ends with a wait for all MMAs.
        """
        inner = Block(())
        low.mmas_in_flight.groups = list(in_flight)
        with low.writing(inner), low.means(meanings):
            _body(low, op)
            low.mmas_in_flight.clear()
            if waits:
                low.mmas_in_flight.wait_for_all()
        left_in_flight, low.mmas_in_flight.groups = low.mmas_in_flight.groups, []
        return inner, left_in_flight

    touched_before, low.mmas_in_flight.touched = low.mmas_in_flight.touched, set()
    inner, left_in_flight = lower_body([], waits=False)
    # assemblers do not track accumulators across iterations that other operations touch
    if any(not low.mmas_in_flight.touched.isdisjoint(g.accumulators) for g in left_in_flight):
        inner, left_in_flight = lower_body([], waits=True)
    low.mmas_in_flight.touched |= touched_before
    if left_in_flight:  # the next iteration begins with the MMAs that this one leaves in flight
        carried = [
            replace(g, started_if=~is_first, releases=list(g.releases), released=list(g.released))
            for g in left_in_flight
        ]
        inner, in_flight_again = lower_body(carried, waits=False)
        if len(in_flight_again) != len(left_in_flight) or not all(
            x.is_same_group(y) for x, y in zip(in_flight_again, left_in_flight, strict=True)
        ):
            inner, left_in_flight = lower_body([], waits=True)
        else:
            left_in_flight = in_flight_again
    low.turns = outer_turns
    low.emit("for", ranges=loops, blocks=(inner,))
    nonempty = [lo < hi for lo, hi in limits]
    runs_at_all = None if is_constant else _all(nonempty)
    low.mmas_in_flight.groups = [replace(g, started_if=runs_at_all) for g in left_in_flight]


def _all(conditions: list[Expr]) -> Expr:
    """Return the conjunction (and) of one or more conditions."""
    conjunction = conditions[0]
    for c in conditions[1:]:
        conjunction = conjunction & c
    return conjunction


def _body(low: WaveLowering, op: Op, once: bool = False) -> None:
    """Lower all blocks of `op`, a loop or `tasks`, into the block being written. `once` says that they run exactly once
    there, as in an unrolled loop. Symbols that the blocks define have no meaning afterwards: `low.meaning`, {symbol:
    expression that replaces it}, is as before.
    """
    before = low.meaning
    for block in op.blocks:
        low.block(block, once)
    low.meaning = before


def if_(low: WaveLowering, op: Op) -> None:
    """Lower an `if` with a condition that is the same in all waves of the group: emit it with the lowered blocks. If
    the condition is constant, emit only the operations of the block that is taken.

    MMAs in flight before the `if` stay in flight in its blocks and after it. If a block waits for some of them, the
    wait is emitted before the `if` instead.
    """
    when = low.expr(op.attrs["when"])
    meaning = low.meaning
    if isinstance(when, Const):
        for block in op.blocks[:1] if when.value else op.blocks[1:]:
            low.block(block)
        low.meaning = meaning
        return
    low.mmas_in_flight.clear()
    groups = low.mmas_in_flight.groups

    def lower_blocks(in_flight: list[Group]) -> tuple[tuple[Block, ...], int]:
        """Return (the lowered blocks of the `if`, number of groups of MMAs in flight that one of the blocks waits for,
        at most).
        """
        blocks, most = [], 0
        for block in op.blocks:
            inner = Block(())
            groups_of_block = [replace(g, releases=list(g.releases), released=list(g.released)) for g in in_flight]
            low.mmas_in_flight.groups = list(groups_of_block)
            with low.writing(inner):
                low.block(block)
                low.mmas_in_flight.clear()
            left = low.mmas_in_flight.groups
            unfinished = groups_of_block[len(groups_of_block) - len(left) :]
            same = len(left) <= len(groups_of_block) and all(x is y for x, y in zip(left, unfinished, strict=True))
            if not same or any(
                len(x.releases) != len(y.releases) for x, y in zip(groups_of_block, in_flight, strict=True)
            ):
                with low.writing(inner):
                    low.mmas_in_flight.wait_for_all()
                left = []
            most = max(most, len(groups_of_block) - len(left))
            low.meaning = meaning
            blocks.append(inner)
        low.mmas_in_flight.groups = list(in_flight)
        return tuple(blocks), most

    blocks, most = lower_blocks(groups)
    if most:  # wait before the branch, so that the same groups are in flight after both blocks
        low.mmas_in_flight.wait_for_oldest(most)
        blocks, _ = lower_blocks(low.mmas_in_flight.groups)
    low.emit("if", when=when, blocks=blocks)


def barrier(low: WaveLowering, op: Op) -> None:
    """Lower `barrier` on a GPU: emit a wait for all asynchronous MMAs, then a barrier of the group's waves. Only the
    wait is emitted if the thread-layout analysis found that no lane reads elements that another lane stored since the
    last barrier.
    """
    low.mmas_in_flight.wait_for_all()
    if not low.frames.has_private_memory and op not in low.frames.needless:
        low.sync_waves()


def edge(low: WaveLowering, op: Op) -> None:
    """Lower `edge` on a GPU. It separates the arithmetic before it from the arithmetic after it: assemblers move no
    arithmetic across waits. Emit a wait that ends at once, with the registers of the operands as operands.
    """
    never = low.barriers("edge", 1, 1, "edge")
    before = [values_of(low, piece) for v in op.operands for piece in low.handles[v].pieces]
    low.emit("await", (never, *before), at=(as_expr(0),), phase=as_expr(-1))


def tasks(low: WaveLowering, op: Op) -> None:
    """Lower `tasks` on a GPU: emit a `tasks` loop, whose tasks are divided among workgroups, or with `schedule table` a
    loop over a table of tasks. The waves synchronise after each task if it uses shared memory that the task allocates.

    With `overlap pingpong`, two halves of the role take tasks in turn. Raise a ProgramError if then, without a table,
    the number of stages that a task uses depends on the task.
    """
    low.mmas_in_flight.wait_for_all()
    if op.attrs.get("schedule") == "table":
        _from_table(low, op)
        return
    ranges = tuple(
        Range.of(low.fresh(r.symbol.name), low.expr(r.lo), low.expr(r.hi), r.step) for r in op.attrs["ranges"]
    )
    synchronises = any(uses_task_memory(op)) and not low.frames.has_private_memory
    inner = Block(())
    meanings = {r.symbol: n.symbol for r, n in zip(op.attrs["ranges"], ranges, strict=True)}
    is_pingpong = op.attrs.get("overlap") == "pingpong"
    whole_group = low.group
    with low.writing(inner), low.means(meanings):
        if is_pingpong:
            skipped = _pingpong_task(low, op)
            _skip_tasks(low, skipped)
            _lower_epilogue(low, op)
        else:
            _body(low, op)
        low.mmas_in_flight.wait_for_all()
        if synchronises:
            low.sync_waves()
    side = low.group.side
    low.group = whole_group
    attrs: dict[str, Any] = {"turn": side} if is_pingpong else {}
    if is_pingpong:
        for _, fills in skipped:
            if fills.symbols & {r.symbol for r in ranges}:
                raise ProgramError(
                    f"overlap pingpong: how often a channel is used, {fills}, depends on the task, and a half does not "
                    "know the other's; with `schedule table` it does"
                )
        _skip_tasks(low, skipped, side)
    low.emit("tasks", ranges=ranges, schedule=op.attrs.get("schedule"), blocks=(inner,), **attrs)


def _from_table(low: WaveLowering, op: Op) -> None:
    """Lower a `tasks` operation that reads task numbers from a table. With `overlap pingpong`, each half of the role
    does every second task, and advances its positions in channels past the tasks of the other half.
    """
    synchronises = any(uses_task_memory(op)) and not low.frames.has_private_memory
    whole_group = low.group
    is_pingpong = op.attrs.get("overlap") == "pingpong"
    task_counter = low.new_counter("dealt") if is_pingpong else None

    def lower_task() -> None:
        """Lower one task; its MMAs are done at the end, and the waves synchronise if necessary."""
        _body(low, op)
        low.mmas_in_flight.wait_for_all()
        if synchronises:
            low.sync_waves()

    def lower_pingpong_task() -> None:
        """Lower one task for both halves of a ping-pong role: one half does it, and the other skips its stages."""
        assert task_counter is not None
        count = low.read_counter(task_counter, "dealt")
        low.add_to_counter(task_counter, as_expr(1))
        own_task, other_task = Block(()), Block(())
        with low.writing(own_task):
            skipped = _pingpong_task(low, op)
            _lower_epilogue(low, op)
            low.mmas_in_flight.wait_for_all()
            if synchronises:
                low.sync_waves()
        side = low.group.side
        with low.writing(other_task):
            _skip_tasks(low, skipped)
        low.group = whole_group
        low.emit("if", when=(count + side) % 2 < 1, blocks=(own_task, other_task))

    lower_task_table(low, op, lower_pingpong_task if is_pingpong else lower_task)


Skipped = list[tuple[RingPosition, Expr]]
"""Pairs (position in a ring, stages by which the other half of the role advances in a task)."""


def _skip_tasks(low: WaveLowering, skipped: Skipped, times: Expr | int = 1) -> None:
    """Emit the update of a wave's positions in channels past `times` tasks of the other half of the role. `skipped`
    lists (position in a ring of stages, number of stages that one task uses).
    """
    for position, fills in skipped:
        skip_fills(low, position, fills * times)


def _lower_epilogue(low: WaveLowering, op: Op) -> None:
    """Lower all blocks of the `tasks` operation `op` after the first one: they are the end (epilogue) of each task."""
    for block in op.blocks[1:]:
        low.block(block)


def _pingpong_task(low: WaveLowering, op: Op) -> Skipped:
    """Emit the first block of a task for one half of a ping-pong role: a wait for the half's turn, the block, and the
    arrival that gives the turn to the other half. Return [(position in a ring of stages, number of stages that the task
    uses), ...]. Afterwards `low.group` is this half.

    Operations at the start of the block that touch only registers come before the wait. If MMAs read only registers and
    stages of channels, the arrival comes when the last MMA is started, otherwise when all are done. Raise a
    ProgramError for an odd number of waves, or if the number of stages depends on a condition.
    """
    whole_group = low.group
    if whole_group.waves % 2:
        raise ProgramError(f"overlap pingpong needs an even number of waves, not {whole_group.waves}")
    half = whole_group.waves // 2
    own_side = whole_group.wave // half
    number = int(whole_group.barrier)
    low.group = replace(
        whole_group,
        waves=half,
        wave=whole_group.wave % half,
        barrier=own_side + (len(low.roles) + 1 + 2 * number),
        side=own_side,
        halves=2,
    )
    turn_barriers = low.barriers((op, "turn"), 2, half, "turn")
    turn_counter = low.new_counter("turns")
    count = low.read_counter(turn_counter, "turn")
    low.add_to_counter(turn_counter, as_expr(1))
    body = op.blocks[0].ops
    first_shared = next((i for i, inner in enumerate(body) if not _is_register_only(inner)), len(body))
    for inner in body[:first_shared]:
        low.op(inner)
    low.mmas_in_flight.clear()
    low.emit("await", (turn_barriers,), at=(own_side,), phase=count + own_side - 1)
    for inner in body[first_shared:]:
        low.op(inner)
    if not _reads_stages_only(low, op.blocks[0]):
        low.mmas_in_flight.wait_for_all()
    low.emit("arrive", (turn_barriers,), at=(1 - own_side,))
    low.mmas_in_flight.wait_for_all()
    skipped: Skipped = []
    for ring in low.rings.values():
        for name, counter in ring.counters.items():
            fills = _count_uses(low, op.blocks[0], name, ring.op.results[0])
            if not (isinstance(fills, Const) and fills.value == 0):
                skipped.append((counter, fills))
    return skipped


def _is_register_only(op: Op) -> bool:
    """True if `op` may run before the turn of a ping-pong half begins, because it touches only registers: an
    allocation, a view, a `let`, or a fill of a register tensor.
    """
    return op.name in ("alloc", "let", "view") or (op.name == "fill" and isinstance(op.operands[0].type, RegisterType))


def _reads_stages_only(low: WaveLowering, block: Block) -> bool:
    """True if the A and B operands of all MMAs in `block` are registers or stages of channels. The other half of a
    ping-pong role may then begin while the MMAs are in flight, because it cannot overwrite these operands.
    """
    operands = [v for op in walk_block(block) if op.name == "mma" for v in op.operands[1:]]
    return all(isinstance(v.type, RegisterType) or low.chain.in_stage(v) for v in operands)


def _count_uses(low: WaveLowering, block: Block, side: str, channel: Any) -> Expr:
    """Return, as an expression, how often `block` runs the operation `side` ("acquire", "commit", "wait" or "release")
    on the channel value `channel`, inner loops included. Raise a ProgramError if that depends on a condition.
    """
    total: Expr = as_expr(0)
    for op in block.ops:
        if op.name == side and op.operands[0] is channel:
            total = total + 1
        nested = [_count_uses(low, b, side, channel) for b in op.blocks]
        if not any(not (isinstance(e, Const) and e.value == 0) for e in nested):
            continue
        if op.name != "for":
            raise ProgramError(f"overlap pingpong: how often %{channel.name} is used must not depend on a condition")
        per_iteration = nested[0] + (nested[1] if len(nested) == 2 else 0)
        for r in op.attrs["ranges"]:
            per_iteration = per_iteration * -(-(low.expr(r.hi) - low.expr(r.lo)) // r.step)
        total = total + per_iteration
    return total
