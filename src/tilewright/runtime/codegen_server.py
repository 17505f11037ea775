"""The helper that generates machine code, one child a program: LLVM ends the process where it meets what it cannot do.

It reads requests from its input and answers on its output: sizes, then a JSON header, then a payload. It loads LLVM
once; a child is forked for each request, ahead of it, so that nothing a program does to LLVM stays. Where the system
cannot fork, the helper answers by itself, and whoever asked starts another one if LLVM ends it. It ends when its
input does, so it does not outlive the process that started it, however that one ends.
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
    """What messages pass through; a read or a write may move less than it was asked to."""

    def read(self, size: int, /) -> bytes | None: ...  # noqa: D102
    def write(self, data: Any, /) -> int | None: ...  # noqa: D102
    def flush(self) -> None: ...  # noqa: D102


def write_message(stream: PipeStream, header: dict[str, Any], payload: bytes) -> None:
    """One message: sizes, header, payload."""
    head = json.dumps(header).encode()
    rest = memoryview(struct.pack("<QQ", len(head), len(payload)) + head + payload)
    while rest:
        rest = rest[stream.write(rest) or 0 :]
    stream.flush()


def read_message(stream: PipeStream) -> tuple[dict[str, Any], bytes] | None:
    """The next message, or None at the end."""
    sizes = _read(stream, 16)
    if sizes is None:
        return None
    head, size = struct.unpack("<QQ", sizes)
    header, payload = _read(stream, head), _read(stream, size)
    if header is None or payload is None:
        return None
    found: dict[str, Any] = json.loads(header)
    return found, payload


def _read(stream: PipeStream, count: int) -> bytes | None:
    """So many bytes, or None if the stream ends before."""
    parts = []
    while count:
        part = stream.read(count)
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def generate(request: dict[str, Any], text: str) -> bytes:
    """The object code (or assembly) of an LLVM module, by the request's triple, CPU, features, level, flags and passes.

    Flags are LLVM's own, for the whole process: each request says all that it rests on.
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
    made: bytes = machine.emit_object(module)
    return made


class _Child:
    """A child that waits for its one request, forked ahead: a first, small module has brought LLVM's memory to life."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.said = os.memfd_create("said") if hasattr(os, "memfd_create") else None
        (asked, asking), (reading, writing) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(asking)
            os.close(reading)
            _part(self.said)
            _serve(request, asked, writing)
        os.close(asked)
        os.close(writing)
        self.asking, self.reading = os.fdopen(asking, "wb"), os.fdopen(reading, "rb")

    def answer(self, request: dict[str, Any], payload: bytes, out: PipeStream) -> None:
        """Passes on what the child writes, or how it ended."""
        with contextlib.suppress(BrokenPipeError), self.asking:
            write_message(self.asking, request, payload)
        with self.reading:
            data = self.reading.read()
        _, status = os.waitpid(self.pid, 0)
        if data[:1] == b"+" and status == 0:
            write_message(out, {"ok": True}, data[1:])
        elif data[:1] == b"-":
            write_message(out, {"ok": False, "why": data[1:].decode()}, b"")
        else:
            write_message(out, {"ok": False, "why": _last_words(self.said, status)}, b"")
        if self.said is not None:
            os.close(self.said)


def _serve(like: dict[str, Any], asked: int, writing: int) -> None:
    """The whole life of a child; `like` is a request such as the one to come."""
    with contextlib.suppress(RuntimeError):
        generate(like, _SMALL)
    with os.fdopen(asked, "rb") as pipe:
        message = read_message(pipe)
    if message is not None:
        try:
            data = b"+" + generate(message[0], message[1].decode())
        except RuntimeError as fault:  # what LLVM says; anything else ends the child, and its last words are told
            data = b"-" + str(fault).encode()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(data)
    os._exit(0)


def _answer(request: dict[str, Any], payload: bytes, out: PipeStream) -> None:
    """An answer without a child."""
    try:
        write_message(out, {"ok": True}, generate(request, payload.decode()))
    except RuntimeError as fault:
        write_message(out, {"ok": False, "why": str(fault)}, b"")


def _part(said: int | None) -> None:
    """In a child: lets go of the helper's streams, and ends with it; what LLVM says goes to the file, not to the
    author's terminal; an abort leaves no core file.
    """
    import ctypes
    import resource

    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    if said is not None:
        os.dup2(said, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)


def _last_words(said: int | None, status: int) -> str:
    """How a child ended, and what LLVM said before."""
    words = "" if said is None else os.pread(said, 1 << 16, 0).decode(errors="replace").strip()
    at = words.find("LLVM ERROR:")
    code = os.waitstatus_to_exitcode(status)
    how = f"LLVM ended the process ({signal.strsignal(-code) if code < 0 else f'exit code {code}'})"
    return f"{how}: {words[at:] if at >= 0 else words[-2000:]}" if words else how


def main() -> None:
    """Serves requests until the input ends."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt from the terminal is for the author's program
    inp, out = sys.stdin.buffer, sys.stdout.buffer
    with contextlib.suppress(BrokenPipeError):
        request: dict[str, Any] = {"cpu": llvm.get_host_cpu_name(), "features": ""}
        generate(request, _SMALL)  # what LLVM sets up once is set up before the first child is forked
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
    os._exit(0)  # nobody reads what is left


if __name__ == "__main__":
    main()
