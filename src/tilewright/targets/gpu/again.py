"""Calls like one before, on a GPU: tensors of the same shapes, strides and types. Only addresses are new.

The first call of its kind is checked at length and makes a launch. Later ones are compared with it (`targets.calls`),
and that launch is started at their addresses.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from tilewright.runtime.device_arrays import packed_steps
from tilewright.runtime.exchange import exchange_of
from tilewright.runtime.scripts import Bound
from tilewright.targets.calls.learnt import LearntCalls, telling_of
from tilewright.targets.calls.table import CallLaunch, CallRecord, Extent, NativeCode, Output, pair_of
from tilewright.targets.calls.words import ARGUMENTS

KINDS = 256
"""The kinds of calls, at most, that are remembered."""


class MovableCall(NamedTuple):
    """A launch on tensors that may be others: the code of its calls; of the tensors that it was bound to, which are
    written, their bytes and their addresses (0: on the host).
    """

    code: NativeCode
    launch: CallLaunch
    written: tuple[bool, ...]
    extents: tuple[Extent, ...]
    addresses: tuple[int, ...]
    workspaces: tuple[int, ...] = ()
    """Bytes of the workspaces, whose addresses follow those of the tensors."""


class Again(LearntCalls):
    """The launches learnt from the calls of one executable on a GPU."""

    def learn(self, args: Sequence[Any], outputs: Sequence[Any], launch: Any) -> None:
        """A call was right, whose outputs follow its arguments; another one like it may be done so."""
        torch: Any = sys.modules.get("torch")
        plain = getattr(torch, "Tensor", None)
        if (
            plain is None
            or exchange_of(plain) is None
            or not all(type(t) is plain and t.is_cuda for t in (*args, *outputs))
        ):
            return
        whole = launch.whole if isinstance(launch, Bound) else None
        first = launch if whole is None else whole.launches[0][0]
        if not hasattr(first, "again"):
            return
        call: MovableCall = first.again(whole)
        table = self.table_for(call.code, args)
        described = table.described(args)
        if described is None or list(call.addresses[: len(args)]) != described.addresses:
            return  # of one of them the launch has a copy
        if len(args) + len(outputs) + len(call.workspaces) > ARGUMENTS:
            return
        given = range(len(args))
        written = [n for n in given if call.written[n]]
        record = CallRecord(
            len(args),
            call.launch,
            [Output(_maker(torch, tensor)) for tensor in outputs],
            pairs=[pair_of(w, n, call.extents, described.addresses) for w in written for n in given if n != w],
            told=written,
            telling=telling_of(torch),
            workspaces=[_room_maker(torch, size, args[0].device) for size in call.workspaces],
        )
        self.remember(described, record, KINDS)


def _maker(torch: Any, tensor: Any) -> Any:
    """Return a function that makes a contiguous tensor of the same form; `empty_strided` is quicker than `empty`."""
    shape = tuple(tensor.shape)
    return partial(torch.empty_strided, shape, packed_steps(shape), dtype=tensor.dtype, device=tensor.device)


def _room_maker(torch: Any, size: int, device: Any) -> Any:
    """Return a function that makes a workspace of so many bytes.

    torch's allocator gives each stream memory of its own, and a CUDA graph that is captured memory that stays with it.
    """
    return partial(torch.empty_strided, (max(1, size),), (1,), dtype=torch.uint8, device=device)
