"""Tile kernels on a Hopper GPU, planned by Tilewright, beside cuBLAS and cuDNN through PyTorch.

`python benchmarks/gpu.py [gemm] [types] [f32] [conv] [others] [attention] [--plans N] [--processes N] [--only TEXT]`
prints one line a problem, of those whose names match where that is asked for: microseconds of theirs and ours in CUDA
graphs, the medians of interleaved replays, the ratio, TF/s, the share of the floor max(flops/peak,
bytes/bandwidth), what was predicted, and the plan's tile; at the end the worst first, and how predictions fared. With
--plans, so many candidates of each problem are measured, and the line says how far the chosen one is from the best.
With --processes, everything is measured in so many processes, one after the other, and the medians count, theirs and
ours.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch
from gpu_shapes import ATTENTIONS, CONVS, F32_CONVS, F32_GEMMS, GEMMS, OTHERS, TYPES
from hopper import difference, microseconds
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.problems import parse_conv
from tilewright.targets.registry import machine


@dataclass(frozen=True)
class Work:
    """A kernel for sizes, the floating-point operations it does, and what it is beside the library's call."""

    name: str
    kernel: Any
    sizes: dict[str, int]
    flops: float
    tensors: Callable[[], tuple[list[Any], Callable[[], Any], Callable[[], Any]]]
    """Makes the tensors, the library's call, and what gives its result in our layout."""
    lanes: bool = False
    """Whether no tensor core multiplies such elements."""


