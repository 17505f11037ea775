"""Pickle programs by their text, which is complete, and kernels and functions by their qualified names."""

from __future__ import annotations

import sys
from typing import Any

from tilewright.errors import NotPicklable
from tilewright.ir.core import Program
from tilewright.ir.parser import parse_program


def program_of(level: str, text: str, hooks: dict[str, Any]) -> Program:
    """Unpickle a program: parse `text` at the level called `level`, and return the program with the callbacks `hooks`.

    `hooks` is {debug_log label: callbacks}. Source locations in the program point into `text`.
    """
    from tilewright.ir.block import BLOCK
    from tilewright.ir.host import HOST
    from tilewright.ir.loop import LOOP
    from tilewright.ir.tile import TILE

    levels = {known.name: known for known in (TILE, BLOCK, LOOP, HOST)}
    program = parse_program(text, {level: levels[level]})
    program.hooks = hooks
    return program


def importable_object(x: Any) -> Any:
    """Return the object that another process would find under the module and qualified name of `x`; None if there is
    none.

    The name is looked up in the modules that are loaded. For an object defined at the top of its module, the result is
    `x`.
    """
    target: Any = sys.modules.get(getattr(x, "__module__", None) or "")
    for name in getattr(x, "__qualname__", "").split("."):
        target = getattr(target, name, None)
    return target


class FoundByName:
    """Base class of kernels: pickled by name like a function, and copied as itself."""

    __name__: str
    __qualname__: str

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce__(self) -> str:
        """Return the qualified name, by which pickle finds the kernel in its module."""
        if importable_object(self) is not self:
            raise NotPicklable(
                f"the kernel {self.__name__} is not {self.__module__}.{self.__qualname__}, where another process would "
                "look for it: define it at the top of a module, or pickle kernel.trace(), or what compile gives"
            )
        return str(self.__qualname__)


def require_importable(function: Any, what: str) -> None:
    """Raise NotPicklable unless `function` is None, or another process can find it by module and qualified name.

    `what` describes the function in the message.
    """
    if function is not None and importable_object(function) is not function:
        raise NotPicklable(f"{what}, {function!r}, is found by no name; define it at the top of a module")
