"""Kernels that memory bounds on a Hopper GPU, beside PyTorch and the memory's floor.

`python benchmarks/gpu_rowwise.py [softmax transpose ...] [--lengths 100 333 ...] [--plans "waves 4" "waves 16" ...]`
prints one line a kernel: microseconds of theirs and ours in CUDA graphs, the medians of interleaved replays, the
share of the floor (bytes read and written at 4.8 TB/s) and the ratio. With --lengths, there are 16 million elements
in rows of these lengths, instead of the two shapes. With --plans, variants of the chosen plan are measured too, each a
statement that takes the place of the plan's own, such as `waves 4` or `task M 2`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import torch
from gpu_shapes import ROWS
from hopper import difference, microseconds

from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import TilewrightError

BYTES_A_SECOND = 4.8e12
ELEMENTS = 1 << 24
"""Of matrices with rows of given lengths."""
TYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
Tensors = list[Any]


def _rows(m: int, n: int, kind: torch.dtype) -> Any:
    return torch.randn(m, n, device="cuda", dtype=kind)


KERNELS: dict[str, tuple[Callable[[str], Any], str]] = {
    "softmax": (kernels.softmax, "same"),
    "layer_norm": (kernels.layer_norm, "same"),
    "rms_norm": (kernels.rms_norm, "same"),
    "row_sums": (lambda kind: kernels.reduction("sum", "columns", kind), "rows"),
    "column_sums": (lambda kind: kernels.reduction("sum", "rows", kind), "columns"),
    "transpose": (lambda kind: kernels.transpose((1, 0), kind), "turned"),
    "gelu": (lambda kind: kernels.activation("gelu", kind), "same"),
    "gated_silu": (kernels.gated_silu, "same"),
}


def sizes_of(name: str, m: int, n: int) -> dict[str, int]:
    """The kernel's sizes by name."""
    return {"D0": m, "D1": n} if name == "transpose" else {"M": m, "N": n}


def tensors(name: str, kind: torch.dtype, m: int, n: int) -> tuple[Tensors, Callable[[], Any]]:
    """The arguments, the result last, and PyTorch's call."""
    functional = torch.nn.functional
    x = _rows(m, n, kind)
    form = {"rows": (m,), "columns": (n,), "turned": (n, m), "same": (m, n)}[KERNELS[name][1]]
    y = torch.full(form, math.nan, device="cuda", dtype=kind)
    gain, shift = (torch.randn(n, device="cuda", dtype=kind) for _ in range(2))
    gate = _rows(m, n, kind) if name == "gated_silu" else x
    theirs: dict[str, tuple[Tensors, Callable[[], Any]]] = {
        "softmax": ([x], lambda: torch.softmax(x, -1)),
        "layer_norm": ([x, gain, shift], lambda: functional.layer_norm(x, (n,), gain, shift, 1e-5)),
        "rms_norm": ([x, gain], lambda: functional.rms_norm(x, (n,), gain, 1e-6)),
        "row_sums": ([x], lambda: x.sum(1)),
        "column_sums": ([x], lambda: x.sum(0)),
        "transpose": ([x], lambda: x.t().contiguous()),
        "gelu": ([x], lambda: functional.gelu(x)),
        "gated_silu": ([gate, x], lambda: functional.silu(gate) * x),
    }
    given, call = theirs[name]
    return [*given, y], call


def changed(plan: str, statements: str) -> str:
    """A plan with other statements: `waves 4`, or `task M 2` for the width of a task along M."""
    lines = [line for line in plan.splitlines() if line]
    for said in statements.split(","):
        words = said.split()
        if words[0] == "waves":
            lines = [line for line in lines if not line.startswith("waves ")]
            lines += [said.strip()] if words[1] != "1" else []
        else:
            start = f"axis {words[1]} = "
            lines = [f"{x.split(': ')[0]}: task {words[2]}" if x.startswith(start) else x for x in lines]
    return "\n".join(lines)


Job = tuple[str, str, int, int]


def made(job: Job, variants: list[str]) -> list[tuple[str, str]]:
    """(what differs, the plan) of the chosen plan and of variants that can be done; their code is made and kept."""
    name, kind, m, n = job
    kernel, sizes = KERNELS[name][0](kind), sizes_of(name, m, n)
    first = kernel_for(kernel, sizes, target="gpu:hopper")
    first.text("asm")
    found = [("", first.text("plan"))]
    for said in variants:
        plan = changed(found[0][1], said)
        try:
            kernel_for(kernel, sizes, target="gpu:hopper", plan=plan).text("asm")
        except TilewrightError as fault:
            print(f"    {job} {said}: {str(fault).splitlines()[0]}")
            continue
        found.append((said, plan))
    return found


def measured(job: Job, plans: list[tuple[str, str]]) -> tuple[float, float]:
    """Prints the line of a kernel; gives its share of the floor, and the ratio."""
    name, kind, m, n = job
    given, library = tensors(name, TYPES[kind], m, n)
    wanted, ours, wrong = library(), [], ""
    for _, plan in plans:
        given[-1].fill_(math.nan)
        found = kernel_for(KERNELS[name][0](kind), sizes_of(name, m, n), target="gpu", plan=plan)
        launch = found.bind(dict(zip([a.name for a in found.module.host.args], given, strict=True)))
        launch()
        torch.cuda.synchronize()
        error = difference(given[-1], wanted)
        wrong += "" if error < (1e-2 if kind == "bf16" else 1e-5) else f" WRONG by {error:.1e}"
        ours.append(launch)
    theirs, *took = microseconds(library, *ours)
    floor = sum(t.numel() * t.element_size() for t in given) / BYTES_A_SECOND * 1e6
    best = min(range(len(took)), key=lambda i: took[i])
    others = " ".join(f"[{said}: {us:.1f}]" for (said, _), us in zip(plans[1:], took[1:], strict=True))
    said = plans[best][0] or "chosen"
    print(
        f"{name:12} {kind:4} {m:5}x{n:<5} theirs {theirs:7.1f} ours {took[0]:7.1f} us, "
        f"of the floor {floor / took[0]:5.3f} (theirs {floor / theirs:5.3f}), ratio {theirs / took[0]:5.2f}, "
        f"best {said} {others}{wrong}",
        flush=True,
    )
    return floor / took[0], theirs / took[0]


def mean(numbers: tuple[float, ...]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, numbers)) / len(numbers))


def main() -> None:
    """All lines, and the geometric means of the shares of the floor and of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernels", nargs="*", default=list(KERNELS))
    parser.add_argument("--lengths", nargs="*", type=int, default=[])
    parser.add_argument("--plans", nargs="*", default=[])
    options = parser.parse_args()
    shapes = [(max(1, ELEMENTS // n), n) for n in options.lengths] or ROWS
    jobs = [(name, kind, m, n) for name in options.kernels for m, n in shapes for kind in TYPES]
    with get_context("spawn").Pool() as pool:
        plans = pool.starmap(made, [(job, options.plans) for job in jobs])
    shares, ratios = zip(*(measured(job, found) for job, found in zip(jobs, plans, strict=True)), strict=True)
    print(f"geometric mean of the shares {mean(shares):.3f}, worst {min(shares):.3f}")
    print(f"geometric mean of the ratios {mean(ratios):.3f}, worst {min(ratios):.3f}")


if __name__ == "__main__":
    main()
