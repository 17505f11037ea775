"""More than fifty exported kernels called from C, with one thread and with three: do they give the compiled one's bits?

    .venv/bin/python benchmarks/calls_from_c.py [NAME ...]

Types, ranks, open sizes, workspaces, constant arguments, several outputs, numbers, attention, convolutions. Each
kernel is linked into a program that is built with `cc -Wall -Wextra -Werror -pedantic` and needs libc and pthread.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "deploy")]

from c_programs import CC, differing_arguments  # noqa: E402
from more_exported_kernels import ALL  # noqa: E402


def main() -> None:
    """Calls the kernels that are named, or all."""
    if CC is None:
        sys.exit("there is no C compiler (cc) on PATH")
    names = sys.argv[1:] or list(ALL)
    unknown = [name for name in names if name not in ALL]
    if unknown:
        sys.exit(f"there is no kernel {', '.join(unknown)}; there are {', '.join(ALL)}")
    start, wrong = time.perf_counter(), 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            differing = differing_arguments(name, Path(folder))
        wrong += bool(differing)
        print(f"{name:24} {', '.join(differing) or 'the same bits'}", flush=True)
    print(f"{len(names) - wrong} of {len(names)} kernels give the same bits; {time.perf_counter() - start:.0f} s")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
