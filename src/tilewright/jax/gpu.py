"""Kernels on a GPU that XLA calls: Tilewright's launcher runs a program on XLA's buffers and stream.

The FFI handler calls Python, which binds the program to the buffers and launches its kernels. All of it is ordered by
the stream, as are allocations of workspaces, so that the host does not wait. It waits only for runtime checks of the
program, whose results it reads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from tilewright.compiler.device import GpuDevice, GpuProgram
from tilewright.errors import TilewrightError
from tilewright.jax.entries import XlaBuffer, XlaCall
from tilewright.jax.frames import INVALID_ARGUMENT, CallFrame, FrameBuffer
from tilewright.jax.handler import CALLBACK
from tilewright.runtime.device_arrays import DeviceArray, packed_steps
from tilewright.runtime.scripts import Memories


class GpuExecutor(Protocol):
    """Binds a program to arrays on a GPU: a `HostExecutor`, or `BlockLauncher` for a program without one."""

    def near(self, arrays: Sequence[Any], passing: bool = False) -> Memories:
        """Return the Memories of the GPU that `arrays` are on: the object that allocates, copies and fills arrays
        there.

        With `passing`, the caller promises to use arrays that it allocates only during one call.
        """

    def bind(
        self, arrays: Sequence[Any], params: Mapping[str, int] | None = None, *, passing: bool = False
    ) -> Callable[[], None]:
        """Return a function that runs the program on `arrays`.

        `params` is {name: value} of sizes that no shape determines. With `passing`, the caller promises to call the
        function once, right away.
        """


@dataclass(frozen=True)
class BlockLauncher:
    """The executor of a block program that is launched by itself, by at most `workers` workgroups (None: chosen)."""

    program: GpuProgram
    device: GpuDevice
    workers: int | None

    def near(self, arrays: Sequence[Any], passing: bool = False) -> Memories:
        """Return the Memories of the GPU that `arrays` are on: the object that allocates, copies and fills arrays
        there.

        With `passing`, the caller promises to use arrays that it allocates only during one call.
        """
        return self.device.near(arrays, passing)

    def bind(
        self, arrays: Sequence[Any], params: Mapping[str, int] | None = None, *, passing: bool = False
    ) -> Callable[[], None]:
        """Return a function that launches the program on `arrays`.

        `params` is {name: value} of sizes that no shape determines. With `passing`, the caller promises to call the
        function once, right away. An array that launches cannot use, such as a member of a batch that is not aligned,
        is copied before the launch, and copied back after it if the program writes it.
        """
        memory = self.near(arrays, passing)
        staged = [a if memory.takes(a) else memory.empty(a.shape, a.dtype) for a in arrays]
        launch = self.program.launch(staged, self.workers, params)
        copies = [
            (array, copy, argument.type.role != "in")
            for array, copy, argument in zip(arrays, staged, self.program.program.args, strict=True)
            if copy is not array
        ]

        def run() -> None:
            """Copy the arrays that launches cannot use, launch the program, and copy back those of the copies that it
            wrote."""
            for array, copy, _ in copies:
                memory.copy(array, copy)
            launch()
            for array, copy, is_written in copies:
                if is_written:
                    memory.copy(copy, array)

        return run


@dataclass(frozen=True)
class XlaGpuProgram:
    """A program for a GPU: the executor that binds it to arrays."""

    executor: GpuExecutor
    params: Mapping[str, int] | None
    """Values, by name, of sizes that do not follow from the shapes of arrays."""


class GpuCalls:
    """The Python side of XLA's custom calls of a GPU kernel.

    `callback` is the C function that the FFI handler calls with the address of a call frame.
    """

    def __init__(self, name: str, program: XlaGpuProgram, call: XlaCall):
        """Make the callback for `program`; `call` has its buffers, `name` begins its error messages."""
        self.name, self._program, self._call = name, program, call
        self.callback = CALLBACK(self._run_at)

    def _run_at(self, address: int, ended: int) -> int:
        """Run the kernel on the call frame at `address`. Return 0 if it succeeds, else the address of an XLA error.

        An exception of Tilewright becomes that error. `ended` is the address of a word, which is set to 1 in both
        cases. Any other exception escapes and leaves the word at 0, so that the handler sees the failure.
        """
        frame, error = CallFrame(address), 0
        try:
            self.run(frame)
        except TilewrightError as fault:
            error = frame.error(f"{self.name}: {fault}".removeprefix(f"{self.name}: {self.name}: "), INVALID_ARGUMENT)
        ctypes.c_uint64.from_address(ended).value = 1
        return error

    def run(self, frame: CallFrame) -> None:
        """Launch the kernel on the stream and the buffers of `frame`, once for each member of a vmap batch.

        Before a launch, outputs that the kernel may not write in full are filled with zeros. Raise TargetError if the
        call is not on a GPU.
        """
        arguments, results = frame.buffers()
        stream, device = frame.stream(), frame.device()
        executor, call = self._program.executor, self._call
        for pointers in _pointers_of_members([*arguments, *results], len(arguments), call.buffers):
            arrays: list[Any] = [
                DeviceArray(pointer, b.shape, packed_steps(b.shape), b.dtype, None, device, stream, True)
                for pointer, b in zip(pointers, call.buffers, strict=True)
            ]
            kernel_arguments = [arrays[index] for index in call.buffer_indices]
            memory = executor.near(kernel_arguments, passing=True)
            for result in call.zeroed_results:
                memory.fill(arrays[len(arguments) + result], 0)
            executor.bind(kernel_arguments, self._program.params, passing=True)()


def _pointers_of_members(
    buffers: Sequence[FrameBuffer], argument_count: int, unbatched: Sequence[XlaBuffer]
) -> Iterator[tuple[int, ...]]:
    """Yield, for each member of a vmap batch, a tuple with the address of this member's elements in each of `buffers`.

    vmap adds the same number of dimensions in front of each buffer, each of the batch's extent or 1 (broadcast).
    `unbatched` has the buffers without these dimensions. The batch's extents are those of the first result, which
    follows `argument_count` arguments in `buffers`. Without vmap there is one member.
    """
    batch_rank = len(buffers[argument_count].shape) - len(unbatched[argument_count].shape)
    batch = buffers[argument_count].shape[:batch_rank]
    for member in range(prod(batch)):
        pointers = []
        for buffer, b in zip(buffers, unbatched, strict=True):
            offset, stride, remaining = 0, b.bytes, member
            for extent, batch_extent in zip(reversed(buffer.shape[:batch_rank]), reversed(batch), strict=True):
                offset += 0 if extent == 1 else remaining % batch_extent * stride
                remaining, stride = remaining // batch_extent, stride * extent
            pointers.append(buffer.pointer + offset)
        yield tuple(pointers)
