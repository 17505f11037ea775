"""What compilation does is logged under the name tilewright, at DEBUG; nothing is printed by itself."""

from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np

import tilewright


def test_compile_is_logged(caplog):
    caplog.set_level(logging.DEBUG, "tilewright")
    tilewright.compile(tilewright.kernels.softmax(), target="executor")
    assert caplog.record_tuples == [("tilewright.compile", logging.DEBUG, "softmax: compile for executor")]


def test_steps_the_cache_and_code_generation_are_logged(caplog, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    caplog.set_level(logging.DEBUG, "tilewright")
    run = tilewright.compile(tilewright.kernels.softmax(), target="cpu")
    run(np.zeros((2, 3), np.float32))
    said = {(r.name, r.getMessage().split(", ")[0]) for r in caplog.records}
    assert {("tilewright.compile", f"softmax: {step}") for step in ("choose", "general", "lower", "emit")} <= said
    assert any(r.name == "tilewright.codegen" and "characters of LLVM became" in r.getMessage() for r in caplog.records)
    assert any(r.name == "tilewright.cache" and "stored" in r.getMessage() for r in caplog.records)
    caplog.clear()
    tilewright.compile(tilewright.kernels.softmax(), target="cpu")(np.zeros((2, 3), np.float32))
    assert any(r.name == "tilewright.cache" and "found" in r.getMessage() for r in caplog.records)
    assert not any(r.name == "tilewright.codegen" for r in caplog.records)


def test_the_package_has_no_handlers_of_its_own():
    source = (
        "import logging, tilewright; tilewright.compile(tilewright.kernels.softmax()); "
        "print([n for n in logging.root.manager.loggerDict if n.startswith('tilewright') "
        "and logging.getLogger(n).handlers], logging.root.handlers)"
    )
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("[] []\n", "")
