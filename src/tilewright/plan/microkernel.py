"""Which atom multiplies a product of tiles, and how large the block of sums is that stays in registers meanwhile.

A product inside a program is C[M, N] += A[M, K] * B[K, N], of whatever sizes the tiles have there. Its microkernel goes
over K for one block of C after another. The cost of each that fits is counted from the machine's description; the
least is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir.core import MemoryType, Op, Program, Value
from tilewright.ir.dtypes import DType
from tilewright.machine import Machine, MemoryOperand, MultiplyAtom, OpaqueOperand, RegisterOperand
from tilewright.plan import tiles, vectors
from tilewright.plan.model import Size, element_bytes
from tilewright.plan.schedule import ProductUnit
from tilewright.plan.sliding import step_along
from tilewright.plan.sums import summed_in

Dims = tuple[Expr, ...]
MOST_VECTORS = 4
"""Vectors of N that a block of sums has, at most."""
FRAGMENTS = (1, 2, 3, 4)
"""Fragments of M, and of N, that a block of sums has."""


@dataclass(frozen=True)
class Microkernel:
    """C's blocks of `rows` x `columns` in registers, by an atom; factors of another type are converted to its own."""

    atom: MultiplyAtom
    rows: int
    columns: int
    groups: int = 1
    """Groups of waves, as many as the atom takes, which have rows of a block of their own, or columns of the same rows,
    where these are more than the atom's."""
    at_once: bool = False
    """Of an atom that reads shared memory: whether all of K lies there at once, not one row's width of it at a time."""
    transposed: bool = False
    """Whether the atom's rows go along N and its columns along M: `rows` are then columns of C, and its second factor
    is the atom's A."""
    blocks: int = 1
    """Products side by side, each of an atom's columns and of as many of K: a block of sums has those of all."""
    slabs: int = 1
    """Of an atom that reads shared memory step by step: rows there, one behind the other along K, that a step has."""
    taps: tuple[int, ...] = ()
    """Of such an atom: how many places a step has along each dimension that is summed beside K; none: one of each."""

    @property
    def waves(self) -> tuple[int, int]:
        """Groups of waves along the rows of a block, and along its columns."""
        across = self.columns // self.atom.shape[1] if self.groups > 1 and self.blocks == 1 else 1
        return self.groups // across, across

    @property
    def sums(self) -> int:
        """Registers of a lane that a block of sums takes."""
        m, n, _ = self.atom.shape
        return self.atom.c.values * (self.rows // m) * (self.columns // n) // self.groups

    @property
    def held_a(self) -> bool:
        """Whether the atom has A in registers and reads B from shared memory."""
        return isinstance(self.atom.a, RegisterOperand) and isinstance(self.atom.b, MemoryOperand)

    @property
    def slab(self) -> int | None:
        """Of an atom that reads factors, or B alone, from shared memory: how many lie in a row there; None: it reads
        none.

        So many of K are a step.
        """
        return self.atom.slab

    def deep(self, k: int) -> int:
        """Of such an atom: what of K lies in shared memory at once, in whole rows where those go along K."""
        row = self.slab or 1
        unit = row if any(self.along_k[self.held_a :]) else self.atom.shape[2]
        return -(-k // unit) * unit if self.at_once else row * self.slabs

    @property
    def along_k(self) -> tuple[bool, bool]:
        """Of such an atom: whether rows of A, and of B, go along K; otherwise they go along M, or N."""
        a, b = self.atom.forms
        return a is None or a[0], b is None or b[0]

    @property
    def whole(self) -> bool:
        """Whether factors go to registers first: tiles, or fragments that lanes share; by vectors they do not."""
        return self.atom.shape[0] > 1

    @property
    def group(self) -> int:
        """Neighbours along K that lie side by side in B, for each of N."""
        m, _, k = self.atom.shape
        return k // m if isinstance(self.atom.c, OpaqueOperand) else k

    @property
    def tile(self) -> tuple[int, int]:
        """The rows and columns of C that a block has."""
        return (self.columns, self.rows) if self.transposed else (self.rows, self.columns)

    def oriented(self, axes: Axes) -> Axes:
        """A product's dimensions as the atom has them: M along its rows."""
        return axes.transposed if self.transposed else axes

    def __str__(self) -> str:
        m, n = self.tile
        return f"{self.atom.name}, tile {m}x{n}{' transposed' if self.transposed else ''}"


@dataclass(frozen=True)
class LaneKernel:
    """C's blocks in registers by vectors of so many lanes along a dimension that both factors keep: of neighbours
    along `along`, for some of `rows`. The machine's arithmetic on vectors multiplies; no atom is needed."""

    lanes: int
    rows: Expr
    along: Expr


@dataclass(frozen=True)
class Axes:
    """The dimensions of a product: one that blocks cut for each of M, N and K, and what is gone over beside them.

    `around` are dimensions of C beside M and N: those of a batch, and further ones of either factor; `deep` are those
    that are summed beside K. `swapped` says that A is the product's second factor.
    """

    m: Expr
    n: Expr
    k: Expr
    around: Dims
    deep: Dims
    swapped: bool

    def sizes(self, width: Size) -> tuple[int, int, int]:
        """How far M, N and K go."""
        return width(self.m), width(self.n), width(self.k)

    def factors(self, op: Op) -> tuple[Value, Value]:
        """The factors of a product with these dimensions, A first."""
        a, b, _ = op.operands
        return (b, a) if self.swapped else (a, b)

    @property
    def transposed(self) -> Axes:
        """The same product with M and N, and with them its factors, exchanged."""
        return replace(self, m=self.n, n=self.m, swapped=not self.swapped)


def axes_of(a: Dims, b: Dims, c: Dims, width: Size) -> Axes | str:
    """The parts that dimensions have in a product of these widths; or why it has no blocks of sums.

    N is the last of C, along which vectors and tiles lie; the factor that has it is B.
    """
    if not c:
        return "its sum is a single number"
    if c[-1] in a and c[-1] in b:
        return f"both factors keep {c[-1]}, the last dimension of its sum, along which vectors lie"
    swapped = c[-1] in a
    if swapped:
        a, b = b, a
    summed = tuple(d for d in a if d in b and d not in c)
    if not summed or c[-1] not in b:
        return "nothing is summed"
    rows = [d for d in c if d in a and d not in b]
    if not rows:
        return "one of its operands has no dimension of its own"
    m, k = _along(rows, width), _along(summed, width)
    around, deep = tuple(d for d in c[:-1] if d is not m), tuple(d for d in summed if d is not k)
    return Axes(m, c[-1], k, around, deep, swapped)


def axes_in(op: Op, width: Size) -> Axes | str:
    """The parts that dimensions have in a product of a program; or why it has no blocks of sums."""
    a, b, c = (v.type.dims for v in op.operands)
    return axes_of(a, b, c, width)


def _along(dims: Sequence[Expr], width: Size) -> Expr:
    """The dimension that blocks cut: the last one, whose neighbours lie side by side, unless it is but one wide."""
    return ([d for d in dims if width(d) > 1] or dims)[-1]


def types_of(op: Op, swapped: bool, machine: Machine | None) -> tuple[DType, DType, DType]:
    """The element types of a product: its factors', A first, and that in which the machine sums it."""
    a, b, _ = (v.type.dtype for v in op.operands)
    wide = summed_in(op, machine)
    return (b, a, wide) if swapped else (a, b, wide)


def names_of(program: Program) -> dict[str, Op]:
    """What a plan calls the products of a program: mma, mma2 and so on, as they stand."""
    found = [op for op in program.walk() if op.name == "mma"]
    return {f"mma{n + 1 if n else ''}": op for n, op in enumerate(found)}


def products_of(
    program: Program,
    machine: Machine,
    width: Size,
    size: Size,
    opened: Collection[Expr] = (),
    lanes: int | None = None,
) -> dict[Op, Microkernel | None]:
    """The microkernel of every product of a program, whose tiles are so wide, and dimensions of such a size; None where
    it runs as loops.

    All are done by as many lanes: those of one wave, where no wider atom does for all of them. Sums over a size that is
    `opened` are one wave's: slabs of shared memory have whole steps of K, of which the last must be known.
    """
    found: dict[Op, Microkernel | None] = {}
    for op in names_of(program).values():
        axes = axes_in(op, width)
        if isinstance(axes, str):
            found[op] = None
        else:
            types, own = types_of(op, axes.swapped, machine), machine.lanes if axes.k in opened else lanes
            apart, cut = rows_apart(program, op, axes, size), width(axes.n) < size(axes.n)
            found[op] = microkernel(machine, types, axes.sizes(width), own, precision_of(op), apart, cut)
    if (
        machine.lanes is not None
        and lanes is None
        and len({how.atom.c.lanes for how in found.values() if how is not None}) > 1
    ):
        return products_of(program, machine, width, size, opened, machine.lanes)
    return found


def rows_apart(program: Program, op: Op, axes: Axes, size: Size) -> int:
    """Bytes between neighbouring rows of a product's A where it is read as it lies in memory.

    0 where it is computed, which goes to panels whose rows keep clear of each other, and where that is no one number.
    """
    value, _ = axes.factors(op)
    read = program.makers().get(value)
    if read is None or read.name != "read" or axes.m not in value.type.dims:
        return 0
    memory: MemoryType = read.operands[0].type
    over = dict(zip(value.type.dims, read.attrs["over"], strict=True)) if "at" in read.attrs else {}
    along = over.get(axes.m, axes.m)
    if not isinstance(along, Symbol) or None in memory.sizes:
        return 0
    shape = [size(d) for d in memory.sizes if d is not None]
    found = step_along(along, read.attrs.get("at", memory.dims), shape, memory.strides)
    return (found or 0) * element_bytes(memory.dtype)


def as_plan(products: Mapping[Op, Microkernel | None], program: Program) -> tuple[ProductUnit, ...]:
    """The products as a plan says them."""
    return tuple(
        ProductUnit(name, None) if how is None else ProductUnit(name, how.atom.name, *how.tile, how.transposed)
        for name, how in ((name, products[op]) for name, op in names_of(program).items())
    )


def registers_of(how: Microkernel, machine: Machine) -> tuple[int, int]:
    """(registers that a block of sums and both factors of a step take, those that there are)."""
    m, n, _ = how.atom.shape
    down, across = how.rows // m, how.columns // n
    if isinstance(how.atom.c, OpaqueOperand):
        return tiles.registers(down, across), machine.limits.tile_registers
    if how.slab is not None:
        return how.sums, machine.limits.registers - 1
    if m > 1:  # a lane has so many values of each
        each = [
            operand.values for operand in (how.atom.a, how.atom.b, how.atom.c) if isinstance(operand, RegisterOperand)
        ]
        return down * each[0] + across * each[1] + down * across * each[2], machine.limits.registers
    return vectors.registers(how.rows, across, how.atom), machine.limits.registers


def atoms_for(machine: Machine, a: DType, b: DType, c: DType, precision: str | None = None) -> list[MultiplyAtom]:
    """The atoms that take a product's types, as they are or converted without loss to the type of its sum.

    None rounds factors first, unless the product asks for that `precision`.
    """
    fitting = [x for x in _taken(machine) if x.rounds in (None, precision)]
    same = [x for x in fitting if (x.a.dtype, x.b.dtype, x.c.dtype) == (a, b, c)]
    if same or not (c.holds(a) and c.holds(b)):
        return same
    return [x for x in fitting if x.a.dtype is x.b.dtype is x.c.dtype is c]


def precision_of(op: Op) -> str | None:
    """The precision that a product asks for, where it is less than its type's."""
    found: str | None = op.attrs.get("precision")
    return found


def _taken(machine: Machine) -> Iterator[MultiplyAtom]:
    """Atoms whose operands are all in registers (a row of A and vectors of B, tiles, fragments), or whose factors are
    read from shared memory, K fastest."""
    for x in machine.multiply.values():
        in_registers = all(isinstance(operand, RegisterOperand) for operand in (x.a, x.b, x.c))
        how = Microkernel(x, *x.shape[:2])
        if in_registers or (how.slab is not None and not how.held_a and all(how.along_k)):
            yield x


@lru_cache
def shared_atoms(
    machine: Machine,
    types: tuple[DType, DType, DType],
    along_k: tuple[bool, bool],
    precision: str | None,
    held_a: bool = False,
) -> tuple[MultiplyAtom, ...]:
    """The atoms of these types that read both factors from shared memory, in rows along K or along M and N; with
    `held_a`, A from registers instead."""
    of_types = (x for x in machine.multiply.values() if (x.a.dtype, x.b.dtype, x.c.dtype) == types)
    found = [Microkernel(x, *x.shape[:2]) for x in of_types if x.slab is not None and x.rounds in (None, precision)]
    return tuple(how.atom for how in found if how.held_a == held_a and how.along_k[held_a:] == along_k[held_a:])


def can_multiply_blocks(atom: MultiplyAtom, blocks: int, n: int, k: int) -> bool:
    """True if an atom multiplies each block of an operand B of N x K by itself, where it has `blocks` on its diagonal.

    Every block is as wide as the atom, and its K is whole steps of the atom, a part of a row of shared memory or whole
    rows.
    """
    if blocks == 1:
        return True
    slab, width, depth = atom.slab or 1, n // blocks, k // blocks
    alone = width == atom.shape[1] and depth % atom.shape[2] == 0 and (slab % depth == 0 or depth % slab == 0)
    return alone and (k <= slab or k % slab == 0)


def microkernel(
    machine: Machine,
    types: tuple[DType, DType, DType],
    sizes: tuple[int, int, int],
    lanes: int | None = None,
    precision: str | None = None,
    apart: int = 0,
    cut: bool = False,
) -> Microkernel | None:
    """The microkernel that takes least time for a product of M x N x K, by so many lanes, where rows of A lie so many
    bytes apart and N may be `cut` from a longer one; None where no atom takes its types.
    """
    found = {
        each: cycles(machine, each, sizes, apart if atom.a.dtype is types[0] else 0, cut)  # panels keep rows clear
        for atom in atoms_for(machine, *types, precision)
        for each in _blocks(machine, atom)
        if machine.lanes is None or lanes in (None, atom.c.lanes)
    }
    m, n, _ = sizes

    def good(each: Microkernel) -> tuple[float, int, int]:
        """Of blocks that cost the same the largest, but none larger than there is."""
        return round(found[each], 3), -min(each.rows, m) * min(each.columns, n), each.rows * each.columns

    return min(found, key=good) if found else None


def waves_of(machine: Machine, products: Iterable[Microkernel | None]) -> int:
    """The waves of a workgroup whose products these are: as many as the widest atom takes."""
    lanes = [how.atom.c.lanes * how.groups for how in products if how is not None]
    return max(1, *lanes) // machine.lanes if machine.lanes is not None and lanes else 1


def _blocks(machine: Machine, atom: MultiplyAtom) -> Iterator[Microkernel]:
    """The blocks that registers hold, for every width the one with most rows, and with fewer."""
    m, n, _ = atom.shape
    if isinstance(atom.c, OpaqueOperand):
        most = machine.limits.tile_registers
        for a in range(1, most):
            for b in range(1, most):
                if tiles.registers(a, b) <= most:
                    yield Microkernel(atom, a * m, b * n)
        return
    if atom.slab is not None:
        yield Microkernel(atom, m, n)
        return
    if m > 1:
        for a in FRAGMENTS:
            for b in FRAGMENTS:
                how = Microkernel(atom, a * m, b * n)
                if registers_of(how, machine)[0] <= machine.limits.registers:
                    yield how
        return
    for wide in range(1, MOST_VECTORS + 1):
        for rows in range(1, machine.limits.registers):
            if rows == 1 or vectors.fits(rows, wide, atom, machine):
                yield Microkernel(atom, rows, wide * n)


def cycles(machine: Machine, how: Microkernel, sizes: tuple[int, int, int], apart: int = 0, cut: bool = False) -> float:
    """Cycles of a product: its blocks, those at the edges too, and B packed where the atom asks for that.

    Parts of an N that is `cut` are packed together where they begin with blocks, each for every block of rows if not.
    """
    m, n, k = sizes
    total = 0.0
    for rows, down in _pieces(m, how.rows, how.atom.shape[0]).items():
        for columns, across in _pieces(n, how.columns, how.atom.shape[1]).items():
            total += down * across * _block_cycles(machine, how, rows, columns, k, apart)
    often = -(-m // how.rows) if cut and n % how.columns else int(how.group > 1)
    packed = often * n * k * element_bytes(how.atom.b.dtype)
    return total + 2 * packed / machine.limits.copy_rate


def _pieces(size: int, block: int, unit: int) -> Mapping[int, int]:
    """Blocks by their size, and how many there are: whole ones, and one that is as small as the atom allows."""
    full, tail = divmod(size, block)
    found = {block: full} if full else {}
    if tail:
        last = ceil(tail / unit) * unit
        found[last] = found.get(last, 0) + 1
    return found


def _block_cycles(machine: Machine, how: Microkernel, rows: int, columns: int, k: int, apart: int) -> float:
    """Cycles of one block: products or the loads that feed them, and sums loaded and stored."""
    m, n, depth = how.atom.shape
    down, across, steps = rows // m, columns // n, ceil(k / depth)
    limits = machine.limits
    if how.whole:
        fed = max(down * across * how.atom.cycles, (down + across) * how.atom.load_cycles)
        return steps * fed + 2 * down * across * m * limits.load_cycles
    fed = vectors.step_cycles(machine, how.atom, rows, across, apart, k)
    return steps * fed + 2 * rows * across * limits.load_cycles
