"""Thread/value partitions: which thread holds which element of a tile, and as which of its values.

A partition is a layout of two modes, (thread, value), whose values are linear indices into the tile, first
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

_MAX_RUNS = 8  # in the text of `conflicts_text`


class Owner(NamedTuple):
    """One holder of an element: a thread, and the number of the value under which the thread holds it."""

    thread: int
    value: int


def owners_of(partition: Layout | ComposedLayout, shape: Any) -> list[list[Owner]]:
    """Return, for each element of a tile of this shape by linear index, the list of its owners: pairs (thread, value
    number).

    Owners are ordered by thread, then by value; an element that no thread holds has []. `partition` is a layout
    (thread, value) -> linear index. Raise LayoutError if an index is outside the tile.

    >>> owners_of(Layout((2, 2), (1, 2)), (2, 2))
    [[Owner(thread=0, value=0)], [Owner(thread=1, value=0)], [Owner(thread=0, value=1)], [Owner(thread=1, value=1)]]
    """
    owners: list[list[Owner]] = [[] for _ in range(size(shape))]
    for value, indices in enumerate(_indices_by_value(partition, shape)):
        for thread, index in enumerate(indices):
            owners[index].append(Owner(thread, value))
    return [sorted(owners_of_element) for owners_of_element in owners]


def owner_lines(owners: Sequence[Owner]) -> tuple[str, ...]:
    """Return the owners, (thread, value) pairs, of one element as two short texts; () if there are none.

    The texts name the first owner's thread and value. If there are other threads, or further values of that thread,
    their number follows.

    >>> owner_lines([Owner(3, 1)]), owner_lines([Owner(t, 1) for t in range(4)]), owner_lines([])
    (('T3', 'V1'), ('T0 +3', 'V1'), ())
    """
    if not owners:
        return ()
    first = owners[0]
    other_threads = len({owner.thread for owner in owners}) - 1
    other_values = sum(owner.thread == first.thread for owner in owners) - 1
    return f"T{first.thread}" + _more_text(other_threads), f"V{first.value}" + _more_text(other_values)


def _more_text(count: int) -> str:
    """Return " +3" for the count 3, and "" for the count 0."""
    return f" +{count}" if count else ""


def partition_conflicts(
    partition: Layout | ComposedLayout,
    memory: Layout | ComposedLayout,
    element_bytes: int,
    bank_bytes: int = 4,
    banks: int = 32,
) -> list[int]:
    """Return a list: for each value number, the passes of an access in which all threads read their value of that
    number.

    A banked memory serves an access in several passes if different words are in the same bank. `partition` maps
    (thread, value) to the linear index in the tile; `memory` is the layout of the tile, in elements of `element_bytes`,
    in a memory of `banks` banks, each `bank_bytes` wide. Raise LayoutError if `partition` gives an index outside the
    tile.

    >>> rows = Layout((32, 4), (1, 32))               # thread t holds row t of a tile of 32 x 4
    >>> partition_conflicts(rows, Layout((32, 4), (4, 1)), element_bytes=4)
    [4, 4, 4, 4]
    >>> partition_conflicts(rows, Layout((32, 4), (1, 32)), element_bytes=4)
    [1, 1, 1, 1]
    """
    indices_by_value = _indices_by_value(partition, memory.shape)
    return [
        bank_conflicts([memory(index) for index in indices], element_bytes, bank_bytes, banks)
        for indices in indices_by_value
    ]


def conflicts_text(passes: Sequence[int]) -> str:
    """Return the `passes` of each value number as one text; consecutive values with equal passes are combined.

    With more than 8 such combinations the text gives only the smallest number, the largest number, and the first value
    that has the largest.

    >>> conflicts_text([1, 1, 1]), conflicts_text([1, 1, 2]), conflicts_text([1, 2] * 8)
    ('every value: 1 pass', 'V0 to V1: 1 pass, V2: 2 passes', 'from 1 pass to 2 passes (V1)')
    """
    runs = [[value for value, _ in run] for _, run in groupby(enumerate(passes), key=lambda item: item[1])]
    if len(runs) == 1:
        return f"every value: {passes_text(passes[0])}"
    if len(runs) > _MAX_RUNS:
        return f"from {passes_text(min(passes))} to {passes_text(max(passes))} (V{passes.index(max(passes))})"
    return ", ".join(f"{_values_text(run)}: {passes_text(passes[run[0]])}" for run in runs)


def _values_text(run: Sequence[int]) -> str:
    """Return a run of consecutive value numbers as text: "V3", or "V0 to V3"."""
    return f"V{run[0]}" if len(run) == 1 else f"V{run[0]} to V{run[-1]}"


def _indices_by_value(partition: Layout | ComposedLayout, shape: Any) -> list[list[int]]:
    """Return a list for each value number: the linear indices in the tile that threads 0, 1, ... hold as that value.

    Raise LayoutError unless `partition` has two modes, (thread, value), and all indices lie in the tile of this shape.
    """
    if rank(partition) != 2:
        raise LayoutError(f"{partition} has rank {rank(partition)}: a partition has two modes, (thread, value)")
    threads, values = size(partition.shape, 0), size(partition.shape, 1)
    return [
        [_index_of_owner(partition, (thread, value), shape) for thread in range(threads)] for value in range(values)
    ]


def _index_of_owner(partition: Layout | ComposedLayout, owner: tuple[int, int], shape: Any) -> int:
    """Return the linear index that `partition`, a layout (thread, value) -> index, gives for the pair `owner`.

    Raise LayoutError if it lies outside the tile of this shape.
    """
    index = partition(*owner)
    if is_int(index) and 0 <= index < size(shape):
        return int(index)
    raise LayoutError(
        f"{partition} sends thread {owner[0]}, value {owner[1]} to {index}, "
        f"but the tile {shape_text(shape)} has the indexes 0 to {size(shape) - 1}"
    )
