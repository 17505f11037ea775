"""Kernels in the cache: asked for before anything is planned, whole or not there, never those of another program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler import kept
from tilewright.compiler.kept import StoredExecutor
from tilewright.errors import ArgumentError, ExecutionError
from tilewright.runtime import cache

M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
F32 = tkl.f32


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.delenv("TILEWRIGHT_DUMP", raising=False)
    return tmp_path / "kept"


@tkw.wave()
def plus(x: tkl.Memory[M, N, GLOBAL, F32], y: tkl.Memory[M, N, GLOBAL, F32], z: tkl.Memory[M, N, GLOBAL, F32]) -> None:
    tkw.write(tkw.read(x) + tkw.read(y), z)


def numbers(*shape: int, start: int = 0) -> Any:
    return np.arange(start, start + np.prod(shape), dtype=np.float32).reshape(shape)


def is_found(run: Any) -> bool:
    """Whether what was called last came from the cache."""
    return isinstance(run._last.running, StoredExecutor)


def test_plans_were_chosen_before_the_cache_was_asked() -> None:
    x, y = numbers(3, 5), numbers(3, 5, start=7)
    for found in (False, True):
        run = tilewright.compile(plus)
        assert np.array_equal(run(x, y), x + y)
        assert is_found(run) == found


PROGRAM = """
import sys, json
import numpy as np
import tilewright, tilewright.lang as tkl, tilewright.wave as tkw
N = tkl.sym.N
@tkw.wave()
def double(x: tkl.Memory[N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32], y: tkl.Memory[N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32]):
    tkw.write(tkw.read(x) + tkw.read(x), y)
