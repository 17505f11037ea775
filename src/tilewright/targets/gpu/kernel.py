"""A block or loop program as code for a GPU: text on every level, and launches bound to arrays."""

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
from tilewright.machine import Condition, Machine
from tilewright.passes.waves.lower import lower_waves
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
    """What a maker of GPUs provides."""

    levels: Mapping[str, str]
    """What the maker calls "assembly" and "instructions"."""

    def emitted(self, program: Program, machine: Machine) -> Emitted:
        """The LLVM IR of a loop program."""

    def request(self, machine: Machine) -> dict[str, Any]:
        """What the helper that generates code is asked for: the machine's assembly."""

    def disassembled(self, assembly: str, machine: Machine) -> str:
        """The machine's own instructions, as its maker's tools print them."""

    def why_not(self, machine: Machine) -> str | None:
        """Why the machine's code does not run here; None: it does."""

    def loaded(self, assembly: str, emitted: Emitted, number: int) -> Any:
        """The code on the device of that number; what was assembled is kept under the key."""

    def memory(self, machine: Machine, number: int, passing: bool = False, stream: int | None = None) -> Memories:
        """The memory of the device of that number; `passing`: what it gives is used by one call alone."""

    def stopwatch(self, number: int) -> Any:
        """What times launches on the device of that number: `stream`, and `seconds(call)`."""

    def bound(
        self, loaded: Any, emitted: Emitted, arrays: list[Any], workers: int | None, sizes: Mapping[str, int]
    ) -> Callable[[], None]:
        """A launch on arrays of the host and of the device, for these open sizes; `at` starts it at other addresses."""


@dataclass(frozen=True)
class GpuTarget:
    """A machine, and how code is made for it and started."""

    name: str
    machine: Machine
    backend: Backend

    def kernel(
        self, program: Program, described: Machine | None, dump: Dump, conditions: tuple[Condition, ...] = ()
    ) -> GpuKernel:
        """The code of a program that was written for a machine; `conditions` are what open sizes must meet."""
        if described is not None and described is not self.machine:
            raise ProgramError(
                f"{program.name} is written for {described.name}, not for {self.machine.name}, which {self.name} is"
            )
        return GpuKernel(program, self, dump, conditions)


class GpuKernel:
    """A program's code, made as far as it is asked for."""

    def __init__(self, program: Program, target: GpuTarget, dump: Dump, conditions: tuple[Condition, ...] = ()):
        for arg in program.args:
            if arg.type.swizzle is not None:
                raise ProgramError(
                    f"{program.name}: %{arg.name} is {arg.type}: arguments with a swizzle of their own have no form on "
                    "GPUs; leave it out"
                )
        self.program, self.target = program, target
        self.open, self.conditions = open_parameters(program), conditions
        _ = self.emitted  # what the machine refuses is refused now, also where it is not at hand
        dump.write("lower", "loop", lambda: str(self.loop))
        dump.write("emit", "ll", lambda: self.llvm)
        dump.write("generate", "s", lambda: self.assembly)
        self._loaded: dict[int, Any] = {}
        if target.backend.why_not(target.machine) is None:
            self.on_device(0)

    @cached_property
    def loop(self) -> Program:
        """The loop program."""
        program = self.program
        if program.level is LOOP:
            return inlined(program) if self.open else program
        return lower_waves(program, self.target.machine)

    @cached_property
    def emitted(self) -> Emitted:
        """The LLVM IR, and what a launch must provide."""
        return self.target.backend.emitted(self.loop, self.target.machine)

    @property
    def llvm(self) -> str:
        """The LLVM IR."""
        return self.emitted.text

    @cached_property
    def assembly(self) -> str:
        """The machine's assembly, from the cache or by LLVM."""
        request = self.target.backend.request(self.target.machine)
        key = disk.key_of("gpu", self.target.machine.name, self.llvm, json.dumps(request), toolchain())
        kept = disk.load(key)
        if kept is None:
            kept = HELPER.ask(request, self.llvm)
            disk.store(key, kept)
        return kept.decode()

    @property
    def levels(self) -> Mapping[str, str]:
        """Further levels by their maker's names, and what they are called here."""
        return self.target.backend.levels

    @property
    def instructions(self) -> str:
        """The machine's own instructions, where its maker's tools are installed."""
        return self.target.backend.disassembled(self.assembly, self.target.machine)

    @property
    def object(self) -> bytes:
        """What is given to the driver."""
        return self.assembly.encode()

    def on_device(self, number: int) -> Any:
        """The code on a device, by its number; loaded once."""
        if number not in self._loaded:
            loaded = self.target.backend.loaded(self.assembly, self.emitted, number)
            self._loaded[number] = loaded
        return self._loaded[number]

    def launch(
        self, arrays: list[Any], workers: int | None = None, params: Mapping[str, int] | None = None
    ) -> Callable[[], None]:
        """The program bound to arrays; call it as often as wanted.

        Open parameters are told by the arrays' shapes; `params` gives those that no shape tells.
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
