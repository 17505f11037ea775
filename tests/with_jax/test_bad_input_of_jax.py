"""Wrong arguments through JAX: the errors of other callers, in the same words, when JAX traces."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from bad_input import INPUTS, OUTPUTS, OnAGpu, right

import tilewright
import tilewright.jax
from tilewright.errors import ArgumentError, TargetError
from tilewright.kernels import gemm
from tilewright.targets.registry import native

SAID_OTHERWISE = {"device": "argument a is a OnAGpu; tilewright.jax takes arrays of JAX and numpy"}
"""JAX's arrays alone are taken, so that no array lies elsewhere than JAX knows."""
FREE = ("read-only output", "aliasing output")
"""An output that is given is a starting value, which is not written: JAX copies it."""


def arrays(arguments):
    """Arguments as arrays of JAX; what JAX has no array for as it is."""
    return [jax.numpy.asarray(a) if isinstance(a, np.ndarray) else a for a in arguments]


@pytest.fixture(scope="module")
def function():
    return tilewright.jax.function(tilewright.compile(gemm("nn", "f32")))


@pytest.mark.parametrize("name", [name for name in (*INPUTS, *OUTPUTS) if name not in FREE])
def test_a_wrong_argument_is_named(name, function):
    spoil, says = {**INPUTS, **OUTPUTS}[name]
    with pytest.raises(ArgumentError, match=SAID_OTHERWISE.get(name, says)):
        function(*arrays(spoil(*right())))


@pytest.mark.parametrize("name", ["dtype", "rank", "extent", "output dtype", "output rank"])
def test_a_wrong_argument_is_named_under_jit_too(name, function):
    spoil, says = {**INPUTS, **OUTPUTS}[name]
    with pytest.raises(ArgumentError, match=says):
        jax.jit(function)(*arrays(spoil(*right())))


@pytest.mark.parametrize("name", FREE)
def test_an_output_that_is_given_is_a_value_which_stays_as_it_is(name, function):
    a, b, c = arrays({**INPUTS, **OUTPUTS}[name][0](*right()))
    before = np.array(c)
    assert (np.asarray(function(a, b, c)) == np.asarray(a) @ np.asarray(b)).all()
    assert (np.asarray(c) == before).all()


@pytest.mark.parametrize("operator", ["matmul", "conv1d"])
def test_operators_name_what_is_no_array_of_jax(operator):
    with pytest.raises(ArgumentError, match=r"^[ax] is a OnAGpu; tilewright.jax takes arrays of JAX and numpy"):
        getattr(tilewright.jax, operator)(OnAGpu(), jax.numpy.ones((3, 5)))


def test_code_for_another_machine_is_refused_by_its_name():
    others = [name for name in ("x86.amx", "aarch64.neon.fullfp16.dotprod.bf16.i8mm") if not native(f"cpu:{name}").runs]
    assert others
    for name in others:
        function = tilewright.jax.function(tilewright.compile(gemm("nn", "f32"), target=f"cpu:{name}"))
        with pytest.raises(TargetError, match=f"gemm: code for {name} does not run here: this CPU is"):
            function(*arrays(right()[:2]))
