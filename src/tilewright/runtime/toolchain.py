"""What machine code depends on besides the program it is made from: the compiler's own files, llvmlite and LLVM."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tilewright._version import __version__
from tilewright.runtime import cache as cache_of_programs


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

    The cache remembers the hash by the files' sizes and times of change, unless one was changed just now: it may be
    changed again within what the system's clock tells apart.
    """
    states = sorted(_states(str(folder), ""))
    key = cache_of_programs.key_of("content", str(folder), f"{states}")
    known = cache_of_programs.load(key)
    if known is not None:
        return known.decode()
    found = hashlib.sha256()
    for name, *_ in states:
        data = Path(f"{folder}{name}").read_bytes()
        found.update(f"{len(name)} {name} {len(data)} ".encode() + data)
    content = found.hexdigest()[:32]
    if all(max(times) < time.time_ns() - _JUST_NOW for _, _, *times in states):
        cache_of_programs.store(key, content.encode())
    return content


_JUST_NOW = 3_000_000_000
"""Nanoseconds."""


def _states(folder: str, inside: str) -> Iterator[tuple[str, int, int, int]]:
    """(name, bytes, times of writing and of any change) of every Python file below a folder.

    A program can set the first of these times, as copies do, but on most systems not the second.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{inside}/{entry.name}"
            if entry.is_dir():
                yield from _states(entry.path, name)
            elif entry.name.endswith(".py"):
                state = entry.stat()
                yield name, state.st_size, state.st_mtime_ns, state.st_ctime_ns
