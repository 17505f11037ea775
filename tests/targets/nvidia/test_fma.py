"""Products that lanes do themselves, from shared memory: the lines of one lane, done one after another in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from every_plan import plans_from_the_best
from lines import Lines
from programs import products

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.algebra.expr_use import evaluate
from tilewright.analysis.flat_memory import swizzled
from tilewright.compiler.native import kernel_for
from tilewright.ir.block import parse_block
from tilewright.ir.core import Op, Value
from tilewright.lower.gpu.lower import lower_waves
from tilewright.targets.nvidia import fma
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
SPACE = tkl.sym.GLOBAL
CASES = {case.name: case for case in products() if case.name.startswith("fma.f32") and "shared" in case.name}


class Lane(Lines):
    """What an emitter is to an atom, and its writer."""

    lanes = 32

    def __init__(self, number: int, bases: dict[Value, int], shared: np.ndarray[Any, Any]):
        super().__init__(shared)
        self.w = self
        self.lane, self.wave = str(number % 32), str(number // 32 + 4)  # of the second group of waves
        self.bases, self.sums = bases, dict[int, str]()

    def address(self, memory: Value, place: Any, size: int) -> str:
        """Where an element lies in shared memory."""
        return str(self.bases[memory] + size * int(evaluate(place, {})))

    def get(self, _: Value, place: int) -> str:
        """A sum."""
        return self.sums[place]

    def put(self, _: Value, place: int, text: str) -> None:
        """What a sum is now."""
        self.sums[place] = text


def matrix(op: Op, which: str, memory: Value, base: int, shared: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A factor as the swizzle has it in shared memory."""
    axes, (place,) = op.attrs[which], op.attrs[f"{which}_at"]
    sizes = [int(s.hi) + 1 for s in axes]
    where = swizzled(memory.type.swizzle, place)
    grid = np.indices(sizes)
    found = evaluate(where, dict(zip([s.name for s in axes], grid, strict=True)))
    return shared[base // 4 + np.asarray(found)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("columns", [32, 64])
@pytest.mark.parametrize("name", CASES)
def test_every_lane_adds_the_products_of_its_rows_and_columns(name: str, columns: int) -> None:
    loop = lower_waves(parse_block(CASES[name].text), HOPPER)
    op = next(op for op in loop.walk() if op.name == "atom" and f"n{columns}k" in op.attrs["atom"])
    atom = HOPPER.multiply_atom(op.attrs["atom"])
    _, a, b = op.operands
    bases = {a: 1024, b: 40 * 1024}
    shared = np.random.default_rng(columns).integers(-4, 5, 30_000).astype(np.float64)
    one, two = (matrix(op, which, value, bases[value], shared) for which, value in (("a", a), ("b", b)))
    wanted = one @ two
    for number in range(0, 128, 3):
        lane = Lane(number, bases, shared)
        fma.from_shared(lane, op, atom)  # type: ignore[arg-type]
        for v in range(atom.c.values):
            column, row = divmod(int(atom.c.layout(number, v)), atom.shape[0])
            assert lane.number(lane.sums[v]) == wanted[row, column]


@pytest.mark.parametrize("transposes", ["nt", "nn", "tn", "tt"])
def test_products_of_f32_are_done_in_roles(transposes: str) -> None:
    """One wave had a task, and loaded its factors from global memory before every step of k."""
    made = kernel_for(kernels.gemm(transposes, "f32"), {"M": 1024, "N": 768, "K": 512}, target="gpu:hopper")
    assert made.plan.pipeline is not None
    assert not made.plan.pipeline.pingpong
    assert made.plan.products[0].atom.startswith("fma.m64n")
    made = kernel_for(kernels.gemm(transposes, "f32"), {"M": 4096, "N": 2048, "K": 512}, target="gpu:hopper")
    text = made.text("asm")
    assert "ld.shared.v4" in text
    assert ".local" not in text


def test_rows_of_such_products_are_reduced_by_a_program_of_their_own() -> None:
    """A remainder of every column, beside sums, factors and what rows come to, had no registers left: the assembler
    refused it."""

    @tkw.wave()
    def normalised(
        a: tkl.Memory[M, K, SPACE, tkl.f32], b: tkl.Memory[N, K, SPACE, tkl.f32], y: tkl.Memory[M, N, SPACE, tkl.f32]
    ) -> None:
        c = tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0.0))
        tkw.write(c - tkw.max(c, dim=N), y)

    sizes = {"M": 4096, "N": 32, "K": 512}
    best = kernel_for(normalised, sizes, target="gpu:hopper")
    assert best.plan.parts == ("K", 4)  # the kernel that adds up parts reduces rows
    assert "two kernels, split after mma" in best.explain()
    plan = next(plans_from_the_best(normalised, sizes, HOPPER, lambda plan: plan.split_after == "mma"))
    made = kernel_for(normalised, sizes, target="gpu:hopper", plan=plan)
    assert made.plan.products[0].atom.startswith("fma.m64n32k4.f32")
    assert made.plan.then is not None
    assert made.plan.then.pipeline is None


def test_no_two_chunks_of_a_load_share_a_bank() -> None:
    """Lanes of a wave that look at other chunks look at other columns of 16 bytes."""
    for name, case in CASES.items():
        loop = lower_waves(parse_block(case.text), HOPPER)
        op = next(op for op in loop.walk() if op.name == "atom" and "n64k" in op.attrs["atom"])
        atom, (_, a, b) = HOPPER.multiply_atom(op.attrs["atom"]), op.operands
        shared = np.zeros(30_000)
        chunks: list[list[int]] = []
        for number in range(32):
            lane = Lane(number, {a: 1024, b: 40 * 1024}, shared)
            fma.from_shared(lane, op, atom)  # type: ignore[arg-type]
            chunks.append([address // 16 for address in lane.loads])
        for at_once in zip(*chunks, strict=True):
            different = set(at_once)
            assert len({chunk % 8 for chunk in different}) == len(different), name
