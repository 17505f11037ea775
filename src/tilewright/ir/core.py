"""What a program is made of, on every level.

A program is a block of operations; an operation has operands and results (values with types), attributes, and
blocks of its own (the body of a loop). Index arithmetic is not operations: attributes hold expressions of
`tilewright.algebra`. What operations there are, a *level* says: a table of `OpSpec`s.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tilewright.algebra.expr import Expr
from tilewright.ir.dtypes import DType
from tilewright.ir.location import Location, TextLocation


class TileType:
    """A register tile: an element type over dimensions; without dimensions, a scalar."""

    __slots__ = ("dims", "dtype")

    def __init__(self, dtype: DType, dims: tuple[Expr, ...] = ()):
        self.dtype, self.dims = dtype, dims

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TileType) and self.dtype is other.dtype and self.dims == other.dims

    def __hash__(self) -> int:
        return hash((self.dtype, self.dims))

    def expressions(self) -> tuple[Expr, ...]:
        """Every expression in it."""
        return self.dims

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.dims))}]"

    __repr__ = __str__


class MemoryType:
    """A tensor in memory: an element type, dimensions, and the space it lives in ("global", "shared").

    `extents` are its physical sizes where they differ from the dimensions it is indexed by; None leaves one free.
    `strides` are the elements from one neighbour to the next along each dimension, where a pass made it of other
    memory; they may overlap. None: it is packed.
    """

    __slots__ = ("dims", "dtype", "extents", "space", "strides")

    def __init__(
        self,
        dtype: DType,
        dims: tuple[Expr, ...],
        space: str = "global",
        extents: tuple[Expr | None, ...] | None = None,
        strides: tuple[int, ...] | None = None,
    ):
        self.dtype, self.dims, self.space, self.extents, self.strides = dtype, dims, space, extents, strides

    @property
    def sizes(self) -> tuple[Expr | None, ...]:
        """What an array of this type must measure."""
        return self.dims if self.extents is None else self.extents

    def expressions(self) -> tuple[Expr, ...]:
        """Every expression in it."""
        return (*self.dims, *(e for e in self.sizes if e is not None))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, MemoryType)
            and self.dtype is other.dtype
            and self.dims == other.dims
            and self.space == other.space
            and self.extents == other.extents
            and self.strides == other.strides
        )

    def __hash__(self) -> int:
        return hash((self.dtype, self.dims, self.space, self.extents, self.strides))

    def __str__(self) -> str:
        text = f"{self.space} {self.dtype}[{', '.join(map(str, self.dims))}]"
        if self.extents is not None:
            text += f" sized [{', '.join('_' if e is None else str(e) for e in self.extents)}]"
        return text if self.strides is None else f"{text} strided [{', '.join(map(str, self.strides))}]"

    __repr__ = __str__


class Value:
    """What an operation or a block makes: a name for people, and a type."""

    __slots__ = ("name", "type")

    def __init__(self, value_type: Any, name: str | None = None):
        self.type = value_type
        self.name = name


class Block:
    """Operations in order, with values the surrounding operation hands in."""

    __slots__ = ("args", "ops")

    def __init__(self, args: tuple[Value, ...] = (), ops: list[Op] | None = None):
        self.args = args
        self.ops: list[Op] = [] if ops is None else ops


class Op:
    """One operation."""

    __slots__ = ("attrs", "blocks", "loc", "name", "operands", "results", "spec")

    def __init__(
        self,
        spec: OpSpec,
        operands: tuple[Value, ...],
        attrs: dict[str, Any],
        results: tuple[Value, ...] = (),
        blocks: tuple[Block, ...] = (),
        loc: Location | TextLocation | None = None,
    ):
        self.spec, self.name = spec, spec.name
        self.operands = operands
        self.attrs = attrs
        self.results = results
        self.blocks = blocks
        self.loc = loc

    @property
    def result(self) -> Value:
        """The one result."""
        (value,) = self.results
        return value


@dataclass(frozen=True, eq=False)
class OpSpec:
    """What holds of every operation of a name: attributes, blocks, and how result types follow from operands."""

    name: str
    attrs: Mapping[str, str] = field(default_factory=dict)
    """Name -> kind (see `attrs`); a kind that ends in ? may be left out."""
    blocks: int = 0
    result_types: Callable[[Op], tuple[Any, ...]] | None = None
    """The types that follow from operands and attributes; None: they are stated freely, `check` may refuse them."""
    check: Callable[[Op], None] | None = None
    """Raises ProgramError where the operation makes no sense."""
    ends_block: bool = False
    chained: bool = False
    """Whether each block also sees what the block before it defines."""
    keeps: bool = False
    """Whether what its blocks define is known after it."""
    notation: str | None = None
    """How it is written (see `notation`); None: `name operands attribute=value ...`, with the results' types."""

    def __deepcopy__(self, memo: Any) -> OpSpec:
        return self  # a row of a level's table: operations are told apart by it


