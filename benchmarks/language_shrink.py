"""A failing program made smaller while it fails alike: operations left out, values replaced, sizes lowered."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

from language_draft import Drawn
from language_loops import drawn
from language_ways import FAILURES, Case, Outcome, outcome

from tilewright.ir.core import Block, Op, Program, TileType, Value
from tilewright.ir.tile import TILE
from tilewright.ir.verifier import verify

SECONDS = 15.0
"""How long a program is made smaller."""
EFFECTS = ("write", "atomic_add", "atomic_min", "atomic_max", "set_symbol", "yield", "debug_log", "barrier")


def shrunk_text(failure: Outcome) -> str:
    """A failing program and its sizes as small as they become, as text; that of a hang as it is."""
    program = drawn(failure.number, failure.seed)
    if not failure.error.startswith(("no return", "the process")) and failure.way != "meaning":
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        process = context.Process(target=_shrinking, args=(theirs, failure), daemon=True)
        process.start()
        theirs.close()
        end = time.monotonic() + 2 * SECONDS
        last = None
        try:
            while pipe.poll(max(0.0, end - time.monotonic())):
                last = pipe.recv()
        except EOFError:
            pass
        process.kill()
        process.join()
        if last is not None:
            return f"  shrunk: {last}"
    return f"  sizes {program.sizes}\n{program.program}"


def _shrinking(pipe: Any, failure: Outcome) -> None:
    warnings.simplefilter("ignore")
    for smaller, said in shrunk(failure):
        forms = {a.value.name: a.form for a in smaller.arguments}
        pipe.send(f"sizes {smaller.sizes}, arguments {forms}\n{smaller.program}  {said.error}")


def shrunk(failure: Outcome, seconds: float = SECONDS) -> Iterator[tuple[Drawn, Outcome]]:
    """Ever smaller programs that fail alike."""
    best, end = drawn(failure.number, failure.seed), time.monotonic() + seconds
    again = True
    while again:
        again = False
        for smaller in _smaller(best):
            if time.monotonic() > end:
                return
            try:
                verify(smaller.program)
                case = Case(smaller, failure.number, failure.seed)
                if failure.way != "executor" and outcome(case, "executor").verdict in FAILURES:
                    continue
                said = outcome(case, failure.way)
            except Exception:  # it means nothing any more
                continue
            if said.verdict in FAILURES and said.kind == failure.kind:
                best, again = smaller, True
                yield best, said
                break


def _smaller(given: Drawn) -> Iterator[Drawn]:
    """Programs that are one change smaller, the greatest changes first."""
    count = sum(1 for _ in given.program.walk())
    if (made := _pruned(_copied(given))) and sum(1 for _ in made.program.walk()) < count:
        yield made
    for n in range(count):  # effects left out
        made = _copied(given)
        block, op = _at(made.program, n)
        if op.name in EFFECTS and op.name != "yield":
            block.ops.remove(op)
            yield _pruned(made)
    for n in range(len(given.program.records)):
        made = _copied(given)
        del made.program.records[n]
        yield made
    for n in range(count):  # values replaced by an operand, or by a number
        op = _at(given.program, n)[1]
        for place, result in enumerate(op.results):
            if not isinstance(result.type, TileType):
                continue
            for other in range(len(op.operands)):
                if op.operands[other].type == result.type:
                    made = _copied(given)
                    it = _at(made.program, n)[1]
                    _replaced(made.program, it.results[place], it.operands[other])
                    yield _pruned(made)
            if op.name not in ("fill", "scalar"):
                made = _copied(given)
                block, it = _at(made.program, n)
                value = Value(result.type)
                fill = Op(TILE.ops["fill"], (), {"value": 1}, (value,), loc=it.loc)
                block.ops.insert(block.ops.index(it), fill)
                _replaced(made.program, it.results[place], value)
                yield _pruned(made)
    for name, size in given.sizes.items():
        for less in dict.fromkeys((1, 2, size // 2, size - 1)):
            if 0 < less < size:
                yield replace(given, sizes={**given.sizes, name: less}, dynamic=given.dynamic)


def _copied(given: Drawn) -> Drawn:
    program = given.program
    memo: dict[int, Any] = {}
    copy = deepcopy(program, memo)
    arguments = [replace(a, value=memo[id(a.value)]) for a in given.arguments]
    return replace(given, program=copy, arguments=arguments)


def _walk(block: Block) -> Iterator[tuple[Block, Op]]:
    for op in block.ops:
        yield block, op
        for inner in op.blocks:
            yield from _walk(inner)


def _at(program: Program, n: int) -> tuple[Block, Op]:
    return next(each for m, each in enumerate(_walk(program.body)) if m == n)


def _replaced(program: Program, old: Value, new: Value) -> None:
    for _, op in _walk(program.body):
        op.operands = tuple(new if v is old else v for v in op.operands)


def _pruned(given: Drawn) -> Drawn:
    """Without what nothing uses: operations, and arguments."""
    program = given.program
    while True:
        used = {v for op in program.walk() for v in op.operands}
        idle = [
            (block, op) for block, op in _walk(program.body)
            if op.name not in EFFECTS and not any(r in used for r in op.results)
            and not any(inner.name in EFFECTS and inner.name != "yield" for b in op.blocks for _, inner in _walk(b))
        ]  # fmt: skip
        if not idle:
            break
        for block, op in idle:
            block.ops.remove(op)
    arguments = [a for a in given.arguments if a.value in used]
    program.args = tuple(a.value for a in arguments)
    return replace(given, arguments=arguments)
