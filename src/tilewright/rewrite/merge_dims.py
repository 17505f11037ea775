"""Merges neighbouring dimensions: MMAs and reductions that an author wrote over several dimensions get one.

    %0 = read %x : bf16[M0, M1, K]      x: global bf16[M0, M1, K]
    %0 = read %x : bf16[M, K]           x: global bf16[M, K]           M = M0 * M1

A tile of a plan goes along one dimension of M, one of N and one of K: it cannot be larger than the inner one of two. If
two dimensions are neighbouring coordinates of all memories that have both, these memories are viewed with one dimension
instead. If M of an MMA meets a window, as in a convolution, accesses divide the merged index:

    %0 = read %x over=[p, q, r, s, c] at=[p + r, q + s, c] : bf16[P, Q, R, S, C]
    %0 = read %x over=[i, r, s, c] at=[i//56 + r, i%56 + s, c] : bf16[P_Q, R, S, C]
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, prod

from tilewright.algebra.expr import Expr, Symbol, symbol
from tilewright.ir.core import MemoryType, Op, Program, TileType, Value, building
from tilewright.ir.printer import program_symbols
from tilewright.ir.tile import REDUCTIONS, TILE, accessed
from tilewright.ir.verifier import verify
from tilewright.machine import Machine
from tilewright.plan.computed import SIMPLE
from tilewright.plan.general import ALIKE
from tilewright.rewrite.rewriter import DimensionGroup, Regrouped, places

Run = tuple[Symbol, ...]
"""Neighbouring dimensions of memory, outermost first."""
SIDE, SUMMED, BATCH, NONE = "side", "summed", "batch", ""
"""The role of a dimension in an MMA: M or N, K, batch, or none."""
AROUND = frozenset({*ALIKE, *REDUCTIONS})
"""Operations that treat all coordinates of a dimension alike, unless they name it."""


@dataclass(frozen=True)
class Sized:
    """A program, the sizes of its dimensions, the shapes of its arguments, and its free loops.

    `free` are the loops with the same result for every tile size.
    """

    program: Program
    sizes: Mapping[Symbol, int]
    shapes: Mapping[Value, tuple[int, ...]]
    free: Collection[Op]
    rows: int = 1
    """The rows of the machine's smallest atom: shorter dimensions are merged even if masks compare their indices."""


def merged(sized: Sized, *, divides: bool = True) -> Sized:
    """Return `sized` (program, extents, shapes and loops) with neighbouring dimensions merged wherever they can be.

    Return `sized` itself if there are none. Dimensions are merged if all memories that have them can be viewed with one
    dimension instead. With `divides`, they are also merged if accesses can divide the merged index, as in i//56 and
    i%56.
    """
    for views in (True, False) if divides else (True,):  # views first: windows then see the merged dimensions
        while (run := (runs := _Runs(sized)).first(views)) is not None:
            sized = _merge(sized, run, [op for op in runs.accesses if views or runs.is_row_of_result(op, run)])
    return sized


def least_rows(machine: Machine) -> int:
    """Return the smallest M extent of the MMA atoms of `machine` that have a leading dimension in memory (`slab`).

    These atoms read operands from memory. Return 1 if the machine has none.
    """
    return min((atom.shape[0] for atom in machine.multiply.values() if atom.slab is not None), default=1)


