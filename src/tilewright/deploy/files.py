"""Files that appear whole: written beside their place, then moved there in one step."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from tilewright.errors import ArgumentError
from tilewright.limits import written


def named_path(path: object) -> Path:
    """The path of a file that a caller names; raises where it names none.

    >>> named_path("")
    Traceback (most recent call last):
    tilewright.errors.ArgumentError: path='': the path of a file, such as 'kernels/gemm.o'
    """
    if not isinstance(path, str | os.PathLike) or isinstance(path, bytes) or not Path(path).name:
        raise ArgumentError(f"path={written(path, 60)}: the path of a file, such as 'kernels/gemm.o'")
    return Path(path)


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file; a reader sees the old one or the new one, and a process that is killed leaves no part of one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as fault:
        raise ArgumentError(
            f"path: {path} cannot be written: {fault.strerror}; name a file in a folder that can"
        ) from None
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
