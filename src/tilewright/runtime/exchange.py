"""DLPack's exchange functions: what a library tells of its arrays, and of its streams, without going through Python."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

_NAME = "__dlpack_c_exchange_api__"
_MAJOR = 1


class _Table(ctypes.Structure):
    """DLPack's DLPackExchangeAPI, as far as it is used."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("before", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("export", ctypes.c_void_p),
        ("bring_in", ctypes.c_void_p),
        ("look", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    )


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@dataclass(frozen=True)
class Exchange:
    """Addresses of two functions of a library.

    `look(object, DLTensor *)` describes an array, which stays its owner's; `current_stream(kind, number, void **)`
    gives the stream that work on a device goes to. Both answer 0, or leave a Python error.
    """

    look: int
    current_stream: int


def exchange_of(kind: Any) -> Exchange | None:
    """The functions of an array type; None: its library has none, or of another version.

    >>> exchange_of(int) is None
    True
    """
    capsule = getattr(kind, _NAME, None)
    if type(capsule).__name__ != "PyCapsule":
        return None
    at = _pointer(capsule, b"dlpack_exchange_api")
    while at:
        table = _Table.from_address(at)
        if table.major == _MAJOR:
            found = Exchange(table.look or 0, table.current_stream or 0)
            return found if found.look and found.current_stream else None
        at = table.before
    return None
