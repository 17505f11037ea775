"""A loop program as machine code: compiled once, then called with arrays, or bound to them for repeated launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np

from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ArgumentError
from tilewright.ir.alone import launching_host
from tilewright.ir.binding import open_parameters
from tilewright.ir.core import Program
from tilewright.ir.loop import LOOP
from tilewright.ir.tensors import TensorType, numbers
from tilewright.limits import WORKERS
from tilewright.lower.cpu.lower import LoweredLoops, lower
from tilewright.machine import Machine
from tilewright.runtime.codegen import HELPER
from tilewright.runtime.dump import Dump
from tilewright.runtime.overlap import require_no_overlap
from tilewright.runtime.sizes import sizes_of
from tilewright.targets.cpu.emit import EmittedNative, emit
from tilewright.targets.cpu.entry import EntryCode, EntryLaunch, EntryMember
from tilewright.targets.cpu.entry_object import entry_code
from tilewright.targets.cpu.load import object_of
from tilewright.targets.cpu.target import CpuTarget

Array = np.ndarray[Any, np.dtype[Any]]


class NativeKernel:
    """A program's machine code for a target.

    `described` is the machine that the program was written for; atoms that the target lacks run as loops of the same
    meaning. Each level is made when it is first asked for; a module's code is made of all its programs
    (`entry_object`).
    """

    def __init__(self, program: Program, described: Machine | None, target: CpuTarget, dump: Dump):
        self.program = program
        self.open = open_parameters(program)
        self.machine, self.target, self.dump = described, target, dump
        self._lowered: LoweredLoops | None = None
        self._emitted: EmittedNative | None = None
        self._entry: EntryCode | None = None

    def _lower(self) -> LoweredLoops:
        """Return the program as a loop program, with the reasons why matrix products run as scalar loops. A block
        program is lowered at the first call. A loop program is returned unchanged, without reasons.
        """
        if self._lowered is None:
            if self.program.level is LOOP:
                self._lowered = LoweredLoops(self.program, ())
            else:
                self._lowered = lowered = lower(self.program, self.machine, self.target.machine)
                self.dump.write("lower", "loop", lambda: str(lowered.program))
        return self._lowered

    @property
    def slow(self) -> tuple[str, ...]:
        """The reasons why matrix products run as scalar loops, one text each. The tuple is empty if all products use
        instructions for them. The first use lowers the program.
        """
        return self._lower().slow

    @property
    def emitted(self) -> EmittedNative:
        """The program as the text of an LLVM function, with the memory that its caller must provide. The first use
        emits it.
        """
        if self._emitted is None:
            self._emitted = emitted = emit(self.loop, self.target.machine)
            self.dump.write("emit", "ll", lambda: emitted.text)
        return self._emitted

    @property
    def object(self) -> bytes:
        """The object code of the program, from the disk cache or compiled."""
        return object_of(self.llvm, self.target.options)

    def write_assembly(self) -> None:
        """Write the program's assembly to the dump folder. Do nothing if dumps are off."""
        self.dump.write("generate", "s", lambda: self.assembly)

    @property
    def loop(self) -> Program:
        """The program as a loop program. The first use lowers it."""
        return self._lower().program

    @property
    def llvm(self) -> str:
        """The LLVM IR of the program as text."""
        return self.emitted.text

    @property
    def assembly(self) -> str:
        """The assembly of the program as text. Each use compiles the program again."""
        return HELPER.ask(self.target.options.request("assembly"), self.llvm).decode()

    def launch(
        self, arrays: list[Array], workers: int | None = None, params: Mapping[str, int] | None = None
    ) -> Callable[[], None]:
        """Return a function without parameters that runs the program on `arrays`, with at most `workers` threads (None:
        all of the pool). The function may be called any number of times.

        Open sizes follow from the shapes of the arrays. `params` is {name: value} for open sizes that no shape
        determines. If an argument declares strides or a swizzle, each call copies the array to this layout, and copies
        it back if it is written. Raise ArgumentError if the arrays do not fit the arguments, if a written array
        overlaps another one, or if `workers` is less than 1. Raise TargetError if the code does not run on this CPU.
        """
        name = self.program.name
        self.target.require(name)
        if workers is not None and workers < 1:
            raise ArgumentError(f"{name}: workers={workers}; at least one is needed")
        values, types = self.sizes_and_types(arrays, params)
        staged: list[tuple[Array, Array, Array, str]] = []
        for number, (array, arg, kind) in enumerate(zip(arrays, self.program.args, types, strict=True)):
            _check_memory(array, arg.name or "", kind)
            if kind.strides is not None or kind.swizzle is not None:
                flat = np.zeros(kind.cosize(), array.dtype)
                staged.append((array, flat, _element_offsets(kind), kind.role or "in"))
                arrays = [*arrays[:number], flat, *arrays[number + 1 :]]
        require_no_overlap(name, [(a.name or "", a.type.role) for a in self.program.args], arrays)
        started = self.start(arrays, workers, values)
        return StagedLaunch(started, staged) if staged else started

    def sizes_and_types(
        self, arrays: Sequence[Array], params: Mapping[str, int] | None
    ) -> tuple[list[int], list[TensorType]]:
        """Return (values of the open sizes in order, types of the arguments with these values) for a call with
        `arrays`. `params` is {name: value} for open sizes that no shape determines. Raise ArgumentError if the number,
        shapes or element types of the arrays do not fit the arguments. An argument of a loop program accepts arrays of
        any shape with the right number of elements.
        """
        name = self.program.name
        if len(arrays) != len(self.program.args):
            raise ArgumentError(f"{name} takes {len(self.program.args)} arrays, not {len(arrays)}")
        values: list[int] = []
        types: list[TensorType] = [a.type for a in self.program.args]
        if self.open or params:
            names = [a.name or "" for a in self.program.args]
            sizes = sizes_of(self.program, dict(zip(names, arrays, strict=True)), params)
            values = list(sizes.values())
            types = [k.mapped(Substitution(dict(zip(self.open, values, strict=True)))) for k in types]
        for array, arg, kind in zip(arrays, self.program.args, types, strict=True):
            takes, shape = f"{name} takes", numbers(kind.shape, "shape")
            # memory is flat on the loop level: there the number of elements is what counts
            flat = self.program.level is LOOP and array.size == int(np.prod(shape, dtype=np.int64))
            if array.shape != shape and not flat:
                raise ArgumentError(f"{arg.name} has the shape {array.shape}; {takes} {shape}")
            if array.dtype != kind.dtype.numpy:
                raise ArgumentError(f"{arg.name} holds {array.dtype}; {takes} {kind.dtype}")
        return values, types

    @property
    def entry(self) -> EntryCode:
        """The linked machine code of a host program that launches only this program. The first use compiles or loads
        it.
        """
        if self._entry is None:
            host = launching_host(self.program, WORKERS.most)
            self._entry = entry_code(host, lambda _: (self, ()), self.target, laid_out=True)
        return self._entry

    def start(self, arrays: list[Array], workers: int | None, values: Sequence[int]) -> Callable[[], None]:
        """Return a function without parameters that runs the machine code on `arrays`. The arrays must have the memory
        layouts that the arguments declare. `workers` is the largest number of threads (None: all of the pool). `values`
        are the values of the open sizes, in order.
        """
        return EntryLaunch(EntryMember(self.program.name, self.entry, tuple(values)), arrays, workers=workers)


