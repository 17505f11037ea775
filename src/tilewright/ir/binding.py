"""Parameters become numbers: a program for a family becomes a program for one member of it."""

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
    """The program's parameters and their defaults."""
    return {s: n for r in program.records if r.name == "param" for s, n in r.attrs["parameters"]}


def open_parameters(program: Program) -> tuple[Symbol, ...]:
    """The parameters that have a range instead of a value: a call tells them.

    >>> from tilewright.ir.block import parse_block
    >>> program = parse_block("block none(%x: in global f32 (M, K))\\n  param M in 1..100, K = 4 {}")
    >>> open_parameters(program), allowed(open_parameters(program)[0])
    ((<M>,), range(1, 100))
    """
    return tuple(s for s in parameters(program) if s.upper is not None)


def open_sizes(program: Program) -> tuple[Symbol, ...]:
    """All that a call tells: the open parameters, and on the host level the sizes.

    >>> from tilewright.ir.host import parse_host
    >>> open_sizes(parse_host("host none(%x: in global f32 (M, N))\\n  size N\\n  param M in 1..100 {}"))
    (<M>, <N>)
    """
    return (*open_parameters(program), *(s for r in program.records if r.name == "size" for s in r.attrs["sizes"]))


def _plain(value: Any) -> Any:
    number = plain_number(value)
    return value if number is None else number


def allowed(parameter: Symbol) -> range:
    """The numbers that an open parameter, or a size, may be."""
    most = ELEMENTS.most if parameter.upper is None else int(parameter.upper)
    return range(int(parameter.lo), most + 1, parameter.multiple)


def bind(program: Program, values: Mapping[str, int] | None = None) -> Program:
    """The program with its parameters bound: to these values, or to their defaults. Its header's lets are worked out.

    A parameter with a range stays open unless it is given a value.

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
    known = parameters(program)
    names = [s.name for s in known]
    for name, value in values.items():
        if name not in names:
            said, hint = name if isinstance(name, str) else written(name, 60), did_you_mean(str(name), names)
            raise ArgumentError(
                f"params: {program.name} has no parameter {said}; it has {', '.join(names) or 'none'}{hint}"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 0 or ELEMENTS.refuses(value):
            raise ArgumentError(
                f"params: {name} = {written(value)} must be an integer that is not negative, and at most 2**48"
            )
    bound: dict[Any, Expr] = {}
    for s, default in known.items():
        number = values.get(s.name, default)
        if number is None and s.upper is not None:
            continue
        if number is None:
            raise ArgumentError(f"params: {program.name} needs a value for {s.name}")
        if s.upper is not None:
            if number not in allowed(s):
                raise ArgumentError(f"params: {s.name} = {number}; {program.name} takes {_range_text(s)}")
            bound[symbol(s.name, 0)] = as_expr(number)  # as it stands in the names of atoms
        bound[s] = as_expr(number)
    return rebuilt(program, bound)


def _range_text(parameter: Symbol) -> str:
    return attr_text("parameters", ((parameter, None),))


def rebuilt(program: Program, bound: Mapping[Any, Expr]) -> Program:
    """The program with symbols replaced everywhere; records that only bound them go."""
    lets = {r.attrs["symbol"]: r for r in program.records if r.name == "let"}
    numbers = {**{s: s.definition for s in lets if isinstance(s.definition, Const)}, **bound}
    images = _Binding(numbers)
    named = {symbol(s.name, 0): _image(let, images) for s, let in lets.items()}
    # as they stand in the names of atoms, and in layouts
    images = _Binding({**numbers, **{name: found for name, found in named.items() if isinstance(found, Const)}})
    opened = tuple((s, None) for s in open_parameters(program) if s not in bound)
    records = []
    for record in program.records:
        if record.name == "require":
            that = _mapped(record, images)["that"]
            if isinstance(that, Const):
                if not that.value:
                    inside = [s for s in record.attrs["that"].symbols if s.definition is not None]
                    told = [
                        *((s, e) for s, e in bound.items() if _mentions(record, s)),
                        *((s, images(s)) for s in inside),
                    ]
                    given = ", ".join(f"{s.name} = {e}" for s, e in told)
                    here = f"; here {given}" if given else ", which never holds"
                    where = f"\n{record.loc.pointing()}" if record.loc else ""
                    raise ArgumentError(f"params: {program.name} requires {record.attrs['that']}{here}{where}")
                continue
        if record.name == "param":
            mine = tuple(p for p in record.attrs["parameters"] if p in opened)
            if mine:
                records.append(Op(record.spec, (), {"parameters": mine}, loc=record.loc))
            continue
        if record.name == "let" and isinstance(_image(record, images), Const):
            continue
        records.append(Op(record.spec, (), _mapped(record, images), loc=record.loc))
    args = tuple(Value(_argument_type(program, a, images), a.name) for a in program.args)
    values: dict[Value, Value] = dict(zip(program.args, args, strict=True))
    body = _block(program.body, images, values)
    return Program(program.level, program.name, args, body, records, dict(program.bindings), program.loc)


def replaced(block: Block, bound: Mapping[Any, Expr], values: Mapping[Value, Value]) -> Block:
    """A block with symbols replaced everywhere, and these values in place of those it is given; all of it is new."""
    return _block(block, Substitution(bound), dict(values))


def inlined(program: Program) -> Program:
    """The program with the numbers that its `let`s name written out, for comparing programs that name others.

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
    named: dict[Any, Expr] = {}
    for op in (*program.records, *program.walk()):
        if op.name == "let":
            named[op.attrs["symbol"]] = Substitution(named)(op.attrs["symbol"].definition)
    found = rebuilt(program, named)
    found.records = [r for r in found.records if r.name != "let"]
    for block in (found.body, *(b for op in found.walk() for b in op.blocks)):
        block.ops = [op for op in block.ops if op.name != "let"]
    return found


