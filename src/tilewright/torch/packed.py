"""Layers of tensors that are weights: for one call, or kept, so that weights are packed once for each version."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from tilewright.errors import TargetError
from tilewright.ops.arrays import learnt_of
from tilewright.ops.layers import Layer, call_once
from tilewright.runtime.tensors import version_of
from tilewright.targets.calls.observing import KeptWeights, Life, observer

Make = Callable[[Any, Any], Layer]
"""Makes a layer of a weight and a bias."""
View = Callable[[Any], Any]
"""Gives a weight in the order of dimensions that a layer takes; no element is copied."""


def may_keep_packed(weight: Any) -> bool:
    """True if weights stay as they are between calls: none asks for their gradient now."""
    return not (torch.is_grad_enabled() and weight.requires_grad)


class _Kept:
    """A layer, and what its tensors were when it was made.

    It holds views of them: a layer that held the tensors themselves would keep them alive, and so itself.
    """

    def __init__(self, weight: Any, bias: Any, make: Make):
        self._were = [_state(weight), _state(bias)]
        held = weight.detach(), None if bias is None else bias.detach()
        self.life = Life(self)
        self.layer = _outside_graphs(make, *held) if weight.is_cuda else make(*held)

    def is_of(self, weight: Any, bias: Any) -> bool:
        """Whether the tensors are the same memory with the same values."""
        return self._were == [_state(weight), _state(bias)]

    def weights(self, weight: Any, bias: Any) -> KeptWeights:
        """The tensors in the state in which they were packed."""
        tensors = [(t, *state[0]) for t, state in zip((weight, bias), self._were, strict=True) if t is not None]
        return KeptWeights(tuple(tensors), self.life)


def _outside_graphs(make: Make, weight: Any, bias: Any) -> Layer:
    """A layer on a GPU whose memory belongs to no CUDA graph.

    Before torch.compile (mode "reduce-overhead") captures a graph, it runs the code once: what its thread and its
    stream allocate then is the graph's. Another thread, on the default stream, gets memory that may be kept.
    """
    if torch.cuda.is_current_stream_capturing():
        raise TargetError(
            "keep_packed=True: a CUDA graph is captured, and these weights are not packed yet: make the same call once "
            "before the capture"
        )

    def make_layer() -> Layer:
        layer = make(weight, bias)
        torch.cuda.current_stream(weight.device).synchronize()
        return layer

    torch.cuda.current_stream(weight.device).synchronize()
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(make_layer).result()


_LAYERS: Any = WeakTensorKeyDictionary()
"""For each tensor that is a weight: its layers by their options, until the tensor goes."""


def layer_of(
    weight: Any, bias: Any, options: Hashable, make: Make, keep: bool, view: View = torch.Tensor.detach
) -> Callable[[Any, Any], Any]:
    """The layer with these weights; with `keep`, packed already where they were met before and not written to since.

    It is called with x, and a residual or None. `make` makes it of the view of a weight that `view` gives, and of the
    bias.

    torch counts no writes through `tensor.data`, and none to inference tensors: `keep` does not see the former, and
    layers of the latter are made anew.
    """
    if not _is_kept(weight, bias, keep):
        held, added = view(weight.detach()), None if bias is None else bias.detach()
        return lambda x, residual: call_once(
            _learnt(options, residual is not None), lambda: make(held, added), x, held, added, residual
        )
    layers = _LAYERS.get(weight)
    if layers is None:
        layers = _LAYERS[weight] = {}
    kept = layers.get(options)
    if kept is None or not kept.is_of(weight, bias):
        kept = layers[options] = _Kept(weight, bias, lambda held, added: make(view(held), added))
    events = observer()
    if events is not None:
        events.weights.append(kept.weights(weight, bias))
    layer: Layer = kept.layer
    return layer


def _is_kept(weight: Any, bias: Any, keep: bool) -> bool:
    """True if a layer of these weights may be kept, because torch counts writes to them."""
    return keep and version_of(weight) is not None and (bias is None or version_of(bias) is not None)


_learnt = partial(learnt_of, "torch")
"""The launches learnt from calls of layers whose weights are not kept: of those with these options, and with a residual
or none. Among the tensors of a call, a residual may stand where a bias stands in another."""


def _state(tensor: Any) -> Any:
    """Return a value that changes when a tensor is written to, or gets other memory or another form."""
    if tensor is None:
        return None
    return version_of(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device
