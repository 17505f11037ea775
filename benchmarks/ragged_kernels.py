"""Every kernel of `tilewright.kernels` at ragged sizes, with what it must give: exactly, or within a bound.

`CASES` has one entry for each: a name, and what makes the kernel, its arguments and the results. Kernels that move,
multiply or combine small integers must give the executor's bits. Softmax, norms, activations and attention lie within
the bounds of tests/kernels, which follow from rounding; where results have 16 bits, exponentials on a GPU are within
2^-17 of themselves (docs/gpu/accuracy.md), which is added.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np

import tilewright
from tilewright import kernels

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "kernels")]

from kernel_checks import F32, form, normal, rounding, small_integers  # noqa: E402
from test_attention_kernel import attention_with_bound, operands, out_shape  # noqa: E402
from test_conv_kernel import CASES as CONVOLUTIONS  # noqa: E402
from test_data_movement_kernels import IM2COL  # noqa: E402
from test_rowwise_kernels import gelu, layer_norm_with_bound, silu, softmax_bound  # noqa: E402

Array = np.ndarray[Any, np.dtype[Any]]
ROWS = ((1, 1), (7, 1), (3, 5), (17, 33), (2, 1030), (65, 129), (130, 8), (1, 70001))
LONG = ((1, 5_000_011), (3, 1_400_009), (40_009, 120), (200_003, 24))
"""Rows, or columns, that are reduced in parts, which leave some over."""
APPROXIMATE = 2.0**-16
"""Two exponentials of results of 16 bits, such as a weight and the sum of all: how far they are from themselves."""


@dataclass
class Kernel:
    """A kernel, the arrays of its arguments by name, and what those that it writes must hold."""

    kernel: Any
    arrays: dict[str, Array]
    wanted: dict[str, Array]
    far: dict[str, Array]
    """How far each element may lie from what is wanted; nothing for results that must be equal."""
    begin: tuple[str, ...] = ()
    """Arguments that are written, and hold something before."""

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that the arrays tell."""
        found: dict[str, int] = {}
        for arg in self.kernel.trace().args:
            for d, n in zip(arg.type.dims, self.arrays[arg.name].shape, strict=True):
                if not d.is_constant and len(d.symbols) == 1 and str(d) in {s.name for s in d.symbols}:
                    found[str(d)] = n
        bound = {s.name for s in self.kernel.trace().bindings}
        return {name: n for name, n in found.items() if name not in bound}


def exact(kernel: Any, inputs: list[Array], shape: tuple[int, ...], dtype: str, fresh: Any = None) -> Kernel:
    """A kernel with one result, which must have the executor's bits; `fresh` is what it adds to."""
    out = np.zeros(shape, form(dtype)) if fresh is None else np.broadcast_to(fresh, shape).astype(form(dtype))
    names = [a.name for a in kernel.trace().args]
    wanted = out.copy()
    tilewright.compile(kernel, target="executor")(*inputs, wanted)
    arrays = dict(zip(names, [*inputs, out], strict=True))
    return Kernel(kernel, arrays, {names[-1]: wanted}, {}, () if fresh is None else (names[-1],))


def near(kernel: Any, inputs: list[Array], wanted: Array, bound: Array, dtype: str) -> Kernel:
    """A kernel with one result, no further from a number than a bound and the rounding to its type."""
    unit, tiny = rounding(dtype)
    names = [a.name for a in kernel.trace().args]
    arrays = dict(zip(names, [*inputs, np.zeros(wanted.shape, form(dtype))], strict=True))
    allowed = bound + unit * (np.abs(wanted) + bound) + tiny
    return Kernel(kernel, arrays, {names[-1]: wanted}, {names[-1]: allowed})


def _approximate(dtype: str) -> float:
    return APPROXIMATE if form(dtype).itemsize < 4 else 0.0


# -- products ----------------------------------------------------------------------------------------------------


