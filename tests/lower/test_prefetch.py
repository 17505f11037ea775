"""Products of vectors ask for the lines of a packed operand that later steps load, on machines whose rows say so."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tilewright.compiler.native import kernel_for
from tilewright.kernels.gemm import gemm
from tilewright.targets.registry import machine

SIZES = {"M": 12, "N": 96, "K": 64}
IN_PLACE = "axis M = (M 12): task 12\naxis N = (N 96): task 48\naxis K = (K 64): loop 32\ngrid M, N"


def loop_text(row: str, ahead: int, forms: str = "nt", plan: str | None = None) -> str:
    """Return the loop programs of a product of f32 on a machine that asks for lines `ahead` bytes after its loads."""
    described = machine(row)
    described = replace(described, limits=replace(described.limits, prefetch_bytes=ahead))
    constant = () if plan else ("b",)
    kernel = kernel_for(gemm(forms, "f32"), SIZES, machine=described, constant=constant, plan=plan)
    return str(kernel.text("loop"))


def places(text: str, operation: str) -> list[str]:
    """Return the places in packed B that operations of that name have, in order."""
    return re.findall(rf"{operation}.*%packed_b\[([^\]]*)\]", text)


def test_each_line_of_a_step_is_asked_for_as_far_ahead_as_the_machine_says():
    near, far = (places(loop_text("x86.avx512f", ahead), "prefetch") for ahead in (4096, 8192))
    assert near
    assert len(near) == len(far)
    first = re.fullmatch(r"(.*) \+ 1024", near[0])
    assert first is not None
    assert far[0] == f"{first[1]} + 2048"
    offsets = [int(at.rsplit(" + ", 1)[1]) for at in near[:12]]
    assert offsets == list(range(1024, 1024 + 12 * 16, 16)), "a vector is a line, and the next follows it"


def test_vectors_of_half_a_line_ask_for_it_once():
    text = loop_text("x86.avx2", 4096)
    offsets = [int(at.rsplit(" + ", 1)[1]) for at in places(text, "prefetch")[:2]]
    assert offsets == [1024, 1040]


@pytest.mark.parametrize("row", ["aarch64.neon", "x86.avx512f"])
def test_a_machine_that_says_nothing_asks_for_nothing(row: str):
    assert "prefetch" not in loop_text(row, 0)


def test_an_operand_that_is_not_packed_is_not_asked_for():
    """Its next step lies in another row: as far ahead in memory lies what no step loads."""
    text = loop_text("x86.avx512f", 4096, "nn", IN_PLACE)
    assert "atom" in text
    assert "prefetch" not in text
