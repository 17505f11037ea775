"""sin and cos.

The angle is n quarter turns and r, at most an eighth of a turn. Below 2^20, n pi/2 is taken off in parts short enough
that their products with n are exact; f32 does so in f64. Larger angles, if any lane has one, go lane by lane through
`large_angle` (`angles.py`), which multiplies by as many bits of 2/pi as count.
"""

from __future__ import annotations

from fractions import Fraction

from tilewright.codegen.mathematics.angles import HALF_PI, TWO_OVER_PI, large_angle
from tilewright.codegen.mathematics.coefficients import COEFFICIENTS
from tilewright.codegen.mathematics.lanes import Lanes, Number

LARGE = 2.0**20
_SHORT = 33
"""Bits of a part of pi/2: with an n of 20 bits, a product of 53."""


def _half_pi(*lengths: int) -> list[float]:
    """pi/2 in parts of so many bits, and the rest."""
    found, rest = [], HALF_PI
    scale = 0
    for length in lengths:
        scale += length
        part = Fraction(int(rest * 2**scale), 2**scale)
        found.append(float(part))
        rest -= part
    return [*found, float(rest)]


def sin(m: Lanes, x: Number) -> Number:
    """The sine; the angle in radians, of any size."""
    return m.select(x.equals(0.0), x, _turned(m, x, 0))


def cos(m: Lanes, x: Number) -> Number:
    """The cosine; the angle in radians, of any size."""
    return _turned(m, x, 1)


def _turned(m: Lanes, x: Number, quarters: int) -> Number:
    """sin(x + quarters pi/2)."""
    hi, lo, n = _reduced(m, x)
    n = n + quarters
    z = hi * hi
    sine, cosine = _sine(m, hi, lo, z), _cosine(m, hi, lo, z)
    found = m.select((n & 1).equals(0), sine, cosine)
    found = m.with_sign(found, (n & 2) << (m.bits - 2))
    return m.select(m.magnitude(x) < float("inf"), found, x - x)


def _sine(m: Lanes, r: Number, rest: Number | None, z: Number) -> Number:
    """sin(r + rest) = r + rest + r^3 Q(z) - z/2 rest."""
    first, *others = COEFFICIENTS[f"sin.{m.name}"]
    cube, q = z * r, m.polynomial(z, others)
    if rest is None:
        return m.fused(cube, m.fused(z, q, first), r)
    return r - ((z * (rest * 0.5 - cube * q) - rest) - cube * first)


def _cosine(m: Lanes, r: Number, rest: Number | None, z: Number) -> Number:
    """cos(r + rest) = 1 - z/2 + z^2 Q(z) - r rest, with what 1 - z/2 loses."""
    half = z * 0.5
    most = 1.0 - half
    tail = z * z * m.polynomial(z, COEFFICIENTS[f"cos.{m.name}"])
    return most + (((1.0 - most) - half) + (tail if rest is None else tail - r * rest))


def _reduced(m: Lanes, x: Number) -> tuple[Number, Number | None, Number]:
    """r, what its rounding lost (in f64), and the number of quarter turns in the lowest bits of a word."""
    wide = m.at(64)
    angle = m.widened(x) if m.bits == 32 else x
    moved = angle * TWO_OVER_PI + wide.rounder
    n = moved - wide.rounder
    if m.bits == 32:
        most, rest = _half_pi(_SHORT)
        hi, lo = (angle - n * most) - n * rest, wide.constant(0.0)
    else:
        hi, lo = _taken_off(m, angle, n)
    hi, lo, turns = _with_large(wide, angle, (hi, lo, wide.bits_of(moved)))
    if m.bits == 64:
        return hi, lo, turns
    return m.narrowed(hi), None, m.low_half(turns)


def _taken_off(m: Lanes, x: Number, n: Number) -> tuple[Number, Number]:
    """x - n pi/2 as a sum of two, right to the last bit also where nearly nothing is left."""
    first, second, third, rest = _half_pi(_SHORT, _SHORT, _SHORT)
    a, lost_a = m.difference_of(x - n * first, n * second)
    b, lost_b = m.difference_of(a, n * third)
    tail = (lost_a + lost_b) - n * rest
    total = b + tail
    return total, (b - total) + tail


def _with_large(m: Lanes, x: Number, found: tuple[Number, Number, Number]) -> tuple[Number, Number, Number]:
    """The same, with lanes of large angles done anew: a branch that is taken if there is any."""
    w, form = m.w, m.form
    large = m.magnitude(x) >= LARGE
    some, where, after = large.text, w.block, w.name("angles")[1:]
    if m.lanes is not None:
        mask = w.value(f"bitcast {form('i1')} {large} to i{m.lanes}")
        some = w.value(f"icmp ne i{m.lanes} {mask}, 0")
    rare = w.name("large")[1:]
    w.line(f"br i1 {some}, label %{rare}, label %{after}")
    w.label(rare)
    safe = m.select(large, x, LARGE)
    again = _one_by_one(m, safe)
    chosen = [m.select(large, a, b) for a, b in zip(again, found, strict=True)]
    end = w.block
    w.line(f"br label %{after}")
    w.label(after)
    joined = []
    for a, b in zip(found, chosen, strict=True):
        name = w.value(f"phi {form(a.kind)} [ {a}, %{where} ], [ {b}, %{end} ]")
        joined.append(Number(m, name, a.kind))
    return joined[0], joined[1], joined[2]


def _one_by_one(m: Lanes, x: Number) -> list[Number]:
    """`large_angle` of every lane, in a loop: hi, lo, quarter turns."""
    w, result, full = m.w, "{ double, double, i64 }", large_angle(m.w)
    kinds = ("double", "double", "i64")
    if m.lanes is None:
        one = w.value(f"call {result} {full}(double {x})")
        return [Number(m, w.value(f"extractvalue {result} {one}, {k}"), kind) for k, kind in enumerate(kinds)]
    before, loop, done = w.block, w.name("lane")[1:], w.name("lanes")[1:]
    w.line(f"br label %{loop}")
    w.label(loop)
    lane, following = w.name("i"), w.name("next")
    w.line(f"{lane} = phi i64 [ 0, %{before} ], [ {following}, %{loop} ]")
    sums, parts = [w.name() for _ in kinds], [w.name() for _ in kinds]
    for total, part, kind in zip(sums, parts, kinds, strict=True):
        w.line(f"{total} = phi {m.form(kind)} [ poison, %{before} ], [ {part}, %{loop} ]")
    angle = w.value(f"extractelement {m.form('double')} {x}, i64 {lane}")
    one = w.value(f"call {result} {full}(double {angle})")
    for k, (total, part, kind) in enumerate(zip(sums, parts, kinds, strict=True)):
        piece = w.value(f"extractvalue {result} {one}, {k}")
        w.line(f"{part} = insertelement {m.form(kind)} {total}, {kind} {piece}, i64 {lane}")
    w.line(f"{following} = add i64 {lane}, 1")
    more = w.value(f"icmp ult i64 {following}, {m.lanes}")
    w.line(f"br i1 {more}, label %{loop}, label %{done}")
    w.label(done)
    return [Number(m, part, kind) for part, kind in zip(parts, kinds, strict=True)]
