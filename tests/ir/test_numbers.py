"""Numbers of numpy's in programs: they are Python's there, print as such, and are read back as what they were."""

from __future__ import annotations

import platform
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.algebra.expr import as_expr, index
from tilewright.ir.attrs import Range
from tilewright.ir.binding import bind
from tilewright.ir.block import BLOCK, parse_block
from tilewright.ir.builder import Builder
from tilewright.ir.dtypes import f32, plain_number
from tilewright.ir.formula import Formula
from tilewright.ir.tensors import TensorType
from tilewright.ir.tile import parse_tile

M, N = tkl.sym.M, tkl.sym.N
f32_mn = tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32]
i32_mn = tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.i32]

FLOATS = {
    "1.4142135623730951": np.sqrt(2.0),
    "0.10000000149011612": np.float32(0.1),
    "0.0999755859375": np.float16(0.1),
    "0.10009765625": ml_dtypes.bfloat16(0.1),
    "0.1015625": ml_dtypes.float8_e4m3fn(0.1),
    "3": np.int64(3),
    "-5": np.int8(-5),
    "2": ml_dtypes.int4(2),
    "1": np.bool_(True),
    "0": False,
    "inf": np.float32("inf"),
    "2.5": np.array(2.5),
}


@pytest.mark.parametrize("text", FLOATS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_number_of_numpys_prints_as_a_number_and_parses_back(text: str, side: str) -> None:
    number = FLOATS[text]

    @tkw.wave()
    def kernel(x: f32_mn, y: f32_mn):
        tile = tkw.read(x)
        tkw.write(number * tile if side == "left" else tile * number, y)

    program = kernel.trace()
    assert f"value={text} dtype=f32" in str(program)
    assert parse_tile(str(program)) == program
    assert str(parse_tile(str(program))) == str(program)
    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(tilewright.compile(str(program), target="executor")(x), x * np.float32(number))


def test_numbers_of_numpys_are_taken_wherever_constants_are() -> None:
    @tkw.wave([tkw.TilingConstraint(N, np.int64(2)), tkw.WorkgroupConstraint(M, np.int32(4), np.int64(0))])
    def kernel(x: f32_mn, k: i32_mn, y: f32_mn):
        @tkw.iterate(N, init_args=[tkl.Register[M, tkl.f32](np.float32(0.25))])
        def total(acc):
            return tkw.sum(tkw.read(x), acc, dim=N)

        tile = tkw.maximum(tkw.read(x, otherwise=np.float16(1.5)), np.float32(0.5)) + total
        tile = tkw.select(tkw.read(k) > np.int8(1), tile, np.float64(0.125))
        tkw.write(tile + tkw.scalar(np.float32(2.0), tkl.f32) + tkw.cast(tkw.scalar(np.True_, tkl.i32), tkl.f32), y)

    program = kernel.trace()
    assert "np." not in str(program)
    assert parse_tile(str(program)) == program
    for op in [*program.walk(), *program.records]:
        assert not [v for v in op.attrs.values() if isinstance(v, np.generic)]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    k = np.array([[0, 1, 2], [3, 0, 1]], np.int32)
    total = x.sum(axis=1, keepdims=True) + 0.25
    wanted = np.where(k > 1, np.maximum(x, 0.5) + total, 0.125) + 3
    assert np.array_equal(tilewright.compile(program, target="executor")(x, k), wanted)


def test_a_float_of_numpys_beside_integers_is_refused_as_pythons_is() -> None:
    @tkw.wave()
    def kernel(x: i32_mn, y: i32_mn):
        tkw.write(tkw.read(x) * np.float32(1.5), y)

    with pytest.raises(tilewright.errors.DtypeMismatch, match=r"mul of a tile of i32 and the number 1\.5"):
        kernel.trace()


def test_expressions_take_integers_of_numpys_on_both_sides() -> None:
    assert np.int64(3) * M is 3 * M
    assert M * np.int64(3) is 3 * M
    assert (np.int32(2) + M) // np.int8(4) is (M + 2) // 4


def test_a_block_program_holds_plain_numbers() -> None:
    b = Builder(BLOCK)
    x, y = (
        b.argument(name, TensorType("global", f32, (as_expr(4), as_expr(8)), role=role))
        for name, role in (("x", "in"), ("y", "out"))
    )
    loop, j = Range.of("m", 0, 4), index("j", 8)
    with b.inside("tasks", attrs={"ranges": (loop,)}):
        over: dict[str, Any] = {"over": (j,), "at": ((loop.symbol, False), (j, False))}
        (row,), (to,) = (b.emit("view", (v,), over, names=(n,)).results for v, n in ((x, "row"), (y, "to")))
        b.emit("fill", (to,), {"value": np.float32(0.1)})
        product = Formula("mul", (Formula.operand(1), Formula.number(np.sqrt(2.0))))
        b.emit("map", (to, row), {"formula": product})
    text = str(b.program("half"))
    assert "fill %to 0.10000000149011612" in text
    assert "map %to = %row*1.4142135623730951" in text
    assert str(parse_block(text)) == text


def test_parameters_take_integers_of_numpys() -> None:
    text = "block zero(%y: out global f32 (M))\n  param M in 1..9\n{\n  fill %y 0\n}"
    found = bind(parse_block(text), {"M": np.int64(3)})
    assert found == bind(parse_block(text), {"M": 3})


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="machine code is for x86")
def test_options_of_layers_take_integers_of_numpys() -> None:
    x, w = np.ones((1, 5, 4), np.float32), np.ones((2, 3, 2), np.float32)
    made = tilewright.conv1d(x, w, groups=np.int64(2), padding=np.int64(1), stride=np.int32(2))
    assert made.tolist() == [[[4, 4], [6, 6], [4, 4]]]


def test_what_is_no_number_is_none() -> None:
    for x in ("3", None, 3j, np.complex64(1), np.str_("a"), np.array([1]), [1], np.ma.masked, object()):
        assert plain_number(x) is None
    assert type(plain_number(np.longdouble(0.5))) is float
