"""LLVM text that describes the arguments of a call in words (64-bit integers), to be compared with those of earlier
calls.

numpy arrays are read at the offsets of numpy's binary interface; `reads_arrays` checks these once. Tensors are
described by DLPack's exchange functions.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

import numpy as np

from tilewright.targets.calls.llvm_text import loop
from tilewright.targets.calls.words import ARGUMENTS, HEADER, TABLE, TEXT_BYTES, WORDS, table_fields

# numpy's PyArrayObject_fields, behind the head of every object
HEAD = object.__basicsize__
TYPE, DATA, RANK, EXTENTS, STRIDES = HEAD - 8, HEAD, HEAD + 8, HEAD + 16, HEAD + 24
DTYPE, FLAGS = HEAD + 40, HEAD + 48
ALIGNED, WRITEABLE = 0x100, 0x400

HOST = 1
"""DLPack's device type of the host (kDLCPU)."""
ITEMS = 16
"""The most integers that a list argument may hold."""
DEVICE_BYTES = 16
"""Addresses of tensors on a device are compared modulo this; on the host, modulo the element size."""

_KINDS = ("array", "seen", "float", "int", "perhaps_bool", "perhaps_none", "text_words", "list_items")
"""The LLVM blocks at which the description of an argument ends, one for each kind of argument."""


def _by_kind(name: str, kind: str, otherwise: str, **values: str) -> str:
    """Return the LLVM phi instruction that sets %`name` in the block after the blocks `_KINDS`. Each of these blocks
    ends the description of one kind of argument (array, tensor, float, ...). `kind` is the LLVM type of %`name`.
    `values` is {block: LLVM value}; the value is `otherwise` for all other blocks.
    """
    return f"  %{name} = phi {kind} " + ", ".join(f"[{values.get(b, otherwise)}, %{b}]" for b in _KINDS)


_HEADER = "\n".join(
    (
        _by_kind("asks_next", "i1", "%asks", seen="false"),
        _by_kind("what", "ptr", "%type", seen="%tensor_type"),
        _by_kind(
            "which", "i64", "0", array="%a_dtype", seen="%t_device", float="%f_bits", int="%n_value",
            perhaps_bool="%b_value", text_words="%s_first",
        ),
        _by_kind("form", "i64", "0", array="%a_form", seen="%t_form", text_words="%s_form", list_items="%l_count"),
        _by_kind("off", "i64", "0", array="%a_rank", seen="%t_off", text_words="%s_second"),
        _by_kind("rank", "i64", "0", array="%a_rank", seen="%t_rank", list_items="%l_count"),
        _by_kind("extents", "ptr", "null", array="%a_extents", seen="%t_extents", list_items="%items"),
        _by_kind("strides", "ptr", "null", array="%a_strides", seen="%t_strides", list_items="%items"),
    )
)  # fmt: skip

