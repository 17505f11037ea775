"""The host level: the operations at bind time and at every launch, such as workspaces, packing and launches.

Its arguments are tensors as a caller passes them; sizes are read off their shapes: `size M` is any size, `param M in
1..4096` one within limits. The block `bind` is executed once for its arguments (weights packed, tables built); the rest
is executed at every launch, in order.

| operation | means |
|---|---|
| `let tiles = ceildiv(M, 128)` | a name for the value of an expression |
| `%t = workspace global f32 (M, 4)` | allocates memory for the program |
| `%r = reshape %x [M*H, C]` | the same memory with another shape |
| `%s = restride %x global f32 (M, 3, 8):(16, 4, 1)` | the same memory with strides; elements may overlap |
| `fill %t 0` | fills a tensor with a number |
| `table %t (i M) = i//Q*W + i%Q` | fills a tensor of integers by an expression of its coordinates |
| `launch pack(%w, %t) workers 2 with M = M, BM = 128` | launches a program of a lower level, and sets its parameters |
| `check %faults 0 else "..."` | raises the text if that element is not 0 |
| `if (N == 0) { return }` | a branch; here for empty problems |
| `bind { ... }` | executed once, when the arguments are bound |
"""

from __future__ import annotations

from math import prod
from typing import Any

from tilewright.algebra.expr import Const
from tilewright.errors import DimensionMismatch, ProgramError
from tilewright.ir import block as block_level
from tilewright.ir.block import shape_text
from tilewright.ir.core import Level, Op, OpSpec, Program
from tilewright.ir.parser import parse_program
from tilewright.ir.tensors import TensorType, read_type


