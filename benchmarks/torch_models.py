"""Whole networks in PyTorch, with their modules swapped: right, one graph, and how fast beside eager and Inductor.

    python benchmarks/torch_models.py [--small] [--dtypes f32,bf16] [--only NAME] [--batch N] [--image N] [--length N]
                                      [--threads N] [--rounds N] [--device cuda] [--contiguous] [--seed N]

Four ways to run each network, in eval mode and without gradients: (a) eager, (b) torch.compile with frozen weights
(Inductor), (c) `tilewright.torch.replace`d, (d) that one inside torch.compile(fullgraph=True). First each result is
compared with eager in float64, of the same weights: the error is the largest difference by the largest value. Then all
take turns; figures are medians. Needs the extra `torch`, and a C++ compiler for Inductor on CPUs.
"""

from __future__ import annotations

import argparse
import copy
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
WAYS = {"eager": "a", "frozen": "b", "replaced": "c", "compiled": "d"}


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="smaller networks and arguments: a minute on two cores")
    parser.add_argument("--dtypes", default="f32,bf16", metavar="NAMES")
    parser.add_argument("--only", default="", metavar="TEXT", help="networks whose name contains it")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--image", type=int, help="height and width of images")
    parser.add_argument("--length", type=int, help="of Llama's sequence")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--contiguous", action="store_true", help="images contiguous, not channels last")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", action="store_true", help="list every module that is not swapped")
    given = parser.parse_args()
    usual = (
        {"batch": 1, "image": 96, "length": 64, "rounds": 5}
        if given.small
        else {"batch": 8, "image": 224, "length": 512, "rounds": 7}
    )
    for name, value in usual.items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    return given


def milliseconds(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Return the milliseconds of one call, until its result is there."""
    wait()
    before = perf_counter()
    call()
    wait()
    return 1e3 * (perf_counter() - before)


def compiled_ways(model: Any, replaced: Any, x: Any) -> tuple[dict[str, Callable[[], Any]], int]:
    """The four ways as calls, compiled, and how many graphs the last one is made of."""
    import torch
    from torch._dynamo.utils import counters
    from torch._inductor import config

    ways = {"eager": lambda: model(x)}
    has_inductor = x.is_cuda or shutil.which("c++") is not None or shutil.which("g++") is not None
    if has_inductor:
        torch._dynamo.reset()
        frozen = torch.compile(copy.deepcopy(model))
        with config.patch(freezing=True):
            frozen(x)
        ways["frozen"] = lambda: frozen(x)
    ways["replaced"] = lambda: replaced(x)
    counters.clear()
    whole = torch.compile(replaced, fullgraph=True, backend="inductor" if has_inductor else "aot_eager")
    whole(x)
    ways["compiled"] = lambda: whole(x)
    return ways, counters["stats"]["unique_graphs"]


def error(result: Any, exact: Any) -> float:
    """The largest difference by the largest value."""
    return float((result.double() - exact).abs().max() / exact.abs().max())


def kept_lines(report: Any, at_length: bool) -> list[str]:
    """Return lines on modules that were not swapped, and why: counted by the reason, unless each is to be listed."""
    if at_length:
        return [f"kept {path or 'the model'}: {why}" for path, why in report.kept.items()]
    counts = Counter(report.kept.values())
    return [f"kept {count} {'module' if count == 1 else 'modules'}: {why}" for why, count in counts.items()]


def measure(network: Any, dtype: str, given: argparse.Namespace) -> list[str]:
    """Prints a network's row for an element type; gives lines on what was swapped in it and what was not."""
    import torch
    from torch_networks import prepared

    import tilewright.torch

    model, x = prepared(network, given.seed)
    kind = getattr(torch, DTYPES[dtype])
    model, x = model.to(given.device, kind), x.to(given.device, kind)
    if x.dim() == 4 and not given.contiguous:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    wait = torch.cuda.synchronize if given.device == "cuda" else lambda: None
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        report = tilewright.torch.replace(model)
        before = perf_counter()
        ways, graphs = compiled_ways(model, report.model, x)
        errors = {name: error(call(), exact) for name, call in ways.items()}
        seconds = perf_counter() - before
        rounds = [{name: milliseconds(call, wait) for name, call in ways.items()} for _ in range(given.rounds)]
    times = {name: median(each[name] for each in rounds) for name in ways}
    better = min(times[name] for name in ("eager", "frozen") if name in times)
    name = f"{network.name} {'x'.join(map(str, network.shape))} {dtype}"
    row = [name]
    row += [f"{times[name]:.1f}" if name in times else "-" for name in WAYS]
    row += [f"{better / times[name]:.2f}" for name in ("replaced", "compiled")]
    row += [f"{errors[name]:.1e}" if name in errors else "-" for name in WAYS]
    print(f"| {' | '.join([*row, str(graphs)])} |", flush=True)
    swapped = f"{name}: {str(report).splitlines()[0]}; compiled and checked in {seconds:.0f} s"
    return [swapped, *(f"  {line}" for line in kept_lines(report, given.kept))]


def main() -> None:
    """Prints the table."""
    given = options()
    os.environ["TILEWRIGHT_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(given.threads)
    import torch
    from torch_networks import Sizes, networks

    torch.set_num_threads(given.threads)
    if given.device == "cpu":
        from tilewright.targets.cpu.host import host_machine

        place = f"{host_machine().name}, {given.threads} threads"
        if shutil.which("c++") is None and shutil.which("g++") is None:
            print("Inductor is left out: there is no C++ compiler; (d) is compiled by aot_eager", file=sys.stderr)
    else:
        place = torch.cuda.get_device_name()
    print(f"{place}, torch {torch.__version__}; milliseconds, ratios to the better of a and b, errors, graphs of d\n")
    print(
        "| network | a eager | b frozen | c replaced | d compiled | c ratio | d ratio | a error | b | c | d | graphs |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    lines = []
    for dtype in given.dtypes.split(","):
        for network in networks(Sizes(given.batch, given.image, given.length, given.small)):
            if given.only.lower() in network.name.lower():
                lines += measure(network, dtype, given)
    print("", *lines, sep="\n")


if __name__ == "__main__":
    main()
