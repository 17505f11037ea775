"""A compiled kernel as a function of JAX: under jit, vmap, shard_map, and grad where a backward is named."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tilewright.errors import ArgumentError, MissingBackward, TracedArgument
from tilewright.ir.dtypes import from_numpy, plain_number
from tilewright.jax.entries import XlaBuffer, XlaCall
from tilewright.jax.members import XlaArgument, kernel_of
from tilewright.jax.registry import (
    call_registered,
    register_program,
    require_representable,
    with_common_varying_axes,
    xla_buffer_of,
)
from tilewright.limits import written
from tilewright.runtime.calls import arranged
from tilewright.runtime.scalars import scalar

Backward = Callable[[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]
GIVEN = "given"
"""Marks an argument that a call passes as an array; others are None (left out), or a number that decides sizes."""
Form = tuple[Any, ...]


def function(
    executable: Any, *, backward: Backward | None = None, params: Mapping[str, int] | None = None
) -> JaxFunction:
    """A compiled kernel as a function of JAX, which jit, vmap and shard_map take, and grad with a `backward`.

    `executable` is what `tilewright.compile(kernel)` or `compile_text(text)` gives, for the CPU at hand; of `compile`
    also what is for a GPU, to be called on JAX's arrays there. Call the result with the kernel's arguments, by
    position or by name. It returns all outputs: one array, or a tuple. An output that is left out starts as zeros; one
    that is given starts as what is given, which stays as it is.

    `backward(inputs, outputs, cotangents)` gets three tuples: the arguments of the call, its results, and the
    derivatives by these; it returns the derivatives by each argument, None for zeros. It is any function of JAX, such
    as one that calls other kernels. Without it a derivative is refused (`MissingBackward`).

    Element types and shapes are checked when JAX traces. `params` gives open parameters of a block program that no
    shape tells.

    >>> import jax, jax.numpy as jnp, tilewright, tilewright.jax
    >>> relu = tilewright.jax.function(tilewright.compile(tilewright.kernels.activation("relu")))
    >>> jax.jit(lambda x: relu(x) + 1)(jnp.array([[-2.0, 2.0]]))
    Array([[1., 3.]], dtype=float32)
    """
    return JaxFunction(executable, backward, params)


class JaxFunction:
    """A compiled kernel that JAX can call; see `function`."""

    def __init__(self, executable: Any, backward: Backward | None, params: Mapping[str, int] | None):
        if backward is not None and not callable(backward):
            raise ArgumentError(f"backward={written(backward, 80)}: a function of inputs, outputs and cotangents")
        if backward is not None:
            parameters = inspect.signature(backward)
            try:
                parameters.bind((), (), ())
            except TypeError as fault:
                raise ArgumentError(
                    f"backward is called with (inputs, outputs, cotangents), and takes {parameters}: {fault}"
                ) from None
        self._kernel, self._backward = kernel_of(executable, params), backward
        self.__name__ = self._kernel.name
        self.__signature__ = executable.__signature__

    def __repr__(self) -> str:
        derivable = "" if self._backward is None else ", with a backward"
        return f"<function of JAX {self.__name__}({', '.join(a.name for a in self._kernel.arguments)}){derivable}>"

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The kernel's outputs: one array, or a tuple of them."""
        given = self._placed(args, named)
        form: list[Any] = []
        arrays: list[Any] = []
        for argument, value in zip(self._kernel.arguments, given, strict=True):
            if value is None:
                form.append(None)
                continue
            where = f"{self.__name__}: argument {argument.name}"
            array = _number(value, argument, where) if argument.is_number else value
            form.append(array.item() if argument.is_size else GIVEN)
            arrays.append(_checked(array, argument, where))
        return self._transformed(tuple(form))(*with_common_varying_axes(arrays))

    def _placed(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, None for outputs that are left out."""
        names = [a.name for a in self._kernel.arguments]
        outputs = [a.name for a in self._kernel.arguments if not a.is_needed]
        given = arranged(self.__name__, names, outputs, args, named)
        for argument, value in zip(self._kernel.arguments, given, strict=True):
            if value is None and argument.is_needed:
                raise ArgumentError(f"{self.__name__}: argument {argument.name} is None; it must be an array")
        return given

    @cached_property
    def _transformed(self) -> Callable[[Form], Callable[..., Any]]:
        """The function of the arrays that calls of one form pass, as JAX differentiates and compiles it."""
        return lru_cache(maxsize=64)(self._made)

    def _made(self, form: Form) -> Callable[..., Any]:
        run = partial(self._traced, form)
        run.__name__ = self.__name__  # type: ignore[attr-defined]
        transformed: Callable[..., Any] = jax.jit(with_derivative(run, self.__name__, self._backward))
        return transformed

    def _traced(self, form: Form, *arrays: Any) -> Any:
        """The call, with arrays that JAX traces."""
        inputs = tuple(XlaBuffer(tuple(a.shape), np.dtype(a.dtype)) for a in arrays)
        kernel, rest = self._kernel, iter(inputs)
        likes = [None if f is None else _like(a, next(rest), f) for a, f in zip(kernel.arguments, form, strict=True)]
        member = kernel.member(tuple(likes))
        places: list[int] = []
        results: list[XlaBuffer] = []
        zeroed: list[int] = []
        aliases: dict[int, int] = {}
        taken = 0
        for argument, given, array in zip(kernel.arguments, form, member.arrays, strict=True):
            if argument.is_output:
                if given is not None:
                    aliases[taken] = len(results)
                elif not argument.is_whole:
                    zeroed.append(len(results))
                require_representable(array, f"{self.__name__}: the output {argument.name}")
                places.append(len(arrays) + len(results))
                results.append(array)
            else:
                places.append(taken)
            taken += given is not None
        if member.steps is None:
            held = {result: arrays[place] for place, result in aliases.items()}
            outputs = tuple(held.get(n, jnp.zeros(b.shape, b.dtype)) for n, b in enumerate(results))
        else:
            call = XlaCall(inputs, tuple(results), tuple(places), tuple(zeroed))
            target = register_program(self.__name__, member.text, member.steps, call)
            outputs = call_registered(target, call, aliases, arrays)
        return outputs[0] if len(outputs) == 1 else outputs


def with_derivative(run: Callable[..., Any], name: str, backward: Backward | None) -> Any:
    """A function of arrays with a derivative: the one that is named, or an error."""
    if backward is None:
        refusing = jax.custom_jvp(run)

        def refuse(primals: Any, tangents: Any) -> Any:
            raise MissingBackward(
                f"{name} has no derivative: name one, tilewright.jax.function(executable, backward=...), or pass "
                "jax.lax.stop_gradient of its arguments"
            )

        refusing.defjvp(refuse)
        return refusing
    differentiable = jax.custom_vjp(run)

    def forward(*arrays: Any) -> Any:
        outputs = differentiable(*arrays)
        return outputs, (arrays, outputs)

    def back(kept: Any, cotangents: Any) -> tuple[Any, ...]:
        arrays, results = kept
        outputs, given = (x if isinstance(x, tuple) else (x,) for x in (results, cotangents))
        gradients = backward(arrays, outputs, given)
        if not isinstance(gradients, tuple | list) or len(gradients) != len(arrays):
            raise ArgumentError(
                f"{name}: its backward gave {written(gradients, 80)}; it must be a tuple of {len(arrays)}: a "
                "derivative, or None, for each argument"
            )
        return tuple(gradients)

    differentiable.defvjp(forward, back)
    return differentiable


# -- arguments ----------------------------------------------------------------------------------------------


def _number(value: Any, argument: XlaArgument, where: str) -> Any:
    """A number as an array without dimensions, of the argument's element type."""
    if isinstance(value, jax.core.Tracer):
        if argument.is_size:
            raise TracedArgument(
                f"{where} decides about sizes, and is a tracer of JAX ({type(value).__name__}), which has no value; "
                "pass a number, or name it in static_argnames of jax.jit"
            )
        if value.ndim == 0 and getattr(value, "weak_type", False):
            return value.astype(argument.dtype.numpy)
        return value
    if isinstance(value, jax.Array | np.ndarray) and value.ndim == 0 and value.dtype == argument.dtype.numpy:
        return value
    number = plain_number(value.item() if isinstance(value, jax.Array | np.ndarray) and value.ndim == 0 else value)
    if number is None:
        raise ArgumentError(f"{where} is {written(value, 80)}; it must be a number of type {argument.dtype}")
    return np.asarray(scalar(number, argument.dtype, where), argument.dtype.numpy)


def _checked(array: Any, argument: XlaArgument, where: str) -> Any:
    """An array of the argument's element type."""
    buffer = xla_buffer_of(array, where)
    if buffer.dtype != argument.dtype.numpy:
        held = from_numpy(buffer.dtype) or buffer.dtype
        raise ArgumentError(f"{where} holds {held}; it must hold {argument.dtype}")
    require_representable(buffer, where)
    if argument.is_number and buffer.shape:
        raise ArgumentError(f"{where} has the shape {buffer.shape}; it must be a number of type {argument.dtype}")
    return array


def _like(argument: XlaArgument, buffer: XlaBuffer, form: Any) -> Any:
    """Return a stand-in for an array that is traced: one of its shape, whose elements nobody reads or writes."""
    if argument.is_number:
        return 0 if form is GIVEN else form
    return np.empty(buffer.shape, buffer.dtype)
