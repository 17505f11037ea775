"""Whole networks in PyTorch, with their modules swapped: right, one graph, and how fast beside eager and Inductor.

    python benchmarks/torch_models.py [--small] [--type f32,bf16] [--seconds N] [--only NAME] [--batch N] [--image N]
                                      [--length N] [--threads N] [--device cuda] [--contiguous] [--seed N]
                                     [--ways a,b,c,d] [--budget SECONDS]

Four ways to run each network, in eval mode and without gradients: (a) eager, (b) torch.compile with frozen weights
(Inductor), (c) `tilewright.torch.replace`d, (d) that one inside torch.compile(fullgraph=True). First each result is
compared with eager in float64, of the same weights: the error is the largest difference by the largest value. Then all
take turns for some seconds; figures are medians. Last, the slowest ten operators of (c) are listed, beside the time of
eager's on the same shapes. Needs the extra `torch`, and a C++ compiler for Inductor on CPUs.

Each row is printed when it is known. With --budget, no network is begun that would end later, if it took as long as the
longest before it; those that are left out are named. --ways leaves out ways: b and d take most of the time, to compile.
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
from time import perf_counter, sleep
from typing import Any

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
LEAST_ROUNDS = 3
PAUSE = 0.02
"""Seconds without a call, after which threads that waited for work by spinning are asleep."""
HEADING = (
    "| network | a eager | b frozen | c replaced | d compiled | c ratio | d ratio | a error | b | c | d | graphs |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)
WAYS = {"eager": "a", "frozen": "b", "replaced": "c", "compiled": "d"}


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="smaller networks and arguments: a minute on two cores")
    parser.add_argument("--type", default="f32,bf16", metavar="NAMES", help="element types, of f32, bf16 and f16")
    parser.add_argument("--seconds", type=float, default=8.0, help="the four ways of a network take turns so long")
    parser.add_argument("--only", default="", metavar="TEXT", help="networks whose name contains it")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--image", type=int, help="height and width of images")
    parser.add_argument("--length", type=int, help="of Llama's sequence")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--contiguous", action="store_true", help="images contiguous, not channels last")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", action="store_true", help="list every module that is not swapped")
    parser.add_argument("--ways", default="a,b,c,d", metavar="LETTERS", help="ways to run; a and c always are")
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS", help="end within this time")
    given = parser.parse_args()
    if unknown := set(given.ways.split(",")) - set(WAYS.values()):
        parser.error(f"--ways {given.ways}: {', '.join(sorted(unknown))} is none of {', '.join(WAYS.values())}")
    usual = {"batch": 1, "image": 96, "length": 64} if given.small else {"batch": 8, "image": 224, "length": 512}
    for name in given.type.split(","):
        if name not in DTYPES:
            parser.error(f"--type {given.type}: {name!r} is none of {', '.join(DTYPES)}")
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


def in_turns(ways: dict[str, Callable[[], Any]], wait: Callable[[], None], seconds: float) -> dict[str, float]:
    """Return the median milliseconds of each way: they take turns for some seconds, `LEAST_ROUNDS` times at least.

    Before a way is timed, it waits until the threads of the way before it are asleep, and runs once untimed.
    """
    samples: dict[str, list[float]] = {name: [] for name in ways}
    end = perf_counter() + seconds
    while perf_counter() < end or len(samples["eager"]) < LEAST_ROUNDS:
        for name, call in ways.items():
            sleep(PAUSE)
            call()
            samples[name].append(milliseconds(call, wait))
    return {name: median(each) for name, each in samples.items()}


def compiled_ways(model: Any, replaced: Any, x: Any, letters: str) -> tuple[dict[str, Callable[[], Any]], int]:
    """The ways with these letters as calls, compiled, and how many graphs the last one is made of; a and c always."""
    import torch
    from torch._dynamo.utils import counters
    from torch._inductor import config

    ways = {"eager": lambda: model(x)}
    has_inductor = x.is_cuda or shutil.which("c++") is not None or shutil.which("g++") is not None
    if has_inductor and "b" in letters:
        torch._dynamo.reset()
        frozen = torch.compile(copy.deepcopy(model))
        with config.patch(freezing=True):
            frozen(x)
        ways["frozen"] = lambda: frozen(x)
    ways["replaced"] = lambda: replaced(x)
    if "d" not in letters:
        return ways, 0
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


def measure(network: Any, dtype: str, given: argparse.Namespace) -> None:
    """Prints a network's row for an element type, what was swapped in it and what not, and its slowest operators."""
    import torch
    from torch_networks import prepared
    from torch_slowest import slowest_lines

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
        ways, graphs = compiled_ways(model, report.model, x, given.ways)
        errors = {name: error(call(), exact) for name, call in ways.items()}
        seconds = perf_counter() - before
        times = in_turns(ways, wait, given.seconds)
    better = min(times[name] for name in ("eager", "frozen") if name in times)
    name = f"{network.name} {'x'.join(map(str, network.shape))} {dtype}"
    row = [name]
    row += [f"{times[name]:.1f}" if name in times else "-" for name in WAYS]
    row += [f"{better / times[name]:.2f}" if name in times else "-" for name in ("replaced", "compiled")]
    row += [f"{errors[name]:.1e}" if name in errors else "-" for name in WAYS]
    print(f"{HEADING}\n| {' | '.join([*row, str(graphs)])} |\n", flush=True)
    swapped = f"{name}: {str(report).splitlines()[0]}; compiled and checked in {seconds:.0f} s"
    print(swapped, *(f"  {line}" for line in kept_lines(report, given.kept)), "", sep="\n", flush=True)
    with torch.no_grad():
        slowest = slowest_lines(ways["replaced"], ways["eager"], given.device == "cuda")
    print(*slowest, "", sep="\n", flush=True)


def main() -> None:
    """Prints the tables of each network."""
    given, begun = options(), perf_counter()
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
    print(
        f"{place}, torch {torch.__version__}; milliseconds, ratios to the better of a and b, errors, graphs of d\n",
        flush=True,
    )
    rows = [
        (network, dtype)
        for dtype in given.type.split(",")
        for network in networks(Sizes(given.batch, given.image, given.length, given.small))
        if given.only.lower() in network.name.lower()
    ]
    longest = 0.0
    for place, (network, dtype) in enumerate(rows):
        start = perf_counter()
        if start - begun + longest > given.budget:
            names = ", ".join(f"{left.name} {kind}" for left, kind in rows[place:])
            print(f"left out, to end within {given.budget:.0f} s: {names}", flush=True)
            return
        measure(network, dtype, given)
        longest = max(longest, perf_counter() - start)


if __name__ == "__main__":
    main()
