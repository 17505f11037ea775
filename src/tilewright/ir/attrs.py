"""The kinds of attributes: for each, the values that it allows, how they are printed, and how they are parsed.

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
| axes      | tuple of symbols that count from 0           | (i 16, j N//2)               |
| ranges    | tuple of `Range`                             | i in 0..N, j in 4..M step 2  |
| places    | tuple of (expression, may be out of bounds)  | [n, p + r - 1 ?, c]          |
| definition| a symbol with a definition                   | m = t//4                     |
| formula   | a `Formula`, scalars computed from scalars   | exp2(%x*0.5 - %m)            |
| combine   | a name, or a tuple of formulas               | max, (select(a0 < b0, ...))  |
| fetches   | tuple of (symbol, expressions)               | d0 = %index[i, j]            |
| parameters| tuple of (symbol, default or None)           | BM = 128, BN, M in 1..65536  |
| sizes     | tuple of symbols                             | M, N                         |
| fetched   | a symbol, perhaps with limits                | i, i in 0..50                |
| settings  | tuple of (name, expression)                  | BM = 64, N = M//2            |

Axes, ranges and fetches *declare* their symbols for the rest of their operation and its blocks. The other kinds with
symbols (definition, parameters, sizes, fetched) declare them for the rest of the surrounding block or program.
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
    """A loop variable and its values lo, lo + step, ... below hi.

    >>> print(Range.of("i", 0, 8, 2))
    i in 0..8 step 2
    """

    symbol: Symbol
    lo: Expr
    hi: Expr
    step: int = 1

    @classmethod
    def of(cls, name: str, lo: Any, hi: Any, step: int = 1) -> Range:
        """Return the `Range` lo, lo + step, ... below `hi`, with a new loop variable called `name`.

        The loop variable is declared with the limits `lo` and hi - 1. If the range is known to be empty, the loop
        variable gets no upper limit. `lo` and `hi` are ints or expressions, and `step` is an int.
        """
        lo, hi = as_expr(lo), as_expr(hi)
        empty = hi.hi <= lo.lo
        return cls(symbol(name, lo, None if empty else hi - 1), lo, hi, step)

    @property
    def trip_count(self) -> int | None:
        """The trip count of the loop as an int; None if `lo` or `hi` is not a constant.

        >>> Range.of("i", 0, 8, 3).trip_count, Range.of("i", 5, 2).trip_count
        (3, 0)
        """
        if not (isinstance(self.lo, Const) and isinstance(self.hi, Const)):
            return None
        return max(0, -(-(self.hi.value - self.lo.value) // self.step))

    def __str__(self) -> str:
        return f"{self.symbol.name} in {self.lo}..{self.hi}" + (f" step {self.step}" if self.step != 1 else "")


class Kind:
    """Base class of attribute kinds: how values of one kind are checked, printed, parsed and substituted."""

    allowed: Any = object
    binds = False
    opens = ""
    """The bracket with which its text begins, or ""."""

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return the attribute `value` as program text. This default is `str(value)`; subclasses override it.

        `operands` are the printed names of the operation's operands, such as "%x". Kinds such as `formula` write them
        into the text; other kinds ignore them.
        """
        return str(value)

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        """Parse an attribute of this kind from `reader`, the parser, and return its value. Each subclass implements it.

        Operands (`%x`) that occur in the text are appended to `operands`, the operation's list of operands. Raise
        ParseError if the text is not valid.
        """
        raise NotImplementedError

    def check(self, value: Any) -> bool:
        """True if `value` is a valid attribute of this kind.

        This default returns `isinstance(value, self.allowed)`; subclasses override it.
        """
        return isinstance(value, self.allowed)

    def plain(self, value: Any) -> Any:
        """Return `value` unchanged. Kinds that hold numbers override this: they return numpy numbers as Python ones."""
        return value

    def expressions(self, value: Any) -> Iterable[Expr]:
        """Return the integer expressions in `value`. This default returns (); kinds that hold expressions override
        it.
        """
        return ()

    def mapped(self, value: Any, images: Images) -> Any:
        """Return `value` with every integer expression `e` in it replaced by `images(e)`.

        This default returns `value` unchanged; kinds that hold expressions override it.
        """
        return value

    def bound(self, value: Any) -> tuple[Symbol, ...]:
        """Return the tuple of the symbols that `value` declares, such as loop variables.

        This default returns (); kinds that declare symbols override it.
        """
        return ()


_INTEGER = re.compile(r"-?\d+")
_STEP = re.compile(r"\d+")
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"')


class _Numeric(Kind):
    """Base class of kinds that take numbers."""

    def plain(self, value: Any) -> Any:
        """Return a numpy or Python number as a Python int or float (a bool as 0 or 1), and any other `value`
        unchanged.
        """
        number = plain_number(value)
        return value if number is None else int(number) if isinstance(number, bool) else number


