"""fmod, exactly: multiples of the divisor by powers of two are subtracted, the largest first.

The largest multiple has the dividend's exponent and the divisor's fraction. Every difference is exact, since both
operands are multiples of the divisor's last bit, and so is every half of a multiple down to the divisor itself. The
loop has as many iterations as the quotient has bits. Subnormal dividends are scaled up first, as is the divisor.
"""

from __future__ import annotations

from tilewright.codegen.mathematics.lanes import Lanes, Number

_INFINITE = float("inf")


def remainder(m: Lanes, x: Number, y: Number) -> Number:
    """Emit C's fmod(x, y) for each lane, and return the exact result: x - n*y, where the integer n is x/y truncated.

    It has the sign of x. It is NaN if y is 0, x is infinite, or either is NaN. `m` emits the LLVM instructions.
    """
    least, scale = 2.0 ** (1 - m.bias), 2.0 ** (m.fraction + 1)
    a, b = m.magnitude(x), m.magnitude(y)
    is_finite = a < _INFINITE
    tiny = a < least
    start = m.select(is_finite, m.select(tiny, a * scale, a), 0.0)
    divisor = m.select(tiny, b * scale, b)
    normal_divisor = m.select(divisor < least, divisor * scale, divisor)  # its fraction has a leading one
    largest = m.of_bits((m.bits_of(normal_divisor) & ((1 << m.fraction) - 1)) | (m.bits_of(start) & m.infinity))
    largest = m.select(largest > start, largest * 0.5, largest)
    result = _subtract_multiples(m, start, largest, m.select(divisor.equals(0.0), _INFINITE, divisor))
    result = m.flip_sign(m.select(tiny, result * (1 / scale), result), m.sign_bit(x))
    is_nan = y.equals(0.0) | x.unordered(y) | is_finite.inverted()
    return m.select(is_nan, x * float("nan"), result)


def _subtract_multiples(m: Lanes, start: Number, first: Number, least: Number) -> Number:
    """Emit a loop that subtracts from `start` multiples of `least`, and return the number that remains.

    It subtracts `first` if that is not larger, then half of `first`, and so on down to `least`: start 13, first 8,
    least 2 gives 1. All three must be positive or 0. For a vector, the loop ends once all lanes are below `least`. `m`
    emits the LLVM instructions.
    """
    w, form = m.w, m.form(m.float)
    before, loop, body, done = w.block, *(w.name(name)[1:] for name in ("remainder", "round", "rest"))
    w.line(f"br label %{loop}")
    w.label(loop)
    rest, step = w.name(), w.name()
    next_rest, next_step = w.name(), w.name()
    w.line(f"{rest} = phi {form} [ {start}, %{before} ], [ {next_rest}, %{body} ]")
    w.line(f"{step} = phi {form} [ {first}, %{before} ], [ {next_step}, %{body} ]")
    remaining, multiple = m.number(rest), m.number(step)
    is_unfinished = multiple >= least
    any_unfinished = is_unfinished.text
    if m.lanes is not None:
        mask = w.value(f"bitcast {m.form('i1')} {is_unfinished} to i{m.lanes}")
        any_unfinished = w.value(f"icmp ne i{m.lanes} {mask}, 0")
    w.line(f"br i1 {any_unfinished}, label %{body}, label %{done}")
    w.label(body)
    fits = is_unfinished & (remaining >= multiple)
    difference = remaining - multiple
    w.line(f"{next_rest} = select {m.form('i1')} {fits}, {form} {difference}, {form} {remaining}")
    w.line(f"{next_step} = fmul {form} {multiple}, {m.like(0.5, m.float)}")
    w.line(f"br label %{loop}")
    w.label(done)
    return remaining
