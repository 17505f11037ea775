"""Calls of kernels that are compiled when JAX lowers a program, for the platform that it lowers for.

While JAX traces, it is not known whether arrays will be on a CPU or a GPU. So a call is a primitive of JAX while it is
traced. When JAX lowers it, the kernel is compiled for that platform, and the call becomes a custom call of XLA. If a
program is lowered for CPUs only, nothing is compiled for GPUs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from tilewright.compiler.compiled import Compiled
from tilewright.errors import TargetError
from tilewright.jax.entries import XlaBuffer, XlaCall
from tilewright.jax.members import xla_program_of
from tilewright.jax.registry import call_registered, register_program
from tilewright.targets.names import CPU, CUDA

TARGETS = {"cpu": CPU, "cuda": CUDA}
"""{JAX's name of a platform: the target for which kernels are compiled there}."""


class PlatformKernel(ABC):
    """A kernel with one output, not compiled yet. It is hashable, and equal ones compute the same."""

    @abstractmethod
    def compile(self, arrays: Sequence[XlaBuffer], target: str) -> tuple[Compiled, Sequence[str]]:
        """Abstract: return (the kernel compiled for `target`, the names of its inputs).

        `arrays` has the shapes and types of the inputs of a call; the names are in the same order. `target` is one of
        `TARGETS`.
        """


def call_on_platform(kernel: PlatformKernel, arrays: Sequence[Any], result: XlaBuffer) -> Any:
    """Return the output of `kernel` for the JAX arrays `arrays`. The kernel is compiled for the platform of the call.

    `result` has the output's shape and type. The call has no rule for vmap: the caller must have one.
    """
    return _KERNEL_CALL.bind(*arrays, kernel=kernel, result=result)


_KERNEL_CALL = Primitive("tilewright_kernel")
"""A kernel call; its parameters are a `PlatformKernel`, and the shape and type of its result."""


def _result_type(*types: Any, kernel: PlatformKernel, result: XlaBuffer) -> Any:
    """Return JAX's type of a call's result, with the shape and element type of `result`.

    `types` are JAX's types of the call's arrays. Inside a shard_map, the result varies over the same mesh axes as the
    first array. `kernel` is not used.
    """
    first = types[0]
    sharding = jax.sharding.NamedSharding(first.sharding.mesh, jax.sharding.PartitionSpec())
    return jax.core.ShapedArray(result.shape, result.dtype, sharding=sharding, manual_axis_type=first.mat)


def _run(*arrays: Any, **parameters: Any) -> Any:
    """Return the result of a kernel call outside of any transformation of JAX, such as within `jax.disable_jit`.

    `arrays` and `parameters` are those of the primitive `_KERNEL_CALL`. The call is jitted here.
    """
    with jax.disable_jit(False):
        return jax.jit(partial(_KERNEL_CALL.bind, **parameters))(*arrays)


def _call_compiled(platform: str, *arrays: Any, kernel: PlatformKernel, result: XlaBuffer) -> list[Any]:
    """Return a list with the result of a kernel call, computed by an XLA custom call.

    This is the primitive's lowering rule for `platform` ("cpu", "cuda"). The kernel is compiled for the shapes of
    `arrays`, and registered with XLA. Arrays are reshaped if the kernel declares other shapes than the caller's.
    `result` has the output's shape and type.
    """
    compiled, inputs = kernel.compile([XlaBuffer(a.shape, np.dtype(a.dtype)) for a in arrays], TARGETS[platform])
    arguments = compiled.running.arguments
    shapes = {arg.name: arg.shape for arg in arguments}
    reshaped = tuple(jnp.reshape(a, shapes[n] or a.shape) for n, a in zip(inputs, arrays, strict=True))
    (output_shape,) = (arg.shape for arg in arguments if arg.name not in inputs)
    call = XlaCall(
        tuple(XlaBuffer(a.shape, np.dtype(a.dtype)) for a in reshaped),
        (XlaBuffer(output_shape or result.shape, result.dtype),),
        tuple(inputs.index(arg.name) if arg.name in inputs else len(inputs) for arg in arguments),
    )
    name, buffers = compiled.name, [call.buffers[index] for index in call.buffer_indices]
    program, text = xla_program_of(compiled, buffers, None, name)
    (output,) = call_registered(register_program(name, text, program, call), call, {}, reshaped)
    return [jnp.reshape(output, result.shape)]


def _refuse_platform(context: Any, *operands: Any, **parameters: Any) -> NoReturn:
    """Raise TargetError: no kernels are compiled for the platform that JAX lowers for.

    This is the primitive's lowering rule for all platforms that are not in `TARGETS`. `context` has the names of the
    platforms; the other arguments are not used.
    """
    platforms = context.platforms or context.module_context.platforms
    raise TargetError(
        f"tilewright.jax compiles kernels for CPUs and for NVIDIA's GPUs ({', '.join(TARGETS)}), not for "
        f"{', '.join(p for p in platforms if p not in TARGETS)}: put the arrays on jax.devices('cpu')[0]"
    )


_KERNEL_CALL.def_impl(_run)
_KERNEL_CALL.def_abstract_eval(_result_type)
mlir.register_lowering(_KERNEL_CALL, _refuse_platform)
for _platform in TARGETS:
    mlir.register_lowering(_KERNEL_CALL, mlir.lower_fun(partial(_call_compiled, _platform)), platform=_platform)
