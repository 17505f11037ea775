"""Kernels of exported files: what a launch needs survives JSON; Python asks the driver for the same as machine code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_driver import Told, emitted_of, loaded_on

import tilewright
from tilewright.errors import ManifestError, TargetError
from tilewright.ir.binding import open_parameters
from tilewright.kernels import gemm
from tilewright.runtime.device_arrays import DeviceArray, packed_steps
from tilewright.targets.nvidia import disassembly, stored
from tilewright.targets.nvidia.disassembly import tool
from tilewright.targets.nvidia.launch import Launch

PROGRAMS = {
    "gemm_hopper": {"M": 4096, "N": 4096, "K": 1024},
    "conv_hopper": {"N": 2, "H": 9, "W": 7, "C": 128, "STRIDE": 2},
}


def arrays_of(program: Any) -> list[DeviceArray]:
    shapes = [tuple(int(e) for e in a.type.shape) for a in program.args]
    return [
        DeviceArray(1 << 20 + i, shape, packed_steps(shape), a.type.dtype.numpy, None)
        for i, (shape, a) in enumerate(zip(shapes, program.args, strict=True))
    ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_launch_needs_survives_json(name: str) -> None:
    program, emitted = emitted_of(name, **PROGRAMS[name])
    record = json.loads(json.dumps(stored.launch_record(emitted)))
    assert stored.emitted_of(record, open_parameters(program)) == replace(emitted, text="")


@pytest.mark.parametrize("name", PROGRAMS)
def test_python_starts_a_launch_as_machine_code_does(name: str) -> None:
    program, emitted = emitted_of(name, **PROGRAMS[name])
    asked = []
    for kind in (Launch, stored.StoredLaunch):
        told = Told()
        told.parameters, told.mapped = len(program.args) + len(emitted.parameters), len(emitted.parameters)
        kind(loaded_on(told, name), emitted, arrays_of(program), None)()
        started = [what for call, what in told.calls if call == "start"]
        asked.append((started, told.maps_passed, told.aligned, told.asked))
    assert asked[0] == asked[1]
    assert len(asked[0][0]) == 1


def test_counters_are_drawn_anew_for_every_launch() -> None:
    program, emitted = emitted_of("gemm_hopper", **PROGRAMS["gemm_hopper"])
    emitted = replace(emitted, counters=2)
    told = Told()
    told.parameters = len(program.args) + 1
    loaded = loaded_on(told, "gemm_hopper")
    loaded.counters, loaded.drawn = DeviceArray(1 << 16, (1,), (1,), np.dtype("i4"), None), np.zeros(1, np.uint64)
    launch = stored.StoredLaunch(loaded, emitted, arrays_of(program), None)
    for _ in range(3):
        launch()
    words = [what[4][-1] for call, what in told.calls if call == "start"]
    assert words == [(1 << 16) + 8 * n for n in range(3)]


# -- files --------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Any:
    sizes = {"M": 64, "N": 512, "K": 256}
    return tilewright.export(gemm("nt", "bf16"), tmp_path / "gemm", sizes, target="gpu:hopper", dynamic=["M"])


def test_a_kernel_for_a_gpu_is_written_as_ptx_with_its_launches(files: Any) -> None:
    assert files.code.name == "gemm.ptx"
    assert files.header is None
    text = files.code.read_text()
    (row,) = files.manifest["programs"]
    assert f".visible .entry {row['launch']['entry']}(" in text
    assert ".target sm_90a" in text
    assert files.manifest["machine"]["maker"] == "nvidia"
    assert files.manifest["sizes"][0]["name"] == "M"


def test_a_gpu_that_is_not_there_is_named(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored.driver, "why_not", lambda machine: "the GPU here has compute capability 7.5, not 9.x")
    with pytest.raises(TargetError, match=r"gemm: code for hopper does not run here: .*capability 7\.5, not 9\.x"):
        tilewright.load(files.code)


class HeldMemory:
    """Memory of a device that takes every array as it lies."""

    def takes(self, array: Any) -> bool:
        return True


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """A driver that only writes down what it is asked, in place of the GPU's."""
    found = Told()
    monkeypatch.setattr(stored.driver, "why_not", lambda machine: None)

    def load(self: Any, assembly: str, emitted: Any, number: int) -> None:
        vars(self).update(vars(loaded_on(found, emitted.name)))

    monkeypatch.setattr(stored.driver.Loaded, "__init__", load)
    monkeypatch.setattr(stored.StoredDevice, "near", lambda self, arrays, passing=False: HeldMemory())
    return found