def _gemm(size: tuple[int, int, int], transposes: str, dtype: str, out: str, **options: Any) -> Kernel:
    rng, (m, n, k) = np.random.default_rng(sum(size)), size
    batch = (3,) if options.get("batched") else ()
    a, b = small_integers(rng, (*batch, m, k), dtype), small_integers(rng, (*batch, k, n), dtype)
    given = [
        np.ascontiguousarray(x.swapaxes(-1, -2)) if t == "t" else x for x, t in zip((a, b), transposes, strict=True)
    ]
    if options.get("bias"):
        given.append(small_integers(rng, (n,), "i32" if dtype == "i8" else "f64" if dtype == "f64" else "f32", 9))
    return exact(kernels.gemm(transposes, dtype, out, **options), given, (*batch, m, n), out)


def _conv(case: Any, dtype: str, bias: bool) -> Kernel:
    image, taps, c, f, groups, stride, ends, dilation = case
    rng = np.random.default_rng(len(image))
    x, w = small_integers(rng, (2, *image, c), dtype), small_integers(rng, (f, *taps, c // groups), dtype)
    made = kernels.conv(
        taps, dtype, "f32", stride=stride, padding=ends, dilation=dilation, groups=groups, bias=bias,
        activation="relu" if bias else None,
    )  # fmt: skip
    padded = [n + sum(pair) for n, pair in zip(image, ends, strict=True)]
    sizes = [(n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(padded, taps, dilation, stride, strict=True)]
    return exact(made, [x, w, *([small_integers(rng, (f,), "f32")] if bias else [])], (2, *sizes, f), "f32")


def _attention(shape: Any, dtype: str, causal: bool, bias: bool) -> Kernel:
    rng = np.random.default_rng(sum(shape))
    given = operands(rng, shape, dtype)
    added = normal(rng, (*shape[:2], *shape[2:4]), "f32", 2.0) if bias else None
    wanted, bound = attention_with_bound(
        *given, shape[-1], dtype, bias=added, last_key=(lambda m: m + 3) if causal else None
    )
    made = kernels.attention(shape[-1], dtype, causal=causal, first_query=3 if causal else 0, bias=bias)
    assert wanted.shape == out_shape(shape)
    bound = bound + _approximate(dtype) * np.abs(given[2].astype(np.float64)).max()
    return near(made, [*given, *([] if added is None else [added.astype(_bias_type(made))])], wanted, bound, dtype)


def _bias_type(kernel: Any) -> Any:
    return next(a.type.dtype.numpy for a in kernel.trace().args if a.name == "bias")


# -- rows --------------------------------------------------------------------------------------------------------


def _softmax(shape: tuple[int, int], dtype: str, tile: int | None) -> Kernel:
    x = normal(np.random.default_rng(shape), shape, dtype, 5.0)
    weights = np.exp(x.astype(np.float64) - x.astype(np.float64).max(1, keepdims=True))
    wanted = weights / weights.sum(1, keepdims=True)
    made = kernels.softmax(dtype) if tile is None else kernels.online_softmax(tile, dtype)
    bound = softmax_bound(x, wanted, 1 if tile is None else -(-shape[1] // tile))
    return near(made, [x], wanted, bound + _approximate(dtype) * wanted, dtype)


def _layer_norm(shape: tuple[int, int], dtype: str) -> Kernel:
    rng = np.random.default_rng(shape)
    x = (normal(rng, shape, "f64") * 3 + 2).astype(form(dtype))
    given = [x, normal(rng, shape[1:], dtype), normal(rng, shape[1:], dtype)]
    wanted, bound = layer_norm_with_bound(*(a.astype(np.float64) for a in given), 1e-3)
    return near(kernels.layer_norm(dtype, 1e-3), given, wanted, bound, dtype)


def _rms_norm(shape: tuple[int, int], dtype: str) -> Kernel:
    rng = np.random.default_rng(shape)
    x, weight = normal(rng, shape, dtype, 5.0), normal(rng, shape[1:], dtype)
    wide = x.astype(np.float64)
    wanted = wide / np.sqrt((wide**2).mean(1) + 1e-6)[:, None] * weight.astype(np.float64)
    return near(
        kernels.rms_norm(dtype, 1e-6), [x, weight], wanted, (shape[1] / 2 + 8) * F32 * np.abs(wanted), dtype
    )  # fmt: skip


def _activation(shape: tuple[int, int], dtype: str, name: str) -> Kernel:
    x = normal(np.random.default_rng(shape), shape, dtype, 4.0)
    function = {"gelu": gelu, "silu": silu, "relu": lambda v: max(v, 0.0)}[name]
    wide = x.astype(np.float64)
    wanted = np.vectorize(function, otypes=[np.float64])(wide)
    bound = (8 * F32 + _approximate(dtype)) * np.abs(wide if name == "gelu" else wanted)
    return near(kernels.activation(name, dtype), [x], wanted, bound, dtype)


def _gated_silu(shape: tuple[int, int], dtype: str) -> Kernel:
    rng = np.random.default_rng(shape)
    gate, x = normal(rng, shape, dtype, 3.0), normal(rng, shape, dtype, 3.0)
    wanted = np.vectorize(silu, otypes=[np.float64])(gate.astype(np.float64)) * x.astype(np.float64)
    bound = (10 * F32 + _approximate(dtype)) * np.abs(wanted)
    return near(kernels.gated_silu(dtype), [gate, x], wanted, bound, dtype)


# -- moved and combined ------------------------------------------------------------------------------------------


def _reduction(shape: tuple[int, int], dtype: str, combine: str, over: str) -> Kernel:
    rng = np.random.default_rng(shape)
    out = "i32" if dtype == "i8" else "f32"
    x = small_integers(rng, shape, dtype)
    if combine == "prod":
        x = np.where(rng.random(shape) < 0.5, -1, 1).astype(form(dtype))
    kept = shape[:1] if over == "columns" else shape[1:]
    return exact(kernels.reduction(combine, over, dtype, out), [x], kept, out)


def _scan(shape: tuple[int, int], dtype: str, tile: int | None) -> Kernel:
    out = "i32" if dtype == "i8" else "f32"
    made = kernels.running_sum(dtype, out) if tile is None else kernels.tiled_running_sum(tile, dtype, out)
    return exact(made, [small_integers(np.random.default_rng(shape), shape, dtype)], shape, out)


def _transpose(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> Kernel:
    x = small_integers(np.random.default_rng(shape), shape, dtype, 100)
    return exact(kernels.transpose(axes, dtype), [x], np.transpose(x, axes).shape, dtype)


def _im2col(case: Any, dtype: str, layout: str) -> Kernel:
    image, size, stride, padding, dilation = case
    x = small_integers(np.random.default_rng(image), image, dtype, 100)
    given = x if layout == "nhwc" else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    made = kernels.im2col(size, dtype, layout, stride=stride, padding=padding, dilation=dilation)
    wanted = tilewright.compile(made, target="executor")(given)
    return exact(made, [given], wanted.shape, dtype)


def _rows_by_index(rows: int, count: int, width: int, dtype: str, scattered: bool) -> Kernel:
    rng = np.random.default_rng((rows, count, width))
    table = small_integers(rng, (rows, width), dtype, 100)
    if not scattered:
        index = rng.integers(0, rows, count).astype(np.int32)
        return exact(kernels.gather_rows(dtype), [table, index], (count, width), dtype)
    places = rng.permutation(rows + 3)[: min(count, rows)].astype(np.int32) - 1  # some lie outside
    x = small_integers(rng, (len(places), width), dtype, 100)
    return exact(kernels.scatter_rows(dtype), [x, places], (rows, width), dtype, fresh=table)


def _histogram(count: int, bins: int) -> Kernel:
    x = np.random.default_rng((count, bins)).integers(-2, bins + 2, count).astype(np.int32)
    return exact(kernels.histogram(), [x], (bins,), "i32", fresh=5)


# -- all ---------------------------------------------------------------------------------------------------------


def _cases() -> Iterator[tuple[str, Callable[[], Kernel]]]:
    def named(make: Callable[..., Kernel], *args: Any, **options: Any) -> tuple[str, Callable[[], Kernel]]:
        said = ", ".join([*map(str, args), *(f"{k} {v}" for k, v in options.items() if v)])
        return f"{make.__name__.strip('_')} {said}", partial(make, *args, **options)

    floats, all_types = ("f32", "f16", "bf16"), ("f32", "f16", "bf16", "i8")
    sums = {"i8": "i32", "f64": "f64"}
    for place, (transposes, dtype) in enumerate(product(("nn", "nt", "tn", "tt"), (*all_types, "f64", "f8e4m3fn"))):
        sizes = ((1, 1, 1), (5, 3, 70), (65, 129, 31), (130, 70, 200), (257, 24, 65))
        for size in (sizes[place % 5], sizes[(place + 2) % 5]):
            yield named(_gemm, size, transposes, dtype, sums.get(dtype, "f32"))
        extra: dict[str, Any] = {"bias": True, "activation": "relu", "batched": bool(place % 2)}
        yield named(_gemm, (33, 45, 17), transposes, dtype, sums.get(dtype, "f32"), **extra)
    yield named(_gemm, (65, 40, 33), "nt", "f16", "f16", accumulate="f16")
    yield named(_gemm, (65, 40, 33), "nt", "f32", "f32", precision="tf32")
    for case, dtype, bias in product(CONVOLUTIONS, ("bf16", "f32"), (False, True)):
        yield named(_conv, case, dtype, bias)
    attention = (
        (1, 1, 1, 13, 3, 5, 4),
        (3, 2, 9, 17, 8, 3, 5),
        (1, 2, 70, 33, 16, 10, 16),
        (2, 2, 65, 130, 64, 64, 64),
    )
    for shape, dtype, causal in product(attention, floats, (False, True)):
        yield named(_attention, shape, dtype, causal, False)
        yield named(_attention, shape, dtype, causal, True)
    for shape, dtype in product(ROWS, floats):
        for tile in (None, 7, 64):
            if tile is None or shape[1] < 2000:
                yield named(_softmax, shape, dtype, tile)
                yield named(_scan, shape, dtype, tile)
        for make in (_layer_norm, _rms_norm, _gated_silu):
            yield named(make, shape, dtype)
        for name in ("gelu", "silu", "relu"):
            yield named(_activation, shape, dtype, name)
    for shape, dtype, over in product(ROWS, all_types, ("columns", "rows")):
        for combine in ("sum", "max", "min", "prod"):
            yield named(_reduction, shape, dtype, combine, over)
    for shape, dtype, over in product(LONG, ("f32", "bf16", "i8"), ("columns", "rows")):
        for combine in ("sum", "max"):
            yield named(_reduction, shape, dtype, combine, over)
    for axes, dtype in product([(0,), *permutations(range(2)), *permutations(range(3)), (3, 1, 0, 2)], all_types):
        yield named(_transpose, (7, 33, 5, 17)[: len(axes)], axes, dtype)
    for shape, dtype in product(((1, 70), (65, 129), (300, 7)), all_types):
        yield named(_transpose, shape, (1, 0), dtype)
    for case, layout in product(IM2COL, ("nhwc", "nchw")):
        yield named(_im2col, case, "f16", layout)
    for (rows, count, width), dtype, scattered in product(
        ((1, 1, 1), (5, 2, 7), (130, 65, 33), (64, 300, 129)), all_types, (False, True)
    ):
        yield named(_rows_by_index, rows, count, width, dtype, scattered)
    for count, bins in ((1, 1), (50, 3), (7, 20), (10007, 11), (3001, 700)):
        yield named(_histogram, count, bins)


CASES: tuple[tuple[str, Callable[[], Kernel]], ...] = tuple(_cases())
