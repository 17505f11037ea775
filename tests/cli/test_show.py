"""`tilewright show` needs no machine code above llvm, and shows every machine that is described on any."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tilewright.cli import app
from tilewright.errors import CodeGenerationError
from tilewright.ir.block import BLOCK
from tilewright.ir.host import parse_host
from tilewright.ir.loop import parse_loop
from tilewright.ir.parser import parse_programs
from tilewright.plan.text import parse_plan
from tilewright.runtime.codegen import Helper
from tilewright.targets.cpu.families import is_cpu
from tilewright.targets.cpu.host import host_machine
from tilewright.targets.registry import MACHINES

SMALL = "mb1ic8ih6iw5oc12kh3kw2ph1pw0"
CPUS = [name for name in MACHINES if is_cpu(name)]


@pytest.fixture(autouse=True)
def no_machine_code(monkeypatch):
    """A machine of another kind: nothing that the CPU offers is known, and no code can be generated."""

    def refuse(self, request, text):
        raise CodeGenerationError("machine code was asked for")

    monkeypatch.setattr(Helper, "ask", refuse)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "off")


def show(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["show", *arguments], env={"COLUMNS": "80", "NO_COLOR": "1"})
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dt", ["f32", "bf16", "f16", "s8"])
@pytest.mark.parametrize("target", CPUS)
def test_every_level_of_every_cpu_is_shown_anywhere(target, dt):
    options = (SMALL, "--dt", dt, "--target", target, "--level")
    assert show(*options, "tile").startswith("tile conv(")
    plan, _, why = show(*options, "plan").partition("\n\n")
    assert str(parse_plan(plan)) == "; ".join(plan.splitlines())
    assert why.startswith(f"conv on {target} with 1 workers")
    block = parse_programs(show(*options, "block"), {"block": BLOCK})
    assert [p.name.removesuffix("_w") for p in block if not p.name.startswith("widen_")] == ["pack", "conv"]
    assert f"machine {target}" in show(*options, "block")
    loop = show(*options, "loop")
    assert str(parse_loop(loop)) == loop
    host = show(*options, "host")
    parse_host(host[: host.index("\n\n") + 1])


def test_wide_machines_use_their_own_atoms():
    assert "atom amx.bf16" in show("64x64:64x64", "--dt", "bf16", "--target", "x86.amx", "--level", "plan")
    assert "using amx.bf16" in show("64x64:64x64", "--dt", "bf16", "--target", "x86.amx")
    assert "atom amx.bf16" in show("64x64:64x64", "--dt", "bf16", "--target", "x86.amx", "--level", "loop")
    assert "atom avx512.f32" in show("64x64:64x64", "--target", "x86.avx512", "--level", "plan")


@pytest.mark.parametrize("target", ["gpu:hopper", "cdna3", "xe"])
def test_loops_of_a_gpu_are_those_of_its_waves(target):
    loop = show("64x64:64x64", "--dt", "bf16", "--target", target, "--level", "loop")
    assert "alloc fragment bf16" in loop
    assert str(parse_loop(loop)) == loop


@pytest.mark.parametrize("level", ["plan", "block", "loop", "host"])
def test_this_cpu_needs_no_machine_code(level):
    assert host_machine().name in show(SMALL, "--level", level) or level == "host"


@pytest.mark.parametrize("level", ["llvm", "asm"])
def test_machines_that_are_only_described_have_no_machine_code(level):
    said = show(SMALL, "--level", level, "--target", "hopper", code=2)
    assert "target='hopper': there is 'cpu'" in said


def test_a_target_that_there_is_not():
    assert "target='toaster': there is 'cpu', 'gpu', 'cuda', or a machine by name" in show(
        SMALL, "--target", "toaster", code=2
    )


def test_a_machine_without_a_pipeline_for_its_atoms_says_so():
    said = show(SMALL, "--target", "ampere", "--level", "plan")
    assert "conv on ampere with 108 workers, without a pipeline" in said
