"""Which tests execute which functions of the package: recorded once for a tree, read by `killed_mutants.py`.

Tests are recorded in units, each in a fresh process with an empty cache on disk, so that no value that another unit
computed hides a call. A unit is a file of tests, a page of the documentation, or the doctests of one folder of the
package. Within a unit a test may use what an earlier test of it left in memory. `killed_mutants.py` therefore also
runs the other tests of a unit whose tests reach a function, in a process that begins without these values.

The record is a text file of JSON objects, one for each unit. Functions have numbers; a unit lists the names of those
that no unit before it reached. `functions` maps a set of tests, as a hexadecimal number with a bit for each test, to
the numbers of the functions that exactly these tests execute. Set-ups for several tests and imports count for all tests
of their unit; a process counts for the test that started it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from source_mutants import SOURCE

FOLDERS = ("tests", "src", "docs", "README.md")
LEFT_OUT = (
    *("tests/gpu", "tests/cross", "tests/pytorch", "tests/with_jax", "src/tilewright/torch", "src/tilewright/jax"),
    *("docs/pytorch.md", "docs/jax.md"),
)
"""Tests of other machines and frameworks; `make test` does not run them either where a framework is not installed."""
MARKS = {
    "default": "not cross and not gpu and not long",
    "long": "long and not cross and not gpu",
    "all": "not cross and not gpu",
}
"""What `make test` runs, what `make test-long` runs, and both."""

# -- a copy of the tree, and pytest in it -------------------------------------------------------------------------


def copy_of(root: Path, folder: Path) -> Path:
    """Copy the tree to a new folder and return it."""
    ignored = shutil.ignore_patterns(".git", ".venv*", ".*_cache", ".hypothesis", "shared")
    shutil.copytree(root, folder, ignore=ignored, symlinks=True)
    return folder


def digest(root: Path, folders: Sequence[str] = ("src", "tests", "docs", "examples", "conftest.py")) -> str:
    """Return a hash of the tree's source and tests."""
    hasher = hashlib.sha256()
    for folder in folders:
        top = root / folder
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and path.suffix != ".pyc" and not any(p.startswith(".") for p in path.parts[-2:]):
                hasher.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return hasher.hexdigest()[:16]


@dataclass
class Ran:
    """A run of pytest: its exit status (None: it ran past its time), seconds, reports, and the last line it printed."""

    status: int | None
    seconds: float
    reports: list[dict[str, Any]]
    last_line: str = ""

    @property
    def tests(self) -> list[dict[str, Any]]:
        """The reports of tests."""
        return [report for report in self.reports if "test" in report]

    @property
    def failed(self) -> str:
        """The first test that failed; empty if none was reported."""
        return next((r["test"] for r in self.tests if r["outcome"] == "failed"), "")


class Pytest:
    """Runs pytest in a copy of the tree, in fresh processes with an empty cache on disk."""

    def __init__(self, tree: Path, scratch: Path):
        self.tree, self.scratch = tree, scratch
        self.plugins = scratch / "plugins"
        self.plugins.mkdir(parents=True, exist_ok=True)
        for name in ("mutant_tests.py", "reached_functions.py"):
            shutil.copy(Path(__file__).parent / name, self.plugins / name)
        self.recording = scratch / "recording"
        self.recording.mkdir(exist_ok=True)
        (self.recording / "sitecustomize.py").write_text("import reached_functions\n\nreached_functions.start()\n")

    def run(self, files: Sequence[str], marks: str, seconds: float, *more: str, **variables: str) -> Ran:
        """Run the tests of `files` with these marks, more options and variables, for at most `seconds`."""
        with tempfile.TemporaryDirectory(dir=self.scratch, ignore_cleanup_errors=True) as name:
            folder = Path(name)
            report = folder / "report"
            environment = self._environment(folder, "REACHED_LOGS" in variables) | variables
            environment["MUTANT_REPORT"] = str(report)
            command = [sys.executable, "-m", "pytest", *files, "-q", "-m", marks, f"--basetemp={folder / 'files'}"]
            command += ["-p", "no:cacheprovider", "-p", "mutant_tests", *more]
            start = time.monotonic()
            with (folder / "output").open("w+") as output:
                process = subprocess.Popen(
                    command, cwd=self.tree, env=environment, stdout=output, stderr=output, start_new_session=True
                )
                status = _wait(process, seconds)
                output.seek(0)
                lines = [line for line in output.read().splitlines() if line.strip()]
            reports = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
            return Ran(status, time.monotonic() - start, reports, lines[-1] if lines else "")

    def _environment(self, folder: Path, records: bool) -> dict[str, str]:
        """Return the variables of a run: the copy's package, a cache of its own, the same hashes each time."""
        paths = [str(self.tree / "src"), str(self.plugins), *([str(self.recording)] if records else [])]
        paths += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        dropped = ("PYTHONDONTWRITEBYTECODE", "PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS")
        environment = {k: v for k, v in os.environ.items() if k not in dropped}
        return environment | {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONHASHSEED": "0",
            "TILEWRIGHT_CACHE_DIR": str(folder / "cache"),
            "CUDA_VISIBLE_DEVICES": "",  # the same tests on a machine with a GPU
        }


