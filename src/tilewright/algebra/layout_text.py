"""Layouts from text: `parse_layout("((2,2),8):((1,4),2)")`, the inverse of `str(layout)`."""

from __future__ import annotations

import re
from typing import Any

from tilewright.algebra.basis import ScaledBasis
from tilewright.algebra.layout import Layout
from tilewright.algebra.swizzle import ComposedLayout, Swizzle
from tilewright.errors import LayoutError, ParseError

_TOKEN = re.compile(r"\s*(-?\d+(?:@\d+)*|[(),:+o]|Sw?<\s*-?\d+\s*,\s*-?\d+\s*,\s*-?\d+\s*>)")


def parse_layout(text: str) -> Layout | ComposedLayout:
    """The layout that `text` prints; without a stride, packed with the first mode fastest.

    Post-condition: parse_layout(str(L)) == L. Also read: `S<3,4,3> o 0 o (8,64):(64,1)` and `134 + (2,4):(1,16)`.

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
        self.at = 0

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead][0] if self.at + ahead < len(self.tokens) else ""

    def fail(self, what: str) -> ParseError:
        position = self.tokens[self.at][1] if self.at < len(self.tokens) else len(self.text)
        return ParseError(what, self.text, position)

    def take(self, token: str) -> None:
        if self.peek() != token:
            raise self.fail(f"expected {token}")
        self.at += 1

    def end(self) -> None:
        if self.at < len(self.tokens):
            raise self.fail("expected the end of the layout")

    def composed(self) -> Layout | ComposedLayout:
        if self.peek().startswith("S"):
            bits, base, shift = (int(n) for n in re.findall(r"-?\d+", self.peek()))
            self.at += 1
            self.take("o")
            offset = 0
            if self.peek(1) == "o":
                offset = self.integers()
                self.take("o")
            return ComposedLayout(Swizzle(bits, base, shift), offset, self.plain())
        if self.peek(1) == "+":
            offset = self.integers()
            self.take("+")
            return ComposedLayout(None, offset, self.plain())
        return self.plain()

    def plain(self) -> Layout:
        start = self.at
        shape = self.integers()
        stride = None
        if self.peek() == ":":
            self.at += 1
            stride = self.integers()
        try:
            return Layout(shape, stride)
        except LayoutError as fault:
            raise ParseError(str(fault), self.text, self.tokens[start][1]) from None

    def integers(self) -> Any:
        """An int tuple; (4) is a tuple of one mode, 4 an int."""
        token = self.peek()
        if token == "(":
            self.at += 1
            parts = []
            while self.peek() != ")":
                parts.append(self.integers())
                if self.peek() == ",":
                    self.at += 1
                elif self.peek() != ")":
                    raise self.fail("expected , or )")
            self.at += 1
            return tuple(parts)
        if not re.match(r"-?\d", token):
            raise self.fail("expected a number or (")
        self.at += 1
        value, *path = (int(n) for n in token.split("@"))
        return ScaledBasis(value, tuple(reversed(path))) if path else value
