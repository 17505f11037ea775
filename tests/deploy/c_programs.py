"""C programs that call exported kernels, built with a strict C compiler, linked with libc and pthread alone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
from exported_kernels import SEVERAL, arrays_for, compiled_case, run_compiled
from more_exported_kernels import ALL, CALL_SIZES

import tilewright

CC = shutil.which("cc")
STRICT = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"]
CALLER = Path(__file__).parent / "caller.c"


def built(files, threads: int, *, options: tuple[str, ...] = ("-nodefaultlibs", "-lc", "-lpthread")) -> Path:
    """A program that calls an exported kernel."""
    name, folder = files.manifest["name"], files.code.parent
    program = folder / f"call_{name}_{threads}"
    defined = [f"-DNAME={name}", f'-DHEADER="{files.header.name}"', f"-DTHREADS={threads}"]
    command = [CC, *STRICT, *defined, f"-I{folder}", str(CALLER), str(files.code), *options, "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True)
    return program


def called(program: Path, arrays: list[np.ndarray], sizes: list[int], **more: str) -> tuple[list[np.ndarray], str]:
    """What the program makes of arrays, and what it prints."""
    paths = [program.with_name(f"buffer{n}") for n in range(len(arrays))]
    for path, array in zip(paths, arrays, strict=True):
        path.write_bytes(array.tobytes())
    command = [str(program), *map(str, sizes), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=more)
    return [
        np.frombuffer(p.read_bytes(), a.dtype).reshape(a.shape) for p, a in zip(paths, arrays, strict=True)
    ], done.stdout


def differing_arguments(name: str, folder: Path) -> list[str]:
    """Return the arguments of a kernel that C leaves with other bits than the compiled kernel does, one text for each.

    One thread calls it, then three. The kernel is exported to a folder, and called on small integers.
    """
    kernel = compiled_case(ALL[name])
    files = tilewright.export(kernel, folder / name, name=name)
    calls = {**SEVERAL, **CALL_SIZES}.get(name)
    given = arrays_for(files.manifest, np.random.default_rng(8), calls)
    wanted = [a.copy() for a in given]
    run_compiled(kernel, wanted, calls)
    sizes = [calls[row["name"]] for row in files.manifest["sizes"]]
    differing = []
    for threads in (1, 3):
        results, _ = called(built(files, threads), given, sizes)
        for argument, mine, theirs in zip(files.manifest["arguments"], results, wanted, strict=True):
            if mine.tobytes() != theirs.tobytes():
                differing.append(f"{argument['name']} with {threads} threads")
    return differing
