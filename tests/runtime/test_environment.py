"""The environment's variables: what they are set to, where they are not usable, and what stands in for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilewright.errors import ArgumentError
from tilewright.runtime import environment
from tilewright.runtime.dump import Dump


def test_a_dump_that_is_off_makes_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_DUMP", "off")
    Dump.of("f").write("bind", "block", lambda: "text")
    assert list(tmp_path.iterdir()) == []


def test_a_dump_folder_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in ("file", "file/below"):
        monkeypatch.setenv("TILEWRIGHT_DUMP", str(tmp_path / folder))
        with pytest.raises(ArgumentError, match=f"TILEWRIGHT_DUMP=.*{tmp_path / 'file'} is no folder"):
            Dump.of("f")
    late = Dump(tmp_path / "file" / "later")
    with pytest.raises(ArgumentError, match=r"TILEWRIGHT_DUMP=.*cannot be written: Not a directory"):
        late.write("bind", "block", lambda: "text")


@pytest.mark.parametrize("variable", ["TILEWRIGHT_DUMP", "TILEWRIGHT_CACHE_DIR"])
def test_a_folder_of_a_user_that_nobody_knows_is_named(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "~nobody_of_that_name/x")
    read = environment.dump_folder if variable == "TILEWRIGHT_DUMP" else environment.cache_folder
    with pytest.raises(ArgumentError, match=f"{variable}='~nobody_of_that_name/x'"):
        read()


def test_an_unknown_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "TILEWRIGHT_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    assert environment.cache_folder() is None


def test_the_folder_for_caches_is_the_one_that_the_system_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TILEWRIGHT_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environment.cache_folder() == tmp_path / "tilewright"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert environment.cache_folder() == tmp_path / "home" / ".cache" / "tilewright"


@pytest.mark.parametrize("count", ["0", "-1", "1025", "1000000000", "9" * 5000, "two", "1.5"])
def test_threads_have_a_limit(monkeypatch: pytest.MonkeyPatch, count: str) -> None:
    monkeypatch.setenv("TILEWRIGHT_THREADS", count)
    with pytest.raises(ArgumentError, match=r"TILEWRIGHT_THREADS=.*it is a number from 1 to 1024"):
        environment.threads()
