"""`operator(kernel, name=...)`: registers any kernel as an operator of torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tilewright.compiler.kernels import Executable, compile
from tilewright.compiler.text import TextExecutable
from tilewright.errors import ArgumentError
from tilewright.limits import written
from tilewright.runtime.tensors import torch_dtype
from tilewright.torch.batching import expand_batch, loop_rule
from tilewright.torch.checks import element_type_of, require_rank, require_same_device, torch_dtype_of
from tilewright.torch.library import Backward, Definition, Result, define
from tilewright.torch.signatures import KernelArgument, Signature


def operator(
    kernel: Any,
    name: str | None = None,
    *,
    backward: Callable[..., Any] | Mapping[str, Any] | None = None,
    batch: str | None = None,
) -> Any:
    """Register a kernel as the operator `torch.ops.tilewright.NAME` and return it.

    torch.compile, export and make_fx keep it as one node. `kernel` is what `tilewright.compile` takes or returns; a
    kernel that is not compiled yet is compiled for the device of its tensors. The operator takes the kernel's inputs
    and returns its outputs: new, contiguous tensors. `name` None stands for the kernel's name.

    `backward` may be a function: `backward(gradient, *inputs)` returns a gradient or None for each input, computed by
    torch's functions or other operators. If it has a parameter `output`, it gets the operator's result there. If the
    kernel has several outputs, `gradient` and `output` are tuples. Or `backward` is {name of an input: kernel of its
    gradient}. The arguments of such a kernel are found by name: this kernel's inputs and outputs, and `dy` for the
    gradient of an output `y`. Asking for a gradient that has no backward is an error.

    `batch` names a dimension that is the first one of some inputs and of all outputs, and along which the kernel
    computes each element independently: torch.vmap then makes one call. Without it, vmap makes one call for each
    element of its batch, and warns. Raise ArgumentError if an argument does not fit the kernel.

    >>> import tilewright.kernels
    >>> row_sums = operator(tilewright.kernels.reduction("sum"), "row_sums_of_docstring",
    ...                     backward=lambda gradient, x: gradient[:, None].expand(x.shape))
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> row_sums(x)
    tensor([3., 7.], grad_fn=<row_sums_of_docstring_recordedBackward>)
    >>> torch.compile(row_sums, fullgraph=True, backend="aot_eager")(2 * x.detach())
    tensor([ 6., 14.])
    """
    executables = _Executables(kernel)
    signature = executables.signature
    for a in signature.outputs:
        if torch_dtype(torch, a.dtype) is None:
            raise ArgumentError(f"{signature.name}: the output {a.name} holds {a.dtype}, for which torch has no type")
    called = signature.name if name is None else name
    gradients, keeps_output = _normalise_backward(signature, called, backward)
    return define(
        Definition(
            called,
            signature.schema(),
            lambda *args: _check(signature, args),
            executables.run,
            gradients,
            keeps_output=keeps_output,
            learns=executables.on_host.launches is not None,
            vmap=None if batch is None else _batch_rule(signature, called, batch),
        )
    )


class _Executables:
    """A kernel's executables: one for each type of device that calls use, or the single executable that was passed."""

    def __init__(self, kernel: Any):
        """Take a kernel that `tilewright.compile` takes or has returned, and compile it for the host if need be."""
        self._kernel = kernel
        self._by_device: dict[str, Any] = {}
        self._compiled = kernel if isinstance(kernel, Executable | TextExecutable) else None
        self.on_host = self._executable_for("cpu")
        self.signature = Signature(self.on_host)

    def _executable_for(self, device: str) -> Any:
        """Return the executable for a type of device ("cpu", "cuda"); the kernel is compiled for it at the first use.

        If the constructor got an executable instead of a kernel, return that for every device.
        """
        if self._compiled is not None:
            return self._compiled
        if device not in self._by_device:
            self._by_device[device] = compile(self._kernel, target=device)
        return self._by_device[device]

    def run(self, _: Result | tuple[Result, ...], *args: Any) -> Any:
        """Return the kernel's outputs for `args`, the tensors and numbers that the kernel takes, in the order of its
        inputs.

        They are one tensor or a tuple, allocated by the executable. The first parameter, the outputs' shapes and
        dtypes, is not used. The device of the first tensor selects the executable.
        """
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        inputs = iter(a.detach() if isinstance(a, torch.Tensor) else a for a in args)
        executable = self._executable_for(tensors[0].device.type)
        return executable(**{a.name: next(inputs) for a in self.signature.inputs})


