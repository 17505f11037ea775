"""The worker pool: threads that spin while they wait for a launch, and fall asleep after some milliseconds.

A launch writes the function and its arguments, increments a launch number, runs worker 0 itself and waits until the
other workers are done. All of it is machine code; a thread of Python only enters it. A thread that waits yields its
core now and then: if two threads share a core, the one that has work must get it.

Workers read what a launch wrote after an acquire of the launch number; the launching thread reads what workers wrote
after an acquire of the count of unfinished workers. No other memory order is assumed. A thread that is about to sleep
counts itself before it looks for a launch a last time, and a launch increments its number before it looks for sleepers.
Both are sequentially consistent, so one of them sees the other.

If PyTorch is loaded, launches run on its OpenMP threads instead (`openmp`): on as many as PyTorch would use, and at
most as many as the launch asks for. The pool's own threads sleep then.

Threads of Python may launch at the same time: launches that share workers take turns, by a lock in the control block. A
launch of one worker runs on the thread that asks for it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from tilewright.runtime import environment
from tilewright.runtime.outputs import LARGE_PAGE, private_pages
from tilewright.targets.calls import table as call_table
from tilewright.targets.cpu import calling
from tilewright.targets.cpu.host import features, host_family
from tilewright.targets.cpu.openmp import team_functions
from tilewright.targets.cpu.waiting import text_of_waiting

SPINS = 200000
"""Iterations of the waiting loop before a worker falls asleep: some milliseconds, since waking takes longer than most
kernels run."""
TEAM = 768
"""The offset in the control block of the address of the table of OpenMP's functions."""

