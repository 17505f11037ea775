"""Functions that LLVM's code calls implicitly (conversions, memcpy, memset), for objects that use no library."""

from __future__ import annotations

import re

from tilewright.targets.cpu import conversions

_MEMORY = """
define internal ptr @memset(ptr %p, i32 %v, i64 %n) nounwind {
entry:
  %b = trunc i32 %v to i8
  br label %look
look:
  %i = phi i64 [0, %entry], [%j, %body]
  %some = icmp ult i64 %i, %n
  br i1 %some, label %body, label %out
body:
  %q = getelementptr i8, ptr %p, i64 %i
  store volatile i8 %b, ptr %q
  %j = add i64 %i, 1
  br label %look
out:
  ret ptr %p
}

define internal ptr @memcpy(ptr %p, ptr %s, i64 %n) nounwind {
entry:
  br label %look
look:
  %i = phi i64 [0, %entry], [%j, %body]
  %some = icmp ult i64 %i, %n
  br i1 %some, label %body, label %out
body:
  %q = getelementptr i8, ptr %p, i64 %i
  %r = getelementptr i8, ptr %s, i64 %i
  %b = load i8, ptr %r
  store volatile i8 %b, ptr %q
  %j = add i64 %i, 1
  br label %look
out:
  ret ptr %p
}
"""
# volatile: LLVM would turn a loop that fills or copies into a call of this very function

_CONVERSIONS = re.sub(r"^define (?!internal )", "define internal ", conversions.TEXT, flags=re.MULTILINE)

TEXTS = {("memset", "memcpy"): _MEMORY, conversions.NAMES: _CONVERSIONS}
"""LLVM texts by the names of their functions, which are internal to the module that the text is added to."""


def support_for(names: set[str]) -> str:
    """Return the LLVM text of the support functions in `names`. All functions of a group (conversions; memset and
    memcpy) are added if `names` has one of them. Other names add nothing.

    >>> "@memcpy" in support_for({"memset"}), support_for({"printf"})
    (True, '')
    """
    return "".join(text for functions, text in TEXTS.items() if names & set(functions))
