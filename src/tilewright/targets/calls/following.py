"""LLVM text of the native function that repeats a call: it finds the record for the arguments and carries it out."""

from __future__ import annotations

from tilewright.targets.calls import copying, describing
from tilewright.targets.calls.describing import DATA
from tilewright.targets.calls.llvm_text import loop, row
from tilewright.targets.calls.words import (
    ARGUMENTS,
    COPY,
    ENTRY,
    FIXED,
    PAIR,
    RECORD,
    SMALL,
    WORDS,
    record_fields,
    table_fields,
)

LAUNCH_UNLIKE = -1
"""The code that a launch returns if it cannot be made for these arguments after all."""

TEXT = f"""
declare ptr @getenv(ptr)
declare i32 @strcmp(ptr, ptr)
declare i32 @memcmp(ptr, ptr, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare i32 @PyObject_IsTrue(ptr)
declare double @PyFloat_AsDouble(ptr)
declare i64 @PyLong_AsLongLongAndOverflow(ptr, ptr)
declare ptr @PyUnicode_AsUTF8AndSize(ptr, ptr)
declare i64 @PyList_Size(ptr)
declare ptr @PyList_GetItem(ptr, i64)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare void @PyErr_Clear()
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyLong_FromLong(i64)
{describing.TEXT}{copying.TEXT}
; -- whether a tensor has a version ----------------------------------------------------------------------------------
define internal i1 @has_version(ptr %table, ptr %tensor, i64 %wanted) {{
entry:
{table_fields("version")}
  %overflow = alloca i32, align 4
  %object = call ptr @PyObject_GetAttr(ptr %tensor, ptr %version)
  %failed = icmp eq ptr %object, null
  br i1 %failed, label %raised, label %told
told:
  %number = call i64 @PyLong_AsLongLongAndOverflow(ptr %object, ptr %overflow)
  call void @Py_DecRef(ptr %object)
  %same = icmp eq i64 %number, %wanted
  ret i1 %same
raised: ; torch counts no writes to it
  call void @PyErr_Clear()
  ret i1 false
}}

; -- whether a record may be used now, with these arguments at these addresses ----------------------------------------
define internal i1 @fits(ptr %table, ptr %record, ptr %args, ptr %at) {{
entry:
{record_fields("pairs", "pair", "fixes", "fixed", "alive", "variable", "threads")}
  %is_free = icmp eq ptr %alive, null
  br i1 %is_free, label %environment, label %living
living:
  %lives = load i64, ptr %alive
  %is_gone = icmp eq i64 %lives, 0
  br i1 %is_gone, label %no, label %tensors
{loop("tensors", "t", "fixes", after="living", body="tensor", end="environment", last="versions")}
tensor:
{row("fixed", "t", FIXED, FIXED, ["object"], prefix="t_")}
  %t_given_in = getelementptr ptr, ptr %args, i64 %t_place
  %t_given = load ptr, ptr %t_given_in
  %t_at_in = getelementptr i64, ptr %at, i64 %t_place
  %t_at = load i64, ptr %t_at_in
  %t_same_object = icmp eq ptr %t_given, %t_object
  %t_same_memory = icmp eq i64 %t_at, %t_address
  %t_same = and i1 %t_same_object, %t_same_memory
  br i1 %t_same, label %versions, label %no
versions:
  %t_current = call i1 @has_version(ptr %table, ptr %t_given, i64 %t_version)
  br i1 %t_current, label %tensors, label %no
environment:
  %now = call ptr @getenv(ptr %variable)
  %unset = icmp eq ptr %now, null
  %was_unset = icmp eq ptr %threads, null
  %both = and i1 %unset, %was_unset
  %either = or i1 %unset, %was_unset
  br i1 %both, label %memory, label %perhaps
perhaps:
  br i1 %either, label %no, label %compare
compare:
  %differs = call i32 @strcmp(ptr %now, ptr %threads)
  %same_threads = icmp eq i32 %differs, 0
  br i1 %same_threads, label %memory, label %no
{loop("memory", "p", "pairs", after="environment compare", body="two", end="yes")}
two:
{row("pair", "p", PAIR, PAIR)}
  %a_at = getelementptr i64, ptr %at, i64 %a
  %a_first = load i64, ptr %a_at
  %b_at = getelementptr i64, ptr %at, i64 %b
  %b_first = load i64, ptr %b_at
  %distance = sub i64 %b_first, %a_first
  %is_wanted = icmp eq i64 %distance, %wanted
  %is_before = icmp sle i64 %distance, %low
  %is_behind = icmp sge i64 %distance, %high
  %is_apart = or i1 %is_before, %is_behind
  %is_at_distance = icmp ne i64 %at_distance, 0
  %right = select i1 %is_at_distance, i1 %is_wanted, i1 %is_apart
  br i1 %right, label %memory, label %no
yes:
  ret i1 true
no:
  ret i1 false
}}

; -- the record that goes with a description, from a place on, which becomes the one behind it; null: none ------------
define internal ptr @find(ptr %table, ptr %args, ptr %words, i64 %count, ptr %at, ptr %place) {{
entry:
{table_fields("entries")}
  %wanted = call i64 @hash(ptr %words, i64 %count)
  %bytes = shl i64 %count, 3
  %many = load i64, ptr %entries
  %list = getelementptr i64, ptr %entries, i64 1
  %first = load i64, ptr %place
  br label %each
each:
  %i = phi i64 [%first, %entry], [%i_next, %other]
  %i_next = add i64 %i, 1
  %more = icmp ult i64 %i, %many
  br i1 %more, label %one, label %none
one:
{row("list", "i", ENTRY, ENTRY, ["words", "record"], prefix="its_")}
  %same_hash = icmp eq i64 %its_hash, %wanted
  br i1 %same_hash, label %closer, label %other
closer:
  %same_count = icmp eq i64 %its_count, %count
  br i1 %same_count, label %words_too, label %other
words_too:
  %difference = call i32 @memcmp(ptr %its_words, ptr %words, i64 %bytes)
  %same_words = icmp eq i32 %difference, 0
  br i1 %same_words, label %now, label %other
now:
  %is_right = call i1 @fits(ptr %table, ptr %its_record, ptr %args, ptr %at)
  br i1 %is_right, label %found, label %other
found:
  store i64 %i_next, ptr %place
  ret ptr %its_record
other:
  br label %each
none:
  ret ptr null
}}

define ptr @call_like(ptr %self, ptr %args, i64 %count) {{
entry:
  %table_in = getelementptr i8, ptr %self, i64 {DATA}
  %table = load ptr, ptr %table_in
{table_fields("unlike", "at_length")}
  %words = alloca [{WORDS} x i64], align 8
  %at = alloca [{ARGUMENTS} x i64], align 8
  %place = alloca i64, align 8
  store i64 0, ptr %place
  %observers = load i64, ptr %at_length
  %is_observed = icmp ne i64 %observers, 0
  br i1 %is_observed, label %unlike_now, label %describing
describing: ; again for each record: one that was tried may have moved addresses to copies
  %described = call i64 @describe(ptr %table, ptr %args, i64 %count, ptr %words, ptr %at)
  %is_known = icmp sge i64 %described, 0
  br i1 %is_known, label %search, label %unlike_now
search:
  %record = call ptr @find(ptr %table, ptr %args, ptr %words, i64 %described, ptr %at, ptr %place)
  %is_new = icmp eq ptr %record, null
  br i1 %is_new, label %unlike_now, label %like
unlike_now:
  call void @Py_IncRef(ptr %unlike)
  ret ptr %unlike
like:
  %answer = call ptr @follow(ptr %table, ptr %record, ptr %args, ptr %at)
  %is_other = icmp eq ptr %answer, %unlike
  br i1 %is_other, label %other, label %done
other: ; its launch is for another stream, say
  call void @Py_DecRef(ptr %unlike)
  br label %describing
done:
  ret ptr %answer
}}

; -- a call by its record --------------------------------------------------------------------------------------------
define internal ptr @follow(ptr %table, ptr %record, ptr %args, ptr %at) {{
entry:
{table_fields("unlike", "none")}
{record_fields(*RECORD[RECORD.index("threads") + 1 :], "given", "outputs", "results")}
  %objects = alloca [{ARGUMENTS} x ptr], align 8
  %firsts = alloca [{ARGUMENTS} x i64], align 8
  %passed = alloca [2 x ptr], align 8
  %passed_1 = getelementptr ptr, ptr %passed, i64 1
  call void @Py_IncRef(ptr %keeper)
  %slots = add i64 %given, %outputs
  %bytes = shl i64 %slots, 3
  call void @llvm.memset.p0.i64(ptr %objects, i8 0, i64 %bytes, i1 false)
  br label %making

{loop("making", "m", "outputs", after="entry", body="make", end="packing", last="made")}
make:
  %m_who_in = getelementptr ptr, ptr %makers, i64 %m
  %m_who = load ptr, ptr %m_who_in
  %m_object = call ptr @PyObject_Vectorcall(ptr %m_who, ptr null, i64 0, ptr null)
  %m_failed = icmp eq ptr %m_object, null
  br i1 %m_failed, label %end, label %made
made:
  %m_place = add i64 %given, %m
  %m_slot = getelementptr ptr, ptr %objects, i64 %m_place
  store ptr %m_object, ptr %m_slot
  %m_address = call i64 @address(ptr %table, ptr %m_object)
  %m_at = getelementptr i64, ptr %at, i64 %m_place
  store i64 %m_address, ptr %m_at
  %m_lost = icmp eq i64 %m_address, 0
  br i1 %m_lost, label %end, label %making

{loop("packing", "k", "smalls", after="making", body="pack", end="copying", last="packed_one")}
pack:
{row("small", "k", SMALL, ["place", "bytes", "reads"], prefix="k_")}
  %k_packed = alloca i8, i64 %k_bytes, align 64
  %k_at = getelementptr i64, ptr %at, i64 %k_place
  %k_first = load i64, ptr %k_at
  %k_first_in = getelementptr i64, ptr %firsts, i64 %k
  store i64 %k_first, ptr %k_first_in
  store ptr %k_packed, ptr %k_at
  %k_skips = icmp eq i64 %k_reads, 0
  br i1 %k_skips, label %packed_one, label %pack_it
pack_it:
  call void @copy_small(ptr %k_row, i64 %k_first, ptr %k_packed, i1 false)
  br label %packed_one
packed_one:
  br label %packing

{loop("copying", "c", "copies", after="packing", body="copy_one", end="launching", last="copied")}
copy_one:
{row("copy", "c", COPY, ["place", "make"], ["make"], prefix="c_")}
  %c_arg = getelementptr ptr, ptr %args, i64 %c_place
  %c_object = call ptr @PyObject_Vectorcall(ptr %c_make, ptr %c_arg, i64 1, ptr null)
  %c_failed = icmp eq ptr %c_object, null
  br i1 %c_failed, label %end, label %copied
copied:
  %c_slot = getelementptr ptr, ptr %objects, i64 %c_place
  store ptr %c_object, ptr %c_slot
  %c_address = call i64 @address(ptr %table, ptr %c_object)
  %c_at = getelementptr i64, ptr %at, i64 %c_place
  store i64 %c_address, ptr %c_at
  %c_lost = icmp eq i64 %c_address, 0
  br i1 %c_lost, label %end, label %copying

launching:
  %code = call i32 %launch(ptr %launched, ptr %at)
  %right = icmp eq i32 %code, 0
  br i1 %right, label %unpacking, label %wrong
wrong:
  %is_unlike = icmp eq i32 %code, {LAUNCH_UNLIKE}
  br i1 %is_unlike, label %not_like, label %raise
not_like:
  call void @Py_IncRef(ptr %unlike)
  br label %end
raise:
  %wide = sext i32 %code to i64
  %raised = call ptr @raise(ptr %trouble, i64 %wide, ptr %args, i64 %given, ptr %objects, i64 %outputs)
  %is_raised = icmp eq ptr %raised, null
  br i1 %is_raised, label %end, label %settled
settled:
  call void @Py_DecRef(ptr %raised)
  br label %unpacking

{loop("unpacking", "u", "smalls", after="launching settled", body="unpack", end="returning", last="unpacked")}
unpack:
{row("small", "u", SMALL, ["place", "writes"], prefix="u_")}
  %u_skips = icmp eq i64 %u_writes, 0
  br i1 %u_skips, label %unpacked, label %unpack_it
unpack_it:
  %u_at = getelementptr i64, ptr %at, i64 %u_place
  %u_packed = load ptr, ptr %u_at
  %u_first_in = getelementptr i64, ptr %firsts, i64 %u
  %u_first = load i64, ptr %u_first_in
  call void @copy_small(ptr %u_row, i64 %u_first, ptr %u_packed, i1 true)
  br label %unpacked
unpacked:
  br label %unpacking

{loop("returning", "r", "copies", after="unpacking", body="return_one", end="telling_all", last="returned")}
return_one:
{row("copy", "r", COPY, ["place", "back"], ["back"], prefix="r_")}
  %r_none = icmp eq ptr %r_back, null
  br i1 %r_none, label %returned, label %return_it
return_it:
  %r_arg_in = getelementptr ptr, ptr %args, i64 %r_place
  %r_arg = load ptr, ptr %r_arg_in
  %r_slot = getelementptr ptr, ptr %objects, i64 %r_place
  %r_object = load ptr, ptr %r_slot
  store ptr %r_arg, ptr %passed
  store ptr %r_object, ptr %passed_1
  %r_answer = call ptr @PyObject_Vectorcall(ptr %r_back, ptr %passed, i64 2, ptr null)
  %r_failed = icmp eq ptr %r_answer, null
  br i1 %r_failed, label %end, label %r_done
r_done:
  call void @Py_DecRef(ptr %r_answer)
  br label %returned
returned:
  br label %returning

{loop("telling_all", "t", "told", after="returning", body="tell_one", end="finishing", last="told_one")}
tell_one:
  %t_in = getelementptr i64, ptr %tell, i64 %t
  %t_place = load i64, ptr %t_in
  %t_arg = getelementptr ptr, ptr %args, i64 %t_place
  %t_answer = call ptr @PyObject_Vectorcall(ptr %telling, ptr %t_arg, i64 1, ptr null)
  %t_failed = icmp eq ptr %t_answer, null
  br i1 %t_failed, label %end, label %told_one
told_one:
  call void @Py_DecRef(ptr %t_answer)
  br label %telling_all

{loop("finishing", "f", "results", after="telling_all", body="finish_one", end="answering", last="finished")}
finish_one:
  %f_who_in = getelementptr ptr, ptr %finishers, i64 %f
  %f_who = load ptr, ptr %f_who_in
  %f_none = icmp eq ptr %f_who, null
  br i1 %f_none, label %finished, label %finish_it
finish_it:
  %f_place = add i64 %given, %f
  %f_slot = getelementptr ptr, ptr %objects, i64 %f_place
  %f_object = call ptr @PyObject_Vectorcall(ptr %f_who, ptr %f_slot, i64 1, ptr null)
  %f_failed = icmp eq ptr %f_object, null
  br i1 %f_failed, label %end, label %f_done
f_done:
  %f_before = load ptr, ptr %f_slot
  call void @Py_DecRef(ptr %f_before)
  store ptr %f_object, ptr %f_slot
  br label %finished
finished:
  br label %finishing

answering:
  %first_slot = getelementptr ptr, ptr %objects, i64 %given
  switch i64 %results, label %several [i64 0, label %nothing i64 1, label %single]
nothing:
  call void @Py_IncRef(ptr %none)
  br label %end
single:
  %only = load ptr, ptr %first_slot
  call void @Py_IncRef(ptr %only)
  br label %end
several:
  %tuple = call ptr @PyTuple_New(i64 %results)
  %no_tuple = icmp eq ptr %tuple, null
  br i1 %no_tuple, label %end, label %filling
{loop("filling", "s", "results", after="several", body="fill", end="end")}
fill:
  %s_slot = getelementptr ptr, ptr %first_slot, i64 %s
  %s_object = load ptr, ptr %s_slot
  call void @Py_IncRef(ptr %s_object)
  %s_set = call i32 @PyTuple_SetItem(ptr %tuple, i64 %s, ptr %s_object)
  br label %filling

end:
  %result = phi ptr [null, %copy_one], [null, %copied], [null, %make], [null, %made], [%unlike, %not_like],
    [null, %raise], [null, %return_it], [null, %tell_one], [null, %finish_it], [%none, %nothing], [%only, %single],
    [null, %several], [%tuple, %filling]
  br label %dropping
{loop("dropping", "x", "slots", after="end", body="drop", end="out", last="dropped")}
drop:
  %x_slot = getelementptr ptr, ptr %objects, i64 %x
  %x_object = load ptr, ptr %x_slot
  %x_none = icmp eq ptr %x_object, null
  br i1 %x_none, label %dropped, label %drop_it
drop_it:
  call void @Py_DecRef(ptr %x_object)
  br label %dropped
dropped:
  br label %dropping
out:
  call void @Py_DecRef(ptr %keeper)
  ret ptr %result
}}

; -- trouble(code, (arguments and outputs)); null: it raised ---------------------------------------------------------
define internal ptr @raise(ptr %trouble, i64 %code, ptr %args, i64 %given, ptr %objects, i64 %outputs) {{
entry:
  %passed = alloca [2 x ptr], align 8
  %passed_1 = getelementptr ptr, ptr %passed, i64 1
  %all = add i64 %given, %outputs
  %tuple = call ptr @PyTuple_New(i64 %all)
  %no_tuple = icmp eq ptr %tuple, null
  br i1 %no_tuple, label %failed, label %filling
failed:
  ret ptr null
{loop("filling", "i", "all", after="entry", body="fill", end="filled")}
fill:
  %is_given = icmp ult i64 %i, %given
  %from = select i1 %is_given, ptr %args, ptr %objects
  %slot = getelementptr ptr, ptr %from, i64 %i
  %object = load ptr, ptr %slot
  call void @Py_IncRef(ptr %object)
  %set = call i32 @PyTuple_SetItem(ptr %tuple, i64 %i, ptr %object)
  br label %filling
filled:
  %number = call ptr @PyLong_FromLong(i64 %code)
  store ptr %number, ptr %passed
  store ptr %tuple, ptr %passed_1
  %answer = call ptr @PyObject_Vectorcall(ptr %trouble, ptr %passed, i64 2, ptr null)
  call void @Py_DecRef(ptr %number)
  call void @Py_DecRef(ptr %tuple)
  ret ptr %answer
}}
"""
