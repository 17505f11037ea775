"""`tilewright environment`: list every environment variable that Tilewright reads."""

from __future__ import annotations

import os

import typer

from tilewright.cli.printing import show, table


def environment() -> None:
    """List the environment variables of Tilewright: meaning, default and current value.

    The exit code is 1 if a variable has a value that cannot be read.
    """
    from tilewright.errors import ArgumentError
    from tilewright.runtime.environment import VARIABLES

    faults = []
    for variable in VARIABLES:
        try:
            variable.value()
        except ArgumentError as fault:
            faults.append(str(fault))
    rows = [(v.name, os.environ.get(v.name) or "-", v.default, v.meaning) for v in VARIABLES]
    show(table(("name", "value", "default", "meaning"), rows))
    for text in faults:
        typer.echo(f"error: {text}", err=True)
    if faults:
        raise typer.Exit(1)
