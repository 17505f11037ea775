"""Compiled kernels as JAX functions, for jit, vmap and shard_map, and for grad if the author gives a backward."""

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
"""(inputs, outputs, cotangents of the outputs) -> cotangent or None for each input."""
GIVEN = "given"
"""In a `Form`: an argument that is traced, an array or a number whose value may differ in each call."""
Form = tuple[Any, ...]
"""For each argument of a kernel: GIVEN, None (an output that is left out), or the value of a number that decides
sizes."""


def function(
    executable: Any, *, backward: Backward | None = None, params: Mapping[str, int] | None = None
) -> JaxFunction:
    """Return a compiled kernel as a JAX function, for jit, vmap and shard_map, and for grad if it has a `backward`.

    `executable` is what `tilewright.compile(kernel)` or `compile_text(text)` returns, for the CPU at hand; one from
    `compile` may also be for a GPU, and is called on JAX's arrays there. Call the result with the kernel's arguments,
    by position or by name. It returns all outputs: one array, or a tuple. An output that is left out starts as zeros;
    one that is passed starts with the values of that array, which is not changed itself.

    `backward(inputs, outputs, cotangents)` gets three tuples: the arguments of the call, its results, and the gradients
    with respect to these; it returns the gradient with respect to each argument, None for zeros. It is any JAX
    function, such as one that calls other kernels. Without it, differentiation raises `MissingBackward`.

    Element types and shapes are checked when JAX traces. `params` has values for parameters of a block program that no
    shape determines.

    >>> import jax, jax.numpy as jnp, tilewright, tilewright.jax
    >>> relu = tilewright.jax.function(tilewright.compile(tilewright.kernels.activation("relu")))
    >>> jax.jit(lambda x: relu(x) + 1)(jnp.array([[-2.0, 2.0]]))
    Array([[1., 3.]], dtype=float32)
    """
    return JaxFunction(executable, backward, params)


