"""Where the elements of a view lie, followed through the operations that make it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.algebra import ceildiv, index
from tilewright.algebra.expr import Expr, Symbol
from tilewright.algebra.expr_use import Substitution, evaluate
from tilewright.check.distribution import placement
from tilewright.ir.binding import open_parameters
from tilewright.ir.core import Op, Program, Value
from tilewright.ir.tensors import TensorType, numbers
from tilewright.machine import Machine, MemoryView
from tilewright.machine.ends import both_ends, ends_within

Array = np.ndarray[Any, np.dtype[Any]]


class Places:
    """The chain from a value to the allocation, argument or stage that it is a view of."""

    def __init__(self, program: Program, made: Mapping[Value, Op]):
        self.made = made
        # the first value of each loop variable, and the least of each open parameter: where a box is looked at
        self.values: dict[str, int] = {s.name: int(s.lo) for s in open_parameters(program)}
        # loop variables as numbers of rounds, where rounds are more than one apart
        self.rounds: dict[Symbol, Expr] = {}
        for op in program.walk():
            for loop in op.attrs.get("ranges", ()):
                self.values[loop.symbol.name] = int(evaluate(loop.lo, self.values))
                if loop.step != 1 and (loop.hi - loop.lo).hi > 0:
                    rounds = index(loop.symbol.name, ceildiv(loop.hi - loop.lo, loop.step))
                    self.rounds[loop.symbol] = loop.lo + rounds * loop.step

    def root(self, value: Value) -> Value:
        """The value at the bottom of views and bitcasts."""
        op = self.made.get(value)
        while op is not None and op.name in ("view", "bitcast"):
            value = op.operands[0]
            op = self.made.get(value)
        return value

    def in_stage(self, value: Value) -> bool:
        """Whether a tensor is, or lies in, a stage of a channel."""
        op = self.made.get(self.root(value))
        return op is not None and op.name in ("acquire", "wait")

    def may_lie_outside(self, value: Value) -> bool:
        """Whether a coordinate on the way is marked with ?."""
        op = self.made.get(value)
        while op is not None and op.name in ("view", "bitcast"):
            if op.name == "view" and any(loose for _, loose in op.attrs["at"]):
                return True
            op = self.made.get(op.operands[0])
        return False

    def offsets(self, value: Value, coordinates: tuple[Any, ...]) -> tuple[TensorType, Array]:
        """(the tensor at the bottom, offsets in it before its swizzle), in the first round of all loops."""
        op = self.made.get(value)
        if op is not None and op.name == "bitcast":
            return self.offsets(op.operands[0], coordinates)
        if op is not None and op.name == "view":
            names = [s.name for s in op.attrs["over"]]
            values = {**self.values, **dict(zip(names, coordinates, strict=True))}
            found = tuple(evaluate(e, values) for e, _ in op.attrs["at"])
            return self.offsets(op.operands[0], found)
        kind: TensorType = value.type
        if op is not None and op.name in ("acquire", "wait"):
            channel = self.made[op.operands[0]]
            whole: TensorType = channel.operands[op.results.index(value)].type
            kind = TensorType(whole.space, whole.dtype, whole.shape[1:], whole.steps[1:], whole.swizzle)
        offset: Any = 0
        for coordinate, step in zip(coordinates, numbers(kind.steps, kind), strict=True):
            offset = offset + coordinate * step
        return kind, np.broadcast_to(np.asarray(offset), np.broadcast_shapes(*(np.shape(c) for c in coordinates)))

    def registers(self, value: Value, machine: Machine) -> Array | None:
        """The number of the element that each [lane, value] holds of a register tensor, or of a view of one.

        None where some lanes hold more of the view than others. The view is looked at in the first round of all loops.
        """
        shape = numbers(value.type.shape, value.type)
        coordinates: tuple[Any, ...] = tuple(np.indices(shape))
        op = self.made.get(value)
        while op is not None and op.name in ("view", "bitcast"):
            if op.name == "view":
                names = [s.name for s in op.attrs["over"]]
                values = {**self.values, **dict(zip(names, coordinates, strict=True))}
                coordinates = tuple(
                    np.broadcast_to(evaluate(self.expanded(e), values), shape) for e, _ in op.attrs["at"]
                )
            value = op.operands[0]
            op = self.made.get(value)
        held = placement(value.type, machine)
        mine = np.full(int(np.prod(held.shape)), -1)
        size = int(np.prod(shape))
        mine[np.ravel_multi_index(coordinates, held.shape, order="F")] = np.arange(size).reshape(shape, order="F")
        found: Array = mine[held.elements]
        counts = (found >= 0).sum(axis=1)
        if counts.min() != counts.max():
            return None
        return found[found >= 0].reshape(len(found), -1)

    def view(self, value: Value, axes: tuple[Symbol, ...], machine: Machine) -> MemoryView:
        """The tensor at the bottom, and which of its elements the view holds, as expressions of axes."""
        coordinates: tuple[Expr, ...] = axes
        loose: tuple[bool, ...] = (False,) * len(axes)
        ends: list[Expr] = []
        op = self.made.get(value)
        while op is not None and op.name in ("view", "bitcast"):
            if op.name == "view":
                over = dict(zip(op.attrs["over"], coordinates, strict=True))
                # an element that may lie outside on the way may lie outside at the bottom
                outside = {s for s, may in zip(op.attrs["over"], loose, strict=True) if may}
                loose = tuple(bool(may or e.symbols & outside) for e, may in op.attrs["at"])
                coordinates = tuple(Substitution(over)(self.expanded(e)) for e, _ in op.attrs["at"])
                sizes = map(self.expanded, op.operands[0].type.shape)
                marked = zip(coordinates, sizes, op.attrs["at"], strict=True)
                ends += [end for c, n, (_, may) in marked if may for end in both_ends(c, n)]
            value = op.operands[0]
            op = self.made.get(value)
        kind: TensorType = value.type
        if op is not None and op.name in ("acquire", "wait"):
            channel = self.made[op.operands[0]]
            kind = channel.operands[op.results.index(value)].type
            coordinates, loose = (index("stage", kind.shape[0]), *coordinates), (False, *loose)
        shape, steps = tuple(map(self.expanded, kind.shape)), tuple(map(self.expanded, kind.steps))
        alignment = machine.spaces[kind.space].alignment
        within = ends_within(ends, coordinates, shape)
        return MemoryView(
            f"%{value.name}", kind.space, coordinates, shape, steps, loose, alignment, kind.swizzle, within
        )

    def expanded(self, e: Expr) -> Expr:
        """The expression with lets written out, and loop variables by their rounds."""
        images: dict[Symbol, Expr] = {}
        for s in e.symbols:
            if s.definition is not None:
                images[s] = self.expanded(s.definition)
            elif s in self.rounds:
                images[s] = self.rounds[s]
        return Substitution(images)(e) if images else e


def written(op: Op) -> tuple[Value, ...]:
    """The tensors that an operation writes to."""
    match op.name:
        case "fill" | "map" | "mma" | "gather":
            return op.operands[:1]
        case "copy" | "broadcast" | "convert_layout" | "scatter" | "atomic":
            return op.operands[1:2]
        case "reduce" | "scan":
            return op.operands[len(op.operands) // 2 :]
    return ()
