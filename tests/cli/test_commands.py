"""`tilewright targets`, `tilewright cache` and `tilewright environment`: what they print, and their exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilewright.cli import app
from tilewright.runtime import cache as disk
from tilewright.runtime import environment
from tilewright.targets import registry
from tilewright.targets.cpu import families, host, target
from tilewright.targets.cpu.families import is_cpu
from tilewright.targets.registry import machine


def tilewright(*arguments: str, code: int = 0, **variables: str) -> tuple[str, str]:
    """Runs a command; what it printed, and what it complained."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80", "NO_COLOR": "1", **variables})
    assert result.exit_code == code, result.output
    assert "\x1b" not in result.stdout
    return result.stdout, result.stderr


def rows(printed: str) -> dict[str, str]:
    """Lines by their first word."""
    return {line.split()[0]: line for line in printed.splitlines() if line.strip()}


@pytest.mark.parametrize("command", ["targets", "cache", "environment"])
def test_each_command_is_listed_and_has_help(command: str) -> None:
    assert command in tilewright("--help")[0]
    assert command in tilewright(command, "--help")[0]
    assert tilewright(command, "surplus", code=2)[1]


# -- targets --------------------------------------------------------------------------------------------------


def test_targets_lists_every_machine_and_the_atoms_of_this_cpu() -> None:
    printed, _ = tilewright("targets")
    found = rows(printed)
    assert set(registry.MACHINES) <= set(found)
    assert set(host.host_machine().multiply) <= set(found)
    assert host.host_machine().name in found["machine"]
    for name in registry.MACHINES:
        if not is_cpu(name):
            wanted = "can be read here" if name in ("ampere", "hopper") else "described; the interpreter runs them"
            assert wanted in found[name] or "run here" in found[name]


CPUS = {
    "x86.amx": machine("x86.amx").features,
    "x86.avx512f.avx512vnni": machine("x86.avx512f").features | {"avx512vnni"},
    "x86.avx2": machine("x86.avx2").features,
    "aarch64.neon": machine("aarch64.neon").features,
    "aarch64.neon.fullfp16.dotprod": machine("aarch64.neon.fullfp16.dotprod").features,
    "portable": frozenset(),
}


@pytest.mark.parametrize("name", CPUS)
def test_targets_on_cpus_with_more_and_less(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = families.family(name.partition(".")[0])
    monkeypatch.setattr(host, "features", lambda: CPUS[name])
    for place in (host, target):
        monkeypatch.setattr(place, "host_family", lambda: family)
    monkeypatch.setattr(target, "features", lambda: CPUS[name])
    found = rows(tilewright("targets")[0])
    assert found["machine"].split() == ["machine", name]
    for atom in machine(name).multiply:
        assert atom in found
    assert "run here" in found["portable"]
    assert ("run here" in found["x86.avx2"]) == name.startswith("x86")
    assert ("run here" in found["aarch64.neon"]) == name.startswith("aarch64")
    assert ("run here" in found["x86.amx"]) == (name == "x86.amx")
    if name.startswith("x86.avx"):
        assert "amx-tile" in found["lacks"]


def test_targets_with_a_variable_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert tilewright("targets", code=2, TILEWRIGHT_THREADS="none")[1].startswith("error: TILEWRIGHT_THREADS='none'")


# -- cache ----------------------------------------------------------------------------------------------------


def test_the_cache_is_described_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kept"
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(folder))
    monkeypatch.setenv("TILEWRIGHT_CACHE_MB", "10")
    found = rows(tilewright("cache")[0])
    assert found["folder"].split() == ["folder", str(folder)]
    assert found["programs"].split() == ["programs", "0"]
    for name in "abc":
        disk.store(disk.key_of(name), bytes(1 << 20))
    (folder / "ab").mkdir(exist_ok=True)
    (folder / "ab" / ".new-leftover").write_bytes(b"half")
    found = rows(tilewright("cache")[0])
    assert found["programs"].split() == ["programs", "3"]
    assert found["size"].split(maxsplit=1)[1] == "3.0 MB of 10 MB"
    assert found["unfinished"].split()[1] == "1,"
    assert tilewright("cache", "--clear")[0] == f"removed 4 files from {folder}\n"
    assert rows(tilewright("cache")[0])["programs"].split() == ["programs", "0"]
    assert tilewright("cache", "--clear")[0] == f"removed 0 files from {folder}\n"


def test_clear_does_not_delete_what_the_cache_did_not_write(tmp_path: Path) -> None:
    """`d/tw/thesis.tex` was lost: every file in a folder of two characters was taken for an entry."""
    for shelf in ("tw", "ab"):
        (tmp_path / "mine" / shelf).mkdir(parents=True)
        (tmp_path / "mine" / shelf / "thesis.tex").write_text("years of work")
    for options in ((), ("--clear",)):
        _, complaint = tilewright("cache", *options, code=2, TILEWRIGHT_CACHE_DIR=str(tmp_path / "mine"))
        assert complaint.startswith(f"error: {tmp_path / 'mine'} holds what Tilewright did not write (ab/thesis.tex)")
        assert "TILEWRIGHT_CACHE_DIR" in complaint
    assert [path.read_text() for path in (tmp_path / "mine").rglob("thesis.tex")] == ["years of work"] * 2


def test_a_cache_that_others_may_write_is_shown_as_not_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    printed, _ = tilewright("cache", TILEWRIGHT_CACHE_DIR=str(tmp_path))
    assert f"others may write {tmp_path} (mode 0777)" in rows(printed)["not"]


def test_a_cache_that_is_off() -> None:
    for options in ((), ("--clear",)):
        printed, _ = tilewright("cache", *options, TILEWRIGHT_CACHE_DIR="off")
        assert printed == "compiled programs are not kept: TILEWRIGHT_CACHE_DIR is off\n"


def test_a_limit_that_cannot_be_read(tmp_path: Path) -> None:
    _, complaint = tilewright("cache", code=2, TILEWRIGHT_CACHE_MB="lots", TILEWRIGHT_CACHE_DIR=str(tmp_path))
    assert complaint.startswith("error: TILEWRIGHT_CACHE_MB='lots'")


# -- environment ----------------------------------------------------------------------------------------------


def test_every_variable_is_listed_with_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in environment.VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    found = rows(tilewright("environment", TILEWRIGHT_THREADS="3")[0])
    for variable in environment.VARIABLES:
        line = found[variable.name]
        assert line.split()[1] == ("3" if variable.name == "TILEWRIGHT_THREADS" else "-")
        assert variable.meaning in line
        assert variable.default in line
    assert len(environment.VARIABLES) <= 12


def test_a_variable_that_cannot_be_read_is_reported() -> None:
    printed, complaint = tilewright("environment", code=1, TILEWRIGHT_THREADS="0")
    assert rows(printed)["TILEWRIGHT_THREADS"].split()[1] == "0"
    assert complaint.startswith("error: TILEWRIGHT_THREADS='0'")
