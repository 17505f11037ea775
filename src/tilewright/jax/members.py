"""Compiled kernels as `tilewright.jax` sees them: their arguments, and their machine code for arrays of given shapes.

Shapes are known when JAX traces a call; values are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.algebra.expr import Symbol
from tilewright.compiler.compiled import Compiled
from tilewright.compiler.device import GpuDevice, NativeDevice
from tilewright.compiler.kernels import Executable
from tilewright.compiler.native import NativeExecutable
from tilewright.compiler.text import TextExecutable
from tilewright.errors import ArgumentError
from tilewright.interpret.grid import is_grid
from tilewright.ir.core import MemoryType, Program, Value
from tilewright.ir.dtypes import DType
from tilewright.jax.entries import XlaBuffer, XlaCpuProgram
from tilewright.jax.gpu import BlockLauncher, GpuExecutor, XlaGpuProgram
from tilewright.limits import written
from tilewright.runtime.arguments import Arguments
from tilewright.runtime.sizes import sizes_of
from tilewright.targets.cpu.entry import EntryMember
from tilewright.targets.cpu.entry_executor import EntryExecutor
from tilewright.targets.gpu.checks import check_arrays
from tilewright.targets.names import is_gpu
from tilewright.targets.registry import native


@dataclass(frozen=True)
class XlaArgument:
    """An argument of a kernel, as a call from JAX passes it: an array or a number."""

    name: str
    dtype: DType
    is_number: bool = False
    """True if it is a number; False: an array."""
    is_output: bool = False
    """True if the kernel writes it."""
    is_fully_written: bool = False
    """True for an output that the kernel does not read and of which it writes each element."""
    is_required: bool = True
    """True if a call must pass it: an input, or an output that the kernel reads too."""
    is_size: bool = False
    """True for a number on which workgroups or loops may depend, so that it must be known when JAX traces."""
    open_dim: str | None = None
    """The name of the array's first dimension, if the executable leaves its extent open; else None."""


@dataclass(frozen=True)
class SpecialisedKernel:
    """A kernel compiled for arrays of given shapes."""

    program: XlaCpuProgram | XlaGpuProgram | None
    """The program that XLA runs; None if arrays are so empty that nothing is computed."""
    key_text: str
    """A text that differs from that of every other program, in every process."""
    arrays: tuple[XlaBuffer, ...]
    """The shapes and types of all the kernel's arguments, including outputs that the call leaves out."""


class TileKernel:
    """A tile kernel that `tilewright.compile` returned; `arguments` has an `XlaArgument` for each argument."""

    def __init__(self, executable: NativeExecutable):
        """Take a compiled kernel; raise ArgumentError if its debug_log calls Python functions."""
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
                a in executable.outputs and not executable.lenient and _is_fully_written(program, a),
                a not in executable.outputs,
                _decides_sizes(program, a),
                _open_dim(a.type.sizes, executable.known) if isinstance(a.type, MemoryType) else None,
            )
            for a in program.args
        )

    def specialise(self, arrays_of_call: tuple[Any, ...]) -> SpecialisedKernel:
        """Return the kernel compiled for the shapes of a call's arguments, with the shapes and types of all arguments.

        `arrays_of_call` has an entry for each argument of the kernel: an array, of which only shape and type are used,
        a number, or None for an output that the call leaves out. If arrays are so empty that nothing is computed, the
        result has no program. Raise ArgumentError if the arguments do not fit the kernel.
        """
        executable = self._executable
        bound = Arguments(executable.program, executable.outputs, executable.known, arrays_of_call, executable.lenient)
        values = [np.asarray(bound.values[a]) for a in executable.program.args]
        arrays = tuple(
            XlaBuffer(v.shape, a.type.dtype.numpy) for v, a in zip(values, executable.program.args, strict=True)
        )
        if bound.is_empty:
            return SpecialisedKernel(None, "", arrays)
        compiled, params = executable.member(bound)
        return SpecialisedKernel(*xla_program_of(compiled, arrays, params, self.name), arrays)


class TextKernel:
    """A block, loop or host program that `compile_text`, or `compile` of a block kernel, returned.

    `arguments` has an `XlaArgument` for each argument.
    """

    def __init__(self, executable: TextExecutable, params: Mapping[str, int] | None):
        """Take a compiled program. `params` is {name: value} of parameters that no shape determines, or None."""
        self._executable, self._params = executable, None if params is None else dict(params)
        self.name = executable.name
        self.arguments = tuple(
            XlaArgument(
                a.name or "",
                a.type.dtype,
                is_output=a.type.role != "in",
                is_required=a.type.role != "out",
                open_dim=_open_dim(a.type.shape, {}),
            )
            for a in executable.main.args
        )

    def specialise(self, arrays_of_call: tuple[Any, ...]) -> SpecialisedKernel:
        """Return the program for the shapes of a call's arrays, with the shapes and types of all arguments.

        `arrays_of_call` has an entry for each argument: an array, of which only shape and type are used, or None for an
        output that the call leaves out. Raise ArgumentError if the arrays do not fit, and TargetError if this CPU
        cannot run the code.
        """
        executable = self._executable
        device = executable.device
        if isinstance(device, GpuDevice):
            return self._specialise_for_gpu(device, arrays_of_call)
        assert isinstance(device, NativeDevice)
        device.target.require(self.name)
        member, arrays = executable.member(*arrays_of_call, params=self._params)
        buffers = tuple(XlaBuffer(arrays[a.name].shape, a.dtype.numpy) for a in self.arguments)
        program = XlaCpuProgram(member, executable.workers)
        return SpecialisedKernel(program, f"{key_text_of(member)}{executable.workers}", buffers)

    def _specialise_for_gpu(self, device: GpuDevice, arrays_of_call: tuple[Any, ...]) -> SpecialisedKernel:
        """Return the program for a GPU, `device`, which is that of the executable. Arguments and result are those of
        `specialise`.

        Nothing is put on the GPU. Raise ArgumentError if the arrays do not fit.
        """
        executable, params = self._executable, self._params
        named = executable.arguments(*arrays_of_call, params=params)
        arrays = [named[a.name] for a in self.arguments]
        executor: GpuExecutor
        if executable.executor is not None:
            executor = executable.executor
            executable.executor.script(arrays, params)  # raises if the arrays do not fit
        else:
            executor = BlockLauncher(executable.launchable, device, executable.workers)
            check_arrays(executable.main, arrays, sizes_of(executable.main, named, params))
        buffers = tuple(XlaBuffer(array.shape, a.dtype.numpy) for a, array in zip(self.arguments, arrays, strict=True))
        text = f"{executable.text()}{executable.target}{executable.workers}{params}"
        return SpecialisedKernel(XlaGpuProgram(executor, params), text, buffers)


