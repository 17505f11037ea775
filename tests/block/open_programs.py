"""Block programs with open sizes, and what must come out of them: one text for all sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
BF16 = np.dtype(ml_dtypes.bfloat16)

AFFINE = """block affine(%x: in global f32 (M, N), %y: out global f32 (M, N))
  param M in 0..65536, N in 0..65536
{
  tasks m in 0..M {
    %row = view %x (j N) -> [m, j]
    %to = view %y (j N) -> [m, j]
    map %to = %row*2 + 1
  }
}
"""

# rows by blocks of nine, eighteen to a task; the last block has rows that are not there
PRODUCT = """block product(%a: in global f32 (M, 64), %packed: in global f32 (2, 64, 48, 1), %c: out global f32 (M, 96))
  machine x86.amx
  param M in 1..100000
  let FULL = M//9
{
  tasks part in 0..1, group in 0..ceildiv(M, 18) schedule contiguous {
    %sums = alloc register f32 (9, 48) as avx512.f32.c
    for f in 2*part..2*part + 2, block in 2*group..min(FULL, 2*group + 2) {
      fill %sums 0
      for e in 0..16 {
        %taps = view %a (i 9, k 4) -> [9*block + i, 4*e + k]
        %columns = view %packed (k 4, j 48) -> [f, 4*e + k, j, 0]
        mma %sums += %taps * %columns using avx512.f32
      }
      %goal = view %c (i 9, j 48) -> [9*block + i, 48*f + j]
      map %goal = f32(%sums)
    }
    if (group == (M - 1)//18 and M%9 >= 1) {
      for f in 2*part..2*part + 2 {
        fill %sums 0
        for e in 0..16 {
          %some = view %a (i 9, k 4) -> [9*FULL + i ?, 4*e + k]
          %these = view %packed (k 4, j 48) -> [f, 4*e + k, j, 0]
          mma %sums += %some * %these using avx512.f32 skip
        }
        %last = view %c (i 9, j 48) -> [9*FULL + i ?, 48*f + j]
        map %last = f32(%sums)
      }
    }
  }
}
"""

# seven pixels at a time; filter lines that fall on the padding are left out by the limits of r
CONV = """block conv(%x: in global f32 (N, H, W, 16), %packed: in global f32 (1, 144, 32, 1),
    %y: out global f32 (N, P, Q, 32))
  machine x86.amx
  param N in 1..4096, H in 1..4096, W in 1..4096
  let P = H + 2 - 3 + 1
  let Q = W + 2 - 3 + 1
{
  tasks n in 0..N, p in 0..P schedule contiguous {
    %sums = alloc register f32 (7, 32) as avx512.f32.c
    for block in 0..ceildiv(Q, 7) peel [1, 1] {
      fill %sums 0
      for r in max(1 - p, 0)..min(H + 1 - p, 3) {
        for s in 0..3 unroll {
          for e in 0..4 {
            %taps = view %x (i 7, k 4) -> [n, p + r - 1, 7*block + i + s - 1 ?, 4*e + k]
            %columns = view %packed (k 4, j 32) -> [0, 48*r + 16*s + 4*e + k, j, 0]
            mma %sums += %taps * %columns using avx512.f32 skip
          }
        }
      }
      %goal = view %y (i 7, j 32) -> [n, p, 7*block + i ?, j]
      map %goal = f32(%sums)
    }
  }
}
"""

# thirty-two rows at a time, by tile registers; the end of a round runs beside the next, where there is one
POINTWISE = """block pointwise(%x: in global bf16 (M, 64), %packed: in global bf16 (2, 2, 2, 16, 16, 2),
    %y: out global bf16 (M, 64))
  machine x86.amx
  param M in 1..1000000
  let FULL = M//32
{
  tasks group in 0..ceildiv(M, 128), part in 0..2 {
    %scratch = alloc shared f32 (32, 32)
    %sums = alloc register f32 (32, 32) as amx.bf16.c
    %left = alloc register bf16 (32, 32) as amx.bf16.a
    %right = alloc register bf16 (32, 32) as amx.bf16.b
    for f in part..part + 1, m in 4*group..min(FULL, 4*group + 4) overlap defer {
      fill %sums 0
      for b in 0..2 unroll {
        %rows = view %x (i 32, c 32) -> [32*m + i, 32*b + c]
        copy %rows -> %left stream 1
        %filters = view %packed (c 32, j 32) -> [f, b, j//16, c//2, j%16, c%2]
        copy %filters -> %right stream 0
        mma %sums += %left * %right using amx.bf16
      }
    } finally {
      copy %sums -> %scratch
      %goal = view %y (i 32, j 32) -> [32*m + i, 32*f + j]
      map %goal = bf16(%scratch)
    }
    if (group == (M - 1)//128 and M%32 >= 1) {
      fill %sums 0
      %tail = alloc shared bf16 (32, 32)
      for b in 0..2 {
        %some = view %x (i 32, c 32) -> [32*FULL + i ?, 32*b + c]
        copy %some -> %tail else 0
        copy %tail -> %left stream 1
        %these = view %packed (c 32, j 32) -> [part, b, j//16, c//2, j%16, c%2]
        copy %these -> %right stream 0
        mma %sums += %left * %right using amx.bf16
      }
      copy %sums -> %scratch
      %last = view %y (i 32, j 32) -> [32*FULL + i ?, 32*part + j]
      map %last = bf16(%scratch)
    }
  }
}
"""


@dataclass(frozen=True)
class Problem:
    """Arguments of a program but the last, and what the last must become."""

    arguments: tuple[Array, ...]
    wanted: Array


def small(*shape: int, seed: int = 0, form: Any = np.float32) -> Array:
    """Integers from -2 to 2: sums of their products are exact."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(form)


def affine(m: int, n: int) -> Problem:
    """Twice x, and one."""
    x = small(m, n)
    return Problem((x,), x * 2 + 1)


def product(m: int) -> Problem:
    """(m, 64) times (64, 96), the second packed in blocks of 48 columns."""
    a, b = small(m, 64), small(64, 96, seed=1)
    packed = np.ascontiguousarray(b.reshape(64, 2, 48).transpose(1, 0, 2))[..., None]
    return Problem((a, packed), a @ b)


def conv(n: int, h: int, w: int) -> Problem:
    """A 3x3 convolution of 16 channels to 32, with padding 1."""
    x, filters = small(n, h, w, 16), small(3, 3, 16, 32, seed=1)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = [padded[:, r : r + h, s : s + w] @ filters[r, s] for r in range(3) for s in range(3)]
    return Problem((x, filters.reshape(1, 144, 32, 1)), np.sum(taps, axis=0).astype(np.float32))


def pointwise(m: int) -> Problem:
    """(m, 64) times (64, 64), the second packed in pairs of rows for tile registers."""
    x, filters = small(m, 64, form=BF16), small(64, 64, seed=1, form=BF16)  # [row, c], [f, c]
    packed = filters.reshape(2, 2, 16, 2, 16, 2).transpose(0, 3, 1, 4, 2, 5)
    wanted = x.astype(np.float32) @ filters.astype(np.float32).T
    return Problem((x, np.ascontiguousarray(packed)), wanted.astype(BF16))
