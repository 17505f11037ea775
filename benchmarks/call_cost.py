"""The cost of a plain call above a bound launch, and how long a program takes from its import to its first result.

    python benchmarks/call_cost.py            # all tables
    python benchmarks/call_cost.py calls
    python benchmarks/call_cost.py operators  # those of torch beside empty ones of the same schemas (needs torch)
    python benchmarks/call_cost.py faults    # page faults of calls that make an output of 3 MB
    python benchmarks/call_cost.py import 9  # so many processes of each kind

All times are CPU time of the process, all its threads (`time.process_time`): workers that spin between launches count
too, and TILEWRIGHT_THREADS=1 shows what the caller's own thread does. Calls are timed in batches, the kinds of
one row in turn within a round, and the medians over rounds are shown. Rows of tensors need torch. Programs are fresh
processes, with an empty cache and with a full one; the time to import numpy and llvmlite is measured in the same
process, before Tilewright's.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from itertools import cycle
from statistics import median
from time import process_time
from typing import Any

BATCH, ROUNDS = 500, 40
BARS_US = {"plain": 5.0, "layer": 10.0}
OPERATOR_BAR = 2.0
SIZES = 40
"""How many sizes the calls of a dynamic kernel take turns with."""
BAR_MS = 150.0
PROGRAMS = {
    "kernel, 16 elements": """
import tilewright.lang as tkl, tilewright.wave as tkw
N = tkl.sym.N
@tkw.wave()
def double(x: tkl.Memory[N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32], y: tkl.Memory[N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32]):
    tkw.write(tkw.read(x) + tkw.read(x), y)
assert (tilewright.compile(double)(np.ones(16, np.float32)) == 2).all()
""",
    "matmul 8x8": "assert (tilewright.matmul(*2 * [np.ones((8, 8), np.float32)]) == 8).all()",
    "Conv2d 1x8x8x8": """
layer = tilewright.Conv2d(np.ones((8, 3, 3, 8), np.float32), padding=1)
assert layer(np.ones((1, 8, 8, 8), np.float32))[0, 4, 4, 0] == 72
""",
}
MEASURED = """
import json, resource, sys, time
start = time.process_time()
import numpy as np, llvmlite.binding
others = time.process_time()
import tilewright
exec(sys.argv[1])
end = time.process_time()
parts = [n for n in sys.modules if n.startswith("tilewright")]
folders = ("plan", "rewrite", "lower", "transform", "driver")
planner = [n for n in parts if n.startswith(tuple(f"tilewright.{folder}" for folder in folders))]
print(json.dumps({"others": others - start, "ours": end - others, "modules": len(parts), "planner": len(planner)}))
"""


def per_call(runs: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """CPU seconds of a call of each: the median of batches, which take turns."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            before = process_time()
            for _ in range(BATCH):
                run()
            taken[name].append((process_time() - before) / BATCH)
    return {name: median(samples) for name, samples in taken.items()}


