"""Plans that are edited: a share of `benchmarks/edited_plans.py`, its checker, and the reader of block texts."""

from __future__ import annotations

import re
import sys
from collections import Counter
from math import prod
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import edit_cases
import edited_plans
from block_reader import contradictions, read
from plan_legality import RULES, broken, kernels_of, shared_bytes
from plan_shapes import shapes_of

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.plan.text import parse_plan
from tilewright.targets.registry import machine

M, N, K = (getattr(tkl.sym, name) for name in "MNK")


def test_legal_edits_are_done_as_they_say_and_others_are_refused_by_a_rule_and_line():
    outcomes = [edited_plans.outcome(number, seed=2) for number in range(len(edit_cases.CASES))]
    assert [str(x) for x in outcomes if x.what in (*edited_plans.FINDINGS, *edited_plans.REFUSALS_WITHOUT)] == []
    done, refused = edited_plans.shares(Counter(x.what for x in outcomes))
    assert done >= edited_plans.LEGAL_BAR
    assert refused == edited_plans.ILLEGAL_BAR


@pytest.mark.parametrize("number", range(len(edit_cases.CASES)))
def test_plans_that_are_chosen_are_legal(number):
    case = edit_cases.CASES[number]
    assert broken(edit_cases.chosen(number), edit_cases.shapes(number), case.machine) is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    ["gemm nt", "gemm nn, bias", "gemm padded", "conv halo", "attention", "attention causal", "gated unit", "low rank"],
)
def test_the_checker_counts_the_shared_memory_of_the_block_text(name):
    number = number_of(name)
    case, plan = edit_cases.CASES[number], parse_plan(edit_cases.chosen(number))
    readings, kernel = kernels_of(plan, edit_cases.shapes(number), case.machine), case.kernel()
    texts = [kernel.text("block")]
    if plan.parts is not None or plan.split_at is not None:  # one after the other, in the order of their launches
        texts = re.split(r"(?m)^(?=block )", kernel.text("host"))[1:]
    assert len(texts) == 1 + (plan.parts is not None or plan.split_at is not None)
    assert len(readings) == 1 + (plan.split_at is not None)
    for reading, text in zip(readings, texts, strict=plan.parts is None):  # what merges parts has no line
        assert shared_bytes(reading) == allocated(text, case.machine.spaces["shared"].alignment)


def test_the_checker_reads_a_kernel_that_makes_an_operand_of_the_next():
    @tkw.wave()
    def lowered(
        x: tkl.Memory[M, K, tkl.GLOBAL_ADDRESS_SPACE, tkl.bf16],
        w: tkl.Memory[N, K, tkl.GLOBAL_ADDRESS_SPACE, tkl.bf16],
        y: tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
    ):
        rows = tkw.cast(tkw.read(x), tkl.f32)
        rows = tkw.cast(rows - tkw.max(rows, dim=K), tkl.bf16)
        tkw.write(tkw.mma(rows, tkw.read(w), tkl.Register[M, N, tkl.f32](0)), y)

    sizes, hopper = {"M": 72, "N": 264, "K": 2056}, machine("hopper")
    kernel = kernel_for(lowered, sizes, machine=hopper)
    plan = kernel.text("plan")
    shapes = shapes_of(lowered.trace(), sizes, plan)
    assert "split kernel before mma" in plan
    assert broken(plan, shapes, hopper) is None
    _, second = kernels_of(parse_plan(plan), shapes, hopper)
    text = re.split(r"(?m)^(?=block )", kernel.text("host"))[2]
    assert shared_bytes(second) == allocated(text, hopper.spaces["shared"].alignment)
    assert broken(plan.replace("before mma", "before mma2"), shapes, hopper).rule == "two kernels"


