"""Tile kernels without products on machines of many lanes: what their loop programs give, and what moves how."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.check.block import check
from tilewright.check.loop import check_loop
from tilewright.compiler.compiled import Compiled
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.interpret.block.run import interpret
from tilewright.interpret.loop import HANDLERS
from tilewright.ir.block import parse_block
from tilewright.lower.gpu.lower import lower_waves
from tilewright.targets.nvidia.backend import BACKEND
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
M, N, K, GLOBAL = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.GLOBAL_ADDRESS_SPACE
Arrays = dict[str, np.ndarray[Any, Any]]


def made(kernel: Any, plan: str | None = None, **sizes: int) -> Compiled:
    return kernel_for(kernel, sizes, target="interpreter", machine=HOPPER, plan=plan)


def run(found: Compiled, arrays: Arrays, seed: int = 1) -> None:
    """The host program, its block programs as loop programs."""
    assert found.module is not None
    memory = {v: arrays[v.name or ""] for v in found.module.host.args}
    for op in found.module.host.body.ops:
        if op.name == "workspace":
            kind = op.results[0].type
            memory[op.results[0]] = np.full([int(e) for e in kind.shape], 7, kind.dtype.numpy)
            continue
        assert op.name == "launch"
        block = found.module.programs[op.attrs["program"]]
        check(block, HOPPER)
        loop = lower_waves(block, HOPPER)
        check_loop(loop, HOPPER)
        given = {a.name or "": memory[v] for a, v in zip(loop.args, op.operands, strict=True)}
        interpret(loop, given, HOPPER, seed=seed, workers=2, handlers=HANDLERS)
        assert BACKEND.emitted(loop, HOPPER).text


def arrays_of(found: Compiled, whole: bool) -> Arrays:
    chance = np.random.default_rng(3)
    assert found.module is not None
    shapes = {v.name or "": ([int(e) for e in v.type.shape], v.type.dtype.numpy) for v in found.module.host.args}
    return {
        name: (chance.integers(-3, 4, shape) if whole else chance.standard_normal(shape)).astype(kind)
        for name, (shape, kind) in shapes.items()
    }


def compare(kernel: Any, plan: str | None = None, tolerance: float = 0, **sizes: int) -> Compiled:
    """The kernel gives what the executor gives; exactly, where there is no tolerance."""
    found = made(kernel, plan, **sizes)
    got = arrays_of(found, whole=not tolerance)
    wanted = {name: array.copy() for name, array in got.items()}
    tilewright.compile(kernel, target="executor")(**wanted)
    run(found, got)
    for name, array in wanted.items():
        np.testing.assert_allclose(
            got[name].astype(np.float64), array.astype(np.float64), rtol=tolerance, atol=tolerance / 10
        )
    return found


@pytest.mark.parametrize(("kind", "tolerance"), [("f32", 1e-5), ("bf16", 2e-2)])
@pytest.mark.parametrize(("rows", "columns"), [(2, 1024), (3, 300), (9, 7)])
def test_rows_that_are_normalised(kind: str, tolerance: float, rows: int, columns: int) -> None:
    compare(kernels.softmax(kind), tolerance=tolerance, M=rows, N=columns)
    compare(kernels.layer_norm(kind), tolerance=tolerance, M=rows, N=columns)


@pytest.mark.parametrize("kind", ["f64", "i8", "bf16"])
@pytest.mark.parametrize("over", ["rows", "columns"])
def test_reductions_of_ragged_matrices_are_exact(kind: str, over: str) -> None:
    compare(kernels.reduction("sum", over, kind), M=3, N=130)
    compare(kernels.reduction("max", over, kind), M=37, N=6)


@pytest.mark.parametrize("kind", ["bf16", "f32", "i8", "f64"])
@pytest.mark.parametrize("shape", [(100, 130), (129, 72)])
def test_transposes(kind: str, shape: tuple[int, int]) -> None:
    compare(kernels.transpose((1, 0), kind), D0=shape[0], D1=shape[1])


def test_dimensions_beside_those_that_are_turned() -> None:
    compare(kernels.transpose((2, 0, 1), "bf16"), D0=10, D1=34, D2=21)
    compare(kernels.transpose((0, 2, 1), "f32"), D0=3, D1=64, D2=40)


def test_one_operand_of_two_is_turned() -> None:
    @tkw.wave()
    def added(
        a: tkl.Memory[M, N, GLOBAL, tkl.f32],
        b: tkl.Memory[N, M, GLOBAL, tkl.bf16],
        y: tkl.Memory[M, N, GLOBAL, tkl.f32],
    ) -> None:
        tkw.write(tkw.read(a) + tkw.cast(tkw.permute(tkw.read(b), [M, N]), tkl.f32), y)

    compare(added, M=70, N=90)


def test_a_turned_map_reads_what_it_writes() -> None:
    """The lowering dropped every operand that was the target, and the formula's number of it was past the end."""
    block = parse_block(
        """block added(%y: inout global f32 (70, 90), %x: in global f32 (90, 70))
  waves 2
  machine hopper
{
  tasks t in 0..1 {
    %turned = view %x (i 70, j 90) -> [j, i]
    map %y = %y + %turned
  }
}"""
    )
    check(block, HOPPER)
    chance = np.random.default_rng(3)
    x, y = (chance.integers(-9, 10, shape).astype(np.float32) for shape in ((90, 70), (70, 90)))
    given = {"x": x, "y": y.copy()}
    interpret(lower_waves(block, HOPPER), given, HOPPER, seed=1, workers=2, handlers=HANDLERS)
    np.testing.assert_array_equal(given["y"], y + x.T)


