"""What a prompt shows of layers, mappings, executables and plans: what they are, not where they lie in memory."""

from __future__ import annotations

import platform

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
from tilewright.plan.text import parse_plan

x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="machine code is for x86")


def test_layers():
    w = np.ones((8, 3, 2, 4), np.float32)
    assert repr(tilewright.Conv2d(w)) == "Conv2d(weight f32[8, 3, 2, 4])"
    layer = tilewright.Conv2d(
        w, np.zeros(8, np.float32), stride=(2, 1), padding=1, groups=2, activation="relu", out_dtype="bf16"
    )
    assert repr(layer) == (
        "Conv2d(weight f32[8, 3, 2, 4], bias, stride=(2, 1), padding=((1, 1), (1, 1)), groups=2, activation='relu', "
        "out_dtype=bf16)"
    )
    assert repr(tilewright.Conv1d(w[0], dilation=3, dynamic="batch")) == (
        "Conv1d(weight f32[3, 2, 4], dilation=(3,), dynamic='batch')"
    )


def test_mappings():
    i, d = tkl.IndexMapping.iterator(0), tkl.IndexMapping.dynamic_val(0)
    M, N = tkl.sym.M, tkl.sym.N
    plain = tkl.IndexMapping(num_iterators=1, inputs={M: 2 * i + 1}, outputs={N: i})
    assert repr(plain) == "IndexMapping(num_iterators=1, inputs={M: 2*it0 + 1}, outputs={N: it0})"
    by_data = tkl.IndexMapping(num_iterators=1, inputs={M: d}, outputs={N: i}, dynamic_val_mappings={N: i})
    assert repr(by_data).endswith("outputs={N: it0}, dynamic_val_mappings=({N: it0},))")


def test_executables():
    gemm = tilewright.kernels.gemm("nt", "bf16")
    wanted = "<executable gemm(a: bf16[M, K], b: bf16[N, K], c: f32[M, N]) on "
    assert repr(tilewright.compile(gemm, target="executor")) == f"{wanted}the executor>"
    text = "block same(%x: in global f32 (3), %y: out global f32 (3))\n{\n  copy %x -> %y\n}"
    assert repr(tilewright.compile_text(text, target="interpreter")) == (
        "<executable same(x: in global f32 (3), y: out global f32 (3)) on interpreter>"
    )


@x86
def test_executables_of_machine_code():
    assert repr(tilewright.compile(tilewright.kernels.gemm("nt", "f32"), target="cpu")).endswith(" on cpu>")
    layer = tilewright.Conv2d(np.ones((8, 2, 1, 4), np.float32))
    kernel, _ = layer.kernel(np.ones((1, 3, 2, 4), np.float32))
    assert repr(kernel).startswith("<kernel conv(x: f32[1, 3, 2, 4], w: f32[8, 2, 1, 4], y: f32[1, 2, 2, 8]) by ")


def test_plans():
    text = "axis rows = (m_0 8): task 4, unit 1; grid rows; atom avx2.f32"
    plan = parse_plan(text)
    assert repr(plan) == f"parse_plan({text!r})"
    assert eval(repr(plan)) == plan
