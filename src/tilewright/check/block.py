"""Checks of a block program against its machine, beyond what `verify` checks at every level.

They compare distributions with the threads that run them, MMA operands with what the atom reads, copies with their
atoms' memory spaces, shared memory with its capacity, and channels with roles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tilewright.algebra import ComposedLayout
from tilewright.algebra.expr import Const
from tilewright.analysis.distribution import Placement, operand_layout, placed, placement
from tilewright.analysis.thread_layout import frames_of
from tilewright.analysis.views import Places, written
from tilewright.check.arrangement import why_misarranged
from tilewright.check.cluster import check_cluster
from tilewright.check.copies import answer, never_runs
from tilewright.check.single_writes import check_written_once
from tilewright.check.symbolic import check_open
from tilewright.errors import LayoutError, ProgramError
from tilewright.ir.binding import open_parameters
from tilewright.ir.core import Block, Op, Program, Value, walk_block
from tilewright.ir.printer import op_text
from tilewright.ir.tensors import RegisterType, TensorType, numbers
from tilewright.ir.verifier import verify
from tilewright.machine import Condition, Machine, MemoryOperand, MultiplyAtom, RegisterOperand, Space

Array = np.ndarray[Any, np.dtype[Any]]


def check(program: Program, machine: Machine | None) -> tuple[Condition, ...]:
    """Check a block program for `machine` (None: no machine); raise a ProgramError at the first error.

    Return the conditions on open parameters (sizes known only at the call) under which the copy atoms of the program
    are valid, without duplicates; () if there are none. Parameters that are bound to numbers need no condition.
    """
    verify(program)
    if open_parameters(program):
        check_open(program, machine)
    checker = _Checker(program, machine)
    checker.run()
    return tuple(dict.fromkeys(checker.conditions))


class _Checker:
    """The checks of one block program for one machine; `conditions` collects those on open parameters."""

    def __init__(self, program: Program, machine: Machine | None):
        self.program, self.machine = program, machine
        self.makers = program.makers()
        self.places = Places(program, self.makers)
        self.conditions: list[Condition] = []

    def run(self) -> None:
        """Run all checks: of roles, of every operation, of shared memory, channels, clusters and copy atoms. Raise a
        ProgramError at the first error.

        Append the conditions of copy atoms to `self.conditions`.
        """
        roles = [op for op in self.program.body.ops if op.name == "role"]
        names = [op.attrs["name"] for op in roles]
        for op in roles:
            if names.count(op.attrs["name"]) > 1:
                raise ProgramError(f"there are two roles {op.attrs['name']}", op.loc)
        record = self.program.record("waves")
        total = sum(numbers((op.attrs["waves"],), "waves")[0] for op in roles)
        if not roles:
            total = 1 if record is None else numbers((record.attrs["count"],), "waves")[0]
        if self.machine is not None and total > self.machine.waves:
            shares = ", ".join(f"{op.attrs['name']} {op.attrs['waves']}" for op in roles)
            problem = f"{total} waves{f' ({shares})' if roles else ''}"
            raise ProgramError(f"{problem}; a workgroup of {self.machine.name} has at most {self.machine.waves}")
        for op, role, waves in self._walk(self.program.body, "", total):
            try:
                self._check(op, role, waves, names)
            except (LayoutError, LookupError) as fault:
                raise ProgramError(f"{op_text(op)}: {fault}", op.loc) from None
            except ProgramError as fault:
                raise type(fault)(fault.what, fault.location or op.loc) from None
        self._check_memory()
        self._check_channels()
        check_cluster(self.program, self.machine, self.places)
        self._check_copy_atoms()

    def _walk(self, block: Block, role: str, waves: int) -> Iterator[tuple[Op, str, int]]:
        """Yield (operation, role name, number of waves that execute the operation together) for all operations in
        `block`, in program order; nested operations follow the operation that contains them.

        The role name is "" outside of roles. `role` and `waves` apply to `block`; inside a ping-pong loop the number of
        waves is halved. Raise a ProgramError at a role inside another block, and at a ping-pong loop of an odd number
        of waves.
        """
        for op in block.ops:
            yield op, role, waves
            inner_role, inner_waves = role, waves
            if op.name == "role":
                if role or block is not self.program.body:
                    raise ProgramError("roles stand on the outermost level of a program", op.loc)
                inner_role, inner_waves = op.attrs["name"], numbers((op.attrs["waves"],), "waves")[0]
            elif op.attrs.get("overlap") == "pingpong":
                if waves % 2:
                    raise ProgramError(f"pingpong needs an even number of waves, not {waves}", op.loc)
                inner_waves = waves // 2
            for inner_block in op.blocks:
                yield from self._walk(inner_block, inner_role, inner_waves)

    def _check(self, op: Op, role: str, waves: int, names: list[str]) -> None:
        """Raise an error (ProgramError, LayoutError or LookupError) if the operation `op` is invalid. Nested operations
        are not checked.

        `waves` waves of the role `role` execute `op` together; the role "" stands for no role. `names` are the names of
        all roles. No operation may write an element twice. Allocations, copies, maps, MMAs, loops and operations of
        channels have further checks.
        """
        check_written_once(op, self.places)
        match op.name:
            case "alloc":
                self._check_alloc(op, waves)
            case "copy":
                self._check_copy(op)
            case "map" | "convert_layout":
                for value in op.operands[1:]:
                    if op.name == "map" and self.places.may_lie_outside(value):
                        raise ProgramError(
                            f"map: %{value.name} may lie outside its tensor; copy it first, with an `else`"
                        )
                self._check_lanes(op)
            case "mma":
                self._check_mma(op)
            case "for" | "tasks":
                self._check_deferred(op)
            case "channel" if names:
                for side in ("producer", "consumer"):
                    if op.attrs[side] not in names:
                        raise ProgramError(f"channel: there is no role {op.attrs[side]}; there are {', '.join(names)}")
            case "acquire" | "commit" | "wait" | "release" if role:
                side = "producer" if op.name in ("acquire", "commit") else "consumer"
                expected_role = self.makers[op.operands[0]].attrs[side]
                if expected_role != role:
                    raise ProgramError(f"{op.name} in role {role}: the {side} of this channel is {expected_role}")

    # -- registers ------------------------------------------------------------------------------------

    def _check_alloc(self, op: Op, waves: int) -> None:
        """Raise a ProgramError if the `alloc` operation `op` is invalid, as follows.

        A tensor in memory must not need more bytes than `op` reserves, if it states a number. A register tensor must be
        distributed over exactly the threads of the `waves` waves that execute `op`; without a machine, the number of
        threads is not checked.
        """
        kind = op.attrs["type"]
        if isinstance(kind, TensorType):
            size, reserved = kind.room() * kind.dtype.numpy.itemsize, op.attrs.get("bytes")
            if reserved is not None and size.hi > numbers((reserved,), "bytes")[0]:
                raise ProgramError(f"alloc of {reserved} bytes is short: {kind} takes {size}")
            return
        distribution = placement(kind, self.machine)
        lanes = None if self.machine is None else self.machine.lanes
        if lanes is not None and distribution.threads != lanes * waves:
            raise ProgramError(
                f"{kind} is spread over {distribution.threads} threads; here {waves} waves of {lanes} lanes, "
                f"{waves * lanes} threads, work together"
            )

    def _placement(self, value: Value) -> Placement | None:
        """Return the placement (which thread holds which element) of the register tensor `value`; None if `value` is in
        memory, or its type states no distribution.
        """
        kind = value.type
        if isinstance(kind, RegisterType) and kind.distribution is not None:
            return placement(kind, self.machine)
        return None

    def _check_lanes(self, op: Op) -> None:
        """Raise a ProgramError if two register operands of the operation `op` have different distributions: each thread
        works on the elements that it holds.

        `convert_layout` is exempt. Operands in memory, and registers without a distribution, are not compared.
        """
        if op.name == "convert_layout":
            return
        placements = [(v, p) for v in op.operands if (p := self._placement(v)) is not None]
        for value, other in placements[1:]:
            first, expected = placements[0]
            if (expected.elements.shape, expected.shape) != (other.elements.shape, other.shape) or np.any(
                expected.elements != other.elements
            ):
                _raise_first_difference(expected, other, f"%{first.name}", f"%{value.name}")

    # -- MMA ------------------------------------------------------------------------------------------------

    def _check_mma(self, op: Op) -> None:
        """Raise a ProgramError if an operand of the `mma` operation `op` does not fit the atom that `op` names, in
        element type, shape, memory space or distribution over threads. Raise one too if there is no machine.

        On machines with one wave in a workgroup (CPUs), an operand that the atom takes from registers may be in memory.
        """
        if self.machine is None:
            raise ProgramError(f"the program names no machine, so {op.attrs['atom']} has no meaning")
        atom = self.machine.multiply_atom(op.attrs["atom"])
        c, a, b = op.operands
        for value, name in ((c, "c"), (a, "a"), (b, "b")):
            unit = getattr(atom, name)
            if value.type.dtype is not unit.dtype:
                raise ProgramError(f"mma: {atom.name} takes {unit.dtype} as {name}, not {value.type.dtype}")
            shape = numbers(value.type.shape, "mma")
            if shape[0] % unit.rows or shape[1] % unit.columns:
                raise ProgramError(
                    f"mma: {name} is {shape[0]}x{shape[1]}, which is not made of the {unit.rows}x{unit.columns} "
                    f"of {atom.name}"
                )
        held = {
            name: distribution
            for value, name in ((c, "c"), (a, "a"), (b, "b"))
            if isinstance(value.type, RegisterType) and (distribution := self._placement(value)) is not None
        }
        why = why_misarranged(atom, held) if "c" in held else None
        is_arrangement = "c" in held and why is None
        waves = _wave_arrangement(c)
        for value, name in ((c, "c"), (a, "a"), (b, "b")):
            unit = getattr(atom, name)
            if isinstance(value.type, RegisterType):
                if not is_arrangement:
                    self._check_fragment(value, name, atom, waves, why)
            elif isinstance(unit, MemoryOperand):
                self._check_addressed(value, name, unit, atom)
            elif self.machine.waves != 1:
                raise ProgramError(f"mma: {atom.name} takes {name} from registers; copy it there first")

    def _check_fragment(
        self, value: Value, name: str, atom: MultiplyAtom, waves: tuple[int, ...], why: str | None
    ) -> None:
        """Raise a ProgramError if the register tensor `value`, an operand of an `mma`, is not distributed as `atom`
        needs it, or if `atom` reads this operand from memory.

        `name` is "a", "b" or "c"; `waves` is the grid of waves (rows, columns). `why` is the reason why the MMA's
        tensors do not fit the atom in any arrangement (None: unknown); the message contains it. A tensor without a
        distribution passes.
        """
        operand: Any = getattr(atom, name)
        if not isinstance(operand, RegisterOperand):
            raise ProgramError(f"mma: {atom.name} reads {name} from memory itself, not from registers")
        held = self._placement(value)
        if held is None:
            return
        needed = placed(operand_layout(atom, name, held.shape, waves), held.shape)
        if (
            held.elements.shape != needed.elements.shape
            and why is not None
            and value.type.distribution.layout is not None
        ):
            raise ProgramError(f"mma: {why}; convert_layout is the only way between two distributions")
        if held.elements.shape != needed.elements.shape or np.any(held.elements != needed.elements):
            _raise_first_difference(held, needed, f"%{value.name}", f"{atom.name}.{name}")

    def _check_addressed(self, value: Value, name: str, operand: MemoryOperand, atom: MultiplyAtom) -> None:
        """Raise a ProgramError if `value`, which an `mma` reads from memory, is not in shared memory with the layout
        and swizzle of `operand`.

        `name` is "a" or "b"; `operand` is the description of this operand in `atom`. The start address, and the stride
        between groups of 8 rows, may differ from the atom's layout.
        """
        if value.type.space != "shared":
            raise ProgramError(f"mma: {atom.name} reads {name} from shared memory, not from {value.type.space}")
        swizzle = operand.layout.outer if isinstance(operand.layout, ComposedLayout) else None
        layout = operand.layout.layout if isinstance(operand.layout, ComposedLayout) else operand.layout
        shape = numbers(value.type.shape, "mma")
        root, offsets = self.places.offsets(value, tuple(np.indices(shape)))
        if root.swizzle != swizzle:
            raise ProgramError(
                f"mma: {atom.name} reads {name} with the swizzle {swizzle}; %{value.name} has {root.swizzle}"
            )
        table = np.asarray(layout(*np.indices((operand.rows, operand.columns))))
        tiles = offsets.reshape(shape[0] // operand.rows, operand.rows, shape[1] // operand.columns, operand.columns)
        boxes: Array = tiles.swapaxes(1, 2).reshape(-1, operand.rows, operand.columns)
        boxes = boxes - boxes[:, :1, :1]
        others = np.flatnonzero((boxes != boxes[0]).any((1, 2)))
        if not all(_equal_up_to_group_stride(boxes[i], table) for i in (0, *others)):
            raise ProgramError(
                f"mma: {atom.name} reads {name} by {layout} (before the swizzle), with any stride between groups of 8 "
                f"rows of 128 bytes; the places of %{value.name} are others"
            )

    # -- copies, memory, channels ---------------------------------------------------------------------------

    def _check_copy(self, op: Op) -> None:
        """Raise a ProgramError if the `copy` operation `op` may read out of bounds and has no `else`, or if source and
        target are registers with different distributions.

        If `op` names an atom, there must be a machine, and the atom must copy between the memory spaces of source and
        target. With an asynchronous atom, source or target must be a stage of a channel.
        """
        source, target = op.operands
        if self.places.may_lie_outside(source) and "otherwise" not in op.attrs:
            raise ProgramError(f"copy: %{source.name} may lie outside its tensor; say what to read there, as in else 0")
        self._check_lanes(op)
        if "by" not in op.attrs:
            return
        if self.machine is None:
            raise ProgramError(f"the program names no machine, so {op.attrs['by']} has no meaning")
        atom = self.machine.copy_atom(op.attrs["by"])
        for value, atom_space, word in ((source, atom.source, "from"), (target, atom.target, "to")):
            space = "register" if isinstance(value.type, RegisterType) else value.type.space
            if space != atom_space and not (atom_space == "global" and space in atom.alike):
                raise ProgramError(f"copy: {atom.name} copies {word} {atom_space}, not {word} {space}")
        if atom.asynchronous and not (self.places.in_stage(source) or self.places.in_stage(target)):
            raise ProgramError(
                f"copy: {atom.name} goes on by itself; one side must be a stage of a channel, whose commit or release "
                "sees to its end"
            )

    def _check_copy_atoms(self) -> None:
        """Raise a ProgramError if a copy names an atom that does not support it. Append the conditions on open
        parameters (sizes known only at the call) under which atoms support their copies to `self.conditions`.

        Copies in loops without iterations are skipped. Without a machine nothing is checked.
        """
        if self.machine is None:
            return
        never_run, open_names = never_runs(self.program), {s.name for s in open_parameters(self.program)}
        for op in self.program.walk():
            if op.name == "copy" and "by" in op.attrs and op not in never_run:
                try:
                    self.conditions += answer(op, self.machine, self.places, open_names).conditions
                except ProgramError as fault:
                    raise type(fault)(fault.what, fault.location or op.loc) from None

    def _check_memory(self) -> None:
        """Raise a ProgramError if the program allocates more shared memory than a workgroup of the machine has. Without
        a machine nothing is checked.
        """
        fault = None if self.machine is None else past_shared_memory(self.program, self.machine)
        if fault is not None:
            raise fault

    def _check_deferred(self, op: Op) -> None:
        """Raise a ProgramError if the `finally` block of the loop `op` is deferred and writes registers that are
        allocated outside of the block. A deferred block works on a copy of these registers, so that the writes would be
        lost.

        A loop without `overlap=defer` passes.
        """
        if op.attrs.get("overlap") != "defer":
            return
        local_values = {r for inner in walk_block(op.blocks[1]) for r in inner.results}
        for inner in walk_block(op.blocks[1]):
            for value in written(inner):
                root = self.places.root(value)
                if isinstance(root.type, RegisterType) and root not in local_values:
                    raise ProgramError(
                        f"{op_text(inner)}: the deferred end works on a copy of %{root.name}; what it writes is lost",
                        inner.loc,
                    )

    def _check_channels(self) -> None:
        """Raise a ProgramError if a channel has no acquire, no commit or no wait. Raise one too if a channel has no
        release, and a single worker that executes all tasks would acquire it more often than it has stages.

        Channels that no operation uses are skipped.
        """
        used: dict[Value, set[str]] = {}
        for op in self.program.walk():
            if op.name in ("acquire", "commit", "wait", "release"):
                used.setdefault(op.operands[0], set()).add(op.name)
        for value, op in self.makers.items():
            if op.name != "channel":
                continue
            operations = used.get(value)
            if operations is None:
                continue  # the loops that would use it never run
            for needed, why in (
                ("acquire", "nobody fills it"),
                ("commit", "what is acquired is never handed on"),
                ("wait", "nobody takes what is committed"),
            ):
                if needed not in operations:
                    raise ProgramError(f"%{value.name} has no {needed}: {why}", op.loc)
            stages = numbers((op.attrs["stages"],), "stages")[0]
            fills = 0 if "release" in operations else _count_acquires(self.program.body, value, 1)
            if fills > stages:
                raise ProgramError(
                    f"%{value.name} has no release: it is filled {fills} times where one worker does all tasks, and "
                    f"has {stages} stage{'s' * (stages != 1)}",
                    op.loc,
                )


def past_shared_memory(program: Program, machine: Machine) -> ProgramError | None:
    """Return, not raise, a ProgramError if `program` allocates more shared memory than a workgroup of `machine` has;
    None if it fits, or if the machine has no limit.

    Tensors that are kept in registers do not count. Tensors of a ping-pong loop count twice.
    """
    space, total = machine.spaces["shared"], 0
    if space.bytes is None:
        return None
    allocations = [pair for pair in _allocations(program.body, 1) if isinstance(pair[0].attrs["type"], TensorType)]
    if _surely_fits(allocations, space):
        return None
    in_registers = frames_of(program, Places(program, program.makers()), machine).tensors
    for op, copies in allocations:
        if op.results[0] not in in_registers:
            total += copies * _aligned_bytes(op, space)
            if total > space.bytes:
                needed = f"{total} bytes are needed up to {op_text(op)}; {machine.name} has {space.bytes}"
                return ProgramError(f"shared memory: {needed}", op.loc)
    return None


def _surely_fits(allocations: list[tuple[Op, int]], space: Space) -> bool:
    """True if tensors fit in `space`, shared memory of limited size, even if none of them is kept in registers.

    `allocations` are pairs (`alloc` operation, number of copies). It is False if an extent is known only at the call.
    """
    if not all(isinstance(e, Const) for op, _ in allocations for e in op.attrs["type"].expressions()):
        return False
    return sum(copies * _aligned_bytes(op, space) for op, copies in allocations) <= (space.bytes or 0)


def _aligned_bytes(op: Op, space: Space) -> int:
    """Return the bytes that the tensor of the `alloc` operation `op` takes in `space`, rounded up to the alignment of
    `space`.
    """
    kind: TensorType = op.attrs["type"]
    return -(-kind.cosize() * kind.dtype.numpy.itemsize // space.alignment) * space.alignment


def _allocations(block: Block, factor: int) -> Iterator[tuple[Op, int]]:
    """Yield (`alloc` operation, number of copies of its tensor that exist at once) for all allocations in `block`, in
    program order, nested ones too.

    `factor` is the number of copies for operations directly in `block`. It doubles inside a ping-pong loop, where each
    half of the waves has a copy.
    """
    for op in block.ops:
        if op.name == "alloc":
            yield op, factor
        inner_factor = 2 * factor if op.attrs.get("overlap") == "pingpong" else factor
        for inner_block in op.blocks:
            yield from _allocations(inner_block, inner_factor)


def _count_acquires(block: Block, channel: Value, runs: int) -> int:
    """Return the least number of times that `block` acquires `channel`, if one workgroup executes all tasks.

    `runs` is the number of times that `block` itself runs. Blocks of `if` and `while`, and loops whose iteration
    count is unknown, count as never run.
    """
    total = 0
    for op in block.ops:
        if op.name == "acquire" and op.operands[0] is channel:
            total += runs
        if op.name in ("if", "while"):
            continue
        inner_runs = runs
        for loop_range in op.attrs.get("ranges", ()):
            inner_runs *= loop_range.trip_count or 0
        for inner_block in op.blocks:
            total += _count_acquires(inner_block, channel, inner_runs)
    return total


def _wave_arrangement(c: Value) -> tuple[int, ...]:
    """Return (waves along rows, waves along columns): the grid of waves over which the accumulator `c` is distributed;
    (1, 1) if its type does not state a grid.
    """
    distribution = c.type.distribution
    if distribution is not None and distribution.waves is not None:
        return numbers(distribution.waves, "waves")
    return (1, 1)


def _raise_first_difference(mine: Placement, other: Placement, name: str, wanted: str) -> None:
    """Raise a ProgramError that shows how two distributions differ: in their numbers of threads or of values per
    thread, or else at the first (thread, value) that holds different elements.

    `mine` is the placement of the tensor `name`; `other` is the placement of the tensor or operand `wanted`.
    """
    if mine.elements.shape != other.elements.shape:
        raise ProgramError(
            f"{name} is spread over {mine.threads} threads with {mine.values} values each, {wanted} over "
            f"{other.threads} with {other.values}; convert_layout is the only way between two distributions"
        )
    thread, value = (int(i[0]) for i in np.nonzero(mine.elements != other.elements))
    held, needed = (
        tuple(int(c) for c in np.unravel_index(int(placement.elements[thread, value]), placement.shape, order="F"))
        for placement in (mine, other)
    )
    raise ProgramError(
        f"thread {thread} holds element {held} of {name} as its value {value}, where {wanted} has {needed}; "
        "convert_layout is the only way between two distributions"
    )


def _equal_up_to_group_stride(offsets: Array, table: Array) -> bool:
    """True if the element offsets `offsets` and `table` (arrays over rows and columns) are equal, or differ only in the
    stride between groups of eight along the slower axis.

    Both arrays begin at offset 0. The slower axis is that with the larger stride in `table`. In `offsets`, the stride
    between groups must be constant and a multiple of 64 elements, and the extent along the axis a multiple of 8.
    """
    if np.array_equal(offsets, table):
        return True
    slow_axis = 0 if table[1, 0] > table[0, 1] else 1
    offsets, table = np.moveaxis(offsets, slow_axis, 0), np.moveaxis(table, slow_axis, 0)
    if offsets.shape[0] % 8:
        return False
    groups, table_groups = offsets.reshape(-1, 8, offsets.shape[1]), table.reshape(-1, 8, table.shape[1])
    groups_equal = np.array_equal(groups - groups[:, :1, :1], table_groups - table_groups[:, :1, :1])
    group_strides = np.diff(groups[:, 0, 0])
    return groups_equal and (
        group_strides.size == 0 or (bool(np.all(group_strides == group_strides[0])) and int(group_strides[0]) % 64 == 0)
    )
