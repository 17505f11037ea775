"""Wrong calls of the public functions: each must give a typed error, or work, within 2 s and 500 MB.

    python benchmarks/wrong_calls.py [COUNT] [--kind function] [--seed S] [--first I] [--jobs J] [--show]
    PYTHONPATH=src python3 benchmarks/wrong_calls.py 2000 --seed 1 --jobs 16

None, other types, counts and shapes, huge numbers, at random: the COUNT calls are, in equal parts, of public functions
(`function`), of operations on tiles while a kernel is traced (`operation`), of what was compiled (`executable`), and,
by `wrong_plans.py`, with plans that do not fit (`plan`), with kernels of every kind (`kernel`), and of methods of what
was compiled (`method`). Where torch or JAX is installed, as many are of all these with what they trace (`traced`, by
`wrong_tracers.py`). A call that Python itself refuses, because the number or the names of the arguments do not fit
the signature, is drawn again. A message must hold the value of an argument, or what is said of it: an array's shape or
element type, a type's name (`judging.py`). The exit code is 1 if there is a finding or, among 500, a message without
the value.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable
from enum import Enum
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
import wrong_plans
import wrong_tracers
from judging import Trial, command

import tilewright
from tilewright import algebra, kernels, lang, problems, wave
from tilewright.compat import wave as compat
from tilewright.limits import written
from tilewright.wave.tracer import MemoryArgument, Tile

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
        (tilewright, ("compile", "compile_text", "conv1d", "conv2d", "conv3d", "Conv1d", "Conv2d", "Conv3d", "matmul")),
        (compat, ("wave_compile", "WaveCompileOptions", "ceildiv", "clamp", "get_mfma_load_elems_per_thread")),
        (algebra, tuple(algebra.__all__)),
        (kernels, tuple(kernels.__all__)),
        (problems, tuple(problems.__all__)),
        (lang, tuple(getattr(lang, "__all__", ()))),
    ):
        for name in names:
            thing = getattr(part, name)
            if (
                callable(thing)
                and name not in LEFT_OUT
                and not isinstance(thing, algebra.Expr)
                and not (isinstance(thing, type) and issubclass(thing, Enum))
            ):
                found.append((f"{part.__name__}.{name}", thing))
    return tuple(found)


def _fits(function: Any, args: list[Any], options: dict[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(*args, **options)
    except (TypeError, ValueError):
        return False
    return True


def _said_of(value: Any) -> tuple[str, ...]:
    """What a message may say of a value that is wrong: how Python writes it, its text, its type, an array's shape."""
    said = [written(value, 80), str(value)[:80], type(value).__name__]
    if isinstance(value, np.ndarray):
        said += [str(value.shape), str(value.dtype), f"f{8 * value.itemsize}", "array(", *map(repr, value.flat[:1])]
    if value is None or (isinstance(value, str | tuple | dict) and not value):
        said += ["ends", "nothing", "missing", "expected", "()", "(0,)"]
    if isinstance(value, str):
        said += value.split()
    if isinstance(value, bool):
        said.append(str(int(value)))
    if isinstance(value, int | float | np.number):
        said.append("[]")  # the dimensions of a number
    if isinstance(value, bytes):
        said.append(str(tuple(value)))
    if isinstance(value, type | FunctionType) or callable(value):
        said.append(getattr(value, "__name__", ""))
    if isinstance(value, dict | list | tuple | range):
        said += [text for part in value for text in _said_of(part)] or ["nothing", "no "]
    if isinstance(value, Tile | MemoryArgument):
        said += ["f32", "[M, N]", "tile", "memory", "x", "y"]
    if isinstance(value, dict):
        said += [text for part in value.values() for text in _said_of(part)]
    return tuple(text for text in said if text)


def _parameters(function: Any) -> list[str]:
    try:
        return [n for n, p in inspect.signature(function).parameters.items() if p.kind is not p.VAR_KEYWORD]
    except (TypeError, ValueError):
        return []


def _function(rng: random.Random, trial: Trial) -> None:
    """A public function, called wrongly."""
    while True:
        name, function = rng.choice(functions())
        args = [rng.choice(VALUES)() for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 2, 3, 4)))]
        options: dict[str, Any] = {}
        known = [p for p in _parameters(function) if p not in ("self", "cls")]
        if known and rng.random() < 0.3:
            options[rng.choice(known)] = rng.choice(VALUES)()
        if _fits(function, args, options):
            break
    trial.text = f"{name}({', '.join([*map(repr, args), *(f'{k}={v!r}' for k, v in options.items())])})"
    trial.values = tuple(text for value in (*args, *options.values()) for text in _said_of(value))
    trial.values = trial.values or ("nothing", name.rsplit(".", 1)[1])
    result = function(*args, **options)
    if inspect.isgenerator(result):
        list(result)


