"""What a program tells of its run: faults that it met, and tensors that debug_log keeps."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op
from tilewright.ir.dtypes import DType


@dataclass(frozen=True)
class Fault:
    """What a number other than 0 among the program's faults means."""

    what: str
    op: Op


@dataclass(frozen=True)
class Log:
    """A tensor that a debug_log keeps, and the names of its first dimensions where these are iterations."""

    label: str
    shape: tuple[int, ...]
    dtype: DType
    names: tuple[Expr, ...]
