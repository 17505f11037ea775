"""Warp specialisation: one wave loads tiles by bulk copies, ahead of the waves that multiply them.

Before: all waves copy a tile to shared memory, multiply it, and begin again. After: a ring of such tiles, filled by one
wave and emptied by those that multiply; each role has the part of the program that it needs, with the same tasks and
loops around it.

    for k in 0..5 {                          role load waves 1 {           role multiply waves 8 {
      copy %a_view -> %slab else 0             for k in 0..5 {               for k in 0..5 {
      barrier                                    %s = acquire %ring            %t = wait %ring
      mma %sums += %slab * ...                   copy %a_view -> %s            mma %sums += %t * ...
      barrier                                    commit %ring                  release %ring
    }                                          } }                           } }

Tiles that are copied in the same body and first used by the same operation share the stages of one channel: a stage is
released as soon as that operation is done. Tiles that other operations use join them if the plan says `together`.
Tiles that are loaded once for all iterations of a loop have a channel of their own. Results go the other way: a tile
that is written and then copied out is a channel of the multiplying role to itself. With ping-pong the halves of that
role take tasks in turn: operations after the last use of loaded tiles are the end of a task, and run beside the other
half's task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from tilewright.algebra.expr import ONE, Expr, as_expr, index
from tilewright.analysis.views import Places
from tilewright.check.block import past_shared_memory
from tilewright.check.copies import view_request
from tilewright.errors import ProgramError
from tilewright.ir.block import BLOCK
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Op, Program, Value, building, walk_block
from tilewright.ir.printer import op_text
from tilewright.ir.tensors import TensorType
from tilewright.ir.verifier import verify
from tilewright.machine import CopyRefusal, Machine
from tilewright.plan.schedule import Pipeline

LOAD, MULTIPLY = "load", "multiply"


def with_roles(
    program: Program, loads: Mapping[Op, str], stores: Collection[Op], roles: Pipeline, machine: Machine
) -> tuple[Program, tuple[str, ...]]:
    """Return (program, notes). The program is `program` split into a producer role that loads tiles and a consumer role
    that multiplies them. The notes are texts on copies that waves do element by element.

    `loads` is {copy from an argument to shared memory: `ring`, `halo` or `start` (once)}, `stores` are the copies back
    to arguments, and `roles` is the plan's pipeline. Raise a ProgramError if shared memory is too small, or if no bulk
    copy can do one of the loads; a producer of several waves copies such a load element by element instead.
    """
    with building():
        split = _Split(program, loads, stores, roles, machine).run()
        notes = _assign_copy_atoms(split, machine, required=roles.producer[0] == 1)
        verify(split)
        if (over := past_shared_memory(split, machine)) is not None:
            raise over
    return split, notes


@dataclass(eq=False)
class _Channel:
    """The tiles that copies of one body fill or empty, for which the stages of one channel are substituted."""

    copies: list[Op]
    tiles: list[Value]
    """The allocations that its stages replace."""
    ring: str
    """The kind of its copies: `ring`, `halo`, `start` or `stored`."""
    stages: int
    value: Value | None = None

    def uses(self, op: Op, roots: Mapping[Value, Value]) -> bool:
        """True if `op`, or an operation inside `op`, uses a tile of this channel. `roots` is {value: tensor below its
        views}.
        """
        return any(roots.get(v, v) in self.tiles for inner in _within(op) for v in inner.operands)


class _Split:
    """Splits a program into a role that loads and a role that multiplies."""

    def __init__(
        self, program: Program, loads: Mapping[Op, str], stores: Collection[Op], roles: Pipeline, machine: Machine
    ):
        self.program, self.roles = program, roles
        self.alignment = machine.spaces["shared"].alignment
        self.roots = _roots(program)
        self.loads, self.stores = set(loads), set(stores)
        self.once = {op for op in program.body.ops if op.name == "fill"}
        """Fills of tiles before the first task: every stage is filled so, before the roles begin."""
        self._bodies: dict[int, Block] = {}
        self.counts = {"ring": roles.stages, "halo": roles.halo_stages, "start": 1, "stored": roles.epilogue_stages}
        self.filled = self._channels(loads, 1)
        """{identity of a body: channels that copies in it fill}."""
        self.emptied = self._channels(dict.fromkeys(stores, "stored"), 0)
        once = []
        for body, channels in self.filled.items():
            if any(
                id(b) in self.filled for op in self._bodies[body].ops for inner in _within(op) for b in inner.blocks
            ):
                once += [channel for channel in channels if channel.ring == "ring"]
        for channel in once:
            channel.stages = roles.resident_stages
        if roles.resident_stages > 1 and not once:
            raise ProgramError(
                f"`resident stages {roles.resident_stages}`: no operand is loaded once for all iterations of a loop"
            )
        self.tiles = {
            t for channels_of in (self.filled, self.emptied) for cs in channels_of.values() for c in cs for t in c.tiles
        }
        self.b = Builder(BLOCK)
        self.values: dict[Value, Value] = {}

    def _channels(self, copies: Mapping[Op, str], tile_operand: int) -> dict[int, list[_Channel]]:
        """Return {identity of a block: channels that `copies` fill or empty in the block}. `copies` is {copy: `ring`,
        `halo`, `start` or `stored`}. `tile_operand` is the number of a copy's operand that is the tile: 1 for loads, 0
        for stores.

        Tiles that the same operation uses first share a channel; with joint stages, all tiles of kind `ring` of a block
        do. The block of a tile is the innermost one that both fills and uses it. These blocks are added to
        `self._bodies`, {identity: block}.
        """
        channels_of: dict[int, dict[Op, _Channel]] = {}
        for tile in dict.fromkeys(self.roots[op.operands[tile_operand]] for op in self.program.walk() if op in copies):
            body = self._body(tile)
            self._bodies[id(body)] = body
            users = [op for op in body.ops if self._touches(op, tile) and op.name != "view"]
            copies_of_tile = {op: kind for op, kind in copies.items() if self.roots[op.operands[tile_operand]] is tile}
            copies_in_body = [op for op in users if not copies_of_tile.keys().isdisjoint(_within(op))]
            first = next(op for op in users if op not in copies_in_body)
            kind = next(iter(copies_of_tile.values()))
            new_channel = _Channel([], [], kind, self.counts[kind])
            channels_of_body = channels_of.setdefault(id(body), {})
            joined = (
                next((c for c in channels_of_body.values() if c.ring == kind == "ring"), None)
                if self.roles.joint
                else None
            )
            channel = channels_of_body.setdefault(first, joined or new_channel)
            channel.tiles.append(tile)
            channel.copies += copies_in_body
        return {body: list(dict.fromkeys(channels.values())) for body, channels in channels_of.items()}

    def _touches(self, op: Op, tile: Value) -> bool:
        """True if `op`, or an operation inside `op`, uses `tile`, directly or through views."""
        return any(self.roots.get(v, v) is tile for inner in _within(op) for v in inner.operands)

    def _is_once(self, op: Op) -> bool:
        """True if `op` is a fill before the first task, or if such a fill uses a result of `op`: these operations run
        once.
        """
        return op in self.once or any(not self.once.isdisjoint(_users(self.program.body, r)) for r in op.results)

    def _body(self, tile: Value) -> Block:
        """Return the innermost block in which `tile` is both filled and used: each time this block runs, one stage is
        filled and emptied.
        """
        block = self.program.body
        while True:
            users = [op for op in block.ops if self._touches(op, tile) and not self._is_once(op)]
            inside = [b for op in users for b in op.blocks]
            if len(users) != 1 or len(inside) != 1:
                return block
            (block,) = inside

    def run(self) -> Program:
        """Return a new program, made from `self.program`, with a loading role and a multiplying role. Channels of
        stages replace the tiles between them.
        """
        for arg in self.program.args:
            self.b.args.append(arg)
        self.b.records += [r for r in self.program.records if r.name != "waves"]
        for channel in _all_channels(self.filled):
            self._open_channel(channel, LOAD)
        if self.once:
            self.b.emit("barrier")
        with self.b.inside("role", attrs=_role_attrs(LOAD, *self.roles.producer)):
            self._emit_loading(self.program.body)
        self.values = {}
        with self.b.inside("role", attrs=_role_attrs(MULTIPLY, *self.roles.consumer)):
            for channel in _all_channels(self.emptied) if not self.roles.pingpong else ():
                self._open_channel(channel, MULTIPLY)
            self._emit_multiplying(self.program.body)
        program = self.b.program(self.program.name)
        _drop_unused_views(program)
        return program

    def _open_channel(self, channel: _Channel, producer: str) -> None:
        """Emit the shared memory of a channel's stages, and the `channel` operation, and set `channel.value` to its
        result. `producer` is the name of the role that fills the stages; the multiplying role empties them.
        """
        rings = []
        for tile in channel.tiles:
            kind: TensorType = tile.type
            kind = replace(kind, shape=(as_expr(channel.stages), *kind.shape), strides=self._stage_strides(kind))
            rings.append(self.b.emit("alloc", attrs={"type": kind}, names=(f"{tile.name}_ring",)).result)
            self._fill_stages(tile, rings[-1])
        attrs = {"stages": as_expr(channel.stages), "producer": producer, "consumer": MULTIPLY}
        if producer == MULTIPLY and self.roles.per_group_store:
            attrs["apart"] = True
        name = "ring" if producer == LOAD else "out"
        count = sum(c.value is not None for c in (*_all_channels(self.filled), *_all_channels(self.emptied)))
        channel.value = self.b.emit("channel", rings, attrs, names=(f"{name}_{count}",)).result

    def _fill_stages(self, tile: Value, ring: Value) -> None:
        """Emit, for all stages at once, the fills of `tile` that the program does before the first task. `ring` is the
        tensor of stages that replaces the tile. Raise a ProgramError if such a fill is not to a view of the tile.
        """
        for op in (op for op in self.program.body.ops if op in self.once and self.roots[op.operands[0]] is tile):
            (filled_part,) = op.operands
            view = next((v for v in self.program.body.ops if filled_part in v.results and v.name == "view"), None)
            if view is None or view.operands[0] is not tile:
                raise ProgramError(f"%{tile.name}: only a part of a tile is filled before the first task")
            stage = index("stage", ring.type.shape[0])
            attrs = {"over": (stage, *view.attrs["over"]), "at": ((stage, False), *view.attrs["at"])}
            all_stages = self.b.emit("view", (ring,), attrs, names=(f"{tile.name}_slack",)).result
            self.b.emit("fill", (all_stages,), dict(op.attrs), loc=op.loc)

    def _stage_strides(self, tile: TensorType) -> tuple[Expr, ...] | None:
        """Return the strides, in elements, of a tensor of stages that each have the type `tile`: first the size of a
        stage, rounded up to the alignment of shared memory, then the strides of `tile`. Return None if the tensor can
        be packed: `tile` has no explicit strides and no swizzle that needs the alignment.
        """
        steps = tile.steps
        size = int(tile.shape[0] * steps[0]) * tile.dtype.bits // 8
        if tile.strides is None and (tile.swizzle is None or size % self.alignment == 0):
            return None
        stage_elements = -(-size // self.alignment) * self.alignment * 8 // tile.dtype.bits
        return as_expr(stage_elements), *steps

    # -- the role that loads ------------------------------------------------------------------------------

    def _emit_loading(self, block: Block) -> None:
        """Emit `block` for the loading role: the loads, the views and loops that they need, and `acquire` and `commit`
        of the stages that they fill. Raise a ProgramError for a load inside a `while`.
        """
        channels = self.filled.get(id(block), [])
        needed = self._needed(block)
        for op in block.ops:
            for channel in channels:
                if op is channel.copies[0]:
                    self._take_stage("acquire", channel)
                    self._views_again(channel, block, op)
            if op in self.loads:
                self._clone_remapped(op)
            elif any(inner in self.loads for b in op.blocks for inner in walk_block(b)):
                if op.name == "while":
                    raise ProgramError(
                        "a load inside `while` cannot be issued ahead, because data decide when the loop ends"
                    )
                self._clone_remapped(op, self._emit_loading)
            elif op.name in ("view", "let") and (op.name == "let" or op.result in needed):
                self._clone_remapped(op)
            for channel in channels:
                if op is channel.copies[-1]:
                    self._emit_handover("commit", channel)

    def _needed(self, block: Block) -> set[Value]:
        """Return the values that the loads in `block` need: their operands, and the operands of the operations in
        `block` that define these, directly or indirectly.
        """
        needed = {v for op in walk_block(block) if op in self.loads for v in op.operands}
        for op in reversed(list(walk_block(block))):
            if needed.intersection(op.results):
                needed.update(op.operands)
        return needed

    # -- the role that multiplies -------------------------------------------------------------------------

    def _emit_multiplying(self, block: Block) -> None:
        """Emit `block` for the multiplying role: the operations other than loads, with `wait` and `release` of the
        loaded stages, and `acquire` and `commit` of the stages for results. A barrier is left out if the operation
        before it uses no shared memory but tiles, which channels synchronise.
        """
        filled, emptied = self.filled.get(id(block), []), self.emptied.get(id(block), [])
        users = {channel: self._users(channel, block) for channel in (*filled, *emptied)}
        is_synchronised = True
        """True if a barrier is not needed: only tiles that channels order were touched since the last one."""
        for op in block.ops:
            if (op.name == "barrier" and is_synchronised) or self._is_once(op):
                continue
            for channel in filled:
                if op is users[channel][0]:
                    self._take_stage("wait", channel)
            for channel in emptied:
                if op is users[channel][0]:
                    self._take_stage("acquire", channel)
                if op is channel.copies[0]:
                    self._emit_handover("commit", channel)
                    self._take_stage("wait", channel)
                    self._views_again(channel, block, op)
            if op.name not in ("view", "alloc", "let"):
                is_synchronised = all(self.roots.get(v, v) in self.tiles or not _is_shared(v) for v in op.operands)
            if self._is_loading(op) or (op.name == "alloc" and op.result in self.tiles):
                continue
            if op.name == "tasks" and self.roles.pingpong:
                self._emit_pingpong(op)
            else:
                self._clone_remapped(op, self._emit_multiplying if op.blocks else None)
            for channel in (*filled, *emptied):
                if op is users[channel][-1]:
                    self._emit_handover("release", channel)

    def _emit_pingpong(self, op: Op) -> None:
        """Emit the `tasks` operation `op` as ping-pong, where halves of the waves take tasks in turn. It has two
        blocks: the first goes up to the last use of loaded tiles, and the second is the rest of the task. The second
        one runs at the same time as the other half's first block, and has the channels for results.
        """
        (body,) = op.blocks
        filled = list(_all_channels(self.filled))
        last = max(n for n, inner in enumerate(body.ops) if any(c.uses(inner, self.roots) for c in filled))
        turn, end = Block(body.args, body.ops[: last + 1]), Block((), body.ops[last + 1 :])
        for channels_of, part in ((self.filled, turn), (self.emptied, end)):
            if id(body) in channels_of:
                channels_of[id(part)] = channels_of.pop(id(body))
        self.b.open()
        self._emit_multiplying(turn)
        first = self.b.close(self.b.blocks[-1])
        self.b.open()
        for channel in _all_channels(self.emptied):
            self._open_channel(channel, MULTIPLY)
        self._emit_multiplying(end)
        second = self.b.close(self.b.blocks[-1])
        self.b.emit("tasks", (), {**op.attrs, "overlap": "pingpong"}, blocks=(first, second), loc=op.loc)

    def _is_loading(self, op: Op) -> bool:
        """True if `op` and the operations inside it include a load, and otherwise only views, `let`, barriers and `for`
        loops.
        """
        inner = [x for x in _within(op) if x.name not in ("view", "let", "barrier", "for")]
        return bool(inner) and all(x in self.loads for x in inner)

    def _users(self, channel: _Channel, block: Block) -> list[Op]:
        """Return the operations of `block`, in order, that use a tile of the channel, directly or inside their blocks,
        except those that only load.
        """
        return [op for op in block.ops if not self._is_loading(op) and channel.uses(op, self.roots)]

    def _views_again(self, channel: _Channel, block: Block, end: Op) -> None:
        """Emit again, for the stage that was just taken, the views of a channel's tiles that come before the operation
        `end` in `block`.
        """
        for op in block.ops[: block.ops.index(end)]:
            if op.name == "view" and self.roots.get(op.result) in channel.tiles:
                self._clone_remapped(op)

    # -- both ---------------------------------------------------------------------------------------------

    def _take_stage(self, name: str, channel: _Channel) -> None:
        """Emit the operation `name`, "acquire" or "wait", of a channel. In operations emitted from here on, the memory
        of the stage replaces the channel's tiles.
        """
        assert channel.value is not None
        names = [f"{t.name}_{'free' if name == 'acquire' else 'ready'}" for t in channel.tiles]
        op = self.b.emit(name, (channel.value,), names=names)
        self.values |= zip(channel.tiles, op.results, strict=True)

    def _emit_handover(self, name: str, channel: _Channel) -> None:
        """Emit the operation `name`, "commit" or "release", of the channel's current stage."""
        assert channel.value is not None
        self.b.emit(name, (channel.value,))

    def _clone_remapped(self, op: Op, inside: Callable[[Block], None] | None = None) -> None:
        """Emit a clone of `op`, with operands replaced by their values in the current role (`self.values`), and record
        its results there. `inside(block)` is called for each block of `op`, and emits the clone's block. If `inside` is
        None, the clone has no blocks.
        """
        blocks = []
        for block in op.blocks if inside is not None else ():
            self.b.open()
            if inside is not None:
                inside(block)
            blocks.append(self.b.close(self.b.blocks[-1]))
        operands = [self.values.get(v, v) for v in op.operands]
        names = [r.name for r in op.results]
        clone = self.b.emit(op.name, operands, dict(op.attrs), blocks=tuple(blocks), loc=op.loc, names=names)
        self.values |= zip(op.results, clone.results, strict=True)


