"""Products that lanes do term by term, as data: what a lane has of the terms, and the tasks of boxes of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd, prod

import numpy as np

from tilewright.algebra.expr import Expr, Symbol
from tilewright.algebra.expr_use import evaluate
from tilewright.ir.core import Op
from tilewright.machine import Machine
from tilewright.plan.model import Size, cores
from tilewright.plan.rows import cut_of, tasks_of

NARROWEST, MOST_OF_LINE, NEARLY = 3, 8, 0.9
"""What goes to neighbouring lanes is at least three eighths of a line, and the most for which so much of the lanes are
busy that could be."""


@dataclass(frozen=True)
class Terms:
    """How lanes do a product term by term, so many terms of each sum at a time."""

    along: Expr
    """The dimension along which neighbours go to neighbouring lanes: one that both factors keep, or the rows."""
    values: int
    """Elements of what is kept that a lane has side by side; of rows, one."""
    summed: Expr
    each: int
    """Bytes of an element of the factor that has a row for each result."""
    wide: int
    """Bytes of a sum."""
    vector: int
    """Bytes that a lane loads at once, at most."""
    word: int
    """Bytes of a register."""
    tile: int = 1
    sizes: tuple[int, ...] = ()
    """How far a lane's box of results goes along each digit of the rows; none: its results lie anywhere."""
    box: tuple[Expr, ...] = ()
    """The dimensions of such boxes."""
    dims: tuple[Expr, ...] = ()
    """Where there are boxes: all dimensions that tasks may cut, those of a box among them."""
    window: int = 1
    """Places of which a lane reads a vector for a box, for so many terms."""
    beside: int = 1
    """Of these, how many lie side by side."""
    apart: int = 0
    """Bytes between what neighbouring lanes read, where they go along rows."""

    @property
    def along_rows(self) -> bool:
        """Whether neighbouring lanes have neighbouring rows, and not vectors of what both factors keep."""
        return self.values == 1

    @property
    def schedule(self) -> str:
        """Which tasks a worker takes: windows of those next to each other overlap, and it finds them in its cache."""
        return "contiguous" if self.box else "cyclic"

    @property
    def results(self) -> int:
        """How many results a box has."""
        return prod(self.sizes)

    @property
    def together(self) -> int:
        """Places that are read at once."""
        return gcd(self.beside, self.vector // self.each)

    @property
    def sums(self) -> int:
        """Registers of a lane for the sums of a box."""
        return ceil(self.results * self.values * self.wide / self.word)

    @property
    def windows(self) -> int:
        """Registers of a lane for a window."""
        return ceil(self.window * self.values * self.each / self.word)

    @property
    def held(self) -> int:
        """Those, and as many as sums for a factor that is widened."""
        return 2 * self.sums + self.windows


def with_window(terms: Terms, read: Op, digits: Sequence[Symbol], size: Size) -> Terms:
    """The same terms, with the window that a box of results reads for its first ones, with the elements between."""
    iterators = dict(zip(read.results[0].type.dims, read.attrs["over"], strict=True))

    def places(*at: object) -> list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
        known: dict[Symbol, object] = dict.fromkeys(iterators.values(), 0)
        known |= {iterators[d]: n for d, n in zip((*digits, terms.summed), at, strict=True)}
        values = ({s: known[s] if s in known else size(s) for s in e.symbols} for e in read.attrs["at"])
        return [np.asarray(evaluate(e, of)) for e, of in zip(read.attrs["at"], values, strict=True)]

    read_by_one = places(*np.ogrid[tuple(slice(0, n) for n in (*terms.sizes, terms.tile))])
    extents = [int(at.max() - at.min()) + 1 for at in read_by_one]
    boxed = replace(terms, window=prod(extents))
    if not terms.along_rows:
        return boxed
    here, beside = (places(*(0 for _ in digits[1:]), n, 0) for n in (0, min(1, size(digits[-1]) - 1)))
    strides = [prod(map(size, read.operands[0].type.dims[n + 1 :])) for n in range(len(extents))]
    step = sum(int(b - a) * n for a, b, n in zip(here, beside, strides, strict=True))
    return replace(boxed, beside=extents[-1], apart=step * terms.sizes[-1] * terms.each)


def resident_waves(machine: Machine, held: int, waves: int) -> int:
    """How many waves a core has at a time, in workgroups of so many, whose lanes hold so much.

    What a program computes beside its sums is the widened factor, which is counted as held: half of the registers that
    lanes otherwise have for such things are for addresses.
    """
    room = machine.spaces["register"].bytes
    if room is None:
        return waves
    word = machine.register_file.word_bytes
    mine = (held + machine.limits.working_registers // 2) * word * (machine.lanes or 1) * waves
    return room // mine * waves


def tasks_of_boxes(terms: Terms, size: Size, smallest: int, machine: Machine) -> tuple[dict[Expr, int], int]:
    """(the width of a task along each dimension, how many waves do it): every lane has one box of one vector.

    The smallest element of an argument has so many bytes: a line of these goes to neighbouring lanes.
    """
    access, tasks = machine.lane_access, machine.row_tasks
    vector = access.vector_bytes // smallest
    found = {d: size(d) if d in terms.box else 1 for d in terms.dims}
    side = size(terms.along) if terms.along in found else 1
    while side % vector:
        vector //= 2
    words = _side_by_side(side // vector, access.line_bytes // (smallest * vector))
    found |= {d: words * vector for d in found if d is terms.along}
    across = _lanes(words)
    waves = max(tasks.waves, tasks.waves // 2, key=lambda w: resident_waves(machine, terms.held, w))
    while True:
        left = max(1, waves * (machine.lanes or 1) // across)
        for d in [d for d in reversed(terms.dims) if d not in (*terms.box, terms.along)]:
            found[d] = cut_of(size(d), left)
            left //= found[d]
        if waves <= tasks.least_waves or tasks_of(found, size) >= cores(machine):
            return found, waves
        waves //= 2


def _side_by_side(count: int, most: int) -> int:
    """Of so many vectors, how many go to neighbouring lanes: the most of a line for which nearly as many lanes have
    something to do as for any.

    >>> [_side_by_side(n, 8) for n in (16, 12, 18, 65, 3)]
    [8, 4, 4, 8, 3]
    """
    choices = range(max(1, min(count, most * NARROWEST // MOST_OF_LINE)), min(count, most) + 1)
    used = {n: count / (ceil(count / n) * _lanes(n)) for n in choices}
    return max(n for n in choices if used[n] >= NEARLY * max(used.values()))


def _lanes(vectors: int) -> int:
    """Lanes that go along so many vectors: a power of two."""
    return 1 << (vectors - 1).bit_length()


def written_out(terms: Terms, widths: Mapping[Expr, int], waves: int, machine: Machine) -> int:
    """Up to how many rounds over terms are written out: as many as a lane has registers for, or, of boxes, which have
    theirs, as make a program of some length."""
    costs = machine.costs.terms
    if terms.box:
        return costs.unrolled_products // (terms.tile * terms.results * terms.values)
    return costs.values_in_flight // ceil(prod(widths.values()) / (waves * (machine.lanes or 1)))