def on_device(shape: tuple[int, ...], dtype: str, place: int) -> DeviceArray:
    kind = tilewright.ir.dtypes.dtype(dtype).numpy
    return DeviceArray(place << 24, shape, packed_steps(shape), kind, None)


def test_a_loaded_kernel_is_launched_with_the_sizes_of_the_call(files: Any, told: Told) -> None:
    told.parameters = 4  # three pointers, one size
    loaded = tilewright.load(files.code)
    for rows in (64, 200):
        arrays = on_device((rows, 256), "bf16", 1), on_device((512, 256), "bf16", 2), on_device((rows, 512), "f32", 3)
        loaded(*arrays)
        *_, (call, (_, _, shared, _, words)) = told.calls
        assert call == "start"
        assert words[:3] == [1 << 24, 2 << 24, 3 << 24]
        assert words[3] == rows
        assert shared == files.manifest["programs"][0]["launch"]["shared_bytes"]


def test_wrong_arrays_of_a_gpu_are_refused_by_name(files: Any, told: Told) -> None:
    loaded = tilewright.load(files.code)
    b, c = on_device((512, 256), "bf16", 2), on_device((64, 512), "f32", 3)
    with pytest.raises(tilewright.errors.ArgumentError, match="gemm: argument a holds f32; it must hold bf16"):
        loaded(on_device((64, 256), "f32", 1), b, c)
    with pytest.raises(tilewright.errors.ArgumentError, match="shares memory with"):
        loaded(on_device((64, 256), "bf16", 3), b, c)


@pytest.mark.skipif(tool("ptxas") is None, reason="NVIDIA's assembler (the extra `ptxas`) is not installed")
def test_machine_code_is_written_where_the_assembler_is_installed(told: Told, tmp_path: Path) -> None:
    sizes = {"M": 64, "N": 512, "K": 256}
    files = tilewright.export(gemm("nt", "bf16"), tmp_path / "gemm.cubin", sizes, target="gpu:hopper")
    assert files.code.read_bytes()[:4] == b"\x7fELF"
    told.parameters = 3
    arrays = on_device((64, 256), "bf16", 1), on_device((512, 256), "bf16", 2), on_device((64, 512), "f32", 3)
    tilewright.load(files.code)(*arrays)
    assert told.calls[-1][0] == "start"


def test_a_missing_assembler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disassembly, "tool", lambda name: None)
    with pytest.raises(
        TargetError, match="cubin: ptxas of NVIDIA's toolkit is not on the path; the extra `ptxas` brings"
    ):
        tilewright.export(gemm("nt", "bf16"), tmp_path / "gemm.cubin", {"M": 64, "N": 64, "K": 64}, target="gpu:hopper")


def test_changed_ptx_is_refused(files: Any, told: Told) -> None:
    files.code.write_text(files.code.read_text().replace("sm_90a", "sm_80a"))
    with pytest.raises(ManifestError, match="was changed after it was written"):
        tilewright.load(files.code)
    manifest = json.loads(files.manifest_file.read_text())
    manifest["machine"]["maker"] = "os.path"
    files.manifest_file.write_text(json.dumps(manifest))
    with pytest.raises(ManifestError, match=r"'os\.path' makes no GPU whose code is loaded here"):
        tilewright.load(files.code)
