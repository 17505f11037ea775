"""Rule: neighbouring rows of operand A as one row of several products, where K is shorter than a row of shared memory.

    C[m, n] = A[m, k] B[n, k]        with K = 16, rows of A and C right behind each other
    C[m, g, n] = A[m, g, k] B[n, k]  half as many rows, of two products each

A row of shared memory then holds K of several products, and B stands in blocks on a diagonal (`diagonal`), once for
each. Nothing but the accesses changes; the tiles, the atoms and the cost are those of any batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.machine import Machine
from tilewright.plan.facts import AccessFacts, Facts, ProductFacts, ValueFacts
from tilewright.plan.search.ranking import Rewrite
from tilewright.plan.search.row_copies import Repacked


def paired_rows(facts: Facts, p: ProductFacts, reads: list[ValueFacts], machine: Machine) -> Iterator[Repacked]:
    """Yield the program of a product whose rows are taken several at a time; `reads` are those of A and B."""
    a, b = reads
    k = a.place.contiguous
    if k is None or p.k != {k} or p.batch or b.place.contiguous != k:
        return
    atoms = [x for x in machine.multiply.values() if x.slab is not None and x.a.dtype == a.dtype]
    extent = facts.extents[k]
    row = next((d for d in p.m if a.place.steps.get(d) == extent), None)
    widest = max((x.shape[1] for x in atoms), default=0)
    if row is None or not _lies_behind(facts, row, facts.size(p.n)):
        return
    count = max((x.slab or 0 for x in atoms), default=0) // extent
    while count > 1 and (facts.extents[row] % count or count * facts.size(p.n) > widest):
        count //= 2
    if count > 1:
        yield Repacked(Rewrite(f"{count} rows as one"), _paired(facts, row, b.id, count), 0.0, only_blocks=True)


def _lies_behind(facts: Facts, row: str, columns: int) -> bool:
    """Whether neighbouring rows of everything that is written lie right behind each other."""
    return all(w.place.steps.get(row) == columns for w in facts.writes)


def _paired(facts: Facts, row: str, b: int, count: int) -> Facts:
    """The facts with a batch of `count` neighbours along `row`, which operand B is repeated for."""
    batch = f"{row}_pair"
    nodes = tuple(
        replace(
            n,
            dims=n.dims | {batch} if row in n.dims or n.id == b else n.dims,
            access=None if n.access is None else _split(n.access, row, batch, count),
        )
        for n in facts.nodes
    )
    extents = {**facts.extents, row: facts.extents[row] // count, batch: count}
    return replace(facts, nodes=nodes, extents=extents, parallel=(*facts.parallel, batch), _trips={})


def _split(access: AccessFacts, row: str, batch: str, count: int) -> AccessFacts:
    """The access with a coordinate of `row` as one of pairs, and of the place within a pair."""
    coords = tuple(
        tuple(part for d, c in form for part in (((d, c * count), (batch, c)) if d == row else ((d, c),)))
        for form in access.coords
    )
    return replace(access, coords=coords)
