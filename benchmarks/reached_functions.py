"""Record in a file which functions of a source folder a process executes, and during which test.

A process records if the variable `REACHED_LOGS` names a folder and `REACHED_SOURCE` the source folder. `reach_map.py`
puts a module `sitecustomize` on the path of the tests, which calls `start()` at the start of each process: processes
that tests start record too, and so do their forks. What they execute is from the test during which they started. Each
process writes a file of its own, with these lines:

    @tests/a.py::test_b     the lines below are from this test; `@` alone: from no test, or from several
    +algebra/expr.py Expr.__add__     this function was executed

A function is written once for each test. From Python 3.12 on, `sys.monitoring` reports only the first call of a
function in each test, so that recording costs little. Python 3.11 has only `sys.settrace`, and tests take about three
times as long.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any


class Recorder:
    """The recording of one process."""

    def __init__(self, folder: str, source: str):
        self.folder, self.source = folder, source.rstrip(os.sep) + os.sep
        self.seen: set[CodeType] = set()
        self._begin()
        os.register_at_fork(after_in_child=self._begin_again)
        if sys.version_info >= (3, 12):
            monitoring = sys.monitoring
            monitoring.use_tool_id(monitoring.PROFILER_ID, "reached_functions")
            monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.PY_START, self._started)
            monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.PY_START)
        else:
            threading.settrace(self._called)
            sys.settrace(self._called)

    def _begin(self) -> None:
        name = f"{self.folder}/{os.getpid()}-{time.monotonic_ns()}"
        self.file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.enter(os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0])  # the test that starts the process

    def _begin_again(self) -> None:
        """A forked process writes a file of its own."""
        os.close(self.file)
        self._begin()

    def enter(self, test: str) -> None:
        """Record what follows as executed by `test`; empty: by no test in particular."""
        os.write(self.file, f"@{test}\n".encode())
        self.seen.clear()
        if sys.version_info >= (3, 12):
            sys.monitoring.restart_events()

    def _started(self, code: CodeType, offset: int) -> Any:
        if code.co_filename.startswith(self.source):
            self._write(code)
        return sys.monitoring.DISABLE  # type: ignore[attr-defined]

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code not in self.seen and code.co_filename.startswith(self.source):
            self.seen.add(code)
            self._write(code)

    def _write(self, code: CodeType) -> None:
        file = code.co_filename[len(self.source) :].replace(os.sep, "/")
        os.write(self.file, f"+{file} {code.co_qualname}\n".encode())


RECORDER: Recorder | None = None


def start() -> None:
    """Begin to record, if the environment says so."""
    global RECORDER
    folder, source = os.environ.get("REACHED_LOGS"), os.environ.get("REACHED_SOURCE")
    if RECORDER is None and folder and source:
        RECORDER = Recorder(folder, source)
