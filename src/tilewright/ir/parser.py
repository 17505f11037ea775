"""Parse programs of every level from text; the inverse of `printer`."""

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
    """Parse a text that holds exactly one program.

    `levels` maps each level name that the text may begin with, such as "tile", to the level.
    """
    (program,) = parse_programs(text, levels, most=1)
    return program


def parse_programs(text: str, levels: Mapping[str, Level], most: int | None = None) -> list[Program]:
    """Parse one or more programs that follow each other in a text; raise ParseError if there are more than `most`.

    `levels` maps each level name that a program may begin with, such as "tile", to the level.
    """
    with building():
        reader = Reader(text, levels)
        programs = [reader.program()]
        reader.skip()
        while reader.at < len(text) and (most is None or len(programs) < most):
            programs.append(reader.program())
            reader.skip()
        if reader.at < len(text):
            raise reader.fail("expected the end of the program")
        return programs


class Reader:
    """A recursive-descent parser over one text; `at` is the offset of the next character to read."""

    def __init__(self, text: str, levels: Mapping[str, Level]):
        self.text, self.levels, self.at = text, levels, 0
        self.level: Level | None = None
        self.values: dict[str, Value] = {}
        self.symbols: dict[str, Symbol] = {}
        self.known: dict[str, Expr] = {}  # cache of parsed expressions, of which a few recur often
        self.types: dict[str, TileType | MemoryType] = {}
        self.after_ranges: tuple[str, ...] = ()
        self.depth = 0

    # -- characters ---------------------------------------------------------------------------------

    def skip(self) -> None:
        """Move past white space and comments."""
        here = self.text[self.at : self.at + 1]
        if here.isspace() or here == "#":
            match = _BLANK.match(self.text, self.at)
            assert match is not None
            self.at = match.end()

    def fail(self, what: str, at: int | None = None) -> ParseError:
        """Return (do not raise) the ParseError for message `what`, with the line and a caret at offset `at` of the
        text.

        `at` defaults to the current position.
        """
        at = self.at if at is None else at
        if not self.text[at:].strip():  # point behind the last line that is not blank
            at, what = len(self.text.rstrip()), f"{what}; the text ends here"
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        line = self.text[start : len(self.text) if end < 0 else end]
        number = self.text.count("\n", 0, at) + 1
        return ParseError(f"line {number}: {what}", line, at - start)

    def peek(self, token: str) -> bool:
        """True if `token` comes next after white space; nothing but the white space is read."""
        self.skip()
        return self.text.startswith(token, self.at)

    def accept(self, token: str) -> bool:
        """Read `token` if it comes next; return whether it did."""
        if self.peek(token):
            self.at += len(token)
            return True
        return False

    def expect(self, token: str) -> None:
        """Read `token`; raise ParseError if the text continues with anything else."""
        if not self.accept(token):
            raise self.fail(f"expected {token!r}")

    def match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """Read the text that matches `pattern` and return the match; raise ParseError "expected <what>" if there is
        none.
        """
        self.skip()
        match = pattern.match(self.text, self.at)
        if match is None:
            raise self.fail(f"expected {what}")
        self.at = match.end()
        return match

    def integer(self, pattern: re.Pattern[str], what: str) -> int:
        """Read the text that matches `pattern` and return it as an integer; raise ParseError "expected <what>" if none
        does.
        """
        self.skip()
        start = self.at
        return self.number(self.match(pattern, what).group(), start)

    def number(self, text: str, at: int) -> int:
        """Return the integer that `text` spells; raise ParseError at offset `at` if it exceeds
        the limit on integers.
        """
        try:
            return integer(text)
        except LimitExceeded as fault:
            raise self.fail(str(fault), at) from None

    @contextmanager
    def nested(self, at: int | None = None) -> Iterator[None]:
        """Context manager that counts one more level of nesting (bracket, call or block) while its body reads.

        Raise ParseError at offset `at` if that is deeper than the limit.
        """
        self.depth += 1
        if NESTING.refuses(self.depth):
            raise self.fail(NESTING.rule, at)
        yield
        self.depth -= 1

    def word(self, what: str = "a name") -> str:
        """Read an identifier and return it; raise ParseError "expected <what>" if there is none."""
        return self.match(_WORD, what).group()

    def peek_word(self) -> str:
        """Return the identifier that comes next without reading it, or ""."""
        self.skip()
        match = _WORD.match(self.text, self.at)
        return match.group() if match else ""

    def keyword(self, word: str) -> None:
        """Read the identifier `word`; raise ParseError if the text continues with anything else."""
        if self.peek_word() != word:
            raise self.fail(f"expected {word!r}")
        self.word()

    def until(self, stops: str, words: tuple[str, ...] = ()) -> Expr:
        """Read and parse an expression that ends before one of the characters in `stops`, or before one of `words`.

        With `stops` "..", it ends before the two dots of a range. Stops inside brackets do not count. A comment or the
        end of the line also ends the expression, except with "..".
        """
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

    def bind(self, new: Symbol, at: int) -> Symbol:
        """Declare a symbol: its name means this symbol in the text that follows.

        Raise ParseError at offset `at` if the name is already declared here. Return the symbol.
        """
        if new.name in self.symbols:
            raise self.fail(f"{new.name} already has a meaning here", at)
        self.symbols = {**self.symbols, new.name: new}
        self.known = {}
        return new

    def scope(self, symbols: dict[str, Symbol]) -> None:
        """Restore `symbols`, an earlier table of declared symbols, at the end of a scope."""
        if symbols is not self.symbols:
            self.symbols, self.known = symbols, {}

    def enclosed(self, close: str) -> str:
        """Read up to and including the bracket `close`, and return the text before it; nested brackets are skipped as a
        whole.
        """
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
        """Parse `text` as an expression over the declared symbols; errors point at offset `at`, where `text` begins."""
        parsed = self.known.get(text)
        if parsed is not None:
            return parsed
        try:
            parsed = self.known[text] = parse_expr(text, self.symbols)
            return parsed
        except ParseError as fault:
            lead = len(text) - len(text.lstrip())
            raise self.fail(str(fault).splitlines()[0], at + lead + fault.position) from None

    def exprs(self, text: str, at: int) -> tuple[Expr, ...]:
        """Parse `text` as expressions separated by commas; errors point into the text, which begins at offset `at`."""
        return tuple(self.expr(part, at + start) for part, start in split(text))

    def type(self) -> Any:
        """Read and return a type of the current level, such as `f32[M, N]` at the tile level."""
        if self.level is not None and self.level.read_type is not None:
            return self.level.read_type(self)
        self.skip()
        end = self.text.find("]", self.at) + 1
        text = self.text[self.at : end]
        type_ = self.types.get(text)
        if type_ is None:
            type_ = self.new_type()
            if self.at == end:
                self.types[text] = type_
        self.at = max(self.at, end)
        if isinstance(type_, MemoryType) and self.peek_word() == "sized":
            self.word()
            self.expect("[")
            start = self.at
            extents = [
                None if part.strip() == "_" else self.expr(part, start + place)
                for part, place in split(self.enclosed("]"))
            ]
            return MemoryType(type_.dtype, type_.dims, type_.space, tuple(extents))
        return type_

    def new_type(self) -> TileType | MemoryType:
        """Read a tile-level type: a register tile such as `f32[M, N]`, or memory such as `global f32[M, N]`."""
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
        """Read the `name=value` pairs of an operation; raise ParseError if one is repeated or a required one is
        missing.

        Return the values by name, in the order of the operation's spec.
        """
        values: dict[str, Any] = {}
        while True:
            self.skip()
            start = self.at
            word = self.peek_word()
            if word not in spec.attrs or not _EQUALS.match(self.text, self.at + len(word)):
                break
            self.word()
            self.expect("=")
            if word in values:
                raise self.fail(f"the attribute {word} is given twice", start)
            values[word] = kind_of(spec.attrs[word]).read(self, [])
        for name, kind in spec.attrs.items():
            if name not in values and not kind.endswith("?"):
                raise self.fail(f"{spec.name} needs the attribute {name}")
        return {name: values[name] for name in spec.attrs if name in values}

    def new_value(self) -> tuple[str, int]:
        """Read a value name such as `%x`; return the name without % and its offset in the text."""
        self.skip()
        start = self.at
        return self.match(_VALUE, "a value such as %x").group(1), start

    def define(self, name: str, type_: Any, at: int) -> Value:
        """Declare and return a value called `name` of type `type_`; raise ParseError at offset `at` if the name is
        taken.
        """
        if name in self.values:
            raise self.fail(f"%{name} is defined twice", at)
        value = Value(type_, None if name.isdigit() else name)
        self.values[name] = value
        return value

    def use(self) -> Value:
        """Read a value name such as `%x` and return the value it refers to, which must be defined."""
        name, start = self.new_value()
        if name not in self.values:
            raise self.fail(f"%{name} is not defined here", start)
        return self.values[name]

    # -- programs -----------------------------------------------------------------------------------

    def program(self) -> Program:
        """Read a complete program: its level, name, arguments, header records and body."""
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
        self.enclosed(")")  # types use symbols that are declared further down: parsed later
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
        """Read the `symbols` line (never negative) and the `values` line (any integer) of a header, and declare their
        names.
        """
        for word, lowest in (("symbols", 0), ("values", None)):
            if self.peek_word() == word:
                self.word()
                while True:
                    name = self.word("a symbol")
                    self.symbols[name] = symbol(name, lowest)
                    if not self.accept(","):
                        break

    def typed_values(self, close: str) -> tuple[Value, ...]:
        """Read and declare values with their types, `%x: TYPE, %y: TYPE`, up to and including the bracket `close`."""
        values = []
        while not self.accept(close):
            name, start = self.new_value()
            self.expect(":")
            values.append(self.define(name, self.type(), start))
            if not self.peek(close):
                self.expect(",")
        return tuple(values)

    def block(self, block: Block, level: Level, keep: bool = False) -> None:
        """Read operations into `block` up to and including the closing brace.

        Values and symbols that the block defines are forgotten at its end, unless `keep` is true.
        """
        outside, symbols = dict(self.values), self.symbols
        with self.nested():
            while not self.accept("}"):
                block.ops.append(self.op(level))
        if not keep:
            self.values = outside
            self.scope(symbols)

    def op(self, level: Level) -> Op:
        """Read one operation of a level with its results, such as `%0 = add %a, %b : f32[M]`, and return it."""
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
        """Read and return an operation that has a notation of its own (`OpSpec.notation`), up to its end.

        Its result types are inferred, not read.
        """
        assert spec.notation is not None
        self.skip()
        start = self.at
        op = Op(spec, (), {}, loc=TextLocation(self.text, start))
        symbols = self.symbols
        operands: list[Value] = []
        blocks: list[Block] = []

        def read(notation: tuple[NotationPiece, ...]) -> None:
            for piece in notation:
                match piece.what:
                    case "literal":
                        if piece.text.isidentifier():
                            self.keyword(piece.text)
                        else:
                            self.expect(piece.text)
                    case "group":
                        if self._is_next(leading(piece), spec):
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

    def _is_next(self, piece: NotationPiece, spec: OpSpec) -> bool:
        """True if the text continues with `piece`, the leading piece of an optional group of the notation of `spec`.

        If so, the group is present.
        """
        if piece.what == "operand":
            return self.peek("%")
        if piece.what == "attribute":
            return self.peek(kind_of(spec.attrs[piece.text]).opens)
        if piece.what in ("literal", "flag") and piece.text.isidentifier():
            if self.level is not None and piece.text in self.level.ops:  # a keyword on another line is an operation
                return bool(re.compile(rf"[ \t]*{piece.text}\b").match(self.text, self.at))
            return self.peek_word() == piece.text
        return self.peek("{" if piece.what == "block" else piece.text)
