"""Wrong input through every caller: a typed error that names the argument and its value, in the same words.

`tests/with_jax` and `tests/pytorch` ask the same of JAX and torch, `test_tvm_ffi.py` of TVM-FFI.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from bad_input import INPUTS, OUTPUTS, SIZES, OnAGpu, right

import tilewright
from tilewright.errors import ArgumentError, ManifestError, TargetError
from tilewright.kernels import gemm

CALLERS = ["call", "bound", "named", "loaded", "loaded and bound"]


@pytest.fixture(scope="module")
def callers(tmp_path_factory):
    kernel = tilewright.compile(gemm("nn", "f32"))
    loaded = tilewright.load(tilewright.export(gemm("nn", "f32"), tmp_path_factory.mktemp("bad") / "gemm", SIZES).code)
    return {
        "call": kernel,
        "bound": lambda *args: kernel.bind(*args)(),
        "named": lambda *args: kernel(**dict(zip("abc", args, strict=False))),
        "loaded": loaded,
        "loaded and bound": lambda *args: loaded.bind(*args)(),
    }


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("name", [*INPUTS, *OUTPUTS])
def test_a_wrong_argument_is_named(name, caller, callers):
    spoil, says = {**INPUTS, **OUTPUTS}[name]
    with pytest.raises(ArgumentError, match=says) as fault:
        callers[caller](*spoil(*right()))
    assert "gemm" in str(fault.value)


@pytest.mark.parametrize("caller", CALLERS)
def test_after_a_mistake_a_caller_goes_on(caller, callers):
    arguments = right()
    callers[caller](*arguments)
    assert (arguments[2] == 3).all()


def test_an_array_on_a_gpu_that_cannot_be_read_is_named_by_functions_too():
    """`matmul` passed on the error of the array's own library."""
    with pytest.raises(ArgumentError, match="a, on a GPU, cannot be read by way of DLPack: this array lies on a GPU"):
        tilewright.matmul(OnAGpu(), np.ones((3, 5), np.float32))


# -- files ----------------------------------------------------------------------------------------------------

GPU_SIZES = {"M": 256, "N": 256, "K": 64}


@pytest.fixture(scope="module")
def for_a_gpu(tmp_path_factory):
    return tilewright.export(gemm("nn", "f16"), tmp_path_factory.mktemp("gpu") / "gemm", GPU_SIZES, target="gpu:hopper")


def spoilt(files, **keys):
    """The manifest of exported files with other entries, beside a copy of the code."""
    manifest = {**files.manifest, **keys}
    files.manifest_file.write_text(json.dumps(manifest))
    return files


@pytest.mark.parametrize("form", ["object", "shared"])
def test_files_for_another_machine_are_refused_by_what_is_missing(form, tmp_path):
    files = tilewright.export(gemm("nn", "f32"), tmp_path / "gemm", SIZES, format=form)
    there = files.manifest["machine"]
    spoilt(files, machine={**there, "features": [*there["features"], "avx1024", "tiles9"]})
    with pytest.raises(TargetError, match=r"gemm: .* this CPU is without avx1024, tiles9"):
        tilewright.load(files.code)
    spoilt(files, machine={**there, "architectures": ["sparc64"]})
    with pytest.raises(TargetError, match=r"gemm: .* this CPU is .*; it needs sparc64"):
        tilewright.load(files.code)


def test_a_truncated_library_and_a_truncated_manifest_are_refused(tmp_path):
    files = tilewright.export(gemm("nn", "f32"), tmp_path / "gemm.so", SIZES)
    data = files.code.read_bytes()
    files.code.write_bytes(data[: len(data) // 2])
    with pytest.raises(ManifestError, match=f"gemm.so has {len(data) // 2} bytes, and its manifest says {len(data)}"):
        tilewright.load(files.code)
    files.code.write_bytes(data)
    text = files.manifest_file.read_text()
    for length in (0, 1, len(text) // 2, len(text) - 3):
        files.manifest_file.write_text(text[:length])
        with pytest.raises(ManifestError, match=r"gemm.json is no JSON, or cut off"):
            tilewright.load(files.code)


def test_truncated_gpu_code_is_refused_before_a_gpu_is_asked_for(for_a_gpu):
    data = for_a_gpu.code.read_bytes()
    for_a_gpu.code.write_bytes(data[:-9])
    try:
        with pytest.raises(
            ManifestError, match=f"gemm.ptx has {len(data) - 9} bytes, and its manifest says {len(data)}"
        ):
            tilewright.load(for_a_gpu.code)
    finally:
        for_a_gpu.code.write_bytes(data)


@pytest.mark.parametrize("maker", ["acme", "cpu", "a.b", ""])
def test_code_of_a_gpu_whose_maker_is_not_known_is_refused_by_name(maker, for_a_gpu):
    """A maker without a folder got Python's ModuleNotFoundError."""
    spoilt(for_a_gpu, machine={**for_a_gpu.manifest["machine"], "maker": maker})
    with pytest.raises(ManifestError, match=f"{maker!r} makes no GPU whose code is loaded here"):
        tilewright.load(for_a_gpu.code)
