"""A kernel after planning: the request, the result of the passes, and the module made launchable on a target."""

from __future__ import annotations

from tilewright.compiler.device import (
    Device,
    GpuDevice,
    GpuProgram,
    InterpretedProgram,
    InterpretingDevice,
    NativeDevice,
    NativeProgram,
)
from tilewright.compiler.module_executor import NativeExecutor, executor_of
from tilewright.driver.bound_plan import Realised
from tilewright.driver.request import Request
from tilewright.ir.core import Program
from tilewright.lower.cpu.lower import lower
from tilewright.lower.gpu.lower import lower_waves
from tilewright.targets.cpu.entry import EntryMember
from tilewright.targets.names import GPU, is_gpu, is_native


class PlannedKernel:
    """The result of the passes for a kernel. `main` is the block program that computes the result; the module's other
    block programs prepare its operands.
    """

    def __init__(self, request: Request, realised: Realised, target: str):
        self.request, self.realised, self.module = request, realised, realised.module
        device: Device = InterpretingDevice()
        if is_native(target):
            device = NativeDevice(target, checked=True)
        elif is_gpu(target):  # packing programs name no machine; they run where the main program does
            device = GpuDevice(f"{GPU}:{request.machine.name}")
        self.executor = executor_of(self.module, device)
        self.executor.prepare()
        *_, name = self.module.programs
        launchable, _ = self.executor.prepared(name, {})
        assert isinstance(launchable, NativeProgram | InterpretedProgram | GpuProgram)
        self.launchable, self.main = launchable, launchable.program

    @property
    def member(self) -> EntryMember | None:
        """Return the machine-code entry (the native function that runs the whole module) of a kernel without dynamic
        sizes.

        Return None for a GPU, for the interpreter, and if Python must launch the module's programs one by one.
        """
        executor = self.executor
        return executor.member_of_closed_sizes() if isinstance(executor, NativeExecutor) else None

    def loop(self) -> Program:
        """Return the main block program lowered to a loop program (the IR level below) for its machine."""
        machine = self.request.machine
        if machine.lanes is not None:
            return lower_waves(self.main, machine)
        return lower(self.main, machine, machine).program
