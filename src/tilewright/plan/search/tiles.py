"""Rule: the tile of every class of dimensions: a tile of the grid, of a loop, of a cluster, or the whole class.

A class is a set of dimensions with the same role (M, N, K or batch) in every MMA; it is one axis of the schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from itertools import product as combinations
from math import ceil, prod

from tilewright.plan.facts import AccessFacts, Facts
from tilewright.plan.search.axes import COLUMNS, DEPTH, ROWS, DimClass
from tilewright.plan.search.halo import HaloWindow, halo_window
from tilewright.plan.search.orientation import Orientation, OrientedProduct

GRID, CLUSTER, LOOP, WHOLE = "grid", "cluster", "loop", "whole"
"""Levels of a tile: a class is split over workgroups of the grid, over workgroups of a cluster (which exchange values),
over loop iterations, or not at all."""
RUN, BOX, INNER_RUN = "run", "box", "inner run"
"""Shapes of a tile: a run of contiguous indices of the flattened class; a box (rectangle) of its dimensions; or a run
within its innermost program dimension, with one element of the dimensions before."""
ATOMS = (1, 2, 3, 4)
"""The numbers of atoms along the atom's rows that a wave group may have."""
GROUPS = ((1, 1), (2, 1), (3, 1), (1, 2), (1, 3))
"""Choices of (wave groups along the rows of a workgroup's tile, wave groups along its columns)."""
WIDEST_WHOLE, DEEPEST_WHOLE = 768, 512
"""The most columns of a workgroup's tile if the grid cannot split them, and the longest K in one step."""
COLUMN_BLOCKS = (64, 128, 256)
"""Columns per iteration of a kernel with several MMAs that loops over N although the grid could split it."""
CLUSTERS = (2, 4, 8)
"""The numbers of workgroups of a cluster that may share an axis."""


@dataclass(frozen=True)
class AxisTile:
    """A tile of a class of dimensions: dimensions with the same role (such as M or K) in every MMA.

    `level` says what splits the class: GRID, CLUSTER, LOOP or nothing (WHOLE). The tile has `size` elements; `box` is
    its extent by dimension. `fold` is its shape: a RUN (contiguous flat indices), a BOX (rectangle), or an INNER_RUN
    (within the innermost program dimension). `count` tiles cover the class; for a LOOP, `tasks` workgroups share the
    class, and each iterates over `count` tiles.
    """

    level: str
    size: int
    box: tuple[tuple[str, int], ...]
    fold: str = RUN
    count: int = 1
    tasks: int = 1


def tilings(o: Orientation) -> Iterator[tuple[tuple[AxisTile, ...], tuple[int, int]]]:
    """Yield every choice of tiles to try: (an AxisTile per class of dimensions, (wave groups along rows, columns)).

    An AxisTile is the tile of a class of dimensions (same role, such as M or K, in every MMA). Tiles meet the author's
    constraints. `o` (an Orientation) has the classes and says which of M and N lies on the atom's rows.

    Several wave groups (such as warpgroups) along columns need three things: some tile has all of N, in a workgroup or
    a cluster; each group has one atom of rows; and no A is in registers. Tiles with more rows than a bulk copy takes
    are left out. So are tiles with more rows than one atom, if no dimension lies on the rows.
    """
    unit = o.products[0].atoms[0].shape[0]
    a_in_registers = any(p.a_in_registers for p in o.products)
    has_rows = any(ROWS in c.roles for c in o.classes)
    legal: dict[tuple[int, int], list[AxisTile]] = {}

    def legal_tiles(n: int, c: DimClass, rows: int) -> list[AxisTile]:
        """Return the legal AxisTiles of the class `c` of dimensions, which has the index `n` among all classes.

        `rows` is the number of elements of a workgroup's tile along the atom's rows; tiles of other classes do not
        depend on it. Results are cached.
        """
        key = n, rows if ROWS in c.roles else 0
        if key not in legal:
            legal[key] = _legal_tiles(o, c, rows, _atom_widths(o, c))
        return legal[key]

    for (down, across), atoms in combinations(GROUPS, ATOMS):
        rows = unit * down * atoms
        if (
            rows > o.machine.bulk_copy.box_extent
            or (across > 1 and (atoms > 1 or a_in_registers))
            or (rows > unit and not has_rows)
        ):
            continue  # a fragment of A would be each group's in part
        for tiles in combinations(*(legal_tiles(n, c, rows) for n, c in enumerate(o.classes))):
            if across == 1 or any(
                t.level in (WHOLE, CLUSTER) and COLUMNS in c.roles for t, c in zip(tiles, o.classes, strict=True)
            ):
                yield tiles, (down, across)


