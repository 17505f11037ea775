"""The steps of a compiled kernel on arrays of given shapes, found when JAX traces, before there are values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.compiler.compiled import Compiled
from tilewright.compiler.device import NativeDevice
from tilewright.compiler.kernels import Executable
from tilewright.compiler.native import NativeExecutable
from tilewright.compiler.text import TextExecutable
from tilewright.errors import ArgumentError
from tilewright.interpret.grid import is_grid
from tilewright.ir.core import MemoryType, Program, Value
from tilewright.ir.dtypes import DType
from tilewright.jax.entries import EntrySteps, XlaBuffer
from tilewright.jax.gpu import GpuSteps
from tilewright.limits import written
from tilewright.runtime.arguments import Arguments
from tilewright.targets.cpu.entry import EntryMember
from tilewright.targets.cpu.entry_executor import EntryExecutor
from tilewright.targets.names import is_gpu
from tilewright.targets.registry import native


@dataclass(frozen=True)
class XlaArgument:
    """An argument of a kernel.

    A number `is_size` where workgroups or loops may depend on it. An output `is_whole` where the kernel writes all of
    it and reads none; it `is_needed` where the kernel reads it, so that a call must give it.
    """

    name: str
    dtype: DType
    is_number: bool = False
    is_output: bool = False
    is_whole: bool = False
    is_needed: bool = True
    is_size: bool = False


@dataclass(frozen=True)
class KernelMember:
    """A kernel for arrays of some shapes: its steps (None: nothing is computed), a text that tells it from others, and
    all its arrays."""

    steps: EntrySteps | GpuSteps | None
    text: str
    arrays: tuple[XlaBuffer, ...]


class TileKernel:
    """A tile kernel that `tilewright.compile` gave."""

    def __init__(self, executable: NativeExecutable):
        self._executable, program = executable, executable.program
        if any(function is not None for pair in program.hooks.values() for function in pair):
            raise ArgumentError(
                f"{executable.name}: its debug_log calls functions of Python, which tilewright.jax does not; leave "
                "printer= and handler= out"
            )
        self.name = executable.name
        self.arguments = tuple(
            XlaArgument(
                a.name or "",
                a.type.dtype,
                not isinstance(a.type, MemoryType),
                a in executable.outputs,
                a in executable.outputs and not executable.lenient and _is_written_whole(program, a),
                a not in executable.outputs,
                _decides_sizes(program, a),
            )
            for a in program.args
        )

    def member(self, given: tuple[Any, ...]) -> KernelMember:
        """The kernel for arrays such as these, None for outputs that are left out."""
        executable = self._executable
        bound = Arguments(executable.program, executable.outputs, executable.known, given, executable.lenient)
        values = [np.asarray(bound.values[a]) for a in executable.program.args]
        arrays = tuple(
            XlaBuffer(v.shape, a.type.dtype.numpy) for v, a in zip(values, executable.program.args, strict=True)
        )
        if bound.is_empty:
            return KernelMember(None, "", arrays)
        compiled, params = executable.member(bound)
        return KernelMember(*steps_of(compiled, arrays, params, self.name), arrays)


class TextKernel:
    """A block, loop or host program that `compile_text`, or `compile` of a block kernel, gave."""

    def __init__(self, executable: TextExecutable, params: Mapping[str, int] | None):
        self._executable, self._params = executable, None if params is None else dict(params)
        self.name = executable.name
        self.arguments = tuple(
            XlaArgument(a.name or "", a.type.dtype, is_output=a.type.role != "in", is_needed=a.type.role != "out")
            for a in executable.main.args
        )

    def member(self, given: tuple[Any, ...]) -> KernelMember:
        """The program for arrays such as these, None for outputs that are left out."""
        executable = self._executable
        device = executable.device
        assert isinstance(device, NativeDevice)
        device.target.require(self.name)
        member, arrays = executable.member(*given, params=self._params)
        buffers = tuple(XlaBuffer(arrays[a.name].shape, a.dtype.numpy) for a in self.arguments)
        steps = EntrySteps(member, executable.workers)
        return KernelMember(steps, f"{key_text_of(member)}{executable.workers}", buffers)


def steps_of(
    compiled: Compiled, arrays: Sequence[XlaBuffer], params: Mapping[str, int] | None, name: str
) -> tuple[EntrySteps | GpuSteps, str]:
    """Return the steps of a kernel for arrays, and a text that tells them from others.

    It raises where its code does not run here.
    """
    likes = [np.broadcast_to(np.zeros((), b.dtype), b.shape) for b in arrays]
    if is_gpu(compiled.target):
        compiled.executor.script(likes, params)  # raises where arrays are not what the program takes
        return GpuSteps(compiled.executor, params), f"{compiled.module}{params}"
    native(compiled.target).require(name)
    running = compiled.running
    assert isinstance(running, EntryExecutor)
    member = running.member(likes, params)
    if member is None:
        raise ArgumentError(f"{name}: {running.why_script}; tilewright.jax calls kernels of packed arrays only")
    return EntrySteps(member), key_text_of(member)


def key_text_of(member: EntryMember) -> str:
    """Return a text that tells an entry from others, in every process."""
    return f"{member.code.key}{member.sizes}"


def kernel_of(executable: Any, params: Mapping[str, int] | None) -> TileKernel | TextKernel:
    """A compiled kernel that is machine code for a CPU or a GPU; an error that says what else it is."""
    if not isinstance(executable, Executable | TextExecutable):
        raise ArgumentError(
            f"tilewright.jax takes what tilewright.compile or compile_text gives, not {written(executable, 80)}: "
            "compile it first"
        )
    target = getattr(executable, "target", "executor")
    if is_gpu(target) and isinstance(executable, TextExecutable):
        raise ArgumentError(
            f"{executable.name} is compiled for {target!r}; on GPUs tilewright.jax takes what tilewright.compile gives "
            "of kernels, and programs of compile_text on CPUs only: compile it with target='cpu'"
        )
    if isinstance(executable, TextExecutable) and isinstance(executable.device, NativeDevice):
        return TextKernel(executable, params)
    if not isinstance(executable, NativeExecutable):
        raise ArgumentError(
            f"{executable.name} is compiled for {target!r}, which XLA cannot call: compile it with target='cpu'"
        )
    if params is not None:
        raise ArgumentError(f"params={written(params, 80)}: these are for programs of compile_text; leave them out")
    return TileKernel(executable)


def _is_written_whole(program: Program, output: Value) -> bool:
    """Whether a program surely writes each element of an output, and reads none: what it held before does not count."""
    if is_grid(program) or any(op.name == "set_symbol" for op in program.walk()):
        return False
    kind = output.type
    if kind.extents is not None or any(op.name != "write" for op in program.walk() if output in op.operands):
        return False
    writes = [op for op in program.body.ops if op.name == "write" and op.operands[1] is output]
    return any(not op.attrs and set(op.operands[0].type.dims) == set(kind.dims) for op in writes)


def _decides_sizes(program: Program, value: Value) -> bool:
    """Whether workgroups or loops may depend on a number."""
    if isinstance(value.type, MemoryType) or not is_grid(program):
        return False
    return any(op.name == "set_symbol" and op.operands[0] is value for op in program.body.ops)
