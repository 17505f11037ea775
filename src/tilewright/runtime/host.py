"""The host executor: runs the host program of a module, for every device alike.

A `Device` says two things: how a block or loop program is made launchable, and where memory comes from and how it is
filled; `HostMemory` is the host's own. The executor does the rest. When arrays are bound, sizes are read off their
shapes and the host program becomes a *script* for these sizes: branches are decided, workspaces have numbers for
extents, programs are ready to launch. The script is bound to the arrays once: what stands in `bind` runs then, the rest
becomes a list of ready calls. A launch calls them in order, and interprets nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import prod
from threading import Lock
from typing import Any, Protocol

import numpy as np

from tilewright.errors import ArgumentError, ExecutionError, UninitialisedFault
from tilewright.interpret.block.memory import at_line
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.binding import open_parameters, open_sizes
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.ir.module import Module
from tilewright.limits import WORKERS, Limit, shown
from tilewright.runtime.arrays import empty
from tilewright.runtime.sizes import sizes_of

Array = np.ndarray[Any, np.dtype[Any]]
Call = Callable[[], None]
SCRIPTS = 64
"""The sizes, at most, whose scripts are remembered."""


class Launchable(Protocol):
    """A program that a device has made ready."""

    def launch(self, arrays: list[Array], workers: int | None, params: Mapping[str, int] | None) -> Call:
        """The program bound to arrays and to the values of its open parameters; a call runs it."""


class HostDevice(Protocol):
    """What runs the programs that a host program launches."""

    room: Limit
    """The most elements of a workspace."""

    def prepare(self, program: Program, params: Mapping[str, int]) -> Launchable:
        """The program with these parameters, ready to be bound to arrays."""

    def near(self, arrays: Sequence[Any], passing: bool = False) -> Memories:
        """The memory that goes with the arguments of a call; `passing`: what it gives is used by that call alone."""


class Memories(Protocol):
    """Where tensors of a device lie; arrays of the host are numpy's, others the device's own."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Memory that its programs can use; what it holds is not set."""

    def takes(self, array: Any) -> bool:
        """Whether programs take an array as it lies: packed, at a multiple of what they load at once."""

    def copy(self, source: Any, goal: Any) -> None:
        """What one array holds goes to another; either may be the host's."""

    def fill(self, array: Any, value: Any) -> None:
        """A number everywhere."""

    def numpy(self, array: Any) -> Array:
        """What an array holds by now, for the host to look at."""


