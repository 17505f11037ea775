"""Tests here share the checks and bounds of tests/kernels and the random programs of tests/ir."""

import sys
from pathlib import Path

import pytest

for folder in ("kernels", "ir"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.getbasetemp() / "tilewright-cache"
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(folder))
    for name in ("TILEWRIGHT_CACHE_MB", "TILEWRIGHT_DUMP", "TILEWRIGHT_THREADS"):
        monkeypatch.delenv(name, raising=False)
