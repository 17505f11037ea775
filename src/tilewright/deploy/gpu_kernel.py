"""Loaded kernels for GPUs: the host program runs in Python, its programs are launched through the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.deploy.loaded import Call, LoadedKernel
from tilewright.deploy.manifest import read_code
from tilewright.errors import ManifestError, ParseError, ProgramError
from tilewright.ir.block import parse_block
from tilewright.ir.host import parse_host
from tilewright.ir.module import Module
from tilewright.runtime.arguments import Arguments
from tilewright.runtime.device_arrays import DeviceArray
from tilewright.runtime.host import HostExecutor


def _stored_module(path: Path, maker: str) -> Any:
    """Import and return the module that loads stored code for the GPUs of `maker`, such as "nvidia".

    Raise ManifestError, which names the file `path`, if there is none.
    """
    package = f"tilewright.targets.{maker}"
    module = f"{package}.stored"
    if not maker.isidentifier() or find_spec(package) is None or find_spec(module) is None:
        raise ManifestError(f"{path}: {maker!r} makes no GPU whose code is loaded here; export the kernel again")
    return import_module(module)


class LoadedGpuKernel(LoadedKernel):
    """An exported kernel, loaded on a GPU; host arrays are copied to the GPU and back."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]):
        name, machine = manifest["name"], manifest["machine"]
        stored = _stored_module(path, machine["maker"])
        codes = {row["name"]: read_code(path, row) for row in manifest["programs"]}
        stored.required_machine(machine["name"], name)
        try:
            heads = {row["name"]: parse_block(row["head"]) for row in manifest["programs"]}
            programs = {
                row["name"]: stored.StoredProgram(
                    heads[row["name"]],
                    codes[row["name"]].decode() if manifest["kind"] == "ptx" else codes[row["name"]],
                    row["launch"],
                    row["conditions"],
                    machine["cores"],
                )
                for row in manifest["programs"]
            }
            module = Module.of(parse_host(manifest["host"]), heads.values())
        except (ParseError, ProgramError, KeyError, TypeError, UnicodeDecodeError) as fault:
            raise ManifestError(f"{path}: its programs cannot be read: {fault}; export the kernel again") from None
        self._device = stored.StoredDevice(machine["name"], programs)
        self._executor = HostExecutor(module, self._device)
        self.near = self._near
        super().__init__(path, manifest)

    def _near(self, arrays: Sequence[Any]) -> Any:
        """Return the Memories of the GPU that `arrays` are on: the object that allocates, copies and fills arrays
        there."""
        return self._device.near(arrays)

    def launch(self, bound: Arguments, sizes: Mapping[str, int], *, passing: bool) -> Call:
        """Return a function that runs the kernel's host program on `bound`, a call's checked arguments.

        `sizes` is {name: value} of the open sizes (known only at the call). With `passing`, the caller promises to call
        the function once, right away.
        """
        arrays: list[Any] = [
            value
            if isinstance(value := bound.values[a], DeviceArray)
            else np.asarray(value).astype(a.type.dtype.numpy, copy=False)
            for a in self.arguments
        ]
        return self._executor.bind(arrays, dict(sizes) or None, passing=passing)
