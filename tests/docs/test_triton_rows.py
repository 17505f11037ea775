"""Each row of docs/coming_from_triton/constructs.md has a line of code that runs, or says in words why not."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tilewright
import tilewright.block as tb
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.block import Layout
from tilewright.lang.global_symbols import WORKGROUP_0

TEXT = (Path(__file__).parents[2] / "docs/coming_from_triton/constructs.md").read_text(encoding="utf-8")
TABLES = re.sub(r"```.*?```", "", TEXT[TEXT.index("## Programs") :], flags=re.DOTALL)
ROWS = [line.strip("| ").split(" | ") for line in TABLES.splitlines() if line.startswith("| `") or " | `" in line]
CODE = re.compile(r"`((?:tkw\.|tkl\.|tb\.|tilewright\.|run\b|kernel\.|a\.|with tb\.)[^`]*\([^`]*|alpha \* t)`")
FOUND = {row[0]: CODE.findall(row[-1]) for row in ROWS if not row[0].startswith("Triton")}
INSIDE = [c for codes in FOUND.values() for c in codes if re.match(r"tkw\.(?!wave)|tkl|alpha", c)]
AROUND = [c for codes in FOUND.values() for c in codes if re.match(r"tkw\.wave|tilewright|run|kernel", c)]
BLOCK = [c for codes in FOUND.values() for c in codes if re.match(r"tb|a\.|with tb", c)]

M, N, K, P, ROW, ONE, BLOCK_SIZE = (tkl.sym.__getattr__(n) for n in ("M", "N", "K", "P", "ROWS", "ONE", "BLOCK"))
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
NAMES = {"tkw": tkw, "tkl": tkl, "tilewright": tilewright, "tb": tb, "Layout": Layout, "WORKGROUP_0": WORKGROUP_0}
NAMES |= {"M": M, "N": N, "K": K, "P": P, "ROWS": ROW, "ONE": ONE, "BLOCK": BLOCK_SIZE, "i": i, "j": j}
MAPPINGS = re.findall(r"^>>> ((?:looked_up|before|named_row|row_named|own_place) = .*)", TEXT, re.MULTILINE)
exec("\n".join(MAPPINGS), NAMES)


def integers(*shape: int, kind: object = np.float32) -> np.ndarray:
    return (np.arange(np.prod(shape)) * 7 % 5).reshape(shape).astype(kind)


def test_what_has_no_code_says_so_in_words() -> None:
    """A row whose code the pattern above does not see would be a row that nothing runs."""
    assert len(FOUND) > 50
    words = {name for name, codes in FOUND.items() if not codes}
    answers = {row[0]: row[-1] for row in ROWS}
    plain = ("nothing", "Python's", "a Python function", "a read that may leave", "the row with", "the variable")
    plain += ("the command", "numpy arrays", "`tkw.scaled_mma`")
    assert {name for name in words if not answers[name].startswith(plain)} == set()


@pytest.mark.parametrize("code", INSIDE)
def test_a_line_of_a_tile_kernel_runs(code: str) -> None:
    @tkw.wave([tkw.TilingConstraint(P, 1)] if "iterate(P" in code else [])
    def kernel(
        x: tkl.Memory[M, N, GLOBAL, tkl.f32],
        y: tkl.Memory[M, N, GLOBAL, tkl.f32],
        a: tkl.Memory[M, K, GLOBAL, tkl.f16],
        b: tkl.Memory[N, K, GLOBAL, tkl.f16],
        bias: tkl.Memory[N, GLOBAL, tkl.f32],
        scale: tkl.Memory[M, GLOBAL, tkl.f32],
        table: tkl.Memory[ROW, N, GLOBAL, tkl.f32],
        index: tkl.Memory[M, GLOBAL, tkl.i32],
        counts: tkl.Memory[ROW, GLOBAL, tkl.i32],
        alpha: tkl.f32,
    ):
        arguments = {"x": x, "y": y, "a": a, "b": b, "bias": bias, "scale": scale, "table": table, "index": index}
        t, u, acc = tkw.read(x), tkw.read(y), tkl.Register[M, N, tkl.f32](0)
        exec(code, NAMES | arguments | {"counts": counts, "alpha": alpha, "t": t, "u": u, "acc": acc})
        tkw.write(t, y)

    data = [integers(5, 7), integers(5, 7), integers(5, 3, kind=np.float16), integers(7, 3, kind=np.float16)]
    data += [integers(7), integers(5), integers(6, 7), integers(5, kind=np.int32), integers(6, kind=np.int32)]
    tilewright.compile(kernel, {ONE: 1} if "ONE" in code else {}, target="executor")(*data, 2.0)
    assert (data[1] == data[0]).all()


@cache
def around() -> dict[str, object]:
    @tkw.wave()
    def kernel(x: tkl.Memory[M, N, GLOBAL, tkl.f32], y: tkl.Memory[M, N, GLOBAL, tkl.f32]):
        tkw.write(tkw.read(x) * 2.0, y)

    run = tilewright.compile(kernel)
    run(integers(6, 8))
    return NAMES | {"kernel": kernel, "gemm": tilewright.kernels.gemm("nt", "f32"), "X": integers(6, 8), "run": run}


@pytest.mark.parametrize("code", AROUND)
def test_a_line_around_a_kernel_runs(code: str) -> None:
    found = eval(code, around())
    assert found is not None
    if code.endswith("(X)"):
        assert (found == 2 * integers(6, 8)).all()


@pytest.mark.parametrize("code", BLOCK)
def test_a_line_of_a_block_kernel_runs(code: str) -> None:
    @tb.kernel("hopper", waves=None if code.startswith("with tb.role") else 4)
    def kernel(a: tb.In("f16", 256, 256), c: tb.Out("f32", 64, 64)):
        known = NAMES | {"a": a, "m": 0, "k": 1}
        if code.startswith("with tb.role"):
            exec(f"{code}:\n    pass", known)
            return
        owners = tb.partition((64, 64), Layout((64, 2), (1, 64)))
        held, scanned = (tb.registers("f32", (64, 64), owners) for _ in range(2))
        fragment = tb.registers("f32", (64, 64), tb.partition((64, 64), Layout((2, 64), (64, 1))))
        column = tb.registers("f32", (64,), Layout(((64, 2), 1), ((1, 0), 0)))
        known |= {"held": held, "scanned": scanned, "column": column, "fragment": fragment}
        known["stage"] = tb.shared("f16", (64, 64))
        exec(code, known)

    assert kernel.trace().name == "kernel"
