"""PTX from a loop program, by LLVM; and what the driver makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.ir.core import Program
from tilewright.machine import Machine
from tilewright.targets.gpu.emit import Emitted, emit
from tilewright.targets.nvidia import driver
from tilewright.targets.nvidia.dialect import Ptx
from tilewright.targets.nvidia.disassembly import disassembled
from tilewright.targets.nvidia.launch import Launch
from tilewright.targets.nvidia.machine import architecture
from tilewright.targets.nvidia.memory import DeviceMemory
from tilewright.targets.nvidia.timing import Stopwatch

TRIPLE = "nvptx64-nvidia-cuda"
PASSES = ("sroa", "simplify_cfg", "instruction_combine", "simplify_cfg")
"""Registers out of stack slots; the rest is the assembler's to do."""
FLAGS = ("--disable-lsr=false", "--enable-misched=true", "--enable-post-misched=true")


class Nvidia:
    """What NVIDIA provides for its GPUs."""

    levels: Mapping[str, str] = {"ptx": "assembly", "sass": "instructions"}

    def emitted(self, program: Program, machine: Machine) -> Emitted:
        """The LLVM IR of a loop program."""
        return emit(program, machine, Ptx())

    def request(self, machine: Machine) -> dict[str, Any]:
        """What the helper that generates code is asked for: PTX."""
        cpu, features = architecture(machine)
        return {
            "triple": TRIPLE,
            "cpu": cpu,
            "features": features,
            "level": 3,
            "form": "assembly",
            "passes": PASSES,
            "flags": FLAGS,
        }

    def disassembled(self, assembly: str, machine: Machine) -> str:
        """SASS."""
        return disassembled(assembly, architecture(machine)[0])

    def why_not(self, machine: Machine) -> str | None:
        """Why the machine's code does not run here."""
        return driver.why_not(machine)

    def loaded(self, assembly: str, emitted: Emitted, number: int) -> Any:
        """The code on a GPU."""
        return driver.Loaded(assembly, emitted, number)

    def memory(self, machine: Machine, number: int, passing: bool = False, stream: int | None = None) -> DeviceMemory:
        """The memory of a GPU, on a stream if one is given."""
        return DeviceMemory(machine, number, passing, stream)

    def stopwatch(self, number: int) -> Stopwatch:
        """What times launches."""
        return Stopwatch(number)

    def bound(
        self, loaded: Any, emitted: Emitted, arrays: list[Any], workers: int | None, sizes: Mapping[str, int]
    ) -> Launch:
        """A launch on arrays, for these values of open parameters."""
        return Launch(loaded, emitted, arrays, workers, sizes)


BACKEND = Nvidia()
