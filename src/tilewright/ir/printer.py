"""Text from programs; `parser` reads it back."""

from __future__ import annotations

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir.attrs import attr_symbols, attr_text
from tilewright.ir.core import Block, MemoryType, Op, Program, TileType, Value, walk_block


def program_text(program: Program) -> str:
    """The program in the notation of its level.

    Symbols that are never negative are listed as `symbols`, others as `values`; then bindings and records (the
    constraints of a tile program), then the body.
    """
    lines = [f"{program.level.name} {program.name}({_arguments(program)})"]
    natural, free = _symbols(program)
    if natural:
        lines.append(f"  symbols {', '.join(natural)}")
    if free:
        lines.append(f"  values {', '.join(free)}")
    for symbol, value in sorted(program.bindings.items(), key=lambda item: str(item[0])):
        lines.append(f"  bind {symbol} = {value}")
    lines += [f"  {record.name}{_attributes(record)}" for record in program.records]
    names = _Names(program)
    lines.append("{")
    _print_block(program.body, names, lines, "  ")
    return "\n".join([*lines, "}"]) + "\n"


def op_text(op: Op) -> str:
    """One operation on one line, its blocks left out: for messages."""
    operands = ", ".join("%" + (v.name or "_") for v in op.operands)
    types = ", ".join(str(r.type) for r in op.results)
    return f"{op.name}{' ' + operands if operands else ''}{_attributes(op)}{' : ' + types if types else ''}"


def _arguments(program: Program) -> str:
    return ", ".join(f"%{a.name}: {a.type}" for a in program.args)


def _symbols(program: Program) -> tuple[list[str], list[str]]:
    found: set[Symbol] = set()
    for symbol, value in program.bindings.items():
        found |= symbol.symbols
        if isinstance(value, Expr):
            found |= value.symbols
    for value in program.args:
        found |= _type_symbols(value)
    for op in [*program.records, *walk_block(program.body)]:
        for name, attr in op.attrs.items():
            found |= attr_symbols(op.spec.attrs[name], attr)
        for value in op.results:
            found |= _type_symbols(value)
        for block in op.blocks:
            for value in block.args:
                found |= _type_symbols(value)
    natural = sorted(s.name for s in found if s.lo >= 0)
    return natural, sorted(s.name for s in found if s.lo < 0)


def _type_symbols(value: Value) -> set[Symbol]:
    if isinstance(value.type, MemoryType):
        return {s for dim in (*value.type.dims, *value.type.sizes) if dim is not None for s in dim.symbols}
    if isinstance(value.type, TileType):
        return {s for dim in value.type.dims for s in dim.symbols}
    return set()


class _Names:
    """A name for every value: its own where it has one that is still free, otherwise a number."""

    def __init__(self, program: Program):
        self.of: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.types: dict[int, str] = {}
        self.count = 0
        for arg in program.args:
            self.add(arg)

    def add(self, value: Value) -> str:
        name = value.name or ""
        if not name or name in self.taken:
            name = str(self.count)
            self.count += 1
        self.taken.add(name)
        self.of[value] = name
        return name

    def type(self, value: Value) -> str:
        """The text of a value's type, made once for each type object."""
        found = self.types.get(id(value.type))
        if found is None:
            found = self.types[id(value.type)] = str(value.type)
        return found

    def __getitem__(self, value: Value) -> str:
        return "%" + self.of.get(value, "undefined")


def _attributes(op: Op) -> str:
    text = ""
    for name, kind in op.spec.attrs.items():
        if name in op.attrs:
            text += f" {name}={attr_text(kind, op.attrs[name])}"
    return text


def _print_block(block: Block, names: _Names, lines: list[str], indent: str) -> None:
    for op in block.ops:
        operands = ", ".join(names[v] for v in op.operands)
        line = op.name + (f" {operands}" if operands else "") + _attributes(op)
        results = [names.add(r) for r in op.results]
        if results:
            line = ", ".join("%" + r for r in results) + " = " + line
        types = " : " + ", ".join(names.type(r) for r in op.results) if results else ""
        if not op.blocks:
            lines.append(indent + line + types)
            continue
        for i, inner in enumerate(op.blocks):
            args = ", ".join(f"%{names.add(a)}: {a.type}" for a in inner.args)
            lines.append(indent + (line if i == 0 else "}") + f" ({args}) {{")
            _print_block(inner, names, lines, indent + "  ")
        lines.append(indent + "}" + types)