def _wait(process: subprocess.Popen[Any], seconds: float) -> int | None:
    """Wait for a process and end its group; return its exit status, or None if it ran past `seconds`."""
    try:
        return process.wait(max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with all that its tests started
        process.wait()


# -- units --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """Files whose tests are recorded in one process."""

    name: str
    files: tuple[str, ...]


def units(root: Path, folders: Sequence[str] = FOLDERS) -> list[Unit]:
    """Return the units with files in these folders, larger files first."""
    grouped: dict[str, list[str]] = defaultdict(list)
    sizes: dict[str, int] = defaultdict(int)
    for folder in folders:
        top = root / folder
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            file = path.relative_to(root).as_posix()
            if (
                not path.is_file()
                or path.suffix not in (".py", ".md")
                or any(f"{file}/".startswith(f"{out}/") for out in LEFT_OUT)
            ):
                continue
            text = path.read_text()
            if ">>>" in text or path.name.startswith("test_"):
                name = path.parent.relative_to(root).as_posix() if file.startswith("src/") else file
                if file not in grouped[name]:
                    grouped[name].append(file)
                    sizes[name] += len(text)
    order = sorted(grouped, key=lambda name: (name.startswith("docs"), -sizes[name]))
    return [Unit(name, tuple(grouped[name])) for name in order]


# -- recording ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """How many units are recorded at the same time, when recording stops, and the longest time of a unit.

    Of a unit that takes longer, the tests until then are recorded. Tests that `make test` runs come first.
    """

    jobs: int = 1
    deadline: float = float("inf")
    unit_seconds: float = 240.0


def record(root: Path, path: Path, folders: Sequence[str], suite: str, limits: Limits) -> None:
    """Record the units of the tree `root` in the file `path`, except those that it has."""
    tree = digest(root)
    known = Reach.read(path, tree) if path.exists() and path.stat().st_size else None
    if known is None:
        path.write_text(json.dumps({"tree": tree, "suite": suite}) + "\n")
    elif known.suite != suite:
        raise SystemExit(f"{path} is the record of the suite {known.suite}, not {suite}: name another file")
    numbers = {name: number for number, name in enumerate(known.names)} if known else {}
    wanted = [u for u in units(root, folders) if known is None or u.name not in known.units]
    lock = Lock()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        pytest = Pytest(copy_of(root, Path(name) / "tree"), Path(name))
        compiled = [sys.executable, "-m", "compileall", "-q", "-j", str(limits.jobs), "src"]
        subprocess.run(compiled, cwd=pytest.tree, check=True)

        def one(unit: Unit) -> None:
            remaining = limits.deadline - time.monotonic()
            if remaining <= 1:
                return
            entry = _recorded(pytest, unit, MARKS[suite], min(limits.unit_seconds, remaining))
            if time.monotonic() >= limits.deadline:
                return
            with lock:
                entry["names"] = [name for name in entry["reached"] if name not in numbers]
                numbers.update({name: len(numbers) + i for i, name in enumerate(entry["names"])})
                by_tests: dict[str, list[int]] = defaultdict(list)
                for name, tests in entry.pop("reached").items():
                    by_tests[f"{tests:x}"].append(numbers[name])
                entry["functions"] = {tests: " ".join(map(str, sorted(n))) for tests, n in by_tests.items()}
                with path.open("a") as file:
                    file.write(json.dumps(entry) + "\n")
            bad = [test for test, _, _, passed in entry["tests"] if not passed]
            print(
                f"{unit.name}: {len(entry['tests'])} tests, {entry['wall']:.1f} s"
                + (f"; left out, since they fail without a mutant: {', '.join(bad)}" if bad else "")
                + (f"; {entry['fault']}" if entry["fault"] else ""),
                flush=True,
            )

        with ThreadPoolExecutor(limits.jobs) as pool:
            list(pool.map(one, wanted))


def _recorded(pytest: Pytest, unit: Unit, marks: str, seconds: float) -> dict[str, Any]:
    """Run a unit; return its entry, with {function: tests as bits} as `reached`."""
    with tempfile.TemporaryDirectory(dir=pytest.scratch) as logs:
        source = str(pytest.tree / SOURCE)
        ran = pytest.run(unit.files, marks, seconds, REACHED_LOGS=logs, REACHED_SOURCE=source)
        tests = ran.tests
        bit = {report["test"]: 1 << number for number, report in enumerate(tests)}
        every = (1 << len(tests)) - 1
        reached: dict[str, int] = defaultdict(int)
        for log in sorted(Path(logs).iterdir()):
            during = every
            for line in log.read_text().splitlines():
                if line.startswith("@"):
                    during = bit.get(line[1:], every)
                else:
                    reached[line[1:]] |= during
    fault = {None: "ran past its time", 0: "", 1: "", 5: ""}.get(ran.status, f"pytest failed: {ran.last_line}")
    return {
        "unit": unit.name,
        "wall": round(ran.seconds, 2),
        "start": round(max(ran.seconds - sum(r["seconds"] for r in tests), 0.0), 2),
        "tests": [[r["test"], r["seconds"], r["long"], r["outcome"] != "failed"] for r in tests],
        "fault": fault,
        "reached": reached if tests else {},
    }


# -- reading ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Test:
    """A test: its name, seconds, whether `make test` leaves it out, and whether it passes without a mutant."""

    name: str
    seconds: float
    long: bool
    passes: bool

    @property
    def file(self) -> str:
        """The file of the test."""
        return self.name.partition("::")[0]


@dataclass
class Recorded:
    """What is recorded of a unit: seconds until its first test, its tests, and for each function a bit a test.

    It is complete if all its tests were run.
    """

    name: str
    start: float
    tests: list[Test]
    functions: dict[int, int]
    complete: bool


@dataclass
class Reach:
    """The record of a tree.

    `dependent` has tests that fail, without a mutant, where not all tests before them run; `independent` has tests that
    were seen to pass.
    """

    suite: str
    names: list[str] = field(default_factory=list)
    units: dict[str, Recorded] = field(default_factory=dict)
    dependent: set[str] = field(default_factory=set)
    independent: set[str] = field(default_factory=set)

    def can_run(self, test: Test) -> bool:
        """True if a test passes without a mutant, also among chosen tests."""
        return test.passes and test.name not in self.dependent

    @classmethod
    def read(cls, path: Path, tree: str) -> Reach:
        """Read a record; it must be of the tree with the hash `tree`."""
        with path.open() as file:
            head = json.loads(file.readline())
            if head["tree"] != tree:
                raise SystemExit(f"{path} is the record of another state of the tree: record it again to another file")
            reach = cls(head["suite"])
            for line in file:
                entry = json.loads(line)
                reach.names += entry["names"]
                functions = {int(n): int(tests, 16) for tests, ns in entry["functions"].items() for n in ns.split()}
                tests = [Test(*test) for test in entry["tests"]]
                unit, complete = entry["unit"], not entry["fault"]
                reach.units[unit] = Recorded(unit, entry["start"], tests, functions, complete)
        return reach

    def reaching(self, function: str) -> list[tuple[Recorded, int]]:
        """Return the units that execute a function, each with the bits of its tests that do."""
        if function not in self.names:
            return []
        number = self.names.index(function)
        return [(unit, unit.functions[number]) for unit in self.units.values() if number in unit.functions]
