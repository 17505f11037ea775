"""Copies whose source lies side by side along another axis than their target: small matrices turned in registers.

A copy to (k, n) from where k lies side by side would gather each vector of n one element at a time. Instead a few
vectors along k are loaded, one for each n, and `transpose` makes vectors along n of them. Elements that lie side by
side on both ends (the neighbours along K that a tile wants together) stay together, as units.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.dtypes import DType
from tilewright.passes.loop_lowering import LoopLowering
from tilewright.passes.places import Size, Where, linear_step

MOST = 16
"""Registers that are turned at once."""


@dataclass(frozen=True)
class VectorTurn:
    """The axes of a copy that are turned: `unit` lies side by side on both ends, `far` in the target, `near` in the
    source; `rows` of the far axis by `columns` of the near one at a time."""

    unit: int | None
    far: int
    near: int
    rows: int
    columns: int
    size: int
    """Elements of a unit."""


def turn_of(
    shape: tuple[Size, ...], axes: tuple[Symbol, ...], target: Where, source: Where, lanes: int
) -> VectorTurn | None:
    """Return the VectorTurn (transpose in registers) of a copy; None if it needs none, or cannot be transposed so."""
    if target.conditions or source.conditions or not all(isinstance(n, int) for n in shape):
        return None
    goal = [linear_step(target.offset, s) if n > 1 else 0 for s, n in zip(axes, shape, strict=True)]
    start = [linear_step(source.offset, s) if n > 1 else 0 for s, n in zip(axes, shape, strict=True)]
    units = [n for n, steps in enumerate(zip(goal, start, strict=True)) if steps == (1, 1)]
    unit = units[0] if units else None
    size = 1 if unit is None else int(shape[unit])
    far, near = ([n for n, step in enumerate(steps) if step == size and n != unit] for steps in (goal, start))
    if len(far) != 1 or len(near) != 1 or far == near or start[far[0]] is None or goal[near[0]] is None:
        return None
    deep, wide = int(shape[far[0]]), int(shape[near[0]])
    columns = _power(lanes // size, wide)
    if goal[near[0]] == deep * size and deep & (deep - 1) == 0 and deep <= MOST:
        rows = deep  # what is turned lies side by side, whatever its shape
    else:
        rows = columns = _power(min(columns, MOST), deep)
    if min(rows, columns) < 2:
        return None
    return VectorTurn(unit, far[0], near[0], rows, columns, size)


def _power(most: int, divided: int) -> int:
    """Return the largest power of two up to `most` that divides a number.

    >>> _power(16, 80), _power(64, 24), _power(16, 19)
    (16, 8, 1)
    """
    return min(1 << max(0, most.bit_length() - 1), divided & -divided)


def write(
    low: LoopLowering,
    turn: VectorTurn,
    dtype: DType,
    shape: tuple[Size, ...],
    axes: tuple[Symbol, ...],
    ends: tuple[Where, Where],
) -> None:
    """Emit the loops of a transposing copy from the second of `ends` to the first."""
    target, source = ends
    wide = turn.columns * turn.size
    around = [n for n in range(len(shape)) if n not in (turn.unit, turn.far, turn.near) and shape[n] != 1]
    steps = {**dict.fromkeys(around, 1), turn.far: turn.rows, turn.near: turn.columns}

    def place(where: Where, far: Expr, near: Expr, known: dict[Symbol, Expr], lane: Symbol) -> tuple[Expr, ...]:
        at = {**dict.fromkeys(axes, as_expr(0)), **known, axes[turn.far]: far, axes[turn.near]: near}
        return (Substitution(at)(where.offset) + lane,)

    def nest(rest: list[int], known: dict[Symbol, Expr]) -> None:
        if rest:
            n = rest[0]
            with low.loop(f"i{n}", 0, shape[n] // steps[n]) as i:
                nest(rest[1:], {**known, axes[n]: i * steps[n]})
            return
        far, near = known[axes[turn.far]], known[axes[turn.near]]
        registers = []
        for row in range(turn.rows):
            lane = low.axis("l", wide)
            registers.append(low.register(dtype, wide))
            at = place(source, far + row, near, known, lane)
            low.emit("load", (registers[row], source.buffer), over=(lane,), at=at)
        low.emit("transpose", tuple(registers), unit=as_expr(turn.size))
        for row, register in enumerate(registers):
            lane = low.axis("l", wide)
            column, first = divmod(row * turn.columns, turn.rows)
            at = place(target, far + first, near + column, known, lane)
            low.emit("store", (register, target.buffer), over=(lane,), at=at)

    nest([*around, turn.far, turn.near], {})
