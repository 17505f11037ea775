"""Vector mathematics against higher precision, at special values, and free of library calls."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from functools import cache
from math import copysign, inf, nan, pi

import llvmlite.binding as llvm
import numpy as np
import pytest

from tilewright.codegen import mathematics
from tilewright.codegen.text import Writer
from tilewright.problems.mathematics import CompiledFunction, by_elements, error, reference, text
from tilewright.runtime.codegen import HELPER
from tilewright.targets.registry import native

BOUND = 2.0
UNARY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tanh", "erf", "rsqrt", "sigmoid"),
    *("sinh", "cosh", "cbrt"),
)
BINARY = ("powf", "atan2", "remf")
ALL = (*UNARY, *BINARY)
FUSED = pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
TYPES = pytest.mark.parametrize("dtype", ["f32", "f64"])
KINDS = {"f32": np.float32, "f64": np.float64}
WORDS = {"f32": np.uint32, "f64": np.uint64}
RANGES = {
    "exp": (-746, 710), "exp2": (-1076, 1025), "log": (0, 4), "log2": (0, 4), "log10": (0, 4), "sin": (-99, 99),
    "cos": (-99, 99), "tanh": (-20, 20), "erf": (-6, 6), "rsqrt": (0, 99), "sigmoid": (-745, 40),
    "sinh": (-711, 711), "cosh": (-711, 711), "cbrt": (-99, 99), "expm1": (-40, 710), "log1p": (-1, 4),
}  # fmt: skip


@cache
def compiled(name: str, dtype: str, lanes: int | None, fused: bool = True) -> CompiledFunction:
    return CompiledFunction(name, dtype, lanes, fused)


def sample(name: str, dtype: str, count: int) -> np.ndarray:
    """Numbers of all magnitudes, of where the function changes, near 1 and near multiples of pi/2."""
    rng = np.random.default_rng(3)
    lo, hi = RANGES[name]
    code = rng.integers(0, 1 << 8 * KINDS[dtype]().itemsize, count, dtype=WORDS[dtype]).view(KINDS[dtype])
    inside = rng.uniform(lo, hi, count)
    near_one = 1 + rng.uniform(-1, 1, count) * 2.0 ** rng.integers(-52, 0, count)
    turns = rng.integers(1, 1 << 24, count) * (np.pi / 2)
    return np.concatenate([code, *(a.astype(KINDS[dtype]) for a in (inside, inside / 128, near_one, turns))])


def of(name: str, dtype: str, *values: Sequence[float], fused: bool = True) -> list[float]:
    """The function of lists of values, with 3 lanes."""
    return compiled(name, dtype, 3, fused)(*(np.array(v, KINDS[dtype]) for v in values)).tolist()


# -- precision ----------------------------------------------------------------------------------------------


@FUSED
@TYPES
@pytest.mark.parametrize("name", UNARY)
def test_results_are_within_two_units_in_the_last_place(name: str, dtype: str, fused: bool) -> None:
    x = sample(name, dtype, 400 if by_elements(name, dtype) else 20_000)
    away = error(compiled(name, dtype, 8, fused)(x), reference(name, x))
    assert away.max() < BOUND, f"{name}({x[away.argmax()]!r})"


@FUSED
@TYPES
def test_powers_are_within_two_units_in_the_last_place(dtype: str, fused: bool) -> None:
    rng, n = np.random.default_rng(4), 400 if by_elements("powf", dtype) else 20_000
    x = np.concatenate([np.exp(rng.uniform(-80, 80, n)), 1 + rng.uniform(-1, 1, n) * 2.0 ** rng.integers(-40, 0, n)])
    y = np.concatenate([rng.uniform(-9, 9, n), rng.uniform(-1, 1, n) * 2.0 ** rng.integers(-10, 60, n)])
    x, y = x.astype(KINDS[dtype]), y.astype(KINDS[dtype])
    away = error(compiled("powf", dtype, 8, fused)(x, y), reference("powf", x, y))
    assert away.max() < BOUND, f"pow({x[away.argmax()]!r}, {y[away.argmax()]!r})"


@pytest.mark.sampled(16)
@FUSED
@TYPES
@pytest.mark.parametrize("name", UNARY)
def test_subnormal_arguments_are_not_taken_for_zero(name: str, dtype: str, fused: bool) -> None:
    x = np.array([1, 2, 3, 12345, 0x3FFFFF, 0x400001], WORDS[dtype]).view(KINDS[dtype])
    x = np.concatenate([x, -x])
    assert error(compiled(name, dtype, 4, fused)(x), reference(name, x)).max() < BOUND


@FUSED
@pytest.mark.parametrize(
    ("name", "dtype", "lo", "hi"),
    [
        *(("exp", "f32", -104, -87), ("exp2", "f32", -150, -126), ("sigmoid", "f32", -104, -87)),
        *(("exp", "f64", -745.2, -708), ("exp2", "f64", -1075, -1022), ("sigmoid", "f64", -745.2, -708)),
    ],
)
def test_results_below_the_smallest_normal_number_are_gradual(
    name: str, dtype: str, lo: float, hi: float, fused: bool
) -> None:
    x = np.linspace(lo, hi, 5001).astype(KINDS[dtype])
    found = compiled(name, dtype, 8, fused)(x)
    assert error(found, reference(name, x)).max() < BOUND
    assert (found > 0).sum() > 4500


@FUSED
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_angles_of_any_size_are_reduced_exactly(name: str, fused: bool) -> None:
    """The first is the f64 closest to a multiple of pi/2; the limit of the common path is among the rest."""
    hard = [6381956970095103 * 2.0**797, 2.0**20, np.nextafter(2.0**20, 0), 1e22, 1.7976931348623157e308, 2.0**1000]
    x = np.array([*hard, *(-h for h in hard), 0.5])
    assert error(compiled(name, "f64", 4, fused)(x), reference(name, x)).max() < 1
    x = np.array([2.0**20, 2.0**127, 3.4028234663852886e38, 16367173.0 * 2.0**72, -1048577.0, 0.5], np.float32)
    assert error(compiled(name, "f32", 4, fused)(x), reference(name, x)).max() < BOUND


def test_sine_and_cosine_share_the_function_for_large_angles() -> None:
    w = Writer()
    for name in ("sin", "cos"):
        for lanes, bits in ((4, 32), (4, 64), (None, 64)):
            mathematics.emit_function(w, name, ["%x"], lanes, bits)
    names = re.findall(r"^define .*?@([\w.]+)\(", "\n".join(w.declared), re.MULTILINE)
    assert len(names) == len(set(names)) == 7
    assert "tw.large_angle" in names


def test_one_large_angle_leaves_the_other_lanes_as_they_are() -> None:
    x = np.linspace(-50, 50, 64).astype(np.float32)
    plain = compiled("sin", "f32", 8)(x)
    x[::8] = 1e30
    mixed = compiled("sin", "f32", 8)(x)
    others = np.arange(64) % 8 != 0
    assert mixed[others].tolist() == plain[others].tolist()
    assert error(mixed, reference("sin", x)).max() < BOUND


# -- values that are known ----------------------------------------------------------------------------------


@FUSED
@TYPES
def test_exp2_of_integers_and_log2_of_powers_of_two_are_exact(dtype: str, fused: bool) -> None:
    lo, hi = (-149, 127) if dtype == "f32" else (-1074, 1023)
    n = np.arange(lo, hi + 1).astype(KINDS[dtype])
    powers = np.ldexp(np.ones(n.size, KINDS[dtype]), n.astype(int))
    assert compiled("exp2", dtype, 8, fused)(n).tolist() == powers.tolist()
    assert compiled("log2", dtype, 8, fused)(powers).tolist() == n.tolist()


SPECIAL = {
    "exp": [(0.0, 1), (-0.0, 1), (inf, inf), (-inf, 0), (nan, nan), (1e4, inf), (-1e4, 0)],
    "exp2": [(0.0, 1), (-0.0, 1), (inf, inf), (-inf, 0), (nan, nan), (1e4, inf), (-1e4, 0)],
    "log": [(0.0, -inf), (-0.0, -inf), (1.0, 0), (inf, inf), (-inf, nan), (-1.0, nan), (-1e-40, nan), (nan, nan)],
    "log2": [(0.0, -inf), (-0.0, -inf), (1.0, 0), (inf, inf), (-inf, nan), (-1.0, nan), (-1e-40, nan), (nan, nan)],
    "log10": [(0.0, -inf), (-0.0, -inf), (1.0, 0), (1000.0, 3), (inf, inf), (-inf, nan), (-1.0, nan), (nan, nan)],
    "expm1": [
        *((0.0, 0), (-0.0, -0.0), (inf, inf), (-inf, -1), (nan, nan), (1e4, inf), (-1e4, -1)),
        *((2.0**-120, 2.0**-120), (-(2.0**-120), -(2.0**-120))),
    ],
    "log1p": [
        *((0.0, 0), (-0.0, -0.0), (inf, inf), (-inf, nan), (nan, nan), (-1.0, -inf), (-1.5, nan)),
        *((2.0**-120, 2.0**-120), (-(2.0**-120), -(2.0**-120))),
    ],
    "sin": [(0.0, 0), (-0.0, -0.0), (inf, nan), (-inf, nan), (nan, nan)],
    "cos": [(0.0, 1), (-0.0, 1), (inf, nan), (-inf, nan), (nan, nan)],
    "tanh": [(0.0, 0), (-0.0, -0.0), (inf, 1), (-inf, -1), (nan, nan), (50.0, 1), (-50.0, -1)],
    "erf": [(0.0, 0), (-0.0, -0.0), (inf, 1), (-inf, -1), (nan, nan), (7.0, 1), (-7.0, -1)],
    "rsqrt": [(0.0, inf), (-0.0, -inf), (inf, 0), (-inf, nan), (-1.0, nan), (4.0, 0.5), (1.0, 1), (nan, nan)],
    "sigmoid": [(0.0, 0.5), (-0.0, 0.5), (inf, 1), (-inf, 0), (nan, nan), (1e4, 1), (-1e4, 0)],
    "sinh": [(0.0, 0), (-0.0, -0.0), (inf, inf), (-inf, -inf), (nan, nan), (1e4, inf), (-1e4, -inf)],
    "cosh": [(0.0, 1), (-0.0, 1), (inf, inf), (-inf, inf), (nan, nan), (1e4, inf), (-1e4, inf)],
    "cbrt": [(0.0, 0), (-0.0, -0.0), (inf, inf), (-inf, -inf), (nan, nan), (27.0, 3), (-8.0, -2), (2.0**-90, 2.0**-30)],
}


@FUSED
@TYPES
@pytest.mark.parametrize("name", UNARY)
def test_special_values(name: str, dtype: str, fused: bool) -> None:
    given, wanted = zip(*SPECIAL[name], strict=True)
    found = of(name, dtype, given, fused=fused)
    assert [repr(v) for v in found] == [repr(float(v)) for v in wanted]  # with the sign of zeros


POWERS = [
    *((x, y, 1) for x in (0.0, -0.0, 3.0, -inf, inf, nan) for y in (0.0, -0.0)),
    *((1.0, y, 1) for y in (inf, -inf, nan, 0.5, -7.0)), (-1.0, inf, 1), (-1.0, -inf, 1),
    (0.0, -3.0, inf), (-0.0, -3.0, -inf), (0.0, -2.0, inf), (-0.0, -2.0, inf), (-0.0, -0.5, inf), (-0.0, -inf, inf),
    (0.0, 3.0, 0), (-0.0, 3.0, -0.0), (-0.0, 2.0, 0), (-0.0, 0.5, 0), (0.0, inf, 0), (-0.0, inf, 0),
    (0.5, -inf, inf), (-0.5, -inf, inf), (2.0, -inf, 0), (-2.0, -inf, 0), (0.5, inf, 0), (2.0, inf, inf),
    (-2.0, inf, inf), (-inf, -3.0, -0.0), (-inf, -2.0, 0), (-inf, -0.5, 0), (-inf, 3.0, -inf), (-inf, 2.0, inf),
    (-inf, 0.5, inf), (inf, -1.0, 0), (inf, 1.0, inf), (inf, inf, inf), (inf, -inf, 0), (-inf, inf, inf),
    (-inf, -inf, 0), (-2.0, 0.5, nan), (-2.0, 3.0, -8), (-2.0, 2.0, 4), (-2.0, -1.0, -0.5), (nan, 1.0, nan),
    (2.0, nan, nan), (-1.5, nan, nan), (3.0, 4.0, 81), (10.0, 2.0, 100), (0.25, -0.5, 2), (2.0, 4096.0, inf),
    (-2.0, 4097.0, -inf), (2.0, -4096.0, 0),
    (-2.0, -4097.0, -0.0), (-3.0, 16777215.0, -inf), (-3.0, 16777216.0, inf), (-1.0, 8388607.0, -1), (7.0, 1.0, 7),
    (1.5, 1e-40, 1), (2.0, 1e38, inf), (0.999, 1e38, 0),
]  # fmt: skip


@FUSED
@TYPES
def test_powers_at_special_values_are_those_of_c99(dtype: str, fused: bool) -> None:
    x, y, wanted = zip(*POWERS, strict=True)
    for given, found, right in zip(POWERS, of("powf", dtype, x, y, fused=fused), wanted, strict=True):
        assert repr(found) == repr(float(right)), given


ANGLES = [
    *((y, x, y) for y in (0.0, -0.0) for x in (0.0, 1.0, inf)), (1.0, inf, 0), (-1.0, inf, -0.0),
    (inf, inf, pi / 4), (-inf, inf, -pi / 4), (inf, -inf, 3 * pi / 4), (-inf, -inf, -3 * pi / 4), (inf, 1.0, pi / 2),
    *((y, x, copysign(pi, y)) for y in (0.0, -0.0) for x in (-0.0, -1.0, -inf)), (-inf, -1.0, -pi / 2),
    (2.0, 0.0, pi / 2), (-2.0, -0.0, -pi / 2), (1.0, 1.0, pi / 4), (3.0, -3.0, 3 * pi / 4), (-3.0, -3.0, -3 * pi / 4),
    (1.0, -inf, pi), (-1.0, -inf, -pi), (nan, 1.0, nan), (1.0, nan, nan), (nan, inf, nan), (0.0, nan, nan),
]  # fmt: skip


@FUSED
@TYPES
def test_angles_of_points_are_within_two_units_and_those_of_c99(dtype: str, fused: bool) -> None:
    rng, n = np.random.default_rng(8), 400 if by_elements("atan2", dtype) else 20_000
    codes = rng.integers(0, 1 << 8 * KINDS[dtype]().itemsize, (2, n), dtype=WORDS[dtype]).view(KINDS[dtype])
    near = rng.normal(size=(2, n)).astype(KINDS[dtype])
    y, x = np.concatenate([codes, near, 1 + near / 16], axis=1)
    away = error(compiled("atan2", dtype, 8, fused)(y, x), reference("atan2", y, x))
    assert away.max() < BOUND, f"atan2({y[away.argmax()]!r}, {x[away.argmax()]!r})"
    y, x, wanted = zip(*ANGLES, strict=True)
    for given, found, right in zip(ANGLES, of("atan2", dtype, y, x, fused=fused), wanted, strict=True):
        assert repr(found) == repr(float(KINDS[dtype](right))), given


@FUSED
@TYPES
def test_remainders_are_exact(dtype: str, fused: bool) -> None:
    """Quotients of any size, subnormal numbers, signs of zeros, and what is no number."""
    rng, n, word, kind = np.random.default_rng(9), 3000, WORDS[dtype], KINDS[dtype]
    special = np.array([0.0, -0.0, 1.0, -1.0, inf, -inf, nan, np.finfo(kind).tiny, np.finfo(kind).max], kind)
    parts = [rng.integers(0, 1 << 8 * kind().itemsize, (2, n), dtype=word).view(kind)]
    parts += [rng.integers(-20, 20, (2, n)).astype(kind), rng.integers(0, 1 << 26, (2, n), dtype=word).view(kind)]
    parts += [np.stack([a.ravel() for a in np.meshgrid(special, special)])]
    x, y = np.concatenate(parts, axis=1)
    found = compiled("remf", dtype, 8, fused)(x, y)
    with np.errstate(all="ignore"):
        wanted = np.fmod(x, y)
    same = (found == wanted) & (np.signbit(found) == np.signbit(wanted))
    assert (same | (np.isnan(found) & np.isnan(wanted))).all()


@FUSED
@TYPES
def test_quotients_and_roots_are_rounded_correctly(dtype: str, fused: bool) -> None:
    rng = np.random.default_rng(5)
    size = 8 * KINDS[dtype]().itemsize
    a, b = rng.integers(0, 1 << size, (2, 30_000), dtype=WORDS[dtype]).view(KINDS[dtype])
    with np.errstate(all="ignore"):
        assert np.array_equal(compiled("div", dtype, 8, fused)(a, b), a / b, equal_nan=True)
        assert np.array_equal(compiled("sqrt", dtype, 8, fused)(a), np.sqrt(a), equal_nan=True)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", UNARY)
def test_narrow_types_are_those_of_f32_rounded_once(name: str, dtype: str) -> None:
    from tilewright.ir import dtypes

    x = np.arange(1 << 16, dtype=np.uint16).view(dtypes.dtype(dtype).numpy)
    found = compiled(name, dtype, 8)(x)
    with np.errstate(all="ignore"):
        wanted = compiled(name, "f32", 8)(x.astype(np.float32)).astype(found.dtype)
    tiny = np.finfo(np.float32).tiny  # AVX-512's conversion to bf16 takes smaller ones for zero
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    assert (same | ((found == 0) & (np.abs(wanted.astype(np.float32)) <= tiny))).all()


# -- machine code -------------------------------------------------------------------------------------------


@pytest.mark.sampled(19)
@FUSED
@TYPES
@pytest.mark.parametrize("name", ALL)
def test_every_number_of_lanes_gives_the_same_bits(name: str, dtype: str, fused: bool) -> None:
    if name in BINARY:
        rng = np.random.default_rng(6)
        arrays = [rng.uniform(0, 9, 500).astype(KINDS[dtype]), rng.uniform(-30, 30, 500).astype(KINDS[dtype])]
    else:
        arrays = [sample(name, dtype, 100)]
    wanted = compiled(name, dtype, 8, fused)(*arrays).view(WORDS[dtype])
    for lanes in (None, 1, 3, 4, 16):
        found = compiled(name, dtype, lanes, fused)(*arrays).view(WORDS[dtype])
        different = found != wanted
        assert np.isnan(found[different].view(KINDS[dtype])).all(), lanes


def outside(data: bytes) -> set[str]:
    """The functions that an object file needs and does not hold: its undefined symbols."""
    if data[:4] != b"\x7fELF":
        pytest.skip("only the object files of Linux are read here")
    sections = {s.name(): s.data() for s in llvm.ObjectFileRef.from_data(data).sections()}
    names = sections[b".strtab"]
    symbols = [(name, section) for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", sections[b".symtab"])]
    return {names[name : names.index(b"\0", name)].decode() for name, section in symbols if name and not section}


def test_a_call_of_a_library_is_noticed() -> None:
    body = "define float @f(float %x) {\n  %y = call float @coshf(float %x)\n  ret float %y\n}\n"
    calling = f"declare float @coshf(float)\n{body}"
    assert outside(HELPER.ask(native("cpu").options.request("object"), calling)) == {"coshf"}


@FUSED
@TYPES
@pytest.mark.parametrize("lanes", [1, 3, 8])  # one number, and what other tests here compile too
@pytest.mark.parametrize("name", ALL)
def test_no_library_is_called(name: str, lanes: int, dtype: str, fused: bool) -> None:
    assert outside(compiled(name, dtype, lanes, fused).object) == set()


@pytest.mark.sampled(31)
@FUSED
@TYPES
@pytest.mark.parametrize("lanes", [4, 16])
@pytest.mark.parametrize("name", ALL)
def test_no_library_is_called_for_other_vectors(name: str, lanes: int, dtype: str, fused: bool) -> None:
    assert outside(compiled(name, dtype, lanes, fused).object) == set()


def test_no_instruction_may_be_inexact() -> None:
    """Neither division nor any other step carries a flag that lets LLVM round it otherwise."""
    for name in (*ALL, "div", "sqrt"):
        for dtype in ("f32", "f64"):
            assert not re.search(r"\b(fast|contract|arcp|reassoc|afn|nnan|ninf|nsz)\b", text(name, dtype, 8))


def test_a_sigmoid_of_f32_has_no_division() -> None:
    """A division of 16 numbers takes as long as all of its exponential."""
    assert "fdiv" not in text("sigmoid", "f32", 16)
