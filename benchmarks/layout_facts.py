"""The layout algebra against its definitions: random layouts, every operation, values worked out one by one.

`python benchmarks/layout_facts.py [CASES] [SEED]` draws layouts that are nested, padded, broadcast, run backwards, are
swizzled or start at an offset, or give coordinates, and holds each answer against what the operation promises, by loops
over coordinates that share no code with the package. An operation may refuse with a `LayoutError`; any other
exception, and any wrong value, fails.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "algebra")]

from layout_strategies import (  # noqa: E402
    count,
    extended_value,
    flat_leaves,
    index_of,
    like,
    natural_coordinates,
    strides_chain,
    values,
)

import tilewright.algebra as ta  # noqa: E402
from tilewright.algebra import ComposedLayout, E, Layout, Swizzle, size  # noqa: E402
from tilewright.errors import LayoutError  # noqa: E402

MOST = 120
"""Elements of a layout that is drawn: every one of them is looked at."""


# -- what is drawn ----------------------------------------------------------------------------------------


def nest(rng: random.Random, items: list[Any], depth: int = 3) -> Any:
    """The items, in order, nested at most `depth` deep."""
    if len(items) == 1 and (depth == 0 or rng.random() < 0.6):
        return items[0]
    if depth <= 1:
        return tuple(items)
    groups: list[list[Any]] = [[items[0]]]
    for item in items[1:]:
        if rng.random() < 0.6:
            groups.append([item])
        else:
            groups[-1].append(item)
    return tuple(nest(rng, group, depth - 1) for group in groups)


def extents(rng: random.Random, most: int = MOST, modes: int = 5) -> list[int]:
    found: list[int] = []
    for _ in range(rng.randint(1, modes)):
        extent = rng.choice((1, 2, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8))
        found.append(extent if prod(found) * extent <= most else 1)
    return found


def strides(rng: random.Random, shape: list[int], kind: str) -> list[Any]:
    """Strides of one kind: packed in some order, padded, broadcast, backwards, of any value, or coordinates."""
    order = list(range(len(shape)))
    if kind != "packed":
        rng.shuffle(order)
    found, running = [0] * len(shape), rng.choice((1, 1, 1, 2, 3)) if kind in ("padded", "chained") else 1
    for mode in order:
        found[mode] = running
        running *= shape[mode]
        if kind == "padded":
            running += rng.choice((0, 0, 1, 3))
        elif kind == "chained":
            running *= rng.choice((1, 1, 2, 3))
    if kind == "broadcast":
        found = [d * rng.choice((0, 1)) for d in found]
    elif kind == "backwards":
        found = [d * rng.choice((1, -1)) for d in found]
    elif kind == "arbitrary":
        found = [rng.randint(0, 12) for _ in shape]
    elif kind == "coordinates":
        paths = rng.choice(([(0,), (1,)], [(0,), (1,), (2,)], [(0,), (1, 0), (1, 1)]))
        return [rng.choice((1, 1, 2, 3)) * E(*rng.choice(paths)) for _ in shape]
    elif kind == "identity":
        return [E(mode) for mode in range(len(shape))]
    return found


PLAIN = ("packed", "ordered", "padded", "chained", "broadcast", "arbitrary", "backwards")
KINDS = (*PLAIN, "coordinates", "identity")


def layout(rng: random.Random, kinds: tuple[str, ...] = KINDS, most: int = MOST, modes: int = 5) -> Layout:
    shape = nest(rng, extents(rng, most, modes))
    return Layout(shape, like(shape, strides(rng, flat_leaves(shape), rng.choice(kinds))))


def swizzle(rng: random.Random) -> Swizzle:
    bits = rng.randint(0, 3)
    return Swizzle(bits, rng.randint(0, 3), rng.randint(bits, bits + 2) * rng.choice((1, 1, -1)))


def composed(rng: random.Random) -> ComposedLayout:
    inner = layout(rng, ("packed", "ordered", "padded", "chained", "broadcast", "arbitrary"))
    return ComposedLayout(rng.choice((None, swizzle(rng))), rng.choice((0, 0, 4, 5, 16)), inner)


def any_layout(rng: random.Random) -> Any:
    return composed(rng) if rng.random() < 0.3 else layout(rng)


def tiler(rng: random.Random, of: Any, whole: bool = False) -> Any:
    """An int, a layout, None, or a tuple of them."""
    if rng.random() < 0.3 and isinstance(of.shape, tuple):
        return tuple(tiler(rng, Layout(s), whole) for s in of.shape[: rng.randint(1, len(of.shape))])
    draw = rng.random()
    if draw < 0.15 and not whole:
        return None
    if draw < 0.5:
        return rng.choice((1, 2, 3, 4, 5, 6, 8))
    return layout(rng, ("packed", "ordered", "chained", "padded", "broadcast"), 24, 3)


def coordinate(rng: random.Random, shape: Any, open_: float = 0.0) -> Any:
    """A coordinate of a shape, of any nesting; modes may be left open."""
    if rng.random() < open_:
        return None
    if isinstance(shape, tuple) and rng.random() < 0.7:
        return tuple(coordinate(rng, s, open_) for s in shape)
    return rng.randrange(count(shape))


# -- values, one by one -----------------------------------------------------------------------------------


def add(a: Any, b: Any) -> Any:
    """The sum of offsets, or of coordinates of which one may have fewer entries."""
    if not isinstance(a, tuple) and not isinstance(b, tuple):
        return a + b
    a, b = (x if isinstance(x, tuple) else (x,) for x in (a, b))
    wide = max(len(a), len(b))
    return tuple(add(x, y) for x, y in zip(a + (0,) * (wide - len(a)), b + (0,) * (wide - len(b)), strict=True))


def point(steps: int, stride: Any) -> Any:
    """`steps` steps of one stride: an offset, or a coordinate with zeros beside it."""
    if isinstance(stride, int):
        return steps * stride
    found: Any = steps * stride.value
    for mode in reversed(stride.path):
        found = (*(0,) * mode, found)
    return found


def trimmed(x: Any) -> Any:
    """A coordinate without zeros at its end, 0 for the origin: one form for every point."""
    if not isinstance(x, tuple):
        return x
    parts = [trimmed(e) for e in x]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts) or 0


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same point."""
    if isinstance(a, tuple) or isinstance(b, tuple):
        a, b = (x if isinstance(x, tuple) else (x,) for x in (a, b))
    return bool(trimmed(a) == trimmed(b))


