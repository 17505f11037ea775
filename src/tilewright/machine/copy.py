"""Copy atoms: single instructions that move elements between memory and registers, or between memories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class CopyAtom:
    """One instruction that moves elements.

    `source` and `target` are spaces; `meaning` gives what arrives, from the arguments its docstring names. `hint` says
    how the caches are treated. `completes` says what makes an asynchronous copy visible; None: it is when it returns.
    """

    name: str
    source: str
    target: str
    meaning: Callable[..., Array]
    bytes_moved: int
    features: tuple[str, ...] = ()
    hint: str = "keep"
    completes: str | None = None

    def run(self, *arguments: Any) -> Array:
        """What arrives at the target."""
        return self.meaning(*arguments)


def rows_of(memory: Array, start: int, stride: int, rows: int, columns: int) -> Array:
    """Rows of elements at a stride, in elements, from a start: what a tile load brings.

    >>> rows_of(np.arange(20), 1, 5, 2, 3)
    array([[1, 2, 3],
           [6, 7, 8]])
    """
    row, column = np.indices((rows, columns))
    found: Array = memory[start + row * stride + column]
    return found
