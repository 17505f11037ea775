"""Tilewright: a Python tile-kernel language and compiler for convolution and matrix product.

The parts are loaded when they are first touched, so that `import tilewright` stays cheap:

>>> import tilewright
>>> tilewright.algebra.Layout((4, 8))
Layout((4, 8), (1, 4))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tilewright._version import __version__

if TYPE_CHECKING:
    from types import ModuleType

    from tilewright import algebra, block, compat, errors, ir, kernels, lang, problems, wave
    from tilewright.compiler import Executable, TextExecutable, compile, compile_text
    from tilewright.deploy.exporting import export
    from tilewright.deploy.loading import load
    from tilewright.ops import Conv, Conv1d, Conv2d, Conv3d, Linear, conv1d, conv2d, conv3d, matmul

__all__ = [
    "Conv",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Executable",
    "Linear",
    "TextExecutable",
    "__version__",
    "algebra",
    "block",
    "compat",
    "compile",
    "compile_text",
    "conv1d",
    "conv2d",
    "conv3d",
    "errors",
    "export",
    "ir",
    "kernels",
    "lang",
    "load",
    "matmul",
    "problems",
    "wave",
]

_PARTS = frozenset({"algebra", "block", "compat", "errors", "ir", "kernels", "lang", "problems", "wave"})
_NAMES = dict.fromkeys(("Executable", "TextExecutable", "compile", "compile_text"), "tilewright.compiler")
_NAMES |= {"export": "tilewright.deploy.exporting", "load": "tilewright.deploy.loading"}
_NAMES |= dict.fromkeys(
    ("Conv", "Conv1d", "Conv2d", "Conv3d", "Linear", "conv1d", "conv2d", "conv3d", "matmul"), "tilewright.ops"
)


def __getattr__(name: str) -> ModuleType | Any:
    if name in _PARTS:
        return importlib.import_module(f"tilewright.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'tilewright' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
