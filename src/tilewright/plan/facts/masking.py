"""Masks: loop iterations that change nothing, because a mask covers a whole tile (causal attention).

They are found by evaluating the body with what is known of each value: the maximum with -inf changes nothing, e^-inf is
0, and an MMA with 0 adds nothing. This relies on finite values: the other operand of a multiplication by 0 is not
looked at.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, inf, isinf
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir.core import Op, Program, Value
from tilewright.ir.tile import ELEMENTWISE, REDUCTIONS
from tilewright.plan.boxes import numbers_of
from tilewright.plan.facts.loops import EXPONENTIALS
from tilewright.plan.model import Size

Known = Value | float | None
"""Knowledge of a value: it is another value, it is a number everywhere, or nothing is known."""
Trips = dict[tuple[int, int], int]
"""{(iterations that masks do not skip, those of them with a partly masked tile): number of tasks}."""
ON_COORDINATES: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "ge", "gt", "le", "lt", "and_", "mod")},
    **dict.fromkeys(("broadcast", "permute", "cast"), lambda x: x),
}
"""Operations that conditions on coordinates are made of."""
_SAMPLES = 128
"""Tiles along each dimension of a mask, in which a bound counts the unmasked elements."""
_SAME_ELEMENTS = ("cast", "broadcast", "permute")
NEUTRAL = {"max": -inf, "min": inf, "sum": 0.0}


def masks_of(loop: Op) -> tuple[Op, ...]:
    """Return the selects in a loop's body that are masks, such as a causal mask of attention.

    A select is a mask if an iteration whose whole tile is masked leaves all values that the loop carries unchanged.
    """
    return tuple(op for op in loop.blocks[0].ops if op.name == "select" and changes_nothing(loop, op))


def changes_nothing(loop: Op, masked: Op, value: float | None = None) -> bool:
    """True if an iteration of `loop` provably leaves all carried values unchanged when `masked` has a given result.

    `masked` is an operation of the loop's body. With `value`, all elements of its result are taken to be this number.
    Without, `masked` is a select, and its result is taken to equal its last operand, as in a tile that is wholly
    masked. False if there is no proof. The proof takes values about which nothing is known to be finite.
    """
    (body,) = loop.blocks
    known: dict[Value, Known] = {arg: arg for arg in body.args}
    for op in body.ops:
        operands = [known.get(v) for v in op.operands]
        if op.name == "yield":
            return operands == list(body.args)
        if op is masked:
            result = operands[2] if value is None else value
        else:
            result = _known_result(op, operands)
        if result is not None:
            known |= dict.fromkeys(op.results, result)
    return False


def masks_of_product(program: Program, product: Op) -> tuple[Op, ...]:
    """Return the selects of a program that let work of the MMA `product` be skipped where their condition is false.

    First come the selects that set an operand of the MMA to zero (a triangular operand), in program order. Then comes
    the select that replaces the MMA's result (a triangular result). It is left out if the result has another use, or if
    several selects replace it.
    """
    selects = [op for op in program.walk() if op.name == "select"]
    zeros = [op for op in selects if _makes_operand_zero(program, op, product)]
    hiding = _selects_behind(program, product)
    return (*zeros, *(hiding if hiding is not None and len(hiding) == 1 else ()))


def _makes_operand_zero(program: Program, masked: Op, product: Op) -> bool:
    """True if an operand of the MMA `product` is proved to be zero where the condition of a select is false.

    `masked` is the select, an operation of `program`. The proof follows numbers through the program: the select gives
    its last operand for all elements and, for example, a cast of 0 is 0.
    """
    known: dict[Value, Known] = {}
    for op in program.walk():
        operands = [known.get(v) for v in op.operands]
        if op is product:
            return 0.0 in operands[:2]
        result = operands[2] if op is masked else _known_result(op, operands)
        if isinstance(result, float):
            known |= dict.fromkeys(op.results, result)
    return False


def _selects_behind(program: Program, product: Op) -> set[Op] | None:
    """Return the selects that keep or replace elements of an MMA's result; None if the result has any other use.

    `product` is the MMA. The result may pass through elementwise operations, and through a loop that accumulates it,
    before it reaches a select as its second operand. A write or a reduction of it gives None. The accumulator that is
    operand C of `product` counts as its result.
    """
    ops = list(program.walk())
    loops = [op for op in ops if op.name == "iterate"]
    reached, before = {*product.results, product.operands[2]}, 0
    while before < len(reached):
        before = len(reached)
        for op in ops:
            if (op.name in ELEMENTWISE or op.name in _SAME_ELEMENTS) and not reached.isdisjoint(op.operands):
                reached |= set(op.results)
        for loop in loops:
            ends = zip(loop.results, loop.blocks[0].ops[-1].operands, strict=True)
            reached |= {result for result, end in ends if end in reached}
    selects = set[Op]()
    for op in ops:
        used = [n for n, v in enumerate(op.operands) if v in reached]
        if op.name == "select" and used == [1]:
            selects.add(op)
        elif used and op is not product and op.name not in (*ELEMENTWISE, *_SAME_ELEMENTS, "iterate", "yield"):
            return None
    return selects


def last_maskable(loop: Op) -> Op | None:
    """Return the last operation of a loop's body that masks the ragged end of the loop's axis if its result is -inf.

    If all elements of the result are -inf, the loop's carried values stay as they are. Elements past the end of a
    ragged tile then change no result. Only operations with one float result that has the axis are tried. Return None if
    none of them does this.
    """
    float_ops = [
        inner
        for inner in loop.blocks[0].ops
        if len(inner.results) == 1
        and inner.name != "iterate"
        and inner.result.type.dtype.is_float
        and loop.attrs["axis"] in inner.result.type.dims
    ]
    return next((inner for inner in reversed(float_ops) if changes_nothing(loop, inner, -inf)), None)


NEUTRAL_TERMS = {"sum": 0.0, "max": -inf, "min": inf}
"""{reduction: term that leaves its accumulator unchanged}."""


def neutral_values(loop: Op) -> Mapping[Value, float] | None:
    """Return {value of a loop's body: number to set past the end of the loop's axis}; None if there is no such number.

    Past the end are the elements of a ragged last tile. With these numbers they leave all carried values of the loop
    unchanged. If -inf for a single value suffices, the result has only this value. Otherwise it has each value that a
    sum, max or min reduces into a carried value, with 0, -inf or inf.

    None if a carried value is computed in another way (such as by an MMA), if its reduction reduces no value of the
    body, or if two reductions need different numbers for one value.
    """
    last = last_maskable(loop)
    if last is not None:
        return {last.result: -inf}
    values: dict[Value, float] = {}
    makers = {result: op for op in loop.blocks[0].ops for result in op.results}
    for end in loop.blocks[0].ops[-1].operands:
        op = makers.get(end)
        if op is None or op.name not in REDUCTIONS or op.name not in NEUTRAL_TERMS or op.operands[0] not in makers:
            return None
        if values.setdefault(op.operands[0], NEUTRAL_TERMS[op.name]) != NEUTRAL_TERMS[op.name]:
            return None
    return values


def _known_result(op: Op, operands: Sequence[Known]) -> Known:
    """Return what is known of the result of `op`: a Value that it equals, or the number of all its elements.

    None means that nothing is known. `operands` has the same knowledge of each operand of `op`. For example, exp of
    -inf is 0, and an MMA with a zero operand equals its accumulator. Operands about which nothing is known are taken to
    be finite.
    """
    first, second = (*operands, None, None)[:2]
    if op.name in ("fill", "scalar"):
        value = op.attrs["value"]
        return float(value) if isinstance(value, int | float) else None
    if op.name in ("broadcast", "permute"):
        return first
    if op.name == "cast":
        return first if first in (0.0, 1.0, inf, -inf) else None
    if op.name in NEUTRAL and op.attrs.get("acc"):
        return second if first == NEUTRAL[op.name] else None
    if op.name == "mma":
        return operands[2] if 0.0 in operands[:2] else None
    if op.name == "sub" and isinstance(second, Value):
        if first is second:
            return 0.0
        return first if isinstance(first, float) and isinf(first) else None
    if op.name == "select":  # a mask of a mask
        return second if second == operands[2] else None
    if op.name in EXPONENTIALS and first in (0.0, -inf):
        return exp(float(first))  # 1 or 0 for either base
    if op.name == "mul" and 1.0 in (first, second):
        return second if first == 1.0 else first
    return None


def count_trips(
    program: Program, masks: Sequence[Op], axis: Expr, tile: int, rows: Mapping[Expr, int], size: Size
) -> Trips:
    """Count the iterations of a loop that masks leave to each task: return {(kept, partly masked): number of tasks}.

    The loop is over `axis`, `tile` elements per iteration. A task is one tile of the grid. `kept` is the number of a
    task's iterations that have an unmasked element; `partly masked` is how many of these also have a masked one.

    `masks` are select operations of `program`. `rows` maps each dimension of the masks except `axis` to a task's
    extent. `size(d)` evaluates the extent of a dimension d. Conditions are taken to be linear, and evaluated at the
    corners of a tile; a condition that depends on data masks nothing.
    """
    dims = [*rows, axis]
    steps = [min(max(1, step), size(d)) for d, step in rows.items()] + [tile]
    first = np.meshgrid(*(np.arange(0, size(d), step) for d, step in zip(dims, steps, strict=True)), indexing="ij")
    last = [np.minimum(at + step, size(d)) - 1 for at, step, d in zip(first, steps, dims, strict=True)]
    any_unmasked, all_unmasked, makers = np.ones(first[0].shape, bool), np.ones(first[0].shape, bool), program.makers()
    for mask in masks:
        corners = []
        for pick in np.ndindex(*(2,) * len(dims)):
            at = {d: (last if end else first)[n] for n, (d, end) in enumerate(zip(dims, pick, strict=True))}
            corners.append(_value_at(mask.operands[0], makers, at, size))
        if all(corner is not None for corner in corners):
            any_unmasked &= np.logical_or.reduce(corners)
            all_unmasked &= np.logical_and.reduce(corners)
    trips, masked = (
        any_unmasked.sum(axis=-1).ravel().tolist(),
        (any_unmasked & ~all_unmasked).sum(axis=-1).ravel().tolist(),
    )
    counted: Trips = {}
    for pair in zip(trips, masked, strict=True):
        counted[pair] = counted.get(pair, 0) + 1
    return counted


@dataclass(frozen=True, eq=False)
class MaskedProduct:
    """An MMA with masks (`selects`) over the dimensions `dims`, some of which may be K (`k`).

    If a mask is false, the MMA adds zero or its result is not used, so that tasks or iterations can be skipped.
    """

    program: Program
    selects: tuple[Op, ...]
    dims: tuple[Expr, ...]
    k: frozenset[str]
    sizes: Mapping[Symbol, int]
    _counted: dict[tuple[int, ...], tuple[tuple[float, int], ...]] = field(default_factory=dict)

    def lengths(self, tiles: Mapping[str, int]) -> tuple[tuple[float, int], ...]:
        """Return ((fraction of K iterations that a task does, number of these tasks), ...), smallest fraction first.

        A task is one tile of the grid; masks let it skip the other iterations. If no mask depends on K, the fractions
        are 0 (the whole task is skipped) and 1. `tiles` maps dimensions to the elements of a task along M and N, and of
        an iteration along K (1 if missing). Only tasks along dimensions of the masks are counted.
        """
        size = numbers_of(self.sizes)
        steps = tuple(min(tiles.get(str(d), 1), size(d)) for d in self.dims)
        if steps not in self._counted:
            step_of = dict(zip(self.dims, steps, strict=True))
            axis = next((d for d in self.dims if str(d) in self.k), self.dims[-1])
            rows = {d: step for d, step in step_of.items() if d is not axis}
            trips = count_trips(self.program, self.selects, axis, step_of[axis], rows, size)
            all_iterations, counted = -(-size(axis) // step_of[axis]), dict[float, int]()
            for (kept, _), tasks in trips.items():
                if str(axis) in self.k:
                    counted[kept / all_iterations] = counted.get(kept / all_iterations, 0) + tasks
                else:  # a task does all iterations, or none
                    counted[1.0] = counted.get(1.0, 0) + kept * tasks
                    counted[0.0] = counted.get(0.0, 0) + (all_iterations - kept) * tasks
            self._counted[steps] = tuple(sorted((share, tasks) for share, tasks in counted.items() if tasks))
        return self._counted[steps]

    @cached_property
    def least_share(self) -> float:
        """A lower bound of the fraction (0 to 1) of iterations that masks do not skip, for any tile sizes.

        The fraction is counted with about 128 tiles along each dimension; the bound is 1/128 less.
        """
        counts = {str(d): max(1, numbers_of(self.sizes)(d) // _SAMPLES) for d in self.dims}
        return self.share(counts) - 1 / _SAMPLES

    def share(self, tiles: Mapping[str, int]) -> float:
        """Return the fraction (0 to 1) of the K iterations of all tasks (tiles of the grid) that masks do not skip.

        `tiles` maps dimensions to the elements of a task along M and N, and of an iteration along K.
        """
        lengths = self.lengths(tiles)
        return sum(share * tasks for share, tasks in lengths) / sum(tasks for _, tasks in lengths)


def _value_at(value: Value, makers: Mapping[Value, Op], at: Mapping[Expr, Any], size: Size) -> Any:
    """Return the array or number that `value`, such as a mask's condition, has at the coordinates `at`.

    `at` is {dimension: array}. Return None if `value` depends on data, on a dimension that `at` lacks, or on an
    operation that is not in ON_COORDINATES (index arithmetic and comparisons). `makers` maps a value to the operation
    that computes it. `size(e)` evaluates an expression of sizes.
    """
    op = makers.get(value)
    if op is None:
        return None
    if op.name == "self_index":
        return at.get(op.attrs["dim"])
    if op.name == "scalar":
        number = op.attrs["value"]
        return size(number) if isinstance(number, Expr) else number
    parts = [_value_at(v, makers, at, size) for v in op.operands]
    if op.name not in ON_COORDINATES or any(part is None for part in parts):
        return None
    return ON_COORDINATES[op.name](*parts)
