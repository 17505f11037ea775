"""The tile level: text that reads back, and what the verifier refuses."""

from __future__ import annotations

import numpy as np
import pytest
from tile_fuzz import SIZES, TileFuzz

from tilewright.algebra import symbol
from tilewright.errors import ParseError, ProgramError
from tilewright.interpret.executor import execute
from tilewright.ir import dtypes
from tilewright.ir.core import Block, MemoryType, Op, Program, TileType, Value
from tilewright.ir.tile import TILE, mismatched_dims, parse_tile
from tilewright.ir.verifier import verify

M, N, K = (symbol(name, 0) for name in "MNK")


def run(program, seed):
    rng = np.random.default_rng(seed)
    arguments = {}
    for value in program.args:
        shape = tuple(SIZES[d] for d in value.type.dims)
        arguments[value] = rng.integers(-2, 3, shape).astype(value.type.dtype.numpy)
    execute(program, SIZES, arguments)
    return arguments[program.args[-1]]


@pytest.mark.parametrize("block", range(10))
def test_programs_read_back_as_they_were_and_compute_the_same(block):
    for seed in range(block * 30, block * 30 + 30):
        program = TileFuzz(seed).program()
        verify(program)
        text = str(program)
        again = parse_tile(text)
        assert str(again) == text, seed
        verify(again)
        assert np.array_equal(run(program, seed), run(again, seed)), (seed, text)


EXAMPLE = """tile example(%x: global f32[M, K/2], %y: global f32[M])
  symbols BLOCK, K, M, it0, it1
  values dyn0
  bind BLOCK = 16
  bind K = 2*M
  workgroup dim=(M) tile=(BLOCK) grid=0 start=(BLOCK*it0) primary=false
  hardware threads=64 mma=F32_16x16x16_F16 vectors={M: 16, K: 0}
{
  %0 = fill value=-inf : f32[M]
  %idx = self_index dim=(M) dtype=i32 : i32[M]
  %1 = read %x, %idx over=[it0, it1] lookups=[dyn0: [it0]] at=[dyn0, it1] bounds={M: 3} otherwise=0.5 : f32[M, K/2]
  %2, %3 = topk %1 dim=(K / 2) count=(4) : f32[M, 4], i32[M, 4]
  %4 = iterate %0 axis=(K) (%acc: f32[M]) {
    %5 = max %1, %acc dim=(K / 2) acc=true : f32[M]
    debug_log %5 label="a \\"label\\""
    yield %5
  } : f32[M]
  conditional when=(M >= 4) () {
    write %4, %y
  }
}
"""


def test_every_kind_of_attribute_reads_back():
    text = EXAMPLE.replace("K/2]", "K / 2]")
    program = parse_tile(text)
    assert str(program) == text
    verify(program)
    assert str(parse_tile("# a comment\n" + text)) == text


@pytest.mark.parametrize(
    ("old", "new", "message", "under"),
    [
        ("tile example", "tyle example", "there is no level tyle; there are tile", "tyle"),
        ("read %x,", "reed %x,", "there is no operation reed on the tile level", "reed"),
        ("%1, %acc", "%1, %bad", "%bad is not defined here", "%bad"),
        ("global f32[M]", "global f33[M]", "there is no element type f33", "f33"),
        ("value=-inf", "valve=-inf", "fill needs the attribute value", "valve"),
        ("at=[dyn0, it1]", "at=[dyn0, it7]", "there is no symbol it7", "it7"),
        ("dtype=i32 :", "dtype=i33 :", "there is no element type i33", "i33"),
        ("  hardware", "  software", "there is no record software", "software"),
        ("%2, %3 =", "%2, %1 =", "%1 is defined twice", "%1 = topk"),
        ("write %4, %y\n  }\n}", "write %4, %y\n  }", "expected", ""),
        (": f32[M, 4], i32[M, 4]", ": f32[M, 4]", "2 results, but 1 types", None),
    ],
)
def test_text_that_is_wrong_is_pointed_at(old, new, message, under):
    assert old in EXAMPLE
    with pytest.raises(ParseError, match=message) as caught:
        parse_tile(EXAMPLE.replace(old, new))
    if under is not None:
        lines = str(caught.value).splitlines()
        column = lines[-1].index("^")
        assert lines[-2][column:].startswith(under)


def program_of(*ops, args=()):
    return Program(TILE, "p", tuple(args), Block((), list(ops)))


def op(name, operands=(), attrs=None, types=(), blocks=()):
    return Op(TILE.ops[name], tuple(operands), attrs or {}, tuple(Value(t) for t in types), blocks)


def test_the_verifier_refuses_what_makes_no_sense():
    tile = TileType(dtypes.f32, (M, N))
    memory = Value(MemoryType(dtypes.f32, (M, N)), "x")
    read = op("read", [memory], {}, [tile])
    wild = Value(tile)
    cases = [
        ([op("neg", [wild], {}, [tile])], "operand 0 of neg %_ .* is not defined before it"),
        ([read, op("neg", [read.result], {}, [TileType(dtypes.f32, (N, M))])], "the type follows to be"),
        ([read, op("neg", [read.result], {"axis": M}, [tile])], "neg has no attribute axis"),
        ([read, op("sum", [read.result], {}, [tile])], "sum needs the attribute dim"),
        ([read, op("sum", [read.result], {"dim": 3}, [tile])], "the attribute dim is 3, which is no expr"),
        ([read, op("write", [read.result, read.result])], "is a register tile .*; it must be memory"),
        ([read, op("neg", [memory], {}, [tile])], r"operand 0 of neg is memory"),
        ([read, op("iterate", [], {"axis": K}, [], [])], "iterate has 0 blocks; it takes 1"),
        ([read, op("yield", [read.result]), op("barrier")], "yield must be the last operation of its block"),
        ([read, read], "defined twice"),
    ]
    for ops, message in cases:
        with pytest.raises(ProgramError, match=message):
            verify(program_of(*ops, args=[memory]))


def test_values_of_a_block_do_not_leak():
    tile = TileType(dtypes.f32, (M,))
    inner = op("fill", [], {"value": 0}, [tile])
    block = Block((), [inner])
    outer = op("conditional", [], {"when": M >= 2}, [], (block,))
    with pytest.raises(ProgramError, match="is not defined before it"):
        verify(program_of(outer, op("neg", [inner.result], {}, [tile])))


def test_iterate_must_return_what_it_carries():
    tile = TileType(dtypes.f32, (M,))
    start = op("fill", [], {"value": 0}, [tile])
    arg = Value(tile)
    wrong = op("fill", [], {"value": 0}, [TileType(dtypes.f32, (N,))])
    block = Block((arg,), [wrong, op("yield", [wrong.result])])
    loop = op("iterate", [start.result], {"axis": K}, [tile], (block,))
    verify(program_of(start, loop))  # whether M and N are one wide, the constraints say
    dims, message = mismatched_dims(loop)
    assert dims == {M, N}
    assert "starts as" in message


@pytest.mark.parametrize(
    "kind",
    [
        MemoryType(dtypes.f32, (M, N), strides=(7, 1)),
        MemoryType(dtypes.i8, (M,), extents=(None,), strides=(3,)),
        MemoryType(dtypes.f32, (M, N), extents=(M + 1, None)),
    ],
    ids=str,
)
def test_types_of_memory_with_strides_read_back(kind):
    """Strides were printed and not read."""
    x, y = Value(kind, "x"), Value(MemoryType(dtypes.f32, (M,)), "y")
    text = str(program_of(args=(x, y)))
    again = parse_tile(text)
    assert [a.type for a in again.args] == [x.type, y.type]
    assert str(again) == text
