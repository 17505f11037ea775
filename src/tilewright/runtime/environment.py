"""Every environment variable that Tilewright reads, in one place.

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
    """One variable: its name, what it means, its default in words, and how its text is read."""

    name: str
    meaning: str
    default: str
    read: Callable[[str], Any]

    def text(self) -> str | None:
        """The text that it is set to; None: it is not set."""
        return os.environ.get(self.name)

    def value(self) -> Any:
        """What it is set to, or None."""
        text = self.text()
        if text is None or text == "":
            return None
        try:
            return self.read(text)
        except ValueError as why:
            raise ArgumentError(f"{self.name}={text!r}: {self.meaning} ({self.default}); {why}") from None


def _count(text: str, most: int = 1 << 31) -> int:
    if not text.strip().isdecimal() or len(text) > 20 or not 1 <= int(text) <= most:
        raise ValueError(f"it is a number from 1 to {most}")
    return int(text)


def _folder(text: str) -> Path | None:
    """The folder that a text names; `off` is none."""
    if text == "off":
        return None
    try:
        folder = Path(text).expanduser()
    except RuntimeError as fault:  # of a user that the system does not know
        raise ValueError(str(fault)) from None
    return folder


def _writable(text: str) -> Path | None:
    """A folder that is there, or can be made."""
    folder = _folder(text)
    if folder is None:
        return None
    there = next((p for p in (folder, *folder.parents) if p.exists()), folder)
    if not there.is_dir():
        raise ValueError(f"{there} is no folder")
    if there != folder and not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"no folder can be made in {there}")
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
    """Where compiled programs are kept; None: nowhere."""
    if os.environ.get(CACHE_DIR.name) == "off":
        return None
    found: Path | None = CACHE_DIR.value()
    return found or _usual_cache_folder()


def _usual_cache_folder() -> Path | None:
    """The folder for caches of this user; None for one who has no home."""
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if Path(caches).is_absolute():  # anything else is to be ignored, says its specification
        return Path(caches) / "tilewright"
    try:
        return Path.home() / ".cache" / "tilewright"
    except RuntimeError:
        return None


def cache_bytes() -> int:
    """The most that compiled programs may take."""
    return int(CACHE_MB.value() or 512) << 20


def dump_folder() -> Path | None:
    """Where levels are written to, if they are."""
    found: Path | None = DUMP.value()
    return found


def threads() -> int:
    """How many workers a program has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return int(THREADS.value() or min(cores or 1, WORKERS.most))
