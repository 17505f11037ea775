"""Starting kernels: one native function, made once, that Python calls as it calls a builtin.

A *record* says all that a launch needs: the driver's function, a launch configuration, the kernel's arguments as they
stand in memory. Without arguments the function starts the kernel on the tensors it was bound to, with addresses on
those; calls like one before (`targets.calls`) start it so. A record may name the next one, so that all launches of a
host program are one call. All that changes is changed in copies on the stack, so threads may start the same record at a
time; other threads of Python run while the driver is at work.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tilewright.targets.calls import following
from tilewright.targets.calls.following import LAUNCH_UNLIKE
from tilewright.targets.calls.llvm_text import fields, loop, row
from tilewright.targets.calls.words import PATCH
from tilewright.targets.cpu.load import link, object_of

MAP_ALIGNMENT = 64
CONFIG_WORDS = 7

FIELDS = (
    "launch", "function", "config",  # cuLaunchKernelEx, and what it is given
    "template", "bytes", "offsets", "parameters",  # the arguments, and where each begins
    "current", "device", "stream",  # what tells the current stream of a device; the stream where nothing does
    "capturing",  # cuStreamIsCapturing, where a launch of the chain has counters: a CUDA graph has its own
    "counters", "counters_at", "counters_base", "counters_step", "counters_most",
    "patches", "patched",  # (tensor, offset) of every address among the arguments
    "maps", "mapped", "readdress",  # the same of tensor maps that only the driver changes
    "next",  # the record of what is started afterwards
    "trouble", "none",  # what is called with the driver's answer; None
)  # fmt: skip
"""The words of a record."""
_POINTERS = {
    "launch", "function", "config", "template", "offsets", "current", "capturing", "counters", "patched", "mapped",
    "readdress", "next", "trouble", "none",
}  # fmt: skip
_LAUNCHING = tuple(name for name in FIELDS if name not in ("next", "trouble", "none"))


def _fields(*names: str) -> str:
    return fields(names, FIELDS, "record", _POINTERS)


TEXT = f"""
{following.TEXT}
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyObject_CallOneArg(ptr, ptr)

define ptr @start(ptr %self, ptr %args, i64 %given) {{
entry:
  %record = call ptr @PyLong_AsVoidPtr(ptr %self)
  %at = alloca ptr, i64 %given
  %elsewhere = icmp ne i64 %given, 0
  br i1 %elsewhere, label %each, label %go
{loop("each", "i", "given", after="entry", body="one", end="go")}
one:
  %number_in = getelementptr ptr, ptr %args, i64 %i
  %number = load ptr, ptr %number_in
  %address = call ptr @PyLong_AsVoidPtr(ptr %number)
  %at_i = getelementptr ptr, ptr %at, i64 %i
  store ptr %address, ptr %at_i
  br label %each
go:
  %moved = phi ptr [null, %entry], [%at, %each]
  %code = call i32 @all(ptr %record, ptr %moved)
  %wide = sext i32 %code to i64
  %answer = call ptr @PyLong_FromLong(i64 %wide)
  ret ptr %answer
}}

define ptr @run(ptr %self, ptr %nothing) {{
entry:
  %record = call ptr @PyLong_AsVoidPtr(ptr %self)
{_fields("trouble", "none")}
  %code = call i32 @all(ptr %record, ptr null)
  %right = icmp eq i32 %code, 0
  br i1 %right, label %done, label %told
done:
  call void @Py_IncRef(ptr %none)
  ret ptr %none
told:
  %wide = sext i32 %code to i64
  %number = call ptr @PyLong_FromLong(i64 %wide)
  %answer = call ptr @PyObject_CallOneArg(ptr %trouble, ptr %number)
  call void @Py_DecRef(ptr %number)
  ret ptr %answer
}}

define i32 @all(ptr %record, ptr %at) {{
entry:
  br label %launches
launches:
  %this = phi ptr [%record, %entry], [%next, %following]
  %code = call i32 @one(ptr %this, ptr %at)
  %right = icmp eq i32 %code, 0
  br i1 %right, label %following, label %end
following:
  %next_in = getelementptr i64, ptr %this, i64 {FIELDS.index("next")}
  %next = load ptr, ptr %next_in
  %last = icmp eq ptr %next, null
  br i1 %last, label %end, label %launches
end:
  ret i32 %code
}}

