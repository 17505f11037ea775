"""What copy atoms refuse of block programs, and what they ask of sizes that are open until the call."""

from __future__ import annotations

import numpy as np
import pytest
from block_checks import conv_hopper, source

from tilewright import errors
from tilewright.check.block import check
from tilewright.compiler.device import machine_of
from tilewright.compiler.text import compile_text
from tilewright.ir.binding import bind
from tilewright.ir.block import parse_block
from tilewright.lower.cpu.lower import lower
from tilewright.targets.registry import machine

# 64 lanes, eight to a row of 64; each has eight neighbours
ROWS = """block rows(%x: in global {dtype} (M, {pitch}){strides}, %y: out global {dtype} (M, 64))
  machine cdna3
  param {parameters}
{{
  %r = alloc register {dtype} (8, 64) by ((8,8),8):((64,1),8)
  tasks m in 0..M//8 {{
    %from = view %x (i 8, j 64) -> [{row}, {column}]
    copy %from -> %r{otherwise} by {atom}
    %to = view %y (i 8, j 64) -> [8*m + i, j]
    copy %r -> %to
  }}
}}"""


def rows(**changes: str) -> str:
    names = {
        "dtype": "f16",
        "pitch": "64",
        "strides": "",
        "parameters": "M = 16",
        "row": "8*m + i",
        "column": "j",
        "otherwise": "",
        "atom": "global_load.dwordx4",
    }
    return ROWS.format(**{**names, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pitch": "72"},  # rows of 144 bytes
        {"pitch": "80", "column": "j + 16"},
        {"pitch": "64", "column": "j + 8*(m%2) ?", "otherwise": " else 0"},
        {"dtype": "f32", "atom": "global_load.dwordx4"},
        {"dtype": "f32", "pitch": "67", "atom": "global_load.dword"},
        {"pitch": "66", "atom": "global_load.dword"},
        {"strides": ":(128, 1)"},
    ],
    ids=str,
)
def test_aligned_rows_are_loaded_by_wide_loads(changes: dict[str, str]) -> None:
    text = rows(**changes)
    program = bind(parse_block(text))
    assert check(program, machine_of(program)) == ()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"pitch": "67"},
            "copy: global_load.dwordx4: the stride of dimension 0 of %x is 134 bytes, no multiple of the 16 that a "
            "lane moves at once: its rows are not aligned",
        ),
        ({"pitch": "65", "atom": "global_load.dword"}, "the stride of dimension 0 of %x is 130 bytes"),
        (
            {"pitch": "80", "column": "j + 4"},
            "runs of 8 elements of %x begin at 8*run + 4 in dimension 1, not always a multiple of 8",
        ),
        (
            {"strides": ":(1, 64)"},
            "dimension 1 of %x has stride 64; runs of 8 elements need stride 1",
        ),
        (
            {"pitch": "128", "column": "2*j"},
            "dimension 1 of the box does not walk one dimension of %x element by element",
        ),
        (
            {"pitch": "60", "strides": ":(64, 1)", "column": "j ?", "otherwise": " else 0"},
            "%x has 60 elements in dimension 1, no multiple of 8: its edge cuts a run",
        ),
        ({"dtype": "f64", "atom": "global_load.dword"}, "a lane moves 4 bytes, which is no multiple of an element's 8"),
        ({"row": "8*m + i + 1", "strides": ":(4, 1)"}, "the stride of dimension 0 of %x is 8 bytes"),
    ],
    ids=lambda x: str(x) if isinstance(x, dict) else "",
)
def test_a_wide_load_of_rows_that_are_not_aligned_is_refused_at_its_line(changes: dict[str, str], says: str) -> None:
    program = bind(parse_block(rows(**changes)))
    with pytest.raises(errors.ProgramError) as caught:
        check(program, machine_of(program))
    assert says in str(caught.value)
    assert str(caught.value).endswith("  line 8:\n    " + rows(**changes).splitlines()[7].strip() + "\n    ^")


