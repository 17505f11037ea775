"""`tilewright run`, `tilewright show` and `tilewright bench`: what they print, and their exit codes."""

from __future__ import annotations

import importlib
import json
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

import tilewright as package
from tilewright.cli import app, peer
from tilewright.cli.bench import workloads
from tilewright.cli.peak import fastest_atom, peak_of, peak_text
from tilewright.cli.timing import FREE, WAITED, Gate, Sample
from tilewright.cli.workload import Workload, read_problem, read_types, read_workload
from tilewright.compiler.compiled import Compiled
from tilewright.errors import ArgumentError
from tilewright.ir.block import BLOCK
from tilewright.ir.dtypes import dtype
from tilewright.ir.host import parse_host
from tilewright.ir.loop import parse_loop
from tilewright.ir.parser import parse_programs
from tilewright.plan.text import parse_plan
from tilewright.targets.cpu import host
from tilewright.targets.registry import machine

bench_command = importlib.import_module("tilewright.cli.bench")  # the package's name `bench` is the command itself
SMALL = "mb1ic8ih6iw5oc12kh3kw2ph1pw0"
# the narrowest vectors of f32 that this CPU has
_ATOM = min((a for a in host.host_machine().multiply.values() if a.name.endswith(".f32")), key=lambda a: a.shape[1])
_LANES = _ATOM.shape[1]
_WALKED = -(-12 // _LANES) * _LANES
PLAN = (
    "axis rows = (m_1 6, m_0 4): task m_1 3, loop m_1 1, loop 2, unit 1; "
    f"axis columns = (f_0 {_WALKED}{' of 12' if _WALKED > 12 else ''}): task {_WALKED}, loop {_LANES}, unit {_LANES}; "
    "axis depth = (k_2 3, k_1 2, k_0 8): loop k_2 1, loop k_1 1, loop k_0 2, unit k_0 1; "
    f"grid columns, rows; loops columns, rows, depth; x in place; w packed at bind; atom {_ATOM.name}"
)


def tilewright(*arguments: str, code: int = 0) -> tuple[str, str]:
    """Runs a command; what it printed, and what it complained."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80", "NO_COLOR": "1"})
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stdout, result.stderr


def small(dt: str = "f32") -> Workload:
    return Workload(read_problem(SMALL), read_types(dt))


@pytest.mark.parametrize("command", ["run", "show", "bench"])
def test_each_command_is_listed_and_has_an_example(command: str) -> None:
    assert command in tilewright("--help")[0]
    assert f"tilewright {command} " in tilewright(command, "--help")[0]


# -- run ------------------------------------------------------------------------------------------------------


def test_run_prints_the_plan_and_its_reasons() -> None:
    printed, _ = tilewright("run", SMALL)
    kernel = small().compiled()
    assert f"plan      {kernel.plan}\n" in printed
    assert kernel.explain() in printed
    assert "exact data" not in printed


@pytest.mark.sampled(3)
@pytest.mark.parametrize("problem", [SMALL, "13x20:20x9"])
@pytest.mark.parametrize("dt", ["f32", "bf16", "f16", "s8", "bf16:bf16:f32"])
def test_run_checks(problem: str, dt: str) -> None:
    printed, _ = tilewright("run", problem, "--dt", dt, "--check")
    assert "exact data: all" in printed
    assert "of its bound" in printed


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("problem", "count"),
    [
        ("mb2ic5iw9oc7kw3pw1", 126),
        ("mb1ic3id4ih3iw5oc4kd2kh3kw2ph1", 144),
        ("mb1ic2iw7oc3ow9kw3pw1", 27),
        ("2x3x4:2x4x5", 30),
        ("4x3x8:1x8x5", 60),
        ("3x1x5x8:3x2x8x9", 270),
        ("1x1x5x8:1x2x8x9", 90),
    ],
)
@pytest.mark.parametrize("dt", ["f32", "bf16"])
def test_run_checks_other_axes_and_batches(problem: str, count: int, dt: str) -> None:
    printed, _ = tilewright("run", problem, "--dt", dt, "--check")
    assert f"exact data: all {count} elements are equal" in printed


def test_run_takes_a_plan() -> None:
    printed, _ = tilewright("run", SMALL, "--plan", PLAN, "--check")
    assert f"plan      {PLAN}, given" in printed
    assert "without --plan:\nconv on " in printed
    assert "exact data: all" in printed


def test_run_on_the_interpreter() -> None:
    printed, _ = tilewright("run", "mb1ic2ih3oc3kh2", "--target", "interpreter", "--check")
    assert "target    interpreter" in printed
    assert "exact data: all 12 elements are equal" in printed


def test_run_tells_the_time_and_its_share_of_the_peak() -> None:
    printed, _ = tilewright("run", SMALL, "--time")
    line = next(line for line in printed.splitlines() if line.startswith("time: "))
    assert " us, " in line
    assert " GFLOP/s: " in line
    assert line.endswith("measured beside")
    assert 0 <= float(line.split(" % of ")[0].split()[-1]) < 110  # 0.0: many cores, and next to no work


def test_a_wrong_result_is_counted_and_the_exit_code_is_1(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = Compiled.bind

    def wrong(self: Compiled, arrays: Any, kept: Any = None) -> Any:
        launch = bind(self, arrays, kept)

        def spoilt() -> None:
            launch()
            arrays["y"].flat[3] += 1

        return spoilt

    monkeypatch.setattr(Compiled, "bind", wrong)
    printed, _ = tilewright("run", SMALL, "--check", code=1)
    assert "exact data: 1 of" in printed
    assert "too large" in printed


def test_what_is_not_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compiled, "bind", lambda self, arrays, kept=None: lambda: None)
    for dt in ("f32", "s8"):
        printed, _ = tilewright("run", SMALL, "--dt", dt, "--check", code=1)
        assert "differ" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((SMALL, "--dt", "f13"), "'f13' names no element type"),
        ((SMALL, "--dt", "f32:f32"), "one type, or three"),
        ((SMALL, "--dt", "u8:s8:s32"), "factors of two types, u8 and s8"),
        ((SMALL, "--target", "toaster"), "target='toaster': there is 'cpu', 'interpreter'"),
        ((SMALL, "--plan", "axis rows = (m_1 6): whole"), "there is no dimension rows; there are M_1, M_0"),
        ((SMALL, "--plan", "waves"), "is no statement"),
        ((SMALL, "--plan", PLAN.replace("loop 2, unit", "loop 0, unit")), "at least one element"),
        ((SMALL, "--plan", ""), "the plan is empty"),
        (("mb1ic8ih",), "expected a number after ih"),
        (("1x3x4:1x4x5:6x3x5",), "both factors are repeated 6 times along batch axis 0"),
        (("0x3:3x4",), "0x3:3x4: an extent is 0, there is nothing to compute"),
        (("mb0ic8iw9oc8kw3",), "an extent is 0, there is nothing to compute"),
    ],
)
def test_what_run_refuses(arguments: tuple[str, ...], message: str) -> None:
    printed, complaint = tilewright("run", *arguments, code=2)
    assert printed == ""
    assert complaint.startswith("error: ")
    assert message in complaint


# -- show -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dt", ["f32", "f16", "bf16"])
def test_show_prints_texts_that_parse(dt: str) -> None:
    assert tilewright("show", SMALL, "--dt", dt, "--level", "tile")[0].startswith("tile conv(")
    plan, _, why = tilewright("show", SMALL, "--dt", dt, "--level", "plan")[0].partition("\n\n")
    assert str(parse_plan(plan)) == "; ".join(plan.splitlines())
    assert why.startswith("conv on ")
    block = tilewright("show", SMALL, "--dt", dt)[0]
    names = [p.name for p in parse_programs(block, {"block": BLOCK})]
    assert names[-1] == "conv"
    assert any(name.startswith("pack") for name in names)
    converted = dt == "f16" or (dt == "bf16" and "avx512bf16" not in host.features())
    assert (len(names) > 2) == converted
    loop = tilewright("show", SMALL, "--dt", dt, "--level", "loop")[0]
    assert str(parse_loop(loop)) == loop
    assert "define void @conv(" in tilewright("show", SMALL, "--dt", dt, "--level", "llvm")[0]
    assert "conv:" in tilewright("show", SMALL, "--dt", dt, "--level", "asm")[0]


@pytest.mark.parametrize("dt", ["f32", "f16", "s8"])
@pytest.mark.parametrize("target", ["cpu", "interpreter"])
def test_the_host_text_is_the_whole_kernel(dt: str, target: str) -> None:
    text, _ = tilewright("show", SMALL, "--dt", dt, "--level", "host")
    host = text[: text.index("\n\n") + 1]
    assert str(parse_host(host)) == host
    assert "bind {" in host
    arrays = small(dt).arrays(np.random.default_rng(0), exact=True)
    made = package.compile_text(text, target)
    made.bind(*(arrays[name] for name in ("x", "w", "y")))()
    assert np.array_equal(arrays["y"], small(dt).reference(arrays).astype(arrays["y"].dtype))


def test_show_with_a_plan() -> None:
    shown = tilewright("show", SMALL, "--level", "plan", "--plan", PLAN)[0].partition("\n\nwithout --plan:")[0]
    assert shown.splitlines() == PLAN.split("; ")


def test_a_plan_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "plan.txt").write_text("\n".join(PLAN.split("; ")))
    assert f"plan      {PLAN}, given" in tilewright("run", SMALL, "--plan", f"@{tmp_path / 'plan.txt'}")[0]
    assert "cannot be read" in tilewright("run", SMALL, "--plan", "@no such file", code=2)[1]


def test_a_level_that_there_is_not() -> None:
    assert (
        "there is tile, plan, block, loop, host, llvm, asm" in tilewright("show", SMALL, "--level", "tree", code=2)[1]
    )


# -- the peak, and samples that count ---------------------------------------------------------------------------


def test_every_atom_of_this_cpu_has_a_probe() -> None:
    for atom in host.host_machine().multiply.values():
        if atom.shape[0] in (1, 16):
            text, products = peak_text(atom, host.host_machine(), 1)
            made = package.compile_text(text, "cpu")
            a, b, y = (np.ones(tuple(map(int, x.type.shape)), x.type.dtype.numpy) for x in made.main.args)
            made.bind(a, b, y)()
            most = 2 ** (ml_dtypes.finfo(y.dtype).nmant + 1) if y.dtype.kind == "f" else products  # ones add up so far
            assert float(y[0, 0, 0]) == min(products // y[0].size, most)  # it did all that it says


def test_the_peak_was_measured_with_sums_that_llvm_spilled() -> None:
    """14 rows of two vectors of AVX-512 went through the stack: the peak came out 15 % too low."""
    row = machine("x86.avx512")
    text, products = peak_text(row.multiply_atom("avx512.f32"), row, 1)
    lines = package.compile_text(text, "cpu:x86.avx512").text("asm").splitlines()
    assert not [line for line in lines if "(%rsp)" in line and "mm" in line]
    assert products % (13 * 32) == 0


def test_the_peak_is_that_of_the_fastest_atom() -> None:
    atom = fastest_atom(host.host_machine(), dtype("bf16"), dtype("bf16"))
    if atom is not None:
        assert peak_of(dtype("bf16"), dtype("bf16")).atom == atom.name
    with pytest.raises(ArgumentError, match="no atom of this CPU multiplies i64 by i64"):
        peak_of(dtype("i64"), dtype("i64"))


def test_samples_beside_slow_probes_or_with_waiting_threads_do_not_count() -> None:
    gate = Gate(None, best=1.0)  # type: ignore[arg-type]
    gate.samples["ours"] = [
        Sample(3.0, FREE, WAITED),
        Sample(1.0, FREE * 1.01, 0.0),
        Sample(2.0, 1.0, WAITED * 1.01),
        Sample(None, 1.0, 0.0),
    ]
    assert gate.kept("ours") == [3.0]
    gate.best = 0.9  # a faster probe later on makes them slow
    assert gate.kept("ours") == []
    assert gate.least("ours") is None


# -- bench ----------------------------------------------------------------------------------------------------


def test_bench_without_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(peer.importlib, "import_module", missing)
    assert "install tilewright[bench]" in tilewright("bench", "resnet_50", code=2)[1]


@pytest.mark.parametrize("against", ["cublas", "cudnn", "cublas,cudnn"])
def test_bench_on_a_gpu_needs_one_and_torch(monkeypatch: pytest.MonkeyPatch, against: str) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    gpu_peer = importlib.import_module("tilewright.cli.gpu_peer")
    monkeypatch.setattr(gpu_peer.importlib, "import_module", missing)
    message = tilewright("bench", "64x64:64x64", "--against", against, code=2)[1]
    assert "are called by way of PyTorch, which is not installed: install tilewright[bench]" in message
    without = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setattr(gpu_peer.importlib, "import_module", lambda name: without)
    message = tilewright("bench", "64x64:64x64", "--against", against, code=2)[1]
    assert f"--against {against}: PyTorch finds no GPU here" in message


def test_the_floor_of_a_problem_is_its_products_or_its_bytes() -> None:
    from tilewright.cli.gpu_timing import floor_of
    from tilewright.targets.registry import machine

    row = machine("hopper")
    flat = floor_of(Workload(read_problem("64x8192:8192x8192"), read_types("bf16")), row)
    assert flat.by == "memory"
    assert flat.seconds == flat.memory == 2 * (64 * 8192 * 2 + 8192**2) / (132 * 18.0 * 1.755e9)
    plain, rounded = (floor_of(read_workload(read_problem("4096x4096:4096x4096"), dt), row) for dt in ("f32", "tf32"))
    assert rounded.products * 4 < plain.products
    assert "tf32" in rounded.atom
    assert "tf32" not in plain.atom


def test_run_rounds_to_tf32_where_that_is_the_type() -> None:
    printed, _ = tilewright("run", "17x40:40x9", "--dt", "tf32", "--check")
    assert "types     tf32" in printed
    assert "all 153 elements are equal" in printed


def test_bench_refuses_before_it_starts(tmp_path: Path) -> None:
    for other in ("mkl", "onednn,cudnn"):
        message = tilewright("bench", "resnet_50", "--against", other, code=2)[1]
        assert f"--against {other}: there is onednn, on the CPU, and on a GPU cublas, cudnn, or both" in message
    message = tilewright("bench", "resnet_51", code=2)[1]
    assert "'resnet_51' is neither a file nor a problem nor a list; there are " in message
    assert "no folder" in tilewright("bench", "resnet_50", "--json", str(tmp_path / "a" / "b"), code=2)[1]
    assert "names no element type" in tilewright("bench", "resnet_50", "--dt", "f13", code=2)[1]


def test_files_that_are_no_text_are_named(tmp_path: Path) -> None:
    file = tmp_path / "binary"
    file.write_bytes(bytes(range(256)))
    for arguments in (("run", SMALL, "--plan", f"@{file}"), ("bench", str(file))):
        message = tilewright(*arguments, code=2)[1]
        assert f"{file} is no text: its byte 128 is no UTF-8" in message


def test_what_the_peer_itself_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        """A PyTorch whose oneDNN takes nothing."""

        float32 = "float32"

        def from_numpy(self, array: Any) -> Any:
            return self

        def to(self, form: Any) -> Any:
            return self

        def permute(self, *axes: int) -> Any:
            return self

        def to_mkldnn(self) -> Any:
            raise RuntimeError("mkldnn is not for this CPU\nand more")

    library = peer.Library.__new__(peer.Library)
    library.torch = Refusing()
    work = Workload(read_problem("mb1ic8ih6oc8kh3ph1"), read_types("f32"))
    with pytest.raises(ArgumentError, match=r"PyTorch refuses it on this CPU: mkldnn is not for this CPU$"):
        library.calls(work, work.arrays(np.random.default_rng(0), exact=False))


def test_a_set_may_be_one_problem() -> None:
    assert [str(w.problem) for w in workloads("64x32:32x48", "bf16", None)] == ["64x32:32x48"]
    assert [str(w.problem) for w in workloads("ic8ih5oc8kh3", "f32", 1)] == ["mb1ic8ih5oc8oh3kh3ph0"]


def test_the_problems_of_a_set(tmp_path: Path) -> None:
    file = tmp_path / "set.txt"
    file.write_text("--dt=bf16 --mb=4 ic8ih5oc8kh3 ic8ih5oc8kh3\n--dt=f32 --mb=0 ic8ih5oc8kh3 3x4:4x5\n")
    found = workloads(str(file), None, None)
    assert [(w.types[0], str(w.problem)) for w in found] == [
        ("bf16", "mb4ic8ih5oc8oh3kh3ph0"),
        ("f32", "ic8ih5oc8oh3kh3ph0"),
        ("f32", "3x4:4x5"),
    ]
    assert {w.types[0] for w in workloads(str(file), "s8", 1)} == {"s8"}
    assert {w.problem.mb for w in workloads("resnet_50", None, 3)} == {3}


class Stub:
    """A library that is half as fast as it says it is, and always right."""

    def calls(self, work: Workload, arrays: Any) -> dict[str, Any]:
        if work.problem.ic == 9:
            raise ArgumentError("nine channels are too many")
        return {"only": lambda: None}

    def difference(self, out: Any, calls: Any) -> float:
        return 0.0

    def tolerance(self, work: Workload) -> float:
        return 0.1

    def primitive(self, run: Any) -> float | None:
        return 1e-6


def free(self: Gate, sides: dict[str, Any], rounds: int, *_: Any) -> None:
    """Fixed times: the first problem's ratio is 4, later ones' are smaller."""
    times = {"ours": 2e-6, "peer": 8e-6 / (1 + len(free.__dict__)), "primitive": 1e-6}
    free.__dict__[str(len(free.__dict__))] = True
    self.best = 1.0
    self.samples = {side: [Sample(times[side], 1.0, 0.0)] * rounds for side in sides}


def test_rows_worst_first_means_and_what_was_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free.__dict__.clear()
    monkeypatch.setattr(peer, "Library", Stub)
    monkeypatch.setattr(Gate, "take", free)
    file, out = tmp_path / "set.txt", tmp_path / "rows.json"
    file.write_text("--mb=1 ic8ih5oc8kh3 ic8ih6oc8kh3 ic9ih6oc8kh3\n")
    printed, _ = tilewright("bench", str(file), "--json", str(out), "--rounds", "2")
    rows = json.loads(out.read_text())
    assert [row["problem"] for row in rows] == ["mb1ic8ih6oc8oh4kh3ph0", "mb1ic8ih5oc8oh3kh3ph0"]
    assert [row["ratio"] for row in rows] == pytest.approx([2.0, 4.0])
    assert rows[0]["ours_us"] == pytest.approx(2.0)
    assert rows[0]["peer_us"] == pytest.approx(4.0)
    assert rows[0]["peer_primitive_us"] == pytest.approx(1.0)
    assert "geometric mean of 2: peer / ours 2.828, primitive / ours 0.500" in printed
    assert "nine channels are too many" in printed


def test_a_busy_machine_gives_rows_that_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gave none: after a minute and a half, 21 problems were listed as not measured."""

    def busy(self: Gate, sides: dict[str, Any], rounds: int, *_: Any) -> None:
        self.best = 1.0
        times = {"ours": (3e-6, 2e-6), "peer": (6e-6, 9e-6), "primitive": (None, None)}
        self.samples = {side: [Sample(time, 5 * FREE, 0.9) for time in times[side]] for side in sides}

    monkeypatch.setattr(peer, "Library", Stub)
    monkeypatch.setattr(Gate, "take", busy)
    file, out = tmp_path / "set.txt", tmp_path / "rows.json"
    file.write_text("--mb=1 ic8ih5oc8kh3\n")
    printed, _ = tilewright("bench", str(file), "--json", str(out))
    (row,) = json.loads(out.read_text())
    assert row["busy"] is True
    assert row["ratio"] == pytest.approx(3.0)
    (line,) = (line for line in printed.splitlines() if line.endswith("mb1ic8ih5oc8oh3kh3ph0"))
    assert line.split()[:5] == ["3.00", "-", "2.0", "6.0", "-"]
    assert line.split()[-2] == "busy"
    assert "1 marked busy: others used the machine" in printed


def test_each_row_is_printed_when_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All were printed at the end; nothing said what was waited for."""
    events: list[str] = []

    class Watched(Stub):
        def calls(self, work: Workload, arrays: Any) -> dict[str, Any]:
            events.append(f"measures {work.problem}")
            return super().calls(work, arrays)

    def echo(text: str = "", *, err: bool = False) -> None:
        events.append(("says " if err else "prints ") + text.splitlines()[-1])

    free.__dict__.clear()
    monkeypatch.setattr(peer, "Library", Watched)
    monkeypatch.setattr(Gate, "take", free)
    monkeypatch.setattr(bench_command.typer, "echo", echo)
    file = tmp_path / "set.txt"
    file.write_text("--mb=1 ic8ih5oc8kh3 ic8ih6oc8kh3\n")
    tilewright("bench", str(file))
    first, second = "mb1ic8ih5oc8oh3kh3ph0", "mb1ic8ih6oc8oh4kh3ph0"
    assert events[0] == f"says 1 of 2: {first}"
    assert events[1] == f"measures {first}"
    assert events[2].startswith("prints ")
    assert events[2].endswith(first)
    assert events[3:5] == [f"says 2 of 2: {second}", f"measures {second}"]
    assert events[5].endswith(second)


def test_patience_ends_and_says_what_it_waited_for() -> None:
    calls: list[str] = []
    probes = chain([1.0, 1.0, 1.0], repeat(9.0))  # it ends by itself, or never
    gate = Gate(lambda: next(probes), pause=0.0, best=1.0)  # type: ignore[arg-type]
    gate.take({"ours": lambda: 1e-6}, 5, 0.05, calls.append)
    assert calls[0] == "sample 1 of ours"
    assert "a free machine: a probe takes 9.0 times as long as the fastest did" in calls
    assert gate.shortest("ours") == 1e-6


def test_seconds_are_the_problems_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def take(self: Gate, sides: dict[str, Any], rounds: int, patience: float, waiting: Any) -> None:
        given.append((rounds, patience))
        free(self, sides, rounds)

    free.__dict__.clear()
    monkeypatch.setattr(peer, "Library", Stub)
    monkeypatch.setattr(Gate, "take", take)
    tilewright("bench", "mb1ic8ih5oc8kh3", "--seconds", "0.25", "--rounds", "3")
    assert given == [(3, 0.25)]


def test_padding_that_a_stride_leaves_unused_may_differ() -> None:
    peer.check_padding(read_problem("mb1ic3ih224oc64oh112kh7sh2ph3"))  # 3 before, 2 after; of 3 one would be passed by
    with pytest.raises(ArgumentError, match="pads both sides alike"):
        peer.check_padding(read_problem("mb1ic16ih3oc16oh3kh7ph0"))


@pytest.mark.parametrize("command", [["export", "PROBLEM", "x.o"], ["bench", "PROBLEM"], ["draw", "PROBLEM.py", "a"]])
def test_a_problem_too_long_for_the_name_of_a_file_was_an_error_of_python(command: list[str]) -> None:
    arguments = [word.replace("PROBLEM", "mb" + "9" * 400) for word in command]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 2
    assert "error: " in result.output
