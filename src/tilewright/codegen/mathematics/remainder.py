"""fmod, exactly: multiples of the divisor by powers of two are taken off, the largest first.

The first has the dividend's exponent and the divisor's fraction. Every difference is a number of the type, since both
are multiples of the divisor's last bit, and so is every half of a multiple that is no less than the divisor. There are
as many rounds as the quotient has bits. Subnormal dividends are scaled up first, with the divisor.
"""

from __future__ import annotations

from tilewright.codegen.mathematics.lanes import Lanes, Number

_INFINITE = float("inf")


def remainder(m: Lanes, x: Number, y: Number) -> Number:
    """x less the multiple of y, rounded to zero, that leaves less than y; with the sign of x."""
    least, up = 2.0 ** (1 - m.bias), 2.0 ** (m.fraction + 1)
    a, b = m.magnitude(x), m.magnitude(y)
    some = a < _INFINITE
    tiny = a < least
    start = m.select(some, m.select(tiny, a * up, a), 0.0)
    by = m.select(tiny, b * up, b)
    whole = m.select(by < least, by * up, by)  # its fraction begins with a one
    step = m.of_bits((m.bits_of(whole) & ((1 << m.fraction) - 1)) | (m.bits_of(start) & m.infinity))
    step = m.select(step > start, step * 0.5, step)
    found = _taken_off(m, start, step, m.select(by.equals(0.0), _INFINITE, by))
    found = m.with_sign(m.select(tiny, found * (1 / up), found), m.sign_bit(x))
    none = y.equals(0.0) | x.unordered(y) | some.inverted()
    return m.select(none, x * float("nan"), found)


def _taken_off(m: Lanes, start: Number, first: Number, least: Number) -> Number:
    """What is left of `start` when `first`, its half, and so on down to `least` are taken off where they fit."""
    w, form = m.w, m.form(m.float)
    before, loop, body, done = w.block, *(w.name(name)[1:] for name in ("remainder", "round", "rest"))
    w.line(f"br label %{loop}")
    w.label(loop)
    rest, step = w.name(), w.name()
    next_rest, next_step = w.name(), w.name()
    w.line(f"{rest} = phi {form} [ {start}, %{before} ], [ {next_rest}, %{body} ]")
    w.line(f"{step} = phi {form} [ {first}, %{before} ], [ {next_step}, %{body} ]")
    left, now = m.number(rest), m.number(step)
    more = now >= least
    any_more = more.text
    if m.lanes is not None:
        mask = w.value(f"bitcast {m.form('i1')} {more} to i{m.lanes}")
        any_more = w.value(f"icmp ne i{m.lanes} {mask}, 0")
    w.line(f"br i1 {any_more}, label %{body}, label %{done}")
    w.label(body)
    fits = more & (left >= now)
    taken = left - now
    w.line(f"{next_rest} = select {m.form('i1')} {fits}, {form} {taken}, {form} {left}")
    w.line(f"{next_step} = fmul {form} {now}, {m.like(0.5, m.float)}")
    w.line(f"br label %{loop}")
    w.label(done)
    return left
