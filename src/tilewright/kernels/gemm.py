"""GEMM: any transposes, batches and output types, with a bias, a residual and an activation at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DTypeLike, element_type
from tilewright.kernels.elementwise import apply_activation, known_activation
from tilewright.kernels.sums import known_precision, sum_type

B, M, N, K = tkl.sym.B, tkl.sym.M, tkl.sym.N, tkl.sym.K
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
TRANSPOSES = ("nn", "nt", "tn", "tt")


def gemm(
    transposes: str = "nn",
    dtype: DTypeLike = "f16",
    out_dtype: DTypeLike | None = None,
    *,
    batched: bool | Sequence[str] = False,
    bias: bool | str = False,
    residual: bool = False,
    activation: str | None = None,
    precision: str | None = None,
    accumulate: str | None = None,
) -> tkw.Kernel:
    """Return a kernel that computes c[m, n] = activation(sum over k of a[m, k] * b[k, n] + bias[n]), for any sizes.

    Arguments: a, b, then bias[N] if `bias`, then an array of c's shape and type if `residual`, which is added before
    the activation, then c. `transposes` has a letter for a and one for b: a is [M, K] ("n") or [K, M] ("t"), b is [K,
    N] ("n") or [N, K] ("t").

    `batched` True gives a, b and c a first dimension B; the bias still has N elements, but with `bias="batched"` it has
    the batch dimensions of c too. As a list, `batched` has an entry for each batch dimension B0, B1, ..., which says
    which of the operands "a" and "b" have it: with ("ab", "b"), a[B0, M, K] times b[B0, B1, K, N] is c[B0, B1, M, N].

    a and b are of type `dtype`. The accumulator is f32 (f64 for f64; i32 for integers, i64 for i64); bias, residual and
    activation are computed in this type, and c has it unless `out_dtype` is given. `precision="tf32"` rounds f32
    operands to tf32 first. `accumulate="f16"` accumulates f16 products in f16, and c is then f16 unless `out_dtype` is
    given; bias and activation stay in f32. `activation` is relu, gelu, gelu_tanh, silu or None. Raise `ArgumentError`
    for options that are not valid.

    >>> import numpy as np, tilewright
    >>> a, b = np.array([[1, 2, 3], [4, 5, 6]], np.float16), np.array([[1, 0, 2]], np.float16)
    >>> tilewright.compile(gemm("nt"), strict=True)(a, b)
    array([[ 7.], [16.]], dtype=float32)
    >>> with_bias = tilewright.compile(gemm("nt", "i8", bias=True, activation="relu"), strict=True)
    >>> with_bias(a.astype(np.int8), b.astype(np.int8), np.array([-10], np.int32))
    array([[0], [6]], dtype=int32)
    """
    if transposes not in TRANSPOSES:
        raise ArgumentError(f"transposes={transposes!r}: there are {', '.join(TRANSPOSES)}")
    known_activation(activation), known_precision(precision)
    of_data = element_type(dtype)
    of_sums, of_bias = sum_type(of_data, accumulate), of_data.accumulator
    of_result = of_sums if out_dtype is None else element_type(out_dtype)

    plain = of_sums is of_bias or not (bias or residual or activation)
    if bias not in (False, True, "batched"):
        raise ArgumentError(f"bias={bias!r}: True, False or 'batched'")
    axes = [str(axis) for axis in batched] if not isinstance(batched, bool) else ["ab"] if batched else []
    if any(axis not in ("ab", "a", "b") for axis in axes):
        raise ArgumentError(f"batched={batched!r}: True, or 'ab', 'a' or 'b' for each batch dimension")
    batch = (B,) if batched is True else tuple(getattr(tkl.sym, f"B{n}") for n in range(len(axes)))
    a_dims = (M, K) if transposes[0] == "n" else (K, M)
    b_dims = (K, N) if transposes[1] == "n" else (N, K)
    a_batch, b_batch = (tuple(d for d, axis in zip(batch, axes, strict=True) if operand in axis) for operand in "ab")
    Left: Any = tkl.Memory[(*a_batch, *a_dims, GLOBAL, of_data)]
    Right: Any = tkl.Memory[(*b_batch, *b_dims, GLOBAL, of_data)]
    Out: Any = tkl.Memory[(*batch, M, N, GLOBAL, of_result)]

    def read_left(a: Any) -> Any:
        """Emit a read of `a`, and return it as a tile with all batch dimensions, repeated along those that it lacks.

        The tile of b has only its own batch dimensions: the others are further rows of the product.
        """
        if a_batch == batch:
            return tkw.read(a)
        all_dims = (*batch, *a_dims)
        at = {d: tkw.IndexMapping.iterator(n) for n, d in enumerate(all_dims)}
        inputs = {d: at[d] for d in (*a_batch, *a_dims)}
        return tkw.read(a, mapping=tkw.IndexMapping(len(all_dims), inputs=inputs, outputs=at))

    def product(a: Any, b: Any) -> Any:
        @tkw.iterate(K, init_args=[tkl.Register[(*batch, M, N, of_sums)](0)])
        def total(acc: Any) -> Any:
            return tkw.mma(read_left(a), tkw.read(b), acc, precision=precision, accumulate=accumulate)

        return total if plain else tkw.cast(total, of_bias)

    def finish(total: Any, c: Any) -> None:
        tkw.write(tkw.cast(apply_activation(activation, total), of_result), c)

    def with_residual(total: Any, residual: Any) -> Any:
        return total + tkw.cast(tkw.read(residual), of_bias)

    Bias: Any = tkl.Memory[(*(batch if bias == "batched" else ()), N, GLOBAL, of_bias)]

    @tkw.wave()
    def gemm(a: Left, b: Right, c: Out) -> None:
        finish(product(a, b), c)

    @tkw.wave()
    def gemm_with_bias(a: Left, b: Right, bias: Bias, c: Out) -> None:
        finish(product(a, b) + tkw.read(bias), c)

    @tkw.wave()
    def gemm_with_residual(a: Left, b: Right, residual: Out, c: Out) -> None:
        finish(with_residual(product(a, b), residual), c)

    @tkw.wave()
    def gemm_with_bias_and_residual(a: Left, b: Right, bias: Bias, residual: Out, c: Out) -> None:
        finish(with_residual(product(a, b) + tkw.read(bias), residual), c)

    if residual:
        return gemm_with_bias_and_residual if bias else gemm_with_residual
    return gemm_with_bias if bias else gemm
