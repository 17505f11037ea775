"""XLA's call frames, read by Python: the buffers of a call, its stream and device, and errors.

The offsets are those of the structures in `xla/ffi/api/c_api.h`, version 0.3; `handler.py` says where buffers lie. The
API has a function that makes an error at 48, one that drops an error at 64, one that tells the stream at 80 and one
that tells the number of the device at 184. Each gets a structure that begins with its size and a null pointer. The last
two then get the execution context, which a frame has at 24.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from tilewright.errors import TargetError

INVALID_ARGUMENT, INTERNAL = 3, 13
"""XLA's codes of errors."""
_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


@dataclass(frozen=True)
class FrameBuffer:
    """A buffer of a call: the address of its memory, and its extents."""

    pointer: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class CallFrame:
    """A call frame at an address."""

    address: int

    def buffers(self) -> tuple[list[FrameBuffer], list[FrameBuffer]]:
        """Return the arguments and the results of the call."""
        arguments, results = (self._buffers(start) for start in (self.address + 40, self.address + 80))
        return arguments, results

    def _buffers(self, start: int) -> list[FrameBuffer]:
        count, pointers = _word(start + 16), _word(start + 32)
        buffers = []
        for buffer in (_word(pointers + 8 * n) for n in range(count)):
            rank, extents = _word(buffer + 32), _word(buffer + 40)
            shape = tuple(ctypes.c_int64.from_address(extents + 8 * d).value for d in range(rank))
            buffers.append(FrameBuffer(_word(buffer + 24), shape))
        return buffers

    def stream(self) -> int:
        """Return the stream that work of the call goes to; raises where the platform has none."""
        return self._told(80, "stream")

    def device(self) -> int:
        """Return the number of the device that the call is for."""
        return self._told(184, "device") & 0xFFFFFFFF

    def _told(self, function: int, what: str) -> int:
        """Return what a function of the API writes after the execution context."""
        words = (ctypes.c_uint64 * 4)(32, 0, _word(self.address + 24), 0)
        api = _word(self.address + 16)
        error = _FUNCTION(_word(api + function))(ctypes.addressof(words))
        if error:
            _FUNCTION(_word(api + 64))(ctypes.addressof((ctypes.c_uint64 * 3)(24, 0, error)))
            raise TargetError(f"XLA does not tell the {what} of a call: the kernel is for a GPU, and the call is not")
        return int(words[3])

    def error(self, text: str, code: int = INTERNAL) -> int:
        """Return the address of an error that XLA reports with a text."""
        message = ctypes.create_string_buffer(text.encode())
        words = (ctypes.c_uint64 * 4)(28, 0, ctypes.addressof(message), code)
        return _FUNCTION(_word(_word(self.address + 16) + 48))(ctypes.addressof(words)) or 0
