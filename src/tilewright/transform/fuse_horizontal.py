"""Horizontal fusion: independent block programs as one launch, the tasks of one program after those of the other.

    tasks t_x in 0..805 { A }              tasks t in 0..861 {
    tasks t_w in 0..56 { B }                 if (t <= 804) { A, with t_x = min(804, t) }
                                             if (t >= 805) { B, with t_w = max(0, t - 805) }
                                           }

A launch waits for the one before it, even if it does not need its results. A few small programs that copy arguments
take little longer together than the largest of them alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.algebra.expr import Expr, Symbol
from tilewright.algebra.expr_conditions import all_of
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.ir.attrs import Range
from tilewright.ir.binding import replaced
from tilewright.ir.block import BLOCK
from tilewright.ir.core import Block, Op, Program, building
from tilewright.ir.verifier import verify
from tilewright.lower.block.lower import Lowered
from tilewright.rewrite.operand_copies import digits


def fuse_horizontally(name: str, parts: Sequence[Lowered]) -> Lowered | None:
    """Return one program named `name` that does the tasks of all programs in `parts` in one launch, those of parts[0]
    first. It has the records, such as the number of waves, of the program with the most waves, and the arguments of all
    programs in order.

    Return None for fewer than two parts, and if a program is not a single loop over tasks numbered from 0, or has
    packing steps, earlier programs, logs or run-time errors.
    """
    ranges = [_task_ranges(part) for part in parts]
    if len(parts) < 2 or not all(ranges):
        return None
    counts = [prod(int(r.hi) for r in part_ranges) for part_ranges in ranges]
    with building():
        every, before, cases = Range.of("t", 0, sum(counts)), 0, []
        for part, part_ranges, count in zip(parts, ranges, counts, strict=True):
            cases.append(_branch_of(part, part_ranges, every.symbol, before, count))
            before += count
        tasks = Op(BLOCK.ops["tasks"], (), {"ranges": (every,)}, (), (Block((), cases),))
        args = tuple(arg for part in parts for arg in part.program.args)
        program = Program(BLOCK, name, args, Block((), [tasks]), _records(parts))
        verify(program)
    first = parts[0]
    return Lowered(
        program, tuple(a for part in parts for a in part.arguments), first.logs, first.faults, first.fallback_mmas
    )


def _task_ranges(part: Lowered) -> tuple[Range, ...]:
    """Return the ranges of the task loop of `part`. Return () unless the program is a single loop over tasks without
    other attributes, and each range is 0, 1, 2, ... with a constant count. Return () too if the program has packing
    steps, earlier programs, logs or run-time errors.
    """
    ops = part.program.body.ops
    if part.packs or part.logs or part.faults or part.before or len(ops) != 1 or ops[0].name != "tasks":
        return ()
    (tasks,) = ops
    ranges: tuple[Range, ...] = tasks.attrs["ranges"]
    is_plain = set(tasks.attrs) <= {"ranges"} and len(tasks.blocks) == 1
    return ranges if is_plain and all(r.trip_count is not None and r.trip_count == int(r.hi) for r in ranges) else ()


def _branch_of(part: Lowered, ranges: Sequence[Range], task: Symbol, before: int, count: int) -> Op:
    """Return an `if` operation that does the task of `part` with number `task` - `before`, if the symbol `task` is from
    `before` to `before` + `count` - 1. Inside, the task symbols of `part`, with the ranges `ranges`, are replaced by
    the digits of this number, the last range fastest.
    """
    clamped: Expr = minimum(
        maximum(task - before, 0), count - 1
    )  # equal to task - before inside the branch, and always in bounds
    numbers = digits(clamped, [int(r.hi) for r in ranges])
    arguments = {a: a for a in part.program.args}
    symbols = {r.symbol: number for r, number in zip(ranges, numbers, strict=True)}
    body = replaced(part.program.body.ops[0].blocks[0], symbols, arguments)
    when = all_of(task >= before, task < before + count)
    return Op(BLOCK.ops["if"], (), {"when": when}, (), (body,))


def _records(parts: Sequence[Lowered]) -> list[Op]:
    """Return the records (machine, number of waves, open sizes) of the program in `parts` whose workgroups have the
    most waves.
    """

    def waves(part: Lowered) -> int:
        record = part.program.record("waves")
        return 1 if record is None else int(record.attrs["count"])

    return list(max(parts, key=waves).program.records)
