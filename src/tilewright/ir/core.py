"""The node classes that programs of all levels are made of: types, values, operations, blocks, programs.

A program is a block of operations. An operation has operands and results (values with types), attributes, and blocks of
its own (the body of a loop). Index arithmetic is not operations: attributes hold expressions of `tilewright.algebra`. A
*level* (tile, block, loop, host) is a table of `OpSpec`s, one for each operation it has.
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
        """Return the dimensions, a tuple of expressions. The type holds no other expressions."""
        return self.dims

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.dims))}]"

    __repr__ = __str__


class MemoryType:
    """A tensor in memory, at the tile level: element type, dimensions, and space ("global", "shared").

    `extents` are the physical sizes where they differ from the dimensions by which the tensor is indexed; an entry of
    None accepts any size. `strides` are the element strides of a tensor that a pass derived from other memory; its
    elements may overlap. Without strides the tensor is packed.
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
        """The sizes that an array passed for this type must have, as a tuple: `extents`, or else the dimensions.

        An entry of None accepts any size.
        """
        return self.dims if self.extents is None else self.extents

    def expressions(self) -> tuple[Expr, ...]:
        """Return every expression in the type as a tuple: the dimensions, then the entries of `sizes` that are not
        None.
        """
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
    """A result of an operation, or an argument of a block or program: a type, and a name for printing."""

    __slots__ = ("name", "type")

    def __init__(self, value_type: Any, name: str | None = None):
        self.type = value_type
        self.name = name


class Block:
    """A list of operations; `args` are values that the surrounding operation defines for it, such as carried values."""

    __slots__ = ("args", "ops")

    def __init__(self, args: tuple[Value, ...] = (), ops: list[Op] | None = None):
        self.args = args
        self.ops: list[Op] = [] if ops is None else ops


class Op:
    """One operation of a program: operands, attributes, results, nested blocks and a source location."""

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
        """The only result of the operation. Raise ValueError if it has none or several."""
        (value,) = self.results
        return value


@dataclass(frozen=True, eq=False)
class OpSpec:
    """The rules for all operations of one name: attributes, blocks, and how result types follow from operands."""

    name: str
    attrs: Mapping[str, str] = field(default_factory=dict)
    """Attribute name -> kind (see `attrs`); an attribute whose kind ends in ? is optional."""
    blocks: int = 0
    result_types: Callable[[Op], tuple[Any, ...]] | None = None
    """Infers the result types from operands and attributes; None: they are stated, and `check` may reject them."""
    check: Callable[[Op], None] | None = None
    """Raises ProgramError if the operation is invalid."""
    ends_block: bool = False
    chained: bool = False
    """Whether each block also sees the values that the block before it defines."""
    keeps: bool = False
    """Whether values that its blocks define are visible after it."""
    notation: str | None = None
    """The text form (see `notation`); None: `name operands attribute=value ...`, with the results' types."""

    def __deepcopy__(self, memo: Any) -> OpSpec:
        return self  # operations are compared by the identity of their spec


@dataclass(frozen=True, eq=False)
class Level:
    """An intermediate language: its operations, the records that a program header may hold, and its types."""

    name: str
    ops: Mapping[str, OpSpec]
    records: Mapping[str, OpSpec] = field(default_factory=dict)
    read_type: Callable[[Any], Any] | None = None
    """Reads a type from a `parser.Reader`; None: the types of the tile level."""
    declares_symbols: bool = True
    """Whether the header lists the symbols; otherwise records and operations declare every symbol."""
    after_ranges: tuple[str, ...] = ()
    """The keywords that may follow a loop's ranges."""

    def __deepcopy__(self, memo: Any) -> Level:
        return self  # levels are compared by identity


@dataclass(eq=False)
class Program:
    """A complete program of one level: arguments, header records (such as constraints), bound symbols, and a body."""

    level: Level
    name: str
    args: tuple[Value, ...]
    body: Block
    records: list[Op] = field(default_factory=list)
    bindings: dict[Expr, Any] = field(default_factory=dict)
    loc: Location | None = None
    hooks: dict[str, Any] = field(default_factory=dict)
    """The author's callbacks for values logged by debug_log, by label; not part of the text."""

    def walk(self) -> Iterator[Op]:
        """Yield every operation of the body, also in nested blocks. An operation comes before the operations in its
        blocks.
        """
        return walk_block(self.body)

    def makers(self) -> dict[Value, Op]:
        """Return {value: operation that has it as a result} for all operations of the body.

        Arguments of the program and of blocks are missing, since no operation gives them.
        """
        return {result: op for op in self.walk() for result in op.results}

    def users(self) -> dict[Value, list[Op]]:
        """Return {value: list of the operations that have it as an operand} for all operations of the body.

        An operation that has the value twice is listed twice. Values without users are missing.
        """
        uses: dict[Value, list[Op]] = {}
        for op in self.walk():
            for value in op.operands:
                uses.setdefault(value, []).append(op)
        return uses

    def record(self, name: str) -> Op | None:
        """Return the first header line called `name`, such as "waves", as an operation; None if there is none."""
        return next((r for r in self.records if r.name == name), None)

    def __eq__(self, other: object) -> bool:
        """Whether both are the same program: operations, types, attributes and names; places in files do not count."""
        from tilewright.ir.compare import same_program

        return isinstance(other, Program) and same_program(self, other)

    __hash__ = object.__hash__

    def __copy__(self) -> Program:
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        copy = replace(self)
        memo[id(self)] = copy
        for field_ in fields(self):
            setattr(copy, field_.name, deepcopy(getattr(self, field_.name), memo))
        return copy

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
    """Context manager that turns Python's garbage collector off inside the `with`, which speeds up building a program.

    The collector is turned on again afterwards, unless it was already off before.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def walk_block(block: Block) -> Iterator[Op]:
    """Yield every operation of `block`, also in nested blocks. An operation comes before those in its blocks."""
    for op in block.ops:
        yield op
        for inner in op.blocks:
            yield from walk_block(inner)
