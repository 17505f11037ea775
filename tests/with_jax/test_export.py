"""`jax.export` of programs that call kernels: what it needs, and what it refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact import assert_same, small
from jax import export

import tilewright
import tilewright.jax
from tilewright.errors import ArgumentError
from tilewright.jax.platforms import TARGETS
from tilewright.kernels import gemm

product = tilewright.jax.function(tilewright.compile(gemm("nn", "f32")))


def doubled(a: Any, b: Any) -> Any:
    return tilewright.jax.matmul(a, b) + product(a, b)


def allowed(function: Any, *arrays: Any, platforms: tuple[str, ...] = ("cpu",)) -> list[Any]:
    """Return the checks that an export of a function must leave out: those of its custom calls."""
    text = jax.jit(function).trace(*arrays).lower(lowering_platforms=platforms).as_text()
    names = set(re.findall(r"custom_call @(tilewright\.[\w.]+)", text))
    assert names
    return [export.DisabledSafetyCheck.custom_call(name) for name in names]


def test_a_program_with_kernels_is_exported_if_they_are_named():
    a, b = small(5, 6), small(6, 4, seed=1)
    exported = export.export(jax.jit(doubled), disabled_checks=allowed(doubled, a, b))(a, b)
    assert_same(exported.call(a, b), 2 * a @ b)
    with pytest.raises(ValueError, match=r"custom calls whose targets have no compatibility guarantees"):
        export.export(jax.jit(doubled))(a, b)


def test_one_export_serves_cpus_and_gpus(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(TARGETS, "cuda", "gpu:hopper")
    a, b, platforms = small(5, 24), small(24, 16, seed=1), ("cpu", "cuda")
    run = tilewright.jax.matmul
    checks = allowed(run, a, b, platforms=platforms)
    assert len(checks) == 2
    exported = export.export(jax.jit(run), platforms=platforms, disabled_checks=checks)(a, b)
    assert_same(exported.call(a, b), a @ b)


OTHER_PROCESS = """
import sys
import jax, numpy as np
from jax import export
sys.path.insert(0, {folder!r})
from test_export import doubled
a, b = np.ones((5, 6), np.float32), np.ones((6, 4), np.float32)
jax.jit(doubled).lower(a, b)
print(export.deserialize(open({path!r}, "rb").read()).call(a, b).sum())
"""


def test_another_process_runs_an_export_once_it_has_lowered_the_same_calls(tmp_path: Path):
    """It must know the kernels by the names that the export has: names depend on what is computed alone."""
    pytest.importorskip("flatbuffers")
    a, b = small(5, 6), small(6, 4, seed=1)
    exported = export.export(jax.jit(doubled), disabled_checks=allowed(doubled, a, b))(a, b)
    path = tmp_path / "exported"
    path.write_bytes(exported.serialize())
    text = OTHER_PROCESS.format(folder=str(Path(__file__).parent), path=str(path))
    result = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert result.stdout.split() == ["240.0"], result.stderr


@pytest.mark.parametrize("function", [tilewright.jax.matmul, product])
def test_symbolic_shapes_are_refused_by_name(function: Any):
    a = jax.ShapeDtypeStruct(export.symbolic_shape("m,3"), jnp.float32)
    with pytest.raises(ArgumentError, match=r"a has the shape \(m, 3\), in which m is symbolic"):
        export.export(jax.jit(function))(a, np.ones((3, 2), np.float32))
