"""Machine code from LLVM IR, generated in a helper process: an error of LLVM's there is an exception here."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from typing import Any

from tilewright.errors import CodeGenerationError
from tilewright.runtime.codegen_server import read_message, write_message


class Helper:
    """The helper process; started when first used, again if it ended, and anew in a forked process."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.owner = 0
        self.lock = threading.Lock()

    def start(self) -> None:
        """Starts the process, if it does not run."""
        if self.process is not None and self.owner == os.getpid() and self.process.poll() is None:
            return
        command = [sys.executable, "-m", "tilewright.runtime.codegen_server"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.owner = os.getpid()
        assert self.process.stdout is not None
        if read_message(self.process.stdout) is None:  # type: ignore[arg-type]
            raise CodeGenerationError("the helper that generates machine code did not start")

    def ask(self, request: dict[str, Any], text: str) -> bytes:
        """The answer to a request; raises what LLVM says where it refuses."""
        with self.lock:
            for attempt in (1, 2):
                self.start()
                assert self.process is not None
                assert self.process.stdin is not None
                try:
                    write_message(self.process.stdin, request, text.encode())  # type: ignore[arg-type]
                    answer = read_message(self.process.stdout)  # type: ignore[arg-type]
                except OSError:
                    answer = None
                if answer is not None:
                    break
                self.stop()
                if attempt == 2:
                    raise CodeGenerationError("the helper that generates machine code ended, twice")
        assert answer is not None
        header, payload = answer
        if not header["ok"]:
            raise CodeGenerationError(f"LLVM could not generate machine code: {header['why']}")
        return payload

    def stop(self) -> None:
        """Ends the process."""
        if self.process is not None and self.owner == os.getpid():
            for stream in (self.process.stdin, self.process.stdout):
                if stream is not None:
                    stream.close()
            self.process.kill()
            self.process.wait()
        self.process = None


HELPER = Helper()
atexit.register(HELPER.stop)


def _after_fork() -> None:
    HELPER.process = None  # it belongs to the parent
    HELPER.lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
