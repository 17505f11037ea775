"""The seven programs of examples/block, written in Python: the same programs as the texts, and quick to trace."""

from __future__ import annotations

import importlib.util

import pytest
from block_checks import FOLDER, NAMES, calls, source

from tilewright.block import BlockKernel
from tilewright.ir.binding import bind, inlined
from tilewright.ir.block import parse_block

PARAMETERS = {
    "attention_hopper": [{}, {"B": 1, "T": 64, "U": 128, "BK": 128, "STAGES": 1}, {"B": 3, "T": 192, "STAGES": 3}],
    "conv_amx": [
        {},
        {"N": 2, "H": 7, "W": 9, "C": 128, "F": 64, "PAD": 0, "STRIP": 5, "SPLIT": 2, "CHUNK": 32, "STREAM_X": 0},
        {"H": 4, "W": 3, "C": 32, "F": 32, "R": 1, "S": 3, "PAD": 2, "STRIP": 4, "CHUNK": 32, "STREAM_W": 1},
    ],
    "conv_avx512": [
        {},
        {"N": 3, "H": 9, "W": 12, "C": 8, "F": 128, "STRIDE": 2, "PAD": 2, "PIX": 7, "SPLIT": 2},
        {"H": 5, "W": 8, "C": 3, "F": 32, "R": 1, "S": 5, "PAD": 0, "PIX": 2, "DEPTH": 1},
    ],
    "conv_hopper": [
        {"BM": 64, "WG": 1},
        {},
        {"N": 3, "H": 9, "W": 8, "C": 128, "F": 72, "STRIDE": 2, "STAGES": 2},
        {"N": 1, "H": 7, "W": 6, "F": 256, "R": 1, "S": 3, "PAD": 0, "BN": 128, "STAGES": 1},
    ],
    "conv_hopper_halo": [
        {},
        {"N": 3, "H": 5, "W": 6, "C": 64, "XSTAGES": 1, "WSTAGES": 2},
        {"N": 1, "H": 1, "W": 9, "F": 256, "BN": 128, "WSTAGES": 3},
    ],
    "conv_hopper_patches": [{}, {"N": 1, "H": 7, "W": 40, "PATCHES": 2}, {"STAGES": 1, "PATCHES": 1}],
    "flash_hopper": [
        {},
        {"D": 64, "BK": 128, "STAGES": 1, "WG": 3, "GROUP": 2},
        {"B": 1, "T": 128, "U": 128, "CAUSAL": 1},
    ],
    "gemm_hopper": [
        {"BM": 192, "WG": 3, "BN": 64},
        {},
        {"M": 130, "N": 72, "K": 100, "BN": 64, "STAGES": 2},
        {"M": 1000, "N": 300, "K": 64, "BN": 256, "STAGES": 1, "GROUP": 2},
    ],
    "gemm_hopper_pingpong": [
        {},
        {"M": 130, "N": 72, "K": 100, "BN": 64, "STAGES": 2},
        {"M": 5, "N": 700, "K": 70, "BN": 64, "STAGES": 1},
    ],
}


def kernel(name: str) -> BlockKernel:
    """The kernel of an example's Python file."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, name)
    assert isinstance(found, BlockKernel)
    return found


def test_every_program_is_there_in_python():
    assert sorted(PARAMETERS) == NAMES


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", range(3))
def test_python_and_text_are_one_program(name, case):
    params = PARAMETERS[name][case]
    text = inlined(bind(parse_block(source(name)), params))
    program = kernel(name).trace(params)
    assert parse_block(str(program)) == program
    traced = inlined(bind(program))
    assert traced == text, f"{traced}\n\n{text}"


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_those_of_the_text(name):
    from tilewright.ir.binding import parameters

    wanted = {s.name: n for s, n in parameters(parse_block(source(name))).items()}
    assert kernel(name).parameters() == wanted


def test_tracing_takes_a_few_milliseconds():
    """Counted as calls, of which a processor of today makes a million a second, under whatever load."""
    slow = {}
    for name in NAMES:
        found = kernel(name)
        found.trace()  # machine tables are loaded, the source is read
        if (count := calls(found.trace)) > 20000:
            slow[name] = count
    assert slow == {}
