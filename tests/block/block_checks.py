"""What the tests of block programs share: the example programs, integer data, and plain references."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.compiler.text import TextExecutable, compile_text

BF16 = np.dtype(ml_dtypes.bfloat16)
FOLDER = Path(__file__).parents[2] / "examples" / "block"
NAMES = sorted(path.stem for path in FOLDER.glob("*.block"))

Array = np.ndarray[Any, np.dtype[Any]]


def source(name: str) -> str:
    """The text of an example program."""
    return (FOLDER / f"{name}.block").read_text()


@lru_cache(maxsize=4)
def _read(text: str, params: tuple[tuple[str, int], ...]) -> TextExecutable:
    return compile_text(text, params=dict(params), target="interpreter")


def on_interpreter(text: str, workers: int, seed: int, params: dict[str, int] | None = None) -> TextExecutable:
    """A program under one schedule; it is read and checked once for all schedules it is run under in a row."""
    program = _read(text, tuple((params or {}).items()))
    program.workers, program.seed = workers, seed
    return program


def calls(run: Callable[[], object]) -> int:
    """How many calls of Python functions something takes: work as a number that is the same on every machine."""
    count = 0

    def seen(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def small(seed: int, *shape: int, form: Any = BF16, most: int = 1) -> Array:
    """Small integers: sums of their products stay whole numbers that bf16 holds, where there are few of them."""
    return np.random.default_rng(seed).integers(-most, most + 1, shape).astype(form)


def sparse(seed: int, *shape: int, form: Any = BF16, keep: float = 0.15) -> Array:
    """-1, 0 and 1, mostly 0: long sums stay small."""
    random = np.random.default_rng(seed)
    return (random.integers(-1, 2, shape) * (random.random(shape) < keep)).astype(form)


def product(a: Array, b: Array) -> Array:
    """a times b transposed; whole numbers, so f64 is exact."""
    return a.astype(np.float64) @ b.astype(np.float64).T


def convolution(x: Array, w: Array, stride: int, pad: int) -> Array:
    """x (N, H, W, C) with w (F, R, S, C), term by term."""
    n, h, width, _ = x.shape
    f, r, s, _ = w.shape
    p, q = (h + 2 * pad - r) // stride + 1, (width + 2 * pad - s) // stride + 1
    padded = np.pad(x.astype(np.float64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    found = np.zeros((n, p, q, f))
    for i in range(r):
        for j in range(s):
            taps = padded[:, i : i + (p - 1) * stride + 1 : stride, j : j + (q - 1) * stride + 1 : stride]
            found += taps @ w[:, i, j].astype(np.float64).T
    return found


def exactly(found: Array, wanted: Array) -> bool:
    """Whether the results are the wanted numbers, which the result's type must hold."""
    rounded = wanted.astype(found.dtype)
    assert np.array_equal(rounded.astype(np.float64), wanted), "the test's own numbers are too large to be exact"
    return np.array_equal(found, rounded)


