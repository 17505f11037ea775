"""A kernel for one set of sizes: its plan, its module, and the executor that runs it on a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.algebra.expr import Symbol
from tilewright.compiler.device import (
    Device,
    GpuDevice,
    GpuProgram,
    InterpretedProgram,
    InterpretingDevice,
    NativeDevice,
    NativeProgram,
)
from tilewright.errors import ArgumentError
from tilewright.ir.core import Program
from tilewright.passes.job import Job
from tilewright.passes.lower import lower
from tilewright.passes.tile.reports import Log
from tilewright.passes.waves.lower import lower_waves
from tilewright.runtime.calls import known_level, named_values
from tilewright.runtime.device_arrays import DeviceArray, array_of
from tilewright.runtime.host import HostExecutor, Kept
from tilewright.runtime.tensors import as_array
from tilewright.runtime.timing import benchmark
from tilewright.targets.registry import GPU, is_gpu, is_native

Array = np.ndarray[Any, np.dtype[Any]]
MACHINE_CODE = {"llvm": "llvm", "asm": "assembly"}
"""Levels of machine code, and what a kernel calls them; kernels of some machines have further `levels`."""


def machine_levels(kernel: Any) -> dict[str, str]:
    """The levels of a kernel's machine code, and what it calls them; none where there is no such kernel."""
    return {} if kernel is None else {**MACHINE_CODE, **getattr(kernel, "levels", {})}


def machine_code(kernel: Any, level: str) -> str:
    """A kernel's machine code on one of its levels."""
    return str(getattr(kernel, machine_levels(kernel)[level]))