class _Binding(Substitution):
    """Parameters replaced; of a coordinate that then runs over nothing, nothing is known but that."""

    def _symbol(self, s: Symbol) -> Expr:
        if s not in self.by_symbol and s.lower is not None and s.upper is not None and s.definition is None:
            lower, upper = self(s.lower), self(s.upper)
            if isinstance(lower, Const) and isinstance(upper, Const) and upper.value == lower.value - 1:
                return symbol(s.name, None, upper)
        return super()._symbol(s)


def _argument_type(program: Program, arg: Value, images: Substitution) -> Any:
    try:
        return arg.type.mapped(images)
    except TilewrightError as fault:
        raise ProgramError(f"{program.name}, with its parameters bound: %{arg.name}: {first_line(fault)}") from None


def _mentions(record: Op, parameter: Any) -> bool:
    """Whether a requirement depends on a parameter, perhaps through a let."""
    found: set[Any] = set()
    stack = [record.attrs["that"]]
    while stack:
        for s in stack.pop().symbols - found:
            found.add(s)
            if s.definition is not None:
                stack.append(s.definition)
    return parameter in found


def _image(let: Op, images: Substitution) -> Expr:
    """What a let's name stands for."""
    try:
        return images(let.attrs["symbol"])
    except TilewrightError as fault:
        raise ProgramError(f"let, with its parameters bound: {first_line(fault)}", let.loc) from None


def first_line(fault: TilewrightError) -> str:
    """What an error says, without the place it points at."""
    return str(fault).split("\n", 1)[0]


def _mapped(op: Op, images: Substitution) -> dict[str, Any]:
    try:
        return {name: kind_of(op.spec.attrs[name]).mapped(value, images) for name, value in op.attrs.items()}
    except TilewrightError as fault:
        raise ProgramError(f"{op.name}, with its parameters bound: {first_line(fault)}", op.loc) from None


def _block(block: Block, images: Substitution, values: dict[Value, Value]) -> Block:
    ops = []
    for op in block.ops:
        if op.name == "let" and isinstance(_image(op, images), Const):
            continue
        new = _op(op, images, values)
        if new is not None:
            ops.append(new)
    return Block((), ops)


def _op(op: Op, images: Substitution, values: dict[Value, Value]) -> Op | None:
    if "ranges" in op.attrs and _never(op, images):
        return None  # a loop that never runs says nothing
    attrs = _mapped(op, images)
    if op.name == "if" and isinstance(attrs["when"], Const) and not attrs["when"].value and len(op.blocks) == 1:
        return None
    new = Op(op.spec, tuple(values[v] for v in op.operands), attrs, loc=op.loc)
    new.blocks = tuple(_block(b, images, values) for b in op.blocks)
    try:
        types = () if op.spec.result_types is None else op.spec.result_types(new)
    except ProgramError as fault:
        raise type(fault)(fault.what, fault.location or op.loc) from None
    new.results = tuple(Value(t, r.name) for t, r in zip(types, op.results, strict=True))
    values |= zip(op.results, new.results, strict=True)
    return new


def _never(op: Op, images: Substitution) -> bool:
    """Whether a loop never runs."""
    try:
        return any(_empty(r, images) for r in op.attrs["ranges"])
    except TilewrightError as fault:
        raise ProgramError(f"{op.name}, with its parameters bound: {first_line(fault)}", op.loc) from None


def _empty(loop: Any, images: Substitution) -> bool:
    lo, hi = images(loop.lo), images(loop.hi)
    return isinstance(lo, Const) and isinstance(hi, Const) and hi.value <= lo.value