def packed_for_amx(w: Array, chunk: int) -> Array:
    """Weights (F, R, S, C) as conv_amx takes them: (F/32, C/CHUNK, R, S, CHUNK/32, 2, 16, 16, 2)."""
    f, r, s, c = w.shape
    parts = w.reshape(f // 32, 2, 16, r, s, c // chunk, chunk // 32, 16, 2)
    return np.ascontiguousarray(parts.transpose(0, 5, 3, 4, 6, 1, 7, 2, 8))


def packed_for_avx512(w: Array) -> Array:
    """Weights (F, R, S, C) as conv_avx512 takes them: (F/32, R, S, C, 32)."""
    f, r, s, c = w.shape
    return np.ascontiguousarray(w.reshape(f // 32, 32, r, s, c).transpose(0, 2, 3, 4, 1))


class Case:
    """One example program with parameters, arguments and what must come out."""

    def __init__(self, name: str, params: dict[str, int], arguments: tuple[Array, ...], wanted: Array | None):
        self.name, self.params, self.arguments, self.wanted = name, params, arguments, wanted

    def run(self, workers: int = 2, seed: int = 0, text: str | None = None) -> Any:
        """The program's results."""
        found = source(self.name) if text is None else text
        return on_interpreter(found, workers, seed, self.params)(*self.arguments)


def gemm(name: str = "gemm_hopper", seed: int = 0, **params: int) -> Case:
    """A matrix product on Hopper."""
    m, n, k = (params.setdefault(letter, size) for letter, size in (("M", 192), ("N", 128), ("K", 192)))
    a, b = small(seed, m, k), small(seed + 1, n, k)
    return Case(name, params, (a, b), product(a, b))


def conv_hopper(seed: int = 0, halo: bool = False, **params: int) -> Case:
    """A convolution on Hopper, as an implicit product or by halo tiles."""
    defaults = {"N": 4, "H": 7, "W": 7, "C": 128} if halo else {"N": 2, "H": 14, "W": 14, "C": 64}
    n, h, w, c = ((params.get(letter, size)) for letter, size in defaults.items())
    f, r, s = params.get("F", 64), params.get("R", 3), params.get("S", 3)
    stride, pad = params.get("STRIDE", 1), params.get("PAD", 1)
    x, weights = sparse(seed, n, h, w, c, keep=0.4), sparse(seed + 1, f, r, s, c, keep=0.4)
    wanted = convolution(x, weights, stride, pad)
    return Case("conv_hopper_halo" if halo else "conv_hopper", params, (x, weights), wanted)


def conv_patches(seed: int = 0, **params: int) -> Case:
    """A convolution on Hopper by patches."""
    n, h, w = (params.setdefault(key, size) for key, size in {"N": 1, "H": 9, "W": 10}.items())
    x, weights = sparse(seed, n, h, w, 64, keep=0.4), sparse(seed + 1, 64, 3, 3, 64, keep=0.4)
    return Case("conv_hopper_patches", params, (x, weights), convolution(x, weights, 1, 1))


def conv_amx(seed: int = 0, **params: int) -> Case:
    """A convolution on AMX."""
    n, h, w, c, f, r, s, pad = (
        params.setdefault(key, size)
        for key, size in {"N": 1, "H": 6, "W": 5, "C": 64, "F": 32, "R": 3, "S": 3, "PAD": 1}.items()
    )
    params.setdefault("STRIP", 3)
    x, weights = sparse(seed, n, h, w, c, keep=0.4), sparse(seed + 1, f, r, s, c, keep=0.4)
    arguments = (x, packed_for_amx(weights, params.get("CHUNK", 64)))
    return Case("conv_amx", params, arguments, convolution(x, weights, 1, pad))


def conv_avx512(seed: int = 0, **params: int) -> Case:
    """A convolution on AVX-512."""
    n, h, w, c, f, r, s, stride, pad = (
        params.setdefault(key, size)
        for key, size in {"N": 1, "H": 6, "W": 6, "C": 8, "F": 32, "R": 3, "S": 3, "STRIDE": 1, "PAD": 1}.items()
    )
    params.setdefault("PIX", 3)
    x, weights = small(seed, n, h, w, c, form=np.float32, most=4), small(seed + 1, f, r, s, c, form=np.float32, most=4)
    return Case("conv_avx512", params, (x, packed_for_avx512(weights)), convolution(x, weights, stride, pad))


def attention(seed: int = 0, name: str = "attention_hopper", **params: int) -> Case:
    """Attention on Hopper; there is no exact result."""
    rows, deep = (128, 128) if name == "flash_hopper" else (64, 64)
    b, t, u = (params.setdefault(key, size) for key, size in {"B": 1, "T": rows, "U": 128}.items())
    draw = [np.random.default_rng(seed + i) for i in range(3)]
    q, k, v = (rng.normal(size=(b, n, deep)).astype(BF16) for rng, n in zip(draw, (t, u, u), strict=True))
    return Case(name, params, (q, k, v), None)
