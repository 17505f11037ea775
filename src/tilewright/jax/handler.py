"""XLA FFI handlers: machine code that XLA calls with a call frame (the C structure with a custom call's buffers).

There are three: one calls a kernel's machine code on a CPU, one calls a Python function, one returns an error. Each is
LLVM text, compiled once and cached as object code. Each program links a copy of its own, whose global variable
`program` points to the program's data: for a kernel on a CPU, the table that `entries.py` writes. No C compiler is
needed, and on CPUs no Python runs during a call.

The offsets are those of the structures in `xla/ffi/api/c_api.h`, version 0.3: a call frame has the API at 16, the stage
at 32, arguments at 40 and results at 80; both of these have their count at 16 and the pointers to buffers at 32. A
buffer has its memory at 24, its number of dimensions at 32 and its extents at 40.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from tilewright.targets.cpu.load import Code, link, object_of

API_VERSION = (0, 3)
"""The version (major, minor) of XLA's FFI whose structures the handler reads."""
ALIGNMENT = 4096
"""The alignment of workspaces, in bytes."""

# Common to all handlers: `fault` creates an error, and `handler` answers XLA's query for the version and ignores calls
# at other stages. At the execute stage it calls `execute` with the call frame and what `program` points to; `execute`
# returns an error, or null.
_FRAME_TEXT = """
@program = global ptr null

define internal ptr @fault(ptr %frame, ptr %text, i32 %code) noinline {
  %args = alloca [4 x i64], align 8
  %papi = getelementptr i8, ptr %frame, i64 16
  %api = load ptr, ptr %papi
  %pcreate = getelementptr i8, ptr %api, i64 48
  %create = load ptr, ptr %pcreate
  %pext = getelementptr i8, ptr %args, i64 8
  %ptext = getelementptr i8, ptr %args, i64 16
  %pcode = getelementptr i8, ptr %args, i64 24
  store i64 28, ptr %args
  store ptr null, ptr %pext
  store ptr %text, ptr %ptext
  store i32 %code, ptr %pcode
  %e = call ptr %create(ptr %args)
  ret ptr %e
}

define ptr @handler(ptr %frame) {
entry:
  %pext = getelementptr i8, ptr %frame, i64 8
  %ext = load ptr, ptr %pext
  %plain = icmp eq ptr %ext, null
  br i1 %plain, label %call, label %extended
extended:
  %ptype = getelementptr i8, ptr %ext, i64 8
  %type = load i32, ptr %ptype
  %asks = icmp eq i32 %type, 1
  br i1 %asks, label %metadata, label %call
metadata:
  %pmeta = getelementptr i8, ptr %ext, i64 24
  %meta = load ptr, ptr %pmeta
  %pmajor = getelementptr i8, ptr %meta, i64 24
  %pminor = getelementptr i8, ptr %meta, i64 28
  store i32 MAJOR, ptr %pmajor
  store i32 MINOR, ptr %pminor
  ret ptr null
call:
  %pstage = getelementptr i8, ptr %frame, i64 32
  %stage = load i32, ptr %pstage
  %runs = icmp eq i32 %stage, 3
  br i1 %runs, label %execute, label %nothing
nothing:
  ret ptr null
execute:
  %table = load ptr, ptr @program
  %e = call ptr @execute(ptr %frame, ptr %table)
  ret ptr %e
}
"""

TABLE = (
    "arguments", "results",  # numbers of buffers that XLA passes
    "ranks", "bytes",  # arrays: the number of dimensions and the size in bytes of each buffer
    "buffers", "places",  # number of the kernel's arguments; array: the index of the buffer of each
    "zeroed", "zeros",  # array: indices of buffers that are filled with zeros first; their number
    "call", "bind", "sizes",  # the kernel's machine-code functions; array: the sizes that they take
    "kept",  # bytes of the memory that `bind` fills, with which the workspace begins
    "room",  # bytes of the whole workspace
    "pool",  # the thread pool (C structure `tw_pool`)
    "fault", "faults",  # array: (error code, message) for each code that the kernel returns; their number
    "spare",  # address of the word that holds the spare workspace
)  # fmt: skip
"""The names of the 64-bit words of a kernel's table, in order: numbers, or addresses of arrays and functions."""

