"""Devices make the block and loop programs of a module launchable: as machine code for a CPU or a GPU, or by the
interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.check.block import check
from tilewright.check.loop import check_loop
from tilewright.codegen.entry.plan import is_packed
from tilewright.errors import ProgramError
from tilewright.interpret import loop as loop_interpreter
from tilewright.interpret.block.run import HANDLERS, interpret
from tilewright.ir.binding import bind, open_parameters
from tilewright.ir.block import BLOCK
from tilewright.ir.core import Program, Value
from tilewright.ir.loop import LOOP
from tilewright.ir.tensors import TensorType
from tilewright.ir.verifier import verify
from tilewright.limits import BUFFER, ELEMENTS, STEPS, Limit
from tilewright.machine import Condition, Machine
from tilewright.runtime.device_arrays import common_device, followed_stream
from tilewright.runtime.dump import Dump
from tilewright.runtime.scripts import HostMemory, Memories
from tilewright.runtime.sizes import sizes_of
from tilewright.targets.cpu.entry import EntryMember
from tilewright.targets.cpu.native import NativeKernel
from tilewright.targets.names import is_gpu, is_native
from tilewright.targets.registry import gpu, native
from tilewright.targets.registry import machine as machine_named

Array = np.ndarray[Any, np.dtype[Any]]


def machine_of(program: Program) -> Machine | None:
    """The machine that a program's header names."""
    record = program.record("machine")
    if record is None:
        return None
    try:
        return machine_named(record.attrs["name"])
    except LookupError as fault:
        raise ProgramError(str(fault), record.loc) from None


def ready(program: Program, params: Mapping[str, int]) -> tuple[Program, tuple[Condition, ...]]:
    """The program with its parameters bound, and checked; and the conditions that open sizes must meet."""
    verify(program)
    bound = bind(program, params)
    if program.level is BLOCK:
        return bound, check(bound, machine_of(program))
    if program.level is LOOP:
        check_loop(bound, machine_of(program))
    else:
        verify(bound)
    return bound, ()


class NativeDevice(HostMemory):
    """A CPU that programs become machine code for; with `checked`, those that come are bound and checked already."""

    room: Limit = ELEMENTS

    def __init__(self, target: str, checked: bool = False):
        self.target, self.checked = native(target), checked

    def prepare(self, program: Program, params: Mapping[str, int]) -> NativeProgram:
        """The program's machine code."""
        return NativeProgram(self, *((program, ()) if self.checked else ready(program, params)))


def why_copied(program: Program, argument: Value, given: TensorType) -> str | None:
    """Why an array is copied before each launch of a program; None: it is passed as it lies."""
    if is_packed(argument.type, given):
        return None
    return (
        f"{program.name} takes %{argument.name}, {argument.type}, by strides or a swizzle: it is copied at each launch"
    )


class NativeProgram:
    """A program as machine code; `kernel` has its lower levels, `conditions` are what open sizes must meet."""

    def __init__(self, device: NativeDevice, program: Program, conditions: tuple[Condition, ...]):
        self.program, self.conditions = program, conditions
        dump = Dump.of(program.name)
        dump.write("bind", program.level.name, lambda: str(program))
        self.kernel = NativeKernel(program, machine_of(program), device.target, dump)

    def make(self) -> None:
        """Makes the machine code now where it runs, and otherwise what says whether it can be made."""
        _ = self.kernel.entry if self.kernel.target.runs else self.kernel.loop

    def require(self, arrays: Sequence[Array], params: Mapping[str, int] | None) -> list[int]:
        """The values of open parameters for arrays; raises where they are not what the program takes."""
        if self.conditions:
            names = [a.name or "" for a in self.program.args]
            sizes_of(self.program, dict(zip(names, arrays, strict=False)), params, self.conditions)
        values, _ = self.kernel.taken(arrays, params)
        return values

    @property
    def why_script(self) -> str | None:
        """Why its entry does not take arrays as they are; None: it does."""
        return next((why for a in self.program.args if (why := why_copied(self.program, a, a.type))), None)

    def member(self, arrays: Sequence[Array], params: Mapping[str, int] | None) -> EntryMember | None:
        """The entry that launches it, for arrays; None: it does not take them as they are."""
        values = self.require(arrays, params)
        return None if self.why_script else EntryMember(self.program.name, self.kernel.entry, tuple(values))

    def launch(self, arrays: list[Array], workers: int | None, params: Mapping[str, int] | None) -> Callable[[], None]:
        """The machine code bound to arrays; a call runs it."""
        self.require(arrays, params)
        found: Callable[[], None] = self.kernel.launch(arrays, workers, params)
        return found


