"""Rule: split a program into two kernels, with one value in memory between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from tilewright.algebra.expr import Expr
from tilewright.ir.core import TileType
from tilewright.plan.facts import AccessFacts, Dims, Facts, ValueFacts
from tilewright.plan.facts.graph import SCANS
from tilewright.plan.facts.values import RENAMING, STATE
from tilewright.plan.search.ranking import Ranking
from tilewright.plan.search.uniform_loops import loops_around

FIRST, SECOND = "first", "second"
BETWEEN = "between"
"""The name of the memory between two kernels."""
TIMES = 3
"""The largest ratio of the bytes of the value between two kernels to the bytes that the program moves in memory."""
TIMES_WHOLE = 16
"""The same if a loop of the author is done in one iteration; else its MMAs would run without a pipeline."""


@dataclass(frozen=True)
class GraphCut:
    """A program split at a value into two kernels: its name in `explain`, the facts of both, the MMA next to the value.

    `after` names the last MMA of the first kernel. It is empty if the lowering cannot split there, in these cases:

    - the first kernel has no MMA, or not the program's first ones;
    - the first kernel reduces or scans an MMA's result;
    - a loop carries an accumulator of the first kernel, and has MMAs of the second;
    - no MMA, reduction or scan depends on the value.

    `before` names the MMA whose operand or epilogue needs the value, if the first kernel has no MMA; else it is empty.
    """

    what: str
    first: Facts
    second: Facts
    after: str
    before: str = ""


def two_kernel_splits(facts: Facts, ranking: Ranking, times: int = TIMES) -> Iterator[GraphCut]:
    """Yield a GraphCut (the facts of both kernels) for each value at which to split a program into two kernels.

    The first kernel computes the value, and the second reads it from memory. Heavy operations are MMAs, reductions and
    scans. If several values give the first kernel the same heavy operations, only the value with the fewest bytes is
    used. A value is rejected, with a note in `ranking` (the search's result), if it has more than `times` times the
    bytes that the program moves to and from memory. `facts` is the analysed program.

    Splits with a first kernel without MMAs come last: this kernel computes a value that an MMA's operand or epilogue
    needs.
    """
    best: dict[frozenset[int], tuple[float, int]] = {}
    heavy = {n.id for n in facts.nodes if n.op == "mma" or n.reduces or n.op in SCANS}
    for v in facts.nodes:
        if v.op in RENAMING or v.op in ("read", "write", STATE) or not v.dims:
            continue
        first = set(facts.behind(v.id))
        if not first & heavy or not heavy - first or not _can_split_after(facts, v.id, first):
            continue
        moved = float(facts.size(v.dims) * v.bytes)
        work = frozenset(first & heavy)
        if work not in best or moved < best[work][0]:
            best[work] = (moved, v.id)
    for moved, value in best.values():
        before = _first_kernel(facts, value)
        can_lower = (
            _feeds_heavy_node(facts, value, heavy)
            and not _loop_has_later_mmas(before)
            and not _reduces_products(before)
            and _has_first_mmas(facts, before)
        )
        after = before.products[-1].name if before.products and can_lower else ""
        what = f"two kernels, split after {after}" if after else f"two kernels, %{value} in memory between them"
        if moved > times * facts.moved_bytes:
            share = moved / facts.moved_bytes
            volume = f"{moved / 2**20:.0f} MiB lie between them, {share:.0f} times the bytes that the program moves"
            ranking.reject(what, volume)
        else:
            yield GraphCut(what, before, _second_kernel(facts, value), after)
    yield from _splits_before_mmas(facts, heavy)


def _splits_before_mmas(facts: Facts, heavy: set[int]) -> Iterator[GraphCut]:
    """Yield a GraphCut (the facts of two kernels) for each value without MMAs that can be computed before an MMA.

    The first kernel computes an operand of the MMA that needs a reduction, such as normalised rows. If no operand does,
    it computes a reduction that the MMA's epilogue uses, such as the lengths of rows. The second kernel reads the value
    from memory. `heavy` has the node numbers of all MMAs, reductions and scans. `facts` is the analysed program.
    """
    mmas = {p.node for p in facts.products}
    for p in facts.products:
        operands = [_without_renaming(facts, x.value) for x in (p.a, p.b)]
        reduced = [v for v in operands if heavy & set(facts.behind(v))]
        for value in reduced or _reductions_beside(facts, p.node):
            first = set(facts.behind(value))
            if not first & mmas and _can_split_after(facts, value, first):
                what = f"two kernels, split before {p.name}"
                yield GraphCut(what, _first_kernel(facts, value), _second_kernel(facts, value), "", p.name)


def _without_renaming(facts: Facts, value: int) -> int:
    """Return the node number of the value that `value` only renames, as broadcasts do; else `value` itself."""
    while facts.nodes[value].op in RENAMING and facts.nodes[value].args:
        (value,) = facts.nodes[value].args
    return value


def _reductions_beside(facts: Facts, mma: int) -> list[int]:
    """Return [node number of the reduction beside an MMA that has the fewest bytes in its result]; [] without one.

    `mma` is the node number of the MMA. A reduction is beside it if it depends on no MMA, and a node that depends on
    this MMA needs it too. Reductions to a scalar do not count. Of several with equally few bytes, the first is
    returned.
    """
    epilogue = {n.id for n in facts.nodes if n.id != mma and mma in facts.behind(n.id)}
    used = {i for user in epilogue for i in facts.behind(user)}
    beside = [n for n in facts.reductions_beside_mmas if n.id in used and n.dims]
    return [n.id for n in sorted(beside, key=lambda n: facts.size(n.dims) * n.bytes)[:1]]


def _has_first_mmas(facts: Facts, first: Facts) -> bool:
    """True if the first of two kernels has the program's first MMAs, in the same order.

    An MMA is named by its position, so that it then has the same name in a plan of the kernel as in one of the program.
    `facts` is the analysed program, `first` that of the first kernel.
    """
    every = [facts.nodes[p.node].source for p in facts.products]
    return [first.nodes[p.node].source for p in first.products] == every[: len(first.products)]


def _loop_has_later_mmas(first: Facts) -> bool:
    """True if a loop that carries an accumulator of the first of two kernels also has MMAs of the second kernel.

    `first` is the analysed program of the first kernel.
    """
    around, inside = loops_around(first.program), {first.nodes[p.node].source for p in first.products}
    carrying = {
        loop
        for op in inside
        if op is not None
        for loop in around[op]
        if not set(op.operands).isdisjoint(loop.blocks[0].args)
    }
    return any(loop in carrying for op, every in around.items() if op not in inside for loop in every)


def _reduces_products(first: Facts) -> bool:
    """True if the first of two kernels reduces or scans a value that is computed from an MMA's result.

    `first` is the analysed program of the first kernel.
    """
    after = set[int]()
    for n in first.nodes:
        if n.op == "mma" or any(arg in after for arg in n.args):
            after.add(n.id)
    return any(n.op != "mma" and (n.reduces or n.op in SCANS) for n in first.nodes if n.id in after)


def _feeds_heavy_node(facts: Facts, value: int, heavy: set[int]) -> bool:
    """True if an MMA, reduction or scan depends on the value with node number `value`, directly or indirectly.

    `heavy` has the node numbers of all MMAs, reductions and scans; `facts` is the analysed program.
    """
    todo, seen = [value], set[int]()
    while todo:
        for user in facts.users[todo.pop()]:
            if user not in seen:
                seen.add(user)
                todo.append(user)
    return bool(seen & heavy)


def _can_split_after(facts: Facts, value: int, first: set[int]) -> bool:
    """True if a program can be split in two kernels, with only the value of node number `value` between the kernels.

    `first` has the node numbers of the first kernel. The second kernel may use no other value of the first, except
    reads and renamings (such as broadcasts), which both kernels may do. False also if both kernels would have values
    that loops carry. `facts` is the analysed program.
    """
    carried = any(facts.nodes[i].carried for i in range(len(facts.nodes)) if i not in first)
    if any(facts.nodes[i].op == STATE for i in first) and carried:
        return False
    crossing = {i for i in first for user in facts.users[i] if user not in first and i != value}
    return all(facts.nodes[i].op in RENAMING or facts.nodes[i].op == "read" for i in crossing)


def _packed_access(facts: Facts, v: ValueFacts) -> AccessFacts:
    """Return the AccessFacts of a contiguous row-major tensor that holds the value `v` between two kernels.

    It has one coordinate per program dimension, even if the dimension was split into digits (mixed-radix parts). The
    tensor's name is BETWEEN ("between"), with underscores appended until no argument has that name. `facts` is the
    analysed program.
    """
    digits_of_dims = [facts.digit_names(d) for d in _tile_dims(v)]
    digits = [[n for n in names if n in v.dims] for names in digits_of_dims]
    rest = sorted(v.dims - {n for names in digits for n in names})
    runs = [*(names for names in digits if names), *([n] for n in rest)]
    coords = tuple(tuple((n, facts.size(names[i + 1 :])) for i, n in enumerate(names)) for names in runs)
    shape = tuple(facts.size(names) for names in runs)
    strides = tuple(prod(shape[n + 1 :]) for n in range(len(shape)))
    used_names = {arg.name for arg in facts.program.args} | {n.place.memory for n in (*facts.reads, *facts.writes)}
    name = BETWEEN
    while name in used_names:  # a value of another split may have the name
        name += "_"
    return AccessFacts(name, v.bytes, coords, shape, strides, False)


def _tile_dims(v: ValueFacts) -> tuple[Expr, ...]:
    """Return the program dimensions of the value `v`, outermost first; () if its operation does not make a tile."""
    kind = v.source.results[0].type if v.source is not None and v.source.results else None
    return kind.dims if isinstance(kind, TileType) else ()


def _first_kernel(facts: Facts, value: int) -> Facts:
    """Return the Facts (analysed program) of the first of two kernels, which computes and writes the node `value`.

    `facts` is the whole analysed program.
    """
    inside, v = set(facts.behind(value)), facts.nodes[value]
    nodes = [n for n in facts.nodes if n.id in inside]
    write = ValueFacts(len(facts.nodes), "write", v.dims, v.dtype, (value,), access=_packed_access(facts, v))
    return _facts_of_half(facts, [*nodes, write], FIRST)


def _second_kernel(facts: Facts, value: int) -> Facts:
    """Return the Facts (analysed program) of the second of two kernels, which reads the node `value` from memory.

    Its other nodes are all nodes that the program's writes depend on without passing through `value`. `facts` is the
    whole analysed program.
    """
    needed: set[int] = set()
    todo = [w.id for w in facts.writes]
    while todo:
        i = todo.pop()
        if i not in needed:
            needed.add(i)
            todo += [] if i == value else facts.nodes[i].args
    v = facts.nodes[value]
    read = ValueFacts(value, "read", v.dims, v.dtype, (), access=_packed_access(facts, v))
    nodes = [read if n.id == value else n for n in facts.nodes if n.id in needed]
    return replace(_facts_of_half(facts, nodes, SECOND), between=read.place.memory)


def _facts_of_half(facts: Facts, nodes: list[ValueFacts], part: str) -> Facts:
    """Return the Facts (analysed program) of one of two kernels: `nodes`, with only the dimensions and loops they use.

    `part` says which kernel: FIRST or SECOND; `facts` is the whole analysed program. The last two nodes of the first
    kernel must be the value between the kernels and its write.
    """
    number = {n.id: i for i, n in enumerate(nodes)}
    renumbered = tuple(replace(n, id=number[n.id], args=tuple(number[a] for a in n.args)) for n in nodes)
    states = {n.id for n in nodes if n.op == STATE}
    loops = {
        axis: replace(loop, states=tuple(number[s] for s in loop.states if s in number))
        for axis, loop in facts.loops.items()
        if states & set(loop.states)
    }
    used: Dims = frozenset(d for n in renumbered for d in n.space)
    extents = {d: extent for d, extent in facts.extents.items() if d in used}
    parallel = tuple(
        d for d in _dims_in_grid_order(facts, renumbered) if d in used and _is_parallel(renumbered, loops, d)
    )
    sources = [n.source for n in nodes if n.source is not None]
    kinds = [v.type for op in sources for v in (*op.operands, *op.results) if isinstance(v.type, TileType)]
    in_tiles = {d for kind in kinds for d in kind.dims}
    single = {d for d in facts.order if d in in_tiles and facts.sizes.get(d) == 1}  # type: ignore[call-overload]
    owners = [d for d in facts.order if d in single or set(facts.digit_names(d)) & used]
    cut = tuple(d for d in owners if set(facts.digit_names(d)) & used <= set(parallel))
    result = facts.nodes[nodes[-2].id] if part == FIRST else None
    if result is not None:  # tasks in memory order of the value between the kernels
        dims = _tile_dims(result)
        cut = tuple(sorted(cut, key=lambda d: dims.index(d) if d in dims else -1))
    return replace(
        facts,
        extents=extents,
        nodes=renumbered,
        loops=loops,
        parallel=parallel,
        order=tuple(owners),
        cut=cut,
        part=part,
        read_ops={op: number[n] for op, n in facts.read_ops.items() if n in number},
        _trips={},
    )


def _dims_in_grid_order(facts: Facts, nodes: tuple[ValueFacts, ...]) -> list[str]:
    """Return the names of dimensions that the grid of a kernel might split, in the order of the grid.

    These are the parallel dimensions of the whole program (`facts`), then further dimensions of the writes among
    `nodes`, in memory order.
    """
    written = [d for n in nodes if n.op == "write" for form in n.place.coords for d, _ in form]
    return list(dict.fromkeys([*(d for d in facts.parallel), *written]))


def _is_parallel(nodes: tuple[ValueFacts, ...], loops: Mapping[str, object], dim: str) -> bool:
    """True if the grid of a kernel may split `dim`: all writes have it, no loop runs over it, and nothing reduces it.

    `nodes` are the values of the kernel, `loops` its loops by dimension. It is False for every `dim` if the kernel
    scans.
    """
    writes = [n for n in nodes if n.op == "write"]
    stuck = any(dim in n.reduces or n.op in SCANS for n in nodes)
    return all(dim in w.dims for w in writes) and not stuck and dim not in loops
