"""The core of the layout algebra: coalesce, composition, complement and the inverses.

Everything else (`divide`) is built from these. Each operation states its post-condition; what has no
layout as its answer raises a `LayoutError` that names the layouts and the failing mode.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

from tilewright.algebra.inttuple import (
    leaves,
    prefix_product,
    product,
    shape_of,
    transform_leaf,
    unflatten,
)
from tilewright.algebra.layout import Layout, make_layout, rank, size
from tilewright.errors import LayoutError

EMPTY_MODE = Layout(1, 0)
"""The mode that holds one element and never moves: what is left when nothing is left."""


def _flat_modes(layout: Layout) -> list[tuple[Any, Any]]:
    """The leaves as (shape, stride) pairs, fastest first."""
    return list(zip(leaves(layout.shape), leaves(layout.stride), strict=True))


def _from_modes(modes: list[tuple[Any, Any]]) -> Layout:
    """A flat layout of these (shape, stride) pairs; without nesting if there is one, 1:0 if there is none."""
    if not modes:
        return EMPTY_MODE
    if len(modes) == 1:
        return Layout(*modes[0])
    return Layout(tuple(s for s, _ in modes), tuple(d for _, d in modes))


def _by_mode(operation: Any, layout: Layout, tiler: tuple[Any, ...], name: str) -> Layout:
    """The operation on each mode that the tiler names; further modes stay as they are."""
    if rank(layout) < len(tiler):
        raise LayoutError(f"{name} of {layout} by {tiler}: the tiler has {len(tiler)} modes, the layout {rank(layout)}")
    done = (operation(layout[i], t) for i, t in enumerate(tiler))
    return make_layout(chain(done, (layout[i] for i in range(len(tiler), rank(layout)))))


def coalesce(layout: Layout, profile: Any = None) -> Layout:
    """The same function of one integer with as few modes as possible.

    Modes of size 1 go, and s0:d0, s1:d1 join when s0*d0 == d1. With a tuple as `profile`, each of its
    modes is coalesced on its own (the leaves of the profile have no meaning).

    Post-condition: size(R) == size(L), R(i) == L(i) for i < size(L), and depth(R) <= 1 (at the profile's leaves).

    >>> coalesce(Layout((2, (1, 6)), (1, (6, 2))))
    Layout(12, 1)
    >>> coalesce(Layout((2, (1, 6)), (1, (6, 2))), (1, 1))
    Layout((2, 6), (1, 2))
    """
    if isinstance(profile, tuple):
        return _by_mode(coalesce, layout, profile, "coalesce")
    modes: list[tuple[Any, Any]] = []
    for s, d in _flat_modes(layout):
        if s == 1:
            continue
        if modes and modes[-1][0] * modes[-1][1] == d:
            modes[-1] = (modes[-1][0] * s, modes[-1][1])
        else:
            modes.append((s, d))
    return _from_modes(modes)


def filter_zeros(layout: Layout) -> Layout:
    """The layout with every stride-0 mode shrunk to size 1: each offset is kept, repetitions go.

    Post-condition: congruent(R, L), and R takes the same values as L.

    >>> filter_zeros(Layout((2, 4), (0, 1)))
    Layout((1, 4), (0, 1))
    """
    shape = transform_leaf(lambda s, d: 1 if d == 0 else s, layout.shape, layout.stride)
    return Layout(shape, layout.stride)


def filter(layout: Layout, profile: Any = None) -> Layout:  # noqa: A001 - the customary name
    """The layout without stride-0 and size-1 modes, coalesced.

    Post-condition: R takes the same values as L, and no mode of R has stride 0 unless R is 1:0.

    >>> filter(Layout((2, 4), (0, 1)))
    Layout(4, 1)
    """
    return coalesce(filter_zeros(layout), profile)


def composition(a: Any, b: Any) -> Any:
    """The layout R with R(c) == A(B(c)): B picks elements of A and gives them a new shape.

    `b` is a layout, or a tiler: an int counts as that many consecutive elements, a tuple acts mode by mode,
    None leaves a mode alone. A composition that runs past the last mode of A extends that mode.

    Post-condition: compatible(B, R), and R(c) == A(B(c)) for every coordinate c of B.
    Raises where the picked elements have no constant strides, naming the mode of B that does not divide;
    also where two modes of B together carry from one mode of A into the next.

    >>> composition(Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1)))
    Layout(((2, 2), 3), ((24, 2), 8))
    >>> composition(Layout((12, (4, 8)), (59, (13, 1))), (Layout(3, 4), Layout(8, 2)))
    Layout((3, (2, 4)), (236, (26, 1)))
    """
    if b is None:
        return a
    if not isinstance(a, Layout):
        return a.compose(b)
    if isinstance(b, tuple):
        return _by_mode(composition, a, b, "composition")
    if hasattr(b, "after"):
        return b.after(a)
    if not isinstance(b, Layout):
        b = Layout(b)
    if b.has_coordinates:
        return _compose_coordinates(a, b)
    walk = _Walk(a, b)
    picked = transform_leaf(walk.pick, b.shape, b.stride)
    walk.check_carries()
    return _join(picked)


def _join(picked: Any) -> Layout:
    """One layout from a nest of layouts."""
    return picked if isinstance(picked, Layout) else make_layout([_join(p) for p in picked])


def _compose_coordinates(a: Layout, b: Layout) -> Layout:
    """A o B where B's values are coordinates of A: each leaf s:n@m walks mode m of A in steps of n."""

    def pick(s: int, d: Any) -> Layout:
        result: Layout = composition(a[d.path], Layout(s, d.value))
        return result

    return _join(transform_leaf(pick, b.shape, b.stride))


