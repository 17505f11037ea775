"""Layers that pack torch's weights: made for one call, or kept, so that weights are packed again only after a write."""

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
"""(weight, bias or None) -> layer that multiplies by them."""
View = Callable[[Any], Any]
"""A weight -> its view with the order of dimensions that a layer takes; no element is copied."""


def may_keep_packed(weight: Any) -> bool:
    """True if the packed copy of the tensor `weight` is worth keeping between calls.

    It is False if a gradient with respect to `weight` can be asked for now: while weights are trained, an optimizer
    changes them between calls.
    """
    return not (torch.is_grad_enabled() and weight.requires_grad)


class _KeptLayer:
    """A layer that is kept between calls, with the state of its weight and bias (or None) when it was made.

    The layer holds views of the tensors, not the tensors themselves: it must be freed together with its weight, and
    would otherwise keep the weight alive.
    """

    def __init__(self, weight: Any, bias: Any, make: Make):
        """Make the layer by `make`, from views of the tensors `weight` and `bias`."""
        self._states = [_state(weight), _state(bias)]
        views = weight.detach(), None if bias is None else bias.detach()
        self.life = Life(self)
        self.layer = _make_outside_graphs(make, *views) if weight.is_cuda else make(*views)

    def is_current(self, weight: Any, bias: Any) -> bool:
        """True if the packed weights are still valid for `weight` and `bias` (or None).

        Then both have the same write count, address, shape, strides, dtype and device as when the layer was made. A
        write that torch does not count, such as one through `tensor.data`, goes unnoticed.
        """
        return self._states == [_state(weight), _state(bias)]

    def packed_weights(self, weight: Any, bias: Any) -> KeptWeights:
        """Return a record for recorded launches: (tensor, write count, address) of `weight` and of `bias` (if not
        None), and this layer's lifetime.

        The counts and addresses are those of the time of packing.
        """
        tensors = [(t, *state[0]) for t, state in zip((weight, bias), self._states, strict=True) if t is not None]
        return KeptWeights(tuple(tensors), self.life)


def _make_outside_graphs(make: Make, weight: Any, bias: Any) -> Layer:
    """Return the layer `make(weight, bias)` on a GPU, made in another thread so that no CUDA graph owns its memory.

    torch.compile (mode "reduce-overhead") runs the code once before it captures a graph. Memory that this thread and
    stream allocate then belongs to the graph; memory that another thread allocates on the default stream does not.
    Return after the GPU has packed the weights. Raise TargetError if a graph is being captured now.
    """
    if torch.cuda.is_current_stream_capturing():
        raise TargetError(
            "keep_packed=True: a CUDA graph is captured, and these weights are not packed yet: make the same call once "
            "before the capture"
        )

    def make_layer() -> Layer:
        """Return the layer `make(weight, bias)`, after the GPU has packed the weights on this thread's current
        stream."""
        layer = make(weight, bias)
        torch.cuda.current_stream(weight.device).synchronize()
        return layer

    torch.cuda.current_stream(weight.device).synchronize()
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(make_layer).result()


_LAYERS: Any = WeakTensorKeyDictionary()
"""{weight: {options: _KeptLayer}}; an entry lives as long as its weight."""


def layer_of(
    weight: Any, bias: Any, options: Hashable, make: Make, keep: bool, view: View = torch.Tensor.detach
) -> Callable[[Any, Any], Any]:
    """Return a function of (x, residual or None) that applies the layer with the weights `weight` and `bias` (or None).

    `make(view(weight), bias)` makes the layer. `options` is a key of everything else on which the layer depends. With
    `keep`, the layer is kept with its packed weights, and reused until torch counts a write to the tensors. torch
    counts no writes through `tensor.data`, which go unnoticed, and none to inference tensors, whose layers are never
    kept. A layer that is not kept is made for each call, unless the call repeats a recorded launch. If the layer is
    kept, the packed weights are reported to the observer of this thread's operator call.
    """
    if not _is_kept(weight, bias, keep):
        matrix, added = view(weight.detach()), None if bias is None else bias.detach()
        return lambda x, residual: call_once(
            _learnt(options, residual is not None), lambda: make(matrix, added), x, matrix, added, residual
        )
    layers = _LAYERS.get(weight)
    if layers is None:
        layers = _LAYERS[weight] = {}
    kept = layers.get(options)
    if kept is None or not kept.is_current(weight, bias):
        kept = layers[options] = _KeptLayer(weight, bias, lambda matrix, added: make(view(matrix), added))
    events = observer()
    if events is not None:
        events.weights.append(kept.packed_weights(weight, bias))
    layer: Layer = kept.layer
    return layer


def _is_kept(weight: Any, bias: Any, keep: bool) -> bool:
    """True if `keep` is True and torch counts the writes to `weight` and to `bias`, so that their layer can be kept.

    `bias` may be None. torch counts no writes to inference tensors.
    """
    return keep and version_of(weight) is not None and (bias is None or version_of(bias) is not None)


_learnt = partial(learnt_of, "torch")
"""(options, True if there is a residual) -> launches learnt from calls of such layers whose weights are not kept.

The residual is part of the key because a call's tensors are told apart by position, and it may stand where another
call has its bias."""


def _state(tensor: Any) -> Any:
    """Return ((write count, address), shape, strides, dtype, device) of `tensor`: a value that changes with each write
    that torch counts.

    Instead of the first pair there is None for an inference tensor, whose writes torch does not count. Return None if
    `tensor` is None, which stands for a missing bias.
    """
    if tensor is None:
        return None
    return version_of(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device