OPERATORS = ("__add__", "__rpow__", "__matmul__", "__getitem__", "__lt__", "__mod__", "shape", "sum")


def _operation(rng: random.Random, trial: Trial) -> None:
    """An operation on tiles, or an operator of Python's, called wrongly while a kernel is traced."""
    names = [n for n in wave.__all__ if n[:1].islower() and callable(getattr(wave, n))]
    space = lang.GLOBAL_ADDRESS_SPACE

    def body(x: Any, y: Any) -> None:
        tile = wave.read(x)
        mine: tuple[Callable[[], Any], ...] = (lambda: tile, lambda: x, lambda: y, lambda: M, lambda: [tile])
        while True:
            name = rng.choice(names)
            args = [rng.choice(rng.choice((mine, VALUES)))() for _ in range(rng.randrange(4))]
            function, operand = getattr(wave, name), None
            if rng.random() < 0.2:
                name, args = rng.choice(OPERATORS), args[:1] or [None]
                trial.text, trial.values = f"x.{name}", (name,)
                operand = rng.choice((tile, x))
                function = getattr(operand, name)
            if _fits(function, args, {}):
                break
        trial.text = f"tkw.{name}{tuple(args)!r} in a kernel"
        given = args if operand is None else [*args, operand]
        trial.values = tuple(text for value in given for text in _said_of(value)) or (name,)
        made = function(*args)
        if isinstance(made, FunctionType):
            made(lambda *tiles: tiles)
        wave.write(tile, y)

    body.__annotations__ = {"x": lang.Memory[M, N, space, lang.f32], "y": lang.Memory[M, N, space, lang.f32]}
    kernel = wave.wave()(body)
    made = tilewright.compile(kernel, target="executor")
    made(np.ones((2, 3), np.float32))


@cache
def _executables() -> tuple[tuple[str, Any], ...]:
    @wave.wave()
    def scaled(
        x: lang.Memory[M, N, lang.GLOBAL_ADDRESS_SPACE, lang.f32],
        by: lang.i32,
        y: lang.Memory[M, N, lang.GLOBAL_ADDRESS_SPACE, lang.f32],
    ) -> None:
        wave.write(wave.read(x) * wave.cast(by, lang.f32), y)

    made = [(f"scaled on {target}", tilewright.compile(scaled, target=target)) for target in ("executor", "cpu")]
    layer = tilewright.Conv2d(np.ones((4, 3, 3, 2), np.float32), padding=1)
    text = "block double(%x: in global f32 (4), %y: out global f32 (4))\n{\n  map %y = %x + %x\n}\n"
    return (*made, ("Conv2d", layer), ("double", tilewright.compile_text(text, "interpreter")))


def _executable(rng: random.Random, trial: Trial) -> None:
    """What was compiled, called wrongly: an argument or two of the right ones are replaced, or one is left out."""
    name, function = rng.choice(_executables())
    right = {"Conv2d": [np.ones((1, 4, 5, 2), np.float32)], "double": [np.ones(4, np.float32), np.zeros(4, np.float32)]}
    args = list(right.get(name, [np.ones((2, 3), np.float32), 3]))
    options: dict[str, Any] = {}
    for _ in range(rng.choice((1, 1, 2))):
        value = rng.choice(VALUES)()
        match rng.randrange(4):
            case 0:
                args.append(value)
            case 1:
                options[rng.choice(("out", "by", "y", "debug_logs", "nonsense"))] = value
            case _:
                args[rng.randrange(len(args))] = value
    trial.text = f"{name}({', '.join([*map(repr, args), *(f'{k}={v!r}' for k, v in options.items())])})"
    trial.values = (*(text for value in (*args, *options.values()) for text in _said_of(value)), *options)
    trial.values += (str(len(args)), "y")  # too many, too few, or an output twice
    if _fits(function.__call__, args, options):
        function(*args, **options)


KINDS: dict[str, Callable[[random.Random, Trial], None]] = {
    "function": _function,
    "operation": _operation,
    "executable": _executable,
    **wrong_plans.kinds(VALUES, _said_of),
}
if wrong_tracers.INSTALLED:
    KINDS["traced"] = lambda rng, trial: wrong_tracers.traced(rng, trial, (*functions(), *_executables()))


def do(kind: str, number: int, seed: int, trial: Trial) -> None:
    """One call."""
    KINDS[kind](random.Random(f"{seed}:{kind}:{number}"), trial)


def nothing() -> None:
    """A process of this script has nothing to take over."""


def first(kinds: tuple[str, ...]) -> Callable[[], None]:
    """What a process does before its first trial."""
    return wrong_tracers.load if "traced" in kinds else nothing


def main(arguments: list[str] | None = None) -> int:
    about = __doc__.splitlines()[0]
    return command(arguments, about, "wrong_calls.py", do, tuple(KINDS), first, 2000)


if __name__ == "__main__":
    sys.exit(main())