def test_values_of_a_lane_that_are_not_neighbours_are_refused() -> None:
    text = rows().replace("((8,8),8):((64,1),8)", "((8,8),8):((8,1),64)")
    program = bind(parse_block(text))
    with pytest.raises(errors.ProgramError, match=r"8 values of a lane of %r are not neighbours along one dimension"):
        check(program, machine_of(program))
    check(bind(parse_block(text.replace("dwordx4", "dword").replace("f16", "f32"))), machine_of(program))


def test_views_of_registers_are_put_to_their_atoms_too() -> None:
    text = rows(pitch="128").replace(
        "copy %from -> %r by global_load.dwordx4",
        "%half = view %r (i 8, j 32) -> [i, 2*(j//4*4) + j%4]\n    %part = view %from (i 8, j 32) -> [i, j]\n"
        "    copy %part -> %half by ATOM",
    )
    # of a lane's eight values the view has the first four, which are neighbours in memory
    check(
        bind(parse_block(text.replace("ATOM", "global_load.dwordx2"))),
        machine_of(parse_block(text.replace("ATOM", "x"))),
    )
    program = bind(parse_block(text.replace("ATOM", "global_load.dwordx4")))
    with pytest.raises(errors.ProgramError, match=r"a lane holds 4 values of %half, no multiple of the 8"):
        check(program, machine_of(program))


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_a_wide_load_of_an_open_pitch_is_guarded_at_the_call(target: str) -> None:
    text = rows(pitch="K", column="j ?", otherwise=" else 0", parameters="M = 16, K in 1..4096")
    run = compile_text(text, target=target)
    for pitch in (64, 40, 8, 72):
        x = np.arange(16 * pitch).reshape(16, pitch).astype(np.float16)
        wanted = np.zeros((16, 64), np.float16)
        wanted[:, : min(pitch, 64)] = x[:, :64]
        assert np.array_equal(run(x), wanted)
    with pytest.raises(errors.ArgumentError) as caught:
        run(np.zeros((16, 67), np.float16))
    assert "rows: `copy %from -> %r else 0 by global_load.dwordx4`: global_load.dwordx4: " in str(caught.value)
    assert "the stride of dimension 0 of %x is 2*K bytes, no multiple of the 16" in str(caught.value)
    assert str(caught.value).endswith("; here K = 67")


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_a_program_that_a_host_program_launches_is_guarded_too(target: str) -> None:
    """Machine code launched by a host program asked nothing of its open sizes."""
    host = """host main(%x: in global f16 (16, L), %y: out global f16 (16, 64))
  size L
{
  launch rows(%x, %y) workers 1 with K = L
}
"""
    text = rows(pitch="K", column="j ?", otherwise=" else 0", parameters="M = 16, K in 1..4096")
    run = compile_text(host + text, target=target)
    x = np.arange(16 * 72).reshape(16, 72).astype(np.float16)
    assert np.array_equal(run(x), x[:, :64])
    with pytest.raises(errors.ArgumentError, match=r"the stride of dimension 0 of %x is 2\*K bytes.*; here K = 67"):
        run(np.zeros((16, 67), np.float16))


def test_a_bound_launch_is_guarded() -> None:
    text = rows(pitch="K", column="j ?", otherwise=" else 0", parameters="M = 16, K in 1..4096")
    with pytest.raises(errors.ArgumentError, match="here K = 67"):
        compile_text(text).bind(np.zeros((16, 67), np.float16), np.zeros((16, 64), np.float16))


def test_the_loop_program_carries_what_its_atoms_ask_of_open_sizes() -> None:
    """The lowering asks the atom: the loop program, run on its own, is refused for the same sizes."""
    text = rows(pitch="K", column="j ?", otherwise=" else 0", parameters="M = 16, K in 1..4096")
    loop = compile_text(text).text("loop")
    assert "  require (K%8 == 0)\n" in loop
    again = compile_text(loop)
    x = np.arange(16 * 72).reshape(16, 72).astype(np.float16)
    assert np.array_equal(again(x, params={"K": 72}).reshape(16, 64), x[:, :64])
    with pytest.raises(errors.ArgumentError, match=r"rows requires \(?K%8 == 0\)?; here K = 67"):
        again(np.zeros((16, 67), np.float16), params={"K": 67})


