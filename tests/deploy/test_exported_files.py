"""The files of an export: what they say, what is refused of them, and who can write and read them."""

from __future__ import annotations

import json
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
from exported_kernels import CASES, compiled

import tilewright
from tilewright.deploy import files as writing
from tilewright.errors import ArgumentError, ManifestError, TargetError
from tilewright.kernels import gemm
from tilewright.runtime.codegen import HELPER
from tilewright.targets.cpu.exported import complete_object, object_options
from tilewright.targets.cpu.objects import read_object, shared_library
from tilewright.targets.registry import machine

SIZES = {"M": 4, "N": 5, "K": 6}


@pytest.fixture
def exported(tmp_path):
    return tilewright.export(gemm("nn", "f32"), tmp_path / "gemm", SIZES)


def change(files, **keys):
    manifest = {**files.manifest, **keys}
    files.manifest_file.write_text(json.dumps(manifest))


# -- loading ------------------------------------------------------------------------------------------------

WITHOUT = """
import sys
import numpy as np
import tilewright
loaded = tilewright.load(sys.argv[1])
out = loaded(np.ones((4, 6), np.float32), np.ones((6, 5), np.float32))
assert (out == 6).all()
parts = ("compiler", "plan", "rewrite", "lower", "transform", "driver", "targets.cpu.native")
parts = ("llvmlite", *(f"tilewright.{part}" for part in parts))
print([name for name in sys.modules if name.startswith(parts)])
"""


@pytest.mark.parametrize("form", ["object", "shared"])
def test_loading_imports_neither_the_compiler_nor_llvm(form, tmp_path):
    files = tilewright.export(gemm("nn", "f32"), tmp_path / "gemm", SIZES, format=form)
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(files.code)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("suffix", ["", ".o", ".json"])
def test_a_kernel_is_loaded_by_its_code_its_manifest_or_neither_suffix(suffix, exported, tmp_path):
    loaded = tilewright.load(str(tmp_path / f"gemm{suffix}"))
    assert (
        repr(loaded)
        == f"<loaded kernel gemm(a: f32[M, K], b: f32[K, N], c: f32[M, N]) for {exported.manifest['machine']['name']}>"
    )


def test_a_missing_cpu_feature_is_refused_by_name(exported):
    there = exported.manifest["machine"]
    change(exported, machine={**there, "name": "x86.amx", "features": [*there["features"], "avx1024"]})
    with pytest.raises(TargetError, match=r"gemm: code for x86\.amx does not run here: this CPU is without avx1024"):
        tilewright.load(exported.code)


def test_code_of_another_architecture_is_refused_by_name(exported):
    change(exported, machine={**exported.manifest["machine"], "name": "sparc.v9", "architectures": ["sparc64"]})
    with pytest.raises(TargetError, match=r"code for sparc\.v9 does not run here: this CPU is .*; it needs sparc64"):
        tilewright.load(exported.code)


def test_a_truncated_object_is_refused(exported):
    data = exported.code.read_bytes()
    exported.code.write_bytes(data[:-100])
    with pytest.raises(
        ManifestError, match=f"has {len(data) - 100} bytes, and its manifest says {len(data)}: it is cut"
    ):
        tilewright.load(exported.code)


def test_a_changed_object_is_refused(exported):
    data = bytearray(exported.code.read_bytes())
    data[200] ^= 1
    exported.code.write_bytes(data)
    with pytest.raises(ManifestError, match="was changed after it was written"):
        tilewright.load(exported.code)


def test_another_format_is_refused_with_the_version_that_wrote_it(exported):
    change(exported, format=99, version="7.2.0")
    with pytest.raises(
        ManifestError, match=r"has the format 99, written by version '7.2.0'; this version reads format 1"
    ):
        tilewright.load(exported.code)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no JSON, or cut off"),
        ("[" * 100_000, "is no JSON, or cut off"),
        ("[]", "is no manifest of an exported kernel"),
        ('{"format": 1}', "version = None is not what a manifest holds there"),
        ("\udcff", "is no text"),
    ],
)
def test_what_is_no_manifest_is_refused(text, says, exported):
    exported.manifest_file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ManifestError, match=says):
        tilewright.load(exported.code)


@pytest.mark.parametrize("missing", ["code", "manifest_file"])
def test_a_missing_file_is_named(missing, exported):
    getattr(exported, missing).unlink()
    with pytest.raises(ManifestError, match=f"{getattr(exported, missing).name}: No such file"):
        tilewright.load(exported.code)


