"""Find the arguments that a tile program writes, and those of which it writes every element."""

from __future__ import annotations

from tilewright.ir.core import Program, Value

WRITES = ("write", "atomic_add", "atomic_min", "atomic_max")


def outputs_of(program: Program) -> tuple[Value, ...]:
    """Return the arguments that a tile program writes, by `write` or by an atomic, in the order of the arguments."""
    return tuple(a for a in program.args if any(op.name in WRITES and op.operands[1] is a for op in program.walk()))


def is_written_whole(program: Program, output: Value) -> bool:
    """True if a tile program provably writes every element of its argument `output`, and never reads it.

    The program must have a `write` of all dimensions of `output`, outside loops and conditionals, without a mapping or
    bounds. No `set_symbol` may set a symbol of these dimensions. False for an argument with physical sizes (`sized
    [...]`).

    >>> from tilewright.ir.tile import parse_tile
    >>> text = '''tile f(%x: global f32[M], %y: global f32[M])
    ...   symbols M, i
    ... {
    ...   %0 = read %x : f32[M]
    ...   write %0, %y
    ... }
    ... '''
    >>> several = [parse_tile(t) for t in (text, text.replace("%y\\n", "%y over=[i] at=[i//2]\\n"))]
    >>> [is_written_whole(program, program.args[1]) for program in several]
    [True, False]
    """
    kind, dims = output.type, set(output.type.dims)
    if kind.extents is not None:
        return False
    for op in program.walk():
        if op.name == "set_symbol" and any(op.attrs["symbol"] in d.symbols for d in dims):
            return False
        if output in op.operands and op.name != "write":
            return False
    return any(
        op.name == "write" and op.operands[1] is output and not op.attrs and set(op.operands[0].type.dims) == dims
        for op in program.body.ops
    )
