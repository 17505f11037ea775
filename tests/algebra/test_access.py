"""Accesses: convolutions written three ways against a direct loop, normal forms, cuts, phases, joins, layouts."""

from __future__ import annotations

import random
from itertools import product
from math import prod

import numpy as np
import pytest
from conv_accesses import (
    Conv,
    dgrad_flat,
    dgrad_loop,
    forward_chain,
    forward_flat,
    forward_layout,
    forward_loop,
    forward_view,
    random_conv,
    sizes_of,
    wgrad_flat,
)

from tilewright.algebra import (
    Access,
    ComposedLayout,
    Layout,
    Swizzle,
    View,
    all_of,
    evaluate,
    extent,
    index,
    join,
    why_not_join,
)
from tilewright.errors import AccessError


def check(access: Access, offsets: np.ndarray, valid: np.ndarray, values: dict[str, int]) -> None:
    """The access walks every point of the direct loop exactly once, with its offset where it is valid."""
    extents = [evaluate(axis.upper, values) + 1 for axis in access.axes]
    grid = np.indices(extents).reshape(len(extents), prod(extents))
    points = {**values, **{axis.name: row for axis, row in zip(access.axes, grid, strict=True)}}

    def on_grid(e, where=points, count=grid.shape[1]):
        return np.broadcast_to(evaluate(e, where), (count,))

    inside = on_grid(all_of(*access.domain)).astype(bool)
    walked = np.ravel_multi_index([on_grid(e)[inside] for _, e in access.indices], offsets.shape)
    assert np.array_equal(np.sort(walked), np.arange(offsets.size)), "some points are missing or walked twice"
    in_memory = on_grid(all_of(*access.bounds)).astype(bool)[inside]
    assert np.array_equal(in_memory, valid.ravel()[walked]), "the bounds are wrong"
    read = np.flatnonzero(inside)[in_memory]
    there = {name: v[read] if isinstance(v, np.ndarray) else v for name, v in points.items()}
    found = on_grid(access.offset, there, read.size)
    if access.swizzle:
        found = access.swizzle(found)
    assert np.array_equal(found, offsets.ravel()[walked][in_memory]), "the offsets are wrong"


FORMS = {
    "forward, flat": (forward_flat, forward_loop),
    "forward, chain": (forward_chain, forward_loop),
    "dgrad, flat": (dgrad_flat, dgrad_loop),
    "wgrad, flat": (wgrad_flat, lambda conv: tuple(a.swapaxes(1, 2) for a in forward_loop(conv))),
}


@pytest.mark.parametrize("symbolic", [False, True], ids=["bound sizes", "symbolic C, F, P, Q"])
@pytest.mark.parametrize("form", FORMS)
def test_convolution_accesses_agree_with_the_direct_loop(form, symbolic):
    write, loop = FORMS[form]
    for seed in range(60):
        conv = random_conv(random.Random(seed))
        sizes = sizes_of(conv, symbolic=symbolic)
        access = write(conv, sizes)
        check(access, *loop(conv), sizes.values)
        normal = access.normalise()
        assert normal.general is None, (conv, normal.general)
        assert not normal.divisions
        check(normal, *loop(conv), sizes.values)


def test_an_unpadded_convolution_is_a_nested_layout():
    for seed in range(60):
        conv = random_conv(random.Random(seed), padded=False)
        written = forward_layout(conv)
        check(written.normalise(), *forward_loop(conv), {})
        offsets, _ = forward_loop(conv)
        for access in (
            written,
            forward_flat(conv, sizes_of(conv, symbolic=False)),
            forward_chain(conv, sizes_of(conv, symbolic=False)),
        ):
            layout = access.layout()
            assert layout.shape[0] == conv.g or conv.g == 1
            found = [
                [[layout(g, m, k) for k in range(offsets.shape[2])] for m in range(offsets.shape[1])]
                for g in range(conv.g)
            ]
            assert np.array_equal(found, offsets), conv


def test_unpadded_accesses_with_symbolic_sizes_have_no_bounds():
    for seed in range(150):
        conv = random_conv(random.Random(seed), padded=False)
        for write in (forward_flat, forward_chain, wgrad_flat):
            access = write(conv, sizes_of(conv, symbolic=True)).normalise()
            assert access.bounds == (), (conv, access.bounds)
            assert access.domain == ()


def test_padded_accesses_keep_only_the_bounds_that_can_fail():
    conv = Conv(2, 1, 3, 4, (9, 7), (3, 1), (1, 2), (1, 1), (1, 0), (1, 0))
    access = forward_flat(conv, sizes_of(conv, symbolic=False)).normalise({"m": "npq", "k": ("r", "c")})
    assert sorted(map(str, access.bounds)) == ["p + r <= 9", "p + r >= 1"]


