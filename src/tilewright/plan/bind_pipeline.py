"""The pipeline of a plan, bound: producer and consumer waves, the atom and accumulator tile of every MMA, K steps.

The rules: the accumulator tile has a task's extents along M and N; groups of waves share its rows; K steps are whole
rows of shared memory; registers of all lanes fit the register file. Shared memory is checked when the kernel is
lowered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.core import Op, Value
from tilewright.limits import shown
from tilewright.machine import RegisterOperand
from tilewright.plan.bind_axes import loop_tile_size
from tilewright.plan.bound import BoundKernel
from tilewright.plan.chained import chained_axes
from tilewright.plan.kernel import KernelProgram
from tilewright.plan.legality import (
    check_blocks,
    check_overlap,
    check_pipeline,
    check_raster,
    check_registers,
    check_sharing,
)
from tilewright.plan.microkernel import Microkernel, precision_of, shared_atoms, types_of
from tilewright.plan.pipelined import is_contiguous_along, why_no_pipeline
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import Pipeline, ProductUnit, Schedule

NAMES = 200
"""Characters of a list of atoms that a message shows."""


def check_pipelined(bound: BoundKernel) -> None:
    """Raise an ArgumentError if a plan with a pipeline (producers copy, consumers multiply) is illegal for its kernel.

    `bound` has the kernel and the plan. The error quotes the first statement of the plan that breaks a rule.
    """
    _PipelinedKernel(bound).check()


@dataclass(frozen=True, eq=False)
class _PipelinedKernel:
    """A kernel and its plan with a pipeline."""

    bound: BoundKernel

    def check(self) -> None:
        """Raise an ArgumentError, which quotes the first statement that breaks a rule, if this plan is illegal.

        The rules are about statements, MMAs and their atoms, accumulator tiles, loop tiles, registers, overlap and
        raster.
        """
        plan, kernel = self.plan, self.kernel
        self._check_statements()
        if why := why_no_pipeline(kernel.program, kernel.size, kernel.free) and self._why_not_chained():
            raise refused(self.pipeline, why)
        products = {op: self._microkernel(statement, op) for statement, op in self._mma_statements()}
        for op, microkernel in products.items():
            self._check_tile(op, microkernel)
        self._check_loop_tiles()
        held = self._resident_registers(products) if self.bound.loop_tiles else None
        check_registers(self.pipeline, plan.products, products, kernel.machine, held)
        check_overlap(plan, bool(self.bound.loop_tiles), products)
        check_raster(plan, str(next(iter(self.bound.mma_axes.values())).m))

    # -- what the program is -------------------------------------------------------------------------------

    @property
    def pipeline(self) -> Pipeline:
        """The Pipeline (waves, registers per lane, stages) that the plan's statement `producer ...` states.

        The plan must have one; an assertion fails otherwise.
        """
        assert self.plan.pipeline is not None
        return self.plan.pipeline

    @property
    def kernel(self) -> KernelProgram:
        """The KernelProgram of this kernel: the tile program, its sizes and the machine."""
        return self.bound.kernel

    @property
    def plan(self) -> Schedule:
        """The plan of this kernel, as a Schedule."""
        return self.bound.plan

    def _why_not_chained(self) -> str:
        """Return text: why this kernel's MMAs form no chain; empty text if they form one.

        In a chain, results of MMAs stay in registers and are operands of other MMAs, as in attention.
        """
        kernel = self.kernel
        axes = chained_axes(kernel.program, kernel.sizes, kernel.size, kernel.free)
        return axes if isinstance(axes, str) else ""

    def _mma_statements(self) -> list[tuple[ProductUnit, Op]]:
        """Return [(the plan's statement for an MMA, the mma operation)] for every MMA of this kernel, in program order.

        Raise an ArgumentError for an MMA without a statement, and for a statement that names no MMA of the kernel.
        """
        statements = {statement.name: statement for statement in self.plan.products}
        for name, statement in statements.items():
            if name not in self.kernel.products:
                raise refused(statement, f"there is no product {name}; there are {', '.join(self.kernel.products)}")
        for name in self.kernel.products:
            if name not in statements:
                raise refused(self.pipeline, f"no line says by which atom {name} is done")
        return [(statements[name], op) for name, op in self.kernel.products.items()]

    # -- rules -------------------------------------------------------------------------------------------

    def _check_statements(self) -> None:
        """Raise an ArgumentError if the machine cannot run the plan's pipeline, or if a statement does not fit it.

        `waves` greater than 1 does not fit, because the statement `producer` gives the number of waves. Three
        statements do not fit because they need halo tiles (input tiles with their surroundings), which this kernel does
        not have: `halo stages`, a placement of a value, and `loops`.
        """
        check_pipeline(self.pipeline, self.kernel.machine)
        if self.pipeline.halo_stages:
            raise refused(self.pipeline, "no operand has the form halo")
        if self.plan.waves > 1:
            raise refused(self.plan.line("waves"), "the line `producer` says the waves")
        for statement in self.plan.values:
            raise refused(statement, "it needs `halo stages` in the line `producer`")
        if self.plan.loops:
            raise refused(self.plan.line("loops"), "only halo tiles have an order of loops")

    def _microkernel(self, statement: ProductUnit, op: Op) -> Microkernel:
        """Return the Microkernel (atom, accumulator tile, wave groups, K step) that `statement` gives for the mma `op`.

        `statement` is the plan's line for `op`. Raise an ArgumentError that quotes it in three cases: it names no atom
        or an unknown one; the atom reads no operand from shared memory; or the atom cannot compute `op` with this tile,
        this K step or these waves.
        """
        machine = self.kernel.machine
        if statement.atom is None:
            raise refused(statement, "a pipeline needs an atom for the product")
        try:
            atom = machine.multiply_atom(statement.atom)
        except LookupError as fault:
            raise refused(statement, str(fault)) from None
        rows, columns = (
            (statement.columns, statement.rows) if statement.transposed else (statement.rows, statement.columns)
        )
        if atom.slab is None:
            raise refused(statement, f"{atom.name} reads no operand from shared memory")
        self._check_atom(statement, op, Microkernel(atom, rows, columns, transposed=statement.transposed))
        k_step_rows = self.bound.k_step_rows(op, atom)
        axes = self.bound.mma_axes[op]
        operand_a = (axes.transposed if statement.transposed else axes).operands(op)[0]
        if (
            Microkernel(atom, rows, columns).a_in_registers
            and self._is_read(operand_a)
            and (k_step_rows or not self.bound.loop_tiles)
        ):
            raise refused(statement, f"{atom.name} has A in registers, and A changes with every step of the loop")
        microkernel = self.bound.microkernel(op)
        assert microkernel is not None
        check_blocks(statement, microkernel, self.kernel.size(axes.n), self.kernel.size(axes.k))
        check_sharing(self.pipeline, statement, microkernel)
        return microkernel

    def _check_atom(self, statement: ProductUnit, op: Op, microkernel: Microkernel) -> None:
        """Raise an ArgumentError unless the microkernel's atom can take the operands of the mma `op`.

        The atom must be for the types of the operands and of the accumulator. Its layout of each operand in shared
        memory must fit the operand (contiguous along K or not). The atom must not round more than `op` allows. The
        error quotes `statement`, the plan's line for `op`.
        """
        machine, axes = self.kernel.machine, microkernel.oriented(self.bound.mma_axes[op])
        types = types_of(op, axes.swapped, machine)
        k_contiguous = [is_contiguous_along(x, axes.k, self.kernel.program) for x in axes.operands(op)]
        fitting = shared_atoms(
            machine, types, (k_contiguous[0], k_contiguous[1]), precision_of(op), microkernel.a_in_registers
        )
        if microkernel.atom not in fitting:
            names = shown(", ".join(x.name for x in fitting) or "none", NAMES)
            raise refused(statement, f"the atoms for {types[0]} by {types[1]} that lie so are {names}")

    def _resident_registers(self, products: Mapping[Op, Microkernel]) -> int:
        """Return the number of registers per lane that hold A operands during the whole loop around the MMAs.

        It is the sum over the MMAs whose atom takes A from registers and whose A is read from memory; each counts all
        of K. It is 0 without any of these MMAs. `products` maps each MMA to its microkernel.
        """
        registers, word = 0, self.kernel.machine.register_file.word_bits
        for op, microkernel in products.items():
            axes = microkernel.oriented(self.bound.mma_axes[op])
            if (
                microkernel.a_in_registers
                and isinstance(microkernel.atom.a, RegisterOperand)
                and self._is_read(axes.operands(op)[0])
            ):
                m, _, k = microkernel.atom.shape
                steps = -(-self.kernel.size(axes.k) // k) * (microkernel.rows // m) // microkernel.groups
                registers += microkernel.atom.a.values * steps * microkernel.atom.a.dtype.bits // word
        return registers

    def _is_read(self, operand: Value) -> bool:
        """True if `operand`, of an MMA, is directly the result of a read of memory, with no operation in between."""
        op = self.kernel.program.makers().get(operand)
        return op is not None and op.name == "read"

    def _check_loop_tiles(self) -> None:
        """Raise an ArgumentError if the plan states a loop over a dimension that this kernel has no loop over.

        The kernel has loops over the dimensions in `loop_tiles`, over the reduction dimensions of MMAs, and over an N
        that the grid splits. A stated loop tile at least as long as the extent of a task (one workgroup's tile) is no
        error.
        """
        iterated = {*self.bound.loop_tiles, *(d for axes in self.bound.mma_axes.values() for d in (axes.k, *axes.deep))}
        iterated |= {axes.n for axes in self.bound.mma_axes.values() if axes.n in self.bound.widths}
        for d, axis in self.bound.axes.items():
            loop = loop_tile_size(axis)
            if loop is not None and d not in iterated and loop < min(self.bound.width(d), self.kernel.size(d)):
                raise refused(axis, f"no loop iterates over {d}: a task has all of its part")

    def _check_tile(self, op: Op, microkernel: Microkernel) -> None:
        """Raise an ArgumentError unless the accumulator tile of the mma `op` has a task's extents along M and N.

        A task is one workgroup's tile; `microkernel` has the accumulator tile. If a loop around the MMAs is over M or
        N, the loop tile counts instead of the task. There are two exceptions along N: a task may loop over whole
        accumulator tiles; and if N is not split, the tile may be wider than N. An M of one element needs a task, too.
        Other dimensions of the accumulator must have one element in a task.
        """
        bound, axes, size = self.bound, self.bound.mma_axes[op], self.kernel.size
        for d in axes.around:
            if bound.width(d) > 1:
                raise refused(bound.axes[d], f"a task has one of {d}: beside {axes.m} and {axes.n} an MMA has one")
        rows, columns = microkernel.tile
        statement = next(statement for statement, product in self._mma_statements() if product is op)
        if bound.widths.get(axes.m, rows) != rows or (axes.m in bound.loop_tiles and bound.loop_tiles[axes.m] != rows):
            raise refused(bound.axes[axes.m], f"a task has the rows of `{statement}`: {rows}")
        if size(axes.m) == 1 and axes.m not in bound.widths and axes.m in bound.axes:
            raise refused(
                bound.axes[axes.m], f"a task has the rows of `{statement}`: `task {rows}`, and {axes.m} in `grid`"
            )
        n = axes.n
        if n in bound.loop_tiles and bound.loop_tiles[n] != columns:
            raise refused(statement, f"the loop over {n} has tiles of {bound.loop_tiles[n]}")
        if n in bound.widths:
            n_tile = loop_tile_size(bound.axes[n]) or bound.widths[n]
            if n_tile != columns or bound.widths[n] % columns:
                raise refused(bound.axes[n], f"a task has the columns of `{statement}`, {columns}, or a loop of such")
        elif n not in bound.loop_tiles and columns < size(n):
            raise refused(statement, f"a task has all {size(n)} of {n}")
