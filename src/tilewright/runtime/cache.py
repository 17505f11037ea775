"""Cache of compiled programs on disk: named by a hash of their input, verified by a hash of their content.

Entries are written to a temporary file and renamed, so that concurrent and killed processes leave only complete
entries. A damaged entry counts as absent and is replaced. Files that other users own or may write are not loaded, and a
folder that is not the cache's is not touched (`cache_folder`): a warning is given once, and programs are compiled as if
there were no cache.
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
"""Seconds after which an unfinished entry is assumed to belong to a killed process."""
_stored: int | None = None  # bytes stored since this process last measured the folder; None: never


def key_of(*parts: str) -> str:
    """Return the name of a cache entry: a SHA-256 hash of the texts `parts`, on which the entry depends.

    >>> key_of("program", "features") == key_of("program", "features"), key_of("ab", "c") == key_of("a", "bc")
    (True, False)
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def load(key: str) -> bytes | None:
    """Return the content of the cache entry `key`, and set its time of use to now. Return None if it cannot be used.

    It cannot be used in three cases: there is no cache or no such entry; the entry is damaged; or another user may have
    written it. A CacheWarning is given in the last case, and if the cache's folder cannot be used.
    """
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
        os.utime(path)  # eviction removes the least recently used
    _LOG.debug("%s: found, %d bytes", key[:12], len(payload))
    return payload


def _open_no_link(path: str, flags: int) -> int:
    """Open the file `path` with the flags `flags` of os.open, and return its descriptor. Raise OSError if `path` is a
    symbolic link, on systems with O_NOFOLLOW."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))


def store(key: str, payload: bytes) -> None:
    """Write `payload` as the cache entry `key`, and remove old entries if the cache is too large.

    Do nothing if there is no cache or the entry cannot be written. Give a CacheWarning if the cache's folder cannot be
    used.
    """
    folder = _usable(environment.cache_folder(), key)
    if folder is None:
        return
    try:
        claim(folder)
    except OSError as fault:
        warn_once(f"{folder} cannot be made or written: {fault.strerror}; TILEWRIGHT_CACHE_DIR names another, or `off`")
        return
    try:
        subfolder = folder / key[:2]
        subfolder.mkdir(mode=0o700, exist_ok=True)
        replace_file(subfolder / key, _MARK + hashlib.sha256(payload).digest() + payload)
    except OSError:
        return
    _LOG.debug("%s: stored, %d bytes", key[:12], len(payload))
    _tidy(folder, len(payload))


def why_not_used(folder: Path, key: str = "") -> str | None:
    """Return a text that says why `folder` is not used as the cache; None if it is.

    The text is the one of `refusal` if there is one: `folder` is no folder, or contains files that the cache did not
    write and has no marker file. Otherwise it says that another user owns the folder or may write to it, or does so for
    the subfolder with the entry `key`.
    """
    why = refusal(folder)
    for place in (folder, folder / key[:2]):
        if why is None:
            with suppress(OSError):  # it is not there yet
                why = distrust(place, place.stat())
    return why


def _usable(folder: Path | None, key: str) -> Path | None:
    """Return `folder` if it may be used as the cache; else give a CacheWarning and return None.

    If `folder` is None, return None without a warning. `key` is the entry that is needed.
    """
    why = None if folder is None else why_not_used(folder, key)
    if why is not None:
        warn_once(why)
        return None
    return folder


def _tidy(folder: Path, size: int) -> None:
    """Remove old entries of the cache in `folder` if it has become too large, after an entry of `size` bytes was
    stored.

    Measuring the folder takes time. It is done when a process stores its first entry, and again each time that more
    than 1/32 of the allowed bytes were stored since.
    """
    global _stored
    limit = environment.cache_bytes()
    _stored = None if _stored is None else _stored + size
    if _stored is None or _stored > limit // 32:
        _stored = 0
        _keep_within(folder, limit)


def entries(folder: Path) -> list[tuple[float, int, Path]]:
    """Return [(time of last use, bytes, path)] of every cache entry in `folder`, unfinished ones too, in no fixed
    order.

    Times are in seconds since 1970. Other files are skipped.
    """
    states = []
    for file in files(folder):
        with suppress(OSError):
            state = file.stat(follow_symlinks=False)
            states.append((state.st_mtime, state.st_size, Path(file.path)))
    return states


def _keep_within(folder: Path, most: int) -> None:
    """Remove entries of the cache in `folder`, until it has at most `most` bytes.

    First, unfinished entries of killed processes are removed. If more than `most` bytes remain, the least recently used
    entries follow, until the others have at most 90 % of `most` bytes.
    """
    kept_entries = []
    for entry in entries(folder):
        if is_unfinished(entry[2]) and entry[0] < time.time() - _ABANDONED_S:
            with suppress(OSError):
                entry[2].unlink()
        else:
            kept_entries.append(entry)
    total = sum(size for _, size, _ in kept_entries)
    if total <= most:
        return
    for _, size, path in sorted(kept_entries, key=lambda entry: entry[0]):
        with suppress(OSError):
            path.unlink()
        total -= size
        if total <= 0.9 * most:
            return


def clear() -> int:
    """Remove every cache entry and return how many entries there were; 0 if there is no cache.

    Raise CacheError if the folder contains files that the cache did not write, and has no marker file.
    """
    folder = environment.cache_folder()
    if folder is None or not is_folder(folder):
        return 0
    require(folder)
    removed = entries(folder)
    for _, _, path in removed:
        with suppress(OSError):
            path.unlink()
    return len(removed)
