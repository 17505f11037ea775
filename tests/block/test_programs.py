"""The example block programs: exact on whole numbers, the same under every schedule, printed and read back."""

from __future__ import annotations

from time import process_time

import numpy as np
import pytest
from block_checks import (
    BF16,
    NAMES,
    Case,
    attention,
    calls,
    conv_amx,
    conv_avx512,
    conv_hopper,
    conv_patches,
    convolution,
    exactly,
    gemm,
    packed_for_amx,
    small,
    source,
    sparse,
)

from tilewright.check.block import check
from tilewright.compiler.device import machine_of
from tilewright.compiler.text import compile_text
from tilewright.ir.binding import bind
from tilewright.ir.block import parse_block
from tilewright.ir.verifier import verify

CASES: dict[str, Case] = {
    # rows of global memory lie a multiple of 16 bytes apart, for TMA
    # ragged in every direction, fewer fills than stages, many more fills than stages, one stage
    "gemm": gemm(),
    "gemm ragged": gemm(M=130, N=72, K=104, BN=64, STAGES=2, seed=2),
    "gemm one row, few columns": gemm(M=1, N=8, K=8, BN=64, seed=3),
    "gemm tail of k": gemm(M=64, N=64, K=72, BM=128, BN=64, STAGES=3, seed=4),
    "gemm one stage": gemm(M=140, N=200, K=136, BN=64, STAGES=1, seed=5),
    "gemm wide tile": gemm(M=128, N=304, K=64, BN=256, STAGES=2, seed=6),
    "gemm groups of two": gemm(M=400, N=136, K=64, BN=64, GROUP=2, seed=7),
    "ping-pong": gemm("gemm_hopper_pingpong", seed=8),
    "ping-pong ragged": gemm("gemm_hopper_pingpong", M=130, N=72, K=104, BN=64, STAGES=2, seed=9),
    "ping-pong odd tiles": gemm("gemm_hopper_pingpong", M=180, N=64, K=200, BN=64, STAGES=3, seed=10),
    "ping-pong one tile": gemm("gemm_hopper_pingpong", M=5, N=8, K=72, BN=64, STAGES=1, seed=11),
    "conv": conv_hopper(N=2, H=7, W=5, STAGES=2),
    "conv odd batch": conv_hopper(N=3, H=6, W=9, STAGES=3, seed=2),
    "conv stride 2": conv_hopper(N=1, H=9, W=8, STRIDE=2, STAGES=2, seed=3),
    "conv no padding": conv_hopper(N=2, H=5, W=7, PAD=0, STAGES=2, seed=4),
    "conv padding 2": conv_hopper(N=1, H=4, W=3, PAD=2, STAGES=1, seed=5),
    "conv 1x1 stride 2": conv_hopper(N=1, H=7, W=6, R=1, S=1, PAD=0, STRIDE=2, C=128, STAGES=2, seed=6),
    "conv 1x3": conv_hopper(N=2, H=6, W=5, R=1, S=3, PAD=0, F=128, BN=128, STAGES=2, seed=7),
    "conv ragged filters": conv_hopper(N=1, H=5, W=5, F=72, STAGES=2, seed=8),
    "halo": conv_hopper(halo=True, seed=9),
    "halo odd batch": conv_hopper(halo=True, N=3, H=5, W=6, C=64, XSTAGES=1, WSTAGES=2, seed=10),
    "halo one image": conv_hopper(halo=True, N=1, H=4, W=9, C=64, F=128, XSTAGES=2, WSTAGES=1, seed=11),
    "halo flat": conv_hopper(halo=True, N=2, H=1, W=6, C=128, WSTAGES=3, XSTAGES=2, seed=12),
    "amx": conv_amx(),
    "patches": conv_patches(PATCHES=2),
    "patches odd strips": conv_patches(N=2, H=17, W=5, PATCHES=1, STAGES=1, seed=2),
    "amx no padding": conv_amx(N=2, H=7, W=9, PAD=0, STRIP=5, seed=2),
    "amx padding 2": conv_amx(H=4, W=3, PAD=2, STRIP=6, R=3, S=3, seed=3),
    "amx 1x1": conv_amx(N=3, H=5, W=6, R=1, S=1, PAD=0, STRIP=1, F=64, seed=4),
    "amx 1x3": conv_amx(H=5, W=8, R=1, S=3, PAD=0, STRIP=5, seed=5),
    "amx 5x5": conv_amx(H=6, W=7, R=5, S=5, PAD=2, C=32, CHUNK=32, STRIP=3, seed=6),
    # the forms of three tuned plans, at small sizes: strips and streamed planes; long chunks of channels and streamed
    # weights; filters split over tasks, short chunks
    "amx R28at1": conv_amx(H=8, W=8, C=64, F=64, STRIP=4, CHUNK=64, STREAM_X=1, STREAM_W=0, seed=7),
    "amx M14bt1": conv_amx(H=4, W=4, C=128, F=64, STRIP=4, CHUNK=128, STREAM_X=0, STREAM_W=1, seed=8),
    "amx N14c32bt1": conv_amx(H=4, W=4, C=64, F=64, STRIP=4, SPLIT=2, CHUNK=32, STREAM_X=0, STREAM_W=1, seed=9),
    "avx512": conv_avx512(),
    "avx512 stride 2": conv_avx512(N=2, H=9, W=7, STRIDE=2, PIX=2, seed=2),
    "avx512 no padding": conv_avx512(H=5, W=9, PAD=0, PIX=7, F=64, SPLIT=2, seed=3),
    "avx512 padding 2": conv_avx512(H=4, W=3, PAD=2, PIX=5, DEPTH=2, seed=4),
    "avx512 5x5": conv_avx512(H=5, W=4, C=4, R=5, S=5, PAD=2, PIX=4, DEPTH=1, seed=5),
    "avx512 3x1 stride 3": conv_avx512(N=3, H=8, W=10, R=3, S=1, STRIDE=3, PAD=0, PIX=2, seed=6),
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_results_are_exact_under_every_schedule(case: Case) -> None:
    assert case.wanted is not None
    for workers, seed in ((1, 0), (2, 1), (3, 2)):
        assert exactly(case.run(workers, seed), case.wanted), f"{workers} workers, seed {seed}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"T": 128, "U": 64},
        {"B": 3, "T": 64, "U": 320, "STAGES": 3},
        {"B": 2, "T": 128, "U": 192, "STAGES": 1},
        {"U": 256, "BK": 128},
    ],
    ids=str,
)
def test_attention_is_within_its_bound_and_the_same_under_every_schedule(params: dict[str, int]) -> None:
    case = attention(seed=len(params), **params)
    q, k, v = (a.astype(np.float64) for a in case.arguments)
    scores = q @ k.transpose(0, 2, 1) / 8
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    keys = k.shape[1]
    # weights and results are rounded to bf16, each sum of `keys` products is carried in f32
    bound = (2 * 2.0**-8 + keys * 2.0**-23) * (weights / total @ np.abs(v)) + 2.0**-8 * np.abs(weights / total @ v)
    first = None
    for workers, seed in ((1, 0), (2, 1), (3, 5)):
        found, lse = case.run(workers, seed)
        assert np.all(np.abs(found.astype(np.float64) - weights / total @ v) <= bound)
        wanted = (top + np.log(total))[..., 0] / np.log(2)
        assert np.all(np.abs(lse - wanted) <= (64 + keys) * 2.0**-22 * (1 + np.abs(scores).max()))
        if first is not None:
            assert np.array_equal(found, first[0])
            assert np.array_equal(lse, first[1])
        first = found, lse


