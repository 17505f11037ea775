"""A kernel for one set of sizes: its plan, its module, and the executor that runs it on a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import ArgumentError
from tilewright.runtime.calls import known_level, named_values
from tilewright.runtime.device_arrays import DeviceArray, array_of
from tilewright.runtime.scripts import Kept, ScriptExecutor, Whole
from tilewright.runtime.tensors import as_array
from tilewright.runtime.timing import benchmark
from tilewright.targets.names import is_gpu

if TYPE_CHECKING:  # a kernel that is found in the cache is not planned
    from tilewright.algebra.expr import Symbol
    from tilewright.compiler.planned import PlannedKernel
    from tilewright.ir.core import Program
    from tilewright.ir.module import Module
    from tilewright.machine import Machine
    from tilewright.passes.tile.reports import Log
    from tilewright.plan.schedule import Schedule
    from tilewright.runtime.host import HostExecutor

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
    """A kernel for one set of sizes, or for all values of those that stay open, ready to run.

    What runs is planned, or was found in the cache, which keeps no more than that. Whatever else is asked for is
    planned then: `module` is its host program with the block programs; `main` is the block program that does the work,
    which others prepare.
    """

    def __init__(
        self,
        target: str,
        again: tuple[Any, ...],
        plan: Callable[[], PlannedKernel],
        stored: ScriptExecutor | None = None,
    ):
        """`again` is the executable that it is a member of, and which; `plan` plans it; `stored` is what was found."""
        self.target, self._again, self._plan = target, again, plan
        self._planned: PlannedKernel | None = None
        self._running = self.executor if stored is None else stored

    @property
    def planned(self) -> PlannedKernel:
        """The result of the passes."""
        if self._planned is None:
            self._planned = self._plan()
        return self._planned

    @property
    def executor(self) -> HostExecutor:
        """The executor of its host program; from now on, where it was found in the cache."""
        self._running = self.planned.executor
        return self.planned.executor

    @property
    def running(self) -> ScriptExecutor:
        """The executor that binds it to arrays."""
        return self._running

    @property
    def machine(self) -> Machine:
        """The machine that it is planned for."""
        return self.planned.request.machine

    @property
    def plan(self) -> Schedule:
        """Its plan."""
        return self.planned.realised.plan

    @property
    def choice(self) -> Any:
        """The plan among the others that there were."""
        return self.planned.realised.choice

    @property
    def module(self) -> Module:
        """Its host program with the block programs."""
        return self.planned.module

    @property
    def main(self) -> Program:
        """The block program that does the work."""
        return self.planned.main

    @property
    def _main(self) -> Any:
        return self.planned.launchable

    @property
    def parameters(self) -> tuple[Symbol, ...]:
        """The sizes that a call tells; the cache keeps kernels without any."""
        return () if self._planned is None else self._planned.request.opened.parameters

    @property
    def logs(self) -> tuple[Log, ...]:
        """The logs of this kernel; the cache keeps kernels that log nothing."""
        return () if self._planned is None else self._planned.realised.lowered.logs

    # -- what it is ---------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self._running.main

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
            return str(self.planned.loop() if kernel is None else kernel.loop)
        return machine_code(kernel, level)

    @property
    def object_code(self) -> bytes:
        """The object code of `main`."""
        if self._main.kernel is None:
            raise ArgumentError(f"{self.name} is no machine code on {self.target}")
        code: bytes = self._main.kernel.object
        return code

    def explain(self) -> str:
        """The chosen plan, its predicted time and what limits it, and what was refused."""
        text: str = self.choice.explain()
        return text

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
        return self.bind_whole(arrays, kept)[0]

    def bind_whole(
        self, arrays: Mapping[str, Array], kept: Kept | None = None, *, passing: bool = False
    ) -> tuple[Callable[[], None], Whole | None]:
        """What `bind` gives, and what it consists of where each call only launches on these very arrays.

        `passing` says that it is called once, now.
        """
        return self._running.bind_whole(self._ordered(arrays), kept=kept, passing=passing)

    def keep(self, arrays: Mapping[str, Array]) -> Kept:
        """What is done once for constant arguments, such as packing weights: `bind` takes it again and again."""
        return self._running.keep(self._ordered(arrays))

    def _ordered(self, arrays: Mapping[str, Array]) -> list[Array]:
        args = self._running.arguments
        named = named_values(arrays, "arrays", "{'x': x, 'y': y}")
        missing = [a.name for a in args if a.name not in named]
        if missing:
            names = ", ".join(a.name for a in args)
            raise ArgumentError(f"arrays: {self.name} takes {names}; {', '.join(missing)} is missing")
        taken = array_of if is_gpu(self.target) else as_array
        given = [taken(named[a.name], f"{self.name}: argument {a.name}") for a in args]
        return [_shaped(array, arg.shape) for array, arg in zip(given, args, strict=True)]

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
    kernel: Compiled = executable.again(*member)
    return kernel


def _shaped(array: Any, form: tuple[int, ...] | None) -> Any:
    if form is None or array.shape == form or array.size != np.prod(form, dtype=np.int64):
        return array
    packed = array.packed if isinstance(array, DeviceArray) else array.flags.c_contiguous
    if not packed:  # a reshape would copy it, and what is written there would be lost
        raise ArgumentError(f"an array of shape {array.shape} is not contiguous; pass np.ascontiguousarray of it")
    return array.reshape(form)
