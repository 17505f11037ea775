"""Arrays that lie against pages which nobody may touch: a program that reads or writes past them ends at once.

    python tests/runtime/guarded.py

runs the convolutions of examples/block on such arrays, at their end and at their beginning.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_kept: list[mmap.mmap] = []


def guarded(array: Array, at: str) -> Array:
    """A copy of the array whose last byte ("end") or first byte ("begin") lies beside a protected page.

    At the other side, too, a page is protected, less than a page away.
    """
    page = mmap.PAGESIZE
    room = max(1, -(-array.nbytes // page)) * page
    memory = mmap.mmap(-1, room + 2 * page)
    _kept.append(memory)  # it is never unmapped: the pages stay protected
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (base, base + page + room):
        if _libc.mprotect(guard, page, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = page if at == "begin" else page + room - array.nbytes
    found: Array = np.frombuffer(memory, np.uint8, array.nbytes, offset).view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def run(name: str, params: dict[str, int], at: str, workers: int) -> None:
    """Runs a convolution of the examples, and compares its result exactly."""
    import block_checks

    from tilewright.compiler.text import compile_text

    case = getattr(block_checks, name)(**params)
    program = compile_text(block_checks.source(name), "cpu", case.params, workers=workers)
    made = np.full(case.wanted.shape, np.nan).astype(program.main.args[-1].type.dtype.numpy)
    output = guarded(made, at)
    program.bind(*(guarded(array, at) for array in case.arguments), output)()
    assert block_checks.exactly(np.array(output), case.wanted), (name, case.params, at)


SHAPES: list[tuple[str, dict[str, int]]] = [
    ("conv_amx", {}),
    ("conv_amx", {"H": 5, "W": 7, "STRIP": 5}),
    ("conv_amx", {"H": 9, "W": 33, "STRIP": 3, "N": 2}),
    ("conv_amx", {"H": 4, "W": 3, "F": 64, "SPLIT": 2, "STRIP": 2, "R": 1, "S": 1, "PAD": 0}),
    ("conv_amx", {"H": 6, "W": 4, "R": 3, "S": 1, "PAD": 0, "C": 32, "CHUNK": 32, "STRIP": 4}),
    ("conv_amx", {"H": 1, "W": 1, "STRIP": 1}),
    ("conv_amx", {"H": 8, "W": 6, "R": 5, "S": 5, "PAD": 2, "STRIP": 8, "C": 128}),
    ("conv_avx512", {}),
    ("conv_avx512", {"H": 5, "W": 7, "PIX": 7}),
    ("conv_avx512", {"H": 7, "W": 9, "STRIDE": 2, "PIX": 5, "F": 64, "SPLIT": 2}),
    ("conv_avx512", {"H": 1, "W": 1, "PIX": 1, "C": 4}),
    ("conv_avx512", {"H": 9, "W": 5, "R": 5, "S": 1, "PAD": 2, "PIX": 3}),
    ("conv_avx512", {"H": 6, "W": 6, "R": 1, "S": 1, "PAD": 0, "PIX": 6, "C": 12, "N": 3}),
]


def main() -> None:
    """All shapes, at both ends, by one and by two workers."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "block"))
    warnings.simplefilter("ignore")
    for name, params in SHAPES:
        for at in ("end", "begin"):
            for workers in (1, 2):
                run(name, params, at, workers)
    sys.stdout.write(f"{len(SHAPES)} convolutions stay within their arrays\n")


if __name__ == "__main__":
    main()
