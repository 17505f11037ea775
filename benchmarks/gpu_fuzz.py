"""Random programs on a GPU: compiled here, run and compared there.

`python benchmarks/gpu_fuzz.py make FILE [COUNT]` compiles COUNT programs of each kind: of one role, of several roles,
and products by every atom. `python benchmarks/gpu_fuzz.py run FILE [REPEATS [SECONDS]]` runs all of them, in several
processes, with outputs poisoned before each launch and guards around every array, and compares exactly with what numpy
gives. One that hangs, or faults, ends its process, and another takes up after it.
`one FILE NUMBER` runs a single program, for tools that look into it, such as compute-sanitizer.
"""

from __future__ import annotations

import lzma
import pickle
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
KINDS = ("one role", "roles", "products")
FIRST, PROCESSES, SECONDS = 1000, 6, 20
POISON, GUARD = 0xA5, 4096
Entry = dict[str, Any]


def program(kind: str, seed: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """(text, arguments, results) of a random program."""
    sys.path.insert(0, str(ROOT / "tests" / "block"))
    from random_mma import random_product_program
    from random_roles import random_role_program
    from random_waves import random_wave_program

    if kind == "one role":
        return random_wave_program(seed, (1, 2, 4)[seed % 3])
    return random_role_program(seed) if kind == "roles" else random_product_program(seed)


# -- here ------------------------------------------------------------------------------------------------------


def compiled(kind: str, seed: int, text: str) -> Entry:
    """A program as PTX, with what a launch needs."""
    from tilewright import compile_text

    kernel = compile_text(text, "gpu:hopper")._kernel
    return {
        "kind": kind, "seed": seed, "text": text, "ptx": kernel.assembly, "emitted": replace(kernel.emitted, text=""),
    }  # fmt: skip


def make(file: Path, count: int) -> None:
    """Writes the programs as PTX."""
    from tilewright.errors import ProgramError

    entries: list[Entry] = []
    for kind in KINDS:
        made, seed = 0, FIRST
        while made < count:
            text, _, _ = program(kind, seed)
            if "machine hopper" in text:
                try:
                    entries.append(compiled(kind, seed, text))
                except ProgramError as fault:
                    print(f"{kind} {seed} is refused: {fault}", flush=True)
                made += 1
            seed += 1
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(lzma.compress(pickle.dumps(entries)))
    print(f"{len(entries)} programs, {file.stat().st_size / 1e6:.1f} MB")


# -- where the GPU is ------------------------------------------------------------------------------------------


class Guarded:
    """An array on the device between two guards, which nothing may write, and whose bytes are poison to who reads."""

    def __init__(self, given: Any, poisoned: bool):
        from tilewright.runtime.device_arrays import DeviceArray
        from tilewright.targets.nvidia import driver

        found = driver.device()
        assert not isinstance(found, str), found
        self.cu, self.check = found.cu, found.check
        room = -(-given.nbytes // 256) * 256
        self.image = np.full(GUARD + room + GUARD, POISON, np.uint8)
        self.begin, self.end = GUARD, GUARD + given.nbytes
        if not poisoned:
            self.image[self.begin : self.end] = np.frombuffer(given.tobytes(), np.uint8)
        self.memory = self.check(self.cu.cuMemAlloc(self.image.nbytes), "memory")
        pointer = int(self.memory) + GUARD
        self.array = DeviceArray(pointer, given.shape, _strides(given.shape), given.dtype, None)

    def fill(self) -> None:
        """As it was at first."""
        self.check(self.cu.cuMemcpyHtoD(self.memory, self.image.ctypes.data, self.image.nbytes), "a copy")

    def read(self) -> tuple[Any, bool]:
        """(its bytes now, whether the guards stand)."""
        found = np.empty_like(self.image)
        self.check(self.cu.cuMemcpyDtoH(found.ctypes.data, self.memory, found.nbytes), "a copy")
        around = np.concatenate([found[: self.begin], found[self.end :]])
        return found[self.begin : self.end], bool((around == POISON).all())

    def free(self) -> None:
        """Gives the memory back."""
        self.cu.cuMemFree(self.memory)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[d + 1 :])) for d in range(len(shape)))


