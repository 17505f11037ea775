"""Custom calls of XLA: each compiled kernel is registered once in a process, under a name that contains its hash."""

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
from tilewright.jax.entries import EntryTable, XlaBuffer, XlaCall, XlaCpuProgram
from tilewright.jax.gpu import GpuCalls, XlaGpuProgram
from tilewright.jax.handler import FfiHandler, callback_handler, entry_handler, refusing_handler
from tilewright.targets.cpu.pool import pool

_registered: dict[str, tuple[FfiHandler, EntryTable | GpuCalls]] = {}
"""{name of a custom call: (its handler, the data that the handler reads)}; entries are never removed, because XLA's
executables may hold their addresses."""
_lock = Lock()
ON_CPUS, ON_GPUS = "cpu", "CUDA"
"""JAX's names of the platforms."""
_ELSEWHERE = {
    ON_GPUS: "tilewright: this kernel is compiled for CPUs, and its arrays lie on a GPU: compile it with target='gpu', "
    "or put its arguments on jax.devices('cpu')[0]",
    ON_CPUS: "tilewright: this kernel is compiled for a GPU, and its arrays lie on the host: compile it with "
    "target='cpu', or put its arguments on jax.devices('gpu')[0]",
}
"""{platform of the arrays: the error message of a call there, if the kernel is compiled for the other platform}."""


def register_program(name: str, text: str, program: XlaCpuProgram | XlaGpuProgram, call: XlaCall) -> str:
    """Register a kernel as an XLA custom call, unless that was done before, and return the custom call's name.

    The name consists of the kernel's `name` and a hash. The hash is equal in every process for equal `text` (unique to
    the kernel and its sizes), equal buffers in `call`, and equal numbers of threads. `program` is the machine code or
    GPU program that XLA runs. A call on the other platform (GPU instead of CPU, or the reverse) fails with an error
    message.
    """
    platform, other = (ON_CPUS, ON_GPUS) if isinstance(program, XlaCpuProgram) else (ON_GPUS, ON_CPUS)
    workers = pool().workers if platform == ON_CPUS else 0
    key = repr((__version__, text, call, workers, platform))
    target = f"tilewright.{name}.{sha256(key.encode()).hexdigest()[:24]}"
    with _lock:
        if target not in _registered:
            data: EntryTable | GpuCalls
            if isinstance(program, XlaCpuProgram):
                data = EntryTable(name, program, call)
                handler = entry_handler(data.words)
            else:
                data = GpuCalls(name, program, call)
                handler = callback_handler(ctypes.cast(data.callback, ctypes.c_void_p).value or 0)
            _register(target, handler, platform)
            _register(target, refusing_handler(_ELSEWHERE[other]), other)
            _registered[target] = handler, data
    return target


def _register(target: str, handler: FfiHandler, platform: str) -> None:
    """Register the machine code of `handler` with JAX as the custom call named `target` on `platform`, "cpu" or
    "CUDA"."""
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(handler.address)
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(function), platform=platform)


def call_registered(target: str, call: XlaCall, aliases: dict[int, int], arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the results, as JAX arrays, of the custom call named `target` (from `register_program`) on `arrays`.

    `call` has the shapes and types of the results. `aliases` is {number of an argument: number of the result that
    shares its buffer}. Inside a shard_map, the results vary over the same mesh axes as the first array.

    Under vmap it stays one call. An array without the batch dimension gets one of extent 1; if there are aliases, it is
    broadcast in memory instead.
    """
    array_type = jax.typeof(arrays[0]) if arrays else None
    options: dict[str, Any] = {}
    if array_type is not None and array_type.mat.varying:  # within a shard_map, results vary over the arrays' mesh axes
        sharding = jax.sharding.NamedSharding(array_type.sharding.mesh, jax.sharding.PartitionSpec())
        options = {"sharding": sharding, "manual_axis_type": array_type.mat}
    results = [jax.ShapeDtypeStruct(b.shape, b.dtype, **options) for b in call.results]
    method = "broadcast_all" if aliases else "expand_dims"
    run = jax.ffi.ffi_call(target, results, vmap_method=method, input_output_aliases=aliases)
    return tuple(run(*arrays))


def with_common_varying_axes(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Return a tuple of `arrays`, all marked as varying over the same mesh axes of a shard_map: the union of their
    axes.

    Outside of a shard_map, the arrays are unchanged. An array that is replicated along such an axis keeps its values.
    JAX differentiates this step itself: the gradient with respect to a replicated array is the sum over the axis.
    """
    axes = [jax.typeof(a).mat.varying for a in arrays]
    varying = frozenset().union(*axes)
    missing = [tuple(varying - present) for present in axes]
    return tuple(jax.lax.pcast(a, m, to="varying") if m else a for a, m in zip(arrays, missing, strict=True))


def require_representable(buffer: XlaBuffer, where: str) -> None:
    """Raise ArgumentError if JAX stores elements of the type of `buffer` differently than kernels do.

    This is so for types of 2 to 7 bits, which XLA packs into bytes, and for 64-bit types unless jax_enable_x64 is set.
    `where` names the array in the error.
    """
    kind = from_numpy(buffer.dtype)
    if kind is not None and 1 < kind.bits < 8:
        raise ArgumentError(f"{where} holds {kind}, of which XLA puts several into a byte; convert it to i8 or f8")
    if jax.dtypes.canonicalize_dtype(buffer.dtype) != buffer.dtype:
        raise ArgumentError(
            f"{where} holds {buffer.dtype}, which JAX narrows now; say jax.config.update('jax_enable_x64', True) first"
        )


def xla_buffer_of(array: Any, where: str) -> XlaBuffer:
    """Return the shape and element type of a JAX or numpy array as an `XlaBuffer`.

    Raise ArgumentError, which calls the array `where`, if `array` is of another type, if it holds random keys of JAX,
    or if an extent is symbolic.
    """
    if not isinstance(array, jax.Array | np.ndarray):
        raise ArgumentError(
            f"{where} is a {type(array).__name__}; tilewright.jax takes arrays of JAX and numpy: pass jnp.asarray of it"
        )
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        raise ArgumentError(f"{where} holds {array.dtype}, which are no numbers; pass jax.random.key_data of it")
    symbolic = [n for n in array.shape if not isinstance(n, int)]
    if symbolic:
        raise ArgumentError(
            f"{where} has the shape {array.shape}, in which {symbolic[0]} is symbolic; kernels are compiled for "
            "numbers: export a program for each shape"
        )
    return XlaBuffer(tuple(array.shape), np.dtype(array.dtype))
