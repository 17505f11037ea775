"""Block programs that need nothing of each other, as one launch: the tasks of one, then those of the next.

    tasks t_x in 0..805 { A }              tasks t in 0..861 {
    tasks t_w in 0..56 { B }                 if (t <= 804) { A, with t_x = min(804, t) }
                                             if (t >= 805) { B, with t_w = max(0, t - 805) }
                                           }

A launch waits for the one before it, whether it needs that or not. A few small programs that copy arguments before
another one runs take little longer together than the largest of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.algebra.expr import Expr, Symbol
from tilewright.algebra.expr_conditions import all_of
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.ir.attrs import Range
from tilewright.ir.binding import replaced
from tilewright.ir.block import BLOCK
from tilewright.ir.core import Block, Op, Program, building
from tilewright.ir.verifier import verify
from tilewright.passes.tile.general import Lowered


def abreast(name: str, parts: Sequence[Lowered]) -> Lowered | None:
    """Programs without roles as one of that name, in the widest of their workgroups; None where they are no such."""
    ranges = [_tasks(part) for part in parts]
    if len(parts) < 2 or any(r is None for r in ranges):
        return None
    with building():
        total = sum(int(r.hi) for r in ranges if r is not None)
        every, before, cases = Range.of("t", 0, total), 0, []
        for part, own in zip(parts, ranges, strict=True):
            assert own is not None
            count = int(own.hi)
            cases.append(_case(part, own.symbol, every.symbol, before, count))
            before += count
        tasks = Op(BLOCK.ops["tasks"], (), {"ranges": (every,)}, (), (Block((), cases),))
        args = tuple(arg for part in parts for arg in part.program.args)
        program = Program(BLOCK, name, args, Block((), [tasks]), _records(parts))
        verify(program)
    first = parts[0]
    return Lowered(program, tuple(a for part in parts for a in part.arguments), first.logs, first.faults, first.lost)


def _tasks(part: Lowered) -> Range | None:
    """The tasks of a program that has nothing but these, counted along one dimension; None: it has more."""
    ops = part.program.body.ops
    if part.packs or part.logs or part.faults or part.before or len(ops) != 1 or ops[0].name != "tasks":
        return None
    (tasks,) = ops
    plain = len(tasks.attrs["ranges"]) == 1 and set(tasks.attrs) <= {"ranges"} and len(tasks.blocks) == 1
    found: Range | None = tasks.attrs["ranges"][0] if plain else None
    return found if found is not None and found.rounds is not None and found.rounds == int(found.hi) else None


def _case(part: Lowered, own: Symbol, task: Symbol, before: int, count: int) -> Op:
    """What a program does, for those numbers of tasks that are its own."""
    number: Expr = minimum(maximum(task - before, 0), count - 1)  # where this holds it is the same, and in bounds
    arguments = {a: a for a in part.program.args}
    body = replaced(part.program.body.ops[0].blocks[0], {own: number}, arguments)
    when = all_of(task >= before, task < before + count)
    return Op(BLOCK.ops["if"], (), {"when": when}, (), (body,))


def _records(parts: Sequence[Lowered]) -> list[Op]:
    """The records of the widest program."""

    def waves(part: Lowered) -> int:
        record = part.program.record("waves")
        return 1 if record is None else int(record.attrs["count"])

    return list(max(parts, key=waves).program.records)
