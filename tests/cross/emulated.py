"""Machine code for a CPU that is not at hand, run by an emulator: everything above it is what it always is.

Within `emulating()` a target such as "cpu:aarch64.neon.bf16" runs wherever the emulator of its architecture is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from elf import Image, linked

from tilewright.codegen.entry.abi import COUNTER_BYTES
from tilewright.compiler import device
from tilewright.interpret.evaluation import evaluated
from tilewright.runtime.codegen import HELPER
from tilewright.targets import registry
from tilewright.targets.cpu import conversions
from tilewright.targets.cpu.families import family_of
from tilewright.targets.cpu.native import NativeKernel
from tilewright.targets.cpu.target import CodeOptions, CpuTarget

Array = np.ndarray[Any, np.dtype[Any]]
_EMULATORS = {"aarch64": ("qemu-aarch64", "qemu-aarch64-static"), "x86": ("qemu-x86_64", "qemu-x86_64-static")}
_CALLS = {"aarch64": (64, 93), "x86": (1, 60)}  # write, exit
MISSING_IN_EMULATOR = ("avx512f", "amx-tile")  # qemu knows neither

# what LLVM calls by itself
_LIBRARY = """
define ptr @memset(ptr %p, i32 %v, i64 %n) {
entry:
  %b = trunc i32 %v to i8
  br label %look
look:
  %i = phi i64 [0, %entry], [%j, %body]
  %some = icmp ult i64 %i, %n
  br i1 %some, label %body, label %out
body:
  %q = getelementptr i8, ptr %p, i64 %i
  store volatile i8 %b, ptr %q
  %j = add i64 %i, 1
  br label %look
out:
  ret ptr %p
}
define ptr @memcpy(ptr %p, ptr %s, i64 %n) {
entry:
  br label %look
look:
  %i = phi i64 [0, %entry], [%j, %body]
  %some = icmp ult i64 %i, %n
  br i1 %some, label %body, label %out
body:
  %q = getelementptr i8, ptr %p, i64 %i
  %r = getelementptr i8, ptr %s, i64 %i
  %b = load i8, ptr %r
  store volatile i8 %b, ptr %q
  %j = add i64 %i, 1
  br label %look
out:
  ret ptr %p
}
"""


@cache
def _object(options: CodeOptions, text: str) -> bytes:
    return HELPER.ask(options.request("object"), text)


@cache
def emulator(family: str) -> str | None:
    """The program that runs code of a family."""
    return next(filter(None, map(shutil.which, _EMULATORS.get(family, ()))), None)


def why_not(name: str) -> str | None:
    """Why code for a machine cannot be run here, emulated or not; None: it can."""
    target = registry.native(f"cpu:{name}")
    if target.runs:
        return None
    family = family_of(target.machine).name
    if emulator(family) is None:
        return f"no emulator of {family}: Debian's package qemu-user has one"
    unknown = [f for f in MISSING_IN_EMULATOR if f in target.machine.features]
    return f"the emulator has no {unknown[0]}" if unknown else None


class EmulatedTarget(CpuTarget):
    """A target whose kernels run under an emulator."""

    def require(self, what: str) -> None:
        pass


_BEHIND = {"x86": 32}
"""Bytes behind an array that an emulator reads, though the CPU does not: those of a vector that is loaded by a mask."""


class EmulatedKernel(NativeKernel):
    """A kernel that is linked into a program of its own at every launch."""

    def start(self, arrays: list[Array], workers: int | None, values: Sequence[int]) -> Callable[[], None]:
        def launch() -> None:
            self._run(arrays, workers or 2, values)

        return launch

    def _made(self, text: str) -> bytes:
        return _object(self.target.options, text)

    def _run(self, arrays: list[Array], workers: int, values: Sequence[int]) -> None:
        made, family = self.emitted, family_of(self.target.machine).name
        opened = evaluated(made.open_bytes, {s.name: n for s, n in zip(self.open, values, strict=True)})
        room = made.scratch_bytes + int(opened)
        image = Image()
        behind = bytes(_BEHIND.get(family, 0))
        places = [image.place(a.tobytes() + behind, at_end=number % 2 == 0) for number, a in enumerate(arrays)]
        scratch = image.place(bytes(room * workers + 4096), at_end=False)
        counters = image.place(bytes(COUNTER_BYTES * workers), at_end=False)
        block = np.array([*places, scratch, 0, counters, *values], np.uint64)
        table = image.place(block.tobytes(), at_end=False)
        roles = [a.type.role for a in self.program.args]
        written = [n for n, role in enumerate(roles) if role != "in"]
        outputs = [(places[n], arrays[n].nbytes) for n in written]
        start = self._made(_start(family, made.name, table, workers, outputs))
        library = self._made(_LIBRARY), self._made(conversions.TEXT)
        found = emulate(family, linked([self.object, start, *library], image))
        for n in written:
            size = arrays[n].nbytes
            arrays[n][...] = np.frombuffer(found[:size], arrays[n].dtype).reshape(arrays[n].shape)
            found = found[size:]


def _start(family: str, name: str, table: int, workers: int, written: list[tuple[int, int]]) -> str:
    """The function that the program begins with: every worker in turn, then what was written, then the end."""
    calls = [f"  call void @{name}(ptr inttoptr (i64 {table} to ptr), i64 {w}, i64 {workers})" for w in range(workers)]
    return started(family, [f"declare void @{name}(ptr, i64, i64)"], calls, written)


def started(family: str, declared: list[str], calls: list[str], written: list[tuple[int, int]]) -> str:
    """The function `start`: these lines, then so many bytes at these addresses written out, then the end."""
    write, leave = _CALLS[family]
    lines = ["declare i64 @syscall(i64, i64, i64, i64)", *declared, "define void @start() {", "entry:", *calls]
    for number, (place, size) in enumerate(written):
        lines += [
            f"  br label %from{number}",
            f"from{number}:",
            f"  br label %more{number}",
            f"more{number}:",
            f"  %at{number} = phi i64 [0, %from{number}], [%next{number}, %some{number}]",
            f"  %left{number} = sub i64 {size}, %at{number}",
            f"  %none{number} = icmp eq i64 %left{number}, 0",
            f"  br i1 %none{number}, label %done{number}, label %some{number}",
            f"some{number}:",
            f"  %p{number} = add i64 {place}, %at{number}",
            f"  %n{number} = call i64 @syscall(i64 {write}, i64 1, i64 %p{number}, i64 %left{number})",
            f"  %next{number} = add i64 %at{number}, %n{number}",
            f"  br label %more{number}",
            f"done{number}:",
        ]
    return "\n".join(
        [*lines, f"  %gone = call i64 @syscall(i64 {leave}, i64 0, i64 0, i64 0)", "  unreachable", "}", ""]
    )


def emulate(family: str, program: bytes) -> bytes:
    """What a program writes; raises where it ends otherwise than it should. One of this CPU's needs no emulator."""
    found = emulator(family)
    own = family_of(registry.native("cpu").machine).name == family
    assert own or found is not None
    before = [] if own else [str(found), "-cpu", "max"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program"
        path.write_bytes(program)
        path.chmod(0o700)
        done = subprocess.run([*before, str(path)], capture_output=True, timeout=120, env={**os.environ})
    if done.returncode:
        raise RuntimeError(f"the emulated program ended with {done.returncode}: {done.stderr.decode()[-400:]}")
    return done.stdout


@contextmanager
def emulating() -> Iterator[None]:
    """Within it, targets that are not at hand run under an emulator."""
    inner = registry._named_cpu

    def named(target: str) -> CpuTarget:
        found = inner(target)
        if found.runs:
            return found
        cores = replace(found.machine, limits=replace(found.machine.limits, cores=2))
        return EmulatedTarget(found.name, cores, found.options, found.why_not)

    def kernel(program: Any, described: Any, target: CpuTarget, dump: Any) -> NativeKernel:
        kind = EmulatedKernel if isinstance(target, EmulatedTarget) else NativeKernel
        return kind(program, described, target, dump)

    with mock.patch.object(registry, "_named_cpu", named), mock.patch.object(device, "NativeKernel", kernel):
        yield
