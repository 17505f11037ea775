"""The kinds of attributes: for each, what values it takes, how it is printed, and how it is read back.

| kind      | value                                        | text                         |
|-----------|----------------------------------------------|------------------------------|
| int       | an int                                       | 3                            |
| number    | an int or a float                            | 0.5, inf, nan                |
| bool      | True or False                                | true                         |
| str       | text                                         | "label"                      |
| name      | an identifier                                | tf32                         |
| dotted    | a name with dots; {N} is a parameter         | matrix.m64n{BN}k16.bf16      |
| dtype     | an element type                              | f16                          |
| type      | a type of the level                          | shared f16 (64, 32)          |
| expr      | an expression                                | (M//2 + 1)                   |
| count     | an expression                                | 4, STAGES, (N//2)            |
| exprs     | a tuple of expressions                       | [M, K//2]                    |
| numexpr   | a number or an expression                    | 0.5, (M)                     |
| lookups   | tuple of (symbol, tuple of expressions)      | [d0: [i, j], d1: [i]]        |
| table     | tuple of (expression, expression)            | {M: 16, N: 0}                |
| axes      | tuple of symbols that run from 0             | (i 16, j N//2)               |
| ranges    | tuple of `Range`                             | i in 0..N, j in 4..M step 2  |
| places    | tuple of (expression, may lie outside)       | [n, p + r - 1 ?, c]          |
| definition| a symbol with a definition                   | m = t//4                     |
| formula   | a `Formula`, scalars computed from scalars   | exp2(%x*0.5 - %m)            |
| combine   | a name, or a tuple of formulas               | max, (select(a0 < b0, ...))  |
| fetches   | tuple of (symbol, expressions)               | d0 = %index[i, j]            |
| parameters| tuple of (symbol, default or None)           | BM = 128, BN, M in 1..65536  |
| sizes     | tuple of symbols                             | M, N                         |
| fetched   | a symbol, perhaps with limits                | i, i in 0..50                |
| settings  | tuple of (name, expression)                  | BM = 64, N = M//2            |

Axes, ranges and fetches *bind* their symbols for the rest of their operation and its blocks; the other kinds that bind
do so for the rest of the block, or program, that they stand in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr, index, symbol
from tilewright.errors import ProgramError, TilewrightError
from tilewright.ir.dtypes import DType, dtype, plain_number
from tilewright.ir.formula import Formula, read_formula

if TYPE_CHECKING:
    from tilewright.ir.core import Value
    from tilewright.ir.parser import Reader

Images = Callable[[Expr], Expr]


@dataclass(frozen=True)
class Range:
    """A loop variable with the numbers it takes: lo, lo + step, ... below hi.

    >>> print(Range.of("i", 0, 8, 2))
    i in 0..8 step 2
    """

    symbol: Symbol
    lo: Expr
    hi: Expr
    step: int = 1

    @classmethod
    def of(cls, name: str, lo: Any, hi: Any, step: int = 1) -> Range:
        """The range of that name; its symbol knows its limits, unless there is nothing between them."""
        lo, hi = as_expr(lo), as_expr(hi)
        empty = hi.hi <= lo.lo
        return cls(symbol(name, lo, None if empty else hi - 1), lo, hi, step)

    @property
    def rounds(self) -> int | None:
        """How many numbers it takes; None where its limits are not numbers.

        >>> Range.of("i", 0, 8, 3).rounds, Range.of("i", 5, 2).rounds, Range.of("i", 0, 10**30).rounds == 10**30
        (3, 0, True)
        """
        if not (isinstance(self.lo, Const) and isinstance(self.hi, Const)):
            return None
        return max(0, -(-(self.hi.value - self.lo.value) // self.step))

    def __str__(self) -> str:
        return f"{self.symbol.name} in {self.lo}..{self.hi}" + (f" step {self.step}" if self.step != 1 else "")


class Kind:
    """One kind of attribute; the kinds below say what differs."""

    allowed: Any = object
    binds = False
    opens = ""
    """The sign that its text begins with, where there is one."""

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """The value as it is printed; `operands` are the names of the operation's operands."""
        return str(value)

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        """The value that stands next in the text; operands met in it are appended to the operation's."""
        raise NotImplementedError

    def check(self, value: Any) -> bool:
        """Whether the value is of this kind."""
        return isinstance(value, self.allowed)

    def plain(self, value: Any) -> Any:
        """The value with numpy's numbers as Python's, which is how they print and are read back."""
        return value

    def expressions(self, value: Any) -> Iterable[Expr]:
        """Every expression in the value."""
        return ()

    def mapped(self, value: Any, images: Images) -> Any:
        """The value with every expression replaced by its image."""
        return value

    def bound(self, value: Any) -> tuple[Symbol, ...]:
        """The symbols that the value binds."""
        return ()


