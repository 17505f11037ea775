"""The programs of examples/ck: exact on whole numbers; benchmarks/block_programs.py has larger ones."""

from __future__ import annotations

from pathlib import Path

import basic_gemm
import img2col
import optimized_gemm
import pytest
import tensor_transform
import tiled_copy
from references import check_product

import tilewright
from tilewright.errors import ArgumentError, ProgramError

FOLDER = Path(basic_gemm.__file__).parent


def test_every_program_fits_on_a_page():
    lines = {path.name: len(path.read_text().splitlines()) for path in FOLDER.glob("*.py")}
    assert {name: count for name, count in lines.items() if count > 40} == {}


@pytest.mark.parametrize("kind", ["f16", "f32", "i8"])
@pytest.mark.parametrize("kernel", [basic_gemm.basic_gemm, optimized_gemm.optimized_gemm])
def test_products_are_exact(kernel, kind):
    result = basic_gemm.RESULT[kind]
    run = tilewright.compile(kernel, {"T": kind, "R": result}, target="interpreter", seed=len(kind), workers=3)
    check_product(run, 129, 131, 67, kind, result)


@pytest.mark.parametrize("open_sizes", [False, True])
@pytest.mark.parametrize(
    ("k", "vector", "refused"),
    [
        (128, (1, 2), ""),
        (128, (1, 4), ""),
        (128, (1, 8), ""),
        (128, (1, 1), "vector=(1, 1): a lane of cdna3 moves 2, 4, 8 elements of f16"),
        (128, (1, 3), "each thread has 8 elements along dimension 1, which are no multiple of 3"),
        (128, (0, 4), "each thread has 2 elements along dimension 0, which are no multiple of 4"),
        (128, (0, 2), "global_load.dword"),  # neighbours along dimension 0 are a row apart
        (67, (1, 2), "its rows are not aligned"),
        (67, (1, 8), "its rows are not aligned"),
        (67, (0, 2), "global_load.dword"),
    ],
)
def test_vectors_are_taken_where_the_copy_atom_gives_instructions(k, vector, refused, open_sizes):
    params = {"vector": vector} | ({} if open_sizes else {"M": 65, "N": 70, "K": k})
    if not refused:
        check_product(tilewright.compile(basic_gemm.basic_gemm, params, target="interpreter"), 65, 70, k, "f16", "f16")
        return
    with pytest.raises((ProgramError, ArgumentError)) as found:
        check_product(tilewright.compile(basic_gemm.basic_gemm, params, target="interpreter"), 65, 70, k, "f16", "f16")
    assert refused in str(found.value)


@pytest.mark.filterwarnings("ignore::tilewright.errors.MissingAtomWarning")
@pytest.mark.parametrize("kernel", [basic_gemm.basic_gemm, optimized_gemm.optimized_gemm])
def test_products_run_as_machine_code(kernel):
    run = tilewright.compile(kernel, {"BM": 64, "BN": 64})
    check_product(run, 65, 70, 33, "f16", "f16")


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("pad", [0, 1])
def test_images_become_columns(stride, pad):
    img2col.check((2, 1, 6, 9, 1, 3), STRIDE=stride, PAD=pad, target="interpreter", seed=stride)


def test_images_of_three_dimensions_become_columns():
    img2col.check((1, 4, 5, 3, 2, 8), U=3, target="interpreter")


@pytest.mark.parametrize("n", [1, 256, 900])
def test_copies(n):
    tiled_copy.check(n, target="interpreter", seed=n)


def test_tensors_are_seen_through_layouts():
    tensor_transform.check(target="interpreter")
    tensor_transform.check()
