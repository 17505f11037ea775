"""The compile state: what is asked stays as it is, and what a pass finds is what it returns."""

import sys
from dataclasses import FrozenInstanceError, fields, is_dataclass
from pathlib import Path

import pytest

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.driver import bound_plan, request
from tilewright.driver.bound_plan import MergedParts, OneKernel, Realised, RepackedKernels, TwoKernels
from tilewright.driver.choose_plan import choose_plan
from tilewright.driver.pipeline import lower_plan, prepared
from tilewright.targets.registry import machine

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks")]
from corpus_requests import planning_of  # noqa: E402
from planner_counts import compile_state  # noqa: E402

HOPPER, AMX = machine("hopper"), machine("x86.amx")
GEMM = kernels.gemm("nt", "bf16", "bf16")
M, N, K, SPACE = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.GLOBAL_ADDRESS_SPACE


@tkw.wave()
def less_its_largest(
    a: tkl.Memory[M, K, SPACE, tkl.bf16], b: tkl.Memory[N, K, SPACE, tkl.bf16], y: tkl.Memory[M, N, SPACE, tkl.f32]
):
    c = tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0.0))
    tkw.write(c - tkw.max(c, dim=N), y)


def test_the_compile_state_has_at_most_ten_fields_nested_ones_counted() -> None:
    assert len(compile_state()) <= 10
    assert len(fields(request.Request)) <= 7
    assert len(fields(Realised)) <= 5


@pytest.mark.parametrize("module", [request, bound_plan])
def test_what_passes_hand_on_cannot_be_changed(module) -> None:
    own = [x for x in vars(module).values() if is_dataclass(x) and x.__module__ == module.__name__]
    assert own
    assert all(kind.__dataclass_params__.frozen for kind in own)
    asked = planning_of(GEMM, {"M": 64, "N": 48, "K": 80}, AMX)
    with pytest.raises(FrozenInstanceError):
        asked.pinned = None


@pytest.mark.parametrize(
    ("kernel", "row", "sizes", "kind"),
    [
        (GEMM, AMX, {"M": 100, "N": 48, "K": 80}, OneKernel),
        (GEMM, HOPPER, {"M": 300, "N": 200, "K": 72}, OneKernel),
        (GEMM, HOPPER, {"M": 64, "N": 64, "K": 16384}, MergedParts),
        (GEMM, HOPPER, {"M": 2048, "N": 2048, "K": 2047}, RepackedKernels),
        (less_its_largest, HOPPER, {"M": 4096, "N": 4096, "K": 1024}, TwoKernels),
    ],
    ids=["blocks", "pipeline", "split K", "repacked", "two"],
)
def test_a_request_that_was_compiled_is_compiled_the_same_again(kernel, row, sizes, kind) -> None:
    """A pass that wrote to what is asked would give the second compile another program."""
    asked = planning_of(kernel, sizes, row)
    before = str(asked.program), dict(asked.sizes)
    texts = []
    for _ in range(2):
        bound, lowered = lower_plan(choose_plan(prepared(asked)))
        assert isinstance(bound.kernels, kind)
        texts.append([str(bound.plan), str(lowered.program), *(str(each.program) for each in lowered.before)])
    assert texts[0] == texts[1]
    assert (str(asked.program), dict(asked.sizes)) == before


def test_one_plan_is_lowered_twice_to_the_same_block_programs() -> None:
    bound = choose_plan(prepared(planning_of(GEMM, {"M": 64, "N": 64, "K": 16384}, HOPPER)))
    (_, first), (_, second) = lower_plan(bound), lower_plan(bound)
    assert str(first.program) == str(second.program)
    assert [str(x.program) for x in first.before] == [str(x.program) for x in second.before]
