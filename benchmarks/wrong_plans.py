"""Plans that do not fit, kernels of every kind and methods of what was compiled, called wrongly: for `wrong_calls.py`.

`plan`: what is no plan, plans of other problems, and random edits of a chosen plan's text. `kernel`: tile kernels,
block kernels, templates, programs, texts, plain functions, classes and the like, each given to a public entry point.
`method`: `text`, `explain`, `benchmark`, `bind` and so on of executables, layers and kernels, with arguments at random.
Each must work or give a typed error that holds what is wrong.
"""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from judging import Trial

import tilewright
import tilewright.block as tb
from tilewright import kernels, lang, wave
from tilewright.compat import wave as compat
from tilewright.compiler.native import kernel_for
from tilewright.ir.block import BLOCK
from tilewright.ir.parser import parse_programs
from tilewright.plan.words import WORDS
from tilewright.targets.registry import machine
from tilewright.wave.templates import get_igemm_conv2d

Values = tuple[Callable[[], Any], ...]
SaidOf = Callable[[Any], tuple[str, ...]]
M, N = lang.sym.M, lang.sym.N

# -- plans -----------------------------------------------------------------------------------------------------------

CASES: tuple[tuple[Callable[[], Any], dict[str, int], str], ...] = (
    (partial(kernels.gemm, "nt", "f32"), {"M": 40, "N": 136, "K": 100}, "x86.avx512"),
    (partial(kernels.gemm, "nt", "f32"), {"M": 512, "N": 24, "K": 33}, "x86.avx512"),
    (partial(kernels.gemm, "nn", "bf16"), {"M": 70, "N": 48, "K": 96}, "x86.amx"),
    (partial(kernels.gemm, "nt", "bf16"), {"M": 200, "N": 136, "K": 192}, "hopper"),
    (partial(kernels.gemm, "nt", "bf16"), {"M": 130, "N": 136, "K": 96}, "xe"),
    (partial(kernels.conv, (3, 3), "f32", padding=1), {"N": 2, "H": 9, "W": 14, "C": 8, "F": 16}, "aarch64.neon"),
    (partial(kernels.conv, (3, 3), "f32", padding=1), {"N": 1, "H": 7, "W": 5, "C": 16, "F": 24}, "aarch64.neon"),
    (partial(kernels.softmax, "f32"), {"M": 64, "N": 200}, "x86.avx512"),
    (partial(kernels.softmax, "f32"), {"M": 9, "N": 33}, "hopper"),
)
NUMBERS = ("0", "1", "2", "3", "7", "16", "64", "511", "99999", "9" * 30, "-4", "2.5", "")


def _of(number: int, plan: Any = None) -> Any:
    make, sizes, row = CASES[number]
    return kernel_for(make(), sizes, machine=machine(row), plan=plan)


@cache
def _chosen(number: int) -> tuple[str, ...]:
    return tuple(_of(number).text("plan").strip().splitlines())


def _edited(line: str, rng: random.Random) -> str:
    """A line with a number, a word or a character changed."""
    match rng.randrange(5):
        case 0 if numbers := list(re.finditer(r"\d+", line)):
            place = rng.choice(numbers)
            return line[: place.start()] + rng.choice(NUMBERS) + line[place.end() :]
        case 1 if words := list(re.finditer(r"[A-Za-z_]\w*", line)):
            place = rng.choice(words)
            return line[: place.start()] + rng.choice(WORDS) + line[place.end() :]
        case 2:
            at = rng.randrange(len(line))
            return line[:at] + line[at + 1 :]
        case 3:
            at = rng.randrange(len(line) + 1)
            return line[:at] + rng.choice("aM0 ,:;()=?_x") + line[at:]
        case _:
            words = line.split(" ")
            rng.shuffle(words)
            return " ".join(words)


