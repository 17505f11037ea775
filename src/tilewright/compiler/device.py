"""Devices, which make the block and loop programs of a module launchable: on a CPU, on a GPU, or on the interpreter."""

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
    """Return the machine that the header of `program` names; None if it names none. Raise ProgramError for an unknown
    name."""
    record = program.record("machine")
    if record is None:
        return None
    try:
        return machine_named(record.attrs["name"])
    except LookupError as fault:
        raise ProgramError(str(fault), record.loc) from None


def ready(program: Program, params: Mapping[str, int]) -> tuple[Program, tuple[Condition, ...]]:
    """Check `program`, bind its parameters to `params`, {name: value}, and return (the bound program, conditions).

    The conditions are those that sizes known only at the call must meet. They are () unless `program` is a block
    program. Raise ProgramError if the program is illegal, and ArgumentError if `params` do not fit it.
    """
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
    """A CPU, for which programs are compiled. With `checked`, all programs that it gets are bound and checked
    already.
    """

    room: Limit = ELEMENTS

    def __init__(self, target: str, checked: bool = False):
        self.target, self.checked = native(target), checked

    def prepare(self, program: Program, params: Mapping[str, int]) -> NativeProgram:
        """Return `program` as a NativeProgram. Its machine code is generated at its first use.

        The program is checked, and its parameters are bound to `params`, {name: value}. Raise ProgramError if the
        program is illegal, and ArgumentError if `params` do not fit it. With `self.checked`, both were done before, and
        `params` has no effect.
        """
        return NativeProgram(self, *((program, ()) if self.checked else ready(program, params)))


def why_copied(program: Program, argument: Value, given: TensorType) -> str | None:
    """Return a text that says why an array for `argument` is copied before each launch of `program`; None if it is not
    copied.

    It is copied if the argument's type has strides or a swizzle, or if `given`, the type of the tensor that is passed
    for it, has strides.
    """
    if is_packed(argument.type, given):
        return None
    return (
        f"{program.name} takes %{argument.name}, {argument.type}, by strides or a swizzle: it is copied at each launch"
    )


class NativeProgram:
    """A program as machine code; `kernel` has its lower levels, `conditions` must hold for its open sizes."""

    def __init__(self, device: NativeDevice, program: Program, conditions: tuple[Condition, ...]):
        self.program, self.conditions = program, conditions
        dump = Dump.of(program.name)
        dump.write("bind", program.level.name, lambda: str(program))
        self.kernel = NativeKernel(program, machine_of(program), device.target, dump)

    def make(self) -> None:
        """Compile the machine code now, if this CPU can run it; otherwise only lower the program. Errors in the program
        are raised here."""
        _ = self.kernel.entry if self.kernel.target.runs else self.kernel.loop

    def require(self, arrays: Sequence[Array], params: Mapping[str, int] | None) -> list[int]:
        """Check the arguments `arrays` of a call; return the list of the values of the program's open parameters.

        The list is in the order of the program's declarations. `params` is {name: value} of open parameters that no
        shape gives. Raise ArgumentError if the arrays are not what the program takes.
        """
        if self.conditions:
            names = [a.name or "" for a in self.program.args]
            sizes_of(self.program, dict(zip(names, arrays, strict=False)), params, self.conditions)
        values, _ = self.kernel.sizes_and_types(arrays, params)
        return values

    @property
    def why_script(self) -> str | None:
        """Return a text that says why arrays are copied before the machine code runs; None if they are passed as they
        are."""
        return next((why for a in self.program.args if (why := why_copied(self.program, a, a.type))), None)

    def member(self, arrays: Sequence[Array], params: Mapping[str, int] | None) -> EntryMember | None:
        """Return the machine-code entry (native function) that launches the program on `arrays`; None if arrays must be
        copied for it.

        `params` is {name: value} of open parameters that no shape gives. Raise ArgumentError if the arrays do not fit.
        """
        values = self.require(arrays, params)
        return None if self.why_script else EntryMember(self.program.name, self.kernel.entry, tuple(values))

    def launch(self, arrays: list[Array], workers: int | None, params: Mapping[str, int] | None) -> Callable[[], None]:
        """Return a function that runs the machine code on `arrays`, shared by `workers` threads (None: all threads of
        the pool).

        `params` is {name: value} of open parameters that no shape gives. Raise ArgumentError if the arrays do not fit.
        """
        self.require(arrays, params)
        run: Callable[[], None] = self.kernel.launch(arrays, workers, params)
        return run


