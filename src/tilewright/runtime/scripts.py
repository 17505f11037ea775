"""Scripts: host programs for one set of sizes, bound to arrays. They need no program of any level.

In a script branches are decided, workspaces have numbers for extents, programs are ready to launch. It is bound to
arrays once: what is done once is done then, the rest becomes a list of ready calls. A launch calls them in order, and
interprets nothing. `host` writes scripts from host programs; those of closed sizes are kept on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np

from tilewright.errors import ArgumentError, ExecutionError
from tilewright.runtime.arrays import empty

Array = np.ndarray[Any, np.dtype[Any]]
Call = Callable[[], None]


class Launchable(Protocol):
    """A program that a device has made ready."""

    def launch(self, arrays: list[Array], workers: int | None, params: Mapping[str, int] | None) -> Call:
        """The program bound to arrays and to the values of its open parameters; a call runs it."""


class Memories(Protocol):
    """The memory of a device's tensors; arrays of the host are numpy's, others the device's own."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Memory that its programs can use; what it holds is not set."""

    def takes(self, array: Any) -> bool:
        """Whether programs take an array as it lies: packed, at a multiple of what they load at once."""

    def copy(self, source: Any, goal: Any) -> None:
        """Copy the elements of one array to another; either may be the host's."""

    def fill(self, array: Any, value: Any) -> None:
        """A number everywhere."""

    def numpy(self, array: Any) -> Array:
        """Return the present elements of an array, for the host to look at."""

    def settle(self) -> None:
        """Wait until what was asked of the device is done, so that other streams may use the results."""

    def hold(self, arrays: Sequence[Any]) -> None:
        """Keep arrays that a launch reads for as long as a CUDA graph lives that is captured now, if one is."""


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
        same: Array = array
        return same

    def settle(self) -> None:
        """Nothing is under way."""

    def hold(self, arrays: Sequence[Any]) -> None:
        """Nothing repeats launches."""


# -- scripts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlotMemory:
    """The memory of a slot: a workspace, or what another slot holds (`source`) in another shape, or with strides."""

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
        """Return a call that does this step on `memory`."""
        return self.program.launch([memory[n] for n in self.slots], self.workers, dict(self.params))


@dataclass(frozen=True)
class Filled:
    """A tensor filled with a number."""

    slot: int
    value: Any

    def on(self, memory: Sequence[Any], where: Memories) -> Call:
        """Return a call that does this step on `memory`."""
        return partial(where.fill, memory[self.slot], self.value)


@dataclass(frozen=True, eq=False)
class Tabled:
    """A tensor filled with the values of an expression."""

    slot: int
    values: Array

    def on(self, memory: Sequence[Any], where: Memories) -> Call:
        """Return a call that does this step on `memory`."""
        return partial(where.copy, self.values, memory[self.slot])


@dataclass(frozen=True)
class Checked:
    """Elements that must be 0, and what is said where one is not, at which place of a text."""

    slot: int
    faults: tuple[tuple[int, str, Any], ...]

    def on(self, memory: Sequence[Any], where: Memories) -> Call:
        """Return a call that does this step on `memory`."""
        faults, slot = self.faults, memory[self.slot]

        def check() -> None:
            elements = where.numpy(slot)
            if elements.any():
                for place, says, loc in faults:
                    if elements[place]:
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

    def places(self, arguments: int) -> list[tuple[int, ...]] | None:
        """For each launch, the slots of the arguments and workspaces that its arrays are; None if launches do more."""
        roots = {n: n for n in range(arguments)}
        for each in self.memory:
            roots[each.slot] = each.slot if each.source is None else roots[each.source]
        if not all(isinstance(step, Launched) for step in self.each):
            return None
        return [tuple(roots[n] for n in step.slots) for step in self.each if isinstance(step, Launched)]


@dataclass(frozen=True)
class Kept:
    """The outcome of what is done once for some arguments: the workspaces it filled, and how they came about."""

    steps: tuple[object, ...]
    made: tuple[SlotMemory, ...]
    arrays: dict[int, Array]
    given: tuple[Any, ...] = ()
    """Arguments that launches read beside them, which nobody else may have."""

    def fits(self, script: Script) -> bool:
        """Whether a script, perhaps for other sizes, would do the same once."""
        if not script.lasting or self.steps != tuple(script.once):
            return False
        return self.made == tuple(m for m in script.memory if m.slot in script.held)


# -- scripts bound to arrays ----------------------------------------------------------------------------------


class HostArgument(NamedTuple):
    """An argument of a host program: its name and role, its type as text, its elements, its shape.

    Where calls tell extents, the shape is None, and only the number of dimensions is known.
    """

    name: str
    role: str
    kind: str
    dtype: np.dtype[Any]
    rank: int
    shape: tuple[int, ...] | None


