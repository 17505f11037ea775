"""Memory banks: how many passes it takes to serve simultaneous accesses.

A banked memory serves one word of each bank at a time. Neighbouring words lie in neighbouring banks, so the
columns of a row-major tile, whose rows are as long as all banks together, fall into a single bank:

>>> tile = Layout((32, 32), (32, 1))
>>> layout_conflicts(tile, element_bytes=4)
Conflicts(column=32, row=1)
>>> layout_conflicts(Layout((32, 32), (33, 1)), element_bytes=4)  # one word of padding after each row
Conflicts(column=1, row=1)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from tilewright.algebra.inttuple import is_int
from tilewright.algebra.layout import Layout
from tilewright.algebra.picture.panels import panels_of
from tilewright.algebra.swizzle import ComposedLayout
from tilewright.errors import LayoutError


class Conflicts(NamedTuple):
    """The passes of reading a whole column at once and a whole row at once, each in the worst case."""

    column: int
    row: int


def bank_conflicts(offsets: Iterable[Any], element_bytes: int, bank_bytes: int = 4, banks: int = 32) -> int:
    """Return how many passes one simultaneous access to elements at these offsets takes; 1 means no conflict.

    The number of passes is the largest number of different words of `bank_bytes` that fall into one of the `banks`.
    `offsets` count elements of `element_bytes`; elements narrower than a word share a word, wider elements take
    several. An access without elements takes 0 passes. An access to more bytes than all banks together are wide takes
    several passes in any arrangement.

    >>> bank_conflicts(range(0, 1024, 32), element_bytes=4)   # a stride of all 32 banks
    32
    >>> bank_conflicts(range(32), element_bytes=2)            # two halves to a word
    1
    >>> bank_conflicts([5] * 32, element_bytes=4)             # one word for all
    1
    """
    check_banks(element_bytes, bank_bytes, banks)
    words_in_bank: defaultdict[int, set[int]] = defaultdict(set)
    for offset in offsets:
        for word in words_of(offset, element_bytes, bank_bytes):
            words_in_bank[word % banks].add(word)
    return max((len(words) for words in words_in_bank.values()), default=0)


def layout_conflicts(
    layout: Layout | ComposedLayout, element_bytes: int, bank_bytes: int = 4, banks: int = 32
) -> Conflicts:
    """Return Conflicts(column, row): in how many passes a banked memory reads a whole column, and a whole row, at once.

    Mode 0 varies in a column, mode 1 in a row. Both numbers are the largest over all columns and rows, at every
    coordinate of further modes. A layout of rank 1 is one row. Elements have `element_bytes`; the memory has `banks`
    banks, each `bank_bytes` wide.

    >>> from tilewright.algebra import parse_layout
    >>> layout_conflicts(parse_layout("(8,64):(64,1)"), element_bytes=2)
    Conflicts(column=8, row=1)
    >>> layout_conflicts(parse_layout("S<3,3,3> o 0 o (8,64):(64,1)"), element_bytes=2)
    Conflicts(column=1, row=1)
    """
    column = row = 0
    for _, values in panels_of(layout):
        row = max(row, *(bank_conflicts(line, element_bytes, bank_bytes, banks) for line in values))
        column = max(
            column, *(bank_conflicts(line, element_bytes, bank_bytes, banks) for line in zip(*values, strict=True))
        )
    return Conflicts(column, row)


def words_of(offset: Any, element_bytes: int, bank_bytes: int) -> range:
    """Return the range of memory words that the element at `offset` occupies; words are `bank_bytes` wide.

    `offset` counts elements of `element_bytes`. Raise LayoutError if it is no integer.

    >>> words_of(3, element_bytes=2, bank_bytes=4), words_of(3, element_bytes=8, bank_bytes=4)
    (range(1, 2), range(6, 8))
    """
    if not is_int(offset):
        raise LayoutError(f"{offset!r} is not an offset in memory: only layouts with integer strides have banks")
    first = int(offset) * element_bytes
    return range(first // bank_bytes, (first + element_bytes - 1) // bank_bytes + 1)


def check_banks(element_bytes: int, bank_bytes: int, banks: int) -> None:
    """Raise LayoutError unless all three arguments are integers of at least 1."""
    for name, value in (("element_bytes", element_bytes), ("bank_bytes", bank_bytes), ("banks", banks)):
        if not is_int(value) or value < 1:
            raise LayoutError(f"{name} is {value!r}: it must be a whole number, at least 1")


def counted(count: int, one: str, many: str) -> str:
    """Return a count with its noun as text: `one` is the noun's singular, `many` its plural.

    >>> counted(1, "pass", "passes"), counted(8, "pass", "passes")
    ('1 pass', '8 passes')
    """
    return f"{count} {one if count == 1 else many}"


def passes_text(passes: int) -> str:
    """Return a number of passes as text, with the noun.

    >>> passes_text(1)
    '1 pass'
    """
    return counted(passes, "pass", "passes")


def banks_text(bank_bytes: int, banks: int) -> str:
    """Return the text that describes a memory of `banks` banks, each `bank_bytes` wide.

    >>> banks_text(4, 32)
    '32 banks of 4 bytes'
    """
    return f"{counted(banks, 'bank', 'banks')} of {bytes_text(bank_bytes)}"


def bytes_text(count: int) -> str:
    """Return a number of bytes as text, with the noun.

    >>> bytes_text(1)
    '1 byte'
    """
    return counted(count, "byte", "bytes")
