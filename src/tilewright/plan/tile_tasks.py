"""Tasks of several MMAs in tile registers of a CPU, whose results are stored while the next ones are computed.

    axis M = (M 1024): task 512, loop 16
    axis N = (N 128): task 128, loop 32
    axis K = (K 256): unit 32
    grid M, N
    loops N, M, K
    x panel at task
    w packed at bind
    u packed at bind
    mma by ATOM, tile 16x32
    mma2 by ATOM, tile 16x32
    overlap delayed store

All MMAs have the same M and N. A task computes one accumulator tile of each MMA, over all of its K, and then the
elementwise operations on these tiles. Single MMAs have another form of plan, over digits (`plan/blocking`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.algebra.expr import Expr
from tilewright.ir.core import MemoryType, Op, Program, Value
from tilewright.machine import Machine, MultiplyAtom, OpaqueOperand
from tilewright.plan.general import only_adds
from tilewright.plan.microkernel import Axes, atoms_for, axes_in, precision_of, types_of
from tilewright.plan.model import Size
from tilewright.plan.schedule import DELAYED, PACKED, Axis, Schedule, Split, ValuePlacement
from tilewright.plan.tile_registers import WRITTEN

PANEL = "panel"
"""The form of rows of A that a task copies to a buffer, in steps of the atom's K."""


@dataclass(frozen=True)
class TileTask:
    """The MMAs of a task in tile registers: for each its M, N and K, in program order, and the atom of all."""

    products: Mapping[Op, Axes]
    arguments: Mapping[Op, tuple[str, str]]
    """{MMA: (name of the argument that is A, name of the argument that is B)}."""
    atom: MultiplyAtom
    in_place: bool
    """True if tile registers can load all operands A as they are: rows contiguous along K, in whole steps."""

    @property
    def axes(self) -> Axes:
        """The Axes of the first MMA; all have its M and N."""
        return next(iter(self.products.values()))


def tile_task(
    program: Program, products: Sequence[Op], dims: Collection[Expr], size: Size, machine: Machine
) -> TileTask | str:
    """Return a TileTask if tasks in tile registers can compute the MMAs `products` of `program`; else text: why not.

    `dims` are the dimensions that tasks can split; `size(d)` evaluates the extent of a dimension d.
    """
    makers, axes_of, atoms = program.makers(), dict[Op, Axes](), set[MultiplyAtom]()
    arguments, in_place = dict[Op, tuple[str, str]](), True
    if len(products) < 2:
        return "it has no two products"
    if machine.lanes is not None:
        return "the machine has no tile registers"
    written = {op.operands[1] for op in program.walk() if op.name == "write"}
    for op in products:
        axes = axes_in(op, size)
        if isinstance(axes, str):
            return axes
        if any(size(d) > 1 for d in axes.deep) or op.attrs.get("blocks", 1) != 1:
            return "a product sums over two dimensions, or multiplies diagonal blocks"
        if not {axes.m, axes.n, *axes.around} <= set(dims):
            return "tasks cannot split M, N and the batch of a product"
        atom = _tile_atom(op, axes, machine)
        if atom is None:
            return "a product has no atom in tile registers"
        reads = [makers.get(v) for v in axes.operands(op)]
        if any(read is None or not _is_plain_read(read) or read.operands[0] in written for read in reads):
            return "an operand of a product is no argument that is only read, as it is"
        a, b = (read.operands[0] for read in reads if read is not None)
        arguments[op] = str(a.name), str(b.name)
        if size(axes.k) > WRITTEN * atom.shape[2]:
            return f"K has more than {WRITTEN} steps, which are all unrolled"
        in_place = in_place and a.type.dims[-1] is axes.k and size(axes.k) % atom.shape[2] == 0
        axes_of[op] = axes
        atoms.add(atom)
    if len({(x.m, x.n, x.around) for x in axes_of.values()}) > 1 or len(atoms) > 1:
        return "its products differ in M, N, batch or types"
    lefts, rights = ({names[side] for names in arguments.values()} for side in (0, 1))
    if lefts & rights:
        return "an argument is A of a product and B of another"
    if not _start_from_zero(program, products, makers):
        return "a product is in a loop that does more than to add it, or adds to more than zero"
    return TileTask(axes_of, arguments, atoms.pop(), in_place)


