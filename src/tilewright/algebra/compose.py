"""The core of the layout algebra: coalesce, composition, complement and the inverses.

Everything else (`divide`) is built from these. Each operation states its post-condition; what has no
layout as its answer raises a `LayoutError` that names the layouts and the failing mode.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

from tilewright.algebra.basis import Path, ScaledBasis
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
    None leaves a mode alone. A composition that runs past the end of A extends A's last mode, also where that
    has one element.

    Post-condition: compatible(B, R), and R(c) == A(B(c)) for every coordinate c of B.
    Raises where a mode of B crosses modes of A unevenly, naming it: in each mode of the coalesced A that it
    leaves, its step must divide the extent, or the extent the step, and its count must fill whole rounds. So a
    step that moves two modes of A at once is refused, even where the elements it picks happen to have constant
    strides. Raises also where several modes of B together carry from one mode of A into the next, and where a
    mode of more than one element steps backwards through an A of several modes.

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
    b(0)  # raises where the strides step along a mode and along one inside it
    walks: dict[Path, _Walk] = {}

    def pick(s: int, d: Any) -> Layout:
        if s == 1 or d == 0:
            return Layout(s, 0)
        if not isinstance(d, ScaledBasis):
            raise LayoutError(f"composition of A = {a} with B = {b}: the strides of B mix coordinates and offsets")
        if d.path not in walks:
            walks[d.path] = _Walk(_named_mode(a, d, b), b)
        return walks[d.path].pick(s, d.value)

    picked = transform_leaf(pick, b.shape, b.stride)
    for walk in walks.values():
        walk.check_carries()
    return _join(picked)


def _named_mode(a: Layout, d: ScaledBasis, b: Layout) -> Layout:
    """The mode of A along which the stride d of B steps."""
    try:
        return a[d.path]
    except IndexError:
        raise LayoutError(f"composition of A = {a} with B = {b}: A has no mode for the stride {d}") from None


def _extended_modes(layout: Layout) -> list[tuple[Any, Any]]:
    """The modes of the coalesced layout, and a last one of size 1 where that takes other values past the end."""
    modes = _flat_modes(coalesce(layout))
    s, d = modes[-1]
    for extent, stride in _flat_modes(layout)[-1:]:
        if extent == 1 and s * d != stride:
            return [*(mode for mode in modes if mode[0] > 1), (1, stride)]
    return modes


class _Walk:
    """One composition under way: the modes of A, and how far B's modes together go within each."""

    def __init__(self, a: Layout, b: Layout):
        self.a, self.b = a, b
        self.modes = _extended_modes(a)
        self.reach = [0] * len(self.modes)  # the largest digit in each mode of A over all coordinates of B

    def pick(self, s: int, d: int) -> Layout:
        """The elements 0, d, ..., (s-1)*d of A as a layout."""
        if d == 0:
            return Layout(s, 0)
        if d < 0 and s > 1 and len(self.modes) > 1:
            raise self.refuse(f"the stride {d} is negative and A has more than one mode")
        rest, step = s, d
        parts: list[tuple[Any, Any]] = []
        last = len(self.modes) - 1
        if s == 1 and last > 0 and self.modes[last][0] == 1:
            last -= 1  # one element does not run past the end
        for j, (extent, a_stride) in enumerate(self.modes[:last]):
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

    `max_idx` is a number, a shape or a layout (its size). The strides of L *chain* when, in ascending order, each
    is a multiple of what the modes before it fill (extent times stride of the one before). A stride that is no
    multiple leaves offsets over: only as many copies as fit go below it.

    Post-condition: R is strictly increasing, and (L, R) is injective when L is (without its stride-0 modes).
    Where the strides chain, (L, R) also takes every offset below its cosize, and cosize((L, R)) >= max_idx.
    Raises when L's modes overlap or run backwards.

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
    """The R that finds the first offsets: an index i at which L takes the value k, for k = 0, 1, ...

    Post-condition: L(R(k)) == k for k < size(R). R is the largest such layout where L, without its stride-0
    modes, is injective and its strides are positive; otherwise there may be larger ones.

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
    Raises when modes overlap or run backwards, and when a stride does not divide the next larger one, even
    where some other layout undoes L.

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
    """The R that walks both layouts along consecutive offsets: how their right inverses begin alike.

    Post-condition: a(R(i)) == b(R(i)) == i for i < size(R), and the order of a and b does not matter. R is the
    largest such layout where both are injective and have positive strides.

    >>> max_common_layout(Layout((4, 8), (1, 4)), Layout((4, 8), (1, 8)))
    Layout(4, 1)
    """
    common: list[tuple[Any, Any]] = []
    for (s, d), (t, e) in zip(_flat_modes(right_inverse(a)), _flat_modes(right_inverse(b)), strict=False):
        if d == e:
            common.append((min(s, t), d))
        if (s, d) != (t, e):
            break
    return coalesce(_from_modes(common))


def max_common_vector(a: Layout, b: Layout) -> int:
    """How many consecutive offsets, from 0 on, both layouts hold at the same indexes: the widest first vector.

    A copy of nothing but such vectors needs a width that also divides the runs of both layouts.

    Post-condition: equals size(max_common_layout(a, b)).

    >>> max_common_vector(Layout((4, 8), (1, 4)), Layout((4, 8), (1, 8)))
    4
    """
    return size(max_common_layout(a, b))


def upcast(layout: Layout, count: int) -> Layout:
    """The layout of the same bytes seen as elements `count` times as large.

    Post-condition: R takes the values L(i) // count where no stride is negative and no modes overlap (each
    stride is at least what the modes of smaller stride fill). Raises where a stride or an extent does not divide.

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

    One mode of stride 1 or -1 becomes `count` times as long: the first of more than one element, or the first.

    Post-condition: R takes the values count * L(i) + j, j < count, where some stride is 1 and none is negative.

    >>> downcast(Layout((2, 8), (1, 2)), 2)
    Layout((4, 8), (1, 4))
    >>> downcast(Layout((1, 8), (1, 1)), 2)
    Layout((1, 16), (2, 1))
    """
    unit = (2, 1) if any(s > 1 and d in (1, -1) for s, d in _flat_modes(layout)) else (1, 1)
    widened = False

    def leaf(s: int, d: int) -> tuple[int, int]:
        nonlocal widened
        if widened or (min(s, unit[0]), abs(d)) != unit:
            return s, d * count
        widened = True
        return s * count, d

    return _recast_leaves(layout, leaf, f"downcast of {layout} by {count}")


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

    Post-condition: size(R) * new_bits == size(L) * old_bits; to smaller elements where some stride is 1 or -1, to
    larger ones where the offsets of L, each taken once and none negative, fill every larger element they touch.

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
