"""Conversions to and from 16-bit floats as LLVM functions, for CPUs that have no instruction for them.

LLVM calls them by the names of compilers' support libraries, which a process of Python does not have. Each rounds once,
to the nearest, ties to even. A double first becomes a float whose last bit records whether anything was cut off ("round
to odd"), so that the second rounding sees it.
"""

from __future__ import annotations

from functools import cache

NAMES = ("__truncsfbf2", "__truncdfbf2", "__truncsfhf2", "__truncdfhf2", "__extendhfsf2")

TEXT = """
define bfloat @__truncsfbf2(float %x) {
  %bits = bitcast float %x to i32
  %high = lshr i32 %bits, 16
  %odd = and i32 %high, 1
  %half = add i32 %bits, 32767
  %sum = add i32 %half, %odd
  %rounded = lshr i32 %sum, 16
  %quiet = or i32 %high, 64
  %nan = fcmp uno float %x, 0.0
  %word = select i1 %nan, i32 %quiet, i32 %rounded
  %short = trunc i32 %word to i16
  %y = bitcast i16 %short to bfloat
  ret bfloat %y
}

define bfloat @__truncdfbf2(double %x) {
  %f = call float @to_odd(double %x)
  %y = call bfloat @__truncsfbf2(float %f)
  ret bfloat %y
}

define half @__truncdfhf2(double %x) {
  %f = call float @to_odd(double %x)
  %y = call half @__truncsfhf2(float %f)
  ret half %y
}

define internal float @to_odd(double %x) {
  %f = fptrunc double %x to float
  %back = fpext float %f to double
  %differs = fcmp one double %back, %x
  %bits = bitcast float %f to i32
  %size = call double @llvm.fabs.f64(double %x)
  %backsize = call double @llvm.fabs.f64(double %back)
  %above = fcmp ogt double %backsize, %size
  %one = zext i1 %above to i32
  %below = sub i32 %bits, %one
  %odd = or i32 %below, 1
  %word = select i1 %differs, i32 %odd, i32 %bits
  %y = bitcast i32 %word to float
  ret float %y
}

define half @__truncsfhf2(float %x) {
  %bits = bitcast float %x to i32
  %size = and i32 %bits, 2147483647
  %top = lshr i32 %bits, 16
  %sign = and i32 %top, 32768
  ; below 2^-14: adding a half moves the last bit of the result to the last bit of the sum
  %small = bitcast i32 %size to float
  %moved = fadd float %small, 0.5
  %movedbits = bitcast float %moved to i32
  %subnormal = sub i32 %movedbits, 1056964608
  ; others: another exponent, and half of the last bit
  %last = lshr i32 %size, 13
  %odd = and i32 %last, 1
  %shifted = add i32 %size, 3355447295
  %sum = add i32 %shifted, %odd
  %normal = lshr i32 %sum, 13
  %issmall = icmp ult i32 %size, 947912704
  %finite = select i1 %issmall, i32 %subnormal, i32 %normal
  %islarge = icmp uge i32 %size, 1199570944
  %ranged = select i1 %islarge, i32 31744, i32 %finite
  %payload = and i32 %last, 1023
  %quiet = or i32 %payload, 32256
  %nan = fcmp uno float %x, 0.0
  %body = select i1 %nan, i32 %quiet, i32 %ranged
  %word = or i32 %body, %sign
  %short = trunc i32 %word to i16
  %y = bitcast i16 %short to half
  ret half %y
}

define float @__extendhfsf2(half %x) {
  %short = bitcast half %x to i16
  %word = zext i16 %short to i32
  %size = and i32 %word, 32767
  %signbit = and i32 %word, 32768
  %sign = shl i32 %signbit, 16
  %moved = shl i32 %size, 13
  %f = bitcast i32 %moved to float
  %scaled = fmul float %f, 0x46F0000000000000
  %bits = bitcast float %scaled to i32
  %endless = or i32 %moved, 2139095040
  %islarge = icmp uge i32 %size, 31744
  %body = select i1 %islarge, i32 %endless, i32 %bits
  %all = or i32 %body, %sign
  %y = bitcast i32 %all to float
  ret float %y
}

declare double @llvm.fabs.f64(double)
"""


def needed_by(data: bytes) -> bool:
    """True if the object code `data` contains the name of one of the conversion functions NAMES."""
    return any(name.encode() in data for name in NAMES)


@cache
def addresses() -> dict[str, int]:
    """Return {name: address in this process} of the conversion functions NAMES. The first call compiles and links them,
    and the result is cached.
    """
    from tilewright.targets.cpu.load import link, object_of

    code = link(object_of(TEXT), NAMES)
    _kept.append(code)
    return {name: code.address(name) for name in NAMES}


_kept: list[object] = []
