"""`map`, `reduce` and `scan`: arithmetic on tensors; each call emits one operation. For products see `mma`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.algebra.expr import Expr
from tilewright.block.formulas import argument, element_of
from tilewright.block.names import argument_names
from tilewright.block.tensor import Tensor, tensor_of
from tilewright.block.tracing import function, number, trace
from tilewright.errors import ProgramError
from tilewright.ir.core import Value
from tilewright.ir.location import author_location


def map(target: Tensor, x: Any, *, stream: Any = None, rare: bool = False) -> None:
    """Emit one `map`, which sets each element of `target` to the value of `x` at the same coordinates. `target[...] =
    x` does the same.

    `x` is a tensor, a number, an elementwise formula of tensors, or a Python function from integer coordinates to a
    formula: `tb.map(mask, lambda i, j: tb.select(i >= j, 1.0, 0.0))`.

    Two hints change no result. `stream` is a cache hint (1: evict first). `rare` says that the condition of
    `tb.map(acc, tb.select(scale < 1, acc * scale, acc), rare=True)` seldom holds: a wave in which it holds for no
    element skips the map.
    """
    current = trace("map")
    values = [tensor_of(target, "map")]
    over = None
    if callable(x) and not isinstance(x, Expr):
        over = current.axes(argument_names(x, len(target.type.shape)), target.type.shape)
        x = x(*over)
    formula = element_of(x, "map").formula(lambda value: _operand(values, value))
    hint = None if stream is None else number(stream, "map: stream")
    current.emit("map", values, {"over": over, "formula": formula, "stream": hint, "rare": rare or None})


def _operand(operands: list[Value], value: Value) -> int:
    """Return the index of `value` in `operands`, the operand list of a `map`; append `value` first if it is not in the
    list.

    Index 0, the target, is skipped: a target that the formula also reads is listed a second time.
    """
    for index, operand in enumerate(operands[1:], 1):
        if operand is value:
            return index
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
    """Emit one `reduce`, which reduces `source` along dimension number `along` and writes the result to `target`, which
    lacks that dimension.

    `how` is "sum", "max", "min" or "prod", or a function of two elements that returns their combination. `source` and
    `target` may be sequences of tensors, reduced together as tuples: then `how` takes all elements of the left tuple,
    then of the right one, and returns a tuple. For argmax over (values, indices) it is `lambda a0, a1, b0, b1:
    (tb.select(a0 >= b0, a0, b0), tb.select(a0 >= b0, a1, b1))`. With `accumulate`, the reduction starts from the values
    of `target`.
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
    """Emit one `scan`, which writes the running reduction of `source` along dimension number `along` to `target`, which
    has the same shape.

    `how` is "sum", "max", "min" or "prod", or a function that combines two elements. `source` and `target` may be
    sequences of tensors, scanned together as tuples, as in `reduce`. With `exclusive`, an element is not part of its
    own result: the sums of 1, 2, 3 are 0, 1, 3.
    """
    _combine("scan", source, target, {"along": along, "exclusive": exclusive or None}, how)


def _combine(name: str, source: Any, target: Any, attrs: dict[str, Any], how: Any) -> None:
    """Emit the operation `name` ("reduce" or "scan") with the attributes `attrs`, from `source` to `target`, each one
    tensor or a sequence of tensors.

    `how` is the name of a combination, such as "sum", or a Python function of elements. The function is called once,
    here, and returns one formula for each tensor.
    """
    sources, targets = (tuple(x) if isinstance(x, tuple | list) else (x,) for x in (source, target))
    operands = [tensor_of(tensor, name) for tensor in (*sources, *targets)]
    if not isinstance(how, str):
        args = [argument(f"{side}{i}") for side in "ab" for i in range(len(sources))]
        results = function(how, f"{name}: how")(*args)
        formulas = results if isinstance(results, tuple) else (results,)
        how = tuple(element_of(f, name).formula(_no_operand) for f in formulas)
    trace(name).emit(name, operands, {**attrs, "with": how})


def _no_operand(value: Value) -> int:
    """Raise a ProgramError, always: the formula of a combining function (the `how` of `reduce` and `scan`) uses the
    tensor `value`, but may use only the function's arguments.
    """
    raise ProgramError(f"a combining function is over its arguments; %{value.name} is none of them", author_location())
