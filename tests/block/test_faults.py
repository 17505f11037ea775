"""Faults planted in the example programs: each is found under every schedule, and its report names what is wrong.

A fault is a change of the text: (what stands there, what it becomes). The correct programs give no report
(`test_programs`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from block_checks import Case, attention, conv_amx, conv_avx512, conv_hopper, gemm, source

from tilewright import errors

GEMM = gemm(M=160, N=128, K=320, BN=64, STAGES=2)
PINGPONG = gemm("gemm_hopper_pingpong", M=192, N=128, K=320, BN=64, STAGES=2)
CONV = conv_hopper(N=2, H=9, W=9, STAGES=2)
HALO = conv_hopper(halo=True, N=4, H=7, W=7, XSTAGES=2, WSTAGES=2)
ATTENTION = attention(B=2, T=128, U=320)
AMX = conv_amx(H=8, W=5, C=64, F=64, STRIP=4)
AVX512 = conv_avx512(H=6, W=6)

RING = "        %ta, %tb = wait %ring\n"
STORE = "        %gd = view %d (i BM, c 64) -> [BM*m + i ?, BN*n + 64*j + c ?]\n"


@dataclass
class Fault:
    """A change of a program, and the report it must bring."""

    case: Case
    edits: list[tuple[str, str]]
    error: type[Exception]
    says: str
    params: dict[str, int] = field(default_factory=dict)

    def text(self) -> str:
        text = source(self.case.name)
        for old, new in self.edits:
            assert old in text, f"{self.case.name} no longer has {old!r}"
            text = text.replace(old, new, 1)
        return text


def fault(case: Case, *edits: tuple[str, str], raises: Callable[..., Any], says: str, **params: int) -> Fault:
    return Fault(case, list(edits), raises, says, params)  # type: ignore[arg-type]


FAULTS = {
    # -- a dropped wait
    "gemm: the stage is read without a wait": fault(
        GEMM,
        (
            RING,
            (
                "        %ta = view %as (i BM, c 64) -> [k%STAGES, i, c]\n"
                "        %tb = view %bs (i BN, c 64) -> [k%STAGES, i, c]\n"
            ),
        ),
        ("        release %ring\n", ""),
        raises=errors.ProgramError,
        says="%ring has no wait",
    ),
    "gemm: the wait comes after the product": fault(
        GEMM,
        (
            RING,
            (
                "        %ta = view %as (i BM, c 64) -> [k%STAGES, i, c]\n"
                "        %tb = view %bs (i BN, c 64) -> [k%STAGES, i, c]\n"
            ),
        ),
        ("        release %ring\n", "        %late, %later = wait %ring\n        release %ring\n"),
        raises=(errors.RaceFault, errors.UninitialisedFault),
        says="`mma %acc += %ta * %tbt",
    ),
    "gemm: the wait is gone and its stage with it": fault(
        GEMM, (RING, ""), raises=errors.ParseError, says="%tb is not defined here"
    ),
    "gemm: the result leaves without a wait": fault(
        GEMM,
        ("        %ready = wait %out\n", ""),
        ("copy %ready -> %gd", "copy %free -> %gd"),
        ("        release %out\n", ""),
        raises=errors.ProgramError,
        says="%out has no wait",
    ),
    "halo: weights are used before they arrive": fault(
        HALO,
        (
            "          %tw = wait %filters\n",
            "          %tw = view %ws (s 3, j BN, k 64) -> [(3*c + r)%WSTAGES, s, j, k]\n",
        ),
        ("          release %filters\n", "          %late = wait %filters\n          release %filters\n"),
        raises=(errors.RaceFault, errors.UninitialisedFault),
        says="`mma %acc += %pixels * %taps",
    ),
    "attention: the queries are waited for after their use": fault(
        ATTENTION,
        ("      %tq = wait %queries\n", "      %tq = view %qs (i 64, d 64) -> [0, i, d]\n"),
        ("      release %queries\n", "      %late = wait %queries\n      release %queries\n"),
        raises=(errors.RaceFault, errors.UninitialisedFault),
        says="`mma %scores += %tq",
    ),
    "attention: the wait is on the other channel": fault(
        ATTENTION,
        ("      %tq = wait %queries\n", "      %tq, %unused = wait %pairs\n"),
        raises=errors.DimensionMismatch,
        says="mma %scores += %tq * %tkt",
    ),
    "halo: the wait is on the wrong channel": fault(
        HALO,
        ("          %tw = wait %filters\n", "          %tw = wait %images\n"),
        raises=errors.ProgramError,
        says="%filters has no wait",
    ),
    # -- a missing release
    "gemm: the ring is not released": fault(
        GEMM, ("        release %ring\n", ""), raises=errors.ProgramError, says="%ring has no release"
    ),
    "ping-pong: the ring is not released": fault(
        PINGPONG, ("        release %ring\n", ""), raises=errors.ProgramError, says="%ring has no release"
    ),
    "conv: the ring is not released": fault(
        CONV, ("        release %ring\n", ""), raises=errors.ProgramError, says="%ring has no release"
    ),
    "gemm: the output buffer is not released": fault(
        GEMM, ("        release %out\n", ""), raises=errors.ProgramError, says="%out has no release"
    ),
    "gemm: some stages are not released": fault(
        GEMM,
        ("        release %ring\n", "        if (k%2 == 0) {\n          release %ring\n        }\n"),
        raises=errors.DeadlockFault,
        says="of %ring to be free",
    ),
    "halo: images are not released": fault(
        HALO,
        ("        release %images\n", ""),
        raises=errors.ProgramError,
        says="%images has no release: it is filled 4 times where one worker does all tasks, and has 3 stages",
        XSTAGES=3,  # as many as the worker of a single task would need
    ),
    "attention: the queries are released once in two": fault(
        ATTENTION,
        ("      release %queries\n", "      if (t == 0) {\n        release %queries\n      }\n"),
        raises=(errors.DeadlockFault, errors.ProtocolFault),
        says="%queries",
    ),
    "gemm: the last stage is never released": fault(
        GEMM,
        ("        release %ring\n", "        if (k < ceildiv(K, 64) - 1) {\n          release %ring\n        }\n"),
        raises=(errors.DeadlockFault, errors.ProtocolFault),
        says="%ring",
    ),
    "gemm: released before the product": fault(
        GEMM,
        ("        %tbt = view", "        release %ring\n        %tbt = view"),
        ("k16.bf16\n        release %ring\n", "k16.bf16\n"),
        raises=errors.ProtocolFault,
        says="after it was released",
    ),
    "halo: weights released before the product": fault(
        HALO,
        (
            ("          for s in 0..3 unroll {\n            %pixels"),
            ("          release %filters\n          for s in 0..3 unroll {\n            %pixels"),
        ),
        ("          }\n          release %filters\n", "          }\n"),
        raises=errors.ProtocolFault,
        says="of %filters, taken by `%tw = wait %filters`",
    ),
    "conv: released twice": fault(
        CONV,
        ("        release %ring\n", "        release %ring\n        release %ring\n"),
        raises=errors.ProtocolFault,
        says="nothing of %ring was waited for",
    ),
    # -- the producer's side
    "gemm: committed before the copies": fault(
        GEMM,
        ("        %ga = view", "        commit %ring\n        %ga = view"),
        ("by tma.load multicast\n        commit %ring\n", "by tma.load multicast\n"),
        raises=(errors.ProtocolFault, errors.UninitialisedFault),
        says="(line ",
    ),
    "conv: the second copy comes after the commit": fault(
        CONV,
        (
            ("        copy %filters -> %sw else 0 by tma.load\n        commit %ring\n"),
            ("        commit %ring\n        copy %filters -> %sw else 0 by tma.load\n"),
        ),
        raises=errors.ProtocolFault,
        says="`copy %filters -> %sw else 0 by tma.load`",
    ),
    "gemm: never committed": fault(
        GEMM, ("        commit %ring\n", ""), raises=errors.ProgramError, says="%ring has no commit"
    ),
    "gemm: the last block of k is not committed": fault(
        GEMM,
        ("        commit %ring\n", "        if (k < ceildiv(K, 64) - 1) {\n          commit %ring\n        }\n"),
        raises=(errors.DeadlockFault, errors.ProtocolFault),
        says="%ring",
    ),
    "gemm: acquired twice": fault(
        GEMM,
        ("        %sa, %sb = acquire %ring\n", "        %sa, %sb = acquire %ring\n        %sc, %sd = acquire %ring\n"),
        raises=(errors.DeadlockFault, errors.ProtocolFault, errors.UninitialisedFault),
        says="%ring",
    ),
    "gemm: the result is committed before it is written": fault(
        GEMM,
        (
            ("        map %free = bf16(%columns)\n        commit %out\n"),
            ("        commit %out\n        map %free = bf16(%columns)\n"),
        ),
        raises=errors.ProtocolFault,
        says="`map %free = bf16(%columns)`",
    ),
    "gemm: the result is never acquired": fault(
        GEMM,
        ("        %free = acquire %out\n", "        %free = view %ds (i BM, c 64) -> [j%2, i, c]\n"),
        raises=errors.ProgramError,
        says="%out has no acquire",
    ),
    "gemm: TMA writes to memory that is no stage": fault(
        GEMM,
        (
            "copy %ga -> %sa else 0 by tma.load",
            ("%raw = view %as (i BM, c 64) -> [0, i, c]\n        copy %ga -> %raw else 0 by tma.load"),
        ),
        raises=errors.ProgramError,
        says="one side must be a stage of a channel",
    ),
    "gemm: ordinary writes to memory that is no stage": fault(
        GEMM,
        (
            "copy %ga -> %sa else 0 by tma.load",
            ("%raw = view %as (i BM, c 64) -> [k%STAGES, i, c]\n        copy %ga -> %raw else 0"),
        ),
        raises=(errors.RaceFault, errors.UninitialisedFault),
        says="%as",
    ),
    "gemm: the consumer commits": fault(
        GEMM,
        ("        release %ring\n", "        commit %ring\n        release %ring\n"),
        raises=errors.ProgramError,
        says="commit in role consumer: the producer of this channel is producer",
    ),
    "gemm: the producer waits": fault(
        GEMM,
        ("        %sa, %sb = acquire %ring\n", "        %sa, %sb = wait %ring\n"),
        raises=errors.ProgramError,
        says="wait in role producer: the consumer of this channel is consumer",
    ),
    "gemm: the channel names a role that is not there": fault(
        GEMM,
        ("from producer to consumer", "from producer to consumers"),
        raises=errors.ProgramError,
        says="there is no role consumers",
    ),
    "gemm: producer and consumer walk different tiles": fault(
        GEMM,
        ("role consumer waves (4*WG) registers OWN {", "role consumer waves (4*WG) registers OWN {  # fewer tasks"),
        ("for k in 0..ceildiv(K, 64) {\n        %ta", "for k in 1..ceildiv(K, 64) {\n        %ta"),
        raises=(errors.DeadlockFault, errors.ProtocolFault),
        says="%ring",
    ),
    # -- a removed barrier
    "halo: the barrier after clearing the slack is removed": fault(
        HALO,
        ("  barrier\n", ""),
        raises=(errors.RaceFault, errors.UninitialisedFault),
        says="of %xs",
        WSTAGES=4,  # with fewer, the ring of weights orders the waves by itself
    ),
    "halo: the barrier comes before clearing the slack": fault(
        HALO,
        ("  fill %slack 0\n  barrier\n", "  barrier\n  fill %slack 0\n"),
        raises=(errors.RaceFault, errors.UninitialisedFault),
        says="of %xs",
        WSTAGES=4,
    ),
    # -- a swapped lane
    "attention: the lanes of a row are swapped": fault(
        ATTENTION,
        (
            "%scale = alloc register f32 (64) by ((4,8,4),2):((0,1,16),8)",
            "%scale = alloc register f32 (64) by ((4,8,4),2):((0,2,16),1)",
        ),
        raises=errors.ProgramError,
        says="convert_layout is the only way between two distributions",
    ),
    "attention: two lane strides are swapped": fault(
        ATTENTION,
        (
            "%newbest = alloc register f32 (64) by ((4,8,4),2):((0,1,16),8)",
            "%newbest = alloc register f32 (64) by ((4,8,4),2):((16,1,0),8)",
        ),
        raises=errors.ProgramError,
        says="convert_layout is the only way between two distributions",
    ),
    "attention: lanes of all row tensors are swapped": fault(
        ATTENTION,
        *[("by ((4,8,4),2):((0,1,16),8)", "by ((4,8,4),2):((0,2,16),1)")] * 4,
        raises=errors.ProgramError,
        says="of %best, which it does not hold",
    ),
    "attention: weights in the registers of C": fault(
        ATTENTION,
        ("as wgmma.m64n64k16.bf16.ra.tb.a", "by ((4,8,4),(2,2,8)):((64,1,16),(8,256,512))"),
        raises=errors.ProgramError,
        says="thread",
    ),
    "attention: a distribution that forgets elements": fault(
        ATTENTION,
        (
            "%rows = alloc register f32 (64) by ((32,2,2),1):((1,32,0),0)",
            "%rows = alloc register f32 (64) by ((32,4),1):((1,0),0)",
        ),
        raises=errors.ProgramError,
        says="does not hold each of the 64 elements",
    ),
    "gemm: half the waves": fault(
        GEMM,
        ("c waves (WG, 1)", "c"),
        raises=errors.ProgramError,
        says="spread over 128 threads",
    ),
    "gemm: waves in the wrong direction": fault(
        GEMM,
        ("c waves (WG, 1)", "c waves (1, WG)"),
        raises=errors.ProgramError,
        says="is not made of",
    ),
    "gemm: too few waves for the sum": fault(
        GEMM,
        ("role consumer waves (4*WG)", "role consumer waves 4"),
        raises=errors.ProgramError,
        says="4 waves of 32 lanes",
    ),
    "amx: the factors are swapped": fault(
        AMX,
        ("mma %acc += %xt * %wt", "mma %acc += %wt * %xt"),
        raises=errors.ProgramError,
        says="amx.bf16",
    ),
    # -- a short allocation
    "gemm: fewer stages than the channel has": fault(
        GEMM,
        ("%as = alloc shared bf16 (STAGES, BM, 64)", "%as = alloc shared bf16 (STAGES - 1, BM, 64)"),
        raises=errors.DimensionMismatch,
        says="is not the number of stages",
    ),
    "gemm: bytes that do not suffice": fault(
        GEMM,
        (
            "%bs = alloc shared bf16 (STAGES, BN, 64) swizzle <3,3,3>",
            "%bs = alloc shared bf16 (STAGES, BN, 64) swizzle <3,3,3> bytes 8192",
        ),
        raises=errors.ProgramError,
        says="alloc of 8192 bytes is short",
    ),
    "gemm: more shared memory than there is": fault(
        GEMM,
        ("STAGES = 4", "STAGES = 4"),
        raises=errors.ProgramError,
        says="shared memory: ",
        STAGES=20,
    ),
    "amx: planes without slack": fault(
        AMX,
        ("PIXELS = LINES*LINE + PAD + 32", "PIXELS = LINES*LINE + PAD"),
        raises=errors.OutOfBoundsFault,
        says="`copy %rows -> %xt",
    ),
    "amx: scratch for one tile": fault(
        AMX,
        ("alloc shared f32 (32, 32)", "alloc shared f32 (16, 32)"),
        raises=errors.DimensionMismatch,
        says="copy: the shapes (32, 32) and (16, 32) differ",
    ),
    "halo: the padded image has too few rows": fault(
        HALO,
        ("let ROWS = 64 + 2*LINE + 2 ", "let ROWS = PIXELS + 1 "),
        raises=errors.OutOfBoundsFault,
        says="`mma %acc += %pixels * %taps",
    ),
    # -- an uninitialised read
    "halo: the slack is not cleared": fault(
        HALO, ("  fill %slack 0\n", ""), raises=errors.UninitialisedFault, says="of %xs, which nothing wrote"
    ),
    "amx: the tail of the planes is not cleared": fault(
        AMX, ("    fill %tail 0\n", ""), raises=errors.UninitialisedFault, says="of %planes, which nothing wrote"
    ),
    "amx: lines begin past the first pad column": fault(
        AMX,
        ("LINE*l + q, c]", "LINE*l + q + PAD, c]"),
        raises=errors.UninitialisedFault,
        says="reads element 0 of %planes",
    ),
    "amx: only the first task clears the tail": fault(
        AMX,
        ("    fill %tail 0\n", "    if (strip == 0) {\n      fill %tail 0\n    }\n"),
        raises=errors.UninitialisedFault,
        says="of %planes, which nothing wrote",
    ),
    "gemm: the sum is not cleared": fault(
        GEMM, ("      fill %acc 0\n", ""), raises=errors.UninitialisedFault, says="of %acc, which nothing wrote"
    ),
    "ping-pong: the sum is not cleared": fault(
        PINGPONG, ("      fill %acc 0\n", ""), raises=errors.UninitialisedFault, says="of %acc, which nothing wrote"
    ),
    "amx: the sum is not cleared": fault(
        AMX, ("      fill %acc 0\n", ""), raises=errors.UninitialisedFault, says="of %acc, which nothing wrote"
    ),
    "avx512: the sum is not cleared": fault(
        AVX512, ("      fill %acc 0\n", ""), raises=errors.UninitialisedFault, says="of %acc, which nothing wrote"
    ),
    "attention: the largest score has no start": fault(
        ATTENTION,
        ("      fill %best -1e30\n", ""),
        raises=errors.UninitialisedFault,
        says="of %best, which nothing wrote",
    ),
    "conv: weights are not brought": fault(
        CONV,
        ("        copy %filters -> %sw else 0 by tma.load\n", ""),
        raises=errors.UninitialisedFault,
        says="of %ws, which nothing wrote",
    ),
    "gemm: the last block of k is brought by half": fault(
        GEMM,
        (
            "        copy %gb -> %sb else 0 by tma.load multicast\n",
            "        if (k < ceildiv(K, 64) - 1) {\n"
            "          copy %gb -> %sb else 0 by tma.load multicast\n        }\n",
        ),
        raises=errors.UninitialisedFault,
        says="of %bs, which nothing wrote",
    ),
    "amx: the scratch is read, not written": fault(
        AMX,
        ("      copy %acc -> %scratch\n", ""),
        raises=errors.UninitialisedFault,
        says="of %scratch, which nothing wrote",
    ),
    # -- a wrong tail
    "gemm: the tail of k is left out": fault(
        gemm(M=64, N=64, K=104, BN=64),
        ("0..ceildiv(K, 64) {\n        %sa", "0..K//64 {\n        %sa"),
        raises=(errors.DeadlockFault, errors.ProtocolFault),
        says="%ring",
    ),
    "gemm: the last rows are left out": fault(
        GEMM,
        ("let TM = ceildiv(M, BM*CLUSTER)", "let TM = M//BM"),
        raises=errors.NotWrittenFault,
        says="elements of %d, an output, were never written; the first is (128, 0)",
    ),
    "conv: the last filters are left out": fault(
        conv_hopper(N=1, H=5, W=5, F=72, STAGES=2),
        ("let TN = ceildiv(F, BN*CLUSTER)*CLUSTER", "let TN = F//BN"),
        raises=errors.NotWrittenFault,
        says="of %y",
    ),
    "halo: the odd image is left out": fault(
        conv_hopper(halo=True, N=3, H=5, W=6, C=64),
        *[("0..ceildiv(N, 2)", "0..N//2")] * 2,
        raises=errors.NotWrittenFault,
        says="of %y",
    ),
    "amx: the last block of rows is left out": fault(
        AMX, ("m in 0..ceildiv(ROWS, 32)", "m in 0..ROWS//32"), raises=errors.NotWrittenFault, says="of %y"
    ),
    "avx512: the last pixels are left out": fault(
        AVX512, ("block in 0..Q//PIX", "block in 0..Q//PIX - 1"), raises=errors.NotWrittenFault, says="of %y"
    ),
    "attention: the logarithms are not stored": fault(
        ATTENTION, ("      copy %rows -> %glse\n", ""), raises=errors.NotWrittenFault, says="of %lse, an output"
    ),
    "gemm: rows past the end are not expected": fault(
        GEMM,
        ("[BM*m + i ?, 64*k + c ?]", "[BM*m + i, 64*k + c ?]"),
        raises=errors.OutOfBoundsFault,
        says="mark it with ?",
    ),
    "gemm: stores past the end are not expected": fault(
        GEMM,
        (STORE, STORE.replace("i ?", "i")),
        raises=errors.OutOfBoundsFault,
        says="`copy %ready -> %gd by tma.store`",
    ),
    "gemm: nothing is said of what lies outside": fault(
        GEMM, ("copy %ga -> %sa else 0", "copy %ga -> %sa"), raises=errors.ProgramError, says="say what to read there"
    ),
    "conv: the padding is not expected": fault(
        CONV, ("+ r - PAD ?", "+ r - PAD"), raises=errors.OutOfBoundsFault, says="is -1, not in 0..9"
    ),
    "amx: nothing is said of the padding": fault(
        AMX, ("copy %lines -> %padded else 0", "copy %lines -> %padded"), raises=errors.ProgramError, says="else 0"
    ),
    "amx: the pad column is stored": fault(
        AMX,
        ("(32*m + i)%LINE ?", "(32*m + i)%LINE"),
        raises=errors.OutOfBoundsFault,
        says="`map %out = bf16(%scratch)`",
    ),
    "avx512: taps outside are multiplied": fault(
        AVX512, ("using avx512.f32 skip", "using avx512.f32"), raises=errors.OutOfBoundsFault, says="`mma %acc"
    ),
    "avx512: filter lines outside are not left out": fault(
        AVX512, ("max(0, -top)..min(R, H - top)", "0..R"), raises=errors.OutOfBoundsFault, says="coordinate 1"
    ),
    # -- tasks that are not apart
    "amx: surplus rows are stored into the next strip": fault(
        AMX,
        (
            "%out = view %part (i 32, j 32) -> [(32*m + i)//LINE ?, (32*m + i)%LINE ?, 32*f + j]",
            "%out = view %y (i 32, j 32) -> [n, STRIP*strip + (32*m + i)//LINE ?, (32*m + i)%LINE ?, 32*f + j]",
        ),
        raises=errors.RaceFault,
        says="which another task, or another worker, wrote",
    ),
    "amx: every part does all filters": fault(
        conv_amx(H=4, W=4, C=32, CHUNK=32, F=64, STRIP=4, SPLIT=2),
        ("F//32//SPLIT*part..F//32//SPLIT*(part + 1)", "0..F//32"),
        raises=errors.RaceFault,
        says="which another task, or another worker, wrote",
    ),
    "gemm: two tiles at one place": fault(
        GEMM, (STORE, STORE.replace("BM*m + i", "i")), raises=errors.RaceFault, says="of %d"
    ),
    "avx512: two lines at one place": fault(
        AVX512,
        ("-> [n, p, PIX*block + i, 32*f + j]", "-> [n, p//2, PIX*block + i, 32*f + j]"),
        raises=errors.RaceFault,
        says="of %y",
    ),
    # -- overlap
    "amx: the deferred end writes a register of the body": fault(
        AMX,
        ("      copy %acc -> %scratch\n", "      copy %acc -> %scratch\n      fill %acc 0\n"),
        raises=errors.ProgramError,
        says="the deferred end works on a copy of %acc",
    ),
    "amx: the body uses the scratch of the deferred end": fault(
        AMX,
        ("      fill %acc 0\n", "      fill %acc 0\n      fill %scratch 0\n"),
        raises=errors.RaceFault,
        says="of %scratch, and nothing orders it after",
    ),
    "amx: deferred without an end": fault(
        AMX,
        ("    } finally {\n", ""),
        raises=errors.ProgramError,
        says="overlap defer needs a `finally` block",
    ),
    "ping-pong: without the overlap": fault(
        PINGPONG, (" overlap pingpong", ""), raises=errors.ProgramError, says="here 8 waves of 32 lanes"
    ),
    "ping-pong: an odd number of waves": fault(
        PINGPONG,
        ("role consumer waves 8", "role consumer waves 7"),
        raises=errors.ProgramError,
        says="even number of waves",
    ),
    "ping-pong: the halves share one output buffer": fault(
        PINGPONG,
        ("      %ds = alloc shared bf16 (2, BM, 64) swizzle <3,3,3>\n", ""),
        ("  %ring = channel", "  %ds = alloc shared bf16 (2, BM, 64) swizzle <3,3,3>\n  %ring = channel"),
        raises=errors.RaceFault,
        says="of %ds",
    ),
    # -- machines and types
    "gemm: the swizzle is another": fault(
        GEMM,
        (
            "%as = alloc shared bf16 (STAGES, BM, 64) swizzle <3,3,3>",
            "%as = alloc shared bf16 (STAGES, BM, 64) swizzle <2,3,3>",
        ),
        raises=errors.ProgramError,
        says="%ta has",
    ),
    "gemm: no swizzle": fault(
        GEMM,
        ("%bs = alloc shared bf16 (STAGES, BN, 64) swizzle <3,3,3>", "%bs = alloc shared bf16 (STAGES, BN, 64)"),
        raises=errors.ProgramError,
        says="with the swizzle",
    ),
    "halo: rows of another stride": fault(
        HALO,
        ("ceildiv(ROWS, 8)*512, 64, 1) swizzle", "ceildiv(ROWS, 8)*512, 72, 1) swizzle"),
        raises=errors.ProgramError,
        says="the places of %pixels are others",
    ),
    "gemm: the store turns its columns": fault(
        GEMM,
        (STORE, STORE.replace("BN*n + 64*j + c ?", "BN*n + 64*j + (c + 1)%64 ?")),
        raises=errors.ProgramError,
        says="copy: tma.store: the coordinate 64*(t//2) + (box1 + 1)%64 of %d divides an axis",
    ),
    "gemm: the second factor is not transposed": fault(
        gemm(M=64, N=64, K=320, BN=64, STAGES=2),
        ("(c 64, j BN) -> [j, c]", "(c 64, j BN) -> [c, j]"),
        raises=errors.ProgramError,
        says="mma: wgmma.m64n64k16.bf16 reads b by",
    ),
    "gemm: an atom that there is not": fault(
        GEMM,
        ("using wgmma.m64n{BN}k16.bf16", "using wgmma.m64n{BN}k16.bf17"),
        raises=errors.ProgramError,
        says="hopper has no multiplication atom 'wgmma.m64n64k16.bf17'",
    ),
    "amx: a store to the input": fault(
        AMX,
        ("%part = view %y", "%part = view %x"),
        ("j F) -> [n", "j C) -> [n"),
        raises=errors.ProgramError,
        says="declared `in`",
    ),
    "gemm: the result is not converted": fault(
        GEMM,
        ("bf16(%columns)", "%columns"),
        raises=errors.DtypeMismatch,
        says="the formula gives f32, %free holds bf16",
    ),
    "gemm: loads by a store": fault(
        GEMM,
        ("copy %ga -> %sa else 0 by tma.load", "copy %ga -> %sa else 0 by tma.store"),
        raises=errors.ProgramError,
        says="copies from shared",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found_and_named_under_every_schedule(name: str) -> None:
    planted = FAULTS[name]
    case = Case(
        planted.case.name, {**planted.case.params, **planted.params}, planted.case.arguments, planted.case.wanted
    )
    text = planted.text()
    for workers, seed in ((1, 0), (2, 1), (3, 2)):
        with pytest.raises(planted.error) as report:
            case.run(workers, seed, text)
        assert planted.says in str(report.value), report.value
        assert "line " in str(report.value) or isinstance(report.value, errors.NotWrittenFault), report.value


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", [GEMM, PINGPONG, CONV, HALO, ATTENTION, AMX, AVX512], ids=lambda c: c.name)
def test_the_same_programs_without_faults_give_no_report(case: Case) -> None:
    for seed in range(3):
        case.run(workers=1 + seed, seed=seed)


WRONG = {
    "gemm: columns of a neighbour": (
        GEMM,
        ("[BM*m + i ?, 64*k + c ?]", "[BM*m + i ?, 64*((k + 1)%ceildiv(K, 64)) + c ?]"),
    ),
    "conv: the mask is off by one": (CONV, ("+ s - PAD ?", "+ s - PAD + 1 ?")),
    "amx: one line of input too few": (AMX, ("let LINES = STRIP + R - 1 ", "let LINES = STRIP + R - 2 ")),
    "avx512: the first tap is left out": (AVX512, ("for s in 0..S", "for s in 1..S")),
    "halo: a row too far": (HALO, ("i%64 + LINE*r + s, k]", "i%64 + LINE*r + s//2, k]")),
}


@pytest.mark.parametrize("name", WRONG)
def test_valid_programs_that_compute_something_else_show_in_the_results(name: str) -> None:
    case, (old, new) = WRONG[name]
    assert old in source(case.name)
    results = [case.run(workers, seed, source(case.name).replace(old, new)) for workers, seed in ((1, 0), (2, 3))]
    assert np.array_equal(results[0], results[1])
    assert not np.array_equal(results[0].astype(np.float64), case.wanted)
