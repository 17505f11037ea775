"""Element types are taken as numpy's, by either name, and as `tkl` has them, wherever one is taken."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.cli.workload import read_types
from tilewright.errors import ArgumentError, DimensionMismatch, ProgramError
from tilewright.ir import dtypes
from tilewright.ir.dtypes import element_type

M, N = tkl.sym.M, tkl.sym.N
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
F32 = [tkl.f32, "f32", "float32", np.float32, np.dtype(np.float32)]


@pytest.mark.parametrize("kind", [t for t in dtypes.ALL.values() if t is not dtypes.index], ids=str)
def test_every_type_has_its_names(kind):
    given = (kind, kind.name, kind.numpy.name, kind.numpy, kind.numpy.type)
    assert all(element_type(x) is kind for x in given)


@pytest.mark.parametrize("bits", [4, 8, 16, 32, 64])
def test_s8_is_i8(bits):
    assert element_type(f"s{bits}") is element_type(f"i{bits}") is getattr(tkl, f"i{bits}")


def test_names_are_ours_before_numpys():
    """numpy's i8 and f4 have eight and four bytes."""
    assert element_type("i8").bits == 8
    with pytest.raises(ProgramError, match="there is no element type f4;"):
        element_type("f4")


@pytest.mark.parametrize("given", ["float33", "", None, 3, float, np.complex64, np.dtype("U3"), [], np.zeros(2)])
def test_what_is_no_element_type(given):
    with pytest.raises(ProgramError, match=r"there is no element type .*; there are "):
        element_type(given)


@pytest.mark.parametrize("f32", F32, ids=repr)
def test_the_tile_language_takes_them(f32):
    @tkw.wave()
    def halves(x: tkl.Memory[M, N, GLOBAL, f32], scale: tkl.f32, y: tkl.Memory[M, N, GLOBAL, np.float16]):
        half = tkl.Register[M, N, f32](0.5) * tkw.scalar(1.0, f32)
        place = tkw.cast(tkw.self_index(N, np.int32), f32)
        tkw.write(tkw.cast(tkw.read(x) * half + place * scale, "float16"), y)

    found = tilewright.compile(halves, target="executor")(np.full((2, 3), 4, np.float32), 2.0)
    assert found.dtype == np.float16
    assert found.tolist() == [[2, 4, 6]] * 2


def test_a_scalar_argument_takes_them():
    @tkw.wave()
    def shifted(x: tkl.Memory[M, GLOBAL, np.float32], by: np.float32, y: tkl.Memory[M, GLOBAL, np.dtype("f4")]):
        tkw.write(tkw.read(x) + by, y)

    assert tilewright.compile(shifted, target="executor")(np.zeros(2, np.float32), 1.5).tolist() == [1.5, 1.5]


def test_what_is_no_type_of_memory():
    with pytest.raises(DimensionMismatch, match="the element type"):
        tkl.Memory[M, GLOBAL, "float33"]


@pytest.mark.parametrize("bf16", ["bf16", "bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16), tkl.bf16])
def test_kernels_and_operations_take_them(bf16):
    assert str(tilewright.kernels.gemm("nn", bf16, np.float32).trace()) == str(
        tilewright.kernels.gemm("nn", "bf16", "f32").trace()
    )
    assert tilewright.matmul(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32), out_dtype=bf16).dtype == (
        ml_dtypes.bfloat16
    )
    layer = tilewright.Conv2d(np.ones((1, 1, 1, 1), np.float32), out_dtype=bf16)
    assert layer.out is tkl.bf16


def test_an_output_type_that_there_is_not():
    with pytest.raises(ArgumentError, match="out_dtype='f13': there is no element type f13; there are "):
        tilewright.matmul(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32), out_dtype="f13")


def test_the_command_line_takes_them():
    assert read_types("float32") == read_types("f32")
    assert read_types("i8") == read_types("s8") == read_types("int8") == ("s8", "s8", "s32")
    assert read_types("uint8:int8:int32") == read_types("u8:i8:i32") == ("u8", "s8", "s32")


INTEGERS = [kind for kind in dtypes.ALL.values() if not kind.is_float and kind.bits <= 16]


@pytest.mark.parametrize("of", INTEGERS, ids=str)
@pytest.mark.parametrize("kind", dtypes.ALL.values(), ids=str)
def test_a_type_holds_another_if_every_value_stays_the_same(kind, of):
    """u8 held i4, and f8e5m2 held u4."""
    values = np.arange(of.limits[0], of.limits[1] + 1)
    if kind.is_float:
        with np.errstate(all="ignore"):
            wide = values.astype(np.float32 if kind.bits < 32 else kind.numpy)
            same = wide.astype(kind.numpy).astype(np.float64) == values
    else:
        same = (kind.limits[0] <= values) & (values <= kind.limits[1])
    assert kind.holds(of) == bool(same.all())