def test_lowering_refuses_what_the_atom_refuses() -> None:
    """A program that nobody checked is put to its atoms when it is lowered."""
    program, cdna = bind(parse_block(rows(pitch="67"))), machine("cdna3")
    with pytest.raises(errors.ProgramError) as caught:
        lower(program, cdna, machine("portable"))
    assert "copy: global_load.dwordx4: the stride of dimension 0 of %x is 134 bytes" in str(caught.value)
    assert "line 8:" in str(caught.value)


# -- vectors and tiles of x86, matrices of NVIDIA ---------------------------------------------------------

VECTORS = """block rows(%x: in global f32 (M, {pitch}), %y: out global f32 (M, {pitch}))
  machine x86.avx512
  param {parameters}
{{
  %r = alloc register f32 (4, 16) by (16,4):(4,1)
  tasks m in 0..M//4 {{
    for n in 0..{blocks} {{
      %from = view %x (i 4, j 16) -> [4*m + i, {column}]
      copy %from -> %r{otherwise} by avx512.{load}
      %to = view %y (i 4, j 16) -> [4*m + i, {column}]
      copy %r -> %to by avx512.{store}
    }}
  }}
}}"""


def vectors(**changes: str) -> str:
    names = {
        "pitch": "64",
        "parameters": "M = 8",
        "blocks": "4",
        "column": "16*n + j",
        "otherwise": "",
        "load": "load",
        "store": "store",
    }
    return VECTORS.format(**{**names, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({"column": "16*n + 15 - j"}, "avx512.load: neighbouring lanes are not neighbours in %x"),
        ({"pitch": "67", "blocks": "5", "column": "16*n + j ?", "otherwise": " else 0"}, "no multiple of 16: a tail"),
        ({"pitch": "67", "blocks": "5", "column": "16*n + j ?", "otherwise": " else 0", "load": "load.masked"},
         "avx512.store: %y has 67 elements in dimension 1, no multiple of 16: a tail needs a mask"),
        ({"pitch": "67", "blocks": "5", "column": "16*n + j ?", "otherwise": " else 0", "load": "load.masked",
          "store": "store.masked"}, None),
        ({"pitch": "67", "blocks": "5", "column": "16*n + j ?", "otherwise": " else 1", "load": "load.masked",
          "store": "store.masked"}, "avx512.load.masked: what lies outside %x arrives as zero, not as 1"),
        ({"store": "store.stream"}, None),
        ({"pitch": "72", "column": "16*n + j", "store": "store.stream"}, "not always at a multiple of 64 bytes"),
        ({"pitch": "80", "column": "16*n + j + 4", "store": "store.stream"}, "not always at a multiple of 64 bytes"),
        ({"load": "broadcast"}, "avx512.broadcast: the lanes of a vector hold different elements of %x"),
        ({"blocks": "4", "column": "15*n + j", "load": "load", "store": "store"}, None),
        ({"blocks": "4", "column": "n//2*16 + (16*n + j)//5 ?", "otherwise": " else 0"}, "divides an axis of the box"),
    ],
    ids=lambda x: str(x) if isinstance(x, dict) else "",
)  # fmt: skip
def test_vector_copies_answer_for_all_rounds(changes: dict[str, str], says: str | None) -> None:
    program = bind(parse_block(vectors(**changes)))
    if says is None:
        assert check(program, machine_of(program)) == ()
        return
    with pytest.raises(errors.ProgramError) as caught:
        check(program, machine_of(program))
    assert says in str(caught.value)
    assert "copy %" in str(caught.value).splitlines()[-2]


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_whole_vectors_ask_an_open_width_to_be_whole(target: str) -> None:
    wide = {"pitch": "N", "blocks": "ceildiv(N, 16)", "column": "16*n + j ?", "otherwise": " else 0"}
    run = compile_text(vectors(parameters="M = 8, N in 1..999", **wide), target=target)
    x = np.arange(8 * 96, dtype=np.float32).reshape(8, 96)
    assert np.array_equal(run(x), x)
    with pytest.raises(errors.ArgumentError) as caught:
        run(np.zeros((8, 100), np.float32))
    assert "avx512.load: %x has N elements in dimension 1, no multiple of 16: a tail needs a mask" in str(caught.value)
    assert str(caught.value).endswith("; here N = 100")
    masked = compile_text(vectors(parameters="M = 8, N in 1..999", load="load.masked", store="store.masked", **wide),
                          target=target)  # fmt: skip
    x = np.arange(8 * 101, dtype=np.float32).reshape(8, 101)
    assert np.array_equal(masked(x), x)


