"""Plans of grid programs: constraints give the workgroup tiles; the planner chooses how an MMA loops over them.

axis M = (M 1024): task 128, loop 4        accumulators of 4 x 16 stay in registers over all of K
axis N = (N 1024): task 128, loop 16
axis K = (K 1024): whole

axis M = (M 1024): task 128                a workgroup's accumulator lies in memory between K tiles
axis N = (N 1024): task 128
axis K = (K 8192): loop 1024
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tilewright.algebra.expr import Const, Expr, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op, Program
from tilewright.machine import Machine
from tilewright.plan.blocking import round_up
from tilewright.plan.fixed import tiles_of
from tilewright.plan.general import (
    ALIKE,
    CHOSEN,
    WHOLE,
    axis_of,
    blocks_of,
    dims_of,
    only_adds,
    words_for,
)
from tilewright.plan.microkernel import (
    Axes,
    Microkernel,
    axes_in,
    best_microkernels,
    links_products,
    mma_cycles,
    mma_statements,
    mmas_by_name,
    row_stride_of_a,
)
from tilewright.plan.model import element_bytes, l2, read_cycles
from tilewright.plan.schedule import Schedule, Split
from tilewright.plan.vectors import UNROLLED

NOTE = "a grid program: workgroups run in order, as its constraints say, unless they touch nothing of each other's"


@dataclass
class Grid:
    """A grid program: the workgroup tiles of its constraints, and the tile sizes of its loops.

    `free` are the loops whose tile size does not change the result; `opened` are sizes known only at the call.
    """

    program: Program
    sizes: Mapping[Symbol, int]
    machine: Machine
    free: Collection[Op]
    opened: Collection[Expr]

    def __post_init__(self) -> None:
        """Set `tasks` and `loops` to the tiles of the author's constraints, and `tiles` to the tile of each free loop.

        A free loop is one whose tile size does not change the result. Its tile is its whole extent, up to WHOLE (512)
        elements; beyond that CHOSEN (256). It gets no entry in `tiles` if its extent is known only at the call, or if a
        loop over the same dimension is not free: the author's tile then holds for both.
        """
        self.tasks, self.loops = tiles_of(self.program, self.sizes)
        self._bound = Substitution(dict(self.sizes))
        loops = [op for op in self.program.walk() if op.name == "iterate" and not op.attrs.get("start")]
        kept = {*self.opened, *(op.attrs["axis"] for op in loops if op not in self.free)}
        extents = {op: self._bound(op.attrs["axis"]) for op in self.free if op.attrs["axis"] not in kept}
        known = {op: max(1, n.value) for op, n in extents.items() if isinstance(n, Const)}
        self.tiles = {op: n if n <= WHOLE else CHOSEN for op, n in known.items()}
        """The tile size of each free loop of known extent, by operation."""
        self.words = words_for([*self.tasks, *self.loops])

    def size(self, d: Expr) -> int:
        """Return the extent of the dimension `d` of this program, in elements; 1 if the extent is 0 or not known."""
        extent = self._bound(d)
        return max(1, extent.value if isinstance(extent, Const) else 1)

    def width(self, d: Expr) -> int:
        """Return the tile size along the dimension `d`, in elements: how much of `d` a workgroup computes at a time.

        It is the first of these that exists: the workgroup tile; the tile that the planner chose for a loop over `d`;
        the author's loop tile; the whole extent. It is never more than the whole extent.
        """
        loop_tile = next((n for op, n in self.tiles.items() if op.attrs["axis"] is d), None)
        return min(self.tasks.get(str(d)) or loop_tile or self.loops.get(str(d)) or self.size(d), self.size(d))

    @property
    def dims(self) -> tuple[Expr, ...]:
        """The dimensions of this program that have a workgroup tile, in the order in which they occur."""
        return tuple(d for d in dims_of(self.program) if str(d) in self.tasks)

    def products(self, axis: Expr | None = None, tile: int = 0) -> dict[Op, Microkernel | None]:
        """Return the best microkernel of each MMA: {mma: Microkernel (atom, accumulator tile); None: scalar loops}.

        The MMAs have the extents of one workgroup's tile (`width`). If `axis` is given, that dimension counts as `tile`
        elements instead.
        """
        return best_microkernels(self.program, self.machine, lambda d: tile if d is axis else self.width(d), self.size)

    def sums(self) -> list[Op]:
        """Return the program's MMAs, in order, if their accumulators can stay in registers over all of K; else [].

        They cannot in three cases: an operation treats coordinates of a dimension differently, as a reduction, a scan
        or a gather does; an operand of an MMA is computed from the result of another MMA; or MMAs are in different
        loops.
        """
        products = list(mmas_by_name(self.program).values())
        is_alike = all(op.name in ALIKE for op in self.program.walk())
        loops = {self.loop_around(op) for op in products}
        return products if is_alike and len(loops) < 2 and not links_products(self.program, products) else []

    def loop_around(self, product: Op) -> Op | None:
        """Return the loop that has the MMA `product` and only adds up MMAs; None if there is none.

        The loop's body has only reads and MMAs. Its tile size must not change the result, and its extent must be known.
        """
        return next((op for op in self.tiles if only_adds(op) and product in op.blocks[0].ops), None)


def plan_of_grid(
    program: Program,
    sizes: Mapping[Symbol, int],
    machine: Machine,
    free: Collection[Op] = (),
    opened: Collection[Expr] = (),
) -> Schedule:
    """Return the plan chosen for a grid program: a program whose author gives the workgroup tiles.

    These tiles are part of the program's meaning. The planner chooses only atoms and loops within them, and predicts no
    time. `sizes` maps size symbols to numbers, typical ones for `opened` sizes (known only at the call).
    `free` are the loops whose tile size does not change the result.
    """
    grid = Grid(program, sizes, machine, free, opened)
    sums = grid.sums()
    in_registers, products = _choose_k_tile(grid, sums) if sums else (False, grid.products())
    blocks = blocks_of(products, grid.dims, grid.width, machine) if in_registers else {}
    return _grid_plan(grid, blocks, products)


def _grid_plan(grid: Grid, blocks: Mapping[Expr, int], products: Mapping[Op, Microkernel | None]) -> Schedule:
    """Return the Schedule (plan) that states the choices for a grid program: workgroup tiles, loop tiles, MMA atoms.

    The plan has an axis for each dimension with a workgroup tile and for each loop. `grid` has the program and its
    tiles. `blocks` maps dimensions to the tiles of the loops that keep the accumulator in registers; {} if it does not
    stay there. `products` maps each MMA to its microkernel (atom, accumulator tile).
    """
    register_tile = {str(d): n for d, n in blocks.items()}
    loop_tiles = {str(op.attrs["axis"]): n for op, n in grid.tiles.items()}
    axes = []
    for role, tiles in (("task", grid.tasks), ("loop", grid.loops)):
        for name, tile in tiles.items():
            extent = next((n for s, n in grid.sizes.items() if s.name == name), tile)
            splits = [Split(role, tile if role == "task" else loop_tiles.get(name, tile))]
            splits += [Split("loop", register_tile[name])] if role == "task" and name in register_tile else []
            whole = role == "loop" and name in loop_tiles and loop_tiles[name] >= extent
            axes.append(axis_of(grid.words[name], extent, () if whole else tuple(splits)))
    tasks = tuple(grid.words[name] for name in grid.tasks)
    return Schedule(tuple(axes), tasks, products=mma_statements(products, grid.program))


def _choose_k_tile(grid: Grid, sums: Sequence[Op]) -> tuple[bool, dict[Op, Microkernel | None]]:
    """Return (True if the accumulators of the MMAs `sums` stay in registers over all of K, {mma: microkernel}).

    A microkernel is an atom and its accumulator tile. If accumulators go to memory after each K tile, the first item is
    False, and `grid.tiles` is set to the K tile size.

    Accumulators always stay in registers on a GPU. On a CPU they also do, unless all MMAs are in one loop over K whose
    tile size does not change the result. For MMAs in such a loop on a CPU, the predicted cycles decide, also on the K
    tile size.
    """
    loop = grid.loop_around(sums[0])
    axis = None if loop is None else loop.attrs["axis"]
    k = 0 if axis is None else grid.size(axis)
    microkernels = grid.products(axis, k)
    every_axes = {op: axes for op in sums if not isinstance(axes := axes_in(op, grid.width), str) and axes.k is axis}
    if loop is None or len(every_axes) < len(sums) or grid.machine.lanes is not None:
        return True, microkernels

    def cost(k_tile: int = 0) -> tuple[float, bool]:
        """Return (cycles of all MMAs, True if L2 holds the inputs of one K tile of every MMA).

        `k_tile` is the number of elements of a K tile, after which accumulators go to memory; 0: they stay in registers
        over all of K. The microkernels are those that `microkernels` has at the time of the call.
        """
        costs = [_gemm_cost(grid, op, axes, microkernels[op], k, k_tile) for op, axes in every_axes.items()]
        return sum(cycles for cycles, _ in costs), all(in_l2 for _, in_l2 in costs)

    cheapest = cost()[0], 0, microkernels
    k_tile, in_l2 = k, False
    while k_tile and not in_l2:
        microkernels = grid.products(axis, k_tile)
        cycles, in_l2 = cost(k_tile)
        cheapest = min(cheapest, (cycles, k_tile, microkernels), key=lambda candidate: candidate[0])
        k_tile = round_up(-(-k_tile // 2), UNROLLED) if k_tile > 2 * UNROLLED else 0
    _, k_tile, microkernels = cheapest
    if k_tile:
        grid.tiles[loop] = k_tile
    return not k_tile, microkernels


def _gemm_cost(
    grid: Grid, op: Op, axes: Axes, microkernel: Microkernel | None, k: int, k_part: int = 0
) -> tuple[float, bool]:
    """Return (predicted cycles of one core for one workgroup's MMA over all of K, True if L2 holds a K tile's inputs).

    `op` is the MMA, `axes` are its M, N and K, `k` is K's extent, `microkernel` its atom and accumulator tile; None
    gives (0, True). `k_part` is the K tile if the accumulator lies in memory between K tiles; 0 if it stays in
    registers. The cycles are the sum of three: the MMAs; the reads that MMAs do not hide; and copies. A is copied if
    its type is converted, the accumulator if there is a `k_part`.
    """
    if microkernel is None:
        return 0.0, True
    k_tile = k_part or k
    limits, (m, n, _), dtype = grid.machine.limits, axes.sizes(grid.width), axes.operands(op)[0].type.dtype
    a, b, c = (element_bytes(x.dtype) for x in (microkernel.atom.a, microkernel.atom.b, microkernel.atom.c))
    across, down, is_converted = (
        -(-n // microkernel.columns),
        -(-m // microkernel.rows),
        dtype is not microkernel.atom.a.dtype,
    )
    a_bytes, b_bytes = m * k_tile * a, microkernel.columns * k_tile * b
    stride = 0 if is_converted else row_stride_of_a(grid.program, op, axes, grid.size)
    multiply_cycles = mma_cycles(grid.machine, microkernel, (m, n, k_tile), stride, n < grid.size(axes.n))
    read_a = read_cycles(limits, a_bytes, across, b_bytes)
    read_all = read_a + across * read_cycles(limits, b_bytes, down, microkernel.rows * k_tile * a)
    in_l2 = a_bytes + b_bytes <= l2(limits)
    exposed = 0.0 if in_l2 else limits.copy_shown * read_a
    copied_bytes = m * k * (a + element_bytes(dtype)) * (1 if k_part else across) if is_converted else 0
    if k_part:
        copied_bytes += 2 * m * n * c  # sums that are cleared, and copied at the end
    return -(-k // k_tile) * (
        multiply_cycles + max(exposed, read_all - multiply_cycles)
    ) + copied_bytes / limits.copy_rate, in_l2
