"""A loop program as machine code: compiled once, called with arrays, or bound to them for repeated launches."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr
from tilewright.algebra.expr_text import parse_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ArgumentError
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.binding import open_parameters
from tilewright.ir.core import Program
from tilewright.ir.loop import LOOP
from tilewright.ir.tensors import TensorType, numbers
from tilewright.machine import Machine
from tilewright.passes.lower import lower
from tilewright.runtime import cache as disk
from tilewright.runtime.codegen import HELPER
from tilewright.runtime.dump import Dump
from tilewright.runtime.sizes import sizes_of
from tilewright.targets.cpu.emit import EmittedNative, emit
from tilewright.targets.cpu.families import family_of
from tilewright.targets.cpu.launch import Entry, NativeLaunch, report_slow, require_apart
from tilewright.targets.cpu.load import link, versions
from tilewright.targets.cpu.target import CpuTarget

Array = np.ndarray[Any, np.dtype[Any]]


class NativeKernel:
    """A program's machine code for a target, and what a call needs.

    `described` is the machine that the program was written for; where the target has not its atoms, their products run
    as loops of the same meaning. Code that does not run here is only made where its text or object is asked for.
    """

    def __init__(self, program: Program, described: Machine | None, target: CpuTarget, dump: Dump):
        self.program = program
        self.open = open_parameters(program)
        self.machine, self.target = described, target
        self._loop: Program | None = None
        self._emitted: EmittedNative | None = None
        self._object: bytes | None = None
        self._scratch: tuple[int, Expr] | None = None
        self.slow: tuple[str, ...] = ()
        self.key: str | None = None
        """Its place in the cache; None where it is not made to run."""
        if not target.runs:
            self.slow = self._lower(dump)
            return
        key = self.key = disk.key_of("cpu", target.machine.name, str(program), versions(target.options))
        kept = disk.load(key) if not dump.wanted else None
        if kept is None:
            self.slow = self._lower(dump)
            made = self._emit(dump)
            code = HELPER.ask(target.options.request("object"), made.text)
            dump.write("generate", "s", lambda: self.assembly)
            header: dict[str, Any] = {
                "name": made.name,
                "scratch": made.scratch_bytes,
                "open": str(made.open_bytes),
                "tiles": made.uses_tiles,
                "slow": list(self.slow),
            }
            disk.store(key, json.dumps(header).encode() + b"\n" + code)
        else:
            head, _, code = kept.partition(b"\n")
            header = json.loads(head)
            self.slow = tuple(header["slow"])
        report_slow(self.slow)
        self._object = code
        self.code = link(code, (header["name"],))
        self.entry = self.code.address(header["name"])
        self._scratch = header["scratch"], parse_expr(header["open"], self.open)

    def _lower(self, dump: Dump) -> tuple[str, ...]:
        if self.program.level is LOOP:
            self._loop = self.program
            return ()
        lowered = lower(self.program, self.machine, self.target.machine)
        self._loop = lowered.program
        dump.write("lower", "loop", lambda: str(lowered.program))
        return lowered.slow

    def _emit(self, dump: Dump) -> EmittedNative:
        assert self._loop is not None
        self._emitted = emit(self._loop, self.target.machine)
        made = self._emitted
        dump.write("emit", "ll", lambda: made.text)
        return made

    @property
    def emitted(self) -> EmittedNative:
        """The LLVM IR, and what a caller must provide."""
        if self._emitted is None:
            self._emitted = emit(self.loop, self.target.machine)
        return self._emitted

    @property
    def object(self) -> bytes:
        """The object code."""
        if self._object is None:
            self._object = HELPER.ask(self.target.options.request("object"), self.llvm)
        return self._object

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
        return self.emitted.text

    @property
    def assembly(self) -> str:
        """The assembly."""
        return HELPER.ask(self.target.options.request("assembly"), self.llvm).decode()

    def launch(
        self, arrays: list[Array], workers: int | None = None, params: Mapping[str, int] | None = None
    ) -> Callable[[], None]:
        """The program bound to arrays; call it as often as wanted.

        Open parameters are told by the arrays' shapes; `params` gives those that no shape tells.
        """
        name = self.program.name
        self.target.require(name)
        if len(arrays) != len(self.program.args):
            raise ArgumentError(f"{name} takes {len(self.program.args)} arrays, not {len(arrays)}")
        if workers is not None and workers < 1:
            raise ArgumentError(f"{name}: workers={workers}; at least one is needed")
        values: list[int] = []
        kinds: list[TensorType] = [a.type for a in self.program.args]
        if self.open or params:
            names = [a.name or "" for a in self.program.args]
            found = sizes_of(self.program, dict(zip(names, arrays, strict=True)), params)
            values = list(found.values())
            kinds = [k.mapped(Substitution(dict(zip(self.open, values, strict=True)))) for k in kinds]
        staged: list[tuple[Array, Array, Array, str]] = []
        for place, (array, arg, kind) in enumerate(zip(arrays, self.program.args, kinds, strict=True)):
            self._check(array, arg.name or "", kind)
            if kind.strides is not None or kind.swizzle is not None:
                flat = np.zeros(kind.cosize(), array.dtype)
                staged.append((array, flat, _places(kind), kind.role or "in"))
                arrays = [*arrays[:place], flat, *arrays[place + 1 :]]
        require_apart(name, [(a.name or "", a.type.role) for a in self.program.args], arrays)
        started = self.start(arrays, workers, values)
        return StagedLaunch(started, staged) if staged else started

    @property
    def configuration(self) -> Array | None:
        """The configuration of tile registers that a worker loads before it runs; None where it has none."""
        tiles = family_of(self.target.machine).tiles
        return None if tiles is None else tiles.configuration()

    def scratch_bytes(self, values: Sequence[int]) -> int:
        """The memory of each worker's own, for values of the open parameters."""
        fixed, opened = self._scratch or (self.emitted.scratch_bytes, self.emitted.open_bytes)
        return fixed + int(evaluated(opened, {s.name: n for s, n in zip(self.open, values, strict=True)}))

    def start(self, arrays: list[Array], workers: int | None, values: Sequence[int]) -> Callable[[], None]:
        """The machine code bound to arrays that lie as it takes them, and to the values of open parameters."""
        machine = self.target.machine
        room = self.scratch_bytes(values)
        entry = Entry(self.entry, room, machine.limits.line_bytes, family_of(machine).name, self)
        return NativeLaunch(entry, arrays, workers, values)

    def _check(self, array: Array, name: str, kind: TensorType) -> None:
        takes, shape = f"{self.program.name} takes", numbers(kind.shape, "shape")
        # memory is flat on the loop level: there the number of elements is what counts
        flat = self.program.level is LOOP and array.size == int(np.prod(shape, dtype=np.int64))
        if array.shape != shape and not flat:
            raise ArgumentError(f"{name} has the shape {array.shape}; {takes} {shape}")
        if array.dtype != kind.dtype.numpy:
            raise ArgumentError(f"{name} holds {array.dtype}; {takes} {kind.dtype}")
        if not array.flags.c_contiguous:
            raise ArgumentError(f"{name} is not contiguous; pass np.ascontiguousarray({name})")
        if not array.flags.aligned:
            raise ArgumentError(f"{name} does not lie at a multiple of its element size; pass {name}.copy()")
        if kind.role != "in" and not array.flags.writeable:
            raise ArgumentError(f"{name} is written, but the array given is read-only")


class StagedLaunch:
    """A launch whose arguments do not lie in memory as the program says: each copies them there, and back."""

    def __init__(self, launch: Callable[[], None], staged: list[tuple[Array, Array, Array, str]]):
        self._launch, self._staged = launch, staged
        self._lock = Lock()

    def __call__(self) -> None:
        """Runs the kernel, between the copies."""
        with self._lock:
            for array, flat, places, _ in self._staged:
                flat[places] = array
            self._launch()
            for array, flat, places, role in self._staged:
                if role != "in":
                    array[...] = flat[places]


def _places(kind: TensorType) -> Array:
    """Where each element of a tensor lies."""
    shape, steps = numbers(kind.shape, kind), numbers(kind.steps, kind)
    places: Any = np.zeros(shape, np.int64)
    for coordinate, step in zip(np.ogrid[tuple(slice(0, n) for n in shape)], steps, strict=True):
        places = places + coordinate * step
    found: Array = kind.swizzle(places) if kind.swizzle is not None else places
    return found
