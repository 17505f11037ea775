"""The pipeline of a plan, bound: producer and consumer waves, the atom and accumulator tile of every MMA, K steps.

The rules: the accumulator tile is what a task has of M and N; groups of waves share its rows; K steps are whole rows of
shared memory; registers of all lanes fit the register file. Shared memory is checked when the kernel is lowered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op, Value
from tilewright.limits import shown
from tilewright.machine import MultiplyAtom, RegisterOperand
from tilewright.plan.bind_axes import loop_of, tile_of_loop
from tilewright.plan.chained import adds_products, chained_axes
from tilewright.plan.general import Cuts
from tilewright.plan.kernel import KernelProgram
from tilewright.plan.legality import (
    check_blocks,
    check_group,
    check_overlap,
    check_registers,
    check_roles,
    check_sharing,
    groups_of,
    k_rows,
)
from tilewright.plan.microkernel import Axes, Microkernel, axes_in, precision_of, shared_atoms, types_of
from tilewright.plan.pipelined import is_contiguous_along, why_no_pipeline
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import Axis, Pipeline, ProductUnit, Schedule

NAMES = 200
"""Characters of a list of atoms that a message shows."""


def bind_pipeline(kernel: KernelProgram, plan: Schedule, axes: Mapping[Expr, Axis], widths: dict[Expr, int]) -> Cuts:
    """Return the lowering parameters of a kernel with warp specialisation:
    producer waves copy, consumer waves multiply.

    `axes` has the plan's axis of every dimension, `widths` the task width along those that the grid splits. Raise an
    error that quotes the first illegal line.
    """
    return _PipelinedKernel(kernel, plan, axes, widths).cuts()


@dataclass(frozen=True, eq=False)
class _PipelinedKernel:
    """A kernel and its plan with a pipeline: the plan's axis of every dimension, and the extent of a task along the
    grid's.
    """

    kernel: KernelProgram
    plan: Schedule
    axes: Mapping[Expr, Axis]
    widths: dict[Expr, int]

    def cuts(self) -> Cuts:
        """Return the parameters of the lowering: task widths, loop tiles, the microkernel of each MMA, the pipeline.

        Raise an error that quotes the line of the plan that breaks a rule.
        """
        plan = self.plan
        self._check_lines()
        if why := why_no_pipeline(self.kernel.program, self.kernel.size, self.kernel.free) and self._why_not_chained():
            raise refused(self.roles, why)
        products = {op: self._product(line, op) for line, op in self._lines()}
        for op, microkernel in products.items():
            self._check_tile(op, microkernel)
        self._check_loops()
        held = self._held(products) if self.looped else None
        check_registers(self.roles, plan.products, products, self.kernel.machine, held)
        check_overlap(plan, bool(self.looped), products)
        check_group(plan, str(next(iter(self.of.values())).m))
        blocks = {
            d: n
            for op in products
            if (d := self.of[op].n) in self.widths and (n := loop_of(self.axes[d])) not in (None, self.widths[d])
        }
        tiles = {op: self.looped.get(d) or self.kernel.size(d) for op, d in self.kernel.loops.items()}
        columns = {self.of[op].n: microkernel.tile[1] for op, microkernel in products.items()}
        padded = {
            d: n
            for d, n in columns.items()
            if d not in self.widths and d not in self.looped and n > self.kernel.size(d)
        }
        return Cuts(
            self.widths,
            {d: n for d, n in blocks.items() if n is not None},
            tiles,
            dict(products),
            self.roles,
            plan.raster,
            padded,
            schedule=plan.order,
            overlap=plan.overlap,
        )

    # -- what the program is -------------------------------------------------------------------------------

    @property
    def roles(self) -> Pipeline:
        """The plan's line `producer ..., consumer ..., stages ...`: waves with their registers, and stages."""
        assert self.plan.pipeline is not None
        return self.plan.pipeline

    @cached_property
    def looped(self) -> dict[Expr, int]:
        """The tile size of each loop of the program that stays a loop, by dimension;
        other loops become the K loop of an MMA.
        """
        kernel = self.kernel
        stays = {
            op: d
            for op, d in kernel.loops.items()
            if not (op in kernel.free and (adds_products(op) or str(d) not in kernel.stated))
        }
        return {d: tile_of_loop(kernel, op, self.axes[d]) for op, d in stays.items()}

    def width(self, d: Expr) -> int:
        """Return the extent of `d` within a task, within one iteration of a loop over it, or else its whole extent."""
        return self.widths.get(d) or self.looped.get(d) or self.kernel.size(d)

    @cached_property
    def of(self) -> dict[Op, Axes]:
        """M, N and K of every MMA. M is the row dimension along which a task has more than one element.

        Raises an error for an MMA without an accumulator tile.
        """
        axes_of: dict[Op, Axes] = {}
        for op in self.kernel.products.values():
            product_axes = axes_in(op, self.width)
            if isinstance(product_axes, str):
                raise refused(self.roles, product_axes)
            axes_of[op] = product_axes
        return axes_of

    def _why_not_chained(self) -> str:
        """Return why values between the MMAs of this kernel do not stay in registers, as text; empty if they do."""
        kernel = self.kernel
        axes = chained_axes(kernel.program, kernel.sizes, kernel.size, kernel.free)
        return axes if isinstance(axes, str) else ""

    def _lines(self) -> list[tuple[ProductUnit, Op]]:
        """Return (its line of the plan, the mma operation) for every MMA;
        raise an error for missing and unknown names.
        """
        lines = {line.name: line for line in self.plan.products}
        for name, line in lines.items():
            if name not in self.kernel.products:
                raise refused(line, f"there is no product {name}; there are {', '.join(self.kernel.products)}")
        for name in self.kernel.products:
            if name not in lines:
                raise refused(self.roles, f"no line says by which atom {name} is done")
        return [(lines[name], op) for name, op in self.kernel.products.items()]

    # -- rules -------------------------------------------------------------------------------------------

    def _check_lines(self) -> None:
        """Raise an error for lines that a pipeline without halo tiles cannot have."""
        check_roles(self.roles, self.kernel.machine)
        if self.roles.halo_stages:
            raise refused(self.roles, "no operand has the form halo")
        if self.plan.waves > 1:
            raise refused(self.plan.line("waves"), "the line `producer` says the waves")
        for line in self.plan.values:
            raise refused(line, "it needs `halo stages` in the line `producer`")
        if self.plan.loops:
            raise refused(self.plan.line("loops"), "only halo tiles have an order of loops")

    def _product(self, line: ProductUnit, op: Op) -> Microkernel:
        """Return the atom, accumulator tile, orientation and K step of the mma `op`, as its line of the plan says.

        Raise an error if the atom cannot do it.
        """
        machine = self.kernel.machine
        if line.atom is None:
            raise refused(line, "roles multiply by an atom")
        try:
            atom = machine.multiply_atom(line.atom)
        except LookupError as fault:
            raise refused(line, str(fault)) from None
        rows, columns = (line.columns, line.rows) if line.transposed else (line.rows, line.columns)
        blocks = op.attrs.get("blocks", 1)
        if atom.slab is None:
            raise refused(line, f"{atom.name} reads no operand from shared memory")
        self._check_atom(line, op, Microkernel(atom, rows, columns, transposed=line.transposed))
        k_step_rows = self._slabs(line, op, atom)
        operand_a = (self.of[op].transposed if line.transposed else self.of[op]).factors(op)[0]
        if Microkernel(atom, rows, columns).held_a and self._is_read(operand_a) and (k_step_rows or not self.looped):
            raise refused(line, f"{atom.name} has A in registers, and A changes with every step of the loop")
        how = Microkernel(
            atom,
            rows,
            columns,
            groups_of(self.roles, line, atom, machine, len(self.kernel.products)),
            at_once=k_step_rows == 0,
            transposed=line.transposed,
            blocks=blocks,
            slabs=max(1, k_step_rows),
            taps=self._taps(line, op, atom) if k_step_rows else (),
        )
        check_blocks(line, how, self.kernel.size(self.of[op].n), self.kernel.size(self.of[op].k))
        check_sharing(self.roles, line, how)
        return how

    def _slabs(self, line: ProductUnit, op: Op, atom: MultiplyAtom) -> int:
        """Return how many slabs (rows of shared memory, of the atom's length)
        along K one K step has; 0 if K is one step.

        `line` is the plan's line of the mma `op`, which an error quotes.
        """
        axes, row = self.of[op], atom.slab or 1
        if axes.k in self.looped:
            return 0
        if axes.k not in self.axes:  # an expression of sizes, of which a plan has no axis
            return 1
        step = loop_of(self.axes[axes.k])
        several = any(self.kernel.size(d) > 1 for d in axes.deep)
        if step is not None and step >= self.kernel.size(axes.k) and self.looped and not several:
            return 0
        if step is None and several:  # all of K, for one tap after the other
            step = -(-self.kernel.size(axes.k) // row) * row
        return 0 if step is None else k_rows(self.axes[axes.k], step, self.kernel.size(axes.k), line, row)

    def _taps(self, line: ProductUnit, op: Op, atom: MultiplyAtom) -> tuple[int, ...]:
        """Return the extent of a K step along each reduction dimension besides
        K (filter taps); () if it is 1 along all.

        Raise an error if steps do not divide a dimension, or if the atom reads one tap at a time.
        """
        taps = []
        for d in self.of[op].deep:
            extent, axis = self.kernel.size(d), self.axes.get(d)
            taps.append(1 if axis is None else loop_of(axis) or extent)
            if extent % taps[-1]:
                raise refused(axis, f"steps of {taps[-1]} do not divide its {extent}")
            if taps[-1] > 1 and (op.attrs.get("blocks", 1) > 1 or Microkernel(atom, 1, 1).held_a):
                raise refused((axis, line), f"{atom.name} reads one place of {d} after the other: `loop 1`")
        return tuple(taps) if any(n > 1 for n in taps) else ()

    def _check_atom(self, line: ProductUnit, op: Op, microkernel: Microkernel) -> None:
        """Raise an error if the atom does not take the operands' types, or the
        dimension along which they are contiguous.
        """
        machine, axes = self.kernel.machine, microkernel.oriented(self.of[op])
        types = types_of(op, axes.swapped, machine)
        k_contiguous = [is_contiguous_along(x, axes.k, self.kernel.program) for x in axes.factors(op)]
        fitting = shared_atoms(machine, types, (k_contiguous[0], k_contiguous[1]), precision_of(op), microkernel.held_a)
        if microkernel.atom not in fitting:
            names = shown(", ".join(x.name for x in fitting) or "none", NAMES)
            raise refused(line, f"the atoms for {types[0]} by {types[1]} that lie so are {names}")

    def _held(self, products: Mapping[Op, Microkernel]) -> int:
        """Return the registers of a lane for A operands that stay in registers over a
        loop, with all of their K; 0 if none do.

        `products` has the microkernel of each MMA.
        """
        registers, word = 0, self.kernel.machine.register_file.word_bits
        for op, microkernel in products.items():
            axes = microkernel.oriented(self.of[op])
            if (
                microkernel.held_a
                and isinstance(microkernel.atom.a, RegisterOperand)
                and self._is_read(axes.factors(op)[0])
            ):
                m, _, k = microkernel.atom.shape
                steps = -(-self.kernel.size(axes.k) // k) * (microkernel.rows // m) // microkernel.groups
                registers += microkernel.atom.a.values * steps * microkernel.atom.a.dtype.bits // word
        return registers

    def _is_read(self, operand: Value) -> bool:
        """True if an operand comes directly from a read of memory."""
        op = self.kernel.program.makers().get(operand)
        return op is not None and op.name == "read"

    def _check_loops(self) -> None:
        """Raise an error for a loop over an axis that is no loop of the program, no K and no columns of a task."""
        iterated = {*self.looped, *(d for axes in self.of.values() for d in (axes.k, *axes.deep))}
        iterated |= {axes.n for axes in self.of.values() if axes.n in self.widths}
        for d, axis in self.axes.items():
            loop = loop_of(axis)
            if loop is not None and d not in iterated and loop < min(self.width(d), self.kernel.size(d)):
                raise refused(axis, f"no loop iterates over {d}: a task has all of its part")

    def _check_tile(self, op: Op, microkernel: Microkernel) -> None:
        """Raise an error if the accumulator tile of the mma `op` is not what a
        task, or an iteration, has of its M and N.
        """
        axes, size = self.of[op], self.kernel.size
        for d in axes.around:
            if self.width(d) > 1:
                raise refused(self.axes[d], f"a task has one of {d}: beside {axes.m} and {axes.n} an MMA has one")
        rows, columns = microkernel.tile
        line = next(line for line, product in self._lines() if product is op)
        if self.widths.get(axes.m, rows) != rows or (axes.m in self.looped and self.looped[axes.m] != rows):
            raise refused(self.axes[axes.m], f"a task has the rows of `{line}`: {rows}")
        if size(axes.m) == 1 and axes.m not in self.widths and axes.m in self.axes:
            raise refused(self.axes[axes.m], f"a task has the rows of `{line}`: `task {rows}`, and {axes.m} in `grid`")
        n = axes.n
        if n in self.looped and self.looped[n] != columns:
            raise refused(line, f"the loop over {n} has tiles of {self.looped[n]}")
        if n in self.widths:
            n_tile = loop_of(self.axes[n]) or self.widths[n]
            if n_tile != columns or self.widths[n] % columns:
                raise refused(self.axes[n], f"a task has the columns of `{line}`, {columns}, or a loop of such")
        elif n not in self.looped and columns < size(n):
            raise refused(line, f"a task has all {size(n)} of {n}")
