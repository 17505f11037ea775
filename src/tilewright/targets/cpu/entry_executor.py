"""Executors whose modules run by their entry: it is bound to arrays, and launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.runtime.overlap import require_apart
from tilewright.runtime.scripts import Bound, Kept, ScriptExecutor, Whole
from tilewright.targets.cpu.entry import EntryLaunch, EntryMember

Array = np.ndarray[Any, np.dtype[Any]]
_KEPT = 0
"""The place in `Kept` of the memory that the function that binds has filled."""


class EntryExecutor(ScriptExecutor):
    """An executor that binds entries to arrays; `why_script` says why the module runs by its script, if it does."""

    why_script: str | None = None

    def member(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> EntryMember | None:
        """Return the module's machine-code entry (its C function) for these arrays; None: the host executor runs it.

        Raise an error if shapes or types of the arrays are not those of the arguments.
        """
        raise NotImplementedError

    def keep(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> Kept:
        """Does what is done once, for these arguments; `bind` takes it for others of which it depends on none."""
        member = self.member(arrays, params)
        if member is None:
            return super().keep(arrays, params)
        staged, _ = self._staged(arrays, self.near(arrays))
        launch = EntryLaunch(member, staged)
        launch.bind()
        return Kept(member.once, member.made, {_KEPT: launch.kept})

    def bind_whole(
        self,
        arrays: Sequence[Array],
        params: Mapping[str, int] | None = None,
        kept: Kept | None = None,
        *,
        passing: bool = False,
    ) -> tuple[Callable[[], None], Whole | None]:
        """Return (the call that `bind` gives, its parts); no parts where the module runs by its script."""
        member = self.member(arrays, params)
        if member is None:
            return super().bind_whole(arrays, params, kept, passing=passing)
        where = self.near(arrays, passing)
        staged, copies = self._staged(arrays, where)
        require_apart(self.name, [(a.name, a.role) for a in self.arguments], staged)
        known = None
        if kept is not None and member.lasting and (kept.steps, kept.made) == (member.once, member.made):
            known = kept.arrays[_KEPT]
        launch = EntryLaunch(member, staged, known)
        if known is None and member.once:
            launch.bind()
        names, written = tuple(a.name for a in self.arguments), tuple(a.role != "in" for a in self.arguments)
        whole = Whole(names, tuple(staged), written, ((launch, tuple(range(len(staged)))),), member.fixed)
        if not copies:
            return launch, whole
        calls: list[Callable[[], None]] = [
            *(partial(where.copy, given, copy) for given, copy, _ in copies),
            launch,
            *(partial(where.copy, copy, given) for given, copy, is_written in copies if is_written),
        ]
        return Bound(calls), whole
