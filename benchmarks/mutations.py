"""Malformed texts of every kind: each must give a typed error, or work, within 2 s and 500 MB.

    python benchmarks/mutations.py [COUNT] [--kind block] [--seed S] [--first I] [--jobs J] [--show]
    PYTHONPATH=src python3 benchmarks/mutations.py 200000 --seed 1 --jobs 16       # all of it, on a large machine

COUNT mutants in all, shared by the kinds: programs of the block, loop, host and tile levels, plans, layouts,
expressions, problems. A text is changed token by token (`mutants.py`) and then goes as far as it can: parsed, printed
and parsed again, verified, bound, checked, lowered, one in twenty to machine code, and interpreted on small arrays.
What comes of it must be an error of `tilewright.errors`, whose message holds what was changed, or no error at all
(`judging.py`). Findings are printed with the command that repeats them, then a table; the exit code is 1 if there is a
finding, a message without the value, or a kind of which less than 30 % pass the parser. Wrong calls are in
`wrong_calls.py`.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from judging import Trial, command
from mutants import PLANNED, PROBLEMS, mutant, planned, seeds, take_seeds

LEAST_PARSED = 0.3
"""The share of mutants that must pass the parser, or the mutations say little of what comes after it."""
STEPS = 3000
"""The steps that an interpreter may do for one mutant."""
NATIVE_SHARE = 20
"""One in so many programs that are right so far becomes machine code too; 0: none."""
ELEMENTS = 1 << 16
"""The most elements that all arguments of a program that is run have together."""

# -- what is done with a text -----------------------------------------------------------------------------------------


def _same_again(program: Any, parse: Callable[[str], Any]) -> None:
    text = str(program)
    assert str(parse(text)) == text, "the printed text parses to something else"


def _small_arrays(program: Any) -> list[Any] | None:
    """Arrays of zeros and ones for a program's arguments; None where they would be large."""
    import numpy as np

    from tilewright.algebra.expr import Const
    from tilewright.ir.binding import open_parameters

    sizes = {s.name: max(int(s.lo), 2) for s in open_parameters(program)}
    sizes |= {s.name: 3 for r in program.records if r.name == "size" for s in r.attrs["sizes"]}
    arrays, total = [], 0
    for arg in program.args:
        shape = [e.value if isinstance(e, Const) else sizes.get(str(e)) for e in arg.type.shape]
        if any(n is None for n in shape):
            return None
        total += int(np.prod([float(max(n, 0)) for n in shape if n is not None]))
        if total > ELEMENTS:
            return None
        arrays.append(np.ones([n for n in shape if n is not None], arg.type.dtype.numpy))
    return arrays


def _passed(trial: Trial) -> None:
    """Notes that a program passed its parser: from here on, operations on tensors are wrong, and these have names."""
    trial.parsed = True
    trial.values += tuple(re.findall(r"%\w+|(?<=for )\w+|(?<=tasks )\w+|(?<=let )\w+|\w+(?= = )", trial.text))
    if trial.removed:
        trial.values += tuple(re.findall(r"\w+(?=\()", trial.text)[:1])  # the program itself, which lacks something


def _on_arrays(trial: Trial, made: Any, args: Any, arrays: list[Any]) -> None:
    """Runs a program. An array whose shape does not fit may be wrong then."""
    trial.values += tuple(str(getattr(a, "shape", a)) for a in arrays)
    made(*arrays)


def _goes_on(text: str) -> bool:
    """Whether a program that is right so far becomes machine code too."""
    return bool(NATIVE_SHARE) and zlib.crc32(text.encode()) % NATIVE_SHARE == 0


def _text_program(text: str, trial: Trial) -> None:
    """A block, loop or host text: checked, lowered, interpreted."""
    from tilewright.compiler.device import machine_of
    from tilewright.compiler.text import LEVELS, compile_text
    from tilewright.ir.parser import parse_programs
    from tilewright.lower.cpu.lower import lower
    from tilewright.targets.registry import native

    programs = parse_programs(text, LEVELS)
    _passed(trial)
    for program in programs:
        _same_again(program, lambda t: parse_programs(t, LEVELS)[0])
    made = compile_text(text, "interpreter", workers=2)
    main = made.main
    machine = machine_of(main)
    if main.level.name != "host" and (machine is None or machine.lanes is None):
        if _goes_on(text):
            compile_text(text, "cpu")
        if main.level.name == "block" and len(text) < 6000:
            here = native("cpu").machine
            lower(main, machine or here, here)
    arrays = _small_arrays(main)
    if arrays is not None:
        made.steps = STEPS
        _on_arrays(trial, made, main.args, arrays)


