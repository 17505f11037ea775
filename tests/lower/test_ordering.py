"""Arguments that several operations of a task touch: its waves meet in between, and only there."""

import numpy as np
import pytest
from tile_fuzz import SIZES
from wide_fuzz import WideFuzz

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import NativeExecutable, kernel_for
from tilewright.lang.global_symbols import GLOBAL_ADDRESS_SPACE
from tilewright.targets.registry import machine

pytestmark = pytest.mark.filterwarnings("ignore::tilewright.errors.AliasingWarning")
M, N = tkl.sym.M, tkl.sym.N
MEMORY = tkl.Memory[M, N, GLOBAL_ADDRESS_SPACE, tkl.f32]


def as_the_executor(kernel, *arrays):
    """The block program for many lanes, on the interpreter, which reports races: the executor's results."""
    meaning = tilewright.compile(kernel, target="executor")
    wanted = [a.copy() for a in arrays]
    meaning(*wanted)
    for row in ("hopper", "cdna3"):
        found = [a.copy() for a in arrays]
        NativeExecutable(meaning.program, meaning.known, "interpreter", machine=machine(row))(*found)
        for mine, theirs in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def data(m, n):
    rng = np.random.default_rng(0)
    return rng.integers(-4, 5, (m, n)).astype(np.float32), np.full((m, n), 7, np.float32)


@pytest.mark.parametrize(("m", "n"), [(5, 7), (1, 300), (33, 129)])
def test_what_one_operation_wrote_another_overwrites(m, n):
    i, j = (tkw.IndexMapping.iterator(k) for k in range(2))
    back = tkw.IndexMapping(2, inputs={M: i, N: j}, outputs={M: i, N: N - 1 - j})

    @tkw.wave()
    def kernel(x: MEMORY, y: MEMORY):
        tile = tkw.read(x)
        tkw.write(tile, y, mapping=back)
        tkw.write(tile + tkw.max(tile, dim=N), y)

    as_the_executor(kernel, *data(m, n))


@pytest.mark.parametrize(("m", "n"), [(5, 7), (1, 300), (33, 129)])
def test_what_one_operation_wrote_another_reads_elsewhere(m, n):
    i, j = (tkw.IndexMapping.iterator(k) for k in range(2))
    back = tkw.IndexMapping(2, inputs={M: i, N: N - 1 - j}, outputs={M: i, N: j})

    @tkw.wave()
    def kernel(x: MEMORY, y: MEMORY, z: MEMORY):
        tkw.write(tkw.read(x) * 2.0, y)
        tkw.write(tkw.read(y, mapping=back), z)
        tkw.write(tkw.read(x), y)

    as_the_executor(kernel, *data(m, n), np.zeros((m, n), np.float32))


def test_rounds_of_a_loop_that_meet_at_one_place():
    i, j = (tkw.IndexMapping.iterator(k) for k in range(2))
    again = tkw.IndexMapping(2, inputs={M: i, N: j}, outputs={M: i, N: j % 100})

    @tkw.wave([tkw.TilingConstraint(N, 64)])
    def kernel(x: MEMORY, y: MEMORY):
        @tkw.iterate(N, init_args=[tkl.Register[M, tkl.f32](0.0)])
        def total(acc):
            tile = tkw.read(x)
            tkw.write(tile + acc, y, mapping=again)
            return tkw.minimum(acc + tkw.max(tile, dim=N), 5.0)

        tkw.write(tkw.read(x) + total, y)

    as_the_executor(kernel, *data(3, 300))


def test_a_result_that_is_written_once_needs_no_barrier():
    text = kernel_for(tilewright.kernels.activation("relu"), {"M": 64, "N": 256}, machine=machine("hopper")).text()
    assert "barrier" not in text
    tiled = tilewright.kernels.tiled_running_sum(64)
    for line in kernel_for(tiled, {"M": 4, "N": 640}, machine=machine("hopper")).text("block").split("barrier")[:-1]:
        assert not line.rstrip().splitlines()[-1].strip().endswith("-> %y_view")


def test_a_random_program_whose_writes_met():
    program = WideFuzz(33).program()
    as_the_executor(program, *(np.zeros([SIZES[d] for d in a.type.dims], a.type.dtype.numpy) for a in program.args))
