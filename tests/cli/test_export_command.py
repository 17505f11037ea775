"""`tilewright export`: the files it writes, what it prints, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import tilewright
from tilewright.cli import app


def run(*args, code=0):
    done = CliRunner().invoke(app, ["export", *map(str, args)])
    assert done.exit_code == code, done.output
    return done.output


def test_a_problem_is_exported_with_its_weights_constant(tmp_path):
    printed = run("5x7:7x9", tmp_path / "product.o", "--name", "product")
    assert printed.split() == [
        "wrote",
        f"{tmp_path}/product.o",
        "wrote",
        f"{tmp_path}/product.h",
        "wrote",
        f"{tmp_path}/product.json",
    ]
    a, b = np.ones((5, 7), np.float32), np.ones((7, 9), np.float32)
    assert (tilewright.load(tmp_path / "product")(a, b) == 7).all()
    manifest = json.loads((tmp_path / "product.json").read_text())
    assert [argument["bound"] for argument in manifest["arguments"]] == [False, True, False]


def test_a_convolution_for_another_machine_with_an_open_batch(tmp_path):
    run("mb1ic4ih6oc8kh3ph1", tmp_path / "layer.so", "--dt", "bf16", "--target", "cpu:x86.amx", "--open", "N")
    manifest = json.loads((tmp_path / "layer.json").read_text())
    assert manifest["machine"]["name"] == "x86.amx"
    assert [size["name"] for size in manifest["sizes"]] == ["N"]


def test_a_function_for_tvm_ffi_is_added_where_it_is_asked_for(tmp_path):
    symbols = []
    for more in ([], ["--tvm-ffi"]):
        run("5x7:7x9", tmp_path / "product.so", "--name", "product", *more)
        symbols.append(json.loads((tmp_path / "product.json").read_text())["tvm_ffi"])
        assert (b"__tvm_ffi_product" in (tmp_path / "product.so").read_bytes()) == bool(more)
    assert symbols == [None, "__tvm_ffi_product"]


def test_the_text_of_a_program_is_exported(tmp_path):
    text = tmp_path / "scaled.block"
    text.write_text("block scaled(%x: in global f32 (M), %y: out global f32 (M))\n  param M { map %y = %x * 3 }\n")
    run(text, tmp_path / "scaled.o", "--size", "M=6")
    assert (tilewright.load(tmp_path / "scaled")(np.ones(6, np.float32)) == 3).all()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["5x7:7x9", "x.dll"], "path='x.dll': the suffix .dll tells no format; there is 'object' (.o), 'shared' (.so)"),
        (["5x7:7x9", "x.o", "--size", "M=4"], "--size M=4: a problem has its sizes; leave it out"),
        (["5x7:7x9", "x.o", "--open", "Q"], "dynamic: Q is no size that arguments tell"),
        (
            ["5x7:7x9", "x.o", "--target", "gpu:hopper"],
            "path='x.o': the suffix .o tells no format; there is 'ptx' (.ptx)",
        ),
        (["5x7:7x9", "nowhere/at/all/x.o"], "cannot be written: No such file or directory"),
    ],
)
def test_what_cannot_be_exported_is_said_in_one_line(args, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert says in run(*args, code=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "says"),
    [("²", "--size M=²: a name and a number, as in M=64"), ("9" * 5000, "an integer has at most 512 bits")],
    ids=["superscript", "long"],
)
def test_a_size_that_is_no_decimal_number_is_refused_and_not_read(number, says, tmp_path):
    text = tmp_path / "scaled.block"
    text.write_text("block scaled(%x: in global f32 (M), %y: out global f32 (M))\n  param M { map %y = %x * 3 }\n")
    assert says in run(text, tmp_path / "scaled.o", "--size", f"M={number}", code=2)