def allocated(text, align):
    total, pattern = 0, r"alloc shared (\w+) \(([\d, ]*)\)(?::\((\d+))?"
    for dtype, shape, stride in re.findall(pattern, text):
        sizes = [int(n) for n in shape.split(",")]
        elements = sizes[0] * int(stride) if stride else prod(sizes)
        total += -(-elements * {"bf16": 2, "f16": 2, "f32": 4}[dtype] // align) * align
    return total


ILLEGAL = [
    ("gemm nt, large", "loop 64", "loop 96", "k step"),
    ("gemm nt, large", "stages 4", "stages 5", "shared memory"),
    ("gemm nt, large", "40 registers", "48 registers", "register file"),
    ("gemm nt, large", "232 registers", "228 registers", "registers"),
    ("gemm nt, large", "consumer 8 waves", "consumer 6 waves", "waves"),
    ("gemm nt, large", "task 128", "task 192", "block"),
    ("gemm nt, large", "(M 4096)", "(M 4095)", "sizes"),
    ("gemm nt, large", "grid M, N", "grid M", "tasks"),
    ("gemm nt, large", "k16.bf16", "k16.f16", "atom"),
    ("gemm nt, large", "k16.bf16", "k16.bf16.tb", "atom"),
    ("gemm nt, large", "mma by", "mma2 by", "products"),
    ("gemm nt, large", "stages 4", "stagse 4", "statement"),
    ("gemm split K", "parts K 16", "parts K 8", "parts"),
    ("conv halo", "task M_0 8", "task M_0 4", "block"),
    ("conv halo", "loops K_0, K_2", "loops K_2, K_0", "order"),
    ("attention", "loop 64", "loop 128", "stated"),
    ("two kernels", "(N 1024): task 128", "(N 1024): task 100", "block"),
    ("two kernels", "(N 1024): whole", "(N 1024): loop 512", "loops"),
    ("low rank", "after mma", "after mma2", "two kernels"),
    ("low rank", "after mma", "before mma", "two kernels"),
    ("gated unit", "stages 8", "stages 17", "shared memory"),
]


@pytest.mark.parametrize(("name", "said", "other", "rule"), ILLEGAL)
def test_the_checker_names_the_rule_that_is_broken(name, said, other, rule):
    number = number_of(name)
    plan = edit_cases.chosen(number)
    assert said in plan
    fault = broken(plan.replace(said, other, 1), edit_cases.shapes(number), edit_cases.CASES[number].machine)
    assert fault is not None
    assert fault.rule == rule


LEGAL = [
    ("gemm nt, large", {"loop 64": "loop 128", "stages 4": "stages 2"}),
    ("gemm nt, large", {"grid M, N": "grid N, M"}),
    ("gemm nt, large", {"raster 16": "raster 3, contiguous"}),
    ("conv stride 2", {"(K_1 3): loop 1": "(K_1 3): loop 3", "stages 14": "stages 3", "stages 12": "stages 3"}),
    ("two kernels", {"(M 1024): task 2": "(M 1024): task 4"}),
    ("gemm split K", {"parts K 16": "parts K 8", "K_split 16": "K_split 8", "K_part 512": "K_part 1024"}),
]


@pytest.mark.parametrize(("name", "changes"), LEGAL)
def test_the_checker_lets_legal_edits_pass(name, changes):
    number = number_of(name)
    plan = edit_cases.chosen(number)
    for said, other in changes.items():
        plan = plan.replace(said, other)
    assert plan != edit_cases.chosen(number)
    assert broken(plan, edit_cases.shapes(number), edit_cases.CASES[number].machine) is None


def test_every_rule_says_what_it_is():
    assert all(rule.__doc__ for rule in RULES.values())


def number_of(name, row="hopper"):
    """The number of a case."""
    return next(n for n, case in enumerate(edit_cases.CASES) if (case.name, case.row) == (name, row))


@pytest.mark.parametrize("number", [number_of("gemm nt"), number_of("gemm nt", "cdna3"), number_of("gemm nt", "xe")])
def test_edited_plans_give_the_same(number):
    """Of the first edits of a case that are done, one is run."""
    cases = len(edit_cases.CASES)
    for again in range(20):
        if edited_plans.outcome(number + again * cases, seed=5).what == edited_plans.DONE:
            assert edited_plans.outcome(number + again * cases, seed=5, run=True).what == edited_plans.DONE
            return
    raise AssertionError("no edit of this case was done")


def product():
    """A plan of the first case: its product in tiles of 64x64."""
    plan = re.sub(r"axis ([MN]) = (.*): task \d+", r"axis \1 = \2: task 64", edit_cases.chosen(0))
    plan = re.sub(r"(?<!epilogue )stages \d+", "stages 8", plan)
    return re.sub(r"mma by .*", "mma by wgmma.m64n64k16.bf16, tile 64x64", plan)


WRONG = [
    ("stages 8", "stages 7"),
    ("epilogue stages 2", "epilogue stages 1"),
    ("consumer 4 waves", "consumer 8 waves"),
    ("56 registers", "48 registers"),
    ("m64n64k16", "m64n128k16"),
    ("tile 64x64", "tile 128x64"),
    ("axis M = (M 200): task 64", "axis M = (M 200): task 32"),
    ("axis K = (K 192): loop 64", "axis K = (K 192): loop 32"),
    ("launch early", "launch plain"),
]


@pytest.mark.parametrize(("said", "other"), WRONG)
def test_the_reader_finds_what_a_plan_does_not_say(said, other):
    plan, block = product(), edit_cases.CASES[0].kernel(product()).text("block")
    assert contradictions(plan, block, {"mma": ("M", "N")}) == []
    assert said in plan
    assert contradictions(plan.replace(said, other), block, {"mma": ("M", "N")}) != []


def test_the_reader_reads_roles_channels_and_loops():
    found = read(edit_cases.CASES[0].kernel(product()).text("block"))
    assert found.roles == {"load": (1, 56), "multiply": (4, 240)}
    assert found.channels == {("load", "multiply"): 8, ("multiply", "multiply"): 2}
    assert [(name, count) for name, count, _ in found.loops] == [("e", 3), ("e", 3)]
    assert found.atoms == {"wgmma.m64n64k16.bf16"}


EDITS = [
    (
        "axis K = (K 192): loop 64",
        "axis K = (K 192): loop 96",
        "a K step of 96 is no multiple of a row of shared memory",
    ),
    ("axis N = (N 136): task 64", "axis N = (N 136): task 136", "a task has the columns of `mma by wgmma.m64n64k16"),
    ("240 registers", "236 registers", "registers are given in multiples of 8"),
    ("240 registers", "32 registers", "a lane's accumulators alone take 32 registers"),
]


@pytest.mark.parametrize(("said", "other", "why"), EDITS)
def test_a_line_that_roles_do_not_do_is_refused(said, other, why):
    """Axes and tasks of a plan with roles were not looked at: what they said was left aside without a word."""
    with pytest.raises(ArgumentError) as fault:
        edit_cases.CASES[0].kernel(product().replace(said, other))
    assert why in str(fault.value)


def test_roles_take_other_stages_and_registers_and_another_walk():
    """Only the planner's own numbers were taken."""
    plan = (
        product()
        .replace("stages 8, epilogue stages 2", "stages 3, epilogue stages 1")
        .replace("56 registers", "40 registers")
    )
    plan = plan.replace("grid M, N", "grid M, N\nraster 2, contiguous")
    kernel = edit_cases.CASES[0].kernel(plan)
    assert kernel.text("plan").strip() == plan
    assert contradictions(plan, kernel.text("block"), {"mma": ("M", "N")}) == []


def test_a_refusal_names_the_line_that_differs_from_the_plan_that_is_chosen():
    """`3 x 2 tiles of sums take 11 registers of 8` did not say where."""
    number = next(n for n, case in enumerate(edit_cases.CASES) if (case.name, case.row) == ("softmax", "x86.avx512"))
    plan = edit_cases.chosen(number).replace("axis N = (N 200): whole", "axis N = (N 200): task 100")
    with pytest.raises(ArgumentError, match=r"max goes along it; in `axis N = \(N 200\): task 100`"):
        edit_cases.CASES[number].kernel(plan)


def test_lines_of_rows_that_do_not_slide_are_refused():
    """It ended in an assertion of the compiler's own."""
    number = next(n for n, case in enumerate(edit_cases.CASES) if (case.name, case.row) == ("gemm nt", "x86.amx"))
    plan = edit_cases.chosen(number).replace("a in place", "a strip at task")
    with pytest.raises(ArgumentError, match="`a strip at task`: rows do not slide"):
        edit_cases.CASES[number].kernel(plan)


def test_a_transposed_product_without_its_line_producer_is_refused_for_that_line():
    """The refusal quoted only the line of the product, which the edit had not touched."""
    number = number_of("gemm split K")
    kept = [x for x in edit_cases.chosen(number).splitlines() if not x.startswith("producer ")]
    plan = "\n".join(re.sub(r"(axis K_part = .*): loop 64", r"\1: whole", line) for line in kept)
    assert " transposed" in plan
    with pytest.raises(ArgumentError, match="no line `producer` says one"):
        edit_cases.CASES[number].kernel(plan)


REFUSED_WITHOUT_THEIR_LINE = [
    ("row energy", "hopper", {"grid M": "grid M\nraster 3"}, "`grid M`, `raster 3`: a group is of the last two axes"),
    ("gemm skinny", "hopper", {r"mma by .*\n": ""}, "no line says what they multiply, .* is `mma`"),
    ("conv halo", "hopper", {r"w panel at K_2\n": ""}, "a halo tile needs `w panel at ...`"),
    ("conv depthwise", "hopper", {r"mma by loops\n": ""}, "boxes of lanes need a line `mma by loops`"),
    ("conv depthwise", "x86.avx512", {"w packed at bind": "w strip at task"}, "`w strip at task`: rows do not slide"),
    ("conv depthwise", "x86.avx512", {"atom lanes.f32": "atom avx2.f32"}, "`atom avx2.f32`: its axes are"),
]


@pytest.mark.parametrize(("name", "row", "changes", "why"), REFUSED_WITHOUT_THEIR_LINE)
def test_a_refusal_names_the_line_that_was_changed_or_is_missing(name, row, changes, why):
    """Each refusal quoted only lines that were as before."""
    assert_refused(number_of(name, row), changes, why)


DONE_WITHOUT_A_WORD = [
    (
        "row energy",
        {r"\(N 256\): whole": "(N 256): loop 64"},
        r"`axis N = \(N 256\): loop 64`: no loop iterates over N",
    ),
    ("conv halo", {r"\(K_1 3\): loop 3": "(K_1 3): loop 1"}, "at K_2 a stage has 3 of K_1: `loop 3`"),
    ("conv halo", {"w panel at K_2": "w panel at K_1"}, "at K_1 a stage has 1 of K_1: `loop 1`"),
]


@pytest.mark.parametrize(("name", "changes", "why"), DONE_WITHOUT_A_WORD)
def test_a_loop_that_is_not_done_is_refused(name, changes, why):
    """The columns stayed whole; B was copied tap by tap, and not where its line said."""
    assert_refused(number_of(name), changes, why)


def assert_refused(number, changes, why):
    """The chosen plan of a case, edited by patterns, is refused with a message."""
    plan = edit_cases.chosen(number)
    for said, other in changes.items():
        plan, count = re.subn(said, other, plan)
        assert count == 1
    with pytest.raises(ArgumentError, match=why):
        edit_cases.CASES[number].kernel(plan)


def test_a_task_whose_last_block_is_shorter_is_done():
    """The checker called a task of 40 columns in blocks of 32 illegal; without roles it is computed, and right."""
    number = number_of("gemm nt", "ampere")
    case, plan = edit_cases.CASES[number], edit_cases.chosen(number)
    plan = re.sub(r"(axis N = .*: task) \d+, loop (\d+)", lambda m: f"{m[1]} {int(m[2]) + 8}, loop {m[2]}", plan)
    assert plan != edit_cases.chosen(number)
    assert broken(plan, edit_cases.shapes(number), case.machine) is None
    assert edited_plans._is_exact(case, case.kernel(plan))


def test_an_operand_that_is_computed_is_copied_in_parts_of_as_many_rows_as_a_copy_brings():
    """`the box has 384 elements in one dimension; the most is 256`: operands that are read were copied in parts."""
    number = number_of("byte weights")
    case = edit_cases.CASES[number]
    plan = "\n".join(
        [
            "axis M = (M 256): task 112",
            "axis N = (N 256): task 384",
            "axis K = (K 256): loop 64",
            "grid M, N",
            "mma by wgmma.m64n112k16.bf16.ra, tile 112x384 transposed",
            "producer 1 wave 24 registers, consumer 12 waves 160 registers, stages 2, epilogue stages 2",
        ]
    )
    assert broken(plan, edit_cases.shapes(number), case.machine) is None
    assert edited_plans._is_exact(case, case.kernel(plan))


def edited(name, row, changes):
    """(a case, its chosen plan, edited by patterns, and what the checker says of it)."""
    number = number_of(name, row)
    case, plan = edit_cases.CASES[number], edit_cases.chosen(number)
    for said, other in changes.items():
        plan, count = re.subn(said, other, plan)
        assert count == 1
    return case, plan, broken(plan, edit_cases.shapes(number), case.machine)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("row", "changes"),
    [
        ("cdna3", {r"\(K 576\): loop \d+": "(K 576): loop 64"}),
        ("cdna3", {r"mma by .*": "mma by loops"}),
        ("xe", {r"\(F 64\): task \d+": "(F 64): task 33"}),
    ],
)
def test_tensors_of_blocks_that_come_one_after_the_other_take_turns_in_shared_memory(row, changes):
    """Each block of a task had memory of its own: `81408 bytes are needed`."""
    case, plan, fault = edited("conv 3x3", row, changes)
    assert fault is None
    assert "_room = alloc shared" in case.kernel(plan).text("block")
    assert edited_plans._is_exact(case, case.kernel(plan))


