"""`operator(kernel, name=...)`: any kernel as an operator of torch."""

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
from tilewright.torch.batching import expanded, looped
from tilewright.torch.checks import dtype_named, kind_of, require_rank, require_together
from tilewright.torch.library import Backward, Definition, Result, define
from tilewright.torch.signatures import KernelArgument, Signature


def operator(
    kernel: Any,
    name: str | None = None,
    *,
    backward: Callable[..., Any] | Mapping[str, Any] | None = None,
    batch: str | None = None,
) -> Any:
    """A kernel as the operator `torch.ops.tilewright.NAME`: one node for torch.compile, export and make_fx.

    `kernel` is what `tilewright.compile` gives or takes; a kernel that is not compiled yet is compiled for the device
    of its tensors. The operator takes the kernel's inputs, and returns its outputs: fresh, contiguous tensors.

    `backward` is a function: `backward(gradient, *inputs)` gives a gradient or None for each input, by torch's
    functions or other operators. A parameter called `output` receives what the operator returned. Where the kernel has
    several outputs, `gradient` and `output` are tuples. Or it is a dictionary: for inputs, by name, kernels of their
    gradients, whose arguments are found by name: inputs and outputs of this kernel, and of an output y its gradient,
    dy. A gradient that is asked for and has no backward is an error.

    `batch` names the first dimension of arguments along which the kernel computes every element by itself: torch.vmap
    then makes one call. Otherwise it makes one for each element of its batch, and warns.

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
    gradients, keeps_output = _gradients(signature, called, backward)
    return define(
        Definition(
            called,
            signature.schema(),
            lambda *args: _check(signature, args),
            executables.run,
            gradients,
            keeps_output=keeps_output,
            learns=executables.on_host.launches is not None,
            vmap=None if batch is None else _batches(signature, called, batch),
        )
    )


class _Executables:
    """A kernel, compiled for the devices that calls bring; or the one that was compiled already."""

    def __init__(self, kernel: Any):
        self._kernel = kernel
        self._by_device: dict[str, Any] = {}
        self._given = kernel if isinstance(kernel, Executable | TextExecutable) else None
        self.on_host = self._for("cpu")
        self.signature = Signature(self.on_host)

    def _for(self, device: str) -> Any:
        if self._given is not None:
            return self._given
        if device not in self._by_device:
            self._by_device[device] = compile(self._kernel, target=device)
        return self._by_device[device]

    def run(self, _: Result | tuple[Result, ...], *args: Any) -> Any:
        """The outputs for tensors and numbers."""
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        inputs = iter(a.detach() if isinstance(a, torch.Tensor) else a for a in args)
        executable = self._for(tensors[0].device.type)
        return executable(**{a.name: next(inputs) for a in self.signature.inputs})


def _check(signature: Signature, args: Sequence[Any]) -> Result | tuple[Result, ...]:
    named = list(zip(signature.inputs, args, strict=True))
    tensors = {a.name: value for a, value in named if a.is_tensor}
    require_together(tensors)
    for a, value in named:
        if a.is_tensor:
            where = f"{signature.name}: argument {a.name}"
            require_rank(value, where, len(a.extents or ()))
            if kind_of(value, where) is not a.dtype:
                raise ArgumentError(f"{where} holds {kind_of(value, where)}; it must hold {a.dtype}")
    device = next(iter(tensors.values())).device
    shapes = signature.shapes(args)
    results = tuple(Result(s, dtype_named(a.dtype), device) for s, a in zip(shapes, signature.outputs, strict=True))
    return results[0] if len(results) == 1 else results


# -- backward ---------------------------------------------------------------------------------------------


def _gradients(
    signature: Signature, called: str, backward: Callable[..., Any] | Mapping[str, Any] | None
) -> tuple[Backward | None, bool]:
    """(the backward as the library takes it, whether it reads the output)."""
    if backward is None:
        return None, False
    if isinstance(backward, Mapping):
        return _by_kernels(signature, called, backward)
    if not callable(backward):
        raise ArgumentError(f"backward={written(backward, 80)}: a function, or a dictionary of inputs and kernels")
    parameters = inspect.signature(backward)
    keeps_output, names = "output" in parameters.parameters, [a.name for a in signature.inputs]
    count = len(names)
    try:
        parameters.bind(None, *names, **({"output": None} if keeps_output else {}))
    except TypeError as fault:
        raise ArgumentError(
            f"backward of {called} is called with (gradient, {', '.join(names)}), and takes {parameters}: {fault}"
        ) from None

    def by_function(gradient: Any, inputs: tuple[Any, ...], output: Any, needed: Sequence[bool]) -> Sequence[Any]:
        result = backward(gradient, *inputs, output=output) if keeps_output else backward(gradient, *inputs)
        every = tuple(result) if isinstance(result, tuple | list) else (result,)
        if len(every) != count:
            raise ArgumentError(f"backward of {called} gave {len(every)} gradients; {called} has {count} inputs")
        return every

    return by_function, keeps_output


def _by_kernels(signature: Signature, called: str, kernels: Mapping[str, Any]) -> tuple[Backward, bool]:
    names = [a.name for a in signature.inputs]
    outputs = [a.name for a in signature.outputs]
    known = {*names, *outputs, *(f"d{name}" for name in outputs)}
    operators: dict[str, tuple[Any, list[str]]] = {}
    for name, kernel in kernels.items():
        if name not in names:
            raise ArgumentError(f"backward: {called} has no input {name!r}; it has {', '.join(names)}")
        asked = [a.name for a in _Executables(kernel).signature.inputs]
        unknown = [a for a in asked if a not in known]
        if unknown:
            raise ArgumentError(
                f"backward of {name}: its kernel takes {unknown[0]!r}; there are {', '.join(sorted(known))}"
            )
        operators[name] = operator(kernel, f"{called}_d{name}"), asked

    def by_kernels(gradient: Any, inputs: tuple[Any, ...], output: Any, needed: Sequence[bool]) -> Sequence[Any]:
        of_outputs, results = ((v if isinstance(v, tuple) else (v,)) for v in (gradient, output))
        values = dict(zip(names, inputs, strict=True))
        values |= dict(zip(outputs, results, strict=False))
        values |= {f"d{name}": g for name, g in zip(outputs, of_outputs, strict=True)}
        of_inputs = []
        for name, wanted in zip(names, needed, strict=True):
            if wanted and name not in operators:
                raise ArgumentError(f"backward of {called} has no kernel for the gradient of {name}; give it one")
            call, asked = operators.get(name, (None, []))
            of_inputs.append(call(*(values[a] for a in asked)) if wanted and call is not None else None)
        return of_inputs

    return by_kernels, any(a in outputs for _, asked in operators.values() for a in asked)


# -- vmap -------------------------------------------------------------------------------------------------


def _batches(signature: Signature, called: str, batch: str) -> Callable[..., tuple[Any, Any]]:
    """The rule of a kernel with a batch dimension, which takes further batches in its stead."""

    def has(a: KernelArgument) -> bool:
        return bool(a.extents) and str((a.extents or (None,))[0]) == batch

    if not any(map(has, signature.inputs)) or not all(map(has, signature.outputs)):
        raise ArgumentError(f"batch={batch!r}: no input, or not every output of {called} has it as first dimension")

    def rule(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
        call = getattr(torch.ops.tilewright, called).default
        if any(d is not None and not has(a) for a, d in zip(signature.inputs, in_dims, strict=True)):
            return looped(called, call)(info, in_dims, *args)
        flat = [
            expanded(value, d, info.batch_size).flatten(0, 1) if has(a) else value
            for a, value, d in zip(signature.inputs, args, in_dims, strict=True)
        ]
        results = call(*flat)
        if isinstance(results, tuple):
            return tuple(t.unflatten(0, (info.batch_size, -1)) for t in results), (0,) * len(results)
        return results.unflatten(0, (info.batch_size, -1)), 0

    return rule
