"""PTX to machine code (cubin) and readable machine instructions (SASS), by NVIDIA's ptxas and nvdisasm if installed."""

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
    """Return the path of NVIDIA's tool `name`: from a variable of the environment (PTXAS, NVDISASM), or from a Python
    package (the extra `sass`); None if it is in neither."""
    named = os.environ.get(name.upper())
    if named:
        return Path(named)
    spec = find_spec("nvidia")
    folders = [Path(f) / p for f in (spec.submodule_search_locations or () if spec is not None else ()) for p in PLACES]
    return next((f / name for f in folders if (f / name).exists()), None)


def tool(name: str) -> Path | None:
    """Return the path of NVIDIA's tool `name`: as `in_wheel`, else on the PATH or in the CUDA toolkit; None if there is
    none."""
    path = in_wheel(name)
    if path is not None:
        return path
    on_path = shutil.which(name) or shutil.which(name, path=TOOLKIT)
    return None if on_path is None else Path(on_path)


def disassembled(ptx: str, architecture: str) -> str:
    """Return the machine instructions (SASS) for a PTX text, as nvdisasm prints them."""
    tools = _tools("sass", "ptxas", "nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        code = _assembled("sass", tools["ptxas"], ptx, architecture, Path(folder))
        return _run("sass", [str(tools["nvdisasm"]), "-c", str(code)])


def assembled(ptx: str, architecture: str) -> bytes:
    """Return the machine code (cubin) for a PTX text."""
    tools = _tools("cubin", "ptxas")
    with tempfile.TemporaryDirectory() as folder:
        return _assembled("cubin", tools["ptxas"], ptx, architecture, Path(folder)).read_bytes()


def _tools(what: str, *names: str) -> dict[str, Path]:
    """Return {name: path} of NVIDIA's tools; raise TargetError if one is missing. `what` is the output asked for, for
    the message."""
    paths = {name: tool(name) for name in names}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        extra = "the extra `sass` brings both" if len(names) > 1 else "the extra `ptxas` brings it"
        raise TargetError(
            f"{what}: {' and '.join(missing)} of NVIDIA's toolkit is not on the path; {extra}, and `ptx` needs "
            f"{'neither' if len(names) > 1 else 'none'}"
        )
    return {name: path for name, path in paths.items() if path is not None}


def _assembled(what: str, assembler: Path, ptx: str, architecture: str, folder: Path) -> Path:
    """Write the cubin for a PTX text to a folder with the tool `assembler`; return its path."""
    source, code = folder / "kernel.ptx", folder / "kernel.cubin"
    source.write_text(ptx)
    _run(what, [str(assembler), f"-arch={architecture}", "-O3", str(source), "-o", str(code)])
    return code


def _run(what: str, command: list[str]) -> str:
    """Run a command and return its output; raise TargetError with its message if it fails."""
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise TargetError(f"{what}: {Path(command[0]).name} says: {(process.stderr or process.stdout).strip()[:300]}")
    return process.stdout
