"""Families of programs that are one kernel each: a product whose rows are reduced, chained products, quantised products
with scales, convolutions.

Those in EXACT give the same numbers in every order, of small integers; sizes are ragged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw

M, N, K, F, G, S, SPACE = *(getattr(tkl.sym, name) for name in "MNKFGS"), tkl.GLOBAL_ADDRESS_SPACE
B, H, W, C = (getattr(tkl.sym, name) for name in "BHWC")


def relu(x: Any) -> Any:
    """Exact, where gelu is not."""
    return tkw.relu(x)


def below(c: Any) -> Any:
    """As a softmax goes over rows, but exact: less the largest of the row, and the sum of that."""
    d = c - tkw.max(c, dim=N)
    return d + tkw.sum(d, dim=N)


def softmax(c: Any) -> Any:
    """Of each row."""
    e = tkw.exp(c - tkw.max(c, dim=N))
    return e / tkw.sum(e, dim=N)


def layer_norm(columns: int) -> Callable[[Any], Any]:
    """Of each row of so many columns."""

    def norm(c: Any) -> Any:
        d = c - tkw.sum(c, dim=N) * (1.0 / columns)
        return d * tkw.rsqrt(tkw.sum(d * d, dim=N) * (1.0 / columns) + 1e-5)

    return norm


def rms_norm(columns: int) -> Callable[[Any], Any]:
    """Of each row of so many columns."""
    return lambda c: c * tkw.rsqrt(tkw.sum(c * c, dim=N) * (1.0 / columns) + 1e-5)


def product_and(
    function: Callable[[Any], Any], dtype: str = "bf16", *, looped: bool = False, across: bool = False
) -> Any:
    """y = function(a b^T), a function of rows; the sum may be a loop over K. With `across`, b is as it is written."""
    data = getattr(tkl, dtype)
    second = (K, N) if across else (N, K)

    @tkw.wave()
    def product_of_rows(
        a: tkl.Memory[M, K, SPACE, data], b: tkl.Memory[*second, SPACE, data], y: tkl.Memory[M, N, SPACE, data]
    ) -> None:
        if looped:

            @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
            def c(acc: Any) -> Any:
                return tkw.mma(tkw.read(a), tkw.read(b), acc)
        else:
            c = tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0.0))
        tkw.write(tkw.cast(function(c), data), y)

    return product_of_rows


def with_weights(function: Callable[[Any], Any], dtype: str = "bf16") -> Any:
    """y = function(a b^T) * g + s, g and s a number for each column."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def product_of_rows(
        a: tkl.Memory[M, K, SPACE, data],
        b: tkl.Memory[N, K, SPACE, data],
        g: tkl.Memory[N, SPACE, tkl.f32],
        s: tkl.Memory[N, SPACE, tkl.f32],
        y: tkl.Memory[M, N, SPACE, data],
    ) -> None:
        c = tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0.0))
        tkw.write(tkw.cast(function(c) * tkw.read(g) + tkw.read(s), data), y)

    return product_of_rows