class _Runs:
    """Finds the runs (neighbouring dimensions) of a program that can be merged into one dimension."""

    def __init__(self, sized: Sized):
        self.sized = sized
        self.ops = list(sized.program.walk())
        self.products = [op for op in self.ops if op.name == "mma"]
        self.accesses = [op for op in self.ops if op.name in ("read", "write")]
        self.chains = reduction_chains(self.ops)
        self.coordinates = _coordinate_values(self.ops)
        self.stuck = self._unmergeable()

    def first(self, views: bool) -> Run | None:
        """Return the first run (tuple of neighbouring dimensions) that can be merged into one dimension; None if there
        is none.

        With `views`, all memories of the run must allow a view with one dimension instead. Without, accesses must be
        able to divide the merged index, as in i//56 and i%56.
        """
        fits = self._can_be_viewed if views else self._can_be_divided
        return next((run for run in self._proposed() if self._acts_as_one(run) and fits(run)), None)

    def _proposed(self) -> Iterator[Run]:
        """Yield candidates for merging, each a run (tuple of neighbouring dimensions). Conditions for merging are not
        checked.

        First come dimensions with indices that are neighbouring coordinates of a read or write, longest runs first.
        Then come all dimensions of M, of N and of K of each MMA.
        """
        runs: dict[Run, None] = {}
        for op in self.accesses:
            kind, over, at = places(op)
            dim_of = dict(zip(over, kind.dims, strict=True))
            dim_at = [dim_of.get(e) if isinstance(e, Symbol) else None for e in at]
            for start in range(len(dim_at)):
                for end in range(start + 2, len(dim_at) + 1):
                    run = tuple(d for d in dim_at[start:end] if isinstance(d, Symbol))
                    if len(run) == end - start and self.stuck.isdisjoint(run):
                        runs[run] = None
        yield from sorted(runs, key=len, reverse=True)
        of_products: dict[Run, None] = {}
        for product in self.products:
            sets = (*self._sides(product), self._summed(product))
            of_products |= dict.fromkeys(self._in_coordinate_order(dims) for dims in sets)
        yield from (run for run in of_products if len(run) > 1 and self.stuck.isdisjoint(run))

    def _in_coordinate_order(self, dims: Collection[Expr]) -> Run:
        """Return `dims` in the order of the memory coordinates that use their indices, in the first access with all of
        them.

        An access is a read or write; its tile must have all of `dims`. Return () if there is none, or if a dimension
        longer than 1 is in none of its coordinates.
        """
        for op in self.accesses:
            kind, over, at = places(op)
            index_of = dict(zip(kind.dims, over, strict=True))
            if set(dims) <= index_of.keys():
                users = {d: [n for n, e in enumerate(at) if index_of[d] in e.symbols] for d in dims}
                ordered = [d for d in kind.dims if d in dims and isinstance(d, Symbol)]  # sets have no order
                placed = [d for d in ordered if users[d] or self.sized.sizes.get(d) == 1]
                return tuple(sorted(placed, key=lambda d: users[d])) if len(placed) == len(dims) else ()
        return ()

    def _unmergeable(self) -> set[Expr]:
        """Return the set of dimensions that must stay as they are.

        They are the dimensions of unknown extent; those that a constraint, a loop outside of `sized.free` or the size
        of another dimension uses; and those of operations that treat indices differently. A `self_index` (tile of
        indices) does so only if its dimension has at least `sized.rows` elements.
        """
        records = self.sized.program.records
        stuck: set[Expr] = {s for r in records for e in r.attrs.values() if isinstance(e, Expr) for s in e.symbols}
        for op in self.ops:
            dims = {d for v in (*op.operands, *op.results) if isinstance(v.type, TileType) for d in v.type.dims}
            if op.name == "self_index" and self.sized.sizes.get(op.attrs["dim"], inf) < self.sized.rows:
                continue
            if op.name not in AROUND or op.attrs.get("lookups") or op.attrs.get("bounds"):
                stuck |= dims
            if op.name == "iterate" and op not in self.sized.free:
                stuck.add(op.attrs["axis"])
            stuck |= {s for d in dims if not isinstance(d, Symbol) for s in d.symbols}
            stuck |= {d for d in dims if d not in self.sized.sizes}
        return stuck

    def _acts_as_one(self, run: Run) -> bool:
        """True if the program uses the run (tuple of neighbouring dimensions) like one dimension, and merging it helps.

        Each tile must have all of the run or none of it, except tiles computed from indices alone. Successive
        reductions must reduce exactly the run or none of it. At most one loop may iterate over it.

        Merging helps if the run is M, N or K of an MMA and no batch. In a program without MMAs, it helps if the run is
        reduced, or is contiguous in memory and another dimension is reduced.
        """
        chains = [chain for chain in self.chains if not {op.attrs["dim"] for op in chain}.isdisjoint(run)]
        at_once = all({op.attrs["dim"] for op in chain} == set(run) for chain in chains)
        between = {op.result for chain in chains for op in chain[:-1]}
        ignored = between | self.coordinates
        values = (v for op in self.ops for v in (*op.operands, *op.results) if v not in ignored)
        tiles = (v.type.dims for v in values if isinstance(v.type, TileType))
        loops = {op.attrs["axis"] for op in self.ops if op.name == "iterate" and op.attrs["axis"] in run}
        is_wanted = self._is_part_of_products(run) if self.products else bool(chains) or self._is_beside_reduction(run)
        return is_wanted and at_once and len(loops) <= 1 and all(len({d in dims for d in run}) == 1 for dims in tiles)

    def _is_part_of_products(self, run: Run) -> bool:
        """True if the run (tuple of neighbouring dimensions) belongs to M, N or K of some MMA and is a batch of none.

        Only the first dimension of the run is tested. Merging batches gains nothing, as a task has one element of a
        batch.
        """
        parts = {self._role_in(op, run[0]) for op in self.products}
        return BATCH not in parts and parts != {NONE}

    def _is_beside_reduction(self, run: Run) -> bool:
        """True if the program has reductions, and a read or write has the run as the last dimensions of its memory.

        A run is a tuple of neighbouring dimensions.
        """
        return bool(self.chains) and any(is_row(self.sized, op, run) for op in self.accesses)

    def _role_in(self, product: Op, dim: Expr) -> str:
        """Return the role of the dimension `dim` in the MMA `product`: SIDE (M or N), SUMMED (K), BATCH, or NONE."""
        a, b, acc = (dim in v.type.dims for v in product.operands)
        if a and b:
            return BATCH if acc else SUMMED
        return SIDE if a or b else NONE

    def _sides(self, product: Op) -> list[set[Expr]]:
        """Return [dimensions of M, dimensions of N] of the MMA `product`, as sets.

        M has the dimensions of the result that only operand A has, N those that only operand B has.
        """
        a, b, acc = (set(v.type.dims) for v in product.operands)
        return [(a - b) & acc, (b - a) & acc]

    def _summed(self, product: Op) -> set[Expr]:
        """Return the set of dimensions of K of the MMA `product`: both operands have them, and its result does not."""
        a, b, acc = (set(v.type.dims) for v in product.operands)
        return (a & b) - acc

    def _can_be_viewed(self, run: Run) -> bool:
        """True if all memories that are accessed along the run can be viewed with one dimension in its place.

        A run is a tuple of neighbouring dimensions.
        """
        memories = {accessed(op)[0] for op in self.accesses if run[0] in accessed(op)[1].dims}
        return all(self._is_viewed(memory, run) for memory in memories)

    def _is_viewed(self, memory: Value, run: Run) -> bool:
        """True if `memory` can be viewed with one dimension in place of the run (tuple of neighbouring dimensions).

        It must be a packed argument that only reads and writes use. All of them must have the run at the same
        coordinates.
        """
        kind: MemoryType = memory.type
        users = [op for op in self.ops if memory in op.operands]
        places_of = {run_place(self.sized, op, run) for op in users if op in self.accesses}
        is_plain = memory in self.sized.program.args and kind.strides is None and kind.extents is None
        return is_plain and all(op in self.accesses for op in users) and len(places_of) == 1 and None not in places_of

    def _can_be_divided(self, run: Run) -> bool:
        """True if accesses can divide the merged index of the run (tuple of neighbouring dimensions), as in i//56 and
        i%56.

        The program must have an MMA with the run. The run must be all of M, of N or of K of every such MMA; or a part
        of M or N that is the last dimensions of all results. Reads and writes must use its indices in order. Reads must
        not use them in the last coordinate: bulk copies can walk several dimensions as one only where memory is not
        contiguous.
        """
        products = [op for op in self.products if self._role_in(op, run[0]) != NONE]
        is_part = any(all(set(run) != side for side in self._sides(op)) for op in products)
        is_part = is_part and all(any(set(run) < side for side in self._sides(op)) for op in products)
        if not products or not (all(self._is_side(op, run) for op in products) or is_part):
            return False
        if is_part and not self._are_result_rows(run):
            return False
        for op in (x for x in self.accesses if run[0] in accessed(x)[1].dims):
            kind, over, at = places(op)
            index_of = dict(zip(kind.dims, over, strict=True))
            users_of = {d: [n for n, e in enumerate(at) if index_of[d] in e.symbols] for d in run}
            users = [numbers for d, numbers in users_of.items() if numbers or self.sized.sizes[d] > 1]
            shifted = any(at[n] is not index_of[d] for d, numbers in users_of.items() for n in numbers)
            if op.name == "write" and run_place(self.sized, op, run) is None and not shifted:
                return False
            is_viewed = is_part and op.name == "write"
            if not users or not all(users) or any(max(a) >= min(b) for a, b in pairwise(users)):
                return False
            if max(users[-1]) == len(at) - 1 and not is_viewed:
                return False
        return True

    def _is_side(self, product: Op, run: Run) -> bool:
        """True if the run (tuple of neighbouring dimensions) is all of M, of N or of K of the MMA `product`.

        K counts only if both M and N have a dimension longer than 1: otherwise lanes would get single filter taps.
        """
        sides = self._sides(product)
        has_both = all(any(self.sized.sizes.get(d, 1) > 1 for d in side if isinstance(d, Symbol)) for side in sides)
        return set(run) in sides or (set(run) == self._summed(product) and has_both)

    def _are_result_rows(self, run: Run) -> bool:
        """True if the memory of every write ends with the run, and can be viewed with one dimension in its place.

        A run is a tuple of neighbouring dimensions.
        """
        writes = [op for op in self.accesses if op.name == "write"]
        return all(self.is_row_of_result(op, run) for op in writes)

    def is_row_of_result(self, op: Op, run: Run) -> bool:
        """True if `op` is a write to memory that ends with the run, and that can be viewed with one dimension in its
        place.

        A run is a tuple of neighbouring dimensions.
        """
        return op.name == "write" and is_row(self.sized, op, run) and self._is_viewed(accessed(op)[0], run)