class ScriptExecutor:
    """An executor that binds scripts to arrays; `name`, `arguments` are the host program's, `main` its last launch."""

    name: str
    main: str
    arguments: tuple[HostArgument, ...]

    def script(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> Script:
        """The script for arrays; raises where they are not what the program takes."""
        raise NotImplementedError

    def near(self, arrays: Sequence[Any], passing: bool = False) -> Memories:
        """The memory that goes with the arguments of a call; `passing`: what it gives is used by that call alone."""
        raise NotImplementedError

    def require(self, arrays: Sequence[Array]) -> None:
        """Raises where arrays are not what the program takes."""
        if len(arrays) != len(self.arguments):
            raise ArgumentError(f"{self.name} takes {len(self.arguments)} arguments, not {len(arrays)}")
        for arg, array in zip(self.arguments, arrays, strict=True):
            right = array.ndim == arg.rank if arg.shape is None else array.shape == arg.shape
            if not right or array.dtype != arg.dtype:
                raise ArgumentError(f"{arg.name} is {array.dtype} of shape {array.shape}; {self.name} takes {arg.kind}")

    def keep(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> Kept:
        """Does what is done once, for these arguments; `bind` takes it for others of which it depends on none."""
        script, where = self.script(arrays, params), self.near(arrays)
        staged, _ = self._staged(arrays, where)
        return self._keep(script, self._memory(script, staged, None, where), where)

    def _keep(self, script: Script, memory: list[Any], where: Memories) -> Kept:
        for step in script.once:
            step.on(memory, where)()
        if script.once:
            where.settle()
        workspaces = tuple(m for m in script.memory if m.slot in script.held)
        return Kept(tuple(script.once), workspaces, {m.slot: memory[m.slot] for m in workspaces})

    def bind(
        self,
        arrays: Sequence[Array],
        params: Mapping[str, int] | None = None,
        kept: Kept | None = None,
        *,
        passing: bool = False,
    ) -> Call:
        """The program bound to arrays, in order; a call of the result launches it on what they hold by then.

        `params` gives sizes that no shape tells. Steps done once are done now, or were: `kept` has their outcome.
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
        """Return (the call that `bind` gives, its parts); no parts if calls do more than copy arrays and launch."""
        script, where = self.script(arrays, params), self.near(arrays, passing)
        staged, copies = self._staged(arrays, where)
        known = kept if kept is not None and kept.fits(script) else None
        memory = self._memory(script, staged, known, where)
        if known is not None:
            where.hold([*known.arrays.values(), *known.given])
        for step in script.once if known is None else ():
            step.on(memory, where)()
        calls = [step.on(memory, where) for step in script.each]
        places = script.places(len(arrays))
        whole = None
        if places:
            names, written = zip(*((a.name, a.role != "in") for a in self.arguments), strict=True)
            launches = tuple(zip(calls, places, strict=True))
            held = {} if known is None else known.arrays
            workspace_slots = [m.slot for m in script.memory if m.source is None and m.slot not in held]
            workspaces = {slot: memory[slot] for slot in workspace_slots}
            whole = Whole(names, tuple(memory[: len(arrays)]), written, launches, frozenset(script.fixed), workspaces)
        if copies:
            calls = [partial(where.copy, given, copy) for given, copy, _ in copies] + calls
            calls += [partial(where.copy, copy, given) for given, copy, written in copies if written]
            return Bound(calls), whole
        slots = [step.slots for step in script.each if isinstance(step, Launched)]
        as_given = not script.once and places is not None and slots == [tuple(range(len(arrays)))]
        if as_given or (len(calls) == 1 and not hasattr(calls[0], "again")):
            return calls[0], whole
        return Bound(calls, None if script.once else whole), whole

    def _staged(self, arrays: Sequence[Any], where: Memories) -> tuple[list[Any], list[tuple[Any, Any, bool]]]:
        """The arguments as programs take them: packed, at multiples of their element size; and which are copies."""
        memory, copies = list(arrays), []
        for place, (arg, array) in enumerate(zip(self.arguments, arrays, strict=True)):
            if not where.takes(array):
                memory[place] = copy = where.empty(array.shape, array.dtype)
                try:
                    where.copy(array, copy)
                except ArgumentError as fault:
                    raise ArgumentError(f"{self.name}: argument {arg.name}: {fault}") from None
                copies.append((array, copy, arg.role != "in"))
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

    `arrays` are the arguments as launches take them, perhaps contiguous copies. With each launch go the slots of its
    arrays: numbers of arguments, or of workspaces. `fixed` are arguments that what was done once has used: others
    cannot take their place. `workspaces` are those that were made for it, by slot.
    """

    names: tuple[str, ...]
    arrays: tuple[Any, ...]
    written: tuple[bool, ...]
    launches: tuple[tuple[Any, tuple[int, ...]], ...]
    fixed: frozenset[int] = frozenset()
    workspaces: Mapping[int, Any] = field(default_factory=dict)


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
