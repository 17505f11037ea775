"""Floats of eight bits and less as machine code: every code, and numbers around every limit."""

import numpy as np
import pytest
from tile_checks import no_atoms_today, own_cache, three_ways

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.ir import dtypes
from tilewright.lang.global_symbols import GLOBAL_ADDRESS_SPACE

pytestmark = no_atoms_today
__all__ = ["own_cache"]
M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
SMALL = ("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "f8e8m0fnu", "f6e2m3fn", "f4e2m1fn")


def cast_of(kind, to):
    return f"""tile kernel(%x: global {kind}[M], %y: global {to}[M])
  symbols M
{{
  %0 = read %x : {kind}[M]
  %1 = cast %0 dtype={to} : {to}[M]
  write %1, %y
}}
"""


def converted(x, kind, to):
    """By the executor and natively, as bits."""
    words = f"u{dtypes.dtype(to).numpy.itemsize}"
    found = [tilewright.compile(cast_of(kind, to), target=t)(x) for t in ("executor", "cpu")]
    same = found[0].view(words) == found[1].view(words)
    nothing = np.isnan(found[0].astype(np.float32)) & np.isnan(found[1].astype(np.float32))
    return found[0], found[1], same, nothing


@pytest.mark.parametrize("to", ["f32", "f16", "f64", "i32"])
@pytest.mark.parametrize("kind", SMALL)
def test_every_code_becomes_its_number(kind, to):
    form = dtypes.dtype(kind)
    codes = np.arange(1 << form.bits, dtype=np.uint8)
    wanted, found, same, nothing = converted(codes.view(form.numpy), kind, to)
    assert (same | nothing).all(), (codes[~(same | nothing)], wanted, found)


def numbers(kind):
    """f32 numbers: every code's number, the middle between it and the next, their neighbours, and random bits."""
    codes = np.arange(256, dtype=np.uint8) & ((1 << dtypes.dtype(kind).bits) - 1)
    own = codes.view(dtypes.dtype(kind).numpy).astype(np.float64)
    own = np.unique(own[np.isfinite(own)])
    middles = (own[1:] + own[:-1]) / 2
    edges = np.array([own.max() * f for f in (1.01, 1.03, 1.0624, 1.0625, 1.07, 1.1, 1.125, 1.25, 2, 1e30)])
    with np.errstate(over="ignore"):
        near = np.concatenate([own, middles, edges, -edges, [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan]])
        near = near.astype(np.float32)
    bits = np.random.default_rng(0).integers(0, 1 << 32, 20000, dtype=np.uint64).astype(np.uint32)
    small = np.concatenate([np.arange(0, 1 << 9), np.arange(0x3FFFE0, 0x400020), np.arange(0x7FFFE0, 0x800020)])
    return np.concatenate(
        [
            near,
            np.nextafter(near, np.float32(np.inf)),
            np.nextafter(near, np.float32(-np.inf)),
            bits.view(np.float32),
            small.astype(np.uint32).view(np.float32),
            (np.random.default_rng(1).standard_normal(9001) * 4).astype(np.float32),
        ]
    )


@pytest.mark.parametrize("kind", SMALL)
def test_numbers_are_rounded_to_nearest_even_and_kept_in_range(kind):
    x = numbers(kind)
    wanted, found, same, _ = converted(x, "f32", kind)
    assert same.all(), [(a, b, c) for a, b, c in zip(x[~same], wanted[~same], found[~same], strict=True)][:9]


@pytest.mark.sampled(13)
@pytest.mark.parametrize("given", ["f64", "f16", "bf16", "i32", "i8", "bool", "f8e5m2"])
@pytest.mark.parametrize("kind", SMALL)
def test_other_types_become_small_floats(kind, given):
    form = dtypes.dtype(given).numpy
    with np.errstate(all="ignore"):
        x = numbers(kind).astype(np.float64)
        x = np.where(np.isfinite(x) & (np.abs(x) < 1e9), x, 3.0)
        if given == "f64":
            x = np.concatenate([x, x + 2.0**-40])
        x = x.astype(form)
    wanted, found, same, _ = converted(x, given, kind)
    assert same.all(), (x[~same][:9], wanted[~same][:9], found[~same][:9])


@pytest.mark.parametrize("to", ["f16", "bf16"])
def test_f64_is_rounded_as_often_as_the_executor_does(to):
    ties = np.array([1 + 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-11, 65519.9999999, 65520, 2.0**-25, 3 * 2.0**-26])
    x = np.concatenate([ties, ties + 2.0**-40, ties - 2.0**-40, -ties - 2.0**-40, [np.inf, -np.inf, np.nan, 0, 1e300]])
    wanted, found, same, nothing = converted(x, "f64", to)
    assert (same | nothing).all(), (x, wanted, found)


@pytest.mark.parametrize("other", ["i8", "i32", "f32", "f16", "bool", "f8e4m3fn"])
def test_integers_of_four_bits_become_others_and_back(other):
    form = dtypes.dtype(other).numpy
    codes = np.arange(256, dtype=np.uint8)  # of a byte the lower half counts
    *_, same, _ = converted(codes.view(dtypes.i4.numpy), "i4", other)
    assert same.all()
    with np.errstate(all="ignore"):
        x = np.arange(-40, 41).astype(form) if other != "f32" else np.linspace(-12, 12, 97).astype(form)
    wanted, found, same, _ = converted(x, other, "i4")
    assert same.all(), (x, wanted, found)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "floordiv", "mod", "maximum", "minimum", "xor", "remf"])
