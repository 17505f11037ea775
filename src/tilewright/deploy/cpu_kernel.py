"""Loaded kernels for CPUs: their C functions are called with the addresses of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from tilewright.codegen.entry.abi import KIND_BITS, ErrorKind
from tilewright.deploy.cpu_library import KernelLibrary, Lent
from tilewright.deploy.loaded import Call, LoadedKernel
from tilewright.deploy.threads import thread_pool
from tilewright.errors import ArgumentError, ExecutionError
from tilewright.runtime import environment
from tilewright.runtime.arguments import Arguments

Array = np.ndarray[Any, np.dtype[Any]]


class LoadedCpuKernel(LoadedKernel):
    """An exported kernel, loaded on this CPU, whose calls use `workers` threads (None: one for each core, or
    TILEWRIGHT_THREADS).
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any], workers: int | None):
        self.library = KernelLibrary(path, manifest)
        super().__init__(path, manifest)
        self.workers = environment.threads() if workers is None else workers
        self._written = {a["name"] for a in manifest["arguments"] if a["role"] != "in"}
        self._last: tuple[bytes, Array, Array] | None = None

    def launch(self, bound: Arguments, sizes: Mapping[str, int], *, passing: bool) -> Call:
        """Return a function that calls the kernel's C function on `bound`, a call's checked arguments.

        Work on constant arguments (the C function `NAME_bind`) is done now. `sizes` is {name: value} of the open sizes
        (known only at the call), in the manifest's order. With `passing`, the caller promises to call the function
        once, right away. Errors that a C function reports, here or in a call, are raised as ArgumentError or
        ExecutionError.
        """
        return _Launch(self, bound, np.array(list(sizes.values()), np.int64), passing)

    def memory(self, sizes: Array, passing: bool) -> tuple[Array, Array]:
        """Return (kept, workspace), two byte arrays with the memory that the C functions need, of the lengths that they
        ask for.

        `kept` is filled by `NAME_bind` and read by calls; `workspace` is scratch memory. `sizes` is an i64 array of the
        open sizes. With `passing`, the arrays are reused if the last `passing` call had the same sizes; otherwise they
        are new.
        """
        key = sizes.tobytes()
        if not passing or self._last is None or self._last[0] != key:
            memory = self.library.kept(sizes), self.library.workspace(sizes, self.workers)
            if not passing:
                return memory
            self._last = (key, *memory)
        return self._last[1:]

    def is_written(self, name: str) -> bool:
        """True if the kernel writes its argument `name`."""
        return name in self._written

    def refuse(self, code: int) -> None:
        """Raise the error for `code`, which a C function of the kernel returned. Do nothing for 0.

        It is ExecutionError for a failed check of the program, else ArgumentError. The manifest has the message.
        """
        if code == 0:
            return
        says = self.manifest["errors"].get(str(code), f"its code returned {code}")
        if code & (1 << KIND_BITS) - 1 == ErrorKind.CHECK:
            raise ExecutionError(says)
        raise ArgumentError(f"{self.name}: {says}")


class _Launch:
    """A function that runs a kernel on checked arguments, for one thread at a time.

    It has memory of its own for the kernel's C functions. With `passing`, it uses the memory that the kernel keeps for
    calls with the same sizes.
    """

    def __init__(self, kernel: LoadedCpuKernel, bound: Arguments, sizes: Array, passing: bool):
        self.kernel, self._lock = kernel, Lock()
        self._arrays: list[Array] = []
        self._copies: list[tuple[Array, Array, bool]] = []
        for value in kernel.arguments:
            array = np.asarray(bound.values[value]).astype(value.type.dtype.numpy, copy=False)
            placed = array if array.flags.c_contiguous and array.flags.aligned else np.array(array, order="C")
            if placed is not array:
                self._copies.append((array, placed, kernel.is_written(value.name or "")))
            self._arrays.append(placed)
        buffers = np.array([a.ctypes.data for a in self._arrays], np.uint64)
        self._memory = (buffers, sizes, *kernel.memory(sizes, passing))
        first, second, kept, workspace = (a.ctypes.data for a in self._memory)
        self._lent: Lent = (first, second, kept, workspace, thread_pool(kernel.workers, kernel.library.pool))
        if kernel.library.binds:
            kernel.refuse(kernel.library.bind(self._lent))

    def __call__(self) -> None:
        """Run the kernel on the current contents of its arguments, and copy back arguments that had to be copied."""
        with self._lock:
            for array, placed, _ in self._copies:
                placed[...] = array
            self.kernel.refuse(self.kernel.library.call(self._lent))
            for array, placed, is_written in self._copies:
                if is_written:
                    array[...] = placed
