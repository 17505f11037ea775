"""Compiled kernels as JAX functions, for jit, vmap and shard_map, and for grad if the author gives a backward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

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
    executable: Any,
    *,
    backward: Backward | None = None,
    params: Mapping[str, int] | None = None,
    batch: str | None = None,
) -> JaxFunction:
    """Return a compiled kernel as a JAX function, for jit, vmap and shard_map, and for grad if `backward` is given.

    `executable` is the result of `tilewright.compile(kernel)` or `compile_text(text)`, for the CPU at hand or for a
    GPU; JAX's arrays must be there. Call the JAX function with the kernel's arguments, by position or by name. It
    returns all outputs: one array, or a tuple. An output that is left out starts as zeros if the kernel may not write
    all of it. An output that is passed starts with that array's values; the array itself is not changed.

    `backward(inputs, outputs, cotangents)` gets three tuples: the arguments of the call, its results, and the gradients
    with respect to these. It returns the gradient with respect to each argument, None for zeros. It is any JAX
    function, such as one that calls other kernels. Without it, differentiation raises `MissingBackward`.

    `batch` names a dimension that is the first one of some inputs and of all outputs, and along which the kernel
    computes each element independently: under vmap, the batch is merged with it, and the kernel runs once. Without it,
    the kernel runs once for each member of the batch.

    Element types and shapes are checked when JAX traces. `params` is {name: value} for parameters of a block program
    that no shape determines. Raise ArgumentError if XLA cannot call the kernel, or if the kernel has no such dimension
    `batch`.

    >>> import jax, jax.numpy as jnp, tilewright, tilewright.jax
    >>> relu = tilewright.jax.function(tilewright.compile(tilewright.kernels.activation("relu")))
    >>> jax.jit(lambda x: relu(x) + 1)(jnp.array([[-2.0, 2.0]]))
    Array([[1., 3.]], dtype=float32)
    """
    return JaxFunction(executable, backward, params, batch)


class JaxFunction:
    """A compiled kernel as a JAX function, made by `function`."""

    def __init__(self, executable: Any, backward: Backward | None, params: Mapping[str, int] | None, batch: str | None):
        """Take the arguments of `function`, and check them.

        Raise ArgumentError if XLA cannot call the kernel, if `backward` cannot be called with three arguments, or if
        the kernel has no dimension `batch` as `function` needs it.
        """
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
        self._kernel, self._backward, self._batch = kernel_of(executable, params), backward, batch
        self.__name__ = self._kernel.name
        if batch is not None:
            _require_batch(batch, self._kernel.arguments, self.__name__)
        self.__signature__ = executable.__signature__

    def __repr__(self) -> str:
        """Return a text with the kernel's name and arguments: "<function of JAX gemm(a, b, c), with a backward>"."""
        derivable = "" if self._backward is None else ", with a backward"
        return f"<function of JAX {self.__name__}({', '.join(a.name for a in self._kernel.arguments)}){derivable}>"

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return the kernel's outputs, one array or a tuple of them, for its arguments by position or by name.

        Raise ArgumentError if the arguments do not fit the kernel.
        """
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
        """Return a tuple with a value for each argument of the kernel, in the kernel's order; None for an output that
        is left out.

        `args` are the call's positional arguments, `named` its keyword arguments. Raise ArgumentError if a required
        argument is missing or None, or if an argument is unknown or given twice.
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
        """Return `_compile_for_form` with a cache: a function that maps a `Form` to the jitted JAX function for it.

        The cache keeps the 64 forms that were used last.
        """
        return lru_cache(maxsize=64)(self._compile_for_form)

    def _compile_for_form(self, form: Form) -> Callable[..., Any]:
        """Return the jitted JAX function for calls of one form: it takes the passed arrays and numbers, and returns the
        kernel's outputs.

        `form` has an entry for each argument of the kernel: GIVEN for an array or number that the call passes; None for
        an output that is left out; and the value itself for a number that decides sizes. Under vmap, a kernel with a
        batch dimension runs once, with the vmap batch merged into it. Differentiation calls the author's backward, or
        raises MissingBackward without one.
        """
        run: Any = partial(self._trace, form)
        run.__name__ = self.__name__
        if self._batch is not None:
            passed = [a for a, given in zip(self._kernel.arguments, form, strict=True) if given is not None]
            run = _with_merged_batch(run, [a.open_dim == self._batch for a in passed])
        transformed: Callable[..., Any] = jax.jit(with_derivative(run, self.__name__, self._backward))
        return transformed

    def _trace(self, form: Form, *arrays: Any) -> Any:
        """Return the kernel's outputs for `arrays`, one array or a tuple, while JAX traces: the results of an XLA
        custom call.

        `form` has an entry for each argument of the kernel: None for an output that is left out. `arrays` has the
        values of all other arguments. The kernel is compiled for the shapes of `arrays` and registered with XLA. If
        arrays are so empty that nothing is computed, there is no custom call: outputs that were passed are returned
        unchanged, and the others are zeros. Raise ArgumentError if the arguments do not fit the kernel.
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
    """Return the JAX function `run` with `backward` as its rule for reverse-mode derivatives.

    `backward` is as in `function`. If it is None, any derivative raises MissingBackward. `name` is the kernel's name in
    errors.
    """
    if backward is None:
        refusing = jax.custom_jvp(run)

        def refuse(primals: Any, tangents: Any) -> Any:
            """Raise MissingBackward: this is the derivative rule (jvp) of a kernel without a backward.

            JAX passes `primals` and `tangents` to each jvp rule; neither is used.
            """
            raise MissingBackward(
                f"{name} has no derivative: name one, tilewright.jax.function(executable, backward=...), or pass "
                "jax.lax.stop_gradient of its arguments"
            )

        refusing.defjvp(refuse)
        return refusing
    differentiable = jax.custom_vjp(run)

    def forward(*arrays: Any) -> Any:
        """Return (the outputs, (`arrays`, the outputs)): the result of the call, and the residuals that `back` gets."""
        outputs = differentiable(*arrays)
        return outputs, (arrays, outputs)

    def back(residuals: Any, cotangents: Any) -> tuple[Any, ...]:
        """Return a tuple with the gradient with respect to each input, or None, computed by the author's backward.

        `residuals` is (inputs, outputs) of the forward call; `cotangents` are the gradients with respect to the
        outputs. Raise ArgumentError unless the author's backward returns one entry for each input.
        """
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


# -- vmap -----------------------------------------------------------------------------------------------------


def _require_batch(batch: str, arguments: Sequence[XlaArgument], name: str) -> None:
    """Raise ArgumentError unless some input and all outputs have `batch` as the name of the first dimension, with an
    open extent.

    `arguments` are the kernel's arguments. `name` is the kernel's name in the error.
    """
    inputs, outputs = ([a for a in arguments if a.is_output is is_output] for is_output in (False, True))
    if not any(a.open_dim == batch for a in inputs) or not all(a.open_dim == batch for a in outputs):
        raise ArgumentError(
            f"batch={written(batch, 80)}: no input, or not every output of {name} has it as first dimension, with an "
            "extent that compile left open"
        )


def _with_merged_batch(run: Callable[..., Any], has_dim: Sequence[bool]) -> Any:
    """Return the JAX function `run` of a kernel with a rule for vmap, which merges the vmap batch with the kernel's
    batch dimension.

    `has_dim` has a bool for each array that `run` takes: True if the kernel's batch dimension is its first. All results
    have that dimension. If an array without it has a vmap batch, the rule does not merge: the kernel runs once for each
    member of the batch.
    """
    mergeable = custom_vmap(run)

    def batched(size: int, has_batch: Sequence[bool], *arrays: Any) -> tuple[Any, Any]:
        """Return (the results with the vmap batch as first dimension, True for each result): the rule for vmap.

        `size` is the batch's extent. `has_batch` has a bool for each of `arrays`: True if the vmap batch is its first
        dimension.
        """
        extents = [a.shape[1] for a, dim, has in zip(arrays, has_dim, has_batch, strict=True) if dim and has]
        if any(has and not dim for has, dim in zip(has_batch, has_dim, strict=True)):
            results = jax.vmap(run, [0 if has else None for has in has_batch])(*arrays)
        else:
            whole = (
                jnp.broadcast_to(a, (size, *a.shape)) if dim and not has else a
                for a, dim, has in zip(arrays, has_dim, has_batch, strict=True)
            )
            merged = mergeable(
                *(
                    a.reshape(size * extents[0], *a.shape[2:]) if dim else a
                    for a, dim in zip(whole, has_dim, strict=True)
                )
            )
            results = jax.tree.map(lambda y: y.reshape(size, extents[0], *y.shape[1:]), merged)
        return results, jax.tree.map(lambda _: True, results)

    mergeable.def_vmap(batched)
    return mergeable


# -- arguments ----------------------------------------------------------------------------------------------


def _number_as_array(value: Any, argument: XlaArgument, where: str) -> Any:
    """Return `value`, which a call passes for a number argument, as an array without dimensions of the argument's type.

    An array without dimensions and of this type is returned unchanged. So is a tracer of JAX, unless it is a weakly
    typed scalar: that is converted. Raise TracedArgument for a tracer if sizes depend on the number. Raise
    ArgumentError for any other value that is no number, and for a number that the type cannot hold. `where` names the
    argument in errors.
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
    """Return `array`, the value that a call passes for `argument`, unchanged after checks.

    Raise ArgumentError in four cases: it is no array of JAX or numpy; its element type is not the argument's; JAX
    stores this type differently than kernels do; or it has dimensions and the argument is a number. `where` names the
    argument in errors.
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
    """Return an untraced value in place of an argument that JAX traces, so that the kernel can be compiled for its
    shape.

    For an array it is an uninitialised numpy array with the shape and element type of `buffer`. For a number it is
    `form`, the number's value; or 0 if `form` is GIVEN, since the value may then differ in each call.
    """
    if argument.is_number:
        return 0 if form is GIVEN else form
    return np.empty(buffer.shape, buffer.dtype)
