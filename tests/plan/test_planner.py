"""Plans: their text, and a planner that follows the machine's description rather than a table."""

from __future__ import annotations

import platform
from dataclasses import fields, replace

import numpy as np
import pytest

from tilewright.cli.workload import Workload, read_problem, read_types
from tilewright.compiler.contraction import ContractionKernel
from tilewright.errors import ArgumentError
from tilewright.plan.planner import choose
from tilewright.plan.plans import TilePlan, VectorPlan, parse_plan, plan_text
from tilewright.targets.x86 import cpu
from tilewright.targets.x86.machine import MACHINES

on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code for x86 runs on x86")
AMX = MACHINES["x86.amx"]


def workload(problem, dt):
    return Workload(read_problem(problem), read_types(dt))


def with_limits(**limits):
    return replace(AMX, limits=replace(AMX.limits, **limits))


def tiles_are_missing(atom):
    return not any(feature.startswith("amx") for feature in atom.features)


# -- text -----------------------------------------------------------------------------------------------------

PLANS = [
    TilePlan("amx.bf16", 32, 2, "halo", 28, 1, 72, True),
    TilePlan("amx.s8", 64, 4, "direct", 3, 2, 9, False),
    VectorPlan("avx512.f32", 16, 1, 14, 2, 4, 1, 8),
]


@pytest.mark.parametrize("plan", PLANS, ids=lambda p: p.atom)
def test_a_plan_is_its_text(plan):
    assert parse_plan(plan_text(plan)) == plan


@pytest.mark.parametrize("plan", PLANS, ids=lambda p: p.atom)
def test_every_field_is_part_of_the_text(plan):
    for f in fields(plan):
        value = getattr(plan, f.name)
        other = replace(plan, **{f.name: not value if isinstance(value, bool) else value * 2})
        assert parse_plan(plan_text(other)) == other != plan


@pytest.mark.parametrize("field", [f.name for f in fields(VectorPlan)])
def test_a_field_that_is_missing_is_named(field):
    words = [word for word in plan_text(PLANS[2]).split() if not word.startswith(f"{field}=")]
    with pytest.raises(ArgumentError, match=f"{field} is missing"):
        parse_plan(" ".join(words))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vectors atom=x lanes=16 group=1 rows=two vectors=2 steps=4 split=1 blocks=8", "rows = two is no number"),
        (plan_text(PLANS[2]) + " strips=3", "there is no strips; there are atom, lanes"),
        ("squares rows=3", "it begins with `tiles` or `vectors`"),
    ],
)
def test_what_is_wrong_with_a_text_is_said(text, message):
    with pytest.raises(ArgumentError, match=message):
        parse_plan(text)


# -- the choice follows the machine ---------------------------------------------------------------------------


def registers_used(plan):
    return plan.rows * plan.vectors + plan.vectors + 1


@pytest.mark.parametrize("problem", ["mb1ic64ih56oc64oh56kh3ph1", "mb1ic512ih7oc512oh7kh3ph1"])
def test_sums_fit_the_registers_there_are(problem):
    c = workload(problem, "f32").contraction
    all_of_them, half = choose(c, AMX, 2), choose(c, with_limits(registers=16), 2)
    assert all(registers_used(x.plan) <= 32 for x in all_of_them.candidates)
    assert all(registers_used(x.plan) <= 16 for x in half.candidates)
    assert registers_used(all_of_them.best.plan) > 16
    assert half.best.cycles > all_of_them.best.cycles


def test_a_smaller_cache_makes_smaller_strips():
    c = workload("mb1ic256ih56oc128oh28kh1sh2ph0", "bf16").contraction
    large, small = choose(c, AMX, 2).best, choose(c, with_limits(l2_bytes=256 << 10), 2).best
    assert small.plan.strip < large.plan.strip
    assert small.cycles > large.cycles


def test_weights_beyond_the_cache_cost_time():
    c = workload("mb1ic512ih7oc512oh7kh3ph1", "bf16").contraction
    assert (
        choose(c, with_limits(l2_bytes=16 << 20), 2).best.cycles
        < choose(c, with_limits(l2_bytes=1 << 17), 2).best.cycles
    )


def test_without_tiles_vectors_are_chosen_and_the_reason_kept():
    c = workload("mb1ic64ih56oc64oh56kh3ph1", "bf16").contraction
    with_tiles, without = choose(c, AMX, 2), choose(c, AMX, 2, tiles_are_missing)
    assert isinstance(with_tiles.best.plan, TilePlan)
    assert isinstance(without.best.plan, VectorPlan)
    assert without.best.cycles > with_tiles.best.cycles
    assert "amx.bf16: this CPU lacks it" in without.refused
    assert not any(why.startswith("amx.bf16:") for why in with_tiles.refused)
    assert "refused: amx.bf16: this CPU lacks it" in without.explain()


def test_atoms_of_other_types_are_refused_by_their_types():
    refused = choose(workload("mb1ic64ih14oc64kh3ph1", "bf16").contraction, AMX, 2).refused
    assert "avx512.f32: it multiplies f32 by f32, here are bf16 and bf16" in refused
    assert "amx.s8: it multiplies i8 by i8, here are bf16 and bf16" in refused


