"""Scans and topk that one lane computes alone, one element after another, and the cycles that they wait for loads.

    scan x -> running along M       32 columns of 8192 rows: a lane has a column, and waits for each of its elements

Lanes share a scan if they have registers for all of its elements. Otherwise each lane scans a row of its own, and each
step waits for its load: no load starts ahead, because the step before may store the same element.
"""

from __future__ import annotations

from math import ceil, prod

from tilewright.algebra.expr import Expr
from tilewright.plan.facts import ValueFacts
from tilewright.plan.facts.graph import SCANS
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule

TOPK = "topk"


def single_lane_ops(kernel: UniformKernelSchedule) -> list[ValueFacts]:
    """Return the scan and topk operations of a kernel in which a single lane computes each row from end to end.

    These are every topk (search for the largest few), and each scan whose elements do not fit in the registers of the
    workgroup's lanes. [] on a machine without lanes (a CPU).
    """
    lanes = kernel.waves * (kernel.machine.lanes or 0)
    most = kernel.machine.register_file.tensor_values * lanes
    return [
        n for n in kernel.facts.nodes if n.op in SCANS and lanes and (n.op == TOPK or _input_elements(kernel, n) > most)
    ]


def single_lane_cycles(kernel: UniformKernelSchedule) -> float:
    """Return the cycles that one workgroup waits for loads in scans and topk whose rows single lanes compute.

    Each step along a row waits for one element. It comes from shared memory if that holds all elements of the
    workgroup, else from global memory. A topk (search for the largest few) takes one pass over the row per result. 0 if
    there is no such scan or topk.
    """
    machine, size, cycles = kernel.machine, kernel.facts.number_of, 0.0
    shared = machine.spaces["shared"].bytes if "shared" in machine.spaces else None
    for n in single_lane_ops(kernel):
        dim = _op_dim(n)
        length, elements = kernel.width(dim), _input_elements(kernel, n)
        turns = ceil(elements / length / (kernel.waves * (machine.lanes or 1)))
        near = shared is None or elements * machine.register_file.word_bytes <= shared
        step = machine.limits.gather_cycles if near else machine.limits.copy_latency
        passes = size(n.source.attrs["count"]) if n.op == TOPK and n.source is not None else 1
        cycles += ceil(size(dim) / length) * turns * passes * length * step
    return cycles


def _op_dim(n: ValueFacts) -> Expr:
    """Return the dimension along which the operation `n` (a scan, or a topk) runs."""
    assert n.source is not None
    dim = n.source.attrs["dim"]
    assert isinstance(dim, Expr)
    return dim


def _input_elements(kernel: UniformKernelSchedule, n: ValueFacts) -> int:
    """Return the number of elements of the input of the operation `n` (a scan, or a topk) that a workgroup has."""
    assert n.source is not None
    return prod(kernel.width(d) for d in n.source.operands[0].type.dims)
