"""One side of `old_new.py`: a process that imports one commit's tilewright and answers requests, one JSON line each.

| request                                  | answer                                                                |
|------------------------------------------|-----------------------------------------------------------------------|
| `{"do": "imported"}`                     | `{"file"}`: that of the tilewright that is imported                   |
| `{"do": "problems", "gpu": bool}`        | `{"problems": [...]}`, as data                                        |
| `{"do": "machines"}`                     | `{"machines": [name, whether it is a GPU], ...}`, those described     |
| `{"do": "plan", "problem", "machine"}`   | `{"digest", "predicted"}`: of the host and block text, microseconds   |
| `{"do": "prepare", "problem", "target"}` | `{"us"}` of a first launch; the launch is kept for samples            |
| `{"do": "sample", "seconds"}`            | `{"us"}`, the median of the launches that fit into that time          |

What is refused, or fails, is answered by `{"refused": why}`. Only `planned` and `launch_of` use what is not public of
tilewright; both commits must have it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from old_new_problems import Problem, cpu_problems, gpu_problems

LINE = 64
"""Bytes of a cache line."""
PLAIN_CALLS = 10
"""Launches between two waits for the GPU."""
TORCH_TYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn",
    "i8": "int8", "u8": "uint8", "i16": "int16", "i32": "int32", "i64": "int64",
}  # fmt: skip
Request = dict[str, Any]


def planned(problem: Problem, name: str) -> Any:
    """A kernel as a machine would do it, without machine code; "cpu" and "gpu" are the machines at hand."""
    from tilewright.compiler.native import kernel_for
    from tilewright.targets import registry

    at_hand = {"cpu": lambda: registry.native("cpu").machine, "gpu": lambda: registry.gpu_machine("gpu")}
    machine = at_hand[name]() if name in at_hand else registry.machine(name)
    return kernel_for(problem.kernel(), problem.sizes, machine=machine, constant=problem.constant)


def launch_of(problem: Problem, target: str) -> Callable[[], Any]:
    """A kernel bound to data on a target; constant arguments are packed."""
    from tilewright.compiler.native import kernel_for

    kernel = kernel_for(problem.kernel(), problem.sizes, target=target, constant=problem.constant)
    make = gpu_tensor if target == "gpu" else cpu_array
    arrays = {
        arg.name: make(tuple(map(int, arg.type.shape)), str(arg.type.dtype), arg.type.dtype.numpy, problem.highest)
        for arg in kernel.module.host.args
    }
    launch: Callable[[], Any] = kernel.bind(arrays)
    return launch


def cpu_array(shape: tuple[int, ...], _: str, dtype: Any, highest: int) -> Any:
    """Random data: a block of them, again and again, from the start of a cache line on.

    Vectors that cross lines take twice as long, and arrays of numpy begin anywhere: elsewhere for each side.
    """
    rng, size = np.random.default_rng(0), int(np.prod(shape))
    block = rng.integers(0, min(highest, 100) + 1 if np.dtype(dtype).itemsize == 1 else highest + 1, min(size, 1 << 20))
    if not np.issubdtype(dtype, np.integer):
        block = rng.standard_normal(block.size).astype(np.float32)
    data = np.resize(block.astype(dtype), shape)
    room = np.empty(data.nbytes + LINE, np.uint8)
    begin = -room.ctypes.data % LINE
    array = room[begin : begin + data.nbytes].view(data.dtype).reshape(shape)
    array[...] = data
    return array


def gpu_tensor(shape: tuple[int, ...], name: str, _: Any, highest: int) -> Any:
    """Random data on the GPU."""
    import torch

    torch.manual_seed(0)
    dtype = getattr(torch, TORCH_TYPES[name])
    if dtype.is_floating_point:
        return torch.randn(shape, device="cuda").to(dtype)
    return torch.randint(0, min(highest, 100) + 1 if dtype.itemsize == 1 else highest + 1, shape, device="cuda").to(
        dtype
    )


class Worker:
    """Answers requests; keeps the launch that was prepared last."""

    def __init__(self) -> None:
        self.timed: Callable[[], float] = lambda: 0.0
        """Runs the prepared launch once, or a graph of launches; seconds of one launch."""

    def answer(self, request: Request) -> Request:
        """The answer to a request."""
        do = request.pop("do")
        if "problem" in request:
            request["problem"] = Problem.read(request["problem"])
        try:
            answer: Request = getattr(self, do)(**request)
        except Exception as fault:  # the other commit may lack what it asks for; whatever it is, it is listed
            said = next((line.strip() for line in str(fault).splitlines() if line.strip()), "")
            return {"refused": f"{type(fault).__name__}: {said}"}
        return answer

    def imported(self) -> Request:
        """The folder of this process's tilewright."""
        import tilewright

        return {"file": tilewright.__file__}

    def problems(self, gpu: bool) -> Request:
        """All problems of a kind of machine."""
        return {"problems": [asdict(problem) for problem in (gpu_problems if gpu else cpu_problems)()]}

    def machines(self) -> Request:
        """The described machines, and whether each has waves of many lanes."""
        from tilewright.targets import registry

        return {"machines": [(name, registry.machine(name).lanes is not None) for name in registry.MACHINES]}

    def plan(self, problem: Problem, machine: str) -> Request:
        """A digest of all that the planner made: the host program and every block program."""
        kernel = planned(problem, machine)
        text = f"{kernel.text('host')}\n{kernel.text('block')}"
        predicted = re.search(r"predicted ([\d.]+) us", kernel.explain())
        digest = hashlib.sha256(text.encode()).hexdigest()
        return {"digest": digest, "predicted": float(predicted[1]) if predicted else None}

    def prepare(self, problem: Problem, target: str) -> Request:
        """Compiles, binds and warms up."""
        self.timed = lambda: 0.0  # the arrays of the last one are given back first
        launch = launch_of(problem, target)
        on_gpu = graph_of if problem.in_graph else plain_launches
        self.timed = on_gpu(launch) if target == "gpu" else lambda: _seconds(launch)
        self.timed()
        return {"us": self.timed() * 1e6}

    def sample(self, seconds: float) -> Request:
        """The median of the launches that fit into the time, one at least."""
        taken, end = [self.timed()], perf_counter() + seconds
        while perf_counter() < end:
            taken.append(self.timed())
        return {"us": median(taken) * 1e6}


def _seconds(launch: Callable[[], Any]) -> float:
    begin = perf_counter()
    launch()
    return perf_counter() - begin


def graph_of(launch: Callable[[], Any]) -> Callable[[], float]:
    """Seconds of one launch of a CUDA graph of them, by this checkout's module: the other commit may not have it."""
    path = Path(__file__).parents[1] / "src" / "tilewright" / "cli" / "cuda_graphs.py"
    spec = spec_from_file_location("cuda_graphs", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sampler: Callable[[], float] = module.graph_sampler(launch)
    return sampler


def plain_launches(launch: Callable[[], Any]) -> Callable[[], float]:
    """Seconds of one of some launches on a GPU, what the host does included."""
    import torch

    def timed() -> float:
        torch.cuda.synchronize()
        begin = perf_counter()
        for _ in range(PLAIN_CALLS):
            launch()
        torch.cuda.synchronize()
        return (perf_counter() - begin) / PLAIN_CALLS

    return timed


def main() -> None:
    """Answers until the requests end. What anything prints goes to stderr, so that only answers are read."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")  # a lost fast path shows in the time
    worker = Worker()
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
