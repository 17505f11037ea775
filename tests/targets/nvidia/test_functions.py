"""Functions of f32 by NVIDIA's approximations: how good they are, and how many instructions they take."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from assembler import assembled, ptxas
from pinned_plans import first_plan, on_operands_as_they_lie

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import compile_text, kernels
from tilewright.compiler.native import kernel_for
from tilewright.ir import dtypes
from tilewright.ir.formula import BINARY, FUNCTIONS, Formula
from tilewright.targets.gpu.formulas import accuracy_of_part
from tilewright.targets.nvidia import functions
from tilewright.targets.registry import machine

Array = np.ndarray[Any, Any]
F32 = np.float32


def byte_weights() -> Any:
    """y = x w, with weights of i8."""
    m, n, k = (getattr(tkl.sym, s) for s in "MNK")
    space = tkl.GLOBAL_ADDRESS_SPACE

    @tkw.wave()
    def byte_weights(
        x: tkl.Memory[m, k, space, tkl.bf16], w: tkl.Memory[n, k, space, tkl.i8], y: tkl.Memory[m, n, space, tkl.bf16]
    ) -> None:
        @tkw.iterate(k, init_args=[tkl.Register[m, n, tkl.f32](0)])
        def total(acc: Any) -> Any:
            return tkw.mma(tkw.read(x), tkw.cast(tkw.read(w), tkl.bf16), acc)

        tkw.write(tkw.cast(total, tkl.bf16), y)

    return byte_weights


def fused(a: Array, b: Array, c: Any) -> Array:
    """a*b + c, rounded once: 64 bits hold the product."""
    found: Array = (a.astype(np.float64) * b.astype(np.float64) + np.asarray(c, np.float64)).astype(F32)
    return found


def polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    found = np.full(x.shape, F32(coefficients[-1]))
    for c in reversed(coefficients[:-1]):
        found = fused(found, x, F32(c))
    return found


def power_of_two(x: Array, off: int) -> Array:
    """The machine's exp2, which may be off by two units."""
    near = np.exp2(x.astype(np.float64)).astype(F32)
    found: Array = (near + F32(off) * np.spacing(near)).astype(F32)
    return found


def near_one(x: Array, coefficients: tuple[float, ...], off: int) -> Array:
    exponent = -(x * polynomial(x, coefficients)).astype(F32)
    found: Array = (F32(1) - power_of_two(exponent, off)).astype(F32)
    return found


def exact_erf(x: Array) -> Array:
    return np.array([math.erf(float(v)) for v in x])


@pytest.mark.parametrize("off", [-2, 0, 2])
def test_erf_is_within_two_units_in_the_last_place(off: int) -> None:
    small = np.linspace(1e-7, functions.ERF_SMALL, 40_000, endpoint=False).astype(F32)
    large = np.linspace(functions.ERF_SMALL, 4.5, 60_000).astype(F32)
    got = np.concatenate(
        [
            fused(small, polynomial((small * small).astype(F32), functions.ERF), small),
            near_one(np.minimum(large, F32(4)), functions.ERFC, off),
        ]
    )
    wanted = exact_erf(np.concatenate([small, large]))
    units = np.abs(got - wanted) / np.spacing(wanted.astype(F32))
    assert units.max() < 2


@pytest.mark.parametrize("off", [-2, 0, 2])
def test_what_is_added_to_one_is_as_good_beside_it(off: int) -> None:
    x = np.linspace(0, 6, 100_000).astype(F32)
    assert np.abs(near_one(x, functions.ERFC_ALL, off) - exact_erf(x)).max() < 2.0**-21
    far = np.exp2(np.linspace(2, 120, 5000)).astype(F32)
    with np.errstate(over="ignore"):
        assert (near_one(far, functions.ERFC_ALL, 0) == 1).all()


def tanh(x: Array, off: int) -> Array:
    """As it is beside 1, the machine's 1/x off by a unit."""
    power = power_of_two((x * F32(2 * functions.LOG2_E)).astype(F32), off) + F32(1)
    part = (1 / power.astype(np.float64)).astype(F32)
    return fused((part + F32(off / 2) * np.spacing(part)).astype(F32), F32(-2) * np.ones_like(x), 1)


