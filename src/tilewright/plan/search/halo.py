"""Halo tiles: what a box of positions reads through sliding windows is loaded once, for all taps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tilewright.machine import Machine
from tilewright.plan.facts import AccessFacts, Facts, ProductFacts
from tilewright.plan.search.axes import ROWS, DimClass
from tilewright.plan.search.orientation import Orientation, OrientedProduct


@dataclass(frozen=True)
class HaloWindow:
    """The sliding window of operand A: the memory `access` of its read, and the read's node number.

    `reach` has, for each memory coordinate, the offset of the last filter tap from the first, in elements. The last
    coordinate, the channels, is left out.
    """

    access: AccessFacts
    read: int
    reach: tuple[int, ...]

    def tile_extents(self, box: Mapping[str, int]) -> tuple[int, ...]:
        """Return the extents of the halo tile (input patch, for all filter taps) of `box`, a rectangle of positions.

        There is one extent per memory coordinate of A; the last coordinate, the channels, is left out. `box` maps each
        output dimension to its extent in the rectangle: 8 output columns and 3 filter taps need 10 input columns.
        """
        forms = zip(self.access.coords[:-1], self.reach, strict=True)
        return tuple(1 + far + sum(box[d] - 1 for d, _ in form if d in box) for form, far in forms)

    def fits(self, box: Mapping[str, int], machine: Machine) -> bool:
        """True if one bulk copy can load the halo tile (input patch) of `box`, a rectangle of output positions.

        `box` maps each output dimension to its extent in the rectangle.
        """
        return max(self.tile_extents(box)) <= machine.bulk_copy.box_extent

    def row_count(self, box: Mapping[str, int]) -> int:
        """Return the number of rows in shared memory of the halo tile (input patch) of `box`, for one slab of channels.

        A row has the channels of one input position. `box` is a rectangle of output positions: it maps each output
        dimension to its extent.
        """
        return prod(self.tile_extents(box))


@lru_cache
def halo_window(o: Orientation, c: DimClass) -> HaloWindow | None:
    """Return the HaloWindow of A along the dimensions of `c`, or None without one. The result is cached.

    A HaloWindow says how a sliding window reads A. With it, a workgroup can load a halo tile: the input patch of a box
    (rectangle) of output positions, once for all filter taps. `o` (an Orientation) says which of M and N lies on the
    atom's rows; `c` is a class of dimensions (same role, such as M or K, in every MMA).

    There is a HaloWindow only under these conditions. `c` is M on the atom's rows, and A slides along it. Addresses are
    sums of output positions and filter taps. Bulk copies, not lanes, load A. Atoms are asynchronous. No operand is
    computed, and the kernel has no other MMA.
    """
    window = _window_or_reason(o, c)
    return None if isinstance(window, str) else window


def why_no_halo(o: Orientation) -> str:
    """Return text: why a convolution cannot load A as halo tiles (input patches, loaded once for all filter taps).

    Empty if it can, if no sliding window reads A, or if an operand is computed. `o` (an Orientation) says which of M
    and N lies on the atom's rows.
    """
    for c in o.classes:
        window = _window_or_reason(o, c)
        if isinstance(window, str) and window:
            return window
    return ""


def _window_or_reason(o: Orientation, c: DimClass) -> HaloWindow | str:
    """Return the HaloWindow of A along the dimensions of `c`; or text: why there is none.

    A HaloWindow says how a sliding window reads A. With it, a workgroup can load a halo tile: an input patch, once for
    all filter taps. `o` (an Orientation) says which of M and N lies on the atom's rows; `c` is a class of dimensions
    (same role, such as M or K, in every MMA).

    The text is empty if halo tiles are out of the question: A does not slide along `c`, `c` is not M on the atom's
    rows, or an operand is computed. Otherwise it names what stands in the way: another MMA, an operand that is not
    copied in bulk, or coordinates that are no sums of output positions and filter taps.
    """
    if set(c.roles) != {ROWS} or any(o.flips):
        return ""
    sliding = [p for p in o.products if p.a.is_read and p.b.is_read and _slides(o.facts, p, c)]
    if not sliding:
        return ""
    if len(o.products) > 1:
        first, second, *_ = o.products
        return f"lowering lacks halo tiles of {first.product.name} beside {second.product.name}"
    p = sliding[0]
    place = o.facts.nodes[p.a.reads[0]].place
    if not p.atoms[0].asynchronous or o.by_threads:
        return f"{place.memory} is not copied in bulk"
    return _window_of_read(o.facts, p.product, p.a.reads[0], c)


def _slides(facts: Facts, p: OrientedProduct, c: DimClass) -> bool:
    """True if the read of operand A of the MMA `p` has a sliding window over dimensions of `c` and of K.

    `c` is a class of dimensions (same role, such as M or K, in every MMA), `facts` the analysed program.
    """
    windows = facts.nodes[p.a.reads[0]].place.windows
    return any(window & set(c.dims) and window & set(p.product.k) for window in windows)


def _window_of_read(facts: Facts, p: ProductFacts, read: int, c: DimClass) -> HaloWindow | str:
    """Return the HaloWindow (how a sliding window reads A) along the dimensions of `c`; or text: why there is none.

    `p` is the MMA, `read` the node number of A, `c` a class of dimensions (same role, such as M or K, in every MMA).
    There is a window if every memory coordinate is a sum of output positions (stride 1) and filter taps (stride 0 or
    more), no two output positions have the same coordinates, and the channels are contiguous. The read must state its
    coordinates and no bounds. `facts` is the analysed program.
    """
    access = facts.nodes[read].place
    source = facts.nodes[read].source
    if not access.linear or source is None or source.attrs.get("bounds") or "at" not in source.attrs:
        return f"places in {access.memory} are no sums of positions and taps"
    channels = {d for d, _ in access.row}
    if access.contiguous not in p.k or not channels <= {access.contiguous, *p.batch}:
        return f"channels are not what lies side by side in {access.memory}"
    covered: list[str] = []
    reach = []
    for form in access.coords[:-1]:
        positions = [(d, step) for d, step in form if d in c.dims]
        strided = next((d for d, step in positions if step != 1), None)
        if strided is not None:
            return f"neighbours along {strided} do not lie side by side"
        if any(d in channels for d, _ in form) or any(step < 0 for _, step in form):
            return f"places in {access.memory} are no sums of positions and taps"
        covered += [d for d, _ in positions]
        reach.append(sum(step * (facts.extents[d] - 1) for d, step in form if d in p.k))
    last = [d for d, _ in access.coords[-2] if d in c.dims] if len(access.coords) > 1 else []
    if sorted(covered) != sorted(c.dims) or last != [c.dims[-1]] or not any(reach):
        return f"not every position has a place of its own in {access.memory}"
    return HaloWindow(access, read, tuple(reach))
