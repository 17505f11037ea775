"""Coordinate transforms: each step against its plain meaning, chains, printing, errors."""

from __future__ import annotations

from itertools import product

import pytest

from tilewright.algebra import Chain, View, extent
from tilewright.algebra.expr import as_expr
from tilewright.algebra.transforms import Pad, Slice
from tilewright.errors import AccessError

PLAIN = {"a": 5, "b": 6}


def meaning(view: View) -> dict[tuple[int, ...], tuple[int, ...] | None]:
    """What every coordinate of the view stands for: the tensor's coordinate, or None where it is invalid."""
    names = list(view.extents)
    table = {}
    for point in product(*[range(int(view.extents[n])) for n in names]):
        lower, conditions = view.at(dict(zip(names, point, strict=True)))
        ok = all(int(c) for c in conditions)
        table[point] = tuple(int(lower[n]) for n, _ in view.shape) if ok else None
    return table


CASES = {
    "pad": (
        View.tensor(PLAIN).pad("a", 2, 1),
        (8, 6),
        lambda a, b: (a - 2, b) if 2 <= a < 7 else None,
    ),
    "pad with negative amounts crops": (
        View.tensor(PLAIN).pad("a", -1, -2),
        (2, 6),
        lambda a, b: (a + 1, b),
    ),
    "pad left and crop right": (
        View.tensor(PLAIN).pad("b", 3, -2),
        (5, 7),
        lambda a, b: (a, b - 3) if b >= 3 else None,
    ),
    "embed": (
        View.tensor(PLAIN).embed("b", {"q": (3, 2), "s": (2, 1)}),
        (5, 3, 2),
        lambda a, q, s: (a, 2 * q + s),
    ),
    "embed with a negative coefficient": (
        View.tensor(PLAIN).embed("b", {"q": (6, 1), "s": (3, -2)}),
        (5, 6, 3),
        lambda a, q, s: (a, q - 2 * s) if 0 <= q - 2 * s < 6 else None,
    ),
    "embed with an offset": (
        View.tensor(PLAIN).embed("b", {"q": (4, -1)}, offset=4),
        (5, 4),
        lambda a, q: (a, 4 - q),
    ),
    "merge": (View.tensor(PLAIN).merge("m", ("a", "b")), (30,), lambda m: (m // 6, m % 6)),
    "merge in another order": (View.tensor(PLAIN).merge("m", ("b", "a")), (30,), lambda m: (m % 5, m // 5)),
    "unmerge": (
        View.tensor(PLAIN).unmerge("b", {"x": 2, "y": 3}),
        (5, 2, 3),
        lambda a, x, y: (a, 3 * x + y),
    ),
    "unmerge past the end": (
        View.tensor(PLAIN).unmerge("b", {"x": 2, "y": 4}),
        (5, 2, 4),
        lambda a, x, y: (a, 4 * x + y) if 4 * x + y < 6 else None,
    ),
    "permute": (View.tensor(PLAIN).permute("b", "a"), (6, 5), lambda b, a: (a, b)),
    "slice": (View.tensor(PLAIN).slice("b", 1, 6, 2), (5, 3), lambda a, b: (a, 2 * b + 1)),
    "freeze": (View.tensor(PLAIN).freeze("a", 3), (6,), lambda b: (3, b)),
    "insert": (View.tensor(PLAIN).insert("z", 2), (5, 6, 2), lambda a, b, z: (a, b)),
    "xor": (View.tensor({"a": 5, "b": 4}).xor("b", "a"), (5, 4), lambda a, b: (a, b ^ (a % 4))),
    "im2col": (
        View.tensor(PLAIN)
        .pad("b", 1, 1)
        .embed("b", {"q": (3, 2), "s": (3, 1)})
        .merge("m", ("a", "q"))
        .permute("m", "s"),
        (15, 3),
        lambda m, s: (m // 3, 2 * (m % 3) + s - 1) if 0 <= 2 * (m % 3) + s - 1 < 6 else None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_transform_means_what_it_says(case):
    view, extents, plain = CASES[case]
    assert tuple(int(e) for e in view.extents.values()) == extents
    for point, found in meaning(view).items():
        assert found == plain(*point), point


@pytest.mark.parametrize("case", CASES)
def test_the_access_of_a_view_agrees_with_the_view(case):
    view, _, plain = CASES[case]
    access = view.access()
    normal = access.normalise()
    sizes = [int(e) for _, e in view.shape]
    for point in meaning(view):
        wanted = plain(*point)
        values = dict(zip(view.extents, point, strict=True))
        for form in (access, normal) if normal.general is None and normal.indices == access.indices else (access,):
            offset, inside, in_memory = form.at(values)
            assert inside
            assert bool(in_memory) == (wanted is not None)
            if wanted is not None:
                assert offset == wanted[0] * sizes[1] + wanted[1]


def test_symbolic_sizes_pass_through_a_chain():
    H, pad = extent("H"), 2
    P = extent("P", definition=(H + 2 * pad - 3) // 2 + 1)
    view = View.tensor({"h": H, "c": 4}).pad("h", pad, pad).embed("h", {"p": (P, 2), "r": (3, 1)})
    access = view.access()
    assert sorted(str(b) for b in access.bounds) == ["2*p + r <= H + 1", "2*p + r >= 2"]


def test_chains_compose():
    first = Chain((Pad("b", as_expr(1), as_expr(1)),))
    second = Chain((Slice("b", as_expr(2), as_expr(8)),))
    together = View.tensor(PLAIN).then(first + second)
    assert meaning(together) == meaning(View.tensor(PLAIN).then(first).then(second))
    assert str(first + second) == "pad(b, 1, 1); slice(b, 2, 8)"
    assert str(Chain()) == "nothing"


def test_views_print_every_step():
    view = (
        View.tensor({"k": 6, "r": 3}, strides=(1, 6))
        .embed("r", {"dot": (2, 2), "til": (2, 1)})
        .freeze("til", 1)
        .insert("z", 2)
        .unmerge("k", {"k0": 3, "k1": 2})
    )
    assert str(view) == (
        "tensor(k 6, r 3 : 1, 6)\n  embed(r = 2*dot + til)\n  freeze(til = 1)\n  insert(z 2)\n"
        "  unmerge(k -> k0 3, k1 2)\n  = view(k0 3, k1 2, dot 2, z 2)"
    )


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda v: v.pad("z", 1, 1), r"pad\(z, 1, 1\): there is no dimension z; there are a, b"),
        (lambda v: v.merge("m", ("a", "z")), "there is no dimension z"),
        (lambda v: v.merge("m", ()), r"merge\(m = \): name the dimensions to merge, at least one, each once"),
        (
            lambda v: v.merge("m", ("a", "a")),
            r"merge\(m = a, a\): name the dimensions to merge",
        ),
        (lambda v: v.slice("a", 0, 4, 0), r"slice\(a, 0, 4, step 0\): the step must be at least 1"),
        (lambda v: v.slice("a", 0, 4, -1), r"slice\(a, 0, 4, step -1\): the step must be at least 1"),
        (lambda v: v.embed("a", {"b": (2, 1)}), "dimension b exists already"),
        (lambda v: v.insert("a", 3), "dimension a exists already"),
        (lambda v: v.permute("a"), r"permute\(a\) does not name each of a, b once"),
        (lambda v: v.xor("b", "a"), "extent 6 of b is not a power of two"),
        (lambda v: v.at({"a": 1}), "coordinates a do not fit the dimensions a, b"),
    ],
)
def test_bad_steps_are_refused_at_once(action, message):
    with pytest.raises(AccessError, match=message):
        action(View.tensor(PLAIN))
