"""LLVM IR by which the pool's threads wait: a pause within a spin loop, yielding the core, and sleeping.

`@sleep_while(p, n)` returns when the word at p may no longer be n: it may return too early, but never more than a
moment too late. Linux has a system call for it (futex), whose number differs between architectures; on systems without
it a thread sleeps for a millisecond and looks again.
"""

from __future__ import annotations

import sys

from tilewright.targets.cpu.family import Family

_WAIT, _WAKE = 128, 129  # the system call's operations, for threads of one process

_FUTEX = """declare i64 @syscall(i64, ...)
define internal void @sleep_while(ptr %p, i32 %n) {{
  %r = call i64 (i64, ...) @syscall(i64 {number}, ptr %p, i64 {wait}, i32 %n, ptr null, ptr null, i64 0)
  ret void
}}
define internal void @wake(ptr %p, i32 %count) {{
  %r = call i64 (i64, ...) @syscall(i64 {number}, ptr %p, i64 {wake}, i32 %count, ptr null, ptr null, i64 0)
  ret void
}}
"""
_NAPS = """declare {result} @{function}(i32)
define internal void @sleep_while(ptr %p, i32 %n) {{
  %r = call {result} @{function}(i32 {moment})
  ret void
}}
define internal void @wake(ptr %p, i32 %count) {{
  ret void
}}
"""
_WINDOWS_NAPS = """declare void @Sleep(i32)
define internal void @sleep_while(ptr %p, i32 %n) {
  call void @Sleep(i32 1)
  ret void
}
define internal void @wake(ptr %p, i32 %count) {
  ret void
}
"""


def text_of_waiting(family: Family, system: str = sys.platform) -> str:
    """Return LLVM text of the four functions with which threads wait on CPUs of `family`: `look_away` (pause),
    `give_way` (yield the core), `sleep_while` and `wake`. `system` is the operating system, as `sys.platform` names it.
    On systems other than Linux, and if the family's futex number is unknown, `sleep_while` sleeps for one millisecond.

    >>> from tilewright.targets.cpu.families import family
    >>> "i64 98, ptr %p" in text_of_waiting(family("aarch64"), "linux")
    True
    >>> "usleep" in text_of_waiting(family("aarch64"), "darwin")
    True
    """
    yielding = ("i32", "SwitchToThread") if system == "win32" else ("i32", "sched_yield")
    if system == "linux" and family.futex is not None:
        sleeping = _FUTEX.format(number=family.futex, wait=_WAIT, wake=_WAKE)
    elif system == "win32":
        sleeping = _WINDOWS_NAPS
    else:
        sleeping = _NAPS.format(result="i32", function="usleep", moment=1000)
    return f"""{family.declares}
declare {yielding[0]} @{yielding[1]}()
define internal void @look_away() alwaysinline {{
  {family.pause}
  ret void
}}
define internal void @give_way() {{
  %r = call {yielding[0]} @{yielding[1]}()
  ret void
}}
{sleeping}"""


CALLS = "pool_calls"
"""The LLVM variable with the addresses of `syscall` and `sched_yield`, for code without a library."""

_BY_ADDRESS = f"""@{CALLS} = internal global [2 x ptr] zeroinitializer, align 8
{{declares}}
define internal void @look_away() alwaysinline nounwind {{{{
  {{pause}}
  ret void
}}}}
define internal void @give_way() nounwind {{{{
  %at = getelementptr i8, ptr @{CALLS}, i64 8
  %yield = load ptr, ptr %at
  %r = call i32 %yield()
  ret void
}}}}
define internal void @sleep_while(ptr %p, i32 %n) nounwind {{{{
  %call = load ptr, ptr @{CALLS}
  %r = call i64 (i64, ...) %call(i64 {{number}}, ptr %p, i64 {_WAIT}, i32 %n, ptr null, ptr null, i64 0)
  ret void
}}}}
define internal void @wake(ptr %p, i32 %count) nounwind {{{{
  %call = load ptr, ptr @{CALLS}
  %r = call i64 (i64, ...) %call(i64 {{number}}, ptr %p, i64 {_WAKE}, i32 %count, ptr null, ptr null, i64 0)
  ret void
}}}}
"""


def text_without_library(family: Family) -> str | None:
    """Return LLVM text of the same functions as `text_of_waiting` for Linux, for code that is linked to no library. The
    functions call `syscall` and `sched_yield` at the addresses in the variable @pool_calls. Return None if the futex
    number of `family` is unknown.
    """
    if family.futex is None:
        return None
    return _BY_ADDRESS.format(declares=family.declares, pause=family.pause, number=family.futex)
