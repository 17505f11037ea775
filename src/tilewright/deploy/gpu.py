"""Export of kernels for GPUs: the code of each program, and a manifest with the host program that launches them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.deploy.files import write_whole
from tilewright.deploy.manifest import digest, manifest_text
from tilewright.deploy.source import Exported, ExportSource, common_manifest
from tilewright.errors import ArgumentError
from tilewright.ir.binding import inlined
from tilewright.ir.core import Block, Program
from tilewright.targets.registry import stored_kernels


def export_gpu(source: ExportSource, name: str, path: Path, form: tuple[str, str]) -> Exported:
    """Write the code of each program that `source` launches, and a manifest, to files; return their paths and the
    content of the manifest.

    `name` is the kernel's name. `path` is the code's file of the main program, the last one launched. The files of
    other programs have their names before the suffix; the manifest has the suffix .json. `form` is (format, suffix):
    ("ptx", ".ptx") or ("cubin", ".cubin"). Raise ArgumentError if nothing is launched, if a program is launched with
    several settings, or if a file cannot be written.
    """
    file_format, suffix = form
    launched: dict[str, Any] = {}
    for op in source.host.walk():
        if op.name == "launch":
            launchable = source.launchable(op)
            if launched.setdefault(launchable.program.name, launchable) is not launchable:
                raise ArgumentError(
                    f"{name}: {launchable.program.name} is launched with several settings; an exported kernel for a "
                    "GPU has one code for each program: give the others names of their own"
                )
    if not launched:
        raise ArgumentError(f"{name} launches nothing; there is nothing to export")
    *_, main = launched
    machine = launched[main].kernel.target.machine
    stored, maker = stored_kernels(machine)
    rows, codes = [], {}
    for program, launchable in launched.items():
        code_file = path.with_suffix(suffix) if program == main else path.with_suffix(f".{program}{suffix}")
        codes[program] = code = stored.code_of(launchable.kernel, file_format)
        write_whole(code_file, code)
        rows.append(
            {
                "name": program,
                "file": code_file.name,
                "bytes": len(code),
                "sha256": digest(code),
                "head": str(_head(launchable.program)),
                "launch": stored.launch_record(launchable.kernel.emitted),
                "conditions": [[str(c.that), c.reason] for c in launchable.kernel.conditions],
            }
        )
    code_file = path.with_suffix(suffix)
    manifest = common_manifest(source, name, file_format, code_file, codes[main], machine)
    for argument in manifest["arguments"]:
        argument["alignment"] = stored.ALIGNMENT
    manifest["machine"] |= {"maker": maker, "cores": machine.limits.cores}
    manifest |= {"host": str(source.host), "programs": rows}
    manifest_file = path.with_suffix(".json")
    write_whole(manifest_file, manifest_text(manifest).encode())
    return Exported(code_file, None, manifest_file, manifest)


def _head(program: Program) -> Program:
    """Return `program` without operations: its arguments, parameters and `require` records, with `let` names replaced
    by their expressions."""
    expanded = inlined(program)
    records = [r for r in expanded.records if r.name in ("param", "require")]
    return replace(expanded, body=Block((), []), records=records)
