"""Which numbers may stand at the top of the planner's modules, and why: none describes a machine.

A number that is so because a machine is so belongs to that machine's row in `targets/`, as a field of `machine/`.
What may stay is how far a search goes, how much code is written out, and what messages show.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PARTS = ("plan", "rewrite", "lower", "transform", "driver", "analysis", "check", "machine")
"""Folders of the package in which no number describes a machine."""

_SEARCH = "how many choices a search looks at"
_SHARE = "a ratio by which choices are ranked or refused, of whichever machine"
_CODE = "how much code is written out: compiling it should end"
_WORK = "how much a proof or a table may take"
_SHOWN = "what messages show"
_MEANING = "part of what is computed or written down"

ALLOWED = {
    "plan/bind_pipeline.py: NAMES": "characters of a message",
    "plan/block_size.py: BESIDE": _CODE,
    "plan/boxes.py: RUN": _SEARCH,
    "plan/boxes.py: ROWS": _SEARCH,
    "plan/writes.py: TABLED": _WORK,
    "plan/boxes.py: WIDTHS_AT_ONCE": _WORK,
    "plan/boxes.py: ALL_PREFERRED": _SEARCH,
    "plan/contracted.py: LONGEST": _CODE,
    "plan/general.py: WHOLE": _SEARCH,
    "plan/general.py: CHOSEN": _SEARCH,
    "plan/general.py: DEEPEST": _SEARCH,
    "plan/lanes.py: WRITTEN": _CODE,
    "plan/lanes.py: WIDE": _SEARCH,
    "plan/lanes.py: ALONE": _CODE,
    "plan/microkernel.py: MOST_VECTORS": _SEARCH,
    "plan/microkernel.py: FRAGMENTS": _SEARCH,
    "plan/model.py: L1_SHARE": _SHARE,
    "plan/slow.py: SLOW_RATIO": "when a plan is slow, of whichever machine",
    "plan/slow.py: SLOW_MICROSECONDS": "what a caller notices, on whichever machine",
    "plan/facts/graph.py: COARSE": _WORK,
    "plan/facts/masking.py: NEUTRAL": _MEANING,
    "plan/facts/masking.py: NEUTRAL_TERMS": _MEANING,
    "plan/facts/masking.py: _SAMPLES": _WORK,
    "plan/search/chosen.py: SHOWN": _SHOWN,
    "plan/search/core_tasks.py: FEWEST_IN_L2": _SEARCH,
    "plan/search/core_tasks.py: FEWEST_K_TILES": _SEARCH,
    "plan/search/loop_splits.py: TILES": _SEARCH,
    "plan/search/core_tasks.py: TASKS_PER_CORE": _SEARCH,
    "plan/search/cost.py: BALANCED": "follows from the share of tasks that are dynamic",
    "plan/search/cost.py: SAME_WAVES": "a kernel without pipeline stages",
    "plan/search/explaining.py: SHOWN": _SHOWN,
    "plan/search/explaining.py: NEXT": _SHOWN,
    "plan/search/fragments.py: NARROWED": _SEARCH,
    "plan/search/fragments.py: SHALLOWEST": _SEARCH,
    "plan/search/kernel.py: CROWDED": _SHARE,
    "plan/search/launch.py: RASTERS": _SEARCH,
    "plan/search/partial_reductions.py: WHOLE_LINES": _SHARE,
    "plan/search/partition.py: TIMES": _SHARE,
    "plan/search/partition.py: TIMES_WHOLE": _SHARE,
    "plan/search/split_k.py: PARTS": _SEARCH,
    "plan/search/split_k.py: UNROLLED": _CODE,
    "plan/search/pipeline.py: FEWEST_STAGES": _SEARCH,
    "plan/search/pipeline.py: MOST_STAGES": _SEARCH,
    "plan/search/pipeline.py: HALO_STAGES": _SEARCH,
    "plan/search/pipeline.py: HALO_PIPELINES": "pipelines that a kernel with halo tiles has",
    "plan/search/pipeline.py: STORED": _SEARCH,
    "plan/search/ranked_blocks.py: CLOSE": _SHARE,
    "plan/search/ranked_blocks.py: CLEARLY": _SHARE,
    "plan/search/ranked_blocks.py: SHOWN": _SHOWN,
    "plan/search/ranked_blocks.py: MORE": _SEARCH,
    "plan/search/ranking.py: ENOUGH_STAGES": _SEARCH,
    "plan/search/repack.py: SLACK": _SHARE,
    "plan/search/repack.py: MOST_COPIED": _SHARE,
    "rewrite/split_loop.py: NEUTRAL": _MEANING,
    "rewrite/tile_between_gemms.py: LOWEST": _MEANING,
    "rewrite/softmax_loop.py: TILE_SIZE": "the tile of a loop before a plan chooses its own",
    "plan/search/candidates.py: GAIN_BY_OTHER_TILE": _SHARE,
    "plan/search/candidates.py: GAIN_BY_PARTS": _SHARE,
    "plan/search/search.py: CLEARLY_FASTER": _SHARE,
    "plan/search/search.py: FASTER_BY_K_TILES": _SHARE,
    "plan/search/search.py: KEPT": _SEARCH,
    "plan/search/search.py: KEPT_OF_FAMILY": _SEARCH,
    "plan/search/tiles.py: ATOMS": _SEARCH,
    "plan/search/tiles.py: GROUPS": _SEARCH,
    "plan/search/tiles.py: WIDEST_WHOLE": _SEARCH,
    "plan/search/tiles.py: DEEPEST_WHOLE": _SEARCH,
    "plan/search/tiles.py: COLUMN_BLOCKS": _SEARCH,
    "plan/search/tiles.py: CLUSTERS": _SEARCH,
    "plan/text.py: SHOWN": _SHOWN,
    "plan/rows.py: LONGER": _SHARE,
    "plan/rows.py: MANY": _SHARE,
    "plan/rows.py: ABOUT": _SHARE,
    "plan/rows.py: FEW": _SHARE,
    "plan/rows.py: ROUNDS": _SHARE,
    "plan/rows.py: BESIDE": _SHARE,
    "plan/search/simt.py: LONGEST": _SEARCH,
    "plan/search/simt.py: SLIDING": _SEARCH,
    "plan/simt_boxes.py: NARROWEST": _SHARE,
    "plan/simt_boxes.py: MOST_OF_LINE": _SHARE,
    "plan/simt_boxes.py: NEARLY": _SHARE,
    "plan/tile_registers.py: WRITTEN": _CODE,
    "plan/vectors.py: UNROLLED": _CODE,
    "plan/vectors.py: WRITTEN": _CODE,
    "plan/vectors.py: WIDE": _SEARCH,
    "plan/words.py: NEAR": _SHOWN,
    "plan/words.py: LONGEST": _SHOWN,
    "lower/cpu/reduce.py: _PAIR": _MEANING,
    "lower/cpu/control.py: MOST": _CODE,
    "lower/block/packing.py: PAGE": "the least page of memory, which is the same on all CPUs",
    "lower/dynamic_tasks.py: LEAST": "the least number of 32 bits, which indices have",
    "lower/cpu/delayed_epilogue.py: SHARE": _SHARE,
    "lower/cpu/delayed_epilogue.py: ELEMENTS": _CODE,
    "lower/cpu/loop_fusion.py: LONG": _SHARE,
    "lower/cpu/lower.py: VECTORS": _CODE,
    "lower/loop_lowering.py: IN_A_FUNCTION": "registers of the code that `codegen/mathematics` writes for a vector",
    "lower/partial_sums.py: BLOCK": "the precision of sums, which docs/language/reductions.md states",
    "lower/partial_sums.py: RUNNING_BLOCK": "the precision of scans, which docs/language/reductions.md states",
    "lower/partial_sums.py: _SUM": _MEANING,
    "lower/cpu/mma.py: UNROLLED": _CODE,
    "lower/cpu/mma.py: AHEAD": "the order in which a row's loads are written",
    "lower/cpu/address_tables.py: MOST": _WORK,
    "lower/block/accesses.py: TABLED": _WORK,
    "rewrite/align_rows.py: SLACK": _SHARE,
    "lower/block/reduce.py: BLOCK": _CODE,
    "lower/block/mma/elements.py: AT_ONCE": _CODE,
    "lower/block/elementwise.py: LOG2_E": _MEANING,
    "lower/block/elementwise.py: COARSE": _MEANING,
    "lower/block/elementwise.py: _WORDS": _MEANING,
    "lower/block/materialise.py: HEAVY": _SHARE,
    "lower/block/materialise.py: LONG": _CODE,
    "lower/block/grid.py: MOST": _CODE,
    "lower/block/masks.py: _DIFFERENCES": _MEANING,
    "lower/block/symbolic_shapes.py: MOST": _MEANING,
    "lower/block/symbolic_shapes.py: LEAST": _WORK,
    "rewrite/split_reduction.py: MANY": _SHARE,
    "lower/block/mma/operands.py: NEAR": _SHARE,
    "lower/block/mma/atoms.py: STEPS": _CODE,
    "rewrite/split_k.py: WRITTEN_OUT": _CODE,
    "lower/block/mma/steps.py: STREAM": _MEANING,
    "lower/block/mma/halo_tile.py: UNROLLED": _CODE,
    "lower/cpu/transposing.py: MOST": _CODE,
    "lower/gpu/control.py: MOST": _CODE,
    "lower/gpu/general.py: FIRST": _MEANING,
    "lower/gpu/cache_hints.py: AGAIN": _SHARE,
    "analysis/thread_layout.py: VECTORS": _SHARE,
    "analysis/thread_layout.py: LEAST": _SHARE,
    "analysis/in_bounds.py: DEPTH": _WORK,
    "check/single_writes.py: MOST": _WORK,
}
"""By `file: name`: why a number at the top of a module is none that describes a machine."""


def constants(source: str) -> Iterator[str]:
    """The names in capitals at the top of a module whose values hold a number.

    >>> list(constants("A, B = 3, 'b'\\nC = f(x)\\n_D: int = 1 << 20\\ne = 5\\nG = (True, 'g')"))
    ['A', '_D']
    """
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            for name, value in pairs:
                if isinstance(name, ast.Name) and name.id.isupper() and _has_number(value):
                    yield name.id


def _has_number(value: ast.expr) -> bool:
    return any(isinstance(n, ast.Constant) and type(n.value) in (int, float) for n in ast.walk(value))


def machine_constants(package: Path) -> list[str]:
    """`file: name` of every number of the planner that is not on the list: it is a machine's, or needs a reason."""
    found = []
    for path in (path for part in PARTS for path in sorted((package / part).rglob("*.py"))):
        names = (f"{path.relative_to(package).as_posix()}: {name}" for name in constants(path.read_text()))
        found += [name for name in names if name not in ALLOWED]
    return found


def stale(package: Path) -> list[str]:
    """Entries of the list whose number is gone."""
    files = {entry.partition(": ")[0] for entry in ALLOWED}
    there = {f"{f}: {n}" for f in files if (package / f).exists() for n in constants((package / f).read_text())}
    return sorted(set(ALLOWED) - there)