TEXT = f"""
; -- whether a function of Python says yes, or raises ----------------------------------------------
define internal i1 @says_yes(ptr %function) {{
entry:
  %answer = call ptr @PyObject_Vectorcall(ptr %function, ptr null, i64 0, ptr null)
  %failed = icmp eq ptr %answer, null
  br i1 %failed, label %raised, label %asked
asked:
  %truth = call i32 @PyObject_IsTrue(ptr %answer)
  call void @Py_DecRef(ptr %answer)
  %yes = icmp ne i32 %truth, 0
  ret i1 %yes
raised:
  call void @PyErr_Clear()
  ret i1 true
}}

; -- the words that describe arguments, and their addresses: how many words, or -1 where one cannot be described ---
define i64 @describe(ptr %table, ptr %args, i64 %count, ptr %words, ptr %at) {{
entry:
{table_fields(*TABLE[1:15], "none")}
  %told = alloca [6 x i64], align 8
  %overflow = alloca i32, align 4
  %items = alloca [{ITEMS} x i64], align 8
  %length = alloca i64, align 8
  %letters = alloca [{TEXT_BYTES} x i8], align 8
  %more_letters = getelementptr i64, ptr %letters, i64 1
  %asks_following = icmp ne ptr %following, null
  %asks_grads = icmp ne ptr %grads, null
  %asks_negated = icmp ne ptr %negated, null
  %too_many = icmp ugt i64 %count, {ARGUMENTS}
  br i1 %too_many, label %unknown, label %each
each:
  %i = phi i64 [0, %entry], [%i_next, %next]
  %w = phi i64 [0, %entry], [%w_next, %next]
  %asks = phi i1 [%asks_following, %entry], [%asks_next, %next]
  %i_next = add i64 %i, 1
  %i_more = icmp ult i64 %i, %count
  br i1 %i_more, label %one, label %done
done:
  ret i64 %w
one:
  %object_in = getelementptr ptr, ptr %args, i64 %i
  %object = load ptr, ptr %object_in
  %type_in = getelementptr i8, ptr %object, i64 {TYPE}
  %type = load ptr, ptr %type_in
  %at_i = getelementptr i64, ptr %at, i64 %i
  %is_array = icmp eq ptr %type, %array_type
  br i1 %is_array, label %array, label %other
other:
  %is_tensor = icmp eq ptr %type, %tensor_type
  %is_parameter = icmp eq ptr %type, %parameter_type
  %is_either = or i1 %is_tensor, %is_parameter
  br i1 %is_either, label %trace, label %number

array:
  %a_dtype_in = getelementptr i8, ptr %object, i64 {DTYPE}
  %a_dtype = load i64, ptr %a_dtype_in
  %a_flags_in = getelementptr i8, ptr %object, i64 {FLAGS}
  %a_flags = load i32, ptr %a_flags_in
  %a_kept = and i32 %a_flags, {ALIGNED | WRITEABLE}
  %a_form = zext i32 %a_kept to i64
  %a_rank_in = getelementptr i8, ptr %object, i64 {RANK}
  %a_rank_short = load i32, ptr %a_rank_in
  %a_rank = zext i32 %a_rank_short to i64
  %a_extents_in = getelementptr i8, ptr %object, i64 {EXTENTS}
  %a_extents = load ptr, ptr %a_extents_in
  %a_strides_in = getelementptr i8, ptr %object, i64 {STRIDES}
  %a_strides = load ptr, ptr %a_strides_in
  %a_data_in = getelementptr i8, ptr %object, i64 {DATA}
  %a_data = load i64, ptr %a_data_in
  store i64 %a_data, ptr %at_i
  br label %header

trace:
  br i1 %asks, label %ask, label %ask_grad
ask:
  %traced = call i1 @says_yes(ptr %following)
  br i1 %traced, label %unknown, label %ask_grad
ask_grad:
  br i1 %asks_grads, label %gradient, label %sign
gradient:
  %needs = call ptr @PyObject_GetAttr(ptr %object, ptr %grads)
  %no_needs = icmp eq ptr %needs, null
  br i1 %no_needs, label %failed, label %whether
whether:
  call void @Py_DecRef(ptr %needs)
  %needs_none = icmp eq ptr %needs, %false
  br i1 %needs_none, label %sign, label %recorded
recorded:
  %records = call i1 @says_yes(ptr %recording)
  br i1 %records, label %unknown, label %sign
sign:
  br i1 %asks_negated, label %ask_sign, label %tensor
ask_sign:
  %minus = call ptr @PyObject_Vectorcall(ptr %negated, ptr %object_in, i64 1, ptr null)
  %no_minus = icmp eq ptr %minus, null
  br i1 %no_minus, label %failed, label %signed
signed:
  call void @Py_DecRef(ptr %minus)
  %plus = icmp eq ptr %minus, %false
  br i1 %plus, label %tensor, label %unknown
tensor:
  %answer = call i32 %look(ptr %object, ptr %told)
  %answered = icmp eq i32 %answer, 0
  br i1 %answered, label %seen, label %failed
failed:
  call void @PyErr_Clear()
  br label %unknown
seen:
  %t_start = load i64, ptr %told
  %t_device_in = getelementptr i64, ptr %told, i64 1
  %t_device = load i64, ptr %t_device_in
  %t_form_in = getelementptr i64, ptr %told, i64 2
  %t_form = load i64, ptr %t_form_in
  %t_extents_in = getelementptr i64, ptr %told, i64 3
  %t_extents = load ptr, ptr %t_extents_in
  %t_strides_in = getelementptr i64, ptr %told, i64 4
  %t_strides = load ptr, ptr %t_strides_in
  %t_more_in = getelementptr i64, ptr %told, i64 5
  %t_more = load i64, ptr %t_more_in
  %t_data = add i64 %t_start, %t_more
  store i64 %t_data, ptr %at_i
  %t_rank = and i64 %t_form, 4294967295
  %t_bits_high = lshr i64 %t_form, 40
  %t_bits = and i64 %t_bits_high, 255
  %t_bytes = lshr i64 %t_bits, 3
  %t_kind = trunc i64 %t_device to i32
  %t_is_host = icmp eq i32 %t_kind, {HOST}
  %t_unit = select i1 %t_is_host, i64 %t_bytes, i64 {DEVICE_BYTES}
  %t_low = sub i64 %t_unit, 1
  %t_off = and i64 %t_data, %t_low
  %no_strides = icmp eq ptr %t_strides, null
  %no_data = icmp eq i64 %t_data, 0
  %t_unknown = or i1 %no_strides, %no_data
  br i1 %t_unknown, label %unknown, label %header

number:
  store i64 0, ptr %at_i
  %is_float = icmp eq ptr %type, %float_type
  br i1 %is_float, label %float, label %perhaps_int
float:
  %f_value = call double @PyFloat_AsDouble(ptr %object)
  %f_bits = bitcast double %f_value to i64
  br label %header
perhaps_int:
  %is_int = icmp eq ptr %type, %int_type
  br i1 %is_int, label %int, label %perhaps_bool
int:
  %n_value = call i64 @PyLong_AsLongLongAndOverflow(ptr %object, ptr %overflow)
  %n_over = load i32, ptr %overflow
  %n_fits = icmp eq i32 %n_over, 0
  br i1 %n_fits, label %header, label %unknown
perhaps_bool:
  %is_bool = icmp eq ptr %type, %bool_type
  %b_value = ptrtoint ptr %object to i64
  br i1 %is_bool, label %header, label %perhaps_none
perhaps_none:
  %is_none = icmp eq ptr %object, %none
  br i1 %is_none, label %header, label %perhaps_text
perhaps_text:
  %is_text = icmp eq ptr %type, %text_type
  br i1 %is_text, label %text, label %perhaps_list
text:
  %s_from = call ptr @PyUnicode_AsUTF8AndSize(ptr %object, ptr %length)
  %s_none = icmp eq ptr %s_from, null
  br i1 %s_none, label %failed, label %text_size
text_size:
  %s_bytes = load i64, ptr %length
  %s_fits = icmp ule i64 %s_bytes, {TEXT_BYTES}
  br i1 %s_fits, label %text_words, label %unknown
text_words:
  call void @llvm.memset.p0.i64(ptr %letters, i8 0, i64 {TEXT_BYTES}, i1 false)
  call void @llvm.memcpy.p0.p0.i64(ptr %letters, ptr %s_from, i64 %s_bytes, i1 false)
  %s_first = load i64, ptr %letters
  %s_second = load i64, ptr %more_letters
  %s_form = shl i64 %s_bytes, 32
  br label %header
perhaps_list:
  %is_list = icmp eq ptr %type, %list_type
  br i1 %is_list, label %list, label %unknown
list:
  %l_count = call i64 @PyList_Size(ptr %object)
  %l_fits = icmp ule i64 %l_count, {ITEMS}
  br i1 %l_fits, label %list_items, label %unknown
{loop("list_items", "l", "l_count", after="list", body="list_item", end="header", last="list_stored")}
list_item:
  %l_object = call ptr @PyList_GetItem(ptr %object, i64 %l)
  %l_type_in = getelementptr i8, ptr %l_object, i64 {TYPE}
  %l_type = load ptr, ptr %l_type_in
  %l_is_int = icmp eq ptr %l_type, %int_type
  br i1 %l_is_int, label %list_int, label %unknown
list_int:
  %l_value = call i64 @PyLong_AsLongLongAndOverflow(ptr %l_object, ptr %overflow)
  %l_over = load i32, ptr %overflow
  %l_whole = icmp eq i32 %l_over, 0
  br i1 %l_whole, label %list_stored, label %unknown
list_stored:
  %l_in = getelementptr i64, ptr %items, i64 %l
  store i64 %l_value, ptr %l_in
  br label %list_items

header:
{_HEADER}
  %twice = shl i64 %rank, 1
  %w_body = add i64 %w, {HEADER}
  %w_next = add i64 %w_body, %twice
  %has_room = icmp ule i64 %w_next, {WORDS}
  br i1 %has_room, label %write, label %unknown
write:
  %w_0 = getelementptr i64, ptr %words, i64 %w
  store ptr %what, ptr %w_0
  %w_1 = getelementptr i64, ptr %w_0, i64 1
  store i64 %which, ptr %w_1
  %w_2 = getelementptr i64, ptr %w_0, i64 2
  store i64 %form, ptr %w_2
  %w_3 = getelementptr i64, ptr %w_0, i64 3
  store i64 %off, ptr %w_3
  %body = getelementptr i64, ptr %words, i64 %w_body
  br label %dimensions
{loop("dimensions", "d", "rank", after="write", body="dimension", end="next")}
dimension:
  %extent_in = getelementptr i64, ptr %extents, i64 %d
  %extent = load i64, ptr %extent_in
  %stride_in = getelementptr i64, ptr %strides, i64 %d
  %stride_given = load i64, ptr %stride_in
  %alone = icmp eq i64 %extent, 1
  %stride = select i1 %alone, i64 0, i64 %stride_given
  %pair_in = getelementptr [2 x i64], ptr %body, i64 %d
  store i64 %extent, ptr %pair_in
  %second_in = getelementptr i64, ptr %pair_in, i64 1
  store i64 %stride, ptr %second_in
  br label %dimensions
next:
  br label %each
unknown:
  ret i64 -1
}}

; -- a hash of words -------------------------------------------------------------------------------------------------
define i64 @hash(ptr %words, i64 %count) {{
entry:
  br label %each
each:
  %i = phi i64 [0, %entry], [%i_next, %one]
  %sum = phi i64 [-3750763034362895579, %entry], [%mixed, %one]
  %i_next = add i64 %i, 1
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %done
one:
  %word_in = getelementptr i64, ptr %words, i64 %i
  %word = load i64, ptr %word_in
  %with = xor i64 %sum, %word
  %spread = mul i64 %with, 7046029254386353131
  %high = lshr i64 %spread, 29
  %mixed = xor i64 %spread, %high
  br label %each
done:
  ret i64 %sum
}}

; -- the address of the first element of an array or tensor that was made for a call ---------------------------------
define internal i64 @address(ptr %table, ptr %object) {{
entry:
{table_fields("array_type", "look")}
  %told = alloca [6 x i64], align 8
  %type_in = getelementptr i8, ptr %object, i64 {TYPE}
  %type = load ptr, ptr %type_in
  %is_array = icmp eq ptr %type, %array_type
  br i1 %is_array, label %array, label %tensor
array:
  %data_in = getelementptr i8, ptr %object, i64 {DATA}
  %data = load i64, ptr %data_in
  ret i64 %data
tensor:
  %answer = call i32 %look(ptr %object, ptr %told)
  %answered = icmp eq i32 %answer, 0
  br i1 %answered, label %seen, label %failed
seen:
  %start = load i64, ptr %told
  %more_in = getelementptr i64, ptr %told, i64 5
  %more = load i64, ptr %more_in
  %first = add i64 %start, %more
  ret i64 %first
failed:
  ret i64 0
}}
"""


@cache
def reads_arrays() -> bool:
    """True if the native function can read numpy arrays here: Python is CPython, the machine is little-endian, and an
    array in memory has the fields that the function reads at the expected offsets. The first call compares one array;
    the result is cached.
    """
    if sys.implementation.name != "cpython" or HEAD != 16 or sys.byteorder != "little":
        return False
    probe = np.zeros((3, 5, 2), np.int16)[:, :, 1]
    head = id(probe)
    pointer, number = ctypes.c_uint64.from_address, ctypes.c_uint32.from_address
    shape, strides = ((ctypes.c_int64 * 2).from_address(pointer(head + offset).value) for offset in (EXTENTS, STRIDES))
    wanted = ALIGNED | WRITEABLE
    return (
        pointer(head + TYPE).value == id(np.ndarray)
        and pointer(head + DATA).value == probe.ctypes.data
        and number(head + RANK).value == 2
        and tuple(shape) == (3, 5)
        and tuple(strides) == (20, 4)
        and pointer(head + DTYPE).value == id(probe.dtype)
        and number(head + FLAGS).value & wanted == wanted
    )
