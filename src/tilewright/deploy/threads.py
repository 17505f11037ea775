"""The worker pool of loaded kernels, as the C interface takes it.

An exported object contains the machine code of the worker pool, so its launches are as fast as those of a compiled
kernel. All loaded kernels share one pool; its code is that of the kernel that was loaded first.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from tilewright.targets.cpu.pool import Pool, PoolCode

_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)
_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)


class PoolStruct(ctypes.Structure):
    """The C structure `tw_pool`."""

    _fields_ = (("context", ctypes.c_void_p), ("run", ctypes.c_void_p), ("workers", ctypes.c_int32))


class LoadedCode(PoolCode, Protocol):
    """The machine code of the pool in a loaded library; `run` is the address of the function `run` of `tw_pool`."""

    run: int


class LoadedPool:
    """A pool of `workers` threads that run the pool code of a loaded library."""

    def __init__(self, workers: int, code: LoadedCode):
        self.pool = Pool(workers, code)
        self.struct = PoolStruct(self.pool.address, code.run, self.pool.workers)

    def ready(self) -> None:
        """Start the threads if this process has none, because it was forked after they were started. Otherwise do
        nothing."""
        if self.pool.owner != os.getpid():
            self.pool.start()

    def after_fork(self) -> None:
        """Forget the parent's threads in a forked process, where they do not run; `ready` starts new ones."""
        self.pool.after_fork()

    def stop(self) -> None:
        """End the threads. Do nothing in a forked process that has not started threads."""
        if self.pool.owner == os.getpid():
            self.pool.stop()


class PythonPool:
    """A pool of Python threads, for libraries without pool code; the calling thread is worker 0."""

    def __init__(self, workers: int):
        self.workers = workers
        self._call = _RUN(self._run)
        self.struct = PoolStruct(None, ctypes.cast(self._call, ctypes.c_void_p), workers)
        self.after_fork()

    def ready(self) -> None:
        """Do nothing: the threads start on demand."""

    def after_fork(self) -> None:
        """Create the pool of Python threads. This is called at the start, and in a forked process, which has no
        threads."""
        self._threads = ThreadPoolExecutor(max(1, self.workers - 1), "tilewright-loaded")

    def stop(self) -> None:
        """End the Python threads."""
        self._threads.shutdown()

    def _run(self, _: int | None, task: int, argument: int, workers: int) -> None:
        """Call the C function at the address `task` once for each of `workers` workers, in parallel. Return when all
        have returned.

        A call gets the pointer `argument` and the number of its worker, from 0 on. Worker 0 is the calling thread. The
        first parameter is not used.
        """
        call = _TASK(task)
        others = [self._threads.submit(call, argument, worker) for worker in range(1, workers)]
        call(argument, 0)
        for other in others:
            other.result()


_pools: dict[tuple[bool, int], LoadedPool | PythonPool] = {}
_lock = threading.Lock()


def thread_pool(workers: int, code: LoadedCode | None) -> Any:
    """Return a pointer to this process's C structure `tw_pool` with `workers` threads; None if `workers` is 1.

    One pool for each number of workers is created at its first use, and shared by all loaded kernels. `code` is the
    machine code of the pool in a kernel's library. A pool that exists keeps the code of the library that created it. If
    `code` is None, the pool has Python threads.
    """
    if workers == 1:
        return None
    with _lock:
        key = code is not None, workers
        if key not in _pools:
            _pools[key] = PythonPool(workers) if code is None else LoadedPool(workers, code)
            atexit.register(_pools[key].stop)
        pool = _pools[key]
        pool.ready()
        return ctypes.pointer(pool.struct)


def _after_fork() -> None:
    """Replace the lock in a forked process, and make every pool forget the parent's threads."""
    global _lock
    _lock = threading.Lock()
    for pool in _pools.values():
        pool.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
