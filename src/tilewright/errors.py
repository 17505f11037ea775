"""Every error Tilewright raises on purpose, in one place.

Each message names the thing, its value and the way out. All derive from `TilewrightError` and, where a
builtin exception fits, from that too, so that `except ValueError` keeps working.
"""

from __future__ import annotations


class TilewrightError(Exception):
    """The base of all errors raised by Tilewright."""


class LayoutError(TilewrightError, ValueError):
    """A layout operation that cannot be done; the message names the layouts and the failing mode."""


class ExpressionError(TilewrightError, ValueError):
    """An integer expression that has no meaning here: an unknown symbol, a true value asked of a condition."""


class NotExact(ExpressionError, ArithmeticError):
    """`a / b` was evaluated where b does not divide a."""


class AccessError(TilewrightError, ValueError):
    """A transform, access or cut that cannot be done; the message names the axis or the divisors."""


class ParseError(TilewrightError, ValueError):
    """Text that is not in the notation; the message shows the text with a caret under the fault."""

    def __init__(self, what: str, text: str, position: int):
        self.text = text
        self.position = position
        super().__init__(f"{what}\n  {text}\n  {' ' * position}^")
