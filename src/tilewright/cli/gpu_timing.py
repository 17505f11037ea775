"""The time of a problem on a GPU, and the roofline time below which no kernel gets on that machine."""

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
    """The roofline of a problem. `products` is the time of its multiplications in seconds, at the peak of the machine's
    fastest atom `atom`; `memory` is the time of its memory traffic in seconds.
    """

    products: float
    memory: float
    atom: str

    @property
    def seconds(self) -> float:
        """The roofline time in seconds: the longer of `products` and `memory`."""
        return max(self.products, self.memory)

    @property
    def by(self) -> str:
        """The roofline's limit: the name of the multiplication atom if multiplications take longer, otherwise
        "memory".
        """
        return self.atom if self.products >= self.memory else "memory"


def floor_of(work: Workload, machine: Machine) -> Floor:
    """Return the roofline of the problem `work` on `machine`: its operations / peak of all cores with the fastest atom,
    and its bytes / memory bandwidth.

    The bytes are those of both operands and the result, once each. Raise `ArgumentError` if no atom multiplies the type
    of the left operand with the precision of `work`.

    >>> from tilewright.cli.workload import Workload, read_problem
    >>> from tilewright.targets.registry import machine
    >>> big = floor_of(Workload(read_problem("8192x8192:8192x8192"), ("bf16",) * 3), machine("hopper"))
    >>> round(big.products * 1e6), round(big.memory * 1e6), big.by.partition(".")[0]
    (1159, 97, 'wgmma')
    """
    import numpy as np

    from tilewright.ir.dtypes import element_type
    from tilewright.problems import dtype

    operand_type = element_type(work.names[0], "--dt")
    candidates = [
        a for a in machine.multiply.values() if a.a.dtype is operand_type and a.rounds_to in (None, work.precision)
    ]
    if not candidates:
        raise ArgumentError(f"no atom of {machine.name} multiplies {operand_type}: there is no peak to compare with")
    fastest = min(candidates, key=lambda a: a.cycles / np.prod(a.shape))
    rate = (machine.limits.cores or 1) * machine.limits.clock_ghz * 1e9
    m, n, k = fastest.shape
    bytes_moved = sum(
        int(np.prod(shape)) * dtype(name).numpy.itemsize
        for shape, name in zip(work.shapes.values(), work.types, strict=True)
    )
    products = work.problem.ops / (rate * 2 * m * n * k / fastest.cycles)
    return Floor(products, bytes_moved / (rate * machine.limits.far_rate), fastest.name)


def seconds_on_gpu(kernel: Compiled, arrays: Arrays) -> float:
    """Copy `arrays` ({argument name: array}) to the GPU in use and return the median seconds of one launch of `kernel`
    on them, measured by replays of a graph of launches.
    """
    from tilewright.targets.registry import gpu

    memory = memory_near(kernel.machine, [])
    watch = gpu(f"gpu:{kernel.machine.name}", None).backend.stopwatch(0)
    gpu_arrays = {}
    for name, array in arrays.items():
        gpu_array = memory.empty(array.shape, array.dtype)
        gpu_arrays[name] = replace(gpu_array, stream=watch.stream)
        memory.copy(array, gpu_arrays[name])
    seconds: float = watch.seconds(kernel.bind(gpu_arrays))
    return seconds