def _plan(values: Values, said_of: SaidOf, rng: random.Random, trial: Trial) -> None:
    """A plan that is none, one of another problem, or one with some edits."""
    number = rng.randrange(len(CASES))
    if rng.random() < 0.15:
        value = rng.choice(values)()
        trial.text, trial.values = f"plan={value!r}", said_of(value)
        if not isinstance(value, str):
            tilewright.compile(CASES[number][0](), plan=value)
        else:
            _of(number, value)
        return
    own = lines = list(_chosen(number))
    if rng.random() < 0.2:
        lines = list(_chosen(rng.choice([n for n in range(len(CASES)) if n != number])))
    else:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            at = rng.randrange(len(lines))
            match rng.randrange(8):
                case 0:
                    lines = lines[:at] + lines[at + 1 :] or own
                case 1:
                    lines = [*lines[:at], lines[at], *lines[at:]]
                case 2:
                    lines = [*lines[:at], rng.choice(_chosen(rng.randrange(len(CASES)))), *lines[at:]]
                case _:
                    lines = [*lines[:at], _edited(lines[at], rng) or "x", *lines[at + 1 :]]
    text = rng.choice(("\n", "; ")).join(lines)
    trial.text = f"plan of {CASES[number]}:\n{text}"
    changed = [line for line in (*lines, *own) if line not in own or line not in lines] or lines
    trial.values = tuple({*changed, *(word for line in changed for word in re.findall(r"[\w.]+", line)), "twice"})
    _of(number, text)


# -- kernels of every kind ---------------------------------------------------------------------------------------------


@wave.wave()
def row_sums(
    x: lang.Memory[M, N, lang.GLOBAL_ADDRESS_SPACE, lang.f32], y: lang.Memory[M, lang.GLOBAL_ADDRESS_SPACE, lang.f32]
) -> None:
    """A tile kernel."""
    wave.write(wave.sum(wave.read(x), dim=N), y)


@tb.kernel()
def doubled(x: tb.In("f32", "M", "N"), y: tb.Out("f32", "M", "N"), *, M: tb.Size(1, 999), N=3):  # type: ignore[no-untyped-def, valid-type]
    """A block kernel."""
    for m in tb.tasks(M):
        y[m, :] = 2 * x[m, :]


@tb.kernel("hopper", waves=4)
def for_hopper(x: tb.In("f32", "M", "N"), y: tb.Out("f32", "M", "N"), *, M: tb.Size(1, 999), N=96):  # type: ignore[no-untyped-def, valid-type]
    """A block kernel for a GPU."""
    for m in tb.tasks(M):
        y[m, :] = 2 * x[m, :]


def plain(x: Any, y: Any) -> None:
    """No kernel."""


class Traced:
    """Has a `trace`, and is no kernel."""

    __name__ = "Traced"

    def trace(self) -> Any:
        """No program."""
        return 5


def _things() -> Values:
    text = "block double(%x: in global f32 (4), %y: out global f32 (4))\n{\n  map %y = %x + %x\n}\n"
    shape = ("nchw_fchw", 2, 8, 9, 4, 3, 3, 5, 1)
    return (
        lambda: row_sums,
        lambda: row_sums.trace(),
        lambda: str(row_sums.trace()),
        lambda: str(row_sums.trace())[:-9],
        lambda: doubled,
        lambda: doubled.trace(),
        lambda: str(doubled.trace()),
        lambda: for_hopper,
        lambda: for_hopper.trace(M=7),
        lambda: text,
        lambda: text.replace("%x + %x", "%x + %z"),
        lambda: text.encode(),
        lambda: parse_programs(text, {"block": BLOCK})[0],
        lambda: get_igemm_conv2d,
        lambda: get_igemm_conv2d(*shape, "f32", "f32"),
        lambda: get_igemm_conv2d(*shape, "f32", "f32")[0],
        lambda: kernels.gemm,
        lambda: kernels.gemm("nt", "bf16"),
        lambda: plain,
        lambda: wave.wave()(plain),
        lambda: tb.kernel()(plain),
        lambda: wave.wave()(lambda x: None),
        lambda: lambda x, y: None,
        lambda: partial(plain, 3),
        lambda: Traced,
        lambda: Traced(),
        lambda: SimpleNamespace(trace=5, __name__="simple"),
        lambda: type(row_sums),
        lambda: np,
        lambda: np.add,
        lambda: print,
        lambda: tilewright.compile(row_sums, target="executor"),
        lambda: tilewright.compile_text(text, "interpreter"),
        lambda: tilewright.Linear(np.ones((2, 3), np.float32)),
        lambda: None,
    )


