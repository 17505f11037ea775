"""Batch and image size as run-time arguments: one kernel, compiled once, exact for all sizes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright
from tilewright.errors import ArgumentError
from tilewright.kernels.conv import conv
from tilewright.kernels.gemm import gemm
from tilewright.ops import Conv
from tilewright.problems import ConvProblem, conv_forward
from tilewright.targets.cpu import native

TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "s8": np.int8}


@pytest.fixture
def compiled(monkeypatch):
    """The programs that became machine code."""
    made = []
    kernel = native.NativeKernel.__init__

    def counted(self, program, *rest):
        made.append(program.name)
        kernel(self, program, *rest)

    monkeypatch.setattr(native.NativeKernel, "__init__", counted)
    return made


def integers(shape, dtype, seed):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


FORMS = {
    "3x3": {"taps": (3, 3), "c": 8, "f": 20, "padding": 1},
    "1x1": {"taps": (1, 1), "c": 16, "f": 33},
    "strided and uneven": {"taps": (3, 2), "c": 5, "f": 17, "stride": (2, 1), "padding": ((0, 2), (1, 0))},
    "dilated": {"taps": (2, 3), "c": 4, "f": 8, "dilation": (1, 2), "padding": 2},
    "groups": {"taps": (3, 3), "c": 4, "f": 6, "groups": 2, "padding": 1},
    "one axis": {"taps": (5,), "c": 3, "f": 9, "padding": 2},
    "three axes": {"taps": (2, 2, 3), "c": 3, "f": 5, "padding": 1},
}
SIZES = [(1, 5, 9, 7), (2, 7, 4, 31), (3, 6, 5, 14), (1, 8, 20, 3), (1, 3, 3, 64)]


@pytest.mark.sampled(14)
@pytest.mark.parametrize("dynamic", ["batch", "image"])
@pytest.mark.parametrize("dt", TYPES)
@pytest.mark.parametrize("form", FORMS)
def test_one_kernel_for_all_sizes(form, dt, dynamic, compiled):
    options = dict(FORMS[form])
    taps, c, f = options.pop("taps"), options.pop("c"), options.pop("f")
    groups = options.get("groups", 1)
    w = integers((f, *taps, c), TYPES[dt], 0)
    bias = np.arange(f) % 5
    layer = Conv(w, bias, activation="relu", out_dtype="i32" if dt == "s8" else "f32", dynamic=dynamic, **options)
    layer(integers((1, *SIZES[0][4 - len(taps) :], c * groups), TYPES[dt], 1))
    count = len(compiled)
    for n, *extents in SIZES:
        image = extents[3 - len(taps) :] if dynamic == "image" else SIZES[0][4 - len(taps) :]
        x = integers((n, *image, c * groups), TYPES[dt], n)
        y = layer(x)
        ends = layer.padding
        problem = ConvProblem(
            mb=n,
            ic=c * groups,
            oc=f,
            i=tuple(image),
            k=taps,
            s=layer.stride,
            d=tuple(d - 1 for d in layer.dilation),
            p=tuple(a for a, _ in ends),
            o=y.shape[1:-1],
            g=groups if groups > 1 else None,
        )
        wanted = conv_forward(problem, x, w, x_layout="nxc", w_layout="oxi", y_layout="nxc") + bias
        assert np.array_equal(y, np.maximum(wanted, 0).astype(y.dtype))
    assert len(compiled) == count


def test_compile_takes_open_sizes(compiled):
    run = tilewright.compile(gemm("nn", "f32", "f32"), target="cpu", dynamic=["M"])
    b = integers((20, 33), np.float32, 0)
    counts = set()
    for m in (1, 7, 32, 100, 1000):
        a = integers((m, 20), np.float32, m)
        assert np.array_equal(run(a, b), a @ b)
        counts.add(len(compiled))
    assert len(counts) == 1
    assert "param M in 1.." in run.text("block")
    plan = run.text("plan")
    assert "axis M = (M 2?): task" in plan
    again = tilewright.compile(gemm("nn", "f32", "f32"), target="cpu", dynamic=["M"], plan=plan)
    a = integers((77, 20), np.float32, 3)
    first = integers((2, 20), np.float32, 3)
    assert np.array_equal(again(a, b), a @ b)
    assert again.text("plan") == plan
    with pytest.raises(ArgumentError, match="open here are M"):
        tilewright.compile(gemm("nn", "f32", "f32"), target="cpu", dynamic=["M"], plan=plan.replace("?", ""))(a, b)
    with pytest.raises(ArgumentError, match="M: no size is open here"):
        tilewright.compile(gemm("nn", "f32", "f32"), target="cpu", plan=plan)(first, b)


def test_open_image_of_a_kernel():
    kernel = conv((3, 3), "f32", padding=1)
    run = tilewright.compile(kernel, target="cpu", dynamic=["N", "H", "W"])
    w = integers((8, 3, 3, 4), np.float32, 0)
    fixed = tilewright.compile(kernel, target="cpu")
    for shape in ((1, 5, 6, 4), (2, 9, 31, 4)):
        x = integers(shape, np.float32, 1)
        assert np.array_equal(run(x, w), fixed(x, w))


def test_what_cannot_be_open_is_refused():
    with pytest.raises(ArgumentError, match="dynamic='all'"):
        tilewright.Conv2d(np.ones((1, 1, 1, 1), np.float32), dynamic="all")
    with pytest.raises(ArgumentError, match="Q is no size that arguments tell"):
        tilewright.compile(gemm("nn", "f32", "f32"), target="cpu", dynamic=["Q"])
    with pytest.raises(ArgumentError, match="with target='executor' every size is"):
        tilewright.compile(gemm("nn", "f32", "f32"), dynamic=["M"], target="executor")
