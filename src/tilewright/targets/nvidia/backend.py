"""NVIDIA's back end: PTX from a loop program by LLVM, loaded and launched by the driver."""

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
"""LLVM's passes, which turn stack slots into values; all else is left to the assembler."""
FLAGS = ("--disable-lsr=false", "--enable-misched=true", "--enable-post-misched=true")


class Nvidia:
    """The back end for NVIDIA's GPUs."""

    levels: Mapping[str, str] = {"ptx": "assembly", "sass": "instructions"}

    def emitted(self, program: Program, machine: Machine) -> Emitted:
        """Return the LLVM IR of the loop program `program` for `machine`, with all that a launch needs: number of
        threads, shared memory, arguments.
        """
        return emit(program, machine, Ptx())

    def request(self, machine: Machine) -> dict[str, Any]:
        """Return the dict that asks the code generation helper to compile LLVM IR to PTX for `machine`."""
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
        """Return the machine instructions (SASS) of the PTX text `assembly`, as printed by nvdisasm. Raise TargetError
        if NVIDIA's tools are not installed, or if one of them fails.
        """
        return disassembled(assembly, architecture(machine)[0])

    def why_not(self, machine: Machine) -> str | None:
        """Return the reason why code for `machine` does not run on GPU 0, as a sentence; None if it runs."""
        return driver.why_not(machine)

    def loaded(self, assembly: str, emitted: Emitted, number: int) -> Any:
        """Load the PTX text `assembly` on the GPU with the number `number`, and return the loaded code. `emitted`
        describes the kernel. Raise TargetError if there is no such GPU, or if the driver refuses the code.
        """
        return driver.Loaded(assembly, emitted, number)

    def memory(self, machine: Machine, number: int, passing: bool = False, stream: int | None = None) -> DeviceMemory:
        """Return the object that allocates and copies memory on the GPU with the number `number`. `passing` says that
        allocated memory is used by one call only. All work goes to the stream with the handle `stream` (None: the
        current stream). Raise TargetError if code for `machine` does not run here.
        """
        return DeviceMemory(machine, number, passing, stream)

    def stopwatch(self, number: int) -> Stopwatch:
        """Return an object that measures the time of launches on the GPU with the number `number`. It has a `stream`
        and a method `seconds(call)`. Raise TargetError if there is no such GPU.
        """
        return Stopwatch(number)

    def bound(
        self, loaded: Any, emitted: Emitted, arrays: list[Any], workers: int | None, sizes: Mapping[str, int]
    ) -> Launch:
        """Return a launch of the `loaded` code on `arrays`; a call without arguments starts it. `emitted` describes the
        kernel. `workers` is the number of workgroups (None: chosen from tasks and occupancy). `sizes` is {name of an
        open size: value}.
        """
        return Launch(loaded, emitted, arrays, workers, sizes)


BACKEND = Nvidia()
