"""Starting kernels: one native function, made once, that Python calls as it calls a builtin.

A *record* says all that a launch needs: the driver's function, a launch configuration, the kernel's arguments as they
stand in memory, and what its tensors are like. Without arguments the function starts the kernel on the tensors it was
bound to. With tensors it looks whether they are like those, by way of DLPack's exchange functions, and starts the
kernel with their addresses; with the first of them only, it just looks. A record may name the next one, so that all
launches of a host program are one call. All that changes is changed in copies on the stack, so threads may start the
same record at a time; other threads of Python run while the driver is at work.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tilewright.targets.cpu.load import link, object_of
from tilewright.targets.gpu.again import UNLIKE

MAP_ALIGNMENT = 64
CONFIG_WORDS = 7
TENSOR_WORDS = 4
"""What a tensor is like, before its extents and strides: device; dimensions and type; bytes; whether it is written."""

FIELDS = (
    "launch", "function", "config",  # cuLaunchKernelEx, and what it is given
    "template", "bytes", "offsets", "parameters",  # the arguments, and where each begins
    "current", "device", "stream",  # what tells the current stream of a device; the stream where nothing does
    "bound_to_stream",  # whether it is started on that stream alone
    "counters", "counters_at", "counters_base", "counters_step", "counters_most",
    "tensors", "kinds", "width",  # what the tensors are like, `width` words each
    "look", "tensor_type", "type_at", "grad", "false",  # a tensor's description; what tells that one is plain
    "patches", "patched",  # (tensor, offset) of every address among the arguments
    "maps", "mapped", "readdress",  # the same of tensor maps that only the driver changes
    "next",  # the record of what is started afterwards
    "trouble", "none",  # what is called with the driver's answer; None
)  # fmt: skip
"""The words of a record."""
_POINTERS = {
    "launch", "function", "config", "template", "offsets", "current", "counters", "kinds", "look", "tensor_type",
    "grad", "false", "patched", "mapped", "readdress", "next",
    "trouble", "none",
}  # fmt: skip
_LOOKING = ("tensors", "kinds", "width", "look", "tensor_type", "type_at", "grad", "false")
_LAUNCHING = tuple(name for name in FIELDS if name not in (*_LOOKING, "next", "trouble", "none"))


def _fields(*names: str) -> str:
    lines = []
    for name in names:
        kind = "ptr" if name in _POINTERS else "i64"
        lines += [
            f"  %word.{name} = getelementptr i64, ptr %record, i64 {FIELDS.index(name)}",
            f"  %{name} = load {kind}, ptr %word.{name}",
        ]
    return "\n".join(lines)


TEXT = f"""
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @PyErr_Clear()
declare ptr @PyObject_GetAttr(ptr, ptr)
declare ptr @PyObject_CallOneArg(ptr, ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define ptr @start(ptr %self, ptr %args, i64 %given) {{
entry:
  %record = call ptr @PyLong_AsVoidPtr(ptr %self)
{_fields(*_LOOKING)}
  %at = alloca i64, i64 %tensors
  %told = alloca [6 x i64], align 8
  %elsewhere = icmp ne i64 %given, 0
  br i1 %elsewhere, label %count, label %first

; -- are the tensors like those that the kernel was bound to? -----------------------------------------------------
count:
  %too_many = icmp ugt i64 %given, %tensors
  br i1 %too_many, label %unlike, label %each
each:
  %i = phi i64 [0, %count], [%i_next, %plain]
  %i_next = add i64 %i, 1
  %i_more = icmp ult i64 %i, %given
  br i1 %i_more, label %one, label %seen
one:
  %object_in = getelementptr ptr, ptr %args, i64 %i
  %object = load ptr, ptr %object_in
  %type_in = getelementptr i8, ptr %object, i64 %type_at
  %type = load ptr, ptr %type_in
  %is_tensor = icmp eq ptr %type, %tensor_type
  br i1 %is_tensor, label %ask, label %unlike
ask:
  %answer = call i32 %look(ptr %object, ptr %told)
  %answered = icmp eq i32 %answer, 0
  br i1 %answered, label %known, label %failed
failed:
  call void @PyErr_Clear()
  br label %unlike
known:
  %i_words = mul i64 %i, %width
  %kind = getelementptr i64, ptr %kinds, i64 %i_words
  %device_in = getelementptr i64, ptr %told, i64 1
  %device_told = load i64, ptr %device_in
  %device_wanted = load i64, ptr %kind
  %same_device = icmp eq i64 %device_told, %device_wanted
  %form_in = getelementptr i64, ptr %told, i64 2
  %form_told = load i64, ptr %form_in
  %form_wanted_in = getelementptr i64, ptr %kind, i64 1
  %form_wanted = load i64, ptr %form_wanted_in
  %same_form = icmp eq i64 %form_told, %form_wanted
  %shape_in = getelementptr i64, ptr %told, i64 3
  %shape = load ptr, ptr %shape_in
  %steps_in = getelementptr i64, ptr %told, i64 4
  %steps = load ptr, ptr %steps_in
  %has_steps = icmp ne ptr %steps, null
  %same_1 = and i1 %same_device, %same_form
  %same = and i1 %same_1, %has_steps
  %rank = and i64 %form_told, 4294967295
  %extents = getelementptr i64, ptr %kind, i64 {TENSOR_WORDS}
  %strides = getelementptr i64, ptr %extents, i64 %rank
  br i1 %same, label %dimensions, label %unlike
dimensions:
  %d = phi i64 [0, %known], [%d_next, %dimension]
  %d_next = add i64 %d, 1
  %d_more = icmp ult i64 %d, %rank
  br i1 %d_more, label %dimension, label %place
dimension:
  %extent_in = getelementptr i64, ptr %shape, i64 %d
  %extent = load i64, ptr %extent_in
  %extent_wanted_in = getelementptr i64, ptr %extents, i64 %d
  %extent_wanted = load i64, ptr %extent_wanted_in
  %same_extent = icmp eq i64 %extent, %extent_wanted
  %step_in = getelementptr i64, ptr %steps, i64 %d
  %step = load i64, ptr %step_in
  %step_wanted_in = getelementptr i64, ptr %strides, i64 %d
  %step_wanted = load i64, ptr %step_wanted_in
  %equal_step = icmp eq i64 %step, %step_wanted
  %alone = icmp eq i64 %extent_wanted, 1
  %same_step = or i1 %equal_step, %alone
  %same_dimension = and i1 %same_extent, %same_step
  br i1 %same_dimension, label %dimensions, label %unlike
place:
  %data = load i64, ptr %told
  %more_in = getelementptr i64, ptr %told, i64 5
  %more = load i64, ptr %more_in
  %pointer = add i64 %data, %more
  %low = and i64 %pointer, 15
  %aligned = icmp eq i64 %low, 0
  %at_i = getelementptr i64, ptr %at, i64 %i
  store i64 %pointer, ptr %at_i
  br i1 %aligned, label %gradient, label %unlike
gradient:
  %needs = call ptr @PyObject_GetAttr(ptr %object, ptr %grad)
  %has_needs = icmp ne ptr %needs, null
  br i1 %has_needs, label %whether, label %failed
whether:
  call void @Py_DecRef(ptr %needs)
  %is_plain = icmp eq ptr %needs, %false
  br i1 %is_plain, label %plain, label %unlike
plain:
  br label %each
seen:
  %all = icmp eq i64 %given, %tensors
  br i1 %all, label %apart, label %end

; -- does what is written share memory with another one? ----------------------------------------------------------
apart:
  %w = phi i64 [0, %seen], [%w_next, %next_written]
  %w_next = add i64 %w, 1
  %w_more = icmp ult i64 %w, %tensors
  br i1 %w_more, label %perhaps, label %first
perhaps:
  %w_words = mul i64 %w, %width
  %w_kind = getelementptr i64, ptr %kinds, i64 %w_words
  %is_written_in = getelementptr i64, ptr %w_kind, i64 3
  %is_written = load i64, ptr %is_written_in
  %w_size_in = getelementptr i64, ptr %w_kind, i64 2
  %w_size = load i64, ptr %w_size_in
  %w_at = getelementptr i64, ptr %at, i64 %w
  %w_first = load i64, ptr %w_at
  %w_last = add i64 %w_first, %w_size
  %writes = icmp ne i64 %is_written, 0
  br i1 %writes, label %others, label %next_written
others:
  %j = phi i64 [0, %perhaps], [%j_next, %other], [%j_next, %itself]
  %j_next = add i64 %j, 1
  %j_more = icmp ult i64 %j, %tensors
  br i1 %j_more, label %itself, label %next_written
itself:
  %is_itself = icmp eq i64 %j, %w
  br i1 %is_itself, label %others, label %other
other:
  %j_words = mul i64 %j, %width
  %j_kind = getelementptr i64, ptr %kinds, i64 %j_words
  %j_size_in = getelementptr i64, ptr %j_kind, i64 2
  %j_size = load i64, ptr %j_size_in
  %j_at = getelementptr i64, ptr %at, i64 %j
  %j_first = load i64, ptr %j_at
  %j_last = add i64 %j_first, %j_size
  %before = icmp ult i64 %j_first, %w_last
  %after = icmp ult i64 %w_first, %j_last
  %shared = and i1 %before, %after
  br i1 %shared, label %unlike, label %others
next_written:
  br label %apart

; -- one launch after the other -----------------------------------------------------------------------------------
first:
  %moved = phi ptr [null, %entry], [%at, %apart]
  %code = call i32 @all(ptr %record, ptr %moved)
  %wide = sext i32 %code to i64
  br label %end
unlike:
  br label %end
end:
  %result = phi i64 [%wide, %first], [0, %seen], [{UNLIKE}, %unlike]
  %made = call ptr @PyLong_FromLong(i64 %result)
  ret ptr %made
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

define internal i32 @all(ptr %record, ptr %at) {{
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
patch:
  %k = phi i64 [0, %entry], [%k_next, %address]
  %k_next = add i64 %k, 1
  %k_more = icmp ult i64 %k, %patches
  br i1 %k_more, label %address, label %redo
address:
  %which_in = getelementptr [2 x i64], ptr %patched, i64 %k
  %which = load i64, ptr %which_in
  %where_in = getelementptr i64, ptr %which_in, i64 1
  %where = load i64, ptr %where_in
  %new_in = getelementptr i64, ptr %at, i64 %which
  %new = load i64, ptr %new_in
  %goal = getelementptr i8, ptr %block, i64 %where
  store i64 %new, ptr %goal
  br label %patch
redo:
  %m = phi i64 [0, %patch], [%m_next, %map]
  %m_next = add i64 %m, 1
  %m_more = icmp ult i64 %m, %maps
  br i1 %m_more, label %map, label %begin
map:
  %m_which_in = getelementptr [2 x i64], ptr %mapped, i64 %m
  %m_which = load i64, ptr %m_which_in
  %m_where_in = getelementptr i64, ptr %m_which_in, i64 1
  %m_where = load i64, ptr %m_where_in
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
  %has_counters = icmp ne ptr %counters, null
  br i1 %has_counters, label %draw, label %streams
draw:
  %drawn = atomicrmw add ptr %counters, i64 1 monotonic
  %turn = add i64 %drawn, 1
  %mine = urem i64 %turn, %counters_most
  %far = mul i64 %mine, %counters_step
  %counter = add i64 %counters_base, %far
  %counter_in = getelementptr i8, ptr %block, i64 %counters_at
  store i64 %counter, ptr %counter_in
  br label %streams
streams:
  %stream_in = getelementptr i64, ptr %asked, i64 4
  store i64 %stream, ptr %stream_in
  %has_current = icmp ne ptr %current, null
  br i1 %has_current, label %now, label %lay
now:
  %number = trunc i64 %device to i32
  %streamed = call i32 %current(i32 2, i32 %number, ptr %stream_in)
  %has_stream = icmp eq i32 %streamed, 0
  br i1 %has_stream, label %which_one, label %failed
which_one:
  %chosen = load i64, ptr %stream_in
  %the_one = icmp eq i64 %chosen, %stream
  %any_one = icmp eq i64 %bound_to_stream, 0
  %may = or i1 %the_one, %any_one
  br i1 %may, label %lay, label %another
lay:
  br label %laying
laying:
  %p = phi i64 [0, %lay], [%p_next, %parameter]
  %p_next = add i64 %p, 1
  %p_more = icmp ult i64 %p, %parameters
  br i1 %p_more, label %parameter, label %go
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
  ret i32 {UNLIKE}
another:
  ret i32 {UNLIKE}
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
def _made() -> tuple[Any, Any, Any]:
    code = link(object_of(TEXT), ("start", "run"))
    start = _Method(b"start", code.address("start"), _FASTCALL, None)
    return start, _Method(b"run", code.address("run"), _NO_ARGUMENTS, None), code


_making = threading.Lock()


def _methods() -> tuple[Any, Any, Any]:
    """What describes both builtins, and their code: made once, since a builtin knows only their addresses."""
    with _making:
        return _made()


class Record:
    """The words of a launch; `start` starts it. Arrays given for fields are kept as long as this."""

    def __init__(self, **fields: Any):
        self._words = np.zeros(len(FIELDS), np.uint64)
        self._kept: dict[str, Any] = {}
        self.set(**fields)
        self.start: Any = _new(ctypes.addressof(_methods()[0]), self._words.ctypes.data, "tilewright")
        """A builtin: without arguments, or with one tensor for each; gives the driver's answer, or `UNLIKE`."""

    def run(self, keeper: Any, trouble: Callable[[int], None]) -> Callable[[], None]:
        """A builtin that only starts it, and calls `trouble` with an answer that is not 0; `keeper` stays as long."""
        self.set(none=id(None), trouble=id(trouble))
        self._kept["trouble"] = trouble
        found: Callable[[], None] = _new(ctypes.addressof(_methods()[1]), self._words.ctypes.data, keeper)
        return found

    def set(self, **fields: Any) -> None:
        """Changes fields: numbers, addresses, arrays that lie in memory of their own, functions of ctypes, records."""
        for name, value in fields.items():
            self._kept[name] = value
            self._words[FIELDS.index(name)] = _word(value)


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
