"""The worker pool: threads that wait for a launch by looking, and fall asleep after a while.

A launch writes the function and its arguments, counts one up, runs worker 0 itself and waits until the others are done.
All of it is machine code; a thread of Python only enters it. Whoever waits gives its core away now and then: where two
threads share a core, the one that has work must get it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from typing import Any

import numpy as np

from tilewright.runtime import environment
from tilewright.targets.x86 import cpu

SPINS = 20000
"""Looks before a worker falls asleep: some hundred microseconds."""

# control block: 0 launches, 64 workers still at work, 128 function, 136 arguments, 144 workers asked for, 192 sleepers
_TEXT = """
declare i64 @syscall(i64, ...)
declare void @llvm.x86.sse2.pause()

define void @pool_worker(ptr %ctl, i64 %me) {
entry:
  %pleft = getelementptr i8, ptr %ctl, i64 64
  %pfn = getelementptr i8, ptr %ctl, i64 128
  %parg = getelementptr i8, ptr %ctl, i64 136
  %pmany = getelementptr i8, ptr %ctl, i64 144
  %psleep = getelementptr i8, ptr %ctl, i64 192
  br label %outer
outer:
  %last = phi i32 [0, %entry], [%now, %done]
  br label %look
look:
  %n = phi i64 [0, %outer], [%n1, %idle], [0, %asleep]
  %now = load atomic i32, ptr %ctl acquire, align 4
  %new = icmp ne i32 %now, %last
  br i1 %new, label %go, label %wait
wait:
  call void @llvm.x86.sse2.pause()
  %n1 = add i64 %n, 1
  %long = icmp ugt i64 %n1, SPINS
  br i1 %long, label %asleep, label %more
more:
  %low = and i64 %n1, 255
  %turn = icmp eq i64 %low, 0
  br i1 %turn, label %yield, label %idle
yield:
  %y = call i64 (i64, ...) @syscall(i64 24)
  br label %idle
idle:
  br label %look
asleep:
  %s = atomicrmw add ptr %psleep, i32 1 seq_cst
  %r = call i64 (i64, ...) @syscall(i64 202, ptr %ctl, i64 128, i32 %last, ptr null, ptr null, i64 0)
  %t = atomicrmw sub ptr %psleep, i32 1 seq_cst
  br label %look
go:
  %fn = load ptr, ptr %pfn
  %arg = load ptr, ptr %parg
  %many = load i64, ptr %pmany
  %end = icmp eq ptr %fn, null
  br i1 %end, label %quit, label %mine
mine:
  %in = icmp slt i64 %me, %many
  br i1 %in, label %call, label %done
call:
  call void %fn(ptr %arg, i64 %me, i64 %many)
  br label %done
done:
  %u = atomicrmw sub ptr %pleft, i32 1 release
  br label %outer
quit:
  %v = atomicrmw sub ptr %pleft, i32 1 release
  ret void
}

define void @pool_run(ptr %ctl, ptr %fn, ptr %arg, i64 %many, i32 %others) {
entry:
  %pleft = getelementptr i8, ptr %ctl, i64 64
  %pfn = getelementptr i8, ptr %ctl, i64 128
  %parg = getelementptr i8, ptr %ctl, i64 136
  %pmany = getelementptr i8, ptr %ctl, i64 144
  %psleep = getelementptr i8, ptr %ctl, i64 192
  store ptr %fn, ptr %pfn
  store ptr %arg, ptr %parg
  store i64 %many, ptr %pmany
  store atomic i32 %others, ptr %pleft release, align 4
  %o = atomicrmw add ptr %ctl, i32 1 seq_cst
  %sl = load atomic i32, ptr %psleep seq_cst, align 4
  %some = icmp ne i32 %sl, 0
  br i1 %some, label %wake, label %go
wake:
  %r = call i64 (i64, ...) @syscall(i64 202, ptr %ctl, i64 129, i32 2147483647, ptr null, ptr null, i64 0)
  br label %go
go:
  %end = icmp eq ptr %fn, null
  br i1 %end, label %wait, label %call
call:
  call void %fn(ptr %arg, i64 0, i64 %many)
  br label %wait
wait:
  %n = phi i64 [0, %go], [0, %call], [%n1, %again]
  %left = load atomic i32, ptr %pleft acquire, align 4
  %done = icmp eq i32 %left, 0
  br i1 %done, label %out, label %pause
pause:
  call void @llvm.x86.sse2.pause()
  %n1 = add i64 %n, 1
  %low = and i64 %n1, 255
  %turn = icmp eq i64 %low, 0
  br i1 %turn, label %yield, label %again
yield:
  %y = call i64 (i64, ...) @syscall(i64 24)
  br label %again
again:
  br label %wait
out:
  ret void
}
""".replace("SPINS", str(SPINS))


def aligned(count: int, alignment: int = 4096) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """So many bytes of zeroed memory that start at a multiple of the alignment."""
    raw = np.zeros(count + alignment, np.uint8)
    start = (-raw.ctypes.data) % alignment
    return raw[start : start + count]


class Pool:
    """The workers of this process."""

    def __init__(self, workers: int):
        from tilewright.targets.x86.load import load_text

        cpu.features()  # asks for tile registers, before threads start
        self.workers = workers
        self.code = load_text(_TEXT)
        self.control = aligned(512)
        self.address = self.control.ctypes.data
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)
        self.run = kind(self.code.address("pool_run"))
        enter = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(self.code.address("pool_worker"))
        self.enter = enter
        self.threads = [
            threading.Thread(target=enter, args=(self.address, me), daemon=True, name=f"tilewright-{me}")
            for me in range(1, workers)
        ]
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        """Ends the threads."""
        self.run(self.address, None, None, 0, self.workers - 1)


_pool: Pool | None = None
_lock = threading.Lock()


def pool() -> Pool:
    """The pool of this process; made when first asked for."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = Pool(environment.threads())
            atexit.register(_end)
        return _pool


def _end() -> None:
    global _pool
    if _pool is not None:
        _pool.stop()
        _pool = None


def _after_fork() -> None:
    global _pool, _lock
    _pool = None  # a forked process has none of the threads
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
