"""A layer: weights that are copied once to the device where it runs, and packed there once for each size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tilewright.compiler.compiled import Compiled
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DType, DTypeLike
from tilewright.limits import written
from tilewright.ops.arrays import (
    Learnt,
    array,
    dtype_of,
    extents_text,
    in_place,
    is_on_gpu,
    known_target,
    on_device,
    on_host,
    out_type,
    result,
    returned,
    target_for,
)
from tilewright.ops.sources import Source
from tilewright.runtime.device_arrays import DeviceArray, common_device, share_memory
from tilewright.runtime.eager import eager
from tilewright.runtime.overlap import require_own_memory
from tilewright.runtime.scripts import Kept, Whole
from tilewright.runtime.tensors import Form, torch_of
from tilewright.targets.calls.table import UNLIKE
from tilewright.targets.names import is_gpu

NAMES = ("x", "w", "bias", "residual", "y")
"""The kernel's argument names for the input, weights, bias, residual and result of a layer."""


class LayerCall(NamedTuple):
    """A completed call of a layer: `result` as the caller gets it, and the array `out` that holds it.

    `launch` is the bound kernel that computed it, None if the result is empty. `whole` lists its launches for a launch
    cache, None if a call does more than launch.
    """

    result: Any
    out: Any
    launch: Any = None
    whole: Whole | None = None


def call_once(learnt: Learnt, make: Callable[[], Layer], x: Any, weight: Any, bias: Any, residual: Any = None) -> Any:
    """Return the result of a layer that `make` makes for this call alone, applied to `x` and, if it is not None, to
    `residual`.

    `weight` and `bias` (or None) are the arrays that `make` gives to the layer. `learnt` holds the launches of earlier
    calls with the same options. A call with arguments of the same types, shapes and strides as an earlier one repeats
    its launch with new addresses, and makes no layer; any other call is recorded in `learnt`. The calls that share a
    `learnt` must all have a residual, or all have none.
    """
    arrays = (x, weight, bias, residual)
    passed = tuple(a for a in arrays if a is not None)
    result = learnt.call(*passed)
    if result is not UNLIKE:
        return result
    layer = make()
    layer.constant = False
    call = layer._run_unremembered(x, residual)
    if isinstance(call.out, np.ndarray):
        names = [name for name, a in zip(layer.names, arrays, strict=False) if a is not None]
        learnt.learn_on_host(passed, call.out, call.whole, [*names, layer.names[-1]])
    elif call.launch is not None and is_on_gpu(x):
        learnt.on_gpu.learn(passed, [call.result], call.launch)
    return call.result


