"""The entry of a module as Python calls it: bound launches, learnt calls, errors of codes, threads and processes."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.compiler.text import compile_text
from tilewright.errors import ArgumentError, ExecutionError
from tilewright.runtime.codegen import HELPER
from tilewright.targets.cpu.entry import EntryLaunch

Array = np.ndarray[Any, np.dtype[Any]]

CHECKED = """host checked(%x: in global i32 (N), %y: out global i32 (N))
  param N in 2..4097
{
  bind {
    %places = workspace global i32 (N)
    table %places (i N) = (N - 1 - i)
  }
  %faults = workspace global i32 (2)
  fill %faults 0
  launch look(%x, %places, %y, %faults) workers 2 with N = N
  check %faults 0 else "x[0] is negative"
  check %faults 1 else "x[1] is negative"
}

block look(%x: in global i32 (N), %places: in global i32 (N), %y: out global i32 (N), %faults: inout global i32 (2))
  param N in 2..4097
{
  tasks t in 0..1 {
    %all = view %x (i N) -> [i]
    %place = view %places (i N) -> [i]
    %to = view %y (i N) -> [i]
    map %to = %all + %place*100
    %first = view %x (i 2) -> [i]
    %fault = view %faults (i 2) -> [i]
    map %fault = select(%first < 0, 1, 0)
  }
}"""

STRIDED = """host twice(%x: in global f32 (3, 5), %y: out global f32 (3, 5))
{
  launch double(%x, %y) workers 2
}

block double(%x: in global f32 (3, 5):(8, 1), %y: out global f32 (3, 5))
{
  tasks m in 0..3 {
    %row = view %x (j 5) -> [m, j]
    %to = view %y (j 5) -> [m, j]
    map %to = %row + %row
  }
}"""


def wanted(x: Array) -> Array:
    return x + 100 * np.arange(len(x), dtype=np.int32)[::-1]


def numbers(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 90, count).astype(np.int32)


def test_checks_fills_and_tables_are_learnt_and_raise_with_their_line() -> None:
    run = compile_text(CHECKED)
    for count in (2, 7, 4096, 7):
        for seed in range(3):
            x = numbers(count, seed)
            assert np.array_equal(run(x), wanted(x))
    assert run.launches is not None
    assert run.launches.table is not None
    assert len(run.launches.table.kinds) == 3
    for place in (0, 1, 0):  # of a call that is learnt
        x = numbers(7)
        x[place] = -1
        for call in (run, run.bind):
            with pytest.raises(ExecutionError, match=rf"x\[{place}\] is negative") as told:
                call(x, np.zeros(7, np.int32))() if call == run.bind else call(x)
            assert f'check %faults {place} else "x[{place}] is negative"' in str(told.value)
        x = numbers(7)
        assert np.array_equal(run(x), wanted(x))


def test_arguments_are_refused_before_the_entry_is_called() -> None:
    run = compile_text(CHECKED)
    with pytest.raises(ArgumentError, match="dimension 0 is 1; checked takes"):
        run(numbers(1))
    x = numbers(8)
    with pytest.raises(ArgumentError, match="shares memory with"):
        run.bind(x[:6], x[2:])


def test_one_object_holds_a_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []
    ask = HELPER.ask

    def counted(request: Any, text: str) -> bytes:
        if "@pool_run" not in text:
            asked.append(text)
        return ask(request, text)

    monkeypatch.setattr(HELPER, "ask", counted)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    a, b = np.ones((70, 40), np.float32), np.ones((40, 300), np.float32)
    assert np.array_equal(tilewright.matmul(a, b), np.full((70, 300), 40, np.float32))
    assert len(asked) == 1
    run = compile_text(CHECKED)
    for count in (2, 9, 33):
        run(numbers(count))
    assert len(asked) == 2


def test_arrays_by_strides_run_by_the_script_and_say_so() -> None:
    run = compile_text(STRIDED)
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    assert np.array_equal(run(x), x + x)
    assert "double takes %x" in repr(run)
    assert "by strides or a swizzle" in repr(run)
    assert "copied" not in repr(compile_text(CHECKED))


def test_sixteen_threads_share_a_bound_launch_and_a_learnt_call() -> None:
    run = tilewright.compile(tilewright.kernels.gemm("nn", "f32"))
    pairs = [(numbers(33 * 20, n).reshape(33, 20), numbers(20 * 17, n + 9).reshape(20, 17)) for n in range(16)]
    floats = [(a.astype(np.float32), b.astype(np.float32)) for a, b in pairs]
    run(*floats[0])
    a, b = floats[0]
    out = np.full((33, 17), np.nan, np.float32)
    shared = run.bind(a, b, out)
    assert isinstance(shared, EntryLaunch)

    def many(n: int) -> None:
        a, b = floats[n]
        own = np.full((33, 17), np.nan, np.float32)
        launch = run.bind(a, b, own)
        for _ in range(100):
            shared()
            launch()
            assert np.array_equal(own, a @ b)
            assert np.array_equal(run(a, b), a @ b)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(many, range(16)))
    assert np.array_equal(out, a @ b)


FORKING = """
import os, sys
import numpy as np
import tilewright
a = np.arange(33 * 20, dtype=np.float32).reshape(33, 20) % 7
b = np.arange(20 * 70, dtype=np.float32).reshape(20, 70) % 5
out = np.full((33, 70), np.nan, np.float32)
run = tilewright.compile(tilewright.kernels.gemm("nn", "f32"))
launch = run.bind(a, b, out)
launch()
assert np.array_equal(run(a, b), a @ b)
child = os.fork() if hasattr(os, "fork") else 0
for n in range(20):
    b += 1
    launch()
    assert np.array_equal(out, a @ b) and np.array_equal(run(a, b), a @ b)
if child:
    assert os.waitpid(child, 0)[1] == 0
print("right")
"""


def test_two_processes_call_one_kernel_and_fork_after_the_first_call(tmp_path: Path) -> None:
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(tmp_path), "TILEWRIGHT_THREADS": "2"}
    command = [sys.executable, "-c", FORKING]
    started = [subprocess.Popen(command, env=environment, stdout=-1, stderr=-1) for _ in range(2)]
    for process in started:
        told, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors.decode()
        assert set(told.split()) == {b"right"}