class JaxFunction:
    """A compiled kernel as a JAX function, made by `function`."""

    def __init__(self, executable: Any, backward: Backward | None, params: Mapping[str, int] | None):
        """Check the arguments, which are those of `function`; raise ArgumentError if XLA cannot call the kernel."""
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
        """Return a text with the kernel's name and arguments: "<function of JAX gemm(a, b, c), with a backward>"."""
        derivable = "" if self._backward is None else ", with a backward"
        return f"<function of JAX {self.__name__}({', '.join(a.name for a in self._kernel.arguments)}){derivable}>"

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return the kernel's outputs, one array or a tuple of them, for its arguments by position or by name."""
        given = self._ordered_arguments(args, named)
        form: list[Any] = []
        arrays: list[Any] = []
        for argument, value in zip(self._kernel.arguments, given, strict=True):
            if value is None:
                form.append(None)
                continue
            where = f"{self.__name__}: argument {argument.name}"
            array = _number_as_array(value, argument, where) if argument.is_number else value
            form.append(array.item() if argument.is_size else GIVEN)
            arrays.append(_checked_array(array, argument, where))
        return self._function_of_form(tuple(form))(*with_common_varying_axes(arrays))

    def _ordered_arguments(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return a call's arguments in the kernel's order, None for outputs that are left out.

        `args` are the positional arguments, `named` the keyword arguments.
        """
        names = [a.name for a in self._kernel.arguments]
        outputs = [a.name for a in self._kernel.arguments if not a.is_required]
        given = arranged(self.__name__, names, outputs, args, named)
        for argument, value in zip(self._kernel.arguments, given, strict=True):
            if value is None and argument.is_required:
                raise ArgumentError(f"{self.__name__}: argument {argument.name} is None; it must be an array")
        return given

    @cached_property
    def _function_of_form(self) -> Callable[[Form], Callable[..., Any]]:
        """Return `_compile_for_form` with a cache: it maps a `Form` to the jitted function for calls of that form."""
        return lru_cache(maxsize=64)(self._compile_for_form)

    def _compile_for_form(self, form: Form) -> Callable[..., Any]:
        """Return the jitted, differentiable JAX function for calls of one form; it takes the arrays that they pass.

        `form` says which arguments are passed, and has the numbers that decide sizes.
        """
        run = partial(self._trace, form)
        run.__name__ = self.__name__  # type: ignore[attr-defined]
        transformed: Callable[..., Any] = jax.jit(with_derivative(run, self.__name__, self._backward))
        return transformed

    def _trace(self, form: Form, *arrays: Any) -> Any:
        """Return the kernel's outputs for a call of `form`, as JAX traces it: by a custom call on `arrays`.

        The kernel is compiled for the shapes of the arrays and registered with XLA. If arrays are empty, nothing is
        called.
        """
        inputs = tuple(XlaBuffer(tuple(a.shape), np.dtype(a.dtype)) for a in arrays)
        kernel, rest = self._kernel, iter(inputs)
        stand_ins = [
            None if f is None else _stand_in(a, next(rest), f) for a, f in zip(kernel.arguments, form, strict=True)
        ]
        specialised = kernel.specialise(tuple(stand_ins))
        buffer_indices: list[int] = []
        results: list[XlaBuffer] = []
        zeroed_results: list[int] = []
        aliases: dict[int, int] = {}
        passed = 0
        for argument, given, array in zip(kernel.arguments, form, specialised.arrays, strict=True):
            if argument.is_output:
                if given is not None:
                    aliases[passed] = len(results)
                elif not argument.is_fully_written:
                    zeroed_results.append(len(results))
                require_representable(array, f"{self.__name__}: the output {argument.name}")
                buffer_indices.append(len(arrays) + len(results))
                results.append(array)
            else:
                buffer_indices.append(passed)
            passed += given is not None
        if specialised.program is None:
            passed_outputs = {result: arrays[index] for index, result in aliases.items()}
            outputs = tuple(passed_outputs.get(n, jnp.zeros(b.shape, b.dtype)) for n, b in enumerate(results))
        else:
            call = XlaCall(inputs, tuple(results), tuple(buffer_indices), tuple(zeroed_results))
            target = register_program(self.__name__, specialised.key_text, specialised.program, call)
            outputs = call_registered(target, call, aliases, arrays)
        return outputs[0] if len(outputs) == 1 else outputs


def with_derivative(run: Callable[..., Any], name: str, backward: Backward | None) -> Any:
    """Return the JAX function `run` with a rule for reverse-mode derivatives: `backward`.

    If `backward` is None, any derivative raises MissingBackward. `name` is the kernel's name in errors.
    """
    if backward is None:
        refusing = jax.custom_jvp(run)

        def refuse(primals: Any, tangents: Any) -> Any:
            """Raise MissingBackward, as the jvp rule of a kernel without a backward."""
            raise MissingBackward(
                f"{name} has no derivative: name one, tilewright.jax.function(executable, backward=...), or pass "
                "jax.lax.stop_gradient of its arguments"
            )

        refusing.defjvp(refuse)
        return refusing
    differentiable = jax.custom_vjp(run)

    def forward(*arrays: Any) -> Any:
        """Return (the outputs, residuals for the backward: inputs and outputs), as jax.custom_vjp requires."""
        outputs = differentiable(*arrays)
        return outputs, (arrays, outputs)

    def back(residuals: Any, cotangents: Any) -> tuple[Any, ...]:
        """Return the gradient with respect to each input, or None, from the author's backward."""
        arrays, results = residuals
        outputs, output_gradients = (x if isinstance(x, tuple) else (x,) for x in (results, cotangents))
        gradients = backward(arrays, outputs, output_gradients)
        if not isinstance(gradients, tuple | list) or len(gradients) != len(arrays):
            raise ArgumentError(
                f"{name}: its backward gave {written(gradients, 80)}; it must be a tuple of {len(arrays)}: a "
                "derivative, or None, for each argument"
            )
        return tuple(gradients)

    differentiable.defvjp(forward, back)
    return differentiable


# -- arguments ----------------------------------------------------------------------------------------------


def _number_as_array(value: Any, argument: XlaArgument, where: str) -> Any:
    """Return a call's value for a number argument as an array without dimensions, of the argument's element type.

    A tracer of JAX is passed on (its weak type converted), unless sizes depend on the number: that raises. `where`
    names the argument in errors.
    """
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


def _checked_array(array: Any, argument: XlaArgument, where: str) -> Any:
    """Return `array` if it has the argument's element type, and no dimensions if that is a number; raise otherwise.

    `where` names the argument in errors.
    """
    buffer = xla_buffer_of(array, where)
    if buffer.dtype != argument.dtype.numpy:
        kind = from_numpy(buffer.dtype) or buffer.dtype
        raise ArgumentError(f"{where} holds {kind}; it must hold {argument.dtype}")
    require_representable(buffer, where)
    if argument.is_number and buffer.shape:
        raise ArgumentError(f"{where} has the shape {buffer.shape}; it must be a number of type {argument.dtype}")
    return array


def _stand_in(argument: XlaArgument, buffer: XlaBuffer, form: Any) -> Any:
    """Return a value in place of a traced argument, of which only type and shape are used, to specialise the kernel.

    It is an uninitialised array like `buffer`; for a number it is the argument's `form` (its value), or 0 if that is
    GIVEN.
    """
    if argument.is_number:
        return 0 if form is GIVEN else form
    return np.empty(buffer.shape, buffer.dtype)
