"""`tilewright show`: what a problem becomes, on any level."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli.printing import fail
from tilewright.errors import ArgumentError, TilewrightError

LEVELS = {
    "tile": "what is computed, over named dimensions",
    "plan": "how: the plan, what came next, what was refused and why",
    "block": "the programs of one worker: packing and the main one",
    "loop": "the main program's loops, addresses and vector operations",
    "host": "what happens when arguments are bound and at every launch; it launches the block programs",
    "llvm": "the main program as LLVM takes it",
    "asm": "the main program as assembly of the target",
}


def show(
    problem: Annotated[
        str, typer.Argument(metavar="PROBLEM", help="Such as mb1ic64ih56oc64oh56kh3ph1, or 128x64:64x96.")
    ],
    level: Annotated[str, typer.Option(metavar="|".join(LEVELS), help="Which form of it.")] = "block",
    dt: Annotated[str, typer.Option(metavar="TYPE", help="Element type; three as in bf16:bf16:f32.")] = "f32",
    plan: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Use this plan instead of the best; @FILE reads it.")
    ] = None,
    target: Annotated[
        str, typer.Option(help="cpu, the one at hand, or a machine by name, at hand or not: cpu:aarch64.neon.")
    ] = "cpu",
) -> None:
    """Print what a problem becomes on one level; the texts of block, loop and host programs compile again.

    \b
    Examples:
      tilewright show mb1ic64ih56oc64oh56kh3ph1 --dt bf16 --level plan
      tilewright show mb1ic64ih56oc64oh56kh3ph1 --level loop
      tilewright show 128x64:64x96 --level asm --target cpu:aarch64.neon
    """
    try:
        typer.echo(_text(problem, level, dt, plan, target).rstrip("\n"))
    except TilewrightError as fault:
        fail(str(fault))


def _text(problem: str, level: str, dt: str, plan: str | None, target: str) -> str:
    from tilewright.cli.workload import Workload, read_problem, read_types
    from tilewright.compiler.host import block_texts, host_text
    from tilewright.targets.registry import check_target

    if level not in LEVELS:
        raise ArgumentError(f"--level {level}: there is {', '.join(LEVELS)}")
    check_target(target, ())
    work = Workload(read_problem(problem), read_types(dt))
    if level == "tile":
        return str(work.traced[0])
    kernel = work.compiled(plan, target)
    if level == "plan":
        given = "without --plan:\n" if plan is not None else ""
        return "\n".join([*kernel.plan.lines(), "", f"{given}{kernel.explain()}"])
    if level == "block":
        return "\n".join(block_texts(kernel))
    if level == "host":
        return host_text(kernel)
    return kernel.main.text(level)