def test_rows_longer_than_registers_go_part_by_part() -> None:
    """A row of softmax of more than 58000 elements was refused: shared memory was to hold it."""
    found = compare(kernels.softmax("f32"), tolerance=1e-5, M=1, N=70000)
    assert "%some" in found.text("block")


@pytest.mark.parametrize("rows", [900, 1024, 1700])
def test_columns_longer_than_registers_go_part_by_part(rows: int) -> None:
    """The values of a column sum of bf16, as f32, were to lie in shared memory: 8192 x 64 of them were refused."""
    compare(kernels.reduction("sum", "rows", "bf16", "f32"), M=rows, N=40)


@pytest.mark.parametrize("how", ["max", "prod"])
def test_what_a_last_part_lacks_changes_nothing(how: str) -> None:
    """All values lie on one side of zero, which is what is there instead of values that do not count."""

    @tkw.wave()
    def combined(x: tkl.Memory[M, N, GLOBAL, tkl.bf16], y: tkl.Memory[N, GLOBAL, tkl.f32]) -> None:
        values = tkw.cast(tkw.read(x), tkl.f32) - 100.0
        tkw.write(tkw.max(values, dim=M) if how == "max" else tkw.prod(values / values, dim=M), y)

    compare(combined, M=1700, N=40)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1024), (3, 130), (9, 7)])
def test_running_sums_go_over_vectors_lanes_waves_and_rounds(rows: int, columns: int) -> None:
    """A row of a scan was one lane's, element after element."""
    compare(kernels.running_sum("bf16", "f32"), M=rows, N=columns)
    compare(kernels.tiled_running_sum(64, "f32"), M=rows, N=columns)


def test_running_sums_of_columns() -> None:
    @tkw.wave()
    def columns(x: tkl.Memory[M, N, GLOBAL, tkl.i32], y: tkl.Memory[M, N, GLOBAL, tkl.i32]) -> None:
        tkw.write(tkw.cumsum(tkw.read(x), dim=M), y)

    compare(columns, M=100, N=33)


@pytest.mark.parametrize(("how", "wanted"), [("sum", [0, 5, 3, 3]), ("max", [None, 5, 5, 5])])
def test_exclusive_scans(how: str, wanted: list[int | None]) -> None:
    text = f"""block f(%x: in global i32 (4), %y: out global i32 (4))
  waves 2
  machine hopper
{{
  scan %x -> %y along 0 with {how} exclusive
}}"""
    given = {"x": np.array([5, -2, 0, 9], np.int32), "y": np.zeros(4, np.int32)}
    interpret(lower_waves(parse_block(text), HOPPER), given, HOPPER, handlers=HANDLERS)
    least = np.iinfo(np.int32).min
    np.testing.assert_array_equal(given["y"], [least if n is None else n for n in wanted])