def _check(signature: Signature, args: Sequence[Any]) -> Result | tuple[Result, ...]:
    """Return the shape, dtype and device of the outputs of a call with `args`: one `Result`, or a tuple of several.

    `signature` has the kernel's inputs and outputs; `args` has a value for each input. Raise ArgumentError if devices,
    ranks, types or shapes do not fit.
    """
    named = list(zip(signature.inputs, args, strict=True))
    tensors = {a.name: value for a, value in named if a.is_tensor}
    require_same_device(tensors)
    for a, value in named:
        if a.is_tensor:
            where = f"{signature.name}: argument {a.name}"
            require_rank(value, where, len(a.extents or ()))
            if element_type_of(value, where) is not a.dtype:
                raise ArgumentError(f"{where} holds {element_type_of(value, where)}; it must hold {a.dtype}")
    device = next(iter(tensors.values())).device
    shapes = signature.shapes(args)
    results = tuple(Result(s, torch_dtype_of(a.dtype), device) for s, a in zip(shapes, signature.outputs, strict=True))
    return results[0] if len(results) == 1 else results


# -- backward ---------------------------------------------------------------------------------------------


def _normalise_backward(
    signature: Signature, name: str, backward: Callable[..., Any] | Mapping[str, Any] | None
) -> tuple[Backward | None, bool]:
    """Return (`backward` as a `Backward` function, True if it reads the operator's output); (None, False) for None.

    `backward` is a function, {name of an input: kernel}, or None, as `operator` takes it. A function reads the output
    if it has a parameter named `output`. `signature` has the operator's inputs and outputs, `name` is the operator's
    name. Raise ArgumentError for other values, and for a function that cannot be called with (gradient, *inputs).
    """
    if backward is None:
        return None, False
    if isinstance(backward, Mapping):
        return _backward_by_kernels(signature, name, backward)
    if not callable(backward):
        raise ArgumentError(f"backward={written(backward, 80)}: a function, or a dictionary of inputs and kernels")
    parameters = inspect.signature(backward)
    keeps_output, input_names = "output" in parameters.parameters, [a.name for a in signature.inputs]
    count = len(input_names)
    try:
        parameters.bind(None, *input_names, **({"output": None} if keeps_output else {}))
    except TypeError as fault:
        raise ArgumentError(
            f"backward of {name} is called with (gradient, {', '.join(input_names)}), and takes {parameters}: {fault}"
        ) from None

    def by_function(gradient: Any, inputs: tuple[Any, ...], output: Any, needed: Sequence[bool]) -> Sequence[Any]:
        """Return a tuple with a gradient or None for each of `inputs`, as the author's function gives them.

        `gradient` is with respect to `output`; both are tuples if there are several outputs. The function gets `output`
        only if it has a parameter of this name. `needed` is not used. Raise ArgumentError if the function does not
        return one gradient for each input.
        """
        result = backward(gradient, *inputs, output=output) if keeps_output else backward(gradient, *inputs)
        gradients = tuple(result) if isinstance(result, tuple | list) else (result,)
        if len(gradients) != count:
            raise ArgumentError(f"backward of {name} gave {len(gradients)} gradients; {name} has {count} inputs")
        return gradients

    return by_function, keeps_output


