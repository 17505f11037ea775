"""Rule: the atom of every MMA, and the extents M, N and K of its tile in a workgroup or a loop iteration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from tilewright.machine import MultiplyAtom
from tilewright.plan.search.orientation import Orientation, OrientedProduct
from tilewright.plan.search.tiling import Tiling


@dataclass(frozen=True)
class MmaTile:
    """The tile of an MMA that a workgroup computes in one loop iteration: its atom and its extents.

    `oriented` is the MMA with M or N on the atom's rows. `rows`, `columns` and `depth` (K) are the extents along the
    atom's rows, columns and K, in elements, padded to whole atoms.
    """

    oriented: OrientedProduct
    atom: MultiplyAtom
    rows: int
    columns: int
    depth: int

    @property
    def node(self) -> int:
        """The node number of this MMA in the program's graph of values."""
        return self.oriented.product.node

    @property
    def atoms(self) -> float:
        """The number of atoms (MMA instructions) that cover the rows and columns of this tile, in one K step.

        A tile of 128 x 256 with an atom of 64 x 256 has 2.
        """
        return self.rows / self.atom.shape[0] * self.columns / self.atom.shape[1]

    @property
    def cycles(self) -> float:
        """The cycles of one core's MMA units for this tile, over all of its K: the sum over all atoms."""
        return self.atoms * self.depth / self.atom.shape[2] * self.atom.cycles

    @property
    def shared_bytes(self) -> float:
        """The number of bytes that all atoms of this tile read from shared memory, over all of its K.

        Each atom reads its rows of B and, if A is not in registers, its rows of A.
        """
        rows = (0 if self.oriented.a_in_registers else self.atom.shape[0]) + self.atom.shape[1]
        return self.atoms * self.depth * rows * self.atom.a.dtype.bits / 8

    @property
    def row_bytes(self) -> int:
        """The number of bytes of a row of shared memory (slab) as this tile's atom reads operand A."""
        return (self.atom.slab or 1) * self.atom.a.dtype.bits // 8


def refusal_name(mmas: tuple[MmaTile, ...]) -> str:
    """Return text that names a kernel when it is refused: each MMA with the extents of its tile of C.

    An MMA with 128 rows and 256 columns on its atom gives "mma 128x256".
    """
    return ", ".join(f"{m.oriented.product.name} {m.rows}x{m.columns}" for m in mmas)


def mma_tile(t: Tiling, p: OrientedProduct) -> MmaTile | None:
    """Return the MmaTile (atom, and extents in whole atoms) of the MMA `p`; None if no atom can compute its tile.

    The atom is the widest that divides the columns of one wave group, else the narrowest that covers them. None in
    these cases: no atom does; wave groups cannot share the rows evenly; K of one iteration must fill whole slabs (rows
    of shared memory) and does not; or a loop over tiles of C is in the nest of the K loop. `t` is the Tiling (tile
    sizes).
    """
    unit = p.atoms[0].shape[0]
    rows = max(1, ceil(t.span(p.rows) / unit)) * unit
    columns = t.span(p.columns)
    if rows % (unit * t.down):
        return None
    atom = _atom_of_columns(t.o, p.product.node, columns / t.across)
    if atom is None or not _is_legal_k(t, p, atom, iteration_k(t, p)):
        return None
    return MmaTile(p, atom, rows, max(columns, atom.shape[1] * t.across), padded_k(t, p, atom))


@lru_cache
def _atom_of_columns(o: Orientation, node: int, columns: float) -> MultiplyAtom | None:
    """Return the widest atom with an N that divides `columns`; else the narrowest with an N of at least `columns`.

    None if there is neither. `columns` is the number of columns of one wave group's tile. `node` is the node number of
    an MMA, `o` (an Orientation) has the atoms that take its operands. The result is cached: many tilings have the same
    columns.
    """
    atoms = next(p.atoms for p in o.products if p.product.node == node)
    dividing = [x for x in atoms if columns % x.shape[1] == 0]
    covering = [x for x in atoms if x.shape[1] >= columns]
    if not dividing:
        return min(covering, key=lambda x: x.shape[1], default=None)
    return max(dividing, key=lambda x: x.shape[1])


def iteration_k(t: Tiling, p: OrientedProduct) -> int:
    """Return the number of K elements of the MMA `p` per loop iteration.

    It is the tile size of K. If a tile has several GEMMs of a batch (as a block-diagonal B), only K of one GEMM counts:
    at most the extent of the longest dimension of K that is contiguous in A or B. `t` (a Tiling) has the kernel's tile
    sizes.
    """
    facts, k = t.facts, t.span(p.product.k)
    if t.batch == 1:
        return k
    contiguous = {facts.nodes[r].place.contiguous for r in (*p.a.reads, *p.b.reads)}
    return min(k, max(facts.extents[d] for d in p.product.k if d in contiguous))


def padded_k(t: Tiling, p: OrientedProduct, atom: MultiplyAtom) -> int:
    """Return the number of K elements of the MMA `p` per loop iteration, rounded up to a multiple of the atom's K.

    `t` (a Tiling) has the kernel's tile sizes, `atom` multiplies the MMA.
    """
    return ceil(iteration_k(t, p) / atom.shape[2]) * atom.shape[2]


def _is_legal_k(t: Tiling, p: OrientedProduct, atom: MultiplyAtom, k: int) -> bool:
    """True if `k`, the number of K elements of the MMA `p` per iteration, is legal for the tiling `t` and `atom`.

    There are two rules. First, `k` must sometimes fill whole slabs (rows of shared memory, as the atom reads K). It
    must if B is contiguous along K and one of these holds: a loop splits K, and tiles have one GEMM of a batch; the
    program itself loops over K; or A in registers comes from another MMA. Second, no loop over tiles of C may be in the
    same nest as the K loop: the kernel would have to keep several accumulator tiles.
    """
    facts, product = t.facts, p.product
    over_k = t.loops_over(product.k)
    along = any(facts.nodes[r].place.rows_run_along(product.k) for r in p.b.reads)
    if over_k and k % (atom.slab or 1) and t.batch == 1 and along:
        return False
    exact = p.a_in_registers or any(d in facts.loops for d in product.k)
    if exact and any(d in facts.loops or p.a.products for d in product.k) and k % (atom.slab or 1) and along:
        return False
    blocks = [
        c for n, c in enumerate(t.o.classes)
        if n in t.looped and c.is_parallel and set(c.dims) & facts.nodes[product.node].dims
    ]  # fmt: skip
    return not (blocks and over_k)
