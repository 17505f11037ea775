"""Checks of the cache folder: it is marked as Tilewright's, and no other user may write to it.

Loaded machine code runs with the user's permissions, so no one else may have written it, and only the cache's own files
may be removed. Both are checked here, before anything is loaded, stored or removed.
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
    """True if a file is a temporary file of a process that is writing an entry, or was killed while doing so."""
    return _UNFINISHED.fullmatch(path.name) is not None


def files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield every file of the cache below the folder, complete entries and temporary files; links are skipped."""
    for shelf in _listed(folder):
        if _SHELF.fullmatch(shelf.name) and shelf.is_dir(follow_symlinks=False):
            for file in _listed(Path(shelf.path)):
                if _is_own(file, shelf.name):
                    yield file
        elif _UNFINISHED.fullmatch(shelf.name) and shelf.is_file(follow_symlinks=False):
            yield shelf  # an unfinished marker file


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, sorted by name; none if it cannot be read."""
    with suppress(OSError), os.scandir(folder) as scan:
        return sorted(scan, key=lambda entry: entry.name)
    return []


def _is_own(file: os.DirEntry[str], shelf: str) -> bool:
    """True if a file has the name of a cache entry of the subfolder `shelf`, or of a temporary file."""
    named = _ENTRY.fullmatch(file.name) is not None and file.name.startswith(shelf)
    return (named or _UNFINISHED.fullmatch(file.name) is not None) and file.is_file(follow_symlinks=False)


# -- whose folder it is -------------------------------------------------------------------------------


def is_folder(path: Path) -> bool:
    """True if the path is a folder that this user can see."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        return False


def refusal(folder: Path) -> str | None:
    """Return why a folder must not be used as the cache; None if it is the cache's or does not exist."""
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
    """Raise CacheError unless the folder is the cache's or does not exist."""
    why = refusal(folder)
    if why is not None:
        raise CacheError(why)


def _is_marked(folder: Path) -> bool:
    """True if the folder holds Tilewright's marker file."""
    try:
        lines = (folder / MARKER).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return lines[:1] == [_SIGNATURE] and _LINE in lines


def _foreign(folder: Path) -> str | None:
    """Return the first name in an unmarked folder that is not the cache's; None if there is none."""
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
    """Create the folder, for this user alone, and mark it as the cache's; call `refusal` first."""
    if not is_folder(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_marked(folder):
        replace_file(folder / MARKER, f"{_SIGNATURE}\n{_LINE}\n".encode())


def replace_file(path: Path, data: bytes) -> None:
    """Write a temporary file and rename it to `path`, so that readers never see a part of `data`."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_PREFIX)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    finally:
        with suppress(OSError):
            Path(name).unlink(missing_ok=True)


# -- who may have written its files ---------------------------------------------------------------------


def distrust(path: Path, state: os.stat_result) -> str | None:
    """Return why machine code is not loaded from a path: another user may have written it; None if it may be.

    `state` is the path's stat result. On systems without user numbers (`os.getuid`) every file is trusted.
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
    """Warn, once a process for each reason, that the cache is not used."""
    if why not in _warned:
        _warned.add(why)
        warnings.warn(f"the cache of compiled programs is not used: {why}", CacheWarning, stacklevel=2)
