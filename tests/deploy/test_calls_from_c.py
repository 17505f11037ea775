"""Exported kernels called from C, where there is a C compiler: the same bits, from libc and pthread alone."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from exported_kernels import CASES, SEVERAL, arrays_for, compiled, run_compiled

import tilewright
from tilewright.kernels import gemm

CC = shutil.which("cc")
pytestmark = pytest.mark.skipif(CC is None, reason="there is no C compiler (cc) on PATH")
STRICT = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"]
CALLER = Path(__file__).parent / "caller.c"


def built(files, threads: int, *, options: tuple[str, ...] = ("-nodefaultlibs", "-lc", "-lpthread")) -> Path:
    """A program that calls an exported kernel."""
    name, folder = files.manifest["name"], files.code.parent
    program = folder / f"call_{name}_{threads}"
    defined = [f"-DNAME={name}", f'-DHEADER="{files.header.name}"', f"-DTHREADS={threads}"]
    command = [CC, *STRICT, *defined, f"-I{folder}", str(CALLER), str(files.code), *options, "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True)
    return program


def called(program: Path, arrays: list[np.ndarray], sizes: list[int], **more: str) -> tuple[list[np.ndarray], str]:
    """What the program makes of arrays, and what it prints."""
    paths = [program.with_name(f"buffer{n}") for n in range(len(arrays))]
    for path, array in zip(paths, arrays, strict=True):
        path.write_bytes(array.tobytes())
    command = [str(program), *map(str, sizes), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=more)
    return [
        np.frombuffer(p.read_bytes(), a.dtype).reshape(a.shape) for p, a in zip(paths, arrays, strict=True)
    ], done.stdout


@pytest.mark.parametrize("name", CASES)
def test_c_gets_the_bits_of_the_compiled_kernel(name, tmp_path):
    own = compiled(name)
    files = tilewright.export(own, tmp_path / name, name=name)
    given = arrays_for(files.manifest, np.random.default_rng(8), SEVERAL.get(name))
    wanted = [a.copy() for a in given]
    run_compiled(own, wanted, SEVERAL.get(name))
    sizes = [SEVERAL[name][row["name"]] for row in files.manifest["sizes"]]
    for threads in (1, 3):
        found, _ = called(built(files, threads), given, sizes)
        for mine, theirs in zip(found, wanted, strict=True):
            assert mine.tobytes() == theirs.tobytes()


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
    text = (Path(__file__).parents[2] / "docs" / "deploying.md").read_text()
    (program,) = (part for part in re.findall(r"```c\n(.*?)```", text, re.DOTALL) if "int main" in part)
    (tmp_path / "caller.c").write_text(program)
    sizes = {"M": 4, "N": 3, "K": 2}
    files = tilewright.export(gemm("nn", "f32"), tmp_path / "product.o", sizes, name="product", constant=["b"])
    command = [CC, *STRICT, str(tmp_path / "caller.c"), str(files.code), "-o", str(tmp_path / "caller")]
    subprocess.run(command, check=True)
    done = subprocess.run([str(tmp_path / "caller")], capture_output=True, text=True, check=True)
    a, b = np.add.outer(np.arange(4), np.arange(2)), np.subtract.outer(-np.arange(2), -np.arange(3))
    assert [[float(n) for n in line.split()] for line in done.stdout.splitlines()] == (a @ b).tolist()
