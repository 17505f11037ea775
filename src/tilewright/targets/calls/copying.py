"""LLVM text that copies small arrays to contiguous memory on the stack of a call, and back."""

from __future__ import annotations

from tilewright.targets.calls.llvm_text import fields
from tilewright.targets.calls.words import SIZES, SMALL


def _strided(size: int) -> str:
    """Return the text of the LLVM function `strided_SIZE(packed, far, dims, rank, unit, back)`, where SIZE is `size`.
    At run time it copies an array with elements of `size` bytes from the strided memory `far` to the contiguous memory
    `packed`. If `back` is true, it copies from `packed` to `far`. It returns the end of the contiguous memory. `dims`
    has `rank` pairs (extent, stride), and strides are in units of `unit` bytes.
    """
    kind = f"i{8 * size}"

    def elements(name: str, source: str, goal: str) -> str:
        """Return the text of the LLVM loop `name`, which copies the innermost dimension. `source` and `goal` are the
        memory that is read and the memory that is written: "p" is the contiguous memory, "f" the strided memory.
        """
        return f"""
{name}:
  %{name}_i = phi i64 [0, %innermost], [%{name}_i_next, %{name}]
  %{name}_p = phi ptr [%packed, %innermost], [%{name}_p_next, %{name}]
  %{name}_f = phi ptr [%far, %innermost], [%{name}_f_next, %{name}]
  %{name}_value = load {kind}, ptr %{name}_{source}, align 1
  store {kind} %{name}_value, ptr %{name}_{goal}, align 1
  %{name}_p_next = getelementptr i8, ptr %{name}_p, i64 {size}
  %{name}_f_next = getelementptr i8, ptr %{name}_f, i64 %step
  %{name}_i_next = add i64 %{name}_i, 1
  %{name}_more = icmp ult i64 %{name}_i_next, %extent
  br i1 %{name}_more, label %{name}, label %done"""

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
  %is_empty = icmp eq i64 %extent, 0
  br i1 %is_empty, label %done, label %some
some:
  br i1 %is_last, label %innermost, label %row
row:
  %i = phi i64 [0, %some], [%i_next, %row]
  %p = phi ptr [%packed, %some], [%p_next, %row]
  %f = phi ptr [%far, %some], [%f_next, %row]
  %p_next = call ptr @strided_{size}(ptr %p, ptr %f, ptr %inner, i64 %less, i64 %unit, i1 %back)
  %f_next = getelementptr i8, ptr %f, i64 %step
  %i_next = add i64 %i, 1
  %more = icmp ult i64 %i_next, %extent
  br i1 %more, label %row, label %done
innermost:
  br i1 %back, label %to_far, label %to_packed{elements("to_packed", "f", "p")}{elements("to_far", "p", "f")}
done:
  %end = phi ptr [%packed, %entry], [%p_next, %row], [%to_packed_p_next, %to_packed], [%to_far_p_next, %to_far]
  ret ptr %end
}}
"""


def _strided_by_size() -> str:
    """Return LLVM text that calls `strided_SIZE` for the element size in %size, and then returns from the function. A
    size that is not in SIZES is treated as 1.
    """
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