def _backward_by_kernels(signature: Signature, called: str, kernels: Mapping[str, Any]) -> tuple[Backward, bool]:
    """Return (a `Backward` function that calls `kernels`, True if one of them reads an output of the operator).

    `kernels` is {name of an input: kernel of its gradient}. Each kernel is registered as the operator
    `{called}_d{input}`. `signature` has the inputs and outputs of the operator named `called`. Raise ArgumentError for
    a key that names no input, and for a kernel with an argument that is no input, no output y and no gradient dy.
    """
    names = [a.name for a in signature.inputs]
    outputs = [a.name for a in signature.outputs]
    known = {*names, *outputs, *(f"d{name}" for name in outputs)}
    operators: dict[str, tuple[Any, list[str]]] = {}
    for name, kernel in kernels.items():
        if name not in names:
            raise ArgumentError(f"backward: {called} has no input {name!r}; it has {', '.join(names)}")
        argument_names = [a.name for a in _Executables(kernel).signature.inputs]
        unknown = [a for a in argument_names if a not in known]
        if unknown:
            raise ArgumentError(
                f"backward of {name}: its kernel takes {unknown[0]!r}; there are {', '.join(sorted(known))}"
            )
        operators[name] = operator(kernel, f"{called}_d{name}"), argument_names

    def call_kernels(gradient: Any, inputs: tuple[Any, ...], output: Any, needed: Sequence[bool]) -> Sequence[Any]:
        """Return a list with a gradient for each of `inputs`, computed by its kernel, or None for inputs that need
        none.

        `gradient` is with respect to `output`; both are tuples if there are several outputs. `needed` has a bool for
        each input. Raise ArgumentError if an input that needs a gradient has no kernel.
        """
        output_gradients, results = ((v if isinstance(v, tuple) else (v,)) for v in (gradient, output))
        values = dict(zip(names, inputs, strict=True))
        values |= dict(zip(outputs, results, strict=False))
        values |= {f"d{name}": g for name, g in zip(outputs, output_gradients, strict=True)}
        gradients = []
        for name, is_needed in zip(names, needed, strict=True):
            if is_needed and name not in operators:
                raise ArgumentError(f"backward of {called} has no kernel for the gradient of {name}; give it one")
            call, argument_names = operators.get(name, (None, []))
            gradients.append(call(*(values[a] for a in argument_names)) if is_needed and call is not None else None)
        return gradients

    return call_kernels, any(a in outputs for _, argument_names in operators.values() for a in argument_names)


# -- vmap -------------------------------------------------------------------------------------------------


def _batch_rule(signature: Signature, called: str, batch: str) -> Callable[..., tuple[Any, Any]]:
    """Return the vmap rule of the operator named `called`. `batch` is the name of the kernel's batch dimension.

    The rule merges the vmap dimension with the batch dimension, for one call. If an input without the batch dimension
    has a vmap dimension, the rule calls the operator once for each element of the vmap batch, with a BatchLoopWarning.
    `signature` has the operator's inputs and outputs. Raise ArgumentError unless some input and all outputs have the
    batch dimension first.
    """

    def has_batch(a: KernelArgument) -> bool:
        """True if the kernel's argument `a` is a tensor and the name of its first dimension is `batch`."""
        return bool(a.extents) and str((a.extents or (None,))[0]) == batch

    if not any(map(has_batch, signature.inputs)) or not all(map(has_batch, signature.outputs)):
        raise ArgumentError(f"batch={batch!r}: no input, or not every output of {called} has it as first dimension")

    def rule(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
        """Return (output with the vmap dimension first, 0) under torch.vmap; for several outputs both items are tuples.

        `args` are the operator's arguments. `in_dims` has the vmap dimension of each argument, or None.
        `info.batch_size` is its extent.
        """
        call = getattr(torch.ops.tilewright, called).default
        if any(d is not None and not has_batch(a) for a, d in zip(signature.inputs, in_dims, strict=True)):
            return loop_rule(called, call)(info, in_dims, *args)
        flat = [
            expand_batch(value, d, info.batch_size).flatten(0, 1) if has_batch(a) else value
            for a, value, d in zip(signature.inputs, args, in_dims, strict=True)
        ]
        results = call(*flat)
        if isinstance(results, tuple):
            return tuple(t.unflatten(0, (info.batch_size, -1)) for t in results), (0,) * len(results)
        return results.unflatten(0, (info.batch_size, -1)), 0

    return rule
