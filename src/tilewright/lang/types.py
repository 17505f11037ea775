"""The types that authors write: `Memory[...]` and `SymbolBind[...]` for arguments, `Register[...]` for tiles."""

from __future__ import annotations

from enum import Enum
from typing import Any

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.errors import DimensionMismatch
from tilewright.ir.dtypes import DType, DTypeLike, as_element_type, element_type
from tilewright.ir.location import author_location
from tilewright.lang.symbols import AddressSpace


class MemoryLayout:
    """A tensor's physical shape, where it differs from the dimensions it is indexed by; None accepts any extent."""

    def __init__(self, shape: Any):
        self.shape = shape


class KernelBufferUsage(Enum):
    """Wave's usage marks for arguments; accepted and ignored, since usage is inferred."""

    NONE, INPUT, OUTPUT, TEMPORARY = range(4)


SPACES = frozenset({"SPACE", "GLOBAL", "SHARED"})
"""A symbol is an address space if one of these is a word of its name: ADDRESS_SPACE_0, GLOBAL."""


def _is_address_space(entry: Any) -> bool:
    """True if `entry`, from `Memory[...]`, is an AddressSpace, or a symbol with the word SPACE, GLOBAL or SHARED in its
    name. Words are separated by "_": ADDRESS_SPACE_0 has the word SPACE, SHAREDX has none.
    """
    if isinstance(entry, Symbol):
        return not SPACES.isdisjoint(entry.name.upper().split("_"))
    return isinstance(entry, AddressSpace)


class _MemoryMeta(type):
    def __getitem__(cls, parts: Any) -> Memory:
        parts = parts if isinstance(parts, tuple) else (parts,)
        if parts and isinstance(parts[0], tuple):
            parts = (*parts[0], *parts[1:])
        entries = [p for p in parts if not isinstance(p, MemoryLayout | KernelBufferUsage)]
        text = f"Memory[{', '.join(map(str, parts))}]"
        dtype = as_element_type(entries[-1]) if entries else None
        if len(entries) < 2 or dtype is None:
            last = f"{entries[-1]} is no element type; " if entries and dtype is None else ""
            raise DimensionMismatch(
                f"{text}: {last}give the dimensions, the address space and the element type, as in "
                "Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]",
                author_location(),
            )
        *dims, space, _ = entries
        if not _is_address_space(space):
            example = ", ".join(map(str, (*dims, space, "GLOBAL_ADDRESS_SPACE", dtype)))
            raise DimensionMismatch(
                f"{text}: {space} stands where the address space must stand; write Memory[{example}]. A symbol of your "
                f"own is an address space where SPACE, GLOBAL or SHARED is a word of its name, as in ADDRESS_SPACE",
                author_location(),
            )
        for dim in dims:
            if isinstance(dim, bool) or not isinstance(dim, int | Expr):
                raise DimensionMismatch(f"{text}: {dim!r} is neither a symbol nor an integer", author_location())
            if isinstance(dim, Symbol) and sum(dim is other for other in dims) > 1:
                raise DimensionMismatch(
                    f"{text}: the dimension {dim} stands there twice; dimensions go by name, so give each its own "
                    "symbol and bind both to one size",
                    author_location(),
                )
        extents = None
        for part in parts:
            if isinstance(part, MemoryLayout):
                extents = tuple(None if e is None else as_expr(e) for e in part.shape)
        return Memory(tuple(as_expr(d) for d in dims), space, dtype, extents)


class Memory(metaclass=_MemoryMeta):
    """The type of a tensor argument: `Memory[M, K, ADDRESS_SPACE, f16]`."""

    def __init__(
        self, dims: tuple[Expr, ...], space: Any, dtype: DType, extents: tuple[Expr | None, ...] | None = None
    ):
        self.dims, self.space, self.dtype, self.extents = dims, space, dtype, extents

    def __repr__(self) -> str:
        return f"Memory[{', '.join(map(str, self.dims))}, {self.dtype}]"


class _RegisterMeta(type):
    def __getitem__(cls, parts: Any) -> Register:
        parts = parts if isinstance(parts, tuple) else (parts,)
        dtype = as_element_type(parts[-1])
        if dtype is None:
            raise DimensionMismatch(
                f"Register[{', '.join(map(str, parts))}]: the last entry must be an element type", author_location()
            )
        dims = parts[:-1]
        for dim in dims:
            if isinstance(dim, bool) or not isinstance(dim, int | Expr):
                raise DimensionMismatch(
                    f"Register[{', '.join(map(str, parts))}]: {dim!r} is neither a symbol nor an integer",
                    author_location(),
                )
        return Register(tuple(as_expr(d) for d in dims), dtype)


class Register(metaclass=_RegisterMeta):
    """A tile type: `Register[M, N, f32]`. Called with a value inside a kernel, it makes a tile
    filled with that value.
    """

    fill: Any = None
    """The function (tile type, value) -> filled tile, set by the tracer."""

    def __init__(self, dims: tuple[Expr, ...], dtype: DType):
        self.dims, self.dtype = dims, dtype

    def __call__(self, value: Any) -> Any:
        """A tile of this type, every element `value` (a number or an expression)."""
        return Register.fill(self, value)

    def __repr__(self) -> str:
        return f"Register[{', '.join(map(str, self.dims))}, {self.dtype}]"


class _SymbolBindMeta(type):
    def __getitem__(cls, dtype: DTypeLike) -> SymbolBind:
        return SymbolBind(element_type(dtype))


class SymbolBind(metaclass=_SymbolBindMeta):
    """The type of a scalar argument that binds the symbol of the argument's name: `length: SymbolBind[i32]`."""

    def __init__(self, dtype: DType):
        self.dtype = dtype
