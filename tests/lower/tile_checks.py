"""Running a tile kernel natively: poisoned outputs between guards, against the executor, and on the interpreter."""

import re
import warnings
from functools import lru_cache
from weakref import WeakSet

import numpy as np
import pytest
from kernel_checks import GUARD, poisoned

import tilewright
from tilewright.check.block import check
from tilewright.compiler.native import NativeExecutable
from tilewright.errors import AliasingWarning
from tilewright.ir.block import parse_block
from tilewright.runtime.arguments import Arguments
from tilewright.targets.cpu import host

no_atoms_today = pytest.mark.filterwarnings("ignore::tilewright.errors.FastPathLost")
"""For tests of the general path, which does products as plain loops, and says so."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Compiled programs are kept in a folder of the tests' own."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "tilewright-cache"))
    for name in ("TILEWRIGHT_CACHE_MB", "TILEWRIGHT_DUMP", "TILEWRIGHT_THREADS"):
        monkeypatch.delenv(name, raising=False)


def native(made, path="general", **options):
    """The executable of a kernel, or of a kernel with its symbols; without a pipeline unless said otherwise."""
    kernel, symbols = made if isinstance(made, tuple) else (made, {})
    executable = tilewright.compile(kernel, symbols, target="cpu", **options)
    executable.path = path
    return executable


@lru_cache(maxsize=32)
def _made_once(kernel, symbols, target, path):
    """A strict executable, the same for calls with several sets of arrays: what has the same sizes compiles once."""
    executable = tilewright.compile(kernel, dict(symbols), strict=True, target=target)
    executable.path = path
    return executable


def _strict(made, target, path=None):
    kernel, symbols = made if isinstance(made, tuple) else (made, {})
    return _made_once(kernel, tuple(symbols.items()), target, path)


def run_native(made, inputs, shape, dtype, *, fresh=None, path="general"):
    """The output natively; nothing outside it is written, the inputs stay, the block text parses back."""
    executable = _strict(made, "cpu", path)
    before = [x.copy() for x in inputs]
    out, buffer = poisoned(shape, dtype)
    if fresh is not None:
        out[...] = fresh
    guards = buffer[:GUARD].tobytes() + buffer[-GUARD:].tobytes()
    assert executable(*inputs, out) is None
    assert buffer[:GUARD].tobytes() + buffer[-GUARD:].tobytes() == guards
    assert all(x.tobytes() == y.tobytes() for x, y in zip(inputs, before, strict=True))
    if out.size:
        parses_back(executable)
    return out


_read_back = WeakSet()
"""Machine code whose block text was looked at: that of the same sizes, called again, is the same."""


def parses_back(executable):
    if executable._last in _read_back:
        return
    _read_back.add(executable._last)
    if executable.path == "best":
        program = parse_block(executable.text("block"))
        assert str(program) == executable.text("block")
        return
    program = executable._last.main
    assert parse_block(str(program)) == program
    check(program, host.host_machine())
    assert executable.text("block") == str(program)


def executed(made, inputs, shape, dtype, *, fresh=None):
    """The output by the executor."""
    out, _ = poisoned(shape, dtype)
    if fresh is not None:
        out[...] = fresh
    _strict(made, "executor")(*inputs, out)
    return out


def paths(program):
    """The ways to machine code that can differ: a program without products is no contraction, its best is general."""
    return ("general", "best") if any(op.name == "mma" for op in program.walk()) else ("general",)


def same_bits(made, inputs, shape, dtype, *, fresh=None):
    """Natively and by the executor: equal to the last bit."""
    wanted = executed(made, inputs, shape, dtype, fresh=fresh)
    for path in paths(_strict(made, "executor").program):
        found = run_native(made, inputs, shape, dtype, fresh=fresh, path=path)
        np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))
    return found


def interpreted(executable, args, workers=2, seed=0):
    """What the block program gives on its interpreter: outputs that are left out, made and returned."""
    bound = Arguments(executable.program, executable.outputs, executable.known, args)
    shapes = {a: np.shape(bound.values[a]) for a in executable.program.args}
    made = NativeExecutable(executable.program, executable.known, "interpreter", lenient=executable.lenient)
    made.path = "general"
    text = re.sub(r" workers \d+", f" workers {workers}", made.compiled(bound.symbols, shapes).text("host"))
    arrays = [np.asarray(bound.values[a], a.type.dtype.numpy) for a in executable.program.args]
    tilewright.compile_text(text, "interpreter", seed=seed).bind(*arrays)()
    return bound.finish()


def three_ways(kernel, *args, symbols=None):
    """By the executor, natively and on the block interpreter: all the same bits. Arrays are left as they came."""

    def made(target, path=None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AliasingWarning)
            run = tilewright.compile(kernel, symbols or {}, target=target)
        run.path = path
        return run

    results = []

    def add(run):
        mine = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        found = run(*mine)
        arrays = [a for a in mine if isinstance(a, np.ndarray)]
        results.append([*(found if isinstance(found, tuple) else [] if found is None else [found]), *arrays])

    by_meaning = made("executor")
    add(by_meaning)
    for path in paths(by_meaning.program):
        run = made("cpu", path)
        add(run)
        if path == "general":
            parses_back(run)
            add(lambda *mine, run=run: interpreted(run, mine))
    for other in results[1:]:
        for wanted, found in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))
    return results[0]
