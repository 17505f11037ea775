"""Each row of docs/coming_from_ck_and_cute/block_language.md is a line of code that runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tilewright.block as tb
from tilewright.block import Layout, cdiv

TEXT = (Path(__file__).parents[2] / "docs" / "coming_from_ck_and_cute" / "block_language.md").read_text()
SECTION = TEXT[TEXT.index("### Tensors") : TEXT.index("## Differences")]
ROWS = [
    re.findall(r"`([^`]+)`", line.rsplit("|", 2)[1])
    for line in SECTION.splitlines()
    if line.startswith("| ") and not line.startswith("| CK")
]
CODE = [code for row in ROWS for code in row if not code.startswith("a: tb.In")]


def test_every_row_has_code():
    assert len(ROWS) > 25
    assert all(ROWS)


@pytest.mark.parametrize("code", CODE)
def test_the_row_runs(code):
    @tb.kernel("cdna3", waves=4)
    def row(a: tb.In("f16", "M", "K"), c: tb.Out("f32", "M", "M"), *, M=100, K=64):
        threads, mma = Layout((64, 4), (4, 1)), tb.Mma("mfma.32x32x8.f16", waves=(2, 2))
        s, acc = tb.shared("f16", (128, 32)), mma.c(128, 128)
        fragment = tb.registers("f16", (128, 32), tb.partition((128, 32), threads, vector=1))
        ring = tb.ring(tb.shared("f16", (2, 8)), producer="load", consumer="use")
        known = {"tb": tb, "Layout": Layout, "cdiv": cdiv, "a": a, "c": c, "M": M, "K": K, "ring": ring}
        known |= {"threads": threads, "mma": mma, "s": s, "acc": acc, "fragment": fragment, "m": 0, "k": 1}
        exec(f"{code}:\n    pass" if code.startswith(("for ", "with ")) else code, known)

    row.trace()
