"""Facts of a program: the graph of its tile values, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, prod

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir.core import Op, Program
from tilewright.ir.tile import REDUCTIONS
from tilewright.machine import Machine
from tilewright.plan.boxes import numbers_of
from tilewright.plan.epilogue import COMPUTED, lane_cycles
from tilewright.plan.facts.access import Dims
from tilewright.plan.facts.loops import EXPONENTIALS, LoopFacts
from tilewright.plan.facts.masking import Trips, count_trips, masks_of
from tilewright.plan.facts.product import ProductFacts, products_of
from tilewright.plan.facts.values import ValueFacts, behind

SCANS = ("cumsum", "topk")
"""Operations that go along a dimension in order."""
COARSE = 64
"""The tile in which masked elements are counted for bounds."""


@dataclass(eq=False)
class Facts:
    """The facts of a program in canonical form; see `canonical`.

    `extents` has the canonical dimensions, those with more than one element; `digits` maps a dimension of the program
    to the canonical ones (mixed-radix parts) that it was split into; `parallel` are the canonical dimensions that the
    grid may split. `order` are all dimensions of the program as they occur, `cut` those of them that the grid may
    split.
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
    logs: bool = False
    """True if results of debug_log are kept."""
    in_order: bool = False
    """True if elements are computed in order, by one task."""
    part: str = ""
    """"first" or "second" for a part of a program that is split into two kernels; empty: it is whole."""
    between: str = ""
    """The memory that the first of two kernels wrote, in the facts of the second; empty otherwise."""
    _trips: dict[tuple[object, ...], Trips] = field(default_factory=dict, repr=False)

    def size(self, dims: Iterable[str]) -> int:
        """Return the number of elements over `dims`: the product of their extents; 1 for none."""
        return prod(self.extents[d] for d in dims)

    @cached_property
    def users(self) -> dict[int, list[int]]:
        """The nodes that use each node as an operand, by node number."""
        users: dict[int, list[int]] = {n.id: [] for n in self.nodes}
        for n in self.nodes:
            for arg in n.args:
                users[arg].append(n.id)
        return users

    @cached_property
    def reads(self) -> tuple[ValueFacts, ...]:
        """All reads of memory; equal ones are merged."""
        return tuple(n for n in self.nodes if n.op == "read")

    @cached_property
    def writes(self) -> tuple[ValueFacts, ...]:
        """All writes to memory."""
        return tuple(n for n in self.nodes if n.op == "write")

    @cached_property
    def products(self) -> tuple[ProductFacts, ...]:
        """All MMAs of the program, in program order."""
        return products_of(self.nodes)

    def behind(self, value: int, stop_at: tuple[str, ...] = ()) -> Iterator[int]:
        """Yield the node `value` and all nodes that it is computed from, back to
        operations named in `stop_at` (included).
        """
        return behind(self.nodes, value, stop_at)

    @cached_property
    def moved_bytes(self) -> float:
        """The distinct bytes of memory that the program reads and writes.

        Each argument counts whole, or by the elements that are accessed if those are fewer.
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
        """The dimensions that any operation scans in order."""
        return frozenset(str(n.source.attrs["dim"]) for n in self.nodes if n.op in SCANS and n.source is not None)

    @cached_property
    def passes(self) -> dict[str, int]:
        """The passes over the tiles of each dimension that a task needs, by dimension; 1 if it can stream."""
        return {d: self._passes(d) for d in self.extents}

    def _passes(self, dim: str) -> int:
        """Return how many passes over its tiles a task needs along `dim`: one,
        and one more after each reduction along it.

        A reduction counts only if a value along `dim` depends on it. Loops whose states merge need one pass.
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
        """True if `n` sums exp(t - max(t)) with the maximum along `dim`, so
        that both run in one pass (online softmax).
        """
        power = self.nodes[n.args[0]] if n.op == "sum" else None
        difference = self.nodes[power.args[0]] if power is not None and power.op in EXPONENTIALS else None
        if difference is None or difference.op != "sub":
            return False
        maximum = self.nodes[difference.args[1]]
        return maximum.op == "max" and dim in maximum.reduces and maximum.args[0] == difference.args[0]

    def lane_cycles(self, n: ValueFacts, machine: Machine) -> float:
        """Return the cycles of a core, with all lanes at work, for one element of the
        value `n`; 0 for what lanes do not compute.
        """
        if n.op in REDUCTIONS or n.op in SCANS:
            return 1 / machine.limits.lane_rate
        return lane_cycles(n.source, machine) if n.source is not None and n.op in COMPUTED else 0.0

    # -- masks ----------------------------------------------------------------------------------------------

    @cached_property
    def masks(self) -> dict[str, tuple[Op, ...]]:
        """The masks of each loop, by axis: select operations that make an iteration
        over a fully masked tile change nothing.
        """
        return {axis: masks_of(loop.source) for axis, loop in self.loops.items() if loop.source is not None}

    @cached_property
    def masked_dims(self) -> Dims:
        """The dimensions that masks depend on."""
        mask_dims = (d for ops in self.masks.values() for op in ops for d in op.operands[0].type.dims)
        return frozenset(map(str, mask_dims))

    def trips(self, axis: str, tile: int, tiles: Mapping[str, int]) -> Trips:
        """Return {(iterations, partly masked ones of them): number of tasks} of the loop over `axis`.

        `tile` is the loop's tile size, `tiles` the task width along each dimension. Without masks all tasks are equal.
        """
        masks = self.masks.get(axis, ())
        dims: list[Expr] = list(dict.fromkeys(d for op in masks for d in op.operands[0].type.dims))
        rows = {d: min(tiles.get(str(d), 1), self.extents.get(str(d), 1)) for d in dims if str(d) != axis}
        axis_dim = next((d for d in dims if str(d) == axis), None)
        if axis_dim is None:
            return {(ceil(self.extents[axis] / tile), 0): 1}
        key = (axis, tile, tuple(rows.values()))
        if key not in self._trips:
            self._trips[key] = count_trips(self.program, masks, axis_dim, tile, rows, numbers_of(self.sizes))
        return self._trips[key]

    @cached_property
    def kept_share(self) -> dict[str, float]:
        """The share (0 to 1) of each loop's elements that masks keep, by axis, counted in tiles of COARSE elements."""
        shares = {}
        for axis in self.loops:
            counted = self.trips(axis, COARSE, dict.fromkeys(self.masked_dims, COARSE))
            whole = sum(counted.values()) * ceil(self.extents[axis] / COARSE)
            shares[axis] = sum((trips - masked / 2) * tasks for (trips, masked), tasks in counted.items()) / whole
        return shares

    def kept(self, dims: Dims) -> float:
        """Return the share (0 to 1) of elements over `dims` that masks keep; 1 if no masked loop is among them."""
        return prod(share for axis, share in self.kept_share.items() if axis in dims)
