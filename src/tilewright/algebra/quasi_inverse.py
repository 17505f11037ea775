"""Search for a layout that gives an index for every value of a layout whose modes overlap.

The values of L are numbers v; R is built mode by mode. While R is right for all values below n, the next value
v >= n decides the next mode: it gets an index i with L(i) == v, so the step of the mode is i - R(v - n), and the mode
is as long as that step keeps giving indices of the right value. If a choice leads to no result, the next one is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as cartesian

MOST_VALUES = 4096
MOST_TRIALS = 2000


def quasi_inverse(rows: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]] | None:
    """Return the modes (extent, stride) of a layout R with L(R(v)) == v for every value v of L; None if none was found.

    `rows` are the modes of L: (extent, stride, step of the linear index). The search is limited: None is returned if L
    has more than 4096 elements, or after 2000 trials.

    >>> quasi_inverse([(2, 1, 1), (2, 1, 2)])      # 0, 1, 1, 2 at the indices 0 to 3
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
    return _Search(indexes).extend(1, [])


class _Search:
    """A backtracking search for the modes of R; `indexes` maps each value of L to the indices at which L takes it."""

    def __init__(self, indexes: dict[int, list[int]]):
        self.indexes = {value: set(indices) for value, indices in indexes.items()}
        self.values = sorted(indexes)
        self.trials = 0

    def extend(self, covered: int, modes: list[tuple[int, int]]) -> list[tuple[int, int]] | None:
        """Return the modes (extent, stride) of a layout R that inverts L for all values of L; the first modes of R are
        `modes`.

        `self.indexes` has the indices of each value of L. `modes` must invert L for values below `covered`, the product
        of their extents. Return None if no continuation is found within the limit of trials. Each call adds 1 to
        `self.trials`.
        """
        self.trials += 1
        value = next((v for v in self.values if v >= covered), None)
        if value is None:
            return modes
        if self.trials > MOST_TRIALS:
            return None
        if value // covered > 1:  # no value lies between: a mode of stride 0
            modes, covered = [*modes, (value // covered, 0)], covered * (value // covered)
        for index in sorted(self.indexes[value]):
            step = index - _at(modes, value - covered)
            longest = self._longest_mode(covered, modes, step)
            for length in range(longest, 1, -1):
                result = self.extend(covered * length, [*modes, (length, step)])
                if result is not None:
                    return result
        return None

    def _longest_mode(self, covered: int, modes: list[tuple[int, int]], step: int) -> int:
        """Return the largest extent of a further mode of stride `step` with which R stays right.

        R is right if, for each value v of L below the product of R's extents, L takes the value v at the index R(v).
        Without the further mode, R consists of `modes`, which are right for values below `covered`.
        """
        for v in self.values:
            if v >= covered and _at(modes, v % covered) + v // covered * step not in self.indexes[v]:
                return v // covered
        return self.values[-1] // covered + 1


def _at(modes: list[tuple[int, int]], v: int) -> int:
    """Return the value at index `v` of the flat layout with these (extent, stride) modes."""
    total = 0
    for extent, stride in modes:
        total += v % extent * stride
        v //= extent
    return total
