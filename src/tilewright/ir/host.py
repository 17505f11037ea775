"""The host level: what happens when arguments are bound, and at every launch.

Its arguments are tensors as a caller passes them; `size`s are read off their shapes. `bind` holds what is done once for
the arguments (weights packed, tables made); the rest is done at every launch, in order.

| operation | means |
|---|---|
| `let tiles = ceildiv(M, 128)` | a number |
| `%t = workspace global f32 (M, 4)` | memory of the program's own |
| `table %t (i M) = i//Q*W + i%Q` | fills a tensor of integers by an expression of its coordinates |
| `launch pack(%w, %t) workers 2 with M = M, BM = 128` | runs a program of a lower level, its parameters bound |
| `if (N == 0) { return }` | zero-sized problems end here |
| `bind { ... }` | done once, when the arguments are bound |
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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


def _no_open(op: Op) -> None:
    for s, _ in op.attrs["parameters"]:
        if s.upper is not None:
            text = f"{s.name} in {s.lower}..{s.upper + 1}"
            raise ProgramError(f"{text}: a host program reads its sizes off its arguments: `size {s.name}`")


_SPECS = (
    OpSpec("workspace", {"type": "type"}, result_types=_workspace, notation="workspace {type}"),
    OpSpec("table", {"over": "axes", "value": "expr"}, result_types=_table, notation="table $0 {over} = {value}"),
    OpSpec(
        "launch",
        {"program": "name", "workers": "count", "settings": "settings?"},
        result_types=_nothing,
        notation="launch {program}($*) workers {workers}[ with {settings}]",
    ),
    OpSpec("bind", blocks=1, chained=True, keeps=True, result_types=_nothing, notation="bind {}"),
    OpSpec("if", {"when": "expr"}, blocks=2, result_types=_branch, notation="if {when} {}[ else {}]"),
    OpSpec("return", result_types=_nothing, ends_block=True, notation="return"),
)

HOST = Level(
    "host",
    {spec.name: spec for spec in _SPECS} | {"let": block_level.BLOCK.ops["let"]},
    {
        "param": replace(block_level.BLOCK.records["param"], check=_no_open),
        "let": block_level.BLOCK.records["let"],
        "require": block_level.BLOCK.records["require"],
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
