"""Parse programs of every level from text; the inverse of `printer`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tilewright.algebra.expr import Const, Expr, Symbol, symbol
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
    """Parse `text`, which must hold exactly one program, and return the program.

    `levels` is {name: level}; the text begins with one of these names, such as "tile". Raise ParseError or ProgramError
    if the text is not valid.
    """
    (program,) = parse_programs(text, levels, most=1)
    return program


def parse_programs(text: str, levels: Mapping[str, Level], most: int | None = None) -> list[Program]:
    """Parse `text`, which holds one or more programs in a row; return them as a list.

    `levels` is {level name with which a program may begin, such as "tile": level}. `most` is the largest allowed number
    of programs; None allows any number. Raise ParseError if there are more, and ParseError or ProgramError if a program
    is not valid.
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
        """Move the current position past white space and comments."""
        here = self.text[self.at : self.at + 1]
        if here.isspace() or here == "#":
            match = _BLANK.match(self.text, self.at)
            assert match is not None
            self.at = match.end()

    def fail(self, what: str, at: int | None = None) -> ParseError:
        """Return, without raising it, a ParseError with the message `what` that points at offset `at` of the text.

        `at` defaults to the current position. If only white space follows, the error points at the end of the text.
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
        """True if the text continues with `token`. White space before it is skipped; `token` itself is not consumed."""
        self.skip()
        return self.text.startswith(token, self.at)

    def accept(self, token: str) -> bool:
        """Consume `token` and return True if the text continues with it; otherwise return False."""
        if self.peek(token):
            self.at += len(token)
            return True
        return False

    def expect(self, token: str) -> None:
        """Consume `token`; raise ParseError if the text does not continue with it."""
        if not self.accept(token):
            raise self.fail(f"expected {token!r}")

    def match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """Consume the text that matches `pattern` at the current position, and return the match.

        Raise ParseError "expected <what>" if it does not match.
        """
        self.skip()
        match = pattern.match(self.text, self.at)
        if match is None:
            raise self.fail(f"expected {what}")
        self.at = match.end()
        return match

    def integer(self, pattern: re.Pattern[str], what: str) -> int:
        """Consume the text that matches `pattern` at the current position, and return it as an int.

        Raise ParseError "expected <what>" if it does not match, and ParseError for an integer of more than 512 bits.
        """
        self.skip()
        start = self.at
        return self.number(self.match(pattern, what).group(), start)

    def number(self, text: str, at: int) -> int:
        """Return the digits `text` as an int; nothing is consumed.

        Raise ParseError, pointing at offset `at`, for an integer of more than 512 bits.
        """
        try:
            return integer(text)
        except LimitExceeded as fault:
            raise self.fail(str(fault), at) from None

    @contextmanager
    def nested(self, at: int | None = None) -> Iterator[None]:
        """Context manager: text parsed inside the `with` is one level deeper (in a bracket, call or block).

        Raise ParseError if the depth exceeds the limit of 64. The error points at offset `at`, by default the current
        position.
        """
        self.depth += 1
        if NESTING.refuses(self.depth):
            raise self.fail(NESTING.rule, at)
        yield
        self.depth -= 1

    def word(self, what: str = "a name") -> str:
        """Consume an identifier and return it; raise ParseError "expected <what>" if none comes next."""
        return self.match(_WORD, what).group()

    def peek_word(self) -> str:
        """Return the identifier that comes next, without consuming it; "" if none does."""
        self.skip()
        match = _WORD.match(self.text, self.at)
        return match.group() if match else ""

    def keyword(self, word: str) -> None:
        """Consume the identifier `word`; raise ParseError if another identifier, or none, comes next."""
        if self.peek_word() != word:
            raise self.fail(f"expected {word!r}")
        self.word()

    def until(self, stops: str, words: tuple[str, ...] = ()) -> Expr:
        """Parse an expression up to one of the characters in `stops` or one of `words`, and return the expression.

        The stop itself is not consumed. If `stops` is "..", the expression ends before the two dots of a range. Stops
        in brackets do not count. A comment or the end of the line also ends the expression, except with "..". Raise
        ParseError if the expression is not valid.
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
        """Declare the symbol `new`, so that later text may use its name, and return it.

        Raise ParseError at offset `at` if the name is already declared.
        """
        if new.name in self.symbols:
            raise self.fail(f"{new.name} already has a meaning here", at)
        self.symbols = {**self.symbols, new.name: new}
        self.known = {}
        return new

    def scope(self, symbols: dict[str, Symbol]) -> None:
        """End a scope: forget the symbols that were declared in it.

        `symbols` is `self.symbols`, {name: symbol}, as it was at the start of the scope.
        """
        if symbols is not self.symbols:
            self.symbols, self.known = symbols, {}

    def enclosed(self, close: str) -> str:
        """Consume the text up to and including the closing bracket `close`; return the text without this bracket.

        The opening bracket is already consumed. Brackets within the text must match. Raise ParseError if the closing
        bracket is missing.
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
        """Parse `text` as an integer expression over the declared symbols, and return it. Nothing is consumed from the
        reader.

        Raise ParseError if it is not valid. `at` is the offset of `text` in the reader's text, for the position of the
        error.
        """
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
        """Parse `text` as integer expressions separated by commas; return a tuple. Nothing is consumed from the reader.

        Raise ParseError if one is not valid. `at` is the offset of `text` in the reader's text, for the position of the
        error.
        """
        return tuple(self.expr(part, at + start) for part, start in split(text))

    def type(self) -> Any:
        """Parse a type in the syntax of the program's level, and return it. At the tile level, an example is `f32[M,
        N]`.

        A level with a function `read_type` parses its types itself. Otherwise the type is a tile-level type; a type in
        memory may be followed by `sized [...]` and `strided [...]`. Raise ParseError if the type is not valid.
        """
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
        return self._sizes_and_strides(type_) if isinstance(type_, MemoryType) else type_

    def _sizes_and_strides(self, kind: MemoryType) -> MemoryType:
        """Parse `sized [...]` and `strided [...]`, if present, and return the type `kind` with these extents and
        strides.

        An extent `_` is None. Raise ParseError if an expression is not valid or a stride is not constant.
        """
        extents, strides = kind.extents, kind.strides
        if self.peek_word() == "sized":
            self.word()
            self.expect("[")
            start = self.at
            extents = tuple(
                None if part.strip() == "_" else self.expr(part, start + place)
                for part, place in split(self.enclosed("]"))
            )
        if self.peek_word() == "strided":
            self.word()
            self.expect("[")
            start = self.at
            steps = self.exprs(self.enclosed("]"), start)
            if not all(isinstance(e, Const) for e in steps):
                raise self.fail("strides are integers", start)
            strides = tuple(e.value for e in steps if isinstance(e, Const))
        if (extents, strides) == (kind.extents, kind.strides):
            return kind
        return MemoryType(kind.dtype, kind.dims, kind.space, extents, strides)

    def new_type(self) -> TileType | MemoryType:
        """Parse and return a tile-level type: a register tile such as `f32[M, N]`, or memory such as `global f32[M,
        N]`.

        Raise ParseError if the type is not valid or has too many dimensions.
        """
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
        """Parse the `name=value` pairs of an operation, and return {name: value} in the order of its `spec`.

        Raise ParseError if an attribute is given twice or a required one is missing.
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
        """Consume a value name such as `%x`; return (name without %, its offset in the text).

        The value need not be defined. Raise ParseError if no value name comes next.
        """
        self.skip()
        start = self.at
        return self.match(_VALUE, "a value such as %x").group(1), start

    def define(self, name: str, type_: Any, at: int) -> Value:
        """Create a value called `name` of type `type_`, so that later text may use it, and return it.

        The printer numbers unnamed values, so a name of digits only is not stored in the value. Raise ParseError at
        offset `at` if the name is already defined.
        """
        if name in self.values:
            raise self.fail(f"%{name} is defined twice", at)
        value = Value(type_, None if name.isdigit() else name)
        self.values[name] = value
        return value

    def use(self) -> Value:
        """Consume a value name such as `%x`, and return the value that it refers to.

        Raise ParseError if the value is not defined here.
        """
        name, start = self.new_value()
        if name not in self.values:
            raise self.fail(f"%{name} is not defined here", start)
        return self.values[name]

    # -- programs -----------------------------------------------------------------------------------

    def program(self) -> Program:
        """Parse one complete program, and return it: level, name, arguments, header lines and body.

        Raise ParseError or ProgramError if it is not valid.
        """
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
        """Parse the header lines `symbols M, N` and `values d`, if present, and declare the symbols that they name.

        Symbols of `symbols` are never negative; those of `values` may be any integer.
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
        """Parse `%x: TYPE, %y: TYPE` up to and including the bracket `close`; return a tuple of new values with these
        types.

        Later text may use the values. Raise ParseError if the text is not valid or a name is already defined.
        """
        values = []
        while not self.accept(close):
            name, start = self.new_value()
            self.expect(":")
            values.append(self.define(name, self.type(), start))
            if not self.peek(close):
                self.expect(",")
        return tuple(values)

    def block(self, block: Block, level: Level, keep: bool = False) -> None:
        """Parse operations up to and including the closing brace, and append them to `block`, a block of `level`.

        Values and symbols that the block defines are forgotten afterwards, unless `keep` is true. Raise ParseError or
        ProgramError if the text is not valid.
        """
        outside, symbols = dict(self.values), self.symbols
        with self.nested():
            while not self.accept("}"):
                block.ops.append(self.op(level))
        if not keep:
            self.values = outside
            self.scope(symbols)

    def op(self, level: Level) -> Op:
        """Parse one operation of `level` with its results and blocks, such as `%0 = add %a, %b : f32[M]`, and return
        it.

        Raise ParseError if there is no such operation or the text is not valid, and ProgramError if a check fails.
        """
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
        """Parse one operation of `level` in the syntax given by `spec.notation`, and return it.

        The text begins after the names of results and `=`; result types are inferred. Raise ParseError if the text is
        not valid, and ProgramError if the operation fails its checks.
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
        """True if an optional group of a notation line is present: the text continues with `piece`, the group's first
        piece.

        `spec` is the operation's specification. A keyword that is also the name of an operation must be on the same
        line. Nothing is consumed except white space and comments.
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
