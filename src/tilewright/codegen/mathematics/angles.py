"""Range reduction of large angles: x modulo pi/2 for single f64 numbers of at least 2^20 (Payne-Hanek).

x is an integer of 53 bits times 2^E. Bits of 2/pi whose product with x is a multiple of four quarter turns are skipped.
The product of the integer with the next 192 bits, modulo 2^192, has the number of quarter turns in its first two bits
and a fraction of a quarter turn in the bits below. No f64 is closer to a multiple of pi/2 than about 2^-62, so the
smallest fraction still has more than 60 significant bits.
"""

from __future__ import annotations

from fractions import Fraction

from tilewright.codegen.mathematics.lanes import Lanes, Number
from tilewright.codegen.text import Writer

NAME = "@tw.large_angle"
_TABLE = "@tw.two_over_pi"
_PADDING = 64
"""Zero bits before the bits of 2/pi: the window of an angle of 2^20 begins left of the first bit."""
_BITS = 1344


def _pi(bits: int) -> int:
    """Return floor(pi * 2^bits) as an integer, by Machin's formula 16 atan(1/5) - 4 atan(1/239)."""

    def inverse_tangent(n: int) -> int:
        """Return atan(1/n) as an integer in units of 1/`one` (fixed point), by its power series."""
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
    """Return the LLVM text that defines the table of 2/pi: an array of i64, highest bits first.

    It has 64 zero bits, then the first 1280 bits of 2/pi after the binary point.
    """
    bits = _BITS - _PADDING
    value = (1 << (2 * bits + 1 + 64)) // _pi(bits + 64)
    words = [(value >> (_BITS - 64 * (k + 1))) & ((1 << 64) - 1) for k in range(_BITS // 64)]
    entries = ", ".join(f"i64 {word}" for word in words)
    return f"{_TABLE} = internal constant [{len(words)} x i64] [{entries}]"


def large_angle(w: Writer) -> str:
    """Return the LLVM name of a function that reduces one large angle modulo pi/2.

    The function takes an f64 x with |x| >= 2^20. It returns the struct {r, rounding error of r, number of quarter
    turns}, with |r| at most pi/4. If the module of the writer `w` has no such function yet, its definition and its
    table of 2/pi are added.
    """
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
    """Emit into `w` the body of the function of `large_angle`: the reduction modulo pi/2 of its argument `%x`.

    `%x` is an f64 with |x| >= 2^20. Return the LLVM name of the struct {r, rounding error of r, number of quarter
    turns}.
    """
    m = Lanes(w, None, 64)
    v = w.value
    bits = m.bits_of(m.number("%x"))
    exponent = (bits >> 52) & 0x7FF
    mantissa = (bits & ((1 << 52) - 1)) | (1 << 52)
    first_bit = exponent + (_PADDING - 1075 - 2)  # the bit of the table whose product with the mantissa is 2
    index, shift = first_bit >> 6, first_bit & 63
    pointers = [v(f"getelementptr i64, ptr {_TABLE}, i64 {index + k}") for k in range(4)]
    words = [v(f"load i64, ptr {pointer}") for pointer in pointers]
    w.declare("i64 @llvm.fshl.i64(i64, i64, i64)")
    w.declare("i128 @llvm.ctlz.i128(i128, i1)")
    window = [v(f"call i64 @llvm.fshl.i64(i64 {words[k]}, i64 {words[k + 1]}, i64 {shift})") for k in range(3)]
    wide = v(f"zext i64 {mantissa} to i128")
    partial = [v(f"mul i128 {v(f'zext i64 {word} to i128')}, {wide}") for word in window]
    middle = v(f"add i128 {partial[1]}, {v(f'lshr i128 {partial[2]}, 64')}")
    total = v(f"add i128 {v(f'shl i128 {partial[0]}, 64')}, {middle}")
    # the nearest quarter turn, and the signed remainder in units of 2^-126
    turns = Number(m, v(f"trunc i128 {v(f'lshr i128 {total}, 125')} to i64"), "i64") + 1 >> 1
    whole_turns = v(f"zext i64 {turns} to i128")
    remainder = v(f"sub i128 {total}, {v(f'shl i128 {whole_turns}, 126')}")
    is_negative = v(f"icmp slt i128 {remainder}, 0")
    magnitude = v(f"select i1 {is_negative}, i128 {v(f'sub i128 0, {remainder}')}, i128 {remainder}")
    zeros = v(f"and i128 {v(f'call i128 @llvm.ctlz.i128(i128 {magnitude}, i1 false)')}, 127")
    normalized = v(f"shl i128 {magnitude}, {zeros}")
    upper = Number(m, v(f"trunc i128 {v(f'lshr i128 {normalized}, 75')} to i64"), "i64")
    lower = Number(m, v(f"trunc i128 {v(f'lshr i128 {normalized}, 22')} to i64"), "i64") & ((1 << 53) - 1)
    last_bit = m.of_bits((1023 + 75 - 126 - Number(m, v(f"trunc i128 {zeros} to i64"), "i64")) << 52)
    hi, lo = m.of_integer(upper) * last_bit, m.of_integer(lower) * last_bit * 2.0**-53
    half_pi_hi = float(HALF_PI)
    half_pi_lo = float(HALF_PI - Fraction(half_pi_hi))
    product, lost = m.product_of(hi, half_pi_hi)
    r, error = m.sum_of(product, lost + (hi * half_pi_lo + lo * half_pi_hi))
    sign = m.sign_bit(m.number("%x"))
    sign_flip = Number(m, v(f"select i1 {is_negative}, i64 {-m.sign}, i64 0"), "i64") ^ sign
    count = m.select(m.number("%x") < 0.0, 0 - turns, turns)
    result = v(f"insertvalue {{ double, double, i64 }} poison, double {m.flip_sign(r, sign_flip)}, 0")
    result = v(f"insertvalue {{ double, double, i64 }} {result}, double {m.flip_sign(error, sign_flip)}, 1")
    return v(f"insertvalue {{ double, double, i64 }} {result}, i64 {count}, 2")
