"""The helper that generates machine code, one child a program: LLVM ends the process where it meets what it cannot do.

It reads requests from its input and answers on its output: a length, then a JSON header, then a payload. It loads
LLVM once; a child is forked for each request, so that nothing a program does to LLVM stays.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from typing import Any, BinaryIO


def write_message(stream: BinaryIO, header: dict[str, Any], payload: bytes) -> None:
    """One message: sizes, header, payload."""
    head = json.dumps(header).encode()
    stream.write(struct.pack("<QQ", len(head), len(payload)) + head + payload)
    stream.flush()


def read_message(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """The next message, or None at the end."""
    sizes = stream.read(16)
    if len(sizes) < 16:
        return None
    head, size = struct.unpack("<QQ", sizes)
    header = stream.read(head)
    payload = stream.read(size)
    if len(header) < head or len(payload) < size:
        return None
    found: dict[str, Any] = json.loads(header)
    return found, payload


def generate(request: dict[str, Any], text: str) -> bytes:
    """The object code (or assembly) of an LLVM module, by the request's triple, CPU, features and level."""
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(text)
    target = llvm.Target.from_triple(request["triple"]) if request.get("triple") else llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=request["cpu"], features=request["features"], opt=request.get("level", 2), reloc="pic", codemodel="default"
    )
    if request.get("form") == "assembly":
        return str(machine.emit_assembly(module)).encode()
    made: bytes = machine.emit_object(module)
    return made


def _answer(request: dict[str, Any], payload: bytes, out: BinaryIO) -> None:
    """Forks a child, and passes on what it writes, or how it ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            data = b"+" + generate(request, payload.decode())
        except Exception as fault:
            data = b"-" + str(fault).encode()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(data)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if data[:1] == b"+" and status == 0:
        write_message(out, {"ok": True}, data[1:])
    elif data[:1] == b"-":
        write_message(out, {"ok": False, "why": data[1:].decode()}, b"")
    else:
        write_message(out, {"ok": False, "why": f"LLVM ended the process (status {status})"}, b"")


def main() -> None:
    """Serves requests until the input ends."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmprinter()
    inp, out = sys.stdin.buffer, sys.stdout.buffer
    write_message(out, {"ready": True}, b"")
    while True:
        message = read_message(inp)
        if message is None:
            return
        _answer(*message, out)


if __name__ == "__main__":
    main()
