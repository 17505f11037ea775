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
    """Return the layout that `text` describes in CuTe's notation, shape:stride; without a stride it is packed.

    A layout at an offset is read too, `134 + (2,4):(1,16)` or `(8,4) + (4,4):(1@0,1@1)`, and one after a swizzle,
    `S<3,4,3> o 0 o (8,64):(64,1)`; both give a ComposedLayout. Raise ParseError for other texts.

    Post-condition: parse_layout(str(L)) == L for a layout L, unless its outer function is neither a swizzle nor None.

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
    layout = reader.swizzled_layout()
    reader.end()
    return layout


class _Reader:
    """A recursive-descent reader over the tokens of one text."""

    def __init__(self, text: str):
        self.text = text
        self.tokens: list[tuple[str, int]] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                start = position + len(text[position:]) - len(text[position:].lstrip())
                raise ParseError(f"{text[start]!r} has no meaning in a layout", text, start)
            self.tokens.append((match.group(1), match.start(1)))
            position = match.end()
        self.at = self.depth = 0

    def peek(self) -> str:
        """Return the next token without consuming it; "" at the end of the text."""
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def fail(self, what: str) -> ParseError:
        """Return (not raise) a ParseError with the message `what` that points at the next token."""
        if self.at >= len(self.tokens):
            return ParseError(f"{what}; the text ends here", self.text, len(self.text))
        return ParseError(what, self.text, self.tokens[self.at][1])

    def take(self, token: str) -> None:
        """Consume the next token, which must be `token`; raise ParseError for another token."""
        if self.peek() != token:
            raise self.fail(f"expected {token}")
        self.at += 1

    def end(self) -> None:
        """Raise ParseError unless all tokens are consumed."""
        if self.at < len(self.tokens):
            raise self.fail("expected the end of the layout")

    def swizzled_layout(self) -> Layout | ComposedLayout:
        """Consume and return a layout, which may follow a swizzle and an offset: `S<3,4,3> o 0 o (8,64):(64,1)`.

        With a swizzle or an offset the result is a ComposedLayout. Raise ParseError if the next tokens are no layout.
        """
        if not self.peek().startswith("S"):
            return self.offset_layout(None, "+")
        start = self.at
        texts = re.findall(r"-?\d+", self.peek())
        self.at += 1
        swizzle = self.build(start, lambda: Swizzle(*map(integer, texts)))
        self.take("o")
        offset_layout = self.offset_layout(swizzle, "o")
        return offset_layout if isinstance(offset_layout, ComposedLayout) else ComposedLayout(swizzle, 0, offset_layout)

    def offset_layout(self, outer: Swizzle | None, sign: str) -> Layout | ComposedLayout:
        """Consume and return a layout, or an offset, the token `sign` and a layout, as in `134 + (2,4):(1,16)`.

        With an offset the result is a ComposedLayout with the outer function `outer`. Raise ParseError for other
        tokens.
        """
        start = self.at
        first = self.integers()
        if self.peek() != sign:
            return self.layout_after_shape(start, first)
        offset = self.build(start, as_int_tuple, first, "offset")
        self.at += 1
        start = self.at
        layout = self.layout_after_shape(start, self.integers())
        return self.build(start, lambda: ComposedLayout(outer, offset, layout))  # type: ignore[no-any-return]

    def layout_after_shape(self, start: int, shape: Any) -> Layout:
        """Return the layout of `shape`, which was read at token number `start`.

        If the next token is ":", the stride is read; otherwise the layout is packed. Raise ParseError if shape and
        stride are no layout.
        """
        stride = None
        if self.peek() == ":":
            self.at += 1
            stride = self.integers()
        layout: Layout = self.build(start, Layout, shape, stride)
        return layout

    def build(self, start: int, make: Callable[..., Any], *parts: Any) -> Any:
        """Return make(*parts); a LayoutError or LimitExceeded becomes a ParseError that points at token
        number `start`.
        """
        try:
            return make(*parts)
        except (LayoutError, LimitExceeded) as fault:
            raise ParseError(str(fault), self.text, self.tokens[start][1]) from None

    def integers(self) -> Any:
        """Consume and return an int, a nested tuple of ints, or a basis stride such as 3@1. (4) is a tuple of one mode,
        4 an int.

        Raise ParseError if the next tokens are neither a number nor a tuple.
        """
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
