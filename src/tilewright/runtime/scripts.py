"""Scripts: host programs for one set of sizes, as lists of steps that are bound to arrays.

In a script, branches are decided, workspaces have constant extents, and programs are ready to launch. Binding it to
arrays runs the steps inside `bind` and turns the others into a list of calls; a launch makes these calls in order.
`host` writes scripts from host programs; those of constant sizes are stored on disk. Tensors are numbered: the *slot*
of an argument is its index, workspaces and views have the slots after them.
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
    """A program that a device has compiled."""

    def launch(self, arrays: list[Array], workers: int | None, params: Mapping[str, int] | None) -> Call:
        """Return a call that runs the program on `arrays`, with values `params` of its open parameters.

        `workers` None: the device's choice.
        """


class Memories(Protocol):
    """Allocates, copies and fills a device's tensors; host arrays are numpy's, others are of the device's own type."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an uninitialised tensor that the device's programs can use."""

    def takes(self, array: Any) -> bool:
        """True if programs can use an array without a copy: it is contiguous and aligned to their loads."""

    def copy(self, source: Any, goal: Any) -> None:
        """Copy the elements of `source` to `goal`; either may be on the host."""

    def fill(self, array: Any, value: Any) -> None:
        """Set all elements of an array to a number."""

    def numpy(self, array: Any) -> Array:
        """Return the current elements of an array as a numpy array."""

    def settle(self) -> None:
        """Wait for all work of the device, so that other streams may use the results."""

    def hold(self, arrays: Sequence[Any]) -> None:
        """Keep arrays that a launch reads alive as long as the CUDA graph that is being captured, if there is one."""


class HostMemory:
    """Allocates, copies and fills numpy arrays, for devices that run programs on the host's memory."""

    def near(self, arrays: Sequence[Any], passing: bool = False) -> Memories:
        """Return this object: all arrays are in the host's memory."""
        return self

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an uninitialised array that starts at a cache line."""
        return empty(shape, dtype)

    def takes(self, array: Any) -> bool:
        """True if an array is contiguous and aligned to its element size."""
        return bool(array.flags.c_contiguous and array.flags.aligned)

    def copy(self, source: Any, goal: Any) -> None:
        """Copy the elements of `source` to `goal`."""
        goal[...] = source

    def fill(self, array: Any, value: Any) -> None:
        """Set all elements of an array to a number."""
        array.fill(value)

    def numpy(self, array: Any) -> Array:
        """Return the array itself."""
        same: Array = array
        return same

    def settle(self) -> None:
        """Do nothing: work on the host is done when its call returns."""

    def hold(self, arrays: Sequence[Any]) -> None:
        """Do nothing: there are no graphs that repeat launches."""


# -- scripts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlotMemory:
    """A slot's tensor: a workspace, or a view of the slot `source` with another shape or strides (in elements)."""

    slot: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    source: int | None = None
    strides: tuple[int, ...] | None = None

    def seen(self, memory: Any) -> Any:
        """Return the view of `memory`, the tensor of the slot `source`, with this slot's shape and strides."""
        if self.strides is None:
            return memory.reshape(self.shape)
        if isinstance(memory, np.ndarray):
            steps = [s * memory.itemsize for s in self.strides]
            return np.lib.stride_tricks.as_strided(memory, self.shape, steps, writeable=False)
        return memory.strided(self.shape, self.strides)


@dataclass(frozen=True)
class Launched:
    """The step that launches a program; `slots` are those of its arguments, `params` its open parameters' values."""

    program: Launchable
    slots: tuple[int, ...]
    workers: int
    params: tuple[tuple[str, int], ...]

    def on(self, memory: Sequence[Any], _: Memories) -> Call:
        """Return a call that launches the program; `memory` has the tensors by slot."""
        return self.program.launch([memory[n] for n in self.slots], self.workers, dict(self.params))