def test_a_copy_by_a_streaming_atom_is_streamed() -> None:
    """The lowering did not ask the atom how it treats caches."""
    assert " stream" not in compile_text(vectors()).text("loop")
    loop = compile_text(vectors(store="store.stream")).text("loop")
    assert loop.count(" stream") == loop.count("store %") > 0


TILES = """block tiles(%x: in global bf16 ({rows}, {pitch}), %y: out global bf16 (64, 64))
  machine x86.amx
  param {parameters}
{{
  %t = alloc register bf16 (16, 32) as amx.bf16.a
  tasks m in 0..4 {{
    for n in 0..2 {{
      %from = view %x (i 16, j 32) -> [{row}, {column}]
      copy %from -> %t{otherwise} by amx.tileload
      %to = view %y (i 16, j 32) -> [16*m + i, 32*n + j]
      copy %t -> %to by amx.tilestore
    }}
  }}
}}"""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({"row": "16*m + i", "pitch": "71"}, None),  # rows at any distance
        ({"row": "(16*m + i)//16*16 + i"}, None),
        ({"row": "16*m + (i*i)%16"}, "the rows of a tile are not at one stride in %x"),
        ({"column": "32*n + 31 - j"}, "elements of a row are not neighbours in %x: their stride must be 1"),
        ({"rows": "60", "row": "16*m + i ?", "otherwise": " else 0"}, None),  # the last tile has 12 rows
        ({"rows": "48", "row": "16*m + i ?", "otherwise": " else 0"}, "a tile may begin at 16*m in dimension 0 of %x"),
        ({"rows": "60", "row": "16*m + 15 - i ?", "otherwise": " else 0"}, "not at the end of a tile: it has no mask"),
    ],
    ids=lambda x: str(x) if isinstance(x, dict) else "",
)
def test_tile_copies_answer_for_all_rounds(changes: dict[str, str], says: str | None) -> None:
    names = {
        "rows": "64",
        "pitch": "64",
        "parameters": "Z = 1",
        "row": "16*m + i",
        "column": "32*n + j",
        "otherwise": "",
    }
    program = bind(parse_block(TILES.format(**{**names, **changes})))
    if says is None:
        assert check(program, machine_of(program)) == ()
        return
    with pytest.raises(errors.ProgramError) as caught:
        check(program, machine_of(program))
    assert f"copy: amx.tileload: {says}" in str(caught.value) or says in str(caught.value)


def test_tiles_of_an_open_pitch_need_no_condition() -> None:
    text = TILES.format(rows=64, pitch="K", parameters="K in 64..999", row="16*m + i", column="32*n + j", otherwise="")
    run = compile_text(text, target="interpreter")
    x = np.arange(64 * 71).reshape(64, 71).astype(run.main.args[0].type.dtype.numpy)
    assert np.array_equal(run(x), x[:, :64])