def _workspace(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `workspace`, and return a tuple of its one result type, which is its attribute `type`.

    Raise ProgramError unless the type is a tensor in global memory without a role such as `in`.
    """
    type_ = op.attrs["type"]
    if not isinstance(type_, TensorType) or type_.space != "global" or type_.role is not None:
        raise ProgramError("workspace makes global memory")
    return (type_,)


def _table(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `table`, and return (), since it has no results.

    A `table` stores in each element of operand 0 an integer computed from the coordinates of the element. Raise
    DimensionMismatch unless operand 0 has the extents of the axes `over`, and ProgramError unless its elements are
    integers or bools.
    """
    type_ = block_level.tensor(op, 0)
    over = tuple(s.upper + 1 for s in op.attrs["over"])
    if over != type_.shape:
        raise DimensionMismatch(f"table: {shape_text(over)} does not run over {shape_text(type_.shape)}")
    if type_.dtype.is_float:
        raise ProgramError(f"table: it holds integers, not {type_.dtype}")
    return ()


def _reshape(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `reshape`, and return a tuple of its one result type: the operand's memory with another shape.

    The new shape is the attribute `shape`. Raise ProgramError unless the operand is in memory and packed (no strides,
    no swizzle). Raise DimensionMismatch if both shapes are constant and differ in number of elements.
    """
    type_, shape = block_level.tensor(op, 0), op.attrs["shape"]
    if not isinstance(type_, TensorType) or type_.strides is not None or type_.swizzle is not None:
        raise ProgramError(f"reshape: {type_} is not packed; only packed memory has other shapes")
    counts = [[e.value for e in extents if isinstance(e, Const)] for extents in (type_.shape, shape)]
    known = len(counts[0]) == len(type_.shape) and len(counts[1]) == len(shape)
    if known and prod(counts[0]) != prod(counts[1]):
        raise DimensionMismatch(f"reshape: {shape_text(shape)} has other elements than {shape_text(type_.shape)}")
    return (TensorType("global", type_.dtype, shape),)


def _restride(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `restride`, and return a tuple of its one result type, which is its attribute `type`.

    The result is the operand's memory, addressed with other strides. Raise ProgramError if the operand is not packed,
    or if the new type is not a global tensor with strides and with the operand's element type. Raise DimensionMismatch
    if the new type reaches past the end of the operand; symbolic sizes are not compared.
    """
    type_, wanted = block_level.tensor(op, 0), op.attrs["type"]
    if not isinstance(type_, TensorType) or type_.strides is not None or type_.swizzle is not None:
        raise ProgramError(f"restride: {type_} is not packed; only packed memory is seen with other strides")
    if not isinstance(wanted, TensorType) or wanted.space != "global" or wanted.strides is None or wanted.role:
        raise ProgramError("restride: what it gives is global memory with strides")
    if wanted.dtype is not type_.dtype:
        raise ProgramError(f"restride: {type_.dtype} is not seen as {wanted.dtype}")
    available, needed = type_.room(), wanted.room()
    if isinstance(available, Const) and isinstance(needed, Const) and needed.value > available.value:
        raise DimensionMismatch(f"restride: {wanted} reaches {needed} elements of {available}")
    return (wanted,)


def _check(op: Op) -> tuple[Any, ...]:
    """Check `op`, a `check`, and return (), since it has no results.

    At each launch, a `check` tests that one element of operand 0 is 0; the attribute `place` is the number of the
    element. Raise ProgramError unless operand 0 is a vector of integers or bools that has this element.
    """
    type_, place = block_level.tensor(op, 0), op.attrs["place"]
    if type_.dtype.is_float or len(type_.shape) != 1:
        raise ProgramError(f"check: it looks at a row of integers, not at {type_}")
    (extent,) = type_.shape
    if place < 0 or (isinstance(extent, Const) and place >= extent.value):
        raise ProgramError(f"check: there is no element {place} of {shape_text(type_.shape)}")
    return ()


def _no_results(op: Op) -> tuple[Any, ...]:
    """Return (): the operation `op` has no results, and needs no check."""
    return ()


def _branch(op: Op) -> tuple[Any, ...]:
    """Check `op`, an `if`, and return (), since it has no results.

    Raise ProgramError if one of its blocks contains a `bind`, which is allowed only outside of branches.
    """
    for block in op.blocks:
        for inner in block.ops:
            if inner.name == "bind":
                raise ProgramError(
                    "`bind` stands on the outermost level: what it does is done once, whatever comes", inner.loc
                )
    return ()


_SPECS = (
    OpSpec("workspace", {"type": "type"}, result_types=_workspace, notation="workspace {type}"),
    OpSpec("reshape", {"shape": "exprs"}, result_types=_reshape, notation="reshape $0 {shape}"),
    OpSpec("restride", {"type": "type"}, result_types=_restride, notation="restride $0 {type}"),
    OpSpec("table", {"over": "axes", "value": "expr"}, result_types=_table, notation="table $0 {over} = {value}"),
    OpSpec(
        "launch",
        {"program": "name", "workers": "count", "settings": "settings?"},
        result_types=_no_results,
        notation="launch {program}([$*]) workers {workers}[ with {settings}]",
    ),
    OpSpec("check", {"place": "int", "says": "str"}, result_types=_check, notation="check $0 {place} else {says}"),
    OpSpec("bind", blocks=1, chained=True, keeps=True, result_types=_no_results, notation="bind {}"),
    OpSpec("if", {"when": "expr"}, blocks=2, result_types=_branch, notation="if {when} {}[ else {}]"),
    OpSpec("return", result_types=_no_results, ends_block=True, notation="return"),
)

HOST = Level(
    "host",
    {spec.name: spec for spec in _SPECS} | {name: block_level.BLOCK.ops[name] for name in ("let", "fill")},
    {
        **{name: block_level.BLOCK.records[name] for name in ("param", "let", "require")},
        "size": OpSpec("size", {"sizes": "sizes"}, notation="size {sizes}"),
    },
    read_type=read_type,
    declares_symbols=False,
)


def parse_host(text: str) -> Program:
    """Parse `text`, which holds one host program, and return the program; raise ParseError or ProgramError if invalid.

    >>> text = '''host twice(%x: in global f32 (M), %y: out global f32 (M))
    ...   size M
    ... {
    ...   if (M == 0) {
    ...     return
    ...   }
    ...   launch double(%x, %y) workers 2 with N = M
    ... }
    ... '''
    >>> str(parse_host(text)) == text
    True
    """
    return parse_program(text, {"host": HOST})
