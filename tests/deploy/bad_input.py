"""Wrong arguments of a product a[4, 3] * b[3, 5] = c[4, 5] of f32, and what each caller must say of them.

Tests of `compile`, `bind`, `load`, of the C interface, of JAX and of torch share them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

SIZES = {"M": 4, "N": 5, "K": 3}


class OnAGpu:
    """An array of another library that lies on a GPU."""

    shape, ndim, dtype = (4, 3), 2, np.dtype(np.float32)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("this array lies on a GPU")


def right() -> tuple[Any, Any, Any]:
    """Arguments that every caller takes."""
    return np.ones((4, 3), np.float32), np.ones((3, 5), np.float32), np.zeros((4, 5), np.float32)


def _overlapping(a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
    memory = np.zeros(100, np.float32)
    return memory[:12].reshape(4, 3), b, memory[5:25].reshape(4, 5)


Spoil = Callable[[Any, Any, Any], tuple[Any, ...]]

INPUTS: dict[str, tuple[Spoil, str]] = {
    "device": (lambda a, b, c: (OnAGpu(), b, c), r"argument a lies on the CUDA device 0"),
    "dtype": (lambda a, b, c: (a.astype(np.float16), b, c), r"argument a holds f16; it must hold f32"),
    "rank": (lambda a, b, c: (a[None], b, c), r"argument a has shape \(1, 4, 3\)"),
    "extent": (lambda a, b, c: (a, b[:2], c), r"argument b has shape \(2, 5\); its dimension 0 must be K = 3, not 2"),
    "none": (lambda a, b, c: (a, None, c), r"argument b is None"),
    "no array": (lambda a, b, c: (a, "b", c), r"argument b is (a )?str"),
    "missing": (lambda a, b, c: (a,), r"gemm.* takes (3 arguments \()?a, b, c"),
}
"""Wrong inputs: how right arguments are spoilt, and a pattern of the error's message."""
OUTPUTS: dict[str, tuple[Spoil, str]] = {
    "output dtype": (lambda a, b, c: (a, b, c.astype(np.float16)), r"argument c holds f16; it must hold f32"),
    "output rank": (lambda a, b, c: (a, b, c[0]), r"argument c has shape \(5,\)"),
    "read-only output": (
        lambda a, b, c: (a, b, np.broadcast_to(np.float32(0), (4, 5))),
        r"argument c is written, but the array given is read-only",
    ),
    "aliasing output": (_overlapping, r"the output c shares memory with a"),
}
"""The same of outputs, for callers that write into arrays."""
