"""Microkernels: the atom of an MMA, and the accumulator tile that stays in registers while it loops over K.

An MMA is C[M, N] += A[M, K] * B[K, N], of the tile sizes that it has in the program. Its microkernel loops over K for
one accumulator tile after another. The cost of each legal one is computed from the machine's description; the cheapest
is chosen.
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
from tilewright.plan import tile_registers, vectors
from tilewright.plan.accumulator_type import accumulator_type
from tilewright.plan.model import Size, element_bytes
from tilewright.plan.schedule import ProductUnit
from tilewright.plan.sliding import stride_along

Dims = tuple[Expr, ...]
MOST_VECTORS = 4
"""The most vectors along N that an accumulator tile has."""
FRAGMENTS = (1, 2, 3, 4)
"""The numbers of fragments (atoms) along M, and along N, that an accumulator tile may have."""


@dataclass(frozen=True)
class Microkernel:
    """An MMA atom and its accumulator tile of `rows` x `columns` elements in registers.

    Operands of another type than the atom's are converted.
    """

    atom: MultiplyAtom
    rows: int
    columns: int
    groups: int = 1
    """The number of wave groups (the waves of one atom each) that share the accumulator tile.

    Each has its own rows or, if the tile is wider than the atom, its own columns of the same rows."""
    all_of_k_at_once: bool = False
    """True if one K step is all of K, for an atom that reads operands from shared memory."""
    transposed: bool = False
    """True if the atom's rows run along N and its columns along M: `rows` are then columns of C, and the atom's A is
    the MMA's B."""
    blocks: int = 1
    """Blocks of a block-diagonal B, each one atom wide; the accumulator tile has the columns of all."""
    slabs: int = 1
    """The number of slabs (rows of shared memory) in one K step, for an atom that reads operands there."""
    taps: tuple[int, ...] = ()
    """The extent of a K step along each reduction dimension besides K, such as filter taps; empty: 1 along each."""

    @property
    def group_grid(self) -> tuple[int, int]:
        """(wave groups along the rows of this accumulator tile, wave groups along its columns).

        A wave group is the waves (warps) that one atom spans; the groups split the tile among them. 4 groups of a tile
        two atoms wide are (2, 2). With a block-diagonal B, all groups are along the rows.
        """
        across = self.columns // self.atom.shape[1] if self.groups > 1 and self.blocks == 1 else 1
        return self.groups // across, across

    @property
    def accumulator_registers(self) -> int:
        """The number of registers per lane that this accumulator tile takes; wave groups split the tile evenly."""
        m, n, _ = self.atom.shape
        return self.atom.c.values * (self.rows // m) * (self.columns // n) // self.groups

    @property
    def a_in_registers(self) -> bool:
        """True if this microkernel's atom takes A from registers and B from shared memory."""
        return isinstance(self.atom.a, RegisterOperand) and isinstance(self.atom.b, MemoryOperand)

    @property
    def slab(self) -> int | None:
        """The number of elements in a slab: a run of contiguous elements of shared memory that this atom reads.

        None if the atom reads no shared memory.
        """
        return self.atom.slab

    def k_step_elements(self, k: int) -> int:
        """Return the number of elements along K in one K step, which are in shared memory at once; K has `k` elements.

        With `all_of_k_at_once`, it is `k` rounded up to whole slabs, or to whole atoms if no operand is contiguous
        along K. Otherwise it is the number of elements in `slabs` slabs. A slab is a row of shared memory: a run of
        contiguous elements that the atom reads.
        """
        row = self.slab or 1
        unit = row if any(self.contiguous_along_k[self.a_in_registers :]) else self.atom.shape[2]
        return -(-k // unit) * unit if self.all_of_k_at_once else row * self.slabs

    @property
    def contiguous_along_k(self) -> tuple[bool, bool]:
        """(True if A is contiguous along K in shared memory, True if B is contiguous along K there).

        An operand for which it is False is contiguous along M or N. An operand that the atom takes from registers
        counts as True.
        """
        a, b = self.atom.forms
        return a is None or a[0], b is None or b[0]

    @property
    def is_matrix_atom(self) -> bool:
        """True if the atom has several rows: it multiplies matrices, not vectors.

        A and B are then loaded as tiles or fragments. An atom with one row multiplies vectors, which are loaded one by
        one.
        """
        return self.atom.shape[0] > 1

    @property
    def k_pack(self) -> int:
        """The number of elements along K that are contiguous in packed B, for each column, such as 2 for bf16.

        The atom's layout of B decides it.
        """
        m, _, k = self.atom.shape
        return k // m if isinstance(self.atom.c, OpaqueOperand) else k

    @property
    def tile(self) -> tuple[int, int]:
        """(rows, columns) of this accumulator tile in C: the fields `rows` and `columns`, exchanged if transposed."""
        return (self.columns, self.rows) if self.transposed else (self.rows, self.columns)

    def oriented(self, axes: Axes) -> Axes:
        """Return the Axes (M, N, K) of an MMA as the atom sees them.

        These are `axes`; if `self.transposed` is set, M and N are exchanged, and so are A and B.
        """
        return axes.transposed if self.transposed else axes

    def __str__(self) -> str:
        """Return text for people: the name of the atom, and the accumulator tile in C."""
        m, n = self.tile
        return f"{self.atom.name}, tile {m}x{n}{' transposed' if self.transposed else ''}"


@dataclass(frozen=True)
class LaneKernel:
    """An MMA that SIMD vectors compute along the dimension `along`, which A, B and the result share; no atom is needed.

    A vector has `lanes` elements. `rows` is the dimension along which a block of accumulators has several vectors.
    """

    lanes: int
    rows: Expr
    along: Expr


@dataclass(frozen=True)
class Axes:
    """The dimensions of an MMA: M and N, which the accumulator tile splits, K, which the K step splits, and the others.

    `around` are further dimensions of C: the batch, and more dimensions of M or N. `deep` are reduction dimensions
    besides K, such as filter taps. `swapped` says that A is the second operand of the program's mma.
    """

    m: Expr
    n: Expr
    k: Expr
    around: Dims
    deep: Dims
    swapped: bool

    def sizes(self, width: Size) -> tuple[int, int, int]:
        """Return the extents (M, N, K) of this MMA, in elements; `width(d)` evaluates the extent of a dimension d."""
        return width(self.m), width(self.n), width(self.k)

    def operands(self, op: Op) -> tuple[Value, Value]:
        """Return (A, B) of the mma `op`: its operand with the dimension M, and its operand with the dimension N.

        These are its first two operands, in this order; exchanged if `self.swapped` is set.
        """
        a, b, _ = op.operands
        return (b, a) if self.swapped else (a, b)

    @property
    def transposed(self) -> Axes:
        """The Axes (which dimensions are M, N, K) of the transposed MMA: M and N are exchanged, and so are A and B."""
        return replace(self, m=self.n, n=self.m, swapped=not self.swapped)


def axes_of(a: Dims, b: Dims, c: Dims, width: Size) -> Axes | str:
    """Return Axes, which dimensions of an MMA are M, N, K and others; or text: why the MMA has no accumulator tile.

    `a`, `b` and `c` are the dimensions of its two operands and of its result. N is the last dimension of the result;
    the operand that has N is B. M is the last dimension that only A and the result have, K is the last summed
    dimension. For M and K, dimensions of one element are taken only if there is no other. `width(d)` evaluates the
    extent of a dimension d in one task (tile of the grid).
    """
    if not c:
        return "its sum is a single number"
    if c[-1] in a and c[-1] in b:
        return f"both operands have {c[-1]}, the last dimension of the result, along which vectors run"
    swapped = c[-1] in a
    if swapped:
        a, b = b, a
    reduced = tuple(d for d in a if d in b and d not in c)
    if not reduced or c[-1] not in b:
        return "nothing is summed"
    rows = [d for d in c if d in a and d not in b]
    if not rows:
        return "one of its operands has no dimension of its own"
    m, k = _split_dim(rows, width), _split_dim(reduced, width)
    around, deep = tuple(d for d in c[:-1] if d is not m), tuple(d for d in reduced if d is not k)
    return Axes(m, c[-1], k, around, deep, swapped)


def axes_in(op: Op, width: Size) -> Axes | str:
    """Return Axes, which dimensions of the mma `op` are M, N, K and others; or text: why `op` has no accumulator tile.

    This is `axes_of` for an operation. `width(d)` evaluates the extent of a dimension d, such as in one task (tile of
    the grid).
    """
    a, b, c = (v.type.dims for v in op.operands)
    return axes_of(a, b, c, width)


def _split_dim(dims: Sequence[Expr], width: Size) -> Expr:
    """Return the dimension of `dims` that becomes M or K, which tiles split: the last with more than one element.

    If all have one element, it is the last. `dims` are the dimensions of M, or of K, at least one. `width(d)` evaluates
    the extent of a dimension d, such as in one task (tile of the grid).
    """
    return ([d for d in dims if width(d) > 1] or dims)[-1]


def types_of(op: Op, swapped: bool, machine: Machine | None) -> tuple[DType, DType, DType]:
    """Return the types (of A, of B, of the accumulator) of the mma `op`; the machine decides the accumulator's type.

    `swapped` says that A is the second operand of `op`. If `machine` is None, no atom is assumed.
    """
    a, b, _ = (v.type.dtype for v in op.operands)
    accumulator = accumulator_type(op, machine)
    return (b, a, accumulator) if swapped else (a, b, accumulator)


def mmas_by_name(program: Program) -> dict[str, Op]:
    """Return {name in a plan: mma operation} of a program's MMAs, in program order: mma, mma2, mma3 and so on."""
    products = [op for op in program.walk() if op.name == "mma"]
    return {f"mma{n + 1 if n else ''}": op for n, op in enumerate(products)}


def links_products(program: Program, products: Iterable[Op]) -> bool:
    """True if operand A or B of an MMA in `products` depends on the result of an MMA or of a loop.

    A value that a loop carries into an iteration counts as a result of the loop.
    """
    makers = program.makers()
    pending, seen = [v for op in products for v in op.operands[:2]], set[Op]()
    while pending:
        op = makers.get(pending.pop())
        if op is None or op.name in ("mma", "iterate"):
            return True
        pending += op.operands if op.name != "read" and op not in seen else ()
        seen.add(op)
    return False


def best_microkernels(
    program: Program,
    machine: Machine,
    width: Size,
    size: Size,
    opened: Collection[Expr] = (),
    lanes: int | None = None,
) -> dict[Op, Microkernel | None]:
    """Choose the fastest microkernel for each MMA of a program: return {mma: Microkernel, or None for scalar loops}.

    An MMA gets None if it has no accumulator tile, or if no atom fits. `width(d)` evaluates the extent of a dimension d
    in one task (tile of the grid), `size(d)` in the whole program. `lanes` is the number of lanes that every atom must
    span; None allows any. If the fastest atoms of a GPU program span different numbers of lanes, every MMA gets an atom
    of one wave (warp) instead. An MMA whose K is in `opened` (known only at the call) always gets an atom of one wave.
    """
    microkernels: dict[Op, Microkernel | None] = {}
    for op in mmas_by_name(program).values():
        axes = axes_in(op, width)
        if isinstance(axes, str):
            microkernels[op] = None
        else:
            types, allowed_lanes = types_of(op, axes.swapped, machine), machine.lanes if axes.k in opened else lanes
            row_stride, is_part = row_stride_of_a(program, op, axes, size), width(axes.n) < size(axes.n)
            microkernels[op] = best_microkernel(
                machine, types, axes.sizes(width), allowed_lanes, precision_of(op), row_stride, is_part
            )
    if (
        machine.lanes is not None
        and lanes is None
        and len(
            {
                microkernel_of_op.atom.c.lanes
                for microkernel_of_op in microkernels.values()
                if microkernel_of_op is not None
            }
        )
        > 1
    ):
        return best_microkernels(program, machine, width, size, opened, machine.lanes)
    return microkernels


def row_stride_of_a(program: Program, op: Op, axes: Axes, size: Size) -> int:
    """Return the number of bytes in memory between neighbouring rows of A, along M, of the mma `op`; 0 if not known.

    It is 0 if A is computed (its tile is then stored with padded rows), if A has no M, or if the stride is no single
    number. `axes` are M, N and K of `op`. `size(d)` evaluates the extent of a dimension d.
    """
    value, _ = axes.operands(op)
    read = program.makers().get(value)
    if read is None or read.name != "read" or axes.m not in value.type.dims:
        return 0
    memory: MemoryType = read.operands[0].type
    over = dict(zip(value.type.dims, read.attrs["over"], strict=True)) if "at" in read.attrs else {}
    row_index = over.get(axes.m, axes.m)
    if not isinstance(row_index, Symbol) or None in memory.sizes:
        return 0
    shape = [size(d) for d in memory.sizes if d is not None]
    stride = stride_along(row_index, read.attrs.get("at", memory.dims), shape, memory.strides)
    return (stride or 0) * element_bytes(memory.dtype)


def mma_statements(products: Mapping[Op, Microkernel | None], program: Program) -> tuple[ProductUnit, ...]:
    """Return a tuple of ProductUnits (plan statements `mma by ATOM, tile ROWSxCOLUMNS`), one for each MMA, in order.

    `products` maps every MMA of `program` to its microkernel (atom, accumulator tile), or to None for scalar loops.
    """
    return tuple(
        ProductUnit(name, None)
        if microkernel is None
        else ProductUnit(name, microkernel.atom.name, *microkernel.tile, microkernel.transposed)
        for name, microkernel in ((name, products[op]) for name, op in mmas_by_name(program).items())
    )


def registers_of(microkernel: Microkernel, machine: Machine) -> tuple[int, int]:
    """Return (number of registers that a microkernel needs for one K step, number that the machine has).

    It needs registers for the accumulator tile and for the operands of the step; operands that an atom reads from
    shared memory need none. Depending on the atom, these are tile registers, vector registers, or registers per lane.
    """
    m, n, _ = microkernel.atom.shape
    row_atoms, column_atoms = microkernel.rows // m, microkernel.columns // n
    if isinstance(microkernel.atom.c, OpaqueOperand):
        return tile_registers.registers(row_atoms, column_atoms), machine.limits.tile_registers
    if microkernel.slab is not None:
        return microkernel.accumulator_registers, machine.limits.registers - 1
    if m > 1:  # a lane has this number of values of each operand
        values_per_lane = [
            operand.values
            for operand in (microkernel.atom.a, microkernel.atom.b, microkernel.atom.c)
            if isinstance(operand, RegisterOperand)
        ]
        return row_atoms * values_per_lane[0] + column_atoms * values_per_lane[
            1
        ] + row_atoms * column_atoms * values_per_lane[2], machine.limits.registers
    return vectors.registers(microkernel.rows, column_atoms, microkernel.atom), machine.limits.registers


def hold_accumulators(microkernels: Iterable[Microkernel | None], machine: Machine) -> bool:
    """True if a CPU's registers hold the accumulator tiles of all MMAs at once, and the operands of one MMA.

    `microkernels` has one entry per MMA; None (scalar loops) takes no registers.
    """
    accumulators, operands, available = 0, 0, machine.limits.registers
    for each in (x for x in microkernels if x is not None):
        needed, available = registers_of(each, machine)
        tile = each.rows // each.atom.shape[0] * (each.columns // each.atom.shape[1])
        accumulators, operands = accumulators + tile, max(operands, needed - tile)
    return accumulators + operands <= available


def atoms_for(
    machine: Machine, a: DType, b: DType, c: DType, precision: str | None = None, any_rows: bool = False
) -> list[MultiplyAtom]:
    """Return the atoms that a kernel without a pipeline can use to multiply types `a` and `b` and accumulate in `c`.

    These are the atoms with exactly these types. If there are none, they are the atoms whose operands and accumulator
    all have the type `c`, provided that `c` holds `a` and `b` losslessly. [] if no atom is left.

    Two kinds of atoms are left out: an atom that rounds operands, unless `precision` names its rounding; and an atom
    that reads A and B from shared memory, unless K is contiguous there or `any_rows` is set.
    """
    fitting = [x for x in _usable_atoms(machine, any_rows) if x.rounds_to in (None, precision)]
    same = [x for x in fitting if (x.a.dtype, x.b.dtype, x.c.dtype) == (a, b, c)]
    if same or not (c.holds(a) and c.holds(b)):
        return same
    return [x for x in fitting if x.a.dtype is x.b.dtype is x.c.dtype is c]


def precision_of(op: Op) -> str | None:
    """Return the reduced precision that the mma `op` asks for, such as "tf32"; None if it asks for none."""
    precision: str | None = op.attrs.get("precision")
    return precision


@lru_cache
def _usable_atoms(machine: Machine, any_rows: bool) -> tuple[MultiplyAtom, ...]:
    """Return the machine's atoms that kernels without a pipeline can use, whatever their types.

    An atom is usable if all its operands are in registers (as vectors, tiles or fragments), or if A and B are in shared
    memory with K contiguous. With `any_rows`, M or N may be contiguous there instead. The result is cached.
    """

    def is_usable(atom: MultiplyAtom) -> bool:
        """True if all operands are in registers, or if A and B are in shared memory in an order that is allowed."""
        in_registers = all(isinstance(operand, RegisterOperand) for operand in (atom.a, atom.b, atom.c))
        single = Microkernel(atom, *atom.shape[:2])
        return in_registers or (
            single.slab is not None and not single.a_in_registers and (any_rows or all(single.contiguous_along_k))
        )

    return tuple(atom for atom in machine.multiply.values() if is_usable(atom))


@lru_cache
def shared_atoms(
    machine: Machine,
    types: tuple[DType, DType, DType],
    along_k: tuple[bool, bool],
    precision: str | None,
    held_a: bool = False,
) -> tuple[MultiplyAtom, ...]:
    """Return the atoms of these types that read A and B from shared memory; with `held_a`, A from registers instead.

    `types` are the types of A, B and the accumulator. `along_k` is (True if A is contiguous along K in shared memory,
    True if B is); False means contiguous along M or N. An atom that rounds operands is included only if `precision`
    names its rounding. The result is cached.
    """
    of_types = (x for x in machine.multiply.values() if (x.a.dtype, x.b.dtype, x.c.dtype) == types)
    candidates = [
        Microkernel(x, *x.shape[:2]) for x in of_types if x.slab is not None and x.rounds_to in (None, precision)
    ]
    return tuple(
        candidate.atom
        for candidate in candidates
        if candidate.a_in_registers == held_a and candidate.contiguous_along_k[held_a:] == along_k[held_a:]
    )


def can_multiply_blocks(atom: MultiplyAtom, blocks: int, n: int, k: int) -> bool:
    """True if an atom can multiply each diagonal block of a block-diagonal B separately, or if B has one block only.

    B has `n` x `k` elements in all and `blocks` blocks. A slab is the run of contiguous elements of shared memory that
    the atom reads. A block must be as wide as the atom's N. Its K must be a multiple of the atom's K, and must divide a
    slab or be whole slabs. The K of all blocks together must fit one slab or be whole slabs.
    """
    if blocks == 1:
        return True
    slab, width, depth = atom.slab or 1, n // blocks, k // blocks
    alone = width == atom.shape[1] and depth % atom.shape[2] == 0 and (slab % depth == 0 or depth % slab == 0)
    return alone and (k <= slab or k % slab == 0)


@lru_cache
def best_microkernel(
    machine: Machine,
    types: tuple[DType, DType, DType],
    sizes: tuple[int, int, int],
    lanes: int | None = None,
    precision: str | None = None,
    row_stride: int = 0,
    is_part: bool = False,
) -> Microkernel | None:
    """Return the Microkernel (atom, accumulator tile) of an MMA with the fewest predicted cycles; None if no atom fits.

    `types` are the types of A, B and the accumulator, `sizes` the extents M, N and K. On GPUs only atoms that span
    `lanes` lanes are tried; None allows any. `row_stride` is the number of bytes between rows of A. `is_part` says that
    N is a part of a longer dimension, so that a ragged N costs more packing of B. An atom that rounds operands is tried
    only if `precision` names its rounding. The result is cached.
    """
    m, n, _ = sizes

    def sort_key(candidate: Microkernel) -> tuple[float, int, int]:
        """Return the key by which candidates are compared, least first: (cycles, -elements of C, elements of the tile).

        Cycles are those of the whole MMA. Of equally fast candidates, the one whose tile has more elements of C wins,
        then the one with fewer elements, padding included.
        """
        stride = row_stride if candidate.atom.a.dtype is types[0] else 0  # panels keep rows clear
        return (
            round(mma_cycles(machine, candidate, sizes, stride, is_part), 3),
            -min(candidate.rows, m) * min(candidate.columns, n),
            candidate.rows * candidate.columns,
        )

    atoms = [x for x in atoms_for(machine, *types, precision) if machine.lanes is None or lanes in (None, x.c.lanes)]
    return min((tile for atom in atoms for tile in _legal_tiles(machine, atom)), key=sort_key, default=None)


def waves_of(machine: Machine, products: Iterable[Microkernel | None]) -> int:
    """Return the number of waves (warps) of a workgroup: the most that any of its MMAs needs.

    `products` are the microkernels of the MMAs. The result is 1 on CPUs, and if no MMA has a microkernel (None: scalar
    loops).
    """
    lanes = [microkernel.atom.c.lanes * microkernel.groups for microkernel in products if microkernel is not None]
    return max(1, *lanes) // machine.lanes if machine.lanes is not None and lanes else 1


def _legal_tiles(machine: Machine, atom: MultiplyAtom) -> Iterator[Microkernel]:
    """Yield a Microkernel (atom with an accumulator tile) of `atom` for each tile to try.

    Every tile fits the machine's registers, except that tiles of one row are always yielded for a vector atom. An atom
    that reads shared memory has one tile, of the atom's shape.
    """
    m, n, _ = atom.shape
    if isinstance(atom.c, OpaqueOperand):
        limit = machine.limits.tile_registers
        for a in range(1, limit):
            for b in range(1, limit):
                if tile_registers.registers(a, b) <= limit:
                    yield Microkernel(atom, a * m, b * n)
        return
    if atom.slab is not None:
        yield Microkernel(atom, m, n)
        return
    if m > 1:
        for a in FRAGMENTS:
            for b in FRAGMENTS:
                candidate = Microkernel(atom, a * m, b * n)
                if registers_of(candidate, machine)[0] <= machine.limits.registers:
                    yield candidate
        return
    for column_vectors in range(1, MOST_VECTORS + 1):
        for rows in range(1, machine.limits.registers):
            if rows == 1 or vectors.fits(rows, column_vectors, atom, machine):
                yield Microkernel(atom, rows, column_vectors * n)


def mma_cycles(
    machine: Machine, microkernel: Microkernel, sizes: tuple[int, int, int], row_stride: int = 0, is_part: bool = False
) -> float:
    """Return the predicted cycles of one core for a whole MMA: all accumulator tiles, plus the packing of B.

    `sizes` are the extents M, N and K, `row_stride` is the number of bytes between rows of A. B is packed once for
    every row of tiles if N is a part of a longer dimension (`is_part`) and no whole number of tiles. Otherwise B is
    packed once if the atom reads several neighbours along K as one run, else not at all.
    """
    m, n, k = sizes
    packings = -(-m // microkernel.rows) if is_part and n % microkernel.columns else int(microkernel.k_pack > 1)
    packed_bytes = packings * n * k * element_bytes(microkernel.atom.b.dtype)
    return all_tiles_cycles(machine, microkernel, sizes, row_stride) + 2 * packed_bytes / machine.limits.copy_rate


def all_tiles_cycles(
    machine: Machine, microkernel: Microkernel, sizes: tuple[int, int, int], row_stride: int = 0
) -> float:
    """Return the cycles of one core for all accumulator tiles of an MMA together, loads and stores of C included.

    `sizes` are the extents M, N and K, `row_stride` is the number of bytes between rows of A.
    """
    m, n, k = sizes
    total = 0.0
    for rows, row_blocks in _tile_counts(m, microkernel.rows, microkernel.atom.shape[0]).items():
        for columns, column_blocks in _tile_counts(n, microkernel.columns, microkernel.atom.shape[1]).items():
            total += row_blocks * column_blocks * _one_tile_cycles(machine, microkernel, rows, columns, k, row_stride)
    return total


def _tile_counts(size: int, block: int, unit: int) -> Mapping[int, int]:
    """Return {tile size: number of such tiles} that cover `size` elements: full tiles of `block`, and one last tile.

    The last tile is padded to a multiple of `unit`, the extent of one atom.

    >>> dict(_tile_counts(70, 32, 8))
    {32: 2, 8: 1}
    """
    whole, tail = divmod(size, block)
    counts = {block: whole} if whole else {}
    if tail:
        padded_tail = ceil(tail / unit) * unit
        counts[padded_tail] = counts.get(padded_tail, 0) + 1
    return counts


def _one_tile_cycles(
    machine: Machine, microkernel: Microkernel, rows: int, columns: int, k: int, row_stride: int
) -> float:
    """Return the cycles of one core for one accumulator tile of `rows` x `columns` elements, over all of K.

    K has `k` elements; `row_stride` is the number of bytes between rows of A. Each K step takes the larger of the
    cycles of its MMAs and the cycles of the loads that feed them. With a vector atom and too few accumulators to hide
    the latency, it takes at least the latency. The load and the store of C are added once.
    """
    m, n, depth = microkernel.atom.shape
    row_atoms, column_atoms, steps = rows // m, columns // n, ceil(k / depth)
    limits = machine.limits
    if microkernel.is_matrix_atom:
        both = (rows + columns) * k * element_bytes(microkernel.atom.a.dtype)
        step = tile_registers.step_cycles(machine, microkernel.atom, row_atoms, column_atoms, both)
        return steps * step + 2 * row_atoms * column_atoms * m * limits.load_cycles
    step = vectors.step_cycles(machine, microkernel.atom, rows, column_atoms, row_stride, k)
    return steps * step + 2 * rows * column_atoms * limits.load_cycles
