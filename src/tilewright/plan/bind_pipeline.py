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
from tilewright.plan.bind_axes import loop_tile_size, tile_of_loop
from tilewright.plan.chained import adds_products, chained_axes
from tilewright.plan.general import Cuts
from tilewright.plan.kernel import KernelProgram
from tilewright.plan.legality import (
    check_blocks,
    check_overlap,
    check_pipeline,
    check_raster,
    check_registers,
    check_sharing,
    groups_of,
    rows_in_k_step,
)
from tilewright.plan.microkernel import Axes, Microkernel, axes_in, precision_of, shared_atoms, types_of
from tilewright.plan.pipelined import is_contiguous_along, why_no_pipeline
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import Axis, Pipeline, ProductUnit, Schedule

NAMES = 200
"""Characters of a list of atoms that a message shows."""


def bind_pipeline(kernel: KernelProgram, plan: Schedule, axes: Mapping[Expr, Axis], widths: dict[Expr, int]) -> Cuts:
    """Return Cuts, the parameters for the lowering of a warp-specialised kernel, as a plan states them.

    Producer waves copy, consumer waves multiply. `axes` maps every dimension to the plan's axis, `widths` maps each
    dimension of the grid to the extent of a task (one workgroup's tile). Raise an error that quotes the first illegal
    statement of the plan.
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
        """Return Cuts: task extents, loop tiles, the microkernel of each MMA, padding, pipeline, raster and overlap.

        Raise an error that quotes the first statement of the plan that breaks a rule.
        """
        plan = self.plan
        self._check_statements()
        if why := why_no_pipeline(self.kernel.program, self.kernel.size, self.kernel.free) and self._why_not_chained():
            raise refused(self.pipeline, why)
        products = {op: self._microkernel(statement, op) for statement, op in self._mma_statements()}
        for op, microkernel in products.items():
            self._check_tile(op, microkernel)
        self._check_loop_tiles()
        held = self._resident_registers(products) if self.loop_tiles else None
        check_registers(self.pipeline, plan.products, products, self.kernel.machine, held)
        check_overlap(plan, bool(self.loop_tiles), products)
        check_raster(plan, str(next(iter(self.mma_axes.values())).m))
        blocks = {
            d: n
            for op in products
            if (d := self.mma_axes[op].n) in self.widths
            and (n := loop_tile_size(self.axes[d])) not in (None, self.widths[d])
        }
        tiles = {op: self.loop_tiles.get(d) or self.kernel.size(d) for op, d in self.kernel.loops.items()}
        columns = {self.mma_axes[op].n: microkernel.tile[1] for op, microkernel in products.items()}
        padded = {
            d: n
            for d, n in columns.items()
            if d not in self.widths and d not in self.loop_tiles and n > self.kernel.size(d)
        }
        return Cuts(
            self.widths,
            {d: n for d, n in blocks.items() if n is not None},
            tiles,
            dict(products),
            self.pipeline,
            plan.raster,
            padded,
            schedule=plan.order,
            overlap=plan.overlap,
        )

    # -- what the program is -------------------------------------------------------------------------------

    @property
    def pipeline(self) -> Pipeline:
        """The plan's statement `producer ...` as a Pipeline: waves, registers per lane, stages; there must be one."""
        assert self.plan.pipeline is not None
        return self.plan.pipeline

    @cached_property
    def loop_tiles(self) -> dict[Expr, int]:
        """The loops around the MMAs, such as attention's loop over keys: {dimension: tile size in elements}.

        Loops of the program that become the K loop of an MMA are left out. A loop becomes a K loop if its tile size
        does not change the result, and it either only adds MMAs or has no tile size from the author.
        """
        kernel = self.kernel
        stays = {
            op: d
            for op, d in kernel.loops.items()
            if not (op in kernel.free and (adds_products(op) or str(d) not in kernel.stated))
        }
        return {d: tile_of_loop(kernel, op, self.axes[d]) for op, d in stays.items()}

    def width(self, d: Expr) -> int:
        """Return the extent of `d` that is computed at a time, in elements.

        It is the extent of a task (one workgroup's tile) if the grid splits `d`; else the loop tile if a loop is over
        `d`; else the whole extent of `d`.
        """
        return self.widths.get(d) or self.loop_tiles.get(d) or self.kernel.size(d)

    @cached_property
    def mma_axes(self) -> dict[Op, Axes]:
        """{mma operation: Axes, its dimensions M, N and K}, for every MMA of the kernel.

        If an MMA has several row dimensions, M is the last one with more than one element in a task (one workgroup's
        tile). Raises an error for an MMA that can have no accumulator tile.
        """
        axes_of: dict[Op, Axes] = {}
        for op in self.kernel.products.values():
            product_axes = axes_in(op, self.width)
            if isinstance(product_axes, str):
                raise refused(self.pipeline, product_axes)
            axes_of[op] = product_axes
        return axes_of

    def _why_not_chained(self) -> str:
        """Return text: why this kernel's MMAs form no chain; empty if they form one.

        In a chain, values between MMAs stay in registers, as in attention.
        """
        kernel = self.kernel
        axes = chained_axes(kernel.program, kernel.sizes, kernel.size, kernel.free)
        return axes if isinstance(axes, str) else ""

    def _mma_statements(self) -> list[tuple[ProductUnit, Op]]:
        """Return [(the plan's statement for an MMA, the mma operation)] for every MMA of this kernel, in order.

        Raise an error for an MMA without a statement, and for a statement that names no MMA of the kernel.
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
        """Raise an error for a pipeline that the machine cannot run, and for a statement that this plan cannot have.

        Such statements are `waves` (the pipeline states the number of waves), and those that only a plan with halo
        tiles (tiles with their surroundings) can have: `halo stages`, a statement that places a value, and `loops`.
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

        `statement` is the plan's line for `op`. Raise an error that quotes it if it names no atom or an unknown one, if
        the atom reads no operand from shared memory, or if it cannot compute `op` with this tile, this K step or these
        waves.
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
        blocks = op.attrs.get("blocks", 1)
        if atom.slab is None:
            raise refused(statement, f"{atom.name} reads no operand from shared memory")
        self._check_atom(statement, op, Microkernel(atom, rows, columns, transposed=statement.transposed))
        k_step_rows = self._k_step_rows(statement, op, atom)
        operand_a = (self.mma_axes[op].transposed if statement.transposed else self.mma_axes[op]).factors(op)[0]
        if (
            Microkernel(atom, rows, columns).held_a
            and self._is_read(operand_a)
            and (k_step_rows or not self.loop_tiles)
        ):
            raise refused(statement, f"{atom.name} has A in registers, and A changes with every step of the loop")
        microkernel = Microkernel(
            atom,
            rows,
            columns,
            groups_of(self.pipeline, statement, atom, machine, len(self.kernel.products)),
            at_once=k_step_rows == 0,
            transposed=statement.transposed,
            blocks=blocks,
            slabs=max(1, k_step_rows),
            taps=self._k_step_taps(statement, op, atom) if k_step_rows else (),
        )
        check_blocks(
            statement, microkernel, self.kernel.size(self.mma_axes[op].n), self.kernel.size(self.mma_axes[op].k)
        )
        check_sharing(self.pipeline, statement, microkernel)
        return microkernel

    def _k_step_rows(self, statement: ProductUnit, op: Op, atom: MultiplyAtom) -> int:
        """Return the length of a K step of the mma `op`, in rows of shared memory; 0 if `op` has no K loop of its own.

        A row is `atom.slab` elements of K, side by side as the atom reads them. At 0, all of K, or of its tile in a
        loop around the MMAs, lies in shared memory at once. A K step is the loop tile that K's axis states; all of K if
        it states none and filter taps are reduced too; one row if the plan has no axis of K. Raise an error, which
        quotes `statement` (the plan's line for `op`), if the K step is no whole number of rows or is longer than K.
        """
        axes, row = self.mma_axes[op], atom.slab or 1
        if axes.k in self.loop_tiles:
            return 0
        if axes.k not in self.axes:  # an expression of sizes, of which a plan has no axis
            return 1
        step = loop_tile_size(self.axes[axes.k])
        several = any(self.kernel.size(d) > 1 for d in axes.deep)
        if step is not None and step >= self.kernel.size(axes.k) and self.loop_tiles and not several:
            return 0
        if step is None and several:  # all of K, for one tap after the other
            step = -(-self.kernel.size(axes.k) // row) * row
        return 0 if step is None else rows_in_k_step(self.axes[axes.k], step, self.kernel.size(axes.k), statement, row)

    def _k_step_taps(self, statement: ProductUnit, op: Op, atom: MultiplyAtom) -> tuple[int, ...]:
        """Return the extents of a K step along reduction dimensions besides K, such as filter taps; () if all are 1.

        An extent is the loop tile that the plan's axis states; all of the dimension if the axis states none; 1 if the
        plan has no axis of it. Raise an error if an extent does not divide its dimension, or is above 1 although the
        atom can read only one tap at a time; the latter quotes `statement`, the plan's line for the mma `op`.
        """
        taps = []
        for d in self.mma_axes[op].deep:
            extent, axis = self.kernel.size(d), self.axes.get(d)
            taps.append(1 if axis is None else loop_tile_size(axis) or extent)
            if extent % taps[-1]:
                raise refused(axis, f"steps of {taps[-1]} do not divide its {extent}")
            if taps[-1] > 1 and (op.attrs.get("blocks", 1) > 1 or Microkernel(atom, 1, 1).held_a):
                raise refused((axis, statement), f"{atom.name} reads one place of {d} after the other: `loop 1`")
        return tuple(taps) if any(n > 1 for n in taps) else ()

    def _check_atom(self, statement: ProductUnit, op: Op, microkernel: Microkernel) -> None:
        """Raise an error unless the microkernel's atom can take the operands of the mma `op`.

        The atom must take the types of operands and accumulator, and each operand as it lies in memory (contiguous
        along K or not). It must not round more than `op` allows. The error quotes `statement`, the plan's line for
        `op`.
        """
        machine, axes = self.kernel.machine, microkernel.oriented(self.mma_axes[op])
        types = types_of(op, axes.swapped, machine)
        k_contiguous = [is_contiguous_along(x, axes.k, self.kernel.program) for x in axes.factors(op)]
        fitting = shared_atoms(machine, types, (k_contiguous[0], k_contiguous[1]), precision_of(op), microkernel.held_a)
        if microkernel.atom not in fitting:
            names = shown(", ".join(x.name for x in fitting) or "none", NAMES)
            raise refused(statement, f"the atoms for {types[0]} by {types[1]} that lie so are {names}")

    def _resident_registers(self, products: Mapping[Op, Microkernel]) -> int:
        """Return the number of registers per lane that hold A operands over a whole loop around the MMAs.

        It is the sum over the MMAs whose atom takes A from registers and whose A is read from memory; each counts all
        of K. It is 0 if there are none. `products` maps each MMA to its microkernel.
        """
        registers, word = 0, self.kernel.machine.register_file.word_bits
        for op, microkernel in products.items():
            axes = microkernel.oriented(self.mma_axes[op])
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
        """True if an operand of an MMA is itself the result of a read of memory, with no operation between."""
        op = self.kernel.program.makers().get(operand)
        return op is not None and op.name == "read"

    def _check_loop_tiles(self) -> None:
        """Raise an error if the plan states a loop over a dimension that this kernel has no loop over.

        The kernel has loops over the dimensions in `loop_tiles`, over the reduction dimensions of MMAs, and over an N
        that the grid splits. A stated loop tile as long as the extent of a task (one workgroup's tile) is no error.
        """
        iterated = {*self.loop_tiles, *(d for axes in self.mma_axes.values() for d in (axes.k, *axes.deep))}
        iterated |= {axes.n for axes in self.mma_axes.values() if axes.n in self.widths}
        for d, axis in self.axes.items():
            loop = loop_tile_size(axis)
            if loop is not None and d not in iterated and loop < min(self.width(d), self.kernel.size(d)):
                raise refused(axis, f"no loop iterates over {d}: a task has all of its part")

    def _check_tile(self, op: Op, microkernel: Microkernel) -> None:
        """Raise an error unless the accumulator tile of the mma `op` is exactly a task's extents along M and N.

        A task is one workgroup's tile. If a loop around the MMAs is over M or N, the tile must have the loop tile's
        extent instead. Along N there are two exceptions: a task may loop over whole accumulator tiles, and the tile may
        be wider than an N that is not split. Dimensions of the accumulator besides M and N must have one element in a
        task.
        """
        axes, size = self.mma_axes[op], self.kernel.size
        for d in axes.around:
            if self.width(d) > 1:
                raise refused(self.axes[d], f"a task has one of {d}: beside {axes.m} and {axes.n} an MMA has one")
        rows, columns = microkernel.tile
        statement = next(statement for statement, product in self._mma_statements() if product is op)
        if self.widths.get(axes.m, rows) != rows or (axes.m in self.loop_tiles and self.loop_tiles[axes.m] != rows):
            raise refused(self.axes[axes.m], f"a task has the rows of `{statement}`: {rows}")
        if size(axes.m) == 1 and axes.m not in self.widths and axes.m in self.axes:
            raise refused(
                self.axes[axes.m], f"a task has the rows of `{statement}`: `task {rows}`, and {axes.m} in `grid`"
            )
        n = axes.n
        if n in self.loop_tiles and self.loop_tiles[n] != columns:
            raise refused(statement, f"the loop over {n} has tiles of {self.loop_tiles[n]}")
        if n in self.widths:
            n_tile = loop_tile_size(self.axes[n]) or self.widths[n]
            if n_tile != columns or self.widths[n] % columns:
                raise refused(self.axes[n], f"a task has the columns of `{statement}`, {columns}, or a loop of such")
        elif n not in self.loop_tiles and columns < size(n):
            raise refused(statement, f"a task has all {size(n)} of {n}")
