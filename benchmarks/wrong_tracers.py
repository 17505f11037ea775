"""Public calls with what torch and JAX trace: tensors without values, and plain ones inside a trace.

`wrong_calls.py` draws these as trials of the kind `traced`, where one of both is installed. What a library's own
tracing refuses is not counted: only what a call of ours raises.
"""

from __future__ import annotations

import importlib
import inspect
import random
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from judging import Trial

from tilewright.limits import written

INSTALLED = tuple(name for name in ("torch", "jax") if find_spec(name))
SHAPES = ((), (3,), (2, 3), (1, 4, 5, 2), (4, 3, 3, 2), (2, 0))


def load() -> None:
    """Imports what is installed and makes one of each value, so that no trial has to."""
    for name in INSTALLED:
        importlib.import_module(name)
    values()
    for around in traces().values():
        with suppress(Exception):
            around(lambda x: x * 2, np.ones((2, 3), np.float32))


# -- values -----------------------------------------------------------------------------------------------------


@cache
def values() -> dict[str, Callable[[tuple[int, ...]], Any]]:
    """Values for a call outside of any trace, by name; each is made of a shape."""
    found: dict[str, Callable[[tuple[int, ...]], Any]] = {}
    if "torch" in INSTALLED:
        found |= _of_torch()
    if "jax" in INSTALLED:
        found |= _of_jax()
    return found


def _of_torch() -> dict[str, Callable[[tuple[int, ...]], Any]]:
    torch: Any = importlib.import_module("torch")
    fake = importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode()

    def inference(shape: tuple[int, ...]) -> Any:
        with torch.inference_mode():
            return torch.ones(shape)

    def leaked(transform: Any) -> Callable[[tuple[int, ...]], Any]:
        def make(shape: tuple[int, ...]) -> Any:
            kept: list[Any] = []
            with suppress(RuntimeError):
                transform(lambda x: (kept.append(x), x.sum())[1])(torch.ones((2, *shape)))
            return kept[0]

        return make

    return {
        "plain": torch.ones,
        "bfloat16": lambda shape: torch.ones(shape, dtype=torch.bfloat16),
        "complex": lambda shape: torch.ones(shape, dtype=torch.complex64).conj(),
        "requires grad": lambda shape: torch.ones(shape, requires_grad=True),
        "parameter": lambda shape: torch.nn.Parameter(torch.ones(shape)),
        "uninitialised": lambda shape: torch.nn.UninitializedParameter(),
        "inference": inference,
        "meta": lambda shape: torch.ones(shape, device="meta"),
        "fake": lambda shape: fake.from_tensor(torch.ones(shape)),
        "sparse": lambda shape: torch.ones(shape).to_sparse(),
        "proxy": lambda shape: next(iter(_proxies(torch))),
        "out of vmap": leaked(torch.vmap),
        "out of grad": leaked(torch.func.grad),
        "out of functionalize": leaked(torch.func.functionalize),
        "a list": lambda shape: [torch.ones(shape, requires_grad=True)],
    }


def _proxies(torch: Any) -> list[Any]:
    kept: list[Any] = []
    torch.fx.symbolic_trace(lambda x: (kept.append(x), x)[1])
    return kept


def _of_jax() -> dict[str, Callable[[tuple[int, ...]], Any]]:
    jax: Any = importlib.import_module("jax")

    def leaked(transform: Any) -> Callable[[tuple[int, ...]], Any]:
        def make(shape: tuple[int, ...]) -> Any:
            kept: list[Any] = []
            transform(lambda x: (kept.append(x), x.sum())[1])(np.ones((2, *shape), np.float32))
            return kept[0]

        return make

    def deleted(shape: tuple[int, ...]) -> Any:
        array = jax.numpy.ones(shape)
        array.delete()
        return array

    return {
        "array": jax.numpy.ones,
        "bfloat16 of JAX": lambda shape: jax.numpy.ones(shape, jax.numpy.bfloat16),
        "deleted": deleted,
        "key": lambda shape: jax.random.key(0),
        "shape alone": lambda shape: jax.ShapeDtypeStruct(shape, np.float32),
        "out of jit": leaked(jax.jit),
        "out of vmap of JAX": leaked(jax.vmap),
        "out of grad of JAX": leaked(jax.grad),
    }


# -- traces -----------------------------------------------------------------------------------------------------


