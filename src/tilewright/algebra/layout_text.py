"""Layouts from text: `parse_layout("((2,2),8):((1,4),2)")`, the inverse of `str(layout)`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tilewright.algebra.basis import ScaledBasis
from tilewright.algebra.inttuple import as_int_tuple
from tilewright.algebra.layout import Layout
from tilewright.algebra.swizzle import ComposedLayout, Swizzle
from tilewright.errors import LayoutError, LimitExceeded, ParseError
from tilewright.limits import MODES, NESTING, integer

_TOKEN = re.compile(r"\s*(-?\d+(?:@\d+)*|[(),:+o]|Sw?<\s*-?\d+\s*,\s*-?\d+\s*,\s*-?\d+\s*>)")


def parse_layout(text: str) -> Layout | ComposedLayout:
    """The layout that `text` prints; without a stride, packed with the first mode fastest.

    Also read, as they are printed: a layout at an offset, `134 + (2,4):(1,16)` or `(8,4) + (4,4):(1@0,1@1)`,
    and after a swizzle, `S<3,4,3> o 0 o (8,64):(64,1)`.

    Post-condition: parse_layout(str(L)) == L, except where L's outer function is neither a swizzle nor None.

    >>> parse_layout("(4,(2,4)):(2,(1,8))")
    Layout((4, (2, 4)), (2, (1, 8)))
    >>> parse_layout("(4,8)")
    Layout((4, 8), (1, 4))
    >>> parse_layout("(4,8:1")
    Traceback (most recent call last):
        ...
    tilewright.errors.ParseError: expected , or )
      (4,8:1
          ^
    """
    reader = _Reader(text)
    layout = reader.composed()
    reader.end()
    return layout


class _Reader:
    """A recursive-descent reader over the tokens of one text."""

    def __init__(self, text: str):
        self.text = text
        self.tokens: list[tuple[str, int]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                start = at + len(text[at:]) - len(text[at:].lstrip())
                raise ParseError(f"{text[start]!r} has no meaning in a layout", text, start)
            self.tokens.append((match.group(1), match.start(1)))
            at = match.end()
        self.at = self.depth = 0

    def peek(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def fail(self, what: str) -> ParseError:
        if self.at >= len(self.tokens):
            return ParseError(f"{what}; the text ends here", self.text, len(self.text))
        return ParseError(what, self.text, self.tokens[self.at][1])

    def take(self, token: str) -> None:
        if self.peek() != token:
            raise self.fail(f"expected {token}")
        self.at += 1

    def end(self) -> None:
        if self.at < len(self.tokens):
            raise self.fail("expected the end of the layout")

    def composed(self) -> Layout | ComposedLayout:
        if not self.peek().startswith("S"):
            return self.shifted(None, "+")
        start = self.at
        texts = re.findall(r"-?\d+", self.peek())
        self.at += 1
        swizzle = self.made(start, lambda: Swizzle(*map(integer, texts)))
        self.take("o")
        shifted = self.shifted(swizzle, "o")
        return shifted if isinstance(shifted, ComposedLayout) else ComposedLayout(swizzle, 0, shifted)

    def shifted(self, outer: Swizzle | None, sign: str) -> Layout | ComposedLayout:
        """A layout, or an offset, the sign after it and a layout."""
        start = self.at
        first = self.integers()
        if self.peek() != sign:
            return self.plain(start, first)
        offset = self.made(start, as_int_tuple, first, "offset")
        self.at += 1
        start = self.at
        layout = self.plain(start, self.integers())
        return self.made(start, lambda: ComposedLayout(outer, offset, layout))  # type: ignore[no-any-return]

    def plain(self, start: int, shape: Any) -> Layout:
        """The layout of a shape that has been read, and of the stride that may follow."""
        stride = None
        if self.peek() == ":":
            self.at += 1
            stride = self.integers()
        layout: Layout = self.made(start, Layout, shape, stride)
        return layout

    def made(self, start: int, make: Callable[..., Any], *parts: Any) -> Any:
        """What is made of the parts; where they do not fit, the fault is shown at the token `start`."""
        try:
            return make(*parts)
        except (LayoutError, LimitExceeded) as fault:
            raise ParseError(str(fault), self.text, self.tokens[start][1]) from None

    def integers(self) -> Any:
        """An int tuple; (4) is a tuple of one mode, 4 an int."""
        token = self.peek()
        if token == "(":
            self.depth += 1
            if NESTING.refuses(self.depth):
                raise self.fail(NESTING.rule)
            self.at += 1
            parts: list[Any] = []
            while self.peek() != ")":
                if MODES.refuses(len(parts)):
                    raise self.fail(MODES.rule)
                parts.append(self.integers())
                if self.peek() == ",":
                    self.at += 1
                elif self.peek() != ")":
                    raise self.fail("expected , or )")
            self.at += 1
            self.depth -= 1
            return tuple(parts)
        if not re.match(r"-?\d", token):
            raise self.fail("expected a number or (")
        self.at += 1
        try:
            value, *path = (integer(n) for n in token.split("@"))
            return ScaledBasis(value, tuple(reversed(path))) if path else value
        except (LayoutError, LimitExceeded) as fault:
            self.at -= 1
            raise self.fail(str(fault)) from None
