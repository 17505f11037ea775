"""The assembler that tests may use: ptxas from a wheel (the extra `ptxas`), or the one that PTXAS names."""

from __future__ import annotations

import os
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path


def ptxas() -> Path | None:
    """Where it is; None: it is not installed."""
    named = os.environ.get("PTXAS")
    if named:
        return Path(named)
    spec = find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    for folder in folders:
        for place in ("cuda_nvcc/bin/ptxas", "cu13/bin/ptxas"):
            found = Path(folder) / place
            if found.exists():
                return found
    return None


def assembled(text: str, architecture: str) -> str:
    """What the assembler says of a PTX text: registers, spills, warnings."""
    found = ptxas()
    assert found is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(text)
        command = [
            str(found),
            f"-arch={architecture}",
            "-v",
            "-O3",
            str(source),
            "-o",
            str(source.with_suffix(".cubin")),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said
