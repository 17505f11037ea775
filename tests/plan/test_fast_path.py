"""Products keep the machine's atoms through what authors write around them; where they do not, it is said."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tile_checks import own_cache  # noqa: F401

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.kernels import resolve
from tilewright.compiler.native import NativeExecutable
from tilewright.driver import pipeline
from tilewright.errors import ArgumentError, FastPathLost, NoAtoms
from tilewright.ir.tile import parse_tile
from tilewright.kernels.gemm import gemm
from tilewright.kernels.softmax import softmax
from tilewright.targets.cpu.host import host_machine
from tilewright.targets.registry import machine

M, N, K, B = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.B
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def product(end, kind=tkl.f32, out=None):
    """A matrix product with a bias, whose epilogue is the caller's."""
    out = out or kind

    @tkw.wave()
    def made(
        a: tkl.Memory[M, K, GLOBAL, kind],
        b: tkl.Memory[N, K, GLOBAL, kind],
        bias: tkl.Memory[N, GLOBAL, kind.accumulator],
        c: tkl.Memory[M, N, GLOBAL, out],
    ):
        @tkw.iterate(K, init_args=[tkl.Register[M, N, kind.accumulator](0)])
        def total(acc):
            return tkw.mma(tkw.read(a), tkw.read(b), acc)

        tkw.write(tkw.cast(end(total, tkw.read(bias)), out), c)

    return made


def integers(rng, shape, dtype):
    return rng.integers(-3, 4, shape).astype(dtype)


def through_atoms(kernel, *inputs, symbols=None):
    """(natively, by the executor), where the native program is known to multiply by atoms."""
    run = tilewright.compile(kernel, symbols or {}, target="cpu", require_atoms=True)
    found = run(*inputs)
    assert re.search(r"\bmma %\w+ \+= ", run.text("block")), run.explain()
    return found, tilewright.compile(kernel, symbols or {}, target="executor")(*inputs)


# -- numbers in an epilogue -------------------------------------------------------------------------------

EXACT = {
    "scaled": lambda t, b: t * 2.0,
    "scaled from the left": lambda t, b: 2.0 * (t + b),
    "an integer": lambda t, b: t + 3,
    "maximum": lambda t, b: tkw.maximum(t, 0.0),
    "clamped": lambda t, b: tkw.minimum(tkw.maximum(t + b, -4.5), 6.0),
    "select": lambda t, b: tkw.select(t > 1.0, t, b),
    "leaky": lambda t, b: tkw.select(t > 0.0, t, t * 0.125),
    "a remainder": lambda t, b: t % 3.0,
    "a tile of one number": lambda t, b: t * tkl.Register[M, N, tkl.f32](0.5),
    "steps that round": lambda t, b: tkw.cast(tkw.cast(t, tkl.bf16) * 1.25, tkl.f32),
    "to integers and back": lambda t, b: tkw.cast(tkw.cast(t * 0.75, tkl.i8), tkl.f32),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("end", EXACT.values(), ids=EXACT)
@pytest.mark.parametrize(("m", "n", "k"), [(5, 7, 11), (17, 33, 8)])
def test_a_number_in_an_epilogue_loses_no_atoms(end, m, n, k):
    rng = np.random.default_rng(0)
    inputs = [integers(rng, shape, np.float32) for shape in ((m, k), (n, k), (n,))]
    found, wanted = through_atoms(product(end), *inputs)
    np.testing.assert_array_equal(found, wanted)


SMOOTH = {
    "gelu by tanh": lambda t, b: 0.5 * t * (1.0 + tkw.tanh(0.7978845608 * (t + 0.044715 * t * t * t))),
    "gelu by erf": lambda t, b: (t + b) * (1.0 + tkw.erf((t + b) * 0.70710678)) * 0.5,
    "swish": lambda t, b: t / (1.0 + tkw.exp(-t)),
    "a power": lambda t, b: tkw.powf(tkw.abs(t) + 1.0, 1.5),
}


@pytest.mark.parametrize("end", SMOOTH.values(), ids=SMOOTH)
def test_a_handwritten_activation_loses_no_atoms(end):
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in ((9, 6), (20, 6), (20,))]
    found, wanted = through_atoms(product(end), *inputs)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("out", [tkl.bf16, tkl.f32])