def test_attention_of_equal_keys_is_the_mean_of_the_values() -> None:
    q, k = small(0, 1, 64, 64), np.ones((1, 128, 64), BF16)
    v = small(1, 1, 128, 64) * BF16.type(4)
    found, _ = compile_text(source("attention_hopper"), params={"B": 1, "T": 64, "U": 128}, target="interpreter")(
        q, k, v
    )
    assert exactly(found, np.broadcast_to(v.astype(np.float64).mean(1, keepdims=True), found.shape))


@pytest.mark.parametrize("name", NAMES)
def test_programs_print_read_back_and_verify_unbound_and_bound(name: str) -> None:
    program = parse_block(source(name))
    verify(program)
    again = parse_block(str(program))
    assert again == program
    assert str(again) == str(program)
    bound = bind(program)
    check(bound, machine_of(bound))
    assert "param" not in str(bound)
    read = parse_block(str(bound))
    assert read == bound
    assert str(read) == str(bound)
    check(read, machine_of(read))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_bound_text_means_the_same_as_the_program(name: str) -> None:
    case = next((c for c in CASES.values() if c.name == name), None) or attention(name=name)
    bound = compile_text(source(name), params=case.params, target="interpreter").text()
    results = case.run(), compile_text(bound, target="interpreter")(*case.arguments)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in results), strict=True):
        assert np.array_equal(a, b)


def test_the_amx_convolution_at_64_to_64_channels_14_by_14_takes_less_than_20_seconds() -> None:
    """Of the processor's own time; it takes one or two."""
    x, w = sparse(0, 1, 14, 14, 64, keep=0.3), sparse(1, 64, 3, 3, 64, keep=0.3)
    for params in (
        {"STRIP": 14, "CHUNK": 64, "STREAM_X": 1, "STREAM_W": 0},
        {"STRIP": 7, "CHUNK": 32, "SPLIT": 2, "STREAM_X": 0, "STREAM_W": 1},
    ):
        start = process_time()
        found = compile_text(source("conv_amx"), params={"N": 1, "H": 14, "W": 14, **params}, target="interpreter")(
            x, packed_for_amx(w, params["CHUNK"])
        )
        assert exactly(found, convolution(x, w, 1, 1))
        assert process_time() - start < 20


def test_the_gemm_of_hopper_is_verified_in_a_few_milliseconds() -> None:
    """Counted as calls, of which a processor of today makes a million a second, under whatever load."""
    program = bind(parse_block(source("gemm_hopper")))
    machine = machine_of(program)
    assert calls(lambda: check(program, machine)) < 20000


def test_empty_problems_have_empty_or_zero_results() -> None:
    nothing = gemm(M=0, N=64, K=64, BN=64)
    assert nothing.run().shape == (0, 64)
    zero = gemm(M=70, N=64, K=0, BN=64)
    assert exactly(zero.run(), np.zeros((70, 64)))
    assert conv_hopper(N=0, H=5, W=5).run().shape == (0, 5, 5, 64)
    assert conv_avx512(N=0).run().shape == (0, 6, 6, 32)
    assert conv_amx(N=0).run().shape == (0, 6, 5, 32)
