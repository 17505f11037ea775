"""`tilewright run`: one problem, planned, compiled, checked and timed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.printing import fail
from tilewright.errors import TilewrightError

if TYPE_CHECKING:
    from tilewright.cli.workload import Workload
    from tilewright.compiler.compiled import Compiled

ROUNDS = 10


def run(
    problem: Annotated[
        str, typer.Argument(metavar="PROBLEM", help="Such as mb1ic64ih56oc64oh56kh3ph1, or 128x64:64x96.")
    ],
    dt: Annotated[
        str, typer.Option(metavar="TYPE", help="Element type, also tf32, f16sums; three as in bf16:bf16:f32.")
    ] = "f32",
    target: Annotated[
        str,
        typer.Option(help="cpu, gpu or cuda (those at hand), cpu:x86.avx2 (a machine by name) or interpreter."),
    ] = "cpu",
    plan: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Use this plan, as `show --level plan` prints it; @FILE reads it."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare with the reference: exact and real data.")] = False,
    timed: Annotated[bool, typer.Option("--time", help="The time, and its share of the peak.")] = False,
    require_fast: Annotated[
        bool, typer.Option("--require-fast", help="Fail if the plan is predicted far above its roofline.")
    ] = False,
) -> None:
    """Plan and compile a problem; check its results, time it.

    Images and results are NHWC. Exact data must give exactly the reference, real data a result within the bound of
    their rounding errors. The time on a CPU is the shortest of some calls. The peak is measured beside: products of the
    CPU's best atom for these types, nothing else. On a GPU the time is the device's, the median replay of a graph of
    launches, beside max(flops / peak, bytes / bandwidth). The exit code is 1 if a result is wrong.

    \b
    Examples:
      tilewright run mb1ic64ih56oc64oh56kh3ph1 --dt bf16 --check --time
      tilewright run 128x64:64x96 --check
      tilewright run 4096x4096:4096x4096 --dt bf16 --target cuda --time
    """
    try:
        right = _run(problem, dt, target, plan, check, timed, require_fast)
    except TilewrightError as fault:
        fail(str(fault))
    if not right:
        raise typer.Exit(1)


def _run(problem: str, dt: str, target: str, plan: str | None, check: bool, timed: bool, require_fast: bool) -> bool:
    from tilewright.cli.workload import known_target, read_problem, read_workload
    from tilewright.compiler.required import Required

    known_target(target)
    work = read_workload(read_problem(problem), dt)
    before = time.perf_counter()
    kernel = work.compiled(plan, target, Required.FAST if require_fast else Required.NOTHING)
    compiled = time.perf_counter() - before
    rows = [("problem", str(work.problem)), ("types", work.dt), ("target", target)]
    rows += [("plan", str(kernel.plan) + (", given" if plan is not None else ""))]
    rows += [("compiled", f"{compiled * 1e3:.0f} ms")]
    typer.echo("\n".join(f"{name:<9} {value}" for name, value in rows))
    typer.echo(("without --plan:\n" if plan is not None else "") + kernel.explain())
    passed = _checked(work, kernel) if check else True
    if timed:
        _timed(work, kernel)
    return passed


def _checked(work: Workload, kernel: Compiled) -> bool:
    import numpy as np

    found = work.check(kernel, np.random.default_rng(0))
    typer.echo("\n".join(found.lines()))
    return found.passed


def _timed(work: Workload, kernel: Compiled) -> None:
    import numpy as np

    from tilewright.cli.peak import peak_of
    from tilewright.cli.timing import shortest
    from tilewright.targets.names import is_gpu

    if is_gpu(kernel.target):
        _timed_on_gpu(work, kernel)
        return
    launch = kernel.bind(work.arrays(np.random.default_rng(0), exact=False))
    launch()
    peak = peak_of(*work.factors(kernel))
    best, rate = float("inf"), 0.0
    for _ in range(ROUNDS):
        rate = max(rate, peak.rate(5))
        best = min(best, shortest(launch))
    done = work.problem.ops / best
    typer.echo(
        f"time: {best * 1e6:.1f} us, {done / 1e9:.1f} GFLOP/s: {100 * done / rate:.1f} % of {rate / 1e9:.0f} GFLOP/s,"
        f" the peak of {peak.atom} measured beside",
    )


def _timed_on_gpu(work: Workload, kernel: Compiled) -> None:
    import numpy as np

    from tilewright.cli.gpu_timing import floor_of, seconds_on_gpu

    took = seconds_on_gpu(kernel, work.arrays(np.random.default_rng(0), exact=False))
    floor = floor_of(work, kernel.machine)
    typer.echo(
        f"time: {took * 1e6:.1f} us, {work.problem.ops / took / 1e12:.1f} TFLOP/s: {floor.seconds / took:.1%} of the "
        f"floor, {floor.seconds * 1e6:.1f} us by {floor.by}"
    )
