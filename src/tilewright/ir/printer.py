"""Print programs of every level as text; `parser` reads the text back."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir.attrs import attr_symbols, attr_text
from tilewright.ir.core import Block, Op, Program, Value, walk_block
from tilewright.ir.notation import NotationPiece, deciding, pieces


def program_text(program: Program) -> str:
    """Return the text of a program, which the parser reads back.

    The header comes first: name, arguments, symbols that are never negative (`symbols`), other symbols (`values`),
    bindings, and records such as constraints. The body follows.
    """
    lines = [f"{program.level.name} {program.name}({_arguments_text(program)})"]
    natural, free = _symbol_names(program) if program.level.declares_symbols else ([], [])
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
    """Return an operation as one line of text for error messages; nested blocks are shown as `{...}` or left out."""
    if op.spec.notation is not None:
        results = ", ".join("%" + (v.name or "_") for v in op.results)
        text = _notated_text(op, lambda v: "%" + (v.name or "_"), lambda _: "{...}")
        return f"{results} = {text}" if results else text
    operands = ", ".join("%" + (v.name or "_") for v in op.operands)
    types = ", ".join(str(r.type) for r in op.results)
    return f"{op.name}{' ' + operands if operands else ''}{_attributes_text(op)}{' : ' + types if types else ''}"


def _arguments_text(program: Program) -> str:
    """Return the program's arguments as they stand in its header: `%x: TYPE, %y: TYPE`."""
    return ", ".join(f"%{a.name}: {a.type}" for a in program.args)


def _symbol_names(program: Program) -> tuple[list[str], list[str]]:
    """Return two sorted lists of symbol names: (symbols of the program that are never negative, all other symbols)."""
    symbols = program_symbols(program)
    return sorted(s.name for s in symbols if s.lo >= 0), sorted(s.name for s in symbols if s.lo < 0)


def program_symbols(program: Program) -> set[Symbol]:
    """Return the set of symbols that occur in a program: in its bindings, types, header lines and operations."""
    symbols: set[Symbol] = set()
    for symbol, value in program.bindings.items():
        symbols |= symbol.symbols
        if isinstance(value, Expr):
            symbols |= value.symbols
    for value in program.args:
        symbols |= _type_symbols(value)
    for op in [*program.records, *walk_block(program.body)]:
        for name, attr in op.attrs.items():
            symbols |= attr_symbols(op.spec.attrs[name], attr)
        for value in op.results:
            symbols |= _type_symbols(value)
        for block in op.blocks:
            for value in block.args:
                symbols |= _type_symbols(value)
    return symbols


def _type_symbols(value: Value) -> set[Symbol]:
    """Return the set of symbols that occur in the type of `value`."""
    return {s for e in value.type.expressions() for s in e.symbols}


def _record_text(record: Op) -> str:
    """Return `record`, a line of a program's header, as text."""
    if record.spec.notation is not None:
        return _notated_text(record, lambda _: "", lambda _: "")
    return record.name + _attributes_text(record)


class _Names:
    """Unique printed names of a program's values: a value's own name if it is free, otherwise a number."""

    def __init__(self, program: Program):
        self.of: dict[Value, str] = {}
        self.used: set[str] = set()
        self.types: dict[int, str] = {}
        self.count = 0
        for arg in program.args:
            self.add(arg)

    def add(self, value: Value) -> str:
        """Choose a unique name for `value`, record it, and return it without its %.

        The name is `value.name` if no earlier value has it, otherwise a number.
        """
        name = value.name or ""
        if not name or name in self.used:
            name = str(self.count)
            self.count += 1
        self.used.add(name)
        self.of[value] = name
        return name

    def type(self, value: Value) -> str:
        """Return the type of `value` as text. The text of each type object is computed once."""
        text = self.types.get(id(value.type))
        if text is None:
            text = self.types[id(value.type)] = str(value.type)
        return text

    def __getitem__(self, value: Value) -> str:
        return "%" + self.of.get(value, "undefined")


def _attributes_text(op: Op) -> str:
    """Return the attributes of `op` as text, ` name=value` for each, in the order of its spec; "" if it has none."""
    text = ""
    for name, kind in op.spec.attrs.items():
        if name in op.attrs:
            text += f" {name}={attr_text(kind, op.attrs[name])}"
    return text


def _notated_text(op: Op, name: Callable[[Value], str], block: Callable[[Block], str]) -> str:
    """Return the text of `op` in the syntax given by `op.spec.notation`, without its results.

    `name` is a function from an operand to its text, and `block` from a nested block to its text.
    """
    assert op.spec.notation is not None
    names = [name(v) for v in op.operands]
    half = len(names) // 2
    blocks = iter(op.blocks)
    shown: list[str] = []
    used = 0

    def is_printed(piece: NotationPiece | None) -> bool:
        if piece is None:
            return len(op.operands) > used
        if piece.what == "block":
            return len(op.blocks) > printed
        return piece.text in op.attrs and (piece.what != "flag" or bool(op.attrs[piece.text]))

    printed = 0

    def show(notation: tuple[NotationPiece, ...]) -> None:
        nonlocal used, printed
        for piece in notation:
            match piece.what:
                case "group":
                    if is_printed(deciding(piece)):
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
    """Append the lines of the operations of `block` to `lines`, indented by the string `indent`.

    `names` has the printed names of values defined before. Names of values that the block defines are added to `names`.
    """
    for op in block.ops:
        if op.spec.notation is not None:
            _print_notated(op, names, lines, indent)
            continue
        operands = ", ".join(names[v] for v in op.operands)
        line = op.name + (f" {operands}" if operands else "") + _attributes_text(op)
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
    """Append the text of `op`, in the syntax given by `op.spec.notation`, to `lines`, indented by the string `indent`.

    A text of several lines is one entry. `names` has the printed names of values defined before. Names of the results
    of `op` are added to `names`.
    """

    def block_text(block: Block) -> str:
        inner: list[str] = ["{"]
        _print_block(block, names, inner, indent + "  ")
        return "\n".join([*inner, indent + "}"])

    text = _notated_text(op, lambda v: names[v], block_text)
    results = ", ".join("%" + names.add(r) for r in op.results)
    lines.append(indent + (f"{results} = {text}" if results else text))
