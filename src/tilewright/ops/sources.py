"""The arrays that a layer was made of: what they hold, and whether torch wrote to them since they were read."""

from __future__ import annotations

from typing import Any

from tilewright.ops.arrays import array, bias_of, dtype_of
from tilewright.runtime.tensors import refuse_gradients, torch_of, version_of


class Source:
    """Weights and perhaps a bias, as they were given."""

    def __init__(self, weight: Any, bias: Any):
        self.given = weight, bias
        named = zip(("weight", "bias"), self.given, strict=True)
        self._tensors = tuple((name, a, torch) for name, a in named if (torch := torch_of(a)) is not None)
        self._versions: list[Any] = []

    def read(self, ranks: tuple[int, ...], rows: str) -> tuple[Any, Any]:
        """Weights of so many dimensions, and the bias in the type of sums, as they are now.

        `rows` says what the first dimension of the weights counts.
        """
        weight, bias = self.given
        held = array(weight, "weight", ranks)
        kind = dtype_of(held, "weight")
        added = None if bias is None else bias_of(bias, kind, held.shape[0], rows)
        self._versions = self._now()
        return held, added

    def is_changed(self) -> bool:
        """Whether torch wrote to a tensor since it was read; yes, where it counts no writes, as in inference mode.

        Raises where gradients of a tensor are recorded now.
        """
        if not self._tensors:
            return False
        for name, tensor, torch in self._tensors:
            refuse_gradients(tensor, torch, name)
        now = self._now()
        return None in now or now != self._versions

    def _now(self) -> list[Any]:
        return [version_of(tensor) for _, tensor, _ in self._tensors]
