"""Each kernel of `every_program.py`, made small, launched once: a program to be run under compute-sanitizer.

    compute-sanitizer --tool memcheck|racecheck python benchmarks/gpu_sanitized.py [--most 264] [--only REGEX]

Every size above --most becomes that, and batches become 2. PyTorch is not needed, and no result is compared here. Each
row prints its name and the way in which it is done, so that an error that the sanitizer reports below has its kernel.
"""

from __future__ import annotations

import argparse
import re
import warnings
from typing import Any

import numpy as np
from every_program_rows import Row, every_row
from gpu_random import path_of

from tilewright.compiler.native import kernel_for
from tilewright.errors import SlowPlanWarning, TilewrightError
from tilewright.runtime.device_arrays import DeviceArray, packed_steps
from tilewright.targets.nvidia import driver

BATCHES = ("B", "H", "KV", "G")


def small_sizes(row: Row, most: int) -> dict[str, int]:
    """The sizes of a row, none above `most`, with few batches and heads."""
    return {name: min(size, 2 if name in BATCHES else most) for name, size in row.sizes.items()}


def launch(row: Row, most: int) -> str:
    """Compile a row for small sizes, launch it once on random numbers, and return the way in which it is done."""
    kernel = kernel_for(row.make(), small_sizes(row, most), target="gpu:hopper")
    rng = np.random.default_rng(7)
    arguments: dict[str, DeviceArray] = {}
    for argument in kernel.module.host.args:
        shape = [int(n) for n in argument.type.shape]
        numbers = rng.integers(-3, 4, shape).astype(argument.type.dtype.numpy)
        arguments[argument.name] = on_device(numbers)
    kernel.bind(arguments)()
    return path_of(kernel)


def on_device(array: np.ndarray[Any, np.dtype[Any]]) -> DeviceArray:
    """A copy of an array in memory of its own, so that an access beside it is seen."""
    device = driver.device()
    assert not isinstance(device, str), device
    memory = driver.OwnedMemory(device, array.nbytes, "an argument")
    device.check(device.cu.cuMemcpyHtoD(memory.pointer, array.ctypes.data, array.nbytes), "a copy")
    return DeviceArray(memory.pointer, array.shape, packed_steps(array.shape), array.dtype, memory)


def main() -> None:
    """Launch the rows one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=264)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore", SlowPlanWarning)
    rows = [row for row in every_row() if re.search(options.only, row.name)]
    refused = 0
    for row in rows:
        try:
            print(f"{row.name}: {launch(row, options.most)}", flush=True)
        except TilewrightError as fault:
            refused += 1
            print(f"{row.name}: {type(fault).__name__}: {str(fault).splitlines()[0]}", flush=True)
    print(f"{len(rows) - refused} kernels launched, {refused} refused")


if __name__ == "__main__":
    main()
