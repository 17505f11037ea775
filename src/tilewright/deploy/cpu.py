"""Export of kernels for CPUs: an object or a shared library, a C header and a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilewright.algebra.expr import Const
from tilewright.algebra.expr_use import Substitution
from tilewright.codegen.entry.abi import ALIGNMENT
from tilewright.codegen.entry.plan import COUNT
from tilewright.codegen.entry.tvm_ffi import PREFIX
from tilewright.codegen.entry.write import WrittenEntry
from tilewright.deploy.files import write_whole
from tilewright.deploy.header import header_text
from tilewright.deploy.manifest import manifest_text
from tilewright.deploy.source import Exported, ExportSource, common_manifest
from tilewright.machine import Machine
from tilewright.targets.cpu.exported import exported_object
from tilewright.targets.cpu.families import family_of
from tilewright.targets.cpu.objects import shared_library


def export_cpu(
    source: ExportSource, name: str, path: Path, form: tuple[str, str], *, tvm_ffi: bool = False
) -> Exported:
    """Write a kernel's machine code, C header and manifest to files; return their paths and the content of the
    manifest.

    `source` is the program to export, `name` its name in C. `form` is (format, suffix) of the code's file: ("object",
    ".o") or ("shared", ".so"). The files are `path` with that suffix, with .h and with .json. With `tvm_ffi`, the code
    also has the function that TVM-FFI calls. Raise ArgumentError if a file cannot be written.
    """
    machine: Machine = source.device.target.machine

    def launched(op: Any) -> Any:
        """Return (machine code, conditions on open sizes) of the program that the launch operation `op` launches."""
        program = source.launchable(op)
        return program.kernel, program.conditions

    written = exported_object(name, source.host, launched, machine, tvm_ffi=tvm_ffi)
    file_format, suffix = form
    code_file = path.with_suffix(suffix)
    code = written.code if file_format == "object" else shared_library(written.code, code_file.name)
    manifest = common_manifest(source, name, file_format, code_file, code, machine) | _interface(written.entry)
    manifest["tvm_ffi"] = f"{PREFIX}{name}" if tvm_ffi else None
    manifest["machine"] |= {
        "architectures": [*family_of(machine).architectures] or [str(written.options.triple).partition("-")[0]],
        "triple": written.options.triple,
    }
    tiles = family_of(machine).tiles
    if tiles is not None and machine.limits.tile_registers:
        manifest["machine"]["before_use"] = tiles.before_use
    called, bound = written.entry.called, written.entry.bound
    for argument in manifest["arguments"]:
        argument |= {"bound": argument["name"] in bound, "called": argument["name"] in called}
    header = path.with_suffix(".h")
    write_whole(code_file, code)
    write_whole(header, header_text(manifest).encode())
    manifest_file = path.with_suffix(".json")
    write_whole(manifest_file, manifest_text(manifest).encode())
    return Exported(code_file, header, manifest_file, manifest)


def _interface(entry: WrittenEntry) -> dict[str, Any]:
    """Return the manifest's entries on the memory that callers lend, the largest number of workers, and the error
    codes.

    They are {"alignment", "kept_bytes", "workspace_bytes", "workers", "errors"}, in bytes and with {code as text:
    message} for the errors. `entry` has the kernel's C functions. A number of bytes that depends on the call's sizes is
    None.
    """
    most = Substitution({COUNT: entry.most_workers})
    kept, workspace = (most(e) for e in (entry.kept_bytes, entry.workspace_bytes))
    return {
        "alignment": ALIGNMENT,
        "kept_bytes": kept.value if isinstance(kept, Const) else None,
        "workspace_bytes": workspace.value if isinstance(workspace, Const) else None,
        "workers": entry.most_workers,
        "errors": {str(f.code): f.says for f in entry.faults},
    }
