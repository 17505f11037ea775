"""Convolutions of a list against PyTorch's prepacked oneDNN call, on this CPU, in one run.

    python benchmarks/against_onednn.py [--list resnet_50] [--mb 1] [--dt bf16] [--rounds 8] [--json FILE]

Needs torch. Weights are packed outside the timed region on both sides. Ours and theirs run in turn; the minimum of all
rounds counts for both. ratio = theirs / ours: above 1, ours is faster. Worst first, geometric mean last.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings

import ml_dtypes
import numpy as np
import torch

from tilewright.ops import Conv2d
from tilewright.problems import shape_list

FORMS = {"bf16": (np.dtype(ml_dtypes.bfloat16), torch.bfloat16), "f32": (np.dtype(np.float32), torch.float32)}


def shortest(run, least=0.004):
    """The shortest of a few calls."""
    best, start = math.inf, time.perf_counter()
    while True:
        before = time.perf_counter()
        run()
        after = time.perf_counter()
        best = min(best, after - before)
        if after - start > least:
            return best


def theirs(x, w, stride, padding, dilation, form):
    """The fastest prepacked form of PyTorch's convolution."""
    image = torch.from_numpy(x.astype(np.float32)).to(form).permute(0, 3, 1, 2)
    filters = torch.from_numpy(w.astype(np.float32)).to(form).permute(0, 3, 1, 2)
    held = filters.float().to_mkldnn(torch.bfloat16) if form is torch.bfloat16 else filters.to_mkldnn()
    packed = torch._C._nn.mkldnn_reorder_conv2d_weight(
        held, list(padding), list(stride), list(dilation), 1, list(image.shape)
    )
    call = torch.ops.mkldnn._convolution_pointwise
    return lambda: call(image, packed, None, list(padding), list(stride), list(dilation), 1, "none", [], "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", default="resnet_50")
    parser.add_argument("--mb", type=int, default=1)
    parser.add_argument("--dt", choices=FORMS, default="bf16")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    form, torch_form = FORMS[options.dt]
    rng = np.random.default_rng(0)
    rows, seen = [], set()
    for problem in shape_list(options.list, options.mb):
        if problem.groups != 1 or problem.rank != 2 or problem.canonical() in seen:
            continue
        seen.add(problem.canonical())
        n, c, *image = problem.x_shape
        f, r, s = problem.oc, *problem.k
        x = rng.standard_normal((n, *image, c)).astype(form)
        w = rng.standard_normal((f, r, s, c)).astype(form)
        stride, padding, dilation = tuple(problem.s), tuple(problem.p), tuple(d + 1 for d in problem.d)
        peer = theirs(x, w, stride, padding, dilation, torch_form)
        wanted = peer().float().permute(0, 2, 3, 1).numpy()
        before = time.perf_counter()
        layer = Conv2d(w, stride=stride, padding=padding, dilation=dilation)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kernel, out = layer.kernel(x)
        launch = layer.bind(x, out, kernel)
        compiled = time.perf_counter() - before
        launch()
        error = np.abs(out.astype(np.float64) - wanted).max() / np.sqrt((wanted.astype(np.float64) ** 2).mean())
        best = [math.inf, math.inf]
        for _ in range(options.rounds):
            for side, run in enumerate((launch, peer)):
                time.sleep(0.003)
                run()
                best[side] = min(best[side], shortest(run))
        rows.append(
            {
                "problem": problem.canonical(),
                "ours_us": best[0] * 1e6,
                "peer_us": best[1] * 1e6,
                "ratio": best[1] / best[0],
                "gflops": problem.ops / best[0] / 1e9,
                "compile_ms": compiled * 1e3,
                "error": error,
                "plan": str(kernel.choice.best),
            }
        )
        print(".", end="", flush=True)
    print()
    rows.sort(key=lambda row: row["ratio"])
    for row in rows:
        print(
            f"{row['ratio']:5.2f}x  ours {row['ours_us']:8.1f} us  theirs {row['peer_us']:8.1f} us  {row['gflops']:6.0f} GFLOP/s"
            f"  compile {row['compile_ms']:4.0f} ms  err {row['error']:.1e}  {row['problem']}  {row['plan']}"
        )
    mean = math.exp(sum(math.log(row["ratio"]) for row in rows) / len(rows))
    print(f"geometric mean of {len(rows)}: {mean:.2f}x")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