SPLIT = """axis M_split = (M_split 4): task 1; axis N = (N 40): task 40; axis M_part = (M_part 128): whole
grid M_split, N; parts M 4; waves 4"""


@pytest.mark.parametrize("how", ["sum", "max", "prod"])
def test_a_reduction_in_parts(how: str) -> None:
    found = compare(kernels.reduction(how, "rows", "f32"), plan=SPLIT, M=512, N=40)
    assert found.module is not None
    assert list(found.module.programs) == ["reduction_parts", "reduction"]


def test_a_long_reduction_with_few_results_is_done_in_parts() -> None:
    assert made(kernels.reduction("sum", "rows", "bf16", "f32"), M=65536, N=256).plan.parts == ("M", 32)
    assert made(kernels.reduction("max", "rows", "f32"), M=65537, N=256).plan.parts == ("M", 16)
    assert made(kernels.reduction("sum", "columns", "bf16", "f32"), M=1, N=20_000_000).plan.parts == ("N", 125)
    assert made(kernels.reduction("sum", "rows", "bf16", "f32"), M=8192, N=8192).plan.parts is None
    assert made(kernels.softmax("f32"), M=1, N=8192).plan.parts is None  # what is reduced is used again


@pytest.mark.parametrize("how", ["sum", "max", "min", "prod"])
def test_what_parts_leave_over_is_reduced_with_them(how: str) -> None:
    found = compare(kernels.reduction(how, "rows", "f32"), plan=SPLIT, M=515, N=40)
    assert "view %x (i0 3, i1 40) -> [i0 + 512, i1]" in found.text("block")


def test_parts_of_what_lies_side_by_side_are_whole_lines() -> None:
    """Parts of a row that began anywhere were loaded two bytes at a time."""
    plan = """axis M = (M 2): task 1; axis N_split = (N_split 3): task 1; axis N_part = (N_part 1472): whole
grid M, N_split; parts N 3; waves 4"""
    found = compare(kernels.reduction("sum", "columns", "bf16", "f32"), plan=plan, M=2, N=4499)
    assert "view %x (i0 83) -> [t_M, i0 + 4416]" in found.text("block")


def test_more_parts_than_there_are_elements_are_refused() -> None:
    plan = SPLIT.replace("parts M 4", "parts M 9")
    with pytest.raises(ArgumentError, match="plan: `parts M 9`: M, 7, has no 9 parts"):
        made(kernels.reduction("sum", "rows", "f32"), plan, M=7, N=40)


def test_values_between_operations_stay_in_registers() -> None:
    """One wave did a row, and every value between two operations went through shared memory."""
    found = made(kernels.softmax("bf16"), M=16384, N=8192)
    assert found.plan.waves == 8
    loop = str(lower_waves(parse_block(found.text("block")), HOPPER))
    assert loop.count("alloc shared") == 2  # what waves tell each other: a maximum and a sum
    assert loop.count("load ") - loop.count("scratch") // 2 < 2 * 8 + 4
    assert loop.count("= %x[") == 1  # read once
    text = kernel_for(kernels.softmax("bf16"), {"M": 16384, "N": 8192}, target="gpu:hopper").text("asm")
    assert text.count("ld.global.v4.b32") == 4
    assert text.count("st.global.v4.b32") == 4
    assert "div.rn" not in text


def test_a_row_of_a_wave_needs_no_meeting() -> None:
    found = made(kernels.rms_norm("f32"), M=65536, N=256)
    loop = str(lower_waves(parse_block(found.text("block")), HOPPER))
    assert "barrier" not in loop
    assert "shared" not in loop


def test_both_sides_of_a_transpose_move_vectors() -> None:
    text = kernel_for(kernels.transpose((1, 0), "bf16"), {"D0": 1024, "D1": 1024}, target="gpu:hopper").text("asm")
    assert text.count("ld.global.v4.b32") == text.count("st.global.v4.b32") == text.count("ld.shared.v4.b32") == 4
    assert text.count("st.shared.b16") == 32


