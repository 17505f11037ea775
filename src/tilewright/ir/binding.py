"""Bind parameters: turn a program with symbolic parameters into one for given numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ArgumentError, ProgramError, TilewrightError
from tilewright.ir.attrs import attr_text, kind_of
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.ir.dtypes import plain_number
from tilewright.limits import ELEMENTS, did_you_mean, written


def parameters(program: Program) -> dict[Symbol, int | None]:
    """Return {parameter symbol: default, or None if it has none} for all `param` lines of the program's header."""
    return {s: n for r in program.records if r.name == "param" for s, n in r.attrs["parameters"]}


def open_parameters(program: Program) -> tuple[Symbol, ...]:
    """Return the symbols of the program's open parameters. Their values are known only at each call.

    An open parameter is one with a range, such as `M in 1..100`.

    >>> from tilewright.ir.block import parse_block
    >>> program = parse_block("block none(%x: in global f32 (M, K))\\n  param M in 1..100, K = 4 {}")
    >>> open_parameters(program), allowed(open_parameters(program)[0])
    ((<M>,), range(1, 100))
    """
    return tuple(s for s in parameters(program) if s.upper is not None)


def open_sizes(program: Program) -> tuple[Symbol, ...]:
    """Return all symbols with values known only at each call: open parameters first, then sizes (of a host program).

    An open parameter has a range (`param M in 1..100`); a size is read off the shape of an argument (`size N`).

    >>> from tilewright.ir.host import parse_host
    >>> open_sizes(parse_host("host none(%x: in global f32 (M, N))\\n  size N\\n  param M in 1..100 {}"))
    (<M>, <N>)
    """
    return (*open_parameters(program), *(s for r in program.records if r.name == "size" for s in r.attrs["sizes"]))


def _plain(value: Any) -> Any:
    """Return the number `value` of Python or numpy as a plain Python number; return any other object unchanged."""
    number = plain_number(value)
    return value if number is None else number


def allowed(parameter: Symbol) -> range:
    """Return the values that `parameter`, a symbol with a lower limit, may take, as a Python `range`.

    The range ends at the symbol's upper limit, which is included, or at 2**48 if the symbol has none. Its step is the
    number of which all values of the symbol are multiples.
    """
    most = ELEMENTS.most if parameter.upper is None else int(parameter.upper)
    return range(int(parameter.lo), most + 1, parameter.multiple)


