"""Edges: what is named at one is computed before it, also in the text that the assembler gets."""

import re
from pathlib import Path

from tilewright import compile_text

FLASH = (Path(__file__).parents[3] / "examples" / "block" / "flash_hopper.block").read_text()


def rounds(text: str) -> list[tuple[int, int]]:
    """Exponentials before the wait that is over at once, and between it and the wait for products, in each round."""
    words = re.findall(r"ex2\.approx|try_wait|wait_group|mma_async", text)
    return [(len(m[1]), len(m[2])) for m in re.finditer("w(e+)t(e*)w", "".join(w[0] for w in words))]


def test_what_an_edge_names_is_computed_before_it() -> None:
    params = {"B": 2, "T": 256, "U": 512, "BK": 128}
    found = {
        name: rounds(compile_text(text, "gpu:hopper", params).text("ptx"))
        for name, text in (
            ("half", FLASH),
            ("all", FLASH.replace("edge of %early", "edge of %scores")),
            ("none", FLASH.replace("edge of %early", "edge")),
        )
    }
    assert found["half"] == [(32, 34)]
    assert found["all"][0][0] >= 64
    assert found["none"] == []
