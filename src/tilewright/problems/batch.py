"""Batch files: problems one after another, with options that apply to all problems after them.

    # the first two layers, for two element types
    --mb=16 --dt=f32,bf16
    ic3ih224oc64oh112kh7sh2ph3
    ic64ih56oc64 \\
        oh56kh3ph1
    --reset
    30x4096:4096x28672

A `#` at the beginning of a word makes the rest of the line a comment; a `\\` at the end of a line joins the next one,
without its indentation. A word that begins with a digit is a matrix product, any other a convolution.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import product

from tilewright.errors import ParseError, ProblemError
from tilewright.problems.conv import ConvProblem, parse_conv
from tilewright.problems.dtypes import dtype
from tilewright.problems.matmul import MatmulProblem, parse_matmul

Problem = ConvProblem | MatmulProblem
"""A convolution or a matrix product."""

DIRECTIONS = ("FWD_B", "FWD_D", "FWD_I", "BWD_D", "BWD_W", "BWD_WB")

# Options that are kept as they are written, for whoever runs the problems.
_KEPT = frozenset(
    [
        "alg",
        "attr-deterministic",
        "attr-fpmath",
        "attr-post-ops",
        "attr-scales",
        "attr-scratchpad",
        "attr-zero-points",
        "bia-dt",
        "bia_mask",
        "check-ref-impl",
        "cold-cache",
        "dtag",
        "fix-times-per-prb",
        "grouped",
        "impl",
        "max-ms-per-prb",
        "mode",
        "perf-template",
        "runtime_dims_masks",
        "skip-impl",
        "stag",
        "strides",
        "wtag",
    ]
)


@dataclass(frozen=True)
class Settings:
    """The options under which a problem is run.

    `mb` overrides the batch of convolutions (None: as written), `dt` holds the element types of input, weights and
    output, `direction` is FWD_D for the forward pass (FWD_B with bias, FWD_I inference only), BWD_D for the gradient
    of the input, BWD_W for that of the weights (BWD_WB with bias). Other options stand in `options` as (name, text).
    """

    mb: int | None = None
    dt: tuple[str, str, str] = ("f32", "f32", "f32")
    direction: str = "FWD_B"
    options: tuple[tuple[str, str], ...] = ()

    def option(self, name: str, default: str = "") -> str:
        """The text of another option, the default where it was not given."""
        return dict(self.options).get(name, default)


def read_batch(text: str) -> Iterator[tuple[Settings, Problem]]:
    """Each problem of a batch file with the settings that apply to it, `mb` already put in.

    Options with several values, `--dt=f32,bf16`, give each problem once for each combination.

    >>> for settings, problem in read_batch("--mb=1,4 ic3ih8oc8kh3 # first\\n --dir=BWD_D  ic8ih6oc8kh3ph1"):
    ...     print(settings.direction, problem)
    FWD_B mb1ic3ih8oc8oh6kh3ph0
    FWD_B mb4ic3ih8oc8oh6kh3ph0
    BWD_D mb1ic8ih6oc8oh6kh3ph1
    BWD_D mb4ic8ih6oc8oh6kh3ph1
    """
    state = _State()
    for number, line in _logical_lines(text):
        for word in re.finditer(r"\S+", line):
            try:
                if word.group() == "--reset":
                    state = _State()
                elif word.group().startswith("--"):
                    state.set(word.group())
                else:
                    yield from state.expand(word.group())
            except ParseError as fault:
                what = str(fault).partition("\n")[0]
                raise ParseError(f"line {number}: {what}", line, word.start() + fault.position) from None


class _State:
    """What the options read so far say."""

    def __init__(self) -> None:
        self.mb: list[int | None] = [None]
        self.dt = [Settings.dt]
        self.directions = [Settings.direction]
        self.options: dict[str, str] = {}

    def set(self, word: str) -> None:
        name, _, value = word[2:].partition("=")
        at = len(word) - len(value)
        if name == "mb":
            self.mb = [_batch(part, word, place) for part, place in _parts(value, at)]
        elif name == "dt":
            self.dt = [_types(part, word, place) for part, place in _parts(value, at)]
        elif name == "dir":
            self.directions = [_direction(part, word, place) for part, place in _parts(value, at)]
        elif name in _KEPT:
            self.options[name] = value
        else:
            raise ParseError(f"--{name} is no option that is known here; there are {_option_names()}", word, 0)

    def expand(self, word: str) -> Iterator[tuple[Settings, Problem]]:
        problem = parse_matmul(word) if word[0].isdigit() else parse_conv(word)
        for dt, direction, mb in product(self.dt, self.directions, self.mb):
            settings = Settings(mb, dt, direction, tuple(sorted(self.options.items())))
            if mb is None:
                yield settings, problem
            elif isinstance(problem, ConvProblem):
                yield settings, replace(problem, mb=mb)
            else:
                raise ParseError("--mb has no meaning for a matrix product; write --mb=0 before it", word, 0)


def _option_names() -> str:
    return ", ".join(f"--{name}" for name in sorted({*_KEPT, "mb", "dt", "dir", "reset"}))


def _parts(value: str, at: int) -> Iterator[tuple[str, int]]:
    """The values between commas, with their places."""
    for part in value.split(","):
        yield part, at
        at += len(part) + 1


def _batch(value: str, word: str, place: int) -> int | None:
    if not re.fullmatch(r"[0-9]{1,18}", value):
        raise ParseError(f"--mb needs a number (0: as each problem has it), not {value!r}", word, place)
    return int(value) or None


def _types(value: str, word: str, place: int) -> tuple[str, str, str]:
    try:
        names = [dtype(name).name for name in value.split(":")]
    except ProblemError as fault:
        raise ParseError(f"--dt: {fault}", word, place) from None
    if len(names) not in (1, 3):
        raise ParseError(f"--dt needs one type, or three as in u8:s8:s32, not {value!r}", word, place)
    source, weights, result = names if len(names) == 3 else names * 3
    return source, weights, result


def _direction(value: str, word: str, place: int) -> str:
    if value.upper() not in DIRECTIONS:
        raise ParseError(f"--dir needs one of {', '.join(DIRECTIONS)}, not {value!r}", word, place)
    return value.upper()


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, joined where a backslash says so, each with the number of its first line."""
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        kept = re.sub(r"(^|\s)#.*", "", line)
        joined, first = (joined + kept.lstrip(), first) if first else (kept, number)
        if joined.endswith("\\"):
            joined = joined[:-1]
        else:
            yield first, joined
            first = 0
    if first:
        yield first, joined


