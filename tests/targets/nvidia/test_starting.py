"""The builtins that start kernels are made once, however many threads ask first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest

from tilewright.targets.nvidia import starting

THREADS = 8


def test_threads_that_start_their_first_kernel_at_a_time_share_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A builtin knows only the address of its description: one that a second thread replaces would be freed."""
    together, made = threading.Barrier(THREADS), []

    class Linked:
        def address(self, name: str) -> int:
            return 1

    def link(data: bytes, names: tuple[str, ...]) -> Linked:
        made.append(names)
        threading.Event().wait(0.05)  # long enough for every other thread to ask
        return Linked()

    monkeypatch.setattr(starting, "link", link)
    # another cache: what the builtins of this process know only the address of stays where it is
    monkeypatch.setattr(starting, "_link_functions", cache(starting._link_functions.__wrapped__))

    def ask(_: int) -> int:
        together.wait()
        return id(starting._linked_functions())

    with ThreadPoolExecutor(THREADS) as pool:
        found = set(pool.map(ask, range(THREADS)))
    assert len(found) == len(made) == 1