def test_what_several_operations_write_is_met_for() -> None:
    """An argument that one operation writes and another reads keeps its barriers."""
    text = """block f(%x: in global f32 (64), %y: inout global f32 (64))
  waves 2
  machine hopper
{
  tasks t in 0..1 {
    copy %x -> %y
    barrier
    %turned = view %y (i 64) -> [63 - i]
    %s = alloc shared f32 (64)
    copy %turned -> %s
    barrier
    map %y = %s + %x
  }
}"""
    program = parse_block(text)
    loop = lower_waves(program, HOPPER)
    assert str(loop).count("barrier (1)") == 3  # two, and one after the task
    x = np.arange(64, dtype=np.float32)
    given = {"x": x, "y": np.zeros(64, np.float32)}
    interpret(loop, given, HOPPER, seed=3, workers=1, handlers=HANDLERS)
    np.testing.assert_array_equal(given["y"], np.full(64, 63.0))


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("over", "shape"), [("columns", (3, 9000)), ("rows", (1100, 70)), ("rows", (515, 130))])
@pytest.mark.parametrize("kind", ["bf16", "f32", "i32"])
def test_what_waves_tell_each_other_is_combined_by_who_stores_it(over: str, shape: tuple[int, int], kind: str) -> None:
    """All waves loaded what all others had, and added it up: columns of 32 waves took longer for that than to read."""
    found = compare(kernels.reduction("sum", over, kind), M=shape[0], N=shape[1])
    loop = str(lower_waves(parse_block(found.text("block")), HOPPER))
    lines = [line.strip() for line in loop.splitlines()]
    told = [i for i, line in enumerate(lines) if line.startswith("load ") and "%scratch" in line]
    assert told
    assert any(next(x for x in reversed(lines[:i]) if x.endswith("{")).startswith("if (w_") for i in told)


@pytest.mark.parametrize("columns", [300, 1024])
def test_lanes_loaded_an_element_once_for_each_of_the_values_that_use_it(columns: int) -> None:
    """The scale of a row was loaded 8 times, where several lanes share the row."""

    @tkw.wave()
    def scaled(
        x: tkl.Memory[M, N, GLOBAL, tkl.bf16], s: tkl.Memory[M, GLOBAL, tkl.f32], y: tkl.Memory[M, N, GLOBAL, tkl.f32]
    ) -> None:
        tkw.write(tkw.cast(tkw.read(x), tkl.f32) * tkw.broadcast(tkw.read(s), [M, N]), y)

    found = compare(scaled, M=5, N=columns)
    lines = str(lower_waves(parse_block(found.text("block")), HOPPER)).splitlines()
    (load,) = (line.split() for line in lines if "= %s[" in line)
    (register,) = (line for line in lines if f"{load[1]} = alloc" in line)
    assert "fragment f32 (32, 1)" in register


def test_what_all_lanes_need_is_loaded_in_vectors() -> None:
    text = kernel_for(kernels.softmax("f32"), {"M": 8192, "N": 8192}, target="gpu:hopper").text("ptx")
    assert text.count("ld.shared.v4.b32") == 2 * 16 // 4  # a maximum and a sum of 16 waves
    assert text.count("ld.shared") == text.count("ld.shared.v4.b32")


def test_the_second_of_two_programs_has_nothing_of_what_the_first_read() -> None:
    """It had as many waves as rows as long as the first's would want: a read without a use was left in it."""
    found = made(kernels.reduction("sum", "rows", "f32"), M=65536, N=256)
    assert found.module is not None
    assert "%x" not in str(found.module.programs["reduction"])


