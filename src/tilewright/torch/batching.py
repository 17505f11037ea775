"""Helpers of rules for torch.vmap: the vmap dimension moved to the front, and a loop over the batch as fallback."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewright.errors import ArgumentError, BatchLoopWarning


def batch_first(value: Any, dim: int | None) -> Any:
    """Return the tensor `value` with its vmap dimension `dim` moved to the front; unchanged if `dim` is None."""
    return value if dim is None else value.movedim(dim, 0)


def expand_batch(value: Any, dim: int | None, size: int) -> Any:
    """Return the tensor `value` with the vmap dimension, of extent `size`, in front.

    `dim` is the vmap dimension of `value`; it is moved to the front. If `dim` is None, a new dimension is added, along
    which the tensor is broadcast without a copy.
    """
    return value.unsqueeze(0).expand(size, *value.shape) if dim is None else value.movedim(dim, 0)


def loop_rule(name: str, operator: Any) -> Callable[..., tuple[Any, Any]]:
    """Return a rule for torch.vmap that calls `operator` once for each element of the batch, and gives a
    BatchLoopWarning.

    `name` is the operator's name in warnings and errors.
    """

    def rule(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
        """Return (results of one call for each element of the vmap batch, stacked along dimension 0; 0).

        If the operator has several results, both items are tuples with an entry for each. `in_dims` has the vmap
        dimension of each argument in `args`, or None. `info.batch_size` is the batch's extent. Raise ArgumentError if
        the batch is empty.
        """
        count = info.batch_size
        if not count:
            raise ArgumentError(f"torch.ops.tilewright.{name} under torch.vmap: the batch is empty; pass at least one")
        warnings.warn(
            f"torch.ops.tilewright.{name} has no batch dimension for these: torch.vmap calls it {count} times",
            BatchLoopWarning,
            stacklevel=2,
        )
        # The entry of `in_dims` for a list of numbers is a list of None.
        dims = [d if isinstance(a, torch.Tensor) else None for a, d in zip(args, in_dims, strict=True)]
        results = [
            operator(*(a if d is None else a.select(d, member) for a, d in zip(args, dims, strict=True)))
            for member in range(count)
        ]
        if isinstance(results[0], tuple | list):
            stacked = tuple(torch.stack(outputs) for outputs in zip(*results, strict=True))
            return stacked, (0,) * len(stacked)
        return torch.stack(results), 0

    return rule