@pytest.mark.parametrize("off", [-2, 0, 2])
def test_tanh_is_as_good_as_it_must_be_beside_one_and_beside_itself(off: int) -> None:
    x = np.linspace(-40, 40, 100_001).astype(F32)  # beyond, 2^2x is 0 or infinite
    assert np.abs(tanh(x, off) - np.tanh(x.astype(np.float64))).max() < 2.0**-21
    small = np.exp2(np.linspace(-149, np.log2(functions.TANH_SMALL), 5000, endpoint=False)).astype(F32)
    large = np.linspace(functions.TANH_SMALL, 2, 20_000).astype(F32)
    near = fused(small, (small * small * F32(-1 / 3)).astype(F32), small)
    for a, got in ((small, near), (large, tanh(large, off))):
        wanted = np.tanh(a.astype(np.float64))
        assert (np.abs(got - wanted) <= 2.0**-17 * wanted).all()


def test_only_what_is_rounded_to_16_bits_in_the_end_is_coarse() -> None:
    x = Formula.operand(1)
    e = Formula("exp", (x,))
    assert accuracy_of_part(Formula.cast(dtypes.bf16, e), e, "full") == "coarse"
    assert accuracy_of_part(Formula.cast(dtypes.f32, e), e, "full") == "full"
    for name in ("mul", "div"):
        assert accuracy_of_part(Formula(name, (e, x)), e, "coarse") == "coarse"
        assert accuracy_of_part(Formula(name, (e, x)), e, "full") == "full"
    for name in ("add", "sub", "maximum", "lt"):
        assert accuracy_of_part(Formula(name, (e, x)), e, "coarse") == "full"
    chosen = Formula("select", (e, e.parts[0], x))
    assert [accuracy_of_part(chosen, part, "coarse") for part in chosen.parts] == ["full", "coarse", "coarse"]


@pytest.mark.parametrize(
    ("factor", "number", "wanted"), [(0.5, 0.5, "absolute"), (1, 0.5, "full"), (-1, 2, "absolute")]
)
def test_an_addend_no_larger_than_a_number_is_as_good_as_that(factor: float, number: float, wanted: str) -> None:
    for name in ("erf", "tanh"):
        part = Formula(name, (Formula.operand(1),))
        whole = Formula("fma", (Formula.number(factor), part, Formula.number(number)))
        assert accuracy_of_part(whole, part, "coarse") == wanted
        assert accuracy_of_part(whole, part, "full") == "full"
        for parts in ((Formula.number(number), part), (part, Formula.number(number))):
            assert accuracy_of_part(Formula("add", parts), part, "coarse") == ("absolute" if number >= 1 else "full")


def instructions(text: str) -> list[str]:
    """The instructions of a PTX text."""
    return re.findall(r"^\t(?:@!?%p\d+ )?([a-z][\w.:]*)\b.*;$", text, re.M)


@pytest.mark.parametrize(("name", "most"), [("gelu", 21), ("gelu_tanh", 17), ("silu", 11)])
@pytest.mark.parametrize("shape", [(8192, 8192), (65536, 256), (1000, 520)])
def test_functions_of_bf16_are_a_few_instructions_an_element(name: str, most: int, shape: tuple[int, int]) -> None:
    """gelu took 34 instructions for each element, the sigmoid's gate 48: more than memory takes time for."""
    sizes = dict(zip("MN", shape, strict=True))
    text = kernel_for(kernels.activation(name, "bf16"), sizes, target="gpu:hopper").text("ptx")
    made = instructions(text)
    packed = sum(word == "cvt.rn.bf16x2.f32" for word in made)
    assert packed > 0
    assert not any(re.fullmatch(r"cvt\.(rn\.bf16\.f32|f32\.bf16)|prmt.*", word) for word in made)
    assert len(made) - 80 < most * 2 * packed
    words = sum(4 * (word in ("ld.global.v4.b32", "ld.global.cs.v4.b32")) for word in made)
    assert words == packed