MATRICES = """block fragments(%x: in global f16 (64, 64), %y: out global f16 (64, 64))
  machine ampere
  waves 1
{{
  %s = alloc shared f16 (64, 64){layout}
  copy %x -> %s
  barrier
  %r = alloc register f16 (16, 16) by ((4,8),(2,2,2)):((32,1),(16,8,128))
  tasks t in 0..16 {{
    %from = view %s (i 16, j 16) -> [{row}, {column}]
    copy %from -> %r by ldmatrix.x4{turned}
    %to = view %y (i 16, j 16) -> [16*(t//4) + i, 16*(t%4) + j]
    copy %r -> %to
  }}
}}"""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({"layout": " swizzle <3,3,3>"}, None),
        ({"layout": ":(72, 1)"}, None),
        ({"layout": " swizzle <3,2,3>"}, "the swizzle S<3,2,3> of %s tears runs of 8 elements apart"),
        ({"layout": ":(68, 1)"}, "not always at a multiple of 16 bytes"),
        ({"column": "12*(t%4) + j"}, "is moved from element 12*(t%4) along dimension 1 on, which is not always at"),
        ({"turned": ".trans"}, "the fragments of %r are not rows of 8 neighbours of 8x8 matrices in %s"),
        ({"turned": ".trans", "layout": ":(1, 64)"}, None),
        ({"layout": ":(1, 64)"}, "the fragments of %r are not rows of 8 neighbours"),
    ],
    ids=lambda x: str(x) if isinstance(x, dict) else "",
)
def test_loads_of_matrices_answer_for_all_rounds(changes: dict[str, str], says: str | None) -> None:
    names = {"layout": "", "row": "16*(t//4) + i", "column": "16*(t%4) + j", "turned": ""}
    text = MATRICES.format(**{**names, **changes})
    program = bind(parse_block(text))
    if says is None:
        assert check(program, machine_of(program)) == ()
        x = np.arange(64 * 64).reshape(64, 64).astype(np.float16)
        assert np.array_equal(compile_text(text, target="interpreter")(x), x)
        return
    with pytest.raises(errors.ProgramError) as caught:
        check(program, machine_of(program))
    assert f"copy: ldmatrix.x4{changes.get('turned', '')}: " in str(caught.value)
    assert says in str(caught.value)


def test_a_step_of_a_loop_counts_for_alignment() -> None:
    text = (
        rows(pitch="128", column="j + k")
        .replace("    %from", "    for k in 0..64 step 8 {\n    %from")
        .replace("    %to", "    }\n    %to")
    )
    check(bind(parse_block(text)), machine_of(parse_block(text)))
    program = bind(parse_block(text.replace("step 8", "step 4")))
    with pytest.raises(errors.ProgramError, match="not always a multiple of 8"):
        check(program, machine_of(program))


TMA = """block boxes(%x: in global {dtype} (M, N){strides}, %y: out global {dtype} (32, {columns}))
  machine hopper
  param {parameters}
{{
  %s = alloc shared {dtype} (2, 32, {columns}){swizzle}
  %ring = channel %s stages 2 from producer to consumer
  role producer waves 1 {{
    %to = acquire %ring
    %from = view %x (i 32, j {columns}) -> [{row}, {column}]
    copy %from -> %to else {otherwise} by tma.load
    commit %ring
  }}
  role consumer waves 1 {{
    %ready = wait %ring
    copy %ready -> %y
    release %ring
  }}
}}"""


