"""The arrays that a layer was made of: their contents, and whether torch has written to them since they were read."""

from __future__ import annotations

from typing import Any

from tilewright.ops.arrays import array, bias_of, dtype_of
from tilewright.runtime.tensors import refuse_gradients, torch_of, version_of


class Source:
    """The weights and the bias (or None) of a layer, as the author passed them."""

    def __init__(self, weight: Any, bias: Any):
        self.given = weight, bias
        named = zip(("weight", "bias"), self.given, strict=True)
        self._tensors = tuple((name, a, torch) for name, a in named if (torch := torch_of(a)) is not None)
        self._versions: list[Any] = []

    def read(self, ranks: tuple[int, ...], rows: str) -> tuple[Any, Any]:
        """Return (weights, bias or None) as arrays with the current contents of the author's arrays.

        The bias gets the accumulator type of the weights. Also record torch's write counters, for `is_changed`. `ranks`
        are the allowed numbers of dimensions of the weights. `rows` names the first dimension of the weights in errors,
        such as "filters". Raise `ArgumentError` if weights or bias do not fit.
        """
        weight, bias = self.given
        weight_array = array(weight, "weight", ranks)
        kind = dtype_of(weight_array, "weight")
        bias_array = None if bias is None else bias_of(bias, kind, weight_array.shape[0], rows)
        self._versions = self._current_versions()
        return weight_array, bias_array

    def is_changed(self) -> bool:
        """Return True if weights or bias may have changed since `read`; only torch tensors are checked.

        That is so if torch has counted a write to one of them, if one has other memory now, or if torch counts no
        writes to one, as in inference mode. Raise `ArgumentError` if torch records gradients for one of them.
        """
        if not self._tensors:
            return False
        for name, tensor, torch in self._tensors:
            refuse_gradients(tensor, torch, name)
        now = self._current_versions()
        return None in now or now != self._versions

    def _current_versions(self) -> list[Any]:
        """Return a list with (write counter, address) of each torch tensor among weights and bias, in this order.

        An entry is None for a tensor whose writes torch does not count.
        """
        return [version_of(tensor) for _, tensor, _ in self._tensors]
