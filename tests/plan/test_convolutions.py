"""Convolutions end to end as machine code: random ones, and every layer of the lists, exactly."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tile_checks import own_cache

from tilewright.cli.workload import Workload, read_types
from tilewright.problems import parse_conv, shape_lists

__all__ = ["own_cache"]
SCRIPTS = Path(__file__).parents[2] / "benchmarks"


def script(name="random_convolutions"):
    """The module of a script; the usual one runs thousands of these."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", range(0, 24, 4))
def test_random_convolutions_under_the_default_and_a_random_plan(first):
    """A few, of each type; `benchmarks/random_convolutions.py` runs as many as are wanted."""
    outcome = script().Outcome()
    for number in range(first, first + 4):
        outcome.add(number)
    assert outcome.wrong == []
    assert dict(outcome.refused) == {}  # whatever is refused must be named here
    assert (outcome.ran, outcome.plans) == (4, 8)


@pytest.fixture
def spoilt_results(monkeypatch):
    """The last element of every result is wrong."""
    from tilewright.compiler.compiled import Compiled

    bind = Compiled.bind

    def wrong(self, arrays, kept=None):
        run = bind(self, arrays, kept)

        def spoilt():
            run()
            *_, out = arrays.values()
            out.flat[-1] += 1

        return spoilt

    monkeypatch.setattr(Compiled, "bind", wrong)


@pytest.mark.usefixtures("spoilt_results")
def test_the_script_notices_a_wrong_result():
    outcome = script().Outcome()
    outcome.add(0)
    assert len(outcome.wrong) == 2
    assert "1 of" in outcome.wrong[0]


SMALL = "mb1ic3iw9oc5kw3pw1"


@pytest.mark.usefixtures("spoilt_results")
def test_the_script_of_all_shapes_notices_a_wrong_result():
    found = script("all_shapes").run("here", Workload(parse_conv(SMALL), read_types("f32")), real=True)
    assert (found.good, found.outcome) == (False, "wrong")
    assert found.why == "1 of 45 differ on exact data; 1 of 45 lie beyond their bound on real data"


def test_the_script_of_all_shapes_tells_what_is_good_and_what_is_refused():
    run = script("all_shapes").run
    good = run("here", Workload(parse_conv(SMALL), read_types("bf16")), real=True)
    assert (good.good, good.why) == (True, "")
    assert good.plan
    refused = run("here", Workload(parse_conv(SMALL), read_types("u8:s8:s32")), real=True)
    assert (refused.good, refused.outcome) == (False, "refused")
    assert refused.why == "factors of two types, u8 and s8, are not handled yet"
    wanted = script("all_shapes").workloads(list(shape_lists()), 1, ["f32", "bf16"])
    assert len(wanted) == 2 * sum(map(len, shape_lists().values()))
    assert {work.problem.mb for _, work in wanted} == {1}


def test_the_random_convolutions_are_of_every_kind():
    made = [script().random_workload(n) for n in range(300)]
    problems = [w.problem for w in made]
    assert {w.types[0] for w in made} == {"f32", "bf16", "f16", "s8"}
    kinds = {
        "over one axis": [p.rank == 1 for p in problems],
        "over three axes": [p.rank == 3 for p in problems],
        "not square": [len(set(p.i)) > 1 for p in problems],
        "padded": [max(p.p) > 0 for p in problems],
        "padded more before": [any(a > b for a, b in zip(p.p, p.p_right, strict=True)) for p in problems],
        "padded more after": [any(a < b for a, b in zip(p.p, p.p_right, strict=True)) for p in problems],
        "not read to its end": [min(p.p_right) < 0 for p in problems],
        "dilated": [max(p.d) > 0 for p in problems],
        "strided": [max(p.s) > 1 for p in problems],
        "grouped": [p.groups > 1 for p in problems],
        "depthwise": [p.groups > 1 and p.ic == p.groups for p in problems],
        "odd channels": [p.ic % 2 == 1 and p.ic > 1 for p in problems],
    }
    assert all(sum(found) >= 15 for found in kinds.values()), {name: sum(found) for name, found in kinds.items()}


def smaller(p):
    """One image of the layer; where it is large, fewer of the same outputs."""
    sizes, outputs = [], []
    for i, o, k, s, far in zip(p.i, p.o, p.k, p.s, p.dilation, strict=True):
        fewer = min(o - 1, max(0, i - (k - 1) * far - 13) // s) if i > 28 else 0
        sizes.append(i - s * fewer)
        outputs.append(o - fewer)
    return replace(p, mb=1, i=tuple(sizes), o=tuple(outputs))


def kind(p):
    """What layers have in common that a plan treats alike: taps, strides, dilation, whether and how it is grouped."""
    return p.k, p.s, p.d, p.groups > 1, p.groups == p.ic == p.oc


LAYERS = {kind(p): smaller(p) for problems in shape_lists().values() for p in reversed(problems)}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=str)
def test_layers_of_the_lists_are_exact(layer):
    """One of each kind; `benchmarks/all_shapes.py` runs all of them, in their full size."""
    work = Workload(layer, read_types("bf16"))
    arrays = work.arrays(np.random.default_rng(0), exact=True)
    *_, out = arrays.values()
    kernel = work.compiled()
    kernel.bind(arrays)()
    assert np.array_equal(out, work.reference(arrays).astype(out.dtype))
    assert kernel.plan.atom.startswith("lanes.") == (1 < layer.groups == layer.ic == layer.oc)


AXES = [
    "mb2ic5iw19oc7kw4pw1",
    "mb1ic3iw40oc33ow43kw3sw1pw0dw1",
    "g3mb2ic6iw17oc9kw3sw2pw1",
    "mb2ic3id5ih6iw9oc5kd2kh3kw2pd1ph1pw0sd2",
    "mb1ic40id4ih5iw7oc33od6oh5ow4kd3kh1kw3pd0ph0pw2sw2",
    "g4mb1ic8id5ih4iw6oc12kd3kh3kw2pd1ph1pw1dd1",
    "g7mb1ic7id4ih5iw6oc7kd3kh3kw3pd1ph1pw1",
    "mb2ic16id3ih5iw7oc20kd1kh3kw3ph1pw1",
    "mb1ic17id3ih4iw5oc48kd1kh1kw1",
]


TYPES = [("f32", "f16"), ("bf16", "s8")]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("text", "dt"), [(text, dt) for n, text in enumerate(AXES) for dt in TYPES[n % 2]])
def test_one_and_three_axes_are_exact_under_every_kind_of_plan(text, dt):
    work = Workload(parse_conv(text), read_types(dt))
    arrays = work.arrays(np.random.default_rng(0), exact=True)
    *_, out = arrays.values()
    poison, wanted = out.copy(), work.reference(arrays).astype(out.dtype)
    kinds = {(p.plan.atom, p.plan.values[0].form): p.plan for p in work.compiled().choice.candidates[::-1]}
    assert kinds
    for plan in kinds.values():
        out[...] = poison
        work.compiled(str(plan)).bind(arrays)()
        assert np.array_equal(out, wanted), str(plan)