_ENTRY_TEXT = """
declare ptr @malloc(i64)
declare void @free(ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

@other_counts = internal constant [COUNTS_LENGTH x i8] c"COUNTS\\00"
@no_memory = internal constant [MEMORY_LENGTH x i8] c"MEMORY\\00"
@no_code = internal constant [CODE_LENGTH x i8] c"CODE\\00"
@nothing = internal constant [64 x i8] zeroinitializer, align 64

define internal i64 @word(ptr %from, i64 %n) alwaysinline {
  %p = getelementptr i64, ptr %from, i64 %n
  %v = load i64, ptr %p
  ret i64 %v
}

define internal ptr @address(ptr %from, i64 %n) alwaysinline {
  %p = getelementptr ptr, ptr %from, i64 %n
  %v = load ptr, ptr %p
  ret ptr %v
}

; A workspace: at its start, which is aligned, minus 16 its bytes, minus 8 what malloc gave. One is kept for the next
; call; a call that comes while it is in use, or that needs more, gets a new one.
define internal ptr @take(ptr %spare, i64 %bytes) noinline {
entry:
  %kept = atomicrmw xchg ptr %spare, ptr null acquire
  %none = icmp eq ptr %kept, null
  br i1 %none, label %new, label %look
look:
  %psize = getelementptr i8, ptr %kept, i64 -16
  %size = load i64, ptr %psize
  %small = icmp ult i64 %size, %bytes
  br i1 %small, label %drop, label %fits
drop:
  call void @release(ptr %kept)
  br label %new
fits:
  ret ptr %kept
new:
  %room = add i64 %bytes, ROOM
  %raw = call ptr @malloc(i64 %room)
  %fails = icmp eq ptr %raw, null
  br i1 %fails, label %out, label %align
align:
  %n = ptrtoint ptr %raw to i64
  %past = add i64 %n, ROOM
  %start = and i64 %past, MASK
  %p = inttoptr i64 %start to ptr
  %qsize = getelementptr i8, ptr %p, i64 -16
  %qraw = getelementptr i8, ptr %p, i64 -8
  store i64 %bytes, ptr %qsize
  store ptr %raw, ptr %qraw
  ret ptr %p
out:
  ret ptr null
}

define internal void @release(ptr %workspace) {
  %praw = getelementptr i8, ptr %workspace, i64 -8
  %raw = load ptr, ptr %praw
  call void @free(ptr %raw)
  ret void
}

define internal void @give_back(ptr %spare, ptr %workspace) noinline {
entry:
  %other = atomicrmw xchg ptr %spare, ptr %workspace release
  %none = icmp eq ptr %other, null
  br i1 %none, label %out, label %drop
drop:
  call void @release(ptr %other)
  br label %out
out:
  ret void
}

; A kernel on one member of a batch: zeros, then the function that binds, then the call. `given` is for its buffers.
define internal ptr @run_entry(ptr %frame, ptr %table, ptr %bases, ptr %given, ptr %space) {
entry:
  %zeroed = call ptr @address(ptr %table, i64 W_ZEROED)
  %zeros = call i64 @word(ptr %table, i64 W_ZEROS)
  %bytes = call ptr @address(ptr %table, i64 W_BYTES)
  %places = call ptr @address(ptr %table, i64 W_PLACES)
  %buffers = call i64 @word(ptr %table, i64 W_BUFFERS)
  %call = call ptr @address(ptr %table, i64 W_CALL)
  %bind = call ptr @address(ptr %table, i64 W_BIND)
  %sizes = call ptr @address(ptr %table, i64 W_SIZES)
  %kept = call i64 @word(ptr %table, i64 W_KEPT)
  %pool = call ptr @address(ptr %table, i64 W_POOL)
  %workspace = getelementptr i8, ptr %space, i64 %kept
  br label %zeroing
zeroing:
  %z = phi i64 [0, %entry], [%z1, %zero]
  %clear = icmp eq i64 %z, %zeros
  br i1 %clear, label %placing, label %zero
zero:
  %zplace = call i64 @word(ptr %zeroed, i64 %z)
  %zgoal = call ptr @address(ptr %bases, i64 %zplace)
  %zbytes = call i64 @word(ptr %bytes, i64 %zplace)
  call void @llvm.memset.p0.i64(ptr %zgoal, i8 0, i64 %zbytes, i1 false)
  %z1 = add i64 %z, 1
  br label %zeroing
placing:
  %p = phi i64 [0, %zeroing], [%p1, %place]
  %placed = icmp eq i64 %p, %buffers
  br i1 %placed, label %start, label %place
place:
  %which = call i64 @word(ptr %places, i64 %p)
  %memory = call ptr @address(ptr %bases, i64 %which)
  %goal = getelementptr ptr, ptr %given, i64 %p
  store ptr %memory, ptr %goal
  %p1 = add i64 %p, 1
  br label %placing
start:
  %bound = call i32 %bind(ptr %given, ptr %sizes, ptr %space, ptr %workspace, ptr %pool)
  %right = icmp eq i32 %bound, 0
  br i1 %right, label %go, label %wrong
go:
  %called = call i32 %call(ptr %given, ptr %sizes, ptr %space, ptr %workspace, ptr %pool)
  %fine = icmp eq i32 %called, 0
  br i1 %fine, label %out, label %wrong
out:
  ret ptr null
wrong:
  %code = phi i32 [%bound, %start], [%called, %go]
  %wide = sext i32 %code to i64
  %fault = call ptr @address(ptr %table, i64 W_FAULT)
  %faults = call i64 @word(ptr %table, i64 W_FAULTS)
  br label %looking
looking:
  %f = phi i64 [0, %wrong], [%f1, %other]
  %unknown = icmp eq i64 %f, %faults
  br i1 %unknown, label %report, label %look
look:
  %twice = shl i64 %f, 1
  %after = add i64 %twice, 1
  %number = call i64 @word(ptr %fault, i64 %twice)
  %text = call ptr @address(ptr %fault, i64 %after)
  %is = icmp eq i64 %number, %wide
  br i1 %is, label %report, label %other
other:
  %f1 = add i64 %f, 1
  br label %looking
report:
  %says = phi ptr [@no_code, %looking], [%text, %look]
  %e = call ptr @fault(ptr %frame, ptr %says, i32 10)
  ret ptr %e
}

; The buffers' memory for one member of a batch. Under vmap every buffer has as many further dimensions in front, each
; of the batch's extent or 1; those of the first result are the batch's. `member` counts through them.
define internal void @set_bases(ptr %table, ptr %buffers, i64 %count, ptr %bases, i64 %member) {
entry:
  %ranks = call ptr @address(ptr %table, i64 W_RANKS)
  %sizes = call ptr @address(ptr %table, i64 W_BYTES)
  %nargs = call i64 @word(ptr %table, i64 W_ARGUMENTS)
  %result = call ptr @address(ptr %buffers, i64 %nargs)
  %rdims = call ptr @address(ptr %result, i64 5)
  br label %head
head:
  %n = phi i64 [0, %entry], [%next, %set]
  %ended = icmp eq i64 %n, %count
  br i1 %ended, label %out, label %one
one:
  %buffer = call ptr @address(ptr %buffers, i64 %n)
  %given = call ptr @address(ptr %buffer, i64 3)
  %empty = icmp eq ptr %given, null
  %memory = select i1 %empty, ptr @nothing, ptr %given
  %rank = call i64 @word(ptr %buffer, i64 4)
  %dims = call ptr @address(ptr %buffer, i64 5)
  %plain_rank = call i64 @word(ptr %ranks, i64 %n)
  %size = call i64 @word(ptr %sizes, i64 %n)
  %further = sub i64 %rank, %plain_rank
  br label %axes
axes:
  %axis = phi i64 [%further, %one], [%before, %along]
  %left = phi i64 [%member, %one], [%rest, %along]
  %step = phi i64 [%size, %one], [%wider, %along]
  %offset = phi i64 [0, %one], [%moved, %along]
  %last = icmp eq i64 %axis, 0
  br i1 %last, label %set, label %along
along:
  %before = sub i64 %axis, 1
  %whole = call i64 @word(ptr %rdims, i64 %before)
  %mine = call i64 @word(ptr %dims, i64 %before)
  %rest = udiv i64 %left, %whole
  %at = urem i64 %left, %whole
  %single = icmp eq i64 %mine, 1
  %index = select i1 %single, i64 0, i64 %at
  %move = mul i64 %index, %step
  %moved = add i64 %offset, %move
  %wider = mul i64 %step, %mine
  br label %axes
set:
  %start = getelementptr i8, ptr %memory, i64 %offset
  %goal = getelementptr ptr, ptr %bases, i64 %n
  store ptr %start, ptr %goal
  %next = add i64 %n, 1
  br label %head
out:
  ret void
}

; The pointers to the buffers' descriptions, arguments before results.
define internal void @gather(ptr %frame, i64 %nargs, i64 %nrets, ptr %buffers) {
entry:
  %pargs = getelementptr i8, ptr %frame, i64 72
  %prets = getelementptr i8, ptr %frame, i64 112
  %args = load ptr, ptr %pargs
  %rets = load ptr, ptr %prets
  %abytes = shl i64 %nargs, 3
  %rbytes = shl i64 %nrets, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %buffers, ptr %args, i64 %abytes, i1 false)
  %after = getelementptr ptr, ptr %buffers, i64 %nargs
  call void @llvm.memcpy.p0.p0.i64(ptr %after, ptr %rets, i64 %rbytes, i1 false)
  ret void
}

define internal i64 @members(ptr %table, ptr %result, i64 %nargs) {
entry:
  %ranks = call ptr @address(ptr %table, i64 W_RANKS)
  %rank = call i64 @word(ptr %result, i64 4)
  %dims = call ptr @address(ptr %result, i64 5)
  %plain_rank = call i64 @word(ptr %ranks, i64 %nargs)
  %further = sub i64 %rank, %plain_rank
  br label %head
head:
  %axis = phi i64 [0, %entry], [%next, %one]
  %many = phi i64 [1, %entry], [%more, %one]
  %ended = icmp eq i64 %axis, %further
  br i1 %ended, label %out, label %one
one:
  %extent = call i64 @word(ptr %dims, i64 %axis)
  %more = mul i64 %many, %extent
  %next = add i64 %axis, 1
  br label %head
out:
  ret i64 %many
}

define internal ptr @execute(ptr %frame, ptr %table) {
entry:
  %nargs = call i64 @word(ptr %table, i64 W_ARGUMENTS)
  %nrets = call i64 @word(ptr %table, i64 W_RESULTS)
  %pna = getelementptr i8, ptr %frame, i64 56
  %pnr = getelementptr i8, ptr %frame, i64 96
  %na = load i64, ptr %pna
  %nr = load i64, ptr %pnr
  %sa = icmp eq i64 %na, %nargs
  %sr = icmp eq i64 %nr, %nrets
  %same = and i1 %sa, %sr
  br i1 %same, label %counted, label %other
other:
  %e0 = call ptr @fault(ptr %frame, ptr @other_counts, i32 3)
  ret ptr %e0
counted:
  %count = add i64 %nargs, %nrets
  %many_given = call i64 @word(ptr %table, i64 W_BUFFERS)
  %buffers = alloca ptr, i64 %count, align 8
  %bases = alloca ptr, i64 %count, align 8
  %given = alloca ptr, i64 %many_given, align 8
  call void @gather(ptr %frame, i64 %nargs, i64 %nrets, ptr %buffers)
  %result = call ptr @address(ptr %buffers, i64 %nargs)
  %many = call i64 @members(ptr %table, ptr %result, i64 %nargs)
  %bytes = call i64 @word(ptr %table, i64 W_ROOM)
  %spare = call ptr @address(ptr %table, i64 W_SPARE)
  %frugal = icmp eq i64 %bytes, 0
  br i1 %frugal, label %head, label %take
take:
  %taken = call ptr @take(ptr %spare, i64 %bytes)
  %poor = icmp eq ptr %taken, null
  br i1 %poor, label %refuse, label %head
refuse:
  %e1 = call ptr @fault(ptr %frame, ptr @no_memory, i32 8)
  ret ptr %e1
head:
  %space = phi ptr [null, %counted], [%taken, %take], [%space, %member]
  %n = phi i64 [0, %counted], [0, %take], [%next, %member]
  %ended = icmp eq i64 %n, %many
  br i1 %ended, label %finish, label %member
member:
  call void @set_bases(ptr %table, ptr %buffers, i64 %count, ptr %bases, i64 %n)
  %next = add i64 %n, 1
  %e2 = call ptr @run_entry(ptr %frame, ptr %table, ptr %bases, ptr %given, ptr %space)
  %good = icmp eq ptr %e2, null
  br i1 %good, label %head, label %finish
finish:
  %e = phi ptr [null, %head], [%e2, %member]
  br i1 %frugal, label %out, label %back
back:
  call void @give_back(ptr %spare, ptr %space)
  br label %out
out:
  ret ptr %e
}
"""