define internal i32 @one(ptr %record, ptr %at) {{
entry:
{_fields(*_LAUNCHING)}
  %block = alloca i8, i64 %bytes, align {MAP_ALIGNMENT}
  call void @llvm.memcpy.p0.p0.i64(ptr %block, ptr %template, i64 %bytes, i1 false)
  %asked = alloca [{CONFIG_WORDS} x i64], align 8
  call void @llvm.memcpy.p0.p0.i64(ptr %asked, ptr %config, i64 {8 * CONFIG_WORDS}, i1 false)
  %table = alloca ptr, i64 %parameters
  %stays = icmp eq ptr %at, null
  br i1 %stays, label %begin, label %patch

; -- their addresses among the arguments --------------------------------------------------------------------------
{loop("patch", "k", "patches", after="entry", body="address", end="redo")}
address:
{row("patched", "k", PATCH, PATCH)}
  %new_in = getelementptr i64, ptr %at, i64 %which
  %new = load i64, ptr %new_in
  %goal = getelementptr i8, ptr %block, i64 %where
  store i64 %new, ptr %goal
  br label %patch
{loop("redo", "m", "maps", after="patch", body="map", end="begin")}
map:
{row("mapped", "m", PATCH, PATCH, prefix="m_")}
  %m_new_in = getelementptr i64, ptr %at, i64 %m_which
  %m_new = load i64, ptr %m_new_in
  %m_goal = getelementptr i8, ptr %block, i64 %m_where
  %remade = call i32 %readdress(ptr %m_goal, i64 %m_new)
  %refused = icmp ne i32 %remade, 0
  br i1 %refused, label %refusal, label %redo
refusal:
  ret i32 %remade

; -- the launch ---------------------------------------------------------------------------------------------------
begin:
  %stream_in = getelementptr i64, ptr %asked, i64 4
  store i64 %stream, ptr %stream_in
  %has_current = icmp ne ptr %current, null
  br i1 %has_current, label %now, label %graphs
now:
  %number = trunc i64 %device to i32
  %streamed = call i32 %current(i32 2, i32 %number, ptr %stream_in)
  %has_stream = icmp eq i32 %streamed, 0
  br i1 %has_stream, label %graphs, label %failed
graphs:
  %asks_graphs = icmp ne ptr %capturing, null
  br i1 %asks_graphs, label %ask_graphs, label %counting
ask_graphs:
  %captured = alloca i32, align 4
  store i32 0, ptr %captured
  %chosen = load ptr, ptr %stream_in
  %unasked = call i32 %capturing(ptr %chosen, ptr %captured)
  %state = load i32, ptr %captured
  %is_captured = icmp ne i32 %state, 0
  br i1 %is_captured, label %another, label %counting
counting:
  %has_counters = icmp ne ptr %counters, null
  br i1 %has_counters, label %draw, label %laying
draw:
  %drawn = atomicrmw add ptr %counters, i64 1 monotonic
  %turn = add i64 %drawn, 1
  %mine = urem i64 %turn, %counters_most
  %far = mul i64 %mine, %counters_step
  %counter = add i64 %counters_base, %far
  %counter_in = getelementptr i8, ptr %block, i64 %counters_at
  store i64 %counter, ptr %counter_in
  br label %laying
{loop("laying", "p", "parameters", after="counting draw", body="parameter", end="go")}
parameter:
  %offset_in = getelementptr i64, ptr %offsets, i64 %p
  %offset = load i64, ptr %offset_in
  %argument = getelementptr i8, ptr %block, i64 %offset
  %slot = getelementptr ptr, ptr %table, i64 %p
  store ptr %argument, ptr %slot
  br label %laying
go:
  %thread = call ptr @PyEval_SaveThread()
  %code = call i32 %launch(ptr %asked, ptr %function, ptr %table, ptr null)
  call void @PyEval_RestoreThread(ptr %thread)
  ret i32 %code
failed:
  call void @PyErr_Clear()
  ret i32 {LAUNCH_UNLIKE}
another:
  ret i32 {LAUNCH_UNLIKE}
}}
"""


class _Method(ctypes.Structure):
    """Python's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_NO_ARGUMENTS, _FASTCALL = 0x4, 0x80
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


@cache
def _linked() -> tuple[Any, Any, Any]:
    code = link(object_of(TEXT), ("start", "run", "all", "call_like", "describe", "hash"))
    start = _Method(b"start", code.address("start"), _FASTCALL, None)
    return start, _Method(b"run", code.address("run"), _NO_ARGUMENTS, None), code


_making = threading.Lock()


def _methods() -> tuple[Any, Any, Any]:
    """What describes both builtins, and their code: made once, since a builtin knows only their addresses."""
    with _making:
        return _linked()


class Record:
    """The words of a launch; `start` starts it. Arrays given for fields are kept as long as this."""

    def __init__(self, **fields: Any):
        self._words = np.zeros(len(FIELDS), np.uint64)
        self._kept: dict[str, Any] = {}
        self.set(**fields)
        self.start: Any = _new(ctypes.addressof(_methods()[0]), self._words.ctypes.data, "tilewright")
        """A builtin: without arguments, or with an address for each tensor; gives the driver's answer."""

    def run(self, keeper: Any, trouble: Callable[[int], None]) -> Callable[[], None]:
        """A builtin that only starts it, and calls `trouble` with an answer that is not 0; `keeper` stays as long."""
        self.set(none=id(None), trouble=id(trouble))
        self._kept["trouble"] = trouble
        run: Callable[[], None] = _new(ctypes.addressof(_methods()[1]), self._words.ctypes.data, keeper)
        return run

    @property
    def address(self) -> int:
        """The address of the record's words."""
        return int(self._words.ctypes.data)

    def set(self, **fields: Any) -> None:
        """Changes fields: numbers, addresses, arrays that lie in memory of their own, functions of ctypes, records."""
        for name, value in fields.items():
            self._kept[name] = value
            self._words[FIELDS.index(name)] = _word(value)


def native_code() -> Any:
    """The machine code of calls and launches."""
    return _methods()[2]


def _word(value: Any) -> int:
    if isinstance(value, Record):
        return int(value._words.ctypes.data)
    if isinstance(value, int):
        return value % (1 << 64)
    if isinstance(value, np.ndarray):
        return int(value.ctypes.data)
    if isinstance(value, ctypes.Structure):
        return ctypes.addressof(value)
    return ctypes.cast(value, ctypes.c_void_p).value or 0