_INTEGER = re.compile(r"-?\d+")
_STEP = re.compile(r"\d+")
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"')


class _Numeric(Kind):
    def plain(self, value: Any) -> Any:
        found = plain_number(value)
        return value if found is None else int(found) if isinstance(found, bool) else found


class _Int(_Numeric):
    allowed = int

    def read(self, reader: Reader, operands: list[Value]) -> int:
        return reader.integer(_INTEGER, "an integer")


_NUMBER = re.compile(r"-?(?:inf|nan|\d+(?:\.\d*)?(?:e[+-]?\d+)?)")


class _Number(_Numeric):
    allowed = (int, float)

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return repr(value)

    def read(self, reader: Reader, operands: list[Value]) -> int | float:
        reader.skip()
        start = reader.at
        text = reader.match(_NUMBER, "a number").group()
        return reader.number(text, start) if _INTEGER.fullmatch(text) else float(text)


class _Bool(Kind):
    allowed = bool

    def plain(self, value: Any) -> Any:
        found = plain_number(value)
        return found if isinstance(found, bool) else value

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return "true" if value else "false"

    def read(self, reader: Reader, operands: list[Value]) -> bool:
        reader.skip()
        start = reader.at
        word = reader.word("true or false")
        if word not in ("true", "false"):
            raise reader.fail("expected true or false", start)
        return word == "true"


class _Str(Kind):
    allowed = str

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return json.dumps(value)

    def read(self, reader: Reader, operands: list[Value]) -> str:
        reader.skip()
        start = reader.at
        try:
            return str(json.loads(reader.match(_QUOTED, "a text in quotes").group()))
        except json.JSONDecodeError as fault:
            raise reader.fail(f"the text in quotes is none: {fault.msg}", start + fault.pos) from None


class _Name(Kind):
    allowed = str

    def read(self, reader: Reader, operands: list[Value]) -> str:
        return reader.word()


_DOTTED = re.compile(r"[A-Za-z_](?:\w|\{\w+\}|\.(?=\w|\{))*")


class _Dotted(Kind):
    allowed = str

    def read(self, reader: Reader, operands: list[Value]) -> str:
        return reader.match(_DOTTED, "a name such as matrix.m64n128k16.bf16").group()

    def expressions(self, value: Any) -> Iterable[Expr]:
        return [symbol(name, 0) for name in re.findall(r"\{(\w+)\}", value)]

    def mapped(self, value: Any, images: Images) -> Any:
        return re.sub(r"\{(\w+)\}", lambda found: _filled(found.group(1), images), value)


def _filled(name: str, images: Images) -> str:
    image = images(symbol(name, 0))
    return str(image) if isinstance(image, Const) else f"{{{name}}}"


class _DType(Kind):
    allowed = DType

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return str(value.name)

    def read(self, reader: Reader, operands: list[Value]) -> DType:
        reader.skip()
        start = reader.at
        try:
            return dtype(reader.word("an element type"))
        except ProgramError as fault:
            raise reader.fail(str(fault), start) from None


class _Type(Kind):
    def read(self, reader: Reader, operands: list[Value]) -> Any:
        return reader.type()

    def expressions(self, value: Any) -> Iterable[Expr]:
        found: Iterable[Expr] = value.expressions()
        return found

    def mapped(self, value: Any, images: Images) -> Any:
        return value.mapped(images)


