"""The OpenMP threads of PyTorch: if PyTorch is loaded, the pool's launches run on them.

Threads of both wait by spinning. Two sets of them on the same cores would take turns by the system's time slices, some
milliseconds each, whenever an operator of one follows an operator of the other.

A forked child has none of its parent's threads, but its OpenMP library still counts on them and waits for them forever.
A process that was forked and has not called exec since therefore never uses OpenMP here.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FUNCTIONS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads")
"""OpenMP functions: run a function on a team of threads; number of this thread; size of its team; largest team."""
STATUS = Path("/proc/self/stat")
_FORKED_WITHOUT_EXEC = 0x40  # Linux's PF_FORKNOEXEC
_FLAGS_FIELD = 6  # after the process's name, which ends with the last parenthesis


def team_functions() -> np.ndarray[Any, np.dtype[np.uint64]] | None:
    """Return the addresses of FUNCTIONS, in order, in the OpenMP library that PyTorch uses. Return None if PyTorch is
    not completely imported, if it has no OpenMP, or if this process was forked (see `is_forked`).
    """
    torch = sys.modules.get("torch")
    if torch is None or getattr(getattr(torch, "__spec__", None), "_initializing", False):
        return None
    return None if is_forked() else _functions_of(str(getattr(torch, "__file__", None)))


@cache
def _functions_of(package: str) -> np.ndarray[Any, np.dtype[np.uint64]] | None:
    """Return the addresses of FUNCTIONS, in order, in the OpenMP library of PyTorch. `package` is the path of the
    `__init__.py` of torch. Return None if PyTorch's library is not loaded or has no OpenMP.

    A process may contain several OpenMP libraries. The names are therefore looked up through PyTorch's library.
    """
    library = Path(package).parent / "lib" / "libtorch_cpu.so"
    if not library.exists():
        return None
    try:
        loaded = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        addresses = [ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value or 0 for name in FUNCTIONS]
    except (OSError, AttributeError):  # it is not loaded; it was built without OpenMP
        return None
    return np.array(addresses, np.uint64)


_is_child = False


def _after_fork() -> None:
    """Record that this process is a forked child. Python calls this function in the child after a fork."""
    global _is_child
    _is_child = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def is_forked() -> bool:
    """True if this process was forked and has not called exec since then. True also if Linux's process flags cannot be
    read, as on other systems. The flags show forks before this module was imported.
    """
    try:
        fields = STATUS.read_text().rpartition(")")[2].split()
    except OSError:
        return True
    return _is_child or bool(int(fields[_FLAGS_FIELD]) & _FORKED_WITHOUT_EXEC)
