"""Rule: the atom of every MMA, and the M, N and K that a task or an iteration has of it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tilewright.machine import MultiplyAtom
from tilewright.plan.search.orientation import OrientedProduct
from tilewright.plan.search.tiling import Tiling


@dataclass(frozen=True)
class MmaTile:
    """An MMA of a task or an iteration: its atom, and its extents in whole atoms."""

    oriented: OrientedProduct
    atom: MultiplyAtom
    rows: int
    columns: int
    depth: int

    @property
    def node(self) -> int:
        """The MMA's node in the graph."""
        return self.oriented.product.node

    @property
    def atoms(self) -> float:
        """The number of atoms along rows and columns."""
        return self.rows / self.atom.shape[0] * self.columns / self.atom.shape[1]

    @property
    def cycles(self) -> float:
        """The cycles of a core's MMA units."""
        return self.atoms * self.depth / self.atom.shape[2] * self.atom.cycles

    @property
    def shared_bytes(self) -> float:
        """The bytes that atoms read from shared memory."""
        rows = (0 if self.oriented.a_in_registers else self.atom.shape[0]) + self.atom.shape[1]
        return self.atoms * self.depth * rows * self.atom.a.dtype.bits / 8

    @property
    def row_bytes(self) -> int:
        """The bytes of a row of shared memory."""
        return (self.atom.slab or 1) * self.atom.a.dtype.bits // 8


def mma_tile(t: Tiling, p: OrientedProduct) -> MmaTile | None:
    """Return an MMA's tile with the widest atom that divides its columns, or
    the narrowest that covers them; None if illegal.
    """
    unit = p.atoms[0].shape[0]
    rows = max(1, ceil(t.span(p.rows) / unit)) * unit
    columns = t.span(p.columns)
    if rows % (unit * t.down):
        return None
    group_columns = columns / t.across
    dividing = [x for x in p.atoms if group_columns % x.shape[1] == 0]
    covering = [x for x in p.atoms if x.shape[1] >= group_columns]
    if not dividing and not covering:
        return None
    atom = max(dividing, key=lambda x: x.shape[1]) if dividing else min(covering, key=lambda x: x.shape[1])
    if not _is_legal(t, p, atom, own_k(t, p)):
        return None
    return MmaTile(p, atom, rows, max(columns, atom.shape[1] * t.across), deep(t, p, atom))


def own_k(t: Tiling, p: OrientedProduct) -> int:
    """Return the elements of K in one iteration; of several GEMMs of a batch in a tile, the K of each."""
    facts, k = t.facts, t.span(p.product.k)
    if t.batch == 1:
        return k
    contiguous = {facts.nodes[r].place.contiguous for r in (*p.a.reads, *p.b.reads)}
    return min(k, max(facts.extents[d] for d in p.product.k if d in contiguous))


def deep(t: Tiling, p: OrientedProduct, atom: MultiplyAtom) -> int:
    """Return the elements of K that an iteration multiplies, padded to whole atoms."""
    return ceil(own_k(t, p) / atom.shape[2]) * atom.shape[2]


def _is_legal(t: Tiling, p: OrientedProduct, atom: MultiplyAtom, k: int) -> bool:
    """True if K fills rows of shared memory, and no loop over K carries more than one accumulator tile."""
    facts, product = t.facts, p.product
    over_k = t.loops_over(product.k)
    along = any(facts.nodes[r].place.along(product.k) for r in p.b.reads)
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
