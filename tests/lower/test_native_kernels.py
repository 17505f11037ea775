"""Every kernel and template of the package as machine code: what the executor gives, on both paths."""

import numpy as np
import pytest
from kernel_checks import small_integers
from tile_checks import native, no_atoms_today, own_cache, parses_back

import tilewright
from tilewright import kernels
from tilewright.kernels.conv import conv2d
from tilewright.wave.templates.conv import get_igemm_conv2d

pytestmark = no_atoms_today
__all__ = ["own_cache"]


def given(*shape, dtype="f32", limit=3, seed=0):
    return small_integers(np.random.default_rng(seed), shape, dtype, limit)


def attended(dtype):
    return tuple(
        given(*s, dtype=dtype, limit=1, seed=n) for n, s in enumerate([(1, 2, 5, 3), (1, 2, 7, 3), (1, 2, 7, 4)])
    )


def places(*numbers):
    return np.array(numbers, np.int32)


ROUGH = 3e-6
"""Of f32: functions of the library and the executor's own differ in the last places."""
CASES = [
    ("gemm", kernels.gemm("tn", "f16"), (given(9, 5, dtype="f16"), given(9, 7, dtype="f16")), 0),
    ("gemm", kernels.gemm("nt", "f8e4m3fn", "f32"), (given(5, 9, dtype="f8e4m3fn"), given(7, 9, dtype="f8e4m3fn")), 0),
    ("gemm", kernels.gemm("nn", "f8e5m2", "f32"), (given(17, 33, dtype="f8e5m2"), given(33, 40, dtype="f8e5m2")), 0),
    ("im2col", kernels.im2col((3, 2), "i8", padding=(1, 1)), (given(1, 4, 5, 3, dtype="i8"),), 0),
    ("attention", kernels.attention(3, "f32", causal=True), attended("f32"), ROUGH),
    ("softmax", kernels.softmax(), (given(6, 40),), ROUGH),
    ("online_softmax", kernels.online_softmax(7), (given(6, 40),), ROUGH),
    ("layer_norm", kernels.layer_norm(), (given(6, 40), given(40), given(40, seed=1)), ROUGH),
    ("rms_norm", kernels.rms_norm(), (given(6, 40), given(40)), ROUGH),
    ("group_norm", kernels.group_norm(), (given(2, 3, 4, 11), given(3, 4), given(3, 4, seed=1)), ROUGH),
    ("conv_image_gradient", kernels.conv_image_gradient((3, 2), "f16", padding=(1, 0)),
     (given(2, 5, 4, 6, dtype="f16"), given(6, 3, 2, 7, dtype="f16", seed=1), given(2, 5, 5, 7, dtype="f16")), 0),
    ("conv_filter_gradient", kernels.conv_filter_gradient((3, 2), "f16", padding=(1, 0)),
     (given(2, 5, 5, 7, dtype="f16"), given(2, 5, 4, 6, dtype="f16", seed=1)), 0),
    ("activation", kernels.activation("gelu"), (given(6, 40),), ROUGH),
    ("activation", kernels.activation("relu", "f16"), (given(6, 41, dtype="f16"),), 0),
    ("gated_silu", kernels.gated_silu(), (given(6, 40), given(6, 40, seed=1)), ROUGH),
    *(("reduction", kernels.reduction(how, over), (given(6, 41),), 0) for how in ("sum", "max", "min") for over in
      ("rows", "columns")),
    ("running_sum", kernels.running_sum(), (given(6, 41),), 0),
    ("tiled_running_sum", kernels.tiled_running_sum(7), (given(6, 41),), 0),
    ("transpose", kernels.transpose((2, 0, 1), "bf16"), (given(3, 5, 7, dtype="bf16"),), 0),
    ("transpose", kernels.transpose((1, 0), "f8e4m3fn"), (given(13, 70, dtype="f8e4m3fn"),), 0),
    ("gather_rows", kernels.gather_rows(), (given(4, 5), places(3, 0, 3)), 0),
    ("scatter_rows", kernels.scatter_rows(), (given(2, 5), places(3, 0), given(4, 5, seed=1)), 0),
    ("histogram", kernels.histogram(), (places(1, 2, 2, -5), np.zeros(3, np.int32)), 0),
    ("conv2d", conv2d((3, 2), "f16", "f32", stride=(2, 1), padding=(1, 0), bias=True, activation="relu"),
     (given(2, 7, 6, 5, dtype="f16"), given(9, 3, 2, 5, dtype="f16", seed=1), given(9)), 0),
    ("conv2d", conv2d((3, 3), "f32", groups=2, dilation=(1, 2)), (given(1, 6, 7, 4), given(6, 3, 3, 2, seed=1)), 0),
]  # fmt: skip


