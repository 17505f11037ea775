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
    """Return the program's parameters, each with its default or None."""
    return {s: n for r in program.records if r.name == "param" for s, n in r.attrs["parameters"]}


def open_parameters(program: Program) -> tuple[Symbol, ...]:
    """Return the parameters declared with a range, such as `M in 1..100`, which each call gives a value.

    >>> from tilewright.ir.block import parse_block
    >>> program = parse_block("block none(%x: in global f32 (M, K))\\n  param M in 1..100, K = 4 {}")
    >>> open_parameters(program), allowed(open_parameters(program)[0])
    ((<M>,), range(1, 100))
    """
    return tuple(s for s in parameters(program) if s.upper is not None)


def open_sizes(program: Program) -> tuple[Symbol, ...]:
    """Return all symbols that each call gives a value: the open parameters and, at the host level, the sizes.

    >>> from tilewright.ir.host import parse_host
    >>> open_sizes(parse_host("host none(%x: in global f32 (M, N))\\n  size N\\n  param M in 1..100 {}"))
    (<M>, <N>)
    """
    return (*open_parameters(program), *(s for r in program.records if r.name == "size" for s in r.attrs["sizes"]))


def _plain(value: Any) -> Any:
    """Return a numpy number as a Python number, and anything else unchanged."""
    number = plain_number(value)
    return value if number is None else number


def allowed(parameter: Symbol) -> range:
    """Return the values that an open parameter or a size may take."""
    most = ELEMENTS.most if parameter.upper is None else int(parameter.upper)
    return range(int(parameter.lo), most + 1, parameter.multiple)


def bind(program: Program, values: Mapping[str, int] | None = None) -> Program:
    """Return the program with its parameters replaced by `values` or by their defaults.

    Lets (names for expressions) that become constant are replaced too. A parameter with a range stays open unless
    `values` has it. Raise ArgumentError for unknown names, missing or illegal values, and if a `require` of the header
    fails.

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
    return rebuilt(program, bound)


def _range_text(parameter: Symbol) -> str:
    """Return a parameter with its range as text, such as `M in 1..100`."""
    return attr_text("parameters", ((parameter, None),))


def rebuilt(program: Program, bound: Mapping[Any, Expr]) -> Program:
    """Return a new program with the symbols that are keys of `bound` replaced everywhere.

    Header records that only declared replaced symbols are dropped. Raise ArgumentError if a `require` becomes false.
    """
    lets = {r.attrs["symbol"]: r for r in program.records if r.name == "let"}
    numbers = {**{s: s.definition for s in lets if isinstance(s.definition, Const)}, **bound}
    images = _Binding(numbers)
    let_values = {symbol(s.name, 0): _let_value(let, images) for s, let in lets.items()}
    # the symbols that {name} in atom names and layouts stands for
    images = _Binding({**numbers, **{name: value for name, value in let_values.items() if isinstance(value, Const)}})
    open_entries = tuple((s, None) for s in open_parameters(program) if s not in bound)
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
            still_open = tuple(p for p in record.attrs["parameters"] if p in open_entries)
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
    """Return a copy of a block with the symbols that are keys of `bound` replaced.

    `values` maps values defined outside the block to the values that take their place.
    """
    return _substituted_block(block, Substitution(bound), dict(values))


def inlined(program: Program) -> Program:
    """Return the program with each `let` (name for an expression) replaced by its definition.

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
    result = rebuilt(program, definitions)
    result.records = [r for r in result.records if r.name != "let"]
    for block in (result.body, *(b for op in result.walk() for b in op.blocks)):
        block.ops = [op for op in block.ops if op.name != "let"]
    return result


class _Binding(Substitution):
    """A substitution of parameters; an axis whose range becomes empty keeps only its upper limit."""

    def _symbol_image(self, s: Symbol) -> Expr:
        """Return the expression that replaces symbol `s`.

        An axis whose range becomes empty (upper = lower - 1) keeps only its upper limit.
        """
        if s not in self.by_symbol and s.lower is not None and s.upper is not None and s.definition is None:
            lower, upper = self(s.lower), self(s.upper)
            if isinstance(lower, Const) and isinstance(upper, Const) and upper.value == lower.value - 1:
                return symbol(s.name, None, upper)
        return super()._symbol_image(s)


def _argument_type(program: Program, arg: Value, images: Substitution) -> Any:
    """Return the type of argument `arg` under the substitution `images`; raise ProgramError if the type becomes
    invalid.
    """
    try:
        return arg.type.mapped(images)
    except TilewrightError as fault:
        raise ProgramError(f"{program.name}, with its parameters bound: %{arg.name}: {first_line(fault)}") from None


def _mentions(record: Op, parameter: Any) -> bool:
    """True if a `require` record depends on `parameter`, directly or through the definition of a let."""
    symbols: set[Any] = set()
    stack = [record.attrs["that"]]
    while stack:
        for s in stack.pop().symbols - symbols:
            symbols.add(s)
            if s.definition is not None:
                stack.append(s.definition)
    return parameter in symbols


def _let_value(let: Op, images: Substitution) -> Expr:
    """Return the value of a let's symbol under the substitution `images`; raise ProgramError if
    it cannot be computed.
    """
    try:
        return images(let.attrs["symbol"])
    except TilewrightError as fault:
        raise ProgramError(f"let, with its parameters bound: {first_line(fault)}", let.loc) from None


def first_line(fault: TilewrightError) -> str:
    """Return the first line of an error's message, without the source location that follows."""
    return str(fault).split("\n", 1)[0]


def _substituted_attrs(op: Op, images: Substitution) -> dict[str, Any]:
    """Return an operation's attributes under the substitution `images`; raise ProgramError if one becomes invalid."""
    try:
        return {name: kind_of(op.spec.attrs[name]).mapped(value, images) for name, value in op.attrs.items()}
    except TilewrightError as fault:
        raise ProgramError(f"{op.name}, with its parameters bound: {first_line(fault)}", op.loc) from None


def _substituted_block(block: Block, images: Substitution, values: dict[Value, Value]) -> Block:
    """Return a copy of a block under the substitution `images`; constant lets and loops that never run are dropped.

    `values` maps old values to new ones. It must hold values defined outside the block, and gets those defined in it.
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
    """Return a copy of an operation under the substitution `images`, or None for a loop or `if` that never runs.

    `values` maps old values to new ones, and gets the operation's results.
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
    """True if a loop has an empty range under the substitution `images`."""
    try:
        return any(_is_empty(r, images) for r in op.attrs["ranges"])
    except TilewrightError as fault:
        raise ProgramError(f"{op.name}, with its parameters bound: {first_line(fault)}", op.loc) from None


def _is_empty(range_: Any, images: Substitution) -> bool:
    """True if a `Range` is known to be empty under the substitution `images`."""
    lo, hi = images(range_.lo), images(range_.hi)
    return isinstance(lo, Const) and isinstance(hi, Const) and hi.value <= lo.value
