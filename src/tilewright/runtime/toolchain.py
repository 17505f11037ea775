"""The versions that machine code depends on besides its program: the compiler's files, llvmlite and LLVM."""

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
    """Return one text with all versions that machine code depends on, for cache keys; computed once in a process.

    It has the compiler's version and the hash of its files, and the versions of llvmlite and LLVM.

    >>> toolchain().split(" ")[0] == __version__, "LLVM" in toolchain()
    (True, True)
    """
    import llvmlite
    import llvmlite.binding as llvm

    llvm_version = ".".join(map(str, llvm.llvm_version_info))
    files_hash = content_of(Path(__file__).parents[1])
    return f"{__version__} {files_hash} llvmlite {llvmlite.__version__} LLVM {llvm_version}"


def content_of(folder: Path) -> str:
    """Return a hash, 32 hexadecimal digits, of the names and contents of all Python files below `folder`.

    It does not depend on the folder's path. The hash is stored in the disk cache, under a key of the folder's path and
    the files' names, sizes and times of change. It is not stored if a file was changed in the last 3 seconds, since a
    further change might get the same time.
    """
    states = sorted(_states(str(folder), ""))
    key = cache_of_programs.key_of("content", str(folder), f"{states}")
    cached = cache_of_programs.load(key)
    if cached is not None:
        return cached.decode()
    hasher = hashlib.sha256()
    for name, *_ in states:
        data = Path(f"{folder}{name}").read_bytes()
        hasher.update(f"{len(name)} {name} {len(data)} ".encode() + data)
    content = hasher.hexdigest()[:32]
    if all(max(times) < time.time_ns() - _JUST_NOW for _, _, *times in states):
        cache_of_programs.store(key, content.encode())
    return content


_JUST_NOW = 3_000_000_000
"""Nanoseconds after a change of a file during which its hash is not cached."""


def _states(folder: str, inside: str) -> Iterator[tuple[str, int, int, int]]:
    """Yield (name, bytes, time of writing, time of any change) of every Python file in `folder` and its subfolders.

    Times are in nanoseconds since 1970. A name is `inside`, a slash and the path relative to `folder`. Programs that
    copy files can set the time of writing, but mostly not the time of any change.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{inside}/{entry.name}"
            if entry.is_dir():
                yield from _states(entry.path, name)
            elif entry.name.endswith(".py"):
                state = entry.stat()
                yield name, state.st_size, state.st_mtime_ns, state.st_ctime_ns