class StagedLaunch:
    """A launch whose arguments have another memory layout than the program's: each call copies them to that layout, and
    back."""

    def __init__(self, launch: Callable[[], None], staged: list[tuple[Array, Array, Array, str]]):
        self._launch, self._staged = launch, staged
        self._lock = Lock()

    def __call__(self) -> None:
        """Copy the arrays to the program's layouts, run the kernel, and copy written arrays back. Concurrent calls wait
        for each other.
        """
        with self._lock:
            for array, flat, places, _ in self._staged:
                flat[places] = array
            self._launch()
            for array, flat, places, role in self._staged:
                if role != "in":
                    array[...] = flat[places]


def _check_memory(array: Array, name: str, kind: TensorType) -> None:
    """Raise ArgumentError unless `array` is contiguous and aligned to its element size, and writeable if the argument
    is written. `name` and `kind` are the name and type of the argument.
    """
    if not array.flags.c_contiguous:
        raise ArgumentError(f"{name} is not contiguous; pass np.ascontiguousarray({name})")
    if not array.flags.aligned:
        raise ArgumentError(f"{name} does not lie at a multiple of its element size; pass {name}.copy()")
    if kind.role != "in" and not array.flags.writeable:
        raise ArgumentError(f"{name} is written, but the array given is read-only")


def _element_offsets(kind: TensorType) -> Array:
    """Return an array of the shape of the tensor type `kind` with the offset of each element in memory, in elements,
    after strides and swizzle.
    """
    shape, steps = numbers(kind.shape, kind), numbers(kind.steps, kind)
    offsets: Any = np.zeros(shape, np.int64)
    for coordinate, step in zip(np.ogrid[tuple(slice(0, n) for n in shape)], steps, strict=True):
        offsets = offsets + coordinate * step
    swizzled: Array = kind.swizzle(offsets) if kind.swizzle is not None else offsets
    return swizzled
