"""The columns' factor in the order in which it is read, padded with zeros: done once, when it is bound."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.dtypes import DType


@dataclass(frozen=True)
class Packing:
    """A program that packs, the packed tensor's shape, and its element type."""

    text: str
    shape: tuple[int, ...]
    dtype: DType