class _Int(_Numeric):
    """Kind `int`: an integer, such as `3`."""

    allowed = int

    def read(self, reader: Reader, operands: list[Value]) -> int:
        """Parse an integer such as `-3` from `reader` and return it; raise ParseError if none comes next.

        `operands` is not used.
        """
        return reader.integer(_INTEGER, "an integer")


_NUMBER = re.compile(r"-?(?:inf|nan|\d+(?:\.\d*)?(?:e[+-]?\d+)?)")


class _Number(_Numeric):
    """Kind `number`: an int or a float, such as `0.5` or `inf`."""

    allowed = (int, float)

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return the number `value` as text, such as `0.5`, `inf` or `nan`. `operands` is not used."""
        return repr(value)

    def read(self, reader: Reader, operands: list[Value]) -> int | float:
        """Parse a number from `reader`; return an int if it has neither point nor exponent, otherwise a float.

        Raise ParseError if no number comes next. `operands` is not used.
        """
        reader.skip()
        start = reader.at
        text = reader.match(_NUMBER, "a number").group()
        return reader.number(text, start) if _INTEGER.fullmatch(text) else float(text)


class _Bool(Kind):
    """Kind `bool`: `true` or `false`."""

    allowed = bool

    def plain(self, value: Any) -> Any:
        """Return a numpy bool as a Python bool, and any other `value` unchanged."""
        number = plain_number(value)
        return number if isinstance(number, bool) else value

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return `true` or `false` for the bool `value`. `operands` is not used."""
        return "true" if value else "false"

    def read(self, reader: Reader, operands: list[Value]) -> bool:
        """Parse the word `true` or `false` from `reader` and return the bool; raise ParseError for any other word.

        `operands` is not used.
        """
        reader.skip()
        start = reader.at
        word = reader.word("true or false")
        if word not in ("true", "false"):
            raise reader.fail("expected true or false", start)
        return word == "true"


class _Str(Kind):
    """Kind `str`: a text in quotes."""

    allowed = str

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return the string `value` as text in double quotes, escaped as in JSON. `operands` is not used."""
        return json.dumps(value)

    def read(self, reader: Reader, operands: list[Value]) -> str:
        """Parse a text in double quotes, escaped as in JSON, from `reader`; return it without the quotes.

        Raise ParseError if the text is not valid. `operands` is not used.
        """
        reader.skip()
        start = reader.at
        try:
            return str(json.loads(reader.match(_QUOTED, "a text in quotes").group()))
        except json.JSONDecodeError as fault:
            raise reader.fail(f"the text in quotes is none: {fault.msg}", start + fault.pos) from None


class _Name(Kind):
    """Kind `name`: an identifier, such as `tf32`."""

    allowed = str

    def read(self, reader: Reader, operands: list[Value]) -> str:
        """Parse an identifier such as `tf32` from `reader` and return it; raise ParseError if none comes next.

        `operands` is not used.
        """
        return reader.word()


_DOTTED = re.compile(r"[A-Za-z_](?:\w|\{\w+\}|\.(?=\w|\{))*")


class _Dotted(Kind):
    """Kind `dotted`: a name with dots in which `{N}` stands for a parameter, such as `matrix.m64n{BN}k16.bf16`."""

    allowed = str

    def read(self, reader: Reader, operands: list[Value]) -> str:
        """Parse a name with dots, such as `matrix.m64n{BN}k16.bf16`, from `reader` and return it as a string.

        `{BN}` stands for the parameter BN. Raise ParseError if no name comes next. `operands` is not used.
        """
        return reader.match(_DOTTED, "a name such as matrix.m64n128k16.bf16").group()

    def expressions(self, value: Any) -> Iterable[Expr]:
        """Return a list of the parameters in braces in the name `value`, each as a symbol: `m64n{BN}k16` -> [BN]."""
        return [symbol(name, 0) for name in re.findall(r"\{(\w+)\}", value)]

    def mapped(self, value: Any, images: Images) -> Any:
        """Return the name `value` with each `{N}` replaced by the number `images(N)`.

        A `{N}` whose image is not a constant stays. With BN -> 128, `m64n{BN}k16` -> `m64n128k16`.
        """
        return re.sub(r"\{(\w+)\}", lambda match: _filled(match.group(1), images), value)


def _filled(name: str, images: Images) -> str:
    """Return the text that replaces the parameter `name` in a dotted name: `images(name)` if that is a constant, as
    digits.

    Otherwise return `{name}`, the parameter in braces. `images` is a function from expression to expression.
    """
    image = images(symbol(name, 0))
    return str(image) if isinstance(image, Const) else f"{{{name}}}"


class _DType(Kind):
    """Kind `dtype`: an element type, such as `f16`."""

    allowed = DType

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return the name of the element type `value`, such as `f16`. `operands` is not used."""
        return str(value.name)

    def read(self, reader: Reader, operands: list[Value]) -> DType:
        """Parse the name of an element type, such as `f16`, from `reader`; return the DType.

        Raise ParseError if no name comes next, or no element type has this name. `operands` is not used.
        """
        reader.skip()
        start = reader.at
        try:
            return dtype(reader.word("an element type"))
        except ProgramError as fault:
            raise reader.fail(str(fault), start) from None


