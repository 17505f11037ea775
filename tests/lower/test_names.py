"""Names that the compiler makes never meet those of authors, nor each other, whatever dimensions and arguments are
called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw

GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def image_to_column(layout: str, stride: int, names: tuple[str, ...] = ("N", "C", "H", "W", "NF", "HF", "WF")) -> Any:
    """A convolution as a product over dimensions that are expressions: rows N*P*Q, depth HF*WF*C."""
    n, c, h, w, nf, hf, wf = (tkl.sym.__getattr__(name) for name in names)
    h_out, w_out = (h - hf) // stride + 1, (w - wf) // stride + 1
    rows, depth = h_out * w_out * n, hf * wf * c
    i, j, k = (tkl.sym.__getattr__(name) for name in ("row_it", "column_it", "depth_it"))
    place, tap = i % (h_out * w_out), k // c
    at = {
        "x": {n: i // (h_out * w_out), h: place // w_out * stride + tap // wf, w: place % w_out * stride + tap % wf},
        "f": {hf: tap // wf, wf: tap % wf, c: k % c, nf: j},
        "y": {n: i // (h_out * w_out), h_out: place // w_out, w_out: place % w_out, nf: j},
    }
    at["x"][c] = k % c
    dims = {
        "nchw": ((n, c, h, w), (nf, c, hf, wf), (n, nf, h_out, w_out)),
        "nhwc": ((n, h, w, c), (hf, wf, c, nf), (n, h_out, w_out, nf)),
    }[layout]
    x_type, f_type, y_type = (
        tkl.Memory[(*d, GLOBAL, t)] for d, t in zip(dims, (tkl.f16, tkl.f16, tkl.f32), strict=True)
    )
    x_at, f_at, y_at = (tuple(at[name][d] for d in ds) for name, ds in zip("xfy", dims, strict=True))
    constraints = [
        tkw.WorkgroupConstraint(rows, 64, 1),
        tkw.WorkgroupConstraint(nf, 128, 0),
        tkw.TilingConstraint(depth, 32),
        tkw.IteratorBindings({i: rows, k: depth, j: nf}),
    ]

    @tkw.wave(constraints)
    def convolution(x: x_type, f: f_type, y: y_type) -> None:  # type: ignore[valid-type]
        start = tkl.Register[rows, nf, tkl.f32](0.0)

        @tkw.iterate(depth, init_args=[start])
        def total(acc: Any) -> Any:
            taps = tkw.read(x, source=x_at, target=(i, k))
            filters = tkw.read(f, source=f_at, target=(j, k))
            return tkw.mma(taps, filters, acc)

        tkw.write(total, y, source=(i, j), target=y_at)

    return convolution


def convolved(x: Any, f: Any, stride: int) -> Any:
    """The convolution of [n, c, h, w] by [nf, c, hf, wf], in f32."""
    (n, _, h, w), (nf, _, hf, wf) = x.shape, f.shape
    found = np.zeros((n, nf, (h - hf) // stride + 1, (w - wf) // stride + 1), np.float32)
    for p in range(found.shape[2]):
        for q in range(found.shape[3]):
            window = x[:, :, p * stride : p * stride + hf, q * stride : q * stride + wf].astype(np.float32)
            found[:, :, p, q] = np.einsum("nchw,fchw->nf", window, f.astype(np.float32))
    return found


def small(rng: np.random.Generator, *shape: int) -> Any:
    """Small whole numbers: sums of their products are exact."""
    return rng.integers(-3, 4, shape).astype(np.float16)


@pytest.mark.parametrize("target", ["executor", "cpu"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("shape", [(2, 3, 7, 6, 5, 3, 2), (1, 10, 5, 5, 2, 2, 2), (4, 1, 9, 11, 16, 1, 3)])
def test_dimensions_that_are_expressions_were_all_called_dim(
    target: str, stride: int, layout: str, shape: tuple[int, ...]
) -> None:
    n, c, h, w, nf, hf, wf = shape
    rng = np.random.default_rng(0)
    x, f = small(rng, n, c, h, w), small(rng, nf, c, hf, wf)
    wanted = convolved(x, f, stride)
    if layout == "nhwc":
        x, f, wanted = x.transpose(0, 2, 3, 1).copy(), f.transpose(2, 3, 1, 0).copy(), wanted.transpose(0, 2, 3, 1)
    y = np.zeros(wanted.shape, np.float32)
    tilewright.compile(image_to_column(layout, stride), target=target)(x, f, y)
    assert np.array_equal(y, wanted)


UNFORTUNATE = [
    ("dim", "dim_1", "dim_0_1", "DIM", "v0", "acc", "at_0"),
    ("m", "M", "rows", "rows_0", "taps", "TAPS_0", "k"),
    ("i", "j", "f", "b", "i0", "i1", "part"),
    ("strip", "block", "whole", "whole_", "all", "zero", "d0"),
    ("dim2", "Dim", "dim3", "DIM2", "t_0", "e", "q"),
]


@pytest.mark.parametrize("names", UNFORTUNATE)
def test_dimensions_may_have_the_names_that_the_compiler_would_choose(names: tuple[str, ...]) -> None:
    rng = np.random.default_rng(1)
    x, f = small(rng, 2, 3, 8, 7), small(rng, 5, 3, 3, 2)
    wanted = convolved(x, f, 1)
    kernel = tilewright.compile(image_to_column("nchw", 1, names), target="cpu")
    y = np.zeros(wanted.shape, np.float32)
    kernel(x, f, y)
    assert np.array_equal(y, wanted)
    for level in ("block", "host", "loop"):
        tilewright.compile_text(kernel.text(level), target="interpreter")


@pytest.mark.parametrize("pair", [("M", "m"), ("dim", "dim_1"), ("rows", "rows_0"), ("v0", "acc"), ("i0", "i1")])
def test_products_of_dimensions_with_unfortunate_names(pair: tuple[str, str]) -> None:
    rows, columns = (tkl.sym.__getattr__(name) for name in pair)
    depth = tkl.sym.k_0

    @tkw.wave()
    def product(
        sums_: tkl.Memory[rows, depth, GLOBAL, tkl.f32],  # type: ignore[valid-type]
        packed_: tkl.Memory[columns, depth, GLOBAL, tkl.f32],  # type: ignore[valid-type]
        goal_1: tkl.Memory[rows, columns, GLOBAL, tkl.f32],  # type: ignore[valid-type]
    ) -> None:
        start = tkl.Register[rows, columns, tkl.f32](0.0)

        @tkw.iterate(depth, init_args=[start])
        def total(acc: Any) -> Any:
            return tkw.mma(tkw.read(sums_), tkw.read(packed_), acc)

        tkw.write(total, goal_1)

    rng = np.random.default_rng(2)
    a, b = (small(rng, n, 13).astype(np.float32) for n in (37, 21))
    for options in ({}, {"dynamic": [pair[0]]}):
        kernel = tilewright.compile(product, target="cpu", **options)
        assert np.array_equal(kernel(a, b), a @ b.T)
        tilewright.compile_text(kernel.text("block"), target="interpreter")


@pytest.mark.parametrize("names", [("v", "v_1", "v_2"), ("total", "lanes", "carried"), ("t_M", "k_M", "w0")])
def test_arguments_of_the_general_path_may_have_the_names_of_its_tensors(names: tuple[str, str, str]) -> None:
    rows, columns, other = (tkl.sym.__getattr__(name) for name in names)
    kind = tkl.Memory[rows, columns, 2 * other, GLOBAL, tkl.f32]

    def softmax(x: Any, y: Any) -> None:
        tile = tkw.exp(tkw.read(x))
        tkw.write(tile / tkw.sum(tkw.sum(tile, dim=2 * other), dim=columns), y)

    softmax.__annotations__ = {"x": kind, "y": kind}
    text = tkw.wave()(softmax).trace()
    renamed = str(text).replace("%x", f"%{names[0]}").replace("%y", f"%{names[1]}_1")
    kernel = tilewright.compile(renamed, target="cpu")
    x = np.random.default_rng(3).standard_normal((6, 33, 10), np.float32)
    found, wanted = kernel(x), np.exp(x) / np.exp(x).sum((1, 2), keepdims=True)
    assert np.allclose(found, wanted, rtol=1e-6)
    block = tilewright.compile_text(kernel.text("block"), target="cpu")
    assert block.text("block") == kernel.text("block")