def _atom_widths(o: Orientation, c: DimClass) -> tuple[int, ...]:
    """Return the N extents of atoms, ascending, that all MMAs with `c` as N have in common; () if no MMA has `c` as N.

    `c` is a class of dimensions (same role in every MMA). `o` (an Orientation) says which of M and N lies on the atom's
    rows.
    """
    atoms = [p.atoms for p, role in zip(o.products, c.roles, strict=True) if role == COLUMNS]
    widths = [{atom.shape[1] for atom in each} for each in atoms]
    return tuple(sorted(set.intersection(*widths))) if widths else ()


def _legal_tiles(o: Orientation, c: DimClass, rows: int, columns: tuple[int, ...]) -> list[AxisTile]:
    """Return the AxisTiles of the class `c` of dimensions that are legal and meet the author's constraints.

    Dimensions of `c` have the same role (such as M or K) in every MMA. Constraints are not checked for a class that is
    M, N or K of no MMA. A grid tile that extends past the end of `c` is legal only if writes drop the elements past the
    end. `rows` is the tile size to try along the atom's rows, `columns` are those along its columns (the extents of
    atoms). `o` (an Orientation) says which of M and N lies on the atom's rows.
    """
    proposed = [tile for tile in _proposed_tiles(o, c, rows, columns) if c.is_batch or _is_as_stated(o.facts, tile)]
    return [tile for tile in proposed if tile.level != GRID or _overhang_is_dropped(o.facts, tile)]


def _is_as_stated(facts: Facts, tile: AxisTile) -> bool:
    """True if `tile` agrees with the author's constraints on the number of elements per workgroup.

    A grid tile must have exactly the stated number along each constrained dimension; other tiles always agree. `facts`
    is the analysed program with the constraints.
    """
    for owner, stated in facts.stated_tasks.items():
        digits = facts.digits.get(owner, (owner,))
        elements = prod(n for d, n in tile.box if d in digits)
        if len(digits) == 1 or all(d in digits for d, _ in tile.box):
            elements = max(elements, tile.size)  # padded
        if tile.level == GRID and any(d in digits for d, _ in tile.box) and elements != stated:
            return False
    return True


def _overhang_is_dropped(facts: Facts, tile: AxisTile) -> bool:
    """True if tiles fit the extents of their dimensions exactly, or if writes drop the elements past the end.

    `tile` is a grid tile of the analysed program `facts`.
    """
    past = [d for d, n in tile.box if facts.extents[d] % n]
    if tile.fold == RUN:
        past = [tile.box[0][0]] if prod(facts.extents[d] for d, _ in tile.box) % tile.size else []
    elif tile.fold == INNER_RUN:
        inner = inner_digits(facts, tuple(d for d, _ in tile.box))
        past = [inner[0]] if facts.size(inner) % tile.size else []
    return all(can_pad(facts, d) for d in past)


def can_pad(facts: Facts, dim: str) -> bool:
    """True if a tile may extend past the end of `dim`, because every write of `facts` drops the elements there."""
    return all(_end_is_out_of_bounds(w.place, dim, facts.extents[dim]) for w in facts.writes)


def _end_is_out_of_bounds(access: AccessFacts, dim: str, extent: int) -> bool:
    """True if the index `extent` along `dim` is out of bounds in memory, so that the write `access` drops it."""
    return any(
        dict(form).get(dim, 0) * extent >= shape for form, shape in zip(access.coords, access.shape, strict=False)
    )