def two_layers(activation: Callable[[Any], Any] = relu, dtype: str = "bf16") -> Any:
    """y = activation(x w1^T) w2^T."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def layers(
        x: tkl.Memory[M, K, SPACE, data],
        w1: tkl.Memory[F, K, SPACE, data],
        w2: tkl.Memory[N, F, SPACE, data],
        y: tkl.Memory[M, N, SPACE, data],
    ) -> None:
        hidden = tkw.cast(activation(tkw.mma(tkw.read(x), tkw.read(w1), tkl.Register[M, F, tkl.f32](0.0))), data)
        tkw.write(tkw.cast(tkw.mma(hidden, tkw.read(w2), tkl.Register[M, N, tkl.f32](0.0)), data), y)

    return layers


def three_factors(dtype: str = "bf16") -> Any:
    """y = a b c, all of them as they are written."""
    data = getattr(tkl, dtype)

    @tkw.wave()
    def chained(
        a: tkl.Memory[M, K, SPACE, data],
        b: tkl.Memory[K, F, SPACE, data],
        c: tkl.Memory[F, N, SPACE, data],
        y: tkl.Memory[M, N, SPACE, data],
    ) -> None:
        between = tkw.cast(tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, F, tkl.f32](0.0)), data)
        tkw.write(tkw.cast(tkw.mma(between, tkw.read(c), tkl.Register[M, N, tkl.f32](0.0)), data), y)

    return chained


def scaled(dtype: str) -> Any:
    """y = (a b^T) * r * c + bias, a scale for each row and one for each column."""
    data, total = getattr(tkl, dtype), tkl.i32 if dtype == "i8" else tkl.f32

    @tkw.wave()
    def scaled_product(
        a: tkl.Memory[M, K, SPACE, data],
        b: tkl.Memory[N, K, SPACE, data],
        r: tkl.Memory[M, SPACE, tkl.f32],
        c: tkl.Memory[N, SPACE, tkl.f32],
        bias: tkl.Memory[N, SPACE, tkl.f32],
        y: tkl.Memory[M, N, SPACE, tkl.bf16],
    ) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[M, N, total](0)])
        def added(acc: Any) -> Any:
            return tkw.mma(tkw.read(a), tkw.read(b), acc)

        found = tkw.cast(added, tkl.f32) * tkw.read(r) * tkw.read(c) + tkw.read(bias)
        tkw.write(tkw.cast(found, tkl.bf16), y)

    return scaled_product


def widened(dtype: str, group: int, *, packed: bool = False, looped: bool = True) -> Any:
    """y = a w^T, w widened to bf16 and scaled, a scale for each row of w and group of K; the sum may be a loop over K.

    With `packed`, two weights of four bits lie in a byte, less 8, the first in its lower half.
    """
    weights, columns = getattr(tkl, dtype), H if packed else K
    i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    scales = tkw.IndexMapping(num_iterators=2, inputs={N: i, S: j // group}, outputs={N: i, K: j})
    pairs = tkw.IndexMapping(num_iterators=2, inputs={N: i, H: j // 2}, outputs={N: i, K: j})

    @tkw.wave()
    def widened_weights(
        a: tkl.Memory[M, K, SPACE, tkl.bf16],
        w: tkl.Memory[N, columns, SPACE, weights],
        s: tkl.Memory[N, S, SPACE, tkl.bf16],
        y: tkl.Memory[M, N, SPACE, tkl.bf16],
    ) -> None:
        def wide() -> Any:
            if not packed:
                return tkw.cast(tkw.read(w), tkl.bf16)
            both = tkw.cast(tkw.read(w, mapping=pairs), tkl.i32)
            return tkw.cast(tkw.select(tkw.self_index(K) % 2 == 1, both // 16, both % 16) - 8, tkl.bf16)

        if looped:

            @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
            def total(acc: Any) -> Any:
                return tkw.mma(tkw.read(a), wide() * tkw.read(s, mapping=scales), acc)
        else:
            zero = tkl.Register[M, N, tkl.f32](0.0)
            total = tkw.mma(tkw.read(a), wide() * tkw.read(s, mapping=scales), zero)
        tkw.write(tkw.cast(total, tkl.bf16), y)

    return widened_weights


def two_convolutions(images: int, height: int, width: int, channels: int, dtype: str = "bf16") -> Any:
    """y = relu(3x3 convolution of x, padded by one) w2^T, rows M of all images."""
    data = getattr(tkl, dtype)
    i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    image = tkw.IndexMapping(
        num_iterators=2,
        inputs={B: i // (H * W), H: i // W % H + j // C // 3 - 1, W: i % W + j // C % 3 - 1, C: j % C},
        outputs={M: i, K: j},
    )

    @tkw.wave()
    def convolutions(
        x: tkl.Memory[B, H, W, C, SPACE, data],
        w1: tkl.Memory[F, K, SPACE, data],
        w2: tkl.Memory[G, F, SPACE, data],
        y: tkl.Memory[M, G, SPACE, data],
    ) -> None:
        rows = tkw.read(x, mapping=image, otherwise=0)
        between = tkw.cast(tkw.relu(tkw.mma(rows, tkw.read(w1), tkl.Register[M, F, tkl.f32](0.0))), data)
        tkw.write(tkw.cast(tkw.mma(between, tkw.read(w2), tkl.Register[M, G, tkl.f32](0.0)), data), y)

    return convolutions.bound({B: images, H: height, W: width, C: channels})


def of_images(images: int, height: int, width: int, channels: int, filters: int, results: int) -> dict[str, int]:
    """The sizes of two convolutions."""
    sizes = dict(zip("BHWCFG", (images, height, width, channels, filters, results), strict=True))
    return sizes | {"M": images * height * width, "K": 9 * channels}


EXACT: dict[str, tuple[Any, dict[str, int]]] = {
    "rows, 64": (product_and(below), {"M": 70, "N": 64, "K": 200}),
    "rows, 96, f16": (product_and(below, "f16"), {"M": 131, "N": 96, "K": 136}),
    "rows, 256, a loop over K": (product_and(below, looped=True), {"M": 70, "N": 256, "K": 328}),
    "rows, 480, by two groups of waves": (product_and(below), {"M": 70, "N": 480, "K": 72}),
    "rows, 100, no atom's": (product_and(below), {"M": 70, "N": 100, "K": 136}),
    "rows, 300, no atom's": (product_and(below, "f16"), {"M": 65, "N": 300, "K": 72}),
    "rows, 136, of b as it is written": (product_and(below, across=True), {"M": 70, "N": 136, "K": 72}),
    "rows with weights": (with_weights(below), {"M": 65, "N": 128, "K": 72}),
    "two layers": (two_layers(), {"M": 70, "N": 72, "K": 200, "F": 128}),
    "two layers, 256": (two_layers(dtype="f16"), {"M": 70, "N": 136, "K": 456, "F": 256}),
    "two layers, blocks of columns": (two_layers(), {"M": 70, "N": 300, "K": 136, "F": 128}),
    "two layers, a loop between": (two_layers(), {"M": 70, "N": 136, "K": 72, "F": 512}),
    "three factors, a loop between": (three_factors("f16"), {"M": 70, "N": 72, "K": 264, "F": 320}),
    "three factors": (three_factors(), {"M": 70, "N": 72, "K": 200, "F": 128}),
    "scales, s8": (scaled("i8"), {"M": 70, "N": 72, "K": 272}),
    "scales, e4m3": (scaled("f8e4m3fn"), {"M": 33, "N": 72, "K": 272}),
    "weights of s8": (widened("i8", 128), {"M": 33, "N": 200, "K": 256, "S": 2}),
    "weights of u8, no loop": (widened("u8", 64, looped=False), {"M": 40, "N": 72, "K": 192, "S": 3}),
    "weights of e4m3": (widened("f8e4m3fn", 128), {"M": 70, "N": 72, "K": 128, "S": 1}),
    "weights of four bits": (widened("u8", 128, packed=True), {"M": 24, "N": 72, "K": 256, "S": 2, "H": 128}),
    "two convolutions": (two_convolutions(2, 5, 7, 32), of_images(2, 5, 7, 32, 64, 72)),
    "two convolutions, 256": (two_convolutions(1, 9, 8, 72), of_images(1, 9, 8, 72, 64, 256)),
    "two convolutions, 512": (two_convolutions(1, 7, 11, 64), of_images(1, 7, 11, 64, 128, 512)),
}
