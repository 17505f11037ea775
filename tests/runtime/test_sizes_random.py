"""Random programs of open sizes: machine code, made once, against the interpreter, for each size anew."""

from __future__ import annotations

import random

import numpy as np
import pytest
from open_programs import small

from tilewright.compiler.text import compile_text

SIZES = ((1, 1), (2, 9), (5, 3), (4, 16), (7, 17), (9, 8))


def random_text(seed: int) -> str:
    """A program that moves (M, N) numbers by blocks, whose sizes, loops and places are chosen at random."""
    rng = random.Random(seed)
    kind = rng.choice(("f32", "f32", "i32", "f64", "i8", "bf16"))
    rows, columns = rng.choice((1, 2, 3, 4)), rng.choice((1, 3, 8, 16, 20))
    whole = rng.random() < 0.3  # a line at a time, its size open
    extent = "N" if whole else str(columns)
    place = f"{rows}*b + i", "j" if whole else f"{columns}*k + j"
    turned = rng.random() < 0.3
    source = [_moved(rng, e, n) for e, n in zip(place, "MN", strict=True)]
    at = [source[1], source[0]] if turned else source
    shape = "N, M" if turned else "M, N"
    loop = "0..1" if whole else f"0..ceildiv(N, {columns})" + rng.choice(("", " peel [1, 1]", " peel [2]", " unroll"))
    held = kind == "f32" and columns == 16 and rng.random() < 0.7
    space = f"register f32 ({rows}, 16) as avx512.f32.c" if held else f"shared {kind} ({rows}, {columns})"
    direct = whole or rng.random() < 0.4
    tasks = rng.choice((f"b in 0..ceildiv(M, {rows})", f"u in 0..1, b in 0..(M + {rows - 1})//{rows}"))
    schedule = rng.choice(("", " schedule contiguous"))
    condition = rng.choice(("b >= 0", f"{rows}*b + {rows} <= M", "2*b < M", "b + 1 < N", "(b + M)%3 == 1"))
    body = _steps(rng, direct)
    return f"""block moved(%x: in global {kind} ({shape}), %y: out global {kind} (M, N))
  machine x86.avx512
  param M in 1..200, N in 1..200
{{
  tasks {tasks}{schedule} {{
    {"" if direct else f"%tile = alloc {space}"}
    for k in {loop} {{
      %from = view %x (i {rows}, j {extent}) -> [{at[0]} ?, {at[1]} ?]
      %to = view %y (i {rows}, j {extent}) -> [{place[0]} ?, {place[1]} ?]
      if ({condition}) {{
        {body}
      }} else {{
        {_steps(rng, direct)}
      }}
    }}
  }}
}}
"""


def _moved(rng: random.Random, e: str, size: str) -> str:
    return rng.choice((e, e, f"{e} - 1", f"{e} + 2", f"{size} - 1 - ({e})", f"({e})//2", f"2*({e})", f"({e})%{size}"))


def _steps(rng: random.Random, direct: bool) -> str:
    otherwise = rng.randrange(-2, 3)
    if direct:
        return rng.choice((f"copy %from -> %to else {otherwise}", f"fill %to {otherwise}"))
    last = rng.choice(("copy %tile -> %to", "map %to = %tile + %tile", "map %to = maximum(%tile, 1)"))
    return f"copy %from -> %tile else {otherwise}\n        {last}"


def differing(seed: int) -> list[tuple[int, int]]:
    """The sizes for which a random program gives something else than the interpreter does."""
    text = random_text(seed)
    program, meaning = compile_text(text, "cpu"), compile_text(text, target="interpreter")
    form = program.main.args[0].type.dtype.numpy
    found = []
    for m, n in SIZES:
        x = small(*((n, m) if "(N, M), " in text else (m, n)), seed=seed, form=form)
        if not np.array_equal(program(x), meaning(x)):
            found.append((m, n))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_random_programs(seed: int) -> None:
    assert differing(seed) == []