class _Expr(Kind):
    allowed = Expr
    opens = "("

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return f"({value})"

    def read(self, reader: Reader, operands: list[Value]) -> Expr:
        reader.expect("(")
        start = reader.at
        return reader.expr(reader.enclosed(")"), start)

    def expressions(self, value: Any) -> Iterable[Expr]:
        return (value,)

    def mapped(self, value: Any, images: Images) -> Any:
        return images(value)


class _Count(_Expr):
    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return str(value) if isinstance(value, Const | Symbol) else f"({value})"

    def read(self, reader: Reader, operands: list[Value]) -> Expr:
        if reader.peek("("):
            return super().read(reader, operands)
        start = reader.at
        return reader.expr(reader.match(re.compile(r"\w+"), "a number, a name or (").group(), start)


class _Exprs(Kind):
    allowed = tuple

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return "[" + ", ".join(map(str, value)) + "]"

    def read(self, reader: Reader, operands: list[Value]) -> tuple[Expr, ...]:
        reader.expect("[")
        start = reader.at
        return reader.exprs(reader.enclosed("]"), start)

    def check(self, value: Any) -> bool:
        return isinstance(value, tuple) and all(isinstance(e, Expr) for e in value)

    def expressions(self, value: Any) -> Iterable[Expr]:
        return tuple(value)

    def mapped(self, value: Any, images: Images) -> Any:
        return tuple(images(e) for e in value)


class _NumExpr(_Numeric):
    allowed = (int, float, Expr)

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return f"({value})" if isinstance(value, Expr) else repr(value)

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        return KINDS["expr" if reader.peek("(") else "number"].read(reader, operands)

    def expressions(self, value: Any) -> Iterable[Expr]:
        return (value,) if isinstance(value, Expr) else ()

    def mapped(self, value: Any, images: Images) -> Any:
        return images(value) if isinstance(value, Expr) else value


_LOOKUP = re.compile(r"\s*(\w+)\s*:\s*\[(.*)\]\s*", re.DOTALL)


class _Lookups(Kind):
    allowed = tuple

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return "[" + ", ".join(f"{s}: [{', '.join(map(str, at))}]" for s, at in value) + "]"

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        reader.expect("[")
        start = reader.at
        rows = []
        for row, place in split(reader.enclosed("]")):
            found = _LOOKUP.fullmatch(row)
            if found is None:
                raise reader.fail(
                    f"{row.strip()!r} is no lookup: a symbol and its places, such as d0: [i, j]", start + place
                )
            looked_up = reader.expr(found[1], start + place)
            if not isinstance(looked_up, Symbol):
                raise reader.fail(f"a lookup gives a symbol its value; {looked_up} is none", start + place)
            rows.append((looked_up, reader.exprs(found[2], start + place + found.start(2))))
        return tuple(rows)

    def expressions(self, value: Any) -> Iterable[Expr]:
        return [e for d, at in value for e in (d, *at)]

    def mapped(self, value: Any, images: Images) -> Any:
        return tuple((images(d), tuple(images(e) for e in at)) for d, at in value)


class _Table(Kind):
    allowed = tuple

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return "{" + ", ".join(f"{k}: {v}" for k, v in value) + "}"

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        reader.expect("{")
        start = reader.at
        pairs = []
        for row, place in split(reader.enclosed("}")):
            key, _, value = row.partition(":")
            at = start + place
            pairs.append((reader.expr(key, at), reader.expr(value, at + len(key) + 1)))
        return tuple(pairs)

    def expressions(self, value: Any) -> Iterable[Expr]:
        return [e for pair in value for e in pair]

    def mapped(self, value: Any, images: Images) -> Any:
        return tuple((images(k), images(v)) for k, v in value)


def axis(name: str, extent: Expr) -> Symbol:
    """A coordinate that runs over 0, ..., extent - 1; where that is nothing, there is nothing to know of it."""
    empty = isinstance(extent, Const) and extent.value == 0
    return symbol(name, None, -1) if empty else index(name, extent)