@pytest.mark.parametrize(("step", "bytes_"), [("loop 96", 81920), ("loop 128", 98304), ("whole", 327680)])
def test_a_step_that_shared_memory_does_not_hold_is_refused_for_its_line(step, bytes_):
    """The checker let it pass: it did not count what lanes gather, nor the sums of a block that is not whole atoms. The
    refusal did not quote an axis that is whole."""
    case, plan, fault = edited("conv 3x3", "cdna3", {r"\(K 576\): loop \d+": f"(K 576): {step}"})
    assert fault is not None
    assert fault.why == f"{bytes_} bytes of 65536"
    with pytest.raises(ArgumentError, match=rf"`axis K = \(K 576\): {step}`.*: shared memory"):
        case.kernel(plan)


NOT_LEGAL = [
    ("conv stem", "hopper", {r"axis K_2 .*\n": ""}, "axis"),
    ("conv depthwise", "hopper", {r"mma by loops\n": ""}, "products"),
    ("conv depthwise", "x86.avx512", {"atom lanes.f32": "atom avx512.f32"}, "atom"),
    ("two kernels", "hopper", {"mma by .*": "mma by loops"}, "products"),
]


@pytest.mark.parametrize(("name", "row", "changes", "rule"), NOT_LEGAL)
def test_the_checker_sees_what_is_missing_or_too_much(name, row, changes, rule):
    """It let each of them pass."""
    case, plan, fault = edited(name, row, changes)
    assert fault is not None
    assert fault.rule == rule
    with pytest.raises(ArgumentError):
        case.kernel(plan)
