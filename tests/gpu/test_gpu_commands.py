"""The command line on a GPU: what runs there is exact, timed, and compared with cuBLAS and cuDNN (`make test-gpu`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilewright.cli import app
from tilewright.targets.nvidia.driver import device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(isinstance(device(), str), reason=f"no GPU: {device()}"),
]


def tilewright(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80", "NO_COLOR": "1"})
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("problem", "dt"),
    [("200x136:136x72", "bf16"), ("mb2ic16ih9oc24kh3ph1", "f16"), ("70x64:64x72", "tf32"), ("40x64:64x24", "s8")],
)
def test_run_checks_and_times_on_the_device(problem: str, dt: str) -> None:
    said = tilewright("run", problem, "--dt", dt, "--target", "cuda", "--check", "--time")
    assert "elements are equal" in said
    assert "of its bound" in said
    assert "too large" not in said
    assert "TFLOP/s" in said
    assert "of the floor" in said


def test_show_prints_the_code_of_the_gpu_at_hand() -> None:
    assert "wgmma" in tilewright("show", "512x512:512x512", "--dt", "bf16", "--target", "cuda", "--level", "ptx")
    assert "run here" in tilewright("targets")


def test_bench_measures_beside_cublas_and_cudnn(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file, out = tmp_path / "problems.txt", tmp_path / "rows.json"
    file.write_text("--dt=bf16:bf16:bf16 mb4ic64ih14oc64kh3ph1\n256x512:512x384\n")
    said = tilewright("bench", str(file), "--against", "cublas,cudnn", "--json", str(out))
    rows = json.loads(out.read_text())
    assert sorted(row["peer_form"] for row in rows) == ["cublas", "cudnn"], said
    assert all(0 < row["floor_share"] <= 1.2 and row["peer_us"] > 0 for row in rows)
    assert "geometric mean of 2" in said
    one = tilewright("bench", str(file), "--against", "cudnn")
    assert "it is cublas's" in one
