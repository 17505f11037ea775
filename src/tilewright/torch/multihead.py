"""`MultiheadAttention`: torch's module, its projections and its attention computed by Tilewright's kernels."""

from __future__ import annotations

from typing import Any

import torch

from tilewright.errors import ArgumentError
from tilewright.torch import functional
from tilewright.torch.packed import stays_packed
from tilewright.torch.weighting import attention_by_weights


class MultiheadAttention(torch.nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention`, without a backward.

    A query that masks hide all keys from gets means of 0, where torch's gets NaN. `need_weights=False` is faster: the
    weights of attention are then never held all at once.

    >>> layer, x = MultiheadAttention(8, 2, batch_first=True).eval(), torch.zeros(1, 3, 8)
    >>> with torch.no_grad():
    ...     means, weights = layer(x, x, x)
    >>> means.shape, weights[0, 0]
    (torch.Size([1, 3, 8]), tensor([0.3333, 0.3333, 0.3333]))
    """

    def extra_repr(self) -> str:
        """Sizes and options."""
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
        """(means of the values, weights or None), as torch's."""
        _require_inputs(query, key, value)
        if is_causal and attn_mask is None:
            raise ArgumentError("is_causal=True says what attn_mask is, and attn_mask is None: pass the causal mask")
        if query.dim() == 2:
            padding = None if key_padding_mask is None else key_padding_mask[None]
            at = 0 if self.batch_first else 1
            is_same = query is key and key is value
            q, k, v = [query.unsqueeze(at)] * 3 if is_same else [t.unsqueeze(at) for t in (query, key, value)]
            means, weights = self._batched(q, k, v, padding, need_weights, attn_mask)
            means = means.squeeze(at)
            weights = None if weights is None else weights.squeeze(0)
        else:
            means, weights = self._batched(query, key, value, key_padding_mask, need_weights, attn_mask)
        if weights is not None and average_attn_weights:
            weights = weights.mean(-3)
        return means, weights

    def _batched(
        self, query: Any, key: Any, value: Any, key_padding_mask: Any, need_weights: bool, attn_mask: Any
    ) -> tuple[Any, Any]:
        """(means, weights of each head or None) of sequences in batches."""
        q, k, v = self._projected(query, key, value)
        if not self.batch_first:
            q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        batch = q.shape[0]
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (torch.cat([t, b.expand(batch, 1, -1)], 1) for t, b in ((k, self.bias_k), (v, self.bias_v)))
        if self.add_zero_attn:
            k, v = (torch.cat([t, t.new_zeros(batch, 1, t.shape[-1])], 1) for t in (k, v))
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        mask = self._mask(attn_mask, key_padding_mask, q, k)
        dropped = self.dropout if self.training else 0.0
        if need_weights:
            bias, seen = functional.added_to_scores(mask, q, k, q.shape[:2])
            means, weights = attention_by_weights(q, k, v, bias, False, None, dropped)
            if seen is not None:
                means, weights = (t.masked_fill(~seen, 0) for t in (means, weights))
            weights = weights.to(q.dtype)
        else:
            means, weights = functional.scaled_dot_product_attention(q, k, v, mask, dropped), None
        means = means.transpose(1, 2).flatten(2)
        out = self.out_proj
        kept = stays_packed(out.weight)
        means = functional.linear(means, out.weight, out.bias, keep_packed=kept)
        return means if self.batch_first else means.transpose(0, 1), weights

    def _projected(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        """Queries, keys and values for all heads, in the order of dimensions of what they are made from."""
        given = (query, key, value)
        if self.in_proj_weight is None:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        elif query is key and key is value:
            kept = stays_packed(self.in_proj_weight)
            together = functional.linear(query, self.in_proj_weight, self.in_proj_bias, keep_packed=kept)
            return together.chunk(3, -1)  # type: ignore[no-any-return]
        else:
            weights = self.in_proj_weight.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (functional.linear(x, w, b) for x, w, b in zip(given, weights, biases, strict=True))
        return q, k, v

    def _mask(self, attn_mask: Any, key_padding_mask: Any, q: Any, k: Any) -> Any:
        """The numbers that are added to the scores of all heads, of the scores' type; None: nothing."""
        batch, heads, m, _ = q.shape
        wide = torch.float64 if q.dtype is torch.float64 else torch.float32
        extra = (self.bias_k is not None) + self.add_zero_attn
        keys = k.shape[2] - extra
        total = None
        if attn_mask is not None:
            added = _added(attn_mask, "attn_mask", wide, extra, (m, keys), (batch * heads, m, keys))
            total = added if added.dim() == 2 else added.unflatten(0, (batch, heads))
        if key_padding_mask is not None:
            hidden = _added(key_padding_mask, "key_padding_mask", wide, extra, (batch, keys))[:, None, None]
            total = hidden if total is None else total + hidden
        return total


def _added(mask: Any, name: str, wide: Any, extra: int, *shapes: tuple[int, ...]) -> Any:
    """A mask as numbers that are added to scores; `extra` keys at the end are seen by all.

    Masks of bool say what is hidden in torch's modules, and what is seen in its function.
    """
    if tuple(mask.shape) not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ArgumentError(f"{name} has shape {tuple(mask.shape)}; it must be {wanted}")
    if mask.dtype is torch.bool:
        added = torch.zeros_like(mask, dtype=wide).masked_fill(mask, float("-inf"))
    elif mask.is_floating_point():
        added = mask.to(wide)
    else:
        raise ArgumentError(f"{name} holds {mask.dtype}; it must hold bool or floats")
    return torch.nn.functional.pad(added, (0, extra)) if extra else added


def _require_inputs(query: Any, key: Any, value: Any) -> None:
    given = {"query": query, "key": key, "value": value}
    for name, tensor in given.items():
        if not hasattr(tensor, "dim"):
            raise ArgumentError(f"{name} is of type {type(tensor).__name__}; it must be a tensor of torch")
        if tensor.dim() not in (2, 3) or tensor.dim() != query.dim():
            shapes = ", ".join(f"{n} {tuple(t.shape)}" for n, t in given.items())
            raise ArgumentError(f"{name} has {tensor.dim()} dimensions; all have 3, or 2 without a batch: {shapes}")
