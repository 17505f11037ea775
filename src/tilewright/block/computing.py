"""Arithmetic: map, reduce, scan; one operation a call. Products are in `mma`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.algebra.expr import Expr
from tilewright.block.formulas import argument, element_of
from tilewright.block.names import argument_names
from tilewright.block.tensor import Tensor, tensor_of
from tilewright.block.tracing import number, trace
from tilewright.errors import ProgramError
from tilewright.ir.core import Value
from tilewright.ir.location import author_location


def map(target: Tensor, x: Any, *, stream: Any = None, rare: bool = False) -> None:
    """The target becomes x, element by element: one `map`; `target[...] = x` is the same.

    x is a tensor, a number, or what operators and functions make of them. Or it is a function of the coordinates, in
    whose result they are integers: `tb.map(mask, lambda i, j: tb.select(i >= j, 1.0, 0.0))`. `rare` says that a
    condition seldom holds: of `tb.map(acc, tb.select(scale < 1, acc * scale, acc), rare=True)` waves in which it holds
    nowhere do nothing. It changes no result.
    """
    here = trace("map")
    operands = [tensor_of(target, "map")]
    over = None
    if callable(x) and not isinstance(x, Expr):
        over = here.axes(argument_names(x, len(target.type.shape)), target.type.shape)
        x = x(*over)
    formula = element_of(x, "map").formula(lambda value: _operand(operands, value))
    hint = None if stream is None else number(stream, "map: stream")
    here.emit("map", operands, {"over": over, "formula": formula, "stream": hint, "rare": rare or None})


def _operand(operands: list[Value], value: Value) -> int:
    """The place of an operand, which the target is not: it may be read as well."""
    for place, known in enumerate(operands[1:], 1):
        if known is value:
            return place
    operands.append(value)
    return len(operands) - 1


def reduce(
    source: Tensor | Sequence[Tensor],
    target: Tensor | Sequence[Tensor],
    along: int,
    how: str | Callable[..., Any] = "sum",
    *,
    accumulate: bool = False,
) -> None:
    """Combines a dimension: one `reduce`. `accumulate` starts from what the target holds.

    `how` is "sum", "max", "min" or "prod"; or a function of what was combined before and what comes next, one argument
    for each tensor: `lambda a0, a1, b0, b1: (tb.select(a0 >= b0, a0, b0), tb.select(a0 >= b0, a1, b1))`.
    """
    _combine("reduce", source, target, {"along": along, "accumulate": accumulate or None}, how)


def scan(
    source: Tensor | Sequence[Tensor],
    target: Tensor | Sequence[Tensor],
    along: int,
    how: str | Callable[..., Any] = "sum",
    *,
    exclusive: bool = False,
) -> None:
    """The running combination along a dimension: one `scan`. `exclusive` leaves the element itself out."""
    _combine("scan", source, target, {"along": along, "exclusive": exclusive or None}, how)


def _combine(name: str, source: Any, target: Any, attrs: dict[str, Any], how: Any) -> None:
    sources, targets = (tuple(x) if isinstance(x, tuple | list) else (x,) for x in (source, target))
    operands = [tensor_of(t, name) for t in (*sources, *targets)]
    if not isinstance(how, str):
        args = [argument(f"{side}{i}") for side in "ab" for i in range(len(sources))]
        found = how(*args)
        formulas = found if isinstance(found, tuple) else (found,)
        how = tuple(element_of(f, name).formula(_no_operand) for f in formulas)
    trace(name).emit(name, operands, {**attrs, "with": how})


def _no_operand(value: Value) -> int:
    raise ProgramError(f"a combining function is over its arguments; %{value.name} is none of them", author_location())
