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
    """Return the path of NVIDIA's tool `name` ("ptxas" or "nvdisasm"). It is taken from the environment variable of
    that name (PTXAS, NVDISASM), else from an installed Python package (the extra `sass`). None if it is in neither.
    """
    named = os.environ.get(name.upper())
    if named:
        return Path(named)
    spec = find_spec("nvidia")
    folders = [Path(f) / p for f in (spec.submodule_search_locations or () if spec is not None else ()) for p in PLACES]
    return next((f / name for f in folders if (f / name).exists()), None)


def tool(name: str) -> Path | None:
    """Return the path of NVIDIA's tool `name`: from an environment variable or a Python package (see `in_wheel`), else
    on the PATH or in the CUDA toolkit. None if there is none.
    """
    path = in_wheel(name)
    if path is not None:
        return path
    on_path = shutil.which(name) or shutil.which(name, path=TOOLKIT)
    return None if on_path is None else Path(on_path)


def disassembled(ptx: str, architecture: str) -> str:
    """Return the machine instructions (SASS) for a PTX text, as nvdisasm prints them. `architecture` is a name such as
    "sm_90a". Raise TargetError if ptxas or nvdisasm is missing or fails.
    """
    tools = _tools("sass", "ptxas", "nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        code = _assembled("sass", tools["ptxas"], ptx, architecture, Path(folder))
        return _run("sass", [str(tools["nvdisasm"]), "-c", str(code)])


def assembled(ptx: str, architecture: str) -> bytes:
    """Return the machine code (cubin) that ptxas makes of a PTX text. `architecture` is a name such as "sm_90a". Raise
    TargetError if ptxas is missing or fails.
    """
    tools = _tools("cubin", "ptxas")
    with tempfile.TemporaryDirectory() as folder:
        return _assembled("cubin", tools["ptxas"], ptx, architecture, Path(folder)).read_bytes()


def _tools(what: str, *names: str) -> dict[str, Path]:
    """Return {name: path} of the NVIDIA tools `names`; raise TargetError if one is not installed. `what` names the
    wanted output ("sass", "cubin") in the message.
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
    """Run the tool `assembler` (ptxas) on a PTX text, and return the path of the cubin that it wrote to `folder`.
    `what` names the wanted output in the message of the TargetError that is raised if the tool fails.
    """
    source, code = folder / "kernel.ptx", folder / "kernel.cubin"
    source.write_text(ptx)
    _run(what, [str(assembler), f"-arch={architecture}", "-O3", str(source), "-o", str(code)])
    return code


def _run(what: str, command: list[str]) -> str:
    """Run `command` and return its standard output. Raise TargetError with the command's message if it fails; `what`
    names the wanted output in it.
    """
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise TargetError(f"{what}: {Path(command[0]).name} says: {(process.stderr or process.stdout).strip()[:300]}")
    return process.stdout
