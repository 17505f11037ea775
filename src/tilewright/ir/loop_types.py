"""Types of the loop level: registers of one wave, and barriers that count arrivals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.algebra.expr import ZERO, Expr
from tilewright.errors import ProgramError
from tilewright.ir.block import shape_text
from tilewright.ir.dtypes import DType
from tilewright.ir.tensors import Images, require_extents
from tilewright.limits import VECTOR


@dataclass(frozen=True)
class VectorType:
    """A register: a vector of lanes, a tile of rows, or a single number (no dimensions)."""

    dtype: DType
    shape: tuple[Expr, ...]

    def __post_init__(self) -> None:
        require_extents(self, self.shape, (), VECTOR)
        if any(e == ZERO for e in self.shape):
            raise ProgramError(f"{self}: a register has at least one element")

    def expressions(self) -> Iterable[Expr]:
        """Return the extents of the register, a tuple of expressions. The type holds no other expressions."""
        return self.shape

    def mapped(self, images: Images) -> VectorType:
        """Return the type with every extent `e` replaced by `images(e)`. A `FragmentType` stays a `FragmentType`."""
        return type(self)(self.dtype, tuple(map(images, self.shape)))

    def __str__(self) -> str:
        return f"vector {self.dtype} {shape_text(self.shape)}"

    __repr__ = __str__


@dataclass(frozen=True)
class FragmentType(VectorType):
    """Registers of a wave: a fragment of shape (lanes, values in each lane)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.shape) != 2:
            raise ProgramError(f"{self}: a fragment has lanes and values, (32, 4)")

    def __str__(self) -> str:
        return f"fragment {self.dtype} {shape_text(self.shape)}"

    __repr__ = __str__


@dataclass(frozen=True)
class BarrierType:
    """`count` barriers in shared memory, like an array of mbarriers.

    A barrier goes to its next phase when `arrivals` waves have arrived and all expected bytes have landed.
    """

    count: Expr
    arrivals: Expr

    def expressions(self) -> Iterable[Expr]:
        """Return (number of barriers, arrivals that complete a phase), the expressions in the type."""
        return (self.count, self.arrivals)

    def mapped(self, images: Images) -> BarrierType:
        """Return the type with the number of barriers and the number of arrivals, `e`, each replaced by `images(e)`."""
        return BarrierType(images(self.count), images(self.arrivals))

    def __str__(self) -> str:
        return f"barrier ({self.count}) arrivals {self.arrivals}"

    __repr__ = __str__
