"""SIMT products (MMAs that lanes compute without MMA atoms) as data: each lane accumulates a box of results."""

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
from tilewright.plan.rows import dividing_width, tasks_of

NARROWEST, MOST_OF_LINE, NEARLY = 3, 8, 0.9
"""Neighbouring lanes share at least 3/8 of a cache line, and as much as keeps 0.9 of the best number of lanes busy."""


@dataclass(frozen=True)
class SimtProduct:
    """A product that lanes compute without MMA atoms (SIMT): the results of a lane, and the dimension along lanes.

    A lane computes a vector of results, or a box (rectangle) of vectors of neighbouring results. `k` is the dimension
    of K and `k_step` the number of its elements in one K step.
    """

    along: Expr
    """The dimension along lanes: one that A, B and the result share, or M."""
    vector_elements: int
    """Contiguous elements of the dimension `along` that a lane has; 1 if that dimension is M."""
    k: Expr
    element_bytes: int
    """Bytes of an element of the larger operand, A."""
    accumulator_bytes: int
    """Bytes of an accumulator."""
    vector_bytes: int
    """Bytes that a lane loads at once, at most."""
    register_bytes: int
    """Bytes of a register."""
    k_step: int = 1
    box_extents: tuple[int, ...] = ()
    """The extent of a lane's box of results along each digit (mixed-radix part) of M; empty: there are no boxes."""
    box_dims: tuple[Expr, ...] = ()
    """The dimensions within a box; empty: there are no boxes."""
    grid_dims: tuple[Expr, ...] = ()
    """All dimensions that the grid may split, those within a box included; empty: there are no boxes."""
    window_positions: int = 1
    """Input positions that a lane reads for its box in one K step."""
    contiguous_positions: int = 1
    """The number of window positions that are contiguous, where lanes run along rows."""
    lane_stride_bytes: int = 0
    """The byte stride between the reads of neighbouring lanes, where lanes run along rows."""

    @property
    def along_rows(self) -> bool:
        """True if neighbouring lanes compute neighbouring rows of M: a lane's vector has one element.

        False if neighbouring lanes have neighbouring vectors along a dimension that A, B and the result share.
        """
        return self.vector_elements == 1

    @property
    def schedule(self) -> str:
        """The order in which workgroups take tasks: "contiguous" if each lane computes a box of results, else "cyclic".

        A box is a rectangle. Inputs of neighbouring boxes overlap, so that contiguous tasks share data in the cache.
        """
        return "contiguous" if self.box_dims else "cyclic"

    @property
    def results(self) -> int:
        """The number of results in one lane's box (rectangle), per element of the lane's vector; 1 without a box."""
        return prod(self.box_extents)

    @property
    def positions_per_load(self) -> int:
        """The number of neighbouring input positions that one vector load of a lane reads.

        It is the greatest common divisor of two numbers: the elements in the widest vector load, and the contiguous
        positions of the lane's input window.
        """
        return gcd(self.contiguous_positions, self.vector_bytes // self.element_bytes)

    @property
    def accumulator_registers(self) -> int:
        """The number of registers per lane that the accumulators of the lane's box (rectangle) of results take."""
        return ceil(self.results * self.vector_elements * self.accumulator_bytes / self.register_bytes)

    @property
    def window_registers(self) -> int:
        """The number of registers per lane that the input window of the lane's box takes in one K step.

        A box is a rectangle of results; its window is all inputs that these results read.
        """
        return ceil(self.window_positions * self.vector_elements * self.element_bytes / self.register_bytes)

    @property
    def live_registers(self) -> int:
        """The number of registers per lane in use at once: twice the accumulators, plus the input window.

        The accumulators count twice because the operand, widened to their type, takes as many registers.
        """
        return 2 * self.accumulator_registers + self.window_registers


def with_window(terms: SimtProduct, read: Op, digits: Sequence[Symbol], size: Size) -> SimtProduct:
    """Return the SIMT product `terms` with `window_positions`: how many inputs a lane's box reads in one K step.

    A SIMT product is an MMA that lanes compute without an MMA atom; a box is a rectangle of neighbouring results.
    `read` is the read of operand A; `digits` are the dimensions that stand for the mixed-radix parts of M, along which
    boxes extend. If lanes run along rows of M, `contiguous_positions` and `lane_stride_bytes` (between the reads of
    neighbouring lanes) are set too. `size(d)` evaluates the extent of a dimension d.
    """
    iterators = dict(zip(read.results[0].type.dims, read.attrs["over"], strict=True))

    def coordinates(*at: object) -> list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
        """Return the value of each memory coordinate of the read, as a list of arrays.

        `at` are the indices of the digits of M, then of K: numbers or arrays. All other indices are 0.
        """
        known: dict[Symbol, object] = dict.fromkeys(iterators.values(), 0)
        known |= {iterators[d]: n for d, n in zip((*digits, terms.k), at, strict=True)}
        values = ({s: known[s] if s in known else size(s) for s in e.symbols} for e in read.attrs["at"])
        return [np.asarray(evaluate(e, values_of)) for e, values_of in zip(read.attrs["at"], values, strict=True)]

    read_by_one = coordinates(*np.ogrid[tuple(slice(0, n) for n in (*terms.box_extents, terms.k_step))])
    extents = [int(at.max() - at.min()) + 1 for at in read_by_one]
    with_box = replace(terms, window_positions=prod(extents))
    if not terms.along_rows:
        return with_box
    first, second = (coordinates(*(0 for _ in digits[1:]), n, 0) for n in (0, min(1, size(digits[-1]) - 1)))
    strides = [prod(map(size, read.operands[0].type.dims[n + 1 :])) for n in range(len(extents))]
    step = sum(int(b - a) * n for a, b, n in zip(first, second, strides, strict=True))
    return replace(
        with_box, contiguous_positions=extents[-1], lane_stride_bytes=step * terms.box_extents[-1] * terms.element_bytes
    )


def resident_waves(machine: Machine, lane_registers: int, workgroup_waves: int) -> int:
    """Return the number of waves (warps) that run on one core at a time, as far as the register file has room.

    A workgroup has `workgroup_waves` waves, and only whole workgroups run; 0 if not even one fits. A lane takes
    `lane_registers` registers, plus half of the machine's working registers for addresses. If the machine does not give
    the size of its register file, it is `workgroup_waves`.
    """
    file_bytes = machine.spaces["register"].bytes
    if file_bytes is None:
        return workgroup_waves
    word = machine.register_file.word_bytes
    workgroup_bytes = (
        (lane_registers + machine.limits.working_registers // 2) * word * (machine.lanes or 1) * workgroup_waves
    )
    return file_bytes // workgroup_bytes * workgroup_waves


def box_tasks(terms: SimtProduct, size: Size, element_size: int, machine: Machine) -> tuple[dict[Expr, int], int]:
    """Return ({dimension: extent of a task}, number of waves per task) of a SIMT product with one box per lane.

    A task is one tile of the grid; waves are warps; a box is a rectangle of neighbouring results, each a vector.
    `terms` is the product, which lanes multiply without an MMA atom. Neighbouring lanes read vectors of one cache line;
    `element_size` is the number of bytes of the smallest element of an argument. The number of waves is halved while
    there are fewer tasks than cores. `size(d)` evaluates the extent of a dimension d.
    """
    access, tasks = machine.lane_access, machine.row_tasks
    vector = access.vector_bytes // element_size
    widths = {d: size(d) if d in terms.box_dims else 1 for d in terms.grid_dims}
    contiguous_extent = size(terms.along) if terms.along in widths else 1
    while contiguous_extent % vector:
        vector //= 2
    vectors_per_row = _vectors_per_row(contiguous_extent // vector, access.line_bytes // (element_size * vector))
    widths |= {d: vectors_per_row * vector for d in widths if d is terms.along}
    row_lanes = _padded_lanes(vectors_per_row)
    waves = max(tasks.waves, tasks.waves // 2, key=lambda w: resident_waves(machine, terms.live_registers, w))
    while True:
        lanes_left = max(1, waves * (machine.lanes or 1) // row_lanes)
        for d in [d for d in reversed(terms.grid_dims) if d not in (*terms.box_dims, terms.along)]:
            widths[d] = dividing_width(size(d), lanes_left)
            lanes_left //= widths[d]
        if waves <= tasks.least_waves or tasks_of(widths, size) >= cores(machine):
            return widths, waves
        waves //= 2


def _vectors_per_row(vectors: int, line_vectors: int) -> int:
    """Return the number of vectors of a row that one task (tile of the grid) has; each lane takes one vector.

    A row has `vectors` vectors, a cache line `line_vectors`. The numbers that are compared reach from 3/8 of a cache
    line to a whole one, and no further than the row. A number that is no power of two, and a remainder at the end of
    the row, leave lanes idle. The largest number that keeps at least 0.9 as many lanes busy as the best one is
    returned.

    >>> [_vectors_per_row(n, 8) for n in (16, 12, 18, 65, 3)]
    [8, 4, 4, 8, 3]
    """
    choices = range(max(1, min(vectors, line_vectors * NARROWEST // MOST_OF_LINE)), min(vectors, line_vectors) + 1)
    utilisation = {n: vectors / (ceil(vectors / n) * _padded_lanes(n)) for n in choices}
    return max(n for n in choices if utilisation[n] >= NEARLY * max(utilisation.values()))


def _padded_lanes(vectors: int) -> int:
    """Return the number of lanes reserved for `vectors` vectors: `vectors` rounded up to a power of two."""
    return 1 << (vectors - 1).bit_length()


def max_unrolled_steps(terms: SimtProduct, widths: Mapping[Expr, int], waves: int, machine: Machine) -> int:
    """Return the largest number of K steps that a SIMT product may unroll; 0 if it may unroll none.

    `terms` is the product, which lanes multiply without an MMA atom; a K step has `terms.k_step` elements. If each lane
    has a box (rectangle) of results, the machine's limit of unrolled multiply-adds decides. Otherwise its limit of
    loaded values per lane decides: a task (tile of the grid) of extents `widths` is spread over `waves` waves (warps).
    """
    costs = machine.costs.terms
    if terms.box_dims:
        return costs.unrolled_products // (terms.k_step * terms.results * terms.vector_elements)
    return costs.values_in_flight // ceil(prod(widths.values()) / (waves * (machine.lanes or 1)))
