"""The C interface of an exported kernel: its functions' arguments, and the codes that they return.

All five functions of a kernel NAME are described in docs/deploying.md. A code of 0 means that all went well. Any other
code has its kind in the low 8 bits and, above them, which buffer, size or check it is about.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

FORMAT = 1
"""The version of the interface and of the manifest; files of another version are not loaded."""
ALIGNMENT = 64
"""Bytes: `kept` and `workspace` lie at a multiple of this."""
KIND_BITS = 8


class ErrorKind(IntEnum):
    """The kinds of codes other than 0."""

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
    """A code that the functions may return, and the sentence that it stands for."""

    kind: ErrorKind
    place: int
    says: str

    @property
    def code(self) -> int:
        """The number that is returned.

        >>> EntryFault(ErrorKind.BAD_SIZE, 2, "K is not from 1 to 100").code
        516
        """
        return int(self.kind) | self.place << KIND_BITS
