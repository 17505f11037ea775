"""One object file of a module's host program and its block programs, for one machine's features only."""

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
"""Maps a launch operation to the kernel that it launches, and the conditions that its open sizes must meet."""


@dataclass(frozen=True)
class ExportedObject:
    """An object file with the functions of a kernel, and its LLVM text; `options` are LLVM's for the machine."""

    code: bytes
    entry: WrittenEntry
    text: str
    options: CodeOptions


def object_options(machine: Machine) -> CodeOptions:
    """Return LLVM's options for code that uses only the features of `machine`. The target triple is that of a system
    with ELF object files.
    """
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
    is_serial: bool = False,
    laid_out: bool = False,
) -> tuple[ProgramTexts, WrittenEntry]:
    """Return (texts, entry): the LLVM text of the host program `host` and of all programs that it launches, and a
    description of the functions that launch them.

    Function names begin with `name`. `launched(op)` returns (kernel, conditions on open sizes) for a launch operation.
    If `tvm_ffi`, the text has a function for TVM-FFI too. `is_serial` says that calls with the same kept memory, such
    as packed weights, never run at the same time. `laid_out` says that arrays have the strides that the arguments of
    the programs declare; otherwise arrays are contiguous.
    """
    texts = ProgramTexts(name)
    symbols: dict[NativeKernel, str] = {}

    def function(op: Op) -> LaunchedFunction:
        """Return the LLVM function of the program that the launch operation `op` starts. The first launch of a program
        adds the program to `texts`.
        """
        kernel, conditions = launched(op)
        emitted = kernel.emitted
        if kernel not in symbols:
            symbols[kernel] = texts.add(emitted.text, emitted.name)
        return LaunchedFunction(symbols[kernel], kernel.program, emitted.scratch_bytes, emitted.open_bytes, conditions)

    plan = EntryPlan(name, host, function, _tile_configuration(machine), is_serial=is_serial, laid_out=laid_out)
    entry = write_entry(plan, tvm_ffi=tvm_ffi)
    texts.add_entry(entry.text)
    return texts, entry


def exported_object(
    name: str, host: Program, launched: Launched, machine: Machine, *, tvm_ffi: bool = False
) -> ExportedObject:
    """Return an object file with the machine code of the host program `host` and of all programs that it launches. The
    object also has the worker pool, if the CPU family has a pool that needs no library.

    Function names begin with `name`. `launched(op)` returns (kernel, conditions on open sizes) for a launch operation.
    If `tvm_ffi`, the object has a function for TVM-FFI too. Raise CodeGenerationError if the code needs a library.
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
    """Return (text, object code). The returned text is the LLVM text `text` followed by the support functions that its
    code needs: functions that LLVM calls implicitly, such as conversions and memset. `options` are LLVM's. Raise
    CodeGenerationError if the object still needs functions of a library.
    """
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


def _tile_configuration(machine: Machine) -> bytes | None:
    """Return the bytes that configure the tile registers of `machine`; None if it has no tile registers."""
    tiles = family_of(machine).tiles
    return None if tiles is None or not machine.limits.tile_registers else bytes(tiles.configuration())