@dataclass(frozen=True, eq=False)
class Level:
    """A language: the operations a program of this level may hold, the records its header may, and its types."""

    name: str
    ops: Mapping[str, OpSpec]
    records: Mapping[str, OpSpec] = field(default_factory=dict)
    read_type: Callable[[Any], Any] | None = None
    """Reads a type from a `parser.Reader`; None: the types of the tile level."""
    declares_symbols: bool = True
    """Whether the header lists the symbols; otherwise its records and operations bind every one."""
    after_ranges: tuple[str, ...] = ()
    """The words that may follow a loop's ranges."""

    def __deepcopy__(self, memo: Any) -> Level:
        return self  # there is one of each name


@dataclass(eq=False)
class Program:
    """A whole program: arguments, a header of records (constraints), bindings of symbols, and a body."""

    level: Level
    name: str
    args: tuple[Value, ...]
    body: Block
    records: list[Op] = field(default_factory=list)
    bindings: dict[Expr, Any] = field(default_factory=dict)
    loc: Location | None = None
    hooks: dict[str, Any] = field(default_factory=dict)
    """Functions of the author's to call with logged values, by label; no part of the text."""

    def walk(self) -> Iterator[Op]:
        """Every operation, outer ones before those in their blocks."""
        return walk_block(self.body)

    def makers(self) -> dict[Value, Op]:
        """The operation that makes each value."""
        return {result: op for op in self.walk() for result in op.results}

    def users(self) -> dict[Value, list[Op]]:
        """The operations that have each value as an operand, each as often as it has it."""
        found: dict[Value, list[Op]] = {}
        for op in self.walk():
            for value in op.operands:
                found.setdefault(value, []).append(op)
        return found

    def record(self, name: str) -> Op | None:
        """The first record of that name."""
        return next((r for r in self.records if r.name == name), None)

    def __eq__(self, other: object) -> bool:
        """Whether both are the same program: operations, types, attributes and names; places in files do not count."""
        from tilewright.ir.compare import same_program

        return isinstance(other, Program) and same_program(self, other)

    __hash__ = object.__hash__

    def __copy__(self) -> Program:
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        made = replace(self)
        memo[id(self)] = made
        for each in fields(self):
            setattr(made, each.name, deepcopy(getattr(self, each.name), memo))
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        from tilewright.ir.pickling import program_of, require_importable

        for label, functions in self.hooks.items():
            for function in functions:
                require_importable(function, f"{self.name}: what debug_log calls for {label!r}")
        return program_of, (self.level.name, str(self), self.hooks)

    def __str__(self) -> str:
        from tilewright.ir.printer import program_text

        return program_text(self)


@contextmanager
def building() -> Iterator[None]:
    """Within it, the garbage collector rests: it would walk the growing program again and again for nothing."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def walk_block(block: Block) -> Iterator[Op]:
    """Every operation of a block and of the blocks within."""
    for op in block.ops:
        yield op
        for inner in op.blocks:
            yield from walk_block(inner)