@dataclass(frozen=True)
class Filled:
    """The step that fills a tensor with a number."""

    slot: int
    value: Any

    def on(self, memory: Sequence[Any], where: Memories) -> Call:
        """Return a call that fills the tensor; `memory` has the tensors by slot, `where` fills them."""
        return partial(where.fill, memory[self.slot], self.value)


@dataclass(frozen=True, eq=False)
class Tabled:
    """The step that fills a tensor with values that were computed when the script was written."""

    slot: int
    values: Array

    def on(self, memory: Sequence[Any], where: Memories) -> Call:
        """Return a call that fills the tensor; `memory` has the tensors by slot, `where` copies them."""
        return partial(where.copy, self.values, memory[self.slot])


@dataclass(frozen=True)
class Checked:
    """The step that raises an error if an element of a tensor is not 0.

    `faults` are (element index, message, location in the program's text).
    """

    slot: int
    faults: tuple[tuple[int, str, Any], ...]

    def on(self, memory: Sequence[Any], where: Memories) -> Call:
        """Return a call that checks the elements; `memory` has the tensors by slot, `where` copies them to the host."""
        faults, slot = self.faults, memory[self.slot]

        def check() -> None:
            """Raise the error of the first checked element that is not 0."""
            elements = where.numpy(slot)
            if elements.any():
                for place, says, loc in faults:
                    if elements[place]:
                        raise ExecutionError(says, loc)

        return check


Step = Launched | Filled | Tabled | Checked


@dataclass
class Script:
    """A host program for one set of sizes.

    `memory` has its workspaces and views, `once` the steps of its `bind` block (run once for constant arguments),
    `each` the steps of every launch.
    """

    memory: list[SlotMemory] = field(default_factory=list)
    once: list[Step] = field(default_factory=list)
    each: list[Step] = field(default_factory=list)
    held: set[int] = field(default_factory=set)
    """The slots of workspaces that are made or written inside `bind`."""
    lasting: bool = True
    """True if the steps inside `bind` only write workspaces, so that their result may serve other arguments."""
    fixed: set[int] = field(default_factory=set)
    """The arguments that steps inside `bind` read or write."""

    def places(self, arguments: int) -> list[tuple[int, ...]] | None:
        """Return for each launch the slots of its arrays, with views replaced by what they view.

        `arguments` is the number of the program's arguments. None if a call does anything but launch.
        """
        roots = {n: n for n in range(arguments)}
        for slot_memory in self.memory:
            roots[slot_memory.slot] = slot_memory.slot if slot_memory.source is None else roots[slot_memory.source]
        if not all(isinstance(step, Launched) for step in self.each):
            return None
        return [tuple(roots[n] for n in step.slots) for step in self.each if isinstance(step, Launched)]


@dataclass(frozen=True)
class Kept:
    """The result of a script's steps that run once: the workspaces that they wrote, to be used by further bindings.

    `steps` are these steps, `made` the workspaces, `arrays` their tensors by slot.
    """

    steps: tuple[object, ...]
    made: tuple[SlotMemory, ...]
    arrays: dict[int, Array]
    given: tuple[Any, ...] = ()
    """Arguments that launches read besides, and that must not be changed by others."""

    def fits(self, script: Script) -> bool:
        """True if a script, perhaps for other sizes, has the same steps and workspaces in its `bind` block."""
        if not script.lasting or self.steps != tuple(script.once):
            return False
        return self.made == tuple(m for m in script.memory if m.slot in script.held)


# -- scripts bound to arrays ----------------------------------------------------------------------------------


class HostArgument(NamedTuple):
    """An argument of a host program: name, role, type as text, element type, rank and shape.

    `shape` is None if the extents differ from call to call.
    """

    name: str
    role: str
    kind: str
    dtype: np.dtype[Any]
    rank: int
    shape: tuple[int, ...] | None


