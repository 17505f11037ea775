"""Programs that XLA can call by name: each is registered once in a process, under a name that says what it is."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from hashlib import sha256
from threading import Lock
from typing import Any

import jax
import numpy as np

from tilewright._version import __version__
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import from_numpy
from tilewright.jax.entries import EntrySteps, EntryTable, XlaBuffer, XlaCall
from tilewright.jax.gpu import GpuCalls, GpuSteps
from tilewright.jax.handler import FfiHandler, callback_handler, entry_handler, refusing_handler
from tilewright.targets.cpu.pool import pool

_registered: dict[str, tuple[FfiHandler, EntryTable | GpuCalls]] = {}
"""What XLA may call, by name; nothing is ever taken back, as an executable of XLA's may hold the address."""
_lock = Lock()
ON_CPUS, ON_GPUS = "cpu", "CUDA"
"""JAX's names of platforms."""
_ELSEWHERE = {
    ON_GPUS: "tilewright: this kernel is compiled for CPUs, and its arrays lie on a GPU: compile it with target='gpu', "
    "or put its arguments on jax.devices('cpu')[0]",
    ON_CPUS: "tilewright: this kernel is compiled for a GPU, and its arrays lie on the host: compile it with "
    "target='cpu', or put its arguments on jax.devices('gpu')[0]",
}
"""What a call says on the platform that a kernel is not for."""


def register_program(name: str, text: str, steps: EntrySteps | GpuSteps, call: XlaCall) -> str:
    """The name under which XLA calls the steps of a kernel.

    `text` is the program with its sizes, which together with the call and the number of workers tells it from all
    others, in every process. On the platform that the kernel is not for, a call is refused.
    """
    platform, other = (ON_CPUS, ON_GPUS) if isinstance(steps, EntrySteps) else (ON_GPUS, ON_CPUS)
    workers = pool().workers if platform == ON_CPUS else 0
    told = repr((__version__, text, call, workers, platform))
    target = f"tilewright.{name}.{sha256(told.encode()).hexdigest()[:24]}"
    with _lock:
        if target not in _registered:
            kept: EntryTable | GpuCalls
            if isinstance(steps, EntrySteps):
                kept = EntryTable(name, steps, call)
                handler = entry_handler(kept.words)
            else:
                kept = GpuCalls(name, steps, call)
                handler = callback_handler(ctypes.cast(kept.callback, ctypes.c_void_p).value or 0)
            _register(target, handler, platform)
            _register(target, refusing_handler(_ELSEWHERE[other]), other)
            _registered[target] = handler, kept
    return target


def _register(target: str, handler: FfiHandler, platform: str) -> None:
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(handler.address)
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(function), platform=platform)


def call_registered(target: str, call: XlaCall, aliases: dict[int, int], arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results of a registered program as arrays of JAX. `aliases` says which arguments become which results.

    Under vmap it stays one call: the handler goes through the batch. An array that becomes a result is repeated for
    each member first, others are not.
    """
    kind = jax.typeof(arrays[0]) if arrays else None
    placed: dict[str, Any] = {}
    if kind is not None and kind.mat.varying:  # within a shard_map, a result varies as the arrays do
        sharding = jax.sharding.NamedSharding(kind.sharding.mesh, jax.sharding.PartitionSpec())
        placed = {"sharding": sharding, "manual_axis_type": kind.mat}
    results = [jax.ShapeDtypeStruct(b.shape, b.dtype, **placed) for b in call.results]
    method = "broadcast_all" if aliases else "expand_dims"
    run = jax.ffi.ffi_call(target, results, vmap_method=method, input_output_aliases=aliases)
    return tuple(run(*arrays))


def with_common_varying_axes(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Arrays that vary over the same axes of a shard_map: what is the same for all its members is taken by each.

    JAX derives this step itself: the derivative by such an array is the sum over the members.
    """
    axes = [jax.typeof(a).mat.varying for a in arrays]
    varying = frozenset().union(*axes)
    missing = [tuple(varying - held) for held in axes]
    return tuple(jax.lax.pcast(a, m, to="varying") if m else a for a, m in zip(arrays, missing, strict=True))


def require_representable(buffer: XlaBuffer, where: str) -> None:
    """Raises where JAX holds such elements in another way than kernels do; `where` names the array."""
    kind = from_numpy(buffer.dtype)
    if kind is not None and 1 < kind.bits < 8:
        raise ArgumentError(f"{where} holds {kind}, of which XLA puts several into a byte; convert it to i8 or f8")
    if jax.dtypes.canonicalize_dtype(buffer.dtype) != buffer.dtype:
        raise ArgumentError(
            f"{where} holds {buffer.dtype}, which JAX narrows now; say jax.config.update('jax_enable_x64', True) first"
        )


def xla_buffer_of(array: Any, where: str) -> XlaBuffer:
    """The shape and element type of an array that JAX takes; `where` names it."""
    if not isinstance(array, jax.Array | np.ndarray):
        raise ArgumentError(
            f"{where} is a {type(array).__name__}; tilewright.jax takes arrays of JAX and numpy: pass jnp.asarray of it"
        )
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        raise ArgumentError(f"{where} holds {array.dtype}, which are no numbers; pass jax.random.key_data of it")
    return XlaBuffer(tuple(array.shape), np.dtype(array.dtype))
