"""Elementwise work on CPUs whose last axis is shorter than a vector: it is merged with the axes before it."""

import numpy as np
import pytest

from tilewright import compile_text

TARGETS = ("interpreter", "cpu", "cpu:x86.avx512", "cpu:x86.avx2", "cpu:aarch64.neon")
"""The block interpreter, machine code of this CPU, and others, whose loop programs are interpreted."""

TEXT = """block merged(%x: in global {kind} ({rows}, {columns}{third}), %y: out global f32 ({rows}, {columns}, {inner}))
{{
  tasks t in 0..1 {{
    %from = view %x (i {rows}, j {columns}, k {inner}) -> [i, j{index}]
    map over (i {rows}, j {columns}, k {inner}) %y = f32(%from)*3 + f32([10*i + 2*j + k])
  }}
}}
"""


def result_of(kind: str, shape: tuple[int, int, int], target: str, *, repeated: bool) -> tuple[np.ndarray, np.ndarray]:
    """What the program computes on `target`, and what numpy computes; `repeated`: its source has no last axis."""
    rows, columns, inner = shape
    third, index = ("", "") if repeated else (f", {inner}", ", k")
    text = TEXT.format(kind=kind, rows=rows, columns=columns, inner=inner, third=third, index=index)
    rng = np.random.default_rng(sum(shape))
    x = rng.integers(-9 if kind == "f32" else 0, 9, shape[:2] if repeated else shape).astype(
        np.float32 if kind == "f32" else np.uint8
    )
    y = np.full(shape, np.nan, np.float32)
    if ":" in target:
        compile_text(compile_text(text, target).text("loop"), "interpreter")(x.reshape(-1), y.reshape(-1))
    else:
        compile_text(text, target)(x, y)
    i, j, k = np.indices(shape)
    wanted = (x[..., None] if repeated else x).astype(np.float32) * 3 + (10 * i + 2 * j + k)
    return y, wanted


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("repeated", [True, False])
@pytest.mark.parametrize("kind", ["f32", "u8"])
@pytest.mark.parametrize("shape", [(3, 64, 2), (2, 17, 2), (5, 3, 4), (1, 7, 8), (2, 9, 3), (4, 1, 2), (3, 5, 16)])
def test_results_are_exact(target: str, kind: str, shape: tuple[int, int, int], repeated: bool) -> None:
    given, wanted = result_of(kind, shape, target, repeated=repeated)
    assert np.array_equal(given, wanted)


def test_elements_that_lanes_share_are_loaded_once() -> None:
    text = TEXT.format(kind="u8", rows=3, columns=64, inner=2, third="", index="")
    loop = compile_text(text, "cpu:x86.avx512").text("loop")
    assert "alloc vector f32 (16)" in loop
    assert "alloc vector u8 (8)" in loop
    assert "//2]" in loop
    assert "(2)" not in loop


def test_rows_of_three_elements_fill_vectors() -> None:
    text = TEXT.format(kind="f32", rows=4, columns=16, inner=3, third=", 3", index=", k")
    loop = compile_text(text, "cpu:x86.avx512").text("loop")
    assert "alloc vector f32 (16)" in loop
    assert "(3)" not in loop


def test_three_lanes_cannot_share_an_element_of_a_vector() -> None:
    text = TEXT.format(kind="f32", rows=4, columns=16, inner=3, third="", index="")
    assert "shuffle" not in compile_text(text, "cpu:x86.avx512").text("loop")


SHIFTED = """block shifted(%x: in global u8 (5, 12), %y: out global u8 (5, 12, 2))
{
  tasks t in 0..1 {
    %from = view %x (i 5, j 12, k 2) -> [i - 2 ?, j]
    copy %from -> %y else 7
  }
}
"""


@pytest.mark.parametrize("target", TARGETS)
def test_elements_that_lanes_share_may_be_out_of_bounds(target: str) -> None:
    x, y = np.arange(1, 61, dtype=np.uint8), np.full((5, 12, 2), 255, np.uint8)
    if ":" in target:
        compile_text(compile_text(SHIFTED, target).text("loop"), "interpreter")(x, y.reshape(-1))
    else:
        compile_text(SHIFTED, target)(x.reshape(5, 12), y)
    rows = np.concatenate([np.full((2, 12), 7), x.reshape(5, 12)[:3]])
    assert np.array_equal(y, np.repeat(rows, 2, axis=1).reshape(5, 12, 2))
