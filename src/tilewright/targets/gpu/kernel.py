"""A block or loop program compiled for a GPU: its texts on every level, and launches bound to arrays."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from tilewright.algebra.expr import as_expr
from tilewright.errors import ArgumentError, ProgramError, TargetError
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.binding import inlined, open_parameters
from tilewright.ir.core import Program
from tilewright.ir.loop import LOOP
from tilewright.lower.gpu.lower import lower_waves
from tilewright.machine import Condition, Machine
from tilewright.runtime import cache as disk
from tilewright.runtime.codegen import HELPER
from tilewright.runtime.device_arrays import common_device
from tilewright.runtime.dump import Dump
from tilewright.runtime.scripts import Memories
from tilewright.runtime.sizes import sizes_of
from tilewright.runtime.toolchain import toolchain
from tilewright.targets.gpu.checks import check_arrays
from tilewright.targets.gpu.emit import Emitted
from tilewright.targets.gpu.writer import MOST


class Backend(Protocol):
    """The part of the code generator that each maker of GPUs provides."""

    levels: Mapping[str, str]
    """Maps the maker's names of levels, such as "ptx", to "assembly" and "instructions"."""

    def emitted(self, program: Program, machine: Machine) -> Emitted:
        """Return the LLVM IR of the loop program `program`, with all that a launch needs: number of threads, shared
        memory, arguments. Protocol method.
        """

    def request(self, machine: Machine) -> dict[str, Any]:
        """Return the dict that asks the code generation helper to compile LLVM IR to assembly for `machine`. Protocol
        method.
        """

    def disassembled(self, assembly: str, machine: Machine) -> str:
        """Return the machine instructions (such as SASS) of the assembly text `assembly`, as printed by the tools of
        the GPU's maker. Protocol method.
        """

    def why_not(self, machine: Machine) -> str | None:
        """Return the reason why code for `machine` does not run on the GPU at hand, as a sentence; None if it runs.
        Protocol method.
        """

    def loaded(self, assembly: str, emitted: Emitted, number: int) -> Any:
        """Load the assembly text `assembly` on the GPU with the number `number`, and return the loaded code. `emitted`
        describes the kernel. Protocol method.
        """

    def memory(self, machine: Machine, number: int, passing: bool = False, stream: int | None = None) -> Memories:
        """Return the object that allocates and copies memory on the GPU with the number `number`. `passing` says that
        allocated memory is used by one call only. All work goes to the stream with the handle `stream` (None: the
        current stream). Protocol method.
        """

    def stopwatch(self, number: int) -> Any:
        """Return an object that measures the time of launches on the GPU with the number `number`. It has a `stream`
        and a method `seconds(call)`. Protocol method.
        """

    def bound(
        self, loaded: Any, emitted: Emitted, arrays: list[Any], workers: int | None, sizes: Mapping[str, int]
    ) -> Callable[[], None]:
        """Return a function without parameters that launches the `loaded` code on `arrays` of the host or the device.
        `emitted` describes the kernel. `workers` is the number of workgroups (None: the back end chooses). `sizes` is
        {name of an open size: value}. Protocol method.
        """


@dataclass(frozen=True)
class GpuTarget:
    """A machine, and the back end that compiles for it and starts its kernels."""

    name: str
    machine: Machine
    backend: Backend

    def kernel(
        self, program: Program, described: Machine | None, dump: Dump, conditions: tuple[Condition, ...] = ()
    ) -> GpuKernel:
        """Return `program` compiled for this target. `described` is the machine that the program names (None: it names
        none); raise ProgramError if this is not the target's machine. `conditions` are conditions on open sizes, which
        each launch checks. The texts of all levels are written to `dump`.
        """
        if described is not None and described is not self.machine:
            raise ProgramError(
                f"{program.name} is written for {described.name}, not for {self.machine.name}, which {self.name} is"
            )
        return GpuKernel(program, self, dump, conditions)