class _Type(Kind):
    """Kind `type`: a type of the program's level, such as `shared f16 (64, 32)`."""

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        """Parse a type in the syntax of the program's level from `reader` and return it. `operands` is not used.

        An example of the block level is `shared f16 (64, 32)`. Raise ParseError if the text is not valid.
        """
        return reader.type()

    def expressions(self, value: Any) -> Iterable[Expr]:
        """Return every integer expression in the type `value`, such as its extents and strides."""
        expressions: Iterable[Expr] = value.expressions()
        return expressions

    def mapped(self, value: Any, images: Images) -> Any:
        """Return the type `value` with every integer expression `e` in it (extents, strides) replaced by
        `images(e)`.
        """
        return value.mapped(images)


class _Expr(Kind):
    """Kind `expr`: an integer expression in parentheses, such as `(M//2 + 1)`."""

    allowed = Expr
    opens = "("

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return the integer expression `value` as text in parentheses, such as `(M//2 + 1)`. `operands` is not
        used.
        """
        return f"({value})"

    def read(self, reader: Reader, operands: list[Value]) -> Expr:
        """Parse an integer expression in parentheses, such as `(M//2 + 1)`, from `reader` and return it.

        Raise ParseError if it is not valid. `operands` is not used.
        """
        reader.expect("(")
        start = reader.at
        return reader.expr(reader.enclosed(")"), start)

    def expressions(self, value: Any) -> Iterable[Expr]:
        """Return (value,): the attribute is one integer expression."""
        return (value,)

    def mapped(self, value: Any, images: Images) -> Any:
        """Return `images(value)`, the expression that replaces the expression `value`."""
        return images(value)


class _Count(_Expr):
    """Kind `count`: an integer expression; a number or name needs no parentheses, such as `4`, `STAGES` or `(N//2)`."""

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return the integer expression `value` as text: `4`, `STAGES` or `(N//2)`. `operands` is not used.

        Only a number or a symbol is written without parentheses.
        """
        return str(value) if isinstance(value, Const | Symbol) else f"({value})"

    def read(self, reader: Reader, operands: list[Value]) -> Expr:
        """Parse a number, a name, or an expression in parentheses from `reader`; return it as an integer expression.

        Raise ParseError if it is not valid. `operands` is not used.
        """
        if reader.peek("("):
            return super().read(reader, operands)
        start = reader.at
        return reader.expr(reader.match(re.compile(r"\w+"), "a number, a name or (").group(), start)


class _Exprs(Kind):
    """Kind `exprs`: a tuple of integer expressions, such as `[M, K//2]`."""

    allowed = tuple

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return `value`, a tuple of integer expressions, as text in brackets, such as `[M, K//2]`. `operands` is not
        used.
        """
        return "[" + ", ".join(map(str, value)) + "]"

    def read(self, reader: Reader, operands: list[Value]) -> tuple[Expr, ...]:
        """Parse integer expressions in brackets, such as `[M, K//2]`, from `reader`; return them as a tuple.

        Raise ParseError if the text is not valid. `operands` is not used.
        """
        reader.expect("[")
        start = reader.at
        return reader.exprs(reader.enclosed("]"), start)

    def check(self, value: Any) -> bool:
        """True if `value` is a tuple of integer expressions."""
        return isinstance(value, tuple) and all(isinstance(e, Expr) for e in value)

    def expressions(self, value: Any) -> Iterable[Expr]:
        """Return `value`, which is a tuple of integer expressions, as a tuple."""
        return tuple(value)

    def mapped(self, value: Any, images: Images) -> Any:
        """Return the tuple `value` with every integer expression `e` in it replaced by `images(e)`."""
        return tuple(images(e) for e in value)


class _NumExpr(_Numeric):
    """Kind `numexpr`: a number, or an integer expression in parentheses, such as `0.5` or `(M)`."""

    allowed = (int, float, Expr)

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return `value` as text: a number as it is, an integer expression in parentheses. `operands` is not used."""
        return f"({value})" if isinstance(value, Expr) else repr(value)

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        """Parse a number, or an integer expression in parentheses, from `reader`; return the number or the expression.

        Raise ParseError if neither comes next. `operands` is not used.
        """
        return KINDS["expr" if reader.peek("(") else "number"].read(reader, operands)

    def expressions(self, value: Any) -> Iterable[Expr]:
        """Return (value,) if `value` is an integer expression, and () if it is a number."""
        return (value,) if isinstance(value, Expr) else ()

    def mapped(self, value: Any, images: Images) -> Any:
        """Return `images(value)` if `value` is an integer expression; return a number unchanged."""
        return images(value) if isinstance(value, Expr) else value


