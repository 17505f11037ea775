"""Threads for loaded kernels: a pool as the C interface takes it, of threads of this process."""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from tilewright.runtime import environment

_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)
_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)


class PoolStruct(ctypes.Structure):
    """`tw_pool`."""

    _fields_ = (("context", ctypes.c_void_p), ("run", _RUN), ("workers", ctypes.c_int32))


class ThreadPool:
    """Threads of Python that run the workers of a launch; the calling thread is worker 0."""

    def __init__(self, workers: int):
        self.workers = workers
        self._threads = ThreadPoolExecutor(max(1, workers - 1), "tilewright-loaded")
        self.struct = PoolStruct(None, _RUN(self._run), workers)

    def _run(self, _: int | None, task: int, argument: int, workers: int) -> None:
        call = _TASK(task)
        others = [self._threads.submit(call, argument, worker) for worker in range(1, workers)]
        call(argument, 0)
        for other in others:
            other.result()


@cache
def _pool_of(process: int, workers: int) -> ThreadPool:
    return ThreadPool(workers)


def thread_pool(workers: int | None = None) -> Any:
    """The pool of this process, as C takes it: a pointer to it, or None where there is one worker."""
    count = environment.threads() if workers is None else workers
    if count == 1:
        return None
    return ctypes.pointer(_pool_of(os.getpid(), count).struct)