class GpuKernel:
    """A program's code for a GPU; each level is made when it is first asked for."""

    def __init__(self, program: Program, target: GpuTarget, dump: Dump, conditions: tuple[Condition, ...] = ()):
        for arg in program.args:
            if arg.type.swizzle is not None:
                raise ProgramError(
                    f"{program.name}: %{arg.name} is {arg.type}: arguments with a swizzle of their own have no form on "
                    "GPUs; leave it out"
                )
        self.program, self.target = program, target
        self.open, self.conditions = open_parameters(program), conditions
        _ = self.emitted  # errors of code generation are raised now, even if no GPU is at hand
        dump.write("lower", "loop", lambda: str(self.loop))
        dump.write("emit", "ll", lambda: self.llvm)
        dump.write("generate", "s", lambda: self.assembly)
        self._loaded: dict[int, Any] = {}
        if target.backend.why_not(target.machine) is None:
            self.on_device(0)

    @cached_property
    def loop(self) -> Program:
        """The program as a loop program. The first use lowers it."""
        program = self.program
        if program.level is LOOP:
            return inlined(program) if self.open else program
        return lower_waves(program, self.target.machine)

    @cached_property
    def emitted(self) -> Emitted:
        """The LLVM IR of the program, with all that a launch needs: number of threads, shared memory, arguments."""
        return self.target.backend.emitted(self.loop, self.target.machine)

    @property
    def llvm(self) -> str:
        """The LLVM IR of the program as text."""
        return self.emitted.text

    @cached_property
    def assembly(self) -> str:
        """The assembly of the program (such as PTX) as text. It comes from the disk cache, or LLVM compiles it."""
        request = self.target.backend.request(self.target.machine)
        key = disk.key_of("gpu", self.target.machine.name, self.llvm, json.dumps(request), toolchain())
        code = disk.load(key)
        if code is None:
            code = HELPER.ask(request, self.llvm)
            disk.store(key, code)
        return code.decode()

    @property
    def levels(self) -> Mapping[str, str]:
        """{name that the GPU's maker gives to a level of code: Tilewright's name}, for NVIDIA {"ptx": "assembly",
        "sass": "instructions"}.
        """
        return self.target.backend.levels

    @property
    def instructions(self) -> str:
        """The machine instructions of the program (such as SASS) as text. Raise TargetError if the tools of the GPU's
        maker are not installed.
        """
        return self.target.backend.disassembled(self.assembly, self.target.machine)

    @property
    def object(self) -> bytes:
        """The code that the GPU's driver loads: the assembly as bytes."""
        return self.assembly.encode()

    def on_device(self, number: int) -> Any:
        """Return the program's code, loaded on the GPU with the number `number`. The first call for a GPU loads it."""
        if number not in self._loaded:
            loaded = self.target.backend.loaded(self.assembly, self.emitted, number)
            self._loaded[number] = loaded
        return self._loaded[number]

    def launch(
        self, arrays: list[Any], workers: int | None = None, params: Mapping[str, int] | None = None
    ) -> Callable[[], None]:
        """Return a function without parameters that runs the program on `arrays`. The function may be called any number
        of times. `workers` is the number of workgroups (None: the back end chooses).

        Open sizes follow from the shapes of the arrays. `params` is {name: value} for open sizes that no shape
        determines. Raise TargetError if the code does not run on the GPU at hand. Raise ArgumentError if the arrays do
        not fit the arguments, if a condition on open sizes fails, or if there are more than MOST tasks.
        """
        why = self.target.backend.why_not(self.target.machine)
        if why is not None:
            raise TargetError(f"{self.program.name}: code for {self.target.machine.name} does not run here: {why}")
        sizes: dict[str, int] = {}
        if self.open or params:
            named = {a.name or "": array for a, array in zip(self.program.args, arrays, strict=True)}
            sizes = sizes_of(self.program, named, params, self.conditions)
        check_arrays(self.program, arrays, sizes)
        tasks = evaluated(as_expr(self.emitted.tasks), sizes)
        if tasks > MOST:
            raise ArgumentError(f"{self.program.name}: arrays of these sizes are {tasks} tasks; the most is {MOST}")
        loaded = self.on_device(common_device(self.program.name, arrays))
        return self.target.backend.bound(loaded, self.emitted, arrays, workers, sizes)