_LOOKUP = re.compile(r"\s*(\w+)\s*:\s*\[(.*)\]\s*", re.DOTALL)


class _Lookups(Kind):
    """Kind `lookups`: symbols whose values are looked up in tensors, with the coordinates: `[d0: [i, j], d1: [i]]`."""

    allowed = tuple

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return `value`, a tuple of (symbol, coordinates) pairs, as text: `[d0: [i, j], d1: [i]]`. `operands` is not
        used.

        A pair says that the symbol stands for the element of a tensor at these coordinates. The attribute does not say
        which tensor.
        """
        return "[" + ", ".join(f"{s}: [{', '.join(map(str, at))}]" for s, at in value) + "]"

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        """Parse lookups such as `[d0: [i, j], d1: [i]]` from `reader`; return a tuple of (symbol, coordinates) pairs.

        The symbols are already declared. Raise ParseError if the text is not valid. `operands` is not used.
        """
        reader.expect("[")
        start = reader.at
        rows = []
        for row, place in split(reader.enclosed("]")):
            match = _LOOKUP.fullmatch(row)
            if match is None:
                raise reader.fail(
                    f"{row.strip()!r} is no lookup: a symbol and its places, such as d0: [i, j]", start + place
                )
            looked_up = reader.expr(match[1], start + place)
            if not isinstance(looked_up, Symbol):
                raise reader.fail(f"a lookup gives a symbol its value; {looked_up} is none", start + place)
            rows.append((looked_up, reader.exprs(match[2], start + place + match.start(2))))
        return tuple(rows)

    def expressions(self, value: Any) -> Iterable[Expr]:
        """Return a list of the symbols and the coordinates in `value`, a tuple of (symbol, coordinates) pairs."""
        return [e for d, at in value for e in (d, *at)]

    def mapped(self, value: Any, images: Images) -> Any:
        """Return `value`, a tuple of (symbol, coordinates) pairs, with every symbol and coordinate `e` replaced by
        `images(e)`.
        """
        return tuple((images(d), tuple(images(e) for e in at)) for d, at in value)


class _Table(Kind):
    """Kind `table`: pairs of integer expressions, such as `{M: 16, N: 0}`."""

    allowed = tuple

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return `value`, a tuple of (key, value) pairs of integer expressions, as text: `{M: 16, N: 0}`.

        `operands` is not used.
        """
        return "{" + ", ".join(f"{k}: {v}" for k, v in value) + "}"

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        """Parse pairs such as `{M: 16, N: 0}` from `reader`; return a tuple of (key, value) pairs of integer
        expressions.

        Raise ParseError if the text is not valid. `operands` is not used.
        """
        reader.expect("{")
        start = reader.at
        pairs = []
        for row, place in split(reader.enclosed("}")):
            key, _, value = row.partition(":")
            at = start + place
            pairs.append((reader.expr(key, at), reader.expr(value, at + len(key) + 1)))
        return tuple(pairs)

    def expressions(self, value: Any) -> Iterable[Expr]:
        """Return a list of all keys and values in `value`, a tuple of (key, value) pairs of integer expressions."""
        return [e for pair in value for e in pair]

    def mapped(self, value: Any, images: Images) -> Any:
        """Return `value`, a tuple of (key, value) pairs, with every key and value `e` replaced by `images(e)`."""
        return tuple((images(k), images(v)) for k, v in value)


def axis(name: str, extent: Expr) -> Symbol:
    """Return a new symbol called `name` with the values 0, ..., extent - 1.

    If `extent` is the constant 0, the symbol has the upper limit -1 and no lower limit.
    """
    empty = isinstance(extent, Const) and extent.value == 0
    return symbol(name, None, -1) if empty else index(name, extent)