class HostMemory:
    """The host's memory, for devices that run their programs on it."""

    def near(self, arrays: Sequence[Any], passing: bool = False) -> Memories:
        """The same for all."""
        return self

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Memory that starts at a cache line."""
        return empty(shape, dtype)

    def takes(self, array: Any) -> bool:
        """Packed, at a multiple of the element size."""
        return bool(array.flags.c_contiguous and array.flags.aligned)

    def copy(self, source: Any, goal: Any) -> None:
        """Element by element."""
        goal[...] = source

    def fill(self, array: Any, value: Any) -> None:
        """A number everywhere."""
        array.fill(value)

    def numpy(self, array: Any) -> Array:
        """The array itself."""
        found: Array = array
        return found


# -- scripts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlotMemory:
    """What stands in a slot: a workspace, or what another slot holds (`source`) in another shape, or with strides."""

    slot: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    source: int | None = None
    strides: tuple[int, ...] | None = None

    def seen(self, memory: Any) -> Any:
        """The memory of its source as it shows it."""
        if self.strides is None:
            return memory.reshape(self.shape)
        if isinstance(memory, np.ndarray):
            steps = [s * memory.itemsize for s in self.strides]
            return np.lib.stride_tricks.as_strided(memory, self.shape, steps, writeable=False)
        return memory.strided(self.shape, self.strides)


@dataclass(frozen=True)
class Launched:
    """A launch; its arguments by slot."""

    program: Launchable
    slots: tuple[int, ...]
    workers: int
    params: tuple[tuple[str, int], ...]

    def on(self, memory: Sequence[Any], _: Memories) -> Call:
        """What does it on this memory."""
        return self.program.launch([memory[n] for n in self.slots], self.workers, dict(self.params))


@dataclass(frozen=True)
class Filled:
    """A tensor filled with a number."""

    slot: int
    value: Any

    def on(self, memory: Sequence[Any], where: Memories) -> Call:
        """What does it on this memory."""
        return partial(where.fill, memory[self.slot], self.value)


@dataclass(frozen=True, eq=False)
class Tabled:
    """A tensor filled with the values of an expression."""

    slot: int
    values: Array

    def on(self, memory: Sequence[Any], where: Memories) -> Call:
        """What does it on this memory."""
        return partial(where.copy, self.values, memory[self.slot])


@dataclass(frozen=True)
class Checked:
    """Elements that must be 0, and what is said where one is not, at which place of a text."""

    slot: int
    faults: tuple[tuple[int, str, Any], ...]

    def on(self, memory: Sequence[Any], where: Memories) -> Call:
        """What does it on this memory."""
        faults, slot = self.faults, memory[self.slot]

        def check() -> None:
            found = where.numpy(slot)
            if found.any():
                for place, says, loc in faults:
                    if found[place]:
                        raise ExecutionError(says, loc)

        return check


Step = Launched | Filled | Tabled | Checked


@dataclass
class Script:
    """A host program for one set of sizes: the memory it needs, what is done once, and what at every launch."""

    memory: list[SlotMemory] = field(default_factory=list)
    once: list[Step] = field(default_factory=list)
    each: list[Step] = field(default_factory=list)
    held: set[int] = field(default_factory=set)
    """The slots of workspaces that are made or written once."""
    lasting: bool = True
    """Whether what is done once only fills workspaces, so that it may be kept for other arguments."""
    fixed: set[int] = field(default_factory=set)
    """The arguments that what is done once reads or writes."""

    def places(self, arguments: int) -> list[tuple[int | None, ...]] | None:
        """For each launch, which argument each of its arrays is, None: a workspace. None where launches do more."""
        roots: dict[int, int | None] = {n: n for n in range(arguments)}
        for each in self.memory:
            roots[each.slot] = None if each.source is None else roots[each.source]
        if not all(isinstance(step, Launched) for step in self.each):
            return None
        return [tuple(roots[n] for n in step.slots) for step in self.each if isinstance(step, Launched)]


@dataclass(frozen=True)
class Kept:
    """What was done once for some arguments: the workspaces it filled, and how they came about."""

    steps: tuple[Step, ...]
    made: tuple[SlotMemory, ...]
    arrays: dict[int, Array]

    def fits(self, script: Script) -> bool:
        """Whether a script, perhaps for other sizes, would do the same once."""
        if not script.lasting or self.steps != tuple(script.once):
            return False
        return self.made == tuple(m for m in script.memory if m.slot in script.held)


class _Writing:
    """A host program walked for one set of sizes: its script."""

    def __init__(self, executor: HostExecutor, values: Mapping[str, int]):
        self.executor, self.values = executor, values
        self.script = Script()
        program = executor.module.host
        self.slots: dict[Value, int] = {a: n for n, a in enumerate(program.args)}
        self.roots: list[int] = list(range(len(program.args)))
        """The slot of the memory that a slot shows: another one for a reshape."""
        self.ended = False
        self._uses: list[tuple[bool, Op, list[tuple[Value, bool, bool]]]] = []
        """(done once, operation, (tensor, read, written) of its operands) of all steps."""
        self._block(program.body, once=False)
        self._check_written(len(program.args))

    def number(self, e: Any) -> int:
        return int(evaluated(e, self.values))

    def _block(self, block: Block, once: bool) -> None:
        for op in block.ops:
            if self.ended:
                return
            match op.name:
                case "let":
                    pass
                case "if":
                    if evaluated(op.attrs["when"], self.values):
                        self._block(op.blocks[0], once)
                    elif len(op.blocks) == 2:
                        self._block(op.blocks[1], once)
                case "bind":
                    self._block(op.blocks[0], once=True)
                case "return":
                    self.ended = True
                case "workspace":
                    self._new(op, self._extents(op, op.results[0].type.shape), None, once)
                case "reshape":
                    self._new(op, self._extents(op, op.attrs["shape"]), self.slots[op.operands[0]], once)
                case "restride":
                    self._restride(op, once)
                case _:
                    step = getattr(self, f"_{op.name}")(op)
                    steps = self.script.once if once else self.script.each
                    before = steps[-1] if steps else None
                    if isinstance(step, Checked) and isinstance(before, Checked) and before.slot == step.slot:
                        steps[-1] = Checked(step.slot, before.faults + step.faults)
                    else:
                        steps.append(step)
                    self._uses.append((once, op, self._used(op)))

    def _extents(self, op: Op, shape: Sequence[Any]) -> tuple[int, ...]:
        found, room = tuple(self.number(e) for e in shape), self.executor.device.room
        if min(found, default=0) < 0 or room.refuses(prod(found)):
            raise ExecutionError(f"{at_line(op)}: {found}: no extent is negative, and {room.rule}", op.loc)
        return found

    def _restride(self, op: Op, once: bool) -> None:
        kind, given = op.results[0].type, op.operands[0].type
        shape, strides = self._extents(op, kind.shape), tuple(map(self.number, kind.strides))
        room = self.number(given.room())
        last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else -1
        if last >= room:
            raise ExecutionError(f"{at_line(op)}: it reaches element {last} of {room}", op.loc)
        self._new(op, shape, self.slots[op.operands[0]], once, strides)

    def _new(
        self,
        op: Op,
        shape: tuple[int, ...],
        source: int | None,
        once: bool,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        kind = op.results[0].type
        if kind.strides is not None and source is None:
            raise ExecutionError(f"{at_line(op)}: a workspace is packed", op.loc)
        slot = len(self.roots)
        self.slots[op.results[0]] = slot
        self.roots.append(slot if source is None else self.roots[source])
        self.script.memory.append(SlotMemory(slot, shape, kind.dtype.numpy, source, strides))
        if once and source is None:
            self.script.held.add(slot)

    def _launch(self, op: Op) -> Step:
        settings = {name: self.number(e) for name, e in op.attrs.get("settings", ())}
        workers = self.number(op.attrs["workers"])
        if not 1 <= workers <= WORKERS.most:
            raise ExecutionError(
                f"{at_line(op)}: workers {shown(workers)}: at least one is needed, and {WORKERS.rule}", op.loc
            )
        program, late = self.executor.prepared(op.attrs["program"], settings)
        return Launched(program, tuple(self.slots[v] for v in op.operands), workers, tuple(late.items()))

    def _fill(self, op: Op) -> Step:
        return Filled(self.slots[op.operands[0]], op.attrs["value"])

    def _check(self, op: Op) -> Step:
        return Checked(self.slots[op.operands[0]], ((op.attrs["place"], op.attrs["says"], op.loc),))

    def _table(self, op: Op) -> Step:
        kind = op.operands[0].type
        shape = tuple(self.number(e) for e in kind.shape)
        names = dict(zip((s.name for s in op.attrs["over"]), np.indices(shape), strict=True))
        values = np.broadcast_to(np.asarray(evaluated(op.attrs["value"], {**self.values, **names})), shape)
        least, most = kind.dtype.limits
        if values.size and (np.min(values) < least or np.max(values) > most):
            wrong = f"{np.min(values)} to {np.max(values)}"
            raise ExecutionError(f"{at_line(op)}: its values, {wrong}, are not all {kind.dtype}", op.loc)
        return Tabled(self.slots[op.operands[0]], values.astype(kind.dtype.numpy))

    def _used(self, op: Op) -> list[tuple[Value, bool, bool]]:
        if op.name == "launch":
            roles = [a.type.role for a in self.executor.module.programs[op.attrs["program"]].args]
            return [(v, r in ("in", "inout"), r != "in") for v, r in zip(op.operands, roles, strict=True)]
        return [(op.operands[0], op.name == "check", op.name != "check")]

    def _check_written(self, arguments: int) -> None:
        """That no workspace is read before something wrote it; and what is done once, where it goes."""
        unwritten = {root for root in self.roots if root >= arguments}
        for once, op, uses in sorted(self._uses, key=lambda use: not use[0]):
            for value, read, written in uses:
                root = self.roots[self.slots[value]]
                if once and root < arguments:
                    self.script.fixed.add(root)
                if read and root in unwritten:
                    raise UninitialisedFault(f"{at_line(op)} reads %{value.name}, which nothing wrote", op.loc)
                if written and once:
                    self.script.held.add(root)
                    self.script.lasting &= root >= arguments
            unwritten -= {self.roots[self.slots[value]] for value, _, written in uses if written}


# -- the executor -------------------------------------------------------------------------------------------


class HostExecutor:
    """A module that can be bound to arrays, its programs made launchable by a device.

    >>> from tilewright.ir.block import parse_block
    >>> from tilewright.ir.host import parse_host
    >>> from tilewright.limits import ELEMENTS
    >>> class Telling(HostMemory):  # a device that tells what it is asked
    ...     room = ELEMENTS
    ...     def __init__(self, name=None): self.name = name
    ...     def prepare(self, program, params): return Telling(program.name)
    ...     def launch(self, arrays, workers, params):
    ...         return lambda: print(self.name, *(a.shape for a in arrays), "on", workers)
    >>> host = parse_host('''host f(%w: in global f32 (N, 4), %y: out global f32 (N))
    ...   size N
    ... {
    ...   bind {
    ...     %t = workspace global f32 (4, N)
    ...     launch pack(%w, %t) workers 1
    ...   }
    ...   launch sums(%t, %y) workers N
    ... }''')
    >>> programs = [f"block {name}(%x: in global f32 (1), %y: out global f32 (1)) {{}}" for name in ("pack", "sums")]
    >>> executor = HostExecutor(Module.of(host, map(parse_block, programs)), Telling())
    >>> launch = executor.bind([np.ones((3, 4), np.float32), np.empty(3, np.float32)])
    pack (3, 4) (4, 3) on 1
    >>> launch()
    sums (4, 3) (3,) on 3
    """

    def __init__(self, module: Module, device: HostDevice):
        self.module, self.device = module, device
        self._open = bool(open_sizes(module.host))
        kinds = [a.type for a in module.host.args]
        self.forms = [None if self._open else tuple(int(e) for e in k.shape) for k in kinds]
        """The shapes of its arguments; None where a call tells them."""
        self._prepared: dict[Any, Launchable] = {}
        self._scripts: Callable[..., Script] = lru_cache(SCRIPTS)(self._written)

    def prepare(self) -> None:
        """Makes the programs ready whose parameters no call decides; others are when they are bound."""
        for op in self.module.host.walk():
            if op.name == "launch" and not any(e.symbols for _, e in self._closed(op)):
                self.prepared(op.attrs["program"], {name: int(e) for name, e in self._closed(op)})

    def _closed(self, op: Op) -> list[tuple[str, Any]]:
        late = {s.name for s in open_parameters(self.module.programs[op.attrs["program"]])}
        return [(name, e) for name, e in op.attrs.get("settings", ()) if name not in late]

    def prepared(self, name: str, settings: Mapping[str, int]) -> tuple[Launchable, dict[str, int]]:
        """A program with these parameters, made ready once; and those of them that are told at a launch."""
        program = self.module.programs[name]
        left = {s.name for s in open_parameters(program)}
        bound = {n: v for n, v in settings.items() if n not in left}
        key = (name, *sorted(bound.items()))
        found = self._prepared.get(key)
        if found is None:
            found = self._prepared[key] = self.device.prepare(program, bound)
        return found, {n: v for n, v in settings.items() if n in left}

    def _written(self, values: tuple[tuple[str, int], ...]) -> Script:
        return _Writing(self, dict(values)).script

    def script(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> Script:
        """The script for arrays; raises where they are not what the program takes."""
        host = self.module.host
        if len(arrays) != len(host.args):
            raise ArgumentError(f"{host.name} takes {len(host.args)} arguments, not {len(arrays)}")
        for arg, form, array in zip(host.args, self.forms, arrays, strict=True):
            kind = arg.type
            right = array.ndim == len(kind.shape) if form is None else array.shape == form
            if not right or array.dtype != kind.dtype.numpy:
                raise ArgumentError(f"{arg.name} is {array.dtype} of shape {array.shape}; {host.name} takes {kind}")
        if not self._open:
            return self._scripts(())
        named = {a.name or "": array for a, array in zip(host.args, arrays, strict=True)}
        return self._scripts(tuple(sizes_of(host, named, params).items()))

    def keep(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> Kept:
        """Does what is done once, for these arguments; `bind` takes it for others of which it depends on none."""
        script, where = self.script(arrays, params), self.device.near(arrays)
        staged, _ = self._staged(arrays, where)
        return self._keep(script, self._memory(script, staged, None, where), where)

    def _keep(self, script: Script, memory: list[Any], where: Memories) -> Kept:
        for step in script.once:
            step.on(memory, where)()
        made = tuple(m for m in script.memory if m.slot in script.held)
        return Kept(tuple(script.once), made, {m.slot: memory[m.slot] for m in made})

    def bind(
        self,
        arrays: Sequence[Array],
        params: Mapping[str, int] | None = None,
        kept: Kept | None = None,
        *,
        passing: bool = False,
    ) -> Call:
        """The program bound to arrays, in order; a call of the result launches it on what they hold by then.

        `params` gives sizes that no shape tells. What is done once is done now, or was: `kept` says with what outcome.
        Arrays that do not lie in memory as programs take them are copied before each launch, and back after it.
        `passing` says that the result is called once, now: its workspaces may be gone afterwards. Threads may call the
        result at the same time; they take turns.
        """
        return self.bind_whole(arrays, params, kept, passing=passing)[0]

    def bind_whole(
        self,
        arrays: Sequence[Array],
        params: Mapping[str, int] | None = None,
        kept: Kept | None = None,
        *,
        passing: bool = False,
    ) -> tuple[Call, Whole | None]:
        """What `bind` gives, and what it consists of where each call only launches on these very arrays."""
        script, where = self.script(arrays, params), self.device.near(arrays, passing)
        staged, copies = self._staged(arrays, where)
        known = kept if kept is not None and kept.fits(script) else None
        memory = self._memory(script, staged, known, where)
        if known is None and script.once:
            self._keep(script, memory, where)
        calls = [step.on(memory, where) for step in script.each]
        if copies:
            calls = [partial(where.copy, given, copy) for given, copy, _ in copies] + calls
            calls += [partial(where.copy, copy, given) for given, copy, written in copies if written]
            return Bound(calls), None
        places = script.places(len(arrays))
        whole = None
        if places:
            args = self.module.host.args
            names, written = tuple(a.name or "" for a in args), tuple(a.type.role != "in" for a in args)
            launches = tuple(zip(calls, places, strict=True))
            whole = Whole(names, tuple(arrays), written, launches, frozenset(script.fixed))
        slots = [step.slots for step in script.each if isinstance(step, Launched)]
        as_given = not script.once and places is not None and slots == [tuple(range(len(arrays)))]
        if as_given or (len(calls) == 1 and not hasattr(calls[0], "again")):
            return calls[0], whole
        return Bound(calls, None if script.once else whole), whole

    def _staged(self, arrays: Sequence[Any], where: Memories) -> tuple[list[Any], list[tuple[Any, Any, bool]]]:
        """The arguments as programs take them: packed, at multiples of their element size; and which are copies."""
        memory, copies = list(arrays), []
        for place, (arg, array) in enumerate(zip(self.module.host.args, arrays, strict=True)):
            if not where.takes(array):
                memory[place] = copy = where.empty(array.shape, array.dtype)
                try:
                    where.copy(array, copy)
                except ArgumentError as fault:
                    raise ArgumentError(f"{self.module.host.name}: argument {arg.name}: {fault}") from None
                copies.append((array, copy, arg.type.role != "in"))
        return memory, copies

    def _memory(self, script: Script, staged: list[Any], kept: Kept | None, where: Memories) -> list[Any]:
        """The tensors of all slots."""
        memory = staged
        for each in script.memory:
            if each.source is not None:
                memory.append(each.seen(memory[each.source]))
            elif kept is not None and each.slot in kept.arrays:
                memory.append(kept.arrays[each.slot])
            else:
                memory.append(where.empty(each.shape, each.dtype))
        return memory


@dataclass(frozen=True)
class Whole:
    """A call of a host program that only launches: its arguments by name, which of them are written, and the launches.

    With each launch go the arguments that its arrays are; None: a workspace. `fixed` are arguments that what was done
    once has used: others cannot take their place.
    """

    names: tuple[str, ...]
    arrays: tuple[Any, ...]
    written: tuple[bool, ...]
    launches: tuple[tuple[Any, tuple[int | None, ...]], ...]
    fixed: frozenset[int] = frozenset()

    @property
    def works(self) -> bool:
        """Whether it has workspaces."""
        return any(place is None for _, places in self.launches for place in places)


class Bound:
    """Ready calls, one after the other; `whole` where they are launches and no more."""

    __slots__ = ("_calls", "_lock", "whole")

    def __init__(self, calls: list[Call], whole: Whole | None = None):
        self._calls, self._lock, self.whole = tuple(calls), Lock(), whole

    def __call__(self) -> None:
        """Does them; workspaces are one caller's at a time."""
        with self._lock:
            for call in self._calls:
                call()
