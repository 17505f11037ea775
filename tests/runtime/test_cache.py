"""Compiled programs on disk: whole or not there, whatever happens to them."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tilewright.errors import ArgumentError, CacheError, CacheWarning
from tilewright.runtime import cache, cache_folder, environment, toolchain

DATA = bytes(range(256)) * 8


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "kept"
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(place))
    monkeypatch.setattr(cache, "_stored", None)
    monkeypatch.setattr(cache_folder, "_warned", set())
    return place


def place_of(folder: Path, key: str) -> Path:
    return folder / key[:2] / key


def test_what_is_stored_is_found(folder: Path) -> None:
    for key, data in ((cache.key_of("a"), DATA), (cache.key_of("b"), b""), (cache.key_of("c"), b"\0" * 100000)):
        assert cache.load(key) is None
        cache.store(key, data)
        assert cache.load(key) == data
    assert len(cache.entries(folder)) == 3
    assert not [path for _, _, path in cache.entries(folder) if cache_folder.is_unfinished(path)]


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
    cache.store(cache.key_of("another"), DATA)
    place_of(folder, key).mkdir(parents=True, mode=0o700)
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
                patch.setattr(cache_folder.tempfile, name, refused)
            elif name == "utime":
                patch.setattr(cache.os, name, refused)
            else:
                patch.setattr(cache_folder.os, "fdopen", lambda handle, _: Refusing(handle))
            cache.store(key, b"new" if name != "utime" else DATA)
            cache.store(cache.key_of("another"), DATA)
            assert cache.load(key) == DATA
    assert not [path for _, _, path in cache.entries(folder) if cache_folder.is_unfinished(path)]


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
        says = "file is no folder" if place == "file" else rf"{place} cannot be made or written: .*TILEWRIGHT_CACHE_DIR"
        with pytest.warns(CacheWarning, match=says):
            cache.store(cache.key_of("a"), DATA)
        assert cache.load(cache.key_of("a")) is None
        assert cache.clear() == 0
    assert (tmp_path / "file").read_text() == "mine"


def test_what_killed_processes_left_goes_after_a_while(folder: Path) -> None:
    shelf = folder / "ab"
    shelf.mkdir(parents=True)
    for name, age in ((".new-older_01", 7200), (".new-young_01", 10)):
        (shelf / name).write_bytes(DATA)
        when = time.time() - age
        os.utime(shelf / name, (when, when))
    cache.store(cache.key_of("program"), DATA)
    assert not (shelf / ".new-older_01").exists()
    assert (shelf / ".new-young_01").exists()


def test_clear_removes_all(folder: Path) -> None:
    assert cache.clear() == 0
    for i in range(5):
        cache.store(cache.key_of(str(i)), DATA)
    assert cache.clear() == 5
    assert cache.entries(folder) == []


# -- whose files they are -------------------------------------------------------------------------------------


def test_clear_and_eviction_take_no_file_of_the_users(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_MB", "1")
    key = cache.key_of("program")
    cache.store(key, DATA)
    shelf = folder / key[:2]
    (folder / "tw").mkdir()
    (folder / "cafe").mkdir()
    mine = [folder / "tw" / "thesis.tex", folder / "tw" / key, folder / "cafe" / ("ca" + "0" * 62), folder / key]
    mine += [shelf / "thesis.tex", shelf / key[:63], shelf / f"{key}0", shelf / key.upper(), shelf / ".new-idea"]
    mine += [shelf / f"{'00' if key[:2] != '00' else '11'}{key[2:]}", folder / "notes", folder / ".new-old"]
    mine = [path for path in mine if path != shelf / key]
    for path in mine:
        path.write_bytes(bytes(300 << 10))
        os.utime(path, (1, 1))  # older than anything: the first to go
    (shelf / ("f" * 64)).symlink_to(mine[0])
    for number in range(8):
        cache.store(cache.key_of(str(number)), bytes(300 << 10))
    assert len(cache.entries(folder)) <= 4
    assert cache.clear() <= 4
    assert cache.entries(folder) == []
    assert [path for path in mine if not path.exists()] == []


def test_a_folder_of_the_users_is_refused_and_left_as_it_is(folder: Path) -> None:
    (folder / "tw").mkdir(parents=True)
    (folder / "tw" / "thesis.tex").write_text("years of work")
    key = cache.key_of("program")
    with pytest.warns(CacheWarning, match=r"kept holds what Tilewright did not write \(tw\)"):
        cache.store(key, DATA)
    assert cache.load(key) is None  # it is said once
    cache.store(key, DATA)
    with pytest.raises(CacheError, match="name an empty folder, or one that is not there yet, in TILEWRIGHT_CACHE_DIR"):
        cache.clear()
    assert [path.name for path in folder.rglob("*")] == ["tw", "thesis.tex"]


def test_another_tools_marker_is_not_ours(folder: Path) -> None:
    folder.mkdir()
    (folder / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n# made by another tool\n")
    with pytest.warns(CacheWarning, match="has no CACHEDIR.TAG of Tilewright's"):
        cache.store(cache.key_of("a"), DATA)
    assert [path.name for path in folder.iterdir()] == ["CACHEDIR.TAG"]


def test_an_empty_folder_and_one_with_entries_alone_become_the_caches(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    cache.store(cache.key_of("a"), DATA)
    assert (folder / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    (folder / "CACHEDIR.TAG").unlink()
    assert cache.load(cache.key_of("a")) == DATA
    cache.store(cache.key_of("b"), DATA)
    assert (folder / "CACHEDIR.TAG").exists()


def test_a_folder_that_is_marked_while_it_is_looked_at_is_the_caches(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(mode=0o700)
    looked = cache_folder._foreign

    def late(place: Path) -> str | None:
        monkeypatch.setattr(cache_folder, "_foreign", looked)
        cache_folder.claim(place)  # another process is faster
        return looked(place)

    monkeypatch.setattr(cache_folder, "_foreign", late)
    cache.store(cache.key_of("a"), DATA)
    assert cache.load(cache.key_of("a")) == DATA


def test_the_cache_is_made_for_its_user_alone(folder: Path) -> None:
    previous = os.umask(0)
    try:
        cache.store(cache.key_of("a"), DATA)
    finally:
        os.umask(previous)
    for path in (folder, *(p for p in folder.rglob("*") if p.name != "CACHEDIR.TAG")):
        assert path.stat().st_mode & 0o077 == 0, path


needs_users = pytest.mark.skipif(not hasattr(os, "getuid"), reason="this system has no user numbers")


@needs_users
@pytest.mark.parametrize("which", ["folder", "shelf", "entry"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_an_entry_that_others_may_write_is_not_loaded(folder: Path, which: str, mode: int) -> None:
    key = cache.key_of("program")
    cache.store(key, DATA)
    path = {"folder": folder, "shelf": folder / key[:2], "entry": place_of(folder, key)}[which]
    before = path.stat().st_mode & 0o777
    path.chmod(before | mode)
    with pytest.warns(CacheWarning, match=f"others may write {path} ") as warned:
        assert cache.load(key) is None
    assert cache.load(key) is None  # it is said once
    assert f"chmod go-w {path}" in str(warned[0].message)
    path.chmod(before)
    assert cache.load(key) == DATA


@needs_users
def test_an_entry_of_another_user_is_not_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, me = cache.key_of("program"), os.getuid()
    cache.store(key, DATA)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: me + 1)
        with pytest.warns(CacheWarning, match=f"{folder} belongs to user {me}, and this process runs as user {me + 1}"):
            assert cache.load(key) is None
        cache.store(key, b"theirs")  # nothing is written there either, and it was said before
    assert cache.load(key) == DATA


@needs_users
def test_one_entry_planted_by_another_user_is_not_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = cache.key_of("program")
    cache.store(key, DATA)
    entry = place_of(folder, key)
    owned = os.fstat

    def planted(handle: int) -> os.stat_result:
        found = list(owned(handle))
        found[4] = os.getuid() + 1
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", planted)
    with pytest.warns(CacheWarning, match=f"{entry} belongs to user"):
        assert cache.load(key) is None


@needs_users
def test_an_entry_that_is_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    key = cache.key_of("program")
    cache.store(key, DATA)
    shutil.move(place_of(folder, key), tmp_path / "elsewhere")
    place_of(folder, key).symlink_to(tmp_path / "elsewhere")
    assert cache.load(key) is None


def test_where_there_are_no_users_nothing_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "getuid", raising=False)
    cache.store(cache.key_of("program"), DATA)
    folder.chmod(0o777)
    assert cache.load(cache.key_of("program")) == DATA


# -- what names depend on ---------------------------------------------------------------------------------------


def test_keys_follow_the_compilers_content_and_not_its_place_or_time(tmp_path: Path) -> None:
    for place, when in (("one", 1000), ("two", 2000)):
        (tmp_path / place / "passes").mkdir(parents=True)
        for name, text in (("a.py", "x = 1\n"), ("passes/b.py", "y = 2\n"), ("passes/note.txt", place)):
            (tmp_path / place / name).write_text(text)
            os.utime(tmp_path / place / name, (when, when))
    first = toolchain.content_of(tmp_path / "one")
    assert toolchain.content_of(tmp_path / "two") == first
    (tmp_path / "two" / "passes" / "b.py").write_text("y = 3\n")
    os.utime(tmp_path / "two" / "passes" / "b.py", (2000, 2000))  # the same size and time: only the content differs
    assert toolchain.content_of(tmp_path / "two") != first
    (tmp_path / "one" / "passes" / "b.py").rename(tmp_path / "one" / "b.py")
    assert toolchain.content_of(tmp_path / "one") != first


def test_keys_name_llvm_and_llvmlite() -> None:
    import llvmlite
    import llvmlite.binding as llvm

    found = toolchain.toolchain()
    assert f"LLVM {'.'.join(map(str, llvm.llvm_version_info))}" in found
    assert f"llvmlite {llvmlite.__version__} " in found


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
