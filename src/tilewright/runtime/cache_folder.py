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
    """True if the name of the file `path` is that of a temporary file, `.new-` and eight characters.

    A process that writes a cache entry uses such a file, and leaves it behind if it is killed.
    """
    return _UNFINISHED.fullmatch(path.name) is not None


def files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield an os.DirEntry for every file of the cache below `folder`: entries, and temporary files.

    Links, files with other names, and the marker file are skipped. A folder that cannot be read counts as empty.
    """
    for shelf in _listed(folder):
        if _SHELF.fullmatch(shelf.name) and shelf.is_dir(follow_symlinks=False):
            for file in _listed(Path(shelf.path)):
                if _is_own(file, shelf.name):
                    yield file
        elif _UNFINISHED.fullmatch(shelf.name) and shelf.is_file(follow_symlinks=False):
            yield shelf  # an unfinished marker file


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    """Return the os.DirEntry of each file and folder in `folder`, sorted by name; [] if it cannot be read."""
    with suppress(OSError), os.scandir(folder) as scan:
        return sorted(scan, key=lambda entry: entry.name)
    return []


def _is_own(file: os.DirEntry[str], shelf: str) -> bool:
    """True if `file`, in the subfolder named `shelf`, is a file of the cache: a cache entry or a temporary file, and no
    link.

    The name of an entry is 64 hexadecimal digits, of which the first two are the subfolder's name.
    """
    named = _ENTRY.fullmatch(file.name) is not None and file.name.startswith(shelf)
    return (named or _UNFINISHED.fullmatch(file.name) is not None) and file.is_file(follow_symlinks=False)


# -- whose folder it is -------------------------------------------------------------------------------


def is_folder(path: Path) -> bool:
    """True if `path` is a folder. False if it does not exist or cannot be examined."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        return False


def refusal(folder: Path) -> str | None:
    """Return a text that says why `folder` must not be used as the cache; None if it may be used.

    It may be used if it does not exist, has Tilewright's marker file, or contains nothing but cache files.
    """
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
    """Raise CacheError if `refusal` gives a reason why `folder` must not be used as the cache."""
    why = refusal(folder)
    if why is not None:
        raise CacheError(why)


def _is_marked(folder: Path) -> bool:
    """True if `folder` has the marker file with which Tilewright marks its cache. False also if that file cannot be
    read."""
    try:
        lines = (folder / MARKER).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return lines[:1] == [_SIGNATURE] and _LINE in lines


def _foreign(folder: Path) -> str | None:
    """Return the relative path of the first file or folder in `folder` that the cache did not write; None if there is
    none.

    The order is by name. The marker file counts as not written by the cache: `folder` must not have one.
    """
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
    """Create `folder` if it does not exist, and write the marker file if it has none, so that it counts as the cache.

    A new folder is accessible to this user only. The content of `folder` is not checked: call `refusal` first. Raise
    OSError if it cannot be created or written.
    """
    if not is_folder(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_marked(folder):
        replace_file(folder / MARKER, f"{_SIGNATURE}\n{_LINE}\n".encode())


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` to the file `path` atomically: to a temporary file in the same folder, which is then renamed.

    Raise OSError if that fails; no temporary file is left then.
    """
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
    """Return a text that says why machine code is not loaded from `path`; None if it may be loaded.

    It is not loaded if another user owns the path, or if others (group or world) may write to it. `state` is the stat
    result of `path`. On systems without user numbers (`os.getuid`) the answer is always None.
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
    """Give a CacheWarning that the cache is not used, for the reason `why`. Each reason is reported once in a
    process."""
    if why not in _warned:
        _warned.add(why)
        warnings.warn(f"the cache of compiled programs is not used: {why}", CacheWarning, stacklevel=2)