class ScriptExecutor:
    """Binds scripts to arrays; `arguments` are those of the host program, `main` is the name of its last program."""

    name: str
    main: str
    arguments: tuple[HostArgument, ...]

    def script(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> Script:
        """Return the script (list of steps) for a call's arrays; raise ArgumentError if they do not fit.

        `params` gives sizes that no shape determines.
        """
        raise NotImplementedError

    def near(self, arrays: Sequence[Any], passing: bool = False) -> Memories:
        """Return the memory of the device that arrays are on; `passing`: it is used only during one call."""
        raise NotImplementedError

    def require(self, arrays: Sequence[Array]) -> None:
        """Raise ArgumentError unless the number, shapes and element types of arrays are the program's."""
        if len(arrays) != len(self.arguments):
            raise ArgumentError(f"{self.name} takes {len(self.arguments)} arguments, not {len(arrays)}")
        for arg, array in zip(self.arguments, arrays, strict=True):
            fits = array.ndim == arg.rank if arg.shape is None else array.shape == arg.shape
            if not fits or array.dtype != arg.dtype:
                raise ArgumentError(f"{arg.name} is {array.dtype} of shape {array.shape}; {self.name} takes {arg.kind}")

    def keep(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> Kept:
        """Run the steps of the program's `bind` block for these arrays and return the result, for use by `bind`.

        `params` gives sizes that no shape determines.
        """
        script, where = self.script(arrays, params), self.near(arrays)
        staged, _ = self._staged(arrays, where)
        return self._keep(script, self._memory(script, staged, None, where), where)

    def _keep(self, script: Script, memory: list[Any], where: Memories) -> Kept:
        """Run the steps of a script that run once and return their result; `memory` has the tensors by slot."""
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
        """Return a call that runs the program on these arrays, with the contents that they have by then.

        `params` gives sizes that no shape determines. Steps of the program's `bind` block run now, unless `kept` has
        their result. Arrays that programs cannot use as they are stored are copied before each launch, and back after
        it. `passing`: the call is made once, now, and its workspaces may be reused afterwards. Several threads may make
        the call; a lock serialises them.
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
        """Return (the call that `bind` returns, its launches and arrays).

        The second item is None if the call does anything but copy arrays and launch programs. For the parameters see
        `bind`.
        """
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
        """Return the arrays, copied if programs cannot use them, and (array, copy, is written) of each copy.

        `where` makes the copies.
        """
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
        """Return the tensors by slot: arguments (`staged`), then views and workspaces, new ones or those of `kept`."""
        memory = staged
        for slot_memory in script.memory:
            if slot_memory.source is not None:
                memory.append(slot_memory.seen(memory[slot_memory.source]))
            elif kept is not None and slot_memory.slot in kept.arrays:
                memory.append(kept.arrays[slot_memory.slot])
            else:
                memory.append(where.empty(slot_memory.shape, slot_memory.dtype))
        return memory


@dataclass(frozen=True)
class Whole:
    """The launches and arrays of a call that only launches.

    `arrays` are the arguments as launches take them, perhaps contiguous copies; `names` and `written` are in the same
    order. `launches` are pairs (call, slots of its arrays), slots of arguments or workspaces. `fixed` are the arguments
    that steps inside `bind` have used, which cannot be replaced. `workspaces` are those that were made for this call,
    by slot.
    """

    names: tuple[str, ...]
    arrays: tuple[Any, ...]
    written: tuple[bool, ...]
    launches: tuple[tuple[Any, tuple[int, ...]], ...]
    fixed: frozenset[int] = frozenset()
    workspaces: Mapping[int, Any] = field(default_factory=dict)


class Bound:
    """Calls that are made in order, by one thread at a time; `whole` is given if they are only launches."""

    __slots__ = ("_calls", "_lock", "whole")

    def __init__(self, calls: list[Call], whole: Whole | None = None):
        self._calls, self._lock, self.whole = tuple(calls), Lock(), whole

    def __call__(self) -> None:
        """Make all calls, under a lock, since they share workspaces."""
        with self._lock:
            for call in self._calls:
                call()
