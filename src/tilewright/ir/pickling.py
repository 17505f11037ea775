"""Programs between processes: by their text, which says all that they mean; and functions, by their names."""

from __future__ import annotations

import sys
from typing import Any

from tilewright.errors import NotPicklable
from tilewright.ir.core import Program
from tilewright.ir.parser import parse_program


def program_of(level: str, text: str, hooks: dict[str, Any]) -> Program:
    """The program that a text of a level is; places in it are places of the text."""
    from tilewright.ir.block import BLOCK
    from tilewright.ir.host import HOST
    from tilewright.ir.loop import LOOP
    from tilewright.ir.tile import TILE

    levels = {each.name: each for each in (TILE, BLOCK, LOOP, HOST)}
    found = parse_program(text, {level: levels[level]})
    found.hooks = hooks
    return found


def found_by_name(x: Any) -> Any:
    """What a process that knows only the module and the name of `x` finds; None where there is nothing."""
    found: Any = sys.modules.get(getattr(x, "__module__", None) or "")
    for name in getattr(x, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    return found


class FoundByName:
    """A kernel between processes: as a function, it goes by its name, and a copy is the kernel itself."""

    __name__: str
    __qualname__: str

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce__(self) -> str:
        """Its name: it is found again in its module."""
        if found_by_name(self) is not self:
            raise NotPicklable(
                f"the kernel {self.__name__} is not {self.__module__}.{self.__qualname__}, where another process would "
                "look for it: define it at the top of a module, or pickle kernel.trace(), or what compile gives"
            )
        return str(self.__qualname__)


def require_importable(function: Any, what: str) -> None:
    """Raises unless another process finds the function by its name; `what` it is goes into the message."""
    if function is not None and found_by_name(function) is not function:
        raise NotPicklable(f"{what}, {function!r}, is found by no name; define it at the top of a module")
