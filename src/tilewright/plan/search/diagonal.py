"""Rule: compute several GEMMs of a batch as one, with a block-diagonal operand B."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tilewright.machine import Machine
from tilewright.plan.facts import Facts, ProductFacts, ValueFacts
from tilewright.plan.schedule import DIAGONAL, PADDED
from tilewright.plan.search.kernel import KernelSchedule
from tilewright.plan.search.ranking import PlanCandidate, Rewrite
from tilewright.plan.search.row_copies import Repacked, RowCopy, copy_cycles, row_copy_of, strides, with_accesses


def block_diagonal(candidate: PlanCandidate, machine: Machine) -> PlanCandidate:
    """Return the candidate, with a copy of operand B to block-diagonal form before its kernel if its tiles need that.

    Tiles need it if they hold several GEMMs of a batch, which then run as one GEMM. The cycles of the copy are added,
    except for a constant B, which is repacked once, when it is bound. A candidate whose tiles need no copy is returned
    unchanged.
    """
    kernel = candidate.kernel
    if not isinstance(kernel, KernelSchedule) or kernel.tiling.batch == 1:
        return candidate
    count, facts, copies = kernel.tiling.batch, kernel.tiling.facts, dict[str, RowCopy]()
    for m in kernel.mmas:
        place = facts.nodes[m.oriented.b.reads[0]].place
        name = place.memory.removesuffix("_rows")
        copies[name] = RowCopy(name, prod(place.shape), prod(place.shape) * count, place.bytes, 1)
    repeated = [copy for name, copy in copies.items() if name not in facts.constant]
    cycles = candidate.cycles + copy_cycles(machine, repeated)
    rewrite = Rewrite("block-diagonal", forms=tuple((name, f"{DIAGONAL} {count}") for name in copies))
    rewrites = (rewrite, *candidate.rewrites)
    return replace(candidate, cycles=cycles, key=(round(cycles), *candidate.key[1:]), rewrites=rewrites)


def padded_blocks(facts: Facts, p: ProductFacts, reads: list[ValueFacts], machine: Machine) -> Iterator[Repacked]:
    """Yield at most one Repacked: the program with K zero-padded, so that one slab holds K of several GEMMs of a batch.

    A slab is a row of shared memory; a Repacked is the rewritten program with the cost of its copy. K is padded to the
    atom's K, doubled until it fits: with an atom of 16, K of 20 becomes 32. `p` is the MMA, `reads` its A and B. Only
    the copy of A counts here: `block_diagonal` adds that of B. A copy of a constant argument costs nothing, since it is
    made once.

    Yields nothing in these cases: no atom takes the type of A; A or B is not contiguous along K; in A, K of the next
    GEMM of the batch does not follow that of the GEMM before; K is a multiple of the atom's K already; or two padded K
    do not fit in a slab.
    """
    a, b = reads
    k = a.place.contiguous
    batch_dim = next((d for d in p.batch if k in p.k and a.place.steps.get(d) == facts.extents[k]), None)
    types = {x.a.dtype: x for x in machine.multiply.values() if x.slab is not None}
    atom = types.get(a.dtype)
    if k is None or batch_dim is None or atom is None or b.place.contiguous != k:
        return
    extent, padded_k = facts.extents[k], atom.shape[2]
    while padded_k < extent:
        padded_k *= 2
    if extent % atom.shape[2] == 0 or 2 * padded_k > (atom.slab or 1):
        return
    accesses = {}
    for n in reads:
        coords = tuple(
            tuple((d, c * padded_k // extent if d == batch_dim and k in dict(form) else c) for d, c in form)
            for form in n.place.coords
        )
        shape = (*n.place.shape[:-1], n.place.shape[-1] * padded_k // extent)
        name = f"{n.place.memory}_rows"
        accesses[n.id] = replace(n.place, memory=name, coords=coords, shape=shape, strides=strides(shape))
    copies = [row_copy_of(a, accesses[a.id].shape, machine)]
    rewrite = Rewrite("K padded to whole atoms", forms=((a.place.memory, PADDED),))
    repacked = replace(facts, nodes=with_accesses(facts, accesses), extents={**facts.extents, k: padded_k})
    cycles = copy_cycles(machine, [c for c in copies if c.memory not in facts.constant])
    yield Repacked(rewrite, repacked, cycles, only_blocks=True)
