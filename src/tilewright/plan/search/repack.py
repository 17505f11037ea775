"""Rule: copy operands to another layout before the kernel, so that bulk copies can load them, or load them faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd, inf, prod

from tilewright.machine import Machine
from tilewright.plan.accumulator_type import accumulator_type
from tilewright.plan.facts import AccessFacts, Facts, ProductFacts, ValueFacts
from tilewright.plan.microkernel import precision_of, shared_atoms
from tilewright.plan.schedule import ALIGNED, K_ROWS, PADDED, PANELS
from tilewright.plan.search.diagonal import padded_blocks
from tilewright.plan.search.lowered import LACKING, why_not_beside
from tilewright.plan.search.orientation import bulk_pitch, why_not_bulk
from tilewright.plan.search.paired_rows import paired_rows
from tilewright.plan.search.ranking import Ranking, Rewrite
from tilewright.plan.search.row_copies import Repacked, RowCopy, copy_cycles, row_copy_of, strides, with_accesses

ROWS = ALIGNED
"""The name of a layout whose row strides bulk copies can read."""
SLACK = 8
"""Rows are padded to a whole row of shared memory if they grow by at most 1/SLACK of their length."""
MOST_COPIED = 2
"""The most bytes that im2col copies may move per byte that the program moves."""


def repackings(facts: Facts, machine: Machine, ranking: Ranking) -> Iterator[Repacked]:
    """Yield a Repacked (rewritten program, cycles of the copies) for each layout of operands to try.

    The new layout suits asynchronous bulk copies, or is read faster. Constant operands are repacked once, when they are
    bound, and cost nothing. `ranking` (the search's result) gets the reason for each layout that does not apply. Yields
    nothing in these cases: the analysed program `facts` is half of a split program; the machine has no bulk copies; or
    the program has no MMA, or several (which is noted in `ranking`).
    """
    if facts.part or not bulk_pitch(machine):
        return
    if why := why_not_beside(facts, "copied operands"):
        ranking.reject("repacked operands", f"{LACKING}: {why}")
        return
    for p in facts.products:
        for x in _repackings_of(facts, p, machine, ranking):
            yield replace(x, facts=replace(x.facts, is_repacked=x.cycles > 0))


def _repackings_of(facts: Facts, p: ProductFacts, machine: Machine, ranking: Ranking) -> Iterator[Repacked]:
    """Yield a Repacked for each layout to try for the operands of the MMA `p`, as `repackings` does.

    Yields nothing if an operand is computed, block-diagonal already or has no linear address.
    """
    source = facts.nodes[p.node].source
    is_repacked = source is not None and source.attrs.get("blocks", 1) > 1
    if not (p.a.is_read and p.b.is_read) or is_repacked:
        return
    reads = [facts.nodes[x.reads[0]] for x in (p.a, p.b)]
    if not all(n.place.linear and n.place.dims for n in reads):
        return
    bulk_cannot_load = any(
        why_not_bulk(n.place, p.k | side, machine) for n, side in zip(reads, (p.m, p.n), strict=True)
    )
    is_misaligned = any(n.place.pitch % machine.limits.sector_bytes for n in reads)
    yield from padded_blocks(facts, p, reads, machine)
    yield from paired_rows(facts, p, reads, machine)
    layouts: list[tuple[str, tuple[Facts, list[RowCopy]] | str]] = []
    yield from _k_row_copies(facts, p, reads, machine, ranking)
    if bulk_cannot_load:
        layouts = [(ROWS, _merge_tap(facts, p, reads, machine) or _pad_rows(facts, reads, machine))]
        layouts.append((PANELS, _im2col(facts, p, reads, machine)))
    elif is_misaligned:
        layouts = [(PADDED, _pad_k(facts, p, reads, machine))]
    for form, outcome in layouts:
        if isinstance(outcome, str):
            ranking.reject(f"operands in {form}", outcome)
            continue
        repacked, copies = outcome
        rewrite = Rewrite(f"operands in {form}", forms=tuple((c.memory, form) for c in copies))
        often = [c for c in copies if c.memory not in facts.constant]
        yield Repacked(rewrite, repacked, copy_cycles(machine, often))


def _k_row_copies(
    facts: Facts,
    p: ProductFacts,
    reads: list[ValueFacts],
    machine: Machine,
    ranking: Ranking,
) -> Iterator[Repacked]:
    """Yield at most one Repacked: operands are copied to a layout with a dimension of K as the innermost dimension.

    Operands are copied in two cases: an operand's rows in memory run along a K dimension shorter than a slab (row of
    shared memory); or an operand is not contiguous along K, and atoms are faster for operands that are. `p` is the MMA
    of the program `facts`, `reads` are its A and B. Constant operands are copied once, at no cost. If the layout is
    impossible, the reason is noted in `ranking` (the search's result).
    """
    slab = max((x.slab or 0 for x in machine.multiply.values() if x.a.dtype == reads[0].dtype), default=0)
    has_short_rows = any(_has_short_rows(facts, p, n.place, slab) for n in reads)
    if facts.on_k_rows is None or not (has_short_rows or _is_faster_on_k_rows(facts, p, reads, machine)):
        return
    what, repacked = f"operands in {K_ROWS}", facts.on_k_rows()
    if isinstance(repacked, str):
        ranking.reject(what, repacked)
        return
    product = next(q for q in repacked.products if q.name == p.name)
    copies = []
    for before, x in zip(reads, (product.a, product.b), strict=True):
        place = repacked.nodes[x.reads[0]].place
        if place.memory != before.place.memory:
            word = gcd(machine.lane_access.vector_bytes // place.bytes, place.shape[-1])
            copies.append(RowCopy(before.place.memory, prod(before.place.shape), place.elements, place.bytes, word))
    rewrite = Rewrite(what, forms=tuple((c.memory, K_ROWS) for c in copies))
    yield Repacked(rewrite, repacked, copy_cycles(machine, [c for c in copies if c.memory not in facts.constant]))


def _is_faster_on_k_rows(facts: Facts, p: ProductFacts, reads: list[ValueFacts], machine: Machine) -> bool:
    """True if some atom for operands that are contiguous along K is faster than all atoms for their present layout.

    `p` is the MMA of the program `facts`, `reads` are its A and B. Atoms are compared by cycles per multiply-add.
    """
    source = facts.nodes[p.node].source
    assert source is not None
    types = (reads[0].dtype, reads[1].dtype, accumulator_type(source, machine))
    as_they_lie = (reads[0].place.rows_run_along(p.k), reads[1].place.rows_run_along(p.k))
    on_k_rows, now = (
        min(
            (x.cycles / prod(x.shape) for x in shared_atoms(machine, types, along_k, precision_of(source))), default=inf
        )
        for along_k in ((True, True), as_they_lie)
    )
    return on_k_rows < now


def _has_short_rows(facts: Facts, p: ProductFacts, place: AccessFacts, slab: int) -> bool:
    """True if the MMA `p` has several K dimensions, and one shorter than a slab lies along an operand's rows in memory.

    `place` is the access of operand A or B; a slab is a row of shared memory, of `slab` elements. A row in memory that
    a sliding window reads runs along several dimensions. `facts` is the analysed program.
    """
    return len(p.k) > 1 and any(d in p.k and facts.extents[d] < slab for d, _ in place.row)


def padded_length(machine: Machine, extent: int, element_bytes: int, shared_row: int) -> int:
    """Return the number of elements to which a row of `extent` elements is padded, so that bulk copies read it fast.

    The row's bytes become a multiple of `shared_row`, the bytes of the widest row of shared memory that atoms read. If
    the row would grow by more than 1/8 (SLACK), they become a multiple of the machine's memory sector instead. In both
    cases the unit is at least the row alignment of bulk copies. `element_bytes` is the number of bytes per element.
    """
    pitch = bulk_pitch(machine)
    sectors, lines = (
        _round_up(extent, max(pitch, n), element_bytes) for n in (machine.limits.sector_bytes, shared_row)
    )
    return lines if SLACK * (lines - extent) <= extent else sectors


def _round_up(extent: int, unit_bytes: int, element_bytes: int) -> int:
    """Return `extent` rounded up to the next number of elements with a multiple of `unit_bytes` bytes.

    `element_bytes` is the number of bytes per element: 10 elements of 2 bytes, in units of 16 bytes, give 16.
    """
    while extent * element_bytes % unit_bytes:
        extent += 1
    return extent


def _widest_shared_row_bytes(machine: Machine) -> int:
    """Return the number of bytes of a row of shared memory as atoms read it: the maximum over the machine's atoms."""
    return max((x.slab or 0) * x.a.dtype.bits // 8 for x in machine.multiply.values())


def _pad_k(
    facts: Facts, p: ProductFacts, reads: list[ValueFacts], machine: Machine
) -> tuple[Facts, list[RowCopy]] | str:
    """Zero-pad K of both operands; return (Facts of the new program, RowCopies of A and B), or text: why not.

    `facts` is the analysed program; the new Facts describe it with the longer K. A RowCopy has the size of a copy. `p`
    is the MMA, `reads` are its A and B. K cannot be padded if no dimension of K is a whole row of memory in both
    operands, or if a value other than the reads and the MMA has that dimension.
    """
    k = next((d for d in p.k if all(_is_whole_row(n.place, d, facts) for n in reads)), None)
    if k is None:
        return "no dimension of K is a whole row of both operands"
    if any(k in n.space for n in facts.nodes if n.op not in ("read", "mma")):
        return f"more than the product goes over {k}"
    wide = padded_length(machine, facts.extents[k], reads[0].place.bytes, _widest_shared_row_bytes(machine))
    accesses, copies = {}, []
    for n in reads:
        shape = (*n.place.shape[:-1], wide)
        copies.append(row_copy_of(n, shape, machine))
        accesses[n.id] = replace(n.place, memory=f"{n.place.memory}_rows", shape=shape, strides=strides(shape))
    nodes = with_accesses(facts, accesses)
    return replace(facts, nodes=nodes, extents={**facts.extents, k: wide}), copies


def _is_whole_row(place: AccessFacts, k: str, facts: Facts) -> bool:
    """True if each row of an operand in memory is exactly the dimension `k`, from its first to its last element.

    `place` is the access of the operand; a row is the innermost memory coordinate. `facts` is the analysed program.
    """
    return place.row == ((k, 1),) and place.shape[-1] == facts.extents[k]


def _pad_rows(facts: Facts, reads: list[ValueFacts], machine: Machine) -> tuple[Facts, list[RowCopy]] | str:
    """Pad rows of operands in memory, so that bulk copies can read them; return (Facts of the new program, RowCopies).

    An operand is padded, and has a RowCopy (the size of a copy), if bulk copies cannot read its row stride. If bulk
    copies can read the row strides of both operands, text that says so is returned instead. `facts` is the analysed
    program; the new Facts describe it on the padded operands. `reads` are A and B of the MMA.
    """
    accesses, copies = {}, []
    for n in reads:
        place = n.place
        if place.pitch % bulk_pitch(machine) == 0:
            continue
        packed = (
            *place.shape[:-1],
            padded_length(machine, place.shape[-1], place.bytes, _widest_shared_row_bytes(machine)),
        )
        copies.append(row_copy_of(n, packed, machine))
        accesses[n.id] = replace(place, memory=f"{place.memory}_rows", strides=strides(packed))
    if not copies:
        return f"rows of both operands lie a multiple of {bulk_pitch(machine)} bytes apart as they are"
    return replace(facts, nodes=with_accesses(facts, accesses)), copies


# -- filter taps and channels as one K dimension ------------------------------------------------------------


def _merge_tap(
    facts: Facts, p: ProductFacts, reads: list[ValueFacts], machine: Machine
) -> tuple[Facts, list[RowCopy]] | None:
    """Merge a filter dimension and the channels into one K dimension; return (Facts of that program, RowCopies).

    Elements along the merged dimension are contiguous in memory: all channels of the first filter tap, then all of the
    second. Channels are padded until bulk copies can read the row strides. `facts` is an analysed convolution, `p` its
    MMA, `reads` are its A and B; a RowCopy has the size of a copy. None if no filter dimension is next to the channels
    in both operands, or if a loop that carries more than sums is over one of the two.
    """
    pitch, dims = bulk_pitch(machine), p.k - facts.loops.keys()
    for tap in (d for d in dims if all(len(n.place.coords) > 1 for n in reads)):
        channel = next((d for d in dims if d != tap and all(n.place.row == ((d, 1),) for n in reads)), None)
        if channel is None and all(n.place.row == () for n in reads):
            channel = tap  # one channel: the run is that of the taps
        lines = [dict(n.place.coords[-2]) for n in reads]
        if channel is None or any(line.get(tap) != 1 or len(line) > 2 for line in lines):
            continue
        steps = [next((c for d, c in line.items() if d != tap), 0) for line in lines]
        channels = 1 if channel == tap else facts.extents[channel]
        if any(n.place.shape[-1] != channels for n in reads) or any(step < 0 for step in steps):
            continue
        while any(step and step * channels * reads[0].place.bytes % pitch for step in steps):
            channels += 1
        return _with_merged_k(facts, reads, tap, channel, channels, machine)
    return None


def _with_merged_k(
    facts: Facts, reads: list[ValueFacts], tap: str, channel: str, channels: int, machine: Machine
) -> tuple[Facts, list[RowCopy]]:
    """Return (Facts of the program with the K dimensions `tap` and `channel` as one, RowCopies of both operands).

    The merged dimension has `channels` elements for each index of `tap` (a filter dimension) and keeps the name of
    `channel`: 3 taps of 8 channels -> 24 elements. `facts` is the analysed program before the merge. `reads` are A and
    B of the MMA, both of which are copied; a RowCopy has the size of a copy.
    """
    length, pitch = facts.extents[tap] * channels, bulk_pitch(machine)
    accesses, copies = {}, []
    for n in reads:
        place = n.place
        position = [(d, c) for d, c in place.coords[-2] if d != tap]
        reach = facts.extents[tap] + sum(c * (facts.extents[d] - 1) for d, c in position)
        packed = [*place.shape[:-1], channels]
        if place.can_leave or reach > packed[-2] or packed[-2] * channels * place.bytes % pitch:
            packed[-2] = reach
        while packed[-2] * channels * place.bytes % pitch:
            packed[-2] += 1
        steps = strides(tuple(packed))
        outer = place.coords[:-2]
        seen = tuple((d, 1) for d, _ in position)
        coords = (*outer, *((seen,) if seen else ()), ((channel, 1),))
        rows = [(facts.extents[d], c * steps[-2]) for d, c in position]
        shape = (*packed[:-2], *(extent for extent, _ in rows), length)
        view_strides = (*steps[:-2], *(step for _, step in rows), 1)
        copies.append(row_copy_of(n, tuple(packed), machine))
        accesses[n.id] = AccessFacts(f"{place.memory}_rows", place.bytes, coords, shape, view_strides, place.can_leave)
    merged_dims = {tap} - {channel}
    nodes = tuple(
        replace(n, dims=n.dims - merged_dims, reduces=n.reduces - merged_dims) for n in with_accesses(facts, accesses)
    )
    extents = {d: extent for d, extent in facts.extents.items() if d not in merged_dims} | {channel: length}
    order = tuple(d for d in facts.order if str(d) not in merged_dims)
    return replace(facts, nodes=nodes, extents=extents, order=order), copies


# -- im2col -----------------------------------------------------------------------------------------------------


def _im2col(
    facts: Facts, p: ProductFacts, reads: list[ValueFacts], machine: Machine
) -> tuple[Facts, list[RowCopy]] | str:
    """Copy operands as im2col does: each row of a copy has all of K; return (Facts of the new program, RowCopies).

    `facts` is the analysed program, `p` its MMA, `reads` are A and B; a RowCopy has the size of a copy. Return text
    (why not) if K has one dimension only, if a loop that carries more than sums is over a dimension of K, or if the
    copies move more than MOST_COPIED (2) times the bytes that the program moves.
    """
    k_dims = [d for d in map(str, facts.order) if d in p.k]
    if len(k_dims) < 2:
        return "K is one dimension"
    if looped := sorted(p.k & facts.loops.keys()):
        return f"the loop over {', '.join(looped)} carries more than sums"
    run, length = k_dims[-1], facts.size(p.k)
    accesses, copies = {}, []
    for n in reads:
        rows = [d for d in n.dims if d not in p.k]
        owners = [o for o in facts.order if set(facts.digit_names(o)) & set(rows)]
        forms, shape = [], []
        for owner in owners:
            digits = [d for d in facts.digit_names(owner) if d in rows]
            forms.append(tuple((d, facts.size(digits[i + 1 :])) for i, d in enumerate(digits)))
            shape.append(facts.size(digits))
        wide = _round_up(length, bulk_pitch(machine), n.place.bytes)
        packed = (*shape, wide)
        copies.append(replace(row_copy_of(n, packed, machine), word=1))
        coords = (*forms, ((run, 1),))
        accesses[n.id] = AccessFacts(
            f"{n.place.memory}_rows", n.place.bytes, coords, (*shape, length), strides(packed), n.place.can_leave
        )
    copied = sum((c.source_elements + c.elements) * c.bytes for c in copies)
    if copied > MOST_COPIED * facts.moved_bytes:
        return f"the copies move {copied / facts.moved_bytes:.1f} times what the program moves"
    merged_dims = p.k - {run}
    nodes = tuple(
        replace(n, dims=n.dims - merged_dims, reduces=n.reduces - merged_dims) for n in with_accesses(facts, accesses)
    )
    extents = {d: extent for d, extent in facts.extents.items() if d not in merged_dims} | {run: length}
    order = tuple(d for d in facts.order if str(d) not in merged_dims)
    return replace(facts, nodes=nodes, extents=extents, order=order), copies
