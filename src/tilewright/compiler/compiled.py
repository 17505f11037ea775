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

if TYPE_CHECKING:  # a kernel from the cache needs no planner
    from tilewright.algebra.expr import Symbol
    from tilewright.compiler.planned import PlannedKernel
    from tilewright.ir.core import Program
    from tilewright.ir.module import Module
    from tilewright.lower.block.reports import Log
    from tilewright.machine import Machine
    from tilewright.plan.choice import Choice
    from tilewright.plan.schedule import Schedule
    from tilewright.runtime.host import HostExecutor

Array = np.ndarray[Any, np.dtype[Any]]
MACHINE_CODE = {"llvm": "llvm", "asm": "assembly"}
"""{level of machine code: attribute of a machine kernel with its text}; some machines have further `levels`."""


def machine_levels(kernel: Any) -> dict[str, str]:
    """Return {level of machine code: attribute of `kernel` that has its text}: {"llvm": "llvm", "asm": "assembly"}.

    `kernel` is a compiled block program of a CPU or GPU; some GPUs add levels. Return {} if it is None.
    """
    return {} if kernel is None else {**MACHINE_CODE, **getattr(kernel, "levels", {})}


def machine_code(kernel: Any, level: str) -> str:
    """Return the text of `kernel` on `level`, a level that `machine_levels(kernel)` has, such as "llvm" or "asm"."""
    return str(getattr(kernel, machine_levels(kernel)[level]))