# control block: 0 launches, 128 workers still at work, 256 function, 264 arguments, 272 workers asked for,
# 384 sleepers, 512 lock, 640 threads (0 in a forked process, and after the end: then worker 0 does everything), 768
# table of OpenMP's functions (0: there is none), one word that changes at once, since other threads may be launching;
# lines are 64 bytes long, or 128, and what different threads write lies in lines of its own
# launch record: 0 function, 8 arguments, 16 workers asked for, 24 control block, 32 lock
# `pool_tasks` is `run` of a `tw_pool` whose context is the control block: what each of its tasks gets is 0 the caller's
# task, 8 its argument, 16 workers; a worker does several tasks where there are fewer threads
# locks: 0 free, 1 held, 2 held and somebody sleeps
TEXT = """
define void @pool_worker(ptr %ctl, i64 %me) {
entry:
  %pleft = getelementptr i8, ptr %ctl, i64 128
  %pfn = getelementptr i8, ptr %ctl, i64 256
  %parg = getelementptr i8, ptr %ctl, i64 264
  %pmany = getelementptr i8, ptr %ctl, i64 272
  %psleep = getelementptr i8, ptr %ctl, i64 384
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
  call void @look_away()
  %n1 = add i64 %n, 1
  %long = icmp ugt i64 %n1, SPINS
  br i1 %long, label %asleep, label %more
more:
  %low = and i64 %n1, 255
  %turn = icmp eq i64 %low, 0
  br i1 %turn, label %yield, label %idle
yield:
  call void @give_way()
  br label %idle
idle:
  br label %look
asleep:
  %s = atomicrmw add ptr %psleep, i32 1 seq_cst
  call void @sleep_while(ptr %ctl, i32 %last)
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

define internal void @lock(ptr %m) {
entry:
  br label %try
try:
  %n = phi i64 [0, %entry], [%n1, %pause]
  %pair = cmpxchg ptr %m, i32 0, i32 1 acquire monotonic
  %got = extractvalue {i32, i1} %pair, 1
  br i1 %got, label %out, label %pause
pause:
  call void @look_away()
  %n1 = add i64 %n, 1
  %long = icmp ugt i64 %n1, 200
  br i1 %long, label %take, label %try
take:
  %old = atomicrmw xchg ptr %m, i32 2 acquire
  %free = icmp eq i32 %old, 0
  br i1 %free, label %out, label %asleep
asleep:
  call void @sleep_while(ptr %m, i32 2)
  br label %take
out:
  ret void
}

define internal void @unlock(ptr %m) {
entry:
  %old = atomicrmw xchg ptr %m, i32 0 release
  %some = icmp eq i32 %old, 2
  br i1 %some, label %wake, label %out
wake:
  call void @wake(ptr %m, i32 1)
  br label %out
out:
  ret void
}

define internal void @team_member(ptr %record) {
entry:
  %qarg = getelementptr i8, ptr %record, i64 8
  %qmany = getelementptr i8, ptr %record, i64 16
  %qctl = getelementptr i8, ptr %record, i64 24
  %fn = load ptr, ptr %record
  %arg = load ptr, ptr %qarg
  %asked = load i64, ptr %qmany
  %ctl = load ptr, ptr %qctl
  %ptable = getelementptr i8, ptr %ctl, i64 768
  %table = load atomic ptr, ptr %ptable acquire, align 8
  %pme = getelementptr i8, ptr %table, i64 8
  %pcount = getelementptr i8, ptr %table, i64 16
  %get_me = load ptr, ptr %pme
  %get_count = load ptr, ptr %pcount
  %me32 = call i32 %get_me()
  %count32 = call i32 %get_count()
  %me = zext i32 %me32 to i64
  %count = zext i32 %count32 to i64
  %fewer = icmp ult i64 %count, %asked
  %many = select i1 %fewer, i64 %count, i64 %asked
  %in = icmp ult i64 %me, %many
  br i1 %in, label %call, label %out
call:
  call void %fn(ptr %arg, i64 %me, i64 %many)
  br label %out
out:
  ret void
}

define void @pool_run(ptr %record) {
entry:
  %qarg = getelementptr i8, ptr %record, i64 8
  %qmany = getelementptr i8, ptr %record, i64 16
  %qctl = getelementptr i8, ptr %record, i64 24
  %fn = load ptr, ptr %record
  %arg = load ptr, ptr %qarg
  %many = load i64, ptr %qmany
  %ctl = load ptr, ptr %qctl
  %single = icmp eq i64 %many, 1
  br i1 %single, label %one, label %several
one:
  %qlock = getelementptr i8, ptr %record, i64 32
  call void @lock(ptr %qlock)
  call void %fn(ptr %arg, i64 0, i64 1)
  call void @unlock(ptr %qlock)
  ret void
several:
  %plock = getelementptr i8, ptr %ctl, i64 512
  %pthreads = getelementptr i8, ptr %ctl, i64 640
  %pleft = getelementptr i8, ptr %ctl, i64 128
  %pfn = getelementptr i8, ptr %ctl, i64 256
  %parg = getelementptr i8, ptr %ctl, i64 264
  %pmany = getelementptr i8, ptr %ctl, i64 272
  %psleep = getelementptr i8, ptr %ctl, i64 384
  call void @lock(ptr %plock)
  %end = icmp eq ptr %fn, null
  %others = load atomic i32, ptr %pthreads acquire, align 4
  %alone = icmp eq i32 %others, 0
  br i1 %alone, label %lonely, label %threads
lonely:
  br i1 %end, label %out, label %all
all:
  call void %fn(ptr %arg, i64 0, i64 1)
  br label %out
threads:
  %ptable = getelementptr i8, ptr %ctl, i64 768
  %table = load atomic ptr, ptr %ptable acquire, align 8
  %apart = icmp eq ptr %table, null
  %pool = or i1 %apart, %end
  br i1 %pool, label %start, label %openmp
openmp:
  %pmost = getelementptr i8, ptr %table, i64 24
  %team = load ptr, ptr %table
  %get_most = load ptr, ptr %pmost
  %most = call i32 %get_most()
  call void %team(ptr @team_member, ptr %record, i32 %most, i32 0)
  br label %out
start:
  store ptr %fn, ptr %pfn
  store ptr %arg, ptr %parg
  store i64 %many, ptr %pmany
  store atomic i32 %others, ptr %pleft release, align 4
  %o = atomicrmw add ptr %ctl, i32 1 seq_cst
  %sl = load atomic i32, ptr %psleep seq_cst, align 4
  %some = icmp ne i32 %sl, 0
  br i1 %some, label %wake, label %go
wake:
  call void @wake(ptr %ctl, i32 2147483647)
  br label %go
go:
  br i1 %end, label %wait, label %call
call:
  call void %fn(ptr %arg, i64 0, i64 %many)
  br label %wait
wait:
  %n = phi i64 [0, %go], [0, %call], [%n1, %again]
  %left = load atomic i32, ptr %pleft acquire, align 4
  %done = icmp eq i32 %left, 0
  br i1 %done, label %finished, label %pause
pause:
  call void @look_away()
  %n1 = add i64 %n, 1
  %low = and i64 %n1, 255
  %turn = icmp eq i64 %low, 0
  br i1 %turn, label %yield, label %again
yield:
  call void @give_way()
  br label %again
again:
  br label %wait
finished:
  br i1 %end, label %ended, label %out
ended:
  store atomic i32 0, ptr %pthreads release, align 4
  br label %out
out:
  call void @unlock(ptr %plock)
  ret void
}

define internal void @pool_task(ptr %given, i64 %me, i64 %many) {
entry:
  %pargument = getelementptr i8, ptr %given, i64 8
  %pworkers = getelementptr i8, ptr %given, i64 16
  %task = load ptr, ptr %given
  %argument = load ptr, ptr %pargument
  %workers = load i64, ptr %pworkers
  br label %look
look:
  %worker = phi i64 [%me, %entry], [%next, %call]
  %some = icmp slt i64 %worker, %workers
  br i1 %some, label %call, label %done
call:
  %number = trunc i64 %worker to i32
  call void %task(ptr %argument, i32 %number)
  %next = add i64 %worker, %many
  br label %look
done:
  ret void
}

define void @pool_tasks(ptr %control, ptr %task, ptr %argument, i32 %workers) {
entry:
  %given = alloca [24 x i8], align 8
  %record = alloca [40 x i8], align 8
  %many = sext i32 %workers to i64
  %given1 = getelementptr i8, ptr %given, i64 8
  %given2 = getelementptr i8, ptr %given, i64 16
  store ptr %task, ptr %given
  store ptr %argument, ptr %given1
  store i64 %many, ptr %given2
  %record1 = getelementptr i8, ptr %record, i64 8
  %record2 = getelementptr i8, ptr %record, i64 16
  %record3 = getelementptr i8, ptr %record, i64 24
  %record4 = getelementptr i8, ptr %record, i64 32
  store ptr @pool_task, ptr %record
  store ptr %given, ptr %record1
  store i64 %many, ptr %record2
  store ptr %control, ptr %record3
  store i64 0, ptr %record4
  call void @pool_run(ptr %record)
  ret void
}
""".replace("SPINS", str(SPINS))


