"""Programs from their text: the inverse of `printer`, on every level."""

from __future__ import annotations

import json
import re
from typing import Any

from tilewright.algebra.expr import Expr, Symbol, symbol
from tilewright.algebra.expr_text import parse_expr
from tilewright.errors import ParseError, ProgramError
from tilewright.ir.core import Block, Level, MemoryType, Op, OpSpec, Program, TileType, Value, building
from tilewright.ir.dtypes import dtype

_BLANK = re.compile(r"(?:\s+|#[^\n]*)+")  # comments run to the end of the line
_WORD = re.compile(r"[A-Za-z_]\w*")
_EQUALS = re.compile(r"\s*=")
_VALUE = re.compile(r"%(\w+)")
_NUMBER = re.compile(r"-?(?:inf|nan|\d+(?:\.\d*)?(?:e[+-]?\d+)?)")


def parse_program(text: str, levels: dict[str, Level]) -> Program:
    """The program that the text prints; its first word names the level."""
    with building():
        return _Reader(text, levels).program()


class _Reader:
    """A recursive-descent reader; `at` is the place in the text that is read next."""

    def __init__(self, text: str, levels: dict[str, Level]):
        self.text, self.levels, self.at = text, levels, 0
        self.values: dict[str, Value] = {}
        self.symbols: dict[str, Symbol] = {}
        self.known: dict[str, Expr] = {}  # expressions read before: the same few occur again and again
        self.types: dict[str, TileType | MemoryType] = {}

    # -- characters ---------------------------------------------------------------------------------

    def skip(self) -> None:
        found = _BLANK.match(self.text, self.at)
        if found is not None:
            self.at = found.end()

    def fail(self, what: str, at: int | None = None) -> ParseError:
        at = self.at if at is None else at
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        line = self.text[start : len(self.text) if end < 0 else end]
        number = self.text.count("\n", 0, at) + 1
        return ParseError(f"line {number}: {what}", line, at - start)

    def peek(self, token: str) -> bool:
        self.skip()
        return self.text.startswith(token, self.at)

    def accept(self, token: str) -> bool:
        if self.peek(token):
            self.at += len(token)
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.fail(f"expected {token!r}")

    def match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        self.skip()
        found = pattern.match(self.text, self.at)
        if found is None:
            raise self.fail(f"expected {what}")
        self.at = found.end()
        return found

    def word(self, what: str = "a name") -> str:
        return self.match(_WORD, what).group()

    def peek_word(self) -> str:
        self.skip()
        found = _WORD.match(self.text, self.at)
        return found.group() if found else ""

    def enclosed(self, close: str) -> str:
        """The text up to the closing bracket, which is read too; brackets inside may nest."""
        depth, start = 0, self.at
        while self.at < len(self.text):
            c = self.text[self.at]
            if depth == 0 and c == close:
                self.at += 1
                return self.text[start : self.at - 1]
            depth += (c in "([{") - (c in ")]}")
            self.at += 1
        raise self.fail(f"no {close!r} closes this", start)

    # -- parts --------------------------------------------------------------------------------------

    def expr(self, text: str, at: int) -> Expr:
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
        return tuple(self.expr(part, at + start) for part, start in _split(text))

    def type(self) -> TileType | MemoryType:
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
                for part, place in _split(self.enclosed("]"))
            ]
            return MemoryType(found.dtype, found.dims, found.space, tuple(extents))
        return found

    def new_type(self) -> TileType | MemoryType:
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
        return TileType(element, dims) if space is None else MemoryType(element, dims, space)

    def attr(self, kind: str) -> Any:
        self.skip()
        start = self.at
        match kind.rstrip("?"):
            case "int":
                return int(self.match(re.compile(r"-?\d+"), "an integer").group())
            case "number":
                return _number(self.match(_NUMBER, "a number").group())
            case "bool":
                word = self.word("true or false")
                if word not in ("true", "false"):
                    raise self.fail("expected true or false", start)
                return word == "true"
            case "str":
                found = self.match(re.compile(r'"(?:[^"\\]|\\.)*"'), "a text in quotes")
                return json.loads(found.group())
            case "name":
                return self.word()
            case "dtype":
                try:
                    return dtype(self.word("an element type"))
                except ProgramError as fault:
                    raise self.fail(str(fault), start) from None
            case "expr":
                self.expect("(")
                start = self.at
                return self.expr(self.enclosed(")"), start)
            case "exprs":
                self.expect("[")
                start = self.at
                return self.exprs(self.enclosed("]"), start)
            case "numexpr":
                return self.attr("expr") if self.peek("(") else self.attr("number")
            case "lookups":
                self.expect("[")
                start = self.at
                rows = []
                for row, place in _split(self.enclosed("]")):
                    name, _, rest = row.partition(":")
                    inner = rest.strip()
                    at = start + place + row.index("[") + 1
                    symbol_ = self.expr(name.strip(), start + place)
                    rows.append((symbol_, self.exprs(inner[1:-1], at)))
                return tuple(rows)
            case "table":
                self.expect("{")
                start = self.at
                pairs = []
                for row, place in _split(self.enclosed("}")):
                    key, _, value = row.partition(":")
                    at = start + place
                    pairs.append((self.expr(key, at), self.expr(value, at + len(key) + 1)))
                return tuple(pairs)
        raise AssertionError(kind)

    def attributes(self, spec: OpSpec) -> dict[str, Any]:
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
            found[word] = self.attr(spec.attrs[word])
        for name, kind in spec.attrs.items():
            if name not in found and not kind.endswith("?"):
                raise self.fail(f"{spec.name} needs the attribute {name}")
        return {name: found[name] for name in spec.attrs if name in found}

    def new_value(self) -> tuple[str, int]:
        self.skip()
        start = self.at
        return self.match(_VALUE, "a value such as %x").group(1), start

    def define(self, name: str, type_: Any, at: int) -> Value:
        if name in self.values:
            raise self.fail(f"%{name} is defined twice", at)
        value = Value(type_, None if name.isdigit() else name)
        self.values[name] = value
        return value

    def use(self) -> Value:
        name, start = self.new_value()
        if name not in self.values:
            raise self.fail(f"%{name} is not defined here", start)
        return self.values[name]

    # -- programs -----------------------------------------------------------------------------------

    def program(self) -> Program:
        start = self.at
        word = self.word("the name of a level")
        level = self.levels.get(word)
        if level is None:
            raise self.fail(f"there is no level {word}; there are {', '.join(self.levels)}", start)
        name = self.word("the program's name")
        self.expect("(")
        arguments_at = self.at
        self.enclosed(")")  # types mention symbols that are declared further down: read later
        after = self.at
        bindings: dict[Expr, Any] = {}
        records: list[Op] = []
        self.declarations()
        after = self.at
        self.at = arguments_at
        args = self.typed_values(")")
        self.at = after
        while not self.peek("{"):
            start = self.at
            word = self.word("a record or {")
            if word == "bind":
                line_end = self.text.find("\n", self.at)
                row = self.text[self.at : line_end if line_end >= 0 else len(self.text)]
                left, _, right = row.partition("=")
                key = self.expr(left, self.at)
                bindings[key] = self.expr(right, self.at + len(left) + 1)
                self.at += len(row)
            elif word in level.records:
                spec = level.records[word]
                records.append(Op(spec, (), self.attributes(spec)))
            else:
                raise self.fail(f"there is no record {word}; there are {', '.join(level.records) or 'none'}", start)
        self.expect("{")
        body = Block(())
        self.block(body, level)
        self.skip()
        if self.at < len(self.text):
            raise self.fail("expected the end of the program")
        return Program(level, name, args, body, records, bindings)

    def declarations(self) -> None:
        for word, lowest in (("symbols", 0), ("values", None)):
            if self.peek_word() == word:
                self.word()
                while True:
                    name = self.word("a symbol")
                    self.symbols[name] = symbol(name, lowest)
                    if not self.accept(","):
                        break

    def typed_values(self, close: str) -> tuple[Value, ...]:
        found = []
        while not self.accept(close):
            name, start = self.new_value()
            self.expect(":")
            found.append(self.define(name, self.type(), start))
            if not self.peek(close):
                self.expect(",")
        return tuple(found)

    def block(self, block: Block, level: Level) -> None:
        outside = dict(self.values)
        while not self.accept("}"):
            block.ops.append(self.op(level))
        self.values = outside

    def op(self, level: Level) -> Op:
        results: list[tuple[str, int]] = []
        if self.peek("%"):
            results.append(self.new_value())
            while self.accept(","):
                results.append(self.new_value())
            self.expect("=")
        self.skip()
        start = self.at
        word = self.word("an operation")
        spec = level.ops.get(word)
        if spec is None:
            raise self.fail(f"there is no operation {word} on the {level.name} level", start)
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
        return Op(spec, tuple(operands), attrs, tuple(values), tuple(blocks))


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def _split(text: str) -> list[tuple[str, int]]:
    """The parts between commas that stand outside all brackets, with their places."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c == "," and depth == 0:
            parts.append((text[start:i], start))
            start = i + 1
        depth += (c in "([{") - (c in ")]}")
    if text[start:].strip() or parts:
        parts.append((text[start:], start))
    return parts
