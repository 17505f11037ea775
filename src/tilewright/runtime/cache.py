"""Compiled programs on disk: found by a hash of what they were made from, and checked by one of what they are.

Entries are written beside their place and moved there in one step, so several processes, and ones that are killed,
leave only whole entries. A damaged one counts as not there, and is replaced. What others own or may write is not
loaded, and a folder that is not the cache's is left alone (`cache_folder`): one warning says so, and programs are
compiled as if there were no cache.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from tilewright.runtime import environment
from tilewright.runtime.cache_folder import (
    claim,
    distrust,
    files,
    is_folder,
    is_unfinished,
    refusal,
    replace_file,
    require,
    warn_once,
)

_LOG = logging.getLogger("tilewright.cache")
_MARK = b"tilewright-1\n"
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
    """The entry, if it is there and whole, and no one else can have written it."""
    folder = _usable(environment.cache_folder(), key)
    if folder is None:
        return None
    path = folder / key[:2] / key
    try:
        with open(path, "rb", opener=_open_no_link) as file:
            why = distrust(path, os.fstat(file.fileno()))
            data = file.read() if why is None else b""
    except OSError:
        return None
    if why is not None:
        warn_once(why)
        return None
    if not data.startswith(_MARK) or len(data) < len(_MARK) + 32:
        return None
    digest, payload = data[len(_MARK) : len(_MARK) + 32], data[len(_MARK) + 32 :]
    if hashlib.sha256(payload).digest() != digest:
        return None
    with suppress(OSError):
        os.utime(path)  # what is used stays longest
    _LOG.debug("%s: found, %d bytes", key[:12], len(payload))
    return payload


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))


def store(key: str, payload: bytes) -> None:
    """Keeps an entry; a disk that is full or read-only is no reason to fail, nor a folder that cannot be made."""
    folder = _usable(environment.cache_folder(), key)
    if folder is None:
        return
    try:
        claim(folder)
    except OSError as fault:
        warn_once(f"{folder} cannot be made or written: {fault.strerror}; TILEWRIGHT_CACHE_DIR names another, or `off`")
        return
    try:
        place = folder / key[:2]
        place.mkdir(mode=0o700, exist_ok=True)
        replace_file(place / key, _MARK + hashlib.sha256(payload).digest() + payload)
    except OSError:
        return
    _LOG.debug("%s: stored, %d bytes", key[:12], len(payload))
    _tidy(folder, len(payload))


def why_not_used(folder: Path, key: str = "") -> str | None:
    """Why entries are neither loaded from a folder nor kept there; None where they are.

    The folder must be the cache's, and with the shelf of the key belong to this user, who alone may write it.
    """
    why = refusal(folder)
    for place in (folder, folder / key[:2]):
        if why is None:
            with suppress(OSError):  # it is not there yet
                why = distrust(place, place.stat())
    return why


def _usable(folder: Path | None, key: str) -> Path | None:
    """The folder, where it is used; a warning says why it is not."""
    why = None if folder is None else why_not_used(folder, key)
    if why is not None:
        warn_once(why)
        return None
    return folder


def _tidy(folder: Path, size: int) -> None:
    """Looks at the whole folder now and then: at a process's first entry, and after each 1/32 of what is allowed."""
    global _stored
    most = environment.cache_bytes()
    _stored = None if _stored is None else _stored + size
    if _stored is None or _stored > most // 32:
        _stored = 0
        _keep_within(folder, most)


def entries(folder: Path) -> list[tuple[float, int, Path]]:
    """(last use, bytes, path) of every entry, unfinished ones included; files of others in the folder are none."""
    found = []
    for file in files(folder):
        with suppress(OSError):
            state = file.stat(follow_symlinks=False)
            found.append((state.st_mtime, state.st_size, Path(file.path)))
    return found


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
    """Removes every entry, and nothing else; gives how many there were. A folder that is not the cache's is refused."""
    folder = environment.cache_folder()
    if folder is None or not is_folder(folder):
        return 0
    require(folder)
    found = entries(folder)
    for _, _, path in found:
        with suppress(OSError):
            path.unlink()
    return len(found)
