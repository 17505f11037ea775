"""The command line as a shell meets it: `python -m tilewright`, and completion."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import tilewright


def started(*arguments: str, **variables: str) -> str:
    """What a process of its own prints."""
    run = subprocess.run(
        [sys.executable, "-m", "tilewright", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_package_runs_as_a_module():
    assert started("--version") == f"tilewright {tilewright.__version__}\n"
    assert "Usage: tilewright " in started("--help")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("tilewright sh", {"show"}),
        ("tilewright ", {"run", "show", "export", "bench", "draw", "targets", "cache", "environment"}),
        ("tilewright show --level p", {"plan"}),
        ("tilewright bench resnet", {"resnet_50"}),
    ],
)
def test_a_shell_completes_commands_and_names(line, wanted):
    words = line.split(" ")
    found = started(_TILEWRIGHT_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert wanted <= set(found.split())


def test_completion_can_be_installed():
    assert "--install-completion" in started("--help")
    assert "_TILEWRIGHT_COMPLETE" in started(
        "--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1"
    )
