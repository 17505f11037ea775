"""`TILEWRIGHT_DUMP`: the text of a program after every pass, written to a folder; passes are always logged."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable
from pathlib import Path

from tilewright.errors import ArgumentError
from tilewright.runtime import environment

_LOG = logging.getLogger("tilewright.compile")
_count = itertools.count()


class Dump:
    """Writes the texts of one program after each pass to numbered files in a folder; `folder` None writes nothing."""

    def __init__(self, folder: Path | None, name: str = "program"):
        self.folder, self.name, self.step = folder, name, 0
        self.number = next(_count) if folder is not None else 0

    @classmethod
    def of(cls, name: str) -> Dump:
        """Return the dump of the program `name` to the folder that the environment variable names, if it does."""
        return cls(environment.dump_folder(), name)

    @property
    def wanted(self) -> bool:
        """True if texts are written to files."""
        return self.folder is not None

    def write(self, step: str, level: str, text: Callable[[], str]) -> None:
        """Log a pass, by its name `step`, and write the program's text after it to a file.

        `level` is the level of the text (tile, block, ...), `text` a function that returns it.
        """
        _LOG.debug("%s: %s, %s", self.name, step, level)
        if self.folder is None:
            return
        path = self.folder / f"{os.getpid()}-{self.number:03d}-{self.name}-{self.step:02d}-{step}.{level}"
        content = text()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        except OSError as fault:
            raise ArgumentError(f"TILEWRIGHT_DUMP={self.folder}: {path} cannot be written: {fault.strerror}") from None
        self.step += 1
