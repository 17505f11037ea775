"""Calls like one before: tensors of the same shapes and types, elsewhere in memory. Only addresses are new.

The first call of its kind is checked at length and makes a launch; another one looks at what may differ between
tensors of one shape and type, and starts the same launch at other addresses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

KINDS = 64
"""The kinds of calls, at most, that are remembered."""
ALIGNMENT = 16


@dataclass(frozen=True)
class _Known:
    """One kind of call: its launch, the sizes of the arguments in bytes, which are written, and what makes outputs."""

    launch: Callable[[Sequence[int]], None]
    sizes: tuple[int, ...]
    written: tuple[int, ...]
    made: tuple[tuple[tuple[int, ...], Any, Any], ...]


class Again:
    """What was learnt of the calls of one executable."""

    def __init__(self) -> None:
        self._known: dict[Any, _Known] = {}

    def __call__(self, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Runs a call like one before, and gives the outputs that it made; None: there was none like it."""
        key = _key(args)
        known = None if key is None else self._known.get(key)
        if known is None:
            return None
        pointers = [t.data_ptr() for t in args]
        for tensor, pointer in zip(args, pointers, strict=True):
            if pointer % ALIGNMENT or tensor.requires_grad or not tensor.is_contiguous():
                return None
        for i in known.written:
            first, last = pointers[i], pointers[i] + known.sizes[i]
            for j, pointer in enumerate(pointers):
                if i != j and pointer < last and first < pointer + known.sizes[j]:
                    return None
        made: tuple[Any, ...] = ()
        if known.made:
            empty = sys.modules["torch"].empty
            made = tuple(empty(shape, dtype=dtype, device=device) for shape, dtype, device in known.made)
            pointers += [t.data_ptr() for t in made]
        known.launch(pointers)
        return made

    def learn(self, args: tuple[Any, ...], made: Sequence[Any], written: Sequence[bool], launch: Any) -> None:
        """A call was right, whose outputs `made` follow its arguments; another one like it may be done so."""
        at, key = getattr(launch, "at", None), _key((*args, *made))
        if at is None or key is None:
            return
        if len(self._known) >= KINDS:
            self._known.clear()
        every = (*args, *made)
        launch.forget()
        self._known[_key(args)] = _Known(
            at,
            tuple(t.nbytes for t in every),
            tuple(i for i, w in enumerate(written[: len(args)]) if w),
            tuple((tuple(t.shape), t.dtype, t.device) for t in made),
        )


def _key(args: tuple[Any, ...]) -> Any:
    """What calls of one kind have in common; None: not all arguments are plain tensors on a device."""
    torch = sys.modules.get("torch")
    plain = getattr(torch, "Tensor", None)
    if plain is None:
        return None
    found: list[Any] = []
    for t in args:
        if type(t) is not plain or not t.is_cuda:
            return None
        found += (t.shape, t.dtype, t.device)
    return tuple(found)
