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
        """Return the machine-code entry of the module for the shapes of `arrays` and the sizes `params` ({name: size}).
        Return None if the module has no entry; the host executor then runs it. Raise an ArgumentError if shapes or
        types of the arrays do not fit. Subclasses implement this method; here it raises NotImplementedError.
        """
        raise NotImplementedError

    def keep(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> Kept:
        """Run the entry's bind function with `arrays` and the sizes `params` ({name: size}). Return the memory that it
        filled, such as packed weights; pass this memory to `bind_whole` to reuse it. Without an entry, the host
        executor does this.
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
        """Return (run, description): a function without parameters that runs the module on `arrays`, and a Whole that
        describes its launches. If the module has no entry, the host executor binds the arrays; the description may then
        be None.

        Arrays that are not contiguous are copied at each run, and copied back if they are written. The description has
        the contiguous copies in place of these arrays; it does not say that elements are copied.

        `params` is {name: size}. `kept` is memory from `keep`. It is reused under two conditions: it fits the entry for
        these sizes, and the entry's bind function does nothing but fill it (`lasting`). Otherwise, code that runs only
        once, such as packing of weights, runs now. `passing` says that the arrays are used for one call only. Raise
        ArgumentError if a written array may share memory with another array.
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
