"""Exported kernels do what the compiled ones do, bit by bit."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import tilewright
from tilewright.compiler.native import kernel_for
from tilewright.deploy.manifest import read_manifest
from tilewright.targets.cpu.objects import read_object

from exported_kernels import CASES, TWO_KERNELS, arrays_for

SEVERAL = {"gemm_open": {"M": 53}, "both": {"M": 29}}
"""Sizes of calls of kernels that have open ones."""


def compiled(name: str):
    kernel, sizes, options = CASES[name]
    if isinstance(kernel, str):
        return tilewright.compile_text(kernel)
    return kernel_for(kernel, sizes, **options)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint8)


@pytest.mark.parametrize("form", ["object", "shared"])
@pytest.mark.parametrize("name", CASES)
def test_an_exported_kernel_gives_the_bits_of_the_compiled_one(name, form, tmp_path):
    own = compiled(name)
    files = tilewright.export(own, tmp_path / name, format=form, name=name)
    loaded = tilewright.load(files.code)
    given = arrays_for(loaded, np.random.default_rng(7), SEVERAL.get(name))
    wanted, before = [a.copy() for a in given], [a.copy() for a in given]
    if isinstance(own, tilewright.TextExecutable):
        own.bind(*wanted)()
    else:
        own.executor.bind(wanted, SEVERAL.get(name))()
    run = loaded.bind(*given)
    run()
    for mine, theirs in zip(given, wanted, strict=True):
        assert (bits(mine) == bits(theirs)).all()
    for mine, old in zip(given, before, strict=True):
        mine[...] = old
    run()
    for mine, theirs in zip(given, wanted, strict=True):
        assert (bits(mine) == bits(theirs)).all()