class _Walk:
    """One composition under way: the modes of A, and how far B's modes together go within each."""

    def __init__(self, a: Layout, b: Layout):
        self.a, self.b = a, b
        self.modes = _flat_modes(coalesce(a))
        self.reach = [0] * len(self.modes)  # the largest digit in each mode of A over all coordinates of B

    def pick(self, s: int, d: int) -> Layout:
        """The elements 0, d, ..., (s-1)*d of A as a layout."""
        if d == 0:
            return Layout(s, 0)
        if d < 0 and len(self.modes) > 1:
            raise self.refuse(f"the stride {d} is negative and A has more than one mode")
        rest, step = s, d
        parts: list[tuple[Any, Any]] = []
        last = len(self.modes) - 1
        for j, (extent, a_stride) in enumerate(self.modes[:-1]):
            if (rest - 1) * step < extent:  # the rest lies within this mode
                count = rest
            elif step % extent == 0:  # every step is a whole number of this mode's rounds
                step //= extent
                continue
            elif extent % step != 0:
                raise self.refuse(f"{s}:{d} steps by {step} in a mode of extent {extent}: neither divides the other")
            else:
                count = extent // step
                if rest % count != 0:
                    raise self.refuse(f"{s}:{d} takes {rest} in rounds of {count}: it does not divide")
            if count > 1:
                parts.append((count, step * a_stride))
                self.reach[j] += (count - 1) * step
            rest //= count
            step = -(-step // extent)
        if rest > 1 or not parts:
            parts.append((rest, step * self.modes[last][1]))
            self.reach[last] += (rest - 1) * step
        return _from_modes(parts)

    def check_carries(self) -> None:
        for j, (extent, _) in enumerate(self.modes[:-1]):
            if self.reach[j] >= extent:
                raise self.refuse(
                    f"the modes of B together reach {self.reach[j]} in mode {j} of A, whose extent is {extent}"
                )

    def refuse(self, why: str) -> LayoutError:
        flat = _from_modes(self.modes)
        coalesced = "" if flat == self.a else f" (coalesced: {flat})"
        return LayoutError(f"composition of A = {self.a}{coalesced} with B = {self.b} is not a layout: {why}")


def complement(layout: Layout | int, max_idx: Any = 1) -> Layout:
    """The layout of what `layout` leaves out: where to put copies of it so that they fill 0, ..., max_idx - 1.

    `max_idx` is a number, a shape or a layout (its size). Where the strides of L form a chain (each mode's
    extent divides the next gap), L and R together reach every offset up to their cosize exactly once.
    Where a gap does not divide, R is the largest ordered layout that fits, and offsets are left over.

    Post-condition: R is strictly increasing, (L, R) is injective when L is (without its stride-0 modes), and
    cosize((L, R)) >= max_idx. Raises when L's modes overlap or run backwards.

    >>> complement(Layout(4, 2), 24)
    Layout((2, 3), (1, 8))
    >>> complement(Layout((2, 4), (1, 6)), 24)
    Layout(3, 2)
    """
    if not isinstance(layout, Layout):
        layout = Layout(layout)
    modes: list[tuple[Any, Any]] = []
    current = 1
    for s, d, _ in _ordered_modes(layout, "complement"):
        if d < current:
            raise LayoutError(
                f"complement of {layout}: mode {s}:{d} overlaps the modes before it, which reach {current - 1}"
            )
        modes.append((d // current, current))
        current = s * d
    modes.append((-(-product(shape_of(max_idx)) // current), current))
    return coalesce(_from_modes(modes))


def _ordered_modes(layout: Layout, operation: str) -> list[tuple[int, int, int]]:
    """The moving modes as (shape, stride, index stride), by ascending stride."""
    if layout.has_coordinates:
        raise LayoutError(f"{operation} of {layout}: its values are coordinates, not offsets")
    flat = leaves(layout.shape)
    found = []
    for s, d, index_stride in zip(flat, leaves(layout.stride), prefix_product(flat), strict=True):
        if s == 1 or d == 0:
            continue
        if d < 0:
            raise LayoutError(f"{operation} of {layout}: mode {s}:{d} runs backwards")
        found.append((s, d, index_stride))
    return sorted(found, key=lambda mode: (mode[1], mode[0]))


def right_inverse(layout: Layout | int) -> Layout:
    """The largest R that finds the first offsets: the index i at which L takes the value k, for k = 0, 1, ...

    Post-condition: L(R(k)) == k for k < size(R).

    >>> right_inverse(Layout((4, 8), (8, 1)))
    Layout((8, 4), (4, 1))
    >>> right_inverse(Layout((32, 128), (0, 1)))     # a stride-0 mode is passed over
    Layout(128, 32)
    """
    if not isinstance(layout, Layout):
        layout = Layout(layout)
    modes: list[tuple[Any, Any]] = []
    current = 1
    flat = leaves(layout.shape)
    rows = zip(leaves(layout.stride), flat, prefix_product(flat), strict=True)
    for d, s, index_stride in sorted(row for row in rows if isinstance(row[0], int)):
        if s == 1 or d < current:
            continue
        if d > current:
            break
        modes.append((s, index_stride))
        current = s * d
    return coalesce(_from_modes(modes))


def left_inverse(layout: Layout | int) -> Layout:
    """The R that tells at which index L takes a value: R undoes L.

    Post-condition: R(L(i)) == i for every i when L is injective; with stride-0 modes, L(R(L(i))) == L(i).
    Raises when modes overlap, and when a stride does not divide the next (then no layout undoes L).

    >>> left_inverse(Layout((4, 2), (1, 5)))
    Layout((5, 2), (1, 4))
    >>> left_inverse(Layout(4, 2))
    Layout((2, 4), (0, 1))
    """
    if not isinstance(layout, Layout):
        layout = Layout(layout)
    rows = _ordered_modes(layout, "left_inverse")
    if not rows:
        return EMPTY_MODE
    modes: list[tuple[Any, Any]] = [(rows[0][1], 0)]  # offsets below the smallest stride belong to index 0
    for (s, d, index_stride), following in pairwise(rows):
        reach = following[1]
        if reach < s * d:
            raise LayoutError(f"left_inverse of {layout}: modes {s}:{d} and {following[0]}:{reach} overlap")
        if reach % d != 0:
            raise LayoutError(f"left_inverse of {layout}: stride {d} does not divide stride {reach}")
        modes.append((reach // d, index_stride))
    s, _, index_stride = rows[-1]
    modes.append((s, index_stride))
    return coalesce(_from_modes(modes))


def max_common_layout(a: Layout, b: Layout) -> Layout:
    """The largest R that walks both layouts along consecutive offsets.

    Post-condition: a(R(i)) == b(R(i)) == i for i < size(R).

    >>> max_common_layout(Layout((4, 8), (1, 4)), Layout((4, 8), (1, 8)))
    Layout(4, 1)
    """
    common: list[tuple[Any, Any]] = []
    done = 1
    for s, d in _flat_modes(right_inverse(b)):
        count = _run_length(a, s, d, done)
        if count > 1:
            common.append((count, d))
            done *= count
        if count < s:
            break
    return coalesce(_from_modes(common))


def _run_length(a: Layout, s: int, d: int, step: int) -> int:
    """The largest divisor n of s for which a(0), a(d), ..., a((n-1)*d) are 0, step, 2*step, ..."""
    count = 1
    while count < s and a(count * d) == count * step:
        count += 1
    while s % count != 0:
        count -= 1
    return count


def max_common_vector(a: Layout, b: Layout) -> int:
    """How many consecutive offsets both layouts hold in the same order from 0 on: the widest vector copy.

    Post-condition: equals size(max_common_layout(a, b)).

    >>> max_common_vector(Layout((4, 8), (1, 4)), Layout((4, 8), (1, 8)))
    4
    """
    return size(max_common_layout(a, b))


def upcast(layout: Layout, count: int) -> Layout:
    """The layout of the same bytes seen as elements `count` times as large.

    Post-condition: R takes the values L(i) // count. Raises where a stride or an extent does not divide.

    >>> upcast(Layout((4, 8), (1, 4)), 2)
    Layout((2, 8), (1, 2))
    """

    def leaf(s: int, d: int) -> tuple[int, int]:
        if d == 0:
            return s, d
        if count % d != 0 and d % count != 0:
            raise LayoutError(f"the stride {d} is neither a multiple nor a divisor of {count}")
        per_element = max(1, count // abs(d))  # how many neighbours along this mode become one element
        if s % per_element != 0 and per_element % s != 0:
            raise LayoutError(f"{s} elements do not fill elements of {per_element}")
        sign = -1 if d < 0 else 1
        return -(-s // per_element), sign * -(-abs(d) // count)

    return _recast_leaves(layout, leaf, f"upcast of {layout} by {count}")


def downcast(layout: Layout, count: int) -> Layout:
    """The layout of the same bytes seen as elements `count` times as small.

    Post-condition: R takes the values count * L(i) + j, j < count (when some mode of L has stride 1 or -1).

    >>> downcast(Layout((2, 8), (1, 2)), 2)
    Layout((4, 8), (1, 4))
    """
    return _recast_leaves(
        layout,
        lambda s, d: (s * count, d) if abs(d) == 1 else (s, d * count),
        f"downcast of {layout} by {count}",
    )


def _recast_leaves(layout: Layout, leaf: Any, what: str) -> Layout:
    if layout.has_coordinates:
        raise LayoutError(f"{what}: its values are coordinates, not offsets")
    pairs = []
    for mode, (s, d) in enumerate(_flat_modes(layout)):
        try:
            pairs.append(leaf(s, d))
        except LayoutError as fault:
            raise LayoutError(f"{what}: mode {mode}, {s}:{d}: {fault}") from None
    return Layout(
        unflatten([s for s, _ in pairs], layout.shape),
        unflatten([d for _, d in pairs], layout.shape),
    )


def recast(layout: Layout, old_bits: int, new_bits: int) -> Layout:
    """The layout of elements of `old_bits` as a layout of elements of `new_bits` over the same memory.

    Post-condition: size(R) * new_bits == size(L) * old_bits when some mode has stride 1.

    >>> recast(Layout((8, 4), (1, 8)), 16, 32)
    Layout((4, 4), (1, 4))
    >>> recast(Layout((8, 4), (1, 8)), 16, 8)
    Layout((16, 4), (1, 16))
    """
    if new_bits % old_bits == 0:
        return upcast(layout, new_bits // old_bits)
    if old_bits % new_bits == 0:
        return downcast(layout, old_bits // new_bits)
    raise LayoutError(f"recast of {layout} from {old_bits} to {new_bits} bits: neither divides the other")
