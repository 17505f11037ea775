"""Contractions recognised by their accesses: what they are, by their definition, and why others are none."""

from __future__ import annotations

import numpy as np
import pytest
from contraction_checks import recognised, space_of, sums_by_definition

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.ir.tile import parse_tile
from tilewright.kernels.attention import attention
from tilewright.kernels.conv import conv2d
from tilewright.kernels.gemm import TRANSPOSES, gemm
from tilewright.kernels.softmax import softmax
from tilewright.plan.contraction import merge_rows, merge_taps, size
from tilewright.problems import ConvProblem, conv_forward
from tilewright.targets.registry import machine

M, N, K, L = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.L
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def small(rng, *shape):
    return rng.integers(-3, 4, shape).astype(np.float32)


# -- matrix products ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transposes", TRANSPOSES)
def test_matrix_products(transposes):
    c = recognised(gemm(transposes, "f32"), {"M": 3, "N": 4, "K": 5})
    assert (c.extent(c.rows), c.extent(c.columns), c.extent(c.depth)) == (3, 4, 5)
    assert (c.a.name, c.b.name, c.out.name, c.batch, c.extras) == ("a", "b", "c", (), ())
    assert c.flops == 2 * 3 * 4 * 5
    rng = np.random.default_rng(0)
    a, b = small(rng, 3, 5), small(rng, 5, 4)
    held = {
        "a": np.ascontiguousarray(a if transposes[0] == "n" else a.T),
        "b": np.ascontiguousarray(b if transposes[1] == "n" else b.T),
    }
    assert c.a.shape == held["a"].shape
    assert c.b.shape == held["b"].shape
    assert np.array_equal(sums_by_definition(c, held), a @ b)


def test_batches_are_kept_by_both_factors():
    c = recognised(gemm("nt", "f32", batched=True), {"B": 2, "M": 3, "N": 4, "K": 5})
    assert c.extent(c.batch) == 2
    rng = np.random.default_rng(0)
    a, b = small(rng, 2, 3, 5), small(rng, 2, 4, 5)
    assert np.array_equal(sums_by_definition(c, {"a": a, "b": b}), a @ b.transpose(0, 2, 1))


def test_a_bias_is_an_extra_of_the_epilogue():
    c = recognised(gemm("nn", "bf16", "bf16", bias=True, activation="relu"), {"M": 3, "N": 4, "K": 5})
    assert [(e.name, e.dtype.name, e.shape) for e in c.extras] == [("bias", "f32", (4,))]
    assert c.sum_dtype.name == "f32"
    assert c.extras[0].coordinates == c.columns


# -- convolutions ---------------------------------------------------------------------------------------------

CONVOLUTIONS = [
    ConvProblem(mb=2, ic=3, oc=2, i=(4, 5), k=(3, 2), p=(1, 1)),
    ConvProblem(mb=1, ic=2, oc=3, i=(6, 5), k=(2, 3), s=(2, 1), d=(1, 0), p=(0, 2)),
    ConvProblem(mb=1, ic=4, oc=2, i=(3, 4), k=(1, 1)),
    ConvProblem(mb=1, ic=4, oc=6, g=2, i=(4, 3), k=(3, 3), p=(1, 1)),
    ConvProblem(mb=2, ic=3, oc=3, g=3, i=(3, 4), k=(2, 2), s=(1, 2)),
    ConvProblem(mb=1, ic=1, oc=1, i=(1, 3), k=(1, 3), p=(0, 1)),
]


def conv_contraction(p):
    kernel = conv2d((p.k[0], p.k[1]), "f32", stride=p.s, padding=p.p, dilation=p.dilation, groups=p.groups)
    channels = {"CG": p.ic_per_group} if p.groups > 1 else {"C": p.ic}
    return recognised(kernel, {"N": p.mb, "H": p.i[0], "W": p.i[1], "F": p.oc, **channels})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("p", CONVOLUTIONS, ids=str)
