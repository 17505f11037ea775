"""`MultiheadAttention`: torch's module, with projections and attention computed by Tilewright's kernels."""

from __future__ import annotations

from typing import Any

import torch

from tilewright.errors import ArgumentError
from tilewright.torch import functional
from tilewright.torch.packed import may_keep_packed
from tilewright.torch.weighting import attention_with_weights


class MultiheadAttention(torch.nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention`.

    A query whose keys are all masked gets 0; torch's module gives NaN. `need_weights=False` is faster: the weights of
    attention are then never all in memory.

    >>> layer, x = MultiheadAttention(8, 2, batch_first=True).eval(), torch.zeros(1, 3, 8)
    >>> with torch.no_grad():
    ...     means, weights = layer(x, x, x)
    >>> means.shape, weights[0, 0]
    (torch.Size([1, 3, 8]), tensor([0.3333, 0.3333, 0.3333]))
    """

    def extra_repr(self) -> str:
        """Return the module's sizes and options for its printed form: "embed_dim=8, num_heads=2, batch_first=True"."""
        first = ", batch_first=True" if self.batch_first else ""
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}{first}"

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Any, Any]:
        """Return (attention output, weights of attention or None), with the parameters of torch.nn.MultiheadAttention.

        Without `need_weights`, the weights are None. They are [batch, queries, keys], averaged over heads; without
        `average_attn_weights` they are [batch, heads, queries, keys]. If the inputs have no batch dimension, the
        outputs have none either. `is_causal` has no effect if there is an `attn_mask`, and raises ArgumentError without
        one. Raise ArgumentError too if inputs or masks do not fit.
        """
        _require_inputs(query, key, value)
        if is_causal and attn_mask is None:
            raise ArgumentError("is_causal=True says what attn_mask is, and attn_mask is None: pass the causal mask")
        if query.dim() == 2:
            padding = None if key_padding_mask is None else key_padding_mask[None]
            axis = 0 if self.batch_first else 1
            is_same = query is key and key is value
            q, k, v = [query.unsqueeze(axis)] * 3 if is_same else [t.unsqueeze(axis) for t in (query, key, value)]
            output, weights = self._attend_batch(q, k, v, padding, need_weights, attn_mask)
            output = output.squeeze(axis)
            weights = None if weights is None else weights.squeeze(0)
        else:
            output, weights = self._attend_batch(query, key, value, key_padding_mask, need_weights, attn_mask)
        if weights is not None and average_attn_weights:
            weights = weights.mean(-3)
        return output, weights

    def _attend_batch(
        self, query: Any, key: Any, value: Any, key_padding_mask: Any, need_weights: bool, attn_mask: Any
    ) -> tuple[Any, Any]:
        """Return (attention output, weights [batch, heads, queries, keys] or None) of sequences with a batch dimension.

        `query`, `key` and `value` are the module's inputs, before their projections; the output is after the output
        projection. Without `need_weights`, the weights are None. The masks are those of `forward`; each may be None.
        """
        q, k, v = self._project_inputs(query, key, value)
        if not self.batch_first:
            q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        batch = q.shape[0]
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (torch.cat([t, b.expand(batch, 1, -1)], 1) for t, b in ((k, self.bias_k), (v, self.bias_v)))
        if self.add_zero_attn:
            k, v = (torch.cat([t, t.new_zeros(batch, 1, t.shape[-1])], 1) for t in (k, v))
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        mask = self._score_bias(attn_mask, key_padding_mask, q, k)
        dropout_p = self.dropout if self.training else 0.0
        if need_weights:
            bias, has_visible_key = functional.mask_as_bias(mask, q, k, q.shape[:2])
            output, weights = attention_with_weights(q, k, v, bias, False, None, dropout_p)
            if has_visible_key is not None:
                output, weights = (t.masked_fill(~has_visible_key, 0) for t in (output, weights))
            weights = weights.to(q.dtype)
        else:
            output, weights = functional.scaled_dot_product_attention(q, k, v, mask, dropout_p), None
        output = output.transpose(1, 2).flatten(2)
        projection = self.out_proj
        keep = may_keep_packed(projection.weight)
        output = functional.linear(output, projection.weight, projection.bias, keep_packed=keep)
        return output if self.batch_first else output.transpose(0, 1), weights

    def _project_inputs(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        """Return (queries, keys, values): each input times its projection weight, plus its bias.

        The order of dimensions is that of the inputs; the last dimension has all heads. One GEMM computes all three if
        `query`, `key` and `value` are the same tensor and the module stores one joint weight.
        """
        inputs = (query, key, value)
        if self.in_proj_weight is None:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        elif query is key and key is value:
            keep = may_keep_packed(self.in_proj_weight)
            joint = functional.linear(query, self.in_proj_weight, self.in_proj_bias, keep_packed=keep)
            return joint.chunk(3, -1)  # type: ignore[no-any-return]
        else:
            weights = self.in_proj_weight.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (functional.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True))
        return q, k, v

    def _score_bias(self, attn_mask: Any, key_padding_mask: Any, q: Any, k: Any) -> Any:
        """Return the sum of both masks as a tensor to add to the scores, -inf for hidden keys; None if both masks are
        None.

        The result can be broadcast to [batch, heads, queries, keys]. It is float32, or float64 if `q` is. `q` and `k`
        are [batch, heads, rows, size]. The last rows of `k` may be the extra keys of `bias_k` and `add_zero_attn`,
        which no mask hides. Raise ArgumentError if a mask does not fit.
        """
        batch, heads, queries, _ = q.shape
        dtype = torch.float64 if q.dtype is torch.float64 else torch.float32
        extra = (self.bias_k is not None) + self.add_zero_attn
        keys = k.shape[2] - extra
        total = None
        if attn_mask is not None:
            bias = _mask_as_bias(attn_mask, "attn_mask", dtype, extra, (queries, keys), (batch * heads, queries, keys))
            total = bias if bias.dim() == 2 else bias.unflatten(0, (batch, heads))
        if key_padding_mask is not None:
            hidden = _mask_as_bias(key_padding_mask, "key_padding_mask", dtype, extra, (batch, keys))[:, None, None]
            total = hidden if total is None else total + hidden
        return total


def _mask_as_bias(mask: Any, name: str, score_type: Any, extra_keys: int, *shapes: tuple[int, ...]) -> Any:
    """Return `mask` as a tensor of dtype `score_type` to add to the scores: -inf for hidden keys.

    True in a bool mask hides a key, as in torch's modules; in torch's function it shows one. A float mask is only
    converted. The last dimension is extended by `extra_keys` zeros. Raise ArgumentError, which calls the mask `name`,
    unless its shape is one of `shapes` and it holds bool or floats.
    """
    if tuple(mask.shape) not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ArgumentError(f"{name} has shape {tuple(mask.shape)}; it must be {wanted}")
    if mask.dtype is torch.bool:
        added = torch.zeros_like(mask, dtype=score_type).masked_fill(mask, float("-inf"))
    elif mask.is_floating_point():
        added = mask.to(score_type)
    else:
        raise ArgumentError(f"{name} holds {mask.dtype}; it must hold bool or floats")
    return torch.nn.functional.pad(added, (0, extra_keys)) if extra_keys else added


def _require_inputs(query: Any, key: Any, value: Any) -> None:
    """Raise ArgumentError unless `query`, `key` and `value` are tensors that all have 3 dimensions, or all have 2."""
    tensors = {"query": query, "key": key, "value": value}
    for name, tensor in tensors.items():
        if not hasattr(tensor, "dim"):
            raise ArgumentError(f"{name} is of type {type(tensor).__name__}; it must be a tensor of torch")
        if tensor.dim() not in (2, 3) or tensor.dim() != query.dim():
            shapes = ", ".join(f"{n} {tuple(t.shape)}" for n, t in tensors.items())
            raise ArgumentError(f"{name} has {tensor.dim()} dimensions; all have 3, or 2 without a batch: {shapes}")
