"""Every function of `kernels` gives a kernel that compiles as it is; what it binds may be bound otherwise."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import tilewright
from tilewright import kernels
from tilewright.algebra.expr import symbol
from tilewright.wave import Kernel

OPTIONS = {
    "activation": ("gelu",),
    "attention": (16,),
    "attention_key_gradient": (16,),
    "attention_query_gradient": (16,),
    "attention_sums": (16,),
    "conv": ((3, 3),),
    "conv_filter_gradient": ((3, 3),),
    "conv_image_gradient": ((3, 3),),
    "gemm_of_scaled_blocks": (16,),
    "grouped_attention": (16,),
    "im2col": ((3, 3),),
    "linear_attention": (16,),
    "linear_cross_entropy": (16,),
    "online_softmax": (16,),
    "paged_attention": (16,),
    "pooling": ("max", (2, 2)),
    "reduction": ("sum",),
    "tiled_running_sum": (16,),
    "top_k_gating": (2,),
}


@pytest.mark.parametrize("name", kernels.__all__)
def test_every_kernel_compiles_as_it_is(name):
    """`compile(kernels.attention(16))` was refused: some functions gave a kernel and its symbols."""
    make = getattr(kernels, name)
    made = make(*OPTIONS.get(name, ()))
    assert isinstance(made, Kernel)
    assert isinstance(tilewright.compile(made, target="executor"), tilewright.Executable)
    assert inspect.signature(make).return_annotation == "tkw.Kernel"


def test_a_tile_can_be_bound_otherwise():
    x = np.log(np.array([[1, 2, 5]], np.float32))
    made = kernels.online_softmax(2)
    (block,) = made.symbols
    assert "bind BLOCK_N = 2" in str(made.trace())
    run = tilewright.compile(made, {block: 1}, target="executor")
    assert "bind BLOCK_N = 1" in run.text()
    assert "bind BLOCK_N = 3" in tilewright.compile(made, {"BLOCK_N": 3}, target="executor").text()
    np.testing.assert_allclose(run(x), [[0.125, 0.25, 0.625]], rtol=1e-6)


def test_binding_gives_another_kernel():
    made = kernels.gemm()
    other = made.bound({symbol("M", 0): 3})
    assert made.symbols == {}
    assert [str(e) for e in other.symbols.values()] == ["3"]