def test_a_number_in_an_epilogue_of_bf16(out):
    rng = np.random.default_rng(1)
    inputs = [integers(rng, shape, ml_dtypes.bfloat16) for shape in ((6, 8), (19, 8))]
    found, wanted = through_atoms(
        product(lambda t, b: tkw.maximum(t * 0.375 + b, -1.0), tkl.bf16, out), *inputs, integers(rng, (19,), np.float32)
    )
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


def test_a_float_becomes_an_integer_within_its_limits():
    """A cast in an epilogue means what it means elsewhere: towards zero, and kept within the type's range."""
    a = np.array([[300.0], [-300.0], [2.75], [-2.75], [np.nan]], np.float32)
    b, bias = np.ones((3, 1), np.float32), np.zeros(3, np.float32)
    found, wanted = through_atoms(product(lambda t, b: t, out=tkl.i8), a, b, bias)
    np.testing.assert_array_equal(found, wanted)
    assert found[:, 0].tolist() == [127, -128, 2, -2, 0]


# -- dimensions beside the loop's -------------------------------------------------------------------------


def conv_tile():
    """docs/levels.md's own program."""
    text = (Path(__file__).parents[2] / "docs/levels.md").read_text()
    shown = text.split("conv_tile = tilewright.compile('''")[1].split("''')")[0]
    return "\n".join(line.removeprefix("... ") for line in shown.splitlines())


@pytest.mark.parametrize("axis", ["C", "R", "S"])
@pytest.mark.parametrize("shape", [(2, 4, 5, 3, 20), (1, 3, 7, 8, 9), (1, 5, 4, 1, 3)])
def test_separate_taps_lose_no_atoms(axis, shape):
    n, h, w, c, f = shape
    rng = np.random.default_rng(3)
    image, filters = integers(rng, (n, h, w, c), np.float32), integers(rng, (3, 3, c, f), np.float32)
    found, wanted = through_atoms(conv_tile().replace("axis=(C)", f"axis=({axis})"), image, filters)
    np.testing.assert_array_equal(found, wanted)
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)))
    by_numpy = sum(padded[:, r : r + h, s : s + w] @ filters[r, s] for r in range(3) for s in range(3))
    np.testing.assert_array_equal(found, np.maximum(by_numpy, 0))


def test_a_batch_of_one_is_multiplied():
    """It failed with "there is no symbol b_0"."""
    rng = np.random.default_rng(4)
    inputs = [integers(rng, shape, np.float32) for shape in ((1, 3, 5), (1, 4, 5))]
    found, wanted = through_atoms(gemm("nt", "f32", batched=True), *inputs)
    np.testing.assert_array_equal(found, wanted)


# -- products anywhere in a program -----------------------------------------------------------------------


def several(kind=tkl.f32):
    """Arithmetic on a factor, a product of a product, and a reduction of it, in one kernel."""

    @tkw.wave()
    def chained(
        a: tkl.Memory[M, K, GLOBAL, kind],
        b: tkl.Memory[N, K, GLOBAL, kind],
        d: tkl.Memory[B, N, GLOBAL, kind],
        c: tkl.Memory[M, B, GLOBAL, tkl.f32],
        largest: tkl.Memory[M, GLOBAL, tkl.f32],
    ):
        first = tkw.mma(tkw.abs(tkw.read(a)), tkw.read(b), tkl.Register[M, N, tkl.f32](0.0))
        second = tkw.mma(tkw.cast(first, kind), tkw.read(d), tkl.Register[M, B, tkl.f32](1.0))
        tkw.write(second, c)
        tkw.write(tkw.max(second, dim=B), largest)

    return chained


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (5, 7, 3, 11), (33, 20, 17, 40), (67, 96, 64, 34)])
@pytest.mark.parametrize("kind", [tkl.f32, tkl.bf16])
def test_several_products_and_what_lies_between_them_keep_atoms(sizes, kind):
    m, n, k, b = sizes
    rng = np.random.default_rng(8)
    inputs = [rng.integers(-1, 2, shape).astype(kind.numpy) for shape in ((m, k), (n, k), (b, n))]
    found, wanted = through_atoms(several(kind), *inputs)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("row", ["x86.avx2", "x86.avx512", "x86.amx", "aarch64.neon.fullfp16.dotprod"])
