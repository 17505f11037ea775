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

# Options that are passed through as text, for the program that runs the problems.
_PASSED_THROUGH = frozenset(
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
        """Return the text of the option `name`, such as "stag", that the batch file gives to this problem; `default` if
        it gives none.
        """
        return dict(self.options).get(name, default)


def read_batch(text: str) -> Iterator[tuple[Settings, Problem]]:
    """Yield (settings, problem) for each problem of a batch file, in the order of the file; `text` is the file's text.

    An option holds for all problems after it, until it is set again; `--reset` restores all defaults. Options with
    several values, such as `--dt=f32,bf16`, give each problem once for each combination. If the option `mb` is set,
    problems have its batch size. Raise ParseError, with the line, for malformed text; problems before the fault have
    been yielded by then.

    >>> for settings, problem in read_batch("--mb=1,4 ic3ih8oc8kh3 # first\\n --dir=BWD_D  ic8ih6oc8kh3ph1"):
    ...     print(settings.direction, problem)
    FWD_B mb1ic3ih8oc8oh6kh3ph0
    FWD_B mb4ic3ih8oc8oh6kh3ph0
    BWD_D mb1ic8ih6oc8oh6kh3ph1
    BWD_D mb4ic8ih6oc8oh6kh3ph1
    """
    state = _Options()
    for number, line in _logical_lines(text):
        for word in re.finditer(r"\S+", line):
            try:
                if word.group() == "--reset":
                    state = _Options()
                elif word.group().startswith("--"):
                    state.set(word.group())
                else:
                    yield from state.expand(word.group())
            except ParseError as error:
                message = str(error).partition("\n")[0]
                raise ParseError(f"line {number}: {message}", line, word.start() + error.position) from None


class _Options:
    """The options in effect at a position of a batch file; an option with several values holds a list."""

    def __init__(self) -> None:
        self.mb: list[int | None] = [None]
        self.dt = [Settings.dt]
        self.directions = [Settings.direction]
        self.options: dict[str, str] = {}

    def set(self, word: str) -> None:
        """Store the option written as `word`, such as "--mb=1,4", in place of its former value.

        Raise ParseError if the option is unknown or its value malformed.
        """
        name, _, value = word[2:].partition("=")
        value_position = len(word) - len(value)
        if name == "mb":
            self.mb = [
                _parse_batch_size(part, word, position) for part, position in _split_at_commas(value, value_position)
            ]
        elif name == "dt":
            self.dt = [_parse_types(part, word, position) for part, position in _split_at_commas(value, value_position)]
        elif name == "dir":
            self.directions = [
                _parse_direction(part, word, position) for part, position in _split_at_commas(value, value_position)
            ]
        elif name in _PASSED_THROUGH:
            self.options[name] = value
        else:
            raise ParseError(f"--{name} is no option that is known here; there are {_option_names()}", word, 0)

    def expand(self, word: str) -> Iterator[tuple[Settings, Problem]]:
        """Yield (settings, problem) for the problem written as `word`, once for each combination of the values of `dt`,
        `dir` and `mb`.

        Values of `mb` vary fastest, those of `dt` slowest. A batch size of `mb` replaces that of a convolution. Raise
        ParseError if `word` is malformed, or if `mb` is set for a matrix product.
        """
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
    """Return the names of all options, sorted, as one text for error messages: "--alg, --attr-deterministic, ..."."""
    return ", ".join(f"--{name}" for name in sorted({*_PASSED_THROUGH, "mb", "dt", "dir", "reset"}))


def _split_at_commas(value: str, position: int) -> Iterator[tuple[str, int]]:
    """Yield (part, position of the part) for each part of `value` between commas.

    `position` is the position of `value` in a longer text, and the yielded positions are positions in that text:
    ("1,4", 5) gives ("1", 5) and ("4", 7).
    """
    for part in value.split(","):
        yield part, position
        position += len(part) + 1


def _parse_batch_size(value: str, word: str, position: int) -> int | None:
    """Return the batch size that the text `value` gives; None for "0", which leaves each problem its own batch size.

    Raise ParseError, which points at `position` in `word`, if `value` is no number.
    """
    if not re.fullmatch(r"[0-9]{1,18}", value):
        raise ParseError(f"--mb needs a number (0: as each problem has it), not {value!r}", word, position)
    return int(value) or None


def _parse_types(value: str, word: str, position: int) -> tuple[str, str, str]:
    """Return the element types (source, weights, result) that the text `value` gives: "u8:s8:s32", or one type for all
    three.

    Raise ParseError, which points at `position` in `word`, for other texts.
    """
    try:
        names = [dtype(name).name for name in value.split(":")]
    except ProblemError as fault:
        raise ParseError(f"--dt: {fault}", word, position) from None
    if len(names) not in (1, 3):
        raise ParseError(f"--dt needs one type, or three as in u8:s8:s32, not {value!r}", word, position)
    source, weights, result = names if len(names) == 3 else names * 3
    return source, weights, result


def _parse_direction(value: str, word: str, position: int) -> str:
    """Return the direction of propagation, such as "FWD_B", that the text `value` gives, in upper case.

    Raise ParseError, which points at `position` in `word`, if there is no such direction.
    """
    if value.upper() not in DIRECTIONS:
        raise ParseError(f"--dir needs one of {', '.join(DIRECTIONS)}, not {value!r}", word, position)
    return value.upper()


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, line) for the lines of `text`, without their comments.

    A line that ends in a backslash is joined with the next one. The line number is that of the first joined line; lines
    are counted from 1.
    """
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r"(^|\s)#.*", "", line)
        joined, first = (joined + code.lstrip(), first) if first else (code, number)
        if joined.endswith("\\"):
            joined = joined[:-1]
        else:
            yield first, joined
            first = 0
    if first:
        yield first, joined


def shape_lists() -> dict[str, tuple[ConvProblem, ...]]:
    """Return {name: convolutions} of all lists of real layers that come with the package.

    >>> {name: len(problems) for name, problems in shape_lists().items()}
    {'conv_3d': 6, 'depthwise': 7, 'grouped_dilated': 10, 'hopper_8': 8, 'mixed': 47, 'resnet_50': 20}
    """
    return {name: _read_shapes(name) for name in _list_names()}


def shape_list(name: str, mb: int | None = None) -> tuple[ConvProblem, ...]:
    """Return the convolutions of the list `name` of real layers that comes with the package.

    If `mb` is given, it replaces the batch size of each convolution. Raise ProblemError if there is no such list.

    >>> print(shape_list("hopper_8")[0], shape_list("hopper_8", mb=1)[0])
    mb32ic64ih56oc64oh56kh3ph1 mb1ic64ih56oc64oh56kh3ph1
    """
    if name not in _list_names():
        raise ProblemError(f"{name!r} names no list of shapes; there are {', '.join(_list_names())}")
    problems = _read_shapes(name)
    return problems if mb is None else tuple(replace(problem, mb=mb) for problem in problems)


_FOLDER = resources.files("tilewright.problems") / "shapes"


def _list_names() -> tuple[str, ...]:
    """Return the names of all lists of real layers that come with the package, sorted."""
    files = (entry.name for entry in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(".txt") for name in files if name.endswith(".txt")))


@cache
def _read_shapes(name: str) -> tuple[ConvProblem, ...]:
    """Return the convolutions in the file of the list `name`. Results are cached, so that each file is read once."""
    text = (_FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    return tuple(problem for _, problem in read_batch(text) if isinstance(problem, ConvProblem))
