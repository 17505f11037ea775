"""What plans with rings should take: steps of K that copies fill and products empty, in rounds of tasks.

Each step of K costs what is slowest of the products, the reads of shared memory that feed them, and the copies that
fill it; tasks are dealt out in rounds to all cores, and the last round counts as a whole one. Tasks at the edges bring
boxes that lie in part outside their tensor, which takes longer than what lies inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Program, Value
from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.microkernel import Microkernel, can_multiply_blocks
from tilewright.plan.schedule import Pipeline

ENOUGH = 4
"""Stages of a ring beyond which more help little."""


def columns_of(atom: MultiplyAtom, blocks: int, n: int, k: int) -> int | None:
    """The columns of a block of sums by an atom, where N and K are so many blocks, of which those with the same number
    are multiplied; None where it would multiply what belongs to two of them."""
    if blocks == 1:
        return atom.shape[1]
    return n if can_multiply_blocks(atom, blocks, n, k) else None


@dataclass(frozen=True)
class RingWork:
    """What is to be done: `count` products of M x N x K, as the atom has them, each added up `rounds` times.

    Results have so many bits; `boxed` says of A and of B whether a copy brings rows that lie outside them.
    """

    sizes: tuple[int, int, int]
    rounds: int
    count: int
    bits: int
    boxed: tuple[bool, ...]
    computed: float
    """What a core's lanes take for an element of the result before it is stored."""
    pitches: tuple[int, ...]
    """How many bytes rows of A, and of B, lie apart; 0: they are computed."""
    overlapping: tuple[bool, ...]
    """Whether rows of A, and of B, begin within the ones before them."""
    apart: int = 0
    """How many bytes rows of the result lie apart."""
    alone: bool = False
    """Whether waves copy factors themselves, a word at a time."""
    thin: float = 1.0
    """What A is brought as, as a part of what the atom takes: less where it is widened in registers."""
    making: float = 0.0
    """Cycles of a core's lanes for an element of A, where that is computed."""
    blocks: int = 1
    """Blocks of N and K, of which only those with the same number are multiplied."""

    def steps(self, how: Microkernel) -> int:
        """The rows of shared memory along K, one after the other, that are multiplied for a tile."""
        return self.rounds * ceil(self.sizes[2] / (how.slab or 1))

    def filled(self, machine: Machine, how: Microkernel, steps: int) -> float:
        """The bytes of so many steps of K; those of rows that overlap count as what they take."""
        return steps * sum(n * self._taken(machine, how, side) for side, n in enumerate((how.rows, how.columns)))

    def served(self, machine: Machine, how: Microkernel, tiles: int) -> Served:
        """What the second cache takes for a block; waves that copy themselves read what they need of a row."""
        sides = zip((how.rows, how.columns), self.pitches, self.overlapping, strict=True)
        read = sum(
            rows * row_cycles(machine, how, self.sizes[2], 0 if over or self.alone else pitch) * thin
            for (rows, pitch, over), thin in zip(sides, (self.thin, 1), strict=True)
        )
        return served(machine, tiles, self.rounds * read, leaving(machine, how, self.bits, self.apart))

    def _taken(self, machine: Machine, how: Microkernel, side: int) -> float:
        """The bytes of a row of A, or of B, or as many as could be brought instead."""
        over = self.overlapping[side] and not self.alone
        whole = overlapping(machine, how, self.boxed[side]) if over else row_bytes(how)
        return whole if side else whole * self.thin

    def gathered(self, machine: Machine, how: Microkernel, roles: Pipeline, steps: int) -> float:
        """Cycles in which waves copy what so many steps of K take; past the end of K are zeros."""
        if not self.alone:
            return 0.0
        limits, k, each = machine.limits, self.sizes[2], how.atom.a.dtype.bits // 8
        vector = machine.lane_access.vector_bytes
        sides = zip((how.rows, how.columns), self.pitches, strict=True)
        words = sum(n * row_bytes(how) / (gcd(vector, pitch) if pitch else each) for n, pitch in sides)
        inside = k / (ceil(k / (how.slab or 1)) * (how.slab or 1))
        took = limits.gather_cycles + inside * limits.gather_latency
        return steps * words / (roles.producer[0] * (machine.lanes or 1)) * took

    def surplus(self, machine: Machine, how: Microkernel, tasks: int) -> Surplus:
        """What is beside a block's own bytes, where a core has so many tasks."""
        rows, edges = 0, 0
        for extent, tile, boxed in zip(self.sizes[:2], (how.rows, how.columns), self.boxed, strict=True):
            if boxed and extent % tile:
                rows += -extent % tile
                edges = max(edges, ceil(tasks / ceil(extent / tile)))
        widths = _widths(machine)
        along = how.tile[1] * self.bits // 8
        width = next((n for n in widths if along % n == 0), None)
        leaving = 0.0 if width is None else how.tile[0] * (along / width - along / widths[0])
        return Surplus(rows, edges, leaving)


@lru_cache
def _widths(machine: Machine) -> tuple[int, ...]:
    """Bytes of the rows that results may leave in, the widest first."""
    return next((a.rows for a in machine.copies_between("shared", "global") if a.asynchronous and a.rows), ())


@dataclass(frozen=True)
class Surplus:
    """What copies of a tile take time for beside its bytes.

    A step of a task at both edges brings so many rows that lie `outside` A and B, and a core has so many tasks at
    `edges`. Results leave in so many rows more than if those were as wide as a copy can have them.
    """

    outside: float = 0.0
    edges: int = 0
    leaving: float = 0.0


