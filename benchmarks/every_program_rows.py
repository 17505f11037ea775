"""The rows of `every_program.py`: plain tile programs, their sizes, their peers by name, and their bars.

Nothing here needs PyTorch. `peers` names a function of `every_program_peers.py`, which takes the row's tensors and its
`options`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import corpus_kernels as own
import corpus_rows as rows
import every_program_kernels as plain
from gpu_shapes import PRODUCT_SOFTMAX, TWO_CONVOLUTIONS

from tilewright import kernels

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "kernels")]
from fused_families import of_images, product_and, softmax, two_convolutions  # noqa: E402


@dataclass(frozen=True)
class Row:
    """A tile program with its sizes, its peers and its bar.

    `against` says what the bar is of: "peer", the fastest peer's time by ours; "copy", the time of a copy of the same
    bytes by ours; "peer or copy", the first, or 0.9 of the second; "floor", ours by the roofline, which is to be at
    most the bar. `kept` is the share of the products that masks leave. `options` are the peers' own; `scales` are what
    the numbers of an argument are multiplied by.
    """

    name: str
    make: Callable[[], Any] = field(repr=False)
    sizes: dict[str, int]
    peers: str
    bar: float
    against: str = "peer"
    kept: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)
    results: tuple[str, ...] = ("y",)
    """Arguments that are written."""
    error: float = 1e-2
    """The largest relative difference, by norms, from the same in float64."""


def every_row() -> list[Row]:
    """All rows, in the order of the table."""
    return [*_attention(), *_products(), *_gradients(), *_chains(), *_rowwise(), *_images(), *_masked()]


def _grouped(
    name: str, shape: tuple[int, ...], bar: float, *, kept: float = 1.0, first_query: int = 0, **masks: Any
) -> Row:
    """Grouped-query attention: (batch, heads of keys, queries of each, rows, keys, head size)."""
    sizes = dict(zip(("B", "KV", "GQ", "M", "N", "D"), shape, strict=True)) | {"E": shape[-1]}
    make = partial(own.grouped_query, 128, first_query=first_query, **masks)
    options = {"scale": 0.125, "first_query": first_query, **masks}
    return Row(name, make, sizes, "attention", bar, kept=kept, options=options, results=("o",))


def _heads(
    name: str,
    shape: tuple[int, ...],
    bar: float,
    *,
    kept: float = 1.0,
    dtype: str = "bf16",
    against: str = "peer",
    **masks: Any,
) -> Row:
    """`kernels.attention`: (batch, heads, rows, keys, size of a head of keys, of one of values)."""
    sizes = dict(zip(("B", "H", "M", "N", "D", "E"), shape, strict=True))
    make = partial(kernels.attention, 128, dtype, **masks)
    error = 1e-2 if dtype == "bf16" else 1e-5
    return Row(name, make, sizes, "attention", bar, against, kept, dict(masks), results=("out",), error=error)


def _attention() -> Iterator[Row]:
    group = (2, 8, 4, 4096, 4096, 128)
    yield _grouped("grouped-query 4096, causal", group, 1.12, kept=0.5, causal=True)
    yield _grouped("grouped-query 4096, full", group, 1.03)
    seen = (1024 * 8192 - 512 * 1024) / 8192**2
    long = (2, 8, 4, 8192, 8192, 128)
    yield _grouped("grouped-query 8192, window 1024", long, 1.6, kept=seen, causal=True, window=1024)
    yield _grouped("decode 32x8x8, 8192 keys", (32, 8, 8, 1, 8192, 128), 0.97)
    yield _grouped("decode 64x16x1, 4096 keys", (64, 16, 1, 1, 4096, 128), 0.97)
    yield _grouped("4 tokens 32x8x8, 8192 keys", (32, 8, 8, 4, 8192, 128), 1.5, causal=True, first_query=8188)
    yield _grouped("decode 4x8x8, 8192 keys", (4, 8, 8, 1, 8192, 128), 1.0)
    yield _grouped("decode 1x8x8, 65536 keys", (1, 8, 8, 1, 65536, 128), 1.0)
    few = (1, 32, 128, 32768, 128, 128)
    yield _heads("128 queries, 32768 keys, full", few, 1.4)
    yield _heads("128 queries, 32768 keys, causal", few, 1.4, causal=True, first_query=32768 - 128)
    chunk = (1, 8, 4, 512, 16384, 128)
    yield _grouped("chunk of 512, 16384 keys, causal", chunk, 1.4, causal=True, first_query=16384 - 512)
    wide = (2, 16, 2048, 2048, 256, 256)
    yield _heads("head size 256, full", wide, 1.0)
    yield _heads("head size 256, causal", wide, 1.1, kept=0.5, causal=True)
    yield _heads("head sizes 192 and 128, causal", (2, 16, 4096, 4096, 192, 128), 1.15, kept=0.5, causal=True)


def _products() -> Iterator[Row]:
    small = {"w": 0.02, "u": 0.02}
    sizes = {"M": 4096, "N": 11008, "K": 4096}
    yield Row("gated unit 4096x11008x4096", own.gated_unit, sizes, "gated_unit", 1.05, scales=small)
    sizes = {"M": 8192, "N": 4096, "K": 4096}
    yield Row("gelu + residual 8192x4096x4096", plain.gelu_and_residual, sizes, "gelu_and_residual", 1.05, scales=small)
    sizes, scales = {"M": 16, "N": 8192, "K": 8192}, {"s": 0.01}
    yield Row("int8 weights 16x8192x8192", own.byte_weights, sizes, "byte_weights", 1.5, scales=scales)
    sizes = {"B": 16, "M": 512, "N": 2816, "K": 2048}
    experts = partial(kernels.gemm, "nt", "bf16", "bf16", batched=True)
    yield Row("16 experts 512x2816x2048", experts, sizes, "experts", 0.98, results=("c",))
    yield Row("matrix by vector 8192", own.matrix_vector, {"N": 8192, "K": 8192}, "matrix_vector", 1.02)


def _gradients() -> Iterator[Row]:
    layers = ((64, 56, 1), (128, 28, 1), (256, 14, 1), (512, 7, 1), (128, 56, 2), (256, 28, 2))
    for channels, height, stride in layers:
        sizes = {"N": 32, "C": channels, "F": channels} | dict.fromkeys("HW", height)
        sizes |= dict.fromkeys("PQ", (height - 1) // stride + 1)
        make = partial(kernels.conv_filter_gradient, (3, 3), "bf16", stride=stride, padding=1)
        name = f"weight gradient {channels} channels {height}x{height}, stride {stride}"
        yield Row(name, make, sizes, "filter_gradient", 1.15, options={"stride": stride}, results=("dw",))
    for channels, height in ((128, 56), (256, 28)):
        sizes = {"N": 32, "C": channels, "F": channels} | dict.fromkeys("HW", height) | dict.fromkeys("PQ", height // 2)
        make = partial(kernels.conv_image_gradient, (3, 3), "bf16", stride=2, padding=1)
        name = f"input gradient {channels} channels {height}x{height}, stride 2"
        options = {"stride": 2, "padding": 1}
        yield Row(name, make, sizes, "image_gradient", 1.4, kept=0.25, options=options, results=("dx",))


def _chains() -> Iterator[Row]:
    sizes = {"B": 2, "H": 16, "M": 4096, "N": 4096, "D": 128, "E": 128}
    yield Row("dV of attention 2x16x4096x128", plain.value_gradient, sizes, "value_gradient", 0.9, results=("dv",))
    square = {"M": 4096, "N": 4096, "K": 4096}
    scales = {"w": 0.02, "a": 0.02, "b": 0.1}
    yield Row("low-rank update 4096, rank 64", own.low_rank, square | {"L": 64}, "low_rank", 0.9, scales=scales)
    scales = {"w": 0.02}
    yield Row("rms norm then product 4096", plain.norm_and_product, square, "norm_and_product", 0.9, scales=scales)
    make, scales = partial(product_and, softmax), {"a": 0.2, "b": 0.2}
    name = "product then row softmax 4096x4096x1024"
    yield Row(name, make, dict(PRODUCT_SOFTMAX), "product_and_softmax", 0.9, scales=scales, error=3e-2)


def _rowwise() -> Iterator[Row]:
    peer_or_copy = "peer or copy"
    sizes = {"M": 4096, "N": 32000}
    yield Row("log-softmax 4096x32000 to f32", rows.log_softmax, sizes, "log_softmax", 1.0, peer_or_copy)
    sizes, both = {"M": 8192, "N": 4096}, ("y", "s")
    name = "rows quantised to e4m3 8192x4096"
    yield Row(name, plain.quantised_rows, sizes, "quantised_rows", 1.0, peer_or_copy, results=both, error=5e-2)
    sizes = {"B": 8, "P": 4096, "GQ": 32, "C": 10}
    yield Row("group norm + silu 8x64x64x320", rows.group_norm, sizes, "group_norm", 1.0, peer_or_copy)
    sizes, make = {"N": 64, "H": 112, "W": 112, "C": 64}, partial(rows.pooled, "max")
    yield Row("max pooling 3x3 stride 2 64x112x112x64", make, sizes, "pooled", 1.0, peer_or_copy)
    line, matrix = {"N": 1 << 30}, {"M": 32768, "N": 32768}
    yield Row("sum of 2x over 2^30", plain.sum_of_doubled, line, "sum_of_doubled", 0.9, "copy", error=1e-4)
    yield Row("sum of sums 32768x32768", plain.sum_of_sums, matrix, "sum_of_sums", 0.9, "copy", error=1e-4)
    yield Row(
        "mean squared loss 32768x16384", plain.mean_loss, matrix | {"N": 16384}, "mean_loss", 0.9, "copy", error=1e-4
    )


def _images() -> Iterator[Row]:
    for name, taps, stride, padding, shape in (
        ("1x1, 256 to 64 channels, 56x56", 1, 1, 0, (32, 256, 56, 64)),
        ("3x3, 128 channels, 28x28", 3, 1, 1, (32, 128, 28, 128)),
        ("7x7, 3 to 64 channels, 224x224", 7, 2, 3, (32, 3, 224, 64)),
    ):
        sizes = dict(zip("NCHF", shape, strict=True)) | {"W": shape[2]}
        make = partial(plain.conv_nchw, taps, stride, padding)
        options = {"taps": taps, "stride": stride, "padding": padding}
        yield Row(f"NCHW convolution {name}", make, sizes, "conv_nchw", 0.9, options=options)
    for rank, stride, taps, shape in (
        (1, 2, 4, (32, 256, 4096, 128)),
        (1, 3, 5, (32, 256, 4096, 128)),
        (2, 2, 4, (32, 256, 28, 128)),
        (2, 3, 5, (32, 256, 28, 128)),
        (3, 2, 4, (4, 128, 16, 64)),
        (3, 3, 3, (4, 128, 16, 64)),
    ):
        batch, channels, extent, filters = shape
        padding = (taps - stride + 1) // 2
        whole = (extent - 1) * stride + taps - 2 * padding
        sizes = {"N": batch, "F": channels, "C": filters} | dict.fromkeys("DHW"[3 - rank :], whole)
        sizes |= dict.fromkeys("ZPQ"[3 - rank :], extent)
        make = partial(kernels.conv_image_gradient, (taps,) * rank, "bf16", stride=stride, padding=padding)
        name = f"transposed convolution {rank}-D, stride {stride}, {taps} taps, {channels} to {filters} channels"
        options = {"stride": stride, "padding": padding}
        kept = (extent / whole) ** rank
        yield Row(name, make, sizes, "image_gradient", 4, "floor", kept, options, results=("dx",))
    sizes = {"N": 32, "C": 256, "H": 56, "W": 56}
    yield Row("depthwise 3x3 by mma, NCHW 32x256x56x56", plain.depthwise_nchw, sizes, "depthwise", 4, "floor")
    shape = TWO_CONVOLUTIONS[0]
    make, sizes = partial(two_convolutions, *shape[:4]), of_images(*shape)
    scales = {"w1": (9 * shape[3]) ** -0.5, "w2": shape[4] ** -0.5}
    yield Row("convolutions 3x3 and 1x1 in one", make, sizes, "two_convolutions", 4, "floor", scales=scales)


def _masked() -> Iterator[Row]:
    for shape in ((2, 16, 2048, 2048, 64, 64), (2, 16, 2048, 2048, 128, 128), (2, 8, 2048, 2048, 256, 256)):
        yield _heads(f"f32 attention, head size {shape[-1]}", shape, 3, dtype="f32", against="floor")
    yield _heads("f32 attention, head size 1024", (1, 4, 2048, 2048, 1024, 1024), 3, dtype="f32", against="floor")
    square = {"M": 4096, "N": 4096, "K": 4096}
    for side in ("operand", "result"):
        make = partial(plain.triangular, side)
        options = {"side": side}
        yield Row(f"triangular {side} 4096", make, square, "triangular", 2, "floor", kept=0.5, options=options)
