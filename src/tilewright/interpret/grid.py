"""Workgroups: which programs have them, in what order they run, and that threads are not among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from tilewright.algebra.expr import Expr
from tilewright.errors import OutOfScope
from tilewright.ir.core import Program
from tilewright.ir.tile import loose
from tilewright.lang.symbols import THREADS, WORKGROUPS

if TYPE_CHECKING:  # whether a program has workgroups is asked of kernels that nothing interprets
    from tilewright.interpret.run import Run


def is_grid(program: Program) -> bool:
    """Whether the program's constraints are part of its meaning.

    So they are where it mentions workgroups, shares memory, or has a while loop whose start differs from element to
    element: then each workgroup ends its loop when it is done.
    """
    for record in program.records:
        if record.name == "grid" or "iters" in record.attrs or "start" in record.attrs:
            return True
        if any(_mentions(e) for e in _expressions(record.attrs)):
            return True
    if any(_mentions(e) for e in program.bindings.values() if isinstance(e, Expr)):
        return True
    return any(
        op.name == "allocate"
        or (op.name == "iterate" and op.attrs.get("start") and op.operands[0].type.dims)
        or loose(op) is not None
        or any(map(_mentions, _expressions(op.attrs)))
        for op in program.walk()
    )


def _expressions(attrs: Mapping[str, Any]) -> Iterator[Expr]:
    for value in attrs.values():
        if isinstance(value, Expr):
            yield value
        elif isinstance(value, tuple):
            for entry in value:
                for e in entry if isinstance(entry, tuple) else (entry,):
                    if isinstance(e, Expr):
                        yield e
                    elif isinstance(e, tuple):
                        yield from (x for x in e if isinstance(x, Expr))


def _mentions(e: Expr) -> bool:
    return any(s in WORKGROUPS for s in e.symbols)


def refuse_threads(program: Program) -> None:
    """Raises where a thread's identity is used: a tile program has no threads."""
    for op in [*program.records, *program.walk()]:
        for e in _expressions(op.attrs):
            for s in e.symbols:
                if s in THREADS:
                    raise OutOfScope(f"{s.name}: a tile program has no threads", op.loc)


def workgroups(program: Program, run: Run) -> Iterator[tuple[tuple[int, ...] | None, Mapping[int, int]]]:
    """The ids of the workgroups in ascending order, first grid dimension fastest; None once for a logical program.

    Beside the ids of each, how many run together with it along dimensions of the grid (see `joining`).
    """
    if not is_grid(program):
        yield None, {}
        return
    sizes: dict[int, int] = {}
    persistent = [record for record in program.records if record.name == "grid"]
    if persistent:  # a fixed number of workgroups, which share the work among themselves
        yield from (((i,), {}) for i in range(run.number(persistent[0].attrs["count"])))
        return
    for record in program.records:
        if record.name == "workgroup" and record.attrs.get("primary", True):
            attrs = record.attrs
            if "iters" in attrs:
                count = run.number(attrs["iters"])
            else:
                count = -(-run.number(attrs["dim"]) // run.number(attrs["tile"]))
            sizes[attrs["grid"]] = count
    counts = [sizes.get(i, 1) for i in range(max(sizes, default=0) + 1)]
    from tilewright.interpret.joining import joined

    together = joined(program, run, counts)
    steps = [range(0, n, together.get(place, 1)) for place, n in enumerate(counts)]
    for ids in product(*reversed(steps)):
        yield tuple(reversed(ids)), together
