"""The checks of a block program that need its machine: what `verify` of the levels in general cannot know.

Distributions against the threads that run them, factors of products against what their atom reads, copies against
their atoms' spaces, shared memory against what there is, channels against roles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tilewright.algebra import ComposedLayout
from tilewright.check.arrangement import misarranged
from tilewright.check.cluster import check_cluster
from tilewright.check.copies import answer, never_runs
from tilewright.check.distribution import Placement, operand_layout, placed, placement
from tilewright.check.frames import frames_of
from tilewright.check.once import check_written_once
from tilewright.check.places import Places, written
from tilewright.check.symbolic import check_open
from tilewright.errors import LayoutError, ProgramError
from tilewright.ir.binding import open_parameters
from tilewright.ir.core import Block, Op, Program, Value, walk_block
from tilewright.ir.printer import op_text
from tilewright.ir.tensors import RegisterType, TensorType, numbers
from tilewright.ir.verifier import verify
from tilewright.machine import Condition, Machine, MemoryOperand, MultiplyAtom, RegisterOperand

Array = np.ndarray[Any, np.dtype[Any]]


def check(program: Program, machine: Machine | None) -> tuple[Condition, ...]:
    """Raises a ProgramError at the first thing that is wrong with a program whose parameters are bound, or open.

    The result are the conditions on open parameters under which the atoms of its copies do what they are asked.
    """
    verify(program)
    if open_parameters(program):
        check_open(program, machine)
    checker = _Checker(program, machine)
    checker.run()
    return tuple(dict.fromkeys(checker.conditions))


class _Checker:
    def __init__(self, program: Program, machine: Machine | None):
        self.program, self.machine = program, machine
        self.made = program.makers()
        self.places = Places(program, self.made)
        self.conditions: list[Condition] = []

    def run(self) -> None:
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
            said = f"{total} waves{f' ({shares})' if roles else ''}"
            raise ProgramError(f"{said}; a workgroup of {self.machine.name} has at most {self.machine.waves}")
        for op, role, waves in self._walk(self.program.body, "", total):
            try:
                self._check(op, role, waves, names)
            except (LayoutError, LookupError) as fault:
                raise ProgramError(f"{op_text(op)}: {fault}", op.loc) from None
            except ProgramError as fault:
                raise type(fault)(fault.what, fault.location or op.loc) from None
        self._check_memory()
        self._check_channels(names)
        check_cluster(self.program, self.machine, self.places)
        self._ask_copy_atoms()

    def _walk(self, block: Block, role: str, waves: int) -> Iterator[tuple[Op, str, int]]:
        """Every operation, with its role and the number of waves that do it together."""
        for op in block.ops:
            yield op, role, waves
            inner_role, inner = role, waves
            if op.name == "role":
                if role or block is not self.program.body:
                    raise ProgramError("roles stand on the outermost level of a program", op.loc)
                inner_role, inner = op.attrs["name"], numbers((op.attrs["waves"],), "waves")[0]
            elif op.attrs.get("overlap") == "pingpong":
                if waves % 2:
                    raise ProgramError(f"pingpong needs an even number of waves, not {waves}", op.loc)
                inner = waves // 2
            for b in op.blocks:
                yield from self._walk(b, inner_role, inner)

    def _check(self, op: Op, role: str, waves: int, names: list[str]) -> None:
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
                named = self.made[op.operands[0]].attrs[side]
                if named != role:
                    raise ProgramError(f"{op.name} in role {role}: the {side} of this channel is {named}")

    # -- registers ------------------------------------------------------------------------------------

    def _check_alloc(self, op: Op, waves: int) -> None:
        kind = op.attrs["type"]
        if isinstance(kind, TensorType):
            size, given = kind.room() * kind.dtype.numpy.itemsize, op.attrs.get("bytes")
            if given is not None and size.hi > numbers((given,), "bytes")[0]:
                raise ProgramError(f"alloc of {given} bytes is short: {kind} takes {size}")
            return
        spread = placement(kind, self.machine)
        lanes = None if self.machine is None else self.machine.lanes
        if lanes is not None and spread.threads != lanes * waves:
            raise ProgramError(
                f"{kind} is spread over {spread.threads} threads; here {waves} waves of {lanes} lanes, "
                f"{waves * lanes} threads, work together"
            )

    def _placement(self, value: Value) -> Placement | None:
        """The placement of a register tensor; None for views, which are looked at when they run."""
        kind = value.type
        if isinstance(kind, RegisterType) and kind.distribution is not None:
            return placement(kind, self.machine)
        return None

    def _check_lanes(self, op: Op) -> None:
        """Element by element, each thread works on what it holds."""
        if op.name == "convert_layout":
            return
        found = [(v, p) for v in op.operands if (p := self._placement(v)) is not None]
        for value, other in found[1:]:
            first, mine = found[0]
            if (mine.elements.shape, mine.shape) != (other.elements.shape, other.shape) or np.any(
                mine.elements != other.elements
            ):
                _name_difference(mine, other, f"%{first.name}", f"%{value.name}")

    # -- products -------------------------------------------------------------------------------------------

    def _check_mma(self, op: Op) -> None:
        if self.machine is None:
            raise ProgramError(f"the program names no machine, so {op.attrs['atom']} has no meaning")
        atom = self.machine.multiply_atom(op.attrs["atom"])
        c, a, b = op.operands
        for value, name in ((c, "c"), (a, "a"), (b, "b")):
            wanted = getattr(atom, name)
            if value.type.dtype is not wanted.dtype:
                raise ProgramError(f"mma: {atom.name} takes {wanted.dtype} as {name}, not {value.type.dtype}")
            shape = numbers(value.type.shape, "mma")
            if shape[0] % wanted.rows or shape[1] % wanted.columns:
                raise ProgramError(
                    f"mma: {name} is {shape[0]}x{shape[1]}, which is not made of the {wanted.rows}x{wanted.columns} "
                    f"of {atom.name}"
                )
        held = {
            name: found
            for value, name in ((c, "c"), (a, "a"), (b, "b"))
            if isinstance(value.type, RegisterType) and (found := self._placement(value)) is not None
        }
        why = misarranged(atom, held) if "c" in held else None
        arranged = "c" in held and why is None
        waves = self._waves_of(c, atom)
        for value, name in ((c, "c"), (a, "a"), (b, "b")):
            wanted = getattr(atom, name)
            if isinstance(value.type, RegisterType):
                if not arranged:
                    self._check_fragment(value, name, atom, waves, why)
            elif isinstance(wanted, MemoryOperand):
                self._check_addressed(value, name, wanted, atom)
            elif self.machine.waves != 1:
                raise ProgramError(f"mma: {atom.name} takes {name} from registers; copy it there first")

    def _waves_of(self, c: Value, atom: MultiplyAtom) -> tuple[int, ...]:
        spread = c.type.distribution
        if spread is not None and spread.waves is not None:
            return numbers(spread.waves, "waves")
        return (1, 1)

    def _check_fragment(
        self, value: Value, name: str, atom: MultiplyAtom, waves: tuple[int, ...], why: str | None
    ) -> None:
        """Raises where a factor or sum is not spread as the atom has it; `why` says what is wrong with all of them."""
        wanted: Any = getattr(atom, name)
        if not isinstance(wanted, RegisterOperand):
            raise ProgramError(f"mma: {atom.name} reads {name} from memory itself, not from registers")
        mine = self._placement(value)
        if mine is None:
            return
        other = placed(operand_layout(atom, name, mine.shape, waves), mine.shape)
        if (
            mine.elements.shape != other.elements.shape
            and why is not None
            and value.type.distribution.layout is not None
        ):
            raise ProgramError(f"mma: {why}; convert_layout is the only way between two distributions")
        if mine.elements.shape != other.elements.shape or np.any(mine.elements != other.elements):
            _name_difference(mine, other, f"%{value.name}", f"{atom.name}.{name}")

    def _check_addressed(self, value: Value, name: str, wanted: MemoryOperand, atom: MultiplyAtom) -> None:
        """The instruction can only be told a start, and strides between groups of rows: the rest must be as it is."""
        if value.type.space != "shared":
            raise ProgramError(f"mma: {atom.name} reads {name} from shared memory, not from {value.type.space}")
        swizzle = wanted.layout.outer if isinstance(wanted.layout, ComposedLayout) else None
        inner = wanted.layout.layout if isinstance(wanted.layout, ComposedLayout) else wanted.layout
        shape = numbers(value.type.shape, "mma")
        root, found = self.places.offsets(value, tuple(np.indices(shape)))
        if root.swizzle != swizzle:
            raise ProgramError(
                f"mma: {atom.name} reads {name} with the swizzle {swizzle}; %{value.name} has {root.swizzle}"
            )
        table = np.asarray(inner(*np.indices((wanted.rows, wanted.columns))))
        parts = found.reshape(shape[0] // wanted.rows, wanted.rows, shape[1] // wanted.columns, wanted.columns)
        boxes: Array = parts.swapaxes(1, 2).reshape(-1, wanted.rows, wanted.columns)
        boxes = boxes - boxes[:, :1, :1]
        others = np.flatnonzero((boxes != boxes[0]).any((1, 2)))
        if not all(_same_in_groups(boxes[i], table) for i in (0, *others)):
            raise ProgramError(
                f"mma: {atom.name} reads {name} by {inner} (before the swizzle), with any stride between groups of 8 "
                f"rows of 128 bytes; the places of %{value.name} are others"
            )

    # -- copies, memory, channels ---------------------------------------------------------------------------

    def _check_copy(self, op: Op) -> None:
        source, target = op.operands
        if self.places.may_lie_outside(source) and "otherwise" not in op.attrs:
            raise ProgramError(f"copy: %{source.name} may lie outside its tensor; say what to read there, as in else 0")
        self._check_lanes(op)
        if "by" not in op.attrs:
            return
        if self.machine is None:
            raise ProgramError(f"the program names no machine, so {op.attrs['by']} has no meaning")
        atom = self.machine.copy_atom(op.attrs["by"])
        for value, mine, word in ((source, atom.source, "from"), (target, atom.target, "to")):
            space = "register" if isinstance(value.type, RegisterType) else value.type.space
            if space != mine and not (mine == "global" and space in atom.alike):
                raise ProgramError(f"copy: {atom.name} copies {word} {mine}, not {word} {space}")
        if atom.asynchronous and not (self.places.in_stage(source) or self.places.in_stage(target)):
            raise ProgramError(
                f"copy: {atom.name} goes on by itself; one side must be a stage of a channel, whose commit or release "
                "sees to its end"
            )

    def _ask_copy_atoms(self) -> None:
        """Each copy that names an atom is put to it, once the types of all operations are known to fit."""
        if self.machine is None:
            return
        idle, open_names = never_runs(self.program), {s.name for s in open_parameters(self.program)}
        for op in self.program.walk():
            if op.name == "copy" and "by" in op.attrs and op not in idle:
                try:
                    self.conditions += answer(op, self.machine, self.places, open_names).conditions
                except ProgramError as fault:
                    raise type(fault)(fault.what, fault.location or op.loc) from None

    def _check_memory(self) -> None:
        over = None if self.machine is None else past_shared_memory(self.program, self.machine)
        if over is not None:
            raise over

    def _check_deferred(self, op: Op) -> None:
        if op.attrs.get("overlap") != "defer":
            return
        own = {r for inner in walk_block(op.blocks[1]) for r in inner.results}
        for inner in walk_block(op.blocks[1]):
            for value in written(inner):
                root = self.places.root(value)
                if isinstance(root.type, RegisterType) and root not in own:
                    raise ProgramError(
                        f"{op_text(inner)}: the deferred end works on a copy of %{root.name}; what it writes is lost",
                        inner.loc,
                    )

    def _check_channels(self, names: list[str]) -> None:
        used: dict[Value, set[str]] = {}
        for op in self.program.walk():
            if op.name in ("acquire", "commit", "wait", "release"):
                used.setdefault(op.operands[0], set()).add(op.name)
        for value, op in self.made.items():
            if op.name != "channel":
                continue
            found = used.get(value)
            if found is None:
                continue  # the loops that would use it never run
            for needed, why in (
                ("acquire", "nobody fills it"),
                ("commit", "what is acquired is never handed on"),
                ("wait", "nobody takes what is committed"),
            ):
                if needed not in found:
                    raise ProgramError(f"%{value.name} has no {needed}: {why}", op.loc)
            stages = numbers((op.attrs["stages"],), "stages")[0]
            fills = 0 if "release" in found else _times(self.program.body, value, 1)
            if fills > stages:
                raise ProgramError(
                    f"%{value.name} has no release: it is filled {fills} times where one worker does all tasks, and "
                    f"has {stages} stage{'s' * (stages != 1)}",
                    op.loc,
                )


def past_shared_memory(program: Program, machine: Machine) -> ProgramError | None:
    """What is wrong with a program that allocates more shared memory than a workgroup of a machine has."""
    space, total = machine.spaces["shared"], 0
    if space.bytes is None:
        return None
    held = frames_of(program, Places(program, program.makers()), machine).tensors
    for op, factor in _allocations(program.body, 1):
        kind = op.attrs["type"]
        if isinstance(kind, TensorType) and op.results[0] not in held:
            size = kind.cosize() * kind.dtype.numpy.itemsize
            total += factor * (-(-size // space.alignment) * space.alignment)
            if total > space.bytes:
                what = f"{total} bytes are needed up to {op_text(op)}; {machine.name} has {space.bytes}"
                return ProgramError(f"shared memory: {what}", op.loc)
    return None


def _allocations(block: Block, factor: int) -> Iterator[tuple[Op, int]]:
    """Every alloc, and how many there are of it at once: two where halves of the waves take turns."""
    for op in block.ops:
        if op.name == "alloc":
            yield op, factor
        inner = 2 * factor if op.attrs.get("overlap") == "pingpong" else factor
        for b in op.blocks:
            yield from _allocations(b, inner)


def _times(block: Block, channel: Value, rounds: int) -> int:
    """How often a channel is acquired at least, where one worker does all tasks."""
    total = 0
    for op in block.ops:
        if op.name == "acquire" and op.operands[0] is channel:
            total += rounds
        if op.name in ("if", "while"):
            continue
        inner = rounds
        for r in op.attrs.get("ranges", ()):
            inner *= r.rounds or 0
        for b in op.blocks:
            total += _times(b, channel, inner)
    return total


def _name_difference(mine: Placement, other: Placement, name: str, wanted: str) -> None:
    """Raises, naming the first element that lies elsewhere."""
    if mine.elements.shape != other.elements.shape:
        raise ProgramError(
            f"{name} is spread over {mine.threads} threads with {mine.values} values each, {wanted} over "
            f"{other.threads} with {other.values}; convert_layout is the only way between two distributions"
        )
    thread, value = (int(i[0]) for i in np.nonzero(mine.elements != other.elements))
    here, there = (
        tuple(int(c) for c in np.unravel_index(int(p.elements[thread, value]), p.shape, order="F"))
        for p in (mine, other)
    )
    raise ProgramError(
        f"thread {thread} holds element {here} of {name} as its value {value}, where {wanted} has {there}; "
        "convert_layout is the only way between two distributions"
    )


def _same_in_groups(found: Array, table: Array) -> bool:
    """Whether places are those of a table, but for the stride between groups of eight of the slower coordinate."""
    if np.array_equal(found, table):
        return True
    slow = 0 if table[1, 0] > table[0, 1] else 1
    found, table = np.moveaxis(found, slow, 0), np.moveaxis(table, slow, 0)
    if found.shape[0] % 8:
        return False
    groups, wanted = found.reshape(-1, 8, found.shape[1]), table.reshape(-1, 8, table.shape[1])
    inside = np.array_equal(groups - groups[:, :1, :1], wanted - wanted[:, :1, :1])
    steps = np.diff(groups[:, 0, 0])
    return inside and (steps.size == 0 or (bool(np.all(steps == steps[0])) and int(steps[0]) % 64 == 0))
