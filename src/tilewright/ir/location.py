"""Source locations of operations: recorded cheaply, resolved to line and columns only when they are shown."""

from __future__ import annotations

import contextlib
import linecache
import sys
import warnings
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_PACKAGE = str(Path(__file__).parent.parent)
_OURS_TO_SHOW = tuple(str(Path(_PACKAGE) / folder) for folder in ("kernels", "wave/templates"))


class Location:
    """A position in Python code: a code object and a bytecode offset, from which line and columns follow."""

    __slots__ = ("code", "instruction", "line")

    def __init__(self, code: CodeType, instruction: int, line: int):
        self.code, self.instruction, self.line = code, instruction, line

    @property
    def file(self) -> str:
        """The path of the source file, as a string."""
        return self.code.co_filename

    @property
    def columns(self) -> tuple[int, int]:
        """The pair (first column, last column + 1) of the source expression on its line, counted from 0.

        If Python recorded no columns, the pair covers the line without its indentation. If the expression has several
        lines, the pair ends at the end of the first line.
        """
        positions = list(self.code.co_positions())
        first, last, first_column, last_column = positions[self.instruction // 2]
        text = self.text
        indent = len(text) - len(text.lstrip())
        if first_column is None or last_column is None or first != self.line:
            return indent, len(text.rstrip())
        return first_column, last_column if last == first else len(text.rstrip())

    @property
    def text(self) -> str:
        """The source line, without its newline; "" if the file cannot be read."""
        return linecache.getline(self.file, self.line).rstrip("\n")

    def pointing(self) -> str:
        """Return three lines for error messages: file and line number, the source line, carets under the expression.

        If the source line cannot be read, return only the line with file and line number.
        """
        head = f'  File "{self.file}", line {self.line}, in {self.code.co_name}'
        if not self.text.strip():
            return head
        begin, end = self.columns
        indent = len(self.text) - len(self.text.lstrip())
        carets = " " * (begin - indent) + "^" * max(1, end - begin)
        return f"{head}\n    {self.text.strip()}\n    {carets}"

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"

    def __copy__(self) -> Location:
        return self

    def __deepcopy__(self, memo: Any) -> Location:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return RememberedLocation, (self.pointing(), str(self))


class RememberedLocation:
    """A position in Python code that was unpickled: only its text is known."""

    __slots__ = ("name", "shown")

    def __init__(self, shown: str, name: str):
        self.shown, self.name = shown, name

    def pointing(self) -> str:
        """Return the lines for error messages that were stored when the location was pickled: file, source line and
        carets.
        """
        return self.shown

    def __str__(self) -> str:
        return self.name


class TextLocation:
    """A position in a program's text: an offset `at` into `source`, resolved to line and column when it is shown."""

    __slots__ = ("at", "source")

    def __init__(self, source: str, at: int):
        self.source, self.at = source, at

    @property
    def line(self) -> int:
        """The number of the line in the program's text, counted from 1."""
        return self.source.count("\n", 0, self.at) + 1

    @property
    def text(self) -> str:
        """The line of the program's text in which the position lies, without its newline."""
        start = self.source.rfind("\n", 0, self.at) + 1
        end = self.source.find("\n", self.at)
        return self.source[start : len(self.source) if end < 0 else end]

    def pointing(self) -> str:
        """Return three lines for error messages: the line number, the line, a caret under the position."""
        start = self.source.rfind("\n", 0, self.at) + 1
        indent = len(self.text) - len(self.text.lstrip())
        return f"  line {self.line}:\n    {self.text.strip()}\n    {' ' * (self.at - start - indent)}^"

    def __str__(self) -> str:
        return f"line {self.line}"


def author_location(depth: int = 1) -> Location | None:
    """Return the location of the innermost stack frame outside Tilewright (the author's code); None if there is none.

    The search starts `depth` frames above this function: 1 is the caller.
    """
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        if not _is_ours(frame):
            return Location(frame.f_code, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return None


def warn_author(what: str, category: type[Warning]) -> None:
    """Emit the warning `what`, a message, with the class `category`, so that it points at the author's line.

    That is the line of the innermost stack frame outside Tilewright.
    """
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and _is_ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(what, category, stacklevel=level)


def _is_ours(frame: FrameType) -> bool:
    """True if `frame`, a stack frame, runs code of Tilewright, or of contextlib (`with` statements call Tilewright
    through it).

    False for the kernels and templates that Tilewright ships: messages may point at their lines.
    """
    name = frame.f_code.co_filename
    ours = name.startswith(_PACKAGE) or name == contextlib.__file__  # `with` runs our functions through it
    return ours and not name.startswith(_OURS_TO_SHOW)


def of_function(function: Any) -> Location:
    """Return the location of the first line of `function`, a Python function."""
    code = function.__code__
    return Location(code, 0, code.co_firstlineno)
