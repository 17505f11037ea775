"""Executors that run a module by its machine-code entry: the entry is bound to arrays, then launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.runtime.overlap import require_no_overlap
from tilewright.runtime.scripts import Bound, Kept, ScriptExecutor, Whole
from tilewright.targets.cpu.entry import EntryLaunch, EntryMember

Array = np.ndarray[Any, np.dtype[Any]]
_KEPT = 0
"""The key in `Kept` of the memory that the entry's bind function has filled."""


class EntryExecutor(ScriptExecutor):
    """An executor that binds entries to arrays; `why_script` says why the module runs without an entry (None: it has
    one)."""

    why_script: str | None = None

    def member(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> EntryMember | None:
        """Return the module's machine-code entry (its C function) for these arrays and sizes; None if the module has
        none, so that the host executor runs it. Raise an error if shapes or types of the arrays are not those of the
        arguments. Subclasses implement it: here it raises NotImplementedError.
        """
        raise NotImplementedError

    def keep(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> Kept:
        """Run the entry's bind function for these arguments, and return the memory that it filled: later binds with the
        same constants may reuse it. Without an entry, the host executor does the same. `params` are sizes by name.
        """
        member = self.member(arrays, params)
        if member is None:
            return super().keep(arrays, params)
        staged, _ = self._staged(arrays, self.near(arrays))
        launch = EntryLaunch(member, staged)
        launch.bind()
        return Kept(member.once, member.workspaces, {_KEPT: launch.kept})

    def bind_whole(
        self,
        arrays: Sequence[Array],
        params: Mapping[str, int] | None = None,
        kept: Kept | None = None,
        *,
        passing: bool = False,
    ) -> tuple[Callable[[], None], Whole | None]:
        """Return (a function without parameters that runs the module on these arrays, a description of what it
        launches). Without a machine-code entry, the host executor binds the arrays. Arrays that are not contiguous are
        copied at each run, and back if they are written. Code that runs once (such as packing) runs now.

        `params` are sizes by name. `kept` is memory that an earlier bind filled; it is reused if the entry allows that.
        With `passing`, the arrays are used for one call only. Raise ArgumentError if an array that is written may share
        memory with another one.
        """
        member = self.member(arrays, params)
        if member is None:
            return super().bind_whole(arrays, params, kept, passing=passing)
        memory = self.near(arrays, passing)
        staged, copies = self._staged(arrays, memory)
        require_no_overlap(self.name, [(a.name, a.role) for a in self.arguments], staged)
        reused = None
        if kept is not None and member.lasting and (kept.steps, kept.workspaces) == (member.once, member.workspaces):
            reused = kept.arrays[_KEPT]
        launch = EntryLaunch(member, staged, reused)
        if reused is None and member.once:
            launch.bind()
        names, written = tuple(a.name for a in self.arguments), tuple(a.role != "in" for a in self.arguments)
        description = Whole(names, tuple(staged), written, ((launch, tuple(range(len(staged)))),), member.fixed)
        if not copies:
            return launch, description
        calls: list[Callable[[], None]] = [
            *(partial(memory.copy, original, copy) for original, copy, _ in copies),
            launch,
            *(partial(memory.copy, copy, original) for original, copy, is_written in copies if is_written),
        ]
        return Bound(calls), description