THINGS = _things()
TARGETS = (
    *("cpu", "executor", "interpreter", "gpu", "cuda", "gpu:hopper", "cuda:hopper", "gpu:cdna3", "gpu:nope", "gpu:"),
    *("cpu:x86.avx512", "cpu:hopper", "cpu:", "", "CPU"),
)
OPTIONS: dict[str, Values] = {
    "target": tuple((lambda name=name: name) for name in TARGETS),
    "plan": (lambda: "axis M = (M 4): whole", lambda: 5, lambda: "axs M"),
    "dynamic": (lambda: ["M"], lambda: "M", lambda: ["Q"], lambda: [5], lambda: {"M"}),
    "strict": (lambda: True,),
    "lenient": (lambda: True,),
    "require_atoms": (lambda: True,),
    "workers": (lambda: 2, lambda: 0, lambda: "two"),
    "seed": (lambda: 1, lambda: None, lambda: "one"),
    "symbols": (lambda: {"M": 4}, lambda: {"Q": 4}, lambda: {5: 4}, lambda: {"M": "x"}, lambda: {M: 4.5}),
    "params": (lambda: {"M": 4}, lambda: {"Q": 4}, lambda: {5: 4}, lambda: {"M": "x"}, lambda: {"M": -1}),
}
ENTRIES: tuple[Callable[..., Any], ...] = (
    *(tilewright.compile, tilewright.compile, tilewright.compile, tilewright.compile_text, compat.wave_compile),
    *(tilewright.matmul, tilewright.conv2d, tilewright.Conv1d, tilewright.Linear, wave.wave, tb.kernel),
)


def _kernel(values: Values, said_of: SaidOf, rng: random.Random, trial: Trial) -> None:
    """Something given as a kernel to a public function, with options at random."""
    entry, thing = rng.choice(ENTRIES), rng.choice(THINGS)()
    known = inspect.signature(entry).parameters
    offered = [name for name in OPTIONS if name in known]
    options = {
        name: rng.choice(OPTIONS[name])() for name in offered if rng.random() < (0.6 if name == "target" else 0.15)
    }
    if offered and rng.random() < 0.15:
        options[rng.choice(offered)] = rng.choice(values)()
    args = [thing]
    if entry is compat.wave_compile:
        args = [rng.choice((compat.WaveCompileOptions, lambda: 5))(), thing]
    elif entry in (tilewright.matmul, tilewright.conv2d):
        args = [thing, np.ones((2, 3), np.float32)] if rng.random() < 0.5 else [np.ones((2, 3), np.float32), thing]
    name = getattr(entry, "__name__", str(entry))
    trial.text = f"{name}({', '.join([*map(repr, args), *(f'{k}={v!r}' for k, v in options.items())])})"
    trial.values = _all_said(said_of, [*args, *options.values()], [*options, name])
    made = entry(*args, **options)
    if entry in (wave.wave, tb.kernel):
        made(plain)


def _all_said(said_of: SaidOf, values: list[Any], names: list[str]) -> tuple[str, ...]:
    """The words a message may hold: of a value its text, its type and its name, of a program's text its lines."""
    said = [text for value in values for text in said_of(value)]
    for value in values:
        own = getattr(value, "__name__", getattr(value, "name", None))
        said += [own] if isinstance(own, str) else []
        said += [line.strip() for line in value.splitlines()] if isinstance(value, str) else []
    return tuple(text for text in (*said, *names) if text)


# -- methods -----------------------------------------------------------------------------------------------------------


