"""Factors in registers that products of a loop take in every round: the assembler must know that they are needed."""

from __future__ import annotations

from tilewright import kernels
from tilewright.compiler.native import kernel_for

SIZES = {"B": 2, "H": 2, "M": 65, "N": 200, "D": 64, "E": 64}
NEVER = "@p st.shared.b32 [z],"


def assembly(plan: str | None = None) -> tuple[str, str]:
    """(plan, PTX) of an attention whose queries stay in registers over all keys."""
    made = kernel_for(kernels.attention(64, "f16"), SIZES, target="gpu:hopper", plan=plan)
    return made.text("plan"), made.text("asm")


def test_a_use_stands_behind_the_loop():
    plan, ahead = assembly()
    assert "overlap mma ahead" in plan
    _, alone = assembly(plan.replace("overlap mma ahead\n", ""))
    for text in (ahead, alone):
        assert text.count(NEVER) == 16  # 64 x 64 halves of a warpgroup are 16 words of a lane
        assert text.rindex("wgmma.mma_async") < text.rindex(NEVER) or text is ahead


def test_what_a_round_makes_needs_none():
    made = kernel_for(kernels.gemm("nt", "bf16", "bf16"), {"M": 512, "N": 200, "K": 512}, target="gpu:hopper")
    assert NEVER not in made.text("asm")
