"""Small integer powers are products: the executor and machine code give the same bits, those of the products."""

import numpy as np
import pytest
from tile_checks import own_cache, same_bits  # noqa: F401

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import DtypeMismatch
from tilewright.lang.global_symbols import GLOBAL_ADDRESS_SPACE

M, N = tkl.sym.M, tkl.sym.N
PRODUCTS = {
    0: lambda x: tkl.Register[M, N, x.type.dtype](1),
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    4: lambda x: (x * x) * (x * x),
    5: lambda x: (x * x) * (x * x) * x,
    6: lambda x: (x * x * x) * (x * x * x),
    7: lambda x: (x * x * x) * (x * x * x) * x,
    8: lambda x: ((x * x) * (x * x)) * ((x * x) * (x * x)),
    -1: lambda x: 1 / x,
    -2: lambda x: 1 / (x * x),
    -3: lambda x: 1 / (x * x * x),
}


def of_elements(function, dtype):
    @tkw.wave()
    def kernel(x: tkl.Memory[M, N, GLOBAL_ADDRESS_SPACE, dtype], y: tkl.Memory[M, N, GLOBAL_ADDRESS_SPACE, dtype]):
        tkw.write(function(tkw.read(x)), y)

    return kernel


def data(dtype, shape):
    rng = np.random.default_rng(3)
    return (rng.normal(size=shape) * 3).astype(dtype.numpy)


@pytest.mark.sampled(15)
@pytest.mark.parametrize("dtype", [tkl.f32, tkl.f16, tkl.bf16, tkl.i8, tkl.i32], ids=str)
@pytest.mark.parametrize("exponent", PRODUCTS)
def test_a_small_power_was_not_the_product_bit_for_bit(dtype, exponent):
    if exponent < 0 and not dtype.is_float:
        return
    x = data(dtype, (5, 37))
    wanted = tilewright.compile(of_elements(PRODUCTS[exponent], dtype), target="executor")(x)
    given = 1.0 * exponent if dtype.is_float and exponent % 2 else exponent  # 3.0 is an integer, too
    found = same_bits(of_elements(lambda t: t**given, dtype), [x], x.shape, dtype.name)
    assert found.tobytes() == wanted.tobytes()


def test_every_form_of_a_power_is_the_same():
    forms = (lambda t: t**3, lambda t: tkw.powf(t, 3), lambda t: np.power(t, 3), lambda t: t ** np.float32(3))
    assert len({tilewright.compile(of_elements(f, tkl.f32), target="executor").text() for f in forms}) == 1


def test_integer_tiles_had_no_powers_as_machine_code():
    x = np.arange(-7, 8, dtype=np.int32).reshape(3, 5)
    for exponent in (9, 31, 300):
        found = same_bits(of_elements(lambda t, n=exponent: t**n, tkl.i32), [x], x.shape, "i32")
        assert found.tolist() == [[_wrapped(int(v) ** exponent) for v in row] for row in x]


def _wrapped(number):
    return (number + 2**31) % 2**32 - 2**31


def test_a_negative_power_of_an_integer_tile_is_refused_at_its_line():
    with pytest.raises(DtypeMismatch, match=r"\*\* -2 of a tile of i8: .*tkw.cast\(x, tkl.f32\)") as caught:
        tilewright.compile(of_elements(lambda t: t**-2, tkl.i8), target="executor")
    assert "t**-2" in str(caught.value)


def test_other_powers_are_computed_as_before():
    text = tilewright.compile(of_elements(lambda t: t**0.5 + t**9 + 2**t, tkl.f32), target="executor").text()
    assert text.count("powf") == 3
