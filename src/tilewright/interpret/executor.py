"""The executor, in numpy: it defines what a tile program means.

A logical program runs once, on whole tensors. A grid program runs workgroup by workgroup, in ascending id; each
constrained dimension is restricted to the workgroup's tile. Inside `iterate` a dimension is restricted to the current
tile. Elements outside are never read, combined or written.

| file                        | subject                                                                 |
|-----------------------------|-------------------------------------------------------------------------|
| run, tiles                  | the state of one execution; arrays that know the coordinates they cover |
| making, forming, elementwise| tiles from constants; elementwise functions of tiles                    |
| memory                      | reads, writes, atomics, logs                                            |
| combining                   | mma, reductions, scans                                                  |
| control, loops              | loops and conditionals; loops whose tile size affects the result        |
| grid, joining               | workgroups; which of them run as one                                    |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.algebra.expr import Expr, Symbol
from tilewright.interpret import combining, control, elementwise, forming, making, memory
from tilewright.interpret.grid import workgroups
from tilewright.interpret.run import Handler, Run
from tilewright.interpret.tiles import TileValue, scalar_value
from tilewright.ir.core import MemoryType, Op, Program, Value
from tilewright.ir.tile import REDUCTIONS, SCANS


def execute(
    program: Program,
    symbols: Mapping[Symbol, int],
    arguments: Mapping[Value, Any],
    logs: dict[str, Any] | None = None,
    derived: Mapping[Symbol, Expr] | None = None,
    *,
    lenient: bool = False,
) -> None:
    """Run the tile program on `arguments`, {argument: numpy array or number}; arrays of outputs are written in place.

    `symbols` is {symbol: value}; `derived` is {symbol: expression} for symbols that depend on the workgroup. The tiles
    of `debug_log` operations are added to `logs`, {label: {"value": array}} (None: not recorded). With `lenient`,
    symbols that set_symbol sets may be outside their range. Raise an ExecutionError if an operation is invalid at run
    time, such as a read out of bounds.
    """
    run = Run(program, HANDLERS, dict(symbols), logs, dict(derived or {}), lenient=lenient)
    for value, argument in arguments.items():
        if isinstance(value.type, MemoryType):
            run.memory[value] = argument
        else:
            run.values[value] = scalar_value(argument, value.type.dtype)
    for op in program.body.ops:  # scalar arguments that bind symbols count in constraints too
        if op.name == "set_symbol" and op.operands[0] in arguments:
            making.set_symbol(run, op)
    run.given = dict(run.bound)
    for ids, joined_count in workgroups(program, run):
        run.workgroup(ids, joined_count)
        run.block(program.body)


def _nothing(run: Run, op: Op) -> tuple[TileValue, ...]:
    """Execute a `barrier`: do nothing, since the executor runs one operation at a time. Return ()."""
    return ()


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys((*elementwise.UNARY, *elementwise.BINARY), forming.elementwise),
    **dict.fromkeys(REDUCTIONS, combining.reduce),
    **dict.fromkeys(("write", "atomic_add", "atomic_min", "atomic_max"), memory.write),
    **dict.fromkeys(("broadcast", "permute"), forming.broadcast),
    **{name: getattr(making, name) for name in ("fill", "scalar", "self_index", "apply", "set_symbol")},
    **{name: getattr(memory, name) for name in ("allocate", "read", "debug_log")},
    **{name: getattr(combining, name) for name in ("mma", "topk")},
    **dict.fromkeys(SCANS, combining.scan),
    **{name: getattr(forming, name) for name in ("cast", "bitcast", "reshape", "repeat", "select", "extract")},
    **{name: getattr(control, name) for name in ("iterate", "conditional")},
    "barrier": _nothing,
}
