"""Loading of machine code into this process: object code from the cache or compiled, then linked."""

from __future__ import annotations

import os
import re
import sys
import threading
from functools import cache
from typing import Any

from tilewright.errors import CodeGenerationError
from tilewright.runtime import cache as disk
from tilewright.runtime.toolchain import toolchain
from tilewright.targets.cpu import conversions
from tilewright.targets.cpu.target import CodeOptions, host_options

_lock = threading.Lock()
_count = 0


_held: list[Any] = []


def _before_fork() -> None:
    """Acquire this module's lock and LLVM's lock before a fork. Otherwise a lock that another thread holds during the
    fork would stay locked in the child. `_after_fork` releases both.
    """
    _lock.acquire()
    llvm = sys.modules.get("llvmlite.binding.ffi")
    inner = getattr(getattr(llvm, "lib", None), "_lock", None)
    if inner is not None:
        inner.__enter__()
        _held.append(inner)


def _after_fork() -> None:
    """Release the locks that `_before_fork` acquired. Python calls this function in the parent and in the child."""
    while _held:
        _held.pop().__exit__(None, None, None)
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class Code:
    """Linked machine code; it stays in memory as long as this object."""

    def __init__(self, engine: Any):
        self.engine = engine

    def address(self, name: str) -> int:
        """Return the address of the function `name`. It must be one of the names that were passed to `link`."""
        return int(self.engine[name])


def versions(options: CodeOptions) -> str:
    """Return a text with the versions of the compiler toolchain and the LLVM options `options`. Cache keys contain it,
    because generated code depends on both.
    """
    return f"{toolchain()} {options}"


def object_of(text: str, options: CodeOptions | None = None) -> bytes:
    """Return the object code of the LLVM IR `text`. It comes from the disk cache, or is compiled and stored there.
    `options` are LLVM's options (None: those for the CPU at hand).
    """
    options = options or host_options()
    key = disk.key_of("llvm", text, versions(options))
    code = disk.load(key)
    if code is None:
        from tilewright.runtime.codegen import HELPER

        code = HELPER.ask(options.request("object"), text)
        disk.store(key, code)
    return code


@cache
def _linker() -> Any:
    """Return LLVM's JIT linker for the CPU at hand. Every call returns the same object."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    options = host_options()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=options.cpu, features=options.features, opt=2, jit=True
    )
    # The older linker (RuntimeDyld) ends the process on AArch64 if code is too far from its target for a branch.
    return llvm.create_lljit_compiler(machine, use_jit_link=True, suppress_errors=False)


def link(data: bytes, names: tuple[str, ...]) -> Code:
    """Link the object code `data` into this process, and return the linked code. `names` are the functions for which
    `Code.address` works. Conversion functions that the code calls are linked too. Raise CodeGenerationError if a symbol
    is missing.
    """
    global _count
    import llvmlite.binding as llvm

    builder = llvm.JITLibraryBuilder().add_object_img(data).add_current_process()
    for name in names:
        builder = builder.export_symbol(name)
    if conversions.needed_by(data) and names != conversions.NAMES:
        for name, address in conversions.addresses().items():
            builder = builder.import_symbol(name, address)
    with _lock:
        _count += 1
        try:
            return Code(builder.link(_linker(), f"tilewright{_count}"))
        except RuntimeError as fault:
            raise CodeGenerationError(f"machine code could not be linked: {fault}") from None


def load_text(text: str) -> Code:
    """Compile the LLVM IR `text`, link it into this process, and return the linked code. `Code.address` works for all
    functions that `text` defines with external linkage and the result type void, ptr, i32 or i64.
    """
    names = tuple(re.findall(r"^define (?:void|ptr|i32|i64) @(\w+)", text, re.MULTILINE))
    return link(object_of(text), names)
