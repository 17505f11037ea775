"""Plans for programs that are no single contraction: task widths and loop tiles.

    axis M = (M 1000): task 8
    axis N = (N 512): whole
    axis K = (K 900): loop 256
    grid M

A task is one tile of the grid; its width is its extent along one dimension.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir.core import Op, Program, TileType
from tilewright.ir.tile import ELEMENTWISE
from tilewright.machine import Machine
from tilewright.plan.boxes import Room
from tilewright.plan.microkernel import Microkernel, axes_in, registers_of
from tilewright.plan.model import Size, cores
from tilewright.plan.schedule import Axis, Digit, Schedule, Split

WHOLE, CHOSEN = 512, 256
"""The longest axis that a loop with a free tile size takes as one tile, and its tile size on a longer one."""
DEEPEST = 4096
"""The longest tile of a K loop; it may be longer than other loop tiles, because it holds no operands."""
ALIKE = {
    *(*ELEMENTWISE, "select", "cast", "fill", "scalar", "broadcast", "permute"),
    *("mma", "read", "write", "yield", "iterate"),
}
"""Operations that treat all coordinates of a dimension in the same way; a loop does, except along its own axis."""


def room_of(machine: Machine) -> Room:
    """Return a Room: goals for the number and the size of a kernel's tasks (tiles of the grid) on a machine.

    For kernels without MMAs it has a least number of tasks and a range of elements per task. For kernels with MMAs it
    has a least number of tasks and the most elements of a value of a task. All follow from the machine's number of
    cores and the sizes of its L1 and L2 caches.
    """
    limits = machine.limits
    least, most = limits.l1_bytes // 24, limits.l2_bytes // 128
    values = limits.l2_bytes // 16
    return Room(max(16, 16 * cores(machine)), (least, max(least, most)), 2 * cores(machine), values)


def blocks_of(
    products: Mapping[Op, Microkernel | None], dims: tuple[Expr, ...], width: Size, machine: Machine
) -> dict[Expr, int]:
    """Return a task's loops that keep the accumulators of its MMAs in registers: {dimension: loop tile in elements}.

    A task is one tile of the grid. The loops are, outermost first: N by the columns of the accumulator tile, M by its
    rows, and each batch dimension with several elements by 1. The result is {} in these cases: an MMA has no atom; M or
    N is not in `dims`; the MMAs differ in M, N or accumulator tile; or registers do not hold the tiles of all of them
    at once.

    `products` maps each MMA to its microkernel (atom, accumulator tile), `dims` are the dimensions that the grid
    splits. `width(d)` evaluates a task's extent along a dimension d.
    """
    axes = [axes_in(op, width) for op in products]
    kernels = [microkernel for microkernel in products.values() if microkernel is not None]
    sides = {None if isinstance(x, str) else (x.m, x.n) for x in axes}
    if len(kernels) < len(products) or len(sides) != 1 or len({(x.rows, x.columns) for x in kernels}) != 1:
        return {}
    first, microkernel = axes[0], kernels[0]
    if isinstance(first, str) or first.m not in dims or first.n not in dims:
        return {}
    needed = [registers_of(x, machine) for x in kernels]
    if len(needed) > 1 and sum(count for count, _ in needed) > needed[0][1]:
        return {}
    around = (d for x in axes if not isinstance(x, str) for d in x.around)
    return {
        first.n: microkernel.columns,
        first.m: microkernel.rows,
        **{d: 1 for d in around if d in dims and width(d) > 1},
    }


def only_adds(loop: Op) -> bool:
    """True if a loop is a plain K loop: its body has only reads, MMAs and the yield (end of an iteration)."""
    (body,) = loop.blocks
    return all(inner.name in ("read", "mma", "yield") for inner in body.ops)


def tiling_attrs(program: Program, axis: Expr) -> dict[str, Any]:
    """Return the attributes {name: value} of the program's tiling constraints on the dimension `axis`.

    Attributes are, for example, "tile", "start" and "iters" (number of iterations). The attributes of several
    constraints are merged; if two have the same attribute, the first one's value is taken. {} if there is no
    constraint.
    """
    tilings = [r.attrs for r in program.records if r.name == "tiling" and r.attrs["dim"] is axis]
    return {name: value for attrs in reversed(tilings) for name, value in attrs.items()}


def dims_of(program: Program) -> list[Expr]:
    """Return the dimensions of all tile values of a program, in the order in which they first occur.

    Only dimensions that are plain symbols count: expressions of sizes, such as 2*M, are left out.
    """
    dims: dict[Expr, None] = {}
    for op in program.walk():
        for value in (*op.operands, *op.results):
            if isinstance(value.type, TileType):
                dims |= dict.fromkeys(d for d in value.type.dims if isinstance(d, Symbol))
    return list(dims)


def words_for(dims: Iterable[str]) -> dict[str, str]:
    """Return {dimension: the identifier that names it in a plan}, for each text in `dims`.

    A text that is an identifier names itself. An expression such as `2*M` gets an identifier made from its text, with a
    number at the end if that identifier is taken.

    >>> words_for(["M", "2*M", "dim_2_M", "2 + M"])
    {'M': 'M', '2*M': 'dim_2_M2', 'dim_2_M': 'dim_2_M', '2 + M': 'dim_2_M3'}
    """
    words: dict[str, str] = {}
    for text in (texts := list(dims)):
        if text.isidentifier():
            words[text] = text
    for text in texts:
        if text in words:
            continue
        base, count = "dim_" + re.sub(r"\W+", "_", text).strip("_"), 1
        word = base
        while word in words.values():
            count += 1
            word = f"{base}{count}"
        words[text] = word
    return {text: words[text] for text in texts}


def plan_over_dims(
    dims: Sequence[Expr], size: Size, splits: Mapping[Expr, tuple[Split, ...]], grid: Iterable[Expr]
) -> Schedule:
    """Return a Schedule (plan) with an axis for each dimension in `dims`, whose grid has the dimensions in `grid`.

    `splits` maps a dimension to the splits of its axis into tiles; a dimension without an entry is not split. `size(d)`
    evaluates the extent of a dimension d.
    """
    words = words_for(map(str, dims))
    axes = tuple(axis_of(words[str(d)], size(d), splits.get(d, ())) for d in dims)
    return Schedule(axes, tuple(words[str(d)] for d in grid))


def axis_of(word: str, extent: int, splits: tuple[Split, ...]) -> Axis:
    """Return an Axis (one axis statement of a plan) named `word`, with `extent` elements, split into tiles by `splits`.

    The axis has a single digit (mixed-radix part), itself. An `extent` of 0 counts as 1.
    """
    return Axis(word, (Digit(word, max(1, extent), max(1, extent)),), splits)