class Layer:
    """Weights, perhaps a bias, and a kernel for each size; call it with an array.

    It keeps references to the arrays that it was made of. Each call checks whether torch wrote to one of them since the
    weights were packed.
    """

    def __init__(self, weight: Any, bias: Any, out_dtype: DTypeLike | None, target: str | None):
        self._source = Source(weight, bias)
        self.target = known_target(target)
        self.constant = True
        """Whether the weights are packed once and reused by many calls."""
        self.weight, self.bias = self._source.read(self.ranks, self.rows)
        self.out: DType = out_type(out_dtype, dtype_of(self.weight, "weight"))
        self._drop_packed()

    def _drop_packed(self) -> None:
        """Drop the packed weights, their copies on devices and all remembered launches; later calls make them anew."""
        self._packed: dict[Any, Kept] = {}
        self._placed: dict[int | None, tuple[Any, Any]] = {}
        self._learnt = Learnt()

    @eager
    def refresh(self) -> None:
        """Read weights and bias anew from the arrays that the layer was made of; the next call packs them again.

        A call does this itself if torch counted a write to one of these tensors. torch counts none through
        `tensor.data`, through a numpy array that shares the memory, or by a kernel that was bound to the tensor; numpy
        counts none at all. Raise `ArgumentError` if the weights' shape or type has changed.

        >>> import numpy as np, tilewright
        >>> weight, x = np.ones((1, 2), np.float32), np.ones((1, 2), np.float32)
        >>> layer = tilewright.Linear(weight)
        >>> layer(x)
        array([[2.]], dtype=float32)
        >>> weight[:] = 3
        >>> layer.refresh()
        >>> layer(x)
        array([[6.]], dtype=float32)
        """
        weight, bias = self._source.read(self.ranks, self.rows)
        if weight.shape != self.weight.shape or weight.dtype != self.weight.dtype:
            raise ArgumentError(
                f"weight is {extents_text(weight.shape)} of {weight.dtype} now; the layer was made of "
                f"{extents_text(self.weight.shape)} of {self.weight.dtype}: make a new layer"
            )
        self.weight, self.bias = weight, bias
        self._drop_packed()

    def _refresh_if_written(self) -> None:
        """Read weights and bias anew if torch has counted a write to them since they were last read, or if torch counts
        no writes to them.

        Arrays that are no torch tensors are not read anew.
        """
        if self._source.is_changed():
            self.refresh()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a public one, such as the activation, also drops packed weights and remembered calls."""
        object.__setattr__(self, name, value)
        if not name.startswith("_"):
            self._drop_packed()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy: weights on the host, without packed weights or copies on devices."""
        weight, bias = on_host(self.weight), None if self.bias is None else on_host(self.bias)
        held = {"weight": weight, "bias": bias, "_source": Source(weight, bias)}
        return {**self.__dict__, **held, "_packed": {}, "_placed": {}, "_learnt": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._drop_packed()

    def __copy__(self) -> Layer:
        """Return a layer of the same arrays."""
        copy = object.__new__(type(self))
        copy.__setstate__({**self.__dict__, "_source": Source(*self._source.given)})
        return copy

    # -- to be defined by subclasses -----------------------------------------------------------------------

    names: tuple[str, ...] = NAMES
    """The kernel's argument names for the input, weights, bias, residual and result."""
    rows: str
    """The plural noun for the first dimension of the weights, in messages."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the allowed numbers of dimensions of the weights. Subclasses define this property."""
        raise NotImplementedError

    def _checked_input(self, x: Any) -> Any:
        """Return the argument `x` of a call as a contiguous array. Subclasses define this method.

        Raise `ArgumentError` if `x` is no array or has a wrong number of dimensions.
        """
        raise NotImplementedError

    def _shape(self, x: Any) -> tuple[int, ...]:
        """Return the result's shape for the input `x`; raise `ArgumentError` unless `x` fits the weights. Subclasses
        define this method.
        """
        raise NotImplementedError

    def _kernel(self, x: Any, target: str, residual: bool) -> Compiled:
        """Return the compiled kernel for inputs of the shape and type of `x` on `target`. Subclasses define this
        method.

        With `residual`, the kernel takes a residual too.
        """
        raise NotImplementedError

    # -- calling ---------------------------------------------------------------------------------------------

    @eager
    def __call__(self, x: Any, residual: Any = None) -> Any:
        """Return the layer's result for `x`: a torch tensor on the same device if `x` is one, else a numpy array.

        `residual` is an array of the result's shape and type that is added before the activation.
        """
        self._refresh_if_written()
        return self._call_with_read_weights(x, residual)

    def _call_with_read_weights(self, x: Any, residual: Any = None) -> Any:
        """Return the layer's result for `x` and `residual` (or None), with the weights as they were last read.

        A call whose arguments have the same types, shapes and strides as those of an earlier call repeats its
        remembered launch. Any other call is checked, run and then remembered.
        """
        learnt = self._learnt
        passed = (x,) if residual is None else (x, residual)
        result = learnt.on_host.call(*passed)
        if result is not UNLIKE:
            return result
        torch = torch_of(x)
        # While a CUDA graph is captured, no remembered launch is used: the graph would keep the weights' addresses.
        if torch is not None and x.is_cuda and not torch.cuda.is_current_stream_capturing():
            result = learnt.on_gpu.call(x, *self._weight_tensors(x), *passed[1:])
            if result is not UNLIKE:
                return result
        call = self._run_unremembered(x, residual)
        if call.whole is not None and isinstance(call.out, np.ndarray):
            names = [self.names[index] for index in (0, *([] if residual is None else [3]), -1)]
            learnt.learn_on_host(passed, call.out, call.whole, names)
        elif call.launch is not None and is_on_gpu(x):
            learnt.on_gpu.learn((x, *self._weight_tensors(x), *passed[1:]), [call.result], call.launch)
        return call.result

    def run(self, x: Any) -> tuple[Any, Any]:
        """Run the layer on `x` and return (result, launch).

        `launch` is the bound kernel that computed the result, a function that has been called already; None if the
        result is empty. No remembered launch is used.
        """
        call = self._run_unremembered(x)
        return call.result, call.launch

    def _weight_tensors(self, x: Any) -> list[Any]:
        """Return [weights, bias] as torch tensors on the GPU of the torch tensor `x`, without the bias if there is
        none.

        The list is empty if the weights have not been copied to this GPU.
        """
        on_its_gpu = self._placed.get(x.device.index or 0, ())
        return [a.given for a in on_its_gpu if a is not None]

    def _run_unremembered(self, x: Any, residual: Any = None) -> LayerCall:
        """Run the layer on `x` and `residual` (or None) without remembered launches, and return the completed call.

        The arguments are checked, and a kernel is compiled if there is none for them. Raise `ArgumentError` if the
        arguments do not fit.
        """
        checked, form = self._checked_input(x), Form([x])
        form.require(self.out, "the result")
        shape, target = self._shape(checked), target_for(self.target, {"x": checked})
        residual_array = None if residual is None else self._checked_residual(residual, shape, checked, target)
        out = result(target, [checked], shape, self.out)
        if not out.size:
            return LayerCall(returned(out, form), out)
        kernel = self._kernel(checked, target, residual_array is not None)
        launch, whole = self._bind_kernel(kernel, checked, out, target, residual_array, passing=True)
        launch()
        return LayerCall(returned(out, form), out, launch, whole)

    def _checked_residual(self, residual: Any, shape: tuple[int, ...], x: Any, target: str) -> Any:
        """Return `residual` as a contiguous array.

        Raise `ArgumentError` unless it has the result's `shape` and type, if it is on another GPU than the input `x`,
        or if it is on a GPU and the call's `target` is a CPU.
        """
        checked = array(residual, "residual", (len(shape),))
        if checked.shape != shape or dtype_of(checked, "residual") is not self.out:
            raise ArgumentError(
                f"residual is {extents_text(checked.shape)} of {checked.dtype}; it must be as the result, "
                f"{extents_text(shape)} of {self.out}"
            )
        if isinstance(checked, DeviceArray) and not is_gpu(target):
            raise ArgumentError(
                f"residual lies on GPU {checked.device}, x on the host, where the call runs; move x to the GPU, or "
                "residual to the host"
            )
        common_device("the call", [x, checked])
        return checked

    @eager
    def kernel(self, x: Any) -> tuple[Compiled, Any]:
        """Return (kernel, out) for inputs of the shape and type of `x`, without a residual.

        `kernel` is the compiled kernel, `out` a new, uninitialised array for its result. Raise `ArgumentError` if `x`
        does not fit.
        """
        checked = self._checked_input(x)
        shape, target = self._shape(checked), target_for(self.target, {"x": checked})
        return self._kernel(checked, target, False), result(target, [checked], shape, self.out)

    @eager
    def bind(self, x: Any, out: Any, kernel: Compiled | None = None) -> Callable[[], None]:
        """Return a function without arguments that runs the layer: each call reads the elements of `x` and writes the
        result to `out`.

        Both arrays must be contiguous, and `out` must not share memory with `x`. The weights are packed now; the
        function does not notice later writes to them. `kernel` is the first result of `kernel(x)`; with None, the
        kernel is looked up or compiled. Raise `ArgumentError` if an array does not fit.
        """
        self._refresh_if_written()
        input_array, output = (in_place(array, name) for array, name in ((x, "x"), (out, "out")))
        if not isinstance(output, DeviceArray):
            require_own_memory(output, "out")
        shape = self._shape(input_array)
        if output.shape != shape or output.dtype != self.out.numpy:
            raise ArgumentError(
                f"out is {extents_text(output.shape)} of {output.dtype}; it must be {extents_text(shape)} of {self.out}"
            )
        if share_memory(output, input_array):
            raise ArgumentError("out shares memory with x; give them memory of their own")
        target = target_for(self.target, {"x": input_array, "out": output})
        if kernel is not None and not isinstance(kernel, Compiled):
            raise ArgumentError(f"kernel={written(kernel, 80)}: what `kernel(x)` of this layer gives, or nothing")
        return self._bind_kernel(
            self._kernel(input_array, target, False) if kernel is None else kernel, input_array, output, target
        )[0]

    def _bind_kernel(
        self, kernel: Compiled, x: Any, out: Any, target: str, residual: Any = None, *, passing: bool = False
    ) -> tuple[Callable[[], None], Whole | None]:
        """Return (launch, whole) for one call of `kernel`.

        `launch` is a function without arguments: `kernel` bound to the input `x`, the weights, the bias, `residual` (or
        None) and the output `out`. `whole` lists its launches for a launch cache; it is None if `launch` does more than
        launch. The weights are copied to `target` and packed, unless they are already. With `passing`, the caller
        promises to call `launch` exactly once, right away.
        """
        weight, bias = self._weights_on_target(x, target)
        arrays = dict(zip(self.names, (x, weight, bias, residual, out), strict=True))
        arrays = {name: array for name, array in arrays.items() if array is not None}
        if not self.constant:
            return kernel.bind_whole(arrays, passing=passing)
        key = kernel, common_device("the call", [x])
        if key not in self._packed:
            weights_and_bias = tuple(a for a in (weight, bias) if a is not None)
            self._packed[key] = replace(kernel.keep(arrays), given=weights_and_bias)
        return kernel.bind_whole(arrays, self._packed[key], passing=passing)

    def _weights_on_target(self, x: Any, target: str) -> tuple[Any, Any]:
        """Return (weights, bias or None) in the memory where a call on `target` with input `x` runs.

        They are copied to each device only once, until they are read anew.
        """
        device_number = common_device("the call", [x]) if is_gpu(target) else None
        if device_number not in self._placed:
            sources = (self.weight, self.bias)
            self._placed[device_number] = tuple(  # type: ignore[assignment]
                None if a is None else on_host(a) if device_number is None else on_device(a, target, [x])
                for a in sources
            )
        return self._placed[device_number]
