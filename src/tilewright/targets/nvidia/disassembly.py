"""PTX as the machine's own instructions (SASS), to be read: by ptxas and nvdisasm, where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tilewright.errors import TargetError

PLACES = ("cuda_nvcc/bin", "cu13/bin")
TOOLKIT = "/usr/local/cuda/bin"


def in_wheel(name: str) -> Path | None:
    """Where a tool of NVIDIA's is: named by a variable (PTXAS, NVDISASM), or in a wheel (the extra `sass`)."""
    named = os.environ.get(name.upper())
    if named:
        return Path(named)
    spec = find_spec("nvidia")
    folders = [Path(f) / p for f in (spec.submodule_search_locations or () if spec is not None else ()) for p in PLACES]
    return next((f / name for f in folders if (f / name).exists()), None)


def tool(name: str) -> Path | None:
    """The same, or on the path, or in the toolkit."""
    found = in_wheel(name)
    if found is not None:
        return found
    on_path = shutil.which(name) or shutil.which(name, path=TOOLKIT)
    return None if on_path is None else Path(on_path)


def disassembled(ptx: str, architecture: str) -> str:
    """The instructions that the assembler makes of a PTX text."""
    found = _tools("sass", "ptxas", "nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        code = _assembled("sass", found["ptxas"], ptx, architecture, Path(folder))
        return _run("sass", [str(found["nvdisasm"]), "-c", str(code)])


def assembled(ptx: str, architecture: str) -> bytes:
    """The machine code (cubin) that the assembler makes of a PTX text."""
    found = _tools("cubin", "ptxas")
    with tempfile.TemporaryDirectory() as folder:
        return _assembled("cubin", found["ptxas"], ptx, architecture, Path(folder)).read_bytes()


def _tools(what: str, *names: str) -> dict[str, Path]:
    """Return the paths of tools; raises where one that is needed for `what` is missing."""
    found = {name: tool(name) for name in names}
    missing = [name for name, place in found.items() if place is None]
    if missing:
        extra = "the extra `sass` brings both" if len(names) > 1 else "the extra `ptxas` brings it"
        raise TargetError(
            f"{what}: {' and '.join(missing)} of NVIDIA's toolkit is not on the path; {extra}, and `ptx` needs "
            f"{'neither' if len(names) > 1 else 'none'}"
        )
    return {name: place for name, place in found.items() if place is not None}


def _assembled(what: str, assembler: Path, ptx: str, architecture: str, folder: Path) -> Path:
    source, code = folder / "kernel.ptx", folder / "kernel.cubin"
    source.write_text(ptx)
    _run(what, [str(assembler), f"-arch={architecture}", "-O3", str(source), "-o", str(code)])
    return code


def _run(what: str, command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TargetError(f"{what}: {Path(command[0]).name} says: {(done.stderr or done.stdout).strip()[:300]}")
    return done.stdout