NONE = Surplus()


def is_boxed(factor: Value, dim: Expr, program: Program) -> bool:
    """Whether a copy brings neighbours along a dimension as rows of a box, some of which may lie outside their tensor;
    otherwise they are digits of a number that a copy counts by itself."""
    op = next((x for x in program.walk() if factor in x.results), None)
    if op is None or op.name != "read" or "at" not in op.attrs:
        return True
    own = dict(zip(op.results[0].type.dims, op.attrs["over"], strict=True)).get(dim)
    return any(e is own for e in op.attrs["at"])


def overlapping(machine: Machine, how: Microkernel, boxed: bool) -> float:
    """The bytes that could be brought instead of a row which begins within the one before it, of a box or a window."""
    return row_bytes(how) * (machine.limits.box_overlap if boxed else machine.limits.window_overlap)


@dataclass(frozen=True)
class Served:
    """Cycles that the second cache takes for a block: for what is read, and for what leaves."""

    read: float = 0.0
    left: float = 0.0


UNSERVED = Served()


def served(machine: Machine, tiles: int, read: float, left: float) -> Served:
    """What the second cache takes for each of so many blocks, of what it takes where all cores work on blocks."""
    cores = machine.limits.cores or 1
    part = min(tiles, cores) / cores
    return Served(read * part, left * part)


def row_cycles(machine: Machine, how: Microkernel, k: int, pitch: int) -> float:
    """Cycles that the second cache takes for a row of all of K, where rows lie so many bytes apart.

    Rows that begin anywhere lie in two of its lines; where they begin within sectors, it takes longer again, and more
    so for the last step of K, if that has several and ends within one.
    """
    limits, row = machine.limits, row_bytes(how)
    whole, rest = divmod(k, how.slab or 1)
    lines = _lines(machine, row, pitch)
    askew = limits.askew if pitch % limits.sector_bytes else 1.0
    left = rest * how.atom.a.dtype.bits // 8
    last = limits.askew_partial if pitch and left > limits.sector_bytes and left % limits.sector_bytes else askew
    return row * lines / limits.l2_rate * (whole * askew + (last if rest else 0))


def leaving(machine: Machine, how: Microkernel, bits: int, pitch: int) -> float:
    """Cycles that the second cache takes for a block of the result, of so many bits, with rows so many bytes apart."""
    limits, (rows, columns), widths = machine.limits, how.tile, _widths(machine)
    if not widths:
        return 0.0
    width = columns * bits // 8
    lines = ceil(width / widths[0]) * _lines(machine, min(width, widths[0]), pitch)
    return rows * lines * limits.leaving_row * (limits.askew if pitch % limits.sector_bytes else 1)


def _lines(machine: Machine, row: int, pitch: int) -> float:
    """How many times as long the second cache takes for rows of so many bytes that lie so far apart."""
    return 1 + (machine.limits.crossing - 1) * (1 - gcd(row, pitch) / row)


def row_bytes(how: Microkernel) -> int:
    """Bytes of a row of a tile in shared memory."""
    return (how.slab or 1) * how.atom.a.dtype.bits // 8


def cycles(
    machine: Machine,
    how: Microkernel,
    roles: Pipeline,
    tiles: int,
    steps: int,
    filled: float,
    first: float = 0.0,
    computed: float = 0.0,
    surplus: Surplus = NONE,
    gathered: float = 0.0,
    served: Served = UNSERVED,
    made: float = 0.0,
) -> float:
    """Cycles of so many tiles of C, each so many steps of K and an end, which bring so many bytes each.

    `first` are bytes that are brought before, once for all; `computed` is what lanes take for an element at the end,
    beside the way to shared memory of others; `gathered` what waves take that copy the bytes themselves, `served` what
    the second cache takes, which brings and takes away one after the other, `made` what lanes take for a factor that
    they compute: the products of a group wait for it, and those of others run beside it. Where halves take tiles in
    turn, the end of one runs beside the steps of the next.
    """
    limits, atom = machine.limits, how.atom
    deep, atoms = (how.slab or 1) // atom.shape[2], how.rows // atom.shape[0]
    lone = how.groups == 1 and atoms < machine.shared_memory.atoms_in_flight
    multiplied = steps * deep * atoms * atom.cycles * (limits.lone_group if lone else 1)
    multiplied = max(multiplied, made) + min(multiplied, made) / how.groups
    fed = steps * atoms * (atom.shape[0] + atom.shape[1]) * row_bytes(how) / limits.shared_rate
    shallow = roles.stages < ENOUGH and (not roles.halo_stages or roles.stages > 1)

    def stepped(brought: float) -> float:
        return (max(multiplied, fed, brought) + limits.copy_shown * brought) * (limits.shallow_ring if shallow else 1)

    brought = max(filled / limits.l2_rate, served.read, gathered)
    each, rounds = stepped(brought), ceil(tiles / (limits.cores or 1))
    longer = surplus.edges * (stepped(brought + steps * surplus.outside * limits.outside_row) - each)
    leaving = surplus.leaving * row_bytes(how) / limits.l2_rate
    end = how.rows * how.columns * max(4 / limits.shared_rate, computed) + leaving + limits.copy_latency
    before = limits.copy_latency + (brought / steps) + first / limits.l2_rate  # until anything has arrived
    busy = served.read + served.left + limits.task_cycles
    if roles.pingpong and rounds > 1:
        return rounds * max(each, (each + end) / 2, busy) + longer + end + before + limits.launch_cycles
    return rounds * max(each + end, busy) + longer + before + limits.launch_cycles
