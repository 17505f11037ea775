"""Forms of attention on the GPU beside PyTorch's: grouped queries, windows, decoding, ragged heads.

    python benchmarks/attention_forms.py [--only WORDS]

Each is a plain tile program (`corpus_kernels.grouped_query`) with the plan that is chosen. The peers are cuDNN's and
Flash's attention through PyTorch, whichever take the problem. All calls of a form are captured in graphs and replayed
in turn; the figures are medians. `ratio` is the fastest peer's time by ours. The largest difference from PyTorch's own
mathematics in f32 is printed beside it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from typing import Any

from corpus_kernels import grouped_query

import tilewright
from tilewright.cli.cuda_graphs import graph_sampler
from tilewright.runtime.timing import interleaved_medians

SCALE = 0.125


@dataclass(frozen=True)
class Form:
    """A problem: batch, heads of keys, queries of each, rows, keys, head size; and its masks."""

    name: str
    extents: tuple[int, int, int, int, int, int]
    causal: bool = False
    window: int | None = None

    def kernel(self) -> Any:
        """The tile program."""
        return grouped_query(128, causal=self.causal, window=self.window)


FORMS = (
    Form("grouped-query 2x8x4x4096, causal", (2, 8, 4, 4096, 4096, 128), causal=True),
    Form("grouped-query 2x8x4x4096", (2, 8, 4, 4096, 4096, 128)),
    Form("grouped-query 2x8x4x8192, window 1024", (2, 8, 4, 8192, 8192, 128), causal=True, window=1024),
    Form("decode 32x8x8, 8192 keys", (32, 8, 8, 1, 8192, 128)),
    Form("decode 64x16x1, 4096 keys", (64, 16, 1, 1, 4096, 128)),
    Form("4 tokens 32x8x8, 8192 keys", (32, 8, 8, 4, 8192, 128)),
    Form("ragged 1x3x5x333, 777 keys, head size 72", (1, 3, 5, 333, 777, 72)),
)


def tensors(form: Form) -> list[Any]:
    """Queries, keys, values and the result."""
    import torch

    b, kv, gq, m, n, d = form.extents
    shapes = [(b, kv, gq, m, d), (b, kv, n, d), (b, kv, n, d), (b, kv, gq, m, d)]
    return [torch.randn(*shape, device="cuda", dtype=torch.bfloat16) / 2 for shape in shapes]


def peers(form: Form, q: Any, k: Any, v: Any) -> tuple[dict[str, Any], Any]:
    """Calls of PyTorch's backends that take a form, and its own mathematics in f32."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    b, kv, gq, m, n, d = form.extents
    heads, mask, causal = q.reshape(b, kv * gq, m, d), None, form.causal and m > 1
    if form.window is not None:
        row, key = torch.arange(m, device="cuda")[:, None], torch.arange(n, device="cuda")[None]
        mask, causal = (key <= row) & (key > row - form.window), False

    def attention(*given: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(
            *given, attn_mask=mask, is_causal=causal, scale=SCALE, enable_gqa=True
        )

    calls: dict[str, Any] = {}

    def by(backend: Any) -> Any:
        with sdpa_kernel(backend):
            return attention(heads, k, v)

    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        try:
            by(backend)
        except RuntimeError:  # the backend does not take it
            continue
        calls[name] = partial(by, backend)
    with sdpa_kernel(SDPBackend.MATH):
        expected = attention(*(x[:1].float() for x in (heads, k, v))).reshape(1, *q.shape[1:])
    return calls, expected


def measure(form: Form) -> str:
    """A line of the table."""
    q, k, v, o = tensors(form)
    run = tilewright.compile(form.kernel(), target="gpu")
    run(q, k, v, o)
    calls, expected = peers(form, q, k, v)
    error = (o[:1].float() - expected).abs().max().item()
    own, *others = interleaved_medians([graph_sampler(run.bind(q, k, v, o)), *map(graph_sampler, calls.values())])
    peer = ", ".join(f"{name} {1e6 * t:.1f}" for name, t in zip(calls, others, strict=True))
    return f"{form.name:42} {1e6 * own:9.1f} us  {peer:34} ratio {min(others) / own:5.2f}  error {error:.4f}"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="forms whose name has these words")
    options = parser.parse_args()
    for form in FORMS:
        if options.only in form.name:
            print(measure(form), flush=True)


if __name__ == "__main__":
    main()
