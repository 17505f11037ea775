"""Random one-role block programs: machine code gives exactly what the model says."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from random_programs import random_block_program

import tilewright
from tilewright.errors import InterpreterOnlyWarning, MissingAtomWarning


def differing(seed, waves=1):
    """The outputs that differ from what the model says."""
    text, arrays, expected = random_block_program(seed, waves)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingAtomWarning)
        warnings.simplefilter("ignore", InterpreterOnlyWarning)
        made = tilewright.compile_text(text, "cpu")
    found = {name: array.copy() for name, array in arrays.items()}
    made(*[found[a.name] for a in made.main.args])
    return [name for name, array in expected.items() if not np.array_equal(found[name], array)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", range(0, 100, 20))
def test_random_programs(first):
    """Those that tests/block/test_random.py runs on the interpreter too."""
    for seed in range(first, first + 20):
        assert differing(seed) == [], f"seed {seed}"


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_programs_for_several_waves_run_on_one_worker(first):
    for seed in range(first, first + 20):
        assert differing(seed, waves=2) == [], f"seed {seed}"
