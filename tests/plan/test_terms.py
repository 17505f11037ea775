"""Products with one column beside what both factors keep: lanes do them term by term, and the model finds it."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.compiler.text import compile_text
from tilewright.errors import ArgumentError

CASES = {
    "plain": ((1, 7, 9), 24, {"padding": 1}, (3, 3)),
    "strided": ((3, 9, 6), 40, {"padding": 1, "stride": (2, 1)}, (3, 3)),
    "dilated": ((2, 11, 8), 16, {"padding": (2, 3), "dilation": (2, 3)}, (3, 3)),
    "without padding, ragged channels": ((2, 6, 5), 13, {}, (3, 2)),
    "many taps": ((1, 9, 10), 8, {"padding": 3}, (7, 7)),
    "one pixel a task": ((1, 2, 2), 520, {"padding": 1}, (3, 3)),
}


def problem(name, dtype="f32"):
    """A depthwise convolution's kernel, its sizes, and its arrays, of small integers."""
    (n, h, w), c, how, taps = CASES[name]
    kernel = kernels.conv(taps, dtype, groups=c, **how)
    rng = np.random.default_rng(len(name))
    made = kernel_for(kernel, {"N": n, "H": h, "W": w, "C": c, "F": c, "CG": 1}, target="gpu:hopper")
    kind = np.float32 if dtype == "f32" else made.module.host.args[0].type.dtype.numpy
    x = rng.integers(-4, 5, (n, h, w, c)).astype(kind)
    f = rng.integers(-4, 5, (c, *taps, 1)).astype(kind)
    return kernel, made, x, f


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", ["block", "loop"])
@pytest.mark.parametrize("name", CASES)
def test_the_interpreter_gives_what_the_executor_does(name, level):
    kernel, made, x, f = problem(name, "bf16" if name == "plain" else "f32")
    assert "mma by loops" in made.text("plan")
    wanted = tilewright.compile(kernel, target="executor")(x, f)
    found = np.full(wanted.shape, np.nan, wanted.dtype)
    compile_text(made.text(level), "interpreter")(x, f, found)
    assert (found == wanted).all()


def test_a_plan_says_it_and_is_taken():
    kernel, made, _, _ = problem("strided", "bf16")
    sizes = {"N": 3, "H": 9, "W": 6, "C": 40, "F": 40, "CG": 1}
    again = kernel_for(kernel, sizes, target="gpu:hopper", plan=made.text("plan"))
    assert again.text("block") == made.text("block")
    wider = made.text("plan").replace("waves 2", "waves 4")
    assert "waves 4" in kernel_for(kernel, sizes, target="gpu:hopper", plan=wider).text("block")
    with pytest.raises(ArgumentError, match=r"`axis K = \(K 8\): loop 1` says K 8, the program has K 9"):
        kernel_for(kernel, sizes, target="gpu:hopper", plan=made.text("plan").replace("(K 9)", "(K 8)"))


def test_several_terms_at_a_time_give_the_same():
    kernel, made, x, f = problem("strided")
    plan = made.text("plan").replace("loop 1", "loop 2")
    other = kernel_for(kernel, {"N": 3, "H": 9, "W": 6, "C": 40, "F": 40, "CG": 1}, target="gpu:hopper", plan=plan)
    wanted = tilewright.compile(kernel, target="executor")(x, f)
    found = np.full(wanted.shape, np.nan, wanted.dtype)
    compile_text(other.text("loop"), "interpreter")(x, f, found)
    assert (found == wanted).all()


def test_explain_says_what_an_atom_would_take():
    _, made, _, _ = problem("plain", "bf16")
    assert "mma by loops" in made.text("plan")
    assert re.search(r"refused  no pipeline: \d+\.\d\d of the time", made.explain())  # products by an atom


def test_waves_meet_for_what_is_brought_first_and_for_nothing_else():
    kernel = kernels.conv((7, 7), "bf16", groups=64, padding=3)
    made = kernel_for(kernel, {"N": 2, "H": 14, "W": 14, "C": 64, "F": 64, "CG": 1}, target="gpu:hopper")
    loop = made.text("loop")
    body = loop[loop.index("for k_") :]
    assert "w_terms" in loop
    assert "barrier" not in body[: body.index("}")]


def test_channels_that_lie_apart_stay_with_atoms():
    made = kernel_for(
        kernels.conv((3, 3), "bf16", groups=4, padding=1),
        {"N": 2, "H": 6, "W": 6, "C": 32, "F": 32, "CG": 8},
        target="gpu:hopper",
    )
    assert "mma by loops" not in made.text("plan")
