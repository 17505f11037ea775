"""Copies of operands to another layout before the main kernel: bytes that they move, and cycles that they take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, prod

from tilewright.machine import Machine
from tilewright.plan.facts import AccessFacts, Facts, ValueFacts
from tilewright.plan.search.cost import SAME_WAVES, kernel_time, launch_cycles
from tilewright.plan.search.ranking import PlanCandidate, Rewrite
from tilewright.plan.search.work import Phase, Work


@dataclass(frozen=True)
class RowCopy:
    """The copy of an operand to another layout, as the cost model counts it.

    `memory` is the name of the operand, `source_elements` the number of its elements before the copy, `elements` that
    after it, padding included. `bytes` is the size of an element, `word` the number of elements per load or store.
    """

    memory: str
    source_elements: int
    elements: int
    bytes: int
    word: int
    is_view: bool = False
    """True if the operand has this shape already: nothing is copied."""

    def work(self, machine: Machine) -> Work:
        """Return the Work of a kernel that makes this copy: ALU cycles per core, bytes of memory traffic, one wait."""
        limits, cores = machine.limits, machine.limits.cores or 1
        lanes = limits.placing / limits.lane_rate / self.word * self.elements / cores
        moved = (self.source_elements + self.elements) * self.bytes
        return Work(cores, (Phase(1, lanes=lanes),), moved=moved, waits=limits.copy_latency)


@dataclass(frozen=True)
class Repacked:
    """A program on repacked operands (copied to another layout first), and the cycles of the copies.

    `rewrite` names the operands and their new layouts, `facts` is the analysed program that reads the copies.
    """

    rewrite: Rewrite
    facts: Facts
    cycles: float
    only_blocks: bool = False
    """True if only kernels whose tiles have several GEMMs of a batch may be used; they repack B to block-diagonal."""


def copy_cycles(machine: Machine, copies: list[RowCopy]) -> float:
    """Return the cycles of one launch that makes all `copies` before a kernel; 0 if nothing is copied.

    The copies share one wait for memory. Usually the cycles of the launch are added. On a machine with programmatic
    dependent launch, a kernel can be launched while the kernel before it ends: the launch is then hidden, and the
    result is at least the cycles of the launch.
    """
    copies = [c for c in copies if not c.is_view]
    if not copies:
        return 0.0
    alone = (kernel_time(machine, c.work(machine), SAME_WAVES).cycles - launch_cycles(machine) for c in copies)
    total = sum(alone) - (len(copies) - 1) * machine.limits.copy_latency
    early = "programmatic" in machine.launches
    return max(total, launch_cycles(machine)) if early else total + launch_cycles(machine)


def with_copies(candidate: PlanCandidate, repacked: Repacked) -> PlanCandidate:
    """Return the candidate for the program on repacked operands, with the cycles of the copies before it added.

    `repacked` has these cycles, and the rewrite (layouts of the operands), which becomes the candidate's only rewrite.
    """
    cycles = candidate.cycles + repacked.cycles
    return replace(candidate, cycles=cycles, rewrites=(repacked.rewrite,), key=(round(cycles), *candidate.key[1:]))


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the row-major strides of a contiguous tensor of this shape, in elements.

    >>> strides((4, 3, 8))
    (24, 8, 1)
    """
    return tuple(prod(shape[n + 1 :]) for n in range(len(shape)))


def row_copy_of(n: ValueFacts, packed: tuple[int, ...], machine: Machine) -> RowCopy:
    """Return the RowCopy (sizes, for the cost model) that copies the tensor that `n` reads to the shape `packed`.

    `n` is a read (a node of the program's graph). A tensor that has this shape already is marked as a view: not copied.
    """
    place = n.place
    word = gcd(machine.lane_access.vector_bytes // place.bytes, place.shape[-1], packed[-1])
    return RowCopy(place.memory, prod(place.shape), prod(packed), place.bytes, max(1, word), packed == place.shape)


def with_accesses(facts: Facts, accesses: dict[int, AccessFacts]) -> tuple[ValueFacts, ...]:
    """Return a tuple of the nodes of a program's graph, with some accesses replaced.

    `accesses` is {node number: new access}; nodes without an entry stay as they are. `facts` is the analysed program.
    """
    return tuple(replace(n, access=accesses[n.id]) if n.id in accesses else n for n in facts.nodes)
