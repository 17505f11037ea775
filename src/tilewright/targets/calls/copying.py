"""Contiguous copies of small arrays, and back from them, as LLVM text: a call makes them on its stack."""

from __future__ import annotations

from tilewright.targets.calls.llvm_text import fields
from tilewright.targets.calls.words import SIZES, SMALL


def _strided(size: int) -> str:
    """Return the LLVM text of a function that copies between contiguous elements and elements with strides.

    The function returns the end of the contiguous ones.
    """
    return f"""
define internal ptr @strided_{size}(ptr %packed, ptr %far, ptr %dims, i64 %rank, i64 %unit, i1 %back) {{
entry:
  %extent = load i64, ptr %dims
  %stride_in = getelementptr i64, ptr %dims, i64 1
  %stride = load i64, ptr %stride_in
  %step = mul i64 %stride, %unit
  %inner = getelementptr i64, ptr %dims, i64 2
  %less = sub i64 %rank, 1
  %is_last = icmp eq i64 %less, 0
  br label %each
each:
  %i = phi i64 [0, %entry], [%i_next, %next]
  %p = phi ptr [%packed, %entry], [%p_next, %next]
  %f = phi ptr [%far, %entry], [%f_next, %next]
  %i_next = add i64 %i, 1
  %more = icmp ult i64 %i, %extent
  br i1 %more, label %one, label %done
one:
  br i1 %is_last, label %element, label %row
element:
  %from = select i1 %back, ptr %p, ptr %f
  %to = select i1 %back, ptr %f, ptr %p
  %value = load i{8 * size}, ptr %from, align 1
  store i{8 * size} %value, ptr %to, align 1
  %p_element = getelementptr i8, ptr %p, i64 {size}
  br label %next
row:
  %p_row = call ptr @strided_{size}(ptr %p, ptr %f, ptr %inner, i64 %less, i64 %unit, i1 %back)
  br label %next
next:
  %p_next = phi ptr [%p_element, %element], [%p_row, %row]
  %f_next = getelementptr i8, ptr %f, i64 %step
  br label %each
done:
  ret ptr %p
}}
"""


def _strided_by_size() -> str:
    """Return the LLVM text of a switch on the bytes of an element, which calls the strided copy for that size."""
    cases = " ".join(f"i64 {size}, label %by_{size}" for size in SIZES)
    calls = "".join(
        f"""by_{size}:
  %end_{size} = call ptr @strided_{size}(ptr %packed, ptr %far, ptr %dims, i64 %rank, i64 %unit, i1 %back)
  ret void
"""
        for size in SIZES
    )
    return f"  switch i64 %size, label %by_1 [{cases}]\n{calls}"


TEXT = f"""
; -- one of the small copies of a record, to `packed` or back from there -------------------------------------------
define internal void @copy_small(ptr %small, i64 %first, ptr %packed, i1 %back) {{
entry:
{fields(["dims", "rank", "size", "unit"], SMALL, "small", ["dims"])}
  %far = inttoptr i64 %first to ptr
{_strided_by_size()}}}
{"".join(map(_strided, SIZES))}
"""
