"""`tilewright show`: what a problem becomes, on any level."""

from __future__ import annotations

from dataclasses import replace
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
    "asm": "the main program as assembly of this CPU",
}


MACHINE_CODE = ("llvm", "asm")


def _targets() -> list[str]:
    from tilewright.targets.registry import MACHINES

    return list(MACHINES)


def show(
    problem: Annotated[
        str, typer.Argument(metavar="PROBLEM", help="Such as mb1ic64ih56oc64oh56kh3ph1, or 128x64:64x96.")
    ],
    level: Annotated[
        str, typer.Option(metavar="|".join(LEVELS), help="Which form of it.", autocompletion=lambda: list(LEVELS))
    ] = "block",
    dt: Annotated[str, typer.Option(metavar="TYPE", help="Element type; three as in bf16:bf16:f32.")] = "f32",
    target: Annotated[
        str | None,
        typer.Option(
            metavar="MACHINE", help="As a machine of `tilewright targets` does it; this CPU.", autocompletion=_targets
        ),
    ] = None,
    plan: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Use this plan instead of the best; @FILE reads it.")
    ] = None,
) -> None:
    """Print what a problem becomes on one level; the texts of block, loop and host programs compile again.

    Machine code is made for llvm and asm only. All other levels can be had of any machine that is described, on any.

    \b
    Examples:
      tilewright show mb1ic64ih56oc64oh56kh3ph1 --dt bf16 --level plan
      tilewright show mb1ic64ih56oc64oh56kh3ph1 --dt bf16 --level block --target x86.amx
    """
    try:
        typer.echo(_text(problem, level, dt, target, plan).rstrip("\n"))
    except TilewrightError as fault:
        fail(str(fault))


def _text(problem: str, level: str, dt: str, target: str | None, plan: str | None) -> str:
    from tilewright.cli.workload import Workload, read_problem, read_types
    from tilewright.compiler.host import block_texts

    if level not in LEVELS:
        raise ArgumentError(f"--level {level}: there is {', '.join(LEVELS)}")
    if level in MACHINE_CODE and target is not None:
        raise ArgumentError(f"--level {level}: machine code is made for this CPU only; leave --target {target} out")
    work = Workload(read_problem(problem), read_types(dt))
    if level == "tile":
        return str(work.traced[0])
    if level in MACHINE_CODE:
        return work.compiled(plan).text(level)
    kernel = work.planned(_machine(target), plan)
    if level == "plan":
        given = "without --plan:\n" if plan is not None else ""
        return "\n".join([*kernel.plan.lines(), "", f"{given}{kernel.explain()}"])
    return "\n".join(block_texts(kernel)) if level == "block" else kernel.text(level)


def _machine(target: str | None) -> Machine:
    """The machine of that name; None: the one at hand, with those of its atoms that this CPU has."""
    from tilewright.targets.registry import NATIVE, machine, native

    if target is None:
        here = native(NATIVE[0])
        row: Machine = here.machine()
        return replace(row, multiply={name: atom for name, atom in row.multiply.items() if here.has(atom)})
    try:
        return machine(target)
    except LookupError as fault:
        raise ArgumentError(f"--target {target}: {fault}") from None
