"""Functions by several vectors interleaved: which vector an element is in, and with which others, changes no result."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import pytest

from tilewright import compile_text
from tilewright.plan.model import stays_in_l1
from tilewright.targets.cpu import host

FUNCTIONS = ["exp(%x*0.5 - 1.0)", "tanh(%x)", "erf(%x)", "log(abs(%x) + 1.0)", "%x*sigmoid(%x)"]


def applied(formula: str, x: np.ndarray) -> np.ndarray:
    rows, columns = x.shape
    text = f"""block f(%x: in global f32 ({rows}, {columns}), %y: out global f32 ({rows}, {columns}))
{{
  map %y = {formula}
}}
"""
    y = np.full_like(x, np.nan)
    compile_text(text, "cpu")(x, y)
    return y


@pytest.mark.parametrize("formula", FUNCTIONS)
@pytest.mark.parametrize("columns", [7, 77, 131])
def test_an_element_is_the_same_in_every_vector(formula: str, columns: int) -> None:
    """Rows of 77 end in interleaved vectors, single ones and a part of one."""
    x = np.random.default_rng(columns).standard_normal((3, columns + 1), dtype=np.float32)
    whole = applied(formula, x)
    assert not np.isnan(whole).any()
    np.testing.assert_array_equal(applied(formula, np.ascontiguousarray(x[:, 1:])), whole[:, 1:])


@pytest.mark.parametrize("columns", [64, 131])
def test_subnormal_results_are_the_same_in_every_vector(columns: int) -> None:
    """AVX-512 computes them in another way, since its instruction is slow there."""
    x = np.random.default_rng(columns).uniform(-105, -84, (40, columns + 1)).astype(np.float32)
    x[:, 5] = -np.inf, *39 * [1.0]
    whole = applied("exp(%x)", x)
    np.testing.assert_array_equal(applied("exp(%x)", np.ascontiguousarray(x[:, 1:])), whole[:, 1:])
    np.testing.assert_array_equal(applied("exp(%x)", np.ascontiguousarray(x[:, :3])), whole[:, :3])
    exact = np.exp(x.astype(np.float64))
    assert (abs(whole - exact) <= 0.9 * np.maximum(np.spacing(exact.astype(np.float32)), 2.0**-149)).all()


@pytest.mark.skipif(not host.host_machine().scales, reason="CPUs without AVX-512 take long for subnormal numbers")
@pytest.mark.parametrize("function", ["exp", "sigmoid"])
def test_subnormal_results_took_ten_times_as_long(function: str) -> None:
    text = f"""block f(%x: in global f32 (256, 256), %y: out global f32 (256, 256))
{{
  map %y = {function}(%x)
}}
"""
    run, y = compile_text(text, "cpu"), np.empty((256, 256), np.float32)
    seconds = []
    for lowest in (-100, -80):
        launch = run.bind(np.linspace(lowest, lowest + 10, y.size, dtype=np.float32).reshape(y.shape), y)
        times = []
        for _ in range(30):
            start = perf_counter()
            launch()
            times.append(perf_counter() - start)
        seconds.append(min(times))
    assert seconds[0] < 4 * seconds[1]


def test_functions_are_interleaved_and_sums_are_not() -> None:
    def widest(formula: str) -> int:
        text = f"block f(%x: in global f32 (2, 512), %y: out global f32 (2, 512))\n{{\n  map %y = {formula}\n}}\n"
        loop = compile_text(text, "cpu").text("loop")
        return max(int(line.split("(")[1].rstrip(")")) for line in loop.splitlines() if "alloc vector" in line)

    single = (host.host_machine().limits.vector_bytes or 16) // 4
    assert widest("%x + 1.0") == single
    assert widest("exp(%x)") == single * max(1, host.host_machine().limits.registers // 8)


def test_rows_a_power_of_two_apart_share_sets_of_the_first_cache() -> None:
    limits = host.host_machine().limits
    rows = (limits.l1_bytes or 32768) // 4 // limits.line_bytes
    assert stays_in_l1(limits, rows, limits.line_bytes, limits.line_bytes)
    assert stays_in_l1(limits, rows, limits.line_bytes, 3 * limits.line_bytes)
    assert not stays_in_l1(limits, rows, limits.line_bytes, 16 * limits.line_bytes)


def test_vectors_of_several_registers_are_scaled_by_the_instruction() -> None:
    """A power of two was multiplied in two steps of six instructions in vectors of more than one register."""
    text = """block f(%x: in global f32 (2, 512), %y: out global f32 (2, 512))
  machine x86.avx512
{
  map %y = exp(%x)
}
"""
    code = compile_text(text, "cpu").text("asm")
    assert "vscalefps" in code
    assert "vpslld" not in code