@cache
def traces() -> dict[str, Callable[[Callable[[Any], Any], Any], Any]]:
    """Callers of a function inside a trace or a transform, by name; each makes its argument of an array."""
    found: dict[str, Callable[[Callable[[Any], Any], Any], Any]] = {}
    if "torch" in INSTALLED:
        torch: Any = importlib.import_module("torch")
        make_fx = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx
        found |= {
            "torch.jit.trace": lambda f, x: torch.jit.trace(f, torch.from_numpy(x), check_trace=False),
            "make_fx": lambda f, x: make_fx(f)(torch.from_numpy(x)),
            "make_fx before dispatch": lambda f, x: make_fx(f, pre_dispatch=True)(torch.from_numpy(x)),
            "symbolic make_fx": lambda f, x: make_fx(f, tracing_mode="symbolic")(torch.from_numpy(x)),
            "symbolic_trace": lambda f, x: torch.fx.symbolic_trace(f),
            "vmap": lambda f, x: torch.vmap(f)(torch.from_numpy(x)[None]),
            "grad": lambda f, x: torch.func.grad(f)(torch.from_numpy(x)),
            "jvp": lambda f, x: torch.func.jvp(f, (torch.from_numpy(x),), (torch.from_numpy(x),)),
            "functionalize": lambda f, x: torch.func.functionalize(f)(torch.from_numpy(x)),
        }
    if "jax" in INSTALLED:
        jax: Any = importlib.import_module("jax")
        found |= {
            "jax.jit": lambda f, x: jax.jit(f)(x),
            "jax.vmap": lambda f, x: jax.vmap(f)(x[None]),
            "jax.grad": lambda f, x: jax.grad(f)(x),
            "jax.jvp": lambda f, x: jax.jvp(f, (x,), (x,)),
            "eval_shape": jax.eval_shape,
        }
    return found


# -- one trial --------------------------------------------------------------------------------------------------


def traced(rng: random.Random, trial: Trial, functions: tuple[tuple[str, Any], ...]) -> None:
    """A public call, one or two of whose arguments are traced; in half the trials inside a trace."""
    name, function = _drawn(rng, functions)
    shape = rng.choice(SHAPES)
    count = rng.choice((1, 1, 2, 2, 3))
    args: list[Any] = [np.ones(rng.choice(SHAPES), np.float32) for _ in range(count)]
    place = rng.randrange(count)
    trial.values = ("tensor", "Tensor", "tracer", "Proxy", "array", "shape", "NoneType", name.rsplit(".", 1)[-1])
    trial.values += ("requires_grad", "conjugated view")
    if rng.random() < 0.5:
        kind = rng.choice(sorted(values()))
        args[place] = values()[kind](shape)
        trial.text = f"{name} of {count} arguments, the one at {place} is {kind} of shape {shape}"
        trial.values += _said(args)
        if _fits(function, args):
            function(*args)
        return
    kind = rng.choice(sorted(traces()))
    trial.text = f"{name} of {count} arguments, the one at {place} of shape {shape} inside {kind}"
    faults: list[Exception] = []

    def call(x: Any) -> Any:
        args[place] = x
        trial.values += _said(args)
        if _fits(function, args):
            try:
                function(*args)
            except Exception as fault:  # what comes through a framework may be another by then
                faults.append(fault)
        return x.sum()

    with suppress(Exception):
        traces()[kind](call, np.ones(shape, np.float32))
    if faults:
        raise faults[0]


def _drawn(rng: random.Random, functions: tuple[tuple[str, Any], ...]) -> tuple[str, Any]:
    """A function; every second time one that takes arrays."""
    taking = [(name, f) for name, f in functions if name.startswith("tilewright.") and name.count(".") == 1]
    taking += [(name, f) for name, f in functions if not name.startswith("tilewright.")]
    return rng.choice(rng.choice((functions, taking)))


def _said(args: list[Any]) -> tuple[str, ...]:
    """The words a message may hold of arguments: their types, shapes and element types."""
    said = [type(a).__name__ for a in args] + [
        "bf16",
        "bfloat16",
        "elements",
        "fit",
        "sparse",
        "JitTracer",
        "GradTracer",
    ]
    for a in args:
        with suppress(Exception):
            said += [written(a, 80).split("(")[0], str(tuple(a.shape)), str(a.dtype), str(a.device)]
    return tuple(text for text in said if isinstance(text, str))


def _fits(function: Any, args: list[Any]) -> bool:
    called = function if callable(function) and not hasattr(function, "refresh") else function.__call__
    try:
        inspect.signature(called).bind(*args)
    except (TypeError, ValueError):
        return False
    return True
