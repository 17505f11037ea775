"""What commands print: tables that fit a terminal, and plain columns for everything else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from tilewright.errors import ArgumentError

if TYPE_CHECKING:
    from rich.table import Table


def table(columns: Iterable[str], rows: Iterable[Iterable[str]], title: str | None = None) -> Table:
    """Rows under their headings; the last column takes what room there is."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title, box=None, title_justify="left", title_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    names = list(columns)
    for name in names:
        made.add_column(name, overflow="fold", no_wrap=name != names[-1])
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def show(*parts: Table | str) -> None:
    """Prints parts with an empty line between them; where no terminal reads, lines are as long as they are."""
    from rich.console import Console

    terminal = Console()
    if terminal.is_terminal:
        for place, part in enumerate(parts):
            terminal.print(*([""] if place else []), part, sep="\n", markup=False, highlight=False)
        return
    plain = Console(width=1000, no_color=True, force_terminal=False)
    for place, part in enumerate(parts):
        with plain.capture() as kept:
            plain.print(part, markup=False, highlight=False)
        typer.echo(("\n" if place else "") + "\n".join(line.rstrip() for line in kept.get().rstrip().splitlines()))


def read_text(path: Path, what: str) -> str:
    """The text of a file that an argument names."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as fault:
        raise ArgumentError(f"{what} {path} cannot be read: {fault.strerror}") from None
    except UnicodeDecodeError as fault:
        raise ArgumentError(f"{what} {path} is no text: its byte {fault.start} is no UTF-8") from None


def fail(message: str) -> NoReturn:
    """Ends the command with a message."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)