assert np.array_equal(tilewright.compile(double)(np.arange(16, dtype=np.float32)), 2 * np.arange(16))
a, b = (np.arange(m * n, dtype=np.float32).reshape(m, n) for m, n in ((6, 8), (8, 10)))
assert np.array_equal(tilewright.matmul(a, b), a @ b)
layer = tilewright.Conv2d(np.ones((8, 3, 3, 8), np.float32), np.ones(8, np.float32), padding=1)
assert layer(np.ones((1, 8, 8, 8), np.float32))[0, 4, 4, 0] == 73
print(json.dumps(sorted(sys.modules)))
"""


def imported() -> set[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, check=True)
    return set(json.loads(done.stdout))


def test_a_kernel_that_is_kept_needs_no_planner_and_no_interpreter() -> None:
    assert "tilewright.plan.search" in imported()
    parts = (
        "plan",
        "rewrite",
        "lower",
        "transform",
        "driver",
        "check",
        "block",
        "codegen",
        "machine",
        "cli",
        "interpret.block",
        "interpret.executor",
    )
    needless = {name for name in imported() if name.startswith(tuple(f"tilewright.{part}" for part in parts))}
    assert not needless
    assert not {"rich", "typer", "torch", "jax", "numpy.ma"} & imported()


def test_kernels_that_differ_in_anything_are_told_apart() -> None:
    @tkw.wave()
    def scaled(x: tkl.Memory[M, GLOBAL, F32], y: tkl.Memory[M, GLOBAL, F32]) -> None:
        tkw.write(tkw.read(x) * FACTOR, y)

    for factor in (2.0, 3.0, 2.0):
        scaled.function.__globals__["FACTOR"] = factor
        assert np.array_equal(tilewright.compile(scaled)(numbers(7)), factor * numbers(7))
    keys = set()
    program = plus.trace()
    for sizes, shapes, options in (
        ({"M": 3}, [(3, 5)], ""),
        ({"M": 4}, [(3, 5)], ""),
        ({"M": 3}, [(5, 3)], ""),
        ({"M": 3}, [(3, 5)], "path"),
    ):
        keys.add(kept.key_for(program, sizes, shapes, options))
    assert len(keys) == 4


FACTOR = 1.0


def test_another_number_of_threads_is_another_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = numbers(40, 24), numbers(24, 32)
    for threads, found in (("1", False), ("2", False), ("1", True)):
        monkeypatch.setenv("TILEWRIGHT_THREADS", threads)
        run = tilewright.compile(tilewright.kernels.gemm("nn", "f32"))
        assert np.array_equal(run(a, b), a @ b)
        assert is_found(run) == found
        assert run._last.machine.limits.cores == int(threads)


def test_what_is_found_can_be_asked_for_everything() -> None:
    a, b = numbers(6, 8), numbers(8, 10)
    made, found = (tilewright.compile(tilewright.kernels.gemm("nn", "f32")) for _ in range(2))
    made(a, b)
    found(a, b)
    assert is_found(found)
    for level in ("plan", "block", "host", "loop", "llvm", "asm"):
        assert found.text(level) == made.text(level)
    assert found.explain() == made.explain()
    assert found.object_code == made.object_code
    assert repr(found._last) == repr(made._last)


def test_what_is_found_refuses_what_is_wrong() -> None:
    x, y = numbers(3, 5), numbers(3, 5, start=7)
    tilewright.compile(plus)(x, y)
    run = tilewright.compile(plus)
    kernel = run.of_sizes({"M": 3, "N": 5})
    assert isinstance(kernel.running, StoredExecutor)
    z = np.empty((3, 5), np.float32)
    with pytest.raises(ArgumentError, match="shares memory"):
        kernel.bind({"x": x, "y": y, "z": y})
    with pytest.raises(ArgumentError, match="z is float64"):
        kernel.bind({"x": x, "y": y, "z": np.empty((3, 5))})
    with pytest.raises(ArgumentError, match="plus takes x, y, z; y is missing"):
        kernel.bind({"x": x, "z": z})
    with pytest.raises(ArgumentError, match="x holds f64"):
        run(x.astype(np.float64), y)
    kernel.bind({"x": x, "y": y, "z": z})()
    assert np.array_equal(z, x + y)


def test_a_fault_of_a_kernel_that_is_found_points_at_its_authors_line() -> None:
    i, d = tkw.IndexMapping.iterator(0), tkw.IndexMapping.dynamic_val(0)
    picked = tkw.IndexMapping(1, inputs={N: d}, outputs={M: i}, dynamic_val_mappings={M: i})

    @tkw.wave()
    def pick(x: tkl.Memory[N, GLOBAL, F32], at: tkl.Memory[M, GLOBAL, tkl.i32], y: tkl.Memory[M, GLOBAL, F32]) -> None:
        tkw.write(tkw.read(x, mapping=picked, mapping_dynamic_vals=(tkw.read(at),)), y)

    x, at = numbers(5), np.array([4, 0, 2], np.int32)
    said = []
    for found in (False, True):
        run = tilewright.compile(pick)
        assert np.array_equal(run(x, at), x[at])
        assert is_found(run) == found
        with pytest.raises(ExecutionError) as fault:
            run(x, np.array([4, 0, 5], np.int32))
        said.append(str(fault.value))
    assert said[0] == said[1]
    assert "test_kept_kernels.py" in said[1]


def test_a_kernel_whose_machine_code_went_is_made_again(own_cache: Path) -> None:
    x, y = numbers(3, 5), numbers(3, 5, start=7)
    tilewright.compile(plus)(x, y)
    for _, _, path in cache.entries(own_cache):
        if b"ELF" in path.read_bytes():
            path.unlink()
    run = tilewright.compile(plus)
    assert np.array_equal(run(x, y), x + y)
    assert not is_found(run)


def test_a_manifest_that_is_damaged_is_made_again(own_cache: Path) -> None:
    x, y = numbers(3, 5), numbers(3, 5, start=7)
    tilewright.compile(plus)(x, y)
    for _, _, path in cache.entries(own_cache):
        if b'"places"' in path.read_bytes():
            path.write_bytes(path.read_bytes()[:-5])
    for found in (False, True):
        run = tilewright.compile(plus)
        assert np.array_equal(run(x, y), x + y)
        assert is_found(run) == found


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no process can be killed so here")
@pytest.mark.long  # test_many_callers.py kills one, just when an entry is written
def test_processes_that_are_killed_leave_only_whole_entries(own_cache: Path) -> None:
    for wait in (0.5, 0.9, 1.3):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.DEVNULL)
        time.sleep(wait)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        if own_cache.exists():
            for shelf in own_cache.glob("??"):
                for path in shelf.glob("[0-9a-f]*"):
                    assert cache.load(path.name) is not None
    imported()


def test_two_processes_may_fill_one_cache() -> None:
    several = [subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait() for process in several] == [0] * 2