def test_convolutions(p):
    c = conv_contraction(p)
    assert c.extent(c.rows) == p.mb * p.o[0] * p.o[1]
    assert c.extent(c.batch) == p.groups
    assert c.extent(c.columns) == p.oc_per_group
    assert c.extent(c.depth) == p.k[0] * p.k[1] * p.ic_per_group
    rng = np.random.default_rng(1)
    x, w = small(rng, p.mb, *p.i, p.ic), small(rng, p.oc, *p.k, p.ic_per_group)
    wanted = conv_forward(p, x, w, x_layout="nxc", w_layout="oxi", y_layout="nxc")
    for form in (c, merge_rows(c), merge_taps(c), merge_taps(merge_rows(c))):
        assert np.array_equal(sums_by_definition(form, {"x": x, "w": w}).reshape(wanted.shape), wanted)


def test_only_padding_makes_coordinates_loose():
    assert conv_contraction(CONVOLUTIONS[2]).a.checked_dims == frozenset()
    assert conv_contraction(CONVOLUTIONS[4]).a.checked_dims == frozenset()
    assert conv_contraction(CONVOLUTIONS[0]).a.checked_dims == {1, 2}
    assert conv_contraction(CONVOLUTIONS[1]).a.checked_dims == {2}
    assert all(not conv_contraction(p).out.conditions for p in CONVOLUTIONS)


def test_a_pointwise_convolution_is_a_matrix_product():
    found = merge_rows(conv_contraction(ConvProblem(mb=2, ic=4, oc=3, i=(3, 5), k=(1, 1))))
    assert [size(d) for d in found.rows] == [30]
    assert (found.a.shape, found.out.shape) == ((30, 4), (30, 3))


@pytest.mark.parametrize("s", [(1, 2), (2, 1)])
def test_a_pointwise_convolution_with_a_stride_stays_as_it_is(s):
    c = conv_contraction(ConvProblem(mb=2, ic=4, oc=3, i=(4, 6), k=(1, 1), s=s))
    assert merge_rows(c) is c


def test_a_tap_and_its_channels_are_one_run():
    found = merge_taps(conv_contraction(ConvProblem(mb=1, ic=3, oc=2, i=(5, 6), k=(2, 4))))
    assert [size(d) for d in found.depth] == [2, 12]
    assert found.a.shape == (1, 5, 18)


def test_dilated_taps_are_no_run():
    c = conv_contraction(ConvProblem(mb=1, ic=3, oc=2, i=(9, 9), k=(2, 2), d=(1, 1)))
    assert merge_taps(c) is c


def sliding(axis, at="n, p + r - 1, q + s - 1, c", memory="N, H, W, C", taps="R, S"):
    """A convolution whose taps are dimensions of their own, beside the dimension of its loop."""
    return parse_tile(f"""
tile conv(%x: global f32[{memory}], %w: global f32[{taps}, C, F], %y: global f32[N, P, Q, F])
  symbols N, H, W, C, F, R, S, P, Q, n, p, q, r, s, c
{{
  %zero = fill value=0.0 : f32[N, P, Q, F]
  %sum = iterate %zero axis=({axis}) (%acc: f32[N, P, Q, F]) {{
    %taps = read %x over=[n, p, q, r, s, c] at=[{at}] otherwise=0 : f32[N, P, Q, R, S, C]
    %filters = read %w : f32[{taps}, C, F]
    %more = mma %taps, %filters, %acc : f32[N, P, Q, F]
    yield %more
  }} : f32[N, P, Q, F]
  write %sum, %y
}}
""")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("axis", ["R", "S", "C"])
@pytest.mark.parametrize("order", ["channels last", "channels first"])
@pytest.mark.parametrize(("r", "s", "c"), [(3, 2, 4), (1, 3, 2), (1, 1, 5), (3, 1, 1), (1, 1, 1)])
def test_taps_beside_the_loop_are_part_of_the_depth(axis, order, r, s, c):
    first = order == "channels first"
    where = {"at": "n, c, p + r - 1, q + s - 1", "memory": "N, C, H, W"} if first else {}
    program = sliding(axis, **where)
    sizes = {"N": 2, "H": 4, "W": 5, "C": c, "F": 3, "R": r, "S": s, "P": 4 + 3 - r, "Q": 5 + 3 - s}
    names = {x.name: x for a in program.args for d in a.type.dims for x in d.symbols}
    found = space_of(program, {names[n]: k for n, k in sizes.items()})
    assert found.extent(found.depth) == r * s * c
    assert [d.name for d in found.depth][-1] == ("c_0" if c > 1 or r == s == 1 else "r_0" if s == 1 else "s_0")
    rng = np.random.default_rng(2)
    x, w = small(rng, 2, 4, 5, c), small(rng, r, s, c, 3)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    p, q = sizes["P"], sizes["Q"]
    wanted = sum(padded[:, i : i + p, j : j + q] @ w[i, j] for i in range(r) for j in range(s))
    held = np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if first else x
    assert np.array_equal(sums_by_definition(found, {"x": held, "w": w}), wanted)