def boxes(**changes: str) -> str:
    names = {
        "dtype": "bf16",
        "columns": "64",
        "strides": "",
        "parameters": "M = 40, N = 72",
        "swizzle": " swizzle <3,3,3>",
        "row": "i + 5 ?",
        "column": "j + 8 ?",
        "otherwise": "0",
    }
    return TMA.format(**{**names, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"columns": "32", "swizzle": " swizzle <2,3,3>"},
        {"dtype": "f32", "columns": "32", "swizzle": " swizzle <3,2,3>"},
    ],
    ids=str,
)
def test_boxes_are_loaded_from_anywhere(changes: dict[str, str]) -> None:
    program = bind(parse_block(boxes(**changes)))
    assert check(program, machine_of(program)) == ()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"swizzle": " swizzle <2,3,3>"}, "a row of the box has 128 bytes, not the 64 of this swizzle"),
        ({"swizzle": " swizzle <3,2,3>"}, "S<3,2,3> is none of the swizzles of 32, 64 or 128 bytes"),
        ({"columns": "4", "swizzle": ""}, "a row of the box has 8 bytes, no multiple of 16"),
        (
            {"column": "j + 3 ?"},
            "boxes begin at 3 of dimension 1 of %x, at byte 6 of its lines, which is no multiple of 16",
        ),
        ({"columns": "512", "swizzle": ""}, "the box has 512 elements in one dimension; the most is 256"),
        ({"strides": ":(1, 40)"}, "dimension 1 of %x, the fastest of the tile, has stride 40 in global memory, not 1"),
        ({"row": "2*i ?"}, "the coordinate 2*box0 of %x steps over elements; a box holds neighbours"),
        ({"row": "i//2 ?"}, "the coordinate box0//2 of %x divides an axis: its box is not one of the tensor"),
        ({"row": "5 ?"}, "dimension 0 of the box walks no dimension of %x"),
        ({"otherwise": "1"}, "what lies outside %x arrives as zero, not as 1"),
        ({"columns": "8", "swizzle": ":(8, 8, 1)", "row": "0 ?"}, ""),
    ],
    ids=lambda x: str(x) if isinstance(x, dict) else "",
)
def test_what_tma_cannot_say_is_refused_at_its_line(changes: dict[str, str], says: str) -> None:
    program = bind(parse_block(boxes(**changes)))
    with pytest.raises(errors.ProgramError) as caught:
        check(program, machine_of(program))
    assert f"copy: tma.load: {says}" in str(caught.value)
    assert "line 10:" in str(caught.value)


def test_a_box_that_starts_inside_128_bytes_of_shared_memory_is_refused() -> None:
    text = boxes(columns="16", swizzle=" swizzle <1,3,3>").replace(
        "%to = acquire %ring", "%stage = acquire %ring\n    %to = view %stage (i 32, j 16) -> [(i + 1)%32, j]"
    )
    program = bind(parse_block(text))
    with pytest.raises(errors.ProgramError, match="does not have one stride for each dimension of the box"):
        check(program, machine_of(program))
    half = (
        boxes(columns="16", swizzle=" swizzle <1,3,3>")
        .replace("(i 32, j 16)", "(i 30, j 16)")
        .replace("%to = acquire %ring", "%stage = acquire %ring\n    %to = view %stage (i 30, j 16) -> [i + 2, j]")
    )
    program = bind(parse_block(half))
    with pytest.raises(errors.ProgramError, match=r"a box starts at byte .* which is not always 128-byte aligned"):
        check(program, machine_of(program))


def test_the_pitch_of_a_tensor_map_is_asked_of_an_open_size_at_the_call() -> None:
    run = compile_text(boxes(parameters="M in 1..99, N in 1..999"), target="interpreter")
    x = np.arange(40 * 72).reshape(40, 72).astype(np.float32)
    found = run(x.astype(np.dtype("float32")).astype(run.main.args[0].type.dtype.numpy))
    assert found.shape == (32, 64)
    with pytest.raises(errors.ArgumentError) as caught:
        run(np.zeros((40, 71), run.main.args[0].type.dtype.numpy))
    assert str(caught.value).endswith("a tensor map takes multiples of 16 bytes, 8 elements; here N = 71")


CONV = """block rows(%y: out global bf16 (2, {p}, 5, 64){strides})
  machine hopper
{{
  %s = alloc shared bf16 (1, 64, 64) swizzle <3,3,3>
  %out = channel %s stages 1 from only to only
  role only waves 1 {{
    for m in 0..2 {{
      %free = acquire %out
      fill %free 1
      commit %out
      %ready = wait %out
      %to = view %y (i 64, c 64) -> [(64*m + i)//35 ?, (64*m + i)//5%7, (64*m + i)%5, c]
      copy %ready -> %to by tma.store
      release %out
    }}
  }}
}}"""


def test_rows_that_run_through_packed_pixels_are_stored_as_one_dimension() -> None:
    program = bind(parse_block(CONV.format(p=7, strides="")))
    assert check(program, machine_of(program)) == ()
    # lines that are not packed: a row is no dimension of its own
    program = bind(parse_block(CONV.format(p=7, strides=":(2560, 384, 64, 1)")))
    with pytest.raises(errors.ProgramError, match=r"tma.store: the coordinate .* of %y divides an axis"):
        check(program, machine_of(program))
    # images of eight lines, of which rows take seven
    program = bind(parse_block(CONV.format(p=8, strides="")))
    with pytest.raises(errors.ProgramError, match=r"tma.store: the coordinate .* of %y divides an axis"):
        check(program, machine_of(program))


