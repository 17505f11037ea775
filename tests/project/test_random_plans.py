"""`benchmarks/random_plans.py`: how plans are drawn, timed by a clock that is given, and judged."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAME = "gemm 256x4096x4096"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import random_plans

    return random_plans


def test_pairs_that_differ_by_3_percent_are_judged_and_equal_predictions_order_nothing(script: Any) -> None:
    times = [(10, 100.0), (20, 102.0), (5, 110.0), (20, 120.0)]
    timings = [script.Timing("p", f"plan {n}", cycles, us, n == 1) for n, (cycles, us) in enumerate(times)]
    agreement = script.Agreement.of(timings)
    # judged are 100-110, 100-120, 102-110, 102-120 and 110-120; right are 100-120 and 110-120; 102-120 is equal
    assert (agreement.pairs, agreement.right, agreement.equal) == (5, 2, 1)
    assert agreement.distance == 1.02


def test_plans_are_drawn_once_each_and_timed_by_a_dry_clock(script: Any, tmp_path: Path, capsys: Any) -> None:
    timings = script.drawn(NAME, 6, seed=0)
    assert len({t.plan for t in timings}) == 6
    assert [t.chosen for t in timings] == [True] + [False] * 5
    assert timings == script.drawn(NAME, 6, seed=0)
    path = tmp_path / "rows.json"
    script.report(iter([script.dry(timings)]), path)
    rows = json.loads(path.read_text())
    assert {(row["program"], row["plan"], row["cycles"]) for row in rows} == {(NAME, t.plan, t.cycles) for t in timings}
    assert all(row["us"] > 0 for row in rows)
    assert f"{NAME:34}   6 plans" in capsys.readouterr().out
    # the same times, predicted anew: what was written is read, and the best predicted counts as chosen
    (again,) = script.again(path)
    assert [(t.plan, t.cycles) for t in again] == [(row["plan"], row["cycles"]) for row in rows]
    (chosen,) = (t for t in again if t.chosen)
    assert chosen.cycles == min(t.cycles for t in again)


def test_copies_of_constant_operands_take_no_time(script: Any) -> None:
    """Programs had no constants and no rows of K here: plans with such copies had too long a time, or none."""
    case = script.case_of("list: f32 nn 65536x64x256")
    plan = case.planned().text("plan")
    assert "rows of K" in plan
    constant = script.Case(case.make, case.sizes, ("a", "b"))
    assert constant.cycles(plan) < case.cycles(plan)


def test_edits_change_what_lines_say_and_keep_their_form(script: Any) -> None:
    plan = "axis M = (M_1 56, M_0 56): task M_1 8, task M_0 8\ngrid M, F\nraster 8\nwaves 8\nlaunch early"
    edits = {script.edited(plan, random.Random(seed)) for seed in range(200)}
    assert {line.split()[0] for edit in edits for line in edit.splitlines()} == {
        "axis",
        "grid",
        "raster",
        "waves",
        "launch",
    }
    assert any("task M_1 16, task M_0 8" in edit for edit in edits)
    assert any("launch plain" in edit for edit in edits)


def test_a_program_without_times_is_a_failure(script: Any) -> None:
    assert script.report(iter([([], ["p: no times"])]), None) == 1


def test_programs_of_the_corpus_are_drawn_by_a_seed_and_predicted_anew(script: Any, tmp_path: Path) -> None:
    names = script.drawn_names(40, seed=1)
    assert len(set(names)) == 40
    assert names == script.drawn_names(40, seed=1) != script.drawn_names(40, seed=2)
    assert not any(name.startswith(script.NOT_DRAWN) for name in names)
    name = next(name for name in names if name.startswith("resnet_50: bf16"))
    assert script.case_of(name).constant == ("w",)
    path = tmp_path / "rows.json"
    timings = script.drawn(name, 4, seed=1)
    script.report(iter([script.dry(timings)]), path)
    (again,) = script.again(path)
    assert [(t.plan, t.cycles) for t in again] == [(t.plan, t.cycles) for t in timings]
