"""The block level is what is compiled: its text gives the same object code, and an edit of it is honoured."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright.cli.workload import Workload, read_problem, read_types
from tilewright.targets.cpu import host

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "identical_objects.py"


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "off")


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore::tilewright.errors.FastPathLost")  # random programs take the general path
@pytest.mark.parametrize("first", range(0, 24, 6))
def test_the_text_gives_the_same_object_code(first, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("identical_objects", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert [script.differs(n) for n in range(first, first + 6)] == [None] * 6


def order(text):
    return re.sub(r"for (b_f_0 in [^,{]*), (b_rows_0 in [^{]*?) overlap", r"for \2, \1 overlap", text)


def padded_planes(text):
    """Rows of the staged planes lie 40 elements apart."""
    return re.sub(r"(%staged = alloc shared bf16 \(\d+, \d+, )32\)", r"\g<1>40)", text)


def smaller_strips(text):
    """Twice the tasks, each with half of the columns' blocks: the loop over them is cut."""
    return text.replace("tasks t in 0..1", "tasks half in 0..2").replace(
        "for b_f_0 in 0..4,", "for b_f_0 in 2*half..2*half + 2,"
    )


EDITS = {"loop order": order, "staging layout": padded_planes, "tile size": smaller_strips}


@pytest.mark.skipif("amx-bf16" not in host.features(), reason="needs AMX")
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_the_block_text_changes_the_code_and_stays_exact(edit):
    work = Workload(read_problem("mb1ic40ih9iw7oc120oh9ow7kh3kw3ph1pw1"), read_types("bf16"))
    plan = "; ".join(
        [
            "axis rows = (m_1 9, m_0 8 of 7): task m_1 9, loop 32, unit 16",
            "axis columns = (f_0 128 of 120): task 128, loop 32, unit 16",
            "axis depth = (k_2 3, k_1 3, k_0 64 of 40): unit k_2 1, unit k_1 1, unit k_0 32",
            "grid rows, columns",
            "loops columns, rows, depth",
            "x strip at task, stream",
            "w packed at bind",
            "atom amx.bf16",
            "overlap delayed store",
        ]
    )
    kernel = work.compiled(plan)
    text = kernel.text("block")
    edited = EDITS[edit](text)
    assert edited != text
    run = tilewright.compile_text(edited, "cpu")
    assert run.object_code != kernel.object_code
    arrays = work.arrays(np.random.default_rng(0), exact=True)
    pack = tilewright.compile_text(str(kernel.module.programs["pack_w"]), "cpu")
    packed = {"packed_w": pack(arrays["w"].reshape([int(e) for e in pack.main.args[0].type.shape]))}
    given = [(packed | arrays)[a.name].reshape([int(e) for e in a.type.shape]) for a in run.main.args]
    run.bind(*given)()
    assert np.array_equal(arrays["y"], work.reference(arrays).astype(arrays["y"].dtype))


def test_every_pass_is_dumped(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_DUMP", str(tmp_path))
    x, w = np.ones((1, 5, 4, 3), np.float32), np.ones((2, 3, 3, 3), np.float32)
    tilewright.conv2d(x, w, padding=1)
    names = [re.sub(r"^\d+-\d+-", "", p.name) for p in sorted(tmp_path.iterdir())]
    main = [n for n in names if n.startswith("conv-")]
    assert main[:4] == [
        "conv-00-start.tile",
        "conv-01-choose.plan",
        "conv-02-general.block",
        "conv-03-host.host",
    ]
    assert any(n.endswith(".ll") for n in names)
    tilewright.compile(tilewright.kernels.softmax("f32"), target="cpu")(np.ones((3, 5), np.float32))
    steps = [re.sub(r"^\d+-\d+-softmax-", "", p.name) for p in sorted(tmp_path.iterdir()) if "softmax" in p.name]
    assert steps[:4] == ["00-start.tile", "01-choose.plan", "02-general.block", "03-host.host"]
