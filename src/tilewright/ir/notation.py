"""How an operation is written: one line of notation, from which the printer and the parser both work.

| piece     | stands for                                                            |
|-----------|-----------------------------------------------------------------------|
| word, ->  | itself                                                                |
| $0, $1    | an operand                                                            |
| $*        | all operands that are left, with commas                               |
| $<, $>    | the first half of the operands, the second                            |
| {name}    | an attribute                                                          |
| {}        | a block                                                               |
| [ ... ]   | may be left out: there if its first attribute, block or flag is       |
| ?word     | a flag: the attribute of that name is true where the word stands      |

`copy $0 -> $1[ else {otherwise}]` prints `copy %a -> %b else 0`. White space is printed as it stands, and read as any.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

_PIECE = re.compile(r"\$(\d+|[*<>])|\{(\w*)\}|(\[)|(\])|\?(\w+)|(\w+|[^\s\w\[\]{}$?]+)|(\s+)")


@dataclass(frozen=True)
class NotationPiece:
    """One piece of notation: what it is, its text, and for a group the pieces in it."""

    what: str  # operand, attribute, block, group, flag, literal, space
    text: str = ""
    inner: tuple[NotationPiece, ...] = ()


@cache
def pieces(notation: str) -> tuple[NotationPiece, ...]:
    """The pieces of a notation.

    >>> [p.what for p in pieces("fill $0 {value}")]
    ['literal', 'space', 'operand', 'space', 'attribute']
    """
    stack: list[list[NotationPiece]] = [[]]
    at = 0
    while at < len(notation):
        found = _PIECE.match(notation, at)
        assert found is not None, notation[at:]
        operand, attribute, opened, closed, flag, literal, space = found.groups()
        if opened:
            stack.append([])
        elif closed:
            inner = tuple(stack.pop())
            stack[-1].append(NotationPiece("group", "", inner))
        elif operand is not None:
            stack[-1].append(NotationPiece("operand", operand))
        elif attribute is not None:
            stack[-1].append(NotationPiece("attribute", attribute) if attribute else NotationPiece("block"))
        elif flag is not None:
            stack[-1].append(NotationPiece("flag", flag))
        elif literal is not None:
            stack[-1].append(NotationPiece("literal", literal))
        else:
            stack[-1].append(NotationPiece("space", space))
        at = found.end()
    return tuple(stack[0])


def leading(group: NotationPiece) -> NotationPiece:
    """The first piece of a group that is not white space: the text by which its presence is seen."""
    return next(p for p in group.inner if p.what != "space")


def deciding(group: NotationPiece) -> NotationPiece | None:
    """The piece that says whether a group is printed: its first attribute, flag or block."""
    return next((p for p in group.inner if p.what in ("attribute", "flag", "block")), None)
