"""DLPack's C exchange functions: descriptions of a library's arrays and streams, without calls of Python."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

_NAME = "__dlpack_c_exchange_api__"
_MAJOR = 1


class _Table(ctypes.Structure):
    """The fields of DLPack's DLPackExchangeAPI that are used, and those before them."""

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
    """The addresses of two C functions of an array library.

    `look(object, DLTensor *)` describes an array without taking ownership. `current_stream(kind, number, void **)`
    returns the stream that work on a device goes to. Both return 0, or set a Python error.
    """

    look: int
    current_stream: int


def exchange_of(kind: Any) -> Exchange | None:
    """Return the addresses of two DLPack exchange functions, `look` and `current_stream`, of `kind`, an array class
    such as torch.Tensor.

    Return None if the class has no exchange functions, or none of this major version of DLPack, or if one of the two is
    missing.

    >>> exchange_of(int) is None
    True
    """
    capsule = getattr(kind, _NAME, None)
    if type(capsule).__name__ != "PyCapsule":
        return None
    address = _pointer(capsule, b"dlpack_exchange_api")
    while address:
        table = _Table.from_address(address)
        if table.major == _MAJOR:
            exchange = Exchange(table.look or 0, table.current_stream or 0)
            return exchange if exchange.look and exchange.current_stream else None
        address = table.before
    return None
