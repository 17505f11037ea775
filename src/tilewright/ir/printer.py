"""Text from programs; `parser` reads it back."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir.attrs import attr_symbols, attr_text
from tilewright.ir.core import Block, Op, Program, Value, walk_block
from tilewright.ir.notation import NotationPiece, deciding, pieces


def program_text(program: Program) -> str:
    """The program in the notation of its level.

    Symbols that are never negative are listed as `symbols`, others as `values`; then bindings and records (the
    constraints of a tile program), then the body.
    """
    lines = [f"{program.level.name} {program.name}({_arguments(program)})"]
    natural, free = _symbols(program) if program.level.declares_symbols else ([], [])
    if natural:
        lines.append(f"  symbols {', '.join(natural)}")
    if free:
        lines.append(f"  values {', '.join(free)}")
    for symbol, value in sorted(program.bindings.items(), key=lambda item: str(item[0])):
        lines.append(f"  bind {symbol} = {value}")
    names = _Names(program)
    lines += [f"  {_record_text(record)}" for record in program.records]
    lines.append("{")
    _print_block(program.body, names, lines, "  ")
    return "\n".join([*lines, "}"]) + "\n"


def op_text(op: Op) -> str:
    """One operation on one line, its blocks left out: for messages."""
    if op.spec.notation is not None:
        results = ", ".join("%" + (v.name or "_") for v in op.results)
        text = _notated(op, lambda v: "%" + (v.name or "_"), lambda _: "{...}")
        return f"{results} = {text}" if results else text
    operands = ", ".join("%" + (v.name or "_") for v in op.operands)
    types = ", ".join(str(r.type) for r in op.results)
    return f"{op.name}{' ' + operands if operands else ''}{_attributes(op)}{' : ' + types if types else ''}"


def _arguments(program: Program) -> str:
    return ", ".join(f"%{a.name}: {a.type}" for a in program.args)


def _symbols(program: Program) -> tuple[list[str], list[str]]:
    found = program_symbols(program)
    return sorted(s.name for s in found if s.lo >= 0), sorted(s.name for s in found if s.lo < 0)


def program_symbols(program: Program) -> set[Symbol]:
    """Every symbol that occurs in a program: in its bindings, types, records and operations."""
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
    return found


def _type_symbols(value: Value) -> set[Symbol]:
    return {s for e in value.type.expressions() for s in e.symbols}


def _record_text(record: Op) -> str:
    if record.spec.notation is not None:
        return _notated(record, lambda _: "", lambda _: "")
    return record.name + _attributes(record)


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


def _notated(op: Op, name: Callable[[Value], str], block: Callable[[Block], str]) -> str:
    """The operation in its notation."""
    assert op.spec.notation is not None
    names = [name(v) for v in op.operands]
    half = len(names) // 2
    blocks = iter(op.blocks)
    shown: list[str] = []
    used = 0

    def there(piece: NotationPiece | None) -> bool:
        if piece is None:
            return len(op.operands) > used
        if piece.what == "block":
            return len(op.blocks) > printed
        return piece.text in op.attrs and (piece.what != "flag" or bool(op.attrs[piece.text]))

    printed = 0

    def show(these: tuple[NotationPiece, ...]) -> None:
        nonlocal used, printed
        for piece in these:
            match piece.what:
                case "group":
                    if there(deciding(piece)):
                        show(piece.inner)
                case "operand":
                    part = {"*": names[used:], "<": names[:half], ">": names[half:]}.get(piece.text)
                    if part is None:
                        part = names[int(piece.text) : int(piece.text) + 1]
                        used = max(used, int(piece.text) + 1)
                    shown.append(", ".join(part))
                case "attribute":
                    shown.append(attr_text(op.spec.attrs[piece.text], op.attrs[piece.text], names))
                case "block":
                    shown.append(block(next(blocks)))
                    printed += 1
                case _:
                    shown.append(piece.text)

    show(pieces(op.spec.notation))
    return "".join(shown)


def _print_block(block: Block, names: _Names, lines: list[str], indent: str) -> None:
    for op in block.ops:
        if op.spec.notation is not None:
            _print_notated(op, names, lines, indent)
            continue
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


def _print_notated(op: Op, names: _Names, lines: list[str], indent: str) -> None:
    def block_text(block: Block) -> str:
        inner: list[str] = ["{"]
        _print_block(block, names, inner, indent + "  ")
        return "\n".join([*inner, indent + "}"])

    text = _notated(op, lambda v: names[v], block_text)
    results = ", ".join("%" + names.add(r) for r in op.results)
    lines.append(indent + (f"{results} = {text}" if results else text))
