"""The problems of the plan corpus: kernels with their sizes, in kinds, each kind a file of the record.

| kind | problems |
|---|---|
| the shape lists | every convolution of `tilewright.problems`, f32, bf16 and i8 |
| layers | further convolutions, f32 and bf16: strided, grouped and depthwise ones of batches |
| products | GEMMs: square, skinny, odd, batched, every transpose, with epilogues, of every type; vectors |
| attention | plain, causal, biased, grouped-query, windowed, decoding; heads of 64, 80, 128 and 256 |
| rows | softmax, norms, reductions, scans, transposes, gathers, pooling: what multiplies no matrices |
| fused | gated units, low rank, chains, quantised weights, gradients, products with softmax or norms |
| grid | programs whose workgroups are part of their meaning |
| dynamic | sizes that a call tells |
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import corpus_kernels as own
import corpus_rows as rows
import gpu_shapes as shapes
import old_new_problems as shared

from tilewright import kernels
from tilewright.problems import parse_conv, shape_list, shape_lists
from tilewright.wave.templates import get_igemm_conv2d

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "plan")]
from grid_programs import grid_gemm  # noqa: E402

TYPES = ("f32", "bf16", "i8")
LAYERS = (
    *("mb32ic256ih56oc512kh1sh2ph0", "mb32ic3ih224oc64kh7sh2ph3", "mb16ic3ih224oc64kh7sh2ph3"),
    *("mb16ic64ih56oc64kh3ph1", "mb16ic256ih14oc256kh3ph1", "mb16ic512ih7oc512kh3ph1"),
    *("mb16ic64ih56oc256kh1ph0", "mb16ic1024ih14oc256kh1ph0", "mb16ic512ih28oc256kh1sh2ph0"),
    *("g32mb32ic256ih28oc256kh3ph1", "g32mb16ic512ih28oc512kh3ph1", "g4mb2ic52ih15oc44kh3ph1"),
    *("g256mb32ic256ih28oc256kh3ph1", "g512mb16ic512ih14oc512kh3ph1", "g64mb16ic64ih112oc64kh3sh2ph1"),
)
"""Layers beside the shape lists: whole batches of 16 and 32, strided, grouped, depthwise."""
MORE_GEMMS = ((64, 64, 8192), (16, 8192, 8192), (8192, 64, 512), (1024, 1024, 1024))
ODD = ((1, 1, 1), (7, 13, 5), (33, 65, 257), (127, 129, 131), (1000, 1001, 999), (17, 4096, 333))
WIDE = {"i8": "i32"}


@dataclass(frozen=True)
class Problem:
    """A kernel, what makes it, and its sizes; of `dynamic` sizes the given ones are typical."""

    kind: str
    name: str
    make: Callable[[], Any] = field(compare=False)
    sizes: dict[str, int] = field(compare=False)
    constant: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()


def problems() -> dict[tuple[str, str], Problem]:
    """All problems by kind and name."""
    found: dict[tuple[str, str], Problem] = {}
    for problem in _all():
        key = problem.kind, problem.name
        if key in found:
            raise ValueError(f"two problems of kind {problem.kind} are named {problem.name!r}")
        found[key] = problem
    return found


def _all() -> Iterator[Problem]:
    for name in shape_lists():
        for layer in dict.fromkeys(replace(p, name=None) for p in shape_list(name)):
            yield from (_of(shared.conv(name, layer, dtype)) for dtype in TYPES)
    for text in LAYERS:
        yield from (_of(shared.conv("layers", parse_conv(text), dtype)) for dtype in ("f32", "bf16"))
    yield from _products()
    yield from _attention()
    yield from _rows()
    yield from _fused()
    yield from _grid()
    yield from _dynamic()


def _of(problem: shared.Problem, kind: str | None = None) -> Problem:
    """A problem of `old_new_problems.py`."""
    return Problem(kind or problem.list, problem.name, problem.kernel, problem.sizes, problem.constant)


def _gemm(kind: str, m: int, n: int, k: int, how: str, dtype: str, batch: int = 0, **options: Any) -> Problem:
    sizes = {"M": m, "N": n, "K": k, **({"B": batch} if batch else {})}
    words = [f"{name}={value}" if value is not True else name for name, value in options.items()]
    by = f"{batch}x" if batch else ""
    name = " ".join([dtype, how, f"{by}{m}x{n}x{k}", *words])
    result = WIDE.get(dtype, "bf16" if dtype.startswith("f8") else dtype)
    if batch:
        options["batched"] = True
    return Problem(kind, name, lambda: kernels.gemm(how, dtype, result, **options), sizes)


def _products() -> Iterator[Problem]:
    for sizes in (*shapes.GEMMS, *MORE_GEMMS):
        yield _gemm("products", *sizes, "nt", "bf16")
    for how, *sizes in shapes.F32_GEMMS:
        yield _gemm("products", *sizes, how, "f32")
    for sizes in ODD:
        yield _gemm("products", *sizes, "nn", "f16")
        yield _gemm("products", *sizes, "tn", "i8")
    for how in ("nn", "tn", "tt"):
        yield _gemm("products", 4096, 4096, 4096, how, "bf16")
        yield _gemm("products", 1000, 1000, 1000, how, "bf16")
    for dtype in ("i8", "f8e4m3fn", "f16", "f64"):
        yield _gemm("products", 2048, 2048, 2048, "nt", dtype)
    yield _gemm("products", 4096, 4096, 4096, "nt", "f32", precision="tf32")
    yield _gemm("products", 4096, 4096, 4096, "nt", "f16", accumulate="f16")
    for dtype in ("f32", "bf16"):
        yield _gemm("products", 8192, 4096, 4096, "nt", dtype, bias=True, activation="gelu")
        yield _gemm("products", 512, 512, 512, "nt", dtype, 64)
        yield _gemm("products", 256, 256, 256, "nt", dtype, 32)
        yield _gemm("products", 100, 60, 33, "nn", dtype, 7)
        yield _gemm("products", 1, 1024, 64, "nt", dtype, 128)
        yield _gemm("products", 512, 2816, 2048, "nt", dtype, 16)
    for dtype, n, k in (("bf16", 16384, 8192), ("f32", 4096, 4096), ("f32", 1001, 333), ("bf16", 8192, 28672)):
        make = _making(own.matrix_vector, dtype)
        yield Problem("products", f"matrix by vector {dtype} {n}x{k}", make, {"N": n, "K": k})
    for dtype, b, k, n in (("bf16", 64, 1024, 4096), ("bf16", 16, 1024, 1024), ("f32", 5, 333, 77)):
        make = _making(own.batched_vectors, dtype)
        yield Problem("products", f"vectors by matrices {dtype} {b}x{k}x{n}", make, {"B": b, "K": k, "N": n})


def _making(function: Callable[..., Any], *args: Any, **options: Any) -> Callable[[], Any]:
    return lambda: function(*args, **options)


def _attention() -> Iterator[Problem]:
    for shape in shapes.ATTENTIONS:
        for causal in (False, True):
            yield _of(shared.attention("attention", shape, "bf16", causal))
    for shape in ((1, 16, 1024, 64), (1, 4, 1000, 80), (2, 16, 4096, 256)):
        for dtype, causal in (("f32", False), ("f32", True), ("f16", True), ("bf16", False)):
            yield _of(shared.attention("attention", shape, dtype, causal))
    sizes = {"B": 2, "H": 8, "M": 1024, "N": 1024, "D": 64, "E": 64}
    yield Problem("attention", "bf16 bias 2x8x1024x64", _making(kernels.attention, 128, "bf16", bias=True), sizes)
    later = _making(kernels.attention, 128, "bf16", causal=True, first_query=3072)
    yield Problem("attention", "bf16 1024 queries after 3072 keys", later, sizes | {"N": 4096})
    yield Problem("attention", "bf16 scores 2x8x1024x64", own.scores_only, {n: sizes[n] for n in "BHMND"})
    for words, shape, options in (
        ("causal", (2, 8, 4, 4096, 4096, 128), {"causal": True}),
        ("causal, heads of 64", (2, 8, 4, 4096, 4096, 64), {"causal": True}),
        ("window of 1024", (2, 8, 4, 8192, 8192, 128), {"causal": True, "window": 1024}),
        ("decoding", (32, 8, 8, 1, 8192, 128), {}),
        ("decoding, one head a group", (16, 32, 1, 1, 4096, 128), {}),
        ("few queries", (1, 8, 1, 128, 32768, 128), {}),
        ("heads of 256", (2, 16, 1, 4096, 4096, 256), {}),
        ("ragged", (1, 3, 5, 333, 777, 72), {"causal": True}),
    ):
        sizes = dict(zip(("B", "KV", "GQ", "M", "N", "D"), shape, strict=True)) | {"E": shape[-1]}
        name = f"grouped-query {'x'.join(map(str, shape))} {words}"
        yield Problem("attention", name, _making(own.grouped_query, 128, **options), sizes)


def _rows() -> Iterator[Problem]:
    for m, n, dtype in (
        *((1000, 777, "f32"), (1000, 777, "bf16"), (8192, 8192, "bf16"), (65536, 256, "f32"), (64, 131072, "f32")),
        *((4096, 32000, "bf16"), (1, 50000, "f32")),
    ):
        yield from (_of(p) for p in shared.rows("rows", m, n, dtype))
        sizes = {"M": m, "N": n}
        for make in (rows.log_softmax, rows.residual_norm, rows.column_moments):
            yield Problem("rows", f"{dtype} {make.__name__} {m}x{n}", _making(make, dtype), sizes)
    yield from (_of(p) for p in shared.others("rows", 8200, 4096, "f32"))
    yield from (
        _of(p) for p in shared.others("rows", 1000, 777, "bf16") if "im2col" not in p.name and "histogram" not in p.name
    )
    for combine in ("sum", "prod", "max", "min"):
        for over in ("columns", "rows"):
            make = _making(kernels.reduction, combine, over, "i32")
            yield Problem("rows", f"i32 {combine} over {over} 333x555", make, {"M": 333, "N": 555})
    for activation in ("gelu_tanh", "silu", "relu"):
        make = _making(kernels.activation, activation, "f32")
        yield Problem("rows", f"f32 {activation} 333x555", make, {"M": 333, "N": 555})
    for axes, shape in (((0, 2, 1), (64, 256, 3136)), ((0, 2, 3, 1), (32, 64, 56, 56)), ((3, 1, 0, 2), (7, 33, 5, 65))):
        sizes = {f"D{i}": n for i, n in enumerate(shape)}
        name = f"bf16 transpose {''.join(map(str, axes))} of {'x'.join(map(str, shape))}"
        yield Problem("rows", name, _making(kernels.transpose, axes, "bf16"), sizes)
    yield Problem("rows", "bf16 causal_softmax 16x1024x1024", rows.causal_softmax, {"B": 16, "M": 1024, "N": 1024})
    yield Problem("rows", "bf16 group_norm 8x4096x32x10", rows.group_norm, {"B": 8, "P": 4096, "GQ": 32, "C": 10})
    yield Problem("rows", "bf16 group_norm 2x196x16x32", rows.group_norm, {"B": 2, "P": 196, "GQ": 16, "C": 32})
    for combine in ("max", "sum"):
        sizes = {"N": 64, "H": 112, "W": 112, "C": 64}
        yield Problem("rows", f"bf16 pool {combine} 64x112x112x64", _making(rows.pooled, combine), sizes)
    yield Problem(
        "rows", "f32 pool max 2x13x13x37", _making(rows.pooled, "max", "f32", 1), {"N": 2, "H": 13, "W": 13, "C": 37}
    )
    yield Problem("rows", "bf16 pixel_shuffle 4x64x64x32", rows.pixel_shuffle, {"N": 4, "P": 64, "Q": 64, "C": 32})


def _fused() -> Iterator[Problem]:
    for shape in (*shapes.REDUCED_PRODUCTS, (520, 256, 512)):
        yield from (_of(p) for p in shared.reduced_products("fused", *shape))
    for shape in (*shapes.CHAINS, (520, 512, 512, 256)):
        yield from (_of(p) for p in shared.chains("fused", *shape))
    for shape in (*shapes.QUANTISED, (64, 512, 512, 128)):
        yield from (_of(p) for p in shared.quantised("fused", *shape))
    for shape in (*shapes.TWO_CONVOLUTIONS, (1, 28, 29, 32, 64, 128)):
        yield _of(shared.two_convolutions("fused", *shape))
    make, sizes = "product and softmax", shapes.PRODUCT_SOFTMAX
    yield _of(shared.Problem("fused", f"{make} 4096x4096x1024", make, sizes=sizes))
    yield _of(shared.Problem("fused", "two layers, gelu by tanh 8192", "two layers, gelu by tanh", sizes=shapes.MLP))
    for dtype in ("bf16", "f32"):
        for m, k, n in ((4096, 4096, 11008), (512, 1024, 2816), (16, 4096, 11008), (100, 333, 777)):
            said, sizes = f"{dtype} {m}x{n}x{k}", {"M": m, "K": k, "N": n}
            yield Problem("fused", f"gated unit {said}", _making(own.gated_unit, dtype), sizes)
            yield Problem("fused", f"residual {said}", _making(own.with_residual, dtype), sizes)
            yield Problem("fused", f"low rank {said}", _making(own.low_rank, dtype), sizes | {"L": 64})
        sizes = {"M": 4096, "K": 4096, "N": 4096, "L": 64}
        yield Problem("fused", f"low rank {dtype} 4096x4096x4096", _making(own.low_rank, dtype), sizes)
        yield Problem(
            "fused",
            f"row energy {dtype} 4096x512x1024",
            _making(own.row_energy, dtype),
            {"M": 4096, "N": 512, "K": 1024},
        )
        for b, h, c, f in ((32, 14, 256, 256), (16, 56, 64, 64), (3, 13, 20, 36)):
            sizes = {"B": b, "H": h, "W": h, "P": h, "Q": h, "R": 3, "S": 3, "C": c, "F": f}
            for make in (own.filter_gradient, own.image_gradient):
                yield Problem("fused", f"{make.__name__} {dtype} {b}x{h}x{h} {c}-{f}", _making(make, dtype), sizes)
    for m, n, k in ((16, 8192, 8192), (4096, 4096, 4096), (33, 200, 264)):
        yield Problem(
            "fused", f"weights of i8, a scale a column {m}x{n}x{k}", own.byte_weights, {"M": m, "N": n, "K": k}
        )


def _grid() -> Iterator[Problem]:
    for tile, dtype, size in ((32, "f32", 256), (64, "bf16", 1000), (128, "f16", 4096)):
        sizes = {"M": size, "N": size, "K": size}
        yield Problem("grid", f"reordered product {dtype} {tile} of {size}", _making(grid_gemm, tile, dtype), sizes)
    for tiles, dtype, shape in (
        ((64, 64, 32), "bf16", (1024, 1024, 1024)),
        ((128, 256, 64), "bf16", (4096, 4096, 4096)),
        ((32, 48, 16), "f32", (333, 777, 555)),
        ((16, 16, 64), "i8", (256, 256, 512)),
        ((64, 128, 32), "f16", (100, 5000, 72)),
    ):
        for batch in (0, 6):
            sizes = dict(zip("MNK", shape, strict=True)) | ({"B": batch} if batch else {})
            of = "x".join(map(str, (*([batch] if batch else []), *shape)))
            name = f"product {dtype} {'x'.join(map(str, tiles))} of {of}"
            yield Problem("grid", name, _making(rows.grid_product, *tiles, dtype, batched=bool(batch)), sizes)
    for m, n, tile, dtype in ((1000, 777, 1, "f32"), (1000, 777, 8, "bf16"), (8192, 4096, 4, "f32")):
        yield Problem(
            "grid", f"softmax {dtype} {tile} of {m}x{n}", _making(rows.grid_softmax, tile, dtype), {"M": m, "N": n}
        )
        yield Problem(
            "grid", f"sum {dtype} {tile}x64 of {m}x{n}", _making(rows.grid_sum, tile, 64, dtype), {"M": m, "N": n}
        )
    for layout in ("nhwc_hwcf", "nchw_fchw"):
        for dtype in ("f32", "f16"):
            name = f"convolution template {layout} {dtype}"
            kernel = _template(layout, dtype)
            yield Problem("grid", name, kernel, {})


def _template(layout: str, dtype: str) -> Callable[[], Any]:
    def make() -> Any:
        kernel, symbols = get_igemm_conv2d(layout, 4, 28, 28, 64, 3, 3, 96, 1, dtype, "f32", padding=(1, 1))
        return kernel.bound(symbols)

    return make


def _dynamic() -> Iterator[Problem]:
    """Kernels of every kind with some or all of their sizes left to calls."""
    mnk, mn = {"M": 1000, "N": 768, "K": 512}, {"M": 1000, "N": 777}
    image = {"N": 8, "H": 28, "W": 28, "C": 64, "F": 128}
    heads = {"B": 2, "H": 8, "M": 1024, "N": 1024, "D": 64, "E": 64}
    for dtype in ("f32", "bf16"):
        for opened in ("M", "MN", "MNK"):
            make = _making(kernels.gemm, "nt", dtype, dtype)
            yield Problem("dynamic", f"product {dtype}, {opened}", make, mnk, (), tuple(opened))
        for opened in ("N", "NHW"):
            make = _making(kernels.conv, (3, 3), dtype, padding=1)
            yield Problem("dynamic", f"3x3 convolution {dtype}, {opened}", make, image, ("w",), tuple(opened))
        for opened in ("B", "MN"):
            make = _making(kernels.attention, 128, dtype, causal=True)
            yield Problem("dynamic", f"attention {dtype}, {opened}", make, heads, (), tuple(opened))
        for maker in (kernels.softmax, kernels.layer_norm, kernels.rms_norm, kernels.running_sum, rows.log_softmax):
            for opened in ("M", "MN"):
                name = f"{maker.__name__} {dtype}, {opened}"
                yield Problem("dynamic", name, _making(maker, dtype), mn, (), tuple(opened))
        make = _making(kernels.transpose, (1, 0), dtype)
        yield Problem("dynamic", f"transpose {dtype}, D0 D1", make, {"D0": 1000, "D1": 777}, (), ("D0", "D1"))
        make = _making(kernels.reduction, "sum", "rows", dtype)
        yield Problem("dynamic", f"sum over rows {dtype}, M", make, mn, (), ("M",))
        yield Problem("dynamic", f"gated unit {dtype}, M", _making(own.gated_unit, dtype), mnk, (), ("M",))
        yield Problem(
            "dynamic", f"grid product {dtype}, M", _making(rows.grid_product, 64, 64, 32, dtype), mnk, (), ("M",)
        )
        yield Problem(
            "dynamic",
            f"batched product {dtype}, B",
            _making(kernels.gemm, "nn", dtype, dtype, batched=True),
            mnk | {"B": 6},
            (),
            ("B",),
        )
        yield Problem(
            "dynamic",
            f"grouped-query {dtype}, M",
            _making(own.grouped_query, 128, dtype),
            {"B": 2, "KV": 4, "GQ": 4, "M": 512, "N": 1024, "D": 64, "E": 64},
            (),
            ("M",),
        )
