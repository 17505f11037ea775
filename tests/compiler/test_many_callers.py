"""Many callers of the same kernels: threads, processes with one cache, forks, and ones that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.runtime import cache

THREADS, PROCESSES = 16, 3
M, N = tkl.sym.M, tkl.sym.N


@tkw.wave()
def minus(
    x: tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
    y: tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
    z: tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
) -> None:
    tkw.write(tkw.read(x) - tkw.read(y), z)


def numbers(*shape: int, start: int = 0) -> Any:
    return (np.arange(start, start + np.prod(shape), dtype=np.float32) % 13).reshape(shape)


def test_threads_call_kernels_while_their_launches_are_learnt_and_forgotten() -> None:
    """The table of a kernel is replaced while other threads look into it."""
    run = tilewright.compile(minus, dynamic=[M])
    together, wrong = threading.Barrier(THREADS), []

    def work(me: int) -> None:
        together.wait()
        for turn in range(20):
            m = 1 + (me + turn) % 3
            wide, y = numbers(m, 12, start=me), numbers(m, 6, start=turn)
            for x in (wide[:, :6], wide[:, ::2], numbers(6, m, start=turn).T, numbers(m, 6, start=me)):
                if not np.array_equal(run(x, y), x - y):
                    wrong.append((me, turn))
            if turn == me and run.launches is not None and run.launches.table is not None:
                run.launches.table.forget()

    threads = [threading.Thread(target=work, args=(me,)) for me in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


CALLER = """
import os, sys, threading
import numpy as np
import tilewright

TEXT = '''block twice(%x: in global f32 (5, 37), %y: out global f32 (5, 37)) {
  tasks t in 0..5 {
    %from = view %x (j 37) -> [t, j]
    %to = view %y (j 37) -> [t, j]
    map %to = %from + %from
  }
}'''
run = tilewright.compile_text(TEXT)

def numbers(*shape, start=0):
    return (np.arange(start, start + np.prod(shape), dtype=np.float32) % 13).reshape(shape)

def calls(me):
    for turn in range(20):
        x = numbers(5, 37, start=me + turn)
        if not np.array_equal(run(x), x + x):
            os._exit(3)

calls(0)
print("called", flush=True)
sys.stdin.readline()
child = os.fork() if hasattr(os, "fork") else -1
threads = [threading.Thread(target=calls, args=(me,)) for me in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if child == 0:
    os._exit(0)
if child > 0 and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
    os._exit(4)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no process is killed so here")
def test_processes_with_threads_and_forks_share_a_cache_while_one_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", CALLER]
    started = [
        subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES + 1)
    ]
    *callers, killed = started
    while killed.poll() is None and not any(tmp_path.rglob("*")):
        time.sleep(0.002)
    killed.kill()  # the first entry is being written, by this one or by another
    for caller in callers:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "called\n"
    for each in started:
        each.communicate("go\n" if each is not killed else None, timeout=60)
    assert [each.returncode for each in started] == [0] * PROCESSES + [-signal.SIGKILL]
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    whole = [path for _, _, path in cache.entries(tmp_path) if len(path.name) == len(cache.key_of())]
    assert whole
    assert all(cache.load(path.name) is not None for path in whole)