def _coordinate_values(ops: list[Op]) -> set[Value]:
    """Return the set of results of `ops` that are computed elementwise from indices and numbers alone, as masks are."""
    values: set[Value] = set()
    for op in ops:
        is_number = op.name == "scalar" or (op.name == "fill" and not op.result.type.dims)
        if op.name == "self_index" or is_number or (op.name in SIMPLE and values.issuperset(op.operands)):
            values |= set(op.results)
    return values


def reduction_chains(ops: list[Op]) -> list[list[Op]]:
    """Return a list of lists of the reductions in `ops`. Each inner list is together one reduction over several
    dimensions.

    Each reduction of a list has the same function, and reads the result of the one before, which nothing else uses.
    After a sum with a rounded result, a new list begins. A reduction without such a neighbour is a list of one.
    """
    makers = {r: op for op in ops for r in op.results}
    users: dict[Value, int] = {}
    for v in (v for op in ops for v in op.operands):
        users[v] = users.get(v, 0) + 1
    chains: dict[Op, list[Op]] = {}
    for op in (x for x in ops if x.name in REDUCTIONS):
        before = makers.get(op.operands[0])
        follows = before is not None and before.name == op.name and not before.attrs.get("acc")
        exact = op.name != "sum" or op.operands[0].type.dtype.accumulator is op.operands[0].type.dtype
        chain = chains.pop(before) if follows and exact and before in chains and users[op.operands[0]] == 1 else []
        chains[op] = [*chain, op]
    return list(chains.values())


