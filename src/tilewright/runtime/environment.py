"""The environment variables that Tilewright reads.

>>> [v.name for v in VARIABLES][:2]
['TILEWRIGHT_CACHE_DIR', 'TILEWRIGHT_CACHE_MB']
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import ArgumentError
from tilewright.limits import WORKERS


@dataclass(frozen=True)
class Variable:
    """An environment variable: its name, meaning, default in words, and the function that parses its text."""

    name: str
    meaning: str
    default: str
    read: Callable[[str], Any]

    def text(self) -> str | None:
        """Return the text that the environment variable is set to; None if it is not set."""
        return os.environ.get(self.name)

    def value(self) -> Any:
        """Return the environment variable's value, parsed by `self.read`; None if it is not set or empty.

        Raise ArgumentError if the text cannot be parsed.
        """
        text = self.text()
        if text is None or text == "":
            return None
        try:
            return self.read(text)
        except ValueError as why:
            raise ArgumentError(f"{self.name}={text!r}: {self.meaning} ({self.default}); {why}") from None


def _count(text: str, most: int = 1 << 31) -> int:
    """Return `text` as an integer; raise ValueError unless it is a decimal number from 1 to `most`."""
    if not text.strip().isdecimal() or len(text) > 20 or not 1 <= int(text) <= most:
        raise ValueError(f"it is a number from 1 to {most}")
    return int(text)


def _folder(text: str) -> Path | None:
    """Return the folder that `text` names, with "~" expanded; None for "off".

    The folder need not exist. Raise ValueError for the home folder of an unknown user.
    """
    if text == "off":
        return None
    try:
        folder = Path(text).expanduser()
    except RuntimeError as fault:  # of a user that the system does not know
        raise ValueError(str(fault)) from None
    return folder


def _writable(text: str) -> Path | None:
    """Return the folder that `text` names, with "~" expanded; None for "off".

    Raise ValueError unless it is an existing folder, or could be created. Nothing is created here.
    """
    folder = _folder(text)
    if folder is None:
        return None
    existing = next((p for p in (folder, *folder.parents) if p.exists()), folder)
    if not existing.is_dir():
        raise ValueError(f"{existing} is no folder")
    if existing != folder and not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"no folder can be made in {existing}")
    return folder


CACHE_DIR = Variable(
    "TILEWRIGHT_CACHE_DIR",
    "where compiled programs are kept; `off` keeps none",
    "tilewright in $XDG_CACHE_HOME, or in ~/.cache",
    _folder,
)
CACHE_MB = Variable("TILEWRIGHT_CACHE_MB", "the most that compiled programs may take, in MB", "512", _count)
DUMP = Variable(
    "TILEWRIGHT_DUMP",
    "a folder into which every level of a program is written; `off` is none",
    "none",
    _writable,
)
THREADS = Variable(
    "TILEWRIGHT_THREADS",
    f"how many workers a program has, at most {WORKERS.most}",
    "one for each core",
    lambda text: _count(text, WORKERS.most),
)

VARIABLES = (CACHE_DIR, CACHE_MB, DUMP, THREADS)


def cache_folder() -> Path | None:
    """Return the folder of compiled programs; None if TILEWRIGHT_CACHE_DIR is "off", or if it is not set and the user
    has no home folder.

    Raise ArgumentError if the variable names the home folder of an unknown user.
    """
    if os.environ.get(CACHE_DIR.name) == "off":
        return None
    folder: Path | None = CACHE_DIR.value()
    return folder or _usual_cache_folder()


def _usual_cache_folder() -> Path | None:
    """Return the default folder of compiled programs; None for a user without a home folder.

    It is `tilewright` in $XDG_CACHE_HOME, if that is an absolute path, or else in ~/.cache.
    """
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if Path(caches).is_absolute():  # its specification says that any other value is ignored
        return Path(caches) / "tilewright"
    try:
        return Path.home() / ".cache" / "tilewright"
    except RuntimeError:
        return None


def cache_bytes() -> int:
    """Return the most bytes that compiled programs may take on disk: TILEWRIGHT_CACHE_MB, or 512 MB if that is not set.

    Raise ArgumentError if the variable is not a number from 1 on.
    """
    return int(CACHE_MB.value() or 512) << 20


def dump_folder() -> Path | None:
    """Return the folder that TILEWRIGHT_DUMP names for program texts; None if it is not set or "off".

    Raise ArgumentError if it is no folder and cannot be created.
    """
    folder: Path | None = DUMP.value()
    return folder


def threads() -> int:
    """Return the number of workers of a program on a CPU: TILEWRIGHT_THREADS, or one for each core that this process
    may use, at most `WORKERS.most`.

    Raise ArgumentError if the variable is not a number from 1 to `WORKERS.most`.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return int(THREADS.value() or min(cores or 1, WORKERS.most))