class InterpretingDevice(HostMemory):
    """The interpreter: it defines the meaning of programs, and reports errors such as races."""

    room: Limit = BUFFER

    def __init__(self, seed: int = 0):
        self.seed, self.steps = seed, STEPS.most
        self.logs: list[tuple[str, Array]] = []
        """(label, array) of each `debug_log`, over all launches."""

    def prepare(self, program: Program, params: Mapping[str, int]) -> InterpretedProgram:
        """Check `program`, bind its parameters to `params`, {name: value}, and return it as an InterpretedProgram.

        Raise ProgramError if the program is illegal, and ArgumentError if `params` do not fit it.
        """
        return InterpretedProgram(self, *ready(program, params))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return a new numpy array filled with NaN (elements of other types than floats: 85), so that reads of
        unwritten memory show in results."""
        return np.full(shape, np.nan if dtype.kind in "fV" else 85).astype(dtype)


class InterpretedProgram:
    """A program that the interpreter runs."""

    kernel = None

    def __init__(self, device: InterpretingDevice, program: Program, conditions: tuple[Condition, ...]):
        self.program, self._device, self._conditions = program, device, conditions
        self._members: dict[Any, Program] = {}

    def launch(self, arrays: list[Array], workers: int | None, params: Mapping[str, int] | None) -> Callable[[], None]:
        """Return a function that interprets the program on `arrays`, with its tasks shared by `workers` workgroups
        (None: 2).

        `params` is {name: value} of open parameters that no shape gives. Raise ArgumentError if the arrays do not fit.
        """
        named = {a.name or "": array for a, array in zip(self.program.args, arrays, strict=True)}
        return partial(self._run, self._closed_program(named, params), named, workers or 2)

    def _closed_program(self, arrays: Mapping[str, Array], params: Mapping[str, int] | None) -> Program:
        """Return the program with its open parameters (known only at the call) bound to their values.

        The values come from the shapes of `arrays`, {argument name: array}, and from `params`, {name: value}. Programs
        are cached by these values. A program without open parameters is returned itself. Raise ArgumentError if the
        arrays do not fit.
        """
        if not open_parameters(self.program):
            return self.program
        values = sizes_of(self.program, arrays, params, self._conditions)
        key = tuple(values.items())
        if key not in self._members:
            self._members[key], _ = ready(self.program, values)
        return self._members[key]

    def _run(self, program: Program, arrays: dict[str, Array], workers: int) -> None:
        """Interpret `program` on `arrays`, {argument name: array}; the outputs are written in place.

        The program's debug_log records are appended to the logs of the device. `workers` is the number of workgroups
        that share the tasks.
        """
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
    """Return the Memories of the GPU that `arrays` are on: the object that allocates, copies and fills tensors there.

    `machine` is the described GPU. If an array comes with a stream that all work must follow, work goes to that stream.
    With `passing`, the caller promises to use tensors that it allocates only during one call. Raise ArgumentError if
    the arrays are on several GPUs.
    """
    target, number = gpu(f"gpu:{machine.name}", None), common_device("the call", list(arrays))
    return target.backend.memory(target.machine, number, passing, followed_stream(arrays))


class GpuDevice:
    """A GPU. Each program names the machine it is written for; workspaces are allocated on the arguments' GPU."""

    room: Limit = ELEMENTS

    def __init__(self, target: str):
        self.target, self.made_for = target, ""

    def prepare(self, program: Program, params: Mapping[str, int]) -> GpuProgram:
        """Check `program`, bind its parameters to `params`, {name: value}, and return it compiled for the GPU that its
        header names.

        Set `self.made_for` to that GPU's name, which `near` reads. Raise ProgramError if the program is illegal, and
        ArgumentError if `params` do not fit it.
        """
        prepared = GpuProgram(self, *ready(program, params))
        self.made_for = prepared.kernel.target.machine.name
        return prepared

    def near(self, arrays: Sequence[Any], passing: bool = False) -> Memories:
        """Return the Memories of the GPU that `arrays` are on: the object that allocates, copies and fills tensors
        there.

        The model of the GPU is that of the program with which `prepare` was last called; without an earlier call of
        `prepare`, raise LookupError. With `passing`, the caller promises to use tensors that it allocates only during
        one call.
        """
        return memory_near(machine_named(self.made_for), arrays, passing)


class GpuProgram:
    """A program as code for a GPU; `kernel` has its lower levels."""

    def __init__(self, device: GpuDevice, program: Program, conditions: tuple[Condition, ...]):
        self.program = program
        described = machine_of(program)
        self.kernel = gpu(device.target, described).kernel(program, described, Dump.of(program.name), conditions)

    def launch(self, arrays: list[Any], workers: int | None, params: Mapping[str, int] | None) -> Callable[[], None]:
        """Return a function that starts the code on `arrays`, with tasks shared by `workers` workgroups.

        If `workers` is None or the machine's number of cores, as many workgroups are launched as fit on the GPU at a
        time. `params` is {name: value} of open parameters that no shape gives.
        """
        all_cores = workers == self.kernel.target.machine.limits.cores
        return self.kernel.launch(arrays, None if all_cores else workers, params)


Device = NativeDevice | InterpretingDevice | GpuDevice


def device_of(target: str, seed: int = 0) -> Device:
    """Return the device for `target`: a GpuDevice, a NativeDevice for a CPU, or else an InterpretingDevice.

    `seed` chooses the order in which the interpreter runs waves. Devices of other targets ignore it.
    """
    if is_gpu(target):
        return GpuDevice(target)
    return NativeDevice(target) if is_native(target) else InterpretingDevice(seed)
