"""Layouts to test with, and slow but obvious ways to evaluate them.

The evaluators share no code with the package: they loop over natural coordinates and add up products.
"""

from functools import cache
from itertools import product as cartesian
from math import prod

from hypothesis import strategies as st

from tilewright.algebra import ComposedLayout, E, Layout, Swizzle

MAX_SIZE = 200

# -- obvious evaluators -----------------------------------------------------------------------------


def flat_leaves(x):
    if isinstance(x, tuple):
        return [leaf for e in x for leaf in flat_leaves(e)]
    return [x]


def count(shape):
    return prod(flat_leaves(shape))


def natural_coordinates(shape):
    """Every coordinate nested like the shape, the first mode fastest."""
    if not isinstance(shape, tuple):
        return list(range(shape))
    modes = [natural_coordinates(s) for s in reversed(shape)]
    return [tuple(reversed(choice)) for choice in cartesian(*modes)]


def all_coordinates(shape):
    """Every coordinate of every nesting that the shape takes."""
    numbers = set(range(count(shape)))
    if not isinstance(shape, tuple):
        return numbers
    return numbers | set(cartesian(*[all_coordinates(s) for s in shape]))


def dot(crd, stride):
    """The offset of a natural coordinate."""
    if isinstance(stride, tuple):
        return sum(dot(c, d) for c, d in zip(crd, stride, strict=True))
    return crd * stride


def values(layout):
    """The offsets of a layout in the order of its natural coordinates."""
    return [dot(crd, layout.stride) for crd in natural_coordinates(layout.shape)]


def extended_value(layout, index):
    """The offset at any index that is not negative; past the end the last mode goes on."""
    shape, stride = flat_leaves(layout.shape), flat_leaves(layout.stride)
    total = 0
    for s, d in list(zip(shape, stride, strict=True))[:-1]:
        total += index % s * d
        index //= s
    return total + index * stride[-1]


def index_of(crd, shape):
    """The position of a coordinate of any nesting in the order of natural coordinates."""
    if not isinstance(crd, tuple):
        return crd
    index, step = 0, 1
    for c, s in zip(crd, shape, strict=True):
        index += step * index_of(c, s)
        step *= count(s)
    return index


def is_injective(layout):
    found = values(layout)
    return len(set(found)) == len(found)


def primes_of(n):
    return [p for p in range(2, n + 1) if n % p == 0 and all(p % q for q in range(2, p))]


