"""The output of the commands: tables that fit a terminal, or plain text columns elsewhere; and errors."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from tilewright.errors import ArgumentError

if TYPE_CHECKING:
    from rich.table import Table


def table(columns: Iterable[str], rows: Iterable[Iterable[str]], title: str | None = None) -> Table:
    """Return a rich table of `rows` (sequences of texts) under the headings `columns`, with `title` above (None: no
    title). Texts of the last column may wrap, other texts are never broken.
    """
    from rich.table import Table
    from rich.text import Text

    result = Table(
        title=title, box=None, title_justify="left", title_style="bold", pad_edge=False, padding=(0, 2, 0, 0)
    )
    names = list(columns)
    for name in names:
        result.add_column(name, overflow="fold", no_wrap=name != names[-1])
    for row in rows:
        result.add_row(*map(Text, row))
    return result


def show(*parts: Table | str) -> None:
    """Print `parts` (tables or texts) on the standard output, with an empty line between them. Lines are wrapped only
    on a terminal.
    """
    from rich.console import Console

    terminal = Console()
    if terminal.is_terminal:
        for index, part in enumerate(parts):
            terminal.print(*([""] if index else []), part, sep="\n", markup=False, highlight=False)
        return
    plain = Console(width=1000, no_color=True, force_terminal=False)
    for index, part in enumerate(parts):
        with plain.capture() as captured:
            plain.print(part, markup=False, highlight=False)
        typer.echo(("\n" if index else "") + "\n".join(line.rstrip() for line in captured.get().rstrip().splitlines()))


def is_file(text: str) -> bool:
    """True if `text` is the path of a file. False also for a text that cannot be a path, such as a very long one."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def read_text(path: Path, what: str) -> str:
    """Return the contents of the file `path` as text. Raise `ArgumentError` if the file cannot be read or is no UTF-8;
    `what` names the file in the message, such as "the plan".
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as fault:
        raise ArgumentError(f"{what} {path} cannot be read: {fault.strerror}") from None
    except UnicodeDecodeError as fault:
        raise ArgumentError(f"{what} {path} is no text: its byte {fault.start} is no UTF-8") from None


def fail(message: str) -> NoReturn:
    """Print `message` as an error and exit with code 2."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)
