"""Compiled programs on disk: found by a hash of what they were made from, and checked by one of what they are.

Entries are written beside their place and moved there in one step, so several processes, and ones that are killed,
leave only whole entries. A damaged one counts as not there, and is replaced.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tilewright.runtime import environment

_MARK = b"tilewright-1\n"
_UNFINISHED = ".new-"
_ABANDONED_S = 3600.0
"""An unfinished entry of this age belongs to a process that was killed."""
_stored: int | None = None  # bytes stored since this process last looked at the whole folder; None: it has not yet


def key_of(*parts: str) -> str:
    """The name of an entry: a hash of everything that it depends on.

    >>> key_of("program", "features") == key_of("program", "features"), key_of("ab", "c") == key_of("a", "bc")
    (True, False)
    """
    found = hashlib.sha256()
    for part in parts:
        data = part.encode()
        found.update(len(data).to_bytes(8, "little") + data)
    return found.hexdigest()


def load(key: str) -> bytes | None:
    """The entry, if it is there and whole."""
    folder = environment.cache_folder()
    if folder is None:
        return None
    path = folder / key[:2] / key
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if not data.startswith(_MARK) or len(data) < len(_MARK) + 32:
        return None
    digest, payload = data[len(_MARK) : len(_MARK) + 32], data[len(_MARK) + 32 :]
    if hashlib.sha256(payload).digest() != digest:
        return None
    with suppress(OSError):
        os.utime(path)  # what is used stays longest
    return payload


def store(key: str, payload: bytes) -> None:
    """Keeps an entry; a disk that is full or read-only is no reason to fail."""
    folder = environment.cache_folder()
    if folder is None:
        return
    try:
        place = folder / key[:2]
        place.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place, prefix=_UNFINISHED)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MARK + hashlib.sha256(payload).digest() + payload)
            Path(name).replace(place / key)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError:
        return
    _tidy(folder, len(payload))


def _tidy(folder: Path, size: int) -> None:
    """Looks at the whole folder now and then: at a process's first entry, and after each 1/32 of what is allowed."""
    global _stored
    most = environment.cache_bytes()
    _stored = None if _stored is None else _stored + size
    if _stored is None or _stored > most // 32:
        _stored = 0
        _keep_within(folder, most)


def entries(folder: Path) -> list[tuple[float, int, Path]]:
    """(last use, bytes, path) of every entry, unfinished ones included."""
    found = []
    with suppress(OSError):
        for shelf in [path for path in folder.iterdir() if len(path.name) == 2]:
            with suppress(OSError), os.scandir(shelf) as files:
                for file in files:
                    with suppress(OSError):
                        state = file.stat(follow_symlinks=False)
                        found.append((state.st_mtime, state.st_size, Path(file.path)))
    return found


def is_unfinished(path: Path) -> bool:
    """Whether a file is one that a process writes, or was killed over."""
    return path.name.startswith(_UNFINISHED)


def _keep_within(folder: Path, most: int) -> None:
    """Removes what killed processes left behind, and what was not used for longest until the rest fits."""
    found = []
    for entry in entries(folder):
        if is_unfinished(entry[2]) and entry[0] < time.time() - _ABANDONED_S:
            with suppress(OSError):
                entry[2].unlink()
        else:
            found.append(entry)
    total = sum(size for _, size, _ in found)
    if total <= most:
        return
    for _, size, path in sorted(found, key=lambda entry: entry[0]):
        with suppress(OSError):
            path.unlink()
        total -= size
        if total <= 0.9 * most:
            return


def clear() -> int:
    """Removes every entry; gives how many there were."""
    folder = environment.cache_folder()
    if folder is None or not folder.exists():
        return 0
    found = entries(folder)
    for _, _, path in found:
        with suppress(OSError):
            path.unlink()
    return len(found)