def shape_lists() -> dict[str, tuple[ConvProblem, ...]]:
    """All lists of real layers that come with the package, by name.

    >>> {name: len(problems) for name, problems in shape_lists().items()}
    {'conv_3d': 6, 'depthwise': 7, 'grouped_dilated': 10, 'hopper_8': 8, 'mixed': 47, 'resnet_50': 20}
    """
    return {name: _shapes(name) for name in _list_names()}


def shape_list(name: str, mb: int | None = None) -> tuple[ConvProblem, ...]:
    """The problems of one list, with the batch that the list gives them or with `mb` images.

    >>> print(shape_list("hopper_8")[0], shape_list("hopper_8", mb=1)[0])
    mb32ic64ih56oc64oh56kh3ph1 mb1ic64ih56oc64oh56kh3ph1
    """
    if name not in _list_names():
        raise ProblemError(f"{name!r} names no list of shapes; there are {', '.join(_list_names())}")
    problems = _shapes(name)
    return problems if mb is None else tuple(replace(problem, mb=mb) for problem in problems)


_FOLDER = resources.files("tilewright.problems") / "shapes"


def _list_names() -> tuple[str, ...]:
    files = (entry.name for entry in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(".txt") for name in files if name.endswith(".txt")))


@cache
def _shapes(name: str) -> tuple[ConvProblem, ...]:
    text = (_FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    return tuple(problem for _, problem in read_batch(text) if isinstance(problem, ConvProblem))
