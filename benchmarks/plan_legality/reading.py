"""A plan beside the shapes of its program and the machine's row: what the rules ask, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from plan_shapes import SUM_BYTES, OperandShape, ProductShape, Shapes

from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.schedule import Axis, ProductUnit, Schedule
from tilewright.plan.text import parse_plan

ROW = 128
"""Bytes of a row of shared memory, by which bulk copies and atoms swizzle: `slab` elements of an atom's operand."""
CORE_ROWS = 8
"""Rows that an atom reads from shared memory one after the other; such runs lie equally far apart."""


@dataclass(frozen=True)
class Broken:
    """A rule that a plan breaks, the line that breaks it, and how."""

    rule: str
    line: str
    why: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.why}; in `{self.line}`"


@dataclass(frozen=True)
class Reading:
    """A plan of one kernel beside the shapes of its program and the machine's row."""

    plan: Schedule
    shapes: Shapes
    machine: Machine

    # -- axes ---------------------------------------------------------------------------------------------

    @cached_property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """The dimensions of each axis."""
        return {
            axis.name: tuple(dict.fromkeys(d for digit in axis.digits for d in self.shapes.dims_of(digit.name)))
            for axis in self.plan.axes
        }

    def axes_of(self, dim: str) -> list[Axis]:
        """The axes that have a dimension, or digits of it."""
        return [axis for axis in self.plan.axes if dim in self.dims[axis.name]]

    @cached_property
    def on_gpu(self) -> bool:
        """Whether lanes of waves share an operand."""
        return self.machine.lanes is not None

    @cached_property
    def copied(self) -> dict[str, str]:
        """Operands that a kernel of their own copies first, and to what form."""
        return {p.name: p.form for p in self.plan.values if p.at == "launch"}

    @cached_property
    def has_printed_digits(self) -> bool:
        """Whether dimensions count in the digits of the printed plan: the same operands are copied, and K is whole."""
        printed = {p.name: p.form for p in parse_plan(self.shapes.printed).values if p.at == "launch"}
        return self.plan.parts is None and self.copied in ({}, printed)

    @cached_property
    def split(self) -> str | None:
        """The dimension that is summed in parts."""
        if self.plan.parts is None:
            return None
        return next(iter(self.shapes.dims_of(self.plan.parts[0])), self.plan.parts[0])

    # -- products -----------------------------------------------------------------------------------------

    @cached_property
    def products(self) -> list[tuple[ProductUnit, ProductShape, MultiplyAtom]]:
        """The products that atoms do: the line, the shape, the atom."""
        known = {p.name: p for p in self.shapes.products}
        return [
            (line, known[line.name], self.machine.multiply[line.atom])
            for line in self.plan.products
            if line.name in known and line.atom in self.machine.multiply
        ]

    @cached_property
    def by_loops(self) -> list[ProductShape]:
        """The products that a line gives to loops."""
        names = {line.name for line in self.plan.products if line.atom is None}
        return [product for product in self.shapes.products if product.name in names]

    @cached_property
    def result_bytes(self) -> int:
        """Bytes of an element of what the kernel writes: parts of a sum are written as they are."""
        return self.shapes.result_bytes if self.plan.parts is None else SUM_BYTES

    def main(self, dims: tuple[str, ...]) -> str:
        """The dimension of a side of a product that blocks cut: the last one that is wider than 1."""
        return ([d for d in dims if self.shapes.sizes[d] > 1] or list(dims))[-1]

    def tile(self, dim: str) -> int | None:
        """The extent of a block along a dimension: what its innermost level has; None: all of it, in one axis."""
        sizes = []
        for axis in self.axes_of(dim):
            boxes = [c.size for c in axis.splits if c.digit is not None and c.level == "task"]
            flat = [c.size for c in axis.splits if c.digit is None and c.level in ("task", "loop")]
            if boxes:
                sizes.append(prod(boxes))
            elif flat:
                sizes.append(flat[-1])
        return prod(sizes) if sizes else None

    def k_step(self, dims: tuple[str, ...], unit: int) -> tuple[int, int]:
        """(elements of the contiguous K, positions of the other summed digits) that one step has."""
        axes = [axis for axis in self.k_axes(dims) if not axis.name.endswith("_split")]
        inner, others = (axes[-1], axes[:-1]) if axes else (None, [])
        step = 1 if inner is None else step_of(inner)
        return -(-step // unit) * unit, prod(map(step_of, others))

    def k_axes(self, dims: tuple[str, ...]) -> list[Axis]:
        """The axes of what is summed, the contiguous one last: that of the last dimension, of its last digit."""
        return [axis for d in dims for axis in sorted(self.axes_of(d), key=lambda a: a.name, reverse=True)]

    @cached_property
    def groups(self) -> int:
        """Groups of waves, as many as an atom takes, that multiply a block together."""
        roles, lanes = self.plan.pipeline, self.machine.lanes
        assert roles is not None
        assert lanes is not None
        each = self.products[0][2].c.lanes // lanes
        return roles.consumer[0] // each // (2 if roles.pingpong else 1)


def step_of(axis: Axis) -> int:
    """Elements of an axis that one step of its innermost loop has; all of it, where it has none."""
    loops = [c.size for c in axis.splits if c.level == "loop"]
    return loops[-1] if loops else prod(d.extent for d in axis.digits)


def oriented(line: ProductUnit, atom: MultiplyAtom) -> tuple[int, int]:
    """The rows and columns of C that an atom has."""
    m, n, _ = atom.shape
    return (n, m) if line.transposed else (m, n)


def atoms_of(line: ProductUnit, atom: MultiplyAtom) -> tuple[int, int]:
    """Atoms of a block along the atom's rows and along its columns."""
    rows, columns = (line.columns, line.rows) if line.transposed else (line.rows, line.columns)
    return rows // atom.shape[0], columns // atom.shape[1]


def tap_axes(r: Reading) -> list[Axis]:
    """The axes of K beside the contiguous one."""
    return r.k_axes(r.products[0][1].summed)[:-1]


def is_held(r: Reading, operand: OperandShape, product: ProductShape) -> bool:
    """Whether an operand is computed in registers once, from memory: it is no other product's, and K is one step."""
    looped = {d for a in r.plan.axes for d in r.dims[a.name] if any(c.level == "loop" for c in a.splits)}
    return operand.argument is None and not operand.from_product and not looped & set(product.summed)
