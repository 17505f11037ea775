"""Faults planted in the Python text of the twelve block programs, one at a time, wherever they have such a construct.

| fault             | where                               | what is changed                                        |
|-------------------|-------------------------------------|--------------------------------------------------------|
| one row less      | `tb.shared`                         | the tensor has one row less                            |
| swapped lanes     | `tb.registers`, `mma.a`, `.b`, `.c` | every second pair of neighbouring lanes changes places |
| uneven partition  | `tb.partition`, `tb.blockwise_copy` | the threads do not divide the tile                     |
| uneven waves      | `tb.Mma`                            | one more row of waves than divides the tile            |

Each must be refused or reported, at a line of the author's with a caret; or it is harmless, and then with a proof: the
registers meet nothing but memory, where a permutation of threads changes nothing, and every schedule gives the bits of
the program without the fault. `python benchmarks/planted_faults.py [NAME ...]` prints a row for each, and fails where
one is neither.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent)]

import numpy as np  # noqa: E402
from deletions import SCHEDULES, Subject, path_of, subjects  # noqa: E402

from tilewright.algebra import Layout, rank, size  # noqa: E402
from tilewright.algebra.inttuple import leaves  # noqa: E402
from tilewright.analysis.distribution import interleaved_layout, operand_layout  # noqa: E402
from tilewright.block import BlockKernel, Mma  # noqa: E402
from tilewright.compiler.text import TextExecutable  # noqa: E402
from tilewright.errors import ProgramError  # noqa: E402
from tilewright.ir.core import Program  # noqa: E402
from tilewright.ir.tensors import RegisterType  # noqa: E402

Schedules = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Outcome:
    """What became of one fault: the author's line, the fault, the report, or the proof that it is harmless."""

    line: int
    fault: str
    report: ProgramError | None
    proof: str = ""

    @property
    def said(self) -> str:
        """The outcome in one line."""
        if self.report is None:
            return f"harmless: {self.proof}" if self.proof else "NO REPORT"
        return f"{type(self.report).__name__}: {self.report.what.splitlines()[0]}"


# -- what the planted calls do ----------------------------------------------------------------------------


def one_row_less(layout: Any) -> Any:
    """A shape, or a flat layout, with one row less."""
    if isinstance(layout, Layout):
        return Layout(one_row_less(layout.shape), layout.stride)
    row = max(len(layout) - 2, 0)
    return tuple(extent - int(dim == row) for dim, extent in enumerate(layout))


