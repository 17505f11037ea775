"""The assembler that tests may use: ptxas from a wheel (the extra `ptxas`), or the one that PTXAS names."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tilewright.targets.nvidia.disassembly import packaged_tool


def ptxas() -> Path | None:
    """Where it is; None: it is not installed."""
    return packaged_tool("ptxas")


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
