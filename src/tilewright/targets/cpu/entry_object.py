"""The machine-code entry of a module for a CPU: from the cache, or compiled."""

from __future__ import annotations

import json

from tilewright.codegen.entry.decided import without_unreachable
from tilewright.ir.core import Program
from tilewright.runtime import cache as disk
from tilewright.runtime.codegen import HELPER
from tilewright.targets.cpu.entry import NAME, EntryCode
from tilewright.targets.cpu.exported import Launched, entry_texts
from tilewright.targets.cpu.load import versions
from tilewright.targets.cpu.target import CpuTarget


def entry_code(host: Program, launched: Launched, target: CpuTarget, *, laid_out: bool = False) -> EntryCode:
    """Return the linked machine code of the host program `host` and of all programs that it launches.

    The code is loaded from the disk cache, or compiled and stored there. It is always compiled if a dump of one of the
    kernels is wanted, and the assembly of the kernels is then written too.

    `launched(op)` returns (kernel, conditions on open sizes) for a launch operation. `target` has the machine and
    compile options. If `laid_out`, arrays have the strides that the arguments of the programs declare; otherwise arrays
    are contiguous.
    """
    host = without_unreachable(host)
    launches = {op: launched(op) for op in host.walk() if op.name == "launch"}
    programs = [f"{kernel.program}{[str(c.that) for c in conditions]}" for kernel, conditions in launches.values()]
    parts = target.machine.name, str(host), *programs, f"{laid_out}"
    key = disk.key_of("entry", *parts, versions(target.options))
    kernels = list(dict.fromkeys(kernel for kernel, _ in launches.values()))
    cached = None if any(kernel.dump.wanted for kernel in kernels) else disk.load(key)
    if cached is None:
        texts, entry = entry_texts(NAME, host, launches.__getitem__, target.machine, is_serial=True, laid_out=laid_out)
        code = HELPER.ask(target.options.request("object"), texts.text + "\n")
        for kernel in kernels:
            kernel.write_assembly()
        numbers = {op: place for place, op in enumerate(host.walk())}
        checks = {code: numbers[op] for code, op in entry.checks.items()}
        header = {
            "slow": list(dict.fromkeys(reason for kernel in kernels for reason in kernel.slow)),
            "faults": [[f.code, f.says, checks.get(f.code)] for f in entry.faults],
        }
        cached = json.dumps(header).encode() + b"\n" + code
        disk.store(key, cached)
    return EntryCode(key, cached)
