"""`TILEWRIGHT_DUMP`: every level of a program written to a folder, numbered by pass; the passes are logged anyway."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable
from pathlib import Path

from tilewright.runtime import environment

_LOG = logging.getLogger("tilewright.compile")
_count = itertools.count()


class Dump:
    """Where one program's levels are written, in order; a folder of None writes nothing."""

    def __init__(self, folder: Path | None, name: str = "program"):
        self.folder, self.name, self.step = folder, name, 0
        self.number = next(_count) if folder is not None else 0

    @classmethod
    def of(cls, name: str) -> Dump:
        """The dump that the environment asks for."""
        return cls(environment.dump_folder(), name)

    @property
    def wanted(self) -> bool:
        """Whether anything is written."""
        return self.folder is not None

    def write(self, step: str, level: str, text: Callable[[], str]) -> None:
        """Writes a level after a step; logs the step."""
        _LOG.debug("%s: %s, %s", self.name, step, level)
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{os.getpid()}-{self.number:03d}-{self.name}-{self.step:02d}-{step}.{level}"
        path.write_text(text())
        self.step += 1
