"""Rule: which side of every MMA (M or N) lies on the atom's rows, and the atoms that then fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import product as combinations

from tilewright.ir.core import Op
from tilewright.ir.dtypes import DType
from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.accumulator_type import accumulator_type
from tilewright.plan.facts import AccessFacts, Dims, Facts, OperandFacts, ProductFacts
from tilewright.plan.microkernel import axes_in, precision_of, shared_atoms
from tilewright.plan.search.axes import COLUMNS, ROWS, DimClass, classes_of
from tilewright.plan.search.ranking import Ranking


@dataclass(frozen=True)
class OrientedProduct:
    """An MMA with M or N on the atom's rows, and the atoms that take its operands in this orientation.

    `rows` and `columns` are the dimensions on the atom's rows and columns. `a` is the operand with the rows: B of the
    MMA if N lies on the atom's rows. `a_in_registers` is True if `a` is computed, and atoms read it from registers.
    """

    product: ProductFacts
    rows: Dims
    columns: Dims
    a: OperandFacts
    b: OperandFacts
    a_in_registers: bool
    atoms: tuple[MultiplyAtom, ...]
    kept_atoms: tuple[MultiplyAtom, ...] = ()
    """Atoms that take A from registers although it is read: it may be loaded once and stay there."""


@dataclass(frozen=True, eq=False)
class Orientation:
    """The choice of M or N for the atom's rows, for all MMAs.

    `flips` says of each MMA whether its N lies on the atom's rows. `by_threads` is the reason why lanes copy operands;
    empty: bulk copies do. `through_shared` are pairs (operand, MMA) of computed operands that change their layout and
    so go through shared memory.
    """

    facts: Facts
    machine: Machine
    flips: tuple[bool, ...]
    products: tuple[OrientedProduct, ...]
    classes: tuple[DimClass, ...]
    by_threads: str = ""
    through_shared: tuple[tuple[OperandFacts, ProductFacts], ...] = ()
    class_of: dict[str, int] = field(default_factory=dict)

    @cached_property
    def is_chained(self) -> bool:
        """True if a workgroup does more than sum one tile of C and store it.

        It does more if an operand of an MMA is computed from another MMA, if the grid cannot split M or N of an MMA, or
        if the epilogue reads several accumulators.
        """
        return self.links_products or self.has_unsplit_results or len(self.facts.accumulators) > 1

    @cached_property
    def links_products(self) -> bool:
        """True if an operand of some MMA is computed from the result of another MMA, as in attention."""
        return any(x.products for p in self.products for x in (p.a, p.b))

    @cached_property
    def has_unsplit_results(self) -> bool:
        """True if the grid cannot split M or N of some MMA, for example because the program reduces its result."""
        return any({ROWS, COLUMNS} & set(c.roles) for c in self.classes if not c.is_parallel)

    @cached_property
    def inner_k(self) -> dict[int, str | None]:
        """{MMA (node number): name of the K dimension along which one K step runs}.

        It is the K dimension that is contiguous in memory, else the last one; None if the MMA has no K dimension.
        """
        k_of_mma: dict[int, str | None] = {}
        for p in self.products:
            k = [d for c in self.classes for d in c.dims if d in p.product.k]
            k_of_mma[p.product.node] = contiguous_k(self.facts, p) or (k[-1] if k else None)
        return k_of_mma

    @cached_property
    def window_dims(self) -> frozenset[str]:
        """The names of all dimensions of sliding windows (output position plus filter tap) of any read."""
        return frozenset(d for r in self.facts.reads for window in r.place.windows for d in window)


def orientations(facts: Facts, machine: Machine, ranking: Ranking) -> Iterator[Orientation]:
    """Yield an Orientation for each way to put M or N of every MMA on the rows of its atom.

    MMAs whose results have the same dimensions get the same dimensions on the rows, as these results may be combined
    elementwise. A choice that no atom of the machine allows is skipped, and noted in `ranking` (the search's result).
    `facts` is the analysed program.
    """
    for flips in combinations((False, True), repeat=len(facts.products)):
        sides = [(facts.nodes[p.node].dims, p.side(flip)[0]) for p, flip in zip(facts.products, flips, strict=True)]
        if len(dict(sides)) == len(set(sides)):
            oriented = orient(facts, machine, flips, ranking)
            if oriented is not None:
                yield oriented


def orient(facts: Facts, machine: Machine, flips: tuple[bool, ...], ranking: Ranking) -> Orientation | None:
    """Return the Orientation with M or N of each MMA on the atom's rows, as `flips` says; None if it is impossible.

    `flips` has one entry per MMA: True if N lies on the atom's rows. It is impossible in two cases: no atom takes the
    operands of some MMA in this orientation; or lanes compute an operand A from reads, and bulk copies cannot load some
    operand. `ranking` (the search's result) gets the reason. It also gets the reason if lanes have to load operands
    because bulk copies cannot. `facts` is the analysed program.
    """
    rows_of = {p.node: p.side(flip)[0] for p, flip in zip(facts.products, flips, strict=True)}
    products: list[OrientedProduct] = []
    through_shared: list[tuple[OperandFacts, ProductFacts]] = []
    by_threads = ""
    for p, flip in zip(facts.products, flips, strict=True):
        rows, columns, a, b = p.side(flip)
        a_in_registers = not a.is_read
        if any(rows_of[q] != rows for q in a.products):  # made with other rows: another layout
            through_shared.append((a, p))
            a_in_registers = False
        if not b.is_read:
            through_shared.append((b, p))
        oriented = _oriented_product(facts, machine, p, (rows, columns, a, b), a_in_registers)
        if not oriented.atoms:
            where = " with A in registers" if a_in_registers else ""
            ranking.reject(f"{p.name}, rows {', '.join(sorted(rows)) or 'none'}", f"no atom takes operands so{where}")
            return None
        by_threads = by_threads or _why_not_bulk_copied(facts, machine, oriented) or _why_not_k_steps(facts, oriented)
        products.append(oriented)
    if by_threads:
        ranking.reject("bulk copies", by_threads)
    if by_threads and any(x.a_in_registers and x.a.reads for x in products):
        ranking.reject("lanes that make A", f"what it is made of is not copied in bulk: {by_threads}")
        return None
    classes = classes_of(facts, flips)
    class_of = {dim: n for n, c in enumerate(classes) for dim in c.dims}
    return Orientation(facts, machine, flips, tuple(products), classes, by_threads, tuple(through_shared), class_of)


def _oriented_product(
    facts: Facts,
    machine: Machine,
    p: ProductFacts,
    sides: tuple[Dims, Dims, OperandFacts, OperandFacts],
    a_in_registers: bool,
) -> OrientedProduct:
    """Return the MMA `p` as an OrientedProduct with the atoms that take its operands; `atoms` is empty if no atom does.

    `sides` is (dimensions on the atom's rows, dimensions on its columns, the operand with the rows, the operand with
    the columns). With `a_in_registers`, only atoms that take the operand with the rows from registers count. If an
    asynchronous atom fits, `atoms` has asynchronous atoms only. `kept_atoms` has atoms that take A from registers, if
    both operands are contiguous along K and `a_in_registers` is False.
    """
    rows, columns, a, b = sides
    source = facts.nodes[p.node].source
    assert source is not None
    types: tuple[DType, DType, DType] = (
        facts.nodes[a.value].dtype,
        facts.nodes[b.value].dtype,
        accumulator_type(source, machine),
    )
    along = (
        not a.is_read or _rows_run_along_k(facts, a, p, rows),
        not b.is_read or _rows_run_along_k(facts, b, p, columns),
    )
    atoms, kept = (
        tuple(x for x in shared_atoms(machine, types, along, precision_of(source), in_registers))
        for in_registers in (a_in_registers, True)
    )
    if any(x.asynchronous for x in atoms):
        atoms = tuple(x for x in atoms if x.asynchronous)
    kept = kept if all(along) and not a_in_registers else ()
    return OrientedProduct(p, rows, columns, a, b, a_in_registers, atoms, kept)


def _rows_run_along_k(facts: Facts, operand: OperandFacts, p: ProductFacts, side: Dims) -> bool:
    """True if an operand is contiguous along K of `p` (K-major); False if it is contiguous along `side`, its M or N.

    True also if it is contiguous along neither. If the innermost memory dimension has one element, the result is True
    if that dimension is K. The operand must be read, not computed. `p` is the MMA, `facts` the analysed program.
    """
    read = facts.nodes[operand.reads[0]]
    access = read.place
    if access.coords and not access.row and read.source is not None and access.shape[-1] == 1:
        return _unit_row_is_k(facts, read.source, p)
    in_row = {dim for dim, _ in access.row} or ({access.contiguous} if access.contiguous else set())
    return bool(in_row & p.k) or not in_row & side


def _why_not_bulk_copied(facts: Facts, machine: Machine, p: OrientedProduct) -> str:
    """Return text: why bulk copies cannot load the tensors from which the operands of `p` come; empty if they can.

    If an operand is computed, lanes may load some of the reads that it is computed from. These reads are not checked:
    all reads if the operand depends on another MMA; reads with an address that is not linear; reads without K, or
    without the operand's M or N; and reads of one element per row and K step. `facts` is the analysed program.
    """
    k, slab = p.product.k, p.atoms[0].slab or 1
    for operand, side in ((p.a, p.rows), (p.b, p.columns)):
        for access in (facts.nodes[read].place for read in operand.reads):
            is_checked = access.linear and not operand.products and access.dims & k and access.dims & side
            if operand.is_read or (is_checked and not reads_one_element_per_step(facts, p, access, slab)):
                why = why_not_bulk(access, k | side, machine) or _why_not_within_row(
                    facts, access, k | side, slab, machine
                )
                if why:
                    return why
    return ""


def _why_not_within_row(facts: Facts, access: AccessFacts, dims: Dims, slab: int, machine: Machine) -> str:
    """Return text: why bulk copies cannot stop at the end of K inside a row of memory; empty if they can, or need not.

    They need to stop there if a row of memory has several batch entries one after another, and K is not a multiple of
    `slab` (K elements in a row of shared memory). The copy then has one tensor dimension more than usual, and the text
    is returned if bulk copies have too few dimensions. `dims` are K and M (or N) of the operand, `access` is its read,
    `facts` the analysed program.
    """
    has_batch = any(d not in dims for d, _ in access.row)
    is_ragged = access.contiguous is not None and facts.extents[access.contiguous] % slab
    most, used = machine.bulk_copy.counted_dims + 1, len(access.coords) + 1
    if not has_batch or not is_ragged or used <= most:
        return ""
    return f"{access.memory}: it has {used} dimensions where a row has several of a batch, and bulk copies have {most}"


def reads_one_element_per_step(facts: Facts, p: OrientedProduct, access: AccessFacts, slab: int) -> bool:
    """True if `access` reads the same element for a whole K step, so that lanes can load it without bulk copies.

    Two conditions must hold: its address does not depend on the contiguous K dimension of `p`; and K steps of `slab`
    elements (a row of shared memory) divide that dimension. `access` belongs to an operand of the MMA `p`; `facts` is
    the analysed program.
    """
    inner = contiguous_k(facts, p)
    return access.linear and inner is not None and inner not in access.dims and facts.extents[inner] % slab == 0


def contiguous_k(facts: Facts, p: OrientedProduct) -> str | None:
    """Return the name of the K dimension along which an operand of `p` is contiguous in memory; None if there is none.

    If several reads of the operands of the MMA `p` are contiguous along K, the read with the most dimensions of K
    decides. `facts` is the analysed program.
    """
    k = p.product.k
    places = [facts.nodes[read].place for x in (p.a, p.b) for read in x.reads]
    places.sort(key=lambda place: -len(place.dims & k))
    return next((place.contiguous for place in places if place.contiguous in k), None)


def _why_not_k_steps(facts: Facts, p: OrientedProduct) -> str:
    """Return text: why bulk copies cannot load K in steps of whole slabs; empty if they can.

    A slab is the elements of K in one row of shared memory. Only the innermost K dimension is tested. Bulk copies
    cannot load it if it is no multiple of a slab and a sliding window adds its index to that of a dimension that is
    neither in K nor a batch dimension: the last step then finds elements of other windows in memory, not zeros. `facts`
    is the analysed program, `p` its MMA.
    """
    k, k_and_batch, slab = p.product.k, p.product.k | p.product.batch, p.atoms[0].slab or 1 if p.atoms else 1
    reads = [facts.nodes[r].place for x in (p.a, p.b) for r in x.reads]
    dims = [d for place in reads for form in place.coords for d, _ in form if d in k]
    inner = next((place.contiguous for place in reads if place.contiguous in k), dims[-1] if dims else None)
    if inner is None or facts.extents[inner] % slab == 0:
        return ""
    digits = next((x for x in facts.digits.values() if len(x) > 1 and inner in x), ())
    if digits:  # steps cover digits of one dimension, which ends where the first digit does
        inner = next(d for d in digits if d in facts.extents)
    continuing = [place for place in reads if any(inner in window and window - k_and_batch for window in place.windows)]
    return f"{continuing[0].memory}: steps of {slab} along {inner} end within its rows" if continuing else ""


def _unit_row_is_k(facts: Facts, read: Op, p: ProductFacts) -> bool:
    """True if the innermost dimension of the tensor that `read` loads, which has one element, is K of the MMA `p`.

    True also if M, N and K of the MMA cannot be identified. `facts` is the analysed program.
    """
    source = facts.nodes[p.node].source
    axes = axes_in(source, facts.number_of) if source is not None else ""
    if isinstance(axes, str):
        return True
    if "at" not in read.attrs:
        return read.operands[0].type.dims[-1] is axes.k
    index = dict(zip(read.results[0].type.dims, read.attrs["over"], strict=True)).get(axes.k)
    return index in read.attrs["at"][-1].symbols


def why_not_bulk(access: AccessFacts, dims: Dims, machine: Machine) -> str:
    """Return text: why asynchronous bulk copies cannot load an operand that is read by `access`; empty if they can.

    They cannot in these cases: the machine has none; the address is not linear; none of the operand's dimensions `dims`
    (K, and M or N) is contiguous; or the distance of rows is known only at the call, or misaligned.
    """
    pitch = bulk_pitch(machine)
    if not pitch:
        return "the machine has no bulk copies"
    if not access.linear:
        return f"{access.memory}: a coordinate divides a dimension, or is looked up"
    if access.dims and not any(dim in dims and c == 1 for dim, c in access.row):
        return f"{access.memory}: no dimension of rows, columns or K is contiguous"
    if access.is_open:
        return f"{access.memory}: only a call tells how far rows lie apart"
    if access.pitch % pitch:
        return f"{access.memory}: rows lie {access.pitch} bytes apart, which {pitch} does not divide"
    return ""


@lru_cache
def bulk_pitch(machine: Machine) -> int:
    """Return the alignment of row strides, in bytes, that asynchronous bulk loads to shared memory need.

    Return 0 if the machine has no such loads. The result is cached.
    """
    loads = machine.copies_between("global", "shared")
    return max((c.pitch for c in loads if c.asynchronous and c.bytes_moved is None), default=0)
