"""Plugin of pytest for `reach_map.py` and `killed_mutants.py`: reports tests to a file, or runs chosen tests only.

The variable `MUTANT_REPORT` names the file to write, one JSON object a line. `MUTANT_TESTS` names a JSON file of the
tests to run, {file: [names of tests, or null for all of the file]}, in this order; without it, all tests run. Tests are
named as pytest names them.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MEMORY = 32 << 30
"""Bytes of address space of a process: a mutant that allocates without end fails early."""

START = time.monotonic()


def pytest_configure(config: pytest.Config) -> None:
    """Bound the memory, and add the reports."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY if hard < 0 else min(MEMORY, hard), hard))
    config.pluginmanager.register(Reports(Path(os.environ["MUTANT_REPORT"])))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the chosen tests, in the order of the choice; without a choice, put tests that take long last."""
    if "MUTANT_TESTS" not in os.environ:
        items.sort(key=lambda item: item.get_closest_marker("long") is not None)
        return
    chosen = json.loads(Path(os.environ["MUTANT_TESTS"]).read_text())
    place = {test: number for number, tests in enumerate(chosen.values()) for test in tests or ()}
    files = {file: number for number, file in enumerate(chosen)}

    def order(item: pytest.Item) -> int | None:
        file = item.nodeid.partition("::")[0]
        return files.get(file) if chosen.get(file, ()) is None else place.get(item.nodeid)

    kept = [item for item in items if order(item) is not None]
    config.hook.pytest_deselected(items=[item for item in items if order(item) is None])
    items[:] = sorted(kept, key=lambda item: order(item) or 0)


class Reports:
    """Writes the outcome of each test, and marks in the record of functions where each test begins and ends."""

    def __init__(self, path: Path):
        import reached_functions

        self.path = path
        self.recorder = reached_functions.RECORDER
        self.test = ""
        self.seconds: dict[str, float] = defaultdict(float)
        self.outcomes: dict[str, str] = {}

    def _write(self, **entry: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def _enter(self, test: str) -> None:
        if self.recorder is not None:
            self.recorder.enter(test)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write a file that cannot be collected."""
        if report.failed:
            self._write(test=report.nodeid or "collection", outcome="failed", seconds=0.0, long=False)

    def pytest_collection_finish(self) -> None:
        """Write how long the start and the collection took."""
        self._write(start=time.monotonic() - START)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Run a test, and write how it went."""
        self.test = item.nodeid
        self._enter(self.test)
        result = yield
        self._enter("")
        long = item.get_closest_marker("long") is not None
        outcome = self.outcomes.get(self.test, "passed")
        self._write(test=self.test, outcome=outcome, seconds=round(self.seconds[self.test], 4), long=long)
        self.test = ""
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """What is set up for several tests is executed by no test in particular."""
        if fixturedef.scope == "function":
            return (yield)
        self._enter("")
        try:
            return (yield)
        finally:
            self._enter(self.test)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a test's time and its worst outcome."""
        self.seconds[report.nodeid] += report.duration
        if report.failed or (report.skipped and report.nodeid not in self.outcomes):
            self.outcomes[report.nodeid] = report.outcome
