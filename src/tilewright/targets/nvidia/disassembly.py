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


def packaged_tool(name: str) -> Path | None:
    """Return the path of NVIDIA's tool `name` ("ptxas" or "nvdisasm"), from the environment variable PTXAS or NVDISASM,
    else from an installed Python package. Return None if neither has the tool. The path in the variable is not checked.
    """
    named = os.environ.get(name.upper())
    if named:
        return Path(named)
    spec = find_spec("nvidia")
    folders = [Path(f) / p for f in (spec.submodule_search_locations or () if spec is not None else ()) for p in PLACES]
    return next((f / name for f in folders if (f / name).exists()), None)


def tool(name: str) -> Path | None:
    """Return the path of NVIDIA's tool `name` ("ptxas" or "nvdisasm"). It comes from an environment variable or a
    Python package (see `packaged_tool`), else from the PATH, else from the CUDA toolkit. Return None if the tool is not
    found.
    """
    path = packaged_tool(name)
    if path is not None:
        return path
    on_path = shutil.which(name) or shutil.which(name, path=TOOLKIT)
    return None if on_path is None else Path(on_path)


def disassembled(ptx: str, architecture: str) -> str:
    """Return the machine instructions (SASS) of the PTX text `ptx`, as printed by nvdisasm. `architecture` is a name
    such as "sm_90a". Raise TargetError if ptxas or nvdisasm is missing or fails.
    """
    tools = _tools("sass", "ptxas", "nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        code = _assembled("sass", tools["ptxas"], ptx, architecture, Path(folder))
        return _run("sass", [str(tools["nvdisasm"]), "-c", str(code)])


def assembled(ptx: str, architecture: str) -> bytes:
    """Return the machine code (cubin) that ptxas generates from the PTX text `ptx`. `architecture` is a name such as
    "sm_90a". Raise TargetError if ptxas is missing or fails.
    """
    tools = _tools("cubin", "ptxas")
    with tempfile.TemporaryDirectory() as folder:
        return _assembled("cubin", tools["ptxas"], ptx, architecture, Path(folder)).read_bytes()


def _tools(what: str, *names: str) -> dict[str, Path]:
    """Return {name: path} of the NVIDIA tools `names`. Raise TargetError if one of them is not installed. `what` is the
    output that the caller wants, "sass" or "cubin"; the message names it.
    """
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
    """Run `assembler`, the path of ptxas, on the PTX text `ptx` for `architecture`, such as "sm_90a". Return the path
    of the cubin file, which is written to `folder`. Raise TargetError if ptxas fails; the message begins with `what`.
    """
    source, code = folder / "kernel.ptx", folder / "kernel.cubin"
    source.write_text(ptx)
    _run(what, [str(assembler), f"-arch={architecture}", "-O3", str(source), "-o", str(code)])
    return code


def _run(what: str, command: list[str]) -> str:
    """Run `command`, and return its standard output. Raise TargetError with the command's message if it fails. The
    error begins with `what`, the output that the caller wants.
    """
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise TargetError(f"{what}: {Path(command[0]).name} says: {(process.stderr or process.stdout).strip()[:300]}")
    return process.stdout
