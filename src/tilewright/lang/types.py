"""The types authors write: `Memory[...]` on arguments, `Register[...]` for tiles, scalar arguments."""

from __future__ import annotations

from enum import Enum
from typing import Any

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.errors import DimensionMismatch
from tilewright.ir.dtypes import DType, DTypeLike, as_element_type, element_type
from tilewright.ir.location import author_location
from tilewright.lang.symbols import AddressSpace


class MemoryLayout:
    """A physical shape that differs from the dimensions a tensor is indexed by; None leaves an extent free."""

    def __init__(self, shape: Any):
        self.shape = shape


class KernelBufferUsage(Enum):
    """Wave's marks for arguments; accepted, and inferred here."""

    NONE, INPUT, OUTPUT, TEMPORARY = range(4)


SPACES = frozenset({"SPACE", "GLOBAL", "SHARED"})
"""One of these is a word of the name of a symbol that stands for an address space: ADDRESS_SPACE_0, GLOBAL."""


def _is_address_space(entry: Any) -> bool:
    """Whether an entry of `Memory[...]` is an address space: an AddressSpace, or a symbol that is called so."""
    if isinstance(entry, Symbol):
        return not SPACES.isdisjoint(entry.name.upper().split("_"))
    return isinstance(entry, AddressSpace)


class _MemoryMeta(type):
    def __getitem__(cls, parts: Any) -> Memory:
        parts = parts if isinstance(parts, tuple) else (parts,)
        if parts and isinstance(parts[0], tuple):
            parts = (*parts[0], *parts[1:])
        kept = [p for p in parts if not isinstance(p, MemoryLayout | KernelBufferUsage)]
        given = f"Memory[{', '.join(map(str, parts))}]"
        dtype = as_element_type(kept[-1]) if kept else None
        if len(kept) < 2 or dtype is None:
            last = f"{kept[-1]} is no element type; " if kept and dtype is None else ""
            raise DimensionMismatch(
                f"{given}: {last}give the dimensions, the address space and the element type, as in "
                "Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]",
                author_location(),
            )
        *dims, space, _ = kept
        if not _is_address_space(space):
            whole = ", ".join(map(str, (*dims, space, "GLOBAL_ADDRESS_SPACE", dtype)))
            raise DimensionMismatch(
                f"{given}: {space} stands where the address space must stand; write Memory[{whole}]. A symbol of your "
                f"own is an address space where SPACE, GLOBAL or SHARED is a word of its name, as in ADDRESS_SPACE",
                author_location(),
            )
        for dim in dims:
            if isinstance(dim, bool) or not isinstance(dim, int | Expr):
                raise DimensionMismatch(f"{given}: {dim!r} is neither a symbol nor an integer", author_location())
            if isinstance(dim, Symbol) and sum(dim is other for other in dims) > 1:
                raise DimensionMismatch(
                    f"{given}: the dimension {dim} stands there twice; dimensions go by name, so give each its own "
                    "symbol and bind both to one size",
                    author_location(),
                )
        extents = None
        for part in parts:
            if isinstance(part, MemoryLayout):
                extents = tuple(None if e is None else as_expr(e) for e in part.shape)
        return Memory(tuple(as_expr(d) for d in dims), space, dtype, extents)


class Memory(metaclass=_MemoryMeta):
    """A tensor argument: `Memory[M, K, ADDRESS_SPACE, f16]`."""

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
    """A tile type: `Register[M, N, f32]`; called with a value, inside a kernel, a tile filled with it."""

    fill: Any = None
    """Set by the tracer: how a filled tile is made."""

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
    """A scalar argument that binds the symbol of its own name: `length: SymbolBind[i32]`."""

    def __init__(self, dtype: DType):
        self.dtype = dtype
