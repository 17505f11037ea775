"""A small share of `benchmarks/mutations.py`: malformed texts and calls give typed errors, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FAST = ("expression", "layout", "problem", "calls", "tile")


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.parametrize("kind", FAST)
def test_malformed_input_gives_typed_errors(kind: str) -> None:
    import mutations

    total = mutations.Outcome(kind)
    for number in range(60):
        total.add(mutations.judge(kind, number, seed=12))
    assert total.findings == []
    assert all(mutations.names_the_value(text, message) for text, message in total.messages if kind != "calls")


def test_the_script_finds_what_it_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import mutations

    def broken(text: str, parsed: object) -> None:
        raise KeyError(text)

    monkeypatch.setitem(mutations.KINDS, "expression", broken)
    (finding,) = mutations.judge("expression", 0, seed=0).findings
    assert finding[1].startswith("KeyError")

    def endless(text: str, parsed: object) -> None:
        while True:
            pass

    monkeypatch.setattr(mutations, "SECONDS", 0.05)
    monkeypatch.setitem(mutations.KINDS, "expression", endless)
    (finding,) = mutations.judge("expression", 0, seed=0).findings
    assert finding[1].startswith("TooLong")
    assert "mutations" in sys.modules