def test_programs_begin_while_the_one_before_ends() -> None:
    found = made(kernels.reduction("sum", "rows", "f32"), M=65536, N=256)
    assert found.module is not None
    assert ["launch programmatic" in str(program) for program in found.module.programs.values()] == [True, True]
    for kernel, sizes in (
        (kernels.gemm("nt", "bf16", "bf16"), {"M": 512, "N": 512, "K": 512}),
        (kernels.softmax("bf16"), {"M": 64, "N": 64}),
    ):
        early = kernel_for(kernel, sizes, target="gpu:hopper")
        assert "griddepcontrol.wait" in early.text("ptx")
        plan = early.text("plan").replace("launch early", "launch plain")
        plain = kernel_for(kernel, sizes, target="gpu:hopper", plan=plan)
        assert plain.text("plan") == plan
        assert "launch programmatic" not in plain.text("block")
        assert "griddepcontrol" not in plain.text("ptx")


@pytest.mark.parametrize(("kind", "width", "parts"), [("bf16", 64, 32), ("f32", 32, 16), ("i32", 32, 16)])
def test_every_core_has_one_part_of_few_columns(kind: str, width: int, parts: int) -> None:
    """There were four short parts for each core, each as wide as a wave loads at once: every one began anew."""
    found = made(kernels.reduction("sum", "rows", kind), M=65536, N=256)
    assert f"axis N = (N 256): task {width}" in str(found.plan)
    assert found.plan.parts == ("M", parts)
    assert found.plan.waves == 16


def test_a_reduction_that_one_launch_does_as_fast_is_not_taken_apart() -> None:
    short = made(kernels.reduction("sum", "rows", "f32"), M=1100, N=70)
    assert short.plan.parts is None
    assert "a reduction in parts: M, 1100, has too few elements for 132 cores" in short.explain()
    second = made(kernels.reduction("sum", "rows", "f32"), M=65536, N=256)
    assert second.module is not None
    assert list(second.module.programs) == ["reduction_parts", "reduction"]  # not in parts again


@pytest.mark.parametrize("shape", [(40, 256), (33, 520), (7, 130), (5, 9)])
@pytest.mark.parametrize("kind", ["bf16", "f32", "i8"])
def test_elements_side_by_side_are_neighbouring_lanes(shape: tuple[int, int], kind: str) -> None:
    @tkw.wave()
    def doubled(
        x: tkl.Memory[M, N, GLOBAL, getattr(tkl, kind)], y: tkl.Memory[M, N, GLOBAL, getattr(tkl, kind)]
    ) -> None:
        v = tkw.read(x)
        tkw.write(v + v, y)

    compare(doubled, M=shape[0], N=shape[1])


def test_a_reduction_with_more_results_than_registers_goes_by_rows() -> None:
    """One wave was to hold 63 x 640 results: more than a register of the loop level has."""
    text = """block most(%x: in global f32 (63, 5, 640), %y: out global f32 (63, 640))
  machine hopper
  waves 1
{
  tasks t in 0..1 {
    reduce %x -> %y along 1 with max
  }
}"""
    x = np.random.default_rng(0).integers(-9, 9, (63, 5, 640)).astype(np.float32)
    loop = tilewright.compile_text(text, "gpu:hopper").text("loop")
    assert np.array_equal(tilewright.compile_text(loop, "interpreter")(x), x.max(1))


@tkw.wave()
def matrix_vector(
    w: tkl.Memory[N, K, GLOBAL, tkl.f32], x: tkl.Memory[K, GLOBAL, tkl.f32], y: tkl.Memory[N, GLOBAL, tkl.f32]
) -> None:
    zero = tkl.Register[N, tkl.f32](0.0)

    @tkw.iterate(K, init_args=[zero])
    def total(acc: Any) -> Any:
        return tkw.mma(tkw.read(w), tkw.read(x), acc)

    tkw.write(total, y)


def test_odd_rows_of_a_packed_operand_are_not_loaded_one_by_one() -> None:
    """Rows of an odd number of elements have no vectors: each element was loaded, and stored, before the next."""
    plan = (
        "axis N = (N 41): task 8; axis unit = (unit 1): whole; axis K = (K 333): whole; grid N; "
        "mma by fma.m16n32k1.f32, tile 16x32"
    )
    found = compare(matrix_vector, plan, N=41, K=333)
    assert "0..333 {\n          %4 = alloc fragment f32 (32, 1)" not in found.text("loop")