def test_dgrad_by_transform_chains_phase_by_phase():
    """The gradient as several products without congruences: every (dx, w, dy) triple of the direct loop, once."""
    for seed in range(40):
        conv = random_conv(random.Random(seed), rank=random.Random(seed).choice([1, 2]))
        wanted = set()
        offsets, valid = dgrad_loop(conv)
        for point in np.argwhere(valid):
            wanted.add((*point.tolist(), int(offsets[tuple(point)])))
        found = []
        for residues in product(*[range(s // np.gcd(s, d)) for s, d in zip(conv.stride, conv.dilation, strict=True)]):
            found += list(_dgrad_phase(conv, [int(r) for r in residues]))
        assert len(found) == len(set(found))
        assert set(found) == wanted, conv


def _dgrad_phase(conv: Conv, residues: list[int]):
    """One phase: taps t = step*dot + residue, and i = s*til + residue*d - pad, so that o = til - dot*d/gcd."""
    dy = View.tensor({"n": conv.n, **{f"o{j}": o for j, o in enumerate(conv.out)}, "g": conv.g, "f": conv.f})
    dx = View.tensor({"n": conv.n, **{f"i{j}": i for j, i in enumerate(conv.image)}})
    taps = View.tensor({f"t{j}": t for j, t in enumerate(conv.taps)})
    for j, residue in enumerate(residues):
        s, d, t = conv.stride[j], conv.dilation[j], conv.taps[j]
        common = int(np.gcd(s, d))
        step = s // common
        dots = -(-(t - residue) // step)
        if dots <= 0:
            return
        tils = conv.out[j] + -(-d * (t - 1) // s)
        dy = dy.embed(f"o{j}", {f"til{j}": (tils, 1), f"dot{j}": (dots, -(d // common))})
        padded = dx.pad(f"i{j}", conv.pad[j], conv.pad_right[j] + s * tils)
        dx = padded.embed(f"i{j}", {f"til{j}": (tils, s), f"tap{j}": (t, d)}).freeze(f"tap{j}", residue)
        taps = taps.embed(f"t{j}", {f"dot{j}": (dots, step), f"res{j}": (step, 1)}).freeze(f"res{j}", residue)
    axes = {name: index(name, size) for name, size in dy.extents.items()}
    accesses = [view.access(**{n: axes[n] for n in view.extents}).normalise() for view in (dy, dx, taps)]
    names = list(axes)
    for point in product(*[range(int(axes[n].hi) + 1) for n in names]):
        values = dict(zip(names, point, strict=True))
        read = []
        for access in accesses:
            assert not access.congruences
            offset, inside, in_memory = access.at(values)
            if not (inside and in_memory):
                break
            read.append(offset)
        else:
            m, tap = read[1], read[2]
            yield values["g"], m, tap * conv.f + values["f"], read[0]


def test_phases_discharge_congruences():
    for seed in range(40):
        conv = random_conv(random.Random(seed))
        access = dgrad_flat(conv, sizes_of(conv, symbolic=False)).normalise()
        offsets, valid = dgrad_loop(conv)
        found = {}
        for _, phase in access.phases():
            assert not phase.congruences
            assert not phase.divisions
            extents = [int(a.hi) + 1 for a in phase.axes]
            for point in np.ndindex(*extents):
                values = {a.name: v for a, v in zip(phase.axes, point, strict=True)}
                offset, inside, in_memory = phase.at(values)
                if inside and in_memory:
                    where = tuple(evaluate(e, values) for _, e in phase.indices)
                    assert where not in found
                    found[where] = offset
        assert found == {tuple(p): offsets[tuple(p)] for p in np.argwhere(valid).tolist()}, conv


# -- cuts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symbolic", [False, True], ids=["bound sizes", "symbolic sizes"])
def test_any_sequence_of_cuts_keeps_the_meaning_and_brings_no_division(symbolic):
    done = dict.fromkeys(("box", "extend", "table"), 0)
    for seed in range(250):
        rng = random.Random(seed)
        conv = random_conv(rng)
        sizes = sizes_of(conv, symbolic=symbolic)
        write, loop = FORMS[rng.choice(list(FORMS))]
        access = write(conv, sizes).normalise()
        for _ in range(rng.randint(1, 4)):
            start = rng.randrange(len(access.axes))
            names = tuple(a.name for a in access.axes[start : start + rng.randint(1, 3)])
            how = rng.choice(list(done))
            try:
                access = access.cut(names, rng.choice([1, 2, 3, 4, 5, 8, 16, 32]), how)
            except AccessError:
                continue
            done[how] += 1
            assert not access.divisions
        check(access, *loop(conv), sizes.values)
    assert min(done.values()) > 40


def test_no_division_is_left_in_the_reduction_loop_of_hundreds_of_addresses():
    for seed in range(500):
        rng = random.Random(seed)
        conv = random_conv(rng, rank=2, small=False)
        tile_m, tile_c = rng.choice([32, 48, 64]), rng.choice([16, 32])
        access = forward_flat(conv, sizes_of(conv, symbolic=seed % 2 == 1)).normalise()
        for axis in access.axes:
            if axis in access.indices[2][1].symbols:
                last = axis  # the fastest digit of k: c, unless there is one channel
        access = access.cut(last.name, tile_c, "box")
        digits = tuple(a.name for a in access.axes if a in access.indices[1][1].symbols)
        how = rng.choice(["table", "extend", "box"])
        if how == "table" and digits:
            access = access.cut(digits, tile_m, how)
        elif digits:
            access = access.cut(digits[-1], tile_m, how)
        assert not access.divisions, (seed, how, str(access))


def test_a_cut_that_is_no_box_is_refused_with_the_way_out():
    p, q = index("p", 14), index("q", 14)
    access = Access.of((p, q), axes=(p, q), shape=(14, 14))
    with pytest.raises(AccessError, match=r"32 is no box over \(p 14, q 14\).*extend.*table"):
        access.cut(("p", "q"), 32)
    assert [str(a.hi + 1) for a in access.cut(("p", "q"), 28).axes] == ["7", "2", "14"]
    assert [str(a.hi + 1) for a in access.cut(("p", "q"), 32, "extend").axes] == ["7", "2", "16"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("z", 4), "there is no axis z; there are m, k"),
        (("m", 0), "a tile of size 0 for axis m"),
        (("m", 4, "guess"), "how='guess'"),
        (("m", 4), "normalise the access before cutting it"),
    ],
)
def test_bad_cuts_are_refused(arguments, message):
    m, k = index("m", 35), index("k", 4)
    with pytest.raises(AccessError, match=message):
        Access.of((m // 7, m % 7, k), axes=(m, k), shape=(5, 7, 4)).cut(*arguments)


# -- general accesses ----------------------------------------------------------------------------------------------


def test_general_accesses_name_the_two_divisors():
    m = index("m", 96)
    access = Access.of((m // 6, m % 4), axes=(m,), shape=(16, 4)).normalise()
    assert access.general == "m is divided by 4 and by 6: neither divides the other"
    P, Q = extent("P"), extent("Q")
    flat = index("m", P * Q)
    symbolic = Access.of((flat // P, flat % Q), axes=(flat,), shape=(Q, Q)).normalise()
    assert symbolic.general is not None
    assert "P" in symbolic.general
    assert "Q" in symbolic.general
    a, b = index("a", 9), index("b", 9)
    assert "(a + b)" in Access.of(((a + b) // 2,), axes=(a, b), shape=(9,)).normalise().general


def test_a_general_access_can_still_be_cut_by_table():
    m, c = index("m", 96), index("c", 5)
    access = Access.of((m // 6, m % 4, c), axes=(m, c), shape=(16, 4, 5)).normalise()
    with pytest.raises(AccessError, match='how="table"'):
        access.cut("m", 10)
    cut = access.cut("m", 10, "table")
    assert not cut.divisions
    grid = np.indices((96, 5))
    offsets = ((grid[0] // 6) * 4 + grid[0] % 4) * 5 + grid[1]
    check(cut, offsets, np.ones_like(offsets, bool), {})


def test_a_ragged_flat_index_keeps_its_bound_as_domain():
    m = index("m", 37)  # 37 = 5*7 + 2
    access = Access.of((m // 7, m % 7), axes=(m,), shape=(6, 7)).normalise()
    assert [str(d) for d in access.domain] == ["7*m_1 + m_0 <= 36"]
    assert access.bounds == ()
    check(access, np.arange(37), np.ones(37, bool), {})
    tight = Access.of((m // 7, m % 7), axes=(m,), shape=(6, 7)).normalise({"m": "pq"})
    assert [a.name for a in tight.axes] == ["p", "q"]


def test_offsets_beyond_32_bits_are_exact():
    n, c = index("n", 70000), index("c", 65536)
    access = Access.of((n, c), axes=(n, c), shape=(70000, 65536))
    assert access.offset.hi == 70000 * 65536 - 1
    assert access.at({"n": 69999, "c": 65535})[0] == 70000 * 65536 - 1


# -- joins, layouts, swizzles ----------------------------------------------------------------------------------------


def test_digits_join_when_all_accesses_agree():
    p, q, c = index("p", 6), index("q", 7), index("c", 4)
    packed = Access.of((p, q, c), axes=(p, q, c), shape=(6, 7, 4))
    padded = Access.of((p + 1, q, c), axes=(p, q, c), shape=(7, 8, 4))
    clipped = Access.of((p, q - 1, c), axes=(p, q, c), shape=(6, 7, 4))
    assert why_not_join([packed, packed], "p", "q") is None
    assert why_not_join([packed, padded], "p", "q") == "p steps by 32, a round of q by 28"
    assert "q" in why_not_join([packed, clipped], "p", "q")
    assert why_not_join([Access.of((q,), axes=(q,), shape=(7,))], "p", "q") == "q is used alone"
    joined = join(packed, "p", "q", "m")
    assert str(joined.offset) == "4*m + c"
    with pytest.raises(AccessError, match="p and q do not join"):
        join(padded, "p", "q", "m")


def test_layouts_are_recovered_or_the_reason_is_given():
    i, j = index("i", 4), index("j", 8)
    layout = Layout((4, (2, 4)), (2, (1, 8)))
    assert Access.from_layout(layout, [i, j]).layout() == layout
    shifted = Access.of((i + 3,), axes=(i,), shape=(9,)).layout()
    assert shifted == ComposedLayout(None, 3, Layout(4, 1))
    backwards = Access.of((3 - i,), axes=(i,), shape=(4,)).layout()
    assert backwards == ComposedLayout(None, 3, Layout(4, -1))
    with pytest.raises(AccessError, match=r"bound i >= 1 is left"):
        Access.of((i - 1,), axes=(i,), shape=(9,)).layout()
    n = extent("N")
    with pytest.raises(AccessError, match="the stride of i is N"):
        Access.of((i, 0), axes=(i,), shape=(4, n)).layout()


def test_a_layout_is_accessed_along_one_axis_for_each_mode():
    layout = Layout((4, 8), (8, 1))
    with pytest.raises(AccessError, match=r"\(4,8\):\(8,1\) has 2 modes, but 1 axes are given"):
        Access.from_layout(layout, [index("i", 4)])
    with pytest.raises(AccessError, match=r"axis j has extent 7, its mode 8:1 has 8"):
        Access.from_layout(layout, [index("i", 4), index("j", 7)])


def test_xor_of_power_of_two_digits_is_a_swizzle():
    view = View.tensor({"row": 8, "chunk": 8, "byte": 16}).xor("chunk", "row")
    access = view.merge("k", ("chunk", "byte")).access().normalise()
    assert access.swizzle == Swizzle(3, 4, 3)
    assert access.layout() == ComposedLayout(Swizzle(3, 4, 3), 0, Layout((8, 128), (128, 1)))
    grid = np.indices((8, 8, 16))
    offsets = (grid[0] * 128 + (grid[1] ^ grid[0]) * 16 + grid[2]).reshape(8, 128)
    check(access, offsets, np.ones((8, 128), bool), {})


def test_other_xors_make_the_access_general():
    odd = View.tensor({"row": 5, "chunk": 4}, strides=(12, 3)).xor("chunk", "row").access().normalise()
    assert "xor" in odd.general


def test_xor_swizzles_agree_with_the_transform_for_all_powers():
    for rows, chunks, width in product((2, 4, 8, 16), (2, 4, 8), (1, 4)):
        view = View.tensor({"row": rows, "chunk": chunks, "e": width}).xor("chunk", "row")
        access = view.access().normalise()
        grid = np.indices((rows, chunks, width))
        offsets = (grid[0] * chunks + (grid[1] ^ (grid[0] % chunks))) * width + grid[2]
        if access.general is None:
            check(access, offsets, np.ones(offsets.shape, bool), {})
        else:
            assert rows > chunks  # the row wraps: two digits of it, not one, are xor-ed


# -- what the access says of itself -----------------------------------------------------------------------------------


def test_access_prints_its_parts():
    conv = Conv(1, 1, 4, 8, (5, 6), (3, 3), (2, 1), (1, 1), (1, 1), (1, 1))
    access = forward_view(conv, sizes_of(conv, symbolic=False)).freeze("g", 0).access()
    assert str(access) == (
        "(n 1, o0 3, t0 3, o1 6, t1 3, c 4) -> 120*n + 48*o0 + 24*t0 + 4*o1 + 4*t1 + c - 28\n"
        "  inside memory where 2*o0 + t0 <= 5 and 2*o0 + t0 >= 1 and o1 + t1 <= 6 and o1 + t1 >= 1"
    )


def test_bad_accesses_are_refused():
    i = index("i", 4)
    with pytest.raises(AccessError, match="2 coordinates are given for a tensor of 1 dimensions"):
        Access.of((i, i), axes=(i,), shape=(4,))
    with pytest.raises(AccessError, match="axis N must run from 0"):
        Access.of((i,), axes=(extent("N"),), shape=(4,))
    with pytest.raises(AccessError, match="1 strides are given"):
        Access.of((i, i), axes=(i,), shape=(4, 4), strides=(1,))
