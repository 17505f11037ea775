"""Programs from their text: the inverse of `printer`, on every level."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tilewright.algebra.expr import Expr, Symbol, symbol
from tilewright.algebra.expr_text import parse_expr
from tilewright.errors import ExpressionError, LimitExceeded, ParseError, ProgramError
from tilewright.ir.attrs import LASTING, kind_of, split
from tilewright.ir.core import Block, Level, MemoryType, Op, OpSpec, Program, TileType, Value, building
from tilewright.ir.dtypes import dtype
from tilewright.ir.location import TextLocation
from tilewright.ir.notation import NotationPiece, leading, pieces
from tilewright.limits import NESTING, RANK, integer

_BLANK = re.compile(r"(?:\s+|#[^\n]*)+")  # comments run to the end of the line
_WORD = re.compile(r"[A-Za-z_]\w*")
_EQUALS = re.compile(r"\s*=")
_VALUE = re.compile(r"%(\w+)")


def parse_program(text: str, levels: Mapping[str, Level]) -> Program:
    """The program that the text prints; its first word names the level."""
    (program,) = parse_programs(text, levels, most=1)
    return program


def parse_programs(text: str, levels: Mapping[str, Level], most: int | None = None) -> list[Program]:
    """The programs that the text prints, one after another."""
    with building():
        reader = Reader(text, levels)
        found = [reader.program()]
        reader.skip()
        while reader.at < len(text) and (most is None or len(found) < most):
            found.append(reader.program())
            reader.skip()
        if reader.at < len(text):
            raise reader.fail("expected the end of the program")
        return found


class Reader:
    """A recursive-descent reader; `at` is the place in the text that is read next."""

    def __init__(self, text: str, levels: Mapping[str, Level]):
        self.text, self.levels, self.at = text, levels, 0
        self.level: Level | None = None
        self.values: dict[str, Value] = {}
        self.symbols: dict[str, Symbol] = {}
        self.known: dict[str, Expr] = {}  # expressions read before: the same few occur again and again
        self.types: dict[str, TileType | MemoryType] = {}
        self.after_ranges: tuple[str, ...] = ()
        self.depth = 0

    # -- characters ---------------------------------------------------------------------------------

    def skip(self) -> None:
        """Past white space and comments."""
        here = self.text[self.at : self.at + 1]
        if here.isspace() or here == "#":
            found = _BLANK.match(self.text, self.at)
            assert found is not None
            self.at = found.end()

    def fail(self, what: str, at: int | None = None) -> ParseError:
        """The error to raise, with the line and a caret at the place."""
        at = self.at if at is None else at
        if not self.text[at:].strip():  # what is missing stands after the last line that says something
            at, what = len(self.text.rstrip()), f"{what}; the text ends here"
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        line = self.text[start : len(self.text) if end < 0 else end]
        number = self.text.count("\n", 0, at) + 1
        return ParseError(f"line {number}: {what}", line, at - start)

    def peek(self, token: str) -> bool:
        """Whether the token stands next."""
        self.skip()
        return self.text.startswith(token, self.at)

    def accept(self, token: str) -> bool:
        """Reads the token if it stands next."""
        if self.peek(token):
            self.at += len(token)
            return True
        return False

    def expect(self, token: str) -> None:
        """Reads the token, which must stand next."""
        if not self.accept(token):
            raise self.fail(f"expected {token!r}")

    def match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """Reads what the pattern matches, which must stand next."""
        self.skip()
        found = pattern.match(self.text, self.at)
        if found is None:
            raise self.fail(f"expected {what}")
        self.at = found.end()
        return found

    def integer(self, pattern: re.Pattern[str], what: str) -> int:
        """Reads an integer."""
        self.skip()
        start = self.at
        return self.number(self.match(pattern, what).group(), start)

    def number(self, text: str, at: int) -> int:
        """The integer of a text that stands at a place."""
        try:
            return integer(text)
        except LimitExceeded as fault:
            raise self.fail(str(fault), at) from None

    @contextmanager
    def nested(self, at: int | None = None) -> Iterator[None]:
        """Within it, what is read stands one bracket, call or block deeper."""
        self.depth += 1
        if NESTING.refuses(self.depth):
            raise self.fail(NESTING.rule, at)
        yield
        self.depth -= 1

    def word(self, what: str = "a name") -> str:
        """Reads a name."""
        return self.match(_WORD, what).group()

    def peek_word(self) -> str:
        """The name that stands next, or nothing."""
        self.skip()
        found = _WORD.match(self.text, self.at)
        return found.group() if found else ""

    def keyword(self, word: str) -> None:
        """Reads a word that must stand here."""
        if self.peek_word() != word:
            raise self.fail(f"expected {word!r}")
        self.word()

    def until(self, stops: str, words: tuple[str, ...] = ()) -> Expr:
        """The expression up to one of the characters (or the two dots of a range), or up to one of the words."""
        self.skip()
        depth, start = 0, self.at
        while self.at < len(self.text):
            c = self.text[self.at]
            if depth == 0:
                if stops == "..":
                    if self.text.startswith("..", self.at):
                        break
                elif c in stops or c in "#\n":
                    break
                if words and (c.isalpha() or c == "_"):
                    word = _WORD.match(self.text, self.at)
                    if word is not None and word.group() in words:
                        break
                    self.at += len(word.group()) if word else 1
                    continue
            depth += (c in "([{") - (c in ")]}")
            self.at += 1
        return self.expr(self.text[start : self.at].rstrip(), start)

    def bind(self, found: Symbol, at: int) -> Symbol:
        """The symbol's name means this symbol from here on."""
        if found.name in self.symbols:
            raise self.fail(f"{found.name} already has a meaning here", at)
        self.symbols = {**self.symbols, found.name: found}
        self.known = {}
        return found

    def scope(self, symbols: dict[str, Symbol]) -> None:
        """Back to the symbols that were known before."""
        if symbols is not self.symbols:
            self.symbols, self.known = symbols, {}

    def enclosed(self, close: str) -> str:
        """The text up to the closing bracket, which is read too; brackets inside may nest."""
        opened: list[int] = []
        start = self.at
        while self.at < len(self.text):
            c = self.text[self.at]
            if not opened and c == close:
                self.at += 1
                return self.text[start : self.at - 1]
            if c in "([{":
                opened.append(self.at)
            elif c in ")]}" and opened and self.text[opened[-1]] + c not in ("()", "[]", "{}"):
                break
            elif c in ")]}" and opened:
                opened.pop()
            self.at += 1
        inside = ""
        if opened:
            line = self.text.count("\n", 0, opened[-1]) + 1
            inside = f"; {self.text[opened[-1]]!r} in line {line} is not closed either"
        raise self.fail(f"no {close!r} closes this{inside}", start)

    # -- parts --------------------------------------------------------------------------------------

    def expr(self, text: str, at: int) -> Expr:
        """The expression of a text that stands at a place."""
        found = self.known.get(text)
        if found is not None:
            return found
        try:
            found = self.known[text] = parse_expr(text, self.symbols)
            return found
        except ParseError as fault:
            lead = len(text) - len(text.lstrip())
            raise self.fail(str(fault).splitlines()[0], at + lead + fault.position) from None

    def exprs(self, text: str, at: int) -> tuple[Expr, ...]:
        """The expressions of a text, between commas."""
        return tuple(self.expr(part, at + start) for part, start in split(text))

    def type(self) -> Any:
        """Reads a type of the level."""
        if self.level is not None and self.level.read_type is not None:
            return self.level.read_type(self)
        self.skip()
        end = self.text.find("]", self.at) + 1
        text = self.text[self.at : end]
        found = self.types.get(text)
        if found is None:
            found = self.new_type()
            if self.at == end:
                self.types[text] = found
        self.at = max(self.at, end)
        if isinstance(found, MemoryType) and self.peek_word() == "sized":
            self.word()
            self.expect("[")
            start = self.at
            extents = [
                None if part.strip() == "_" else self.expr(part, start + place)
                for part, place in split(self.enclosed("]"))
            ]
            return MemoryType(found.dtype, found.dims, found.space, tuple(extents))
        return found

    def new_type(self) -> TileType | MemoryType:
        """Reads a type of the tile level."""
        word = self.word("a type")
        space = None
        if word in ("global", "shared", "local"):
            space, word = word, self.word("an element type")
        try:
            element = dtype(word)
        except ProgramError as fault:
            raise self.fail(str(fault), self.at - len(word)) from None
        self.expect("[")
        start = self.at
        dims = self.exprs(self.enclosed("]"), start)
        if RANK.refuses(len(dims)):
            raise self.fail(f"{dims[0]} and {len(dims) - 1} more dimensions; {RANK.rule}", start)
        return TileType(element, dims) if space is None else MemoryType(element, dims, space)

    def attributes(self, spec: OpSpec) -> dict[str, Any]:
        """Reads `name=value` pairs."""
        found: dict[str, Any] = {}
        while True:
            self.skip()
            start = self.at
            word = self.peek_word()
            if word not in spec.attrs or not _EQUALS.match(self.text, self.at + len(word)):
                break
            self.word()
            self.expect("=")
            if word in found:
                raise self.fail(f"the attribute {word} is given twice", start)
            found[word] = kind_of(spec.attrs[word]).read(self, [])
        for name, kind in spec.attrs.items():
            if name not in found and not kind.endswith("?"):
                raise self.fail(f"{spec.name} needs the attribute {name}")
        return {name: found[name] for name in spec.attrs if name in found}

    def new_value(self) -> tuple[str, int]:
        """Reads the name of a value, %x."""
        self.skip()
        start = self.at
        return self.match(_VALUE, "a value such as %x").group(1), start

    def define(self, name: str, type_: Any, at: int) -> Value:
        """A value of that name is known from here on."""
        if name in self.values:
            raise self.fail(f"%{name} is defined twice", at)
        value = Value(type_, None if name.isdigit() else name)
        self.values[name] = value
        return value

    def use(self) -> Value:
        """Reads a value that is known."""
        name, start = self.new_value()
        if name not in self.values:
            raise self.fail(f"%{name} is not defined here", start)
        return self.values[name]

    # -- programs -----------------------------------------------------------------------------------

    def program(self) -> Program:
        """Reads a whole program."""
        self.values, self.symbols, self.known, self.types = {}, {}, {}, {}
        self.depth = 0
        self.skip()
        start = self.at
        word = self.word("the name of a level")
        level = self.levels.get(word)
        if level is None:
            raise self.fail(f"there is no level {word}; there are {', '.join(self.levels)}", start)
        self.level, self.after_ranges = level, level.after_ranges
        name = self.word("the program's name")
        self.expect("(")
        arguments_at = self.at
        self.enclosed(")")  # types mention symbols that are declared further down: read later
        bindings: dict[Expr, Any] = {}
        records: list[Op] = []
        if level.declares_symbols:
            self.declarations()
        while not self.peek("{"):
            start = self.at
            word = self.word("a record or {")
            if word == "bind" and level.declares_symbols:
                line_end = self.text.find("\n", self.at)
                row = self.text[self.at : line_end if line_end >= 0 else len(self.text)]
                left, _, right = row.partition("=")
                key = self.expr(left, self.at)
                bindings[key] = self.expr(right, self.at + len(left) + 1)
                self.at += len(row)
            elif word in level.records:
                spec = level.records[word]
                if spec.notation is not None:
                    self.at = start
                    records.append(self.notated(spec, level))
                else:
                    records.append(Op(spec, (), self.attributes(spec), loc=TextLocation(self.text, start)))
            else:
                raise self.fail(f"there is no record {word}; there are {', '.join(level.records) or 'none'}", start)
        after = self.at
        self.at = arguments_at
        args = self.typed_values(")")
        self.at = after
        self.expect("{")
        body = Block(())
        self.block(body, level)
        return Program(level, name, args, body, records, bindings)

    def declarations(self) -> None:
        """Reads the symbols that the header lists."""
        for word, lowest in (("symbols", 0), ("values", None)):
            if self.peek_word() == word:
                self.word()
                while True:
                    name = self.word("a symbol")
                    self.symbols[name] = symbol(name, lowest)
                    if not self.accept(","):
                        break

    def typed_values(self, close: str) -> tuple[Value, ...]:
        """Reads values with their types."""
        found = []
        while not self.accept(close):
            name, start = self.new_value()
            self.expect(":")
            found.append(self.define(name, self.type(), start))
            if not self.peek(close):
                self.expect(",")
        return tuple(found)

    def block(self, block: Block, level: Level, keep: bool = False) -> None:
        """Reads operations up to the closing brace."""
        outside, symbols = dict(self.values), self.symbols
        with self.nested():
            while not self.accept("}"):
                block.ops.append(self.op(level))
        if not keep:
            self.values = outside
            self.scope(symbols)

    def op(self, level: Level) -> Op:
        """Reads an operation."""
        results: list[tuple[str, int]] = []
        if self.peek("%"):
            results.append(self.new_value())
            while self.accept(","):
                results.append(self.new_value())
            if not self.accept("="):
                names = ", ".join(f"%{name}" for name, _ in results)
                raise self.fail(f"expected '=' after {names}, which begins an operation", results[-1][1])
        self.skip()
        start = self.at
        word = self.word("an operation")
        spec = level.ops.get(word)
        if spec is None:
            raise self.fail(f"there is no operation {word} on the {level.name} level", start)
        if spec.notation is not None:
            self.at = start
            op = self.notated(spec, level)
            if len(op.results) != len(results):
                raise self.fail(f"{word} gives {len(op.results)} results, not {len(results)}", start)
            op.results = tuple(self.define(n, r.type, at) for (n, at), r in zip(results, op.results, strict=True))
            return op
        operands: list[Value] = []
        if self.peek("%"):
            operands.append(self.use())
            while self.accept(","):
                operands.append(self.use())
        attrs = self.attributes(spec)
        blocks = []
        for _ in range(spec.blocks):
            self.expect("(")
            outside = dict(self.values)
            inner = Block(self.typed_values(")"))
            self.expect("{")
            self.block(inner, level)
            self.values = outside
            blocks.append(inner)
        types: list[Any] = []
        if results:
            self.expect(":")
            types.append(self.type())
            while self.accept(","):
                types.append(self.type())
            if len(types) != len(results):
                raise self.fail(f"{len(results)} results, but {len(types)} types")
        values = [self.define(name, t, at) for (name, at), t in zip(results, types, strict=True)]
        return Op(spec, tuple(operands), attrs, tuple(values), tuple(blocks), TextLocation(self.text, start))

    def notated(self, spec: OpSpec, level: Level) -> Op:
        """An operation in its own notation; result types follow from the rest."""
        assert spec.notation is not None
        self.skip()
        start = self.at
        op = Op(spec, (), {}, loc=TextLocation(self.text, start))
        symbols = self.symbols
        operands: list[Value] = []
        blocks: list[Block] = []

        def read(these: tuple[NotationPiece, ...]) -> None:
            for piece in these:
                match piece.what:
                    case "literal":
                        if piece.text.isidentifier():
                            self.keyword(piece.text)
                        else:
                            self.expect(piece.text)
                    case "group":
                        if self._stands(leading(piece), spec):
                            read(piece.inner)
                    case "flag":
                        self.keyword(piece.text)
                        op.attrs[piece.text] = True
                    case "operand":
                        operands.append(self.use())
                        if not piece.text.isdigit():
                            while self.accept(","):
                                operands.append(self.use())
                    case "attribute":
                        op.attrs[piece.text] = kind_of(spec.attrs[piece.text]).read(self, operands)
                    case "block":
                        self.expect("{")
                        inner = Block(())
                        self.block(inner, level, keep=spec.chained)
                        blocks.append(inner)

        values = dict(self.values) if spec.blocks else self.values
        try:
            read(pieces(spec.notation))
        except ProgramError as fault:
            raise fault if fault.location is not None else type(fault)(fault.what, op.loc) from None
        except ExpressionError as fault:
            raise self.fail(str(fault), start) from None
        if not spec.keeps:
            self.values = values
        if not any(kind.rstrip("?") in LASTING for kind in spec.attrs.values()) and not spec.keeps:
            self.scope(symbols)
        op.operands, op.blocks = tuple(operands), tuple(blocks)
        op.attrs = {name: op.attrs[name] for name in spec.attrs if name in op.attrs}
        try:
            types = () if spec.result_types is None else spec.result_types(op)
            if spec.check is not None:
                spec.check(op)
        except ProgramError as fault:
            if fault.location is None:
                raise type(fault)(fault.what, op.loc) from None
            raise
        op.results = tuple(Value(t) for t in types)
        return op

    def _stands(self, piece: NotationPiece, spec: OpSpec) -> bool:
        """Whether an optional group is there: its first word or sign stands next."""
        if piece.what == "operand":
            return self.peek("%")
        if piece.what == "attribute":
            return self.peek(kind_of(spec.attrs[piece.text]).opens)
        if piece.what in ("literal", "flag") and piece.text.isidentifier():
            if self.level is not None and piece.text in self.level.ops:  # on another line it is an operation
                return bool(re.compile(rf"[ \t]*{piece.text}\b").match(self.text, self.at))
            return self.peek_word() == piece.text
        return self.peek("{" if piece.what == "block" else piece.text)