def is_row(sized: Sized, op: Op, run: Run) -> bool:
    """True if the run (tuple of neighbouring dimensions) is the last coordinates of the memory of `op`, a read or
    write.

    `sized` has the extents of dimensions and the shapes of arguments.
    """
    place = run_place(sized, op, run)
    return place is not None and place.stop == len(places(op)[2])


def run_place(sized: Sized, op: Op, run: Run) -> range | None:
    """Return the range of coordinate numbers of the run (tuple of neighbouring dimensions) in the memory of `op`.

    `op` is a read or write. For x[n, p, q] and the run (P, Q), return range(1, 3). None unless the indices of the run
    are neighbouring coordinates in this order, each one index alone, over whole memory dimensions; only the first may
    be a part. Dimensions of extent 1 need no coordinate. `sized` has the extents of dimensions and the shapes of
    arguments.
    """
    memory = accessed(op)[0]
    kind, over, at = places(op)
    index_of = dict(zip(kind.dims, over, strict=True))
    if any(d not in index_of for d in run):
        return None
    users = [n for n, e in enumerate(at) if not e.symbols.isdisjoint(index_of[d] for d in run)]
    used = frozenset().union(*(at[n].symbols for n in users))
    indexed = [d for d in run if sized.sizes[d] > 1 or index_of[d] in used]
    place = range(users[0], users[0] + len(indexed)) if users else range(0)
    if users != list(place) or at[place.start : place.stop] != tuple(index_of[d] for d in indexed) or not indexed:
        return None
    extents = sized.shapes[memory][place.start + 1 : place.stop]
    return place if extents == tuple(sized.sizes[d] for d in indexed[1:]) else None


