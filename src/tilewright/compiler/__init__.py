"""From programs to what can be called: `compile` takes kernels, `compile_text` programs of the lower levels."""

from tilewright.compiler.kernels import Executable, compile
from tilewright.compiler.text import TextExecutable, compile_text

__all__ = ["Executable", "TextExecutable", "compile", "compile_text"]
