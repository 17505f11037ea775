"""Machine code from LLVM IR, generated in a helper process: an error of LLVM's there is an exception here."""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
import threading
import time
from typing import Any

from tilewright.errors import CodeGenerationError
from tilewright.runtime import codegen_server
from tilewright.runtime.codegen_server import read_message, write_message

_LOG = logging.getLogger("tilewright.codegen")


class Helper:
    """The helper process; started when first used, again if it ended, and anew in a forked process."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.owner = 0
        self.lock = threading.Lock()

    def start(self) -> None:
        """Starts the process, if it does not run."""
        with self.lock:
            self._start()

    def _start(self) -> None:
        if self.process is not None and self.owner == os.getpid() and self.process.poll() is None:
            return
        self._stop()
        # The file itself, with this process's paths: what lies in the working folder must not be taken for a module.
        command = [sys.executable, "-P", codegen_server.__file__]
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        try:
            # without buffers: a forked process must find nothing half-written in them
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=paths
            )
            self.owner = os.getpid()
            ready = read_message(self.process.stdout)  # type: ignore[arg-type]
        except OSError as fault:
            raise CodeGenerationError(f"the helper that generates machine code did not start: {fault}") from None
        except BaseException:
            self._stop()
            raise
        if ready is None:
            self._stop()
            raise CodeGenerationError("the helper that generates machine code did not start; it says why above")

    def ask(self, request: dict[str, Any], text: str) -> bytes:
        """The answer to a request; raises what LLVM says where it refuses."""
        before = time.perf_counter()
        with self.lock:
            header, payload = self._exchange(request, text.encode())
        if not header["ok"]:
            raise CodeGenerationError(f"LLVM could not generate machine code: {header['why']}")
        took = 1e3 * (time.perf_counter() - before)
        _LOG.debug("%d characters of LLVM became %d bytes in %.0f ms", len(text), len(payload), took)
        return payload

    def _exchange(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        for _ in range(2):
            self._start()
            assert self.process is not None
            try:
                write_message(self.process.stdin, request, data)  # type: ignore[arg-type]
                answer = read_message(self.process.stdout)  # type: ignore[arg-type]
            except OSError:
                answer = None
            except BaseException:
                self._stop()  # an interrupt: the answer still to come must not be taken for that to the next request
                raise
            if answer is not None:
                return answer
            self._stop()
        raise CodeGenerationError(
            "the helper that generates machine code ended, twice: LLVM could not do what it was asked for"
        )

    def stop(self) -> None:
        """Ends the process."""
        with self.lock:
            self._stop()

    def _stop(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        if self.owner == os.getpid():
            process.kill()
            process.wait()
        else:
            process.returncode = 0  # it belongs to the parent, which waits for it

    def after_fork(self) -> None:
        """In a forked process: the parent's helper is let go, without a word to it."""
        self.lock = threading.Lock()
        self._stop()


HELPER = Helper()
atexit.register(HELPER.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=HELPER.after_fork)
