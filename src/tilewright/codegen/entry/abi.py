"""The C interface of an exported kernel: version, alignment, and the codes that its functions return.

All five functions of a kernel NAME are described in docs/deploying_c.md. The code 0 means success. Any other code has
its kind in the low 8 bits and, above them, the index of the buffer, size or check that it is about.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

FORMAT = 1
"""The version of the interface and of the manifest; files of another version are not loaded."""
COUNTER_BYTES = 64
"""Bytes between the task counters of two workers, so that each lies in a cache line of its own."""
ALIGNMENT = 64
"""The alignment in bytes of `kept` (memory that `bind` fills and calls read) and of `workspace`."""
KIND_BITS = 8


class ErrorKind(IntEnum):
    """The kinds of error codes."""

    NULL_BUFFER = 1
    MISALIGNED_BUFFER = 2
    OVERLAPPING_BUFFERS = 3
    BAD_SIZE = 4
    BAD_KEPT = 5
    BAD_WORKSPACE = 6
    BAD_POOL = 7
    REQUIREMENT = 8
    CHECK = 9


@dataclass(frozen=True)
class EntryFault:
    """An error code that a kernel's functions may return, and its message `says`.

    `place` is the index of the buffer, size or check that the code is about.
    """

    kind: ErrorKind
    place: int
    says: str

    @property
    def code(self) -> int:
        """The number that a kernel's C functions return for this error: the kind in the low 8 bits, `place` above them.

        >>> EntryFault(ErrorKind.BAD_SIZE, 2, "K is not from 1 to 100").code
        516
        """
        return int(self.kind) | self.place << KIND_BITS
