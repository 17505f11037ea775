"""A layer: weights that are brought once to where it runs, and packed there once for each size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.compiler.compiled import Compiled
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DType
from tilewright.limits import written
from tilewright.ops.arrays import (
    by,
    in_place,
    is_on_gpu,
    known_target,
    on_device,
    on_host,
    result,
    returned,
    target_for,
)
from tilewright.runtime.device_arrays import DeviceArray, common_device, share_memory
from tilewright.runtime.host import Kept
from tilewright.runtime.overlap import require_own_memory
from tilewright.runtime.tensors import Form
from tilewright.targets.gpu.again import Again
from tilewright.targets.registry import is_gpu

NAMES = ("x", "w", "bias", "y")
"""What a layer's arrays are, in the order of its kernel's arguments."""


class Layer:
    """Weights, perhaps a bias, and a kernel for each size; call it with an array."""

    def __init__(self, weight: Any, bias: Any, out: DType, target: str | None):
        self.weight, self.bias, self.out, self.target = weight, bias, out, known_target(target)
        self.constant = True
        """Whether the weights are packed beforehand, for many calls."""
        self._packed: dict[Any, Kept] = {}
        self._placed: dict[int | None, tuple[Any, Any]] = {}
        self._quick = Again()

    def __getstate__(self) -> dict[str, Any]:
        """What copies are made of: the weights; they pack and place them for themselves."""
        held = {"weight": on_host(self.weight), "bias": None if self.bias is None else on_host(self.bias)}
        return {**self.__dict__, **held, "_packed": {}, "_placed": {}, "_quick": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._quick = Again()

    # -- what kinds of layers say --------------------------------------------------------------------------

    names: tuple[str, ...] = NAMES
    """What the kernel calls the array, the weights, the bias and the result."""

    def _taken(self, x: Any) -> Any:
        """The argument of a call, checked."""
        raise NotImplementedError

    def _shape(self, x: Any) -> tuple[int, ...]:
        """The shape of the result; raises where the array does not go with the weights."""
        raise NotImplementedError

    def _kernel(self, x: Any, target: str) -> Compiled:
        """The kernel for an array of this shape."""
        raise NotImplementedError

    # -- calling ---------------------------------------------------------------------------------------------

    def __call__(self, x: Any) -> Any:
        """The layer's result; a torch tensor where the array is one, on its device."""
        if not is_on_gpu(x):
            return self.run(x)[0]
        quick = self._quick((x, *self._tensors(x)))
        if quick is not None:
            return quick[0]
        found, launch = self.run(x)
        if launch is not None:
            self._quick.learn((x, *self._tensors(x)), [found], launch)
        return found

    def _tensors(self, x: Any) -> list[Any]:
        """Weights and bias as tensors beside one of torch's, where they were brought there."""
        placed = self._placed.get(x.device.index or 0, ())
        return [a.given for a in placed if a is not None]

    def run(self, x: Any) -> tuple[Any, Any]:
        """(the result, the launch that gave it; None where nothing was to be computed)."""
        taken, form = self._taken(x), Form([x])
        form.require(self.out, "the result")
        shape, target = self._shape(taken), target_for(self.target, {"x": taken})
        out = result(target, [taken], shape, self.out)
        if not out.size:
            return returned(out, form), None
        launch = self._launch(self._kernel(taken, target), taken, out, target)
        launch()
        return returned(out, form), launch

    def kernel(self, x: Any) -> tuple[Compiled, Any]:
        """The kernel for an array of this shape, and an output for it."""
        taken = self._taken(x)
        shape, target = self._shape(taken), target_for(self.target, {"x": taken})
        return self._kernel(taken, target), result(target, [taken], shape, self.out)

    def bind(self, x: Any, out: Any, kernel: Compiled | None = None) -> Callable[[], None]:
        """The layer bound to arrays; a call of the result launches it on what they hold by then.

        Both are contiguous, and `out` has memory of its own.
        """
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
        return self._launch(self._kernel(taken, target) if kernel is None else kernel, taken, goal, target)

    def _launch(self, made: Compiled, x: Any, out: Any, target: str) -> Callable[[], None]:
        """A kernel bound to arrays and to the weights, which are packed already or now."""
        weight, bias = self._factors(x, target)
        arrays = dict(zip(self.names, (x, weight, bias, out), strict=True))
        arrays = {name: array for name, array in arrays.items() if array is not None}
        if not self.constant:
            return made.bind(arrays)
        key = made, common_device("the call", [x])
        if key not in self._packed:
            self._packed[key] = made.keep(arrays)
        return made.bind(arrays, self._packed[key])

    def _factors(self, x: Any, target: str) -> tuple[Any, Any]:
        """Weights and bias where a call runs; brought there once."""
        place = common_device("the call", [x]) if is_gpu(target) else None
        if place not in self._placed:
            given = (self.weight, self.bias)
            self._placed[place] = tuple(  # type: ignore[assignment]
                None if a is None else on_host(a) if place is None else on_device(a, target, [x]) for a in given
            )
        return self._placed[place]