@cache
def _owners() -> tuple[tuple[str, Any], ...]:
    called = tilewright.compile(row_sums)
    called(np.ones((2, 3), np.float32))
    product = tilewright.compile(kernels.gemm("nt", "f32"), dynamic=["M"])
    layer = tilewright.Conv2d(np.ones((4, 3, 3, 2), np.float32), padding=1)
    image = np.ones((1, 4, 5, 2), np.float32)
    return (
        ("compile(row_sums)", called),
        ("compile(gemm, dynamic)", product),
        ("compile(row_sums) for the executor", tilewright.compile(row_sums, target="executor")),
        ("compile(gemm) for hopper", tilewright.compile(kernels.gemm("nt", "bf16"), target="gpu:hopper")),
        ("compile(doubled)", tilewright.compile(doubled)),
        ("compile(doubled) for the interpreter", tilewright.compile(doubled, target="interpreter")),
        ("compile(for_hopper)", tilewright.compile(for_hopper, target="gpu:hopper")),
        ("Conv2d", layer),
        ("Conv2d.kernel", layer.kernel(image)[0]),
        ("Linear", tilewright.Linear(np.ones((4, 3), np.float32))),
        ("row_sums", row_sums),
        ("doubled", doubled),
        ("for_hopper", for_hopper),
    )


METHODS = (
    *("text", "text", "text", "explain", "benchmark", "bind", "of_sizes", "object_code", "parameters", "asm", "kernel"),
    *("run", "keep", "trace", "draw", "logs", "made_logs", "__call__"),
)
LEVELS = ("tile", "plan", "block", "host", "loop", "llvm", "asm", "ptx", "sass", "tiles", "Plan", "")
ARGUMENTS: Values = (
    *((lambda level=level: level) for level in LEVELS),
    lambda: {"M": 4, "N": 3},
    lambda: {"M": 4, "N": 3, "K": 5},
    lambda: {"M": 0},
    lambda: {"M": -3, "N": "x", "K": 2.5},
    lambda: {M: 4, N: 3},
    lambda: {"Q": 1},
    lambda: {5: 1},
    lambda: {"x": np.ones((2, 3), np.float32)},
    lambda: [("M", 4)],
    lambda: np.ones((2, 3), np.float32),
    lambda: np.zeros((2,), np.float32),
    lambda: np.ones((1, 4, 5, 2), np.float32),
)
WORDS_OF_METHODS: dict[str, Values] = {
    "seconds": (lambda: 0, lambda: -1, lambda: "x", lambda: None, lambda: float("nan"), lambda: 1j),
    "params": OPTIONS["params"],
    "symbols": ARGUMENTS,
    "level": tuple((lambda level=level: level) for level in LEVELS),
    "kernel": THINGS[:6],
    "kept": (lambda: 5, dict),
}


def _method(values: Values, said_of: SaidOf, rng: random.Random, trial: Trial) -> None:
    """A method or property of what was compiled, with arguments at random; one that does not fit is drawn again."""
    while True:
        owner, thing = rng.choice(_owners())
        name = rng.choice(METHODS)
        if not hasattr(type(thing), name) or (name == "__call__" and not callable(thing)):
            continue
        if not callable(getattr(type(thing), name)):
            args, options = [], {}
            break
        args = [rng.choice(rng.choice((ARGUMENTS, ARGUMENTS, values)))() for _ in range(rng.choice((0, 1, 1, 2, 3)))]
        known = inspect.signature(getattr(type(thing), name)).parameters
        options = {w: rng.choice(of)() for w, of in WORDS_OF_METHODS.items() if w in known and rng.random() < 0.3}
        try:
            inspect.signature(getattr(type(thing), name)).bind(thing, *args, **options)
        except TypeError:
            continue
        break
    given = ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in options.items())])
    trial.text = f"{owner}.{name}({given})"
    arguments = ["x", "y", "a", "b", "c", "w", str(len(args))]  # one that is missing, or too many of them
    whose = [str(getattr(thing, "name", None) or getattr(thing, "__name__", owner))]
    trial.values = _all_said(said_of, [*args, *options.values()], [name, *options, *arguments, *whose])
    found = getattr(thing, name)
    if callable(getattr(type(thing), name)):
        found(*args, **options)


def kinds(values: Values, said_of: SaidOf) -> dict[str, Callable[[random.Random, Trial], None]]:
    """The kinds of trials, with values at random and what messages may say of a value."""
    return {
        "plan": partial(_plan, values, said_of),
        "kernel": partial(_kernel, values, said_of),
        "method": partial(_method, values, said_of),
    }
