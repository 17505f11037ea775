"""Types of kernel signatures and tiles: symbols, element types, memory and register types. Imported as `tkl`.

>>> import tilewright.lang as tkl
>>> M, K = tkl.sym.M, tkl.sym.K
>>> tkl.Memory[M, K, tkl.GLOBAL_ADDRESS_SPACE, tkl.f16]
Memory[M, K, f16]
"""

from typing import TYPE_CHECKING, Any

from tilewright.ir.dtypes import (
    DType,
    DTypeLike,
    bf16,
    f4e2m1fn,
    f6e2m3fn,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f8e8m0fnu,
    f16,
    f32,
    f64,
    i4,
    i8,
    i16,
    i32,
    i64,
    index,
    u8,
)
from tilewright.ir.dtypes import bool_ as bool
from tilewright.lang import global_symbols, sympy
from tilewright.lang.mapping import IndexMapping
from tilewright.lang.symbols import GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE, AddressSpace, sym
from tilewright.lang.types import KernelBufferUsage, MemoryLayout, Register

if not TYPE_CHECKING:
    from tilewright.lang.types import Memory, SymbolBind

if TYPE_CHECKING:  # arguments of kernels are annotated with these: to a type checker, `x: Memory[M, K, ...]` is Any
    Memory: Any
    SymbolBind: Any

i1 = bool
DataType = DType

IndexSymbol = sympy.Symbol
IndexExpr = sympy.Expr

__all__ = [
    "GLOBAL_ADDRESS_SPACE",
    "SHARED_ADDRESS_SPACE",
    "AddressSpace",
    "DType",
    "DTypeLike",
    "DataType",
    "IndexExpr",
    "IndexMapping",
    "IndexSymbol",
    "KernelBufferUsage",
    "Memory",
    "MemoryLayout",
    "Register",
    "SymbolBind",
    "bf16",
    "bool",
    "f4e2m1fn",
    "f6e2m3fn",
    "f8e4m3fn",
    "f8e4m3fnuz",
    "f8e5m2",
    "f8e5m2fnuz",
    "f8e8m0fnu",
    "f16",
    "f32",
    "f64",
    "global_symbols",
    "i1",
    "i4",
    "i8",
    "i16",
    "i32",
    "i64",
    "index",
    "sym",
    "sympy",
    "u8",
]