def test_a_manifest_that_leaves_out_what_the_loader_needs_is_refused(exported):
    def without(value):
        """The value, each time without one of its keys, or with another value there."""
        pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
        for key, inner in pairs:
            for other in ("left out", None, [[]]):
                left = dict(pairs)
                left[key] = other
                if other == "left out":
                    del left[key]
                yield left if isinstance(value, dict) else list(left.values())
            if isinstance(inner, dict | list):
                for changed in without(inner):
                    left = {**dict(pairs), key: changed}
                    yield left if isinstance(value, dict) else list(left.values())

    free = ("kept_bytes", "workspace_bytes")  # may be null
    for manifest in without({k: v for k, v in exported.manifest.items() if k not in ("errors", *free)}):
        text = json.dumps({**dict.fromkeys(free, 0), "errors": {}, **manifest})
        exported.manifest_file.write_text(text)
        try:
            tilewright.load(exported.code)
        except (ManifestError, TargetError):
            continue


# -- writing ------------------------------------------------------------------------------------------------


def test_an_export_that_fails_leaves_the_old_file_and_no_part_of_a_new_one(exported, tmp_path):
    before = exported.code.read_bytes()
    full = mock.patch.object(writing.os, "fsync", side_effect=OSError(28, "No space left on device"))
    with full, pytest.raises(ArgumentError, match="cannot be written: No space left on device"):
        tilewright.export(gemm("nt", "f32"), tmp_path / "gemm", SIZES)
    assert exported.code.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["gemm.h", "gemm.json", "gemm.o"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"format": "dll"}, r"format='dll': there is 'object' \(.o\), 'shared' \(.so\)"),
        ({"format": "shared"}, "path='.*gemm.o': a file of the format 'shared' ends in .so"),
        ({"name": "while"}, "name='while': C needs a name"),
        ({"name": "2x"}, "name='2x': C needs a name"),
        ({"constant": ["q"]}, "constant=.*'q'.*: a list of arguments; gemm takes a, b, c"),
        ({"target": "cpu:x86.avx9"}, "no machine 'x86.avx9'"),
        ({"constant": 3}, r"constant=3: a list of names, as in constant=\['M'\]"),
        ({"dynamic": "M"}, "dynamic='M': a list of names"),
        ({"sizes": 4}, "sizes=4: a dictionary of sizes, {'M': 64}"),
        ({"target": "executor", "constant": ["b"]}, "gemm is no machine code: it runs on the executor"),
        ({"sizes": {"M": 4}}, "gemm: the size of a is not known: K"),
        ({"sizes": None}, "gemm has no sizes yet: give them, sizes="),
    ],
)
def test_what_cannot_be_exported_is_refused_by_name(options, says, tmp_path):
    with pytest.raises(ArgumentError, match=says):
        tilewright.export(gemm("nn", "f32"), tmp_path / "gemm.o", **{"sizes": SIZES, **options})


@pytest.mark.parametrize("path", ["", "/", None, 3, b"gemm.o"])
def test_what_is_no_path_is_refused_by_name(path):
    for call in (lambda: tilewright.export(gemm("nn", "f32"), path, SIZES), lambda: tilewright.load(path)):
        with pytest.raises(ArgumentError, match=r"path=.*: the path of a file, such as 'kernels/gemm\.o'"):
            call()


def test_a_compiled_kernel_takes_no_options_of_the_compiler(tmp_path):
    run = tilewright.compile(gemm("nn", "f32"))
    with pytest.raises(ArgumentError, match=r"target='cpu:x86.avx2': gemm is compiled already"):
        tilewright.export(run, tmp_path / "gemm", SIZES, target="cpu:x86.avx2")
    with pytest.raises(ArgumentError, match="gemm is no machine code: it runs on the executor"):
        tilewright.export(tilewright.compile(gemm("nn", "f32"), target="executor"), tmp_path / "gemm", SIZES)


def test_the_manifest_says_what_the_kernel_takes_and_needs(exported):
    manifest = json.loads(exported.manifest_file.read_text())
    assert manifest == exported.manifest
    a = {"name": "a", "type": "f32", "shape": [4, 6], "role": "in", "alignment": 4, "bound": False, "called": True}
    assert manifest["arguments"][0] == a
    assert [argument["role"] for argument in manifest["arguments"]] == ["in", "in", "out"]
    assert manifest["version"] == tilewright.__version__
    assert "grid columns, rows" in manifest["plan"]
    assert set(manifest["machine"]["features"]) == machine(manifest["machine"]["name"]).features