# `program` points to the address of a Python callback. It takes the frame and the address of a word, which it sets to 1
# before it returns. If a Python exception escapes, ctypes prints it and returns 0, which would mean success: then the
# word is still 0, and the handler returns an error.
_CALLBACK_TEXT = """
@not_ended = internal constant [ENDED_LENGTH x i8] c"ENDED\\00"

define internal ptr @execute(ptr %frame, ptr %table) {
entry:
  %ended = alloca i64, align 8
  store i64 0, ptr %ended
  %callback = load ptr, ptr %table
  %error = call ptr %callback(ptr %frame, ptr %ended)
  %word = load i64, ptr %ended
  %good = icmp ne i64 %word, 0
  br i1 %good, label %out, label %bad
out:
  ret ptr %error
bad:
  %e = call ptr @fault(ptr %frame, ptr @not_ended, i32 13)
  ret ptr %e
}
"""

# A handler that always returns an error: `program` points to its message.
_REFUSING_TEXT = """
define internal ptr @execute(ptr %frame, ptr %text) {
  %e = call ptr @fault(ptr %frame, ptr %text, i32 3)
  ret ptr %e
}
"""
_COUNTS = "tilewright: this custom call has other numbers of arguments or results than the kernel of its name"
_MEMORY = "tilewright: there is no memory for the workspace of a kernel"
_CODE = "tilewright: a kernel returned a code that it does not explain"
_ENDED = "tilewright: the call of a kernel on a GPU raised an error of Python, which is printed"