class _Axes(Kind):
    """Kind `axes`: new symbols that count from 0, each with its extent, such as `(i 16, j N//2)`."""

    allowed = tuple
    binds = True
    opens = "("

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return `value`, a tuple of symbols that count from 0, as text with their extents: `(i 16, j 8)`.

        `operands` is not used.
        """
        return "(" + ", ".join(f"{s.name} {s.upper + 1}" for s in value) + ")"

    def read(self, reader: Reader, operands: list[Value]) -> tuple[Symbol, ...]:
        """Parse axes such as `(i 16, j 8)` from `reader`; return a tuple of new symbols, i from 0 to 15 and j from 0 to
        7.

        Also declare the symbols in `reader`, so that later text may use them. Raise ParseError if the text is not
        valid. `operands` is not used.
        """
        reader.expect("(")
        symbols = []
        while not reader.accept(")"):
            start = reader.at
            name = reader.word("an axis such as i 16")
            extent = reader.until(",)")
            try:
                symbols.append(reader.bind(axis(name, extent), start))
            except TilewrightError as fault:
                raise reader.fail(str(fault), start) from None
            if not reader.peek(")"):
                reader.expect(",")
        return tuple(symbols)

    def check(self, value: Any) -> bool:
        """True if `value` is a tuple of symbols that all have an upper limit."""
        return isinstance(value, tuple) and all(isinstance(s, Symbol) and s.upper is not None for s in value)

    def expressions(self, value: Any) -> Iterable[Expr]:
        """Return a list of the upper limits (extent - 1) of the symbols in the tuple `value`."""
        return [s.upper for s in value]

    def mapped(self, value: Any, images: Images) -> Any:
        """Return a tuple of new symbols with the names of the symbols in `value`, and `images(e)` in place of each
        extent `e`.
        """
        return tuple(axis(s.name, images(s.upper + 1)) for s in value)

    def bound(self, value: Any) -> tuple[Symbol, ...]:
        """Return `value`, the symbols that the axes declare, as a tuple."""
        return tuple(value)


class _Ranges(Kind):
    """Kind `ranges`: the loop variables of a loop with their limits, such as `i in 0..N, j in 4..M step 2`."""

    allowed = tuple
    binds = True

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return `value`, a tuple of loop ranges, as text: `i in 0..N, j in 4..M step 2`. `operands` is not used."""
        return ", ".join(map(str, value))

    def read(self, reader: Reader, operands: list[Value]) -> tuple[Range, ...]:
        """Parse loop ranges such as `i in 0..N, j in 4..M step 2` from `reader`; return a tuple of `Range`s.

        Also declare the loop variables in `reader`, so that later text may use them. Raise ParseError if the text is
        not valid or a step is below 1. `operands` is not used.
        """
        ranges = []
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
            ranges.append(loop)
            if not reader.accept(","):
                return tuple(ranges)

    def check(self, value: Any) -> bool:
        """True if `value` is a tuple of `Range`s with steps of at least 1."""
        return isinstance(value, tuple) and all(isinstance(r, Range) and r.step >= 1 for r in value)

    def expressions(self, value: Any) -> Iterable[Expr]:
        """Return a list of the lower and upper limits of the `Range`s in `value`.

        Limits that depend on loop variables of `value` are left out.
        """
        loop_variables = {r.symbol for r in value}
        return [e for r in value for e in (r.lo, r.hi) if not e.symbols & loop_variables]

    def mapped(self, value: Any, images: Images) -> Any:
        """Return a tuple of new `Range`s: the ranges in `value` with every limit `e` replaced by `images(e)`.

        Each new range has a new loop variable of the same name, and the same step.
        """
        return tuple(Range.of(r.symbol.name, images(r.lo), images(r.hi), r.step) for r in value)

    def bound(self, value: Any) -> tuple[Symbol, ...]:
        """Return the tuple of the loop variables of the `Range`s in `value`."""
        return tuple(r.symbol for r in value)


class _Places(Kind):
    """Kind `places`: coordinates of a tensor; ? marks one that may be out of bounds, such as `[n, p + r - 1 ?, c]`."""

    allowed = tuple

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return `value`, coordinates of a tensor, as text: `[n, p + r - 1 ?, c]`. `operands` is not used.

        `value` is a tuple of (coordinate, may it be out of bounds) pairs; `?` marks a coordinate that may be.
        """
        return "[" + ", ".join(f"{e}{' ?' if may_leave else ''}" for e, may_leave in value) + "]"

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        """Parse coordinates such as `[n, p + r - 1 ?, c]` from `reader`; return a tuple of (coordinate, may it be out
        of bounds) pairs.

        `?` marks a coordinate that may be out of bounds. Raise ParseError if the text is not valid. `operands` is not
        used.
        """
        reader.expect("[")
        start = reader.at
        coordinates = []
        for part, place in split(reader.enclosed("]")):
            body = part.rstrip()
            may_leave = body.endswith("?")
            coordinates.append((reader.expr(body[:-1] if may_leave else body, start + place), may_leave))
        return tuple(coordinates)

    def expressions(self, value: Any) -> Iterable[Expr]:
        """Return a list of the coordinates in `value`, a tuple of (coordinate, may it be out of bounds) pairs."""
        return [e for e, _ in value]

    def mapped(self, value: Any, images: Images) -> Any:
        """Return `value`, a tuple of (coordinate, may it be out of bounds) pairs, with every coordinate `e` replaced by
        `images(e)`.
        """
        return tuple((images(e), may_leave) for e, may_leave in value)


class _Definition(Kind):
    """Kind `definition`: a new symbol that names the value of an expression, such as `m = t//4`."""

    allowed = Symbol
    binds = True

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return the symbol `value` with the expression that defines it, as text: `m = t//4`. `operands` is not
        used.
        """
        return f"{value.name} = {value.definition}"

    def read(self, reader: Reader, operands: list[Value]) -> Symbol:
        """Parse a definition such as `m = t//4` from `reader`; return a new symbol with that defining expression.

        Also declare the symbol in `reader`, so that later text may use it. Raise ParseError if the text is not valid.
        `operands` is not used.
        """
        reader.skip()
        start = reader.at
        name = reader.word("a name")
        reader.expect("=")
        return reader.bind(symbol(name, definition=reader.until("\n,}{")), start)

    def expressions(self, value: Any) -> Iterable[Expr]:
        """Return (expression,): the expression that defines the symbol `value`."""
        return (value.definition,)

    def mapped(self, value: Any, images: Images) -> Any:
        """Return a new symbol with the same name as the symbol `value`, defined by `images(e)` instead of its
        expression `e`.
        """
        return symbol(value.name, definition=images(value.definition))

    def bound(self, value: Any) -> tuple[Symbol, ...]:
        """Return (value,): the symbol that the attribute declares."""
        return (value,)


