"""All limits on what texts and calls may contain, in one table; input beyond a limit is refused before it costs time.

The limits are far above what programs need. They bound time and memory for malformed texts.

>>> NESTING.refuses(65), NESTING.refuses(64)
(True, False)
>>> integer("12"), integer("9" * 5000)
Traceback (most recent call last):
tilewright.errors.LimitExceeded: 99999999999999999999...: an integer has at most 512 bits
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from reprlib import Repr

from tilewright.errors import LimitExceeded


@dataclass(frozen=True)
class Limit:
    """One limit: the largest allowed count, and the rule as an error message states it."""

    most: int
    rule: str

    def refuses(self, count: int) -> bool:
        """True if `count` is greater than the limit `most`."""
        return count > self.most

    def check(self, count: int, what: object) -> None:
        """Raise LimitExceeded if `count` exceeds the limit `most`. The message is `str(what)`, cut to 24 characters,
        and the rule.
        """
        if count > self.most:
            raise LimitExceeded(f"{shown(what)}: {self.rule}")


NESTING = Limit(64, "brackets, calls and blocks are nested at most 64 deep")
OPERATORS = Limit(512, "an expression has at most 512 operators")
FORMULA = Limit(128, "the operations of a formula are nested at most 128 deep")
INTEGER = Limit((1 << 512) - 1, "an integer has at most 512 bits")
ELEMENTS = Limit(1 << 48, "a tensor has extents, strides and a number of elements of at most 2**48")
RANK = Limit(32, "a tensor has at most 32 dimensions")
REGISTERS = Limit(1 << 20, "a tensor in registers has at most 2**20 elements")
VECTOR = Limit(1 << 14, "a register of the loop level has at most 2**14 elements")
SHARED = Limit(1 << 32, "an alloc makes at most 2**32 bytes")
TABLE = Limit(1 << 22, "a constant table has at most 2**22 elements")
WAVES = Limit(1 << 10, "a program has at most 1024 waves")
WORKERS = Limit(1 << 10, "a program has at most 1024 workers")
MODES = Limit(256, "a layout has at most 256 modes, nested modes included")
OFFSETS = Limit((1 << 63) - 1, "a layout's extents, strides and size are below 2**63")
SWIZZLE = Limit(48, "the sum of a swizzle's bits, base and shift is at most 48")
WRITTEN = Limit(1 << 14, "a program is lowered to at most 16384 operations of the loop level")
STEPS = Limit(1 << 22, "an interpreter executes at most 2**22 operations, unless this limit is raised")
BUFFER = Limit(1 << 24, "an interpreter's tensor has at most 2**24 elements")

LIMITS = (
    *(NESTING, OPERATORS, FORMULA, INTEGER, ELEMENTS, RANK, REGISTERS, VECTOR, SHARED, TABLE, WAVES, WORKERS),
    *(MODES, OFFSETS, SWIZZLE, WRITTEN, STEPS, BUFFER),
)


def shown(value: object, most: int = 24) -> str:
    """Return `str(value)` for an error message. A text of more than `most` characters is cut to less than `most`, and
    ends in "...".

    For an integer of magnitude above 2**2048, return its number of bits instead: "an integer of 16610 bits".

    >>> shown(10**40), shown("abc")
    ('10000000000000000000...', 'abc')
    """
    if isinstance(value, int) and abs(value) > 1 << 2048:  # its text would take long, or be refused
        return f"an integer of {value.bit_length()} bits"
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 4]}..."


class _Bounded(Repr):
    """A variant of `repr` whose texts have a bounded length for values of any depth and size."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 8
        self.maxtuple = self.maxlist = self.maxset = self.maxfrozenset = self.maxdict = 32
        self.maxstring = self.maxother = 1000

    def repr_int(self, x: int, level: int) -> str:
        """Return the integer `x` as text, shortened as by `shown`. `level`, the level of nesting, is not used."""
        return shown(x)


def written(value: object, most: int = 24) -> str:
    """Return `repr(value)` for an error message, cut to `most` characters. Beyond 8 levels of nesting, and 32 entries
    of a container, "..." stands.

    >>> written("abc"), written(10**5000), written((1, [2, 3]))
    ("'abc'", 'an integer of 16610 bits', '(1, [2, 3])')
    """
    return shown(_Bounded().repr(value), most)


def integer(text: str) -> int:
    """Return the integer that `text`, such as "-12", spells in decimal digits. Raise ValueError if `text` is no
    integer. Raise LimitExceeded for an integer of more than 512 bits, or a text of more than 160 characters.
    """
    if len(text) > 160 or abs(number := int(text)) > INTEGER.most:
        raise LimitExceeded(f"{shown(text)}: {INTEGER.rule}")
    return number


def did_you_mean(word: str, known: Iterable[str], most: int = 1) -> str:
    """Return the hint "; did you mean X?" for an error message about an unknown `word`; "" if no word in `known`
    resembles it.

    Up to `most` words of `known` are suggested, joined by "or", the most similar first. Upper and lower case are the
    same.

    >>> did_you_mean("colums", ["rows", "columns", "depth"])
    '; did you mean columns?'
    >>> did_you_mean("height", ["rows", "columns", "depth"])
    ''
    """
    from difflib import get_close_matches  # for messages alone

    names = {name.lower(): name for name in known}
    near = [names[name] for name in get_close_matches(word.lower(), names, most)]
    return f"; did you mean {' or '.join(near)}?" if near else ""