@pytest.mark.parametrize(
    ("problem", "dt"),
    [
        ("mb1ic64ih56oc64oh56kh3ph1", "bf16"),
        ("mb1ic512ih7oc512oh7kh3ph1", "bf16"),
        ("mb1ic512ih7oc512oh7kh3ph1", "f32"),
    ],
)
def test_more_workers_get_more_and_smaller_tasks(problem, dt):
    c = workload(problem, dt).contraction
    two, four = choose(c, AMX, 2).best, choose(c, AMX, 4).best
    assert four.plan != two.plan
    assert 0.4 < four.cycles / two.cycles < 0.65

    def parts(plan):
        return plan.split / getattr(plan, "strip", 1)

    assert parts(four.plan) == 2 * parts(two.plan)


def test_few_channels_are_joined_with_their_taps():
    found = choose(workload("mb1ic3ih32oc64kh7sh2ph3", "bf16").contraction, AMX, 2)
    tiles = next(x for x in found.candidates if isinstance(x.plan, TilePlan))
    assert tiles.contraction.extent(tiles.contraction.depth[-1:]) == 21


def test_candidates_are_ranked():
    found = choose(workload("mb1ic64ih14oc64kh3ph1", "bf16").contraction, AMX, 2)
    cycles = [x.cycles for x in found.candidates]
    assert cycles == sorted(cycles)
    assert found.best is found.candidates[0]
    assert len({plan_text(x.plan) for x in found.candidates}) == len(cycles)


def test_the_choice_is_the_same_every_time():
    texts = {choose(workload("mb1ic64ih14oc80kh3ph1", "bf16").contraction, AMX, 2).explain() for _ in range(3)}
    assert len(texts) == 1


# -- plans that are given -------------------------------------------------------------------------------------

PINNED = [
    ("mb1ic40ih9iw7oc70kh3kw2ph1pw1", "bf16"),
    ("mb2ic32ih6iw5oc33kh1kw1", "bf16"),
    ("mb1ic3ih13iw11oc20kh5kw3sh2sw1ph2pw0", "bf16"),
    ("mb1ic20ih7iw9oc40kh3kw3ph2pw1dh1dw0", "f32"),
    ("mb1ic5ih1iw17oc17kh1kw4pw2", "s8"),
    ("37x50:50x21", "f32"),
]


@on_x86
@pytest.mark.parametrize(("problem", "dt"), PINNED)
def test_the_first_candidates_and_the_last_are_exact(problem, dt):
    work = workload(problem, dt)
    rng = np.random.default_rng(0)
    best = work.compiled()
    candidates = best.choice.candidates
    atoms = {x.plan.atom: x for x in reversed(candidates)}  # the first of each atom
    arrays = work.arrays(rng, exact=True)
    *_, out = arrays.values()
    poison, wanted = out.copy(), work.reference(arrays).astype(out.dtype)
    for found in (*candidates[:3], *atoms.values(), candidates[-1]):
        kernel = work.compiled(plan_text(found.plan))
        assert kernel.plan == found.plan
        out[...] = poison
        kernel.bind(arrays)()
        assert np.array_equal(out, wanted), plan_text(found.plan)


@on_x86
def test_where_no_plan_fits_every_reason_is_given(monkeypatch):
    monkeypatch.setattr(cpu, "has", lambda atom: False)
    with pytest.raises(ArgumentError, match=r"no plan fits: .*avx512\.f32: this CPU lacks it"):
        ContractionKernel(workload("mb1ic8ih5oc8kh3", "f32").contraction)


VECTORS = "vectors atom=avx512.f32 lanes=16 group=1 rows=4 vectors=2 steps=4 split=1 blocks=1"
TILES = "tiles atom=amx.bf16 depth=32 group=2 stage=panel strip=3 split=1 steps=72 stream_rows=True"
BROKEN = {
    "steps that do not divide the depth": ("f32", VECTORS.replace("steps=4", "steps=3")),
    "no rows": ("f32", VECTORS.replace("rows=4", "rows=0")),
    "no vectors": ("f32", VECTORS.replace("vectors=2", "vectors=0")),
    "no blocks": ("f32", VECTORS.replace("blocks=1", "blocks=0")),
    "no parts": ("f32", VECTORS.replace("split=1", "split=0")),
    "an atom of another type": ("bf16", VECTORS),
    "an atom that there is not": ("f32", VECTORS.replace("avx512.f32", "avx1024.f32")),
    "more sums than registers": ("f32", VECTORS.replace("rows=4", "rows=9").replace("vectors=2", "vectors=4")),
    "another depth than the atom's": ("bf16", TILES.replace("depth=32", "depth=64")),
    "a stage that there is not": ("bf16", TILES.replace("panel", "attic")),
    "direct, where rows are padded": ("bf16", TILES.replace("panel", "direct")),
    "no strip": ("bf16", TILES.replace("strip=3", "strip=0")),
}


@on_x86
@pytest.mark.parametrize("case", BROKEN)
def test_a_plan_that_does_not_fit_is_refused(case):
    dt, plan = BROKEN[case]
    with pytest.raises(ArgumentError, match="plan"):
        ContractionKernel(workload("mb1ic8ih9oc40kh3ph1", dt).contraction, plan)


def test_an_empty_plan_is_refused():
    with pytest.raises(ArgumentError):
        parse_plan("")