def _merge(sized: Sized, run: Run, viewed: Collection[Op]) -> Sized:
    """Return `sized` (program, extents, shapes and loops) with one dimension in place of the run.

    A run is a tuple of neighbouring dimensions. Memories that an operation in `viewed` accesses get a view with the
    merged dimension. Accesses to other memories divide the merged index.
    """
    program, sizes, shapes = sized.program, dict(sized.sizes), dict(sized.shapes)
    merged_dim = _name(sized, run)
    extents = [sizes[d] for d in run]
    sizes[merged_dim] = prod(extents)
    with building():
        f, at = symbol(f"at_{merged_dim}", 0, sizes[merged_dim] - 1), dict[Expr, Expr]()
        for n, d in enumerate(run):
            inner = prod(extents[n + 1 :])
            at[d] = f // inner % extents[n] if n else f // inner
        view_of: dict[Value, tuple[Value, range]] = {}
        for op in (x for x in viewed if run[0] in accessed(x)[1].dims):
            memory, place = accessed(op)[0], run_place(sized, op, run)
            if memory not in view_of and place is not None:
                view_of[memory] = _view(memory, run, merged_dim, place), place
                shape = shapes[memory]
                merged_extent = prod(shape[place.start : place.stop])
                shapes[view_of[memory][0]] = (*shape[: place.start], merged_extent, *shape[place.stop :])
        rewrite = _Merging(DimensionGroup(run, (merged_dim,), (f,), at), view_of, sizes)
        args = tuple(view_of[a][0] if a in view_of else a for a in program.args)
        rewritten = replace(program, args=args, body=rewrite.body(program.body))
        verify(rewritten)
    return Sized(
        rewritten,
        sizes,
        {a: shapes[a] for a in args},
        {rewrite.kept[op] for op in sized.free if op in rewrite.kept},
        sized.rows,
    )


def _view(memory: Value, run: Run, merged_dim: Symbol, place: range) -> Value:
    """Return a new argument like `memory` with one dimension in place of the dimensions at `place`, a range of numbers.

    The new dimension is `merged_dim` if these dimensions are the `run` itself, otherwise their product.
    """
    kind: MemoryType = memory.type
    dims = kind.dims[place.start : place.stop]
    one = merged_dim if dims == run else prod(dims[1:], start=dims[0])
    return Value(
        MemoryType(kind.dtype, (*kind.dims[: place.start], one, *kind.dims[place.stop :]), kind.space), memory.name
    )


def _name(sized: Sized, run: Run) -> Symbol:
    """Return the symbol for the merged dimension of the run (tuple of neighbouring dimensions).

    If only one dimension of the run is longer than 1, return that dimension. Otherwise return a new symbol with an
    unused name, such as P_Q.
    """
    longer = [d for d in run if sized.sizes[d] > 1]
    if len(longer) < 2:
        return longer[0] if longer else run[-1]
    used_names, name = {s.name for s in (*program_symbols(sized.program), *sized.sizes)}, "_".join(map(str, run))
    while name in used_names:
        name += "_"
    return symbol(name, 0)


