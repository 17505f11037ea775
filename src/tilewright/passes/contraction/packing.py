"""The columns' factor in the order in which it is read, padded with zeros: done once, when it is bound."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.dtypes import DType
from tilewright.passes.contraction.text import argument, batch_at, batch_shape, batch_tasks, flat_index, named, places
from tilewright.plan.contraction import Contraction, size


@dataclass(frozen=True)
class Packing:
    """A program that packs, the packed tensor's shape, and its element type."""

    text: str
    shape: tuple[int, ...]
    dtype: DType


def packed_for_vectors(c: Contraction, width: int, group: int) -> Packing:
    """[columns / width][depth / group][width][group]: what `group` neighbours of the depth's last digit share."""
    (column,) = c.columns
    blocks, depth = -(-size(column) // width), c.extent(c.depth)
    shape = (*batch_shape(c), blocks, depth // group, width, group)
    outer = [named(f"d{n}", size(d)) for n, d in enumerate(c.depth[:-1])]
    last = c.depth[-1]
    inner, lane, b = named("e", size(last) // group), named("g", group), named("b", blocks)
    j = named("j", width)
    meanings = {**dict(zip(c.depth[:-1], outer, strict=True)), last: group * inner + lane, column: width * b + j}
    index = flat_index(c.depth, {**dict(zip(c.depth[:-1], outer, strict=True)), last: group * inner}) // group
    axes = [*outer, inner, j, lane]
    over = "(" + ", ".join(f"{a.name} {size(a)}" for a in axes) + ")"
    lines = [
        f"block pack({argument('in', c.b)}, %packed_: out global {c.b.dtype} ({', '.join(map(str, shape))}))",
        "{",
        f"  tasks {', '.join([*batch_tasks(c), f'b in 0..{blocks}'])} {{",
        f"    %from_ = view %{c.b.value} {over} -> {places(c.b, meanings)}",
        f"    %to_ = view %packed_ {over} -> [{batch_at(c)}b, {index}, j, g]",
        "    copy %from_ -> %to_ else 0",
        "  }",
        "}",
    ]
    return Packing("\n".join(lines) + "\n", shape, c.b.dtype)
