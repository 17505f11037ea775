"""The helper process that generates machine code, with one child a program, since LLVM aborts on some errors.

It reads requests from its input and answers on its output: sizes, then a JSON header, then a payload. It loads LLVM
once. A child is forked for each request, before the request arrives, so that no program changes LLVM's state for later
ones. If the system cannot fork, the helper answers by itself, and its client starts another one after an abort. The
helper ends when its input does, so it never outlives the process that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import sys
from typing import Any, Protocol

_END_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG
_SMALL = "define i32 @small(i32 %x) {\n  %y = mul i32 %x, 3\n  ret i32 %y\n}\n"


class PipeStream(Protocol):
    """A binary stream of messages; one call may read or write fewer bytes than it was asked to."""

    def read(self, size: int, /) -> bytes | None:
        """Return at most `size` bytes of the stream: b"" or None at its end."""
        ...

    def write(self, data: Any, /) -> int | None:
        """Write `data`, or only its first bytes, and return the number of bytes written; None if there were none."""
        ...

    def flush(self) -> None:
        """Write all buffered bytes."""
        ...


def write_message(stream: PipeStream, header: dict[str, Any], payload: bytes) -> None:
    """Write one message to `stream` and flush it: the byte counts of header and payload, `header` as JSON, and
    `payload`."""
    header_bytes = json.dumps(header).encode()
    unsent = memoryview(struct.pack("<QQ", len(header_bytes), len(payload)) + header_bytes + payload)
    while unsent:
        unsent = unsent[stream.write(unsent) or 0 :]
    stream.flush()


def read_message(stream: PipeStream) -> tuple[dict[str, Any], bytes] | None:
    """Read one message from `stream` and return (header, payload). Return None if the stream ends before the message
    does."""
    sizes = _read(stream, 16)
    if sizes is None:
        return None
    head, size = struct.unpack("<QQ", sizes)
    header, payload = _read(stream, head), _read(stream, size)
    if header is None or payload is None:
        return None
    decoded: dict[str, Any] = json.loads(header)
    return decoded, payload


def _read(stream: PipeStream, count: int) -> bytes | None:
    """Read exactly `count` bytes of `stream` and return them; None if the stream ends before."""
    parts = []
    while count:
        part = stream.read(count)
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def generate(request: dict[str, Any], text: str) -> bytes:
    """Compile `text`, an LLVM module, and return its object code; or its assembly text if request["form"] is
    "assembly".

    `request` has "cpu", "features" and perhaps "triple" (the target), "level" (of optimisation), "passes" (to run
    first) and "flags" (of LLVM). LLVM keeps flags until its process ends, so each request must set every flag on which
    it depends. LLVM's errors are raised as RuntimeError.
    """
    import llvmlite.binding as llvm

    for flag in request.get("flags", ()):
        llvm.set_option("", flag)
    module = llvm.parse_assembly(text)
    target = llvm.Target.from_triple(request["triple"]) if request.get("triple") else llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=request["cpu"], features=request["features"], opt=request.get("level", 2), reloc="pic", codemodel="default"
    )
    if request.get("passes"):
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
        manager = llvm.create_new_module_pass_manager()
        for name in request["passes"]:
            getattr(manager, f"add_{name}_pass")()
        manager.run(module, builder)
    if request.get("form") == "assembly":
        return str(machine.emit_assembly(module)).encode()
    object_code: bytes = machine.emit_object(module)
    return object_code


class _Child:
    """A forked process that answers one request.

    It is forked before the request arrives, and compiles a small module first, to warm up LLVM.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.errors = os.memfd_create("said") if hasattr(os, "memfd_create") else None
        (request_in, request_out), (answer_in, answer_out) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(request_out)
            os.close(answer_in)
            _detach(self.errors)
            _serve(request, request_in, answer_out)
        os.close(request_in)
        os.close(answer_out)
        self.request_out, self.answer_in = os.fdopen(request_out, "wb"), os.fdopen(answer_in, "rb")

    def answer(self, request: dict[str, Any], payload: bytes, out: PipeStream) -> None:
        """Send a request to the child, wait until the child ends, and write its answer to `out` as one message.

        The message has the machine code, LLVM's error message, or a text that says how the child crashed. `request` has
        the options, `payload` is the LLVM module as text.
        """
        with contextlib.suppress(BrokenPipeError), self.request_out:
            write_message(self.request_out, request, payload)
        with self.answer_in:
            data = self.answer_in.read()
        _, status = os.waitpid(self.pid, 0)
        if data[:1] == b"+" and status == 0:
            write_message(out, {"ok": True}, data[1:])
        elif data[:1] == b"-":
            write_message(out, {"ok": False, "why": data[1:].decode()}, b"")
        else:
            write_message(out, {"ok": False, "why": _crash_report(self.errors, status)}, b"")
        if self.errors is not None:
            os.close(self.errors)


