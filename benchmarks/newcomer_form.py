"""The form of the operators of `newcomer_operators.py`: a kernel, its sizes, and the same in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.ir.written import outputs_of

GLOBAL, f32, i32 = tkl.GLOBAL_ADDRESS_SPACE, tkl.f32, tkl.i32
Array = Any
Make = Callable[[Any], tuple[tkw.Kernel, Callable[..., Any]]]


@dataclass(frozen=True)
class Operator:
    """An operator of PyTorch: `make(dtype)` gives (its kernel, the same in numpy, of the inputs in order).

    `sizes` are those of real use, of elements of type `of`, `tiny` those at which results are compared. `below` has the
    dimension that an input of integers points into. `starts` names outputs that the kernel adds to, from zero. With
    `exact`, integers give the same numbers everywhere.
    """

    group: str
    name: str
    make: Make
    sizes: Mapping[str, int]
    tiny: Mapping[str, int]
    of: str = "f32"
    below: Mapping[str, str] | None = None
    starts: tuple[str, ...] = ()
    exact: bool = True

    def kernel(self) -> tkw.Kernel:
        """Return the kernel for elements of the type of real use."""
        return self.make(getattr(tkl, self.of))[0]

    def arguments(self, seed: int = 0) -> tuple[tkw.Kernel, dict[str, Array], dict[str, Array]]:
        """Return (kernel of f32, its arguments at the tiny sizes with outputs of NaN, {output: wanted}).

        Inputs are small integers; those with a name that ends in `mask` are booleans or numbers 0 and 1.
        """
        kernel, reference = self.make(f32)
        program, rng = kernel.trace(), np.random.default_rng(seed)
        extents = {**self.tiny, **{str(d): int(str(n)) for d, n in program.bindings.items()}}
        outputs = {value.name for value in outputs_of(program)}
        arrays = {}
        for value in program.args:
            name, kind = value.name or "", value.type
            shape = tuple(extents[str(d)] for d in kind.dims)
            if name in outputs:
                blank = 0 if name in self.starts or not kind.dtype.is_float else np.nan
                arrays[name] = np.full(shape, blank, kind.dtype.numpy)
            elif name in (self.below or {}):
                arrays[name] = rng.integers(0, self.tiny[(self.below or {})[name]], shape).astype(kind.dtype.numpy)
            elif name.endswith("mask"):
                arrays[name] = rng.integers(0, 2, shape).astype(kind.dtype.numpy)
            else:
                arrays[name] = rng.integers(-3, 4, shape).astype(kind.dtype.numpy)
        wanted = reference(*(arrays[v.name or ""] for v in program.args if v.name not in outputs))
        named = [v.name or "" for v in program.args if v.name in outputs]
        return kernel, arrays, dict(zip(named, wanted if isinstance(wanted, tuple) else (wanted,), strict=True))


OPERATORS: dict[str, Operator] = {}
"""All operators, by name."""


def operator(
    group: str, sizes: Mapping[str, int], tiny: Mapping[str, int], name: str | None = None, **others: Any
) -> Callable[[Make], Make]:
    """Add an operator of a group to all of them, named as the function that makes it."""

    def add(make: Make) -> Make:
        word = name or make.__name__
        assert word not in OPERATORS, word
        OPERATORS[word] = Operator(group, word, make, sizes, tiny, **others)
        return make

    return add


def memory(*dims_and_type: Any) -> Any:
    """Return the type of an argument: its dimensions, then the type of its elements."""
    *dims, dtype = dims_and_type
    return tkl.Memory[(*dims, GLOBAL, dtype)]


def zeros(*dims: Any) -> Any:
    """Return an accumulator of f32 over dimensions."""
    return tkl.Register[(*dims, f32)](0)


def iterators(count: int) -> tuple[Any, ...]:
    """Return the first iterators of a mapping."""
    return tuple(tkw.IndexMapping.iterator(n) for n in range(count))
