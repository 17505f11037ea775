"""Plain calls of a kernel that was called before: one native function, which Python calls as it calls a builtin.

A *record* says what the arrays of a call are like, which words of the launches hold their addresses, and which launches
are made. The function compares arrays with the record. If they are like it, it writes their addresses to the launches
and makes them, without the interpreter's lock; otherwise it does nothing, and the call is checked at length. Given the
first arrays only, without those that a call makes, it just compares.

It compares the type (numpy's own arrays, no derived class), element type, shape; that elements are contiguous,
aligned, and writeable where they are written; that what is written shares no memory with another array, or is the very
memory of one, where it was so; and TILEWRIGHT_THREADS, for which launches were made. Arrays are read where numpy's
binary interface says their fields are; `reads_arrays` makes sure of that once.

Threads may call one record at the same time: they take turns, by a lock in the record.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np

from tilewright.runtime import environment

Array = np.ndarray[Any, np.dtype[Any]]

# numpy's PyArrayObject_fields, behind the head of every object
_HEAD = object.__basicsize__
TYPE, DATA, RANK, EXTENTS, DTYPE, FLAGS = _HEAD - 8, _HEAD, _HEAD + 8, _HEAD + 16, _HEAD + 40, _HEAD + 48
_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400

FIELDS = (
    "arrays", "given",  # how many a launch needs, and how many a caller gives; the call makes the rest
    "array_type", "kinds", "width",  # what they are like, `width` words each
    "pairs", "pair",  # arrays of which one is written
    "patches", "patched",  # (array, address of the word) of every address in a launch
    "launches", "launch",  # the pool's records
    "lock", "over",  # `over`: the process was forked since, and the workers are gone
    "variable", "threads",  # the name of a variable of the environment, and its value; null: it is not set
    "run", "save", "restore", "truth",  # functions of the pool and of Python
)  # fmt: skip
"""The words of a record."""
_POINTERS = {
    "array_type", "kinds", "pair", "patched", "launch", "variable", "threads", "run", "save", "restore", "truth",
}  # fmt: skip
KIND_WORDS = 3
"""Words of a kind before its extents: the element type's address, the flags that must be set, how many dimensions."""
PAIR_WORDS = 5
"""A pair: two arrays, the bytes of each, and whether they are one memory."""


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
declare ptr @getenv(ptr)
declare i32 @strcmp(ptr, ptr)

