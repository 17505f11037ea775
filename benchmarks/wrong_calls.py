"""Wrong calls of the public functions, at random: None, other types, other counts, other shapes, huge numbers.

`wrong_call(rng)` does one and gives its text. A call that Python itself refuses, because the number or the names of the
arguments do not fit the signature, counts as refused. Inside a kernel, operations on tiles are called wrongly too.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from enum import Enum
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np

import tilewright
from tilewright import algebra, kernels, lang, problems, wave
from tilewright.errors import ArgumentError

M, N, K = lang.sym.M, lang.sym.N, lang.sym.K
LEFT_OUT = {"forget_unused"}


def _values() -> tuple[Callable[[], Any], ...]:
    layout = algebra.Layout((4, 8), (8, 1))
    return (
        lambda: None,
        lambda: 0,
        lambda: 1,
        lambda: 3,
        lambda: -1,
        lambda: 10**18,
        lambda: 2**70,
        lambda: True,
        lambda: 0.5,
        lambda: float("nan"),
        lambda: float("inf"),
        lambda: 1j,
        lambda: "",
        lambda: "f32",
        lambda: "nonsense",
        lambda: "(4,8):(8,1)",
        lambda: "M + 1",
        lambda: b"bytes",
        lambda: (),
        lambda: (2, 3),
        lambda: (None, 4),
        lambda: ("a", "b"),
        lambda: [1, 2],
        dict,
        lambda: {"M": 3},
        lambda: {M: None},
        lambda: object(),
        lambda: int,
        lambda: len,
        lambda: np.float32,
        lambda: np.zeros(3, np.float32),
        lambda: np.ones((2, 3), np.float32),
        lambda: np.ones((2, 3, 4, 5), np.float64),
        lambda: np.zeros((0, 4), np.float32),
        lambda: np.ones((1, 4, 4, 2), np.float32),
        lambda: np.array(["x"]),
        lambda: np.array([None]),
        lambda: np.int64(4),
        lambda: np.float32(2.5),
        lambda: layout,
        lambda: algebra.Layout(4),
        lambda: algebra.Swizzle(1, 0, 2),
        lambda: M,
        lambda: M // 2 + 1,
        lambda: lang.f32,
        lambda: lang.i8,
        lambda: kernels.gemm(),
        lambda: ((((1,),),),),
        lambda: range(3),
        lambda: iter([1]),
    )


VALUES = _values()


@cache
def functions() -> tuple[tuple[str, Any], ...]:
    """The public functions and classes by name."""
    found: list[tuple[str, Any]] = []
    for part, names in (
        (tilewright, ("compile", "compile_text", "conv1d", "conv2d", "conv3d", "Conv2d", "Conv", "matmul")),
        (algebra, tuple(algebra.__all__)),
        (kernels, tuple(kernels.__all__)),
        (problems, tuple(problems.__all__)),
        (lang, tuple(getattr(lang, "__all__", ()))),
    ):
        for name in names:
            thing = getattr(part, name)
            if callable(thing) and name not in LEFT_OUT and not (isinstance(thing, type) and issubclass(thing, Enum)):
                found.append((f"{part.__name__}.{name}", thing))
    return tuple(found)


def _fits(function: Any, args: list[Any], options: dict[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(*args, **options)
    except (TypeError, ValueError):
        return False
    return True


def wrong_call(rng: random.Random) -> str:
    """One call; its text. What it raises is the caller's to judge."""
    if rng.random() < 0.3:
        return _in_a_kernel(rng)
    name, function = rng.choice(functions())
    args = [rng.choice(VALUES)() for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 2, 3, 4)))]
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        known = [p for p in _parameters(function) if p not in ("self", "cls")]
        if known:
            options[rng.choice(known)] = rng.choice(VALUES)()
    text = f"{name}({', '.join([*map(repr, args), *(f'{k}={v!r}' for k, v in options.items())])})"
    if not _fits(function, args, options):
        raise ArgumentError(f"{text}: Python refuses it")
    wrong_call.last = text  # type: ignore[attr-defined]
    result = function(*args, **options)
    if inspect.isgenerator(result):
        list(result)
    return text


def _parameters(function: Any) -> list[str]:
    try:
        return [n for n, p in inspect.signature(function).parameters.items() if p.kind is not p.VAR_KEYWORD]
    except (TypeError, ValueError):
        return []


def _in_a_kernel(rng: random.Random) -> str:
    """An operation on tiles, or an operator of Python's, called wrongly while a kernel is traced."""
    names = [n for n in wave.__all__ if n[:1].islower() and callable(getattr(wave, n))]
    name = rng.choice(names)
    wrong_call.last = f"tkw.{name} in a kernel"  # type: ignore[attr-defined]
    space = lang.GLOBAL_ADDRESS_SPACE

    def body(x: Any, y: Any) -> None:
        tile = wave.read(x)
        mine: tuple[Callable[[], Any], ...] = (lambda: tile, lambda: x, lambda: y, lambda: M, lambda: [tile])
        args = [rng.choice(rng.choice((mine, VALUES)))() for _ in range(rng.randrange(4))]
        function = getattr(wave, name)
        if rng.random() < 0.2:
            operators = ("__add__", "__rpow__", "__matmul__", "__getitem__", "__lt__", "__mod__", "shape", "sum")
            function = getattr(rng.choice((tile, x)), rng.choice(operators))
            args = args[:1] or [None]
        if not _fits(function, args, {}):
            raise ArgumentError(f"{name}: Python refuses {args}")
        wrong_call.last = f"tkw.{name}{args!r} in a kernel"  # type: ignore[attr-defined]
        made = function(*args)
        if isinstance(made, FunctionType):
            made(lambda *tiles: tiles)
        wave.write(tile, y)

    body.__annotations__ = {"x": lang.Memory[M, N, space, lang.f32], "y": lang.Memory[M, N, space, lang.f32]}
    kernel = wave.wave()(body)
    made = tilewright.compile(kernel, target="executor")
    made(np.ones((2, 3), np.float32))
    return str(wrong_call.last)  # type: ignore[attr-defined]
