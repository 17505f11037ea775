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
        """Return a Dump for the program `name`, which writes to the folder in TILEWRIGHT_DUMP; it writes nothing if
        that is not set.

        Raise ArgumentError if the variable names no folder that can be written.
        """
        return cls(environment.dump_folder(), name)

    @property
    def wanted(self) -> bool:
        """True if `write` writes files, because a folder is set."""
        return self.folder is not None

    def write(self, step: str, level: str, text: Callable[[], str]) -> None:
        """Log the pass `step`, and write the program's text after it to a numbered file if a folder is set.

        `level` is the IR level of the text ("tile", "block") and becomes the file's suffix. `text()` returns the text;
        it is called only if a file is written. Raise ArgumentError if the file cannot be written.
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
