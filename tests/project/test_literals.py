"""Numbers in planner and lowering: each above 2 has a reason, and none is a measured cost: rows of machines have those.

A number at the top of a module has its reason below it, as the docstring of its name. Some explain themselves: places
in a sequence, powers of two, bits of a byte. The rest stand in the table here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import tilewright

PACKAGE = Path(tilewright.__file__).parent
SOURCES = [
    p
    for part in ("plan", "analysis", "rewrite", "lower", "transform", "driver")
    for p in sorted((PACKAGE / part).rglob("*.py"))
]
MEASURED = re.compile(r"\b(cycles?|measured|fitted|of the time)\b", re.IGNORECASE)

REASONS = {
    "analysis/distribution.py: placed": "cached distributions",
    "analysis/distribution.py: _placement": "cached distributions",
    "plan/boxes.py: Room": "what is enough for a machine that says nothing: rows give others (`room_of`)",
    "plan/boxes.py: _widths_without_products": "where two dimensions are innermost in memory, runs of each are longer",
    "plan/boxes.py: _best_width": "beyond some blocks of rows a smaller one at the end weighs little",
    "plan/general.py: room_of": "tasks for each core, and shares of its caches that a task takes",
    "plan/block_size.py: _tile_instructions": "instructions of a program beside its blocks",
    "plan/block_size.py: _lane_instructions": "instructions around a block",
    "plan/lanes.py: lane_block_unit": "tasks for each worker, so that the last ones to finish weigh little",
    "plan/microkernel.py: best_microkernel.sort_key": "digits that tell two costs apart",
    "plan/model.py: microseconds": "from nanoseconds",
    "plan/model.py: bytes_text": "bytes in a kilobyte",
    "plan/search/ranked_blocks.py: compare_blocks": "candidates that are shown; per cent",
    "plan/text.py: _parse_size": "digits of the largest number a plan may hold",
    "plan/tile_registers.py: _accumulator_tiles": "tiles of a block along each side: more fit no tile registers",
    "plan/tile_registers.py: tile_unit": "parts of the rows worth a thought",
    "plan/vectors.py: _row_choices": "blocks of a line worth a thought beyond the fewest",
    "plan/vectors.py: vector_unit": "parts of the rows worth a thought: workers times powers of two",
    "lower/cpu/reduce.py: _ReduceLoops": "totals that do not wait for each other",
    "lower/cpu/delayed_epilogue.py: woven": "an end is spread a twelfth of the body ahead of where it is even",
    "lower/cpu/elementwise.py: _Loops.run": "rounds that are written out",
    "lower/cpu/elementwise.py: _Loops._vectors": "vectors that are written out",
    "lower/cpu/loop_fusion.py: _member": "bytes of the smallest vector",
    "lower/loop_lowering.py: LoopLowering.__init__": "bytes of a vector where a row does not say",
    "lower/loop_lowering.py: LoopLowering.vectors": "vectors that are written out",
    "lower/cpu/lower.py: _registers": "vector registers that a distributed row may take",
    "lower/cpu/mma.py: _loops": "the operands of a formula",
    "transform/warp_specialize.py: _Split._stage_strides": "bits of a byte",
    "lower/cpu/register_forms.py: as_vectors": "threads of a distribution that vectors stand for",
    "lower/cpu/address_tables.py: tabulated": "rows of a table whose length only a call tells",
    "lower/block/mma/rule.py: _as_tf32": "the bits that tf32 drops, half of the last one kept, and its mask",
    "lower/block/scans.py: _larger": "index, value and whether it is there, of each side",
    "rewrite/digits.py: _Digits._steps": "1, at least one divisor more, and the extent: a chain that leaves digits",
    "lower/block/elementwise.py: _tiles": "operations up to which a formula may be computed several times",
    "lower/block/elementwise.py: reshape": "operations from which on a formula is computed once and kept",
    "lower/block/elementwise.py: bitcast": "bits of a byte",
    "lower/block/elementwise.py: _WORDS": "bits of words",
    "lower/block/elementwise.py: _as_f4_pairs": "masks and bits of numbers of four bits",
    "lower/block/memory.py: _is_loop_over_elements": "bits of floats that have no lanes of their own",
    "lower/block/lazy_tiles.py: weight": "what a function costs beside an addition, when it is asked what to keep",
    "lower/block/writer.py: BlockWriter._strides": "bits of a byte",
}
"""Of numbers inside functions and classes: why they are what they are."""


def numbers(source: str) -> Iterator[tuple[str, float, str | None]]:
    """(scope, number, docstring of its name) of the numbers above 2 that do not explain themselves.

    >>> list(numbers('A = 5\\n"why"\\ndef f(x): return x[7] + 9'))
    [('A', 5, 'why'), ('f', 9, None)]
    """
    tree = ast.parse(source)
    docs = {}
    for node, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            docs[id(node)] = after.value.value

    def walk(node: ast.AST, scope: str, doc: str | None, quiet: bool) -> Iterator[tuple[str, float, str | None]]:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float) and abs(node.value) > 2 and not quiet:
            yield scope, node.value, doc
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST):
                    continue
                here = scope
                if isinstance(child, ast.FunctionDef | ast.ClassDef):
                    here = f"{scope}.{child.name}" if scope else child.name
                yield from walk(child, here, doc, quiet or _is_plain(node, name, child))

    for node in tree.body:
        scope = node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else ""
        if isinstance(node, ast.Assign | ast.AnnAssign):
            scope = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        yield from walk(node, scope, docs.get(id(node)), quiet=False)


def _is_plain(node: ast.AST, name: str, child: ast.AST) -> bool:
    """Whether a number under a node explains itself: a place in a sequence, how far bits move, bits of a byte."""
    if isinstance(node, ast.Subscript) and name == "slice":
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and name == "args":
        return node.func.attr in ("group", "operand")
    if isinstance(node, ast.BinOp) and isinstance(child, ast.Constant):
        other = ast.unparse(node.left if child is node.right else node.right)
        shifted = isinstance(node.op, ast.LShift | ast.RShift) and child is node.right
        power = isinstance(node.op, ast.Pow)
        return shifted or power or (child.value == 8 and "bits" in other)
    return False


FOLDERS = sorted({str(path.parent.relative_to(PACKAGE)) for path in SOURCES})


def sources_in(folder: str) -> list[tuple[str, Path]]:
    """(name in the package, path) of the sources of a folder, without those of folders in it."""
    return [(str(path.relative_to(PACKAGE)), path) for path in SOURCES if path.parent == PACKAGE / folder]


@cache
def numbers_of(path: Path) -> list[tuple[str, float, str | None]]:
    """`numbers` of a file, which is read once for all tests."""
    return list(numbers(path.read_text()))


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_number_has_its_reason(folder: str) -> None:
    bare = [
        f"{name}: {scope}: {value}"
        for name, path in sources_in(folder)
        for scope, value, doc in numbers_of(path)
        if doc is None and f"{name}: {scope}" not in REASONS
    ]
    assert bare == [], "say below the name why it is so, or in the table of this test"


def test_every_row_of_the_table_is_of_a_number() -> None:
    """Rows stayed in the table when their functions were renamed or deleted."""
    scopes = {
        f"{path.relative_to(PACKAGE)}: {scope}" for path in SOURCES for scope, _, doc in numbers_of(path) if doc is None
    }
    assert sorted(REASONS.keys() - scopes) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_measured_cost_stands_outside_the_rows_of_machines(folder: str) -> None:
    costs = [
        f"{name}: {scope}: {doc}"
        for name, path in sources_in(folder)
        for scope, _, doc in numbers_of(path)
        if doc is not None and MEASURED.search(doc)
    ]
    assert costs == [], "costs belong to `machine/costs.py` and the rows"