def xla_program_of(
    compiled: Compiled, arrays: Sequence[XlaBuffer], params: Mapping[str, int] | None, name: str
) -> tuple[XlaCpuProgram | XlaGpuProgram, str]:
    """Return (the program that XLA runs for a compiled kernel, a text that differs from that of every other program).

    `arrays` has the shapes and types of all arguments. `params` is {name: value} of sizes that no shape determines, or
    None. Raise ArgumentError if the shapes do not fit, and TargetError if this machine does not run the code. `name` is
    the kernel's name in errors.
    """
    stand_ins = [np.broadcast_to(np.zeros((), b.dtype), b.shape) for b in arrays]
    if is_gpu(compiled.target):
        compiled.executor.script(stand_ins, params)  # raises if the arrays do not fit the program's arguments
        return XlaGpuProgram(compiled.executor, params), f"{compiled.module}{params}"
    native(compiled.target).require(name)
    running = compiled.running
    assert isinstance(running, EntryExecutor)
    member = running.member(stand_ins, params)
    if member is None:
        raise ArgumentError(f"{name}: {running.why_script}; tilewright.jax calls kernels of packed arrays only")
    return XlaCpuProgram(member), key_text_of(member)


def key_text_of(member: EntryMember) -> str:
    """Return a text that identifies the machine code and the sizes of `member`, and is the same in every process."""
    return f"{member.code.key}{member.sizes}"


def kernel_of(executable: Any, params: Mapping[str, int] | None) -> TileKernel | TextKernel:
    """Return the TileKernel or TextKernel, as JAX needs it, for `executable`, a result of `tilewright.compile` or
    `compile_text`.

    `params` is {name: value} of parameters that no shape determines, or None. Raise ArgumentError if `executable` is
    not machine code that XLA can call, or if `params` is given for a tile kernel.
    """
    if not isinstance(executable, Executable | TextExecutable):
        raise ArgumentError(
            f"tilewright.jax takes what tilewright.compile or compile_text gives, not {written(executable, 80)}: "
            "compile it first"
        )
    target = getattr(executable, "target", "executor")
    if isinstance(executable, TextExecutable) and isinstance(executable.device, NativeDevice | GpuDevice):
        return TextKernel(executable, params)
    if not isinstance(executable, NativeExecutable):
        raise ArgumentError(
            f"{executable.name} is compiled for {target!r}, which XLA cannot call: compile it with target='cpu'"
        )
    if params is not None:
        raise ArgumentError(f"params={written(params, 80)}: these are for programs of compile_text; leave them out")
    return TileKernel(executable)


def _open_dim(extents: Sequence[Any], known: Mapping[Any, Any]) -> str | None:
    """Return the name of the first extent if it is a symbol without a value in `known`; else None, also if there is no
    extent.

    `extents` are an array's extents, `known` is {symbol: value}.
    """
    first = extents[0] if extents else None
    return first.name if isinstance(first, Symbol) and first not in known else None


def _is_fully_written(program: Program, output: Value) -> bool:
    """True if a tile program certainly writes each element of `output` and does not read it: its old values do not
    matter.

    Then only writes use `output`, and one of them, outside of loops, writes a value that has all dimensions of
    `output`. False also for grid programs (their authors wrote the workgroups), for programs with numbers that are used
    as sizes, and if the type of `output` declares a layout in memory.
    """
    if is_grid(program) or any(op.name == "set_symbol" for op in program.walk()):
        return False
    kind = output.type
    if kind.extents is not None or any(op.name != "write" for op in program.walk() if output in op.operands):
        return False
    writes = [op for op in program.body.ops if op.name == "write" and op.operands[1] is output]
    return any(not op.attrs and set(op.operands[0].type.dims) == set(kind.dims) for op in writes)


def _decides_sizes(program: Program, value: Value) -> bool:
    """True if `value` is a number argument of a grid program, and the program uses it as a size.

    Workgroups or loops may then depend on the number. A grid program is one in which the author states the workgroups.
    """
    if isinstance(value.type, MemoryType) or not is_grid(program):
        return False
    return any(op.name == "set_symbol" and op.operands[0] is value for op in program.body.ops)
