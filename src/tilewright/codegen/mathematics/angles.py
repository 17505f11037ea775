"""Large angles: x modulo pi/2 by the bits of 2/pi that count, for single f64 numbers of at least 2^20.

x is an integer of 53 bits times 2^E. Bits of 2/pi whose product with it is a multiple of four quarter turns do not
count. The product with the 192 bits that follow, modulo 2^192, holds the quarter turns in its first two bits and the
fraction of one below. No f64 is closer to a multiple of pi/2 than about 2^-62, so more than 60 bits of the fraction are
left where it is smallest.
"""

from __future__ import annotations

from fractions import Fraction

from tilewright.codegen.mathematics.lanes import Lanes, Number
from tilewright.codegen.text import Writer

NAME = "@tw.large_angle"
_TABLE = "@tw.two_over_pi"
_PADDING = 64
"""Zeros before the bits of 2/pi: angles of 2^20 begin to the left of its first bit."""
_BITS = 1344


def _pi(bits: int) -> int:
    """pi times 2^bits, cut: 16 atan(1/5) - 4 atan(1/239)."""

    def inverse_tangent(n: int) -> int:
        term = total = one // n
        k, sign = 1, 1
        while term:
            term //= n * n
            k, sign = k + 2, -sign
            total += sign * (term // k)
        return total

    spare = 32
    one = 1 << (bits + spare)
    return (16 * inverse_tangent(5) - 4 * inverse_tangent(239)) >> spare


HALF_PI = Fraction(_pi(400), 1 << 401)
TWO_OVER_PI = float(1 / HALF_PI)


def _table() -> str:
    """The bits of 2/pi in words, first bits first."""
    bits = _BITS - _PADDING
    value = (1 << (2 * bits + 1 + 64)) // _pi(bits + 64)
    words = [(value >> (_BITS - 64 * (k + 1))) & ((1 << 64) - 1) for k in range(_BITS // 64)]
    entries = ", ".join(f"i64 {word}" for word in words)
    return f"{_TABLE} = internal constant [{len(words)} x i64] [{entries}]"


def large_angle(w: Writer) -> str:
    """The name of the function that gives r, what its rounding lost, and the number of quarter turns."""
    if NAME not in w.defined:
        inner = Writer(w.fused, w.nan_maximum)
        result = _body(inner)
        w.define(_TABLE, _table())
        w.define(
            NAME,
            f"define internal {{ double, double, i64 }} {NAME}(double %x) nounwind cold noinline {{\nentry:\n"
            f"{inner.text()}\n  ret {{ double, double, i64 }} {result}\n}}",
            inner,
        )
    return NAME


def _body(w: Writer) -> str:
    m = Lanes(w, None, 64)
    v = w.value
    bits = m.bits_of(m.number("%x"))
    exponent = (bits >> 52) & 0x7FF
    mantissa = (bits & ((1 << 52) - 1)) | (1 << 52)
    first = exponent + (_PADDING - 1075 - 2)  # the bit of the table whose product with the mantissa is worth 2
    index, shift = first >> 6, first & 63
    pointers = [v(f"getelementptr i64, ptr {_TABLE}, i64 {index + k}") for k in range(4)]
    words = [v(f"load i64, ptr {pointer}") for pointer in pointers]
    w.declare("i64 @llvm.fshl.i64(i64, i64, i64)")
    w.declare("i128 @llvm.ctlz.i128(i128, i1)")
    window = [v(f"call i64 @llvm.fshl.i64(i64 {words[k]}, i64 {words[k + 1]}, i64 {shift})") for k in range(3)]
    wide = v(f"zext i64 {mantissa} to i128")
    parts = [v(f"mul i128 {v(f'zext i64 {word} to i128')}, {wide}") for word in window]
    middle = v(f"add i128 {parts[1]}, {v(f'lshr i128 {parts[2]}, 64')}")
    total = v(f"add i128 {v(f'shl i128 {parts[0]}, 64')}, {middle}")
    # the nearest quarter turn, and the signed rest, in units of 2^-126
    turns = Number(m, v(f"trunc i128 {v(f'lshr i128 {total}, 125')} to i64"), "i64") + 1 >> 1
    taken = v(f"zext i64 {turns} to i128")
    rest = v(f"sub i128 {total}, {v(f'shl i128 {taken}, 126')}")
    below = v(f"icmp slt i128 {rest}, 0")
    size = v(f"select i1 {below}, i128 {v(f'sub i128 0, {rest}')}, i128 {rest}")
    zeros = v(f"and i128 {v(f'call i128 @llvm.ctlz.i128(i128 {size}, i1 false)')}, 127")
    normal = v(f"shl i128 {size}, {zeros}")
    upper = Number(m, v(f"trunc i128 {v(f'lshr i128 {normal}, 75')} to i64"), "i64")
    lower = Number(m, v(f"trunc i128 {v(f'lshr i128 {normal}, 22')} to i64"), "i64") & ((1 << 53) - 1)
    unit = m.of_bits((1023 + 75 - 126 - Number(m, v(f"trunc i128 {zeros} to i64"), "i64")) << 52)
    hi, lo = m.of_integer(upper) * unit, m.of_integer(lower) * unit * 2.0**-53
    most = float(HALF_PI)
    least = float(HALF_PI - Fraction(most))
    product, lost = m.product_of(hi, most)
    r, more = m.sum_of(product, lost + (hi * least + lo * most))
    sign = m.sign_bit(m.number("%x"))
    turned = Number(m, v(f"select i1 {below}, i64 {-m.sign}, i64 0"), "i64") ^ sign
    count = m.select(m.number("%x") < 0.0, 0 - turns, turns)
    found = v(f"insertvalue {{ double, double, i64 }} poison, double {m.with_sign(r, turned)}, 0")
    found = v(f"insertvalue {{ double, double, i64 }} {found}, double {m.with_sign(more, turned)}, 1")
    return v(f"insertvalue {{ double, double, i64 }} {found}, i64 {count}, 2")
