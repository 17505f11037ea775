"""A module's host program and its programs as one object file, for its machine and no other feature of any."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilewright.codegen.entry.plan import EntryPlan, LaunchedFunction
from tilewright.codegen.entry.programs import ProgramTexts
from tilewright.codegen.entry.write import WrittenEntry, write_entry
from tilewright.errors import CodeGenerationError
from tilewright.ir.core import Op, Program
from tilewright.machine import Condition, Machine
from tilewright.targets.cpu.families import family_of
from tilewright.targets.cpu.load import object_of
from tilewright.targets.cpu.objects import read_object
from tilewright.targets.cpu.own_pool import pool_entry, pool_text
from tilewright.targets.cpu.support import support_for
from tilewright.targets.cpu.target import CodeOptions, named

if TYPE_CHECKING:
    from tilewright.targets.cpu.native import NativeKernel

Launched = Callable[[Op], "tuple[NativeKernel, tuple[Condition, ...]]"]
"""A description of the machine code of a launch, and the conditions that its open sizes must meet."""


@dataclass(frozen=True)
class ExportedObject:
    """An object file with the functions of a kernel; `options` are what LLVM was told of the machine."""

    code: bytes
    entry: WrittenEntry
    text: str
    options: CodeOptions


def object_options(machine: Machine) -> CodeOptions:
    """What LLVM is told: the machine's features and no others, and a system whose objects are ELF files."""
    options = named(machine).options
    triple = family_of(machine).triple or f"{platform.machine()}-unknown-linux-gnu"
    return replace(options, triple=triple)


def entry_texts(
    name: str,
    host: Program,
    launched: Launched,
    machine: Machine,
    *,
    tvm_ffi: bool = False,
    apart: bool = False,
    laid_out: bool = False,
) -> tuple[ProgramTexts, WrittenEntry]:
    """The programs that a host program launches and the functions that launch them, as one text.

    `launched` tells the machine code of launches; `apart` and `laid_out` are those of `EntryPlan`.
    """
    texts = ProgramTexts(name)
    symbols: dict[NativeKernel, str] = {}

    def function(op: Op) -> LaunchedFunction:
        kernel, conditions = launched(op)
        emitted = kernel.emitted
        if kernel not in symbols:
            symbols[kernel] = texts.add(emitted.text, emitted.name)
        return LaunchedFunction(symbols[kernel], kernel.program, emitted.scratch_bytes, emitted.open_bytes, conditions)

    plan = EntryPlan(name, host, function, _configuration(machine), apart=apart, laid_out=laid_out)
    entry = write_entry(plan, tvm_ffi=tvm_ffi)
    texts.add_entry(entry.text)
    return texts, entry


def exported_object(
    name: str, host: Program, launched: Launched, machine: Machine, *, tvm_ffi: bool = False
) -> ExportedObject:
    """The object of a host program under a name; `launched` tells the machine code of its launches.

    With `tvm_ffi` it also holds the function that TVM-FFI calls.
    """
    texts, entry = entry_texts(name, host, launched, machine, tvm_ffi=tvm_ffi)
    pool = pool_text(family_of(machine))
    if pool is not None:
        texts.add(pool, "pool_run")
        texts.add_entry(pool_entry(name))
    options = object_options(machine)
    text, code = complete_object(texts.text + "\n", options)
    return ExportedObject(code, entry, text, options)


def complete_object(text: str, options: CodeOptions) -> tuple[str, bytes]:
    """An LLVM text that holds all that it calls, and its object; functions that LLVM calls by itself are added."""
    code = object_of(text, options)
    missing = set(read_object(code).undefined)
    support = support_for(missing)
    if support:
        text += support
        code = object_of(text, options)
        missing = set(read_object(code).undefined)
    if missing:
        raise CodeGenerationError(f"it cannot be exported: its code needs {', '.join(sorted(missing))} of a library")
    return text, code


def _configuration(machine: Machine) -> bytes | None:
    """The configuration of tile registers; None where the machine has none."""
    tiles = family_of(machine).tiles
    return None if tiles is None or not machine.limits.tile_registers else bytes(tiles.configuration())
