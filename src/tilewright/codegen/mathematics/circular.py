"""sin and cos.

The angle is n quarter turns plus r, |r| at most an eighth of a turn. Below 2^20, n pi/2 is subtracted in parts whose
products with n are exact (f32 does this in f64). If any lane has a larger angle, its lanes are reduced one by one by
`large_angle` (`angles.py`), which multiplies by as many bits of 2/pi as are needed.
"""

from __future__ import annotations

from fractions import Fraction

from tilewright.codegen.mathematics.angles import HALF_PI, TWO_OVER_PI, large_angle
from tilewright.codegen.mathematics.coefficients import COEFFICIENTS
from tilewright.codegen.mathematics.lanes import Lanes, Number

LARGE = 2.0**20
_SHORT = 33
"""Bits of a part of pi/2: its product with an n of 20 bits has 53."""


def _half_pi(*lengths: int) -> list[float]:
    """Return pi/2 as a list of floats that add up to it.

    The n-th float has the next lengths[n] bits of pi/2. One more float, at the end, is the remainder, rounded.
    """
    parts, rest = [], HALF_PI
    scale = 0
    for length in lengths:
        scale += length
        part = Fraction(int(rest * 2**scale), 2**scale)
        parts.append(float(part))
        rest -= part
    return [*parts, float(rest)]


def sin(m: Lanes, x: Number) -> Number:
    """Emit the sine of x, an angle in radians of any size, for each lane, and return the result; NaN if x is not
    finite.

    `m` emits the LLVM instructions.
    """
    return m.select(x.equals(0.0), x, _sine_plus_quarters(m, x, 0))


def cos(m: Lanes, x: Number) -> Number:
    """Emit the cosine of x, an angle in radians of any size, for each lane, and return the result; NaN if x is not
    finite.

    `m` emits the LLVM instructions.
    """
    return _sine_plus_quarters(m, x, 1)


def _sine_plus_quarters(m: Lanes, x: Number, quarters: int) -> Number:
    """Emit sin(x + quarters*pi/2) for each lane, and return the result; NaN if x is not finite.

    `quarters` 0 gives the sine of x, 1 the cosine. `m` emits the LLVM instructions.
    """
    hi, lo, n = _reduced_angle(m, x)
    n = n + quarters
    z = hi * hi
    sine, cosine = _sine(m, hi, lo, z), _cosine(m, hi, lo, z)
    result = m.select((n & 1).equals(0), sine, cosine)
    result = m.flip_sign(result, (n & 2) << (m.bits - 2))
    return m.select(m.magnitude(x) < float("inf"), result, x - x)


def _sine(m: Lanes, r: Number, rest: Number | None, z: Number) -> Number:
    """Emit sin(r + rest) for each lane, and return it; |r| must be at most about pi/4.

    `rest` is the rounding error of r; None: it is neglected. `z` must be r^2. The result is r + rest + r^3 Q(z) -
    z*rest/2 with a polynomial Q. `m` emits the LLVM instructions.
    """
    first, *others = COEFFICIENTS[f"sin.{m.name}"]
    cube, q = z * r, m.polynomial(z, others)
    if rest is None:
        return m.fused(cube, m.fused(z, q, first), r)
    return r - ((z * (rest * 0.5 - cube * q) - rest) - cube * first)


def _cosine(m: Lanes, r: Number, rest: Number | None, z: Number) -> Number:
    """Emit cos(r + rest) for each lane, and return it; |r| must be at most about pi/4.

    `rest` is the rounding error of r; None: it is neglected. `z` must be r^2. The result is 1 - z/2 + z^2 Q(z) - r*rest
    with a polynomial Q; the rounding error of 1 - z/2 is added. `m` emits the LLVM instructions.
    """
    half = z * 0.5
    head = 1.0 - half
    tail = z * z * m.polynomial(z, COEFFICIENTS[f"cos.{m.name}"])
    return head + (((1.0 - head) - half) + (tail if rest is None else tail - r * rest))


def _reduced_angle(m: Lanes, x: Number) -> tuple[Number, Number | None, Number]:
    """Emit the reduction of x modulo pi/2, x = n*pi/2 + r with |r| up to about pi/4; return (r, rounding error of r,
    n).

    The rounding error is None for f32 numbers, which are reduced in f64. n is an integer with only its lowest bits
    right, enough for n modulo 4. `m` emits the LLVM instructions.
    """
    m64 = m.at(64)
    angle = m.widened(x) if m.bits == 32 else x
    moved = angle * TWO_OVER_PI + m64.rounder
    n = moved - m64.rounder
    if m.bits == 32:
        half_pi_hi, half_pi_lo = _half_pi(_SHORT)
        hi, lo = (angle - n * half_pi_hi) - n * half_pi_lo, m64.constant(0.0)
    else:
        hi, lo = _minus_quarter_turns(m, angle, n)
    hi, lo, turns = _replace_large_angles(m64, angle, (hi, lo, m64.bits_of(moved)))
    if m.bits == 64:
        return hi, lo, turns
    return m.narrowed(hi), None, m.low_half(turns)