def of_type(dtype: str) -> torch.dtype:
    """PyTorch's name of a type; it may not round f32 to tf32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return torch.bfloat16 if dtype == "bf16" else torch.float32


def gemm(m: int, n: int, k: int, transposes: str = "nt", dtype: str = "bf16") -> Work:
    """A product of matrices."""

    def tensors() -> Any:
        kind = of_type(dtype)
        shapes = [(m, k), (k, n)]
        a, b = (
            torch.randn(*(shape if how == "n" else shape[::-1]), device="cuda", dtype=kind)
            for shape, how in zip(shapes, transposes, strict=True)
        )
        c, wanted = (torch.full((m, n), math.nan, device="cuda", dtype=kind) for _ in range(2))
        x, y = (t if how == "n" else t.t() for t, how in zip((a, b), transposes, strict=True))
        return [a, b, c], lambda: torch.mm(x, y, out=wanted), lambda: wanted

    sizes, name = {"M": m, "N": n, "K": k}, f"gemm {m}x{n}x{k}"
    if dtype != "bf16":
        name = f"{dtype} {transposes} {m}x{n}x{k}"
    return Work(name, kernels.gemm(transposes, dtype, dtype), sizes, 2 * m * n * k, tensors, dtype == "f32")


def typed(name: str, n: int) -> Work:
    """A product of square matrices of another type than bf16."""
    data, result = TYPES[name]

    def tensors() -> Any:
        if name == "tf32":
            torch.backends.cuda.matmul.allow_tf32 = True
            a, b = (torch.randn(n, n, device="cuda") for _ in range(2))
            c, wanted = torch.full_like(a, math.nan), torch.empty_like(a)
            return [a, b, c], lambda: torch.mm(a, b.t(), out=wanted), lambda: wanted
        if name == "s8":
            a, b = (torch.randint(-9, 10, (n, n), device="cuda", dtype=torch.int8) for _ in range(2))
            c = torch.zeros(n, n, device="cuda", dtype=torch.int32)
            return [a, b, c], lambda: torch._int_mm(a, b.t()), lambda: torch._int_mm(a, b.t())
        a, b = (torch.randn(n, n, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
        c, one = torch.full((n, n), math.nan, device="cuda", dtype=torch.bfloat16), torch.ones((), device="cuda")

        def library() -> Any:
            return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

        return [a, b, c], library, library

    kernel = kernels.gemm("nt", data, result, precision="tf32" if name == "tf32" else None)
    return Work(f"{name} {n}x{n}x{n}", kernel, {"M": n, "N": n, "K": n}, 2 * n**3, tensors)


def conv(line: str, dtype: str = "bf16") -> Work:
    """A convolution, channels last."""
    p = parse_conv(line)

    def tensors() -> Any:
        kind = of_type(dtype)
        x = torch.randn(p.mb, p.ic, *p.i, device="cuda", dtype=kind).to(memory_format=torch.channels_last)
        f = torch.randn(p.oc, p.ic, *p.k, device="cuda", dtype=kind).to(memory_format=torch.channels_last)

        def library() -> Any:
            return torch.nn.functional.conv2d(x, f, stride=p.s, padding=p.p)

        wanted = library().permute(0, 2, 3, 1)
        y = torch.full(wanted.shape, math.nan, device="cuda", dtype=kind)
        return [x.permute(0, 2, 3, 1), f.permute(0, 2, 3, 1), y], library, lambda: wanted

    kernel = kernels.conv(p.k, dtype, stride=p.s, padding=p.p)
    sizes = {"N": p.mb, "H": p.i[0], "W": p.i[1], "C": p.ic, "F": p.oc}
    flops = 2 * p.mb * math.prod(p.o) * p.oc * math.prod(p.k) * p.ic
    return Work(line if dtype == "bf16" else f"{dtype} {line}", kernel, sizes, flops, tensors, dtype == "f32")


def attention(batch: int, heads: int, length: int, head: int, causal: bool) -> Work:
    """Attention, beside cuDNN's; of the keys that causal queries see about a half."""

    def tensors() -> Any:
        q, k, v = (torch.randn(batch, heads, length, head, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        out = torch.full_like(q, math.nan)

        def library() -> Any:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        wanted = library()
        return [q, k, v, out], library, lambda: wanted

    sizes = {"B": batch, "H": heads, "M": length, "N": length, "D": head, "E": head}
    name = f"attention {batch}x{heads}x{length}x{head}{' causal' if causal else ''}"
    flops = 4 * batch * heads * length**2 * head / (2 if causal else 1)
    return Work(name, kernels.attention(128, "bf16", causal=causal), sizes, flops, tensors)


WORKS = {
    "gemm": [gemm(*s) for s in GEMMS],
    "types": [typed(name, 8192) for name in TYPES],
    "f32": [*(gemm(*s, how, "f32") for how, *s in F32_GEMMS), *(conv(line, "f32") for line in F32_CONVS)],
    "conv": [conv(line) for line in CONVS],
    "others": [conv(line) for line in OTHERS],
    "attention": [attention(*s, causal) for s in ATTENTIONS for causal in (False, True)],
}


Candidate = tuple[str, str, float]
"""What a plan is, its text, predicted microseconds."""


def plans(kind: str, number: int, count: int) -> list[Candidate]:
    """A problem's candidates, the chosen one first; their code is made and kept."""
    work, row = WORKS[kind][number], machine("hopper")
    best = kernel_for(work.kernel, work.sizes, target="gpu:hopper")
    found = []
    for plan in [x.plan for x in best.choice.candidates[:count]] if count > 1 and best.choice.candidates else (None,):
        made = best if plan is None else kernel_for(work.kernel, work.sizes, target="gpu:hopper", plan=plan)
        made.text("asm")
        split = "" if made.plan.parts is None else f", parts {made.plan.parts[1]}"
        said = f"{made.plan.products[0]}, {made.plan.pipeline}, raster {made.plan.raster}{split}"
        found.append((said, made.text("plan"), made.choice.cycles / row.limits.clock_ghz * 1e-3))
    return found


@dataclass(frozen=True)
class Row:
    """Microseconds of a problem: theirs; ours, for the chosen candidate and the others; predicted; the floor."""

    name: str
    flops: float
    theirs: float
    took: tuple[float, ...]
    said: str
    predicted: float
    floor: float

    @property
    def ratio(self) -> float:
        """How many times as fast ours is."""
        return self.theirs / self.took[0]

    @property
    def distance(self) -> float:
        """Ours, over that of the best candidate."""
        return self.took[0] / min(self.took)

    @staticmethod
    def middle(rows: tuple[Row, ...]) -> Row:
        """The medians of a problem's rows, one of each process."""
        took = tuple(median(times) for times in zip(*(row.took for row in rows), strict=True))
        return replace(rows[0], theirs=median(row.theirs for row in rows), took=took)

    def __str__(self) -> str:
        ours = self.took[0]
        return (
            f"{self.name:32} theirs {self.theirs:8.2f} ours {ours:8.2f} us, ratio {self.ratio:5.3f}, "
            f"{self.flops / ours * 1e-6:5.1f} TF/s, {self.floor / ours:4.0%} of the floor, "
            f"predicted {self.predicted:8.2f}, best of {len(self.took)} {self.distance:.3f}  {self.said}"
        )


def floor_of(work: Work, tensors: list[Any]) -> float:
    """Microseconds that no kernel beats: all products at the peak of bf16, or of lanes, or all bytes through memory."""
    row = machine("hopper")
    rate = (row.limits.cores or 1) * row.limits.clock_ghz * 1e3  # cycles of all multiprocessors in a microsecond
    atom = row.multiply_atom("wgmma.m64n256k16.bf16")
    products = row.limits.lane_rate if work.lanes else math.prod(atom.shape) / atom.cycles
    moved = sum(t.numel() * t.element_size() for t in tensors)
    return max(work.flops / (rate * 2 * products), moved / (rate * row.limits.far_rate))


def measured(work: Work, candidates: list[Candidate]) -> Row:
    """Prints the line of a problem, before it those of its candidates if there are several."""
    tensors, library, wanted = work.tensors()
    library()
    ours = []
    for said, plan, _ in candidates:
        tensors[-1].fill_(math.nan if tensors[-1].is_floating_point() else 99)
        made = kernel_for(work.kernel, work.sizes, target="gpu", plan=plan)
        names = [a.name for a in made.module.host.args]
        launch = made.bind(dict(zip(names, tensors, strict=True)))
        launch()
        error = difference(tensors[-1], wanted())
        if not error < (1e-4 if work.lanes else 0.01):
            print(f"WRONG {work.name} {error} {said}")
        ours.append(launch)
    theirs, *took = microseconds(library, *ours)
    if len(candidates) > 1:
        for (said, _, predicted), us in zip(candidates, took, strict=True):
            print(f"    {us:8.2f} predicted {predicted:8.2f}  {said}")
    said, _, predicted = candidates[0]
    row = Row(work.name, work.flops, theirs, tuple(took), said, predicted, floor_of(work, tensors))
    print(row, flush=True)
    return row


def all_measured(wanted: list[tuple[str, int, list[Candidate]]]) -> list[Row]:
    """The rows of these problems, measured in this process."""
    torch.backends.cudnn.benchmark = True
    return [measured(WORKS[kind][number], candidates) for kind, number, candidates in wanted]


def summed_up(kind: str, rows: list[Row]) -> None:
    """The geometric mean, the worst first, and how the model fared."""
    mean = math.exp(sum(math.log(r.ratio) for r in rows) / len(rows))
    print(f"{kind}: geometric mean {mean:.3f}; worst first:")
    for row in sorted(rows, key=lambda r: r.ratio)[:8]:
        print(f"    {row.ratio:5.3f}, {row.floor / row.took[0]:4.0%} of the floor, {row.name}")
    predicted = [r.predicted / r.took[0] for r in rows]
    print(
        f"{kind}: predicted / measured: median {median(predicted):.2f}, from "
        f"{min(predicted):.2f} to {max(predicted):.2f}; the chosen plan takes "
        f"{median(r.distance for r in rows):.3f} of the best candidate's time (median), at most "
        f"{max(r.distance for r in rows):.3f}"
    )


def main() -> None:
    """All lines, and the geometric mean of each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(WORKS))
    parser.add_argument("--plans", type=int, default=1)
    parser.add_argument("--only", default="", help="a regular expression that a problem's name matches")
    parser.add_argument("--processes", type=int, default=1, help="of so many, the median times count")
    options = parser.parse_args()
    wanted = [
        (kind, n, options.plans)
        for kind in options.kinds
        for n, work in enumerate(WORKS[kind])
        if re.search(options.only, work.name)
    ]
    fresh = get_context("spawn")
    with fresh.Pool() as pool:
        found = pool.starmap(plans, wanted)
    works = [(kind, n, candidates) for (kind, n, _), candidates in zip(wanted, found, strict=True)]
    by_process: list[list[Row]] = []
    for _ in range(options.processes):
        with fresh.Pool(1) as pool:
            by_process.append(pool.apply(all_measured, (works,)))
    rows = [Row.middle(same) for same in zip(*by_process, strict=True)]
    if options.processes > 1:
        print(f"the medians of {options.processes} processes:", *rows, sep="\n")
    for kind in options.kinds:
        if of_kind := [r for r, (k, _, _) in zip(rows, wanted, strict=True) if k == kind]:
            summed_up(kind, of_kind)


if __name__ == "__main__":
    main()
