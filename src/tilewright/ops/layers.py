"""A layer: weights that are brought once to where it runs, and packed there once for each size."""

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
    by,
    dtype_of,
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
"""What a layer's arrays are, in the order of its kernel's arguments."""


class LayerCall(NamedTuple):
    """A call of a layer: its result as callers get it, and the array that it is.

    `launch` gave it; None: nothing was to be computed. `whole` is what the launch consists of, where it only launches.
    """

    result: Any
    out: Any
    launch: Any = None
    whole: Whole | None = None


def call_once(learnt: Learnt, make: Callable[[], Layer], x: Any, weight: Any, bias: Any, residual: Any = None) -> Any:
    """The result of a layer that is used for this call alone; one like a call before only moves addresses.

    `learnt` is of calls of the same layer with perhaps other weights, all with a residual or none; `make` makes the
    layer of this weight and bias, in this order of dimensions.
    """
    arrays = (x, weight, bias, residual)
    given = tuple(a for a in arrays if a is not None)
    result = learnt.call(*given)
    if result is not UNLIKE:
        return result
    layer = make()
    layer.constant = False
    ran = layer._run_at_length(x, residual)
    if isinstance(ran.out, np.ndarray):
        names = [name for name, a in zip(layer.names, arrays, strict=False) if a is not None]
        learnt.learn_on_host(given, ran.out, ran.whole, [*names, layer.names[-1]])
    elif ran.launch is not None and is_on_gpu(x):
        learnt.on_gpu.learn(given, [ran.result], ran.launch)
    return ran.result