define ptr @call_like(ptr %self, ptr %args, i64 %count) {{
entry:
  %words_in = getelementptr i8, ptr %self, i64 {DATA}
  %record = load ptr, ptr %words_in
{_fields(*(name for name in FIELDS if name not in ("lock", "over")))}
  %lock = getelementptr i64, ptr %record, i64 {FIELDS.index("lock")}
  %over_in = getelementptr i64, ptr %record, i64 {FIELDS.index("over")}
  %at = alloca i64, i64 %arrays
  %over = load atomic i64, ptr %over_in monotonic, align 8
  %is_over = icmp ne i64 %over, 0
  %is_all = icmp eq i64 %count, %arrays
  %is_given = icmp eq i64 %count, %given
  %fits = or i1 %is_all, %is_given
  %no = xor i1 %fits, true
  %out = or i1 %is_over, %no
  br i1 %out, label %unlike, label %workers
workers:
  %now = call ptr @getenv(ptr %variable)
  %unset = icmp eq ptr %now, null
  %was_unset = icmp eq ptr %threads, null
  %both = and i1 %unset, %was_unset
  %either = or i1 %unset, %was_unset
  br i1 %both, label %each, label %perhaps
perhaps:
  br i1 %either, label %unlike, label %compare
compare:
  %differs = call i32 @strcmp(ptr %now, ptr %threads)
  %same_threads = icmp eq i32 %differs, 0
  br i1 %same_threads, label %each, label %unlike

; -- is each array like that of the first call? --------------------------------------------------------------------
each:
  %i = phi i64 [0, %workers], [0, %compare], [%i_next, %extents_end]
  %i_next = add i64 %i, 1
  %i_more = icmp ult i64 %i, %count
  br i1 %i_more, label %one, label %seen
one:
  %object_in = getelementptr ptr, ptr %args, i64 %i
  %object = load ptr, ptr %object_in
  %type_in = getelementptr i8, ptr %object, i64 {TYPE}
  %type = load ptr, ptr %type_in
  %is_array = icmp eq ptr %type, %array_type
  br i1 %is_array, label %look, label %unlike
look:
  %i_words = mul i64 %i, %width
  %kind = getelementptr i64, ptr %kinds, i64 %i_words
  %dtype_in = getelementptr i8, ptr %object, i64 {DTYPE}
  %dtype = load i64, ptr %dtype_in
  %dtype_wanted = load i64, ptr %kind
  %same_dtype = icmp eq i64 %dtype, %dtype_wanted
  %flags_in = getelementptr i8, ptr %object, i64 {FLAGS}
  %flags_short = load i32, ptr %flags_in
  %flags = zext i32 %flags_short to i64
  %flags_wanted_in = getelementptr i64, ptr %kind, i64 1
  %flags_wanted = load i64, ptr %flags_wanted_in
  %flags_there = and i64 %flags, %flags_wanted
  %same_flags = icmp eq i64 %flags_there, %flags_wanted
  %rank_in = getelementptr i8, ptr %object, i64 {RANK}
  %rank_short = load i32, ptr %rank_in
  %rank = zext i32 %rank_short to i64
  %rank_wanted_in = getelementptr i64, ptr %kind, i64 2
  %rank_wanted = load i64, ptr %rank_wanted_in
  %same_rank = icmp eq i64 %rank, %rank_wanted
  %same_1 = and i1 %same_dtype, %same_flags
  %same_2 = and i1 %same_1, %same_rank
  %extents_in = getelementptr i8, ptr %object, i64 {EXTENTS}
  %extents = load ptr, ptr %extents_in
  %wanted = getelementptr i64, ptr %kind, i64 {KIND_WORDS}
  %data_in = getelementptr i8, ptr %object, i64 {DATA}
  %data = load i64, ptr %data_in
  %at_i = getelementptr i64, ptr %at, i64 %i
  store i64 %data, ptr %at_i
  br i1 %same_2, label %dimensions, label %unlike
dimensions:
  %d = phi i64 [0, %look], [%d_next, %dimension]
  %d_next = add i64 %d, 1
  %d_more = icmp ult i64 %d, %rank
  br i1 %d_more, label %dimension, label %extents_end
dimension:
  %extent_in = getelementptr i64, ptr %extents, i64 %d
  %extent = load i64, ptr %extent_in
  %extent_wanted_in = getelementptr i64, ptr %wanted, i64 %d
  %extent_wanted = load i64, ptr %extent_wanted_in
  %same_extent = icmp eq i64 %extent, %extent_wanted
  br i1 %same_extent, label %dimensions, label %unlike
extents_end:
  br label %each
seen:
  br i1 %is_all, label %memory, label %like

; -- does what is written share memory as it did, and no other? ----------------------------------------------------
memory:
  %p = phi i64 [0, %seen], [%p_next, %apart]
  %p_next = add i64 %p, 1
  %p_more = icmp ult i64 %p, %pairs
  br i1 %p_more, label %two, label %go
two:
  %pair_in = getelementptr [{PAIR_WORDS} x i64], ptr %pair, i64 %p
  %a = load i64, ptr %pair_in
  %b_in = getelementptr i64, ptr %pair_in, i64 1
  %b = load i64, ptr %b_in
  %a_bytes_in = getelementptr i64, ptr %pair_in, i64 2
  %a_bytes = load i64, ptr %a_bytes_in
  %b_bytes_in = getelementptr i64, ptr %pair_in, i64 3
  %b_bytes = load i64, ptr %b_bytes_in
  %one_in = getelementptr i64, ptr %pair_in, i64 4
  %one_memory = load i64, ptr %one_in
  %a_at = getelementptr i64, ptr %at, i64 %a
  %a_first = load i64, ptr %a_at
  %b_at = getelementptr i64, ptr %at, i64 %b
  %b_first = load i64, ptr %b_at
  %is_one = icmp ne i64 %one_memory, 0
  br i1 %is_one, label %equal, label %distinct
equal:
  %same_memory = icmp eq i64 %a_first, %b_first
  br i1 %same_memory, label %apart, label %unlike
distinct:
  %a_end = add i64 %a_first, %a_bytes
  %b_end = add i64 %b_first, %b_bytes
  %before = icmp ult i64 %a_first, %b_end
  %after = icmp ult i64 %b_first, %a_end
  %shared = and i1 %before, %after
  br i1 %shared, label %unlike, label %apart
apart:
  br label %memory

; -- the launches --------------------------------------------------------------------------------------------------
go:
  %state = call ptr %save()
  call void @lock(ptr %lock)
  br label %patching
patching:
  %k = phi i64 [0, %go], [%k_next, %patch]
  %k_next = add i64 %k, 1
  %k_more = icmp ult i64 %k, %patches
  br i1 %k_more, label %patch, label %launching
patch:
  %which_in = getelementptr [2 x i64], ptr %patched, i64 %k
  %which = load i64, ptr %which_in
  %goal_in = getelementptr i64, ptr %which_in, i64 1
  %goal = load ptr, ptr %goal_in
  %new_in = getelementptr i64, ptr %at, i64 %which
  %new = load i64, ptr %new_in
  store i64 %new, ptr %goal
  br label %patching
launching:
  %l = phi i64 [0, %patching], [%l_next, %start]
  %l_next = add i64 %l, 1
  %l_more = icmp ult i64 %l, %launches
  br i1 %l_more, label %start, label %done
start:
  %what_in = getelementptr ptr, ptr %launch, i64 %l
  %what = load ptr, ptr %what_in
  call void %run(ptr %what)
  br label %launching
done:
  call void @unlock(ptr %lock)
  call void %restore(ptr %state)
  br label %like
like:
  %yes = call ptr %truth(i64 1)
  ret ptr %yes
unlike:
  %not = call ptr %truth(i64 0)
  ret ptr %not
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


_FASTCALL = 0x80
_VARIABLE = ctypes.create_string_buffer(environment.THREADS.name.encode())
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)
_python = {
    "save": ctypes.pythonapi.PyEval_SaveThread,
    "restore": ctypes.pythonapi.PyEval_RestoreThread,
    "truth": ctypes.pythonapi.PyBool_FromLong,
}
_records: weakref.WeakSet[CallRecord] = weakref.WeakSet()


@cache
def reads_arrays() -> bool:
    """Whether numpy's arrays lie in memory as the function reads them."""
    if sys.implementation.name != "cpython" or _HEAD != 16 or sys.byteorder != "little":
        return False
    probe = np.zeros((3, 5), np.int16)
    at = id(probe)
    pointer, number = ctypes.c_uint64.from_address, ctypes.c_uint32.from_address
    shape = (ctypes.c_int64 * 2).from_address(pointer(at + EXTENTS).value)
    wanted = _CONTIGUOUS | _ALIGNED | _WRITEABLE
    return (
        pointer(at + TYPE).value == id(np.ndarray)
        and pointer(at + DATA).value == probe.ctypes.data
        and number(at + RANK).value == 2
        and tuple(shape) == (3, 5)
        and pointer(at + DTYPE).value == id(probe.dtype)
        and number(at + FLAGS).value & wanted == wanted
    )


class MovableLaunch(Protocol):
    """A launch whose arrays may be others: `words` is where their addresses stand, `pointer` the pool's record."""

    words: int
    pointer: int


class CallRecord:
    """Calls like one on these arrays, of which a caller gives the first `given`; `written` are those that are written.

    `launches` go with the arrays that theirs are, by place; None: an array that stays. `pool` is machine code.
    """

    def __init__(
        self,
        pool: Any,
        arrays: Sequence[Array],
        given: int,
        written: Sequence[bool],
        launches: Sequence[tuple[MovableLaunch, Sequence[int | None]]],
    ):
        self.given = given
        width = KIND_WORDS + max((a.ndim for a in arrays), default=0)
        kinds = np.zeros((len(arrays), width), np.uint64)
        for row, array, writes in zip(kinds, arrays, written, strict=True):
            flags = _CONTIGUOUS | _ALIGNED | (_WRITEABLE if writes else 0)
            row[: KIND_WORDS + array.ndim] = [id(array.dtype), flags, array.ndim, *array.shape]
        starts = [a.ctypes.data for a in arrays]
        pairs = [
            (w, other, arrays[w].nbytes, arrays[other].nbytes, starts[w] == starts[other])
            for w in range(len(arrays))
            for other in range(len(arrays))
            if written[w] and w != other
        ]
        patches = [
            (place, launch.words + 8 * word)
            for launch, places in launches
            for word, place in enumerate(places)
            if place is not None
        ]
        threads = environment.THREADS.text()
        value = None if threads is None else ctypes.create_string_buffer(threads.encode())
        tables = [np.array(t, np.uint64) for t in (pairs, patches, [launch.pointer for launch, _ in launches])]
        fields = {
            "arrays": len(arrays), "given": given,
            "array_type": id(np.ndarray), "kinds": kinds.ctypes.data, "width": width,
            "pairs": len(pairs), "pair": tables[0].ctypes.data,
            "patches": len(patches), "patched": tables[1].ctypes.data,
            "launches": len(launches), "launch": tables[2].ctypes.data,
            "variable": ctypes.addressof(_VARIABLE), "threads": 0 if value is None else ctypes.addressof(value),
            "run": pool.address("pool_run"),
        }  # fmt: skip
        fields |= {name: ctypes.cast(function, ctypes.c_void_p).value or 0 for name, function in _python.items()}
        self._words = np.array([fields.get(name, 0) for name in FIELDS], np.uint64)
        method = _Method(b"call_like", pool.address("call_like"), _FASTCALL, None)
        self._kept = (pool, kinds, tables, value, method, [a.dtype for a in arrays], launches)
        self.call: Callable[..., bool] = _new(ctypes.addressof(method), self._words, None)
        """Makes the launches on arrays like these, and tells whether they were; without the last, only tells."""
        _records.add(self)


def after_fork() -> None:
    """In a forked process: records that were made before are over, and nobody holds a lock."""
    for record in list(_records):
        record._words[FIELDS.index("lock")] = 0
        record._words[FIELDS.index("over")] = 1
