"""Tile kernels on the loop level: their block programs are interpreted as the loop programs that they become."""

from __future__ import annotations

from tilewright.compiler.device import InterpretedProgram, InterpretingDevice, machine_of, ready
from tilewright.lower.cpu.lower import lower
from tilewright.lower.gpu.lower import lower_waves
from tilewright.runtime.host import HostExecutor
from tilewright.targets.cpu.families import is_cpu


class LoopProgram(InterpretedProgram):
    """A loop program; tensors whose sizes are numbers are flat there."""

    def launch(self, arrays, workers, params):
        ranks = [len(a.type.shape) for a in self.program.args]
        flat = [a if a.ndim == rank else a.reshape(-1) for a, rank in zip(arrays, ranks, strict=True)]
        return super().launch(flat, workers, params)


class LoopDevice(InterpretingDevice):
    """The interpreter; what names a machine is lowered first, for its waves or for its workers."""

    def prepare(self, program, params):
        block, conditions = ready(program, params)
        machine = machine_of(program)
        if machine is None:
            return LoopProgram(self, block, conditions)
        loops = lower(block, machine, machine).program if is_cpu(machine.name) else lower_waves(block, machine)
        return LoopProgram(self, loops, conditions)


def on_the_loop_level(kernel):
    """The executor of a compiled kernel, on the loop level."""
    return HostExecutor(kernel.module, LoopDevice())