# -- what is none ---------------------------------------------------------------------------------------------


def factors(body):
    """A product whose loop and epilogue are the caller's."""

    @tkw.wave()
    def made(
        a: tkl.Memory[M, K, GLOBAL, tkl.f32], b: tkl.Memory[N, K, GLOBAL, tkl.f32], c: tkl.Memory[M, N, GLOBAL, tkl.f32]
    ):
        body(a, b, c)

    return made


def _scaled(a, b, c):
    @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
    def total(acc):
        return tkw.mma(tkw.read(a) + tkw.read(a), tkw.read(b), acc)

    tkw.write(total, c)


def _two_products(a, b, c):
    @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
    def total(acc):
        return tkw.mma(tkw.read(a), tkw.read(b), tkw.mma(tkw.read(a), tkw.read(b), acc))

    tkw.write(total, c)


def _two_writes(a, b, c):
    @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
    def total(acc):
        return tkw.mma(tkw.read(a), tkw.read(b), acc)

    tkw.write(total, c)
    tkw.write(total + total, c)


def _reduced(a, b, c):
    @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
    def total(acc):
        return tkw.mma(tkw.read(a), tkw.read(b), acc)

    tkw.write(total - tkw.max(total, dim=N), c)


def _endless(a, b, c):
    @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
    def total(acc):
        return tkw.mma(tkw.read(a), tkw.read(b), acc)

    for _ in range(40):
        total = total + total
    tkw.write(total, c)


def _more_than_a_sum(a, b, c):
    @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
    def total(acc):
        return tkw.mma(tkw.read(a), tkw.read(b), acc) + acc

    tkw.write(total, c)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (_scaled, "its operands are not two reads of memory"),
        (_two_products, "it has 2 products and 1 writes, not one"),
        (_two_writes, "it has 1 products and 2 writes, not one"),
        (_reduced, "max after the sum is not done element by element"),
        (_endless, "what follows the sum has more than 1000 steps"),
        (_more_than_a_sum, "its loop carries more than one sum"),
    ],
)
def test_what_is_no_contraction_is_told_why(body, why):
    found = recognised(factors(body), {"M": 3, "N": 4, "K": 5})
    assert isinstance(found, str)
    assert why in found