def _minus_quarter_turns(m: Lanes, x: Number, n: Number) -> tuple[Number, Number]:
    """Emit x - n*pi/2 for f64 numbers with |x| below 2^20, and return (result, rounding error of the result).

    n is an integer stored as a float. The result is accurate also if x is close to n*pi/2. `m` emits the LLVM
    instructions.
    """
    first, second, third, rest = _half_pi(_SHORT, _SHORT, _SHORT)
    a, lost_a = m.difference_of(x - n * first, n * second)
    b, lost_b = m.difference_of(a, n * third)
    tail = (lost_a + lost_b) - n * rest
    total = b + tail
    return total, (b - total) + tail


def _replace_large_angles(m: Lanes, x: Number, reduced: tuple[Number, Number, Number]) -> tuple[Number, Number, Number]:
    """Emit a branch that computes lanes with |x| >= 2^20 anew by `large_angle`; return `reduced` with these lanes
    replaced.

    The branch is taken if any lane has such an x. `reduced` is (x modulo pi/2, its rounding error, number of quarter
    turns), and is right only in lanes with |x| below 2^20. `m` emits the LLVM instructions.
    """
    w, form = m.w, m.form
    large = m.magnitude(x) >= LARGE
    any_large, before, after = large.text, w.block, w.name("angles")[1:]
    if m.lanes is not None:
        mask = w.value(f"bitcast {form('i1')} {large} to i{m.lanes}")
        any_large = w.value(f"icmp ne i{m.lanes} {mask}, 0")
    branch = w.name("large")[1:]
    w.line(f"br i1 {any_large}, label %{branch}, label %{after}")
    w.label(branch)
    safe = m.select(large, x, LARGE)
    replaced = _reduced_lane_by_lane(m, safe)
    chosen = [m.select(large, a, b) for a, b in zip(replaced, reduced, strict=True)]
    end = w.block
    w.line(f"br label %{after}")
    w.label(after)
    joined = []
    for a, b in zip(reduced, chosen, strict=True):
        name = w.value(f"phi {form(a.kind)} [ {a}, %{before} ], [ {b}, %{end} ]")
        joined.append(Number(m, name, a.kind))
    return joined[0], joined[1], joined[2]


def _reduced_lane_by_lane(m: Lanes, x: Number) -> list[Number]:
    """Emit a loop that calls the function of `large_angle` for each lane of x.

    Return [x modulo pi/2, its rounding error, number of quarter turns]. x must be f64 with |x| >= 2^20 in every lane. A
    single float takes one call without a loop. `m` emits the LLVM instructions.
    """
    w, result, symbol = m.w, "{ double, double, i64 }", large_angle(m.w)
    kinds = ("double", "double", "i64")
    if m.lanes is None:
        returned = w.value(f"call {result} {symbol}(double {x})")
        return [Number(m, w.value(f"extractvalue {result} {returned}, {k}"), kind) for k, kind in enumerate(kinds)]
    before, loop, done = w.block, w.name("lane")[1:], w.name("lanes")[1:]
    w.line(f"br label %{loop}")
    w.label(loop)
    lane, following = w.name("i"), w.name("next")
    w.line(f"{lane} = phi i64 [ 0, %{before} ], [ {following}, %{loop} ]")
    vectors, updated = [w.name() for _ in kinds], [w.name() for _ in kinds]
    for vector, next_vector, kind in zip(vectors, updated, kinds, strict=True):
        w.line(f"{vector} = phi {m.form(kind)} [ poison, %{before} ], [ {next_vector}, %{loop} ]")
    angle = w.value(f"extractelement {m.form('double')} {x}, i64 {lane}")
    returned = w.value(f"call {result} {symbol}(double {angle})")
    for k, (vector, next_vector, kind) in enumerate(zip(vectors, updated, kinds, strict=True)):
        item = w.value(f"extractvalue {result} {returned}, {k}")
        w.line(f"{next_vector} = insertelement {m.form(kind)} {vector}, {kind} {item}, i64 {lane}")
    w.line(f"{following} = add i64 {lane}, 1")
    more = w.value(f"icmp ult i64 {following}, {m.lanes}")
    w.line(f"br i1 {more}, label %{loop}, label %{done}")
    w.label(done)
    return [Number(m, next_vector, kind) for next_vector, kind in zip(updated, kinds, strict=True)]
