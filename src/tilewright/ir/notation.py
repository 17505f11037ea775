"""Parse the one-line notation that says how an operation is written; the printer and the parser both work from it.

| piece     | meaning                                                               |
|-----------|-----------------------------------------------------------------------|
| word, ->  | literal text                                                          |
| $0, $1    | an operand                                                            |
| $*        | all remaining operands, separated by commas                           |
| $<, $>    | the first half of the operands, the second half                       |
| {name}    | an attribute                                                          |
| {}        | a block                                                               |
| [ ... ]   | optional: present if its first attribute, block or flag is            |
| ?word     | a flag: the attribute of that name is true where the word stands      |

`copy $0 -> $1[ else {otherwise}]` prints `copy %a -> %b else 0`. White space is printed as
written; the parser accepts any.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

_PIECE = re.compile(r"\$(\d+|[*<>])|\{(\w*)\}|(\[)|(\])|\?(\w+)|(\w+|[^\s\w\[\]{}$?]+)|(\s+)")


@dataclass(frozen=True)
class NotationPiece:
    """One piece of a notation line, for instance a word, an operand or an optional group.

    `what` is the kind of piece. `text` is its word, attribute name or operand number. `inner` holds the pieces of a
    group.
    """

    what: str  # operand, attribute, block, group, flag, literal, space
    text: str = ""
    inner: tuple[NotationPiece, ...] = ()


@cache
def pieces(notation: str) -> tuple[NotationPiece, ...]:
    """Parse `notation`, the one-line syntax of an operation, into its pieces in order.

    The pieces of an optional group `[...]` are nested in one piece.

    >>> [p.what for p in pieces("fill $0 {value}")]
    ['literal', 'space', 'operand', 'space', 'attribute']
    """
    stack: list[list[NotationPiece]] = [[]]
    position = 0
    while position < len(notation):
        match = _PIECE.match(notation, position)
        assert match is not None, notation[position:]
        operand, attribute, opens_group, closes_group, flag, literal, space = match.groups()
        if opens_group:
            stack.append([])
        elif closes_group:
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
        position = match.end()
    return tuple(stack[0])


def leading(group: NotationPiece) -> NotationPiece:
    """Return the first piece that is not white space of `group`, an optional group of a notation line.

    The parser reads the group if the text continues with this piece: for `[ else {otherwise}]`, the word `else`.
    """
    return next(p for p in group.inner if p.what != "space")


def deciding(group: NotationPiece) -> NotationPiece | None:
    """Return the first attribute, flag or block in `group`, an optional group of a notation line; None if it has none.

    The printer writes the group if the operation has this attribute, flag or block.
    """
    return next((p for p in group.inner if p.what in ("attribute", "flag", "block")), None)
