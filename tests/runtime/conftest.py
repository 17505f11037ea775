"""Tests here keep compiled programs in a folder of their own, and share the block programs of tests/block."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "block"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.getbasetemp() / "tilewright-cache"
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(folder))
    for name in ("TILEWRIGHT_CACHE_MB", "TILEWRIGHT_DUMP", "TILEWRIGHT_THREADS"):
        monkeypatch.delenv(name, raising=False)
