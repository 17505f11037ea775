"""A small share of `benchmarks/mutations.py` and `wrong_calls.py`: malformed input gives typed errors only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def judged(do: Any, kind: str, count: int) -> Any:
    import judging

    total = judging.Outcome(kind)
    for number in range(count):
        total.add(judging.judge(do, kind, number, seed=12))
    return total


@pytest.mark.parametrize("kind", ["expression", "layout", "problem", "tile"])
def test_malformed_texts_give_typed_errors_that_hold_what_is_wrong(kind: str) -> None:
    import mutations

    total = judged(mutations.do, kind, 60)
    assert total.findings == []
    assert total.silent == []
    assert total.parsed >= mutations.LEAST_PARSED * 60


@pytest.mark.parametrize("kind", ["function", "operation", "plan", "kernel", "method"])
def test_wrong_calls_give_typed_errors_that_hold_what_is_wrong(kind: str) -> None:
    import wrong_calls

    total = judged(wrong_calls.do, kind, 40)
    assert total.findings == []
    assert total.silent == []


def test_the_judge_finds_what_it_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import judging

    from tilewright.errors import ArgumentError

    def broken(kind: str, number: int, seed: int, trial: Any) -> None:
        raise KeyError(kind)

    (finding,) = judging.judge(broken, "x", 0, seed=0).findings
    assert finding[1].startswith("KeyError")

    def endless(kind: str, number: int, seed: int, trial: Any) -> None:
        while True:
            pass

    monkeypatch.setattr(judging, "SECONDS", 0.05)
    (finding,) = judging.judge(endless, "x", 0, seed=0).findings
    assert finding[1].startswith("TooLong")

    def silent(kind: str, number: int, seed: int, trial: Any) -> None:
        trial.values = ("17",)
        raise ArgumentError("the extent is wrong: 170 or 1.75")

    monkeypatch.setattr(judging, "SECONDS", 60.0)
    outcome = judging.judge(silent, "x", 3, seed=0)
    assert outcome.silent == [(3, "the extent is wrong: 170 or 1.75")]
    assert not judging.report({"x": outcome}, 0, "script", None)
