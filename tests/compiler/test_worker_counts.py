"""How many workers a launch on a CPU gets: several only if they save more time than it takes to start them."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright import compile, kernels
from tilewright.compiler.native import kernel_for
from tilewright.targets.registry import machine as machine_named
from tilewright.targets.registry import native

NAMES = ("x86.avx512", "aarch64.neon")


def workers_of(name: str, extent: int, constant: tuple[str, ...] = (), sharing: int | None = None) -> list[str]:
    """The workers of each launch of an f32 GEMM of this extent on 16 cores; `sharing` replaces `sharing_cycles`."""
    row = machine_named(name)
    cycles = row.limits.sharing_cycles if sharing is None else sharing
    machine = replace(row, limits=replace(row.limits, cores=16, sharing_cycles=cycles))
    sizes = dict.fromkeys("MNK", extent)
    host = kernel_for(kernels.gemm("nn", "f32"), sizes, machine=machine, constant=constant).text("host")
    launches = [line for line in host.splitlines() if line.strip().startswith("launch")]
    return [line.rpartition(" ")[2] for line in launches]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("constant", [(), ("b",)])
def test_one_worker_does_all_tasks_of_a_small_kernel(name: str, constant: tuple[str, ...]) -> None:
    assert set(workers_of(name, 8, constant)) == {"1"}


@pytest.mark.parametrize("name", NAMES)
def test_all_workers_share_the_tasks_of_a_large_kernel(name: str) -> None:
    assert workers_of(name, 1024)[-1] == "16"


def test_small_kernels_are_shared_where_that_takes_no_time() -> None:
    assert workers_of("x86.avx512", 16, ("b",))[-1] == "1"
    assert int(workers_of("x86.avx512", 16, ("b",), sharing=0)[-1]) > 1


def test_open_sizes_tell_at_the_call_whether_workers_share() -> None:
    kernel = compile(kernels.activation("relu"), dynamic=["M"])
    for rows in (1, 7, 5000):
        x = np.arange(rows * 64, dtype=np.float32).reshape(rows, 64) - 100
        assert np.array_equal(kernel(x), np.maximum(x, 0))
    (launch,) = (line for line in kernel.text("host").splitlines() if line.strip().startswith("launch"))
    assert ">=" in launch or native("cpu").machine.limits.cores == 1
