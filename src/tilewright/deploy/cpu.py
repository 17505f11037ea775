"""Kernels for CPUs as files: an object or a shared library, a C header and a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilewright.algebra.expr import Const
from tilewright.algebra.expr_use import Substitution
from tilewright.codegen.entry.abi import ALIGNMENT
from tilewright.codegen.entry.plan import COUNT
from tilewright.codegen.entry.write import WrittenEntry
from tilewright.deploy.files import write_whole
from tilewright.deploy.header import header_text
from tilewright.deploy.manifest import manifest_text
from tilewright.deploy.source import Exported, ExportSource, common_manifest
from tilewright.machine import Machine
from tilewright.targets.cpu.exported import exported_object
from tilewright.targets.cpu.families import family_of
from tilewright.targets.cpu.objects import shared_library


def export_cpu(source: ExportSource, name: str, path: Path, form: tuple[str, str]) -> Exported:
    """Writes the code in a format, with its suffix, then the header, then the manifest."""
    machine: Machine = source.device.target.machine

    def launched(op: Any) -> Any:
        found = source.launchable(op)
        return found.kernel, found.conditions

    made = exported_object(name, source.host, launched, machine)
    kind, suffix = form
    place = path.with_suffix(suffix)
    code = made.code if kind == "object" else shared_library(made.code, place.name)
    manifest = common_manifest(source, name, kind, place, code, machine) | _interface(made.entry)
    manifest["machine"] |= {
        "architectures": [*family_of(machine).architectures] or [str(made.options.triple).partition("-")[0]],
        "triple": made.options.triple,
    }
    tiles = family_of(machine).tiles
    if tiles is not None and machine.limits.tile_registers:
        manifest["machine"]["before_use"] = tiles.before_use
    called, bound = made.entry.called, made.entry.bound
    for argument in manifest["arguments"]:
        argument |= {"bound": argument["name"] in bound, "called": argument["name"] in called}
    header = path.with_suffix(".h")
    write_whole(place, code)
    write_whole(header, header_text(manifest).encode())
    listed = path.with_suffix(".json")
    write_whole(listed, manifest_text(manifest).encode())
    return Exported(place, header, listed, manifest)


def _interface(entry: WrittenEntry) -> dict[str, Any]:
    """Return the manifest's entries of memory and codes."""
    most = Substitution({COUNT: entry.most_workers})
    kept, workspace = (most(e) for e in (entry.kept_bytes, entry.workspace_bytes))
    return {
        "alignment": ALIGNMENT,
        "kept_bytes": kept.value if isinstance(kept, Const) else None,
        "workspace_bytes": workspace.value if isinstance(workspace, Const) else None,
        "workers": entry.most_workers,
        "errors": {str(f.code): f.says for f in entry.faults},
    }
