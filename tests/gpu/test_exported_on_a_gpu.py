"""Exported kernels on a GPU: exact, as the compiled ones are, without the compiler. Run by `make test-gpu`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import kernels
from tilewright.targets.nvidia.disassembly import tool
from tilewright.targets.nvidia.driver import device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(isinstance(device(), str), reason=f"no GPU: {device()}"),
]
SIZES = {"M": 192, "N": 256, "K": 128}
FORMS = ["ptx", *(["cubin"] if tool("ptxas") is not None else [])]


def whole(rng: Any, *shape: int) -> Any:
    return rng.integers(-3, 4, shape).astype(np.float32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dynamic", [(), ("M",)])
def test_a_loaded_product_is_exact(form: str, dynamic: tuple[str, ...], tmp_path: Any) -> None:
    options: dict[str, Any] = {"target": "gpu:hopper", "dynamic": dynamic, "format": form}
    files = tilewright.export(kernels.gemm("nn", "f32"), tmp_path / "gemm", SIZES, **options)
    loaded, rng = tilewright.load(files.code), np.random.default_rng(2)
    for rows in (192, 77) if dynamic else (192,):
        a, b = whole(rng, rows, 128), whole(rng, 128, 256)
        for _ in range(3):
            assert np.array_equal(loaded(a, b), a @ b)


def test_a_loaded_softmax_and_convolution_are_those_of_the_compiled_kernels(tmp_path: Any) -> None:
    rng = np.random.default_rng(3)
    for name, kernel, shapes in (
        ("softmax", kernels.softmax("f32"), [(65, 300)]),
        ("conv", kernels.conv((3, 3), "f32", padding=1), [(2, 14, 14, 32), (64, 3, 3, 32)]),
    ):
        own = tilewright.compile(kernel, target="gpu:hopper")
        arrays = [whole(rng, *shape) for shape in shapes]
        wanted = own(*arrays)
        loaded = tilewright.load(tilewright.export(own, tmp_path / name, name=name).code)
        assert np.array_equal(loaded(*arrays), wanted)


def test_neither_the_compiler_nor_llvm_is_loaded(tmp_path: Any) -> None:
    files = tilewright.export(kernels.gemm("nn", "f32"), tmp_path / "gemm", SIZES, target="gpu:hopper")
    script = (
        "import sys, numpy as np, tilewright\n"
        "loaded = tilewright.load(sys.argv[1])\n"
        "assert (loaded(np.ones((192, 128), np.float32), np.ones((128, 256), np.float32)) == 128).all()\n"
        "print([n for n in sys.modules if n.startswith(('llvmlite', 'tilewright.compiler', 'tilewright.plan'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(files.code)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
