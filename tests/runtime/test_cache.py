"""Compiled programs on disk: whole or not there, whatever happens to them."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tilewright.errors import ArgumentError
from tilewright.runtime import cache, environment

DATA = bytes(range(256)) * 8


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "kept"
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(place))
    monkeypatch.setattr(cache, "_stored", None)
    return place


def place_of(folder: Path, key: str) -> Path:
    return folder / key[:2] / key


def test_what_is_stored_is_found(folder: Path) -> None:
    for key, data in ((cache.key_of("a"), DATA), (cache.key_of("b"), b""), (cache.key_of("c"), b"\0" * 100000)):
        assert cache.load(key) is None
        cache.store(key, data)
        assert cache.load(key) == data
    assert len(cache.entries(folder)) == 3
    assert not [path for _, _, path in cache.entries(folder) if cache.is_unfinished(path)]


def test_what_is_stored_again_replaces(folder: Path) -> None:
    key = cache.key_of("a")
    cache.store(key, b"old")
    cache.store(key, DATA)
    assert cache.load(key) == DATA
    assert len(cache.entries(folder)) == 1


def flipped(position: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "last byte gone": lambda data: data[:-1],
    "only the mark": lambda data: data[:13],
    "more at the end": lambda data: data + b"x",
    "another mark": flipped(3),
    "another hash": flipped(20),
    "another first byte": flipped(45),
    "another last byte": lambda data: data[:-1] + bytes([data[-1] ^ 128]),
    "garbage": lambda data: os.urandom(len(data)),
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_not_there_and_can_be_stored_again(folder: Path, damage: str) -> None:
    key = cache.key_of("program")
    cache.store(key, DATA)
    path = place_of(folder, key)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert cache.load(key) is None
    cache.store(key, DATA)
    assert cache.load(key) == DATA


def test_a_folder_in_an_entrys_place_is_no_entry(folder: Path) -> None:
    key = cache.key_of("program")
    place_of(folder, key).mkdir(parents=True)
    assert cache.load(key) is None
    cache.store(key, DATA)
    assert cache.load(key) is None


def test_keys_tell_all_parts_apart() -> None:
    keys = [
        cache.key_of(*parts) for parts in (("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), ("c", "ab"))
    ]
    assert len(set(keys)) == len(keys)
    assert cache.key_of("ä", "b") == cache.key_of("ä", "b")


def test_off_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "off")
    key = cache.key_of("program")
    cache.store(key, DATA)
    assert cache.load(key) is None
    assert cache.clear() == 0
    assert not list(tmp_path.iterdir())


def test_the_default_lies_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for text in ("", None):
        monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", text) if text is not None else monkeypatch.delenv(
            "TILEWRIGHT_CACHE_DIR"
        )
        assert environment.cache_folder() == tmp_path / ".cache" / "tilewright"
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "~/elsewhere")
    assert environment.cache_folder() == tmp_path / "elsewhere"


def test_what_was_not_used_for_longest_goes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_MB", "1")
    size, keys = 100 << 10, [cache.key_of(str(i)) for i in range(12)]
    for age, key in enumerate(keys[:9]):
        cache.store(key, bytes(size))
        when = time.time() - 1000 + age
        os.utime(place_of(folder, key), (when, when))
    assert cache.load(keys[0]) is not None  # used just now: the first is no longer the oldest
    for key in keys[9:]:
        cache.store(key, bytes(size))
    assert sum(size for _, size, _ in cache.entries(folder)) <= 1 << 20
    there = [cache.load(key) is not None for key in keys]
    assert there[0]
    assert not there[1]
    assert there[9:] == [True] * 3
    assert there[1:9] == sorted(there[1:9])  # the older ones are those that went


def test_an_entry_larger_than_the_limit_does_not_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_MB", "1")
    cache.store(cache.key_of("large"), bytes(2 << 20))
    assert cache.entries(folder) == []


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_a_disk_that_takes_nothing_is_no_fault(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    key = cache.key_of("program")
    cache.store(key, DATA)

    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    for name in ("mkstemp", "utime", "write"):
        with monkeypatch.context() as patch:
            if name == "mkstemp":
                patch.setattr(cache.tempfile, name, refused)
            elif name == "utime":
                patch.setattr(cache.os, name, refused)
            else:
                patch.setattr(cache.os, "fdopen", lambda handle, _: Refusing(handle))
            cache.store(key, b"new" if name != "utime" else DATA)
            cache.store(cache.key_of("another"), DATA)
            assert cache.load(key) == DATA
    assert not [path for _, _, path in cache.entries(folder) if cache.is_unfinished(path)]


class Refusing:
    """A file on a full disk."""

    def __init__(self, handle: int):
        self.handle = handle

    def __enter__(self) -> Refusing:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)

    def write(self, data: bytes) -> None:
        os.write(self.handle, data[:10])
        raise OSError(errno.ENOSPC, "full")


def test_a_file_where_the_folder_should_be_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/below", "/proc/none"):
        monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / place))
        cache.store(cache.key_of("a"), DATA)
        assert cache.load(cache.key_of("a")) is None
        assert cache.clear() == 0
    assert (tmp_path / "file").read_text() == "mine"


def test_what_killed_processes_left_goes_after_a_while(folder: Path) -> None:
    shelf = folder / "ab"
    shelf.mkdir(parents=True)
    for name, age in ((".new-old", 7200), (".new-young", 10)):
        (shelf / name).write_bytes(DATA)
        when = time.time() - age
        os.utime(shelf / name, (when, when))
    cache.store(cache.key_of("program"), DATA)
    assert not (shelf / ".new-old").exists()
    assert (shelf / ".new-young").exists()


def test_clear_removes_all(folder: Path) -> None:
    assert cache.clear() == 0
    for i in range(5):
        cache.store(cache.key_of(str(i)), DATA)
    assert cache.clear() == 5
    assert cache.entries(folder) == []


def test_variables_that_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("TILEWRIGHT_CACHE_MB", "many"), ("TILEWRIGHT_CACHE_MB", "0"), ("TILEWRIGHT_THREADS", "-1")):
        monkeypatch.setenv(name, text)
        with pytest.raises(ArgumentError, match=f"{name}='{text}'"):
            environment.cache_bytes() if name.endswith("MB") else environment.threads()
        monkeypatch.delenv(name)


def test_every_variable_read_is_listed() -> None:
    import re

    import tilewright

    used = set()
    for path in Path(tilewright.__file__).parent.rglob("*.py"):
        used |= set(re.findall(r"TILEWRIGHT_[A-Z_]+", path.read_text()))
    assert used == {variable.name for variable in environment.VARIABLES}
