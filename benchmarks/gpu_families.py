"""Families that are one kernel each, beside PyTorch's eager calls: the cases of `gpu_chained.py --families`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gpu_shapes import CHAINS, QUANTISED, REDUCED_PRODUCTS, TWO_CONVOLUTIONS

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "kernels")]

from fused_families import (  # noqa: E402
    layer_norm,
    of_images,
    product_and,
    rms_norm,
    scaled,
    softmax,
    three_factors,
    two_convolutions,
    two_layers,
    widened,
    with_weights,
)

from tilewright.kernels.elementwise import gelu  # noqa: E402

functional = torch.nn.functional
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn


@dataclass(frozen=True)
class Family:
    """A program, its sizes, what it is given, and PyTorch's calls for the same."""

    name: str
    kernel: Any
    sizes: dict[str, int]
    given: list[Any]
    eager: Callable[..., Any]
    largest: float = 1e-2
    """The relative difference from the same calls in float64, by norms, that roundings to bf16 explain."""
    exact: Callable[..., Any] | None = None
    """The same in float64, where the calls do not take it."""


def random(*shape: int, scale: float = 1.0, dtype: Any = BF16) -> Any:
    """Numbers around zero."""
    return (torch.randn(shape, device="cuda") * scale).to(dtype)


def rows(m: int, n: int, k: int) -> Iterator[Family]:
    """A product whose rows are reduced."""
    sizes, given = {"M": m, "N": n, "K": k}, [random(m, k, scale=k**-0.25), random(n, k, scale=k**-0.25)]
    weights = [random(n, dtype=torch.float32), random(n, dtype=torch.float32)]
    yield Family(
        f"softmax {m}x{n}x{k}", product_and(softmax), sizes, given, lambda a, b: torch.softmax(a @ b.t(), -1), 3e-2
    )

    def norm(a: Any, b: Any, g: Any, s: Any) -> Any:
        return functional.layer_norm(a @ b.t(), (n,), g.to(a.dtype), s.to(a.dtype), 1e-5)

    yield Family(f"layer norm {m}x{n}x{k}", with_weights(layer_norm(n)), sizes, given + weights, norm)
    if hasattr(functional, "rms_norm"):
        yield Family(
            f"rms norm {m}x{n}x{k}",
            product_and(rms_norm(n)),
            sizes,
            given,
            lambda a, b: functional.rms_norm(a @ b.t(), (n,), None, 1e-5),
        )


def chained(m: int, k: int, f: int, n: int) -> Iterator[Family]:
    """Two products, one after the other."""
    sizes = {"M": m, "K": k, "F": f, "N": n}
    x, w1, w2 = random(m, k, scale=k**-0.25), random(f, k, scale=k**-0.25), random(n, f, scale=f**-0.5)
    yield Family(
        f"gelu between {m}x{k}-{f}-{n}",
        two_layers(gelu),
        sizes,
        [x, w1, w2],
        lambda x, w1, w2: functional.gelu(x @ w1.t()) @ w2.t(),
    )
    across = [x, w1.t().contiguous(), w2.t().contiguous()]
    yield Family(f"a b c {m}x{k}-{f}-{n}", three_factors(), sizes, across, lambda a, b, c: (a @ b) @ c)


def quantised(m: int, n: int, k: int, group: int) -> Iterator[Family]:
    """Products of bytes with scales, and weights that are widened."""
    sizes = {"M": m, "N": n, "K": k}
    scales = [torch.rand(size, device="cuda") * 0.02 for size in (m, n)] + [random(n, dtype=torch.float32)]

    def exact(a: Any, b: Any, r: Any, c: Any, bias: Any) -> Any:
        return (a.double() @ b.double().t()) * r[:, None] * c + bias

    def of_bytes(a: Any, b: Any, r: Any, c: Any, bias: Any) -> Any:
        return (torch._int_mm(a, b.t()).float() * r[:, None] * c + bias).to(BF16)

    def of_floats(a: Any, b: Any, r: Any, c: Any, bias: Any) -> Any:
        return torch._scaled_mm(a, b.t(), r[:, None], c[None], bias=bias.to(BF16), out_dtype=BF16)

    whole = [torch.randint(-127, 128, (size, k), device="cuda", dtype=torch.int8) for size in (m, n)]
    if m > 16:
        yield Family(f"s8 with scales {m}x{n}x{k}", scaled("i8"), sizes, whole + scales, of_bytes, exact=exact)
    floats = [random(size, k, dtype=E4M3) for size in (m, n)]
    yield Family(f"e4m3 with scales {m}x{n}x{k}", scaled("f8e4m3fn"), sizes, floats + scales, of_floats, exact=exact)
    sizes = sizes | {"S": k // group}
    a, s = random(m, k), random(n, k // group, scale=0.02)

    def wide(a: Any, w: Any, s: Any) -> Any:
        return a @ (w.to(a.dtype).view(n, -1, group) * s[..., None]).view(n, k).t()

    yield Family(f"weights of s8 {m}x{n}x{k}", widened("i8", group), sizes, [a, whole[1], s], wide)
    pairs = torch.randint(0, 256, (n, k // 2), device="cuda", dtype=torch.uint8)

    def unpacked(a: Any, w: Any, s: Any) -> Any:
        return wide(a, torch.stack((w & 15, w >> 4), -1).view(n, k).to(torch.int8) - 8, s)

    kernel = widened("u8", group, packed=True)
    yield Family(f"weights of 4 bits {m}x{n}x{k}", kernel, sizes | {"H": k // 2}, [a, pairs, s], unpacked)


def convolutions(b: int, h: int, w: int, c: int, f: int, g: int) -> Iterator[Family]:
    """A 3x3 convolution, and a pointwise one."""
    image, three = random(b, h, w, c), random(f, 3, 3, c, scale=(9 * c) ** -0.5)
    one = random(g, f, scale=f**-0.5)

    def calls(x: Any, w1: Any, w2: Any) -> Any:
        seen, first = x.permute(0, 3, 1, 2), w1.view(f, 3, 3, c).permute(0, 3, 1, 2)
        found = functional.conv2d(functional.relu(functional.conv2d(seen, first, padding=1)), w2[:, :, None, None])
        return found.permute(0, 2, 3, 1).reshape(-1, g)

    name = f"3x3 and 1x1 {b}x{h}x{w} {c}-{f}-{g}"
    kernel = two_convolutions(b, h, w, c)
    yield Family(name, kernel, of_images(b, h, w, c, f, g), [image, three.view(f, -1), one], calls)


def families() -> Iterator[Family]:
    """All of them, at sizes where one kernel is natural."""
    for sizes in REDUCED_PRODUCTS:
        yield from rows(*sizes)
    for sizes in CHAINS:
        yield from chained(*sizes)
    for sizes in QUANTISED:
        yield from quantised(*sizes)
    for sizes in TWO_CONVOLUTIONS:
        yield from convolutions(*sizes)
