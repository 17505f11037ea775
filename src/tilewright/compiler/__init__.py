"""From programs to executables: `compile` takes kernels, `compile_text` takes programs of the lower levels as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.lazy import offered

if TYPE_CHECKING:
    from tilewright.compiler.kernels import Executable, compile
    from tilewright.compiler.text import TextExecutable, compile_text

__all__ = ["Executable", "TextExecutable", "compile", "compile_text"]
__getattr__, __dir__ = offered(__name__, {"kernels": "Executable compile", "text": "TextExecutable compile_text"})