def rows() -> dict[str, tuple[str, dict[str, Callable[[], Any]]]]:
    """Each row: which bar holds for it; the bound launch and the plain calls."""
    import numpy as np

    import tilewright
    import tilewright.lang as tkl
    import tilewright.wave as tkw

    count = tkl.sym.N

    @tkw.wave()
    def double(
        x: tkl.Memory[count, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
        y: tkl.Memory[count, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
    ) -> None:
        tkw.write(tkw.read(x) + tkw.read(x), y)

    kernel = tilewright.compile(double)
    x, y = np.ones(16, np.float32), np.empty(16, np.float32)
    product = tilewright.compile(tilewright.kernels.gemm("nn", "f32"))
    a, c = np.ones((8, 8), np.float32), np.empty((8, 8), np.float32)
    linear = tilewright.Linear(a)
    conv = tilewright.Conv2d(np.ones((8, 3, 3, 8), np.float32), np.ones(8, np.float32), padding=1)
    image, filtered = np.ones((1, 8, 8, 8), np.float32), np.empty((1, 8, 8, 8), np.float32)
    transposed, sliced = a.T, np.ones((8, 16), np.float32)[:, ::2]
    dynamic = tilewright.compile(double, dynamic=[count])
    several = cycle([np.ones(n, np.float32) for n in range(1, SIZES + 1)])
    tensors = _tensor_rows(product, linear, conv) if find_spec("torch") else {}
    return {
        "kernel, 16 elements": (
            "plain",
            {"bound": kernel.bind(x, y), "output given": lambda: kernel(x, y), "output made": lambda: kernel(x)},
        ),
        "gemm kernel 8x8": (
            "plain",
            {
                "bound": product.bind(a, a, c),
                "output given": lambda: product(a, a, c),
                "output made": lambda: product(a, a),
            },
        ),
        "matmul 8x8": (
            "plain",
            {"bound": product.bind(a, a, c), "output made": lambda: tilewright.matmul(a, a)},
        ),
        "gemm kernel, transposed": (
            "plain",
            {"bound": product.bind(transposed, a, c), "output made": lambda: product(transposed, a)},
        ),
        "gemm kernel, sliced": (
            "plain",
            {
                "bound": product.bind(a, sliced, c),
                "output given": lambda: product(a, sliced, c),
                "output made": lambda: product(a, sliced),
            },
        ),
        "matmul, transposed": (
            "plain",
            {"bound": product.bind(a, transposed, c), "output made": lambda: tilewright.matmul(a, transposed)},
        ),
        f"dynamic, {SIZES} sizes": (
            "plain",
            {"bound": dynamic.bind(x, y), "output made": lambda: dynamic(next(several))},
        ),
        "Linear 8x8": ("layer", {"bound": linear.bind(a, c), "output made": lambda: linear(a)}),
        "Conv2d 1x8x8x8": ("layer", {"bound": conv.bind(image, filtered), "output made": lambda: conv(image)}),
        **tensors,
    }


def _tensor_rows(product: Any, linear: Any, conv: Any) -> dict[str, tuple[str, dict[str, Callable[[], Any]]]]:
    """The rows of torch's tensors on the CPU."""
    import torch

    import tilewright

    a, c = torch.ones(8, 8), torch.empty(8, 8)
    transposed, image, filtered = a.T, torch.ones(1, 8, 8, 8), torch.empty(1, 8, 8, 8)
    follows = tilewright.Linear(torch.ones(8, 8))
    return {
        "gemm kernel, tensors": (
            "plain",
            {
                "bound": product.bind(a, a, c),
                "output given": lambda: product(a, a, c),
                "output made": lambda: product(a, a),
            },
        ),
        "the same, transposed": (
            "plain",
            {"bound": product.bind(transposed, a, c), "output made": lambda: product(transposed, a)},
        ),
        "matmul, tensors": (
            "plain",
            {"bound": product.bind(a, a, c), "output made": lambda: tilewright.matmul(a, a)},
        ),
        "Linear, tensors": ("layer", {"bound": linear.bind(a, c), "output made": lambda: linear(a)}),
        "Linear of a tensor": ("layer", {"bound": follows.bind(a, c), "output made": lambda: follows(a)}),
        "Conv2d, tensors": ("layer", {"bound": conv.bind(image, filtered), "output made": lambda: conv(image)}),
    }


def operators(library: Any) -> dict[str, dict[str, Callable[[], Any]]]:
    """Each operator of torch, and an empty one of `library` with the same schema and arguments."""
    import torch

    import tilewright
    import tilewright.torch

    def row(operator: Any, *args: Any) -> dict[str, Callable[[], Any]]:
        schema = operator.default._schema
        name = f"tilewright_empty::{schema.name.split('::')[1]}"
        if not hasattr(torch.ops.tilewright_empty, schema.name.split("::")[1]):
            torch.library.define(name, str(schema)[str(schema).index("(") :], lib=library)
            one = lambda x, *_: torch.empty_like(x)  # noqa: E731
            two = lambda x, *_: (torch.empty_like(x), torch.empty_like(x))  # noqa: E731
            make = one if len(schema.returns) == 1 else two
            torch.library.impl(name, "CompositeExplicitAutograd", make, lib=library)
        empty = getattr(torch.ops.tilewright_empty, schema.name.split("::")[1])
        return {"empty": lambda: empty(*args), "ours": lambda: operator(*args)}

    of_kernel = tilewright.torch.operator(tilewright.kernels.softmax("f32"), "softmax_of_call_cost")
    ours, a, batch = torch.ops.tilewright, torch.ones(8, 8), torch.ones(1, 8, 8)
    image, weight, of_channels, heads = (
        torch.ones(1, 8, 8, 8),
        torch.ones(8, 8, 3, 3),
        torch.ones(8),
        torch.ones(1, 1, 8, 8),
    )
    geometry = ([1, 1], [1, 1], [1, 1], 1)
    attended = (heads, heads, heads, heads, heads[:, :, 0], heads[:, :, 0], None, False, None)
    return {
        "a kernel": row(of_kernel, a),
        "matmul": row(ours.matmul, a, a),
        "bmm": row(ours.bmm, batch, batch),
        "linear": row(ours.linear, a, a),
        "linear, kept": row(ours.linear, a, a, None, None, True),
        "conv1d": row(ours.conv1d, batch, torch.ones(8, 8, 3), None, [1], [1], [1], 1),
        "conv2d": row(ours.conv2d, image, weight, None, *geometry),
        "conv2d, kept": row(ours.conv2d, image, weight, None, *geometry, None, True),
        "conv3d": row(ours.conv3d, image[..., None], weight[..., None], None, [1] * 3, [1, 1, 0], [1] * 3, 1),
        "conv_image_gradient": row(ours.conv_image_gradient, image, weight, [8, 8], *geometry),
        "conv_filter_gradient": row(ours.conv_filter_gradient, image, image, [3, 3], *geometry),
        "max_pool1d": row(ours.max_pool1d, batch, [3], [2], [1], [1]),
        "max_pool2d": row(ours.max_pool2d, image, [3, 3], [2, 2], [1, 1], [1, 1]),
        "max_pool3d": row(ours.max_pool3d, image[..., None], [3, 3, 1], [2, 2, 1], [1, 1, 0], [1] * 3),
        "adaptive_avg_pool1d": row(ours.adaptive_avg_pool1d, batch, [1]),
        "adaptive_avg_pool2d": row(ours.adaptive_avg_pool2d, image, [1, 1]),
        "adaptive_avg_pool3d": row(ours.adaptive_avg_pool3d, image[..., None], [1] * 3),
        "layer_norm": row(ours.layer_norm, a, [8], of_channels, of_channels, 1e-5),
        "rms_norm": row(ours.rms_norm, a, [8], of_channels, 1e-5),
        "group_norm": row(ours.group_norm, image, 2, of_channels, of_channels, 1e-5),
        "softmax": row(ours.softmax, a, 1),
        "attention": row(ours.attention, heads, heads, heads, None, False, None),
        "layer_norm_gradient": row(ours.layer_norm_gradient, a, of_channels, a, [8], 1e-5),
        "layer_norm_weight_gradient": row(ours.layer_norm_weight_gradient, a, a, [8], 1e-5),
        "rms_norm_gradient": row(ours.rms_norm_gradient, a, of_channels, a, [8], 1e-5),
        "rms_norm_weight_gradient": row(ours.rms_norm_weight_gradient, a, a, [8], 1e-5),
        "group_norm_gradient": row(ours.group_norm_gradient, image, of_channels, image, 2, 1e-5),
        "group_norm_weight_gradient": row(ours.group_norm_weight_gradient, image, image, 2, 1e-5),
        "softmax_gradient": row(ours.softmax_gradient, a, a, 1),
        "attention_sums": row(ours.attention_sums, heads, heads, None, False, None),
        "attention_query_gradient": row(ours.attention_query_gradient, *attended),
        "attention_key_gradient": row(ours.attention_key_gradient, *attended),
    }


def show_operators() -> None:
    """Prints a row for each operator of torch."""
    if find_spec("torch") is None:
        print("operators: torch is not installed")
        return
    print(f"{'an operator, us of CPU time':<32}{'empty':>9}{'ours':>9}{'times':>8}{'bar':>6}")
    import torch

    library = torch.library.Library("tilewright_empty", "FRAGMENT")  # its operators live as long as it
    for name, runs in operators(library).items():
        times = {kind: 1e6 * seconds for kind, seconds in per_call(runs).items()}
        ratio = times["ours"] / times["empty"]
        print(f"{name:<32}{times['empty']:>9.2f}{times['ours']:>9.2f}{ratio:>8.2f}{OPERATOR_BAR:>6.0f}")


def show_calls() -> None:
    """Prints a row for each kind of call."""
    print(f"{'a call, us of CPU time':<24}{'bound':>9}{'output given':>14}{'output made':>13}{'above':>8}{'bar':>6}")
    for name, (bar, runs) in rows().items():
        times = {kind: 1e6 * seconds for kind, seconds in per_call(runs).items()}
        given = f"{times['output given']:.2f}" if "output given" in times else ""
        above = max(times.values()) - times["bound"]
        print(
            f"{name:<24}{times['bound']:>9.2f}{given:>14}{times['output made']:>13.2f}{above:>8.2f}{BARS_US[bar]:>6.0f}"
        )


def show_faults() -> None:
    """Prints the page faults of calls that make an output of 3 MB."""
    import numpy as np

    import tilewright

    a, b = np.ones((1024, 8), np.float32), np.ones((8, 768), np.float32)
    product = tilewright.compile(tilewright.kernels.gemm("nn", "f32"))
    for name, run in {"gemm kernel": lambda: product(a, b), "matmul": lambda: tilewright.matmul(a, b)}.items():
        last = [run() for _ in range(5)][:2]  # a program holds some results while it asks for the next
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for turn in range(50):
            last[turn % 2] = run()
        faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 50
        print(f"{name}, a fresh output of 3 MB: {faults:.1f} page faults a call")


def show_imports(samples: int) -> None:
    """Prints a row for each program: medians over processes."""
    shown = ("cold", "others", "hit", "modules", "planner", "bar")
    print(f"{'import to result, ms':<24}" + "".join(f"{name:>9}" for name in shown))
    for name, text in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as folder:
            cold = measured(text, folder)
            hits = [measured(text, folder) for _ in range(samples)]
        others, ours = (1e3 * median(h[part] for h in hits) for part in ("others", "ours"))
        counts = f"{hits[0]['modules']:>9.0f}{hits[0]['planner']:>9.0f}"
        print(f"{name:<24}{1e3 * cold['ours']:>9.0f}{others:>9.0f}{ours:>9.0f}{counts}{BAR_MS:>9.0f}")
    print("others: importing numpy and llvmlite; planner: modules of plan/ and of the lowering that a hit imports")


def measured(text: str, folder: str) -> dict[str, float]:
    """The output of a fresh process; `folder` is its cache. Its byte code is kept, as that of installed packages is."""
    variables = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    command, variables["TILEWRIGHT_CACHE_DIR"] = [sys.executable, "-c", MEASURED, text], folder
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, check=True)
    seconds: dict[str, float] = json.loads(done.stdout)
    return seconds


def main() -> None:
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    if asked in ("", "calls"):
        show_calls()
    if asked in ("", "operators"):
        show_operators()
    if asked in ("", "faults"):
        show_faults()
    if asked in ("", "import"):
        show_imports(int(sys.argv[2]) if len(sys.argv) > 2 else 7)


if __name__ == "__main__":
    main()