def _proposed_tiles(o: Orientation, c: DimClass, rows: int, columns: tuple[int, ...]) -> list[AxisTile]:
    """Return a list of AxisTiles (tile sizes) to try for the class `c` of dimensions.

    Dimensions of `c` have the same role (batch, M, N or K) in every MMA. `o` says which of M and N lies on the atom's
    rows. `rows` is the tile size to try along the atom's rows, `columns` are those along its columns. K is tried in
    steps. Two further tiles are tried if MMAs have different roles for `c`, so that one may run in the loops of
    another: blocks of N within a workgroup's tile, and the whole of a short K. The whole of a short K is also tried if
    the epilogue reads several accumulators, or if K cannot be processed in one pass.

    The author's constraints, and the overhang (how far the last tile may lie out of bounds), are checked later, by the
    caller.
    """
    roles, extents = set(c.roles), o.facts.extents
    is_mixed = len(roles) > 1
    whole = AxisTile(WHOLE, c.extent, tuple((d, extents[d]) for d in c.dims))
    if c.is_batch:
        single = AxisTile(GRID, 1, tuple((d, 1) for d in c.dims), RUN, c.extent)
        return [single, *_block_diagonal_tiles(o, c)] if c.is_parallel else [whole]
    if ROWS in roles:
        if c.is_parallel:
            return list(_tiles_of_size(o, c, rows, GRID))
        looped = list(_tiles_of_size(o, c, rows, LOOP)) if c.streams and c.extent > rows else []
        return [*looped, *([whole] if c.extent <= o.machine.bulk_copy.box_extent else [])]
    if COLUMNS in roles and c.is_parallel:
        wide = [n for n in columns if n < c.extent] + _covering_widths(o, c, columns)
        grid = [t for n in wide for t in _tiles_of_size(o, c, n, GRID)]
        blocks = [n for n in COLUMN_BLOCKS if is_mixed and COLUMN_BLOCKS[0] < c.extent and n < c.extent]
        return [*grid, *(t for n in blocks for t in _tiles_of_size(o, c, n, LOOP))]
    if COLUMNS in roles:
        return [*_tiles_of_unsplit_n(o, c, columns), *([whole] if c.extent <= WIDEST_WHOLE else [])]
    slab = _slab_elements(o, c)
    sizes = _k_step_sizes(o, c, slab) if c.streams else []
    steps = [step for size in sizes for step in _steps_of_k(o, c, size)]
    shallow = (
        c.extent <= DEEPEST_WHOLE and (is_mixed or len(o.facts.accumulators) > 1 or not c.streams) and len(c.dims) == 1
    )
    if shallow and c.extent <= slab:
        return [whole]
    return [*steps, *([whole] if shallow else [])]


def _covering_widths(o: Orientation, c: DimClass, columns: tuple[int, ...]) -> list[int]:
    """Return up to two of the atom extents `columns` that cover all of `c`, the dimensions of N; [] if none covers it.

    `columns` are the extents of atoms along N, ascending. The first result is the narrowest that covers `c`. The
    second, if it differs, is the narrowest that covers `c` and gives rows of the result that bulk copies store in equal
    pieces. `o` (an Orientation) has the program and the machine.
    """
    element = max(w.bytes for w in o.facts.writes)
    covering, store = [n for n in columns if n >= c.extent], o.machine.bulk_store
    even = [n for n in covering if store is None or len(store.row_pieces(n * element)) == 1]
    return list(dict.fromkeys([*covering[:1], *even[:1]]))