def _tile_atom(op: Op, axes: Axes, machine: Machine) -> MultiplyAtom | None:
    """Return the machine's atom in tile registers that takes the operand types of the mma `op`; None if it has none."""
    atoms = atoms_for(machine, *types_of(op, axes.swapped, machine), precision_of(op))
    return next((atom for atom in atoms if isinstance(atom.c, OpaqueOperand)), None)


def _is_plain_read(op: Op) -> bool:
    """True if `op` reads a tensor in memory, and its coordinates are the tensor's own dimensions. A read at computed
    coordinates is not plain.
    """
    return op.name == "read" and "at" not in op.attrs and isinstance(op.operands[0].type, MemoryType)


def _start_from_zero(program: Program, products: Collection[Op], makers: Mapping[Value, Op]) -> bool:
    """True if all accumulators of `products` start from zero, outside loops or in loops that only add MMAs."""

    def is_zero(value: Value) -> bool:
        """True if `value` is a tile of zeros."""
        maker = makers.get(value)
        return maker is not None and maker.name == "fill" and maker.attrs["value"] == 0

    inside = set[Op]()
    for loop in (op for op in program.body.ops if op.name == "iterate"):
        within = {op for op in loop.blocks[0].ops if op in products}
        if within and not (only_adds(loop) and all(map(is_zero, loop.operands))):
            return False
        inside |= within
    return all(op in inside or (op in program.body.ops and is_zero(op.operands[2])) for op in products)


def tiles_that_fit(task: TileTask, machine: Machine) -> Iterator[tuple[int, int]]:
    """Yield (rows, columns), in elements, of the largest accumulator tiles that fit: the tile registers hold one tile
    for each MMA, and the operands of one MMA.

    A tile is yielded if neither one more register row nor one more register column fits.
    """
    m, n, _ = task.atom.shape
    sides = range(1, machine.limits.tile_registers)
    fitting = {
        (a, b) for a in sides for b in sides if registers(len(task.products), a, b) <= machine.limits.tile_registers
    }
    for a, b in sorted(fitting):
        if not {(a + 1, b), (a, b + 1)} & fitting:
            yield a * m, b * n


def registers(products: int, rows: int, columns: int) -> int:
    """Return the number of tile registers for accumulator tiles of `rows` x `columns` registers, one for each of
    `products` MMAs, and for the operands of one MMA.

    >>> registers(2, 1, 2)
    7
    """
    return products * rows * columns + rows + columns


def plan_of_tile_task(
    plan: Schedule, task: TileTask, tile: tuple[int, int], staged: bool, names: Mapping[Expr, str], size: Size
) -> Schedule:
    """Return `plan`, whose axes state the tasks alone, with all statements of a task in tile registers.

    `tile` is (rows, columns) of the accumulator tile. With `staged`, a task copies its rows of A. `names` has the axis
    of each dimension.
    """
    axes = task.axes
    depths = dict.fromkeys(x.k for x in task.products.values())
    splits = {axes.m: Split("loop", tile[0]), axes.n: Split("loop", tile[1])}
    splits |= dict.fromkeys(depths, Split("unit", task.atom.shape[2]))
    of_name = {names[d]: (split,) for d, split in splits.items()}
    lefts, rights = (dict.fromkeys(x[side] for x in task.arguments.values()) for side in (0, 1))
    return replace(
        plan,
        axes=tuple(replace(x, splits=(*x.splits, *of_name.get(x.name, ()))) for x in plan.axes),
        loops=tuple(names[d] for d in (axes.n, axes.m, *depths)),
        values=(
            *(ValuePlacement(name, "task" if staged else None, PANEL if staged else "") for name in lefts),
            *(ValuePlacement(name, "bind", PACKED) for name in rights),
        ),
        overlap=DELAYED,
    )


def states_tile_task(plan: Schedule) -> bool:
    """True if `plan` is one of a task of several MMAs in tile registers: it packs an operand and has no line `atom`."""
    return plan.atom is None and plan.pipeline is None and any(line.form == PACKED for line in plan.values)


def tasks_alone(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """Return `axes`, each with only those of its splits that are of the level `task`. No axis is removed."""
    return tuple(replace(x, splits=tuple(s for s in x.splits if s.level == "task")) for x in axes)
