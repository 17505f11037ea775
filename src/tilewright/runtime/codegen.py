"""Machine code from LLVM IR, generated in a helper process, so that a crash of LLVM raises an exception here."""

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
    """The helper process that generates machine code.

    It is started at first use. It is started again if it has ended, and in a process that was forked.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.owner = 0
        self.lock = threading.Lock()

    def start(self) -> None:
        """Start the helper process, unless it runs; raise CodeGenerationError if it does not start."""
        with self.lock:
            self._start()

    def _start(self) -> None:
        """Start the helper process and set `self.process` and `self.owner`, unless this process has one that runs.

        The caller holds the lock. Raise CodeGenerationError if the helper does not start.
        """
        if self.process is not None and self.owner == os.getpid() and self.process.poll() is None:
            return
        self._stop()
        # The file by its path, with this process's sys.path: no module must be loaded from the working folder.
        command = [sys.executable, "-P", codegen_server.__file__]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        greeting = None
        try:
            # without buffers, so that a forked process has no half-written data in them
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment
            )
            self.owner = os.getpid()
            greeting = read_message(self.process.stdout)  # type: ignore[arg-type]
        except OSError as fault:
            raise CodeGenerationError(f"the helper that generates machine code did not start: {fault}") from None
        finally:
            if greeting is None:
                self._stop()
        if greeting is None:
            raise CodeGenerationError("the helper that generates machine code did not start; it says why above")

    def ask(self, request: dict[str, Any], text: str) -> bytes:
        """Send the LLVM IR `text` to the helper process, and return the bytes that it generates: object code or
        assembly text.

        `request` has the options (see `codegen_server.generate`). Raise CodeGenerationError, with LLVM's message, if
        that fails.
        """
        before = time.perf_counter()
        with self.lock:
            header, payload = self._exchange(request, text.encode())
        if not header["ok"]:
            raise CodeGenerationError(f"LLVM could not generate machine code: {header['why']}")
        took = 1e3 * (time.perf_counter() - before)
        _LOG.debug("%d characters of LLVM became %d bytes in %.0f ms", len(text), len(payload), took)
        return payload

    def _exchange(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Send the options `request` and the LLVM IR `data` to the helper process; return (header, payload) of its
        answer.

        If the helper ends meanwhile, it is restarted and asked once more. Raise CodeGenerationError if it ends again.
        The caller holds the lock.
        """
        for _ in range(2):
            self._start()
            assert self.process is not None
            answer = None
            try:
                write_message(self.process.stdin, request, data)  # type: ignore[arg-type]
                answer = read_message(self.process.stdout)  # type: ignore[arg-type]
            except OSError:
                continue
            finally:
                if answer is None:  # after an interrupt, the late answer must not be taken for the next request's
                    self._stop()
            if answer is not None:
                return answer
        raise CodeGenerationError(
            "the helper that generates machine code ended, twice: LLVM could not do what it was asked for"
        )

    def stop(self) -> None:
        """End the helper process, if there is one."""
        with self.lock:
            self._stop()

    def _stop(self) -> None:
        """End the helper process, if there is one, and set `self.process` to None. The caller holds the lock.

        A forked process only closes its pipes to the parent's helper.
        """
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
            process.returncode = 0  # the process belongs to the parent, which waits for it

    def after_fork(self) -> None:
        """Replace the lock in a forked process, and forget the parent's helper without ending it."""
        self.lock = threading.Lock()
        self._stop()


HELPER = Helper()
atexit.register(HELPER.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=HELPER.after_fork)