def swapped_lanes(owners: Layout) -> Layout:
    """Lanes 1 and 2 of every four that hold something else change places."""
    extents, steps = list(leaves(owners[0].shape)), list(leaves(owners[0].stride))
    first = next(i for i, (s, d) in enumerate(zip(extents, steps, strict=True)) if s > 1 and d)
    if extents[first] % 4 == 0:
        count, step = extents[first], steps[first]
        extents[first : first + 1], steps[first : first + 1] = [2, 2, count // 4], [2 * step, step, 4 * step]
    else:  # two lanes: they change places with the next digit of a lane's number
        other = next(i for i in range(first + 1, len(extents)) if extents[i] % 2 == 0 and steps[i])
        count, step = extents[other], steps[other]
        extents[other : other + 1], steps[other : other + 1] = [2, count // 2], [steps[first], 2 * step]
        steps[first] = step
    return Layout((tuple(extents), owners[1].shape), (tuple(steps), owners[1].stride))


def swapped_operand(mma: Mma, which: str, rows: Any, columns: Any) -> Layout:
    """The owners of an operand of a product, with lanes swapped."""
    waves = (1, 1) if mma.waves is None else tuple(int(w) for w in mma.waves)
    spread = interleaved_layout if mma.interleaved else operand_layout
    return swapped_lanes(spread(mma.row, which, (int(rows), int(columns)), waves))


def uneven_threads(threads: Layout, extents: Any) -> Layout:
    """More threads along the first dimension that they then do not divide."""
    counts = [size(threads, m) for m in range(rank(threads))]
    for dim, extent in enumerate(extents):
        more = next((n for n in range(counts[dim] + 1, 2 * counts[dim] + 2) if int(extent) % n), None)
        if more is not None:
            return Layout((*counts[:dim], more, *counts[dim + 1 :]))
    raise LookupError(f"every number of threads divides {extents}")


def uneven_waves(waves: Any) -> Any:
    """One more row of waves."""
    return (waves[0] + 1, *waves[1:])


HELPERS = (one_row_less, swapped_lanes, swapped_operand, uneven_threads, uneven_waves)


# -- where they are planted -------------------------------------------------------------------------------


def _named(call: ast.Call, *names: str) -> bool:
    """Whether a call is `tb.NAME(...)`."""
    found = call.func
    return isinstance(found, ast.Attribute) and found.attr in names and ast.unparse(found.value) == "tb"


def _helper(helper: Callable[..., Any], *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(helper.__name__, ast.Load()), [deepcopy(a) for a in args], [])


def planted(call: ast.Call) -> Iterator[tuple[str, Callable[[ast.Call], None]]]:
    """(fault, what plants it) for each fault that a call may have; the call is changed in place."""

    def argument(place: int, make: Callable[[ast.Call], ast.expr]) -> Callable[[ast.Call], None]:
        def plant(call: ast.Call) -> None:
            call.args[place] = make(call)

        return plant

    if _named(call, "shared"):
        yield "one row less", argument(1, lambda c: _helper(one_row_less, c.args[1]))
    if _named(call, "registers"):
        yield "swapped lanes", argument(2, lambda c: _helper(swapped_lanes, c.args[2]))
    if _named(call, "partition"):
        yield "uneven partition", argument(1, lambda c: _helper(uneven_threads, c.args[1], c.args[0]))
    if _named(call, "blockwise_copy"):
        shape = ast.Attribute(call.args[1], "shape", ast.Load())
        yield "uneven partition", argument(2, lambda c: _helper(uneven_threads, c.args[2], shape))
    if _named(call, "Mma"):
        if len(call.args) > 1:
            yield "uneven waves", argument(1, lambda c: _helper(uneven_waves, c.args[1]))
        for place, keyword in enumerate(call.keywords):
            if keyword.arg == "waves":

                def more(call: ast.Call, place: int = place) -> None:
                    call.keywords[place].value = _helper(uneven_waves, call.keywords[place].value)

                yield "uneven waves", more
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(owner, ast.Name) and call.func.attr in ("a", "b", "c") and len(call.args) == 2:  # type: ignore[attr-defined]

        def operand(call: ast.Call) -> None:
            which = call.func.attr  # type: ignore[attr-defined]
            row = ast.Attribute(ast.Attribute(deepcopy(owner), "row", ast.Load()), which, ast.Load())
            swapped = _helper(swapped_operand, owner, ast.Constant(which), *call.args)
            call.func = ast.Attribute(ast.Name("tb", ast.Load()), "registers", ast.Load())
            call.args = [ast.Attribute(row, "dtype", ast.Load()), ast.Tuple(call.args, ast.Load()), swapped]

        yield "swapped lanes", operand


def variants(path: Path) -> Iterator[tuple[int, str, types.CodeType]]:
    """(line, fault, code) of the file with each fault planted; lines and columns are those of the file."""
    text = path.read_text()
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    for place, call in enumerate(calls):
        for number, (fault, _) in enumerate(planted(call)):
            changed = ast.parse(text)
            mine = [node for node in ast.walk(changed) if isinstance(node, ast.Call)][place]
            list(planted(mine))[number][1](mine)
            for node in ast.walk(mine):  # what is planted stands where the call stands
                if "lineno" in node._attributes and not hasattr(node, "lineno"):
                    ast.copy_location(node, mine)
            yield call.lineno, fault, compile(ast.fix_missing_locations(changed), str(path), "exec")


# -- what becomes of them ---------------------------------------------------------------------------------


def outcomes(name: str, subject: Subject, schedules: Schedules = SCHEDULES) -> Iterator[Outcome]:
    """What becomes of each fault of a program."""
    wanted: Any = None
    for line, fault, code in variants(path_of(name)):
        module = types.ModuleType(name)
        vars(module).update({helper.__name__: helper for helper in HELPERS})
        exec(code, vars(module))
        kernel: BlockKernel = getattr(module, name)
        try:
            program = kernel.trace(subject.params)
            found = [_run(program, subject, *schedule) for schedule in schedules]
        except ProgramError as report:
            yield Outcome(line, fault, report)
            continue
        if wanted is None:
            wanted = _run(subject.kernel.trace(subject.params), subject, *schedules[0])
        same = all(np.array_equal(a, b) for run in found for a, b in zip(run, wanted, strict=True))
        proof = "" if not same else _meets_memory_only(program, line)
        yield Outcome(line, fault, None, proof and f"{proof}; {len(schedules)} schedules give the same bits")


def _run(program: Program, subject: Subject, workers: int, seed: int) -> tuple[Any, ...]:
    found = TextExecutable([program], {}, "interpreter", workers, seed)(*subject.arguments)
    return found if isinstance(found, tuple) else (found,)


def _meets_memory_only(program: Program, line: int) -> str:
    """The proof that it does not matter which thread holds what: no operation pairs the registers with others."""
    held = {r for op in program.walk() if op.name == "alloc" and getattr(op.loc, "line", 0) == line for r in op.results}
    for op in program.walk():
        registers = [v for v in op.operands if isinstance(v.type, RegisterType)]
        alone = len(registers) == 1 and op.name in ("copy", "fill")
        if set(registers) & held and not alone and op.name != "convert_layout":
            return ""
    return "each element has one owner still, and the registers meet nothing but memory, or a convert_layout"


def main() -> None:
    silent = 0
    for name, subject in subjects().items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        found = list(outcomes(name, subject))
        print(f"{name}: {len(found)} faults, {sum(o.report is not None for o in found)} refused or reported")
        for outcome in found:
            silent += outcome.report is None and not outcome.proof
            print(f"  {name}.py:{outcome.line} | {outcome.fault} | {outcome.said}")
    if silent:
        sys.exit(f"{silent} faults are neither reported nor harmless")


if __name__ == "__main__":
    main()