class _Axes(Kind):
    allowed = tuple
    binds = True
    opens = "("

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return "(" + ", ".join(f"{s.name} {s.upper + 1}" for s in value) + ")"

    def read(self, reader: Reader, operands: list[Value]) -> tuple[Symbol, ...]:
        reader.expect("(")
        found = []
        while not reader.accept(")"):
            start = reader.at
            name = reader.word("an axis such as i 16")
            extent = reader.until(",)")
            try:
                found.append(reader.bind(axis(name, extent), start))
            except TilewrightError as fault:
                raise reader.fail(str(fault), start) from None
            if not reader.peek(")"):
                reader.expect(",")
        return tuple(found)

    def check(self, value: Any) -> bool:
        return isinstance(value, tuple) and all(isinstance(s, Symbol) and s.upper is not None for s in value)

    def expressions(self, value: Any) -> Iterable[Expr]:
        return [s.upper for s in value]

    def mapped(self, value: Any, images: Images) -> Any:
        return tuple(axis(s.name, images(s.upper + 1)) for s in value)

    def bound(self, value: Any) -> tuple[Symbol, ...]:
        return tuple(value)


class _Ranges(Kind):
    allowed = tuple
    binds = True

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return ", ".join(map(str, value))

    def read(self, reader: Reader, operands: list[Value]) -> tuple[Range, ...]:
        found = []
        while True:
            reader.skip()
            start = reader.at
            name = reader.word("a loop variable")
            reader.keyword("in")
            lo = reader.until("..")
            reader.expect("..")
            hi = reader.until(",{", words=("step", *reader.after_ranges))
            step = 1
            if reader.peek_word() == "step":
                reader.word()
                step = reader.integer(_STEP, "a step")
                if step < 1:
                    raise reader.fail(f"{name} in {lo}..{hi} step {step}: a step is at least 1", start)
            loop = Range.of(name, lo, hi, step)
            reader.bind(loop.symbol, start)
            found.append(loop)
            if not reader.accept(","):
                return tuple(found)

    def check(self, value: Any) -> bool:
        return isinstance(value, tuple) and all(isinstance(r, Range) for r in value)

    def expressions(self, value: Any) -> Iterable[Expr]:
        own = {r.symbol for r in value}
        return [e for r in value for e in (r.lo, r.hi) if not e.symbols & own]

    def mapped(self, value: Any, images: Images) -> Any:
        return tuple(Range.of(r.symbol.name, images(r.lo), images(r.hi), r.step) for r in value)

    def bound(self, value: Any) -> tuple[Symbol, ...]:
        return tuple(r.symbol for r in value)


class _Places(Kind):
    allowed = tuple

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return "[" + ", ".join(f"{e}{' ?' if loose else ''}" for e, loose in value) + "]"

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        reader.expect("[")
        start = reader.at
        found = []
        for part, place in split(reader.enclosed("]")):
            body = part.rstrip()
            loose = body.endswith("?")
            found.append((reader.expr(body[:-1] if loose else body, start + place), loose))
        return tuple(found)

    def expressions(self, value: Any) -> Iterable[Expr]:
        return [e for e, _ in value]

    def mapped(self, value: Any, images: Images) -> Any:
        return tuple((images(e), loose) for e, loose in value)


class _Definition(Kind):
    allowed = Symbol
    binds = True

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return f"{value.name} = {value.definition}"

    def read(self, reader: Reader, operands: list[Value]) -> Symbol:
        reader.skip()
        start = reader.at
        name = reader.word("a name")
        reader.expect("=")
        return reader.bind(symbol(name, definition=reader.until("\n,}{")), start)

    def expressions(self, value: Any) -> Iterable[Expr]:
        return (value.definition,)

    def mapped(self, value: Any, images: Images) -> Any:
        return symbol(value.name, definition=images(value.definition))

    def bound(self, value: Any) -> tuple[Symbol, ...]:
        return (value,)


