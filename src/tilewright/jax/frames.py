"""XLA's call frames, read from Python: the buffers, stream and device of a custom call, and how it reports an error.

The offsets are those of the structures in `xla/ffi/api/c_api.h`, version 0.3; the docstring of `handler.py` has those
of buffers. The API is a table of functions: 48 creates an error, 64 destroys one, 80 gets the stream, and 184 the
number of the device. Each takes a structure that begins with its size and a null pointer. The last two also take the
execution context, which a frame has at 24.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from tilewright.errors import TargetError

INVALID_ARGUMENT, INTERNAL = 3, 13
"""XLA's error codes."""
_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


def _word(address: int) -> int:
    """Return the unsigned 64-bit integer in memory at `address`."""
    return ctypes.c_uint64.from_address(address).value


@dataclass(frozen=True)
class FrameBuffer:
    """A buffer of a custom call: the address of its memory, and its shape."""

    pointer: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class CallFrame:
    """A call frame: the C structure in which XLA passes a custom call's buffers and context, at `address`."""

    address: int

    def buffers(self) -> tuple[list[FrameBuffer], list[FrameBuffer]]:
        """Return (arguments of the call, results of the call), two lists with the memory address and shape of each
        buffer."""
        arguments, results = (self._buffers(start) for start in (self.address + 40, self.address + 80))
        return arguments, results

    def _buffers(self, start: int) -> list[FrameBuffer]:
        """Return the list of the buffers that an XLA structure describes, each with its memory address and shape.

        `start` is the address of the structure, which lists all arguments, or all results, of a call.
        """
        count, pointers = _word(start + 16), _word(start + 32)
        buffers = []
        for buffer in (_word(pointers + 8 * n) for n in range(count)):
            rank, extents = _word(buffer + 32), _word(buffer + 40)
            shape = tuple(ctypes.c_int64.from_address(extents + 8 * d).value for d in range(rank))
            buffers.append(FrameBuffer(_word(buffer + 24), shape))
        return buffers

    def stream(self) -> int:
        """Return the handle of the GPU stream on which the call's work must run. Raise TargetError if the call is not
        on a GPU."""
        return self._query_context(80, "stream")

    def device(self) -> int:
        """Return the number of the GPU that the call runs on (0, 1, ...); raise TargetError if XLA does not tell it."""
        return self._query_context(184, "device") & 0xFFFFFFFF

    def _query_context(self, offset: int, what: str) -> int:
        """Return a number that an XLA function reports about the call's execution context.

        `offset` is the function's offset in bytes in XLA's API table: 80 for the stream, 184 for the device. If the
        function fails, raise TargetError; `what` ("stream") is the word for the number in its message.
        """
        words = (ctypes.c_uint64 * 4)(32, 0, _word(self.address + 24), 0)
        api = _word(self.address + 16)
        error = _FUNCTION(_word(api + offset))(ctypes.addressof(words))
        if error:
            _FUNCTION(_word(api + 64))(ctypes.addressof((ctypes.c_uint64 * 3)(24, 0, error)))
            raise TargetError(f"XLA does not tell the {what} of a call: the kernel is for a GPU, and the call is not")
        return int(words[3])

    def error(self, text: str, code: int = INTERNAL) -> int:
        """Create an XLA error and return its address; 0 if XLA creates none.

        `text` is its message, `code` XLA's error code. A handler that returns this address makes the custom call fail.
        """
        message = ctypes.create_string_buffer(text.encode())
        words = (ctypes.c_uint64 * 4)(28, 0, ctypes.addressof(message), code)
        return _FUNCTION(_word(_word(self.address + 16) + 48))(ctypes.addressof(words)) or 0
