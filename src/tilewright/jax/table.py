"""A host program for one set of sizes as a table of steps, which the FFI handler runs; `handler.py` says how it lies.

What `bind` holds is done at every call: the arrays of a call are XLA's, and may hold other values each time. Tables and
numbers that no call changes are kept beside the table instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.compiler.device import NativeProgram
from tilewright.errors import ArgumentError
from tilewright.jax.handler import ALIGNMENT
from tilewright.runtime.scripts import Checked, Filled, Launched, Script, SlotMemory, Step, Tabled
from tilewright.runtime.sizes import sizes_of
from tilewright.targets.cpu.native import NativeKernel
from tilewright.targets.cpu.pool import pool

Words = np.ndarray[Any, np.dtype[np.uint64]]
LAUNCH, ZEROS, COPY, CHECK = range(4)
LINE = 128
"""Bytes of the longest cache line: where tensors of a workspace start."""


@dataclass(frozen=True)
class XlaBuffer:
    """An array that XLA passes: its shape and element type, without the dimensions that vmap adds in front."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        """The bytes of one member of a batch."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class XlaCall:
    """What XLA passes: arguments, results, for each argument of the host program the buffer that it is, and the
    results that are filled with zeros first."""

    arguments: tuple[XlaBuffer, ...]
    results: tuple[XlaBuffer, ...]
    places: tuple[int, ...]
    zeroed: tuple[int, ...] = ()

    @property
    def buffers(self) -> tuple[XlaBuffer, ...]:
        """Arguments, then results."""
        return self.arguments + self.results


class StepTable:
    """The table of a script, and everything that it points at."""

    def __init__(self, name: str, script: Script, call: XlaCall):
        self.name, self._call, self._kept = name, call, []  # type: tuple[str, XlaCall, list[Any]]
        self._steps: list[list[int]] = []
        self._words, self._bytes = 1, 0
        self._space = len(call.buffers)
        self._zero = self._space + 1
        self._places: list[tuple[int, int]] = [(place, 0) for place in call.places]
        self._shapes: list[tuple[tuple[int, ...], np.dtype[Any]]] = [
            (call.buffers[place].shape, call.buffers[place].dtype) for place in call.places
        ]
        constant = _constants(script, len(call.places))
        for each in script.memory:
            self._add_memory(each, constant)
        for result in call.zeroed:
            place = len(call.arguments) + result
            self._steps.append([ZEROS, place, 0, call.buffers[place].bytes])
        for step in (*script.once, *script.each):
            if not (isinstance(step, Filled | Tabled) and step.slot in constant):
                self._add(step)
        self.words = self._finished()

    def _add_memory(self, memory: SlotMemory, constant: dict[int, Filled | Tabled]) -> None:
        """The place of a slot: in the workspace, in another slot, or in memory that no call changes."""
        if memory.strides is not None:
            raise ArgumentError(
                f"{self.name}: its host program sees an array with strides (`restride`), which tilewright.jax does not "
                "run; compile it for target='cpu'"
            )
        self._shapes.append((memory.shape, memory.dtype))
        if memory.source is not None:
            self._places.append(self._places[memory.source])
        elif memory.slot in constant:
            self._places.append((self._zero, self._address(self._values(constant[memory.slot]))))
        else:
            self._places.append((self._space, self._room(prod(memory.shape) * memory.dtype.itemsize, LINE)))

    def _values(self, step: Filled | Tabled) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the value that a step fills a tensor with."""
        values = np.empty(*self._shapes[step.slot])
        values[...] = step.values if isinstance(step, Tabled) else step.value
        return values

    def _address(self, array: np.ndarray[Any, Any]) -> int:
        """The address of an array, which lives as long as the table."""
        self._kept.append(array)
        return int(array.ctypes.data)

    def _room(self, count: int, alignment: int) -> int:
        """Return the offset of so many bytes of the workspace."""
        start = -(-self._bytes // alignment) * alignment
        self._bytes = start + count
        return start

    def _add(self, step: Step) -> None:
        if isinstance(step, Launched):
            self._launch(step)
            return
        base, offset = self._places[step.slot]
        if isinstance(step, Checked):
            size = self._shapes[step.slot][1].itemsize
            for place, says, _ in step.faults:
                text = np.frombuffer(f"{self.name}: {says}".encode() + b"\0", np.uint8)
                self._steps.append([CHECK, base, offset + place * size, size, self._address(text)])
            return
        values = self._values(step)
        if not any(values.tobytes()):
            self._steps.append([ZEROS, base, offset, values.nbytes])
        else:
            self._steps.append([COPY, base, offset, values.nbytes, self._address(values)])

    def _launch(self, step: Launched) -> None:
        program = step.program
        assert isinstance(program, NativeProgram)
        kernel: NativeKernel = program.kernel
        arrays = [
            np.broadcast_to(np.zeros((), dtype), shape) for shape, dtype in map(self._shapes.__getitem__, step.slots)
        ]
        values: list[int] = []
        if kernel.open:
            names = [a.name or "" for a in program.program.args]
            named = dict(zip(names, arrays, strict=True))
            values = list(sizes_of(program.program, named, dict(step.params), program.conditions).values())
        if any(a.type.strides is not None or a.type.swizzle is not None for a in program.program.args):
            raise ArgumentError(
                f"{self.name}: {program.program.name} takes an array with strides or a swizzle, which tilewright.jax "
                "does not pass; write it for packed arrays"
            )
        workers = min(step.workers, pool().workers)
        scratch = self._room(kernel.scratch_bytes(values) * workers + LINE, ALIGNMENT)
        configuration = kernel.configuration
        words = [self._places[slot] for slot in step.slots]
        words += [(self._space, scratch), (self._zero, 0 if configuration is None else self._address(configuration))]
        words += [(self._zero, value) for value in values]
        self._words = max(self._words, len(words))
        self._kept.append(kernel)
        pairs = np.array(words, np.uint64)
        self._steps.append([LAUNCH, kernel.entry, workers, len(words), self._address(pairs)])

    def _finished(self) -> Words:
        call = self._call
        steps = np.zeros((max(len(self._steps), 1), 6), np.uint64)
        for row, step in zip(steps, self._steps, strict=False):
            row[: len(step)] = step
        ranks = np.array([len(b.shape) for b in call.buffers], np.uint64)
        sizes = np.array([b.bytes for b in call.buffers], np.uint64)
        words = np.zeros(16, np.uint64)
        counts = [len(call.arguments), len(call.results), self._address(steps), len(self._steps)]
        words[:8] = [*counts, self._address(ranks), self._address(sizes), self._words, self._bytes]
        return words


def _constants(script: Script, arguments: int) -> dict[int, Filled | Tabled]:
    """The workspaces that one step fills with numbers and that no other step writes, with that step."""
    roots = list(range(arguments))
    for memory in script.memory:
        roots.append(memory.slot if memory.source is None else roots[memory.source])
    writers: dict[int, list[Step]] = {}
    for step in (*script.once, *script.each):
        for slot in _written(step):
            writers.setdefault(roots[slot], []).append(step)
    return {
        root: step
        for root, (step, *others) in writers.items()
        if root >= arguments and not others and isinstance(step, Filled | Tabled) and step.slot == root
    }


def _written(step: Step) -> Sequence[int]:
    """The slots that a step writes to."""
    if isinstance(step, Launched):
        program = step.program
        assert isinstance(program, NativeProgram)
        return [slot for slot, arg in zip(step.slots, program.program.args, strict=True) if arg.type.role != "in"]
    return () if isinstance(step, Checked) else (step.slot,)
