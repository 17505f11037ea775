"""`benchmarks/old_new.py`: what it makes of the answers of both sides, and that its problems are problems."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


class Prepared:
    """A side whose launches take these times, one a sample, the last again and again."""

    def __init__(self, *times: float, refused: str = ""):
        self.times, self.refused, self.samples = list(times), refused, 0

    def ask(self, do: str, **_: Any) -> dict[str, Any]:
        if do == "prepare":
            return {"refused": self.refused} if self.refused else {"us": self.times[0]}
        self.samples += 1
        return {"us": self.times.pop(0) if len(self.times) > 1 else self.times[0]}

    def restart(self) -> None:
        self.refused = ""


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Prepared, Prepared], Any]:
    import old_new

    monkeypatch.setattr(old_new, "PAUSE", 0.0)
    entry = old_new.Entry({"list": "rows", "name": "softmax"}, "cpu", "differs", old=1.0, new=1.0)
    return lambda old, new: old_new.timed(old_new.Pair(old, new), entry, "cpu")


def test_an_entry_that_is_not_slower_is_timed_once(timed: Any) -> None:
    import old_new

    new = Prepared(100.0)
    entry = timed(Prepared(96.0), new)
    assert (entry.ratios, new.samples) == ((0.96,), old_new.ROUNDS)


def test_a_slower_entry_is_timed_three_more_times_and_the_median_is_kept(timed: Any) -> None:
    import old_new

    # the machine is disturbed during the first timing only
    entry = timed(Prepared(50.0), Prepared(*[100.0] * old_new.ROUNDS, 50.0))
    assert entry.ratios == (0.5, 1.0, 1.0, 1.0)
    assert entry.ratio == 1.0
    assert timed(Prepared(50.0), Prepared(100.0)).ratio == 0.5


def test_a_faster_entry_is_timed_again_too_else_noise_would_only_lift_the_mean(timed: Any) -> None:
    import old_new

    assert timed(Prepared(*[100.0] * old_new.ROUNDS, 50.0), Prepared(50.0)).ratio == 1.0


def test_a_sample_that_is_disturbed_does_not_count(timed: Any) -> None:
    assert timed(Prepared(50.0), Prepared(50.0, 900.0, 900.0, 50.0)).ratios == (1.0,)


def test_a_kernel_that_only_one_side_compiles_is_listed(timed: Any) -> None:
    entry = timed(Prepared(50.0), Prepared(refused="ProgramError: no such atom"))
    assert (entry.outcome, entry.why, entry.counts) == ("refused", "refused by new: ProgramError: no such atom", False)


def test_a_mean_below_the_least_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    from old_new import Entry, report

    same = Entry({"list": "rows", "name": "softmax"}, "cpu", "same")
    slower = Entry({"list": "rows", "name": "gelu"}, "cpu", "timed", old=50.0, new=100.0, ratios=(0.5,))
    missing = Entry({"list": "rows", "name": "sum"}, "cpu", "differs", old=1.0, new=9.0)
    assert report([same] * 99 + [missing], only_texts=False) == 0
    assert report([same] * 3 + [slower], only_texts=False) == 1
    assert report([same, missing], only_texts=True) == 0
    printed = capsys.readouterr().out
    assert "over 99 entries: 1.000" in printed
    assert "over 4 entries: 0.841" in printed


def test_problems_are_the_same_after_they_are_written_and_read() -> None:
    import json

    import old_new_worker

    worker = old_new_worker.Worker()
    for gpu in (False, True):
        written = json.loads(json.dumps(worker.problems(gpu)))["problems"]
        problems = [old_new_worker.Problem.read(one) for one in written]
        assert problems == list((old_new_worker.gpu_problems if gpu else old_new_worker.cpu_problems)())
        assert len({(p.list, p.name) for p in problems}) == len(problems)


def test_a_worker_plans_and_refuses() -> None:
    import old_new_problems as problems
    import old_new_worker

    worker, small = old_new_worker.Worker(), problems.gemm("products", 33, 24, 17, "nn", "f32").__dict__
    first, again = (worker.answer({"do": "plan", "problem": small, "machine": "x86.avx512"}) for _ in range(2))
    other = worker.answer({"do": "plan", "problem": small, "machine": "x86.avx2"})
    assert first == again
    assert first["digest"] != other["digest"]
    assert first["predicted"] > 0
    refused = worker.answer({"do": "plan", "problem": small | {"make": "no_such_kernel"}, "machine": "x86.avx2"})
    assert "no_such_kernel" in refused["refused"]
