"""A loop program as machine code: compiled once, called with arrays, or bound to them for repeated launches."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np

from tilewright.errors import ArgumentError, MissingAtomWarning
from tilewright.ir.core import Program
from tilewright.ir.loop import LOOP
from tilewright.ir.tensors import numbers
from tilewright.machine import Machine
from tilewright.passes.lower import lower
from tilewright.runtime import cache as disk
from tilewright.runtime.codegen import HELPER
from tilewright.runtime.dump import Dump
from tilewright.targets.x86 import cpu
from tilewright.targets.x86.emit import Emitted, emit
from tilewright.targets.x86.load import link, request, versions
from tilewright.targets.x86.pool import aligned, pool

Array = np.ndarray[Any, np.dtype[Any]]

_reported: set[str] = set()


class Kernel:
    """A program's machine code, and what a call needs."""

    def __init__(self, program: Program, machine: Machine | None, dump: Dump):
        self.program = program
        text = str(program)
        key = disk.key_of("x86", text, versions())
        kept = disk.load(key) if not dump.wanted else None
        self._loop: Program | None = None
        self._emitted: Emitted | None = None
        self.machine = machine
        if kept is None:
            self.missing = self._lower(dump)
            made = self._emit(dump)
            code = HELPER.ask(request(), made.text)
            header: dict[str, Any] = {
                "name": made.name,
                "scratch": made.scratch_bytes,
                "tiles": made.uses_tiles,
                "missing": list(self.missing),
            }
            disk.store(key, json.dumps(header).encode() + b"\n" + code)
        else:
            head, _, code = kept.partition(b"\n")
            header = json.loads(head)
            self.missing = tuple(header["missing"])
        for atom in self.missing:
            if atom not in _reported:
                _reported.add(atom)
                warnings.warn(
                    f"this CPU has no {atom}: its products run as loops with the same meaning, much slower",
                    MissingAtomWarning,
                    stacklevel=4,
                )
        self.object = code
        self.code = link(code, (header["name"],))
        self.entry = self.code.address(header["name"])
        self.scratch_bytes, self.uses_tiles = header["scratch"], header["tiles"]
        self.shapes = [(numbers(a.type.shape, "shape"), a.type.dtype.numpy, a.name or "") for a in program.args]

    def _lower(self, dump: Dump) -> tuple[str, ...]:
        if self.program.level is LOOP:
            self._loop = self.program
            return ()
        lowered = lower(self.program, self.machine, cpu.has)
        self._loop = lowered.program
        dump.write("lower", "loop", lambda: str(lowered.program))
        return lowered.missing

    def _emit(self, dump: Dump) -> Emitted:
        assert self._loop is not None
        self._emitted = emit(self._loop)
        made = self._emitted
        dump.write("emit", "ll", lambda: made.text)
        return made

    @property
    def loop(self) -> Program:
        """The loop program."""
        if self._loop is None:
            self._lower(Dump(None))
        assert self._loop is not None
        return self._loop

    @property
    def llvm(self) -> str:
        """The LLVM IR."""
        if self._emitted is None:
            self._emitted = emit(self.loop)
        return self._emitted.text

    @property
    def assembly(self) -> str:
        """The assembly."""
        return HELPER.ask(request("assembly"), self.llvm).decode()

    def launch(self, arrays: list[Array], workers: int | None = None) -> Launch:
        """The program bound to arrays; call it as often as wanted."""
        if len(arrays) != len(self.shapes):
            raise ArgumentError(f"{self.program.name} takes {len(self.shapes)} arrays, not {len(arrays)}")
        for array, (shape, form, name) in zip(arrays, self.shapes, strict=True):
            if array.shape != shape and array.size != int(np.prod(shape, dtype=np.int64)):
                raise ArgumentError(f"{name} has the shape {array.shape}; {self.program.name} takes {shape}")
            if array.dtype != form:
                raise ArgumentError(f"{name} holds {array.dtype}; {self.program.name} takes {form}")
            if not array.flags.c_contiguous:
                raise ArgumentError(f"{name} is not contiguous; pass np.ascontiguousarray({name})")
        return Launch(self, arrays, workers)


class Launch:
    """A kernel bound to arrays; a call runs it."""

    def __init__(self, kernel: Kernel, arrays: list[Array], workers: int | None):
        found = pool()
        count = min(workers or found.workers, found.workers)
        scratch = aligned(kernel.scratch_bytes * count + 64)
        block = aligned(8 * (len(arrays) + 2), 64).view(np.uint64)
        block[: len(arrays)] = [a.ctypes.data for a in arrays]
        block[len(arrays)] = scratch.ctypes.data
        block[len(arrays) + 1] = _configuration().ctypes.data
        self._kept = (kernel, arrays, scratch, block)
        self._run, self._control, self._entry = found.run, found.address, kernel.entry
        self._block, self._count, self._others = block.ctypes.data, count, found.workers - 1

    def __call__(self) -> None:
        """Runs the kernel."""
        self._run(self._control, self._entry, self._block, self._count, self._others)


_kept_configuration: Array | None = None


def _configuration() -> Array:
    """The tile configuration: eight tiles of 16 rows of 64 bytes. In memory that no compiler sees."""
    global _kept_configuration
    if _kept_configuration is None:
        found = aligned(64, 64)
        found[0] = 1
        for tile in range(8):
            found[16 + 2 * tile] = 64
            found[48 + tile] = 16
        _kept_configuration = found
    return _kept_configuration
