"""Workgroups of tile programs: which programs have them, and in what order they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from tilewright.algebra.expr import Expr
from tilewright.errors import OutOfScope
from tilewright.ir.core import Program
from tilewright.ir.tile import mismatched_dims
from tilewright.lang.symbols import THREADS, WORKGROUPS

if TYPE_CHECKING:  # `is_grid` is also called for kernels that are never interpreted
    from tilewright.interpret.run import Run


def is_grid(program: Program) -> bool:
    """True if the tile program is a grid program: its workgroup and tile constraints affect its result.

    It is one if it uses workgroup ids, shared memory, explicit starts or iteration counts, or a fixed number of
    workgroups. It is one too if constraints tile a dimension that only some operands of an operation have, or if a
    while loop starts at different values for different elements, so that each workgroup ends its loop separately.
    """
    for record in program.records:
        if record.name == "grid" or "iters" in record.attrs or "start" in record.attrs:
            return True
        if any(_uses_workgroup_id(e) for e in _expressions(record.attrs)):
            return True
    if any(_uses_workgroup_id(e) for e in program.bindings.values() if isinstance(e, Expr)):
        return True
    return any(
        op.name == "allocate"
        or (op.name == "iterate" and op.attrs.get("start") and op.operands[0].type.dims)
        or mismatched_dims(op) is not None
        or any(map(_uses_workgroup_id, _expressions(op.attrs)))
        for op in program.walk()
    )


def _expressions(attrs: Mapping[str, Any]) -> Iterator[Expr]:
    """Yield the integer expressions among the values of `attrs`, {attribute name: value}, also inside nested tuples."""
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


def _uses_workgroup_id(e: Expr) -> bool:
    """True if the symbol of a workgroup id occurs in the expression `e`."""
    return any(s in WORKGROUPS for s in e.symbols)


def refuse_threads(program: Program) -> None:
    """Raise OutOfScope if the program uses a thread id: tile programs have no threads."""
    for op in [*program.records, *program.walk()]:
        for e in _expressions(op.attrs):
            for s in e.symbols:
                if s in THREADS:
                    raise OutOfScope(f"{s.name}: a tile program has no threads", op.loc)


def workgroups(program: Program, run: Run) -> Iterator[tuple[tuple[int, ...] | None, Mapping[int, int]]]:
    """Yield (ids, counts) for the workgroups to run, in ascending order, first grid dimension fastest.

    `ids` has a workgroup's id along each grid dimension. `counts` is {grid dimension: number of workgroups, from this
    id on, that run as one}; a dimension without an entry has 1. Only the first of the workgroups that run as one is
    yielded. Yield (None, {}) once if the program is no grid program.
    """
    if not is_grid(program):
        yield None, {}
        return
    sizes: dict[int, int] = {}
    grid_records = [record for record in program.records if record.name == "grid"]
    if grid_records:  # a fixed number of workgroups, which share the work among themselves
        yield from (((i,), {}) for i in range(run.number(grid_records[0].attrs["count"])))
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

    joined_counts = joined(program, run, counts)
    steps = [range(0, n, joined_counts.get(grid_dim, 1)) for grid_dim, n in enumerate(counts)]
    for ids in product(*reversed(steps)):
        yield tuple(reversed(ids)), joined_counts
