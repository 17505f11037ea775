"""The host level: what happens when arguments are bound, and at every launch.

Its arguments are tensors as a caller passes them; sizes are read off their shapes: `size M` any, `param M in 1..4096`
one within limits. `bind` holds what is done once for the arguments (weights packed, tables made); the rest is done at
every launch, in order.

| operation | means |
|---|---|
| `let tiles = ceildiv(M, 128)` | a number |
| `%t = workspace global f32 (M, 4)` | memory of the program's own |
| `%r = reshape %x [M*H, C]` | the same memory, seen in another shape |
| `%s = restride %x global f32 (M, 3, 8):(16, 4, 1)` | the same memory, seen with strides, which may overlap |
| `fill %t 0` | fills a tensor with a number |
| `table %t (i M) = i//Q*W + i%Q` | fills a tensor of integers by an expression of its coordinates |
| `launch pack(%w, %t) workers 2 with M = M, BM = 128` | runs a program of a lower level, its parameters bound |
| `check %faults 0 else "..."` | raises the text where that element is not 0 |
| `if (N == 0) { return }` | zero-sized problems end here |
| `bind { ... }` | done once, when the arguments are bound |
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
    found = op.attrs["type"]
    if not isinstance(found, TensorType) or found.space != "global" or found.role is not None:
        raise ProgramError("workspace makes global memory")
    return (found,)


def _table(op: Op) -> tuple[Any, ...]:
    found = block_level.tensor(op, 0)
    over = tuple(s.upper + 1 for s in op.attrs["over"])
    if over != found.shape:
        raise DimensionMismatch(f"table: {shape_text(over)} does not run over {shape_text(found.shape)}")
    if found.dtype.is_float:
        raise ProgramError(f"table: it holds integers, not {found.dtype}")
    return ()


def _reshape(op: Op) -> tuple[Any, ...]:
    found, shape = block_level.tensor(op, 0), op.attrs["shape"]
    if not isinstance(found, TensorType) or found.strides is not None or found.swizzle is not None:
        raise ProgramError(f"reshape: {found} is not packed; only packed memory has other shapes")
    counts = [[e.value for e in extents if isinstance(e, Const)] for extents in (found.shape, shape)]
    known = len(counts[0]) == len(found.shape) and len(counts[1]) == len(shape)
    if known and prod(counts[0]) != prod(counts[1]):
        raise DimensionMismatch(f"reshape: {shape_text(shape)} has other elements than {shape_text(found.shape)}")
    return (TensorType("global", found.dtype, shape),)


def _restride(op: Op) -> tuple[Any, ...]:
    found, wanted = block_level.tensor(op, 0), op.attrs["type"]
    if not isinstance(found, TensorType) or found.strides is not None or found.swizzle is not None:
        raise ProgramError(f"restride: {found} is not packed; only packed memory is seen with other strides")
    if not isinstance(wanted, TensorType) or wanted.space != "global" or wanted.strides is None or wanted.role:
        raise ProgramError("restride: what it gives is global memory with strides")
    if wanted.dtype is not found.dtype:
        raise ProgramError(f"restride: {found.dtype} is not seen as {wanted.dtype}")
    here, there = found.room(), wanted.room()
    if isinstance(here, Const) and isinstance(there, Const) and there.value > here.value:
        raise DimensionMismatch(f"restride: {wanted} reaches {there} elements of {here}")
    return (wanted,)


def _check(op: Op) -> tuple[Any, ...]:
    found, place = block_level.tensor(op, 0), op.attrs["place"]
    if found.dtype.is_float or len(found.shape) != 1:
        raise ProgramError(f"check: it looks at a row of integers, not at {found}")
    (extent,) = found.shape
    if place < 0 or (isinstance(extent, Const) and place >= extent.value):
        raise ProgramError(f"check: there is no element {place} of {shape_text(found.shape)}")
    return ()


def _nothing(op: Op) -> tuple[Any, ...]:
    return ()


def _branch(op: Op) -> tuple[Any, ...]:
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
        result_types=_nothing,
        notation="launch {program}([$*]) workers {workers}[ with {settings}]",
    ),
    OpSpec("check", {"place": "int", "says": "str"}, result_types=_check, notation="check $0 {place} else {says}"),
    OpSpec("bind", blocks=1, chained=True, keeps=True, result_types=_nothing, notation="bind {}"),
    OpSpec("if", {"when": "expr"}, blocks=2, result_types=_branch, notation="if {when} {}[ else {}]"),
    OpSpec("return", result_types=_nothing, ends_block=True, notation="return"),
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
    """The host program that the text prints.

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