class InterpretingDevice(HostMemory):
    """The interpreter: it says what programs mean, and reports what is wrong with them."""

    room: Limit = BUFFER

    def __init__(self, seed: int = 0):
        self.seed, self.steps = seed, STEPS.most
        self.logs: list[tuple[str, Array]] = []
        """What debug_log kept, over all launches."""

    def prepare(self, program: Program, params: Mapping[str, int]) -> InterpretedProgram:
        """The program, checked."""
        return InterpretedProgram(self, *ready(program, params))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory with values that show when they are used."""
        return np.full(shape, np.nan if dtype.kind in "fV" else 85).astype(dtype)


class InterpretedProgram:
    """A program that the interpreter runs."""

    kernel = None

    def __init__(self, device: InterpretingDevice, program: Program, conditions: tuple[Condition, ...]):
        self.program, self._device, self._conditions = program, device, conditions
        self._members: dict[Any, Program] = {}

    def launch(self, arrays: list[Array], workers: int | None, params: Mapping[str, int] | None) -> Callable[[], None]:
        """The program bound to arrays; a call interprets it."""
        named = {a.name or "": array for a, array in zip(self.program.args, arrays, strict=True)}
        return partial(self._run, self._settled(named, params), named, workers or 2)

    def _settled(self, arrays: Mapping[str, Array], params: Mapping[str, int] | None) -> Program:
        """The program for these arrays: nothing in it is open."""
        if not open_parameters(self.program):
            return self.program
        values = sizes_of(self.program, arrays, params, self._conditions)
        key = tuple(values.items())
        if key not in self._members:
            self._members[key], _ = ready(self.program, values)
        return self._members[key]

    def _run(self, program: Program, arrays: dict[str, Array], workers: int) -> None:
        device = self._device
        device.logs += interpret(
            program,
            arrays,
            machine_of(program),
            workers=workers,
            seed=device.seed,
            steps=device.steps,
            handlers=HANDLERS if program.level is BLOCK else loop_interpreter.HANDLERS,
        )


def memory_near(machine: Machine, arrays: Sequence[Any], passing: bool = False) -> Memories:
    """The memory of the GPU that arrays lie on, which is such a machine; `passing`: for one call alone.

    If the arrays follow a stream, so does what is done with the memory.
    """
    target, number = gpu(f"gpu:{machine.name}", None), common_device("the call", list(arrays))
    return target.backend.memory(target.machine, number, passing, followed_stream(arrays))


class GpuDevice:
    """A GPU: each program says which machine it is written for. Workspaces lie where the arguments do."""

    room: Limit = ELEMENTS

    def __init__(self, target: str):
        self.target, self.made_for = target, ""

    def prepare(self, program: Program, params: Mapping[str, int]) -> GpuProgram:
        """The program's code."""
        found = GpuProgram(self, *ready(program, params))
        self.made_for = found.kernel.target.machine.name
        return found

    def near(self, arrays: Sequence[Any], passing: bool = False) -> Memories:
        """The memory of the GPU that the arguments lie on."""
        return memory_near(machine_named(self.made_for), arrays, passing)


class GpuProgram:
    """A program as code for a GPU; `kernel` has its lower levels."""

    def __init__(self, device: GpuDevice, program: Program, conditions: tuple[Condition, ...]):
        self.program = program
        described = machine_of(program)
        self.kernel = gpu(device.target, described).kernel(program, described, Dump.of(program.name), conditions)

    def launch(self, arrays: list[Any], workers: int | None, params: Mapping[str, int] | None) -> Callable[[], None]:
        """The code bound to arrays; a call starts it. As many workers as there are cores mean all that it holds."""
        every = workers == self.kernel.target.machine.limits.cores
        return self.kernel.launch(arrays, None if every else workers, params)


Device = NativeDevice | InterpretingDevice | GpuDevice


def device_of(target: str, seed: int = 0) -> Device:
    """The device of a target: "interpreter", a GPU or a CPU."""
    if is_gpu(target):
        return GpuDevice(target)
    return NativeDevice(target) if is_native(target) else InterpretingDevice(seed)