def test_rounding_to_e4m3_was_twelve_instructions_an_element() -> None:
    """Rows of bf16 as e4m3 took longer to round than to move: a machine with the instruction rounds two by one."""
    program = """tile kernel(%x: global bf16[M], %y: global f8e4m3fn[M])
  symbols M
{
  %0 = read %x : bf16[M]
  %1 = cast %0 dtype=f32 : f32[M]
  %2 = cast %1 dtype=f8e4m3fn : f8e4m3fn[M]
  write %2, %y
}
"""
    found = {}
    for name in ("hopper", "ampere"):
        made = tilewright.compile(program, target=f"gpu:{name}").of_sizes({"M": 1 << 24})
        found[name] = instructions(made.text("ptx"))
    packed = found["hopper"].count("cvt.rn.satfinite.e4m3x2.f32")
    assert packed > 0
    assert len(found["hopper"]) - 80 < 6 * 2 * packed
    assert "cvt.rn.satfinite.e4m3x2.f32" not in found["ampere"]  # which has no such instruction


def test_f32_stays_good_to_the_last_place() -> None:
    text = kernel_for(kernels.activation("gelu", "f32"), {"M": 8192, "N": 8192}, target="gpu:hopper").text("ptx")
    made = instructions(text)
    assert made.count("ex2.approx.ftz.f32") * 10 < made.count("fma.rn.f32")  # both forms of erf
    text = kernel_for(kernels.activation("silu", "f32"), {"M": 8192, "N": 8192}, target="gpu:hopper").text("ptx")
    assert instructions(text).count("fma.rm.f32") > 0


@pytest.mark.skipif(ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("kind", ["bf16", "f32"])
@pytest.mark.parametrize("shape", [(8192, 8192), (65536, 256)])
def test_columns_are_added_up_without_spills(kind: str, shape: tuple[int, int]) -> None:
    """Sums that waves told each other were loaded before a barrier and added after it: 128 to 256 registers at once."""
    found = kernel_for(kernels.reduction("sum", "rows", kind), dict(zip("MN", shape, strict=True)), target="gpu:hopper")
    assert found.module is not None
    for program in found.module.programs.values():
        said = assembled(compile_text(str(program), "gpu:hopper").text("ptx"), "sm_90a")
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said


MAPPED = """
block mapped(%x: in global KIND (32, 2), %y: out global KIND (32, 2))
  machine hopper
  waves 1
{
  tasks m in 0..1 {
    %row = alloc register KIND (32, 2) by (32,2):(1,32)
    copy %x -> %row
    map %row = FORMULA
    copy %row -> %y
  }
}"""


@pytest.mark.sampled(10)
@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("name", sorted({*FUNCTIONS, "atan2", "remf"}))
def test_every_function_is_code_of_our_own(name: str, kind: str) -> None:
    """cbrt and atan2 were calls of a C library, which a GPU has not; sinh and cosh could not be written at all."""
    formula = f"{name}(%row, 3*%row)" if name in BINARY else f"{name}(%row)"
    text = compile_text(MAPPED.replace("KIND", kind).replace("FORMULA", formula), "gpu:hopper").text("ptx")
    assert ".extern .func" not in text
    if ptxas() is not None:
        assert "0 bytes spill stores" in assembled(text, "sm_90a")


def test_bytes_were_widened_one_by_one() -> None:
    """The product of i8 weights took a slow conversion of an integer for each of them: 48 us of 19."""
    sizes, here = {"M": 16, "N": 8192, "K": 8192}, machine("hopper")
    # parts of K have a second program, the sum of them, and that would be the text
    plan = first_plan(byte_weights(), sizes, here, on_operands_as_they_lie)
    text = kernel_for(byte_weights(), sizes, target="gpu:hopper", plan=plan).text("ptx")
    made = instructions(text)
    assert not any(re.fullmatch(r"cvt\.(rn\.bf16\.s16|s16\.s8|rn\.f32\.s\d+)", word) for word in made)
    assert "fma.rn.bf16x2" in text
    if ptxas() is not None:
        assert "0 bytes spill" in assembled(text, "sm_90a")


def test_every_byte_is_its_number_of_bf16() -> None:
    kind = dtypes.bf16.numpy
    byte = np.arange(-128, 128, dtype=np.int8)
    bits = byte.view(np.uint8).astype(np.uint16)
    low, high = (((bits & mask) | 0x4300).view(kind).astype(F32) for mask in (0x7F, 0x80))
    assert np.array_equal((low - high).astype(kind).astype(F32), byte.astype(F32))
