"""`tilewright run`: plan, compile, check and time one problem."""

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

    Images and results are NHWC. With exact data the result must equal the reference; with real data the errors must be
    within the bound of rounding errors. On a CPU, the time of the shortest call is compared with a measured peak: a
    loop that executes only the CPU's best atom for these types. On a GPU, the median replay of a CUDA graph of launches
    is compared with max(flops / peak, bytes / bandwidth). The exit code is 1 if a result is wrong.

    \b
    Examples:
      tilewright run mb1ic64ih56oc64oh56kh3ph1 --dt bf16 --check --time
      tilewright run 128x64:64x96 --check
      tilewright run 4096x4096:4096x4096 --dt bf16 --target cuda --time
    """
    try:
        right = _run_problem(problem, dt, target, plan, check, timed, require_fast)
    except TilewrightError as fault:
        fail(str(fault))
    if not right:
        raise typer.Exit(1)


def _run_problem(
    problem: str, dt: str, target: str, plan: str | None, check: bool, timed: bool, require_fast: bool
) -> bool:
    """Plan and compile the problem and print its plan. With `check`, compare its results with the reference; with
    `timed`, time it. Return False if a checked result is wrong, otherwise True.

    The parameters are those of the command `run`.
    """
    from tilewright.cli.workload import known_target, read_problem, read_workload
    from tilewright.compiler.required import Required

    known_target(target)
    work = read_workload(read_problem(problem), dt)
    start = time.perf_counter()
    kernel = work.compiled(plan, target, Required.FAST if require_fast else Required.NOTHING)
    compile_seconds = time.perf_counter() - start
    rows = [("problem", str(work.problem)), ("types", work.dt), ("target", target)]
    rows += [("plan", str(kernel.plan) + (", given" if plan is not None else ""))]
    rows += [("compiled", f"{compile_seconds * 1e3:.0f} ms")]
    typer.echo("\n".join(f"{name:<9} {value}" for name, value in rows))
    typer.echo(("without --plan:\n" if plan is not None else "") + kernel.explain())
    passed = _check_and_print(work, kernel) if check else True
    if timed:
        _time_and_print(work, kernel)
    return passed


def _check_and_print(work: Workload, kernel: Compiled) -> bool:
    """Run the compiled `kernel` of `work`, compare its results with the reference and print the outcome. Return True if
    they agree within the bounds of rounding errors.
    """
    import numpy as np

    checks = work.check(kernel, np.random.default_rng(0))
    typer.echo("\n".join(checks.lines()))
    return checks.passed


def _time_and_print(work: Workload, kernel: Compiled) -> None:
    """Time the compiled `kernel` of `work` and print its time and rate: on a CPU beside the measured peak, on a GPU
    beside the roofline.
    """
    import numpy as np

    from tilewright.cli.peak import peak_of
    from tilewright.cli.timing import shortest
    from tilewright.targets.names import is_gpu

    if is_gpu(kernel.target):
        _time_on_gpu_and_print(work, kernel)
        return
    launch = kernel.bind(work.arrays(np.random.default_rng(0), exact=False))
    launch()
    peak = peak_of(*work.factors(kernel))
    best_time, peak_rate = float("inf"), 0.0
    for _ in range(ROUNDS):
        peak_rate = max(peak_rate, peak.rate(5))
        best_time = min(best_time, shortest(launch))
    achieved = work.problem.ops / best_time
    typer.echo(
        f"time: {best_time * 1e6:.1f} us, {achieved / 1e9:.1f} GFLOP/s: {100 * achieved / peak_rate:.1f} % of "
        f"{peak_rate / 1e9:.0f} GFLOP/s, the peak of {peak.atom} measured beside",
    )


def _time_on_gpu_and_print(work: Workload, kernel: Compiled) -> None:
    """Time the compiled `kernel` of `work` on the GPU in use, and print its time and rate beside the roofline of the
    problem.
    """
    import numpy as np

    from tilewright.cli.gpu_timing import floor_of, seconds_on_gpu

    seconds = seconds_on_gpu(kernel, work.arrays(np.random.default_rng(0), exact=False))
    floor = floor_of(work, kernel.machine)
    typer.echo(
        f"time: {seconds * 1e6:.1f} us, {work.problem.ops / seconds / 1e12:.1f} TFLOP/s: {floor.seconds / seconds:.1%} "
        f"of the floor, {floor.seconds * 1e6:.1f} us by {floor.by}"
    )
