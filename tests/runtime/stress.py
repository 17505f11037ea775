"""Processes that compile and run against one cache while some are killed: no wrong result, no damaged entry.

    python tests/runtime/stress.py            # sixteen processes, forty seconds of killing, forty of damage as well
    python tests/runtime/stress.py 4 5 0      # four processes, five seconds, no damage

In the first part processes get SIGKILL at random times, at the earliest when they have compiled something: killed while
Python still starts, as on a busy machine, they would never touch the cache. After it every entry must be whole. In the
second part entries are damaged as well: cut off, changed, emptied. In both every result must be exact, no process may
fail on its own, and no helper may stay behind.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAMS = 160


def work(seed: int) -> None:
    """One process: compiles programs in a random order, runs them, and ends with 3 at a wrong result."""
    import numpy as np
    from native_checks import affine, whole

    from tilewright.compiler.text import compile_text

    rng = random.Random(seed)
    x = whole(5, 37)
    while True:
        number = rng.randrange(PROGRAMS)
        program = compile_text(affine(number, number % 7), "cpu")
        for _ in range(3):
            y = np.full_like(x, np.nan)
            program(x, y)
            if not np.array_equal(y, x * number + number % 7):
                os._exit(3)
        sys.stdout.write(".")
        sys.stdout.flush()


def has_written(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has given a result that nobody has read yet."""
    return bool(select.select([process.stdout], [], [], 0)[0])


class Stress:
    """The processes, and what became of them."""

    def __init__(self, processes: int, folder: Path):
        self.folder, self.random = folder, random.Random(7)
        self.started = self.killed = self.results = 0
        self.faults: list[str] = []
        here = Path(__file__).parent
        paths = [str(here), str(here.parent / "block"), *(p for p in sys.path if p)]
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "TILEWRIGHT_CACHE_DIR": str(folder),
            "TILEWRIGHT_CACHE_MB": "1",
            "TILEWRIGHT_THREADS": "2",
        }
        self.running = [self.start() for _ in range(processes)]

    def start(self) -> subprocess.Popen[bytes]:
        """One more process."""
        self.started += 1
        return subprocess.Popen(
            [sys.executable, __file__, "work", str(self.started)],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def finish(self, process: subprocess.Popen[bytes]) -> None:
        """Kills a process and counts its results; one that ended before has failed."""
        ended = process.poll()
        process.kill()
        out, err = process.communicate()
        self.results += len(out)
        if ended is not None:
            self.faults.append(f"exit code {ended}: {err.decode()[-2000:]}")

    def run(self, seconds: float, damage: bool) -> None:
        """Kills, starts again, and damages, for a while, and until three processes that worked have been killed."""
        end, killed = time.monotonic() + seconds, self.killed
        while time.monotonic() < end or self.killed < killed + 3:
            time.sleep(self.random.uniform(0.02, 0.4))
            place = self.random.randrange(len(self.running))
            process = self.running[place]
            if process.poll() is not None or (self.random.random() < 0.4 and has_written(process)):
                self.finish(process)
                self.killed += 1
                self.running[place] = self.start()
            if damage:
                self.damage()

    def damage(self) -> None:
        """Spoils some entries."""
        files = [path for path in self.folder.glob("??/*") if path.is_file()]
        for path in self.random.sample(files, min(5, len(files))):
            try:
                data = bytearray(path.read_bytes())
                kind = self.random.randrange(3)
                if kind == 0:
                    data = data[: self.random.randrange(len(data) + 1)]
                elif kind == 1 and data:
                    data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
                else:
                    data = bytearray()
                path.write_bytes(data)
            except FileNotFoundError:
                continue

    def stop(self) -> None:
        """Ends all processes."""
        for process in self.running:
            self.finish(process)
        self.running = []

    def check_entries(self) -> int:
        """That every entry is whole; gives how many there are."""
        os.environ["TILEWRIGHT_CACHE_DIR"] = str(self.folder)
        from tilewright.runtime import cache, cache_folder

        found = [path for _, _, path in cache.entries(self.folder) if not cache_folder.is_unfinished(path)]
        self.faults += [f"the entry {path.name} is damaged" for path in found if cache.load(path.name) is None]
        return len(found)

    def check_left(self) -> None:
        """That no process of ours is left after a while."""
        mark = f"TILEWRIGHT_CACHE_DIR={self.folder}".encode()
        for _ in range(100):
            left = []
            for path in Path("/proc").glob("[0-9]*"):
                try:
                    if path.name != str(os.getpid()) and mark in (path / "environ").read_bytes():
                        left.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
                except OSError:
                    continue
            if not left:
                return
            time.sleep(0.1)
        self.faults.append(f"left behind: {left}")


def stress(processes: int, seconds: float, seconds_of_damage: float, folder: Path) -> Stress:
    """Both parts; `faults` of what comes back is empty if all went well."""
    found = Stress(processes, folder)
    before = dict(os.environ)
    try:
        found.run(seconds, damage=False)
        if seconds_of_damage:
            running, found.running = found.running, []
            for process in running:
                found.finish(process)
            found.check_entries()
            found.running = [found.start() for _ in range(processes)]
            found.run(seconds_of_damage, damage=True)
            found.stop()
        else:
            found.stop()
            found.check_entries()
        found.check_left()
    finally:
        found.stop()
        os.environ.clear()
        os.environ.update(before)
    return found


def main() -> None:
    """Runs with the numbers of the command line, and says what happened."""
    if sys.argv[1:2] == ["work"]:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        return work(int(sys.argv[2]))
    given = [float(text) for text in sys.argv[1:]]
    processes, seconds, seconds_of_damage = [*given, *(16, 40, 40)[len(given) :]]
    with tempfile.TemporaryDirectory() as folder:
        found = stress(int(processes), seconds, seconds_of_damage, Path(folder) / "cache")
        sys.stdout.write(
            f"{found.started} processes, {found.killed} killed, {found.results} programs compiled and run\n"
            + ("\n".join(found.faults) or "no wrong result, no damaged entry, nothing left behind")
            + "\n"
        )
    sys.exit(1 if found.faults else 0)


if __name__ == "__main__":
    main()
