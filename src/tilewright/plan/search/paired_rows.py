"""Rule: treat neighbouring rows of operand A as one row of several GEMMs, if K is shorter than a row of shared memory.

    C[m, n] = A[m, k] B[n, k]        with K = 16 and contiguous rows of A and C
    C[m, g, n] = A[m, g, k] B[n, k]  half as many rows, of two GEMMs each

A row of shared memory then holds K of several GEMMs, and B becomes block-diagonal (`diagonal`), with one block per
GEMM. Only the accesses change; tiles, atoms and cost are the same as for any batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.machine import Machine
from tilewright.plan.facts import AccessFacts, Facts, ProductFacts, ValueFacts
from tilewright.plan.search.ranking import Rewrite
from tilewright.plan.search.row_copies import Repacked


def paired_rows(facts: Facts, p: ProductFacts, reads: list[ValueFacts], machine: Machine) -> Iterator[Repacked]:
    """Yield at most one Repacked (rewritten program): several rows of operand A become one row of as many GEMMs.

    It is for a K so short that a slab (row of shared memory) has room for several rows of A. Operands are not copied:
    the rewrite costs nothing. `p` is the MMA, `reads` are its A and B.

    Yields nothing in these cases: the MMA has a batch or several K dimensions; A or B is not contiguous along K; rows
    of A are not contiguous; no number of rows, two or more, divides M and gives at most the columns of the widest atom;
    or another access or value with these rows prevents it (see `_rows_stay_independent` and `_facts_of_pairs`).
    """
    a, b = reads
    k = a.place.contiguous
    if k is None or p.k != {k} or p.batch or b.place.contiguous != k:
        return
    atoms = [x for x in machine.multiply.values() if x.slab is not None and x.a.dtype == a.dtype]
    extent, columns = facts.extents[k], facts.size(p.n)
    row = next((d for d in p.m if a.place.steps.get(d) == extent), None)
    if row is None or not _rows_stay_independent(facts, p, row, a.id):
        return
    widest = max((x.shape[1] for x in atoms), default=0)
    count = max((x.slab or 0 for x in atoms), default=0) // extent
    while count > 1 and (facts.extents[row] % count or count * columns > widest):
        count //= 2
    paired = _facts_of_pairs(facts, row, b.id, count) if count > 1 else None
    if paired is not None:
        yield Repacked(Rewrite(f"{count} rows as one"), paired, 0.0, only_blocks=True)


def _rows_stay_independent(facts: Facts, p: ProductFacts, row: str, a: int) -> bool:
    """True if neighbours along `row`, a dimension of M, may become separate GEMMs of a batch.

    Operand A (node `a`) and the MMA `p` do not count. Every other value with the dimension `row` must have N too, and
    must be no reduction. `facts` is the analysed program.
    """
    others = [n for n in facts.nodes if row in n.dims and n.id != a]
    return all(p.n <= n.dims and (not n.reduces or n.id == p.node) for n in others)


def _facts_of_pairs(facts: Facts, row: str, b: int, count: int) -> Facts | None:
    """Return the analysed program with `count` neighbours along `row` as a new batch dimension; None if not possible.

    Operand B (node `b`) gets the new dimension too. It is not possible if some access with the dimension `row` has
    neighbours that are not contiguous in memory, or may be out of bounds.
    """
    batch, nodes = f"{row}_pair", []
    for n in facts.nodes:
        access = n.access if n.access is None or row not in n.dims else _access_of_pairs(n.access, row, batch, count)
        if n.access is not None and access is None:
            return None
        nodes.append(replace(n, dims=n.dims | {batch} if row in n.dims or n.id == b else n.dims, access=access))
    extents = {**facts.extents, row: facts.extents[row] // count, batch: count}
    return replace(facts, nodes=tuple(nodes), extents=extents, parallel=(*facts.parallel, batch), _trips={})


def _access_of_pairs(access: AccessFacts, row: str, batch: str, count: int) -> AccessFacts | None:
    """Return `access` with `count` neighbours along `row` as one row of memory; `batch` names their new dimension.

    `x[row, k]` with K = 16 becomes `x[row, 16*batch + k]`, with half as many rows if `count` is 2. None if the
    neighbours are not contiguous, or if the access may be out of bounds.
    """
    if len(access.coords) < 2 or access.can_leave or not access.linear:
        return None
    *outer, line, inner = access.coords
    length = access.shape[-1]
    if line != ((row, 1),) or access.strides[-2] != length:
        return None
    return replace(
        access,
        coords=(*outer, line, ((batch, length), *inner)),
        shape=(*access.shape[:-2], access.shape[-2] // count, length * count),
        strides=(*access.strides[:-2], length * count, 1),
    )