class _Formula(Kind):
    """Kind `formula`: a scalar expression over elements of operands, such as `exp2(%x*0.5 - %m)`."""

    allowed = Formula

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return the formula `value` as text, such as `exp2(%x*0.5 - %m)`; `operands` are the printed operand names."""
        return str(value.text(operands))

    def read(self, reader: Reader, operands: list[Value]) -> Formula:
        """Parse a scalar formula such as `exp2(%x*0.5 - %m)` from `reader` and return it.

        `operands` are the operation's operands, the target first. Each other operand that occurs in the formula is
        appended once. Raise ParseError if the text is not valid.
        """
        return read_formula(reader, operands)

    def expressions(self, value: Any) -> Iterable[Expr]:
        """Return a list of the integer expressions in the formula `value`. They stand in brackets in its text: `[i +
        1]`.
        """
        expressions: Iterable[Expr] = value.expressions()
        return expressions

    def mapped(self, value: Any, images: Images) -> Any:
        """Return the formula `value` with every integer expression `e` in it replaced by `images(e)`."""
        return value.mapped(images)


class _Combine(Kind):
    """Kind `combine`: a combining function by name, or one formula for each tensor, such as `max` or `(a0 + b0,
    a1*b1)`.
    """

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return the combining function `value` as text: a name such as `max`, or formulas such as `(a0 + b0, a1*b1)`.

        `value` is a string or a tuple of formulas. `operands` are the printed operand names.
        """
        if isinstance(value, str):
            return value
        return "(" + ", ".join(f.text(operands) for f in value) + ")"

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        """Parse a combining function from `reader`: return a name such as `max` as a string, or formulas as a tuple.

        Formulas stand in parentheses: `(a0 + b0, a1*b1)`. Operands that occur in a formula are appended to `operands`.
        Raise ParseError if the text is not valid.
        """
        if not reader.accept("("):
            return reader.word("a combining function")
        formulas = []
        while not reader.accept(")"):
            formulas.append(read_formula(reader, operands))
            if not reader.peek(")"):
                reader.expect(",")
        return tuple(formulas)

    def check(self, value: Any) -> bool:
        """True if `value` is a string (a function's name) or a tuple of formulas."""
        return isinstance(value, str) or (isinstance(value, tuple) and all(isinstance(f, Formula) for f in value))