class Compiled:
    """A kernel for one set of sizes, or for all values of those that stay open: what passes made of it, ready to run.

    `module` is its host program with the block programs; `main` is the block program that does the work, which others
    prepare. `contraction` says what it was planned as, where it is a single one. `again` is the executable that it
    is a member of, and which.
    """

    def __init__(self, job: Job, target: str, again: tuple[Any, ...]):
        assert job.module is not None
        assert job.plan is not None
        assert job.choice is not None
        self.target, self.machine, self._again = target, job.machine, again
        self.plan, self.choice, self.why = job.plan, job.choice, job.why
        self.contraction = job.contraction
        self.parameters: tuple[Symbol, ...] = job.opened.parameters
        """The sizes that a call tells."""
        self.module = job.module
        self.logs: tuple[Log, ...] = () if job.lowered is None else job.lowered.logs
        device: Device = InterpretingDevice()
        if is_native(target):
            device = NativeDevice(target, checked=job.lowered is not None)
        elif is_gpu(target):  # programs that pack name no machine; they run where the others do
            device = GpuDevice(f"{GPU}:{job.machine.name}")
        self.executor = HostExecutor(job.module, device)
        self.executor.prepare()
        *_, name = job.module.programs
        found, _ = self.executor.prepared(name, {})
        assert isinstance(found, NativeProgram | InterpretedProgram | GpuProgram)
        self._main, self.main = found, found.program

    # -- what it is ---------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.main.name

    def text(self, level: str = "block") -> str:
        """The kernel on a level: "plan", "host" (the whole module), or "block", "loop", "llvm", "asm" of `main`."""
        kernel = self._main.kernel
        levels = ("plan", "host", "block", "loop", *machine_levels(kernel))
        known_level(level, levels, f"{self.name} on {self.target}")
        if level == "plan":
            return "\n".join(self.plan.lines()) + "\n"
        if level == "host":
            return str(self.module)
        if level == "block":
            return str(self.main)
        if level == "loop":
            return str(self._loop() if kernel is None else kernel.loop)
        return machine_code(kernel, level)

    def _loop(self) -> Program:
        """The loop program of `main` for its machine, where it is no machine code."""
        if self.machine.lanes is not None:
            return lower_waves(self.main, self.machine)
        return lower(self.main, self.machine, self.machine).program

    @property
    def object_code(self) -> bytes:
        """The object code of `main`."""
        if self._main.kernel is None:
            raise ArgumentError(f"{self.name} is no machine code on {self.target}")
        found: bytes = self._main.kernel.object
        return found

    def explain(self) -> str:
        """The chosen plan, its predicted time and what limits it, and what was refused."""
        told = self.why and self.contraction is None and self.plan.pipeline is None
        why = f"no single contraction: {self.why}" if told else ""
        return "\n".join(filter(None, [self.choice.explain(), why]))

    def __repr__(self) -> str:
        given = ", ".join(
            f"{a.name}: {a.type.dtype}[{', '.join(map(str, a.type.shape))}]" for a in self.module.host.args
        )
        by = "" if self.plan.atom is None else f" by {self.plan.atom}"
        return f"<kernel {self.name}({given}){by} on {self.target}>"

    @property
    def member(self) -> tuple[Any, dict[str, int], list[tuple[int, ...]] | None]:
        """The executable that it belongs to, its sizes, and its arguments' shapes; None where a call tells them."""
        executable, sizes, shapes, _ = self._again
        return executable, sizes, shapes

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, self._again

    # -- running it ---------------------------------------------------------------------------------------

    def bind(self, arrays: Mapping[str, Array], kept: Kept | None = None) -> Callable[[], None]:
        """The kernel bound to arrays by argument name; a call launches it. `kept` is what `keep` gave.

        Arrays may have another shape than the kernel's arguments, with as many elements, where they are contiguous.
        """
        return self.executor.bind(self._ordered(arrays), kept=kept)

    def keep(self, arrays: Mapping[str, Array]) -> Kept:
        """What is done once for constant arguments, such as packing weights: `bind` takes it again and again."""
        return self.executor.keep(self._ordered(arrays))

    def _ordered(self, arrays: Mapping[str, Array]) -> list[Array]:
        host = self.module.host
        named = named_values(arrays, "arrays", "{'x': x, 'y': y}")
        names = [a.name or "" for a in host.args]
        missing = [name for name in names if name not in named]
        if missing:
            raise ArgumentError(f"arrays: {self.name} takes {', '.join(names)}; {', '.join(missing)} is missing")
        given: list[Any] = [named[name] for name in names]
        if is_gpu(self.target):
            given = [array_of(x, f"{self.name}: argument {a.name}") for a, x in zip(host.args, given, strict=True)]
        else:
            given = [as_array(x, f"{self.name}: argument {a.name}") for a, x in zip(host.args, given, strict=True)]
        return [_shaped(array, form) for array, form in zip(given, self.executor.forms, strict=True)]

    def benchmark(self, arrays: Mapping[str, Array], seconds: float = 0.2) -> dict[str, float]:
        """Seconds of a launch on these arrays, constant ones packed before: shortest, median, calls."""
        return benchmark(self.bind(arrays), seconds)

    def made_logs(self) -> list[Array]:
        """Tensors for what the kernel logs: its last arguments."""
        return [np.empty(log.shape, log.dtype.numpy) for log in self.logs]

    def report_logs(self, made: Sequence[Array], logs: dict[str, Any]) -> None:
        """Hands over what was logged."""
        for log, array in zip(self.logs, made, strict=True):
            logs[log.label] = {"value": array}
            if log.names:
                logs[log.label]["iteration_dimensions"] = list(log.names)


def _remade(executable: Any, *member: Any) -> Compiled:
    """A member of an executable, made again; its machine code is found in the cache, or compiled."""
    found: Compiled = executable.again(*member)
    return found


def _shaped(array: Any, form: tuple[int, ...] | None) -> Any:
    if form is None or array.shape == form or array.size != np.prod(form, dtype=np.int64):
        return array
    packed = array.packed if isinstance(array, DeviceArray) else array.flags.c_contiguous
    if not packed:  # a reshape would copy it, and what is written there would be lost
        raise ArgumentError(f"an array of shape {array.shape} is not contiguous; pass np.ascontiguousarray of it")
    return array.reshape(form)
