"""The entry of a module for a CPU that code runs on: found in the cache, or made."""

from __future__ import annotations

import json

from tilewright.codegen.entry.decided import decided
from tilewright.ir.core import Program
from tilewright.runtime import cache as disk
from tilewright.runtime.codegen import HELPER
from tilewright.targets.cpu.entry import NAME, EntryCode
from tilewright.targets.cpu.exported import Launched, entry_texts
from tilewright.targets.cpu.load import versions
from tilewright.targets.cpu.target import CpuTarget


def entry_code(host: Program, launched: Launched, target: CpuTarget, *, laid_out: bool = False) -> EntryCode:
    """The linked functions of a host program; `launched` tells the machine code of its launches.

    `laid_out` says that arrays lie as the programs' arguments say, and are not packed.
    """
    host = decided(host)
    launches = {op: launched(op) for op in host.walk() if op.name == "launch"}
    programs = [f"{kernel.program}{[str(c.that) for c in conditions]}" for kernel, conditions in launches.values()]
    parts = target.machine.name, str(host), *programs, f"{laid_out}"
    key = disk.key_of("entry", *parts, versions(target.options))
    kernels = list(dict.fromkeys(kernel for kernel, _ in launches.values()))
    kept = None if any(kernel.dump.wanted for kernel in kernels) else disk.load(key)
    if kept is None:
        texts, entry = entry_texts(NAME, host, launches.__getitem__, target.machine, apart=True, laid_out=laid_out)
        code = HELPER.ask(target.options.request("object"), texts.text + "\n")
        for kernel in kernels:
            kernel.write_assembly()
        places = {op: place for place, op in enumerate(host.walk())}
        checks = {code: places[op] for code, op in entry.checks.items()}
        header = {
            "slow": list(dict.fromkeys(reason for kernel in kernels for reason in kernel.slow)),
            "faults": [[f.code, f.says, checks.get(f.code)] for f in entry.faults],
        }
        kept = json.dumps(header).encode() + b"\n" + code
        disk.store(key, kept)
    return EntryCode(key, kept)