class Compiled:
    """A kernel compiled for one set of sizes, or for all values of its dynamic sizes.

    Either it was planned in this process, or its executor was found in the disk cache. The cache stores no plan and no
    programs: the kernel is planned at the first use of a property that needs them. `module` is the host program with
    its block programs. `main` is the block program that computes the result; the other block programs prepare its
    operands.
    """

    def __init__(
        self,
        target: str,
        recipe: tuple[Any, ...],
        plan: Callable[[], PlannedKernel],
        stored: ScriptExecutor | None = None,
    ):
        """Take a kernel that `plan()` plans when that is needed.

        `target` is the name of the target. `recipe` has (executable, sizes, shapes, logs), from which a pickled kernel
        is restored. `stored` is the executor from the disk cache; if it is None, the kernel is planned now.
        """
        self.target, self._recipe, self._plan = target, recipe, plan
        self._planned: PlannedKernel | None = None
        self._running = self.executor if stored is None else stored

    @property
    def planned(self) -> PlannedKernel:
        """Return the kernel after planning: the request, the result of the passes, and the launchable module.

        A kernel from the cache is planned here, on first use.
        """
        if self._planned is None:
            self._planned = self._plan()
        return self._planned

    @property
    def executor(self) -> HostExecutor:
        """Return the executor of the planned host program, and set it as the one that runs the kernel from now on.

        A kernel from the cache is planned here, on first use.
        """
        self._running = self.planned.executor
        return self.planned.executor

    @property
    def running(self) -> ScriptExecutor:
        """Return the executor that binds the kernel to arrays: that of the planned host program, or the one from the
        cache."""
        return self._running

    @property
    def machine(self) -> Machine:
        """Return the described machine that the kernel is planned for. A kernel from the cache is planned first."""
        return self.planned.request.machine

    @property
    def plan(self) -> Schedule:
        """Return the plan that the kernel follows: its tiles, loop order, copies and atoms. A kernel from the cache is
        planned first."""
        return self.planned.realised.plan

    @property
    def choice(self) -> Choice:
        """Return the planner's choice: the plan, its predicted time, and the alternatives that were compared or
        rejected.

        A kernel from the cache is planned first.
        """
        return self.planned.realised.choice

    @property
    def module(self) -> Module:
        """Return the host program, with the block programs that it launches. A kernel from the cache is planned
        first."""
        return self.planned.module

    @property
    def main(self) -> Program:
        """Return the block program that computes the result; the module's other block programs prepare its operands.

        A kernel from the cache is planned first.
        """
        return self.planned.main

    @property
    def _launchable_main(self) -> Any:
        """Return the main block program, ready to be launched on the target. A kernel from the cache is planned
        first."""
        return self.planned.launchable

    @property
    def parameters(self) -> tuple[Symbol, ...]:
        """Return the symbols of the open sizes, sorted by name; each call passes their values. Return () for a kernel
        that is not planned, which comes from the cache and has none."""
        return () if self._planned is None else self._planned.request.opened.parameters

    @property
    def logs(self) -> tuple[Log, ...]:
        """Return a description (label, shape, type) of each tensor that a debug_log of the kernel records.

        Return () for a kernel that is not planned, which comes from the cache and logs nothing.
        """
        return () if self._planned is None else self._planned.realised.lowered.logs

    # -- what it is ---------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Return the name of the kernel's main program."""
        return self._running.main

    def text(self, level: str = "block") -> str:
        """Return the kernel's text on `level`: "plan", "host" (the whole module), or "block", "loop", "llvm", "asm" of
        its main program.

        Some machines have more levels of machine code. Raise ArgumentError for another level; there is machine code
        only on CPUs and GPUs. A kernel from the cache is planned first.
        """
        kernel = self._launchable_main.kernel
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
        """Return the object code of the main program. Raise ArgumentError if the target has no machine code."""
        if self._launchable_main.kernel is None:
            raise ArgumentError(f"{self.name} is no machine code on {self.target}")
        code: bytes = self._launchable_main.kernel.object
        return code

    def explain(self) -> str:
        """Return a text with the chosen plan, its predicted time, what limits it, and the plans that were rejected.

        A kernel from the cache is planned first.
        """
        return self.choice.explain()

    def __repr__(self) -> str:
        arguments = ", ".join(
            f"{a.name}: {a.type.dtype}[{', '.join(map(str, a.type.shape))}]" for a in self.module.host.args
        )
        by = "" if self.plan.atom is None else f" by {self.plan.atom}"
        return f"<kernel {self.name}({arguments}){by} on {self.target}>"

    @property
    def member(self) -> tuple[Any, dict[str, int], list[tuple[int, ...]] | None]:
        """Return (executable, sizes, shapes): the executable that this kernel belongs to, and the sizes and shapes of
        the call for which it was compiled.

        `sizes` is {size name: number}. `shapes` is the list of the arguments' shapes, or None if sizes are dynamic.
        """
        executable, sizes, shapes, _ = self._recipe
        return executable, sizes, shapes

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored_member, self._recipe

    # -- running it ---------------------------------------------------------------------------------------

    def bind(self, arrays: Mapping[str, Array], kept: Kept | None = None) -> Callable[[], None]:
        """Return a function that launches the kernel on `arrays`, {argument name: array}, outputs too.

        Work on constant arguments, such as packing weights, is done now, unless `kept`, a result of `keep`, has its
        results. A contiguous array may have another shape than the argument, if it has as many elements. Raise
        ArgumentError if an array is missing or does not fit.
        """
        return self.bind_whole(arrays, kept)[0]

    def bind_whole(
        self, arrays: Mapping[str, Array], kept: Kept | None = None, *, passing: bool = False
    ) -> tuple[Callable[[], None], Whole | None]:
        """Return (the function that `bind` returns, a Whole or None).

        A Whole describes the launches and arrays of a call, so that a launch cache can repeat the call on other arrays.
        It is None if a call does more than copies and launches. `arrays` is {argument name: array}, outputs too.
        `kept`, a result of `keep`, has the work on constant arguments; if it is None, that work is done now. With
        `passing`, the caller promises to call the function exactly once, right away. Raise ArgumentError if an array is
        missing or does not fit.
        """
        return self._running.bind_whole(self._arrays_in_order(arrays), kept=kept, passing=passing)

    def keep(self, arrays: Mapping[str, Array]) -> Kept:
        """Do the work on constant arguments, such as packing weights, and return its result as a Kept.

        `bind` takes the Kept, and then does not repeat that work. `arrays` is {argument name: array}, with all
        arguments. Raise ArgumentError if an array is missing or does not fit.
        """
        return self._running.keep(self._arrays_in_order(arrays))

    def _arrays_in_order(self, arrays: Mapping[str, Array]) -> list[Array]:
        """Return the list of the arrays in `arrays`, {argument name: array}, in the order and with the shapes of the
        kernel's arguments.

        Raise ArgumentError if one is missing, or cannot be reshaped without a copy. Other names are ignored.
        """
        args = self._running.arguments
        named = named_values(arrays, "arrays", "{'x': x, 'y': y}")
        missing = [a.name for a in args if a.name not in named]
        if missing:
            names = ", ".join(a.name for a in args)
            raise ArgumentError(f"arrays: {self.name} takes {names}; {', '.join(missing)} is missing")
        as_target_array = array_of if is_gpu(self.target) else as_array
        argument_arrays = [as_target_array(named[a.name], f"{self.name}: argument {a.name}") for a in args]
        return [_reshaped(array, arg.shape) for array, arg in zip(argument_arrays, args, strict=True)]

    def benchmark(self, arrays: Mapping[str, Array], seconds: float = 0.2) -> dict[str, float]:
        """Time launches on `arrays`, {argument name: array}, for about `seconds` seconds.

        Return {"shortest": seconds of the fastest launch, "median": seconds, "calls": how many were timed}. Work on
        constant arguments is done before. Raise ArgumentError if an array is missing or does not fit.
        """
        return benchmark(self.bind(arrays), seconds)

    def made_logs(self) -> list[Array]:
        """Return a list of new, uninitialised numpy arrays, one for each tensor that the kernel logs.

        A launch takes them as its last arguments.
        """
        return [np.empty(log.shape, log.dtype.numpy) for log in self.logs]

    def report_logs(self, arrays: Sequence[Array], logs: dict[str, Any]) -> None:
        """Set `logs[label]` to {"value": array} for each log of the kernel.

        If a log has an entry for each iteration of loops, set `logs[label]["iteration_dimensions"]` to the list of the
        loops' axes. `arrays` are the arrays of `made_logs`, which a launch has filled.
        """
        for log, array in zip(self.logs, arrays, strict=True):
            logs[log.label] = {"value": array}
            if log.names:
                logs[log.label]["iteration_dimensions"] = list(log.names)


def _restored_member(executable: Any, *member: Any) -> Compiled:
    """Return the kernel of `executable` for the sizes, shapes and logging in `member`. Unpickling calls this.

    Its machine code is loaded from the cache or compiled. `member` is ({size name: number}, argument shapes or None,
    True if it logs).
    """
    kernel: Compiled = executable.remake(*member)
    return kernel


def _reshaped(array: Any, form: tuple[int, ...] | None) -> Any:
    """Return `array` reshaped to `form`, a shape. It is unchanged if `form` is None, is its shape, or has another
    number of elements.

    Raise ArgumentError if an array that is to be reshaped is not contiguous: a reshape would copy it, and results
    written to the copy would be lost.
    """
    if form is None or array.shape == form or array.size != np.prod(form, dtype=np.int64):
        return array
    packed = array.packed if isinstance(array, DeviceArray) else array.flags.c_contiguous
    if not packed:
        raise ArgumentError(f"an array of shape {array.shape} is not contiguous; pass np.ascontiguousarray of it")
    return array.reshape(form)
