"""Block kernels named on the command line as FILE.py:NAME, or FILE.py alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from tilewright.block import BlockKernel
from tilewright.cli.printing import is_file
from tilewright.errors import ArgumentError


def kernel_in(text: str) -> BlockKernel:
    """Import a Python file and return a block kernel in it. `text` is FILE.py:NAME or FILE.py.

    Without a NAME, return the kernel named like the file, otherwise the only kernel in it. Raise `ArgumentError` if
    there is no such file or kernel. Errors of the file's code are raised unchanged.
    """
    file, _, name = text.partition(":")
    path = Path(file)
    if path.suffix != ".py" or not is_file(file):
        raise ArgumentError(f"{text}: there is no file {file}; a kernel is named as FILE.py:NAME")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # its neighbours can be imported, as when it is run as a script
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    kernels = {k: v for k, v in vars(module).items() if isinstance(v, BlockKernel)}
    chosen = name or (path.stem if path.stem in kernels else next(iter(kernels), "") if len(kernels) == 1 else "")
    if chosen not in kernels:
        raise ArgumentError(f"{text}: the block kernels of {file} are {', '.join(kernels) or 'none'}; say FILE.py:NAME")
    return kernels[chosen]
