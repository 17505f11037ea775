"""The FFI handler: without a C compiler, from many threads, with workspaces and checks."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest
from exact import assert_same, small

import tilewright
import tilewright.jax
from tilewright.jax.handler import handler_text
from tilewright.jax.registry import _registered
from tilewright.kernels import gather_rows, gemm

REPORTED = (jax.errors.JaxRuntimeError, ValueError)
"""What JAX makes of a handler's error: the second where it raises it at the call."""
CHECKED = """host checked(%x: in global i32 (4), %y: out global i32 (4))
{
  %faults = workspace global i32 (2)
  fill %faults 0
  %ones = workspace global i32 (4)
  fill %ones 1
  %places = workspace global i32 (4)
  table %places (i 4) = (3 - i)
  launch look(%x, %ones, %places, %y, %faults) workers 1
  check %faults 0 else "x[0] is negative"
  check %faults 1 else "x[1] is negative"
}

block look(%x: in global i32 (4), %ones: in global i32 (4), %places: in global i32 (4),
    %y: out global i32 (4), %faults: inout global i32 (2))
{
  tasks t in 0..1 {
    %all = view %x (i 4) -> [i]
    %one = view %ones (i 4) -> [i]
    %place = view %places (i 4) -> [i]
    %to = view %y (i 4) -> [i]
    map %to = %all + %one*10 + %place*100
    %first = view %x (i 2) -> [i]
    %fault = view %faults (i 2) -> [i]
    map %fault = select(%first < 0, 1, 0)
  }
}"""


def test_fills_tables_and_checks_of_a_host_program():
    executable = tilewright.compile_text(CHECKED)
    run = jax.jit(tilewright.jax.function(executable))
    x = np.arange(4, dtype=np.int32)
    assert_same(run(x), executable(x))
    for place, says in ((0, r"checked: x\[0\] is negative"), (1, r"checked: x\[1\] is negative")):
        with pytest.raises(REPORTED, match=says):
            run(np.where(np.arange(4) == place, -1, x).astype(np.int32)).block_until_ready()
    assert_same(run(x), executable(x))


def test_a_read_outside_memory_is_an_error():
    executable = tilewright.compile(gather_rows())
    run, table = jax.jit(tilewright.jax.function(executable)), small(4, 3)
    assert_same(run(table, np.array([3, 0], np.int32)), table[[3, 0]])
    with pytest.raises(REPORTED, match="gather_rows: read leaves its tensor of 4 x 3"):
        run(table, np.array([3, 4], np.int32)).block_until_ready()


def test_threads_may_call_at_the_same_time():
    run = jax.jit(tilewright.jax.function(tilewright.compile(gemm("nn", "f32"))))
    pairs = [(small(65, 33 + n, seed=n), small(33 + n, 70, seed=n + 1)) for n in range(4)]

    def many(n: int) -> None:
        a, b = pairs[n % 4]
        for _ in range(50):
            assert_same(run(a, b), a @ b)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(many, range(8)))


def test_a_program_is_registered_once():
    a, b = small(11, 13), small(13, 17)
    for _ in range(3):  # the same kernel, compiled and traced again
        run = tilewright.jax.function(tilewright.compile(gemm("nn", "f32")))
        assert_same(jax.jit(lambda a, b, run=run: run(a, b) + 1)(a, b), a @ b + 1)
        count = len(_registered)
    run = tilewright.jax.function(tilewright.compile(gemm("nn", "f32")))
    jax.jit(run)(a, b)
    assert len(_registered) == count


def test_no_c_compiler_is_needed(tmp_path):
    code = """
import os, shutil
assert not any(shutil.which(name) for name in ("cc", "gcc", "clang", "ld", "c++"))
import numpy as np, jax, tilewright, tilewright.jax
a, b = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
print(jax.jit(tilewright.jax.matmul)(a, b).sum())
"""
    environment = {**os.environ, "PATH": str(tmp_path), "TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache")}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["60.0"], run.stderr


def test_the_core_does_not_import_jax():
    code = "import sys, tilewright; tilewright.matmul([[1.0]], [[2.0]]); print('jax' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False"]


def test_a_compiled_program_is_found_by_its_name_in_another_process(tmp_path):
    """JAX's own cache of executables holds the name: another process registers it before it runs."""
    code = """
import numpy as np, jax, tilewright, tilewright.jax
a, b = np.ones((30, 40), np.float32), np.ones((40, 50), np.float32)
print(jax.jit(tilewright.jax.matmul)(a, b).sum())
"""
    options = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    environment: dict[str, Any] = {**os.environ, **options}
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
        assert run.stdout.split() == ["60000.0"], run.stderr


def test_the_text_names_no_address():
    """One object serves all programs, in every process: the cache has it."""
    assert handler_text() == handler_text()
    assert "@program = global ptr null" in handler_text()
