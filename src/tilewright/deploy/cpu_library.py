"""Loading of an exported kernel's C functions into this process, from a library or an object that is linked here."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.deploy.manifest import read_code
from tilewright.errors import ManifestError, TargetError
from tilewright.runtime.arrays import empty
from tilewright.targets.cpu.host import features
from tilewright.targets.cpu.objects import shared_library
from tilewright.targets.cpu.own_pool import ENTRIES

Array = np.ndarray[Any, np.dtype[Any]]
Lent = tuple[int, int, int, int, Any]
"""The arguments of a C function: addresses of the buffers' pointers, sizes, `kept` and workspace, and the pool."""


def require_machine(manifest: Mapping[str, Any]) -> None:
    """Raise TargetError if this CPU or system cannot run the code that `manifest` describes. The message says what is
    missing."""
    name, machine = manifest["name"], manifest["machine"]
    here = platform.machine()
    if here not in machine["architectures"]:
        raise TargetError(
            f"{name}: code for {machine['name']} does not run here: this CPU is {here}; it needs "
            f"{' or '.join(machine['architectures'])}. Export it with target='cpu:...' for this machine"
        )
    lacking = sorted(set(machine["features"]) - features())
    if lacking:
        raise TargetError(
            f"{name}: code for {machine['name']} does not run here: this CPU is without {', '.join(lacking)}. Export "
            "it with target='cpu:...' for a machine that needs no more than this one has"
        )
    if sys.platform != "linux":
        raise TargetError(f"{name}: its code is in ELF files, which {sys.platform} does not load")


class LibraryPool:
    """The machine code of the worker pool in a kernel's library; `name` is the kernel's."""

    def __init__(self, library: ctypes.CDLL, name: str):
        self._library, self._name = library, name
        self.run = self._address("pool_run")
        system = ctypes.CDLL(None)
        calls = [ctypes.cast(system[call], ctypes.c_void_p) for call in ("syscall", "sched_yield")]
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(self._address("pool_setup"))(*calls)

    def address(self, name: str) -> int:
        """Return the address of a C function of the worker pool. `name` is a key of `ENTRIES`, such as
        "pool_worker"."""
        return self._address(ENTRIES[name])

    def _address(self, what: str) -> int:
        """Return the address of the library's C function KERNEL_WHAT, where KERNEL is the kernel's name and WHAT is
        `what`."""
        return ctypes.cast(self._library[f"{self._name}_{what}"], ctypes.c_void_p).value or 0


class KernelLibrary:
    """The C functions of a kernel, loaded into this process. docs/deploying_c.md describes their arguments."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]):
        self.manifest, name = manifest, manifest["name"]
        require_machine(manifest)
        code = read_code(path, manifest)
        if manifest["kind"] == "object":
            code = shared_library(code, f"{name}.so")
        self._library = _opened(code, name)
        self._call, self._bind = self._function(name), self._function(f"{name}_bind")
        self._kept_bytes = self._function(f"{name}_kept_bytes", ctypes.c_int64, 1)
        self._workspace_bytes = self._function(f"{name}_workspace_bytes", ctypes.c_int64, 1, ctypes.c_int32)
        self.pool = LibraryPool(self._library, name) if hasattr(self._library, f"{name}_pool_run") else None
        """The machine code of the worker pool; None if the library has none."""
        self.binds = any(argument["bound"] for argument in manifest["arguments"])

    def _function(self, name: str, result: Any = ctypes.c_int32, pointers: int = 5, *more: Any) -> Any:
        """Return the C function `name` of the library as a Python function. Raise ManifestError if it is missing.

        `result` is its C return type. It takes `pointers` pointers, then arguments of the C types `more`.
        """
        try:
            function = self._library[name]
        except AttributeError:
            raise ManifestError(f"{self.manifest['file']} has no function {name}; export the kernel again") from None
        function.restype, function.argtypes = result, (*[ctypes.c_void_p] * pointers, *more)
        return function

    def kept(self, sizes: Array) -> Array:
        """Return new memory, as a byte array, that the C function `NAME_bind` fills and calls read.

        Its length is what the kernel's C function asks for, at least 1. `sizes` is an i64 array of the open sizes.
        """
        return empty((max(1, self._kept_bytes(sizes.ctypes.data)),), np.uint8)

    def workspace(self, sizes: Array, workers: int) -> Array:
        """Return new scratch memory, as a byte array, for one call at a time with `workers` threads.

        Its length is what the kernel's C function asks for, at least 1. `sizes` is an i64 array of the open sizes.
        """
        return empty((max(1, self._workspace_bytes(sizes.ctypes.data, workers)),), np.uint8)

    def bind(self, lent: Lent) -> int:
        """Call the C function `NAME_bind`, which does the work on constant arguments, and return its error code; 0 is
        success.

        `lent` has its arguments: addresses of the buffers' pointers, the sizes and the memory, and the thread pool.
        """
        return int(self._bind(*lent))

    def call(self, lent: Lent) -> int:
        """Call the kernel's C function and return its error code; 0 is success.

        `lent` has its arguments: addresses of the buffers' pointers, the sizes and the memory, and the thread pool.
        """
        return int(self._call(*lent))


_opened_before = count()


def _own_path(handle: int) -> str:
    """Return a path of the open file with descriptor `handle`. Every call returns a different path.

    The system's loader returns the same library for equal paths, even if the file is another one. Different paths avoid
    this.

    >>> _own_path(7) != _own_path(7)
    True
    """
    digits = f"{next(_opened_before):b}"
    return "/proc/self/fd/" + "".join("./" if digit == "0" else "../fd/" for digit in digits) + str(handle)


def _opened(code: bytes, name: str) -> ctypes.CDLL:
    """Load a shared library from its content `code`, through an anonymous file in memory, and return it.

    Raise ManifestError, which names the kernel `name`, if the system does not load it.
    """
    handle = os.memfd_create(f"tilewright-{name}")
    try:
        with open(handle, "wb", closefd=False) as file:
            file.write(code)
        return ctypes.CDLL(_own_path(handle))
    except OSError as fault:
        raise ManifestError(f"{name}: the system does not load its code: {fault}") from None
    finally:
        os.close(handle)