class Layer:
    """Weights, perhaps a bias, and a kernel for each size; call it with an array.

    It keeps the arrays that it was made of. Each call looks whether torch wrote to one of them since they were packed.
    """

    def __init__(self, weight: Any, bias: Any, out_dtype: DTypeLike | None, target: str | None):
        self._source = Source(weight, bias)
        self.target = known_target(target)
        self.constant = True
        """Whether the weights are packed beforehand, for many calls."""
        self.weight, self.bias = self._source.read(self.ranks, self.rows)
        self.out: DType = out_type(out_dtype, dtype_of(self.weight, "weight"))
        self._forget()

    def _forget(self) -> None:
        """Lets go of packed weights, and of those on devices."""
        self._packed: dict[Any, Kept] = {}
        self._placed: dict[int | None, tuple[Any, Any]] = {}
        self._learnt = Learnt()

    @eager
    def refresh(self) -> None:
        """Reads weights and bias anew from the arrays that the layer was made of; the next call packs them anew.

        Calls do this by themselves where torch counts a write to a tensor. It counts none through `tensor.data`,
        through a numpy array that shares its memory, or by a kernel that was bound to it; numpy counts none at all.

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
                f"weight is {by(weight.shape)} of {weight.dtype} now; the layer was made of {by(self.weight.shape)} of "
                f"{self.weight.dtype}: make a new layer"
            )
        self.weight, self.bias = weight, bias
        self._forget()

    def _follow(self) -> None:
        """Reads the weights anew where torch wrote to them."""
        if self._source.is_changed():
            self.refresh()

    def __setattr__(self, name: str, value: Any) -> None:
        """Who changes what it is made of, such as its activation, gets the layer that is made of that."""
        object.__setattr__(self, name, value)
        if not name.startswith("_"):
            self._forget()

    def __getstate__(self) -> dict[str, Any]:
        """What copies are made of: the weights; they pack and place them for themselves."""
        weight, bias = on_host(self.weight), None if self.bias is None else on_host(self.bias)
        held = {"weight": weight, "bias": bias, "_source": Source(weight, bias)}
        return {**self.__dict__, **held, "_packed": {}, "_placed": {}, "_learnt": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __copy__(self) -> Layer:
        """A layer of the same arrays."""
        copy = object.__new__(type(self))
        copy.__setstate__({**self.__dict__, "_source": Source(*self._source.given)})
        return copy

    # -- what kinds of layers say --------------------------------------------------------------------------

    names: tuple[str, ...] = NAMES
    """What the kernel calls the array, the weights, the bias, the residual and the result."""
    rows: str
    """The word for the first dimension of the weights, in messages."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """How many dimensions the weights may have."""
        raise NotImplementedError

    def _taken(self, x: Any) -> Any:
        """The argument of a call, checked."""
        raise NotImplementedError

    def _shape(self, x: Any) -> tuple[int, ...]:
        """The shape of the result; raises where the array does not go with the weights."""
        raise NotImplementedError

    def _kernel(self, x: Any, target: str, residual: bool) -> Compiled:
        """The kernel for an array of this shape, which adds a residual or none."""
        raise NotImplementedError

    # -- calling ---------------------------------------------------------------------------------------------

    @eager
    def __call__(self, x: Any, residual: Any = None) -> Any:
        """The layer's result; a torch tensor where the array is one, on its device.

        A residual is an array of the result's shape and type, and is added before the activation.
        """
        self._follow()
        return self._called(x, residual)

    def _called(self, x: Any, residual: Any = None) -> Any:
        """The result with the weights that were read last."""
        learnt = self._learnt
        given = (x,) if residual is None else (x, residual)
        result = learnt.on_host.call(*given)
        if result is not UNLIKE:
            return result
        torch = torch_of(x)
        if torch is not None and x.is_cuda and not torch.cuda.is_current_stream_capturing():  # a graph keeps weights
            result = learnt.on_gpu.call(x, *self._tensors(x), *given[1:])
            if result is not UNLIKE:
                return result
        ran = self._run_at_length(x, residual)
        if ran.whole is not None and isinstance(ran.out, np.ndarray):
            names = [self.names[place] for place in (0, *([] if residual is None else [3]), -1)]
            learnt.learn_on_host(given, ran.out, ran.whole, names)
        elif ran.launch is not None and is_on_gpu(x):
            learnt.on_gpu.learn((x, *self._tensors(x), *given[1:]), [ran.result], ran.launch)
        return ran.result

    def run(self, x: Any) -> tuple[Any, Any]:
        """(the result, the launch that gave it; None where nothing was to be computed)."""
        ran = self._run_at_length(x)
        return ran.result, ran.launch

    def _tensors(self, x: Any) -> list[Any]:
        """Weights and bias as tensors beside one of torch's, where they were brought there."""
        placed = self._placed.get(x.device.index or 0, ())
        return [a.given for a in placed if a is not None]

    def _run_at_length(self, x: Any, residual: Any = None) -> LayerCall:
        """Runs the layer on arrays that are checked at length."""
        taken, form = self._taken(x), Form([x])
        form.require(self.out, "the result")
        shape, target = self._shape(taken), target_for(self.target, {"x": taken})
        added = None if residual is None else self._taken_residual(residual, shape, taken)
        out = result(target, [taken], shape, self.out)
        if not out.size:
            return LayerCall(returned(out, form), out)
        kernel = self._kernel(taken, target, added is not None)
        launch, whole = self._launch(kernel, taken, out, target, added, passing=True)
        launch()
        return LayerCall(returned(out, form), out, launch, whole)

    def _taken_residual(self, residual: Any, shape: tuple[int, ...], x: Any) -> Any:
        """A residual for a result of this shape, where x lies; raises where it does not fit."""
        taken = array(residual, "residual", (len(shape),))
        if taken.shape != shape or dtype_of(taken, "residual") is not self.out:
            raise ArgumentError(
                f"residual is {by(taken.shape)} of {taken.dtype}; it must be as the result, {by(shape)} of {self.out}"
            )
        common_device("the call", [x, taken])
        return taken

    @eager
    def kernel(self, x: Any) -> tuple[Compiled, Any]:
        """The kernel for an array of this shape, and an output for it."""
        taken = self._taken(x)
        shape, target = self._shape(taken), target_for(self.target, {"x": taken})
        return self._kernel(taken, target, False), result(target, [taken], shape, self.out)

    @eager
    def bind(self, x: Any, out: Any, kernel: Compiled | None = None) -> Callable[[], None]:
        """The layer bound to arrays; a call of the result launches it on what they hold by then.

        Both are contiguous, and `out` has memory of its own. The weights are those of now.
        """
        self._follow()
        taken, goal = (in_place(array, name) for array, name in ((x, "x"), (out, "out")))
        if not isinstance(goal, DeviceArray):
            require_own_memory(goal, "out")
        shape = self._shape(taken)
        if goal.shape != shape or goal.dtype != self.out.numpy:
            raise ArgumentError(f"out is {by(goal.shape)} of {goal.dtype}; it must be {by(shape)} of {self.out}")
        if share_memory(goal, taken):
            raise ArgumentError("out shares memory with x; give them memory of their own")
        target = target_for(self.target, {"x": taken, "out": goal})
        if kernel is not None and not isinstance(kernel, Compiled):
            raise ArgumentError(f"kernel={written(kernel, 80)}: what `kernel(x)` of this layer gives, or nothing")
        return self._launch(self._kernel(taken, target, False) if kernel is None else kernel, taken, goal, target)[0]

    def _launch(
        self, kernel: Compiled, x: Any, out: Any, target: str, residual: Any = None, *, passing: bool = False
    ) -> tuple[Callable[[], None], Whole | None]:
        """A kernel bound to arrays and to the weights, which are packed already or now; and what it consists of.

        `passing` says that it is called once, now.
        """
        weight, bias = self._factors(x, target)
        arrays = dict(zip(self.names, (x, weight, bias, residual, out), strict=True))
        arrays = {name: array for name, array in arrays.items() if array is not None}
        if not self.constant:
            return kernel.bind_whole(arrays, passing=passing)
        key = kernel, common_device("the call", [x])
        if key not in self._packed:
            factors = tuple(a for a in (weight, bias) if a is not None)
            self._packed[key] = replace(kernel.keep(arrays), given=factors)
        return kernel.bind_whole(arrays, self._packed[key], passing=passing)

    def _factors(self, x: Any, target: str) -> tuple[Any, Any]:
        """Weights and bias where a call runs; brought there once."""
        place = common_device("the call", [x]) if is_gpu(target) else None
        if place not in self._placed:
            given = (self.weight, self.bias)
            self._placed[place] = tuple(  # type: ignore[assignment]
                None if a is None else on_host(a) if place is None else on_device(a, target, [x]) for a in given
            )
        return self._placed[place]