class _Formula(Kind):
    allowed = Formula

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return str(value.text(operands))

    def read(self, reader: Reader, operands: list[Value]) -> Formula:
        return read_formula(reader, operands)

    def expressions(self, value: Any) -> Iterable[Expr]:
        found: Iterable[Expr] = value.expressions()
        return found

    def mapped(self, value: Any, images: Images) -> Any:
        return value.mapped(images)


class _Combine(Kind):
    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        if isinstance(value, str):
            return value
        return "(" + ", ".join(f.text(operands) for f in value) + ")"

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        if not reader.accept("("):
            return reader.word("a combining function")
        found = []
        while not reader.accept(")"):
            found.append(read_formula(reader, operands))
            if not reader.peek(")"):
                reader.expect(",")
        return tuple(found)

    def check(self, value: Any) -> bool:
        return isinstance(value, str) or (isinstance(value, tuple) and all(isinstance(f, Formula) for f in value))


class _Fetches(Kind):
    """Symbols whose values are elements of operands, which come after the operation's others."""

    allowed = tuple
    binds = True

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        names = operands[len(operands) - len(value) :] or ["%_"] * len(value)
        rows = zip(value, names, strict=True)
        return ", ".join(f"{s.name} = {name}[{', '.join(map(str, at))}]" for (s, at), name in rows)

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        found = []
        while True:
            reader.skip()
            start = reader.at
            name = reader.word("a name")
            reader.expect("=")
            operands.append(reader.use())
            at = KINDS["exprs"].read(reader, operands)
            found.append((reader.bind(symbol(name), start), at))
            if not reader.accept(","):
                return tuple(found)

    def expressions(self, value: Any) -> Iterable[Expr]:
        return [e for _, at in value for e in at]

    def mapped(self, value: Any, images: Images) -> Any:
        return tuple((s, tuple(images(e) for e in at)) for s, at in value)

    def bound(self, value: Any) -> tuple[Symbol, ...]:
        return tuple(s for s, _ in value)


class _Parameters(Kind):
    """Named integers: bound when the program is compiled, perhaps by a default, or open within a range.

    The range of an open one is that of its symbol; `step` says that it is a multiple of a number.
    """

    allowed = tuple
    binds = True

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return ", ".join(_parameter_text(s, number) for s, number in value)

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        found = []
        while True:
            reader.skip()
            start = reader.at
            name = reader.word("a parameter")
            if reader.peek_word() == "in":
                reader.word()
                found.append((reader.bind(_open_parameter(reader, name, start), start), None))
            else:
                bound = reader.bind(symbol(name, 0), start)
                number = KINDS["int"].read(reader, operands) if reader.accept("=") else None
                found.append((bound, number))
            if not reader.accept(","):
                return tuple(found)

    def check(self, value: Any) -> bool:
        return isinstance(value, tuple) and all(
            isinstance(s, Symbol) and (number is None or s.upper is None) for s, number in value
        )

    def bound(self, value: Any) -> tuple[Symbol, ...]:
        return tuple(s for s, _ in value)


def _parameter_text(s: Symbol, number: int | None) -> str:
    if s.upper is None:
        return s.name if number is None else f"{s.name} = {number}"
    return f"{s.name} in {s.lower}..{s.upper + 1}" + (f" step {s.multiple}" if s.multiple > 1 else "")


def _open_parameter(reader: Reader, name: str, start: int) -> Symbol:
    """The symbol of a parameter, whose range stands next in the text."""
    lo = KINDS["int"].read(reader, [])
    reader.expect("..")
    hi = KINDS["int"].read(reader, [])
    step = 1
    if reader.peek_word() == "step":
        reader.word()
        step = KINDS["int"].read(reader, [])
    if lo < 0 or hi <= lo:
        raise reader.fail(f"{name} in {lo}..{hi}: a parameter's range holds numbers from 0 on, and at least one", start)
    if step < 1 or lo % step:
        raise reader.fail(f"{name} in {lo}..{hi} step {step}: the range must start at a multiple of the step", start)
    return symbol(name, lo, hi - 1, multiple_of=step)


