"""Tasks of kernels without a pipeline that run on a core at a time: their registers, and what each waits for."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.plan.boxes import numbers_of
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule
from tilewright.plan.search.work import Work


def with_residence(kernel: UniformKernelSchedule, work: Work) -> Work:
    """Return `work` with three fields added that depend on how many tasks (workgroups) a core of a GPU runs at a time.

    The fields are: that number; the cycles per task in which its waves exchange partial reductions; and the bytes that
    move a second time, because registers spill or because lanes share rows unevenly. `work` is returned unchanged if
    the machine's description has no costs for these.
    """
    machine, facts, costs = kernel.machine, kernel.facts, kernel.machine.costs.resident
    if not costs.lanes:
        return work
    lanes, rows = kernel.waves * (machine.lanes or 1), prod(kernel.widths.values())
    dealt = 1 << (rows - 1).bit_length()
    reductions = [n for n in facts.nodes if n.reduces]
    again = _spilled_share(kernel, work, lanes) * _result_elements(kernel) * machine.register_file.word_bytes
    if reductions and dealt > rows:
        again = max(again, (costs.uneven - 1) * work.moved)
    exchange = len(reductions) * costs.exchange if dealt < kernel.waves else 0.0
    return replace(work, at_a_time=max(1, costs.lanes // lanes), exchange=exchange, again=again)


def _result_elements(kernel: UniformKernelSchedule) -> float:
    """Return the number of elements of the largest result that all workgroups together compute in one loop iteration.

    Without loops these are all elements of the result.
    """
    size, facts = numbers_of(kernel.facts.sizes), kernel.facts
    most = max((facts.size(n.dims) for n in facts.writes), default=0)
    return most * prod(min(1.0, n / max(1, size(d))) for d, n in kernel.loops.items())


def _spilled_share(kernel: UniformKernelSchedule, work: Work, lanes: int) -> float:
    """Return the fraction (0 to 1) of a lane's live values that do not fit in its registers.

    `lanes` is the number of lanes per workgroup. 0 on a machine that does not state its registers. `work` is the
    kernel's counted work (cycles and bytes).
    """
    machine, facts, costs = kernel.machine, kernel.facts, kernel.machine.costs.resident
    file = machine.spaces["register"].bytes
    if file is None:
        return 0.0
    word, smallest = (
        machine.register_file.word_bytes,
        min((n.place.bytes for n in facts.reads or facts.writes), default=1),
    )
    held = _result_elements(kernel) / work.tasks / lanes * (smallest + word) / 2 / word
    room = file / word / max(costs.lanes, lanes) - costs.registers
    return max(0.0, 1 - room / held) if held else 0.0