def _tile_program(text: str, trial: Trial) -> None:
    import numpy as np

    import tilewright
    from tilewright.algebra.expr import Symbol
    from tilewright.ir.core import MemoryType
    from tilewright.ir.tile import parse_tile

    program = parse_tile(text)
    _passed(trial)
    _same_again(program, parse_tile)
    trial.values += tuple(s.name for s in program.bindings if isinstance(s, Symbol))
    made = tilewright.compile(program, target="executor")
    arrays: list[Any] = []
    for arg in program.args:
        if not isinstance(arg.type, MemoryType):
            arrays.append(1)
            continue
        shape = [2 if isinstance(e, Symbol) else e for e in arg.type.sizes]
        known = [made.known.get(e, 3) if isinstance(e, Symbol) else e for e in arg.type.sizes]
        shape = [int(e) if str(e).isdigit() and int(e) < 50 else 4 for e in known]
        arrays.append(np.ones(shape, arg.type.dtype.numpy))
    _on_arrays(trial, made, program.args, arrays)
    if _goes_on(text):
        _on_arrays(trial, tilewright.compile(program, target="cpu"), program.args, arrays)


def _plan(text: str, trial: Trial) -> None:
    from tilewright.plan.text import parse_plan

    plan = parse_plan(text)
    trial.parsed = True
    assert parse_plan(str(plan)) == plan, "the printed plan parses to something else"
    made, sizes = planned(PLANNED[trial.origin], text)
    made.text("block", sizes)


def _layout(text: str, trial: Trial) -> None:
    from tilewright import algebra
    from tilewright.algebra.picture import layout_svg, layout_table

    layout = algebra.parse_layout(text)
    trial.parsed = True
    assert algebra.parse_layout(str(layout)) == layout, "the printed layout parses to something else"
    for use in (layout_svg, layout_table, algebra.coalesce, algebra.cosize, algebra.complement, algebra.right_inverse):
        trial.allowed(use, layout)
    if isinstance(layout, algebra.ComposedLayout):
        trial.values += (str(layout.layout),)
    trial.allowed(algebra.composition, layout, algebra.Layout(2, 3))
    trial.allowed(algebra.logical_divide, layout, algebra.Layout(2, 1))
    trial.allowed(layout, 1)


def _expression(text: str, trial: Trial) -> None:
    from tilewright.algebra import evaluate, extent, index, parse_expr, substitute

    symbols = [*(extent(n) for n in ("M", "N", "K", "BN")), *(index(n, 100) for n in "mnkr")]
    e = parse_expr(text, symbols)
    trial.parsed = True
    assert parse_expr(str(e), symbols) is e, "the printed expression parses to something else"
    trial.values += tuple(str(node) for node in e.walk() if node.parts)
    trial.allowed(evaluate, e, dict.fromkeys(symbols, 3))
    trial.allowed(substitute, e, {symbols[0]: 5})


def _problem(text: str, trial: Trial) -> None:
    """A problem, or a file of them, read as what it was before it was changed."""
    from tilewright.problems import parse_conv, parse_matmul, read_batch

    original = PROBLEMS[trial.origin]
    if "--" in original:
        for problem in read_batch(text):
            assert str(problem)
    else:
        parse = parse_matmul if original[0].isdigit() else parse_conv
        problem = parse(text)
        assert parse(str(problem)) == problem, "the printed problem parses to something else"
        assert problem.macs >= 0
    trial.parsed = True


KINDS: dict[str, Callable[[str, Trial], None]] = {
    "block": _text_program,
    "loop": _text_program,
    "host": _text_program,
    "tile": _tile_program,
    "plan": _plan,
    "layout": _layout,
    "expression": _expression,
    "problem": _problem,
}


def do(kind: str, number: int, seed: int, trial: Trial) -> None:
    """What is done with a mutant."""
    made = mutant(kind, number, seed)
    trial.text, trial.values, trial.origin = made.text, made.changed, made.origin
    trial.removed, trial.joined = made.removed, kind in ("problem", "plan")
    KINDS[kind](made.text, trial)


def begin(kinds: tuple[str, ...]) -> Callable[[], None]:
    """Each process takes over the texts that are changed, which are made once."""
    return partial(take_seeds, {kind: seeds(kind) for kind in kinds})


def main(arguments: list[str] | None = None) -> int:
    about = __doc__.splitlines()[0]
    return command(arguments, about, "mutations.py", do, tuple(KINDS), begin, 8000, LEAST_PARSED)


if __name__ == "__main__":
    sys.exit(main())
