"""Launches beside PyTorch run on its OpenMP threads: no second set of threads spins on the same cores."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright as tw
from tilewright.targets.cpu import openmp
from tilewright.targets.cpu.pool import TEAM, pool

A = np.random.default_rng(0).integers(-3, 4, (303, 205)).astype(np.float32)
B = np.random.default_rng(1).integers(-3, 4, (205, 517)).astype(np.float32)
SEVERAL = pytest.mark.skipif(pool().workers < 2, reason="one worker needs no threads")
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")

pytestmark = pytest.mark.skipif(openmp.team_functions() is None, reason="this PyTorch has no OpenMP threads")

PROGRAM = """
import ctypes, os, sys
import numpy as np

A = np.random.default_rng(0).integers(-3, 4, (303, 205)).astype(np.float32)
B = np.random.default_rng(1).integers(-3, 4, (205, 517)).astype(np.float32)

def check():
    import tilewright as tw
    assert np.array_equal(tw.matmul(A, B), A @ B)

def has_team():
    from tilewright.targets.cpu.pool import pool
    return pool().team is not None

def busy_torch():
    import torch
    x = torch.ones(1 << 22)
    assert float((x + x).sum()) == 1 << 23

def in_child(call):
    child = os.fork()
    if child == 0:
        call()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
"""What the programs of other processes below begin with."""


def run(text: str, **environment: str) -> None:
    """Run a program in a process of its own; it ends within a minute, with success."""
    source = str(Path(tw.__file__).parent.parent)
    given = {**os.environ, "PYTHONPATH": source, "TILEWRIGHT_THREADS": "2", "OMP_NUM_THREADS": "2", **environment}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM + text], env=given, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def team() -> int:
    """Return the address of OpenMP's function that runs a team, as launches find it; 0: there is none."""
    table = pool().team
    address = 0 if table is None else table.ctypes.data
    assert int(pool().control[TEAM : TEAM + 8].view(np.uint64)[0]) == address
    return 0 if table is None else int(table[0])


def test_launches_run_on_threads_of_pytorch():
    assert np.array_equal(tw.matmul(A, B), A @ B)
    functions = openmp.team_functions()
    assert functions is not None
    assert team() == functions[0] != 0


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_as_many_threads_work_as_pytorch_would_use(threads: int):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert np.array_equal(tw.matmul(A, B), A @ B)
    finally:
        torch.set_num_threads(before)


def workers_of_a_launch(asked: int) -> list[tuple[int, int]]:
    """Return the (worker, workers) with which a launch calls its function."""
    import ctypes

    calls: list[tuple[int, int]] = []
    lock = threading.Lock()

    def task(argument: int, worker: int, workers: int) -> None:
        with lock:
            calls.append((worker, workers))

    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(task)
    pool().join_openmp()
    record = np.array([ctypes.cast(function, ctypes.c_void_p).value, 0, asked, pool().address, 0], np.uint64)
    pool().run(record.ctypes.data)
    return sorted(calls)


@SEVERAL
@pytest.mark.parametrize(("threads", "asked", "workers"), [(1, 2, 1), (2, 2, 2), (3, 2, 2), (4, 3, 3), (3, 1, 1)])
def test_every_worker_is_called_once(threads: int, asked: int, workers: int):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert workers_of_a_launch(asked) == [(n, workers) for n in range(workers)]
    finally:
        torch.set_num_threads(before)


def test_threads_of_python_take_turns():
    right = []

    def several() -> None:
        right.extend(np.array_equal(tw.matmul(A, B), A @ B) for _ in range(5))

    threads = [threading.Thread(target=several) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 20


@FORKS
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_its_own_threads():
    assert np.array_equal(tw.matmul(A, B), A @ B)
    child = os.fork()
    if child == 0:
        right = np.array_equal(tw.matmul(A, B), A @ B) and team() == 0
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0


@FORKS
def test_a_child_whose_parent_had_not_launched_has_its_own_threads():
    """OpenMP of the child would wait for threads that only its parent has."""
    run(
        """
import tilewright.targets.cpu.pool
busy_torch()
in_child(lambda: (check(), os._exit(1) if has_team() else 0))
"""
    )


@FORKS
def test_a_child_that_imports_after_the_fork_has_its_own_threads():
    run("busy_torch()\nin_child(lambda: (check(), os._exit(1) if has_team() else 0))\ncheck()\nassert has_team()")


def test_launches_move_to_pytorch_when_it_is_imported_later():
    run(
        """
check()
assert not has_team()
busy_torch()
check()
import tilewright as tw
tw.matmul(A[:7], B)
assert has_team()
"""
    )


def test_threads_that_were_asked_for_are_the_most():
    run(
        "busy_torch()\ncheck()\nfrom tilewright.targets.cpu.pool import pool\nassert pool().workers == 1",
        TILEWRIGHT_THREADS="1",
    )
    run(
        "busy_torch()\ncheck()\nfrom tilewright.targets.cpu.pool import pool\nassert pool().workers == 5",
        TILEWRIGHT_THREADS="5",
    )


def test_a_launch_within_a_parallel_region_runs_on_the_thread_that_asks():
    """A team's members launch at the same time; each does all of its launch, or a team of its own does."""
    run(
        """
import tilewright as tw
busy_torch()
check()
kernel = None
from tilewright.targets.cpu.openmp import team_functions
from tilewright.targets.cpu.pool import pool
calls = []
TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
task = TASK(lambda argument, worker, workers: calls.append((worker, workers)))
pool().join_openmp()
record = np.array([ctypes.cast(task, ctypes.c_void_p).value, 0, 2, pool().address, 0], np.uint64)
member = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: pool().run(record.ctypes.data))
parallel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
parallel(int(team_functions()[0]))(ctypes.cast(member, ctypes.c_void_p), None, 2, 0)
assert calls == [(0, 1)] * 2, calls
"""
    )


def test_without_pytorch_there_are_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert openmp.team_functions() is None


def test_while_pytorch_is_being_imported_there_are_none(monkeypatch: pytest.MonkeyPatch):
    """They are asked for again later: nothing is remembered of a half imported module."""
    half = ModuleType("torch")
    half.__spec__ = SimpleNamespace(_initializing=True)  # type: ignore[assignment]
    with monkeypatch.context() as changed:
        changed.setitem(sys.modules, "torch", half)
        assert openmp.team_functions() is None
    assert openmp.team_functions() is not None


def test_another_module_of_that_name_has_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert openmp.team_functions() is None