class _Fetches(Kind):
    """Kind `fetches`: new symbols whose values are elements of operands, such as `d0 = %index[i, j]`.

    The operands that are read come last among the operation's operands.
    """

    allowed = tuple
    binds = True

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return `value`, a tuple of (symbol, coordinates) pairs, as text: `d0 = %index[i, j]`.

        `operands` are the printed operand names. The last of them name the tensors that are read, one for each pair. If
        `operands` is empty, each tensor is written `%_`.
        """
        names = operands[len(operands) - len(value) :] or ["%_"] * len(value)
        rows = zip(value, names, strict=True)
        return ", ".join(f"{s.name} = {name}[{', '.join(map(str, at))}]" for (s, at), name in rows)

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        """Parse fetches such as `d0 = %index[i, j]` from `reader`; return a tuple of (symbol, coordinates) pairs.

        Also append each tensor that is read (`%index`) to `operands`, and declare each symbol in `reader`. Raise
        ParseError if the text is not valid.
        """
        fetches = []
        while True:
            reader.skip()
            start = reader.at
            name = reader.word("a name")
            reader.expect("=")
            operands.append(reader.use())
            at = KINDS["exprs"].read(reader, operands)
            fetches.append((reader.bind(symbol(name), start), at))
            if not reader.accept(","):
                return tuple(fetches)

    def expressions(self, value: Any) -> Iterable[Expr]:
        """Return a list of all coordinates in `value`, a tuple of (symbol, coordinates) pairs."""
        return [e for _, at in value for e in at]

    def mapped(self, value: Any, images: Images) -> Any:
        """Return `value`, a tuple of (symbol, coordinates) pairs, with every coordinate `e` replaced by `images(e)`.

        The symbols stay the same.
        """
        return tuple((s, tuple(images(e) for e in at)) for s, at in value)

    def bound(self, value: Any) -> tuple[Symbol, ...]:
        """Return the tuple of the symbols in `value`, a tuple of (symbol, coordinates) pairs."""
        return tuple(s for s, _ in value)


class _Parameters(Kind):
    """Kind `parameters`: named integers of a program, such as `BM = 128, BN, M in 1..65536`.

    A parameter is bound when the program is compiled, perhaps to its default, or is open within a range until the call.
    The range is that of its symbol; `step` restricts it to multiples of a number.
    """

    allowed = tuple
    binds = True

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return `value`, a tuple of (symbol, default or None) pairs, as text: `BM = 128, BN, M in 1..65536`.

        `operands` is not used.
        """
        return ", ".join(_parameter_text(s, number) for s, number in value)

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        """Parse parameters such as `BM = 128, BN, M in 1..65536` from `reader`; return a tuple of (symbol, default or
        None) pairs.

        A parameter with a range has no default. Also declare each symbol in `reader`. Raise ParseError if the text is
        not valid. `operands` is not used.
        """
        parameters = []
        while True:
            reader.skip()
            start = reader.at
            name = reader.word("a parameter")
            if reader.peek_word() == "in":
                reader.word()
                parameters.append((reader.bind(_open_parameter(reader, name, start), start), None))
            else:
                bound = reader.bind(symbol(name, 0), start)
                number = KINDS["int"].read(reader, operands) if reader.accept("=") else None
                parameters.append((bound, number))
            if not reader.accept(","):
                return tuple(parameters)

    def check(self, value: Any) -> bool:
        """True if `value` is a tuple of (symbol, default or None) pairs, in which every symbol with an upper limit has
        None.
        """
        return isinstance(value, tuple) and all(
            isinstance(s, Symbol) and (number is None or s.upper is None) for s, number in value
        )

    def bound(self, value: Any) -> tuple[Symbol, ...]:
        """Return the tuple of the symbols in `value`, a tuple of (symbol, default or None) pairs."""
        return tuple(s for s, _ in value)


def _parameter_text(s: Symbol, number: int | None) -> str:
    """Return the parameter `s` as text: `BM`, `BM = 128` with a default, or `M in 0..64 step 8` with a range.

    `number` is the default, or None. It is ignored for a parameter with a range.
    """
    if s.upper is None:
        return s.name if number is None else f"{s.name} = {number}"
    return f"{s.name} in {s.lower}..{s.upper + 1}" + (f" step {s.multiple}" if s.multiple > 1 else "")


def _open_parameter(reader: Reader, name: str, start: int) -> Symbol:
    """Parse a range such as `1..65536 step 8` from `reader`; return a new symbol called `name` with this range.

    The upper limit in the text is excluded. `start` is the offset of the name in the text, at which errors point. Raise
    ParseError if the range is empty, holds negative numbers, or does not start at a multiple of the step.
    """
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
    """Kind `sizes`: integers that are read off the arguments' shapes at each call, such as `M, N`."""

    allowed = tuple
    binds = True

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return `value`, a tuple of symbols, as text: the names of the symbols, such as `M, N`. `operands` is not
        used.
        """
        return ", ".join(s.name for s in value)

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        """Parse names such as `M, N` from `reader`; return a tuple of new symbols that are at least 0.

        Also declare the symbols in `reader`. Raise ParseError if the text is not valid. `operands` is not used.
        """
        symbols = []
        while True:
            reader.skip()
            start = reader.at
            symbols.append(reader.bind(symbol(reader.word("a size"), 0), start))
            if not reader.accept(","):
                return tuple(symbols)

    def bound(self, value: Any) -> tuple[Symbol, ...]:
        """Return `value`, the symbols of the sizes, as a tuple."""
        return tuple(value)


class _Fetched(Kind):
    """Kind `fetched`: a new symbol whose value is an integer in a register, perhaps with
    limits: `i` or `i in 0..50`.
    """

    allowed = Symbol
    binds = True

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return the symbol `value` as text: `i`, or `i in 0..50` if the symbol has an upper limit. `operands` is not
        used.
        """
        return str(value.name) if value.upper is None else f"{value.name} in {value.lower}..{value.upper + 1}"

    def read(self, reader: Reader, operands: list[Value]) -> Symbol:
        """Parse a name with optional limits, such as `i` or `i in 0..50`, from `reader`; return a new symbol with these
        limits.

        The upper limit in the text is excluded. Also declare the symbol in `reader`. Raise ParseError if the text is
        not valid. `operands` is not used.
        """
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
        """Return (lower limit, upper limit) of the symbol `value`, the upper limit included in its range; () without an
        upper limit.
        """
        return () if value.upper is None else (value.lower, value.upper)

    def mapped(self, value: Any, images: Images) -> Any:
        """Return a new symbol of the same name as the symbol `value`, with every limit `e` replaced by `images(e)`.

        A symbol without an upper limit is returned unchanged.
        """
        return value if value.upper is None else symbol(value.name, images(value.lower), images(value.upper))

    def bound(self, value: Any) -> tuple[Symbol, ...]:
        """Return (value,): the symbol that the attribute declares."""
        return (value,)


