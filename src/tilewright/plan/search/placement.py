"""Rule: where operands lie while they are used: pipeline stages, resident for a task, a halo tile, registers.

An operand is copied in the loops over its dimensions. If an MMA inside further loops uses it, it is resident.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, gcd, prod

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op
from tilewright.plan.computed import equal_neighbours
from tilewright.plan.search.cost import line_factor, row_cycles
from tilewright.plan.search.halo import HaloWindow, halo_window
from tilewright.plan.search.orientation import Orientation, reads_one_element_per_step
from tilewright.plan.search.tiles import BOX, GRID
from tilewright.plan.search.tiling import Loops, Tiling
from tilewright.plan.search.uniform_loops import loops_around
from tilewright.plan.search.unit import MmaTile


@dataclass(frozen=True)
class HaloTile:
    """A halo tile (input patch) of operand A: its window, its bytes (aligned for shared memory), and the filter taps.

    `box` is the rectangle of output positions (extent by dimension). `tap` are the bytes of operand B for one filter
    tap and one slab of channels, `taps` the filter extents, `chunks` the number of slabs of channels (rows of shared
    memory), `b_read` the node number of B.
    """

    window: HaloWindow
    box: dict[str, int]
    bytes: int
    tap: int
    taps: tuple[int, ...]
    chunks: int
    b_read: int


@dataclass
class OperandPlacement:
    """The shared memory that operands take, and the bytes that are copied for them.

    Five dicts map a loop nest to a number for one iteration: `copied` (bytes), `l2` (L2 cycles for these bytes),
    `words` (loads, if lanes copy), `stages` (bytes of shared memory per stage) and `slabs` (rows of shared memory along
    K per stage). `resident` are the bytes that a task loads once, `l2_read` the L2 cycles of a task. `between` are the
    bytes of values that change their layout between MMAs. `keepable` are the MMAs whose A may stay in registers
    instead.
    """

    copied: dict[Loops, float] = field(default_factory=lambda: defaultdict(float))
    l2: dict[Loops, float] = field(default_factory=lambda: defaultdict(float))
    slabs: dict[Loops, int] = field(default_factory=lambda: defaultdict(int))
    stages: dict[Loops, float] = field(default_factory=lambda: defaultdict(float))
    l2_read: float = 0.0
    resident: float = 0.0
    words: dict[Loops, float] = field(default_factory=lambda: defaultdict(float))
    keepable: tuple[MmaTile, ...] = ()
    halo: HaloTile | None = None
    between: float = 0.0

    @property
    def staged(self) -> float:
        """The bytes of shared memory per pipeline stage of this kernel: the sum over all loop nests."""
        return sum(self.stages.values())


def place_operands(t: Tiling, mmas: tuple[MmaTile, ...], phases: dict[int, Loops]) -> OperandPlacement | None:
    """Return an OperandPlacement: the shared memory that the operands of all MMAs take, and the bytes copied for them.

    A read counts if it is an operand, or if an operand is computed from reads alone and the read has K and the
    operand's M or N. MMAs in one K loop share the copy of a read. Values between MMAs that change their layout are
    counted separately, in `between`. None if a grid tile is a box (rectangle) of positions that a sliding window reads,
    and the kernel has no halo tile for it. `t` (a Tiling) has the tile sizes, `mmas` are the MMA tiles; `phases` maps
    each MMA (node number) to the loops around it.
    """
    placement, counted = OperandPlacement(), set[tuple[object, ...]]()
    halo = _halo_tile(t, mmas)
    if halo is None and _needs_halo(t):
        return None
    for m in mmas:
        p = m.oriented
        for operand, side, is_a in ((p.a, p.rows, True), (p.b, p.columns, False)):
            for read in operand.reads:  # MMAs of one K loop share slabs of a read, others do not
                n = t.facts.nodes[read]
                made_of = n.dims & side and n.dims & p.product.k and not operand.products
                slab = (read, is_a, m.rows if is_a else m.columns, m.atom.slab, _joint_loops(t.o, m.node))
                if slab in counted:
                    continue
                if operand.is_read or made_of:
                    _count_read(t, placement, m, read, is_a, phases, halo)
                if slab[-1] is not None:
                    counted.add(slab)
    placement.halo = halo
    for x, _ in t.o.through_shared:
        value = t.facts.nodes[x.value]
        placement.between += t.span(value.dims) * value.bytes
    placement.between += _reduced_bytes(t)
    return placement


def _reduced_bytes(t: Tiling) -> float:
    """Return the bytes of shared memory per workgroup for values that are reduced beside the MMAs.

    An example is the squares of elements whose sum the epilogue uses. A value counts if it is computed, depends on no
    MMA, and no MMA depends on its reduction. It counts with the elements of a workgroup's tile, with all of the reduced
    dimensions (one iteration's elements if the program loops over them). `t` (a Tiling) has the tile sizes.
    """
    facts, reduced = t.facts, 0.0
    for n in facts.reductions_beside_mmas:
        value = facts.nodes[n.args[0]]
        if value.op != "read":
            spans = (t.size[d] if d in facts.loops else facts.extents[d] for d in n.reduces)
            reduced += t.span(value.dims - n.reduces) * prod(spans) * value.bytes
    return reduced


@lru_cache
def _joint_loops(o: Orientation, node: int) -> tuple[Op, ...] | None:
    """Return the author's loops around the MMA with node number `node`, outermost first; None if it shares no copies.

    MMAs with equal results share the copies of operands that they have in common. Loops that only add to accumulators
    are left out, so that the result may be (). It is None if an MMA in the same loops has a computed operand, or if
    lanes, not bulk copies, load operands. `o` (an Orientation) has the program's MMAs. The result is cached.
    """
    facts = o.facts
    around = loops_around(facts.program)
    loops: dict[int, tuple[Op, ...]] = {}
    for p in facts.products:
        source = facts.nodes[p.node].source
        if source is not None:
            loops[p.node] = tuple(op for op in around.get(source, ()) if str(op.attrs["axis"]) in facts.loops)
    same_loop = [p for p in facts.products if loops.get(p.node) == loops.get(node)]
    is_joint = node in loops and not o.by_threads and all(p.a.is_read and p.b.is_read for p in same_loop)
    return loops[node] if is_joint else None


def _count_read(
    t: Tiling,
    placement: OperandPlacement,
    m: MmaTile,
    read: int,
    is_a: bool,
    phases: dict[int, Loops],
    halo: HaloTile | None,
) -> None:
    """Add the costs of one read of the MMA `m` to `placement`: bytes of shared memory, copied bytes and L2 cycles.

    `read` is the node number of the read; the MMA's operand (A, if `is_a`) is the read, or is computed from it. If A
    may stay in registers instead, `m` is appended to `placement.keepable`. Nothing is added if a K step needs one
    element per row of the read, because lanes then load it themselves. `t` is the Tiling, `phases` maps each MMA to the
    loops around it, `halo` is the halo tile (input patch) of A, or None.
    """
    facts, machine, p = t.facts, t.machine, m.oriented
    n = facts.nodes[read]
    access, limits = n.place, machine.limits
    loops, along = t.loops_over(n.dims), access.rows_run_along(p.product.k)
    rows = m.rows if is_a else m.columns * t.batch
    held = is_a and p.a_in_registers
    k = t.span(n.dims & p.product.k)
    if t.batch > 1 and access.contiguous in p.product.k:  # several GEMMs of a batch share a row
        k = min(k, facts.extents[access.contiguous]) * t.batch
    slab = m.atom.slab or 1
    deep = k if held else ceil(k / slab) * slab
    distinct_share = 1 / _equal_neighbours(t, m, read, slab)
    if distinct_share * slab <= 1 or (held and reads_one_element_per_step(facts, p, access, slab)):
        return  # one element per row and K step: the row's lanes load it
    count = float(rows * deep * access.bytes) * distinct_share
    inner = t.o.inner_k[m.node]
    extent = facts.extents.get(inner or "", 1) * t.batch
    in_blocks = t.batch > 1 and not is_a  # B is repacked to aligned rows before the kernel
    pitch = 0 if t.o.by_threads or in_blocks else access.pitch
    trips = t.trips(loops)
    shared = limits.overlapping if access.rows_overlap and not t.o.by_threads else 1.0
    if halo is not None and read == halo.window.read:
        lines = halo.window.row_count(halo.box)
        placement.copied[loops] += halo.bytes * halo.chunks / trips
        of_row = shared * row_cycles(machine, extent, slab, access.bytes, access.pitch)
        placement.l2[loops] += lines * of_row / trips
        placement.l2_read += lines * of_row
        return
    if not along and pitch:  # rows of memory run along M or N; a K step reads `k` of them
        row = min(rows, slab) * access.bytes
        misaligned = limits.misaligned_row if pitch % limits.sector_bytes else 1.0
        cycles = shared * trips * count / limits.l2_rate * line_factor(machine, row, pitch) * misaligned
    elif inner is not None and t.loops_over(frozenset({inner}) & n.dims):
        element = m.row_bytes // slab
        rows_of_k = trips / ceil(extent / min(extent, slab)) * access.bytes * distinct_share / element
        cycles = shared * rows * rows_of_k * row_cycles(machine, extent, slab, element, pitch)
    else:
        cycles = trips * count / limits.l2_rate
    placement.l2_read += cycles
    users = [phases[q.node] for q in facts.products if read in (*q.a.reads, *q.b.reads)]
    if not t.looped or (loops and loops == max(users, key=len)):
        placement.stages[loops] += count / t.steps_between(n.dims & p.product.k, slab)
        placement.l2[loops] += cycles / trips
        placement.copied[loops] += count
        placement.words[loops] += count / (
            gcd(machine.lane_access.vector_bytes, access.pitch) if access.pitch else access.bytes
        )
        placement.slabs[loops] += max(1, int(count // (rows * m.row_bytes)))
    else:
        placement.resident += count
        placement.copied[loops] += count if loops else 0.0
        if is_a and along and not held and m.oriented.kept_atoms and phases[m.node]:
            placement.keepable = (*placement.keepable, m)


def _needs_halo(t: Tiling) -> bool:
    """True if a workgroup computes a box (rectangle) of output positions that a sliding window reads.

    The inputs of neighbouring positions then overlap, and the kernel needs a halo tile: the input patch of the box,
    loaded once for all filter taps. `t` (a Tiling) has the tile sizes.
    """
    return any(tile.fold == BOX and halo_window(t.o, c) is not None for c, tile in t.pairs() if tile.level == GRID)


def _halo_tile(t: Tiling, mmas: tuple[MmaTile, ...]) -> HaloTile | None:
    """Return the HaloTile (input patch) of operand A, if a workgroup computes a box of output positions.

    A box is a rectangle over several dimensions. None if no grid tile is a box that a sliding window reads. `t` is the
    Tiling, `mmas` are the tiles of the MMAs.
    """
    for c, tile in t.pairs():
        window = halo_window(t.o, c) if tile.level == GRID and tile.fold == BOX and len(tile.box) > 1 else None
        if window is None:
            continue
        m = next(m for m in mmas if window.read in m.oriented.a.reads)
        unit = t.machine.spaces["shared"].alignment
        box, k = dict(tile.box), m.oriented.product.k
        size = ceil(window.row_count(box) * m.row_bytes / unit) * unit
        channels = window.access.contiguous
        steps = next(class_ for class_ in t.o.classes if channels in class_.dims)
        taps = tuple(t.facts.extents[d] for d in steps.dims if d in k and d != channels)
        chunks = ceil(t.facts.extents[channels or ""] * t.batch / (m.atom.slab or 1))
        tap = m.columns * t.batch * m.row_bytes
        return HaloTile(window, box, size, tap, taps or (1,), chunks, m.oriented.b.reads[0])
    return None


def halo_taps(halo: HaloTile) -> int:
    """Return the number of filter taps that read a halo tile (input patch): the product of the filter's extents."""
    return prod(halo.taps)


def _equal_neighbours(t: Tiling, m: MmaTile, read: int, slab: int) -> int:
    """Return how many neighbours along K, in a K step of `slab` elements, read the same element of memory.

    The read `scale[k // 32]` gives 32. The result is 1 if each neighbour reads another element, if the address is
    linear, or if it does not depend on the K dimension of the steps. `read` is the node number of a read for the MMA
    `m`. `t` is the Tiling.
    """
    n = t.facts.nodes[read]
    inner = t.o.inner_k[m.node]
    if n.place.linear or n.source is None or inner is None:
        return 1
    index_of = {str(d): over for d, over in zip(n.source.results[0].type.dims, n.source.attrs["over"], strict=True)}
    return _cached_equal_neighbours(tuple(n.source.attrs["at"]), index_of[inner], slab) if inner in index_of else 1


@lru_cache
def _cached_equal_neighbours(at: tuple[Expr, ...], k: Expr, slab: int) -> int:
    """Return how many neighbours along `k`, within `slab` elements, read the same element of memory; cached.

    `at` are the memory coordinates of the read: (m, k // 32) gives 32.
    """
    return equal_neighbours(at, k, slab)
