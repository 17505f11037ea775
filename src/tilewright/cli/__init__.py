"""The command line: `tilewright COMMAND`, one file per command."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright._version import __version__
from tilewright.cli.bench import bench
from tilewright.cli.cache import cache
from tilewright.cli.draw import draw
from tilewright.cli.environment import environment
from tilewright.cli.export import export
from tilewright.cli.run import run
from tilewright.cli.show import show
from tilewright.cli.targets import targets

app = typer.Typer(
    name="tilewright",
    help="Tilewright: a tile-kernel language and compiler for convolution and matrix product.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (run, show, export, bench, draw, targets, cache, environment):
    app.command()(command)


def _print_version(wanted: bool) -> None:
    """Print the version and exit if `wanted` is True, that is, if `--version` was given; otherwise do nothing."""
    if wanted:
        typer.echo(f"tilewright {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Tilewright: a tile-kernel language and compiler for convolution and matrix product."""


def main() -> None:
    """Run the command that the process's arguments name (`tilewright run ...`), then exit the process with the
    command's exit code.
    """
    app(prog_name="tilewright")