# -- machines -----------------------------------------------------------------------------------------------


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ["gemm", "gemm_bf16", "gemm_open", "conv_packed", "softmax", "both"])
@pytest.mark.parametrize("target", ["x86.avx2", "x86.avx512", "x86.amx", "aarch64.neon", "aarch64.neon.bf16"])
def test_objects_of_other_machines_need_nothing_and_are_linked(name, target, tmp_path):
    kernel, sizes, options = CASES[name]
    files = tilewright.export(kernel, tmp_path / name, sizes, name=name, target=f"cpu:{target}", **options)
    given = read_object(files.code.read_bytes())
    assert given.machine == {"x86": 62, "aarch64": 183}[target.partition(".")[0]]
    assert given.undefined == ()
    offered = {s.name for s in given.symbols if s.is_global}
    wanted = {name, *(f"{name}_{what}" for what in ("bind", "kept_bytes", "workspace_bytes", "message"))}
    wanted |= {f"{name}_pool_{what}" for what in ("run", "launch", "worker", "setup")}
    assert offered == wanted
    assert shared_library(files.code.read_bytes(), "x.so")[:4] == b"\x7fELF"
    assert files.manifest["machine"]["features"] == sorted(machine(target).features)
    assert ("SYS_arch_prctl" in files.header.read_text()) == (target == "x86.amx")


def test_functions_that_llvm_calls_by_itself_are_added():
    """On machines without bf16 a conversion is a call, and a fill of any length one of memset."""
    text = """declare void @llvm.memset.p0.i64(ptr, i8, i64, i1 immarg)
define void @f(ptr %p, i64 %n, float %x) {
  call void @llvm.memset.p0.i64(ptr %p, i8 0, i64 %n, i1 false)
  %y = fptrunc float %x to half
  store half %y, ptr %p
  ret void
}
"""
    whole, code = complete_object(text, object_options(machine("x86.avx2")))
    assert "define internal ptr @memset" in whole
    assert read_object(code).undefined == ()
    assert [s.name for s in read_object(code).symbols if s.is_global] == ["f"]


def test_a_kernel_found_in_the_cache_is_exported_without_generating_code_again(tmp_path):
    first = tilewright.export(compiled("gemm"), tmp_path / "first", name="gemm")
    with mock.patch.object(HELPER, "ask", side_effect=AssertionError("code was generated")):
        again = tilewright.export(compiled("gemm"), tmp_path / "second", name="gemm")
    assert first.code.read_bytes() == again.code.read_bytes()
    assert np.array_equal(
        tilewright.load(again.code)(np.ones((37, 41), np.float32), np.ones((41, 29), np.float32)),
        np.full((37, 29), 41, np.float32),
    )


# -- processes and threads ----------------------------------------------------------------------------------

FORKED = """
import os, sys
import numpy as np
import tilewright
loaded = tilewright.load(sys.argv[1], workers=3)
a, b = np.ones((37, 41), np.float32), np.ones((41, 29), np.float32)
assert (loaded(a, b) == 41).all()
child = os.fork()
assert (loaded(a, 2 * b) == 82).all()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert (loaded(a, 3 * b) == 123).all()
print("done")
"""


@pytest.mark.parametrize("target", ["cpu", "cpu:portable"])
def test_a_loaded_kernel_runs_in_a_forked_process_too(target, tmp_path):
    """The portable machine brings no pool of its own: threads of Python run its workers."""
    sizes = {"M": 37, "N": 29, "K": 41}
    files = tilewright.export(gemm("nn", "f32"), tmp_path / "gemm", sizes, target=target)
    brings = any(s.name == "gemm_pool_run" for s in read_object(files.code.read_bytes()).symbols)
    assert brings == (files.manifest["machine"]["name"] != "portable")
    command = [sys.executable, "-c", FORKED, str(files.code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "done\n"


def test_processes_that_export_to_one_place_leave_whole_files(tmp_path):
    script = (
        "import sys, tilewright\n"
        "for _ in range(4):\n"
        "    tilewright.export(tilewright.kernels.gemm('nn', 'f32'), sys.argv[1], {'M': 4, 'N': 5, 'K': 6})\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "gemm.o")]
    for process in [subprocess.Popen(command) for _ in range(2)]:
        assert process.wait(60) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["gemm.h", "gemm.json", "gemm.o"]
    assert tilewright.load(tmp_path / "gemm").name == "gemm"
