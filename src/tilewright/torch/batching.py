"""Rules of torch.vmap: arguments with their batch first, and a loop where an operator has no batch dimension."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewright.errors import ArgumentError, BatchLoopWarning


def batch_first(value: Any, dim: int | None) -> Any:
    """An argument with its batch dimension first; as it is where it has none."""
    return value if dim is None else value.movedim(dim, 0)


def expanded(value: Any, dim: int | None, size: int) -> Any:
    """An argument with a batch dimension first: its own, or one along which it is repeated without a copy."""
    return value.unsqueeze(0).expand(size, *value.shape) if dim is None else value.movedim(dim, 0)


def looped(name: str, operator: Any) -> Callable[..., tuple[Any, Any]]:
    """A rule that calls the operator for each element of the batch, and warns that it does."""

    def rule(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
        count = info.batch_size
        if not count:
            raise ArgumentError(f"torch.ops.tilewright.{name} under torch.vmap: the batch is empty; pass at least one")
        warnings.warn(
            f"torch.ops.tilewright.{name} has no batch dimension for these: torch.vmap calls it {count} times",
            BatchLoopWarning,
            stacklevel=2,
        )
        parts = [
            operator(*(a if d is None else a.select(d, place) for a, d in zip(args, in_dims, strict=True)))
            for place in range(count)
        ]
        if isinstance(parts[0], tuple | list):
            together = tuple(torch.stack(each) for each in zip(*parts, strict=True))
            return together, (0,) * len(together)
        return torch.stack(parts), 0

    return rule
