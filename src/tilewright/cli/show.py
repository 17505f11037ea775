"""`tilewright show`: print the form of a problem on any level, from the tile program to machine code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.printing import fail
from tilewright.errors import ArgumentError, TilewrightError

if TYPE_CHECKING:
    from tilewright.machine import Machine

LEVELS = {
    "tile": "what is computed, over named dimensions",
    "plan": "how: the plan, what came next, what was refused and why",
    "block": "the programs of one worker: packing and the main one",
    "loop": "the main program's loops, addresses and vector operations",
    "host": "what happens when arguments are bound and at every launch; it launches the block programs",
    "llvm": "the main program as LLVM takes it",
    "asm": "the main program as assembly of the target",
    "ptx": "the same, of a GPU that calls it so",
    "sass": "that GPU's instructions, where its disassembler is installed",
}


MACHINE_CODE = ("llvm", "asm", "ptx", "sass")


def _target_names() -> list[str]:
    """Return the values that `--target` accepts, for completion in a shell."""
    from tilewright.targets.cpu.families import is_cpu
    from tilewright.targets.registry import MACHINES

    return ["cpu", "gpu", "cuda", *(f"cpu:{name}" if is_cpu(name) else f"gpu:{name}" for name in MACHINES)]


def show(
    problem: Annotated[
        str, typer.Argument(metavar="PROBLEM", help="Such as mb1ic64ih56oc64oh56kh3ph1, or 128x64:64x96.")
    ],
    level: Annotated[
        str, typer.Option(metavar="|".join(LEVELS), help="Which form of it.", autocompletion=lambda: list(LEVELS))
    ] = "block",
    dt: Annotated[
        str, typer.Option(metavar="TYPE", help="Element type, also tf32, f16sums; three as in bf16:bf16:f32.")
    ] = "f32",
    plan: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Use this plan instead of the best; @FILE reads it.")
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="TARGET",
            help="cpu, gpu or cuda, those at hand, or a machine of `tilewright targets`: cpu:aarch64.neon, gpu:hopper.",
            autocompletion=_target_names,
        ),
    ] = "cpu",
) -> None:
    """Print a problem's kernel on one level; texts of block, loop and host programs can be compiled again.

    Machine code is generated for llvm, asm, ptx and sass only. All other levels are available for every described
    machine, on any computer.

    \b
    Examples:
      tilewright show mb1ic64ih56oc64oh56kh3ph1 --dt bf16 --level plan
      tilewright show mb1ic64ih56oc64oh56kh3ph1 --dt bf16 --level block --target cpu:x86.amx
      tilewright show 128x64:64x96 --level asm --target cpu:aarch64.neon
      tilewright show 4096x4096:4096x4096 --dt bf16 --level ptx --target gpu:hopper
    """
    try:
        typer.echo(_text_at_level(problem, level, dt, target, plan).rstrip("\n"))
    except TilewrightError as fault:
        fail(str(fault))


def _text_at_level(problem: str, level: str, dt: str, target: str, plan: str | None) -> str:
    """Return the text of a problem's kernel on one level, such as "block" or "asm"; the parameters are those of the
    command `show`. Raise `ArgumentError` for an unknown level.
    """
    from tilewright.cli.workload import read_problem, read_workload

    if level not in LEVELS:
        raise ArgumentError(f"--level {level}: there is {', '.join(LEVELS)}")
    machine = _machine_of(target, level)
    work = read_workload(read_problem(problem), dt)
    if level == "tile":
        return str(work.traced)
    if level in MACHINE_CODE:
        return work.compiled(plan, target).text(level)
    kernel = work.planned(machine, plan)
    if level == "plan":
        heading = "without --plan:\n" if plan is not None else ""
        return "\n".join([*kernel.plan.lines(), "", f"{heading}{kernel.explain()}"])
    return "\n".join(map(str, kernel.module.programs.values())) if level == "block" else kernel.text(level)


def _machine_of(target: str, level: str) -> Machine:
    """Return the machine that the text `target` names; raise `ArgumentError` if there is none.

    Any described machine may be named without "cpu:" or "gpu:", such as "x86.amx", unless `level` is machine code
    (llvm, asm, ptx, sass).
    """
    from tilewright.targets.names import GPU, is_gpu
    from tilewright.targets.registry import MACHINES, check_target, gpu_machine, machine, native

    if target in MACHINES and level not in MACHINE_CODE:
        return machine(target)
    check_target(target, (GPU,))
    return gpu_machine(target) if is_gpu(target) else native(target).machine
