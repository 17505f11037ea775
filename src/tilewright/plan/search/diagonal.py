"""Rule: several products of a batch as one, with operand B in blocks on a diagonal."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from math import prod

from tilewright.machine import Machine
from tilewright.plan.facts import AccessFacts, Facts, ProductFacts, ValueFacts
from tilewright.plan.schedule import DIAGONAL, PADDED
from tilewright.plan.search.kernel import KernelSchedule
from tilewright.plan.search.ranking import PlanCandidate, Rewrite
from tilewright.plan.search.row_copies import Repacked, RowCopy, copy_cycles, copy_of, strides, with_accesses


def block_diagonal(candidate: PlanCandidate, machine: Machine, constant: Collection[str]) -> PlanCandidate:
    """The candidate with operand B copied to blocks on a diagonal first, where a tile has several of a batch."""
    kernel = candidate.kernel
    if not isinstance(kernel, KernelSchedule) or kernel.tiling.batch == 1:
        return candidate
    count, place = kernel.tiling.batch, kernel.tiling.facts.nodes[kernel.mmas[0].oriented.b.reads[0]].place
    name = place.memory.removesuffix("_rows")
    copy = RowCopy(name, prod(place.shape), prod(place.shape) * count, place.bytes, 1)
    cycles = candidate.cycles + (0.0 if name in constant else copy_cycles(machine, [copy]))
    rewrite = Rewrite("block-diagonal", forms=((name, f"{DIAGONAL} {count}"),))
    rewrites = (rewrite, *candidate.rewrites)
    return replace(candidate, cycles=cycles, key=(round(cycles), *candidate.key[1:]), rewrites=rewrites)


def padded_blocks(
    facts: Facts, p: ProductFacts, reads: list[ValueFacts], machine: Machine, constant: Collection[str]
) -> Iterator[Repacked]:
    """Yield the program whose K is padded to whole atoms, so that several of a batch fill a row of shared memory."""
    a, b = reads
    k = a.place.contiguous
    g = next((d for d in p.batch if k in p.k and a.place.steps.get(d) == facts.extents[k]), None)
    types = {x.a.dtype: x for x in machine.multiply.values() if x.slab is not None}
    atom = types.get(a.dtype)
    if k is None or g is None or atom is None or b.place.contiguous != k:
        return
    extent, wide = facts.extents[k], atom.shape[2]
    while wide < extent:
        wide *= 2
    if extent % atom.shape[2] == 0 or 2 * wide > (atom.slab or 1):
        return
    accesses = {}
    for n in reads:
        coords = tuple(
            tuple((d, c * wide // extent if d == g and k in dict(form) else c) for d, c in form)
            for form in n.place.coords
        )
        shape = (*n.place.shape[:-1], n.place.shape[-1] * wide // extent)
        name = f"{n.place.memory}_rows"
        accesses[n.id] = replace(n.place, memory=name, coords=coords, shape=shape, strides=strides(shape))
    copies = [copy_of(a, accesses[a.id].shape, machine)]
    rewrite = Rewrite("K padded to whole atoms", forms=((a.place.memory, PADDED),))
    repacked = replace(facts, nodes=with_accesses(facts, accesses), extents={**facts.extents, k: wide})
    cycles = copy_cycles(machine, [c for c in copies if c.memory not in constant])
    yield Repacked(rewrite, repacked, cycles, only_blocks=True)


def rows_as_batch(facts: Facts, p: ProductFacts, reads: list[ValueFacts], machine: Machine) -> Iterator[Repacked]:
    """Yield the program whose neighbouring rows of A are a batch, where several fill a row of shared memory."""
    a, b = reads
    k = a.place.contiguous
    m = next((d for d in p.m if k is not None and p.k == {k} and a.place.steps.get(d) == facts.extents[k]), None)
    atom = next((x for x in machine.multiply.values() if x.slab is not None and x.a.dtype == a.dtype), None)
    if k is None or m is None or atom is None or p.batch & {m}:
        return
    count = (atom.slab or 1) // facts.extents[k]
    if count < 2 or facts.extents[k] % atom.shape[2] or facts.extents[m] % count:
        return
    rows = [n for n in facts.nodes if m in n.dims and n is not a]
    if any(not p.n <= n.dims or (n.reduces and n.id != p.node) for n in rows):
        return
    accesses = {}
    for n in (n for n in facts.nodes if n.access is not None and m in n.dims):
        merged = _with_rows_merged(n.place, m, count)
        if merged is None:
            return
        accesses[n.id] = merged
    own = block_name(m)
    merged_nodes = with_accesses(facts, accesses)
    nodes = tuple(replace(n, dims=n.dims | {own}) if m in n.dims or n.id == b.id else n for n in merged_nodes)
    extents = {**facts.extents, m: facts.extents[m] // count, own: count}
    in_batches = replace(facts, nodes=nodes, extents=extents, parallel=(*facts.parallel, own))
    yield Repacked(Rewrite("rows as a batch"), in_batches, 0.0, only_blocks=True)


def block_name(m: str) -> str:
    """The name of the dimension of rows that are blocks of one product."""
    return f"{m}_block"


def _with_rows_merged(place: AccessFacts, m: str, count: int) -> AccessFacts | None:
    """An access with `count` neighbours along a dimension in one row of memory; None where they are not contiguous."""
    *outer, line, row = place.coords
    if line != ((m, 1),) or place.strides[-2] != place.shape[-1] or place.can_leave or not place.linear:
        return None
    length = place.shape[-1]
    shape = (*place.shape[:-2], place.shape[-2] // count, length * count)
    coords = (*outer, line, ((block_name(m), length), *row))
    return replace(place, coords=coords, shape=shape, strides=(*place.strides[:-2], length * count, 1))
