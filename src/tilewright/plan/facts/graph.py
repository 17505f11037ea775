"""Facts of a program: the graph of its tile values, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, prod

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir import tile
from tilewright.ir.core import Op, Program
from tilewright.ir.tile import REDUCTIONS
from tilewright.machine import Machine
from tilewright.plan.boxes import numbers_of
from tilewright.plan.epilogue import COMPUTED, lane_cycles
from tilewright.plan.facts.access import Dims
from tilewright.plan.facts.loops import EXPONENTIALS, LoopFacts
from tilewright.plan.facts.masking import MaskedProduct, Trips, count_trips, masks_of, masks_of_product
from tilewright.plan.facts.product import ProductFacts, products_of
from tilewright.plan.facts.values import ValueFacts, behind
from tilewright.plan.model import Size

SCANS = (*tile.SCANS, "topk")
"""Operations that go along a dimension in order."""
COARSE = 64
"""The tile in which masked elements are counted for bounds."""


@dataclass(eq=False)
class Facts:
    """A program as analysed for the planner, in canonical form; see `canonical`.

    `extents` has the canonical dimensions, those with more than one element; `digits` maps a dimension of the program
    to the canonical ones (mixed-radix parts) that it was split into; `parallel` are the canonical dimensions that the
    grid may split. `order` are all dimensions of the program as they occur, `cut` those of them that the grid may
    split. `nodes` are the values of the program's graph.
    """

    name: str
    extents: dict[str, int]
    nodes: tuple[ValueFacts, ...]
    loops: dict[str, LoopFacts]
    parallel: tuple[str, ...]
    digits: dict[str, tuple[str, ...]]
    order: tuple[Expr, ...]
    cut: tuple[Expr, ...]
    program: Program = field(repr=False)
    sizes: Mapping[Symbol, int] = field(repr=False)
    stated_tasks: Mapping[str, int] = field(default_factory=dict)
    """The task's extent that the author's constraints state, by dimension of the program."""
    stated_loops: Mapping[str, int] = field(default_factory=dict)
    """The loop tile that the author's constraints state, by dimension of the program."""
    stated_waves: Mapping[str, int] = field(default_factory=dict)
    """Into how many parts constraints split a task's tile among waves, by dimension."""
    opened: Mapping[Expr, Expr] = field(default_factory=dict)
    """Sizes known only at a call, as expressions of the symbols that it binds; `sizes` has typical ones."""
    constant: frozenset[str] = frozenset()
    """The arguments whose elements are the same at every launch: a copy of one is made once, when it is bound."""
    logs: bool = False
    """True if results of debug_log are kept."""
    in_order: bool = False
    """True if elements are computed in order, by one task."""
    part: str = ""
    """"first" or "second" for a part of a program that is split into two kernels; empty: it is whole."""
    is_repacked: bool = False
    """True if a launch just before the kernel copies operands to another layout."""
    between: str = ""
    """The memory that the first of two kernels wrote, in the facts of the second; empty otherwise."""
    read_ops: Mapping[Op, int] = field(default_factory=dict, repr=False)
    """The node number of each read of the program; equal reads have the same node."""
    on_k_rows: Callable[[], Facts | str] | None = field(default=None, repr=False)
    """Returns the facts of the program on copies of its operands whose last dimension is a K dimension; or text: why
    there are none. None if that was not examined."""
    without_loop: Callable[[], Facts | str] | None = field(default=None, repr=False)
    """Returns the facts of the program with its loop in one iteration, so that the loop's states need no merge; or
    text: why that is impossible. None if that was not examined."""
    _trips: dict[tuple[object, ...], Trips] = field(default_factory=dict, repr=False)

    @cached_property
    def number_of(self) -> Size:
        """The function that evaluates an expression of sizes, such as a dimension's extent, to an int.

        A size known only at the call has a typical number.
        """
        return numbers_of(self.sizes)

    def size(self, dims: Iterable[str]) -> int:
        """Return the number of elements over `dims`: the product of their extents; 1 for no dimensions."""
        return prod(self.extents[d] for d in dims)

    def digit_names(self, dim: Expr) -> tuple[str, ...]:
        """Return the names of the digits (mixed-radix parts) that the program dimension `dim` was split into.

        A dimension that was not split gives a tuple of its own name.
        """
        return self.digits.get(str(dim), (str(dim),))

    @cached_property
    def users(self) -> dict[int, list[int]]:
        """The users of each node (value of the graph): {node number: numbers of the nodes with it as an operand}.

        Numbers ascend. A user is repeated if several of its operands are this node.
        """
        users: dict[int, list[int]] = {n.id: [] for n in self.nodes}
        for n in self.nodes:
            for arg in n.args:
                users[arg].append(n.id)
        return users

    @cached_property
    def reads(self) -> tuple[ValueFacts, ...]:
        """The nodes (values of the graph) that read memory, in program order; equal reads are one node."""
        return tuple(n for n in self.nodes if n.op == "read")

    @cached_property
    def writes(self) -> tuple[ValueFacts, ...]:
        """The nodes (values of the graph) that write memory, in program order; atomic updates are such nodes too."""
        return tuple(n for n in self.nodes if n.op == "write")

    @cached_property
    def products(self) -> tuple[ProductFacts, ...]:
        """The ProductFacts (M, N, K, batch and operands) of all MMAs of the program, in program order."""
        return products_of(self.nodes)

    @cached_property
    def accumulators(self) -> frozenset[int]:
        """The node numbers of the MMAs whose results reach a write without passing through another MMA.

        The epilogue reads the accumulators of these MMAs. In a chain such as attention, the earlier MMAs are only
        operands of later ones and are left out.
        """
        written = {i for w in self.writes for i in self.behind(w.args[0], ("read", "mma"))}
        return frozenset(p.node for p in self.products if p.node in written)

    @cached_property
    def reductions_beside_mmas(self) -> tuple[ValueFacts, ...]:
        """The nodes of reductions that depend on no MMA and on which no MMA depends, in program order.

        MMAs do not count as reductions.
        """
        mmas = {p.node for p in self.products}
        behind_mmas = {i for mma in mmas for i in self.behind(mma)}
        every = (n for n in self.nodes if n.reduces and n.op != "mma" and n.id not in behind_mmas)
        return tuple(n for n in every if mmas.isdisjoint(self.behind(n.id)))

    def behind(self, value: int, stop_at: tuple[str, ...] = ()) -> Iterator[int]:
        """Yield the number of the node `value`, and the numbers of all nodes that it is computed from, each once.

        A node is a value of the program's graph. The order is depth first, the last operand first. The operands of a
        node whose operation is named in `stop_at` are not followed; the node itself is yielded.
        """
        return behind(self.nodes, value, stop_at)

    @cached_property
    def moved_bytes(self) -> float:
        """The number of bytes that the program moves to and from memory, if caches keep what is read twice.

        It is the sum over tensors. A tensor counts the elements of all its reads and writes, but at most the bytes that
        it spans in memory.
        """
        touched: dict[str, tuple[int, int]] = {}
        for n in (*self.reads, *self.writes):
            place = n.place
            elements, _ = touched.get(place.memory, (0, 0))
            touched[place.memory] = (elements + self.size(n.dims), place.elements * place.bytes)
        element_size = {n.place.memory: n.place.bytes for n in (*self.reads, *self.writes)}
        return float(sum(min(count * element_size[name], whole) for name, (count, whole) in touched.items()))

    @cached_property
    def scanned(self) -> Dims:
        """The dimensions along which the program has a scan or topk, which visit elements in order."""
        return frozenset(str(n.source.attrs["dim"]) for n in self.nodes if n.op in SCANS and n.source is not None)

    @cached_property
    def passes(self) -> dict[str, int]:
        """The number of passes over each dimension that a task (tile of the grid) needs: {dimension: passes}.

        One pass suffices for x * 2; two are needed for x / sum(x): one for the sum, one for the quotients.
        """
        return {d: self._passes(d) for d in self.extents}

    def _passes(self, dim: str) -> int:
        """Return the number of passes over `dim` that a task (tile of the grid) needs, such as 2 for x / sum(x).

        It is one, plus the length of the longest chain of reductions along `dim` that a value with this dimension
        depends on. A reduction adds no pass in an online softmax, or if a loop over `dim` has partial results that can
        be merged.
        """
        level: dict[int, int] = {}
        loop = self.loops.get(dim)
        streams = loop is not None and loop.merge is not None
        for n in self.nodes:
            level[n.id] = max((level[arg] for arg in n.args), default=0)
            if dim in n.reduces and not streams and not self._is_online(n, dim):
                level[n.id] += 1
        return 1 + max((level[n.id] for n in self.nodes if dim in n.dims), default=0)

    def _is_online(self, n: ValueFacts, dim: str) -> bool:
        """True if the value `n` is a sum of exp(t - m) or exp2(t - m), and m is the maximum of the same t along `dim`.

        One pass then computes both m and the sum (online softmax).
        """
        power = self.nodes[n.args[0]] if n.op == "sum" else None
        difference = self.nodes[power.args[0]] if power is not None and power.op in EXPONENTIALS else None
        if difference is None or difference.op != "sub":
            return False
        maximum = self.nodes[difference.args[1]]
        return maximum.op == "max" and dim in maximum.reduces and maximum.args[0] == difference.args[0]

    def lane_cycles(self, n: ValueFacts, machine: Machine) -> float:
        """Return the cycles, usually a fraction, that one core's ALUs take per element of the value `n`.

        All lanes are taken to be busy. A reduction or a scan counts one simple operation per element. The result is 0
        for values that no ALU computes: reads, writes, MMAs, constants, casts, and elements that are only renamed (as
        by a broadcast).
        """
        if n.op in REDUCTIONS or n.op in SCANS:
            return 1 / machine.limits.lane_rate
        return lane_cycles(n.source, machine) if n.source is not None and n.op in COMPUTED else 0.0

    # -- masks ----------------------------------------------------------------------------------------------

    @cached_property
    def masks(self) -> dict[str, tuple[Op, ...]]:
        """The masks of each loop, such as a causal mask: {loop axis: select operations of the loop's body}.

        A select is a mask if an iteration whose tile is wholly masked leaves all values that the loop carries
        unchanged. Loops that the program does not have, but could have, are left out.
        """
        return {axis: masks_of(loop.source) for axis, loop in self.loops.items() if loop.source is not None}

    @cached_property
    def masked_dims(self) -> Dims:
        """The names of the dimensions on which masks of loops depend, such as the rows and the keys of a causal mask.

        A mask is a select whose condition has these dimensions; see `masks`.
        """
        mask_dims = (d for ops in self.masks.values() for op in ops for d in op.operands[0].type.dims)
        return frozenset(map(str, mask_dims))

    def trips(self, axis: str, tile: int, tiles: Mapping[str, int]) -> Trips:
        """Count the iterations of a loop that masks do not skip: return {(kept, partly masked): number of tasks}.

        The loop is over `axis`, `tile` elements per iteration. A task is one tile of the grid. `kept` is the number of
        its iterations that have an unmasked element; `partly masked` is how many of these also have a masked one.
        `tiles` maps dimensions to a task's extents (1 if missing). Only tasks along dimensions of the masks are
        counted. If no mask depends on `axis`, the result is {(all iterations, 0): 1}.
        """
        masks = self.masks.get(axis, ())
        dims: list[Expr] = list(dict.fromkeys(d for op in masks for d in op.operands[0].type.dims))
        rows = {d: min(tiles.get(str(d), 1), self.extents.get(str(d), 1)) for d in dims if str(d) != axis}
        axis_dim = next((d for d in dims if str(d) == axis), None)
        if axis_dim is None:
            return {(ceil(self.extents[axis] / tile), 0): 1}
        key = (axis, tile, tuple(rows.values()))
        if key not in self._trips:
            self._trips[key] = count_trips(self.program, masks, axis_dim, tile, rows, self.number_of)
        return self._trips[key]

    @cached_property
    def masked_product(self) -> MaskedProduct | None:
        """The masks that let a kernel skip tasks or K iterations of all its MMAs, as a MaskedProduct; None if none do.

        An example is a triangular operand, whose zeros need not be multiplied. All MMAs must have the same masks, and
        the same K. None also in three further cases: a dimension of the masks has one element or is split into digits
        (mixed-radix parts); a loop of the program has masks; or the program is one of two kernels of a split program.
        """
        sources = {p: self.nodes[p.node].source for p in self.products}
        if self.part or any(self.masks.values()):  # what hides a result may be in another kernel
            return None
        masked = {(masks_of_product(self.program, op), p.k) for p, op in sources.items() if op is not None}
        for selects, k in masked:
            dims = tuple(dict.fromkeys(d for op in selects for d in op.operands[0].type.dims))
            if dims and masked == {(selects, k)} and all(str(d) in self.extents for d in dims):
                return MaskedProduct(self.program, selects, dims, k, self.sizes)
        return None

    @cached_property
    def unmasked_shares(self) -> dict[str, float]:
        """The fraction (0 to 1) of each loop's work that masks do not skip: {loop axis: fraction}.

        It is counted in tiles of COARSE (64) elements along each dimension; a partly masked tile counts half. A loop
        without masks has 1. A loop over one element is left out.
        """
        shares = {}
        for axis in [axis for axis in self.loops if axis in self.extents]:  # half of a split program may lack an axis
            counted = self.trips(axis, COARSE, dict.fromkeys(self.masked_dims, COARSE))
            all_iterations = sum(counted.values()) * ceil(self.extents[axis] / COARSE)
            shares[axis] = (
                sum((trips - masked / 2) * tasks for (trips, masked), tasks in counted.items()) / all_iterations
            )
        return shares

    def unmasked_share(self, dims: Dims) -> float:
        """Return the fraction (0 to 1) of the elements over the dimensions `dims` that masks of loops do not skip.

        An example of a mask is the causal mask of attention. The result is the product of the loops' fractions, over
        all loops over a dimension in `dims`; 1 if there is no such loop.
        """
        return prod(share for axis, share in self.unmasked_shares.items() if axis in dims)
