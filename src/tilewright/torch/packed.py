"""Layers of tensors that are weights: for one call, or kept, so that weights are packed once for each version."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch.utils.weak import WeakTensorKeyDictionary

from tilewright.ops.layers import Layer
from tilewright.runtime.tensors import version_of


class _Kept:
    """A layer, and what its tensors were when it was made.

    It holds views of them: a layer that held the tensors themselves would keep them alive, and so itself.
    """

    def __init__(self, weight: Any, bias: Any, make: Callable[[Any, Any], Layer]):
        self._were = [_state(weight), _state(bias)]
        held = weight.detach(), None if bias is None else bias.detach()
        self._memory = held
        self.layer = make(*held)

    def is_of(self, weight: Any, bias: Any) -> bool:
        """Whether the tensors are the same memory with the same values."""
        return self._were == [_state(weight), _state(bias)]


_LAYERS: Any = WeakTensorKeyDictionary()
"""For each tensor that is a weight: its layers by their options, until the tensor goes."""


def layer_of(weight: Any, bias: Any, options: Hashable, make: Callable[[Any, Any], Layer], keep: bool) -> Layer:
    """The layer with these weights; with `keep`, packed already where they were met before and not written to since.

    torch counts no writes through `tensor.data`, and none to inference tensors: `keep` does not see the former, and
    layers of the latter are made anew.
    """
    if not keep or version_of(weight) is None or (bias is not None and version_of(bias) is None):
        layer = make(weight.detach(), None if bias is None else bias.detach())
        layer.constant = False
        return layer
    layers = _LAYERS.get(weight)
    if layers is None:
        layers = _LAYERS[weight] = {}
    kept = layers.get(options)
    if kept is None or not kept.is_of(weight, bias):
        kept = layers[options] = _Kept(weight, bias, make)
    layer = kept.layer
    assert isinstance(layer, Layer)
    return layer


def _state(tensor: Any) -> Any:
    """Return a value that changes when a tensor is written to, or gets other memory or another form."""
    if tensor is None:
        return None
    return version_of(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device