class _Merging(Regrouped):
    """Rewrites a program with one dimension for a group of dimensions.

    `seen` maps memories to (view with the merged dimension, the coordinates that it replaces).
    """

    def __init__(self, group: DimensionGroup, seen: Mapping[Value, tuple[Value, range]], sizes: Mapping[Symbol, int]):
        super().__init__([group], sizes=sizes)
        self.group, self.seen = group, seen
        self.values |= {memory: view for memory, (view, _) in seen.items()}
        self.inner: dict[Value, Value] = {}

    def access(self, op: Op) -> dict[str, object]:
        """Return {"over": iterators, "at": memory coordinates} of the read or write `op`, with the merged dimension.

        In a viewed memory, the merged index is one coordinate. Accesses to other memories divide the index. Return {}
        if nothing changes.
        """
        memory = accessed(op)[0]
        if memory not in self.seen:
            divided = super().access(op)
            return {**divided, "over": self._indices(op)} if divided else {}
        if "at" not in op.attrs:
            return {}
        _, place = self.seen[memory]
        at = places(op)[2]
        return {"over": self._indices(op), "at": (*at[: place.start], *self.group.over, *at[place.stop :])}

    def _indices(self, op: Op) -> tuple[Symbol, ...]:
        """Return the iterators of the read or write `op` in the order of the dimensions of its rewritten tile."""
        kind, iterators, _ = places(op)
        index_of = {**dict(zip(kind.dims, iterators, strict=True)), self.group.new_dims[0]: self.group.over[0]}
        return tuple(index_of[d] for d in self.over(kind.dims))

    def block(self, given: list[Op], ops: list[Op]) -> None:
        """Append the rewritten form of each operation in the list `given` to `ops`.

        Successive reductions over all of the merged dimensions become one reduction. A `self_index` (tile of indices)
        along a merged dimension becomes a division and a remainder of the merged index.
        """
        for chain in reduction_chains(given):
            if chain[0].attrs["dim"] in self.groups:
                self.inner |= {op.result: op.operands[0] for op in chain[:-1]}
        for op in (op for op in given if not op.results or op.results[0] not in self.inner):
            if op.name == "self_index" and op.attrs["dim"] in self.groups:
                self.values[op.result] = self._digit(op, ops)
            else:
                super().block([op], ops)

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return `dims` with the new dimension in place of all merged dimensions, at the position of the first one."""
        first = next((d for d in dims if d in self.groups), None)
        return tuple(self.group.new_dims[0] if d is first else d for d in dims if d is first or d not in self.groups)

    def _digit(self, op: Op, ops: list[Op]) -> Value:
        """Append operations to `ops` that compute the index along a merged dimension from the merged index; return
        their result.

        They divide and take the remainder. `op` is the `self_index` (tile of indices along that dimension) that they
        replace.
        """
        (dim,), run, dtype = self.group.new_dims, self.group.dims, op.result.type.dtype
        kind = TileType(dtype, (dim,))
        ops.append(Op(op.spec, (), {**op.attrs, "dim": dim}, (Value(kind),), loc=op.loc))
        place = run.index(op.attrs["dim"])
        extents = [int(self.numbers(d)) for d in run]
        for name, by in (("floordiv", prod(extents[place + 1 :])), ("mod", extents[place] if place else 1)):
            if by > 1:
                number = Op(TILE.ops["fill"], (), {"value": by}, (Value(TileType(dtype, ())),), loc=op.loc)
                ops += [number, Op(TILE.ops[name], (ops[-1].result, number.result), {}, (Value(kind),), loc=op.loc)]
        return ops[-1].result

    def of(self, value: Value) -> Value:
        """Return the value that replaces `value`.

        If `value` is the result of a reduction that was left out, return the replacement of its operand: a later
        reduction reduces all merged dimensions at once.
        """
        return self.of(self.inner[value]) if value in self.inner else super().of(value)

    def op(self, op: Op) -> Op:
        """Return the rewritten operation `op`. A loop over a merged dimension, or a reduction of one, gets the new
        dimension.
        """
        rewritten = super().op(op)
        for name in ("axis", "dim"):
            if rewritten.attrs.get(name) in self.groups:
                rewritten.attrs[name] = self.group.new_dims[0]
        return rewritten
