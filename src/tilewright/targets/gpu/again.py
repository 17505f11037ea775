"""Remembered calls of executables on a GPU: a later call with the same shapes, strides and types only has new
addresses.

The first call of its kind is checked fully and makes a launch. Later calls are compared with it (`targets.calls`), and
the same launch is started with their addresses.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from tilewright.runtime.device_arrays import packed_steps
from tilewright.runtime.exchange import exchange_of
from tilewright.runtime.scripts import Bound
from tilewright.targets.calls.learnt import LearntCalls, write_counter_of
from tilewright.targets.calls.table import CallLaunch, CallRecord, Extent, NativeCode, Output, pair_of
from tilewright.targets.calls.words import ARGUMENTS

KINDS = 256
"""The most kinds of calls that an executable remembers."""


class MovableCall(NamedTuple):
    """A launch that can be repeated with other tensors: its native code, and for each tensor that it was bound to
    whether it is written, its bytes and its address (0: on the host)."""

    code: NativeCode
    launch: CallLaunch
    written: tuple[bool, ...]
    extents: tuple[Extent, ...]
    addresses: tuple[int, ...]
    workspaces: tuple[int, ...] = ()
    """Bytes of each workspace; their addresses come after those of the tensors."""


class GpuLaunchCache(LearntCalls):
    """The launches that one executable remembers of its calls on a GPU."""

    def learn(self, args: Sequence[Any], outputs: Sequence[Any], launch: Any) -> None:
        """Remember a successful call, so that later calls of the same kind repeat its `launch`.

        `args` are the arguments of the call. `outputs` are the tensors that the call allocated; they follow the
        arguments in the launch. Nothing is remembered in these cases: an argument or output is not a plain torch tensor
        on a GPU; the launch reads a copy of an argument; `launch` cannot be repeated; there are more than ARGUMENTS
        arguments, outputs and workspaces.
        """
        torch: Any = sys.modules.get("torch")
        tensor_type = getattr(torch, "Tensor", None)
        if (
            tensor_type is None
            or exchange_of(tensor_type) is None
            or not all(type(t) is tensor_type and t.is_cuda for t in (*args, *outputs))
        ):
            return
        host_call = launch.whole if isinstance(launch, Bound) else None
        first = launch if host_call is None else host_call.launches[0][0]
        if not hasattr(first, "again"):
            return
        call: MovableCall = first.again(host_call)
        table = self.table_for(call.code, args)
        described = table.described(args)
        if described is None or list(call.addresses[: len(args)]) != described.addresses:
            return  # the launch has a copy of an argument
        if len(args) + len(outputs) + len(call.workspaces) > ARGUMENTS:
            return
        arguments = range(len(args))
        written = [n for n in arguments if call.written[n]]
        record = CallRecord(
            len(args),
            call.launch,
            [Output(_maker(torch, tensor)) for tensor in outputs],
            pairs=[pair_of(w, n, call.extents, described.addresses) for w in written for n in arguments if n != w],
            counted=written,
            telling=write_counter_of(torch),
            workspaces=[_workspace_maker(torch, size, args[0].device) for size in call.workspaces],
        )
        self.remember(described, record, KINDS)


def _maker(torch: Any, tensor: Any) -> Any:
    """Return a function without parameters that allocates a contiguous tensor with the shape, type and device of
    `tensor`. Its elements are not initialised. `torch` is the module.
    """
    shape = tuple(tensor.shape)
    return partial(torch.empty_strided, shape, packed_steps(shape), dtype=tensor.dtype, device=tensor.device)


def _workspace_maker(torch: Any, size: int, device: Any) -> Any:
    """Return a function without parameters that allocates a workspace: a torch tensor of max(1, `size`) bytes on
    `device`. `torch` is the module.

    torch's allocator gives each stream separate memory. During the capture of a CUDA graph, the memory belongs to the
    graph.
    """
    return partial(torch.empty_strided, (max(1, size),), (1,), dtype=torch.uint8, device=device)