TESTED_BESIDE_REFERENCES = {
    *("attention_key_gradient", "attention_query_gradient", "attention_sums", "gemm_of_scaled_blocks"),
    *("gemm_of_scaled_columns", "group_norm_gradient", "group_norm_weight_gradient", "grouped_attention"),
    *("layer_norm_gradient", "layer_norm_weight_gradient"),
    *("image_mean", "linear_attention", "linear_cross_entropy", "paged_attention", "pooling"),
    *("rms_norm_gradient", "rms_norm_weight_gradient", "rotary", "softmax_gradient", "top_k_gating"),
}
"""Kernels whose machine code tests/kernels compares with numpy."""


def test_no_kernel_is_left_out():
    wanted = {"conv2d" if name == "conv" else name for name in kernels.__all__}  # the same, over two axes
    assert {name for name, *_ in CASES} | TESTED_BESIDE_REFERENCES == wanted


@pytest.mark.sampled(15)
@pytest.mark.parametrize("path", ["general", "best"])
@pytest.mark.parametrize(("made", "args", "rough"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_kernels(made, args, rough, path):
    results = []
    for run in (tilewright.compile(made, target="executor"), native(made, path)):
        mine = [a.copy() for a in args]
        found = run(*mine)
        results.append([*mine, *([] if found is None else [found])])
    parses_back(run)
    for wanted, found in zip(*results, strict=True):
        np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=rough, atol=rough)


# n, h, w, c, hf, wf, nf, stride, padding, dilation, input, output
CONVOLUTIONS = [
    (1, 1, 1, 1, 1, 1, 1, 1, 0, 1, "f16", "f32"),
    (2, 7, 5, 3, 2, 3, 4, 1, 0, 1, "bf16", "f32"),
    (1, 6, 8, 20, 1, 1, 3, 1, 0, 1, "i8", "i32"),
    (3, 6, 9, 5, 3, 3, 1, (1, 2), 0, 1, "f16", "f16"),
    (1, 9, 11, 2, 2, 2, 3, (4, 5), 0, 1, "f32", "f32"),
    (1, 2, 3, 2, 3, 4, 2, 1, (4, 5), 1, "f32", "f16"),
    (1, 9, 12, 3, 2, 3, 4, (2, 3), (1, 2), (3, 2), "f16", "f32"),
    (1, 6, 5, 20, 3, 3, 3, 1, 2, 1, "f8e4m3fn", "f32"),
    (1, 6, 7, 3, 2, 2, 127, 1, 0, 1, "f16", "f32"),
]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("path", ["general", "best"])
@pytest.mark.parametrize("layout", ["nhwc_hwcf", "nchw_fchw"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions_of_the_template(case, layout, path):
    n, h, w, c, hf, wf, nf, stride, padding, dilation, of_data, of_result = case
    made = get_igemm_conv2d(
        layout, n, h, w, c, hf, wf, nf, stride, of_data, of_result, padding=padding, dilation=dilation
    )
    x, f = ((n, h, w, c), (hf, wf, c, nf)) if layout == "nhwc_hwcf" else ((n, c, h, w), (nf, c, hf, wf))
    x, f = given(*x, dtype=of_data), given(*f, dtype=of_data, seed=1)
    wanted = tilewright.compile(*made, target="executor")(x, f)
    out = np.full(wanted.shape, 99, wanted.dtype)
    native(made, path)(x, f, out)
    np.testing.assert_array_equal(out.astype(np.float64), wanted.astype(np.float64))