def _assign_copy_atoms(program: Program, machine: Machine, *, required: bool) -> tuple[str, ...]:
    """Set the attribute `by`, in place, of each copy to or from a stage of a channel to a bulk copy atom of the machine
    that can do the copy. Copies that have the attribute already, and copies to or from registers, are skipped.

    Return notes, one for each copy that no atom can do, with the reasons; equal notes come once. If `required`, raise a
    ProgramError for a copy into shared memory that no atom can do.
    """
    makers, notes = program.makers(), []
    places = Places(program, makers)
    for op in program.walk():
        if op.name != "copy" or "by" in op.attrs:
            continue
        source, target = op.operands
        spaces = [getattr(v.type, "space", "register") for v in (source, target)]
        is_stage = [places.in_stage(v) for v in (source, target)]
        if not any(is_stage) or "register" in spaces:
            continue
        refusals = []
        for atom in machine.copies_between(*spaces):
            if not atom.asynchronous or atom.bytes_moved is not None:
                continue
            op.attrs["by"] = atom.name
            request = view_request(op, machine, places)
            conditions = () if request is None else atom.conditions(request)
            reasons = (
                [conditions]
                if isinstance(conditions, CopyRefusal)
                else [c.reason for c in conditions if c.that is not ONE]
            )
            if not reasons:
                break
            refusals.append(
                f"{atom.name}: {reasons[0]}" if not isinstance(reasons[0], CopyRefusal) else str(reasons[0])
            )
            del op.attrs["by"]
        if "by" in op.attrs:
            continue
        notes.append(f"copied by waves: {op_text(op)}: {'; '.join(refusals)}")
        if required and spaces[1] == "shared":
            raise ProgramError(
                "; ".join(refusals) or f"{machine.name} has no copy from {spaces[0]} to {spaces[1]}", op.loc
            )
    return tuple(dict.fromkeys(notes))