def test_arithmetic_of_four_bits(name):
    text = f"""tile kernel(%x: global i4[M], %y: global i4[M], %z: global i4[M], %s: global i32[K])
  symbols M, K
{{
  %0 = read %x : i4[M]
  %1 = read %y : i4[M]
  %2 = {name} %0, %1 : i4[M]
  write %2, %z
  %3 = lt %0, %1 : bool[M]
  %4 = select %3, %2, %0 : i4[M]
  %5 = cast %4 dtype=i32 : i32[M]
  %6 = sum %5 dim=(M) : i32[]
  %7 = broadcast %6 to=[K] : i32[K]
  write %7, %s
}}
"""
    x, y = (a.ravel().astype(dtypes.i4.numpy) for a in np.meshgrid(np.arange(-8, 8), np.arange(-8, 8)))
    keep = y.astype(int) != 0
    three_ways(text, x[keep], y[keep], np.zeros(keep.sum(), dtypes.i4.numpy), np.zeros(2, np.int32))


def mem(*dims, dtype=tkl.f32):
    return tkl.Memory[(*dims, GLOBAL_ADDRESS_SPACE, dtype)]


def small(shape, dtype, seed=0):
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype.numpy)


@pytest.mark.parametrize("kind", ["f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "f6e2m3fn"])
@pytest.mark.parametrize("shape", [(3, 5, 7), (17, 4, 33)])
def test_products_sums_and_padding(kind, shape):
    dtype = tkl.__dict__[kind]
    m, n, k = shape
    i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    moved = tkw.IndexMapping(2, inputs={M: i + 1, K: j}, outputs={M: i, K: j})

    @tkw.wave()
    def kernel(a: mem(M, K, dtype=dtype), b: mem(N, K, dtype=dtype), c: mem(M, N), s: mem(M, dtype=dtype)):
        x = tkw.read(a)
        tkw.write(tkw.mma(x, tkw.read(b), tkl.Register[M, N, tkl.f32](0)), c)
        y = tkw.maximum(x, tkw.read(a, mapping=moved, otherwise=1)) * tkl.Register[M, K, dtype](0.5)
        tkw.write(tkw.max(y, dim=K), s)

    a, b = small((m, k), dtype), small((n, k), dtype, 1)
    wanted = three_ways(kernel, a, b, np.full((m, n), np.nan, np.float32), np.full(m, 1, dtype.numpy))
    assert (wanted[2] == a.astype(np.float32) @ b.astype(np.float32).T).all()


@pytest.mark.parametrize("kind", ["f8e4m3fn", "f8e5m2"])
def test_arithmetic_choices_and_bits(kind):
    text = f"""tile kernel(%x: global {kind}[M], %y: global {kind}[M], %z: global {kind}[M], %b: global i8[M])
  symbols M
{{
  %0 = read %x : {kind}[M]
  %1 = read %y : {kind}[M]
  %2 = mul %0, %1 : {kind}[M]
  %3 = lt %0, %1 : bool[M]
  %4 = select %3, %2, %0 : {kind}[M]
  %5 = sub %4, %1 : {kind}[M]
  write %5, %z
  %6 = bitcast %5 dtype=i8 : i8[M]
  write %6, %b
}}
"""
    form = dtypes.dtype(kind).numpy
    codes = np.arange(256, dtype=np.uint8)
    x, y = (a.ravel().copy().view(form) for a in np.meshgrid(codes[::3], codes[::7]))
    x, y = (np.where(np.isfinite(a.astype(np.float32)), a, form.type(2)) for a in (x, y))
    with np.errstate(all="ignore"):
        three_ways(text, x, y)
