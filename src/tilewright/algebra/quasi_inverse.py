"""A layout that finds an index for every value of a layout whose modes overlap.

The values of L are numbers v; R is looked for digit by digit. While R is right for all values below n, the next value
v >= n decides the next mode: it gets an index i with L(i) == v, so the step of the mode is i - R(v - n), and the mode
is as long as that step keeps giving indexes of the right value. Where a choice leads nowhere, the next one is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as cartesian

MOST_VALUES = 4096
MOST_TRIALS = 2000


def quasi_inverse(rows: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]] | None:
    """The modes (extent, stride) of an R with L(R(v)) == v for every value v of L; None where none was found.

    `rows` are the modes of L: extent, stride and step of the index.

    >>> quasi_inverse([(2, 1, 1), (2, 1, 2)])      # 0, 1, 1, 2 at the indexes 0 to 3
    [(2, 1), (2, 3)]
    """
    count = 1
    for s, _, _ in rows:
        count *= s
    if count > MOST_VALUES:
        return None
    indexes: dict[int, list[int]] = {}
    for digits in cartesian(*(range(s) for s, _, _ in rows)):
        value = sum(digit * d for digit, (_, d, _) in zip(digits, rows, strict=True))
        indexes.setdefault(value, []).append(sum(digit * i for digit, (_, _, i) in zip(digits, rows, strict=True)))
    return _Search(indexes).extended(1, [])


class _Search:
    def __init__(self, indexes: dict[int, list[int]]):
        self.indexes = {value: set(found) for value, found in indexes.items()}
        self.values = sorted(indexes)
        self.trials = 0

    def extended(self, n: int, modes: list[tuple[int, int]]) -> list[tuple[int, int]] | None:
        """The modes, which are right below n, and more until they are right for every value."""
        self.trials += 1
        value = next((v for v in self.values if v >= n), None)
        if value is None:
            return modes
        if self.trials > MOST_TRIALS:
            return None
        if value // n > 1:  # no value lies between: the digit stands still
            modes, n = [*modes, (value // n, 0)], n * (value // n)
        for index in sorted(self.indexes[value]):
            step = index - _at(modes, value - n)
            most = self._length(n, modes, step)
            for length in range(most, 1, -1):
                found = self.extended(n * length, [*modes, (length, step)])
                if found is not None:
                    return found
        return None

    def _length(self, n: int, modes: list[tuple[int, int]], step: int) -> int:
        """How long a mode of this step may be."""
        for v in self.values:
            if v >= n and _at(modes, v % n) + v // n * step not in self.indexes[v]:
                return v // n
        return self.values[-1] // n + 1


def _at(modes: list[tuple[int, int]], v: int) -> int:
    total = 0
    for extent, stride in modes:
        total += v % extent * stride
        v //= extent
    return total