@pytest.mark.parametrize("name", ["aarch64.neon", "x86.avx512", "x86.amx"])
def test_an_epilogue_may_read_the_same_twice(name):
    """Equal reads are one value of the facts, and were looked up by the first of them alone."""
    i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    first_column = tkw.IndexMapping(2, inputs={M: i, K: 0 * j}, outputs={M: i, N: j})

    def body(a, b, c):
        total = tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0.0))
        tkw.write(total * tkw.read(a, mapping=first_column) + tkw.read(a, mapping=first_column), c)

    made = kernel_for(factors(body), {"M": 13, "N": 21, "K": 17}, machine=machine(name))
    assert made.plan.atom is not None
    rng = np.random.default_rng(3)
    a, b, c = small(rng, 13, 17), small(rng, 21, 17), np.full((13, 21), np.nan, np.float32)
    made.bind({"a": a, "b": b, "c": c})()
    assert np.array_equal(c, a @ b.T * a[:, :1] + a[:, :1])


def test_other_kernels_are_none():
    assert "0 products" in recognised(softmax(), {"M": 3, "N": 4})
    assert "2 products" in recognised(attention(4, "f32"), {"B": 1, "H": 1, "M": 8, "N": 8, "D": 4, "E": 4})


def test_a_product_without_a_loop_is_the_same_as_one_with_a_loop():
    """It was planned as any other program: on tile registers up to a third slower."""

    def whole(a, b, c):
        tkw.write(tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0.0)), c)

    def in_a_loop(a, b, c):
        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
        def total(acc):
            return tkw.mma(tkw.read(a), tkw.read(b), acc)

        tkw.write(total, c)

    one, other = (recognised(factors(body), {"M": 3, "N": 4, "K": 5}).text() for body in (whole, in_a_loop))
    assert one == other


@tkw.wave()
def permuted(
    x: tkl.Memory[N, M, GLOBAL, tkl.f32], v: tkl.Memory[N, K, M, GLOBAL, tkl.f32], y: tkl.Memory[K, M, GLOBAL, tkl.f32]
) -> None:
    """y[k, m] = sum over n of v[n, k, m] * x[n, m], of operands whose dimensions are permuted after they are read."""
    right, left = tkw.permute(tkw.read(x), [M, N]), tkw.permute(tkw.read(v), [K, M, N])
    tkw.write(tkw.mma(left, right, tkl.Register[K, M, tkl.f32](2.0)), y)


@tkw.wave()
def in_two_kernels(
    x: tkl.Memory[M, L, GLOBAL, tkl.f32],
    w: tkl.Memory[L, N, GLOBAL, tkl.f32],
    v: tkl.Memory[N, K, M, GLOBAL, tkl.f32],
    y: tkl.Memory[K, M, GLOBAL, tkl.f32],
) -> None:
    """y[k, m] = sum over n of v[n, k, m] * (x . w)[m, n]: the search splits it, and the second kernel reads x . w."""
    between = tkw.mma(tkw.read(x), tkw.read(w), tkl.Register[N, M, tkl.f32](2.0))
    tkw.write(tkw.mma(tkw.read(v), between, tkl.Register[K, M, tkl.f32](2.0)), y)


@pytest.mark.parametrize("row", ["x86.avx2", "x86.avx512", "x86.amx", "aarch64.neon"])
def test_an_operand_that_is_permuted_after_its_read_was_an_assertion_error(row):
    rng = np.random.default_rng(1)
    x, v = small(rng, 33, 5), small(rng, 33, 3, 5)
    y = np.full((3, 5), np.nan, np.float32)
    kernel_for(permuted, {"M": 5, "N": 33, "K": 3}, machine=machine(row)).bind({"x": x, "v": v, "y": y})()
    assert np.array_equal(y, 2 + np.einsum("nm,nkm->km", x, v))
    x, w, v = small(rng, 32, 2), small(rng, 2, 33), small(rng, 33, 3, 32)
    y = np.full((3, 32), np.nan, np.float32)
    kernel = kernel_for(in_two_kernels, {"M": 32, "N": 33, "K": 3, "L": 2}, machine=machine(row))
    kernel.bind({"x": x, "w": w, "v": v, "y": y})()
    assert np.array_equal(y, 2 + np.einsum("mn,nkm->km", 2 + x @ w, v))
