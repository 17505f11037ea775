"""Rows that one lane walks alone, element after element: scans that lanes do not share, and the largest few of a row.

    scan x -> running along M       32 columns of 8192 rows: a lane has a column, and waits for each of its elements

Lanes share a scan if they have registers for all of its elements. Otherwise a lane has a row, and each step waits for
what it loads: nothing runs ahead of a step, because it stores what the next one may load.
"""

from __future__ import annotations

from math import ceil, prod

from tilewright.algebra.expr import Expr
from tilewright.plan.boxes import numbers_of
from tilewright.plan.facts import ValueFacts
from tilewright.plan.facts.graph import SCANS
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule

TOPK = "topk"


def walked(kernel: UniformKernelSchedule) -> list[ValueFacts]:
    """Return the scans, and searches for the largest few, of a kernel whose rows a single lane walks, each to its end.

    On a machine without lanes (a CPU) these are none: a core's vectors walk all rows.
    """
    lanes = kernel.waves * (kernel.machine.lanes or 0)
    most = kernel.machine.register_file.tensor_values * lanes
    return [n for n in kernel.facts.nodes if n.op in SCANS and lanes and (n.op == TOPK or _elements(kernel, n) > most)]


def walk_cycles(kernel: UniformKernelSchedule) -> float:
    """Return the cycles in which one task waits while its lanes walk rows alone; 0 if they share all rows.

    A step waits for an element in memory, or in shared memory if that holds the task's elements.
    """
    machine, size, cycles = kernel.machine, numbers_of(kernel.facts.sizes), 0.0
    shared = machine.spaces["shared"].bytes if "shared" in machine.spaces else None
    for n in walked(kernel):
        dim = _dim(n)
        length, elements = kernel.width(dim), _elements(kernel, n)
        turns = ceil(elements / length / (kernel.waves * (machine.lanes or 1)))
        near = shared is None or elements * machine.register_file.word_bytes <= shared
        step = machine.limits.gather_cycles if near else machine.limits.copy_latency
        passes = size(n.source.attrs["count"]) if n.op == TOPK and n.source is not None else 1
        cycles += ceil(size(dim) / length) * turns * passes * length * step
    return cycles


def _dim(n: ValueFacts) -> Expr:
    """Return the dimension that a scan, or a search for the largest few, goes along."""
    assert n.source is not None
    dim = n.source.attrs["dim"]
    assert isinstance(dim, Expr)
    return dim


def _elements(kernel: UniformKernelSchedule, n: ValueFacts) -> int:
    """Return the elements that a task has of what a scan goes along."""
    assert n.source is not None
    return prod(kernel.width(d) for d in n.source.operands[0].type.dims)