class _Sizes(Kind):
    """Integers that are read off the arguments' shapes when a program is called."""

    allowed = tuple
    binds = True

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return ", ".join(s.name for s in value)

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        found = []
        while True:
            reader.skip()
            start = reader.at
            found.append(reader.bind(symbol(reader.word("a size"), 0), start))
            if not reader.accept(","):
                return tuple(found)

    def bound(self, value: Any) -> tuple[Symbol, ...]:
        return tuple(value)


class _Fetched(Kind):
    """A symbol whose value is a number in a register."""

    allowed = Symbol
    binds = True

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return str(value.name) if value.upper is None else f"{value.name} in {value.lower}..{value.upper + 1}"

    def read(self, reader: Reader, operands: list[Value]) -> Symbol:
        reader.skip()
        start = reader.at
        name = reader.word("a name")
        if reader.peek_word() != "in":
            return reader.bind(symbol(name), start)
        reader.word()
        lo = reader.until("..")
        reader.expect("..")
        return reader.bind(symbol(name, lo, reader.until("=") - 1), start)

    def expressions(self, value: Any) -> Iterable[Expr]:
        return () if value.upper is None else (value.lower, value.upper)

    def mapped(self, value: Any, images: Images) -> Any:
        return value if value.upper is None else symbol(value.name, images(value.lower), images(value.upper))

    def bound(self, value: Any) -> tuple[Symbol, ...]:
        return (value,)


class _Settings(Kind):
    """Values for the parameters of another program."""

    allowed = tuple

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        return ", ".join(f"{name} = {e}" for name, e in value)

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        found = []
        while True:
            name = reader.word("a parameter")
            reader.expect("=")
            found.append((name, reader.until(",}")))
            if not reader.accept(","):
                return tuple(found)

    def expressions(self, value: Any) -> Iterable[Expr]:
        return [e for _, e in value]

    def mapped(self, value: Any, images: Images) -> Any:
        return tuple((name, images(e)) for name, e in value)


KINDS: dict[str, Kind] = {
    "int": _Int(),
    "number": _Number(),
    "bool": _Bool(),
    "str": _Str(),
    "name": _Name(),
    "dotted": _Dotted(),
    "dtype": _DType(),
    "type": _Type(),
    "expr": _Expr(),
    "count": _Count(),
    "exprs": _Exprs(),
    "numexpr": _NumExpr(),
    "lookups": _Lookups(),
    "table": _Table(),
    "axes": _Axes(),
    "ranges": _Ranges(),
    "places": _Places(),
    "definition": _Definition(),
    "formula": _Formula(),
    "combine": _Combine(),
    "fetches": _Fetches(),
    "parameters": _Parameters(),
    "sizes": _Sizes(),
    "fetched": _Fetched(),
    "settings": _Settings(),
}


LASTING = ("definition", "parameters", "sizes", "fetched")
"""The kinds whose symbols mean something beyond their operation."""


def kind_of(name: str) -> Kind:
    """The kind of that name; a ? at its end says that the attribute may be left out."""
    return KINDS.get(name) or KINDS[name.rstrip("?")]


def attr_text(kind: str, value: Any, operands: Sequence[str] = ()) -> str:
    """The text of an attribute of this kind."""
    return kind_of(kind).text(value, operands)


def plain_attrs(kinds: Mapping[str, str], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as authors give them, with numpy's numbers as Python's; `kinds` are those of the operation."""
    return {name: kind_of(kinds[name]).plain(value) if name in kinds else value for name, value in attrs.items()}


def check_attr(kind: str, name: str, value: Any, where: str, loc: Any = None) -> None:
    """Raises unless the value is one that the kind allows."""
    if not kind_of(kind).check(value):
        raise ProgramError(f"{where}: the attribute {name} is {value!r}, which is no {kind.rstrip('?')}", loc)


def attr_symbols(kind: str, value: Any) -> set[Symbol]:
    """The symbols that occur in an attribute."""
    return {s for e in kind_of(kind).expressions(value) for s in e.symbols}


def split(text: str) -> list[tuple[str, int]]:
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