def aligned(count: int, alignment: int = 4096) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return an array of `count` zero bytes with an address that is a multiple of `alignment`.

    An array of at least an eighth of a large page is aligned to large pages instead. It lies in such pages if the
    system has them, so that strided rows need fewer TLB entries. A forked process gets a copy of its memory.
    """
    if count >= LARGE_PAGE // 8:
        alignment = LARGE_PAGE
        raw = np.frombuffer(private_pages(-(-count // LARGE_PAGE) * LARGE_PAGE + LARGE_PAGE), np.uint8)
    else:
        raw = np.zeros(count + alignment, np.uint8)
    start = (-raw.ctypes.data) % alignment
    return raw[start : start + count]


class PoolCode(Protocol):
    """Machine code of the functions that threads and launches call."""

    def address(self, name: str) -> int:
        """Return the address of the native function `name`, such as "pool_run" or "pool_worker". Protocol method."""


class LockedLaunch(Protocol):
    """A launch with a lock: one thread at a time makes it."""

    def unlock(self) -> None:
        """Release the lock of the launch. A forked process calls it, because the thread that held the lock does not
        exist there. Protocol method.
        """


def _generate_pool_code() -> PoolCode:
    """Return the linked machine code of the worker pool for the CPU at hand. Its object code comes from the disk cache,
    or is compiled.
    """
    from tilewright.targets.cpu.load import load_text

    return load_text(text_of_waiting(host_family()) + TEXT + calling.TEXT)


class Pool:
    """The worker threads of this process, and the control block by which launches reach them."""

    def __init__(self, workers: int, code: PoolCode | None = None):
        """Start `workers` - 1 threads. `code` is the linked machine code of `TEXT` (None: compile it or load it from
        the cache). On CPUs with AMX, permission to use tile registers is requested before the threads start.
        """
        features()  # asks for tile registers, before threads start
        self.workers = workers
        self.code = _generate_pool_code() if code is None else code
        self.control = aligned(1024)
        self.address = self.control.ctypes.data
        self.run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.code.address("pool_run"))
        self.enter = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(self.code.address("pool_worker"))
        self.launches: weakref.WeakSet[LockedLaunch] = weakref.WeakSet()
        self.owner = 0
        self.team: np.ndarray[Any, np.dtype[np.uint64]] | None = None
        self.start()

    def start(self) -> None:
        """Start the worker threads in the current process. If the system refuses to start a thread, the pool has fewer
        workers; `self.workers` is their number, including the launching thread.
        """
        self.owner = os.getpid()
        count = 0
        with suppress(RuntimeError):
            for me in range(1, self.workers):
                threading.Thread(
                    target=self.enter, args=(self.address, me), daemon=True, name=f"tilewright-{me}"
                ).start()
                count += 1
        self.workers = count + 1
        self.control[640:644].view(np.uint32)[0] = count

    def add(self, launch: LockedLaunch) -> None:
        """Register `launch`, so that its lock is released in a forked process. Then call `join_openmp`."""
        self.join_openmp()
        self.launches.add(launch)

    def join_openmp(self) -> None:
        """Let all later launches run on the OpenMP threads of PyTorch, if PyTorch is imported and has OpenMP. Do
        nothing if they already do, or if the pool's threads were started by another process (before a fork).
        """
        if self.team is None and self.owner == os.getpid():
            self.team = team_functions()
            if self.team is not None:
                self.control[TEAM : TEAM + 8].view(np.uint64)[0] = self.team.ctypes.data

    def stop(self) -> None:
        """End the worker threads. Later launches run on the calling thread alone."""
        record = aligned(64, 64).view(np.uint64)  # without a function
        record[2:4] = [self.workers + 1, self.address]
        self.run(record.ctypes.data)

    def after_fork(self) -> None:
        """Reset the pool in a forked process, where its threads do not exist: clear the control block, and release the
        locks of all launches. No threads are started.
        """
        self.control[:] = 0
        self.team = None
        for launch in list(self.launches):
            launch.unlock()
        self.owner = 0


_pool: Pool | None = None
_lock = threading.Lock()


def pool() -> Pool:
    """Return the pool of worker threads of this process. The first call creates it, with `environment.threads()`
    workers. The first call after a fork starts its threads again.
    """
    global _pool
    with _lock:
        if _pool is None:
            _pool = Pool(environment.threads())
            atexit.register(_pool.stop)
        elif _pool.owner != os.getpid():
            _pool.start()
        return _pool


def _after_fork() -> None:
    """Replace this module's lock in a forked process. If there is a pool, reset it, and drop all remembered calls."""
    global _lock
    _lock = threading.Lock()
    if _pool is not None:
        _pool.after_fork()
        call_table.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
