"""Plans of grid programs: their constraints say what workgroups have; how a product goes over that is chosen.

axis M = (M 1024): task 128, loop 4        sums of 4 x 16 stay in registers over all of K
axis N = (N 1024): task 128, loop 16
axis K = (K 1024): whole

axis M = (M 1024): task 128                sums of a workgroup lie in memory between parts of K
axis N = (N 1024): task 128
axis K = (K 8192): loop 1024
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tilewright.algebra.expr import Const, Expr, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op, Program
from tilewright.machine import Machine
from tilewright.plan.blocking import up
from tilewright.plan.fixed import tiles_of
from tilewright.plan.general import (
    ALIKE,
    CHOSEN,
    WHOLE,
    GeneralChoice,
    axis_of,
    blocks_of,
    dims_of,
    only_adds,
    words_for,
)
from tilewright.plan.microkernel import (
    Axes,
    Microkernel,
    as_plan,
    axes_in,
    cycles,
    names_of,
    products_of,
    rows_apart,
)
from tilewright.plan.model import element_bytes, l2, reading
from tilewright.plan.schedule import Schedule, Split
from tilewright.plan.vectors import UNROLLED

NOTE = "a grid program: workgroups run in order, as its constraints say, unless they touch nothing of each other's"


@dataclass
class Grid:
    """A grid program: what its constraints give a workgroup, and how far loops go at a time."""

    program: Program
    sizes: Mapping[Symbol, int]
    machine: Machine
    free: Collection[Op]
    opened: Collection[Expr]

    def __post_init__(self) -> None:
        self.tasks, self.loops = tiles_of(self.program, self.sizes)
        self._bound = Substitution(dict(self.sizes))
        extents = {op: self._bound(op.attrs["axis"]) for op in self.free if op.attrs["axis"] not in self.opened}
        known = {op: max(1, n.value) for op, n in extents.items() if isinstance(n, Const)}
        self.tiles = {op: n if n <= WHOLE else CHOSEN for op, n in known.items()}
        """How far each loop goes at a time that gives the same for all tiles."""
        self.words = words_for([*self.tasks, *self.loops])

    def size(self, d: Expr) -> int:
        """How far a dimension goes."""
        found = self._bound(d)
        return max(1, found.value if isinstance(found, Const) else 1)

    def width(self, d: Expr) -> int:
        """How much of a dimension there is at a time."""
        looped = next((n for op, n in self.tiles.items() if op.attrs["axis"] is d), None)
        return min(self.tasks.get(str(d)) or looped or self.loops.get(str(d)) or self.size(d), self.size(d))

    @property
    def dims(self) -> tuple[Expr, ...]:
        """The dimensions that workgroups cut."""
        return tuple(d for d in dims_of(self.program) if str(d) in self.tasks)

    def products(self, axis: Expr | None = None, deep: int = 0) -> dict[Op, Microkernel | None]:
        """The microkernels of the products, where so much of an axis is gone over at a time."""
        return products_of(self.program, self.machine, lambda d: deep if d is axis else self.width(d), self.size)

    def alone(self) -> Op | None:
        """The one product of the program, where its sums may stay in registers over all of K."""
        products = list(names_of(self.program).values())
        alike = len(products) == 1 and all(op.name in ALIKE for op in self.program.walk())
        return products[0] if alike else None


def plan_of_grid(
    program: Program,
    sizes: Mapping[Symbol, int],
    machine: Machine,
    free: Collection[Op] = (),
    opened: Collection[Expr] = (),
) -> GeneralChoice:
    """The plan of a grid program: its constraints, which are part of its meaning; `free` are the loops that give the
    same for all tiles. Of sizes that are `opened` these are typical."""
    grid = Grid(program, sizes, machine, free, opened)
    alone = grid.alone()
    stay, products = (False, grid.products()) if alone is None else _depth(grid, alone)
    blocks = blocks_of(products, grid.dims, grid.width) if stay else {}
    plan = _plan(grid, blocks, products)
    return GeneralChoice(machine, program.name, plan, 0.0, 0.0, (), (NOTE,))


def _plan(grid: Grid, blocks: Mapping[Expr, int], products: Mapping[Op, Microkernel | None]) -> Schedule:
    """The plan as it is printed."""
    inner = {str(d): n for d, n in blocks.items()}
    chosen = {str(op.attrs["axis"]): n for op, n in grid.tiles.items()}
    axes = []
    for role, tiles in (("task", grid.tasks), ("loop", grid.loops)):
        for name, tile in tiles.items():
            extent = next((n for s, n in grid.sizes.items() if s.name == name), tile)
            cuts = [Split(role, tile if role == "task" else chosen.get(name, tile))]
            cuts += [Split("loop", inner[name])] if role == "task" and name in inner else []
            whole = role == "loop" and name in chosen and chosen[name] >= extent
            axes.append(axis_of(grid.words[name], extent, () if whole else tuple(cuts)))
    tasks = tuple(grid.words[name] for name in grid.tasks)
    return Schedule(tuple(axes), tasks, products=as_plan(products, grid.program))


def _depth(grid: Grid, product: Op) -> tuple[bool, dict[Op, Microkernel | None]]:
    """Whether the sums of a program's one product stay in registers over all of K, and its microkernel.

    If not, they lie in memory between parts of K, which its loop then goes over.
    """
    axes = axes_in(product, grid.width)
    loop = next((op for op in grid.tiles if only_adds(op) and product in op.blocks[0].ops), None)
    axis = None if loop is None else loop.attrs["axis"]
    k = 0 if axis is None else grid.size(axis)
    found = grid.products(axis, k)
    if loop is None or isinstance(axes, str) or axes.k is not axis or grid.machine.lanes is not None:
        return True, found
    best = _cost(grid, product, axes, found[product], k)[0], 0, found
    deep, fits = k, False
    while deep and not fits:
        found = grid.products(axis, deep)
        cost, fits = _cost(grid, product, axes, found[product], k, deep)
        best = min(best, (cost, deep, found), key=lambda each: each[0])
        deep = up(-(-deep // 2), UNROLLED) if deep > 2 * UNROLLED else 0
    _, deep, found = best
    if deep:
        grid.tiles[loop] = deep
    return not deep, found


def _cost(grid: Grid, op: Op, axes: Axes, how: Microkernel | None, k: int, part: int = 0) -> tuple[float, bool]:
    """(cycles of a workgroup's product, whether the second cache keeps what is read for a part of K); 0: sums stay in
    registers over all of it.

    Where the cache does not, rows of A come from behind it for every block of columns, as in the cost of a contraction.
    An A of another type than the atom's is converted for every such block if sums stay, and once if not.
    """
    if how is None:
        return 0.0, True
    deep = part or k
    limits, (m, n, _), given = grid.machine.limits, axes.sizes(grid.width), axes.factors(op)[0].type.dtype
    a, b, c = (element_bytes(x.dtype) for x in (how.atom.a, how.atom.b, how.atom.c))
    across, down, converted = -(-n // how.columns), -(-m // how.rows), given is not how.atom.a.dtype
    strip, panel = m * deep * a, how.columns * deep * b
    apart = 0 if converted else rows_apart(grid.program, op, axes, grid.size)
    products = cycles(grid.machine, how, (m, n, deep), apart, n < grid.size(axes.n))
    of_a = reading(limits, strip, across, panel)
    read = of_a + across * reading(limits, panel, down, how.rows * deep * a)
    fits = strip + panel <= l2(limits)
    shown = 0.0 if fits else limits.copy_shown * of_a
    copied = m * k * (a + element_bytes(given)) * (1 if part else across) if converted else 0
    if part:
        copied += 2 * m * n * c  # sums that are cleared, and copied at the end
    return -(-k // deep) * (products + max(shown, read - products)) + copied / limits.copy_rate, fits
