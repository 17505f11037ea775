"""Reductions over several dimensions: one after another, in the wide type, rounded once."""

import numpy as np
import pytest
from tile_checks import own_cache, three_ways  # noqa: F401

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.errors import DimensionMismatch, DtypeMismatch
from tilewright.lang.global_symbols import GLOBAL_ADDRESS_SPACE
from tilewright.targets.registry import machine

M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
AXES = {M: 0, N: 1, K: 2}
REDUCED = [([M, N], [K]), ([N, M], [K]), ((N, K), [M]), ([M, K], [N]), ([M, N, K], [])]


def reduced(name, dims, left, dtype):
    @tkw.wave()
    def kernel(
        x: tkl.Memory[M, N, K, GLOBAL_ADDRESS_SPACE, dtype], y: tkl.Memory[(*left, GLOBAL_ADDRESS_SPACE, dtype)]
    ):
        tkw.write(getattr(tkw, name)(tkw.read(x), dim=dims), y)

    return kernel


def small(name, shape):
    """Integers whose sums and products are small."""
    rng = np.random.default_rng(5)
    if name != "prod":
        return rng.integers(-2, 3, shape)
    return rng.choice([1, -1], shape) * np.where(rng.random(shape) < 3 / np.prod(shape), 2, 1)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [tkl.f32, tkl.f16, tkl.bf16, tkl.i8, tkl.i32], ids=str)
@pytest.mark.parametrize("name", ["sum", "max", "min", "prod"])
def test_reductions_over_several_dimensions_were_refused(name, dtype):
    for shape in ((3, 5, 7), (2, 1, 33)):
        x = small(name, shape)
        for dims, left in REDUCED:
            wanted = getattr(np, name)(x, axis=tuple(AXES[d] for d in dims)).astype(dtype.numpy)
            found = three_ways(reduced(name, dims, left, dtype), x.astype(dtype.numpy))[0]
            assert np.array_equal(found, wanted), (shape, dims)


@pytest.mark.parametrize(("dims", "left"), REDUCED)
def test_several_dimensions_on_a_gpu_s_interpreter_and_with_dynamic_sizes(dims, left):
    x = small("sum", (4, 13, 67)).astype(np.float16)
    wanted = x.astype(np.float32).sum(axis=tuple(AXES[d] for d in dims)).astype(np.float16)
    y = np.full(wanted.shape, np.nan, np.float16)
    kernel = reduced("sum", dims, left, tkl.f16)
    kernel_for(kernel, {"M": 4, "N": 13, "K": 67}, machine=machine("hopper")).bind({"x": x, "y": y})()
    assert np.array_equal(y, wanted)
    assert np.array_equal(tilewright.compile(kernel, dynamic=["M", "N"])(x), wanted)


def test_partial_sums_of_f16_are_not_rounded():
    x = np.ones((1, 4, 1025), np.float16)  # 4 * 1025 is no f16, and 1025 + 1025 + ... in f16 is another one
    assert three_ways(reduced("sum", [N, K], [M], tkl.f16), x)[0].tolist() == [np.float16(4100)]
    large = np.full((1, 2, 40), 1000, np.float16) * np.array([1, -1], np.float16)[None, :, None] * 2
    assert three_ways(reduced("sum", [N, K], [M], tkl.f16), large)[0].tolist() == [0]  # 80000 is beyond f16


@pytest.mark.parametrize("axis", [K, M])
@pytest.mark.parametrize("dtype", [tkl.f32, tkl.f16, tkl.i8], ids=str)
def test_an_accumulator_over_several_dimensions(axis, dtype):
    @tkw.wave()
    def kernel(x: tkl.Memory[M, N, K, GLOBAL_ADDRESS_SPACE, dtype], y: tkl.Memory[N, GLOBAL_ADDRESS_SPACE, dtype]):
        @tkw.iterate(axis, init_args=[tkl.Register[N, dtype](1)])
        def total(acc):
            return tkw.sum(tkw.read(x), acc, dim=[M, K])

        tkw.write(total, y)

    x = small("sum", (9, 3, 70))
    found = three_ways(kernel, x.astype(dtype.numpy))[0]
    assert np.array_equal(found, (1 + x.sum(axis=(0, 2))).astype(dtype.numpy))


@pytest.mark.parametrize(
    ("function", "error", "says"),
    [
        (lambda t: tkw.sum(t, dim=[]), DimensionMismatch, r"sum: dim=\[\] names no dimension; name some, or leave"),
        (lambda t: tkw.max(t, dim=[M, M]), DimensionMismatch, r"max over \[M, M\]: M stands there twice"),
        (lambda t: tkw.sum(t, dim=[M, K]), DimensionMismatch, r"sum over \[M, K\]: .* \[M, N\], and K is none of them"),
        (lambda t: tkw.cumsum(t, dim=[M, N]), DimensionMismatch, "cumsum takes one dimension, not several"),
        (lambda t: tkw.topk(t, 1, [M, N]), DimensionMismatch, "topk takes one dimension, not several"),
        (
            lambda t: tkw.sum(t, tkw.cast(tkw.sum(t, dim=N), tkl.f16), dim=N),
            DtypeMismatch,
            "sum of f32 with an accumulator of f16: the element types differ; cast one",
        ),
    ],
)
def test_dimensions_that_cannot_be_reduced_are_named_at_the_line(function, error, says):
    @tkw.wave()
    def kernel(x: tkl.Memory[M, N, GLOBAL_ADDRESS_SPACE, tkl.f32], y: tkl.Memory[M, GLOBAL_ADDRESS_SPACE, tkl.f32]):
        tkw.write(function(tkw.read(x)), y)

    with pytest.raises(error, match=says) as caught:
        tilewright.compile(kernel, target="executor")
    assert __file__ in str(caught.value)
