"""Tilewright: a Python tile-kernel language and compiler for convolution and matrix product.

The parts are loaded when they are first touched, so that `import tilewright` stays cheap:

>>> import tilewright
>>> tilewright.algebra.Layout((4, 8))
Layout((4, 8), (1, 4))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tilewright._version import __version__

if TYPE_CHECKING:
    from types import ModuleType

    from tilewright import algebra

__all__ = ["__version__", "algebra"]

_PARTS = frozenset({"algebra"})


def __getattr__(name: str) -> ModuleType:
    if name in _PARTS:
        return importlib.import_module(f"tilewright.{name}")
    raise AttributeError(f"module 'tilewright' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
