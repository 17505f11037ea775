"""Transposing copies on CPUs: the source is contiguous along another axis than the target.

A copy to (k, n) from memory that is contiguous along k would gather each vector of n one element at a time. Instead a
few vectors along k are loaded, one for each n, and `transpose` makes vectors along n of them in registers. Elements
that are contiguous on both sides (the K groups of a packed tile) stay together, as units.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.analysis.flat_memory import Size, TensorAddress, linear_step
from tilewright.ir.dtypes import DType
from tilewright.lower.loop_lowering import LoopLowering

MOST = 16
"""The most registers that are transposed at once."""


@dataclass(frozen=True)
class VectorTranspose:
    """The axes of a transposing copy: `unit` is contiguous on both sides (None: there is none), `far` in the target,
    `near` in the source; tiles are `rows` along the far axis by `columns` along the near one."""

    unit: int | None
    far: int
    near: int
    rows: int
    columns: int
    size: int
    """The number of elements of a unit."""


def transpose_of(
    shape: tuple[Size, ...], axes: tuple[Symbol, ...], target: TensorAddress, source: TensorAddress, lanes: int
) -> VectorTranspose | None:
    """Return the axes and the tile size (VectorTranspose) for a copy from a source that is contiguous along another
    axis than its target. What is contiguous may be elements, or runs: if source and target are both contiguous along
    one axis, its elements are a run.

    The copy goes from the address `source` to the address `target`, over `axes` with extents `shape`; `lanes` is the
    number of elements of a vector.

    Return None if elements or runs are contiguous along the same axis in both, if they are contiguous along no axis in
    one, if an extent is not constant, if a bounds check is needed, or if extents have no suitable power of two as a
    divisor.
    """
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
    columns = _power_of_two_divisor(lanes // size, wide)
    if goal[near[0]] == deep * size and deep & (deep - 1) == 0 and deep <= MOST:
        rows = deep  # the transposed matrix is contiguous, whatever its shape
    else:
        rows = columns = _power_of_two_divisor(min(columns, MOST), deep)
    if min(rows, columns) < 2:
        return None
    return VectorTranspose(unit, far[0], near[0], rows, columns, size)


def _power_of_two_divisor(most: int, divided: int) -> int:
    """Return the largest power of two that is at most `most` and divides `divided`.

    >>> _power_of_two_divisor(16, 80), _power_of_two_divisor(64, 24), _power_of_two_divisor(16, 19)
    (16, 8, 1)
    """
    return min(1 << max(0, most.bit_length() - 1), divided & -divided)


def emit_transpose(
    low: LoopLowering,
    transpose: VectorTranspose,
    dtype: DType,
    shape: tuple[Size, ...],
    axes: tuple[Symbol, ...],
    ends: tuple[TensorAddress, TensorAddress],
) -> None:
    """Emit the loops of a transposing copy of elements of type `dtype`, over `axes` with extents `shape`: load a few
    vectors, transpose them in registers, store them. `transpose` has the two contiguous axes and the size of a tile.
    `ends` is (address of the target, address of the source), as expressions of `axes`.
    """
    target, source = ends
    width = transpose.columns * transpose.size
    outer_axes = [
        n for n in range(len(shape)) if n not in (transpose.unit, transpose.far, transpose.near) and shape[n] != 1
    ]
    steps = {**dict.fromkeys(outer_axes, 1), transpose.far: transpose.rows, transpose.near: transpose.columns}

    def offsets(
        where: TensorAddress, far: Expr, near: Expr, known: dict[Symbol, Expr], lane: Symbol
    ) -> tuple[Expr, ...]:
        at = {**dict.fromkeys(axes, as_expr(0)), **known, axes[transpose.far]: far, axes[transpose.near]: near}
        return (Substitution(at)(where.offset) + lane,)

    def nest(rest: list[int], known: dict[Symbol, Expr]) -> None:
        if rest:
            n = rest[0]
            with low.loop(f"i{n}", 0, shape[n] // steps[n]) as i:
                nest(rest[1:], {**known, axes[n]: i * steps[n]})
            return
        far, near = known[axes[transpose.far]], known[axes[transpose.near]]
        registers = []
        for row in range(transpose.rows):
            lane = low.axis("l", width)
            registers.append(low.register(dtype, width))
            at = offsets(source, far + row, near, known, lane)
            low.emit("load", (registers[row], source.buffer), over=(lane,), at=at)
        low.emit("transpose", tuple(registers), unit=as_expr(transpose.size))
        for row, register in enumerate(registers):
            lane = low.axis("l", width)
            column, first = divmod(row * transpose.columns, transpose.rows)
            at = offsets(target, far + first, near + column, known, lane)
            low.emit("store", (register, target.buffer), over=(lane,), at=at)

    nest([*outer_axes, transpose.far, transpose.near], {})
