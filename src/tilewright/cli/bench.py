"""`tilewright bench`: the problems of a list against another library, in one run on this CPU."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.draw import write_whole
from tilewright.cli.printing import fail, read_text, show, table
from tilewright.errors import ArgumentError, ProblemError, TilewrightError

if TYPE_CHECKING:
    from tilewright.cli.peer import Library
    from tilewright.cli.workload import Workload

PEERS = ("onednn",)
Row = dict[str, Any]


def bench(
    problems: Annotated[
        str, typer.Argument(metavar="SET", help="A file of problems, or the name of a list in the package.")
    ],
    against: Annotated[str, typer.Option(help="The other library: onednn, by way of PyTorch.")] = "onednn",
    dt: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Element type; what the file says, or f32, without it.")
    ] = None,
    mb: Annotated[int | None, typer.Option(min=1, metavar="N", help="Images in the batch.")] = None,
    output: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write one object for each problem to this file.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Samples of each side that must count.")] = 5,
) -> None:
    """Time the problems of a list against oneDNN, on this CPU, in one run.

    Weights are packed beforehand on both sides. Both run in turn. A sample counts if a probe of the machine's peak was
    fast before and after it and no thread waited for a core: others may use the machine, too. The shortest sample that
    counts is the time; a problem without one is listed as not measured. The peer is the fastest of PyTorch's calls
    with prepacked weights; its primitive is what oneDNN itself says it took. ratio = peer / ours: above 1, ours is
    faster. Worst first. It needs PyTorch: the extra `bench`.

    \b
    Examples:
      tilewright bench resnet_50 --against onednn --dt bf16 --mb 1 --json rows.json
    """
    try:
        _bench(problems, against, dt, mb, output, rounds)
    except TilewrightError as fault:
        fail(str(fault))
    except OSError as fault:
        fail(f"cannot write {output}: {fault.strerror}")


def _bench(problems: str, against: str, dt: str | None, mb: int | None, output: Path | None, rounds: int) -> None:
    if against not in PEERS:
        raise ArgumentError(f"--against {against}: there is {', '.join(PEERS)}")
    if output is not None and not output.parent.is_dir():
        raise ArgumentError(f"--json {output}: there is no folder {output.parent}")
    work = workloads(problems, dt, mb)
    from tilewright.cli.peer import Library

    library = Library()
    rows: list[Row] = []
    left_out: list[tuple[str, str]] = []
    probes: dict[str, float] = {}
    with _progress(len(work)) as step:
        for one in work:
            step(str(one.problem))
            try:
                rows.append(measured(one, library, rounds, probes))
            except TilewrightError as why:
                left_out.append((str(one.problem), str(why).splitlines()[0]))
    rows.sort(key=lambda row: row["ratio"])
    if output is not None:
        write_whole(output, json.dumps(rows, indent=1) + "\n")
    _print(rows, left_out)


def workloads(problems: str, dt: str | None, mb: int | None) -> list[Workload]:
    """The problems of a file or of a list in the package, each once."""
    from tilewright.cli.workload import Workload, read_problem, read_types
    from tilewright.problems import ConvProblem, read_batch, shape_list, shape_lists

    types = None if dt is None else read_types(dt)
    path = Path(problems)
    if len(problems) < 4096 and "\0" not in problems and path.is_file():
        text = read_text(path, "the file")
        found = [(problem, types or settings.dt) for settings, problem in read_batch(text)]
    elif problems in shape_lists():
        found = [(problem, types or read_types("f32")) for problem in shape_list(problems)]
    elif re.match(r"\d+x\d+|.*ic\d+", problems):
        found = [(read_problem(problems), types or read_types("f32"))]
    else:
        raise ProblemError(
            f"{problems!r} is neither a file nor a problem nor a list; there are {', '.join(shape_lists())}"
        )
    made: dict[tuple[str, tuple[str, str, str]], Workload] = {}
    for problem, kinds in found:
        if mb is not None and isinstance(problem, ConvProblem):
            problem = replace(problem, mb=mb)
        key = problem.canonical() if isinstance(problem, ConvProblem) else str(problem)
        made.setdefault((key, kinds), Workload(problem, kinds))
    return list(made.values())


def measured(work: Workload, library: Library, rounds: int, probes: dict[str, float]) -> Row:
    """One problem on both sides; `probes` holds the fastest probe of each atom so far, and is kept up to date."""
    import numpy as np

    from tilewright.cli.peak import peak_of
    from tilewright.cli.timing import Gate, shortest

    arrays = work.arrays(np.random.default_rng(0), exact=False)
    *_, out = arrays.values()
    forms = library.forms(work, arrays)
    kernel = work.compiled()
    launch = kernel.bind(arrays)
    launch()
    error = library.difference(out, forms)
    if error > library.tolerance(work):
        raise ArgumentError(f"the results differ: by {error:.1e} of their size")
    c = kernel.contraction
    peak = peak_of(c.a.dtype, c.b.dtype)
    gate = Gate(peak, best=probes.get(peak.atom, math.inf))
    name = min(forms, key=lambda form: min(shortest(forms[form]) for _ in range(2)))
    peer = forms[name]
    gate.take(
        {
            "ours": lambda: shortest(launch),
            "peer": lambda: shortest(peer),
            "primitive": lambda: library.primitive(peer),
        },
        rounds,
    )
    probes[peak.atom] = gate.best
    ours, theirs, primitive = (gate.least(side) for side in ("ours", "peer", "primitive"))
    if not ours or not theirs or not 0 < gate.best < math.inf:
        raise ArgumentError("the machine was not free: no sample counts")
    return {
        "problem": str(work.problem),
        "dt": ":".join(work.types),
        "ours_us": ours * 1e6,
        "peer_us": theirs * 1e6,
        "peer_primitive_us": None if primitive is None else primitive * 1e6,
        "ratio": theirs / ours,
        "ratio_primitive": None if primitive is None else primitive / ours,
        "gflops": work.problem.ops / ours / 1e9,
        "peak_gflops": peak.flops / gate.best / 1e9,
        "peak_share": work.problem.ops / ours / (peak.flops / gate.best),
        "peer_form": name,
        "plan": str(kernel.plan),
        "samples": {side: {"count": len(gate.kept(side)), "of": len(taken)} for side, taken in gate.samples.items()},
    }


def mean(ratios: list[float]) -> float:
    """The geometric mean.

    >>> mean([0.5, 2.0, 1.0])
    1.0
    """
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _print(rows: list[Row], left_out: list[tuple[str, str]]) -> None:
    shown = [
        (
            f"{row['ratio']:.2f}",
            "-" if row["ratio_primitive"] is None else f"{row['ratio_primitive']:.2f}",
            f"{row['ours_us']:.1f}",
            f"{row['peer_us']:.1f}",
            "-" if row["peer_primitive_us"] is None else f"{row['peer_primitive_us']:.1f}",
            f"{row['gflops']:.0f}",
            f"{100 * row['peak_share']:.0f}",
            str(min(row["samples"][side]["count"] for side in ("ours", "peer"))),
            row["problem"],
        )
        for row in rows
    ]
    parts: list[Any] = []
    if rows:
        names = (
            "ratio",
            "of primitive",
            "ours us",
            "peer us",
            "primitive us",
            "GFLOP/s",
            "% of peak",
            "samples",
            "problem",
        )
        parts.append(table(names, shown))
        parts.append(_means(rows))
    if left_out:
        parts.append(table(("not measured", "why"), left_out))
    show(*parts)


def _means(rows: list[Row]) -> str:
    whole = f"geometric mean of {len(rows)}: peer / ours {mean([row['ratio'] for row in rows]):.3f}"
    own = [row["ratio_primitive"] for row in rows if row["ratio_primitive"] is not None]
    return whole + (f", primitive / ours {mean(own):.3f}" if own else "; oneDNN's own time could not be had")


@contextmanager
def _progress(count: int) -> Iterator[Any]:
    """A bar on the terminal's error stream; nothing where no terminal reads."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    terminal = Console(stderr=True)
    columns = [*Progress.get_default_columns(), TimeElapsedColumn(), TextColumn("{task.fields[now]}")]
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("problems", total=count, now="")
        done = -1

        def step(now: str) -> None:
            nonlocal done
            done += 1
            bar.update(task, completed=done, now=now)

        yield step