def naive_swizzle(s: Swizzle, offset: int) -> int:
    """Bit by bit: bit base + max(0, shift) + i of the offset is xor-ed onto bit base + max(0, -shift) + i."""
    for i in range(s.bits):
        if offset >> (s.base + max(0, s.shift) + i) & 1:
            offset ^= 1 << (s.base + max(0, -s.shift) + i)
    return offset


def at(x: Any, i: int) -> Any:
    """The value at an index, past the end too, where the last mode goes on."""
    if isinstance(x, ComposedLayout):
        inner = add(x.offset, at(x.layout, i))
        if x.outer is None:
            return inner
        return naive_swizzle(x.outer, inner) if isinstance(x.outer, Swizzle) else at(x.outer, inner)
    total: Any = 0
    shape, steps = flat_leaves(x.shape), flat_leaves(x.stride)
    for n, (s, d) in enumerate(zip(shape, steps, strict=True)):
        last = n == len(shape) - 1
        total = add(total, point(i if last else i % s, d))
        i //= s
    return total


def every(x: Any) -> list[Any]:
    return [trimmed(at(x, i)) for i in range(count(x.shape))]


def inner(x: Any) -> Layout:
    found: Layout = x.layout if isinstance(x, ComposedLayout) else x
    return found


def need(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


# -- the facts --------------------------------------------------------------------------------------------


def evaluation(rng: random.Random) -> None:
    x = any_layout(rng)
    crd = coordinate(rng, x.shape)
    i = index_of(crd, x.shape)
    need(same(x(crd), at(x, i)), f"{x}({crd}) is {x(crd)}, not {at(x, i)}")
    need(ta.crd2idx(crd, x.shape) == i, f"crd2idx({crd}, {x.shape})")
    need(index_of(ta.idx2crd(i, x.shape), x.shape) == i, f"idx2crd({i}, {x.shape})")
    need(size(x) == count(x.shape), f"size of {x}")


def same_function(rng: random.Random) -> None:
    x = any_layout(rng)
    for name in ("coalesce", "flatten"):
        found = getattr(ta, name)(x)
        need(every(found) == every(x) or found.has_coordinates != x.has_coordinates, f"{name} of {x} is {found}")
        need(ta.depth(found) <= 1, f"{name} of {x} is nested: {found}")
    if isinstance(x.shape, tuple):
        profile = (1,) * rng.randint(1, len(x.shape))
        found = ta.coalesce(x, profile)
        need(size(found) == size(x), f"coalesce of {x} by {profile}")
        need([every(found[m]) for m in range(len(x))] == [every(x[m]) for m in range(len(x))], f"{x} by {profile}")
        begin = rng.randrange(len(x.shape))
        end = rng.randint(begin + 1, len(x.shape))
        found = ta.group(x, begin, end)
        need(every(found) == every(x), f"group of {x} from {begin} to {end} is {found}")
        modes = rng.sample(range(len(x.shape)), rng.randint(1, len(x.shape)))
        found = ta.select(x, *modes)
        need([every(m) for m in found] == [every(x[m]) for m in modes], f"select of {modes} of {x}")


def same_values(rng: random.Random) -> None:
    x = any_layout(rng)
    for name in ("filter", "filter_zeros"):
        found = getattr(ta, name)(x)
        need(set(every(found)) == set(every(x)), f"{name} of {x} is {found}")


def append_and_prepend(rng: random.Random) -> None:
    x, mode = any_layout(rng), layout(rng, PLAIN, 4, 1)
    if x.has_coordinates:
        mode = Layout(mode.shape, like(mode.shape, [0] * len(flat_leaves(mode.shape))))
    modes = [x[m] for m in range(len(x))] if isinstance(x.shape, tuple) else [x]
    for name, first in (("append", 0), ("prepend", 1)):
        found = getattr(ta, name)(x, mode)
        need(len(found) == len(modes) + 1, f"{name} of {mode} to {x} is {found}")
        need([every(found[first + m]) for m in range(len(modes))] == [every(m) for m in modes], f"{name}: {found}")


def other_modes(rng: random.Random) -> None:
    x = any_layout(rng)
    modes = [x[m] for m in range(len(x))] if isinstance(x.shape, tuple) else [x]
    begin = rng.randrange(len(modes))
    end = rng.randint(begin + 1, len(modes))
    found = ta.take(x, begin, end)
    need([every(m) for m in found] == [every(m) for m in modes[begin:end]], f"take of {begin} to {end} of {x}: {found}")
    found = ta.reverse(x)
    if isinstance(x.shape, tuple):
        need([every(m) for m in found] == [every(m) for m in modes[::-1]], f"reverse of {x} is {found}")
        found = ta.replace(x, begin, Layout(3, 0))
        need(count(found[begin].shape) == 3, f"replace of mode {begin} of {x} is {found}")
        rest = [every(found[m]) == every(modes[m]) for m in range(len(modes)) if m != begin]
        need(all(rest), f"replace of mode {begin} of {x} is {found}")
    plain = layout(rng)
    found = ta.nullspace(plain)
    got = values(found)
    need(len(set(got)) == len(got), f"nullspace of {plain} is {found}")
    need(all(same(at(plain, i), at(plain, 0)) for i in got), f"nullspace of {plain} is {found}")
    need(len(got) * size(ta.filter_zeros(plain)) == size(plain), f"nullspace of {plain} is {found}: its size")
    plain = layout(rng, ("packed", "ordered", "padded", "chained", "broadcast", "arbitrary"))
    found = ta.make_layout_like(plain)
    moving = ta.filter_zeros(found)
    need(found.shape == plain.shape, f"make_layout_like({plain}) is {found}")
    need(sorted(values(moving)) == list(range(size(moving))), f"make_layout_like({plain}) is {found}: not packed")
    pairs = [(d, e) for s, d, e in zip(*(flat_leaves(part) for part in (plain.shape, plain.stride, found.stride)),
                                       strict=True) if s > 1 and d]  # fmt: skip
    need(all(e < f for d, e in pairs for g, f in pairs if d < g), f"make_layout_like({plain}) is {found}: the order")


def compositions(rng: random.Random) -> None:
    a = any_layout(rng)
    b = tiler(rng, a, whole=True)
    found = ta.composition(a, b)

    def holds(r: Any, a: Any, b: Any) -> None:
        if isinstance(b, tuple):
            for m in range(len(a)):
                holds(r[m], a[m], b[m] if m < len(b) else Layout(a[m].shape))
            return
        b = b if isinstance(b, Layout) else Layout(b)
        need(ta.compatible(b.shape, r.shape), f"composition of {a} with {b} is {r}: not compatible")
        for i, v in enumerate(values(b)):
            need(same(at(r, i), at(a, v)), f"composition of {a} with {b} is {r}: at {i} {at(r, i)}, not {at(a, v)}")

    holds(found, a, b)


def complements(rng: random.Random) -> None:
    x = layout(rng)
    if x.has_coordinates:
        box = ta.transform_leaf(lambda extent: extent * rng.choice((1, 2, 3)), ta.cosize(x))
        found = ta.complement(x, box)
        moving = ta.filter_zeros(x)
        points = [trimmed(add(at(moving, i), at(found, j))) for j in range(size(found)) for i in range(size(moving))]
        own = every(moving)
        need(len(set(own)) < len(own) or len(set(points)) == len(points), f"complement of {x} in {box}: {found}")
        return
    n = rng.choice((1, size(x), 2 * size(x), 24, 64))
    found = ta.complement(x, n)
    got = values(found)
    need(got == sorted(set(got)), f"complement of {x} below {n} is {found}: not increasing")
    together = [v + w for w in got for v in values(ta.filter_zeros(x))]
    need(len(set(together)) == len(together) or len(set(values(ta.filter_zeros(x)))) < size(ta.filter_zeros(x)),
         f"complement of {x} below {n} is {found}: copies overlap")  # fmt: skip
    if strides_chain(x):
        need(sorted(together) == list(range(len(together))), f"complement of {x} below {n} is {found}: gaps")
        need(len(together) >= n, f"complement of {x} below {n} is {found}: short")


def inverses(rng: random.Random) -> None:
    x = any_layout(rng)
    if rng.random() < 0.5:
        found = ta.right_inverse(x)
        if x.has_coordinates:
            for crd in natural_coordinates(found.shape):
                there, wanted = at(x, found(crd)), along_axes(crd, found.shape, x(0))
                need(same(there, wanted), f"right_inverse of {x} is {found}: {wanted} goes to {there}")
            return
        for k in range(size(found)):
            need(at(x, at(found, k)) == k, f"right_inverse of {x} is {found}: {k} goes to {at(x, at(found, k))}")
        plain = values(ta.filter_zeros(inner(x))) if isinstance(x, Layout) else []
        if plain and len(set(plain)) == len(plain) and min(plain) == 0:
            need(size(found) not in plain, f"right_inverse of {x} is {found}: it could be larger")
        return
    found = ta.left_inverse(x)
    where = every(x)
    for i, v in enumerate(where):
        back = found(x(i)) if x.has_coordinates else at(found, v)
        need(where[back] == v, f"left_inverse of {x} is {found}: {v} goes to {back}")
        need(len(set(where)) < len(where) or back == i, f"left_inverse of {x} is {found}: {v} goes to {back}, not {i}")


def along_axes(crd: Any, shape: Any, axes: Any) -> Any:
    """A coordinate whose modes along one axis are several, as one number for each axis."""
    if not isinstance(axes, tuple):
        return index_of(crd, shape)
    crd, shape = (x if isinstance(x, tuple) else (x,) for x in (crd, shape))
    return tuple(along_axes(c, s, a) for c, s, a in zip(crd, shape, axes, strict=True))


def divides(rng: random.Random) -> None:
    x = any_layout(rng)
    by = tiler(rng, x)
    logical, zipped = ta.logical_divide(x, by), ta.zipped_divide(x, by)
    tiled, flat = ta.tiled_divide(x, by), ta.flat_divide(x, by)
    for form in (zipped, tiled, flat):
        need(sorted(map(str, every(form))) == sorted(map(str, every(logical))), f"divide of {x} by {by}: {form}")

    def parts(r: Any, a: Any, b: Any) -> None:
        if b is None:
            need(every(r) == every(a), f"divide of {x} by {by}: {r}")
        elif isinstance(b, tuple):
            for m in range(len(a)):
                parts(r[m], a[m], b[m] if m < len(b) else None)
        else:
            b = b if isinstance(b, Layout) else Layout(b)
            if flat_leaves(a.shape)[-1] != 1 or max(values(b)) < size(a):
                for i, v in enumerate(values(b)):
                    need(same(at(r[0], i), at(a, v)), f"divide of {a} by {b} is {r}: the tile at {i}")
            if strides_chain(b):
                need(set(every(a)) <= set(every(r)), f"divide of {a} by {b} is {r}: elements are missing")

    parts(logical, x, by)


def products(rng: random.Random) -> None:
    block = layout(rng, PLAIN, 30, 3)
    by = tiler(rng, block)
    logical = ta.logical_product(block, by)
    for name in ("zipped_product", "tiled_product", "flat_product"):
        found = getattr(ta, name)(block, by)
        need(sorted(every(found)) == sorted(every(logical)), f"{name} of {block} by {by} is {found}")
    if isinstance(by, Layout):
        need(every(logical[0]) == every(block), f"logical_product of {block} by {by} is {logical}")
        copies: dict[int, set[int]] = {}
        for i, v in enumerate(values(by)):
            copies.setdefault(v, {w + at(logical[1], i) for w in values(block)})
        union = set().union(*copies.values())
        need(len(union) == sum(map(len, copies.values())), f"logical_product of {block} by {by}: copies overlap")
        for name, first in (("blocked_product", 0), ("raked_product", 1)):
            found = getattr(ta, name)(block, by)
            need(sorted(every(found)) == sorted(every(logical)), f"{name} of {block} by {by} is {found}")
            modes = list(block) if isinstance(block.shape, tuple) else [block]
            for m, mode in enumerate(modes):
                need(every(found[m][first]) == every(mode), f"{name} of {block} by {by} is {found}: mode {m}")


def shapes_filled(rng: random.Random) -> None:
    block = layout(rng, ("packed", "ordered", "chained"), 24, 2)
    ranks = len(block.shape) if isinstance(block.shape, tuple) else 1
    wanted = tuple(rng.choice((2, 3, 4, 6, 8, 12)) for _ in range(rng.randint(ranks, max(ranks, 3))))
    order = rng.choice((None, tuple(rng.sample(range(len(wanted)), len(wanted)))))
    found = ta.tile_to_shape(block, wanted, order)
    modes = [size(m) for m in block] if isinstance(block.shape, tuple) else [size(block)]
    modes += [1] * (len(wanted) - len(modes))
    for m, (length, of) in enumerate(zip(wanted, modes, strict=True)):
        need(size(found[m]) == -(-length // of) * of, f"tile_to_shape of {block} to {wanted} is {found}: mode {m}")
    got = every(found)
    own = values(block)
    need(len(set(own)) < len(own) or len(set(got)) == len(got), f"tile_to_shape of {block} to {wanted} is {found}")
    ordered = ta.make_ordered_layout(wanted, order or tuple(range(len(wanted))))
    need(sorted(values(ordered)) == list(range(prod(wanted))), f"make_ordered_layout({wanted}, {order}): {ordered}")


def slices(rng: random.Random) -> None:
    x = any_layout(rng)
    crd = coordinate(rng, x.shape, 0.4)
    if not ta.has_none(crd):
        return
    kept, offset = ta.slice_and_offset(crd, x)

    def chosen(c: Any, natural: Any, shape: Any) -> bool:
        if c is None:
            return True
        if isinstance(c, tuple):
            return all(map(chosen, c, natural, shape))
        return bool(c == index_of(natural, shape))

    wanted = [trimmed(at(x, i)) for i, n in enumerate(natural_coordinates(x.shape)) if chosen(crd, n, x.shape)]
    got = [trimmed(add(offset, at(kept, i))) for i in range(size(kept))]
    need(got == wanted, f"slice of {x} by {crd} is {offset} + {kept}")
    if isinstance(crd, tuple) and any(c is not None for c in flat_leaves(crd)) and isinstance(x, Layout):
        diced = ta.dice(crd, x)
        need(size(diced) * size(kept) == size(x), f"dice of {x} by {crd} is {diced}")


def recasts(rng: random.Random) -> None:
    x: Any = layout(rng, ("packed", "ordered", "chained", "padded", "broadcast"))
    if rng.random() < 0.4:
        x = ComposedLayout(swizzle(rng), rng.choice((0, 8, 64)), x)
    n = rng.choice((1, 2, 4, 8))
    got = every(x)
    if rng.random() < 0.5:
        found = ta.upcast(x, n)
        need(set(every(found)) == {v // n for v in got}, f"upcast of {x} by {n} is {found}")
    else:
        found = ta.downcast(x, n)
        if any(s > 1 and d == 1 for s, d in zip(flat_leaves(x.shape), flat_leaves(x.stride), strict=True)):
            need(set(every(found)) == {n * v + j for v in got for j in range(n)}, f"downcast of {x} by {n}: {found}")


def swizzles(rng: random.Random) -> None:
    s = swizzle(rng)
    for offset in rng.choices(range(4096), k=8):
        need(s(offset) == naive_swizzle(s, offset), f"{s}({offset})")
        need(s(s(offset)) == offset, f"{s} twice at {offset}")
    x = layout(rng, ("packed", "ordered", "padded", "chained"))
    found = ta.composition(s, x)
    need(every(found) == [naive_swizzle(s, v) for v in values(x)], f"composition of {s} with {x}")
    by = tiler(rng, x, whole=True)
    if not isinstance(by, tuple):
        nested = ta.composition(found, by)
        b = by if isinstance(by, Layout) else Layout(by)
        need(every(nested) == [naive_swizzle(s, extended_value(x, v)) for v in values(b)], f"{found} of {b}")


def common(rng: random.Random) -> None:
    a, b = layout(rng, PLAIN), layout(rng, PLAIN)
    if rng.random() < 0.5:
        b = a if rng.random() < 0.3 else Layout(a.shape, like(a.shape, strides(rng, flat_leaves(a.shape), "padded")))
    found = ta.max_common_layout(a, b)
    for i in range(size(found)):
        need(at(a, at(found, i)) == at(b, at(found, i)) == i, f"max_common_layout of {a} and {b} is {found}: at {i}")
    need(ta.max_common_vector(a, b) == size(found), f"max_common_vector of {a} and {b}")


def tiles(rng: random.Random) -> None:
    wide, high = rng.choice((4, 6, 8, 12)), rng.choice((4, 6, 8))
    x: Any = Layout((wide, high), tuple(strides(rng, [wide, high], rng.choice(("ordered", "padded", "identity")))))
    if not x.has_coordinates and rng.random() < 0.4:
        x = ComposedLayout(swizzle(rng), rng.choice((0, 8)), x)
    shape = rng.choice([n for n in range(1, wide + 1) if wide % n == 0]), rng.choice((1, 2))
    where = rng.randrange(wide // shape[0]), rng.randrange(high // shape[1])
    found = ta.local_tile(x, shape, where)
    wanted = [x(where[0] * shape[0] + i, where[1] * shape[1] + j) for j in range(shape[1]) for i in range(shape[0])]
    need([trimmed(found(i)) for i in range(size(found))] == [trimmed(w) for w in wanted], f"tile {where} of {x}")
    counts = rng.choice([n for n in range(1, wide + 1) if wide % n == 0]), rng.choice((1, 2))
    threads = Layout(counts, rng.choice(((1, counts[0]), (counts[1], 1))))
    for mode in ("cyclic", "block"):
        shares = [ta.local_partition(x, threads, t, mode=mode) for t in range(size(threads))]
        owned = [trimmed(share(i)) for share in shares for i in range(size(share))]
        need(sorted(map(str, owned)) == sorted(str(trimmed(x(i))) for i in range(size(x))), f"{mode} of {x}: {threads}")


FACTS: tuple[Callable[[random.Random], None], ...] = (
    evaluation, same_function, other_modes, same_values, append_and_prepend, compositions, complements, inverses,
    divides, products, shapes_filled, slices, recasts, swizzles, common, tiles,
)  # fmt: skip


WRONG = (AssertionError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""A wrong value, and whatever an operation raises that is no `LayoutError`."""


def run(cases: int, seed: int) -> tuple[Counter[str], Counter[str], list[str]]:
    """(cases of each fact, those that were refused, what was wrong)."""
    done: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    wrong = []
    for case in range(cases):
        fact = FACTS[case % len(FACTS)]
        rng = random.Random(f"{seed}/{case}")
        done[fact.__name__] += 1
        try:
            fact(rng)
        except LayoutError:
            refused[fact.__name__] += 1
        except (
            AssertionError,
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as e:
            wrong.append(f"case {case} of seed {seed}, {fact.__name__}: {type(e).__name__}: {e}")
    return done, refused, wrong


def main() -> None:
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 40000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    start = perf_counter()
    done, refused, wrong = run(cases, seed)
    for name, number in done.items():
        print(f"{name:20} {number:6} cases, {refused[name]:5} refused")
    print(f"{cases} cases in {perf_counter() - start:.0f} s, {len(wrong)} wrong")
    for line in wrong[:20]:
        print(" ", line)
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
