"""What machine code depends on besides the program it is made from: the compiler's own files, llvmlite and LLVM."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from tilewright._version import __version__


@cache
def toolchain() -> str:
    """Who compiles, as text: it differs whenever the machine code of one program may.

    >>> toolchain().split(" ")[0] == __version__, "LLVM" in toolchain()
    (True, True)
    """
    import llvmlite
    import llvmlite.binding as llvm

    linked = ".".join(map(str, llvm.llvm_version_info))
    own = content_of(Path(__file__).parents[1])
    return f"{__version__} {own} llvmlite {llvmlite.__version__} LLVM {linked}"


def content_of(folder: Path) -> str:
    """A hash of every Python file below a folder, by name and content: wherever the folder lies, whenever it was
    written. Who works on a pass must not be given the code of an older one, and two checkouts share what is equal.
    """
    names = []
    for place, _, files in os.walk(folder):
        inside = place[len(str(folder)) :].replace(os.sep, "/")
        names += [f"{inside}/{name}" for name in files if name.endswith(".py")]
    found = hashlib.sha256()
    for name in sorted(names):
        data = Path(f"{folder}{name}").read_bytes()
        found.update(f"{len(name)} {name} {len(data)} ".encode() + data)
    return found.hexdigest()[:32]