def _tiles_of_unsplit_n(o: Orientation, c: DimClass, columns: tuple[int, ...]) -> Iterator[AxisTile]:
    """Yield AxisTiles of an N that the grid cannot split: loop tiles, and equal shares for the workgroups of a cluster.

    The grid cannot split N if, for example, the program reduces the MMA's result along it. `c` are the dimensions of N,
    `columns` the extents of atoms along their columns; `o` (an Orientation) has the MMAs. Loop tiles have at least
    COLUMN_BLOCKS[0] (64) columns or the author's tile size, which is kept if it changes the result. If the program
    needs several passes over N, the MMA is computed again in each pass, and the tile's count is the number of
    iterations of all passes; only then clusters are tried. Yields nothing if the program scans along `c`.
    """
    facts = o.facts
    if set(c.dims) & facts.scanned:
        return
    loops = [loop for axis, loop in facts.loops.items() if axis in c.dims]
    authors, fixed = {loop.tile for loop in loops}, {loop.tile for loop in loops if loop.merge is None}
    passes = max(facts.passes[d] for d in c.dims)
    for n in columns:
        wide = n >= COLUMN_BLOCKS[0] or n in authors
        if wide and n < c.extent and n % _atom_k(o) == 0 and (not fixed or n in fixed):
            for tile in _tiles_of_size(o, c, n, LOOP):
                yield AxisTile(LOOP, tile.size, tile.box, tile.fold, tile.count * passes)
    for n in CLUSTERS:
        divides = c.extent % (COLUMN_BLOCKS[0] * n) == 0 and c.extent // n <= WIDEST_WHOLE
        if not c.streams and n <= o.machine.cluster and divides:
            box = tuple((d, facts.extents[d] // n) for d in c.dims)
            yield AxisTile(CLUSTER, c.extent // n, box, RUN, n)


def _atom_k(o: Orientation) -> int:
    """Return the number of K elements that one atom multiplies: the maximum over all MMAs, each with its first atom.

    `o` (an Orientation) has the MMAs, and the atoms that take their operands.
    """
    return max(p.atoms[0].shape[2] for p in o.products)


def _block_diagonal_tiles(o: Orientation, c: DimClass) -> Iterator[AxisTile]:
    """Yield at most one grid AxisTile that has several GEMMs of a batch, as blocks of a block-diagonal operand.

    `c` are the batch dimensions; `o` (an Orientation) has the MMAs. It yields one if the same number of blocks, two or
    more, suits every MMA.
    """
    inner = c.dims[-1]
    for n in {_blocks_in_slab(o.facts, p, inner) for p in o.products}:
        if n > 1 and all(_blocks_in_slab(o.facts, p, inner) == n for p in o.products):
            yield AxisTile(GRID, n, tuple((d, n if d == inner else 1) for d in c.dims), BOX, c.extent // n)


def _blocks_in_slab(facts: Facts, p: OrientedProduct, inner: str) -> int:
    """Return how many GEMMs along the batch dimension `inner` have their K in one slab (a row of shared memory).

    It is 1 unless K of neighbouring GEMMs are adjacent in memory. The result divides the extent of `inner`. `p` is the
    MMA of each GEMM, `facts` the analysed program.
    """
    for operand in (p.a, p.b):
        access = facts.nodes[operand.reads[0]].place if operand.is_read and inner in p.product.batch else None
        k = access.contiguous if access is not None else None
        if access is None or k not in p.product.k or access.steps.get(inner) != facts.extents[k]:
            continue
        slab, depth = p.atoms[0].slab or 1, p.atoms[0].shape[2]
        n = slab // facts.extents[k] if facts.extents[k] % depth == 0 else 1
        while n > 1 and facts.extents[inner] % n:
            n //= 2
        if n > 1:
            return n
    return 1


def _slab_elements(o: Orientation, c: DimClass) -> int:
    """Return the number of K elements in a slab (row of shared memory) of the first MMA that has `c` as K.

    `c` is a class of dimensions (same role in every MMA); some MMA must have it as K. The slab is that of the first
    atom that takes the MMA's operands; 1 if the atom has no slabs. `o` (an Orientation) has the MMAs and their atoms.
    """
    return next(p.atoms[0].slab or 1 for p, role in zip(o.products, c.roles, strict=True) if role == DEPTH)


def _k_step_sizes(o: Orientation, c: DimClass, slab: int) -> list[int]:
    """Return the K step sizes to try, in elements: one slab, and perhaps a longer one.

    A slab is a row of shared memory in the MMA's type, of `slab` elements. The longer size is for an operand that is
    computed from narrower elements: a row of shared memory has more of these elements. bf16 computed from i8 gives [64,
    128]. In longer steps, lanes wait less often for copies, and MMAs less often for lanes. `c` are the dimensions of K;
    `o` (an Orientation) has the MMAs.
    """
    sizes = [slab]
    for p, role in zip(o.products, c.roles, strict=True):
        for operand, tile in ((p.a, p.atoms[0].a), (p.b, p.atoms[0].b)):
            reads = [o.facts.nodes[read].place for read in operand.reads]
            narrow = min((read.bytes for read in reads if set(c.dims) & read.dims), default=tile.dtype.bits / 8)
            size = int(slab * tile.dtype.bits / 8 / narrow) if role == DEPTH and not operand.is_read else slab
            sizes += [size] if slab < size <= c.extent else []
    return list(dict.fromkeys(sizes))


def _steps_of_k(o: Orientation, c: DimClass, slab: int) -> Iterator[AxisTile]:
    """Yield up to two loop AxisTiles for the dimensions `c` of K, in steps of `slab` elements.

    The first has runs (contiguous indices) of K as one flat index; it is yielded only if copies can load such runs. The
    second, if `c` has several dimensions, has steps along the contiguous dimension alone; the other dimensions (such as
    filter taps) have one index per step. `o` (an Orientation) has the MMAs and says how operands are copied.
    """
    facts, extents = o.facts, o.facts.extents
    accesses = [r.place for r in facts.reads if set(c.dims) & r.place.dims]
    if len(c.dims) == 1 or all(_can_copy_run(a, c.dims, o) for a in accesses):
        yield AxisTile(LOOP, slab, filled_box(facts, c.dims, slab, up=True), RUN, ceil(c.extent / slab))
    if len(c.dims) > 1:
        rows = [a.contiguous for a in accesses if a.contiguous in c.dims]
        inner = rows[0] if rows else c.dims[-1]
        box = {d: min(slab, extents[d]) if d == inner else 1 for d in c.dims}
        yield AxisTile(LOOP, slab, tuple(box.items()), BOX, prod(ceil(extents[d] / box[d]) for d in c.dims))


def _are_digits_of_one(facts: Facts, dims: tuple[str, ...]) -> bool:
    """True if all `dims` are digits (mixed-radix parts) of one dimension of `facts`, in the order of its digits."""
    return any(tuple(d for d in digits if d in dims) == dims for digits in facts.digits.values())


def _can_copy_run(access: AccessFacts, dims: tuple[str, ...], o: Orientation) -> bool:
    """True if copies can move a run over `dims` of a read or write: contiguous indices of `dims` as one flat index.

    They can if `access` (the read or write) depends on fewer than two of `dims`. Lanes can load any run over digits
    (mixed-radix parts) of one program dimension. Bulk copies can load a run if memory has `dims` as one dimension, or
    if each of `dims` has a memory coordinate of its own, in order (im2col). `o` (an Orientation) says which of the two
    load.
    """
    used = [d for d in dims if d in access.dims]
    if len(used) < 2 or (o.by_threads and _are_digits_of_one(o.facts, dims)):
        return True
    in_windows = any(window & set(used) and not window <= set(used) for window in access.windows)
    merged = all(access.steps[a] == access.steps[b] * o.facts.extents[b] for a, b in pairwise(used))
    if merged and not in_windows:
        return True
    if access.contiguous in used or len(used) > o.machine.bulk_copy.counted_dims:
        return False
    places = [next((n for n, form in enumerate(access.coords) if d in dict(form)), -1) for d in used]
    return -1 not in places and places == sorted(set(places))


def inner_digits(facts: Facts, dims: tuple[str, ...]) -> tuple[str, ...]:
    """Return the last name in `dims`, with the names that are digits of the same program dimension.

    Digits are mixed-radix parts: (n, p, q), where p and q are digits of one dimension, gives (p, q). Only the last name
    is returned if it is no digit. `facts` is the analysed program.
    """
    owner = next((digits for digits in facts.digits.values() if dims[-1] in digits), dims[-1:])
    return tuple(d for d in dims if d in owner)


def inner_run(facts: Facts, c: DimClass, size: int) -> Iterator[AxisTile]:
    """Yield at most one grid AxisTile: `size` elements along the innermost program dimension of `c`, 1 along others.

    `c` is a class of dimensions (same role in every MMA). The tile is a run: contiguous indices of the flattened digits
    (mixed-radix parts) of that program dimension. Yields nothing in these cases: that dimension is the only one of `c`;
    it has a single digit; its digits are not the last ones of `c`; or it has fewer elements than `size`. `facts` is the
    analysed program.
    """
    inner = inner_digits(facts, c.dims)
    if not 1 < len(inner) < len(c.dims) or c.dims[-len(inner) :] != inner or size > facts.size(inner):
        return
    outer = c.dims[: -len(inner)]
    box = (*((d, 1) for d in outer), *filled_box(facts, inner, size, up=True))
    yield AxisTile(GRID, size, box, INNER_RUN, facts.size(outer) * ceil(facts.size(inner) / size))


def filled_box(
    facts: Facts, dims: tuple[str, ...], size: int, *, up: bool = False, outermost: bool = False
) -> tuple[tuple[str, int], ...]:
    """Return the extents of a box (rectangle) of up to `size` elements over `dims`, as ((dimension, extent), ...).

    `dims` are its dimensions, outermost first. The innermost dimension is filled first; with `outermost`, the
    outermost. 64 elements of 14 x 28 give 2 x 28. With `up`, extents are rounded up, so that the box has at least
    `size` elements if `dims` have as many: 3 x 28. `facts` is the analysed program.
    """
    box: dict[str, int] = {}
    for d in dims if outermost else reversed(dims):
        box[d] = min(size, facts.extents[d])
        size = ceil(size / facts.extents[d]) if up else max(1, size // box[d])
    return tuple((d, box[d]) for d in dims)


def _tiles_of_size(o: Orientation, c: DimClass, size: int, level: str) -> Iterator[AxisTile]:
    """Yield AxisTiles of about `size` elements for the class `c`: a run (contiguous flat indices), then boxes.

    `c` is a class of dimensions (same role in every MMA); a box is a rectangle over these dimensions; `level` is GRID
    or LOOP. `o` (an Orientation) has the program and its MMAs. A class of one dimension has only the run.

    Runs over several dimensions: if `size` covers the class, the run has all of it. A shorter run is left out if masks
    depend on `c` and `size` does not divide the innermost dimension. It is also left out if copies cannot load it; at
    level GRID, a run within the innermost dimension of the program then replaces it if copies can load that one.

    Boxes fill the innermost dimensions first, or the outermost. If the innermost dimension is shorter than `size`,
    another box has all of it and 1 along the others, padded to `size`. If a sliding window reads `c` and `level` is
    GRID, the only boxes are those with a halo tile (input patch) that one bulk copy loads.
    """
    facts, extents = o.facts, o.facts.extents
    if len(c.dims) == 1 or size >= c.extent:
        box = tuple((d, min(size, extents[d]) if len(c.dims) == 1 else extents[d]) for d in c.dims)
        yield AxisTile(level, size, box, RUN, ceil(c.extent / size))
        if len(c.dims) == 1:
            return
    accesses = [n.place for n in (*facts.reads, *facts.writes) if set(c.dims) & n.place.dims]
    cut_by_mask = facts.masked_dims & set(c.dims) and extents[c.dims[-1]] % size
    if size < c.extent and all(_can_copy_run(a, c.dims, o) for a in accesses) and not cut_by_mask:
        yield AxisTile(level, size, filled_box(facts, c.dims, size, up=True), RUN, ceil(c.extent / size))
    elif level == GRID and not cut_by_mask and all(_can_copy_run(a, inner_digits(facts, c.dims), o) for a in accesses):
        yield from inner_run(facts, c, size)
    boxes = [filled_box(facts, c.dims, size), filled_box(facts, c.dims, size, outermost=True)]
    window = halo_window(o, c) if level == GRID else None
    boxes = [*_halo_boxes(o, c, size, window)] if window is not None else boxes
    if window is None and extents[c.dims[-1]] < size:  # all of the innermost dimension, padded
        boxes.append(tuple((d, extents[d] if d == c.dims[-1] else 1) for d in c.dims))
    for box in dict.fromkeys(boxes):
        yield AxisTile(level, size, box, BOX, prod(ceil(extents[d] / n) for d, n in box))


def _halo_boxes(o: Orientation, c: DimClass, rows: int, window: HaloWindow) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield boxes of `rows` output positions whose halo tile (input patch) one bulk copy loads and an atom can read.

    A box is ((dimension, extent), ...): a rectangle over the dimensions of `c`. An atom reads its rows in groups with
    one stride, so that only some extents are possible. Each extent is less than twice that of its dimension. `window`
    computes the halo tile of a box; `o` (an Orientation) has the MMAs. Yields nothing if `c` has one dimension.
    """
    extents = [o.facts.extents[d] for d in c.dims]
    unit, atom_rows = o.products[0].atoms[0].shape[0], o.machine.shared_memory.atom_rows
    counted = o.machine.bulk_copy.counted_dims - 1  # beside images
    if len(extents) < 2:
        return
    for last in (atom_rows, *range(unit, rows + 1, unit)):
        for lines in range(1, rows // last + 1):
            rest = rows // last // lines
            if (
                rows % (last * lines)
                or (last == atom_rows and lines % (unit // last))
                or (rest > 1 and len(extents) < counted)
            ):
                continue
            box = (*(1 for _ in extents[counted:]), rest, lines, last)[-len(extents) :]
            if all(b < 2 * n for b, n in zip(box, extents, strict=True)) and window.fits(
                dict(zip(c.dims, box, strict=True)), o.machine
            ):
                yield tuple(zip(c.dims, box, strict=True))
