"""Follow views and bitcasts down to the tensor below them, and find the places of their elements in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.algebra import ceildiv, index
from tilewright.algebra.expr import Expr, Symbol
from tilewright.algebra.expr_use import Substitution, evaluate
from tilewright.analysis.distribution import placement
from tilewright.ir.binding import open_parameters
from tilewright.ir.core import Op, Program, Value
from tilewright.ir.tensors import TensorType, numbers
from tilewright.machine import Machine, MemoryView
from tilewright.machine.ends import both_ends, ends_within

Array = np.ndarray[Any, np.dtype[Any]]


class Places:
    """Resolves values of a program to the allocation, argument or channel stage of which they are views."""

    def __init__(self, program: Program, makers: Mapping[Value, Op]):
        self.makers = makers
        # the first value of each loop variable and the least of each open parameter, at which offsets are evaluated
        self.values: dict[str, int] = {s.name: int(s.lo) for s in open_parameters(program)}
        # loop variables with a step, as lo + iteration * step
        self.by_iteration: dict[Symbol, Expr] = {}
        for op in program.walk():
            for loop in op.attrs.get("ranges", ()):
                self.values[loop.symbol.name] = int(evaluate(loop.lo, self.values))
                if loop.step != 1 and (loop.hi - loop.lo).hi > 0:
                    iteration = index(loop.symbol.name, ceildiv(loop.hi - loop.lo, loop.step))
                    self.by_iteration[loop.symbol] = loop.lo + iteration * loop.step

    def root(self, value: Value) -> Value:
        """Return the tensor below all views and bitcasts of `value`; `value` itself if it is neither a view nor a
        bitcast.
        """
        op = self.makers.get(value)
        while op is not None and op.name in ("view", "bitcast"):
            value = op.operands[0]
            op = self.makers.get(value)
        return value

    def in_stage(self, value: Value) -> bool:
        """Return True if `value` is a stage of a channel, or a view of one."""
        op = self.makers.get(self.root(value))
        return op is not None and op.name in ("acquire", "wait")

    def may_lie_outside(self, value: Value) -> bool:
        """Return True if a view between `value` and its tensor has a coordinate that may be out of bounds (marked with
        ?).
        """
        op = self.makers.get(value)
        while op is not None and op.name in ("view", "bitcast"):
            if op.name == "view" and any(masked for _, masked in op.attrs["at"]):
                return True
            op = self.makers.get(op.operands[0])
        return False

    def offsets(self, value: Value, coordinates: tuple[Any, ...]) -> tuple[TensorType, Array]:
        """Return (tensor type, offsets) of elements of `value`, a tensor or a view of one.

        `coordinates` are the elements' coordinates in `value`: a number or array for each dimension. Views of views and
        bitcasts are followed to the tensor below; the first result is the type of that tensor. `offsets` is an array
        with the distance of each element from the start of the tensor, in elements of its type, before the swizzle. A
        stage of a channel (a result of `acquire` or `wait`) is a tensor with the shape of one stage. Loop variables
        have their values in the first iteration, open parameters their least values.
        """
        op = self.makers.get(value)
        if op is not None and op.name == "bitcast":
            return self.offsets(op.operands[0], coordinates)
        if op is not None and op.name == "view":
            names = [s.name for s in op.attrs["over"]]
            values = {**self.values, **dict(zip(names, coordinates, strict=True))}
            base_coordinates = tuple(evaluate(e, values) for e, _ in op.attrs["at"])
            return self.offsets(op.operands[0], base_coordinates)
        tensor_type: TensorType = value.type
        if op is not None and op.name in ("acquire", "wait"):
            channel = self.makers[op.operands[0]]
            channel_type: TensorType = channel.operands[op.results.index(value)].type
            tensor_type = TensorType(
                channel_type.space,
                channel_type.dtype,
                channel_type.shape[1:],
                channel_type.steps[1:],
                channel_type.swizzle,
            )
        offset: Any = 0
        for coordinate, stride in zip(coordinates, numbers(tensor_type.steps, tensor_type), strict=True):
            offset = offset + coordinate * stride
        return tensor_type, np.broadcast_to(
            np.asarray(offset), np.broadcast_shapes(*(np.shape(c) for c in coordinates))
        )

    def registers(self, value: Value, machine: Machine) -> Array | None:
        """Return an array [lane, value]: the numbers of the elements of `value` that each lane holds in registers.

        `value` is a register tensor, or a view of one; its elements are numbered with the first dimension fastest. Loop
        variables have their values in the first iteration, open parameters their least values. Return None if some
        lanes hold more elements of the view than others.
        """
        shape = numbers(value.type.shape, value.type)
        coordinates: tuple[Any, ...] = tuple(np.indices(shape))
        op = self.makers.get(value)
        while op is not None and op.name in ("view", "bitcast"):
            if op.name == "view":
                names = [s.name for s in op.attrs["over"]]
                values = {**self.values, **dict(zip(names, coordinates, strict=True))}
                coordinates = tuple(
                    np.broadcast_to(evaluate(self.expanded(e), values), shape) for e, _ in op.attrs["at"]
                )
            value = op.operands[0]
            op = self.makers.get(value)
        distribution = placement(value.type, machine)
        number_in_view = np.full(int(np.prod(distribution.shape)), -1)
        size = int(np.prod(shape))
        number_in_view[np.ravel_multi_index(coordinates, distribution.shape, order="F")] = np.arange(size).reshape(
            shape, order="F"
        )
        numbers_held: Array = number_in_view[distribution.elements]
        counts = (numbers_held >= 0).sum(axis=1)
        if counts.min() != counts.max():
            return None
        return numbers_held[numbers_held >= 0].reshape(len(numbers_held), -1)

    def view(self, value: Value, axes: tuple[Symbol, ...], machine: Machine) -> MemoryView:
        """Return the MemoryView that describes `value`, a tensor or a view of one, to an atom.

        Views of views are followed to the tensor below; for a stage of a channel, this tensor has the stage number as a
        further first coordinate. The MemoryView has the element's coordinates in that tensor as expressions of the
        symbols `axes`, one for each dimension of `value`. It marks coordinates that may be out of bounds, and its
        `ends` are the bounds that views on the way add (see `ends_within`). `machine` gives the alignment of the memory
        space.
        """
        coordinates: tuple[Expr, ...] = axes
        masked: tuple[bool, ...] = (False,) * len(axes)
        limits: list[Expr] = []
        op = self.makers.get(value)
        while op is not None and op.name in ("view", "bitcast"):
            if op.name == "view":
                images = dict(zip(op.attrs["over"], coordinates, strict=True))
                # an element that may lie outside on the way may lie outside at the bottom
                masked_symbols = {s for s, may_leave in zip(op.attrs["over"], masked, strict=True) if may_leave}
                masked = tuple(bool(may_leave or e.symbols & masked_symbols) for e, may_leave in op.attrs["at"])
                coordinates = tuple(Substitution(images)(self.expanded(e)) for e, _ in op.attrs["at"])
                sizes = map(self.expanded, op.operands[0].type.shape)
                bounded = zip(coordinates, sizes, op.attrs["at"], strict=True)
                limits += [
                    limit
                    for coordinate, extent, (_, may_leave) in bounded
                    if may_leave
                    for limit in both_ends(coordinate, extent)
                ]
            value = op.operands[0]
            op = self.makers.get(value)
        tensor_type: TensorType = value.type
        if op is not None and op.name in ("acquire", "wait"):
            channel = self.makers[op.operands[0]]
            tensor_type = channel.operands[op.results.index(value)].type
            coordinates, masked = (index("stage", tensor_type.shape[0]), *coordinates), (False, *masked)
        shape, strides = tuple(map(self.expanded, tensor_type.shape)), tuple(map(self.expanded, tensor_type.steps))
        alignment = machine.spaces[tensor_type.space].alignment
        limits_within = ends_within(limits, coordinates, shape)
        return MemoryView(
            f"%{value.name}",
            tensor_type.space,
            coordinates,
            shape,
            strides,
            masked,
            alignment,
            tensor_type.swizzle,
            limits_within,
        )

    def expanded(self, e: Expr) -> Expr:
        """Return `e` with the names that `let` defines replaced by their values, and loop variables by expressions of
        the iteration.

        The variable of a loop from lo with a step s other than 1 becomes lo + s * iteration, where `iteration` is a
        symbol with the variable's name; variables of other loops stay.
        """
        images: dict[Symbol, Expr] = {}
        for s in e.symbols:
            if s.definition is not None:
                images[s] = self.expanded(s.definition)
            elif s in self.by_iteration:
                images[s] = self.by_iteration[s]
        return Substitution(images)(e) if images else e


def written(op: Op) -> tuple[Value, ...]:
    """Return the operands that the operation `op` writes, as a tuple; () if it writes none, or if it is a loop or
    branch.
    """
    match op.name:
        case "fill" | "map" | "mma" | "gather":
            return op.operands[:1]
        case "copy" | "broadcast" | "convert_layout" | "scatter" | "atomic":
            return op.operands[1:2]
        case "reduce" | "scan":
            return op.operands[len(op.operands) // 2 :]
    return ()
