"""Factors in registers that products of a loop take in every round: the assembler must know that they are needed."""

from __future__ import annotations

from tilewright import kernels
from tilewright.compiler.native import kernel_for

SIZES = {"B": 2, "H": 2, "M": 65, "N": 200, "D": 64, "E": 64}
PLAN = """\
axis B = (B 2): task 1
axis H = (H 2): task 1
axis M = (M 65): task 64
axis E = (E 64): task 64
axis D = (D 64): whole
axis N = (N 200): loop 64
grid B, H, M, E
mma by wgmma.m64n64k16.f16.ra, tile 64x64
mma2 by wgmma.m64n64k16.f16.ra.tb, tile 64x64
producer 1 wave 56 registers, consumer 4 waves 240 registers, stages 6, epilogue stages 2
overlap mma ahead
launch early
"""
"""Four rounds of keys: with two of them, one ahead, there is no loop."""
NEVER = "@p st.shared.b32 [z],"


def assembly(plan: str) -> str:
    """PTX of an attention whose queries stay in registers over all keys."""
    made = kernel_for(kernels.attention(64, "f16"), SIZES, target="gpu:hopper", plan=plan)
    assert made.text("plan") == plan
    return made.text("asm")


def test_a_use_stands_behind_the_loop():
    ahead, alone = assembly(PLAN), assembly(PLAN.replace("overlap mma ahead\n", ""))
    for text in (ahead, alone):
        assert text.count(NEVER) == 16  # 64 x 64 halves of a warpgroup are 16 words of a lane
        assert text.rindex("wgmma.mma_async") < text.rindex(NEVER) or text is ahead


def test_what_a_round_makes_needs_none():
    made = kernel_for(kernels.gemm("nt", "bf16", "bf16"), {"M": 512, "N": 200, "K": 512}, target="gpu:hopper")
    assert NEVER not in made.text("asm")
