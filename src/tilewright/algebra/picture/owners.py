"""Thread/value partitions: which thread holds which element of a tile, and as which of its values.

A partition is a layout of two modes, (thread, value), whose values are linear indexes into the tile, first
mode fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from tilewright.algebra.inttuple import is_int
from tilewright.algebra.layout import Layout, rank, shape_text, size
from tilewright.algebra.picture.banks import bank_conflicts, passes_text
from tilewright.algebra.swizzle import ComposedLayout
from tilewright.errors import LayoutError

_MOST_RUNS = 8  # in a sentence about the passes of each value


class Owner(NamedTuple):
    """One holder of an element: a thread, and which of its values the element is."""

    thread: int
    value: int


def owners_of(partition: Layout | ComposedLayout, shape: Any) -> list[list[Owner]]:
    """For each linear index of a tile its owners: threads in order, each with its values in order.

    >>> owners_of(Layout((2, 2), (1, 2)), (2, 2))
    [[Owner(thread=0, value=0)], [Owner(thread=1, value=0)], [Owner(thread=0, value=1)], [Owner(thread=1, value=1)]]
    """
    owners: list[list[Owner]] = [[] for _ in range(size(shape))]
    for value, column in enumerate(_indexes(partition, shape)):
        for thread, index in enumerate(column):
            owners[index].append(Owner(thread, value))
    return [sorted(found) for found in owners]


def owner_lines(owners: Sequence[Owner]) -> tuple[str, ...]:
    """The owners of one element in two short lines: the first thread and its value, and how many more.

    >>> owner_lines([Owner(3, 1)]), owner_lines([Owner(t, 1) for t in range(4)]), owner_lines([])
    (('T3', 'V1'), ('T0 +3', 'V1'), ())
    """
    if not owners:
        return ()
    first = owners[0]
    others = len({owner.thread for owner in owners}) - 1
    again = sum(owner.thread == first.thread for owner in owners) - 1
    return f"T{first.thread}" + _more(others), f"V{first.value}" + _more(again)


def _more(count: int) -> str:
    return f" +{count}" if count else ""


def partition_conflicts(
    partition: Layout | ComposedLayout,
    memory: Layout | ComposedLayout,
    element_bytes: int,
    bank_bytes: int = 4,
    banks: int = 32,
) -> list[int]:
    """For each value index the passes that it takes when all threads access that value at once.

    `memory` is where the tile lies: a layout of the tile's shape.

    >>> rows = Layout((32, 4), (1, 32))               # thread t holds row t of a tile of 32 x 4
    >>> partition_conflicts(rows, Layout((32, 4), (4, 1)), element_bytes=4)
    [4, 4, 4, 4]
    >>> partition_conflicts(rows, Layout((32, 4), (1, 32)), element_bytes=4)
    [1, 1, 1, 1]
    """
    columns = _indexes(partition, memory.shape)
    return [bank_conflicts([memory(index) for index in column], element_bytes, bank_bytes, banks) for column in columns]


def conflicts_text(passes: Sequence[int]) -> str:
    """The passes of each value in one sentence.

    >>> conflicts_text([1, 1, 1]), conflicts_text([1, 1, 2]), conflicts_text([1, 2] * 8)
    ('every value: 1 pass', 'V0 to V1: 1 pass, V2: 2 passes', 'from 1 pass to 2 passes (V1)')
    """
    runs = [[value for value, _ in run] for _, run in groupby(enumerate(passes), key=lambda item: item[1])]
    if len(runs) == 1:
        return f"every value: {passes_text(passes[0])}"
    if len(runs) > _MOST_RUNS:
        return f"from {passes_text(min(passes))} to {passes_text(max(passes))} (V{passes.index(max(passes))})"
    return ", ".join(f"{_values_text(run)}: {passes_text(passes[run[0]])}" for run in runs)


def _values_text(run: Sequence[int]) -> str:
    return f"V{run[0]}" if len(run) == 1 else f"V{run[0]} to V{run[-1]}"


def _indexes(partition: Layout | ComposedLayout, shape: Any) -> list[list[int]]:
    """For each value the tile's index that every thread holds; raises unless all lie in the tile."""
    if rank(partition) != 2:
        raise LayoutError(f"{partition} has rank {rank(partition)}: a partition has two modes, (thread, value)")
    threads, values = size(partition.shape, 0), size(partition.shape, 1)
    return [[_index(partition, (thread, value), shape) for thread in range(threads)] for value in range(values)]


def _index(partition: Layout | ComposedLayout, owner: tuple[int, int], shape: Any) -> int:
    index = partition(*owner)
    if is_int(index) and 0 <= index < size(shape):
        return int(index)
    raise LayoutError(
        f"{partition} sends thread {owner[0]}, value {owner[1]} to {index}, "
        f"but the tile {shape_text(shape)} has the indexes 0 to {size(shape) - 1}"
    )