@pytest.mark.parametrize("sizes", [(5, 7, 3, 11), (35, 20, 70, 40)])
def test_every_cpu_multiplies_several_times(row, sizes):
    """The programs of each machine give what the tile program means, on the interpreter."""
    m, n, k, b = sizes
    rng = np.random.default_rng(9)
    inputs = [rng.integers(-1, 2, shape).astype(ml_dtypes.bfloat16) for shape in ((m, k), (n, k), (b, n))]
    made = tilewright.compile(several(tkl.bf16), target=f"cpu:{row}")
    text = made.text("host", {"M": m, "N": n, "K": k, "B": b})
    assert len(re.findall(r"\bmma %\w+ \+= ", text)) >= 2
    programs = made.of_sizes({"M": m, "N": n, "K": k, "B": b}).executor._prepared.values()
    assert not [program.kernel.slow for program in programs if program.kernel.slow], (
        "tiles are free after their last use"
    )
    results = np.full((m, b), np.nan, np.float32), np.full(m, np.nan, np.float32)
    tilewright.compile_text(text, "interpreter")(*inputs, *results)
    for mine, theirs in zip(results, tilewright.compile(several(tkl.bf16), target="executor")(*inputs), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_plan_says_by_what_each_product_is_done():
    rng = np.random.default_rng(8)
    inputs = [rng.integers(-1, 2, shape).astype(np.float32) for shape in ((19, 9), (7, 9), (5, 7))]
    run = tilewright.compile(several(), target="cpu")
    wanted = run(*inputs)
    first, second = run.text("plan").splitlines()[-2:]
    assert first.startswith("mma by ")
    atom = re.fullmatch(r"mma2 by (\S+), tile \d+x(\d+)", second)
    edited = run.text("plan").replace(second, f"mma2 by {atom[1]}, tile 3x{atom[2]}").replace(first, "mma by loops")
    pinned = tilewright.compile(several(), target="cpu", plan=edited)
    for mine, theirs in zip(pinned(*inputs), wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert pinned.text("plan") == edited
    assert "map %acc = %acc + " in pinned.text("block")  # the first by loops
    assert "map %acc = %acc + " not in run.text("block")
    for wrong, why in [
        (second.replace("mma2", "mma3"), "no product mma3; there are mma, mma2"),
        ("mma2 by nothing.f32, tile 1x1", "no multiplication atom 'nothing.f32'"),
        (f"mma2 by {atom[1]}, tile 99x{atom[2]}", "an accumulator tile and both operands take"),
    ]:
        with pytest.raises(ArgumentError, match=why):
            tilewright.compile(several(), target="cpu", plan=edited.replace(edited.splitlines()[-1], wrong))(*inputs)


# -- where atoms are lost ---------------------------------------------------------------------------------


def batch_last():
    """Both factors keep the last dimension of the sum, and one is computed: no atom, and no vectors along it."""

    @tkw.wave()
    def beside(
        a: tkl.Memory[M, K, B, GLOBAL, tkl.f32],
        b: tkl.Memory[N, K, B, GLOBAL, tkl.f32],
        c: tkl.Memory[M, N, B, GLOBAL, tkl.f32],
    ):
        zero = tkl.Register[M, N, B, tkl.f32](0.0)
        tkw.write(tkw.mma(tkw.abs(tkw.read(a)), tkw.read(b), zero), c)  # the author's line

    return beside


@pytest.fixture
def in_the_authors_order(monkeypatch):
    """Programs are not written in one order before they are planned: a product without an atom stays one."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "off")
    kept = tuple(step for step in pipeline.REWRITES if step[0] != "canonical")
    monkeypatch.setattr(pipeline, "REWRITES", kept)


ARRAYS = np.zeros((2, 3), np.float32), np.ones((4, 3), np.float32)
BATCHED = np.ones((2, 3, 5), np.float32), np.ones((4, 3, 5), np.float32)


def test_lost_atoms_are_reported_once_at_the_authors_line(in_the_authors_order):
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        run = tilewright.compile(batch_last(), target="cpu")
        run(*BATCHED)
        run(BATCHED[0][:1].copy(), BATCHED[1])
    (only,) = reported
    assert only.category is FastPathLost
    assert only.filename == __file__
    assert "# the author's line" in Path(__file__).read_text().splitlines()[only.lineno - 1]
    assert "both operands have B, the last dimension of the result" in str(only.message)
    assert f"not on {host_machine().name}'s " in str(only.message)
    assert "mma" not in run.text("block")
    np.testing.assert_array_equal(run(*BATCHED), np.full((2, 4, 5), 3.0))


def test_a_text_is_reported_where_it_is_called(in_the_authors_order):
    run = tilewright.compile(str(batch_last().trace()), target="cpu")
    with pytest.warns(FastPathLost, match=r"this product (.*\n)+ *%\d+ = mma .* : f32\[M, N, B\]") as reported:
        run(*BATCHED)
    assert reported[0].filename == __file__


def test_require_atoms_refuses_a_program_that_has_none(in_the_authors_order):
    strict = tilewright.compile(batch_last(), target="cpu", require_atoms=True)
    with pytest.raises(NoAtoms, match="both operands have B") as fault:
        strict(*BATCHED)
    assert fault.value.location.file == __file__


WORDS = np.ones((2, 3), np.int64), np.ones((4, 3), np.int64), np.ones(4, np.int64)


def test_require_atoms_refuses_types_without_atoms():
    run = tilewright.compile(product(lambda t, b: t + b, tkl.i64), target="cpu", require_atoms=True)
    with pytest.raises(NoAtoms, match="none for its types"):
        run(*WORDS)


def test_types_without_atoms_are_nothing_to_report():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tilewright.compile(product(lambda t, b: t + b, tkl.i64), target="cpu")(*WORDS)
    np.testing.assert_array_equal(found, np.full((2, 4), 4))


def test_loops_that_a_plan_asks_for_are_not_reported():
    kernel = gemm("nt", "f32")
    probe = tilewright.compile(kernel, target="cpu")
    probe.path = "general"
    plan = re.sub("mma by .*", "mma by loops", probe.text("plan", {"M": 2, "N": 4, "K": 3}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = tilewright.compile(kernel, target="cpu", plan=plan)
        np.testing.assert_array_equal(run(*ARRAYS), np.zeros((2, 4)))
    assert "mma" not in run.text("block")


def test_programs_without_products_need_no_atoms():
    run = tilewright.compile(softmax(), target="cpu", require_atoms=True)
    np.testing.assert_allclose(run(np.zeros((2, 4), np.float32)), np.full((2, 4), 0.25))


def test_the_executor_has_no_atoms_to_require():
    with pytest.raises(ArgumentError, match="require_atoms"):
        tilewright.compile(batch_last(), require_atoms=True, target="executor")


# -- on machines that are described -----------------------------------------------------------------------


def interpreted_on(row, program, sizes, arrays):
    """The result of a contraction as a machine would do it, on the interpreter; its block program has products."""
    made = NativeExecutable(program, resolve(program.bindings), "interpreter", machine=machine(row))
    text = made.of_sizes(sizes).text("host")
    assert re.search(r"\bmma %\w+ \+= ", text)
    run = tilewright.compile_text(text, "interpreter")
    run.bind(*(arrays[a.name] for a in run.main.args))()


@pytest.mark.parametrize("row", ["x86.avx2", "x86.avx512f", "x86.avx512", "x86.amx", "aarch64.neon"])
def test_every_cpu_finishes_with_numbers(row):
    rng = np.random.default_rng(5)
    kernel = product(lambda t, b: tkw.select(t > 1.0, tkw.maximum(t * 0.5, b), b * 2.0), tkl.bf16, tkl.f32)
    a, b = (integers(rng, shape, ml_dtypes.bfloat16) for shape in ((19, 40), (21, 40)))
    bias, result = integers(rng, (21,), np.float32), np.full((19, 21), np.nan, np.float32)
    interpreted_on(row, kernel.trace(), {"M": 19, "N": 21, "K": 40}, {"a": a, "b": b, "bias": bias, "c": result})
    np.testing.assert_array_equal(result, tilewright.compile(kernel, target="executor")(a, b, bias))


@pytest.mark.parametrize("row", ["x86.avx2", "x86.avx512f", "x86.avx512", "x86.amx", "aarch64.neon"])
def test_every_cpu_sums_over_separate_taps(row):
    rng = np.random.default_rng(6)
    text = conv_tile().replace("f32[N, H", "bf16[N, H").replace("global f32[R", "global bf16[R")
    text = text.replace("f32[N, P, Q, R", "bf16[N, P, Q, R").replace(": f32[R, S", ": bf16[R, S")
    x, w = integers(rng, (1, 4, 5, 6), ml_dtypes.bfloat16), integers(rng, (3, 3, 6, 18), ml_dtypes.bfloat16)
    result = np.full((1, 4, 5, 18), np.nan, np.float32)
    sizes = {"N": 1, "H": 4, "W": 5, "C": 6, "R": 3, "S": 3, "F": 18}
    interpreted_on(row, parse_tile(text), sizes, {"x": x, "w": w, "y": result})
    np.testing.assert_array_equal(result, tilewright.compile(text, target="executor")(x, w))
