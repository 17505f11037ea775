"""The folder that compiled programs are kept in: marked as Tilewright's, and written by no one else.

Machine code that is loaded runs with all that the user may do, so it matters who may have written it; and what is
removed to make room must be the cache's own. Both are asked here, before anything is loaded, kept or removed.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tilewright.errors import CacheError, CacheWarning

MARKER = "CACHEDIR.TAG"
_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55"  # the first line that backup tools look for
_LINE = "# Compiled programs of Tilewright. `tilewright cache --clear` removes them, and nothing else that lies here."
_ENTRY = re.compile(r"[0-9a-f]{64}")
_SHELF = re.compile(r"[0-9a-f]{2}")
_UNFINISHED = re.compile(r"\.new-[a-z0-9_]{8}")
_PREFIX = ".new-"
_warned: set[str] = set()


def is_unfinished(path: Path) -> bool:
    """Whether a file is one that a process writes, or was killed over."""
    return _UNFINISHED.fullmatch(path.name) is not None


def files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Every file below the folder that the cache wrote: whole entries and unfinished ones; links are not followed."""
    for shelf in _listed(folder):
        if _SHELF.fullmatch(shelf.name) and shelf.is_dir(follow_symlinks=False):
            for file in _listed(Path(shelf.path)):
                if _is_own(file, shelf.name):
                    yield file
        elif _UNFINISHED.fullmatch(shelf.name) and shelf.is_file(follow_symlinks=False):
            yield shelf  # a marker that was being written


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as found:
        return sorted(found, key=lambda entry: entry.name)
    return []


def _is_own(file: os.DirEntry[str], shelf: str) -> bool:
    named = _ENTRY.fullmatch(file.name) is not None and file.name.startswith(shelf)
    return (named or _UNFINISHED.fullmatch(file.name) is not None) and file.is_file(follow_symlinks=False)


# -- whose folder it is -------------------------------------------------------------------------------


def is_folder(path: Path) -> bool:
    """Whether there is a folder of that name that this user can see."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        return False


def refusal(folder: Path) -> str | None:
    """Why nothing is kept in a folder or removed from it; None where it is the cache's, or is not there yet."""
    if not os.path.lexists(folder):
        return None
    if not is_folder(folder):
        return f"{folder} is no folder"
    if _is_marked(folder):
        return None
    foreign = _foreign(folder)
    if foreign is None or _is_marked(folder):  # another process may have marked it meanwhile
        return None
    return (
        f"{folder} holds what Tilewright did not write ({foreign}) and has no {MARKER} of Tilewright's: "
        "name an empty folder, or one that is not there yet, in TILEWRIGHT_CACHE_DIR"
    )


def require(folder: Path) -> None:
    """Raises unless the folder is the cache's."""
    why = refusal(folder)
    if why is not None:
        raise CacheError(why)


def _is_marked(folder: Path) -> bool:
    try:
        lines = (folder / MARKER).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return lines[:1] == [_SIGNATURE] and _LINE in lines


def _foreign(folder: Path) -> str | None:
    """The first name in an unmarked folder that is not the cache's."""
    for entry in _listed(folder):
        if _UNFINISHED.fullmatch(entry.name):
            continue
        if not (_SHELF.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)):
            return entry.name
        for file in _listed(Path(entry.path)):
            if not _is_own(file, entry.name):
                return f"{entry.name}/{file.name}"
    return None


def claim(folder: Path) -> None:
    """Makes the folder, for this user alone, and marks it; one that is there must not be refused."""
    if not is_folder(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_marked(folder):
        replace_file(folder / MARKER, f"{_SIGNATURE}\n{_LINE}\n".encode())


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file beside its place and moves it there in one step; what is not finished does not stay."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_PREFIX)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


# -- who may have written what lies there ---------------------------------------------------------------


def distrust(path: Path, state: os.stat_result) -> str | None:
    """Why machine code is not loaded from a file or folder: someone else may have written it.

    Where the system knows no user numbers (`os.getuid`), nothing is known against any file.
    """
    if not hasattr(os, "getuid"):
        return None
    if state.st_uid != os.getuid():
        return f"{path} belongs to user {state.st_uid}, and this process runs as user {os.getuid()}"
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(state.st_mode)
        return f"others may write {path} (mode {mode:04o}): `chmod go-w {path}` ends that"
    return None


def warn_once(why: str) -> None:
    """Says, once in this process, why the cache is not used."""
    if why not in _warned:
        _warned.add(why)
        warnings.warn(f"the cache of compiled programs is not used: {why}", CacheWarning, stacklevel=2)