@pytest.mark.parametrize("params", [{"N": 2, "H": 9, "W": 7}, {"N": 1, "H": 16, "W": 8}, {"N": 3, "H": 5, "W": 6}])
@pytest.mark.parametrize("stride", [1, 2])
def test_columns_of_images_of_open_sizes_are_loaded(params: dict[str, int], stride: int) -> None:
    """tma.load.im2col refused images whose sizes were open."""
    case = conv_hopper(STRIDE=stride, **params)
    text = source("conv_hopper")
    for name, default in (("N", 2), ("H", 14), ("W", 14)):
        text = text.replace(f"{name} = {default}", f"{name} in 1..99" if name == "N" else f"{name} in 3..99")
    run = compile_text(text, params={"STRIDE": stride}, target="interpreter")
    assert np.array_equal(run(*case.arguments), case.wanted)


def test_corners_of_open_images_are_asked_at_the_call() -> None:
    text = source("conv_hopper").replace("N = 2, H = 14, W = 14", "N = 1, H = 9, W in 1..999, Q in 1..999")
    text = text.replace("  let Q = (W + 2*PAD - S)//STRIDE + 1\n", "")
    run = compile_text(text, target="interpreter")
    x, w = np.ones((1, 9, 150, 64)), np.ones((64, 3, 3, 64))
    kind = run.main.args[0].type.dtype.numpy
    with pytest.raises(errors.ArgumentError) as caught:
        run(x.astype(kind), w.astype(kind), params={"Q": 3})
    assert "tma.load.im2col: a corner of Q - W - 1 along dimension 2 of %x does not fit the 8 bits it has" in str(
        caught.value
    )
    assert str(caught.value).endswith("; here Q = 3, W = 150")


def test_the_pixels_of_another_filter_are_no_columns_of_an_image() -> None:
    text = source("conv_hopper").replace("(m + i)%Q*STRIDE + s - PAD ?", "(m + 2*i)%Q*STRIDE + s - PAD ?")
    program = bind(parse_block(text))
    with pytest.raises(errors.ProgramError, match=r"copy: tma.load.im2col: the box does not count pixels of %x"):
        check(program, machine_of(program))


ASYNC = """block copies(%x: in global f16 (64, {pitch}), %y: out global f16 (16, 32))
  machine ampere
{{
  %s = alloc shared f16 (1, 16, 32){swizzle}
  %ring = channel %s stages 1 from only to only
  role only waves 1 {{
    for t in 0..1 {{
      %to = acquire %ring
      %from = view %x (i 16, j 32) -> [i, {column}]
      copy %from -> %to else 0 by cp.async.16
      commit %ring
      %ready = wait %ring
      copy %ready -> %y
      release %ring
    }}
  }}
}}"""


@pytest.mark.parametrize(
    ("pitch", "column", "swizzle", "says"),
    [
        (32, "j", "", None),
        (40, "j + 8 ?", " swizzle <2,3,3>", None),
        (20, "j ?", "", "the stride of dimension 0 of %x is 40 bytes"),
        (40, "j + 4", "", "runs of 8 elements of %x begin at 8*run + 4"),
        (40, "j", " swizzle <3,2,3>", "the swizzle S<3,2,3> of %to tears runs of 8 elements apart"),
    ],
)
def test_asynchronous_copies_move_aligned_runs(pitch: int, column: str, swizzle: str, says: str | None) -> None:
    program = bind(parse_block(ASYNC.format(pitch=pitch, column=column, swizzle=swizzle)))
    if says is None:
        assert check(program, machine_of(program)) == ()
        return
    with pytest.raises(errors.ProgramError) as caught:
        check(program, machine_of(program))
    assert f"copy: cp.async.16: {says}" in str(caught.value)