class _Settings(Kind):
    """Kind `settings`: values for the parameters of a launched program, such as `BM = 64, N = M//2`."""

    allowed = tuple

    def text(self, value: Any, operands: Sequence[str] = ()) -> str:
        """Return `value`, a tuple of (parameter name, expression) pairs, as text: `BM = 64, N = M//2`.

        `operands` is not used.
        """
        return ", ".join(f"{name} = {e}" for name, e in value)

    def read(self, reader: Reader, operands: list[Value]) -> Any:
        """Parse settings such as `BM = 64, N = M//2` from `reader`; return a tuple of (parameter name, expression)
        pairs.

        Raise ParseError if the text is not valid. `operands` is not used.
        """
        settings = []
        while True:
            name = reader.word("a parameter")
            reader.expect("=")
            settings.append((name, reader.until(",}")))
            if not reader.accept(","):
                return tuple(settings)

    def expressions(self, value: Any) -> Iterable[Expr]:
        """Return a list of the expressions in `value`, a tuple of (parameter name, expression) pairs."""
        return [e for _, e in value]

    def mapped(self, value: Any, images: Images) -> Any:
        """Return `value`, a tuple of (parameter name, expression) pairs, with every expression `e` replaced by
        `images(e)`.
        """
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
"""The kinds whose symbols stay declared after their operation."""


_BY_NAME = {**KINDS, **{f"{name}?": kind for name, kind in KINDS.items()}}


def kind_of(name: str) -> Kind:
    """Return the `Kind` object (checks, prints and parses attributes) called `name`, such as "int" or "axes".

    A trailing `?` in `name`, which marks an optional attribute, is ignored. Raise KeyError for an unknown name.
    """
    return _BY_NAME[name]


def attr_text(kind: str, value: Any, operands: Sequence[str] = ()) -> str:
    """Return the attribute `value` as program text. `kind` is the name of its kind, such as "axes" or "count?".

    `operands` are the printed names of the operation's operands, such as "%x", for kinds that write operands.
    """
    return kind_of(kind).text(value, operands)


def plain_attrs(kinds: Mapping[str, str], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `attrs`, {attribute name: value}, with numpy numbers converted to Python numbers.

    `kinds` is {attribute name: name of its kind}. An attribute that is not in `kinds` stays unchanged.
    """
    return {name: kind_of(kinds[name]).plain(value) if name in kinds else value for name, value in attrs.items()}


def check_attr(kind: str, name: str, value: Any, where: str, loc: Any = None) -> None:
    """Raise ProgramError unless `value` is valid for the attribute kind called `kind`, such as "int" or "axes?".

    For the message, `name` is the attribute's name, `where` the operation's name, and `loc` the source location.
    """
    if not kind_of(kind).check(value):
        raise ProgramError(f"{where}: the attribute {name} is {value!r}, which is no {kind.rstrip('?')}", loc)


def check_attrs(kinds: Mapping[str, str], attrs: Mapping[str, Any], where: str, loc: Any = None) -> None:
    """Raise ProgramError if `attrs`, {attribute name: value}, lacks a required attribute, or has an unknown one or one
    with an invalid value.

    `kinds` is {attribute name: name of its kind}; a trailing `?` marks an optional attribute. For the message, `where`
    is the operation's name and `loc` the source location.
    """
    for name in attrs:
        if name not in kinds:
            raise ProgramError(f"{where} has no attribute {name}; it has {', '.join(kinds) or 'none'}", loc)
    for name, kind in kinds.items():
        if name in attrs:
            check_attr(kind, name, attrs[name], where, loc)
        elif not kind.endswith("?"):
            raise ProgramError(f"{where} needs the attribute {name}", loc)


def attr_symbols(kind: str, value: Any) -> set[Symbol]:
    """Return the set of all symbols in the integer expressions of the attribute `value`.

    `kind` is the name of the attribute's kind, such as "axes". Symbols that the attribute only declares are not
    included.
    """
    return {s for e in kind_of(kind).expressions(value) for s in e.symbols}


def split(text: str) -> list[tuple[str, int]]:
    """Split `text` at commas outside brackets. Return a list of (substring, offset of the substring in `text`).

    Spaces are kept. A comma at the end adds an empty substring; a blank text gives [].

    >>> split("M, f(i, j)"), split("M,"), split(" ")
    ([('M', 0), (' f(i, j)', 2)], [('M', 0), ('', 2)], [])
    """
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c == "," and depth == 0:
            parts.append((text[start:i], start))
            start = i + 1
        depth += (c in "([{") - (c in ")]}")
    if text[start:].strip() or parts:
        parts.append((text[start:], start))
    return parts