def _all_channels(channels_of_body: Mapping[int, list[_Channel]]) -> Iterator[_Channel]:
    """Yield all channels in `channels_of_body`, {identity of a block: its channels}, block by block."""
    for channels in channels_of_body.values():
        yield from channels


def _drop_unused_views(program: Program) -> None:
    """Delete, in place, the views that no operation uses, directly or through other views."""
    used: set[Value] = set()

    def drop_in(block: Block) -> None:
        remaining = []
        for op in reversed(block.ops):
            for inner in reversed(op.blocks):
                drop_in(inner)
            if op.name != "view" or op.result in used:
                used.update(op.operands)
                remaining.append(op)
        block.ops[:] = reversed(remaining)

    drop_in(program.body)


def _role_attrs(name: str, waves: int, registers: int) -> dict[str, object]:
    """Return the attributes of a `role` operation as a dictionary: its name, its number of waves, and its registers per
    lane.
    """
    return {"name": name, "waves": as_expr(waves), "registers": as_expr(registers)}


def _roots(program: Program) -> dict[Value, Value]:
    """Return {value: the allocation or argument below its views and bitcasts} for all results of the program. Any other
    result is mapped to itself. Arguments have no entries.
    """
    roots: dict[Value, Value] = {}
    for op in program.walk():
        for result in op.results:
            roots[result] = roots.get(op.operands[0], op.operands[0]) if op.name in ("view", "bitcast") else result
    return roots


def _users(block: Block, value: Value) -> set[Op]:
    """Return the operations directly in `block` that have `value` as an operand; operations inside loops or branches do
    not count.
    """
    return {op for op in block.ops if value in op.operands}


def _is_shared(value: Value) -> bool:
    """True if `value` is a tensor in shared memory."""
    return isinstance(value.type, TensorType) and value.type.space == "shared"


def _within(op: Op) -> Iterator[Op]:
    """Yield `op`, then all operations inside its blocks."""
    yield op
    for block in op.blocks:
        yield from walk_block(block)
