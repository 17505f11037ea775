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


@dataclass(frozen=True)
class Variable:
    """One variable: its name, what it means, its default in words, and how its text is read."""

    name: str
    meaning: str
    default: str
    read: Callable[[str], Any]

    def value(self) -> Any:
        """What it is set to, or None."""
        text = os.environ.get(self.name)
        if text is None or text == "":
            return None
        try:
            return self.read(text)
        except ValueError:
            raise ArgumentError(f"{self.name}={text!r}: {self.meaning} ({self.default})") from None


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


CACHE_DIR = Variable(
    "TILEWRIGHT_CACHE_DIR",
    "where compiled programs are kept; `off` keeps none",
    "~/.cache/tilewright",
    lambda text: None if text == "off" else Path(text).expanduser(),
)
CACHE_MB = Variable("TILEWRIGHT_CACHE_MB", "the most that compiled programs may take, in MB", "512", _count)
DUMP = Variable(
    "TILEWRIGHT_DUMP",
    "a folder into which every level of a program is written",
    "none",
    lambda text: Path(text).expanduser(),
)
THREADS = Variable("TILEWRIGHT_THREADS", "how many workers a program has", "one for each core", _count)

VARIABLES = (CACHE_DIR, CACHE_MB, DUMP, THREADS)


def cache_folder() -> Path | None:
    """Where compiled programs are kept; None: nowhere."""
    if os.environ.get(CACHE_DIR.name) == "off":
        return None
    found: Path | None = CACHE_DIR.value()
    return found or Path.home() / ".cache" / "tilewright"


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
    return int(THREADS.value() or cores or 1)
