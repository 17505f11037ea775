"""Starting kernels: one native function, made once, which Python calls like a builtin.

A *record* holds all that a launch needs: the driver's function, a launch configuration, and the kernel's arguments as
they are in memory. Called without arguments, the function starts the kernel on the tensors it was bound to; called with
addresses, on tensors there. Remembered calls (`targets.calls`) use the latter. A record may name a next one, so that
all launches of a host program are one call. Changes are made in copies on the stack, so several threads may start the
same record; other threads of Python run while the driver works.
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
    "launch", "function", "config",  # cuLaunchKernelEx and its arguments
    "template", "bytes", "offsets", "parameters",  # the arguments, and where each begins
    "current", "device", "stream",  # a function for a device's current stream, or null; the stream if it is null
    "capturing",  # cuStreamIsCapturing, where a launch of the chain has counters: a CUDA graph has its own
    "counters", "counters_at", "counters_base", "counters_step", "counters_most",
    "patches", "patched",  # (tensor, offset) of every address among the arguments
    "maps", "mapped", "readdress",  # the same for tensor maps that only the driver can change
    "next",  # the record that is started afterwards
    "trouble", "none",  # the function that is called with the driver's error code; None
)  # fmt: skip
"""The words of a record."""
_POINTERS = {
    "launch", "function", "config", "template", "offsets", "current", "capturing", "counters", "patched", "mapped",
    "readdress", "next", "trouble", "none",
}  # fmt: skip
_LAUNCHING = tuple(name for name in FIELDS if name not in ("next", "trouble", "none"))


def _load_fields(*names: str) -> str:
    """Return LLVM instructions that load the fields `names` of the launch record at %record. `names` are from FIELDS.
    Each loaded value is named like its field.
    """
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
{_load_fields("trouble", "none")}
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
{_load_fields(*_LAUNCHING)}
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
def _link_functions() -> tuple[Any, Any, Any]:
    """Link the native functions that start launches. Return (Python method definition of `start`, that of `run`,
    machine code). The result is cached.
    """
    code = link(object_of(TEXT), ("start", "run", "all", "call_like", "describe", "hash"))
    start = _Method(b"start", code.address("start"), _FASTCALL, None)
    return start, _Method(b"run", code.address("run"), _NO_ARGUMENTS, None), code


_making = threading.Lock()


def _linked_functions() -> tuple[Any, Any, Any]:
    """Return the result of `_link_functions`. A lock ensures that only one thread links the functions: method objects
    have only the addresses of the definitions, which must therefore stay the same.
    """
    with _making:
        return _link_functions()


class Record:
    """The words of a launch; `start` starts it. Arrays given for fields are kept alive by the record."""

    def __init__(self, **fields: Any):
        self._words = np.zeros(len(FIELDS), np.uint64)
        self._kept: dict[str, Any] = {}
        self.set(**fields)
        self.start: Any = _new(ctypes.addressof(_linked_functions()[0]), self._words.ctypes.data, "tilewright")
        """A native function, called without arguments or with an address for each tensor; returns the driver's code."""

    def run(self, keeper: Any, trouble: Callable[[int], None]) -> Callable[[], None]:
        """Return a native function without parameters that starts the launch. If the driver's code is not 0, the
        function calls `trouble(code)`. The function keeps `keeper` alive. Set the fields `none` and `trouble`.
        """
        self.set(none=id(None), trouble=id(trouble))
        self._kept["trouble"] = trouble
        run: Callable[[], None] = _new(ctypes.addressof(_linked_functions()[1]), self._words.ctypes.data, keeper)
        return run

    @property
    def address(self) -> int:
        """The address of the record's 64-bit words."""
        return int(self._words.ctypes.data)

    def set(self, **fields: Any) -> None:
        """Set the fields of the launch that are given by name. All other fields stay. A value is a number, an address,
        an array, a ctypes function or structure, or another record. The record keeps it alive.
        """
        for name, value in fields.items():
            self._kept[name] = value
            self._words[FIELDS.index(name)] = _word(value)


def native_code() -> Any:
    """Return the linked machine code of remembered calls and launches. The first call links it."""
    return _linked_functions()[2]


def _word(value: Any) -> int:
    """Return the 64-bit word that represents `value` in a record: an int modulo 2^64, or the address of an array, a
    ctypes structure or function, or the words of another record.
    """
    if isinstance(value, Record):
        return int(value._words.ctypes.data)
    if isinstance(value, int):
        return value % (1 << 64)
    if isinstance(value, np.ndarray):
        return int(value.ctypes.data)
    if isinstance(value, ctypes.Structure):
        return ctypes.addressof(value)
    return ctypes.cast(value, ctypes.c_void_p).value or 0
