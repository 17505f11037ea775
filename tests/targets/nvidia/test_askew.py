"""Vectors of two-byte elements that begin anywhere, from the places of 16 bytes in which they lie."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lines import Lines

from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.targets.gpu.memory import _load_misaligned


@pytest.mark.parametrize("first", range(0, 16, 2))
def test_words_that_begin_anywhere(first: int) -> None:
    data = np.random.default_rng(first).integers(0, 1 << 16, 64).astype(np.uint16)
    lines = Lines(data.view(np.uint32).astype(np.int64))
    emitter: Any = SimpleNamespace(w=lines)
    found = [lines.number(word) for word in _load_misaligned(emitter, str(32 + first))]
    wanted = data[16 + first // 2 : 24 + first // 2].view(np.uint32)
    assert found == list(map(int, wanted))
    assert all(32 <= address < 48 + first for address in lines.loads)  # no place of which nothing is needed


@pytest.mark.parametrize(("dtype", "columns"), [("bf16", 50257), ("f16", 50257), ("bf16", 30002)])
def test_odd_rows_are_loaded_by_vectors(dtype: str, columns: int) -> None:
    """Two bytes, or four, were loaded at a time: 0.87 of PyTorch's speed."""
    made = kernel_for(kernels.reduction("sum", "columns", dtype), {"M": 1000, "N": columns}, target="gpu:hopper")
    text = made.text("asm")
    single = text.count("ld.global.b16") + text.count("ld.global.b32")
    assert text.count("ld.global.v4.b32") >= 8
    assert single <= 32  # the end of a row
