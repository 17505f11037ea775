"""A kernel as it was planned: the job that the passes did, and its module made launchable on a target."""

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
from tilewright.ir.core import Program
from tilewright.passes.job import Job
from tilewright.passes.lower import lower
from tilewright.passes.waves.lower import lower_waves
from tilewright.runtime.host import HostExecutor
from tilewright.targets.names import GPU, is_gpu, is_native


class PlannedKernel:
    """The result of the passes for a kernel; `main` is the block program that does the work, which others prepare."""

    def __init__(self, job: Job, target: str):
        assert job.module is not None
        self.job, self.module = job, job.module
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
        self.launchable, self.main = found, found.program

    def loop(self) -> Program:
        """The loop program of `main` for its machine, where it is no machine code."""
        machine = self.job.machine
        if machine.lanes is not None:
            return lower_waves(self.main, machine)
        return lower(self.main, machine, machine).program
