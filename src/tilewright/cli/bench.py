"""`tilewright bench`: time a list of problems against another library, on this CPU or on a GPU."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.draw import write_whole
from tilewright.cli.printing import fail, is_file, read_text, show, table
from tilewright.errors import ArgumentError, ProblemError, TilewrightError

if TYPE_CHECKING:
    from tilewright.cli.peer import Library
    from tilewright.cli.workload import Workload

ONEDNN = "onednn"
PEERS = (ONEDNN, "cublas", "cudnn")
Row = dict[str, Any]


def _shape_list_names() -> list[str]:
    """Return the names of the problem lists in the package, for completion in a shell."""
    from tilewright.problems import shape_lists

    return list(shape_lists())


def bench(
    problems: Annotated[
        str,
        typer.Argument(
            metavar="SET",
            help="A file of problems, or the name of a list in the package.",
            autocompletion=_shape_list_names,
        ),
    ],
    against: Annotated[
        str,
        typer.Option(help="The other library, by way of PyTorch: onednn; or on a GPU, cublas, cudnn or cublas,cudnn."),
    ] = ONEDNN,
    dt: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="Element type, also tf32; what the file says, or f32, without it."),
    ] = None,
    mb: Annotated[int | None, typer.Option(min=1, metavar="N", help="Images in the batch.")] = None,
    output: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write one object for each problem to this file.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Valid samples of Tilewright and of the library.")
    ] = 5,
    seconds: Annotated[
        float, typer.Option(min=0.0, metavar="S", help="How long a problem may wait for valid samples.")
    ] = 5.0,
) -> None:
    """Time the problems of a list against oneDNN on this CPU, or against cuBLAS and cuDNN on a GPU.

    On a GPU, Tilewright and the library run in CUDA graphs. Their replays alternate, and the time is that of the median
    replay: long programs lower the clock. cuDNN chooses its algorithm by benchmark. The floor is the roofline,
    max(flops / peak, bytes / bandwidth); the prediction is the planner's.

    On a CPU, Tilewright and oneDNN pack weights before timing, and their calls alternate. A sample is valid if a probe
    of the machine's peak was fast before and after the sample and no thread waited for a core: other programs may use
    the machine, too. The time is the shortest valid sample. If there is none after --seconds, it is the shortest of all
    samples, and the row is marked "busy". The peer is the fastest of PyTorch's calls with prepacked weights; the
    primitive is the time that oneDNN itself reports. ratio = peer / ours: above 1, Tilewright is faster. Rows are
    printed as they are measured, and written to --json worst first. The command needs PyTorch: the extra `bench`.

    \b
    Examples:
      tilewright bench resnet_50 --against onednn --dt bf16 --mb 1 --json rows.json
      tilewright bench mixed --seconds 1
      tilewright bench resnet_50 --against cudnn,cublas --dt bf16 --mb 32
    """
    try:
        _run_bench(problems, against, dt, mb, output, rounds, seconds)
    except TilewrightError as fault:
        fail(str(fault))
    except OSError as fault:
        fail(f"cannot write {output}: {fault.strerror}")


def _run_bench(
    problems: str, against: str, dt: str | None, mb: int | None, output: Path | None, rounds: int, seconds: float
) -> None:
    """Measure the problems of the command `bench`, print one row each and a summary, and write all rows to `output` as
    JSON, worst ratio first (None: to no file). The parameters are those of the command.

    `problems` names a list, a file or one problem; `against` is a comma-separated list of libraries; `dt` is an element
    type, `mb` a batch size (None: those of the problems). Each problem is measured until Tilewright and the library
    have `rounds` valid samples, or `seconds` have passed. Problems that fail are listed with the reason. Raise
    `ArgumentError` for unknown libraries or a folder that does not exist.
    """
    peers = against.split(",")
    if not set(peers) <= set(PEERS) or (ONEDNN in peers and len(peers) > 1):
        raise ArgumentError(f"--against {against}: there is {ONEDNN}, on the CPU, and on a GPU cublas, cudnn, or both")
    if output is not None and not output.parent.is_dir():
        raise ArgumentError(f"--json {output}: there is no folder {output.parent}")
    problem_list = workloads(problems, dt, mb)
    columns, measure = _cpu_measurer(rounds, seconds) if peers == [ONEDNN] else _gpu_measurer(peers)
    rows: list[Row] = []
    skipped: list[tuple[str, str]] = []
    with progress(len(problem_list)) as progress_line:
        for workload in problem_list:
            progress_line.begins(str(workload.problem))
            try:
                rows.append(measure(workload, progress_line.waits))
            except TilewrightError as why:
                skipped.append((str(workload.problem), str(why).splitlines()[0]))
            else:
                typer.echo("\n".join([*([heading(columns)] if len(rows) == 1 else []), line(rows[-1], columns)]))
    rows.sort(key=lambda row: row["ratio"])
    if output is not None:
        write_whole(output, json.dumps(rows, indent=1) + "\n")
    output_parts: list[Any] = [means(rows)] if rows else []
    if skipped:
        output_parts.append(table(("not measured", "why"), skipped))
    show(*output_parts)


Columns = dict[str, Callable[[Row], str]]
Measurer = Callable[["Workload", Callable[[str], None]], Row]
"""Measures a workload: (workload, callback that is told what is being waited for) -> row."""


def _cpu_measurer(rounds: int, seconds: float) -> tuple[Columns, Measurer]:
    """Return (columns, measure) for this CPU. `columns` is {column name: function from a row to the text of its cell};
    `measure` is a function that times one workload against oneDNN and returns its row. `rounds` and `seconds` are those
    of `measured`.
    """
    from tilewright.cli.peer import Library

    library, probes = Library(), dict[str, float]()
    return COLUMNS, lambda work, waits: measured(work, library, rounds, probes, seconds, waits)


def _gpu_measurer(peers: list[str]) -> tuple[Columns, Measurer]:
    """Return (columns, measure) for the GPU in use. `columns` is {column name: function from a row to the text of its
    cell}; `measure` is a function that times one workload against the libraries `peers` ("cublas", "cudnn") and returns
    its row.
    """
    from tilewright.cli import gpu_peer

    return gpu_peer.COLUMNS, gpu_peer.GpuLibraries(peers).measured


def workloads(problems: str, dt: str | None, mb: int | None) -> list[Workload]:
    """Return a list of the distinct workloads (problem and element types) that the text `problems` names, in order.

    `problems` is the path of a file, the name of a list in the package, or one problem such as "128x64:64x96". `dt`
    names the element types of all workloads, or is "tf32"; with None, they are those of the file, otherwise f32. `mb`
    replaces the batch size of convolutions; None keeps it. Raise `ProblemError` if `problems` is none of these, and
    `ArgumentError` if the file cannot be read.
    """
    from tilewright.cli.workload import TF32, Workload, read_problem, read_types
    from tilewright.problems import ConvProblem, read_batch, shape_list, shape_lists

    types = None if dt is None else read_types("f32" if dt == TF32 else dt)
    if is_file(problems):
        text = read_text(Path(problems), "the file")
        typed_problems = [(problem, types or settings.dt) for settings, problem in read_batch(text)]
    elif problems in shape_lists():
        typed_problems = [(problem, types or read_types("f32")) for problem in shape_list(problems)]
    elif re.match(r"\d+x\d+|.*ic\d+", problems):
        typed_problems = [(read_problem(problems), types or read_types("f32"))]
    else:
        raise ProblemError(
            f"{problems!r} is neither a file nor a problem nor a list; there are {', '.join(shape_lists())}"
        )
    workload_of: dict[tuple[str, tuple[str, str, str]], Workload] = {}
    for problem, problem_types in typed_problems:
        if mb is not None and isinstance(problem, ConvProblem):
            problem = replace(problem, mb=mb)
        key = problem.canonical() if isinstance(problem, ConvProblem) else str(problem)
        workload_of.setdefault((key, problem_types), Workload(problem, problem_types, TF32 if dt == TF32 else None))
    return list(workload_of.values())


def measured(
    work: Workload,
    library: Library,
    rounds: int,
    probes: dict[str, float],
    seconds: float,
    waiting: Callable[[str], None] = lambda _: None,
) -> Row:
    """Time one workload with Tilewright and with PyTorch's oneDNN calls on this CPU, and return its row of results
    ({name: number or text}).

    Samples are taken until Tilewright and oneDNN have `rounds` valid samples each, or `seconds` have passed. `probes`
    is {atom: seconds of the fastest peak probe so far} and is updated. `waiting` is called with a text that says what
    is being waited for. Raise `ArgumentError` if the two results differ, or if Tilewright or oneDNN has no sample.
    """
    import numpy as np

    from tilewright.cli.peak import peak_of
    from tilewright.cli.timing import Gate, shortest

    waiting("data")
    arrays = work.arrays(np.random.default_rng(0), exact=False)
    *_, out = arrays.values()
    waiting("the peer's calls")
    peer_calls = library.calls(work, arrays)
    waiting("machine code")
    kernel = work.compiled()
    launch = kernel.bind(arrays)
    launch()
    error = library.difference(out, peer_calls)
    if error > library.tolerance(work):
        raise ArgumentError(f"the results differ: by {error:.1e} of their size")
    peak = peak_of(*work.factors(kernel))
    gate = Gate(peak, best=probes.get(peak.atom, math.inf))
    peer_form = min(peer_calls, key=lambda call_name: min(shortest(peer_calls[call_name]) for _ in range(2)))
    peer = peer_calls[peer_form]
    gate.take(
        {
            "ours": lambda: shortest(launch),
            "peer": lambda: shortest(peer),
            "primitive": lambda: library.primitive(peer),
        },
        rounds,
        seconds,
        waiting,
    )
    probes[peak.atom] = gate.best
    is_busy = gate.least("ours") is None or gate.least("peer") is None
    best_sample = gate.shortest if is_busy else gate.least
    ours, theirs, primitive = (best_sample(side) for side in ("ours", "peer", "primitive"))
    if not ours or not theirs or not 0 < gate.best < math.inf:
        raise ArgumentError("no sample was taken")
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
        "peer_form": peer_form,
        "plan": str(kernel.plan),
        "busy": is_busy,
        "samples": {
            side: {"count": len(gate.kept(side)), "of": len(side_samples)}
            for side, side_samples in gate.samples.items()
        },
    }


def mean(ratios: list[float]) -> float:
    """Return the geometric mean of `ratios`, a nonempty list of positive numbers.

    >>> mean([0.5, 2.0, 1.0])
    1.0
    """
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


COLUMNS: dict[str, Callable[[Row], str]] = {
    "ratio": lambda row: f"{row['ratio']:.2f}",
    "of primitive": lambda row: "-" if row["ratio_primitive"] is None else f"{row['ratio_primitive']:.2f}",
    "ours us": lambda row: f"{row['ours_us']:.1f}",
    "peer us": lambda row: f"{row['peer_us']:.1f}",
    "primitive us": lambda row: "-" if row["peer_primitive_us"] is None else f"{row['peer_primitive_us']:.1f}",
    "GFLOP/s": lambda row: f"{row['gflops']:.0f}",
    "% of peak": lambda row: f"{100 * row['peak_share']:.0f}",
    "samples": lambda row: "busy" if row["busy"] else str(min(row["samples"][s]["count"] for s in ("ours", "peer"))),
}
"""{column name: cell text of a row}, printed before the problem; columns are at least nine characters wide."""


def heading(columns: Columns) -> str:
    """Return the heading line of a table: the names of `columns`, right-aligned, then "problem"."""
    return "  ".join([*(f"{name:>9}" for name in columns), "problem"])


def line(row: Row, columns: Columns) -> str:
    """Return the measured `row` as a line of text: a cell for each of `columns`, then the problem. The cells stand
    under the names of `heading(columns)`.
    """
    return "  ".join([*(f"{cell(row):>{max(9, len(name))}}" for name, cell in columns.items()), row["problem"]])


def means(rows: list[Row]) -> str:
    """Return a summary of the measured `rows` as text: geometric means of the ratios, the number of busy rows if any,
    and the problem with the worst ratio.

    `rows` must not be empty, and must be sorted by ratio, worst (smallest) first.
    """
    text = f"geometric mean of {len(rows)}: peer / ours {mean([row['ratio'] for row in rows]):.3f}"
    if "ratio_primitive" in rows[0]:
        primitive_ratios = [row["ratio_primitive"] for row in rows if row["ratio_primitive"] is not None]
        text += (
            f", primitive / ours {mean(primitive_ratios):.3f}"
            if primitive_ratios
            else "; oneDNN's own time could not be had"
        )
    busy = sum(row.get("busy", False) for row in rows)
    if busy:
        text += f"; {busy} marked busy: others used the machine while they were measured"
    return f"{text}\nslowest beside the peer: {rows[0]['problem']}, {rows[0]['ratio']:.2f}"


class Progress:
    """Shows on the error stream which problem is being measured and what is being waited for."""

    def __init__(self, count: int, status: Any):
        self.count, self.status, self.number, self.problem = count, status, 0, ""

    def begins(self, problem: str) -> None:
        """Advance to the next problem, called `problem`. If the error stream is no terminal, print a line with its
        number and name.
        """
        self.number, self.problem = self.number + 1, problem
        if self.status is None:
            typer.echo(f"{self.number} of {self.count}: {problem}", err=True)

    def waits(self, what: str) -> None:
        """Show on the terminal that the measurement waits for `what`. If the error stream is no terminal, print
        nothing.
        """
        if self.status is not None:
            self.status.update(f"{self.number} of {self.count}: {self.problem}: waits for {what}")


@contextmanager
def progress(count: int) -> Iterator[Progress]:
    """Context manager: its value is a `Progress`, which shows on the error stream which of `count` problems is being
    measured.

    On a terminal one line is updated in place; otherwise each problem has a line.
    """
    from rich.console import Console

    terminal = Console(stderr=True)
    if not terminal.is_terminal:
        yield Progress(count, None)
        return
    with terminal.status("") as status:
        yield Progress(count, status)
