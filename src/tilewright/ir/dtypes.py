"""Element types: names, widths, numpy equivalents, and conversion from what authors write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np

from tilewright.errors import DtypeMismatch, ProgramError
from tilewright.ir.location import author_location
from tilewright.limits import shown, written

_finfo: Any = ml_dtypes.finfo


@dataclass(frozen=True, eq=False, slots=True)
class DType:
    """An element type; there is one object for each name, so `is` and == agree."""

    name: str
    kind: Literal["bool", "int", "float"]
    bits: int
    numpy: np.dtype[Any]

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (self.name,)

    @property
    def is_float(self) -> bool:
        """True for a floating-point type."""
        return self.kind == "float"

    @property
    def accumulator(self) -> DType:
        """The type in which sums of this type accumulate: f32 or i32; f64 or i64 for 64-bit types; i32 for bool."""
        if self.kind == "float":
            return f64 if self.bits == 64 else f32
        return i64 if self.bits == 64 else i32

    # Wave's methods of an element type

    def is_float_asm(self) -> bool:
        """True for a floating-point type. This is the name of `is_float` in the language Wave."""
        return self.is_float

    def is_int_asm(self) -> bool:
        """True for an integer type and for bool, but not for the type `index`. The language Wave has a method of this
        name.
        """
        return not self.is_float and self.name != "index"

    def is_index_asm(self) -> bool:
        """True for the type `index`, that of coordinates. The language Wave has a method of this name."""
        return self.name == "index"

    def bitwidth(self) -> int:
        """Return the number of bits of one element."""
        return self.bits

    def ir_type_asm(self) -> str:
        """Return the type's name in the IR of the language Wave: "i1" for bool, and `name` for other types, such as
        "f16".
        """
        return "i1" if self.kind == "bool" else self.name

    def holds(self, other: DType) -> bool:
        """True if this type represents every value of the type `other` exactly.

        >>> f32.holds(bf16), f16.holds(bf16), i8.holds(bool_), f32.holds(i32), u8.holds(i4)
        (True, False, True, False, False)
        """
        if self is other:
            return True
        lowest, highest = other.limits
        if not self.is_float:
            return not other.is_float and self.limits[0] <= lowest and highest <= self.limits[1]
        this_format = _finfo(self.numpy)
        if not other.is_float:
            digits = max(highest.bit_length(), (-lowest - 1).bit_length())  # the lowest is a power of two
            in_range = float(this_format.min) <= lowest and highest <= float(this_format.max)
            return bool(this_format.nmant + 1 >= digits and in_range)
        other_format = _finfo(other.numpy)
        return bool(
            this_format.nmant >= other_format.nmant
            and this_format.maxexp >= other_format.maxexp
            and this_format.minexp <= other_format.minexp
        )

    @property
    def limits(self) -> tuple[int, int]:
        """The pair (smallest, largest) value of an integer type or bool. For a floating-point type, the pair has no
        meaning.
        """
        if self.kind == "int" and self.numpy.kind != "u":
            return -(1 << self.bits - 1), (1 << self.bits - 1) - 1
        return 0, (1 << self.bits) - 1

    def require(self, value: float) -> None:
        """Raise DtypeMismatch if this is an integer type or bool, and the number `value` is not one of its values.

        A floating-point type accepts every number, since it rounds.

        >>> i8.require(300)
        Traceback (most recent call last):
        tilewright.errors.DtypeMismatch: 300 is no i8, which holds -128 to 127
        """
        if self.is_float:
            return
        least, most = self.limits
        if value != value // 1 or not least <= value <= most:
            raise DtypeMismatch(f"{shown(value)} is no {self}, which holds {least} to {most}")

    @property
    def is_narrow(self) -> bool:
        """True for a floating-point type of fewer than 32 bits; arithmetic on it is done in f32 and rounded back."""
        return self.kind == "float" and self.bits < 32


def _float(name: str, form: Any, bits: int) -> DType:
    """Return a new floating-point element type with this name and width in bits; `form` is its numpy type."""
    return DType(name, "float", bits, np.dtype(form))


def _int(name: str, form: Any, bits: int) -> DType:
    """Return a new integer element type with this name and width in bits; `form` is its numpy type."""
    return DType(name, "int", bits, np.dtype(form))


bool_ = DType("bool", "bool", 1, np.dtype(np.bool_))
i4 = _int("i4", ml_dtypes.int4, 4)
i8 = _int("i8", np.int8, 8)
i16 = _int("i16", np.int16, 16)
i32 = _int("i32", np.int32, 32)
i64 = _int("i64", np.int64, 64)
u8 = _int("u8", np.uint8, 8)
index = _int("index", np.int64, 64)
f16 = _float("f16", np.float16, 16)
bf16 = _float("bf16", ml_dtypes.bfloat16, 16)
f32 = _float("f32", np.float32, 32)
f64 = _float("f64", np.float64, 64)
f8e4m3fn = _float("f8e4m3fn", ml_dtypes.float8_e4m3fn, 8)
f8e5m2 = _float("f8e5m2", ml_dtypes.float8_e5m2, 8)
f8e4m3fnuz = _float("f8e4m3fnuz", ml_dtypes.float8_e4m3fnuz, 8)
f8e8m0fnu = _float("f8e8m0fnu", ml_dtypes.float8_e8m0fnu, 8)
f6e2m3fn = _float("f6e2m3fn", ml_dtypes.float6_e2m3fn, 6)
f4e2m1fn = _float("f4e2m1fn", ml_dtypes.float4_e2m1fn, 4)
f8e5m2fnuz = _float("f8e5m2fnuz", ml_dtypes.float8_e5m2fnuz, 8)

ALL = {
    t.name: t
    for t in (
        *(bool_, i4, i8, i16, i32, i64, u8, index),
        *(f16, bf16, f32, f64, f8e4m3fn, f8e5m2, f8e4m3fnuz, f8e5m2fnuz, f8e8m0fnu, f6e2m3fn, f4e2m1fn),
    )
}


def dtype(name: str) -> DType:
    """Return the element type called `name`; raise ProgramError if there is none.

    >>> dtype("bf16").bits
    16
    """
    type_ = ALL.get(name)
    if type_ is None:
        raise ProgramError(f"there is no element type {name}; there are {', '.join(ALL)}")
    return type_


DTypeLike: TypeAlias = DType | str | np.dtype[Any] | type[np.generic]
"""Everything that public functions accept as an element type."""
_ALIASES = {f"s{bits}": f"i{bits}" for bits in (4, 8, 16, 32, 64)}


def element_type(given: Any, what: str = "") -> DType:
    """Return the element type that `given` means: a DType, a Tilewright or numpy name, a numpy dtype, or s8 for i8.

    Raise DtypeMismatch if there is none; `what` names the argument in the message.

    >>> import numpy as np
    >>> [element_type(x) for x in (f32, "f32", "float32", np.float32, np.dtype("float32"), "s8", "i8", "bfloat16")]
    [f32, f32, f32, f32, f32, i8, i8, bf16]
    >>> element_type("f13")
    Traceback (most recent call last):
    tilewright.errors.DtypeMismatch: there is no element type f13; there are bool, i4, ...
    >>> element_type(3, "cast: dtype")
    Traceback (most recent call last):
    tilewright.errors.DtypeMismatch: cast: dtype=3: there is no element type 3; there are bool, i4, ...
    """
    type_ = as_element_type(given)
    if type_ is None:
        value = written(given, 60)
        where = f"{what}={value}: " if what else ""
        name = shown(given, 60) if isinstance(given, str) and given else value
        raise DtypeMismatch(
            f"{where}there is no element type {name}; there are {', '.join(ALL)}, and numpy's dtypes for them",
            author_location(),
        )
    return type_


def as_element_type(given: Any) -> DType | None:
    """Return the element type that `given` means, or None if there is no such element type.

    `given` may be a DType, a Tilewright name ("f32"), a full numpy name ("float32"), "s8" for i8, or a numpy dtype.
    """
    if isinstance(given, DType):
        return given
    if isinstance(given, str):
        name = _ALIASES.get(given, given)
        # full numpy names only: its short ones mean other types than ours, as i8 is 64 bits
        return ALL.get(name) or next((t for t in ALL.values() if t.numpy.name == name and t is not index), None)
    if isinstance(given, np.dtype) or (isinstance(given, type) and issubclass(given, np.generic)):
        return from_numpy(np.dtype(given))
    return None


def from_numpy(form: np.dtype[Any]) -> DType | None:
    """Return the element type with the numpy dtype `form`, or None if there is none. int64 gives i64, never `index`."""
    for t in ALL.values():
        if t.numpy == form and t is not index:
            return t
    return None


def plain_number(x: Any) -> bool | int | float | None:
    """Return the number `x` of Python, numpy or ml_dtypes as a plain Python bool, int or float; None for anything else.

    A numpy array without dimensions counts as a number, unless it is masked.

    >>> plain_number(np.float32(0.1)), plain_number(np.int64(3)), plain_number(ml_dtypes.bfloat16(0.5))
    (0.10000000149011612, 3, 0.5)
    """
    if isinstance(x, np.ndarray) and x.shape == () and not isinstance(x, np.ma.MaskedArray):
        x = x[()]
    if isinstance(x, np.generic):
        x = float(x) if isinstance(x, np.longdouble) else x.item()
    for plain in (bool, int, float):
        if isinstance(x, plain):
            return plain(x)  # of the exact type: subclasses may print differently
    return None