def handler_text() -> str:
    """Return the LLVM text of the handler (C function) through which XLA calls a kernel on a CPU.

    It is the same for all kernels. The handler finds the kernel's table (see `TABLE`) through its global variable
    `program`.
    """
    return _fill_placeholders(_FRAME_TEXT + _ENTRY_TEXT)


def _fill_placeholders(text: str) -> str:
    """Return the LLVM text `text` with its placeholders replaced by numbers and messages.

    `W_BYTES` becomes the index of the word "bytes" in `TABLE`. The others, such as `MAJOR`, `ROOM` and `MEMORY_LENGTH`,
    become constants of this module, error messages, and the messages' lengths in bytes with their final zero.
    """
    replacements = {
        **{f"W_{word.upper()})": f"{index})" for index, word in enumerate(TABLE)},
        "COUNTS_LENGTH": len(_COUNTS) + 1,
        "MEMORY_LENGTH": len(_MEMORY) + 1,
        "CODE_LENGTH": len(_CODE) + 1,
        "ENDED_LENGTH": len(_ENDED) + 1,
        "COUNTS": _COUNTS,
        "MEMORY": _MEMORY,
        "CODE": _CODE,
        "ENDED": _ENDED,
        "ROOM": ALIGNMENT + 16,
        "MASK": -ALIGNMENT,
        "MAJOR": API_VERSION[0],
        "MINOR": API_VERSION[1],
    }
    for placeholder, value in replacements.items():
        text = text.replace(placeholder, str(value))
    return text


