"""Programs with several products in roles: what lies between products stays in registers, and the numbers are right."""

import re

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
from tilewright import compile_text, kernels

BF16 = tkl.bf16.numpy


def attended(q, k, v, bias, causal):
    """Attention in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = np.einsum("bhmd,bhnd->bhmn", q, k) / np.sqrt(q.shape[-1]) + (0 if bias is None else bias)
    if causal:
        m, n = np.indices(scores.shape[-2:])
        scores = np.where(n <= m, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhmn,bhne->bhme", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize(
    ("shape", "tile", "causal", "bias"),
    [
        ((1, 2, 128, 256, 128, 128), 128, False, False),
        ((2, 1, 100, 200, 64, 64), 128, True, False),  # neither rows nor keys are whole tiles
        ((1, 1, 70, 200, 128, 72), 64, True, True),
        ((1, 1, 65, 40, 64, 64), 64, False, True),  # fewer keys than a tile
    ],
)
def test_attention_between_products_stays_in_registers(shape, tile, causal, bias):
    sizes = dict(zip("BHMNDE", shape, strict=True))
    kernel = tilewright.compile(kernels.attention(tile, "bf16", causal=causal, bias=bias), target="gpu:hopper")
    text = kernel.text("block", sizes)
    assert len(re.findall(r"mma .* using wgmma\.\S+bf16(?:\.ra\.tb)?\n", text)) == 2
    assert text.count(".ra.tb.a") == 1  # the second product's A is in registers
    assert [line.split()[0] for line in text.splitlines() if "alloc shared" in line] == [
        *("%slabs_ring", "%slabs_1_ring", "%slabs_2_ring", "%result_ring")
    ]
    rng = np.random.default_rng(sum(shape))
    b, h, m, n, d, e = shape
    inputs = [rng.standard_normal(s).astype(BF16) for s in ((b, h, m, d), (b, h, n, d), (b, h, n, e))]
    more = rng.standard_normal((b, h, m, n)).astype(np.float32) if bias else None
    found = compile_text(text, "interpreter")(*inputs, *([] if more is None else [more]))
    np.testing.assert_allclose(found.astype(np.float64), attended(*inputs, more, causal), atol=2e-2, rtol=2e-2)


def test_the_loop_program_of_attention_says_the_same():
    sizes = {"B": 1, "H": 1, "M": 70, "N": 130, "D": 64, "E": 64}
    kernel = tilewright.compile(kernels.attention(64, "bf16", causal=True), target="gpu:hopper")
    rng = np.random.default_rng(5)
    inputs = [rng.standard_normal((1, 1, n, 64)).astype(BF16) for n in (70, 130, 130)]
    block, loop = (compile_text(kernel.text(level, sizes), "interpreter")(*inputs) for level in ("block", "loop"))
    np.testing.assert_array_equal(block.astype(np.float32), loop.astype(np.float32))


def test_what_a_plan_of_several_products_says_can_be_given_back():
    sizes = {"B": 2, "H": 16, "M": 4096, "N": 4096, "D": 128, "E": 128}
    attention = kernels.attention(128, "bf16")
    text = tilewright.compile(attention, target="gpu:hopper").text("plan", sizes)
    assert "roles load 1 wave 40 registers, multiply 8 waves 232 registers, ring 2" in text
    assert tilewright.compile(attention, target="gpu:hopper", plan=text).text("plan", sizes) == text