def recognise(sequence):
    """The modes (extent, stride) of a flat layout with exactly these values, fastest first; None if there is none.

    A layout's first mode may be split until its extent is a prime, so trying primes is enough.
    """
    if sequence[0] != 0:
        return None
    if len(sequence) == 1:
        return []
    for p in primes_of(len(sequence)):
        heads = sequence[::p]
        if all(v == heads[k // p] + k % p * sequence[1] for k, v in enumerate(sequence)):
            rest = recognise(heads)
            if rest is not None:
                return [(p, sequence[1]), *rest]
    return None


def longest_layout_prefix(sequence):
    """The length of the longest beginning of a sequence that is the value list of a layout."""
    return max((n for n in range(1, len(sequence) + 1) if recognise(sequence[:n]) is not None), default=0)


def strides_chain(layout):
    """Whether, by ascending stride, each mode's stride is a multiple of what the modes before it fill."""
    modes = zip(flat_leaves(layout.shape), flat_leaves(layout.stride), strict=True)
    filled = 1
    for d, s in sorted((d, s) for s, d in modes if s > 1 and d != 0):
        if d < 0 or d % filled != 0:
            return False
        filled = s * d
    return True


# -- strategies ---------------------------------------------------------------------------------------
#
# Parts of strategies are functions that draw: a strategy of its own, made for each example, takes longer than the test.

EXTENTS = st.sampled_from([1, 2, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 12])
EITHER = st.booleans()


@cache
def lists_of_extents(max_modes):
    return st.lists(EXTENTS, min_size=1, max_size=max_modes)


@cache
def one_of_these(*items):
    return st.sampled_from(items)


def draw_extents(draw, max_size=MAX_SIZE, max_modes=5):
    wanted = draw(lists_of_extents(max_modes))
    kept, total = [], 1
    for extent in wanted:
        fitting = extent if total * extent <= max_size else 1
        kept.append(fitting)
        total *= fitting
    return kept


def draw_nesting(draw, items, depth=3):
    """The items, in order, as a nest at most `depth` deep."""
    if len(items) == 1 and (depth == 0 or draw(EITHER)):
        return items[0]
    if depth <= 1:
        return tuple(items)
    groups = [[items[0]]]
    for item in items[1:]:
        if draw(EITHER):
            groups.append([item])
        else:
            groups[-1].append(item)
    return tuple(draw_nesting(draw, group, depth - 1) for group in groups)


def draw_shape(draw, max_size=MAX_SIZE, max_modes=5, depth=3):
    return draw_nesting(draw, draw_extents(draw, max_size, max_modes), depth)


shapes = st.composite(draw_shape)


def like(profile, flat):
    """The flat items nested as the profile is."""
    rest = iter(flat)

    def build(p):
        return tuple(build(e) for e in p) if isinstance(p, tuple) else next(rest)

    return build(profile)


def packed_strides(extents, order):
    strides, running = [0] * len(extents), 1
    for mode in order:
        strides[mode] = running
        running *= extents[mode]
    return strides


def draw_strides(draw, extents, kind):
    modes = list(range(len(extents)))
    if kind == "packed":
        strides = packed_strides(extents, modes)
    elif kind == "arbitrary":
        strides = [draw(st.integers(0, 12)) for _ in modes]
    else:
        order = draw(st.permutations(modes))
        strides = packed_strides(extents, order)
        if kind == "padded":
            running = draw(one_of_these(1, 1, 1, 2, 3))
            for mode in order:
                strides[mode] = running
                running = extents[mode] * running
                running = draw(one_of_these(running, 2 * running, 3 * running, running + 1, running + 3))
        elif kind == "chained":
            running = draw(one_of_these(1, 1, 1, 2, 3))
            for mode in order:
                strides[mode] = running
                running *= extents[mode] * draw(one_of_these(1, 1, 2, 3))
        elif kind == "broadcast":
            strides = [draw(one_of_these(0, d)) for d in strides]
        elif kind == "negative":
            strides = [draw(one_of_these(d, -d)) for d in strides]
    for mode in modes:
        if extents[mode] == 1 and draw(EITHER):  # a mode of one element may have any stride
            strides[mode] = draw(st.integers(-9, 99))
    return strides


KINDS = ("packed", "ordered", "padded", "chained", "broadcast", "arbitrary", "negative")
FORWARD = ("packed", "ordered", "padded", "chained", "broadcast", "arbitrary")
INJECTIVE = ("packed", "ordered", "padded", "chained")
CHAINED = ("packed", "ordered", "chained")


@st.composite
def layouts(draw, kinds=KINDS, max_size=MAX_SIZE, max_modes=5, depth=3):
    shape = draw_shape(draw, max_size, max_modes, depth)
    return Layout(shape, like(shape, draw_strides(draw, flat_leaves(shape), draw(one_of_these(*kinds)))))


def forward_layouts(**options):
    """Layouts without negative strides."""
    return layouts(kinds=FORWARD, **options)


def injective_layouts(**options):
    """Layouts without negative strides that take each value once."""
    return layouts(kinds=INJECTIVE, **options)


def chained_layouts(**options):
    """Injective layouts each of whose strides is a multiple of what the faster modes fill."""
    return layouts(kinds=CHAINED, **options)


@st.composite
def matrix_layouts(draw, ranks=(2, 3), max_extent=12, kinds=KINDS, nested=True):
    """Layouts of rank 2 or 3 whose modes may be nested once."""
    modes = []
    for _ in range(draw(st.sampled_from(ranks))):
        extents = draw_extents(draw, max_size=max_extent, max_modes=2)
        modes.append(draw_nesting(draw, extents, 1) if nested else count(tuple(extents)))
    shape = tuple(modes)
    return Layout(shape, like(shape, draw_strides(draw, flat_leaves(shape), draw(one_of_these(*kinds)))))


def divisors(n):
    return [k for k in range(1, n + 1) if n % k == 0]


def draw_pieces(draw, layout):
    """The index of a layout cut into digits: (extent, index stride) pieces, each within one mode, fastest first."""
    pieces, running = [], 1
    for extent in flat_leaves(layout.shape):
        while extent > 1:
            part = draw(one_of_these(*divisors(extent)[1:]))
            pieces.append((part, running))
            running *= part
            extent //= part
    return pieces


def draw_right_hand_side(draw, a, extend=True):
    """A layout B for which A o B has an answer: B's modes are runs of digits of A's index, in any order."""
    pieces = draw_pieces(draw, a)
    runs = []
    for s, d in pieces:
        if runs and draw(EITHER):
            runs[-1] = (runs[-1][0], runs[-1][1] * s, s)
        else:
            runs.append((d, s, s))
    chosen = [run for run in runs if draw(st.sampled_from([True, True, False]))]
    modes = []
    for d, extent, top in chosen:
        kept = draw(st.integers(1, top)) if draw(EITHER) else top
        modes.append((extent // top * kept, d))
    if extend and chosen and runs[-1] == chosen[-1] and draw(EITHER):  # past the last mode of A
        d, extent, top = chosen[-1]
        modes[-1] = (extent // top * draw(st.integers(1, 3 * top)), d)
    if draw(EITHER):
        modes.append((draw(st.integers(1, 3)), 0))
    if draw(EITHER):
        modes.append((1, draw(st.integers(0, 50))))
    modes = draw(st.permutations(modes)) or [(1, 0)]
    shape = draw_nesting(draw, [s for s, _ in modes], 2)
    return Layout(shape, like(shape, [d for _, d in modes]))


right_hand_sides = st.composite(draw_right_hand_side)


@st.composite
def composable_pairs(draw, kinds=KINDS, extend=True):
    a = draw(layouts(kinds=kinds, max_size=96))
    return a, draw_right_hand_side(draw, a, extend=extend)


@st.composite
def dividing_tilers(draw, layout, whole=False):
    """An int, None or layout that divides the one-dimensional view of a layout; with `whole`, never None."""
    form = draw(st.sampled_from(["int", "layout", "layout"] if whole else ["int", "none", "layout"]))
    if form == "none":
        return None
    pieces = draw_pieces(draw, layout)
    if form == "int":
        return prod(s for s, _ in pieces[: draw(st.integers(0, len(pieces)))])
    chosen = [piece for piece in pieces if draw(EITHER)] or [(1, 0)]
    chosen = draw(st.permutations(chosen))
    shape = draw_nesting(draw, [s for s, _ in chosen], 2)
    return Layout(shape, like(shape, [d for _, d in chosen]))


def draw_coordinate(draw, shape):
    """A coordinate of any nesting that the shape takes."""
    if not isinstance(shape, tuple) or draw(EITHER):
        return draw(st.integers(0, count(shape) - 1))
    return tuple(draw_coordinate(draw, s) for s in shape)


coordinates = st.composite(draw_coordinate)


@st.composite
def open_coordinates(draw, shape):
    """A coordinate in which some modes, at any depth, are None; at least one is."""

    def pick(s):
        if draw(EITHER):
            return None
        if isinstance(s, tuple) and draw(EITHER):
            return tuple(pick(e) for e in s)
        return draw_coordinate(draw, s)

    def some_none(c):
        return any(some_none(e) for e in c) if isinstance(c, tuple) else c is None

    crd = tuple(pick(s) for s in shape) if isinstance(shape, tuple) else pick(shape)
    return crd if some_none(crd) else None


@st.composite
def basis_layouts(draw):
    """Layouts whose values are coordinates: every stride counts along a mode of the codomain."""
    shape = draw(shapes(max_size=60))
    paths = st.sampled_from([(0,), (1,), (2, 0), (2, 1)])
    strides = [draw(st.integers(1, 9)) * E(*draw(paths)) for _ in flat_leaves(shape)]
    return Layout(shape, like(shape, strides))


@st.composite
def swizzles(draw, max_bits=3):
    bits = draw(st.integers(0, max_bits))
    shift = draw(st.integers(bits, bits + 3)) * draw(st.sampled_from([1, -1]))
    return Swizzle(bits, draw(st.integers(0, 4)), shift)


@st.composite
def composed_layouts(draw, **options):
    outer = draw(st.one_of(st.none(), swizzles()))
    return ComposedLayout(outer, draw(st.integers(0, 40)), draw(forward_layouts(**options)))