@cache
def spare_workspace() -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return an array of one word: the address of a workspace that no call is using, or 0 if there is none.

    A process has one such array. The handlers of all programs share it: a call takes the workspace out, and puts it
    back when it ends.
    """
    return np.zeros(1, np.uint64)


class FfiHandler:
    """Linked machine code of a handler, whose global variable `program` points to the array `program`.

    The array lives as long as this object.
    """

    def __init__(self, text: str, program: np.ndarray[Any, Any]):
        """Link the LLVM text of a handler and make its variable `program` point to the array."""
        self.program = program
        self.code: Code = link(object_of(text), ("handler", "program"))
        ctypes.c_uint64.from_address(self.code.address("program")).value = program.ctypes.data

    @property
    def address(self) -> int:
        """Return the address of the C function that XLA calls."""
        return self.code.address("handler")


def entry_handler(table: np.ndarray[Any, np.dtype[np.uint64]]) -> FfiHandler:
    """Return a new handler (C function for XLA) that calls the kernel on a CPU that `table` describes.

    `table` has the kernel's 64-bit words in the order of `TABLE`. Its word "spare" is set here, in place: to the
    address of the word for the shared workspace.
    """
    table[TABLE.index("spare")] = spare_workspace().ctypes.data
    return FfiHandler(handler_text(), table)


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
"""The C type of Python callbacks: (address of a call frame, address of a word to set to 1) -> address of an error, or
0."""


def callback_handler(address: int) -> FfiHandler:
    """Return a new handler (C function for XLA) that calls a Python function for each custom call.

    `address` is the function's address as a C function of type `CALLBACK`.
    """
    return FfiHandler(_fill_placeholders(_FRAME_TEXT + _CALLBACK_TEXT), np.array([address], np.uint64))


@cache
def refusing_handler(says: str) -> FfiHandler:
    """Return a handler (C function for XLA) that makes every custom call fail with the message `says`. Handlers are
    cached by message."""
    message = np.frombuffer(says.encode() + b"\0", np.uint8)
    return FfiHandler(_fill_placeholders(_FRAME_TEXT + _REFUSING_TEXT), message)
