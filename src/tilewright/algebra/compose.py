"""The core of the layout algebra: coalesce, filter and composition.

With complement and inverses (`inverse`), everything else (`divide`) is built from these. Each operation states its
post-condition; if no layout is the answer, it raises a `LayoutError` that names the layouts and the failing mode.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from tilewright.algebra.basis import Path, ScaledBasis
from tilewright.algebra.inttuple import ceil_quotient, divides, leaves, transform_leaf
from tilewright.algebra.layout import Layout, make_layout, rank
from tilewright.algebra.modes import as_layout, inside_composed
from tilewright.algebra.swizzle import ComposedLayout, Swizzle
from tilewright.errors import LayoutError, ModeError

EMPTY_MODE = Layout(1, 0)
"""The mode of one element and stride 0: the flat layout without modes."""


def flat_modes(layout: Layout) -> list[tuple[Any, Any]]:
    """Return a list of (extent, stride) pairs: the modes of the layout without nesting, from left to right."""
    return list(zip(leaves(layout.shape), leaves(layout.stride), strict=True))


def from_modes(modes: list[tuple[Any, Any]]) -> Layout:
    """Return the flat layout of `modes`, (extent, stride) pairs; a single pair gives an int shape, no
    pair gives 1:0.
    """
    if not modes:
        return EMPTY_MODE
    if len(modes) == 1:
        return Layout(*modes[0])
    return Layout(tuple(s for s, _ in modes), tuple(d for _, d in modes))


def by_mode(operation: Any, layout: Layout, tiler: tuple[Any, ...], name: str) -> Layout:
    """Return the layout with its mode i replaced by operation(mode i, tiler[i]), for every entry of `tiler`.

    Modes beyond the tiler are unchanged. Raise LayoutError if the tiler has more entries than the layout has modes;
    `name` is the operation's name in the message.
    """
    if rank(layout) < len(tiler):
        raise LayoutError(f"{name} of {layout} by {tiler}: the tiler has {len(tiler)} modes, the layout {rank(layout)}")
    results = (operation(layout[i], t) for i, t in enumerate(tiler))
    return make_layout(chain(results, (layout[i] for i in range(len(tiler), rank(layout)))))


@inside_composed
def coalesce(layout: Layout, profile: Any = None) -> Layout:
    """Return the layout with as few modes as possible that is the same function of one integer index.

    Modes of size 1 are removed, and neighbours s0:d0, s1:d1 are joined if s0*d0 == d1. With a tuple as `profile`, mode
    i of the layout is coalesced by profile[i], and modes beyond the profile are unchanged. An entry that is no tuple
    coalesces its mode as a whole, whatever its value.

    Post-condition, for the result R and the layout L: size(R) == size(L), R(i) == L(i) for i < size(L), and depth(R) <=
    1 (at the profile's leaves). Raise LayoutError if the profile has more entries than the layout has modes.

    >>> coalesce(Layout((2, (1, 6)), (1, (6, 2))))
    Layout(12, 1)
    >>> coalesce(Layout((2, (1, 6)), (1, (6, 2))), (1, 1))
    Layout((2, 6), (1, 2))
    """
    if isinstance(profile, tuple):
        return by_mode(coalesce, layout, profile, "coalesce")
    modes: list[tuple[Any, Any]] = []
    for s, d in flat_modes(layout):
        if s == 1:
            continue
        if modes and modes[-1][0] * modes[-1][1] == d:
            modes[-1] = (modes[-1][0] * s, modes[-1][1])
        else:
            modes.append((s, d))
    return from_modes(modes)


@inside_composed
def filter_zeros(layout: Layout) -> Layout:
    """Return the layout with every stride-0 mode (a broadcast) shrunk to extent 1; the other modes are unchanged.

    >>> filter_zeros(Layout((2, 4), (0, 1)))
    Layout((1, 4), (0, 1))
    """
    shape = transform_leaf(lambda s, d: 1 if d == 0 else s, layout.shape, layout.stride)
    return Layout(shape, layout.stride)


@inside_composed
def filter(layout: Layout, profile: Any = None) -> Layout:  # noqa: A001 - the customary name
    """Return the layout without stride-0 and extent-1 modes, coalesced; `profile` is as for `coalesce`.

    With a tuple as `profile`, modes stay separate: mode i is coalesced by profile[i].

    >>> filter(Layout((2, 4), (0, 1)))
    Layout(4, 1)
    """
    return coalesce(filter_zeros(layout), profile)


def composition(a: Any, b: Any) -> Any:
    """Return the layout R with R(c) == A(B(c)) for A = `a` and B = `b`: B selects elements of A and gives them a new
    shape.

    `b` is a layout or a tiler. As a tiler, an int stands for that many consecutive elements, a tuple composes mode by
    mode, and None leaves a mode unchanged. If B runs past the end of A, the last mode of A is extended, even if it has
    one element. A swizzle as `a`, or a composed layout, gives a composed layout.

    Post-condition: compatible(B, R), and R(c) == A(B(c)) for every coordinate c of B. Raise LayoutError in these cases:

    - A mode of B runs past a mode of the coalesced A, and neither its step nor that mode's extent divides the other, or
      its count is no multiple of the steps that fit into that mode. So a step that moves two modes of A at once is an
      error, even if the selected elements have constant strides.
    - Several modes of B together carry from one mode of A into the next.
    - A mode of B of more than one element has a negative stride, and A has several modes.

    >>> composition(Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1)))
    Layout(((2, 2), 3), ((24, 2), 8))
    >>> composition(Layout((12, (4, 8)), (59, (13, 1))), (Layout(3, 4), Layout(8, 2)))
    Layout((3, (2, 4)), (236, (26, 1)))
    """
    if b is None:
        return a
    if isinstance(a, Swizzle):
        return ComposedLayout(a, 0, as_layout(b))
    a = as_layout(a)
    if isinstance(a, ComposedLayout):
        return a.with_layout(composition(a.layout, b))
    if isinstance(b, tuple):
        return by_mode(composition, a, b, "composition")
    if isinstance(b, ComposedLayout):
        return ComposedLayout(a, 0, b)
    b = as_layout(b)
    if b.has_coordinates:
        return _compose_coordinates(a, b)
    state = _Composition(a, b)
    modes = transform_leaf(state.pick, b.shape, b.stride)
    state.require_no_carry()
    return _make_nested(modes)


def _make_nested(layouts: Any) -> Layout:
    """Return one layout whose modes are `layouts`, nested tuples of layouts, with the same nesting."""
    return layouts if isinstance(layouts, Layout) else make_layout([_make_nested(p) for p in layouts])


def _compose_coordinates(a: Layout, b: Layout) -> Layout:
    """Return the composition A o B of the layouts `a` and `b`, where values of B are coordinates of A.

    A mode of B with basis stride n@m (n steps along mode m) selects every n-th element of mode m of A. Raise
    LayoutError if A has no such mode, if the elements selected have no layout, or if B also has strides that are
    offsets.
    """
    b(0)  # raises if the strides step along a mode and along one inside it
    state_of: dict[Path, _Composition] = {}

    def pick(s: int, d: Any) -> Layout:
        if s == 1 or d == 0:
            return Layout(s, 0)
        if not isinstance(d, ScaledBasis):
            raise LayoutError(f"composition of A = {a} with B = {b}: the strides of B mix coordinates and offsets")
        if d.path not in state_of:
            state_of[d.path] = _Composition(_named_mode(a, d, b), b)
        return state_of[d.path].pick(s, d.value)

    modes = transform_leaf(pick, b.shape, b.stride)
    for state in state_of.values():
        state.require_no_carry()
    return _make_nested(modes)


def _named_mode(a: Layout, d: ScaledBasis, b: Layout) -> Layout:
    """Return the mode of the layout `a` along which `d`, a basis stride of `b`, moves; raise LayoutError if there is
    none.
    """
    try:
        return a[d.path]
    except ModeError:
        raise LayoutError(f"composition of A = {a} with B = {b}: A has no mode for the stride {d}") from None


def _extended_modes(layout: Layout) -> list[tuple[Any, Any]]:
    """Return the (extent, stride) modes of the coalesced layout, in a form that also holds for indices past the
    layout's end.

    Past the end, the last mode continues. So a last mode of extent 1 is kept if its stride does not continue the mode
    before it: the layout (4, 1):(1, 10) continues with 10, not with 4.
    """
    modes = flat_modes(coalesce(layout))
    s, d = modes[-1]
    for extent, stride in flat_modes(layout)[-1:]:
        if extent == 1 and s * d != stride:
            return [*(mode for mode in modes if mode[0] != 1), (1, stride)]
    return modes


class _Composition:
    """One composition A o B in progress: the modes of A, and the largest digit that B reaches in each of them."""

    def __init__(self, a: Layout, b: Layout):
        self.a, self.b = a, b
        self.modes = _extended_modes(a)
        self.reach = [0] * len(self.modes)  # the largest digit in each mode of A over all coordinates of B

    def pick(self, s: int, d: int) -> Layout:
        """Return the layout of the `s` elements of A at the indices 0, d, ..., (s-1)*d: the composition A o (s:d).

        For each mode j of A, the largest digit that these elements have there is added to `self.reach[j]`, for
        `require_no_carry`. Raise LayoutError if there is no such layout.
        """
        if d == 0:
            return Layout(s, 0)
        if len(self.modes) > 1 and s != 1 and d < 0:
            raise self.refuse(f"the stride {d} is negative and A has more than one mode")
        remaining, step = s, d
        parts: list[tuple[Any, Any]] = []
        last = len(self.modes) - 1
        if s == 1 and last > 0 and self.modes[last][0] == 1:
            last -= 1  # one element does not run past the end
        for j, (extent, a_stride) in enumerate(self.modes[:last]):
            if (remaining - 1) * step < extent:  # the remaining elements lie within this mode
                count = remaining
            elif divides(extent, step):  # every step is a multiple of this mode's extent
                step //= extent
                continue
            elif not divides(step, extent):
                raise self.refuse(f"{s}:{d} steps by {step} in a mode of extent {extent}: neither divides the other")
            else:
                count = extent // step
                if not divides(count, remaining):
                    raise self.refuse(f"{s}:{d} takes {remaining} in rounds of {count}: it does not divide")
            if count != 1:
                parts.append((count, step * a_stride))
                self.reach[j] += (count - 1) * step
            remaining //= count
            step = ceil_quotient(step, extent)
        if remaining != 1 or not parts:
            parts.append((remaining, step * self.modes[last][1]))
            self.reach[last] += (remaining - 1) * step
        return from_modes(parts)

    def require_no_carry(self) -> None:
        """Raise LayoutError if the modes of B that `pick` has processed so far together run past the end of a mode of
        A.

        The last mode of A is not checked: it continues past its end.
        """
        for j, (extent, _) in enumerate(self.modes[:-1]):
            if self.reach[j] >= extent:
                raise self.refuse(
                    f"the modes of B together reach {self.reach[j]} in mode {j} of A, whose extent is {extent}"
                )

    def refuse(self, why: str) -> LayoutError:
        """Return (not raise) the LayoutError that says that the composition A o B is not a layout, with the reason
        `why`.
        """
        flat = from_modes(self.modes)
        coalesced = "" if flat == self.a else f" (coalesced: {flat})"
        return LayoutError(f"composition of A = {self.a}{coalesced} with B = {self.b} is not a layout: {why}")
