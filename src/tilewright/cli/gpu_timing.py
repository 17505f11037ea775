"""A problem on a GPU: its time there, and the floor below which no kernel gets on such a machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilewright.compiler.device import memory_near
from tilewright.errors import ArgumentError

if TYPE_CHECKING:
    from tilewright.cli.workload import Arrays, Workload
    from tilewright.compiler.compiled import Compiled
    from tilewright.machine import Machine


@dataclass(frozen=True)
class Floor:
    """Seconds that all products take at the peak of the best atom, and that all bytes take through memory."""

    products: float
    memory: float
    atom: str

    @property
    def seconds(self) -> float:
        """The longer of both."""
        return max(self.products, self.memory)

    @property
    def by(self) -> str:
        """Which of both that is."""
        return self.atom if self.products >= self.memory else "memory"


def floor_of(work: Workload, machine: Machine) -> Floor:
    """max(flops / peak, bytes / bandwidth) of a problem, by a machine's description.

    >>> from tilewright.cli.workload import Workload, read_problem
    >>> from tilewright.targets.registry import machine
    >>> big = floor_of(Workload(read_problem("8192x8192:8192x8192"), ("bf16",) * 3), machine("hopper"))
    >>> round(big.products * 1e6), round(big.memory * 1e6), big.by.partition(".")[0]
    (1159, 97, 'wgmma')
    """
    import numpy as np

    from tilewright.ir.dtypes import element_type
    from tilewright.problems import dtype

    left = element_type(work.names[0], "--dt")
    fit = [a for a in machine.multiply.values() if a.a.dtype is left and a.rounds in (None, work.precision)]
    if not fit:
        raise ArgumentError(f"no atom of {machine.name} multiplies {left}: there is no peak to compare with")
    best = min(fit, key=lambda a: a.cycles / np.prod(a.shape))
    rate = (machine.limits.cores or 1) * machine.limits.clock_ghz * 1e9
    m, n, k = best.shape
    moved = sum(
        int(np.prod(shape)) * dtype(name).numpy.itemsize
        for shape, name in zip(work.shapes.values(), work.types, strict=True)
    )
    products = work.problem.ops / (rate * 2 * m * n * k / best.cycles)
    return Floor(products, moved / (rate * machine.limits.far_rate), best.name)


def seconds_on_gpu(kernel: Compiled, arrays: Arrays) -> float:
    """The median time of a launch on the GPU at hand, its arrays there, in a graph of launches."""
    from tilewright.targets.registry import gpu

    memory = memory_near(kernel.machine, [])
    watch = gpu(f"gpu:{kernel.machine.name}", None).backend.stopwatch(0)
    there = {}
    for name, array in arrays.items():
        goal = memory.empty(array.shape, array.dtype)
        there[name] = replace(goal, stream=watch.stream)
        memory.copy(array, there[name])
    found: float = watch.seconds(kernel.bind(there))
    return found