def bind(program: Program, values: Mapping[str, int] | None = None) -> Program:
    """Return a new program with its parameters replaced by numbers: `values`, {name: number}, or else their defaults.

    Each `let` (a name for an expression) that becomes constant is replaced too. A parameter with a range stays open
    unless `values` has it. Raise ArgumentError for an unknown name, a missing or illegal value, and a `require` of the
    header that fails. Raise ProgramError if a type or an attribute becomes invalid.

    >>> from tilewright.ir.block import parse_block
    >>> text = '''block zero(%y: out global f32 (M, N))
    ...   param M, N = 16
    ...   let HALF = M // 2
    ... {
    ...   tasks m in 0..HALF {
    ...     %two = view %y (i 2, j N) -> [2*m + i, j]
    ...     fill %two 0
    ...   }
    ... }'''
    >>> print(bind(parse_block(text), {"M": 6}))
    block zero(%y: out global f32 (6, 16))
    {
      tasks m in 0..3 {
        %two = view %y (i 2, j 16) -> [2*m + i, j]
        fill %two 0
      }
    }
    <BLANKLINE>
    """
    values = {name: _plain(value) for name, value in (values or {}).items()}
    defaults = parameters(program)
    names = [s.name for s in defaults]
    for name, value in values.items():
        if name not in names:
            quoted, hint = name if isinstance(name, str) else written(name, 60), did_you_mean(str(name), names)
            raise ArgumentError(
                f"params: {program.name} has no parameter {quoted}; it has {', '.join(names) or 'none'}{hint}"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 0 or ELEMENTS.refuses(value):
            raise ArgumentError(
                f"params: {name} = {written(value)} must be an integer that is not negative, and at most 2**48"
            )
    bound: dict[Any, Expr] = {}
    for s, default in defaults.items():
        number = values.get(s.name, default)
        if number is None and s.upper is not None:
            continue
        if number is None:
            raise ArgumentError(f"params: {program.name} needs a value for {s.name}")
        if s.upper is not None:
            if number not in allowed(s):
                raise ArgumentError(f"params: {s.name} = {number}; {program.name} takes {_range_text(s)}")
            bound[symbol(s.name, 0)] = as_expr(number)  # the symbol that {name} in atom names stands for
        bound[s] = as_expr(number)
    return substituted_program(program, bound)


def _range_text(parameter: Symbol) -> str:
    """Return the symbol `parameter` with its range as text, such as `M in 1..100`; without an upper limit, its name
    alone.
    """
    return attr_text("parameters", ((parameter, None),))


def substituted_program(program: Program, bound: Mapping[Any, Expr]) -> Program:
    """Return a new program in which symbols are replaced by expressions: `bound` is {symbol: expression}.

    The declaration of a parameter in `bound` is dropped; other parameters stay declared, with their defaults. Each
    `let` (a name for an expression) that becomes constant is dropped. So is each `require` that becomes true, each loop
    that becomes empty, and each `if` without `else` that becomes false. Raise ArgumentError if a `require` becomes
    false, and ProgramError if a type or an attribute becomes invalid.
    """
    lets = {r.attrs["symbol"]: r for r in program.records if r.name == "let"}
    numbers = {**{s: s.definition for s in lets if isinstance(s.definition, Const)}, **bound}
    images = _Binding(numbers)
    let_values = {symbol(s.name, 0): _let_value(let, images) for s, let in lets.items()}
    # the symbols that {name} in atom names and layouts stands for
    images = _Binding({**numbers, **{name: value for name, value in let_values.items() if isinstance(value, Const)}})
    records = []
    for record in program.records:
        if record.name == "require":
            condition = _substituted_attrs(record, images)["that"]
            if isinstance(condition, Const):
                if not condition.value:
                    derived = [s for s in record.attrs["that"].symbols if s.definition is not None]
                    involved = [
                        *((s, e) for s, e in bound.items() if _mentions(record, s)),
                        *((s, images(s)) for s in derived),
                    ]
                    values_text = ", ".join(f"{s.name} = {e}" for s, e in involved)
                    cause = f"; here {values_text}" if values_text else ", which never holds"
                    position = f"\n{record.loc.pointing()}" if record.loc else ""
                    raise ArgumentError(f"params: {program.name} requires {record.attrs['that']}{cause}{position}")
                continue
        if record.name == "param":
            still_open = tuple((s, default) for s, default in record.attrs["parameters"] if s not in bound)
            if still_open:
                records.append(Op(record.spec, (), {"parameters": still_open}, loc=record.loc))
            continue
        if record.name == "let" and isinstance(_let_value(record, images), Const):
            continue
        records.append(Op(record.spec, (), _substituted_attrs(record, images), loc=record.loc))
    args = tuple(Value(_argument_type(program, a, images), a.name) for a in program.args)
    values: dict[Value, Value] = dict(zip(program.args, args, strict=True))
    body = _substituted_block(program.body, images, values)
    return Program(program.level, program.name, args, body, records, dict(program.bindings), program.loc)


def replaced(block: Block, bound: Mapping[Any, Expr], values: Mapping[Value, Value]) -> Block:
    """Return a copy of `block` in which symbols are replaced by expressions: `bound` is {symbol: expression}.

    `values` is {value defined outside the block: value to use instead}. Raise KeyError if the block uses an outside
    value that `values` lacks. Each `let` that becomes constant, each loop that becomes empty, and each `if` without
    `else` that becomes false is dropped. Raise ProgramError if a type or an attribute becomes invalid.
    """
    return _substituted_block(block, Substitution(bound), dict(values))


def inlined(program: Program) -> Program:
    """Return a new program without `let`s: each use of a `let` (a name for an expression) is replaced by its
    definition.

    Two programs that differ only in their lets become equal.

    >>> from tilewright.ir.block import parse_block
    >>> print(inlined(parse_block('''block f(%x: inout global f32 (8)) {
    ...   tasks t in 0..4 {
    ...     let m = 2*t
    ...     %p = view %x (i 2) -> [m + i]
    ...   }
    ... }''')))
    block f(%x: inout global f32 (8))
    {
      tasks t in 0..4 {
        %p = view %x (i 2) -> [2*t + i]
      }
    }
    <BLANKLINE>
    """
    definitions: dict[Any, Expr] = {}
    for op in (*program.records, *program.walk()):
        if op.name == "let":
            definitions[op.attrs["symbol"]] = Substitution(definitions)(op.attrs["symbol"].definition)
    result = substituted_program(program, definitions)
    result.records = [r for r in result.records if r.name != "let"]
    for block in (result.body, *(b for op in result.walk() for b in op.blocks)):
        block.ops = [op for op in block.ops if op.name != "let"]
    return result


class _Binding(Substitution):
    """A substitution of parameters; an axis whose range becomes empty keeps only its upper limit."""

    def _symbol_image(self, s: Symbol) -> Expr:
        """Return the expression that replaces the symbol `s`.

        Overrides the method of `Substitution` for one case. If the limits of `s` become constants with upper = lower -
        1 (an empty range), the result is a new symbol with the upper limit alone.
        """
        if s not in self.by_symbol and s.lower is not None and s.upper is not None and s.definition is None:
            lower, upper = self(s.lower), self(s.upper)
            if isinstance(lower, Const) and isinstance(upper, Const) and upper.value == lower.value - 1:
                return symbol(s.name, None, upper)
        return super()._symbol_image(s)


def _argument_type(program: Program, arg: Value, images: Substitution) -> Any:
    """Return the type of `arg`, an argument of `program`, with every expression `e` in the type replaced by
    `images(e)`.

    Raise ProgramError, which names program and argument, if the type becomes invalid.
    """
    try:
        return arg.type.mapped(images)
    except TilewrightError as fault:
        raise ProgramError(f"{program.name}, with its parameters bound: %{arg.name}: {first_line(fault)}") from None


def _mentions(record: Op, parameter: Any) -> bool:
    """True if the condition of `record`, a `require` line of the header, depends on the symbol `parameter`.

    The dependence may be through the definition of a `let`.
    """
    symbols: set[Any] = set()
    stack = [record.attrs["that"]]
    while stack:
        for s in stack.pop().symbols - symbols:
            symbols.add(s)
            if s.definition is not None:
                stack.append(s.definition)
    return parameter in symbols


def _let_value(let: Op, images: Substitution) -> Expr:
    """Return the expression that replaces the symbol of `let`, a `let` operation, under the substitution `images`.

    Raise ProgramError if the expression is invalid, for instance a division by 0.
    """
    try:
        return images(let.attrs["symbol"])
    except TilewrightError as fault:
        raise ProgramError(f"let, with its parameters bound: {first_line(fault)}", let.loc) from None


def first_line(fault: TilewrightError) -> str:
    """Return the first line of the message of `fault` as a string, without the source location that may follow."""
    return str(fault).split("\n", 1)[0]


def _substituted_attrs(op: Op, images: Substitution) -> dict[str, Any]:
    """Return {attribute name: value} of `op`, with every expression `e` in the values replaced by `images(e)`.

    Raise ProgramError if an attribute becomes invalid.
    """
    try:
        return {name: kind_of(op.spec.attrs[name]).mapped(value, images) for name, value in op.attrs.items()}
    except TilewrightError as fault:
        raise ProgramError(f"{op.name}, with its parameters bound: {first_line(fault)}", op.loc) from None


def _substituted_block(block: Block, images: Substitution, values: dict[Value, Value]) -> Block:
    """Return a copy of `block`, without block arguments, in which every expression `e` is replaced by `images(e)`.

    Each `let` that becomes constant is dropped, and so is each loop or `if` that never runs. `values` is {old value:
    new value}. The caller provides the values defined outside the block; values defined in the block are added.
    """
    ops = []
    for op in block.ops:
        if op.name == "let" and isinstance(_let_value(op, images), Const):
            continue
        new = _substituted_op(op, images, values)
        if new is not None:
            ops.append(new)
    return Block((), ops)


def _substituted_op(op: Op, images: Substitution, values: dict[Value, Value]) -> Op | None:
    """Return a copy of `op` and its blocks with every expression `e` replaced by `images(e)`.

    Return None for a loop with an empty range, and for an `if` without `else` if the condition becomes false. `values`
    is {old value: new value}; the results of `op` are added to it. Raise ProgramError if a type or an attribute becomes
    invalid.
    """
    if "ranges" in op.attrs and _never_runs(op, images):
        return None
    attrs = _substituted_attrs(op, images)
    if op.name == "if" and isinstance(attrs["when"], Const) and not attrs["when"].value and len(op.blocks) == 1:
        return None
    new = Op(op.spec, tuple(values[v] for v in op.operands), attrs, loc=op.loc)
    new.blocks = tuple(_substituted_block(b, images, values) for b in op.blocks)
    try:
        types = () if op.spec.result_types is None else op.spec.result_types(new)
    except ProgramError as fault:
        raise type(fault)(fault.what, fault.location or op.loc) from None
    new.results = tuple(Value(t, r.name) for t, r in zip(types, op.results, strict=True))
    values |= zip(op.results, new.results, strict=True)
    return new


def _never_runs(op: Op, images: Substitution) -> bool:
    """True if one of the ranges of the loop `op` becomes empty when every expression `e` is replaced by `images(e)`.

    False for a range with a limit that does not become constant. Raise ProgramError if a limit becomes invalid.
    """
    try:
        return any(_is_empty(r, images) for r in op.attrs["ranges"])
    except TilewrightError as fault:
        raise ProgramError(f"{op.name}, with its parameters bound: {first_line(fault)}", op.loc) from None


def _is_empty(range_: Any, images: Substitution) -> bool:
    """True if both limits of the loop range `range_`, a `Range`, become constants under `images`, with hi <= lo."""
    lo, hi = images(range_.lo), images(range_.hi)
    return isinstance(lo, Const) and isinstance(hi, Const) and hi.value <= lo.value