def _serve(sample: dict[str, Any], request_in: int, answer_out: int) -> None:
    """Run the forked child: warm LLVM up, answer one request, and exit the process. This never returns.

    The request is read from the file descriptor `request_in`. The answer is written to `answer_out`: "+" and the
    machine code, or "-" and LLVM's error message. `sample` has the options of an earlier request, for the warm-up.
    """
    with contextlib.suppress(RuntimeError):
        generate(sample, _SMALL)
    with os.fdopen(request_in, "rb") as pipe:
        message = read_message(pipe)
    if message is not None:
        try:
            data = b"+" + generate(message[0], message[1].decode())
        except RuntimeError as fault:  # LLVM's message; any other error ends the child, and its error output is sent
            data = b"-" + str(fault).encode()
        with os.fdopen(answer_out, "wb") as pipe:
            pipe.write(data)
    os._exit(0)


def _answer(request: dict[str, Any], payload: bytes, out: PipeStream) -> None:
    """Generate the machine code for a request in this process, and write it as a message to `out`.

    If LLVM raises an error, the message has its text. `request` has the options, `payload` is the LLVM module as text.
    """
    try:
        write_message(out, {"ok": True}, generate(request, payload.decode()))
    except RuntimeError as fault:
        write_message(out, {"ok": False, "why": str(fault)}, b"")


def _detach(errors: int | None) -> None:
    """Prepare a new child process: its standard input and output become /dev/null, and a crash leaves no core file.

    Its error output goes to the file descriptor `errors`, or is unchanged if that is None. On Linux the child is killed
    when the helper ends.
    """
    import ctypes
    import resource

    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(null, stream)
    if errors is not None:
        os.dup2(errors, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)


def _crash_report(errors: int | None, status: int) -> str:
    """Return a text that says how a child ended, with its error output if there is any.

    `status` is the child's wait status. `errors` is the file descriptor of the error output, or None.
    """
    message = "" if errors is None else os.pread(errors, 1 << 16, 0).decode(errors="replace").strip()
    at = message.find("LLVM ERROR:")
    code = os.waitstatus_to_exitcode(status)
    summary = f"LLVM ended the process ({signal.strsignal(-code) if code < 0 else f'exit code {code}'})"
    return f"{summary}: {message[at:] if at >= 0 else message[-2000:]}" if message else summary


def main() -> None:
    """Run the helper process: answer requests from standard input until it ends, and then exit the process.

    Each request is answered by a forked child, or in this process if the system cannot fork.
    """
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt from the terminal is for the parent program
    inp, out = sys.stdin.buffer, sys.stdout.buffer
    with contextlib.suppress(BrokenPipeError):
        request: dict[str, Any] = {"cpu": llvm.get_host_cpu_name(), "features": ""}
        generate(request, _SMALL)  # initialises LLVM before the first child is forked
        write_message(out, {"ready": True}, b"")
        while True:
            child = _Child(request) if hasattr(os, "fork") else None
            message = read_message(inp)
            if message is None:
                break
            request = message[0]
            if child is not None:
                child.answer(*message, out)
            else:
                _answer(*message, out)
    os._exit(0)  # skips cleanup: nobody reads further output


if __name__ == "__main__":
    main()
