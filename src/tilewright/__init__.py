"""Tilewright: a Python tile-kernel language and compiler for convolution and matrix product.

The parts are loaded when they are first touched, so that `import tilewright` stays cheap:

>>> import tilewright
>>> tilewright.algebra.Layout((4, 8))
Layout((4, 8), (1, 4))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright._version import __version__
from tilewright.lazy import offered

if TYPE_CHECKING:
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

_PLACES = dict.fromkeys(("algebra", "block", "compat", "errors", "ir", "kernels", "lang", "problems", "wave"), "")
_PLACES |= {
    "compiler": "Executable TextExecutable compile compile_text",
    "deploy.exporting": "export",
    "deploy.loading": "load",
    "ops": "Conv Conv1d Conv2d Conv3d Linear conv1d conv2d conv3d matmul",
}
__getattr__, _ = offered(__name__, _PLACES)


def __dir__() -> list[str]:
    return sorted(__all__)
