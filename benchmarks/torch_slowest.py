"""The slowest operators of a network, by torch's profiler, and the time of eager's operators on the same shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

PASSES = 3
"""Passes through the network that are profiled."""


class Operator(NamedTuple):
    """An operator on some shapes, in one pass: how often, its milliseconds alone, and with those it calls."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    count: int
    alone: float
    whole: float

    @property
    def operands(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the first two arguments: the data, and a weight or another operand."""
        return self.shapes[:2]


def operators(call: Callable[[], Any], on_gpu: bool) -> list[Operator]:
    """Return the operators of a pass, the slowest first."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    call()
    with profile(activities=activities, record_shapes=True) as profiler:
        for _ in range(PASSES):
            call()
        if on_gpu:
            torch.cuda.synchronize()
    side = "device" if on_gpu else "cpu"
    rows = []
    for event in profiler.key_averages(group_by_input_shape=True):
        alone, whole = (getattr(event, f"{kind}{side}_time_total") / 1e3 / PASSES for kind in ("self_", ""))
        shapes = tuple(tuple(shape) for shape in event.input_shapes)
        rows.append(Operator(event.key, shapes, max(event.count // PASSES, 1), alone, whole))
    return sorted(rows, key=lambda row: -row.alone)


def slowest_lines(swapped: Callable[[], Any], eager: Callable[[], Any], on_gpu: bool, most: int = 10) -> list[str]:
    """Return a table of the slowest operators of a swapped network beside those of the eager one on the same shapes.

    An operator of the swapped network computes its activation and residual too; eager has operators of their own.
    """
    rows, others = operators(swapped, on_gpu), operators(eager, on_gpu)
    total = sum(row.alone for row in rows)
    lines = ["| operator | shapes | times | ms | share | eager, ms |", "|---|---|---|---|---|---|"]
    for row in rows[:most]:
        like = [o.whole / o.count for o in others if o.operands == row.operands]
        shapes = " ".join("x".join(map(str, shape)) for shape in row.shapes if shape)
        of_eager = f"{row.count * max(like):.2f}" if like and row.operands[:1] != ((),) else "-"
        lines.append(
            f"| {row.name} | {shapes} | {row.count} | {row.alone:.2f} | {100 * row.alone / total:.0f} % | {of_eager} |"
        )
    return lines