def checked(entry: Entry, repeats: int) -> str:
    """What a program gave; every output is poisoned before every launch, and no guard may change."""
    from tilewright.targets.nvidia import driver
    from tilewright.targets.nvidia.launch import Launch

    text, arguments, results = program(entry["kind"], entry["seed"])
    if text != entry["text"]:
        return "NOT MADE ALIKE here: another Python, or other generators"
    loaded = driver.Loaded(entry["ptx"], entry["emitted"])
    order = re.findall(r"%(\w+): (in|out|inout) global", text.splitlines()[0])
    arrays = [Guarded(arguments[name], role == "out") for name, role in order]
    launch = Launch(loaded, entry["emitted"], [a.array for a in arrays], 1 + entry["seed"] % 5)
    for number in range(repeats):
        for array in arrays:
            array.fill()
        launch()
        for array, (place, _) in zip(arrays, order, strict=True):
            found, whole = array.read()
            if not whole:
                return f"WRITES OUTSIDE of argument {place} in launch {number}"
            given = arguments[place]
            wanted = results.get(place, given)
            if found.tobytes() != wanted.tobytes():
                got, want = (np.frombuffer(d.tobytes(), given.dtype).astype(np.float64) for d in (found, wanted))
                wrong = np.nonzero(~(got == want))[0]
                if len(wrong):
                    where = tuple(int(n) for n in np.unravel_index(wrong[0], given.shape))
                    values = f"{got[wrong[0]]}, not {want[wrong[0]]}"
                    return f"WRONG in launch {number}: argument {place}, {len(wrong)} of {got.size}, {where}: {values}"
    for array in arrays:
        array.free()
    return "exact"


def batch(file: Path, first: int, step: int, repeats: int, seconds: int = SECONDS) -> None:
    """Every step-th program from one on; a line each. A program that hangs ends the process."""
    entries = pickle.loads(lzma.decompress(file.read_bytes()))
    for number in range(first, len(entries), step):
        what = f"{number} {entries[number]['kind']} {entries[number]['seed']}"
        what += f" ({entries[number]['fault']})" if "fault" in entries[number] else ""
        print(f"{what} began", flush=True)
        signal.alarm(seconds)
        try:
            said = checked(entries[number], repeats)
        except RuntimeError as fault:  # what the driver says; its context is of no use any more
            print(f"{what} FAULT {fault}", flush=True)
            sys.exit(1)
        print(f"{what} {said}", flush=True)
    print("done", flush=True)


def run(file: Path, repeats: int, seconds: int = SECONDS) -> int:
    """All programs; prints those that are not exact, and how many are."""
    began = time.perf_counter()

    def lane(first: int) -> list[str]:
        found: list[str] = []
        while True:
            numbers = (first, PROCESSES, repeats, seconds)
            command = [sys.executable, __file__, "batch", str(file), *map(str, numbers)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = done.stdout.strip().splitlines()
            found += [line for line in lines if not line.endswith("began") and line != "done"]
            if not lines:
                return [*found, f"no process for {first}: {done.stderr.strip()[-300:]}"]
            if lines[-1] == "done":
                return found
            if lines[-1].endswith("began"):
                found.append(lines[-1].replace("began", f"HANGS or dies: {done.stderr.strip()[-200:]}"))
            first = int(lines[-1].split()[0]) + PROCESSES
            if len(found) > 4000:
                return found

    with ThreadPoolExecutor(PROCESSES) as pool:
        said = [line for lines in pool.map(lane, range(PROCESSES)) for line in lines]
    wrong = [line for line in said if not line.endswith(" exact")]
    print(*sorted(wrong, key=lambda line: int(line.split()[0]) if line[0].isdigit() else -1), sep="\n")
    took = time.perf_counter() - began
    print(f"{len(said) - len(wrong)} of {len(said)} programs exact in {repeats} launches each, {took:.0f} s")
    return bool(wrong)


def main() -> int:
    """make, run, or one of the run's processes."""
    what, file, *rest = sys.argv[1:]
    if what == "make":
        make(Path(file), int(rest[0]) if rest else 100)
        return 0
    if what == "run":
        return run(Path(file), *map(int, rest or ["3"]))
    if what == "compile":
        sys.stdout.buffer.write(pickle.dumps([compiled(file, seed, program(file, seed)[0]) for seed in map(int, rest)]))
        return 0
    if what == "batch":
        batch(Path(file), *map(int, rest))
        return 0
    entries = pickle.loads(lzma.decompress(Path(file).read_bytes()))
    said = checked(entries[int(rest[0])], 1)
    print(rest[0], entries[int(rest[0])]["kind"], entries[int(rest[0])]["seed"], said)
    return said != "exact"


if __name__ == "__main__":
    sys.exit(main())
