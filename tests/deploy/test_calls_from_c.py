"""Exported kernels called from C, where there is a C compiler: the same bits, from libc and pthread alone."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from c_programs import CC, STRICT, built, called, differing_arguments
from exported_kernels import CASES, arrays_for, compiled
from more_exported_kernels import ALL, FEW

import tilewright
from tilewright.kernels import gemm

pytestmark = pytest.mark.skipif(CC is None, reason="there is no C compiler (cc) on PATH")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FEW)
def test_c_gets_the_bits_of_the_compiled_kernel(name, tmp_path):
    """`benchmarks/calls_from_c.py` asks the same of all kernels."""
    assert differing_arguments(name, tmp_path) == []


def test_there_are_fifty_kernels_or_more_that_c_calls():
    assert len(ALL) >= 50
    assert set(CASES) <= set(ALL)


def test_a_pool_of_three_threads_is_used(tmp_path):
    files = tilewright.export(compiled("both"), tmp_path / "both")
    arrays = arrays_for(files.manifest, np.random.default_rng(8), {"M": 29})
    assert called(built(files, 3), arrays, [29])[1] == "2\n"  # of its three launches one has a single worker
    assert called(built(files, 1), arrays, [29])[1] == "0\n"


def test_a_shared_library_links_without_its_object(tmp_path):
    files = tilewright.export(compiled("gemm"), tmp_path / "libgemm.so")
    arrays = arrays_for(files.manifest, np.random.default_rng(9))
    found, _ = called(built(files, 3), arrays, [], LD_LIBRARY_PATH=str(tmp_path))
    assert (found[2] == arrays[0] @ arrays[1]).all()


def test_c_is_told_what_is_wrong_with_a_size(tmp_path):
    files = tilewright.export(compiled("both"), tmp_path / "both")
    arrays = arrays_for(files.manifest, np.random.default_rng(8), {"M": 2})
    with pytest.raises(subprocess.CalledProcessError) as fault:
        called(built(files, 1), arrays, [5000])
    assert fault.value.stderr == "4 0: the size M must be from 1 to 4095\n"


def test_the_header_is_cplusplus_too(tmp_path):
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler (c++) on PATH")
    files = tilewright.export(compiled("both"), tmp_path / "both")
    (tmp_path / "use.cpp").write_text('#include "both.h"\nint main() { return both_message(0)[0]; }\n')
    flags = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
    program = str(tmp_path / "use")
    subprocess.run([compiler, *flags, str(tmp_path / "use.cpp"), str(files.code), "-o", program], check=True)
    subprocess.run([program], check=True)


def test_the_program_of_the_documentation_runs(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "deploying_c.md").read_text()
    (program,) = (part for part in re.findall(r"```c\n(.*?)```", text, re.DOTALL) if "int main" in part)
    (tmp_path / "caller.c").write_text(program)
    sizes = {"M": 4, "N": 3, "K": 2}
    files = tilewright.export(gemm("nn", "f32"), tmp_path / "product.o", sizes, name="product", constant=["b"])
    command = [CC, *STRICT, str(tmp_path / "caller.c"), str(files.code), "-o", str(tmp_path / "caller")]
    subprocess.run(command, check=True)
    done = subprocess.run([str(tmp_path / "caller")], capture_output=True, text=True, check=True)
    a, b = np.add.outer(np.arange(4), np.arange(2)), np.subtract.outer(-np.arange(2), -np.arange(3))
    assert [[float(n) for n in line.split()] for line in done.stdout.splitlines()] == (a @ b).tolist()
