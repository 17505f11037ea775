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
        """Return a function that runs the program on `arrays` when it is called.

        `workers` is the number of threads or workgroups that share the program's tasks; None: the device chooses it.
        `params` is {name: value} of the program's open parameters (known only at the call).
        """


class Memories(Protocol):
    """Allocates, copies and fills a device's tensors; host arrays are numpy's, others are of the device's own type."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Allocate an uninitialised tensor of the given shape and element type, which the device's programs can use,
        and return it."""

    def takes(self, array: Any) -> bool:
        """True if the device's programs can use `array` without a copy: it is contiguous, and aligned as their loads
        need."""

    def copy(self, source: Any, goal: Any) -> None:
        """Copy the elements of `source` to `goal`, which has the same shape. Either may be on the host."""

    def fill(self, array: Any, value: Any) -> None:
        """Set all elements of `array` to the number `value`."""

    def numpy(self, array: Any) -> Array:
        """Return the current elements of `array`, a tensor of the device, as a numpy array."""

    def wait(self) -> None:
        """Wait until all work that the device was given is done."""

    def hold(self, arrays: Sequence[Any]) -> None:
        """Keep `arrays`, which a launch reads, alive as long as the CUDA graph that is being captured.

        Do nothing if no graph is being captured.
        """


class HostMemory:
    """Allocates, copies and fills numpy arrays, for devices that run programs on the host's memory."""

    def near(self, arrays: Sequence[Any], passing: bool = False) -> Memories:
        """Return this object itself: all arrays are in the host's memory. `arrays` and `passing` have no effect."""
        return self

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an uninitialised numpy array of the given shape and type, at an address that is a multiple of 64
        bytes."""
        return empty(shape, dtype)

    def takes(self, array: Any) -> bool:
        """True if `array` is contiguous and aligned to its element size, so that programs need no copy of it."""
        return bool(array.flags.c_contiguous and array.flags.aligned)

    def copy(self, source: Any, goal: Any) -> None:
        """Copy the elements of `source` to `goal`, both numpy arrays."""
        goal[...] = source

    def fill(self, array: Any, value: Any) -> None:
        """Set all elements of `array` to the number `value`."""
        array.fill(value)

    def numpy(self, array: Any) -> Array:
        """Return `array` itself, which is a numpy array already."""
        same: Array = array
        return same

    def wait(self) -> None:
        """Do nothing: work on the host is done when its call returns."""

    def hold(self, arrays: Sequence[Any]) -> None:
        """Do nothing: the host has no captured graphs for which `arrays` must be kept alive."""


# -- scripts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlotMemory:
    """The tensor of the slot number `slot`: a workspace if `source` is None, otherwise a view of the tensor of the slot
    `source`, with another shape or strides (in elements).
    """

    slot: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    source: int | None = None
    strides: tuple[int, ...] | None = None

    def seen(self, memory: Any) -> Any:
        """Return a view of `memory`, the tensor of the slot `self.source`, with the shape and strides of this slot.

        Without strides, `memory` is reshaped. With strides, a view of a numpy array is read-only.
        """
        if self.strides is None:
            return memory.reshape(self.shape)
        if isinstance(memory, np.ndarray):
            steps = [s * memory.itemsize for s in self.strides]
            return np.lib.stride_tricks.as_strided(memory, self.shape, steps, writeable=False)
        return memory.strided(self.shape, self.strides)


@dataclass(frozen=True)
class Launched:
    """The step that launches a program. `slots` are the slot numbers of its arguments, `params` are (name, value) of
    its open parameters.
    """

    program: Launchable
    slots: tuple[int, ...]
    workers: int
    params: tuple[tuple[str, int], ...]

    def on(self, memory: Sequence[Any], _: Memories) -> Call:
        """Return a function that launches the step's program on its arguments.

        `memory` has all tensors of the script by slot number. The second argument is not used.
        """
        return self.program.launch([memory[n] for n in self.slots], self.workers, dict(self.params))


@dataclass(frozen=True)
class Filled:
    """The step that fills a tensor with a number."""

    slot: int
    value: Any

    def on(self, memory: Sequence[Any], where: Memories) -> Call:
        """Return a function that fills the step's tensor with its number.

        `memory` has all tensors of the script by slot number. `where` is the device's memory, which fills it.
        """
        return partial(where.fill, memory[self.slot], self.value)


@dataclass(frozen=True, eq=False)
class Tabled:
    """The step that fills a tensor with values that were computed when the script was written."""

    slot: int
    values: Array

    def on(self, memory: Sequence[Any], where: Memories) -> Call:
        """Return a function that copies the step's values to its tensor.

        `memory` has all tensors of the script by slot number. `where` is the device's memory, which copies them.
        """
        return partial(where.copy, self.values, memory[self.slot])


@dataclass(frozen=True)
class Checked:
    """The step that raises an error if one of some elements of a tensor is not 0.

    `faults` are (element index, message, location in the program's text), one for each element that is checked.
    """

    slot: int
    faults: tuple[tuple[int, str, Any], ...]

    def on(self, memory: Sequence[Any], where: Memories) -> Call:
        """Return a function that raises ExecutionError if one of the checked elements is not 0, with the message for
        the first one.

        `memory` has all tensors of the script by slot number. `where` is the device's memory, which copies the tensor
        to the host.
        """
        faults, slot = self.faults, memory[self.slot]

        def check() -> None:
            """Raise ExecutionError with the message and location of the first checked element that is not 0, if there
            is one."""
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
        """Return a list with a tuple for each launch: the slot numbers of its arrays, such as [(0, 3), (3, 1)].

        A slot is the number of a tensor. `arguments` is the number of the program's arguments, which have the first
        slots. In place of a view, the list has the slot of the tensor that is viewed. Steps that run once (in `bind`)
        are left out. Return None if any other step is no launch.
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

    `steps` are the steps that were run, `workspaces` describes the workspaces, and `arrays` is {slot: tensor} of the
    workspaces.
    """

    steps: tuple[object, ...]
    workspaces: tuple[SlotMemory, ...]
    arrays: dict[int, Array]
    given: tuple[Any, ...] = ()
    """Arguments that launches read besides, and that must not be changed by others."""

    def fits(self, script: Script) -> bool:
        """True if `script`, perhaps one for other sizes, can use the workspaces of this Kept.

        Two conditions must hold. The `bind` block of `script` has the same steps and workspaces as those of this Kept.
        And these steps write workspaces only (`script.lasting`), so that their result does not depend on one set of
        arguments.
        """
        if not script.lasting or self.steps != tuple(script.once):
            return False
        return self.workspaces == tuple(m for m in script.memory if m.slot in script.held)


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
    """Binds scripts to arrays. `name` is the name of the host program, `arguments` are its arguments; `main` is the
    name of the module's last program, which computes the result.
    """

    name: str
    main: str
    arguments: tuple[HostArgument, ...]

    def script(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> Script:
        """Return the script (list of steps) for a call with the arguments `arrays`. Subclasses implement this.

        They raise ArgumentError if the arrays do not fit. `params` is {name: value} of sizes that no shape determines.
        """
        raise NotImplementedError

    def near(self, arrays: Sequence[Any], passing: bool = False) -> Memories:
        """Return the Memories of the device that `arrays` are on: the object that allocates, copies and fills tensors
        there.

        Subclasses implement this. With `passing`, the caller promises to use tensors that it allocates only during one
        call.
        """
        raise NotImplementedError

    def require(self, arrays: Sequence[Array]) -> None:
        """Raise ArgumentError unless `arrays` has one array for each argument, of the argument's element type and
        shape.

        Only the rank is compared if the extents differ from call to call.
        """
        if len(arrays) != len(self.arguments):
            raise ArgumentError(f"{self.name} takes {len(self.arguments)} arguments, not {len(arrays)}")
        for arg, array in zip(self.arguments, arrays, strict=True):
            fits = array.ndim == arg.rank if arg.shape is None else array.shape == arg.shape
            if not fits or array.dtype != arg.dtype:
                raise ArgumentError(f"{arg.name} is {array.dtype} of shape {array.shape}; {self.name} takes {arg.kind}")

    def keep(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> Kept:
        """Run the steps of the program's `bind` block, such as packing weights, and return the workspaces that they
        wrote as a Kept.

        `bind` and `bind_whole` take the Kept, and do not repeat these steps. `arrays` are the arguments of a call.
        `params` is {name: value} of sizes that no shape determines. Raise ArgumentError if the arrays do not fit.
        """
        script, where = self.script(arrays, params), self.near(arrays)
        staged, _ = self._staged(arrays, where)
        return self._keep(script, self._memory(script, staged, None, where), where)

    def _keep(self, script: Script, memory: list[Any], where: Memories) -> Kept:
        """Run the steps of the script's `bind` block, wait for them, and return a Kept with the workspaces that they
        wrote.

        `memory` has all tensors of the script by slot number. `where` is the device's memory.
        """
        for step in script.once:
            step.on(memory, where)()
        if script.once:
            where.wait()
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
        """Return a function that runs the program on `arrays`, with the contents that they have at each call.

        Steps of the program's `bind` block run now, unless `kept`, a result of `keep`, has their workspaces; it is
        ignored if it does not fit this script. Arrays that programs cannot use as they are stored are copied before
        each launch; those that are written are copied back after it. `params` is {name: value} of sizes that no shape
        determines. With `passing`, the caller promises to call the function exactly once, right away, so that its
        workspaces may be reused. Several threads may call the function. Raise ArgumentError if the arrays do not fit.
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
        """Return (the function that `bind` returns for the same arguments, a Whole or None).

        The Whole describes the launches of the function. It is None if the function does more than copies of arguments
        and launches, or if nothing is launched. Raise ArgumentError if the arrays do not fit.
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
        """Return (tensors, copies): the arguments `arrays` as programs can use them, and a list of the copies that were
        made.

        `where`, the device's memory, copies each array that programs cannot use as it is stored. `copies` has (array,
        its copy, True if the program writes it). Raise ArgumentError if an array cannot be copied.
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
        """Return the list of the tensors of all slots of the script, by slot number: arguments, then views and
        workspaces.

        It is `staged`, the list of arguments, to which the others are appended. A workspace is taken from `kept` if
        that has its slot; otherwise `where`, the device's memory, allocates it.
        """
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
    """The launches and arrays of a call that does nothing else than copies of arguments and launches.

    `arrays` are the arguments as launches take them, perhaps contiguous copies; `names` and `written` (whether the
    program writes it) are in the same order. `launches` are pairs (function that launches, slot numbers of its arrays):
    arguments have the first slots, workspaces follow. `fixed` are the slots of arguments that steps inside `bind` have
    used, so that a repeated call cannot replace them. `workspaces` is {slot: workspace that was allocated for this
    call}.
    """

    names: tuple[str, ...]
    arrays: tuple[Any, ...]
    written: tuple[bool, ...]
    launches: tuple[tuple[Any, tuple[int, ...]], ...]
    fixed: frozenset[int] = frozenset()
    workspaces: Mapping[int, Any] = field(default_factory=dict)


class Bound:
    """A function that makes some calls in order, for one thread at a time. `whole` describes them if they are only
    launches; else it is None.
    """

    __slots__ = ("_calls", "_lock", "whole")

    def __init__(self, calls: list[Call], whole: Whole | None = None):
        self._calls, self._lock, self.whole = tuple(calls), Lock(), whole

    def __call__(self) -> None:
        """Make all calls in order, under a lock, since they share workspaces."""
        with self._lock:
            for call in self._calls:
                call()
