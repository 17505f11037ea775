"""Tile kernels on the loop level: their block programs are interpreted as the loop programs that they become."""

from __future__ import annotations

from tilewright.compiler.device import InterpretedProgram, InterpretingDevice, machine_of, ready
from tilewright.passes.waves.lower import lower_waves
from tilewright.runtime.host import HostExecutor


class LoopProgram(InterpretedProgram):
    """A loop program; tensors whose sizes are numbers are flat there."""

    def launch(self, arrays, workers, params):
        ranks = [len(a.type.shape) for a in self.program.args]
        flat = [a if a.ndim == rank else a.reshape(-1) for a, rank in zip(arrays, ranks, strict=True)]
        return super().launch(flat, workers, params)


class LoopDevice(InterpretingDevice):
    """The interpreter; what names a machine of many lanes is lowered first."""

    def prepare(self, program, params):
        block, conditions = ready(program, params)
        machine = machine_of(program)
        return LoopProgram(self, block if machine is None else lower_waves(block, machine), conditions)


def on_the_loop_level(kernel):
    """The executor of a compiled kernel, on the loop level."""
    return HostExecutor(kernel.module, LoopDevice())
