"""Atomic writing of files: a temporary file is renamed when it is complete."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from tilewright.errors import ArgumentError
from tilewright.limits import written


def named_path(path: object) -> Path:
    """Return `path`, which a caller gave, as a Path. Raise ArgumentError unless it is a text or path that ends in a
    file name.

    >>> named_path("")
    Traceback (most recent call last):
    tilewright.errors.ArgumentError: path='': the path of a file, such as 'kernels/gemm.o'
    """
    if not isinstance(path, str | os.PathLike) or isinstance(path, bytes) or not Path(path).name:
        raise ArgumentError(f"path={written(path, 60)}: the path of a file, such as 'kernels/gemm.o'")
    return Path(path)


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to the file `path` atomically: readers see the old or the new content, even if this process is
    killed.

    Raise ArgumentError if the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as fault:
        raise ArgumentError(
            f"path: {path} cannot be written: {fault.strerror}; name a file in a folder that can"
        ) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
