"""CPUs of every family, on any of them: their names, features and code, and what the system tells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright.errors import ArgumentError, TargetError
from tilewright.runtime.codegen import HELPER
from tilewright.targets.aarch64.features import _features_in
from tilewright.targets.cpu.caches import _from_files, caches
from tilewright.targets.cpu.families import family, is_cpu
from tilewright.targets.cpu.host import host_machine
from tilewright.targets.cpu.pool import TEXT
from tilewright.targets.cpu.waiting import text_of_waiting
from tilewright.targets.registry import MACHINES, machine, native

PRODUCT = """block product(%a: in global f32 (5, 8), %b: in global f32 (8, N), %y: out global f32 (5, N))
  machine {machine}
  param N = {columns}
{{
  %c = alloc register f32 (5, N) as {atom}.c
  fill %c 0
  mma %c += %a * %b using {atom}
  copy %c -> %y
}}
"""
ATOMS = {"x86": "avx2.f32", "aarch64": "neon.f32", "portable": "vector.f32"}
CPUS = [name for name in MACHINES if is_cpu(name)]


def product(name):
    atom = machine(name).multiply_atom(ATOMS[name.split(".")[0]])
    return PRODUCT.format(machine=name, atom=atom.name, columns=2 * atom.shape[1]), 2 * atom.shape[1]


@pytest.mark.parametrize("name", CPUS)
def test_code_of_every_cpu_is_made_here_and_runs_where_it_can(name):
    text, columns = product(name)
    made = tilewright.compile_text(text, f"cpu:{name}")
    assert {"x86": "vfmadd", "aarch64": "fmla", "portable": "mul"}[name.split(".")[0]] in made.text("asm")
    assert made.object_code
    a, b = np.arange(40, dtype=np.float32).reshape(5, 8), np.ones((8, columns), np.float32)
    if native(f"cpu:{name}").runs:
        assert np.array_equal(made(a, b), a @ b)
        return
    with pytest.raises(TargetError) as caught:
        made(a, b)
    assert str(caught.value).startswith(
        f"product: code for {name} does not run here: this CPU is {host_machine().name}"
    )
    assert "\n" not in str(caught.value)


def test_features_below_the_lowest_level_are_named():
    with pytest.raises(TargetError, match=r"no machine has these features: x86\.avx2 needs avx2, fma"):
        family("x86").described(family("x86").levels["x86.avx2"] - {"avx2", "fma"})
    assert family("portable").described(frozenset()).name == "portable"


def test_products_pick_their_factor_by_lane_without_copies():
    assembly = tilewright.compile_text(product("aarch64.neon")[0], "cpu:aarch64.neon").text("asm")
    assert "v0.s[3]" in assembly or ".s[3]" in assembly
    assert "dup" not in assembly
    assert "ld1r" not in assembly


def test_names_say_features_in_one_order():
    assert machine("aarch64.neon.bf16.dotprod").name == "aarch64.neon.dotprod.bf16"
    assert machine("x86.avx512f.avx512vnni").multiply.keys() >= {"avx512.f32", "avx512.vnni"}
    assert "avx512.bf16" not in machine("x86.avx512f.avx512vnni").multiply
    everything = machine("x86.avx512f").features | {"avx512vnni", "avx512bf16"}
    assert family("x86").name_of(everything) == "x86.avx512"
    with pytest.raises(LookupError, match=r"no machine 'aarch64\.neon\.sve'"):
        machine("aarch64.neon.sve")


@pytest.mark.parametrize("target", ["x86", "cpu:toaster", "cpu:hopper", "", 3, None])
def test_targets_that_there_are_not(target):
    with pytest.raises(ArgumentError, match="target="):
        tilewright.compile_text(product("portable")[0], target)


def test_features_are_those_that_the_system_reports():
    assert sorted(_features_in({16: 1 << 1, 26: 0})) == ["neon"]
    assert _features_in({16: 1 << 1 | 1 << 20, 26: 1 << 13 | 1 << 14}) == {"neon", "dotprod", "i8mm", "bf16"}


def test_caches_are_read_from_the_system(tmp_path: Path):
    rows = [
        ("1", "Instruction", "64K", "64", "4"),
        ("1", "Data", "128K", "128", "8"),
        ("2", "Unified", "4M", "128", "16"),
    ]
    told = ("level", "type", "size", "coherency_line_size", "ways_of_associativity")
    for number, values in enumerate(rows):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, value in zip(told, values, strict=True):
            (folder / name).write_text(f"{value}\n")
    (tmp_path / "index3").mkdir()  # nothing is told of it
    assert _from_files(tmp_path) == {"l1": 128 << 10, "line": 128, "ways": 8, "l2": 4 << 20}
    assert caches().line in (None, 32, 64, 128, 256)


SYSTEMS = {
    ("x86", "linux"): "x86_64-unknown-linux-gnu",
    ("x86", "darwin"): "x86_64-apple-macosx11",
    ("x86", "win32"): "x86_64-pc-windows-msvc",
    ("aarch64", "linux"): "aarch64-unknown-linux-gnu",
    ("aarch64", "darwin"): "arm64-apple-macosx11",
    ("aarch64", "win32"): "aarch64-pc-windows-msvc",
    ("portable", "linux"): "riscv64-unknown-linux-gnu",
    ("portable", "darwin"): "powerpc64le-unknown-linux-gnu",
}
SLEEPS = {"darwin": "usleep", "win32": "Sleep"}


@pytest.mark.parametrize(("name", "system"), SYSTEMS)
def test_the_pool_is_written_for_every_system(name, system):
    text = text_of_waiting(family(name), system) + TEXT
    features = "+d" if "riscv" in SYSTEMS[name, system] else ""
    request = {"triple": SYSTEMS[name, system], "cpu": "", "features": features, "form": "assembly"}
    found = HELPER.ask(request, text).decode()
    expected = "syscall" if (system, name) in (("linux", "x86"), ("linux", "aarch64")) else SLEEPS.get(system, "usleep")
    assert expected in found
    if name == "aarch64":
        assert "isb" in found


def succeeds(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, env=os.environ)
    assert done.returncode == 0, done.stderr[-2000:]


def test_code_is_linked_wherever_memory_lies():
    """LLVM's older linker ended the process on AArch64 once mappings lay gigabytes apart."""
    succeeds(
        """
import mmap
import numpy as np, tilewright
held = []
for n in range(6):
    held.append(mmap.mmap(-1, 3 << 30, flags=mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0), prot=0))
    text = f'''block narrow(%x: in global f32 (9), %y: out global bf16 (9))
{{
  map %y = bf16(%x + {n})
}}
'''
    made = tilewright.compile_text(text, "cpu:portable")
    assert made(np.arange(9, dtype=np.float32)).astype(np.float32).tolist() == [n + i for i in range(9)]
"""
    )


def test_a_system_without_fork_generates_code_in_the_helper_itself():
    succeeds(
        """
import os, runpy, subprocess, sys
from tilewright.runtime import codegen, codegen_server
start = subprocess.Popen
without = f"import os, runpy; del os.fork; runpy.run_path({codegen_server.__file__!r}, run_name='__main__')"
def popen(command, **options):
    return start([sys.executable, "-P", "-c", without], **options)
codegen.subprocess.Popen = popen
import tilewright, numpy as np
from tilewright.errors import CodeGenerationError
assert tilewright.matmul(np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)).tolist() == [[4.0] * 5] * 3
request = {"triple": None, "cpu": "", "features": "", "form": "object"}
for text in ("nonsense", "define void @f() { ret i32 0 }"):
    try:
        codegen.HELPER.ask(request, text)
    except CodeGenerationError as fault:
        assert "LLVM could not generate machine code" in str(fault)
    else:
        raise AssertionError
"""
    )
